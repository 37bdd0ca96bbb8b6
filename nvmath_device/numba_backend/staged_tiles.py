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
from nvmath_device.numba_backend.memory import near_address
from nvmath_device.numba_backend.pipeline_calls import BYTE, INT, LONG, Functions, extents_of, room, tensor, tile_place
from nvmath_device.numba_backend.shared_layout import dynamic_buffer
from nvmath_device.numba_backend.vector_fetches import VectorFetch, all_possible
from nvmath_device.own_products import has_vectors
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
    acc, state = new_accumulator(context, builder, plan), room(builder, BYTE, plan.accumulator_bytes)
    names.call("accumulator_clear", [tensor(state)])
    quick = _vector_fetches(context, builder, plan, made, array_types)
    if quick is None:
        _loop(context, builder, plan, made, array_types, names, state, None)
    else:
        with builder.if_else(all_possible(builder, quick), likely=True) as (then, otherwise):
            with then:
                _loop(context, builder, plan, made, array_types, names, state, quick)
            with otherwise:
                _loop(context, builder, plan, made, array_types, names, state, None)
    _wait(builder, plan)  # for the tiles of a loop without turns
    barrier(builder)
    names.call("finish", [tensor(state)])
    names.call("fragment", [tensor(state), tensor(acc.fragment)])
    return acc


def _loop(
    context: Any, builder: Any, plan: PipelinePlan, made: Any, array_types: Any, names: Functions, state: Any,
    quick: Any,
) -> None:  # fmt: skip
    """Over K. ``quick``: the copies of A and B in vectors, for arrays that have them; each kind has a loop of its own.

    In one loop the code of the other copies, though never run, would take registers from the product.
    """
    k = plan.descriptor.size.k
    extent = extents_of(context, builder, array_types[0], made.a)[1]
    turns = builder.sdiv(builder.add(extent, ir.Constant(LONG, k - 1)), ir.Constant(LONG, k))

    def fetch(turn: Any) -> None:
        if quick is None:
            _fetch(context, builder, plan, made, array_types, turn)
            return
        emit.raise_alignment(builder)
        for copy, tile in zip(quick, _stage(builder, plan, turn), strict=True):
            copy.begin(builder.trunc(near_address(builder, tile), INT))

    with cgutils.for_range(builder, turns) as loop:
        _wait(builder, plan)
        barrier(builder)
        following = builder.add(loop.index, ir.Constant(LONG, 1))
        is_there = builder.icmp_signed("<", following, turns)
        if plan.depth > 1:
            with builder.if_then(is_there):
                fetch(following)
        a, b = _stage(builder, plan, loop.index)
        names.call("execute", [tensor(a), tensor(b), tensor(state)])
        if plan.depth == 1:
            barrier(builder)
            with builder.if_then(is_there):
                fetch(following)


def _vector_fetches(context: Any, builder: Any, plan: PipelinePlan, made: Any, array_types: Any) -> Any:
    """The copies of A and B in vectors, behind the first tiles; ``None`` where tiles or the target do not have them."""
    threads, values = plan.block_dim.size, plan.descriptor.value_types
    has = (
        has_vectors(layout, value.itemsize, threads) for layout, value in zip(plan.layouts[:2], values, strict=False)
    )
    if not all(has) or plan.execution.sm < FIRST_WITH_ASYNC_COPY:  # type: ignore[operator]
        return None
    firsts = tile_place(builder, plan, made.which)
    operands = zip(plan.layouts, values, array_types, (made.a, made.b), (1, 0), firsts, strict=False)
    return [
        VectorFetch(context, builder, layout, value, threads, array_type, array, axis, first, 1)
        for layout, value, array_type, array, axis, first in operands
    ]


def destroy(context: Any, builder: Any, plan: PipelinePlan, made: Any) -> None:
    """There is nothing to be given back."""


def _fetch(context: Any, builder: Any, plan: PipelinePlan, made: Any, array_types: Any, turn: Any) -> None:
    """Tiles of A and B to their stage; they may still be on their way afterwards."""
    emit.raise_alignment(builder)
    along_k = builder.mul(turn, ir.Constant(LONG, plan.descriptor.size.k))
    row, column = tile_place(builder, plan, made.which)
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
