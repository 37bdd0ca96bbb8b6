# SPDX-License-Identifier: Apache-2.0
"""Finding libraries, the fingerprint rule, version rules of linking, and what a missing part says."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest

from nvmath_device.errors import LinkError, MissingDependencyError, NoDeviceError
from nvmath_device.lto import toolchain

ROOT = Path(__file__).resolve().parents[2]


def make_wheels(directory: Path, *names: str) -> str:
    for name in names:
        (directory / f"{name}.dist-info").mkdir(parents=True)
    return str(directory)


def run_python(code: str, **environment: str) -> dict[str, object]:
    """Run code in a new interpreter and return the JSON that it prints."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# --- the fingerprint: wheels --------------------------------------------------------------------


def installed_version(*distributions: str) -> str:
    for name in distributions:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    raise AssertionError(f"none of {distributions} is installed")


def test_fingerprint_of_wheels_is_cheap_and_loads_nothing() -> None:
    """Read by every lookup in the code store, which has 20 ms in a new process."""
    answer = run_python(
        "import json, sys, time\n"
        "import nvmath_device\n"
        "from nvmath_device.lto import toolchain\n"
        "start = time.perf_counter()\n"
        "text = toolchain.fingerprint()\n"
        "seconds = time.perf_counter() - start\n"
        "names = ('ctypes', 'cuda.pathfinder', 'importlib.metadata', 'numpy')\n"
        "heavy = [name for name in names if name in sys.modules]\n"
        "print(json.dumps([text, seconds, heavy]))"
    )
    text, seconds, heavy = answer  # type: ignore[misc]
    mathdx = installed_version("nvidia-libmathdx-cu13", "nvidia-libmathdx-cu12")
    nvrtc = installed_version("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12")
    assert text == f"mathdx-{mathdx}/nvrtc-{nvrtc}"
    assert heavy == []
    assert seconds < 0.010


@pytest.mark.parametrize(
    ("wheels", "expected"),
    [
        (["nvidia_libmathdx_cu13-0.4.2.37", "nvidia_cuda_nvrtc-13.5.37"], ("0.4.2.37", "13.5.37")),
        (["nvidia_libmathdx_cu12-0.3.1.9", "nvidia_cuda_nvrtc_cu12-12.9.86"], ("0.3.1.9", "12.9.86")),
        (["nvidia-libmathdx-cu13-0.4.2.37", "nvidia-cuda-nvrtc-13.5.37"], ("0.4.2.37", "13.5.37")),
        # Both majors: CUDA 13's libmathdx is the one that is loaded, with its own NVRTC.
        (
            [
                "nvidia_libmathdx_cu12-0.3.1.9",
                "nvidia_libmathdx_cu13-0.4.2.37",
                "nvidia_cuda_nvrtc_cu12-12.9.86",
                "nvidia_cuda_nvrtc-13.5.37",
            ],
            ("0.4.2.37", "13.5.37"),
        ),
        # Not certain: no libmathdx, no NVRTC of its major, two versions at once, an unrelated package.
        (["nvidia_cuda_nvrtc-13.5.37"], None),
        (["nvidia_libmathdx_cu13-0.4.2.37"], None),
        (["nvidia_libmathdx_cu13-0.4.2.37", "nvidia_cuda_nvrtc_cu12-12.9.86"], None),
        (["nvidia_libmathdx_cu13-0.4.2.37", "nvidia_cuda_nvrtc-12.0.1"], None),
        (
            ["nvidia_libmathdx_cu13-0.4.2.37", "nvidia_libmathdx_cu13-0.4.1.15", "nvidia_cuda_nvrtc-13.5.37"],
            None,
        ),
        (["nvidia_libmathdx_cu13_extras-9.9", "libmathdx-0.4.2.37", "nvidia_cuda_nvrtc-13.5.37"], None),
        ([], None),
    ],
)
def test_wheel_versions(tmp_path: Path, wheels: list[str], expected: tuple[str, str] | None) -> None:
    assert toolchain._wheel_versions([make_wheels(tmp_path, *wheels)]) == expected


