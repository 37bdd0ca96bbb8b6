# SPDX-License-Identifier: Apache-2.0
"""Epilogs of a matrix product in plain NumPy: what cuBLASLt applies to a result before it stores it.

Everything is elementwise or a sum over one axis of logical (..., m, n) arrays, computed in the type of the
arguments; rounding to the stored type is the caller's. Formulas are cuBLASLt's (documentation of
``cublasLtEpilogue_t``): GELU in its tanh form. What RELU makes of NaN is not documented.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

_SQRT_2_OVER_PI = math.sqrt(2.0 / math.pi)  # a Python number, so that float32 stays float32
_CUBIC = 0.044715
MASK_ALIGNMENT = 128  # bits along the packed axis of a RELU mask: cuBLASLt wants lines of whole 16 bytes


def relu(x: Array) -> Array:
    """max(x, 0); NaN stays NaN, -0.0 becomes 0.0."""
    return np.where(x <= 0, np.zeros((), x.dtype), x)


def gelu(x: Array) -> Array:
    """x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))."""
    return 0.5 * x * (1.0 + np.tanh(_inner(x)))


def gelu_derivative(x: Array) -> Array:
    """Derivative of :func:`gelu` at ``x``, the value before the activation; 0 or 1 where tanh has saturated."""
    t = np.tanh(_inner(x))
    slope = _SQRT_2_OVER_PI * (1.0 + 3.0 * _CUBIC * x * x)
    flat = 1.0 - t * t == 0  # where slope may be infinite
    return 0.5 * (1.0 + t) + np.where(flat, np.zeros((), x.dtype), 0.5 * x * (1.0 - t * t) * slope)


def _inner(x: Array) -> Array:
    return _SQRT_2_OVER_PI * (x + _CUBIC * x * x * x)


def pack_mask(positive: Array, axis: int = -2) -> Array:
    """A boolean array as bits along ``axis``, whose extent becomes ceil(extent / 128) * 16 bytes.

    Bit i % 8 of byte i // 8 belongs to element i; bits beyond the extent are 0.
    """
    extent = positive.shape[axis]
    shape = list(positive.shape)
    shape[axis] = -(-extent // MASK_ALIGNMENT) * MASK_ALIGNMENT
    padded = np.zeros(shape, bool)
    np.moveaxis(padded, axis, 0)[:extent] = np.moveaxis(positive, axis, 0)
    return np.packbits(padded, axis=axis, bitorder="little")


def unpack_mask(bits: Array, extent: int, axis: int = -2) -> Array:
    """The boolean array that :func:`pack_mask` packed, of that extent along ``axis``."""
    return np.unpackbits(bits, axis=axis, count=extent, bitorder="little").astype(bool)


def sum_of_columns(x: Array) -> Array:
    """Gradient of a bias with one element a row: the sum of (..., m, n) over n, added up in float64."""
    return x.sum(axis=-1, dtype=np.float64).astype(x.dtype)


def sum_of_rows(x: Array) -> Array:
    """Gradient of a bias with one element a column: the sum of (..., m, n) over m, added up in float64."""
    return x.sum(axis=-2, dtype=np.float64).astype(x.dtype)
