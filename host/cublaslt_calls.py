# SPDX-License-Identifier: Apache-2.0
"""Calls into cuBLASLt with every status checked, and what a failure says.

:func:`call` reaches every function of ``cublaslt_prototypes.PROTOTYPES``. Nothing is loaded on import, and a function
is bound when it is first called: a cuBLASLt that lacks it still serves the rest. The library is the one
:mod:`cuda.pathfinder` finds; one that this process has loaded already (with PyTorch, say) goes before all others.

All functions may be called from any thread; calls run without the GIL.
"""

from __future__ import annotations

import ctypes
import os
import re
import threading
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

from nvmath_device.errors import (
    HostLibraryError,
    InvalidArgumentError,
    MissingDependencyError,
    NvmathDeviceError,
    UnsupportedError,
)
from nvmath_device.host.cublaslt_attributes import shown
from nvmath_device.host.cublaslt_enums import LibraryProperty, Status
from nvmath_device.host.cublaslt_prototypes import PROTOTYPES, STATUS, TABLE_VERSION
from nvmath_device.host.driver import earlier_failure
from nvmath_device.lto import toolchain

# Refusals of these functions leave everything as it was, so that a call can be repeated with the log on. Setting
# an attribute is not among them: the log says nothing about it that the error does not say.
_EXPLAINED = {
    "cublasLtCreate",
    "cublasLtMatmul",
    "cublasLtMatrixTransform",
    "cublasLtMatmulAlgoGetHeuristic",
    "cublasLtMatmulAlgoGetHeuristicForStream",
    "cublasLtMatmulAlgoGetIds",
    "cublasLtMatmulAlgoInit",
    "cublasLtMatmulAlgoCheck",
    "cublasLtMatmulAlgoCheckForStream",
}
_REFUSALS = {Status.NOT_INITIALIZED, Status.INVALID_VALUE, Status.ARCH_MISMATCH, Status.NOT_SUPPORTED}
# What cuBLASLt answers for whatever the GPU is no longer able to do, too.
_OF_THE_DEVICE = {
    Status.NOT_INITIALIZED, Status.ALLOC_FAILED, Status.MAPPING_ERROR, Status.EXECUTION_FAILED, Status.INTERNAL_ERROR
}  # fmt: skip
_LOG_EVERYTHING = 31
_LOG_VARIABLES = ("CUBLASLT_LOG_LEVEL", "CUBLASLT_LOG_MASK", "CUBLASLT_LOG_FILE")
_LOG_LIMIT = 16_384  # bytes; a log of one call is a few lines, but other threads may write at the same time
_SMALLEST_ADDRESS = 1 << 20

_lock = threading.Lock()
_log_lock = threading.Lock()
_library: ctypes.CDLL | None = None
_bound: dict[str, Any] = {}


def load() -> ctypes.CDLL:
    """Load cuBLASLt. Later calls return the same object.

    Raises :class:`MissingDependencyError` with the command that installs it.
    """
    global _library
    with _lock:
        if _library is None:
            extra = toolchain.cuda_extra()
            package = {"cu12": "nvidia-cublas-cu12", "cu13": "nvidia-cublas"}[extra]
            advice = f'Run: pip install "nvmath-device[{extra}]" (it brings the package {package}).'
            try:
                from cuda.pathfinder import load_nvidia_dynamic_lib
            except ImportError as error:
                raise MissingDependencyError(f"cuda.pathfinder is not installed. {advice}") from error
            try:
                _library = ctypes.CDLL(load_nvidia_dynamic_lib("cublasLt").abs_path)
            except RuntimeError as error:  # not found, or found and not loadable: pathfinder says which
                raise MissingDependencyError(f"cuBLASLt cannot be loaded. {advice}\n{error}") from error
        return _library


def version() -> tuple[int, int, int]:
    """(major, minor, patch) of the loaded cuBLASLt."""
    number = call("cublasLtGetVersion")
    return number // 10_000, number // 100 % 100, number % 100


def cudart_version() -> tuple[int, int]:
    """(major, minor) of the CUDA runtime inside the loaded cuBLASLt."""
    number = call("cublasLtGetCudartVersion")
    return number // 1000, number % 1000 // 10


def library_property(which: LibraryProperty) -> int:
    """One part of the version, as ``cublasLtGetProperty`` answers it."""
    value = ctypes.c_int()
    call("cublasLtGetProperty", which, ctypes.byref(value))
    return value.value


def heuristics_cache_capacity() -> int:
    """Entries that cuBLASLt's own cache of heuristics may have; 0 switches it off. One cache for the process."""
    capacity = ctypes.c_size_t()
    call("cublasLtHeuristicsCacheGetCapacity", ctypes.byref(capacity))
    return capacity.value


def set_heuristics_cache_capacity(entries: int) -> None:
    """Set :func:`heuristics_cache_capacity`, for everything in the process that uses cuBLASLt."""
    call("cublasLtHeuristicsCacheSetCapacity", entries)


def supports(function: str) -> bool:
    """Whether the loaded cuBLASLt has a function of the table. Another name raises :class:`InvalidArgumentError`."""
    _known(function)
    return hasattr(load(), function)


