# SPDX-License-Identifier: Apache-2.0
"""``nd.grouped_tile``: each tile once, in groups of rows, on the host and in compiled kernels."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import cuda
from numba.cuda.types import float32, int32, int64, uint8, void

import nvmath_device as nd
from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError, KernelTypingError
from tests import sass

EXTENTS = st.integers(1, 40)


def order(rows, columns, group):
    return [nd.grouped_tile(block, rows, columns, group) for block in range(rows * columns)]


@given(EXTENTS, EXTENTS, st.integers(1, 100))
def test_every_tile_belongs_to_exactly_one_block(rows, columns, group):
    found = order(rows, columns, group)
    assert sorted(found) == [(i, j) for i in range(rows) for j in range(columns)]


@given(EXTENTS, EXTENTS, st.integers(1, 100))
def test_blocks_go_through_groups_of_rows_one_after_the_other(rows, columns, group):
    """The next block has the next row of the group, or the group's first row in the next column."""
    found = order(rows, columns, group)
    assert [i // group for i, _ in found] == sorted(i // group for i, _ in found)
    for (i, j), (next_i, next_j) in itertools.pairwise(found):
        if next_i // group == i // group:
            assert (next_i, next_j) in {(i + 1, j), (i // group * group, j + 1)}


def test_an_order_by_hand():
    """Three rows in groups of two: the last group has one."""
    assert order(3, 2, 2) == [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (2, 1)]
    assert order(2, 3, 1) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert order(2, 2, 99) == [(0, 0), (1, 0), (0, 1), (1, 1)]


def test_as_many_tiles_as_there_may_be():
    assert nd.grouped_tile(2**31 - 2, 2**31 - 1, 1, 2**31) == (2**31 - 2, 0)
    assert nd.grouped_tile(np.int64(2**31 - 2), 1, np.int32(2**31 - 1), 1) == (0, 2**31 - 2)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((6, 2, 3, 1), InvalidArgumentError, "block: 6 is not one of 0 to 5"),
        ((-1, 2, 3, 1), InvalidArgumentError, "block: -1 is not one of 0 to 5"),
        ((0, 2, 3, 0), InvalidArgumentError, "group: 0 is not allowed"),
        ((0, 2.5, 3, 1), ArgumentTypeError, "rows: 2.5 is a float"),
        ((0.5, 2, 3, 1), ArgumentTypeError, "block: 0.5 is a float"),
        ((0, 2**16, 2**15, 1), InvalidArgumentError, "65536 x 32768 are 2147483648 tiles"),
    ],
)
def test_wrong_arguments_are_named(arguments, error, text):
    with pytest.raises(error, match=text):
        nd.grouped_tile(*arguments)


def test_it_is_one_object_that_says_what_it_is():
    assert repr(nd.grouped_tile) == "nvmath_device.grouped_tile"
    assert pickle.loads(pickle.dumps(nd.grouped_tile))(3, 3, 2, 2) == (1, 1)


# -- in kernels ----------------------------------------------------------------------------------------------


def by_attribute(out, rows, columns, group):
    i, j = nd.grouped_tile(cuda.blockIdx.x, rows, columns, group)
    out[i, j] = 1


alias = nd.grouped_tile


def by_name(out, rows, columns, group):
    i, j = alias(group=16, columns=columns, block=cuda.blockIdx.x, rows=rows)
    out[i, j] = group


@pytest.mark.parametrize("make", [nd.jit, cuda.jit, lambda function: function], ids=["nd.jit", "cuda.jit", "function"])
@pytest.mark.parametrize("function", [by_attribute, by_name])
def test_it_compiles_without_a_driver_to_32_bit_arithmetic(make, function):
    code = nd.compile(make(function), void(int32[:, ::1], int64, int32, uint8), sm=90).code
    found = sass.instructions(code)
    assert not [x for x in found if x.startswith("CALL") or (".64" in x and x.startswith(("I2F", "F2I")))]
    assert len(found) < 120


def real_group(out, x):
    alias(0, 1, 2, x)


def three_arguments(out, x):
    alias(0, 1, 2)


def five_arguments(out, x):
    alias(0, 1, 2, 3, 4)


def another_name(out, x):
    alias(0, 1, 2, groups=3)


@pytest.mark.parametrize(
    ("kernel", "text"),
    [
        (real_group, "grouped_tile wants an integer for group, got float32"),
        (three_arguments, r"grouped_tile takes \(block, rows, columns, group\), got 3 .*missing: group"),
        (five_arguments, r"grouped_tile takes \(block, rows, columns, group\), got 5"),
        (another_name, r"grouped_tile takes \(block, rows, columns, group\), .*missing: group; unknown"),
    ],
)
def test_wrong_calls_in_kernels_are_refused_in_words(kernel, text):
    with pytest.raises(KernelTypingError, match=text):
        nd.compile(kernel, void(int32[:, ::1], float32), sm=90)
