# SPDX-License-Identifier: Apache-2.0
"""Kernels of ``benchmarks/`` on the simulator, so that a benchmark on a GPU is about time and not about mistakes."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest
from numba import cuda

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import attention_kernels
import batched_kernels


@pytest.mark.parametrize("variant", batched_kernels.VARIANTS, ids=lambda v: v.name)
def test_every_product_of_a_batch(variant):
    """Three products by two blocks, so that one block has two."""
    rng = np.random.default_rng(21)
    a, b = rng.uniform(-1, 1, (2, 3, 32, 32)).astype(np.float32)
    c = cuda.to_device(np.full((3, 32, 32), np.nan, np.float32))
    variant.kernel()[2, variant.threads, 0, variant.shared_bytes()](cuda.to_device(a), cuda.to_device(b), c)
    np.testing.assert_allclose(c.copy_to_host(), a.astype(float) @ b.astype(float), atol=1e-5)


@pytest.mark.parametrize("tile", [(16, 16, 32), (32, 16, 128)], ids=["a warp", "warps in two columns"])
def test_attention(tile):
    """Queries and keys that no tile divides."""
    heads, queries, keys, depth = 1, 40, 40, 16
    tiling = attention_kernels.Tiling(depth, *tile)
    rng = np.random.default_rng(22)
    q, k, v = (rng.normal(size=(heads, n, depth)).astype(np.float16) for n in (queries, keys, keys))
    o = cuda.to_device(np.full((heads, queries, depth), np.nan, np.float16))
    grid = (-(-queries // tiling.queries), heads)
    kernel = attention_kernels.attention_kernel(tiling)
    kernel[grid, tiling.threads, 0, tiling.shared.size](*map(cuda.to_device, (q, k, v)), o)

    scores = q.astype(float) @ k.astype(float).transpose(0, 2, 1) / math.sqrt(depth)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    want = weights / weights.sum(-1, keepdims=True) @ v.astype(float)
    assert np.linalg.norm(o.copy_to_host() - want) / np.linalg.norm(want) < 2e-3
