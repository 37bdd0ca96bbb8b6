# SPDX-License-Identifier: Apache-2.0
"""Which element types, compute type and scale type go together: cuBLASLt's tables, and what is assumed by default.

The tables are those of ``cublasLtMatmul`` in the cuBLAS 13 documentation for matrices in row or column order. What
they lack is refused here, by name, before anything is planned. What they have may still be missing on a device or in
an older library; that only heuristics know. Everything here is pure.
"""

from __future__ import annotations

import cmath
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Number
from typing import Any, NamedTuple

import numpy as np

from nvmath_device.dtypes import (
    ELEMENT_TYPES,
    ElementType,
    bfloat16,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    float64,
    int8,
    int32,
    tfloat32,
)
from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError, UnsupportedError
from nvmath_device.host.array_view import type_name
from nvmath_device.host.cublaslt_enums import ComputeType, CudaDataType


@dataclass(frozen=True)
class GemmTypes:
    """Everything about the types of one product.

    Attributes:
        a, b, c, d: real element types of the operands and of the result. ``c`` is stated where there is no C, too:
            cuBLASLt's tables ask for it.
        is_complex: whether the elements of A, B, C and D are two of those, real part first.
        compute: arithmetic of products and sums.
        scale: type of alpha and beta; :func:`scalar_dtype` gives it as NumPy's.
        bias: type of a bias and of a bias gradient. D's type, without meaning, where :func:`why_no_epilogs` objects.
        aux: type of ``gelu_aux``, the values before GELU. D's type where D is no fp8 matrix. An e4m3 D of e4m3
            operands has C's, fp16 or bf16, so that the derivative is not taken of values rounded to 4 bits; an fp8
            D of mixed operands has D's, the only one that cuBLASLt documents.
    """

    a: ElementType
    b: ElementType
    c: ElementType
    d: ElementType
    is_complex: bool
    compute: ComputeType
    scale: CudaDataType
    bias: ElementType
    aux: ElementType

    @property
    def is_fp8(self) -> bool:
        """The operands are fp8: A and B may have scales."""
        return is_fp8(self.a)

    def __str__(self) -> str:
        a, b, c, d = (type_name(t, self.is_complex) for t in (self.a, self.b, self.c, self.d))
        return f"{a} x {b} + {c} -> {d}, {self.compute.name}, scale type {self.scale.name}"


# -- the tables ---------------------------------------------------------------------------------------------

_C = ComputeType
_32F = (_C.COMPUTE_32F, _C.COMPUTE_32F_PEDANTIC)
_32F_OF_FLOAT32 = (
    *_32F, _C.COMPUTE_32F_FAST_16F, _C.COMPUTE_32F_FAST_16BF, _C.COMPUTE_32F_FAST_TF32, _C.COMPUTE_32F_EMULATED_16BFX9
)  # fmt: skip
_64F = (_C.COMPUTE_64F, _C.COMPUTE_64F_PEDANTIC, _C.COMPUTE_64F_EMULATED_FIXEDPOINT)
_16F = (_C.COMPUTE_16F, _C.COMPUTE_16F_PEDANTIC)
_32I = (_C.COMPUTE_32I, _C.COMPUTE_32I_PEDANTIC)
_R16F, _R32F, _R64F = CudaDataType.CUDA_R_16F, CudaDataType.CUDA_R_32F, CudaDataType.CUDA_R_64F
_C32F, _C64F, _R32I = CudaDataType.CUDA_C_32F, CudaDataType.CUDA_C_64F, CudaDataType.CUDA_R_32I


class _Row(NamedTuple):
    """One documented combination. The first compute type and the first aux type are the defaults."""

    a: ElementType
    b: ElementType
    c: ElementType
    d: ElementType
    is_complex: bool
    computes: tuple[ComputeType, ...]
    scale: CudaDataType
    bias: ElementType | None  # None: no epilogs
    aux: tuple[ElementType, ...]


def _regular(
    ab: ElementType, cd: ElementType, computes: tuple[ComputeType, ...], scale: CudaDataType, bias: ElementType | None
) -> _Row:
    return _Row(ab, ab, cd, cd, scale in (_C32F, _C64F), computes, scale, bias, (cd,))


