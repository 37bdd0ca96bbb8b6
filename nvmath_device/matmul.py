# SPDX-License-Identifier: Apache-2.0
"""Block matrix multiplication inside kernels: :class:`Matmul`."""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from nvmath_device import simulation
from nvmath_device.checks import choice, missing, read_knobs
from nvmath_device.descriptors import (
    NON_TRANSPOSED,
    ROW_MAJOR,
    SUGGESTED,
    Alignment,
    Arrangement,
    BlockExecution,
    Dim3,
    GemmDescriptor,
    GemmSize,
    LeadingDimension,
    MatrixLayout,
    Precision,
    TransposeMode,
    read_block_execution,
    require_device_precision,
)
from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError, UnsupportedError
from nvmath_device.frozen import replace
from nvmath_device.matmul_calls import MatmulCalls
from nvmath_device.matmul_layouts import MatmulLayouts
from nvmath_device.targets import SIMULATED_CC, ComputeCapability, chip_of, compute_capability

if TYPE_CHECKING:
    import numpy as np

    from nvmath_device.launch_limits import Fit
    from nvmath_device.lto.recipes import Recipe
    from nvmath_device.pipeline_paths import PipelinePath


# What ``execute`` may be called with, by name and in order.
STATIC_FORM = ("alpha", "a", "b", "beta", "c")
RUNTIME_FORM = ("alpha", "a", "lda", "b", "ldb", "beta", "c", "ldc")


class ResolvedGemm(NamedTuple):
    """A GEMM with nothing left open: concrete leading dimensions, block and target."""

    descriptor: GemmDescriptor
    execution: BlockExecution

    @property
    def block_dim(self) -> Dim3:
        assert isinstance(self.execution.block_dim, Dim3)
        return self.execution.block_dim

    @property
    def sm(self) -> ComputeCapability:
        assert self.execution.sm is not None
        return self.execution.sm

    def recipe(self, api: str) -> Recipe:
        """What libmathdx is told for ``api``, ``"SMEM"`` or ``"SMEM_DYNAMIC_LD"``."""
        from nvmath_device.lto.recipes import gemm_recipe

        return gemm_recipe(self.descriptor, self.execution, api=api)


