# SPDX-License-Identifier: Apache-2.0
"""Which algorithm is fastest here, by trying: times on the GPU, and an order that is kept for next time.

:func:`measure` times algorithms and changes nothing. :func:`autotune` puts those of a planned product in order, and
asks the code store first. Both wait for the GPU.
"""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from nvmath_device.checks import positive_int
from nvmath_device.errors import DriverError, HostLibraryError, InvalidArgumentError, NoDeviceError, NvmathDeviceError
from nvmath_device.host import current_device
from nvmath_device.host.algorithm_store import StoredTiming, order_key, store_order, stored_order
from nvmath_device.host.algorithms import Algorithm
from nvmath_device.host.array_view import cuda_device
from nvmath_device.host.device_memory import memory_of
from nvmath_device.host.driver import bindings, call
from nvmath_device.host.options import MatmulOptions, MatmulPlanPreferences
from nvmath_device.host.streams import call_on_stream

SECONDS = 30.0  # rounds end when this is spent: a product of a second needs no ten samples
_FEWEST_ROUNDS = 3
_LEAST_FLUSH_BYTES = 8 << 20
_MOST_FLUSHES = 64
_HEAD_START = 1.5  # how much longer than the host's part of a trial the GPU is kept busy before it
_LONG_US, _BURST_US = 500, 15_000
_SHORT_US, _SHOTS = 100, 5
_WARM_LAUNCHES = 20
_TIE = {True: 1.01, False: 1.003}  # by whether the cache is flushed: a loop has more in a sample

RunOne = Callable[[Algorithm], object]


@dataclass(frozen=True)
class Timing:
    """What an algorithm took.

    Attributes:
        algorithm: the algorithm.
        microseconds: median over the samples, on the GPU, copies of operands included; infinite where it failed.
        samples: in microseconds, in the order of the rounds; empty where the median comes from the code store.
        error: what it failed with; ``None`` where it did not.
    """

    algorithm: Algorithm
    microseconds: float
    samples: tuple[float, ...] = ()
    error: NvmathDeviceError | None = None


# -- measuring ----------------------------------------------------------------------------------------------


def measure(
    run_one: RunOne,
    algorithms: Sequence[Algorithm],
    *,
    iterations: int = 10,
    flush: bool = True,
    stream: int = 0,
    seconds: float = SECONDS,
) -> list[Timing]:
    """Time every algorithm: a list in the order given, the failed ones with their error in it.

    ``run_one(algorithm)`` puts the product on ``stream``, whose device is current. It is called ``iterations + 2``
    times an algorithm or more, so it must write into a scratch result and leave C and the user's result alone.

    Every round times each algorithm once, forwards and backwards in turns, so that a drift of clocks favours none.
    Before each time the L2 cache is overwritten on the GPU. With ``flush=False`` an untimed run goes before each
    instead, and times are those of a loop: operands are then where such a run leaves them. What is overwritten also
    keeps the GPU busy until the host has put the whole trial on the stream, so that times are the GPU's and not the
    host's. Rounds end early, but not before the third, when ``seconds`` are spent.

    Takes twice the size of the L2 cache as memory while it runs.

    Raises:
        InvalidArgumentError: the stream captures a CUDA graph.
        DeviceMemoryError: there is no memory to flush with.
        DriverError: the GPU itself failed; nothing can be run any more.
    """
    if current_device.is_capturing(stream):
        raise InvalidArgumentError("stream: it captures a CUDA graph, and nothing can be timed then; tune before")
    trials = [_Trial(algorithm) for algorithm in algorithms]
    with _Bench(stream, flush) as bench:
        for trial in trials:  # the first run of a kernel loads it
            trial.attempt(run_one, bench.run)
        bench.wait()
        slowest_us = max((trial.attempt(run_one, bench.time_host) or 0.0 for trial in trials), default=0.0)
        bench.wait()
        bench.collect(trials)
        for trial in trials:
            trial.plan_rounds(slowest_us, flush)
        bench.give_head_start(slowest_us * (1 if flush else _WARM_LAUNCHES))
        started = time.perf_counter()
        for round_ in range(iterations):
            for trial in trials[:: 1 if round_ % 2 == 0 else -1]:
                trial.attempt(run_one, bench.enqueue)
            bench.wait()
            bench.collect(trials)
            if round_ + 1 >= _FEWEST_ROUNDS and time.perf_counter() - started > seconds:
                break
    return [trial.timing() for trial in trials]


