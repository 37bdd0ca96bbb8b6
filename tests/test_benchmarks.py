# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F811  (a fixture is imported and is a parameter's name)
"""The parts of ``benchmarks/`` that need no GPU: cases, choices, verdicts, JSON, and what the kernels become."""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path

import pytest

import nvmath_device as nd
from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError
from nvmath_device.numba_backend import tile_kernels
from nvmath_device.pipelines import pipeline_plan
from nvmath_device.tile_choices import refusal
from nvmath_device.tile_suggestions import shipped
from tests.real_code import PIPELINED, SM90A, generated  # noqa: F401  (a fixture)

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))

import gemm_cases
import gemm_kernels
import plot_gemm
import timing
from gemm_cases import CASES, FUSED, OURS, SEPARATE

WGMMA, FMA, MMA = ("wgmma", "TMA"), ("fma", "cp.async"), ("mma", "cp.async")
# Of each case: A, B and C, rows, what is to be reached, how it is multiplied and fetched.
WANTED = {
    "fp16-8192": ("float16", "float16", "float32", 8192, 0.90, WGMMA),
    "bf16-8192": ("bfloat16", "bfloat16", "float32", 8192, 0.90, WGMMA),
    "fp16-4096": ("float16", "float16", "float32", 4096, 0.85, WGMMA),
    "bf16-4096": ("bfloat16", "bfloat16", "float32", 4096, 0.85, WGMMA),
    "tf32-8192": ("tfloat32", "tfloat32", "float32", 8192, 0.85, WGMMA),
    "fp8-fp16-8192": ("float8_e4m3fn", "float8_e4m3fn", "float16", 8192, 0.80, WGMMA),
    "fp8-fp32-8192": ("float8_e4m3fn", "float8_e4m3fn", "float32", 8192, 0.80, WGMMA),
    "fp32-8192": ("float32", "float32", "float32", 8192, 0.90, FMA),
    "fp32-8192-rows": ("float32", "float32", "float32", 8192, 0.90, FMA),
    "fp64-8192": ("float64", "float64", "float64", 8192, 0.90, MMA),
    "fp64-8192-rows": ("float64", "float64", "float64", 8192, 0.90, MMA),
}
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


# -- cases ---------------------------------------------------------------------------------------------------


def test_the_cases_are_those_that_are_wanted():
    assert [case.name for case in CASES] == list(WANTED) == list(gemm_cases.BY_NAME)
    assert {c.name: (*c.precision, c.size, c.target) for c in CASES} == {n: w[:-1] for n, w in WANTED.items()}
    assert [case.name for case in CASES if case.fused] == ["fp16-8192", "fp16-4096"]


@each_case
def test_every_case_takes_the_path_that_it_is_about(case):
    mm = case.descriptor.tile(case.choice)
    path = mm.path(sm=90)
    assert (path.arithmetic, path.fetch) == WANTED[case.name][-1]
    assert not path.missing
    assert refusal(case.descriptor, case.choice, SM90A) is None
    assert pipeline_plan(*mm.resolved(SM90A), depth=case.choice.depth, sm=SM90A).depth == case.choice.depth
    assert case.sums == mm.precision.c.name == ("float64" if case.precision[0] == "float64" else "float32")


@each_case
def test_the_opponent_has_the_same_types_and_each_order_that_cublaslt_takes(case):
    orders = [opponent.orders for opponent in gemm_cases.opponents(case)]
    names = [opponent.name for opponent in gemm_cases.opponents(case)]
    assert len(set(names)) == len(names)
    if "fp8" in case.name:
        assert set(orders) == {("row_major", "col_major")}
        assert {opponent.fast_accumulation for opponent in gemm_cases.opponents(case)} == {False, True}
    else:
        assert len(set(orders)) == 4
    assert (case.compute == "COMPUTE_32F_FAST_TF32") == ("tfloat32" in case.precision)


