# SPDX-License-Identifier: Apache-2.0
"""A layer of a neural network in one kernel: H = gelu(X W + bias), and the sum of every row of H.

The product stays in shared memory, where ordinary Python adds the bias, applies GELU (in its tanh form) and
sums up the rows; only H and the sums go to global memory. A block has 32 rows of X, all columns of W, and
four threads for each row.

    python examples/fused_gemm_epilog.py                        # on a GPU: 10000 rows
    NUMBA_ENABLE_CUDASIM=1 python examples/fused_gemm_epilog.py # on Numba's simulator: 40 rows
"""

import math
import sys
from time import perf_counter

import numpy as np
from numba import cuda

import nvmath_device as nd
from nvmath_device import simulation

ROWS = 40 if simulation.is_active() else 10_000
TILE, COLUMNS, DEPTH = 32, 48, 64  # a block: 32 rows of X (DEPTH columns) times W (DEPTH x COLUMNS)
PER_ROW = 4  # threads that share a row
LD_C = COLUMNS + 1  # so that neighbouring rows lie in different banks of shared memory
BOUND = 2e-6  # of the norm-wise relative error; float32 rounds at 6e-8

mm = nd.Matmul(
    size=(TILE, COLUMNS, DEPTH),
    precision="float32",
    data_type="real",
    arrangement=("row_major", "row_major", "row_major"),
    leading_dimension=(DEPTH, COLUMNS, LD_C),
    block_size=TILE * PER_ROW,
)

# float32 constants: with Python's own numbers Numba would compute in float64.
HALF, ONE = np.float32(0.5), np.float32(1)
SCALE, CUBIC = np.float32(math.sqrt(2 / math.pi)), np.float32(0.044715)


@cuda.jit
def layer(x, w, bias, h, sums):
    smem_x = nd.shared.array(mm.a_size, mm.a_value_type)
    smem_w = nd.shared.array(mm.b_size, mm.b_value_type)
    smem_h = nd.shared.array(mm.c_size, mm.c_value_type)
    partial = nd.shared.array((PER_ROW, TILE), np.float32)
    first = cuda.blockIdx.x * TILE
    mm.load_a(x[first : first + TILE], smem_x)
    mm.load_b(w, smem_w)
    cuda.syncthreads()
    mm.execute(1.0, smem_x, smem_w, 0.0, smem_h)
    cuda.syncthreads()

    row, part = cuda.threadIdx.x % TILE, cuda.threadIdx.x // TILE
    total = np.float32(0)
    for column in range(part, COLUMNS, PER_ROW):
        z = smem_h[row * LD_C + column] + bias[column]
        z = HALF * z * (ONE + math.tanh(SCALE * (z + CUBIC * z * z * z)))
        smem_h[row * LD_C + column] = z
        total += z
    partial[part, row] = total
    cuda.syncthreads()

    mm.store_c(smem_h, h[first : first + TILE])
    if part == 0 and first + row < sums.size:
        total = np.float32(0)
        for i in range(PER_ROW):
            total += partial[i, row]
        sums[first + row] = total


def main() -> int:
    rng = np.random.default_rng(4)
    x = rng.standard_normal((ROWS, DEPTH)).astype(np.float32)
    w = (rng.standard_normal((DEPTH, COLUMNS)) / math.sqrt(DEPTH)).astype(np.float32)
    bias = rng.standard_normal(COLUMNS).astype(np.float32)
    device_x, device_w, device_bias = cuda.to_device(x), cuda.to_device(w), cuda.to_device(bias)
    h = cuda.to_device(np.full((ROWS, COLUMNS), np.nan, np.float32))
    sums = cuda.to_device(np.full(ROWS, np.nan, np.float32))
    for launch in ("first launch, compilation included", "second launch"):
        start = perf_counter()
        layer[-(-ROWS // TILE), mm.block_dim](device_x, device_w, device_bias, h, sums)
        cuda.synchronize()
        print(f"time: {perf_counter() - start:.6f} s, {launch}")

    z = x.astype(np.float64) @ w.astype(np.float64) + bias
    expected = 0.5 * z * (1 + np.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))
    results = {"activations": (h, expected), "row sums": (sums, expected.sum(axis=1))}
    right = True
    for name, (got, wanted) in results.items():
        error = np.linalg.norm(got.copy_to_host() - wanted) / np.linalg.norm(wanted)
        print(f"{name}, error: {error:.1e} (at most {BOUND:.0e})")
        right = right and error <= BOUND
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
