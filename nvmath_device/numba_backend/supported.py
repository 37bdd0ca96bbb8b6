# SPDX-License-Identifier: Apache-2.0
"""Which versions of numba-cuda this package can hook into."""

from __future__ import annotations

import re
from functools import cache

from nvmath_device.errors import MissingDependencyError

NUMBA_CUDA_FROM = "0.30.4"  # as pyproject.toml has it


@cache
def check_numba_cuda() -> None:
    """Nothing, where the installed numba-cuda is new enough. There is no newest one: where a newer one changes what
    this package relies on, compiling says so.

    Raises:
        MissingDependencyError: with the version that is there and the one to install.
    """
    import numba_cuda  # type: ignore[import-untyped]

    found = numba_cuda.__version__
    if _numbers(found) < _numbers(NUMBA_CUDA_FROM):
        raise MissingDependencyError(
            f"nvmath_device needs numba-cuda {NUMBA_CUDA_FROM} or newer, and {found} is installed. "
            f'Run: pip install "numba-cuda>={NUMBA_CUDA_FROM}"'
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:3]))
