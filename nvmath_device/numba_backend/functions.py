# SPDX-License-Identifier: Apache-2.0
"""Functions of the package that kernels call, such as ``nvmath_device.copy``: typed and lowered as methods are."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from numba.cuda import types
from numba.cuda.cudaimpl import registry as lowering_registry
from numba.cuda.typing.templates import AbstractTemplate, Signature, signature

from nvmath_device.errors import KernelTypingError
from nvmath_device.numba_backend.objects import Call

FUNCTIONS: dict[str, Any] = {}  # Numba's types of them, by name


class FunctionCall(Call):
    """The arguments of a call of a function, to be matched to its form by name."""

    def error(self, text: str) -> KernelTypingError:
        return KernelTypingError(f"{self.name} {text}")

    def signature(self, result: Any, arguments: dict[str, Any]) -> Signature:
        parameters = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in arguments]
        return signature(result, *arguments.values()).replace(pysig=inspect.Signature(parameters))


def register_function(name: str, resolve: Callable[..., Signature], lower: Callable[..., Any]) -> None:
    """Make a function known. ``resolve(call)`` gives its signature; ``lower(context, builder, sig, args)`` emits it."""

    class Template(AbstractTemplate):
        key = f"nvmath_device function {name}"
        prefer_literal = True

        def generic(self, args: tuple[Any, ...], kws: dict[str, Any]) -> Any:
            return resolve(FunctionCall(name, None, args, kws, self.context))

    @lowering_registry.lower(Template.key, types.VarArg(types.Any))
    def lowered(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        result = lower(context, builder, sig, args)
        return context.get_dummy_value() if result is None else result

    FUNCTIONS[name] = types.Function(Template)
