# SPDX-License-Identifier: Apache-2.0
"""Reported cases about bias, activations and their gradients: what is added, scaled and kept, and along which axis.

``tests/gpu/host/test_reports_epilogs.py`` runs those that ask for a ``library`` on a GPU.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from nvmath_device.errors import InvalidArgumentError, UnsupportedError
from nvmath_device.host import MatmulEpilog, matmul
from tests.host.cpu_products import UNIT, bits_of, normal, whole
from tests.host.report_tools import BF16, F16, F32, F64, assert_exact, assert_product, cpu_library, expected, wide

library = cpu_library
E = MatmulEpilog
ACTIVATIONS = {
    E.BIAS: lambda x: x,
    E.RELU_BIAS: lambda x: np.maximum(x, 0),
    E.GELU_BIAS: lambda x: gelu(x),
}


def gelu(x):
    """The tanh form: Hendrycks and Gimpel, Gaussian Error Linear Units, section 2."""
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def erf_gelu(x):
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


# The tanh instruction of GPUs has a relative error of at most 2^-10.987 (PTX, tanh.approx.f32), of which x / 2 is seen.
TANH_ERROR = 2.0**-10.987 / 2


def assert_gelu(got, before, size, k):
    """GELU of ``before``, a sum of k products with terms of ``size``; its slope is at most 1.13."""
    want, rounded = gelu(before), 8 * UNIT[got.dtype.name]
    allowed = rounded * np.maximum(abs(want), 0.1) + TANH_ERROR * abs(before) + 1.13 * (k + 8) * 2.0**-24 * size
    assert (abs(wide(got) - want) <= allowed).all()


@pytest.mark.parametrize("beta", [0, 2])
def test_r058_alpha_scales_the_product_under_a_bias(library, beta):
    rng = np.random.default_rng(58)
    for dtype in library.having(F32, F16, BF16, F64):
        for along, shape in (("rows", (48, 1)), ("columns", (1, 80))):
            a, b, c = normal(rng, (48, 32), dtype), normal(rng, (32, 80), dtype), normal(rng, (48, 80), dtype)
            bias = normal(rng, shape, dtype)
            out = library.poisoned((48, 80), dtype, "F" if along == "rows" else "C")
            library.matmul(
                library.put(a), library.put(b), library.put(c), alpha=0.5, beta=beta, epilog="BIAS",
                epilog_inputs={"bias": library.put(bias)}, out=out,
            )  # fmt: skip
            assert_product(library.get(out), *expected(a, b, c, alpha=0.5, beta=beta, bias=bias), 32)


def test_r059_beta_scales_c_and_not_the_bias(library):
    rng = np.random.default_rng(59)
    for dtype in library.having(F32, F16):
        a, b, c = whole(rng, (24, 8), dtype), whole(rng, (8, 40), dtype), whole(rng, (24, 40), dtype)
        for bias in (whole(rng, (24,), dtype, 9), whole(rng, (1, 40), dtype, 9)):
            d = library.matmul(
                library.put(a), library.put(b), library.put(c), beta=3, epilog="BIAS",
                epilog_inputs={"bias": library.put(bias)},
            )  # fmt: skip
            column = bias[:, None] if bias.ndim == 1 else bias
            assert_exact(library.get(d), wide(a) @ wide(b) + 3 * wide(c) + wide(column))


# -- forms of a bias ----------------------------------------------------------------------------------------

FORMS_2D = {"m": ((6,), (6, 1)), "m1": ((6, 1), (6, 1)), "1m1": ((1, 6, 1), (6, 1)), "1n": ((1, 9), (1, 9)),
            "11n": ((1, 1, 9), (1, 9))}  # fmt: skip
FORMS_BATCHED = {**FORMS_2D, "bm1": ((4, 6, 1), (4, 6, 1)), "b1n": ((4, 1, 9), (4, 1, 9))}


@pytest.mark.parametrize("batch", [(), (4,)], ids=str)
def test_r060_every_accepted_form_of_a_bias(library, batch):
    rng = np.random.default_rng(60)
    for given, meant in (FORMS_BATCHED if batch else FORMS_2D).values():
        a, b, bias = whole(rng, (*batch, 6, 5), F32), whole(rng, (*batch, 5, 9), F32), whole(rng, given, F32, 9)
        want = wide(a) @ wide(b) + wide(bias.reshape(meant))
        for epilog, function in (("BIAS", lambda x: x), ("RELU_BIAS", lambda x: np.maximum(x, 0))):
            inputs = {"bias": library.put(bias)}
            d = library.matmul(library.put(a), library.put(b), epilog=epilog, epilog_inputs=inputs)
            assert_exact(library.get(d), function(want))


def test_r060_a_square_result_does_not_confuse_rows_with_columns(library):
    rng = np.random.default_rng(61)
    a, b, bias = whole(rng, (7, 7), F32), whole(rng, (7, 7), F32), whole(rng, (7,), F32, 9)
    for form, wanted in (((7,), (7, 1)), ((7, 1), (7, 1)), ((1, 7), (1, 7)), ((1, 1, 7), (1, 7)), ((1, 7, 1), (7, 1))):
        inputs = {"bias": library.put(bias.reshape(form))}
        d = library.matmul(library.put(a), library.put(b), epilog="BIAS", epilog_inputs=inputs)
        assert_exact(library.get(d), wide(a) @ wide(b) + wide(bias.reshape(wanted)))


@pytest.mark.parametrize("shape", [(9,), (6, 9), (), (1,), (1, 6), (9, 1), (2, 6, 1), (1, 1, 1, 8)], ids=str)
def test_r060_other_forms_are_refused_with_those_that_are_accepted(library, shape):
    a, b = library.put(np.zeros((6, 5), np.float32)), library.put(np.zeros((5, 9), np.float32))
    with pytest.raises(InvalidArgumentError) as caught:
        library.matmul(a, b, epilog="BIAS", epilog_inputs={"bias": library.put(np.zeros(shape, np.float32))})
    assert f"bias has the shape {shape}" in str(caught.value)
    for accepted in ("(6,)", "(6, 1)", "(1, 9)"):
        assert accepted in str(caught.value)


def test_r060_a_batch_of_biases_of_another_size_is_refused_with_the_batched_forms(library):
    a, b = library.put(np.zeros((4, 6, 5), np.float32)), library.put(np.zeros((4, 5, 9), np.float32))
    with pytest.raises(InvalidArgumentError, match=r"\(\*batch, 6, 1\).*\(\*batch, 1, 9\)"):
        library.matmul(a, b, epilog="BIAS", epilog_inputs={"bias": library.put(np.zeros((3, 6, 1), np.float32))})


def test_r061_a_bias_at_the_address_of_any_element(library):
    rng = np.random.default_rng(61)
    for dtype in library.having(F16, F32, BF16):
        for along, shape in (("rows", (128,)), ("columns", (1, 128))):
            a, b, bias = normal(rng, (128, 128), dtype), normal(rng, (128, 128), dtype), normal(rng, shape, dtype)
            want, size = expected(a, b, bias=bias[:, None] if along == "rows" else bias)
            for epilog, function in ACTIVATIONS.items():
                inputs = {"bias": library.at_offset(bias, dtype.itemsize)}
                got = library.get(library.matmul(library.put(a), library.put(b), epilog=epilog, epilog_inputs=inputs))
                if epilog is E.GELU_BIAS:
                    assert_gelu(got, want, size, 128)
                else:
                    assert_product(got, function(want), size, 128)


# -- activations --------------------------------------------------------------------------------------------


def test_r066_gelu_is_the_tanh_form(library):
    """A times the unit matrix is A, so that nothing but GELU computes."""
    for dtype in library.having(F32, F16, BF16):
        x = np.linspace(-6, 6, 32 * 64).reshape(32, 64).astype(dtype)
        one = np.eye(64, dtype=dtype)
        bias = np.zeros((1, 64), dtype)
        for epilog, inputs in (("GELU", None), ("GELU_BIAS", {"bias": library.put(bias)})):
            got = library.get(library.matmul(library.put(x), library.put(one), epilog=epilog, epilog_inputs=inputs))
            assert_gelu(got, wide(x), abs(wide(x)), 1)
            if dtype == F32:  # fp16 rounds by more than the forms differ
                off = [np.linalg.norm(wide(got) - form(wide(x))) for form in (gelu, erf_gelu)]
                assert off[0] < off[1]


@pytest.mark.parametrize("direction", ["rows", "columns"])
def test_r066_the_aux_output_is_the_value_before_gelu(library, direction):
    rng = np.random.default_rng(66)
    for dtype in library.having(F32, F16, BF16):
        x, one = rng.uniform(-6, 6, (32, 64)).astype(dtype), np.eye(64, dtype=dtype)
        bias = rng.uniform(-1, 1, (32, 1) if direction == "rows" else (1, 64)).astype(dtype)
        out = library.poisoned((32, 64), dtype, "F" if direction == "rows" else "C")
        for epilog, before in (("GELU_AUX_BIAS", wide(x) + wide(bias)), ("GELU_AUX", wide(x))):
            inputs = {"bias": library.put(bias)} if "BIAS" in epilog else None
            d, aux = library.matmul(
                library.put(x), library.put(one), epilog=epilog, epilog_inputs=inputs, out=out
            )  # fmt: skip
            kept = library.get(aux["gelu_aux"])
            assert kept.dtype == dtype
            assert_exact(kept[:32, :64], before.astype(np.float32).astype(dtype))
            assert_gelu(library.get(d), before, abs(before), 1)


SPECIAL = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1.5, -1.5, 3.0], np.float32)


def special_operands(dtype):
    """Operands whose product has a special value in each row and every column: the rest of A and B is zero."""
    a, b = np.zeros((8, 16), dtype), np.zeros((16, 24), dtype)
    a[:, 0], b[0] = SPECIAL, 1
    return a, b


def assert_rectified(got, product, on_gpu):
    nan = np.isnan(product)
    assert np.array_equal(got[~nan], np.where(product > 0, product, 0)[~nan])
    assert (np.isnan(got[nan]) | (on_gpu & (got[nan] == 0))).all()


def test_r067_relu_makes_zero_of_nan_or_keeps_it_and_is_exact_otherwise(library):
    """What becomes of NaN depends on cuBLASLt's algorithm; on the CPU it is kept."""
    for dtype in library.having(F32, F16, BF16):
        a, b = special_operands(dtype)
        product = np.broadcast_to(SPECIAL[:, None], (8, 24)).astype(np.float64)
        plain = library.get(library.matmul(library.put(a), library.put(b)))
        assert np.array_equal(wide(plain), product, equal_nan=True)
        for bias in (None, np.zeros((8, 1), dtype), np.zeros((1, 24), dtype)):
            inputs = {} if bias is None else {"bias": library.put(bias)}
            suffix = "" if bias is None else "_BIAS"
            d = library.matmul(library.put(a), library.put(b), epilog=f"RELU{suffix}", epilog_inputs=inputs)
            assert_rectified(wide(library.get(d)), product, library.on_gpu)
            d, aux = library.matmul(library.put(a), library.put(b), epilog=f"RELU_AUX{suffix}", epilog_inputs=inputs)
            assert_rectified(wide(library.get(d)), product, library.on_gpu)
            mask = library.get(aux["relu_aux"])
            along = "rows" if mask.shape == (16, 24) else "columns"
            told = ~np.isnan(product) & (product != 0)  # the bits of NaN and 0 are up to the algorithm
            assert np.array_equal(bits_of(mask, 8, 24, along)[told], (product > 0)[told])


