# SPDX-License-Identifier: Apache-2.0
"""The kernel of ``examples/attention.py`` for any depth and tile, with float16 results as PyTorch has them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import cuda
from numba.cuda import types

import nvmath_device as nd

HALF_TO_SINGLE = ("float16", "float16", "float32")
LOWEST, ZERO, ONE = np.float32(-1e30), np.float32(0), np.float32(1)  # no infinity: fastmath has none


@dataclass(frozen=True)
class Variant:
    """How a block goes through the keys.

    Attributes:
        depth: of a head.
        tile: queries of a block, and keys of a turn.
        per_row: threads that share a row.
        padding: elements that rows of float16 in shared memory are longer; 8 are 16 bytes, so that neighbouring rows
            lie in other banks and are aligned all the same. With 0, as in the example, nothing is promised.
    """

    depth: int
    tile: int = 64
    per_row: int = 2
    padding: int = 8

    @property
    def name(self) -> str:
        return f"two products, tiles of {self.tile}, {self.threads} threads, rows padded by {self.padding}"

    @property
    def threads(self) -> int:
        return self.per_row * self.tile

    @property
    def alignment(self) -> tuple[int, int, int] | None:
        return (16, 16, 4) if self.padding else None

    @property
    def scores_of(self) -> nd.Matmul:
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
    def values_of(self) -> nd.Matmul:
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
    def layout(self) -> Any:
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

    def kernel(self) -> Any:
        return attention_kernel(self)


def variants(depth: int) -> tuple[Variant, ...]:
    """To be timed: the example's own, padded rows, more threads."""
    return Variant(depth, padding=0), Variant(depth), Variant(depth, per_row=4)


def argument_types() -> tuple[Any, ...]:
    """Of the kernel: Q, K, V and O, all (heads, positions, depth)."""
    return (types.Array(types.float16, 3, "C"),) * 4


def attention_kernel(variant: Variant) -> Any:
    scores_of, values_of, layout = variant.scores_of, variant.values_of, variant.layout
    tile, depth, per_row, threads = variant.tile, variant.depth, variant.per_row, variant.threads
    ld_scores, ld_weights, ld_o = tile + 1, tile + variant.padding, depth + 1
    scale = np.float32(1 / math.sqrt(depth))

    @nd.jit(fastmath=True)
    def attention(q: Any, k: Any, v: Any, o: Any) -> None:
        smem_q, smem_k, smem_v = layout.q(), layout.k(), layout.v()
        scores, weights, smem_o = layout.scores(), layout.weights(), layout.o()
        largest, total, partial = layout.largest(), layout.total(), layout.partial()
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
