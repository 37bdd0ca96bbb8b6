# SPDX-License-Identifier: Apache-2.0
"""Products on the CPU against float64 einsum and exact integers: types, layouts, batches, C, scales, rounding."""

from __future__ import annotations

import math
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvmath_device.errors import ArgumentTypeError
from nvmath_device.host.cpu_execution import compute
from tests.host.cpu_products import (
    BF16,
    E4M3,
    E5M2,
    LAYOUTS,
    ask,
    assert_within,
    laid_out,
    magnitude,
    matmul,
    normal,
    product,
    sum_unit,
    whole,
    wide,
)

SEED = 20251202
DTYPES = [np.float16, BF16, np.float32, np.float64, np.complex64, np.complex128]
FP8_PAIRS = [(E4M3, E4M3), (E4M3, E5M2), (E5M2, E4M3)]


def rng(seed=0):
    return np.random.default_rng([SEED, seed])


# -- products -----------------------------------------------------------------------------------------------


@settings(max_examples=400)
@given(
    dtype=st.sampled_from(DTYPES),
    m=st.integers(0, 9),
    n=st.integers(0, 9),
    k=st.one_of(st.integers(0, 9), st.just(300)),
    batches=st.sampled_from([((), ()), ((2,), (2,)), ((2,), ()), ((), (3,)), ((2, 1), (1, 3)), ((1,), (4,))]),
    layouts=st.tuples(*[st.sampled_from(LAYOUTS)] * 3),
    c_shape=st.sampled_from([None, "full", "row", "column", "scalar", "one of a batch"]),
    scalars=st.sampled_from([(1, 0), (2.5, 1), (-0.25, -3), (0, 0.5)]),
    result=st.sampled_from([None, "float32"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_product_is_within_its_rounding_errors(dtype, m, n, k, batches, layouts, c_shape, scalars, result, seed):
    alpha, beta = scalars
    if np.dtype(dtype).kind == "c":
        alpha, beta = alpha * (1 - 2j), beta * 1j
    if dtype not in (np.float16, BF16):
        result = None
    draw = rng(seed)
    a = laid_out(normal(draw, (*batches[0], m, k), dtype), layouts[0])
    b = laid_out(normal(draw, (*batches[1], k, n), dtype), layouts[1])
    batch = np.broadcast_shapes(*batches)
    shapes = {
        "full": (*batch, m, n), "row": (n,), "column": (m, 1), "scalar": (1, 1), "one of a batch": (m, n), None: None,
    }  # fmt: skip
    c = None
    want, bound = alpha * matmul(a, b), abs(alpha) * magnitude(a, b)
    if c_shape is not None:
        c = laid_out(normal(draw, shapes[c_shape], np.float32 if result else dtype), layouts[2])
        want, bound = want + beta * wide(c), bound + abs(beta) * abs(wide(c))
    got = product(a, b, c, alpha=alpha, beta=beta if c is not None else 0, result_type=result)
    assert list(got) == ["d"]
    assert got["d"].dtype == np.dtype(result or dtype)
    assert got["d"].shape == (*batch, m, n)
    assert_within(got["d"], want, bound, k, sum_unit(dtype))


@pytest.mark.parametrize(("m", "n", "k", "batch"), [(257, 129, 512, ()), (64, 200, 33, (3,))])
@pytest.mark.parametrize("dtype", DTYPES)
def test_larger_products(dtype, m, n, k, batch):
    a, b = normal(rng(), (*batch, m, k), dtype), normal(rng(1), (*batch, k, n), dtype)
    got = product(a, b)["d"]
    assert_within(got, matmul(a, b), magnitude(a, b), k, sum_unit(dtype))


@pytest.mark.parametrize("dtype", [np.float32, np.complex64, np.int8, BF16])
def test_broadcast_operands_are_read_as_they_are(dtype):
    row, column = whole(rng(), (1, 7), dtype), whole(rng(1), (5, 1), dtype)
    a, b = np.broadcast_to(row, (3, 4, 7)), np.broadcast_to(whole(rng(2), (7, 5), dtype), (3, 7, 5))
    np.testing.assert_array_equal(wide(product(a, b)["d"]), matmul(a, b))
    a, b = np.broadcast_to(column, (5, 7)), np.broadcast_to(row.T, (7, 6))
    np.testing.assert_array_equal(wide(product(a, b)["d"]), matmul(a, b))


@pytest.mark.parametrize(("conj_a", "conj_b"), [(False, False), (True, False), (False, True), (True, True)])
def test_conjugates(conj_a, conj_b):
    a, b = whole(rng(), (2, 4, 5), np.complex64), whole(rng(1), (2, 5, 3), np.complex64)
    want = matmul(a.conj() if conj_a else a, b.conj() if conj_b else b)
    np.testing.assert_array_equal(product(a, b, conj=(conj_a, conj_b))["d"], want)


def test_a_lazily_conjugated_c():
    a, b, c = (whole(rng(seed), (4, 4), np.complex64) for seed in range(3))
    (problem, arrays), numbers = ask(a, b, c, beta=2)
    conjugated = replace(problem, conj_c=True)
    np.testing.assert_array_equal(compute(conjugated, arrays, **numbers)["d"], matmul(a, b) + 2 * c.conj())


def test_conjugation_changes_nothing_of_real_matrices():
    a, b = whole(rng(), (4, 5), np.float32), whole(rng(1), (5, 3), np.float32)
    np.testing.assert_array_equal(product(a, b, conj=(True, True))["d"], matmul(a, b))


@pytest.mark.parametrize(
    ("a_shape", "b_shape"),
    [((4,), (4,)), ((4,), (4, 5)), ((3, 4), (4,)), ((4,), (2, 4, 5)), ((2, 3, 4), (4,)), ((0,), (0,)), ((0,), (0, 3))],
)
@pytest.mark.parametrize("dtype", [np.float32, np.complex128, np.int8])
def test_vectors_are_what_they_are_to_numpy(a_shape, b_shape, dtype):
    a, b = whole(rng(), a_shape, dtype), whole(rng(1), b_shape, dtype)
    want = np.matmul(wide(a), wide(b))
    got = product(a, b)["d"]
    assert got.shape == want.shape
    np.testing.assert_array_equal(wide(got), want)
    c = whole(rng(2), want.shape, np.int32 if dtype is np.int8 else dtype)
    got = product(a, b, c, beta=1)["d"]
    assert got.shape == want.shape
    np.testing.assert_array_equal(wide(got), want + c)


@pytest.mark.parametrize("dtype", [*DTYPES, np.int8, E4M3])
@pytest.mark.parametrize(("m", "n", "k"), [(0, 3, 4), (3, 0, 4), (0, 0, 0), (3, 4, 0)])
def test_zero_extents_give_what_numpy_gives(dtype, m, n, k):
    options = {"result_type": "float16"} if dtype is E4M3 else {}
    got = product(np.ones((2, m, k), dtype), np.ones((k, n), dtype), **options)["d"]
    assert got.shape == (2, m, n)
    assert not wide(got).any()


def test_no_products_leave_beta_times_c():
    c = whole(rng(), (3, 4), np.float32)
    got = product(np.ones((3, 0), np.float32), np.ones((0, 4), np.float32), c, alpha=7, beta=0.5)["d"]
    np.testing.assert_array_equal(got, 0.5 * c)


# -- C, alpha and beta --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.complex64])
def test_c_is_read_only_if_beta_is_not_zero(dtype):
    a, b, c = np.ones((3, 2), dtype), np.ones((2, 4), dtype), np.full((3, 4), np.nan, dtype)
    assert (product(a, b, c, alpha=3, beta=0)["d"] == 6).all()
    assert (product(a, b, c, alpha=3, beta=-0.0)["d"] == 6).all()
    assert np.isnan(product(a, b, c, alpha=3, beta=1e-6)["d"]).all()


def test_a_and_b_are_read_even_if_alpha_is_zero():
    nan = np.full((2, 2), np.nan, np.float32)
    assert np.isnan(product(nan, nan, alpha=0)["d"]).all()


def test_scalars_have_the_scale_type():
    """1/3 as float32, as float16 and as float64; 1e-12 is zero as float16, so that C is not read."""
    three = np.full((1, 1), 3, np.float16)
    one = np.ones((1, 1), np.float16)
    got = product(three, one, alpha=1 / 3, result_type="float32")["d"][0, 0]
    assert got == np.float32(3 * np.float32(1 / 3))
    got = product(three, one, alpha=1 / 3, compute_type="COMPUTE_16F")["d"][0, 0]
    assert got == np.float16(3 * float(np.float16(1 / 3)))
    got = product(three.astype(float), one.astype(float), alpha=1 / 3)["d"][0, 0]
    assert got == 1.0
    c = np.full((1, 1), np.nan, np.float16)
    assert product(three, one, c, beta=1e-12, compute_type="COMPUTE_16F")["d"][0, 0] == 3
    assert np.isnan(product(three, one, c, beta=1e-12)["d"][0, 0])


def test_a_complex_scalar_of_a_real_product_is_refused():
    one = np.ones((1, 1), np.float32)
    with pytest.raises(ArgumentTypeError, match="beta: 1j is complex"):
        product(one, one, one, beta=1j)


# -- rounding -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float16, BF16])
def test_the_result_is_rounded_once_at_the_end(dtype):
    """In the result's type big + 1 stays big; sums, beta C and a bias see what was not rounded."""
    big = 2.0 / np.finfo(dtype).eps if dtype is np.float16 else 256.0
    a = np.array([[big, 1, 1]], dtype)
    assert wide(product(a, np.ones((3, 1), dtype))["d"])[0, 0] == big + 2
    one = np.ones((1, 1), dtype)
    pair = a[:, :2], np.ones((2, 1), dtype)
    assert wide(product(*pair)["d"])[0, 0] == big  # a tie, to even
    assert wide(product(*pair, one, beta=1)["d"])[0, 0] == big + 2
    assert wide(product(*pair, epilog="BIAS", inputs={"bias": one})["d"])[0, 0] == big + 2


def test_a_half_precision_result_overflows_and_an_fp8_result_saturates():
    a = np.full((1, 1), 300, np.float16)
    assert product(a, a)["d"][0, 0] == np.inf
    assert product(-a, a)["d"][0, 0] == -np.inf
    a = np.array([[400], [-400], [np.nan], [1.0625]], E4M3)  # the last becomes 1, a tie
    got = product(a, np.full((1, 1), 2, E4M3), result_type="float8_e4m3fn")["d"]
    assert got.dtype == E4M3
    np.testing.assert_array_equal(wide(got)[:, 0], [448, -448, np.nan, 2])
    got = product(np.full((1, 1), 448, E4M3), np.full((1, 1), 49152, E5M2), result_type="float8_e5m2")["d"]
    assert wide(got)[0, 0] == 57344


@pytest.mark.parametrize(
    ("compute_type", "unit"),
    [("COMPUTE_32F_FAST_16F", 2.0**-11), ("COMPUTE_32F_FAST_16BF", 2.0**-8), ("COMPUTE_32F_FAST_TF32", 2.0**-11)],
)
@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
def test_fast_compute_types_round_operands_to_nearest_and_nothing_else(compute_type, unit, dtype):
    tie = dtype(1 + unit)
    above = np.nextafter(np.float32(1 + unit), np.float32(2)).astype(dtype)
    one = np.ones((1, 1), dtype)
    for a, b in (
        (np.array([[tie, above]]), np.ones((2, 1), dtype)),
        (np.ones((1, 2), dtype), np.array([[tie], [above]])),
    ):
        assert product(a, b, compute_type=compute_type)["d"][0, 0] == 2 + 2 * unit  # 1, and 1 + 2 unit
        assert product(a, b)["d"][0, 0] == np.float32(wide(tie).real + wide(above).real)
    c = np.array([[tie]])
    assert product(one, one, c, alpha=0, beta=1, compute_type=compute_type)["d"][0, 0] == tie
    a, b = normal(rng(), (20, 50), dtype), normal(rng(1), (50, 30), dtype)
    got = product(a, b, compute_type=compute_type)["d"]
    error = abs(wide(got) - matmul(a, b))
    # both operands are off by a unit (both parts of both, of which sqrt(2) is left); the sums as without
    assert (error <= (2 * math.sqrt(2) * unit + 250 * 2.0**-24) * magnitude(a, b)).all()
    assert error.max() > 0.01 * unit * magnitude(a, b).max()  # it does round


@pytest.mark.parametrize("compute_type", ["COMPUTE_32F", "COMPUTE_32F_PEDANTIC", "COMPUTE_32F_EMULATED_16BFX9"])
def test_other_compute_types_keep_every_bit_of_float32(compute_type):
    a = np.array([[1 + 2.0**-23]], np.float32)
    assert product(a, np.ones((1, 1), np.float32), compute_type=compute_type)["d"][0, 0] == a[0, 0]


# -- fp8 and int8 -------------------------------------------------------------------------------------------


@settings(max_examples=150)
@given(
    pair=st.sampled_from(FP8_PAIRS),
    result=st.sampled_from(["float16", "bfloat16", "float32", "float8_e4m3fn"]),
    scales=st.fixed_dictionaries({}, optional={"a": st.sampled_from([0.5, 3.0]), "b": st.sampled_from([0.125, -2.0])}),
    d=st.sampled_from([None, 16.0, 0.3]),
    scalars=st.sampled_from([(1, 0), (0.5, -2)]),
    shape=st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(0, 40)),
    seed=st.integers(0, 2**32 - 1),
)
def test_fp8_products_with_scales(pair, result, scales, d, scalars, shape, seed):
    (m, n, k), (alpha, beta), draw = shape, scalars, rng(seed)
    is_fp8 = result == "float8_e4m3fn"
    a, b = normal(draw, (m, k), pair[0]), normal(draw, (k, n), pair[1])
    c = normal(draw, (m, n), BF16 if is_fp8 else np.dtype(result))
    if d is not None and is_fp8:
        scales = {**scales, "d": d}
    factor = alpha * scales.get("a", 1) * scales.get("b", 1)
    got = product(a, b, c, alpha=alpha, beta=beta, scales=scales, result_type=result, result_amax=is_fp8)
    want = factor * matmul(a, b) + beta * wide(c)
    bound = abs(factor) * magnitude(a, b) + abs(beta) * abs(wide(c))
    if is_fp8:
        assert got["result_amax"].shape == (1,)
        assert got["result_amax"].dtype == np.float32
        # before the scale of D, and before rounding
        assert abs(got["result_amax"][0] - abs(want).max()) <= (k + 8) * 2.0**-24 * bound.max()
    want, bound = want * scales.get("d", 1), bound * abs(scales.get("d", 1))
    if is_fp8:
        want = np.clip(want, -448, 448)
    assert_within(got["d"], want, bound, k, 2.0**-24)


def test_the_largest_value_is_over_the_whole_batch_and_before_rounding():
    a = np.ones((3, 2, 1), E4M3)
    a[2, 1, 0] = -0.5
    b = np.full((3, 1, 2), 1.25, E4M3)
    b[1] = 240
    options = {"result_type": "float8_e4m3fn", "result_amax": True}
    got = product(a, b, alpha=-3, scales={"d": 0.5}, **options)
    assert got["result_amax"].tolist() == [720.0]
    assert wide(got["d"])[1].tolist() == [[-352, -352]] * 2  # -360, a tie between -352 and -384
    empty = product(np.ones((0, 4), E4M3), np.ones((4, 3), E4M3), **options)
    assert empty["result_amax"].tolist() == [0]


@given(
    m=st.integers(0, 5),
    n=st.integers(0, 5),
    k=st.integers(0, 70),
    layouts=st.tuples(*[st.sampled_from(LAYOUTS)] * 2),
    scalars=st.sampled_from([(1, 0), (1, 1), (0, 1)]),
    seed=st.integers(0, 2**32 - 1),
)
def test_int8_gives_exact_int32(m, n, k, layouts, scalars, seed):
    alpha, beta = scalars
    draw = rng(seed)
    a = laid_out(draw.integers(-128, 127, (m, k), np.int8, endpoint=True), layouts[0])
    b = laid_out(draw.integers(-128, 127, (k, n), np.int8, endpoint=True), layouts[1])
    c = draw.integers(-(2**31), 2**31 - 1, (m, n), np.int32, endpoint=True)
    got = product(a, b, c, alpha=alpha, beta=beta)["d"]
    assert got.dtype == np.int32
    exact = alpha * np.einsum("mk,kn->mn", a.astype(np.int64), b.astype(np.int64)) + beta * c.astype(np.int64)
    np.testing.assert_array_equal(got.astype(np.int64), (exact + 2**31) % 2**32 - 2**31)


def test_sums_of_int8_wrap_around_at_32_bits():
    k = 2**17 + 1  # products of -128 and -128 add up to 2**31 + 2**14
    a = np.full((1, k), -128, np.int8)
    assert product(a, a.T)["d"].tolist() == [[-(2**31) + 2**14]]
    assert product(a, a.T, alpha=2.0**-25, result_type="int8")["d"].tolist() == [[-64]]  # scaled after that
    # in float32 nothing wraps around
    got = product(a, a.T, result_type="float32")["d"]
    assert got.dtype == np.float32
    assert got.tolist() == [[float(np.float32(2**31 + 2**14))]]


def test_int8_results_are_scaled_rounded_to_even_and_saturated():
    a = np.array([[1], [3], [5], [100], [-100], [-3]], np.int8)
    b = np.array([[1, 2]], np.int8)
    got = product(a, b, alpha=0.5, result_type="int8")["d"]
    assert got.dtype == np.int8
    assert got[:, 0].tolist() == [0, 2, 2, 50, -50, -2]  # 0.5, 1.5, 2.5, ..., -1.5: ties go to even
    c = np.full((6, 2), 10, np.int8)
    got = product(a, b, c, alpha=2.0, beta=-0.5, result_type="int8")["d"]
    assert got[:, 1].tolist() == [-1, 7, 15, 127, -128, -17]


# -- side effects -------------------------------------------------------------------------------------------


def test_operands_are_left_alone_and_results_are_new():
    a, b, c = (whole(rng(seed), (4, 4), np.float32) for seed in range(3))
    before = [x.copy() for x in (a, b, c)]
    results = product(a, b, c, beta=1, epilog="GELU_AUX")
    for x, y in zip((a, b, c), before, strict=True):
        np.testing.assert_array_equal(x, y)
    for result in results.values():
        assert not any(np.shares_memory(result, x) for x in (a, b, c))
    assert not np.shares_memory(results["d"], results["gelu_aux"])


def test_nothing_is_said_about_overflow(recwarn):
    huge = np.full((2, 2), 3e38, np.float32)
    for epilog in ("DEFAULT", "GELU_AUX", "RELU"):
        product(huge, huge, epilog=epilog)
    product(np.full((1, 1), np.inf, ml_dtypes.bfloat16), np.zeros((1, 1), ml_dtypes.bfloat16))
    assert not recwarn.list
