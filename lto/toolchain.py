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
from contextlib import suppress
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
# What kernels are compiled and linked with: distributions in the order in which they are preferred.
_LINK_WHEELS = {
    "nvJitLink": ("nvidia_nvjitlink", "nvidia_nvjitlink_cu12"),
    "nvvm": ("nvidia_nvvm", "nvidia_cuda_nvcc_cu12"),
    "nvrtc": ("nvidia_cuda_nvrtc", "nvidia_cuda_nvrtc_cu12"),
    "libdevice": ("nvidia_cuda_nvcc_cu12", "nvidia_nvvm"),
    "cudadevrt": ("nvidia_cuda_runtime_cu12", "nvidia_cuda_runtime"),
}
_LINK_LIBRARIES = {"nvJitLink": "nvjitlink", "nvvm": "nvvm", "nvrtc": "nvrtc"}
_LIBDEVICE = os.path.join("nvvm", "libdevice", "libdevice.10.bc")

_lock = threading.RLock()
_loaded: dict[str, tuple[ctypes.CDLL, str]] = {}
_fingerprint: str | None = None
_link_fingerprint: str | None = None


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


def link_fingerprint() -> str:
    """What a new process of this interpreter compiles and links kernels with, generated code aside.

    ``"nvjitlink-13.5.37/nvvm-13.5.37/nvrtc-13.5.37/libdevice-13.5.37/cudadevrt-13.5.37"``. The rule, for each:

    1. Where its wheel is installed once in the interpreter's site-packages, the version in the name of its
       ``.dist-info`` folder counts, and no library is loaded. CUDA 13 goes before CUDA 12 for libraries, as
       pathfinder has it, and after it for libdevice and cudadevrt, as Numba has it, which also prefers conda's.
    2. Otherwise the file that is used counts: the three libraries are loaded, and size and time of last change of
       the file they came from are the text, since their versions tell too little (that of NVVM never changes).
       Libdevice counts by its content; cudadevrt, which only kernels that synchronise their grid need, by its file,
       and ``none`` where there is none.

    Equal texts mean equal tools, as far as a wheel's version says so. The same tool from two sources, or on two
    machines without wheels, may have two texts: kernels are then compiled twice, never confused. The first answer is
    kept for the life of the process; whoever files what it has compiled must ask :func:`link_matches_loaded` before.

    Raises :class:`MissingDependencyError` where one of the first four cannot be found.
    """
    global _link_fingerprint
    with _lock:
        if _link_fingerprint is None:
            found = _link_wheels(site_directories())
            if _is_conda():
                found.pop("libdevice", None)
                found.pop("cudadevrt", None)
            tools = {key: found.get(name) or _file_version(name) for name, key in _LINK_LIBRARIES.items()}
            tools["libdevice"] = found.get("libdevice") or _libdevice_version()
            tools["cudadevrt"] = found.get("cudadevrt") or _cudadevrt_version()
            _link_fingerprint = "/".join(f"{name}-{version}" for name, version in tools.items())
        return _link_fingerprint


def header_fingerprint() -> str:
    """Which CUDA headers are used: the versions of all NVIDIA wheels, which share one include folder.

    Raises :class:`MissingDependencyError` where the headers do not come from wheels, so that nothing tells their
    version.
    """
    for directory in site_directories():
        found = sorted(_distributions(directory))
        if any(name in ("nvidia_cuda_runtime", "nvidia_cuda_runtime_cu12") for name, _ in found):
            return "/".join(f"{name}-{version}" for name, version in found)
    raise MissingDependencyError("The CUDA headers do not come from the package nvidia-cuda-runtime")


def link_matches_loaded(text: str) -> bool:
    """Whether a link fingerprint is true of the nvJitLink, NVVM and NVRTC that this process has loaded. Loads them.

    What came from a wheel is compared by the folder it was loaded from, and nvJitLink by its version, too; anything
    else by its file. The other two are no libraries, so nobody else can have loaded another.
    """
    said = dict(part.partition("-")[::2] for part in text.split("/"))
    wheels = _link_wheels(site_directories())
    for name, key in _LINK_LIBRARIES.items():
        path = library_path(name)
        if path is None or key not in said:
            return False
        if said[key] != wheels.get(name):
            matches = said[key] == _file_version(name)
        else:
            matches = any(_is_below(path, directory) for directory in site_directories())
            if name == "nvJitLink":
                matches &= f"{said[key]}.".startswith("{}.{}.".format(*nvjitlink_version()))
        if not matches:
            return False
    return True


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


def _link_wheels(directories: list[str]) -> dict[str, str]:
    """Versions of the tools that come from a wheel; those are left out of which that is not certain."""
    installed = [_by_name(_distributions(directory)) for directory in directories]
    found = {}
    for tool, names in _LINK_WHEELS.items():
        versions = next((d[name] for name in names for d in installed if name in d), ())
        if len(versions) == 1:
            found[tool] = versions[0]
    return found


def _by_name(distributions: list[tuple[str, str]]) -> dict[str, list[str]]:
    """All versions under each name."""
    versions: dict[str, list[str]] = {}
    for name, version in distributions:
        versions.setdefault(name, []).append(version)
    return versions


def _file_version(name: str) -> str:
    """A library by the file it was loaded from."""
    return _size_and_time(_load(name)[1])


def _size_and_time(path: str) -> str:
    status = os.stat(path)
    return f"{status.st_size:x}.{status.st_mtime_ns:x}"


def _libdevice_version() -> str:
    """A digest of libdevice."""
    import hashlib

    for folder in _toolkit_folders("cuda_nvcc"):
        with suppress(OSError), open(os.path.join(folder, _LIBDEVICE), "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()[:32]
    raise MissingDependencyError(f"libdevice.10.bc is not found. {_install_advice()}")


def _cudadevrt_version() -> str:
    for folder in _toolkit_folders("cuda_runtime"):
        for library in ("lib64", "lib"):
            with suppress(OSError):
                return _size_and_time(os.path.join(folder, library, "libcudadevrt.a"))
    return "none"


def _toolkit_folders(cu12_wheel: str) -> list[str]:
    """Where Numba looks for files of the toolkit that are no libraries, in its order."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    wheels = [os.path.join(d, "nvidia", wheel) for wheel in (cu12_wheel, "cu13") for d in site_directories()]
    return [*([sys.prefix] if _is_conda() else ()), *wheels, *([home] if home else ()), "/usr/local/cuda"]


def _is_conda() -> bool:
    return os.path.isdir(os.path.join(sys.prefix, "conda-meta"))


def _is_below(path: str, directory: str) -> bool:
    return os.path.realpath(path).startswith(os.path.realpath(directory) + os.sep)
