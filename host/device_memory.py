# SPDX-License-Identifier: Apache-2.0
"""GPU memory for workspaces and temporaries: out of the operands' library's pool, cuda.core's, or a user's allocator.

:func:`memory_of` decides once whom to ask and returns a function that takes memory. Pools are asked in the order
of a stream: memory may be used by what follows on that stream, and goes back when the last reference to its owner
goes, for what follows on that stream again. Nobody waits.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from nvmath_device.errors import (
    ArgumentTypeError,
    DeviceMemoryError,
    DriverError,
    InvalidArgumentError,
    MissingDependencyError,
    NvmathDeviceError,
)
from nvmath_device.host.array_view import Device
from nvmath_device.host.cuda_array import allocate_with_cuda_core
from nvmath_device.host.current_device import on_device
from nvmath_device.host.driver import bindings, call
from nvmath_device.host.streams import current_stream, same_stream

ALIGNMENT = 256  # bytes; what cuBLASLt may assume of a workspace, and every pool known keeps to


class Memory(NamedTuple):
    """``nbytes`` bytes of GPU memory at the address ``ptr``, for as long as there is a reference to ``owner``.

    The stream that it was taken on must live as long, but for streams of CuPy and Numba: cuda.core gives memory back in
    its order.
    """

    ptr: int
    nbytes: int
    owner: Any


class Allocator(Protocol):
    """What a user may pass to take over allocation: any object with this method.

    Also accepted: ``memalloc(size, stream)``; ``memalloc(size)``, which is not told the stream, so its memory must be
    safe on any; and a ``MemoryResource`` of cuda.core, or whatever has its ``allocate(size, stream=stream)``.
    ``size`` is in bytes, ``stream`` is a ``cuda.core.Stream``. The device is current during the call.

    The answer owns the memory and has the address as one of ``device_ptr``, ``device_pointer``, ``ptr`` and
    ``handle``. It must be a multiple of 256.
    """

    def memalloc_async(self, size: int, stream: Any) -> Any: ...


Take = Callable[[int, int], tuple[Any, int]]  # bytes and the handle of a stream to owner and address

_ADDRESSES = ("device_ptr", "device_pointer", "ptr", "handle")


def memory_of(
    package: str, device: Device, allocator: Any = None, *, purpose: str = "temporary memory"
) -> Callable[[int, int], Memory]:
    """A function that takes memory on ``device``: bytes and the handle of a stream in, :class:`Memory` out.

    It comes from ``allocator`` where one is given (see :class:`Allocator`), from CuPy's allocator or PyTorch's caching
    allocator for ``package`` "cupy" and "torch", and else from cuda.core's pool of the device. Any device may be
    current. Contents are undefined. 0 bytes are the address 0, and nobody is asked.

    ``purpose`` says in errors what the memory is for.

    Raises, here:
        ArgumentTypeError: ``allocator`` is none.
    Raises, when memory is taken:
        DeviceMemoryError: there is not enough.
        DriverError: an earlier kernel failed; the pools report that as their own failure.
        InvalidArgumentError: the address is not a multiple of 256.
        MissingDependencyError: cuda.core is needed and not installed.
        Whatever else a user's allocator raises.
    """
    if allocator is not None:
        take, source = _of_user(allocator), f"options.allocator, a {type(allocator).__name__}"
    elif package == "cupy":
        take, source = _of_cupy(device.index), "CuPy's allocator"
    elif package == "torch":
        take, source = _of_torch(device), "PyTorch's allocator"
    else:
        take, source = _of_cuda_core(device), "cuda.core's memory pool"

    def taken(nbytes: int, stream: int) -> Memory:
        if nbytes == 0:
            return Memory(0, 0, None)
        with on_device(device.index):
            try:
                owner, ptr = take(nbytes, stream)
            except NvmathDeviceError:
                raise
            except Exception as error:
                _explain(error, nbytes, device, source, purpose)
                raise
        if ptr % ALIGNMENT:
            raise InvalidArgumentError(
                f"{source} gave the address {ptr:#x} for {nbytes} bytes on {device}, {purpose}; it must be a multiple "
                f"of {ALIGNMENT}, as all that CUDA's own allocation functions give"
            )
        return Memory(ptr, nbytes, owner)

    return taken


# -- sources ------------------------------------------------------------------------------------------------


def _of_cupy(index: int) -> Take:
    """CuPy takes memory from its current stream's part of the pool."""
    cuda = sys.modules["cupy"].cuda

    def take(nbytes: int, stream: int) -> tuple[Any, int]:
        if cuda.runtime.getDevice() == index and same_stream(stream, cuda.get_current_stream(index).ptr):
            pointer = cuda.alloc(nbytes)
        else:
            with cuda.Device(index), cuda.ExternalStream(stream):
                pointer = cuda.alloc(nbytes)
        return pointer, pointer.ptr

    return take


