# SPDX-License-Identifier: Apache-2.0
"""How a plan steps through batches, what a swap could get wrong, and the rules of narrow types."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from nvmath_device.dtypes import (
    bfloat16,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    uint8,
)
from nvmath_device.errors import UnsupportedError
from nvmath_device.host.cublaslt_enums import MatmulDescAttribute
from nvmath_device.host.epilogs import EPILOGS, MatmulEpilog
from nvmath_device.host.faults import Rules
from nvmath_device.host.lt_plan import plan_lt
from nvmath_device.host.problem import plan_problem
from tests.host.lt_cases import Types, check, place, strided_operands, unpack
from tests.host.lt_workbench import Workbench, backward, copied

E = MatmulEpilog
A = MatmulDescAttribute


# -- batches ------------------------------------------------------------------------------------------------


def test_two_axes_that_no_stride_joins_are_a_loop_over_the_shorter() -> None:
    bench = Workbench()
    a, b = bench.array(3, 5, 4, 2), bench.array(5, 2, 6)
    _, plan = check(bench.case(a, b))
    assert plan.a.batch_count == 5
    assert len(plan.calls) == 3
    a, b = bench.array(3, 1, 4, 2), bench.array(1, 5, 2, 6)
    _, plan = check(bench.case(a, b))
    assert plan.a.batch_count == 5
    assert len(plan.calls) == 3
    assert copied(plan) == []


def test_a_batch_that_runs_backwards_is_a_loop() -> None:
    bench = Workbench()
    a, b = bench.array(3, 4, 2, steps=(-1, 1, 1)), bench.array(3, 2, 6)
    _, plan = check(bench.case(a, b))
    assert copied(plan) == []
    assert len(plan.calls) == 3
    assert plan.a.batch_count == 1
    assert min(offset for call in plan.calls for offset in call) == -2 * 4 * 2 * 4


def test_a_result_backwards_over_two_axes() -> None:
    bench = Workbench()
    for steps in ((-1, 1, 1, 1), (1, -2, 1, 1), (-1, -1, 1, 1)):
        out = bench.out(2, 3, 4, 6, steps=steps)
        _, plan = check(bench.case(bench.array(2, 3, 4, 2), bench.array(2, 3, 2, 6), out=out))
        assert copied(plan) == []
        assert plan.d.batch_count * len(plan.calls) == 6


@pytest.mark.parametrize("batch", [(3,), (2, 3), (2, 1, 3)])
def test_where_strided_batches_are_not_offered_each_product_is_a_call(batch: tuple[int, ...]) -> None:
    bench = Workbench()
    case = bench.case(bench.array(*batch, 4, 2), bench.array(*batch, 2, 6), change={"loop_batches": True})
    _, plan = check(case)
    assert len(plan.calls) == math.prod(batch)
    assert {x.batch_count for x in (plan.a, plan.b, plan.c, plan.d)} == {1}


@pytest.mark.parametrize("epilog", [E.RELU_AUX_BIAS, E.GELU_AUX_BIAS, E.BGRADA, E.BGRADB])
@pytest.mark.parametrize("order", "CF")
def test_loops_step_through_bias_aux_and_gradients(epilog: MatmulEpilog, order: str) -> None:
    bench = Workbench()
    inputs = {}
    if EPILOGS[epilog].bias:
        inputs["bias"] = bench.array(2, 3, 5, 1) if order == "F" else bench.array(2, 3, 1, 9)
    k_is_summed = "F" if epilog is E.BGRADA else "C"
    a = bench.array(2, 3, 5, 4, steps=(-1, 1, 1, 1), order=k_is_summed)
    b = bench.array(3, 4, 9, steps=(-1, 1, 1))
    case = bench.case(
        a, b, epilog=epilog, inputs=inputs, along={"F": "rows", "C": "columns"}[order] if inputs else None,
        out=bench.out(2, 3, 5, 9, order=order),
    )  # fmt: skip
    _, plan = check(case)
    assert len(plan.calls) == 6
    assert copied(plan) == []


@pytest.mark.parametrize("epilog", [E.DRELU, E.DGELU_BGRAD])
@pytest.mark.parametrize("along", ["rows", "columns"])
def test_loops_step_through_an_aux_input(epilog: MatmulEpilog, along: str) -> None:
    bench = Workbench()
    case = backward(bench, epilog, along, 2, 3, m=16, n=24, steps=(-1, 1, 1, 1))
    _, plan = check(case)
    assert len(plan.calls) == 2
    assert copied(plan) == []


def test_the_largest_value_of_a_loop_is_refused() -> None:
    bench = Workbench(Types(float8_e4m3fn, float8_e4m3fn, float16, float8_e4m3fn, float16))
    c = bench.array(16, 16, element=float16)
    options = {"result_amax": True}
    good = bench.case(bench.array(3, 16, 16), bench.array(3, 16, 16, order="F"), c=c, beta=1, options=options)
    check(good)
    reverse = bench.array(3, 16, 16, steps=(-1, 1, 1))
    bad = bench.case(reverse, bench.array(3, 16, 16, order="F"), c=c, beta=1, options=options)
    with pytest.raises(UnsupportedError, match=r"^result_amax: .*3 calls"):
        check(bad)


# -- what the swap could get wrong --------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("along", ["rows", "columns"])
@pytest.mark.parametrize("epilog", [E.DRELU, E.DRELU_BGRAD, E.DGELU, E.DGELU_BGRAD])
def test_an_aux_input_whose_shape_fits_both_directions(
    epilog: MatmulEpilog, along: str, batch: tuple[int, ...]
) -> None:
    """Masks of 16 x 16 results have 16 x 16 bytes along rows and along columns."""
    for out_order in "CF":
        bench = Workbench()
        case = backward(bench, epilog, along, *batch, m=16, n=16)
        case.out = bench.out(*batch, 16, 16, order=out_order)
        problem, plan = check(case)
        assert problem.along == along
        assert copied(plan) == (["d"] if (out_order == "F") != (along == "rows") else [])


@pytest.mark.parametrize("along", ["rows", "columns"])
def test_a_mask_goes_back_as_it_came(along: str) -> None:
    """Forward, then backward with the very array: x where x was positive."""
    bench = Workbench()
    a, b = bench.array(16, 3), bench.array(3, 16)
    out = bench.out(16, 16, order="F" if along == "rows" else "C")
    forward = bench.case(a, b, epilog=E.RELU_AUX, out=out)
    problem, _ = check(forward)
    (output,) = problem.outputs
    order = "F" if along == "rows" else "C"
    assert output.order == ((1, 0) if along == "rows" else (0, 1))
    positive = a.logical @ b.logical > 0
    axis = 0 if along == "rows" else 1
    packed = np.packbits(np.pad(positive, [(0, 112 if i == axis else 0) for i in range(2)]), axis, bitorder="little")
    mask = place(bench.memory, packed, uint8, (16, 16), order=order)
    assert np.array_equal(unpack(mask, along, 16, 16), positive)
    case = bench.case(a, b, epilog=E.DRELU, inputs={"relu_aux": mask}, along=along)
    check(case)


@pytest.mark.parametrize("epilog", [E.BGRADA, E.BGRADB])
@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize(("m", "n"), [(5, 5), (5, 9), (1, 5), (5, 1)])
def test_gradients_of_operands_follow_the_swap(epilog: Any, order: str, batch: Any, m: int, n: int) -> None:
    bench = Workbench()
    case = bench.case(
        bench.array(*batch, m, 7), bench.array(*batch, 7, n), epilog=epilog, out=bench.out(*batch, m, n, order=order)
    )
    problem, plan = check(case)
    asked = dict(plan.attributes)[A.EPILOGUE]
    other = E.BGRADB if epilog is E.BGRADA else E.BGRADA
    assert asked == (other if plan.swapped else epilog)
    if min(m, n) > 1:
        assert plan.swapped == (order == "C") == (problem.order == "row_major")


@pytest.mark.parametrize("out_order", "CF")
@pytest.mark.parametrize(("epilog", "slot", "order"), [(E.BGRADA, "a", "F"), (E.BGRADB, "b", "C")])
def test_an_operand_is_summed_where_k_is_not_contiguous(epilog: Any, slot: str, order: str, out_order: str) -> None:
    """Heuristics offer nothing else. The other operand may lie in any way."""
    for orders in ("CC", "CF", "FC", "FF"):
        bench = Workbench()
        a, b = bench.array(5, 7, order=orders[0]), bench.array(7, 3, order=orders[1])
        _, plan = check(bench.case(a, b, epilog=epilog, out=bench.out(5, 3, order=out_order)))
        assert copied(plan) == ([] if orders["ab".index(slot)] == order else [slot])


@pytest.mark.parametrize("epilog", [e for e in EPILOGS if EPILOGS[e].bias])
@pytest.mark.parametrize("along", ["rows", "columns"])
@pytest.mark.parametrize("out_order", [None, "C", "F"])
def test_a_bias_of_a_square_result(epilog: MatmulEpilog, along: str, out_order: str | None) -> None:
    bench = Workbench()
    forms = [(5,), (5, 1), (2, 5, 1), (1, 5, 1)] if along == "rows" else [(1, 5), (2, 1, 5), (1, 1, 5)]
    for form in forms:
        out = None if out_order is None else bench.out(2, 5, 5, order=out_order)
        case = bench.case(
            bench.array(2, 5, 3), bench.array(2, 3, 5), epilog=epilog, inputs={"bias": bench.array(*form)},
            along=along, out=out,
        )  # fmt: skip
        _, plan = check(case)
        fits = out_order in (None, "F" if along == "rows" else "C")
        assert copied(plan) == ([] if fits else ["d"])


def test_types_and_scales_are_swapped_with_their_matrices() -> None:
    for order in "CF":
        bench = Workbench(Types(float8_e4m3fn, float8_e5m2, bfloat16, bfloat16))
        case = bench.case(
            bench.array(16, 16), bench.array(16, 32, element=float8_e5m2, order="F"), scales={"a": 2.0, "b": 0.5},
            out=bench.out(16, 32, order=order),
        )  # fmt: skip
        _, plan = check(case)
        names = dict(plan.scales)
        assert names[A.A_SCALE_POINTER] == ("b" if order == "C" else "a")
        assert names[A.B_SCALE_POINTER] == ("a" if order == "C" else "b")


# -- rules --------------------------------------------------------------------------------------------------


def test_a_leading_dimension_beyond_the_limit_is_copied() -> None:
    bench = Workbench()
    for slot in "abcd":
        wide = {x: {"gaps": (0, 9)} if x == slot else {} for x in "abcd"}
        case = bench.case(
            bench.array(5, 7, **wide["a"]), bench.array(7, 6, **wide["b"]), c=bench.array(5, 6, **wide["c"]), beta=1,
            out=bench.out(5, 6, **wide["d"]), change={"max_leading_bytes": 4 * 12},
        )  # fmt: skip
        _, plan = check(case)
        assert copied(plan) == [slot]
        assert "too long" in plan.moves[0].why


@pytest.mark.parametrize("slot", "abcd")
@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"gaps": (0, 0, 4)}, "units of 16 bytes"),
        ({"gaps": (0, 4, 0)}, "all start at a multiple of 16"),
        ({"gaps": (0, 0, 0), "offset": 8}, "aligned to 8 bytes"),
        ({"gaps": (0, 0, 0), "offset": 32}, None),
        ({"gaps": (0, 0, 16)}, None),
    ],
)
def test_fp8_products_read_and_write_whole_lines(slot: str, how: dict[str, Any], why: str | None) -> None:
    bench = Workbench(Types(float8_e4m3fn, float8_e4m3fn, float16, float16))
    wanted = {"order": "C"}
    of = {x: wanted | how if x == slot else wanted for x in "acd"}
    turned = {"gaps": tuple(how["gaps"][i] for i in (0, 2, 1)), "offset": how.get("offset", 0)} if slot == "b" else {}
    case = bench.case(
        bench.array(2, 16, 32, **of["a"]), bench.array(2, 32, 48, order="F", **turned),
        c=bench.array(2, 16, 48, element=float16, **of["c"]), out=bench.out(2, 16, 48, **of["d"]), beta=1,
    )  # fmt: skip
    _, plan = check(case)
    assert copied(plan) == ([slot] if why else [])
    assert all(why in move.why for move in plan.moves if why)


def test_fast_accumulation_is_asked_for_only_where_it_is_wanted() -> None:
    bench = Workbench(Types(float8_e4m3fn, float8_e4m3fn, float16, float16))
    a, b = bench.array(16, 16), bench.array(16, 16, order="F")
    for wanted in (False, True):
        _, plan = check(bench.case(a, b, options={"fast_accumulation": wanted}))
        assert dict(plan.attributes).get(A.FAST_ACCUM, 0) == wanted


def test_auxiliary_matrices_are_not_rounded_up() -> None:
    bench = Workbench(Types(float8_e4m3fn, float8_e4m3fn, float16, float16, float16))
    for epilog in (E.RELU_AUX, E.GELU_AUX):
        problem = plan_problem(bench.array(16, 16).view, bench.array(16, 8, order="F").view, epilog=epilog)
        operands = strided_operands({"a": bench.array(16, 16), "b": bench.array(16, 8, order="F")}, None)
        with pytest.raises(UnsupportedError, match=f"^epilog: {epilog.name} .*because"):
            plan_lt(problem, operands, Rules(multiple_m=16, why="because"))
