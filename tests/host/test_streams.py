# SPDX-License-Identifier: Apache-2.0
"""Streams of every kind as handles, and the order of events that is asked of the driver."""

from __future__ import annotations

import sys
import weakref
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError, NoDeviceError
from nvmath_device.host import streams
from nvmath_device.host.array_view import CPU, Device
from nvmath_device.host.streams import Retained, StreamHandle, is_gone, order_after, same_stream, stream_handle
from tests.host import fakes

GPU = Device("cuda", 1)


def stream(module="somewhere", **members):
    made = fakes.class_in(module, "Stream")()
    made.__dict__.update(members)
    return made


# -- handles ------------------------------------------------------------------------------------------------


def test_none_is_the_current_stream_of_the_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", fakes.fake_cupy(current_stream=71))
    monkeypatch.setitem(sys.modules, "torch", fakes.fake_torch(current_stream=72))
    assert stream_handle(None, "cupy", GPU) == 71
    assert stream_handle(None, "torch", GPU) == 72
    monkeypatch.setitem(sys.modules, "torch", fakes.fake_torch(current_stream=73, raw=True))
    assert stream_handle(None, "torch", GPU) == 73
    assert stream_handle(None, "torch", CPU) == 0


@pytest.mark.parametrize("package", ["numpy", "jax", "generic", "cuda.core"])
def test_without_a_current_stream_it_is_the_legacy_default(package):
    assert stream_handle(None, package, GPU) == 0


@pytest.mark.parametrize(("per_thread", "handle"), [(0, 0), (1, 2)])
def test_numbas_default_stream_is_what_its_configuration_says(monkeypatch, per_thread, handle):
    config = ModuleType("numba.cuda.core.config")
    config.CUDA_PER_THREAD_DEFAULT_STREAM = per_thread
    monkeypatch.setitem(sys.modules, "numba.cuda.core.config", config)
    assert stream_handle(None, "numba", GPU) == handle


def test_the_current_stream_is_asked_of_the_operands_device(monkeypatch):
    asked = []
    cupy = fakes.fake_cupy()
    cupy.cuda.get_current_stream = lambda index: asked.append(index) or SimpleNamespace(ptr=5)
    torch = fakes.fake_torch()
    torch.cuda.current_stream = lambda index: asked.append(index) or SimpleNamespace(cuda_stream=5)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "torch", torch)
    stream_handle(None, "cupy", Device("cuda", 3))
    stream_handle(None, "torch", Device("cuda", 4))
    assert asked == [3, 4]


@pytest.mark.parametrize("handle", [0, 1, 2, 2**47, np.int64(99)])
def test_integers_are_handles(handle):
    found = stream_handle(handle, "numpy", GPU)
    assert (type(found), found) == (int, int(handle))


@pytest.mark.parametrize("module", ["cuda.core._stream", "torch.cuda.streams", "cupy.cuda.stream", "users.own"])
def test_the_protocol_works_whatever_the_library(module):
    assert stream_handle(stream(module, __cuda_stream__=lambda: (0, 1234)), "cupy", GPU) == 1234
    assert stream_handle(stream(module, __cuda_stream__=(0, 1235)), "torch", GPU) == 1235


def test_streams_from_before_the_protocol():
    assert stream_handle(stream("torch.cuda.streams", cuda_stream=5), "numpy", GPU) == 5
    assert stream_handle(stream("cupy.cuda.stream", ptr=6), "numpy", GPU) == 6
    assert stream_handle(stream("numba.cuda.cudadrv.driver", handle=SimpleNamespace(value=7)), "numpy", GPU) == 7
    assert stream_handle(stream("numba.cuda.cudadrv.driver", handle=SimpleNamespace(value=None)), "numpy", GPU) == 0
    driver_stream = fakes.class_in("cuda.bindings.driver", "CUstream", __int__=lambda self: 8)()
    assert stream_handle(driver_stream, "numpy", GPU) == 8


@pytest.mark.parametrize("wrong", [True, False, 3.5, "7", [1], object(), SimpleNamespace(ptr=3)], ids=repr)
def test_what_is_no_stream_is_refused_in_words(wrong):
    with pytest.raises(ArgumentTypeError, match=r"^stream: .* not a stream; give None .*__cuda_stream__\(\).*an int"):
        stream_handle(wrong, "cupy", GPU)


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        (-1, InvalidArgumentError, "negative"),
        (stream(__cuda_stream__=lambda: (1, 5)), InvalidArgumentError, "version 1; known is version 0"),
        (stream(__cuda_stream__=lambda: 5), ArgumentTypeError, r"gave 5; it must give \(0, handle\)"),
        (stream(__cuda_stream__=lambda: (0, "x")), ArgumentTypeError, "handle 'x', which is not an integer"),
        (stream("cupy.cuda", ptr=5, device_id=0), InvalidArgumentError, "of cuda:0 and the operands are on cuda:1"),
        (stream("torch.cuda", cuda_stream=5, device_index=3), InvalidArgumentError, "of cuda:3 and the operands"),
        (stream(__cuda_stream__=lambda: (0, 5), device_id=2), InvalidArgumentError, "of cuda:2"),
    ],
)
def test_r097_streams_that_cannot_be_right(wrong, error, words):
    with pytest.raises(error, match=f"^s: .*{words}"):
        stream_handle(wrong, "cupy", GPU, "s")


