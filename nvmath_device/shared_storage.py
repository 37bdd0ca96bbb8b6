# SPDX-License-Identifier: Apache-2.0
"""Sizes of one dynamic shared buffer carved into aligned parts."""

from __future__ import annotations

from typing import Any

from nvmath_device.checks import positive_int
from nvmath_device.descriptors import MatrixLayout
from nvmath_device.errors import InvalidArgumentError
from nvmath_device.tensor_layouts import SMEM, Layout


class SharedStorageCalc:
    """Adds up parts of a shared buffer, each at the next address its alignment allows.

    The base is taken to be aligned to 16 bytes, as this package makes it; alignments above that hold relative
    to the base only.
    """

    def __init__(self) -> None:
        self._bytes = 0

    def add(self, alignment: int, *what: Any) -> int:
        """Add a part and return its offset in bytes.

        Forms: ``add(alignment, bytes)``, ``add(alignment, itemsize, elements)``,
        ``add(alignment, itemsize, layout)``, with a :class:`MatrixLayout` or a :class:`Layout`.

        Raises:
            InvalidArgumentError, ArgumentTypeError: naming the argument, its value and what is allowed.
        """
        alignment = positive_int(alignment, argument="alignment")
        if alignment & (alignment - 1):
            raise InvalidArgumentError(f"alignment: {alignment} is not a power of two")
        if len(what) not in (1, 2):
            raise InvalidArgumentError(f"add: give bytes, or itemsize and elements (or a layout); got {what!r}")
        size = positive_int(what[0], argument="bytes" if len(what) == 1 else "itemsize")
        if len(what) == 2:
            size *= _elements(what[1])
        offset = -(-self._bytes // alignment) * alignment
        self._bytes = offset + size
        return offset

    def get(self) -> int:
        """Bytes from the base to the end of the last part."""
        return self._bytes


def _elements(count: Any) -> int:
    """Elements of memory that a layout, or a number, stands for."""
    if isinstance(count, Layout):
        if count.memory != SMEM:
            raise InvalidArgumentError(f"layout: {count!r} is not in shared memory; give one of shared memory")
        return count.cosize
    return count.size if isinstance(count, MatrixLayout) else positive_int(count, argument="elements")
