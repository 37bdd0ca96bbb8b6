# SPDX-License-Identifier: Apache-2.0
"""``Matmul.get_accumulator`` and ``suggest_accumulator``: a fragment of C, and where its elements are in the tile."""

from __future__ import annotations

import operator
from typing import Any

from numba.cuda import cgutils, types
from numba.cuda.cudadecl import registry as typing_registry
from numba.cuda.cudaimpl import registry as lowering_registry
from numba.cuda.datamodel import models
from numba.cuda.models import register_model
from numba.cuda.typing.templates import AbstractTemplate, signature

from nvmath_device.errors import KernelTypingError
from nvmath_device.numba_backend.conversions import converted
from nvmath_device.numba_backend.fragments import (
    check_number,
    check_scalar,
    lower_axpby,
    lower_clear,
    scalar_of,
    with_and_without,
)
from nvmath_device.numba_backend.objects import Call, method, register_value
from nvmath_device.numba_backend.pipeline_fragments import pipeline_accumulator
from nvmath_device.numba_backend.tensor_copies import lower_fragment_copy
from nvmath_device.numba_backend.tensor_types import TensorAccumulatorType, TensorType, plan_of
from nvmath_device.numba_backend.tensor_values import Elements, functions_of, new_fragment, place_in_memory
from nvmath_device.tensor_rules import (
    check_conversion,
    check_fragment,
    check_gmem,
    check_partition_copy,
    check_same_layout,
)


def empty_accumulator(context: Any, builder: Any, typ: TensorAccumulatorType) -> Any:
    """One with zeros."""
    accumulator = new_fragment(context, builder, typ)
    lower_clear(context, builder, typ, accumulator)
    return accumulator


def _accumulator_method(name: str, is_suggested: bool) -> Any:
    def resolve(typ: Any, call: Call) -> Any:
        if typ.value.with_pipeline:
            made: Any = pipeline_accumulator(typ.value, None)
        else:
            made = TensorAccumulatorType(plan_of(typ.value), is_suggested)
        return call.signature(made, call.bind(()))

    def lower(context: Any, builder: Any, typ: Any, sig: Any, args: Any) -> Any:
        return empty_accumulator(context, builder, sig.return_type)

    return method(f"Matmul.{name}", resolve, lower)


ACCUMULATOR_METHODS = {
    "get_accumulator": _accumulator_method("get_accumulator", is_suggested=False),
    "suggest_accumulator": _accumulator_method("suggest_accumulator", is_suggested=True),
}


# -- questions -----------------------------------------------------------------------------------------------------


def _answer(role: str) -> Any:
    """A method that answers yes or no, of this thread."""

    def resolve(typ: Any, call: Call) -> Any:
        return call.signature(types.boolean, call.bind(()))

    def lower(context: Any, builder: Any, typ: Any, sig: Any, args: Any) -> Any:
        return functions_of(context, builder, typ, args[0]).answer(role)

    return method(f"accumulator.{role}", resolve, lower, value=True)


def _check_index(call: Call) -> dict[str, Any]:
    index = call.bind(("index",))["index"]
    if not isinstance(index, types.Integer):
        raise call.error(f"wants an integer for index, an element of the fragment, got {index}")
    return {"index": types.int64}


def _resolve_in_bounds(typ: Any, call: Call) -> Any:
    return call.signature(types.boolean, _check_index(call))


def _lower_in_bounds(context: Any, builder: Any, typ: Any, sig: Any, args: Any) -> Any:
    return functions_of(context, builder, typ, args[0]).answer("is_index_in_bounds", args[1])


def _resolve_map(typ: Any, call: Call) -> Any:
    return call.signature(types.UniTuple(types.int64, 2), _check_index(call))


def _lower_map(context: Any, builder: Any, typ: Any, sig: Any, args: Any) -> Any:
    at = functions_of(context, builder, typ, args[0]).coordinate(args[1])
    return context.make_tuple(builder, sig.return_type, at)


def _resolve_alignment(typ: Any, call: Call) -> Any:
    return call.signature(types.literal(typ.plan.promised(2)), call.bind(()))


def _lower_alignment(context: Any, builder: Any, typ: Any, sig: Any, args: Any) -> Any:
    return context.get_constant(types.intp, sig.return_type.literal_value)


# -- fragments -----------------------------------------------------------------------------------------------------


def _resolve_empty(typ: Any, call: Call) -> Any:
    return call.signature(typ.of_element(), call.bind(()))


def _lower_empty(context: Any, builder: Any, typ: Any, sig: Any, args: Any) -> Any:
    return new_fragment(context, builder, sig.return_type, (typ, args[0]))


