# SPDX-License-Identifier: Apache-2.0
"""Planned copies, carried out in plain Python, move exactly what ``numpy.copyto`` moves; and they are planned well."""

from __future__ import annotations

import itertools
import math
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvmath_device.errors import InvalidArgumentError, UnsupportedError
from nvmath_device.host import copy_plan
from nvmath_device.host.copy_plan import Dense, Fill, Move, aligned_to, plan_copy
from tests.host.copy_cases import cases

POWERS = [1, 2, 4, 8, 16]


def carry_out(steps, source: np.ndarray, source_at: int, destination: np.ndarray, destination_at: int) -> None:
    """Do the steps on bytes. ``source_at`` and ``destination_at`` are the addresses that a plan is relative to."""
    written = np.zeros(destination.size, int)
    for step in steps:
        if isinstance(step, Fill):
            assert not written.any()
            destination[destination_at : destination_at + step.nbytes] = 0
            continue
        if isinstance(step, Dense):
            moves = [(source_at + step.source, destination_at + step.destination)]
            size, flip = step.nbytes, np.zeros(step.nbytes, np.uint8)
        else:
            size, flip = step.unit, np.frombuffer(step.flip.to_bytes(step.unit, "little"), np.uint8)
            moves = []
            for index in itertools.product(*map(range, step.extents)):
                start = source_at + step.source + sum(map(int.__mul__, index, step.source_strides))
                to = destination_at + step.destination + sum(map(int.__mul__, index, step.destination_strides))
                moves.append((start, to))
        for start, to in moves:
            assert 0 <= start <= source.size - size
            assert 0 <= to <= destination.size - size
            written[to : to + size] += 1
            destination[to : to + size] = source[start : start + size] ^ flip
    assert written.max(initial=0) <= 1


@given(case=cases(), alignment=st.sampled_from(POWERS), limit=st.sampled_from([1, 3, 40, 2**31 - 1]))
@settings(max_examples=600)
def test_moves_what_numpy_moves(case, alignment, limit):
    positional, named = case.arguments()
    with mock.patch.object(copy_plan, "UNITS_PER_LAUNCH", limit):
        copy = plan_copy(*positional, **named, alignment=alignment)
    source, destination = case.buffers()
    carry_out(copy.steps, source, case.source.first, destination, case.destination.first)
    assert destination.tobytes() == case.copied().tobytes()
    for step in copy.steps:
        if isinstance(step, Move):
            assert math.prod(step.extents) <= limit
            assert step.unit <= copy.alignment <= alignment
            places = (step.source, step.destination, *step.source_strides, *step.destination_strides)
            assert all(place % step.unit == 0 for place in places)
            assert len(step.extents) == len(step.source_strides) == len(step.destination_strides) <= 9


@given(case=cases(), alignment=st.sampled_from(POWERS), other=st.sampled_from(POWERS))
@settings(max_examples=100)
def test_the_same_copy_for_another_alignment_is_as_if_planned_so(case, alignment, other):
    positional, named = case.arguments()
    narrower = aligned_to(plan_copy(*positional, **named, alignment=alignment), other)
    assert narrower.steps == plan_copy(*positional, **named, alignment=other).steps


# -- well planned -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "source", "destination"),
    [
        ((6, 5), (5, 1), (5, 1)),
        ((6, 5), (1, 6), (1, 6)),
        ((2, 3, 4), (4, 8, 1), (4, 8, 1)),
        ((6, 5), (-5, -1), (-5, -1)),
        ((1, 30, 1), (7, 1, 9), (3, 1, 0)),
        ((1,), (5,), (0,)),
        ((), (), ()),
    ],
)
def test_dense_copies_are_one_memcpy(shape, source, destination):
    (step,) = plan_copy(shape, source, destination, 4).steps
    assert type(step) is Dense
    assert step.nbytes == 4 * math.prod(shape)
    assert (
        step.source == step.destination == -4 * sum((n - 1) * -s for n, s in zip(shape, source, strict=True) if s < 0)
    )


def test_nothing_to_copy_is_nothing_to_do():
    assert plan_copy((3, 0, 2), (2, 2, 1), (9, 5, 1), 4).steps == ()
    assert plan_copy((3, 0), (0, 1), (4, 1), 4, fill_zero=48).steps == (Fill(48),)


@pytest.mark.parametrize(
    ("columns", "pitch", "itemsize", "alignment", "unit"),
    [
        (64, 80, 2, 16, 16),
        (64, 80, 2, 256, 16),
        (64, 80, 2, 4, 4),
        (64, 72, 1, 16, 8),
        (63, 80, 2, 16, 2),
        (64, 65, 4, 16, 4),
        (64, 66, 4, 16, 8),
        (3, 4, 16, 16, 16),
        (3, 4, 16, 8, 8),
        (33, 48, 1, 16, 1),
    ],
)
def test_rows_are_moved_in_the_widest_pieces_that_fit(columns, pitch, itemsize, alignment, unit):
    (step,) = plan_copy((10, columns), (columns, 1), (pitch, 1), itemsize, alignment=alignment).steps
    assert (step.unit, math.prod(step.extents) * unit) == (unit, 10 * columns * itemsize)
    assert not step.tiled