def _of_torch(device: Device) -> Take:
    """PyTorch's caching allocator gives memory to its current stream."""
    torch = sys.modules["torch"]
    place = torch.device("cuda", device.index)

    def take(nbytes: int, stream: int) -> tuple[Any, int]:
        if same_stream(stream, current_stream("torch", device)):
            bytes_ = torch.empty_strided((nbytes,), (1,), dtype=torch.uint8, device=place)
        else:
            with torch.cuda.stream(torch.cuda.ExternalStream(stream, device=place)):
                bytes_ = torch.empty_strided((nbytes,), (1,), dtype=torch.uint8, device=place)
        return bytes_, bytes_.data_ptr()

    return take


def _of_cuda_core(device: Device) -> Take:
    def take(nbytes: int, stream: int) -> tuple[Any, int]:
        buffer = allocate_with_cuda_core(nbytes, device, stream)
        return buffer, int(buffer.handle)

    return take


def _of_user(allocator: Any) -> Take:
    ask = _method_of(allocator)

    def take(nbytes: int, stream: int) -> tuple[Any, int]:
        owner = ask(nbytes, _stream(stream))
        for name in _ADDRESSES:
            ptr = getattr(owner, name, None)
            if ptr is not None:
                return owner, int(getattr(ptr, "value", ptr))  # Numba's may be of ctypes
        raise ArgumentTypeError(
            f"options.allocator: {type(allocator).__name__} gave a {type(owner).__name__}; it must give an object that "
            f"has the address as one of {', '.join(_ADDRESSES)}"
        )

    return take


def _stream(handle: int) -> Any:
    try:
        from cuda.core import Stream
    except ImportError as error:
        raise MissingDependencyError("cuda.core is needed to call options.allocator: pip install cuda-core") from error
    return Stream.from_handle(handle)


def _method_of(allocator: Any) -> Callable[[int, Any], Any]:
    if isinstance(allocator, type):
        raise ArgumentTypeError(
            f"options.allocator: {allocator.__name__} is a class; give an object of it, for example "
            f"{allocator.__name__}(device_id, logger) for one of nvmath-python"
        )
    if callable(getattr(allocator, "memalloc_async", None)):
        return allocator.memalloc_async
    if callable(getattr(allocator, "memalloc", None)):
        return allocator.memalloc if _takes_two(allocator.memalloc) else lambda size, stream: allocator.memalloc(size)
    if callable(getattr(allocator, "allocate", None)):
        return lambda size, stream: allocator.allocate(size, stream=stream)
    raise ArgumentTypeError(
        f"options.allocator: {allocator!r} is a {type(allocator).__name__}; give None (the operands' library), an "
        "object with memalloc_async(size, stream) or memalloc(size), or a cuda.core MemoryResource"
    )


def _takes_two(function: Any) -> bool:
    try:
        inspect.signature(function).bind(0, None)
    except TypeError:
        return False
    except ValueError:  # some functions of extension modules have no signature
        return True
    return True


# -- errors -------------------------------------------------------------------------------------------------


def _explain(error: Exception, nbytes: int, device: Device, source: str, purpose: str) -> None:
    """Raise what a failure really is, where that can be told; the device is current."""
    free = _free_of_total()
    words = f"{type(error).__name__} {error}".lower().replace("_", " ")
    if isinstance(error, MemoryError) or "out of memory" in words or "outofmemory" in words:
        raise DeviceMemoryError(
            f"{purpose}: {_bytes(nbytes)} on {device} could not be had from {source}{free}. Free arrays, let pools of "
            "other libraries in this process give back what they hold, or ask for less (memory_limit)"
        ) from error
    error.add_note(f"raised by {source} when asked for {_bytes(nbytes)} on {device}, {purpose}")


def _free_of_total() -> str:
    """Free memory in words. An earlier kernel's failure, which every call of the driver reports, is raised as such."""
    try:
        free, total = call(bindings().cuMemGetInfo)
    except DriverError as error:
        if error.earlier:
            raise
        return ""
    except NvmathDeviceError:
        return ""
    return f"; the device has {_bytes(free)} free of {_bytes(total)}"


def _bytes(count: int) -> str:
    """Such as "8,388,608 bytes (8.0 MiB)"."""
    size = float(count)
    for unit in ("", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{count:,} bytes" + (f" ({size:.1f} {unit})" if unit else "")
