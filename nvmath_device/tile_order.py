# SPDX-License-Identifier: Apache-2.0
"""In which order blocks go through the tiles of a matrix: :func:`nvmath_device.grouped_tile`."""

from __future__ import annotations

import operator
from typing import Any

from nvmath_device.checks import positive_int
from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError
from nvmath_device.kernel_calls import KernelFunction

MOST_TILES = 2**31 - 1  # reckoned with in 32 bits
FORM = ("block", "rows", "columns", "group")


class GroupedTile(KernelFunction):
    """The function ``nvmath_device.grouped_tile``, which the host has, too."""

    name = "grouped_tile"

    def __call__(self, block: Any, rows: Any, columns: Any, group: Any) -> tuple[int, int]:
        """Which tile, ``(i, j)``, a block computes, so that blocks that run at a time share rows and columns of tiles.

        Blocks go through ``group`` rows of tiles together, column by column: what they read of A and B is then in the
        L2 cache more often than where they go along whole rows. On the host and in kernels.

        Args:
            block: 0 to ``rows * columns - 1``, in a kernel ``cuda.blockIdx.x``.
            rows, columns: of the matrix, in tiles. Their product is less than 2^31.
            group: rows of tiles that blocks go through together; 1 is row by row, ``rows`` or more column by column.

        Guarantees that each tile belongs to exactly one block, for every ``rows``, ``columns`` and ``group``; the last
        group has the rows that are left. Arithmetic is of 32 bits; in a kernel nothing is checked, and ``i`` and ``j``
        are int32.

        Raises, on the host and on the simulator:
            InvalidArgumentError, ArgumentTypeError: naming the argument, its value and what is allowed.
        """
        rows, columns, group = (
            positive_int(value, argument=f"grouped_tile: {name}")
            for name, value in zip(FORM[1:], (rows, columns, group), strict=True)
        )
        tiles = rows * columns
        if tiles > MOST_TILES:
            raise InvalidArgumentError(
                f"grouped_tile: rows and columns: {rows} x {columns} are {tiles} tiles; there may be {MOST_TILES}"
            )
        block = _index(block)
        if not 0 <= block < tiles:
            raise InvalidArgumentError(f"grouped_tile: block: {block} is not one of 0 to {tiles - 1}")
        group = min(group, rows)
        first = block // (group * columns) * group
        within = block % (group * columns)
        height = min(rows - first, group)
        return first + within % height, within // height


def _index(value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise ArgumentTypeError(
            f"grouped_tile: block: {value!r} is a {type(value).__name__}; give an integer"
        ) from None


grouped_tile = GroupedTile()
