# SPDX-License-Identifier: Apache-2.0
"""Arrays of the real libraries on a GPU: what is read, what is made, and in what order.

Each library that is installed is tested; cuda.core and Numba always are. Values written through one
library are read through another, so that a wrong address, stride or type cannot go unseen.
"""

from __future__ import annotations

import importlib
import importlib.util

import ml_dtypes
import numpy as np
import pytest

from nvmath_device import bfloat16, float8_e4m3fn, float16, float32, float64
from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError
from nvmath_device.host.array_results import hand_over, plan_empty
from nvmath_device.host.array_view import Device
from nvmath_device.host.arrays import view
from nvmath_device.host.streams import Retained, current_stream, order_after, stream_handle

GPU = Device("cuda", 0)
NAMES = {"cupy": "CuPy", "torch": "PyTorch", "jax": "JAX"}
INSTALLED = [name for name in NAMES if importlib.util.find_spec(name)]
needs = {
    name: pytest.mark.skipif(name not in INSTALLED, reason=f"needs a GPU with {title}") for name, title in NAMES.items()
}
CUPY, TORCH, JAX = (pytest.param(name, marks=needs[name]) for name in NAMES)
NUMPY = {"float32": np.float32, "complex64": np.complex64, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}


@pytest.fixture(scope="module", autouse=True)
def current_device():
    from cuda.core import Device as CoreDevice

    CoreDevice(0).set_current()


def driver_copy(host: np.ndarray, ptr: int, *, to_device: bool) -> None:
    """Plain bytes between the CPU and the GPU, after all work on the device."""
    from cuda.bindings import driver

    assert int(driver.cuCtxSynchronize()[0]) == 0
    if to_device:
        status = driver.cuMemcpyHtoD(ptr, host.ctypes.data, host.nbytes)
    else:
        status = driver.cuMemcpyDtoH(host.ctypes.data, ptr, host.nbytes)
    assert int(status[0]) == 0


def read_device(operand) -> np.ndarray:
    """The elements at the addresses that the view gives, read by the driver, not by the array's library."""
    low, high = operand.extent_bytes
    raw = np.empty(high - low, np.uint8)
    if raw.size:
        driver_copy(raw, low, to_device=False)
    dtype = np.dtype(
        f"complex{8 * operand.itemsize}" if operand.is_complex else getattr(ml_dtypes, operand.element.name, None)
        or operand.element.name
    )  # fmt: skip
    strides = [s * operand.itemsize for s in operand.strides]
    return np.ndarray(operand.shape, dtype, raw, operand.ptr - low, strides) if raw.size else np.empty(operand.shape)


def library_array(library: str, values: np.ndarray):
    """``values`` on the GPU in an array of the library."""
    if library == "cupy":
        import cupy

        return cupy.asarray(values)
    if library == "torch":
        import torch

        if values.dtype == ml_dtypes.bfloat16:
            return torch.from_numpy(values.astype(np.float32)).cuda().to(torch.bfloat16)
        return torch.from_numpy(values).cuda()
    if library == "jax":
        import jax

        return jax.device_put(values, jax.local_devices(backend="gpu")[0])
    from numba import cuda

    return cuda.to_device(values)


def values(name: str, shape=(6, 8)) -> np.ndarray:
    count = np.arange(np.prod(shape)).reshape(shape) % 100
    return (count + 1j * count[::-1] if name == "complex64" else count).astype(NUMPY[name])


@pytest.mark.parametrize("name", ["float32", "complex64", "float16"])
@pytest.mark.parametrize("library", [CUPY, TORCH, JAX, "numba"])
def test_contiguous_arrays(library, name):
    wanted = values(name)
    operand = view(library_array(library, wanted))
    assert (operand.package, operand.device) == (library, GPU)
    assert operand.strides == (8, 1)
    assert np.array_equal(read_device(operand), wanted)


@pytest.mark.parametrize("library", [TORCH, JAX])
def test_r099_bfloat16(library):
    wanted = values("bfloat16")
    operand = view(library_array(library, wanted))
    assert operand.element is bfloat16
    assert np.array_equal(read_device(operand), wanted)


