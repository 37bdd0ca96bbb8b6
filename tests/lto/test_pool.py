# SPDX-License-Identifier: Apache-2.0
"""Worker processes that cannot start, die or say nonsense; what a worker imports; what the store files its work under.

The job is an FFT's traits, which a real worker answers at once.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import nvmath_device as nd
from nvmath_device.errors import CodegenError
from nvmath_device.lto import codegen, pool, toolchain, worker
from nvmath_device.lto.recipes import fft_recipe
from nvmath_device.lto.store import default_store

ROOT = Path(__file__).parents[2]
RECIPE = fft_recipe(
    nd.FftDescriptor(size=12, precision="float32", fft_type="c2c", direction="forward", execution="Thread"),
    sm=nd.ComputeCapability(9, 0),
)
ASK = """
import sys
sys.path[0] = {root!r}
import nvmath_device as nd
from nvmath_device.lto import pool
from nvmath_device.lto.recipes import fft_recipe

descriptor = nd.FftDescriptor(size=12, precision="float32", fft_type="c2c", direction="forward", execution="Thread")
print(pool.Workers().run("fft_traits", fft_recipe(descriptor, sm=nd.ComputeCapability(9, 0)))[0]["storage_size"])
"""


def run_a_job() -> dict[str, object]:
    meta, blob = pool.Workers().run("fft_traits", RECIPE)
    assert blob == b""
    return meta


def test_a_worker_answers() -> None:
    assert run_a_job()["storage_size"] == 12


def test_a_worker_imports_nothing_from_the_current_folder(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise ImportError('the json.py of the user')")
    done = subprocess.run([sys.executable, "-"], input=ASK.format(root=str(ROOT)), cwd=tmp_path, **CAPTURED)
    assert (done.stdout, done.stderr) == ("12\n", "")


def test_a_worker_imports_from_where_its_parent_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "only_the_parent_knows.py").write_text("SIZE = 12")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(pool, "_START", f"{pool._START.partition('from')[0]} import only_the_parent_knows")
    with pytest.raises(CodegenError, match="code 0 and no answer"):
        run_a_job()


CAPTURED = {"capture_output": True, "text": True, "timeout": 60}


@pytest.mark.parametrize("interpreter", ["/nonexistent/python", "/"])
def test_an_interpreter_that_does_not_start_is_named(interpreter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", interpreter)
    with pytest.raises(CodegenError, match=f"no process could be started .* tried sys.executable, {interpreter}$"):
        run_a_job()


def test_a_program_that_is_no_interpreter_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/echo")
    with pytest.raises(CodegenError, match=r"ended with code 0 and no answer; it ran sys.executable, /bin/echo$"):
        run_a_job()


def test_a_frozen_program_is_not_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/program")
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert run_a_job()["storage_size"] == 12


def test_a_killed_worker_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_START", "import os; os.kill(os.getpid(), 9)")
    with pytest.raises(CodegenError, match=r"code -9 and no answer \(killed: out of memory\?\)"):
        run_a_job()


def test_what_a_failed_worker_wrote_is_shown_as_its_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_START", "raise SystemExit('no such thing')")
    with pytest.raises(CodegenError, match=r"code 1 and no answer; it ran .* and wrote:\nno such thing") as error:
        run_a_job()
    assert "libmathdx says" not in str(error.value)


def test_stop_ends_what_runs_and_lets_no_more_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_START", "import time; time.sleep(60)")
    workers, errors = pool.Workers(), []

    def run() -> None:
        with pytest.raises(CodegenError) as error:
            workers.run("fft_traits", RECIPE)
        errors.append(str(error.value))

    thread = threading.Thread(target=run)
    thread.start()
    deadline = time.monotonic() + 30
    while not workers._running and time.monotonic() < deadline:
        time.sleep(0.01)
    workers.stop()
    thread.join(30)
    assert len(errors) == 1
    assert "code -9" in errors[0]
    with pytest.raises(CodegenError, match="was not generated"):
        workers.run("fft_traits", RECIPE)


# -- what the store files it under ---------------------------------------------------------------------------


@pytest.fixture
def empty_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NVMATH_DEVICE_CACHE_DIR", str(tmp_path))


def test_traits_come_from_a_worker_where_this_process_has_another_library(
    empty_store: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the answers of one version would be filed under the other."""

    def foreign(recipe: object) -> dict[str, object]:
        return {"storage_size": 99}

    monkeypatch.setattr(toolchain, "matches_loaded", lambda text: False)
    monkeypatch.setattr(worker, "ask_fft_traits", foreign)
    assert codegen.fft_traits(RECIPE)["storage_size"] == 12


@pytest.mark.parametrize("variable", ["LIBMATHDX_NVRTC_ARGS_EXTRA", "LIBMATHDX_NVRTC_ARGS_OVERWRITE"])
def test_libmathdxs_own_variables_are_part_of_the_key(
    variable: str, empty_store: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """libmathdx compiles with the arguments that these give, so its code is another one."""
    made: list[str] = []

    def generate(jobs):
        for i, (_, recipe) in enumerate(jobs):
            made.append(recipe.symbol)
            yield i, {"symbol": recipe.symbol, "symbols": {}}, b"%d" % len(made)

    monkeypatch.setattr(codegen, "generate", generate)
    plain = codegen.code(RECIPE).ltoir
    monkeypatch.setenv(variable, "-lineinfo")
    changed = codegen.code(RECIPE).ltoir
    monkeypatch.setenv(variable, "-G")
    assert len({plain, changed, codegen.code(RECIPE).ltoir}) == 3
    monkeypatch.delenv(variable)
    assert codegen.code(RECIPE).ltoir == plain
    assert len(list(default_store().entries())) == 3
