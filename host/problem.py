# SPDX-License-Identifier: Apache-2.0
"""What one product is, in logical terms: shapes, types, conjugation, epilog, and the order of the result.

:func:`plan_problem` is pure and the only place that checks operands against each other. CPU and GPU execution both
follow its answer; how cuBLASLt is told about it is the business of ``lt_plan`` alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from nvmath_device.descriptors import COL_MAJOR, ROW_MAJOR
from nvmath_device.dtypes import ElementType, float32, uint8
from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError, UnsupportedError
from nvmath_device.host.array_view import ArrayView, type_name
from nvmath_device.host.cublaslt_enums import CudaDataType
from nvmath_device.host.epilogs import EPILOGS, AuxLayout, EpilogTraits, MatmulEpilog, aux_layout
from nvmath_device.host.gemm_types import GemmTypes, is_fp8, resolve_types, why_no_epilogs
from nvmath_device.host.matrix_strides import broadcast_strides
from nvmath_device.host.options import MatmulOptions, MatmulPlanPreferences
from nvmath_device.host.shapes import Shape, Shapes, plan_shapes, strides_as_result

Along = Literal["rows", "columns"]
_ORDER_OF: dict[str, str] = {"rows": COL_MAJOR, "columns": ROW_MAJOR}
_ALONG_OF: dict[str, Along] = {COL_MAJOR: "rows", ROW_MAJOR: "columns"}
SCALES = ("a", "b", "c", "d")


@dataclass(frozen=True)
class Output:
    """An array that comes back beside the result. ``order`` lists its axes, slowest first."""

    name: str
    shape: Shape
    element: ElementType
    order: tuple[int, ...]


@dataclass(frozen=True)
class Problem:
    """D = epilog(alpha op(A) op(B) + beta C + bias), with nothing left open but the numbers.

    Attributes:
        shapes: extents and batch; see :class:`~nvmath_device.host.shapes.Shapes`.
        types: element types of the operands, compute type and scale type.
        conj_a, conj_b, conj_c: A, B or C is conjugated before use.
        has_c: C takes part. ``c_shape`` in ``shapes.c``.
        epilog: what is applied before the result is stored.
        order: ``"col_major"`` or ``"row_major"``: how the matrices of D lie where nothing else decides.
            Bias, masks and gradients run along rows in the first and along columns in the second.
        bias_shape: the bias broadcast to the batch, as (*batch or ones, m, 1) or (..., 1, n); ``None``: no bias.
        outputs: the auxiliary arrays that are made.
        scaled: which of a, b, c, d have a scale.
        result_amax, aux_amax: the largest absolute value of D (of the aux output) before scaling is returned, too.
        fast_accumulation: fp8 sums need not be promoted.
    """

    shapes: Shapes
    types: GemmTypes
    conj_a: bool
    conj_b: bool
    conj_c: bool
    has_c: bool
    epilog: MatmulEpilog
    order: str
    bias_shape: Shape | None
    outputs: tuple[Output, ...]
    scaled: frozenset[str]
    result_amax: bool
    aux_amax: bool
    fast_accumulation: bool

    @property
    def traits(self) -> EpilogTraits:
        return EPILOGS[self.epilog]

    @property
    def along(self) -> Along:
        """The direction of bias, masks and gradients."""
        return _ALONG_OF[self.order]

    @property
    def aux(self) -> AuxLayout | None:
        """How the auxiliary matrix of one product lies."""
        name = self.traits.aux
        return aux_layout(name, self.shapes.m, self.shapes.n, self.along) if name else None

    @property
    def result_order(self) -> tuple[int, ...]:
        """Axes of a new result from the slowest to the fastest. The batch is in C order."""
        axes = tuple(range(len(self.shapes.result)))
        whole = len(self.shapes.result) - len(self.shapes.batch) == 2
        return (*axes[:-2], axes[-1], axes[-2]) if whole and self.order == COL_MAJOR else axes


def plan_problem(
    a: ArrayView,
    b: ArrayView,
    c: ArrayView | None = None,
    *,
    out: ArrayView | None = None,
    conj: tuple[bool, bool] = (False, False),
    epilog: MatmulEpilog = MatmulEpilog.DEFAULT,
    epilog_inputs: Mapping[str, ArrayView] | None = None,
    scaled: frozenset[str] = frozenset(),
    options: MatmulOptions | None = None,
    preferences: MatmulPlanPreferences | None = None,
) -> Problem:
    """What is to be computed, or the reason why it cannot be.

    ``conj`` comes on top of lazy conjugation of A and B. The direction of the bias decides the order of D, or that of
    the aux input; without them the order of ``out`` does, or of C, or of A. An ``out`` of another order gets a copy.

    Raises:
        InvalidArgumentError, ArgumentTypeError: naming the operand, what it is and what would fit.
        UnsupportedError: well formed, but cuBLASLt has no such product.
    """
    options = options or MatmulOptions()
    preferences = preferences or MatmulPlanPreferences()
    inputs = epilog_inputs or {}
    traits = EPILOGS[epilog]
    if options.block_scaling:
        raise UnsupportedError(
            "block_scaling: products with a scale for each block (MXFP8, NVFP4) are not offered, on any device; give "
            "one scale a matrix in quantization_scales"
        )
    _check_inputs(epilog, traits, inputs)
    shapes = plan_shapes(a.shape, b.shape, c.shape if c is not None else None)
    types = _types(a, b, c, out, inputs, epilog, options, preferences)
    if out is not None:
        _check_out(out, shapes, types)
    order = _order(a, b, c, out, shapes, traits, inputs)
    along = _ALONG_OF[order]
    bias_shape = _bias(inputs["bias"], shapes, a)[1] if traits.bias else None
    if traits.aux and traits.backward:
        _check_aux_type(inputs[traits.aux], traits.aux, types)
    _check_scales(scaled, types)
    if options.result_amax and not is_fp8(types.d):
        raise UnsupportedError(f"result_amax: only fp8 results have it, and the result is {types.d}")
    makes_fp8_aux = traits.aux == "gelu_aux" and not traits.backward and is_fp8(types.aux)
    if preferences.epilog.aux_amax and not makes_fp8_aux:
        raise UnsupportedError("aux_amax: only an fp8 gelu_aux output has it")
    return Problem(
        shapes, types, a.is_complex and a.conjugated ^ conj[0], b.is_complex and b.conjugated ^ conj[1],
        c is not None and c.is_complex and c.conjugated, c is not None,
        epilog, order, bias_shape,
        _outputs(shapes, types, traits, along, options, preferences), scaled, options.result_amax,
        preferences.epilog.aux_amax, bool(options.fast_accumulation),
    )  # fmt: skip


# -- inputs and types ---------------------------------------------------------------------------------------


def _check_inputs(epilog: MatmulEpilog, traits: EpilogTraits, inputs: Mapping[str, Any]) -> None:
    wanted, given = set(traits.inputs), set(inputs)
    if wanted == given:
        return
    needs = f"needs {', '.join(traits.inputs)}" if wanted else "takes no inputs"
    problems = [f"{name} is missing" for name in sorted(wanted - given)]
    problems += [f"{name} is not for it" for name in sorted(given - wanted)]
    raise InvalidArgumentError(f"epilog_inputs: {epilog.name} {needs}; {', '.join(problems)}")


def _types(
    a: ArrayView, b: ArrayView, c: ArrayView | None, out: ArrayView | None, inputs: Mapping[str, ArrayView],
    epilog: MatmulEpilog, options: MatmulOptions, preferences: MatmulPlanPreferences,
) -> GemmTypes:  # fmt: skip
    result: CudaDataType | ElementType | None = options.result_type
    if result is None and out is not None:
        result = out.element
    of_epilog = () if a.is_complex else inputs.items()  # complex products have none, which is said below
    for name, operand in (("b", b), ("c", c), ("out", out), *of_epilog):
        if operand is not None and operand.is_complex != a.is_complex:
            kinds = [type_name(x.element, x.is_complex) for x in (a, operand)]
            raise UnsupportedError(
                f"a and {name}: {kinds[0]} with {kinds[1]}; cuBLASLt does not mix real and complex, convert one of them"
            )
    bias = inputs["bias"].element if "bias" in inputs else None
    types = resolve_types(
        a.element, b.element, None if c is None else c.element, is_complex=a.is_complex,
        compute_type=options.compute_type, scale_type=options.scale_type, result_type=result, bias=bias,
        aux_type=preferences.epilog.aux_type,
    )  # fmt: skip
    if epilog is not MatmulEpilog.DEFAULT and (why := why_no_epilogs(types)):
        raise UnsupportedError(f"epilog: {epilog.name} is not offered: {why}")
    if types.is_fp8 and epilog in (MatmulEpilog.BGRADA, MatmulEpilog.BGRADB):
        raise UnsupportedError(
            f"epilog: {epilog.name} is not offered for fp8, whose products need K as the contiguous axis while the sum "
            "over K needs another; add up the operand by itself"
        )
    return types


def _check_out(out: ArrayView, shapes: Shapes, types: GemmTypes) -> None:
    if out.shape != shapes.result:
        raise InvalidArgumentError(f"out: the shape {out.shape} does not fit; the result has the shape {shapes.result}")
    if out.element is not types.d:
        raise ArgumentTypeError(f"out: its elements are {out.element}, and the result is {types.d}")
    if out.readonly:
        raise InvalidArgumentError("out: the array is read-only")
    if out.conjugated:
        raise InvalidArgumentError("out: the tensor is conjugated lazily and cannot be written in place")


def _check_scales(scaled: frozenset[str], types: GemmTypes) -> None:
    of = {"a": types.a, "b": types.b, "c": types.c, "d": types.d}
    for name in SCALES:
        if name in scaled and not is_fp8(of[name]):
            matrix = "the result" if name == "d" else name
            raise UnsupportedError(
                f"quantization_scales: {name} is given, but only fp8 matrices have a scale and {matrix} is {of[name]}; "
                "use alpha"
            )


# -- the order of D -----------------------------------------------------------------------------------------


def _order(
    a: ArrayView, b: ArrayView, c: ArrayView | None, out: ArrayView | None, shapes: Shapes, traits: EpilogTraits,
    inputs: Mapping[str, ArrayView],
) -> str:  # fmt: skip
    """The order in which D is computed. An ``out`` of the other order is then filled by a copy."""
    if traits.bias:
        wanted = _direction_of_bias(inputs["bias"], shapes, a)
        if wanted is not None:
            return _ORDER_OF[wanted]
    preferred = _preferred_order(a, b, c, out, shapes)
    if traits.aux and traits.backward:
        return _ORDER_OF[_direction_of_aux(inputs[traits.aux], traits.aux, shapes, _ALONG_OF[preferred])]
    return preferred


def _preferred_order(a: ArrayView, b: ArrayView, c: ArrayView | None, out: ArrayView | None, shapes: Shapes) -> str:
    votes = []
    if out is not None:
        votes.append(_order_of_result(strides_as_result(out.shape, out.strides, shapes)[-2:], shapes.m, shapes.n))
    if c is not None and (c.shape == shapes.result or c.shape[-2:] == (shapes.m, shapes.n)):
        votes.append(_order_of_result(strides_as_result(c.shape, c.strides, shapes)[-2:], shapes.m, shapes.n))
    if a.ndim > 1:
        votes.append(_order_of(a.strides[-2:], *shapes.a[-2:]))
    if b.ndim > 1:
        votes.append(_order_of(b.strides[-2:], *shapes.b[-2:]))
    return next((vote for vote in votes if vote), ROW_MAJOR)


def _order_of_result(strides: tuple[int, ...], rows: int, cols: int) -> str | None:
    """As :func:`_order_of`, but a row or column with gaps has the order in which it can be written in place."""
    row_stride, col_stride = strides
    if rows == 1 and col_stride > 1:
        return COL_MAJOR
    if cols == 1 and row_stride > 1:
        return ROW_MAJOR
    return _order_of(strides, rows, cols)


def _order_of(strides: tuple[int, ...], rows: int, cols: int) -> str | None:
    """The order of a matrix; ``None`` for vectors and other matrices that are both or neither."""
    if rows <= 1 or cols <= 1:
        return None
    row_stride, col_stride = strides
    if col_stride == 1 and row_stride != 1:
        return ROW_MAJOR
    if row_stride == 1 and col_stride != 1:
        return COL_MAJOR
    return None


# -- bias ---------------------------------------------------------------------------------------------------


def _direction_of_bias(bias: ArrayView, shapes: Shapes, a: ArrayView) -> Along | None:
    """Along rows or columns; ``None`` for a single number to a product of one element, where both are the same."""
    return _bias(bias, shapes, a)[0]


def _bias(bias: ArrayView, shapes: Shapes, a: ArrayView) -> tuple[Along | None, Shape]:
    """The direction of a bias, and its shape as (..., m, 1) or (..., 1, n)."""
    m, n = shapes.m, shapes.n
    shape = bias.shape
    found: tuple[Along | None, Shape] | None = None
    if len(shape) == 1:
        if shape == (m,):
            found = "rows", (m, 1)
        elif shape == (n,) and a.ndim == 1:  # the result is a vector of n, and so is the bias
            found = "columns", (1, n)
    elif len(shape) >= 2:
        while len(shape) > 2 and shape[0] == 1 and len(shape) > len(shapes.matrix_result):
            shape = shape[1:]
        if shape[-2:] == (m, 1):
            found = "rows", shape
        elif shape[-2:] == (1, n):
            found = "columns", shape
    if found is not None and broadcast_strides(found[1][:-2], (0,) * (len(found[1]) - 2), shapes.batch) is not None:
        return (None if m == n == 1 else found[0]), found[1]
    batch = "*batch, " if shapes.batch else ""
    raise InvalidArgumentError(
        f"epilog_inputs: bias has the shape {bias.shape}, and the result {shapes.matrix_result}; give one number a row "
        f"as ({m},) or ({batch}{m}, 1), or one number a column as (1, {n}) or ({batch}1, {n})"
    )


# -- auxiliary matrices -------------------------------------------------------------------------------------


def _direction_of_aux(aux: ArrayView, name: str, shapes: Shapes, preferred: Along) -> Along:
    """Which way an aux input runs: its shape tells, or its strides where both shapes are the same.

    Raises:
        InvalidArgumentError: it is the aux of no D of this shape.
    """
    m, n = shapes.m, shapes.n
    forms = {along: aux_layout(name, m, n, along) for along in ("rows", "columns")}
    fitting = [along for along, form in forms.items() if aux.shape == (*shapes.batch, form.rows, form.cols)]
    if not fitting:
        rows, columns = forms["rows"], forms["columns"]
        raise InvalidArgumentError(
            f"epilog_inputs: {name} has the shape {aux.shape}; for a result of {shapes.matrix_result} it has "
            f"{(*shapes.batch, rows.rows, rows.cols)} along rows or {(*shapes.batch, columns.rows, columns.cols)} "
            "along columns. Pass what the forward epilog returned"
        )
    if len(fitting) == 1:
        return fitting[0]  # type: ignore[return-value]
    order = _order_of(aux.strides[-2:], forms["rows"].rows, forms["rows"].cols)
    return preferred if order is None else _ALONG_OF[order]


def _check_aux_type(aux: ArrayView, name: str, types: GemmTypes) -> None:
    wanted = uint8 if name == "relu_aux" else types.aux
    if aux.element is not wanted or aux.is_complex:
        raise ArgumentTypeError(
            f"epilog_inputs: {name} has elements of type {type_name(aux.element, aux.is_complex)}; it needs {wanted}"
        )


def _outputs(
    shapes: Shapes, types: GemmTypes, traits: EpilogTraits, along: Along, options: MatmulOptions,
    preferences: MatmulPlanPreferences,
) -> tuple[Output, ...]:  # fmt: skip
    batch, m, n = shapes.batch, shapes.m, shapes.n
    outputs = []
    if traits.aux and not traits.backward:
        form = aux_layout(traits.aux, m, n, along)
        shape = (*batch, form.rows, form.cols)
        axes = tuple(range(len(shape)))
        order = (*axes[:-2], axes[-1], axes[-2]) if along == "rows" else axes
        outputs.append(Output(traits.aux, shape, uint8 if traits.aux == "relu_aux" else types.aux, order))
    if traits.gradient:
        shape = _gradient_shape(traits, shapes, along)
        outputs.append(Output(traits.gradient, shape, types.bias, tuple(range(len(shape)))))
    if options.result_amax:
        outputs.append(Output("result_amax", (1,), float32, (0,)))
    if preferences.epilog.aux_amax:
        outputs.append(Output("aux_amax", (1,), float32, (0,)))
    return tuple(outputs)


def _gradient_shape(traits: EpilogTraits, shapes: Shapes, along: Along) -> Shape:
    """Of a form that is accepted as a bias again, but for bgradb, which has the peer library's."""
    batch, m, n = shapes.batch, shapes.m, shapes.n
    if traits.gradient == "bgradb":
        return (*batch, n, 1) if batch else (n,)
    if traits.gradient == "bgrada" or along == "rows":
        return (*batch, m, 1) if batch else (m,)
    return (*batch, 1, n)
