# SPDX-License-Identifier: Apache-2.0
"""``Matmul.multiply`` where the product is our own, on a GPU: exactly, as sums of small integers are."""

from __future__ import annotations

import itertools
from functools import cache

import numpy as np
import pytest
from numba import cuda

import nvmath_device as nd
from nvmath_device.pipelines import pipeline_plan
from tests.gpu.spoiled import spoil

ROW, COL = "row_major", "col_major"
ORDERS = tuple(itertools.product((ROW, COL), repeat=2))
PRECISIONS = ("float32", "float64")
# Tile and threads, by element type; the first is used where the tile is not what a test is about.
TILES = {
    "float32": [((128, 128, 16), 256), ((256, 128, 16), 256), ((128, 256, 16), 256), ((64, 64, 32), 128)],
    "float64": [((128, 128, 16), 256), ((128, 128, 32), 256), ((128, 64, 32), 256), ((64, 64, 16), 128)],
}
SHAPES = [(256, 256, 64), (300, 200, 100), (132, 516, 36), (129, 257, 33), (1, 1, 1), (128, 128, 1), (5, 700, 2000)]


@cuda.jit(device=True)
def shifted(value, row, column, bias):
    return value + bias[column] - row


@cuda.jit(device=True)
def added(value, element, row, column):
    return value + element


