# SPDX-License-Identifier: Apache-2.0
"""Why there is no algorithm: the obstacle that a made-up cuBLASLt has is the one that is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from nvmath_device.descriptors import COL_MAJOR, ROW_MAJOR
from nvmath_device.dtypes import bfloat16, float8_e4m3fn, float16, float32, float64, int8, int32, uint8
from nvmath_device.errors import HostLibraryError, NvmathDeviceError, UnsupportedError
from nvmath_device.host.array_view import cuda_device
from nvmath_device.host.cublaslt_enums import CudaDataType, Epilogue, Status
from nvmath_device.host.epilogs import EPILOGS, MatmulEpilog
from nvmath_device.host.faults import rules_for
from nvmath_device.host.lt_plan import plan_lt
from nvmath_device.host.neighbours import neighbours
from nvmath_device.host.obstacles import details, explain, no_algorithm
from nvmath_device.host.options import (
    MatmulEpilogPreferences,
    MatmulOptions,
    MatmulPlanPreferences,
    MatmulReductionScheme,
)
from nvmath_device.host.probe import Found, Request, ask, find, imagine
from nvmath_device.host.support_matrix import LAYOUTS, all_types, request_for
from tests.host import fake_cublaslt

E = MatmulEpilog
GIB = 1 << 30
FOUND = Found(0, ())


def plain(**changes: Any) -> Request:
    """float16, m=64 n=48 k=32, everything in order."""
    usual = Request(
        a=imagine((64, 32), float16), b=imagine((32, 48), float16, axes=(1, 0)), c=None, out=imagine((64, 48), float16),
        workspace_limit=GIB,
    )  # fmt: skip
    return replace(usual, **changes)


def batched(request: Request, count: int = 4) -> Request:
    def stacked(view: Any) -> Any:
        size = view.shape[0] * view.shape[1]
        return view._replace(shape=(count, *view.shape), strides=(size, *view.strides))

    c = None if request.c is None else stacked(request.c)
    inputs = {name: stacked(view) for name, view in request.inputs.items()}
    return replace(request, a=stacked(request.a), b=stacked(request.b), c=c, out=stacked(request.out), inputs=inputs)


def with_bias(**changes: Any) -> Request:
    bias = {"bias": imagine((1, 48), float16)}
    return plain(epilog=E.BIAS, inputs=bias, **changes)


def says(request: Request, allowed: Callable[[Request], Any]) -> str:
    assert not allowed(request), "the case is none"
    return explain(request, lambda r: FOUND if allowed(r) else None)


# -- requests ------------------------------------------------------------------------------------------------

SOME_TYPES = [
    types
    for types in all_types()
    if types.compute.name in ("COMPUTE_32F", "COMPUTE_64F", "COMPUTE_32I", "COMPUTE_16F", "COMPUTE_32F_FAST_TF32")
]


def odd_requests() -> list[Request]:
    """Vectors, broadcasts, gaps, conjugates, options."""
    vector, row = imagine((32,), float16), imagine((64, 48), float16)
    fp8 = imagine((64, 32), float8_e4m3fn), imagine((32, 48), float8_e4m3fn, axes=(1, 0))
    cplx = imagine((64, 32), float32, is_complex=True), imagine((32, 48), float32, is_complex=True)
    return [
        plain(),
        with_bias(),
        batched(with_bias()),
        plain(a=vector, out=imagine((48,), float16)),
        plain(b=vector, out=imagine((64,), float16), c=imagine((64,), float16)),
        plain(a=vector, b=vector, out=imagine((), float16)),
        plain(a=vector, epilog=E.BIAS, inputs={"bias": imagine((48,), float16)}, out=imagine((48,), float16)),
        *(plain(c=c) for c in (row, *(imagine(shape, float16) for shape in ((1, 48), (48,), (1, 1))))),
        plain(a=imagine((7, 1, 64, 32), float16), b=imagine((5, 32, 48), float16),
              out=imagine((7, 5, 64, 48), float16)),
        plain(a=imagine((64, 32), float16, strides=(99, 3)),
              out=imagine((64, 48), float16, strides=(50, 1), alignment=2)),
        plain(a=imagine((61, 31), float16), b=imagine((31, 47), float16), out=imagine((61, 47), float16),
              c=imagine((61, 1), float16)),
        Request(*cplx, imagine((64, 48), float32, is_complex=True, conjugated=True),
                imagine((64, 48), float32, is_complex=True), GIB, conj=(True, False)),
        Request(*fp8, imagine((64, 48), bfloat16), imagine((64, 48), float8_e4m3fn), GIB, scaled=frozenset("abd"),
                options=MatmulOptions(result_amax=True, fast_accumulation=True)),
        Request(*fp8, None, imagine((64, 48), float8_e4m3fn), GIB, epilog=E.GELU_AUX,
                preferences=MatmulPlanPreferences(
                    epilog=MatmulEpilogPreferences(aux_type=CudaDataType.CUDA_R_8F_E4M3, aux_amax=True))),
        plain(epilog=E.DRELU_BGRAD, inputs={"relu_aux": imagine((64, 16), uint8)}),
        plain(epilog=E.DGELU_BGRAD, inputs={"gelu_aux": imagine((64, 48), float16)}),
        plain(options=MatmulOptions(result_type="float16", compute_type="COMPUTE_16F", scale_type="CUDA_R_16F")),
    ]  # fmt: skip


@pytest.mark.parametrize("request_", odd_requests(), ids=lambda r: f"{r.epilog.name}-{r.a.shape}-{r.b.shape}")
@pytest.mark.parametrize("with_out", [True, False])
def test_request_of_a_problem_is_that_problem(request_: Request, with_out: bool) -> None:
    problem, operands = request_.problem(), request_.operands()
    if not with_out:
        operands = {name: operand for name, operand in operands.items() if name != "out"}
    again = Request.of(problem, operands, GIB, request_.options, request_.preferences)
    assert again.problem() == problem
    assert {name: again.operands()[name] for name in operands} == operands


@pytest.mark.parametrize("types", SOME_TYPES, ids=str)
def test_request_of_every_epilog_and_layout(types: Any) -> None:
    for epilog, layout, batch in product(EPILOGS, LAYOUTS, ((), (3, 1, 2))):
        request = request_for(types, epilog, layout, batch)
        try:
            problem = request.problem()
        except UnsupportedError:
            continue
        operands = request.operands()
        assert Request.of(problem, operands, 0, request.options, request.preferences).problem() == problem


# -- neighbours ----------------------------------------------------------------------------------------------


# An fp8 gelu_aux is refused before cuBLASLt is asked, so nobody looks for its neighbours.
ASKED = [request for request in odd_requests() if not request.preferences.epilog.aux_amax]


@pytest.mark.parametrize("request_", ASKED, ids=lambda r: f"{r.epilog.name}-{r.a.shape}-{r.b.shape}")
def test_neighbours_can_be_planned_alone_and_together(request_: Request) -> None:
    """Whatever is tried gives a plan or an error of the family, not a crash that hides the real error."""
    changes = neighbours(request_)
    assert len({change.change for change in changes}) == len(changes)
    for first, second in product(changes, changes):
        changed = request_
        try:
            for change in dict.fromkeys((first, second)):
                changed = change.apply(changed)
            problem = changed.problem()
            plan_lt(problem, changed.operands(), rules_for(problem.types, 90, (13, 1, 0)))
        except NvmathDeviceError:
            assert first is not second, f"{first.change} alone makes sense"


def changed(request: Request, words: str) -> Request:
    (change,) = [change for change in neighbours(request) if words in change.change]
    return change.apply(request)


def test_single_product_of_a_batch() -> None:
    request = changed(
        plain(
            a=imagine((7, 1, 64, 32), float16), b=imagine((5, 32, 48), float16), c=imagine((1, 48), float16),
            out=imagine((7, 5, 64, 48), float16), epilog=E.BIAS, inputs={"bias": imagine((5, 1, 48), float16)},
        ), "single product",
    )  # fmt: skip
    shapes = [view.shape for view in (request.a, request.b, request.c, request.out, request.inputs["bias"]) if view]
    assert shapes == [(64, 32), (32, 48), (1, 48), (64, 48), (1, 48)]


def test_single_product_of_a_batch_of_vectors() -> None:
    request = changed(
        plain(
            a=imagine((5, 64, 32), float16), b=imagine((32,), float16), c=imagine((5, 64), float16),
            out=imagine((5, 64), float16),
        ), "single product",
    )  # fmt: skip
    assert [view.shape for view in (request.a, request.b, request.c, request.out) if view] == [
        (64, 32),
        (32,),
        (64,),
        (64,),
    ]


@pytest.mark.parametrize(("order", "shape", "after"), [(ROW_MAJOR, (1, 48), (64, 1)), (COL_MAJOR, (64, 1), (1, 48))])
def test_other_order_turns_the_bias(order: str, shape: tuple[int, int], after: tuple[int, int]) -> None:
    axes = (0, 1) if order == ROW_MAJOR else (1, 0)
    request = plain(out=imagine((64, 48), float16, axes=axes), epilog=E.BIAS, inputs={"bias": imagine(shape, float16)})
    assert request.problem().order == order
    other = changed(request, "-major result")
    assert other.problem().order != order
    assert other.inputs["bias"].shape == after


def test_rounded_extents() -> None:
    request = plain(
        a=imagine((2, 61, 31), float16), b=imagine((31, 47), float16), c=imagine((61, 1), float16),
        out=imagine((2, 61, 47), float16), epilog=E.DRELU, inputs={"relu_aux": imagine((2, 61, 16), uint8)},
    )  # fmt: skip
    rounded = changed(request, "multiples of 16 and")
    shapes = [view.shape for view in (rounded.a, rounded.b, rounded.c, rounded.out, rounded.inputs["relu_aux"]) if view]
    assert shapes == [(2, 64, 32), (32, 48), (64, 1), (2, 64, 48), (2, 64, 16)]


def test_a_product_in_order_has_few_neighbours() -> None:
    obstacles = {change.obstacle for change in neighbours(plain(options=MatmulOptions(compute_type="COMPUTE_32F")))}
    assert obstacles == {"the result's type float16", "the row-major result"}


# -- the obstacle --------------------------------------------------------------------------------------------


def no_gaps(r: Request) -> bool:
    return r.a.strides[-2:] in ((r.a.shape[-1], 1), (1, r.a.shape[-2]))


FP8 = Request(
    a=imagine((64, 32), float8_e4m3fn), b=imagine((32, 48), float8_e4m3fn, axes=(1, 0)), c=None,
    out=imagine((64, 48), float8_e4m3fn), workspace_limit=GIB, scaled=frozenset("ab"),
    options=MatmulOptions(result_amax=True, fast_accumulation=True),
)  # fmt: skip


@pytest.mark.parametrize(
    ("request_", "allowed", "words"),
    [
        (
            plain(epilog=E.DRELU, inputs={"relu_aux": imagine((64, 16), uint8)}),
            lambda r: r.epilog is E.DEFAULT,
            "It has one without the epilog DRELU; so the obstacle is the epilog DRELU.",
        ),
        (
            plain(epilog=E.DGELU_BGRAD, inputs={"gelu_aux": imagine((64, 48), float16)}),
            lambda r: r.epilog is E.DGELU,
            "It has one with the epilog DGELU; so the obstacle is the gradient of the bias in the epilog DGELU_BGRAD.",
        ),
        (
            batched(plain()),
            lambda r: r.a.ndim == 2,
            "It has one for a single product, without a batch; so the obstacle is the batch (4,).",
        ),
        (plain(c=imagine((64, 48), float16)), lambda r: r.c is None, "It has one without C; so the obstacle is C."),
        (
            plain(),
            lambda r: r.out.element is not float16,
            "It has one with a result of float32; so the obstacle is the result's type float16.",
        ),
        (
            plain(options=MatmulOptions(compute_type="COMPUTE_16F")),
            lambda r: r.problem().types.compute.name == "COMPUTE_32F",
            "It has one with the default compute type COMPUTE_32F and scale type CUDA_R_32F; so the obstacle is the "
            "compute type COMPUTE_16F with the scale type CUDA_R_16F.",
        ),
        (
            plain(a=imagine((64, 32), float16, strides=(33, 1))),
            no_gaps,
            "It has one with arrays without gaps; so the obstacle is the strides.",
        ),
        (
            plain(a=imagine((64, 32), float16, axes=(1, 0))),
            lambda r: r.a.strides[1] == 1,
            "It has one with A row-major and B column-major; so the obstacle is the order of A and B.",
        ),
        (
            with_bias(),
            lambda r: r.problem().order == COL_MAJOR,
            "It has one with a column-major result and the bias along rows; so the obstacle is the row-major result.",
        ),
        (
            plain(b=imagine((32, 48), float16, alignment=4)),
            lambda r: r.b.alignment >= 16,
            "It has one with addresses at multiples of 16 bytes; so the obstacle is the alignment.",
        ),
        (
            plain(a=imagine((61, 30), float16), b=imagine((30, 48), float16), out=imagine((61, 48), float16)),
            lambda r: not any(extent % 8 for extent in (*r.a.shape, *r.b.shape)),
            "It has one with extents in multiples of 16 and without gaps (m=64 n=48 k=32); so the obstacle is the "
            "extents m=61 n=48 k=30.",
        ),
        (
            FP8,
            lambda r: not r.scaled,
            "It has one without quantization_scales; so the obstacle is the scales of a, b.",
        ),
        (
            replace(FP8, scaled=frozenset("abd")),  # only an fp8 result has a scale and a largest value
            lambda r: r.out.element is bfloat16 and r.scaled == {"a", "b"} and not r.options.result_amax,
            "It has one with a result of bfloat16; so the obstacle is the result's type float8_e4m3fn.",
        ),
        (
            FP8,
            lambda r: not r.options.fast_accumulation,
            "It has one without fast_accumulation; so the obstacle is fast_accumulation.",
        ),
        (
            plain(options=MatmulOptions(sm_count_target=2)),
            lambda r: not r.options.sm_count_target,
            "It has one without sm_count_target; so the obstacle is sm_count_target.",
        ),
        (
            plain(options=MatmulOptions(deterministic=True)),
            lambda r: not r.options.deterministic,
            "It has one without deterministic; so the obstacle is deterministic.",
        ),
        (
            plain(preferences=MatmulPlanPreferences(max_waves_count=0.5, limit=3)),
            lambda r: not r.preferences.max_waves_count,
            "It has one with the default preferences; so the obstacle is what the preferences leave of the algorithms.",
        ),
    ],
)  # fmt: skip
def test_one_obstacle(request_: Request, allowed: Callable[[Request], Any], words: str) -> None:
    assert says(request_, allowed) == words


def test_conjugation() -> None:
    real = imagine((64, 64), float32, is_complex=True)
    request = Request(real, real, None, real, GIB, conj=(False, True))
    assert says(request, lambda r: r.conj == (False, False)) == (
        "It has one without conjugation; so the obstacle is the conjugation."
    )


def test_workspace_is_told_in_bytes() -> None:
    request = plain(workspace_limit=1000)
    words = explain(request, lambda r: Found(33_554_432, ()) if r.workspace_limit >= 33_554_432 else None)
    assert words == (
        "It has one with a workspace of 33554432 bytes; so the obstacle is memory_limit, which leaves 1000 bytes of "
        "workspace."
    )


def test_largest_values() -> None:
    """Another type of the result drops them, too."""
    words = says(FP8, lambda r: not r.options.result_amax and r.out.element is float8_e4m3fn)
    assert words == "It has one without result_amax and aux_amax; so the obstacle is the largest absolute values."


def test_several_results_would_do() -> None:
    words = says(plain(), lambda r: r.out.element in (float32, float64, bfloat16))
    assert words == "It has one with a result of float32; so the obstacle is the result's type float16."
    int8s = Request(
        imagine((64, 32), int8), imagine((32, 48), int8, axes=(1, 0)), None, imagine((64, 48), int8), GIB
    )  # fmt: skip
    words = says(int8s, lambda r: r.out.element in (float32, int32))
    assert words == (
        "It has one with a result of float32 or with a result of int32; so the obstacle is the result's type int8."
    )


def test_combination_of_two() -> None:
    """fp8, batched, with a bias: reported for cuBLASLt 12.2."""
    bias = {"bias": imagine((1, 48), float16)}
    request = batched(replace(FP8, scaled=frozenset(), options=MatmulOptions(), epilog=E.BIAS, inputs=bias))
    words = says(request, lambda r: not (r.a.ndim == 3 and r.epilog is E.BIAS))
    assert words == (
        "It has one without the epilog BIAS or for a single product, without a batch; so the obstacle is that the "
        "epilog BIAS and the batch (4,) come together."
    )


def test_two_obstacles_at_once() -> None:
    request = batched(with_bias(c=imagine((64, 48), float16)))
    words = says(request, lambda r: r.a.ndim == 2 and r.epilog is E.DEFAULT)
    assert words == (
        "No single change is enough. It has one without the epilog BIAS and for a single product, without a batch, all "
        "together; so the obstacles are the epilog BIAS and the batch (4,)."
    )


def test_two_obstacles_of_which_one_is_the_results_type() -> None:
    words = says(with_bias(), lambda r: r.out.element is float32 and r.epilog is E.DEFAULT)
    assert words.startswith(
        "No single change is enough. It has one without the epilog BIAS and with a result of float32"
    )


def test_nothing_helps() -> None:
    words = says(plain(), lambda r: False)
    assert "Changing the result's type float16 or the row-major result helps neither alone nor together" in words
    assert "so the obstacle is the types: this cuBLASLt has no float16 x float16" in words


def test_exact_changes_go_before_those_that_change_more() -> None:
    """Another order of the result, or of A, comes without gaps, too; that is no reason to speak of the order."""
    request = plain(a=imagine((64, 32), float16, strides=(33, 1)))
    assert "order" not in says(request, no_gaps)


# -- the error -----------------------------------------------------------------------------------------------


def refused(
    monkeypatch: pytest.MonkeyPatch, request: Request, rule: fake_cublaslt.Rule
) -> tuple[UnsupportedError, list[fake_cublaslt.Question]]:
    asked = fake_cublaslt.install(monkeypatch, rule)
    error = HostLibraryError(
        "cublasLtMatmulAlgoGetHeuristic(...) failed: not supported (status 15)", status=Status.NOT_SUPPORTED,
        log="unsupported combination",
    )  # fmt: skip
    operands = request.operands()
    del operands["out"]
    found = no_algorithm(
        request.problem(),
        operands,
        request.workspace_limit,
        request.options,
        request.preferences,
        cuda_device(0),
        error,
    )
    return found, asked


def test_the_whole_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked through real descriptors and layouts of cuBLASLt; only the answer is made up."""
    request = batched(with_bias(workspace_limit=4096))
    error, asked = refused(monkeypatch, request, lambda q: None if q.desc["epilogue"] is Epilogue.BIAS else 0)
    text = str(error)
    assert text.startswith(
        "cuBLASLt 13.1.0 has no algorithm for float16 x float16 -> float16, m=64 n=48 k=32, batch (4,), epilog BIAS, "
        "COMPUTE_32F, on NVIDIA H200 (compute capability 9.0). It has one without the epilog BIAS; so the obstacle is "
        "the epilog BIAS.\n"
    )
    for line in (
        "a: float16 (4, 64, 32), row-major, leading dimension 32, batch strides (2048,), address a multiple of 256 ",
        "b: float16 (4, 32, 48), col-major, leading dimension 32, batch strides (1536,), address a multiple of 256 ",
        "d: float16 (4, 64, 48), row-major, leading dimension 48, batch strides (3072,), address a multiple of 256 ",
        "bias: float16 (4, 1, 48), ",
        "workspace: up to 4096 bytes",
    ):
        assert f"\n  {line}" in text
    assert "not supported (status 15)\n--- cuBLASLt says ---\nunsupported combination" in text
    assert len(asked) > 3
    assert {question.limit for question in asked} == {1}


