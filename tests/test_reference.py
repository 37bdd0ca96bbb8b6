# SPDX-License-Identifier: Apache-2.0
"""The NumPy twin of GEMM and FFT against bit patterns by hand, exact fractions and plain Python loops."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvmath_device.descriptors import Precision
from nvmath_device.dtypes import (
    ElementType,
    ValueType,
    bfloat16,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    tfloat32,
    uint8,
    uint32,
)
from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError
from nvmath_device.reference import as_complex, from_complex, gemm, product_type, round_to

SEED = 20251201


def rng() -> np.random.Generator:
    return np.random.default_rng(SEED)


# -- rounding ----------------------------------------------------------------------------------------------

# float32 bits: rounded to 10 mantissa bits to nearest even; cut toward zero
TF32_BITS = [
    (0x3F800000, 0x3F800000, 0x3F800000),  # 1
    (0x3F800FFF, 0x3F800000, 0x3F800000),  # just below the midpoint
    (0x3F801000, 0x3F800000, 0x3F800000),  # midpoint, even neighbour below
    (0x3F801001, 0x3F802000, 0x3F800000),  # just above it
    (0x3F803000, 0x3F804000, 0x3F802000),  # midpoint, even neighbour above
    (0xBF801001, 0xBF802000, 0xBF800000),  # negative
    (0x3FFFFFFF, 0x40000000, 0x3FFFE000),  # carries into the exponent
    (0x7F7FEFFF, 0x7F7FE000, 0x7F7FE000),  # largest that stays finite
    (0x7F7FFFFF, 0x7F800000, 0x7F7FE000),  # overflows, but is not cut to infinity
    (0xFF7FFFFF, 0xFF800000, 0xFF7FE000),
    (0x7F800000, 0x7F800000, 0x7F800000),  # infinity
    (0x00000000, 0x00000000, 0x00000000),
    (0x80000000, 0x80000000, 0x80000000),
    (0x00001000, 0x00000000, 0x00000000),  # subnormal midpoint
    (0x00001001, 0x00002000, 0x00000000),
    (0x80001001, 0x80002000, 0x80000000),
    (0x007FFFFF, 0x00800000, 0x007FE000),  # subnormal becomes normal
]


@pytest.mark.parametrize(("given_bits", "nearest", "cut"), TF32_BITS)
def test_tf32_bit_patterns(given_bits: int, nearest: int, cut: int) -> None:
    x = np.array([given_bits], np.uint32).view(np.float32)
    for values in (x, x.astype(np.float64)):
        assert round_to(values, tfloat32).view(np.uint32)[0] == nearest
        assert round_to(values, tfloat32, mode="truncate").view(np.uint32)[0] == cut


@given(st.floats(width=32, allow_nan=False))
def test_tf32_cut_is_clearing_the_low_13_bits(x: float) -> None:
    bits = int(np.array(x, np.float32).view(np.uint32))
    assert int(round_to(np.float32(x), tfloat32, mode="truncate").view(np.uint32)) == bits & 0xFFFFE000


@given(st.floats(width=32, allow_nan=False))
def test_bfloat16_is_the_upper_half_after_adding_half_a_bit(x: float) -> None:
    bits = int(np.array(x, np.float32).view(np.uint32))
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    assert int(round_to(np.float32(x), bfloat16).view(np.uint16)) == rounded


@given(st.floats(allow_nan=False))
def test_float16_and_float32_agree_with_numpy(x: float) -> None:
    with np.errstate(over="ignore"):
        assert round_to(x, float16).tobytes() == np.float64(x).astype(np.float16).tobytes()
        assert round_to(x, float32).tobytes() == np.float64(x).astype(np.float32).tobytes()
    assert round_to(x, float64) == x


@pytest.mark.parametrize(
    ("element", "bit"), [(bfloat16, 2**-7), (float16, 2**-10), (tfloat32, 2**-10), (float8_e4m3fn, 2**-3)]
)
def test_float64_is_rounded_once(element: ElementType, bit: float) -> None:
    """1 + bit/2 + a little lies above the midpoint; by way of float32 it would become the midpoint, and 1."""
    x = 1 + bit / 2 + 2**-40
    assert np.float32(x) == 1 + bit / 2
    assert float(round_to(x, element)) == 1 + bit
    assert float(round_to(-x, element)) == -1 - bit
    assert float(round_to(x, element, mode="truncate")) == 1


def _fp8_numbers(exponent_bits: int, mantissa_bits: int, top: int) -> list[Fraction]:
    """Finite numbers of the codes 0 to ``top``, decoded by the definition of the format."""
    bias = 2 ** (exponent_bits - 1) - 1
    numbers = []
    for code in range(top + 1):
        exponent, mantissa = code >> mantissa_bits, code & (2**mantissa_bits - 1)
        significand = Fraction(mantissa, 2**mantissa_bits) + (1 if exponent else 0)
        numbers.append(significand * Fraction(2) ** (max(exponent, 1) - bias))
    return numbers


FP8 = {float8_e4m3fn: _fp8_numbers(4, 3, 0x7E), float8_e5m2: _fp8_numbers(5, 2, 0x7B)}


@pytest.mark.parametrize("element", [float8_e4m3fn, float8_e5m2])
@given(x=st.one_of(st.floats(-70000, 70000), st.floats(-1, 1), st.floats(-(2.0**-12), 2.0**-12)))
def test_fp8_is_the_nearest_number_and_the_even_code_on_ties(element: ElementType, x: float) -> None:
    numbers = FP8[element]
    distance = [abs(abs(Fraction(x)) - n) for n in numbers]
    nearest = [code for code, d in enumerate(distance) if d == min(distance)]
    code = nearest[0] if len(nearest) == 1 else next(c for c in nearest if c % 2 == 0)
    sign = 0x80 if math.copysign(1, x) < 0 else 0
    assert int(round_to(x, element).view(np.uint8)) == code | sign


def test_fp8_beyond_the_largest_number() -> None:
    """CUDA's rules: a saturating conversion cuts infinities too; E4M3 has no infinity."""
    x = np.array([464, 464.1, 1e9, np.inf, -np.inf, np.nan])
    assert round_to(x, float8_e4m3fn).view(np.uint8).tolist() == [0x7E, 0x7E, 0x7E, 0x7E, 0xFE, 0x7F]
    unsaturated = round_to(x, float8_e4m3fn, saturate=False).astype(np.float64)
    assert unsaturated[0] == 448
    assert np.isnan(unsaturated[1:]).all()
    x = np.array([61439, 61440, 1e9, -np.inf])
    assert round_to(x, float8_e5m2).astype(float).tolist() == [57344, 57344, 57344, -57344]
    assert round_to(x, float8_e5m2, saturate=False).astype(float).tolist() == [
        57344,
        math.inf,
        math.inf,
        -math.inf,
    ]
    assert np.isnan(float(round_to(np.nan, float8_e5m2)))


