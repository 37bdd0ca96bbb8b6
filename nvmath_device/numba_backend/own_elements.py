# SPDX-License-Identifier: Apache-2.0
"""Where a thread's elements of C are in the tile: asked of libmathdx's code, or worked out for products of our own."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from nvmath_device.numba_backend.block_threads import linear_thread, thread_here
from nvmath_device.numba_backend.pipeline_calls import INT, LONG, Functions
from nvmath_device.own_products import OwnProduct, Spread
from nvmath_device.own_streams import LANES, WARP, WARP_ROWS
from nvmath_device.pipelines import PipelinePlan


def elements_of(context: Any, builder: Any, plan: PipelinePlan) -> Any:
    """What has ``coordinate(state, index)``: (row, column) in the tile, as int64, of an element of this thread."""
    if plan.stream is not None:
        return StreamElements(builder)
    return Functions(context, builder, plan) if plan.own is None else OwnElements(builder, plan.own)


def wgmma_place(builder: Any) -> tuple[Any, Any]:
    """Row and column in the tile, as int32, of this thread's first element where wgmma has shared them out."""
    thread = thread_here(builder)
    warp, lane = builder.udiv(thread, ir.Constant(INT, WARP)), builder.urem(thread, ir.Constant(INT, WARP))
    first = builder.mul(warp, ir.Constant(INT, WARP_ROWS))
    row = builder.add(first, builder.udiv(lane, ir.Constant(INT, LANES)))
    return row, builder.mul(builder.urem(lane, ir.Constant(INT, LANES)), ir.Constant(INT, 2))


class StreamElements:
    """The elements of a loop of our own, of tiles that TMA fetches: as wgmma shares them out."""

    def __init__(self, builder: Any) -> None:
        self._builder = builder
        self._row, self._column = wgmma_place(builder)

    def coordinate(self, state: Any, index: Any) -> tuple[Any, Any]:
        """As of libmathdx's functions. ``index`` is an int32, a constant or not."""
        builder = self._builder
        group, rest = builder.udiv(index, ir.Constant(INT, 4)), builder.urem(index, ir.Constant(INT, 4))
        down = builder.mul(builder.udiv(rest, ir.Constant(INT, 2)), ir.Constant(INT, WARP // LANES))
        across = builder.add(builder.mul(group, ir.Constant(INT, 8)), builder.urem(rest, ir.Constant(INT, 2)))
        places = zip((self._row, self._column), (down, across), strict=True)
        row, column = (builder.zext(builder.add(x, y, flags=("nsw", "nuw")), LONG) for x, y in places)
        return row, column


class OwnElements:
    """The elements of a product of our own."""

    def __init__(self, builder: Any, own: OwnProduct) -> None:
        self._builder, self._own = builder, own
        self._firsts = [first_place(builder, own, axis) for axis in (0, 1)]

    def coordinate(self, state: Any, index: Any) -> tuple[Any, Any]:
        """As of libmathdx's functions. ``index`` is an int32, a constant or not."""
        builder, columns = self._builder, ir.Constant(INT, self._own.columns.count)
        row = self._place(0, self._own.rows, builder.udiv(index, columns))
        return row, self._place(1, self._own.columns, builder.urem(index, columns))

    def _place(self, axis: int, spread: Spread, index: Any) -> Any:
        builder, group = self._builder, ir.Constant(INT, spread.group)
        whole = builder.mul(builder.udiv(index, group), ir.Constant(INT, spread.group * spread.lanes))
        offset = builder.add(whole, builder.urem(index, group))
        return builder.zext(builder.add(self._firsts[axis], offset, flags=("nsw", "nuw")), LONG)


def first_place(builder: Any, own: OwnProduct, axis: int) -> Any:
    """The first row (``axis`` 0) or column of this thread, an int32."""
    spread = (own.rows, own.columns)[axis]
    warp, lane = warp_place(builder, own, axis), lane_of(builder)
    lanes = ir.Constant(INT, own.rows.lanes)
    lane = builder.urem(lane, lanes) if axis == 0 else builder.udiv(lane, lanes)
    return builder.add(warp, builder.mul(lane, ir.Constant(INT, spread.group)))


def warp_place(builder: Any, own: OwnProduct, axis: int) -> Any:
    """The first row or column of this thread's warp, an int32."""
    warp, down = builder.udiv(linear_thread(builder), ir.Constant(INT, WARP)), ir.Constant(INT, own.rows.warps)
    warp = builder.urem(warp, down) if axis == 0 else builder.udiv(warp, down)
    return builder.mul(warp, ir.Constant(INT, (own.rows, own.columns)[axis].warp_extent))


def place_of(spread: Spread, index: int) -> int:
    """From a thread's first place along an axis to that of ``index``."""
    return index // spread.group * spread.group * spread.lanes + index % spread.group


def lane_of(builder: Any) -> Any:
    return builder.urem(linear_thread(builder), ir.Constant(INT, WARP))
