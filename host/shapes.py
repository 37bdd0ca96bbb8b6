# SPDX-License-Identifier: Apache-2.0
"""Shapes of a matrix product, as pure data: what ``numpy.matmul`` would do, plus a broadcast C.

:func:`plan_shapes` is the only place that knows the rules; CPU and GPU execution both follow its answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from nvmath_device.errors import InvalidArgumentError
from nvmath_device.host.matrix_strides import broadcast_strides

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Shapes:
    """A product op(A) op(B) of (m, k) and (k, n) matrices over a batch.

    Attributes:
        m, n, k: extents of one product, in elements; any may be 0.
        batch: extents of the batch after broadcasting.
        a, b: shapes as matrices, (..., m, k) and (..., k, n): a vector got its missing axis.
        result: shape of the result, without the axes that vectors added.
        c: shape of C as it was given, or ``None``.
    """

    m: int
    n: int
    k: int
    batch: Shape
    a: Shape
    b: Shape
    result: Shape
    c: Shape | None

    @property
    def matrix_result(self) -> Shape:
        """Shape of the result before the axes of vectors are dropped: (*batch, m, n)."""
        return (*self.batch, self.m, self.n)

    @property
    def batch_count(self) -> int:
        return prod(self.batch)

    @property
    def is_empty(self) -> bool:
        """Nothing to compute: the result has no elements."""
        return prod(self.result) == 0


def plan_shapes(a: Shape, b: Shape, c: Shape | None = None) -> Shapes:
    """The rules of ``numpy.matmul``, and of a C that is broadcast to (*batch, m, n).

    A 1-D A is a row, a 1-D B a column, and the axis added to it is dropped from the result. Leading axes are
    a batch and broadcast against each other, also where an extent is 1. C may have the result's own shape (of
    a vector product, too), or any that broadcasts to (*batch, m, n): a row (1, n), a column (m, 1), a scalar
    (1, 1), each for the whole batch or one a batch entry. A 1-D C is a row of n, as in NumPy.

    Raises:
        InvalidArgumentError: naming the operand, its shape and what would fit.
    """
    for name, shape in (("a", a), ("b", b)):
        if not shape:
            raise InvalidArgumentError(f"{name}: a scalar is not a matrix; multiply by alpha instead")
    a_matrix = (1, *a) if len(a) == 1 else a
    b_matrix = (*b, 1) if len(b) == 1 else b
    (m, k), (k_of_b, n) = a_matrix[-2:], b_matrix[-2:]
    if k != k_of_b:
        raise InvalidArgumentError(
            f"a and b: the shapes {a} and {b} do not go together: a has {k} columns and b has {k_of_b} rows"
        )
    batch = _broadcast(a_matrix[:-2], b_matrix[:-2], f"a and b: the batches of the shapes {a} and {b}")
    result = (*batch, *((m,) if len(a) > 1 else ()), *((n,) if len(b) > 1 else ()))
    if c is not None and c != result:
        _check_c(c, (*batch, m, n), result)
    return Shapes(m, n, k, batch, a_matrix, b_matrix, result, c)


def strides_as_result(shape: Shape, strides: Shape, shapes: Shapes) -> Shape:
    """Strides under which C, or an array for the result, reads as (*batch, m, n): zero where it is broadcast."""
    missing = len(shapes.matrix_result) - len(shapes.result)
    if missing and shape == shapes.result:
        batch, vector = strides[: len(shapes.batch)], strides[len(shapes.batch) :]
        if missing == 2:
            return (*batch, 0, 0)
        return (*batch, 0, *vector) if shapes.m == 1 else (*batch, *vector, 0)
    found = broadcast_strides(shape, strides, shapes.matrix_result)
    assert found is not None, "plan_shapes has checked it"
    return found


def _broadcast(x: Shape, y: Shape, what: str) -> Shape:
    """The common shape of two batches."""
    try:
        return np.broadcast_shapes(x, y)
    except ValueError:
        raise InvalidArgumentError(f"{what} do not broadcast; each pair of extents must be equal or have a 1") from None


def _check_c(c: Shape, full: Shape, result: Shape) -> None:
    try:
        fits = np.broadcast_shapes(c, full) == full
    except ValueError:
        fits = False
    if not fits:
        raise InvalidArgumentError(
            f"c: the shape {c} does not fit; give {result}, or one that broadcasts to {full}: a row (1, {full[-1]}), "
            f"a column ({full[-2]}, 1) or a scalar (1, 1), with or without the batch before it"
        )
