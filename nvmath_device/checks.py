# SPDX-License-Identifier: Apache-2.0
"""The few checks every descriptor needs, each raising an error that names argument, value and what is allowed."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError


def positive_int(value: Any, *, argument: str) -> int:
    """``value`` as an ``int`` >= 1. NumPy integers are integers; booleans, floats and strings are not."""
    if isinstance(value, bool):
        raise ArgumentTypeError(f"{argument}: {value!r} is a bool; give an integer of at least 1")
    try:
        number = operator.index(value)
    except TypeError:
        raise ArgumentTypeError(
            f"{argument}: {value!r} is a {type(value).__name__}; give an integer of at least 1"
        ) from None
    if number < 1:
        raise InvalidArgumentError(f"{argument}: {number} is not allowed; give an integer of at least 1")
    return number


def positive_ints(value: Any, count: int, *, argument: str, meaning: str) -> tuple[int, ...]:
    """``count`` integers >= 1 out of any iterable but a string."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ArgumentTypeError(f"{argument}: {value!r} is a {type(value).__name__}; give {count} integers, {meaning}")
    values = tuple(value)
    if len(values) != count:
        raise InvalidArgumentError(f"{argument}: {value!r} has {len(values)} values; give {count} integers, {meaning}")
    return tuple(positive_int(v, argument=argument) for v in values)


def choice(value: Any, allowed: Sequence[str], *, argument: str) -> str:
    """``value`` if it is one of ``allowed``."""
    if isinstance(value, str) and value in allowed:
        return value
    import difflib  # for errors only

    options = ", ".join(repr(a) for a in allowed)
    near = difflib.get_close_matches(str(value), allowed, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    error = InvalidArgumentError if isinstance(value, str) else ArgumentTypeError
    raise error(f"{argument}: {value!r} is not allowed; give {'' if len(allowed) == 1 else 'one of '}{options}{hint}")


def choices(value: Any, allowed: Sequence[str], count: int, *, argument: str) -> tuple[str, ...]:
    """``count`` of ``allowed`` out of any iterable but a string."""
    values = () if isinstance(value, str) or not isinstance(value, Iterable) else tuple(value)
    if len(values) != count:
        options = ", ".join(repr(a) for a in allowed)
        raise ArgumentTypeError(f"{argument}: {value!r} is not allowed; give {count} of {options}")
    return tuple(choice(v, allowed, argument=argument) for v in values)


def read_knobs(knobs: tuple[Any, ...], allowed: Sequence[str]) -> None:
    """Names of knobs to ask for: at least one, each of ``allowed``."""
    if not knobs:
        raise InvalidArgumentError(f"knobs: none given; give one or more of {', '.join(map(repr, allowed))}")
    for knob in knobs:
        choice(knob, allowed, argument="knobs")


def missing(names: Iterable[str], *, owner: str) -> InvalidArgumentError:
    """One error for everything that was left out."""
    listed = ", ".join(names)
    return InvalidArgumentError(f"{owner}: missing {listed}; these have no default")
