# SPDX-License-Identifier: Apache-2.0
"""What this installation consists of, and what it lacks: ``python -m nvmath_device info [--json]``.

Three steps: :func:`collect` looks (the only one with side effects), :func:`diagnose` judges what was found,
:func:`render` writes it for people. Looking needs no driver, no GPU and none of the packages looked for; a
part that cannot be read is reported as ``{"error": text}`` in its place.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Callable, Iterable
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from nvmath_device.errors import MissingDependencyError
from nvmath_device.numba_backend.supported import NUMBA_CUDA_FROM, version_numbers

Report = dict[str, Any]

# Named as cuda.pathfinder names them.
NEEDED_LIBRARIES = ("mathdx", "nvrtc", "nvJitLink", "nvvm")
OPTIONAL_LIBRARIES = ("cublasLt",)

NEEDED_PACKAGES = ("cuda-bindings", "cuda-core", "cuda-pathfinder", "ml_dtypes", "numba", "numba-cuda", "numpy")
OTHER_PACKAGES = (
    "cuda-bindings",
    "cuda-core",
    "cuda-toolkit",
    "jax",
    "llvmlite",
    "nvmath-python",
    "scikit-image",
    "torch",
)
OTHER_PREFIXES = ("cupy", "nvidia-")

NUMPY_CAP = (2, 5)  # numba-cuda 0.30.4 uses np.row_stack, gone in NumPy 2.5


def info() -> Report:
    """Everything ``python -m nvmath_device info --json`` prints: a dict of JSON values.

    Keys: ``nvmath_device``, ``python``, ``simulator``, ``driver``, ``devices``, ``libraries``, ``packages``,
    ``store``, ``cuda_extra``, ``problems``. Sizes are in bytes. A part that could not be read is
    ``{"error": text}``. ``problems`` is a list of ``{"problem", "fix", "optional"}``, where ``fix`` is a
    command for a shell.

    Never raises. Not guaranteed: that what it finds works together; it compares versions and generates no
    code.
    """
    report = collect()
    report["problems"] = _try(lambda: diagnose(report))
    return report


def _try(part: Callable[[], Any]) -> Any:
    """``part()``, or its error as text: broken installations are what this is for, so nothing may stop it."""
    try:
        return part()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}".strip().splitlines()[0]}


def _failed(part: object) -> bool:
    return isinstance(part, dict) and "error" in part


# -- looking ------------------------------------------------------------------------------------------------


def collect() -> Report:
    """:func:`info` without ``problems``. Loads the libraries; initialises the driver where there is one."""
    libraries = {name: _try(partial(_library, name)) for name in NEEDED_LIBRARIES + OPTIONAL_LIBRARIES}
    return {
        "nvmath_device": _try(_this_package),
        "python": {
            "version": platform.python_version(),
            "executable": sys.executable,
            "platform": platform.platform(),
        },
        "simulator": os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0"),
        "driver": _try(_driver),
        "devices": _try(_devices),
        "libraries": libraries,
        "packages": _try(_packages),
        "store": _try(_store),
        "cuda_extra": _try(_installed_extra),
    }


def _this_package() -> Report:
    folder = str(Path(__file__).resolve().parent)
    try:
        return {"version": metadata.version("nvmath-device"), "path": folder}
    except metadata.PackageNotFoundError:
        return {"version": None, "path": folder}


def _driver() -> Report:
    """The CUDA version the driver supports and, if NVML tells it, the driver's own version."""
    from cuda.bindings import driver

    status, version = driver.cuDriverGetVersion()
    if status != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"cuDriverGetVersion answered {status.name}")
    return {"cuda": f"{version // 1000}.{version % 1000 // 10}", "version": _try(_kernel_mode_version)}


def _kernel_mode_version() -> str:
    from cuda.core import system

    return ".".join(str(part) for part in system.get_kernel_mode_driver_version())


def _devices() -> list[Report]:
    from cuda.bindings import driver

    def ask(function: Callable[..., tuple[Any, ...]], *arguments: Any) -> Any:
        status, *values = function(*arguments)
        if status != driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"{function.__name__} answered {status.name}")
        return values[0] if values else None

    ask(driver.cuInit, 0)
    kinds = driver.CUdevice_attribute
    devices = []
    for index in range(ask(driver.cuDeviceGetCount)):
        device = ask(driver.cuDeviceGet, index)
        major, minor, processors = (
            ask(driver.cuDeviceGetAttribute, kind, device)
            for kind in (
                kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
                kinds.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
            )
        )
        devices.append(
            {
                "index": index,
                "name": ask(driver.cuDeviceGetName, 256, device).split(b"\0")[0].decode(),
                "compute_capability": f"{major}.{minor}",
                "multiprocessors": processors,
                "memory_bytes": int(ask(driver.cuDeviceTotalMem, device)),
            }
        )
    return devices


