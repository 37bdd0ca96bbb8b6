# SPDX-License-Identifier: Apache-2.0
"""The NumPy twin of FFTs against the definition of the transform, term by term, and numbers by hand."""

from __future__ import annotations

import cmath
import itertools
import math
from typing import Any

import numpy as np
import pytest

from nvmath_device.dtypes import ElementType, float16, float32, float64
from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError
from nvmath_device.fft_descriptor import FftDescriptor, RealFftOptions
from nvmath_device.reference import fft, fft_values


def rng() -> np.random.Generator:
    return np.random.default_rng(20251201)


UNIT = {float16: 2.0**-11, float32: 2.0**-24, float64: 2.0**-53}
# Two float64 sums of N terms: the transform under test and the loop here; far below the units of the others.
SLACK = 2.0**-44


def dft(x: Any, sign: int) -> list[complex]:
    """The definition, term by term, with the angle reduced to one turn beforehand."""
    n = len(x)
    return [
        sum(complex(v) * cmath.rect(1, sign * math.tau * (j * k % n) / n) for j, v in enumerate(x)) for k in range(n)
    ]


def close(got: Any, want: Any, element: ElementType, scale: float) -> bool:
    """Every part is the right number rounded once: half a unit of its own size, and float64's noise."""
    got, want = np.asarray(got), np.asarray(want)
    parts = [(got.real, want.real), (got.imag, want.imag)]
    return got.shape == want.shape and all(
        (np.abs(g - w) <= UNIT[element] * np.abs(w) * 1.001 + SLACK * scale).all() for g, w in parts
    )


def plan(size: int, fft_type: str, element: ElementType, direction: str | None = None, **options: str) -> FftDescriptor:
    return FftDescriptor(
        size=size,
        precision=element,
        fft_type=fft_type,
        execution="Block",
        direction=direction,  # type: ignore[arg-type]
        real_fft_options=RealFftOptions(**options) if options else None,
    )


FFT_SIZES = [2, 3, 4, 5, 7, 8, 9, 12, 16, 31, 32]


@pytest.mark.parametrize("size", FFT_SIZES)
@pytest.mark.parametrize("element", [float16, float32, float64])
@pytest.mark.parametrize(("direction", "sign"), [("forward", -1), ("inverse", 1)])
def test_c2c_is_the_definition_without_scaling(size: int, element: ElementType, direction: str, sign: int) -> None:
    x = rng().integers(-8, 8, (3, size)) + 1j * rng().integers(-9, 8, (3, size))
    got = fft_values(x, plan(size, "c2c", element, direction))
    assert got.dtype == (np.complex128 if element is float64 else np.complex64)
    assert close(got, [dft(row, sign) for row in x], element, 16 * size)


