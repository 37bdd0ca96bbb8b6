# SPDX-License-Identifier: Apache-2.0
"""The smallest matrix product: one block of threads computes C = A B, 8 x 8, float32.

python examples/smallest_gemm.py                            # on a GPU
NUMBA_ENABLE_CUDASIM=1 python examples/smallest_gemm.py     # on Numba's simulator, same size
"""

import sys
from time import perf_counter

import numpy as np
from numba import cuda

import nvmath_device as nd

BOUND = 1e-6  # of the norm-wise relative error; float32 rounds at 6e-8

mm = nd.Matmul(
    size=(8, 8, 8),
    precision="float32",
    data_type="real",
    arrangement=("row_major", "row_major", "row_major"),
    block_size=32,
)


@cuda.jit
def product(a, b, c):
    smem_a = nd.shared.array(mm.a_size, mm.a_value_type)
    smem_b = nd.shared.array(mm.b_size, mm.b_value_type)
    smem_c = nd.shared.array(mm.c_size, mm.c_value_type)
    mm.load_a(a, smem_a)
    mm.load_b(b, smem_b)
    cuda.syncthreads()
    mm.execute(1.0, smem_a, smem_b, 0.0, smem_c)
    cuda.syncthreads()
    mm.store_c(smem_c, c)


def main() -> int:
    rng = np.random.default_rng(1)
    a, b = rng.uniform(-1, 1, (2, 8, 8)).astype(np.float32)
    c = cuda.to_device(np.full((8, 8), np.nan, np.float32))
    start = perf_counter()
    product[1, mm.block_dim](cuda.to_device(a), cuda.to_device(b), c)
    cuda.synchronize()
    print(f"time: {perf_counter() - start:.3f} s, compilation included")

    expected = a.astype(np.float64) @ b.astype(np.float64)
    error = np.linalg.norm(c.copy_to_host() - expected) / np.linalg.norm(expected)
    print(f"error: {error:.1e} (at most {BOUND:.0e})")
    return 0 if error <= BOUND else 1


if __name__ == "__main__":
    sys.exit(main())
