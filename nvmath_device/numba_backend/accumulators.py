# SPDX-License-Identifier: Apache-2.0
"""An accumulator in kernels: a tile of C, shared out to the registers of a block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from llvmlite import ir
from numba.core.errors import TypingError as OfNumba
from numba.cuda import cgutils, types
from numba.cuda.core.errors import TypingError
from numba.cuda.datamodel import models
from numba.cuda.models import register_model
from numba.cuda.typing.templates import signature

from nvmath_device.descriptors import ROW_MAJOR
from nvmath_device.numba_backend import emit
from nvmath_device.numba_backend.block_threads import barrier, keep_order
from nvmath_device.numba_backend.conversions import converted
from nvmath_device.numba_backend.converted_stores import comes_in_pairs, store_pairs
from nvmath_device.numba_backend.element_types import scalar_type
from nvmath_device.numba_backend.objects import Call, method, register_value
from nvmath_device.numba_backend.operand_tiles import OperandTile, has_room
from nvmath_device.numba_backend.operands import check_writable
from nvmath_device.numba_backend.own_elements import elements_of
from nvmath_device.numba_backend.pipeline_calls import (
    INT,
    LONG,
    POINTER,
    ByValue,
    extents_of,
    pipeline,
    room,
    tensor,
)
from nvmath_device.numba_backend.vector_stores import are_vectors, comes_in_vectors, store_vectors
from nvmath_device.pipelines import PipelinePlan


class AccumulatorType(types.Type):
    """A tile of C as a block's threads hold it.

    ``has_stages``: nothing else uses the memory of the stages that it went through.
    """

    def __init__(self, plan: PipelinePlan, *, has_stages: bool = False) -> None:
        self.plan, self.has_stages = plan, has_stages
        super().__init__(f"accumulator of {plan.name}{' with its stages' if has_stages else ''}")

    @property
    def element(self) -> Any:
        return scalar_type(self.plan.descriptor.value_types[2])

    @property
    def size(self) -> int:
        """Elements that a thread holds."""
        return self.plan.fragment_size


@register_model(AccumulatorType)
class _Model(models.StructModel):
    """Where a thread's fragment is, and libmathdx's objects; the first row and column of the tile, and C's extents."""

    def __init__(self, manager: Any, typ: Any) -> None:
        pointers = [(name, types.voidptr) for name in ("fragment", "state", "tile")]
        places = [(name, types.int64) for name in ("row", "column", "rows", "columns")]
        super().__init__(manager, typ, [*pointers, *places])


def new_accumulator(context: Any, builder: Any, plan: PipelinePlan) -> Any:
    """One with a fragment of its own, and nothing else yet."""
    typ = AccumulatorType(plan)
    acc = cgutils.create_struct_proxy(typ)(context, builder)
    acc.fragment = room(builder, context.get_data_type(typ.element), plan.fragment_size)
    return acc


def _resolve_store(typ: AccumulatorType, call: Call) -> Any:
    arguments = call.bind(("c",))
    given = arguments["c"]
    if not isinstance(given, types.Array) or given.ndim != 2:
        raise call.error(f"wants a 2-D array for c, the whole matrix, got {given}")
    check_writable(call, "c", given)
    return call.signature(types.void, arguments)


def _lower_store(context: Any, builder: Any, typ: AccumulatorType, sig: Any, args: Any) -> None:
    """The block's threads meet afterwards, which does not wait for the memory.

    Without it, a kernel that ends here has libmathdx's loop over K compiled differently: a ``YIELD`` before each wait
    for a stage, which made products of 8192 4% slower on an H200 (toolkits 13.0 and 13.5). Loops of our own are as fast
    with a ``YIELD``.
    """
    _store(context, builder, typ, sig.args[0], *args)
    barrier(builder)


