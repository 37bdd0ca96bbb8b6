# SPDX-License-Identifier: Apache-2.0
"""Descriptors of tensors for the hardware that fetches tiles (TMA), written in a kernel of sm_90a."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba.cuda import cgutils

from nvmath_device.numba_backend import emit
from nvmath_device.numba_backend.memory import far_address
from nvmath_device.numba_backend.pipeline_calls import INT, LONG
from nvmath_device.numba_backend.pipeline_slots import (
    DESCRIPTOR_BYTES,
    SLOT_BYTES,
    multiprocessor,
    publish_descriptors,
)
from nvmath_device.numba_backend.ptx import speak

_GLOBAL, _SHARED = 1, 3  # address spaces
_SWIZZLED_BY_128 = 3
_VECTOR, _PAIR = ir.VectorType(INT, 4), ir.VectorType(LONG, 2)
_VECTOR_BYTES = 16
_KEY_AT = 4 * DESCRIPTOR_BYTES  # in a slot, behind the descriptors
assert _KEY_AT + 256 < SLOT_BYTES


@dataclass(frozen=True)
class TensorMap:
    """A matrix, to be fetched in boxes whose lines are swizzled in units of 128 bytes, zeros outside.

    Attributes:
        axis: that along which the matrix is contiguous.
        box: the elements of a line along it, and the lines.
        element: the number of its type.
    """

    context: Any
    array_type: Any
    array: Any
    axis: int
    box: tuple[int, int]
    element: int

    def view(self, builder: Any) -> tuple[Any, Any, Any]:
        """Address, shape and strides."""
        made = emit.array_struct(self.context, builder, self.array_type, self.array)
        shape, strides = (cgutils.unpack_tuple(builder, x, 2) for x in (made.shape, made.strides))
        return far_address(builder, made.data), shape, strides


def write_tensor_maps(builder: Any, maps: Sequence[TensorMap], slot: Any) -> None:
    """By one thread: the descriptors to the beginning of a slot, published. Nothing where they are there already.

    A slot remembers the matrices of its descriptors and the multiprocessor that they were published from last. Blocks
    of a kernel have the same matrices, so all but the first on each multiprocessor find them. What that one's TMA keeps
    of descriptors has been dropped since they were written; another one's has not.
    """
    memory = builder.addrspacecast(slot, ir.PointerType(ir.IntType(8), _GLOBAL))
    key = [builder.add(builder.zext(multiprocessor(builder), LONG), ir.Constant(LONG, 1))]
    for one in maps:
        address, shape, strides = one.view(builder)
        key += [address, *shape, strides[1 - one.axis]]
    key += key[: len(key) % 2]
    pairs = [emit.vector_of(builder, key[n : n + 2]) for n in range(0, len(key), 2)]
    places = [_pointer(builder, memory, _KEY_AT + n * _VECTOR_BYTES, _PAIR) for n in range(len(pairs))]
    difference = ir.Constant(_PAIR, None)
    for place, x in zip(places, pairs, strict=True):
        difference = builder.or_(difference, builder.xor(builder.load(place, align=_VECTOR_BYTES), x))
    different = builder.or_(*(builder.extract_element(difference, ir.Constant(INT, n)) for n in range(2)))
    with builder.if_then(builder.icmp_signed("!=", different, ir.Constant(LONG, 0)), likely=False):
        for n, one in enumerate(maps):
            _write(builder, one, memory, n * DESCRIPTOR_BYTES)
        publish_descriptors(builder, slot, len(maps) * DESCRIPTOR_BYTES)
        for place, x in zip(places, pairs, strict=True):
            builder.store(x, place, align=_VECTOR_BYTES)


def _write(builder: Any, one: TensorMap, memory: Any, offset: int) -> None:
    address, shape, strides = one.view(builder)
    near = builder.ptrtoint(_work(builder.module), INT)
    parts = range(0, DESCRIPTOR_BYTES, _VECTOR_BYTES)
    work = [
        builder.inttoptr(builder.add(near, ir.Constant(INT, part)), ir.PointerType(_VECTOR, _SHARED)) for part in parts
    ]
    for place in work:
        builder.store(ir.Constant(_VECTOR, None), place, align=_VECTOR_BYTES)
    _set(builder, near, "global_address", LONG, address)
    _set(builder, near, "rank", INT, ir.Constant(INT, 1))  # one less than it is
    for n, lines in enumerate(one.box):
        _set(builder, near, "box_dim", INT, ir.Constant(INT, lines), place=n)
        extent = builder.trunc(shape[one.axis if n == 0 else 1 - one.axis], INT)
        _set(builder, near, "global_dim", INT, extent, place=n)
        _set(builder, near, "element_stride", INT, ir.Constant(INT, 1), place=n)
    _set(builder, near, "global_stride", LONG, strides[1 - one.axis], place=0)
    for field, value in (
        ("elemtype", one.element), ("interleave_layout", 0), ("swizzle_mode", _SWIZZLED_BY_128), ("fill_mode", 0),
    ):  # fmt: skip
        speak(builder, f"tensormap.replace.tile.{field}.shared::cta.b1024.b32 [$near], {value};", {"near": near})
    for part, place in zip(parts, work, strict=True):
        target = _pointer(builder, memory, offset + part, _VECTOR)
        builder.store(builder.load(place, align=_VECTOR_BYTES), target, align=_VECTOR_BYTES)


def _pointer(builder: Any, memory: Any, offset: int, kind: Any) -> Any:
    return builder.bitcast(builder.gep(memory, [ir.Constant(INT, offset)]), ir.PointerType(kind, _GLOBAL))


def _set(builder: Any, near: Any, field: str, kind: Any, value: Any, place: int | None = None) -> None:
    at = "" if place is None else f" {place},"
    text = f"tensormap.replace.tile.{field}.shared::cta.b1024.b{kind.width} [$near],{at} $value;"
    speak(builder, text, {"near": near, "value": value})


def _work(module: Any) -> Any:
    """Shared memory in which a descriptor is put together."""
    name = "nvmath_device_tensor_map"
    found = module.globals.get(name)
    if found is None:
        found = ir.GlobalVariable(module, ir.ArrayType(ir.IntType(8), DESCRIPTOR_BYTES), name, addrspace=_SHARED)
        found.linkage, found.align = "internal", DESCRIPTOR_BYTES
        found.initializer = ir.Constant(found.value_type, ir.Undefined)
    return found
