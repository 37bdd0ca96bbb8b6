# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F811  (a fixture is imported and is a parameter's name)
"""``python -m nvmath_device cache warm``: what is built, what a program then finds, what is said. Uses no GPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import uuid

import pytest
from numba import cuda
from numba.cuda.types import float32, void

import nvmath_device as nd
from nvmath_device import warming
from nvmath_device.errors import InvalidArgumentError
from nvmath_device.lto.codegen import Code
from nvmath_device.lto.store import Store
from tests.kernel_stubs import matmul
from tests.real_code import ROOT, generated  # noqa: F401  (a fixture)

# A program: a kernel with generated code and a helper, one for two types, and one without a signature. The constant
# is another one in each test, so that nothing is in the store before.
PROGRAM = """
from numba import cuda
from numba.cuda.types import float32, float64, void

import nvmath_device as nd

mm = nd.Matmul(
    (32, 32, 32), "float64", "real", arrangement=("row_major", "col_major", "col_major"), block_size=128
)


@cuda.jit(device=True)
def scaled(x):
    return x * {constant}


@nd.jit(void(float64[::1], float64[::1], float64[::1]))
def product(a, b, c):
    mm.execute(scaled(1.0), a, b, 0.0, c)


@nd.jit([void(float32[::1]), void(float64[::1])])
def scale(x):
    x[0] = scaled(x[0])


@nd.jit
def anything(x):
    x[0] = 1


if __name__ == "__main__":
    from numba.cuda import compiler

    def refuse(*args, **kwargs):
        raise SystemExit("Numba compiles")

    compiler.compile_extra = refuse
    for kernel in (product, scale):
        for types in kernel.signatures:
            print(kernel.py_func.__name__, len(kernel.build(types, 90).cubin))
