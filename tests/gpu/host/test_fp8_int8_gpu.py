# SPDX-License-Identifier: Apache-2.0
"""fp8 with tensor-wide scales and largest values, and int8: what cuBLASLt asks of them is met by copies, or refused.

int8 is compared bit by bit. For fp8 ``products.py`` says what the tensor cores lose. Layouts, batches, forms of C and
epilogs of these types are in the other files.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from nvmath_device import host
from nvmath_device.errors import InvalidArgumentError, UnsupportedError
from tests.gpu.host.libraries import CUPY, combinations, needs, place, to_numpy
from tests.gpu.host.product_cases import LAYOUTS, array, aux_of, bias_of, pair
from tests.gpu.host.product_checks import check, close, expected, norm_error, rounding
from tests.gpu.host.products import FP8_KINDS, INT8, Case, Given, Kind, lay, run

E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"
TO_FP8 = [kind for kind in FP8_KINDS.values() if kind.d in (E4M3, E5M2)]
INTO_INT8 = Kind("int8", "int8", "int8", "int8", "int32")
pytestmark = needs["torch"]


def on_gpu(values, name, **layout):
    return place("torch", lay(values, name, **layout), "cuda").array


# -- fp8 ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FP8_KINDS.values(), ids=str)
def test_scales_as_numbers_and_on_the_gpu(kind):
    """alpha scale_a scale_b A B, and D times scale_d before it is rounded. Arrays are read when the product is."""
    import torch

    rng = np.random.default_rng(30)
    given = pair(rng, kind, "torch", (32, 64), (64, 48), LAYOUTS["C"], LAYOUTS["F"])
    scales = {"a": 0.25, "b": 8.0} | ({"d": 0.5} if kind in TO_FP8 else {})
    case = Case(kind, given, alpha=0.5, scales=scales)
    for case.form in ("function", "object"):
        check(case, run(case, "cuda"))
    a, b = (place("torch", given[name].lay, "cuda").array for name in "ab")
    held = {name: torch.tensor(value, device="cuda") for name, value in scales.items()}
    wanted = expected(case)["d"]
    close(to_numpy(host.matmul(a, b, alpha=0.5, quantization_scales=held, options=kind.options)), wanted)
    with host.Matmul(a, b, alpha=0.5, quantization_scales=held, options=kind.options) as mm:
        mm.plan()
        close(to_numpy(mm.execute()), wanted)
        held["a"].mul_(2)
        held["b"].div_(2)
        close(to_numpy(mm.execute()), wanted)
        held["b"].mul_(2)
        case.scales = scales | {"a": 0.5}
        close(to_numpy(mm.execute()), expected(case)["d"])
        mm.reset_operands(quantization_scales=dict(scales))
        close(to_numpy(mm.execute()), wanted)


@pytest.mark.parametrize("kind", TO_FP8, ids=str)
def test_largest_value_of_an_fp8_result(kind):
    """Before scale_d and rounding, in float32, beside the result; over all of a batch."""
    rng = np.random.default_rng(31)
    for batch in ((), (3,)):
        given = pair(rng, kind, "torch", (*batch, 32, 64), (64, 48), LAYOUTS["C"], LAYOUTS["F"])
        case = Case(kind, given, scales={"d": 0.5}, options={"result_amax": True})
        for case.form in ("function", "object"):
            outcome = run(case, "cuda")
            assert outcome.arrays["result_amax"].dtype == np.float32
            check(case, outcome)


def test_an_fp8_aux_is_refused():
    """cuBLASLt 13.1 takes it and writes other numbers than the input of GELU."""
    kind = FP8_KINDS[f"{E4M3}x{E5M2}->{E5M2}"]
    given = pair(np.random.default_rng(32), kind, "torch", (32, 64), (64, 48), LAYOUTS["C"], LAYOUTS["F"])
    a, b = (place("torch", given[name].lay, "cuda").array for name in "ab")
    for preferences in (None, {"epilog": {"aux_amax": True}}):
        with pytest.raises(UnsupportedError, match="GELU_AUX is not offered with a gelu_aux of float8_e5m2"):
            host.matmul(a, b, epilog="GELU_AUX", preferences=preferences, options={"result_type": E5M2})


@pytest.mark.parametrize("kind", FP8_KINDS.values(), ids=str)
def test_odd_extents_orders_and_addresses_are_met_by_copies(kind):
    """cuBLASLt wants K contiguous and everything in units of 16 bytes; the result is as if it did not."""
    rng = np.random.default_rng(33)
    for m, n, k in ((1, 1, 1), (17, 33, 5), (16, 16, 15), (100, 50, 30)):
        for of_a, of_b in (("C", "F"), ("F", "C"), ("C, off by one element", "F, odd leading dimension")):
            given = pair(rng, kind, "torch", (m, k), (k, n), LAYOUTS[of_a], LAYOUTS[of_b])
            case = Case(kind, given, form="object")
            outcome = run(case, "cuda")
            check(case, outcome)
            assert outcome.copies
            with pytest.raises(InvalidArgumentError, match="copies: 'refuse'"):
                run(case, "cuda", copies="refuse")
    given = pair(rng, kind, "torch", (32, 64), (64, 48), LAYOUTS["C"], LAYOUTS["F"])
    case = Case(kind, given, form="object")
    check(case, outcome := run(case, "cuda", copies="refuse"))
    assert outcome.copies == ()


def test_fp8_results_saturate():
    """CUDA's conversions give the largest number where others give infinity or NaN."""
    for name, top in ((E4M3, 448.0), (E5M2, 57344.0)):
        a = on_gpu(np.full((16, 32), 400.0), E4M3)
        b = on_gpu(np.tile([-400.0, 400.0], (32, 8)), name, order="F")
        got = to_numpy(host.matmul(a, b, options={"result_type": name})).astype(float)
        assert set(abs(got).ravel()) == {top}
        assert (np.sign(got[0]) == np.tile([-1, 1], 8)).all()


