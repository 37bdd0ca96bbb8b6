# SPDX-License-Identifier: Apache-2.0
"""Attention in one kernel: O = softmax(Q K^T / sqrt(d)) V, two chained products with all between them on chip.

A block has a tile of queries and walks over the keys; the next tile of keys and values is on its way while it
multiplies. Scores and O stay in the registers of the threads that multiply, where ordinary Python makes weights of the
scores; the weights go to the second product through shared memory. A softmax needs the largest score of a row before it
can add anything up; here that is the largest one so far, and O and the sums are scaled down whenever a larger one
comes. So the scores, queries x keys, never exist as a whole.

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
TILE = (16, 16, 32) if simulation.is_active() else (128, 64, 256, 128)  # queries, keys, threads, their registers
BOUND = 1e-3  # of the norm-wise relative error: weights are rounded to float16 before the second product

HALF_TO_SINGLE = ("float16", "float16", "float32")
LOWEST, ZERO = np.float32(-1e30), np.float32(0)  # no infinity: fastmath has none


@dataclass(frozen=True)
class Tiling:
    """How a block goes through the keys.

    Tensor cores make tiles of 16 x 8, of which a thread has four elements: two neighbours in a row and the two eight
    rows below; four threads share a row. libmathdx gives a thread such tiles from top to bottom, then from left to
    right, and has the warps of a block in two columns where there are four or more.

    Attributes:
        depth: of a head.
        queries, keys: of a block, and of a turn.
        threads: of a block.
        registers: that a thread may have, or ``None``: as many as there are.
    """

    depth: int
    queries: int
    keys: int
    threads: int
    registers: int | None = None

    @property
    def columns(self):
        """Of warps."""
        return 2 if self.threads >= 128 else 1

    @property
    def rows(self):
        """That a thread has elements of."""
        return self.queries // 8 // (self.threads // 32 // self.columns)

    def product(self, m, n, k, order_of_b):
        return nd.Matmul(
            size=(m, n, k),
            precision=HALF_TO_SINGLE,
            data_type="real",
            arrangement=("row_major", order_of_b, "row_major"),
            alignment=nd.MAX_ALIGNMENT,
            block_size=self.threads,
        )

    @property
    def scores_of(self):
        """Q K^T; K is stored like Q, so that K^T is col_major."""
        return self.product(self.queries, self.keys, self.depth, "col_major")

    @property
    def values_of(self):
        """Weights V."""
        return self.product(self.queries, self.depth, self.keys, "row_major")

    @property
    def shared(self):
        keys, values = ((np.float16, mm.suggest_layout_smem_b().cosize) for mm in (self.scores_of, self.values_of))
        return nd.shared_layout(
            q=(np.float16, self.scores_of.suggest_layout_smem_a().cosize),
            k0=keys, v0=values, k1=keys, v1=values,
            weights=(np.float16, self.values_of.suggest_layout_smem_a().cosize),
            partial=(np.float32, (self.columns, self.queries)),
        )  # fmt: skip


def attention_kernel(tiling):
    """Takes Q, K, V and O of (heads, positions, depth), and at least a tile of queries and of keys."""
    scores_of, values_of, shared = tiling.scores_of, tiling.values_of, tiling.shared
    queries, keys, columns = tiling.queries, tiling.keys, tiling.columns
    in_q, in_k = scores_of.suggest_layout_smem_a(), scores_of.suggest_layout_smem_b()
    in_w, in_v = values_of.suggest_layout_smem_a(), values_of.suggest_layout_smem_b()
    warps_below = tiling.threads // 32 // columns
    rows, down = tiling.rows, tiling.rows // 2  # tiles of 16 x 8 that a thread has one below the other,
    across, across_o = keys // 8 // columns, tiling.depth // 8 // columns  # and one beside the other
    scale = np.float32(math.log2(math.e) / math.sqrt(tiling.depth))  # 2^x takes fewer instructions than e^x

    @cuda.jit(device=True)
    def first_of(row, n):
        """Which element of a thread is the left one of the n-th pair in a row."""
        return 4 * (row // 2 + down * n) + 2 * (row % 2)

    # Loops over elements are short ones within each other: those the compiler unrolls, so that all stays in registers.
    @nd.jit(fastmath=True, max_registers=tiling.registers)
    def attention(q, k, v, o):
        q_tile, weights = nd.make_tensor(shared.q(), in_q), nd.make_tensor(shared.weights(), in_w)
        this_k, this_v = nd.make_tensor(shared.k0(), in_k), nd.make_tensor(shared.v0(), in_v)
        next_k, next_v = nd.make_tensor(shared.k1(), in_k), nd.make_tensor(shared.v1(), in_v)
        partial = shared.partial()
        # The last tiles end with the matrix and overlap the ones before, as copies know no edges.
        head, first, last = cuda.blockIdx.y, min(cuda.blockIdx.x * queries, q.shape[1] - queries), k.shape[1] - keys
        k_head, v_head = k[head], v[head]
        is_first_of_four, part = cuda.threadIdx.x % 4 == 0, cuda.threadIdx.x // 32 // warps_below

        nd.copy(nd.make_tensor(q[head, first : first + queries], scores_of.get_layout_gmem_a()), q_tile)
        nd.copy(nd.make_tensor(k_head[:keys].T, scores_of.get_layout_gmem_b()), this_k)
        nd.copy(nd.make_tensor(v_head[:keys], values_of.get_layout_gmem_b()), this_v)
        largest, total, shrink = (
            cuda.local.array(rows, np.float32),
            cuda.local.array(rows, np.float32),
            cuda.local.array(rows, np.float32),
        )
        for row in range(rows):
            largest[row], total[row] = LOWEST, ZERO
        acc = values_of.suggest_accumulator()

        for begin in range(0, k.shape[1], keys):
            nd.copy_wait()
            cuda.syncthreads()  # these keys and values are there, and those of the turn before are no longer read
            if begin < last:
                then = min(begin + keys, last)
                nd.copy(nd.make_tensor(k_head[then : then + keys].T, scores_of.get_layout_gmem_b()), next_k)
                nd.copy(nd.make_tensor(v_head[then : then + keys], values_of.get_layout_gmem_b()), next_v)
            scores = scores_of.suggest_accumulator()
            scores_of.execute(q_tile, this_k, scores)
            if begin > last:  # some keys have been there in the turn before
                for row in range(rows):
                    for n in range(across):
                        for e in range(2):
                            if scores.map_fragment_index(first_of(row, n) + e)[1] < begin - last:
                                scores[first_of(row, n) + e] = LOWEST

            for row in range(rows):
                most = largest[row]
                for n in range(across):
                    for e in range(2):
                        most = max(most, scores[first_of(row, n) + e])
                most = max(most, nd.shuffle_xor(most, 1))
                most = max(most, nd.shuffle_xor(most, 2))
                if is_first_of_four:
                    partial[part, scores.map_fragment_index(first_of(row, 0))[0]] = most
            cuda.syncthreads()
            for row in range(rows):
                place = scores.map_fragment_index(first_of(row, 0))[0]
                most = partial[0, place]
                for column in range(1, columns):
                    most = max(most, partial[column, place])
                shrink[row], largest[row] = math.exp2((largest[row] - most) * scale), most

            for row in range(rows):
                total[row] *= shrink[row]
                for n in range(across):
                    for e in range(2):
                        weight = math.exp2(scores[first_of(row, n) + e] * scale - largest[row] * scale)
                        scores[first_of(row, n) + e] = weight
                        total[row] += weight
            for row in range(rows):
                for n in range(across):
                    place, column = scores.map_fragment_index(first_of(row, n))
                    pair = nd.float32x2(scores[first_of(row, n)], scores[first_of(row, n) + 1])
                    weights[place, column] = pair
            for row in range(rows):
                for n in range(across_o):
                    for e in range(2):
                        acc[first_of(row, n) + e] *= shrink[row]
            cuda.syncthreads()
            values_of.execute(weights, this_v, acc)
            this_k, next_k = next_k, this_k
            this_v, next_v = next_v, this_v

        for row in range(rows):
            total[row] += nd.shuffle_xor(total[row], 1)
            total[row] += nd.shuffle_xor(total[row], 2)
            if is_first_of_four:
                partial[part, acc.map_fragment_index(first_of(row, 0))[0]] = total[row]
        cuda.syncthreads()
        for row in range(rows):
            of_all = ZERO
            for column in range(columns):
                of_all += partial[column, acc.map_fragment_index(first_of(row, 0))[0]]
            for n in range(across_o):
                for e in range(2):
                    acc[first_of(row, n) + e] /= of_all
        acc.partition_and_store(nd.make_tensor(o[head, first : first + queries], values_of.get_layout_gmem_c()))

    return attention


def expected_attention(q, k, v):
    scores = q.astype(np.float64) @ k.astype(np.float64).transpose(0, 2, 1) / math.sqrt(DEPTH)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v.astype(np.float64)


def main() -> int:
    tiling = Tiling(DEPTH, *TILE)
    attention, nbytes = attention_kernel(tiling), tiling.shared.size
    rng = np.random.default_rng(14)
    q, k, v = (rng.normal(size=(HEADS, n, DEPTH)).astype(np.float16) for n in (QUERIES, KEYS, KEYS))
    on_device = [cuda.to_device(array) for array in (q, k, v)]
    o = cuda.to_device(np.full((HEADS, QUERIES, DEPTH), np.nan, np.float32))
    grid = (-(-QUERIES // tiling.queries), HEADS)
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