"""


def command(*arguments, cwd=None, **environment):
    inherited = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True, text=True, timeout=300, cwd=cwd, env={**inherited, **environment},
    )  # fmt: skip


def cache(*arguments, **options):
    return command("-m", "nvmath_device", "cache", *arguments, **options)


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM.format(constant=1 + uuid.uuid4().int % 10**9))
    return path


def test_a_warmed_program_finds_its_kernels(program, generated):
    cold = command(program)
    assert cold.returncode != 0
    assert "Numba compiles" in cold.stderr  # the check of the check

    warmed = cache("warm", program, "--cc", "90")
    assert warmed.returncode == 0, warmed.stderr
    assert re.findall(r"(\w+)\(.*\)  built in \d+\.\d s", warmed.stdout) == ["product", "scale", "scale"]
    assert "left out  anything: nd.jit has no signature" in warmed.stdout

    warm = command(program)
    assert warm.returncode == 0, warm.stderr
    sizes = re.findall(r"^ *(\d+)  sm_90", warmed.stdout, re.MULTILINE)
    assert warm.stdout.split() == ["product", sizes[0], "scale", sizes[1], "scale", sizes[2]]

    by_name = cache("warm", "program", "--cc", "90", cwd=program.parent)
    assert by_name.returncode == 0, by_name.stderr
    assert by_name.stdout.count("there already") == 3


def test_the_list_names_kernels(program, tmp_path):
    text = program.read_text().replace("@nd.jit(void(float64[::1], float64[::1], float64[::1]))", "@nd.jit")
    program.write_text(text)
    store = {"NVMATH_DEVICE_CACHE_DIR": str(tmp_path / "store")}
    assert cache("warm", program, "--cc", "80", **store).returncode == 0
    listed = cache("list", **store).stdout
    assert re.findall(r"kernel  sm_80  (\w+)\((.*)\)", listed) == [
        ("scale", "array(float64, 1d, C)"), ("scale", "array(float32, 1d, C)"),
    ]  # fmt: skip
    exported = tmp_path / "kernels.zip"
    assert cache("export", exported, **store).returncode == 0
    other = {"NVMATH_DEVICE_CACHE_DIR": str(tmp_path / "other")}
    assert cache("import", exported, **other).returncode == 0
    both = cache("warm", program, "--cc", "8.0", "--cc", "sm_90", **other).stdout
    assert re.findall(r"(sm_80|sm_90) .*(there|built)", both) == [("sm_80", "there"), ("sm_90", "built")] * 2


def test_one_that_fails_is_told_and_the_others_are_built(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(
        "from numba.cuda.types import float32, void\nimport nvmath_device as nd\n"
        "@nd.jit(void(float32[::1]))\ndef wrong(x):\n    x[0] = x.nothing_of_the_kind\n"
        "@nd.jit(void(float32[::1]))\ndef right(x):\n    x[0] = 1\n"
        "@nd.jit(void(float32[::1]))\ndef unkeepable(x):\n    x[0] = plain()\n"
        "def plain():\n    return 1\n"
    )
    done = cache("warm", path, "--cc", "90", NVMATH_DEVICE_CACHE_DIR=str(tmp_path / "store"))
    assert done.returncode == 1
    assert re.findall(r"sm_90  (\w+)\(", done.stdout) == ["right"]
    assert re.findall(r"nvmath_device: sm_90  (\w+)\(", done.stderr) == ["wrong", "unkeepable"]
    assert "nothing_of_the_kind" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "environment", "text"),
    [
        (("nowhere.py", "--cc", "90"), {}, "there is no file nowhere.py"),
        (("no_such_module", "--cc", "90"), {}, "neither a module that can be imported nor a path"),
        (("json", "--cc", "90"), {}, "json has no kernel made by nvmath_device.jit"),
        (("json", "--cc", "77"), {}, "--cc: '77' is not a known compute capability"),
        (("json",), {"CUDA_VISIBLE_DEVICES": ""}, "say for which target, as in --cc 90"),
        (("json", "--cc", "90"), {"NVMATH_DEVICE_CACHE_DIR": "off"}, "the code store is off"),
        (("json", "--cc", "90"), {"NUMBA_ENABLE_CUDASIM": "1"}, "unset NUMBA_ENABLE_CUDASIM"),
    ],
    ids=lambda value: "",
)
def test_refusals(arguments, environment, text, tmp_path):
    done = cache("warm", *arguments, cwd=tmp_path, **environment)
    assert done.returncode == 1
    assert text in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_module_is_an_error_of_the_family():
    with pytest.raises(InvalidArgumentError, match="neither a module"):
        warming.load("no_such_package.module")


def test_code_of_all_kernels_is_generated_at_once(monkeypatch, tmp_path):
    """What any kernel needs is asked for in one call, whatever else of them fails afterwards."""
    gemms = [matmul(size=(n, 8, 8)) for n in (1, 2, 3)]
    first, second, third = gemms

    @nd.jit(void(float32[::1]))
    def one(x):
        first.execute(1.0, x, x, 0.0, x)
        second.execute(1.0, x, x, 0.0, x)

    @nd.jit(void(float32[::1]))
    def two(x):
        second.execute(1.0, x, x, 0.0, x)
        third.execute(1.0, x, x, 0.0, x)
        cuda.syncthreads()

    together = []

    def codes(recipes):
        together.append([recipe.symbol for recipe in recipes])
        return [Code(recipe.symbol, b"", {}) for recipe in recipes]

    monkeypatch.setattr("nvmath_device.lto.store.default_store", lambda: Store(tmp_path))
    monkeypatch.setattr("nvmath_device.numba_backend.kernel_builds.default_store", lambda: Store(tmp_path))
    monkeypatch.setattr("nvmath_device.lto.codegen.codes", codes)
    list(warming.warm([one, two], [nd.ComputeCapability(9, 0), nd.ComputeCapability(8, 0)]))
    wanted = {mm.resolved(nd.ComputeCapability(*cc)).recipe("SMEM").symbol for mm in gemms for cc in ((9, 0), (8, 0))}
    assert len(together[0]) == len(wanted) == 6
    assert set(together[0]) == wanted
