# SPDX-License-Identifier: Apache-2.0
"""What an FFT inside a kernel is, as pure data, and what a thread block needs to run it.

No CUDA, no NumPy: descriptors are frozen, hashable, comparable, printable and picklable, and building one
checks everything that can be known without libmathdx. The size and layout rules were found by asking
libmathdx 0.4.2 (cuFFTDx) for its traits over all sizes up to 65536, and by generating code where traits
accept what code generation then refuses (size 1, odd packed sizes, odd fp16 batches, folded full sizes
beyond the maximum).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from nvmath_device.checks import choice, missing, positive_int
from nvmath_device.descriptors import SUGGESTED, Dim3
from nvmath_device.dtypes import ElementType, ValueType, element_type, float16, float32, float64
from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError
from nvmath_device.targets import MAX_THREADS_PER_BLOCK

C2C, R2C, C2R = "c2c", "r2c", "c2r"
BLOCK, THREAD = "Block", "Thread"
FORWARD, INVERSE = "forward", "inverse"
NATURAL, PACKED, FULL = "natural", "packed", "full"
NORMAL, FOLDED = "normal", "folded"
TRANSPOSITIONS = ("any", "none", "by_component", "by_complex", "by_component_padded")
THREAD_LAYOUTS = ("regular", "transposed")

# Most complex values one FFT may hold; a folded FFT of size N holds N/2 of them unless its layout is full.
# Block: the most on any target; less shared memory lowers it (float32 on sm_75: 16384, on sm_89: 24389).
MAX_COMPLEX_VALUES = {
    BLOCK: {float16: 32768, float32: 32768, float64: 16384},
    THREAD: {float16: 64, float32: 64, float64: 40},
}
MIN_SIZE, MIN_FOLDED_SIZE = 2, 4
MIN_ELEMENTS_PER_THREAD = 2


class RealFftOptions(NamedTuple):
    """How the two sides of a real-to-complex or complex-to-real FFT of N real values are stored.

    Attributes:
        complex_layout: ``"natural"``: the N//2 + 1 values that are not redundant. ``"packed"``: N/2 values,
            the real value X[N/2] in the place of the imaginary part of X[0], which is zero; even N only.
            ``"full"``: all N values.
        real_mode: ``"normal"``: N real values. ``"folded"``: N/2 complex values, value k holding x[2k] and
            x[2k+1]; half the work, for N of at least 4 that is even (Thread) or a power of two (Block).
    """

    complex_layout: str = NATURAL
    real_mode: str = NORMAL


_REQUIRED: Any = None  # lets every operator that was left out be named in one error


@dataclass(frozen=True, kw_only=True)
class FftDescriptor:
    """A batch of one-dimensional FFTs of ``size`` points, computed by a thread block or by each thread alone.

    Results are not scaled: forward then inverse gives ``size`` times the input. ``direction`` has a default
    for ``r2c`` (forward) and ``c2r`` (inverse) and none for ``c2c``. ``elements_per_thread`` left out means
    ``"suggested"``. ``ffts_per_block`` left out means the smallest batch, as cuFFTDx has it: 1, or 2 for
    float16, whose FFTs are always computed in pairs. For Thread execution both are ``None``.
    ``transposition`` and ``thread_layout`` are cuFFTDx's experimental operators of these names.

    Not checked here, because only libmathdx can tell for a target: whether this size (beyond 4096), these
    ``elements_per_thread`` and this transposition have an implementation.

    Raises:
        InvalidArgumentError, ArgumentTypeError: naming the argument, its value and what is allowed; what has
            no default and was left out is named in one error.
    """

    size: int = _REQUIRED
    precision: ElementType = _REQUIRED
    fft_type: str = _REQUIRED
    execution: str = _REQUIRED
    direction: str = _REQUIRED
    ffts_per_block: int | Literal["suggested"] | None = None
    elements_per_thread: int | Literal["suggested"] | None = None
    real_fft_options: RealFftOptions | None = None
    transposition: str = "any"
    thread_layout: str = "regular"

    def __post_init__(self) -> None:
        self._check_nothing_missing()
        put = object.__setattr__
        put(self, "size", positive_int(self.size, argument="size"))
        put(self, "precision", _precision(self.precision))
        put(self, "fft_type", choice(self.fft_type, (C2C, R2C, C2R), argument="fft_type"))
        put(self, "execution", choice(self.execution, (BLOCK, THREAD), argument="execution"))
        put(self, "direction", self._direction())
        put(self, "real_fft_options", self._real_fft_options())
        put(self, "transposition", choice(self.transposition, TRANSPOSITIONS, argument="transposition"))
        put(self, "thread_layout", choice(self.thread_layout, THREAD_LAYOUTS, argument="thread_layout"))
        reason = refuse_size(self.size, self.precision, self.execution, self.real_fft_options)
        if reason:
            raise InvalidArgumentError(f"size: {self.size} is not allowed; {reason}")
        put(self, "elements_per_thread", self._elements_per_thread())
        put(self, "ffts_per_block", self._ffts_per_block())
        if self.execution == THREAD:
            self._refuse_block_operators()

    # -- derived -------------------------------------------------------------------------------------------

    @property
    def implicit_type_batching(self) -> int:
        """FFTs that one value holds a number of: 2 for float16, else 1."""
        return 2 if self.precision is float16 else 1

    @property
    def value_type(self) -> ValueType:
        """What the FFT computes with: a complex number; two of them for float16, stored re0 re1 im0 im1."""
        return ValueType(self.precision, 2 * self.implicit_type_batching)

    @property
    def is_folded(self) -> bool:
        """Whether the real side is stored as half as many complex values."""
        return self.real_fft_options is not None and self.real_fft_options.real_mode == FOLDED

    @property
    def input_is_real(self) -> bool:
        """Whether input values are real numbers (two of them, of two FFTs, for float16)."""
        return self.fft_type == R2C and not self.is_folded

    @property
    def output_is_real(self) -> bool:
        """Whether output values are real numbers (two of them, of two FFTs, for float16)."""
        return self.fft_type == C2R and not self.is_folded

    @property
    def input_type(self) -> ValueType:
        """What one input value is. Real float16 input has 2 components, one real of each of two FFTs."""
        return ValueType(self.precision, self.implicit_type_batching) if self.input_is_real else self.value_type

    @property
    def output_type(self) -> ValueType:
        """What one output value is. Real float16 output has 2 components, one real of each of two FFTs."""
        return ValueType(self.precision, self.implicit_type_batching) if self.output_is_real else self.value_type

    @property
    def input_length(self) -> int:
        """Values of ``input_type`` that one FFT (one pair of FFTs for float16) reads."""
        return {C2C: self.size, R2C: self._real_length, C2R: self._complex_length}[self.fft_type]

    @property
    def output_length(self) -> int:
        """Values of ``output_type`` that one FFT (one pair of FFTs for float16) writes."""
        return {C2C: self.size, R2C: self._complex_length, C2R: self._real_length}[self.fft_type]

    @property
    def _real_length(self) -> int:
        return self.size // 2 if self.is_folded else self.size

    @property
    def _complex_length(self) -> int:
        layout = self.real_fft_options.complex_layout if self.real_fft_options else FULL
        return {NATURAL: self.size // 2 + 1, PACKED: self.size // 2, FULL: self.size}[layout]

    def replace(self, **changes: Any) -> FftDescriptor:
        """A copy with some fields changed, checked again.

        Fields that got a default keep it, so a change of ``fft_type`` usually needs ``direction=None`` and
        ``real_fft_options=None`` beside it.
        """
        return replace(self, **changes)

    # -- checks --------------------------------------------------------------------------------------------

    def _check_nothing_missing(self) -> None:
        absent = [name for name in ("size", "precision", "fft_type", "execution") if getattr(self, name) is None]
        if self.direction is None:
            if self.fft_type is None:
                absent.append("direction (if fft_type is 'c2c')")
            elif isinstance(self.fft_type, str) and self.fft_type == C2C:
                absent.append("direction")
        if absent:
            raise missing(absent, owner="FftDescriptor")

    def _direction(self) -> str:
        default = {R2C: FORWARD, C2R: INVERSE}.get(self.fft_type)
        if self.direction is None and default:
            return default
        given = choice(self.direction, (FORWARD, INVERSE), argument="direction")
        if default and given != default:
            raise InvalidArgumentError(
                f"direction: {given!r} is not allowed for {self.fft_type}, which is always {default}; "
                "leave direction out"
            )
        return given

    def _real_fft_options(self) -> RealFftOptions | None:
        given: Any = self.real_fft_options
        if self.fft_type == C2C:
            if given is not None:
                raise InvalidArgumentError(
                    f"real_fft_options: {given!r} is not allowed for c2c; leave it out, or make fft_type 'r2c' or 'c2r'"
                )
            return None
        if given is None:
            return RealFftOptions()
        if isinstance(given, RealFftOptions):
            given = given._asdict()
        if not isinstance(given, Mapping):
            raise ArgumentTypeError(
                f"real_fft_options: {given!r} is a {type(given).__name__}; give a RealFftOptions or a dict "
                "with the keys 'complex_layout' and 'real_mode'"
            )
        for key in given:
            choice(key, RealFftOptions._fields, argument="real_fft_options key")
        options = RealFftOptions(**given)
        choice(options.complex_layout, (NATURAL, PACKED, FULL), argument="real_fft_options complex_layout")
        choice(options.real_mode, (NORMAL, FOLDED), argument="real_fft_options real_mode")
        return options

    def _elements_per_thread(self) -> int | Literal["suggested"] | None:
        given = _knob(self.elements_per_thread, argument="elements_per_thread")
        if self.execution == THREAD:
            _refuse_knob(given, "elements_per_thread", "one thread holds the whole FFT")
            return None
        if given is None:
            return SUGGESTED
        if isinstance(given, int) and not MIN_ELEMENTS_PER_THREAD <= given <= self.size:
            raise InvalidArgumentError(
                f"elements_per_thread: {given} is not allowed for size {self.size}; give "
                f"{MIN_ELEMENTS_PER_THREAD} to {self.size}, or 'suggested'"
            )
        return given

    def _ffts_per_block(self) -> int | Literal["suggested"] | None:
        given = _knob(self.ffts_per_block, argument="ffts_per_block")
        if self.execution == THREAD:
            _refuse_knob(given, "ffts_per_block", "each thread computes FFTs of its own")
            return None
        batch = self.implicit_type_batching
        if isinstance(given, int) and given % batch:
            raise InvalidArgumentError(
                f"ffts_per_block: {given} is not allowed; float16 FFTs are computed in pairs; give an even number"
            )
        least = given if isinstance(given, int) else batch
        per_thread = self.elements_per_thread if isinstance(self.elements_per_thread, int) else self.size
        _check_threads(-(-self.size // per_thread), least, batch)
        return batch if given is None else given

    def _refuse_block_operators(self) -> None:
        if self.transposition not in ("any", "none"):
            raise InvalidArgumentError(
                f"transposition: {self.transposition!r} is not allowed for Thread execution, which has no "
                "shared memory; give 'any' or 'none'"
            )
        if self.thread_layout != "regular":
            raise InvalidArgumentError(
                f"thread_layout: {self.thread_layout!r} is not allowed for Thread execution; give 'regular'"
            )


def _precision(value: Any) -> ElementType:
    found = element_type(value, argument="precision")
    if found not in MAX_COMPLEX_VALUES[BLOCK]:
        raise InvalidArgumentError(f"precision: {found} is not allowed; give float16, float32 or float64")
    return found


def _knob(value: Any, *, argument: str) -> int | Literal["suggested"] | None:
    if value is None:
        return None
    if isinstance(value, str):
        choice(value, (SUGGESTED,), argument=argument)
        return SUGGESTED
    return positive_int(value, argument=argument)


def _refuse_knob(given: int | str | None, argument: str, why: str) -> None:
    if isinstance(given, int):
        raise InvalidArgumentError(
            f"{argument}: {given} is not allowed for Thread execution, where {why}; leave it out"
        )


def _check_threads(stride: int, ffts_per_block: int, batch: int) -> None:
    threads = stride * (ffts_per_block // batch)
    if threads > MAX_THREADS_PER_BLOCK:
        most = MAX_THREADS_PER_BLOCK // stride * batch
        allowed = f"give at most {most}" if most else "give more elements_per_thread"
        raise InvalidArgumentError(
            f"ffts_per_block: {ffts_per_block} needs at least {threads} threads, and a block has at most "
            f"{MAX_THREADS_PER_BLOCK}; {allowed}"
        )


def max_size(precision: ElementType, execution: str, options: RealFftOptions | None = None) -> int:
    """The largest size on any target. Sizes below may be missing, and a target may have a lower maximum."""
    values = MAX_COMPLEX_VALUES[execution][precision]
    halved = options is not None and options.real_mode == FOLDED and options.complex_layout != FULL
    return 2 * values if halved else values


def refuse_size(size: int, precision: ElementType, execution: str, options: RealFftOptions | None = None) -> str | None:
    """cuFFTDx's size rules that hold on every target, in one place: the reason of a refusal, or ``None``."""
    folded = options is not None and options.real_mode == FOLDED
    least, most = MIN_FOLDED_SIZE if folded else MIN_SIZE, max_size(precision, execution, options)
    if not least <= size <= most:
        kind = f"{execution} execution in {precision}" + (f" with {' '.join(options)} data" if options else "")
        return f"{kind} takes sizes {least} to {most}"
    if folded and execution == BLOCK and size & (size - 1):
        return "folded real data in Block execution needs a power of two; use real_mode 'normal'"
    if folded and size % 2:
        return "folded real data needs an even size; use real_mode 'normal'"
    if options is not None and options.complex_layout == PACKED and size % 2:
        return "the packed complex layout needs an even size; use complex_layout 'natural' or 'full'"
    return None


