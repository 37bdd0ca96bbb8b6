# SPDX-License-Identifier: Apache-2.0
"""Whether kernels run on Numba's CUDA simulator instead of a GPU."""

from __future__ import annotations

import os
import sys


def is_active() -> bool:
    """True when Numba simulates CUDA. Asks Numba's own configuration once Numba is there, the environment before."""
    config = sys.modules.get("numba.core.config") or sys.modules.get("numba.cuda.core.config")
    if config is not None and hasattr(config, "ENABLE_CUDASIM"):
        return bool(config.ENABLE_CUDASIM)
    return os.environ.get("NUMBA_ENABLE_CUDASIM", "0").strip() not in ("", "0")
