# SPDX-License-Identifier: Apache-2.0
"""Reported cases about streams, devices and libraries, on a GPU that is not there.

What a real one shows is in ``tests/gpu/host/test_reports_streams.py``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import nvmath_device.host as host
from nvmath_device import float32
from nvmath_device.errors import InvalidArgumentError, InvalidStateError, UnsupportedError
from nvmath_device.host import cublaslt_calls
from nvmath_device.host.cublaslt_prototypes import PROTOTYPES
from nvmath_device.info import info
from tests.host.fake_gpu import CAPTURING, CUPY_STREAM, TORCH_STREAM, FakeGpu, gpu, running  # noqa: F401

ROOT = Path(__file__).resolve().parents[2]
A, B = np.arange(12.0).reshape(3, 4), np.arange(8.0).reshape(4, 2)


def operands(gpu, packages=("torch", "torch")):  # noqa: F811
    return [gpu.array(x, package, element=float32) for x, package in zip((A, B), packages, strict=True)]


# -- streams ------------------------------------------------------------------------------------------------


def test_r096_operands_of_two_libraries_are_ordered_without_waiting(gpu):  # noqa: F811
    """CuPy's A decides the stream; what is on PyTorch's comes before the product by an event."""
    d = host.matmul(*operands(gpu, ("cupy", "torch")))
    assert np.array_equal(gpu.read(d), A @ B)
    assert gpu.streams("product") == {CUPY_STREAM}
    order = [entry for entry in gpu.log if entry[0] in ("record", "wait for event", "product")]
    assert order[:3] == [("record", TORCH_STREAM), ("wait for event", CUPY_STREAM), ("product", CUPY_STREAM)]
    assert gpu.count("wait") == 0


def test_r096_a_stream_that_is_given_is_used_and_nothing_else_is_waited_for(gpu):  # noqa: F811
    with host.Matmul(*operands(gpu, ("torch", "cupy")), stream=33) as mm:
        mm.plan(stream=33)
        gpu.log.clear()
        d = mm.execute(stream=33)
    assert np.array_equal(gpu.read(d), A @ B)
    assert gpu.streams("product") == {33}
    assert gpu.count("wait") == gpu.count("wait for event") == 0


def test_r096_the_current_stream_of_the_operands_library_is_the_default(gpu):  # noqa: F811
    for package, stream in (("torch", TORCH_STREAM), ("cupy", CUPY_STREAM)):
        gpu.log.clear()
        host.matmul(*operands(gpu, (package, package)))
        assert gpu.streams("product") == {stream}
        assert gpu.count("wait") == 0


def test_r100_neither_planning_nor_executing_waits_for_the_gpu(gpu):  # noqa: F811
    a, b = operands(gpu)
    with host.Matmul(a, b) as mm:
        mm.plan()
        for _ in range(3):
            mm.reset_operands(a=operands(gpu)[0])
            mm.execute()
            host.matmul(a, b)
    assert gpu.count("product") == 6
    assert gpu.count("wait") == gpu.count("to the CPU") == 0


def test_r101_a_planned_product_asks_cublaslt_once(gpu):  # noqa: F811
    a, b = operands(gpu)
    with host.Matmul(a, b) as mm:
        mm.plan()
        searches = gpu.lt.searches
        for _ in range(10):
            mm.reset_operands(a=operands(gpu)[0])
            mm.execute()
        host.matmul(a, b)
        asked_by_function = gpu.lt.searches
        for _ in range(10):
            host.matmul(*operands(gpu))
    assert (searches, asked_by_function, gpu.lt.searches) == (1, 2, 2)


def test_r082_planning_inside_a_capture_is_refused_and_executing_is_not(gpu):  # noqa: F811
    a, b = operands(gpu)
    out = gpu.array(np.zeros((3, 2)), element=float32)
    with host.Matmul(a, b) as mm:
        mm.plan(out=out)
        searches, allocated = gpu.lt.searches, gpu.allocated
        for refused in (lambda: mm.plan(stream=CAPTURING), lambda: host.matmul(a, b, out=out, stream=CAPTURING)):
            with pytest.raises(InvalidStateError, match="a CUDA graph is being captured on this stream"):
                refused()
        mm.execute(out=out, stream=CAPTURING)
        assert (gpu.lt.searches, gpu.allocated) == (searches, allocated)
    assert gpu.streams("product") == {CAPTURING}
    assert np.array_equal(gpu.read(out), A @ B)


# -- devices ------------------------------------------------------------------------------------------------


@pytest.fixture
def two_gpus():
    made = FakeGpu()
    made.driver.cuDeviceGetCount = lambda: (made.driver.cuInit(0)[0], 2)
    with running(made):
        yield made


@pytest.mark.parametrize("before", [0, 100, 101], ids=["none", "cuda:0", "cuda:1"])
def test_r097_the_current_device_is_the_same_afterwards(two_gpus, before):
    a, b = operands(two_gpus)  # on cuda:0
    two_gpus.driver.context = before
    with host.Matmul(a, b) as mm:
        mm.plan()
        for d in (mm.execute(), mm.execute(), host.matmul(a, b), host.matmul(a, b)):
            assert np.array_equal(two_gpus.read(d), A @ B)
            assert two_gpus.driver.context == before
        mm.reset_operands(a=a)
    assert two_gpus.driver.context == before


def elsewhere(gpu, shape):  # noqa: F811
    strides = np.empty(shape, np.float32).strides
    return gpu.torch.Tensor(shape, gpu.torch.float32, [s // 4 for s in strides], device=gpu.torch.device("cuda", 1))


def test_r098_operands_on_two_devices_are_refused_with_both_names(two_gpus):
    a, b = operands(two_gpus)
    for given in ((a, elsewhere(two_gpus, (4, 2))), (elsewhere(two_gpus, (3, 4)), b)):
        for call in (host.matmul, host.Matmul):
            with pytest.raises(InvalidArgumentError, match=r"several devices: a on cuda:\d, b on cuda:\d; move"):
                call(*given)
    with pytest.raises(InvalidArgumentError, match=r"a on cuda:0, bias on cuda:1"):
        host.matmul(a, b, epilog="BIAS", epilog_inputs={"bias": elsewhere(two_gpus, (3, 1))})
    with pytest.raises(InvalidArgumentError, match=r"^out: it is on cuda:1, and the result on cuda:0"):
        host.matmul(a, b, out=elsewhere(two_gpus, (3, 2)))
    assert two_gpus.count("product") == 0


def test_r098_an_operand_on_another_device_is_not_taken_later_either(two_gpus):
    a, b = operands(two_gpus)
    with host.Matmul(a, b) as mm:
        mm.plan()
        mm.execute()
        with pytest.raises(InvalidArgumentError, match=r"b: its device is cuda:1, and the plan is for cuda:0"):
            mm.reset_operands(b=elsewhere(two_gpus, (4, 2)))
        with pytest.raises(InvalidArgumentError, match=r"^out: it is on cuda:1, and the result on cuda:0"):
            mm.execute(out=elsewhere(two_gpus, (3, 2)))
        assert np.array_equal(two_gpus.read(mm.execute()), A @ B)


def test_r097_a_stream_of_another_device_is_refused(two_gpus):
    a, b = operands(two_gpus)
    stream = type("Stream", (), {"device_id": 1, "ptr": 5, "__module__": "cupy.cuda.stream"})()
    with pytest.raises(InvalidArgumentError, match="the stream is of cuda:1 and the operands are on cuda:0"):
        host.matmul(a, b, stream=stream)


# -- libraries ----------------------------------------------------------------------------------------------


def run(code: str, **environment: str) -> str:
    """What a program prints, run in a process of its own."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("LD_")}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=inherited | environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


