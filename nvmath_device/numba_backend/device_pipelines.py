# SPDX-License-Identifier: Apache-2.0
"""``Matmul.pipeline`` and ``Matmul.multiply``: tiles of A and B, through shared memory, into an accumulator."""

from __future__ import annotations

from typing import Any

from numba.cuda import cgutils, types
from numba.cuda.datamodel import models
from numba.cuda.models import register_model

from nvmath_device.matmul import Matmul
from nvmath_device.numba_backend import debug_checks, emit, own_stream_tiles, own_tiles, staged_tiles, streamed_tiles
from nvmath_device.numba_backend.accumulators import AccumulatorType, check_combination, combined
from nvmath_device.numba_backend.dynamic_shared import uses_dynamic_shared
from nvmath_device.numba_backend.generated import RequiredBlock
from nvmath_device.numba_backend.guest_tiles import GuestMatrix, takes_guest
from nvmath_device.numba_backend.objects import Call, is_debug, method, pipeline_target, register_value
from nvmath_device.numba_backend.operands import check_order, check_view
from nvmath_device.numba_backend.pipeline_calls import INT, POINTER, extents_of, pitch_of, room, tile_place, which_tile
from nvmath_device.own_streams import WGMMA_CHIP
from nvmath_device.pipelines import COMBINATION, WANTS_COMBINATION, PipelinePlan, pipeline_plan


class PipelineType(types.Type):
    """A block's way to two whole matrices, arrays of these types."""

    def __init__(self, plan: PipelinePlan, arrays: tuple[types.Array, types.Array]) -> None:
        self.plan, self.arrays = plan, arrays
        super().__init__(f"pipeline of {plan.name} for {arrays}")

    @property
    def tiles(self) -> Any:
        """How tiles are fetched."""
        if self.plan.own is not None:
            return own_tiles
        if self.plan.stream is not None:
            return own_stream_tiles
        return streamed_tiles if self.plan.is_streamed else staged_tiles


@register_model(PipelineType)
class _Model(models.StructModel):
    """The matrices; where libmathdx's objects are, of the matrices and of the tile; which tile it is: i and j."""

    def __init__(self, manager: Any, typ: Any) -> None:
        objects = [("device", types.voidptr), ("tile", types.voidptr), ("which", types.CPointer(types.int32))]
        super().__init__(manager, typ, [*zip("ab", typ.arrays, strict=True), *objects])


# -- the parts of a product ----------------------------------------------------------------------------------


def create(context: Any, builder: Any, typ: PipelineType, arrays: Any, **guest: Any) -> Any:
    if is_debug():
        _check_at_run_time(context, builder, typ.plan, typ.arrays, arrays)
    emit.bound_threads(builder, typ.plan.block_dim.size)
    block, chip = RequiredBlock(typ.plan.block_dim, exact=True), "" if typ.plan.stream is None else WGMMA_CHIP
    uses_dynamic_shared(context, typ.plan.buffer_bytes, block, chip)
    made = cgutils.create_struct_proxy(typ)(context, builder)
    made.a, made.b = arrays[:2]
    made.which = builder.bitcast(room(builder, INT, 2), INT.as_pointer())
    typ.tiles.create(context, builder, typ.plan, made, typ.arrays, **guest)
    return made


def start(context: Any, builder: Any, typ: PipelineType, made: Any, i: Any, j: Any, **guest: Any) -> Any:
    """Returns the tile's first row and column."""
    for axis, number in enumerate((i, j)):
        builder.store(number, which_tile(builder, made.which, axis))
    firsts = tile_place(builder, typ.plan, made.which)
    typ.tiles.start(context, builder, typ.plan, made, typ.arrays, i, j, **guest)
    return firsts


