# SPDX-License-Identifier: Apache-2.0
"""Numbers of one type as another, bfloat16 included, which Numba converts with code that needs a driver to compile."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import types

_HALF, _WORD, _FLOAT = ir.IntType(16), ir.IntType(32), ir.FloatType()


def converted(context: Any, builder: Any, value: Any, source: Any, target: Any) -> Any:
    """A value of Numba's type ``source`` as one of ``target``, rounded to nearest, to even where two are as near."""
    if source == target:
        return value
    if source == types.bfloat16:
        value, source = _widened(builder, value), types.float32
    if target == types.bfloat16:
        return _rounded(builder, context.cast(builder, value, source, types.float32))
    return context.cast(builder, value, source, target)


def _widened(builder: Any, bits: Any) -> Any:
    """A bfloat16 is the upper half of a float32."""
    return builder.bitcast(builder.shl(builder.zext(bits, _WORD), ir.Constant(_WORD, 16)), _FLOAT)


def _rounded(builder: Any, number: Any) -> Any:
    bits = builder.bitcast(number, _WORD)
    last = builder.and_(builder.lshr(bits, ir.Constant(_WORD, 16)), ir.Constant(_WORD, 1))
    nearest = builder.add(bits, builder.add(last, ir.Constant(_WORD, 0x7FFF)))
    is_nan = builder.fcmp_unordered("uno", number, number)
    chosen = builder.select(is_nan, ir.Constant(_WORD, 0x7FC00000), nearest)
    return builder.trunc(builder.lshr(chosen, ir.Constant(_WORD, 16)), _HALF)
