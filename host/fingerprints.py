# SPDX-License-Identifier: Apache-2.0
"""What tells arrays of CuPy and PyTorch apart for a plan, read in a few hundred nanoseconds.

A fingerprint is hashable and has everything that a plan depends on but the address: element type, extents, strides
and device. Two arrays of one library with equal fingerprints are of the same kind; the reverse need not hold.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable
from typing import Any, Protocol

from nvmath_device.host.array_view import ArrayView


class Fingerprint(Protocol):
    """How arrays of one library are told apart. Compare fingerprints of the same reader only."""

    def __call__(self, x: Any) -> Hashable: ...

    @staticmethod
    def address(x: Any) -> int: ...


class _OfCupy:
    def __call__(self, x: Any) -> Hashable:
        return x.dtype, x.shape, x.strides, x.data.device_id

    @staticmethod
    def address(x: Any) -> int:
        ptr: int = x.data.ptr
        return ptr


class _OfCupyWithFlag(_OfCupy):
    """CuPy knows whether an array has no gaps, and tells it ten times as fast as the strides."""

    def __call__(self, x: Any) -> Hashable:
        return x.dtype, x.shape, x._c_contiguous or x.strides, x.data.device_id


class _OfTorch:
    """Real tensors only: nothing is read of lazy conjugates and signs."""

    def __call__(self, x: Any) -> Hashable:
        return x.dtype, x.shape, x.stride(), x.get_device()

    @staticmethod
    def address(x: Any) -> int:
        ptr: int = x.data_ptr()
        return ptr


FINGERPRINTS: dict[type, Fingerprint] = {}  # by type of array; filled by :func:`fingerprint`, as libraries are met
_CUPY, _CUPY_WITH_FLAG, _TORCH = _OfCupy(), _OfCupyWithFlag(), _OfTorch()


def fingerprint(view: ArrayView) -> Fingerprint | None:
    """What reads the fingerprint of arrays like this one; ``None`` if nothing does."""
    kind = type(view.owner)
    found = FINGERPRINTS.get(kind)
    if found is None:
        if view.package == "cupy" and kind is sys.modules["cupy"].ndarray:
            found = FINGERPRINTS[kind] = _CUPY_WITH_FLAG if hasattr(view.owner, "_c_contiguous") else _CUPY
        elif view.package == "torch" and kind is sys.modules["torch"].Tensor:
            found = FINGERPRINTS[kind] = _TORCH
    return None if found is _TORCH and (view.is_complex or view.device.kind == "cpu") else found