def test_the_first_folder_with_a_wheel_counts_for_each_wheel(tmp_path: Path) -> None:
    user = make_wheels(tmp_path / "user", "nvidia_libmathdx_cu13-0.4.1.15")
    system = make_wheels(tmp_path / "system", "nvidia_libmathdx_cu13-0.4.2.37", "nvidia_cuda_nvrtc-13.5.37")
    assert toolchain._wheel_versions([user, system, str(tmp_path / "missing")]) == ("0.4.1.15", "13.5.37")


def test_an_upgrade_changes_the_fingerprint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = make_wheels(tmp_path, "nvidia_libmathdx_cu13-0.4.2.37", "nvidia_cuda_nvrtc-13.5.37")
    monkeypatch.setattr(toolchain, "site_directories", lambda: [directory])
    seen = []
    for old, new in (("13.5.37", "13.5.63"), ("13.5.63", "13.6.2")):
        monkeypatch.setattr(toolchain, "_fingerprint", None)  # a new process
        seen.append(toolchain.fingerprint())
        (tmp_path / f"nvidia_cuda_nvrtc-{old}.dist-info").rename(tmp_path / f"nvidia_cuda_nvrtc-{new}.dist-info")
        assert toolchain.fingerprint() == seen[-1], "one process keeps its first answer"
    assert seen == ["mathdx-0.4.2.37/nvrtc-13.5.37", "mathdx-0.4.2.37/nvrtc-13.5.63"]


def test_site_directories_are_those_of_pathfinder() -> None:
    from cuda.pathfinder._utils.find_sub_dirs import find_sub_dirs_all_sitepackages

    existing = [directory for directory in toolchain.site_directories() if os.path.isdir(directory)]
    assert existing == find_sub_dirs_all_sitepackages(())


# --- the fingerprint: loaded libraries ----------------------------------------------------------


def library_folder(tmp_path: Path) -> Path:
    """A folder like that of another source: the libraries under their versioned names only."""
    folder = tmp_path / "lib"
    folder.mkdir()
    for name in ("mathdx", "nvrtc"):
        path = toolchain.library_path(name)
        assert path
        (folder / Path(path).name).symlink_to(path)
    return folder


@pytest.mark.parametrize("source", ["conda", "system loader"])
def test_r110_libmathdx_from_another_source_is_found_and_its_path_reported(tmp_path: Path, source: str) -> None:
    folder = library_folder(tmp_path)
    environment = {"CONDA_PREFIX": str(tmp_path)} if source == "conda" else {"LD_LIBRARY_PATH": str(folder)}
    path, text, version, good, other_build, other_version = run_python(  # type: ignore[misc]
        "import json, site\n"
        "site.getsitepackages = lambda: []\n"  # no wheels, as far as anybody can see
        "site.ENABLE_USER_SITE = False\n"
        "from nvmath_device.lto import toolchain as t\n"
        "text = t.fingerprint()\n"
        "number = '.'.join(map(str, t.mathdx_version()))\n"
        "others = [f'mathdx-{number}.99/' + text.split('/')[1], 'mathdx-0.0.1/nvrtc-13.5']\n"
        "checks = [t.matches_loaded(x) for x in (text, *others)]\n"
        "print(json.dumps([t.library_path('mathdx'), text, number, *checks]))",
        **environment,
    )
    assert Path(path).parent == folder
    assert text.startswith(f"mathdx-{version}+")
    assert len(text.split("+")[1].split("/")[0]) == 8
    assert installed_version("nvidia-libmathdx-cu13", "nvidia-libmathdx-cu12").startswith(version)
    assert (good, other_build, other_version) == (True, True, False)