def _fp8_rows(a: ElementType, b: ElementType) -> list[_Row]:
    """An fp8 D goes with a C of fp16 or of bf16; fp16 first, which is assumed where there is no C."""

    def row(c: ElementType, d: ElementType, bias: ElementType, *aux: ElementType) -> _Row:
        return _Row(a, b, c, d, False, (_C.COMPUTE_32F,), _R32F, bias, aux)

    rows = [row(x, x, bfloat16 if x is float32 else x, x) for x in (float16, bfloat16, float32)]
    for d in (float8_e4m3fn,) if a is b else (float8_e4m3fn, float8_e5m2):
        rows += [row(c, d, c, *((c, d) if a is b else (d,))) for c in (float16, bfloat16)]
    return rows


# Rows of equal operands are in the order of preference.
_ROWS: tuple[_Row, ...] = (
    #        A and B   C and D   compute types    scale  bias
    _regular(float16, float16, _32F, _R32F, float16),
    _regular(float16, float16, _16F, _R16F, float16),
    _regular(float16, float32, _32F, _R32F, float32),
    _regular(bfloat16, bfloat16, _32F, _R32F, bfloat16),
    _regular(bfloat16, float32, _32F, _R32F, float32),
    _regular(float32, float32, _32F_OF_FLOAT32, _R32F, float32),
    _regular(float64, float64, _64F, _R64F, float64),
    _regular(float32, float32, _32F_OF_FLOAT32, _C32F, None),
    _regular(float64, float64, _64F, _C64F, None),
    _regular(int8, int32, _32I, _R32I, None),
    _regular(int8, int8, _32I, _R32F, None),
    _regular(int8, float32, _32F, _R32F, None),
    *_fp8_rows(float8_e4m3fn, float8_e4m3fn),
    *_fp8_rows(float8_e4m3fn, float8_e5m2),
    *_fp8_rows(float8_e5m2, float8_e4m3fn),
)


def is_fp8(element: ElementType) -> bool:
    """Whether it is one of the types that have scales."""
    return element in (float8_e4m3fn, float8_e5m2)


# -- resolution ---------------------------------------------------------------------------------------------


def resolve_types(
    a: ElementType,
    b: ElementType,
    c: ElementType | None = None,
    *,
    is_complex: bool | tuple[bool, ...] = False,
    compute_type: ComputeType | None = None,
    scale_type: CudaDataType | None = None,
    result_type: CudaDataType | ElementType | None = None,
    bias: ElementType | None = None,
    aux_type: CudaDataType | None = None,
) -> GemmTypes:
    """The types of a product, with every default settled.

    Defaults: the result has C's type, without C that of A; int8 operands give int32, or float32 where
    ``compute_type`` is one of float32. The sum is computed in float32 for fp8, fp16, bf16 and float32, in float64 for
    float64, in int32 for int8 with an integer result; never in tf32 or anything else that rounds operands, unless
    ``compute_type`` asks for it. The scale type is the one cuBLASLt has for the compute type and the result. Without
    C, C's type is D's; for an fp8 D it is fp16, or that of ``bias``.

    Args:
        a, b, c: real element types of the operands; ``c=None``: there is no C.
        is_complex: for all operands, or one each of those there are.
        result_type: real or complex as the operands, or a real element type.
        bias: element type of the bias that is given.
        aux_type: type that ``gelu_aux`` shall have.

    Raises:
        UnsupportedError: cuBLASLt has no product of such operands; the message lists those it has.
        InvalidArgumentError: it has, but not with what else was asked for; the message lists what would do.
    """
    complex_operands = _one_kind(a, b, c, is_complex)
    result = _element(result_type, complex_operands, "result_type")
    aux = _element(aux_type, complex_operands, "aux_type")
    product = f"{type_name(a, complex_operands)} x {type_name(b, complex_operands)}"
    of_any_result = _narrow(_rows_of(a, b, complex_operands), "c", "c", c, product)
    if c is not None:
        product += f" + {type_name(c, complex_operands)}"
    wanted = result or c or _default_result(a, compute_type)
    rows = _narrow(of_any_result, "result_type", "d", wanted, product)
    product += f" -> {type_name(wanted, complex_operands)}"
    for argument, column, given in (
        ("compute_type", "computes", compute_type),
        ("scale_type", "scale", scale_type),
        ("bias", "bias", bias if rows[0].bias else None),
        ("aux_type", "aux", aux),
    ):
        rows = _narrow(rows, argument, column, given, product, of_any_result)
    row = rows[0]
    return GemmTypes(
        a, b, row.c, row.d, complex_operands, row.computes[0] if compute_type is None else compute_type, row.scale,
        row.bias or row.d, aux or row.aux[0],
    )  # fmt: skip


