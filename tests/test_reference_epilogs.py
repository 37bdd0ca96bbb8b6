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


def test_relu_turns_nan_into_zero_and_keeps_infinity():
    got = epilogs.relu(np.array([np.nan, -np.inf, np.inf, -0.0, 2.0, -2.0]))
    assert got.tolist() == [0.0, 0.0, math.inf, 0.0, 2.0, 0.0]
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


def test_gradients_of_a_bias_are_sums_along_the_other_axis():
    x = np.arange(24.0).reshape(2, 3, 4)
    assert epilogs.sum_of_columns(x).tolist() == [[sum(row) for row in matrix] for matrix in x.tolist()]
    assert epilogs.sum_of_rows(x).tolist() == [
        [sum(column) for column in zip(*matrix, strict=True)] for matrix in x.tolist()
    ]
