# SPDX-License-Identifier: Apache-2.0
"""What else is in the key of a stored kernel: linked code, settings, versions. And what the key costs."""

from __future__ import annotations

import importlib.metadata
import shutil
import sys
import time
from pathlib import Path

import pytest
from numba import cuda

import nvmath_device as nd
from nvmath_device.lto import toolchain
from nvmath_device.numba_backend import kernel_words as module_under_test
from nvmath_device.numba_backend.kernel_words import NotInWords, kernel_words
from tests.user_kernels import (
    ROOT,
    VECTOR,
    run,
    user_modules,  # noqa: F401  (the fixture user)
    words,
)

# -- linked code ------------------------------------------------------------------------------------------------


def test_linked_files_count_by_content(user, tmp_path):
    module, file, copy = user(), tmp_path / "extra.ptx", tmp_path / "sub" / "extra.ptx"
    copy.parent.mkdir()
    keys = []
    for text in ("one", "two"):
        file.write_text(text)
        copy.write_text(text)
        keys.append(words(module, link=[str(file)]))
        assert words(module, link=str(copy)) == keys[-1]
    assert len({*keys, words(module)}) == 3
    objects = [cuda.PTXSource(b"one"), cuda.PTXSource(b"two"), cuda.CUSource("one"), cuda.LTOIR(b"one")]
    assert len({words(module, link=[code]) for code in objects}) == 4


def test_files_that_linked_sources_include_count(user, tmp_path, monkeypatch):
    module, source, header = user(), tmp_path / "f.cu", tmp_path / "constants.h"
    source.write_text('#include "constants.h"\n#include <cuda_fp16.h>\n')
    header.write_text('#include "more.h"\n')
    keys = []
    for text in ("int a;", "int b;"):
        (tmp_path / "more.h").write_text(text)
        keys.append(words(module, link=[str(source)]))
    assert keys[0] != keys[1]
    monkeypatch.chdir(tmp_path)  # NVRTC looks there, wherever the source came from
    keys = []
    for text in ("int a;", "int b;"):
        (tmp_path / "more.h").write_text(text)
        keys.append(words(module, link=[cuda.CUSource(source.read_text(), name="f")]))
    assert keys[0] != keys[1]
    source.write_text("#define H <constants.h>\n#include H\n")
    with pytest.raises(NotInWords, match="include"):
        words(module, link=[str(source)])


def test_headers_of_the_toolkit_count_by_the_versions_of_wheels(user, tmp_path, monkeypatch):
    module, source = user(), tmp_path / "f.cu"
    source.write_text("#include <cuda_fp16.h>\n")
    keys = set()
    for version in ("13.0.1", "13.0.2"):
        monkeypatch.setattr(toolchain, "header_fingerprint", lambda version=version: version)
        keys.add(words(module, link=[str(source)]))
    assert len(keys) == 2


def test_declared_device_functions_count_by_their_code(user):
    source = """
    from numba import cuda
    function = cuda.declare_device("f", "float32({})", link=cuda.CUSource("{}"), abi="{}")
    def kernel(a, b):
        a[0] = function(b[0])
    """
    variants = [("float32", "one", "c"), ("float32", "two", "c"), ("float64", "one", "c"), ("float32", "one", "numba")]
    keys = [words(user(source.format(*variant))) for variant in variants]
    assert len(set(keys)) == 4
    assert words(user(source.format(*variants[0]))) == keys[0]


# -- settings and versions --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["NUMBA_CUDA_SOMETHING_NEW", "LIBMATHDX_NVRTC_ARGS_EXTRA", "NUMBA_LOOP_VECTORIZE"])
def test_variables_that_may_change_code_count(user, monkeypatch, name):
    module = user()
    before = words(module)
    monkeypatch.setenv(name, "1")
    assert words(module) != before


@pytest.mark.parametrize("name", ["NUMBA_CACHE_DIR", "NUMBA_NUM_THREADS", "NUMBA_CUDA_LOG_LEVEL", "HOME", "LANG"])
def test_other_variables_do_not(user, monkeypatch, name):
    module = user()
    before = words(module)
    monkeypatch.setenv(name, "1")
    assert words(module) == before