@pytest.mark.parametrize("element", [float16, bfloat16, float8_e4m3fn, float8_e5m2])
@pytest.mark.parametrize("saturate", [None, True, False])
def test_float32_is_rounded_as_the_same_numbers_in_float64(element: ElementType, saturate: bool | None) -> None:
    """Every float32 with these low bits: float32 goes through conversions of NumPy and ml_dtypes, float64 does not."""
    bits = np.uint16 if element.itemsize == 2 else np.uint8
    for low in (0, 1, 0x7FF, 0x800, 0x801, 0xFFF):
        x = (np.arange(2**20, dtype=np.uint32) << 12 | low).view(np.float32)
        with np.errstate(invalid="ignore"):
            got, want = (round_to(values, element, saturate=saturate) for values in (x, x.astype(np.float64)))
        nan = np.isnan(want.astype(np.float32))
        np.testing.assert_array_equal(np.isnan(got.astype(np.float32)), nan)
        np.testing.assert_array_equal(got.view(bits)[~nan], want.view(bits)[~nan])


def test_overflow_elsewhere_is_infinity_unless_saturated_or_cut() -> None:
    x = np.array([65519.9, 65520, -1e300])
    assert round_to(x, float16).tolist() == [65504, math.inf, -math.inf]
    assert round_to(x, float16, saturate=True).tolist() == [65504, 65504, -65504]
    assert round_to(x, float16, mode="truncate").tolist() == [65504, 65504, -65504]
    assert round_to(1e39, float32) == np.inf
    assert round_to(1e39, float32, saturate=True) == round_to(1e39, float32, mode="truncate") == np.finfo("f").max
    assert np.isnan(round_to([np.nan], tfloat32, mode="truncate")).all()


