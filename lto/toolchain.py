# SPDX-License-Identifier: Apache-2.0
"""Finds and loads libmathdx, NVRTC and nvJitLink, and tells their versions.

Libraries are found by :mod:`cuda.pathfinder` alone: wheels, then conda, then the system's loader, then
``CUDA_PATH``, and before all of these a library that this process has already loaded. Nothing is imported or
loaded before it is asked for, and importing this module costs what ``os``, ``site`` and ``threading`` cost.

Every function may be called from any thread. A loaded library stays loaded until the process ends.
"""

from __future__ import annotations

import os
import site
import sys
import threading
from typing import TYPE_CHECKING

from nvmath_device.errors import LinkError, MissingDependencyError, NoDeviceError

if TYPE_CHECKING:
    import ctypes

# What each CUDA major calls the distributions of the wheels (folder names under site-packages).
_WHEELS = {
    13: {"mathdx": "nvidia_libmathdx_cu13", "nvrtc": "nvidia_cuda_nvrtc", "nvJitLink": "nvidia_nvjitlink"},
    12: {
        "mathdx": "nvidia_libmathdx_cu12",
        "nvrtc": "nvidia_cuda_nvrtc_cu12",
        "nvJitLink": "nvidia_nvjitlink_cu12",
    },
}
_WORDS = {"mathdx": "libmathdx", "nvrtc": "NVRTC", "nvJitLink": "nvJitLink"}

_lock = threading.RLock()
_loaded: dict[str, tuple[ctypes.CDLL, str]] = {}
_fingerprint: str | None = None


def load_mathdx() -> ctypes.CDLL:
    """Load libmathdx, and with it the NVRTC it was linked against. Later calls return the same object.

    Raises :class:`MissingDependencyError` naming the package and the command that installs it.
    """
    return _load("mathdx")[0]


def library_path(name: str) -> str | None:
    """Absolute path of a library by its pathfinder name (``"mathdx"``, ``"nvrtc"``, ``"nvJitLink"``).

    Loads the library: the path is the one this process uses, not a guess. None where it cannot be loaded.
    """
    try:
        return _load(name)[1]
    except MissingDependencyError:
        return None


def has_mathdx() -> bool:
    """Whether libmathdx is installed and can be loaded. Loads it."""
    return library_path("mathdx") is not None


def mathdx_version() -> tuple[int, int, int]:
    """(major, minor, patch) of the loaded libmathdx."""
    return _ask_three(load_mathdx().mathdxGetVersionEx)


def nvrtc_version() -> tuple[int, int]:
    """(major, minor) of the NVRTC that libmathdx compiles with; where libmathdx is missing, of any NVRTC."""
    try:
        # A symbol looked up in libmathdx is searched in its own dependencies first, so with two NVRTC of
        # different majors in the process this asks the one that libmathdx calls.
        ask = load_mathdx().nvrtcVersion
    except (MissingDependencyError, AttributeError):
        ask = _load("nvrtc")[0].nvrtcVersion
    return _ask_two(ask)


def nvjitlink_version() -> tuple[int, int]:
    """(major, minor) of nvJitLink."""
    return _ask_two(_load("nvJitLink")[0].nvJitLinkVersion)


def fingerprint() -> str:
    """What a new process of this interpreter generates code with: ``"mathdx-0.4.2.37/nvrtc-13.5.37"``.

    The rule, in order:

    1. Where the wheels are installed in the interpreter's site-packages, the versions in the names of their
       ``.dist-info`` folders count: no library is loaded and no package imported. CUDA 13's libmathdx goes
       before CUDA 12's, as pathfinder has it, and NVRTC must be the wheel of the same CUDA major.
    2. Where either wheel is missing or installed twice (conda, a system toolkit, an archive), both libraries
       are loaded and asked: ``"mathdx-0.4.2+68c6b779/nvrtc-13.5"``, with libmathdx's commit and, where the
       file name of NVRTC carries it, its full version.

    Equal texts mean equal versions. The same version from two sources may have two texts: its code is
    generated twice, never confused. Two builds under one version number are not told apart. The first answer
    is kept for the life of the process, so whoever generates code must ask :func:`matches_loaded` before
    filing it: packages may have changed meanwhile, or another component may have loaded its own copy first.

    Raises :class:`MissingDependencyError` where libmathdx cannot be found at all.
    """
    global _fingerprint
    with _lock:
        if _fingerprint is None:
            wheels = _wheel_versions(site_directories())
            _fingerprint = "mathdx-{}/nvrtc-{}".format(*wheels) if wheels else _loaded_fingerprint()
        return _fingerprint


