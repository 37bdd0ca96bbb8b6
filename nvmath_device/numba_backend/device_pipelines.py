# SPDX-License-Identifier: Apache-2.0
"""``Matmul.pipeline`` and ``Matmul.multiply``: tiles of A and B, through shared memory, into an accumulator."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import cgutils, nvvmutils, types
from numba.cuda.datamodel import models
from numba.cuda.models import register_model

from nvmath_device.numba_backend import debug_checks, emit
from nvmath_device.numba_backend.accumulators import AccumulatorType
from nvmath_device.numba_backend.dynamic_shared import uses_dynamic_shared
from nvmath_device.numba_backend.objects import Call, is_debug, method, pipeline_target, register_value
from nvmath_device.numba_backend.operands import check_order, check_view
from nvmath_device.numba_backend.pipeline_calls import (
    BYTE,
    INT,
    LONG,
    POINTER,
    Functions,
    extents_of,
    kept,
    matrix,
    pipeline,
    pitch_of,
    room,
    tensor,
)
from nvmath_device.numba_backend.pipeline_slots import Slots, acquire_descriptors, give_back
from nvmath_device.numba_backend.shared_layout import dynamic_buffer
from nvmath_device.pipelines import PIPELINE_BYTES, TILE_BYTES, PipelinePlan, pipeline_plan

_BUFFER_ALIGNMENT = 1024  # of the pattern in which tiles are swizzled; libmathdx asks for 128


class PipelineType(types.Type):
    """A block's way to two whole matrices."""

    def __init__(self, plan: PipelinePlan) -> None:
        self.plan = plan
        super().__init__(f"pipeline of {plan.descriptor.size} ({plan.recipe.symbol})")


@register_model(PipelineType)
class _Model(models.StructModel):
    """Where libmathdx's objects are, of the matrices and of the tile, the tile's first row and column, C's extents."""

    def __init__(self, manager: Any, typ: Any) -> None:
        pointers = [("device", types.voidptr), ("tile", types.voidptr), ("place", types.CPointer(types.int64))]
        super().__init__(manager, typ, [*pointers, ("rows", types.int64), ("columns", types.int64)])


# -- the parts of a product ----------------------------------------------------------------------------------


def _create(context: Any, builder: Any, plan: PipelinePlan, array_types: Any, arrays: Any) -> Any:
    """A pipeline for two matrices, made by one thread for all of the block."""
    names = Functions(context, builder, plan)
    if is_debug():
        _check_at_run_time(context, builder, plan, array_types, arrays)
    emit.bound_threads(builder, plan.block_dim.size)
    uses_dynamic_shared(context, plan.buffer_bytes)
    slots = Slots(builder.module, plan.recipe.symbol)
    with builder.if_then(_is_first_thread(builder)):
        address = slots.take(builder)
        a, b = (matrix(context, builder, plan, x, array_types[x], arrays[x]) for x in (0, 1))
        names.call("pipeline_create", [pipeline(address), a, b])
        slots.share(builder, address)
    _barrier(builder)
    made = cgutils.create_struct_proxy(PipelineType(plan))(context, builder)
    made.device = slots.shared(builder)
    if plan.execution.sm >= (9, 0):  # type: ignore[operator]
        with builder.if_then(_is_first_of_warp(builder)):
            acquire_descriptors(builder, made.device, PIPELINE_BYTES)
    made.rows, made.columns = (extents_of(context, builder, array_types[x], arrays[x])[x] for x in (0, 1))
    made.tile = room(builder, BYTE, TILE_BYTES)
    made.place = builder.bitcast(room(builder, LONG, 2), LONG.as_pointer())
    return made


def _start(context: Any, builder: Any, plan: PipelinePlan, made: Any, i: Any, j: Any) -> None:
    """The first tiles of A and B are on their way to shared memory, which must be free."""
    buffer = dynamic_buffer(builder, _BUFFER_ALIGNMENT)
    Functions(context, builder, plan).call(
        "tile_create", [pipeline(made.device), pipeline(made.tile), buffer, kept(builder, i), kept(builder, j)]
    )
    m, n, _ = plan.descriptor.size
    for axis, (x, extent) in enumerate(((i, m), (j, n))):
        first = builder.mul(builder.zext(x, LONG), ir.Constant(LONG, extent), flags=("nsw", "nuw"))
        builder.store(first, _place(builder, made, axis))