def _resolve_results(typ: Any, call: Call) -> Any:
    arguments = call.bind((), optional=("out",))
    if arguments.get("out", types.none) == types.none:
        return call.signature(typ.of_element(), arguments)
    out = arguments["out"]
    check_fragment(call.error, "out", out)
    check_same_layout(call.error, "out", out, "the accumulator", typ)
    check_conversion(call.error, typ, out)
    return call.signature(out, arguments)


def _lower_results(context: Any, builder: Any, typ: Any, sig: Any, args: Any) -> Any:
    """Of its own: what is executed or cleared afterwards does not change it."""
    result_type = sig.return_type
    is_given = len(sig.args) == 1 and sig.args[0] != types.none
    result = args[1] if is_given else new_fragment(context, builder, result_type, (typ, args[0]))
    from_, to = Elements(context, builder, typ, args[0]), Elements(context, builder, result_type, result)
    for e in range(typ.size):
        to.put(e, converted(context, builder, from_.get(e), typ.element, result_type.element))
    return result


def _resolve_clear(typ: Any, call: Call) -> Any:
    return call.signature(types.void, call.bind(()))


def _lower_clear(context: Any, builder: Any, typ: Any, sig: Any, args: Any) -> None:
    lower_clear(context, builder, typ, args[0])


# -- with matrices in global memory ----------------------------------------------------------------------------------


def _resolve_copy(typ: Any, call: Call) -> Any:
    arguments = call.bind(("src", "dst"))
    check_partition_copy(call.error, typ, arguments["src"], arguments["dst"])
    return call.signature(types.void, arguments)


def _lower_copy(context: Any, builder: Any, typ: Any, sig: Any, args: Any) -> None:
    (src, dst), (_, source, target) = sig.args, args
    lower_fragment_copy(context, builder, src, dst, source, target, typ.plan.promised(2))


def _resolve_make_and_copy(typ: Any, call: Call) -> Any:
    arguments = call.bind(("gmem",))
    check_gmem(call.error, typ, "gmem", arguments["gmem"])
    check_conversion(call.error, arguments["gmem"], typ)
    return call.signature(typ.of_element(), arguments)


def _lower_make_and_copy(context: Any, builder: Any, typ: Any, sig: Any, args: Any) -> Any:
    fragment = new_fragment(context, builder, sig.return_type, (typ, args[0]))
    alignment = typ.plan.promised(2)
    lower_fragment_copy(context, builder, sig.args[0], sig.return_type, args[1], fragment, alignment)
    return fragment


def _resolve_store(typ: Any, call: Call) -> Any:
    arguments = call.bind(("gmem",))
    check_gmem(call.error, typ, "gmem", arguments["gmem"])
    check_conversion(call.error, typ, arguments["gmem"])
    return call.signature(types.void, arguments)


def _lower_store(context: Any, builder: Any, typ: Any, sig: Any, args: Any) -> None:
    lower_fragment_copy(context, builder, typ, sig.args[0], args[0], args[1], typ.plan.promised(2))


def _resolve_axpby(typ: Any, call: Call) -> Any:
    arguments = call.bind(("alpha", "beta", "gmem"))
    check_gmem(call.error, typ, "gmem", arguments["gmem"])
    if not arguments["gmem"].is_natural:
        raise call.error(f"wants elements of {typ.element} for gmem, got {arguments['gmem'].described}")
    target = scalar_of(typ)
    for name in ("alpha", "beta"):
        check_scalar(call, name, arguments[name], target)
        arguments[name] = target
    return call.signature(types.void, arguments)


def _lower_axpby(context: Any, builder: Any, typ: Any, sig: Any, args: Any) -> None:
    """A beta of zero spares reading the matrix, so that it may hold anything."""
    this, alpha, beta, gmem = args
    scalar, gmem_type = scalar_of(typ), sig.args[2]
    result_type, alignment = typ.of_element(), typ.plan.promised(2)
    result = new_fragment(context, builder, result_type, (typ, this))
    for is_read in with_and_without(context, builder, beta, scalar):
        if is_read:
            lower_fragment_copy(context, builder, gmem_type, result_type, gmem, result, alignment)
        else:
            lower_clear(context, builder, result_type, result)
    lower_axpby(context, builder, typ, result_type, alpha, this, beta, result)
    lower_fragment_copy(context, builder, result_type, gmem_type, result, gmem, alignment)


# -- a thread's part of a matrix in global memory --------------------------------------------------------------------


