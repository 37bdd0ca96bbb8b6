# SPDX-License-Identifier: Apache-2.0
"""Products of whole matrices by a loop of our own, of tiles that TMA fetches: see ``nvmath_device.own_streams``.

One thread of the block has the tiles fetched, into a ring of stages. Each stage has two barriers in shared memory: the
hardware says by the first that its tiles are there, the warpgroups by the second that they are done with them.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import cgutils

from nvmath_device.numba_backend.accumulators import new_accumulator
from nvmath_device.numba_backend.block_threads import barrier, is_first_thread, linear_thread
from nvmath_device.numba_backend.guest_tiles import GuestMatrix, end_barriers
from nvmath_device.numba_backend.memory import near_address
from nvmath_device.numba_backend.pipeline_calls import INT, LONG, extents_of, tile_place
from nvmath_device.numba_backend.pipeline_slots import Slots, give_back
from nvmath_device.numba_backend.ptx import speak
from nvmath_device.numba_backend.shared_layout import dynamic_buffer
from nvmath_device.numba_backend.stream_text import loop_text, start_text
from nvmath_device.numba_backend.tensor_maps import TensorMap, write_tensor_maps
from nvmath_device.pipelines import BUFFER_ALIGNMENT, PipelinePlan

_NAME = "nvmath_device_streams"


def create(
    context: Any, builder: Any, plan: PipelinePlan, made: Any, array_types: Any, guest: GuestMatrix | None = None
) -> None:
    """The descriptors of two or three tensors, by the thread that has their tiles fetched."""
    stream = plan.stream
    assert stream is not None
    slots = Slots(builder.module, _slots_name(plan, guest))
    kept = cgutils.alloca_once_value(builder, ir.Constant(ir.IntType(8).as_pointer(), None))
    with builder.if_then(is_first_thread(builder)):
        slot = slots.take(builder)
        maps = [
            TensorMap(context, array_type, array, axis=1 - x, box=(stream.k, lines), element=stream.tensor_elements[x])
            for x, (array_type, array, lines) in enumerate(
                zip(array_types, (made.a, made.b), (stream.rows, stream.columns), strict=True)
            )
        ]
        write_tensor_maps(builder, maps if guest is None else [*maps, guest.map], slot)
        builder.store(slot, kept)
    made.device = builder.load(kept)


def _slots_name(plan: PipelinePlan, guest: GuestMatrix | None) -> str:
    """Of slots whose descriptors differ in nothing but their matrices."""
    stream = plan.stream
    assert stream is not None
    name = f"{_NAME}_{'_'.join(map(str, stream.tensor_elements))}_{stream.rows}x{stream.columns}x{stream.k}"
    return name if guest is None else f"{name}_beside_{guest.guest.itemsize}"


def start(
    context: Any, builder: Any, plan: PipelinePlan, made: Any, array_types: Any, i: Any, j: Any,
    guest: GuestMatrix | None = None,
) -> None:  # fmt: skip
    """The first tiles of A and B are on their way to shared memory."""
    assert plan.stream is not None
    with builder.if_then(is_first_thread(builder)):
        text = start_text(plan.stream, plan.depth, None if guest is None else guest.guest)
        speak(builder, text, _operands(context, builder, plan, made, array_types, guest))
    barrier(builder)


def finish(
    context: Any, builder: Any, plan: PipelinePlan, made: Any, array_types: Any, guest: GuestMatrix | None = None
) -> Any:
    """The whole loop over K of the tile that was started. The guest's is on its way then."""
    assert plan.stream is not None
    acc = new_accumulator(context, builder, plan)
    operands = _operands(context, builder, plan, made, array_types, guest)
    text = loop_text(plan.stream, plan.depth, None if guest is None else guest.guest, plan.fragment_size)
    sums = speak(builder, text, {**operands, "thread": linear_thread(builder)}, results=plan.fragment_size)
    fragment = builder.bitcast(acc.fragment, ir.FloatType().as_pointer())
    for e in range(plan.fragment_size):
        place = builder.gep(fragment, [ir.Constant(INT, e)], inbounds=True)
        builder.store(builder.extract_value(sums, e), place)
    if guest is None:
        end_barriers(builder, plan, operands["near"])
    else:
        guest.ring = operands
    return acc


def destroy(context: Any, builder: Any, plan: PipelinePlan, made: Any) -> None:
    """Every thread is behind a barrier that follows its last use of the pipeline."""
    with builder.if_then(is_first_thread(builder)):
        give_back(builder, made.device)


def _operands(
    context: Any, builder: Any, plan: PipelinePlan, made: Any, array_types: Any, guest: GuestMatrix | None
) -> dict[str, Any]:
    """What the texts call the tile that was started, and where its stages are."""
    stream = plan.stream
    assert stream is not None
    extent = extents_of(context, builder, array_types[0], made.a)[1]
    k = ir.Constant(LONG, stream.k)
    turns = builder.trunc(builder.sdiv(builder.add(extent, ir.Constant(LONG, stream.k - 1)), k), INT)
    near = builder.trunc(near_address(builder, dynamic_buffer(builder, BUFFER_ALIGNMENT)), INT)
    operands = {"near": near, "turns": turns, "maps": builder.ptrtoint(made.device, LONG)}
    firsts = (builder.trunc(x, INT) for x in tile_place(builder, plan, made.which))
    operands |= dict(zip(("row", "column"), firsts, strict=True))
    return operands if guest is None else operands | {"guests": guest.stages}
