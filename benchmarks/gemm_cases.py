# SPDX-License-Identifier: Apache-2.0
"""What ``benchmarks/gemm.py`` times, as data, and what is made of the times. Needs no GPU and no array library."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from timing import Verdict

import nvmath_device as nd

OPPONENT, OURS = "cuBLASLt", "multiply"
FUSED, SEPARATE = "multiply, bias, GELU, residual", "cuBLASLt, then bias, GELU, residual"
FUSED_COST, FUSED_GAIN = 1.03, 1.0  # targets: of the time without, at most; of the separate kernels', at least

ROW, COL = "row_major", "col_major"
ALONG_K = (ROW, COL, ROW)  # rows of A times columns of B, the order that tensor cores read fastest
ALONG_MN = (COL, ROW, ROW)  # columns of A times rows of B, the order that single numbers are read fastest in
ROWS = (ROW, ROW, ROW)
ORDERS = ((ROW, COL), (ROW, ROW), (COL, ROW), (COL, COL))  # of A and B, that cuBLASLt may choose from


@dataclass(frozen=True)
class Allowed:
    """The norm-wise relative error that a result may have, and why so much."""

    error: float
    why: str


SUMS_32 = Allowed(1e-5, "exact products, K of them added in float32 by tensor cores, which do not round to nearest")
SUMS_TF32 = Allowed(
    4e-5, "the same with twice as many additions, 8 products to an instruction instead of 16; cuBLASLt's are 1.9e-5 off"
)
SUMS_FP8 = Allowed(2e-2, "tensor cores keep about 13 bits of sums of fp8 products and cut the rest off, K / 32 times")
FLOAT32 = Allowed(5e-6, "K roundings of 6e-8 add up like a random walk, to 1.5e-6 at K = 8192")
FLOAT64 = Allowed(2e-14, "the same in float64, to 3e-15, of which the reference has as many")
EPILOG = Allowed(1e-4, "the hardware's tanh keeps about 11 bits, of numbers that are added to larger ones")


@dataclass(frozen=True)
class Case:
    """A product of square matrices.

    Attributes:
        name: how ``--cases`` calls it.
        precision: element types of A, B and C as stored.
        size: rows and columns of each.
        choice: our tile, threads, stages and group.
        target: cuBLASLt's time / ours, at least.
        allowed: how far both results may be off.
        launches: of a sample.
        arrangement: our orders of A, B and C.
        compute: cuBLASLt's compute type, where it is not the usual one of these element types.
        fused: whether it is timed with an epilog, too.
    """

    name: str
    precision: tuple[str, str, str]
    size: int
    choice: nd.TileChoice
    target: float
    allowed: Allowed
    launches: int
    arrangement: tuple[str, str, str] = ALONG_K
    compute: str | None = None
    fused: bool = False

    def __str__(self) -> str:
        types, orders = "-".join(self.precision), ", ".join(self.arrangement)
        fused = " (and with an epilog)" if self.fused else ""
        return f"{self.name:15} {types} of {orders}; {self.choice}; at least {self.target:.2f} of {OPPONENT}{fused}"

    @property
    def sums(self) -> str:
        """The element type of our accumulators, as of cuBLASLt's; ``store`` converts to C's."""
        return "float64" if self.precision[2] == "float64" else "float32"

    @property
    def descriptor(self) -> nd.GemmDescriptor:
        """Of our tiles; its C is the accumulator."""
        return nd.GemmDescriptor(
            size=(self.size,) * 3,
            precision=(*self.precision[:2], self.sums),
            arrangement=self.arrangement,
            alignment=nd.MAX_ALIGNMENT,
        )

    @property
    def is_fp8(self) -> bool:
        return nd.element_type(self.precision[0]).itemsize == 1

    @property
    def teraflop(self) -> float:
        """Of additions and multiplications."""
        return 2 * self.size**3 / 1e12


@dataclass(frozen=True)
class Opponent:
    """A way to ask cuBLASLt: orders of A and B, and for fp8 whether sums may stay in the tensor cores."""

    orders: tuple[str, str]
    fast_accumulation: bool = False

    @property
    def name(self) -> str:
        sums = ", fast accumulation" if self.fast_accumulation else ""
        return f"{OPPONENT} autotuned, A {self.orders[0]}, B {self.orders[1]}{sums}"


def opponents(case: Case) -> tuple[Opponent, ...]:
    """Of which the fastest is the opponent. cuBLASLt multiplies fp8 in one order only."""
    if case.is_fp8:
        return tuple(Opponent((ROW, COL), fast) for fast in (False, True))
    return tuple(Opponent(orders) for orders in ORDERS)


# Shared by tests that disassemble it.
HALVES = nd.TileChoice((128, 256, 64), block_size=256, depth=4, group=16)
_TF32 = nd.TileChoice((128, 256, 32), block_size=256, depth=4, group=16)
_FP8 = nd.TileChoice((128, 256, 128), block_size=256, depth=4, group=16)
_SINGLES = nd.TileChoice((256, 128, 32), block_size=256, depth=3, group=16)
_SINGLES_ROWS = nd.TileChoice((128, 256, 32), block_size=256, depth=3, group=16)  # less of A to be turned over
_DOUBLES = nd.TileChoice((128, 128, 16), block_size=256, depth=4, group=16)

_HALF, _BRAIN = ("float16", "float16", "float32"), ("bfloat16", "bfloat16", "float32")
_SINGLE = ("float32",) * 3
_E4M3 = ("float8_e4m3fn", "float8_e4m3fn")

CASES = (
    Case("fp16-8192", _HALF, 8192, HALVES, 0.90, SUMS_32, launches=10, fused=True),
    Case("bf16-8192", _BRAIN, 8192, HALVES, 0.90, SUMS_32, launches=10),
    Case("fp16-4096", _HALF, 4096, HALVES, 0.85, SUMS_32, launches=20, fused=True),
    Case("bf16-4096", _BRAIN, 4096, HALVES, 0.85, SUMS_32, launches=20),
    Case(
        "tf32-8192", ("tfloat32", "tfloat32", "float32"), 8192, _TF32, 0.85, SUMS_TF32, launches=6,
        compute="COMPUTE_32F_FAST_TF32",
    ),
    Case("fp8-fp16-8192", (*_E4M3, "float16"), 8192, _FP8, 0.80, SUMS_FP8, launches=20),
    Case("fp8-fp32-8192", (*_E4M3, "float32"), 8192, _FP8, 0.80, SUMS_FP8, launches=20),
    Case("fp32-8192", _SINGLE, 8192, _SINGLES, 0.90, FLOAT32, launches=2, arrangement=ALONG_MN),
    Case("fp32-8192-rows", _SINGLE, 8192, _SINGLES_ROWS, 0.90, FLOAT32, launches=2, arrangement=ROWS),
    Case("fp64-8192", ("float64",) * 3, 8192, _DOUBLES, 0.90, FLOAT64, launches=2, arrangement=ALONG_MN),
    Case("fp64-8192-rows", ("float64",) * 3, 8192, _DOUBLES, 0.90, FLOAT64, launches=2, arrangement=ROWS),
)  # fmt: skip
BY_NAME = {case.name: case for case in CASES}


def parse_choice(text: str, like: nd.TileChoice) -> nd.TileChoice:
    """``MxNxK[/threads[/stages[/group]]]``; what is left out is that of ``like``.

    Raises ValueError for other texts, and what :class:`nvmath_device.TileChoice` refuses.
    """
    found = re.fullmatch(r"(\d+)x(\d+)x(\d+)((?:/\d+){0,3})", text)
    if not found:
        raise ValueError(f"{text!r} is not MxNxK[/threads[/stages[/group]]], such as 128x256x64/256/4/16")
    given = [int(number) for number in found[4].split("/")[1:]]
    usual = (like.block_size, like.depth, like.group)
    return nd.TileChoice(tuple(map(int, found.groups()[:3])), *given, *usual[len(given) :])


def choice_words(choice: nd.TileChoice) -> dict[str, Any]:
    """For JSON."""
    return {
        "tile": list(choice.tile), "threads": choice.block_size, "stages": choice.depth, "group": choice.group,
    }  # fmt: skip


def verdicts(case: Case, times: Mapping[str, Mapping[str, Any]], opponent: str | None) -> list[Verdict]:
    """Ratios of medians beside their targets, as far as both took part. ``times`` by competitor have ``gpu_ms``."""
    wanted = [
        (opponent, OURS, case.target, False),
        (FUSED, OURS, FUSED_COST, True),
        (SEPARATE, FUSED, FUSED_GAIN, False),
    ]
    return [
        Verdict(f"{case.name}: time of {one} / {other}", times[one]["gpu_ms"] / times[other]["gpu_ms"], target, at_most)
        for one, other, target, at_most in wanted
        if one in times and other in times
    ]


def record(
    case: Case,
    *,
    kernels: Mapping[str, Any],
    opponents_ms: Mapping[str, float],
    algorithm: str | None,
    errors: Mapping[str, float],
    times: Mapping[str, Mapping[str, Any]],
    judged: Sequence[Verdict],
) -> dict[str, Any]:
    """A case for the JSON; ``plot_gemm.py`` reads it.

    ``kernels``: what ours became, by competitor. ``opponents_ms``: medians of all that could be the opponent, from few
    samples, with the algorithm of the fastest. ``errors`` and ``times`` by competitor.
    """
    return {
        "case": case.name,
        "size": case.size,
        "precision": list(case.precision),
        "arrangement": list(case.arrangement),
        **choice_words(case.choice),
        "launches_a_sample": case.launches,
        "kernels": dict(kernels),
        "opponents_ms": dict(opponents_ms),
        "algorithm": algorithm,
        "allowed_error": case.allowed.error,
        "allowed_because": case.allowed.why,
        "errors": dict(errors),
        "teraflops": {name: case.teraflop / time["gpu_ms"] * 1e3 for name, time in times.items()},
        "times": {name: dict(time) for name, time in times.items()},
        "verdicts": [verdict.as_json() for verdict in judged],
    }
