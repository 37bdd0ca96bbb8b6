# SPDX-License-Identifier: Apache-2.0
"""Products on the CPU as tests ask for them, arrays with any strides, and the error bounds of every type."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from nvmath_device.host.arrays import as_numpy, view
from nvmath_device.host.cpu_execution import compute
from nvmath_device.host.epilogs import read_epilog
from nvmath_device.host.options import MatmulOptions, MatmulPlanPreferences
from nvmath_device.host.problem import plan_problem

BF16, E4M3, E5M2 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2

# Half the distance from 1 to the next number: what one rounding to nearest changes at most, relatively.
UNIT = {
    "float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8, "float8_e4m3fn": 2.0**-4,
    "float8_e5m2": 2.0**-3, "complex64": 2.0**-24, "complex128": 2.0**-53,
}  # fmt: skip
# Half the smallest subnormal number: what it changes at most near zero.
TINY = {"float16": 2.0**-25, "float8_e4m3fn": 2.0**-10, "float8_e5m2": 2.0**-17}


def sum_unit(dtype):
    """Unit of the type that products of these operands are summed in."""
    return 2.0**-53 if np.dtype(dtype).name in ("float64", "complex128") else 2.0**-24


def ask(
    a, b, c=None, *, alpha=1, beta=0, epilog=None, inputs=None, scales=None, out=None, conj=(False, False),
    preferences=None, **options,
):  # fmt: skip
    """Positional and keyword arguments of ``compute`` for one call."""
    inputs, scales = inputs or {}, scales or {}
    views = {name: view(x) for name, x in {"a": a, "b": b, "c": c, "out": out}.items() if x is not None}
    problem = plan_problem(
        views["a"], views["b"], views.get("c"), out=views.get("out"), conj=conj, epilog=read_epilog(epilog),
        epilog_inputs={name: view(x) for name, x in inputs.items()}, scaled=frozenset(scales),
        options=MatmulOptions(**options), preferences=preferences or MatmulPlanPreferences(),
    )  # fmt: skip
    arrays = {name: as_numpy(x) for name, x in views.items() if name != "out"}
    arrays |= {name: as_numpy(view(x)) for name, x in inputs.items()}
    return (problem, arrays), {"alpha": alpha, "beta": beta, "scales": scales}


def product(*args, **kwargs):
    """Everything that comes back, by name; D is ``"d"``."""
    positional, keywords = ask(*args, **kwargs)
    return compute(*positional, **keywords)


def wide(x):
    """Exact copies of the numbers in float64 or complex128."""
    return np.asarray(x).astype(np.complex128 if np.asarray(x).dtype.kind == "c" else np.float64)


def matmul(a, b):
    """The definition of a product of matrices, in float64."""
    return np.einsum("...mk,...kn->...mn", wide(a), wide(b))


def magnitude(a, b):
    """Sums of the absolute values of the products: what the rounding errors of a sum are relative to."""
    return np.einsum("...mk,...kn->...mn", abs(wide(a)), abs(wide(b)))


def assert_within(got, want, bound, k, sums):
    """``got`` is ``want`` up to what rounding explains.

    A sum of k products, scaled, plus two more terms, has an error of at most k + 8 units of the type it is summed in
    times the sum of all magnitudes, ``bound``, in whatever order it is added up (Higham, Accuracy and Stability,
    section 3.1); a part of a complex number is a sum of 2 k. The expected number, in float64, has its own. Then one
    rounding to the type of ``got``.
    """
    name = got.dtype.name
    terms = 2 * (2 * k + 8) if got.dtype.kind == "c" else k + 8
    allowed = terms * (sums + 2.0**-53) * bound + UNIT[name] * abs(want) * (1 + 2.0**-20) + TINY.get(name, 0)
    assert got.shape == want.shape
    error = abs(wide(got) - want)
    assert (error <= allowed).all(), f"off by {(error - allowed).max()} more than the {allowed.max()} allowed"


LAYOUTS = ("C", "F", "stepped", "reversed")


def laid_out(values, how):
    """The same numbers with other strides."""
    if how == "F" and values.ndim > 1:
        return np.ascontiguousarray(values.swapaxes(-1, -2)).swapaxes(-1, -2)
    if how == "stepped":
        memory = np.zeros([3 * extent for extent in values.shape], values.dtype)
        strided = memory[(slice(1, None, 3),) * values.ndim]
        strided[...] = values
        return strided
    if how == "reversed":
        flip = (slice(None, None, -1),) * values.ndim
        return np.ascontiguousarray(values[flip])[flip]
    return np.ascontiguousarray(values)


def whole(rng, shape, dtype, largest=2):
    """Small whole numbers, of which products and short sums are exact in every type."""
    numbers = rng.integers(-largest, largest, shape, endpoint=True).astype(np.float64)
    if np.dtype(dtype).kind == "c":
        numbers = numbers + 1j * rng.integers(-largest, largest, shape, endpoint=True)
    return np.asarray(numbers, dtype)


def normal(rng, shape, dtype):
    numbers = rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        numbers = numbers + 1j * rng.standard_normal(shape)
    return np.asarray(numbers, dtype)


def bits_of(mask, m, n, along):
    """A packed mask as booleans (..., m, n): bit i % 8 of byte i // 8 along the packed axis."""
    i, j = np.indices((m, n))
    if along == "rows":
        return (mask[..., i // 8, j] >> (i % 8).astype(np.uint8)) & 1 == 1
    return (mask[..., i, j // 8] >> (j % 8).astype(np.uint8)) & 1 == 1
