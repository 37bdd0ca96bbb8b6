# SPDX-License-Identifier: Apache-2.0
"""Products of our own: which tiles have them, how they are planned, and what their code computes, in NumPy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import nvmath_device as nd
from nvmath_device.own_products import own_product
from nvmath_device.pipelines import pipeline_plan
from nvmath_device.targets import MAX_SHARED_BYTES
from tests.own_emulation import conflicts, product, stages

ROW, COL = "row_major", "col_major"
SM80, SM90, SM90A = (nd.ComputeCapability(*sm) for sm in ((8, 0), (9, 0), (9, 0, "a")))
ORDERS = tuple(itertools.product((ROW, COL), repeat=2))


def gemm(size=(128, 128, 16), precision="float32", threads=256, orders=(COL, ROW), **options):
    return nd.Matmul(size, precision, "real", arrangement=(*orders, ROW), block_size=threads, **options)


def plan(mm, depth=None, sm=SM90A):
    return pipeline_plan(*mm.resolved(sm), depth=depth, sm=sm)


# Tile, threads; rows and columns of C that a thread has, in float32 and in float64, where that is our own.
TILES = [
    ((128, 128, 16), 256, (8, 8), (16, 4)),
    ((256, 128, 16), 256, (16, 8), None),  # 128 numbers of float64 would not stay in registers
    ((128, 256, 16), 256, (16, 8), None),
    ((128, 128, 16), 128, (16, 8), None),
    ((128, 128, 32), 256, (8, 8), (16, 4)),
    ((128, 64, 16), 256, (8, 4), (8, 4)),
    ((128, 64, 16), 128, (8, 8), (16, 4)),
    ((64, 128, 16), 128, (8, 8), (16, 4)),
    ((64, 64, 16), 128, (8, 4), (8, 4)),
    ((64, 64, 32), 256, (4, 4), (8, 2)),
    ((32, 32, 32), 64, (4, 4), (8, 2)),
]


@pytest.mark.parametrize(("size", "threads", "singles", "doubles"), TILES)
@pytest.mark.parametrize("orders", ORDERS)
def test_products_of_tiles_as_they_are_stored(size, threads, singles, doubles, orders, monkeypatch):
    """Exactly, as all numbers are small; each element of C is one thread's, and no read waits for a bank."""
    rng = np.random.default_rng(0)
    for precision, counts in (("float32", singles), ("float64", doubles)):
        made = plan(gemm(size, precision, threads, orders))
        assert (made.own and (made.own.rows.count, made.own.columns.count)) == counts
        if counts is None:
            continue
        a, b = (rng.integers(-9, 10, shape).astype(precision) for shape in ((size[0], size[2]), (size[2], size[1])))
        got, reads = product(made, a, b, monkeypatch)
        np.testing.assert_array_equal(got, a @ b)
        assert conflicts(reads) == 0


@pytest.mark.parametrize(("precision", "size"), [("float32", (128, 64, 16)), ("float64", (64, 128, 16))])
@pytest.mark.parametrize("orders", ORDERS)
@pytest.mark.parametrize("extents", [(192, 48), (132, 20), (124, 4), (100, 52)])  # lines of whole 16 bytes
def test_tiles_as_threads_copy_them(precision, size, orders, extents, monkeypatch):
    """Zeros outside of the matrix, of which nothing else is read; also of tiles behind the last one along K."""
    made = plan(gemm(size, precision, 128, orders))
    extent, extent_k = extents
    for which in (0, 1):
        tile, order = size[which], "C" if orders[which] == ROW else "F"
        x = np.arange(1, extent * extent_k + 1, dtype=precision)
        x = x.reshape((extent, extent_k) if which == 0 else (extent_k, extent), order=order)
        padded = np.pad(x, (0, 512))
        for first in (0, tile, 2 * tile):
            found = stages(made, which, x, first, 4, monkeypatch)
            for turn, (got, _) in enumerate(found):
                across, along = slice(first, first + tile), slice(16 * turn, 16 * turn + 16)
                np.testing.assert_array_equal(got, padded[(across, along) if which == 0 else (along, across)])


