# SPDX-License-Identifier: Apache-2.0
"""Which elements of a tile a simulated thread holds."""

from __future__ import annotations

import numpy as np

from nvmath_device.numba_backend.simulator_arguments import Array
from nvmath_device.tensor_plans import TensorPlan

WARP = 32


def share(plan: TensorPlan, linear: int) -> Array:
    """Places in the tile, row by row, of the elements of a thread, in its order of them.

    As libmathdx shares out a tile of tensor cores, where the tile and the block allow it: in pieces of 16 x 8, of which
    a thread has two pairs of neighbours, eight rows apart; warps in two columns where there are four or more. Otherwise
    every so many elements.
    """
    m, n, _ = plan.descriptor.size
    threads = plan.block_dim.size
    warps, rest = divmod(threads, WARP)
    beside = 2 if warps >= 4 else 1
    below = warps // beside
    if rest or warps % beside or m % (16 * below) or n % (8 * beside):
        return np.arange(linear, m * n, threads)
    warp, lane = divmod(linear, WARP)
    tile, e = np.divmod(np.arange(m * n // threads), 4)
    across, down = np.divmod(tile, m // (16 * below))
    rows = 16 * (down * below + warp % below) + 8 * (e // 2) + lane // 4
    columns = 8 * (across * beside + warp // below) + 2 * (lane % 4) + e % 2
    places: Array = rows * n + columns
    return places
