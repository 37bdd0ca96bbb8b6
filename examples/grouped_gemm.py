# SPDX-License-Identifier: Apache-2.0
"""Products of different sizes in one launch, as a mixture of experts has them: each token goes to one of several.

Tokens lie sorted by expert, ``x[offsets[e] : offsets[e + 1]]`` are those of expert e, whose weights are ``w[e]``. The
host does not know how many there are of each when it launches: there is a block for as many tiles as there can be, and
each finds out which one is its own, if any.

    python examples/grouped_gemm.py                         # on a GPU: 8 experts, 5000 tokens
    NUMBA_ENABLE_CUDASIM=1 python examples/grouped_gemm.py  # on Numba's simulator: 3 experts, 50 tokens
"""

import sys
from itertools import pairwise
from time import perf_counter

import numpy as np
from numba import cuda

import nvmath_device as nd
from nvmath_device import simulation

EXPERTS, TOKENS, INPUTS, OUTPUTS = (3, 50, 24, 40) if simulation.is_active() else (8, 5000, 1024, 1536)
TILE, THREADS = ((16, 32, 8), 32) if simulation.is_active() else ((128, 128, 64), 128)
BOUND = 2e-6  # of the norm-wise relative error; float32 rounds at 6e-8

mm = nd.Matmul(
    size=TILE,
    precision=("float16", "float16", "float32"),
    data_type="real",
    arrangement=("row_major", "row_major", "row_major"),
    alignment=nd.MAX_ALIGNMENT,  # a token's inputs and a weight matrix's rows begin at multiples of 16 bytes
    block_size=THREADS,
)
TILE_ROWS = mm.size.m


@nd.jit
def experts(x, w, offsets, y):
    tile, expert = cuda.blockIdx.x, 0
    while expert < w.shape[0]:
        tiles = (offsets[expert + 1] - offsets[expert] + TILE_ROWS - 1) // TILE_ROWS
        if tile < tiles:
            break
        tile -= tiles
        expert += 1
    if expert < w.shape[0]:
        begin, end = offsets[expert], offsets[expert + 1]
        mm.multiply(x[begin:end], w[expert], tile, cuda.blockIdx.y).store(y[begin:end])


def main() -> int:
    rng = np.random.default_rng(13)
    chosen = np.sort(rng.integers(0, EXPERTS - 1, TOKENS))  # the last expert gets none
    offsets = np.searchsorted(chosen, np.arange(EXPERTS + 1)).astype(np.int32)
    x = rng.uniform(-1, 1, (TOKENS, INPUTS)).astype(np.float16)
    w = rng.uniform(-1, 1, (EXPERTS, INPUTS, OUTPUTS)).astype(np.float16)
    on_device = [cuda.to_device(array) for array in (x, w, offsets)]
    y = cuda.to_device(np.full((TOKENS, OUTPUTS), np.nan, np.float32))
    most_tiles = -(-TOKENS // TILE_ROWS) + EXPERTS - 1
    grid = (most_tiles, -(-OUTPUTS // mm.size.n))
    for launch in ("first launch, compilation included", "second launch"):
        start = perf_counter()
        experts[grid, mm.block_dim, 0, mm.get_pipeline_storage_size()](*on_device, y)
        cuda.synchronize()
        print(f"time: {perf_counter() - start:.6f} s, {launch}")

    expected = np.concatenate([
        x[begin:end].astype(np.float64) @ w[e].astype(np.float64)
        for e, (begin, end) in enumerate(pairwise(offsets))
    ])  # fmt: skip
    error = np.linalg.norm(y.copy_to_host() - expected) / np.linalg.norm(expected)
    print(f"{TOKENS} tokens for {EXPERTS} experts, {np.diff(offsets).tolist()} each")
    print(f"error: {error:.1e} (at most {BOUND:.0e})")
    return 0 if error <= BOUND else 1


if __name__ == "__main__":
    sys.exit(main())
