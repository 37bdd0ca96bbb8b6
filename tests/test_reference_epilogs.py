# SPDX-License-Identifier: Apache-2.0
"""Epilogs against their definitions, computed here with Python's own math."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nvmath_device import reference_epilogs as epilogs


def gelu_of(x: float) -> float:
    return x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


@pytest.mark.parametrize("x", [-6.0, -1.5, -1e-3, 0.0, 0.3, 1.0, 6.0])
def test_gelu_is_the_tanh_form_and_its_derivative_is_its_slope(x):
    h = 1e-5
    assert epilogs.gelu(np.array(x)) == pytest.approx(gelu_of(x), abs=1e-15)
    slope = (gelu_of(x + h) - gelu_of(x - h)) / (2 * h)
    assert epilogs.gelu_derivative(np.array(x)) == pytest.approx(slope, abs=1e-9)
    exact = x / 2 * (1 + math.erf(x / math.sqrt(2)))
    assert abs(gelu_of(x) - exact) < 1e-3  # the two forms are close, and not equal


@pytest.mark.parametrize("function", [epilogs.gelu, epilogs.gelu_derivative, epilogs.relu])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_everything_is_computed_in_the_type_of_the_arguments(function, dtype):
    x = np.array([[-2.0, 0.5]], dtype)
    assert function(x).dtype == dtype
    assert epilogs.sum_of_rows(x).dtype == epilogs.sum_of_columns(x).dtype == dtype


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gelu_in_float32_and_float64_is_off_by_a_few_units(dtype):
    x = np.linspace(-8, 8, 4001).astype(dtype)
    unit = np.finfo(dtype).eps / 2
    want = np.array([gelu_of(float(value)) for value in x])
    # tanh(y) has an error of its own and that of y, and y / cosh(y)^2 < 0.5; products and sums make it 8 units of x
    assert (abs(epilogs.gelu(x) - want) <= 8 * (unit + 2.0**-53) * abs(x)).all()


def test_gelu_and_its_derivative_where_tanh_has_saturated():
    """The cube overflows in float32 at 2**70, the square too; the slope of the line is still 1, or 0."""
    x = np.array([12, 2.0**70, np.inf, -12, -(2.0**70)], np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        assert epilogs.gelu(x).tolist() == [12, 2.0**70, math.inf, 0, 0]
        assert epilogs.gelu_derivative(x).tolist() == [1, 1, 1, 0, 0]


def test_relu_keeps_nan_and_infinity():
    got = epilogs.relu(np.array([np.nan, -np.inf, np.inf, -0.0, 2.0, -2.0]))
    assert np.isnan(got[0])
    assert got[1:].tolist() == [0.0, math.inf, 0.0, 2.0, 0.0]
    assert not np.signbit(got[3])


@pytest.mark.parametrize("shape", [(1, 1), (7, 3), (8, 2), (129, 4), (2, 130, 3)])
def test_masks_are_packed_by_bits_along_the_rows(shape):
    mask = np.random.default_rng(0).random(shape) < 0.5
    bits = epilogs.pack_mask(mask)
    m, n = shape[-2:]
    assert bits.shape == (*shape[:-2], -(-m // 128) * 16, n)
    for index in np.ndindex(*shape):
        *batch, row, column = index
        assert bool(bits[(*batch, row // 8, column)] >> (row % 8) & 1) == mask[index]
    assert sum(int(byte).bit_count() for byte in bits.flat) == mask.sum()
    np.testing.assert_array_equal(epilogs.unpack_mask(bits, m), mask)


@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (2, 8), (4, 129), (2, 3, 130), (0, 3), (3, 0)])
def test_masks_are_packed_by_bits_along_the_columns_too(shape):
    mask = np.random.default_rng(1).random(shape) < 0.5
    bits = epilogs.pack_mask(mask, axis=-1)
    m, n = shape[-2:]
    assert bits.shape == (*shape[:-2], m, -(-n // 128) * 16)
    for index in np.ndindex(*shape):
        *batch, row, column = index
        assert bool(bits[(*batch, row, column // 8)] >> (column % 8) & 1) == mask[index]
    assert sum(int(byte).bit_count() for byte in bits.flat) == mask.sum()
    np.testing.assert_array_equal(epilogs.unpack_mask(bits, n, axis=-1), mask)
    padded = np.full_like(bits, 255)
    assert epilogs.unpack_mask(padded, n, axis=-1).shape == shape  # what stands in the padding is not looked at


def test_sums_do_not_drift():
    """One by one in float32, 2**24 + 1 is 2**24."""
    x = np.ones((2, 5000), np.float32)
    x[:, 0] = 2.0**24
    assert epilogs.sum_of_columns(x).tolist() == [2.0**24 + 5000] * 2  # 4999 more, a tie, to even
    assert epilogs.sum_of_rows(x.T).tolist() == [2.0**24 + 5000] * 2


def test_gradients_of_a_bias_are_sums_along_the_other_axis():
    x = np.arange(24.0).reshape(2, 3, 4)
    assert epilogs.sum_of_columns(x).tolist() == [[sum(row) for row in matrix] for matrix in x.tolist()]
    assert epilogs.sum_of_rows(x).tolist() == [
        [sum(column) for column in zip(*matrix, strict=True)] for matrix in x.tolist()
    ]