def test_default_streams_of_cupy_are_of_any_device():
    assert stream_handle(stream("cupy.cuda", ptr=0, device_id=-1), "cupy", GPU) == 0
    assert stream_handle(stream("cupy.cuda", ptr=5, device_id=1), "cupy", GPU) == 5


@pytest.mark.parametrize(("module", "members"), [("cupy.cuda.stream", {"ptr": 77}), ("numba.cuda", {"handle": 77})])
def test_it_is_known_when_a_library_destroys_a_stream(module, members):
    made = stream(module, **members)
    handle = stream_handle(made, "cupy", GPU)
    assert (type(handle), handle, hash(handle)) == (StreamHandle, 77, hash(77))
    assert stream_handle(handle, "cupy", GPU) is handle
    assert not is_gone(handle)
    del made
    assert is_gone(handle)


@pytest.mark.parametrize(
    "kept",
    [7, stream("cupy.cuda.stream", ptr=0), stream("torch.cuda.streams", cuda_stream=7), stream(__cuda_stream__=(0, 7))],
)
def test_of_other_streams_it_is_not_known(kept):
    assert not is_gone(stream_handle(kept, "cupy", GPU))
    assert type(stream_handle(kept, "cupy", GPU)) is int


def test_the_legacy_default_stream_has_two_handles():
    assert same_stream(0, 1)
    assert same_stream(7, 7)
    assert not same_stream(0, 2)


# -- order --------------------------------------------------------------------------------------------------


@pytest.fixture
def driver(monkeypatch):
    made = fakes.FakeDriver()
    monkeypatch.setattr(streams, "bindings", lambda: made)
    return made


def test_r096_order_is_one_event_and_no_synchronisation(driver):
    order_after(10, 20)
    assert driver.calls == [("create", 2), ("record", 1, 20), ("wait", 10, 1, 0), ("destroy", 1)]


def test_a_destroyed_stream_is_not_named_to_the_driver(driver):
    made = stream("cupy.cuda.stream", ptr=20)
    handle = stream_handle(made, "cupy", GPU)
    del made
    order_after(10, handle)
    order_after(20, handle)  # another stream at the same address
    assert driver.calls == [("synchronize context",)] * 2


@pytest.mark.parametrize("pair", [(5, 5), (0, 1), (1, 0), (0, 0)])
def test_a_stream_is_in_order_with_itself(driver, pair):
    order_after(*pair)
    assert driver.calls == []


@pytest.mark.parametrize("failing", ["record", "wait"])
def test_a_dead_stream_is_reported_and_no_event_is_lost(driver, failing):
    driver.failing = (failing,)
    with pytest.raises(InvalidArgumentError, match=r"^stream: .*CUDA_ERROR_INVALID_HANDLE.*; is the stream alive"):
        order_after(10, 20)
    assert [c[0] for c in driver.calls].count("destroy") == 1


def test_without_a_driver_it_says_so(monkeypatch):
    def cuEventCreate(flags):
        raise RuntimeError("no libcuda")

    bindings = SimpleNamespace(cuEventCreate=cuEventCreate, CUevent_flags=fakes.FakeDriver.CUevent_flags)
    monkeypatch.setattr(streams, "bindings", lambda: bindings)
    with pytest.raises(NoDeviceError, match="cuEventCreate: no libcuda"):
        order_after(10, 20)


class Thing:
    pass


def test_retained_objects_live_until_the_gpu_is_done(driver):
    retained, things = Retained(), [Thing() for _ in range(3)]
    alive = [weakref.ref(thing) for thing in things]
    for thing in things:
        retained.keep(20, thing)
    del thing, things
    assert [ref() is not None for ref in alive] == [True] * 3
    driver.done = {2}  # the oldest is still running
    retained.release_done()
    assert [ref() is not None for ref in alive] == [True] * 3
    driver.done = {1, 2}
    retained.release_done()
    assert [ref() is not None for ref in alive] == [False, False, True]
    assert len(retained) == 1
    retained.clear()
    assert alive[2]() is None
    assert ("synchronize", 3) in driver.calls
    assert sorted(c[1] for c in driver.calls if c[0] == "destroy") == [1, 2, 3]


def test_keeping_releases_what_is_done(driver):
    retained = Retained()
    first = Thing()
    gone = weakref.ref(first)
    retained.keep(20, first)
    del first
    driver.done = {1}
    retained.keep(20, Thing())
    assert gone() is None
    assert len(retained) == 1
