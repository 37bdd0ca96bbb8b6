# SPDX-License-Identifier: Apache-2.0
"""Code for several targets in one file, with nvFatbin: what ``cuModuleLoadData`` picks the right one from."""

from __future__ import annotations

from collections.abc import Sequence

from nvmath_device.errors import LinkError, MissingDependencyError
from nvmath_device.lto import toolchain
from nvmath_device.targets import ComputeCapability


def fatbin(codes: Sequence[tuple[str, ComputeCapability, bytes]], *, name: str) -> bytes:
    """Pack ``(kind, target, code)``, kind ``"cubin"`` or ``"ptx"``. ``name`` is for tools that list the contents.

    Raises:
        MissingDependencyError: nvFatbin is not installed.
        LinkError: nvFatbin refused.
    """
    try:
        from cuda.bindings import nvfatbin
    except ImportError as error:  # cuda-bindings before 12.9
        raise MissingDependencyError('cuda.bindings has no nvfatbin. Run: pip install "cuda-bindings>=12.9"') from error
    try:
        nvfatbin.version()
    except RuntimeError as error:  # the library behind it cannot be loaded
        package = "nvidia-nvfatbin-cu12" if toolchain.cuda_extra() == "cu12" else "nvidia-nvfatbin"
        raise MissingDependencyError(f"nvFatbin cannot be loaded. Run: pip install {package}\n{error}") from error
    handle = None
    try:
        handle = nvfatbin.create([], 0)
        for kind, sm, code in codes:
            arch = sm.sm.removeprefix("sm_")
            if kind == "cubin":
                nvfatbin.add_cubin(handle, code, len(code), arch, name)
            else:
                text = code.rstrip(b"\0") + b"\0"
                nvfatbin.add_ptx(handle, text, len(text), arch, name, "")
        packed = bytearray(nvfatbin.size(handle))
        nvfatbin.get(handle, packed)
        return bytes(packed)
    except nvfatbin.nvFatbinError as error:
        raise LinkError(f"nvFatbin could not pack {name}: {error}") from error
    finally:
        if handle is not None:
            nvfatbin.destroy(handle)
