# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F811  (a fixture is imported and is a parameter's name)
"""``examples/ahead_of_time``: what it writes without a GPU, and its C++ program on a driver that is made up.

The driver here is one of a few functions. Its launch reads the arguments as CUDA does, by the kernel's parameters, and
multiplies the matrices: so the program is right about the order and the widths of what it passes.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from cuda import pathfinder

from nvmath_device.lto.cubin import entries
from tests.conftest import gpu_count
from tests.example_runs import EXAMPLES, run
from tests.real_code import generated  # noqa: F401  (a fixture)

DRIVER = """
#include <cuda.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#define OK { return CUDA_SUCCESS; }
CUresult cuInit(unsigned flags) OK
CUresult cuDeviceGet(CUdevice *device, int ordinal) { *device = ordinal; OK }
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) { *context = (CUcontext)8; OK }
CUresult cuCtxSetCurrent(CUcontext context) OK
CUresult cuGetErrorString(CUresult status, const char **text) { *text = "refused"; OK }
CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    *module = (CUmodule)image;
    return *(const uint32_t *)image == 0xba55ed50 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_IMAGE; /* a fatbin's first word */
}
CUresult cuModuleGetFunction(CUfunction *kernel, CUmodule module, const char *name) {
    *kernel = (CUfunction)16;
    return strcmp(name, "gemm_tile") ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}
CUresult cuMemAlloc(CUdeviceptr *address, size_t bytes) { *address = (CUdeviceptr)malloc(bytes); OK }
CUresult cuMemcpyHtoD(CUdeviceptr to, const void *from, size_t bytes) { memcpy((void *)to, from, bytes); OK }
CUresult cuMemcpyDtoH(void *to, CUdeviceptr from, size_t bytes) { memcpy(to, (void *)from, bytes); OK }
CUresult cuLaunchKernel(CUfunction kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                        unsigned shared, CUstream stream, void **parameters, void **extra) {
    if (gx * gy * gz != 1 || bx != 128 || by * bz != 1 || shared) return CUDA_ERROR_INVALID_VALUE;
    double *data[3];
    int64_t n = 0;
    for (int m = 0; m < 3; ++m) {
        int64_t word[9];
        for (int w = 0; w < 9; ++w) memcpy(&word[w], parameters[9 * m + w], 8);
        n = word[5];
        if (word[0] || word[1] || word[2] != n * n || word[3] != 8 || word[6] != n || word[7] != 8 * n || word[8] != 8)
            return CUDA_ERROR_INVALID_VALUE;
        data[m] = (double *)word[4];
    }
    for (int64_t i = 0; i < n; ++i)
        for (int64_t j = 0; j < n; ++j) {
            double sum = 0;
            for (int64_t k = 0; k < n; ++k) sum += data[0][i * n + k] * data[1][k * n + j];
            data[2][i * n + j] = sum;
        }
    OK
}
"""


@pytest.fixture(scope="module")
def written(generated, tmp_path_factory):
    """The folder with the example's files, and what it printed."""
    folder = tmp_path_factory.mktemp("ahead")
    outcome = run(EXAMPLES / "ahead_of_time.py", str(folder), simulated=False)
    assert outcome.returncode == 0, outcome.text
    return folder, outcome.text


def test_files_are_written_without_a_gpu(written):
    folder, text = written
    assert ("no GPU here: nothing is launched" in text) == (gpu_count() == 0)
    assert re.search(r"gemm_tile.fatbin: [\d,]+ bytes for sm_\d+, \d+ registers a thread, 24,576 bytes of shared", text)
    record = json.loads((folder / "gemm_tile.json").read_text())
    assert record["entry"] == "gemm_tile"
    assert [argument["name"] for argument in record["parameters"]] == ["a", "b", "c"]
    ((_, needs),) = record["targets"].items()
    assert needs["blocks"] == [{"block_dim": [128, 1, 1], "exact": False}]
    packed = (folder / "gemm_tile.fatbin").read_bytes()
    assert packed[:4] == bytes.fromhex("50ed55ba")
    tool = pathfinder.find_nvidia_binary_utility("cuobjdump")
    subprocess.run([tool, "-xelf", "all", folder / "gemm_tile.fatbin"], cwd=folder, check=True, capture_output=True)
    (cubin,) = folder.glob("*.cubin")
    assert entries(cubin.read_bytes()) == ("gemm_tile",)


def header_folder():
    found = pathfinder.locate_nvidia_header_directory("cudart")
    return found and found.abs_path


def test_the_cpp_program_passes_what_the_record_says(written, tmp_path):
    folder, _ = written
    compiler, headers = shutil.which("g++"), header_folder()
    if compiler is None or headers is None:
        assert "cuLaunchKernel" in (EXAMPLES / "ahead_of_time.cpp").read_text()
        return  # nothing to compile with; where there is a compiler this is more than a look at the text
    (tmp_path / "driver.c").write_text(DRIVER)
    library = tmp_path / "libcuda.so"
    program = tmp_path / "ahead_of_time"
    for command in (
        [shutil.which("gcc"), "-w", "-shared", "-fPIC", f"-I{headers}", "driver.c", "-o", library],
        [compiler, "-std=c++17", "-Wall", "-Wextra", "-Werror", f"-I{headers}", EXAMPLES / "ahead_of_time.cpp",
         f"-L{tmp_path}", "-lcuda", f"-Wl,-rpath,{tmp_path}", "-o", program],
    ):  # fmt: skip
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    done = subprocess.run([program, folder / "gemm_tile.fatbin"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.fullmatch(r"error: \d\.\de[-+]\d+ \(at most 1e-14\)\n", done.stdout)
    assert subprocess.run([program, Path(__file__)], capture_output=True).returncode == 1
    assert subprocess.run([program, "nowhere"], capture_output=True).returncode == 1