@pytest.mark.parametrize(
    ("said", "loaded", "matches"),
    [
        ("mathdx-0.4.2.37/nvrtc-13.5.37", ((0, 4, 2), (13, 5)), True),
        ("mathdx-0.4.2+68c6b779/nvrtc-13.5", ((0, 4, 2), (13, 5)), True),
        ("mathdx-0.4.2.37/nvrtc-13.5.37", ((0, 4, 20), (13, 5)), False),
        ("mathdx-0.4.20.3/nvrtc-13.5.37", ((0, 4, 2), (13, 5)), False),
        ("mathdx-0.4.2.37/nvrtc-13.50.1", ((0, 4, 2), (13, 5)), False),
        ("mathdx-0.4.2.37/nvrtc-13.5.37", ((0, 4, 2), (13, 4)), False),
        ("mathdx-0.3.1.9/nvrtc-12.9.86", ((0, 4, 2), (13, 5)), False),
    ],
)
def test_matches_loaded(
    monkeypatch: pytest.MonkeyPatch,
    said: str,
    loaded: tuple[tuple[int, int, int], tuple[int, int]],
    matches: bool,
) -> None:
    monkeypatch.setattr(toolchain, "mathdx_version", lambda: loaded[0])
    monkeypatch.setattr(toolchain, "nvrtc_version", lambda: loaded[1])
    assert toolchain.matches_loaded(said) is matches


def test_the_fingerprint_here_matches_what_is_loaded() -> None:
    assert toolchain.matches_loaded(toolchain.fingerprint())


# --- the fingerprint of linking -----------------------------------------------------------------


def test_link_fingerprint_of_wheels_is_cheap_and_loads_nothing() -> None:
    answer = run_python(
        "import json, sys, time\n"
        "import nvmath_device\n"
        "from nvmath_device.lto import toolchain\n"
        "start = time.perf_counter()\n"
        "text = toolchain.link_fingerprint()\n"
        "seconds = time.perf_counter() - start\n"
        "names = ('ctypes', 'cuda.pathfinder', 'importlib.metadata', 'hashlib', 'numpy', 'numba')\n"
        "heavy = [name for name in names if name in sys.modules]\n"
        "print(json.dumps([text, seconds, heavy]))"
    )
    text, seconds, heavy = answer  # type: ignore[misc]
    nvjitlink = installed_version("nvidia-nvjitlink", "nvidia-nvjitlink-cu12")
    nvvm = installed_version("nvidia-nvvm", "nvidia-cuda-nvcc-cu12")
    nvrtc = installed_version("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12")
    runtime = installed_version("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12")
    assert text == f"nvjitlink-{nvjitlink}/nvvm-{nvvm}/nvrtc-{nvrtc}/libdevice-{nvvm}/cudadevrt-{runtime}"
    assert heavy == []
    assert seconds < 0.010


@pytest.mark.parametrize(
    ("wheels", "expected"),
    [
        (
            ["nvidia_nvjitlink-13.5.37", "nvidia_nvvm-13.5.63"],
            {"nvJitLink": "13.5.37", "nvvm": "13.5.63", "libdevice": "13.5.63"},
        ),
        (
            ["nvidia-nvjitlink-cu12-12.9.86", "nvidia-cuda-nvcc-cu12-12.9.41"],
            {"nvJitLink": "12.9.86", "nvvm": "12.9.41", "libdevice": "12.9.41"},
        ),
        # Both majors: CUDA 13's libraries, and CUDA 12's libdevice, each as it is found by who looks for it.
        (
            [
                "nvidia_nvjitlink-13.5.37",
                "nvidia_nvvm-13.5.63",
                "nvidia_nvjitlink_cu12-12.9.86",
                "nvidia_cuda_nvcc_cu12-12.9.41",
            ],
            {"nvJitLink": "13.5.37", "nvvm": "13.5.63", "libdevice": "12.9.41"},
        ),
        # Not certain: two versions, or none.
        (
            ["nvidia_nvjitlink-13.5.37", "nvidia_nvjitlink-13.6.1", "nvidia_nvvm-13.5.63"],
            {"nvvm": "13.5.63", "libdevice": "13.5.63"},
        ),
        (
            ["nvidia_cuda_nvrtc-13.5.37", "nvidia_cuda_nvrtc_cu12-12.9.86", "nvidia_cuda_runtime-13.5.37"],
            {"nvrtc": "13.5.37", "cudadevrt": "13.5.37"},
        ),
        (["nvidia_cuda_nvrtc_cu12-12.9.86", "nvidia_cublas-13.5.37"], {"nvrtc": "12.9.86"}),
    ],
)
def test_wheels_of_linking(tmp_path: Path, wheels: list[str], expected: dict[str, str]) -> None:
    assert toolchain._link_wheels([make_wheels(tmp_path, *wheels)]) == expected


