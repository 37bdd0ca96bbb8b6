# SPDX-License-Identifier: Apache-2.0
"""Attention in one kernel: O = softmax(Q K^T / sqrt(d)) V, two chained products with all between them on chip.

A block has a tile of queries and walks over the keys. The scores of a tile of keys stay in shared memory, ordinary
Python makes weights of them, and the second product adds the weighted values to O. A softmax needs the largest score of
a row before it can add anything up; here that is the largest one so far, and O and the sums are scaled down whenever a
larger one comes. So the scores, queries x keys, never exist as a whole.

    python examples/attention.py                         # on a GPU: 32 heads, 1000 queries, 1500 keys
    NUMBA_ENABLE_CUDASIM=1 python examples/attention.py  # on Numba's simulator: 1 head, 20 queries, 40 keys
"""

import math
import sys
from time import perf_counter

import numpy as np
from numba import cuda

import nvmath_device as nd
from nvmath_device import simulation

HEADS, QUERIES, KEYS, DEPTH = (1, 20, 40, 16) if simulation.is_active() else (32, 1000, 1500, 64)
TILE = 16 if simulation.is_active() else 64  # queries, and keys, of a turn
PER_ROW = 2  # threads that share a row
THREADS = PER_ROW * TILE
LD = TILE + 1  # so that neighbouring rows lie in different banks of shared memory
BOUND = 1e-3  # of the norm-wise relative error: weights are rounded to float16 before the second product

HALF_TO_SINGLE = ("float16", "float16", "float32")
scores_of = nd.Matmul(  # Q K^T; K is stored like Q, so that K^T is col_major
    size=(TILE, TILE, DEPTH),
    precision=HALF_TO_SINGLE,
    data_type="real",
    arrangement=("row_major", "col_major", "row_major"),
    leading_dimension=(DEPTH, DEPTH, LD),
    block_size=THREADS,
)
values_of = nd.Matmul(  # weights V
    size=(TILE, DEPTH, TILE),
    precision=HALF_TO_SINGLE,
    data_type="real",
    arrangement=("row_major", "row_major", "row_major"),
    leading_dimension=(TILE, DEPTH, DEPTH + 1),
    block_size=THREADS,
)
shared = nd.shared_layout(
    q=(np.float16, scores_of.a_size),
    k=(np.float16, scores_of.b_size),
    v=(np.float16, values_of.b_size),
    scores=(np.float32, scores_of.c_size),
    weights=(np.float16, values_of.a_size),
    o=(np.float32, values_of.c_size),
    largest=(np.float32, TILE),
    total=(np.float32, TILE),
    partial=(np.float32, (PER_ROW, TILE)),
)
LOWEST, ZERO = np.float32(-np.inf), np.float32(0)
SCALE = np.float32(1 / math.sqrt(DEPTH))


@nd.jit
def attention(q, k, v, o):
    smem_q, smem_k, smem_v = shared.q(), shared.k(), shared.v()
    scores, weights, smem_o = shared.scores(), shared.weights(), shared.o()
    largest, total, partial = shared.largest(), shared.total(), shared.partial()
    head, first = cuda.blockIdx.y, cuda.blockIdx.x * TILE
    row, part = cuda.threadIdx.x % TILE, cuda.threadIdx.x // TILE

    scores_of.load_a(q[head, first : first + TILE], smem_q)
    for column in range(part, DEPTH, PER_ROW):
        smem_o[row * (DEPTH + 1) + column] = ZERO
    if part == 0:
        largest[row], total[row] = LOWEST, ZERO

    for begin in range(0, k.shape[1], TILE):
        scores_of.load_b(k[head, begin : begin + TILE].T, smem_k)
        values_of.load_b(v[head, begin : begin + TILE], smem_v)
        cuda.syncthreads()
        scores_of.execute(SCALE, smem_q, smem_k, ZERO, scores)
        cuda.syncthreads()

        count = min(TILE, k.shape[1] - begin)
        mine = LOWEST
        for column in range(part, count, PER_ROW):
            mine = max(mine, scores[row * LD + column])
        partial[part, row] = mine
        cuda.syncthreads()
        before = largest[row]
        now = before
        for other in range(PER_ROW):
            now = max(now, partial[other, row])
        shrink = math.exp(before - now)
        cuda.syncthreads()

        mine = ZERO
        for column in range(part, TILE, PER_ROW):
            weight = math.exp(scores[row * LD + column] - now) if column < count else ZERO
            weights[row * TILE + column] = weight
            mine += weight
        for column in range(part, DEPTH, PER_ROW):
            smem_o[row * (DEPTH + 1) + column] *= shrink
        partial[part, row] = mine
        cuda.syncthreads()
        if part == 0:
            largest[row], total[row] = now, total[row] * shrink
            for other in range(PER_ROW):
                total[row] += partial[other, row]
        values_of.execute(np.float32(1), weights, smem_v, np.float32(1), smem_o)
        cuda.syncthreads()

    for column in range(part, DEPTH, PER_ROW):
        smem_o[row * (DEPTH + 1) + column] /= total[row]
    cuda.syncthreads()
    values_of.store_c(smem_o, o[head, first : first + TILE])


def expected_attention(q, k, v):
    scores = q.astype(np.float64) @ k.astype(np.float64).transpose(0, 2, 1) / math.sqrt(DEPTH)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v.astype(np.float64)


def main() -> int:
    rng = np.random.default_rng(14)
    q, k, v = (rng.normal(size=(HEADS, n, DEPTH)).astype(np.float16) for n in (QUERIES, KEYS, KEYS))
    on_device = [cuda.to_device(array) for array in (q, k, v)]
    o = cuda.to_device(np.full((HEADS, QUERIES, DEPTH), np.nan, np.float32))
    grid = (-(-QUERIES // TILE), HEADS)
    for launch in ("first launch, compilation included", "second launch"):
        start = perf_counter()
        attention[grid, THREADS, 0, shared.size](*on_device, o)
        cuda.synchronize()
        print(f"time: {perf_counter() - start:.6f} s, {launch}")

    expected = expected_attention(q, k, v)
    error = np.linalg.norm(o.copy_to_host() - expected) / np.linalg.norm(expected)
    print(f"heads: {HEADS}, {QUERIES} queries, {KEYS} keys of {DEPTH}, {shared.size:,} bytes of shared memory a block")
    print(f"error: {error:.1e} (at most {BOUND:.0e})")
    return 0 if error <= BOUND else 1


if __name__ == "__main__":
    sys.exit(main())
