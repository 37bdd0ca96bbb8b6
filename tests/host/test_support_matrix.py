# SPDX-License-Identifier: Apache-2.0
"""The support matrix: that everything is asked as it is named, and that the table says what was answered."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nvmath_device.__main__ import main
from nvmath_device.dtypes import bfloat16, float8_e4m3fn, float8_e5m2, float16, float32, float64, int8, int32
from nvmath_device.errors import HostLibraryError, NoDeviceError
from nvmath_device.host import current_device
from nvmath_device.host import support_matrix as module
from nvmath_device.host.cublaslt_enums import ComputeType, Epilogue, Operation
from nvmath_device.host.epilogs import EPILOGS, MatmulEpilog
from nvmath_device.host.faults import Rules
from nvmath_device.host.lt_plan import plan_lt
from nvmath_device.host.probe import Found, Request
from nvmath_device.host.support_matrix import (
    BATCHES,
    LAYOUTS,
    Trial,
    all_types,
    cell,
    render,
    request_for,
    support_matrix,
    try_everything,
)
from tests.host import fake_cublaslt

E = MatmulEpilog
HALF = next(t for t in all_types() if (t.a, t.d, t.compute) == (float16, float16, ComputeType.COMPUTE_32F))
COMPLEX = next(t for t in all_types() if t.is_complex and t.compute is ComputeType.COMPUTE_64F)


# -- what is asked -------------------------------------------------------------------------------------------


def test_types_are_those_of_the_documentation() -> None:
    """Rows of the two tables at cublasLtMatmul in the cuBLAS 13 documentation, without compute types."""
    fp8 = [
        (a, b, c, d)
        for a, b in ((float8_e4m3fn, float8_e4m3fn), (float8_e4m3fn, float8_e5m2), (float8_e5m2, float8_e4m3fn))
        for c, d in (
            (float16, float16), (bfloat16, bfloat16), (float32, float32), (float16, float8_e4m3fn),
            (bfloat16, float8_e4m3fn), (float16, float8_e5m2), (bfloat16, float8_e5m2),
        )
        if not (a is b and d is float8_e5m2)
    ]  # fmt: skip
    wanted = {
        (float16, float16, float16, float16), (float16, float16, float32, float32),
        (bfloat16, bfloat16, bfloat16, bfloat16), (bfloat16, bfloat16, float32, float32),
        (float32,) * 4, (float64,) * 4, (int8, int8, int32, int32), (int8,) * 4, (int8, int8, float32, float32), *fp8,
    }  # fmt: skip
    found = all_types()
    assert {(t.a, t.b, t.c, t.d) for t in found if not t.is_complex} == wanted
    assert {t.a for t in found if t.is_complex} == {float32, float64}
    assert len(set(found)) == len(found)
    computes = {t.compute for t in found if t.a is float32 and not t.is_complex}
    assert ComputeType.COMPUTE_32F_FAST_TF32 in computes
    assert len(computes) == 6


@pytest.mark.parametrize("types", [HALF, COMPLEX], ids=str)
def test_products_are_what_their_names_say(types: Any) -> None:
    """Every layout is read where it is, and cuBLASLt is told the orders, the epilog and the batch that are named."""
    for epilog, layout, batch in product(EPILOGS, LAYOUTS, BATCHES):
        if types.is_complex and epilog is not E.DEFAULT:
            continue
        request = request_for(types, epilog, layout, batch)
        problem = request.problem()
        assert (problem.types, problem.epilog, problem.order) == (types, epilog, layout[2])
        assert (problem.shapes.m, problem.shapes.n, problem.shapes.k, problem.shapes.batch) == (64, 48, 32, batch)
        lt = plan_lt(problem, request.operands(), Rules())
        moved = {move.slot for move in lt.moves}
        sums_along_k = {E.BGRADA: {"a"}, E.BGRADB: {"b"}}  # which has to be the contiguous axis then
        assert moved <= sums_along_k.get(epilog, set())
        assert lt.swapped == (layout[2] == "row_major")
        assert lt.d.batch_count == (4 if batch else 1)
        # A that lies in the order of cuBLASLt's D is not transposed
        attributes = {attribute.name: value for attribute, value in lt.attributes}
        of_a = attributes["TRANSB" if lt.swapped else "TRANSA"]
        assert moved or of_a == (Operation.N if layout[0] == layout[2] else Operation.T)


def test_there_is_a_c_where_its_type_is_another() -> None:
    for types in all_types():
        request = request_for(types, E.DEFAULT, LAYOUTS[0])
        assert (request.c is not None) == (types.c is not types.d)
        assert request.problem().types == types


def test_everything_is_asked_once() -> None:
    asked: list[tuple[Any, ...]] = []

    def ask_one(request: Request) -> Found:
        arrays = [request.a, request.b, request.out] + ([request.c] if request.c else [])
        lies = tuple((view.element, view.is_complex, view.shape, view.strides) for view in arrays)
        asked.append((lies, request.epilog, request.options.compute_type, request.options.scale_type))
        return Found(0, ())

    rows = try_everything(ask_one)
    with_epilogs = [t for t in all_types() if not t.is_complex and t.a is not int8]
    without = len(all_types()) - len(with_epilogs)
    assert len(rows) == 2 * len(all_types())
    assert len(asked) == len(set(asked)) == 2 * 8 * (16 * len(with_epilogs) + without)


# -- what is answered ----------------------------------------------------------------------------------------


def test_refusals_are_told_apart() -> None:
    def ask_one(request: Request) -> Found:
        if request.epilog is E.BIAS:
            raise HostLibraryError("no", status=15)
        if request.epilog is E.GELU:
            raise module.NvmathDeviceError("gelu is refused by name")
        return Found(5, ("a",) if request.epilog is E.RELU else ())

    row, _ = try_everything(ask_one, [HALF])
    assert {trial.why for trial in row.epilogs[E.BIAS]} == {"cuBLASLt has no algorithm"}
    assert {trial.why for trial in row.epilogs[E.GELU]} == {"gelu is refused by name"}
    assert [trial.layout for trial in row.epilogs[E.RELU]] == list(LAYOUTS)
    assert {trial.found for trial in row.epilogs[E.RELU]} == {Found(5, ("a",))}


def test_other_exceptions_are_not_taken_for_refusals() -> None:
    def ask_one(request: Request) -> Found:
        raise AssertionError("a mistake of ours")

    with pytest.raises(AssertionError):
        try_everything(ask_one, [HALF])


PLACE, COPY, NONE = Found(0, ()), Found(0, ("a",)), None


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ([PLACE] * 8, "yes"),
        ([PLACE] * 7 + [COPY], "yes, 7 in place"),
        ([COPY] * 8, "yes, 0 in place"),
        ([PLACE] * 3 + [NONE] * 5, "3 of 8"),
        ([PLACE, COPY, COPY] + [NONE] * 5, "3 of 8, 1 in place"),
        ([NONE] * 8, "-"),
    ],
)
def test_cells(answers: list[Found | None], words: str) -> None:
    assert cell([Trial(layout, answer) for layout, answer in zip(LAYOUTS, answers, strict=True)]) == words


def only_half(monkeypatch: pytest.MonkeyPatch, rule: fake_cublaslt.Rule) -> dict[str, Any]:
    """The report of a made-up cuBLASLt on float16 and complex128."""
    fake_cublaslt.install(monkeypatch, rule)
    monkeypatch.setattr(module, "all_types", lambda: [HALF, COMPLEX])
    monkeypatch.setattr(module, "version", lambda: (13, 1, 0))
    monkeypatch.setattr(current_device, "device_count", lambda: 1)
    monkeypatch.setattr(current_device, "current_index", lambda: -1)
    entered: list[int] = []

    class on_device:
        def __init__(self, index: int) -> None:
            entered.append(index)

        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(current_device, "on_device", on_device)
    report = support_matrix()
    assert entered == [0], "without a current device it is the first"
    return report


def no_batched_bias(question: fake_cublaslt.Question) -> int | None:
    if question.desc["epilogue"] is Epilogue.BIAS and question.d["batch_count"] > 1:
        return None
    if question.desc["epilogue"] is Epilogue.DRELU and question.desc["transa"] is not Operation.T:
        return None
    return 64


def test_report_and_table(monkeypatch: pytest.MonkeyPatch) -> None:
    report = json.loads(json.dumps(only_half(monkeypatch, no_batched_bias)))
    assert (report["cublaslt"], report["device"], report["compute_capability"]) == ("13.1.0", "NVIDIA H200", "9.0")
    assert [(row["a"], row["batch"]) for row in report["rows"]] == [
        ("float16", []), ("complex128", []), ("float16", [4]), ("complex128", [4])
    ]  # fmt: skip
    single, _, batched, _ = (row["epilogs"] for row in report["rows"])
    assert single["BIAS"]["cell"] == "yes"
    assert batched["BIAS"]["cell"] == "-"
    assert single["DRELU"]["cell"] == "4 of 8"
    supported = [
        tuple(layout.values())
        for layout, trial in zip(report["layouts"], single["DRELU"]["trials"], strict=True)
        if trial["supported"]
    ]
    # cuBLASLt's A is transposed: for a column-major D the user's A, row-major; for a row-major D B, column-major
    assert supported == [layout for layout in LAYOUTS if layout[1 if layout[2] == "row_major" else 0] != layout[2]]
    assert single["GELU"]["trials"][0] == {"supported": True, "copied": [], "workspace_bytes": 64}

    lines = render(report).splitlines()
    tables = [line for line in lines if line.startswith("|")]
    assert len(tables) == 2 * (2 + 2)
    assert {line.count("|") for line in tables} == {5 + len(EPILOGS) + 1}
    columns = [name.strip() for name in tables[0].split("|")[1:-1]]
    first = dict(zip(columns, (text.strip() for text in tables[2].split("|")[1:-1]), strict=True))
    assert (first["A x B"], first["D"], first["compute type"], first["scale type"]) == (
        "float16 x float16", "float16", "32F", "R_32F"
    )  # fmt: skip
    assert (first["DEFAULT"], first["DRELU"], first["BIAS"]) == ("yes", "4 of 8", "yes")
    complex_row = dict(zip(columns, (text.strip() for text in tables[3].split("|")[1:-1]), strict=True))
    assert (complex_row["DEFAULT"], complex_row["BIAS"]) == ("yes", "")
    assert lines[0] == "# cuBLASLt 13.1.0 on NVIDIA H200 (compute capability 9.0)"
    assert "## Batches of (4,)" in lines


# -- the command ---------------------------------------------------------------------------------------------


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    found = only_half(monkeypatch, no_batched_bias)
    monkeypatch.setattr(module, "support_matrix", lambda: found)
    return found


def test_command_prints_the_table(report: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["support-matrix"]) == 0
    assert capsys.readouterr().out == render(report)


def test_command_prints_json(report: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["support-matrix", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(report))


@pytest.mark.parametrize(("flag", "read"), [([], str), (["--json"], json.loads)])
def test_command_writes_a_file(
    report: dict[str, Any], capsys: pytest.CaptureFixture[str], tmp_path: Path, flag: list[str], read: Callable
) -> None:
    path = tmp_path / "matrix"
    assert main(["support-matrix", *flag, "--output", str(path)]) == 0
    assert read(path.read_text()) == (json.loads(json.dumps(report)) if flag else render(report))
    assert capsys.readouterr().out == ""


def test_file_that_cannot_be_written(
    report: dict[str, Any], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["support-matrix", "--output", str(tmp_path / "missing" / "matrix")]) == 1
    assert "missing" in capsys.readouterr().err


def test_without_a_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(module, "current_device", SimpleNamespace(device_count=lambda: 0))
    with pytest.raises(NoDeviceError):
        support_matrix()
    assert main(["support-matrix"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("nvmath_device: support-matrix: there is no CUDA device")
    assert "run it on a machine with a GPU" in captured.err
