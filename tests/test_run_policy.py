# SPDX-License-Identifier: Apache-2.0
"""The rules of ``conftest.py``, tried on small test folders in a pytest process of their own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
SET_BY_A_RUN = (
    "NUMBA_ENABLE_CUDASIM",
    "NVMATH_DEVICE_REQUIRE_GPU",
    "NVMATH_DEVICE_TEST_EVENTS",
    "PYTEST_ADDOPTS",
    "PYTHONPATH",
)


@pytest.fixture
def run_pytest(tmp_path: Path):
    """A function {file: text} -> (exit code, output) of pytest over those files with our conftest."""

    def run(files: dict[str, str], *arguments: str, **environment: str) -> tuple[int, str]:
        root = tmp_path / "tests"
        shutil.copytree(TESTS / "counting", root / "counting")
        shutil.copy(TESTS / "conftest.py", root)
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        variables = {name: value for name, value in os.environ.items() if name not in SET_BY_A_RUN} | environment
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-ra", *(arguments or ["tests"])]
        done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=120)
        return done.returncode, done.stdout + done.stderr

    return run


PASSES = "def test_passes(): pass\n"


@pytest.mark.parametrize(
    "skipped",
    [
        "import pytest\ndef test_it(): pytest.skip('no time')\n",
        "import pytest\n@pytest.mark.skip(reason='not today')\ndef test_it(): pass\n",
        "import pytest\npytest.importorskip('no_such_module_at_all')\ndef test_it(): pass\n",
        "import pytest\n@pytest.mark.xfail(run=False)\ndef test_it(): pass\n",
    ],
    ids=["in the test", "by a mark", "whole module", "xfail without a run"],
)
def test_a_skip_for_another_reason_fails_the_run(run_pytest, skipped):
    code, output = run_pytest({"test_a.py": PASSES, "test_b.py": skipped})
    assert code == 1, output
    assert "skipped for another reason than 'needs a GPU'" in output
    assert re.search(r"^tests/test_b\.py.*: ", output, re.MULTILINE), output


def test_a_skip_for_want_of_a_gpu_is_allowed(run_pytest):
    skipped = "import pytest\ndef test_it(): pytest.skip('needs a GPU')\n"
    code, output = run_pytest({"test_a.py": PASSES, "test_b.py": skipped})
    assert (code, "1 passed, 1 skipped" in output) == (0, True), output


def test_gpu_tests_skip_cleanly_where_no_device_is_visible(run_pytest):
    files = {"gpu/test_a.py": "def test_it(): raise SystemExit('ran')\n", "test_b.py": PASSES}
    code, output = run_pytest(files, CUDA_VISIBLE_DEVICES="")
    assert code == 0, output
    assert "1 passed, 1 skipped" in output
    assert "needs a GPU" in output


def test_a_machine_that_must_have_a_gpu_may_not_skip(run_pytest):
    code, output = run_pytest({"gpu/test_a.py": PASSES}, CUDA_VISIBLE_DEVICES="", NVMATH_DEVICE_REQUIRE_GPU="1")
    assert code == 4, output
    assert "reports no device" in output


SIMULATOR_CHECK = "import os\ndef test_it(): assert os.environ['NUMBA_ENABLE_CUDASIM'] == '1'\n"


def test_simulator_tests_are_left_out_of_a_full_run_and_run_on_their_own(run_pytest, tmp_path):
    code, output = run_pytest({"sim/test_a.py": SIMULATOR_CHECK, "test_b.py": PASSES})
    assert (code, "1 passed" in output) == (0, True), output
    assert "tests/sim is left out" in output
    shutil.rmtree(tmp_path / "tests")
    code, output = run_pytest({"sim/test_a.py": SIMULATOR_CHECK, "test_b.py": PASSES}, "tests/sim")
    assert (code, "1 passed" in output) == (0, True), output
    shutil.rmtree(tmp_path / "tests")
    code, output = run_pytest({"sim/test_a.py": SIMULATOR_CHECK, "test_b.py": PASSES}, NUMBA_ENABLE_CUDASIM="1")
    assert (code, "1 passed" in output) == (0, True), output


COUNTED = """
import logging, subprocess, sys
LOG = "import logging; logging.getLogger('nvmath_device.lto.codegen').info('made one', extra={'event': '%s'})"

def test_here():
    exec(LOG % "ltoir")
    exec(LOG % "ltoir")
    exec(LOG % "lookup")
    logging.getLogger("nvmath_device").info("no event")

def test_in_a_child():
    subprocess.run([sys.executable, "-c", LOG % "cubin"], check=True)
"""


def test_events_of_the_run_and_of_its_child_processes_are_counted(run_pytest, tmp_path):
    events = tmp_path / "events"
    events.write_text("cubin\n")  # of an earlier pass
    code, output = run_pytest({"test_a.py": COUNTED}, NVMATH_DEVICE_TEST_EVENTS=str(events))
    assert code == 0, output
    assert "2 LTO-IRs generated, 1 cubins linked, 0 simulated kernels" in output
    assert sorted(events.read_text().split()) == ["cubin", "cubin", "ltoir", "ltoir", "passed", "passed"]
