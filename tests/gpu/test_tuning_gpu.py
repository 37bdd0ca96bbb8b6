# SPDX-License-Identifier: Apache-2.0
"""``nd.tune`` on a GPU, what it keeps and what it refuses; the shipped table; ``nd.grouped_tile``."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numba import cuda

import nvmath_device as nd
from nvmath_device import tuned_results
from nvmath_device.lto.codegen import worker_count
from nvmath_device.lto.store import Store
from nvmath_device.numba_backend import tile_kernels
from nvmath_device.tile_candidates import by_rule
from nvmath_device.tile_suggestions import nearest, shipped
from nvmath_device.tuning_builds import build_all, code_of

ROW, COL = "row_major", "col_major"
ALONG_K, ROWS = (ROW, COL, ROW), (ROW,) * 3
HALF = ("float16", "float16", "float32")


def product(size, precision=HALF, arrangement=ALONG_K, alignment=nd.MAX_ALIGNMENT, **options):
    size = (size,) * 3 if isinstance(size, int) else size
    return nd.GemmDescriptor(size=size, precision=precision, arrangement=arrangement, alignment=alignment, **options)


@pytest.fixture
def results(monkeypatch, tmp_path):
    """An empty store for what is tuned; generated code stays where it is."""
    store = Store(tmp_path)
    monkeypatch.setattr(tuned_results, "default_store", lambda: store)


@pytest.fixture
def target():
    return nd.ComputeCapability(*cuda.get_current_device().compute_capability)


# -- the order of blocks ---------------------------------------------------------------------------------------


@nd.jit
def count_tiles(counts, blocks, rows, columns, group):
    i, j = nd.grouped_tile(cuda.blockIdx.x, rows, columns, group)
    cuda.atomic.add(counts, (i, j), 1)
    blocks[i, j] = cuda.blockIdx.x


@pytest.mark.parametrize(("rows", "columns", "group"), [(64, 32, 16), (33, 7, 8), (5, 1, 2), (1, 9, 4), (10, 10, 99)])
def test_grouped_tiles_on_the_device_are_those_of_the_host(rows, columns, group):
    counts, blocks = (cuda.to_device(np.zeros((rows, columns), np.int32)) for _ in range(2))
    count_tiles[rows * columns, 1](counts, blocks, rows, columns, group)
    assert (counts.copy_to_host() == 1).all()
    expected = {nd.grouped_tile(block, rows, columns, group): block for block in range(rows * columns)}
    found = blocks.copy_to_host()
    assert {(i, j): found[i, j] for i in range(rows) for j in range(columns)} == expected


def test_as_many_tiles_as_there_may_be_on_the_device():
    @nd.jit
    def kernel(found, block, rows, columns, group):
        i, j = nd.grouped_tile(block, rows, columns, group)
        found[0], found[1] = i, j

    for block, rows, columns, group in ((2**31 - 2, 2**31 - 1, 1, 2**31 - 1), (2**31 - 2, 1, 2**31 - 1, 1)):
        found = cuda.to_device(np.zeros(2, np.int64))
        kernel[1, 1](found, block, rows, columns, group)
        assert tuple(found.copy_to_host()) == nd.grouped_tile(block, rows, columns, group)


# -- tuning ------------------------------------------------------------------------------------------------------


def test_a_product_is_tuned_kept_and_found_again(results, target):
    descriptor = product(2048)
    spilling = nd.TileChoice((128, 256, 64), 128, 4, 16)
    tiles = [((128, 256, 64), 256), ((128, 128, 64), 128)]
    given = [nd.TileChoice(tile, threads, 4, group) for tile, threads in tiles for group in (16, 8)]
    tuned = nd.tune(descriptor, candidates=[*given, spilling], rounds=5)
    trials = {trial.choice: trial for trial in tuned.trials}
    assert tuned.best in given
    assert trials[spilling].outcome == ("refused" if target[:2] == (9, 0) else trials[spilling].outcome)
    timed = {choice: trial.milliseconds for choice, trial in trials.items() if trial.outcome == "timed"}
    assert len({code_of(choice) for choice in timed}) == 2
    assert 0 < tuned.milliseconds <= 1.005 * min(timed.values())
    assert tuned.tflops > 10
    assert nd.suggest_tile(descriptor) == nd.suggest_tile(product(1536)) == tuned.best
    mm = descriptor.tile("suggested")
    assert (mm.size, mm.block_size) == (tuned.best.tile, tuned.best.block_size)
    assert f"{tuned.tflops:.0f} TFLOP/s" in str(tuned)


def test_all_candidates_are_tuned_within_a_time_and_found_again_at_once(results):
    """With what is in the code store and what can be compiled within 60 s; the second call asks the store alone."""
    descriptor = product(1024)
    started = time.perf_counter()
    first = nd.tune(descriptor, limit_s=100)
    assert time.perf_counter() - started < 180
    started = time.perf_counter()
    assert nd.tune(descriptor) == first
    assert time.perf_counter() - started < 0.05


KINDS = [
    product((500, 260, 392), ("bfloat16", "bfloat16", "bfloat16")),
    product((500, 260, 392), ("tfloat32", "tfloat32", "float32")),
    product((500, 260, 400), ("float8_e4m3fn", "float8_e4m3fn", "float16")),
    product((500, 260, 400), ("int8", "int8", "int32")),
    product((500, 260, 391), "float32", ROWS, None),
    product((500, 260, 391), "float64", (COL, ROW, COL), None),
    product((500, 260, 392), HALF, leading_dimension=(400, 408, 300)),
]


def test_products_of_all_kinds_pass_the_check_against_numpy(results):
    """Kinds of element types, orders and padding, the tile that the rule says for each."""

    def tune(descriptor):
        return nd.tune(descriptor, candidates=[by_rule(descriptor, sm)], rounds=3)

    sm = nd.ComputeCapability(*cuda.get_current_device().compute_capability)
    with ThreadPoolExecutor(worker_count(len(KINDS))) as pool:
        list(pool.map(lambda d: build_all(d, [by_rule(d, sm)], sm), KINDS))
    for descriptor in KINDS:
        (trial,) = tune(descriptor).trials
        assert (trial.outcome, trial.reason) == ("timed", "")


def test_a_kernel_that_leaves_tiles_out_is_found_out(results, monkeypatch):
    def wrong_kernel(mm, depth):
        @nd.jit
        def product(a, b, c, rows, columns, group):
            i, j = nd.grouped_tile(cuda.blockIdx.x, rows, columns, group)
            acc = mm.multiply(a, b, i, j, depth)
            if i > 0:
                acc.store(c)

        return product

    monkeypatch.setattr(tile_kernels, "product_kernel", wrong_kernel)
    with pytest.raises(nd.errors.UnsupportedError, match="1 wrong") as caught:
        nd.tune(product(1024), candidates=[nd.TileChoice((128, 128, 64), 128, 4, 16)])
    assert "C is wrong: in 128 of 1024 rows, of which row 0 sums up to nan" in str(caught.value)


# -- what ships --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_no_line_of_the_shipped_table_spills_and_those_that_can_have_wgmma_have_it():
    """Generates and links all of them, for their own target: about 20 s of a core each where the store has none."""
    lines = shipped()

    def build(line):
        (made,) = build_all(line.descriptor, [line.choice], nd.ComputeCapability(*line.sm)).values()
        return made

    with ThreadPoolExecutor(worker_count(len(lines))) as pool:
        for line, made in zip(lines, pool.map(build, lines), strict=True):
            assert (made.outcome, made.reason, made.spills) == ("", "", 0), line
            single = str(line.descriptor.precision.a)
            paths = {"float32": {"FFMA"}, "float64": {"DMMA"}, "float8_e4m3fn": {"QGMMA"}}
            assert made.path in paths.get(single, {"HGMMA"}), line


# -- reported cases ----------------------------------------------------------------------------------------------


def test_r007_what_is_suggested_is_not_slower_than_what_one_would_pick(results, target):
    """float32, 1024^3, tiles of 64x64x64 and 64x64x128 in blocks of 256, 512 and 1024 threads, all in turns.

    The suggested tile with its block is at most 5% slower than the best of them, room for noise; so is, among the
    blocks of each tile, the one that is suggested for it.
    """
    descriptor = product(1024, "float32", ROWS)
    suggested = nd.suggest_tile(descriptor)
    tiles = ((64, 64, 64), (64, 64, 128))
    blocks = {tile: descriptor.tile(tile, alignment=nd.MAX_ALIGNMENT).block_size for tile in tiles}
    picked = [nd.TileChoice(tile, threads, 2, 16) for tile in tiles for threads in (256, 512, 1024)]
    own = [nd.TileChoice(tile, threads, 2, 16) for tile, threads in blocks.items()]
    tuned = nd.tune(descriptor, candidates=[suggested, *picked, *own], rounds=20)
    print(f"blocks suggested for the tiles: {blocks}\n{tuned}")
    times = {trial.choice: trial.milliseconds for trial in tuned.trials}
    best = min(ms for choice, ms in times.items() if choice in picked and ms is not None)
    assert times[suggested] <= 1.05 * best
    for choice in own:
        assert times[choice] <= 1.05 * min(times[c] for c in picked if c.tile == choice.tile and times[c] is not None)


def test_the_shipped_table_is_near_what_is_tuned_here(results, target):
    """Of the table's largest float16 product: its choice within 5% of the best of three."""
    descriptor = product(8192)
    line = nearest(shipped(), descriptor, target)
    if line is None:
        assert target[:2] != (9, 0)
        return
    others = [nd.TileChoice((256, 128, 64), 256, 4, 16), nd.TileChoice((256, 192, 64), 512, 4, 16)]
    tuned = nd.tune(descriptor, candidates=[line.choice, *others])
    times = {trial.choice: trial.milliseconds for trial in tuned.trials if trial.milliseconds is not None}
    assert times[line.choice] <= 1.05 * min(times.values())
