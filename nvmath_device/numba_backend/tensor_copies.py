# SPDX-License-Identifier: Apache-2.0
"""``nvmath_device.copy``, ``copy_fragment`` and ``copy_wait`` in kernels."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import types

from nvmath_device.errors import KernelTypingError
from nvmath_device.numba_backend import debug_checks
from nvmath_device.numba_backend.conversions import converted
from nvmath_device.numba_backend.copies import FIRST_WITH_ASYNC_COPY
from nvmath_device.numba_backend.functions import register_function
from nvmath_device.numba_backend.objects import Call, current_target, is_debug
from nvmath_device.numba_backend.pipeline_calls import LONG
from nvmath_device.numba_backend.tensor_types import TensorType
from nvmath_device.numba_backend.tensor_values import (
    Elements,
    Functions,
    functions_of,
    passed,
    place_in_memory,
    unpacked,
)
from nvmath_device.tensor_layouts import GMEM, RMEM, SMEM
from nvmath_device.tensor_rules import check_copy, check_fragment_copy, copy_alignment


def _resolve_copy(call: Call) -> Any:
    arguments = call.bind(("src", "dst"), optional=("alignment",))
    check_copy(call.error, arguments["src"], arguments["dst"])
    _alignment(call.error, arguments["src"], arguments.get("alignment"))
    return call.signature(types.void, arguments)


def _alignment(error: Any, typ: TensorType, given: Any) -> int:
    """Bytes that are moved at once; ``given`` is a type, or ``None``."""
    if isinstance(given, types.IntegerLiteral):
        return copy_alignment(error, typ, given.literal_value)
    return copy_alignment(error, typ, None if given == types.none else given)


def family(context: Any, builder: Any, plan: Any, is_suggested: bool, alignment: int, place: int) -> Functions:
    """The functions that copy in such pieces: the family's own, where its descriptor says so."""
    other = None if alignment == plan.promised(place) else alignment
    return Functions(context, builder, plan, is_suggested, other)


def _alignment_of(sig: Any) -> int:
    return _alignment(KernelTypingError, sig.args[0], sig.args[2] if len(sig.args) > 2 else None)


def _lower_copy(context: Any, builder: Any, sig: Any, args: Any) -> None:
    src, dst = sig.args[:2]
    shared = src if src.memory == SMEM else dst
    alignment = _alignment_of(sig)
    if is_debug():
        for name, typ, value in (("src", src, args[0]), ("dst", dst, args[1])):
            _check_at_run_time(context, builder, "copy", name, typ, value, alignment)
    names = family(context, builder, src.plan, shared.is_suggested, alignment, src.place)
    role = f"{'store' if shared is src else 'load'}_{src.matrix}"
    names.call(role, [passed(context, builder, typ, value) for typ, value in ((src, args[0]), (dst, args[1]))])


def _check_at_run_time(
    context: Any, builder: Any, call: str, name: str, typ: TensorType, value: Any, alignment: int
) -> None:
    if typ.memory == RMEM:
        return
    tensor = unpacked(context, builder, typ, value)
    debug_checks.check_aligned(context, builder, call, name, tensor.data, alignment)
    if typ.memory == GMEM:
        itemsize = ir.Constant(LONG, typ.plan.value(typ.place).itemsize)
        pitch = builder.inttoptr(builder.mul(tensor.ld, itemsize), tensor.data.type)
        debug_checks.check_aligned(context, builder, f"{call}'s leading dimension", name, pitch, alignment)


# -- fragments -----------------------------------------------------------------------------------------------------


def _resolve_copy_fragment(call: Call) -> Any:
    arguments = call.bind(("src", "dst"), optional=("alignment",))
    check_fragment_copy(call.error, arguments["src"], arguments["dst"])
    _alignment(call.error, arguments["src"], arguments.get("alignment"))
    return call.signature(types.void, arguments)


def _lower_copy_fragment(context: Any, builder: Any, sig: Any, args: Any) -> None:
    alignment = _alignment_of(sig)
    lower_fragment_copy(context, builder, sig.args[0], sig.args[1], args[0], args[1], alignment)


def lower_fragment_copy(
    context: Any, builder: Any, src: TensorType, dst: TensorType, source: Any, target: Any, alignment: int
) -> None:
    fragment, other = (src, dst) if src.is_fragment else (dst, src)
    if not (src.is_natural and dst.is_natural and fragment.is_plain_family):
        _convert_each(context, builder, src, dst, source, target)
        return
    if is_debug():
        for name, typ, value in (("src", src, source), ("dst", dst, target)):
            _check_at_run_time(context, builder, "copy_fragment", name, typ, value, alignment)
    names = family(context, builder, src.plan, fragment.is_suggested, alignment, 2)
    role = f"fragment_{'to' if fragment is src else 'from'}_{other.memory}"
    names.call(role, [passed(context, builder, typ, value) for typ, value in ((src, source), (dst, target))])


def _convert_each(context: Any, builder: Any, src: TensorType, dst: TensorType, source: Any, target: Any) -> None:
    """Element by element, those inside of the tile."""
    is_store = src.is_fragment
    fragment, other = (src, dst) if is_store else (dst, src)
    held, memory = (source, target) if is_store else (target, source)
    elements = Elements(context, builder, fragment, held)
    names = functions_of(context, builder, fragment, held)
    if is_store and names.store(fragment, held, other, memory):
        return
    for e in range(fragment.size):
        index = ir.Constant(LONG, e)
        with builder.if_then(names.answer("is_index_in_bounds", index)):
            read, write = place_in_memory(context, builder, other, memory, *names.coordinate(index))
            if is_store:
                write(converted(context, builder, elements.get(e), src.element, dst.element))
            else:
                elements.put(e, converted(context, builder, read(), src.element, dst.element))


# -- copy_wait -----------------------------------------------------------------------------------------------------


def _resolve_wait(call: Call) -> Any:
    return call.signature(types.void, call.bind(()))


def _lower_wait(context: Any, builder: Any, sig: Any, args: Any) -> None:
    """Of whichever descriptors' copies: libmathdx's are cp.async, too, and the hardware waits for all of a thread's."""
    wait = ir.InlineAsm(ir.FunctionType(ir.VoidType(), []), "cp.async.wait_all;", "~{memory}", side_effect=True)
    if current_target() >= FIRST_WITH_ASYNC_COPY:
        builder.call(wait, [])


register_function("copy", _resolve_copy, _lower_copy)
register_function("copy_fragment", _resolve_copy_fragment, _lower_copy_fragment)
register_function("copy_wait", _resolve_wait, _lower_wait)
