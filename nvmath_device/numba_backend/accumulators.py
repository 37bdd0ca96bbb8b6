# SPDX-License-Identifier: Apache-2.0
"""An accumulator in kernels: a tile of C, shared out to the registers of a block."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import cgutils, types
from numba.cuda.datamodel import models
from numba.cuda.models import register_model
from numba.cuda.typing.templates import signature

from nvmath_device.descriptors import ROW_MAJOR
from nvmath_device.numba_backend import emit
from nvmath_device.numba_backend.element_types import scalar_type
from nvmath_device.numba_backend.objects import Call, method, register_value
from nvmath_device.numba_backend.operands import check_writable
from nvmath_device.numba_backend.pipeline_calls import (
    INT,
    LONG,
    POINTER,
    ByValue,
    Functions,
    extents_of,
    pipeline,
    room,
    tensor,
)
from nvmath_device.pipelines import PipelinePlan


class AccumulatorType(types.Type):
    """A tile of C as a block's threads hold it."""

    def __init__(self, plan: PipelinePlan) -> None:
        self.plan = plan
        super().__init__(f"accumulator of {plan.descriptor.size} ({plan.recipe.symbol})")

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


def _resolve_store(typ: AccumulatorType, call: Call) -> Any:
    arguments = call.bind(("c",))
    given = arguments["c"]
    if not isinstance(given, types.Array) or given.ndim != 2:
        raise call.error(f"wants a 2-D array for c, the whole matrix, got {given}")
    check_writable(call, "c", given)
    return call.signature(types.void, arguments)


def _lower_store(context: Any, builder: Any, typ: AccumulatorType, sig: Any, args: Any) -> None:
    """The whole tile at once where it lies inside of C and C is laid out as declared; else element by element."""
    this, array = args
    plan, c_type = typ.plan, sig.args[0]
    acc = cgutils.create_struct_proxy(typ)(context, builder, value=this)
    c = emit.array_struct(context, builder, c_type, array)
    shape, strides = extents_of(context, builder, c_type, array), cgutils.unpack_tuple(builder, c.strides, 2)
    data = builder.bitcast(c.data, POINTER)
    names = Functions(context, builder, plan)
    value = plan.descriptor.value_types[2]
    if c_type.dtype != typ.element:
        _store_each(context, builder, typ, names, acc, c_type, data, shape, strides)
        return
    pitch, step = strides if plan.descriptor.arrangement[2] == ROW_MAJOR else strides[::-1]
    start = builder.gep(data, [builder.add(builder.mul(acc.row, strides[0]), builder.mul(acc.column, strides[1]))])
    alignment = plan.descriptor.alignment[2]  # type: ignore[index]
    odd = builder.and_(builder.or_(builder.ptrtoint(start, LONG), pitch), ir.Constant(LONG, alignment - 1))
    as_declared = _all(
        builder,
        _is_whole(builder, plan, acc, shape),
        builder.icmp_signed("==", step, ir.Constant(LONG, value.itemsize)),
        builder.icmp_signed("==", odd, ir.Constant(LONG, 0)),
    )
    with builder.if_else(as_declared) as (then, otherwise):
        with then:
            ld = builder.sdiv(pitch, ir.Constant(LONG, value.itemsize))
            target = ByValue("tensor_1s_0s", [start, [ld]])
            names.call("store", [pipeline(acc.tile), tensor(acc.fragment), target])
        with otherwise:
            _store_each(context, builder, typ, names, acc, c_type, data, shape, strides)


def _store_each(
    context: Any, builder: Any, typ: Any, names: Any, acc: Any, c_type: Any, data: Any, shape: Any, strides: Any
) -> None:
    element = context.get_data_type(c_type.dtype)
    for e, at in _coordinates(builder, typ.plan, names, acc):
        with builder.if_then(_is_inside(builder, at, shape)):
            offset = builder.add(*(builder.mul(x, stride) for x, stride in zip(at, strides, strict=True)))
            place = builder.bitcast(builder.gep(data, [offset]), element.as_pointer())
            number = builder.load(_element(context, builder, typ, acc, e))
            builder.store(context.cast(builder, number, typ.element, c_type.dtype), place)


def _resolve_map(typ: AccumulatorType, call: Call) -> Any:
    function, *rest = call.positional("function", "arguments ...")
    found = call.context.resolve_function_type(function, _given(typ, rest), {})
    if found is None:
        raise call.error(f"wants a device function of (value, row, column{', ...' if rest else ''}), got {function}")
    return signature(typ, function, *rest, recvr=call.this)


def _given(typ: AccumulatorType, rest: Any) -> tuple[Any, ...]:
    """What a mapped function is called with."""
    return (typ.element, types.int64, types.int64, *rest)


def _lower_map(context: Any, builder: Any, typ: AccumulatorType, sig: Any, args: Any) -> Any:
    """Into new memory: what has been read is dead then, so that neither has to leave the registers.

    Beyond C's edge the function gets the last row or column. A branch around each call would keep the elements apart,
    and cost more than the call.
    """
    this, _, *rest = args
    function, *rest_types = sig.args
    acc, made = (cgutils.create_struct_proxy(typ)(context, builder, value=this) for _ in range(2))
    made.fragment = room(builder, context.get_data_type(typ.element), typ.plan.fragment_size)
    names = Functions(context, builder, typ.plan)
    given = _given(typ, rest_types)
    call_type = context.typing_context.resolve_function_type(function, given, {})
    compiled = context.get_function(function, call_type)
    last = [builder.sub(most, ir.Constant(LONG, 1)) for most in (acc.rows, acc.columns)]
    for e, at in _coordinates(builder, typ.plan, names, acc):
        inside = [builder.select(builder.icmp_signed("<", x, most), x, most) for x, most in zip(at, last, strict=True)]
        values = (builder.load(_element(context, builder, typ, acc, e)), *inside, *rest)
        passed = [context.cast(builder, x, *kinds) for x, *kinds in zip(values, given, call_type.args, strict=True)]
        result = context.cast(builder, compiled(builder, passed), call_type.return_type, typ.element)
        builder.store(result, _element(context, builder, typ, made, e))
    return made._getvalue()


def _coordinates(builder: Any, plan: PipelinePlan, names: Any, acc: Any) -> Any:
    """(index in the fragment, (row, column) in C) of each element of this thread. Emitted one by one, so that the
    fragment stays in registers."""
    index, row, column = (cgutils.alloca_once(builder, INT) for _ in range(3))
    for e in range(plan.fragment_size):
        builder.store(ir.Constant(INT, e), index)
        names.call("coordinate", [tensor(acc.state), index, row, column])
        yield (
            e,
            tuple(
                builder.add(first, builder.sext(builder.load(x), LONG))
                for first, x in ((acc.row, row), (acc.column, column))
            ),
        )


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
    },
    attributes=("size",),
)