def why_no_epilogs(types: GemmTypes) -> str | None:
    """``None`` where cuBLASLt has epilogs for these types; otherwise the reason why it has none, as a sentence."""
    if types.is_complex:
        return "cuBLASLt has no epilogs for complex matrices; apply it to the result of a plain product"
    if types.a is int8:
        return (
            "cuBLASLt has no epilogs for int8 operands; apply it to the result of a plain product, or convert the "
            "operands to float16"
        )
    return None


def _default_result(a: ElementType, compute_type: ComputeType | None) -> ElementType:
    if a is int8:
        return float32 if compute_type in _32F else int32
    return a


def _one_kind(a: ElementType, b: ElementType, c: ElementType | None, is_complex: bool | tuple[bool, ...]) -> bool:
    """Whether all operands are complex. Raises UnsupportedError where some are and some are not."""
    operands = [("a", a), ("b", b)] + ([] if c is None else [("c", c)])
    kinds = (is_complex,) * len(operands) if isinstance(is_complex, bool) else is_complex
    if len(set(kinds)) > 1:
        given = ", ".join(f"{n} is {type_name(t, k)}" for (n, t), k in zip(operands, kinds, strict=True))
        raise UnsupportedError(
            f"{', '.join(n for n, _ in operands)}: real and complex operands do not go together, and {given}; convert "
            "the real ones to complex"
        )
    return kinds[0]


def _rows_of(a: ElementType, b: ElementType, is_complex: bool) -> list[_Row]:
    """Rows for these operands. Raises UnsupportedError where there are none."""
    rows = [row for row in _ROWS if row.a is a and row.b is b and row.is_complex == is_complex]
    if rows:
        return rows
    pairs = dict.fromkeys(f"{_shown(r.a, r.is_complex)} x {_shown(r.b, r.is_complex)}" for r in _ROWS)
    given = f"{type_name(a, is_complex)} x {type_name(b, is_complex)}"
    if tfloat32 in (a, b):
        hint = "no array has elements of tfloat32: pass float32 and compute_type COMPUTE_32F_FAST_TF32"
    elif a is b is float8_e5m2:
        hint = "convert one of them to float8_e4m3fn, or both to float16"
    elif a is not b:
        hint = "convert one of them"
    else:
        hint = "convert both"
    raise UnsupportedError(f"a and b: cuBLASLt does not multiply {given}; it has {', '.join(pairs)}; {hint}")


def _element(data_type: CudaDataType | ElementType | None, is_complex: bool, argument: str) -> ElementType | None:
    """The real element type; a ``cudaDataType`` has to be complex exactly where the operands are."""
    if data_type is None or isinstance(data_type, ElementType):
        return data_type
    element, complex_type = element_of(data_type, argument=argument)
    if complex_type != is_complex:
        kinds = ("real", "complex")
        raise InvalidArgumentError(
            f"{argument}: {data_type.name} is {kinds[complex_type]}, and the operands are {kinds[is_complex]}; give a "
            f"{kinds[is_complex]} type"
        )
    return element


def _narrow(
    rows: list[_Row], argument: str, column: str, given: Any, product: str, of_any_result: Iterable[_Row] = ()
) -> list[_Row]:
    """The rows whose ``column`` allows what is given; all of them where it is ``None``.

    ``product`` says in words what is settled already, ``of_any_result`` are the rows before a result was chosen.

    Raises:
        UnsupportedError, for C, or InvalidArgumentError: no row does. The message lists what would be allowed, and
            the results with which this would be.
    """
    if given is None:
        return rows
    kept = [row for row in rows if given in _allowed(row, column)]
    if kept:
        return kept
    is_complex = rows[0].is_complex
    known = list(dict.fromkeys(_shown(x, is_complex) for row in rows for x in _allowed(row, column)))
    results = list(dict.fromkeys(_shown(row.d, is_complex) for row in of_any_result if given in _allowed(row, column)))
    message = (
        f"{argument}: {_shown(given, is_complex)} does not go with {product}; allowed "
        f"{'is' if len(known) == 1 else 'are'} {', '.join(known)}"
    )
    if results:
        message += f". It goes with a result of type {' or '.join(results)}"
    raise (UnsupportedError if argument == "c" else InvalidArgumentError)(message)


def _allowed(row: _Row, column: str) -> tuple[Any, ...]:
    value = getattr(row, column)
    return value if isinstance(value, tuple) else (value,)


def _shown(value: Any, is_complex: bool) -> str:
    return type_name(value, is_complex) if isinstance(value, ElementType) else value.name


