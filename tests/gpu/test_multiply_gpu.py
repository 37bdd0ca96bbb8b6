# SPDX-License-Identifier: Apache-2.0
"""``Matmul.multiply`` on a GPU: whole products of every extent, one tile a block, against float64."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from numba import cuda

import nvmath_device as nd
from nvmath_device.errors import LaunchError

ROW, COL = "row_major", "col_major"
TYPES = ("float16", "float16", "float32")
FAST = nd.Matmul((128, 256, 64), TYPES, "real", arrangement=(ROW, COL, ROW), block_size=256, alignment=nd.MAX_ALIGNMENT)
ANY_ADDRESS = nd.Matmul((64, 64, 32), TYPES, "real", arrangement=(ROW, ROW, ROW), block_size=128)
BOUND = 1e-5  # norm-wise; sums of float32 products over K up to 4096


@cuda.jit(device=True)
def relu_bias(value, row, column, bias, scale):
    return max(value + bias[column] * scale[row], np.float32(0))


def kernels_of(mm):
    @nd.jit
    def product(a, b, c):
        acc = mm.multiply(a, b, cuda.blockIdx.x, cuda.blockIdx.y)
        acc.store(c)

    @nd.jit
    def fused(a, b, c, bias, scale):
        acc = mm.multiply(a, b, cuda.blockIdx.x, cuda.blockIdx.y).map(relu_bias, bias, scale)
        acc.store(c)

    return product, fused


KERNELS = {"fast": (FAST, *kernels_of(FAST)), "any address": (ANY_ADDRESS, *kernels_of(ANY_ADDRESS))}


def configuration(mm, m, n, stream=0):
    grid = (-(-m // mm.size.m), -(-n // mm.size.n))
    return grid, mm.block_dim, stream, mm.get_pipeline_storage_size()


def operands(mm, m, n, k, seed=0):
    rng = np.random.default_rng(seed)
    a, b = (rng.uniform(-1, 1, shape).astype(np.float16) for shape in ((m, k), (k, n)))
    if mm.arrangement.b == COL:
        b = np.asfortranarray(b)
    return a, b


def error(got, want):
    return np.linalg.norm(got - want) / np.linalg.norm(want)


FAST_SHAPES = [(128, 256, 64), (1000, 500, 1504), (129, 264, 72), (1, 2, 8), (130, 1030, 2048), (4096, 520, 128)]
ANY_SHAPES = [(1000, 500, 1500), (257, 255, 259), (1, 1, 1), (64, 64, 1), (65, 33, 31), (300, 200, 4099)]


@pytest.mark.parametrize(
    ("kind", "shape"), [("fast", s) for s in FAST_SHAPES] + [("any address", s) for s in ANY_SHAPES], ids=str
)
def test_products_of_any_extents(kind, shape):
    mm, product, _ = KERNELS[kind]
    m, n, k = shape
    a, b = operands(mm, m, n, k)
    c = cuda.to_device(np.full((m, n), np.nan, np.float32))
    product[configuration(mm, m, n)](cuda.to_device(a), cuda.to_device(b), c)
    assert error(c.copy_to_host(), a.astype(float) @ b.astype(float)) < BOUND


@pytest.mark.parametrize("kind", KERNELS)
def test_functions_of_elements_know_their_place(kind):
    mm, _, fused = KERNELS[kind]
    m, n, k = 300, 600, 128
    a, b = operands(mm, m, n, k)
    rng = np.random.default_rng(5)
    bias, scale = rng.uniform(-9, 9, n).astype(np.float32), rng.uniform(0, 1, m).astype(np.float32)
    c = cuda.to_device(np.full((m, n), np.nan, np.float32))
    fused[configuration(mm, m, n)](*map(cuda.to_device, (a, b)), c, *map(cuda.to_device, (bias, scale)))
    want = np.maximum(a.astype(float) @ b.astype(float) + bias * scale[:, None].astype(float), 0)
    assert error(c.copy_to_host(), want) < BOUND


@pytest.mark.parametrize("kind", KERNELS)
@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_results_of_other_types_and_strides(kind, dtype):
    mm, product, _ = KERNELS[kind]
    m, n, k = 150, 300, 64
    a, b = operands(mm, m, n, k)
    want = a.astype(float) @ b.astype(float)
    bound = 1e-3 if dtype == np.float16 else BOUND
    held = cuda.to_device(np.full((m, n), np.nan, dtype, order="F"))
    product[configuration(mm, m, n)](cuda.to_device(a), cuda.to_device(b), held)
    assert error(held.copy_to_host(), want) < bound
    held = cuda.to_device(np.full((m, 2 * n), np.nan, dtype))
    product[configuration(mm, m, n)](cuda.to_device(a), cuda.to_device(b), held[:, ::2])
    got = held.copy_to_host()
    assert error(got[:, ::2], want) < bound
    assert np.isnan(got[:, 1::2]).all()


def test_operands_that_are_parts_of_larger_matrices():
    mm, product, _ = KERNELS["fast"]
    m, n, k = 200, 300, 136
    a, b = operands(mm, m + 16, n + 16, k + 64)
    whole_a, whole_b = cuda.to_device(a), cuda.to_device(b)
    c = cuda.to_device(np.full((m, n), np.nan, np.float32))
    product[configuration(mm, m, n)](whole_a[8 : m + 8, 8 : k + 8], whole_b[8 : k + 8, 8 : n + 8], c)
    want = a[8 : m + 8, 8 : k + 8].astype(float) @ b[8 : k + 8, 8 : n + 8].astype(float)
    assert error(c.copy_to_host(), want) < BOUND


def test_many_launches_at_once():
    """Blocks of different products share the device: none sees another's matrices."""
    mm, product, _ = KERNELS["fast"]
    m, n, k = 520, 776, 256
    given = [operands(mm, m, n, k, seed) for seed in range(8)]
    on_gpu = [tuple(map(cuda.to_device, pair)) for pair in given]
    results = [cuda.to_device(np.full((m, n), np.nan, np.float32)) for _ in given]
    streams = [cuda.stream() for _ in given]
    cuda.synchronize()

    def launch(which):
        for _ in range(20):
            product[configuration(mm, m, n, streams[which])](*on_gpu[which], results[which])

    threads = [threading.Thread(target=launch, args=(which,)) for which in range(len(given))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cuda.synchronize()
    for (a, b), c in zip(given, results, strict=True):
        assert error(c.copy_to_host(), a.astype(float) @ b.astype(float)) < BOUND


def test_too_little_shared_memory_and_another_block_are_refused():
    mm, product, _ = KERNELS["fast"]
    a, b = operands(mm, 128, 256, 64)
    arrays = (cuda.to_device(a), cuda.to_device(b), cuda.device_array((128, 256), np.float32))
    with pytest.raises(LaunchError, match="196,672"):
        product[1, 256, 0, 196_671](*arrays)
    with pytest.raises(LaunchError, match="256"):
        product[1, 128, 0, 196_672](*arrays)


def test_a_second_product_in_one_kernel():
    mm = FAST

    @nd.jit
    def twice(a, b, c, d):
        i, j = cuda.blockIdx.x, cuda.blockIdx.y
        mm.multiply(a, b, i, j).store(c)
        mm.multiply(a, b, i, j).store(d)

    m, n, k = 256, 512, 192
    a, b = operands(mm, m, n, k)
    c, d = (cuda.to_device(np.full((m, n), np.nan, np.float32)) for _ in range(2))
    twice[configuration(mm, m, n)](cuda.to_device(a), cuda.to_device(b), c, d)
    want = a.astype(float) @ b.astype(float)
    assert error(c.copy_to_host(), want) < BOUND
    assert error(d.copy_to_host(), want) < BOUND


def test_blocks_that_compute_several_tiles():
    mm = FAST

    @nd.jit
    def persistent(a, b, c, rows, columns):
        pipe = mm.pipeline(a, b)
        for tile in range(cuda.blockIdx.x, rows * columns, cuda.gridDim.x):
            pipe.multiply(tile % rows, tile // rows).store(c)
        pipe.destroy()

    m, n, k = 1100, 1900, 448
    a, b = operands(mm, m, n, k)
    c = cuda.to_device(np.full((m, n), np.nan, np.float32))
    (rows, columns), *rest = configuration(mm, m, n)
    for blocks in (1, 7, rows * columns):
        c.copy_to_device(np.full((m, n), np.nan, np.float32))
        persistent[blocks, *rest](cuda.to_device(a), cuda.to_device(b), c, rows, columns)
        assert error(c.copy_to_host(), a.astype(float) @ b.astype(float)) < BOUND
