# SPDX-License-Identifier: Apache-2.0
"""``nvmath_device.shared.array``: shared arrays of every element type, aligned for generated code."""

from __future__ import annotations

from typing import Any

from numba.cuda import cudaimpl, types
from numba.cuda.cudadrv import nvvm
from numba.cuda.typing.npydecl import parse_dtype

from nvmath_device.descriptors import MAX_ALIGNMENT_BYTES
from nvmath_device.dtypes import element_type
from nvmath_device.errors import ArgumentTypeError
from nvmath_device.numba_backend.dynamic_shared import uses_dynamic_shared
from nvmath_device.numba_backend.element_types import element_numba
from nvmath_device.numba_backend.objects import Call, ConstantType, method, register_constant


class SharedType(ConstantType):
    """The namespace ``nvmath_device.shared``."""

    def __init__(self) -> None:
        super().__init__("nvmath_device.shared")

    def for_target(self) -> Any:
        return self.value


def _shape(call: Call, given: Any) -> tuple[int, ...]:
    members = given.types if isinstance(given, types.BaseTuple) else (given,)
    if not members or not all(isinstance(m, types.IntegerLiteral) for m in members):
        raise call.error(f"wants constant integers for shape (literals, globals or descriptor attributes), got {given}")
    return tuple(m.literal_value for m in members)


def _alignment(call: Call, given: Any) -> int:
    value = given.literal_value if isinstance(given, types.IntegerLiteral) else None
    if value is None or value < 1 or value & (value - 1):
        raise call.error(f"wants a constant power of two for alignment (bytes), got {given}")
    return max(value, MAX_ALIGNMENT_BYTES)


def _dtype(call: Call, given: Any) -> Any:
    if isinstance(given, types.StringLiteral):  # also what a descriptor's precision is in a kernel
        try:
            return element_numba(element_type(given.literal_value))
        except ArgumentTypeError as error:
            raise call.error(f"wants an element type for {error}") from None
    dtype = parse_dtype(given)
    if dtype is None:
        raise call.error(f"wants an element type for dtype, got {given}")
    return dtype


def _resolve_array(typ: SharedType, call: Call) -> Any:
    arguments = call.bind(("shape", "dtype"), optional=("alignment",))
    shape = _shape(call, arguments["shape"])
    if any(n < 0 for n in shape) or (0 in shape and len(shape) > 1):
        raise call.error(f"wants positive extents for shape (or a single 0: all dynamic memory), got {shape}")
    dtype = _dtype(call, arguments["dtype"])
    if "alignment" in arguments:
        _alignment(call, arguments["alignment"])
    return call.signature(types.Array(dtype=dtype, ndim=len(shape), layout="C"), arguments)


def _lower_array(context: Any, builder: Any, typ: SharedType, sig: Any, args: Any) -> Any:
    call = Call("shared.array", typ, (), {})
    dtype = sig.return_type.dtype
    if 0 in _shape(call, sig.args[0]):
        uses_dynamic_shared(context, 0)
    return cudaimpl._generic_array(
        context,
        builder,
        shape=_shape(call, sig.args[0]),
        # Numba refuses bfloat16 here though its arrays work; its bits have the same representation.
        dtype=types.uint16 if dtype == types.bfloat16 else dtype,
        symbol_name=cudaimpl._get_unique_smem_id("_nvmath_device_shared"),
        addrspace=nvvm.ADDRSPACE_SHARED,
        can_dynsized=True,
        alignment=_alignment(call, sig.args[2]) if len(sig.args) > 2 else MAX_ALIGNMENT_BYTES,
    )


register_constant(SharedType, (), {"array": method("shared.array", _resolve_array, _lower_array)})
