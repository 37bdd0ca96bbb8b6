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
from dataclasses import dataclass
from time import perf_counter

import numpy as np
from numba import cuda

import nvmath_device as nd
from nvmath_device import simulation

HEADS, QUERIES, KEYS, DEPTH = (1, 20, 40, 16) if simulation.is_active() else (32, 1000, 1500, 64)
TILE = 16 if simulation.is_active() else 64
BOUND = 1e-3  # of the norm-wise relative error: weights are rounded to float16 before the second product

HALF_TO_SINGLE = ("float16", "float16", "float32")
LOWEST, ZERO, ONE = np.float32(-1e30), np.float32(0), np.float32(1)  # no infinity: fastmath has none


@dataclass(frozen=True)
class Tiling:
    """How a block goes through the keys.

    Attributes:
        depth: of a head.
        tile: queries of a block, and keys of a turn.
        per_row: threads that share a row.
        padding: elements that rows of float16 in shared memory are longer. 8 are 16 bytes: neighbouring rows lie in
            different banks and are aligned all the same, which takes half the time. With 0 nothing is promised.
    """

    depth: int
    tile: int
    per_row: int = 2
    padding: int = 8

    @property
    def threads(self):
        return self.per_row * self.tile

    @property
    def alignment(self):
        return (16, 16, 4) if self.padding else None

    @property
    def scores_of(self):
        """Q K^T; K is stored like Q, so that K^T is col_major."""
        row = self.depth + self.padding
        return nd.Matmul(
            size=(self.tile, self.tile, self.depth),
            precision=HALF_TO_SINGLE,
            data_type="real",
            arrangement=("row_major", "col_major", "row_major"),
            leading_dimension=(row, row, self.tile + 1),
            alignment=self.alignment,
            block_size=self.threads,
        )

    @property
    def values_of(self):
        """Weights V."""
        return nd.Matmul(
            size=(self.tile, self.depth, self.tile),
            precision=HALF_TO_SINGLE,
            data_type="real",
            arrangement=("row_major", "row_major", "row_major"),
            leading_dimension=(self.tile + self.padding, self.depth + self.padding, self.depth + 1),
            alignment=self.alignment,
            block_size=self.threads,
        )

    @property
    def shared(self):
        return nd.shared_layout(
            q=(np.float16, self.scores_of.a_size),
            k=(np.float16, self.scores_of.b_size),
            v=(np.float16, self.values_of.b_size),
            scores=(np.float32, self.scores_of.c_size),
            weights=(np.float16, self.values_of.a_size),
            o=(np.float32, self.values_of.c_size),
            largest=(np.float32, self.tile),
            total=(np.float32, self.tile),
            partial=(np.float32, (self.per_row, self.tile)),
        )


def attention_kernel(tiling):
    scores_of, values_of, shared = tiling.scores_of, tiling.values_of, tiling.shared
    tile, depth, per_row, threads = tiling.tile, tiling.depth, tiling.per_row, tiling.threads
    ld_scores, ld_weights, ld_o = tile + 1, tile + tiling.padding, depth + 1
    scale = np.float32(1 / math.sqrt(depth))

    @nd.jit(fastmath=True)
    def attention(q, k, v, o):
        smem_q, smem_k, smem_v = shared.q(), shared.k(), shared.v()
        scores, weights, smem_o = shared.scores(), shared.weights(), shared.o()
        largest, total, partial = shared.largest(), shared.total(), shared.partial()
        head, first = cuda.blockIdx.y, cuda.blockIdx.x * tile
        row, part = cuda.threadIdx.x % tile, cuda.threadIdx.x // tile

        scores_of.load_a(q[head, first : first + tile], smem_q)
        for column in range(part, depth, per_row):
            smem_o[row * ld_o + column] = ZERO
        if part == 0:
            largest[row], total[row] = LOWEST, ZERO

        for begin in range(0, k.shape[1], tile):
            scores_of.load_b(k[head, begin : begin + tile].T, smem_k)
            values_of.load_b(v[head, begin : begin + tile], smem_v)
            cuda.syncthreads()
            scores_of.execute(scale, smem_q, smem_k, ZERO, scores)
            cuda.syncthreads()

            count = min(tile, k.shape[1] - begin)
            mine = LOWEST
            for column in range(part, count, per_row):
                mine = max(mine, scores[row * ld_scores + column])
            partial[part, row] = mine
            cuda.syncthreads()
            before = largest[row]
            now = before
            for other in range(per_row):
                now = max(now, partial[other, row])
            shrink = math.exp(before - now)
            cuda.syncthreads()

            mine = ZERO
            for column in range(part, tile, per_row):
                weight = math.exp(scores[row * ld_scores + column] - now) if column < count else ZERO
                weights[row * ld_weights + column] = weight
                mine += weight
            for column in range(part, depth, per_row):
                smem_o[row * ld_o + column] *= shrink
            partial[part, row] = mine
            cuda.syncthreads()
            if part == 0:
                largest[row], total[row] = now, total[row] * shrink
                for other in range(per_row):
                    total[row] += partial[other, row]
            values_of.execute(ONE, weights, smem_v, ONE, smem_o)
            cuda.syncthreads()

        for element in range(cuda.threadIdx.x, tile * depth, threads):
            place, column = element // depth, element % depth
            if first + place < o.shape[1]:
                o[head, first + place, column] = smem_o[place * ld_o + column] / total[place]

    return attention


def expected_attention(q, k, v):
    scores = q.astype(np.float64) @ k.astype(np.float64).transpose(0, 2, 1) / math.sqrt(DEPTH)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v.astype(np.float64)


def main() -> int:
    tiling = Tiling(DEPTH, TILE)
    attention, nbytes = attention_kernel(tiling), tiling.shared.size
    rng = np.random.default_rng(14)
    q, k, v = (rng.normal(size=(HEADS, n, DEPTH)).astype(np.float16) for n in (QUERIES, KEYS, KEYS))
    on_device = [cuda.to_device(array) for array in (q, k, v)]
    o = cuda.to_device(np.full((HEADS, QUERIES, DEPTH), np.nan, np.float32))
    grid = (-(-QUERIES // TILE), HEADS)
    for launch in ("first launch, compilation included", "second launch"):
        start = perf_counter()
        attention[grid, tiling.threads, 0, nbytes](*on_device, o)
        cuda.synchronize()
        print(f"time: {perf_counter() - start:.6f} s, {launch}")

    expected = expected_attention(q, k, v)
    error = np.linalg.norm(o.copy_to_host() - expected) / np.linalg.norm(expected)
    print(f"heads: {HEADS}, {QUERIES} queries, {KEYS} keys of {DEPTH}, {nbytes:,} bytes of shared memory a block")
    print(f"error: {error:.1e} (at most {BOUND:.0e})")
    return 0 if error <= BOUND else 1


if __name__ == "__main__":
    sys.exit(main())