# -- gradients ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("epilog", ["BGRADA", "BGRADB"])
def test_r089_bias_gradients_have_the_length_and_axis_of_their_operand(library, epilog, order):
    """A of (m, k) summed over k has m numbers; B of (k, n) summed over k has n."""
    rng = np.random.default_rng(89)
    m, n, k = 96, 160, 64
    for dtype in library.having(F16, F32):
        for a_order, b_order in ("CC", "CF", "FC", "FF"):
            a = np.asarray(normal(rng, (m, k), dtype), order=a_order)
            b = np.asarray(normal(rng, (k, n), dtype), order=b_order)
            out = library.poisoned((m, n), dtype, order)
            d, aux = library.matmul(library.put(a), library.put(b), epilog=epilog, out=out)
            summed, axis = (a, 1) if epilog == "BGRADA" else (b, 0)
            gradient = library.get(aux[epilog.lower()])
            assert_product(gradient, wide(summed).sum(axis), abs(wide(summed)).sum(axis), k)
            assert_product(library.get(d), *expected(a, b), k)


def test_r090_an_epilog_that_there_is_not_is_refused_with_those_there_are():
    with pytest.raises(InvalidArgumentError, match="'SILU' is not an epilog of cuBLASLt") as caught:
        matmul(np.eye(4), np.eye(4), epilog="SILU", options={"execution": "cpu"})
    for name in MatmulEpilog.__members__:
        if name != "DEFAULT":
            assert name in str(caught.value)
    assert "kernel" in str(caught.value)


@pytest.mark.parametrize("dtype", [np.complex64, np.int8])
def test_r087_types_without_epilogs_say_so_by_name(dtype):
    with pytest.raises(UnsupportedError, match="epilog: RELU is not offered: cuBLASLt has no epilogs for"):
        matmul(np.eye(4).astype(dtype), np.eye(4).astype(dtype), epilog="RELU", options={"execution": "cpu"})
