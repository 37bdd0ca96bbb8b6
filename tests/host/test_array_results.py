# SPDX-License-Identifier: Apache-2.0
"""New arrays in the operands' libraries, and the array that stands in where a library makes none."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from nvmath_device import bfloat16, float8_e4m3fn, float16, float32, float64, int8, tfloat32
from nvmath_device.errors import InvalidArgumentError, UnsupportedError
from nvmath_device.host import cuda_array, streams
from nvmath_device.host.array_results import hand_over, plan_empty
from nvmath_device.host.array_view import Device
from nvmath_device.host.arrays import view
from nvmath_device.host.cuda_array import CudaArray
from tests.host import fakes

GPU = Device("cuda", 1)

# order -> strides in elements of a (2, 3, 4) array, written by hand
ORDERS = {"C": (12, 4, 1), "F": (1, 2, 6), (1, 0, 2): (4, 8, 1), (0, 2, 1): (12, 1, 3), (2, 0, 1): (3, 1, 6)}


class Pool:
    """Hands out addresses, and notes what was asked."""

    def __init__(self):
        self.asked, self.memory = [], []

    def __call__(self, nbytes, device, stream):
        self.asked.append((nbytes, device, stream))
        memory = type("Buffer", (), {"handle": 0x100 * len(self.asked)})()
        self.memory.append(weakref.ref(memory))
        return memory


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_numpy(order):
    made = plan_empty("numpy", (2, 3, 4), bfloat16, order=order)(0)
    x = made.owner
    assert (type(x), x.dtype, x.shape) == (np.ndarray, np.dtype(ml_dtypes.bfloat16), (2, 3, 4))
    assert x.strides == tuple(2 * s for s in ORDERS[order])
    assert made.signature == view(x).signature
    assert (made.ptr, made.package) == (x.ctypes.data, "numpy")
    assert hand_over(made) is x


@pytest.mark.parametrize("shape", [(), (0, 4), (1, 5), (3, 1), (2, 0, 3), (1, 1, 1)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_numpy_shapes(shape, order):
    made = plan_empty("numpy", shape, float32, is_complex=True, order=order)(0)
    assert (made.owner.shape, made.owner.dtype) == (shape, np.complex64)
    assert made.signature == view(made.owner).signature


def test_every_call_makes_a_new_array():
    make = plan_empty("numpy", (2, 2), tfloat32)
    one, two = make(0), make(0)
    assert one.owner.dtype == np.float32
    assert one.owner is not two.owner
    assert not np.shares_memory(one.owner, two.owner)


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_cupy(monkeypatch, order):
    cupy = fakes.fake_cupy(current_stream=7, current_device=1)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    made = plan_empty("cupy", (2, 3, 4), float16, device=GPU, order=order)(7)
    assert made.owner.strides == tuple(2 * s for s in ORDERS[order])
    assert made.signature == view(made.owner).signature
    assert made.ptr == made.owner.data.ptr


@pytest.mark.parametrize(("device", "stream"), [(1, 7), (0, 7), (1, 3), (0, 3)])
def test_cupy_takes_memory_where_the_work_is(monkeypatch, device, stream):
    cupy = fakes.fake_cupy(current_stream=7, current_device=device)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    made = plan_empty("cupy", (2,), float32, device=GPU)(stream)
    assert cupy.log == [("empty", 1, stream)]
    assert made.owner.data.device_id == 1
    assert (cupy.state.device, cupy.state.stream) == (device, 7)


def test_legacy_default_stream_has_two_handles(monkeypatch):
    torch = fakes.fake_torch(current_stream=0)
    monkeypatch.setitem(sys.modules, "torch", torch)
    plan_empty("torch", (2,), float32, device=GPU)(1)
    assert torch.log[-1][-1] == 0


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("stream", [9, 4])
def test_torch(monkeypatch, order, stream):
    torch = fakes.fake_torch(current_stream=9)
    monkeypatch.setitem(sys.modules, "torch", torch)
    made = plan_empty("torch", (2, 3, 4), float8_e4m3fn, device=GPU, order=order)(stream)
    assert torch.log == [("empty_strided", (2, 3, 4), ORDERS[order], "cuda", 1, stream)]
    assert made.owner.dtype is torch.float8_e4m3fn
    assert made.signature == view(made.owner).signature
    assert torch.state.stream == 9


def test_torch_has_half_precision_complex_numbers_and_cpu_tensors(monkeypatch):
    torch = fakes.fake_torch()
    monkeypatch.setitem(sys.modules, "torch", torch)
    made = plan_empty("torch", (2,), float16, is_complex=True)(0)
    assert made.owner.dtype is torch.complex32
    assert made.owner.device.type == "cpu"


def test_numba(monkeypatch):
    log = []

    class Gpu:
        def __init__(self, index):
            self.index = index

        def __enter__(self):
            log.append(self.index)

        def __exit__(self, *_):
            log.append(None)

    def device_array(shape, dtype, strides):
        return fakes.numba_device_array(shape, dtype, strides, device=log[-1])

    cuda = ModuleType("numba.cuda")
    cuda.device_array, cuda.gpus = device_array, [Gpu(0), Gpu(1)]
    monkeypatch.setitem(sys.modules, "numba.cuda", cuda)
    made = plan_empty("numba", (2, 3), bfloat16, device=GPU, order="F")(0)
    assert made.owner.strides == (2, 4)
    assert made.signature == view(made.owner).signature
    assert log == [1, None]


def test_numbas_own_simulator():
    code = """
