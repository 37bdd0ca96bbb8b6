# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for GPU libraries where there is none: the attributes that the real ones document, over numbers.

Classes get the module names of the real ones, because that is how arrays are recognised. Nothing here shares
code with the package under test; the DLPack structures are written down a second time on purpose.
"""

from __future__ import annotations

import ctypes
import math
from types import ModuleType, SimpleNamespace

import numpy as np


def class_in(module: str, name: str, *bases: type, **members: object) -> type:
    """A class that says it was defined in ``module``."""
    return type(name, bases or (object,), {"__module__": module, **members})


# -- DLPack -------------------------------------------------------------------------------------------------


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("code_bits", ctypes.c_uint8 * 2),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    ]


class DLManagedTensor(ctypes.Structure):
    _fields_ = [("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class DLManagedTensorVersioned(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint32 * 2),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", DLTensor),
    ]


class DLPackArray:
    """An exporter with every field free. ``calls`` has the arguments of each ``__dlpack__`` call."""

    def __init__(
        self, *, ptr=0x1000, device=(2, 0), code_bits=(2, 32), lanes=1, shape=(3, 4), strides=(4, 1), byte_offset=0,
        version=(1, 1), flags=0, refuses=None,
    ):  # fmt: skip
        self.device, self.refuses, self.calls = device, refuses, []
        self.shape = (ctypes.c_int64 * len(shape))(*shape)
        self.strides = None if strides is None else (ctypes.c_int64 * len(strides))(*strides)
        tensor = DLTensor(
            ptr, (ctypes.c_int32 * 2)(*device), len(shape), (ctypes.c_uint8 * 2)(*code_bits), lanes,
            ctypes.addressof(self.shape), None if strides is None else ctypes.addressof(self.strides), byte_offset,
        )  # fmt: skip
        self.versioned = version is not None
        if self.versioned:
            self.managed = DLManagedTensorVersioned((ctypes.c_uint32 * 2)(*version), None, None, flags, tensor)
        else:
            self.managed = DLManagedTensor(tensor, None, None)

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **arguments):
        self.calls.append(arguments)
        if self.refuses:
            raise self.refuses
        if not self.versioned and "max_version" in arguments:
            raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        name = b"dltensor_versioned" if self.versioned else b"dltensor"
        self.name = name  # the capsule refers to it
        return new(ctypes.addressof(self.managed), name, None)


# -- CUDA Array Interface -----------------------------------------------------------------------------------


class CaiArray:
    def __init__(self, **entries):
        self.__cuda_array_interface__ = {
            "version": 3, "shape": (3, 4), "typestr": "<f4", "data": (0x1000, False), "strides": None, **entries
        }  # fmt: skip


# -- CuPy ---------------------------------------------------------------------------------------------------


def fake_cupy(current_stream=7, current_device=0):
    """A module with ``empty``, streams and devices; arrays are addresses with shapes."""
    log = []

    class Memory(SimpleNamespace):
        pass

    class ndarray(class_in("cupy._core.core", "_ndarray_base")):  # the name CuPy gives it
        __module__ = "cupy"

        def __init__(self, shape, dtype, strides, ptr=0x7000, device=0):
            self.shape, self.dtype, self.strides = tuple(shape), np.dtype(dtype), tuple(strides)
            self.data = Memory(ptr=ptr, device_id=device)

        def transpose(self, axes):
            return ndarray(
                [self.shape[a] for a in axes], self.dtype, [self.strides[a] for a in axes], self.data.ptr,
                self.data.device_id,
            )  # fmt: skip

    state = SimpleNamespace(device=current_device, stream=current_stream)

    def empty(shape, dtype=float, order="C"):
        log.append(("empty", state.device, state.stream))
        return ndarray(shape, dtype, np.empty(shape, dtype, order).strides, device=state.device)

    class Swap:
        def __init__(self, name, value):
            self.name, self.value, self.ptr = name, value, value

        def __enter__(self):
            self.before = getattr(state, self.name)
            setattr(state, self.name, self.value)

        def __exit__(self, *_):
            setattr(state, self.name, self.before)

    cupy = ModuleType("cupy")
    cupy.ndarray, cupy.empty, cupy.log, cupy.state = ndarray, empty, log, state
    cupy.cuda = SimpleNamespace(
        runtime=SimpleNamespace(getDevice=lambda: state.device),
        get_current_stream=lambda device=-1: SimpleNamespace(ptr=state.stream),
        Device=lambda index: Swap("device", index),
        ExternalStream=lambda ptr: Swap("stream", ptr),
    )
    return cupy


# -- PyTorch ------------------------------------------------------------------------------------------------


def fake_torch(current_stream=9, raw=False):
    torch = ModuleType("torch")
    log = []

    class dtype:
        def __init__(self, name):
            self.name = name

        def __repr__(self):
            return f"torch.{self.name}"

    def device(kind, index=None):
        return SimpleNamespace(type=kind, index=index)

    class Tensor(class_in("torch._C", "TensorBase")):
        __module__ = "torch"
        layout = "torch.strided"

        def __init__(
            self, shape, dtype, strides, *, device=None, ptr=0x9000, conj=False, neg=False, refuses=None
        ):  # fmt: skip
            self.shape, self.dtype, self._strides, self.ptr = shape, dtype, strides, ptr
            self.device = device or torch.device("cuda", 0)
            self.is_cuda = self.device.type == "cuda"
            self.conj, self.neg, self.refuses = conj, neg, refuses

        def get_device(self):
            return self.device.index if self.is_cuda else -1

        def data_ptr(self):
            if self.refuses:
                raise self.refuses
            return self.ptr

        def stride(self):
            return tuple(self._strides)

        def is_conj(self):
            return self.conj

        def is_neg(self):
            return self.neg

    def empty_strided(shape, strides, *, dtype, device):
        log.append(("empty_strided", tuple(shape), tuple(strides), device.type, device.index, state.stream))
        return Tensor(shape, dtype, strides, device=device)

    state = SimpleNamespace(stream=current_stream)

    class Use:
        def __init__(self, stream):
            self.stream = stream

        def __enter__(self):
            self.before, state.stream = state.stream, self.stream.cuda_stream

        def __exit__(self, *_):
            state.stream = self.before

    names = (
        "float16 bfloat16 float32 float64 float8_e4m3fn float8_e5m2 float8_e4m3fnuz "
        "int8 int16 int32 int64 uint8 uint16 complex32 complex64 complex128 bool qint8"
    )
    for name in names.split():
        setattr(torch, name, dtype(name))
    torch.Tensor, torch.device, torch.empty_strided, torch.log, torch.state = Tensor, device, empty_strided, log, state
    torch._C = SimpleNamespace(_cuda_getCurrentRawStream=lambda index: state.stream) if raw else SimpleNamespace()
    torch.cuda = SimpleNamespace(
        current_stream=lambda index: SimpleNamespace(cuda_stream=state.stream),
        stream=Use,
        ExternalStream=lambda ptr, device: SimpleNamespace(cuda_stream=ptr, device=device),
    )
    return torch


# -- others -------------------------------------------------------------------------------------------------


def numba_device_array(shape=(3, 4), dtype=np.float32, strides=None, ptr=0x5000, device=0, stream=0):
    """Subclassed as the real one is: DeviceNDArray out of DeviceNDArrayBase."""
    dtype = np.dtype(dtype)
    if strides is None:
        strides = tuple(dtype.itemsize * math.prod(shape[i + 1 :]) for i in range(len(shape)))
    base = class_in("numba.cuda.cudadrv.devicearray", "DeviceNDArrayBase")
    array = class_in("numba.cuda.cudadrv.devicearray", "DeviceNDArray", base)()
    array.shape, array.dtype, array.strides, array.stream = shape, dtype, strides, stream
    array.device_ctypes_pointer = ctypes.c_size_t(ptr)
    array.gpu_data = SimpleNamespace(context=SimpleNamespace(device=SimpleNamespace(id=device)))
    return array


def jax_array(devices=1, deleted=False, **dlpack):
    """DLPack and what is asked before it."""
    kind = class_in("jaxlib._jax", "ArrayImpl", DLPackArray)
    array = kind(**dlpack)
    array.waited = 0
    array.is_deleted = lambda: deleted
    array.devices = lambda: set(range(devices))

    def wait():
        array.waited += 1

    array.block_until_ready = wait
    return array


def strided_memory_view(**fields):
    view = class_in("cuda.core._memoryview", "StridedMemoryView")()
    defaults = {
        "ptr": 0x3000, "shape": (3, 4), "strides": None, "dtype": np.dtype("f4"), "device_id": 0,
        "is_device_accessible": True, "readonly": False,
    }  # fmt: skip
    view.__dict__.update(defaults, **fields)
    return view


# -- driver -------------------------------------------------------------------------------------------------


class Status(int):
    name = "CUDA_ERROR_INVALID_HANDLE"


class FakeDriver:
    """Events as integers; ``calls`` in order. ``done`` has the events the GPU has passed."""

    CUevent_flags = SimpleNamespace(CU_EVENT_DISABLE_TIMING=2)
    CUresult = SimpleNamespace(CUDA_ERROR_NOT_READY=Status(600))
    CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED=2)

    def __init__(self, failing=()):
        self.calls, self.done, self.events, self.failing = [], set(), 0, failing
        self.capture_mode = 0

    def _call(self, name, *arguments):
        self.calls.append((name, *arguments))
        return Status(400 if name in self.failing else 0)

    def cuEventCreate(self, flags):
        self.events += 1
        return self._call("create", flags), self.events

    def cuEventRecord(self, event, stream):
        return (self._call("record", event, stream),)

    def cuStreamWaitEvent(self, stream, event, flags):
        return (self._call("wait", stream, event, flags),)

    def cuEventDestroy(self, event):
        return (self._call("destroy", event),)

    def cuEventSynchronize(self, event):
        return (self._call("synchronize", event),)

    def cuCtxSynchronize(self):
        return (self._call("synchronize context"),)

    def cuThreadExchangeStreamCaptureMode(self, mode):
        before, self.capture_mode = self.capture_mode, mode
        return Status(0), before

    def cuEventQuery(self, event):
        return (Status(0) if event in self.done else self.CUresult.CUDA_ERROR_NOT_READY,)