# -- types as cuBLASLt numbers them -------------------------------------------------------------------------

_BY_CUDA = {
    number: (element, is_complex)
    for element in ELEMENT_TYPES
    if element is not tfloat32
    for is_complex, number in enumerate(element.cuda)
    if number is not None
}


def cuda_data_type(element: ElementType, is_complex: bool = False) -> CudaDataType:
    """``cudaDataType`` of an element type. Raises UnsupportedError where CUDA has none: complex fp8."""
    number = element.cuda[is_complex]
    if number is None:
        raise UnsupportedError(f"CUDA has no data type for {type_name(element, is_complex)}")
    return CudaDataType(number)


def element_of(data_type: CudaDataType, *, argument: str = "data type") -> tuple[ElementType, bool]:
    """The real element type behind a ``cudaDataType``, and whether it is complex.

    Raises:
        UnsupportedError: no array has such elements: those of 4 and 6 bits, and fp8 types of block scales.
    """
    found = _BY_CUDA.get(int(data_type))
    if found is None:
        raise UnsupportedError(f"{argument}: {data_type.name} is not the type of any array that is accepted")
    return found[0], bool(found[1])


def itemsize_of(data_type: CudaDataType) -> int:
    """Bytes of one element, both parts of a complex one."""
    element, is_complex = element_of(data_type)
    return element.itemsize * (2 if is_complex else 1)


# -- alpha and beta -----------------------------------------------------------------------------------------

_SCALARS: dict[CudaDataType, np.dtype[Any]] = {
    CudaDataType.CUDA_R_16F: np.dtype(np.float16),
    CudaDataType.CUDA_R_32F: np.dtype(np.float32),
    CudaDataType.CUDA_R_64F: np.dtype(np.float64),
    CudaDataType.CUDA_C_32F: np.dtype(np.complex64),
    CudaDataType.CUDA_C_64F: np.dtype(np.complex128),
    CudaDataType.CUDA_R_32I: np.dtype(np.int32),
}


def scalar_dtype(scale: CudaDataType) -> np.dtype[Any]:
    """NumPy dtype of alpha and beta. Raises InvalidArgumentError for what is never a scale type."""
    found = _SCALARS.get(scale)
    if found is None:
        allowed = ", ".join(s.name for s in _SCALARS)
        raise InvalidArgumentError(f"scale_type: {scale.name} is never a scale type; those are {allowed}")
    return found


def read_scalar(value: Any, scale: CudaDataType, *, argument: str) -> np.generic:
    """alpha or beta in the scale type, as a NumPy scalar whose bytes cuBLASLt reads.

    Takes Python's and NumPy's numbers and NumPy arrays without axes; not arrays of other libraries, because reading
    one on the GPU would wait for it. For the scale type int32, that of int8 -> int32, it has to be 0 or 1.

    Raises:
        ArgumentTypeError: not a number, or a complex one for a real scale type.
        InvalidArgumentError: neither 0 nor 1 for int32; finite, but infinite in the scale type.
    """
    dtype = scalar_dtype(scale)
    number = value[()] if isinstance(value, np.ndarray) and value.ndim == 0 else value
    try:
        exact = _complex(number)
    except TypeError:
        raise ArgumentTypeError(f"{argument}: {value!r} is a {type(value).__name__}; give a number") from None
    except OverflowError:
        raise InvalidArgumentError(f"{argument}: the number is too large for the scale type {scale.name}") from None
    if dtype.kind != "c" and np.iscomplexobj(number):
        raise ArgumentTypeError(f"{argument}: {value!r} is complex, and the scale type {scale.name} is real")
    if dtype.kind == "i" and exact not in (0, 1):
        raise InvalidArgumentError(
            f"{argument}: {value!r} is not allowed where int8 operands give int32; give 0 or 1, or the result_type "
            "float32"
        )
    with np.errstate(over="ignore"):
        converted: np.generic = dtype.type(exact if dtype.kind == "c" else exact.real)
    if cmath.isfinite(exact) and not np.isfinite(converted):
        raise InvalidArgumentError(
            f"{argument}: {value!r} is too large for the scale type {scale.name}, in which it is infinite"
        )
    return converted


def _complex(number: Any) -> complex:
    """A number of Python, NumPy or ml_dtypes. Raises TypeError for anything else, booleans and strings included."""
    if isinstance(number, (bool, np.bool_, np.character)) or not isinstance(number, (Number, np.generic)):
        raise TypeError
    return complex(number)  # type: ignore[arg-type]
