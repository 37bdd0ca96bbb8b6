# SPDX-License-Identifier: Apache-2.0
"""A product on the CPU, from a :class:`~nvmath_device.host.problem.Problem` and NumPy arrays.

It knows operands by their logical axes alone: strides are NumPy's business, and nothing here asks how cuBLASLt is
told about a matrix. What :func:`~nvmath_device.host.problem.plan_problem` has checked is not checked again.

Where numbers are rounded, in this order:

- Operands are exact. A fast compute type rounds float32 ones to nearest to its own type; tensor cores may cut tf32.
- Products are summed in float32, or float64 for float64; sums of int8 are exact, and modulo 2**32 under an integer
  compute type. Sums of fp16 are float32, too, under ``COMPUTE_16F``, where a GPU may round more often, and overflow.
- alpha and beta are rounded to the scale type, scales to float32. Everything after the sums is computed in the scale
  type, or in float32 if that is fp16; gradients of a bias are added up in float64.
- The result and every auxiliary array are rounded once, from there: to nearest, ties to even, fp8 and int8 saturating.

The order of additions is not a GPU's, so results agree to the error bounds of the types, not bit by bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from nvmath_device import reference, reference_epilogs
from nvmath_device.dtypes import ElementType, ValueType, bfloat16, float16, float32, int8, tfloat32
from nvmath_device.host.cublaslt_enums import ComputeType
from nvmath_device.host.gemm_types import element_of
from nvmath_device.host.problem import Output, Problem

Array = np.ndarray[Any, np.dtype[Any]]

Arrays = Mapping[str, Array]
Scales = Mapping[str, float]

# What float32 operands are rounded to.
_FAST: dict[ComputeType, ElementType] = {
    ComputeType.COMPUTE_32F_FAST_16F: float16,
    ComputeType.COMPUTE_32F_FAST_16BF: bfloat16,
    ComputeType.COMPUTE_32F_FAST_TF32: tfloat32,
}
_INTEGER = (ComputeType.COMPUTE_32I, ComputeType.COMPUTE_32I_PEDANTIC)


def compute(
    problem: Problem, arrays: Arrays, *, alpha: Any = 1, beta: Any = 0, scales: Scales | None = None
) -> dict[str, Array]:
    """D as ``"d"``, of the shape ``problem.shapes.result``, and the arrays of ``problem.outputs`` by their names.

    All are new arrays, apart from the operands, in the dtype of their element type. How they lie in memory is not
    promised.

    - C is read only if beta, in the scale type, is not 0. A and B are read even if alpha is 0, so their NaN spreads.
    - Padding of ``relu_aux`` and ``gelu_aux`` is 0 here; a GPU leaves it undefined, so nobody may rely on it.
    - A bit of ``relu_aux`` is set where the value before RELU is greater than 0: not at 0, not at NaN. A backward RELU
      gives 0 where the bit is not set, also for infinity and NaN.
    - ``bgrada`` and ``bgradb`` sum op(A) and op(B) as given: without alpha, not rounded to a fast compute type.
    - ``result_amax`` and ``aux_amax`` are the largest over the whole batch, 0 for no elements, NaN if there is one.
    - With an integer result, what alpha or beta make infinite or NaN becomes some integer.
    - ``problem.fast_accumulation`` is without effect.

    Args:
        arrays: ``"a"``, ``"b"``, ``"c"`` where there is a C, and what the epilog needs of ``"bias"``, ``"relu_aux"``
            and ``"gelu_aux"``: of the shapes and element types that the problem was planned for, as
            ``arrays.as_numpy`` gives them. So strides are any, and the problem says what is conjugated.
        alpha, beta: numbers; rounded to the scale type.
        scales: a factor for each name in ``problem.scaled``.

    Raises:
        ArgumentTypeError: a complex alpha or beta for a real product.
    """
    scales = scales or {}
    with np.errstate(over="ignore", invalid="ignore"):
        parts = _combination(problem, arrays, alpha, beta, scales)
        if problem.types.is_complex or not problem.types.d.is_float:  # these have no epilogs
            return {"d": _stored(parts, problem)}
        before = _with_bias(parts[0], problem, arrays)
        after = _with_activation(before, problem, arrays)
        results = {out.name: _auxiliary(out, problem, arrays, before, after) for out in problem.outputs}
        if "d" in problem.scaled:
            after = after * np.float32(scales["d"])
        return {"d": _stored([after], problem), **results}


# -- alpha op(A) op(B) + beta C -----------------------------------------------------------------------------


def _combination(problem: Problem, arrays: Arrays, alpha: Any, beta: Any, scales: Scales) -> reference.Parts:
    """By components, of the shape (*batch, m, n), in the dtype of the scale type's sums."""
    types, shapes = problem.types, problem.shapes
    alpha_parts = _scalar(alpha, "alpha", problem, scales, of=("a", "b"))
    beta_parts = _scalar(beta, "beta", problem, scales, of=("c",))
    sums = np.dtype(np.int32) if types.compute in _INTEGER else alpha_parts[0].dtype
    products = reference.product_type(types.a, types.b, shapes.k, sums)
    return reference.gemm_parts(
        _factor(arrays["a"].reshape(shapes.a), types.a, products, problem.conj_a, problem, "a"),
        _factor(arrays["b"].reshape(shapes.b), types.b, products, problem.conj_b, problem, "b"),
        _addend(arrays["c"], problem) if problem.has_c else None,
        alpha=alpha_parts, beta=beta_parts, sums=sums,
    )  # fmt: skip


