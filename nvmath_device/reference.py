# SPDX-License-Identifier: Apache-2.0
"""GEMM and FFT in plain NumPy, with the rounding of each element type: slow, and right.

The simulator and CPU execution compute with these functions. They need neither CUDA nor Numba. Values are
rounded where cuBLASDx and cuFFTDx are known to round (operands, scalars, results); the order of additions is
not theirs, so results agree with a GPU's to the error bounds of the precision, not bit by bit. Integer
results are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from nvmath_device.descriptors import Precision
from nvmath_device.dtypes import (
    ElementType,
    ValueType,
    bfloat16,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float64,
    tfloat32,
)
from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError
from nvmath_device.fft_descriptor import C2C, C2R, FORWARD, FULL, NATURAL, FftDescriptor

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"
Parts: TypeAlias = "list[Array]"  # the components of an array: [real] or [real, imaginary]
RoundingMode: TypeAlias = Literal["nearest", "truncate"]

_FIELDS = "xyzw"


# -- rounding ----------------------------------------------------------------------------------------------


class _Format(NamedTuple):
    min_exponent: int  # the smallest normal number is 2 ** min_exponent
    largest: float
    saturates: bool  # what CUDA's conversions to it do with numbers above the largest


_FORMATS = {
    float8_e5m2: _Format(-14, 57344.0, True),
    float8_e4m3fn: _Format(-6, 448.0, True),
    bfloat16: _Format(-126, (2 - 2**-7) * 2.0**127, False),
    float16: _Format(-14, 65504.0, False),
    tfloat32: _Format(-126, (2 - 2**-10) * 2.0**127, False),
}


def round_to(
    array: Any, element: ElementType, *, mode: RoundingMode = "nearest", saturate: bool | None = None
) -> Array:
    """``array`` rounded once to the precision of ``element``, in the dtype that stores it.

    ``mode="nearest"`` rounds to nearest, ties to even, as conversions do. ``mode="truncate"`` rounds toward
    zero, as tensor cores do with float32 numbers given as ``tfloat32``. Float64 input is not rounded to
    float32 on the way. NaN stays NaN, subnormal numbers and signed zeros are kept.

    Beyond the largest finite number, ``saturate=True`` gives that number, for infinities too (CUDA's
    ``__NV_SATFINITE``), and ``False`` gives infinity, or NaN for ``float8_e4m3fn``, which has no infinity.
    The default is ``True`` for the two fp8 types, as in CUDA's conversions, and ``False`` for the others.
    Truncation makes no infinity out of a finite number.

    Complex arrays are rounded part by part, for the types NumPy has complex numbers of.

    Raises:
        InvalidArgumentError: ``element`` is an integer type, or has no complex numbers in NumPy.
    """
    if not element.is_float:
        raise InvalidArgumentError(f"element: {element} is an integer type; give a floating-point one")
    if mode not in ("nearest", "truncate"):
        raise InvalidArgumentError(f"mode: {mode!r} is not allowed; give 'nearest' or 'truncate'")
    array = np.asarray(array)
    if np.iscomplexobj(array):
        if element.numpy not in ("float32", "float64"):
            raise InvalidArgumentError(f"array: NumPy has no complex {element}; use from_complex")
        parts = [round_to(part, element, mode=mode, saturate=saturate) for part in (array.real, array.imag)]
        return join_parts(parts, ValueType(element, 2))
    with np.errstate(over="ignore", invalid="ignore"):
        if element not in _FORMATS:
            return _round_to_native(array, element, mode, saturate)
        if array.dtype == np.float32 and mode == "nearest" and element is not tfloat32:
            return _round_float32(array, element, saturate)
        return _round(array.astype(np.float64), element, mode, saturate).astype(element.dtype)


def _round(values: Array, element: ElementType, mode: RoundingMode, saturate: bool | None) -> Array:
    """Float64 numbers that ``element`` has exactly."""
    form = _FORMATS[element]
    saturate = form.saturates if saturate is None else saturate
    _, exponent = np.frexp(values)
    # Scaled by 2**-lsb, the last bit that element keeps is worth 1; below min_exponent it no longer shrinks.
    lsb = np.maximum(exponent, form.min_exponent + 1) - element.significand
    scaled = np.ldexp(values, -lsb)
    rounded = np.ldexp(np.rint(scaled) if mode == "nearest" else np.trunc(scaled), lsb)
    over = np.abs(rounded) > form.largest
    to_largest = over if saturate else over & np.isfinite(values) & (mode == "truncate")
    rounded = np.where(over, np.copysign(np.inf, values), rounded)  # which becomes NaN as float8_e4m3fn
    return np.where(to_largest, np.copysign(form.largest, values), rounded)


def _round_float32(array: Array, element: ElementType, saturate: bool | None) -> Array:
    """To nearest by NumPy's and ml_dtypes' own conversions, ten times as fast. Those of float64 round twice."""
    form = _FORMATS[element]
    if form.saturates if saturate is None else saturate:
        array = np.clip(array, -form.largest, form.largest)
    return array.astype(element.dtype)


def _round_to_native(array: Array, element: ElementType, mode: RoundingMode, saturate: bool | None) -> Array:
    """Float32 and float64, whose conversions NumPy has; both round to nearest once."""
    rounded = array.astype(element.dtype)
    if mode == "truncate":
        away = np.abs(rounded.astype(np.float64)) > np.abs(array.astype(np.float64))
        rounded = np.where(away, np.nextafter(rounded, element.dtype.type(0)), rounded)
    if saturate:
        largest = np.finfo(element.dtype).max
        rounded = np.clip(rounded, -largest, largest)
    return np.asarray(rounded, dtype=element.dtype)


# -- storage forms -----------------------------------------------------------------------------------------


def as_complex(array: Any, value_type: ValueType) -> Array:
    """Complex numbers out of stored values with 2 or 4 components.

    ``array`` is complex already, or a record array with the fields x, y (, z, w), or an array of components
    with one more axis, the last, of length 2 or 4. The result is complex64, or complex128 where complex64 is
    too narrow; 64-bit integers beyond 2**53 are rounded.

    Values with 4 components hold two numbers in the order re0 re1 im0 im1. They give an array with one more
    axis, the first: ``result[0]`` and ``result[1]`` are the two numbers.
    """
    if value_type.components == 1:
        raise InvalidArgumentError(f"value_type: {value_type} is real; give one with 2 or 4 components")
    parts = parts_of(array, value_type)
    wide = value_type.element.significand > 24
    real = [part.astype(np.float64 if wide else np.float32) for part in parts]
    if value_type.components == 2:
        return _join_complex(real[0], real[1])
    return np.stack([_join_complex(real[0], real[2]), _join_complex(real[1], real[3])])


def from_complex(array: Any, value_type: ValueType) -> Array:
    """The opposite of :func:`as_complex`: complex numbers rounded and stored in ``value_type.dtype``.

    Integer components are truncated toward zero and must be in range. For 4 components the first axis has
    length 2.
    """
    array = np.asarray(array)
    if value_type.components == 2:
        parts = [array.real, array.imag]
    elif value_type.components == 4:
        if array.ndim == 0 or array.shape[0] != 2:
            raise InvalidArgumentError(f"array: shape {array.shape} is not allowed; the first axis must have length 2")
        parts = [array[0].real, array[1].real, array[0].imag, array[1].imag]
    else:
        raise InvalidArgumentError(f"value_type: {value_type} is real; give one with 2 or 4 components")
    return join_parts([store_as(part, value_type.element) for part in parts], value_type)


def parts_of(array: Any, value_type: ValueType, argument: str = "array") -> Parts:
    """The components of stored values, each an array of the logical shape in the element's own dtype."""
    array, count = np.asarray(array), value_type.components
    if array.dtype.names is not None:
        if array.dtype.names != tuple(_FIELDS[:count]):
            raise ArgumentTypeError(f"{argument}: fields {array.dtype.names} do not make a {value_type}")
        parts = [array[name] for name in array.dtype.names]
    elif np.iscomplexobj(array):
        if count != 2:
            raise ArgumentTypeError(f"{argument}: dtype {array.dtype} does not make a {value_type}")
        parts = [array.real, array.imag]
    elif count == 1:
        parts = [array]
    else:
        if array.ndim == 0 or array.shape[-1] != count:
            raise InvalidArgumentError(
                f"{argument}: shape {array.shape} is not allowed for components of {value_type}; the last "
                f"axis must have length {count}"
            )
        parts = [array[..., i] for i in range(count)]
    return [store_as(part, value_type.element) for part in parts]


