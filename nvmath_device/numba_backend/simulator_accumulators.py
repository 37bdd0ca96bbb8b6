# SPDX-License-Identifier: Apache-2.0
"""``Matmul.multiply`` and its accumulator in simulated kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from nvmath_device import reference
from nvmath_device.matmul import Matmul
from nvmath_device.numba_backend.simulator_arguments import Array, Call, Place
from nvmath_device.numba_backend.simulator_block import calling_thread
from nvmath_device.numba_backend.simulator_matmul import check_block
from nvmath_device.pipelines import pipeline_plan
from nvmath_device.targets import SIMULATED_CC


def matmul_multiply(mm: Matmul, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Accumulator:
    """All threads of the block come, the last one computes the tile, then all go on with their shares of it."""
    call = Call("Matmul.multiply", mm)
    thread = calling_thread(call.name)
    given = call.bind(args, kwargs, ("a", "b", "i", "j"), optional=("depth",))
    shared: dict[str, Array] = {}

    def prepare() -> tuple[Array, Array]:
        check_block(call, mm, thread.block)
        pipeline_plan(mm.descriptor, mm._here.execution, depth=given.get("depth"), sm=SIMULATED_CC)
        a, b = (
            call.values(name, call.array(name, given[name], ndim=(2,)), value)
            for name, value in zip("ab", mm.descriptor.value_types, strict=False)
        )
        if a.shape[1] != b.shape[0]:
            raise call.execution_error(f"wants a (M, K) and b (K, N), got {a.shape} and {b.shape}")
        return a, b

    def finish(operands: tuple[Array, Array], own: dict[Any, dict[str, Array]]) -> None:
        result = _tile_of(mm, *operands, int(given["i"]), int(given["j"]))
        for place in own.values():
            place["tile"] = result

    same = {name: Place(value) if name in "ab" else value for name, value in given.items()}
    thread.block.together(thread, (call.name, mm), same=same, own=shared, prepare=prepare, finish=finish)
    tile = shared["tile"]
    first = (int(given["i"]) * tile.shape[0], int(given["j"]) * tile.shape[1])
    shape = (given["a"].shape[0], given["b"].shape[1])
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

    def store(self, c: Any) -> None:
        for e, row, column in self._inside(c.shape):
            c[row, column] = self._tile[e]

    def _inside(self, shape: tuple[int, int]) -> Iterator[tuple[int, int, int]]:
        """(place in the tile, row and column in C) of this thread's elements that lie inside of ``shape``."""
        for e in self._share:
            row, column = (first + x for first, x in zip(self._first, divmod(e, self._columns), strict=True))
            if row < shape[0] and column < shape[1]:
                yield e, row, column
