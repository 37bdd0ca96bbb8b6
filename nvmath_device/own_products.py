# SPDX-License-Identifier: Apache-2.0
"""Products of two tiles in shared memory that are nvmath_device's own: who holds what of C, how tiles are stored. Pure.

Float32 is multiplied number by number, float64 by a warp's tensor-core instruction of sm_90. Each thread holds a few
rows times a few columns of C; what it multiplies comes from shared memory 16 bytes at a time.

Tiles of float64 are stored in the order in which their matrices are declared. Those of float32 have lines across K, so
that a thread reads neighbours of C's rows, or columns, at once; matrices with lines along K are turned over while they
are copied. Lines are so far apart that what a warp reads at once lies in different banks.
"""

from __future__ import annotations

from collections.abc import Iterator

from nvmath_device.descriptors import COL_MAJOR, ROW_MAJOR, BlockExecution, GemmDescriptor, MatrixLayout
from nvmath_device.frozen import frozen
from nvmath_device.targets import ComputeCapability

FMA, MMA = "fma", "mma"
MMA_LINES, MMA_K = 16, 8  # of A and B each that are read together; the instruction is m16n8k8
VECTOR_BYTES = 16
TURNED_K = 8  # neighbours along K that neighbouring threads copy where a tile is turned over

_SINCE = {"float32": ComputeCapability(8, 0), "float64": ComputeCapability(9, 0)}  # cp.async; m16n8k8 of float64
_WARP = 32
_LANES = {FMA: (4, 8), MMA: (4,)}  # of a warp along the rows of C; along the columns as many as that leaves
_FMA_COUNTS = (4, 8, 12, 16)  # rows, and columns, of a thread
_FEWEST = 16  # elements of C that a thread holds; with fewer it would mostly read
_REGISTERS, _MOST_REGISTERS = 65_536, 255  # of a block and of a thread, of 32 bits; half of them may hold C


@frozen()
class Spread:
    """How an axis of a tile of C is shared out.

    Attributes:
        warps, lanes: of the block and of a warp, side by side.
        group: neighbouring places that a thread has; behind them come those of the other lanes.
        count: places that a thread has, of its warp's ``lanes * count``.
    """

    warps: int
    lanes: int
    group: int
    count: int

    @property
    def warp_extent(self) -> int:
        return self.lanes * self.count


@frozen()
class OwnProduct:
    """A product of our own with nothing left open.

    A thread's element ``e`` is in its row ``e // columns.count`` and in its column ``e % columns.count``. Warps go
    along the rows of C first, and so do the lanes of each.

    Attributes:
        unit: ``"fma"`` or ``"mma"``.
        rows, columns: of C, shared out.
        a, b: the tiles as they are stored in a stage.
    """

    unit: str
    rows: Spread
    columns: Spread
    a: MatrixLayout
    b: MatrixLayout


def own_product(descriptor: GemmDescriptor, execution: BlockExecution) -> OwnProduct | None:
    """Our product of a descriptor's tiles; ``None`` where it is left to libmathdx.

    For real float32 and float64 alone, on devices that have the instructions, for tiles that a block of whole warps
    shares evenly, C in no more than half of its registers.
    """
    (m, n, k), sm, (name, *others) = descriptor.size, execution.sm, {t.name for t in descriptor.precision}
    assert sm is not None
    if others or name not in _SINCE or sm[:2] < _SINCE[name][:2] or descriptor.data_type != "real":
        return None
    unit, itemsize = FMA if name == "float32" else MMA, descriptor.value_types[0].itemsize
    threads = execution.block_dim.size  # type: ignore[union-attr]
    a, b = (
        _stored(unit, *extents, order, across, itemsize)
        for extents, order, across in zip(
            ((m, k), (k, n)), descriptor.arrangement[:2], (COL_MAJOR, ROW_MAJOR), strict=True
        )
    )
    if not all(
        _is_copied_evenly(x, order, itemsize, threads) for x, order in zip((a, b), descriptor.arrangement, strict=False)
    ):
        return None
    if unit == MMA and k % MMA_K:
        return None
    best = min(_spreads(m, n, unit, threads, itemsize), key=lambda found: found[0], default=None)
    return None if best is None else OwnProduct(unit, *best[1:], a, b)


