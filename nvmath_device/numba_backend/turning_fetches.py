# SPDX-License-Identifier: Apache-2.0
"""Tiles of a matrix to shared memory, turned over on the way: element by element, as straight code.

A matrix whose rows or columns go along K becomes lines across K.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import cgutils

from nvmath_device.descriptors import MatrixLayout
from nvmath_device.dtypes import ValueType
from nvmath_device.numba_backend import emit
from nvmath_device.numba_backend.block_threads import linear_thread
from nvmath_device.numba_backend.memory import far_address, is_global
from nvmath_device.numba_backend.pipeline_calls import INT, LONG
from nvmath_device.numba_backend.vector_fetches import Walk, clipped, copy
from nvmath_device.own_products import TURNED_K, inner_outer


class TurningFetch:
    """As ``VectorFetch``, for a layout whose lines go across K while the array is contiguous along K.

    Eight neighbouring threads copy 32 bytes of a row, the next eight of the next row.
    """

    def __init__(
        self, context: Any, builder: Any, layout: MatrixLayout, value: ValueType, threads: int, array_type: Any,
        array: Any, axis: int, first: Any, turn: int,
    ) -> None:  # fmt: skip
        self._builder, self._value, self._layout = builder, value, layout
        view = emit.array_struct(context, builder, array_type, array)
        shape, strides = (cgutils.unpack_tuple(builder, t, 2) for t in (view.shape, view.strides))
        self._stride_k, self._pitch = strides[axis], strides[1 - axis]
        self._inner, self._outer = inner_outer(layout)
        self._apart = threads // TURNED_K
        thread, along = linear_thread(builder), ir.Constant(INT, TURNED_K)
        self._place, self._k = builder.udiv(thread, along), builder.urem(thread, along)
        self._base = builder.add(far_address(builder, view.data), builder.mul(first, self._pitch))
        ours = builder.mul(builder.zext(self._place, LONG), self._pitch)
        step = builder.mul(builder.zext(self._k, LONG), ir.Constant(LONG, value.itemsize))
        source = builder.add(builder.add(self._base, ours), step)
        self._walk = Walk(builder, self._outer, shape[axis], self._stride_k, source, turn)
        self._left = clipped(builder, builder.sub(shape[1 - axis], first))

    def is_possible(self) -> Any:
        """Whether the array is in global memory and contiguous along K, an i1."""
        builder = self._builder
        is_contiguous = builder.icmp_signed("==", self._stride_k, ir.Constant(LONG, self._value.itemsize))
        return builder.and_(is_contiguous, builder.and_(self._walk.is_possible(), is_global(builder, self._base)))

    def begin(self, near: Any) -> None:
        """The copy of the next tile, to an address in shared memory, an int32; zeros outside the matrix."""
        builder, itemsize, pitch = self._builder, self._value.itemsize, self._layout.ld * self._value.itemsize
        source, left_k = self._walk.go_on()
        between = builder.mul(self._pitch, ir.Constant(LONG, self._apart))
        ours = builder.add(
            builder.mul(self._k, ir.Constant(INT, pitch)), builder.mul(self._place, ir.Constant(INT, itemsize))
        )
        target = builder.add(near, ours)
        steps = range(0, self._outer, TURNED_K)
        are_inside = [builder.icmp_signed("<", builder.add(self._k, ir.Constant(INT, k)), left_k) for k in steps]
        for place in range(0, self._inner, self._apart):
            is_line = builder.icmp_signed("<", builder.add(self._place, ir.Constant(INT, place)), self._left)
            for k, is_inside in zip(steps, are_inside, strict=True):
                to = builder.add(target, ir.Constant(INT, k * pitch + place * itemsize))
                far = builder.add(source, ir.Constant(LONG, k * itemsize))
                copy(builder, to, far, builder.and_(is_line, is_inside), itemsize)
            source = builder.add(source, between)
