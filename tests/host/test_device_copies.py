# SPDX-License-Identifier: Apache-2.0
"""Copies as the driver is asked for them. The driver stands over CPU memory and carries them out, so that what
arrives can be compared with NumPy; the kernel is ``copy_cases.kernel_addresses``.
"""

from __future__ import annotations

import ctypes
import gc
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvmath_device.errors import DriverError, InvalidArgumentError
from nvmath_device.host import copy_kernel, device_copies, streams
from nvmath_device.host.device_copies import apply, plan_copy, prepare, to_device, to_host, wait
from tests.host import fakes
from tests.host.copy_cases import aligned, cases, kernel_addresses

CAPTURING = 66


class MemoryDriver(fakes.FakeDriver):
    """Carries out at once what it is asked for, on CPU memory, and notes it with its stream."""

    def cuMemcpyDtoDAsync(self, destination, source, nbytes, stream):
        ctypes.memmove(destination, source, nbytes)
        return (self._call("on the GPU", nbytes, stream),)

    def cuMemcpyHtoDAsync(self, destination, source, nbytes, stream):
        ctypes.memmove(destination, source, nbytes)
        return (self._call("to the GPU", nbytes, stream),)

    def cuMemcpyDtoHAsync(self, destination, source, nbytes, stream):
        ctypes.memmove(destination, source, nbytes)
        return (self._call("to the CPU", nbytes, stream),)

    def cuMemsetD8Async(self, destination, value, nbytes, stream):
        ctypes.memset(destination, value, nbytes)
        return (self._call("fill", nbytes, stream),)

    def cuStreamSynchronize(self, stream):
        self.done = set(range(1, self.events + 1))
        return (self._call("wait", stream),)

    def cuLaunchKernel(self, function, blocks, y, z, threads, *rest):
        assert (y, z, threads, rest[:3], rest[5]) == (1, 1, 256, (1, 1, 0), 0)
        place = ctypes.cast(rest[4], ctypes.POINTER(ctypes.c_void_p))[0]
        parameters = copy_kernel.Parameters.from_address(place)
        unit = int(function.split("_")[1])
        flip = np.frombuffer(bytes(parameters.flip), np.uint8)[:unit]
        source, destination = kernel_addresses(function, blocks, parameters)
        assert not (source % unit).any()
        assert not (destination % unit).any()
        for start, to in zip(source.tolist(), destination.tolist(), strict=True):
            value = np.frombuffer(ctypes.string_at(start, unit), np.uint8) ^ flip
            ctypes.memmove(to, value.tobytes(), unit)
        return (self._call("launch", function, rest[3]),)


@pytest.fixture(autouse=True)
def driver(monkeypatch):
    made = MemoryDriver()
    for module in (copy_kernel, device_copies, streams):
        monkeypatch.setattr(module, "bindings", lambda: made)
    monkeypatch.setattr(copy_kernel, "loaded", lambda function: made.calls.append(("loaded", function)) or function)
    monkeypatch.setattr(device_copies, "is_capturing", lambda stream: stream == CAPTURING)
    monkeypatch.setattr(device_copies, "_being_read", streams.Retained())
    return made


# -- on the GPU ---------------------------------------------------------------------------------------------


@given(case=cases(max_units=600), data=st.data())
@settings(max_examples=300)
def test_what_arrives_is_what_numpy_makes(case, data):
    """Addresses are aligned to anything, also to less than the plan was made for."""
    alignment, source_is, destination_is = (data.draw(st.sampled_from([1, 2, 4, 8, 16])) for _ in range(3))
    driver = MemoryDriver()
    with pytest.MonkeyPatch.context() as patch:
        for module in (copy_kernel, device_copies):
            patch.setattr(module, "bindings", lambda: driver)
        positional, named = case.arguments()
        copy = plan_copy(*positional, **named, alignment=alignment)
        values, untouched = case.buffers()
        source, destination = aligned(values.size, source_is), aligned(untouched.size, destination_is)
        source[...], destination[...] = values, untouched
        apply(copy, source.ctypes.data + case.source.first, destination.ctypes.data + case.destination.first, 5)
    assert destination.tobytes() == case.copied().tobytes()
    assert {call[-1] for call in driver.calls} <= {5}


def test_the_order_is_fill_then_copy_on_the_callers_stream(driver):
    source, destination = aligned(64, 0), aligned(128, 0)
    source[...] = np.arange(64)
    apply(plan_copy((4, 4), (1, 4), (8, 1), 4, fill_zero=128), source.ctypes.data, destination.ctypes.data, 9)
    assert [call for call in driver.calls if call[0] != "loaded"] == [("fill", 128, 9), ("launch", "units_4", 9)]
    padded = np.zeros((4, 8), np.int32)
    padded[:, :4] = np.frombuffer(source, np.int32).reshape(4, 4).T
    assert destination.tobytes() == padded.tobytes()


def test_dense_copies_need_no_kernel(driver):
    source, destination = aligned(400, 0), aligned(400, 0)
    copy = plan_copy((10, 10), (10, 1), (10, 1), 4)
    prepare(copy)
    apply(copy, source.ctypes.data, destination.ctypes.data, 0)
    assert driver.calls == [("on the GPU", 400, 0)]


def test_preparing_loads_what_is_launched_later(driver):
    prepare(plan_copy((40, 40), (1, 40), (40, 1), 4))
    assert driver.calls == [("loaded", "tiles_4")]