def test_an_upgrade_changes_the_link_fingerprint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("nvidia_nvjitlink", "nvidia_nvvm", "nvidia_cuda_nvrtc", "nvidia_cuda_runtime")
    directory = make_wheels(tmp_path, *(f"{name}-13.5.37" for name in names))
    monkeypatch.setattr(toolchain, "site_directories", lambda: [directory])
    seen = []
    for name in names:
        monkeypatch.setattr(toolchain, "_link_fingerprint", None)  # a new process
        seen.append(toolchain.link_fingerprint())
        (tmp_path / f"{name}-13.5.37.dist-info").rename(tmp_path / f"{name}-13.6.2.dist-info")
        assert toolchain.link_fingerprint() == seen[-1], "one process keeps its first answer"
    assert seen == [
        "nvjitlink-13.5.37/nvvm-13.5.37/nvrtc-13.5.37/libdevice-13.5.37/cudadevrt-13.5.37",
        "nvjitlink-13.6.2/nvvm-13.5.37/nvrtc-13.5.37/libdevice-13.5.37/cudadevrt-13.5.37",
        "nvjitlink-13.6.2/nvvm-13.6.2/nvrtc-13.5.37/libdevice-13.6.2/cudadevrt-13.5.37",
        "nvjitlink-13.6.2/nvvm-13.6.2/nvrtc-13.6.2/libdevice-13.6.2/cudadevrt-13.5.37",
    ]


def test_tools_of_another_source_count_by_their_files(tmp_path: Path) -> None:
    """A toolkit in CUDA_HOME that no wheel hides: the same text from the same files, another from others."""
    home = tmp_path / "cuda"
    places = {"nvJitLink": home / "lib64", "nvrtc": home / "lib64", "nvvm": home / "nvvm" / "lib64"}
    copies = []
    for name, folder in places.items():
        path = toolchain.library_path(name)
        assert path
        folder.mkdir(parents=True, exist_ok=True)
        copies.append(folder / Path(path).name)
        shutil.copyfile(path, copies[-1])
    libdevice = home / "nvvm" / "libdevice" / "libdevice.10.bc"
    libdevice.parent.mkdir()

    def ask() -> list[object]:
        return run_python(  # type: ignore[return-value]
            "import json, site\n"
            "site.getsitepackages = lambda: []\n"
            "site.ENABLE_USER_SITE = False\n"
            "from nvmath_device.lto import toolchain as t\n"
            "text = t.link_fingerprint()\n"
            "paths = map(t.library_path, ('nvvm', 'nvrtc', 'nvJitLink'))\n"
            "print(json.dumps([text, *paths, t.link_matches_loaded(text)]))",
            CUDA_HOME=str(home),
            CUDA_PATH=str(home),
            LD_LIBRARY_PATH=f"{home}/lib64:{home}/nvvm/lib64",  # before what else the system may have
        )

    libdevice.write_bytes(b"one")
    first, *paths, matches = ask()
    assert all(str(path).startswith(str(home)) for path in paths)
    assert matches
    texts = [ask()[0]]
    assert texts == [first]
    libdevice.write_bytes(b"two")
    texts.append(ask()[0])
    for copy in copies:
        os.utime(copy, ns=(0, 1_000_000_007))  # another build has another time
        texts.append(ask()[0])
    (home / "lib64" / "libcudadevrt.a").write_bytes(b"one")
    texts.append(ask()[0])
    assert len(set(texts)) == len(texts) == 6
    shutil.rmtree(home)  # 250 MB