import numpy as np
from numba import cuda
from nvmath_device import float32
from nvmath_device.host.array_results import plan_empty
from nvmath_device.host.arrays import as_numpy, view
given = view(cuda.to_device(np.arange(6, dtype=np.float32).reshape(2, 3)))
made = plan_empty(given.package, (2, 3), float32, device=given.device, order="F")(0)
as_numpy(made)[:] = as_numpy(given)
print(given.package, type(made.owner).__name__, made.owner.strides, made.owner.copy_to_host().tolist())
"""
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.stdout.strip() == "numba FakeCUDAArray (4, 8) [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]", done.stderr


@pytest.mark.parametrize("package", ["generic", "cuda.core", "jax"])
@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_other_libraries_get_our_own_array(package, order):
    pool = Pool()
    made = plan_empty(package, (2, 3, 4), float32, is_complex=True, device=GPU, order=order, allocate=pool)(5)
    assert pool.asked == [(2 * 3 * 4 * 8, GPU, 5)]
    x = made.owner
    assert (type(x), x.shape, x.strides, x.dtype) == (CudaArray, (2, 3, 4), ORDERS[order], np.complex64)
    assert (x.ptr, x.device, x.stream, x.ndim, x.size) == (0x100, GPU, 5, 3, 24)
    assert made.ptr == 0x100
    assert pool.memory[0]() is not None
    del x, made
    gc.collect()
    assert pool.memory[0]() is None


def test_memory_of_an_empty_array_is_still_an_address():
    pool = Pool()
    plan_empty("generic", (0, 4), float32, device=GPU, allocate=pool)(0)
    assert pool.asked == [(1, GPU, 0)]


def test_jax_takes_over_what_was_written(monkeypatch):
    taken = []
    jax = ModuleType("jax")
    jax.dlpack = SimpleNamespace(from_dlpack=lambda x: taken.append(x) or "a jax array")
    monkeypatch.setitem(sys.modules, "jax", jax)
    made = plan_empty("jax", (2, 3), bfloat16, device=GPU, allocate=Pool())(5)
    assert hand_over(made) == "a jax array"
    assert taken == [made.owner]


def test_on_the_cpu_other_libraries_get_numpys_array(monkeypatch):
    assert type(plan_empty("generic", (2,), int8)(0).owner) is np.ndarray
    assert plan_empty("cuda.core", (2,), int8)(0).package == "numpy"
    jax = ModuleType("jax")
    jax.local_devices = lambda backend: [f"{backend} 0", f"{backend} 1"]
    jax.device_put = lambda x, device: (x, device)
    monkeypatch.setitem(sys.modules, "jax", jax)
    made = plan_empty("jax", (2,), bfloat16)(0)
    assert hand_over(made) == (made.owner, "cpu 0")


@pytest.mark.parametrize("order", ["K", "", (0, 0), (0,), (0, 2), (1, 2)])
def test_orders_that_are_none(order):
    with pytest.raises(
        InvalidArgumentError, match=r"^order: .* is not allowed; give 'C', 'F' or a permutation of the 2"
    ):
        plan_empty("numpy", (2, 3), float32, order=order)


def test_types_that_a_library_does_not_have(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", fakes.fake_cupy())
    monkeypatch.setitem(sys.modules, "torch", fakes.fake_torch())
    for package, element, is_complex, words in (
        ("numpy", float16, True, "complex32"),
        ("cupy", float16, True, "complex32"),
        ("cupy", float8_e4m3fn, False, "CuPy has no fp8"),
        ("torch", bfloat16, True, "complex of bfloat16"),
    ):
        device = Device("cpu") if package == "numpy" else GPU
        with pytest.raises(UnsupportedError, match=f"^d: .*{words}"):
            plan_empty(package, (2,), element, is_complex=is_complex, device=device, argument="d")
    with pytest.raises(InvalidArgumentError, match=r"^d: CuPy has no arrays on the CPU"):
        plan_empty("cupy", (2,), float32, argument="d")


# -- our own array, over CPU memory so that its readers can be NumPy's --------------------------------------


def over_numpy(x, **fields):
    return CudaArray(x, view(x)._replace(**fields), 0)


def test_capsules_are_what_numpy_expects():
    x = np.arange(24.0).reshape(2, 3, 4)[:, ::-1, ::2]
    ours = over_numpy(x)
    for versioned in (False, True):
        holder = SimpleNamespace(
            __dlpack__=lambda v=versioned, **_: ours.__dlpack__(max_version=(1, 0) if v else None),
            __dlpack_device__=ours.__dlpack_device__,
        )
        back = np.from_dlpack(holder)
        assert np.shares_memory(back, x)
        assert np.array_equal(back, x)
    frozen = np.from_dlpack(over_numpy(x, readonly=True))
    assert not frozen.flags.writeable


def test_capsules_keep_memory_alive_and_let_it_go():
    class Memory:
        pass

    x = np.arange(5.0)
    memory = Memory()
    died = weakref.ref(memory)
    ours = CudaArray(memory, view(x), 0)
    taken, unused = np.from_dlpack(ours), ours.__dlpack__()
    versioned = ours.__dlpack__(max_version=(1, 1))
    del memory, ours
    gc.collect()
    del taken
    gc.collect()
    assert died() is not None
    del unused
    gc.collect()
    assert died() is not None
    del versioned
    gc.collect()
    assert died() is None


def test_capsules_of_types_that_numpy_does_not_read():
    x = np.arange(6).reshape(2, 3).astype(ml_dtypes.bfloat16)
    capsule = over_numpy(x).__dlpack__()
    holder = type("H", (), {"__dlpack__": lambda s, **_: capsule, "__dlpack_device__": lambda s: (1, 0)})()
    operand = view(holder)
    assert (operand.element, operand.ptr, operand.strides) == (bfloat16, x.ctypes.data, (3, 1))


def test_consumers_are_ordered_after_the_result(monkeypatch):
    driver = fakes.FakeDriver()
    monkeypatch.setattr(streams, "bindings", lambda: driver)
    made = plan_empty("generic", (2, 3), bfloat16, device=GPU, allocate=Pool())(5)
    made.owner.__dlpack__(stream=-1)
    made.owner.__dlpack__(stream=5)
    assert driver.calls == []
    for stream, waiting in ((8, 8), (None, 1)):
        driver.calls.clear()
        made.owner.__dlpack__(stream=stream)
        assert [c[0] for c in driver.calls] == ["create", "record", "wait", "destroy"]
        assert (driver.calls[1][2], driver.calls[2][1]) == (5, waiting)


def test_dlpack_does_not_copy_or_move():
    ours = plan_empty("generic", (2, 3), float64, device=GPU, allocate=Pool())(0).owner
    assert ours.__dlpack_device__() == (2, 1)
    ours.__dlpack__(dl_device=(2, 1), copy=False, stream=1)
    with pytest.raises(BufferError, match="no copies"):
        ours.__dlpack__(copy=True)
    with pytest.raises(BufferError, match="cuda:1"):
        ours.__dlpack__(dl_device=(1, 0))


def test_cuda_array_interface_of_our_own_array():
    ours = plan_empty("generic", (2, 3), float32, device=GPU, order="F", allocate=Pool())(5).owner
    assert ours.__cuda_array_interface__ == {
        "version": 3, "typestr": "<f4", "shape": (2, 3), "strides": (4, 8), "data": (0x100, False), "stream": 5
    }  # fmt: skip
    legacy = plan_empty("generic", (2, 3), float32, device=GPU, allocate=Pool())(0).owner
    assert legacy.__cuda_array_interface__["stream"] == 1
    for element in (bfloat16, float8_e4m3fn):
        made = plan_empty("generic", (2, 3), element, device=GPU, allocate=Pool())(5)
        assert not hasattr(made.owner, "__cuda_array_interface__")


def test_repr():
    assert repr(over_numpy(np.zeros((2, 3), np.complex64))) == "CudaArray(complex64, shape=(2, 3), cpu)"


def test_cuda_core_is_asked_for_only_when_memory_is_needed(monkeypatch):
    asked = []

    class Resource:
        def allocate(self, nbytes, stream):
            asked.append((nbytes, stream))
            return SimpleNamespace(handle=0x40)

    use_core(monkeypatch, Resource())
    assert cuda_array.allocate_with_cuda_core(64, GPU, 5).handle == 0x40
    assert asked == [(64, ("stream", 5))]


def use_core(monkeypatch, resource):
    core = ModuleType("cuda.core")
    core.Device = lambda index: SimpleNamespace(memory_resource=resource, index=index)
    core.Stream = SimpleNamespace(from_handle=lambda handle: ("stream", handle))
    monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.core", core)


@pytest.mark.parametrize("end", ["stream first", "array first", "garbage"])
def test_memory_is_not_freed_on_a_destroyed_stream(monkeypatch, end):
    """cuMemFreeAsync crashes there. CuPy's streams are destroyed by __del__, which garbage collection calls first."""
    happened = []

    class Buffer:
        """One of cuda.core is freed on its stream when it dies without being closed."""

        handle = 0x40

        def close(self, stream):
            happened.append(("freed", stream))

    class CupyStream(fakes.class_in("cupy.cuda.stream", "Stream")):
        ptr = 9

        def __del__(self):
            happened.append("destroyed")

    CupyStream.__name__, CupyStream.__module__ = "Stream", "cupy.cuda.stream"
    driver = fakes.FakeDriver()
    monkeypatch.setattr(streams, "bindings", lambda: driver)
    monkeypatch.setattr(cuda_array, "on_device", lambda index: nullcontext())
    use_core(monkeypatch, SimpleNamespace(allocate=lambda nbytes, stream: Buffer()))
    stream = CupyStream()
    x = plan_empty("generic", (2, 3), float32, device=GPU)(streams.stream_handle(stream, "generic", GPU)).owner
    assert x.stream == 9
    if end == "array first":
        del x
        del stream
        assert happened == ["destroyed"]
        assert not driver.calls
        return
    if end == "garbage":
        cycle = [stream, x]
        cycle.append(cycle)
        del cycle, stream, x
        gc.collect()
    else:
        del stream
        assert x.__cuda_array_interface__["stream"] == x.stream == 1
        assert x.__dlpack__(stream=1)
        del x
    assert driver.calls.count(("synchronize context",)) == (1 if end == "garbage" else 2)
    assert sorted(map(str, happened)) == ["('freed', ('stream', 1))", "destroyed"]
