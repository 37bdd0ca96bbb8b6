# SPDX-License-Identifier: Apache-2.0
"""Python functions usable as device functions while compiling without a device.

``cuda.jit(device=True)`` asks for the current device's capability when a kernel calls it; these are compiled
as part of their caller, for the caller's target.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba.cuda import types
from numba.cuda.cudaimpl import registry as lowering_registry
from numba.cuda.typing.templates import AbstractTemplate, signature


class Procedure:
    """A function without a result, callable from kernels and from other procedures by position."""

    def __init__(self, function: Callable[..., None]) -> None:
        self.function = function

        class Template(AbstractTemplate):
            key = self

            def generic(self, args: tuple[Any, ...], kws: dict[str, Any]) -> Any:
                return signature(types.void, *args)

        self._numba_type_ = types.Function(Template)

        @lowering_registry.lower(self, types.VarArg(types.Any))
        def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            context.compile_internal(builder, function, sig, args)
            return context.get_dummy_value()

    def __call__(self, *args: Any) -> None:
        """The same in plain Python, for tests."""
        self.function(*args)


def call(context: Any, builder: Any, function: Callable[..., None], arg_types: Any, args: Any) -> None:
    """Emit a call of a Python function without a result from lowering code."""
    context.compile_internal(builder, function, signature(types.void, *arg_types), args)
