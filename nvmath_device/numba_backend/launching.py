# SPDX-License-Identifier: Apache-2.0
"""A kernel that is loaded on a device, and launches of it in which all that could be settled is settled.

The driver copies a launch's parameters before it returns, so a launch owns one block of them and fills it anew each
time, under a lock.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from nvmath_device.host import current_device
from nvmath_device.host.array_matchers import matcher, stream_reader
from nvmath_device.host.driver import bindings, call, failure, library
from nvmath_device.host.streams import same_stream
from nvmath_device.kernel_code import KernelCode
from nvmath_device.launch_limits import DeviceLimits
from nvmath_device.numba_backend.kernel_arguments import Argument, numba_matcher

Writer = Callable[[Any], bool]  # puts an argument like the last one into its parameters; False where it is not like it

_SLOTS: dict[str, Any] = {
    "ptr": ctypes.c_uint64, "i8": ctypes.c_int8, "i16": ctypes.c_int16, "i32": ctypes.c_int32, "i64": ctypes.c_int64,
    "u8": ctypes.c_uint8, "u16": ctypes.c_uint16, "u32": ctypes.c_uint32, "u64": ctypes.c_uint64,
    "f16": ctypes.c_uint16, "bf16": ctypes.c_uint16, "f32": ctypes.c_float, "f64": ctypes.c_double,
    "bool": ctypes.c_bool,
}  # fmt: skip
_SLOT_BYTES = 8
_ADDRESS = 4  # which word of an array
_COOPERATIVE = 2  # CU_LAUNCH_ATTRIBUTE_COOPERATIVE
_LEAST, _MOST = -(2**63), 2**63
_NO_CONTEXT = 201


class Config(NamedTuple):
    """What ``kernel[grid, block, stream, shared]`` says, with three extents each and the stream's handle."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    stream: int
    shared: int


# -- loading ------------------------------------------------------------------------------------------------


class LoadedKernel:
    """A kernel on one device. Its machine code stays there until the process ends."""

    def __init__(self, code: KernelCode, device: int) -> None:
        """``device`` must be current. All dynamic shared memory that it gives a block is allowed."""
        driver = bindings()
        self.code, self.device, self.limits = code, device, device_limits(device)
        self._library = call(driver.cuLibraryLoadData, code.cubin, [], [], 0, [], [], 0)
        kernel = call(driver.cuLibraryGetKernel, self._library, code.entry.encode())
        function = call(driver.cuKernelGetFunction, kernel)
        dynamic = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        call(
            driver.cuFuncSetAttribute,
            function,
            dynamic,
            max(0, self.limits.max_shared_bytes - code.resources.static_shared_bytes),
        )
        self.function = int(function)


@cache
def device_limits(device: int) -> DeviceLimits:
    """What this device lets a launch have."""
    driver = bindings()
    handle = call(driver.cuDeviceGet, device)

    def ask(attribute: int) -> int:
        return int(call(driver.cuDeviceGetAttribute, driver.CUdevice_attribute(attribute), handle))

    return DeviceLimits.of_device(ask)


# -- launching ----------------------------------------------------------------------------------------------


class _Attribute(ctypes.Structure):
    """``CUlaunchAttribute``; of its value, a union of 64 bytes, the one that is an int."""

    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", ctypes.c_int), ("rest", ctypes.c_char * 60)]