class _Trial:
    """An algorithm being timed."""

    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm = algorithm
        self.events: list[tuple[Any, Any]] = []  # of the current round
        self.launches = 1  # between two of them
        self.shots = 1  # times a round
        self.samples: list[float] = []
        self.error: NvmathDeviceError | None = None

    def attempt(self, run_one: RunOne, how: Callable[[_Trial, RunOne], float | None]) -> float | None:
        """Do something with it, unless it has failed. A device that failed is no matter of the algorithm."""
        if self.error:
            return None
        try:
            return how(self, run_one)
        except (DriverError, NoDeviceError):
            raise
        except NvmathDeviceError as error:
            self.error = error
            return None

    def plan_rounds(self, host_us: float, flush: bool) -> None:
        """From the first sample, which is for nothing else. A product that waits for the host makes no burst."""
        if not self.error:
            once_us = self.samples.pop() - host_us  # in which the GPU had nothing to do
            if once_us >= _LONG_US and once_us > 2 * host_us:
                self.launches = math.ceil(_BURST_US / once_us)
            elif not flush:
                self.launches = _WARM_LAUNCHES
            elif once_us < _SHORT_US:
                self.shots = _SHOTS

    def timing(self) -> Timing:
        if self.error:
            return Timing(self.algorithm, math.inf, (), self.error)
        return Timing(self.algorithm, statistics.median(self.samples), tuple(self.samples))