def has_vectors(layout: MatrixLayout, itemsize: int, threads: int) -> bool:
    """Whether threads share a tile's pieces of 16 bytes evenly, each with as many, all in one place of their lines."""
    inner, outer = inner_outer(layout)
    if inner * itemsize % VECTOR_BYTES or layout.ld * itemsize % VECTOR_BYTES:
        return False
    per_line = inner * itemsize // VECTOR_BYTES
    return threads % per_line == 0 and per_line * outer % threads == 0


def inner_outer(layout: MatrixLayout) -> tuple[int, int]:
    """Elements of a line, and lines."""
    return (layout.cols, layout.rows) if layout.order == ROW_MAJOR else (layout.rows, layout.cols)


def _is_copied_evenly(layout: MatrixLayout, order: str, itemsize: int, threads: int) -> bool:
    """Whether each thread copies as much of a tile, from a matrix of an order."""
    if layout.order == order:
        return has_vectors(layout, itemsize, threads)
    inner, outer = inner_outer(layout)
    return outer % TURNED_K == 0 and threads % TURNED_K == 0 and inner % (threads // TURNED_K) == 0


def _spreads(
    m: int, n: int, unit: str, threads: int, itemsize: int
) -> Iterator[tuple[tuple[int, ...], Spread, Spread]]:
    """All ways to share C out, each with its cost: what is read for it, and how far a warp's part is from square.

    Of two columns of operands are kept, of rows only one: those come one after the other.
    """
    warps = 0 if threads % _WARP else threads // _WARP
    groups = (4, 4) if unit == FMA else (4, 2)
    room = (min(_REGISTERS // threads, _MOST_REGISTERS) + 1) // 2 * 4 // itemsize
    for down in (w for w in range(1, warps + 1) if warps % w == 0):
        for lanes in _LANES[unit]:
            across, beside = warps // down, _WARP // lanes
            rows = Spread(down, lanes, groups[0], m // (down * lanes))
            columns = Spread(across, beside, groups[1], n // (across * beside))
            extents, counts = (rows.warp_extent, columns.warp_extent), (rows.count, columns.count)
            if (extents[0] * down, extents[1] * across) != (m, n) or not _FEWEST <= counts[0] * counts[1] <= room:
                continue
            if unit == FMA and all(count in _FMA_COUNTS for count in counts):
                yield (sum(counts), 0, max(extents) - min(extents), down), rows, columns
            elif unit == MMA and not any(extent % MMA_LINES for extent in extents):
                yield (sum(extents), extents[1], max(extents) - min(extents), down), rows, columns


def _stored(unit: str, rows: int, cols: int, order: str, across: str, itemsize: int) -> MatrixLayout:
    """A tile in a stage. ``across``: the order whose lines go across K.

    Eight lanes of a warp read at once, 16 bytes each, from different banks, which are 128 bytes together. Number by
    number they read one line; but to turn a tile over four bytes are written to each of eight neighbouring lines, and
    to three more places of each. The tensor cores' operands are 32 bytes from each of four lines, of which every second
    one is left out, and along K 64 bytes from each of two, likewise.
    """
    if unit == FMA:
        part, is_padded, stored = VECTOR_BYTES, order != across, across
    else:
        part, is_padded, stored = VECTOR_BYTES if order == across else 2 * VECTOR_BYTES, True, order
    tight = MatrixLayout(rows, cols, stored, cols if stored == ROW_MAJOR else rows)
    parts = -(-tight.ld * itemsize // part)
    return MatrixLayout(rows, cols, stored, (parts + 1 - parts % 2) * part // itemsize) if is_padded else tight