def test_rounding_complex_and_refusals() -> None:
    z = np.array([1 + 2**-11 - 3j])
    assert round_to(z, tfloat32).tolist() == [1 - 3j]
    assert round_to(z, tfloat32).dtype == np.complex64
    with pytest.raises(InvalidArgumentError, match="complex float16"):
        round_to(z, float16)
    with pytest.raises(InvalidArgumentError, match="int8 is an integer type"):
        round_to([1.0], int8)
    with pytest.raises(InvalidArgumentError, match="mode: 'up'"):
        round_to([1.0], float16, mode="up")  # type: ignore[arg-type]


# -- storage forms -----------------------------------------------------------------------------------------


def test_two_components_from_every_form() -> None:
    want = [1 + 2j, -3 + 0.5j]
    records = np.array([(1, 2), (-3, 0.5)], dtype=[("x", np.float16), ("y", np.float16)])
    components = np.array([[1, 2], [-3, 0.5]], np.float16)
    for form in (records, components, np.array(want)):
        assert as_complex(form, ValueType(float16, 2)).tolist() == want
    back = from_complex(np.array(want), ValueType(float16, 2))
    assert back.dtype == records.dtype
    assert back.tolist() == records.tolist()
    stored = from_complex(np.array([1 + 2**-8 + 2**-40 + 5j]), ValueType(bfloat16, 2))
    assert (float(stored["x"][0]), float(stored["y"][0])) == (1 + 2**-7, 5)
    assert from_complex([1.9 - 2.9j], ValueType(int8, 2)).tolist() == [(1, -2)]


def test_four_components_are_two_numbers_re_re_im_im() -> None:
    value = ValueType(float16, 4)
    stored = np.array([(1, 2, 3, 4), (5, 6, 7, 8)], dtype=value.dtype)
    assert as_complex(stored, value).tolist() == [[1 + 3j, 5 + 7j], [2 + 4j, 6 + 8j]]
    assert from_complex(as_complex(stored, value), value).tolist() == stored.tolist()
    components = np.arange(1, 9, dtype=np.float16).reshape(2, 4)
    assert as_complex(components, value).tolist() == as_complex(stored, value).tolist()


def test_an_infinite_part_leaves_the_other_alone() -> None:
    stored = np.array([(1, np.inf)], dtype=[("x", np.float16), ("y", np.float16)])
    z = as_complex(stored, ValueType(float16, 2))
    assert (z.real[0], z.imag[0]) == (1, np.inf)


def test_storage_forms_that_do_not_fit() -> None:
    with pytest.raises(InvalidArgumentError, match="last axis must have length 2"):
        as_complex(np.zeros((4, 3), np.float16), ValueType(float16, 2))
    with pytest.raises(ArgumentTypeError, match=r"fields \('x', 'y'\)"):
        as_complex(np.zeros(4, [("x", "f2"), ("y", "f2")]), ValueType(float16, 4))
    with pytest.raises(InvalidArgumentError, match="is real"):
        as_complex(np.zeros(4), ValueType(float32))
    with pytest.raises(InvalidArgumentError, match="first axis must have length 2"):
        from_complex(np.zeros((3, 4), complex), ValueType(float16, 4))


# -- GEMM --------------------------------------------------------------------------------------------------

SIZES = [(1, 1, 1), (3, 7, 1), (1, 3, 7), (7, 3, 5), (17, 5, 33)]


def exact_product(a: Any, b: Any) -> list[list[Any]]:
    """op(A) op(B) by three loops; exact for Fraction and int entries, two-component ones being (re, im)."""
    m, k, n = len(a), len(b), len(b[0])
    out = [[(0, 0)] * n for _ in range(m)]
    for i, j in itertools.product(range(m), range(n)):
        re = im = 0
        for p in range(k):
            (ar, ai), (br, bi) = a[i][p], b[p][j]
            re, im = re + ar * br - ai * bi, im + ar * bi + ai * br
        out[i][j] = (re, im)
    return out


