# SPDX-License-Identifier: Apache-2.0
"""Every case of ``reports.json``, gathered from users' public reports, is a test whose name carries its id.

``test_r008_...`` covers R008; a name may carry several ids. A case without a test says why it comes later.
"""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
REPORTS = json.loads((TESTS / "reports.json").read_text())
AREAS = {"device-gemm", "device-fft", "device-other", "host-matmul", "interop", "lto/link", "errors", "install"}


def ids_in(name: str) -> set[str]:
    """``test_r025_r041_words`` -> R025 and R041; ids stand in front."""
    ids = re.match(r"test((?:_r\d{3})+)(?:_|$)", name)
    return {part.upper() for part in ids[1].split("_") if part} if ids else set()


def test_functions(path: Path) -> list[str]:
    """Names of the functions and methods pytest takes for tests."""
    nodes = ast.walk(ast.parse(path.read_text()))
    functions = (node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))
    return [name for name in functions if name.startswith("test")]


test_functions.__test__ = False  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def covered() -> Counter[str]:
    files = [path for path in TESTS.rglob("test_*.py") if path != Path(__file__)]
    assert len(files) >= 10
    return Counter(i for path in files for name in test_functions(path) for i in ids_in(name))


def test_every_case_has_a_test_or_a_reason(covered: Counter[str]) -> None:
    assert [i for i, report in REPORTS.items() if i not in covered and "later" not in report] == []


def test_what_comes_later_has_no_test_yet(covered: Counter[str]) -> None:
    assert [i for i, report in REPORTS.items() if i in covered and "later" in report] == []


def test_no_test_carries_an_unknown_id(covered: Counter[str]) -> None:
    assert sorted(set(covered) - set(REPORTS)) == []


def test_the_list_is_well_formed() -> None:
    assert len(REPORTS) >= 40
    assert list(REPORTS) == sorted(REPORTS)
    for i, report in REPORTS.items():
        assert re.fullmatch(r"R\d{3}", i)
        assert set(report) - {"later"} == {"area", "case"}
        assert report["area"] in AREAS
        assert len(report["case"].split()) >= 4
        assert len(report.get("later", "enough words to say why it waits").split()) >= 4


@pytest.mark.parametrize(
    ("name", "ids"),
    [
        ("test_r008_wide", {"R008"}),
        ("test_r025_r041_simulated", {"R025", "R041"}),
        ("test_r056", {"R056"}),
        ("test_r2c", set()),
        ("test_r0081_x", set()),
        ("test_the_r008_case", set()),
    ],
)
def test_ids_are_read_off_names(name: str, ids: set[str]) -> None:
    assert ids_in(name) == ids


@pytest.mark.parametrize("path", sorted((TESTS / "host").glob("test_reports_*.py")), ids=lambda path: path.name)
def test_what_runs_with_any_library_runs_on_a_gpu_too(path: Path) -> None:
    """Tests of ``tests/host`` that ask for a library are imported by the file of that name in ``tests/gpu/host``."""
    nodes = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
    shared = {n.name for n in nodes if n.name.startswith("test_") and "library" in [a.arg for a in n.args.args]}
    if not shared:
        return
    twin = ast.parse((TESTS / "gpu" / "host" / path.name).read_text())
    imports = [node for node in twin.body if isinstance(node, ast.ImportFrom)]
    imported = {name.name for node in imports if node.module == f"tests.host.{path.stem}" for name in node.names}
    assert shared - imported == set()
