# SPDX-License-Identifier: Apache-2.0
"""Which tiles are worth trying for a product on a target: :func:`candidates`. Pure.

Lists by kind of element types, in the order of what was fastest for large products on an H200, or promises to be. k is
given in bytes, so that one list serves all types of a kind.
"""

from __future__ import annotations

import math

from nvmath_device.descriptors import GemmDescriptor, GemmSize, accumulator
from nvmath_device.frozen import replace
from nvmath_device.own_products import own_product
from nvmath_device.pipelines import USUAL_STAGES
from nvmath_device.targets import ComputeCapability, chip_of
from nvmath_device.tile_choices import TileChoice, could_have_wgmma, refusal

GROUPS = (16, 8, 1)

# m, n, bytes along k, threads, stages.
Row = tuple[int, int, int, int, int]

_WGMMA: tuple[Row, ...] = (
    (128, 256, 128, 256, 4),
    (256, 128, 128, 256, 4),
    (256, 192, 128, 512, 4),
    (128, 192, 128, 256, 5),
    (128, 128, 128, 128, 4),
    (128, 128, 128, 256, 6),
    (128, 256, 256, 256, 2),
    (64, 256, 128, 128, 4),
    (64, 128, 128, 128, 4),
    (128, 64, 128, 128, 4),
    (64, 64, 128, 128, 6),
)
_TENSOR_CORES: tuple[Row, ...] = (
    (128, 128, 64, 256, 2),
    (128, 128, 64, 128, 2),
    (128, 256, 64, 256, 2),
    (256, 128, 64, 256, 2),
    (128, 128, 128, 256, 2),
    (128, 64, 64, 128, 2),
    (64, 128, 64, 128, 2),
    (64, 64, 128, 128, 2),
    (64, 64, 64, 128, 2),
    (64, 32, 64, 128, 2),
)
_SINGLES: tuple[Row, ...] = (
    (128, 128, 64, 256, 2),
    (128, 128, 32, 256, 2),
    (128, 128, 128, 256, 2),
    (128, 64, 64, 256, 2),
    (128, 64, 64, 128, 2),
    (64, 128, 64, 128, 2),
    (64, 64, 64, 256, 2),
    (64, 64, 128, 256, 2),
    (64, 64, 64, 128, 2),
    (64, 32, 128, 128, 2),
    (32, 32, 128, 64, 2),
)
_DOUBLES: tuple[Row, ...] = (
    (128, 64, 128, 256, 2),
    (64, 128, 128, 256, 2),
    (64, 64, 128, 128, 2),
    (64, 64, 64, 128, 2),
    (128, 64, 64, 256, 2),
    (64, 64, 128, 256, 2),
    (64, 32, 128, 128, 2),
    (32, 32, 128, 64, 2),
)
# Of products of our own.
_OWN_SINGLES: tuple[Row, ...] = (
    (256, 128, 128, 256, 3),
    (128, 256, 128, 256, 3),
    (256, 128, 64, 256, 3),
    (128, 128, 64, 256, 3),
    (128, 128, 64, 128, 3),
    (128, 64, 64, 128, 3),
    (64, 128, 64, 128, 3),
    (64, 64, 64, 128, 3),
    (64, 64, 128, 128, 3),
    (64, 32, 128, 128, 3),
    (32, 32, 128, 64, 3),
)
_OWN_DOUBLES: tuple[Row, ...] = (
    (128, 128, 128, 256, 4),
    (128, 128, 256, 256, 3),
    (128, 64, 256, 256, 3),
    (64, 128, 256, 256, 3),
    (64, 64, 128, 128, 3),
    (64, 64, 256, 128, 3),
    (64, 32, 128, 128, 3),
    (32, 32, 128, 128, 3),
)

# Multiprocessors that a product should fill, where no device is asked: those of an H200, an A100, and of others.
_MULTIPROCESSORS = {(9, 0): 132, (8, 0): 108}
_OTHER_MULTIPROCESSORS = 80
_MOST = 7 / 8
_MANY_WAVES = 3  # of the largest tile: from there on small ones only read more
_SMALL_PART = 3  # of the largest tile