def finish(context: Any, builder: Any, typ: PipelineType, made: Any, firsts: Any = None, **guest: Any) -> Any:
    """Shared memory is free again when it returns. ``firsts``: what :func:`start` returned, where that is at hand."""
    firsts = tile_place(builder, typ.plan, made.which) if firsts is None else firsts
    acc = typ.tiles.finish(context, builder, typ.plan, made, typ.arrays, **guest)
    acc.row, acc.column = firsts
    acc.rows, acc.columns = (
        extents_of(context, builder, array_type, array)[axis]
        for axis, (array_type, array) in enumerate(zip(typ.arrays, (made.a, made.b), strict=True))
    )
    return acc._getvalue()


def _check_at_run_time(context: Any, builder: Any, plan: PipelinePlan, array_types: Any, arrays: Any) -> None:
    name = "Matmul.multiply"
    debug_checks.check_block(context, builder, name, plan.block_dim, shape=True)
    debug_checks.check_dynamic_shared(context, builder, name, plan.buffer_bytes)
    inner = []
    for x, argument in enumerate("ab"):
        if plan.is_streamed:
            array = emit.array_struct(context, builder, array_types[x], arrays[x])
            alignment = plan.descriptor.alignment[x]  # type: ignore[index]
            debug_checks.check_aligned(context, builder, name, argument, array.data, alignment)
            pitch = builder.inttoptr(pitch_of(builder, plan, x, array), POINTER)
            debug_checks.check_aligned(context, builder, f"{name}'s leading dimension", argument, pitch, alignment)
        inner.append(extents_of(context, builder, array_types[x], arrays[x])[1 - x])
    debug_checks.check_inner_extents(context, builder, name, *inner)


def pipeline_of(mm: Matmul, depth: int | str | None) -> PipelinePlan:
    """The pipeline of a descriptor, for the target of the running compilation."""
    target = pipeline_target(mm.block_execution.sm, mm)
    descriptor, execution = mm.resolved(target)
    plan = pipeline_plan(descriptor, execution, depth=depth, sm=target)
    # Without link-time optimisation the kernel is PTX for every chip, which cannot have what one alone has.
    return plan.of_libmathdx if is_debug() else plan


def generated_pipeline_of(mm: Matmul, depth: int | str | None) -> PipelinePlan:
    """The same with libmathdx's loop, to whose objects opaque tensors belong."""
    return pipeline_of(mm, depth).of_libmathdx


# -- calls ---------------------------------------------------------------------------------------------------


def _plan(typ: Any, call: Call, arguments: dict[str, Any]) -> PipelinePlan:
    """The plan for a call with these argument types, which are checked."""
    depth = arguments.get("depth")
    if depth is not None and not isinstance(depth, (types.IntegerLiteral, types.StringLiteral)):
        raise call.error(f"wants a constant number of stages, or 'max', for depth, got {depth}")
    plan = pipeline_of(typ.value, None if depth is None else depth.literal_value)
    for name, value, order in zip("ab", plan.descriptor.value_types, plan.descriptor.arrangement, strict=False):
        check_view(call, name, arguments[name], value)
        check_order(call, name, arguments[name], order)
    return plan


def check_tile(call: Call, arguments: dict[str, Any]) -> None:
    """Which tile of C: i and j become int32."""
    for name in "ij":
        if not isinstance(arguments[name], types.Integer):
            raise call.error(f"wants an integer for {name}, which tile of C, got {arguments[name]}")
        arguments[name] = types.int32


def _resolve_multiply(typ: Any, call: Call) -> Any:
    arguments = call.bind(("a", "b", "i", "j"), optional=("depth", *COMBINATION))
    plan = _plan(typ, call, arguments)
    check_tile(call, arguments)
    acc = AccumulatorType(plan, has_stages=True)
    given = [arguments[name] for name in COMBINATION if name in arguments]
    if given:
        if not {"combine", "x"} <= arguments.keys():
            raise call.error(WANTS_COMBINATION)
        check_combination(acc, call, [*given[:2], *_members(call, given)])
    return call.signature(acc, arguments)