LOADED = """
from pathlib import Path
from nvmath_device.host.cublaslt_calls import version
from nvmath_device.info import info
told = info()["libraries"]["cublasLt"]
lines = Path("/proc/self/maps").read_text().splitlines()
loaded = {line.split()[-1] for line in lines if "libcublasLt" in line}
print(version(), told["version"], sorted(loaded), told["path"])
"""


def test_r112_another_cublaslt_on_the_library_path_is_not_taken_and_the_path_is_told(tmp_path):
    """Whatever stands first on LD_LIBRARY_PATH, the wheel's library is the one, and the only one, that is loaded."""
    other = Path(sys.modules["_ctypes"].__file__)
    for name in ("libcublasLt.so", "libcublasLt.so.12", "libcublasLt.so.13"):
        shutil.copy(other, tmp_path / name)
    usual, beside_another = run(LOADED), run(LOADED, LD_LIBRARY_PATH=str(tmp_path))
    assert usual == beside_another
    assert usual.count("libcublasLt") == 2  # one that is loaded, and the same as the one told
    assert str(tmp_path) not in beside_another


def test_r112_diagnostics_tell_version_and_path():
    told = info()["libraries"]["cublasLt"]
    assert Path(told["path"]).is_file()
    assert str(told["version"]).count(".") == 2 or len(told["version"]) == 3
    assert ".".join(map(str, cublaslt_calls.version())) in str(told["version"]).replace(", ", ".")


@pytest.mark.parametrize("function", ["cublasLtMatmulAlgoGetHeuristic", "cublasLtMatmul"])
def test_r112_a_library_that_is_too_old_is_named_with_what_to_do(function, monkeypatch):
    real = cublaslt_calls.load()

    class Old:
        """A library without the function."""

        def __getattr__(self, name):
            if name == function:
                raise AttributeError(name)
            return getattr(real, name)

    assert function in PROTOTYPES
    cublaslt_calls.version()  # bound before the library is exchanged
    monkeypatch.setattr(cublaslt_calls, "_library", Old())
    monkeypatch.delitem(cublaslt_calls._bound, function, raising=False)
    with pytest.raises(UnsupportedError, match=rf"{function} needs a newer cuBLASLt: .* is loaded.*pip install -U"):
        cublaslt_calls.bind(function)


WITHOUT = """
import sys
for name in {missing!r}:
    sys.modules[name] = None  # importing it fails
import numpy as np
import nvmath_device.host as host
a = np.arange(6.0, dtype=np.float32).reshape(2, 3)
print(host.matmul(a, a.T, epilog="RELU_BIAS", epilog_inputs={{"bias": np.ones(2, np.float32)}}).tolist())
print(sorted(set(sys.modules) & {{"numba", "cupy", "torch", "jax"}} - set({missing!r})))
"""


@pytest.mark.parametrize("missing", [("cupy", "torch", "jax"), ("numba", "llvmlite"), ("nvidia.mathdx", "nvidia.cu13")])
def test_r114_products_need_numpy_alone(missing):
    answer, loaded = run(WITHOUT.format(missing=missing), CUDA_VISIBLE_DEVICES="").splitlines()
    assert answer == "[[6.0, 15.0], [15.0, 51.0]]"
    assert loaded == "[]"
