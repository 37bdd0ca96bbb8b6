# SPDX-License-Identifier: Apache-2.0
"""Counts of the fuzz chunks, added up over all processes of the run, in its closing lines."""

from __future__ import annotations

import os
from collections import Counter

import pytest

# JAX takes three quarters of the GPU's memory when it starts; one pytest process would leave nothing to the others.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

PREFIX = "fuzz "


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    total: Counter[str] = Counter()
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, []):
            for name, value in getattr(report, "user_properties", ()):
                if report.when == "call" and name.startswith(PREFIX):
                    total[name.removeprefix(PREFIX)] += value
    if total:
        terminalreporter.section("any product")
        terminalreporter.line(
            f"{total['examples']} products: {total['reached']} reached cublasLtMatmul, {total['copied']} went through "
            f"a copy on the GPU, {total['failures']} failed"
        )