def test_rules_on_what_cublaslt_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The neighbours reach cuBLASLt as what they say they are."""
    request = plain(a=imagine((64, 32), float16, alignment=2))
    error, _ = refused(monkeypatch, request, lambda q: 0 if q.preference["min_alignment_b_bytes"] >= 16 else None)
    assert "so the obstacle is the alignment" in str(error)
    request = plain(workspace_limit=100)
    error, _ = refused(monkeypatch, request, lambda q: 5000 if q.preference["max_workspace_bytes"] >= 5000 else None)
    assert "It has one with a workspace of 5000 bytes" in str(error)
    error, _ = refused(monkeypatch, batched(plain()), lambda q: 0 if q.d["batch_count"] == 1 else None)
    assert "so the obstacle is the batch (4,)" in str(error)
    wide = plain(a=imagine((64, 32), float16, strides=(40, 1)))
    error, _ = refused(monkeypatch, wide, lambda q: 0 if q.b["ld"] == 32 else None)
    assert "so the obstacle is the strides" in str(error)
    error, _ = refused(monkeypatch, plain(), lambda q: 0 if q.d["type"] is CudaDataType.CUDA_R_32F else None)
    assert "so the obstacle is the result's type float16" in str(error)
    scheme = plain(preferences=MatmulPlanPreferences(reduction_scheme_mask=MatmulReductionScheme.NONE))
    error, _ = refused(monkeypatch, scheme, lambda q: 0 if q.preference["reduction_scheme_mask"] else None)
    assert "so the obstacle is what the preferences leave of the algorithms" in str(error)


def test_details_of_odd_arrays() -> None:
    text = details(
        plain(
            a=imagine((64, 32), float16, strides=(64, 2), alignment=2), b=imagine((32,), float16, strides=(3,)),
            out=imagine((64,), float16), c=None,
        )
    )  # fmt: skip
    assert "a: float16 (64, 32), strides (64, 2), which are copied first, address a multiple of 2 bytes" in text
    assert "b: float16 (32,), stride 3, address" in text
    assert "c:" not in text


# -- asking --------------------------------------------------------------------------------------------------


def test_answer_tells_workspace_and_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = fake_cublaslt.install(monkeypatch, lambda q: 77)
    assert ask(plain(), 0) == Found(77, ())
    assert ask(plain(a=imagine((64, 32), float16, strides=(64, 2))), 0) == Found(77, ("a",))
    assert asked[0].d["rows"] == 48, "a row-major result is computed as its transpose"


def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cublaslt.install(monkeypatch, lambda q: None)
    with pytest.raises(HostLibraryError):
        ask(plain(), 0)
    refuse = MatmulOptions(copies="refuse")
    for request in (
        plain(),
        plain(a=imagine((64, 32), float16, strides=(64, 2)), options=refuse),
        plain(a=imagine((0, 32), float16), out=imagine((0, 48), float16)),
        plain(out=imagine((64, 48), float64)),
    ):
        assert find(request, 0) is None
    fake_cublaslt.install(monkeypatch, lambda q: 1)
    assert find(plain(options=refuse), 0) == Found(1, ())


def test_heuristics_that_answer_with_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from nvmath_device.host import cublaslt_algorithms

    fake_cublaslt.install(monkeypatch, lambda q: 1)
    monkeypatch.setattr(cublaslt_algorithms, "heuristics", lambda *args, **more: [])
    with pytest.raises(HostLibraryError, match="no algorithm"):
        ask(plain(), 0)
