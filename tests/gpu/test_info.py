# SPDX-License-Identifier: Apache-2.0
"""``info`` on a machine with a GPU."""

from __future__ import annotations

from numba import cuda

from nvmath_device.info import info


def test_devices_are_those_of_numba():
    report = info()
    assert [device["name"] for device in report["devices"]] == [
        gpu.name.decode() if isinstance(gpu.name, bytes) else gpu.name for gpu in cuda.gpus
    ]
    major, minor = cuda.get_current_device().compute_capability
    assert report["devices"][0]["compute_capability"] == f"{major}.{minor}"
    assert report["driver"]["cuda"].split(".")[0] in ("12", "13")
    assert not [problem for problem in report["problems"] if not problem["optional"]]
