# SPDX-License-Identifier: Apache-2.0
"""A product with few tiles and a long K, on all of the device: K in parts, and their sum.

One block for a tile would leave most multiprocessors idle. Here each tile has PARTS blocks; each multiplies slices
``a[:, begin:end]`` and ``b[begin:end]`` into a matrix of its own, and a second kernel adds these up, in the same order
every time.

    python examples/split_k.py                          # on a GPU: 200 x 304 x 100,000
    NUMBA_ENABLE_CUDASIM=1 python examples/split_k.py   # on Numba's simulator: 20 x 40 x 104
"""

import sys
from time import perf_counter

import numpy as np
from numba import cuda

import nvmath_device as nd
from nvmath_device import simulation

M, N, K = (20, 40, 104) if simulation.is_active() else (200, 304, 100_000)
TILE, THREADS = ((16, 32, 8), 32) if simulation.is_active() else ((128, 128, 64), 128)
PARTS = 3 if simulation.is_active() else 22
ADDERS = 32 if simulation.is_active() else 256  # threads of a block that adds up
BOUND = 1e-5  # of the norm-wise relative error: tensor cores cut sums off at float32's last bit, not round them

mm = nd.Matmul(
    size=TILE,
    precision=("float16", "float16", "float32"),
    data_type="real",
    arrangement=("row_major", "row_major", "row_major"),
    alignment=nd.MAX_ALIGNMENT,
    block_size=THREADS,
)


@nd.jit
def multiply_parts(a, b, parts, length):
    part = cuda.blockIdx.z
    begin, end = part * length, min((part + 1) * length, a.shape[1])
    mm.multiply(a[:, begin:end], b[begin:end], cuda.blockIdx.x, cuda.blockIdx.y).store(parts[part])


@nd.jit
def add_up(parts, c):
    i = cuda.grid(1)
    if i < c.size:
        row, column = i // c.shape[1], i % c.shape[1]
        total = parts[0, row, column]
        for part in range(1, parts.shape[0]):
            total += parts[part, row, column]
        c[row, column] = total


def main() -> int:
    rng = np.random.default_rng(12)
    a = rng.uniform(-1, 1, (M, K)).astype(np.float16)
    b = rng.uniform(-1, 1, (K, N)).astype(np.float16)
    device_a, device_b = cuda.to_device(a), cuda.to_device(b)
    parts = cuda.to_device(np.full((PARTS, M, N), np.nan, np.float32))
    c = cuda.to_device(np.full((M, N), np.nan, np.float32))
    turns = -(-K // mm.size.k)
    length = -(-turns // PARTS) * mm.size.k  # whole turns, so that every part begins at an aligned address
    grid = (-(-M // mm.size.m), -(-N // mm.size.n), PARTS)
    for launch in ("first launches, compilation included", "second launches"):
        start = perf_counter()
        multiply_parts[grid, mm.block_dim, 0, mm.get_pipeline_storage_size()](device_a, device_b, parts, length)
        add_up[-(-M * N // ADDERS), ADDERS](parts, c)
        cuda.synchronize()
        print(f"time: {perf_counter() - start:.6f} s, {launch}")

    expected = a.astype(np.float64) @ b.astype(np.float64)
    error = np.linalg.norm(c.copy_to_host() - expected) / np.linalg.norm(expected)
    print(f"{M} x {N} x {K}, {grid[0]} x {grid[1]} tiles in {PARTS} parts each")
    print(f"error: {error:.1e} (at most {BOUND:.0e})")
    return 0 if error <= BOUND else 1


if __name__ == "__main__":
    sys.exit(main())
