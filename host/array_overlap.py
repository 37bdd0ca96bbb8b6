# SPDX-License-Identifier: Apache-2.0
"""Do two operands share memory? Needed wherever one is written.

Only addresses are compared. Under CUDA's unified addressing no two allocations of CPU and GPUs have the same
address, and managed memory has one everywhere, so devices need no look.
"""

from __future__ import annotations

import numpy as np

from nvmath_device.host.array_view import ArrayView

MAX_WORK = 100_000  # candidates np.shares_memory may try; beyond, the answer is "they may"


def may_overlap(a: ArrayView, b: ArrayView) -> bool:
    """Whether the ranges of addresses meet. False is certain; true is not: see :func:`overlap`."""
    a_low, a_high = a.extent_bytes
    b_low, b_high = b.extent_bytes
    return max(a_low, b_low) < min(a_high, b_high)


def overlap(a: ArrayView, b: ArrayView, *, max_work: int = MAX_WORK) -> bool:
    """Whether some byte belongs to an element of both, decided exactly within a bounded effort.

    Interleaved slices (even and odd columns) are told apart. False is certain. Should the exact problem, which
    is NP-hard for many axes, take more than ``max_work`` steps, the answer is true.
    """
    if not may_overlap(a, b):
        return False
    try:
        return bool(np.shares_memory(_window(a), _window(b), max_work=max_work))  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def same_elements(a: ArrayView, b: ArrayView) -> bool:
    """Whether each element of ``a`` is the one of ``b`` with the same index: an operand written in place."""
    return (a.ptr, a.shape, a.strides, a.itemsize) == (b.ptr, b.shape, b.strides, b.itemsize)


def may_overlap_itself(view: ArrayView) -> bool:
    """Whether two indices may address the same element, as after broadcasting. False is certain.

    Strides must be nested: each at least as large as all smaller axes reach. All arrays that slicing,
    transposing and reversing make of an ordinary one are.
    """
    if 0 in view.shape:
        return False
    reach = 1
    for stride, extent in sorted((abs(s), n) for n, s in zip(view.shape, view.strides, strict=True) if n > 1):
        if stride < reach:
            return True
        reach += (extent - 1) * stride
    return False


class _Window:
    """Addresses for NumPy to reason about; nobody reads what is there, which may be GPU memory."""

    def __init__(self, view: ArrayView) -> None:
        self.__array_interface__ = {
            "version": 3,
            "typestr": f"|V{view.itemsize}",
            "shape": view.shape,
            "strides": tuple(s * view.itemsize for s in view.strides),
            "data": (view.ptr, True),
        }


def _window(view: ArrayView) -> np.ndarray:
    return np.asarray(_Window(view))
