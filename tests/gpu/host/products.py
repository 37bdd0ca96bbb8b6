# SPDX-License-Identifier: Apache-2.0
"""Products for tests: element types and what they lose, operands of any library and layout, what comes back.

A :class:`Case` is plain data in CPU memory. :func:`run` hands it to the host layer as arrays of real libraries, on a
GPU or on the CPU; ``product_checks.py`` says whether what comes back is right. Everything around operands is poison, so
reading beside one gives NaN, and writing beside ``out`` is seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from nvmath_device import host
from tests.gpu.host.libraries import Placed, library_of, place, to_numpy

Array = np.ndarray
Shape = tuple[int, ...]


# -- types --------------------------------------------------------------------------------------------------


def dtype(name: str) -> np.dtype:
    """NumPy's dtype of an element type, those of ml_dtypes included."""
    return np.dtype(getattr(ml_dtypes, name, None) or name)


# Half the distance from 1 to the next number: what one rounding to nearest changes at most, relatively.
UNIT = {
    "float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8, "float8_e4m3fn": 2.0**-4,
    "float8_e5m2": 2.0**-3, "complex64": 2.0**-24, "complex128": 2.0**-53, "int8": 0.0, "int32": 0.0,
}  # fmt: skip
# Half the smallest subnormal number: what one rounding changes at most near zero.
TINY = {"float16": 2.0**-25, "bfloat16": 2.0**-134, "float8_e4m3fn": 2.0**-10, "float8_e5m2": 2.0**-17}

# What one addition inside a product loses, relatively to the largest term, by the type of the operands. float32 and
# float64 are added with rounding. Tensor cores align the products of fp16 and bf16 to the largest, and cut off behind
# the 24 bits of float32. Those of Hopper keep 13 bits behind the largest for fp8, 32 products at a time; every such
# sum is then added in float32. Of random products the largest is below 8 times the mean, so that all 32 lose less than
# 2**-10 of their mean together, however many sums follow: see ``Kind.loss``.
CUT = {"float16": 2.0**-23, "bfloat16": 2.0**-23}
FP8_LOSS = 2.0**-10
FP8 = ("float8_e4m3fn", "float8_e5m2")


@dataclass(frozen=True)
class Kind:
    """Element types of a product. ``bias=None``: there are no epilogs. ``default`` is the result without asking."""

    a: str
    b: str
    c: str
    d: str
    default: str
    bias: str | None = None
    aux: str | None = None

    @property
    def is_complex(self) -> bool:
        return self.a.startswith("complex")

    @property
    def options(self) -> dict[str, Any]:
        return (
            {}
            if self.d == self.default == self.c or (self.a == "int8" and self.d == "int32")
            else {"result_type": self.d}
        )

    def loss(self, k: int) -> float:
        """Error of a sum of k products plus a few terms, relative to the sum of their magnitudes.

        In any order it is at most one unit for each term (Higham, Accuracy and Stability, section 3.1), and where
        roundings are independent, practically always below six times the root of their number (Higham and Mary 2019,
        theorem 2.4). What is cut off has one sign and is not independent. A part of a complex number is a sum of
        twice as many terms.
        """
        if self.a == "int8":
            return 0.0 if self.d != "float32" else (k + 8) * 2.0**-24
        if self.a in FP8:
            return FP8_LOSS + (k + 8) * 2.0**-24
        if self.a in CUT:
            return (k + 8) * CUT[self.a]
        terms = 2 * k + 8 if self.is_complex else k + 8
        return (2 if self.is_complex else 1) * min(terms, 6 * math.sqrt(terms)) * UNIT[self.a]

    def __str__(self) -> str:
        operands = self.a if self.a == self.b else f"{self.a}x{self.b}"
        return operands if self.d == self.default else f"{operands}->{self.d}"


def _same(name: str, *, epilogs: bool = True) -> Kind:
    return Kind(name, name, name, name, name, *((name, name) if epilogs else ()))


FLOATS = {name: _same(name) for name in ("float16", "bfloat16", "float32", "float64")}
COMPLEX = {name: _same(name, epilogs=False) for name in ("complex64", "complex128")}
WIDE = {f"{x}->float32": Kind(x, x, "float32", "float32", x, "float32", "float32") for x in ("float16", "bfloat16")}
INT8 = {
    "int8": Kind("int8", "int8", "int32", "int32", "int32"),
    "int8->float32": Kind("int8", "int8", "float32", "float32", "int32"),
}
E4M3, E5M2 = FP8
FP8_KINDS = {
    f"{a}x{b}->{d}": Kind(a, b, d, d, a, "bfloat16" if d == "float32" else d, d)
    for a, b in ((E4M3, E4M3), (E4M3, E5M2), (E5M2, E4M3))
    for d in ("float16", "bfloat16", "float32")
}
FP8_KINDS |= {
    f"{a}x{b}->{d}": Kind(a, b, "float16", d, E4M3, "float16", "float16" if a == b else d)
    for a, b, d in ((E4M3, E4M3, E4M3), (E4M3, E5M2, E5M2))
}
KINDS = FLOATS | COMPLEX | WIDE | INT8 | FP8_KINDS