def test_settings_of_numba_count_by_their_present_value(user, monkeypatch):
    from numba.cuda import config

    module = user()
    before = words(module)
    monkeypatch.setattr(config, "OPT", 0)
    assert words(module) != before
    monkeypatch.undo()


@pytest.mark.parametrize("question", ["fingerprint", "link_fingerprint"])
def test_versions_of_tools_count(user, monkeypatch, question):
    module = user()
    before = words(module)
    monkeypatch.setattr(toolchain, question, lambda: "another-1.2.3")
    assert words(module) != before


def test_a_tool_of_unknown_version_is_not_in_words(user, monkeypatch):
    def missing():
        raise nd.errors.MissingDependencyError("no libdevice")

    monkeypatch.setattr(toolchain, "link_fingerprint", missing)
    with pytest.raises(NotInWords, match="libdevice"):
        words(user())


def test_versions_are_those_of_the_installed_packages():

    said = module_under_test._package_versions()
    for name in ("cuda.bindings", "cuda.core", "llvmlite", "numba", "numba_cuda", "numpy"):
        assert said[name] == importlib.metadata.version(name.replace(".", "-"))
    assert said["nvmath_device"] == f"{nd.__version__}+{module_under_test.own_source()}"
    assert said["python"][1:4] == [str(n) for n in sys.version_info[:3]]


def test_the_source_of_this_package_counts(tmp_path):
    """In a copy of it, as other tests run at the same time."""

    shutil.copytree(ROOT / "nvmath_device", tmp_path / "nvmath_device", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "lto", tmp_path / "lto", ignore=shutil.ignore_patterns("__pycache__"))
    code = "from nvmath_device.numba_backend.kernel_words import own_source; print(own_source())"

    def source_now():
        return run(code, PYTHONPATH=str(tmp_path), cwd=tmp_path)

    first = source_now()
    for path in ("nvmath_device/matmul.py", "nvmath_device/numba_backend/emit.py", "lto/recipes.py"):
        file = tmp_path / path
        text = file.read_text()
        file.write_text(text + "\n# changed\n")
        assert source_now() != first, path
        file.write_text(text)
    assert source_now() == first


# -- other processes ------------------------------------------------------------------------------------------


def test_other_processes_have_the_same_key(user, tmp_path):
    """With other hashes and addresses, after a compilation, and where the kernel is in the main program."""
    module = user()
    path = module.__file__
    arguments = "(numba.cuda.types.float32[::1],) * 2"
    ask = f"""
import json, numba.cuda
from nvmath_device.numba_backend.kernel_words import kernel_words
print(json.dumps(kernel_words(kernel, {arguments}, {{}}, 90), sort_keys=True))
"""
    as_module = f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nfrom {Path(path).stem} import kernel\n{ask}"
    compiled = "numba.cuda.compile_all(lambda: None, (), device=False, abi='numba', cc=(9, 0), output='ptx')"
    as_main = f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n{Path(path).read_text()}\nimport numba.cuda\n"
    here = words(module)
    for seed, code in enumerate((as_module, as_main + ask, as_main + compiled + ask)):
        assert run(code, PYTHONHASHSEED=str(seed), PYTHONPATH=str(ROOT)) == here


# -- cost -------------------------------------------------------------------------------------------------------


def test_words_cost_little(user):
    """10 ms in a new process and 1 ms after it is what a launch can bear; here three times that, as machines vary."""
    module = user()
    path = str(Path(module.__file__).parent)
    seconds = run(
        f"import sys, time\nsys.path.insert(0, {path!r})\n"
        f"from {module.__name__} import kernel\nfrom numba.cuda.types import float32\n"
        "from nvmath_device.numba_backend.kernel_words import kernel_words\n"
        "def ask():\n    start = time.perf_counter()\n    kernel_words(kernel, (float32[::1],) * 2, {}, 90)\n"
        "    return time.perf_counter() - start\n"
        "print(ask(), min(ask() for _ in range(20)))",
        PYTHONPATH=str(ROOT),
    )
    first, next_ones = map(float, seconds.split())
    assert first < 0.030
    assert next_ones < 0.003


def test_asking_twice_does_not_look_at_bytecode_again(user):
    module = user()
    words(module)
    started = time.perf_counter()
    for _ in range(10):
        kernel_words(module.kernel, (VECTOR, VECTOR), {}, 90)
    assert (time.perf_counter() - started) / 10 < 0.003
