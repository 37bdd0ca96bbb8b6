# SPDX-License-Identifier: Apache-2.0
"""Real generated code for tests without a GPU: a few descriptors, generated once, and kernels made of them.

Four GEMMs, a pipeline, a product of tiles, two families of tensors with one of copies, two FFTs and two questions are
generated together, into the store of the session, where all tests find them; that takes about 110 s on two cores with
an empty store. Import ``generated`` to have it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ml_dtypes  # noqa: F401  (bfloat16 arrays for Numba)
import pytest
from numba import cuda
from numba.cuda.types import void

import nvmath_device as nd
from nvmath_device.lto import codegen
from nvmath_device.lto.recipes import fft_recipe
from nvmath_device.pipelines import pipeline_plan
from nvmath_device.tensor_plans import TensorPlan
from tests import sass

ROOT = Path(nd.__file__).resolve().parent.parent
COL, ROW = "col_major", "row_major"
SM90 = nd.ComputeCapability(9, 0)
TENSOR_CORES = ("HMMA", "HGMMA", "DMMA", "IMMA", "QGMMA")


def matmul(n, precision, **options):
    return nd.Matmul((n, n, n), precision, "real", arrangement=(ROW, COL, COL), **{"block_size": 128, **options})


def block_fft(direction, **options):
    base = {"size": 128, "precision": "float32", "fft_type": "c2c", "execution": "Block"}
    return nd.FFT(**{**base, "direction": direction, **options})


# No target: the descriptors take the target of each compilation.
HALF = matmul(64, ("float16", "float16", "float32"), alignment=nd.MAX_ALIGNMENT)
BF16 = matmul(64, ("bfloat16", "bfloat16", "float32"))
SINGLE = matmul(32, "float32", block_size="suggested", leading_dimension="suggested")
DOUBLE = matmul(32, "float64")
PIPELINED = nd.Matmul(
    (128, 256, 64), ("float16", "float16", "float32"), "real", arrangement=(ROW, COL, ROW), block_size=256,
    alignment=nd.MAX_ALIGNMENT,
)  # fmt: skip
STAGED = nd.Matmul((64, 64, 32), ("float16", "float16", "float32"), "real", arrangement=(ROW,) * 3, block_size=128)
TENSORS = nd.Matmul(
    (64, 64, 32), ("float16", "float16", "float32"), "real", arrangement=(ROW,) * 3, block_size=128,
    alignment=nd.MAX_ALIGNMENT,
)  # fmt: skip
SM90A = nd.ComputeCapability(9, 0, "a")
FORWARD, INVERSE = block_fft("forward"), block_fft("inverse")


@pytest.fixture(scope="session")
def generated(tmp_path_factory):
    """Generate all that is missing, at once; returns what is left in TMPDIR, an empty folder before."""
    folder = tmp_path_factory.mktemp("tmpdir")
    before = {name: os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP")}
    os.environ.update(dict.fromkeys(before, str(folder)))
    try:
        with ThreadPoolExecutor() as threads:
            answered = threads.submit(lambda: codegen.codes([SINGLE.resolved(SM90).recipe("SMEM")]))
            tensors = TensorPlan(*TENSORS.resolved(SM90))
            told = threads.submit(lambda: tensors.fragment_size(False))
            codegen.codes(
                [tensors.recipe(False), tensors.recipe(True), tensors.recipe(False, 4)]
                + [mm.resolved(SM90).recipe("SMEM") for mm in (HALF, BF16, DOUBLE)]
                + [pipeline_plan(*mm.resolved(SM90A), depth=None, sm=SM90A).recipe for mm in (PIPELINED, STAGED)]
                + [fft_recipe(*f.resolved(SM90)[:1], sm=SM90) for f in (FORWARD, INVERSE)]
            )
            answered.result()
            told.result()
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


def gemm_kernel(mm):
    def kernel(a, b, c):
        sa = nd.shared.array(mm.a_size, mm.a_value_type)
        sb = nd.shared.array(mm.b_size, mm.b_value_type)
        sc = nd.shared.array(mm.c_size, mm.c_value_type)
        mm.load_a(a, sa)
        mm.load_b(b, sb)
        cuda.syncthreads()
        mm.execute(1.0, sa, sb, 0.0, sc)
        cuda.syncthreads()
        mm.store_c(sc, c)

    return kernel


CUBINS = {}


def cubin_of(mm, element, c_element):
    """One link a descriptor, however many tests look at it."""
    if mm not in CUBINS:
        signature = void(element[:, :], element[:, :], c_element[:, :])
        CUBINS[mm] = nd.compile(gemm_kernel(mm), signature, sm=90).code
    return CUBINS[mm]


def counts(cubin):
    """How often each instruction occurs, without its modifiers."""
    return Counter(name.partition(".")[0] for name in sass.instructions(cubin))


def run(script, *arguments, timeout=300, **environment):
    """Standard output of a script in a fresh process that has this package first on its path."""
    inherited = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=environment.pop("CWD", None),
        env={**inherited, **environment},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
