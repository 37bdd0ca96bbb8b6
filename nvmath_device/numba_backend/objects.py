# SPDX-License-Identifier: Apache-2.0
"""How a host object becomes a compile-time constant in kernels: attributes as literals, methods as intrinsics.

Built on typing templates and lowering registries only. ``overload`` and device functions would ask for the
current device while compiling, and a kernel must compile for a given target without one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from numba.cuda import types
from numba.cuda.core import targetconfig
from numba.cuda.cudadecl import registry as typing_registry
from numba.cuda.cudaimpl import registry as lowering_registry
from numba.cuda.datamodel import models
from numba.cuda.models import register_model
from numba.cuda.typing.templates import AbstractTemplate, AttributeTemplate, Signature, signature

from nvmath_device.errors import KernelTypingError
from nvmath_device.numba_backend.element_types import numba_type
from nvmath_device.targets import ComputeCapability, compute_capability


class ConstantType(types.Opaque):
    """The type of an immutable host object; the object is part of the type and nothing is passed at run time."""

    def __init__(self, value: Any) -> None:
        self.value = value
        super().__init__(repr(value))

    @property
    def key(self) -> Any:
        return (type(self).__name__, self.value)


def current_target() -> ComputeCapability:
    """The target of the compilation that is running.

    Raises:
        InvalidArgumentError: it is none that generated code is known for.
    """
    major, minor, *_ = targetconfig.ConfigStack.top_or_none().compute_capability
    return compute_capability((major, minor), argument="target of the kernel")


def pipeline_target(made_for: ComputeCapability | None, what: Any) -> ComputeCapability:
    """The same for code that may use what the target's chip alone has, where the kernel is linked for that.

    ``numba.cuda.jit`` links for every chip of a compute capability, ``nd.jit`` and ``nd.compile`` for the one.
    """
    target = settled_target(made_for, what)
    return target._replace(arch="".join(targetconfig.ConfigStack.top_or_none().compute_capability[2:]))


def settled_target(made_for: ComputeCapability | None, what: Any) -> ComputeCapability:
    """The target of the running compilation, for an object made for ``made_for`` or for any target.

    Raises:
        KernelTypingError: the object was made for a target whose code this one cannot run: a newer one, or the
            features of another chip alone.
    """
    target = current_target()
    if made_for is not None and (
        made_for[:2] > target[:2]
        or (made_for.arch == "a" and made_for[:2] != target[:2])
        or (made_for.arch == "f" and made_for.major != target.major)
    ):
        raise KernelTypingError(
            f"{what} was made for {made_for.sm} and the kernel is compiled for {target.sm}, which cannot run its "
            "code; leave sm out to have it made for whatever the kernel is compiled for"
        )
    return target


def is_debug() -> bool:
    """Whether the kernel is compiled with ``debug=True`` (run-time checks on, errors reported)."""
    flags = targetconfig.ConfigStack.top_or_none()
    return bool(flags is not None and flags.dbg_extend_lifetimes)


def literal_type(value: Any) -> Any:
    """The Numba type that carries ``value`` itself: usable wherever Numba wants a constant."""
    from nvmath_device.dtypes import ElementType

    if value is None:
        return types.none
    if isinstance(value, (bool, int, str)):
        return types.literal(value)
    if isinstance(value, tuple):
        members = [literal_type(v) for v in value]
        if hasattr(value, "_fields"):
            return types.NamedTuple(members, type(value))
        return types.Tuple(members)
    if isinstance(value, ElementType):
        return types.literal(value.name)
    return types.DType(numba_type(value))


def lower_literal(context: Any, builder: Any, ty: Any) -> Any:
    """The value of a type made by :func:`literal_type`."""
    if isinstance(ty, types.BaseTuple):
        return context.make_tuple(builder, ty, [lower_literal(context, builder, t) for t in ty.types])
    if isinstance(ty, types.IntegerLiteral):
        return context.get_constant(types.intp, ty.literal_value)
    if isinstance(ty, types.BooleanLiteral):
        return context.get_constant(types.boolean, ty.literal_value)
    return context.get_dummy_value()


def register_constant(cls: type[ConstantType], attributes: Iterable[str], methods: dict[str, Any]) -> None:
    """Make ``cls`` known: ``attributes`` are read off ``typ.for_target()`` as literals, ``methods`` are templates."""
    names = frozenset(attributes)
    register_model(cls)(models.OpaqueModel)
    lowering_registry.lower_constant(cls)(lambda context, builder, ty, value: context.get_dummy_value())

    class Attributes(AttributeTemplate):
        key = cls

        def generic_resolve(self, typ: Any, attr: str) -> Any:
            if attr in methods:
                return types.BoundFunction(methods[attr], typ)
            if attr in names:
                return literal_type(getattr(typ.for_target(), attr))
            return None

    typing_registry.register_attr(Attributes)

    @lowering_registry.lower_getattr_generic(cls)
    def lower_attribute(context: Any, builder: Any, typ: Any, value: Any, attr: str) -> Any:
        if attr in methods:
            return context.get_dummy_value()
        return lower_literal(context, builder, literal_type(getattr(typ.for_target(), attr)))


def register_value(cls: type[types.Type], methods: dict[str, Any], attributes: Iterable[str] = ()) -> None:
    """Give values of ``cls`` methods, templates made with ``value=True``, and constants that are read off the type."""
    names = frozenset(attributes)

    class Attributes(AttributeTemplate):
        key = cls

        def generic_resolve(self, typ: Any, attr: str) -> Any:
            if attr in methods:
                return types.BoundFunction(methods[attr], typ)
            return literal_type(getattr(typ, attr)) if attr in names else None

    typing_registry.register_attr(Attributes)

    @lowering_registry.lower_getattr_generic(cls)
    def lower_attribute(context: Any, builder: Any, typ: Any, value: Any, attr: str) -> Any:
        return value if attr in methods else lower_literal(context, builder, literal_type(getattr(typ, attr)))


def method(
    name: str,
    resolve: Callable[..., Signature],
    lower: Callable[..., Any],
    *,
    value: bool = False,
) -> Any:
    """A typing template for a kernel-side method and its lowering.

    ``resolve(typ, call)`` gets the receiver's type and a :class:`Call`; it returns the signature made by
    ``call.signature`` or raises :class:`KernelTypingError`, whose text the user sees.
    ``lower(context, builder, typ, sig, args)`` emits the code; args leave the receiver out, unless it is a ``value``.
    """

    class Method(AbstractTemplate):
        key = f"nvmath_device.{name}"

        def generic(self, args: tuple[Any, ...], kws: dict[str, Any]) -> Any:
            return resolve(self.this, Call(name, self.this, args, kws, self.context))

    def lowered(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        own = args if value else args[1:]
        result = lower(context, builder, sig.args[0], signature(sig.return_type, *sig.args[1:]), own)
        return context.get_dummy_value() if result is None else result

    lowering_registry.lower(Method.key, types.VarArg(types.Any))(lowered)
    return Method


class Call:
    """The arguments of one kernel-side call, to be matched to forms by name."""

    def __init__(self, name: str, this: Any, args: tuple[Any, ...], kws: dict[str, Any], context: Any = None) -> None:
        self.name, self.this, self._args, self._kws, self.context = name, this, args, kws, context

    def bind(self, *forms: tuple[str, ...], optional: tuple[str, ...] = ()) -> dict[str, Any]:
        """Argument types by name, for the first of ``forms`` that the call matches; the error lists them all."""
        for form in forms:
            names = form + optional
            if len(self._args) <= len(names) and all(k in names for k in self._kws):
                bound = dict(zip(names, self._args, strict=False))
                if not bound.keys() & self._kws.keys():
                    bound.update(self._kws)
                    if all(n in bound for n in form):
                        return {n: bound[n] for n in names if n in bound}  # keywords come in any order
        wanted = " or ".join(f"({', '.join(form + tuple(f'[{o}]' for o in optional))})" for form in forms)
        given = [str(a) for a in self._args] + [f"{k}={v}" for k, v in self._kws.items()]
        closest = min(forms, key=lambda f: abs(len(f) - len(given)))
        absent = [n for n in closest[len(self._args) :] if n not in self._kws]
        unknown = [k for k in self._kws if all(k not in form + optional for form in forms)]
        detail = f"; missing: {', '.join(absent)}" if absent else ""
        detail += f"; unknown: {', '.join(unknown)}" if unknown else ""
        raise self.error(f"takes {wanted}, got {len(given)} arguments: ({', '.join(given)}){detail}")

    @property
    def given(self) -> tuple[Any, ...]:
        """Types of all arguments."""
        return (*self._args, *self._kws.values())

    def positional(self, *wanted: str) -> tuple[Any, ...]:
        """Argument types of a call that takes any number of them, at least one, and none by name."""
        if self._kws or not self._args:
            raise self.error(f"takes ({', '.join(wanted)}), all of them by position")
        return self._args

    def error(self, text: str) -> KernelTypingError:
        """An error about this call."""
        return KernelTypingError(f"{self.name} {text}\n  called on {self.this}")

    def signature(self, result: Any, arguments: dict[str, Any]) -> Signature:
        """The signature with these argument types, in order; keyword arguments keep working."""
        parameters = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in arguments]
        sig = signature(result, *arguments.values(), recvr=self.this)
        return sig.replace(pysig=inspect.Signature(parameters))
