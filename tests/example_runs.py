# SPDX-License-Identifier: Apache-2.0
"""Runs a program of ``examples/`` in a process of its own and reads what it printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
EXAMPLES = REPOSITORY / "examples"

# How many errors each example prints, one for each result it checks.
CHECKED_RESULTS = {
    "batched_gemm": 1,
    "fft_2d": 1,
    "fft_real": 1,
    "fft_thread": 1,
    "fused_gemm_epilog": 2,
    "quickstart": 2,
    "smallest_gemm": 1,
    "tiled_gemm": 1,
}


@dataclass(frozen=True)
class Outcome:
    returncode: int
    text: str  # what it printed, standard error behind it

    @property
    def errors(self) -> list[float]:
        return [float(found) for found in re.findall(r"\berror: (\S+) \(at most", self.text)]


def run(file: Path, *arguments: str, simulated: bool | None, timeout: float = 400) -> Outcome:
    """Run it with Numba's simulator, on the GPU, or (``None``) on what it chooses itself."""
    environment = {k: v for k, v in os.environ.items() if k != "NUMBA_ENABLE_CUDASIM"}
    if simulated is not None:
        environment["NUMBA_ENABLE_CUDASIM"] = str(int(simulated))
    # An example imports what is installed; in a checkout that is not installed, the checkout.
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, str(file), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout)
    return Outcome(done.returncode, done.stdout + done.stderr)


def check(outcome: Outcome, name: str, *, bound: float = 2e-6) -> None:
    """It ended well, and every result it has is right; float32 rounds at 6e-8."""
    assert outcome.returncode == 0, outcome.text
    assert len(outcome.errors) == CHECKED_RESULTS[name], outcome.text
    assert max(outcome.errors) <= bound, outcome.text
    assert re.search(r"\btime: \d", outcome.text), outcome.text
