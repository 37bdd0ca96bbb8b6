# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F811  (a fixture is imported and is a parameter's name)
"""The machine code of kernels of ``examples/``: of those made of code that other tests have generated already."""

from __future__ import annotations

import importlib
import sys

import pytest
from numba.cuda.types import float16, float32, float64, int64

from nvmath_device.pipelines import pipeline_plan
from tests.example_runs import EXAMPLES
from tests.real_code import DOUBLE, PIPELINED, SM90, SM90A, generated  # noqa: F401  (a fixture)

X, W, BIAS, Y = float16[:, ::1], float16[::1, :], float32[::1], float32[:, ::1]
DOUBLES = float64[:, ::1]


def example(name, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, str(EXAMPLES)])
    return importlib.import_module(name)


def recipe(mm):
    return pipeline_plan(*mm.resolved(SM90A), depth=None, sm=SM90A).recipe


def check(kernel, signature, unit):
    report = kernel.report(signature=signature, cc=90)
    assert report.path == unit
    assert (report.local_loads, report.local_stores, report.count("CALL")) == (0, 0, 0)


@pytest.mark.parametrize(
    ("name", "signature"),
    [("linear_layer", (X, W, BIAS, Y)), ("persistent_gemm", (X, W, BIAS, Y, int64, int64))],
)
def test_layers_by_one_call_leave_all_in_registers(generated, name, signature, monkeypatch):
    """Functions with hundreds of branches, and tiles whose numbers a block reckons with in a loop."""
    module = example(name, monkeypatch)
    assert recipe(module.mm) == recipe(PIPELINED)
    check(module.layer, signature, "HGMMA")


def test_a_product_compiled_ahead_of_time_leaves_all_in_registers(generated, monkeypatch):
    module = example("ahead_of_time", monkeypatch)
    assert module.mm.resolved(SM90).recipe("SMEM") == DOUBLE.resolved(SM90).recipe("SMEM")
    check(module.product, (DOUBLES, DOUBLES, DOUBLES), "DMMA")


def test_sums_of_parts_leave_all_in_registers(monkeypatch):
    """These call the division of integers, which is a function."""
    report = example("split_k", monkeypatch).add_up.report(signature=(float32[:, :, ::1], Y), cc=90)
    assert (report.local_loads, report.local_stores) == (0, 0)
    stream_k = example("stream_k", monkeypatch)
    report = stream_k.add_up.report(signature=(float32[:, :, :, ::1], Y, *[int64] * 4), cc=90)
    assert (report.local_loads, report.local_stores) == (0, 0)
