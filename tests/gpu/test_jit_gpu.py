# SPDX-License-Identifier: Apache-2.0
"""Kernels of ``nd.jit`` on a GPU: arrays of every library, streams, graphs, shared memory, the store, processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
from numba import cuda

import nvmath_device as nd
from nvmath_device.errors import ArgumentTypeError, LaunchError
from nvmath_device.lto.store import default_store
from tests import real_code
from tests.gpu.host.libraries import CUPY, TORCH, OnlyDLPack, needs, to_numpy

LIBRARIES = pytest.mark.parametrize("library", ["numba", CUPY, TORCH])
N = 1000


@nd.jit
def axpy(factor, x, y):
    i = cuda.grid(1)
    if i < y.size:
        y[i] += factor * x[i]


@nd.jit
def copy(x, y):
    i = cuda.grid(1)
    if i < y.size:
        y[i] = x[i]


def random(*shape, seed=0, dtype="float32"):
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(dtype)


def on(library, values):
    if library == "numba":
        return cuda.to_device(values)
    if library == "torch":
        import torch

        return torch.as_tensor(values, device="cuda")
    if library == "cupy":
        import cupy

        return cupy.asarray(values)
    import jax

    return jax.device_put(values)


# -- arrays -------------------------------------------------------------------------------------------------


@LIBRARIES
def test_arrays_of_each_library(library):
    for seed in range(4):
        x, y = random(N, seed=seed), random(N, seed=seed + 50)
        dx, dy = on(library, x), on(library, y)
        for factor in (2.0, 3.0):
            axpy[8, 128](factor, dx, dy)
            y = y + np.float64(factor) * x
        cuda.synchronize()
        assert np.allclose(to_numpy(dy), y, rtol=1e-6, atol=1e-6)


@LIBRARIES
def test_extents_that_take_turns(library):
    """All but the first of each are recognised without being read."""
    for n in (N, 10, N, 10, 10, N):
        dx, dy = on(library, random(n, seed=n)), on(library, np.zeros(N, "float32")[:n])
        copy[8, 128](dx, dy)
        cuda.synchronize()
        assert np.array_equal(to_numpy(dy), random(n, seed=n))


@needs["cupy"]
@needs["torch"]
def test_libraries_mixed_and_dlpack_alone():
    x, y = random(N), random(N, seed=1)
    dx, dy = on("cupy", x), OnlyDLPack(on("torch", y))
    axpy[8, 128](2.0, dx, dy)
    cuda.synchronize()
    assert np.allclose(to_numpy(dy.inner), y + 2 * x, rtol=1e-6, atol=1e-6)


@needs["jax"]
def test_jax_arrays_are_read_in_place():
    x = random(N)
    dy = cuda.device_array(N, np.float32)
    for _ in range(3):
        copy[8, 128](on("jax", x), dy)
    assert np.array_equal(dy.copy_to_host(), x)


@needs["torch"]
@pytest.mark.parametrize("name", ["bfloat16", "float16", "float64", "int32", "int8", "complex64"])
def test_element_types_of_tensors(name):
    import torch

    x = (torch.randn(N, device="cuda") * 10).to(getattr(torch, name))
    y = torch.zeros_like(x)
    copy[8, 128](x, y)
    assert torch.equal(x, y)


@needs["torch"]
def test_bfloat16_is_computed_with():
    import torch

    x, y = (torch.randn(N, device="cuda").to(torch.bfloat16) for _ in range(2))
    want = (y.double() + 2 * x.double()).cpu().numpy()
    axpy[8, 128](np.float32(2), x, y)
    assert np.allclose(y.double().cpu().numpy(), want, rtol=2.0**-8, atol=1e-6)


@needs["torch"]
@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_fp8_is_its_bits(name):
    import torch

    x = torch.randn(N, device="cuda").to(getattr(torch, name))
    y = torch.zeros(N, dtype=torch.uint8, device="cuda")
    copy[8, 128](x, y)
    assert torch.equal(x.view(torch.uint8), y)


@LIBRARIES
def test_views_with_steps(library):
    x, y = random(4 * N), random(3 * N, seed=1)
    dx, dy = on(library, x), on(library, y)
    axpy[8, 128](2.0, dx[::4], dy[1::3])
    y[1::3] += 2 * x[::4]
    cuda.synchronize()
    assert np.allclose(to_numpy(dy), y, rtol=1e-6, atol=1e-6)


def test_booleans_and_records_of_numba():
    flags = np.arange(N) % 3 == 0
    pairs = np.zeros(N, np.dtype([("a", np.int32), ("b", np.float64)], align=True))

    @nd.jit
    def fill(flags, pairs):
        i = cuda.grid(1)
        if i < flags.size and flags[i]:
            pairs[i]["a"], pairs[i]["b"] = i, 0.5 * i

    device = cuda.to_device(pairs)
    for _ in range(2):
        fill[8, 128](cuda.to_device(flags), device)
    got = device.copy_to_host()
    assert np.array_equal(got["a"], np.where(flags, np.arange(N), 0))
    assert np.array_equal(got["b"], np.where(flags, 0.5 * np.arange(N), 0))


def test_numpy_arrays_are_copied_on_request_alone():
    x, y = random(N), random(N, seed=1)
    with pytest.raises(ArgumentTypeError, match=r"cuda\.InOut"):
        axpy[8, 128](2.0, x, y)
    want = y + 2 * np.float64(1) * x
    axpy[8, 128](2.0, cuda.In(x), cuda.InOut(y))
    assert np.allclose(y, want, rtol=1e-6, atol=1e-6)
    out = np.full(N, np.nan, np.float32)
    copy[8, 128](cuda.In(x), cuda.Out(out))
    assert np.array_equal(out, x)


# -- bound, threads -----------------------------------------------------------------------------------------


@LIBRARIES
def test_bound_launches(library):
    x, y, other = random(N), random(N, seed=1), random(N, seed=2)
    dx, dy, do = on(library, x), on(library, y), on(library, other)
    launch = axpy[8, 128].bind(2.0, dx, dy)
    launch()
    launch(3.0, do, dy)
    launch()
    cuda.synchronize()
    assert np.allclose(to_numpy(dy), y + 2.0 * x + 6.0 * other, rtol=1e-5, atol=1e-5)


def test_threads_share_a_kernel():
    xs = [cuda.to_device(np.full(N, i, np.float32)) for i in range(8)]
    ys = [cuda.to_device(np.zeros(N, np.float32)) for _ in range(8)]
    configured = axpy[8, 128]

    def work(i):
        for _ in range(100):
            configured(1.0, xs[i], ys[i])
        cuda.synchronize()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [set(y.copy_to_host()) for y in ys] == [{100.0 * i} for i in range(8)]


# -- streams and graphs -------------------------------------------------------------------------------------


@needs["torch"]
def test_streams_and_their_order():
    import torch

    side = torch.cuda.Stream()
    x, y = torch.zeros(N, device="cuda"), torch.zeros(N, device="cuda")
    for stream in (side, side.cuda_stream, torch.cuda.current_stream(), 0):
        y.zero_()
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(100_000_000)
            x.fill_(3)
            axpy[8, 128, stream](1.0, x, y)  # after what makes x, whichever stream it is put on
        torch.cuda.synchronize()
        assert (y == 3).all()
        x.zero_()


@needs["torch"]
def test_torch_graphs():
    import torch

    x, y = torch.ones(N, device="cuda"), torch.zeros(N, device="cuda")
    launch = axpy[8, 128, torch.cuda.current_stream()]
    launch(1.0, x, y)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        stream = torch.cuda.current_stream()
        axpy[8, 128, stream](2.0, x, y)
        axpy[8, 128, stream].bind(4.0, x, y)()
    assert (y == 1).all()
    x.fill_(2)
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    assert (y == 1 + 3 * (4 + 8)).all()


@needs["cupy"]
def test_cupy_graphs():
    import cupy

    x, y = cupy.ones(N, cupy.float32), cupy.zeros(N, cupy.float32)
    stream = cupy.cuda.Stream(non_blocking=True)
    axpy[8, 128](1.0, x, y)
    cupy.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        axpy[8, 128, stream](2.0, x, y)
        graph = stream.end_capture()
    graph.launch(stream)
    graph.launch(stream)
    stream.synchronize()
    assert (y == 5).all()


# -- shared memory ------------------------------------------------------------------------------------------

KIB = 1024


def shared_kernel(small):
    """Each block writes all of its dynamic shared memory and sums it."""

    @nd.jit
    def kernel(count, sums):
        data = cuda.shared.array(0, np.uint8)
        if small:
            few = cuda.shared.array(24, np.uint8)
            few[cuda.threadIdx.x % 24] = 1
        for i in range(cuda.threadIdx.x, count, cuda.blockDim.x):
            data[i] = i % 251
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            total = 0
            for i in range(count):
                total += data[i]
            sums[cuda.blockIdx.x] = total

    return kernel


@pytest.mark.parametrize("nbytes", [49_151, 49_152, 49_153, 227 * KIB - 24])
@pytest.mark.parametrize("small", [False, True])
def test_shared_memory_of_any_size_that_the_device_has(nbytes, small):
    kernel, sums = shared_kernel(small), cuda.to_device(np.zeros(4, np.int64))
    want = int((np.arange(nbytes) % 251).sum())
    kernel[4, 128, 0, nbytes](nbytes, sums)
    assert set(sums.copy_to_host()) == {want}


def test_all_of_the_devices_shared_memory_and_no_more():
    kernel, sums = shared_kernel(False), cuda.to_device(np.zeros(4, np.int64))
    kernel[4, 128, 0, 227 * KIB](227 * KIB, sums)
    assert set(sums.copy_to_host()) == {int((np.arange(227 * KIB) % 251).sum())}
    with pytest.raises(LaunchError, match=r"(?s)kernel.*232,464.*232,448") as caught:
        kernel[4, 128, 0, 227 * KIB + 16](227 * KIB, sums)
    assert "shared_kernel" in str(caught.value)
    kernel[4, 128, 0, 16](16, sums)  # the device is well
    assert set(sums.copy_to_host()) == {sum(range(16))}
    assert kernel.fits(4, 128, 227 * KIB)
    assert not kernel.fits(4, 128, 227 * KIB + 16)


def test_static_shared_arrays_above_48_kib_are_refused_with_the_dynamic_way():
    @nd.jit
    def kernel(x):
        data = cuda.shared.array(49_156 // 4, np.float32)
        data[cuda.threadIdx.x] = x[cuda.threadIdx.x]
        cuda.syncthreads()
        x[cuda.threadIdx.x] = data[31 - cuda.threadIdx.x]

    with pytest.raises(LaunchError, match=r"(?s)49,156.*dynamic|dynamic.*49,156"):
        kernel[1, 32](cuda.to_device(random(32)))


# -- generated code -----------------------------------------------------------------------------------------


def gemm_kernel():
    return nd.jit(
        real_code.gemm_kernel(
            nd.Matmul(
                size=(32, 32, 32), precision="float32", data_type="real", arrangement=("row_major",) * 3, block_size=128
            )
        )
    )


def check_gemm(kernel, library="numba"):
    a, b = random(32, 32), random(32, 32, seed=1)
    c = on(library, np.full((32, 32), np.nan, np.float32))
    kernel[1, 128](on(library, a), on(library, b), c)
    cuda.synchronize()
    want = a.astype(float) @ b
    assert np.linalg.norm(to_numpy(c) - want) < 1e-6 * np.linalg.norm(want)


@LIBRARIES
def test_a_gemm(library):
    check_gemm(gemm_kernel(), library)


def test_an_equal_kernel_is_not_built_again(monkeypatch):
    check_gemm(gemm_kernel())
    monkeypatch.setattr("nvmath_device.kernel_code.build", lambda *arguments: pytest.fail("built"))
    check_gemm(gemm_kernel())


def test_kernels_for_debugging_go_through_numba():
    @nd.jit(debug=True, opt=False)
    def kernel(x, i):
        if i[0] > 3:
            raise IndexError("too far")
        x[0] = 1.0

    x = cuda.to_device(np.zeros(1))
    kernel[1, 1](x, cuda.to_device(np.array([3])))
    assert x.copy_to_host()[0] == 1
    with pytest.raises(IndexError, match="too far"):
        kernel[1, 1](x, cuda.to_device(np.array([4])))


@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_kernels_for_debugging_take_streams_of_each_library(library):
    package = pytest.importorskip(library)
    stream = package.cuda.Stream()

    @nd.jit(debug=True, opt=False)
    def kernel(x):
        x[0] = 1.0

    x = cuda.to_device(np.zeros(1))
    cuda.synchronize()
    kernel[1, 1, stream](x)
    stream.synchronize()
    assert x.copy_to_host()[0] == 1


def test_helpers_and_cooperative_groups():
    @cuda.jit(device=True)
    def twice(x):
        return 2 * x

    @nd.jit
    def kernel(x):
        i = cuda.grid(1)
        x[i] = twice(x[i])
        cuda.cg.this_grid().sync()
        x[x.size - 1 - i] += 1

    x = cuda.to_device(np.arange(256.0))
    kernel[4, 64](x)
    assert np.array_equal(x.copy_to_host(), 2 * np.arange(256.0) + 1)


# -- processes ----------------------------------------------------------------------------------------------

PROGRAM = textwrap.dedent(
    """
    import sys
    import numpy as np
    from nvmath_device import kernel_code
    from tests.gpu.test_jit_gpu import check_gemm, gemm_kernel

    build, built = kernel_code.build, []
    kernel_code.build = lambda *arguments: built.append(1) or build(*arguments)
    check_gemm(gemm_kernel())
    print("built", len(built))
    """
)


def start(folder):
    environment = os.environ | {"NVMATH_DEVICE_CACHE_DIR": str(folder), "PYTHONPATH": os.getcwd()}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def finish(process):
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out.splitlines()[-1]


def with_generated_code(folder):
    """Fill a store with all but kernels, so that not each of these tests waits for libmathdx."""
    archive = folder / "all.zip"
    default_store().export_entries(archive)
    from nvmath_device.lto.store import Store

    store = Store(folder / "store")
    store.import_entries(archive)
    for entry in list(store.entries()):
        if entry.kind == "kernel":
            entry.path.unlink()
    return folder / "store"


def test_sixteen_processes_at_once_build_once(tmp_path):
    check_gemm(gemm_kernel())
    folder = with_generated_code(tmp_path)
    said = [finish(process) for process in [start(folder) for _ in range(16)]]
    assert sorted(said) == ["built 0"] * 15 + ["built 1"]
    assert finish(start(folder)) == "built 0"


@pytest.mark.parametrize("delay", [0.5, 2.0, 3.0, 3.5])
def test_a_process_that_is_killed_leaves_a_store_that_works(tmp_path, delay):
    check_gemm(gemm_kernel())
    folder = with_generated_code(tmp_path)
    process = start(folder)
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert finish(start(folder)) in ("built 0", "built 1")
    assert finish(start(folder)) == "built 0"


@pytest.mark.parametrize("value", [1 + 2.0**-9, 3.0e4, -7.3])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.complex64, np.int16])
def test_numbers_of_numpy(dtype, value):
    @nd.jit
    def fill(x, value):
        x[0] = value

    x = np.zeros(1, dtype)
    fill[1, 1](cuda.InOut(x), dtype(value))
    assert x[0] == dtype(value)