class _Config(ctypes.Structure):
    """``CUlaunchConfig``."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p), ("attributes", ctypes.POINTER(_Attribute)), ("count", ctypes.c_uint),
    ]  # fmt: skip


_Launch = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


@cache
def _launch_function() -> Any:
    """cuLaunchKernelEx, which takes a quarter of the arguments that cuLaunchKernel takes."""
    return _Launch(ctypes.cast(library().cuLaunchKernelEx, ctypes.c_void_p).value or 0)


class Launch:
    """Launches of one kernel in one configuration, with arguments of one kind.

    :meth:`launch` takes any such arguments, read before. :meth:`shortcut` gives a function for those that are like the
    ones that it is given: they are compared and put in place without being read.
    """

    def __init__(self, kernel: LoadedKernel, config: Config) -> None:
        self.kernel, self.config = kernel, config
        words = [word for parameter in kernel.code.parameters for word in parameter["words"]]
        self._memory = (ctypes.c_char * (_SLOT_BYTES * max(len(words), 1)))()
        self._slots = [_SLOTS[w].from_buffer(self._memory, _SLOT_BYTES * i) for i, w in enumerate(words)]
        start = ctypes.addressof(self._memory)
        self._addresses = (ctypes.c_void_p * max(len(words), 1))(*(start + _SLOT_BYTES * i for i in range(len(words))))
        self._config = _Config(config.grid, config.block, config.shared, config.stream or None)
        if kernel.code.cooperative:
            self._attribute = _Attribute(_COOPERATIVE, b"", 1)
            self._config.attributes, self._config.count = ctypes.pointer(self._attribute), 1
        # A cast pointer keeps what it points to, and a slot the memory it lies in: functions made of them outlive this.
        self._call = (
            ctypes.cast(ctypes.pointer(self._config), ctypes.c_void_p), ctypes.c_void_p(kernel.function),
            ctypes.cast(self._addresses, ctypes.c_void_p), None,
        )  # fmt: skip
        self._function = _launch_function()
        self._lock = threading.Lock()

    def launch(self, arguments: Sequence[Argument]) -> None:
        """Put the kernel on its stream. The device must be current. Raises DriverError where the driver refuses."""
        words = [word for argument in arguments for word in argument.words]
        with self._lock:
            for slot, word in zip(self._slots, words, strict=True):
                slot.value = word
            status = self._function(*self._call)
        if status:
            raise failure("cuLaunchKernelEx", status)

    def fill(self, arguments: Sequence[Argument]) -> None:
        """Set the parameters, and launch nothing."""
        with self._lock:
            words = [word for argument in arguments for word in argument.words]
            for slot, word in zip(self._slots, words, strict=True):
                slot.value = word

    def shortcut(
        self, arguments: Sequence[Argument], values: Sequence[Any]
    ) -> Callable[[tuple[Any, ...]], bool] | None:
        """A function of arguments that launches where they are like these, and says whether it did.

        It has parameters of its own, in which extents and strides stay as they are. ``None`` where an argument is of a
        kind that has to be read each time.
        """
        own = Launch(self.kernel, self.config)
        own.fill(arguments)
        write_each = [write for write in own.writers(arguments, values) if write is not None]
        if len(write_each) < len(arguments):
            return None
        count, lock, launch, parts = len(write_each), own._lock, own._function, own._call
        config, function, addresses, extra = parts
        in_order = self._order_check(arguments)
        many, index, current_index = current_device.device_count() > 1, self.kernel.device, current_device.current_index

        def run(args: tuple[Any, ...]) -> bool:
            if len(args) != count:
                return False
            with lock:
                for write, x in zip(write_each, args):  # noqa: B905 - as many of the one as of the other
                    if not write(x):
                        return False
                if (many and current_index() != index) or not in_order():
                    return False
                status = launch(config, function, addresses, extra)
            if status:
                if status == _NO_CONTEXT:
                    return False
                raise failure("cuLaunchKernelEx", status)
            return True

        return run

    def again(self) -> Callable[[], None]:
        """A function that launches with the parameters as they are."""
        lock, launch, (config, function, addresses, extra) = self._lock, self._function, self._call

        def run() -> None:
            with lock:
                status = launch(config, function, addresses, extra)
            if status:
                raise failure("cuLaunchKernelEx", status)

        return run

    def with_new(self, writers: Sequence[Writer], args: Sequence[Any], before: Sequence[Any]) -> int:
        """Launch with other arguments, as many as writers. -1, or which one is not like the one before.

        Then nothing is launched, and the parameters are those of ``before`` again.
        """
        with self._lock:
            for i, write in enumerate(writers):
                if not write(args[i]):
                    for restore, x in zip(writers, before, strict=True):
                        restore(x)
                    return i
            status = self._function(*self._call)
        if status:
            raise failure("cuLaunchKernelEx", status)
        return -1

    def _order_check(self, arguments: Sequence[Argument]) -> Callable[[], bool]:
        """Whether the current streams of the arrays' libraries are the launch's, so that nothing is to be ordered."""
        views = {a.view.package: a.view for a in arguments if a.view is not None}
        readers = [stream_reader(v) for package, v in views.items() if package in ("cupy", "torch")]
        mine = self.config.stream
        if not readers:
            return lambda: True
        if len(readers) == 1:
            (read,) = readers
            return lambda: (handle := read()) == mine or same_stream(handle, mine)
        return lambda: all(same_stream(read(), mine) for read in readers)

    def writers(self, arguments: Sequence[Argument], values: Sequence[Any]) -> list[Writer | None]:
        """For each argument a function for others like it; ``None`` for those that have to be read."""
        writers = []
        place = 0
        for argument, value in zip(arguments, values, strict=True):
            slots = self._slots[place : place + len(argument.words)]
            place += len(argument.words)
            writers.append(_array_writer(argument, value, slots) if argument.view else _number_writer(value, slots))
        return writers

    def bound_writers(self, arguments: Sequence[Argument], values: Sequence[Any]) -> list[Writer]:
        """The same, where arrays may also be given as addresses, and what has to be read may only stay as it is."""
        made = []
        place = 0
        for argument, value, write in zip(arguments, values, self.writers(arguments, values), strict=True):
            if argument.view is not None:
                made.append(_address_writer(self._slots[place + _ADDRESS], write))
            else:
                made.append(write or _same(value))
            place += len(argument.words)
        return made


def _array_writer(argument: Argument, x: Any, slots: Sequence[Any]) -> Writer | None:
    operand = argument.view
    assert operand is not None
    if operand.producer_stream is not None:
        return None
    match = numba_matcher(x) if operand.package == "numba" else matcher(operand, operand.itemsize)
    if match is None:
        return None
    slot = slots[_ADDRESS]

    def write(x: Any) -> bool:
        ptr = match(x)
        if ptr:
            slot.value = ptr
            return True
        return False

    return write


def _address_writer(slot: Any, write: Writer | None) -> Writer:
    def write_either(x: Any) -> bool:
        if type(x) is int:
            slot.value = x
            return True
        return write is not None and write(x)

    return write_either


def _same(value: Any) -> Writer:
    return lambda x: x is value


def _number_writer(like: Any, slots: Sequence[Any]) -> Writer | None:
    kind, slot = type(like), slots[0]
    if kind is int:
        # what is beyond becomes another type
        if isinstance(slot, ctypes.c_int64):
            return lambda x: type(x) is int and _LEAST <= x < _MOST and _put(slot, x)
        return None
    if kind is float and isinstance(slot, (ctypes.c_double, ctypes.c_float)):
        return lambda x: type(x) is float and _put(slot, x)
    if kind is bool and isinstance(slot, ctypes.c_bool):
        return lambda x: type(x) is bool and _put(slot, x)
    # A signature may have declared another type, and spans of time are NumPy's integers that give no number.
    is_real = issubclass(kind, (np.float32, np.float64)) and isinstance(slot, (ctypes.c_double, ctypes.c_float))
    is_whole = issubclass(kind, np.integer) and not issubclass(kind, np.timedelta64)
    if is_real or is_whole:
        return lambda x: type(x) is kind and _put(slot, x.item())
    return None


def _put(slot: Any, value: Any) -> bool:
    slot.value = value
    return True