def store_as(part: Array, element: ElementType) -> Array:
    """What memory of the element's type holds after these values were written to it."""
    if part.dtype == element.dtype:
        return part
    if element in (float8_e4m3fn, float8_e5m2) and part.dtype == np.uint8:  # kernels see fp8 as its bits
        return np.ascontiguousarray(part).view(element.dtype).reshape(part.shape)
    with np.errstate(over="ignore", invalid="ignore"):
        if element.is_float and element is not tfloat32:
            return round_to(part, element)
        return part.astype(element.dtype)  # tf32 lives in float32, all bits kept


def join_parts(parts: Sequence[Array], value_type: ValueType) -> Array:
    """Stored values out of their components, the opposite of :func:`parts_of`."""
    if len(parts) == 1:
        return np.asarray(parts[0], dtype=value_type.dtype)
    joined = np.empty(np.shape(parts[0]), dtype=value_type.dtype)
    if value_type.dtype.names is None:
        joined.real, joined.imag = parts
    else:
        for name, part in zip(value_type.dtype.names, parts, strict=True):
            joined[name] = part
    return joined


def _join_complex(real: Array, imaginary: Array) -> Array:
    # Not real + 1j * imaginary, which makes NaN out of an infinite imaginary part.
    joined = np.empty(real.shape, dtype=np.result_type(real, np.complex64))
    joined.real, joined.imag = real, imaginary
    return joined


