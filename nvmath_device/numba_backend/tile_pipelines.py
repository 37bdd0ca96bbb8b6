# SPDX-License-Identifier: Apache-2.0
"""``DevicePipeline`` in kernels, and the tiles that it gives: a pipeline that is made for each tile's block."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import cgutils, types
from numba.cuda.datamodel import models
from numba.cuda.models import register_model
from numba.cuda.typing.templates import signature

from nvmath_device.descriptors import ROW_MAJOR
from nvmath_device.matmul import Matmul
from nvmath_device.numba_backend import debug_checks
from nvmath_device.numba_backend.accumulators import AccumulatorType
from nvmath_device.numba_backend.conversions import converted
from nvmath_device.numba_backend.device_pipelines import (
    PipelineType,
    check_tile,
    create,
    finish,
    generated_pipeline_of,
    start,
)
from nvmath_device.numba_backend.element_types import value_numba
from nvmath_device.numba_backend.fragments import plus
from nvmath_device.numba_backend.objects import Call, is_debug, method, register_value
from nvmath_device.numba_backend.pipeline_calls import INT, POINTER
from nvmath_device.numba_backend.pipeline_fragments import (
    STATE,
    TILE,
    PipelineAccumulatorType,
    object_place,
)
from nvmath_device.numba_backend.shared_layout import dynamic_buffer
from nvmath_device.numba_backend.tensor_accumulators import empty_accumulator
from nvmath_device.numba_backend.tensor_types import plan_of
from nvmath_device.numba_backend.tensor_values import Elements, unpacked
from nvmath_device.pipelines import BUFFER_ALIGNMENT
from nvmath_device.tensor_rules import described


class DevicePipelineType(types.Type):
    """Two whole matrices of any extents and strides, in the orders of a descriptor."""

    def __init__(self, mm: Matmul, depth: int | str | None) -> None:
        self.value = (mm, depth)
        super().__init__(f"DevicePipeline of {mm!r} in {depth!r} stages")

    @property
    def key(self) -> Any:
        return ("DevicePipeline", self.value)

    @property
    def launch_members(self) -> tuple[Any, Any]:
        """Types of the arrays. That they are compact is not so, and only says what their orders are."""
        mm, _ = self.value
        a, b = (
            types.Array(value_numba(value), 2, "C" if order == ROW_MAJOR else "F", readonly=True)
            for value, order in zip(mm.descriptor.value_types[:2], mm.arrangement[:2], strict=True)
        )
        return a, b

    @property
    def pipeline(self) -> PipelineType:
        mm, depth = self.value
        return PipelineType(generated_pipeline_of(mm, depth), self.launch_members)


@register_model(DevicePipelineType)
class _DeviceModel(models.StructModel):
    def __init__(self, manager: Any, typ: Any) -> None:
        super().__init__(manager, typ, list(zip("ab", typ.launch_members, strict=True)))


class TilePipelineType(types.Type):
    """A block's way to its tiles of the two matrices."""

    def __init__(self, mm: Matmul, pipeline: PipelineType) -> None:
        self.mm, self.pipeline = mm, pipeline
        super().__init__(f"tile of {pipeline}")


@register_model(TilePipelineType)
class _TileModel(models.StructModel):
    def __init__(self, manager: Any, typ: Any) -> None:
        super().__init__(manager, typ, [("pipeline", typ.pipeline)])


def _made(context: Any, builder: Any, typ: TilePipelineType, tile: Any) -> Any:
    value = cgutils.create_struct_proxy(typ)(context, builder, value=tile).pipeline
    return cgutils.create_struct_proxy(typ.pipeline)(context, builder, value=value)


# -- the pipeline ----------------------------------------------------------------------------------------------------


def _resolve_get(typ: DevicePipelineType, call: Call) -> Any:
    arguments = call.bind(("smem", "i", "j"))
    check_tile(call, arguments)
    smem = arguments["smem"]
    if not isinstance(smem, types.Array) or smem.ndim != 1:
        raise call.error(
            f"wants the dynamic shared memory for smem, such as nd.shared.array(0, np.uint8, {BUFFER_ALIGNMENT}), "
            f"got {smem}"
        )
    mm, _ = typ.value
    return call.signature(TilePipelineType(mm, typ.pipeline), arguments)


