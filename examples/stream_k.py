# SPDX-License-Identifier: Apache-2.0
"""A product with few tiles, on all of the device: every block does the same share of all turns of all loops over K.

Tiles and blocks rarely divide evenly: 12 tiles leave most multiprocessors idle, and with K in parts for each, as in
``split_k.py``, some blocks still have more to do than others. Here the turns of all tiles form one line, which is cut
into equal pieces, wherever that is. Where a piece is all of a tile, its block stores it to C. Where it is a part of
one, the block stores it to a place of its own; a second kernel adds these up, in the same order every time.

    python examples/stream_k.py                          # on a GPU: 384 x 500 x 20,000
    NUMBA_ENABLE_CUDASIM=1 python examples/stream_k.py   # on Numba's simulator: 40 x 40 x 104 by 5 blocks
"""

import sys
from time import perf_counter

import numpy as np
from numba import cuda

import nvmath_device as nd
from nvmath_device import simulation

M, N, K = (40, 40, 104) if simulation.is_active() else (384, 500, 20_000)
TILE, THREADS = ((16, 32, 8), 32) if simulation.is_active() else ((128, 128, 64), 128)
ADDERS = 32 if simulation.is_active() else 256  # threads of a block that adds up
BOUND = 1e-5  # of the norm-wise relative error: tensor cores cut sums off at float32's last bit, not round them

mm = nd.Matmul(
    size=TILE,
    precision=("float16", "float16", "float32"),
    data_type="real",
    arrangement=("row_major", "col_major", "row_major"),
    alignment=nd.MAX_ALIGNMENT,  # also of slices that begin at a multiple of a tile's k
    block_size=THREADS,
)
TILE_M, TILE_N, TILE_K = mm.size
PARTS = 2  # unfinished tiles of a block: one that it begins in the middle of, and one that it does not finish


@nd.jit
def multiply_pieces(a, b, c, parts, columns, turns, total):
    """``turns`` are those of one tile, ``total`` those of all; ``columns`` are those of tiles."""
    block, blocks = cuda.blockIdx.x, cuda.gridDim.x
    begin, end = block * total // blocks, (block + 1) * total // blocks
    while begin < end:
        tile, first = begin // turns, begin % turns
        last = min(first + end - begin, turns)
        i, j = tile // columns * TILE_M, tile % columns * TILE_N
        k0, k1 = first * TILE_K, min(last * TILE_K, a.shape[1])
        acc = mm.multiply(a[i : i + TILE_M, k0:k1], b[k0:k1, j : j + TILE_N], 0, 0)
        if last - first == turns:
            acc.store(c[i : i + TILE_M, j : j + TILE_N])
        elif first > 0:
            acc.store(parts[block, 0])
        else:
            acc.store(parts[block, 1])
        begin += last - first


@nd.jit
def add_up(parts, c, columns, turns, total, blocks):
    """A block for each tile: of those that several blocks have parts of, the sum, in the order of the blocks."""
    tile = cuda.blockIdx.x
    begin, end = tile * turns, (tile + 1) * turns
    first = ((begin + 1) * blocks - 1) // total  # the last block whose piece begins at this turn or before it
    last = (end * blocks - 1) // total
    if first < last:
        i, j = tile // columns * TILE_M, tile % columns * TILE_N
        for element in range(cuda.threadIdx.x, TILE_M * TILE_N, ADDERS):
            row, column = element // TILE_N, element % TILE_N
            if i + row < c.shape[0] and j + column < c.shape[1]:
                sum_of_parts = np.float32(0)
                for block in range(first, last + 1):
                    is_from_its_middle = block * total // blocks > begin
                    sum_of_parts += parts[block, 0 if is_from_its_middle else 1, row, column]
                c[i + row, j + column] = sum_of_parts


def multiprocessors() -> int:
    return 5 if simulation.is_active() else cuda.get_current_device().MULTIPROCESSOR_COUNT


def main() -> int:
    rng = np.random.default_rng(16)
    a = rng.uniform(-1, 1, (M, K)).astype(np.float16)
    b = np.asfortranarray(rng.uniform(-1, 1, (K, N)).astype(np.float16))
    device_a, device_b = cuda.to_device(a), cuda.to_device(b)
    rows, columns, turns = -(-M // TILE_M), -(-N // TILE_N), -(-K // TILE_K)
    total = rows * columns * turns
    blocks = min(multiprocessors(), total)
    parts = cuda.to_device(np.full((blocks, PARTS, TILE_M, TILE_N), np.nan, np.float32))
    c = cuda.to_device(np.full((M, N), np.nan, np.float32))
    shared = mm.get_pipeline_storage_size()
    for launch in ("first launches, compilation included", "second launches"):
        start = perf_counter()
        multiply_pieces[blocks, mm.block_dim, 0, shared](device_a, device_b, c, parts, columns, turns, total)
        add_up[rows * columns, ADDERS](parts, c, columns, turns, total, blocks)
        cuda.synchronize()
        print(f"time: {perf_counter() - start:.6f} s, {launch}")

    expected = a.astype(np.float64) @ b.astype(np.float64)
    error = np.linalg.norm(c.copy_to_host() - expected) / np.linalg.norm(expected)
    print(
        f"{M} x {N} x {K}: {rows} x {columns} tiles of {turns} turns, {total / blocks:.1f} for each of {blocks} blocks"
    )
    print(f"error: {error:.1e} (at most {BOUND:.0e})")
    return 0 if error <= BOUND else 1


if __name__ == "__main__":
    sys.exit(main())