# -- GEMM --------------------------------------------------------------------------------------------------


def gemm(
    a: Any,
    b: Any,
    c: Any = None,
    *,
    precision: Precision,
    alpha: Any = 1,
    beta: Any = 0,
    data_type: Literal["real", "complex"] = "real",
    conj_a: bool = False,
    conj_b: bool = False,
    tf32_mode: RoundingMode = "truncate",
) -> Array:
    """alpha op(A) op(B) + beta C, with ``a`` = op(A) of shape (m, k), ``b`` = op(B) (k, n), ``c`` (m, n).

    The operands are stored values of the element types of ``precision``: views of kernel memory, transposed
    already; ``conj_a`` and ``conj_b`` conjugate them. Numbers of another dtype are first converted as a store
    would. Complex operands have any form that :func:`as_complex` takes. Returns a new array in the storage of
    C's type.

    Floating point: A and B are exact (``tfloat32``: cut to 10 mantissa bits, see ``tf32_mode``). Products are
    summed in float32 if all types are float32 or narrower, else in float64, and the sum has the precision of
    float32, or of C if that is float64; alpha and beta are rounded to C's type; the result is rounded to C's
    type once. For a float16 C a GPU may sum in float16, too, and then be off by more than the one rounding.
    Integers: exact modulo 2**bits of C; alpha and beta are truncated to integers.

    C is read only if beta, as C's type, is not zero, so NaN in an unread C does not spread (cuBLASDx says the
    same). A and B are read even if alpha is zero.

    Raises:
        InvalidArgumentError: shapes that do not fit, C missing with a beta other than zero, floating-point
            and integer types mixed.
        ArgumentTypeError: complex numbers where ``data_type`` is ``"real"``.
    """
    if len({element.is_float for element in precision}) > 1:
        raise InvalidArgumentError(
            f"precision: ({', '.join(map(str, precision))}) mixes floating point and integers; give one kind"
        )
    components = 2 if data_type == "complex" else 1
    value_type, sums = ValueType(precision.c, components), sum_type(precision.c)
    parts_a = parts_of(a, ValueType(precision.a, components), "a")
    parts_b = parts_of(b, ValueType(precision.b, components), "b")
    (m, k), n = _extents(parts_a[0], parts_b[0])
    scale = scalar_parts(alpha, precision.c, components, "alpha")
    scale_c = scalar_parts(beta, precision.c, components, "beta")
    stored_c = _addend(c, (m, n), value_type) if any(part != 0 for part in scale_c) else None
    products = product_type(precision.a, precision.b, k, sums)
    factors_a = factor_parts(parts_a, precision.a, products, conj=conj_a, tf32_mode=tf32_mode)
    factors_b = factor_parts(parts_b, precision.b, products, conj=conj_b, tf32_mode=tf32_mode)
    with np.errstate(over="ignore", invalid="ignore"):
        result = gemm_parts(factors_a, factors_b, stored_c, alpha=scale, beta=scale_c, sums=sums)
        return join_parts([store_as(part, precision.c) for part in result], value_type)


def _extents(a: Array, b: Array) -> tuple[tuple[int, int], int]:
    """(m, k) and n."""
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
        raise InvalidArgumentError(f"b: shape {b.shape} does not fit a's {a.shape}; give (m, k) and (k, n)")
    return a.shape, b.shape[1]


