# SPDX-License-Identifier: Apache-2.0
"""What a GEMM is, as pure data: the part of a descriptor that device and host level share.

No CUDA, no NumPy: descriptors are frozen, hashable, comparable, printable and picklable, and building one
checks everything that can be known without a library.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from nvmath_device.checks import choice, choices, positive_int, positive_ints
from nvmath_device.dtypes import ElementType, ValueType, element_type, float32, float64
from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError
from nvmath_device.frozen import frozen, replace
from nvmath_device.targets import MAX_THREADS_PER_BLOCK, ComputeCapability, compute_capability

if TYPE_CHECKING:
    from nvmath_device.matmul import Matmul

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

    A descriptor is well formed; whether its element types can be multiplied is the business of who does it. The
    device level (:func:`require_device_precision`) has other combinations than the host level.

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
        put(
            self,
            "arrangement",
            Arrangement(*choices(self.arrangement, (COL_MAJOR, ROW_MAJOR), 3, argument="arrangement")),
        )
        modes = (NON_TRANSPOSED, TRANSPOSED, CONJ_TRANSPOSED)
        put(self, "transpose_mode", TransposeMode(*choices(self.transpose_mode, modes, 2, argument="transpose_mode")))
        put(self, "leading_dimension", self._leading_dimension())
        put(self, "alignment", self._alignment())

    # -- between the levels --------------------------------------------------------------------------------

    @classmethod
    def from_arrays(cls, a: Any, b: Any, c: Any = None) -> GemmDescriptor:
        """The product of two matrices, and the C it is added to, as they lie in memory.

        Arrays of any library on any device, mixed freely; they are looked at and not kept, and their addresses
        play no part. Of a matrix that is both row-major and column-major (a single row, say) the first is said.
        A lazily conjugated matrix (torch's ``x.conj()``) is the conjugate transpose of the stored one. Without
        ``c``, C is what :class:`nvmath_device.host.Matmul` makes for such operands: elements of A's type, for
        integers of their :func:`accumulator`, in the order of A, or of B where A has no order of its own.

        Raises:
            ArgumentTypeError: not an array, or real and complex ones.
            InvalidArgumentError: not two-dimensional, shapes that do not go together, an extent of 0, or strides
                that no order and leading dimension describe.
        """
        from nvmath_device.host.gemm_descriptor import describe_arrays

        return describe_arrays(a, b, c)

    def tile(
        self,
        size: Any,
        *,
        precision: Any = None,
        leading_dimension: Any = None,
        alignment: Any = None,
        arrangement: Any = None,
        **block: Any,
    ) -> Matmul:
        """The device-level GEMM of one tile of this product, for kernels that loop over tiles.

        It has this descriptor's element types of A and B, orders and transpositions; a conjugated tile is
        column-major throughout, as libmathdx needs it. C is what the sum over k is kept in, the :func:`accumulator`
        of the three types. Leading dimensions and alignment are those of the tile in shared memory and have nothing
        to do with this descriptor's: no padding, and an element's size. The tile may be larger than the product;
        copies fill what is missing with zeros.

        Args:
            size: (m, n, k) of the tile, in elements; or ``"suggested"``, what
                :func:`nvmath_device.suggest_tile` says for this product and ``sm``; or a :class:`TileChoice`. The
                latter two are for :meth:`Matmul.multiply`, have ``with_pipeline`` set, and bring a block, and the
                alignment that this descriptor promises, where those are not given.
            precision: other element types, one for all or three for A, B and C.
            leading_dimension, alignment, arrangement: as for :class:`nvmath_device.Matmul`.
            block: what :meth:`nvmath_device.Matmul.from_descriptor` takes: ``sm``, ``block_size``, ``block_dim``,
                ``static_block_dim``, ``with_pipeline``, ``enable_input_streaming``.

        Raises:
            InvalidArgumentError, ArgumentTypeError: naming the argument, its value and what is allowed. Among them:
                the device level does not multiply these element types.
            UnsupportedError: the tile does not fit into the shared memory of ``sm``.
        """
        from nvmath_device.matmul import Matmul

        if isinstance(size, str) or hasattr(size, "group"):  # a TileChoice
            from nvmath_device.tile_suggestions import chosen_tile

            size, alignment, block = chosen_tile(self, size, alignment, block)
        if precision is None:
            a, b, _ = self.precision
            precision = (a, b, accumulator(*self.precision))
        if arrangement is None:
            conjugates = self.data_type == "complex" and CONJ_TRANSPOSED in self.transpose_mode
            arrangement = _COLUMNS if conjugates else self.arrangement
        tile = self.replace(
            size=size,
            precision=precision,
            leading_dimension=leading_dimension,
            alignment=alignment,
            arrangement=arrangement,
        )
        return Matmul.from_descriptor(tile, **block)

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


def accumulator(a: ElementType, b: ElementType, c: ElementType | None = None) -> ElementType:
    """The element type to sum up products of A and B in, which then become C.

    float32 for floats, float64 where one of the three is float64. For integers the narrowest that is at least four
    times as wide as A and B (64 bits where there is none), no narrower than an integer C, and signed where one of
    them is.
    """
    if a.is_float or b.is_float:
        return float64 if float64 in (a, b, c) else float32
    integers = [t for t in (a, b, c) if t is not None and not t.is_float]
    width = max(4 * max(a.itemsize, b.itemsize), *(t.itemsize for t in integers))
    kind = "int" if any(t.kind == "int" for t in integers) else "uint"
    return element_type(f"{kind}{8 * min(width, 8)}")


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


def require_device_precision(descriptor: GemmDescriptor) -> None:
    """Refuse, before anything is compiled, the element types that the device level does not multiply.

    Raises:
        InvalidArgumentError: with the types and the reason.
    """
    reason = refuse_precision(*descriptor.precision, data_type=descriptor.data_type)
    if reason:
        names = ", ".join(map(str, descriptor.precision))
        kind = descriptor.data_type
        raise InvalidArgumentError(f"precision: ({names}) is not offered for {kind} matrices: {reason}")


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


def read_block_execution(
    *,
    sm: Any = None,
    block_size: Any = None,
    block_dim: Any = None,
    static_block_dim: bool = False,
    with_pipeline: bool = False,
    enable_input_streaming: bool = False,
) -> BlockExecution:
    """The block as a user writes it: threads as a number or as (x, y, z), a target in any spelling."""
    return BlockExecution(
        block_dim=_read_block(block_size, block_dim),
        static_block_dim=static_block_dim,
        with_pipeline=with_pipeline,
        enable_input_streaming=enable_input_streaming,
        sm=None if sm is None else compute_capability(sm),
    )


def _read_block(block_size: Any, block_dim: Any) -> Dim3 | Literal["suggested"]:
    if block_size is not None and block_dim is not None:
        raise InvalidArgumentError("block_size and block_dim are both given; give one of them")
    if block_size is not None and not isinstance(block_size, str):
        return _read_threads(positive_int(block_size, argument="block_size"), argument="block_size")
    value = block_dim if block_size is None else block_size
    if value is None or isinstance(value, str):
        choice(value or SUGGESTED, (SUGGESTED,), argument="block_dim" if block_size is None else "block_size")
        return SUGGESTED
    return _read_threads(value, argument="block_dim")


MIN_GEMM_THREADS = 32  # a warp; cuBLASDx has no block GEMM of less
MAX_BLOCK_Z = 64  # CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"


def _read_threads(value: Any, *, argument: str) -> Dim3:
    """(x,), (x, y) or (x, y, z) threads, 32 to 1024 in all."""
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
