# SPDX-License-Identifier: Apache-2.0
"""Which CUDA device is current, making one current for a while, and what is kept once per device and process.

Devices are CUDA ordinals. All functions may be called from any thread. Nothing survives a fork: a child process
that may still use CUDA gets its own handles.
"""

from __future__ import annotations

import ctypes
import os
import threading
from functools import cache
from typing import Any

from nvmath_device.errors import DriverError, InvalidArgumentError, MissingDependencyError, NoDeviceError
from nvmath_device.host import cublaslt
from nvmath_device.host.driver import bindings, call, failure, library

_INVALID_DEVICE = 101
_STREAM_CAPTURE_IMPLICIT = 906

_lock = threading.RLock()
_contexts: dict[int, Any] = {}
_handles: dict[int, cublaslt.Handle] = {}


# -- current ------------------------------------------------------------------------------------------------


class _Cell(threading.local):
    """Where the driver writes its answer, one a thread: made once, because making it costs as much as the call."""

    def __init__(self) -> None:
        self.device = ctypes.c_int(-1)
        self.reference = ctypes.byref(self.device)


_cell = _Cell()


def _bind_get_device(reference: Any) -> int:
    """cuCtxGetDevice, which this puts in its own place at the first call."""
    global _get_device
    _get_device = library(ctypes.PyDLL).cuCtxGetDevice
    return _get_device(reference)


_get_device: Any = _bind_get_device


def current_index() -> int:
    """The device that is current in this thread; -1 where none is. 0.2 us.

    Raises NoDeviceError where there is no driver.
    """
    cell = _cell
    if _get_device(cell.reference):
        return -1
    return cell.device.value


class on_device:
    """``with on_device(index):`` the device is current inside, and after it what was before, be it nothing.

    Where it is current already nothing is done, in 0.5 us: a context that is not the device's primary one stays.
    Otherwise the primary context becomes current, the one that CuPy, PyTorch, JAX and Numba use. It is created at
    the first use and kept for the life of the process. Not to be entered twice at the same time.

    Raises:
        InvalidArgumentError: there is no such device.
        NoDeviceError: there is no driver or no device.
    """

    __slots__ = ("_before", "_index")

    def __init__(self, index: int) -> None:
        self._index = index
        self._before: Any = None

    def __enter__(self) -> None:
        if current_index() != self._index:
            driver = bindings()
            before = call(driver.cuCtxGetCurrent)
            call(driver.cuCtxSetCurrent, _primary_context(self._index))
            self._before = before

    def __exit__(self, *_: object) -> None:
        before = self._before
        if before is not None:
            self._before = None
            call(bindings().cuCtxSetCurrent, before)


def make_current(index: int) -> None:
    """Make the primary context of a device current in this thread, and leave it so."""
    call(bindings().cuCtxSetCurrent, _primary_context(index))


def _primary_context(index: int) -> Any:
    context = _contexts.get(index)
    if context is None:
        with _lock:
            context = _contexts.get(index)
            if context is None:
                context = call(bindings().cuDevicePrimaryCtxRetain, _device(index))
                _contexts[index] = context
    return context


# -- streams ------------------------------------------------------------------------------------------------


@cache
def _ask_capturing() -> Any:
    function = library().cuStreamIsCapturing
    function.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    return function


def is_capturing(stream: int) -> bool:
    """Whether what is put on the stream goes into a CUDA graph instead of running, or into one that is broken.

    The stream's device must be current.

    Raises:
        InvalidArgumentError: ``stream`` is the legacy default stream while another stream captures. Nothing may be
            put on it then: the capture would break.
        DriverError: the driver does not know the stream, or reports an earlier kernel.
    """
    answer = ctypes.c_int()
    status = _ask_capturing()(stream, ctypes.byref(answer))
    if status == _STREAM_CAPTURE_IMPLICIT:
        raise InvalidArgumentError(
            "stream: the legacy default stream (0, 1, None) cannot be used while another stream captures a CUDA graph; "
            "give the stream that captures"
        )
    if status:
        raise failure("cuStreamIsCapturing", status)
    return answer.value != 0


# -- devices ------------------------------------------------------------------------------------------------


@cache
def device_count() -> int:
    """How many devices this process sees; 0 where there is no driver, too, or no cuda.bindings to ask it with.

    Asked once a process.
    """
    try:
        return int(call(bindings().cuDeviceGetCount))
    except (NoDeviceError, MissingDependencyError):
        return 0


def _device(index: int) -> Any:
    try:
        return call(bindings().cuDeviceGet, index)
    except DriverError as error:
        if error.status != _INVALID_DEVICE:
            raise
        count = device_count()
        seen = "no device" if not count else "cuda:0 alone" if count == 1 else f"cuda:0 to cuda:{count - 1}"
        raise InvalidArgumentError(f"device: there is no cuda:{index}; this process sees {seen}") from error


@cache
def compute_capability(index: int) -> tuple[int, int]:
    """(major, minor), such as (9, 0)."""
    driver, device = bindings(), _device(index)
    kinds = driver.CUdevice_attribute
    major = call(driver.cuDeviceGetAttribute, kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device)
    minor = call(driver.cuDeviceGetAttribute, kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device)
    return int(major), int(minor)


@cache
def total_memory(index: int) -> int:
    """Bytes."""
    return int(call(bindings().cuDeviceTotalMem, _device(index)))


@cache
def device_name(index: int) -> str:
    """Such as "NVIDIA H200"."""
    return call(bindings().cuDeviceGetName, 256, _device(index)).split(b"\0")[0].decode()


# -- handles ------------------------------------------------------------------------------------------------


def handle(index: int, users: int | None = None) -> cublaslt.Handle:
    """The process's cuBLASLt handle of a device, made at the first use. cuBLASLt lets threads share it.

    It belongs to everybody: do not close it. ``users`` is the address of a handle of the caller's to be used instead.

    Raises:
        HostLibraryError: cuBLASLt cannot use the device.
        InvalidArgumentError, NoDeviceError: as :class:`on_device`.
    """
    if users is not None:
        return cublaslt.BorrowedHandle(users)
    found = _handles.get(index)
    if found is None:
        with _lock:
            found = _handles.get(index)
            if found is None:
                with on_device(index):
                    found = cublaslt.Handle()
                _handles[index] = found
    return found


_of_parent: list[Any] = []  # handles that this process must not destroy, because it did not make them


def _start_again_in_forked_child() -> None:
    global _lock
    _lock = threading.RLock()  # whoever held it is not in this process
    _of_parent.append((dict(_contexts), dict(_handles)))
    _contexts.clear()
    _handles.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_again_in_forked_child)
