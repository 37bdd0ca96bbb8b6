# SPDX-License-Identifier: Apache-2.0
"""Many small complex matrix products, C[i] = A[i] B[i]: each block takes several, one after the other.

Loading the next pair does not wait for the last product to be stored: only ``c`` is read then.

    python examples/batched_gemm.py                             # on a GPU: 20000 products
    NUMBA_ENABLE_CUDASIM=1 python examples/batched_gemm.py      # on Numba's simulator: 5 of them
"""

import sys
from time import perf_counter

import numpy as np
from numba import cuda

import nvmath_device as nd
from nvmath_device import simulation

BATCH, BLOCKS = (5, 2) if simulation.is_active() else (20_000, 1_056)
M, N, K = 12, 8, 16
BOUND = 1e-6  # of the norm-wise relative error; float32 rounds at 6e-8

mm = nd.Matmul(
    size=(M, N, K),
    precision="float32",
    data_type="complex",
    arrangement=("row_major", "row_major", "row_major"),
    block_size=32,
)


@cuda.jit
def products(a, b, c):
    smem_a = nd.shared.array(mm.a_size, mm.a_value_type)
    smem_b = nd.shared.array(mm.b_size, mm.b_value_type)
    smem_c = nd.shared.array(mm.c_size, mm.c_value_type)
    for i in range(cuda.blockIdx.x, a.shape[0], cuda.gridDim.x):
        mm.load_a(a[i], smem_a)
        mm.load_b(b[i], smem_b)
        cuda.syncthreads()
        mm.execute(1.0, smem_a, smem_b, 0.0, smem_c)
        cuda.syncthreads()
        mm.store_c(smem_c, c[i])


def main() -> int:
    rng = np.random.default_rng(2)
    a = rng.uniform(-1, 1, (BATCH, M, K, 2)).astype(np.float32).view(np.complex64)[..., 0]
    b = rng.uniform(-1, 1, (BATCH, K, N, 2)).astype(np.float32).view(np.complex64)[..., 0]
    device_a, device_b = cuda.to_device(a), cuda.to_device(b)
    c = cuda.to_device(np.full((BATCH, M, N), np.nan, np.complex64))
    for launch in ("first launch, compilation included", "second launch"):
        start = perf_counter()
        products[BLOCKS, mm.block_dim](device_a, device_b, c)
        cuda.synchronize()
        print(f"time: {perf_counter() - start:.6f} s, {launch}")

    expected = a.astype(np.complex128) @ b.astype(np.complex128)
    difference = np.linalg.norm(c.copy_to_host() - expected, axis=(1, 2))
    error = np.max(difference / np.linalg.norm(expected, axis=(1, 2)))  # of the worst product
    print(f"{BATCH} products of {M} x {K} and {K} x {N}, {BLOCKS} blocks")
    print(f"error: {error:.1e} (at most {BOUND:.0e})")
    return 0 if error <= BOUND else 1


if __name__ == "__main__":
    sys.exit(main())
