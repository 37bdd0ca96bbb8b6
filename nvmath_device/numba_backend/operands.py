# SPDX-License-Identifier: Apache-2.0
"""What kernel-side calls accept as a matrix, checked when the call is typed."""

from __future__ import annotations

from typing import Any

from numba.cuda import types

from nvmath_device.descriptors import COL_MAJOR, ROW_MAJOR
from nvmath_device.dtypes import ValueType
from nvmath_device.numba_backend.element_types import holds, holds_components, wanted
from nvmath_device.numba_backend.objects import Call


def check_matrix(call: Call, name: str, given: Any, value: ValueType, order: str) -> None:
    """A matrix in shared memory: a 1-D array as a pointer to it, or a 2-D array of the descriptor's order."""
    if not isinstance(given, types.Array):
        raise call.error(f"wants an array in shared memory for {name}, got {given}")
    if given.ndim not in (1, 2):
        raise call.error(f"wants a 1-D or 2-D array for {name}, got {given.ndim}-D: {given}")
    if not (holds(given.dtype, value) or (given.ndim == 1 and holds_components(given.dtype, value))):
        raise call.error(f"wants elements of {wanted(value)} for {name}, got an array of {given.dtype}")
    if given.ndim == 1 and given.layout not in "CF":
        raise call.error(f"wants a contiguous 1-D array for {name} (it is used as a pointer), got {given}")
    if given.ndim == 2:
        check_order(call, name, given, order, also="a 1-D array, ")


def check_order(call: Call, name: str, given: Any, order: str, *, also: str = "") -> None:
    """A 2-D array that is not known to have the other order; ``also`` is what else could be passed, for the message."""
    if given.layout == {COL_MAJOR: "C", ROW_MAJOR: "F"}[order]:
        raise call.error(
            f"wants a {order} matrix for {name}, as the descriptor's arrangement says, got a "
            f"{'row' if order == COL_MAJOR else 'column'}-major 2-D array; pass its transpose (x.T), "
            f"{also}or change the arrangement"
        )


def check_view(call: Call, name: str, given: Any, value: ValueType) -> None:
    """A 2-D array of any strides to copy from or to; its elements are not converted."""
    if not isinstance(given, types.Array):
        raise call.error(f"wants a 2-D array for {name}, got {given}")
    if given.ndim != 2:
        raise call.error(
            f"wants a 2-D array for {name}, got {given.ndim}-D: {given}; give one matrix, for example "
            "x[i] of a 3-D batch or x.reshape(rows, cols)"
        )
    if not holds(given.dtype, value):
        own = wanted(value).partition(" (or, in a 1-D")[0]
        raise call.error(f"wants elements of {own} for {name} (a copy converts nothing), got an array of {given.dtype}")


def check_writable(call: Call, name: str, given: Any) -> None:
    if not given.mutable:
        raise call.error(f"cannot write {name}: the array is read-only")
