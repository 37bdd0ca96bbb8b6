# SPDX-License-Identifier: Apache-2.0
"""Which tile is fastest for a product on this device, by trying: :func:`nvmath_device.tune`.

Candidates are data and are refused, compiled and timed by one function each, of modules beside this one; what becomes
of each is data, too.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nvmath_device import simulation, tuned_results
from nvmath_device.checks import positive_int
from nvmath_device.descriptors import GemmDescriptor
from nvmath_device.errors import (
    ArgumentTypeError,
    DriverError,
    InvalidArgumentError,
    MissingDependencyError,
    NoDeviceError,
    UnsupportedError,
)
from nvmath_device.targets import ComputeCapability, compute_capability
from nvmath_device.tile_candidates import candidates as known_candidates
from nvmath_device.tile_choices import TileChoice, check_problem, refusal
from nvmath_device.tuning_builds import Build, Code, build_all, code_of

OUTCOMES = ("timed", "refused", "failed", "spills", "wrong", "skipped")
_FOR_COMPILING = 0.6  # of the time that is given
_FIRST_ROUNDS = 3
_NEAR = 1.15  # times as slow as the best: what is worth more rounds and other groups
_TIE = 1.005  # what another run would put in another order: then the first candidate is the best
_ALL_SECONDS = 30.0  # of timing, where no limit is given


@dataclass(frozen=True)
class Trial:
    """What became of one candidate.

    Attributes:
        choice: the candidate.
        outcome: ``"timed"``; ``"refused"``, not compiled, for what is known beforehand; ``"failed"``, to compile or to
            launch; ``"spills"``, compiled to code that spills registers; ``"wrong"``, its C is no product of A and B;
            ``"skipped"``, for want of time or because the tile was too slow with another group.
        reason: in words; empty where it was timed.
        milliseconds: median on the GPU; None where it was not timed.
        registers: of a thread; None where it was not compiled.
        spills: instructions that load spilled registers; None as before, or where nvdisasm is not installed.
        path: what multiplies, such as ``"HGMMA"`` (wgmma), ``"HMMA"``, ``"FFMA"``; empty where that is not known.
    """

    choice: TileChoice
    outcome: str
    reason: str = ""
    milliseconds: float | None = None
    registers: int | None = None
    spills: int | None = None
    path: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {**self.__dict__, "choice": tuned_results.choice_words(self.choice)}


@dataclass(frozen=True)
class Tuned:
    """What :func:`tune` found. ``print`` shows a table, fastest first.

    Attributes:
        descriptor: the product.
        best: the fastest choice, for ``descriptor.tile(tuned.best)``.
        trials: of all candidates, in their order.
        device: its name, compute capability and number of multiprocessors.
        versions: of what the code was made with.
    """

    descriptor: GemmDescriptor
    best: TileChoice
    trials: tuple[Trial, ...]
    device: Mapping[str, Any]
    versions: Mapping[str, str]

    @property
    def milliseconds(self) -> float:
        """Of the best choice."""
        return next(t.milliseconds or 0.0 for t in self.trials if t.choice == self.best)

    @property
    def tflops(self) -> float:
        """Of the best choice: 2 M N K operations in its time, in units of 10^12 a second."""
        return _tflops(self.descriptor, self.milliseconds)

    def as_dict(self) -> dict[str, Any]:
        """Best choice, trials, device and versions, for JSON."""
        return {
            "best": tuned_results.choice_words(self.best),
            "trials": [trial.as_dict() for trial in self.trials],
            "device": dict(self.device),
            "versions": dict(self.versions),
        }

    def __str__(self) -> str:
        d = self.descriptor
        types = ", ".join(map(str, d.precision))
        head = (
            f"{'x'.join(map(str, d.size))} {types} on {self.device['name']}: {self.tflops:.0f} TFLOP/s with {self.best}"
        )
        return f"{head}\n{_table(d, self.trials)}"


def tune(
    descriptor: GemmDescriptor,
    *,
    candidates: Iterable[TileChoice] | None = None,
    limit_s: float | None = None,
    rounds: int = 10,
    again: bool = False,
) -> Tuned:
    """Find the fastest tile, block, stages and group for ``Matmul.multiply`` of a product, on the current device.

    Candidates that cannot be fast are refused by rule; the others are compiled in parallel, 15 to 30 s of a core each
    where the code store has none; what spills is dropped; the rest is checked against a product of NumPy and timed in
    turns, on random numbers, in loops of launches. Candidates near the best are timed again, with other groups.
    Only the loop over K and a plain store are timed, no epilog.

    What was found is kept in the code store, for this product (M, N and K, element types, orders, and the alignment
    that the descriptor promises), this kind of device, and the versions of libmathdx, NVRTC and nvJitLink, and found
    there again at once. :func:`nvmath_device.suggest_tile` and ``descriptor.tile("suggested")`` use it, also for other
    products that differ in M, N and K only, each of which is between the same powers of two: of those the one tuned
    last counts.

    Args:
        descriptor: the whole product. Leading dimensions play a part as far as they are multiples of 16 bytes.
        candidates: to try instead of :func:`nvmath_device.tile_candidates.candidates`. Nothing that is kept is looked
            at then, and the result is kept where it is better than what is.
        limit_s: seconds after which nothing new is compiled (0.6 of it) or timed. What has begun ends first, 30 s of
            compiling maybe. Without it, all candidates get their turn.
        rounds: samples of each candidate that is near the best.
        again: do not look at what is kept.

    Takes memory for A, B and C on the device, and twice the L2 cache. Times of other work on the GPU go into the
    result.

    Raises:
        NoDeviceError, MissingDependencyError: there is no GPU, driver, or libmathdx.
        UnsupportedError: ``multiply`` does not compute such a product, or no candidate could be timed; the message has
            the reasons.
        DeviceMemoryError: the matrices do not fit.
        DriverError: a kernel made the device fail; the note names the candidate. Nothing can be run in this process any
            more, and nothing is kept.
        InvalidArgumentError, ArgumentTypeError: naming the argument.
    """
    if not isinstance(descriptor, GemmDescriptor):
        raise ArgumentTypeError(f"descriptor: {descriptor!r} is a {type(descriptor).__name__}; give a GemmDescriptor")
    rounds = positive_int(rounds, argument="rounds")
    if limit_s is not None and not limit_s > 0:
        raise InvalidArgumentError(f"limit_s: {limit_s!r} is not allowed; give seconds above 0")
    given = None if candidates is None else _read_candidates(candidates)
    check_problem(descriptor)
    index, device = _device()
    sm = compute_capability(tuple(device["compute_capability"]))
    if given is None and not again:
        kept = _kept(descriptor, device)
        if kept is not None:
            return kept
    started = time.monotonic()
    trials = try_all(
        descriptor,
        known_candidates(descriptor, sm) if given is None else given,
        sm,
        bench=lambda: _bench(descriptor, index),
        limit_s=limit_s,
        rounds=rounds,
    )
    tuned = Tuned(descriptor, _best(descriptor, trials), trials, device, tuned_results.versions())
    logging.getLogger("nvmath_device").info("tune: %.1f s, %s", time.monotonic() - started, tuned)
    _keep(tuned, complete=given is None)
    return tuned


def try_all(
    descriptor: GemmDescriptor,
    choices: Sequence[TileChoice],
    sm: ComputeCapability,
    *,
    bench: Callable[[], Any],
    limit_s: float | None = None,
    rounds: int = 10,
    build: Callable[..., dict[Code, Build]] = build_all,
) -> tuple[Trial, ...]:
    """The trials of candidates, in their order. ``bench()`` is what checks and times, made when there is something to.

    It has ``check(run)`` and ``time(runs, rounds, seconds)`` of :class:`nvmath_device.tuning_bench.Bench`.
    """
    started = time.monotonic()
    found: dict[TileChoice, Trial] = {}
    for choice in choices:
        reason = refusal(descriptor, choice, sm)
        if reason is not None:
            found[choice] = Trial(choice, "refused", reason)
    left = [choice for choice in choices if choice not in found]
    deadline = None if limit_s is None else started + _FOR_COMPILING * limit_s
    builds = build(descriptor, left, sm, deadline=deadline) if left else {}
    for choice in left:
        made = builds[code_of(choice)]
        if made.outcome:
            found[choice] = _trial(choice, made, made.outcome, made.reason)
    left = [choice for choice in left if choice not in found]
    if left:
        _time_all(left, builds, found, bench(), started, limit_s, rounds)
    return tuple(found[choice] for choice in choices)


# -- on the device ---------------------------------------------------------------------------------------------


def _time_all(
    choices: list[TileChoice],
    builds: Mapping[Code, Build],
    found: dict[TileChoice, Trial],
    bench: Any,
    started: float,
    limit_s: float | None,
    rounds: int,
) -> None:
    """Check every code and time it with its first group, then those near the best again, with all groups."""

    def seconds_left() -> float:
        return _ALL_SECONDS if limit_s is None else max(limit_s - (time.monotonic() - started), 0.0)

    def time_some(some: list[TileChoice], rounds: int) -> None:
        runs = [(builds[code_of(choice)], choice) for choice in some]
        for (made, choice), (milliseconds, error) in zip(runs, bench.time(runs, rounds, seconds_left()), strict=True):
            if milliseconds is None:
                found[choice] = _trial(choice, made, "failed", error)
            else:
                found[choice] = _trial(choice, made, "timed", milliseconds=milliseconds)

    first_of = {code_of(choice): choice for choice in reversed(choices)}
    firsts = [choice for choice in choices if first_of[code_of(choice)] == choice]
    for choice in firsts:
        made = builds[code_of(choice)]
        outcome, reason = _checked(bench, made, choice)
        if outcome:
            found.update((c, _trial(c, made, outcome, reason)) for c in choices if code_of(c) == code_of(choice))
    firsts = [choice for choice in firsts if choice not in found]
    time_some(firsts, min(_FIRST_ROUNDS, rounds))
    times = {c: t.milliseconds for c in firsts if (t := found[c]).milliseconds is not None}
    least = min(times.values(), default=0.0)
    near = {code_of(choice) for choice, ms in times.items() if ms <= _NEAR * least}
    if near and (limit_s is None or seconds_left() > 0):
        time_some([choice for choice in choices if code_of(choice) in near], rounds)
    for choice in choices:
        if choice not in found:
            first = first_of[code_of(choice)]
            slow = f"{times[first] / least:.2f} times as slow as the best" if first in times else "not timed"
            reason = (
                f"with groups of {first.group} it was {slow}" if code_of(choice) not in near else "the time was spent"
            )
            found[choice] = _trial(choice, builds[code_of(choice)], "skipped", reason)


def _checked(bench: Any, made: Build, choice: TileChoice) -> tuple[str, str]:
    """Outcome and reason; empty where its C is right."""
    try:
        reason = bench.check((made, choice))
    except DriverError as error:
        error.add_note(f"tune: this was {choice}")
        raise
    except Exception as error:
        return "failed", str(error).strip() or type(error).__name__
    return ("wrong", reason) if reason else ("", "")


def _trial(choice: TileChoice, made: Build, outcome: str, reason: str = "", milliseconds: float | None = None) -> Trial:
    return Trial(choice, outcome, reason, milliseconds, made.registers, made.spills, made.path)


def _bench(descriptor: GemmDescriptor, index: int) -> Any:
    from nvmath_device.tuning_bench import Bench

    return Bench(descriptor, index)


def _device() -> tuple[int, dict[str, Any]]:
    from nvmath_device.host import current_device

    advice = "descriptor.tile('suggested', sm=...) and nd.suggest_tile(descriptor, sm=...) work without"
    if simulation.is_active():
        raise NoDeviceError(f"tune: Numba's simulator is on, and there is nothing to time; {advice}")
    try:
        index = max(current_device.current_index(), 0)
        return index, tuned_results.device_words(index)
    except (NoDeviceError, MissingDependencyError) as error:
        raise type(error)(f"tune: times kernels, so it needs a GPU and its driver; {advice}. {error}") from error


# -- what came out ---------------------------------------------------------------------------------------------


def _best(descriptor: GemmDescriptor, trials: Sequence[Trial]) -> TileChoice:
    timed = [(trial.milliseconds, trial.choice) for trial in trials if trial.milliseconds is not None]
    if not timed:
        counts = ", ".join(f"{n} {outcome}" for outcome, n in Counter(t.outcome for t in trials).items())
        raise UnsupportedError(
            f"tune: none of {len(trials)} candidates could be timed ({counts or 'there were none'})\n"
            f"{_table(descriptor, trials)}"
        )
    least = min(milliseconds for milliseconds, _ in timed)
    return next(choice for milliseconds, choice in timed if milliseconds <= _TIE * least)


def _read_candidates(candidates: Iterable[TileChoice]) -> tuple[TileChoice, ...]:
    found = tuple(candidates)
    for choice in found:
        if not isinstance(choice, TileChoice):
            raise ArgumentTypeError(f"candidates: {choice!r} is a {type(choice).__name__}; give TileChoice objects")
    if not found:
        raise InvalidArgumentError("candidates: there are none; give one, or leave it out")
    return tuple(dict.fromkeys(found))


def _kept(descriptor: GemmDescriptor, device: Mapping[str, Any]) -> Tuned | None:
    """What a call with all candidates found before; None where it makes no sense, too."""
    content = tuned_results.load(descriptor, device)
    if content is None or not content.get("complete"):
        return None
    try:
        trials = tuple(_read_trial(words) for words in content["trials"])
        best = tuned_results.read_choice(content["best"])
        tuned = Tuned(descriptor, best, trials, dict(content["device"]), dict(content["versions"]))
        return tuned if tuned.milliseconds > 0 else None
    except (KeyError, StopIteration, TypeError, ValueError):
        return None


def _read_trial(words: Mapping[str, Any]) -> Trial:
    if words["outcome"] not in OUTCOMES:
        raise ValueError(words["outcome"])
    return Trial(**{**words, "choice": tuned_results.read_choice(words["choice"])})


def _keep(tuned: Tuned, *, complete: bool) -> None:
    if not complete:
        content = tuned_results.load(tuned.descriptor, tuned.device)
        known = content.get("milliseconds") if content is not None else None
        if isinstance(known, float) and known <= tuned.milliseconds:
            return
    content = {**tuned.as_dict(), "milliseconds": tuned.milliseconds, "complete": complete}
    tuned_results.keep(tuned.descriptor, tuned.device, content)


def _table(descriptor: GemmDescriptor, trials: Sequence[Trial]) -> str:
    head = ("tile", "threads", "stages", "group", "ms", "TFLOP/s", "registers", "path", "outcome")
    rows = [head]
    for trial in sorted(trials, key=lambda t: (t.milliseconds is None, t.milliseconds or 0.0)):
        choice, ms = trial.choice, trial.milliseconds
        rows.append(
            (
                "x".join(map(str, choice.tile)),
                str(choice.block_size),
                str(choice.depth),
                str(choice.group),
                "" if ms is None else f"{ms:.4f}",
                "" if ms is None else f"{_tflops(descriptor, ms):.0f}",
                "" if trial.registers is None else str(trial.registers),
                trial.path,
                trial.outcome + (f": {trial.reason.splitlines()[0]}" if trial.reason else ""),
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(head) - 1)]
    return "\n".join(
        "  ".join([*(text.ljust(width) for text, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in rows
    )


def _tflops(descriptor: GemmDescriptor, milliseconds: float) -> float:
    m, n, k = descriptor.size
    return 2 * m * n * k / milliseconds / 1e9 if milliseconds else 0.0
