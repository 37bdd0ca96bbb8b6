# SPDX-License-Identifier: Apache-2.0
"""Calls of the functions that libmathdx makes for tensors, and a thread's fragment in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from llvmlite import ir
from numba.cuda import cgutils

from nvmath_device.errors import CodegenError
from nvmath_device.lto.tensor_recipes import symbol_of
from nvmath_device.numba_backend import debug_checks, emit
from nvmath_device.numba_backend.generated import RequiredBlock, generated
from nvmath_device.numba_backend.objects import is_debug
from nvmath_device.numba_backend.pipeline_calls import INT, LONG, ByValue, call_by_value, kept, room
from nvmath_device.numba_backend.tensor_types import TensorType
from nvmath_device.tensor_layouts import GMEM
from nvmath_device.tensor_plans import TensorPlan


class Functions:
    """Calls of a family's functions, whose code is linked into the kernel. Every thread of the block calls them."""

    def __init__(
        self, context: Any, builder: Any, plan: TensorPlan, is_suggested: bool, copy_alignment: int | None = None
    ) -> None:
        self._builder, self._recipe = builder, plan.recipe(is_suggested, copy_alignment)
        block = RequiredBlock(plan.block_dim, exact=True)
        check = partial(_check, plan, is_suggested)
        context.active_code_library.add_linking_file(generated(self._recipe, block, check))
        emit.raise_alignment(builder)
        emit.bound_threads(builder, plan.block_dim.size)
        if is_debug():
            debug_checks.check_block(context, builder, "a call on tensors", plan.block_dim, shape=True)

    def call(self, role: str, arguments: list[Any]) -> None:
        call_by_value(self._builder, symbol_of(self._recipe, role), arguments)

    def coordinate(self, index: Any) -> tuple[Any, Any]:
        """(row, column) in the tile, as int64, of an element, an int64, of this thread's fragment."""
        builder = self._builder
        row, column = (cgutils.alloca_once(builder, INT) for _ in range(2))
        self.call("coordinate", [self._index(index), row, column])
        return builder.zext(builder.load(row), LONG), builder.zext(builder.load(column), LONG)

    def answer(self, role: str, index: Any = None) -> Any:
        """Yes or no, as an i1."""
        builder = self._builder
        slot = cgutils.alloca_once(builder, INT)
        self.call(role, [slot] if index is None else [self._index(index), slot])
        return builder.icmp_signed("!=", builder.load(slot), ir.Constant(INT, 0))

    def store(self, fragment: TensorType, held: Any, other: TensorType, memory: Any) -> bool:
        """Whether this has stored the whole fragment; here that is left to libmathdx's copies and single elements."""
        return False

    def _index(self, index: Any) -> Any:
        return kept(self._builder, self._builder.trunc(index, INT))


def _check(plan: TensorPlan, is_suggested: bool, sizes: Mapping[str, Any]) -> None:
    """Raises CodegenError where libmathdx made fragments of another size than it had said."""
    planned = plan.fragment_size(is_suggested) * plan.value(2).itemsize
    if sizes["fragment"] != planned:
        raise CodegenError(f"libmathdx made a fragment of {sizes['fragment']} bytes after it had said {planned}")


# -- values --------------------------------------------------------------------------------------------------------


def unpacked(context: Any, builder: Any, typ: TensorType, value: Any) -> Any:
    return cgutils.create_struct_proxy(typ)(context, builder, value=value)


def passed(context: Any, builder: Any, typ: TensorType, value: Any) -> ByValue:
    """A tensor as libmathdx's functions take it."""
    tensor = unpacked(context, builder, typ, value)
    if typ.memory == GMEM:
        return ByValue("tensor_1s_0s", [tensor.data, [tensor.ld]])
    return ByValue("tensor_0s_0s", [tensor.data])


def new_fragment(context: Any, builder: Any, typ: TensorType, like: tuple[TensorType, Any] | None = None) -> Any:
    """A fragment, or an accumulator, with memory of its own and no values yet. ``like`` is one of the same layout."""
    tensor = cgutils.create_struct_proxy(typ)(context, builder)
    tensor.data = room(builder, context.get_data_type(typ.element), typ.size)
    typ.attach(context, builder, tensor, None if like is None else unpacked(context, builder, *like))
    return tensor._getvalue()


def functions_of(context: Any, builder: Any, typ: TensorType, value: Any) -> Any:
    """The functions that know where a fragment's elements are: ``coordinate`` and ``answer``."""
    own = typ.functions(context, builder, unpacked(context, builder, typ, value))
    return Functions(context, builder, typ.plan, typ.is_suggested) if own is None else own


class Elements:
    """The elements of a fragment; an index is an int, or a value of type int64."""

    def __init__(self, context: Any, builder: Any, typ: TensorType, value: Any) -> None:
        self._context, self._builder, self.element = context, builder, typ.element
        data = unpacked(context, builder, typ, value).data
        self._base = builder.bitcast(data, context.get_data_type(typ.element).as_pointer())

    def get(self, index: Any) -> Any:
        loaded = self._builder.load(self._at(index))
        return self._context.data_model_manager[self.element].from_data(self._builder, loaded)

    def put(self, index: Any, value: Any) -> None:
        data = self._context.data_model_manager[self.element].as_data(self._builder, value)
        self._builder.store(data, self._at(index))

    def _at(self, index: Any) -> Any:
        index = ir.Constant(LONG, index) if isinstance(index, int) else index
        return self._builder.gep(self._base, [index], inbounds=True)


def place_in_memory(
    context: Any, builder: Any, typ: TensorType, value: Any, row: Any, column: Any
) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    """What reads and what writes the element of a plain matrix, in global or shared memory, at a row and a column."""
    tensor = unpacked(context, builder, typ, value)
    layout = typ.plan.layouts[typ.place]
    ld = tensor.ld if typ.memory == GMEM else ir.Constant(LONG, layout.ld)
    inner, outer = (row, column) if layout.strides[0] == 1 else (column, row)
    offset = builder.add(inner, builder.mul(outer, ld))
    data = context.get_data_type(typ.element)
    pointer = builder.gep(builder.bitcast(tensor.data, data.as_pointer()), [offset], inbounds=True)
    model = context.data_model_manager[typ.element]
    return (
        lambda: model.from_data(builder, builder.load(pointer)),
        lambda x: builder.store(model.as_data(builder, x), pointer),
    )
