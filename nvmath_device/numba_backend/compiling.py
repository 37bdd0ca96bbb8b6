# SPDX-License-Identifier: Apache-2.0
"""Runs Numba's CUDA compiler for a target and returns what has to be linked."""

from __future__ import annotations

from typing import Any

from numba.cuda import compiler
from numba.cuda.cudadrv import nvrtc
from numba.cuda.cudadrv.linkable_code import LTOIR, CUSource, LinkableCode, PTXSource

from nvmath_device.errors import UnsupportedError
from nvmath_device.targets import ComputeCapability


def compile_modules(
    kernel: Any, signature: Any, target: ComputeCapability, options: dict[str, Any]
) -> tuple[str, list[tuple[str, bytes]]]:
    """The entry name, and the kernel with everything it calls as ``(kind, code)``, kind "ltoir" or "ptx".

    Like ``cuda.jit``, the kernel itself becomes LTO-IR, so that generated code is inlined into it, unless it
    is compiled for debugging, which link-time optimisation does not go with.
    """
    function = getattr(kernel, "py_func", kernel)
    arch = (target.major, target.minor)
    lto = not options.get("debug")
    # compile_all is the public form of this call, but keeps the entry name to itself.
    library, _ = compiler._compile_pyfunc_with_fixup(
        function, signature, device=False, abi="numba", cc=arch, lto=lto, **options
    )
    if lto:
        modules = [("ltoir", bytes(library.get_ltoir(cc=arch)))]
    else:
        modules = [("ptx", text.encode()) for text in library.get_asm_strs(cc=arch)]
    linked = [*getattr(kernel, "targetoptions", {}).get("link", ()), *library._linking_files]
    modules += [_module(LinkableCode.from_path_or_obj(code), arch) for code in linked]
    return library._entry_name, modules


def _module(code: LinkableCode, arch: tuple[int, int]) -> tuple[str, bytes]:
    if isinstance(code, LTOIR):
        return "ltoir", bytes(code.data)
    if isinstance(code, PTXSource):
        return "ptx", bytes(code.data)
    if isinstance(code, CUSource):
        compiled, _ = nvrtc.compile(code.data, code.name, arch, ltoir=True)
        return "ltoir", bytes(getattr(compiled, "code", compiled))
    raise UnsupportedError(f"link: {code.name} cannot be linked ahead of time; give LTO-IR, PTX or CUDA C++ source")