@cache
def kernels_of(precision, tile, threads, orders, depth):
    mm = nd.Matmul(tile, precision, "real", arrangement=(*orders, ROW), block_size=threads)

    @nd.jit
    def product(a, b, c):
        mm.multiply(a, b, cuda.blockIdx.x, cuda.blockIdx.y, depth).store(c)

    @nd.jit
    def fused(a, b, c, bias, d):
        mm.multiply(a, b, cuda.blockIdx.x, cuda.blockIdx.y, depth).map(shifted, bias).combine(added, d).store(c)

    @nd.jit
    def persistent(a, b, c, columns, tiles):
        pipe = mm.pipeline(a, b, depth)
        tile = cuda.blockIdx.x
        pipe.start(tile // columns, tile % columns)
        while tile < tiles:
            acc = pipe.finish()
            following = tile + cuda.gridDim.x
            if following < tiles:
                pipe.start(following // columns, following % columns)
            acc.store(c)
            tile = following
        pipe.destroy()

    return mm, product, fused, persistent


def numbers(shape, dtype, order, seed):
    values = np.random.default_rng(seed).integers(-9, 10, shape)
    return np.asarray(values, dtype, order="C" if order == ROW else "F")


def placed(x, left, further):
    """``x`` on the device amid NaN, ``left`` elements behind a multiple of 16 bytes, lines ``further`` apart."""
    is_row = x.flags.c_contiguous
    lines = x if is_row else x.T
    pitch = -(-(lines.shape[1] + left) // 4) * 4 + further
    host = np.full((lines.shape[0] + 2, pitch), np.nan, x.dtype)
    host[1:-1, left : left + lines.shape[1]] = lines
    whole = cuda.to_device(host if is_row else np.asfortranarray(host.T))
    rows, columns = (slice(1, -1), slice(left, left + lines.shape[1]))[:: 1 if is_row else -1]
    return whole[rows, columns]


def grid_of(mm, m, n):
    return -(-m // mm.size.m), -(-n // mm.size.n)


def check(precision, tile, threads, orders, depth, shape, left=0, further=0):
    mm, product, _, _ = kernels_of(precision, tile, threads, orders, depth)
    m, n, k = shape
    a, b = numbers((m, k), precision, orders[0], 1), numbers((k, n), precision, orders[1], 2)
    c = cuda.to_device(np.full((m + 2, n + 8), 77, precision))
    spoil()
    on_gpu = placed(a, left, further), placed(b, left, further)
    product[grid_of(mm, m, n), mm.block_dim, 0, mm.get_pipeline_storage_size(depth)](*on_gpu, c[1:-1, 4 : 4 + n])
    got = c.copy_to_host()
    np.testing.assert_array_equal(got[1:-1, 4 : 4 + n], a @ b)
    assert (got == 77).sum() >= got.size - m * n
    got[1:-1, 4 : 4 + n] = 77
    assert (got == 77).all()


def is_taken(orders, shape):
    """To Numba a matrix of one row or one column is row_major."""
    m, n, k = shape
    return not (orders[0] == COL and 1 in (m, k)) and not (orders[1] == COL and 1 in (k, n))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    ("orders", "shape"), [case for case in itertools.product(ORDERS, SHAPES) if is_taken(*case)], ids=str
)
def test_products_of_any_extents(precision, orders, shape):
    check(precision, *TILES[precision][0], orders, 3, shape)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("orders", ORDERS, ids="-".join)
@pytest.mark.parametrize(("left", "further"), [(1, 0), (0, 1), (2, 0), (3, 3)])
def test_matrices_at_any_address(precision, orders, left, further):
    check(precision, *TILES[precision][0], orders, 3, (260, 132, 68), left, further)


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize(("precision", "orders"), list(itertools.product(PRECISIONS, ((COL, ROW), (ROW, ROW)))))
@pytest.mark.parametrize("extent_k", [2, 16, 17, 48, 1000])
def test_any_number_of_stages(precision, orders, depth, extent_k):
    """Of more stages than the matrix has tiles along K, too. One stage is multiplied by libmathdx."""
    check(precision, *TILES[precision][0], orders, depth, (200, 136, extent_k))


@pytest.mark.parametrize(
    ("precision", "tile", "threads"), [(precision, *case) for precision in PRECISIONS for case in TILES[precision]]
)
@pytest.mark.parametrize("orders", ORDERS, ids="-".join)
def test_any_tile(precision, tile, threads, orders):
    mm = kernels_of(precision, tile, threads, orders, 3)[0]
    sm = nd.ComputeCapability(*cuda.get_current_device().compute_capability)
    has_own = sm >= ((8, 0) if precision == "float32" else (9, 0))
    assert (pipeline_plan(*mm.resolved(sm), depth=3, sm=sm).own is not None) == has_own
    check(precision, tile, threads, orders, 3, (520, 388, 164))
    check(precision, tile, threads, orders, 3, (511, 390, 165), 1, 1)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_views_with_steps(precision):
    """Neither rows nor columns are contiguous, and one goes backwards."""
    mm, product, _, _ = kernels_of(precision, *TILES[precision][0], (ROW, COL), 3)
    x, y = numbers((600, 300), precision, ROW, 3), numbers((300, 400), precision, ROW, 4)
    a, b = (cuda.to_device(z)[index] for z, index in ((x, np.s_[::2, ::3]), (y, np.s_[::3, ::2])))
    c = cuda.to_device(np.full((600, 400), 77, precision))
    product[grid_of(mm, 300, 200), mm.block_dim, 0, mm.get_pipeline_storage_size(3)](a, b, c[::2, ::2])
    got = c.copy_to_host()
    np.testing.assert_array_equal(got[::2, ::2], x[::2, ::3] @ y[::3, ::2])
    assert (got[1::2] == 77).all()
    assert (got[:, 1::2] == 77).all()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(("order", "left"), [("C", 0), ("C", 1), ("F", 0)])
def test_results_of_other_types_and_orders(precision, dtype, order, left):
    """Of tiles inside, and at an edge; the sums fit into float16."""
    mm, product, _, _ = kernels_of(precision, *TILES[precision][0], (COL, ROW), 3)
    m, n, k = 300, 260, 16
    a, b = numbers((m, k), precision, COL, 5), numbers((k, n), precision, ROW, 6)
    c = cuda.to_device(np.full((m, n + 4), 77, dtype, order=order))
    inside = np.s_[:, left : left + n]
    arrays = cuda.to_device(a), cuda.to_device(b), c[inside]
    product[grid_of(mm, m, n), mm.block_dim, 0, mm.get_pipeline_storage_size(3)](*arrays)
    got = c.copy_to_host()
    np.testing.assert_array_equal(got[inside], (a @ b).astype(dtype))
    got[inside] = 77
    assert (got == 77).all()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("orders", ORDERS, ids="-".join)
@pytest.mark.parametrize("shape", [(256, 256, 64), (300, 200, 100)], ids=str)
def test_functions_of_elements_know_their_place(precision, orders, shape):
    mm, _, fused, _ = kernels_of(precision, *TILES[precision][0], orders, 3)
    m, n, k = shape
    a, b = numbers((m, k), precision, orders[0], 1), numbers((k, n), precision, orders[1], 2)
    bias, d = numbers(n, precision, ROW, 3), numbers((m, n), precision, ROW, 4)
    c = cuda.to_device(np.full((m, n), np.nan, precision))
    arrays = (cuda.to_device(a), cuda.to_device(b), c, cuda.to_device(bias), cuda.to_device(d))
    fused[grid_of(mm, m, n), mm.block_dim, 0, mm.get_pipeline_storage_size(3)](*arrays)
    np.testing.assert_array_equal(c.copy_to_host(), a @ b + bias - np.arange(m)[:, None] + d)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("depth", [2, 3, 4])
@pytest.mark.parametrize("extent_k", [8, 500])
def test_a_tile_is_started_during_the_epilog_of_the_one_before(precision, depth, extent_k):
    mm, _, _, persistent = kernels_of(precision, *TILES[precision][0], (ROW, ROW), depth)
    m, n = 700, 520
    a, b = numbers((m, extent_k), precision, ROW, 1), numbers((extent_k, n), precision, ROW, 2)
    c = cuda.to_device(np.full((m, n), np.nan, precision))
    rows, columns = grid_of(mm, m, n)
    storage = mm.get_pipeline_storage_size(depth)
    persistent[7, mm.block_dim, 0, storage](cuda.to_device(a), cuda.to_device(b), c, columns, rows * columns)
    np.testing.assert_array_equal(c.copy_to_host(), a @ b)