def _store(context: Any, builder: Any, typ: AccumulatorType, c_type: Any, this: Any, array: Any) -> None:
    """A tile that lies inside of C: at once, or in vectors, where C is laid out as declared.

    In pairs where these are its types. All else element by element.
    """
    plan = typ.plan
    acc = cgutils.create_struct_proxy(typ)(context, builder, value=this)
    c = emit.array_struct(context, builder, c_type, array)
    shape, strides = extents_of(context, builder, c_type, array), cgutils.unpack_tuple(builder, c.strides, 2)
    data = builder.bitcast(c.data, POINTER)
    names = elements_of(context, builder, plan)
    start = builder.gep(data, [builder.add(builder.mul(acc.row, strides[0]), builder.mul(acc.column, strides[1]))])
    is_at_once = c_type.dtype == typ.element and plan.is_streamed and plan.stream is None
    is_in_vectors = c_type.dtype == typ.element and comes_in_vectors(plan)
    is_in_pairs = comes_in_pairs(typ.element, c_type.dtype, plan.fragment_size, plan.execution.sm)  # type: ignore[arg-type]
    if not (is_at_once or is_in_vectors or is_in_pairs):
        _store_each(context, builder, typ, names, acc, c_type, data, shape, strides)
        return
    conditions = [_is_whole(builder, plan, acc, shape)]
    if is_at_once:
        value = plan.descriptor.value_types[2]
        pitch, step = strides if plan.descriptor.arrangement[2] == ROW_MAJOR else strides[::-1]
        alignment = plan.descriptor.alignment[2]  # type: ignore[index]
        odd = builder.and_(builder.or_(builder.ptrtoint(start, LONG), pitch), ir.Constant(LONG, alignment - 1))
        conditions.append(builder.icmp_signed("==", step, ir.Constant(LONG, value.itemsize)))
        conditions.append(builder.icmp_signed("==", odd, ir.Constant(LONG, 0)))
    if is_in_vectors:
        conditions.append(are_vectors(builder, plan, start, strides))
    load, place = (
        (lambda e: builder.load(_element(context, builder, typ, acc, e))),
        _Coordinate(builder, names, acc).in_tile,
    )
    with builder.if_else(_all(builder, *conditions)) as (then, otherwise):
        with then:
            if is_at_once:
                ld = builder.sdiv(pitch, ir.Constant(LONG, value.itemsize))
                target = ByValue("tensor_1s_0s", [start, [ld]])
                names.call("store", [pipeline(acc.tile), tensor(acc.fragment), target])
            elif is_in_vectors:
                store_vectors(builder, plan, load, place, start, strides)
            else:
                store_pairs(builder, c_type.dtype, plan.fragment_size, load, place, start, strides)
        with otherwise:
            _store_each(context, builder, typ, names, acc, c_type, data, shape, strides)


def _store_each(
    context: Any, builder: Any, typ: Any, names: Any, acc: Any, c_type: Any, data: Any, shape: Any, strides: Any
) -> None:
    element = context.get_data_type(c_type.dtype)
    coordinate = _Coordinate(builder, names, acc)
    for e in range(typ.plan.fragment_size):
        at = coordinate(e)
        with builder.if_then(_is_inside(builder, at, shape)):
            offset = builder.add(*(builder.mul(x, stride) for x, stride in zip(at, strides, strict=True)))
            place = builder.bitcast(builder.gep(data, [offset]), element.as_pointer())
            number = builder.load(_element(context, builder, typ, acc, e))
            builder.store(converted(context, builder, number, typ.element, c_type.dtype), place)


def _resolve_map(typ: AccumulatorType, call: Call) -> Any:
    function, *rest = call.positional("function", "arguments ...")
    _check_function(call, function, "(value, row, column", (typ.element, *_PLACE, *rest), rest)
    return signature(typ, function, *rest, recvr=call.this)


def _resolve_combine(typ: AccumulatorType, call: Call) -> Any:
    given = call.positional("function", "x", "arguments ...")
    check_combination(typ, call, given)
    return signature(typ, *given, recvr=call.this)


def check_combination(typ: AccumulatorType, call: Call, given: Any) -> None:
    """``given``: types of what :meth:`combine` takes."""
    function, x, *rest = given
    if not isinstance(x, types.Array) or x.ndim != 2:
        raise call.error(f"wants a 2-D array for x, a whole matrix of C's shape, got {x}")
    _check_function(call, function, "(value, element of x, row, column", (typ.element, x.dtype, *_PLACE, *rest), rest)


def _check_function(call: Call, function: Any, form: str, given: Any, rest: Any) -> None:
    said = f"wants a device function of {form}{', ...' if rest else ''}), got {function}"
    try:
        found = call.context.resolve_function_type(function, given, {})
    except (TypingError, OfNumba) as error:  # two classes: numba-cuda has its own, and uses Numba's, too
        raise call.error(f"{said}, which does not take {given}: {error}") from error
    if found is None:
        raise call.error(said)


