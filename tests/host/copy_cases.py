# SPDX-License-Identifier: Apache-2.0
"""Random strided copies, what NumPy makes of them, and the copy kernel written down once more in NumPy."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

TILE = {1: 64, 2: 64, 4: 32, 8: 32, 16: 32}
COMPLEX = {4: None, 8: np.complex64, 16: np.complex128}  # NumPy has no complex number of two halves


@dataclass(frozen=True)
class Side:
    """One array inside of a buffer of bytes: ``first`` is the offset of the element with index 0."""

    strides: tuple[int, ...]
    first: int
    nbytes: int

    def view(self, buffer: np.ndarray, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        return np.ndarray(shape, dtype, buffer, self.first, [s * dtype.itemsize for s in self.strides])


@dataclass(frozen=True)
class Case:
    shape: tuple[int, ...]
    itemsize: int
    conjugate: int | None
    source: Side
    destination: Side
    fill_zero: int
    seed: int

    def arguments(self):
        """Of ``plan_copy``, without an alignment."""
        positional = self.shape, self.source.strides, self.destination.strides, self.itemsize
        return positional, {"conjugate": self.conjugate, "fill_zero": self.fill_zero}

    def buffers(self) -> tuple[np.ndarray, np.ndarray]:
        """Source and destination before the copy."""
        random = np.random.default_rng(self.seed)
        return random.integers(0, 256, self.source.nbytes, np.uint8), np.full(self.destination.nbytes, 0xAB, np.uint8)

    def copied(self) -> np.ndarray:
        """The destination's buffer after the copy, by NumPy."""
        source, destination = self.buffers()
        destination[: self.fill_zero] = 0
        dtype = np.dtype(f"V{self.itemsize}")
        values = self.source.view(source, self.shape, dtype)
        if self.conjugate is not None:
            values = np.ascontiguousarray(values).reshape(self.shape)
            if COMPLEX[self.itemsize]:
                values = np.conjugate(values.view(COMPLEX[self.itemsize])).view(dtype)
            else:
                parts = values.reshape(-1).view(np.float16).reshape(-1, 2)
                values = np.stack([parts[:, 0], -parts[:, 1]], axis=1).reshape(-1).view(dtype).reshape(self.shape)
        np.copyto(self.destination.view(destination, self.shape, dtype), values)
        return destination


@st.composite
def sides(draw, shape: tuple[int, ...], itemsize: int, *, broadcast: bool) -> Side:
    """Axes in any order, with steps, gaps between rows, negative strides and, for sources, zero ones."""
    strides, step = [0] * len(shape), draw(st.sampled_from([1, 1, 1, 2, 3]))
    for axis in draw(st.permutations(range(len(shape)))):
        strides[axis] = step * draw(st.sampled_from([1, 1, 1, -1]))
        step = step * max(shape[axis], 1) + draw(st.sampled_from([0, 0, 0, 1, 2, 5, 8, 16]))
        if broadcast and draw(st.integers(0, 7)) == 0:
            strides[axis] = 0
    reach = [(n - 1) * s * itemsize for n, s in zip(shape, strides, strict=True) if n]
    low, high = sum(min(0, r) for r in reach), sum(max(0, r) for r in reach)
    return Side(tuple(strides), -low, high - low + itemsize + draw(st.sampled_from([0, 0, 13])))


@st.composite
def cases(draw, extents: tuple[int, ...] = (1, 2, 3, 4, 5, 8, 9, 12), max_units: int = 2000) -> Case:
    shape: list[int] = []
    for _ in range(draw(st.integers(0, 5))):
        shape.append(draw(st.sampled_from((*extents, 0) if draw(st.integers(0, 9)) == 0 else extents)))
        if math.prod(shape) > max_units:
            shape.pop()
    itemsize = draw(st.sampled_from([1, 2, 4, 8, 16]))
    conjugate = draw(st.sampled_from([None, itemsize // 2])) if itemsize in COMPLEX else None
    source = draw(sides(tuple(shape), itemsize, broadcast=True))
    destination = draw(sides(tuple(shape), itemsize, broadcast=False))
    fill = draw(st.sampled_from([0, destination.nbytes])) if destination.first == 0 else 0
    return Case(tuple(shape), itemsize, conjugate, source, destination, fill, draw(st.integers(0, 2**32 - 1)))


def aligned(nbytes: int, offset: int) -> np.ndarray:
    """Uninitialised bytes whose address is ``offset`` more than a multiple of 32."""
    raw = np.empty(nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 32 + offset
    return raw[start : start + nbytes]


# -- the kernel ---------------------------------------------------------------------------------------------


def kernel_addresses(function: str, blocks: int, p) -> tuple[np.ndarray, np.ndarray]:
    """From where and to where each thread that has work moves a unit, by the parameters the kernel gets.

    Follows the CUDA source; divides as the kernel does.
    """
    way, unit = function.split("_")[0], int(function.split("_")[1])

    def digit(axis, n):
        rest = (n * np.uint64(p.multiplier[axis]) >> np.uint64(p.shift[axis])) & np.uint64(0xFFFFFFFF)
        return n - rest * np.uint64(p.extent[axis]), rest

    def offsets(axes, n):
        there, back = np.zeros(n.shape, np.int64), np.zeros(n.shape, np.int64)
        for axis in axes:
            index, n = digit(axis, n)
            there += index.astype(np.int64) * p.source_stride[axis]
            back += index.astype(np.int64) * p.destination_stride[axis]
        return there, back

    if way == "units":
        items = {1: 8, 2: 8, 4: 4, 8: 4, 16: 2}[unit]
        n = np.arange(blocks * 256 * items, dtype=np.uint64)
        n = n[n < p.count]
        source, destination = offsets(reversed(range(p.axes)), n)
    else:
        assert blocks == p.count
        tile = np.uint64(TILE[unit])
        n = np.arange(blocks, dtype=np.uint64)
        column, n = digit(p.axes - 1, n)
        row, n = digit(p.axes - 2, n)
        source, destination = offsets(reversed(range(p.axes - 2)), n)
        step = np.arange(tile, dtype=np.uint64)
        rows, columns = row[:, None, None] * tile + step[:, None], column[:, None, None] * tile + step
        rows, columns = np.broadcast_arrays(rows, columns)
        inside = (rows < p.rows) & (columns < p.columns)
        rows, columns = rows.astype(np.int64), columns.astype(np.int64)
        source = source[:, None, None] + rows * p.source_stride[p.axes - 2] + columns * p.source_stride[p.axes - 1]
        destination = (
            destination[:, None, None]
            + rows * p.destination_stride[p.axes - 2]
            + columns * p.destination_stride[p.axes - 1]
        )
        source, destination = source[inside], destination[inside]
    base = (np.array([p.source], np.uint64).view(np.int64), np.array([p.destination], np.uint64).view(np.int64))
    return base[0] + source, base[1] + destination