def bind(name: str) -> Any:
    """The C function with its prototype set; its status is the caller's to check.

    Raises :class:`UnsupportedError`, naming both versions, where the loaded cuBLASLt lacks it.
    """
    function = _bound.get(name)
    if function is None:
        _known(name)
        try:
            function = getattr(load(), name)
        except AttributeError:
            raise UnsupportedError(too_old(name)) from None
        function.restype, function.argtypes = PROTOTYPES[name]
        _bound[name] = function
    return function


def call(name: str, *args: Any, explain: bool = True) -> Any:
    """Call a function by its C name. Returns its number or text where it returns one, else ``None``.

    Arguments are what ctypes takes for the prototype: integers (addresses among them), enumeration members,
    ``bytes``, ``byref``, arrays. Raises :class:`HostLibraryError` for a status other than success. Where ``explain``
    is true the error has cuBLASLt's own log of the call, see :func:`failure`.
    """
    result = bind(name)(*args)
    if PROTOTYPES[name][0] is not STATUS:
        return result.decode() if isinstance(result, bytes) else result
    if result:
        raise failure(name, args, result, explain=explain)
    return None


def failure(name: str, args: Sequence[Any], status: int, *, explain: bool = True) -> NvmathDeviceError:
    """The error for a status that a call has returned; not raised here. What an earlier kernel has caused is a
    :class:`DriverError` that says so, all else a :class:`HostLibraryError`.

    For a call that was refused before it did anything (create, heuristics, algorithms, products) the call is repeated
    with cuBLASLt's log switched on and sent to a temporary file: this costs 0.1 to 1 ms, and nothing where no call
    fails. cuBLASLt has one log for the process: while the repeated call runs, lines of other threads may come in
    between, and afterwards the log is off. So it is left alone where one of the environment variables
    ``CUBLASLT_LOG_LEVEL``, ``_MASK`` or ``_FILE`` is set: the user reads it elsewhere.
    """
    if status in _OF_THE_DEVICE and (earlier := earlier_failure(name)):
        return earlier
    repeatable = explain and name in _EXPLAINED and status in _REFUSALS
    log = _log_of_a_repeated_call(name, args) if repeatable else ""
    text = f"{name}({', '.join(map(_argument, args))}) failed: {status_words(status)}"
    return HostLibraryError(text, function=name, status=status, log=log)


def status_words(status: int) -> str:
    """A status in words: ``"not supported (status 15): the requested functionality is not supported"``."""
    name = call("cublasLtGetStatusName", status).removeprefix("CUBLAS_STATUS_").replace("_", " ").lower()
    return f"{name} (status {status}): {call('cublasLtGetStatusString', status)}"


def too_old(what: str) -> str:
    """The sentence for a function or attribute of the tables that the loaded cuBLASLt lacks."""
    installed, known = (".".join(map(str, numbers)) for numbers in (version(), TABLE_VERSION))
    return (
        f"{what} needs a newer cuBLASLt: it is in {known}, but {installed} is loaded. "
        'Update it; the newest is that of CUDA 13: pip install -U "nvmath-device[cu13]"'
    )


def _known(name: str) -> None:
    if name not in PROTOTYPES:
        raise InvalidArgumentError(f"name: cuBLASLt has no function {name!r}; see cublaslt_prototypes")


def _argument(argument: Any) -> str:
    if isinstance(argument, IntEnum):
        return shown(argument)
    if isinstance(argument, int):
        return str(argument) if abs(argument) < _SMALLEST_ADDRESS else hex(argument)
    if isinstance(argument, ctypes.c_void_p | ctypes.c_size_t):
        return _argument(argument.value)
    if isinstance(argument, str):
        return argument
    return "NULL" if argument is None else "..."


def _log_of_a_repeated_call(name: str, args: Sequence[Any]) -> str:
    """What cuBLASLt logs about a call, without the time and process that each line starts with.

    A file and not a callback: a callback would need the GIL while cuBLASLt holds the lock of its log, and a thread
    that waits for this lock with the GIL held (in another package) would wait for ever.
    """
    if any(os.environ.get(variable) for variable in _LOG_VARIABLES):
        return ""
    libc = ctypes.CDLL(None)
    libc.tmpfile.restype = ctypes.c_void_p
    with _log_lock:
        file = ctypes.c_void_p(libc.tmpfile())
        if not file:
            return ""
        try:
            bind("cublasLtLoggerSetFile")(file)
            bind("cublasLtLoggerSetMask")(_LOG_EVERYTHING)
            try:
                bind(name)(*args)
            finally:
                bind("cublasLtLoggerSetMask")(0)
                bind("cublasLtLoggerSetFile")(ctypes.c_void_p.in_dll(libc, "stdout"))  # where it goes by default
            libc.rewind(file)
            text = ctypes.create_string_buffer(_LOG_LIMIT)
            libc.fread.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p)
            libc.fread(text, 1, _LOG_LIMIT - 1, file)
        finally:
            libc.fclose(file)
    lines = (re.sub(r"^(\[[^]]*\]){3}", "", line) for line in text.value.decode(errors="replace").splitlines())
    return "\n".join(line for line in lines if line.strip() and "[cublasLtLogger" not in line)