@each_case
def test_the_allowed_error_would_show_a_type_too_narrow(case):
    """It is below the rounding of the operands to the next narrower type, relative to numbers of size 1."""
    lost = {"float16": 2**-9, "bfloat16": 2**-9, "tfloat32": 2**-9, "float32": 2**-12, "float64": 2**-25}
    assert 0 < case.allowed.error < lost.get(case.precision[0], 2**-4)
    assert case.allowed.why


# -- choices -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("64x32x16", ((64, 32, 16), 256, 4, 16)),
        ("64x32x16/128", ((64, 32, 16), 128, 4, 16)),
        ("64x32x16/128/3", ((64, 32, 16), 128, 3, 16)),
        ("64x32x16/128/3/8", ((64, 32, 16), 128, 3, 8)),
    ],
)
def test_a_choice_in_words(text, wanted):
    tile, *others = wanted
    assert gemm_cases.parse_choice(text, gemm_cases.HALVES) == nd.TileChoice(tile, *others)


@pytest.mark.parametrize("text", ["", "64x32", "64x32x16/", "64x32x16/1/2/3/4", "64x32x16/-1", "axbxc", " 64x32x16"])
def test_other_words_are_refused(text):
    with pytest.raises(ValueError, match="MxNxK"):
        gemm_cases.parse_choice(text, gemm_cases.HALVES)


def test_a_choice_of_nothing_is_refused():
    with pytest.raises((InvalidArgumentError, ArgumentTypeError), match="tile"):
        gemm_cases.parse_choice("0x32x16", gemm_cases.HALVES)


# -- times ---------------------------------------------------------------------------------------------------

CUBLASLT = gemm_cases.opponents(CASES[0])[0].name
TIMES = {
    name: {"gpu_ms": gpu_ms, "samples_ms": [[gpu_ms * 0.9, 1.0], [gpu_ms, 1.0], [gpu_ms * 2, 1.0]]}
    for name, gpu_ms in {CUBLASLT: 1.8, OURS: 2.0, FUSED: 2.1, SEPARATE: 4.2}.items()
}


def test_verdicts_are_ratios_of_medians():
    found = gemm_cases.verdicts(CASES[0], TIMES, CUBLASLT)
    assert [round(v.value, 6) for v in found] == [0.9, 1.05, 2.0]
    assert [v.word for v in found] == ["met", "missed", "met"]
    assert [v.target for v in found] == [0.90, 1.03, 1.0]


def test_who_does_not_take_part_has_no_verdict():
    assert gemm_cases.verdicts(CASES[0], {OURS: TIMES[OURS]}, None) == []
    assert len(gemm_cases.verdicts(CASES[0], {OURS: TIMES[OURS], FUSED: TIMES[FUSED]}, CUBLASLT)) == 1


def recorded(times):
    return gemm_cases.record(
        CASES[0], kernels={OURS: {"registers": 168}}, opponents_ms={CUBLASLT: 1.81}, algorithm="an algorithm",
        errors={OURS: 1e-6}, times=times, judged=gemm_cases.verdicts(CASES[0], times, CUBLASLT),
    )  # fmt: skip


def test_a_record_is_json_with_raw_samples_and_what_it_is_of():
    made = json.loads(json.dumps(recorded(TIMES)))
    assert made["case"] == "fp16-8192"
    assert (made["tile"], made["threads"], made["stages"], made["group"]) == ([128, 256, 64], 256, 4, 16)
    assert made["precision"] == ["float16", "float16", "float32"]
    assert made["times"][OURS]["samples_ms"] == TIMES[OURS]["samples_ms"]
    assert made["teraflops"][OURS] == pytest.approx(2 * 8192**3 / 2.0e-3 / 1e12)
    assert [v["verdict"] for v in made["verdicts"]] == ["met", "missed", "met"]


def test_a_bar_is_the_ratio_with_its_spread():
    (bar,) = plot_gemm.bars({"gemm": {"cases": [recorded(TIMES)]}})
    assert (bar.name, bar.target) == ("fp16-8192", 0.90)
    assert bar.ratio == pytest.approx(0.9)
    assert bar.least == bar.largest == pytest.approx(0.9)
    assert plot_gemm.bars({"gemm": {"cases": [recorded({OURS: TIMES[OURS]})]}}) == []


