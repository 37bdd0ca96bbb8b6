# SPDX-License-Identifier: Apache-2.0
"""What should come out of a case, in float64, and whether it did.

:func:`expected` is NumPy and shares no code with the package; :func:`check` compares all that came back with it. How
far off a sum of products may be is said by ``Kind.loss`` in ``products.py``; what comes after the sum adds its share
here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from tests.gpu.host.products import (
    AUX_OF,
    BACKWARD,
    FP8,
    TINY,
    UNIT,
    Array,
    Case,
    Given,
    Kind,
    Outcome,
    aux_extents,
    bits_of,
    dtype,
)

# tanh of float32 on the GPU may be the instruction tanh.approx, off by 2**-10.987 (PTX ISA, tanh). The CPU has no such.
TANH = 2.0**-10.9
TANH_OF_FLOAT64 = 2.0**-30  # cuBLASLt 13.1's GELU of float64 has about ten digits; its slope was off by 3e-10


# -- what should come out -----------------------------------------------------------------------------------


@dataclass
class Wanted:
    """Numbers, and how far each may be off. ``sure``: where a mask is not within the error of a zero."""

    values: Array
    allowed: Array
    sure: Array | None = None


def gelu(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def gelu_slope(x: Array) -> tuple[Array, Array]:
    """The derivative by the product and chain rules, and how much it changes with an error of tanh."""
    y, dy = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3), math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x**2)
    t = np.tanh(y)
    return 0.5 * (1 + t) + 0.5 * x * (1 - t**2) * dy, 0.5 + abs(x * t * dy)


def expected(case: Case) -> dict[str, Wanted]:
    """Everything that should come back, by name; the result is ``"d"``."""
    kind, epilog = case.kind, case.epilog
    a, b = case.matrices
    m, n, k = case.mnk
    full = (*case.batch, m, n)
    alpha, beta = 1 if case.alpha is None else case.alpha, 0 if case.beta is None else case.beta
    alpha = alpha * case.scales.get("a", 1) * case.scales.get("b", 1)
    with np.errstate(invalid="ignore"):
        x = alpha * np.matmul(a, b)
        size = abs(alpha) * np.matmul(abs(a), abs(b))
    for name, factor in (("c", beta), ("bias", 1)):
        if name in case.given and factor != 0:
            term = _as_result(case, case.given[name].values, bias=name == "bias")
            x, size = x + factor * term, size + abs(factor * term)
    x, error = np.broadcast_to(x, full), np.broadcast_to(kind.loss(k) * size, full)
    if epilog.endswith("_AUX_BIAS") and kind.d in ("float16", "bfloat16"):
        # errors as of one more rounding, before the bias, were seen
        error = error + np.broadcast_to(UNIT[kind.d] * size, full)
    tanh = TANH_OF_FLOAT64 if kind.a == "float64" else TANH
    wanted: dict[str, Wanted] = {}
    aux = AUX_OF.get(epilog)
    if aux and epilog not in BACKWARD:
        if aux == "relu_aux":
            wanted[aux] = Wanted(x > 0, error, abs(x) > error)
        else:
            assert kind.aux is not None
            wanted[aux] = Wanted(x, error + rounding(x, kind.aux))
    if epilog in BACKWARD:
        assert aux is not None
        assert case.along is not None
        stored = case.given[aux].lay.view
        if aux == "relu_aux":
            positive = bits_of(stored, m, n, case.along)
            x, error = np.where(positive, x, 0), np.where(positive, error, 0)
        else:
            slope, of_tanh = gelu_slope(stored.astype(np.float64)[..., :m, :n])
            error = error * abs(slope) + abs(x) * (of_tanh * tanh + 8 * UNIT["float32" if tanh == TANH else "float64"])
            x = x * slope
    elif "RELU" in epilog:
        x = np.where(x > 0, x, 0)
    elif "GELU" in epilog:
        error = 1.13 * error + 0.5 * abs(x) * tanh  # 1.13 is the steepest slope of GELU
        x = gelu(x)
    if epilog.endswith("_BGRAD"):
        axis = -1 if case.along == "rows" else -2
        # may be summed before or after each element is rounded to the result's type
        count = x.shape[axis] * UNIT["float64" if kind.a == "float64" else "float32"]
        allowed = error.sum(axis) + ((UNIT[kind.d] + count) * abs(x)).sum(axis)
        wanted[epilog.lower()] = _gradient(x.sum(axis), allowed, kind)
    if epilog in ("BGRADA", "BGRADB"):
        term, axis = (a, -1) if epilog == "BGRADA" else (b, -2)
        sums = np.broadcast_to(term.sum(axis), (*case.batch, term.shape[-2 if epilog == "BGRADA" else -1]))
        magnitude = np.broadcast_to(abs(term).sum(axis), sums.shape)
        wanted[epilog.lower()] = _gradient(sums, kind.loss(k) * magnitude, kind)
    scale = case.scales.get("d", 1)
    x, error = x * scale, error * scale
    if case.options.get("result_amax"):
        largest = abs(x / scale).max(initial=0)
        wanted["result_amax"] = Wanted(
            np.reshape(largest, 1), np.reshape(error.max(initial=0) / scale + largest * 1e-6, 1)
        )
    if kind.d in FP8:
        top = float(ml_dtypes.finfo(dtype(kind.d)).max)
        x = np.clip(x, -top, top)
    if kind.d == "int8":
        x = np.clip(np.rint(x), -128, 127)
    wanted["d"] = Wanted(x.reshape(case.result_shape), (error + rounding(x, kind.d)).reshape(case.result_shape))
    return wanted


def rounding(x: Array, name: str) -> Array:
    """What one rounding to a type changes at most."""
    return UNIT[name] * (1 + 2.0**-20) * abs(x) + TINY.get(name, 0)


def _gradient(sums: Array, allowed: Array, kind: Kind) -> Wanted:
    assert kind.bias is not None
    return Wanted(sums, allowed + rounding(sums, kind.bias))


def _as_result(case: Case, values: Array, *, bias: bool) -> Array:
    """C or a bias so that it broadcasts to (*batch, m, n)."""
    m, n, _ = case.mnk
    full = (*case.batch, m, n)
    if bias:
        if values.ndim == 1:
            return values[:, None] if case.along == "rows" else values[None, :]
        while values.ndim > len(full):
            values = values[0]
        return values
    return values.reshape(full) if values.shape == case.result_shape else values


# -- check --------------------------------------------------------------------------------------------------


def check(case: Case, outcome: Outcome, wanted: dict[str, Wanted] | None = None) -> None:
    """Compare all that came back. The error is the norm of the difference; it must be within the norm of the bounds."""
    wanted = expected(case) if wanted is None else wanted
    m, n, _ = case.mnk
    assert set(outcome.arrays) == set(wanted)
    for name, want in wanted.items():
        got = outcome.arrays[name]
        if name == "relu_aux":
            same = bits_of(got, m, n, _along(case, outcome)) == want.values
            assert np.all(same | ~want.sure), f"{name}: {np.sum(~same & want.sure)} bits are wrong"
            continue
        if name == "gelu_aux":
            _along(case, outcome)
            got = got[..., :m, :n]
        elif name == "d":
            assert got.shape == case.result_shape
            assert got.dtype == dtype(case.kind.d)
        elif name != "result_amax":
            got = got.reshape(want.values.shape)
        close(got, want, name)
    check_memory(case, outcome)


def close(got: Array, want: Wanted, name: str = "d") -> None:
    """Within the bound in norm. A wrong element among random ones is far outside; a NaN always is."""
    exact = got.astype(np.complex128 if got.dtype.kind == "c" else np.float64)
    error, allowed = np.linalg.norm(exact - want.values), np.linalg.norm(want.allowed)
    assert error <= allowed, f"{name}: off by {error:.3e} of {np.linalg.norm(want.values):.3e}, allowed {allowed:.3e}"


def check_memory(case: Case, outcome: Outcome) -> None:
    """Operands are as they were, and beside ``out`` nothing was written."""
    for name, given in case.given.items():
        before, now = (x.view(np.uint8).reshape(given.lay.buffer.size, -1) for x in _memory(given, outcome, name))
        same = (before == now).all(axis=1)
        if name == "out":
            same |= ~given.lay.beside
        assert same.all(), f"{name}: memory was changed"


def _memory(given: Given, outcome: Outcome, name: str) -> tuple[Array, Array]:
    return given.lay.buffer, outcome.placed[name].memory()


def _along(case: Case, outcome: Outcome) -> str:
    """Which way an aux output runs: told by its shape, and by its strides where both shapes are the same."""
    name, (m, n, _) = AUX_OF[case.epilog], case.mnk
    shape, strides = outcome.arrays[name].shape, outcome.strides[name]
    fitting = [along for along in ("rows", "columns") if shape == (*case.batch, *aux_extents(name, m, n, along))]
    assert fitting, f"{name}: the shape {shape}"
    along = fitting[0] if len(fitting) == 1 else "rows" if strides[-2] == 1 else "columns"
    assert along == (case.along or along), f"{name} runs along {along}"
    return along


def norm_error(got: Array, want: Array) -> float:
    """Relative, of the norms."""
    return float(np.linalg.norm(got.astype(np.float64) - want) / np.linalg.norm(want))