def _lower_map(context: Any, builder: Any, typ: AccumulatorType, sig: Any, args: Any) -> Any:
    this, _, *rest = args
    function, *rest_types = sig.args
    elements = _Elements(context, builder, typ, this)
    call = _function_call(context, builder, function, (typ.element, *_PLACE, *rest_types), typ.element)
    for place in elements.places():
        for e in range(typ.plan.fragment_size):
            if e % _IN_ORDER == 0:
                keep_order(builder)
            elements.put(e, call([elements.values[e], *place(e), *rest]))
    return elements.made()


def _lower_combine(context: Any, builder: Any, typ: AccumulatorType, sig: Any, args: Any) -> Any:
    this, *given = args
    return combined(context, builder, typ, this, sig.args, given)


def combined(
    context: Any, builder: Any, typ: AccumulatorType, this: Any, kinds: Any, given: Any, tile: Any = None
) -> Any:
    """What :meth:`combine` makes of the accumulator ``this``, given a function, a matrix and more of types ``kinds``.

    ``tile``: the matrix's, where it is in shared memory already.
    """
    (function, x_type, *rest_types), (_, array, *rest) = kinds, given
    elements = _Elements(context, builder, typ, this)
    call = _function_call(context, builder, function, (typ.element, x_type.dtype, *_PLACE, *rest_types), typ.element)
    size = typ.plan.fragment_size
    if tile is None and typ.has_stages and has_room(typ.plan, x_type):
        tile = OperandTile(context, builder, typ.plan, x_type, array, elements.first)
        tile.check_order([elements.place_in_tile(e)[1] for e in range(size)])
    x = emit.array_struct(context, builder, x_type, array)
    for place in elements.places():
        for e in range(size):
            at = place(e)
            if tile is None:
                with_it = _load(context, builder, x_type, x, at)
            else:
                with_it = tile.element(e, elements.place_in_tile(e))
            elements.put(e, call([elements.values[e], with_it, *at, *rest]))
    if tile is not None:
        tile.leave()
    return elements.made()


def _load(context: Any, builder: Any, array_type: Any, array: Any, place: Any) -> Any:
    pointer = cgutils.get_item_pointer2(
        context, builder, array.data, cgutils.unpack_tuple(builder, array.shape, 2),
        cgutils.unpack_tuple(builder, array.strides, 2), array_type.layout, place,
    )  # fmt: skip
    return context.unpack_value(builder, array_type.dtype, pointer)


_PLACE = (types.int64, types.int64)
_IN_ORDER = 16  # elements: further ahead than that, what a function loads would not find registers


def _function_call(context: Any, builder: Any, function: Any, given: Any, result: Any) -> Any:
    """What calls a device function with values of the types ``given`` and converts to ``result``."""
    call_type = context.typing_context.resolve_function_type(function, given, {})
    compiled = context.get_function(function, call_type)

    def call(values: Any) -> Any:
        passed = [context.cast(builder, x, *kinds) for x, *kinds in zip(values, given, call_type.args, strict=True)]
        return context.cast(builder, compiled(builder, passed), call_type.return_type, result)

    return call