def matches_loaded(text: str) -> bool:
    """Whether a fingerprint is true of the libmathdx and NVRTC that this process has loaded. Loads them."""
    mathdx, _, nvrtc = text.removeprefix("mathdx-").partition("/nvrtc-")
    said = mathdx.partition("+")[0], nvrtc
    loaded = ".".join(map(str, mathdx_version())), ".".join(map(str, nvrtc_version()))
    return all(f"{one}.".startswith(f"{other}.") for one, other in zip(said, loaded, strict=True))


def cuda_extra() -> str:
    """The extra of this distribution that fits the CUDA packages already installed: ``"cu13"`` or ``"cu12"``.

    CUDA 12 is answered only where packages of CUDA 12 are installed and none of CUDA 13 is.
    """
    installed = {name for directory in site_directories() for name, _ in _distributions(directory)}
    has = {major: not installed.isdisjoint(names.values()) for major, names in _WHEELS.items()}
    return "cu12" if has[12] and not has[13] else "cu13"


def link_problem(nvrtc: tuple[int, int], nvjitlink: tuple[int, int]) -> str | None:
    """Why nvJitLink cannot link LTO-IR made by this NVRTC, with the package to change; None if it can.

    nvJitLink reads LTO-IR of its own CUDA major, made by an NVRTC that is not newer than itself
    (source: "LTO requirements" in NVIDIA's MathDx documentation, version 25.12.1).
    """
    if nvrtc[0] == nvjitlink[0] and nvrtc <= nvjitlink:
        return None
    problem = "nvJitLink {}.{} cannot link the LTO-IR of NVRTC {}.{}".format(*nvjitlink, *nvrtc)
    newer_linker = f"{_package(nvrtc[0], 'nvJitLink')}>={nvrtc[0]}.{nvrtc[1]},<{nvrtc[0] + 1}"
    if nvrtc[0] == nvjitlink[0]:
        return f'{problem}: NVRTC must not be newer than nvJitLink. Run: pip install "{newer_linker}"'
    # pathfinder prefers the newer CUDA major, so moving to it is what takes effect.
    change = newer_linker if nvrtc > nvjitlink else _package(nvjitlink[0], "mathdx")
    return f'{problem}: they belong to different CUDA majors. Run: pip install "{change}"'


def check_link_compatible() -> None:
    """Raise :class:`LinkError` if nvJitLink cannot link what libmathdx and its NVRTC generate."""
    problem = link_problem(nvrtc_version(), nvjitlink_version())
    if problem:
        raise LinkError(problem)


def current_sm() -> int:
    """Compute capability of the current CUDA device as ``major * 100 + minor * 10`` (900 for an H200).

    The device of the calling thread's context, or device 0 where no context is current. Creates no context.
    Raises :class:`NoDeviceError` where there is no driver or no device.
    """
    advice = "Pass sm= (for example sm=900 for compute capability 9.0) to work without a device."
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise MissingDependencyError(
            f"cuda.bindings is not installed, so no CUDA device can be asked. {_install_advice()} {advice}"
        ) from error

    def check(what: str, result: tuple[object, ...]) -> object:
        if result[0] != driver.CUresult.CUDA_SUCCESS:
            raise NoDeviceError(f"No usable CUDA device: {what} answered {result[0].name}. {advice}")  # type: ignore[attr-defined]
        return result[1] if len(result) > 1 else None

    try:
        check("cuInit", driver.cuInit(0))
        status, device = driver.cuCtxGetDevice()
        if status != driver.CUresult.CUDA_SUCCESS:
            device = check("cuDeviceGet(0)", driver.cuDeviceGet(0))
        attribute = driver.CUdevice_attribute
        major, minor = (
            check("cuDeviceGetAttribute", driver.cuDeviceGetAttribute(which, device))
            for which in (
                attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            )
        )
    except NoDeviceError:
        raise
    except RuntimeError as error:  # cuda.bindings cannot load libcuda
        raise NoDeviceError(f"No CUDA driver: {error} {advice}") from error
    return int(major) * 100 + int(minor) * 10  # type: ignore[call-overload]