def entries(array: Any, convert: Any = Fraction, sign: int = 1) -> list[list[Any]]:
    """An array as nested lists of (re, im); the imaginary part times ``sign``."""
    array = np.asarray(array)
    if array.dtype.names:
        return [[(convert(z["x"]), sign * convert(z["y"])) for z in row] for row in array]
    if np.iscomplexobj(array):
        return [[(convert(float(z.real)), sign * convert(float(z.imag))) for z in row] for row in array]
    return [[(convert(float(z) if convert is Fraction else z), 0) for z in row] for row in array]


@pytest.mark.parametrize(("m", "n", "k"), SIZES)
@pytest.mark.parametrize(
    ("precision", "unit"),
    [
        (Precision(float16, float16, float32), 2**-24),
        (Precision(bfloat16, bfloat16, float32), 2**-24),
        (Precision(float8_e4m3fn, float8_e5m2, float32), 2**-24),
        (Precision(float32, float32, float32), 2**-24),
        (Precision(float64, float64, float64), 2**-53),
        (Precision(float32, float64, float64), 2**-53),
    ],
)
def test_real_products_lie_within_the_bound_of_the_accumulator(
    m: int, n: int, k: int, precision: Precision, unit: float
) -> None:
    a = rng().standard_normal((m, k)).astype(precision.a.dtype)
    b = rng().standard_normal((k, n)).astype(precision.b.dtype)
    c = rng().standard_normal((m, n)).astype(precision.c.dtype)
    got = gemm(a, b, c, precision=precision, alpha=2, beta=-0.5)
    assert got.dtype == precision.c.dtype
    exact = exact_product(entries(a), entries(b))
    magnitude = exact_product(entries(abs(a)), entries(abs(b)))
    for i, j in itertools.product(range(m), range(n)):
        want = 2 * exact[i][j][0] - Fraction(float(c[i, j])) / 2
        size = 2 * magnitude[i][j][0] + abs(Fraction(float(c[i, j]))) / 2
        assert abs(Fraction(float(got[i, j])) - want) <= (k + 3) * Fraction(unit) * size


@pytest.mark.parametrize(("m", "n", "k"), SIZES)
@pytest.mark.parametrize(("conj_a", "conj_b"), [(False, False), (True, False), (False, True), (True, True)])
def test_complex_products_of_small_integers_are_exact(m: int, n: int, k: int, conj_a: bool, conj_b: bool) -> None:
    precision = Precision(float32, float32, float32)
    shape_a, shape_b = (m, k), (k, n)
    a = (rng().integers(-9, 9, shape_a) + 1j * rng().integers(-9, 9, shape_a)).astype(np.complex64)
    b = (rng().integers(-9, 9, shape_b) + 1j * rng().integers(-5, 9, shape_b)).astype(np.complex64)
    got = gemm(a, b, precision=precision, data_type="complex", conj_a=conj_a, conj_b=conj_b)
    sign_a, sign_b = -1 if conj_a else 1, -1 if conj_b else 1
    assert entries(got) == exact_product(entries(a, sign=sign_a), entries(b, sign=sign_b))
    as_parts = np.stack([a.real, a.imag], axis=-1)  # interleaved components
    again = gemm(as_parts, b, precision=precision, data_type="complex", conj_a=conj_a, conj_b=conj_b)
    assert again.tolist() == got.tolist()


def test_complex_alpha_and_beta() -> None:
    precision = Precision(float16, float16, float16)
    record = ValueType(float16, 2).dtype
    a, b, c = (np.array([[z]], dtype=record) for z in ((1, 2), (3, -1), (0, 1)))
    got = gemm(a, b, c, precision=precision, data_type="complex", alpha=1j, beta=2 + 1j)
    # (1+2j)(3-1j) = 5+5j; times j = -5+5j; (2+1j) j = -1+2j
    assert got.dtype == record
    assert got.tolist() == [[(-6, 7)]]
    alpha = np.zeros((), record)
    alpha["y"] = 1
    assert gemm(a, b, precision=precision, data_type="complex", alpha=alpha).tolist() == [[(-5, 5)]]


