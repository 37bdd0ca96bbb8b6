# SPDX-License-Identifier: Apache-2.0
"""Timing and ordering of algorithms on a modelled GPU: a stream, a clock on each side, and an L2 cache."""

from __future__ import annotations

import logging
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nvmath_device.errors import (
    ArgumentTypeError,
    DeviceMemoryError,
    DriverError,
    HostLibraryError,
    InvalidArgumentError,
)
from nvmath_device.host import autotune as module
from nvmath_device.host.algorithms import Algorithm
from nvmath_device.host.array_view import cuda_device
from nvmath_device.host.autotune import Timing, autotune, measure
from nvmath_device.host.device_memory import Memory
from nvmath_device.host.options import MatmulOptions
from tests.host.algorithm_fakes import can, result

STREAM = 0x51
MEMORY = 0x7F00_0000_0000
L2_BYTES = 60 << 20
SHOTS = 5  # of short kernels, as all here are but where it is said, in a round
WARM = 20  # runs of a loop, without a flush


class Gpu:
    """One stream. Times are in microseconds; each call of the driver costs the host ``call_us``.

    ``flushed`` is whether the cache was overwritten since the last kernel.
    """

    call_us = 2.0
    memset_us = 30.0

    def __init__(self) -> None:
        self.host = self.done = 0.0
        self.flushed = False
        self.memsets: list[tuple[int, int]] = []
        self.events: set[Any] = set()
        self.capturing = False
        self.dies_at_synchronize = math.inf
        self.synchronized = 0

    def put(self, duration: float) -> None:
        self.host += self.call_us
        self.done = max(self.done, self.host) + duration

    # -- the driver --

    CUdevice_attribute = SimpleNamespace(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE="L2")
    CUevent_flags = SimpleNamespace(CU_EVENT_DEFAULT=0)

    def cuDeviceGet(self, index: int) -> tuple[int, int]:
        return 0, index

    def cuDeviceGetAttribute(self, kind: str, device: int) -> tuple[int, int]:
        assert (kind, device) == ("L2", 3)
        return 0, L2_BYTES

    def cuMemsetD32Async(self, ptr: int, value: int, count: int, stream: int) -> tuple[int]:
        assert stream == STREAM
        self.memsets.append((ptr, 4 * count))
        self.flushed = True
        self.put(self.memset_us)
        return (0,)

    def cuEventCreate(self, flags: int) -> tuple[int, Any]:
        assert flags == 0, "an event with timing"
        event = SimpleNamespace(time=None)
        self.events.add(id(event))
        return 0, event

    def cuEventRecord(self, event: Any, stream: int) -> tuple[int]:
        assert stream == STREAM
        self.put(0.0)
        event.time = self.done
        return (0,)

    def cuEventElapsedTime(self, start: Any, stop: Any) -> tuple[int, float]:
        assert self.host >= stop.time, "read before it was reached"
        return 0, (stop.time - start.time) / 1e3

    def cuEventDestroy(self, event: Any) -> tuple[int]:
        self.events.remove(id(event))
        return (0,)

    def cuStreamSynchronize(self, stream: int) -> tuple[int]:
        self.synchronized += 1
        self.host = max(self.host, self.done)
        return (700 if self.synchronized >= self.dies_at_synchronize else 0,)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    model = Gpu()

    def memory_of(package: str, device: Any, *, purpose: str) -> Callable[[int, int], Memory]:
        assert (package, device) == ("generic", cuda_device(3))
        return lambda nbytes, stream: Memory(MEMORY, nbytes, None)

    monkeypatch.setattr(module, "bindings", lambda: model)
    monkeypatch.setattr(module, "memory_of", memory_of)
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: model.host / 1e6))
    here = SimpleNamespace(current_index=lambda: 3, is_capturing=lambda stream: model.capturing)
    monkeypatch.setattr(module, "current_device", here)
    return model


