# SPDX-License-Identifier: Apache-2.0
"""``SharedLayout`` in kernels: its parts as arrays at their offsets in the dynamic shared memory."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import cudaimpl, types
from numba.cuda.cudadecl import registry as typing_registry
from numba.cuda.cudadrv import nvvm
from numba.cuda.cudaimpl import registry as lowering_registry
from numba.cuda.datamodel import models
from numba.cuda.models import register_model
from numba.cuda.typing.templates import AttributeTemplate

from nvmath_device.numba_backend import debug_checks
from nvmath_device.numba_backend.dynamic_shared import uses_dynamic_shared
from nvmath_device.numba_backend.element_types import numba_type
from nvmath_device.numba_backend.objects import Call, ConstantType, is_debug, literal_type, lower_literal, method
from nvmath_device.numba_backend.vectors import vector_numba
from nvmath_device.shared_layouts import SharedLayout, SharedPart
from nvmath_device.vector_types import VectorType

_BYTE = ir.IntType(8)


class SharedLayoutType(ConstantType):
    """A layout; its parts are attributes."""

    value: SharedLayout


class SharedPartType(ConstantType):
    """A part, and what its layout's buffer is aligned to."""

    value: tuple[SharedPart, int]

    def __init__(self, part: SharedPart, alignment: int) -> None:
        super().__init__((part, alignment))
        self.name = f"{part!r} in a buffer aligned to {alignment} bytes"


def _element(part: SharedPart) -> Any:
    return vector_numba(part.dtype) if isinstance(part.dtype, VectorType) else numba_type(part.dtype)


def _resolve_array(typ: SharedPartType, call: Call) -> Any:
    call.bind(())
    part, _ = typ.value
    return call.signature(types.Array(dtype=_element(part), ndim=len(part.shape), layout="C"), {})


def _lower_array(context: Any, builder: Any, typ: SharedPartType, sig: Any, args: Any) -> Any:
    part, alignment = typ.value
    if is_debug():
        debug_checks.check_dynamic_shared(context, builder, f"shared_layout's {part.name}", part.end)
    uses_dynamic_shared(context, part.end)
    return _array_at(context, builder, sig.return_type, part, dynamic_buffer(builder, alignment))


def dynamic_buffer(builder: Any, alignment: int) -> Any:
    """Where the dynamic memory of a launch begins: behind the static arrays, at a multiple of ``alignment`` bytes.

    ptxas places each external array by its own alignment. With one alignment for all parts of a layout they have one
    beginning, with each its own they would not.
    """
    symbol = cudaimpl._get_unique_smem_id("_nvmath_device_shared_layout")
    buffer = ir.GlobalVariable(builder.module, ir.ArrayType(_BYTE, 0), symbol, nvvm.ADDRSPACE_SHARED)
    buffer.linkage, buffer.align = "external", alignment
    shared = builder.bitcast(buffer, ir.PointerType(_BYTE, nvvm.ADDRSPACE_SHARED))
    return builder.addrspacecast(shared, ir.PointerType(_BYTE))


def _array_at(context: Any, builder: Any, array_type: Any, part: SharedPart, base: Any) -> Any:
    start = builder.gep(base, [context.get_constant(types.intp, part.offset)], inbounds=True)
    array = context.make_array(array_type)(context, builder)
    itemsize = part.dtype.itemsize
    strides = [itemsize]
    for extent in reversed(part.shape[1:]):
        strides.insert(0, strides[0] * extent)
    context.populate_array(
        array,
        data=builder.bitcast(start, array.data.type),
        shape=[context.get_constant(types.intp, n) for n in part.shape],
        strides=[context.get_constant(types.intp, s) for s in strides],
        itemsize=context.get_constant(types.intp, itemsize),
        meminfo=None,
    )
    return array._getvalue()


_PART = method("shared_layout part", _resolve_array, _lower_array)
_NUMBERS = ("size", "alignment")

for _cls in (SharedLayoutType, SharedPartType):
    register_model(_cls)(models.OpaqueModel)
lowering_registry.lower_constant(SharedLayoutType)(lambda context, builder, ty, value: context.get_dummy_value())


@lowering_registry.lower_cast(SharedLayoutType, SharedPartType)
def _part_of(context: Any, builder: Any, layout: Any, part: Any, value: Any) -> Any:
    """What Numba asks for where a method is of another type than the object it was looked up on."""
    return context.get_dummy_value()


@typing_registry.register_attr
class _Attributes(AttributeTemplate):
    key = SharedLayoutType

    def generic_resolve(self, typ: Any, attr: str) -> Any:
        if attr in _NUMBERS:
            return literal_type(getattr(typ.value, attr))
        for part in typ.value.parts:
            if part.name == attr:
                return types.BoundFunction(_PART, SharedPartType(part, typ.value.alignment))
        return None


@lowering_registry.lower_getattr_generic(SharedLayoutType)
def _lower_attribute(context: Any, builder: Any, typ: Any, value: Any, attr: str) -> Any:
    if attr in _NUMBERS:
        return lower_literal(context, builder, literal_type(getattr(typ.value, attr)))
    return context.get_dummy_value()