def _lower_get(context: Any, builder: Any, typ: DevicePipelineType, sig: Any, args: Any) -> Any:
    this, smem, i, j = args
    matrices = cgutils.create_struct_proxy(typ)(context, builder, value=this)
    tile_type = sig.return_type
    if is_debug():
        base = dynamic_buffer(builder, BUFFER_ALIGNMENT)
        debug_checks.check_same_address(
            context, builder, "DevicePipeline.get_tile", "smem", sig.args[0], smem, base, BUFFER_ALIGNMENT
        )
    made = create(context, builder, tile_type.pipeline, (matrices.a, matrices.b))
    start(context, builder, tile_type.pipeline, made, i, j)
    tile = cgutils.create_struct_proxy(tile_type)(context, builder)
    tile.pipeline = made._getvalue()
    return tile._getvalue()


def _resolve_reset(typ: DevicePipelineType, call: Call) -> Any:
    arguments = call.bind(("tile", "i", "j"))
    check_tile(call, arguments)
    tile = arguments["tile"]
    if not isinstance(tile, TilePipelineType) or tile.pipeline != typ.pipeline:
        raise call.error(f"wants a tile of this pipeline for tile, as get_tile gives it, got {tile}")
    return call.signature(types.void, arguments)


def _lower_reset(context: Any, builder: Any, typ: DevicePipelineType, sig: Any, args: Any) -> None:
    _, tile, i, j = args
    start(context, builder, typ.pipeline, _made(context, builder, sig.args[0], tile), i, j)


# -- a tile ----------------------------------------------------------------------------------------------------------


def _resolve_accumulator(typ: TilePipelineType, call: Call) -> Any:
    return call.signature(PipelineAccumulatorType(plan_of(typ.mm), typ.pipeline.plan), call.bind(()))


def _lower_accumulator(context: Any, builder: Any, typ: TilePipelineType, sig: Any, args: Any) -> Any:
    return empty_accumulator(context, builder, sig.return_type)


def _resolve_execute(typ: TilePipelineType, call: Call) -> Any:
    arguments = call.bind(("accumulator",))
    given = arguments["accumulator"]
    if not isinstance(given, PipelineAccumulatorType) or given.pipeline != typ.pipeline.plan:
        raise call.error(
            f"wants an accumulator of this pipeline, of {typ.pipeline.plan.depth} stages, got {described(given)}; take "
            "tile.suggest_accumulator()"
        )
    return call.signature(types.void, arguments)


def _lower_execute(context: Any, builder: Any, typ: TilePipelineType, sig: Any, args: Any) -> None:
    tile, accumulator = args
    made, target = sig.args[0], unpacked(context, builder, sig.args[0], accumulator)
    product = finish(context, builder, typ.pipeline, _made(context, builder, typ, tile))
    result = cgutils.create_struct_proxy(AccumulatorType(typ.pipeline.plan))(context, builder, value=product)
    if typ.pipeline.plan.is_streamed:
        for which, pointer in ((STATE, result.state), (TILE, result.tile)):
            builder.store(builder.bitcast(pointer, POINTER), object_place(builder, target.objects, which))
    source = builder.bitcast(result.fragment, context.get_data_type(made.element).as_pointer())
    elements = Elements(context, builder, made, accumulator)
    model = context.data_model_manager[made.element]
    work = types.float32 if made.element == types.float16 else made.element
    for e in range(made.size):
        added = model.from_data(builder, builder.load(builder.gep(source, [ir.Constant(INT, e)], inbounds=True)))
        parts = [converted(context, builder, x, made.element, work) for x in (elements.get(e), added)]
        total = context.compile_internal(builder, plus, signature(work, work, work), parts)
        elements.put(e, converted(context, builder, total, work, made.element))


def _resolve_destroy(typ: TilePipelineType, call: Call) -> Any:
    return call.signature(types.void, call.bind(()))


def _lower_destroy(context: Any, builder: Any, typ: TilePipelineType, sig: Any, args: Any) -> None:
    pipe = typ.pipeline
    pipe.tiles.destroy(context, builder, pipe.plan, _made(context, builder, typ, args[0]))


register_value(
    DevicePipelineType,
    {
        "get_tile": method("DevicePipeline.get_tile", _resolve_get, _lower_get, value=True),
        "reset_tile": method("DevicePipeline.reset_tile", _resolve_reset, _lower_reset, value=True),
    },
)
register_value(
    TilePipelineType,
    {
        "suggest_accumulator": method("tile.suggest_accumulator", _resolve_accumulator, _lower_accumulator, value=True),
        "execute": method("tile.execute", _resolve_execute, _lower_execute, value=True),
        "destroy": method("tile.destroy", _resolve_destroy, _lower_destroy, value=True),
    },
)