def site_directories() -> list[str]:
    """The folders where pathfinder looks for wheels, in its order."""
    directories = list(site.getsitepackages())
    if site.ENABLE_USER_SITE:
        user = site.getusersitepackages()
        directories.insert(1 if sys.prefix != sys.base_prefix else 0, user)
    return directories


def _load(name: str) -> tuple[ctypes.CDLL, str]:
    with _lock:
        if name not in _loaded:
            import ctypes

            try:
                from cuda.pathfinder import load_nvidia_dynamic_lib
            except ImportError as error:
                message = f"cuda.pathfinder is not installed. {_install_advice()}"
                raise MissingDependencyError(message) from error
            try:
                path = load_nvidia_dynamic_lib(name).abs_path
            except RuntimeError as error:  # not found, or found and not loadable: pathfinder says which
                raise MissingDependencyError(
                    f"{_WORDS.get(name, name)} cannot be loaded. {_install_advice(name)}\n{error}"
                ) from error
            _loaded[name] = (ctypes.CDLL(path), path)
        return _loaded[name]


def _install_advice(name: str = "") -> str:
    extra = cuda_extra()
    package = _package(int(extra[2:]), name) if name in _WORDS else ""
    bring = f" (it brings the package {package})" if package else ""
    return f'Run: pip install "nvmath-device[{extra}]"{bring}.'


def _package(cuda_major: int, name: str) -> str:
    return _WHEELS.get(cuda_major, _WHEELS[13])[name].replace("_", "-")


def _ask_three(function: object) -> tuple[int, int, int]:
    import ctypes

    numbers = [ctypes.c_int() for _ in range(3)]
    function(*map(ctypes.byref, numbers))  # type: ignore[operator]
    return numbers[0].value, numbers[1].value, numbers[2].value


def _ask_two(function: object) -> tuple[int, int]:
    import ctypes

    numbers = [ctypes.c_int() for _ in range(2)]
    function(*map(ctypes.byref, numbers))  # type: ignore[operator]
    return numbers[0].value, numbers[1].value


def _distributions(directory: str) -> list[tuple[str, str]]:
    """(name with underscores, version) of NVIDIA's distributions in a folder, from names alone."""
    try:
        names = os.listdir(directory)
    except OSError:
        return []
    found = []
    for entry in names:
        if entry.startswith(("nvidia_", "nvidia-")) and entry.endswith(".dist-info"):
            name, _, version = entry[: -len(".dist-info")].rpartition("-")
            found.append((name.replace("-", "_").lower(), version))
    return found


def _wheel_versions(directories: list[str]) -> tuple[str, str] | None:
    """Versions of the libmathdx and NVRTC wheels that pathfinder would load from; None where not certain."""
    installed = [_distributions(directory) for directory in directories]

    def version(wanted: str) -> str | None:
        for distributions in installed:
            found = [version for name, version in distributions if name == wanted]
            if found:
                return found[0] if len(found) == 1 else None
        return None

    for major, names in _WHEELS.items():
        mathdx = version(names["mathdx"])
        if mathdx is not None:
            nvrtc = version(names["nvrtc"])
            return (mathdx, nvrtc) if nvrtc and nvrtc.startswith(f"{major}.") else None
    return None


def _loaded_fingerprint() -> str:
    import ctypes

    commit = ctypes.c_char_p()
    load_mathdx().mathdxGetCommit(ctypes.byref(commit))
    mathdx = ".".join(map(str, mathdx_version())) + "+" + (commit.value or b"unknown").decode()[:8]
    nvrtc = ".".join(map(str, nvrtc_version()))
    _, _, file_version = os.path.basename(os.path.realpath(library_path("nvrtc") or "")).partition(".so.")
    if file_version.startswith(nvrtc + "."):
        nvrtc = file_version
    return f"mathdx-{mathdx}/nvrtc-{nvrtc}"
