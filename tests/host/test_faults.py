# SPDX-License-Identifier: Apache-2.0
"""Rules of cuBLASLt by type, device and version: the table against its own documentation."""

from __future__ import annotations

from dataclasses import fields

import pytest

from nvmath_device.dtypes import bfloat16, float8_e4m3fn, float8_e5m2, float16, float32, float64, int8, int32
from nvmath_device.host import faults
from nvmath_device.host.cublaslt_enums import ComputeType
from nvmath_device.host.faults import FAULTS, Fault, Rules, rules_for
from nvmath_device.host.gemm_types import resolve_types

NEW = (13, 5, 0)
REGULAR = [resolve_types(t, t) for t in (float16, bfloat16, float32, float64)]


@pytest.mark.parametrize("types", REGULAR, ids=str)
@pytest.mark.parametrize("cc", [75, 80, 86, 89, 90, 100, 103, 120])
def test_ordinary_types_have_no_rules_but_faults(types, cc, monkeypatch):
    monkeypatch.setattr(faults, "FAULTS", ())
    assert rules_for(types, cc, NEW) == Rules()


@pytest.mark.parametrize(("cc", "tn"), [(89, True), (90, True), (120, True), (121, True), (100, False), (103, False)])
@pytest.mark.parametrize("pair", [(float8_e4m3fn, float8_e4m3fn), (float8_e4m3fn, float8_e5m2)])
def test_fp8_wants_sixteen_bytes_and_k_contiguous_on_some_devices(pair, cc, tn):
    """cuBLAS documentation of cublasLtMatmul: TN on Ada, Hopper and Blackwell GeForce, 16 bytes everywhere."""
    rules = rules_for(resolve_types(*pair, result_type=float16), cc, NEW)
    assert (rules.multiple_m, rules.multiple_k, rules.leading, rules.pointer) == (16, 16, 16, 16)
    assert rules.tn is tn
    assert "fp8" in rules.why


@pytest.mark.parametrize("cc", [75, 80, 90, 100, 120])
@pytest.mark.parametrize("result", [int8, int32, float32])
def test_int8_wants_fours_and_k_contiguous_everywhere(result, cc):
    compute = ComputeType.COMPUTE_32F if result is float32 else ComputeType.COMPUTE_32I
    rules = rules_for(resolve_types(int8, int8, result_type=result, compute_type=compute), cc, NEW)
    assert (rules.multiple_m, rules.multiple_n, rules.multiple_k) == (4, 1, 4)
    assert (rules.leading, rules.pointer, rules.tn) == (4, 4, True)
    assert "int8" in rules.why


@pytest.mark.parametrize(
    ("version", "applies"),
    [
        ((12, 4, 0), False), ((12, 4, 9), False), ((12, 5, 0), True), ((12, 9, 99), True), ((13, 0, 0), True),
        ((13, 0, 1), False), ((13, 1, 0), False),
    ],
)  # fmt: skip
def test_a_fault_is_there_from_its_first_to_its_last_version(version, applies):
    fault = Fault(first=(12, 5, 0), last=(13, 0, 0), architectures=None, change={}, what="x")
    assert fault.applies(version, 90) is applies
    open_ended = Fault(first=(12, 5, 0), last=None, architectures=None, change={}, what="x")
    assert open_ended.applies(version, 90) is (version >= (12, 5, 0))


def test_a_fault_is_on_its_devices_alone():
    fault = Fault(first=(12, 0, 0), last=None, architectures=(80, 90), change={}, what="x")
    assert [cc for cc in (75, 80, 86, 89, 90, 100) if fault.applies(NEW, cc)] == [80, 90]


def test_faults_change_the_rules_and_the_last_one_wins(monkeypatch):
    first = Fault((12, 0, 0), None, (90,), {"loop_batches": True, "leading": 8}, "one")
    second = Fault((12, 0, 0), None, None, {"leading": 32}, "two")
    monkeypatch.setattr(faults, "FAULTS", (first, second))
    types = REGULAR[0]
    assert rules_for(types, 90, NEW) == Rules(loop_batches=True, leading=32)
    assert rules_for(types, 80, NEW) == Rules(leading=32)
    assert rules_for(types, 80, (11, 8, 0)) == Rules()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.what)
def test_every_fault_of_the_table_is_well_formed(fault):
    assert fault.what
    assert fault.last is None or fault.first <= fault.last
    assert len(fault.first) == 3
    assert set(fault.change) <= {field.name for field in fields(Rules)}
    assert fault.change
    cc = fault.architectures[0] if fault.architectures else 90
    assert rules_for(REGULAR[0], cc, fault.first) != Rules()


def test_long_leading_dimensions_are_avoided_on_hopper():
    assert rules_for(REGULAR[0], 90, NEW).max_leading_bytes == 2**31
    assert rules_for(REGULAR[0], 80, NEW).max_leading_bytes is None
