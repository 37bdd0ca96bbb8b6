# SPDX-License-Identifier: Apache-2.0
"""What a GEMM is, as pure data: the part of a descriptor that device and host level share.

No CUDA, no NumPy: descriptors are frozen, hashable, comparable, printable and picklable, and building one
checks everything that can be known without a library.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

from nvmath_device.checks import choice, choices, positive_int, positive_ints
from nvmath_device.dtypes import ElementType, ValueType, element_type
from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError
from nvmath_device.frozen import frozen, replace
from nvmath_device.targets import MAX_THREADS_PER_BLOCK, ComputeCapability

SUGGESTED: Literal["suggested"] = "suggested"
COL_MAJOR, ROW_MAJOR = "col_major", "row_major"
NON_TRANSPOSED, TRANSPOSED, CONJ_TRANSPOSED = "non_transposed", "transposed", "conj_transposed"
MAX_ALIGNMENT_BYTES = 16  # the most any value of libmathdx needs


class Dim3(NamedTuple):
    """Threads (or blocks) along x, y, z."""

    x: int = 1
    y: int = 1
    z: int = 1

    @property
    def size(self) -> int:
        """Threads in all."""
        return self.x * self.y * self.z


class GemmSize(NamedTuple):
    """C is m x n, A is m x k, B is k x n, in elements."""

    m: int
    n: int
    k: int


class Precision(NamedTuple):
    """Element types of A, B and C. alpha and beta have C's."""

    a: ElementType
    b: ElementType
    c: ElementType


class Arrangement(NamedTuple):
    """Storage orders of A, B and C, each ``"col_major"`` or ``"row_major"``."""

    a: str
    b: str
    c: str


class TransposeMode(NamedTuple):
    """What is done to stored A and B: ``"non_transposed"``, ``"transposed"`` or ``"conj_transposed"``."""

    a: str
    b: str


class LeadingDimension(NamedTuple):
    """Elements from one column (column-major) or row (row-major) to the next, for A, B and C."""

    a: int
    b: int
    c: int


class Alignment(NamedTuple):
    """What the pointers to A, B and C are aligned to, in bytes."""

    a: int
    b: int
    c: int


_COLUMNS = Arrangement(COL_MAJOR, COL_MAJOR, COL_MAJOR)
_AS_STORED = TransposeMode(NON_TRANSPOSED, NON_TRANSPOSED)
MAX_ALIGNMENT = Alignment(MAX_ALIGNMENT_BYTES, MAX_ALIGNMENT_BYTES, MAX_ALIGNMENT_BYTES)


@frozen()
class MatrixLayout:
    """A stored matrix: rows x cols elements, ``order`` and the leading dimension ``ld`` in elements."""

    rows: int
    cols: int
    order: str
    ld: int

    @property
    def size(self) -> int:
        """Elements a buffer needs: the leading dimension times the number of columns (rows if row-major)."""
        return self.ld * (self.cols if self.order == COL_MAJOR else self.rows)

    @property
    def cosize(self) -> int:
        """One past the last element that belongs to the matrix; the padding behind it is not counted."""
        inner, outer = (self.rows, self.cols) if self.order == COL_MAJOR else (self.cols, self.rows)
        return self.ld * (outer - 1) + inner

    @property
    def strides(self) -> tuple[int, int]:
        """Strides of a row and of a column step, in elements."""
        return (1, self.ld) if self.order == COL_MAJOR else (self.ld, 1)

    @property
    def is_tight(self) -> bool:
        return self.ld == (self.rows if self.order == COL_MAJOR else self.cols)


