# SPDX-License-Identifier: Apache-2.0
"""Who takes part in a benchmark, in which order, how CPU time is taken, and what is said about the times.

Nothing here needs a GPU or an array library but NumPy.
"""

from __future__ import annotations

import gc
import json
import os
import random
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from nvmath_device.info import info

WARM_UP = 2
Competitor = TypeVar("Competitor")
Sample = TypeVar("Sample")


def take_turns(
    competitors: Mapping[str, Competitor],
    sample: Callable[[Competitor], Sample],
    *,
    rounds: int,
    between: Callable[[int], None] | None = None,
) -> dict[str, list[Sample]]:
    """``rounds`` samples of each competitor. In every round all take a turn, in an order of its own.

    So none always follows the same other, whose heat and caches it would inherit. The orders are random, and the same
    in every run. Rounds for warming up come before and are dropped. ``between`` is called after each round with its
    number; those for warming up are negative.
    """
    if not competitors:
        raise ValueError("no competitor takes part: all of them failed their check")
    names, orders = list(competitors), random.Random(0)
    samples: dict[str, list[Sample]] = {name: [] for name in names}
    for turn in range(-WARM_UP, rounds):
        for name in orders.sample(names, len(names)):
            one = sample(competitors[name])
            if turn >= 0:
                samples[name].append(one)
        if between is not None:
            between(turn)
    return samples


class CpuSample(NamedTuple):
    """Microseconds: of CPU a call, and of waiting for the GPU after the batch. The latter shows whether it kept up."""

    call_us: float
    drain_us: float


def cpu_sample(call: Callable[[int], Any], batch: Sequence[int], synchronize: Callable[[], Any]) -> CpuSample:
    """``call(i)`` for each i of a batch, with nothing that waits for the GPU in between.

    The GPU is waited for before and after, outside of what is timed; a few calls warm up first. The batch must be
    shorter than the queue of launches, about 1000, or the queue's being full would be timed.
    """
    for i in batch[:8]:
        call(i)
    synchronize()
    gc.disable()
    start = time.perf_counter_ns()
    for i in batch:
        call(i)
    stop = time.perf_counter_ns()
    gc.enable()
    synchronize()
    return CpuSample((stop - start) / 1000 / len(batch), (time.perf_counter_ns() - stop) / 1000)


def calls_of(call: Callable[[int], Any]) -> dict[str, list[str]]:
    """Names of what ``call(0)`` calls, itself first: ``"call"``, Python functions, and ``"c_call"``, built-in ones.

    C functions called through ctypes, and operators of C types, are in neither.
    """
    called: dict[str, list[str]] = {"call": [], "c_call": []}

    def hook(frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            called[event].append(f"{Path(frame.f_code.co_filename).name}:{frame.f_code.co_qualname}")
        elif event == "c_call":
            called[event].append(getattr(argument, "__qualname__", str(argument)))

    sys.setprofile(hook)
    try:
        call(0)
    finally:
        sys.setprofile(None)
    return called


@dataclass(frozen=True)
class Verdict:
    """A figure beside its target.

    Attributes:
        what: the figure in words.
        value: the figure, a ratio of medians.
        target: what it should be.
        at_most: whether the target is an upper bound; otherwise it is a lower one.
        noise: how far apart two series of the same thing were in this run, as a fraction; 0 where not measured.
    """

    what: str
    value: float
    target: float
    at_most: bool
    noise: float = 0.0

    @property
    def word(self) -> str:
        """Whether the target is met; where it is missed by less than the noise, that is said, too."""
        if self.value <= self.target if self.at_most else self.value >= self.target:
            return "met"
        within = abs(self.value / self.target - 1) <= self.noise
        return f"missed, by less than two series of the same differ ({self.noise:.1%})" if within else "missed"

    def __str__(self) -> str:
        bound = "at most" if self.at_most else "at least"
        return f"{self.what}: {self.value:.3f} (target {bound} {self.target}) {self.word}"

    def as_json(self) -> dict[str, Any]:
        bound = "at_most" if self.at_most else "at_least"
        return {"what": self.what, "value": self.value, bound: self.target, "noise": self.noise, "verdict": self.word}


class Report:
    """All that was found out: printed as it comes, and kept for a file.

    ``ours`` are the beginnings of the names of competitors that have to take part. Others may be absent.
    """

    def __init__(self, path: str | None, ours: tuple[str, ...], **facts: Any) -> None:
        self.path, self.ours = path, ours
        self.failures: list[str] = []
        self.absent: dict[str, str] = {}
        self.data: dict[str, Any] = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": sys.argv,
            "cpu": _cpu_model(),
            **facts,
            "info": info(),
            "absent": self.absent,
            "failures": self.failures,
        }

    def say(self, text: str = "") -> None:
        print(text, flush=True)

    def fail(self, text: str) -> None:
        self.failures.append(text)
        self.say(f"FAILED {text}")

    def leave_out(self, name: str, error: Exception) -> None:
        """A competitor that cannot take part, and why. Where it is ours, that is a failure."""
        self.absent[name] = f"{type(error).__name__}: {error}"
        if name.startswith(self.ours):
            self.fail(f"{name}: {''.join(traceback.format_exception(error))}")
        else:
            self.say(f"absent: {name}: {self.absent[name].splitlines()[0]}")

    def judge(self, section: dict[str, Any], verdicts: Sequence[Verdict]) -> None:
        section["verdicts"] = [verdict.as_json() for verdict in verdicts]
        for verdict in verdicts:
            self.say(str(verdict))

    def save(self) -> None:
        if self.path:
            with open(self.path, "w") as file:
                json.dump(self.data, file, indent=1, default=str)


def _cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    return f"{model}, {os.cpu_count()} cores"


def take_part(
    report: Report, makers: Mapping[str, Callable[[], Competitor]], check: Callable[[Competitor], Any]
) -> dict[str, Competitor]:
    """The competitors that can be made here and pass ``check``; the report has the others."""
    competitors = {}
    for name, make in makers.items():
        try:
            competitor = make()
            check(competitor)
        except Exception as error:
            report.leave_out(name, error)
        else:
            competitors[name] = competitor
    return competitors


def relative_error(got: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> float:
    """Norm-wise. NaN where ``got`` has one, which no comparison passes."""
    return float(np.linalg.norm(got - expected) / np.linalg.norm(expected))
