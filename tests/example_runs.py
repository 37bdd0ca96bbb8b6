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
    "ahead_of_time": 1,
    "attention": 1,
    "batched_gemm": 1,
    "digits_classifier": 2,
    "fft_2d": 1,
    "fft_real": 1,
    "fft_thread": 1,
    "fused_gemm_epilog": 2,
    "grouped_gemm": 1,
    "int8_fp8": 4,
    "linear_layer": 1,
    "mixed_arrays": 3,
    "persistent_gemm": 1,
    "quickstart": 2,
    "shared_descriptor": 2,
    "smallest_gemm": 1,
    "split_k": 1,
    "stream_k": 1,
    "tensor_gemm": 1,
    "tiled_gemm": 1,
}
# Their errors are more than float32's: images that are classified wrongly, numbers of 16 and of 8 bits, long sums.
BOUNDS = {
    "attention": 1e-3,
    "digits_classifier": 0.05,
    "int8_fp8": 0.05,
    "persistent_gemm": 1e-5,
    "split_k": 1e-5,
    "stream_k": 1e-5,
    "tensor_gemm": 1e-5,
}


@dataclass(frozen=True)
class Outcome:
    returncode: int
    text: str  # what it printed, standard error behind it

    @property
    def errors(self) -> list[float]:
        return [float(found) for found in re.findall(r"\berror: (\S+) \(at most", self.text)]


def run(file: Path, *arguments: str, simulated: bool | None, timeout: float = 400) -> Outcome:
    """Run it with Numba's simulator and no GPU in sight, on the GPU, or (``None``) on what it chooses itself."""
    environment = {k: v for k, v in os.environ.items() if k != "NUMBA_ENABLE_CUDASIM"}
    if simulated is not None:
        environment["NUMBA_ENABLE_CUDASIM"] = str(int(simulated))
    if simulated:
        environment["CUDA_VISIBLE_DEVICES"] = ""  # examples of the host layer then compute on the CPU
    # An example imports what is installed; in a checkout that is not installed, the checkout.
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, str(file), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout)
    return Outcome(done.returncode, done.stdout + done.stderr)


def check(outcome: Outcome, name: str) -> None:
    """It ended well, and every result it has is right; float32 rounds at 6e-8."""
    assert outcome.returncode == 0, outcome.text
    assert len(outcome.errors) == CHECKED_RESULTS[name], outcome.text
    assert max(outcome.errors) <= BOUNDS.get(name, 2e-6), outcome.text
    assert re.search(r"\btime: \d", outcome.text), outcome.text
