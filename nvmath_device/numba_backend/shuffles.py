# SPDX-License-Identifier: Apache-2.0
"""``nvmath_device.shuffle_xor`` in kernels: typing and lowering."""

from __future__ import annotations

from typing import Any

from numba import cuda
from numba.cuda import types
from numba.cuda.typing.templates import signature

from nvmath_device.numba_backend.functions import register_function
from nvmath_device.numba_backend.objects import Call
from nvmath_device.shuffles import FORM

_NUMBERS = (types.float32, types.float64, types.int32, types.int64)
_ALL_LANES = 0xFFFFFFFF


def _resolve(call: Call) -> Any:
    given = call.bind(FORM)
    value, lanes = (types.unliteral(given[name]) for name in FORM)
    if value not in _NUMBERS:
        raise call.error(f"wants one of {', '.join(map(str, _NUMBERS))} for value, got {value}")
    if not isinstance(lanes, types.Integer):
        raise call.error(f"wants an integer for lanes, got {lanes}")
    return call.signature(value, {"value": value, "lanes": types.int32})


def _shuffled(value: Any, lanes: Any) -> Any:
    return cuda.shfl_xor_sync(_ALL_LANES, value, lanes)


def _lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return context.compile_internal(builder, _shuffled, signature(sig.return_type, *sig.args), args)


register_function("shuffle_xor", _resolve, _lower)