class PartitionType(types.Type):
    """A thread's elements of C in global memory, in the order of an accumulator's."""

    def __init__(self, accumulator: TensorAccumulatorType, tensor: TensorType) -> None:
        self.accumulator, self.tensor = accumulator, tensor
        super().__init__(f"partition of {tensor} like {accumulator}")

    @property
    def size(self) -> int:
        return self.accumulator.size


@register_model(PartitionType)
class _PartitionModel(models.StructModel):
    def __init__(self, manager: Any, typ: Any) -> None:
        super().__init__(manager, typ, [("accumulator", typ.accumulator), ("tensor", typ.tensor)])


def _resolve_partition(typ: Any, call: Call) -> Any:
    arguments = call.bind(("gmem",))
    check_gmem(call.error, typ, "gmem", arguments["gmem"])
    if not isinstance(arguments["gmem"].element, types.Number):
        raise call.error(f"wants elements that are numbers in kernels for gmem, got {arguments['gmem'].described}")
    return call.signature(PartitionType(typ, arguments["gmem"]), arguments)


def _lower_partition(context: Any, builder: Any, typ: Any, sig: Any, args: Any) -> Any:
    partition = cgutils.create_struct_proxy(sig.return_type)(context, builder)
    partition.accumulator, partition.tensor = args
    return partition._getvalue()


def _element(context: Any, builder: Any, typ: PartitionType, value: Any, index: Any) -> Any:
    partition = cgutils.create_struct_proxy(typ)(context, builder, value=value)
    at = functions_of(context, builder, typ.accumulator, partition.accumulator).coordinate(index)
    return place_in_memory(context, builder, typ.tensor, partition.tensor, *at)


def _check_partition_index(index: Any) -> None:
    if not isinstance(index, types.Integer):
        raise KernelTypingError(f"wants an integer for the index of a partition, got {index}")


@typing_registry.register_global(operator.getitem)
class _GetItem(AbstractTemplate):
    def generic(self, args: tuple[Any, ...], kws: dict[str, Any]) -> Any:
        if len(args) != 2 or not isinstance(args[0], PartitionType):
            return None
        _check_partition_index(args[1])
        return signature(args[0].tensor.element, args[0], types.int64)


@typing_registry.register_global(operator.setitem)
class _SetItem(AbstractTemplate):
    def generic(self, args: tuple[Any, ...], kws: dict[str, Any]) -> Any:
        if len(args) != 3 or not isinstance(args[0], PartitionType):
            return None
        _check_partition_index(args[1])
        check_number(args[2], args[0].tensor.element, "a partition")
        return signature(types.none, args[0], types.int64, types.unliteral(args[2]))


@lowering_registry.lower(operator.getitem, PartitionType, types.Integer)
def _lower_get(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    read, _ = _element(context, builder, sig.args[0], *args)
    return read()


@lowering_registry.lower(operator.setitem, PartitionType, types.Integer, types.Any)
def _lower_set(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    _, write = _element(context, builder, sig.args[0], *args[:2])
    write(converted(context, builder, args[2], sig.args[2], sig.args[0].tensor.element))
    return context.get_dummy_value()


register_value(PartitionType, {}, attributes=("size",))
register_value(
    TensorAccumulatorType,
    {
        "is_thread_active": _answer("is_thread_active"),
        "is_predicated": _answer("is_predicated"),
        "is_index_in_bounds": method(
            "accumulator.is_index_in_bounds", _resolve_in_bounds, _lower_in_bounds, value=True
        ),
        "map_fragment_index": method("accumulator.map_fragment_index", _resolve_map, _lower_map, value=True),
        "get_alignment": method("accumulator.get_alignment", _resolve_alignment, _lower_alignment, value=True),
        "make_empty_fragment": method("accumulator.make_empty_fragment", _resolve_empty, _lower_empty, value=True),
        "get_results": method("accumulator.get_results", _resolve_results, _lower_results, value=True),
        "clear": method("accumulator.clear", _resolve_clear, _lower_clear, value=True),
        "axpby": method("accumulator.axpby", _resolve_axpby, _lower_axpby, value=True),
        "partition_like_C": method("accumulator.partition_like_C", _resolve_partition, _lower_partition, value=True),
        "partition_and_copy": method("accumulator.partition_and_copy", _resolve_copy, _lower_copy, value=True),
        "make_partition_and_copy": method(
            "accumulator.make_partition_and_copy", _resolve_make_and_copy, _lower_make_and_copy, value=True
        ),
        "partition_and_store": method("accumulator.partition_and_store", _resolve_store, _lower_store, value=True),
    },
    attributes=("size",),
)
