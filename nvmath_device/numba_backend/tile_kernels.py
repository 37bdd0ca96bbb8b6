# SPDX-License-Identifier: Apache-2.0
"""The kernels that a choice of tiles is tried with, and arrays for them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda
from numba.cuda import types

import nvmath_device as nd
from nvmath_device.descriptors import ROW_MAJOR, GemmDescriptor, LeadingDimension, MatrixLayout
from nvmath_device.dtypes import ElementType
from nvmath_device.numba_backend.element_types import element_numba


def product_kernel(mm: Any, depth: int) -> Any:
    """A kernel of ``nd.jit`` for a whole product, whose group is an argument: one code for all groups and shapes."""

    @nd.jit
    def product(a: Any, b: Any, c: Any, rows: Any, columns: Any, group: Any) -> None:
        i, j = nd.grouped_tile(cuda.blockIdx.x, rows, columns, group)
        mm.multiply(a, b, i, j, depth).store(c)

    return product


def product_types(descriptor: GemmDescriptor) -> tuple[Any, ...]:
    """Types of that kernel's arguments, for the matrices of a product as they are stored."""
    kinds = [
        ("C" if layout.order == ROW_MAJOR else "F") if layout.is_tight else "A" for layout in stored_layouts(descriptor)
    ]
    elements = [element_numba(t) for t in descriptor.precision]
    arrays = [types.Array(t, 2, kind) for t, kind in zip(elements, kinds, strict=True)]
    return (*arrays, types.int64, types.int64, types.int64)


def stored_layouts(descriptor: GemmDescriptor) -> tuple[MatrixLayout, ...]:
    """Of A, B and C; without padding where that was left to be suggested."""
    if isinstance(descriptor.leading_dimension, LeadingDimension):
        return descriptor.layouts
    return descriptor.replace(leading_dimension=None).layouts


def sums_kernel(element: ElementType) -> Any:
    """A kernel that adds to ``sums``, row by row, a block each, a row's elements times weights, in float64."""
    number = np.float32 if element.name == "bfloat16" else np.float64  # Numba makes float64 of all others

    @nd.jit
    def weighted_sums(c: Any, weights: Any, sums: Any) -> None:
        row = cuda.blockIdx.x
        total = 0.0
        for column in range(cuda.threadIdx.x, c.shape[1], cuda.blockDim.x):
            total += number(c[row, column]) * weights[column]
        cuda.atomic.add(sums, row, total)

    return weighted_sums


def to_device(numbers: np.ndarray[Any, Any], layout: MatrixLayout, element: ElementType) -> Any:
    """A matrix on the device, of the type that kernels see, with this storage: rows or columns, padding included."""
    if element.name == "bfloat16":  # Numba copies its bits only
        stored = cuda.to_device(_ordered(numbers.view(np.uint16), layout)).view(element.dtype)
    else:
        bits = numbers.view(np.uint8) if element.is_float and element.itemsize == 1 else numbers
        stored = cuda.to_device(_ordered(bits, layout))
    return stored if layout.is_tight else stored[: layout.rows, : layout.cols]


def _ordered(numbers: np.ndarray[Any, Any], layout: MatrixLayout) -> np.ndarray[Any, Any]:
    lines = numbers.reshape(-1, layout.ld)
    return lines if layout.order == ROW_MAJOR else lines.T


def address(array: Any) -> int:
    """Of an array on the device."""
    return int(array.device_ctypes_pointer.value)


def vector_to_device(numbers: np.ndarray[Any, Any]) -> Any:
    """Numbers on the device."""
    return cuda.to_device(numbers)
