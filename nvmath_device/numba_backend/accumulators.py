# SPDX-License-Identifier: Apache-2.0
"""``Matmul.multiply`` and the accumulator that it gives: a tile of C, shared out to the registers of a block."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import cgutils, nvvmutils, types
from numba.cuda.cudadecl import registry as typing_registry
from numba.cuda.cudaimpl import registry as lowering_registry
from numba.cuda.datamodel import models
from numba.cuda.models import register_model
from numba.cuda.typing.templates import AttributeTemplate, signature

from nvmath_device.descriptors import ROW_MAJOR
from nvmath_device.lto.pipeline_recipes import symbol_of
from nvmath_device.numba_backend import debug_checks, emit
from nvmath_device.numba_backend.dynamic_shared import uses_dynamic_shared
from nvmath_device.numba_backend.element_types import scalar_type
from nvmath_device.numba_backend.generated import RequiredBlock, generated
from nvmath_device.numba_backend.objects import (
    Call,
    is_debug,
    literal_type,
    lower_literal,
    method,
    pipeline_target,
)
from nvmath_device.numba_backend.operands import check_matrix, check_view, check_writable
from nvmath_device.numba_backend.pipeline_slots import Slot, acquire_descriptors
from nvmath_device.numba_backend.shared_layout import dynamic_buffer
from nvmath_device.pipelines import PIPELINE_BYTES, TILE_BYTES, PipelinePlan, pipeline_plan

_BYTE, _INT, _LONG = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_POINTER = _BYTE.as_pointer()
_BUFFER_ALIGNMENT = 1024  # of the pattern in which tiles are swizzled; libmathdx asks for 128
FORM = ("a", "b", "i", "j")


class AccumulatorType(types.Type):
    """A tile of C as a block's threads hold it."""

    def __init__(self, plan: PipelinePlan) -> None:
        self.plan = plan
        super().__init__(f"accumulator of {plan.descriptor.size} ({plan.recipe.symbol})")

    @property
    def element(self) -> Any:
        return scalar_type(self.plan.descriptor.value_types[2])


@register_model(AccumulatorType)
class _Model(models.StructModel):
    """Where a thread's fragment is, and libmathdx's objects; the first row and column of the tile, and C's extents."""

    def __init__(self, manager: Any, typ: Any) -> None:
        pointers = [(name, types.voidptr) for name in ("fragment", "state", "tile")]
        places = [(name, types.int64) for name in ("row", "column", "rows", "columns")]
        super().__init__(manager, typ, [*pointers, *places])


# -- multiply ------------------------------------------------------------------------------------------------


def plan_of(typ: Any, depth: Any = None) -> PipelinePlan:
    target = pipeline_target(typ.value.block_execution.sm, typ.value)
    descriptor, execution = typ.value.resolved(target)
    return pipeline_plan(descriptor, execution, depth=None if depth is None else depth.literal_value, sm=target)


def _resolve_multiply(typ: Any, call: Call) -> Any:
    arguments = call.bind(FORM, optional=("depth",))
    depth = arguments.pop("depth", None)
    if depth is not None and not isinstance(depth, (types.IntegerLiteral, types.StringLiteral)):
        raise call.error(f"wants a constant number of stages, or 'max', for depth, got {depth}")
    plan = plan_of(typ, depth)
    descriptor = plan.descriptor
    for name, value, order in zip("ab", descriptor.value_types, descriptor.arrangement, strict=False):
        check_view(call, name, arguments[name], value)
        check_matrix(call, name, arguments[name], value, order)
    for name in "ij":
        if not isinstance(arguments[name], types.Integer):
            raise call.error(f"wants an integer for {name}, which tile of C, got {arguments[name]}")
        arguments[name] = types.int32
    if depth is not None:
        arguments["depth"] = depth
    return call.signature(AccumulatorType(plan), arguments)