class Matmul(MatmulCalls, MatmulLayouts):
    """C = alpha op(A) op(B) + beta C by all threads of a block, on matrices in shared memory (cuBLASDx).

    The object is immutable, hashable, comparable and picklable, and usable in kernels as a global, a closure
    variable or an attribute of a module; there its integer attributes are compile-time constants. Building one checks
    everything Python can know and compiles nothing; code is generated when a kernel that calls
    :meth:`execute` is compiled, or taken from the store.

    Args:
        size: (m, n, k) in elements.
        precision: element type of A, B and C, or three of them. float16, bfloat16, tfloat32, float32, float64,
            float8_e4m3fn, float8_e5m2 and integers; C is float16, float32, float64 or a 32/64-bit integer.
        data_type: ``"real"`` or ``"complex"``.
        sm: target, e.g. ``90``; ``None`` is the device the kernel is compiled for.
        block_size / block_dim: threads of the block, 32 to 1024, as a number or as (x, y, z); at most one of
            the two. Default ``"suggested"``.
        leading_dimension: (lda, ldb, ldc) in elements, ``"suggested"``, or ``None`` for no padding.
        arrangement / transpose_mode: exactly one of the two; see :class:`GemmDescriptor`.
        alignment: bytes each of the three pointers is aligned to, as a promise; default is the element's size.
        function: ``"MM"``.
        static_block_dim: promise that launches use exactly this block.
        with_pipeline, enable_input_streaming: cuBLASDx's operators of these names, handed on as they are;
            :meth:`multiply` sets both. With ``with_pipeline`` C need not fit into shared memory beside A and B.
        execution: ``"Block"``.

    Raises:
        InvalidArgumentError, ArgumentTypeError: naming the argument, its value and what is allowed.
        UnsupportedError: well formed, but libmathdx or the target does not offer it.
    """

    def __init__(
        self,
        size: Any = None,
        precision: Any = None,
        data_type: str | None = None,
        *,
        sm: Any = None,
        block_size: int | Literal["suggested"] | None = None,
        block_dim: Any = None,
        leading_dimension: Any = None,
        transpose_mode: Any = None,
        arrangement: Any = None,
        alignment: Any = None,
        function: str = "MM",
        static_block_dim: bool = False,
        execution: str = "Block",
        with_pipeline: bool = False,
        enable_input_streaming: bool = False,
    ) -> None:
        required = {"size": size, "precision": precision, "data_type": data_type}
        absent = [name for name, value in required.items() if value is None]
        if arrangement is None and transpose_mode is None:
            absent.append("arrangement (or transpose_mode)")
        if absent:
            raise missing(absent, owner="Matmul")
        if arrangement is not None and transpose_mode is not None:
            raise InvalidArgumentError("arrangement and transpose_mode are both given; give one of them")
        choice(function, ("MM",), argument="function")
        _refuse_execution(execution)
        layout: dict[str, Any] = (
            {"arrangement": arrangement} if arrangement is not None else {"transpose_mode": transpose_mode}
        )
        descriptor = GemmDescriptor(
            size=size,
            precision=precision,
            data_type=data_type,  # type: ignore[arg-type]
            leading_dimension=leading_dimension,
            alignment=alignment,
            **layout,
        )
        block = read_block_execution(
            sm=sm,
            block_size=block_size,
            block_dim=block_dim,
            static_block_dim=static_block_dim,
            with_pipeline=with_pipeline,
            enable_input_streaming=enable_input_streaming,
        )
        self._set(descriptor, block)

    @classmethod
    def from_descriptor(
        cls, descriptor: GemmDescriptor, execution: BlockExecution | None = None, **block: Any
    ) -> Matmul:
        """The device-level GEMM of a descriptor, as it is; :meth:`GemmDescriptor.tile` makes one of a part of it.

        Args:
            execution: the block; ``None``: it is made of ``block``.
            block: arguments of :class:`Matmul` that are about the block: ``sm``, ``block_size``, ``block_dim``,
                ``static_block_dim``, ``with_pipeline``, ``enable_input_streaming``.

        Raises:
            InvalidArgumentError, ArgumentTypeError, UnsupportedError: as :class:`Matmul`.
        """
        if execution is None:
            execution = read_block_execution(**block)
        elif not isinstance(execution, BlockExecution):
            raise ArgumentTypeError(f"execution: {execution!r} is not a BlockExecution")
        elif block:
            raise InvalidArgumentError(f"execution and {', '.join(block)} are both given; give one of them")
        self = cls.__new__(cls)
        self._set(descriptor, execution)
        return self

    def _set(self, descriptor: GemmDescriptor, execution: BlockExecution) -> None:
        require_device_precision(descriptor)
        self.__dict__["descriptor"] = descriptor
        self.__dict__["block_execution"] = execution
        if execution.sm is not None and descriptor.leading_dimension != SUGGESTED:
            from nvmath_device.lto.recipes import refuse_oversize

            # For multiply, C is in registers.
            refuse_oversize(descriptor, execution.sm, "AB" if execution.with_pipeline else "ABC")

    descriptor: GemmDescriptor
    block_execution: BlockExecution

    # -- a value -------------------------------------------------------------------------------------------

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"Matmul is immutable: {name!r} cannot be set; build another one")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Matmul):
            return NotImplemented
        return self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    def __reduce__(self) -> tuple[Any, ...]:
        return (Matmul.from_descriptor, self._identity)

    @property
    def _identity(self) -> tuple[GemmDescriptor, BlockExecution]:
        return (self.descriptor, self.block_execution)

    def __repr__(self) -> str:
        d, e = self.descriptor, self.block_execution
        m, n, k = d.size
        types = ", ".join(map(str, d.precision)) if len(set(d.precision)) > 1 else str(d.precision.c)
        parts = [f"{m}x{n}x{k}", types, d.data_type]
        is_transposed = d.transpose_mode != (NON_TRANSPOSED, NON_TRANSPOSED)
        if is_transposed:
            parts.append(f"transpose_mode={tuple(d.transpose_mode)}")
        if not is_transposed or ROW_MAJOR in d.arrangement:
            parts.append(f"arrangement={tuple(d.arrangement)}")
        if d.leading_dimension != d.tight_leading_dimension:
            shown = tuple(d.leading_dimension) if isinstance(d.leading_dimension, LeadingDimension) else SUGGESTED
            parts.append(f"leading_dimension={shown!r}")
        if d.alignment != tuple(v.alignment for v in d.value_types):
            parts.append(f"alignment={tuple(d.alignment or ())}")
        parts.append(f"block_dim={e.block_dim if e.block_dim == SUGGESTED else tuple(e.block_dim)!r}")
        flags = ("static_block_dim", "with_pipeline", "enable_input_streaming")
        parts += [f"{flag}=True" for flag in flags if getattr(e, flag)]
        if e.sm is not None:
            parts.append(f"sm={e.sm.sm}")
        return f"Matmul({', '.join(parts)})"

    # -- resolution ----------------------------------------------------------------------------------------

    def resolved(self, sm: ComputeCapability | None = None) -> ResolvedGemm:
        """This GEMM for ``sm`` (default: its own, else the current device) with nothing left open.

        Asks libmathdx only for what was left to be ``"suggested"`` (8 to 9 s once, then stored).
        """
        return _resolve(self.descriptor, self.block_execution, self.block_execution.sm or sm or current_target())

    @property
    def _here(self) -> ResolvedGemm:
        """Resolved for this machine, only as far as needed: no device is asked when nothing depends on it."""
        d, e = self.descriptor, self.block_execution
        if d.leading_dimension != SUGGESTED and isinstance(e.block_dim, Dim3):
            return ResolvedGemm(d, replace(e, sm=e.sm or SIMULATED_CC))
        return self.resolved()

    # -- attributes, readable on the host and in kernels -----------------------------------------------------

    @property
    def size(self) -> GemmSize:
        return self.descriptor.size

    @property
    def precision(self) -> Precision:
        return self.descriptor.precision

    @property
    def data_type(self) -> str:
        return self.descriptor.data_type

    @property
    def function(self) -> str:
        return "MM"

    @property
    def execution(self) -> str:
        return "Block"

    @property
    def sm(self) -> ComputeCapability:
        """The target; the current device's when none was given."""
        return self.block_execution.sm or current_target()

    @property
    def arrangement(self) -> Arrangement:
        return self.descriptor.arrangement

    @property
    def transpose_mode(self) -> TransposeMode:
        return self.descriptor.transpose_mode

    @property
    def alignment(self) -> Alignment:
        """Bytes."""
        assert self.descriptor.alignment is not None
        return self.descriptor.alignment

    @property
    def leading_dimension(self) -> LeadingDimension:
        """Elements. Asks libmathdx when it was left to be suggested."""
        if self.descriptor.leading_dimension == SUGGESTED:
            return self._here.descriptor.leading_dimension  # type: ignore[return-value]
        return self.descriptor.leading_dimension  # type: ignore[return-value]

    @property
    def block_dim(self) -> Dim3:
        """Threads. Asks libmathdx when it was left to be suggested."""
        block = self.block_execution.block_dim
        return block if isinstance(block, Dim3) else self._here.block_dim

    @property
    def block_size(self) -> int:
        return self.block_dim.size

    @property
    def max_threads_per_block(self) -> int:
        """Threads the code is generated for; launch with exactly :attr:`block_dim`."""
        return self.block_dim.size

    @property
    def static_block_dim(self) -> bool:
        return self.block_execution.static_block_dim

    @property
    def with_pipeline(self) -> bool:
        return self.block_execution.with_pipeline

    @property
    def enable_input_streaming(self) -> bool:
        return self.block_execution.enable_input_streaming

    @property
    def layouts(self) -> tuple[MatrixLayout, MatrixLayout, MatrixLayout]:
        """A, B and C as stored in shared memory."""
        return self._with_leading_dimension.layouts

    @cached_property
    def _with_leading_dimension(self) -> GemmDescriptor:
        if self.descriptor.leading_dimension == SUGGESTED:
            return self._here.descriptor
        return self.descriptor

    @property
    def a_value_type(self) -> np.dtype[Any]:
        """NumPy dtype of A's elements; in a kernel the dtype to make a shared array with."""
        return self.descriptor.value_types[0].dtype

    @property
    def b_value_type(self) -> np.dtype[Any]:
        return self.descriptor.value_types[1].dtype

    @property
    def c_value_type(self) -> np.dtype[Any]:
        return self.descriptor.value_types[2].dtype

    @property
    def a_dim(self) -> tuple[int, int]:
        """(rows, columns) of A as stored."""
        return self.descriptor.dims[0]

    @property
    def b_dim(self) -> tuple[int, int]:
        return self.descriptor.dims[1]

    @property
    def c_dim(self) -> tuple[int, int]:
        return self.descriptor.dims[2]

    @property
    def a_size(self) -> int:
        """Elements of A's buffer, leading dimension included."""
        return self.layouts[0].size

    @property
    def b_size(self) -> int:
        return self.layouts[1].size

    @property
    def c_size(self) -> int:
        return self.layouts[2].size

    # -- questions -------------------------------------------------------------------------------------------

    def get_pipeline_storage_size(self, depth: int | str | None = None, *, sm: Any = None) -> int:
        """Bytes of dynamic shared memory to launch a kernel with that calls :meth:`multiply`.

        Args:
            depth: as in the call.
            sm: the target; default is this descriptor's own, else the current device.

        Raises:
            InvalidArgumentError, UnsupportedError: there is no such pipeline.
        """
        from nvmath_device.pipelines import storage_bytes

        return storage_bytes(*self.resolved(None if sm is None else compute_capability(sm)), depth=depth)

    def path(self, *, sm: Any = None) -> PipelinePath:
        """Which instructions :meth:`multiply` becomes in a kernel of ``nd.jit``, and what keeps it from faster ones.

        ``sm`` is the target; default is this descriptor's own, else the current device. Nothing is compiled: these are
        rules, for libmathdx 0.4.2. ``kernel.report()`` counts what there is.

        Raises:
            InvalidArgumentError, UnsupportedError: there is no such pipeline.
        """
        from nvmath_device.pipeline_paths import path_of
        from nvmath_device.pipelines import pipeline_plan

        descriptor, execution = self.resolved(None if sm is None else compute_capability(sm))
        assert execution.sm is not None
        return path_of(pipeline_plan(descriptor, execution, depth=None, sm=chip_of(execution.sm)))

    def fits(self, *, shared: int = 0, sm: Any = None) -> Fit:
        """Whether a block has the shared memory and the threads for A, B and C, and how many blocks run at a time.

        Args:
            shared: bytes of shared memory that the kernel needs for anything else.
            sm: the target; default is this descriptor's own, else the current device.

        Registers are not known before there is a kernel, so they do not count: ``blocks_per_multiprocessor`` is an
        upper bound. ``kernel.fits`` counts them.
        """
        from nvmath_device.descriptor_fit import matmul_fit

        return matmul_fit(self, shared, sm)

    def valid(self, *knobs: str) -> list[tuple[Dim3, ...]]:
        """Advised values of a knob; ``"block_dim"`` is the only one. Any block of 32 to 1024 threads is legal."""
        read_knobs(knobs, ("block_dim",))
        open_block = BlockExecution(sm=self.block_execution.sm)
        return [(Matmul.from_descriptor(self.descriptor, open_block).block_dim,)]

    @property
    def _numba_type_(self) -> Any:
        from nvmath_device.numba_backend import matmul_type

        return matmul_type(self)