def test_what_is_loaded_matches_the_link_fingerprint_here_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    text = toolchain.link_fingerprint()
    assert toolchain.link_matches_loaded(text)
    said = dict(part.split("-") for part in text.split("/"))
    others = ["/".join(f"{n}-{'1.2.3' if n == name else v}" for n, v in said.items()) for name in list(said)[:3]]
    for other in (*others, "nvjitlink-13.5.37", ""):
        assert not toolchain.link_matches_loaded(other), other
    monkeypatch.setattr(toolchain, "nvjitlink_version", lambda: (12, 0))  # loaded by somebody else, from elsewhere
    assert not toolchain.link_matches_loaded(text)
    monkeypatch.undo()
    monkeypatch.setattr(toolchain, "library_path", lambda name: f"/usr/lib/lib{name}.so")
    assert not toolchain.link_matches_loaded(text)


def test_a_missing_libdevice_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "site_directories", lambda: [str(tmp_path)])
    monkeypatch.setattr(toolchain, "_link_fingerprint", None)
    monkeypatch.setattr(toolchain, "_file_version", lambda name: "1")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    if os.path.isdir("/usr/local/cuda"):
        assert "libdevice-" in toolchain.link_fingerprint()
        return
    with pytest.raises(MissingDependencyError, match=r"libdevice.*pip install"):
        toolchain.link_fingerprint()


def test_header_fingerprint_names_every_wheel_of_nvidia(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = make_wheels(tmp_path, "nvidia_cuda_runtime-13.5.37", "nvidia_cuda_cccl-13.3.5", "numpy-2.4.6")
    monkeypatch.setattr(toolchain, "site_directories", lambda: [directory])
    assert toolchain.header_fingerprint() == "nvidia_cuda_cccl-13.3.5/nvidia_cuda_runtime-13.5.37"
    monkeypatch.setattr(toolchain, "site_directories", list)
    with pytest.raises(MissingDependencyError, match="nvidia-cuda-runtime"):
        toolchain.header_fingerprint()


# --- versions -----------------------------------------------------------------------------------


def test_versions_are_those_of_the_installed_wheels() -> None:
    mathdx = installed_version("nvidia-libmathdx-cu13", "nvidia-libmathdx-cu12").split(".")
    nvrtc = installed_version("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12").split(".")
    nvjitlink = installed_version("nvidia-nvjitlink", "nvidia-nvjitlink-cu12").split(".")
    assert toolchain.mathdx_version() == tuple(map(int, mathdx[:3]))
    assert toolchain.nvrtc_version() == tuple(map(int, nvrtc[:2]))
    assert toolchain.nvjitlink_version() == tuple(map(int, nvjitlink[:2]))


def test_the_installed_stack_links() -> None:
    toolchain.check_link_compatible()


@pytest.mark.parametrize(("nvrtc", "nvjitlink"), [((13, 5), (13, 5)), ((13, 0), (13, 5)), ((12, 9), (12, 9))])
def test_linkable_versions(nvrtc: tuple[int, int], nvjitlink: tuple[int, int]) -> None:
    assert toolchain.link_problem(nvrtc, nvjitlink) is None


@pytest.mark.parametrize(
    ("nvrtc", "nvjitlink", "package"),
    [
        ((13, 5), (13, 4), "nvidia-nvjitlink>=13.5,<14"),
        ((12, 9), (12, 2), "nvidia-nvjitlink-cu12>=12.9,<13"),
        ((13, 5), (12, 9), "nvidia-nvjitlink>=13.5,<14"),
        ((12, 9), (13, 5), "nvidia-libmathdx-cu13"),
    ],
)
def test_unlinkable_versions_name_both_and_the_package(
    monkeypatch: pytest.MonkeyPatch, nvrtc: tuple[int, int], nvjitlink: tuple[int, int], package: str
) -> None:
    monkeypatch.setattr(toolchain, "nvrtc_version", lambda: nvrtc)
    monkeypatch.setattr(toolchain, "nvjitlink_version", lambda: nvjitlink)
    with pytest.raises(LinkError) as caught:
        toolchain.check_link_compatible()
    text = str(caught.value)
    assert "NVRTC {}.{}".format(*nvrtc) in text
    assert "nvJitLink {}.{}".format(*nvjitlink) in text
    assert f'pip install "{package}"' in text


# --- what is missing ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wheels", "extra"),
    [
        ([], "cu13"),
        (["nvidia_cuda_nvrtc-13.5.37"], "cu13"),
        (["nvidia_cuda_nvrtc_cu12-12.9.86"], "cu12"),
        (["nvidia_nvjitlink_cu12-12.9.86"], "cu12"),
        (["nvidia_cuda_nvrtc_cu12-12.9.86", "nvidia_nvjitlink-13.5.37"], "cu13"),
    ],
)
def test_missing_libmathdx_names_package_and_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wheels: list[str], extra: str
) -> None:
    import cuda.pathfinder

    def nothing(name: str) -> None:
        raise cuda.pathfinder.DynamicLibNotFoundError(f"nowhere: {name}")

    monkeypatch.setattr(cuda.pathfinder, "load_nvidia_dynamic_lib", nothing)
    monkeypatch.setattr(toolchain, "_loaded", {})
    wheel_folder = make_wheels(tmp_path, *wheels)
    monkeypatch.setattr(toolchain, "site_directories", lambda: [wheel_folder])
    with pytest.raises(MissingDependencyError) as caught:
        toolchain.load_mathdx()
    for part in (
        "libmathdx",
        f'pip install "nvmath-device[{extra}]"',
        f"nvidia-libmathdx-{extra}",
        "nowhere: mathdx",
    ):
        assert part in str(caught.value)
    assert isinstance(caught.value, ImportError)
    assert toolchain.library_path("mathdx") is None
    assert not toolchain.has_mathdx()


