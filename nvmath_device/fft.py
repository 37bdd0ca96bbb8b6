# SPDX-License-Identifier: Apache-2.0
"""Fast Fourier transforms inside kernels: :class:`FFT`."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from nvmath_device import simulation
from nvmath_device.checks import read_knobs
from nvmath_device.descriptors import Dim3
from nvmath_device.dtypes import ELEMENT_TYPES, ValueType, float16
from nvmath_device.errors import CodegenError, UnsupportedError
from nvmath_device.fft_descriptor import BLOCK, THREAD, FftDescriptor, FftTraits, default_traits
from nvmath_device.kernel_calls import call_in_kernel
from nvmath_device.matmul import current_target
from nvmath_device.targets import ComputeCapability, compute_capability

if TYPE_CHECKING:
    import numpy as np

    from nvmath_device.launch_limits import Fit


class FFT:
    """A batch of one-dimensional FFTs in a kernel, by a block of threads or by each thread (cuFFTDx).

    The object is immutable, hashable, comparable and picklable, and usable in kernels as a global, a closure
    variable or an attribute of a module; there its integer attributes are compile-time constants. Results are not
    scaled: forward then inverse gives ``size`` times the input.

    Args:
        size: points of one FFT.
        precision: float16, float32 or float64. float16 FFTs are computed in pairs, see
            :attr:`implicit_type_batching`.
        fft_type: ``"c2c"``, ``"r2c"`` or ``"c2r"``.
        execution: ``"Block"`` or ``"Thread"``.
        sm: target, e.g. ``90``; ``None`` is the device the kernel is compiled for.
        direction: ``"forward"`` or ``"inverse"``; r2c and c2r have only one.
        ffts_per_block: FFTs a block computes; ``"suggested"`` is cuFFTDx's advice, ``None`` the least.
        elements_per_thread: elements a thread holds; ``None`` or ``"suggested"`` leaves it to cuFFTDx.
        real_fft_options: ``{"complex_layout": "natural"|"packed"|"full", "real_mode": "normal"|"folded"}``.
        transposition, thread_layout: cuFFTDx's operators of these names (libmathdx 0.4 and later).

    With ``sm`` given, whether the target has an implementation is checked here; otherwise when the target is
    known, at the first trait or compilation.

    Raises:
        InvalidArgumentError, ArgumentTypeError: naming the argument, its value and what is allowed.
        UnsupportedError: well formed, but cuFFTDx has no implementation for the target.
    """

    descriptor: FftDescriptor
    target: ComputeCapability | None

    def __init__(
        self,
        size: Any = None,
        precision: Any = None,
        fft_type: Any = None,
        execution: Any = None,
        *,
        sm: Any = None,
        direction: str | None = None,
        ffts_per_block: Any = None,
        elements_per_thread: Any = None,
        real_fft_options: Any = None,
        transposition: str = "any",
        thread_layout: str = "regular",
    ) -> None:
        descriptor = FftDescriptor(
            size=size,
            precision=precision,
            fft_type=fft_type,
            execution=execution,
            direction=direction,  # type: ignore[arg-type]
            ffts_per_block=ffts_per_block,
            elements_per_thread=elements_per_thread,
            real_fft_options=real_fft_options,
            transposition=transposition,
            thread_layout=thread_layout,
        )
        self._set(descriptor, None if sm is None else compute_capability(sm))

    @classmethod
    def from_descriptor(cls, descriptor: FftDescriptor, sm: ComputeCapability | None = None) -> FFT:
        """The FFT of a descriptor, for ``sm`` or for whatever a kernel is compiled for."""
        self = cls.__new__(cls)
        self._set(descriptor, sm)
        return self

    def _set(self, descriptor: FftDescriptor, target: ComputeCapability | None) -> None:
        self.__dict__["descriptor"] = descriptor
        self.__dict__["target"] = target
        if target is not None and _can_ask():
            traits_of(descriptor, target)

    # -- a value -------------------------------------------------------------------------------------------

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"FFT is immutable: {name!r} cannot be set; build another one")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FFT):
            return NotImplemented
        return self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    def __reduce__(self) -> tuple[Any, ...]:
        return (FFT.from_descriptor, self._identity)

    @property
    def _identity(self) -> tuple[FftDescriptor, ComputeCapability | None]:
        return (self.descriptor, self.target)

    def __repr__(self) -> str:
        d = self.descriptor
        parts = [str(d.size), str(d.precision), d.fft_type, d.direction, d.execution]
        if d.execution == BLOCK:
            parts += [f"ffts_per_block={d.ffts_per_block!r}", f"elements_per_thread={d.elements_per_thread!r}"]
        if d.real_fft_options is not None:
            parts.append(f"real_fft_options={d.real_fft_options._asdict()}")
        if d.transposition != "any":
            parts.append(f"transposition={d.transposition!r}")
        if d.thread_layout != "regular":
            parts.append(f"thread_layout={d.thread_layout!r}")
        if self.target is not None:
            parts.append(f"sm={self.target.sm}")
        return f"FFT({', '.join(parts)})"

    # -- resolution ----------------------------------------------------------------------------------------

    def resolved(self, sm: ComputeCapability | None = None) -> tuple[FftDescriptor, ComputeCapability]:
        """Descriptor with a concrete ``ffts_per_block``, and the target (default: its own, else this device)."""
        target = self.target or sm or current_target()
        return _concrete(self.descriptor, target), target

    @property
    def traits(self) -> FftTraits:
        """Everything cuFFTDx says of this FFT on its target."""
        return traits_of(self.descriptor, self.target or current_target())

    def valid(self, *knobs: str) -> list[tuple[int, ...]]:
        """Combinations of knobs cuFFTDx has an implementation for, its best first.

        ``knobs`` are out of ``"elements_per_thread"``, ``"ffts_per_block"`` and ``"transposition"`` (numbers
        of ``cufftdxTransposition``); at least one. Other values of ``ffts_per_block`` work, too; these are the
        advised ones. Empty where the size has no implementation.
        """
        read_knobs(knobs, ("elements_per_thread", "ffts_per_block", "transposition"))
        from nvmath_device.lto import codegen

        target = self.target or current_target()
        return codegen.fft_knobs(_recipe(_open_knobs(self.descriptor), target), knobs)

    # -- attributes, readable on the host and in kernels -----------------------------------------------------

    @property
    def size(self) -> int:
        return self.descriptor.size

    @property
    def precision(self) -> Any:
        return self.descriptor.precision

    @property
    def fft_type(self) -> str:
        return self.descriptor.fft_type

    @property
    def direction(self) -> str:
        return self.descriptor.direction

    @property
    def execution(self) -> str:
        return self.descriptor.execution

    @property
    def real_fft_options(self) -> Any:
        return self.descriptor.real_fft_options

    @property
    def sm(self) -> ComputeCapability:
        """The target; the current device's when none was given."""
        return self.target or current_target()

    @property
    def value_type(self) -> np.dtype[Any]:
        """NumPy dtype of what is computed with: a complex number, for float16 a record x, y (the real parts of
        two FFTs), z, w (their imaginary parts). In a kernel, the dtype of thread storage."""
        return self.descriptor.value_type.dtype

    @property
    def input_type(self) -> np.dtype[Any]:
        return self.descriptor.input_type.dtype

    @property
    def output_type(self) -> np.dtype[Any]:
        return self.descriptor.output_type.dtype

    @property
    def implicit_type_batching(self) -> int:
        """FFTs that one value belongs to: 2 for float16, else 1."""
        return self.descriptor.implicit_type_batching

    @property
    def input_length(self) -> int:
        """Input values of one FFT, of :attr:`input_type`."""
        return self.descriptor.input_length

    @property
    def output_length(self) -> int:
        """Output values of one FFT, of :attr:`output_type`."""
        return self.descriptor.output_length

    @property
    def elements_per_thread(self) -> int:
        return self.traits.elements_per_thread

    @property
    def input_elements_per_thread(self) -> int:
        return self.traits.input_elements_per_thread

    @property
    def output_elements_per_thread(self) -> int:
        return self.traits.output_elements_per_thread

    @property
    def storage_size(self) -> int:
        """Values of :attr:`value_type` that a thread's array needs."""
        return self.traits.storage_size

    @property
    def stride(self) -> int:
        """Distance between the elements a thread holds: thread t has t, t + stride, t + 2 stride ..."""
        return self.traits.stride

    @property
    def block_dim(self) -> Dim3 | None:
        """Threads of the block; ``None`` for Thread execution."""
        return self.traits.block_dim

    @property
    def ffts_per_block(self) -> int | None:
        """FFTs a block computes; ``None`` for Thread execution."""
        return self.traits.ffts_per_block

    @property
    def shared_memory_size(self) -> int | None:
        """Bytes of shared memory the computation needs as scratch; ``None`` for Thread execution."""
        return self.traits.shared_memory_size

    @property
    def shared_storage_size(self) -> int | None:
        """Bytes to allocate for execution on shared memory: room for the data and for the scratch."""
        t = self.traits
        if t.ffts_per_block is None or t.shared_memory_size is None:
            return None
        groups = t.ffts_per_block // t.implicit_type_batching
        data = max(t.input_length * t.input_type.itemsize, t.output_length * t.output_type.itemsize)
        return max(groups * data, t.shared_memory_size)

    def fits(self, *, shared: int = 0, data_in_shared: bool = False, sm: Any = None) -> Fit:
        """Whether a block has the shared memory and the threads for this FFT, and how many blocks run at a time.

        Args:
            shared: bytes of shared memory that the kernel needs for anything else.
            data_in_shared: count :attr:`shared_storage_size`, for ``execute(shared_mem)``, instead of
                :attr:`shared_memory_size`. Block execution only.
            sm: the target; default is this FFT's own, else the current device.

        An FFT in Thread execution takes no shared memory and sets no block; a warp is counted. Registers are not known
        before there is a kernel, so they do not count: ``blocks_per_multiprocessor`` is an upper bound.
        """
        from nvmath_device.descriptor_fit import fft_fit

        return fft_fit(self, shared, data_in_shared, sm)

    # -- in kernels ------------------------------------------------------------------------------------------

    def execute(self, *args: Any, **kwargs: Any) -> None:
        """Kernel side: compute the FFTs in place.

        Forms: ``execute(thread_data, shared_mem)`` (Block, data in registers, ``shared_mem`` is scratch of
        :attr:`shared_memory_size` bytes), ``execute(shared_mem)`` (Block, data in shared memory, FFTs one
        after the other in natural order), ``execute(thread_data)`` (Thread).

        ``thread_data`` is a local array of :attr:`storage_size` values of :attr:`value_type`, or of their
        components. In the Block forms every thread of the block must call it. The registers form needs no
        synchronisation around it but before ``shared_mem`` is used again; the shared-memory form needs
        ``cuda.syncthreads()`` before and after.
        """
        call_in_kernel("FFT.execute", "fft_execute", self, args, kwargs)

    def load(self, *args: Any, **kwargs: Any) -> None:
        """Kernel side: ``load(source, thread_data[, index])``; fill this thread's registers from an array.

        ``source`` is a 2-D view, one FFT a row, with any strides (pass ``x.T`` for FFTs along the other axis,
        ``x[i]`` of a 3-D array), of real or complex numbers of 16, 32 or 64-bit parts (not bfloat16), which are
        converted. ``index`` is the row of this thread's FFT (the first of the two for float16); default: the
        FFTs of all blocks along ``blockIdx.x`` one after the other, and for Thread execution one a thread. Rows
        beyond ``source.shape[0]`` and elements beyond ``source.shape[1]`` are zero and not read, so ragged last
        blocks and zero padding need nothing else. Real input takes real numbers; folded real input takes ``size``
        real numbers a row.
        """
        call_in_kernel("FFT.load", "fft_load", self, args, kwargs)

    def store(self, *args: Any, **kwargs: Any) -> None:
        """Kernel side: ``store(thread_data, target[, index])``; the counterpart of :meth:`load`.

        Writes rows below ``target.shape[0]`` and elements below ``target.shape[1]`` and nothing else. Complex
        results need a complex array; real results a real one.
        """
        call_in_kernel("FFT.store", "fft_store", self, args, kwargs)

    def load_shared(self, *args: Any, **kwargs: Any) -> None:
        """Kernel side: ``load_shared(source, shared_mem[, index])``; fill the block's data for ``execute(shared_mem)``.

        By all threads of the block together; ``index`` is the row of the block's first FFT. Otherwise like
        :meth:`load`. Call ``cuda.syncthreads()`` after it.
        """
        call_in_kernel("FFT.load_shared", "fft_load_shared", self, args, kwargs)

    def store_shared(self, *args: Any, **kwargs: Any) -> None:
        """Kernel side: ``store_shared(shared_mem, target[, index])``; the counterpart of :meth:`load_shared`."""
        call_in_kernel("FFT.store_shared", "fft_store_shared", self, args, kwargs)

    def fft_id(self) -> int:
        """Kernel side: index of the calling thread within its FFT (cuFFTDx's own answer)."""
        return call_in_kernel("FFT.fft_id", "fft_fft_id", self)

    def batch_id(self) -> int:
        """Kernel side: index, within the block, of the calling thread's FFT (of its pair for float16)."""
        return call_in_kernel("FFT.batch_id", "fft_batch_id", self)

    def is_thread_active(self) -> bool:
        """Kernel side: whether the calling thread takes part in input and output."""
        return call_in_kernel("FFT.is_thread_active", "fft_is_thread_active", self)

    @property
    def _numba_type_(self) -> Any:
        from nvmath_device.numba_backend import fft_type

        return fft_type(self)


