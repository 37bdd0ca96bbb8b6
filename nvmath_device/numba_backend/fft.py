# SPDX-License-Identifier: Apache-2.0
"""``FFT`` in kernels: its type, the typing of its methods and the calls they become."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import cgutils, types

from nvmath_device.fft import FFT, traits_of
from nvmath_device.fft_descriptor import BLOCK, FftDescriptor
from nvmath_device.numba_backend import debug_checks, emit, fft_copies
from nvmath_device.numba_backend.element_types import holds, holds_components, wanted
from nvmath_device.numba_backend.generated import RequiredBlock
from nvmath_device.numba_backend.objects import (
    Call,
    ConstantType,
    is_debug,
    method,
    register_constant,
    settled_target,
)
from nvmath_device.numba_backend.procedures import call as call_procedure
from nvmath_device.numba_backend.views import component_type, is_number
from nvmath_device.targets import ComputeCapability

ATTRIBUTES = (
    "size", "precision", "fft_type", "direction", "execution", "value_type", "input_type", "output_type",
    "implicit_type_batching", "input_length", "output_length", "elements_per_thread", "input_elements_per_thread",
    "output_elements_per_thread", "storage_size", "stride", "block_dim", "ffts_per_block", "shared_memory_size",
    "shared_storage_size",
)  # fmt: skip


class FftType(ConstantType):
    """An ``FFT``; what it left open is settled for the target of the running compilation."""

    value: FFT

    @property
    def plan(self) -> tuple[FftDescriptor, ComputeCapability]:
        return self.value.resolved(settled_target(self.value.target, self.value))

    def for_target(self) -> FFT:
        return FFT.from_descriptor(*self.plan)

    @property
    def is_block(self) -> bool:
        return self.value.descriptor.execution == BLOCK


def _recipe(typ: FftType, api: str, functions: tuple[str, ...] = ("EXECUTE",)) -> Any:
    from nvmath_device.lto.recipes import fft_recipe

    descriptor, target = typ.plan
    traits_of(descriptor, target)  # an FFT without an implementation is refused in words, before generating
    return fft_recipe(descriptor, sm=target, api=api, functions=functions)


# -- execute ---------------------------------------------------------------------------------------------------


def _resolve_execute(typ: FftType, call: Call) -> Any:
    forms = [("thread_data", "shared_mem"), ("shared_mem",)] if typ.is_block else [("thread_data",)]
    arguments = call.bind(*forms)
    if "thread_data" in arguments:
        _check_storage(typ, call, "thread_data", arguments["thread_data"])
        if "shared_mem" in arguments:
            _check_contiguous(call, "shared_mem", arguments["shared_mem"])
    else:
        _check_storage(typ, call, "shared_mem", arguments["shared_mem"])
    return call.signature(types.void, arguments)


def _check_contiguous(call: Call, name: str, given: Any) -> None:
    if not isinstance(given, types.Array) or given.ndim != 1 or given.layout not in "CF":
        raise call.error(f"wants a contiguous 1-D array for {name}, got {given}")
    if not given.mutable:
        raise call.error(f"cannot write {name}: the array is read-only")


def _check_storage(typ: FftType, call: Call, name: str, given: Any) -> None:
    _check_contiguous(call, name, given)
    descriptor = typ.value.descriptor
    accepted = (descriptor.value_type, descriptor.input_type, descriptor.output_type)
    if not any(holds(given.dtype, v) or holds_components(given.dtype, v) for v in accepted):
        raise call.error(f"wants elements of {wanted(descriptor.value_type)} for {name}, got an array of {given.dtype}")


def _lower_execute(context: Any, builder: Any, typ: FftType, sig: Any, args: Any) -> None:
    api = "SMEM" if typ.is_block and len(args) == 1 else "LMEM"
    pointers = [emit.data_pointer(context, builder, t, a) for t, a in zip(sig.args, args, strict=True)]
    if is_debug():
        _check_at_run_time(context, builder, typ, sig, args, pointers)
    block = _block(typ)
    if block is not None:
        emit.bound_threads(builder, block.block_dim.size)
    emit.call_generated(context, builder, _recipe(typ, api), pointers, block=block)


def _block(typ: FftType) -> RequiredBlock | None:
    extents = typ.for_target().block_dim
    return None if extents is None else RequiredBlock(extents, exact=True)


def _check_at_run_time(context: Any, builder: Any, typ: FftType, sig: Any, args: Any, pointers: Any) -> None:
    name, traits = "FFT.execute", traits_of(*typ.plan)
    in_registers = traits.storage_size * traits.value_type.itemsize
    if not typ.is_block:
        debug_checks.check_length(context, builder, name, "thread_data", sig.args[0], args[0], in_registers)
        return
    assert traits.block_dim is not None
    debug_checks.check_block(context, builder, name, traits.block_dim, shape=True)
    debug_checks.check_shared(context, builder, name, "shared_mem", pointers[-1])
    if len(args) == 2:
        debug_checks.check_length(context, builder, name, "thread_data", sig.args[0], args[0], in_registers)
        need = traits.shared_memory_size or 0
    else:
        need = typ.for_target().shared_storage_size or 0
    debug_checks.check_length(context, builder, name, "shared_mem", sig.args[-1], args[-1], need)


# -- copies ----------------------------------------------------------------------------------------------------


def _copy(name: str, *, output: bool, shared: bool) -> Any:
    """The typing and lowering of load, store, load_shared or store_shared."""
    storage, array = "shared_mem" if shared else "thread_data", "target" if output else "source"
    form = (storage, array) if output else (array, storage)

    def resolve(typ: FftType, call: Call) -> Any:
        if shared and not typ.is_block:
            raise call.error("has no meaning for Thread execution, whose data is in registers")
        arguments = call.bind(form, optional=("index",))
        _check_storage(typ, call, storage, arguments[storage])
        _check_view(typ, call, array, arguments[array], output=output)
        if "index" in arguments:
            if not isinstance(arguments["index"], types.Integer):
                raise call.error(f"wants an integer for index, the row of the FFT, got {arguments['index']}")
            arguments["index"] = types.int64
        return call.signature(types.void, arguments)

    def lower(context: Any, builder: Any, typ: FftType, sig: Any, args: Any) -> None:
        descriptor, target = typ.plan
        s = fft_copies.side(descriptor, traits_of(descriptor, target), output=output)
        copy = (fft_copies.shared_copy if shared else fft_copies.register_copy)(s, output=output)
        of = {name: (t, a) for name, t, a in zip(form, sig.args, args, strict=False)}  # an index may follow
        index = args[2] if len(args) > 2 else _default_index(context, builder, s, of_block=shared)
        arg_types = (of[storage][0], of[array][0], types.int64)
        call_procedure(context, builder, copy, arg_types, (of[storage][1], of[array][1], index))

    return method(f"FFT.{name}", resolve, lower)


def _check_view(typ: FftType, call: Call, name: str, given: Any, *, output: bool) -> None:
    if not isinstance(given, types.Array) or given.ndim != 2:
        raise call.error(f"wants a 2-D array, one FFT a row, for {name}, got {given}")
    if not is_number(given.dtype):
        raise call.error(f"wants real or complex floating-point elements for {name}, got {given.dtype}")
    descriptor = typ.value.descriptor
    fft_type = "c2r" if output else "r2c"
    real = descriptor.fft_type == fft_type
    is_complex = given.dtype != component_type(given.dtype)
    if real and is_complex:
        raise call.error(f"wants real elements for {name} of a {fft_type} FFT, got an array of {given.dtype}")
    if output and not real and not is_complex:
        raise call.error(f"wants complex elements for {name}, got an array of {given.dtype}")
    if output and not given.mutable:
        raise call.error(f"cannot write {name}: the array is read-only")


def _default_index(context: Any, builder: Any, s: Any, *, of_block: bool) -> Any:
    array_type = types.Array(types.int64, 1, "C")
    slot = cgutils.alloca_once(builder, ir.IntType(64))
    from numba.cuda.np.arrayobj import make_array, populate_array

    view = make_array(array_type)(context, builder)
    one, eight = ir.Constant(ir.IntType(64), 1), ir.Constant(ir.IntType(64), 8)
    populate_array(view, data=slot, shape=[one], strides=[eight], itemsize=eight, meminfo=None)
    put = fft_copies.first_row(s, of_block=of_block)
    call_procedure(context, builder, put, (array_type,), (view._getvalue(),))
    return builder.load(slot)


# -- ids -------------------------------------------------------------------------------------------------------


def _identity(name: str, result: Any) -> Any:
    """fft_id, batch_id or is_thread_active: cuFFTDx's own functions, ``void f(unsigned* out)``."""

    def resolve(typ: FftType, call: Call) -> Any:
        call.bind(())
        return call.signature(result, {})

    def lower(context: Any, builder: Any, typ: FftType, sig: Any, args: Any) -> Any:
        from nvmath_device.lto.recipes import FFT_ID_FUNCTIONS

        slot = cgutils.alloca_once(builder, ir.IntType(32))
        recipe = _recipe(typ, "LMEM", FFT_ID_FUNCTIONS)
        emit.call_generated(context, builder, recipe, [slot], function=name.upper(), block=_block(typ))
        value = builder.load(slot)
        if result == types.boolean:
            return builder.icmp_signed("!=", value, ir.Constant(value.type, 0))
        return value

    return method(f"FFT.{name}", resolve, lower)


register_constant(
    FftType,
    ATTRIBUTES,
    {
        "execute": method("FFT.execute", _resolve_execute, _lower_execute),
        "load": _copy("load", output=False, shared=False),
        "store": _copy("store", output=True, shared=False),
        "load_shared": _copy("load_shared", output=False, shared=True),
        "store_shared": _copy("store_shared", output=True, shared=True),
        "fft_id": _identity("fft_id", types.uint32),
        "batch_id": _identity("batch_id", types.uint32),
        "is_thread_active": _identity("is_thread_active", types.boolean),
    },
)
