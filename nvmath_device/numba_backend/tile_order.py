# SPDX-License-Identifier: Apache-2.0
"""``nvmath_device.grouped_tile`` in kernels: typing and lowering."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import types

from nvmath_device.numba_backend.emit import least
from nvmath_device.numba_backend.functions import register_function
from nvmath_device.numba_backend.objects import Call
from nvmath_device.tile_order import FORM


def _resolve(call: Call) -> Any:
    given = call.bind(FORM)
    for name, value in given.items():
        if not isinstance(value, types.Integer):
            raise call.error(f"wants an integer for {name}, got {value}")
    return call.signature(types.UniTuple(types.int32, 2), dict.fromkeys(FORM, types.int32))


def _lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    """As on the host. Of numbers that are not negative: divisions without signs take fewer instructions."""
    block, rows, columns, group = args
    group = least(builder, group, rows)
    tiles = builder.mul(group, columns)
    nth = builder.udiv(block, tiles)
    first, within = builder.mul(nth, group), builder.sub(block, builder.mul(nth, tiles))
    height = least(builder, builder.sub(rows, first), group)
    column = builder.udiv(within, height)
    row = builder.add(first, builder.sub(within, builder.mul(column, height)))
    # That both are less than 2^31 spares the code of widening them with a sign.
    known = ir.Constant(ir.IntType(32), 0x7FFFFFFF)
    return context.make_tuple(builder, sig.return_type, [builder.and_(x, known) for x in (row, column)])


register_function("grouped_tile", _resolve, _lower)
