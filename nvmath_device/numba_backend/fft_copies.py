# SPDX-License-Identifier: Apache-2.0
"""Moves FFT data between arrays and thread or shared storage, as Python functions compiled into the kernel.

Each maker closes over the numbers of one FFT, so the compiler sees constants. The layout they implement is
cuFFTDx's: thread t of an FFT holds in register i the value t + i * stride; a float16 value holds two FFTs,
real parts first; real numbers stand one after the other; folded real data is x[2k], x[2k+1] as value k.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from numba import cuda

from nvmath_device.fft_descriptor import BLOCK, FftDescriptor, FftTraits
from nvmath_device.numba_backend.procedures import Procedure
from nvmath_device.numba_backend.views import assign, components, imag_part, real_part


@dataclass(frozen=True)
class Side:
    """One side, input or output, of an FFT: what its values are and where they are."""

    length: int  # values of one FFT
    per_thread: int
    stride: int
    batching: int  # FFTs in one value
    kind: str  # "real", "folded" or "complex"
    groups: int  # values of different FFTs side by side in the block's shared data; 0 for Thread execution
    transposed: bool  # the FFT's index, not the thread's, runs along threadIdx.x


def side(descriptor: FftDescriptor, traits: FftTraits, *, output: bool) -> Side:
    """The input or output side of an FFT."""
    real = descriptor.output_is_real if output else descriptor.input_is_real
    folded = descriptor.is_folded and descriptor.fft_type == ("c2r" if output else "r2c")
    return Side(
        length=traits.output_length if output else traits.input_length,
        per_thread=traits.output_elements_per_thread if output else traits.input_elements_per_thread,
        stride=traits.stride,
        batching=traits.implicit_type_batching,
        kind="real" if real else "folded" if folded else "complex",
        groups=(traits.ffts_per_block or 0) // traits.implicit_type_batching if descriptor.execution == BLOCK else 0,
        transposed=descriptor.thread_layout == "transposed",
    )


# -- one value -------------------------------------------------------------------------------------------------


@cache
def _reader(kind: str, batching: int) -> Procedure:
    """Move value k of rows row, row + 1 .. into slot; zero outside the source."""

    def read_real(numbers: Any, slot: Any, source: Any, row: Any, k: Any) -> None:
        for j in range(batching):
            if row + j < source.shape[0] and k < source.shape[1]:
                numbers[slot * batching + j] = real_part(source[row + j, k])
            else:
                numbers[slot * batching + j] = 0

    def read_folded(numbers: Any, slot: Any, source: Any, row: Any, k: Any) -> None:
        for j in range(batching):
            for half in range(2):
                if row + j < source.shape[0] and 2 * k + half < source.shape[1]:
                    numbers[(2 * slot + half) * batching + j] = real_part(source[row + j, 2 * k + half])
                else:
                    numbers[(2 * slot + half) * batching + j] = 0

    def read_complex(numbers: Any, slot: Any, source: Any, row: Any, k: Any) -> None:
        for j in range(batching):
            if row + j < source.shape[0] and k < source.shape[1]:
                value = source[row + j, k]
                numbers[2 * slot * batching + j] = real_part(value)
                numbers[(2 * slot + 1) * batching + j] = imag_part(value)
            else:
                numbers[2 * slot * batching + j] = 0
                numbers[(2 * slot + 1) * batching + j] = 0

    return Procedure({"real": read_real, "folded": read_folded, "complex": read_complex}[kind])


@cache
def _writer(kind: str, batching: int) -> Procedure:
    """Move slot to value k of rows row, row + 1 ..; nothing outside the target."""

    def write_real(numbers: Any, slot: Any, target: Any, row: Any, k: Any) -> None:
        for j in range(batching):
            if row + j < target.shape[0] and k < target.shape[1]:
                target[row + j, k] = numbers[slot * batching + j]

    def write_folded(numbers: Any, slot: Any, target: Any, row: Any, k: Any) -> None:
        for j in range(batching):
            for half in range(2):
                if row + j < target.shape[0] and 2 * k + half < target.shape[1]:
                    target[row + j, 2 * k + half] = numbers[(2 * slot + half) * batching + j]

    def write_complex(numbers: Any, slot: Any, target: Any, row: Any, k: Any) -> None:
        for j in range(batching):
            if row + j < target.shape[0] and k < target.shape[1]:
                real, imag = numbers[2 * slot * batching + j], numbers[(2 * slot + 1) * batching + j]
                assign(target, row + j, k, real, imag)

    return Procedure({"real": write_real, "folded": write_folded, "complex": write_complex}[kind])


# -- loops -----------------------------------------------------------------------------------------------------


def register_copy(s: Side, *, output: bool) -> Callable[..., None]:
    """``copy(storage, array, index)``: this thread's registers, from or to rows index, index + 1 .."""
    move = _writer(s.kind, s.batching) if output else _reader(s.kind, s.batching)
    length, per_thread, stride, transposed, block = s.length, s.per_thread, s.stride, s.transposed, s.groups > 0

    def copy(storage: Any, array: Any, index: Any) -> None:
        numbers = components(storage)
        thread = (cuda.threadIdx.y if transposed else cuda.threadIdx.x) if block else 0
        for i in range(per_thread):
            k = thread + i * stride
            if k < length:
                move(numbers, i, array, index, k)

    return copy


def shared_copy(s: Side, *, output: bool) -> Callable[..., None]:
    """``copy(storage, array, index)``: the block's data, from or to rows index .. index + ffts_per_block."""
    move = _writer(s.kind, s.batching) if output else _reader(s.kind, s.batching)
    length, batching, total = s.length, s.batching, s.length * s.groups

    def copy(storage: Any, array: Any, index: Any) -> None:
        numbers = components(storage)
        i = cuda.threadIdx.x + cuda.blockDim.x * (cuda.threadIdx.y + cuda.blockDim.y * cuda.threadIdx.z)
        while i < total:
            move(numbers, i, array, index + i // length * batching, i % length)
            i += cuda.blockDim.x * cuda.blockDim.y * cuda.blockDim.z

    return copy


def first_row(s: Side, *, of_block: bool) -> Callable[..., None]:
    """``put(slot)``: the default index, all FFTs of the blocks along blockIdx.x one after the other."""
    batching, per_block, transposed = s.batching, s.groups * s.batching, s.transposed

    def thread_row(slot: Any) -> None:
        threads = cuda.blockDim.x * cuda.blockDim.y * cuda.blockDim.z
        thread = cuda.threadIdx.x + cuda.blockDim.x * (cuda.threadIdx.y + cuda.blockDim.y * cuda.threadIdx.z)
        slot[0] = (cuda.blockIdx.x * threads + thread) * batching

    def own_row(slot: Any) -> None:
        group = cuda.threadIdx.x if transposed else cuda.threadIdx.y
        slot[0] = cuda.blockIdx.x * per_block + group * batching

    def block_row(slot: Any) -> None:
        slot[0] = cuda.blockIdx.x * per_block

    return block_row if of_block else own_row if per_block else thread_row
