# SPDX-License-Identifier: Apache-2.0
"""``nvmath_device.info`` and the command line over it."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

import nvmath_device.info as module
from nvmath_device.lto.store import Store

ROOT = Path(__file__).resolve().parent.parent

HEALTHY = {
    "nvmath_device": {"version": "0.1.0", "path": "/site/nvmath_device"},
    "python": {"version": "3.12.1", "executable": "/usr/bin/python3", "platform": "Linux"},
    "simulator": False,
    "driver": {"cuda": "13.0", "version": "580.82.7"},
    "devices": [
        {
            "index": 0,
            "name": "NVIDIA H200",
            "compute_capability": "9.0",
            "multiprocessors": 132,
            "memory_bytes": 150_000_000_000,
        }
    ],
    "libraries": {
        "mathdx": {"version": "0.4.2", "path": "/lib/libmathdx.so.0"},
        "nvrtc": {"version": "13.5", "path": "/lib/libnvrtc.so.13"},
        "nvJitLink": {"version": "13.5", "path": "/lib/libnvJitLink.so.13"},
        "nvvm": {"version": "2.0", "path": "/lib/libnvvm.so.4"},
        "cublasLt": {"version": "13.10.0", "path": "/lib/libcublasLt.so.13"},
    },
    "packages": {
        "cuda-bindings": "13.4.4",
        "cuda-core": "1.2.2",
        "cuda-pathfinder": "1.9.1",
        "ml_dtypes": "0.7.0",
        "numba": "0.68.1",
        "numba-cuda": "0.30.4",
        "numpy": "2.4.6",
    },
    "store": {"path": "/cache", "entries": 3, "size_bytes": 3 << 20, "max_bytes": 4 << 30, "writable": True},
    "cuda_extra": "cu13",
}
ABSENT = {"error": "MissingDependencyError: it is not installed"}


def broken(*changes: tuple[tuple[str, ...], object]) -> dict:
    """HEALTHY with the values at the given paths replaced."""
    report = copy.deepcopy(HEALTHY)
    for (*parents, last), value in changes:
        part = report
        for name in parents:
            part = part[name]
        part[last] = value
    return report


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nvmath_device", *arguments]
    variables = os.environ | environment
    return subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=120)


# -- judging -------------------------------------------------------------------------------------------------


def test_nothing_is_missing_in_a_healthy_installation():
    assert module.diagnose(HEALTHY) == []


PIP_13, PIP_12 = 'pip install "nvmath-device[cu13]"', 'pip install "nvmath-device[cu12]"'
NO_DRIVER = ((("driver",), ABSENT), (("devices",), ABSENT))
STORE = "export NVMATH_DEVICE_CACHE_DIR=/a/folder/you/can/write"


@pytest.mark.parametrize(
    ("report", "words", "fix"),
    [
        (broken((("libraries", "mathdx"), ABSENT)), "libmathdx", PIP_13),
        (broken((("packages", "numba-cuda"), None)), "not installed: numba-cuda", PIP_13),
        (broken((("packages", "numba-cuda"), "0.29.0")), "numba-cuda 0.29.0", 'pip install "numba-cuda>=0.30.4"'),
        (broken((("packages", "numpy"), "2.5.0")), "NumPy 2.5.0", 'pip install "numpy<2.5"'),
        (broken((("packages", "numpy"), "2.10.1")), "NumPy 2.10.1", 'pip install "numpy<2.5"'),
        (
            broken((("libraries", "nvJitLink", "version"), "13.0")),
            "nvJitLink 13.0 cannot link the code of NVRTC 13.5",
            'pip install "nvidia-nvjitlink>=13.5,<14"',
        ),
        (
            broken((("libraries", "nvrtc", "version"), "12.9")),
            "nvJitLink 13.5 cannot link the code of NVRTC 12.9",
            'pip install "nvidia-nvjitlink-cu12>=12.9,<13"',
        ),
        (
            broken((("driver", "cuda"), "12.8")),
            "the driver is of CUDA 12, the libraries are of CUDA 13",
            PIP_12,
        ),
        (broken(*NO_DRIVER), "no CUDA driver", "NUMBA_ENABLE_CUDASIM=1 python ..."),
        (broken((("store", "writable"), False)), "/cache cannot be written", STORE),
        (broken((("store",), {"error": "ValueError: 'lots' is no size"})), "'lots' is no size", STORE),
    ],
)
def test_each_fault_is_named_once_with_its_command(report, words, fix):
    needed = [problem for problem in module.diagnose(report) if not problem["optional"]]
    assert [problem["fix"] for problem in needed if words in problem["problem"]] == [fix]
    assert len(needed) == 1


@pytest.mark.parametrize(
    ("driver", "installed", "fix"),
    [
        ({"cuda": "12.8", "version": "570.1"}, "cu13", PIP_12),  # a driver of CUDA 12 runs nothing of CUDA 13
        (
            {"cuda": "13.0", "version": "580.1"},
            "cu12",
            PIP_12,
        ),  # one of CUDA 13 runs both: keep what is there
        (ABSENT, "cu12", PIP_12),
        (ABSENT, "cu13", PIP_13),
        (ABSENT, {"error": "ImportError"}, PIP_13),
    ],
)
def test_the_extra_follows_the_driver_then_what_is_installed(driver, installed, fix):
    report = broken((("libraries", "nvvm"), ABSENT), (("driver",), driver), (("cuda_extra",), installed))
    assert [problem["fix"] for problem in module.diagnose(report) if "libnvvm" in problem["problem"]] == [fix]


@pytest.mark.parametrize(("visible", "fix"), [("", "unset CUDA_VISIBLE_DEVICES"), (None, "nvidia-smi")])
def test_a_driver_without_a_device(monkeypatch, visible, fix):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    for devices in ([], {"error": "RuntimeError: cuInit answered CUDA_ERROR_NO_DEVICE"}):
        assert [problem["fix"] for problem in module.diagnose(broken((("devices",), devices)))] == [fix]


def test_what_only_some_need_is_marked_optional():
    report = broken((("libraries", "cublasLt"), ABSENT), (("store", "path"), None))
    assert [(problem["optional"], problem["fix"]) for problem in module.diagnose(report)] == [
        (True, 'pip install "cuda-toolkit[cublas]==13.*"'),
        (True, "unset NVMATH_DEVICE_CACHE_DIR"),
    ]


def test_the_simulator_needs_no_driver():
    assert module.diagnose(broken((("simulator",), True), *NO_DRIVER)) == []


# -- looking -------------------------------------------------------------------------------------------------


def test_the_report_of_this_machine_agrees_with_the_installed_wheels():
    report = module.info()
    packages = report["packages"]
    assert packages["numpy"] == np.__version__
    assert packages["numba-cuda"] == metadata.version("numba-cuda")
    libraries = report["libraries"]
    wheel = next(name for name in packages if name.startswith("nvidia-libmathdx-cu"))
    assert packages[wheel].startswith(libraries["mathdx"]["version"] + ".")
    for name in ("mathdx", "nvrtc", "nvJitLink", "nvvm"):
        assert f"lib{name}.so" in Path(libraries[name]["path"]).name
        assert Path(libraries[name]["path"]).is_file()
    for name, wheels in {
        "nvrtc": ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12"),
        "nvJitLink": ("nvidia-nvjitlink", "nvidia-nvjitlink-cu12"),
    }.items():
        versions = [packages[wheel] for wheel in wheels if wheel in packages]
        assert any(version.startswith(libraries[name]["version"] + ".") for version in versions)


def test_the_store_is_described(tmp_path):
    Store(tmp_path / "code").put("test", {"n": 1}, meta={}, blob=b"x" * 1000)
    done = run("info", "--json", NVMATH_DEVICE_CACHE_DIR=str(tmp_path / "code"))
    store = json.loads(done.stdout)["store"]
    files = list((tmp_path / "code").rglob("*.entry"))
    assert (store["path"], store["entries"], store["writable"]) == (str(tmp_path / "code"), 1, True)
    assert store["size_bytes"] == sum(path.stat().st_size for path in files) > 1000


def test_devices_are_described(monkeypatch):
    from cuda.bindings import driver

    kinds = driver.CUdevice_attribute
    attributes = {
        kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: 9,
        kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: 0,
        kinds.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: 132,
    }
    answers = {
        "cuInit": lambda flags: (),
        "cuDriverGetVersion": lambda: (13020,),
        "cuDeviceGetCount": lambda: (2,),
        "cuDeviceGet": lambda index: (driver.CUdevice(index),),
        "cuDeviceGetName": lambda length, device: (b"NVIDIA H200".ljust(length, b"\0"),),
        "cuDeviceTotalMem": lambda device: (150_000_000_000,),
        "cuDeviceGetAttribute": lambda kind, device: (attributes[kind],),
    }
    for name, answer in answers.items():
        stub = lambda *given, answer=answer: (driver.CUresult.CUDA_SUCCESS, *answer(*given))  # noqa: E731
        monkeypatch.setattr(driver, name, stub)
    report = module.collect()
    assert report["devices"] == [HEALTHY["devices"][0], HEALTHY["devices"][0] | {"index": 1}]
    assert report["driver"]["cuda"] == "13.2"

    monkeypatch.setattr(driver, "cuDeviceGetCount", lambda: (driver.CUresult.CUDA_ERROR_NO_DEVICE, None))
    assert "CUDA_ERROR_NO_DEVICE" in module.collect()["devices"]["error"]


def test_a_part_that_fails_is_text_in_its_place(monkeypatch):
    def fail():
        raise OSError("the disk is gone")

    for name in ("_store", "_packages", "_driver", "_devices", "_this_package", "_installed_extra"):
        monkeypatch.setattr(module, name, fail)
    monkeypatch.setattr(module, "_library", lambda name: fail())
    report = module.info()
    text = {"error": "OSError: the disk is gone"}
    for part in ("store", "packages", "driver", "devices", "nvmath_device", "cuda_extra"):
        assert report[part] == text
    assert set(map(str, report["libraries"].values())) == {str(text)}
    assert "the disk is gone" in module.render(report)


def test_a_wrong_size_cap_does_not_stop_info():
    done = run("info", NVMATH_DEVICE_CACHE_SIZE="lots")
    assert done.returncode == 0, done.stderr
    assert "NVMATH_DEVICE_CACHE_SIZE" in done.stdout


# -- writing -------------------------------------------------------------------------------------------------


def test_the_text_says_what_the_report_says():
    report = broken((("libraries", "mathdx"), ABSENT))
    text = module.render({**report, "problems": module.diagnose(report)})
    for words in (
        "nvmath-device  0.1.0  /site/nvmath_device",
        "CUDA 13.0, version 580.82.7",
        "NVIDIA H200, compute capability 9.0, 132 multiprocessors, 139.7 GiB",
        "/cache, 3 entries, 3.0 MiB of 4.0 GiB",
        "13.5       /lib/libnvrtc.so.13",
        "numba-cuda             0.30.4",
        "libmathdx              none (MissingDependencyError: it is not installed)",
        PIP_13,
    ):
        assert words in text
    assert module.render({**HEALTHY, "problems": []}).endswith("nothing is missing")


def test_the_command_prints_text_and_json():
    text, data = run("info"), run("info", "--json")
    assert (text.returncode, data.returncode) == (0, 0), text.stderr + data.stderr
    report = json.loads(data.stdout)
    assert set(report) == {*HEALTHY, "problems"}
    assert report["libraries"]["mathdx"]["path"] in text.stdout


def test_the_simulator_is_told():
    assert json.loads(run("info", "--json", NUMBA_ENABLE_CUDASIM="1").stdout)["simulator"] is True
    assert json.loads(run("info", "--json", NUMBA_ENABLE_CUDASIM="0").stdout)["simulator"] is False


# -- the cache command ---------------------------------------------------------------------------------------


def test_cache_commands(tmp_path):
    first, second, archive = str(tmp_path / "first"), str(tmp_path / "second"), str(tmp_path / "entries.zip")
    Store(first).put("gemm", {"size": [8, 8, 8]}, meta={"symbol": "f"}, blob=b"code")
    assert run("cache", "path", NVMATH_DEVICE_CACHE_DIR=first).stdout == first + "\n"
    assert run("cache", "export", archive, NVMATH_DEVICE_CACHE_DIR=first).returncode == 0
    assert run("cache", "import", archive, NVMATH_DEVICE_CACHE_DIR=second).returncode == 0
    assert 'gemm  {"size": [8, 8, 8]}' in run("cache", "list", NVMATH_DEVICE_CACHE_DIR=second).stdout
    assert Store(second).get("gemm", {"size": [8, 8, 8]}).blob == b"code"
    assert run("cache", "clear", NVMATH_DEVICE_CACHE_DIR=second).stdout == "1 entries removed\n"
    assert run("cache", "list", NVMATH_DEVICE_CACHE_DIR=second).stdout == ""


def test_cache_errors_are_one_line_and_a_status(tmp_path):
    off = run("cache", "path", NVMATH_DEVICE_CACHE_DIR="0")
    no_zip = run("cache", "import", __file__, NVMATH_DEVICE_CACHE_DIR=str(tmp_path))
    no_file = run("cache", "import", str(tmp_path / "absent"), NVMATH_DEVICE_CACHE_DIR=str(tmp_path))
    for done, words in ((off, "is off"), (no_zip, "test_info.py"), (no_file, "absent")):
        assert (done.returncode, done.stdout) == (1, "")
        assert words in done.stderr
        assert "Traceback" not in done.stderr
    assert run("cache", "burn").returncode == 2