class Kernels:
    """A ``run_one``: what each algorithm takes on the GPU, by its number, and what the host needs to launch it."""

    def __init__(self, gpu: Gpu, took: Callable[[int], float], host_us: float = 20.0) -> None:
        self.gpu, self.took, self.host_us = gpu, took, host_us
        self.ran: list[int] = []
        self.cold: list[bool] = []

    def __call__(self, algorithm: Algorithm) -> None:
        number = algorithm.algorithm_id
        self.ran.append(number)
        self.cold.append(self.gpu.flushed)
        self.gpu.host += self.host_us
        self.gpu.put(self.took(number))
        self.gpu.flushed = False


def algorithms(*numbers: int) -> tuple[Algorithm, ...]:
    return tuple(Algorithm(result(number)) for number in numbers)


# -- measuring -----------------------------------------------------------------------------------------------


def test_times_are_the_gpus_and_in_the_order_given(gpu: Gpu) -> None:
    kernels = Kernels(gpu, {1: 30.0, 2: 10.0, 3: 20.0}.__getitem__)
    timings = measure(kernels, algorithms(1, 2, 3), iterations=5, stream=STREAM)
    assert [t.algorithm.algorithm_id for t in timings] == [1, 2, 3]
    assert [t.microseconds for t in timings] == pytest.approx([30, 10, 20])
    assert [len(t.samples) for t in timings] == [5 * SHOTS] * 3
    assert {t.error for t in timings} == {None}


@pytest.mark.parametrize("host_us", [1.0, 50.0, 400.0])
def test_short_kernel_is_not_timed_by_the_host(gpu: Gpu, host_us: float) -> None:
    """The kernel takes 5 us. A GPU that waits for the host between the two events would show at least ``host_us``."""
    timings = measure(Kernels(gpu, lambda number: 5.0, host_us), algorithms(1, 2), iterations=4, stream=STREAM)
    for timing in timings:
        assert timing.samples == pytest.approx([5.0] * 4 * SHOTS)


def test_cache_is_overwritten_before_each_timed_run(gpu: Gpu) -> None:
    kernels = Kernels(gpu, lambda number: 150.0)
    measure(kernels, algorithms(1, 2), iterations=3, stream=STREAM)
    assert kernels.ran == [1, 2, 1, 2, 1, 2, 2, 1, 1, 2], "two runs to warm up, and rounds there and back"
    assert kernels.cold[-6:] == [True] * 6
    short = Kernels(gpu, lambda number: 5.0)
    measure(short, algorithms(1, 2), iterations=1, stream=STREAM)
    assert short.ran[4:] == [1] * SHOTS + [2] * SHOTS
    assert short.cold[4:] == [True] * 2 * SHOTS
    assert {(ptr, nbytes) for ptr, nbytes in gpu.memsets} == {(MEMORY, 2 * L2_BYTES)}


def test_without_flush_an_untimed_run_goes_before(gpu: Gpu) -> None:
    def took(number: int) -> float:
        return 250.0 if gpu.flushed else 180.0

    kernels = Kernels(gpu, took)
    warm = measure(kernels, algorithms(1, 2), iterations=3, flush=False, stream=STREAM)
    assert [t.microseconds for t in warm] == pytest.approx([180, 180])
    loops = [n for number in (1, 2, 2, 1, 1, 2) for n in [number] * (1 + WARM)]
    assert kernels.ran[4:] == loops
    assert not any(kernels.cold[i] for i in range(5, len(kernels.cold)) if (i - 4) % (1 + WARM))
    cold = measure(kernels, algorithms(1, 2), iterations=3, stream=STREAM)
    assert [t.microseconds for t in cold] == pytest.approx([250, 250])


@pytest.mark.parametrize("drift", [-0.05, 0.05])
def test_drift_of_the_clock_favours_none(gpu: Gpu, drift: float) -> None:
    """Each run is 5% of a microsecond slower (faster) than the one before: 2 us over all, and 1 us between the two."""
    runs = [0]

    def took(number: int) -> float:
        runs[0] += 1
        return {1: 20.0, 2: 19.0}[number] + drift * runs[0]

    one, two = measure(Kernels(gpu, took), algorithms(1, 2), iterations=20, stream=STREAM)
    assert one.microseconds - two.microseconds == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize(("took", "host_us", "runs"), [(1100.0, 20.0, 14), (6000.0, 20.0, 3), (20_000.0, 20.0, 1),
                                                       (600.0, 400.0, 1), (499.0, 20.0, 1)])  # fmt: skip
