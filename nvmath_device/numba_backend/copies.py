# SPDX-License-Identifier: Apache-2.0
"""``Matmul.load_a``, ``load_b``, ``load_c`` and ``store_c`` in kernels: typing, and the loops they become."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from llvmlite import ir
from numba.cuda import cgutils, types

from nvmath_device.descriptors import ROW_MAJOR, SUGGESTED, MatrixLayout
from nvmath_device.dtypes import ValueType
from nvmath_device.matmul import Matmul
from nvmath_device.numba_backend import emit
from nvmath_device.numba_backend.copy_loops import (
    OTHER,
    SAME,
    UNKNOWN,
    Loop,
    TileCopy,
    begin_load_loop,
    load_loop,
    store_loop,
)
from nvmath_device.numba_backend.memory import far_address, memory_ops, near_address
from nvmath_device.numba_backend.objects import Call, current_target, method
from nvmath_device.numba_backend.operands import check_matrix, check_view, check_writable
from nvmath_device.numba_backend.procedures import call as call_procedure
from nvmath_device.targets import ComputeCapability

FIRST_WITH_ASYNC_COPY = ComputeCapability(8, 0)
_INT64 = ir.IntType(64)


def matmul_copies() -> dict[str, Any]:
    """The copy methods of ``Matmul``, by name."""
    loads = {f"load_{operand}": _copy_method(operand, store=False) for operand in "abc"}
    return {**loads, "store_c": _copy_method("c", store=True)}


def _copy_method(operand: str, *, store: bool) -> Any:
    index = "abc".index(operand)
    form = ("smem", "view") if store else ("view", "smem")
    maker: Callable[[TileCopy], Loop] = _store if store else _load

    def resolve(typ: Any, call: Call) -> Any:
        arguments = call.bind(form)
        descriptor = typ.value.descriptor
        value = descriptor.value_types[index]
        check_view(call, "view", arguments["view"], value)
        check_matrix(call, "smem", arguments["smem"], value, descriptor.arrangement[index])
        check_writable(call, form[1], arguments[form[1]])
        return call.signature(types.void, arguments)

    def lower(context: Any, builder: Any, typ: Any, sig: Any, args: Any) -> None:
        emit.raise_alignment(builder)
        layout, value = _layouts(typ.value)[index], typ.value.descriptor.value_types[index]
        type_of, value_of = dict(zip(form, sig.args, strict=True)), dict(zip(form, args, strict=True))
        plan = _plan(layout, value, type_of["view"], current_target())
        arguments = _addresses(context, builder, layout, value, type_of, value_of)
        call_procedure(context, builder, maker(plan), [types.int64] * len(arguments), arguments)

    name = f"store_{operand}" if store else f"load_{operand}"
    return method(f"Matmul.{name}", resolve, lower)


def begin_load(
    context: Any, builder: Any, layout: MatrixLayout, value: ValueType, array_type: Any, array: Any, first: Any,
    tile: Any, target: ComputeCapability,
) -> None:  # fmt: skip
    """Emit the copy of the tile that begins at ``first`` (row, column) of an array, zeros where it lies outside.

    ``tile`` is a generic pointer into shared memory. What is copied asynchronously may still be on its way afterwards.
    """
    order = (1, 0) if layout.order == ROW_MAJOR else (0, 1)  # inner axis, outer axis
    view = emit.array_struct(context, builder, array_type, array)
    shape, strides = (cgutils.unpack_tuple(builder, t, 2) for t in (view.shape, view.strides))
    extents = (layout.rows, layout.cols)
    valid = [_clip(builder, builder.sub(shape[axis], first[axis]), extents[axis]) for axis in order]
    offset = builder.add(*(builder.mul(first[axis], strides[axis]) for axis in (0, 1)))
    arguments = [
        builder.add(far_address(builder, view.data), offset),
        near_address(builder, tile),
        *valid,
        *(strides[axis] for axis in order),
        ir.Constant(_INT64, value.itemsize),
        ir.Constant(_INT64, layout.ld * value.itemsize),
    ]
    plan = _plan(layout, value, array_type, target)
    call_procedure(context, builder, _begin_load(plan), [types.int64] * len(arguments), arguments)


def _layouts(matmul: Matmul) -> tuple[MatrixLayout, ...]:
    """The matrices as stored; libmathdx is asked only if it is to suggest their leading dimensions."""
    if matmul.descriptor.leading_dimension == SUGGESTED:
        return matmul.resolved(current_target()).descriptor.layouts
    return matmul.descriptor.layouts


def _plan(layout: MatrixLayout, value: ValueType, view: Any, target: ComputeCapability) -> TileCopy:
    row_major = layout.order == ROW_MAJOR
    inner, outer = (layout.cols, layout.rows) if row_major else (layout.rows, layout.cols)
    c, f = (SAME, OTHER) if row_major else (OTHER, SAME)
    contiguous = {"C": c, "F": f, "A": UNKNOWN}[view.layout]
    return TileCopy(
        inner=inner,
        outer=outer,
        itemsize=value.itemsize,
        word=value.element.itemsize,
        contiguous=contiguous,
        asynchronous=target >= FIRST_WITH_ASYNC_COPY,
    )


# Cached: Numba compiles a loop once when it is given the same function again.


@lru_cache(maxsize=1024)
def _load(plan: TileCopy) -> Loop:
    return load_loop(plan, memory_ops(plan.word, asynchronous=plan.asynchronous))


@lru_cache(maxsize=1024)
def _begin_load(plan: TileCopy) -> Loop:
    return begin_load_loop(plan, memory_ops(plan.word, asynchronous=plan.asynchronous))


@lru_cache(maxsize=1024)
def _store(plan: TileCopy) -> Loop:
    return store_loop(plan, memory_ops(plan.word, asynchronous=plan.asynchronous))


def _addresses(
    context: Any,
    builder: Any,
    layout: MatrixLayout,
    value: ValueType,
    type_of: dict[str, Any],
    value_of: dict[str, Any],
) -> list[Any]:
    """The eight integers of ``copy_loops``."""
    order = (1, 0) if layout.order == ROW_MAJOR else (0, 1)  # inner axis, outer axis
    view = emit.array_struct(context, builder, type_of["view"], value_of["view"])
    smem = emit.array_struct(context, builder, type_of["smem"], value_of["smem"])
    shape, strides = (cgutils.unpack_tuple(builder, t, 2) for t in (view.shape, view.strides))
    valid = [_clip(builder, shape[axis], (layout.rows, layout.cols)[axis]) for axis in order]
    if type_of["smem"].ndim == 1:
        pitch = ir.Constant(_INT64, layout.ld * value.itemsize)
    else:
        pitch = cgutils.unpack_tuple(builder, smem.strides, 2)[order[1]]
    return [
        far_address(builder, view.data),
        near_address(builder, smem.data),
        *valid,
        *(strides[axis] for axis in order),
        ir.Constant(_INT64, value.itemsize),
        pitch,
    ]


def _clip(builder: Any, extent: Any, limit: int) -> Any:
    most = ir.Constant(_INT64, limit)
    return builder.select(builder.icmp_signed("<", extent, most), extent, most)
