# SPDX-License-Identifier: Apache-2.0
"""Products of whole matrices with tiles that libmathdx's pipeline fetches, by TMA."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from nvmath_device.numba_backend.accumulators import new_accumulator
from nvmath_device.numba_backend.block_threads import barrier, is_first_thread
from nvmath_device.numba_backend.pipeline_calls import BYTE, INT, Functions, kept, matrix, pipeline, room, tensor
from nvmath_device.numba_backend.pipeline_slots import Slots, give_back, publish_descriptors
from nvmath_device.numba_backend.shared_layout import dynamic_buffer
from nvmath_device.pipelines import BUFFER_ALIGNMENT, PIPELINE_BYTES, TILE_BYTES, PipelinePlan

_VECTOR = 16  # bytes
_SUMS_AT = 32  # where in an accumulator the sums were seen to begin; elsewhere they are as right, and might be spilled


def create(context: Any, builder: Any, plan: PipelinePlan, made: Any, array_types: Any) -> None:
    """A pipeline for two matrices, made by one thread for all of the block."""
    names = Functions(context, builder, plan)
    slots = Slots(builder.module, plan.recipe.symbol)
    has_descriptors = plan.execution.sm >= (9, 0)  # type: ignore[operator]
    with builder.if_then(is_first_thread(builder)):
        address = slots.take(builder)
        a, b = (matrix(context, builder, plan, x, array_types[x], array) for x, array in enumerate((made.a, made.b)))
        names.call("pipeline_create", [pipeline(address), a, b])
        if has_descriptors:
            publish_descriptors(builder, address, PIPELINE_BYTES)
        slots.share(builder, address)
    barrier(builder)
    made.device = slots.shared(builder)
    made.tile = room(builder, BYTE, TILE_BYTES)


def start(context: Any, builder: Any, plan: PipelinePlan, made: Any, array_types: Any, i: Any, j: Any) -> None:
    """The first tiles of A and B are on their way to shared memory."""
    buffer = dynamic_buffer(builder, BUFFER_ALIGNMENT)
    Functions(context, builder, plan).call(
        "tile_create", [pipeline(made.device), pipeline(made.tile), buffer, kept(builder, i), kept(builder, j)]
    )


def finish(context: Any, builder: Any, plan: PipelinePlan, made: Any, array_types: Any) -> Any:
    """The whole loop over K of the tile that was started."""
    names = Functions(context, builder, plan)
    tile, state = made.tile, room(builder, BYTE, plan.accumulator_bytes)
    acc = new_accumulator(context, builder, plan)
    names.call("accumulator_create", [pipeline(tile), tensor(state)])
    names.call("accumulator_clear", [tensor(state)])
    if plan.keeps_sums:
        _write_as_vectors(builder, plan, state)
    names.call("execute", [pipeline(tile), tensor(state)])
    names.call("finish", [tensor(state)])
    names.call("fragment", [tensor(state), tensor(acc.fragment)])
    names.call("tile_destroy", [pipeline(tile)])
    barrier(builder)
    acc.state, acc.tile = state, tile
    return acc


def _write_as_vectors(builder: Any, plan: PipelinePlan, state: Any) -> None:
    """Write the sums of an accumulator once more as they are, in the vectors of 16 bytes that ``fragment`` reads.

    libmathdx writes most of its zeros so, but of a tile of 128 x 256 8 of 128 one by one. Where K is 0 the compiler
    gives a vector that is read what was written as one; the others it left in local memory, written and never read.
    Products by mma read their sums otherwise, and with this the loops of some had more of them in memory.
    """
    size = plan.descriptor.value_types[2].itemsize
    element, count = ir.IntType(8 * size), _VECTOR // size
    for offset in range(_SUMS_AT, _SUMS_AT + plan.fragment_bytes, _VECTOR):
        place = builder.gep(state, [ir.Constant(INT, offset)], inbounds=True)
        first = builder.bitcast(place, element.as_pointer())
        vector = ir.Constant(ir.VectorType(element, count), ir.Undefined)
        for i in range(count):
            index = ir.Constant(INT, i)
            vector = builder.insert_element(vector, builder.load(builder.gep(first, [index], inbounds=True)), index)
        builder.store(vector, builder.bitcast(place, vector.type.as_pointer()), align=_VECTOR)


def destroy(context: Any, builder: Any, plan: PipelinePlan, made: Any) -> None:
    """Every thread is behind a barrier that follows its last use of the pipeline."""
    names = Functions(context, builder, plan)
    with builder.if_then(is_first_thread(builder)):
        names.call("pipeline_destroy", [pipeline(made.device)])
        give_back(builder, made.device)
