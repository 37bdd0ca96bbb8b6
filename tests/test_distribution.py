# SPDX-License-Identifier: Apache-2.0
"""The distribution: what a wheel, an sdist and an editable install hold, and types checked on an install.

Nothing here uses the network: packages are built with the setuptools of the test extra, without isolation,
from a copy of the checkout (setuptools writes build/ and egg-info beside the sources).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

# Top-level folders of the repository -> what they are called once installed.
LAYERS = {"nvmath_device": "nvmath_device", "lto": "nvmath_device/lto", "host": "nvmath_device/host"}
NOT_SHIPPED = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "tests", "examples", "docs")

WHERE = (
    "import nvmath_device.lto.store as lto, nvmath_device.host as host, nvmath_device.errors as own; "
    "print(lto.__file__, host.__file__, own.__file__)"
)


def call(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Standard output of a command that succeeds, run without what this test run put on Python's path."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, env=inherited | environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def pip(*arguments: str | Path, cwd: Path) -> None:
    call(sys.executable, "-m", "pip", "--no-input", *arguments, cwd=cwd)


def build(source: Path, kind: str, target: Path) -> str:
    """Ask setuptools itself for what pip has no option for; the name of the file made in ``target``."""
    code = f"from setuptools import build_meta; print(build_meta.build_{kind}({str(target)!r}))"
    return call(sys.executable, "-c", code, cwd=source).split()[-1]


def shipped_files() -> dict[str, Path]:
    """Every Python file of the three layers in the checkout, by the name it must have in an install."""
    return {
        f"{installed}/{path.relative_to(ROOT / folder).as_posix()}": path
        for folder, installed in LAYERS.items()
        for path in (ROOT / folder).rglob("*.py")
    }


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("source") / "checkout"
    return Path(shutil.copytree(ROOT, copy, ignore=NOT_SHIPPED))


@pytest.fixture(scope="session")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("wheel")
    pip("wheel", "-q", "--no-deps", "--no-index", "--no-build-isolation", "-w", target, source, cwd=target)
    (built,) = target.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel's content, as pip lays it out: put it on PYTHONPATH."""
    target = tmp_path_factory.mktemp("installed")
    pip("install", "-q", "--no-deps", "--no-index", "--target", target, wheel, cwd=target)
    return target


# -- wheel and sdist -----------------------------------------------------------------------------------------


def test_the_wheel_holds_every_module_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
        content = {name: archive.read(name) for name in names}
    expected = shipped_files()
    assert sorted(names) == sorted([*expected, "nvmath_device/py.typed", "nvmath_device/tuned_h200.json"])
    assert [name for name, path in expected.items() if content[name] != path.read_bytes()] == []


def test_the_wheel_carries_licence_and_requirements(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (archive.read(name) for name in archive.namelist() if name.endswith("/METADATA"))
        licences = {name.rpartition("/")[2]: archive.read(name) for name in archive.namelist() if "/licenses/" in name}
    fields = message_from_bytes(metadata)
    assert fields["License-Expression"] == "Apache-2.0"
    assert fields["Requires-Python"] == ">=3.11"
    assert {"cu12", "cu13", "sysctk12", "sysctk13", "cupy", "torch", "test", "bench", "docs"} <= set(
        fields.get_all("Provides-Extra")
    )
    assert b"TERMS AND CONDITIONS FOR USE, REPRODUCTION, AND DISTRIBUTION" in licences["LICENSE"]
    assert b"libmathdx" in licences["NOTICE"]


def test_dependencies_are_those_of_the_project():
    names = {re.match(r"[\w.-]+", line)[0].lower() for line in PYPROJECT["project"]["dependencies"]}
    assert {"numba", "numba-cuda", "cuda-python", "numpy", "ml_dtypes", "cuda-pathfinder"} == names


def test_numpy_is_capped_while_numba_cuda_needs_it():
    """numba-cuda 0.30.4 calls np.row_stack: the cap may go when its source no longer does."""
    import numba_cuda

    uses = [
        path
        for path in Path(numba_cuda.__file__).parent.rglob("*.py")
        if re.search(r"\bnp\.row_stack\b", path.read_text())
    ]
    capped = any(line.startswith("numpy") and "<2.5" in line for line in PYPROJECT["project"]["dependencies"])
    assert capped == bool(uses), f"np.row_stack is used in {uses}"


def test_a_wheel_from_the_sdist_is_the_same(source, wheel, tmp_path):
    name = build(source, "sdist", tmp_path)
    with tarfile.open(tmp_path / name) as archive:
        checked = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # Python 3.11.0 to 3.11.3 have none
        archive.extractall(tmp_path / "unpacked", **checked)
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    pip(
        "wheel",
        "-q",
        "--no-deps",
        "--no-index",
        "--no-build-isolation",
        "-w",
        tmp_path,
        unpacked,
        cwd=tmp_path,
    )
    (again,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(again) as first, zipfile.ZipFile(wheel) as second:
        assert sorted(first.namelist()) == sorted(second.namelist())
        for entry in first.namelist():
            if not entry.endswith("/RECORD"):
                assert first.read(entry) == second.read(entry), entry


# -- importing it --------------------------------------------------------------------------------------------


def test_an_installed_wheel_imports_from_a_foreign_folder(installed, tmp_path):
    files = call(sys.executable, "-c", WHERE, cwd=tmp_path, PYTHONPATH=str(installed)).split()
    assert [Path(file).relative_to(installed).as_posix() for file in files] == [
        "nvmath_device/lto/store.py",
        "nvmath_device/host/__init__.py",
        "nvmath_device/errors.py",
    ]


def test_in_a_checkout_its_own_files_win_over_an_installed_wheel(installed):
    """The current folder comes first, so nvmath_device/ hides the install; lto/ and host/ must come along."""
    files = call(sys.executable, "-c", WHERE, cwd=ROOT, PYTHONPATH=str(installed)).split()
    assert [Path(file).relative_to(ROOT).as_posix() for file in files] == [
        "lto/store.py",
        "host/__init__.py",
        "nvmath_device/errors.py",
    ]


def test_an_editable_install_imports_from_a_foreign_folder(source, tmp_path):
    environment = tmp_path / "venv"
    call(sys.executable, "-m", "venv", "--without-pip", environment, cwd=tmp_path)
    python = environment / "bin" / "python"
    (own,) = environment.glob("lib/python*/site-packages")
    name = build(source, "editable", tmp_path)
    pip("--python", python, "install", "-q", "--no-deps", "--no-index", tmp_path / name, cwd=tmp_path)
    assert list(own.glob("nvmath_device-*.dist-info"))
    files = call(python, "-c", WHERE, cwd=tmp_path).split()
    assert [Path(file).relative_to(source).as_posix() for file in files] == [
        "lto/store.py",
        "host/__init__.py",
        "nvmath_device/errors.py",
    ]


# -- types ---------------------------------------------------------------------------------------------------


def test_mypy_accepts_every_installed_file(installed, tmp_path):
    """Against the install, from elsewhere: mypy does not follow package-dir in a checkout."""
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml")]
    command += ["--cache-dir", str(tmp_path / "cache"), "-p", "nvmath_device"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=os.environ | {"MYPYPATH": str(installed), "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        timeout=600,
    )
    output = done.stdout.replace(str(installed), "") + done.stderr
    assert done.returncode == 0, output[-4000:]
    assert f"no issues found in {len(shipped_files())} source files" in output
