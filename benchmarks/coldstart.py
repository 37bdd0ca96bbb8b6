# SPDX-License-Identifier: Apache-2.0
"""From the start of a process to its first finished launch, with the code store warm, and empty once.

Each program (``coldstart_child.py``) is a new interpreter, timed from outside; they take turns. ``beyond`` is what is
left after imports and the context: descriptors, the kernel's code, loading, arrays, launch. ``eight`` is a kernel that
uses eight GEMM descriptors, ``pipelined`` one that calls ``Matmul.multiply``. nvmath-python generates and links its
code in each process; it runs once.

    python benchmarks/coldstart.py --json coldstart.json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from timing import Report, Verdict

from nvmath_device.host import current_device

CHILD = Path(__file__).with_name("coldstart_child.py")
ROUNDS, OURS, PEER = 7, ("gemm", "fft", "pipelined"), "peer"
EIGHT = "eight"
AT_MOST_S, BEYOND_AT_MOST_S, COLD_AT_MOST_S = 1.5, 0.2, {EIGHT: 60, "pipelined": 60}
LIMIT_S = 240


def run(what: str, store: str) -> dict[str, float]:
    """Seconds from the start of the process to each lap, and ``beyond``. Raises where the program fails."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "laps.json")
        environment = os.environ | {"NVMATH_DEVICE_CACHE_DIR": store}
        start = time.time()
        done = subprocess.run(
            [sys.executable, str(CHILD), what, path], capture_output=True, text=True, env=environment, timeout=LIMIT_S
        )
        if done.returncode:
            raise RuntimeError(f"{what}: {done.stderr[-3000:]}")
        with open(path) as file:
            laps = {name: at - start for name, at in json.load(file).items()}
    laps["beyond"] = laps.get("launched", laps["context"]) - laps["context"]
    return laps


def median_of(samples: list[dict[str, float]], lap: str) -> float:
    return statistics.median(sample[lap] for sample in samples)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write everything to this file")
    path = parser.parse_args().json
    report = Report(path, (), device=current_device.device_name(0))
    section: dict[str, Any] = report.data.setdefault("coldstart", {})
    verdicts = []
    with tempfile.TemporaryDirectory() as store:
        section["cold"] = {}
        for what in (*OURS, EIGHT):
            cold = section["cold"][what] = run(what, store)
            report.say(f"{what:6} empty store: {cold['launched']:7.2f} s to the first launch's end")
        samples: dict[str, list[dict[str, float]]] = {what: [] for what in ("bare", *OURS, EIGHT)}
        for _ in range(ROUNDS):
            for what, taken in samples.items():
                taken.append(run(what, store))
    section["warm"] = samples
    for what, taken in samples.items():
        laps = "  ".join(f"{lap} {median_of(taken, lap):.3f}" for lap in taken[0])
        report.say(f"{what:6} warm store, medians of {ROUNDS}, s: {laps}")
    for what in OURS:
        verdicts.append(
            Verdict(f"{what}: s to the first launch", median_of(samples[what], "launched"), AT_MOST_S, True)
        )
        beyond = median_of(samples[what], "beyond")
        verdicts.append(Verdict(f"{what}: s beyond imports and context", beyond, BEYOND_AT_MOST_S, True))
    for what, at_most in COLD_AT_MOST_S.items():
        cold_s = section["cold"][what]["launched"]
        verdicts.append(Verdict(f"{what}: s to the first launch, empty store", cold_s, at_most, True))
    try:
        peer = section["peer"] = run(PEER, "off")
        report.say(f"nvmath-python, GEMM: {peer['launched']:.2f} s to the first launch's end")
    except Exception as error:
        report.leave_out("nvmath-python", error)
    report.judge(section, verdicts)
    report.save()
    return 0


if __name__ == "__main__":
    sys.exit(main())
