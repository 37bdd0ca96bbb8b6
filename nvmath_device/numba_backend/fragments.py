# SPDX-License-Identifier: Apache-2.0
"""Fragments, a thread's part of C in registers: their elements, ``make_fragment_like``, ``clear`` and ``axpby``."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

from numba.cuda import types
from numba.cuda.cudadecl import registry as typing_registry
from numba.cuda.cudaimpl import registry as lowering_registry
from numba.cuda.typing.npydecl import parse_dtype
from numba.cuda.typing.templates import AbstractTemplate, signature

from nvmath_device.dtypes import element_type
from nvmath_device.errors import ArgumentTypeError, KernelTypingError
from nvmath_device.numba_backend import emit
from nvmath_device.numba_backend.conversions import converted
from nvmath_device.numba_backend.element_types import element_numba, scalar_type
from nvmath_device.numba_backend.functions import register_function
from nvmath_device.numba_backend.objects import Call, register_value
from nvmath_device.numba_backend.tensor_types import TensorType
from nvmath_device.numba_backend.tensor_values import Elements, Functions, new_fragment, passed
from nvmath_device.tensor_layouts import SMEM
from nvmath_device.tensor_rules import check_conversion, check_fragment, check_same_layout

register_value(TensorType, {}, attributes=("size",))


# -- elements ------------------------------------------------------------------------------------------------------


def _is_indexed(args: tuple[Any, ...]) -> bool:
    """Whether a tensor has one index; those in shared memory have a row and a column."""
    return isinstance(args[0], TensorType) and args[0].memory != SMEM


def _check_element(typ: TensorType, index: Any, what: str) -> None:
    if not typ.is_fragment:
        raise KernelTypingError(
            f"elements of a tensor {typ.described} cannot be {what}: only fragments, in registers, have an index; copy "
            "it to one with copy_fragment, or use the array that the tensor was made of"
        )
    if not isinstance(index, types.Integer):
        raise KernelTypingError(f"wants an integer for the index of a fragment, got {index}")
    if not typ.is_number:
        raise KernelTypingError(
            f"elements of a fragment of {typ.element} cannot be {what}: kernels have no such number"
        )


def check_number(given: Any, element: Any, what: str) -> None:
    """What is assigned to an element."""
    narrows = isinstance(given, types.Complex) and not isinstance(element, types.Complex)
    if not isinstance(given, types.Number | types.Boolean) or narrows:
        raise KernelTypingError(f"wants a number that {element} can hold for an element of {what}, got {given}")


@typing_registry.register_global(operator.getitem)
class _GetItem(AbstractTemplate):
    def generic(self, args: tuple[Any, ...], kws: dict[str, Any]) -> Any:
        if len(args) != 2 or not _is_indexed(args):
            return None
        typ, index = args
        _check_element(typ, index, "read")
        return signature(typ.element, typ, types.int64)


@typing_registry.register_global(operator.setitem)
class _SetItem(AbstractTemplate):
    def generic(self, args: tuple[Any, ...], kws: dict[str, Any]) -> Any:
        if len(args) != 3 or not _is_indexed(args):
            return None
        typ, index, given = args
        _check_element(typ, index, "written")
        check_number(given, typ.element, "a fragment")
        return signature(types.none, typ, types.int64, types.unliteral(given))


@lowering_registry.lower(operator.getitem, TensorType, types.Integer)
def _lower_get(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return Elements(context, builder, sig.args[0], args[0]).get(args[1])


@lowering_registry.lower(operator.setitem, TensorType, types.Integer, types.Any)
def _lower_set(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    typ, _, given = sig.args
    Elements(context, builder, typ, args[0]).put(args[1], converted(context, builder, args[2], given, typ.element))
    return context.get_dummy_value()


# -- make_fragment_like --------------------------------------------------------------------------------------------


def _resolve_like(call: Call) -> Any:
    arguments = call.bind(("tensor",), optional=("dtype",))
    like = arguments["tensor"]
    if isinstance(like, TensorType) and not like.is_fragment:
        raise call.error(
            f"wants a fragment or an accumulator for tensor, got {like.described}; a fragment is made on memory of its "
            "own by mm.get_accumulator().make_empty_fragment()"
        )
    check_fragment(call.error, "tensor", like)
    element = like.element
    if arguments.get("dtype", types.none) != types.none:
        element = _dtype(call, arguments["dtype"])
    return call.signature(like.of_element(element), arguments)


def _dtype(call: Call, given: Any) -> Any:
    if isinstance(given, types.StringLiteral):
        try:
            return element_numba(element_type(given.literal_value))
        except ArgumentTypeError as error:
            raise call.error(f"wants an element type for {error}") from None
    dtype = parse_dtype(given)
    if not isinstance(dtype, types.Number):
        raise call.error(f"wants the type of a number for dtype, got {given}")
    return dtype


def _lower_like(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return new_fragment(context, builder, sig.return_type, (sig.args[0], args[0]))


# -- clear ---------------------------------------------------------------------------------------------------------


def _resolve_clear(call: Call) -> Any:
    arguments = call.bind(("tensor",))
    check_fragment(call.error, "tensor", arguments["tensor"])
    return call.signature(types.void, arguments)


def lower_clear(context: Any, builder: Any, typ: TensorType, value: Any) -> None:
    if typ.is_natural and typ.is_plain_family:
        names = Functions(context, builder, typ.plan, typ.is_suggested)
        names.call("clear", [passed(context, builder, typ, value)])
        return
    zero = context.get_constant_null(typ.element)
    elements = Elements(context, builder, typ, value)
    for e in range(typ.size):
        elements.put(e, zero)


# -- axpby ---------------------------------------------------------------------------------------------------------


def _resolve_axpby(call: Call) -> Any:
    arguments = call.bind(("alpha", "x", "beta", "y"))
    for name in "xy":
        check_fragment(call.error, name, arguments[name])
    check_same_layout(call.error, "x", arguments["x"], "y", arguments["y"])
    check_conversion(call.error, arguments["x"], arguments["y"])
    target = scalar_of(arguments["y"])
    for name in ("alpha", "beta"):
        check_scalar(call, name, arguments[name], target)
        arguments[name] = target
    return call.signature(types.void, arguments)


def scalar_of(typ: TensorType) -> Any:
    """What alpha and beta are converted to."""
    if typ.is_natural:
        return scalar_type(typ.plan.value(2))
    return types.float32 if typ.element == types.bfloat16 else typ.element


def check_scalar(call: Call, name: str, given: Any, target: Any) -> None:
    if not isinstance(given, types.Number | types.Boolean):
        raise call.error(f"wants a number for {name}, got {given}")
    if given == types.bfloat16:
        raise call.error(f"wants another number than a bfloat16 for {name}; convert it: float32(x)")
    if isinstance(given, types.Complex) and not isinstance(target, types.Complex):
        raise call.error(f"wants a real number for {name}, which becomes {target}, got {given}")
    if isinstance(target, types.Integer) and not isinstance(given, types.Integer | types.Boolean):
        raise call.error(f"wants an integer for {name}, which becomes {target}, got {given}")


def _lower_axpby(context: Any, builder: Any, sig: Any, args: Any) -> None:
    _, x_type, _, y_type = sig.args
    lower_axpby(context, builder, x_type, y_type, *args)


def lower_axpby(
    context: Any, builder: Any, x_type: TensorType, y_type: TensorType, alpha: Any, x: Any, beta: Any, y: Any
) -> None:
    """alpha and beta are of ``scalar_of(y_type)``."""
    if not y_type.is_number:  # pairs that only libmathdx computes with
        value = y_type.plan.value(2)
        scalars = [emit.scalar_address(context, builder, value, s) for s in (alpha, beta)]
        tensors = [passed(context, builder, t, v) for t, v in ((x_type, x), (y_type, y))]
        names = Functions(context, builder, y_type.plan, y_type.is_suggested)
        names.call("axpby", [scalars[0], tensors[0], scalars[1], tensors[1]])
        return
    element = y_type.element
    work = types.float32 if element in (types.float16, types.bfloat16) else element
    alpha, beta = (converted(context, builder, s, scalar_of(y_type), work) for s in (alpha, beta))
    from_, to = Elements(context, builder, x_type, x), Elements(context, builder, y_type, y)
    call = _compiled(context, builder, work)
    for keeps in with_and_without(context, builder, beta, work):
        for e in range(y_type.size):
            scaled = call(_times, alpha, converted(context, builder, from_.get(e), x_type.element, work))
            if keeps:
                old = converted(context, builder, to.get(e), element, work)
                scaled = call(plus, scaled, call(_times, beta, old))
            to.put(e, converted(context, builder, scaled, work, element))


def _times(x: Any, y: Any) -> Any:
    return x * y


def plus(x: Any, y: Any) -> Any:
    return x + y


def _compiled(context: Any, builder: Any, work: Any) -> Callable[..., Any]:
    return lambda function, *args: context.compile_internal(builder, function, signature(work, work, work), args)


def with_and_without(context: Any, builder: Any, beta: Any, work: Any) -> Iterator[bool]:
    """Two pieces of code, for a beta that is not zero and for one that is."""
    with builder.if_else(_is_true(context, builder, beta, work)) as (then, otherwise):
        with then:
            yield True
        with otherwise:
            yield False


def _is_true(context: Any, builder: Any, number: Any, typ: Any) -> Any:
    if typ == types.float16:  # whose own cast to a boolean NVVM refuses
        number, typ = context.cast(builder, number, typ, types.float32), types.float32
    return context.cast(builder, number, typ, types.boolean)


register_function("make_fragment_like", _resolve_like, _lower_like)
register_function(
    "clear", _resolve_clear, lambda context, builder, sig, args: lower_clear(context, builder, sig.args[0], args[0])
)
register_function("axpby", _resolve_axpby, _lower_axpby)
