# SPDX-License-Identifier: Apache-2.0
"""Arguments of products as a user gives them, read into views and numbers. Nothing is computed or launched here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError, UnsupportedError
from nvmath_device.host.array_view import CPU, ArrayView, type_name
from nvmath_device.host.arrays import package_of, view
from nvmath_device.host.cublaslt_enums import CudaDataType
from nvmath_device.host.gemm_types import read_scalar
from nvmath_device.host.lt_execution import Scalars
from nvmath_device.host.options import MatmulQuantizationScales, matrix_qualifiers_dtype
from nvmath_device.host.problem import SCALES, Problem
from nvmath_device.host.streams import stream_handle


def read_arrays(arrays: Mapping[str, Any], stream: Any) -> tuple[dict[str, ArrayView], int]:
    """Views of operands, A's first, and the handle of the stream they are going to be used on."""
    names = iter(arrays)
    first = next(names)
    package = package_of(arrays[first])
    handle = None if stream is None else stream_handle(stream, package, CPU)
    views = {first: view(arrays[first], first, stream=handle)}
    device = views[first].device
    handle = stream_handle(stream, package if device.kind == "cuda" else "generic", device)
    for name in names:
        views[name] = view(arrays[name], name, stream=handle)
    return views, handle


def read_qualifiers(qualifiers: Any, count: int) -> tuple[bool, bool]:
    """Whether A and B are conjugated."""
    if qualifiers is None:
        return False, False
    array = np.asarray(qualifiers)
    if array.dtype != matrix_qualifiers_dtype:
        raise ArgumentTypeError(f"qualifiers: an array of {array.dtype}; give one of matrix_qualifiers_dtype")
    if array.shape not in {(2,), (count,)}:
        raise InvalidArgumentError(
            f"qualifiers: the shape {array.shape} is not allowed; give one for each of {count} operands"
        )
    conj = [bool(x) for x in array["is_conjugate"]]
    if any(conj[2:]):
        raise UnsupportedError("qualifiers: C cannot be conjugated; pass a conjugated copy")
    return conj[0], conj[1]


def read_factors(problem: Problem, alpha: Any, beta: Any) -> tuple[Any, Any]:
    """alpha and beta in the scale type."""
    if problem.has_c and beta is None:
        raise InvalidArgumentError("beta: C is given, so its factor has to be, too; give beta=1 to add C as it is")
    if not problem.has_c and beta is not None and beta != 0:
        raise InvalidArgumentError(f"beta: {beta!r} is given, and there is no C; give C or leave beta out")
    scale = problem.types.scale
    return (
        read_scalar(1 if alpha is None else alpha, scale, argument="alpha"),
        read_scalar(0 if beta is None else beta, scale, argument="beta"),
    )


class Factors:
    """alpha and beta as they were given, and in each scale type that a product wanted, in memory that stays."""

    def __init__(self, alpha: Any, beta: Any) -> None:
        self._given = alpha, beta
        self._scalars: dict[CudaDataType, Scalars] = {}

    def of(self, problem: Problem) -> Scalars:
        """For one product. Raises what :func:`read_factors` raises."""
        found = self._scalars.get(problem.types.scale)
        if found is None:
            scalars = Scalars(problem, *read_factors(problem, *self._given))
            found = self._scalars[problem.types.scale] = scalars
        return found

    def set(self, alpha: Any, beta: Any) -> None:
        """Change those that are not ``None``, for all products, or raise and change nothing."""
        old_alpha, old_beta = self._given
        given = old_alpha if alpha is None else alpha, old_beta if beta is None else beta
        read = [(scalars, read_factors(scalars.problem, *given)) for scalars in self._scalars.values()]
        self._given = given
        for scalars, factors in read:
            scalars.set(*factors)


def read_scales(scales: MatmulQuantizationScales, handle: int) -> dict[str, Any]:
    """Scales by operand: a float, or a view of one float32 number on a GPU."""
    read: dict[str, Any] = {}
    for name in SCALES:
        value = getattr(scales, name)
        if value is None:
            continue
        if isinstance(value, (int, float, np.generic)) and not isinstance(value, bool):
            read[name] = float(value)
            continue
        argument = f"quantization_scales.{name}"
        number = view(value, argument, stream=handle)
        if number.size != 1 or number.element.name != "float32" or number.is_complex:
            kind = type_name(number.element, number.is_complex)
            raise InvalidArgumentError(
                f"{argument}: {kind} of shape {number.shape}; give one float32 number for the whole matrix: scales of "
                "rows or blocks are not offered, on any device"
            )
        read[name] = float(np.asarray(value).reshape(())) if number.device.kind == "cpu" else number
    return read


def read_inputs(inputs: Mapping[str, Any] | None, handle: int) -> dict[str, ArrayView]:
    """Views of an epilog's inputs by name."""
    if inputs is not None and not isinstance(inputs, Mapping):
        raise ArgumentTypeError(
            f"epilog_inputs: a {type(inputs).__name__}; give a dict of arrays by name, such as 'bias'"
        )
    return {str(n): view(array, f"epilog_inputs[{n!r}]", stream=handle) for n, array in (inputs or {}).items()}
