# SPDX-License-Identifier: Apache-2.0
"""Products of whole matrices that are our own from the fetches to the sums: see ``nvmath_device.own_products``.

Threads fetch tiles, several ahead of the one that is multiplied. What a step along K multiplies is read from shared
memory in the step before, from the next tile at the end of one. All of a tile's steps are straight code.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import cgutils

from nvmath_device.numba_backend import emit
from nvmath_device.numba_backend.accumulators import new_accumulator
from nvmath_device.numba_backend.block_threads import barrier
from nvmath_device.numba_backend.copies import begin_load
from nvmath_device.numba_backend.memory import near_address
from nvmath_device.numba_backend.own_multiply import product_of
from nvmath_device.numba_backend.pipeline_calls import BYTE, INT, LONG, extents_of, tile_place
from nvmath_device.numba_backend.shared_layout import dynamic_buffer
from nvmath_device.numba_backend.turning_fetches import TurningFetch
from nvmath_device.numba_backend.vector_fetches import VectorFetch, all_possible
from nvmath_device.pipelines import BUFFER_ALIGNMENT, PipelinePlan

_SHARED = 3  # address space


def create(context: Any, builder: Any, plan: PipelinePlan, made: Any, array_types: Any) -> None:
    """There is nothing to be made."""


def start(context: Any, builder: Any, plan: PipelinePlan, made: Any, array_types: Any, i: Any, j: Any) -> None:
    """All stages but one are on their way to shared memory, those behind K as zeros."""
    emit.raise_alignment(builder)
    buffer = dynamic_buffer(builder, BUFFER_ALIGNMENT)
    copies = _quick_copies(context, builder, plan, made, array_types, 0)
    with builder.if_else(all_possible(builder, copies), likely=True) as (then, otherwise):
        with then:
            _begin(builder, plan, _quick_fetch(builder, plan, copies, buffer))
        with otherwise:
            _begin(builder, plan, _slow_fetch(context, builder, plan, made, array_types, buffer))


def _begin(builder: Any, plan: PipelinePlan, fetch: Any) -> None:
    with cgutils.for_range(builder, ir.Constant(LONG, plan.depth - 1)) as loop:
        offset = builder.mul(builder.trunc(loop.index, INT), ir.Constant(INT, sum(plan.tile_bytes)))
        fetch(loop.index, offset)
        _command(builder, "cp.async.commit_group;")


def finish(context: Any, builder: Any, plan: PipelinePlan, made: Any, array_types: Any) -> Any:
    """The whole loop over K of the tile that was started."""
    emit.raise_alignment(builder)
    acc, buffer = new_accumulator(context, builder, plan), dynamic_buffer(builder, BUFFER_ALIGNMENT)
    copies = _quick_copies(context, builder, plan, made, array_types, plan.depth - 1)
    loop = _Loop(context, builder, plan, made, array_types, acc, buffer)
    with builder.if_else(all_possible(builder, copies), likely=True) as (then, otherwise):
        with then:
            loop.emit(_quick_fetch(builder, plan, copies, buffer))
        with otherwise:
            loop.emit(_slow_fetch(context, builder, plan, made, array_types, buffer))
    _command(builder, "cp.async.wait_all;")  # for zeros behind K
    barrier(builder)
    return acc


def destroy(context: Any, builder: Any, plan: PipelinePlan, made: Any) -> None:
    """There is nothing to be given back."""


class _Loop:
    """The loop over K, into the fragment of an accumulator.

    A barrier in each turn, before the last step, says two things: the next tile is there, and this one is in registers
    as far as it is needed, so that another may take its place, a turn later.
    """

    def __init__(
        self, context: Any, builder: Any, plan: PipelinePlan, made: Any, array_types: Any, acc: Any, buffer: Any
    ) -> None:
        assert plan.own is not None
        self._builder, self._plan, value = builder, plan, plan.descriptor.value_types[2]
        element = {4: ir.FloatType(), 8: ir.DoubleType()}[value.itemsize]
        self._product = product_of(builder, plan.own, element, value.itemsize)
        near = builder.trunc(near_address(builder, buffer), INT)
        self._starts = [
            builder.add(builder.add(near, ir.Constant(INT, offset)), reader.start)
            for offset, reader in zip((0, plan.tile_bytes[0]), self._product.readers, strict=True)
        ]
        fragment = builder.bitcast(acc.fragment, element.as_pointer())
        self._sums = [builder.gep(fragment, [ir.Constant(INT, e)], inbounds=True) for e in range(plan.fragment_size)]
        self._zero = ir.Constant(element, 0.0)
        k = plan.descriptor.size.k
        extent = extents_of(context, builder, array_types[0], made.a)[1]
        self._turns = builder.sdiv(builder.add(extent, ir.Constant(LONG, k - 1)), ir.Constant(LONG, k))
        # Offsets of stages: of the tile that is multiplied, and of the one before, whose place is free.
        self._read, self._free = (cgutils.alloca_once(builder, INT) for _ in range(2))

    def emit(self, fetch: Any) -> None:
        """``fetch(turn, offset)`` begins the copies of a turn's tiles to the stage at an offset in bytes, an int32."""
        builder, plan, readers = self._builder, self._plan, self._product.readers
        for place in self._sums:
            builder.store(self._zero, place)
        builder.store(ir.Constant(INT, 0), self._read)
        builder.store(ir.Constant(INT, (plan.depth - 1) * sum(plan.tile_bytes)), self._free)
        self._arrive()
        kept = [[cgutils.alloca_once(builder, reader.vector) for _ in reader.parts] for reader in readers]
        for reader, tile, slots in zip(readers, self._tiles(), kept, strict=True):
            for part, slot in enumerate(slots):
                builder.store(reader.read(tile, 0, part), slot)
        with cgutils.for_range(builder, self._turns) as loop:
            vectors = [[builder.load(slot) for slot in slots] for slots in kept]
            sums = [builder.load(place) for place in self._sums]
            self._turn(fetch, builder.add(loop.index, ir.Constant(LONG, plan.depth - 1)), vectors, sums)
            for slots, held in zip(kept, vectors, strict=True):
                for slot, vector in zip(slots, held, strict=True):
                    builder.store(vector, slot)
            for place, total in zip(self._sums, sums, strict=True):
                builder.store(total, place)

    def _turn(self, fetch: Any, ahead: Any, vectors: list[list[Any]], sums: list[Any]) -> None:
        """All steps of a tile. ``vectors`` are of its first step, and then of the next tile's."""
        builder, product, tiles = self._builder, self._product, self._tiles()
        steps = self._plan.descriptor.size.k // product.step_k
        for step in range(steps):
            if step == steps - 1:
                self._arrive()
                self._go_on()
                tiles = self._tiles()
            following: list[dict[int, Any]] = [{}, {}]
            self._read_after(0, tiles, (step + 1) % steps, following)
            if step == 0:
                fetch(ahead, builder.load(self._free))
                _command(builder, "cp.async.commit_group;")
            for done in product.multiply(sums, vectors):
                self._read_after(done, tiles, (step + 1) % steps, following)
            vectors[:] = [[found[part] for part in sorted(found)] for found in following]

    def _read_after(self, done: int, tiles: list[Any], step: int, following: list[dict[int, Any]]) -> None:
        """What is to be read for a step when so many portions of the one before are multiplied."""
        for reader, tile, found in zip(self._product.readers, tiles, following, strict=True):
            found.update((x, reader.read(tile, step, x)) for x, after in enumerate(reader.after) if after == done)

    def _arrive(self) -> None:
        """The tile that is read next is there, for all threads."""
        _command(self._builder, f"cp.async.wait_group {self._plan.depth - 2};")
        barrier(self._builder)

    def _go_on(self) -> None:
        """To the next stage."""
        builder, stage = self._builder, sum(self._plan.tile_bytes)
        read = builder.load(self._read)
        builder.store(read, self._free)
        following = builder.add(read, ir.Constant(INT, stage))
        is_end = builder.icmp_unsigned("==", following, ir.Constant(INT, self._plan.depth * stage))
        builder.store(builder.select(is_end, ir.Constant(INT, 0), following), self._read)

    def _tiles(self) -> list[Any]:
        """Where this thread reads the tiles of A and B, pointers into shared memory."""
        builder, read = self._builder, self._builder.load(self._read)
        pointer = ir.PointerType(BYTE, _SHARED)
        return [builder.inttoptr(builder.add(start, read), pointer) for start in self._starts]