def wrap(value: int, bits: int, signed: bool) -> int:
    value %= 2**bits
    return value - 2**bits if signed and value >= 2 ** (bits - 1) else value


@pytest.mark.parametrize(
    ("precision", "bits", "signed"),
    [
        (Precision(int8, int8, int32), 32, True),
        (Precision(uint8, uint8, uint32), 32, False),
        (Precision(uint8, int8, int32), 32, True),
        (Precision(int16, int16, int64), 64, True),
    ],
)
@pytest.mark.parametrize("data_type", ["real", "complex"])
def test_integers_are_exact_and_wrap_around(precision: Precision, bits: int, signed: bool, data_type: Any) -> None:
    m, n, k = 5, 3, 7
    generator = rng()

    def matrix(element: ElementType, rows: int, cols: int) -> Any:
        info = np.iinfo(element.dtype)
        parts = generator.integers(info.min, info.max, (2, rows, cols), dtype=element.dtype, endpoint=True)
        if data_type == "real":
            return parts[0]
        stored = np.empty((rows, cols), ValueType(element, 2).dtype)
        stored["x"], stored["y"] = parts
        return stored

    a, b, c = matrix(precision.a, m, k), matrix(precision.b, k, n), matrix(precision.c, m, n)
    alpha, beta = 2 ** (bits - 12) + 3, -7  # overflows on purpose
    got = gemm(a, b, c, precision=precision, alpha=alpha, beta=beta, data_type=data_type)
    assert got.dtype == ValueType(precision.c, 2 if data_type == "complex" else 1).dtype
    exact, added = exact_product(entries(a, int), entries(b, int)), entries(c, int)
    pairs = [[zip(p, q, strict=True) for p, q in zip(*rows, strict=True)] for rows in zip(exact, added, strict=True)]
    want = [[tuple(wrap(alpha * p + beta * q, bits, signed) for p, q in cell) for cell in row] for row in pairs]
    assert entries(got, int) == [[(re, im if data_type == "complex" else 0) for re, im in row] for row in want]


def test_integers_too_large_for_exact_float64_products_are_multiplied_as_integers() -> None:
    k, sums = 2**15, np.dtype(np.int64)
    assert product_type(int16, int16, k, sums) == product_type(int8, int8, 2**38, np.dtype(np.int32)) == np.float64
    assert product_type(int8, int8, 2**38 + 1, np.dtype(np.int32)) == np.int32
    assert product_type(int32, int32, 1, sums) == np.int64
    a = np.array([[2**31 - 1, 2**31 - 3]], np.int32)
    got = gemm(a, a.T, precision=Precision(int32, int32, int64))
    assert got.tolist() == [[(2**31 - 1) ** 2 + (2**31 - 3) ** 2]]


def test_float16_results_are_rounded_once_after_sums_in_float32() -> None:
    precision = Precision(float16, float16, float16)
    a = np.array([[2048, 1, 1]], np.float16)
    ones = np.ones((3, 1), np.float16)
    assert gemm(a, ones, precision=precision).tolist() == [[2050]]  # in float16, 2048 + 1 stays 2048
    assert gemm(a[:, :2], ones[:2], precision=precision).tolist() == [[2048]]  # 2049 is a tie
    assert gemm(a[:, :2], ones[:2], precision=precision, beta=1, c=np.ones((1, 1), np.float16)).tolist() == [[2050]]
    assert gemm(a * 16, 2 * ones, precision=precision).tolist() == [[math.inf]]


def test_scalars_have_the_type_of_c() -> None:
    one = np.ones((1, 1), np.float16)
    third = gemm(3 * one, one, precision=Precision(float16, float16, float16), alpha=1 / 3)
    assert third[0, 0] == np.float16(3 * float(np.float16(1 / 3)))
    exact = gemm(3 * one, one, precision=Precision(float16, float16, float64), alpha=1 / 3)
    assert exact[0, 0] == 1
    integers = np.ones((1, 1), np.int8)
    assert gemm(integers, integers, precision=Precision(int8, int8, int32), alpha=2.9).tolist() == [[2]]


