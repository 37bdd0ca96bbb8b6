# SPDX-License-Identifier: Apache-2.0
"""Random operands in a descriptor's storage, and back: written for the tests, sharing no code with the package.

A *logical* array is float64, complex128, int64 or uint64 and holds values exactly representable in the element
type. A *carrier* is the 1-D device-transferable array that stores it: native where Numba has the type, else
its components (complex of half, bfloat16, fp8, integers) or its bits (fp8).
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

STORAGE = {
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "tfloat32": np.dtype(np.float32),
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
    "float8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "float8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
    **{f"{u}int{b}": np.dtype(f"{u}int{b}") for u in ("", "u") for b in (8, 16, 32, 64)},
}
# Unit roundoff of arithmetic in a type; tensor cores read 10 bits after the point of a tf32 number.
ROUNDOFF = {"float16": 2.0**-11, "float32": 2.0**-24, "float64": 2.0**-53}
TF32_ROUNDOFF = 2.0**-10


def random_logical(rng, shape, name, *, is_complex):
    """Values the type represents exactly, so that only the computation rounds."""
    dtype = STORAGE[name]

    def part():
        if dtype.kind in "iu":
            info = np.iinfo(dtype)
            low, high = (max(info.min, -100), min(info.max, 100)) if dtype.itemsize < 4 else (-9, 9)
            return rng.integers(max(low, 0 if dtype.kind == "u" else low), high + 1, shape).astype(np.int64)
        return rng.uniform(-1, 1, shape).astype(dtype).astype(np.float64)

    if not is_complex:
        return part()
    return np.stack([part(), part()], axis=-1)


def to_pairs(logical, is_complex):
    """The logical array as NumPy numbers: complex ones from (..., 2) parts. Integers stay exact as objects."""
    if not is_complex:
        return logical
    if logical.dtype.kind == "i":
        return logical[..., 0].astype(object) + logical[..., 1].astype(object) * 1j
    return logical[..., 0] + 1j * logical[..., 1]


def carrier(logical, name, *, is_complex, order, ld):
    """The 1-D storage of a matrix with leading dimension ``ld``; padding is poisoned."""
    dtype = STORAGE[name]
    rows, cols = logical.shape[:2]
    outer, inner = (cols, rows) if order == "col_major" else (rows, cols)
    parts = 2 if is_complex else 1
    poison = 77 if dtype.kind in "iu" else np.nan
    flat = np.full((outer, ld, parts), poison).astype(dtype)
    source = logical.reshape(rows, cols, parts)
    flat[:, :inner] = (source.transpose(1, 0, 2) if order == "col_major" else source).astype(dtype)
    return _native(flat.reshape(-1), dtype, is_complex)


def _native(flat, dtype, is_complex):
    if is_complex and dtype in (np.float32, np.float64):
        return flat.view(np.dtype(f"complex{dtype.itemsize * 16}"))
    if dtype.name.startswith("float8"):
        return flat.view(np.uint8)
    return flat


def read_back(flat, name, shape, *, is_complex, order, ld):
    """The (rows, cols[, 2]) parts of a matrix out of its storage, as float64 or int64/uint64."""
    dtype = STORAGE[name]
    rows, cols = shape
    outer, inner = (cols, rows) if order == "col_major" else (rows, cols)
    parts = 2 if is_complex else 1
    values = flat.view(dtype).reshape(outer, ld, parts)[:, :inner]
    values = values.transpose(1, 0, 2) if order == "col_major" else values
    values = values.astype(np.float64) if dtype.kind not in "iu" else values
    return values if is_complex else values[..., 0]


def to_device(array):
    """A device copy; Numba copies no bfloat16 array, but its bits, and views them."""
    from numba import cuda

    if array.dtype == ml_dtypes.bfloat16:
        return cuda.to_device(array.view(np.uint16)).view(ml_dtypes.bfloat16)
    return cuda.to_device(array)
