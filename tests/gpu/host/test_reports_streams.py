# SPDX-License-Identifier: Apache-2.0
"""Reported cases about streams and devices: no races, no waiting, and the operands' own device."""

from __future__ import annotations

import ctypes
import importlib.util

import numpy as np
import pytest

import nvmath_device.host as host
from nvmath_device.errors import InvalidArgumentError
from nvmath_device.host import current_device
from tests.conftest import gpu_count
from tests.host.cpu_products import whole
from tests.host.report_tools import F32, Library, assert_exact, library_on_gpu, wide

library = library_on_gpu
REPEATS = 200
needs_two = pytest.mark.skipif(gpu_count() < 2, reason="needs a GPU beside another one")
needs_both = pytest.mark.skipif(
    not (importlib.util.find_spec("torch") and importlib.util.find_spec("cupy")),
    reason="needs a GPU with CuPy and PyTorch",
)


SPIN = """
extern "C" __global__ void spin(long long cycles) {
    long long start = clock64();
    while (clock64() - start < cycles);
}
"""


class Streams:
    """Streams of CuPy or PyTorch: making one current, keeping one busy, asking whether it still is."""

    def __init__(self, library) -> None:
        self.torch = library.name == "torch"
        if self.torch:
            import torch

            self.module = torch
        else:
            import cupy

            self.module = cupy
            self.spin = cupy.RawKernel(SPIN, "spin")

    def new(self):
        return self.module.cuda.Stream() if self.torch else self.module.cuda.Stream(non_blocking=True)

    def current(self, stream):
        return self.module.cuda.stream(stream) if self.torch else stream

    def busy(self, cycles: int) -> None:
        """Keep the current stream busy for so many clock cycles, some two thousand a microsecond."""
        if self.torch:
            self.module.cuda._sleep(cycles)
        else:
            self.spin((1,), (1,), (np.int64(cycles),))

    def is_done(self, stream) -> bool:
        return stream.query() if self.torch else stream.done

    def wait(self) -> None:
        self.module.cuda.synchronize() if self.torch else self.module.cuda.Device().synchronize()


def test_r096_a_producer_on_a_side_stream_that_is_passed(library):
    streams = Streams(library)
    side = streams.new()
    a, b = library.put(np.zeros((64, 64), np.float32)), library.put(np.eye(64, dtype=np.float32))
    out = library.poisoned((64, 64), F32)
    with library.Matmul(a, b, stream=side) as mm:
        mm.plan(stream=side)
        streams.wait()
        for repeat in range(1, REPEATS + 1):
            with streams.current(side):
                streams.busy(20_000)
                a.fill(repeat) if library.name == "cupy" else a.fill_(repeat)
            d = mm.execute(stream=side)
            library.matmul(a, b, out=out, stream=side)
            with streams.current(side):
                for result in (d, out):
                    assert float(result[-1, -1]) == float(result[0, 0]) == repeat


def test_r096_a_producer_on_the_current_stream_and_a_consumer_on_it(library):
    """Nothing is passed: the current stream of the operands' library orders all, the result included."""
    streams = Streams(library)
    side = streams.new()
    b = library.put(np.eye(64, dtype=np.float32))
    a = library.put(np.zeros((64, 64), np.float32))
    streams.wait()
    with streams.current(side):
        for repeat in range(1, REPEATS + 1):
            streams.busy(20_000)
            a.fill(repeat) if library.name == "cupy" else a.fill_(repeat)
            assert float((library.matmul(a, b) + 1)[-1, -1]) == repeat + 1


@needs_both
@pytest.mark.parametrize("first", ["cupy", "torch"])
def test_r096_operands_that_two_libraries_make_on_their_own_streams(first):
    names = (first, "torch" if first == "cupy" else "cupy")
    libraries = [Library(name, "gpu") for name in names]
    kinds = [Streams(library) for library in libraries]
    sides = [kind.new() for kind in kinds]
    a, b = (library.put(np.zeros((64, 64), np.float32)) for library in libraries)
    kinds[0].wait()
    with kinds[0].current(sides[0]), kinds[1].current(sides[1]):
        for repeat in range(1, REPEATS + 1):
            for kind, array, value in zip(kinds, (a, b), (repeat % 7, repeat % 5 + 1), strict=True):
                kind.busy(20_000)
                array.fill_(value) if kind.torch else array.fill(value)
            d = host.matmul(a, b)
            assert libraries[0].owns(d)
            assert float(d[-1, -1]) == 64 * (repeat % 7) * (repeat % 5 + 1)


