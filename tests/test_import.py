# SPDX-License-Identifier: Apache-2.0
"""``import nvmath_device`` is quick and takes nothing along."""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import nvmath_device

ROOT = Path(__file__).resolve().parent.parent

# Each snippet runs in an interpreter of its own; -I keeps the environment of the test run away from it.
TIMED = """
import sys, time
sys.path.insert(0, sys.argv[1])
before = set(sys.modules)
start = time.perf_counter()
import nvmath_device
seconds = time.perf_counter() - start
import json
print(json.dumps([seconds, sorted(set(sys.modules) - before)]))
"""

WITHOUT_DEPENDENCIES = """
import sys
sys.path.insert(0, sys.argv[1])
BLOCKED = {"numpy", "numba", "cuda", "ml_dtypes", "llvmlite", "cupy", "torch", "jax"}

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
for name in BLOCKED & set(sys.modules):
    del sys.modules[name]
"""


def run(code: str, *arguments: str) -> str:
    command = [sys.executable, "-I", "-c", code, str(ROOT), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_import_takes_under_a_fifth_of_a_second_and_imports_no_dependency():
    seconds, modules = min(json.loads(run(TIMED)) for _ in range(5))
    assert seconds < 0.2
    imported = {name.partition(".")[0] for name in modules}
    assert "nvmath_device" in imported
    assert imported.isdisjoint({"numpy", "numba", "cuda", "ml_dtypes", "llvmlite", "ctypes"})


@pytest.mark.parametrize("module", ["errors", "lto", "lto.store", "host", "info"])
def test_modules_that_need_no_dependency_import_without_any(module):
    assert run(WITHOUT_DEPENDENCIES + f"import nvmath_device.{module}\nprint('imported')") == "imported\n"


def test_info_runs_without_any_dependency_and_says_what_is_missing():
    code = "from nvmath_device.info import info; import json; print(json.dumps(info()))"
    report = json.loads(run(WITHOUT_DEPENDENCIES + code))
    assert set(report["libraries"]["mathdx"]) == {"error"}
    assert set(report["driver"]) == {"error"}
    assert any("libmathdx" in problem["problem"] for problem in report["problems"])


def test_no_module_has_the_name_of_something_public():
    """Importing it would put the module in that place."""
    modules = {module.name for module in pkgutil.iter_modules(nvmath_device.__path__)}
    assert modules & set(nvmath_device.__all__) == {"errors"}
