# SPDX-License-Identifier: Apache-2.0
"""Between the element table and Numba's types."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba.cuda import types
from numba.cuda.np import numpy_support

from nvmath_device.dtypes import ElementType, ValueType, element_type


@cache
def element_numba(element: ElementType) -> Any:
    """The Numba type of a real element; fp8 is its bits, ``uint8``."""
    return getattr(types, element.numba)


@cache
def value_numba(value: ValueType) -> Any:
    """The Numba type of a value: a number, a complex number, or a record of its components."""
    if value.components == 1:
        return element_numba(value.element)
    return numba_type(value.dtype)


@cache
def numba_type(dtype: np.dtype[Any]) -> Any:
    """Like Numba's ``from_dtype`` with bfloat16 and fp8 added.

    Members of Numba's records must be NumPy's own types, so a bfloat16 in a record is its bits, ``uint16``.
    """
    if dtype.names:
        members = [(name, dtype.fields[name][0], dtype.fields[name][1]) for name in dtype.names]  # type: ignore[index]
        fields = [(name, {"type": _member_type(sub), "offset": offset}) for name, sub, offset in members]
        return types.Record(fields, dtype.itemsize, aligned=False)
    if dtype.kind == "V" or dtype.name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        return element_numba(element_type(dtype))
    return numpy_support.from_dtype(dtype)


def _member_type(dtype: np.dtype[Any]) -> Any:
    found = numba_type(dtype)
    return types.uint16 if found == types.bfloat16 else found


def holds(dtype: Any, value: ValueType) -> bool:
    """Whether elements of a Numba array of ``dtype`` are values of this type, bit for bit.

    Besides the value's own type: Numba's and other libraries' vector types, and records, of the same
    components.
    """
    if dtype == value_numba(value):
        return True
    component = element_numba(value.element)
    if value.components > 1:
        base, count = getattr(dtype, "base_type", None), getattr(dtype, "num_elements", None)
        if base == component and count == value.components:
            return True
        if isinstance(dtype, types.Record):
            members = [dtype.typeof(name) for name in dtype.fields]
            return dtype.size == value.itemsize and members == [component] * value.components
    return False


def holds_components(dtype: Any, value: ValueType) -> bool:
    """Whether a 1-D array of ``dtype`` can hold the value's components one by one."""
    return value.components > 1 and dtype == element_numba(value.element)


def wanted(value: ValueType) -> str:
    """How to say in an error what would be right."""
    own = str(value_numba(value)) if value.components == 1 else str(value)
    if value.element.itemsize == 1 and value.element.is_float:
        return f"{value.element} (as its bits, uint8)"
    if value.components == 1:
        return own.replace("__nv_", "")
    return f"{own} (or, in a 1-D array, its components as {value.element})"


def scalar_type(value: ValueType) -> Any:
    """The Numba type alpha and beta are converted to before they become a value of this type.

    Kernel code has no complex number of half, bfloat16 or integer parts: those come as complex64, or as an
    integer that is the real part.
    """
    if value.components == 1:
        return element_numba(value.element)
    if value.element.is_float:
        return types.complex128 if value.element.name == "float64" else types.complex64
    return element_numba(value.element)