def _refuse_execution(execution: Any) -> None:
    if isinstance(execution, str) and execution == "Thread":
        raise UnsupportedError(
            "execution: 'Thread' is not offered for matrix products by libmathdx (0.4.2 offers it for triangular "
            "solves only); use execution='Block'"
        )
    choice(execution, ("Block",), argument="execution")


def current_target() -> ComputeCapability:
    if simulation.is_active():
        return SIMULATED_CC
    from nvmath_device.lto import toolchain

    return compute_capability(toolchain.current_sm(), argument="the current device")


# What is assumed where libmathdx is missing and kernels are only simulated: four warps, no padding.
SIMULATED_BLOCK_DIM = Dim3(128)


@lru_cache(maxsize=4096)
def _resolve(descriptor: GemmDescriptor, execution: BlockExecution, sm: ComputeCapability) -> ResolvedGemm:
    from nvmath_device.lto import codegen, toolchain
    from nvmath_device.lto.recipes import gemm_recipe
    from nvmath_device.tile_blocks import enough_threads, known_block

    execution = replace(execution, sm=sm)
    open_block, open_ld = execution.block_dim == SUGGESTED, descriptor.leading_dimension == SUGGESTED
    if not open_block and not open_ld:
        return ResolvedGemm(descriptor, execution)
    known = known_block(descriptor, sm) if open_block else None
    if known is not None and not open_ld:
        return ResolvedGemm(descriptor, replace(execution, block_dim=known))
    if simulation.is_active() and not toolchain.has_mathdx():
        block_dim, leading_dimension = SIMULATED_BLOCK_DIM, descriptor.tight_leading_dimension
    else:
        question = replace(execution, static_block_dim=False)
        advice = codegen.gemm_suggestions(gemm_recipe(descriptor, question, api="SMEM"))
        block_dim = known or enough_threads(descriptor, advice.block_dim)
        leading_dimension = advice.leading_dimension
    return ResolvedGemm(
        descriptor.replace(leading_dimension=leading_dimension) if open_ld else descriptor,
        replace(execution, block_dim=block_dim) if open_block else execution,
    )
