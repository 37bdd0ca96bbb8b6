# SPDX-License-Identifier: Apache-2.0
"""Reading arrays of each library, from stand-ins with the attributes that the real ones document.

``tests/gpu/host/test_arrays_gpu.py`` does the same with the real ones.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from nvmath_device import bfloat16, float8_e4m3fn, float8_e5m2, float16, float32, float64, int8
from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError
from nvmath_device.host import array_packages
from nvmath_device.host.array_view import CPU, Device
from nvmath_device.host.arrays import as_numpy, package_of, view
from nvmath_device.host.cuda_array import CudaArray
from tests.host import fakes


def test_cupy():
    cupy = fakes.fake_cupy()

    class Mine(cupy.ndarray):
        pass

    for kind in (cupy.ndarray, Mine):
        x = kind((3, 4), ml_dtypes.bfloat16, (2, -6), ptr=0x4000, device=1)
        operand = view(x)
        assert (operand.package, operand.device, operand.ptr) == ("cupy", Device("cuda", 1), 0x4000)
        assert (operand.strides, operand.element, operand.owner is x) == ((1, -3), bfloat16, True)


def test_torch():
    torch = fakes.fake_torch()
    parameter = type("Parameter", (torch.Tensor,), {"__module__": "torch.nn.parameter"})
    for kind in (torch.Tensor, parameter):
        operand = view(kind((3, 1), torch.bfloat16, (1, 50), device=torch.device("cuda", 2)))
        assert (operand.package, operand.device, operand.ptr) == ("torch", Device("cuda", 2), 0x9000)
        assert (operand.strides, operand.element, operand.conjugated) == ((1, 0), bfloat16, False)
    assert type(operand.shape) is tuple


@pytest.mark.parametrize(
    ("name", "element", "is_complex"),
    [
        ("complex32", float16, True), ("complex64", float32, True), ("complex128", float64, True),
        ("float8_e4m3fn", float8_e4m3fn, False), ("float8_e5m2", float8_e5m2, False), ("int8", int8, False),
    ],
)  # fmt: skip
def test_torch_types(name, element, is_complex):
    torch = fakes.fake_torch()
    operand = view(torch.Tensor((2, 2), getattr(torch, name), (2, 1)))
    assert (operand.element, operand.is_complex) == (element, is_complex)


def test_torch_states():
    torch = fakes.fake_torch()

    def tensor(name="complex64", **state):
        return torch.Tensor((2, 2), getattr(torch, name), (2, 1), **state)

    assert view(tensor(conj=True)).conjugated
    assert view(tensor(device=torch.device("cpu"))).device == CPU
    for refused, words in (
        (tensor("qint8"), "type torch.qint8"),
        (tensor("bool"), "type torch.bool"),
        (tensor("float8_e4m3fnuz"), "type torch.float8_e4m3fnuz"),
        (tensor(device=torch.device("meta")), "accepted are tensors of CPUs and CUDA GPUs"),
        (tensor(neg=True), "resolve_neg"),
        (tensor(refuses=RuntimeError("no storage")), "no storage"),
    ):
        with pytest.raises((ArgumentTypeError, InvalidArgumentError), match=f"^b: .*{words}"):
            view(refused, "b")


def test_jax():
    x = fakes.jax_array(device=(2, 1), code_bits=(4, 16))
    operand = view(x, stream=5)
    assert (operand.package, operand.readonly, operand.element) == ("jax", True, bfloat16)
    assert (operand.device, x.calls[-1]["stream"], x.waited) == (Device("cuda", 1), 5, 0)


def test_jax_on_the_cpu_is_waited_for():
    x = fakes.jax_array(device=(1, 0))
    assert view(x).device == CPU
    assert x.waited == 1


def test_jax_refusals():
    tracer = fakes.class_in("jax._src.core", "Tracer", __dlpack__=None, __dlpack_device__=None)
    for refused, words in (
        (fakes.jax_array(devices=4), "spread over 4 devices"),
        (fakes.jax_array(deleted=True), "deleted"),
        (fakes.jax_array(refuses=RuntimeError("no such type")), "no such type"),
        (fakes.class_in("jax._src.interpreters.partial_eval", "DynamicJaxprTracer", tracer)(), "outside of jax.jit"),
    ):
        with pytest.raises((ArgumentTypeError, InvalidArgumentError), match=f"^a: .*{words}"):
            view(refused, "a")


def test_numba():
    x = fakes.numba_device_array(strides=(4, 12), device=1, ptr=0x5000)
    operand = view(x)
    assert (operand.package, operand.device, operand.ptr) == ("numba", Device("cuda", 1), 0x5000)
    assert (operand.strides, operand.producer_stream) == ((1, 3), None)
    assert view(fakes.numba_device_array(stream=0x77)).producer_stream == 0x77


def test_numba_over_foreign_memory_asks_for_the_device(monkeypatch):
    monkeypatch.setattr(array_packages, "device_of_pointer", lambda ptr, argument: Device("cuda", ptr >> 12))
    x = fakes.numba_device_array(ptr=0x5000)
    x.gpu_data = object()
    assert view(x).device == Device("cuda", 5)


def test_numba_simulator_is_cpu_memory():
    array = np.arange(6, dtype=np.float32).reshape(2, 3).T
    x = fakes.class_in("numba.cuda.simulator.cudadrv.devicearray", "FakeCUDAArray")()
    x._ary = array
    operand = view(x)
    assert (operand.package, operand.device, operand.owner is x) == ("numba", CPU, True)
    assert np.array_equal(as_numpy(operand), array)


def test_cuda_core():
    operand = view(fakes.strided_memory_view(device_id=1))
    assert (operand.package, operand.device, operand.strides) == ("cuda.core", Device("cuda", 1), (4, 1))
    assert view(fakes.strided_memory_view(strides=(-1, 3), readonly=True)).strides == (-1, 3)
    assert view(fakes.strided_memory_view(readonly=True)).readonly
    assert view(fakes.strided_memory_view(device_id=-1, is_device_accessible=False)).device == CPU
    with pytest.raises(ArgumentTypeError, match=r"^a: .*no dtype"):
        view(fakes.strided_memory_view(dtype=None), "a")
    buffer = fakes.class_in("cuda.core._memory._buffer", "Buffer", __dlpack__=None, __dlpack_device__=None)()
    with pytest.raises(ArgumentTypeError, match=r"^a: .*from_buffer\(buffer, shape, dtype"):
        view(buffer, "a")


def test_our_own_results_are_operands():
    inner = view(fakes.DLPackArray())
    x = CudaArray(None, inner, 5)
    operand = view(x)
    assert (operand.signature, operand.owner is x, operand.producer_stream) == (inner.signature, True, 5)


def test_package_of():
    assert package_of(np.zeros(1)) == "numpy"
    assert package_of(fakes.fake_cupy().ndarray((1,), "f4", (4,))) == "cupy"
    assert package_of(fakes.CaiArray()) == package_of([1]) == "generic"
