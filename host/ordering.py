# SPDX-License-Identifier: Apache-2.0
"""The order between a product and what the libraries of its arrays do before and after it.

A product runs on one stream. If the user named it, ordering the operands' producers before it is the user's part;
if not, it is the current stream of A's library, and the current streams of the other libraries are ordered before it.
What an array itself states (a stream in its CUDA Array Interface, or Numba's) is always respected.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from nvmath_device.errors import DriverError, InvalidArgumentError
from nvmath_device.host import current_device
from nvmath_device.host.array_view import ArrayView
from nvmath_device.host.operands import Placement
from nvmath_device.host.streams import (
    current_stream,
    is_gone,
    keep_until_done,
    order_after,
    same_stream,
    wait_for_device,
)

_WITH_STREAMS = ("cupy", "torch", "numba")
_ORDERED_POOLS = ("cupy", "torch")  # give memory to others in the order of the library's current stream


class LastStream:
    """The stream that one object has last put work on: what it does next follows, and what the work reads is kept.

    Its device must be current where :meth:`follow` is called, and :meth:`keep` makes it so.

    Attributes:
        handle: of the stream; ``None`` before there was any work.
    """

    __slots__ = ("_index", "handle")

    def __init__(self, index: int) -> None:
        self._index = index
        self.handle: int | None = None

    def follow(self, handle: int) -> None:
        """What comes next goes on this stream, after what was put on the last one."""
        last = self.handle
        if (
            last is not None
            and (is_gone(last) or not same_stream(last, handle))
            and not (current_device.is_capturing(handle))
        ):
            try:
                order_after(handle, last)
            except InvalidArgumentError:  # the stream was destroyed
                wait_for_device()
        self.handle = handle

    def keep(self, *objects: Any) -> None:
        """Hold what the work reads or writes until it is done. A CUDA graph that is being captured keeps nothing."""
        last = self.handle
        if not objects or last is None:
            return
        with current_device.on_device(self._index):
            if is_gone(last):
                wait_for_device()
                return
            try:
                if not current_device.is_capturing(last):
                    keep_until_done(last, *objects)
            except (DriverError, InvalidArgumentError) as error:  # the stream was destroyed
                if getattr(error, "earlier", False):
                    raise
                wait_for_device()


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