def test_what_is_turned_over_is_written_to_different_banks(monkeypatch):
    made = plan(gemm((128, 128, 16), orders=(ROW, ROW)))
    x = np.ones((128, 16), np.float32)
    ((_, writes),) = stages(made, 0, x, 0, 1, monkeypatch)
    assert len(writes) == 128 * 16 // 256
    for warp in np.concatenate(writes).reshape(-1, 32):
        assert np.unique(warp // 4 % 32).size == 32


def test_the_emulation_sees_banks():
    """Reads of one column of a tile whose lines are 128 bytes long."""
    assert conflicts([np.arange(32) * 128]) == 4
    assert conflicts([np.arange(32) * 144]) == 0


@pytest.mark.parametrize(
    ("options", "sm"),
    [
        ({"precision": "float32"}, nd.ComputeCapability(7, 5)),  # no cp.async
        ({"precision": "float64"}, SM80),  # m8n8k4 only
        ({"precision": ("tfloat32", "tfloat32", "float32")}, SM90A),
        ({"precision": ("float32", "float32", "float64")}, SM90A),
        ({"precision": ("float16", "float16", "float32")}, SM90A),
        ({"size": (96, 96, 16)}, SM90A),
        ({"size": (192, 128, 16), "threads": 192}, SM90A),  # B is not copied evenly
        ({"size": (128, 128, 16), "threads": 64}, SM90A),  # 256 elements a thread
        ({"size": (32, 32, 16), "threads": 128}, SM90A),  # 8 elements
        ({"size": (128, 128, 12)}, SM90A),
        ({"size": (128, 128, 12), "precision": "float64"}, SM90A),
        ({"size": (64, 64, 4), "threads": 256}, SM90A),  # less than 16 bytes for each thread to copy
        ({"size": (128, 128, 4), "orders": (ROW, ROW)}, SM90A),  # too short to be turned over
        ({"size": (256, 128, 8), "precision": "float64", "threads": 512}, SM90A),
    ],
)
def test_others_are_left_to_libmathdx(options, sm):
    mm = gemm(**options)
    assert own_product(*mm.resolved(sm)) is None
    made = plan(mm, sm=sm)
    assert made.own is None
    assert made.recipe.symbol in made.name
    assert made.depth == 2


@pytest.mark.parametrize("sm", [SM80, SM90, SM90A])
def test_a_plan_has_three_stages_and_no_code_of_libmathdx(sm):
    made = plan(gemm(), sm=sm)
    assert (made.depth, made.buffer_bytes) == (3, 3 * 2 * 128 * 16 * 4)
    assert made.fragment_size == 64
    assert not made.is_streamed
    with pytest.raises(AssertionError):
        _ = made.recipe
    assert "own product" in made.name


def test_a_depth_is_kept_up_to_four_and_one_stage_is_libmathdx_s():
    depths = {depth: plan(gemm(), depth) for depth in (1, 2, 3, 4, 9, "max")}
    assert {depth: made.depth for depth, made in depths.items()} == {1: 1, 2: 2, 3: 3, 4: 4, 9: 4, "max": 4}
    assert [depth for depth, made in depths.items() if made.own is None] == [1]


def test_the_stages_that_fit_are_taken():
    """Lines that are further apart take more than libmathdx's."""
    large = gemm((128, 128, 32), "float64")
    assert [plan(large, depth).depth for depth in (None, "max", 2)] == [3, 3, 2]
    assert plan(large).buffer_bytes <= MAX_SHARED_BYTES[9, 0] - 1024
    assert large.get_pipeline_storage_size(sm=90) == 3 * 2 * 32 * (128 + 2) * 8


@pytest.mark.parametrize("orders", ORDERS)
def test_single_numbers_are_stored_across_k(orders):
    """Lines that are written across lie in different banks; the others are tight."""
    a, b, _ = plan(gemm(orders=orders)).layouts
    assert (a.order, b.order) == (COL, ROW)
    assert (a.ld, b.ld) == tuple(128 if order == kept else 132 for order, kept in zip(orders, (COL, ROW), strict=True))


@pytest.mark.parametrize("orders", ORDERS)
def test_operands_of_tensor_cores_are_stored_as_declared(orders):
    a, b, _ = plan(gemm(precision="float64", orders=orders)).layouts
    assert (a.order, b.order) == orders
    assert [x.ld * 8 % 16 for x in (a, b)] == [0, 0]


def test_names_tell_apart_what_has_other_code():
    made = {
        plan(gemm(orders=orders, size=size, threads=threads, precision=precision), depth)
        for orders in ORDERS
        for size in ((128, 128, 16), (128, 128, 32))
        for threads in (128, 256)
        for precision in ("float32", "float64")
        for depth in (2, 3)
    }
    assert sum(x.own is not None for x in made) == 4 * 2 * 3 * 2
    assert len({x.name for x in made}) == len(made)
    assert plan(gemm(alignment=nd.MAX_ALIGNMENT)).name == plan(gemm()).name
