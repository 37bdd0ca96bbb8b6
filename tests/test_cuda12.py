# SPDX-License-Identifier: Apache-2.0
"""Wheels of CUDA 12 under a driver of CUDA 13, in an environment like this one but for CUDA's packages.

There is a driver only in name: its one answer is its version. What a linker of the driver could do it cannot, so code
that comes out was linked by nvJitLink.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from nvmath_device.kernel_report import report
from tests.environments import environment_with

ROOT = Path(__file__).resolve().parent.parent
WHEELS = (
    "cuda-bindings==12.9.*", "nvidia-cuda-nvcc-cu12==12.9.*", "nvidia-cuda-nvrtc-cu12==12.9.*",
    "nvidia-cuda-runtime-cu12==12.9.*", "nvidia-libmathdx-cu12>=0.3.1,<0.4", "nvidia-nvjitlink-cu12==12.9.*",
)  # fmt: skip

DRIVER = """
int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuDeviceGetCount(int *count) { *count = 0; return 0; }
"""

PROGRAM = """
import ctypes
import json
import sys

import numpy as np
from numba import cuda
from numba.cuda.types import complex64, void

import nvmath_device as nd
from nvmath_device.lto import toolchain

driver = ctypes.c_int()
ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(driver))
fft = nd.FFT(
    fft_type="c2c", size=128, precision="float32", direction="forward", execution="Block", ffts_per_block=2,
    elements_per_thread=8,
)

@nd.jit
def kernel(x, y):
    values = cuda.local.array(fft.storage_size, fft.value_type)
    scratch = nd.shared.array(fft.shared_memory_size, np.uint8)
    fft.load(x, values)
    fft.execute(values, scratch)
    fft.store(values, y)

code = kernel.build(void(complex64[:, ::1], complex64[:, ::1]), 90)
with open(sys.argv[1], "wb") as file:
    file.write(code.cubin)
print(json.dumps({
    "driver": driver.value, "nvrtc": toolchain.nvrtc_version(), "nvJitLink": toolchain.nvjitlink_version(),
    "true": toolchain.link_matches_loaded(toolchain.link_fingerprint()), "entry": code.entry,
}))
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment whose CUDA packages are those above; all else is of the one that runs this."""
    return environment_with(tmp_path_factory.mktemp("cuda12"), *WHEELS)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("driver")
    (folder / "driver.c").write_text(DRIVER)
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler, "a C compiler is needed"
    subprocess.run([compiler, "-shared", "-fPIC", folder / "driver.c", "-o", folder / "libcuda.so.1"], check=True)
    return folder


def test_r051_wheels_of_cuda_12_under_a_driver_of_cuda_13(python: Path, driver: Path, tmp_path: Path) -> None:
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(paths),
        "LD_LIBRARY_PATH": os.pathsep.join([str(driver), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]),
        "NVMATH_DEVICE_CACHE_DIR": str(tmp_path / "store"),
    }
    made = tmp_path / "kernel.cubin"
    done = subprocess.run([python, "-c", PROGRAM, made], capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["driver"] == 13000
    assert (said["nvrtc"], said["nvJitLink"]) == ([12, 9], [12, 9])
    assert said["true"], "what is loaded is not what is installed"
    found = report(made.read_bytes(), said["entry"])
    assert found.math["FFMA"] > 50
    assert not found.spills
    assert not found.count("CALL"), "the code of the FFT is called, not inlined"
