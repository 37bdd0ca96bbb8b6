# SPDX-License-Identifier: Apache-2.0
"""Is this array like the one that was planned for? Asked in every call, so answered in a few hundred nanoseconds.

A matcher compares the library's own attributes with remembered ones and returns the array's address, or 0 where
anything differs. 0 does not mean that the array is wrong: it means that the long way has to look.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from nvmath_device.host.array_view import ArrayView
from nvmath_device.host.streams import current_stream

Matcher = Callable[[Any], int]


def matcher(like: ArrayView, alignment: int) -> Matcher | None:
    """A matcher for arrays of the library, type, extents, strides and device of ``like``, aligned to ``alignment``.

    ``None`` for libraries whose arrays are not read that quickly.
    """
    if like.package == "cupy" and not like.conjugated:
        return _cupy_matcher(like.owner, alignment - 1)
    if like.package == "torch" and like.device.kind == "cuda" and not like.is_complex:
        return _torch_matcher(like.owner, alignment - 1, like.itemsize)
    return None


def _cupy_matcher(like: Any, mask: int) -> Matcher | None:
    kind, dtype, shape, strides, device = type(like), like.dtype, like.shape, like.strides, like.data.device_id
    if kind is not sys.modules["cupy"].ndarray:
        return None

    def match(x: Any) -> int:
        if type(x) is kind and x.dtype is dtype and x.shape == shape and x.strides == strides:
            memory = x.data
            ptr: int = memory.ptr
            if not ptr & mask and memory.device_id == device:
                return ptr
        return 0

    def match_contiguous(x: Any) -> int:
        if type(x) is kind and x.dtype is dtype and x._c_contiguous and x.shape == shape:
            memory = x.data
            ptr: int = memory.ptr
            if not ptr & mask and memory.device_id == device:
                return ptr
        return 0

    return match_contiguous if getattr(like, "_c_contiguous", False) else match


def _torch_matcher(like: Any, mask: int, itemsize: int) -> Matcher | None:
    """Real tensors only. Those have no lazy conjugate; a lazy sign has the imaginary part of one, which starts at an
    odd multiple of the element's size.
    """
    torch = sys.modules["torch"]
    kind, dtype, shape, strides, device = type(like), like.dtype, like.shape, like.stride(), like.get_device()
    if kind not in (torch.Tensor, torch.nn.Parameter):
        return None

    def match(x: Any) -> int:
        if type(x) is kind and x.dtype is dtype and x.stride() == strides and x.shape == shape:
            ptr: int = x.data_ptr()
            if not ptr & mask and x.get_device() == device:
                return ptr
        return 0

    def match_with_sign(x: Any) -> int:
        return 0 if type(x) is not kind or x.is_neg() else match(x)

    return match if mask >= 2 * itemsize - 1 else match_with_sign


def stream_reader(like: ArrayView) -> Callable[[], int]:
    """A function that tells the handle of the library's current stream on the array's device."""
    index = like.device.index
    if like.package == "cupy":
        get = sys.modules["cupy"].cuda.get_current_stream
        return lambda: get(index).ptr
    if like.package == "torch":
        raw = getattr(sys.modules["torch"]._C, "_cuda_getCurrentRawStream", None)
        if raw is not None:
            return lambda: raw(index)
    return lambda: current_stream(like.package, like.device)
