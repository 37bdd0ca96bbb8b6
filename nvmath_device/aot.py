# SPDX-License-Identifier: Apache-2.0
"""Kernels to code for given targets, without a GPU: :func:`compile`."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from nvmath_device.checks import choice
from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError
from nvmath_device.lto.cubin import Resources, read_resources
from nvmath_device.targets import ComputeCapability, compute_capability

OPTIONS = ("debug", "lineinfo", "fastmath", "opt", "launch_bounds", "max_registers")
OUTPUTS = ("cubin", "ptx", "ltoir", "fatbin")

Module = tuple[str, bytes]


@dataclass(frozen=True)
class TargetNeeds:
    """What a kernel needs on one target.

    Attributes:
        blocks: what the generated code in it must be called by: ``{"block_dim": [128, 1, 1], "exact": False}``, a
            block of so many threads, or with ``exact`` just these extents. Empty where any block will do.
        least_shared: bytes of dynamic shared memory to launch with, at least: where the parts of its ``shared_layout``
            end. Of ``shared.array(0, ...)`` only its author knows how much it takes. Above 48 KiB it has to be allowed
            before a launch (``CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES``).
        resources: registers, static shared memory and what else the kernel takes; None where there is no machine code
            for this target.
    """

    blocks: tuple[dict[str, Any], ...]
    least_shared: int
    resources: Resources | None

    def as_dict(self) -> dict[str, Any]:
        resources = self.resources and self.resources.as_dict()
        return {"blocks": list(self.blocks), "least_shared": self.least_shared, "resources": resources}


@dataclass(frozen=True)
class LaunchRecord:
    """What a program has to know to launch a compiled kernel.

    Attributes:
        entry: name of the kernel in the code.
        parameters: one dict an argument, in order: ``name``, Numba's ``type``, and ``words``, the C types of the flat
            parameters that it becomes (:mod:`nvmath_device.launch_record`).
        cooperative: whether it needs a cooperative launch.
        targets: by name, such as ``"sm_90"``, what it needs there.
    """

    entry: str
    parameters: tuple[dict[str, Any], ...]
    cooperative: bool
    targets: dict[str, TargetNeeds]

    def to_json(self) -> str:
        """The record as a JSON object, with the names of the attributes."""
        return json.dumps({**self.__dict__, "targets": {sm: n.as_dict() for sm, n in self.targets.items()}}, indent=1)


@dataclass(frozen=True)
class CompiledKernel:
    """Code of one kernel. ``entry`` is its name in ``code``; ``output`` says what ``code`` is.

    Of LTO-IR, ``linked`` are the modules to link with it, ``(kind, code)`` with the kinds of
    ``nvmath_device.lto.link``: the code of libmathdx and what ``link=`` gives. Other outputs are complete: they have
    none.
    """

    entry: str
    output: str
    sm: str
    code: bytes
    record: LaunchRecord
    linked: tuple[Module, ...] = ()

    def __repr__(self) -> str:
        more = f" and {len(self.linked)} modules" if self.linked else ""
        return f"CompiledKernel({self.entry!r}, {self.output}, {self.sm}, <{len(self.code)} bytes>{more})"


def compile(
    kernel: Any,
    signature: Any,
    *,
    sm: Any = None,
    cc: Any = None,
    output: str = "cubin",
    name: str | None = None,
    **options: Any,
) -> CompiledKernel:
    """Compile a kernel function and link the generated code it calls.

    Args:
        kernel: a Python function, or what ``nd.jit`` or ``numba.cuda.jit`` made of one.
        signature: Numba signature or tuple of argument types.
        sm: target, such as ``90``, ``(9, 0)`` or ``"sm_90a"``; for a fatbin also a list of targets.
        cc: the same under another name.
        output: ``"cubin"`` (SASS in an ELF file), ``"ptx"`` (after linking), ``"ltoir"`` (the kernel alone; link it
            with the result's ``linked``) or ``"fatbin"`` (cubins of all targets, and PTX of the last one, which newer
            GPUs compile for themselves).
        name: the kernel's name in the code, a C identifier. Numba's own names are long and differ from one
            compilation to the next.
        options: ``debug``, ``lineinfo``, ``fastmath``, ``opt``, ``launch_bounds``, ``max_registers`` as for
            ``numba.cuda.jit``; those given to ``jit`` already, and its ``link``, are kept.

    Needs libmathdx, NVRTC, NVVM and nvJitLink, for a fatbin nvFatbin; neither a GPU nor a driver, helper device
    functions included. Descriptors' code comes from the code store, the kernel itself is compiled and linked each time
    (``kernel.build`` of ``nd.jit`` stores it).

    Raises:
        UnsupportedError: an argument's type cannot be passed, or the kernel cannot leave this process: it has the
            address of an array in its code, or wants Numba when it is loaded.
        CodegenError, LinkError, MissingDependencyError: as said there.
        numba.core.errors.TypingError: the function cannot be compiled.
    """
    choice(output, OUTPUTS, argument="output")
    for option in options:
        choice(option, OPTIONS, argument="options")
    if name is not None and not (isinstance(name, str) and re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII)):
        raise InvalidArgumentError(f"name: {name!r} is not a C identifier; give a name such as 'gemm_tile'")
    targets = _targets(sm, cc, output)
    options = _with_those_of_jit(kernel, options)
    if output == "ltoir" and options.get("debug"):
        raise InvalidArgumentError("output: 'ltoir' does not go with debug=True; give 'ptx' or 'cubin'")
    return _compiled(kernel, signature, targets, output, name, options)


def _targets(sm: Any, cc: Any, output: str) -> list[ComputeCapability]:
    if (sm is None) == (cc is None):
        raise ArgumentTypeError("sm: give one target as sm= (or cc=), such as sm=90")
    argument, value = ("sm", sm) if cc is None else ("cc", cc)
    targets = [compute_capability(v, argument=argument) for v in (value if isinstance(value, list) else [value])]
    if not targets or (len(targets) > 1 and output != "fatbin"):
        raise InvalidArgumentError(f"{argument}: {value!r} is a list of targets; only a fatbin holds several")
    return sorted(set(targets))


def _with_those_of_jit(kernel: Any, options: dict[str, Any]) -> dict[str, Any]:
    of_jit = getattr(kernel, "targetoptions", None) or getattr(kernel, "options", None) or {}
    return {**{name: of_jit[name] for name in (*OPTIONS, "link") if name in of_jit}, **options}


def _compiled(
    kernel: Any,
    signature: Any,
    targets: list[ComputeCapability],
    output: str,
    name: str | None,
    options: dict[str, Any],
) -> CompiledKernel:
    from nvmath_device.launch_record import check_record, record_of
    from nvmath_device.lto.fatbin import fatbin
    from nvmath_device.lto.link import link
    from nvmath_device.numba_backend.compiling import compile_modules, is_optimised
    from nvmath_device.numba_backend.signatures import argument_types
    from nvmath_device.numba_backend.supported import check_numba_cuda

    check_numba_cuda()
    types = argument_types(signature)
    parameters = record_of(kernel, types)
    codes: list[tuple[str, ComputeCapability, bytes]] = []
    needs: dict[str, TargetNeeds] = {}
    for target in targets:
        modules = compile_modules(kernel, types, target, options, name=name)
        check_record(parameters, modules.parameters)
        name = modules.entry  # the same in the code of all targets
        resources = None
        for kind in _kinds(output, is_last=target == targets[-1]):
            if kind == "ltoir":
                ((_, code),) = modules.own
            else:
                code = link(modules.modules, sm=modules.target, output=kind, optimize=is_optimised(options))
            if kind == "cubin":
                resources = read_resources(code, name)
            codes.append((kind, modules.target, code))
        needs[target.sm] = TargetNeeds(modules.blocks_as_dicts, modules.least_shared, resources)
    code = fatbin(codes, name=modules.entry) if output == "fatbin" else codes[0][2]
    record = LaunchRecord(modules.entry, parameters, modules.cooperative, needs)
    linked = modules.linked if output == "ltoir" else ()
    return CompiledKernel(modules.entry, output, " ".join(needs), code, record, linked)


def _kinds(output: str, *, is_last: bool) -> tuple[str, ...]:
    if output != "fatbin":
        return (output,)
    return ("cubin", "ptx") if is_last else ("cubin",)
