# SPDX-License-Identifier: Apache-2.0
"""Shapes of products against NumPy's own matmul and broadcasting."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvmath_device.errors import InvalidArgumentError
from nvmath_device.host.shapes import plan_shapes

EXTENTS = st.integers(0, 3)
SHAPES = st.lists(EXTENTS, min_size=1, max_size=4).map(tuple)


@settings(max_examples=2000)
@given(a=SHAPES, b=SHAPES)
def test_shapes_are_those_of_numpy(a, b):
    try:
        expected = np.matmul(np.zeros(a), np.zeros(b)).shape
    except ValueError:
        with pytest.raises(InvalidArgumentError):
            plan_shapes(a, b)
        return
    plan = plan_shapes(a, b)
    assert plan.result == expected
    assert np.matmul(np.zeros(plan.a), np.zeros(plan.b)).shape == plan.matrix_result
    assert plan.is_empty == (0 in expected)
    assert plan.batch_count == int(np.prod(plan.batch))


@settings(max_examples=2000)
@given(
    batch=st.lists(st.integers(1, 3), max_size=2).map(tuple),
    m=EXTENTS,
    n=EXTENTS,
    k=EXTENTS,
    c=st.lists(EXTENTS, max_size=4).map(tuple),
)
def test_c_fits_when_it_broadcasts_to_the_result(batch, m, n, k, c):
    full = (*batch, m, n)
    try:
        fits = np.broadcast_to(np.zeros(c), full).shape == full
    except ValueError:
        fits = False
    if fits:
        assert plan_shapes((*batch, m, k), (k, n), c).c == c
    else:
        with pytest.raises(InvalidArgumentError, match="c: the shape"):
            plan_shapes((*batch, m, k), (k, n), c)


def test_c_of_a_vector_product_has_the_results_shape():
    assert plan_shapes((4,), (4, 5), (5,)).result == (5,)
    assert plan_shapes((3, 4), (4,), (3,)).result == (3,)
    assert plan_shapes((4,), (4,), ()).result == ()


@pytest.mark.parametrize(
    ("shapes", "text"),
    [
        (((3, 4), (5, 6)), "a has 4 columns and b has 5 rows"),
        (((2, 3, 4), (3, 4, 5)), "do not broadcast"),
        (((), (3, 4)), "a: a scalar"),
        (((3, 4), (4, 5), (3, 4)), r"a row \(1, 5\), a column \(3, 1\)"),
    ],
)
def test_errors_say_what_would_fit(shapes, text):
    with pytest.raises(InvalidArgumentError, match=text):
        plan_shapes(*shapes)
