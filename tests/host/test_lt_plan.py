# SPDX-License-Identifier: Apache-2.0
"""Plans for cuBLASLt, carried out on modelled memory and compared element by element with the logical product.

Numbers are small and whole, so everything but GELU is exact in float64 and the comparison is of bits. What is around
operands is poison, and the model refuses what cuBLASLt's documentation does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from nvmath_device.dtypes import (
    ElementType,
    bfloat16,
    float16,
    float32,
    float64,
    int8,
    int32,
    uint8,
)
from nvmath_device.errors import NvmathDeviceError, UnsupportedError
from nvmath_device.host.arrays import view
from nvmath_device.host.epilogs import EPILOGS, MatmulEpilog
from nvmath_device.host.faults import Rules, rules_for
from nvmath_device.host.lt_place import Strided
from nvmath_device.host.lt_plan import plan_lt
from nvmath_device.host.options import MatmulOptions
from nvmath_device.host.problem import plan_problem
from tests.host.lt_cases import FP8, VERSION, Case, Operand, check, run, strided_operands
from tests.host.lt_model import Memory
from tests.host.lt_strategies import Maker, cases, reason_to_refuse

E = MatmulEpilog
E4M3, E5M2 = FP8


@settings(max_examples=1000)
@given(cases())
def test_any_product(case: Case) -> None:
    why = reason_to_refuse(case)
    if why is None:
        check(case)
        return
    event(f"refused: {why}")
    with pytest.raises(UnsupportedError, match=f"^{why}: "):
        run(case)


# -- anything at all ----------------------------------------------------------------------------------------

any_shape = st.lists(st.integers(0, 5), max_size=4).map(tuple)
NAMES = {
    "a", "b", "c", "out", "bias", "epilog", "epilog_inputs", "result_type", "compute_type", "scale_type", "aux_type",
    "quantization_scales", "result_amax", "aux_amax", "relu_aux", "gelu_aux",
}  # fmt: skip


@settings(max_examples=400)
@given(st.data())
def test_whatever_is_refused_is_refused_in_words(data: Any) -> None:
    """Any shapes and types: either it is planned, or the error is ours and begins with the argument."""
    draw, memory = data.draw, Memory()
    make = Maker(draw, memory)
    elements = st.sampled_from([float16, float32, float64, bfloat16, int8, int32, uint8, *FP8])
    regular = draw(st.booleans())

    def any_operand(shape: tuple[int, ...], element: ElementType) -> Operand:
        is_complex = element in (float32, float64) and draw(st.integers(0, 9)) == 0
        return make.operand(shape, element, is_complex, fill=False)

    element = draw(elements)
    m, n, k = draw(st.integers(0, 3)), draw(st.integers(0, 3)), draw(st.integers(0, 3))
    shapes = [(m, k), (k, n), (m, n), (m, n)] if regular else [draw(any_shape) for _ in range(4)]
    a, b, c, out = (any_operand(shape, element if regular else draw(elements)) for shape in shapes)
    epilog = draw(st.sampled_from(list(EPILOGS)))
    names = draw(st.sets(st.sampled_from(["bias", "relu_aux", "gelu_aux"]))) if not regular else EPILOGS[epilog].inputs
    inputs = {name: any_operand(draw(any_shape), draw(elements)) for name in names}
    c, out = (x if draw(st.booleans()) else None for x in (c, out))
    scaled = frozenset(draw(st.sets(st.sampled_from("abcd"), max_size=1)))
    options = MatmulOptions(result_amax=draw(st.booleans()) and element in FP8)

    def plan() -> None:
        problem = plan_problem(
            a.view, b.view, c.view if c else None, out=out.view if out else None, epilog=epilog,
            epilog_inputs={name: operand.view for name, operand in inputs.items()}, scaled=scaled, options=options,
        )  # fmt: skip
        if not problem.shapes.is_empty:
            operands = {"a": a, "b": b, **({"c": c} if c else {}), **inputs}
            plan_lt(problem, strided_operands(operands, out), rules_for(problem.types, 90, VERSION))

    refusal = refusal_of(plan)
    event("planned" if refusal is None else "refused")
    if refusal is not None:
        arguments = refusal.partition(":")[0].replace(" and ", ", ").split(", ")
        assert NAMES.issuperset(arguments), refusal


def refusal_of(plan: Any) -> str | None:
    try:
        plan()
    except NvmathDeviceError as error:
        return str(error)
    return None


@pytest.mark.parametrize("order", ["row-major", "column-major"])
def test_reasons_speak_of_the_matrices_that_the_user_has(order: str) -> None:
    """And not of their transposes, which cuBLASLt is told of for a row-major D."""
    a, b = view(np.zeros((30, 40), np.float32)[:, ::2], "a"), view(np.zeros((20, 50), np.float32), "b")
    out = view(np.zeros((30, 50), np.float32) if order == "row-major" else np.zeros((50, 30), np.float32).T, "out")
    problem = plan_problem(a, b, out=out)
    plan = plan_lt(problem, {"a": Strided.of(a), "b": Strided.of(b), "out": Strided.of(out)}, Rules())
    assert plan.swapped == (order == "row-major")
    (move,) = plan.moves
    assert move.why == "strides (40, 2) of a 30 x 20 matrix: neither rows nor columns are contiguous"

    rules = Rules(multiple_k=16, why="because")
    plan = plan_lt(problem, {"a": Strided.of(a), "b": Strided.of(b), "out": Strided.of(out)}, rules)
    assert [move.why for move in sorted(plan.moves, key=lambda move: move.slot)] == [
        "extents (30, 20) are rounded up to (30, 32): because",
        "extents (20, 50) are rounded up to (32, 50): because",
    ]
