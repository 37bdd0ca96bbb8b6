# SPDX-License-Identifier: Apache-2.0
"""The one family of exceptions.

Every error this package raises on purpose is a :class:`NvmathDeviceError` *and* the built-in exception a
Python programmer would expect, so ``except ValueError`` keeps working.
"""

from __future__ import annotations


class NvmathDeviceError(Exception):
    """Root of the family. Never raised itself."""


class InvalidArgumentError(NvmathDeviceError, ValueError):
    """An argument has a value that is not allowed. The message names argument, value and what is allowed."""


class ArgumentTypeError(NvmathDeviceError, TypeError):
    """An argument has a type that is not allowed."""


class UnsupportedError(NvmathDeviceError, ValueError):
    """The request is well formed, but this libmathdx, target or device does not offer it."""


class CodegenError(NvmathDeviceError, RuntimeError):
    """libmathdx refused or failed. ``status`` is its numeric status, ``log`` its own text or an empty string."""

    def __init__(self, message: str, *, status: int | None = None, log: str = "") -> None:
        super().__init__(f"{message}\n--- libmathdx says ---\n{log}" if log else message)
        self.status = status
        self.log = log

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild_codegen_error, (self.args[0], self.status, self.log))


def _rebuild_codegen_error(text: str, status: int | None, log: str) -> CodegenError:
    error = CodegenError.__new__(CodegenError)
    RuntimeError.__init__(error, text)
    error.status, error.log = status, log
    return error


class LinkError(NvmathDeviceError, RuntimeError):
    """nvJitLink could not link. The message carries its log."""


class LaunchError(NvmathDeviceError, ValueError):
    """A launch cannot fit the device or the kernel; it was not made.

    ``kernel`` names the kernel. ``what`` is what is missing first (``"shared memory"``, ``"threads"``, ``"registers"``,
    ...), ``need`` and ``limit`` are how much of it the launch needs and how much there is.
    """

    def __init__(self, message: str, *, kernel: str = "", what: str = "", need: int = 0, limit: int = 0) -> None:
        super().__init__(message)
        self.kernel = kernel
        self.what = what
        self.need = need
        self.limit = limit

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild_launch_error, (self.args[0], self.kernel, self.what, self.need, self.limit))


def _rebuild_launch_error(text: str, kernel: str, what: str, need: int, limit: int) -> LaunchError:
    return LaunchError(text, kernel=kernel, what=what, need=need, limit=limit)


class HostLibraryError(NvmathDeviceError, RuntimeError):
    """cuBLASLt refused or failed. ``function`` names the call, ``status`` is its status, ``log`` its text or ``""``."""

    def __init__(self, message: str, *, function: str = "", status: int | None = None, log: str = "") -> None:
        super().__init__(f"{message}\n--- cuBLASLt says ---\n{log}" if log else message)
        self.function = function
        self.status = status
        self.log = log

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild_host_library_error, (self.args[0], self.function, self.status, self.log))


def _rebuild_host_library_error(text: str, function: str, status: int | None, log: str) -> HostLibraryError:
    error = HostLibraryError(text, function=function, status=status)
    error.log = log
    return error


class DriverError(NvmathDeviceError, RuntimeError):
    """A call of the CUDA driver failed.

    ``function`` names the call, ``status`` is its number. ``earlier`` tells that not this call is at fault but work
    that was put on the GPU before: CUDA reports that at whatever call comes next, and the context is lost.
    """

    def __init__(self, message: str, *, function: str = "", status: int | None = None, earlier: bool = False) -> None:
        super().__init__(message)
        self.function = function
        self.status = status
        self.earlier = earlier

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild_driver_error, (self.args[0], self.function, self.status, self.earlier))


def _rebuild_driver_error(text: str, function: str, status: int | None, earlier: bool) -> DriverError:
    return DriverError(text, function=function, status=status, earlier=earlier)


class DeviceMemoryError(NvmathDeviceError, MemoryError):
    """GPU memory could not be taken. The message says how many bytes, for what, and how many are free."""


class MissingDependencyError(NvmathDeviceError, ImportError):
    """A package or library is not installed. The message gives the command that installs it."""


class NoDeviceError(NvmathDeviceError, RuntimeError):
    """A CUDA device or driver is needed and there is none."""


class InvalidStateError(NvmathDeviceError, RuntimeError):
    """An object cannot do this now: it was freed, is not planned, or a CUDA graph is being captured."""


class KernelOnlyError(NvmathDeviceError, RuntimeError):
    """A function that only means something inside a ``@cuda.jit`` kernel was called on the host."""


class KernelTypingError(NvmathDeviceError, TypeError):
    """A call inside a kernel has wrong arguments. Numba shows its text as the typing error."""


class KernelExecutionError(NvmathDeviceError, RuntimeError):
    """A call inside a simulated or debugged kernel broke a rule that only running code can see."""
