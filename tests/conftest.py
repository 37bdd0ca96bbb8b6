# SPDX-License-Identifier: Apache-2.0
"""What holds for every test run: which tests belong to it, which skips are allowed, a count of what it made.

- Tests under ``tests/sim`` need Numba's simulator, and that is chosen before Numba is imported: they run in a
  pytest process of their own. ``pytest tests/sim`` turns the simulator on by itself; a run over all of
  ``tests`` leaves them out and says so.
- Tests under ``tests/gpu`` are marked ``gpu``; a test with that mark is skipped with 'needs a GPU' where
  there is none. ``NVMATH_DEVICE_REQUIRE_GPU=1`` makes that an error, for machines that are meant to have one.
- A skip for any other reason fails the run.
- The closing lines say how many LTO-IRs, cubins and simulated kernels the run made (see
  ``counting/sitecustomize.py``). The file named by ``NVMATH_DEVICE_TEST_EVENTS`` collects these and the
  outcomes of the tests, one word a line, over several runs.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import runpy
import shutil
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

HERE = Path(__file__).resolve().parent
SIMULATOR_TESTS = HERE / "sim"
GPU_TESTS = HERE / "gpu"
COUNTING = HERE / "counting"
NEEDS_GPU = "needs a GPU"
EVENTS_VARIABLE = "NVMATH_DEVICE_TEST_EVENTS"

# How long an example takes says more about the machine and its first imports than about the code.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

forbidden_skips = pytest.StashKey[list[str]]()
events_file = pytest.StashKey[tuple[Path, int]]()


def simulator_is_on() -> bool:
    return os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0")


def gpu_count() -> int:
    """CUDA devices, asked of the driver itself: no package under test has a say in what is skipped."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


# -- before collection --------------------------------------------------------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    config.stash[forbidden_skips] = []
    paths = [(config.invocation_params.dir / arg.split("::")[0]).resolve() for arg in config.args]
    if paths and all(path.is_relative_to(SIMULATOR_TESTS) for path in paths):
        os.environ["NUMBA_ENABLE_CUDASIM"] = "1"
    config.stash[events_file] = start_counting()


def start_counting() -> tuple[Path, int]:
    """Count events of this process and its children from now on: the file they go to, and its size so far."""
    if EVENTS_VARIABLE not in os.environ:
        folder = tempfile.mkdtemp(prefix="nvmath-device-events-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        os.environ[EVENTS_VARIABLE] = str(Path(folder) / "events")
    path = Path(os.environ[EVENTS_VARIABLE])
    path.touch()
    inherited = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(COUNTING), *([inherited] if inherited else [])])
    runpy.run_path(str(COUNTING / "sitecustomize.py"))
    return path, path.stat().st_size


def pytest_report_header(config: pytest.Config) -> list[str]:
    if simulator_is_on():
        return ["nvmath_device: Numba's simulator is on, only tests/sim runs"]
    return [f"nvmath_device: {gpu_count()} GPU(s); tests/sim is left out: pytest tests/sim"]


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    in_simulator_tests = collection_path.is_relative_to(SIMULATOR_TESTS)
    if simulator_is_on() and collection_path.is_relative_to(HERE) and collection_path != HERE:
        return None if in_simulator_tests else True
    return True if in_simulator_tests and not simulator_is_on() else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(GPU_TESTS):
            item.add_marker(pytest.mark.gpu)
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if not gpu_items or gpu_count():
        return
    if os.environ.get("NVMATH_DEVICE_REQUIRE_GPU", "0") not in ("", "0"):
        raise pytest.UsageError("NVMATH_DEVICE_REQUIRE_GPU is set and the CUDA driver reports no device")
    for item in gpu_items:
        item.add_marker(pytest.mark.skip(reason=NEEDS_GPU))


# -- skips --------------------------------------------------------------------------------------------------


def skip_reason(report: pytest.TestReport | pytest.CollectReport) -> str | None:
    """Why the test did not run; None if it ran. An expected failure that is not run counts as skipped."""
    expected_failure = getattr(report, "wasxfail", None)
    if expected_failure is not None:
        return expected_failure if expected_failure.startswith("[NOTRUN]") else None
    if not report.skipped:
        return None
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return reason.removeprefix("Skipped: ")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item):
    report = yield
    note_skip(item.config, report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector):
    report = yield
    note_skip(collector.config, report)
    return report


def note_skip(config: pytest.Config, report: pytest.TestReport | pytest.CollectReport) -> None:
    reason = skip_reason(report)
    if reason is not None and not reason.startswith(NEEDS_GPU):
        config.stash[forbidden_skips].append(f"{report.nodeid}: {reason}")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    clean = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    if clean and session.config.stash[forbidden_skips]:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


# -- closing lines ------------------------------------------------------------------------------------------


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    path, start = config.stash[events_file]
    made = Counter(path.read_bytes()[start:].decode().split())
    with path.open("a") as file:
        for outcome in ("passed", "failed", "error", "skipped"):
            file.write(f"{outcome}\n" * len(terminalreporter.stats.get(outcome, [])))
    terminalreporter.section("made in this run")
    terminalreporter.line(
        f"{made['ltoir']} LTO-IRs generated, {made['cubin']} cubins linked, {made['simulated']} simulated kernels"
    )
    if skips := config.stash[forbidden_skips]:
        terminalreporter.section(f"failed: skipped for another reason than '{NEEDS_GPU}'", red=True)
        for line in skips:
            terminalreporter.line(line)