def _lower_multiply(context: Any, builder: Any, typ: Any, sig: Any, args: Any) -> Any:
    plan = sig.return_type.plan
    names = _Functions(context, builder, plan)
    if is_debug():
        _check_at_run_time(context, builder, plan, sig, args)
    emit.bound_threads(builder, plan.block_dim.size)
    uses_dynamic_shared(context, plan.buffer_bytes)
    first = _is_first_thread(builder)
    slot = Slot(builder, plan.recipe.symbol)
    with builder.if_then(first):
        address = slot.take(builder)
        a, b = (_matrix(context, builder, plan, x, sig.args[x], args[x]) for x in (0, 1))
        names.call("pipeline_create", [_pipeline(address), a, b])
        slot.share(builder, address)
    _barrier(builder)
    device = slot.shared(builder)
    if plan.execution.sm >= (9, 0):
        with builder.if_then(_is_first_of_warp(builder)):
            acquire_descriptors(builder, device, PIPELINE_BYTES)
    element = context.get_data_type(sig.return_type.element)
    tile, state = _room(builder, _BYTE, TILE_BYTES), _room(builder, _BYTE, plan.accumulator_bytes)
    fragment = _room(builder, element, plan.fragment_size)
    buffer = dynamic_buffer(builder, _BUFFER_ALIGNMENT)
    i, j = (_kept(builder, args[x]) for x in (2, 3))
    names.call("tile_create", [_pipeline(device), _pipeline(tile), buffer, i, j])
    names.call("accumulator_create", [_pipeline(tile), _tensor(state)])
    names.call("accumulator_clear", [_tensor(state)])
    names.call("execute", [_pipeline(tile), _tensor(state)])
    names.call("finish", [_tensor(state)])
    names.call("fragment", [_tensor(state), _tensor(fragment)])
    names.call("tile_destroy", [_pipeline(tile)])
    _barrier(builder)
    with builder.if_then(first):
        names.call("pipeline_destroy", [_pipeline(device)])
        slot.give_back(builder)
    m, n, _ = plan.descriptor.size
    made = cgutils.create_struct_proxy(sig.return_type)(context, builder)
    made.fragment, made.state, made.tile = fragment, state, tile
    made.row, made.column = (
        builder.mul(builder.sext(x, _LONG), ir.Constant(_LONG, extent)) for x, extent in ((args[2], m), (args[3], n))
    )
    made.rows, made.columns = (_extents(context, builder, sig.args[x], args[x])[x] for x in (0, 1))
    return made._getvalue()


def _check_at_run_time(context: Any, builder: Any, plan: PipelinePlan, sig: Any, args: Any) -> None:
    name = "Matmul.multiply"
    debug_checks.check_block(context, builder, name, plan.block_dim, shape=True)
    debug_checks.check_dynamic_shared(context, builder, name, plan.buffer_bytes)
    inner = []
    for x, argument in enumerate("ab"):
        array = emit.array_struct(context, builder, sig.args[x], args[x])
        alignment = plan.descriptor.alignment[x]  # type: ignore[index]
        debug_checks.check_aligned(context, builder, name, argument, array.data, alignment)
        pitch = builder.inttoptr(_pitch(builder, plan, x, array), _POINTER)
        debug_checks.check_aligned(context, builder, f"{name}'s leading dimension", argument, pitch, alignment)
        inner.append(_extents(context, builder, sig.args[x], args[x])[1 - x])
    debug_checks.check_inner_extents(context, builder, name, *inner)


