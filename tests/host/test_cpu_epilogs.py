# SPDX-License-Identifier: Apache-2.0
"""Epilogs on the CPU against their definitions in float64: masks bit by bit, gradients by finite differences."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvmath_device.host.cpu_execution import compute
from nvmath_device.host.epilogs import MatmulEpilog
from nvmath_device.host.options import MatmulEpilogPreferences, MatmulPlanPreferences
from tests.host.cpu_products import (
    BF16,
    E4M3,
    LAYOUTS,
    TINY,
    UNIT,
    ask,
    bits_of,
    laid_out,
    matmul,
    normal,
    product,
    sum_unit,
    whole,
    wide,
)

SEED = 20251203
DTYPES = [np.float16, BF16, np.float32, np.float64, E4M3]
BATCHES = [(), (3,), (2, 3)]
FORWARD = [e.name for e in MatmulEpilog if not e.name.startswith("D") and "BGRAD" not in e.name]


def rng(seed=0):
    return np.random.default_rng([SEED, seed])


def gelu(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def gelu_slope(x):
    """By the product and chain rules."""
    y, dy = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3), math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x**2)
    return 0.5 * (1 + np.tanh(y)) + 0.5 * x * dy / np.cosh(y) ** 2


def rounding(want, name):
    return UNIT[name] * abs(want) + TINY.get(name, 0)


def gelu_error(x, unit):
    """tanh(y) is off by its own unit and by that of y, 4 operations away, times y / cosh(y)^2 < 0.5; then 3 more."""
    return 8 * unit * abs(x)


def bias_for(draw, dtype, m, n, along, batch):
    shape = {"rows": (*batch, m, 1), "columns": (*batch, 1, n)}[along]
    return whole(draw, shape, dtype)


def aux_extents(name, m, n, along):
    """Where masks are bytes of 8 bits, padded to 16 bytes, and values are padded to 8, along the direction."""
    packed, other = (m, n) if along == "rows" else (n, m)
    packed = math.ceil(packed / 128) * 16 if name == "relu_aux" else math.ceil(packed / 8) * 8
    return (packed, other) if along == "rows" else (other, packed)


# -- forward ------------------------------------------------------------------------------------------------


@settings(max_examples=500)
@given(
    epilog=st.sampled_from(FORWARD),
    dtype=st.sampled_from(DTYPES),
    m=st.one_of(st.integers(1, 20), st.sampled_from([127, 128, 129])),
    n=st.one_of(st.integers(1, 20), st.sampled_from([127, 128, 129])),
    k=st.integers(0, 4),
    batch=st.sampled_from(BATCHES),
    along=st.sampled_from(["rows", "columns"]),
    layouts=st.tuples(*[st.sampled_from(LAYOUTS)] * 3),
    with_c=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_forward_epilogs_are_their_definitions(epilog, dtype, m, n, k, batch, along, layouts, with_c, seed):
    """Operands are small whole numbers, so that what goes into the epilog is exact in every type."""
    draw = rng(seed)
    result = np.dtype(np.float16 if dtype is E4M3 else dtype)
    a = laid_out(whole(draw, (*batch, m, k), dtype), layouts[0])
    b = laid_out(whole(draw, (*batch, k, n), dtype), layouts[1])
    order = "F" if along == "rows" else "C"
    out = laid_out(np.zeros((*batch, m, n), result), order)
    options = {"result_type": result.name, "out": out}
    before = 2 * matmul(a, b)
    if with_c:
        c = laid_out(whole(draw, (*batch, m, n), result), order)
        options |= {"c": c, "beta": -3}
        before = before - 3 * wide(c)
    if "BIAS" in epilog:
        bias = bias_for(draw, result, m, n, along, batch if draw.integers(2) else ())
        options["inputs"] = {"bias": laid_out(bias, layouts[2])}
        before = before + wide(bias)
    (problem, arrays), numbers = ask(a, b, alpha=2, epilog=epilog, **options)
    if m > 1 and n > 1:
        assert problem.along == along
    along = problem.along  # vectors have no order of their own
    got = compute(problem, arrays, **numbers)

    want, error = before, 0.0
    if "RELU" in epilog:
        want = np.maximum(before, 0)
    elif "GELU" in epilog:
        want, error = gelu(before), gelu_error(before, sum_unit(dtype))
    assert got["d"].dtype == result
    assert (abs(wide(got["d"]) - want) <= error + rounding(want, result.name) * ("GELU" in epilog)).all()

    assert set(got) == {"d", *(f"{x.lower()}_aux" for x in ("RELU", "GELU") if x in epilog and "AUX" in epilog)}
    if "relu_aux" in got:
        mask = got["relu_aux"]
        assert (mask.dtype, mask.shape) == (np.uint8, (*batch, *aux_extents("relu_aux", m, n, along)))
        np.testing.assert_array_equal(bits_of(mask, m, n, along), before > 0)
        assert np.bitwise_count(mask).sum() == (before > 0).sum()  # the CPU leaves no other bit set
    if "gelu_aux" in got:
        kept = got["gelu_aux"]
        assert (kept.dtype, kept.shape) == (result, (*batch, *aux_extents("gelu_aux", m, n, along)))
        np.testing.assert_array_equal(wide(kept)[..., :m, :n], before)
        kept[..., :m, :n] = 0
        assert not wide(kept).any()


def test_relu_of_what_is_no_number_or_infinite_or_zero():
    """NaN stays NaN and sets no bit."""
    x = np.array([[np.nan], [np.inf], [-np.inf], [0], [-0.0], [2], [-2]], np.float32)
    got = product(x, np.ones((1, 1), np.float32), epilog="RELU_AUX_BIAS", inputs={"bias": np.zeros(7, np.float32)})
    np.testing.assert_array_equal(got["d"][:, 0], [np.nan, np.inf, 0, 0, 0, 2, 0])
    assert got["relu_aux"][:, 0].tolist() == [0b0100010, *[0] * 15]


def test_gelu_far_out():
    far = 2.0**70  # its cube is too large for float32
    x, one = np.array([[30], [-30], [far], [-far], [np.inf], [0]], np.float32), np.ones((1, 1), np.float32)
    got = product(x, one, epilog="GELU_AUX_BIAS", inputs={"bias": np.zeros(6, np.float32)})
    np.testing.assert_array_equal(got["d"][:, 0], [30, 0, far, 0, np.inf, 0])
    back = product(np.ones((6, 1), np.float32), one, epilog="DGELU", inputs={"gelu_aux": got["gelu_aux"]})
    np.testing.assert_array_equal(back["d"][:, 0], [1, 0, 1, 0, 1, 0.5])


def test_an_epilog_sees_what_is_not_rounded_yet():
    tiny = np.full((1, 1), 2.0**-14, np.float16)
    got = product(tiny, tiny, epilog="RELU_AUX", result_type="float16")
    assert got["d"][0, 0] == 0  # 2**-28 is less than half the smallest float16
    assert got["relu_aux"].sum() == 1
    big, one = np.full((1, 1), 2049, np.float32).astype(BF16), np.ones((1, 1), BF16)
    assert wide(big)[0, 0] == 2048
    got = product(np.hstack([big, one]), np.vstack([one, one]), epilog="GELU_AUX_BIAS", inputs={"bias": 7 * one})
    assert wide(got["gelu_aux"]).ravel()[0] == wide(got["d"])[0, 0] == 2048  # 2056 is a tie, to even
    got = product(np.hstack([big, one]), np.vstack([one, one]), epilog="GELU_BIAS", inputs={"bias": 8 * one})
    assert wide(got["d"])[0, 0] == 2064  # 2057; a sum rounded before the bias would give the tie


def test_fp8_results_are_scaled_after_the_epilog():
    """Bias, RELU, largest value, the scale of D: in this order. Only the product of A and B has their scales."""
    a = np.array([[1, 2], [-3, 1]], E4M3)
    b = np.array([[2, -1], [1, 1]], E4M3)
    bias = np.array([[4], [-8]], np.float16)
    options = {"epilog": "RELU_BIAS", "inputs": {"bias": bias}, "result_type": "float8_e4m3fn", "result_amax": True}
    got = product(a, b, alpha=2, scales={"a": 0.5, "b": 3, "d": 0.25}, **options)
    # 3 times [[4, 1], [-5, 4]], plus the bias
    assert wide(got["d"]).tolist() == [[4, 7 / 4], [0, 1]]
    assert got["result_amax"].tolist() == [16]  # not -23, which RELU has taken away


@pytest.mark.parametrize("aux_type", ["float16", "float8_e4m3fn"])
def test_an_fp8_result_keeps_values_before_gelu_in_the_type_asked_for(aux_type):
    a, b = normal(rng(), (9, 30), E4M3), normal(rng(1), (30, 5), E4M3)
    a[0], b[:, 0] = -2, 2  # of -120, the largest, GELU leaves nothing
    aux_amax = aux_type == "float8_e4m3fn"
    preferences = MatmulPlanPreferences(epilog=MatmulEpilogPreferences(aux_type=aux_type, aux_amax=aux_amax))
    got = product(a, b, epilog="GELU_AUX", preferences=preferences, result_type="float8_e4m3fn")
    before = matmul(a, b)  # at most 30 units of float32 off, which rounding may show once
    kept = got["gelu_aux"][..., :9, :5]
    assert kept.dtype.name == aux_type
    sums = 38 * 2.0**-24 * matmul(abs(a), abs(b))
    assert (abs(wide(kept) - before) <= sums + rounding(before, aux_type)).all()
    want = gelu(before)
    error = 2 * sums + gelu_error(before, 2.0**-24)  # the slope of GELU is less than 2
    assert (abs(wide(got["d"]) - want) <= error + rounding(want, "float8_e4m3fn")).all()
    if aux_amax:
        assert got["aux_amax"].dtype == np.float32
        assert got["aux_amax"].shape == (1,)
        assert abs(got["aux_amax"][0] - abs(before).max()) <= sums.max()


# -- backward -----------------------------------------------------------------------------------------------


@settings(max_examples=400)
@given(
    epilog=st.sampled_from(["DRELU", "DGELU", "DRELU_BGRAD", "DGELU_BGRAD"]),
    dtype=st.sampled_from(DTYPES),
    m=st.one_of(st.integers(1, 20), st.sampled_from([127, 129])),
    n=st.one_of(st.integers(1, 20), st.sampled_from([128, 130])),
    k=st.integers(0, 4),
    batch=st.sampled_from(BATCHES),
    along=st.sampled_from(["rows", "columns"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_backward_epilogs_are_their_definitions(epilog, dtype, m, n, k, batch, along, seed):
    """Whatever stands in the padding of an aux input has no influence."""
    draw = rng(seed)
    result = np.dtype(np.float16 if dtype is E4M3 else dtype)
    a, b = whole(draw, (*batch, m, k), dtype), whole(draw, (*batch, k, n), dtype)
    product_of_both = matmul(a, b)
    unit = sum_unit(dtype)
    order = "F" if along == "rows" else "C"
    if "RELU" in epilog:
        name = "relu_aux"
        shape = (*batch, *aux_extents(name, m, n, along))
        aux = laid_out(draw.integers(0, 256, shape, np.uint8), order)
        want, error = np.where(bits_of(aux, m, n, along), product_of_both, 0), np.zeros(())
    else:
        name = "gelu_aux"
        aux = laid_out(np.full((*batch, *aux_extents(name, m, n, along)), np.nan, result), order)
        aux[..., :m, :n] = normal(draw, (*batch, m, n), result)
        x = wide(aux)[..., :m, :n]
        # 1 - tanh^2 is off by 2 units where x times the slope of y is at most 0.5 (1 + |x|)^3
        want, error = product_of_both * gelu_slope(x), abs(product_of_both) * 4 * unit * (1 + abs(x)) ** 3
    got = product(a, b, epilog=epilog, inputs={name: aux}, result_type=result.name)
    assert got["d"].dtype == result
    assert (abs(wide(got["d"]) - want) <= error + rounding(want, result.name) * ("GELU" in epilog)).all()
    if "BGRAD" in epilog:
        gradient = got[f"{epilog.lower()}"]
        axis = -1 if along == "rows" else -2
        total = want.sum(axis, keepdims=True)
        shape = total.shape if batch or along == "columns" else (m,)
        assert (gradient.dtype, gradient.shape) == (result, shape)
        allowed = (error + unit * abs(want)).sum(axis, keepdims=True) + unit * abs(total) + rounding(total, result.name)
        assert (abs(wide(gradient).reshape(total.shape) - total) <= allowed).all()


def test_a_backward_relu_lets_nothing_through_where_no_bit_is_set():
    a = np.array([[np.nan], [np.inf], [1]], np.float32)
    mask = np.zeros((16, 2), np.uint8, order="F")
    mask[0, 1] = 0b111
    got = product(a, np.ones((1, 2), np.float32), epilog="DRELU", inputs={"relu_aux": mask})["d"]
    np.testing.assert_array_equal(got, [[0, np.nan], [0, np.inf], [0, 1]])


def test_gradients_of_a_bias_are_sums_of_what_is_not_rounded_yet():
    a = np.array([[2048, 1]], np.float16)
    b = np.ones((2, 3), np.float16)
    mask = np.full((16, 3), 255, np.uint8, order="F")
    got = product(a, b, epilog="DRELU_BGRAD", inputs={"relu_aux": mask})
    assert got["d"].tolist() == [[2048] * 3]
    assert got["drelu_bgrad"].tolist() == [6148]  # 6147, whose neighbours are 6144 and 6148
    b, mask = np.ones((2, 1000), np.float16), np.full((16, 1000), 255, np.uint8, order="F")
    got = product(a, b, epilog="DRELU_BGRAD", inputs={"relu_aux": mask})
    assert got["drelu_bgrad"].tolist() == [np.inf]


def test_long_gradients_are_added_up_without_drifting():
    """2**24 + 1 - 2**24 in float32 is 0 if 1 is added to 2**24 first."""
    a = np.ones((2, 1), np.float32)
    b = np.tile(np.array([2.0**24, 1, -(2.0**24)], np.float32), 100)[None, :]
    aux = np.full((16, 300), 255, np.uint8, order="F")
    assert product(a, b, epilog="DRELU_BGRAD", inputs={"relu_aux": aux})["drelu_bgrad"].tolist() == [100, 100]


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if "float8" not in str(dtype)])
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("how", LAYOUTS)
def test_gradients_of_operands_are_sums_over_k(dtype, batch, how):
    a, b = laid_out(whole(rng(), (*batch, 5, 7), dtype), how), laid_out(whole(rng(1), (7, 6), dtype), how)
    options = {"result_type": "float16"} if dtype is E4M3 else {}
    got = product(a, b, alpha=3, epilog="BGRADA", **options)
    np.testing.assert_array_equal(wide(got["d"]), 3 * matmul(a, b))
    want = wide(a).sum(-1)
    np.testing.assert_array_equal(wide(got["bgrada"]), want[..., None] if batch else want)
    got = product(a, b, alpha=3, epilog="BGRADB", **options)
    want = np.broadcast_to(wide(b).sum(-2), (*batch, 6))  # B serves the whole batch, and each entry has a gradient
    np.testing.assert_array_equal(wide(got["bgradb"]), want[..., None] if batch else want)


# -- a layer and its gradient -------------------------------------------------------------------------------


@pytest.mark.parametrize("along", ["rows", "columns"])
@pytest.mark.parametrize("name", ["relu", "gelu"])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_forward_and_backward_fit_a_finite_difference(name, along, batch):
    """loss = sum(V * (W2 act(W1 X + b1))): its gradient by three calls, and by differences of float64 NumPy."""
    draw = rng(4)
    w1, x, w2 = (draw.standard_normal((*batch, *shape)) for shape in ((6, 4), (4, 5), (3, 6)))
    v = draw.standard_normal((*batch, 3, 5))
    b1 = draw.standard_normal((*batch, 6, 1) if along == "rows" else (*batch, 1, 5))
    act = gelu if name == "gelu" else lambda z: np.maximum(z, 0)

    def loss(w1, b1):
        return (v * (w2 @ act(w1 @ x + b1))).sum()

    forward = product(w1, x, epilog=f"{name.upper()}_AUX_BIAS", inputs={"bias": b1})
    aux = forward[f"{name}_aux"]
    aux = laid_out(aux, "F" if along == "rows" else "C")
    np.testing.assert_allclose(forward["d"], act(w1 @ x + b1), rtol=1e-13, atol=1e-14)
    w2_t = w2.swapaxes(-1, -2)
    back = product(w2_t, v, epilog=f"D{name.upper()}_BGRAD", inputs={f"{name}_aux": aux})
    delta, gradient_b1 = back["d"], back[f"d{name}_bgrad"].reshape(b1.shape)
    before = w1 @ x + b1
    analytic = (w2_t @ v) * (gelu_slope(before) if name == "gelu" else before > 0)
    np.testing.assert_allclose(delta, analytic, rtol=1e-12, atol=1e-13)
    gradient_w1 = product(delta, x.swapaxes(-1, -2))["d"]
    bgrada = product(delta, x.swapaxes(-1, -2), epilog="BGRADA")["bgrada"]
    np.testing.assert_allclose(bgrada.reshape(*batch, 6), delta.sum(-1), rtol=1e-13)

    h = 1e-6  # of a central difference the error is h^2, and 1e-16 / h from the subtraction
    for given_array, gradient, replaced in ((w1, gradient_w1, 0), (b1, gradient_b1, 1)):
        for index in np.ndindex(*given_array.shape):
            step = np.zeros(given_array.shape)
            step[index] = h
            ends = []
            for sign in (1, -1):
                point = [w1, b1]
                point[replaced] = given_array + sign * step
                ends.append(loss(*point))
            assert gradient[index] == pytest.approx((ends[0] - ends[1]) / (2 * h), abs=1e-7)


# -- nothing to compute -------------------------------------------------------------------------------------


@pytest.mark.parametrize("epilog", FORWARD)
@pytest.mark.parametrize(("m", "n", "k"), [(0, 3, 2), (3, 0, 2), (0, 0, 0), (3, 4, 0)])
def test_zero_extents_pass_through_the_epilog(epilog, m, n, k):
    a, b = np.ones((m, k), np.float32), np.ones((k, n), np.float32)
    c = whole(rng(), (m, n), np.float32)
    bias = whole(rng(1), (m, 1), np.float32)
    inputs = {"bias": bias} if "BIAS" in epilog else {}
    got = product(a, b, c, beta=2, epilog=epilog, inputs=inputs)
    before = 2 * wide(c) + (wide(bias) if inputs else 0)
    want = np.maximum(before, 0) if "RELU" in epilog else gelu(before) if "GELU" in epilog else before
    np.testing.assert_allclose(got["d"], want, rtol=1e-6, atol=1e-6)
    for name in ("relu_aux", "gelu_aux"):
        if name in got:
            assert got[name].shape == aux_extents(name, m, n, "rows" if inputs else "columns")


@pytest.mark.parametrize(("m", "n", "k"), [(0, 3, 2), (3, 0, 2), (3, 4, 0)])
def test_gradients_of_nothing_are_zero(m, n, k):
    a, b = np.ones((m, k), np.float32), np.ones((k, n), np.float32)
    assert product(a, b, epilog="BGRADA")["bgrada"].tolist() == [float(k)] * m
    assert product(a, b, epilog="BGRADB")["bgradb"].tolist() == [float(k)] * n
    mask = np.full(aux_extents("relu_aux", m, n, "rows"), 255, np.uint8, order="F")
    got = product(a, b, epilog="DRELU_BGRAD", inputs={"relu_aux": mask})["drelu_bgrad"]
    assert got.tolist() == [0.0] * m
