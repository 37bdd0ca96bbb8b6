# SPDX-License-Identifier: Apache-2.0
"""Elements of tensors in shared memory by row and column, wherever their layout has them: ``t[row, column]``."""

from __future__ import annotations

import operator
from typing import Any

from llvmlite import ir
from numba.cuda import cgutils, types
from numba.cuda.cudadecl import registry as typing_registry
from numba.cuda.cudaimpl import registry as lowering_registry
from numba.cuda.typing.templates import AbstractTemplate, signature
from numba.cuda.vector_types import VectorType

from nvmath_device.errors import KernelTypingError
from nvmath_device.numba_backend.conversions import converted
from nvmath_device.numba_backend.converted_stores import comes_in_pairs, packed
from nvmath_device.numba_backend.fragments import check_number
from nvmath_device.numba_backend.pipeline_calls import INT, POINTER, kept
from nvmath_device.numba_backend.tensor_types import TensorType
from nvmath_device.numba_backend.tensor_values import Functions, passed
from nvmath_device.tensor_layouts import SMEM
from nvmath_device.tensor_rules import check_vector

_PLACE = types.UniTuple(types.int64, 2)


def _error(text: str) -> KernelTypingError:
    return KernelTypingError(f"a tensor {text}")


def _is_element(args: tuple[Any, ...]) -> bool:
    """Whether a tensor in shared memory is asked for a row and a column."""
    if not isinstance(args[0], TensorType) or args[0].memory != SMEM:
        return False
    given = list(args[1]) if isinstance(args[1], types.BaseTuple) else [args[1]]
    if len(given) != 2 or not all(isinstance(t, types.Integer) for t in given):
        raise KernelTypingError(
            f"wants a row and a column, t[row, column], for an element of a tensor {args[0].described}, got {args[1]}"
        )
    if not args[0].is_number:
        raise KernelTypingError(f"elements of {args[0].element} are no numbers that kernels have")
    return True


@typing_registry.register_global(operator.getitem)
class _GetItem(AbstractTemplate):
    def generic(self, args: tuple[Any, ...], kws: dict[str, Any]) -> Any:
        if len(args) != 2 or not _is_element(args):
            return None
        return signature(args[0].element, args[0], _PLACE)


@typing_registry.register_global(operator.setitem)
class _SetItem(AbstractTemplate):
    def generic(self, args: tuple[Any, ...], kws: dict[str, Any]) -> Any:
        if len(args) != 3 or not _is_element(args):
            return None
        if isinstance(args[2], VectorType):
            check_vector(_error, args[0], args[2].num_elements)
        else:
            check_number(args[2], args[0].element, "a tensor")
        return signature(types.none, args[0], _PLACE, types.unliteral(args[2]))


@lowering_registry.lower(operator.getitem, TensorType, types.BaseTuple)
def _lower_get(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    loaded = builder.load(address(context, builder, sig.args[0], *args))
    return context.data_model_manager[sig.return_type].from_data(builder, loaded)


@lowering_registry.lower(operator.setitem, TensorType, types.BaseTuple, types.Any)
def _lower_set(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    typ, _, given = sig.args
    if not isinstance(given, types.Number):
        _store_vector(context, builder, typ, args[0], args[1], given, args[2])
        return context.get_dummy_value()
    value = converted(context, builder, args[2], given, typ.element)
    data = context.data_model_manager[typ.element].as_data(builder, value)
    builder.store(data, address(context, builder, typ, *args[:2]))
    return context.get_dummy_value()


def _store_vector(
    context: Any, builder: Any, typ: TensorType, tensor: Any, place: Any, given: Any, vector: Any
) -> None:
    """All at once; pairs of float32 become pairs of 16 bits in one instruction."""
    struct = cgutils.create_struct_proxy(given)(context, builder, value=vector)
    numbers = [getattr(struct, name) for name in given.attr_names]
    pointer = address(context, builder, typ, tensor, place)
    nbytes = typ.plan.value(typ.place).itemsize
    if comes_in_pairs(given.base_type, typ.element, len(numbers), typ.plan.execution.sm):  # type: ignore[arg-type]
        pairs = zip(numbers[::2], numbers[1::2], strict=True)
        words, nbytes = [packed(builder, typ.element, *pair) for pair in pairs], 2 * nbytes
    else:
        model = context.data_model_manager[typ.element]
        converteds = (converted(context, builder, x, given.base_type, typ.element) for x in numbers)
        words = [model.as_data(builder, x) for x in converteds]
    word = ir.IntType(8 * nbytes)
    whole = ir.Constant(ir.VectorType(word, len(words)), ir.Undefined)
    for at, part in enumerate(words):
        whole = builder.insert_element(whole, builder.bitcast(part, word), ir.Constant(INT, at))
    builder.store(whole, builder.bitcast(pointer, whole.type.as_pointer()), align=nbytes * len(words))


def address(context: Any, builder: Any, typ: TensorType, tensor: Any, place: Any) -> Any:
    """Where libmathdx says that an element is. ``place`` is a pair of int64."""
    row, column = (kept(builder, builder.trunc(x, INT)) for x in cgutils.unpack_tuple(builder, place, 2))
    index, found = cgutils.alloca_once(builder, INT), cgutils.alloca_once(builder, POINTER)
    names = Functions(context, builder, typ.plan, typ.is_suggested)
    names.call(f"place_{typ.matrix}", [passed(context, builder, typ, tensor), row, column, index, found])
    return builder.bitcast(builder.load(found), context.get_data_type(typ.element).as_pointer())
