# SPDX-License-Identifier: Apache-2.0
"""Runs every example under compute-sanitizer: ``python tests/gpu/sanitize.py [-j JOBS] [TOOL ...]``.

Tools are memcheck and racecheck unless named. An example passes when it ends with 0, which means that its own
check of the result held, and the sanitizer found nothing. Needs a GPU and compute-sanitizer on the PATH.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
FOUND_SOMETHING = 99
LIMIT_S = 300


def run(tool: str, example: Path) -> tuple[str, Path, int | str, float, str]:
    # cuda-bindings asks the driver for functions newer than it: "invalid argument", and no fault of a kernel.
    command = ["compute-sanitizer", "--tool", tool, "--report-api-errors", "no"]
    command += ["--error-exitcode", str(FOUND_SOMETHING)]
    started = time.monotonic()
    try:
        done = subprocess.run(
            [*command, sys.executable, str(example)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        return tool, example, f"over {LIMIT_S} s", time.monotonic() - started, ""
    return tool, example, done.returncode, time.monotonic() - started, done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-j", "--jobs", type=int, default=1)
    parser.add_argument("tools", nargs="*", default=["memcheck", "racecheck"])
    options = parser.parse_args()
    examples = sorted(EXAMPLES.glob("*.py"))
    jobs = [(tool, example) for tool in options.tools for example in examples]
    failed = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        for tool, example, outcome, seconds, output in pool.map(lambda job: run(*job), jobs):
            summary = [line for line in output.splitlines() if "SUMMARY" in line]
            print(f"{tool:10} {example.name:24} {outcome!s:10} {seconds:6.1f} s  {' '.join(summary)}")
            if outcome != 0:
                failed += 1
                print(output[-3000:])
    print(f"{len(jobs) - failed} clean, {failed} not")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
