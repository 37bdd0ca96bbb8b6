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


@cache
def product_kernel(mm: nd.Matmul, depth: int) -> Any:
    @nd.jit
    def product(a: Any, b: Any, c: Any, rows: Any, columns: Any, group: Any) -> None:
        i, j = nd.grouped_tile(cuda.blockIdx.x, rows, columns, group)
        mm.multiply(a, b, i, j, depth).store(c)

    return product


@cuda.jit(device=True, fastmath=True)
def gelu_residual(value: Any, residual: Any, row: Any, column: Any, bias: Any) -> Any:
    x = value + bias[column]
    half = np.float32(0.5) * x
    return half * math.tanh(x * (np.float32(0.7978845608) + np.float32(0.0356774081) * x * x)) + (half + residual)


@cache
def fused_kernel(mm: nd.Matmul, depth: int) -> Any:
    @nd.jit
    def fused(a: Any, b: Any, c: Any, bias: Any, residual: Any, rows: Any, columns: Any, group: Any) -> None:
        i, j = nd.grouped_tile(cuda.blockIdx.x, rows, columns, group)
        mm.multiply(a, b, i, j, depth, combine=gelu_residual, x=residual, args=(bias,)).store(c)

    return fused


def argument_types(case: Case, *, fused: bool) -> tuple[Any, ...]:
    """Types of the arguments of either kernel, as ``nd.jit`` sees PyTorch's tensors."""
    a, b, c = (
        types.Array(getattr(types, nd.element_type(t).numba), 2, "C" if order == ROW else "F")
        for t, order in zip(case.precision, case.arrangement, strict=True)
    )
    epilog = (types.Array(types.float32, 1, "C"), types.Array(types.float32, 2, "C")) if fused else ()
    return (a, b, c, *epilog, types.int64, types.int64, types.int64)
