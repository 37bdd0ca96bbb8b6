# SPDX-License-Identifier: Apache-2.0
"""Compute capabilities: which exist, how they are written, how much shared memory a block may have."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError


class ComputeCapability(NamedTuple):
    """A code generation target. ``arch`` is ``""``, ``"a"`` (arch-specific) or ``"f"`` (family-specific)."""

    major: int
    minor: int
    arch: str = ""

    @property
    def integer(self) -> int:
        """``major * 100 + minor * 10``, libmathdx's way of writing it (900 for 9.0)."""
        return self.major * 100 + self.minor * 10

    @property
    def sm(self) -> str:
        """The assembler's name, ``sm_90`` or ``sm_90a``."""
        return f"sm_{self.major}{self.minor}{self.arch}"

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}{self.arch}"


KIB = 1024

# Maximum shared memory per block by opt-in, in bytes. CUDA C++ Programming Guide, "Technical Specifications
# per Compute Capability"; the guide's 228 KiB per multiprocessor leave 227 KiB to one block.
MAX_SHARED_BYTES: dict[tuple[int, int], int] = {
    (7, 0): 96 * KIB,
    (7, 2): 96 * KIB,
    (7, 5): 64 * KIB,
    (8, 0): 163 * KIB,
    (8, 6): 99 * KIB,
    (8, 7): 163 * KIB,
    (8, 9): 99 * KIB,
    (9, 0): 227 * KIB,
    (10, 0): 227 * KIB,
    (10, 3): 227 * KIB,
    (11, 0): 227 * KIB,
    (12, 0): 99 * KIB,
    (12, 1): 99 * KIB,
}

MAX_SUPPORTED_CC = ComputeCapability(12, 1)
MAX_THREADS_PER_BLOCK = 1024

# What a simulated kernel is compiled for: there is no device to ask.
SIMULATED_CC = ComputeCapability(9, 0)


def chip_of(sm: ComputeCapability) -> ComputeCapability:
    """What ``nd.jit`` and ``nd.compile`` link pipelined code for: on Hopper the chip alone, which has wgmma then."""
    return sm._replace(arch="a") if sm[:2] == (9, 0) else sm


def compute_capability(value: Any, *, argument: str = "sm") -> ComputeCapability:
    """Read a target: ``90``, ``900``, ``(9, 0)``, ``"9.0"``, ``"sm_90a"`` or a :class:`ComputeCapability`.

    Raises :class:`ArgumentTypeError` for other types and :class:`InvalidArgumentError`, which lists the known
    ones, for a capability no CUDA device of the supported range has.
    """
    major, minor, arch = _parse(value, argument)
    if (major, minor) not in MAX_SHARED_BYTES or arch not in ("", "a", "f") or (arch and major < 9):
        known = ", ".join(f"{a}{b}" for a, b in MAX_SHARED_BYTES)
        raise InvalidArgumentError(
            f"{argument}: {value!r} is not a known compute capability; known are {known}, "
            "from 90 on also with 'a' or 'f' behind it"
        )
    return ComputeCapability(major, minor, arch)


def _parse(value: Any, argument: str) -> tuple[int, int, str]:
    if isinstance(value, tuple) and len(value) in (2, 3):
        major, minor, arch = (*value, "")[:3]
        if _is_integer(major) and _is_integer(minor) and isinstance(arch, str):
            return operator.index(major), operator.index(minor), arch
    elif isinstance(value, str):
        text = value.lower().removeprefix("sm_").removeprefix("compute_").replace(".", "")
        arch = text[-1:] if text[-1:].isalpha() else ""
        digits = text.removesuffix(arch) if arch else text
        if digits.isascii() and digits.isdigit() and len(digits) <= 4:
            return int(digits) // 10, int(digits) % 10, arch
    elif _is_integer(value):
        number = operator.index(value)
        if number >= 500 and number % 10 == 0:  # 900, the way libmathdx writes it
            number //= 10
        return number // 10, number % 10, ""
    raise ArgumentTypeError(f"{argument}: {value!r} is not a compute capability; give 90, (9, 0) or 'sm_90a'")


def _is_integer(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    try:
        operator.index(value)
    except TypeError:
        return False
    return True