@pytest.mark.parametrize("library", [CUPY, TORCH])
@pytest.mark.parametrize(
    "cut",
    [
        lambda x: x.T,
        lambda x: x[::2, 1:],
        lambda x: x[:, ::3].T,
        lambda x: x[2:3],
        lambda x: x[:0],
        lambda x: x[:, 3],
        lambda x: x.reshape(3, 2, 8)[:, 1],
    ],
)
def test_r094_slices(library, cut):
    wanted = values("float32")
    operand = view(cut(library_array(library, wanted)))
    assert operand.shape == cut(wanted).shape
    assert np.array_equal(read_device(operand), cut(wanted))


@needs["cupy"]
def test_r093_cupy_negative_and_zero_strides():
    import cupy

    wanted = values("float32")
    x = cupy.asarray(wanted)
    for cut in (lambda x: x[::-1], lambda x: x[:, ::-1], lambda x: x[::-2, ::-3]):
        operand = view(cut(x))
        assert min(operand.strides) < 0
        assert np.array_equal(read_device(operand), cut(wanted))
    broadcast = view(cupy.broadcast_to(x[0], (5, 8)))
    assert broadcast.strides == (0, 1)
    assert np.array_equal(read_device(broadcast), np.broadcast_to(wanted[0], (5, 8)))


@needs["torch"]
def test_torch_states():
    import torch

    z = torch.from_numpy(values("complex64")).cuda()
    assert view(z.conj()).conjugated
    assert not view(z.conj().resolve_conj()).conjugated
    assert np.array_equal(read_device(view(z.conj())), z.cpu().numpy())
    with pytest.raises(InvalidArgumentError, match="resolve_neg"):
        view(z.conj().imag)
    with pytest.raises(ArgumentTypeError):
        view(torch.eye(3).cuda().to_sparse())
    parameter = torch.nn.Parameter(torch.ones(3, 3, device="cuda"))
    assert view(parameter).package == "torch"
    fp8 = torch.ones(4, 4, device="cuda").to(torch.float8_e4m3fn)
    assert view(fp8).element is float8_e4m3fn


def test_cuda_core_memory():
    from cuda.core import Device as CoreDevice
    from cuda.core.utils import StridedMemoryView

    device = CoreDevice(0)
    stream = device.create_stream()
    buffer = device.memory_resource.allocate(48 * 4, stream=stream)
    stream.sync()
    wanted = values("float32")
    driver_copy(wanted, int(buffer.handle), to_device=True)
    operand = view(StridedMemoryView.from_buffer(buffer, (8, 6), (1, 8), dtype=np.dtype(np.float32)))
    assert (operand.package, operand.device, operand.strides) == ("cuda.core", GPU, (1, 8))
    assert np.array_equal(read_device(operand), wanted.T)
    with pytest.raises(ArgumentTypeError, match="from_buffer"):
        view(buffer)


def test_r098_cuda_array_interface_asks_the_driver_for_the_device():
    from numba import cuda

    inner = cuda.to_device(values("float32"))
    speaking = type("Speaking", (), {"__cuda_array_interface__": inner.__cuda_array_interface__})()
    operand = view(speaking)
    assert (operand.package, operand.device) == ("generic", GPU)
    assert np.array_equal(read_device(operand), values("float32"))
    entries = {**inner.__cuda_array_interface__, "data": (values("float32").ctypes.data, False)}
    with pytest.raises(ArgumentTypeError, match="which CUDA does not know"):
        view(type("OnTheCpu", (), {"__cuda_array_interface__": entries})())


# -- results ------------------------------------------------------------------------------------------------

ORDERS = {"C": (12, 4, 1), "F": (1, 2, 6), (1, 0, 2): (4, 8, 1)}


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("library", [CUPY, TORCH, JAX, "numba", "generic", "cuda.core"])
def test_results_are_of_the_library_and_hold_what_is_written(library, order):
    if library in INSTALLED:
        importlib.import_module(library)
    elif library == "numba":
        importlib.import_module("numba.cuda")
    wanted = values("float32", (2, 3, 4))
    made = plan_empty(library, (2, 3, 4), float32, device=GPU, order=order)(0)
    assert made.strides == ORDERS[order]
    raw = np.zeros(24, np.float32)
    np.lib.stride_tricks.as_strided(raw, (2, 3, 4), [4 * s for s in ORDERS[order]])[...] = wanted
    driver_copy(raw, made.ptr, to_device=True)
    result = hand_over(made)
    read = view(result)
    assert read.package == ("generic" if library in ("generic", "cuda.core") else library)
    assert np.array_equal(read_device(read), wanted)
    if library == "jax":
        assert np.array_equal(np.asarray(result), wanted)


