# SPDX-License-Identifier: Apache-2.0
"""Products by the warpgroup instructions of sm_90a that are nvmath_device's own, of tiles that TMA fetches. Pure.

Matrices whose lines go along K, A by rows and B by columns: 128 bytes of each line are a tile's, in the order that TMA
swizzles them into and the tensor cores read them from. A warpgroup has 64 rows of C, all its columns.
"""

from __future__ import annotations

from nvmath_device.descriptors import COL_MAJOR, ROW_MAJOR, BlockExecution, GemmDescriptor
from nvmath_device.frozen import frozen

WGMMA_CHIP = "a"  # of sm_90
WARPGROUP, ROWS = 128, 64  # threads of a warpgroup, and rows of C of an instruction
WARP, WARP_ROWS, LANES = 32, 16, 4  # rows of C of a warp; lanes that have one of them, two columns each of eight
LINE_BYTES = 128  # of a tile of A or B: what TMA swizzles
STEP_BYTES = 32  # of a line, that an instruction multiplies

GUEST_ITEMSIZES = (2, 4, 8)  # of elements of a matrix whose tile comes with those of A and B
_COLUMNS, _MOST_COLUMNS = 8, 256  # of an instruction: multiples of, and at most
_MOST_BOX = 256  # lines of a tile that TMA fetches at once
# What PTX calls an element type, the number that tensormap.replace has for one of its size, and what follows the
# operands of an instruction: which of them are transposed, for the types that can be.
_NAMES = {
    "float16": ("f16", 6, ", 0, 0"),
    "bfloat16": ("bf16", 10, ", 0, 0"),
    "tfloat32": ("tf32", 7, ""),
    "float8_e4m3fn": ("e4m3", 0, ""),
    "float8_e5m2": ("e5m2", 0, ""),
}


@frozen()
class OwnStream:
    """A loop over K of our own with nothing left open.

    A thread's element ``e`` is in the row ``lane // 4 + 8 * (e // 2 % 2)`` of its warp's 16 and in the column
    ``8 * (e // 4) + 2 * (lane % 4) + e % 2``.

    Attributes:
        instruction: the PTX instruction's name.
        ending: what it has behind its operands and their signs.
        tensor_elements: the numbers of A's and B's element types in a descriptor of a tensor.
        rows, columns: of C, of the block and of each thread's warpgroup; ``rows`` are lines of A's tile.
        k: elements of a line of a tile.
    """

    instruction: str
    ending: str
    tensor_elements: tuple[int, int]
    rows: int
    columns: int
    k: int

    @property
    def tile_bytes(self) -> tuple[int, int]:
        """Of A and of B, which follow each other in a stage."""
        return self.rows * LINE_BYTES, self.columns * LINE_BYTES

    @property
    def stage_bytes(self) -> int:
        return sum(self.tile_bytes)


@frozen()
class Guest:
    """A tile of another matrix of C's shape, which follows those of A and B through the stages: boxes of 128 bytes of
    each row, as many in a stage as it has room for.

    Attributes:
        itemsize: bytes of an element.
        boxes: how many the tile has.
        in_stage: how many a stage has.
    """

    itemsize: int
    boxes: int
    in_stage: int

    @property
    def turns(self) -> int:
        """Stages that it fills."""
        return -(-self.boxes // self.in_stage)

    @property
    def box_columns(self) -> int:
        return LINE_BYTES // self.itemsize


def guest_of(stream: OwnStream, depth: int, itemsize: int) -> Guest | None:
    """How a tile of elements of so many bytes goes through the stages, if it does."""
    if itemsize not in GUEST_ITEMSIZES:
        return None
    boxes = -(-stream.columns * itemsize // LINE_BYTES)
    guest = Guest(itemsize, boxes, stream.stage_bytes // (stream.rows * LINE_BYTES))
    return guest if guest.turns <= depth else None


def own_stream(descriptor: GemmDescriptor, execution: BlockExecution) -> OwnStream | None:
    """Our loop for a descriptor that wgmma multiplies and TMA fetches; ``None`` where it is left to libmathdx."""
    (m, n, k), precision = descriptor.size, descriptor.precision
    kinds, itemsizes = [t.name for t in precision[:2]], {t.itemsize for t in descriptor.value_types[:2]}
    threads = execution.block_dim.size  # type: ignore[union-attr]
    fits = (
        all(kind in _NAMES for kind in kinds)
        and (kinds[0] == kinds[1] or itemsizes == {1})
        and precision.c.name == "float32"
        and tuple(descriptor.arrangement) == (ROW_MAJOR, COL_MAJOR, ROW_MAJOR)
        and {k * itemsize for itemsize in itemsizes} == {LINE_BYTES}
        and m == threads // WARPGROUP * ROWS <= _MOST_BOX
        and n % _COLUMNS == 0
        and n <= _MOST_COLUMNS
    )
    if not fits:
        return None
    (a, of_a, ending), (b, of_b, _) = (_NAMES[kind] for kind in kinds)
    instruction = f"wgmma.mma_async.sync.aligned.m{ROWS}n{n}k{STEP_BYTES * k // LINE_BYTES}.f32.{a}.{b}"
    return OwnStream(instruction, ending, (of_a, of_b), m, n, k)
