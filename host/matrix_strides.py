# SPDX-License-Identifier: Apache-2.0
"""From strides to what a BLAS can read: an order and a leading dimension, or the reason why not.

Pure arithmetic on integers. A layout that is returned here addresses exactly the elements of the strided view,
each at its own address: no zero, negative or overlapping strides pass.
"""

from __future__ import annotations

from nvmath_device.descriptors import COL_MAJOR, ROW_MAJOR, MatrixLayout


def blas_layouts(rows: int, cols: int, row_stride: int, col_stride: int) -> tuple[MatrixLayout, ...]:
    """Every storage order in which a BLAS reads this matrix in place, column-major first; empty if none.

    Strides are in elements, from one row and one column to the next. Strides of an axis of extent 1 have no
    meaning and are not read. A leading dimension with nothing to lead over is the smallest legal one, at least 1.
    A matrix with a zero extent has both orders.
    """
    layouts = []
    if _is_legal(rows, cols, row_stride, col_stride):
        layouts.append(MatrixLayout(rows, cols, COL_MAJOR, _leading(rows, cols, col_stride)))
    if _is_legal(cols, rows, col_stride, row_stride):
        layouts.append(MatrixLayout(rows, cols, ROW_MAJOR, _leading(cols, rows, row_stride)))
    return tuple(layouts)


def _is_legal(inner: int, outer: int, inner_stride: int, outer_stride: int) -> bool:
    if inner == 0 or outer == 0:
        return True
    return (inner == 1 or inner_stride == 1) and (outer == 1 or outer_stride >= inner)


def _leading(inner: int, outer: int, outer_stride: int) -> int:
    return outer_stride if outer > 1 and inner > 0 else max(inner, 1)


def blas_layout(
    rows: int, cols: int, row_stride: int, col_stride: int, *, prefer: str = COL_MAJOR
) -> MatrixLayout | None:
    """One of :func:`blas_layouts`, of order ``prefer`` if there is a choice; ``None`` if a copy is needed."""
    layouts = blas_layouts(rows, cols, row_stride, col_stride)
    return next((layout for layout in layouts if layout.order == prefer), layouts[0] if layouts else None)


def obstacle(rows: int, cols: int, row_stride: int, col_stride: int) -> str | None:
    """Why no BLAS reads this matrix in place, in words; ``None`` if one does."""
    if blas_layouts(rows, cols, row_stride, col_stride):
        return None
    strides = [s for extent, s in ((rows, row_stride), (cols, col_stride)) if extent > 1]
    where = f"strides ({row_stride}, {col_stride}) of a {rows} x {cols} matrix"
    if any(s < 0 for s in strides):
        return f"{where}: a stride is negative"
    if any(s == 0 for s in strides):
        return f"{where}: a stride is zero, it is broadcast"
    if 1 not in strides:
        return f"{where}: neither rows nor columns are contiguous"
    return f"{where}: rows or columns overlap"


def merge_axes(
    extents: tuple[int, ...], *strides: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """The same index space with as few axes as possible, for several operands at once.

    Axes of extent 1 go. Neighbours become one axis where every operand steps through them evenly (so two
    broadcast axes merge, too). Order is kept: the n-th index tuple, counted with the last axis fastest, has the
    same offset in every operand before and after. Used for batches: one axis left means one strided batch.

    Returns:
        the extents, and for each operand its strides. No axes are left for a single element.
    """
    merged: list[int] = []
    steps: list[list[int]] = [[] for _ in strides]
    for axis, extent in enumerate(extents):
        if extent == 1:
            continue
        here = [operand[axis] for operand in strides]
        if merged and all(outer[-1] == s * extent for outer, s in zip(steps, here, strict=True)):
            merged[-1] *= extent
            for outer, s in zip(steps, here, strict=True):
                outer[-1] = s
        else:
            merged.append(extent)
            for outer, s in zip(steps, here, strict=True):
                outer.append(s)
    return tuple(merged), tuple(tuple(s) for s in steps)


def broadcast_strides(
    shape: tuple[int, ...], strides: tuple[int, ...], target: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Strides under which the array reads as ``target`` by NumPy's rules; ``None`` if it does not broadcast."""
    missing = len(target) - len(shape)
    if missing < 0:
        return None
    result = [0] * missing
    for extent, stride, wanted in zip(shape, strides, target[missing:], strict=True):
        if extent != wanted and extent != 1:
            return None
        result.append(0 if extent == 1 else stride)
    return tuple(result)
