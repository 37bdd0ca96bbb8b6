# SPDX-License-Identifier: Apache-2.0
"""Kernels to machine code for a given target, without a GPU: :func:`compile`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nvmath_device.checks import choice
from nvmath_device.targets import compute_capability

OPTIONS = ("debug", "lineinfo", "fastmath", "opt", "launch_bounds")


@dataclass(frozen=True)
class CompiledKernel:
    """Machine code of one kernel. ``entry`` is its name in ``code``; ``output`` says what ``code`` is."""

    entry: str
    output: str
    sm: str
    code: bytes

    def __repr__(self) -> str:
        return f"CompiledKernel({self.entry!r}, {self.output}, {self.sm}, <{len(self.code)} bytes>)"


def compile(kernel: Any, signature: Any, *, sm: Any, output: str = "cubin", **options: Any) -> CompiledKernel:
    """Compile a kernel function and link the generated code it calls.

    Args:
        kernel: a Python function, or what ``numba.cuda.jit`` made of one.
        signature: Numba signature or tuple of argument types.
        sm: target, e.g. ``90``.
        output: ``"cubin"`` (SASS in an ELF file) or ``"ptx"``.
        options: ``debug``, ``lineinfo``, ``fastmath``, ``opt``, ``launch_bounds`` as for ``numba.cuda.jit``;
            those given to ``cuda.jit`` already, and its ``link``, are kept.

    Needs libmathdx, NVRTC, NVVM and nvJitLink; neither a GPU nor a driver. Not cached yet: descriptors' code
    comes from the store, linking takes 2 to 3 s each time.
    """
    choice(output, ("cubin", "ptx"), argument="output")
    for name in options:
        choice(name, OPTIONS, argument="options")
    target = compute_capability(sm)
    from nvmath_device.lto.link import link
    from nvmath_device.numba_backend.compiling import compile_modules

    entry, modules = compile_modules(kernel, signature, target, _with_those_of_jit(kernel, options))
    return CompiledKernel(entry, output, target.sm, link(modules, sm=target, output=output))


def _with_those_of_jit(kernel: Any, options: dict[str, Any]) -> dict[str, Any]:
    of_jit = getattr(kernel, "targetoptions", {})
    return {**{name: of_jit[name] for name in OPTIONS if name in of_jit}, **options}
