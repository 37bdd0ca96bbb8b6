# SPDX-License-Identifier: Apache-2.0
"""Calls of the CUDA driver through cuda.bindings, with every status checked. Nothing is loaded on import.

All functions may be called from any thread.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cache
from typing import Any

from nvmath_device.errors import DriverError, MissingDependencyError, NoDeviceError, NvmathDeviceError

_NOT_INITIALIZED = 3
_NO_DEVICE = {
    34,  # STUB_LIBRARY
    46,  # DEVICE_UNAVAILABLE
    100,  # NO_DEVICE
    802,  # SYSTEM_NOT_READY
    803,  # SYSTEM_DRIVER_MISMATCH
    804,  # COMPAT_NOT_SUPPORTED_ON_DEVICE
}
# Numbers, because older bindings lack some of the names. After any of these the context answers every call so.
_EARLIER = {
    214,  # ECC_UNCORRECTABLE
    220,  # NVLINK_UNCORRECTABLE
    226,  # CONTAINED
    700,  # ILLEGAL_ADDRESS
    702,  # LAUNCH_TIMEOUT
    710,  # ASSERT
    714,  # HARDWARE_STACK_ERROR
    715,  # ILLEGAL_INSTRUCTION
    716,  # MISALIGNED_ADDRESS
    717,  # INVALID_ADDRESS_SPACE
    718,  # INVALID_PC
    719,  # LAUNCH_FAILED
    721,  # TENSOR_MEMORY_LEAK
}


@cache
def bindings() -> Any:
    """The module ``cuda.bindings.driver``. Raises :class:`MissingDependencyError` where it is not installed."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise MissingDependencyError("cuda.bindings is needed to use a GPU: pip install cuda-bindings") from error
    return driver


@cache
def library(kind: Callable[[str], ctypes.CDLL] = ctypes.CDLL) -> ctypes.CDLL:
    """libcuda for calls through ctypes. ``ctypes.PyDLL`` keeps the GIL: only for functions that return at once.

    Raises :class:`NoDeviceError` where there is no driver.
    """
    name = "nvcuda.dll" if os.name == "nt" else "libcuda.so.1"
    try:
        return kind(name)
    except OSError as error:
        raise NoDeviceError(f"no CUDA driver: {error}") from error


def call(function: Any, *arguments: Any) -> Any:
    """The result of a function of :func:`bindings`: ``None``, the one it has, or a tuple of several.

    The driver is initialised where it is not.

    Raises:
        NoDeviceError: no driver, no device, or a process that cannot use CUDA any more because it was forked.
        DriverError: any other status. What an earlier kernel has caused is reported as that.
    """
    status, *results = _ask(function, *arguments)
    if int(status) == _NOT_INITIALIZED and int(_ask(bindings().cuInit, 0)[0]) == 0:
        status, *results = _ask(function, *arguments)
    if int(status) != 0:
        raise failure(function.__name__, status)
    if len(results) > 1:
        return tuple(results)
    return results[0] if results else None


def _ask(function: Any, *arguments: Any) -> tuple[Any, ...]:
    try:
        return function(*arguments)
    except RuntimeError as error:  # what the bindings raise when they find no driver
        raise NoDeviceError(f"{function.__name__}: {error}") from error


def failure(function: str, status: Any) -> NvmathDeviceError:
    """The error for a status other than success; not raised here. ``status`` may be a plain number."""
    number, words = int(status), status_words(status)
    if number == _NOT_INITIALIZED:
        return NoDeviceError(
            f"{function} failed: {words}. CUDA cannot be used in a process that was forked from one that has used it; "
            "start processes with multiprocessing's 'spawn' or 'forkserver'"
        )
    if number in _NO_DEVICE:
        return NoDeviceError(f"no usable CUDA device: {function} failed: {words}")
    if number in _EARLIER:
        return DriverError(
            f"an earlier kernel failed: {words}; {function} was the next call and only reports it. The CUDA context is "
            "lost: every further call in this process fails the same way. To find the kernel run the program with "
            "CUDA_LAUNCH_BLOCKING=1 or under compute-sanitizer",
            function=function, status=number, earlier=True,
        )  # fmt: skip
    return DriverError(f"{function} failed: {words}", function=function, status=number)


def earlier_failure(function: str) -> NvmathDeviceError | None:
    """The error for what an earlier kernel has done to the current context, if it has; ``function`` met it.

    For libraries whose own status does not tell such a failure from one of theirs.
    """
    try:
        status, *_ = bindings().cuMemGetInfo()
    except (MissingDependencyError, RuntimeError):  # no driver
        return None
    return failure(function, status) if int(status) in _EARLIER else None


def status_words(status: Any) -> str:
    """A status in words: ``"CUDA_ERROR_ILLEGAL_ADDRESS (status 700): an illegal memory access was encountered"``."""
    if not hasattr(status, "name"):
        try:
            status = bindings().CUresult(status)
        except ValueError:  # newer than the bindings
            return f"status {status}"
    text = f"{status.name} (status {int(status)})"
    try:
        _, words = bindings().cuGetErrorString(status)
        return f"{text}: {words.decode()}" if words else text
    except (RuntimeError, AttributeError, TypeError):  # no driver to ask
        return text
