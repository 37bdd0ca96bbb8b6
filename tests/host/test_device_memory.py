# SPDX-License-Identifier: Apache-2.0
"""Whose memory is taken, on which device and stream, and what a failure says. Pools are stand-ins."""

from __future__ import annotations

import ctypes
import gc
import sys
import weakref
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from nvmath_device.errors import (
    ArgumentTypeError,
    DeviceMemoryError,
    DriverError,
    InvalidArgumentError,
    MissingDependencyError,
    NvmathDeviceError,
)
from nvmath_device.host import device_memory
from nvmath_device.host.array_view import Device
from nvmath_device.host.device_memory import Memory, memory_of
from tests.host import fakes

GPU = Device("cuda", 1)


class Current:
    """Which device is current, for whoever looks while memory is taken."""

    index = 0


class FakeOnDevice:
    def __init__(self, index):
        self.index = index

    def __enter__(self):
        self.before, Current.index = Current.index, self.index

    def __exit__(self, *_):
        Current.index = self.before


class Stream(SimpleNamespace):
    """Of cuda.core."""


@pytest.fixture(autouse=True)
def cuda(monkeypatch):
    """A driver with 3 of 5 GiB free, cuda.core's Stream, and devices that can be made current."""
    made = SimpleNamespace(cuMemGetInfo=lambda: (fakes.Status(0), 3 << 30, 5 << 30))
    core = ModuleType("cuda.core")
    core.Stream = SimpleNamespace(from_handle=lambda handle: Stream(handle=handle))
    monkeypatch.setitem(sys.modules, "cuda.core", core)
    monkeypatch.setattr(device_memory, "bindings", lambda: made)
    monkeypatch.setattr(device_memory, "on_device", FakeOnDevice)
    return made


class Buffer:
    """Memory with its address under any name."""

    def __init__(self, **address):
        self.__dict__.update(address)


# -- libraries ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("package", ["numpy", "jax", "numba", "cuda.core", "generic"])
def test_libraries_without_a_pool_for_us_take_cuda_cores(monkeypatch, package):
    asked = []

    def allocate(nbytes, device, stream):
        asked.append((nbytes, device, stream, Current.index))
        return Buffer(handle=0x400)

    monkeypatch.setattr(device_memory, "allocate_with_cuda_core", allocate)
    memory = memory_of(package, GPU)(1000, 77)
    assert (memory.ptr, memory.nbytes, type(memory.owner)) == (0x400, 1000, Buffer)
    assert asked == [(1000, GPU, 77, 1)]
    assert Current.index == 0


@pytest.mark.parametrize(("device", "stream"), [(1, 7), (0, 7), (1, 9), (0, 9)])
def test_cupy_is_asked_on_the_right_device_and_stream(monkeypatch, device, stream):
    """It starts on device 1 and stream 7."""
    cupy = fakes.fake_cupy(current_device=1, current_stream=7)

    def alloc(nbytes):
        cupy.log.append((nbytes, cupy.state.device, cupy.state.stream))
        return Buffer(ptr=0x1200)

    cupy.cuda.alloc = alloc
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    memory = memory_of("cupy", Device("cuda", device))(500, stream)
    assert (memory.ptr, memory.nbytes) == (0x1200, 500)
    assert cupy.log == [(500, device, stream)]
    assert (cupy.state.device, cupy.state.stream) == (1, 7)


@pytest.mark.parametrize("stream", [9, 11])
def test_torch_is_asked_for_bytes_on_the_right_device_and_stream(monkeypatch, stream):
    torch = fakes.fake_torch(current_stream=9)
    monkeypatch.setitem(sys.modules, "torch", torch)
    memory = memory_of("torch", GPU)(500, stream)
    assert torch.log == [("empty_strided", (500,), (1,), "cuda", 1, stream)]
    assert (memory.ptr, memory.owner.dtype) == (0x9000, torch.uint8)
    assert torch.state.stream == 9


def test_both_handles_of_the_default_stream_are_torchs_current_one(monkeypatch):
    torch = fakes.fake_torch(current_stream=0)
    torch.cuda.stream = None  # not to be entered
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert memory_of("torch", GPU)(500, 1).nbytes == 500


def test_no_bytes_ask_nobody():
    def refuses(size, stream):
        raise AssertionError("asked")

    assert memory_of("numpy", GPU, SimpleNamespace(memalloc_async=refuses))(0, 5) == Memory(0, 0, None)


# -- the user's allocator -----------------------------------------------------------------------------------


class PeersAsync:
    def memalloc_async(self, size, stream):
        self.asked = size, stream.handle, Current.index
        return Buffer(device_ptr=0x300)


class PeersPlain:
    def memalloc(self, size):
        self.asked = size, "no stream", Current.index
        return Buffer(device_pointer=0x300)


class WithStream:
    def memalloc(self, size, stream):
        self.asked = size, stream.handle, Current.index
        return Buffer(ptr=0x300)


class Resource:
    """A MemoryResource of cuda.core."""

    def allocate(self, size, *, stream):
        self.asked = size, stream.handle, Current.index
        return Buffer(handle=ctypes.c_void_p(0x300))


@pytest.mark.parametrize("kind", [PeersAsync, PeersPlain, WithStream, Resource])
@pytest.mark.parametrize("package", ["cupy", "torch", "numpy"])
def test_every_kind_of_allocator_goes_before_the_library(kind, package):
    allocator = kind()
    memory = memory_of(package, GPU, allocator)(123, 55)
    assert (memory.ptr, memory.nbytes, type(memory.owner)) == (0x300, 123, Buffer)
    assert allocator.asked == (123, "no stream" if kind is PeersPlain else 55, 1)