def _finish(context: Any, builder: Any, plan: PipelinePlan, made: Any) -> Any:
    """The whole loop over K of the tile that was started; shared memory is free again when it returns."""
    names = Functions(context, builder, plan)
    typ = AccumulatorType(plan)
    tile, state = made.tile, room(builder, BYTE, plan.accumulator_bytes)
    fragment = room(builder, context.get_data_type(typ.element), plan.fragment_size)
    names.call("accumulator_create", [pipeline(tile), tensor(state)])
    names.call("accumulator_clear", [tensor(state)])
    names.call("execute", [pipeline(tile), tensor(state)])
    names.call("finish", [tensor(state)])
    names.call("fragment", [tensor(state), tensor(fragment)])
    names.call("tile_destroy", [pipeline(tile)])
    _barrier(builder)
    acc = cgutils.create_struct_proxy(typ)(context, builder)
    acc.fragment, acc.state, acc.tile = fragment, state, tile
    acc.row, acc.column = (builder.load(_place(builder, made, axis)) for axis in (0, 1))
    acc.rows, acc.columns = made.rows, made.columns
    return acc._getvalue()


def _place(builder: Any, made: Any, axis: int) -> Any:
    return builder.gep(made.place, [ir.Constant(INT, axis)], inbounds=True)


def _multiply(context: Any, builder: Any, plan: PipelinePlan, made: Any, i: Any, j: Any) -> Any:
    _start(context, builder, plan, made, i, j)
    return _finish(context, builder, plan, made)


def _destroy(context: Any, builder: Any, plan: PipelinePlan, made: Any) -> None:
    """Every thread is behind a barrier that follows its last use of the pipeline."""
    names = Functions(context, builder, plan)
    with builder.if_then(_is_first_thread(builder)):
        names.call("pipeline_destroy", [pipeline(made.device)])
        give_back(builder, made.device)


def _check_at_run_time(context: Any, builder: Any, plan: PipelinePlan, array_types: Any, arrays: Any) -> None:
    name = "Matmul.multiply"
    debug_checks.check_block(context, builder, name, plan.block_dim, shape=True)
    debug_checks.check_dynamic_shared(context, builder, name, plan.buffer_bytes)
    inner = []
    for x, argument in enumerate("ab"):
        array = emit.array_struct(context, builder, array_types[x], arrays[x])
        alignment = plan.descriptor.alignment[x]  # type: ignore[index]
        debug_checks.check_aligned(context, builder, name, argument, array.data, alignment)
        pitch = builder.inttoptr(pitch_of(builder, plan, x, array), POINTER)
        debug_checks.check_aligned(context, builder, f"{name}'s leading dimension", argument, pitch, alignment)
        inner.append(extents_of(context, builder, array_types[x], arrays[x])[1 - x])
    debug_checks.check_inner_extents(context, builder, name, *inner)


# -- calls ---------------------------------------------------------------------------------------------------


def _plan(typ: Any, call: Call, arguments: dict[str, Any]) -> PipelinePlan:
    """The plan for a call with these argument types, which are checked."""
    depth = arguments.get("depth")
    if depth is not None and not isinstance(depth, (types.IntegerLiteral, types.StringLiteral)):
        raise call.error(f"wants a constant number of stages, or 'max', for depth, got {depth}")
    target = pipeline_target(typ.value.block_execution.sm, typ.value)
    descriptor, execution = typ.value.resolved(target)
    stages = None if depth is None else depth.literal_value
    plan = pipeline_plan(descriptor, execution, depth=stages, sm=target)
    for name, value, order in zip("ab", descriptor.value_types, descriptor.arrangement, strict=False):
        check_view(call, name, arguments[name], value)
        check_order(call, name, arguments[name], order)
    return plan


def _check_tile(call: Call, arguments: dict[str, Any]) -> None:
    for name in "ij":
        if not isinstance(arguments[name], types.Integer):
            raise call.error(f"wants an integer for {name}, which tile of C, got {arguments[name]}")
        arguments[name] = types.int32


def _resolve_multiply(typ: Any, call: Call) -> Any:
    arguments = call.bind(("a", "b", "i", "j"), optional=("depth",))
    plan = _plan(typ, call, arguments)
    _check_tile(call, arguments)
    return call.signature(AccumulatorType(plan), arguments)