def gemm_parts(a: Parts, b: Parts, c: Parts | None, *, alpha: Parts, beta: Parts, sums: np.dtype[Any]) -> Parts:
    """alpha A B + beta C by components, in the dtype of alpha and beta, and not rounded to a result type yet.

    A and B have the dtype of :func:`product_type` and any batch before their last two axes, which broadcast as in
    ``np.matmul``. The sums become ``sums``; as integers they wrap around. C, which may be of any real dtype and
    broadcasts, is read only if beta is not zero.
    """
    scaled = alpha[0].dtype
    product = [_sum_of(part, sums).astype(scaled, copy=False) for part in _multiply(a, b, np.matmul)]
    result = _multiply(alpha, product, np.multiply)
    if c is None or all(part == 0 for part in beta):
        return result
    added = _multiply(beta, [part.astype(scaled, copy=False) for part in c], np.multiply)
    return [part + more for part, more in zip(result, added, strict=True)]


def sum_type(element: ElementType) -> np.dtype[Any]:
    """The dtype of sums that become ``element``, and of scalars of that type."""
    if not element.is_float:
        return element.dtype
    return np.dtype(np.float64 if element is float64 else np.float32)


def product_type(a: ElementType, b: ElementType, k: int, sums: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype that A and B are multiplied in, for sums of ``k`` products that become ``sums``.

    Integers are multiplied in float64, which has a BLAS behind it, where that is exact; else in ``sums``.
    """
    if a.is_float:
        return np.dtype(np.float64 if float64 in (a, b) or sums == np.float64 else np.float32)
    largest = k << (a.significand + b.significand + 1)  # one bit more for the two sums of a complex product
    return np.dtype(np.float64) if largest <= 2**float64.significand else sums


def _sum_of(product: Array, sums: np.dtype[Any]) -> Array:
    if product.dtype.kind == "f" and sums.kind in "iu":
        product = product.astype(np.int64)  # whole numbers, and from an integer type they wrap around
    return product.astype(sums, copy=False)


def factor_parts(
    parts: Parts,
    element: ElementType,
    products: np.dtype[Any],
    *,
    conj: bool = False,
    tf32_mode: RoundingMode = "truncate",
) -> Parts:
    """Components of A or B as factors: conjugated if wanted, in the dtype of products, in C order for a BLAS."""
    if element is tfloat32:
        parts = [round_to(part, tfloat32, mode=tf32_mode) for part in parts]
    parts = [part.astype(products, order="C", copy=False) for part in parts]
    return [parts[0], -parts[1]] if conj and len(parts) == 2 else parts


def _addend(c: Any, shape: tuple[int, ...], value_type: ValueType) -> Parts:
    if c is None:
        raise InvalidArgumentError("c: None is not allowed with a beta other than zero; give C or beta=0")
    parts = parts_of(c, value_type, "c")
    if parts[0].shape != shape:
        raise InvalidArgumentError(f"c: shape {parts[0].shape} is not allowed; the product has shape {shape}")
    return parts


def scalar_parts(value: Any, element: ElementType, components: int, argument: str) -> Parts:
    """alpha or beta as numbers of C's type, in the type that sums have."""
    given: list[Any]
    record = np.asarray(value)
    if record.dtype.names is not None:
        given = [record[name][()] for name in record.dtype.names]
    else:
        given = [value.real, value.imag] if np.iscomplexobj(value) else [value]
    if len(given) > components:
        raise ArgumentTypeError(f"{argument}: {value!r} is complex, but the matrices are real; give a real number")
    given += [0] * (components - len(given))
    if element.is_float:
        return [round_to(part, element).astype(sum_type(element)) for part in given]
    bits = 8 * element.itemsize
    wrapped = [int(part) & ((1 << bits) - 1) for part in given]
    return [np.array(part, dtype=f"uint{bits}").view(element.dtype) for part in wrapped]


def _multiply(left: Parts, right: Parts, times: Any) -> Parts:
    """Product of two real or two complex factors, given and returned by parts."""
    if len(left) == 1:
        return [times(left[0], right[0])]
    return [
        times(left[0], right[0]) - times(left[1], right[1]),
        times(left[0], right[1]) + times(left[1], right[0]),
    ]


# -- FFT ---------------------------------------------------------------------------------------------------


def fft(x: Any, descriptor: FftDescriptor) -> Array:
    """FFTs along the last axis, from stored values of ``input_type`` to stored values of ``output_type``.

    ``x`` has shape (..., input_length), in any form that :func:`as_complex` takes, or real numbers. For
    float16 every value belongs to two FFTs: complex values are re0 re1 im0 im1, real ones are records of the
    fields x and y or have one more axis, the last, of length 2. The result has shape (..., output_length) and
    the dtype of ``output_type``. See :func:`fft_values` for what is computed.
    """
    pair = descriptor.implicit_type_batching == 2
    if descriptor.input_is_real:
        reals = parts_of(x, descriptor.input_type, "x")
        values = np.stack(reals) if pair else reals[0]
    else:
        values = as_complex(x, descriptor.input_type)
    result = fft_values(values, descriptor)
    if descriptor.output_is_real:
        parts = list(result) if pair else [result]
        return join_parts([store_as(part, descriptor.precision) for part in parts], descriptor.output_type)
    return from_complex(result, descriptor.output_type)


def fft_values(x: Any, descriptor: FftDescriptor) -> Array:
    """FFTs along the last axis, of plain numbers: one FFT a row, also for float16.

    ``x`` has shape (..., input_length) and the result (..., output_length), in the complex layout and real
    mode of the descriptor; folded real data are complex. Nothing is scaled: forward then inverse
    gives ``size`` times the input. The input is rounded to the precision, the transform computed in float64
    and rounded to the precision once, so a GPU's result differs by its own rounding errors. The result is
    carried in complex64 and float32, or complex128 and float64 for float64.

    c2r takes its input for Hermitian: imaginary parts of X[0] and X[N/2] and, in the full layout, values
    after X[N/2] have no influence. A GPU gives the same only if the input is Hermitian.

    Raises:
        InvalidArgumentError: the last axis of ``x`` has another length.
        ArgumentTypeError: ``x`` is complex where input is real.
    """
    x = np.asarray(x)
    if x.ndim == 0 or x.shape[-1] != descriptor.input_length:
        raise InvalidArgumentError(
            f"x: shape {x.shape} is not allowed; the last axis must have length {descriptor.input_length}"
        )
    if descriptor.input_is_real and np.iscomplexobj(x):
        raise ArgumentTypeError(f"x: dtype {x.dtype} is complex, but the FFT has real input; give real numbers")
    x = _carried(x, descriptor.precision).astype(np.float64 if descriptor.input_is_real else np.complex128)
    result: Array
    if descriptor.fft_type == C2C:
        # norm="forward" scales the forward transform, so it leaves the inverse one alone.
        result = np.fft.fft(x) if descriptor.direction == FORWARD else np.fft.ifft(x, norm="forward")
    elif descriptor.fft_type == C2R:
        reals = np.fft.irfft(_half_spectrum(x, descriptor), n=descriptor.size, norm="forward")
        result = _fold(reals) if descriptor.is_folded else reals
    else:
        result = _spectrum(_unfold(x) if descriptor.is_folded else x, descriptor)
    return _carried(result, descriptor.precision)


def _fold(reals: Array) -> Array:
    return _join_complex(reals[..., 0::2], reals[..., 1::2])


def _unfold(folded: Array) -> Array:
    return np.stack([folded.real, folded.imag], axis=-1).reshape(*folded.shape[:-1], -1)


def _spectrum(reals: Array, descriptor: FftDescriptor) -> Array:
    """The FFT of real numbers in the descriptor's complex layout."""
    layout = _layout(descriptor)
    if layout == FULL:
        return np.fft.fft(reals)
    half = np.fft.rfft(reals)
    if layout == NATURAL:
        return half
    packed = half[..., :-1].copy()
    packed[..., 0].imag = half[..., -1].real
    return packed


def _half_spectrum(x: Array, descriptor: FftDescriptor) -> Array:
    """The values X[0] to X[N//2] of a spectrum in the descriptor's complex layout."""
    if _layout(descriptor) in (NATURAL, FULL):
        return x[..., : descriptor.size // 2 + 1]
    return np.concatenate([x, x[..., :1].imag], axis=-1)  # irfft does not read the imaginary part of X[0]


def _layout(descriptor: FftDescriptor) -> str:
    assert descriptor.real_fft_options is not None
    return descriptor.real_fft_options.complex_layout


def _carried(values: Array, element: ElementType) -> Array:
    """Numbers that the precision has, in float32 or float64 or the complex types of these."""
    carrier = np.float64 if element is float64 else np.float32
    if not np.iscomplexobj(values):
        return round_to(values, element).astype(carrier)
    return _join_complex(*(round_to(part, element).astype(carrier) for part in (values.real, values.imag)))
