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
from nvmath_device.numba_backend.memory import near_address
from nvmath_device.numba_backend.pipeline_calls import INT, LONG, extents_of, which_tile
from nvmath_device.numba_backend.pipeline_slots import DESCRIPTOR_BYTES, Slots, give_back, publish_descriptors
from nvmath_device.numba_backend.shared_layout import dynamic_buffer
from nvmath_device.numba_backend.tensor_maps import write_tensor_map
from nvmath_device.own_streams import LINE_BYTES, ROWS, STEP_BYTES, WARPGROUP
from nvmath_device.pipelines import BUFFER_ALIGNMENT, PipelinePlan

_NAME = "nvmath_device_streams"
_WORD_BYTES = 8  # of a barrier in shared memory
# Of an operand of wgmma in shared memory: lines of 128 bytes, swizzled; groups of eight of them follow each other.
_OPERAND = (1 << 62) | (8 * LINE_BYTES // 16 << 32) | (1 << 16)


def create(context: Any, builder: Any, plan: PipelinePlan, made: Any, array_types: Any) -> None:
    """The descriptors of two tensors, by the thread that has their tiles fetched."""
    stream = plan.stream
    assert stream is not None
    slots = Slots(builder.module, _NAME)
    kept = cgutils.alloca_once_value(builder, ir.Constant(ir.IntType(8).as_pointer(), None))
    with builder.if_then(is_first_thread(builder)):
        slot = slots.take(builder)
        operands = zip(array_types, (made.a, made.b), (stream.rows, stream.columns), strict=True)
        for x, (array_type, array, lines) in enumerate(operands):
            write_tensor_map(
                context, builder, array_type, array, axis=1 - x, box=(stream.k, lines),
                element=stream.tensor_element, target=builder.gep(slot, [ir.Constant(INT, x * DESCRIPTOR_BYTES)]),
            )  # fmt: skip
        publish_descriptors(builder, slot, 2 * DESCRIPTOR_BYTES)
        builder.store(slot, kept)
    made.device = builder.load(kept)


def start(context: Any, builder: Any, plan: PipelinePlan, made: Any, array_types: Any, i: Any, j: Any) -> None:
    """The first tiles of A and B are on their way to shared memory."""
    ring = _Ring(context, builder, plan, made, array_types)
    with builder.if_then(is_first_thread(builder)):
        ring.make_barriers()
        for k in range(plan.depth):
            with builder.if_then(builder.icmp_signed("<", ir.Constant(INT, k), ring.turns)):
                ring.fetch(ir.Constant(INT, k), ir.Constant(INT, k))
    barrier(builder)


def finish(context: Any, builder: Any, plan: PipelinePlan, made: Any, array_types: Any) -> Any:
    """The whole loop over K of the tile that was started."""
    acc, ring = new_accumulator(context, builder, plan), _Ring(context, builder, plan, made, array_types)
    fragment = builder.bitcast(acc.fragment, ir.FloatType().as_pointer())
    places = [builder.gep(fragment, [ir.Constant(INT, e)], inbounds=True) for e in range(plan.fragment_size)]
    for place in places:
        builder.store(ir.Constant(ir.FloatType(), 0.0), place)
    stage, phase = (cgutils.alloca_once_value(builder, ir.Constant(INT, 0)) for _ in range(2))
    leads = builder.icmp_unsigned(
        "==", builder.urem(linear_thread(builder), ir.Constant(INT, WARPGROUP)), ir.Constant(INT, 0)
    )
    fetches = is_first_thread(builder)
    multiply = _multiplication(plan)
    with cgutils.for_range(builder, ring.turns, intp=INT) as loop:
        here, parity = builder.load(stage), builder.load(phase)
        ring.wait_until_full(here, parity)
        sums = [builder.load(place) for place in places]
        found = builder.call(multiply, [*sums, *ring.operands(here)])
        for e, place in enumerate(places):
            builder.store(builder.extract_value(found, e), place)
        with builder.if_then(leads):
            ring.leave(here)
        following = builder.add(loop.index, ir.Constant(INT, plan.depth))
        with builder.if_then(builder.and_(fetches, builder.icmp_signed("<", following, ring.turns))):
            ring.wait_until_empty(here, parity)
            ring.fetch(following, here)
        after = builder.add(here, ir.Constant(INT, 1))
        is_end = builder.icmp_unsigned("==", after, ir.Constant(INT, plan.depth))
        builder.store(builder.select(is_end, ir.Constant(INT, 0), after), stage)
        builder.store(builder.xor(parity, builder.zext(is_end, INT)), phase)
    barrier(builder)
    with builder.if_then(fetches):
        ring.end_barriers()
    return acc


def destroy(context: Any, builder: Any, plan: PipelinePlan, made: Any) -> None:
    """Every thread is behind a barrier that follows its last use of the pipeline."""
    with builder.if_then(is_first_thread(builder)):
        give_back(builder, made.device)


class _Ring:
    """The stages, in shared memory: tiles of A, tiles of B, and behind them the barriers."""

    def __init__(self, context: Any, builder: Any, plan: PipelinePlan, made: Any, array_types: Any) -> None:
        assert plan.stream is not None
        self._builder, self._plan, self._made, self._stream = builder, plan, made, plan.stream
        self._near = builder.trunc(near_address(builder, dynamic_buffer(builder, BUFFER_ALIGNMENT)), INT)
        extent = extents_of(context, builder, array_types[0], made.a)[1]
        k = ir.Constant(LONG, self._stream.k)
        turns = builder.sdiv(builder.add(extent, ir.Constant(LONG, self._stream.k - 1)), k)
        self.turns = builder.trunc(turns, INT)

    def make_barriers(self) -> None:
        warpgroups = self._stream.rows // ROWS
        for stage in range(self._plan.depth):
            for place, count in zip(self._barriers(ir.Constant(INT, stage)), (1, warpgroups), strict=True):
                _say(self._builder, f"mbarrier.init.shared::cta.b64 [$0], {count};", place)
        _say(self._builder, "fence.mbarrier_init.release.cluster;")
        _say(self._builder, "fence.proxy.async.shared::cta;")

    def end_barriers(self) -> None:
        """Their memory is free again."""
        for stage in range(self._plan.depth):
            for place in self._barriers(ir.Constant(INT, stage)):
                _say(self._builder, "mbarrier.inval.shared::cta.b64 [$0];", place)

    def fetch(self, turn: Any, stage: Any) -> None:
        """Have the tiles of a turn fetched into a stage that is free."""
        builder = self._builder
        full, _ = self._barriers(stage)
        text = "{ .reg .b64 %state; mbarrier.arrive.expect_tx.shared::cta.b64 %state, [$0], $1; }"
        _say(builder, text, full, ir.Constant(INT, sum(self._stream.tile_bytes)))
        along_k = builder.mul(turn, ir.Constant(INT, self._stream.k))
        slot = builder.ptrtoint(self._made.device, LONG)
        for x, (tile, lines) in enumerate(zip(self._tiles(stage), (self._stream.rows, self._stream.columns), strict=True)):
            which = builder.load(which_tile(builder, self._made.which, x))
            _say(
                builder,
                "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [$0], [$1, {$2, $3}], "
                "[$4];",
                tile, builder.add(slot, ir.Constant(LONG, x * DESCRIPTOR_BYTES)), along_k,
                builder.mul(which, ir.Constant(INT, lines)), full,
            )  # fmt: skip

    def operands(self, stage: Any) -> list[Any]:
        """This warpgroup's rows of A's tile, and B's tile, as wgmma wants to have them described."""
        builder = self._builder
        a, b = self._tiles(stage)
        warpgroup = builder.udiv(linear_thread(builder), ir.Constant(INT, WARPGROUP))
        a = builder.add(a, builder.mul(warpgroup, ir.Constant(INT, ROWS * LINE_BYTES)))
        return [
            builder.or_(builder.zext(builder.lshr(x, ir.Constant(INT, 4)), LONG), ir.Constant(LONG, _OPERAND))
            for x in (a, b)
        ]

    def wait_until_full(self, stage: Any, parity: Any) -> None:
        _wait(self._builder, self._barriers(stage)[0], parity)

    def wait_until_empty(self, stage: Any, parity: Any) -> None:
        _wait(self._builder, self._barriers(stage)[1], parity)

    def leave(self, stage: Any) -> None:
        """A warpgroup is done with a stage."""
        text = "{ .reg .b64 %state; mbarrier.arrive.shared::cta.b64 %state, [$0]; }"
        _say(self._builder, text, self._barriers(stage)[1])

    def _tiles(self, stage: Any) -> tuple[Any, Any]:
        builder, (a, b) = self._builder, self._stream.tile_bytes
        behind = builder.add(self._near, ir.Constant(INT, self._plan.depth * a))
        return (
            builder.add(self._near, builder.mul(stage, ir.Constant(INT, a))),
            builder.add(behind, builder.mul(stage, ir.Constant(INT, b))),
        )

    def _barriers(self, stage: Any) -> tuple[Any, Any]:
        builder, depth = self._builder, self._plan.depth
        first = builder.add(self._near, ir.Constant(INT, depth * sum(self._stream.tile_bytes)))
        full = builder.add(first, builder.mul(stage, ir.Constant(INT, _WORD_BYTES)))
        return full, builder.add(full, ir.Constant(INT, depth * _WORD_BYTES))


def _multiplication(plan: PipelinePlan) -> Any:
    """From sums and the descriptions of two operands to sums: all instructions of a turn, and their end."""
    stream, count = plan.stream, plan.fragment_size
    assert stream is not None
    sums = ", ".join(f"${e}" for e in range(count))
    commands = ["wgmma.fence.sync.aligned;"]
    for step in range(LINE_BYTES // STEP_BYTES):
        if step:
            commands += [f"add.s64 %{x}, %{x}, {STEP_BYTES // 16};" for x in "ab"]
        commands.append(f"{stream.instruction} {{{sums}}}, %a, %b, %on, 1, 1, 0, 0;")
    commands += ["wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned 0;"]
    setup = f".reg .pred %on; .reg .b64 %a, %b; mov.b64 %a, ${2 * count}; mov.b64 %b, ${2 * count + 1}; "
    text = f"{{ {setup}setp.eq.u32 %on, 0, 0; {' '.join(commands)} }}"
    element = ir.FloatType()
    kind = ir.FunctionType(ir.LiteralStructType([element] * count), [*[element] * count, LONG, LONG])
    constraints = [*["=f"] * count, *map(str, range(count)), "l", "l", "~{memory}"]
    return ir.InlineAsm(kind, text, ",".join(constraints), side_effect=True)


def _wait(builder: Any, place: Any, parity: Any) -> None:
    text = (
        "{ .reg .pred %there; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 %there, [$0], $1; @%there bra THERE; "
        "bra AGAIN; THERE: }"
    )
    _say(builder, text, place, parity)


def _say(builder: Any, text: str, *operands: Any) -> None:
    kind = ir.FunctionType(ir.VoidType(), [x.type for x in operands])
    constraints = ["l" if x.type == LONG else "r" for x in operands]
    builder.asm(kind, text, ",".join([*constraints, "~{memory}"]), operands, side_effect=True)
