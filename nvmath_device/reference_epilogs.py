# SPDX-License-Identifier: Apache-2.0
"""Epilogs of a matrix product in plain NumPy: what cuBLASLt applies to a result before it stores it.

Everything is elementwise or a sum over one axis of logical (..., m, n) arrays, computed in the type of the
arguments; rounding to the stored type is the caller's. Formulas are cuBLASLt's (documentation of
``cublasLtEpilogue_t``): GELU in its tanh form, and a RELU that turns NaN into 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

_SQRT_2_OVER_PI = np.sqrt(2.0 / np.pi)
_CUBIC = 0.044715
MASK_ALIGNMENT = 128  # rows of a packed RELU mask: cuBLASLt wants a leading dimension of whole 16 bytes


def relu(x: Array) -> Array:
    """max(x, 0); NaN becomes 0, as in cuBLASLt and unlike in frameworks. -0.0 becomes 0.0."""
    return np.where(x > 0, x, np.zeros((), x.dtype))


def gelu(x: Array) -> Array:
    """x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))."""
    return 0.5 * x * (1.0 + np.tanh(_inner(x)))


def gelu_derivative(x: Array) -> Array:
    """Derivative of :func:`gelu` at ``x``, the value before the activation."""
    t = np.tanh(_inner(x))
    slope = _SQRT_2_OVER_PI * (1.0 + 3.0 * _CUBIC * x * x)
    return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * slope


def _inner(x: Array) -> Array:
    return _SQRT_2_OVER_PI * (x + _CUBIC * x * x * x)


def pack_mask(positive: Array) -> Array:
    """A boolean (..., m, n) array as bits along m: uint8 (..., ceil(m / 128) * 16, n).

    Bit i % 8 of byte i // 8 of a column belongs to row i; rows beyond m are 0.
    """
    m = positive.shape[-2]
    rows = -(-m // MASK_ALIGNMENT) * MASK_ALIGNMENT
    padded = np.zeros((*positive.shape[:-2], rows, positive.shape[-1]), bool)
    padded[..., :m, :] = positive
    return np.packbits(padded, axis=-2, bitorder="little")


def unpack_mask(bits: Array, m: int) -> Array:
    """The boolean (..., m, n) array that :func:`pack_mask` packed."""
    return np.unpackbits(bits, axis=-2, bitorder="little")[..., :m, :].astype(bool)


def sum_of_columns(x: Array) -> Array:
    """Gradient of a bias with one element a row: the sum of (..., m, n) over n."""
    return x.sum(axis=-1)


def sum_of_rows(x: Array) -> Array:
    """Gradient of a bias with one element a column: the sum of (..., m, n) over m."""
    return x.sum(axis=-2)
