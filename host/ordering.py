# SPDX-License-Identifier: Apache-2.0
"""The order between a product and what the libraries of its arrays do before and after it.

A product runs on one stream. If the user named it, ordering the operands' producers before it is the user's part;
if not, it is the current stream of A's library, and the current streams of the other libraries are ordered before it.
What an array itself states (a stream in its CUDA Array Interface, or Numba's) is always respected.
"""

from __future__ import annotations

from collections.abc import Iterable

from nvmath_device.host.array_view import ArrayView
from nvmath_device.host.operands import Placement
from nvmath_device.host.streams import current_stream, order_after, same_stream

_WITH_STREAMS = ("cupy", "torch", "numba")
_ORDERED_POOLS = ("cupy", "torch")  # give memory to others in the order of the library's current stream


def order_before(handle: int, placement: Placement, arrays: Iterable[ArrayView], *, by_user: bool) -> None:
    """What follows on the stream comes after what makes the arrays. The device must be current."""
    on_gpu = [v for v in arrays if v.device.kind == "cuda"]
    for producer in {v.producer_stream for v in on_gpu} - {None}:
        order_after(handle, producer)  # type: ignore[arg-type]
    if not by_user:
        for package in {v.package for v in on_gpu} - {placement.package}:
            if package in _WITH_STREAMS:
                order_after(handle, current_stream(package, placement.device))


def order_behind(handle: int, placement: Placement, out: ArrayView) -> None:
    """What the library of ``out`` does next comes after the product."""
    if out.package != placement.package and out.package in _WITH_STREAMS:
        order_after(current_stream(out.package, out.device), handle)


def held_by_nobody(handle: int, placement: Placement, arrays: Iterable[ArrayView]) -> list[ArrayView]:
    """Arrays whose memory could be handed to others while work on the stream reads it, once the last reference goes."""
    return [
        v
        for v in arrays
        if v.device.kind == "cuda"
        and not (v.package in _ORDERED_POOLS and same_stream(current_stream(v.package, placement.device), handle))
    ]
