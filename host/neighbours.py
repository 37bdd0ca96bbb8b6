# SPDX-License-Identifier: Apache-2.0
"""Products that differ from one in a single respect: what a user could change where cuBLASLt has no algorithm.

Pure. A :class:`Neighbour` can be applied to any request, so that changes can be combined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from nvmath_device.descriptors import COL_MAJOR, ROW_MAJOR
from nvmath_device.dtypes import ElementType, bfloat16, float16, float32, float64, int8, int32
from nvmath_device.errors import NvmathDeviceError
from nvmath_device.host.array_results import dense_strides
from nvmath_device.host.array_view import ArrayView
from nvmath_device.host.epilogs import EPILOGS, MatmulEpilog, aux_layout
from nvmath_device.host.gemm_types import is_fp8, resolve_types
from nvmath_device.host.lt_place import round_up
from nvmath_device.host.options import MatmulEpilogPreferences, MatmulPlanPreferences
from nvmath_device.host.probe import Request, imagine
from nvmath_device.host.problem import Problem
from nvmath_device.host.shapes import Shape

MULTIPLE = 16  # elements; no rule of cuBLASLt wants extents to be multiples of more
ALIGNMENT = 16  # bytes; likewise for addresses
WORKSPACE_LIMIT = 1 << 30  # bytes; more than any algorithm is known to need


class Neighbour(NamedTuple):
    """One change.

    Attributes:
        change: what would be different, to follow "it has one"; ``{workspace_bytes}`` is what the algorithm needs.
        obstacle: what then stands in the way as it is.
        apply: the changed request. May raise what planning raises where the change makes no sense.
        is_exact: nothing else is changed on the way.
    """

    change: str
    obstacle: str
    apply: Callable[[Request], Request]
    is_exact: bool = True


def neighbours(request: Request) -> list[Neighbour]:
    """Changes to a request that make a difference, those of what is computed before those of how it lies."""
    problem = request.problem()
    found = [*_of_epilog(request), *_of_operands(request, problem), *_of_options(request, problem)]
    found += [*_of_result_type(request, problem), *_of_layout(request, problem), *_of_limits(request)]
    return [neighbour for neighbour in found if _differs(neighbour, request)]


def _differs(neighbour: Neighbour, request: Request) -> bool:
    try:
        changed = neighbour.apply(request)
        return (changed.problem(), changed.operands(), _limits(changed)) != (
            request.problem(), request.operands(), _limits(request)
        )  # fmt: skip
    except NvmathDeviceError:
        return False


def _limits(request: Request) -> tuple[object, ...]:
    return request.workspace_limit, request.options, request.preferences


# -- what is computed ---------------------------------------------------------------------------------------


def _of_epilog(request: Request) -> Iterator[Neighbour]:
    epilog = request.epilog
    traits = EPILOGS[epilog]
    if traits.gradient and traits.backward:
        simpler = MatmulEpilog.DRELU if traits.activation == "relu" else MatmulEpilog.DGELU
        yield Neighbour(
            f"with the epilog {simpler.name}", f"the gradient of the bias in the epilog {epilog.name}",
            lambda r: replace(r, epilog=simpler),
        )  # fmt: skip
    if epilog is not MatmulEpilog.DEFAULT:
        yield Neighbour(f"without the epilog {epilog.name}", f"the epilog {epilog.name}", _without_epilog)


def _without_epilog(request: Request) -> Request:
    preferences = replace(request.preferences, epilog=MatmulEpilogPreferences())
    return replace(request, epilog=MatmulEpilog.DEFAULT, inputs={}, preferences=preferences)


def _of_operands(request: Request, problem: Problem) -> Iterator[Neighbour]:
    if problem.shapes.batch:
        yield Neighbour("for a single product, without a batch", f"the batch {problem.shapes.batch}", _single)
    if request.c is not None:
        yield Neighbour("without C", "C", lambda r: replace(r, c=None))
    if problem.conj_a or problem.conj_b:
        yield Neighbour("without conjugation", "the conjugation", lambda r: replace(r, conj=(False, False)))
    if request.scaled:
        yield Neighbour(
            "without quantization_scales", f"the scales of {', '.join(sorted(request.scaled))}",
            lambda r: replace(r, scaled=frozenset()),
        )  # fmt: skip


def _single(request: Request) -> Request:
    """The first product of a batch."""
    shapes = request.problem().shapes
    count = len(shapes.batch)

    def matrix(view: ArrayView) -> ArrayView:
        return _cut(view, max(view.ndim - 2, 0))

    c = request.c
    if c is not None:
        c = _cut(c, count) if c.shape == shapes.result else matrix(c)
    return replace(
        request, a=matrix(request.a), b=matrix(request.b), c=c, out=_cut(request.out, count),
        inputs={name: matrix(view) for name, view in request.inputs.items()},
    )  # fmt: skip


def _cut(view: ArrayView, axes: int) -> ArrayView:
    return view._replace(shape=view.shape[axes:], strides=view.strides[axes:])


# -- options ------------------------------------------------------------------------------------------------


def _of_options(request: Request, problem: Problem) -> Iterator[Neighbour]:
    options, preferences = request.options, request.preferences
    if options.result_amax or preferences.epilog.aux_amax:
        yield Neighbour("without result_amax and aux_amax", "the largest absolute values", _without_amax)
    if options.fast_accumulation:
        yield _option("without fast_accumulation", "fast_accumulation", fast_accumulation=False)
    if options.sm_count_target:
        yield _option("without sm_count_target", "sm_count_target", sm_count_target=None)
    if options.deterministic:
        yield _option("without deterministic", "deterministic", deterministic=False)
    if options.compute_type is not None or options.scale_type is not None:
        by_default = _default_types(request, problem.types.d)
        if by_default is not None and by_default != (problem.types.compute.name, problem.types.scale.name):
            compute, scale = by_default
            yield _option(
                f"with the default compute type {compute} and scale type {scale}",
                f"the compute type {problem.types.compute.name} with the scale type {problem.types.scale.name}",
                compute_type=None, scale_type=None,
            )  # fmt: skip
    usual = MatmulPlanPreferences(limit=preferences.limit, epilog=preferences.epilog)
    if preferences != usual:
        yield Neighbour(
            "with the default preferences", "what the preferences leave of the algorithms",
            lambda r: replace(r, preferences=replace(usual, epilog=r.preferences.epilog)),
        )  # fmt: skip


def _option(change: str, obstacle: str, **values: object) -> Neighbour:
    return Neighbour(change, obstacle, lambda r: replace(r, options=replace(r.options, **values)))  # type: ignore[arg-type]


def _without_amax(request: Request) -> Request:
    options = replace(request.options, result_amax=False)
    epilog = replace(request.preferences.epilog, aux_amax=False)
    return replace(request, options=options, preferences=replace(request.preferences, epilog=epilog))


def _default_types(request: Request, result: ElementType) -> tuple[str, str] | None:
    try:
        types = resolve_types(request.a.element, request.b.element, is_complex=request.a.is_complex, result_type=result)
    except NvmathDeviceError:
        return None
    return types.compute.name, types.scale.name


# -- the result's type --------------------------------------------------------------------------------------


def _of_result_type(request: Request, problem: Problem) -> Iterator[Neighbour]:
    if problem.types.is_complex:
        return
    for element in (float16, bfloat16, float32, float64, int32, int8):
        if element is not problem.types.d:
            yield Neighbour(
                f"with a result of {element}", f"the result's type {problem.types.d}",
                partial(_with_result, element=element),
            )  # fmt: skip


def _with_result(request: Request, element: ElementType) -> Request:
    """Another type of D, and with it of C, of a bias and of a GELU input."""
    types = resolve_types(
        request.a.element, request.b.element, compute_type=request.options.compute_type,
        scale_type=request.options.scale_type, result_type=element,
    )  # fmt: skip
    of = {"bias": types.bias, "gelu_aux": types.aux}
    fp8 = is_fp8(element)
    epilog = replace(request.preferences.epilog, aux_type=None, aux_amax=False)
    return replace(
        request,
        c=None if request.c is None else request.c._replace(element=types.c),
        out=request.out._replace(element=element),
        inputs={name: view._replace(element=of.get(name, view.element)) for name, view in request.inputs.items()},
        scaled=request.scaled if fp8 else request.scaled - {"c", "d"},
        options=replace(request.options, result_type=None, result_amax=False),
        preferences=replace(request.preferences, epilog=epilog),
    )


# -- layout -------------------------------------------------------------------------------------------------


def _of_layout(request: Request, problem: Problem) -> Iterator[Neighbour]:
    yield Neighbour("with arrays without gaps", "the strides", _without_gaps)
    yield Neighbour("with A row-major and B column-major", "the order of A and B", _k_contiguous, False)
    order, other = ("row", "column") if problem.order == ROW_MAJOR else ("column", "row")
    along = "" if not problem.traits.bias else f" and the bias along {'columns' if other == 'row' else 'rows'}"
    yield Neighbour(f"with a {other}-major result{along}", f"the {order}-major result", _other_order, False)
    yield Neighbour(f"with addresses at multiples of {ALIGNMENT} bytes", "the alignment", _aligned)
    shapes = problem.shapes
    m, n, k = (_round_up(extent) for extent in (shapes.m, shapes.n, shapes.k))
    yield Neighbour(
        f"with extents in multiples of {MULTIPLE} and without gaps (m={m} n={n} k={k})",
        f"the extents m={shapes.m} n={shapes.n} k={shapes.k}", _rounded, False,
    )  # fmt: skip


def _map(request: Request, change: Callable[[ArrayView], ArrayView]) -> Request:
    """A request with all arrays changed."""
    return replace(
        request, a=change(request.a), b=change(request.b), c=None if request.c is None else change(request.c),
        out=change(request.out), inputs={name: change(view) for name, view in request.inputs.items()},
    )  # fmt: skip


def _without_gaps(request: Request) -> Request:
    return _map(request, lambda view: _dense(view, view.shape))


def _dense(view: ArrayView, shape: Shape, axes: Shape | None = None) -> ArrayView:
    """An array without gaps, its axes in the order of the old one where no other is given."""
    if axes is None:
        axes = tuple(sorted(range(view.ndim), key=lambda axis: -abs(view.strides[axis])))
    return view._replace(shape=shape, strides=_canonical(shape, dense_strides(shape, axes)))


def _canonical(shape: Shape, strides: Shape) -> Shape:
    return tuple(0 if extent == 1 else stride for extent, stride in zip(shape, strides, strict=True))


def _axes(ndim: int, order: str) -> Shape:
    axes = tuple(range(ndim))
    return axes if order == ROW_MAJOR or ndim < 2 else (*axes[:-2], axes[-1], axes[-2])


def _k_contiguous(request: Request) -> Request:
    a, b = request.a, request.b
    return replace(
        request, a=_dense(a, a.shape, _axes(a.ndim, ROW_MAJOR)), b=_dense(b, b.shape, _axes(b.ndim, COL_MAJOR))
    )


def _aligned(request: Request) -> Request:
    return _map(request, lambda view: view._replace(ptr=max(view.ptr, ALIGNMENT)))


def _other_order(request: Request) -> Request:
    """D in the other order, and with it C and whatever runs along rows or columns; everything without gaps."""
    problem = request.problem()
    order = COL_MAJOR if problem.order == ROW_MAJOR else ROW_MAJOR
    return _laid_out(request, problem, (problem.shapes.m, problem.shapes.n, problem.shapes.k), order)


def _rounded(request: Request) -> Request:
    problem = request.problem()
    shapes = problem.shapes
    extents = _round_up(shapes.m), _round_up(shapes.n), _round_up(shapes.k)
    return _laid_out(request, problem, extents, problem.order)


def _laid_out(request: Request, problem: Problem, extents: tuple[int, int, int], order: str) -> Request:
    """Other extents, D and what goes with it in an order, all arrays without gaps."""
    m, n, k = extents
    shapes = problem.shapes
    a, b, c, out = request.a, request.b, request.c, request.out
    core = (*((m,) if a.ndim > 1 else ()), *((n,) if b.ndim > 1 else ()))
    result = (*shapes.batch, *core)
    axes = _axes(len(result), order) if len(core) == 2 else None
    if c is not None:
        c_shape = result if c.shape == shapes.result else _grown(c.shape, (shapes.m, shapes.n), (m, n))
        c = _dense(c, c_shape, _axes(c.ndim, order))
    return replace(
        request,
        a=_dense(a, (*a.shape[:-2], m, k) if a.ndim > 1 else (k,)),
        b=_dense(b, (*b.shape[:-2], k, n) if b.ndim > 1 else (k,)),
        c=c,
        out=_dense(out, result, axes),
        inputs=_inputs(request, problem, m, n, order),
    )


def _grown(shape: Shape, old: tuple[int, int], new: tuple[int, int]) -> Shape:
    """Shape of a C that is broadcast, for other extents of D."""
    tail = min(len(shape), 2)
    ends = [
        after if extent == before and extent != 1 else extent
        for extent, before, after in zip(shape[-tail:], old[-tail:], new[-tail:], strict=True)
    ]
    return (*shape[:-tail], *ends)


def _inputs(request: Request, problem: Problem, m: int, n: int, order: str) -> dict[str, ArrayView]:
    rows = order == COL_MAJOR
    inputs = {}
    for name, view in request.inputs.items():
        if name == "bias":
            assert problem.bias_shape is not None
            shape = (*problem.bias_shape[:-2], *((m, 1) if rows else (1, n)))
            axes = None
        else:
            form = aux_layout(name, m, n, "rows" if rows else "columns")
            shape = (*problem.shapes.batch, form.rows, form.cols)
            axes = _axes(len(shape), order)
        inputs[name] = imagine(shape, view.element, axes=axes, alignment=view.ptr)
    return inputs


def _round_up(extent: int) -> int:
    return round_up(max(extent, 1), MULTIPLE)


# -- limits -------------------------------------------------------------------------------------------------


def _of_limits(request: Request) -> Iterator[Neighbour]:
    if request.workspace_limit < WORKSPACE_LIMIT:
        yield Neighbour(
            "with a workspace of {workspace_bytes} bytes",
            f"memory_limit, which leaves {request.workspace_limit} bytes of workspace",
            lambda r: replace(r, workspace_limit=WORKSPACE_LIMIT),
        )
