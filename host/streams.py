# SPDX-License-Identifier: Apache-2.0
"""CUDA streams of any library as plain handles, and the order between two of them.

A handle is a ``CUstream`` as an integer; 0 and 1 are the legacy default stream, 2 is the per-thread one. No
array library is imported: current streams are asked of libraries that are loaded.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections import deque
from typing import Any

from nvmath_device.errors import ArgumentTypeError, DriverError, InvalidArgumentError, NvmathDeviceError
from nvmath_device.host.array_view import Device
from nvmath_device.host.driver import bindings, call

LEGACY_DEFAULT, LEGACY, PER_THREAD = 0, 1, 2
_OWNERS = ("cupy", "numba", "cuda.core")
_ACCEPTED = (
    "None (the current stream of the first operand's library), an object with __cuda_stream__(), a stream of "
    "CuPy, PyTorch or Numba, or a handle as an int"
)


def _nothing(_: object) -> None:
    pass


class StreamHandle(int):
    """The handle of a stream that its library destroys together with an object: it knows whether that is still there.

    A destroyed stream must not be named to the driver, which reads freed memory then.

    Attributes:
        owner: gives the object, or ``None`` when it is gone.
        core: the stream of cuda.core that this is of, kept alive; memory of cuda.core shares it. ``None`` for others.
    """

    def __new__(cls, handle: int, owner: Any) -> StreamHandle:
        self = super().__new__(cls, handle)
        # Python 3.14 lets a weak reference live until finalizers have run, unless it has a callback.
        self.owner = weakref.ref(owner, _nothing)
        self.core = owner if type(owner).__module__.startswith("cuda.core") else None
        return self

    owner: weakref.ref[Any]
    core: Any


def is_gone(handle: int) -> bool:
    """Whether the stream is known to be destroyed. Of a plain number nothing is known."""
    return type(handle) is StreamHandle and handle.owner() is None


def _handle_of(number: int, stream: Any) -> int:
    """The handle of a stream object, as a number."""
    kind = type(stream)
    owns = number > PER_THREAD and kind.__name__ == "Stream" and kind.__module__.startswith(_OWNERS)
    return StreamHandle(number, stream) if owns else number


def stream_handle(stream: Any, package: str, device: Device, argument: str = "stream") -> int:
    """The handle of a stream, whatever library it is of.

    ``None`` means the current stream of ``package`` on ``device``: of CuPy and PyTorch the stream that is current
    in this thread, of Numba its default stream, and for all others the legacy default stream. JAX has no current
    stream: its arrays are ordered through DLPack instead.

    The caller keeps the stream alive while work on it is pending, and one that is given as an integer or by an object
    of other libraries than CuPy, Numba and cuda.core as long as arrays that were made on it, and objects that were
    planned on it.

    Raises:
        ArgumentTypeError: not a stream.
        InvalidArgumentError: a stream of another device (where its library says of which it is), a negative
            handle, or an unknown version of the protocol.
    """
    if stream is None:
        return current_stream(package, device)
    if type(stream) is StreamHandle:
        return stream
    if type(stream) is int:
        return _checked(stream, stream, argument)
    _check_device(stream, device, argument)
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        # The protocol says method; early versions of cuda.core had a property.
        answer = protocol() if callable(protocol) else protocol
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise ArgumentTypeError(f"{argument}: __cuda_stream__ gave {answer!r}; it must give (0, handle)")
        version, handle = answer
        if version != 0:
            raise InvalidArgumentError(f"{argument}: __cuda_stream__ of version {version!r}; known is version 0")
    else:
        handle = _foreign_handle(stream, argument)
    return _handle_of(_checked(handle, stream, argument), stream)


def current_stream(package: str, device: Device) -> int:
    """Handle of the stream on which ``package`` would launch now, in this thread, on ``device``."""
    if package == "cupy":
        stream = sys.modules["cupy"].cuda.get_current_stream(device.index)
        return _handle_of(int(stream.ptr), stream)
    if package == "torch" and device.kind == "cuda":
        torch = sys.modules["torch"]
        raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # a tenth of the cost, but not public
        return int(raw(device.index) if raw else torch.cuda.current_stream(device.index).cuda_stream)
    if package == "numba":
        config = sys.modules.get("numba.cuda.core.config")
        return PER_THREAD if getattr(config, "CUDA_PER_THREAD_DEFAULT_STREAM", 0) else LEGACY_DEFAULT
    return LEGACY_DEFAULT


def same_stream(a: int, b: int) -> bool:
    """Whether two handles are one stream: 0 and 1 are."""
    return (a or LEGACY) == (b or LEGACY)


def _check_device(stream: Any, device: Device, argument: str) -> None:
    if device.kind != "cuda":
        return
    index = getattr(stream, "device_id", None)  # CuPy; -1 for the default streams
    if index is None:
        index = getattr(stream, "device_index", None)  # PyTorch
    if isinstance(index, int) and index >= 0 and index != device.index:
        raise InvalidArgumentError(
            f"{argument}: the stream is of cuda:{index} and the operands are on {device}; give a stream of {device}"
        )


def _foreign_handle(stream: Any, argument: str) -> Any:
    root = type(stream).__module__.partition(".")[0]
    if root == "torch" and hasattr(stream, "cuda_stream"):
        return stream.cuda_stream
    if root == "cupy" and hasattr(stream, "ptr"):
        return stream.ptr
    if root == "numba" and hasattr(stream, "handle"):
        return getattr(stream.handle, "value", stream.handle) or LEGACY_DEFAULT
    if type(stream).__module__.startswith("cuda.bindings"):
        return stream
    if hasattr(type(stream), "__index__") and not isinstance(stream, bool):
        return stream
    raise ArgumentTypeError(f"{argument}: {stream!r} is a {type(stream).__name__}, not a stream; give {_ACCEPTED}")


def _checked(handle: Any, stream: Any, argument: str) -> int:
    try:
        number = int(handle)
    except (TypeError, ValueError):
        raise ArgumentTypeError(f"{argument}: {stream!r} has the handle {handle!r}, which is not an integer") from None
    if number < 0:
        raise InvalidArgumentError(f"{argument}: the handle {number} is negative; give {_ACCEPTED}")
    return number


# -- order --------------------------------------------------------------------------------------------------


_DEAD = (400, 709)  # INVALID_HANDLE, CONTEXT_IS_DESTROYED


def call_on_stream(function: Any, *arguments: Any) -> Any:
    """:func:`driver.call` of a function that takes a user's stream, and no other handle that could be wrong.

    Raises:
        InvalidArgumentError: the driver does not take the stream.
        DriverError, NoDeviceError: as :func:`driver.call`.
    """
    try:
        return call(function, *arguments)
    except DriverError as error:
        if error.status not in _DEAD:
            raise
        raise InvalidArgumentError(f"stream: {error}; is the stream alive, and of the current device?") from error


def order_after(consumer: int, producer: int) -> None:
    """What follows on ``consumer`` runs after what is on ``producer`` now. The host does not wait.

    The streams' device must be current, and it may be recorded into a CUDA graph. If the producer is known to be
    destroyed, the host waits for the device.
    """
    if is_gone(producer):
        wait_for_device()
        return
    if same_stream(consumer, producer):
        return
    driver = bindings()
    event = _record(driver, producer)
    try:
        call_on_stream(driver.cuStreamWaitEvent, consumer, event, 0)
    finally:
        call(driver.cuEventDestroy, event)


def wait_for_device() -> None:
    """Wait until the current device has done all that it was given, on streams that are destroyed by now, too.

    Raises:
        DriverError: something failed, or a stream captures a graph.
    """
    call(bindings().cuCtxSynchronize)


def _record(driver: Any, stream: int) -> Any:
    event = call(driver.cuEventCreate, int(driver.CUevent_flags.CU_EVENT_DISABLE_TIMING))
    try:
        call_on_stream(driver.cuEventRecord, event, stream)
    except NvmathDeviceError:
        driver.cuEventDestroy(event)  # whatever it answers: the first error is the one to report
        raise
    return event


class Retained:
    """Keeps objects alive until the GPU has passed a point of a stream, without waiting for it.

    For memory whose library does not know of our stream: once the last reference goes, JAX or a foreign pool may
    hand the memory to others at once. Objects are released by later calls, so the last ones stay until
    :meth:`release_done` or :meth:`clear`. Not for streams that capture a graph. Thread-safe.
    """

    def __init__(self) -> None:
        self._pending: deque[tuple[Any, Any]] = deque()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._pending)

    def keep(self, stream: int, *objects: Any) -> None:
        """Keep ``objects`` until all that is on ``stream`` now is done. The stream's device must be current."""
        self.release_done()
        event = _record(bindings(), stream)
        with self._lock:
            self._pending.append((event, objects))

    def release_done(self) -> None:
        """Let go of what is done, oldest first. The first that is not stops the search."""
        driver = bindings()
        done = []
        with self._lock:
            while self._pending and _is_done(driver, self._pending[0][0]):
                done.append(self._pending.popleft())
        for event, _ in done:
            call(driver.cuEventDestroy, event)

    def clear(self) -> None:
        """Wait for everything and let go of it."""
        driver = bindings()
        with self._lock:
            pending, self._pending = self._pending, deque()
        for event, _ in pending:
            call(driver.cuEventSynchronize, event)
            call(driver.cuEventDestroy, event)


def _is_done(driver: Any, event: Any) -> bool:
    """Asked in a way that does no harm to CUDA graphs that are being captured, in this thread or in others."""
    before = call(driver.cuThreadExchangeStreamCaptureMode, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)
    try:
        status, *_ = driver.cuEventQuery(event)
    finally:
        call(driver.cuThreadExchangeStreamCaptureMode, before)
    return bool(status != driver.CUresult.CUDA_ERROR_NOT_READY)


_retained = Retained()  # for all, because what is kept outlives the objects that keep it


def keep_until_done(handle: int, *objects: Any) -> None:
    """Keep objects until all that is on the stream now is done. The device must be current, the stream not capture."""
    _retained.keep(handle, *objects)
