# SPDX-License-Identifier: Apache-2.0
"""``Matmul.execute`` on tensors, into shared memory or into registers."""

from __future__ import annotations

from typing import Any

from numba.cuda import types

from nvmath_device.numba_backend import emit
from nvmath_device.numba_backend.fragments import check_scalar, scalar_of
from nvmath_device.numba_backend.objects import Call
from nvmath_device.numba_backend.tensor_types import plan_of
from nvmath_device.numba_backend.tensor_values import Functions, passed
from nvmath_device.tensor_rules import check_execute

TENSOR_FORM = ("a", "b", "c")


def resolve_execute(typ: Any, call: Call, arguments: dict[str, Any]) -> Any:
    """The signature of a call of one of the forms with tensors."""
    check_execute(call.error, plan_of(typ.value), arguments)
    if "alpha" in arguments:
        target = scalar_of(arguments["c"])
        for name in ("alpha", "beta"):
            check_scalar(call, name, arguments[name], target)
            arguments[name] = target
    return call.signature(types.void, arguments)


def lower_execute(context: Any, builder: Any, typ: Any, sig: Any, args: Any) -> None:
    c_type = sig.args[-1]
    names = Functions(context, builder, c_type.plan, c_type.is_suggested)
    if len(sig.args) == len(TENSOR_FORM):
        names.call("execute", [passed(context, builder, t, v) for t, v in zip(sig.args, args, strict=True)])
        return
    value = c_type.plan.value(2)
    alpha, beta = (emit.scalar_address(context, builder, value, args[i]) for i in (0, 3))
    a, b, c = (passed(context, builder, sig.args[i], args[i]) for i in (1, 2, 4))
    names.call("execute_shared", [alpha, a, b, beta, c])
