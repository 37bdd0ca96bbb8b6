# SPDX-License-Identifier: Apache-2.0
"""``FFT.execute`` and the index functions of ``FFT`` in simulated kernels.

Thread t of an FFT holds in register i the value t + i * stride. Shared data is the values of one FFT after
the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nvmath_device import reference
from nvmath_device.descriptors import Dim3
from nvmath_device.dtypes import ValueType
from nvmath_device.fft_descriptor import BLOCK, FftDescriptor, FftTraits
from nvmath_device.numba_backend.simulator_arguments import (
    Array,
    Call,
    Place,
    address_of,
    described,
    holds,
    holds_components,
    wanted,
)
from nvmath_device.numba_backend.simulator_block import Thread, calling_thread
from nvmath_device.numba_backend.simulator_shared import poison

if TYPE_CHECKING:
    from nvmath_device.fft import FFT

REAL, FOLDED, COMPLEX = "real", "folded", "complex"


class Plan(NamedTuple):
    """What a simulated call needs to know of an FFT."""

    descriptor: FftDescriptor
    traits: FftTraits

    @property
    def groups(self) -> int:
        """FFTs (pairs of FFTs for float16) of a block, 1 for Thread execution."""
        return (self.traits.ffts_per_block or self.batching) // self.batching

    @property
    def batching(self) -> int:
        return self.traits.implicit_type_batching

    @property
    def is_block(self) -> bool:
        return self.descriptor.execution == BLOCK

    @property
    def is_transposed(self) -> bool:
        return self.descriptor.thread_layout == "transposed"

    @property
    def block_dim(self) -> Dim3:
        across = (self.groups, self.traits.stride) if self.is_transposed else (self.traits.stride, self.groups)
        return Dim3(*across)

    @property
    def data_bytes(self) -> int:
        """Of the shared data of a block."""
        sides = (self.side(output=False), self.side(output=True))
        return max(length * value.itemsize for length, value in sides) * self.groups

    def side(self, *, output: bool) -> tuple[int, ValueType]:
        """Values of one FFT, and what one is."""
        t = self.traits
        return (t.output_length, t.output_type) if output else (t.input_length, t.input_type)

    def kind(self, *, output: bool) -> str:
        """How a row of an array becomes values."""
        d = self.descriptor
        if d.fft_type != ("c2r" if output else "r2c"):
            return COMPLEX
        return FOLDED if d.is_folded else REAL

    def position(self, index: Dim3) -> tuple[int, int]:
        """(thread within its FFT, FFT within its block) of a threadIdx."""
        if not self.is_block:
            return 0, 0
        return (index.y, index.x) if self.is_transposed else (index.x, index.y)


def plan_of(fft: FFT) -> Plan:
    return Plan(fft.resolved()[0], fft.traits)


# -- between registers and whole FFTs ----------------------------------------------------------------------


def gather(registers: dict[tuple[int, int], Array], *, groups: int, stride: int, length: int) -> Array:
    """Whole FFTs, one a row, out of registers by (thread, FFT)."""
    first = next(iter(registers.values()))
    rows = np.empty((groups, length), first.dtype)
    for (thread, group), own in registers.items():
        part = rows[group, thread::stride]
        part[...] = own[: len(part)]
    return rows


def scatter(rows: Array, registers: dict[tuple[int, int], Array], *, stride: int) -> None:
    """The opposite of :func:`gather`; registers without a value keep what they hold."""
    for (thread, group), own in registers.items():
        part = rows[group, thread::stride]
        own[: len(part)] = part


# -- execute -----------------------------------------------------------------------------------------------


def fft_execute(fft: FFT, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """``FFT.execute``: in the Block forms all threads come, the last one computes, then all go on."""
    thread = calling_thread("FFT.execute")
    call, plan = Call("FFT.execute", fft), plan_of(fft)
    if not plan.is_block:
        given = call.bind(args, kwargs, ("thread_data",))
        data = storage_bytes(call, plan, given["thread_data"])
        _transform(plan, {(0, 0): data})
        return
    given = call.bind(args, kwargs, ("thread_data", "shared_mem"), ("shared_mem",))
    own = None
    if "thread_data" in given:
        own = storage_bytes(call, plan, given["thread_data"])

    def prepare() -> Array:
        check_block(call, plan, thread)
        return (data_bytes if own is None else _scratch)(call, plan, given["shared_mem"])

    def finish(shared: Array, threads: dict[Dim3, Any]) -> None:
        used = plan.traits.shared_memory_size or 0
        if own is not None:
            _transform(plan, {plan.position(index): data for index, data in threads.items()})
            poison(shared[:used])
            return
        (length, value), (out_length, out_value) = plan.side(output=False), plan.side(output=True)
        rows = shared[: plan.groups * length * value.itemsize].view(value.dtype).reshape(plan.groups, length)
        result = reference.fft(rows, plan.descriptor)
        written = plan.groups * out_length * out_value.itemsize
        shared[:written].view(out_value.dtype)[...] = result.reshape(-1)
        poison(shared[written : max(used, plan.data_bytes)])

    same = {"shared_mem": Place(given["shared_mem"]), "form": ", ".join(given)}
    thread.block.together(thread, (call.name, fft), same=same, own=own, prepare=prepare, finish=finish)


def _transform(plan: Plan, data: dict[tuple[int, int], Array]) -> None:
    """Compute FFTs whose registers are given as bytes, in place."""
    stride = plan.traits.stride if plan.is_block else 1
    (length, value), (_, out_value) = plan.side(output=False), plan.side(output=True)
    inputs = {k: seen_as(d, value) for k, d in data.items()}
    rows = gather(inputs, groups=plan.groups, stride=stride, length=length)
    result = reference.fft(rows, plan.descriptor)
    scatter(result, {k: seen_as(d, out_value) for k, d in data.items()}, stride=stride)


def seen_as(data: Array, value: ValueType) -> Array:
    return data[: data.size // value.itemsize * value.itemsize].view(value.dtype)


def check_block(call: Call, plan: Plan, thread: Thread) -> None:
    if thread.block.dim != plan.block_dim:
        raise call.execution_error(
            f"wants a launch with blockDim {tuple(plan.block_dim)} (block_dim), got {tuple(thread.block.dim)}"
        )


def storage_bytes(call: Call, plan: Plan, given: Any) -> Array:
    """The bytes of one thread's registers."""
    data = _bytes(call, plan, "thread_data", call.array("thread_data", given, ndim=(1,)))
    needed = plan.traits.storage_size * plan.traits.value_type.itemsize
    if data.size < needed:
        raise call.execution_error(
            f"wants {plan.traits.storage_size} values of {plan.traits.value_type} (storage_size; {needed} "
            f"bytes) for thread_data, got {data.size} bytes"
        )
    return data