def _can_ask() -> bool:
    from nvmath_device.lto import toolchain

    return toolchain.has_mathdx()


def _recipe(descriptor: FftDescriptor, target: ComputeCapability) -> Any:
    from nvmath_device.lto.recipes import fft_recipe

    return fft_recipe(descriptor, sm=target)


@lru_cache(maxsize=4096)
def traits_of(descriptor: FftDescriptor, target: ComputeCapability) -> FftTraits:
    """cuFFTDx's traits, or documented defaults where kernels are simulated without libmathdx.

    Raises:
        UnsupportedError: there is no implementation; the message says which values there are.
    """
    if simulation.is_active() and not _can_ask():
        return default_traits(descriptor)
    from nvmath_device.lto import codegen

    concrete = _concrete(descriptor, target)
    try:
        numbers = codegen.fft_traits(_recipe(concrete, target))
    except CodegenError as error:
        raise UnsupportedError(_explain(descriptor, target)) from error
    types = {name: _VALUE_TYPES[numbers[name]] for name in ("value_type", "input_type", "output_type")}
    thread = dict.fromkeys(("block_dim", "shared_memory_size", "ffts_per_block", "suggested_ffts_per_block"))
    block = {"block_dim": Dim3(*numbers["block_dim"])} if descriptor.execution == BLOCK else {}
    return FftTraits(**{**thread, **numbers, **types, **block})


