# SPDX-License-Identifier: Apache-2.0
"""Current devices, what is kept for each, and what happens to it in threads and forked processes.

A stand-in takes the place of the driver, with contexts as numbers: 100 + the device's ordinal.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from types import SimpleNamespace

import pytest

from nvmath_device.errors import DriverError, InvalidArgumentError, MissingDependencyError, NoDeviceError
from nvmath_device.host import current_device, driver
from nvmath_device.host.current_device import current_index, device_count, handle, is_capturing, on_device
from tests.host import fakes

DEVICES = 3
INVALID_CONTEXT, INVALID_DEVICE, ILLEGAL_ADDRESS, CAPTURE_IMPLICIT = 201, 101, 700, 906


def status(number, name="CUDA_ERROR"):
    made = fakes.Status(number)
    made.name = name
    return made


class FakeDriver:
    """Contexts as CUDA has them: one a thread, none at first."""

    CUdevice_attribute = SimpleNamespace(
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR="major", CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR="minor"
    )

    def __init__(self):
        self.thread = threading.local()
        self.calls, self.capturing, self.count = [], {}, DEVICES
        self.CUresult = lambda number: status(number, f"CUDA_ERROR_{number}")

    def context(self):
        return getattr(self.thread, "context", 0)

    def _note(self, name, *arguments):
        self.calls.append((name, *arguments))
        return status(0)

    def cuInit(self, flags):
        return (self._note("init"),)

    def cuCtxGetCurrent(self):
        return self._note("get"), self.context()

    def cuCtxSetCurrent(self, context):
        self.thread.context = context
        return (self._note("set", context),)

    def cuDevicePrimaryCtxRetain(self, device):
        time.sleep(0.01)  # so that threads meet here
        return self._note("retain", device), 100 + device

    def cuDeviceGetCount(self):
        return (self._note("count"), self.count) if self.count else (status(100, "CUDA_ERROR_NO_DEVICE"), 0)

    def cuDeviceGet(self, index):
        known = 0 <= index < self.count
        return status(0 if known else INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE"), index

    def cuDeviceGetAttribute(self, which, device):
        return self._note("attribute", which), {"major": 9, "minor": device}[which]

    def cuDeviceTotalMem(self, device):
        return self._note("memory"), (device + 1) << 30

    def cuDeviceGetName(self, length, device):
        return self._note("name"), f"Fake {device}".encode().ljust(length, b"\0")

    # what is called through ctypes

    def cuCtxGetDevice(self, reference):
        if not self.context():
            return INVALID_CONTEXT
        ctypes.cast(reference, ctypes.POINTER(ctypes.c_int))[0] = self.context() % 100
        return 0

    def cuStreamIsCapturing(self, stream, answer):
        number, value = self.capturing.get(stream, (0, 0))
        ctypes.cast(answer, ctypes.POINTER(ctypes.c_int))[0] = value
        return number

    def names(self):
        return [call[0] for call in self.calls]


@pytest.fixture(autouse=True)
def cuda(monkeypatch):
    made = FakeDriver()
    monkeypatch.setattr(driver, "bindings", lambda: made)
    monkeypatch.setattr(current_device, "bindings", lambda: made)
    monkeypatch.setattr(current_device, "_get_device", made.cuCtxGetDevice)
    monkeypatch.setattr(current_device, "_ask_capturing", lambda: made.cuStreamIsCapturing)
    for kept in ("_contexts", "_handles"):
        monkeypatch.setattr(current_device, kept, {})
    cached = [
        getattr(current_device, name) for name in ("device_count", "compute_capability", "total_memory", "device_name")
    ]
    for function in cached:
        function.cache_clear()
    yield made
    for function in cached:
        function.cache_clear()


# -- current ------------------------------------------------------------------------------------------------


def test_no_device_is_current_in_a_new_thread(cuda):
    cuda.thread.context = 102
    seen = []
    thread = threading.Thread(target=lambda: seen.append(current_index()))
    thread.start()
    thread.join()
    assert (seen, current_index()) == ([-1], 2)


def test_a_device_that_is_current_already_costs_no_call(cuda):
    cuda.thread.context = 101
    with on_device(1):
        assert cuda.calls == []
    assert (cuda.calls, cuda.context()) == ([], 101)


@pytest.mark.parametrize("before", [0, 102, 7700])
def test_what_was_current_is_again_afterwards(cuda, before):
    """7700: a context of somebody's own, on device 0."""
    cuda.thread.context = before
    with on_device(1):
        assert (cuda.context(), current_index()) == (101, 1)
    assert cuda.context() == before


def test_a_context_of_somebodys_own_on_the_device_stays(cuda):
    cuda.thread.context = 7700
    with on_device(0):
        assert cuda.context() == 7700


def test_errors_inside_restore_it_too(cuda):
    with pytest.raises(KeyError), on_device(2):
        raise KeyError
    assert cuda.context() == 0


def test_nesting(cuda):
    seen = []
    with on_device(1):
        with on_device(2), on_device(2), on_device(0):
            seen.append(current_index())
        seen.append(current_index())
    assert (seen, cuda.context()) == ([0, 1], 0)