def test_transposing_goes_through_tiles_along_both_fast_axes():
    (step,) = plan_copy((5, 300, 200), (60_000, 1, 300), (60_000, 200, 1), 4).steps
    assert step.tiled
    assert step.extents == (5, 300, 200)
    assert (step.source_strides, step.destination_strides) == ((240_000, 4, 1200), (240_000, 800, 4))
    # the same, with the axes named in another order, and the source's fast axis far from the destination's
    (step,) = plan_copy((300, 5, 200), (1, 70_000, 300), (1_000, 200, 1), 4).steps
    assert step.tiled
    assert step.extents == (5, 300, 200)


@pytest.mark.parametrize(
    ("shape", "source", "destination"),
    [
        ((300, 200), (200, 1), (256, 1)),  # both along the same axis
        ((300, 200), (0, 300), (200, 1)),  # every row the same
        ((300, 200), (1, 0), (200, 1)),  # every column the same
        ((300, 4), (1, 300), (4, 1)),  # too narrow
        ((4, 300), (1, 4), (300, 1)),
    ],
)
def test_other_copies_do_not(shape, source, destination):
    (step,) = plan_copy(shape, source, destination, 4).steps
    assert not step.tiled


def test_neighbouring_threads_write_neighbouring_places():
    for strides in ((1, 10, 100), (10, 100, 1), (-1, 100, 10)):
        (step,) = plan_copy((10, 10, 10), (700, 70, 7), strides, 4).steps
        assert step.destination_strides[-1] == 4


def test_conjugates_of_whole_elements_are_one_launch():
    (step,) = plan_copy((40,), (1,), (1,), 8, conjugate=4).steps
    assert (step.unit, step.flip) == (16, 0x8000000000000000_8000000000000000)
    (step,) = plan_copy((41,), (1,), (1,), 8, conjugate=4).steps
    assert (step.unit, step.flip) == (8, 0x8000000000000000)
    (step,) = plan_copy((40,), (1,), (1,), 4, conjugate=2).steps
    assert (step.unit, step.flip) == (16, 0x80000000_80000000_80000000_80000000)


def test_complex_numbers_aligned_to_their_parts_are_moved_by_part():
    (step,) = plan_copy((5, 40), (80, 1), (40, 1), 16, alignment=8).steps
    assert (step.unit, step.extents) == (8, (5, 80))
    real, imaginary = plan_copy((40,), (1,), (1,), 16, conjugate=8, alignment=8).steps
    assert (real.unit, real.extents, real.source, real.flip) == (8, (40,), 0, 0)
    assert (imaginary.unit, imaginary.extents, imaginary.source, imaginary.flip) == (8, (40,), 8, 1 << 63)


def test_more_elements_than_a_launch_counts_are_several_launches():
    for shape, source, destination in [
        ((5, 2**30), (2**31, 1), (2**30 + 1, 1)),
        ((2**33 + 5,), (2,), (1,)),
        ((3, 2**31 + 1), (2**32, 2), (2**32, 1)),
    ]:
        steps = plan_copy(shape, source, destination, 1).steps
        assert sum(math.prod(step.extents) * step.unit for step in steps) == math.prod(shape)
        assert all(math.prod(step.extents) < 2**31 for step in steps)
        assert len({step.destination for step in steps}) == len(steps) <= 8


def test_any_number_of_axes_that_merge():
    shape = (2,) * 20
    strides = tuple(2 ** (19 - axis) for axis in range(20))
    (step,) = plan_copy(shape, tuple(reversed(strides)), tuple(reversed(strides)), 2).steps
    assert step == Dense(0, 0, 2 << 20)
    (step,) = plan_copy(shape, (*strides[:18], 1, 2), (*strides[:18], 2, 1), 2).steps
    assert len(step.extents) == 3


def scattered(axes):
    """A shape and strides of which no two axes merge with the other side's."""
    return (3,) * axes, tuple(3**axis for axis in range(axes)), tuple(4 ** (axes - axis) for axis in range(axes))


def test_eight_axes_that_do_not_merge_are_the_most():
    shape, source, destination = scattered(8)
    (step,) = plan_copy(shape, source, destination, 2).steps
    assert math.prod(step.extents) == 3**8
    with pytest.raises(UnsupportedError, match="9 axes that cannot be merged; at most 8"):
        plan_copy(*scattered(9), 2)


# -- refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "named", "words"),
    [
        (((2, 3), (3,), (3, 1), 4), {}, "^source_strides, destination_strides: .*needs 2 of each"),
        (((2, 3), (3, 1), (3, 1), 3), {}, "^itemsize: 3 bytes; allowed are 1, 2, 4, 8, 16"),
        (((2, 3), (3, 1), (3, 1), 8), {"conjugate": 8}, "^conjugate: parts of 8 bytes in elements of 8"),
        (((2, 3), (3, 1), (3, 1), 2), {"conjugate": 1}, "^conjugate: parts of 1 bytes in elements of 2"),
        (((2, 3), (3, 1), (3, 1), 4), {"alignment": 12}, "^alignment: 12; it must be a power of two"),
        (((2, 3), (3, 1), (3, 1), 4), {"alignment": 0}, "^alignment: 0; it must be a power of two"),
        (((2, 3), (3, 1), (-3, 1), 4), {"fill_zero": 24}, "^fill_zero: only for destinations that begin at"),
        (((2, 3), (3, 1), (0, 1), 4), {}, r"^destination_strides: \(0, 1\) .*the same place"),
        (((2, 3), (3, 1), (2, 1), 4), {}, r"^destination_strides: \(2, 1\) .*the same place"),
    ],
)
def test_what_cannot_be_right_is_refused_in_words(arguments, named, words):
    with pytest.raises(InvalidArgumentError, match=words):
        plan_copy(*arguments, **named)