_VALUE_TYPES = {v.mathdx: v for t in ELEMENT_TYPES for v in (ValueType(t), ValueType(t, 2))}
_VALUE_TYPES |= {"R_16F2": ValueType(float16, 2), "C_16F2": ValueType(float16, 4)}


@lru_cache(maxsize=4096)
def _concrete(descriptor: FftDescriptor, target: ComputeCapability) -> FftDescriptor:
    """With ``ffts_per_block="suggested"`` replaced by cuFFTDx's number."""
    if descriptor.ffts_per_block != "suggested":
        return descriptor
    if simulation.is_active() and not _can_ask():
        return replace(descriptor, ffts_per_block=default_traits(descriptor).ffts_per_block)
    from nvmath_device.lto import codegen

    least = replace(descriptor, ffts_per_block=None)
    try:
        numbers = codegen.fft_traits(_recipe(least, target))
    except CodegenError as error:
        raise UnsupportedError(_explain(least, target)) from error
    return replace(descriptor, ffts_per_block=numbers["suggested_ffts_per_block"])


def _open_knobs(descriptor: FftDescriptor) -> FftDescriptor:
    if descriptor.execution == THREAD:
        return descriptor
    return replace(descriptor, elements_per_thread=None, ffts_per_block=None, transposition="any")


