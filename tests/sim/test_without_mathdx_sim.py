# SPDX-License-Identifier: Apache-2.0
"""A machine without libmathdx simulates kernels, with default traits and nothing of CUDA in the process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]

SCRIPT = """
    import json, sys

    from cuda import pathfinder

    load = pathfinder.load_nvidia_dynamic_lib

    def load_some(name):
        if name in ("mathdx", "nvrtc", "nvJitLink"):
            raise pathfinder.DynamicLibNotFoundError(f"{name} is not here")
        return load(name)  # Numba asks for the version of CUDA's runtime, also when it simulates

    pathfinder.load_nvidia_dynamic_lib = load_some

    import numpy as np
    from numba import cuda

    import nvmath_device as nd
    from nvmath_device.lto import toolchain

    assert not toolchain.has_mathdx()
    rows = ("row_major",) * 3
    mm = nd.Matmul((8, 4, 6), "float32", "real", arrangement=rows, leading_dimension="suggested")
    fft = nd.FFT(16, "float32", "c2c", "Block", direction="forward", ffts_per_block="suggested")

    @cuda.jit
    def gemm(a, b, c):
        smem_a = nd.shared.array(mm.a_size, mm.a_value_type)
        smem_b = nd.shared.array(mm.b_size, mm.b_value_type)
        smem_c = nd.shared.array(mm.c_size, mm.c_value_type)
        mm.load_a(a, smem_a)
        mm.load_b(b, smem_b)
        cuda.syncthreads()
        mm.execute(1.0, smem_a, smem_b, 0.0, smem_c)
        cuda.syncthreads()
        mm.store_c(smem_c, c)

    @cuda.jit
    def transform(x, y):
        data = cuda.local.array(fft.storage_size, fft.value_type)
        scratch = nd.shared.array(max(1, fft.shared_memory_size), "uint8")
        fft.load(x, data)
        fft.execute(data, scratch)
        fft.store(data, y)

    rng = np.random.default_rng(0)
    a, b = rng.random((8, 6), np.float32), rng.random((6, 4), np.float32)
    c = np.full((8, 4), np.nan, np.float32)
    gemm[1, tuple(mm.block_dim)](a, b, c)
    x = (rng.random((2, 16)) + 1j * rng.random((2, 16))).astype(np.complex64)
    y = np.full_like(x, np.nan)
    transform[1, tuple(fft.block_dim)](x, y)
    print(json.dumps({
        "gemm": float(abs(c - a.astype(float) @ b.astype(float)).max()),
        "fft": float(abs(y - np.fft.fft(x.astype(complex))).max()),
        "block": list(mm.block_dim),
        "leading_dimension": list(mm.leading_dimension),
        "backend": sorted(m for m in sys.modules if m.startswith("nvmath_device.numba_backend.")),
    }))
"""


def test_r025_r041_kernels_simulate_where_libmathdx_is_absent(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        env={
            **os.environ,
            "NUMBA_ENABLE_CUDASIM": "1",
            "NVMATH_DEVICE_CACHE_DIR": str(tmp_path / "store"),
            "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")]),
        },
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["gemm"] < 1e-5
    assert result["fft"] < 1e-5
    assert result["block"] == [128, 1, 1]
    assert result["leading_dimension"] == [6, 4, 4]
    assert all(".simulator" in name for name in result["backend"])
