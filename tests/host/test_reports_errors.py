# SPDX-License-Identifier: Apache-2.0
"""Reported cases about errors: what fails is named, and nothing else is blamed.

What a real GPU shows is in ``tests/gpu/host/test_reports_errors.py``.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import nvmath_device.host as host
from nvmath_device import float32
from nvmath_device.errors import DriverError, HostLibraryError
from nvmath_device.host import cublaslt_calls
from nvmath_device.host.cublaslt_enums import Status
from tests.host import fakes
from tests.host.fake_gpu import gpu  # noqa: F401

ROOT = Path(__file__).resolve().parents[2]
A, B = np.arange(12.0).reshape(3, 4), np.arange(8.0).reshape(4, 2)


def illegal_address():
    status = fakes.Status(700)
    status.name = "CUDA_ERROR_ILLEGAL_ADDRESS"
    return status


@pytest.mark.parametrize("status", [Status.EXECUTION_FAILED, Status.INTERNAL_ERROR, Status.ALLOC_FAILED], ids=str)
@pytest.mark.parametrize("call", ["cublasLtMatmul", "cublasLtMatmulAlgoGetHeuristic", "cublasLtCreate"])
def test_r103_what_an_earlier_kernel_did_is_not_reported_as_cublaslts(gpu, monkeypatch, call, status):  # noqa: F811
    a, b = (gpu.array(x, element=float32) for x in (A, B))
    monkeypatch.setitem(cublaslt_calls._bound, call, gpu.lt._callback(call, lambda *_: status))
    with pytest.raises(HostLibraryError, match=f"{call}.*failed: .*status {int(status)}"):  # the device is well
        host.matmul(a, b)
    monkeypatch.setattr(gpu.driver, "cuMemGetInfo", lambda: (illegal_address(), 0, 0))
    with pytest.raises(DriverError, match=f"an earlier kernel failed: .*ADDRESS.*{call} was the next") as caught:
        host.matmul(a, b)
    assert caught.value.earlier
    assert "memory" not in str(caught.value).replace("memory access", "")


@pytest.mark.parametrize("level", [logging.DEBUG, logging.INFO])
def test_r107_records_of_the_host_layer_can_be_formatted(level, caplog):
    """A record with wrong arguments raises in the logger of whoever switched it on."""
    with caplog.at_level(level):
        host.matmul(A, B, options={"execution": "cpu"})
        with host.Matmul(A, B, options={"execution": "cpu", "logger": logging.getLogger("mine")}) as mm:
            mm.plan()
            mm.execute()
    assert all(isinstance(record.getMessage(), str) for record in caplog.records)


def test_r107_the_logger_is_silent_by_default():
    code = "import numpy as np, nvmath_device.host as host; host.matmul(np.eye(3), np.eye(3))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}, capture_output=True,
        text=True, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