# -- layouts ------------------------------------------------------------------------------------------------


class Lay(NamedTuple):
    """An array in a buffer: elements, the index of its first one, extents, and strides in elements."""

    buffer: Array
    start: int
    shape: Shape
    strides: Shape

    @property
    def view(self) -> Array:
        itemsize = self.buffer.itemsize
        # not through as_strided: ml_dtypes' types have no buffer protocol of their own
        return np.ndarray(
            self.shape, self.buffer.dtype, self.buffer.view(np.uint8), self.start * itemsize,
            [s * itemsize for s in self.strides],
        )  # fmt: skip

    @property
    def beside(self) -> Array:
        """Which elements of the buffer are none of the array's."""
        mask = np.ones(self.buffer.size, bool)
        if 0 in self.shape:
            return mask
        np.ndarray(self.shape, bool, mask, self.start, self.strides)[...] = False
        return mask

    def __str__(self) -> str:
        return f"{self.buffer.dtype.name}{list(self.shape)} strides {list(self.strides)} from {self.start}"


def poison(name: str) -> Any:
    """A value that shows: NaN, or a number that no result is made of."""
    if name in ("int8", "uint8", "int32"):
        return 0x6B
    return complex(math.nan, math.nan) if name.startswith("complex") else math.nan


def lay(
    values: Any,
    name: str,
    *,
    shape: Shape | None = None,
    order: Sequence[int] | str = "C",
    steps: Sequence[int] = (),
    gaps: Sequence[int] = (),
    repeated: Sequence[int] = (),
    offset: int = 0,
) -> Lay:
    """``values`` in a poisoned buffer; ``None`` leaves the poison, and ``shape`` is needed.

    ``order`` has the axes slowest first, or is "C" or "F" (of the matrices, the batch stays outside). ``steps``: how
    many elements apart those of an axis are, negative for backwards; ``gaps``: elements behind each axis;
    ``repeated``: axes of stride 0; ``offset``: elements before the array.
    """
    shape = tuple(np.shape(values) if shape is None else shape)
    ndim = len(shape)
    axes = tuple(range(ndim))
    if isinstance(order, str):
        order = axes if order == "C" or ndim < 2 else (*axes[:-2], axes[-1], axes[-2])
    steps, gaps = tuple(steps) or (1,) * ndim, tuple(gaps) or (0,) * ndim
    strides, running, start = [0] * ndim, 1, offset
    for axis in reversed(order):
        if axis in repeated:
            continue
        strides[axis] = running * steps[axis]
        start += max(-strides[axis] * max(shape[axis] - 1, 0), 0)
        running = running * abs(steps[axis]) * max(shape[axis], 1) + gaps[axis]
    made = Lay(np.full(offset + running + 16, poison(name), dtype(name)), start, shape, tuple(strides))
    if values is not None and 0 not in shape:
        made.view[...] = np.asarray(values).astype(dtype(name))
    return made


@dataclass
class Given:
    """An operand: its library, where its elements lie, and whether its library conjugates it lazily (PyTorch)."""

    lay: Lay
    library: str = "numpy"
    lazy: bool = False

    @property
    def values(self) -> Array:
        """What it means, exactly."""
        stored = self.lay.view
        exact = stored.astype(np.complex128 if stored.dtype.kind == "c" else np.float64)
        return exact.conj() if self.lazy else exact

    def __str__(self) -> str:
        return f"{self.library} {self.lay}{' lazily conjugated' if self.lazy else ''}"


# -- cases --------------------------------------------------------------------------------------------------

EPILOGS = [e.name for e in host.MatmulEpilog if "ALPHA" not in e.name]
AUX_OF = {
    e: ("relu_aux" if "RELU" in e else "gelu_aux") for e in EPILOGS if "AUX" in e or (e.startswith("D") and "ELU" in e)
}
BACKWARD = [e for e in AUX_OF if "AUX" not in e]
FORWARD = [e for e in EPILOGS if e not in BACKWARD and "BGRAD" not in e]
HAS_BIAS = [e for e in FORWARD if "BIAS" in e]


