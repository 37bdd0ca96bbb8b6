# SPDX-License-Identifier: Apache-2.0
"""Kernels of ``nd.jit`` in the code store: built once, found by new processes without Numba's compiler. No GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pytest
from numba import cuda
from numba.cuda import types

import nvmath_device as nd
from nvmath_device import kernel_code
from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError, LaunchError, UnsupportedError
from nvmath_device.lto.store import default_store

X = types.Array(types.float32, 1, "C")


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("NVMATH_DEVICE_CACHE_DIR", str(tmp_path / "store"))
    return default_store()


@pytest.fixture
def builds(monkeypatch):
    """What was built, as (name, types, target)."""
    made, build = [], kernel_code.build

    def counted(function, argtypes, options, cc):
        made.append((function.__name__, argtypes, cc.sm))
        return build(function, argtypes, options, cc)

    monkeypatch.setattr(kernel_code, "build", counted)
    return made


def scaling(factor):
    @nd.jit
    def kernel(x):
        x[cuda.grid(1)] *= factor

    return kernel


def test_equal_kernels_are_built_once(store, builds):
    first, second = scaling(2.0).build((X,), 90), scaling(2.0).build("void(float32[::1])", "sm_90")
    assert first == second
    assert builds == [("kernel", (X,), "sm_90")]
    (entry,) = store.entries()
    assert entry.kind == "kernel"
    assert [p["words"] for p in first.parameters] == [["ptr", "ptr", "i64", "i64", "ptr", "i64", "i64"]]


@pytest.mark.parametrize("other", ["closure", "types", "target", "options"])
def test_what_the_code_depends_on_makes_another(store, builds, other):
    scaling(2.0).build((X,), 90)
    if other == "closure":
        scaling(3.0).build((X,), 90)
    elif other == "types":
        scaling(2.0).build((types.Array(types.float64, 1, "C"),), 90)
    elif other == "target":
        scaling(2.0).build((X,), 80)
    else:
        nd.jit(fastmath=True)(scaling(2.0).py_func).build((X,), 90)
    assert len(builds) == len(list(store.entries())) == 2


PROGRAM = textwrap.dedent(
    """
    import sys
    sys.path[:0] = sys.argv[1:2]
    from program import kernel, X
    before = set(sys.modules)
    code = kernel.build((X,), 90)
    import json
    from hashlib import sha256
    new = [m for m in sys.modules if m not in before]
    print(json.dumps([sha256(code.cubin).hexdigest(), code.entry, "nvmath_device.numba_backend.compiling" in new]))
    """
)
KERNEL = textwrap.dedent(
    """
    import nvmath_device as nd
    from numba import cuda
    from numba.cuda import types
    X = types.Array(types.float32, 1, "C")

    @cuda.jit(device=True)
    def helper(x):
        return x * {factor}

    @nd.jit
    def kernel(x):
        x[cuda.grid(1)] = helper(x[cuda.grid(1)])
    """
)


def run(folder):
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder)], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_r050_a_new_process_finds_what_another_has_built(store, tmp_path):
    (tmp_path / "program.py").write_text(KERNEL.format(factor=2))
    *first, compiled = run(tmp_path)
    assert compiled
    assert run(tmp_path) == [*first, False]
    (tmp_path / "program.py").write_text("# another first line\n\n" + KERNEL.format(factor=2))
    assert run(tmp_path) == [*first, False]
    (tmp_path / "program.py").write_text(KERNEL.format(factor=3))
    other, _, compiled = run(tmp_path)
    assert compiled
    assert other != first[0]


def test_a_kernel_without_words_is_not_kept(store, builds):
    class Odd:
        pass

    odd = Odd()

    @nd.jit
    def kernel(x):
        x[0] = odd.number

    with pytest.raises(UnsupportedError, match="odd"):
        kernel.build((X,), 90)
    assert not builds


def test_static_shared_arrays_above_48_kib_are_refused_with_the_dynamic_way(store):
    @nd.jit
    def kernel(x):
        data = cuda.shared.array(49_156 // 4, types.float32)
        data[cuda.threadIdx.x] = x[cuda.threadIdx.x]
        cuda.syncthreads()
        x[cuda.threadIdx.x] = data[31 - cuda.threadIdx.x]

    with pytest.raises(LaunchError, match=r"(?s)kernel.*49,156 bytes.*49,152.*dynamic shared memory"):
        kernel.build((X,), 90)


def test_a_kernel_that_changes_while_it_is_compiled_is_not_kept(store, monkeypatch):
    import builtins

    build, settings = kernel_code.build, type(builtins)("settings")
    settings.factor = 2.0

    @nd.jit
    def kernel(x):
        x[0] *= settings.factor

    def change(*arguments):
        made = build(*arguments)
        settings.factor = 3.0
        return made

    monkeypatch.setattr(kernel_code, "build", change)
    with pytest.raises(UnsupportedError, match="was changed while it was compiled"):
        kernel.build((X,), 90)
    assert list(store.entries()) == []


def test_signatures():
    assert scaling(1.0).signatures == []
    kernel = nd.jit("void(float32[::1])")(scaling(2.0).py_func)
    assert kernel.signatures == [(X,)]
    with pytest.raises(ArgumentTypeError, match="has the result"):
        kernel.build("float32(float32[::1])", 90)


def test_fits_and_report_without_a_device(store):
    kernel = scaling(2.0)
    with pytest.raises(InvalidArgumentError, match="signature: give one"):
        kernel.fits(1, 128, cc=90)
    fit = kernel.fits(100, 128, cc=90, signature=(X,))
    assert fit
    assert not kernel.fits(100, 128, 227 * 1024 + 1, cc=90)
    assert kernel.fits(100, 128, 227 * 1024, cc=90)
    assert not kernel.fits(100, 128, 100 * 1024, cc=86)
    assert kernel.report(cc=90).resources.registers == kernel.build((X,), 90).resources.registers


def test_what_is_no_kernel_is_refused():
    for wrong in (nd.jit(), nd.jit(fastmath=True), nd.jit("void(float32[:])")):
        with pytest.raises(ArgumentTypeError, match="give a Python function"):
            wrong(3)


def test_device_functions_are_numbas():
    helper = nd.jit(device=True)(lambda x: x + 1)
    assert type(helper) is type(cuda.jit(device=True)(lambda x: x))
