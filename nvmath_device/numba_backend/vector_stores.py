# SPDX-License-Identifier: Apache-2.0
"""A tile of a product of our own that lies inside of a matrix, written 16 bytes at a time where C allows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from nvmath_device.descriptors import ROW_MAJOR
from nvmath_device.numba_backend import emit
from nvmath_device.numba_backend.pipeline_calls import LONG
from nvmath_device.own_products import VECTOR_BYTES
from nvmath_device.pipelines import PipelinePlan

Pair = tuple[Any, Any]


def comes_in_vectors(plan: PipelinePlan) -> bool:
    """Whether a thread has as many neighbours, along the lines of C as it is declared, as 16 bytes hold."""
    if plan.own is None:
        return False
    spread = plan.own.columns if plan.descriptor.arrangement.c == ROW_MAJOR else plan.own.rows
    return spread.group % _lanes(plan) == 0


def are_vectors(builder: Any, plan: PipelinePlan, start: Any, strides: Pair) -> Any:
    """Whether C is contiguous along these lines, and they begin at multiples of 16 bytes, an i1.

    ``start`` is the address of the tile's first element in C, ``strides`` are C's, in bytes.
    """
    pitch, step = strides if plan.descriptor.arrangement.c == ROW_MAJOR else strides[::-1]
    odd = builder.and_(builder.or_(builder.ptrtoint(start, LONG), pitch), ir.Constant(LONG, VECTOR_BYTES - 1))
    itemsize = ir.Constant(LONG, plan.descriptor.value_types[2].itemsize)
    return builder.and_(builder.icmp_signed("==", odd, ir.Constant(LONG, 0)), builder.icmp_signed("==", step, itemsize))


def store_vectors(
    builder: Any, plan: PipelinePlan, element: Callable[[int], Any], place: Callable[[int], Pair], start: Any,
    strides: Pair,
) -> None:  # fmt: skip
    """Write all elements of this thread. ``element`` loads one, ``place`` gives its row and column in the tile."""
    assert plan.own is not None
    lanes, columns = _lanes(plan), plan.own.columns.count
    along_rows = plan.descriptor.arrangement.c == ROW_MAJOR
    for line in range(plan.own.rows.count if along_rows else columns):
        for first in range(0, columns if along_rows else plan.own.rows.count, lanes):
            elements = [
                line * columns + first + n if along_rows else (first + n) * columns + line for n in range(lanes)
            ]
            values = [element(e) for e in elements]
            vector = emit.vector_of(builder, values)
            offset = builder.add(*(builder.mul(x, s) for x, s in zip(place(elements[0]), strides, strict=True)))
            pointer = builder.bitcast(builder.gep(start, [offset]), vector.type.as_pointer())
            builder.store(vector, pointer, align=VECTOR_BYTES)


def _lanes(plan: PipelinePlan) -> int:
    return VECTOR_BYTES // plan.descriptor.value_types[2].itemsize