@dataclass(frozen=True, kw_only=True)
class FftTraits:
    """How an FFT is laid out over threads, registers and shared memory.

    Thread t of an FFT holds in register i the value with index ``t + i * stride``, if that is below the
    length. ``None`` stands where Thread execution has no such thing.

    Attributes:
        value_type, input_type, output_type: as in :class:`FftDescriptor`.
        implicit_type_batching: FFTs in one value: 2 for float16, else 1.
        elements_per_thread: of the FFT's ``size`` points; not a count of input or output values.
        storage_size: values of ``value_type`` that a thread's array needs.
        stride: threads that share one FFT.
        block_dim: threads of a block: (stride, ffts_per_block / implicit_type_batching, 1), the first two
            exchanged for ``thread_layout="transposed"``.
        shared_memory_size: bytes the computation needs; shared-memory execution needs room for the data, too.
        ffts_per_block: FFTs a block computes, both of a float16 pair counted.
        input_length, output_length: values of one FFT, in ``input_type`` and ``output_type``.
        input_elements_per_thread, output_elements_per_thread: registers a thread fills and then reads.
        suggested_ffts_per_block: what ``ffts_per_block="suggested"`` means.
    """

    value_type: ValueType
    input_type: ValueType
    output_type: ValueType
    implicit_type_batching: int
    elements_per_thread: int
    storage_size: int
    stride: int
    block_dim: Dim3 | None
    shared_memory_size: int | None
    ffts_per_block: int | None
    input_length: int
    output_length: int
    input_elements_per_thread: int
    output_elements_per_thread: int
    suggested_ffts_per_block: int | None


