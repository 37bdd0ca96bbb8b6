# SPDX-License-Identifier: Apache-2.0
"""Reading DLPack capsules, of any element type and device, without importing the library that made them.

NumPy's own reader knows neither bfloat16 nor fp8 nor GPUs. A capsule is left unconsumed and kept by the view:
when the last reference to it goes, its own destructor tells the producer.

Layout of the structures: dlpack.h 1.1.
"""

from __future__ import annotations

import ctypes
from typing import Any

from nvmath_device.errors import ArgumentTypeError
from nvmath_device.host.array_view import (
    CPU,
    ArrayView,
    Device,
    canonical_strides,
    compact_strides,
    cuda_device,
    storage_of_dlpack,
)  # fmt: skip

CPU_KINDS = (1, 3)  # kDLCPU, kDLCUDAHost (pinned)
CUDA_KINDS = (2, 13)  # kDLCUDA, kDLCUDAManaged
LEGACY_DEFAULT_STREAM = 1  # DLPack forbids 0, which is ambiguous
READ_ONLY, IS_COPIED = 1, 2  # flags
NEWEST = (1, 1)


class Tensor(ctypes.Structure):
    """``DLTensor``. Strides are in elements and may be null: compact."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Versioned(ctypes.Structure):
    """``DLManagedTensorVersioned``."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    ]


_capsule_is = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def speaks_dlpack(x: Any) -> bool:
    kind = type(x)
    return hasattr(kind, "__dlpack__") and hasattr(kind, "__dlpack_device__")


def device_of(kind: int, index: int, argument: str) -> Device:
    """Raises ArgumentTypeError for what is neither a CPU nor a CUDA device."""
    if kind in CUDA_KINDS:
        return cuda_device(int(index))
    if kind in CPU_KINDS:
        return CPU
    raise ArgumentTypeError(
        f"{argument}: the array is on a device of DLPack kind {int(kind)}; accepted are arrays of CPUs and CUDA GPUs"
    )


def dlpack_device(device: Device) -> tuple[int, int]:
    """Kind and index, the other way round."""
    return (CPU_KINDS[0] if device.kind == "cpu" else CUDA_KINDS[0], device.index)


def read_dlpack(x: Any, argument: str, stream: int | None, package: str = "generic") -> ArrayView:
    """View of an object with ``__dlpack__`` and ``__dlpack_device__``.

    The producer orders its work before whatever follows on ``stream`` (a CUstream handle; ``None`` and 0: the
    legacy default stream).

    Raises:
        ArgumentTypeError: device or element type not accepted, or a capsule of an unknown kind.
        Exception: whatever the producer raises.
    """
    kind, index = x.__dlpack_device__()
    device = device_of(kind, index, argument)
    capsule = _capsule(x, {} if device is CPU else {"stream": int(stream or LEGACY_DEFAULT_STREAM)})
    flags = 0
    if _capsule_is(capsule, b"dltensor_versioned"):
        versioned = Versioned.from_address(_capsule_pointer(capsule, b"dltensor_versioned"))
        if versioned.major != NEWEST[0]:
            raise ArgumentTypeError(
                f"{argument}: DLPack version {versioned.major}.{versioned.minor} is not known; known are 0 and 1"
            )
        tensor, flags = versioned.tensor, versioned.flags
    elif _capsule_is(capsule, b"dltensor"):
        tensor = Tensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    else:
        raise ArgumentTypeError(f"{argument}: __dlpack__() of a {type(x).__name__} gave {capsule!r}, not a new capsule")
    return _read(tensor, flags, x, capsule, package, argument)


def _capsule(x: Any, arguments: dict[str, Any]) -> Any:
    try:
        return x.__dlpack__(max_version=NEWEST, **arguments)
    except (TypeError, NotImplementedError):  # a producer from before DLPack 1.0
        return x.__dlpack__(**arguments)


def _read(tensor: Tensor, flags: int, x: Any, capsule: Any, package: str, argument: str) -> ArrayView:
    element, is_complex, _ = storage_of_dlpack(tensor.code, tensor.bits, tensor.lanes, argument)
    ndim = tensor.ndim
    shape = tuple(tensor.shape[:ndim]) if ndim else ()
    if tensor.strides or not ndim:
        strides = canonical_strides(shape, tuple(tensor.strides[:ndim]) if ndim else ())
    else:
        strides = compact_strides(shape)
    return ArrayView(
        (tensor.data or 0) + tensor.byte_offset,
        shape,
        strides,
        element,
        is_complex,
        device_of(tensor.device_type, tensor.device_id, argument),
        package,
        bool(flags & (READ_ONLY | IS_COPIED)),  # what is written to a copy would be lost
        False,
        x,
        None,
        capsule,
    )
