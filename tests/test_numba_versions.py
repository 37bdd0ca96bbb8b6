# SPDX-License-Identifier: Apache-2.0
"""The range of numba-cuda versions that is declared: the whole of the tests run on the newest one, which is what an
installation takes; here are the oldest one, and what is older."""

from __future__ import annotations

import subprocess
import tomllib
from importlib import metadata
from pathlib import Path

import numba_cuda
import pytest
from numba import cuda
from numba.cuda.types import float32, void

import nvmath_device as nd
from nvmath_device import numba_backend
from nvmath_device.errors import MissingDependencyError
from nvmath_device.numba_backend.supported import NUMBA_CUDA_FROM, check_numba_cuda
from tests.environments import environment_with

ROOT = Path(__file__).resolve().parent.parent
ENOUGH = [f"tests/test_{name}.py" for name in ("kernel_typing", "jit_launching", "aot", "device_helpers")]


@pytest.fixture
def pretend(monkeypatch):
    def version(number):
        monkeypatch.setattr(numba_cuda, "__version__", number)
        check_numba_cuda.cache_clear()
        numba_backend._install.cache_clear()

    yield version
    monkeypatch.undo()
    check_numba_cuda.cache_clear()
    numba_backend._install.cache_clear()


def declared() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (found,) = [text for text in project["dependencies"] if text.startswith("numba-cuda")]
    return found


def test_r040_what_is_declared_is_what_is_checked():
    assert declared() == f"numba-cuda>={NUMBA_CUDA_FROM}"


def test_r040_the_oldest_version_that_is_declared_works(tmp_path):
    """In an environment of its own, unless it is the one that all the tests run on."""
    if metadata.version("numba-cuda") == NUMBA_CUDA_FROM:
        assert numba_cuda.__version__ == NUMBA_CUDA_FROM
        return
    python = environment_with(tmp_path, f"numba-cuda=={NUMBA_CUDA_FROM}")
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *ENOUGH]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-5000:]


def simple(x):
    x[cuda.grid(1)] = 1


@pytest.mark.parametrize("old", ["0.29.0", "0.30.3", "0.4.9"])
@pytest.mark.parametrize(
    "use",
    [
        lambda: nd.compile(simple, void(float32[:]), sm=90),
        lambda: nd.jit(simple).build(void(float32[:]), 90),
        lambda: nd.shared._numba_type_,
    ],
    ids=["compile", "jit", "in a kernel"],
)
def test_r040_an_older_version_is_refused_with_both_versions(pretend, tmp_path, monkeypatch, old, use):
    monkeypatch.setenv("NVMATH_DEVICE_CACHE_DIR", "off")
    pretend(old)
    with pytest.raises(MissingDependencyError, match=rf'{old} is installed.*"numba-cuda>={NUMBA_CUDA_FROM}"'):
        use()


@pytest.mark.parametrize("new", [NUMBA_CUDA_FROM, "0.30.5", "0.31.0rc1", "1.0"])
def test_r040_a_newer_one_is_tried(pretend, new):
    pretend(new)
    assert nd.compile(simple, void(float32[:]), sm=90).code