LAYOUTS = [
    ("natural", lambda full, n: full[: n // 2 + 1]),
    ("full", lambda full, n: full),
    ("packed", lambda full, n: [complex(full[0].real, full[n // 2].real), *full[1 : n // 2]]),
]


REAL_FFTS = [
    (size, mode, layout, arrange)
    for size, mode, (layout, arrange) in itertools.product(FFT_SIZES, ["normal", "folded"], LAYOUTS)
    if (layout != "packed" or size % 2 == 0) and (mode == "normal" or size in (4, 8, 16, 32))
]


@pytest.mark.parametrize("element", [float16, float32, float64])
@pytest.mark.parametrize(("size", "mode", "layout", "arrange"), REAL_FFTS)
def test_r2c_and_c2r_in_every_layout(size: int, mode: str, layout: str, arrange: Any, element: ElementType) -> None:
    x = rng().integers(-8, 8, size)
    spectrum = dft(x, -1)
    stored = [complex(x[2 * j], x[2 * j + 1]) for j in range(size // 2)] if mode == "folded" else x
    arranged = arrange(spectrum, size)
    forward = fft_values(stored, plan(size, "r2c", element, complex_layout=layout, real_mode=mode))
    assert close(forward, arranged, element, 16 * size)

    # The inverse gets a spectrum that the precision has exactly, so that only the result is rounded.
    half = [complex(round(z.real), round(z.imag)) for z in spectrum[: size // 2 + 1]]
    half[0] = complex(half[0].real, 0)
    if size % 2 == 0:
        half[-1] = complex(half[-1].real, 0)
    full = [half[k] if k <= size // 2 else half[size - k].conjugate() for k in range(size)]
    back = fft_values(arrange(full, size), plan(size, "c2r", element, complex_layout=layout, real_mode=mode))
    want = [z.real for z in dft(full, 1)]
    if mode == "folded":
        want = [complex(want[2 * j], want[2 * j + 1]) for j in range(size // 2)]
    assert close(back, want, element, 16 * size * size)


@pytest.mark.parametrize("size", [16, 17, 1000, 4096])
@pytest.mark.parametrize("element", [float32, float64])
def test_r019_forward_then_inverse_gives_size_times_the_input(size: int, element: ElementType) -> None:
    x = rng().standard_normal((2, size)) + 1j * rng().standard_normal((2, size))
    there = fft_values(x, plan(size, "c2c", element, "forward"))
    back = fft_values(there, plan(size, "c2c", element, "inverse"))
    # One rounding each of the input, the spectrum and the result; float64 adds the transforms' own.
    assert np.linalg.norm(back - size * x) <= (4 + math.log2(size)) * UNIT[element] * size * np.linalg.norm(x)


def test_float16_storage_holds_two_ffts() -> None:
    descriptor = plan(4, "c2c", float16, "forward")
    first, second = [1, 2, 3, 4], [1j, 0, -1j, 2]
    stored = np.array(
        [
            (complex(p).real, complex(q).real, complex(p).imag, complex(q).imag)
            for p, q in zip(first, second, strict=True)
        ],
        dtype=descriptor.input_type.dtype,
    )
    got = fft(stored, descriptor)
    assert got.dtype == descriptor.output_type.dtype
    assert got.shape == (4,)
    # By hand: [10, -2+2j, -2, -2-2j]; [2, 4j, -2, 0]
    assert got["x"].tolist() == [10, -2, -2, -2]
    assert got["z"].tolist() == [0, 2, 0, -2]
    assert got["y"].tolist() == [2, 0, -2, 0]
    assert got["w"].tolist() == [0, 4, 0, 0]


def test_float16_real_storage_is_pairs_of_reals() -> None:
    r2c = plan(4, "r2c", float16)
    records = np.array([(1, 0), (2, 1), (3, 0), (4, 0)], dtype=r2c.input_type.dtype)
    components = np.array([[1, 0], [2, 1], [3, 0], [4, 0]], np.float16)
    got = fft(records, r2c)
    assert got.dtype == r2c.output_type.dtype
    assert got.tolist() == fft(components, r2c).tolist() == [(10, 1, 0, 0), (-2, 0, 2, -1), (-2, -1, 0, 0)]
    c2r = plan(4, "c2r", float16)
    back = fft(got, c2r)
    assert back.dtype == c2r.output_type.dtype
    assert back.tolist() == [(4, 0), (8, 4), (12, 0), (16, 0)]


def test_storage_of_other_precisions_is_numbers() -> None:
    r2c = plan(2, "r2c", float64)
    assert fft(np.array([[1.0, 2.0]]), r2c).tolist() == [[3, -1]]
    assert fft(np.array([[1.0, 2.0]]), r2c).dtype == np.complex128
    back = fft(np.array([3, -1], np.complex64), plan(2, "c2r", float32))
    assert back.dtype == np.float32
    assert back.tolist() == [2, 4]


def test_a_float16_sum_beyond_the_largest_number_is_infinite() -> None:
    x = np.full(4, 30000)
    assert fft_values(x, plan(4, "c2c", float16, "forward")).tolist() == [complex(np.inf, 0), 0, 0, 0]


def test_c2r_does_not_read_what_hermitian_input_implies() -> None:
    spectrum = np.array([10 + 5j, -2 + 2j, -2 + 7j, 99])
    want = [4, 8, 12, 16]
    assert fft_values(spectrum, plan(4, "c2r", float64, complex_layout="full")).tolist() == want
    assert fft_values(spectrum[:3], plan(4, "c2r", float64)).tolist() == want


def test_fft_refusals() -> None:
    with pytest.raises(InvalidArgumentError, match=r"x: shape \(2, 8\) .* must have length 5"):
        fft_values(np.zeros((2, 8)), plan(8, "c2r", float32))
    with pytest.raises(ArgumentTypeError, match="complex128 is complex, but the FFT has real input"):
        fft_values(np.zeros(8, complex), plan(8, "r2c", float32))
    with pytest.raises(ArgumentTypeError, match="x: dtype complex128"):
        fft(np.zeros(8, complex), plan(8, "r2c", float32))
