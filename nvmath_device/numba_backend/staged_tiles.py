# SPDX-License-Identifier: Apache-2.0
"""Products of whole matrices with tiles that the block's threads fetch, one while the one before is multiplied.

For matrices of any alignment and extents, and for devices without TMA.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import cgutils

from nvmath_device.numba_backend import emit
from nvmath_device.numba_backend.accumulators import new_accumulator
from nvmath_device.numba_backend.block_threads import barrier
from nvmath_device.numba_backend.copies import FIRST_WITH_ASYNC_COPY, begin_load
from nvmath_device.numba_backend.pipeline_calls import INT, LONG, Functions, extents_of, tensor
from nvmath_device.numba_backend.shared_layout import dynamic_buffer
from nvmath_device.pipelines import BUFFER_ALIGNMENT, PipelinePlan


def create(context: Any, builder: Any, plan: PipelinePlan, made: Any, array_types: Any) -> None:
    """There is nothing to be made."""


def start(context: Any, builder: Any, plan: PipelinePlan, made: Any, array_types: Any, i: Any, j: Any) -> None:
    """The first tiles of A and B are on their way to shared memory."""
    _fetch(context, builder, plan, made, array_types, ir.Constant(LONG, 0))


def finish(context: Any, builder: Any, plan: PipelinePlan, made: Any, array_types: Any) -> Any:
    """The whole loop over K of the tile that was started.

    A barrier in each turn says two things: the tiles of this turn are there, and those of the turn before are no longer
    read, so that the next ones may take their place. A single stage needs a second barrier for the latter.
    """
    names = Functions(context, builder, plan)
    acc = new_accumulator(context, builder, plan)
    names.call("accumulator_clear", [tensor(acc.fragment)])
    k = plan.descriptor.size.k
    extent = extents_of(context, builder, array_types[0], made.a)[1]
    turns = builder.sdiv(builder.add(extent, ir.Constant(LONG, k - 1)), ir.Constant(LONG, k))
    with cgutils.for_range(builder, turns) as loop:
        _wait(builder, plan)
        barrier(builder)
        following = builder.add(loop.index, ir.Constant(LONG, 1))
        is_there = builder.icmp_signed("<", following, turns)
        if plan.depth > 1:
            with builder.if_then(is_there):
                _fetch(context, builder, plan, made, array_types, following)
        a, b = _stage(builder, plan, loop.index)
        names.call("execute", [tensor(a), tensor(b), tensor(acc.fragment)])
        if plan.depth == 1:
            barrier(builder)
            with builder.if_then(is_there):
                _fetch(context, builder, plan, made, array_types, following)
    _wait(builder, plan)  # for the tiles of a loop without turns
    barrier(builder)
    return acc


def destroy(context: Any, builder: Any, plan: PipelinePlan, made: Any) -> None:
    """There is nothing to be given back."""


def _fetch(context: Any, builder: Any, plan: PipelinePlan, made: Any, array_types: Any, turn: Any) -> None:
    """Tiles of A and B to their stage; they may still be on their way afterwards."""
    emit.raise_alignment(builder)
    along_k = builder.mul(turn, ir.Constant(LONG, plan.descriptor.size.k))
    row, column = (builder.load(builder.gep(made.place, [ir.Constant(INT, axis)], inbounds=True)) for axis in (0, 1))
    tiles, target = _stage(builder, plan, turn), plan.execution.sm
    assert target is not None
    firsts = ((row, along_k), (along_k, column))
    for x, (array, first, tile) in enumerate(zip((made.a, made.b), firsts, tiles, strict=True)):
        value, layout = plan.descriptor.value_types[x], plan.layouts[x]
        begin_load(context, builder, layout, value, array_types[x], array, first, tile, target)


def _stage(builder: Any, plan: PipelinePlan, turn: Any) -> tuple[Any, Any]:
    """Where the tiles of A and B of this turn are."""
    a_bytes, b_bytes = plan.tile_bytes
    which = builder.srem(turn, ir.Constant(LONG, plan.depth))
    start = builder.mul(which, ir.Constant(LONG, a_bytes + b_bytes))
    a = builder.gep(dynamic_buffer(builder, BUFFER_ALIGNMENT), [start], inbounds=True)
    return a, builder.gep(a, [ir.Constant(LONG, a_bytes)], inbounds=True)


def _wait(builder: Any, plan: PipelinePlan) -> None:
    """For what this thread has copied asynchronously."""
    if plan.execution.sm >= FIRST_WITH_ASYNC_COPY:  # type: ignore[operator]
        wait = ir.InlineAsm(ir.FunctionType(ir.VoidType(), []), "cp.async.wait_all;", "~{memory}", side_effect=True)
        builder.call(wait, [])
