# SPDX-License-Identifier: Apache-2.0
"""Numba's signatures. A file of its own, because a kernel that is in the store needs nothing else of the compiler."""

from __future__ import annotations

from typing import Any

from numba.cuda import types
from numba.cuda.core import sigutils

from nvmath_device.errors import ArgumentTypeError


def argument_types(signature: Any) -> tuple[Any, ...]:
    """Numba types of the arguments, out of a signature in any of Numba's forms; it must have no result."""
    arguments, result = sigutils.normalize_signature(signature)
    if result is not None and result not in (types.void, types.none):
        raise ArgumentTypeError(f"signature: {signature} has the result {result}; a kernel has none: give void(...)")
    return tuple(arguments)
