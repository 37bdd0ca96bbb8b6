# SPDX-License-Identifier: Apache-2.0
"""Kernels as a user writes them, in files that are imported, and their words.

Import ``user_modules`` to have the fixture ``user`` in a test module.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from numba.cuda.types import float32

from nvmath_device.numba_backend.kernel_words import kernel_words

ROOT = Path(__file__).resolve().parent.parent
VECTOR = float32[::1]
counter = itertools.count()

BASE = """
import enum, math
from collections import namedtuple
import numpy as np
from numba import cuda, float32, types
import nvmath_device as nd
import settings_of_user

N = 8
SCALE = 1.5
TABLE = np.arange(4, dtype=np.float32)
RECORD = np.dtype([("x", np.float32), ("y", np.int32)])
Point = namedtuple("Point", "x y")
POINT = Point(1, 2.5)

class Mode(enum.IntEnum):
    FAST = 1
    SLOW = 2

MM = nd.Matmul((8, 4, 16), "float32", "real", arrangement=("row_major", "col_major", "row_major"), block_size=64)
FFT = nd.FFT(64, "float32", "c2c", "Block", direction="forward")

OFFSET = 3

@cuda.jit(device=True)
def inner(x):
    return x + OFFSET

@cuda.jit(device=True)
def helper(x, factor=2):
    return inner(x) * factor

def outer(step):
    @cuda.jit(device=True)
    def advance(x):
        return x + step
    return advance

advance = outer(5)

def kernel(a, b):
    i = cuda.threadIdx.x
    if i < N:
        a[i] = helper(b[i]) * SCALE + TABLE[i] + POINT.y
    if Mode.FAST == 1:
        a[0] += advance(b[0]) + settings_of_user.TILE
    shared = cuda.shared.array(MM.a_size, float32)
    shared[i] = b[i]
    a[1] = shared[0] + FFT.size + abs(math.pi)
"""
SETTINGS = "TILE = 16\nUNUSED = 1\n"


@pytest.fixture(name="user")
def user_modules(tmp_path, monkeypatch):
    """Writes a user's modules and imports them anew: ``user(source, settings)`` is the module with the kernel."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def load(source: str = BASE, settings: str = SETTINGS):
        (tmp_path / "settings_of_user.py").write_text(settings)
        monkeypatch.delitem(sys.modules, "settings_of_user", raising=False)
        importlib.invalidate_caches()
        path = tmp_path / f"kernels_of_user_{next(counter)}.py"
        path.write_text(textwrap.dedent(source))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


def words(module, *arguments, cc=90, **options):
    answer = kernel_words(module.kernel, arguments or (VECTOR, VECTOR), options, cc)
    text = json.dumps(answer, sort_keys=True)
    assert json.loads(text) == answer, "not plain JSON"
    return text


def edited(*changes: tuple[str, str], source: str = BASE) -> str:
    for before, after in changes:
        assert source.count(before) == 1, before
        source = source.replace(before, after)
    return source


def run(code: str, *, cwd=None, **environment: str) -> str:
    variables = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **environment}
    done = subprocess.run([sys.executable, "-c", code], env=variables, cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