def data_bytes(call: Call, plan: Plan, given: Any) -> Array:
    """The bytes of a block's data in shared memory."""
    shared = _bytes(call, plan, "shared_mem", call.shared_array("shared_mem", given))
    needed = max(plan.data_bytes, plan.traits.shared_memory_size or 0)
    _check_room(call, shared, needed, plan.traits.value_type.itemsize, "shared_storage_size")
    return shared


def _scratch(call: Call, plan: Plan, given: Any) -> Array:
    array = call.shared_array("shared_mem", given)
    call.contiguous("shared_mem", array)
    call.writable("shared_mem", array)
    shared = array.view(np.ndarray).view(np.uint8)
    needed = plan.traits.shared_memory_size or 0
    _check_room(call, shared, needed, plan.traits.value_type.itemsize if needed else 1, "shared_memory_size")
    return shared


def _check_room(call: Call, shared: Array, needed: int, alignment: int, trait: str) -> None:
    if shared.size < needed:
        raise call.execution_error(f"wants {needed} bytes ({trait}) for shared_mem, got {shared.size}")
    if address_of(shared) % alignment:
        raise call.execution_error(f"wants shared_mem at a multiple of {alignment} bytes, got {address_of(shared):#x}")


def _bytes(call: Call, plan: Plan, name: str, array: Array) -> Array:
    descriptor = plan.descriptor
    accepted = (descriptor.value_type, descriptor.input_type, descriptor.output_type)
    if not any(holds(array.dtype, v) or holds_components(array.dtype, v) for v in accepted):
        raise call.typing_error(
            f"wants elements of {wanted(descriptor.value_type)} for {name}, got an array of {described(array.dtype)}"
        )
    call.contiguous(name, array)
    call.writable(name, array)
    return array.view(np.ndarray).view(np.uint8)


# -- ids ---------------------------------------------------------------------------------------------------


def fft_fft_id(fft: FFT) -> int:
    return plan_of(fft).position(calling_thread("FFT.fft_id").index)[0]


def fft_batch_id(fft: FFT) -> int:
    return plan_of(fft).position(calling_thread("FFT.batch_id").index)[1]


def fft_is_thread_active(fft: FFT) -> bool:
    plan, thread = plan_of(fft), calling_thread("FFT.is_thread_active")
    inner, group = plan.position(thread.index)
    return not plan.is_block or (inner < plan.traits.stride and group < plan.groups)
