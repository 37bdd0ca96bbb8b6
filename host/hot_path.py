# SPDX-License-Identifier: Apache-2.0
"""The short way through ``Matmul.execute`` and ``reset_operands``: for operands like those of the last call.

:func:`arm` makes functions for one planned product in which all that could be looked up is looked up. They do what
the long way does, or nothing at all: then they say so, and the long way is taken. Nothing is assumed of a new array
that its matcher has not compared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nvmath_device.host import current_device
from nvmath_device.host.array_matchers import matcher, stream_reader
from nvmath_device.host.array_results import plan_array
from nvmath_device.host.array_view import ArrayView
from nvmath_device.host.lt_execution import BIAS
from nvmath_device.host.lt_plan import KNOWN_ALIGNMENT
from nvmath_device.host.planned import PlannedCalls
from nvmath_device.host.streams import stream_handle


class ShortWay:
    """Two functions: ``execute(out, stream)`` gives the result or ``None``, ``reset(a, b)`` whether it was done."""

    __slots__ = ("execute", "reset")

    def __init__(self, execute: Callable[[Any, Any], Any], reset: Callable[[Any, Any], bool]) -> None:
        self.execute, self.reset = execute, reset


def arm(mm: Any, run: PlannedCalls, out: ArrayView | None) -> ShortWay | None:
    """The short way for a ``Matmul`` and one of its plans; ``None`` where calls need more than addresses.

    ``out`` is an array of the user that the plan is for; with ``None`` new results only are made the short way.
    """
    plan, placement = run.product.plan, run.product.placement
    views = mm._views
    if plan is None or not plan.is_direct or placement.has_cpu_operands or mm._options.blocking is True:
        return None
    if mm._options.inplace or placement.package not in ("cupy", "torch"):
        return None
    arrays = [*views.values(), *([] if out is None else [out])]
    if any(v.package != placement.package or v.producer_stream is not None for v in arrays):
        return None
    match_a, match_b = (matcher(views[name], min(views[name].alignment, KNOWN_ALIGNMENT)) for name in ("a", "b"))
    if match_a is None or match_b is None:
        return None
    if "bias" in views:
        plan.set_address(BIAS, views["bias"].ptr)
    prepared = run.call(None)
    assert prepared is not None
    call = prepared.as_function()
    match_out = None if out is None else matcher(out, min(out.alignment, KNOWN_ALIGNMENT))
    is_for_new = run.like is None  # a plan for an array of the user may be for another type than a new result's
    make = plan_array(run.product.make_result)
    read_stream = stream_reader(views["a"])
    scalars, memory, swapped = mm._factors.of(run.product.problem), run.memory, plan.lt.swapped
    alpha, beta = scalars.alpha, scalars.beta
    device, package = placement.device, placement.package
    many, index, current_index = current_device.device_count() > 1, device.index, current_device.current_index
    c = views["c"].ptr if "c" in views else 0
    d_size = 0 if out is None else out.extent_bytes[1] - out.ptr
    others = [v.extent_bytes for name, v in views.items() if name not in ("a", "b")]
    (a_low, a_high), (b_low, b_high) = (
        tuple(edge - v.ptr for edge in v.extent_bytes) for v in (views["a"], views["b"])
    )
    lock, last, has_workspace = mm._lock, mm._last, run.product.algorithms[0].workspace_bytes > 0
    places = [(views["a"].ptr, views["b"].ptr)]  # one object, so that no thread sees half of a reset
    mine: ShortWay

    def execute(out: Any, stream: Any) -> Any:
        handle = read_stream() if stream is None else stream_handle(stream, package, device)
        if handle != last.handle or mm._fast is not mine or (many and current_index() != index):
            return None
        a, b = places[0]
        if out is None:
            if stream is not None or not is_for_new:
                return None
            out, d = make(handle)
        else:
            d = match_out(out) if match_out is not None else 0
            if not d:
                return None
            end = d + d_size
            if d < a + a_high and a + a_low < end or d < b + b_high and b + b_low < end:  # noqa: RUF021
                return None
            for low, high in others:
                if d < high and low < end:
                    return None
        if swapped:
            a, b = b, a
        if has_workspace:
            with lock:  # which an execution that another thread has put on another stream uses, too
                if handle != last.handle or mm._fast is not mine:
                    return None
                call(alpha, a, b, beta, c or d, d, handle)
        else:
            call(alpha, a, b, beta, c or d, d, handle)
        return out

    def reset(a: Any, b: Any) -> bool:
        # Memory of the operands that go is handed out again in the order of the library's current stream.
        if last.handle is not None and read_stream() != last.handle:
            return False
        to_a, to_b = places[0]
        if a is not None and not (to_a := match_a(a)):
            return False
        if b is not None and not (to_b := match_b(b)):
            return False
        if a is b is None:
            return False
        with lock:
            if mm._fast is not mine:
                return False
            if a is not None:
                mm._fresh["a"] = a
            if b is not None:
                mm._fresh["b"] = b
            places[0] = to_a, to_b
        return True

    execute.memory = memory  # type: ignore[attr-defined]  # a call under way in one thread survives a free() in another
    mine = ShortWay(execute, reset)
    return mine