def _library(name: str) -> Report:
    from nvmath_device.lto import toolchain

    path = toolchain.library_path(name)
    if path is None:
        raise MissingDependencyError(f"{_file_stem(name)} is not installed")
    versions: dict[str, Callable[[], Any]] = {
        "mathdx": toolchain.mathdx_version,
        "nvrtc": toolchain.nvrtc_version,
        "nvJitLink": toolchain.nvjitlink_version,
        "nvvm": partial(_nvvm_ir_version, path),
        "cublasLt": partial(_cublaslt_version, path),
    }
    version = versions[name]()
    return {"version": version if isinstance(version, str) else ".".join(map(str, version)), "path": path}


def _nvvm_ir_version(path: str) -> tuple[int, int]:
    """NVVM tells the version of its IR alone; its release is that of the package it came with."""
    numbers = [ctypes.c_int() for _ in range(4)]
    ctypes.CDLL(path).nvvmIRVersion(*map(ctypes.byref, numbers))
    return numbers[0].value, numbers[1].value


def _cublaslt_version(path: str) -> tuple[int, int, int]:
    """cublasLtGetVersion answers CUBLAS_VERSION of cublas_api.h: major * 10000 + minor * 100 + patch."""
    get_version = ctypes.CDLL(path).cublasLtGetVersion
    get_version.restype = ctypes.c_size_t
    number = get_version()
    return number // 10000, number // 100 % 100, number % 100


def _installed_extra() -> str:
    from nvmath_device.lto import toolchain

    return toolchain.cuda_extra()


def _packages() -> dict[str, str | None]:
    """Versions of installed distributions; None for a needed one that is missing. Nothing is imported."""
    versions: dict[str, str | None] = dict.fromkeys(NEEDED_PACKAGES)
    spelling = {_canonical(name): name for name in NEEDED_PACKAGES + OTHER_PACKAGES}
    for distribution in metadata.distributions():
        name = _canonical(distribution.metadata["Name"] or "")
        if name in spelling or name.startswith(OTHER_PREFIXES):
            versions.setdefault(spelling.get(name, name), None)
            # The first one found is the one that is imported.
            versions[spelling.get(name, name)] = versions[spelling.get(name, name)] or distribution.version
    return dict(sorted(versions.items()))


def _canonical(name: str) -> str:
    return name.lower().replace("_", "-")


def _store() -> Report:
    from nvmath_device.lto.store import default_store

    store = default_store()
    if store.path is None:
        return {"path": None, "entries": 0, "size_bytes": 0, "max_bytes": store.max_bytes, "writable": False}
    existing = next(folder for folder in (store.path, *store.path.parents) if folder.exists())
    return {
        "path": str(store.path),
        "entries": sum(1 for _ in store.entries()),
        "size_bytes": store.size_bytes(),
        "max_bytes": store.max_bytes,
        "writable": existing.is_dir() and os.access(existing, os.W_OK | os.X_OK),
    }


# -- judging ------------------------------------------------------------------------------------------------


def diagnose(report: Report) -> list[Report]:
    """What is missing or does not fit in what :func:`collect` found, each with its command. Pure."""
    driver, simulator = report["driver"], report["simulator"]
    cuda_major = None if _failed(driver) else int(driver["cuda"].split(".")[0])
    installed_extra = "cu13" if _failed(report["cuda_extra"]) else report["cuda_extra"]
    extra = "cu12" if cuda_major == 12 else installed_extra
    return [
        {"problem": problem, "fix": fix, "optional": optional}
        for problem, fix, optional in (
            *_judge_packages(report["packages"], extra),
            *_judge_libraries(report["libraries"], cuda_major, extra),
            *([] if simulator else _judge_devices(driver, report["devices"])),
            *_judge_store(report["store"]),
        )
    ]


Finding = tuple[str, str, bool]


def _judge_packages(packages: Report, extra: str) -> Iterable[Finding]:
    if _failed(packages):
        return
    if missing := [name for name in NEEDED_PACKAGES if packages[name] is None]:
        yield f"not installed: {', '.join(missing)}", _pip_extra(extra), False
    if (numba_cuda := packages["numba-cuda"]) and version_numbers(numba_cuda) < version_numbers(NUMBA_CUDA_FROM):
        yield f"numba-cuda {numba_cuda} is too old", f'pip install "numba-cuda>={NUMBA_CUDA_FROM}"', False
    if (numpy := packages["numpy"]) and version_numbers(numpy)[:2] >= NUMPY_CAP:
        yield f"numba-cuda does not work with NumPy {numpy}", 'pip install "numpy<2.5"', False


