# SPDX-License-Identifier: Apache-2.0
"""The text, in PTX, of a loop of our own over tiles that TMA fetches: see ``nvmath_device.own_streams``. Pure.

As text the compilers before ptxas leave it alone: they would unroll it, and keep what it reads in memory.

Names that begin with ``$`` are the operands: ``$near``, where the stages begin in shared memory; ``$turns``, tiles
along K; ``$guests``, stages that the guest fills, if there is one; ``$row`` and ``$column`` of C where the tile begins;
``$maps``, the descriptors of A, B and the guest's matrix; ``$thread``, this thread's number in the block.
"""

from __future__ import annotations

from nvmath_device.numba_backend.pipeline_slots import DESCRIPTOR_BYTES
from nvmath_device.own_streams import LINE_BYTES, ROWS, STEP_BYTES, WARPGROUP, Guest, OwnStream

WORD_BYTES = 8  # of a barrier in shared memory
# Of an operand of wgmma in shared memory: lines of 128 bytes, swizzled; groups of eight of them follow each other.
_OPERAND = (1 << 62) | (8 * LINE_BYTES // 16 << 32) | (1 << 16)
_FETCH = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
_EXPECT = "mbarrier.arrive.expect_tx.shared::cta.b64"


def start_text(stream: OwnStream, depth: int, guest: Guest | None) -> str:
    """By one thread: barriers, and the first tiles on their way."""
    lines = _registers()
    for stage in range(depth):
        full = depth * stream.stage_bytes + stage * WORD_BYTES
        lines.append(f"mbarrier.init.shared::cta.b64 [$near+{full}], 1;")
        lines.append(f"mbarrier.init.shared::cta.b64 [$near+{full + depth * WORD_BYTES}], {stream.rows // ROWS};")
    lines += [
        "fence.mbarrier_init.release.cluster;",
        "fence.proxy.async.shared::cta;",
        _total(guest),
        "mov.u32 %next, 0;",
        "MORE:",
        f"setp.lt.s32 %there, %next, {depth}; setp.lt.s32 %more, %next, %total; and.pred %more, %more, %there;",
        "@!%more bra STARTED;",
        f"mad.lo.u32 %at, %next, {stream.stage_bytes}, $near;",
        f"mad.lo.u32 %full, %next, {WORD_BYTES}, $near; add.u32 %full, %full, {depth * stream.stage_bytes};",
        *_fetch(stream, guest),
        "add.u32 %next, %next, 1;",
        "bra MORE;",
        "STARTED:",
    ]
    return _block(lines)


def loop_text(stream: OwnStream, depth: int, guest: Guest | None, sums: int) -> str:
    """By all threads: the products of all tiles, added up in ``$0`` and on."""
    barriers = depth * stream.stage_bytes
    a_bytes, _ = stream.tile_bytes
    outputs = ", ".join(f"${e}" for e in range(sums))
    lines = [
        *_registers(),
        *(f"mov.f32 ${e}, 0f00000000;" for e in range(sums)),
        _total(guest),
        f"rem.u32 %next, $thread, {WARPGROUP}; setp.eq.u32 %leads, %next, 0;",
        "setp.eq.u32 %fetches, $thread, 0; setp.eq.u32 %on, 0, 0;",
        f"div.u32 %own, $thread, {WARPGROUP}; mul.lo.u32 %own, %own, {ROWS * LINE_BYTES};",
        "mov.u32 %turn, 0; mov.u32 %stage, 0; mov.u32 %parity, 0;",
        "setp.gt.s32 %more, $turns, 0; @!%more bra MULTIPLIED;",
        "TURN:",
        f"mad.lo.u32 %at, %stage, {stream.stage_bytes}, $near;",
        f"mad.lo.u32 %full, %stage, {WORD_BYTES}, $near; add.u32 %full, %full, {barriers};",
        *_wait("FULL", "%full"),
        "add.u32 %here, %at, %own; shr.u32 %here, %here, 4; cvt.u64.u32 %a, %here;",
        f"add.u32 %here, %at, {a_bytes}; shr.u32 %here, %here, 4; cvt.u64.u32 %b, %here;",
        f"or.b64 %a, %a, {_OPERAND}; or.b64 %b, %b, {_OPERAND};",
        "wgmma.fence.sync.aligned;",
    ]
    for step in range(LINE_BYTES // STEP_BYTES):
        if step:
            lines += [f"add.s64 %{x}, %{x}, {STEP_BYTES // 16};" for x in "ab"]
        lines.append(f"{stream.instruction} {{{outputs}}}, %a, %b, %on, 1, 1{stream.ending};")
    lines += [
        "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;",
        f"@%leads mbarrier.arrive.shared::cta.b64 %state, [%full+{depth * WORD_BYTES}];",
        f"add.s32 %next, %turn, {depth};",
        "setp.lt.s32 %more, %next, %total; and.pred %more, %more, %fetches;",
        "@!%more bra FETCHED;",
        *_wait("FREE", f"%full+{depth * WORD_BYTES}"),
        *_fetch(stream, guest),
        "FETCHED:",
        *_advance(depth),
        "setp.lt.s32 %more, %turn, $turns; @%more bra TURN;",
        "MULTIPLIED:",
    ]
    return _block(lines)


def guest_text(stream: OwnStream, depth: int, turn: int) -> str:
    """By all threads, behind the loop: until the guest's stage of a number is there, if TMA fills it."""
    barriers = depth * stream.stage_bytes
    lines = [
        ".reg .pred %there; .reg .b32 %at, %full, %parity;",
        "setp.eq.s32 %there, $guests, 0; @%there bra DONE;",
        f"add.u32 %at, $turns, {turn}; div.u32 %parity, %at, {depth}; and.b32 %parity, %parity, 1;",
        f"rem.u32 %full, %at, {depth}; mad.lo.u32 %full, %full, {WORD_BYTES}, $near;",
        *_wait("THERE", f"%full+{barriers}"),
        "DONE:",
    ]
    return _block(lines)


def end_text(stream: OwnStream, depth: int) -> str:
    """By one thread, behind a barrier: the memory of the stages' barriers is free."""
    first = depth * stream.stage_bytes
    return _block([f"mbarrier.inval.shared::cta.b64 [$near+{first + x * WORD_BYTES}];" for x in range(2 * depth)])


def _fetch(stream: OwnStream, guest: Guest | None) -> list[str]:
    """The tiles of turn ``%next`` into the stage at ``%at``, whose barrier is at ``%full``."""
    a_bytes, _ = stream.tile_bytes
    a_and_b = [
        f"{_EXPECT} %state, [%full], {stream.stage_bytes};",
        f"mul.lo.s32 %along, %next, {stream.k};",
        f"{_FETCH} [%at], [$maps, {{%along, $row}}], [%full];",
        f"add.u32 %here, %at, {a_bytes}; add.u64 %map, $maps, {DESCRIPTOR_BYTES};",
        f"{_FETCH} [%here], [%map, {{%along, $column}}], [%full];",
    ]
    if guest is None:
        return a_and_b
    box_bytes = stream.rows * LINE_BYTES
    boxes = []
    for box in range(guest.in_stage):
        boxes += [
            f"add.s32 %here, %along, {box}; setp.lt.s32 %there, %here, {guest.boxes};",
            f"mad.lo.s32 %here, %here, {guest.box_columns}, $column; add.u32 %into, %at, {box * box_bytes};",
            f"@%there {_FETCH} [%into], [%map, {{%here, $row}}], [%full];",
        ]
    return [
        "setp.ge.s32 %there, %next, $turns; @%there bra LATE;",
        *a_and_b,
        "bra UNDER_WAY;",
        "LATE:",
        f"sub.s32 %along, %next, $turns; mul.lo.s32 %along, %along, {guest.in_stage};",
        f"sub.s32 %here, {guest.boxes}, %along; min.s32 %here, %here, {guest.in_stage};",
        f"mul.lo.s32 %here, %here, {box_bytes};",
        f"{_EXPECT} %state, [%full], %here;",
        f"add.u64 %map, $maps, {2 * DESCRIPTOR_BYTES};",
        *boxes,
        "UNDER_WAY:",
    ]


def _advance(depth: int) -> list[str]:
    """To the next turn."""
    return [
        "add.s32 %turn, %turn, 1; add.u32 %stage, %stage, 1;",
        f"setp.eq.u32 %there, %stage, {depth}; selp.u32 %stage, 0, %stage, %there;",
        "selp.u32 %here, 1, 0, %there; xor.b32 %parity, %parity, %here;",
    ]


def _wait(label: str, place: str) -> list[str]:
    return [
        f"{label}: mbarrier.try_wait.parity.shared::cta.b64 %there, [{place}], %parity;",
        f"@!%there bra {label};",
    ]


def _total(guest: Guest | None) -> str:
    return "mov.u32 %total, $turns;" if guest is None else "add.s32 %total, $turns, $guests;"


def _registers() -> list[str]:
    return [
        ".reg .pred %there, %more, %on, %leads, %fetches;",
        ".reg .b32 %turn, %next, %stage, %parity, %total, %at, %full, %here, %along, %own, %into;",
        ".reg .b64 %state, %map, %a, %b;",
    ]


def _block(lines: list[str]) -> str:
    return "{ " + " ".join(lines) + " }"
