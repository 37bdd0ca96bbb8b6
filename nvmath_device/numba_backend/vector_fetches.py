# SPDX-License-Identifier: Apache-2.0
"""Tiles of a matrix to shared memory, 16 bytes at a time, as straight code: what a loop over K does beside the product.

Each thread copies the same places of every tile, so that its addresses only move on. ``copies.begin_load`` finds them
anew for each copy, and knows all kinds of arrays; what it takes beside a product in single numbers is a third of it.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import cgutils

from nvmath_device.descriptors import ROW_MAJOR, MatrixLayout
from nvmath_device.dtypes import ValueType
from nvmath_device.numba_backend import emit
from nvmath_device.numba_backend.block_threads import linear_thread
from nvmath_device.numba_backend.memory import far_address, near_address
from nvmath_device.numba_backend.pipeline_calls import INT, LONG, POINTER

_VECTOR = 16  # bytes
_MOST_ELEMENTS = 2**24


def has_vectors(layout: MatrixLayout, value: ValueType, threads: int) -> bool:
    """Whether the threads share a tile's pieces evenly, each with as many, all in the same place of their lines."""
    inner, outer = _extents(layout)
    if inner * value.itemsize % _VECTOR or layout.ld * value.itemsize % _VECTOR:
        return False
    per_line = inner * value.itemsize // _VECTOR
    return threads % per_line == 0 and per_line * outer % threads == 0


class VectorFetch:
    """The copies of the tiles of A (``axis`` 1, along which K goes) or B (``axis`` 0) from one row or column of tiles.

    ``first``: of C along the other axis, an int64. What is emitted here is worked out once, before the loop.
    """

    def __init__(
        self, context: Any, builder: Any, layout: MatrixLayout, value: ValueType, threads: int, array_type: Any,
        array: Any, axis: int, first: Any,
    ) -> None:  # fmt: skip
        self._builder, self._value, self._layout = builder, value, layout
        view = emit.array_struct(context, builder, array_type, array)
        shape, strides = (cgutils.unpack_tuple(builder, t, 2) for t in (view.shape, view.strides))
        inner_axis = 1 if layout.order == ROW_MAJOR else 0
        self._is_along_k = inner_axis == axis
        self._extent_k, self._stride_k = shape[axis], strides[axis]
        self._valid = builder.sub(shape[1 - axis], first)  # elements that are left along the other axis
        self._pitch, self._step = strides[1 - inner_axis], strides[inner_axis]
        inner, outer = _extents(layout)
        per_line = inner * value.itemsize // _VECTOR
        self._lines_apart, self._copies = threads // per_line, per_line * outer // threads
        thread = linear_thread(builder)
        self._line = builder.udiv(thread, ir.Constant(INT, per_line))
        self._start = builder.mul(builder.urem(thread, ir.Constant(INT, per_line)), ir.Constant(INT, _VECTOR))  # bytes
        self._base = builder.add(far_address(builder, view.data), builder.mul(first, strides[1 - axis]))
        self._source = builder.add(
            builder.add(self._base, builder.mul(builder.zext(self._line, LONG), self._pitch)),
            builder.zext(self._start, LONG),
        )

    def is_possible(self) -> Any:
        """Whether the array is in global memory, contiguous along the lines, and all pieces are aligned, an i1."""
        builder = self._builder
        itemsize = ir.Constant(LONG, self._value.itemsize)
        end = builder.mul(self._extent_k if self._is_along_k else self._valid, itemsize)
        odd = builder.and_(builder.or_(builder.or_(self._base, self._pitch), end), ir.Constant(LONG, _VECTOR - 1))
        prototype = ir.FunctionType(ir.IntType(1), [POINTER])
        is_global = cgutils.get_or_insert_function(builder.module, prototype, "llvm.nvvm.isspacep.global")
        return builder.and_(
            builder.and_(
                builder.icmp_signed("==", odd, ir.Constant(LONG, 0)), builder.icmp_signed("==", self._step, itemsize)
            ),
            builder.call(is_global, [builder.inttoptr(self._base, POINTER)]),
        )

    def begin(self, along_k: Any, tile: Any) -> None:
        """The copy of the tile that begins at ``along_k``, an int64, to a generic pointer; zeros outside the matrix."""
        builder, itemsize = self._builder, self._value.itemsize
        left_k, left = (_clipped(builder, x) for x in (builder.sub(self._extent_k, along_k), self._valid))
        inner, outer = (builder.trunc(x, INT) for x in ((left_k, left) if self._is_along_k else (left, left_k)))
        is_inside = builder.icmp_signed("<", self._start, builder.mul(inner, ir.Constant(INT, itemsize)))
        source = builder.add(self._source, builder.mul(along_k, self._stride_k))
        between = builder.mul(self._pitch, ir.Constant(LONG, self._lines_apart))
        pitch = self._layout.ld * itemsize
        target = builder.trunc(near_address(builder, tile), INT)
        target = builder.add(target, builder.add(builder.mul(self._line, ir.Constant(INT, pitch)), self._start))
        for n in range(self._copies):
            lines = ir.Constant(INT, n * self._lines_apart)
            here = builder.and_(is_inside, builder.icmp_signed("<", builder.add(self._line, lines), outer))
            _copy(builder, builder.add(target, builder.mul(lines, ir.Constant(INT, pitch))), source, here)
            source = builder.add(source, between)


def _copy(builder: Any, near: Any, far: Any, is_inside: Any) -> None:
    count = builder.select(is_inside, ir.Constant(INT, _VECTOR), ir.Constant(INT, 0))
    prototype = ir.FunctionType(ir.VoidType(), [INT, LONG, INT])
    text = f"cp.async.cg.shared.global [$0], [$1], {_VECTOR}, $2;"
    builder.asm(prototype, text, "r,l,r,~{memory}", [near, far, count], side_effect=True)


def _clipped(builder: Any, count: Any) -> Any:
    """To what bytes of it are an int32 of; a tile has less. It is negative for a tile that lies outside."""
    most = ir.Constant(LONG, _MOST_ELEMENTS)
    return builder.select(builder.icmp_signed("<", count, most), count, most)


def _extents(layout: MatrixLayout) -> tuple[int, int]:
    """Inner and outer."""
    return (layout.cols, layout.rows) if layout.order == ROW_MAJOR else (layout.rows, layout.cols)
