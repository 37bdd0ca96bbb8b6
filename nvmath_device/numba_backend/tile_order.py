# SPDX-License-Identifier: Apache-2.0
"""``nvmath_device.grouped_tile`` in kernels: typing and lowering."""

from __future__ import annotations

import inspect
from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.cudaimpl import registry as lowering_registry
from numba.cuda.datamodel import models
from numba.cuda.models import register_model
from numba.cuda.typing.templates import signature

from nvmath_device.errors import KernelTypingError
from nvmath_device.tile_order import FORM

_ORDER = "nvmath_device.grouped_tile"
_SIGNATURE = inspect.Signature([inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in FORM])


class GroupedTileType(types.Callable, types.Opaque):
    """The Numba type of the function."""

    def __init__(self) -> None:
        super().__init__(_ORDER)

    def get_call_type(self, context: Any, args: Any, kws: Any) -> Any:
        try:
            given = _SIGNATURE.bind(*args, **kws).arguments
        except TypeError as error:
            raise KernelTypingError(f"grouped_tile takes ({', '.join(FORM)}): {error}") from None
        for name, value in given.items():
            if not isinstance(value, types.Integer):
                raise KernelTypingError(f"grouped_tile wants an integer for {name}, got {value}")
        result = types.UniTuple(types.int32, 2)
        return signature(result, *[types.int32] * len(FORM)).replace(pysig=_SIGNATURE)

    def get_call_signatures(self) -> Any:
        return [], True

    def get_impl_key(self, sig: Any) -> Any:
        return _ORDER


register_model(GroupedTileType)(models.OpaqueModel)
lowering_registry.lower_constant(GroupedTileType)(lambda context, builder, ty, value: context.get_dummy_value())


@lowering_registry.lower(_ORDER, types.VarArg(types.Any))
def _lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    """As on the host. Of numbers that are not negative: divisions without signs take fewer instructions."""
    block, rows, columns, group = args
    group = _least(builder, group, rows)
    tiles = builder.mul(group, columns)
    nth = builder.udiv(block, tiles)
    first, within = builder.mul(nth, group), builder.sub(block, builder.mul(nth, tiles))
    height = _least(builder, builder.sub(rows, first), group)
    column = builder.udiv(within, height)
    row = builder.add(first, builder.sub(within, builder.mul(column, height)))
    # That both are less than 2^31 spares the code of widening them with a sign.
    known = ir.Constant(ir.IntType(32), 0x7FFFFFFF)
    return context.make_tuple(builder, sig.return_type, [builder.and_(x, known) for x in (row, column)])


def _least(builder: Any, x: Any, y: Any) -> Any:
    return builder.select(builder.icmp_unsigned("<", x, y), x, y)
