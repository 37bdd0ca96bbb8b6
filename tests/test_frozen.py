# SPDX-License-Identifier: Apache-2.0
"""``frozen`` gives what ``dataclasses`` would give; its classes here are compared with that."""

from __future__ import annotations

import pickle
from dataclasses import dataclass

import pytest

from nvmath_device.frozen import frozen, replace


@frozen()
class Point:
    x: int
    y: int = 2


@frozen(kw_only=True)
class Even:
    n: int
    half: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "half", self.n // 2)


@dataclass(frozen=True)
class Twin:
    x: int
    y: int = 2


def test_values_are_equal_hashable_and_printable_like_a_dataclass():
    assert Point(1) == Point(1, 2) == Point(x=1, y=2) == Point(1, y=2)
    assert Point(1) != Point(2)
    assert Point(1) != Twin(1)
    assert len({Point(1), Point(1, 2), Point(3)}) == 2
    assert repr(Point(1)) == repr(Twin(1)).replace("Twin", "Point")
    assert pickle.loads(pickle.dumps(Point(1, 5))) == Point(1, 5)


def test_nothing_can_be_assigned():
    with pytest.raises(AttributeError, match="'x' cannot be set"):
        Point(1).x = 3


@pytest.mark.parametrize(
    ("args", "kwargs", "text"),
    [
        ((), {}, "needs x"),
        ((1, 2, 3), {}, "takes 2 positional arguments, got 3"),
        ((1,), {"x": 1}, "two values for 'x'"),
        ((1,), {"z": 1}, "no argument 'z'"),
    ],
)
def test_wrong_arguments_are_named(args, kwargs, text):
    with pytest.raises(TypeError, match=text):
        Point(*args, **kwargs)
    with pytest.raises(TypeError):
        Twin(*args, **kwargs)


def test_corrections_run_after_init_and_again_for_a_changed_copy():
    assert Even(n=6).half == 3
    assert replace(Even(n=6), n=10) == Even(n=10)
    with pytest.raises(TypeError, match="takes 0 positional"):
        Even(6)
