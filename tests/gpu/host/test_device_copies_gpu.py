# SPDX-License-Identifier: Apache-2.0
"""Devices, memory and copies on a real GPU. What arrives is compared with NumPy, byte by byte, guards included."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from cuda.bindings import driver
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from nvmath_device.errors import DeviceMemoryError, InvalidArgumentError
from nvmath_device.host import current_device
from nvmath_device.host.array_view import Device
from nvmath_device.host.copy_plan import Move
from nvmath_device.host.current_device import current_index, device_count, handle, is_capturing, on_device
from nvmath_device.host.device_copies import apply, plan_copy, prepare, to_device, to_host, wait
from nvmath_device.host.device_memory import memory_of
from nvmath_device.host.driver import call
from tests.host.copy_cases import cases

ROOT = Path(__file__).resolve().parents[3]
GPU = Device("cuda", 0)
NAMES = {"cupy": "CuPy", "torch": "PyTorch"}
INSTALLED = [name for name in NAMES if importlib.util.find_spec(name)]
CUPY, TORCH = (
    pytest.param(name, marks=pytest.mark.skipif(name not in INSTALLED, reason=f"needs a GPU with {title}"))
    for name, title in NAMES.items()
)
GUARD = 256


@pytest.fixture(scope="module", autouse=True)
def device():
    with on_device(0):
        yield


@pytest.fixture(scope="module")
def stream(device):
    """Never destroyed: memory that was taken on it may be found by the garbage collector long after the last test."""
    return int(call(driver.cuStreamCreate, int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)))


def take(nbytes: int, stream: int, package: str = "numpy"):
    return memory_of(package, GPU, purpose="a test")(nbytes, stream)


def fetched(ptr: int, nbytes: int, stream: int) -> np.ndarray:
    found = np.empty(nbytes, np.uint8)
    to_host(ptr, found, stream)
    return found


# -- copies -------------------------------------------------------------------------------------------------

seen = {"tiled": 0, "units": 0, "dense": 0}


@given(
    case=cases(extents=(1, 2, 3, 7, 8, 16, 33, 40, 65, 130), max_units=20_000),
    alignment=st.sampled_from([1, 2, 4, 8, 16]),
    source_is=st.sampled_from([1, 2, 4, 8, 16]),
    destination_is=st.sampled_from([1, 2, 4, 8, 16]),
)
@settings(max_examples=500, deadline=None)
def check_random_copy(stream, source_memory, destination_memory, case, alignment, source_is, destination_is):
    positional, named = case.arguments()
    copy = plan_copy(*positional, **named, alignment=alignment)
    for step in copy.steps:
        if isinstance(step, Move):
            seen["tiled" if step.tiled else "units"] += 1
        else:
            seen["dense"] += 1
    source, destination = case.buffers()
    assume(max(source.size, destination.size + 2 * GUARD) + 16 <= destination_memory.nbytes)
    assert source.size <= source_memory.nbytes - 16
    whole = destination.size + 2 * GUARD + 16
    assert whole <= destination_memory.nbytes
    source_ptr, destination_ptr = source_memory.ptr + source_is, destination_memory.ptr + GUARD + destination_is
    to_device(np.full(whole, 0xCD, np.uint8), destination_memory.ptr, stream)
    to_device(source, source_ptr, stream)
    to_device(destination, destination_ptr, stream)
    apply(copy, source_ptr + case.source.first, destination_ptr + case.destination.first, stream)
    found = fetched(destination_memory.ptr, whole, stream)
    start = GUARD + destination_is
    assert found[start : start + destination.size].tobytes() == case.copied().tobytes()
    assert (found[:start] == 0xCD).all()
    assert (found[start + destination.size :] == 0xCD).all()


def test_random_copies(stream):
    source, destination = take(64 << 20, stream), take(64 << 20, stream)
    check_random_copy(stream, source, destination)
    print(f"steps: {seen}")
    assert min(seen.values()) >= 30


@pytest.mark.parametrize(
    ("itemsize", "conjugate"), [(1, False), (2, False), (4, False), (8, False), (16, False), (8, True), (16, True)]
)
@pytest.mark.parametrize("shape", [(1031, 777), (3, 257, 500), (64, 4096), (9, 2, 8, 3, 17)], ids=str)
def test_transposing(stream, shape, itemsize, conjugate):
    random = np.random.default_rng(5)
    count = int(np.prod(shape))
    source = random.integers(0, 256, count * itemsize, np.uint8).view(f"V{itemsize}").reshape(shape[::-1])
    wanted = np.ascontiguousarray(source.T)
    if conjugate:
        wanted = np.conjugate(wanted.view(f"c{itemsize}"))
    strides = tuple(s // itemsize for s in source.T.strides)
    packed = tuple(s // itemsize for s in wanted.strides)
    copy = plan_copy(shape, strides, packed, itemsize, conjugate=itemsize // 2 if conjugate else None)
    there, back = take(count * itemsize, stream), take(count * itemsize, stream)
    to_device(source, there.ptr, stream)
    apply(copy, there.ptr, back.ptr, stream)
    assert fetched(back.ptr, count * itemsize, stream).tobytes() == wanted.tobytes()


@pytest.mark.parametrize("conjugate", [None, 8])
def test_complex_numbers_aligned_to_half_their_size(stream, conjugate):
    random = np.random.default_rng(6)
    source = random.standard_normal((30, 50)) + 1j * random.standard_normal((30, 50))
    there, back = take(source.nbytes + 8, stream), take(source.nbytes, stream)
    to_device(source, there.ptr + 8, stream)
    apply(plan_copy((50, 30), (1, 50), (30, 1), 16, conjugate=conjugate), there.ptr + 8, back.ptr, stream)
    wanted = np.ascontiguousarray(source.T.conj() if conjugate else source.T)
    assert fetched(back.ptr, source.nbytes, stream).tobytes() == wanted.tobytes()


def test_more_bytes_than_32_bits_count(stream):
    """Reversed, so that nothing can be merged into wider units; looked at where it is cut and at both ends."""
    count, block = 2**32 + (3 << 20), 1 << 20
    there, back = take(count, stream), take(count, stream)
    call(driver.cuMemsetD8Async, there.ptr, 1, count, stream)
    call(driver.cuMemsetD8Async, back.ptr, 2, count, stream)
    random = np.random.default_rng(7)
    places = [0, 2**31 - 1 - block // 2, 2**32 - 2 - block // 2, count - block]
    blocks = {place: random.integers(0, 256, block, np.uint8) for place in places}
    for place, values in blocks.items():
        to_device(values, there.ptr + count - place - block, stream)
    copy = plan_copy((count,), (-1,), (1,), 1)
    assert len(copy.steps) == 3
    apply(copy, there.ptr + count - 1, back.ptr, stream)
    for place, values in blocks.items():
        assert np.array_equal(fetched(back.ptr + place, block, stream), values[::-1])
    assert (fetched(back.ptr + 3 * 2**30, block, stream) == 1).all()


def test_copies_do_not_wait(stream):
    """Behind some 50 ms of filling memory."""
    ballast, back = take(1 << 30, stream), take(4 << 20, stream)
    copy = plan_copy((1000, 1000), (1, 1000), (1024, 1), 4, fill_zero=4 << 20)
    prepare(copy)
    wait(stream)
    for value in range(200):
        call(driver.cuMemsetD8Async, ballast.ptr, value, ballast.nbytes, stream)
    apply(copy, ballast.ptr, back.ptr, stream)
    (status,) = driver.cuStreamQuery(stream)
    assert status == driver.CUresult.CUDA_ERROR_NOT_READY
    found = fetched(back.ptr, back.nbytes, stream).reshape(1024, 4096)
    assert (found[:1000, :4000] == 199).all()
    assert not found[:1000, 4000:].any()


# -- capture ------------------------------------------------------------------------------------------------


def test_copies_in_a_graph():
    """On a blocking stream, so that the default stream is in the way, too."""
    mine = call(driver.cuStreamCreate, int(driver.CUstream_flags.CU_STREAM_DEFAULT))
    stream = int(mine)
    try:
        there, back, dense = (take(80_000, 0) for _ in range(3))
        transposed = plan_copy((100, 100), (1, 100), (200, 1), 4, fill_zero=80_000)
        whole = plan_copy((100, 100), (100, 1), (100, 1), 4)
        prepare(transposed)
        wait(stream)
        assert not is_capturing(stream)
        call(driver.cuStreamBeginCapture, stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL)
        assert is_capturing(stream)
        with pytest.raises(InvalidArgumentError, match="legacy default stream"):
            is_capturing(0)
        for move in (
            lambda: to_host(there.ptr, np.empty(4), stream),
            lambda: to_device(np.empty(4), there.ptr, stream),
            lambda: wait(stream),
        ):
            with pytest.raises(InvalidArgumentError, match="captures a CUDA graph"):
                move()
        apply(transposed, there.ptr, back.ptr, stream)
        apply(whole, there.ptr, dense.ptr, stream)
        graph = call(driver.cuStreamEndCapture, stream)
        assert not is_capturing(stream)
        ready = call(driver.cuGraphInstantiate, graph, 0)
        for repeat in range(2):
            source = np.random.default_rng(repeat).standard_normal((100, 100)).astype(np.float32)
            to_device(source, there.ptr, stream)
            call(driver.cuMemsetD8Async, back.ptr, 0xFF, 80_000, stream)
            call(driver.cuGraphLaunch, ready, stream)
            wanted = np.zeros((100, 200), np.float32)
            wanted[:, :100] = source.T
            assert fetched(back.ptr, 80_000, stream).tobytes() == wanted.tobytes()
            assert fetched(dense.ptr, 40_000, stream).tobytes() == source.tobytes()
        call(driver.cuGraphExecDestroy, ready)
        call(driver.cuGraphDestroy, graph)
    finally:
        call(driver.cuStreamDestroy, mine)


# -- devices ------------------------------------------------------------------------------------------------


def test_what_the_device_is():
    from cuda.core import Device as CoreDevice

    core = CoreDevice(0)
    assert current_device.compute_capability(0) == (core.compute_capability.major, core.compute_capability.minor)
    assert current_device.device_name(0) == core.name
    assert current_device.total_memory(0) >= call(driver.cuMemGetInfo)[1] > 1 << 30
    assert 1 <= device_count() == call(driver.cuDeviceGetCount)
    with pytest.raises(InvalidArgumentError, match=f"no cuda:{device_count()}"), on_device(device_count()):
        pass


def test_a_thread_without_a_device_has_none_afterwards():
    def use():
        contexts = []
        for _ in range(2):
            contexts += [int(call(driver.cuCtxGetCurrent)), current_index()]
            with on_device(0):
                contexts.append(current_index())
            with pytest.raises(KeyError), on_device(0):
                raise KeyError
        result.extend([*contexts, int(call(driver.cuCtxGetCurrent))])

    result: list[int] = []
    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert result == [0, -1, 0, 0, -1, 0, 0]


def test_threads_share_one_working_handle():
    found = []
    threads = [threading.Thread(target=lambda: found.append(handle(0))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(each) for each in found}) == 1
    assert found[0].address
    assert handle(0) is found[0]


def test_another_device_and_back():
    if device_count() < 2:
        pytest.skip("needs a GPU more")
    source = np.arange(10_000, dtype=np.float32).reshape(100, 100)
    assert current_index() == 0
    with on_device(1):
        memory = memory_of("numpy", Device("cuda", 1))
        there, back = memory(source.nbytes, 0), memory(source.nbytes, 0)
        to_device(source, there.ptr, 0)
        apply(plan_copy((100, 100), (1, 100), (100, 1), 4), there.ptr, back.ptr, 0)
        found = np.empty_like(source)
        to_host(back.ptr, found, 0)
        assert handle(1) is not handle(0)
        del there, back
    assert np.array_equal(found, source.T)
    assert current_index() == 0


# -- memory -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("package", [CUPY, TORCH, "numba", "numpy", "jax", "generic", "cuda.core"])
def test_memory_of_each_library(stream, package):
    if package in INSTALLED:
        importlib.import_module(package)
    values = np.random.default_rng(1).integers(0, 256, 1 << 20, np.uint8)
    for _ in range(3):
        first, second = take(values.nbytes, stream, package), take(1, stream, package)
        assert (first.ptr % 256, second.ptr % 256) == (0, 0)
        to_device(values, first.ptr, stream)
        call(driver.cuMemsetD8Async, second.ptr, 0, 1, stream)
        assert np.array_equal(fetched(first.ptr, first.nbytes, stream), values)


@pytest.mark.parametrize("package", [CUPY, TORCH])
def test_memory_comes_from_the_librarys_pool_and_goes_back(stream, package):
    library = importlib.import_module(package)

    def used() -> int:
        return library.cuda.memory_allocated() if package == "torch" else library.get_default_memory_pool().used_bytes()

    before = used()
    memory = take(3 << 20, stream, package)
    assert used() >= before + (3 << 20)
    del memory
    assert used() == before


@pytest.mark.parametrize("package", [CUPY, TORCH, "numpy"])
def test_r103_too_much_is_said_in_words_and_breaks_nothing(stream, package):
    if package in INSTALLED:
        importlib.import_module(package)
    with pytest.raises(DeviceMemoryError, match=r"^a test: 17,592,186,044,416 bytes \(16\.0 TiB\) on cuda:0 .* free"):
        take(1 << 44, stream, package)
    assert take(1 << 20, stream, package).ptr


def test_a_cuda_core_resource_as_the_users_allocator(stream):
    from cuda.core import Device as CoreDevice

    memory = memory_of("torch", GPU, CoreDevice(0).memory_resource)(4096, stream)
    call(driver.cuMemsetD8Async, memory.ptr, 7, 4096, stream)
    assert (fetched(memory.ptr, 4096, stream) == 7).all()


# -- an earlier kernel --------------------------------------------------------------------------------------

# A process of its own: its context is lost.
BROKEN = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np
from nvmath_device import errors
from nvmath_device.host.array_view import Device
from nvmath_device.host.current_device import on_device
from nvmath_device.host.device_copies import apply, plan_copy, to_host
from nvmath_device.host.device_memory import memory_of

with on_device(0):
    take = memory_of("numpy", Device("cuda", 0), purpose="the workspace")
    memory = take(1 << 20, 0)
    apply(plan_copy((100, 100), (1, 100), (100, 1), 4), 0x100, memory.ptr, 0)  # there is nothing to read
    for use in (lambda: to_host(memory.ptr, np.empty(4), 0), lambda: take(1 << 30, 0)):
        try:
            use()
        except errors.DeviceMemoryError:
            print("blamed on memory")
        except errors.DriverError as error:
            print(error.earlier, error)
        else:
            print("nothing noticed")
    sys.stdout.flush()
    import os

    os._exit(0)  # nothing on the device can be freed any more
"""


def test_r103_an_earlier_kernels_failure_is_reported_as_that():
    done = subprocess.run(
        [sys.executable, "-c", BROKEN, str(ROOT)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2, done.stdout
    for line in lines:
        assert line.startswith("True an earlier kernel failed: CUDA_ERROR_ILLEGAL_ADDRESS (status 700)")