@pytest.mark.parametrize("beta", [0, 0.0, -0.0, 1e-12])
def test_an_unread_c_does_not_spread_nan(beta: float) -> None:
    """1e-12 is zero as a float16, which is all that a kernel gets to see."""
    precision = Precision(float16, float16, float16)
    a = np.full((3, 3), 2, np.float16)
    c = np.full((3, 3), np.nan, np.float16)
    assert gemm(a, a, c, precision=precision, beta=beta).tolist() == [[12.0] * 3] * 3
    assert np.isnan(gemm(a, a, c, precision=precision, beta=1)).all()


def test_alpha_zero_reads_a_and_b() -> None:
    nan = np.full((1, 1), np.nan, np.float32)
    assert np.isnan(gemm(nan, nan, precision=Precision(float32, float32, float32), alpha=0)).all()


def test_tf32_operands_are_cut_as_tensor_cores_do() -> None:
    precision = Precision(tfloat32, tfloat32, float32)
    a = np.array([[1 + 2**-11 + 2**-20]], np.float32)
    one = np.ones((1, 1), np.float32)
    assert gemm(a, one, precision=precision)[0, 0] == 1
    assert gemm(a, one, precision=precision, tf32_mode="nearest")[0, 0] == 1 + 2**-10
    assert gemm(a, one, precision=Precision(float32, float32, float32))[0, 0] == a[0, 0]


def test_fp8_operands_may_come_as_bits() -> None:
    precision = Precision(float8_e4m3fn, float8_e5m2, float32)
    a = np.array([[0x38, 0xB8], [0x7E, 0x01]], np.uint8)  # 1, -1; 448, 2**-9
    b = np.array([[0x3C], [0x40]], np.uint8)  # 1; 2
    assert gemm(a, b, precision=precision).tolist() == [[-1], [448 + 2**-8]]
    assert gemm(a.T, b, precision=precision).tolist() == [[1 + 2 * 448], [-1 + 2**-8]]


def test_numbers_of_another_dtype_are_converted_as_a_store_would() -> None:
    a = [[1 + 2**-11 + 2**-40]]
    assert gemm(a, [[1.0]], precision=Precision(float16, bfloat16, float32)).tolist() == [[1 + 2**-10]]


def test_bfloat16_c_is_summed_in_float32() -> None:
    a = np.array([[256, 1, 1]], ml_dtypes.bfloat16)
    got = gemm(a, np.ones((3, 1), ml_dtypes.bfloat16), precision=Precision(bfloat16, bfloat16, bfloat16))
    assert got.dtype == ml_dtypes.bfloat16
    assert float(got[0, 0]) == 258  # in bfloat16, 256 + 1 stays 256


def test_views_with_any_strides() -> None:
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    got = gemm(base[::2, ::3].T, base[1::2, ::-5], precision=Precision(float32, float32, float32))
    # [[0, 12], [3, 15]] times [[11, 6], [23, 18]]
    assert got.tolist() == [[276, 216], [378, 288]]


def test_gemm_refusals() -> None:
    single = Precision(float32, float32, float32)
    a = np.ones((2, 3), np.float32)
    with pytest.raises(InvalidArgumentError, match=r"b: shape \(2, 3\) does not fit a's \(2, 3\)"):
        gemm(a, a, precision=single)
    with pytest.raises(InvalidArgumentError, match="c: None"):
        gemm(a, a.T, precision=single, beta=1)
    with pytest.raises(InvalidArgumentError, match=r"c: shape \(2, 3\) .* product has shape \(2, 2\)"):
        gemm(a, a.T, a, precision=single, beta=1)
    with pytest.raises(InvalidArgumentError, match="mixes floating point and integers"):
        gemm(a, a.T, precision=Precision(float16, float16, int32))
    with pytest.raises(ArgumentTypeError, match="alpha: 1j is complex"):
        gemm(a, a.T, precision=single, alpha=1j)
    with pytest.raises(ArgumentTypeError, match="a: dtype complex64"):
        gemm(a.astype(np.complex64), a.T, precision=single)
