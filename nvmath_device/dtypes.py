# SPDX-License-Identifier: Apache-2.0
"""The one table of element types, across NumPy, ml_dtypes, Numba, libmathdx, cuBLAS and DLPack.

Nothing is imported here: foreign types are named, and resolved by whoever needs them. A real element type is
an :class:`ElementType`; what a kernel stores is a :class:`ValueType`, an element type times a number of
components (1 = real, 2 = complex, 4 = two interleaved fp16 complex numbers, which cuFFTDx computes together).

Sources: ``commondxPrecision``/``commondxValueType`` of libcommondx.h (libmathdx 0.4.2), ``cudaDataType`` of
library_types.h (CUDA 13), ``DLDataTypeCode`` of dlpack.h (1.1).
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError
from nvmath_device.frozen import frozen

if TYPE_CHECKING:
    import numpy as np


@frozen()
class ElementType:
    """A real element type. ``str(t)`` is its name; equal names are equal types.

    Attributes:
        name: canonical name, NumPy's or ml_dtypes' where one exists.
        kind: ``"float"``, ``"int"`` or ``"uint"``.
        itemsize: bytes in memory.
        significand: bits of precision including the hidden one; for integers the value bits.
        mathdx: member of ``Precision`` and, with ``R_``/``C_`` before it, suffix of ``ValueType``.
        numpy: name of the dtype that stores it (``tfloat32`` is stored as ``float32``).
        numba: name in ``numba.types`` of the type a kernel sees (fp8 has none: kernels see its bits).
        cuda: ``cudaDataType`` of the real and of the complex type, ``None`` where there is none.
        dlpack: ``DLDataTypeCode`` of the real type.
    """

    name: str
    kind: str
    itemsize: int
    significand: int
    mathdx: str
    mathdx_value: str
    numpy: str
    numba: str
    cuda: tuple[int | None, int | None]
    dlpack: int

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"nvmath_device.{self.name}"

    def __reduce__(self) -> tuple[Any, ...]:
        return (element_type, (self.name,))

    @property
    def _numba_type_(self) -> Any:
        from nvmath_device.numba_backend import dtype_type

        return dtype_type(self)

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """NumPy dtype of the storage (imports NumPy, and ml_dtypes for bfloat16 and fp8)."""
        import numpy as np

        if self.numpy in _ML_DTYPES:
            import ml_dtypes

            return np.dtype(getattr(ml_dtypes, self.numpy))
        return np.dtype(self.numpy)


#                       name             kind   B  bits mathdx     value      numpy           numba       cuda    dlpack
float8_e5m2 = ElementType("float8_e5m2", "float", 1, 3, "F8_E5M2", "8F_E5M2", "float8_e5m2", "uint8", (29, None), 12)
float8_e4m3fn = ElementType(
    "float8_e4m3fn", "float", 1, 4, "F8_E4M3", "8F_E4M3", "float8_e4m3fn", "uint8", (28, None), 10
)
bfloat16 = ElementType("bfloat16", "float", 2, 8, "BF16", "16BF", "bfloat16", "bfloat16", (14, 15), 4)
float16 = ElementType("float16", "float", 2, 11, "F16", "16F", "float16", "float16", (2, 6), 2)
tfloat32 = ElementType("tfloat32", "float", 4, 11, "TF32", "32TF", "float32", "float32", (0, 4), 2)
float32 = ElementType("float32", "float", 4, 24, "F32", "32F", "float32", "float32", (0, 4), 2)
float64 = ElementType("float64", "float", 8, 53, "F64", "64F", "float64", "float64", (1, 5), 2)
int8 = ElementType("int8", "int", 1, 7, "I8", "8I", "int8", "int8", (3, 7), 0)
int16 = ElementType("int16", "int", 2, 15, "I16", "16I", "int16", "int16", (20, 21), 0)
int32 = ElementType("int32", "int", 4, 31, "I32", "32I", "int32", "int32", (10, 11), 0)
int64 = ElementType("int64", "int", 8, 63, "I64", "64I", "int64", "int64", (24, 25), 0)
uint8 = ElementType("uint8", "uint", 1, 8, "UI8", "8UI", "uint8", "uint8", (8, 9), 1)
uint16 = ElementType("uint16", "uint", 2, 16, "UI16", "16UI", "uint16", "uint16", (22, 23), 1)
uint32 = ElementType("uint32", "uint", 4, 32, "UI32", "32UI", "uint32", "uint32", (12, 13), 1)
uint64 = ElementType("uint64", "uint", 8, 64, "UI64", "64UI", "uint64", "uint64", (26, 27), 1)

ELEMENT_TYPES: tuple[ElementType, ...] = (
    float8_e5m2, float8_e4m3fn, bfloat16, float16, tfloat32, float32, float64,
    int8, int16, int32, int64, uint8, uint16, uint32, uint64,
)  # fmt: skip

_ML_DTYPES = frozenset({"bfloat16", "float8_e4m3fn", "float8_e5m2"})
_BY_NAME = {t.name: t for t in ELEMENT_TYPES}
_ALIASES = {
    "tf32": tfloat32,
    "bf16": bfloat16,
    "fp16": float16, "half": float16,
    "fp32": float32,
    "fp64": float64,
    "e4m3": float8_e4m3fn, "fp8_e4m3": float8_e4m3fn,
    "e5m2": float8_e5m2, "fp8_e5m2": float8_e5m2,
    "__nv_bfloat16": bfloat16,
}  # fmt: skip


def element_type(value: Any, *, argument: str = "dtype") -> ElementType:
    """The row of the table for whatever names an element type.

    Accepts an :class:`ElementType`, a name (``"float16"``, ``"bf16"``, ``"tf32"``, ``"e4m3"`` ...), a NumPy or
    ml_dtypes dtype or scalar type, a Numba type, or a torch dtype. Raises :class:`ArgumentTypeError` for
    anything that does not name one.
    """
    if isinstance(value, ElementType):
        return value
    name = _foreign_name(value)
    found = _BY_NAME.get(name) or _ALIASES.get(name)
    if found is None:
        known = ", ".join(_BY_NAME)
        raise ArgumentTypeError(f"{argument}: {value!r} is not a known element type; known are {known}")
    return found


def _foreign_name(value: Any) -> str:
    if isinstance(value, str):
        return value
    for attribute in ("name", "__name__"):  # np.dtype and numba types; scalar types such as np.float32
        name = getattr(value, attribute, None)
        if isinstance(name, str):
            return name
    return str(value).rpartition(".")[2]  # torch.float32


@frozen()
class ValueType:
    """What one element of a buffer is: ``components`` numbers of type ``element``, stored together.

    libmathdx over-aligns every multi-component value to its own size, so ``alignment`` equals ``itemsize``.
    """

    element: ElementType
    components: int = 1

    def __post_init__(self) -> None:
        if self.components not in (1, 2, 4):
            raise InvalidArgumentError(f"components: {self.components!r} is not 1, 2 or 4")

    def __str__(self) -> str:
        if self.components == 1:
            return self.element.name
        if self.components == 2 and self.element in (float32, float64):
            return f"complex{self.itemsize * 8}"
        return f"{self.element.name}x{self.components}"

    @property
    def itemsize(self) -> int:
        """Bytes of one value."""
        return self.element.itemsize * self.components

    @property
    def alignment(self) -> int:
        """Bytes; what libmathdx assumes of a pointer to it."""
        return self.itemsize

    @property
    def is_complex(self) -> bool:
        return self.components > 1

    @property
    def mathdx(self) -> str:
        """Member name of ``lto.mathdx_enums.ValueType``, e.g. ``C_32F`` or ``C_16F2``."""
        if self.components == 4:
            return f"C_{self.element.mathdx_value}2"
        return f"{'C' if self.is_complex else 'R'}_{self.element.mathdx_value}"

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """NumPy dtype: a complex dtype where NumPy has one, else a record of fields x, y (, z, w)."""
        import numpy as np

        if self.components == 1:
            return self.element.dtype
        if self.components == 2 and self.element.numpy in ("float32", "float64"):
            return np.dtype(f"complex{self.itemsize * 8}")
        return np.dtype([(field, self.element.dtype) for field in "xyzw"[: self.components]])