def test_long_products_are_timed_in_bursts(gpu: Gpu, took: float, host_us: float, runs: int) -> None:
    """Of 15 ms; the second run of a burst is not a cold one."""
    kernels = Kernels(gpu, lambda number: took, host_us)
    timings = measure(kernels, algorithms(1, 2), iterations=4, stream=STREAM)
    assert [t.microseconds for t in timings] == pytest.approx([took, took])
    assert [len(t.samples) for t in timings] == [4, 4]
    assert kernels.ran[4 : 8 * runs + 4] == (([1] * runs + [2] * runs) + ([2] * runs + [1] * runs)) * 2
    assert kernels.cold[4 : runs + 4] == [True] + [False] * (runs - 1)


def test_median_ignores_a_hiccup(gpu: Gpu) -> None:
    runs = [0]

    def took(number: int) -> float:
        runs[0] += 1
        return 1000.0 if runs[0] == 5 else 7.0

    (timing,) = measure(Kernels(gpu, took), algorithms(1), iterations=5, stream=STREAM)
    assert max(timing.samples) == pytest.approx(1000)
    assert timing.microseconds == pytest.approx(statistics.median(timing.samples)) == pytest.approx(7)


@pytest.mark.parametrize(("seconds", "rounds"), [(1.0, 3), (4.5, 5), (100.0, 10)])
def test_rounds_end_when_time_is_spent(gpu: Gpu, seconds: float, rounds: int) -> None:
    kernels = Kernels(gpu, lambda number: 1e6)  # a second
    (timing,) = measure(kernels, algorithms(1), iterations=10, stream=STREAM, seconds=seconds)
    assert len(timing.samples) == rounds


@pytest.mark.parametrize("fails_from", [0, 1, 2, 4], ids=["first run", "second run", "first round", "later round"])
def test_failure_is_data(gpu: Gpu, fails_from: int) -> None:
    runs: dict[int, int] = {}
    error = HostLibraryError("cublasLtMatmul failed", status=15)

    def took(number: int) -> float:
        runs[number] = runs.get(number, 0) + 1
        if number == 2 and runs[number] > fails_from:
            raise error
        return 10.0 * number

    timings = measure(Kernels(gpu, took), algorithms(1, 2, 3), iterations=4, stream=STREAM)
    assert [t.microseconds for t in timings] == pytest.approx([10, math.inf, 30])
    assert [t.error for t in timings] == [None, error, None]
    assert [len(t.samples) for t in timings] == [4 * SHOTS, 0, 4 * SHOTS]
    assert runs[2] == fails_from + 1, "it is not tried again"


def test_gpu_that_dies_is_no_fault_of_an_algorithm(gpu: Gpu) -> None:
    gpu.dies_at_synchronize = 4
    with pytest.raises(DriverError, match="an earlier kernel failed") as caught:
        measure(Kernels(gpu, lambda number: 5.0), algorithms(1, 2), stream=STREAM)
    assert caught.value.earlier
    assert not gpu.events, "events are given back"


def test_driver_error_of_a_run_is_not_data(gpu: Gpu) -> None:
    def run(algorithm: Algorithm) -> None:
        raise DriverError("an earlier kernel failed", status=700, earlier=True)

    with pytest.raises(DriverError):
        measure(run, algorithms(1), stream=STREAM)


def test_other_exceptions_are_the_callers(gpu: Gpu) -> None:
    def run(algorithm: Algorithm) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        measure(run, algorithms(1), stream=STREAM)