def test_fast_accumulation_is_on_request_and_less_exact():
    rng = np.random.default_rng(34)
    kind = FP8_KINDS[f"{E4M3}->float32" if f"{E4M3}->float32" in FP8_KINDS else f"{E4M3}x{E4M3}->float32"]
    case = Case(kind, pair(rng, kind, "torch", (256, 8192), (8192, 256), LAYOUTS["C"], LAYOUTS["F"]))
    want = case.a @ case.b
    errors = {fast: norm_error(run(case, "cuda", fast_accumulation=fast).arrays["d"], want) for fast in (False, True)}
    assert errors[False] < 2e-3
    assert errors[True] < 5e-2


def test_fp8_that_cublaslt_does_not_have_is_refused_in_words():
    a = on_gpu(np.ones((16, 16)), E5M2)
    with pytest.raises(UnsupportedError, match=r"float8_e5m2 x float8_e5m2.*convert one of them"):
        host.matmul(a, a)
    half = on_gpu(np.ones((16, 16)), "float16")
    with pytest.raises(UnsupportedError, match=r"quantization_scales: a is given.*only fp8"):
        host.matmul(half, half, quantization_scales={"a": 2.0})
    with pytest.raises(UnsupportedError, match="result_amax: only fp8"):
        host.matmul(half, half, options={"result_amax": True})
    e4m3 = on_gpu(np.ones((16, 16)), E4M3)
    with pytest.raises(UnsupportedError, match=r"quantization_scales: d is given.*float16"):
        host.matmul(e4m3, e4m3, quantization_scales={"d": 2.0}, options={"result_type": "float16"})


@pytest.mark.parametrize("epilog", ["RELU_AUX", "DRELU", "DGELU_BGRAD"])
def test_auxiliary_arrays_of_odd_fp8_products_are_refused_in_words(epilog):
    """They are not rounded up."""
    kind = FP8_KINDS[f"{E4M3}x{E5M2}->bfloat16"]
    rng = np.random.default_rng(35)
    given = pair(rng, kind, "torch", (17, 32), (32, 17))
    if epilog != "RELU_AUX":
        name = "relu_aux" if epilog == "DRELU" else "gelu_aux"
        given[name] = aux_of(rng, kind, "torch", name, (), 17, 17, "rows")
    with pytest.raises(UnsupportedError, match=rf"{epilog} is not offered for a result of \(17, 17\)"):
        run(Case(kind, given, epilog=epilog, along="rows"), "cuda")


@pytest.mark.parametrize("epilog", ["BGRADA", "BGRADB"])
def test_sums_of_fp8_operands_are_refused_in_words(epilog):
    a = on_gpu(np.ones((16, 16)), E4M3)
    with pytest.raises(UnsupportedError, match=f"{epilog} is not offered for"):
        host.matmul(a, a, epilog=epilog, options={"result_type": "float16"})


