# SPDX-License-Identifier: Apache-2.0
"""Memory that work on one stream uses and another stream's pool gives out, on a GPU that is not there.

The stand-in for the driver carries everything out at once, so that the GPU is behind is said by events that are not
done. Also here: what short ways and captures must not take for granted.
"""

from __future__ import annotations

import gc

import numpy as np
import pytest

import nvmath_device.host as host
from nvmath_device.dtypes import float16, float32
from nvmath_device.errors import ArgumentTypeError, InvalidStateError
from nvmath_device.host import one_call, streams
from nvmath_device.host.array_matchers import matcher
from nvmath_device.host.arrays import view
from nvmath_device.host.streams import Retained
from tests.host import fakes
from tests.host.fake_gpu import CAPTURING, TORCH_STREAM, gpu
from tests.host.lt_model import OutOfBounds

__all__ = ["gpu"]  # the fixture

OTHER = 33  # a stream that is not PyTorch's current one
RANDOM = np.random.default_rng(4)


def numbers(*shape):
    return RANDOM.integers(-3, 4, shape).astype(np.float64)


@pytest.fixture
def behind(gpu, monkeypatch):
    """A GPU that has done nothing yet of what it was given. Calling it lets the GPU catch up."""
    recorded = []

    def record(event, stream):
        recorded.append(event)
        return (fakes.Status(0),)

    monkeypatch.setattr(gpu.driver, "cuEventRecord", record)
    monkeypatch.setattr(streams, "_retained", Retained())

    def catch_up():
        gpu.driver.done.update(recorded)
        streams._retained.release_done()
        gc.collect()

    return catch_up


def is_there(gpu, address):
    try:
        gpu.memory.at(address, 1)
    except OutOfBounds:
        return False
    return True


def planned(gpu, stream):
    """An object that copies A, executed on a stream; and the address of its memory."""
    a = gpu.array(numbers(5, 7), element=float32, steps=(2, 2))
    b = gpu.array(numbers(7, 4), element=float32)
    mm = host.Matmul(a, b)
    mm.plan()
    mm.execute(stream=stream)
    (run,) = mm._runs.values()
    return mm, run.memory.ptr


ENDS = {
    "free": lambda gpu, mm: mm.free(),
    "another plan": lambda gpu, mm: mm.plan(epilog="RELU"),
    "other strides": lambda gpu, mm: mm.reset_operands(a=gpu.array(numbers(5, 7), element=float32)),
    "released": lambda gpu, mm: mm.execute(stream=OTHER, release_workspace=True),
}


@pytest.mark.parametrize("end", ENDS)
def test_memory_of_a_plan_is_kept_while_another_stream_uses_it(gpu, behind, end):
    mm, address = planned(gpu, OTHER)
    ENDS[end](gpu, mm)
    if end == "free":
        del mm
    gc.collect()
    assert is_there(gpu, address)
    behind()
    assert not is_there(gpu, address)


def test_memory_of_a_plan_goes_back_at_once_in_the_order_of_its_own_stream(gpu, behind):
    mm, address = planned(gpu, TORCH_STREAM)
    mm.free()
    gc.collect()
    assert not is_there(gpu, address)


def test_operands_outlive_an_object_that_reads_them_on_another_stream(gpu, behind):
    a, b = (
        gpu.torch.empty_strided((4, 4), (4, 1), dtype=gpu.torch.float32, device=gpu.torch.device("cuda", 0))
        for _ in range(2)
    )
    addresses = a.ptr, b.ptr
    with host.Matmul(a, b) as mm:
        mm.plan()
        mm.execute(stream=OTHER)
    del a, b, mm
    gc.collect()
    assert all(is_there(gpu, address) for address in addresses)
    behind()
    assert not any(is_there(gpu, address) for address in addresses)


def test_an_execution_on_another_stream_follows_what_had_the_memory_before(gpu):
    """A pool gives memory in the order of the stream that it is taken on, and that is the plan's."""
    a, b = (gpu.array(numbers(4, 4), element=float32) for _ in range(2))
    mm = host.Matmul(a, b)
    mm.plan()
    gpu.log.clear()
    mm.execute(stream=OTHER)
    assert ("record", TORCH_STREAM) in gpu.log
    assert ("wait for event", OTHER) in gpu.log


@pytest.mark.parametrize("end", ["execute", "free"])
def test_a_stream_that_was_destroyed_stops_nothing(gpu, monkeypatch, end):
    """Nothing can be ordered after it any more, so the device is waited for."""
    a, b = numbers(4, 4), numbers(4, 4)
    mm = host.Matmul(gpu.array(a, element=float32), gpu.array(b, element=float32))
    mm.plan()
    mm.execute(stream=OTHER)
    record, waited = gpu.driver.cuEventRecord, []

    def refuse(event, stream):
        return (fakes.Status(400),) if stream == OTHER else record(event, stream)

    def wait():
        waited.append(True)
        return (fakes.Status(0),)

    monkeypatch.setattr(gpu.driver, "cuEventRecord", refuse)
    monkeypatch.setattr(gpu.driver, "cuCtxSynchronize", wait, raising=False)
    if end == "free":
        mm.free()
    else:
        assert np.array_equal(gpu.read(mm.execute()), a @ b)
    assert waited