def _members(call: Call, given: Any) -> tuple[Any, ...]:
    """Types of the function's further arguments."""
    if len(given) < len(COMBINATION):
        return ()
    if not isinstance(given[-1], types.BaseTuple):
        raise call.error(f"wants a tuple for args, the function's further arguments, got {given[-1]}")
    return tuple(given[-1])


def _lower_multiply(context: Any, builder: Any, typ: Any, sig: Any, args: Any) -> Any:
    acc, pipe = sig.return_type, PipelineType(sig.return_type.plan, sig.args[:2])
    given = _combination(builder, sig, args)
    has_guest = given and pipe.plan.stream is not None and takes_guest(pipe.plan, given[1][0])
    guest = {"guest": GuestMatrix(context, builder, pipe.plan, *given[1])} if has_guest else {}
    made = create(context, builder, pipe, args, **guest)
    firsts = start(context, builder, pipe, made, args[2], args[3], **guest)
    result = finish(context, builder, pipe, made, firsts, **guest)
    if given:
        tile = guest["guest"].tile(firsts) if guest else None
        kinds, values = zip(*given, strict=True)
        result = combined(context, builder, acc, result, kinds, values, tile)
    pipe.tiles.destroy(context, builder, pipe.plan, made)
    return result


def _combination(builder: Any, sig: Any, args: Any) -> list[tuple[Any, Any]]:
    """The function, the matrix and further arguments of a call that combines, each a type and a value."""
    given = list(zip(sig.args, args, strict=True))[4:]
    if given and isinstance(given[0][0], types.Literal):  # depth
        del given[0]
    if len(given) < len(COMBINATION):
        return given
    kind, value = given.pop()
    return [*given, *zip(kind, cgutils.unpack_tuple(builder, value, len(kind)), strict=True)]


def _resolve_pipeline(typ: Any, call: Call) -> Any:
    arguments = call.bind(("a", "b"), optional=("depth",))
    plan = _plan(typ, call, arguments)
    return call.signature(PipelineType(plan, (arguments["a"], arguments["b"])), arguments)


def _lower_pipeline(context: Any, builder: Any, typ: Any, sig: Any, args: Any) -> Any:
    return create(context, builder, sig.return_type, args)._getvalue()


def _made(context: Any, builder: Any, typ: PipelineType, value: Any) -> Any:
    return cgutils.create_struct_proxy(typ)(context, builder, value=value)


def _resolve_tile(typ: PipelineType, call: Call) -> Any:
    arguments = call.bind(("i", "j"))
    check_tile(call, arguments)
    return call.signature(AccumulatorType(typ.plan), arguments)


def _lower_tile(context: Any, builder: Any, typ: PipelineType, sig: Any, args: Any) -> Any:
    made = _made(context, builder, typ, args[0])
    firsts = start(context, builder, typ, made, args[1], args[2])
    return finish(context, builder, typ, made, firsts)


def _resolve_start(typ: PipelineType, call: Call) -> Any:
    arguments = call.bind(("i", "j"))
    check_tile(call, arguments)
    return call.signature(types.void, arguments)


def _lower_start(context: Any, builder: Any, typ: PipelineType, sig: Any, args: Any) -> None:
    start(context, builder, typ, _made(context, builder, typ, args[0]), args[1], args[2])


def _resolve_finish(typ: PipelineType, call: Call) -> Any:
    call.bind(())
    return call.signature(AccumulatorType(typ.plan), {})


def _lower_finish(context: Any, builder: Any, typ: PipelineType, sig: Any, args: Any) -> Any:
    return finish(context, builder, typ, _made(context, builder, typ, args[0]))


def _resolve_destroy(typ: PipelineType, call: Call) -> Any:
    call.bind(())
    return call.signature(types.void, {})


def _lower_destroy(context: Any, builder: Any, typ: PipelineType, sig: Any, args: Any) -> None:
    typ.tiles.destroy(context, builder, typ.plan, _made(context, builder, typ, args[0]))


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