def test_r096_executions_of_one_object_on_two_streams_do_not_disturb_each_other(library):
    rng = np.random.default_rng(96)
    streams = Streams(library)
    sides = [streams.new(), streams.new()]
    a, b = whole(rng, (64, 4096), F32, 1), whole(rng, (4096, 64), F32, 1)
    outs = [library.poisoned((64, 64), F32) for _ in sides]
    with library.Matmul(library.put(a), library.put(b)) as mm:
        mm.plan()
        streams.wait()
        for _ in range(20):
            for side, out in zip(sides, outs, strict=True):
                mm.execute(out=out, stream=side)
        streams.wait()
        for out in outs:
            assert_exact(library.get(out), wide(a) @ wide(b))


def test_r096_r100_no_call_waits_for_the_gpu(library):
    """A stream that is busy for some two seconds is still busy after everything was put on it."""
    rng = np.random.default_rng(100)
    streams = Streams(library)
    side = streams.new()
    a, b = whole(rng, (64, 64), F32), whole(rng, (64, 64), F32)
    placed_a, placed_b, out = library.put(a), library.put(b), library.poisoned((64, 64), F32)
    columns = library.put(np.repeat(a, 2, axis=1))[:, ::2]
    results = []

    def everything():
        with library.Matmul(placed_a, placed_b) as mm:
            mm.plan(epilog="RELU")
            results.extend([mm.execute(out=out), mm.execute()])
            mm.reset_operands(a=columns)
            results.append(mm.execute())
        results.append(library.matmul(placed_a, placed_b, epilog="RELU"))

    streams.wait()
    with streams.current(side):
        everything()  # so that kernels are loaded: CUDA may wait for that
        streams.wait()
        streams.busy(4_000_000_000)
        everything()
        assert not streams.is_done(side), "something has waited"
        streams.wait()
    for result in results:
        assert_exact(library.get(result), np.maximum(wide(a) @ wide(b), 0))


# -- devices ------------------------------------------------------------------------------------------------


def current_by_driver() -> int:
    """The current device, asked of the driver itself; -1 for none."""
    device = ctypes.c_int(-1)
    return device.value if ctypes.CDLL("libcuda.so.1").cuCtxGetDevice(ctypes.byref(device)) == 0 else -1


def on_device(name: str, index: int, values):
    if name == "torch":
        import torch

        return torch.from_numpy(values).to(f"cuda:{index}")
    import cupy

    with cupy.cuda.Device(index):
        return cupy.asarray(values)


def test_r097_the_current_device_is_restored(library):
    a, b = library.put(np.eye(8, dtype=np.float32)), library.put(np.eye(8, dtype=np.float32))
    before = current_by_driver()
    with library.Matmul(a, b) as mm:
        mm.plan()
        mm.execute()
        library.matmul(a, b)
        assert current_by_driver() == before == current_device.current_index()
    assert current_by_driver() == before


@needs_two
def test_r097_operands_on_the_second_device_while_the_first_is_current(library):
    a, b = np.arange(64.0, dtype=np.float32).reshape(8, 8), np.eye(8, dtype=np.float32)
    placed = [on_device(library.name, 1, x) for x in (a, b)]
    on_device(library.name, 0, a)
    before = current_by_driver()
    with library.Matmul(*placed) as mm:
        mm.plan()
        for d in (mm.execute(), mm.execute(), host.matmul(*placed), host.matmul(*placed)):
            assert current_by_driver() == before
            assert getattr(d.device, "index", getattr(d.device, "id", None)) == 1
            assert_exact(library.get(d), a)


@needs_two
def test_r098_operands_on_two_devices_are_refused_with_both_names(library):
    eye = np.eye(8, dtype=np.float32)
    a, b = on_device(library.name, 0, eye), on_device(library.name, 1, eye)
    with pytest.raises(InvalidArgumentError, match=r"several devices: a on cuda:0, b on cuda:1"):
        host.matmul(a, b)
    with host.Matmul(a, a) as mm:
        mm.plan()
        for name in "ab":
            with pytest.raises(InvalidArgumentError, match=f"{name}: its device is cuda:1, and the plan is for cuda:0"):
                mm.reset_operands(**{name: b})
        with pytest.raises(InvalidArgumentError, match=r"^out: it is on cuda:1"):
            mm.execute(out=b)
        assert_exact(library.get(mm.execute()), eye)