def _lower_multiply(context: Any, builder: Any, typ: Any, sig: Any, args: Any) -> Any:
    plan = sig.return_type.plan
    made = _create(context, builder, plan, sig.args, args)
    accumulator = _multiply(context, builder, plan, made, args[2], args[3])
    _destroy(context, builder, plan, made)
    return accumulator


def _resolve_pipeline(typ: Any, call: Call) -> Any:
    arguments = call.bind(("a", "b"), optional=("depth",))
    return call.signature(PipelineType(_plan(typ, call, arguments)), arguments)


def _lower_pipeline(context: Any, builder: Any, typ: Any, sig: Any, args: Any) -> Any:
    return _create(context, builder, sig.return_type.plan, sig.args, args)._getvalue()


def _resolve_tile(typ: PipelineType, call: Call) -> Any:
    arguments = call.bind(("i", "j"))
    _check_tile(call, arguments)
    return call.signature(AccumulatorType(typ.plan), arguments)


def _lower_tile(context: Any, builder: Any, typ: PipelineType, sig: Any, args: Any) -> Any:
    this, i, j = args
    made = cgutils.create_struct_proxy(typ)(context, builder, value=this)
    return _multiply(context, builder, typ.plan, made, i, j)


def _resolve_start(typ: PipelineType, call: Call) -> Any:
    arguments = call.bind(("i", "j"))
    _check_tile(call, arguments)
    return call.signature(types.void, arguments)


def _lower_start(context: Any, builder: Any, typ: PipelineType, sig: Any, args: Any) -> None:
    this, i, j = args
    _start(context, builder, typ.plan, cgutils.create_struct_proxy(typ)(context, builder, value=this), i, j)


def _resolve_finish(typ: PipelineType, call: Call) -> Any:
    call.bind(())
    return call.signature(AccumulatorType(typ.plan), {})


def _lower_finish(context: Any, builder: Any, typ: PipelineType, sig: Any, args: Any) -> Any:
    return _finish(context, builder, typ.plan, cgutils.create_struct_proxy(typ)(context, builder, value=args[0]))


def _resolve_destroy(typ: PipelineType, call: Call) -> Any:
    call.bind(())
    return call.signature(types.void, {})


def _lower_destroy(context: Any, builder: Any, typ: PipelineType, sig: Any, args: Any) -> None:
    made = cgutils.create_struct_proxy(typ)(context, builder, value=args[0])
    _destroy(context, builder, typ.plan, made)


# -- threads -------------------------------------------------------------------------------------------------


def _barrier(builder: Any) -> None:
    name = "llvm.nvvm.barrier0"
    function = builder.module.globals.get(name) or ir.Function(builder.module, ir.FunctionType(ir.VoidType(), []), name)
    builder.call(function, [])


def _linear_thread(builder: Any) -> Any:
    x, y, z = (nvvmutils.call_sreg(builder, f"tid.{axis}") for axis in "xyz")
    nx, ny = (nvvmutils.call_sreg(builder, f"ntid.{axis}") for axis in "xy")
    return builder.add(x, builder.mul(nx, builder.add(y, builder.mul(ny, z))))


def _is_first_thread(builder: Any) -> Any:
    return builder.icmp_unsigned("==", _linear_thread(builder), ir.Constant(INT, 0))


def _is_first_of_warp(builder: Any) -> Any:
    return builder.icmp_unsigned("==", builder.and_(_linear_thread(builder), ir.Constant(INT, 31)), ir.Constant(INT, 0))


# -- registration --------------------------------------------------------------------------------------------

MATMUL_METHODS = {
    "multiply": method("Matmul.multiply", _resolve_multiply, _lower_multiply),
    "pipeline": method("Matmul.pipeline", _resolve_pipeline, _lower_pipeline),
}
register_value(
    PipelineType,
    {
        "multiply": method("pipeline.multiply", _resolve_tile, _lower_tile, value=True),
        "start": method("pipeline.start", _resolve_start, _lower_start, value=True),
        "finish": method("pipeline.finish", _resolve_finish, _lower_finish, value=True),
        "destroy": method("pipeline.destroy", _resolve_destroy, _lower_destroy, value=True),
    },
)
