# SPDX-License-Identifier: Apache-2.0
"""Results for operands whose library cannot make arrays: an array that every library can take over."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from nvmath_device.dtypes import ValueType
from nvmath_device.errors import MissingDependencyError
from nvmath_device.host.array_view import ArrayView, Device, type_name
from nvmath_device.host.current_device import on_device
from nvmath_device.host.dlpack import dlpack_device
from nvmath_device.host.dlpack_export import export
from nvmath_device.host.streams import LEGACY, StreamHandle, is_gone, order_after, wait_for_device


class Allocate(Protocol):
    """Takes GPU memory: an object that frees it when it dies, with its address as ``handle``."""

    def __call__(self, nbytes: int, device: Device, stream: int) -> Any: ...


def allocate_with_cuda_core(nbytes: int, device: Device, stream: int) -> Any:
    """From cuda.core's memory pool of the device, ordered on ``stream``. The device has to be current.

    The memory goes back in the order of that stream; if it is known to be destroyed by then, the host waits.
    """
    try:
        from cuda.core import Device as CoreDevice
        from cuda.core import Stream
    except ImportError as error:
        raise MissingDependencyError(
            "cuda.core is needed for GPU memory of operands without a library of their own: pip install cuda-core"
        ) from error
    on = getattr(stream, "core", None) or Stream.from_handle(int(stream))
    buffer = CoreDevice(device.index).memory_resource.allocate(nbytes, stream=on)
    return _Buffer(buffer, stream, device) if type(stream) is StreamHandle else buffer


class _Buffer:
    """A buffer of cuda.core on a stream that may be destroyed before it: cuda.core would still free it on that one."""

    def __init__(self, buffer: Any, stream: StreamHandle, device: Device) -> None:
        self.handle = int(buffer.handle)
        self._buffer, self._stream, self._device = buffer, stream, device
        self._is_gone, self._close = is_gone, _close  # bound now: __del__ may run very late

    def __del__(self) -> None:
        if self._is_gone(self._stream):  # also where the garbage collector finds both, and is about to destroy it
            self._close(self._buffer, self._device)


def _close(buffer: Any, device: Device) -> None:
    from cuda.core import Stream

    with on_device(device.index):
        wait_for_device()
        buffer.close(Stream.from_handle(LEGACY))


class CudaArray:
    """An array in GPU memory that speaks DLPack and the CUDA Array Interface, and does nothing else.

    ``torch.from_dlpack(x)``, ``cupy.from_dlpack(x)``, ``jax.dlpack.from_dlpack(x)`` and Numba kernels take it
    without a copy. It is ordered: DLPack consumers wait on their stream for the work on ``stream``, and the CUDA
    Array Interface names that stream.

    Attributes:
        shape: extents.
        strides: in elements; an axis of extent 1 has 0.
        dtype: NumPy's, or that of ml_dtypes.
        ptr: address.
        view: all of these as the host layer knows them.
        device: ``Device("cuda", index)``.
        stream: handle of the stream on which it is made. Streams other than CuPy's and Numba's must stay alive as long
            as the array.
    """

    def __init__(self, memory: Any, operand: ArrayView, stream: int) -> None:
        self.view = operand._replace(owner=memory)
        self._stream = stream

    @property
    def stream(self) -> int:
        if is_gone(self._stream):
            with on_device(self.device.index):
                wait_for_device()
            self._stream = LEGACY
        return self._stream

    @property
    def shape(self) -> tuple[int, ...]:
        return self.view.shape

    @property
    def strides(self) -> tuple[int, ...]:
        return self.view.strides

    @property
    def ptr(self) -> int:
        return self.view.ptr

    @property
    def device(self) -> Device:
        return self.view.device

    @property
    def ndim(self) -> int:
        return self.view.ndim

    @property
    def size(self) -> int:
        return self.view.size

    @property
    def dtype(self) -> np.dtype[Any]:
        return ValueType(self.view.element, 2 if self.view.is_complex else 1).dtype

    def __repr__(self) -> str:
        v = self.view
        return f"CudaArray({type_name(v.element, v.is_complex)}, shape={v.shape}, {v.device})"

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack_device(self.view.device)

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A capsule; work that follows on ``stream`` comes after what makes the array. -1: not ordered.

        Raises:
            BufferError: a copy, or another device, is asked for.
        """
        if copy:
            raise BufferError("CudaArray makes no copies: call __dlpack__ without copy=True")
        if dl_device is not None and tuple(map(int, dl_device)) != self.__dlpack_device__():
            raise BufferError(f"the array is on {self.device} and is not moved: call __dlpack__ without dl_device")
        if stream != -1 and self.device.kind == "cuda":
            order_after(1 if stream is None else int(stream), self.stream)
        return export(self.view, versioned=max_version is not None and max_version[0] >= 1)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Absent for bfloat16, fp8 and half-precision complex numbers, for which it has no name."""
        dtype = self.dtype
        if dtype.kind == "V" or dtype.type.__module__ != "numpy":
            raise AttributeError(f"__cuda_array_interface__ has no name for {dtype}; use DLPack")
        v = self.view
        return {
            "version": 3,
            "typestr": dtype.str,
            "shape": v.shape,
            "strides": tuple(s * v.itemsize for s in v.strides),
            "data": (v.ptr, v.readonly),
            "stream": self.stream or 1,  # 0 is not allowed, 1 is the same stream
        }