class _Elements:
    """The elements of an accumulator, one after the other, and those of the one that is made of them.

    In new memory: what has been read is dead then, so that neither has to leave the registers.

    Attributes:
        values: all elements, read before anything is made of them. The compiler follows what was written through so
            many blocks of code only, and the last elements would be read behind those that a function with branches
            has for the first: from local memory.
    """

    def __init__(self, context: Any, builder: Any, typ: AccumulatorType, this: Any) -> None:
        self._context, self._builder, self._typ = context, builder, typ
        self._acc, self._made = (cgutils.create_struct_proxy(typ)(context, builder, value=this) for _ in range(2))
        size = typ.plan.fragment_size
        self._made.fragment = room(builder, context.get_data_type(typ.element), size)
        self.values = [builder.load(_element(context, builder, typ, self._acc, e)) for e in range(size)]
        self._even: Any = None  # what has been made and not been kept yet
        self._coordinate = _Coordinate(builder, elements_of(context, builder, typ.plan), self._acc)

    def places(self) -> Iterator[Callable[[int], Any]]:
        """What gives an element's row and column in C; twice, for code of tiles inside of C and for others.

        Beyond C's edge an element has the last row or column. A branch around each would keep the elements apart, and
        cost more than what is done for nothing.
        """
        builder, acc = self._builder, self._acc
        with builder.if_else(_is_whole(builder, self._typ.plan, acc, (acc.rows, acc.columns))) as (then, otherwise):
            with then:
                yield self._coordinate
            with otherwise:
                firsts, mosts = zip(
                    *(self._edge(*x) for x in ((acc.row, acc.rows), (acc.column, acc.columns))), strict=True
                )
                yield lambda e: self._coordinate.within(e, firsts, mosts)

    @property
    def first(self) -> tuple[Any, Any]:
        """Row and column in C of the tile's first element."""
        return self._acc.row, self._acc.column

    def place_in_tile(self, e: int) -> tuple[Any, Any]:
        return self._coordinate.in_tile(e)

    def _edge(self, first: Any, extent: Any) -> tuple[Any, Any]:
        """Along an axis, where the tile begins, or C's last element if that comes before, and how far C goes on."""
        builder = self._builder
        last = builder.sub(extent, ir.Constant(LONG, 1))
        first = emit.least(builder, first, last)
        return first, emit.least(builder, builder.sub(last, first), ir.Constant(LONG, 2**31 - 1))

    def put(self, e: int, value: Any) -> None:
        """In order. Two are kept at once, as what writes pairs to C reads them: else it would write single numbers."""
        builder = self._builder
        place = _element(self._context, builder, self._typ, self._made, e - e % 2)
        if e % 2 == 0 and e + 1 < self._typ.plan.fragment_size:
            self._even = value
            return
        if e % 2:
            value = emit.vector_of(builder, (self._even, value))
            place = builder.bitcast(place, value.type.as_pointer())
        builder.store(value, place)

    def made(self) -> Any:
        return self._made._getvalue()


class _Coordinate:
    """(row, column) in C of an element of this thread. Emitted one by one, so that the fragment stays in registers."""

    def __init__(self, builder: Any, names: Any, acc: Any) -> None:
        self._builder, self._names, self._acc = builder, names, acc

    def __call__(self, e: int) -> tuple[Any, Any]:
        row, column = self.in_tile(e)
        return _sum(self._builder, self._acc.row, row), _sum(self._builder, self._acc.column, column)

    def within(self, e: int, firsts: Any, mosts: Any) -> list[Any]:
        """No further from ``firsts`` than ``mosts``."""
        builder = self._builder
        ends = [builder.trunc(most, INT) for most in mosts]
        at = [emit.least(builder, builder.trunc(x, INT), end) for x, end in zip(self.in_tile(e), ends, strict=True)]
        return [_sum(builder, first, builder.zext(x, LONG)) for first, x in zip(firsts, at, strict=True)]

    def in_tile(self, e: int) -> tuple[Any, Any]:
        return self._names.coordinate(self._acc.state, ir.Constant(INT, e))


def _sum(builder: Any, x: Any, y: Any) -> Any:
    """Of indices. That it is not negative spares the code of Python's indices from the end."""
    return builder.add(x, y, flags=("nsw", "nuw"))


def _is_inside(builder: Any, at: Any, shape: Any) -> Any:
    return _all(builder, *(builder.icmp_signed("<", x, most) for x, most in zip(at, shape, strict=True)))


def _is_whole(builder: Any, plan: PipelinePlan, acc: Any, shape: Any) -> Any:
    """Whether the whole tile lies inside of a matrix."""
    m, n, _ = plan.descriptor.size
    ends = builder.add(acc.row, ir.Constant(LONG, m)), builder.add(acc.column, ir.Constant(LONG, n))
    return _all(builder, *(builder.icmp_signed("<=", end, most) for end, most in zip(ends, shape, strict=True)))


def _element(context: Any, builder: Any, typ: Any, acc: Any, e: int) -> Any:
    base = builder.bitcast(acc.fragment, context.get_data_type(typ.element).as_pointer())
    return builder.gep(base, [ir.Constant(INT, e)], inbounds=True)


def _all(builder: Any, *conditions: Any) -> Any:
    result = conditions[0]
    for condition in conditions[1:]:
        result = builder.and_(result, condition)
    return result


register_value(
    AccumulatorType,
    {
        "store": method("accumulator.store", _resolve_store, _lower_store, value=True),
        "map": method("accumulator.map", _resolve_map, _lower_map, value=True),
        "combine": method("accumulator.combine", _resolve_combine, _lower_combine, value=True),
    },
    attributes=("size",),
)
