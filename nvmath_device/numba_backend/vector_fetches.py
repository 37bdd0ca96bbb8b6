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
from nvmath_device.numba_backend.memory import far_address, is_global
from nvmath_device.numba_backend.pipeline_calls import INT, LONG
from nvmath_device.own_products import VECTOR_BYTES, inner_outer

_MOST_ELEMENTS = 2**27  # of up to 8 bytes


class VectorFetch:
    """The copies of the tiles of A (``axis`` 1, along which K goes) or B (``axis`` 0) from one row or column of tiles.

    ``first``: of C along the other axis, an int64. ``turn``: which tile along K comes first. What is emitted here is
    worked out once, before the loop.
    """

    def __init__(
        self, context: Any, builder: Any, layout: MatrixLayout, value: ValueType, threads: int, array_type: Any,
        array: Any, axis: int, first: Any, turn: int,
    ) -> None:  # fmt: skip
        self._builder, self._value, self._layout = builder, value, layout
        view = emit.array_struct(context, builder, array_type, array)
        shape, strides = (cgutils.unpack_tuple(builder, t, 2) for t in (view.shape, view.strides))
        inner_axis = 1 if layout.order == ROW_MAJOR else 0
        self._is_along_k = inner_axis == axis
        self._pitch, self._step = strides[1 - inner_axis], strides[inner_axis]
        inner, outer = inner_outer(layout)
        per_line = inner * value.itemsize // VECTOR_BYTES
        self._lines_apart, self._copies = threads // per_line, per_line * outer // threads
        thread = linear_thread(builder)
        self._line = builder.udiv(thread, ir.Constant(INT, per_line))
        # In bytes.
        self._start = builder.mul(builder.urem(thread, ir.Constant(INT, per_line)), ir.Constant(INT, VECTOR_BYTES))
        self._base = builder.add(far_address(builder, view.data), builder.mul(first, strides[1 - axis]))
        source = builder.add(
            builder.add(self._base, builder.mul(builder.zext(self._line, LONG), self._pitch)),
            builder.zext(self._start, LONG),
        )
        self._walk = Walk(builder, (layout.rows, layout.cols)[axis], shape[axis], strides[axis], source, turn)
        left = builder.sub(shape[1 - axis], first)
        self._end = builder.mul(shape[axis] if self._is_along_k else left, ir.Constant(LONG, value.itemsize))
        self._left = clipped(builder, left)

    def is_possible(self) -> Any:
        """Whether the array is in global memory, contiguous along the lines, and all pieces are aligned, an i1."""
        builder = self._builder
        odd = builder.or_(builder.or_(self._base, self._pitch), self._end)
        odd = builder.and_(odd, ir.Constant(LONG, VECTOR_BYTES - 1))
        is_contiguous = builder.icmp_signed("==", self._step, ir.Constant(LONG, self._value.itemsize))
        is_aligned = builder.icmp_signed("==", odd, ir.Constant(LONG, 0))
        is_there = builder.and_(self._walk.is_possible(), is_global(builder, self._base))
        return builder.and_(builder.and_(is_contiguous, is_aligned), is_there)

    def begin(self, near: Any) -> None:
        """The copy of the next tile, to an address in shared memory, an int32; zeros outside the matrix."""
        builder, itemsize = self._builder, self._value.itemsize
        source, left_k = self._walk.go_on()
        inner, outer = (left_k, self._left) if self._is_along_k else (self._left, left_k)
        is_inside = builder.icmp_signed("<", self._start, builder.mul(inner, ir.Constant(INT, itemsize)))
        between = builder.mul(self._pitch, ir.Constant(LONG, self._lines_apart))
        pitch = self._layout.ld * itemsize
        ours = builder.add(builder.mul(self._line, ir.Constant(INT, pitch)), self._start)
        target = builder.add(near, ours)
        for n in range(self._copies):
            lines = ir.Constant(INT, n * self._lines_apart)
            here = builder.and_(is_inside, builder.icmp_signed("<", builder.add(self._line, lines), outer))
            copy(builder, builder.add(target, builder.mul(lines, ir.Constant(INT, pitch))), source, here, VECTOR_BYTES)
            source = builder.add(source, between)


class Walk:
    """Where a thread is on its way along K: its address there, and how many places are left.

    ``extent``: of a tile. ``whole``, ``stride`` and ``source``: of the matrix, int64, in elements and bytes, and where
    this thread begins in the first tile. ``turn``: which tile is next.
    """

    def __init__(self, builder: Any, extent: int, whole: Any, stride: Any, source: Any, turn: int) -> None:
        self._builder, self._extent, self._whole = builder, extent, whole
        self._bytes = builder.mul(stride, ir.Constant(LONG, extent))
        self._source, self._left = (cgutils.alloca_once(builder, kind) for kind in (LONG, INT))
        builder.store(builder.add(source, builder.mul(self._bytes, ir.Constant(LONG, turn))), self._source)
        builder.store(builder.sub(builder.trunc(whole, INT), ir.Constant(INT, turn * extent)), self._left)

    def is_possible(self) -> Any:
        """Whether what is left is an int32, some tiles behind the matrix, too, and in bytes."""
        return self._builder.icmp_signed("<", self._whole, ir.Constant(LONG, _MOST_ELEMENTS))

    def go_on(self) -> tuple[Any, Any]:
        """The address, an int64, and what is left, an int32, of the next tile, which then is that behind it."""
        builder = self._builder
        source, left = builder.load(self._source), builder.load(self._left)
        builder.store(builder.add(source, self._bytes), self._source)
        builder.store(builder.sub(left, ir.Constant(INT, self._extent)), self._left)
        return source, left


def all_possible(builder: Any, fetches: Any) -> Any:
    """Of A and of B, an i1."""
    a, b = (fetch.is_possible() for fetch in fetches)
    return builder.and_(a, b)


def copy(builder: Any, near: Any, far: Any, is_inside: Any, size: int) -> None:
    """So many bytes to shared memory, or zeros."""
    count = builder.select(is_inside, ir.Constant(INT, size), ir.Constant(INT, 0))
    prototype = ir.FunctionType(ir.VoidType(), [INT, LONG, INT])
    level = "cg" if size == VECTOR_BYTES else "ca"  # cg, past the L1 cache, exists for 16 bytes only
    text = f"cp.async.{level}.shared.global [$0], [$1], {size}, $2;"
    builder.asm(prototype, text, "r,l,r,~{memory}", [near, far, count], side_effect=True)


def clipped(builder: Any, count: Any) -> Any:
    """As an int32, to what bytes of it are one of; a tile has less. None are left of a matrix that ends before."""
    most, none = ir.Constant(LONG, _MOST_ELEMENTS), ir.Constant(LONG, 0)
    count = builder.select(builder.icmp_signed("<", count, most), count, most)
    return builder.trunc(builder.select(builder.icmp_signed("<", count, none), none, count), INT)