def test_less_aligned_addresses_are_moved_in_narrower_pieces(driver):
    source, destination = aligned(4096, 8), aligned(4096, 0)
    copy = plan_copy((8, 16), (32, 1), (16, 1), 2)
    apply(copy, source.ctypes.data - 8, destination.ctypes.data, 0)
    apply(copy, source.ctypes.data, destination.ctypes.data, 0)
    apply(copy, source.ctypes.data - 2, destination.ctypes.data, 0)
    assert [call[1] for call in driver.calls if call[0] == "launch"] == ["units_16", "units_8", "units_2"]


def test_an_empty_copy_asks_nothing_of_the_driver(driver):
    apply(plan_copy((0, 4), (4, 1), (8, 1), 4), 0, 0, 0)
    assert driver.calls == []


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        ("cuLaunchKernel", ((4, 4), (1, 4), (4, 1), 4)),
        ("cuMemcpyDtoDAsync", ((4, 4), (4, 1), (4, 1), 4)),
        ("cuMemsetD8Async", ((4, 0), (4, 1), (4, 1), 4)),
    ],
)
@pytest.mark.parametrize(("number", "error"), [(400, InvalidArgumentError), (700, DriverError)])
def test_r103_failures_of_any_step_are_reported(driver, function, arguments, number, error):
    def fails(*_):
        return (fakes.Status(number),)

    fails.__name__ = function
    setattr(driver, function, fails)
    with pytest.raises(error, match=function):
        apply(plan_copy(*arguments, fill_zero=64 if 0 in arguments[0] else 0), 0x1000, 0x2000, 5)


# -- between CPU and GPU ------------------------------------------------------------------------------------

CONTIGUOUS = {"C": lambda x: x, "Fortran": lambda x: x.T, "vector": lambda x: x[1], "empty": lambda x: x[:0]}


@pytest.mark.parametrize("cut", CONTIGUOUS.values(), ids=CONTIGUOUS)
def test_bytes_go_to_the_gpu_and_back_as_they_lie(driver, cut):
    array = cut(np.arange(12, dtype=np.float32).reshape(3, 4))
    device = aligned(64, 0)
    to_device(array, device.ctypes.data, 7)
    assert "wait" not in [call[0] for call in driver.calls]
    back = np.empty_like(array)
    to_host(device.ctypes.data, back, 7)
    assert np.array_equal(back, array)
    assert driver.calls.count(("wait", 7)) == 1


def test_to_host_waits_after_the_copy(driver):
    to_host(aligned(64, 0).ctypes.data, np.empty(4), 7)
    assert driver.calls == [("to the CPU", 32, 7), ("wait", 7)]


@pytest.mark.parametrize(
    "finish", [lambda ptr: wait(7), lambda ptr: to_host(ptr, np.empty(0), 7)], ids=["wait", "to_host"]
)
def test_an_array_lives_until_it_has_been_read(driver, finish):
    """Nothing of the caller's holds it: a contiguous copy made on the way, say."""

    class Array(np.ndarray):
        pass

    array = np.arange(8.0).view(Array)
    alive, device = weakref.ref(array), aligned(64, 0)
    to_device(array, device.ctypes.data, 7)
    del array
    gc.collect()
    assert alive() is not None
    finish(device.ctypes.data)
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("cut", [lambda x: x[:, ::2], lambda x: x[::-1], lambda x: x[:, 1:3]])
def test_arrays_with_gaps_are_refused(driver, cut):
    array = cut(np.zeros((3, 4)))
    for move in (lambda: to_device(array, 0x1000, 7), lambda: to_host(0x1000, array, 7)):
        with pytest.raises(InvalidArgumentError, match=r"^array: shape .* strides .* has gaps; pass a contiguous copy"):
            move()
    assert driver.calls == []


def test_a_read_only_array_takes_no_result(driver):
    array = np.zeros(4)
    array.setflags(write=False)
    to_device(array, aligned(64, 0).ctypes.data, 7)
    with pytest.raises(InvalidArgumentError, match=r"^array: it is read-only"):
        to_host(0x1000, array, 7)


def test_nothing_is_moved_or_waited_for_while_the_stream_captures(driver):
    for move in (
        lambda: to_device(np.zeros(4), 0x1000, CAPTURING),
        lambda: to_host(0x1000, np.zeros(4), CAPTURING),
        lambda: wait(CAPTURING),
    ):
        with pytest.raises(InvalidArgumentError, match=r"^stream: .* while the stream captures a CUDA graph; use"):
            move()
    assert driver.calls == []


def test_strided_copies_may_be_captured(driver):
    source, destination = aligned(64, 0), aligned(64, 0)
    apply(plan_copy((4, 4), (1, 4), (4, 1), 4, fill_zero=64), source.ctypes.data, destination.ctypes.data, CAPTURING)
    assert [call[0] for call in driver.calls] == ["fill", "loaded", "launch"]


def test_r103_an_earlier_kernels_failure_shows_when_the_result_is_fetched(driver):
    driver.cuStreamSynchronize = SimpleNamespace(__name__="cuStreamSynchronize")

    def cuStreamSynchronize(stream):
        return (fakes.Status(716),)

    driver.cuStreamSynchronize = cuStreamSynchronize
    with pytest.raises(DriverError, match=r"an earlier kernel failed: .*status 716"):
        to_host(aligned(64, 0).ctypes.data, np.empty(4), 7)