@frozen(kw_only=True)
class GemmDescriptor:
    """C = alpha op(A) op(B) + beta C, with sizes, element types and storage; device and host level share it.

    ``arrangement`` orders the stored matrices. ``transpose_mode`` other than ``non_transposed`` says that the
    stored matrix is transposed (and conjugated) before use; it then has the swapped shape. ``leading_dimension``
    may be ``"suggested"`` (libmathdx chooses, for fewer bank conflicts) until a target is known; ``None``
    becomes the tight one. ``alignment`` is a promise, in bytes, about the three pointers.

    Raises:
        InvalidArgumentError, ArgumentTypeError: naming the argument, its value and what is allowed.
    """

    size: GemmSize
    precision: Precision
    data_type: str = "real"
    arrangement: Arrangement = _COLUMNS
    transpose_mode: TransposeMode = _AS_STORED
    leading_dimension: LeadingDimension | Literal["suggested"] | None = None
    alignment: Alignment | None = None

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "size", GemmSize(*positive_ints(self.size, 3, argument="size", meaning="(m, n, k)")))
        put(self, "precision", _precision(self.precision))
        put(self, "data_type", choice(self.data_type, ("real", "complex"), argument="data_type"))
        reason = refuse_precision(*self.precision, data_type=self.data_type)
        if reason:
            names = ", ".join(map(str, self.precision))
            raise InvalidArgumentError(f"precision: ({names}) is not offered for {self.data_type} matrices: {reason}")
        put(
            self,
            "arrangement",
            Arrangement(*choices(self.arrangement, (COL_MAJOR, ROW_MAJOR), 3, argument="arrangement")),
        )
        modes = (NON_TRANSPOSED, TRANSPOSED, CONJ_TRANSPOSED)
        put(self, "transpose_mode", TransposeMode(*choices(self.transpose_mode, modes, 2, argument="transpose_mode")))
        put(self, "leading_dimension", self._leading_dimension())
        put(self, "alignment", self._alignment())

    # -- derived -------------------------------------------------------------------------------------------

    @property
    def value_types(self) -> tuple[ValueType, ValueType, ValueType]:
        """What one element of A, B and C is in memory."""
        components = 2 if self.data_type == "complex" else 1
        a, b, c = (ValueType(t, components) for t in self.precision)
        return a, b, c

    @property
    def dims(self) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
        """(rows, columns) of A, B and C as stored."""
        m, n, k = self.size
        mode = self.transpose_mode
        a = (m, k) if mode.a == NON_TRANSPOSED else (k, m)
        b = (k, n) if mode.b == NON_TRANSPOSED else (n, k)
        return a, b, (m, n)

    @property
    def tight_leading_dimension(self) -> LeadingDimension:
        """The smallest one: no padding."""
        return LeadingDimension(
            *(
                rows if order == COL_MAJOR else cols
                for (rows, cols), order in zip(self.dims, self.arrangement, strict=True)
            )
        )

    @property
    def layouts(self) -> tuple[MatrixLayout, MatrixLayout, MatrixLayout]:
        """A, B and C as stored. Needs a concrete leading dimension (not ``"suggested"``)."""
        if not isinstance(self.leading_dimension, LeadingDimension):
            raise InvalidArgumentError("leading_dimension: 'suggested' has no layout before a target is chosen")
        a, b, c = (
            MatrixLayout(rows, cols, order, ld)
            for (rows, cols), order, ld in zip(self.dims, self.arrangement, self.leading_dimension, strict=True)
        )
        return a, b, c

    @property
    def storage_bytes(self) -> tuple[int, int, int]:
        """Bytes of the buffers of A, B and C, leading dimensions included."""
        a, b, c = (layout.size * value.itemsize for layout, value in zip(self.layouts, self.value_types, strict=True))
        return a, b, c

    def replace(self, **changes: Any) -> GemmDescriptor:
        """A copy with some fields changed, checked again."""
        return replace(self, **changes)

    # -- checks --------------------------------------------------------------------------------------------

    def _leading_dimension(self) -> LeadingDimension | Literal["suggested"]:
        given, tight = self.leading_dimension, self.tight_leading_dimension
        if given is None:
            return tight
        if isinstance(given, str):
            choice(given, (SUGGESTED,), argument="leading_dimension")
            return SUGGESTED
        values = LeadingDimension(
            *positive_ints(given, 3, argument="leading_dimension", meaning="(lda, ldb, ldc) or 'suggested'")
        )
        for name, value, least, order in zip("abc", values, tight, self.arrangement, strict=True):
            if value < least:
                what = "rows" if order == COL_MAJOR else "columns"
                raise InvalidArgumentError(
                    f"leading_dimension: ld{name}={value} is less than the {least} {what} of the {order} matrix "
                    f"{name.upper()}; it must be at least {least}"
                )
        return values

    def _alignment(self) -> Alignment:
        natural = Alignment(*(v.alignment for v in self.value_types))
        if self.alignment is None:
            return natural
        values = Alignment(*positive_ints(self.alignment, 3, argument="alignment", meaning="bytes for A, B, C"))
        for name, value, least in zip("ABC", values, natural, strict=True):
            allowed = [x for x in (1, 2, 4, 8, 16) if x >= least]
            if value not in allowed:
                raise InvalidArgumentError(
                    f"alignment: {value} bytes for {name} is not allowed; its elements take {least} bytes, "
                    f"so allowed are {', '.join(map(str, allowed))}"
                )
        return values


