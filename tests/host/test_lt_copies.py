# SPDX-License-Identifier: Apache-2.0
"""Which operands a plan leaves where they are, and which it copies, for which reason."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from nvmath_device.dtypes import (
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    float64,
    int8,
    int32,
)
from nvmath_device.host.cublaslt_enums import MatmulDescAttribute, Operation
from nvmath_device.host.epilogs import EPILOGS, MatmulEpilog
from nvmath_device.host.lt_plan import plan_lt
from tests.host.lt_cases import Types, check, strided_operands
from tests.host.lt_workbench import F32, Workbench, backward, copied

E = MatmulEpilog
A = MatmulDescAttribute


# -- nothing is copied --------------------------------------------------------------------------------------

IN_PLACE: dict[str, dict[str, Any]] = {
    "C order": {},
    "F order": {"order": "F"},
    "rows of a wider matrix": {"gaps": (0, 3)},
    "columns of a taller matrix": {"order": "F", "gaps": (3, 0)},
    "every second row": {"steps": (2, 1)},
    "every third column of an F-ordered one": {"order": "F", "steps": (1, 3)},
    "at any element": {"offset": 4},
}


@pytest.mark.parametrize("of_a", IN_PLACE)
@pytest.mark.parametrize("of_b", IN_PLACE)
@pytest.mark.parametrize("of_out", [None, *IN_PLACE])
def test_matrices_with_a_unit_stride_stay_where_they_are(of_a: str, of_b: str, of_out: str | None) -> None:
    bench = Workbench()
    out = None if of_out is None else bench.out(5, 3, **IN_PLACE[of_out])
    case = bench.case(bench.array(5, 7, **IN_PLACE[of_a]), bench.array(7, 3, **IN_PLACE[of_b]), out=out)
    _, plan = check(case)
    assert copied(plan) == []


@pytest.mark.parametrize("types", [F32, Types(float16, float16, float16, float16), Types(*[float64] * 4)])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 5, 3), (5, 1, 3), (5, 3, 1), (1, 1, 3), (1, 1, 1), (1, 5, 1)])
@pytest.mark.parametrize("steps", [(1, 1), (3, 1), (1, 3), (-2, 1)])
def test_an_axis_of_one_element_needs_no_stride(types: Types, m: int, n: int, k: int, steps: tuple[int, int]) -> None:
    """A vector inside a matrix is read in place along its stride, and a whole one in any order."""
    bench = Workbench(types)
    a, b = bench.array(m, k, steps=steps), bench.array(k, n, steps=steps)
    _, plan = check(bench.case(a, b, out=bench.out(m, n, steps=steps)))
    legal = {
        "a": min(m, k) == 1 or steps in ((1, 1), (3, 1)),
        "b": min(k, n) == 1 or steps in ((1, 1), (3, 1)),
        "d": min(m, n) == 1 or steps in ((1, 1), (3, 1)),
    }
    backwards = steps == (-2, 1)
    extents = {"a": m, "b": k, "d": m}  # of the axis that runs backwards
    assert copied(plan) == [slot for slot in "abd" if not legal[slot] or (backwards and extents[slot] > 1)]


def test_vectors_are_read_in_place() -> None:
    bench = Workbench()
    for a, b in (((7,), (7, 3)), ((5, 7), (7,)), ((7,), (7,)), ((7,), (2, 7, 3)), ((2, 5, 7), (7,))):
        _, plan = check(bench.case(bench.array(*a), bench.array(*b)))
        assert copied(plan) == []
        assert len(plan.calls) == 1
    stepped = bench.array(7, steps=(2,))
    _, plan = check(bench.case(stepped, bench.array(7, 3)))
    assert copied(plan) == []


def test_broadcast_batches_are_read_in_place() -> None:
    bench = Workbench()
    shapes = [((4, 5, 7), (7, 3)), ((5, 7), (4, 7, 3)), ((4, 5, 7), (1, 7, 3)), ((4, 2, 5, 7), (7, 3))]
    for a, b in shapes:
        _, plan = check(bench.case(bench.array(*a), bench.array(*b)))
        assert copied(plan) == []
        assert len(plan.calls) == 1
    repeated = bench.array(4, 5, 7, repeated=(0,))
    _, plan = check(bench.case(repeated, bench.array(4, 7, 3)))
    assert copied(plan) == []
    assert (plan.a.batch_count, plan.b.batch_count) == (4, 4)
    assert sorted((plan.a.batch_stride, plan.b.batch_stride)) == [0, 21]


@pytest.mark.parametrize("shape", [(5, 3), (4, 5, 3), (1, 5, 3)])
@pytest.mark.parametrize("order", "CF")
def test_a_whole_c_is_read_in_place(shape: tuple[int, ...], order: str) -> None:
    bench = Workbench()
    c = bench.array(*shape, order=order, gaps=(0, 0, 2)[-len(shape) :] if order == "C" else ())
    _, plan = check(bench.case(bench.array(4, 5, 7), bench.array(4, 7, 3), c=c, beta=2))
    assert copied(plan) == []


@pytest.mark.parametrize("order", "CF")
def test_the_result_may_be_c_itself(order: str) -> None:
    bench = Workbench()
    c = bench.array(4, 5, 3, order=order)
    case = bench.case(bench.array(4, 5, 7), bench.array(4, 7, 3), c=c, out=c, beta=-1)
    problem = case.problem()
    plan = plan_lt(problem, strided_operands(case.operands(), case.out), case.rules(problem))
    assert copied(plan) == []
    assert plan.c == plan.d


@pytest.mark.parametrize("epilog", [e for e in EPILOGS if EPILOGS[e].bias])
def test_a_bias_is_read_in_place(epilog: MatmulEpilog) -> None:
    bench = Workbench()
    for shape in ((5,), (5, 1), (1, 5, 1), (4, 5, 1), (1, 3), (1, 1, 3), (4, 1, 3)):
        case = bench.case(
            bench.array(4, 5, 7), bench.array(4, 7, 3), epilog=epilog, inputs={"bias": bench.array(*shape)},
            along="columns" if shape[-1] == 3 else "rows",
        )  # fmt: skip
        _, plan = check(case)
        assert copied(plan) == []
        assert len(plan.calls) == 1


@pytest.mark.parametrize("epilog", [e for e in EPILOGS if EPILOGS[e].backward])
@pytest.mark.parametrize("along", ["rows", "columns"])
@pytest.mark.parametrize("batch", [(), (4,), (2, 3)])
def test_what_a_forward_epilog_returns_is_read_in_place(epilog: Any, along: str, batch: tuple[int, ...]) -> None:
    bench = Workbench()
    _, plan = check(backward(bench, epilog, along, *batch, m=25, n=19))
    assert copied(plan) == []
    assert len(plan.calls) == 1


@pytest.mark.parametrize("along", ["rows", "columns"])
@pytest.mark.parametrize("epilog", [E.DRELU, E.DGELU])
def test_an_aux_input_of_one_line_needs_no_stride(epilog: MatmulEpilog, along: str) -> None:
    bench = Workbench()
    m, n = (25, 1) if along == "rows" else (1, 25)
    _, plan = check(backward(bench, epilog, along, m=m, n=n))
    assert copied(plan) == []


@pytest.mark.parametrize("shapes", [((7,), (7, 3), (3,)), ((5, 7), (7,), (5,)), ((7,), (2, 7, 3), (3,))])
def test_the_bias_of_a_vector_product_is_read_in_place(shapes: Any) -> None:
    bench = Workbench()
    a, b, bias = (bench.array(*shape) for shape in shapes)
    along = "columns" if a.view.ndim == 1 else "rows"
    _, plan = check(bench.case(a, b, epilog=E.BIAS, inputs={"bias": bias}, along=along))
    assert copied(plan) == []


@pytest.mark.parametrize("cc", [90, 100])
@pytest.mark.parametrize(
    ("a", "b", "d"),
    [(float8_e4m3fn, float8_e4m3fn, float16), (float8_e4m3fn, float8_e5m2, float32), (int8, int8, int32)],
)
def test_narrow_operands_with_k_contiguous_are_read_in_place(a: Any, b: Any, d: Any, cc: int) -> None:
    bench = Workbench(Types(a, b, d, d))
    for out in (None, bench.out(32, 48), bench.out(32, 48, order="F")):
        case = bench.case(bench.array(32, 16), bench.array(16, 48, order="F", element=b), out=out, cc=cc)
        _, plan = check(case)
        assert copied(plan) == []


@pytest.mark.parametrize("orders", ["CC", "CF", "FC", "FF"])
def test_an_fp8_device_without_tn_reads_any_order(orders: str) -> None:
    bench = Workbench(Types(float8_e4m3fn, float8_e4m3fn, float16, float16))
    of_a, of_b = orders
    case = bench.case(bench.array(32, 16, order=of_a), bench.array(16, 48, order=of_b))
    case.cc = 100
    assert copied(check(case)[1]) == []
    case.cc = 90
    assert copied(check(case)[1]) == ["a"] * (of_a == "F") + ["b"] * (of_b == "C")


def test_an_fp8_matrix_has_whole_lines_of_sixteen_bytes_whichever_axis_is_contiguous() -> None:
    """Five contiguous columns in rows of 16 are aligned, but their number is no multiple of 16."""
    bench = Workbench(Types(float8_e4m3fn, float8_e4m3fn, float16, float16))
    case = bench.case(bench.array(16, 16, order="F"), bench.array(16, 5, gaps=(0, 11)), cc=100)
    _, plan = check(case)
    assert copied(plan) == ["b"]


# -- what has to be copied ----------------------------------------------------------------------------------

COPIED: dict[str, tuple[dict[str, Any], str]] = {
    "both strides larger than 1": ({"steps": (2, 2)}, "contiguous"),
    "backwards along rows": ({"steps": (-1, 1)}, "negative"),
    "backwards along columns": ({"steps": (1, -1)}, "negative"),
    "repeated rows": ({"repeated": (0,)}, "zero"),
    "repeated columns": ({"repeated": (1,)}, "zero"),
    "one number": ({"repeated": (0, 1)}, "zero"),
    "between two elements": ({"offset": 2}, "aligned to 2 bytes"),
}


@pytest.mark.parametrize("how", COPIED)
@pytest.mark.parametrize("slot", "abc")
def test_an_operand_is_copied_alone_and_the_plan_says_why(how: str, slot: str) -> None:
    bench = Workbench()
    strides, why = COPIED[how]
    given = {x: strides if x == slot else {} for x in "abc"}
    c = bench.array(5, 3, **given["c"])
    _, plan = check(bench.case(bench.array(5, 7, **given["a"]), bench.array(7, 3, **given["b"]), c=c, beta=1))
    assert copied(plan) == [slot]
    assert why in plan.moves[0].why


@pytest.mark.parametrize("how", [name for name, (strides, _) in COPIED.items() if "repeated" not in strides])
def test_a_result_is_copied_out_once(how: str) -> None:
    bench = Workbench()
    strides, why = COPIED[how]
    out = bench.out(5, 3, **strides)
    _, plan = check(bench.case(bench.array(5, 7), bench.array(7, 3), out=out))
    assert copied(plan) == ["d"]
    assert why in plan.moves[0].why


@pytest.mark.parametrize("along", ["rows", "columns"])
@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"steps": 2}, "2 apart"),
        ({"steps": -1}, "-1 apart"),
        ({"repeated": True}, "0 apart"),
        ({"offset": 2}, "aligned"),
    ],
)
def test_a_bias_with_gaps_is_copied(along: str, how: dict[str, Any], why: str) -> None:
    bench = Workbench()
    axis = 0 if along == "rows" else 1
    if "steps" in how:
        how = {"steps": tuple(how["steps"] if i == axis else 1 for i in range(2))}
    if "repeated" in how:
        how = {"repeated": (axis,)}
    bias = bench.array(*((5, 1) if along == "rows" else (1, 3)), **how)
    case = bench.case(
        bench.array(5, 7), bench.array(7, 3), epilog=E.RELU_BIAS, inputs={"bias": bias}, along=along
    )  # fmt: skip
    _, plan = check(case)
    assert copied(plan) == ["bias"]
    assert why in plan.moves[0].why


@pytest.mark.parametrize("along", ["rows", "columns"])
@pytest.mark.parametrize("epilog", [E.DRELU, E.DGELU])
@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"order": "other"}, "not contiguous"), ({"gaps": 4}, "multiples"), ({"steps": -1}, "multiples"),
        ({"between": 4}, "multiples"), ({"offset": 4}, "aligned to 4 bytes"),
    ],
)  # fmt: skip
def test_an_aux_input_that_lies_differently_is_copied(epilog: Any, along: str, how: dict[str, Any], why: str) -> None:
    """m and n are such that the shape tells the direction."""
    bench = Workbench()
    packed_axis = 1 if along == "rows" else 2
    if "order" in how:
        how = {"order": "C" if along == "rows" else "F"}
    for key, axis in (("gaps", packed_axis), ("steps", 3 - packed_axis)):
        if key in how:
            how = {key: tuple(how[key] if i == axis else int(key == "steps") for i in range(3))}
    if "between" in how:
        how = {"gaps": tuple(4 if i == 3 - packed_axis else 0 for i in range(3))}
    case = backward(bench, epilog, along, 2, m=25, n=19, **how)
    _, plan = check(case)
    assert copied(plan) == ["aux"]
    assert why in plan.moves[0].why


@pytest.mark.parametrize(("c_order", "out_order"), ["CF", "FC"])
def test_c_of_the_other_order_than_out_is_copied(c_order: str, out_order: str) -> None:
    bench = Workbench()
    c, out = bench.array(5, 3, order=c_order), bench.out(5, 3, order=out_order)
    _, plan = check(bench.case(bench.array(5, 7), bench.array(7, 3), c=c, out=out, beta=1))
    assert copied(plan) == ["c"]
    assert "order" in plan.moves[0].why


@pytest.mark.parametrize("shape", [(1, 3), (5, 1), (1, 1), (3,), (4, 1, 3), (4, 5, 1)])
def test_a_broadcast_c_is_spread_out(shape: tuple[int, ...]) -> None:
    bench = Workbench()
    case = bench.case(bench.array(4, 5, 7), bench.array(4, 7, 3), c=bench.array(*shape), beta=1)
    _, plan = check(case)
    assert copied(plan) == ["c"]
    assert plan.moves[0].elements < 4 * 5 * 3 * (4 if len(shape) == 3 else 1) * 2


def test_a_broadcast_batch_is_copied_once() -> None:
    bench = Workbench()
    a = bench.array(6, 5, 8, steps=(1, 1, 2), repeated=(0,))
    _, plan = check(bench.case(a, bench.array(6, 8, 3)))
    assert copied(plan) == ["a"]
    assert math.prod(plan.moves[0].shape) == 5 * 8
    assert plan.moves[0].elements == 5 * 8


def test_a_product_over_no_terms_reads_zeros() -> None:
    bench = Workbench()
    for c, beta in ((None, 0), (bench.array(5, 3), 2)):
        _, plan = check(bench.case(bench.array(5, 0), bench.array(0, 3), c=c, beta=beta))
        assert copied(plan) == ["a", "b"]
        assert all(move.zeroed for move in plan.moves)


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("conjugated", list(itertools.product([False, True], repeat=2)))
@pytest.mark.parametrize("orders", ["CC", "CF", "FC", "FF"])
def test_only_matrices_that_cublaslt_transposes_are_conjugated_by_it(
    swapped: bool, conjugated: tuple[bool, bool], orders: str
) -> None:
    bench = Workbench(Types(float32, float32, float32, float32, None, True))
    a, b = (
        bench.array(*shape, order=order, conjugated=conj)
        for shape, order, conj in zip(((5, 7), (7, 3)), orders, conjugated, strict=True)
    )
    _, plan = check(bench.case(a, b, out=bench.out(5, 3, order="C" if swapped else "F"), alpha=1 - 1j))
    natural = "C" if swapped else "F"  # what cuBLASLt reads without transposing
    assert copied(plan) == [x for x, c, o in zip("ab", conjugated, orders, strict=True) if c and o == natural]
    assert all(move.conjugate for move in plan.moves)


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("shape", [(5, 3), (1, 3), (1, 1)])
def test_a_conjugated_c_is_copied(order: str, shape: tuple[int, int]) -> None:
    bench = Workbench(Types(float64, float64, float64, float64, None, True))
    c = bench.array(*shape, order=order, conjugated=True)
    _, plan = check(bench.case(bench.array(5, 7), bench.array(7, 3), c=c, beta=2))
    assert copied(plan) == ["c"]
    assert "conjugated" in plan.moves[0].why


def test_conjugating_twice_is_nothing() -> None:
    bench = Workbench(Types(float64, float64, float64, float64, None, True))
    case = bench.case(bench.array(5, 7, conjugated=True), bench.array(7, 3), conj=(True, False))
    _, plan = check(case)
    assert copied(plan) == []
    assert Operation.C not in [value for attribute, value in plan.attributes if attribute in (A.TRANSA, A.TRANSB)]


@pytest.mark.parametrize("orders", ["CC", "CF", "FC", "FF"])
def test_the_conjugate_of_real_numbers_is_no_work(orders: str) -> None:
    bench = Workbench()
    a, b = bench.array(5, 7, order=orders[0]), bench.array(7, 3, order=orders[1])
    _, plan = check(bench.case(a, b, conj=(True, True)))
    assert copied(plan) == []


@pytest.mark.parametrize(
    "types", [Types(int8, int8, int32, int32), Types(float8_e4m3fn, float8_e4m3fn, *[float16] * 2)]
)
@pytest.mark.parametrize("extents", [(5, 7, 3), (1, 1, 1), (16, 16, 3), (17, 16, 16), (16, 5, 16), (3, 16, 32)])
def test_narrow_extents_are_rounded_up_with_zeros(types: Types, extents: tuple[int, int, int]) -> None:
    m, n, k = extents
    bench = Workbench(types)
    for order in "CF":
        case = bench.case(bench.array(m, k), bench.array(k, n), out=bench.out(m, n, order=order))
        _, plan = check(case)
        unit = 4 if types.a is int8 else 16
        assert plan.d.rows % unit == 0
        assert plan.a.rows % unit == 0  # K, as A is transposed
        assert all(move.zeroed for move in plan.moves_in if math.prod(move.shape) < move.elements)
