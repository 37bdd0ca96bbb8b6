# SPDX-License-Identifier: Apache-2.0
"""The instructions of a product of our own: parts of two tiles from shared memory to registers, and their products."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llvmlite import ir

from nvmath_device.descriptors import COL_MAJOR, ROW_MAJOR
from nvmath_device.numba_backend.own_elements import first_place, lane_of, place_of, warp_place
from nvmath_device.numba_backend.pipeline_calls import INT
from nvmath_device.own_products import FMA, MMA_K, MMA_LINES, VECTOR_BYTES, OwnProduct

_SHARED = 3  # address space
_ALONG_K = 4  # lanes of a warp, in the operands of its instruction
_INSTRUCTION = "mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64"


class Reader:
    """What a thread reads of the tiles of A or B: for each step along K some vectors of 16 bytes.

    A step is one place along K for single numbers, and eight for the tensor cores.

    Attributes:
        vector: their type.
        parts: where those of the first step are, in bytes behind where this thread begins in a tile.
        step_bytes: from there to those of the next step.
        start: where this thread begins, in bytes, an int32.
        after: for each, how many portions of a step are to be multiplied before it is read for the next step.
    """

    parts: list[int]
    step_bytes: int
    start: Any
    after: list[int]

    def __init__(self, builder: Any, element: Any, itemsize: int) -> None:
        self._builder = builder
        self.vector = ir.VectorType(element, VECTOR_BYTES // itemsize)

    def read(self, tile: Any, step: int, part: int) -> Any:
        """A vector. ``tile``: where this thread begins in it, a pointer into shared memory."""
        builder = self._builder
        place = builder.gep(tile, [ir.Constant(INT, step * self.step_bytes + self.parts[part])], inbounds=True)
        return builder.load(builder.bitcast(place, ir.PointerType(self.vector, _SHARED)), align=VECTOR_BYTES)


class SinglesReader(Reader):
    """Of single numbers: neighbours along C's axis."""

    def __init__(self, builder: Any, own: OwnProduct, which: int, element: Any, itemsize: int) -> None:
        super().__init__(builder, element, itemsize)
        layout, spread = (own.a, own.b)[which], (own.rows, own.columns)[which]
        self._lanes = VECTOR_BYTES // itemsize
        self.step_bytes = layout.ld * itemsize
        self.parts = [place_of(spread, x) * itemsize for x in range(0, spread.count, self._lanes)]
        self.after = [0] * len(self.parts)
        self.start = builder.mul(first_place(builder, own, which), ir.Constant(INT, itemsize))

    def number(self, vectors: list[Any], place: int) -> Any:
        """The number of a row of A, or a column of B."""
        return self._builder.extract_element(vectors[place // self._lanes], ir.Constant(INT, place % self._lanes))


class OperandReader(Reader):
    """Of the tensor cores' operands, in pieces of 16 lines times 8 along K.

    Of each a lane has lines ``2 g`` and ``2 g + 1``, and along K ``2 t`` and ``2 t + 1``, if ``g`` and ``t`` are the
    lane's number divided by four, and what is left. That is not the instruction's order, but the sums are the same, and
    so one read has two neighbours.
    """

    def __init__(self, builder: Any, own: OwnProduct, which: int, element: Any, itemsize: int) -> None:
        super().__init__(builder, element, itemsize)
        layout, spread = (own.a, own.b)[which], (own.rows, own.columns)[which]
        self._is_along_k = layout.order == (ROW_MAJOR, COL_MAJOR)[which]
        pitch = layout.ld * itemsize
        line, place = (pitch, itemsize) if self._is_along_k else (itemsize, pitch)  # bytes to the next
        self.step_bytes = MMA_K * place
        pieces = range(0, spread.warp_extent, MMA_LINES)
        self.parts = [piece * line + second * pitch for piece in pieces for second in (0, 1)]
        self.after = [0 if which else part // 2 + 1 for part in range(len(self.parts))]
        lane, lanes = lane_of(builder), ir.Constant(INT, _ALONG_K)
        across = builder.mul(builder.udiv(lane, lanes), ir.Constant(INT, 2 * line))
        along = builder.mul(builder.urem(lane, lanes), ir.Constant(INT, 2 * place))
        warp = builder.mul(warp_place(builder, own, which), ir.Constant(INT, line))
        self.start = builder.add(warp, builder.add(across, along))

    def number(self, vectors: list[Any], piece: int, line: int, place: int) -> Any:
        """Of a piece: ``line`` and ``place`` are 0 for the first, 1 for the second of the lane's two."""
        vector, lane = (line, place) if self._is_along_k else (place, line)
        return self._builder.extract_element(vectors[2 * piece + vector], ir.Constant(INT, lane))


class Singles:
    """A thread's rows times its columns, number by number."""

    step_k = 1

    def __init__(self, builder: Any, own: OwnProduct, element: Any, itemsize: int) -> None:
        self._builder, self._counts = builder, (own.rows.count, own.columns.count)
        self.readers = [SinglesReader(builder, own, which, element, itemsize) for which in (0, 1)]

    def multiply(self, sums: list[Any], vectors: list[list[Any]]) -> Iterator[int]:
        """Add the products of a step to all sums; row by row, of which it gives how many are done."""
        builder, (rows, columns) = self._builder, self._counts
        a, b = (
            [reader.number(held, place) for place in range(count)]
            for reader, held, count in zip(self.readers, vectors, self._counts, strict=True)
        )
        for i in range(rows):
            for j in _there_and_back(columns, i):
                sums[i * columns + j] = builder.fma(a[i], b[j], sums[i * columns + j])
            yield i + 1


class Operands:
    """A warp's rows times its columns by tensor cores: 16 columns times 8 rows at once, as they have them.

    So the neighbours that a thread has are columns of C.
    """

    step_k = MMA_K

    def __init__(self, builder: Any, own: OwnProduct, element: Any, itemsize: int) -> None:
        self._builder, self._own = builder, own
        self.readers = [OperandReader(builder, own, which, element, itemsize) for which in (0, 1)]
        four = ir.LiteralStructType([element] * 4)
        fragments = (range(4), range(4, 8), range(8, 10), range(10, 14))  # D, A, B and C of the instruction
        registers = ", ".join(f"{{{', '.join(f'${n}' for n in part)}}}" for part in fragments)
        prototype, constraints = ir.FunctionType(four, [element] * 10), ",".join(["=d"] * 4 + ["d"] * 10)
        self._instruction = ir.InlineAsm(prototype, f"{_INSTRUCTION} {registers};", constraints)

    def multiply(self, sums: list[Any], vectors: list[list[Any]]) -> Iterator[int]:
        """Add the products of a step to all sums; 16 rows at a time, of which it gives how often that is done."""
        rows, columns = (spread.warp_extent // MMA_LINES for spread in (self._own.rows, self._own.columns))
        for row in range(rows):
            for second in (0, 1):
                for column in _there_and_back(columns, second):
                    self._multiply(sums, vectors, row, second, column)
            yield row + 1

    def _multiply(self, sums: list[Any], vectors: list[list[Any]], row: int, second: int, column: int) -> None:
        """A piece's first or second lines of each lane, of A, times a piece of B."""
        (a, b), own = self.readers, self._own
        operands = [b.number(vectors[1], column, line, place) for place in (0, 1) for line in (0, 1)]
        operands += [a.number(vectors[0], row, second, place) for place in (0, 1)]
        elements = [
            (own.rows.group * row + 2 * bit + second) * own.columns.count + own.columns.group * column + line
            for line in (0, 1)
            for bit in (0, 1)
        ]
        found = self._builder.call(self._instruction, [*operands, *(sums[e] for e in elements)])
        for n, e in enumerate(elements):
            sums[e] = self._builder.extract_value(found, n)


def product_of(builder: Any, own: OwnProduct, element: Any, itemsize: int) -> Any:
    """What emits the product: ``step_k``, ``readers`` of A and B, and ``multiply``."""
    return (Singles if own.unit == FMA else Operands)(builder, own, element, itemsize)


def _there_and_back(count: int, turn: int) -> Any:
    """Every other turn backwards, so that what is used last is used again."""
    return range(count) if turn % 2 == 0 else reversed(range(count))