# -- short ways ---------------------------------------------------------------------------------------------


def test_operands_that_are_reset_the_long_way_reach_a_plan_for_out_alone(gpu):
    """The object has a short way for its ``out`` and no plan for new results."""
    a, b, c = numbers(5, 7), numbers(7, 4), numbers(5, 4)
    out = gpu.array(np.zeros((5, 4)), element=float32, gaps=(0, 3))
    mm = host.Matmul(*(gpu.array(x, element=float32) for x in (a, b, c)), beta=1)
    mm.plan(out=out)
    for _ in range(2):
        mm.execute(out=out)
    assert np.array_equal(gpu.read(out), a @ b + c)
    a, c = numbers(5, 7), numbers(5, 4)
    mm.reset_operands(a=gpu.array(a, element=float32), c=gpu.array(c, element=float32))
    for _ in range(2):
        mm.execute(out=out)
        assert np.array_equal(gpu.read(out), a @ b + c)


@pytest.mark.parametrize("package", ["cupy", "torch"])
@pytest.mark.parametrize("order", "CF")
def test_a_function_that_is_only_called_with_out_finds_its_short_way(gpu, package, order, monkeypatch):
    a, b = numbers(5, 7), numbers(7, 4)
    operands = [gpu.array(x, package, element=float32) for x in (a, b)]
    out, other = (
        gpu.array(np.zeros((5, 4)), package, element=float32, order=o) for o in (order, "FC"["CF".index(order)])
    )
    host.clear_plans()
    host.matmul(*operands, out=out)

    def long_way(*arguments):
        raise AssertionError("the long way")

    with monkeypatch.context() as patch:
        patch.setattr(one_call, "_matmul", long_way)
        out = gpu.array(np.zeros((5, 4)), package, element=float32, order=order)
        assert host.matmul(*operands, out=out) is out
        assert np.array_equal(gpu.read(out), a @ b)
        for call in (lambda: host.matmul(*operands, out=other), lambda: host.matmul(*operands)):
            with pytest.raises(AssertionError, match="the long way"):
                call()
    host.matmul(*operands, out=other)
    assert np.array_equal(gpu.read(other), a @ b)


def test_a_new_result_is_of_the_usual_type_after_an_out_of_another(gpu):
    a, b = numbers(5, 7), numbers(7, 4)
    with host.Matmul(*(gpu.array(x, "cupy", element=float16) for x in (a, b))) as mm:
        mm.plan()
        for _ in range(3):
            out = gpu.array(np.zeros((5, 4)), "cupy", element=float32)
            mm.execute(out=out)
            assert np.array_equal(gpu.read(out), a @ b)
            result = mm.execute()
            assert result.dtype == np.float16
            assert np.array_equal(gpu.read(result), a @ b)


@pytest.mark.parametrize(("alignment", "looks"), [(16, False), (8, False), (4, True)])
def test_a_lazy_sign_is_looked_for_where_an_address_allows_one(gpu, alignment, looks):
    """The imaginary part of a complex number starts at an odd multiple of its size."""
    like = gpu.array(numbers(4, 4), element=float32)
    match = matcher(view(like), alignment)
    assert match(like) == like.ptr
    like.neg = True
    assert match(like) == (0 if looks else like.ptr)


@pytest.mark.parametrize("wrong", ["the fastest", 3, b"x" * 64])
def test_what_is_no_algorithm_is_refused(gpu, wrong):
    a, b = (gpu.array(numbers(4, 4), element=float32) for _ in range(2))
    mm = host.Matmul(a, b)
    mm.plan()
    for call in (lambda: mm.execute(algorithm=wrong), lambda: host.matmul(a, b, algorithm=wrong)):
        with pytest.raises(ArgumentTypeError, match=r"algorithm: .* that plan\(\) returns"):
            call()


# -- captures -----------------------------------------------------------------------------------------------


def test_the_function_has_no_memory_for_copies_in_a_graph(gpu):
    """What it takes goes back when the call ends, and the graph runs later."""
    a = gpu.array(numbers(5, 7), element=float32, steps=(2, 2))
    b, out = gpu.array(numbers(7, 4), element=float32), gpu.array(np.zeros((5, 4)), element=float32)
    host.matmul(a, b, out=out, options={"memory_limit": 0})
    with pytest.raises(InvalidStateError, match=r"memory for copies.*use Matmul"):
        host.matmul(a, b, out=out, options={"memory_limit": 0}, stream=CAPTURING)


def test_looking_what_is_done_breaks_no_capture(gpu, monkeypatch):
    """CUDA forbids it while a graph is captured, unless the thread says that it knows what it does."""
    modes, query = [], gpu.driver.cuEventQuery

    def asked(event):
        modes.append(gpu.driver.capture_mode)
        return query(event)

    monkeypatch.setattr(gpu.driver, "cuEventQuery", asked)
    retained = Retained()
    retained.keep(OTHER, object())
    retained.release_done()
    assert modes == [gpu.driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED]
    assert gpu.driver.capture_mode == 0