def _scalar(value: Any, name: str, problem: Problem, scales: Scales, *, of: tuple[str, ...]) -> reference.Parts:
    """alpha or beta by components, times the scales of what it multiplies."""
    element, is_complex = element_of(problem.types.scale)
    factor = np.float64(1)
    for scaled in problem.scaled.intersection(of):
        factor *= np.float32(scales[scaled])
    parts = reference.scalar_parts(value, element, 2 if is_complex else 1, name)
    return [(part * factor).astype(part.dtype) for part in parts]


def _components(matrix: Array, element: ElementType, problem: Problem, name: str) -> reference.Parts:
    return reference.parts_of(matrix, ValueType(element, 2 if problem.types.is_complex else 1), name)


def _factor(
    matrix: Array, element: ElementType, products: np.dtype[Any], conj: bool, problem: Problem, name: str
) -> reference.Parts:
    parts = _components(matrix, element, problem, name)
    narrower = _FAST.get(problem.types.compute) if element is float32 else None
    if narrower is not None:
        parts = [reference.round_to(part, narrower) for part in parts]
    return reference.factor_parts(parts, element, products, conj=conj)


def _addend(c: Array, problem: Problem) -> reference.Parts:
    """C so that it broadcasts to (*batch, m, n): the axes that a result of vectors lacks are put back."""
    shapes = problem.shapes
    matrix = c.reshape(shapes.matrix_result) if c.shape == shapes.result else c
    parts = _components(matrix, problem.types.c, problem, "c")
    return [parts[0], -parts[1]] if problem.conj_c else parts


# -- epilogs ------------------------------------------------------------------------------------------------


def _with_bias(x: Array, problem: Problem, arrays: Arrays) -> Array:
    if problem.bias_shape is None:
        return x
    return x + arrays["bias"].reshape(problem.bias_shape).astype(x.dtype)


def _with_activation(x: Array, problem: Problem, arrays: Arrays) -> Array:
    """The activation of ``x``, or ``x`` times its derivative at what ``relu_aux`` or ``gelu_aux`` keeps."""
    traits, m, n = problem.traits, problem.shapes.m, problem.shapes.n
    if not traits.backward:
        functions = {"relu": reference_epilogs.relu, "gelu": reference_epilogs.gelu}
        return functions[traits.activation](x) if traits.activation else x
    if traits.activation == "relu":
        axis, extent = (-2, m) if problem.along == "rows" else (-1, n)
        positive = reference_epilogs.unpack_mask(arrays["relu_aux"], extent, axis)
        return np.where(positive, x, np.zeros((), x.dtype))
    before = arrays["gelu_aux"][..., :m, :n].astype(x.dtype)
    return x * reference_epilogs.gelu_derivative(before)


def _auxiliary(output: Output, problem: Problem, arrays: Arrays, before: Array, after: Array) -> Array:
    """An array of ``problem.outputs``, from what is known before and after the activation."""
    shapes, along_rows = problem.shapes, problem.along == "rows"
    if output.name == "relu_aux":
        return reference_epilogs.pack_mask(before > 0, axis=-2 if along_rows else -1)
    if output.name == "gelu_aux":
        padded = np.zeros(output.shape, output.element.dtype)
        padded[..., : shapes.m, : shapes.n] = reference.round_to(before, output.element)
        return padded
    if output.name in ("result_amax", "aux_amax"):
        numbers = after if output.name == "result_amax" else before
        return np.abs(numbers).max(initial=0).astype(output.element.dtype).reshape(output.shape)
    if output.name == "bgrada":
        sums = reference_epilogs.sum_of_columns(arrays["a"].reshape(shapes.a).astype(before.dtype))
    elif output.name == "bgradb":
        sums = reference_epilogs.sum_of_rows(arrays["b"].reshape(shapes.b).astype(before.dtype))
    else:
        sums = (reference_epilogs.sum_of_columns if along_rows else reference_epilogs.sum_of_rows)(after)
    sums = np.broadcast_to(sums, (*shapes.batch, sums.shape[-1]))
    return reference.round_to(sums, output.element).reshape(output.shape)


# -- storing ------------------------------------------------------------------------------------------------


def _stored(parts: reference.Parts, problem: Problem) -> Array:
    """D of the problem's shape, rounded to its type."""
    element = problem.types.d
    if element is int8 and parts[0].dtype.kind == "f":
        parts = [np.clip(np.rint(part), -128, 127) for part in parts]
    value_type = ValueType(element, len(parts))
    stored = reference.join_parts([reference.store_as(part, element) for part in parts], value_type)
    return stored.reshape(problem.shapes.result)
