# SPDX-License-Identifier: Apache-2.0
"""From arrays, or from a product of arrays, to the descriptor that host and device level share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nvmath_device.descriptors import (
    COL_MAJOR,
    CONJ_TRANSPOSED,
    NON_TRANSPOSED,
    ROW_MAJOR,
    Arrangement,
    GemmDescriptor,
    GemmSize,
    LeadingDimension,
    MatrixLayout,
    Precision,
    TransposeMode,
    accumulator,
)
from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError
from nvmath_device.host.array_view import ArrayView, type_name
from nvmath_device.host.arrays import view
from nvmath_device.host.matrix_strides import blas_layout, obstacle
from nvmath_device.host.problem import Problem
from nvmath_device.host.shapes import Shapes, plan_shapes, strides_as_result

_CANNOT_CONJUGATE_C = (
    "c: the tensor is conjugated lazily, which a descriptor says of A and B only; use c.resolve_conj()"
)


def describe(problem: Problem, views: Mapping[str, ArrayView]) -> GemmDescriptor:
    """One matrix product of the problem.

    C has the elements of the result and lies as C does, or where there is no C, as a new result. A or B that no BLAS
    reads in place counts as a row-major copy of it, such a C as one in the order of the result. A conjugated matrix is
    the conjugate transpose of the stored one.

    Raises:
        InvalidArgumentError: an extent is 0, or C is conjugated.
    """
    shapes, types = problem.shapes, problem.types
    if problem.conj_c and types.is_complex:
        raise InvalidArgumentError(_CANNOT_CONJUGATE_C)
    a = _layout(shapes.m, shapes.k, _as_matrix(views["a"], vector_is_row=True), ROW_MAJOR)
    b = _layout(shapes.k, shapes.n, _as_matrix(views["b"], vector_is_row=False), ROW_MAJOR)
    if "c" in views:
        strides = strides_as_result(views["c"].shape, views["c"].strides, shapes)[-2:]
        c = _layout(shapes.m, shapes.n, strides, problem.order)
    else:
        c = _tight(shapes.m, shapes.n, problem.order)
    return _descriptor(
        shapes, (a, b, c), (problem.conj_a, problem.conj_b), Precision(types.a, types.b, types.d), types.is_complex
    )


def describe_arrays(a: Any, b: Any, c: Any = None) -> GemmDescriptor:
    """What :meth:`GemmDescriptor.from_arrays` returns, and says about errors."""
    x, y = view(a, "a"), view(b, "b")
    z = None if c is None else view(c, "c")
    operands = {"a": x, "b": y} | ({} if z is None else {"c": z})
    for name, operand in operands.items():
        _require_matrix(operand, name)
    _require_one_kind(operands)
    shapes = plan_shapes(x.shape, y.shape)
    layout_a, layout_b = _as_it_lies(x, "a"), _as_it_lies(y, "b")
    if z is None:
        layout_c = _tight(shapes.m, shapes.n, _order_of_result(layout_a, layout_b))
        element = x.element if x.element.is_float else accumulator(x.element, y.element)
    else:
        if z.shape != shapes.result:
            raise InvalidArgumentError(
                f"c: the shape {z.shape} does not fit; the product has the shape {shapes.result}"
            )
        if z.conjugated:
            raise InvalidArgumentError(_CANNOT_CONJUGATE_C)
        layout_c, element = _as_it_lies(z, "c"), z.element
    return _descriptor(
        shapes, (layout_a, layout_b, layout_c), (x.conjugated, y.conjugated),
        Precision(x.element, y.element, element), x.is_complex,
    )  # fmt: skip


def _descriptor(
    shapes: Shapes, layouts: tuple[MatrixLayout, ...], conjugated: tuple[bool, bool], precision: Precision,
    is_complex: bool,
) -> GemmDescriptor:  # fmt: skip
    size = GemmSize(shapes.m, shapes.n, shapes.k)
    if 0 in size:
        raise InvalidArgumentError(f"size: the product is {tuple(size)}, (m, n, k); a descriptor has no extents of 0")
    # A matrix is the transpose of the stored one in the other order.
    flipped = (*(is_complex and conj for conj in conjugated), False)
    orders = (_other(x.order) if flip else x.order for x, flip in zip(layouts, flipped, strict=True))
    return GemmDescriptor(
        size=size,
        precision=precision,
        data_type="complex" if is_complex else "real",
        arrangement=Arrangement(*orders),
        transpose_mode=TransposeMode(*(CONJ_TRANSPOSED if flip else NON_TRANSPOSED for flip in flipped[:2])),
        leading_dimension=LeadingDimension(*(x.ld for x in layouts)),
    )


# -- operands -----------------------------------------------------------------------------------------------


def _require_matrix(operand: ArrayView, name: str) -> None:
    if operand.ndim == 2:
        return
    if operand.ndim == 1:
        form = "reshape(1, -1) for a row or reshape(-1, 1) for a column"
        raise InvalidArgumentError(f"{name}: the shape {operand.shape} is a vector's; give a matrix, with {form}")
    if operand.ndim == 0:
        raise InvalidArgumentError(f"{name}: a scalar is not a matrix")
    one = f"{name}[{', '.join('0' * (operand.ndim - 2))}]"
    raise InvalidArgumentError(
        f"{name}: the shape {operand.shape} is a batch of matrices; a descriptor is of one product, so give one matrix "
        f"of the batch, such as {one}"
    )


def _require_one_kind(operands: Mapping[str, ArrayView]) -> None:
    if len({x.is_complex for x in operands.values()}) > 1:
        given = ", ".join(f"{name} is {type_name(x.element, x.is_complex)}" for name, x in operands.items())
        raise ArgumentTypeError(
            f"{', '.join(operands)}: real and complex matrices do not go together, and {given}; convert the real ones "
            "to complex"
        )


def _as_it_lies(operand: ArrayView, name: str) -> MatrixLayout:
    layout = blas_layout(*operand.shape, *operand.strides, prefer=ROW_MAJOR)
    if layout is None:
        why = obstacle(*operand.shape, *operand.strides)
        raise InvalidArgumentError(f"{name}: {why}, so it has no order and leading dimension; give a contiguous copy")
    return layout


def _order_of_result(a: MatrixLayout, b: MatrixLayout) -> str:
    """The order of a new result: that of A, or of B where A is a single row or column and has none of its own."""
    return next((x.order for x in (a, b) if min(x.rows, x.cols) > 1), ROW_MAJOR)


def _as_matrix(operand: ArrayView, *, vector_is_row: bool) -> tuple[int, int]:
    if operand.ndim == 1:
        return (0, operand.strides[0]) if vector_is_row else (operand.strides[0], 0)
    return operand.strides[-2], operand.strides[-1]


def _layout(rows: int, cols: int, strides: tuple[int, ...], order_of_copy: str) -> MatrixLayout:
    return blas_layout(rows, cols, *strides, prefer=ROW_MAJOR) or _tight(rows, cols, order_of_copy)


def _tight(rows: int, cols: int, order: str) -> MatrixLayout:
    return MatrixLayout(rows, cols, order, rows if order == COL_MAJOR else cols)


def _other(order: str) -> str:
    return COL_MAJOR if order == ROW_MAJOR else ROW_MAJOR