@dataclass
class Case:
    """Everything that is given to the library for one product. ``along`` is the direction of bias, masks, gradients."""

    kind: Kind
    given: dict[str, Given]  # a, b; c, out; bias, relu_aux, gelu_aux
    alpha: Any = None
    beta: Any = None
    epilog: str = "DEFAULT"
    along: str | None = None
    conj: tuple[bool, bool] = (False, False)
    scales: dict[str, float] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    form: str = "function"  # or "object", or "planned for out": an object whose plan() is told of out

    def __str__(self) -> str:
        parts = [f"{self.form} {self.kind}", self.epilog, f"along {self.along}" if self.along else ""]
        parts += [f"alpha={self.alpha} beta={self.beta} conj={self.conj} scales={self.scales} {self.options}"]
        return " ".join(filter(None, parts)) + "".join(f"\n    {n}: {g}" for n, g in self.given.items())

    @property
    def a(self) -> Array:
        a = self.given["a"].values
        return a.conj() if self.conj[0] else a

    @property
    def b(self) -> Array:
        b = self.given["b"].values
        return b.conj() if self.conj[1] else b

    @property
    def matrices(self) -> tuple[Array, Array]:
        a, b = self.a, self.b
        return (a[None, :] if a.ndim == 1 else a), (b[:, None] if b.ndim == 1 else b)

    @property
    def batch(self) -> Shape:
        a, b = self.matrices
        return np.broadcast_shapes(a.shape[:-2], b.shape[:-2])

    @property
    def mnk(self) -> tuple[int, int, int]:
        a, b = self.matrices
        return a.shape[-2], b.shape[-1], a.shape[-1]

    @property
    def result_shape(self) -> Shape:
        m, n, _ = self.mnk
        a, b = self.given["a"].lay.shape, self.given["b"].lay.shape
        return (*self.batch, *((m,) if len(a) > 1 else ()), *((n,) if len(b) > 1 else ()))


def aux_extents(name: str, m: int, n: int, along: str) -> Shape:
    """Bytes of 8 bits padded to 16 bytes, or values padded to 8, along the direction they are packed in."""
    packed, other = (m, n) if along == "rows" else (n, m)
    packed = math.ceil(packed / 128) * 16 if name == "relu_aux" else math.ceil(packed / 8) * 8
    return (packed, other) if along == "rows" else (other, packed)


def bits_of(mask: Array, m: int, n: int, along: str) -> Array:
    """A packed mask as booleans (..., m, n): bit i % 8 of byte i // 8 along the packed axis."""
    i, j = np.indices((m, n))
    if along == "rows":
        return (mask[..., i // 8, j] >> (i % 8).astype(np.uint8)) & 1 == 1
    return (mask[..., i, j // 8] >> (j % 8).astype(np.uint8)) & 1 == 1


# -- run ----------------------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """What came back, in NumPy: by name, the library that each array is of, and what memory looks like now."""

    arrays: dict[str, Array]
    libraries: dict[str, str]
    strides: dict[str, Shape]
    placed: dict[str, Placed]
    copies: tuple[str, ...] | None = None


def run(case: Case, device: str, **options: Any) -> Outcome:
    """Make arrays of their libraries on a device ("cuda" or "cpu"), and let the host layer compute."""
    placed = {name: place(given.library, given.lay, device, lazy=given.lazy) for name, given in case.given.items()}
    arrays = {name: p.array for name, p in placed.items()}
    libraries = {g.library for n, g in case.given.items()}
    options = case.kind.options | case.options | options
    if "numpy" in libraries and len(libraries) > 1 and device == "cuda":
        options["mix_devices"] = True
    inputs = {n: x for n, x in arrays.items() if n not in ("a", "b", "c", "out")}
    shared: dict[str, Any] = {"alpha": case.alpha, "beta": case.beta, "options": options}
    if any(case.conj):
        shared["qualifiers"] = np.zeros(2, host.matrix_qualifiers_dtype)
        shared["qualifiers"]["is_conjugate"] = case.conj
    if case.scales:
        shared["quantization_scales"] = dict(case.scales)
    epilog = {"epilog": case.epilog, "epilog_inputs": inputs or None}
    out, copies = arrays.get("out"), None
    if case.form == "function":
        answer = host.matmul(arrays["a"], arrays["b"], arrays.get("c"), out=out, **shared, **epilog)
    else:
        with host.Matmul(arrays["a"], arrays["b"], arrays.get("c"), **shared) as mm:
            mm.plan(out=out if case.form == "planned for out" else None, **epilog)
            answer = mm.execute(out=out)
            copies = mm.copies
    result, outputs = answer if isinstance(answer, tuple) else (answer, {})
    assert out is None or result is out
    made = {"d": result, **outputs}
    return Outcome(
        {name: to_numpy(x) for name, x in made.items()}, {name: library_of(x) for name, x in made.items()},
        {name: _strides(x) for name, x in made.items()}, placed, copies,
    )  # fmt: skip


def _strides(x: Any) -> Shape:
    """Of the library itself, in elements."""
    if library_of(x) == "torch":
        return tuple(x.stride())
    if library_of(x) == "dlpack":
        return _strides(x.inner)
    strides = x.strides
    return tuple(strides if library_of(x) == "ours" else (s // x.dtype.itemsize for s in strides))