def test_the_primary_context_is_retained_once_for_all_threads(cuda):
    def use():
        with on_device(1):
            seen.append(current_index())

    seen = []
    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (seen, cuda.names().count("retain")) == ([1] * 8, 1)


def test_a_device_that_is_not_there_is_named_and_nothing_changes(cuda):
    cuda.thread.context = 102
    with pytest.raises(InvalidArgumentError, match="no cuda:3; this process sees cuda:0 to cuda:2"), on_device(3):
        pass
    assert cuda.context() == 102
    device_count.cache_clear()
    cuda.count = 1
    with pytest.raises(InvalidArgumentError, match="no cuda:1; this process sees cuda:0 alone"):
        current_device.compute_capability(1)


# -- streams ------------------------------------------------------------------------------------------------


def test_capture(cuda):
    big = 2**47 + 8
    cuda.capturing = {big: (0, 1), 6: (0, 2)}  # 2: a capture that is broken already
    assert [is_capturing(s) for s in (big, 6, 5, 0)] == [True, True, False, False]


def test_the_default_stream_while_another_captures_is_refused_in_words(cuda):
    cuda.capturing = {0: (CAPTURE_IMPLICIT, 0)}
    with pytest.raises(InvalidArgumentError, match=r"^stream: the legacy default stream .*give the stream that capt"):
        is_capturing(0)


def test_r103_capture_reports_an_earlier_kernel(cuda):
    cuda.capturing = {5: (ILLEGAL_ADDRESS, 0)}
    with pytest.raises(DriverError, match=r"earlier kernel failed: CUDA_ERROR_700.*cuStreamIsCapturing was the next"):
        is_capturing(5)


# -- devices ------------------------------------------------------------------------------------------------


def test_what_a_device_is_is_asked_once(cuda):
    for _ in range(2):
        assert device_count() == 3
        assert current_device.compute_capability(2) == (9, 2)
        assert current_device.total_memory(1) == 2 << 30
        assert current_device.device_name(1) == "Fake 1"
    assert sorted(cuda.names()) == ["attribute", "attribute", "count", "memory", "name"]


def missing_driver():
    raise NoDeviceError("no driver")


def missing_bindings():
    raise MissingDependencyError("no bindings")


@pytest.mark.parametrize("absent", [missing_driver, missing_bindings, None])
def test_without_driver_bindings_or_devices_there_are_none(cuda, monkeypatch, absent):
    cuda.count = 0
    if absent:
        monkeypatch.setattr(current_device, "bindings", absent)
    assert device_count() == 0


def test_without_a_driver_the_current_device_is_an_error_in_words(monkeypatch):
    def absent(kind):
        raise NoDeviceError("no CUDA driver: libcuda.so.1")

    monkeypatch.setattr(current_device, "_get_device", current_device._bind_get_device)
    monkeypatch.setattr(current_device, "library", absent)
    with pytest.raises(NoDeviceError, match="no CUDA driver"):
        current_index()


# -- handles ------------------------------------------------------------------------------------------------


class FakeHandle:
    made = ()

    def __init__(self):
        time.sleep(0.01)
        self.device = current_index()
        FakeHandle.made += (self,)


@pytest.fixture
def handles(monkeypatch):
    monkeypatch.setattr(current_device.cublaslt, "Handle", FakeHandle)
    monkeypatch.setattr(FakeHandle, "made", ())


def test_one_handle_a_device_made_on_it_by_one_of_many_threads(cuda, handles):
    def use(index):
        got.append((index, handle(index)))

    got = []
    threads = [threading.Thread(target=use, args=(i % 2,)) for i in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(FakeHandle.made) == 2
    assert all(found.device == index for index, found in got)
    assert len({(index, id(found)) for index, found in got}) == 2
    assert handle(0) is handle(0)
    assert cuda.context() == 0


def test_a_handle_that_cannot_be_made_is_tried_again(cuda, monkeypatch, handles):
    def refuses():
        raise DriverError("no")

    monkeypatch.setattr(current_device.cublaslt, "Handle", refuses)
    with pytest.raises(DriverError):
        handle(0)
    assert cuda.context() == 0
    monkeypatch.setattr(current_device.cublaslt, "Handle", FakeHandle)
    assert handle(0).device == 0


def in_forked_child(check) -> None:
    """Run ``check`` in a forked child, which must end within 20 s and be content."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if check() else 2
        finally:
            os._exit(code)
    for _ in range(2000):
        done, code = os.waitpid(child, os.WNOHANG)
        if done:
            assert os.waitstatus_to_exitcode(code) == 0
            return
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    raise AssertionError("the child hangs")


def test_a_forked_child_makes_its_own_even_when_the_parent_was_making_one(cuda, handles):
    mine = handle(0)
    ready, go = threading.Event(), threading.Event()

    def hold():
        with current_device._lock:
            ready.set()
            go.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    ready.wait()
    try:
        in_forked_child(lambda: handle(0) is not mine and handle(0).device == 0 and cuda.names().count("retain") == 2)
    finally:
        go.set()
        holder.join()
    assert handle(0) is mine
