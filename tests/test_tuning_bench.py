# SPDX-License-Identifier: Apache-2.0
"""The bench that choices of tiles are checked and timed on: its numbers and its verdicts, with NumPy for a device."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

import nvmath_device as nd
from nvmath_device import tuning_bench
from nvmath_device.errors import DeviceMemoryError, DriverError, LaunchError
from nvmath_device.host.autotune import Timing
from nvmath_device.numba_backend import tile_kernels
from nvmath_device.tuning_bench import Bench, _random, _times, bound, wrong
from nvmath_device.tuning_builds import Build

ROW, COL = "row_major", "col_major"
PRODUCT = nd.GemmDescriptor(
    size=(1024, 1024, 1024), precision=("float16", "float16", "float32"), arrangement=(ROW, COL, ROW),
    alignment=nd.MAX_ALIGNMENT,
)  # fmt: skip
CHOICE = nd.TileChoice((32, 16, 8), 32, 2, 3)


# -- numbers ---------------------------------------------------------------------------------------------------


def storage(layout, matrix):
    """A matrix as its layout has it, with padding."""
    lines = matrix if layout.order == "row_major" else matrix.T
    padded = np.full((len(lines), layout.ld), 5, matrix.dtype)
    padded[:, : lines.shape[1]] = lines
    return padded.ravel()


@pytest.mark.parametrize("order", ["row_major", "col_major"])
@pytest.mark.parametrize("shape", [(3, 4), (2500, 3), (3, 2500)])
def test_a_stored_matrix_times_a_vector(order, shape):
    rng = np.random.default_rng(1)
    matrix, vector = rng.standard_normal(shape).astype(np.float32), rng.standard_normal(shape[1])
    rows, cols = shape
    layout = nd.MatrixLayout(rows, cols, order, (cols if order == "row_major" else rows) + 2)
    expected = matrix.astype(np.float64) @ vector
    np.testing.assert_allclose(_times(storage(layout, matrix), layout, vector), expected, rtol=1e-12, atol=1e-12)


def test_rounding_passes_the_check_and_a_tile_that_lacks_a_part_of_k_does_not():
    rng = np.random.default_rng(2)
    n = 1024
    a, b = (rng.standard_normal((n, n)).astype(np.float16) for _ in range(2))
    signs = rng.choice([-1.0, 1.0], n)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    c = (a.astype(np.float32) @ b.astype(np.float32)).astype(np.float64)
    allowed = n * bound(PRODUCT)
    assert wrong(c @ signs, exact @ signs, allowed) is None
    c[256:384, 512:768] -= a[256:384, :64].astype(np.float64) @ b[:64, 512:768].astype(np.float64)
    text = wrong(c @ signs, exact @ signs, allowed)
    assert "of 1024 rows, of which row 2" in text or "row 3" in text
    c[0, 0] = np.nan
    assert "row 0 sums up to nan" in wrong(c @ signs, exact @ signs, allowed)


def test_integers_are_compared_exactly():
    integers = PRODUCT.replace(precision=("int8", "int8", "int32"))
    assert bound(integers) == 0
    assert wrong(np.array([1.0, 2.0]), np.array([1.0, 2.0]), 0.0) is None
    assert "in 1 of 2 rows" in wrong(np.array([1.0, 3.0]), np.array([1.0, 2.0]), 0.0)


@pytest.mark.parametrize(
    "name", ["float16", "bfloat16", "tfloat32", "float32", "float64", "float8_e4m3fn", "int8", "uint8"]
)
def test_random_numbers_are_held_exactly_and_fill_all_digits(name):
    element = nd.element_type(name)
    layout = nd.MatrixLayout(64, 64, "row_major", 64)
    numbers = _random(np.random.default_rng(0), layout, element)
    assert (numbers.size, numbers.dtype) == (64 * 64, element.dtype)
    values = numbers.astype(np.float64)
    assert np.isfinite(values).all()
    assert len(np.unique(values)) >= 5
    if name == "tfloat32":
        bits = numbers.view(np.uint32)
        assert (bits & 0x1FFF == 0).all()  # the 13 bits that the hardware cuts off
        assert (bits & 0x2000).any()


# -- with NumPy for a device -------------------------------------------------------------------------------------


class Array(np.ndarray):
    """A NumPy array with what the bench asks of one on the device."""

    def copy_to_host(self):
        return np.asarray(self)


class Launched:
    """``kernel[...]``, which remembers how it is launched and computes with ``compute``."""

    def __init__(self, compute):
        self.compute, self.launches = compute, []

    def __getitem__(self, configuration):
        return SimpleNamespace(bind=lambda *args: self.bind(configuration, args))

    def bind(self, configuration, args):
        def launch():
            self.launches.append((configuration, args[3:]))
            self.compute(*args[:3])

        return launch


def numbers(x):
    """As float64, of bits too."""
    return np.asarray(x.view(ml_dtypes.float8_e4m3fn) if x.dtype == np.uint8 else x).astype(np.float64)


def product(a, b, c):
    c[...] = (numbers(a) @ numbers(b)).astype(c.dtype)


def of_one_column_less(a, b, c):
    product(a, b, c)
    c[:, -1] = 0


def nothing(a, b, c):
    pass


@pytest.fixture
def device(monkeypatch):
    """Memory, kernels and a timer; ``free`` bytes, and ``times`` by launch."""
    state = SimpleNamespace(free=1 << 40, cleared=[])

    def to_device(x):
        return np.array(x, order="K").view(Array)

    def clear(address, value, nbytes):
        state.cleared.append(nbytes)
        address.fill(-1 if address.dtype.kind == "i" else np.nan)

    class Sums:
        def __init__(self, element):
            pass

        def __getitem__(self, configuration):
            def launch(c, weights, found):
                found += numbers(c) @ np.asarray(weights)

            return launch

    driver = SimpleNamespace(cuMemsetD8=clear, cuMemGetInfo=lambda: (state.free, 1 << 41))
    monkeypatch.setattr(tile_kernels, "cuda", SimpleNamespace(to_device=to_device))
    monkeypatch.setattr(tile_kernels, "address", lambda array: array)
    monkeypatch.setattr(tile_kernels, "sums_kernel", Sums)
    monkeypatch.setattr(tuning_bench, "on_device", lambda index: nullcontext())
    monkeypatch.setattr(tuning_bench, "bindings", lambda: driver)
    monkeypatch.setattr(tuning_bench, "call", lambda function, *arguments: function(*arguments))
    return state


def run_of(compute, choice=CHOICE):
    mm = SimpleNamespace(get_pipeline_storage_size=lambda depth: 1000 * depth)
    return Build(Launched(compute), mm), choice


KINDS = [
    ("float16", "float16", "float32"), ("bfloat16", "bfloat16", "bfloat16"), ("tfloat32", "tfloat32", "float32"),
    ("float8_e4m3fn", "float8_e4m3fn", "float16"), ("float64",) * 3, ("int8", "int8", "int32"),
]  # fmt: skip


@pytest.mark.parametrize("precision", KINDS, ids=str)
@pytest.mark.parametrize("orders", [(ROW, COL, ROW), (COL, ROW, COL)], ids=str)
@pytest.mark.parametrize("lds", [None, (200, 210, 220)], ids=["tight", "padded"])
def test_a_product_passes_and_others_do_not(device, precision, orders, lds):
    descriptor = nd.GemmDescriptor(size=(70, 50, 90), precision=precision, arrangement=orders, leading_dimension=lds)
    bench = Bench(descriptor, 0)
    assert bench.check(run_of(product)) is None
    assert "C is wrong: in 70 of 70 rows" in bench.check(run_of(nothing))
    assert "C is wrong" in bench.check(run_of(of_one_column_less))
    assert bench.check(run_of(product)) is None
    inner, outer = (50, 70) if orders[2] == ROW else (70, 50)
    ld = inner if lds is None else 220
    itemsize = nd.element_type(precision[2]).itemsize
    assert device.cleared == [(ld * (outer - 1) + inner) * itemsize] * 4


def test_launches_cover_c_and_have_what_the_choice_says(device):
    run = run_of(product)
    Bench(PRODUCT.replace(size=(70, 50, 90), leading_dimension=None), 0).check(run)
    ((configuration, arguments),) = run[0].kernel.launches
    assert configuration == (3 * 4, 32, 0, 2000)  # rows times columns of tiles, threads, stream, bytes
    assert arguments == (3, 4, 3)  # and the group


def test_times_come_back_in_order_with_errors_in_words(device, monkeypatch):
    fails, slow, fast = run_of(nothing), run_of(product), run_of(product, nd.TileChoice((32, 16, 8), 32, 2, 1))
    breaks = run_of(nothing)

    def refuse(*arguments):
        raise LaunchError("it does not fit")

    fails[0].kernel.bind = refuse
    asked = {}

    def measure(launch, launches, **options):
        asked.update(options)
        for bound_launch in launches:
            launch(bound_launch)
        broken = Timing(launches[2], float("inf"), (), LaunchError("it broke"))
        return [Timing(launches[0], 300.0), Timing(launches[1], 200.0), broken]

    monkeypatch.setattr(tuning_bench, "measure", measure)
    bench = Bench(PRODUCT.replace(size=(70, 50, 90), leading_dimension=None), 0)
    found = bench.time([fails, slow, fast, breaks], rounds=7, seconds=2.5)
    assert found == [(None, "it does not fit"), (0.3, ""), (0.2, ""), (None, "it broke")]
    assert asked == {"iterations": 7, "flush": False, "seconds": 2.5}
    assert [len(run[0].kernel.launches) for run in (slow, fast)] == [1, 1]


def test_a_lost_device_is_no_matter_of_one_candidate(device):
    run = run_of(nothing)

    def lose(*arguments):
        raise DriverError("illegal address")

    run[0].kernel.bind = lose
    with pytest.raises(DriverError):
        Bench(PRODUCT.replace(size=(70, 50, 90), leading_dimension=None), 0).time([run], 1, 1.0)


def test_matrices_that_do_not_fit_are_told_before_they_are_made(device):
    device.free = 2 * 1024 * 1024 * 4 - 1
    with pytest.raises(DeviceMemoryError, match=r"take 8,388,608 bytes and the device has 8,388,607 free"):
        Bench(PRODUCT, 0)
