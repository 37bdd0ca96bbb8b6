# SPDX-License-Identifier: Apache-2.0
"""Tests of simulated kernels: in a process of their own, as Numba reads the variable when imported."""

from __future__ import annotations

import os
import sys

import pytest

os.environ["NUMBA_ENABLE_CUDASIM"] = "1"

for name in ("numba.core.config", "numba.cuda.core.config"):
    config = sys.modules.get(name)
    if config is not None and not config.ENABLE_CUDASIM:
        raise pytest.UsageError(
            "Numba was imported without NUMBA_ENABLE_CUDASIM=1 before tests/sim was collected; "
            "run these tests in a process of their own: pytest tests/sim"
        )
