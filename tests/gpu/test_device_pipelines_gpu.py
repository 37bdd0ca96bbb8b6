# SPDX-License-Identifier: Apache-2.0
"""``DevicePipeline`` on a GPU: streamed by TMA and fetched by threads, against float64."""

from __future__ import annotations

import numpy as np
import pytest
from numba import cuda

import nvmath_device as nd
from tests import pipeline_kernels

ROW, COL = "row_major", "col_major"
HALF = ("float16", "float16", "float32")
BOUND = 1e-5  # norm-wise, for sums over K up to 2048 in float32

STREAMED = nd.Matmul(
    (128, 256, 64), HALF, "real", arrangement=(ROW, COL, ROW), block_size=256, alignment=nd.MAX_ALIGNMENT,
    with_pipeline=True,
)  # fmt: skip
STAGED = nd.Matmul((64, 64, 32), HALF, "real", arrangement=(ROW,) * 3, block_size=128, with_pipeline=True)
KERNELS = {
    name: (mm, pipeline_kernels.one_tile(mm), pipeline_kernels.rows_of_tiles(mm), pipeline_kernels.twice(mm))
    for name, mm in {"streamed": STREAMED, "staged": STAGED}.items()
}


def operands(mm, m, n, k, seed=0):
    rng = np.random.default_rng(seed)
    a, b = (rng.uniform(-1, 1, s).astype(np.float16) for s in ((m, k), (k, n)))
    return a, np.asfortranarray(b) if mm.arrangement.b == COL else b


def error(got, want):
    return np.linalg.norm(got - want) / np.linalg.norm(want)


def launch(kernel, pipeline, grid, *rest):
    kernel[grid, pipeline.block_dim, 0, pipeline.buffer_size](pipeline, *rest)


@pytest.mark.parametrize("kind", KERNELS)
@pytest.mark.parametrize("tiles", [(1, 1, 1), (3, 2, 5), (4, 4, 32)], ids=str)
def test_whole_tiles(kind, tiles):
    mm, one_tile, _, _ = KERNELS[kind]
    m, n, k = (count * extent for count, extent in zip(tiles, mm.size, strict=True))
    a, b = operands(mm, m, n, k)
    pipeline = mm.suggest_device_pipeline(None, cuda.to_device(a), cuda.to_device(b))
    c = cuda.to_device(np.full((m, n), np.nan, np.float32))
    launch(one_tile, pipeline, tiles[:2], c)
    assert error(c.copy_to_host(), a.astype(float) @ b.astype(float)) <= BOUND


@pytest.mark.parametrize("kind", KERNELS)
@pytest.mark.parametrize("depth", [None, 2, "max"])
@pytest.mark.parametrize("shape", [(300, 520, 200), (129, 264, 72), (5, 8, 8)], ids=str)
def test_ragged_edges_and_tiles_one_after_the_other(kind, depth, shape):
    mm, _, rows_of_tiles, _ = KERNELS[kind]
    m, n, k = shape
    a, b = operands(mm, m, n, k)
    before = np.random.default_rng(5).uniform(-1, 1, (m, n)).astype(np.float32)
    pipeline = mm.suggest_device_pipeline(depth, cuda.to_device(a), cuda.to_device(b))
    c = cuda.to_device(before)
    launch(rows_of_tiles, pipeline, -(-m // mm.size.m), c, 2.0, 3.0, -(-n // mm.size.n))
    assert error(c.copy_to_host(), 2 * (a.astype(float) @ b.astype(float)) + 3 * before) <= BOUND


@pytest.mark.parametrize("kind", KERNELS)
def test_execute_adds(kind):
    mm, _, _, twice = KERNELS[kind]
    a, b = operands(mm, mm.size.m, mm.size.n, 3 * mm.size.k)
    pipeline = mm.suggest_device_pipeline(None, cuda.to_device(a), cuda.to_device(b))
    c = cuda.to_device(np.full(mm.size[:2], np.nan, np.float32))
    launch(twice, pipeline, 1, c)
    assert error(c.copy_to_host(), 2 * (a.astype(float) @ b.astype(float))) <= BOUND


@pytest.mark.parametrize("kind", KERNELS)
def test_other_extents_and_strides_run_the_same_code(kind):
    """A slice of a larger matrix, whose type would be another one as an array."""
    mm, _, _, _ = KERNELS[kind]
    kernel = pipeline_kernels.one_tile(mm)
    m, n, k = mm.size
    for wide in (k, 3 * k):
        a, b = operands(mm, m, n, wide)
        device_a, device_b = cuda.to_device(a), cuda.to_device(b)
        if wide > k:
            a, b = a[:, :k], b[:k]
            device_a, device_b = device_a[:, :k], device_b[:k]
        pipeline = mm.suggest_device_pipeline(None, device_a, device_b)
        c = cuda.to_device(np.full((m, n), np.nan, np.float32))
        launch(kernel, pipeline, 1, c)
        assert error(c.copy_to_host(), a.astype(float) @ b.astype(float)) <= BOUND
    assert len(kernel._loaded) == 1


def test_the_pipeline_keeps_its_arrays_alive():
    m, n, k = STAGED.size
    a, b = operands(STAGED, m, n, k)
    pipeline = STAGED.suggest_device_pipeline(None, cuda.to_device(a), cuda.to_device(b))
    rubbish = [cuda.to_device(np.full((m, k), np.nan, np.float16)) for _ in range(8)]
    c = cuda.to_device(np.full((m, n), np.nan, np.float32))
    launch(KERNELS["staged"][1], pipeline, 1, c)
    assert error(c.copy_to_host(), a.astype(float) @ b.astype(float)) <= BOUND
    del rubbish


def test_arrays_of_other_libraries():
    import cupy

    m, n, k = STAGED.size
    a, b = operands(STAGED, m, n, k)
    pipeline = STAGED.suggest_device_pipeline(None, cupy.asarray(a), cupy.asarray(b))
    c = cupy.full((m, n), cupy.nan, cupy.float32)
    launch(KERNELS["staged"][1], pipeline, 1, c)
    assert error(c.get(), a.astype(float) @ b.astype(float)) <= BOUND
