# SPDX-License-Identifier: Apache-2.0
"""A residual layer of any size in one kernel: Y = X + gelu(X W + bias), one call for the product.

``multiply`` does the whole loop over K and has the block's tile of X W in registers; of each element, of X's at the
same place and of the bias ``combine`` makes what ``store`` writes. On Hopper tiles come by TMA, X's as well, and go to
the tensor cores by wgmma: ``mm.path()`` says so, or what is missing for it.

    python examples/linear_layer.py                         # on a GPU: 5000 rows, 2056 columns
    NUMBA_ENABLE_CUDASIM=1 python examples/linear_layer.py  # on Numba's simulator: 20 rows, 40 columns
"""

import math
import sys
from time import perf_counter

import numpy as np
from numba import cuda

import nvmath_device as nd
from nvmath_device import simulation

ROWS, COLUMNS = (20, 40) if simulation.is_active() else (5000, 2056)
TILE, THREADS = ((16, 32, 8), 32) if simulation.is_active() else ((128, 256, 64), 256)
BOUND = 2e-6  # of the norm-wise relative error; float32 rounds at 6e-8

mm = nd.Matmul(
    size=TILE,
    precision=("float16", "float16", "float32"),
    data_type="real",
    arrangement=("row_major", "col_major", "row_major"),
    alignment=nd.MAX_ALIGNMENT,  # rows of X and columns of W begin at multiples of 16 bytes
    block_size=THREADS,
)

# float32 constants: with Python's own numbers Numba would compute in float64.
HALF, ONE = np.float32(0.5), np.float32(1)
SCALE, CUBIC = np.float32(math.sqrt(2 / math.pi)), np.float32(0.044715)


@cuda.jit(device=True)
def gelu_residual(value, x, row, column, bias):
    z = value + bias[column]
    return np.float32(x) + HALF * z * (ONE + math.tanh(SCALE * (z + CUBIC * z * z * z)))


@nd.jit
def layer(x, w, bias, y):
    acc = mm.multiply(x, w, cuda.blockIdx.x, cuda.blockIdx.y, combine=gelu_residual, x=x, args=(bias,))
    acc.store(y)


def main() -> int:
    rng = np.random.default_rng(11)
    x = rng.uniform(-1, 1, (ROWS, COLUMNS)).astype(np.float16)
    w = np.asfortranarray(rng.uniform(-1, 1, (COLUMNS, COLUMNS)).astype(np.float16) / np.float16(math.sqrt(COLUMNS)))
    bias = rng.uniform(-1, 1, COLUMNS).astype(np.float32)
    on_device = [cuda.to_device(array) for array in (x, w, bias)]
    y = cuda.to_device(np.full((ROWS, COLUMNS), np.nan, np.float32))
    grid = (-(-ROWS // mm.size.m), -(-COLUMNS // mm.size.n))
    for launch in ("first launch, compilation included", "second launch"):
        start = perf_counter()
        layer[grid, mm.block_dim, 0, mm.get_pipeline_storage_size()](*on_device, y)
        cuda.synchronize()
        print(f"time: {perf_counter() - start:.6f} s, {launch}")

    z = x.astype(np.float64) @ w.astype(np.float64) + bias
    expected = x + 0.5 * z * (1 + np.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))
    error = np.linalg.norm(y.copy_to_host() - expected) / np.linalg.norm(expected)
    print(f"{ROWS} x {COLUMNS}, {grid[0]} x {grid[1]} tiles of {mm.size.m} x {mm.size.n}: {mm.path(sm=90)}")
    print(f"error: {error:.1e} (at most {BOUND:.0e})")
    return 0 if error <= BOUND else 1


if __name__ == "__main__":
    sys.exit(main())
