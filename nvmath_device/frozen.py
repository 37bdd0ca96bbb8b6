# SPDX-License-Identifier: Apache-2.0
"""``@frozen``: ``dataclass(frozen=True)`` without the cost of importing ``dataclasses``.

That import brings ``inspect`` and compiles the methods of each class: 7 ms and 0.5 ms a class, of the 20 ms in
which a new process is to have its code from the store. Classes that are not on that path use ``dataclasses``.
"""

from __future__ import annotations

from typing import Any, TypeVar, dataclass_transform

_T = TypeVar("_T", bound=type)


@dataclass_transform(frozen_default=True)
def frozen(*, kw_only: bool = False) -> Any:
    """Give a class with annotated fields ``__init__``, ``==``, ``hash``, ``repr`` and no assignment.

    Objects are equal when they are of one class and their fields are. ``__post_init__`` runs at the end of
    ``__init__`` and sets its corrections with ``object.__setattr__``. No inheritance of fields, no
    ``field(...)``, no ``__slots__``.
    """

    def decorate(cls: _T) -> _T:
        names = tuple(cls.__annotations__)
        defaults = {n: cls.__dict__[n] for n in names if n in cls.__dict__}
        corrects = hasattr(cls, "__post_init__")

        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            values = _bind(cls.__name__, names, () if kw_only else names, defaults, args, kwargs)
            self.__dict__.update(values)
            if corrects:
                self.__post_init__()

        def __eq__(self: Any, other: object) -> Any:
            return _fields(self, names) == _fields(other, names) if type(other) is type(self) else NotImplemented

        def __hash__(self: Any) -> int:
            return hash(_fields(self, names))

        def __repr__(self: Any) -> str:
            shown = zip(names, _fields(self, names), strict=True)
            return f"{cls.__name__}({', '.join(f'{n}={v!r}' for n, v in shown)})"

        def __setattr__(self: Any, name: str, value: Any) -> None:
            raise AttributeError(f"{cls.__name__} is immutable: {name!r} cannot be set")

        for method in (__init__, __eq__, __hash__, __setattr__):
            setattr(cls, method.__name__, method)
        if "__repr__" not in cls.__dict__:
            cls.__repr__ = __repr__  # type: ignore[method-assign, assignment]
        return cls

    return decorate


def replace(value: Any, **changes: Any) -> Any:
    """A copy of a frozen object with some fields changed, made and checked by its ``__init__``."""
    cls = type(value)
    return cls(**{n: value.__dict__[n] for n in cls.__annotations__} | changes)


def _fields(value: Any, names: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple([value.__dict__[n] for n in names])


def _bind(
    owner: str,
    names: tuple[str, ...],
    positional: tuple[str, ...],
    defaults: dict[str, Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> dict[str, Any]:
    if len(args) > len(positional):
        raise TypeError(f"{owner} takes {len(positional)} positional arguments, got {len(args)}")
    values = defaults | dict(zip(positional, args, strict=False))
    for name, value in kwargs.items():
        if name not in names:
            raise TypeError(f"{owner} has no argument {name!r}")
        if name in positional[: len(args)]:
            raise TypeError(f"{owner} got two values for {name!r}")
        values[name] = value
    if absent := [n for n in names if n not in values]:
        raise TypeError(f"{owner} needs {', '.join(absent)}")
    return {n: values[n] for n in names}