def test_events_are_reused_and_given_back(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    create = gpu.cuEventCreate
    monkeypatch.setattr(gpu, "cuEventCreate", lambda flags: made.append(1) or create(flags))
    measure(Kernels(gpu, lambda number: 5.0), algorithms(1, 2, 3), iterations=10, stream=STREAM)
    assert len(made) == 2 * 3 * SHOTS, "two a shot, however many rounds"
    assert not gpu.events


def test_stream_that_captures_is_refused(gpu: Gpu) -> None:
    gpu.capturing = True
    kernels = Kernels(gpu, lambda number: 5.0)
    with pytest.raises(InvalidArgumentError, match="captures a CUDA graph"):
        measure(kernels, algorithms(1), stream=STREAM)
    assert not kernels.ran


def test_nothing_to_measure(gpu: Gpu) -> None:
    assert measure(Kernels(gpu, lambda number: 5.0), (), stream=STREAM) == []


# -- putting in order ----------------------------------------------------------------------------------------


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """What the order is stored under; the store is empty and in a folder of the test."""
    monkeypatch.setenv("NVMATH_DEVICE_CACHE_DIR", str(tmp_path))
    found: dict[str, Any] = {"product": "x"}
    monkeypatch.setattr(module, "order_key", lambda plan, device, options, preferences, flush: found | {"flush": flush})
    return found


def product(*numbers: int) -> Any:
    return SimpleNamespace(
        plan=object(), algorithms=algorithms(*numbers), placement=SimpleNamespace(device=cuda_device(3))
    )


def order(subject: Any) -> list[int]:
    return [algorithm.algorithm_id for algorithm in subject.algorithms]


TIMES = {1: 30.0, 2: 10.0, 3: 20.0}


def test_fastest_first(gpu: Gpu, key: dict[str, Any]) -> None:
    subject = product(1, 2, 3)
    before = set(subject.algorithms)
    timings = autotune(Kernels(gpu, TIMES.__getitem__), subject, stream=STREAM)
    assert order(subject) == [2, 3, 1]
    assert [t.algorithm for t in timings] == list(subject.algorithms)
    assert [t.microseconds for t in timings] == pytest.approx([10, 20, 30])
    assert set(subject.algorithms) == before, "the same objects"


@pytest.mark.parametrize(("second", "first"), [(100.0, 1), (99.2, 1), (98.0, 2), (101.0, 1)])
def test_of_equals_cublaslts_choice_comes_first(gpu: Gpu, key: dict[str, Any], second: float, first: int) -> None:
    subject = product(1, 2, 3)
    autotune(Kernels(gpu, {1: 100.0, 2: second, 3: 300.0}.__getitem__), subject, stream=STREAM)
    assert order(subject) == [first, 3 - first, 3]
    again = product(1, 2, 3)
    autotune(Kernels(gpu, {}.__getitem__), again, stream=STREAM)
    assert order(again) == order(subject)


def test_second_time_nothing_runs(gpu: Gpu, key: dict[str, Any]) -> None:
    first = autotune(Kernels(gpu, TIMES.__getitem__), product(1, 2, 3), stream=STREAM)
    kernels, subject = Kernels(gpu, TIMES.__getitem__), product(3, 2, 1)
    second = autotune(kernels, subject, stream=STREAM)
    assert (kernels.ran, order(subject)) == ([], [2, 3, 1])
    assert [t.microseconds for t in second] == [t.microseconds for t in first]
    assert [t.samples for t in second] == [()] * 3
    assert [t.algorithm for t in second] == list(subject.algorithms)


def test_some_of_what_is_known(gpu: Gpu, key: dict[str, Any]) -> None:
    autotune(Kernels(gpu, TIMES.__getitem__), product(1, 2, 3), stream=STREAM)
    kernels, subject = Kernels(gpu, TIMES.__getitem__), product(1, 3)
    autotune(kernels, subject, stream=STREAM)
    assert (kernels.ran, order(subject)) == ([], [3, 1])


@pytest.mark.parametrize(
    "what", ["other product", "other algorithm", "edited", "more iterations", "no flush", "store off"]
)
def test_what_is_not_known_is_timed(gpu: Gpu, key: dict[str, Any], monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    autotune(Kernels(gpu, TIMES.__getitem__), product(1, 2), stream=STREAM)
    subject, wishes = product(1, 2), {}
    if what == "other product":
        key["product"] = "y"
    elif what == "other algorithm":
        subject = product(1, 3)
    elif what == "edited":
        can(monkeypatch)
        subject.algorithms[0].split_k = 2
    elif what == "more iterations":
        wishes = {"iterations": 11}
    elif what == "no flush":
        wishes = {"flush": False}
    else:
        monkeypatch.setenv("NVMATH_DEVICE_CACHE_DIR", "off")
    kernels = Kernels(gpu, TIMES.__getitem__)
    autotune(kernels, subject, stream=STREAM, **wishes)
    assert kernels.ran


@pytest.mark.parametrize("again", [False, True])
def test_prune_keeps_the_best(gpu: Gpu, key: dict[str, Any], again: bool) -> None:
    """What is kept on disk is all: pruning now does not lose anything for later."""
    subject = product(1, 2, 3)
    if again:
        autotune(Kernels(gpu, TIMES.__getitem__), product(1, 2, 3), prune=1, stream=STREAM)
    timings = autotune(Kernels(gpu, TIMES.__getitem__), subject, prune=2, stream=STREAM)
    assert order(subject) == [2, 3]
    assert len(timings) == 2


def failing(number: int, error: Exception) -> Callable[[int], float]:
    def took(which: int) -> float:
        if which == number:
            raise error
        return TIMES[which]

    return took


def test_failed_algorithm_is_dropped_and_remembered(
    gpu: Gpu, key: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    took = failing(2, HostLibraryError("cublasLtMatmul failed: not supported", status=15))
    subject = product(1, 2, 3)
    with caplog.at_level(logging.WARNING, "nvmath_device"):
        timings = autotune(Kernels(gpu, took), subject, stream=STREAM)
    assert order(subject) == [3, 1]
    assert [t.algorithm.algorithm_id for t in timings] == [3, 1]
    assert "algorithm_id=2" in caplog.text
    assert "cublasLtMatmul failed: not supported" in caplog.text
    kernels, subject = Kernels(gpu, TIMES.__getitem__), product(1, 2, 3)
    autotune(kernels, subject, stream=STREAM)
    assert (kernels.ran, order(subject)) == ([], [3, 1])


def test_lack_of_memory_is_not_remembered(gpu: Gpu, key: dict[str, Any]) -> None:
    subject = product(1, 2, 3)
    autotune(Kernels(gpu, failing(2, DeviceMemoryError("no memory"))), subject, stream=STREAM)
    assert order(subject) == [3, 1]
    subject = product(1, 2, 3)
    autotune(Kernels(gpu, TIMES.__getitem__), subject, stream=STREAM)
    assert order(subject) == [2, 3, 1]


def test_no_algorithm_runs(gpu: Gpu, key: dict[str, Any]) -> None:
    error = HostLibraryError("cublasLtMatmul failed", status=15)
    subject = product(1)
    before = subject.algorithms
    with pytest.raises(HostLibraryError, match="none of 1 algorithms ran; the first: cublasLtMatmul failed") as caught:
        autotune(Kernels(gpu, failing(1, error)), subject, stream=STREAM)
    assert caught.value.__cause__ is error
    assert subject.algorithms is before
    autotune(Kernels(gpu, TIMES.__getitem__), subject, stream=STREAM)
    assert order(subject) == [1], "and nothing is remembered of it"


def test_result_goes_to_the_users_log(gpu: Gpu, key: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "theirs"):
        autotune(
            Kernels(gpu, TIMES.__getitem__), product(1, 2), stream=STREAM,
            options=MatmulOptions(logger=logging.getLogger("theirs")),
        )  # fmt: skip
    assert [record.name for record in caplog.records] == ["theirs"]
    assert "autotune: 10.0 us with Algorithm(algorithm_id=2" in caplog.text


@pytest.mark.parametrize(
    ("wishes", "error"),
    [
        ({"iterations": 0}, InvalidArgumentError),
        ({"iterations": 2.5}, ArgumentTypeError),
        ({"prune": 0}, InvalidArgumentError),
        ({"prune": "2"}, ArgumentTypeError),
    ],
)
def test_wishes_that_are_refused(gpu: Gpu, key: dict[str, Any], wishes: dict[str, Any], error: type) -> None:
    with pytest.raises(error, match=next(iter(wishes))):
        autotune(Kernels(gpu, TIMES.__getitem__), product(1, 2), stream=STREAM, **wishes)


def test_timing_is_plain_data() -> None:
    (algorithm,) = algorithms(1)
    assert Timing(algorithm, 2.0) == Timing(algorithm, 2.0, (), None)
