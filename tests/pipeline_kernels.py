# SPDX-License-Identifier: Apache-2.0
"""Kernels on a ``DevicePipeline``, for the simulator, for GPUs and for machine code."""

from __future__ import annotations

import numpy as np
from numba import cuda

import nvmath_device as nd


def one_tile(mm, *, jit=nd.jit):
    """C = A B, one tile a block; C has whole tiles."""
    m, n, _ = mm.size

    def kernel(pipeline, c):
        smem = nd.shared.array(0, np.uint8, 1024)
        tile = pipeline.get_tile(smem, cuda.blockIdx.x, cuda.blockIdx.y)
        acc = mm.suggest_accumulator()
        tile.execute(acc)
        acc.partition_and_store(nd.make_tensor(c[cuda.blockIdx.x * m :, cuda.blockIdx.y * n :], mm.get_layout_gmem_c()))
        tile.destroy()

    return jit(kernel)


def rows_of_tiles(mm, *, jit=nd.jit):
    """C = alpha A B + beta C by a block for each row of ``columns`` tiles, element by element where C ends."""
    m, n, _ = mm.size

    def kernel(pipeline, c, alpha, beta, columns):
        smem = nd.shared.array(0, np.uint8, 1024)
        row = cuda.blockIdx.x
        tile = pipeline.get_tile(smem, row, 0)
        for j in range(columns):
            acc = tile.suggest_accumulator()
            tile.execute(acc)
            if j + 1 < columns:
                pipeline.reset_tile(tile, row, j + 1)
            if (row + 1) * m <= c.shape[0] and (j + 1) * n <= c.shape[1]:
                gmem = nd.make_tensor(c[row * m :, j * n :], mm.get_layout_gmem_c())
                results = acc.make_partition_and_copy(gmem)
                nd.axpby(alpha, acc.get_results(), beta, results)
                acc.partition_and_copy(results, gmem)
            else:
                for e in range(acc.size):
                    x, y = acc.map_fragment_index(e)
                    x, y = x + row * m, y + j * n
                    if x < c.shape[0] and y < c.shape[1]:
                        c[x, y] = alpha * acc[e] + beta * c[x, y]
        tile.destroy()

    return jit(kernel)


def twice(mm, *, jit=nd.jit):
    """C = 2 A B: the same tile twice into one accumulator."""

    def kernel(pipeline, c):
        tile = pipeline.get_tile(nd.shared.array(0, np.uint8, 1024), 0, 0)
        acc = mm.suggest_accumulator()
        tile.execute(acc)
        pipeline.reset_tile(tile, 0, 0)
        tile.execute(acc)
        acc.partition_and_store(nd.make_tensor(c, mm.get_layout_gmem_c()))
        tile.destroy()

    return jit(kernel)