# -- kernels -------------------------------------------------------------------------------------------------


@each_case
def test_kernels_take_tensors_as_they_are_stored(case):
    a, b, c, *numbers = gemm_kernels.argument_types(case, fused=False)
    assert [x.layout for x in (a, b, c)] == [{"row_major": "C", "col_major": "F"}[x] for x in case.arrangement]
    assert str(a.dtype) == {"float8_e4m3fn": "uint8", "tfloat32": "float32", "bfloat16": "__nv_bfloat16"}.get(
        case.precision[0], case.precision[0]
    )
    assert str(c.dtype) == case.precision[2]
    assert len(numbers) == 3


@pytest.mark.parametrize("fused", [False, True])
def test_nothing_is_spilled(generated, fused):
    """In the kernel that is timed most, which is made of code that other tests have generated already."""
    case = gemm_cases.BY_NAME["fp16-8192"]
    mm, depth = case.descriptor.tile(case.choice), case.choice.depth
    plans = [pipeline_plan(*x.resolved(SM90A), depth=depth, sm=SM90A) for x in (mm, PIPELINED)]
    assert plans[0].recipe == plans[1].recipe
    kernel = (gemm_kernels.fused_kernel if fused else gemm_kernels.product_kernel)(mm, depth)
    report = kernel.report(signature=gemm_kernels.argument_types(case, fused=fused), cc=90)
    assert report.path == "HGMMA"
    assert (report.local_loads, report.local_stores, report.count("CALL")) == (0, 0, 0)
    assert report.resources.registers <= 255


OWN = [case for case in CASES if case.precision[0] in ("float32", "float64")]
# Of additions along a tile's K; straight code twice, for copies in vectors and for all arrays.
UNITS = {"fp32-8192": ("FFMA", 2 * 32 * 128), "fp64-8192": ("DMMA", 2 * 2 * (8 * 2))}


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("case", OWN, ids=lambda case: case.name)
def test_nothing_of_our_own_products_is_spilled(case, fused):
    kernel = (gemm_kernels.fused_kernel if fused else gemm_kernels.product_kernel)(
        case.descriptor.tile(case.choice), case.choice.depth
    )
    report = kernel.report(signature=gemm_kernels.argument_types(case, fused=fused), cc=90)
    assert (report.local_loads, report.local_stores, report.count("CALL")) == (0, 0, 0)
    unit, count = UNITS[case.name.removesuffix("-rows")]
    assert report.path == unit
    assert fused or report.count(unit) == count


OWN_LINES = {line.choice: line for line in shipped() if line.descriptor.precision.a.name in ("float32", "float64")}


@pytest.mark.parametrize("choice", OWN_LINES, ids=str)
def test_nothing_of_the_tables_own_products_is_spilled(choice):
    descriptor = OWN_LINES[choice].descriptor
    kernel = tile_kernels.product_kernel(descriptor.tile(choice), choice.depth)
    report = kernel.report(signature=tile_kernels.product_types(descriptor), cc=90)
    assert report.path in ("FFMA", "DMMA")
    assert (report.local_loads, report.local_stores, report.count("CALL")) == (0, 0, 0)


def test_every_round_has_all_competitors_and_none_always_follows_the_same_other():
    turns = []
    samples = timing.take_turns(dict.fromkeys("abc", 0) | {"b": 1, "c": 2}, lambda x: turns.append(x) or x, rounds=20)
    assert samples == {"a": [0] * 20, "b": [1] * 20, "c": [2] * 20}
    rounds = [turns[n : n + 3] for n in range(0, len(turns), 3)]
    assert all(sorted(one) == [0, 1, 2] for one in rounds)
    assert len({(first, second) for one in rounds for first, second in pairwise(one)}) == 6
