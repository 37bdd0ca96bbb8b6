# SPDX-License-Identifier: Apache-2.0
"""Descriptors of tensors for the hardware that fetches tiles (TMA), written in a kernel of sm_90a."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import cgutils

from nvmath_device.numba_backend import emit
from nvmath_device.numba_backend.memory import far_address
from nvmath_device.numba_backend.pipeline_calls import INT, LONG
from nvmath_device.numba_backend.pipeline_slots import DESCRIPTOR_BYTES

_SHARED = 3  # address space
_SWIZZLED_BY_128 = 3
_VECTOR = ir.VectorType(INT, 4)


def write_tensor_map(
    context: Any, builder: Any, array_type: Any, array: Any, *, axis: int, box: tuple[int, int], element: int,
    target: Any,
) -> None:  # fmt: skip
    """By one thread: a matrix, to be fetched in boxes whose lines are swizzled in units of 128 bytes, zeros outside.

    ``axis`` is that along which the matrix is contiguous, ``box`` the elements of a line along it and the lines,
    ``element`` the number of its type, ``target`` 128 bytes of global memory. It has to be published before it is used.
    """
    view = emit.array_struct(context, builder, array_type, array)
    shape, strides = (cgutils.unpack_tuple(builder, x, 2) for x in (view.shape, view.strides))
    work = _work(builder.module)
    near = builder.ptrtoint(work, INT)
    pointer = ir.PointerType(_VECTOR, _SHARED)
    parts = range(0, DESCRIPTOR_BYTES, 16)
    for offset in parts:
        place = builder.inttoptr(builder.add(near, ir.Constant(INT, offset)), pointer)
        builder.store(ir.Constant(_VECTOR, None), place, align=16)
    _set(builder, near, "global_address", LONG, far_address(builder, view.data))
    _set(builder, near, "rank", INT, ir.Constant(INT, 1))  # one less than it is
    for n, lines in enumerate(box):
        _set(builder, near, "box_dim", INT, ir.Constant(INT, lines), place=n)
        extent = builder.trunc(shape[axis if n == 0 else 1 - axis], INT)
        _set(builder, near, "global_dim", INT, extent, place=n)
        _set(builder, near, "element_stride", INT, ir.Constant(INT, 1), place=n)
    _set(builder, near, "global_stride", LONG, strides[1 - axis], place=0)
    for field, value in (
        ("elemtype", element), ("interleave_layout", 0), ("swizzle_mode", _SWIZZLED_BY_128), ("fill_mode", 0),
    ):  # fmt: skip
        _say(builder, f"tensormap.replace.tile.{field}.shared::cta.b1024.b32 [$0], {value};", near)
    wide = builder.bitcast(builder.addrspacecast(target, ir.PointerType(ir.IntType(8), 1)), ir.PointerType(_VECTOR, 1))
    for n, offset in enumerate(parts):
        place = builder.inttoptr(builder.add(near, ir.Constant(INT, offset)), pointer)
        builder.store(builder.load(place, align=16), builder.gep(wide, [ir.Constant(INT, n)]), align=16)


def _set(builder: Any, near: Any, field: str, kind: Any, value: Any, place: int | None = None) -> None:
    at = "" if place is None else f" {place},"
    _say(builder, f"tensormap.replace.tile.{field}.shared::cta.b1024.b{kind.width} [$0],{at} $1;", near, value)


def _say(builder: Any, text: str, *operands: Any) -> None:
    kind = ir.FunctionType(ir.VoidType(), [x.type for x in operands])
    constraints = ["l" if x.type == LONG else "r" for x in operands]
    builder.asm(kind, text, ",".join([*constraints, "~{memory}"]), operands, side_effect=True)


def _work(module: Any) -> Any:
    """Shared memory in which a descriptor is put together."""
    name = "nvmath_device_tensor_map"
    found = module.globals.get(name)
    if found is None:
        found = ir.GlobalVariable(module, ir.ArrayType(ir.IntType(8), DESCRIPTOR_BYTES), name, addrspace=_SHARED)
        found.linkage, found.align = "internal", DESCRIPTOR_BYTES
        found.initializer = ir.Constant(found.value_type, ir.Undefined)
    return found