@pytest.mark.parametrize("wrong", [3, "pool", object(), np.empty(3), PeersAsync], ids=lambda wrong: str(wrong)[:9])
def test_what_is_no_allocator_is_refused_at_once(wrong):
    with pytest.raises(
        ArgumentTypeError, match=r"^options\.allocator: .*(give None .*memalloc_async|give an object of)"
    ):
        memory_of("numpy", GPU, wrong)


@pytest.mark.parametrize("answer", [None, 0x400, Buffer(address=0x400)], ids=["None", "int", "no address"])
def test_an_allocator_must_give_an_owner_with_an_address(answer):
    with pytest.raises(ArgumentTypeError, match=r"options\.allocator: .* gave a .*device_ptr, device_pointer, ptr"):
        memory_of("numpy", GPU, SimpleNamespace(memalloc=lambda size: answer))(8, 0)


@pytest.mark.parametrize("ptr", [8, 0x480, 0x7F0000000001])
def test_badly_aligned_memory_is_refused(ptr):
    with pytest.raises(InvalidArgumentError, match=f"{ptr:#x} for 8 bytes on cuda:1, the workspace; .*multiple of 256"):
        memory_of("numpy", GPU, SimpleNamespace(memalloc=lambda size: Buffer(ptr=ptr)), purpose="the workspace")(8, 0)


def test_memory_lives_as_long_as_its_owner_is_held():
    taken = memory_of("numpy", GPU, PeersAsync())(8, 0)
    alive = weakref.ref(taken.owner)
    gc.collect()
    assert alive() is not None
    del taken
    gc.collect()
    assert alive() is None


def test_an_allocator_needs_cuda_core_for_its_stream(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    with pytest.raises(MissingDependencyError, match="pip install cuda-core"):
        memory_of("numpy", GPU, PeersAsync())(8, 0)


# -- failures -----------------------------------------------------------------------------------------------

TorchOutOfMemory = fakes.class_in("torch", "OutOfMemoryError", RuntimeError)
CudaCoreError = fakes.class_in("cuda.core._utils.cuda_utils", "CUDAError", Exception)
CupyOutOfMemory = fakes.class_in("cupy.cuda.memory", "OutOfMemoryError", MemoryError)


def raising(error):
    def memalloc(size):
        raise error

    return SimpleNamespace(memalloc=memalloc)


OUT_OF_MEMORY = [
    TorchOutOfMemory("CUDA out of memory. Tried to allocate 20 GiB"),
    CupyOutOfMemory("Out of memory allocating 1 bytes"),
    CudaCoreError("CUDA_ERROR_OUT_OF_MEMORY: The API call failed"),
    MemoryError(),
]


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=lambda error: type(error).__name__)
def test_r103_too_little_memory_says_how_much_for_what_and_what_is_free(error):
    with pytest.raises(DeviceMemoryError) as raised:
        memory_of("numpy", GPU, raising(error), purpose="a copy of b")(21_474_836_480, 0)
    text = str(raised.value)
    assert text.startswith("a copy of b: 21,474,836,480 bytes (20.0 GiB) on cuda:1 could not be had from options.alloc")
    assert "has 3,221,225,472 bytes (3.0 GiB) free of 5,368,709,120 bytes (5.0 GiB)" in text
    assert raised.value.__cause__ is error
    assert isinstance(raised.value, MemoryError)
    assert isinstance(raised.value, NvmathDeviceError)


@pytest.mark.parametrize("error", [*OUT_OF_MEMORY, RuntimeError("CUDA error: an illegal memory access")], ids=str)
def test_r103_a_pool_that_fails_because_of_an_earlier_kernel_is_not_called_full(cuda, error):
    def cuMemGetInfo():
        return fakes.Status(700), 0, 0

    cuda.cuMemGetInfo = cuMemGetInfo
    with pytest.raises(DriverError, match=r"an earlier kernel failed: .*status 700"):
        memory_of("numpy", GPU, raising(error))(8, 0)


def test_without_a_driver_to_ask_the_rest_is_still_said(cuda):
    def cuMemGetInfo():
        raise RuntimeError("no driver")

    cuda.cuMemGetInfo = cuMemGetInfo
    with pytest.raises(DeviceMemoryError, match=r"^temporary memory: 8 bytes on cuda:1 could not be had from"):
        memory_of("numpy", GPU, raising(MemoryError()))(8, 0)


@pytest.mark.parametrize("error", [KeyError("pool"), RuntimeError("pool is closed")], ids=repr)
def test_other_errors_of_an_allocator_pass_with_a_note(error):
    with pytest.raises(type(error)) as raised:
        memory_of("numpy", GPU, raising(error), purpose="the workspace")(2048, 0)
    assert raised.value is error
    assert error.__notes__ == [
        "raised by options.allocator, a SimpleNamespace when asked for 2,048 bytes (2.0 KiB) on cuda:1, the workspace"
    ]


def test_our_own_errors_pass_as_they_are():
    error = MissingDependencyError("install it")
    with pytest.raises(MissingDependencyError) as raised:
        memory_of("numpy", GPU, raising(error))(8, 0)
    assert raised.value is error
    assert not hasattr(error, "__notes__")