def _precision(value: Any) -> Precision:
    if isinstance(value, Iterable) and not isinstance(value, str):
        types = tuple(value)
        if len(types) != 3:
            raise InvalidArgumentError(
                f"precision: got {len(types)} element types; give one for all, or three, for A, B and C"
            )
    else:
        types = (value, value, value)
    return Precision(*(element_type(t, argument="precision") for t in types))


ACCUMULATORS = ("float16", "float32", "float64", "int32", "int64", "uint32", "uint64")


def refuse_precision(a: ElementType, b: ElementType, c: ElementType, *, data_type: str = "real") -> str | None:
    """libmathdx's rule for mixed element types, in one place: the reason of a refusal, or ``None``.

    C (which is also the accumulator) is fp16, fp32, fp64 or a 32/64-bit integer; floats and integers do not
    mix; an integer C is at least four times as wide as A and B; signed input needs a signed C; complex integers
    are signed. Found by generating code for each kind of triple with libmathdx 0.4.2; the library itself says
    no only after 11 to 17 seconds of compiling.
    """
    if c.name not in ACCUMULATORS:
        return f"C (the accumulator) must be one of {', '.join(ACCUMULATORS)}, not {c}"
    if len({a.is_float, b.is_float, c.is_float}) > 1:
        return "floating-point and integer operands do not mix"
    if c.is_float:
        return None
    for name, t in (("A", a), ("B", b)):
        if c.itemsize < 4 * t.itemsize:
            return f"C ({c}) must be at least four times as wide as {name} ({t})"
        if t.kind == "int" and c.kind == "uint":
            return f"{name} ({t}) is signed, so C must be signed too, not {c}"
    if data_type == "complex" and "uint" in (a.kind, b.kind, c.kind):
        return "complex integers are signed"
    return None


@frozen(kw_only=True)
class BlockExecution:
    """How a block runs a GEMM: the part of a device-level GEMM that the host level has no use for.

    ``sm=None`` means the device (or the target) a kernel is compiled for. ``block_dim="suggested"`` leaves the
    number of threads to libmathdx. ``static_block_dim`` promises that the launch uses exactly ``block_dim``.
    ``with_pipeline`` and ``enable_input_streaming`` are cuBLASDx's operators of these names.
    """

    block_dim: Dim3 | Literal["suggested"] = SUGGESTED
    static_block_dim: bool = False
    with_pipeline: bool = False
    enable_input_streaming: bool = False
    sm: ComputeCapability | None = None

    def __post_init__(self) -> None:
        for name in ("static_block_dim", "with_pipeline", "enable_input_streaming"):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise ArgumentTypeError(f"{name}: {value!r} is not a bool")


MIN_GEMM_THREADS = 32  # a warp; cuBLASDx has no block GEMM of less
MAX_BLOCK_Z = 64  # CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"


def block_dim(value: Any, *, argument: str = "block_dim") -> Dim3:
    """Read (x,), (x, y) or (x, y, z) threads, 32 to 1024 in all."""
    values = (value,) if not isinstance(value, Iterable) else tuple(value)
    if not 1 <= len(values) <= 3:
        raise InvalidArgumentError(f"{argument}: {value!r} has {len(values)} numbers; give 1 to 3")
    dim = Dim3(*(positive_int(v, argument=argument) for v in values))
    if not MIN_GEMM_THREADS <= dim.size <= MAX_THREADS_PER_BLOCK:
        raise InvalidArgumentError(
            f"{argument}: {tuple(dim)} is {dim.size} threads; a block GEMM has {MIN_GEMM_THREADS} to "
            f"{MAX_THREADS_PER_BLOCK}"
        )
    if dim.z > MAX_BLOCK_Z:
        raise InvalidArgumentError(f"{argument}: {tuple(dim)} has z = {dim.z}; CUDA allows at most {MAX_BLOCK_Z}")
    return dim