# -- the accumulator -----------------------------------------------------------------------------------------


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
    shape, strides = _extents(context, builder, c_type, array), cgutils.unpack_tuple(builder, c.strides, 2)
    data = builder.bitcast(c.data, _POINTER)
    names = _Functions(context, builder, plan)
    value = plan.descriptor.value_types[2]
    if c_type.dtype != typ.element:
        _store_each(context, builder, typ, names, acc, c_type, data, shape, strides)
        return
    pitch, step = strides if plan.descriptor.arrangement[2] == ROW_MAJOR else strides[::-1]
    start = builder.gep(data, [builder.add(builder.mul(acc.row, strides[0]), builder.mul(acc.column, strides[1]))])
    alignment = plan.descriptor.alignment[2]  # type: ignore[index]
    odd = builder.and_(builder.or_(builder.ptrtoint(start, _LONG), pitch), ir.Constant(_LONG, alignment - 1))
    as_declared = _all(
        builder,
        _is_whole(builder, plan, acc, shape),
        builder.icmp_signed("==", step, ir.Constant(_LONG, value.itemsize)),
        builder.icmp_signed("==", odd, ir.Constant(_LONG, 0)),
    )
    with builder.if_else(as_declared) as (then, otherwise):
        with then:
            ld = builder.sdiv(pitch, ir.Constant(_LONG, value.itemsize))
            target = _Value("tensor_1s_0s", [start, [ld]])
            names.call("store", [_pipeline(acc.tile), _tensor(acc.fragment), target])
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
    made.fragment = _room(builder, context.get_data_type(typ.element), typ.plan.fragment_size)
    names = _Functions(context, builder, typ.plan)
    given = _given(typ, rest_types)
    call_type = context.typing_context.resolve_function_type(function, given, {})
    compiled = context.get_function(function, call_type)
    last = [builder.sub(most, ir.Constant(_LONG, 1)) for most in (acc.rows, acc.columns)]
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
    index, row, column = (cgutils.alloca_once(builder, _INT) for _ in range(3))
    for e in range(plan.fragment_size):
        builder.store(ir.Constant(_INT, e), index)
        names.call("coordinate", [_tensor(acc.state), index, row, column])
        yield (
            e,
            tuple(
                builder.add(first, builder.sext(builder.load(x), _LONG))
                for first, x in ((acc.row, row), (acc.column, column))
            ),
        )


def _is_inside(builder: Any, at: Any, shape: Any) -> Any:
    return _all(builder, *(builder.icmp_signed("<", x, most) for x, most in zip(at, shape, strict=True)))


def _is_whole(builder: Any, plan: PipelinePlan, acc: Any, shape: Any) -> Any:
    """Whether the whole tile lies inside of a matrix."""
    m, n, _ = plan.descriptor.size
    ends = builder.add(acc.row, ir.Constant(_LONG, m)), builder.add(acc.column, ir.Constant(_LONG, n))
    return _all(builder, *(builder.icmp_signed("<=", end, most) for end, most in zip(ends, shape, strict=True)))


def _element(context: Any, builder: Any, typ: Any, acc: Any, e: int) -> Any:
    base = builder.bitcast(acc.fragment, context.get_data_type(typ.element).as_pointer())
    return builder.gep(base, [ir.Constant(_INT, e)], inbounds=True)


# -- calls into generated code -------------------------------------------------------------------------------


class _Value:
    """A struct of libmathdx that is passed by value: its C name and its members."""

    def __init__(self, name: str, members: list[Any]) -> None:
        self.name, self.members = name, members


def _pipeline(pointer: Any) -> _Value:
    return _Value("pipeline", [pointer])


def _tensor(pointer: Any) -> _Value:
    return _Value("tensor_0s_0s", [pointer])


def _matrix(context: Any, builder: Any, plan: PipelinePlan, which: int, array_type: Any, array: Any) -> _Value:
    """A global matrix: address, extents, and its leading dimension, in elements."""
    struct = emit.array_struct(context, builder, array_type, array)
    extents = list(cgutils.unpack_tuple(builder, struct.shape, 2))
    ld = builder.sdiv(
        _pitch(builder, plan, which, struct), ir.Constant(_LONG, plan.descriptor.value_types[which].itemsize)
    )
    return _Value("tensor_1s_2s", [builder.bitcast(struct.data, _POINTER), extents, [ld]])


def _pitch(builder: Any, plan: PipelinePlan, which: int, array: Any) -> Any:
    """Bytes from a row, or a column, to the next."""
    is_row_major = plan.descriptor.arrangement[which] == ROW_MAJOR
    return cgutils.unpack_tuple(builder, array.strides, 2)[0 if is_row_major else 1]


