# SPDX-License-Identifier: Apache-2.0
"""One product at both levels: relu(A B + bias) by cuBLASLt, and by a kernel made from the same descriptor.

``host.Matmul`` plans the whole product. Its ``descriptor`` says what is multiplied and how it lies, and
``descriptor.tile(...)`` is the GEMM of one tile of it for a kernel: the same element types and orders, and sums
in float32. The kernel is that of tiled_gemm.py with the epilogue added to the tile before it is stored.

    python examples/shared_descriptor.py                            # on a GPU: 1000 x 700 x 500
    NUMBA_ENABLE_CUDASIM=1 python examples/shared_descriptor.py     # on Numba's simulator: 100 x 90 x 70

Without a GPU ``host.Matmul`` computes on the CPU.
"""

import sys
from time import perf_counter

import numpy as np
from numba import cuda

import nvmath_device as nd
from nvmath_device import host, simulation

M, N, K = (100, 90, 70) if simulation.is_active() else (1000, 700, 500)
TILE_M, TILE_N, TILE_K = 64, 64, 32
THREADS = 64 if simulation.is_active() else 128
BOUND = 2e-6  # of the norm-wise relative error, against the product of the inputs as they are in float16
ZERO = np.float32(0)


def layer_kernel(mm):
    @cuda.jit
    def layer(a, b, bias, d):
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
        for element in range(cuda.threadIdx.x, TILE_M * TILE_N, THREADS):
            column = element % TILE_N
            if j + column < bias.size:  # C is row-major, as the descriptor says
                smem_c[element] = max(smem_c[element] + bias[j + column], ZERO)
        cuda.syncthreads()
        mm.store_c(smem_c, d[i : i + TILE_M, j : j + TILE_N])

    return layer


def by_tiles(mm, a, b, bias):
    layer = layer_kernel(mm)
    device_a, device_b, device_bias = cuda.to_device(a), cuda.to_device(b), cuda.to_device(bias)
    d = cuda.to_device(np.full((M, N), np.nan, np.float32))
    grid = (-(-N // TILE_N), -(-M // TILE_M))
    for launch in ("first launch, compilation included", "second launch"):
        start = perf_counter()
        layer[grid, mm.block_dim](device_a, device_b, device_bias, d)
        cuda.synchronize()
        print(f"time: {perf_counter() - start:.6f} s, {launch}")
    return d.copy_to_host()


def main() -> int:
    rng = np.random.default_rng(5)
    a = rng.uniform(-1, 1, (M, K)).astype(np.float16)
    b = rng.uniform(-1, 1, (K, N)).astype(np.float16)
    bias = rng.uniform(-1, 1, N).astype(np.float32)

    options = {"result_type": host.CudaDataType.CUDA_R_32F}
    with host.Matmul(a, b, options=options) as product:
        epilog_inputs = {"bias": bias.reshape(1, N)}  # one number a column
        product.plan(epilog=host.MatmulEpilog.RELU_BIAS, epilog_inputs=epilog_inputs)
        descriptor = product.descriptor
        print(descriptor)
        start = perf_counter()
        whole = product.execute()
        print(f"time: {perf_counter() - start:.6f} s, the host level, arrays in CPU memory")

    mm = descriptor.tile((TILE_M, TILE_N, TILE_K), block_size=THREADS, alignment=nd.MAX_ALIGNMENT)
    print(mm)
    tiled = by_tiles(mm, a, b, bias)

    expected = np.maximum(a.astype(np.float64) @ b.astype(np.float64) + bias, 0)
    right = True
    for name, result in (("host level", whole), ("device level", tiled)):
        error = np.linalg.norm(result - expected) / np.linalg.norm(expected)
        print(f"{name}, error: {error:.1e} (at most {BOUND:.0e})")
        right = right and error <= BOUND
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