@pytest.mark.parametrize("consumer", [CUPY, TORCH, JAX, "numba"])
@pytest.mark.parametrize("element", [float32, float64, float16])
def test_our_own_array_goes_everywhere(consumer, element):
    wanted = np.arange(6).reshape(2, 3).astype(element.name)
    made = plan_empty("generic", (2, 3), element, device=GPU)(0)
    driver_copy(wanted, made.ptr, to_device=True)
    if consumer == "numba":
        from numba import cuda

        back = cuda.as_cuda_array(made.owner).copy_to_host()
    elif consumer == "cupy":
        import cupy

        back = cupy.from_dlpack(made.owner).get()
    elif consumer == "torch":
        import torch

        back = torch.from_dlpack(made.owner).cpu().numpy()
    else:
        import jax

        jax.config.update("jax_enable_x64", True)
        back = np.asarray(jax.dlpack.from_dlpack(made.owner))
    assert back.dtype == wanted.dtype
    assert np.array_equal(back, wanted)


@needs["torch"]
@pytest.mark.parametrize("element", [bfloat16, float8_e4m3fn])
def test_our_own_array_has_narrow_types(element):
    import torch

    wanted = np.arange(6).reshape(2, 3).astype(element.dtype)
    made = plan_empty("generic", (2, 3), element, device=GPU)(0)
    driver_copy(wanted, made.ptr, to_device=True)
    back = torch.from_dlpack(made.owner)
    assert back.dtype == getattr(torch, element.name)
    assert np.array_equal(back.float().cpu().numpy(), wanted.astype(np.float32))


# -- streams ------------------------------------------------------------------------------------------------


@needs["cupy"]
def test_cupy_streams():
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    assert stream_handle(stream, "torch", GPU) == stream.ptr
    assert current_stream("cupy", GPU) == 0
    with stream:
        assert stream_handle(None, "cupy", GPU) == stream.ptr
        made = plan_empty("cupy", (4,), float32, device=GPU)(0)
        assert made.owner.device.id == 0


@needs["torch"]
def test_torch_streams():
    import torch

    stream = torch.cuda.Stream()
    assert stream_handle(stream, "cupy", GPU) == stream.cuda_stream
    with torch.cuda.stream(stream):
        assert stream_handle(None, "torch", GPU) == stream.cuda_stream
        plan_empty("torch", (4,), float32, device=GPU)(0)
        assert torch.cuda.current_stream() == stream


def test_cuda_core_and_numba_streams():
    from cuda.core import Device as CoreDevice
    from numba import cuda

    stream = CoreDevice(0).create_stream()
    assert stream_handle(stream, "cupy", GPU) == int(stream.handle)
    assert stream_handle(stream.handle, "cupy", GPU) == int(stream.handle)
    numba_stream = cuda.stream()
    assert stream_handle(numba_stream, "numpy", GPU) == int(numba_stream)
    assert stream_handle(cuda.default_stream(), "numpy", GPU) in (0, 1)


@needs["torch"]
def test_r096_order_between_streams():
    import torch

    producer, consumer = torch.cuda.Stream(), torch.cuda.Stream()
    x = torch.zeros(1 << 20, device="cuda")
    for repeat in range(1, 201):
        with torch.cuda.stream(producer):
            torch.cuda._sleep(200_000)
            x.fill_(repeat)
        order_after(consumer.cuda_stream, producer.cuda_stream)
        with torch.cuda.stream(consumer):
            assert x[-1].item() == repeat  # read on the consumer's stream, which nothing else is ordered with
        producer.wait_stream(consumer)


@needs["torch"]
def test_retained_until_the_gpu_is_done():
    import torch

    retained, stream = Retained(), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(2_000_000_000)
    retained.keep(stream.cuda_stream, object())
    retained.release_done()
    assert len(retained) == 1
    retained.clear()
    assert stream.query()
    assert len(retained) == 0