def _quick_copies(context: Any, builder: Any, plan: PipelinePlan, made: Any, array_types: Any, turn: int) -> list[Any]:
    """The copies of A and B from a turn on, for arrays that have them."""
    operands = zip(
        plan.layouts, plan.descriptor.arrangement, plan.descriptor.value_types, array_types, (made.a, made.b), (1, 0),
        tile_place(builder, plan, made.which), strict=False,
    )  # fmt: skip
    return [
        (VectorFetch if layout.order == order else TurningFetch)(
            context, builder, layout, value, plan.block_dim.size, array_type, array, axis, first, turn
        )
        for layout, order, value, array_type, array, axis, first in operands
    ]


def _quick_fetch(builder: Any, plan: PipelinePlan, copies: list[Any], buffer: Any) -> Any:
    near = builder.trunc(near_address(builder, buffer), INT)

    def fetch(turn: Any, offset: Any) -> None:
        for copy, tile in zip(copies, (0, plan.tile_bytes[0]), strict=True):
            copy.begin(builder.add(builder.add(near, ir.Constant(INT, tile)), offset))

    return fetch


def _slow_fetch(context: Any, builder: Any, plan: PipelinePlan, made: Any, array_types: Any, buffer: Any) -> Any:
    """For all arrays."""

    def fetch(turn: Any, offset: Any) -> None:
        along_k = builder.mul(turn, ir.Constant(LONG, plan.descriptor.size.k))
        row, column = tile_place(builder, plan, made.which)
        operands = zip((made.a, made.b), ((row, along_k), (along_k, column)), (0, plan.tile_bytes[0]), strict=True)
        for x, (array, first, tile) in enumerate(operands):
            value, layout, target = plan.descriptor.value_types[x], plan.layouts[x], plan.execution.sm
            assert target is not None
            place = builder.gep(buffer, [builder.add(offset, ir.Constant(INT, tile))], inbounds=True)
            begin_load(context, builder, layout, value, array_types[x], array, first, place, target)

    return fetch


def _command(builder: Any, text: str) -> None:
    builder.call(ir.InlineAsm(ir.FunctionType(ir.VoidType(), []), text, "~{memory}", side_effect=True), [])
