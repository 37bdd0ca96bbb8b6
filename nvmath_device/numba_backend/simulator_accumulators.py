# SPDX-License-Identifier: Apache-2.0
"""``Matmul.multiply``, ``Matmul.pipeline`` and accumulators in simulated kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from nvmath_device import reference
from nvmath_device.matmul import Matmul
from nvmath_device.numba_backend.simulator_arguments import Array, Call, Place
from nvmath_device.numba_backend.simulator_block import calling_thread
from nvmath_device.numba_backend.simulator_matmul import check_block
from nvmath_device.pipelines import COMBINATION, WANTS_COMBINATION, pipeline_plan
from nvmath_device.targets import SIMULATED_CC


def matmul_multiply(mm: Matmul, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Accumulator:
    """``Matmul.multiply``."""
    call = Call("Matmul.multiply", mm)
    given = call.bind(args, kwargs, ("a", "b", "i", "j"), optional=("depth", *COMBINATION))
    combination = [given[name] for name in COMBINATION if name in given]
    if combination and not {"combine", "x"} <= given.keys():
        raise call.execution_error(WANTS_COMBINATION)
    acc = Pipeline(call, mm, given["a"], given["b"], given.get("depth")).tile(call, given["i"], given["j"])
    return acc.combine(*combination[:2], *given.get("args", ())) if combination else acc


def matmul_pipeline(mm: Matmul, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Pipeline:
    """``Matmul.pipeline``."""
    call = Call("Matmul.pipeline", mm)
    calling_thread(call.name)
    given = call.bind(args, kwargs, ("a", "b"), optional=("depth",))
    return Pipeline(call, mm, given["a"], given["b"], given.get("depth"))


class Pipeline:
    """Two whole matrices, checked."""

    def __init__(self, call: Call, mm: Matmul, a: Any, b: Any, depth: Any) -> None:
        self._mm, self._places, self._destroyed = mm, {"a": Place(a), "b": Place(b)}, False
        self._started: tuple[Any, Any] | None = None
        pipeline_plan(mm.descriptor, mm._here.execution, depth=depth, sm=SIMULATED_CC)
        self._a, self._b = (
            call.values(name, call.array(name, given, ndim=(2,)), value)
            for (name, given), value in zip({"a": a, "b": b}.items(), mm.descriptor.value_types, strict=False)
        )
        if self._a.shape[1] != self._b.shape[0]:
            raise call.execution_error(f"wants a (M, K) and b (K, N), got {self._a.shape} and {self._b.shape}")

    def multiply(self, *args: Any, **kwargs: Any) -> Accumulator:
        call = Call("pipeline.multiply", self._mm)
        return self.tile(call, *self._begun(call, args, kwargs))

    def start(self, *args: Any, **kwargs: Any) -> None:
        call = Call("pipeline.start", self._mm)
        self._started = self._begun(call, args, kwargs)

    def finish(self) -> Accumulator:
        call = Call("pipeline.finish", self._mm)
        if self._started is None:
            raise call.execution_error("was called without start(i, j)")
        started, self._started = self._started, None
        return self.tile(call, *started)

    def _begun(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """The tile that a call begins, where it may."""
        given = call.bind(args, kwargs, ("i", "j"))
        if self._destroyed:
            raise call.execution_error("was called after destroy()")
        if self._started is not None:
            raise call.execution_error("was called between start() and finish(): shared memory holds that tile")
        return given["i"], given["j"]

    def destroy(self) -> None:
        self._destroyed = True

    def tile(self, call: Call, i: Any, j: Any) -> Accumulator:
        """All threads of the block come, the last one computes, then all go on with their shares of the tile."""
        thread = calling_thread(call.name)
        mine: dict[str, Array] = {}

        def finish(_: None, of_all: dict[Any, dict[str, Array]]) -> None:
            result = _tile_of(self._mm, self._a, self._b, int(i), int(j))
            for one in of_all.values():
                one["tile"] = result

        thread.block.together(
            thread,
            (call.name, self._mm),
            same={**self._places, "i": int(i), "j": int(j)},
            own=mine,
            prepare=lambda: check_block(call, self._mm, thread.block),
            finish=finish,
        )
        tile = mine["tile"]
        first = (int(i) * tile.shape[0], int(j) * tile.shape[1])
        shape = (self._a.shape[0], self._b.shape[1])
        return Accumulator(tile, first, shape, range(thread.linear, tile.size, thread.block.dim.size))


def _tile_of(mm: Matmul, a: Array, b: Array, i: int, j: int) -> Array:
    m, n, _ = mm.size
    result = np.zeros((m, n), mm.c_value_type)
    rows, columns = a[i * m : (i + 1) * m], b[:, j * n : (j + 1) * n]
    if rows.size and columns.size:
        result[: rows.shape[0], : columns.shape[1]] = reference.gemm(rows, columns, precision=mm.descriptor.precision)
    return result


class Accumulator:
    """A tile of C as one thread sees it: its share are every so many elements."""

    def __init__(self, tile: Array, first: tuple[int, int], shape: tuple[int, int], share: range) -> None:
        self._tile, self._first, self._shape, self._share = tile.reshape(-1), first, shape, share
        self._columns = tile.shape[1]

    @property
    def size(self) -> int:
        return len(self._share)

    def map(self, function: Callable[..., Any], *args: Any) -> Accumulator:
        tile = np.zeros_like(self._tile)  # of which this thread's share is used
        for e, row, column in self._inside(self._shape):
            tile[e] = function(self._tile[e], row, column, *args)
        return Accumulator(tile.reshape(-1, self._columns), self._first, self._shape, self._share)

    def combine(self, function: Callable[..., Any], x: Any, *args: Any) -> Accumulator:
        return self.map(lambda value, row, column: function(value, x[row, column], row, column, *args))

    def store(self, c: Any) -> None:
        for e, row, column in self._inside(c.shape):
            c[row, column] = self._tile[e]

    def _inside(self, shape: tuple[int, int]) -> Iterator[tuple[int, int, int]]:
        """(place in the tile, row and column in C) of this thread's elements that lie inside of ``shape``."""
        for e in self._share:
            row, column = (first + x for first, x in zip(self._first, divmod(e, self._columns), strict=True))
            if row < shape[0] and column < shape[1]:
                yield e, row, column