# -- traits where libmathdx is absent ----------------------------------------------------------------------

DEFAULT_ELEMENTS_PER_THREAD = {float16: 32, float32: 32, float64: 16}  # what cuFFTDx mostly chooses, too
_SUGGESTED_THREADS = 32


def default_traits(descriptor: FftDescriptor) -> FftTraits:
    """Traits for the simulator where libmathdx is absent: a valid decomposition, not libmathdx's own.

    Numbers that do not depend on the implementation (types, lengths, batching) are those of libmathdx; the
    split over threads and the bytes of shared memory need not be. ``stride * elements_per_thread`` may exceed
    the size, as it may with libmathdx, so kernels must guard their loads.

    Raises:
        InvalidArgumentError: the FFTs of a block need more threads than a block has.
    """
    size, batch = descriptor.size, descriptor.implicit_type_batching
    per_thread = size if descriptor.execution == THREAD else _default_elements_per_thread(descriptor)
    stride = -(-size // per_thread)
    inputs = -(-descriptor.input_length // stride)
    outputs = -(-descriptor.output_length // stride)
    block: dict[str, Any] = dict.fromkeys(
        ("block_dim", "shared_memory_size", "ffts_per_block", "suggested_ffts_per_block")
    )
    if descriptor.execution == BLOCK:
        suggested = batch * max(1, _SUGGESTED_THREADS // stride)
        ffts = suggested if descriptor.ffts_per_block == SUGGESTED else descriptor.ffts_per_block
        assert isinstance(ffts, int)
        _check_threads(stride, ffts, batch)
        exchanged = 0 if stride == 1 else (size // 2 if descriptor.is_folded else size)
        across = (stride, ffts // batch)
        block = {
            "block_dim": Dim3(*(across if descriptor.thread_layout == "regular" else across[::-1])),
            "shared_memory_size": exchanged * descriptor.value_type.itemsize * (ffts // batch),
            "ffts_per_block": ffts,
            "suggested_ffts_per_block": suggested,
        }
    return FftTraits(
        value_type=descriptor.value_type,
        input_type=descriptor.input_type,
        output_type=descriptor.output_type,
        implicit_type_batching=batch,
        elements_per_thread=per_thread,
        storage_size=max(inputs, outputs, per_thread // 2 if descriptor.is_folded else per_thread),
        stride=stride,
        input_length=descriptor.input_length,
        output_length=descriptor.output_length,
        input_elements_per_thread=inputs,
        output_elements_per_thread=outputs,
        **block,
    )


def _default_elements_per_thread(descriptor: FftDescriptor) -> int:
    """The given number, else the largest divisor of the size in bounds, else a split that is padded."""
    if isinstance(descriptor.elements_per_thread, int):
        return descriptor.elements_per_thread
    size, usual = descriptor.size, DEFAULT_ELEMENTS_PER_THREAD[descriptor.precision]
    least = max(MIN_ELEMENTS_PER_THREAD, -(-size // MAX_THREADS_PER_BLOCK))
    most = max(least, usual)
    return next((n for n in range(most, least - 1, -1) if size % n == 0), most)
