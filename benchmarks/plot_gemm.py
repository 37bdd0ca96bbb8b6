# SPDX-License-Identifier: Apache-2.0
"""Draws what ``benchmarks/gemm.py --json`` wrote: our speed as a part of cuBLASLt's, beside the targets.

Needs matplotlib: ``pip install "nvmath-device[bench]"``. The file's name says the format, such as .png or .svg.

    python benchmarks/plot_gemm.py gemm.json gemm.png
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gemm_cases import BY_NAME, OPPONENT, OURS

import nvmath_device as nd

WITHIN, BELOW, LIMIT = "tab:green", "tab:orange", "black"


@dataclass(frozen=True)
class Bar:
    """A case: the ratio of medians, the least and the largest of single rounds, the target, and our TFLOP/s."""

    name: str
    ratio: float
    least: float
    largest: float
    target: float
    teraflops: float


def bars(content: Mapping[str, Any]) -> list[Bar]:
    """Of the cases in which both took part."""
    found = []
    for case in content["gemm"]["cases"]:
        times = case["times"]
        opponent = next((name for name in times if name.startswith(f"{OPPONENT} autotuned")), None)
        if opponent is None or OURS not in times:
            continue
        pairs = zip(times[opponent]["samples_ms"], times[OURS]["samples_ms"], strict=True)
        rounds = [theirs[0] / ours[0] for theirs, ours in pairs]
        ratio = times[opponent]["gpu_ms"] / times[OURS]["gpu_ms"]
        name = case["case"]
        found.append(Bar(name, ratio, min(rounds), max(rounds), BY_NAME[name].target, case["teraflops"][OURS]))
    return found


def draw(content: Mapping[str, Any], path: str) -> None:
    """Write the picture. Raises ImportError without matplotlib."""
    from matplotlib.figure import Figure

    shown = bars(content)
    figure = Figure(figsize=(1.5 + 1.1 * len(shown), 4.5), layout="constrained")
    axes = figure.subplots()
    places = range(len(shown))
    colors = [WITHIN if bar.ratio >= bar.target else BELOW for bar in shown]
    # A ratio of medians need not lie between those of single rounds.
    spread = [
        [max(bar.ratio - bar.least, 0) for bar in shown],
        [max(bar.largest - bar.ratio, 0) for bar in shown],
    ]
    axes.bar(places, [bar.ratio for bar in shown], color=colors, yerr=spread, capsize=3, width=0.6)
    for place, bar in zip(places, shown, strict=True):
        axes.hlines(bar.target, place - 0.4, place + 0.4, color=LIMIT, linestyle="dashed")
        axes.text(place, 0.02, f"{bar.ratio:.2f}\n{bar.teraflops:.0f}\nTFLOP/s", ha="center", va="bottom", fontsize=8)
    axes.axhline(1, color=LIMIT, linewidth=0.5)
    axes.set_xticks(places, [bar.name for bar in shown], rotation=30, ha="right")
    axes.set_ylabel(f"time of {OPPONENT}'s best / ours")
    axes.set_title(f"{content.get('device', '')}, nvmath_device {nd.__version__}; dashed: targets", fontsize=10)
    figure.savefig(path)


def main() -> int:
    source, path = sys.argv[1:]
    with open(source) as file:
        draw(json.load(file), path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