def _explain(descriptor: FftDescriptor, target: ComputeCapability) -> str:
    """Why cuFFTDx has no implementation, found by asking for neighbours (instant)."""
    from nvmath_device.lto import codegen

    plain = _open_knobs(descriptor)
    knobs = codegen.fft_knobs(_recipe(plain, target), ("elements_per_thread",))
    what = f"{descriptor.execution} {descriptor.fft_type} in {descriptor.precision} on {target.sm}"
    if knobs and isinstance(descriptor.elements_per_thread, int):
        legal = sorted({k[0] for k in knobs})
        if descriptor.elements_per_thread not in legal:
            return (
                f"elements_per_thread: {descriptor.elements_per_thread} is not allowed for size {descriptor.size} "
                f"({what}); allowed are {', '.join(map(str, legal))}"
            )
    if knobs and descriptor.transposition != "any":
        return (
            f"transposition: {descriptor.transposition!r} has no implementation for size {descriptor.size} ({what}); "
            "take 'any', or ask valid('transposition', 'elements_per_thread')"
        )
    if knobs:
        return (
            f"ffts_per_block: {descriptor.ffts_per_block} with elements_per_thread {descriptor.elements_per_thread} "
            f"does not fit a block for size {descriptor.size} ({what}); take fewer, or 'suggested'"
        )
    near = [n for n in _neighbours(descriptor.size) if _has(plain, n, target)]
    hint = f"; nearest sizes that have one: {', '.join(map(str, sorted(near)))}" if near else ""
    return f"size: {descriptor.size} has no implementation without a workspace for {what}{hint}"


def _neighbours(size: int) -> list[int]:
    """Powers of two and round numbers on both sides, which are likely to exist."""
    power = 1 << (size.bit_length() - 1)
    return [n for n in (power // 2, power, 2 * power) if n >= 2]


def _has(descriptor: FftDescriptor, size: int, target: ComputeCapability) -> bool:
    from nvmath_device.errors import InvalidArgumentError
    from nvmath_device.lto import codegen

    try:
        return bool(codegen.fft_knobs(_recipe(replace(descriptor, size=size), target), ("elements_per_thread",)))
    except InvalidArgumentError:
        return False
