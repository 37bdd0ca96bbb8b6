# SPDX-License-Identifier: Apache-2.0
"""Reported cases about errors and libraries that need a process of their own: a context that an earlier kernel has
lost, and which cuBLASLt is loaded.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from nvmath_device.errors import InvalidArgumentError
from tests.host.report_tools import library_on_gpu

library = library_on_gpu
ROOT = Path(__file__).resolve().parents[3]


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


AFTER_A_FAULT = """
import os, time
import numpy as np
from numba import cuda
import nvmath_device.host as host

@cuda.jit
def fault(x):
    x[1 << 40] = 1.0

a, b, out = (cuda.to_device(np.eye(64, dtype=np.float32)) for _ in range(3))
mm = host.Matmul(a, b)
mm.plan(out=out)
mm.execute(out=out)
cuda.synchronize()
fault[1, 1](a)
time.sleep(2)
for name, attempt in (
    ("execute", lambda: mm.execute(out=out)), ("plan", mm.plan), ("matmul", lambda: host.matmul(b, a, alpha=2)),
):
    try:
        attempt()
        print(name, "no error")
    except Exception as error:
        print(name, type(error).__name__, getattr(error, "earlier", None), " ".join(str(error).split()))
os._exit(0)  # nothing can be given back any more
"""


def test_r103_what_an_earlier_kernel_has_done_is_reported_as_that():
    lines = run(AFTER_A_FAULT).splitlines()
    assert [line.split()[0] for line in lines] == ["execute", "plan", "matmul"]
    for line in lines:
        assert line.split()[1:3] == ["DriverError", "True"], line
        assert "an earlier kernel failed" in line
        assert "memory_limit" not in line


def test_r103_a_limit_above_the_memory_of_the_device_is_refused_with_both_figures(library):
    one = library.put(np.eye(16, dtype=np.float32))
    with pytest.raises(InvalidArgumentError, match=r"^memory_limit: '900 TiB' is \d+ bytes, and the device has \d+"):
        library.matmul(one, one, options={"memory_limit": "900 TiB"})
    with library.Matmul(one, one, options={"memory_limit": "100%"}) as mm:
        mm.plan()
        assert np.array_equal(library.get(mm.execute()), np.eye(16))


LOADED = """
from pathlib import Path
{before}
import numpy as np
import nvmath_device.host as host
from nvmath_device.info import info
a = np.arange(64.0, dtype=np.float32).reshape(8, 8)
assert np.array_equal(host.matmul(a, a), a @ a)
import torch
t = torch.ones(8, 8, device="cuda")
(t @ t).sum().item()
assert host.matmul(t, t)[0, 0].item() == 8
lines = Path("/proc/self/maps").read_text().splitlines()
loaded = {{str(Path(line.split()[-1]).resolve()) for line in lines if "libcublasLt" in line}}
print(len(loaded), str(Path(info()["libraries"]["cublasLt"]["path"]).resolve()) in loaded, sorted(loaded))
"""


@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs a GPU with PyTorch")
@pytest.mark.parametrize("first", ["torch", "ours"])
def test_r112_one_cublaslt_for_pytorch_and_this_package_in_either_order(first):
    answer = run(LOADED.format(before="import torch" if first == "torch" else ""))
    assert answer.startswith("1 True"), answer
