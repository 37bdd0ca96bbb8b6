# SPDX-License-Identifier: Apache-2.0
"""Any product through ``matmul`` and ``Matmul`` on a GPU that is not there, compared with NumPy in float64.

The same random products as in ``test_lt_plan``, but as arrays of libraries and through everything that a user's call
goes through: plans and their cache, descriptors of the real cuBLASLt, workspaces, copies, scales, and the short ways
of a second call.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

import nvmath_device.host as host
from nvmath_device.errors import UnsupportedError
from tests.host.fake_gpu import FakeGpu, running
from tests.host.fake_gpu_products import Product, change_rules, packages_for
from tests.host.lt_cases import Case
from tests.host.lt_strategies import Maker, cases, reason_to_refuse


@st.composite
def products(draw: Any) -> tuple[Case, dict[str, str], bool]:
    """A case, a library for each of its arrays, and whether scales are on the GPU."""
    case = draw(cases())
    operands = case.operands() | ({"out": case.out} if case.out else {})
    one = draw(st.booleans())
    packages = {name: draw(st.sampled_from(packages_for(operand))) for name, operand in operands.items()}
    if one:
        common = set.intersection(*(set(packages_for(operand)) for operand in operands.values()))
        packages = dict.fromkeys(packages, draw(st.sampled_from(sorted(common)))) if common else packages
    return case, packages, draw(st.booleans())


@settings(max_examples=150)
@given(products(), st.data())
def test_one_call_then_the_same_again(product: Any, data: Any) -> None:
    case, packages, scales_on_gpu = product
    gpu = FakeGpu(case.cc)
    gpu.memory = case.memory
    with running(gpu), pytest.MonkeyPatch.context() as patch:
        change_rules(patch, case)
        mine = Product(gpu, case, packages, scales_on_gpu=scales_on_gpu)

        def call() -> Any:
            return host.matmul(*mine.positional, **mine.of_object, **mine.of_plan, out=mine.out)

        why = reason_to_refuse(case)
        if why is not None:
            event(f"refused: {why}")
            with pytest.raises(UnsupportedError, match=f"^{why}: "):
                call()
            return
        mine.check(call())
        searches = gpu.lt.searches
        operand = Maker(data.draw, case.memory).again(case.a)
        mine.replace("a", operand)
        mine.check(call())
        assert gpu.lt.searches == searches, "the plan is cached"
    event(f"{packages['a']}")


@settings(max_examples=150)
@given(products(), st.data())
def test_planned_once_executed_often(product: Any, data: Any) -> None:
    case, packages, scales_on_gpu = product
    draw = data.draw
    gpu = FakeGpu(case.cc)
    gpu.memory = case.memory
    if reason_to_refuse(case):
        return
    with running(gpu), pytest.MonkeyPatch.context() as patch:
        change_rules(patch, case)
        mine = Product(gpu, case, packages, scales_on_gpu=scales_on_gpu)
        with host.Matmul(*mine.positional, **mine.of_object) as mm:
            needs_out = reason_to_refuse(replace(case, out=None)) is not None  # a new result would have another order
            mm.plan(**mine.of_plan, out=mine.out if needs_out or draw(st.booleans()) else None)
            mine.check(mm.execute(out=mine.out))
            taken, searches = gpu.allocated, gpu.lt.searches
            mine.check(mm.execute(out=mine.out))
            assert gpu.lt.searches == searches
            if mine.out is not None and not mine.case.problem().outputs:
                assert gpu.allocated == taken, "an execution with out takes no memory"
            maker = Maker(draw, case.memory)
            name = draw(st.sampled_from(sorted(case.operands())))
            operand = case.operands()[name]
            again = maker.again(operand) if draw(st.booleans()) or name.endswith("_aux") else maker.anew(operand)
            array = mine.replace(name, again)
            given_again = {"epilog_inputs": {name: array}} if name in case.inputs else {name: array}
            mm.reset_operands(**given_again)
            if why := reason_to_refuse(mine.case):  # where A decides about the order of a new result
                with pytest.raises(UnsupportedError, match=f"^{why}: "):
                    mm.execute(out=mine.out)
                return
            mine.check(mm.execute(out=mine.out))
            mine.check(mm.execute(out=mine.out))