def candidates(descriptor: GemmDescriptor, sm: ComputeCapability) -> tuple[TileChoice, ...]:
    """Tiles, threads, stages and groups to try for a product on a target, most promising first.

    Each occurs once with each group that makes a difference. A product that fills the device several times over gets
    no small tiles, a smaller one no tile that is more than twice as large as it is in m or n. None of them is refused
    by :func:`nvmath_device.tile_choices.refusal`; there is at least one unless that refuses all.
    """
    rows = _sorted_out(descriptor, _rows(descriptor, sm), sm)
    itemsize = max(v.itemsize for v in descriptor.value_types[:2])
    found = []
    for m, n, bytes_k, threads, depth in rows:
        size = GemmSize(m, n, bytes_k // itemsize)
        for group in _groups(-(-descriptor.size.m // m)):
            choice = TileChoice(size, threads, _fitting(descriptor, size, threads, depth, sm), group)
            if refusal(descriptor, choice, sm) is None:
                found.append(choice)
    return tuple(dict.fromkeys(found))


def by_rule(descriptor: GemmDescriptor, sm: ComputeCapability) -> TileChoice | None:
    """The choice where nothing has been measured: the first candidate that has a tile for most multiprocessors.

    Where none has, the one with the most tiles. ``None`` where all are refused.
    """
    choices = candidates(descriptor, sm)
    wanted = _MOST * _multiprocessors(sm)
    return next(
        (c for c in choices if tiles(descriptor, c.tile) >= wanted),
        max(choices, key=lambda c: tiles(descriptor, c.tile), default=None),
    )


def tiles(descriptor: GemmDescriptor, tile: GemmSize) -> int:
    """How many of them C has."""
    m, n, _ = descriptor.size
    return -(-m // tile.m) * -(-n // tile.n)


def _rows(descriptor: GemmDescriptor, sm: ComputeCapability) -> tuple[Row, ...]:
    names = {t.name for t in descriptor.precision[:2]}
    itemsize = max(t.itemsize for t in descriptor.precision[:2])
    largest = TileChoice(GemmSize(128, 256, _WGMMA[0][2] // itemsize), 256, 1, 1)
    if could_have_wgmma(descriptor.tile(largest).descriptor, sm):
        return _WGMMA
    own = _OWN_DOUBLES if "float64" in names else _OWN_SINGLES
    if _is_own(descriptor, own[-1], sm):
        return own
    if accumulator(*descriptor.precision).itemsize == 8:
        return _DOUBLES
    return _SINGLES if names & {"float32", "int32", "uint32"} else _TENSOR_CORES


def _is_own(descriptor: GemmDescriptor, row: Row, sm: ComputeCapability) -> bool:
    """Whether the product of such tiles is our own, as that of all rows of its list is then."""
    m, n, bytes_k, threads, _ = row
    tile = descriptor.tile(TileChoice(GemmSize(m, n, bytes_k // descriptor.precision.a.itemsize), threads, 1, 1))
    return own_product(tile.descriptor, replace(tile.block_execution, sm=chip_of(sm))) is not None


def _sorted_out(descriptor: GemmDescriptor, rows: tuple[Row, ...], sm: ComputeCapability) -> list[Row]:
    m, n, _ = descriptor.size
    largest = max(row[0] * row[1] for row in rows)
    if m * n >= _MANY_WAVES * _multiprocessors(sm) * largest:
        return [row for row in rows if row[0] * row[1] >= largest // _SMALL_PART]
    smallest = min(rows, key=lambda row: row[0] * row[1])
    fitting = [row for row in rows if row[0] < 2 * _ceiled(m) and row[1] < 2 * _ceiled(n)]
    return fitting or [smallest]


def _ceiled(extent: int) -> int:
    """The next power of two, so that 65 rows may have a tile of 128."""
    return 1 << math.ceil(math.log2(extent))


def _groups(rows: int) -> tuple[int, ...]:
    """Those that make a difference: a group of more rows than there are is one of as many."""
    return tuple(dict.fromkeys(min(group, rows) for group in GROUPS))


def _fitting(descriptor: GemmDescriptor, size: GemmSize, threads: int, depth: int, sm: ComputeCapability) -> int:
    """``depth``, or the stages that fit where it is too many."""
    while depth > USUAL_STAGES // 2 and refusal(descriptor, TileChoice(size, threads, depth, 1), sm) is not None:
        depth -= 1
    return depth


def _multiprocessors(sm: ComputeCapability) -> int:
    return _MULTIPROCESSORS.get(sm[:2], _OTHER_MULTIPROCESSORS)