def test_missing_pathfinder_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "_loaded", {})
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", None)
    with pytest.raises(MissingDependencyError, match=r"cuda\.pathfinder.*pip install"):
        toolchain.load_mathdx()


# --- the device ---------------------------------------------------------------------------------


class Status:
    def __init__(self, name: str) -> None:
        self.name = name


def fake_driver(*, init: object = None, context_device: int | None = None, devices: int = 1) -> types.SimpleNamespace:
    """cuda.bindings.driver with devices of compute capability 8.0, 9.0, 10.0 ..."""
    good, no_context, none = (
        Status("CUDA_SUCCESS"),
        Status("CUDA_ERROR_INVALID_CONTEXT"),
        Status("CUDA_ERROR_NO_DEVICE"),
    )

    def initialise(flags: int) -> tuple[Status]:
        if isinstance(init, Exception):
            raise init
        return (good if devices else none,)

    return types.SimpleNamespace(
        CUresult=types.SimpleNamespace(CUDA_SUCCESS=good),
        CUdevice_attribute=types.SimpleNamespace(
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR="major",
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR="minor",
        ),
        cuInit=initialise,
        cuCtxGetDevice=lambda: (no_context, 0) if context_device is None else (good, context_device),
        cuDeviceGet=lambda index: (good, index),
        cuDeviceGetAttribute=lambda which, device: (good, device + 8 if which == "major" else 6),
    )


def use_driver(monkeypatch: pytest.MonkeyPatch, driver: object) -> None:
    import cuda.bindings

    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", driver)
    monkeypatch.setattr(cuda.bindings, "driver", driver, raising=False)


@pytest.mark.parametrize(("context_device", "sm"), [(None, 860), (0, 860), (2, 1060)])
def test_current_sm_asks_the_current_device(
    monkeypatch: pytest.MonkeyPatch, context_device: int | None, sm: int
) -> None:
    use_driver(monkeypatch, fake_driver(context_device=context_device))
    assert toolchain.current_sm() == sm


@pytest.mark.parametrize(
    ("driver", "reason"),
    [
        (fake_driver(devices=0), "CUDA_ERROR_NO_DEVICE"),
        (fake_driver(init=RuntimeError("libcuda.so.1 is missing")), r"libcuda\.so\.1 is missing"),
    ],
)
def test_no_device_says_to_pass_sm(monkeypatch: pytest.MonkeyPatch, driver: object, reason: str) -> None:
    use_driver(monkeypatch, driver)
    with pytest.raises(NoDeviceError, match=rf"(?s){reason}.*sm=900"):
        toolchain.current_sm()
