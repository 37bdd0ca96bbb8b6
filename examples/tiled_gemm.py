# SPDX-License-Identifier: Apache-2.0
"""A matrix product of any size: a block for each tile of C, a loop over K, edges that no tile size divides.

Slices that reach over the edge are cut off by Python's own rule; ``load_a`` and ``load_b`` fill the rest of
the tile with zeros and ``store_c`` leaves it out. The sum over K stays in shared memory: ``beta`` is 0 for
the first step and 1 after it. A and B may be float16 or bfloat16; C is float32.

    python examples/tiled_gemm.py [float16|bfloat16|float32]    # on a GPU: 1000 x 500 x 1500
    NUMBA_ENABLE_CUDASIM=1 python examples/tiled_gemm.py        # on Numba's simulator: 40 x 50 x 70
"""

import sys
from time import perf_counter

import ml_dtypes
import numpy as np
from numba import cuda

import nvmath_device as nd
from nvmath_device import simulation

M, N, K = (40, 50, 70) if simulation.is_active() else (1000, 500, 1500)
TILE_M, TILE_N, TILE_K = (32, 32, 32) if simulation.is_active() else (64, 64, 32)
DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32}
BOUND = 2e-6  # of the norm-wise relative error, against the product of the inputs as they are after rounding


def product_kernel(mm):
    @cuda.jit
    def product(a, b, c):
        smem_a = nd.shared.array(mm.a_size, mm.a_value_type)
        smem_b = nd.shared.array(mm.b_size, mm.b_value_type)
        smem_c = nd.shared.array(mm.c_size, mm.c_value_type)
        i, j = cuda.blockIdx.y * TILE_M, cuda.blockIdx.x * TILE_N
        for k in range(0, a.shape[1], TILE_K):
            mm.load_a(a[i : i + TILE_M, k : k + TILE_K], smem_a)
            mm.load_b(b[k : k + TILE_K, j : j + TILE_N], smem_b)
            cuda.syncthreads()
            mm.execute(1.0, smem_a, smem_b, 0.0 if k == 0 else 1.0, smem_c)
            cuda.syncthreads()
        mm.store_c(smem_c, c[i : i + TILE_M, j : j + TILE_N])

    return product


def on_device(array):
    """A copy on the device. ``cuda.to_device`` knows no bfloat16, so its bits are copied and viewed as that.

    On the simulator it takes any array, and its device arrays ignore ``view``.
    """
    if array.dtype != ml_dtypes.bfloat16 or simulation.is_active():
        return cuda.to_device(array)
    return cuda.to_device(array.view(np.uint16)).view(array.dtype)


def main(precision: str = "float16") -> int:
    mm = nd.Matmul(
        size=(TILE_M, TILE_N, TILE_K),
        precision=(precision, precision, "float32"),
        data_type="real",
        arrangement=("row_major", "row_major", "row_major"),
        alignment=nd.MAX_ALIGNMENT,  # nd.shared.array keeps this promise
        block_size=32 if simulation.is_active() else 128,
    )
    product = product_kernel(mm)
    rng = np.random.default_rng(3)
    a = rng.uniform(-1, 1, (M, K)).astype(DTYPES[precision])
    b = rng.uniform(-1, 1, (K, N)).astype(DTYPES[precision])
    device_a, device_b = on_device(a), on_device(b)
    c = cuda.to_device(np.full((M, N), np.nan, np.float32))
    grid = (-(-N // TILE_N), -(-M // TILE_M))
    for launch in ("first launch, compilation included", "second launch"):
        start = perf_counter()
        product[grid, mm.block_dim](device_a, device_b, c)
        cuda.synchronize()
        print(f"time: {perf_counter() - start:.6f} s, {launch}")

    expected = a.astype(np.float64) @ b.astype(np.float64)
    error = np.linalg.norm(c.copy_to_host() - expected) / np.linalg.norm(expected)
    print(f"{M} x {N} x {K} in {precision}, {grid[1]} x {grid[0]} tiles of {TILE_M} x {TILE_N}")
    print(f"error: {error:.1e} (at most {BOUND:.0e})")
    return 0 if error <= BOUND else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
