# SPDX-License-Identifier: Apache-2.0
"""Layouts against addresses enumerated by NumPy: a claimed order and leading dimension addresses the same elements."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvmath_device.host.matrix_strides import blas_layout, blas_layouts, broadcast_strides, merge_axes, obstacle


def offsets(shape, strides):
    """Offset of every element from the first, as NumPy walks them."""
    reach = sum((n - 1) * abs(s) for n, s in zip(shape, strides, strict=True)) if math.prod(shape) else 0
    memory = np.arange(-reach, reach + 1)
    item = memory.itemsize
    return np.lib.stride_tricks.as_strided(memory[reach:], shape, [s * item for s in strides])


def claimed(layout):
    """What a BLAS reads: column j starts at j * ld, or row i at i * ld."""
    i, j = np.indices((layout.rows, layout.cols))
    return i + j * layout.ld if layout.order == "col_major" else i * layout.ld + j


def legal_by_trying(rows, cols, strides):
    """Orders in which some leading dimension a BLAS accepts gives the view's offsets."""
    wanted = offsets((rows, cols), strides)
    i, j = np.indices((rows, cols))
    found = []
    for order, inner in (("col_major", rows), ("row_major", cols)):
        for ld in range(max(inner, 1), 40):
            if np.array_equal(i + j * ld if order == "col_major" else i * ld + j, wanted):
                found.append(order)
                break
    return found


@pytest.mark.parametrize("rows", range(5))
@pytest.mark.parametrize("cols", range(5))
def test_every_small_matrix(rows, cols):
    for strides in itertools.product(range(-6, 12), repeat=2):
        layouts = blas_layouts(rows, cols, *strides)
        assert [layout.order for layout in layouts] == legal_by_trying(rows, cols, strides), strides
        for layout in layouts:
            assert (layout.rows, layout.cols) == (rows, cols)
            assert layout.ld >= max(1, rows if layout.order == "col_major" else cols)
            assert np.array_equal(claimed(layout), offsets((rows, cols), strides)), (strides, layout)
        assert (obstacle(rows, cols, *strides) is None) == bool(layouts)


sizes = st.integers(1, 40)


@given(sizes, sizes, st.data())
def test_any_view_of_a_larger_matrix(rows, cols, data):
    step = st.sampled_from([1, 1, 1, 2, -1])
    row_step, col_step = data.draw(step), data.draw(step)
    whole = np.zeros((rows * abs(row_step) + data.draw(sizes), cols * abs(col_step) + data.draw(sizes)), np.int8)
    view = whole[: rows * abs(row_step), : cols * abs(col_step)][::row_step, ::col_step]
    if data.draw(st.booleans()):
        view = view.T
    for layout in blas_layouts(*view.shape, *view.strides):
        assert np.array_equal(claimed(layout), offsets(view.shape, view.strides))
    contiguous = any(s == 1 or n == 1 for n, s in zip(view.shape, view.strides, strict=True))
    positive = all(s > 0 or n == 1 for n, s in zip(view.shape, view.strides, strict=True))
    assert bool(blas_layouts(*view.shape, *view.strides)) == (contiguous and positive)


@pytest.mark.parametrize("stride", [0, 1, 77, 10**6, -5])
def test_r095_stride_of_an_axis_of_extent_one_is_not_read(stride):
    for rows, cols, strides, order in ((1, 77, (stride, 1), "row_major"), (5, 1, (1, stride), "col_major")):
        layout = blas_layout(rows, cols, *strides, prefer=order)
        assert layout.order == order
        assert layout.ld == max(rows, cols)


def test_preference_counts_where_both_orders_are_right():
    assert blas_layout(1, 8, 8, 1, prefer="row_major").order == "row_major"
    assert blas_layout(1, 8, 8, 1, prefer="col_major").order == "col_major"
    assert blas_layout(3, 8, 8, 1, prefer="col_major").order == "row_major"
    assert blas_layout(3, 8, -8, 1) is None


@pytest.mark.parametrize(
    ("strides", "words"),
    [((-8, 1), "negative"), ((0, 1), "zero"), ((16, 2), "contiguous"), ((3, 1), "overlap"), ((1, 1), "overlap")],
)
def test_obstacles_in_words(strides, words):
    assert words in obstacle(4, 8, *strides)
    assert str(strides) in obstacle(4, 8, *strides)


extents = st.lists(st.integers(0, 4), min_size=0, max_size=4).map(tuple)


@given(extents, st.data())
def test_merged_axes_step_through_the_same_offsets(shape, data):
    operands = data.draw(st.integers(1, 3))
    regular = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
    some = st.one_of(
        st.just(regular),
        st.just((0,) * len(shape)),
        st.tuples(*[st.integers(-6, 12)] * len(shape)),
        st.tuples(*[st.sampled_from([0, r, 2 * r]) for r in regular]),
    )
    strides = [data.draw(some) for _ in range(operands)]
    merged, steps = merge_axes(shape, *strides)
    assert len(steps) == operands
    for before, after in zip(strides, steps, strict=True):
        assert offsets(shape, before).ravel().tolist() == offsets(merged, after).ravel().tolist()
    assert 1 not in merged
    for axis in range(len(merged) - 1):  # as few as possible
        assert any(s[axis] != s[axis + 1] * merged[axis + 1] for s in steps)


def test_a_batch_that_is_broadcast_in_one_operand_is_one_axis_where_it_is_regular():
    assert merge_axes((3, 1, 4), (80, 7, 20), (0, 0, 0)) == ((12,), ((20,), (0,)))
    assert merge_axes((3, 4), (80, 20), (20, 0)) == ((3, 4), ((80, 20), (20, 0)))
    assert merge_axes((1, 1), (5, 5)) == ((), ((),))


@given(st.lists(st.integers(1, 3), max_size=4).map(tuple), st.lists(st.integers(1, 3), max_size=4).map(tuple))
def test_broadcasting_is_numpys(shape, target):
    x = np.arange(math.prod(shape), dtype=np.int8).reshape(shape)
    try:
        wanted = np.broadcast_to(x, target)
    except ValueError:
        assert broadcast_strides(shape, x.strides, target) is None
        return
    found = broadcast_strides(shape, x.strides, target)
    assert np.array_equal(np.lib.stride_tricks.as_strided(x, target, found), wanted)
