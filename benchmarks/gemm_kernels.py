# SPDX-License-Identifier: Apache-2.0
"""The kernels of ``benchmarks/gemm.py``: one call for a whole product, and the same with an epilog."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from gemm_cases import ROW, Case
from numba import cuda
from numba.cuda import types

import nvmath_device as nd

WARP = 32  # threads


@cache
def product_kernel(mm: nd.Matmul, depth: int) -> Any:
    @nd.jit
    def product(a: Any, b: Any, c: Any, rows: Any, columns: Any, group: Any) -> None:
        i, j = nd.grouped_tile(cuda.blockIdx.x, rows, columns, group)
        mm.multiply(a, b, i, j, depth).store(c)

    return product


@cuda.jit(device=True, fastmath=True)
def gelu_residual(value: Any, residual: Any, row: Any, column: Any, bias: Any, first: Any) -> Any:
    """``bias`` is the tile's, whose first column is ``first``."""
    x = value + bias[np.uint32(column - first)]
    half = np.float32(0.5) * x
    return half * math.tanh(x * (np.float32(0.7978845608) + np.float32(0.0356774081) * x * x)) + (half + residual)


@cache
def fused_kernel(mm: nd.Matmul, depth: int) -> Any:
    width, threads = mm.size.n, mm.block_dim.size

    @nd.jit
    def fused(a: Any, b: Any, c: Any, bias: Any, residual: Any, rows: Any, columns: Any, group: Any) -> None:
        i, j = nd.grouped_tile(cuda.blockIdx.x, rows, columns, group)
        first = j * width
        own_bias = cuda.shared.array(width, types.float32)
        if cuda.threadIdx.x >= WARP:  # the first warp starts the product meanwhile
            for x in range(cuda.threadIdx.x - WARP, min(width, bias.size - first), threads - WARP):
                own_bias[x] = bias[first + x]
        acc = mm.multiply(a, b, i, j, depth, combine=gelu_residual, x=residual, args=(own_bias, first))
        acc.store(c)

    return fused


def argument_types(case: Case, *, fused: bool) -> tuple[Any, ...]:
    """Types of the arguments of either kernel, as ``nd.jit`` sees PyTorch's tensors."""
    a, b, c = (
        types.Array(getattr(types, nd.element_type(t).numba), 2, "C" if order == ROW else "F")
        for t, order in zip(case.precision, case.arrangement, strict=True)
    )
    epilog = (types.Array(types.float32, 1, "C"), types.Array(types.float32, 2, "C")) if fused else ()
    return (a, b, c, *epilog, types.int64, types.int64, types.int64)
