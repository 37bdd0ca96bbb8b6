# SPDX-License-Identifier: Apache-2.0
"""The constructors of ``nvmath_device.float32x2`` and its kind in simulated kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvmath_device.numba_backend.simulator_arguments import Call
from nvmath_device.numba_backend.simulator_block import calling_thread
from nvmath_device.vector_types import VectorType


def vector(kind: VectorType, numbers: tuple[Any, ...]) -> Any:
    """A record scalar with the attributes x, y (, z, w); numbers are converted as C converts them."""
    calling_thread(kind.name)
    call = Call(kind.name, kind)
    if len(numbers) != kind.components:
        raise call.typing_error(f"takes {kind.components} numbers, got {len(numbers)}")
    made = np.zeros((), kind.dtype)
    for field, number in zip(kind.dtype.names or (), numbers, strict=True):
        given = np.asarray(number)
        if given.ndim or (given.dtype.kind not in "iuf" and given.dtype.name != "bfloat16"):
            raise call.typing_error(f"takes real numbers, got {number!r} for {field}")
        with np.errstate(over="ignore", invalid="ignore"):
            made[field] = given.astype(kind.element.dtype)
    return made[()]
