# SPDX-License-Identifier: Apache-2.0
"""A product of whole matrices on opaque tensors: C = A B with tiles in the layouts that libmathdx suggests.

Each block computes a tile of C in registers. Tiles of A and B go through two buffers in shared memory: while one pair
is multiplied, the next is on its way, so that the loop waits for memory as little as it can. Copies know no edges, so
M, N and K are multiples of the tile's. ``mm.multiply`` does all of this in one call, edges included; a loop of one's
own is for what comes between the products.

    python examples/tensor_gemm.py                         # on a GPU: 4096 x 4096 x 4096
    NUMBA_ENABLE_CUDASIM=1 python examples/tensor_gemm.py  # on Numba's simulator: 32 x 16 x 24
"""

import sys
from time import perf_counter

import numpy as np
from numba import cuda

import nvmath_device as nd
from nvmath_device import simulation

M, N, K, TILE = (32, 16, 24, (16, 16, 8)) if simulation.is_active() else (4096, 4096, 4096, (128, 128, 32))
THREADS = 32 if simulation.is_active() else 256
BOUND = 1e-5  # of the norm-wise relative error: float16 products are exact and summed in float32

mm = nd.Matmul(
    size=TILE,
    precision=("float16", "float16", "float32"),
    data_type="real",
    arrangement=("row_major", "row_major", "row_major"),
    block_size=THREADS,
    alignment=nd.MAX_ALIGNMENT,  # copies move 16 bytes at a time
)
tile_m, tile_n, tile_k = mm.size
in_a, in_b = mm.suggest_layout_smem_a(), mm.suggest_layout_smem_b()
shared = nd.shared_layout(
    a0=(np.float16, in_a.cosize), b0=(np.float16, in_b.cosize),
    a1=(np.float16, in_a.cosize), b1=(np.float16, in_b.cosize),
)  # fmt: skip


@nd.jit
def product(a, b, c):
    this_a, this_b = nd.make_tensor(shared.a0(), in_a), nd.make_tensor(shared.b0(), in_b)
    next_a, next_b = nd.make_tensor(shared.a1(), in_a), nd.make_tensor(shared.b1(), in_b)
    rows = a[cuda.blockIdx.x * tile_m : (cuda.blockIdx.x + 1) * tile_m]
    columns = b[:, cuda.blockIdx.y * tile_n : (cuda.blockIdx.y + 1) * tile_n]

    nd.copy(nd.make_tensor(rows[:, :tile_k], mm.get_layout_gmem_a()), this_a)
    nd.copy(nd.make_tensor(columns[:tile_k], mm.get_layout_gmem_b()), this_b)
    acc = mm.suggest_accumulator()
    for k in range(tile_k, a.shape[1] + tile_k, tile_k):
        nd.copy_wait()
        cuda.syncthreads()  # these tiles are there, and those of the turn before are no longer read
        if k < a.shape[1]:
            nd.copy(nd.make_tensor(rows[:, k : k + tile_k], mm.get_layout_gmem_a()), next_a)
            nd.copy(nd.make_tensor(columns[k : k + tile_k], mm.get_layout_gmem_b()), next_b)
        mm.execute(this_a, this_b, acc)
        this_a, next_a = next_a, this_a
        this_b, next_b = next_b, this_b

    tile = c[cuda.blockIdx.x * tile_m :, cuda.blockIdx.y * tile_n :]
    acc.partition_and_store(nd.make_tensor(tile, mm.get_layout_gmem_c()))


def main() -> int:
    rng = np.random.default_rng(21)
    a, b = (rng.uniform(-1, 1, shape).astype(np.float16) for shape in ((M, K), (K, N)))
    on_device = [cuda.to_device(x) for x in (a, b)]
    c = cuda.to_device(np.full((M, N), np.nan, np.float32))
    for launch in ("first launch, compilation included", "second launch"):
        start = perf_counter()
        product[(M // tile_m, N // tile_n), THREADS, 0, shared.size](*on_device, c)
        cuda.synchronize()
        print(f"time: {perf_counter() - start:.6f} s, {launch}")

    expected = a.astype(np.float64) @ b.astype(np.float64)
    error = np.linalg.norm(c.copy_to_host() - expected) / np.linalg.norm(expected)
    print(f"{M} x {N} x {K} in tiles of {tile_m} x {tile_n} x {tile_k}, {shared.size:,} bytes of shared memory a block")
    print(f"error: {error:.1e} (at most {BOUND:.0e})")
    return 0 if error <= BOUND else 1


if __name__ == "__main__":
    sys.exit(main())
