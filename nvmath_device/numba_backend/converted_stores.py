# SPDX-License-Identifier: Apache-2.0
"""A tile of float32 that lies inside of a matrix of float32, float16 or bfloat16, written without a test for each
element.

The hardware's shares of an accumulator come in pairs, an even column and the next. One instruction converts a pair to
16 bits; one writes it where the two are neighbours in memory and the address allows it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.cuda import types

from nvmath_device.numba_backend import emit
from nvmath_device.numba_backend.pipeline_calls import INT, LONG
from nvmath_device.targets import ComputeCapability

Pair = tuple[Any, Any]

# Of sm_80 and later, to nearest and to even where two are as near. The upper half comes first.
_PACKED = {types.float16: "cvt.rn.f16x2.f32", types.bfloat16: "cvt.rn.bf16x2.f32"}
_PACKED_SINCE = (8, 0)
_HALF = ir.IntType(16)


def comes_in_pairs(source: Any, target: Any, count: int, sm: ComputeCapability) -> bool:
    """Whether :func:`store_pairs` writes ``count`` elements of a thread, of Numba's types, on a device of ``sm``."""
    if source != types.float32 or count % 2:
        return False
    return target == types.float32 or (target in _PACKED and sm[:2] >= _PACKED_SINCE)


def store_pairs(
    builder: Any, target: Any, count: int, element: Callable[[int], Any], place: Callable[[int], Pair],
    start: Any, strides: Pair,
) -> None:  # fmt: skip
    """Write all elements of this thread.

    ``element`` loads one, ``place`` gives its row and column in the tile. They are called where they are needed, once
    more for each way to write, so that the fragment stays in registers. ``start`` is the address of the tile's first
    element in C, ``strides`` are C's, in bytes.
    """

    def write(value: Any, e: int) -> None:
        offset = builder.add(*(builder.mul(x, stride) for x, stride in zip(place(e), strides, strict=True)))
        pointer = builder.bitcast(builder.gep(start, [offset]), value.type.as_pointer())
        builder.store(value, pointer, align=_nbytes(value.type))

    with builder.if_else(_are_words(builder, target, count, place, start, strides)) as (then, otherwise):
        for branch, is_word in ((then, True), (otherwise, False)):
            with branch:
                for e in range(0, count, 2):
                    pair = _pair(builder, target, element(e), element(e + 1))
                    if is_word:
                        write(builder.bitcast(pair, INT) if target in _PACKED else pair, e)
                    else:
                        for n in range(2):
                            write(builder.extract_element(pair, ir.Constant(INT, n)), e + n)


def _pair(builder: Any, target: Any, first: Any, second: Any) -> Any:
    """Two numbers of float32 as a vector of two of ``target``, those of 16 bits as integers."""
    if target in _PACKED:
        return builder.bitcast(packed(builder, target, first, second), ir.VectorType(_HALF, 2))
    return emit.vector_of(builder, (first, second))


def packed(builder: Any, target: Any, first: Any, second: Any) -> Any:
    """Two numbers of float32 as a word of two of ``target``."""
    kind = ir.FunctionType(INT, [ir.FloatType()] * 2)
    pack = ir.InlineAsm(kind, f"{_PACKED[target]} $0, $1, $2;", "=r,f,f")
    return builder.call(pack, [second, first])


def _nbytes(kind: Any) -> int:
    if isinstance(kind, ir.VectorType):
        return int(kind.count * _nbytes(kind.element))
    return 4 if isinstance(kind, ir.FloatType) else int(kind.width // 8)


def _are_words(builder: Any, target: Any, count: int, place: Callable[[int], Pair], start: Any, strides: Pair) -> Any:
    """Whether all pairs are words of memory.

    What is asked of the places in the tile is known when libmathdx's code is linked. The questions for the address and
    the strides are left.
    """
    one, zero = ir.Constant(LONG, 1), ir.Constant(LONG, 0)
    pitch, step = strides
    itemsize = target.bitwidth // 8
    odd = builder.and_(builder.or_(builder.ptrtoint(start, LONG), pitch), ir.Constant(LONG, 2 * itemsize - 1))
    equal = [(step, ir.Constant(LONG, itemsize)), (odd, zero)]
    for e in range(0, count, 2):
        (row, column), (next_row, next_column) = place(e), place(e + 1)
        equal += [(next_row, row), (next_column, builder.add(column, one)), (builder.and_(column, one), zero)]
    result = ir.Constant(ir.IntType(1), 1)
    for x, y in equal:
        result = builder.and_(result, builder.icmp_signed("==", x, y))
    return result
