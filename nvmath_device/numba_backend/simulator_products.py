# SPDX-License-Identifier: Apache-2.0
"""A product of two tiles in simulated kernels, once all threads have come."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from nvmath_device import reference
from nvmath_device.descriptors import CONJ_TRANSPOSED, NON_TRANSPOSED, GemmDescriptor
from nvmath_device.dtypes import ValueType
from nvmath_device.numba_backend.simulator_arguments import Array, Call


class Operands(NamedTuple):
    a: Array
    b: Array
    c: Array
    alpha: Any
    beta: Any


def compute(descriptor: GemmDescriptor, operands: Operands) -> None:
    a, b, c, alpha, beta = operands
    mode = descriptor.transpose_mode
    c[...] = reference.gemm(
        a if mode.a == NON_TRANSPOSED else a.T,
        b if mode.b == NON_TRANSPOSED else b.T,
        c,
        precision=descriptor.precision,
        alpha=alpha,
        beta=beta,
        data_type=descriptor.data_type,  # type: ignore[arg-type]
        conj_a=mode.a == CONJ_TRANSPOSED,
        conj_b=mode.b == CONJ_TRANSPOSED,
    )


def scalar(call: Call, name: str, given: Any, value: ValueType) -> Any:
    """alpha or beta as a kernel passes it on: complex numbers of half or bfloat16 parts come as complex64."""
    number = np.asarray(given)
    if number.ndim or number.dtype.kind not in "biufcV" or number.dtype.names:
        raise call.typing_error(f"wants a number for {name}, got {given!r}")
    is_complex = number.dtype.kind == "c"
    becomes = f"for {name}, which becomes {value.element}, got {given!r}"
    if not value.element.is_float:
        if number.dtype.kind not in "biu":
            raise call.typing_error(f"wants an integer {becomes}")
        return given
    if value.components == 1:
        if is_complex:
            raise call.typing_error(f"wants a real number {becomes}")
        return given
    with np.errstate(over="ignore"):
        return np.complex128(given) if value.element.itemsize == 8 else np.complex64(given)
