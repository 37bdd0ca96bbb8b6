# SPDX-License-Identifier: Apache-2.0
"""Overlaps against sets of byte addresses, enumerated element by element."""

from __future__ import annotations

import itertools
import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nvmath_device import float16, float32, float64, int8
from nvmath_device.host.array_overlap import may_overlap, may_overlap_itself, overlap, same_elements
from nvmath_device.host.array_view import ArrayView, Device, canonical_strides
from nvmath_device.host.arrays import view


def elements(operand):
    """Address of each element, in order of its indices."""
    return [
        operand.ptr + operand.itemsize * sum(i * s for i, s in zip(index, operand.strides, strict=True))
        for index in itertools.product(*map(range, operand.shape))
    ]


def addresses(operand):
    return {address + byte for address in elements(operand) for byte in range(operand.itemsize)}


@st.composite
def views(draw, kind="cuda"):
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
    strides = tuple(draw(st.lists(st.integers(-9, 9), min_size=len(shape), max_size=len(shape))))
    return ArrayView(
        1000 + draw(st.integers(-60, 60)), shape, canonical_strides(shape, strides),
        draw(st.sampled_from([int8, float16, float32, float64])), draw(st.booleans()), Device(kind), "generic", False,
        False, None,
    )  # fmt: skip


@given(views(), views())
def test_any_two_views(a, b):
    shared = bool(addresses(a) & addresses(b))
    assert overlap(a, b) == shared
    assert overlap(a, b, max_work=1) >= shared
    assert may_overlap(a, b) >= shared
    if not shared and may_overlap(a, b):
        assert min(addresses(a)) < max(addresses(b)) + 1  # the ranges really meet
        assert min(addresses(b)) < max(addresses(a)) + 1


@given(views())
def test_extent_is_tight(a):
    low, high = a.extent_bytes
    assert (low, high) == ((min(addresses(a)), max(addresses(a)) + 1) if math.prod(a.shape) else (a.ptr, a.ptr))


@given(views())
def test_overlap_with_itself(a):
    listed = elements(a)
    repeats = len(set(listed)) < len(listed)
    assert may_overlap_itself(a) >= repeats


@given(st.data())
def test_parts_of_ordinary_arrays_never_overlap_themselves(data):
    shape = data.draw(st.lists(st.integers(1, 5), max_size=4))
    x = np.zeros(shape, np.int8).transpose(data.draw(st.permutations(range(len(shape)))))
    for axis in range(x.ndim):
        x = x[(slice(None),) * axis + (slice(None, None, data.draw(st.sampled_from([1, 2, -1, -3]))),)]
    assert not may_overlap_itself(view(x))


def test_broadcasts_and_windows_overlap_themselves():
    x = np.arange(8.0)
    assert may_overlap_itself(view(np.broadcast_to(x, (3, 8))))
    assert may_overlap_itself(view(np.lib.stride_tricks.sliding_window_view(x, 3)))


def test_even_and_odd_columns_are_apart():
    x = np.zeros((64, 64), np.float32)
    even, odd = view(x[:, ::2]), view(x[:, 1::2])
    assert may_overlap(even, odd)
    assert not overlap(even, odd)
    assert overlap(even, view(x[::3, ::3]))


def test_what_is_too_hard_to_decide_may_overlap():
    """A problem with large coprime strides, which NumPy's solver gives up on."""
    base = ArrayView(
        1 << 20, (1049,) * 3, (36674, 61119, 85569), int8, False, Device("cuda"), "generic", False, False, None
    )
    other = base._replace(ptr=base.ptr + 64_023_025, shape=(1049, 1049, 1), strides=(12223, 12224, 0))
    assert overlap(base, other, max_work=10)


def test_same_elements():
    x = np.zeros((6, 6), np.float32)
    assert same_elements(view(x), view(x[:]))
    for other in (x.T, x[1:], x[:, ::-1], x.view(np.int16)):
        assert not same_elements(view(x), view(other))
    assert same_elements(view(x[:, :1]), view(np.lib.stride_tricks.as_strided(x, (6, 1), (24, 999))))