class _Functions:
    """Calls of a pipeline's functions, whose code is linked into the kernel."""

    def __init__(self, context: Any, builder: Any, plan: PipelinePlan) -> None:
        self._context, self._builder, self._recipe = context, builder, plan.recipe
        block = RequiredBlock(plan.block_dim, exact=True)
        context.active_code_library.add_linking_file(generated(plan.recipe, block, plan.check))

    def call(self, role: str, arguments: list[Any]) -> None:
        builder, module = self._builder, self._builder.module
        values = [_passed(builder, a) for a in arguments]
        name = symbol_of(self._recipe, role)
        callee = module.globals.get(name)
        if callee is None:
            callee = ir.Function(module, ir.FunctionType(ir.VoidType(), [v.type for v in values]), name)
        builder.call(callee, values)


def _passed(builder: Any, argument: Any) -> Any:
    if not isinstance(argument, _Value):
        return builder.bitcast(argument, _POINTER)
    members = [_array(builder, m) if isinstance(m, list) else builder.bitcast(m, _POINTER) for m in argument.members]
    struct = builder.module.context.get_identified_type(f"struct.libmathdx_{argument.name}")
    if struct.is_opaque:
        struct.set_body(*(m.type for m in members))
    value = ir.Constant(struct, ir.Undefined)
    for place, member in enumerate(members):
        value = builder.insert_value(value, member, place)
    return value


def _array(builder: Any, numbers: list[Any]) -> Any:
    value = ir.Constant(ir.ArrayType(_LONG, len(numbers)), ir.Undefined)
    for place, number in enumerate(numbers):
        value = builder.insert_value(value, number, place)
    return value


# -- small things --------------------------------------------------------------------------------------------


def _room(builder: Any, element: Any, count: int) -> Any:
    """Memory of this thread, as bytes. Without the zeros that Numba puts in, which would keep it out of registers."""
    with builder.goto_entry_block():
        slot = builder.alloca(ir.ArrayType(element, count))
    slot.align = 16
    return builder.bitcast(slot, _POINTER)


def _extents(context: Any, builder: Any, array_type: Any, array: Any) -> Any:
    return cgutils.unpack_tuple(builder, emit.array_struct(context, builder, array_type, array).shape, 2)


def _kept(builder: Any, value: Any) -> Any:
    slot = cgutils.alloca_once(builder, value.type)
    builder.store(value, slot)
    return slot


def _barrier(builder: Any) -> None:
    name = "llvm.nvvm.barrier0"
    function = builder.module.globals.get(name) or ir.Function(builder.module, ir.FunctionType(ir.VoidType(), []), name)
    builder.call(function, [])


def _linear_thread(builder: Any) -> Any:
    x, y, z = (nvvmutils.call_sreg(builder, f"tid.{axis}") for axis in "xyz")
    nx, ny = (nvvmutils.call_sreg(builder, f"ntid.{axis}") for axis in "xy")
    return builder.add(x, builder.mul(nx, builder.add(y, builder.mul(ny, z))))


def _is_first_thread(builder: Any) -> Any:
    return builder.icmp_unsigned("==", _linear_thread(builder), ir.Constant(_INT, 0))


def _is_first_of_warp(builder: Any) -> Any:
    return builder.icmp_unsigned(
        "==", builder.and_(_linear_thread(builder), ir.Constant(_INT, 31)), ir.Constant(_INT, 0)
    )


def _all(builder: Any, *conditions: Any) -> Any:
    result = conditions[0]
    for condition in conditions[1:]:
        result = builder.and_(result, condition)
    return result


# -- registration --------------------------------------------------------------------------------------------

MULTIPLY = method("Matmul.multiply", _resolve_multiply, _lower_multiply)
_METHODS = {
    "store": method("accumulator.store", _resolve_store, _lower_store, value=True),
    "map": method("accumulator.map", _resolve_map, _lower_map, value=True),
}


@typing_registry.register_attr
class _Attributes(AttributeTemplate):
    key = AccumulatorType

    def generic_resolve(self, typ: Any, attr: str) -> Any:
        if attr in _METHODS:
            return types.BoundFunction(_METHODS[attr], typ)
        return literal_type(typ.plan.fragment_size) if attr == "size" else None


@lowering_registry.lower_getattr_generic(AccumulatorType)
def _lower_attribute(context: Any, builder: Any, typ: Any, value: Any, attr: str) -> Any:
    if attr in _METHODS:
        return value
    return lower_literal(context, builder, literal_type(typ.plan.fragment_size))