class _Bench:
    """A stream with memory to flush the L2 cache with, and events."""

    def __init__(self, stream: int, flush: bool) -> None:
        self._stream, self._flush, self._driver = stream, flush, bindings()
        self._free: list[Any] = []  # events
        self._all: list[Any] = []
        self._flushes = 1
        index = current_device.current_index()
        kind = self._driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE
        cache_bytes = int(call(self._driver.cuDeviceGetAttribute, kind, call(self._driver.cuDeviceGet, index)))
        take = memory_of("generic", cuda_device(index), purpose="memory to flush the L2 cache with")
        self._memory = take(max(2 * cache_bytes, _LEAST_FLUSH_BYTES), stream)

    def __enter__(self) -> _Bench:
        return self

    def __exit__(self, *_: object) -> None:
        for event in self._all:
            self._driver.cuEventDestroy(event)  # whatever it answers: an error on the way here is the one to report

    # -- on the stream --

    def run(self, trial: _Trial, run_one: RunOne) -> None:
        run_one(trial.algorithm)

    def time_host(self, trial: _Trial, run_one: RunOne) -> float:
        """Microseconds that the host needs to put a run on the stream."""
        start = self._record()
        started = time.perf_counter()
        run_one(trial.algorithm)
        host_us = (time.perf_counter() - started) * 1e6
        trial.events.append((start, self._record()))
        return host_us

    def enqueue(self, trial: _Trial, run_one: RunOne) -> None:
        for _ in range(trial.shots):
            for _ in range(self._flushes):
                self._overwrite()
            if not self._flush:
                run_one(trial.algorithm)
            start = self._record()
            for _ in range(trial.launches):
                run_one(trial.algorithm)
            trial.events.append((start, self._record()))

    def wait(self) -> None:
        call_on_stream(self._driver.cuStreamSynchronize, self._stream)

    def collect(self, trials: Sequence[_Trial]) -> None:
        """Read the times of a round that is done."""
        for trial in trials:
            trial.samples += [self._elapsed_us(*pair) / trial.launches for pair in trial.events]
            trial.events.clear()
        self._free = list(self._all)

    def give_head_start(self, host_us: float) -> None:
        """Overwrite so often that the GPU is still at it when the host has put a whole trial on the stream."""
        start = self._record()
        self._overwrite()
        stop = self._record()
        self.wait()
        once_us = self._elapsed_us(start, stop)
        self._free = list(self._all)
        if once_us > 0:
            self._flushes = min(max(math.ceil(_HEAD_START * host_us / once_us), 1), _MOST_FLUSHES)

    def _overwrite(self) -> None:
        memory = self._memory
        call_on_stream(self._driver.cuMemsetD32Async, memory.ptr, 0, memory.nbytes // 4, self._stream)

    def _record(self) -> Any:
        if not self._free:
            event = call(self._driver.cuEventCreate, int(self._driver.CUevent_flags.CU_EVENT_DEFAULT))
            self._all.append(event)
            self._free.append(event)
        event = self._free.pop()
        call_on_stream(self._driver.cuEventRecord, event, self._stream)
        return event

    def _elapsed_us(self, start: Any, stop: Any) -> float:
        return float(call(self._driver.cuEventElapsedTime, start, stop)) * 1e3


# -- putting in order ---------------------------------------------------------------------------------------


def autotune(
    run_one: RunOne,
    product: Any,
    *,
    iterations: int = 10,
    prune: int | None = None,
    flush: bool = True,
    stream: int = 0,
    options: MatmulOptions | None = None,
    preferences: MatmulPlanPreferences | None = None,
) -> list[Timing]:
    """Put ``product.algorithms`` in the order of their times, fastest first, and drop those that failed.

    Among those within 1% of the fastest (0.3% without a flush), which another run would put in another order, the first
    is the one that came first before.

    ``product`` is a ``GpuProduct`` on the current device; ``run_one`` is as in :func:`measure`. ``prune`` keeps that
    many. Algorithms are the same objects as before.

    Times are kept in the code store, for the product as cuBLASLt sees it, the alignments of its operands, the
    preferences, the device, its driver, and the version of cuBLASLt; where all the product's algorithms are there,
    timed at least ``iterations`` times, nothing is run. So editing one of them has all timed. Nothing is kept where an
    algorithm failed for a reason outside cuBLASLt, such as a lack of memory.

    Returns:
        timings of the algorithms that are left, in their order.

    Raises:
        InvalidArgumentError, ArgumentTypeError: ``iterations`` or ``prune`` is not a positive integer.
        HostLibraryError: no algorithm ran. The product is as before.
        What :func:`measure` raises.
    """
    iterations = positive_int(iterations, argument="iterations")
    if prune is not None:
        prune = positive_int(prune, argument="prune")
    options, preferences = options or MatmulOptions(), preferences or MatmulPlanPreferences()
    logger = options.logger or logging.getLogger("nvmath_device")
    key = order_key(product.plan, product.placement.device.index, options, preferences, flush=flush)
    timings = _recall(stored_order(key, iterations=iterations), product.algorithms)
    if timings is None:
        timings = measure(run_one, product.algorithms, iterations=iterations, flush=flush, stream=stream)
        for timing in timings:
            if timing.error:
                logger.warning("autotune: %r is dropped: %s", timing.algorithm, timing.error)
        if all(timing.error for timing in timings):
            first = timings[0].error
            raise HostLibraryError(f"autotune: none of {len(timings)} algorithms ran; the first: {first}") from first
        timings = _in_order(timings, _TIE[flush])
        if all(timing.error is None or isinstance(timing.error, HostLibraryError) for timing in timings):
            store_order(key, [_to_store(timing) for timing in timings], iterations=iterations)
    working = [timing for timing in timings if not timing.error][:prune]
    product.algorithms = tuple(timing.algorithm for timing in working)
    logger.info(
        "autotune: %.1f us with %r, the fastest of %d", working[0].microseconds, working[0].algorithm, len(timings)
    )
    return working


def _in_order(timings: Sequence[Timing], tie: float) -> list[Timing]:
    """Fastest first, except that the first is the one that cuBLASLt prefers of those that are as good as equal."""
    least = min(timing.microseconds for timing in timings)
    first = next(timing for timing in timings if timing.microseconds <= tie * least)
    return [first, *sorted((t for t in timings if t is not first), key=lambda timing: timing.microseconds)]


def _to_store(timing: Timing) -> StoredTiming:
    algo = bytes(timing.algorithm.algo)
    return StoredTiming(algo, None, str(timing.error)) if timing.error else StoredTiming(algo, timing.microseconds)


def _recall(known: list[StoredTiming] | None, algorithms: Sequence[Algorithm]) -> list[Timing] | None:
    """Timings of exactly these algorithms, fastest first, where all of them are known and one works."""
    if known is None:
        return None
    places = {stored.algo: place for place, stored in enumerate(known)}
    if any(bytes(algorithm.algo) not in places for algorithm in algorithms):
        return None
    found = sorted((places[bytes(algorithm.algo)], i, algorithm) for i, algorithm in enumerate(algorithms))
    timings = [_recalled(known[place], algorithm) for place, _, algorithm in found]
    return timings if any(not timing.error for timing in timings) else None


def _recalled(stored: StoredTiming, algorithm: Algorithm) -> Timing:
    if stored.microseconds is None:
        return Timing(algorithm, math.inf, (), HostLibraryError(f"when it was timed: {stored.error}"))
    return Timing(algorithm, stored.microseconds)