def test_a_bias_of_an_fp8_product_with_a_float32_result_is_bfloat16():
    rng = np.random.default_rng(36)
    kind = FP8_KINDS[f"{E4M3}x{E5M2}->float32"]
    given = pair(rng, kind, "torch", (32, 32), (32, 32))
    given["bias"] = bias_of(rng, kind, "torch", (1, 32))
    assert given["bias"].lay.buffer.dtype == ml_dtypes.bfloat16
    case = Case(kind, given, epilog="RELU_BIAS", along="columns")
    check(case, run(case, "cuda"))
    given["bias"] = Given(array(rng, (1, 32), "float32"), "torch")
    with pytest.raises(InvalidArgumentError, match=r"bias: float32.*bfloat16"):
        run(case, "cuda")


# -- int8 ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "library"), combinations([*INT8.values(), INTO_INT8], ["cupy", "torch", "numba"]))
def test_int8_of_any_extents_and_layouts_is_exact(kind, library):
    """Whole range of int8, K up to 1000: sums stay below 2**24, so float32 has them exactly, too."""
    rng = np.random.default_rng(37)
    for m, n, k in ((1, 1, 1), (3, 5, 7), (4, 4, 4), (16, 32, 64), (33, 66, 1000), (130, 7, 9)):
        for of_a, of_b in (("C", "F"), ("F", "C"), ("C, off by one element", "F, odd leading dimension"), ("C", "C")):
            values = rng.integers(-128, 128, (m, k)), rng.integers(-128, 128, (k, n))
            given = {
                name: Given(lay(x, "int8", **LAYOUTS[layout]), library)
                for name, x, layout in zip("ab", values, (of_a, of_b), strict=True)
            }
            case = Case(kind, given, alpha=2.0**-9 if kind.d == "int8" else None)
            want = values[0] @ values[1]
            got = run(case, "cuda").arrays["d"]
            if kind.d == "int8":
                want = np.clip(np.rint(want * 2.0**-9), -128, 127)
            assert np.array_equal(got, want)


@pytest.mark.parametrize("library", [CUPY, "torch"])
def test_int8_batches_and_sums_of_the_whole_range(library):
    """-128 * -128 * 100,000 fits in int32; a batch is broadcast and looped over where cuBLASLt has no batches."""
    a = place(library, lay(np.full((4, 100_000), -128), "int8"), "cuda").array
    got = to_numpy(host.matmul(a, a.T))
    assert (got == 128 * 128 * 100_000).all()
    rng = np.random.default_rng(38)
    x, y = rng.integers(-128, 128, (2, 3, 8, 12)), rng.integers(-128, 128, (3, 12, 4))
    x_gpu, y_gpu = (place(library, lay(v, "int8"), "cuda").array for v in (x, y))
    for result in (host.matmul(x_gpu, y_gpu), host.matmul(x_gpu, y_gpu)):
        assert np.array_equal(to_numpy(result), x @ y)


@pytest.mark.parametrize("kind", INT8.values(), ids=str)
def test_int8_factors(kind):
    rng = np.random.default_rng(39)
    given = pair(rng, kind, "torch", (12, 8), (8, 20))
    given["c"] = Given(array(rng, (12, 20), kind.c), "torch")
    for alpha, beta in ((1, 1), (0, 1), (1, 0), (None, 1)):
        case = Case(kind, given, alpha=alpha, beta=beta)
        check(case, run(case, "cuda"))
    if kind.d == "int32":
        with pytest.raises(InvalidArgumentError, match=r"alpha: 2.* 0 or 1"):
            run(Case(kind, pair(rng, kind, "torch", (12, 8), (8, 20)), alpha=2), "cuda")


def test_rounding_of_the_oracle_saturates_as_cuda_does():
    """The oracle itself: a number beyond the largest counts as the largest, with the error of one rounding."""
    assert rounding(np.array(448.0), E4M3) == pytest.approx(28.0, rel=1e-3)
    kind = TO_FP8[0]
    given = {n: Given(lay(np.full((16, 16), 400.0), getattr(kind, n)), "numpy") for n in "ab"}
    assert (expected(Case(kind, given))["d"].values == 448).all()
    small = Case(kind, given, alpha=2.0**-21)
    assert float(expected(small)["d"].values[0, 0]) == 16 * small.a[0, 0] * small.b[0, 0] * 2.0**-21
