# SPDX-License-Identifier: Apache-2.0
"""How a product of whole matrices is cut into tiles: :class:`TileChoice`, and whether one is worth compiling. Pure.

What is refused here is refused without a GPU and before anything is generated.
"""

from __future__ import annotations

import math

from nvmath_device.checks import positive_int, positive_ints
from nvmath_device.descriptors import (
    MAX_ALIGNMENT_BYTES,
    NON_TRANSPOSED,
    Alignment,
    BlockExecution,
    Dim3,
    GemmDescriptor,
    GemmSize,
    LeadingDimension,
    accumulator,
    refuse_precision,
)
from nvmath_device.errors import NvmathDeviceError, UnsupportedError
from nvmath_device.frozen import frozen, replace
from nvmath_device.pipelines import missing_for_wgmma, pipeline_plan, wgmma_multiplies
from nvmath_device.targets import ComputeCapability, chip_of

_REGISTERS = 65_536  # of a block, of 32 bits
_MOST_REGISTERS = 255  # of a thread
_OTHER_REGISTERS = 32  # of a thread, besides its part of C: what the fastest tiles known have left
# Without wgmma parts of A and B are in registers, too. In float32 and float64, C in 64 of 255 did not spill; in 64 of
# 128 and in 128 of 255 it did.
_PART_FOR_C = 3 / 8
_WIDE = ("float32", "float64")


@frozen()
class TileChoice:
    """A tile, and how blocks compute with it; ``descriptor.tile(choice)`` is the ``Matmul``.

    Attributes:
        tile: (m, n, k) in elements.
        block_size: threads.
        depth: stages, for ``mm.multiply(a, b, i, j, depth)``, a constant there.
        group: rows of tiles that blocks go through together, for ``nd.grouped_tile(block, rows, columns, group)``.
    """

    tile: GemmSize
    block_size: int
    depth: int
    group: int

    def __post_init__(self) -> None:
        size = GemmSize(*positive_ints(self.tile, 3, argument="tile", meaning="(m, n, k)"))
        object.__setattr__(self, "tile", size)
        for name in ("block_size", "depth", "group"):
            object.__setattr__(self, name, positive_int(getattr(self, name), argument=name))

    def __str__(self) -> str:
        return (
            f"{'x'.join(map(str, self.tile))}, {self.block_size} threads, {self.depth} stages, groups of {self.group}"
        )


def check_problem(descriptor: GemmDescriptor) -> None:
    """Refuse products that ``Matmul.multiply`` does not compute, whatever the tile.

    Raises:
        UnsupportedError: naming what of the descriptor it is.
    """
    a, b, c = descriptor.precision
    reason = refuse_precision(a, b, accumulator(a, b, c))
    if descriptor.data_type != "real":
        reason = f"data_type {descriptor.data_type!r}: multiply takes real matrices"
    elif descriptor.transpose_mode != (NON_TRANSPOSED, NON_TRANSPOSED):
        reason = f"transpose_mode {tuple(descriptor.transpose_mode)}: say it with arrangement instead"
    elif c.is_float and c.itemsize == 1:
        reason = f"precision: C cannot be {c}, of which kernels see the bits only"
    if reason:
        raise UnsupportedError(f"there is no tile for this product: {reason}")


def tile_alignment(descriptor: GemmDescriptor) -> Alignment:
    """What the tiles of a product may be promised: its alignment, as far as its leading dimensions keep it.

    In bytes, and no less than an element of the accumulator for C, which the kernel checks by itself.
    """
    alignment = descriptor.alignment
    assert alignment is not None
    lds = descriptor.leading_dimension
    if not isinstance(lds, LeadingDimension):
        lds = descriptor.tight_leading_dimension
    kept = [
        math.gcd(MAX_ALIGNMENT_BYTES, promised, ld * value.itemsize)
        for promised, ld, value in zip(alignment, lds, descriptor.value_types, strict=True)
    ]
    return Alignment(kept[0], kept[1], max(kept[2], accumulator(*descriptor.precision).itemsize))


def fragment_registers(descriptor: GemmDescriptor, threads: int) -> int:
    """Registers, of 32 bits, that a thread's part of the tile ``descriptor`` of C takes."""
    m, n, _ = descriptor.size
    return -(-m * n * descriptor.value_types[2].itemsize // (4 * threads))


def registers_for_fragment(descriptor: GemmDescriptor, threads: int) -> int:
    """How many a thread has for that, before others are spilled, in a product of libmathdx's."""
    registers = min(_MOST_REGISTERS, _REGISTERS // threads)
    if descriptor.precision.a.name in _WIDE:
        return int(_PART_FOR_C * registers)
    return registers - _OTHER_REGISTERS


def refusal(descriptor: GemmDescriptor, choice: TileChoice, sm: ComputeCapability) -> str | None:
    """Why a choice is not worth compiling for a product on a target, in words; ``None`` where it is.

    Shared memory, a tile that the threads cannot share evenly, a fragment that cannot stay in registers, and a block
    that loses wgmma where the product could have it. Rules: what is let through may spill all the same, which its
    machine code tells.
    """
    try:
        mm = descriptor.tile(choice)
        execution = replace(mm.block_execution, sm=chip_of(sm))
        plan = pipeline_plan(mm.descriptor, execution, depth=choice.depth, sm=chip_of(sm))
    except NvmathDeviceError as error:
        return str(error)
    tile, threads = mm.descriptor, choice.block_size
    needed, room = fragment_registers(tile, threads), registers_for_fragment(tile, threads)
    if plan.own is None and needed > room:
        return (
            f"registers: each of {choice.block_size} threads holds {needed} registers of C, and no more than {room} "
            "leave room for the rest; take more threads or a smaller tile"
        )
    if not could_have_wgmma(mm.descriptor, sm):
        return None
    missing = missing_for_wgmma(mm.descriptor, execution)
    return f"wgmma would be lost; it wants {'; '.join(missing)}" if missing else None


def could_have_wgmma(tile: GemmDescriptor, sm: ComputeCapability) -> bool:
    """Whether another block or another tile alone would make wgmma of it: types, orders and alignment allow it."""
    chip = chip_of(sm)
    if tile.data_type != "real" or not wgmma_multiplies(tile, chip):
        return False
    ideal = tile.replace(size=(64, 8, tile.size.k), leading_dimension=None)
    return not missing_for_wgmma(ideal, BlockExecution(block_dim=Dim3(128), sm=chip))
