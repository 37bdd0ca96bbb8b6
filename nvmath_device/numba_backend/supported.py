# SPDX-License-Identifier: Apache-2.0
"""Which versions of numba-cuda this package can hook into."""

from __future__ import annotations

from functools import cache
from itertools import takewhile

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
    if version_numbers(found) < version_numbers(NUMBA_CUDA_FROM):
        raise MissingDependencyError(
            f"nvmath_device needs numba-cuda {NUMBA_CUDA_FROM} or newer, and {found} is installed. "
            f'Run: pip install "numba-cuda>={NUMBA_CUDA_FROM}"'
        )


def version_numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: '2.5.0rc1' -> (2, 5)."""
    return tuple(int(part) for part in takewhile(str.isdigit, version.split(".")))