def _judge_libraries(libraries: Report, cuda_major: int | None, extra: str) -> Iterable[Finding]:
    if missing := [name for name in NEEDED_LIBRARIES if _failed(libraries[name])]:
        yield (
            f"not found: {', '.join(map(_file_stem, missing))} (no code can be generated for a GPU)",
            _pip_extra(extra),
            False,
        )
    for name in OPTIONAL_LIBRARIES:
        if _failed(libraries[name]):
            toolkit = "12" if extra == "cu12" else "13"
            fix = f'pip install "cuda-toolkit[cublas]=={toolkit}.*"'
            yield f"not found: {_file_stem(name)} (only nvmath_device.host needs it)", fix, True
    nvrtc, linker = libraries["nvrtc"], libraries["nvJitLink"]
    if _failed(nvrtc) or _failed(linker):
        return
    made_by, linked_by = version_numbers(nvrtc["version"]), version_numbers(linker["version"])
    if made_by[0] != linked_by[0] or made_by > linked_by:
        problem = f"nvJitLink {linker['version']} cannot link the code of NVRTC {nvrtc['version']}"
        package = "nvidia-nvjitlink-cu12" if made_by[0] == 12 else "nvidia-nvjitlink"
        yield problem, f'pip install "{package}>={made_by[0]}.{made_by[1]},<{made_by[0] + 1}"', False
    if cuda_major is not None and cuda_major < made_by[0]:
        yield (
            f"the driver is of CUDA {cuda_major}, the libraries are of CUDA {made_by[0]}",
            _pip_extra(extra),
            False,
        )


def _judge_devices(driver: Report, devices: list[Report] | Report) -> Iterable[Finding]:
    if _failed(driver):
        yield (
            "no CUDA driver: kernels can be compiled and linked, not run",
            "NUMBA_ENABLE_CUDASIM=1 python ...",
            False,
        )
    elif not devices or _failed(devices):
        hidden = "CUDA_VISIBLE_DEVICES" in os.environ
        yield "no CUDA device is visible", "unset CUDA_VISIBLE_DEVICES" if hidden else "nvidia-smi", False


def _judge_store(store: Report) -> Iterable[Finding]:
    fix = "export NVMATH_DEVICE_CACHE_DIR=/a/folder/you/can/write"
    if _failed(store):
        yield f"the code store cannot be used: {store['error']}", fix, False
    elif store["path"] is None:
        yield (
            "the code store is off: every process generates its code anew",
            "unset NVMATH_DEVICE_CACHE_DIR",
            True,
        )
    elif not store["writable"]:
        yield f"the code store {store['path']} cannot be written", fix, False


def _pip_extra(extra: str) -> str:
    return f'pip install "nvmath-device[{extra}]"'


def _file_stem(library: str) -> str:
    return f"lib{library}"


# -- writing ------------------------------------------------------------------------------------------------


def render(report: Report) -> str:
    """A report of :func:`info` as text for a terminal. Pure."""
    package, python = report["nvmath_device"], report["python"]
    lines = [
        _line(
            "nvmath-device",
            _or_error(package, lambda: f"{package['version'] or 'a checkout'}  {package['path']}"),
        ),
        _line("Python", f"{python['version']}  {python['executable']}"),
        _line("platform", python["platform"]),
        _line("driver", _or_error(report["driver"], lambda: _driver_text(report["driver"]))),
        _line("simulator", "on" if report["simulator"] else "off (NUMBA_ENABLE_CUDASIM=1 turns it on)"),
    ]
    devices = report["devices"]
    if _failed(devices) or not devices:
        lines.append(_line("devices", "none" if _failed(report["driver"]) else _or_error(devices, lambda: "none")))
    else:
        lines += [_line(f"device {device['index']}", _device_text(device)) for device in devices]
    lines.append(_line("code store", _or_error(report["store"], lambda: _store_text(report["store"]))))
    lines += ["", "libraries"]
    for name, library in report["libraries"].items():
        lines.append(_entry(_file_stem(name), _or_error(library, partial(_library_text, library))))
    lines += ["", "packages"]
    if _failed(report["packages"]):
        lines.append(_entry("", _or_error(report["packages"], str)))
    else:
        lines += [_entry(name, version or "not installed") for name, version in report["packages"].items()]
    return "\n".join([*lines, "", *_problem_lines(report["problems"])])


def _problem_lines(problems: list[Report] | Report) -> list[str]:
    if isinstance(problems, dict):
        return [f"could not be judged: {problems['error']}"]
    if not problems:
        return ["nothing is missing"]
    lines = ["missing"]
    for problem in problems:
        lines.append(f"  {problem['problem']}{' (optional)' if problem['optional'] else ''}")
        lines.append(f"      {problem['fix']}")
    return lines


def _line(name: str, text: str) -> str:
    return f"{name:<15}{text}"


def _entry(name: str, text: str) -> str:
    return f"  {name:<23}{text}"


def _or_error(part: object, text: Callable[[], str]) -> str:
    return f"none ({part['error']})" if isinstance(part, dict) and "error" in part else text()


def _driver_text(driver: Report) -> str:
    own = driver["version"]
    return f"CUDA {driver['cuda']}" if _failed(own) else f"CUDA {driver['cuda']}, version {own}"


def _device_text(device: Report) -> str:
    return (
        f"{device['name']}, compute capability {device['compute_capability']}, "
        f"{device['multiprocessors']} multiprocessors, {_size(device['memory_bytes'])}"
    )


def _library_text(library: Report) -> str:
    return f"{library['version']:<10} {library['path']}"


def _store_text(store: Report) -> str:
    if store["path"] is None:
        return "off"
    used, cap = _size(store["size_bytes"]), _size(store["max_bytes"])
    return f"{store['path']}, {store['entries']} entries, {used} of {cap}"


def _size(count: int) -> str:
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
