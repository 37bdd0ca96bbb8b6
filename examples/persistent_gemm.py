# SPDX-License-Identifier: Apache-2.0
"""A layer Y = relu(X W + bias) by as many blocks as the device has multiprocessors, each for several tiles of Y.

A block makes its pipeline once. It starts the next tile before the epilog of this one, so that the next operands are on
their way while bias and relu are applied and stored. ``nd.grouped_tile`` orders the tiles so that blocks that run at a
time share rows of X and columns of W, which then come from the L2 cache.

    python examples/persistent_gemm.py                         # on a GPU: 5000 x 4104 x 2048
    NUMBA_ENABLE_CUDASIM=1 python examples/persistent_gemm.py  # on Numba's simulator: 40 x 72 x 24
"""

import sys
from time import perf_counter

import numpy as np
from numba import cuda

import nvmath_device as nd
from nvmath_device import simulation

M, N, K = (40, 72, 24) if simulation.is_active() else (5000, 4104, 2048)
TILE, THREADS = ((16, 32, 8), 32) if simulation.is_active() else ((128, 256, 64), 256)
GROUP = 2 if simulation.is_active() else 16  # rows of tiles that blocks go through together
BOUND = 1e-5  # of the norm-wise relative error: tensor cores cut sums off at float32's last bit, not round them

mm = nd.Matmul(
    size=TILE,
    precision=("float16", "float16", "float32"),
    data_type="real",
    arrangement=("row_major", "col_major", "row_major"),
    alignment=nd.MAX_ALIGNMENT,  # rows of X and columns of W begin at multiples of 16 bytes
    block_size=THREADS,
)


@cuda.jit(device=True)
def relu_bias(value, row, column, bias):
    return max(value + bias[column], np.float32(0))


@nd.jit
def layer(x, w, bias, y, rows, columns):  # of tiles
    pipe = mm.pipeline(x, w)
    tile = cuda.blockIdx.x
    if tile < rows * columns:
        i, j = nd.grouped_tile(tile, rows, columns, GROUP)
        pipe.start(i, j)
    while tile < rows * columns:
        acc = pipe.finish()
        tile += cuda.gridDim.x
        if tile < rows * columns:
            i, j = nd.grouped_tile(tile, rows, columns, GROUP)
            pipe.start(i, j)
        acc.map(relu_bias, bias).store(y)
    pipe.destroy()  # Numba has no destructors


def multiprocessors() -> int:
    return 4 if simulation.is_active() else cuda.get_current_device().MULTIPROCESSOR_COUNT


def main() -> int:
    rng = np.random.default_rng(15)
    x = rng.uniform(-1, 1, (M, K)).astype(np.float16)
    w = np.asfortranarray(rng.uniform(-1, 1, (K, N)).astype(np.float16))
    bias = rng.uniform(-1, 1, N).astype(np.float32)
    on_device = [cuda.to_device(array) for array in (x, w, bias)]
    y = cuda.to_device(np.full((M, N), np.nan, np.float32))
    rows, columns = -(-M // mm.size.m), -(-N // mm.size.n)
    blocks = multiprocessors()
    for launch in ("first launch, compilation included", "second launch"):
        start = perf_counter()
        layer[blocks, mm.block_dim, 0, mm.get_pipeline_storage_size()](*on_device, y, rows, columns)
        cuda.synchronize()
        print(f"time: {perf_counter() - start:.6f} s, {launch}")

    expected = np.maximum(x.astype(np.float64) @ w.astype(np.float64) + bias, 0)
    error = np.linalg.norm(y.copy_to_host() - expected) / np.linalg.norm(expected)
    print(f"{M} x {N} x {K}, {rows} x {columns} tiles of {mm.size.m} x {mm.size.n} by {blocks} blocks")
    print(f"error: {error:.1e} (at most {BOUND:.0e})")
    return 0 if error <= BOUND else 1


if __name__ == "__main__":
    sys.exit(main())
