# SPDX-License-Identifier: Apache-2.0
"""Choices of tiles, compiled: the part of tuning that takes long and needs no GPU."""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from nvmath_device.descriptors import GemmDescriptor, GemmSize
from nvmath_device.errors import MissingDependencyError
from nvmath_device.lto.codegen import worker_count
from nvmath_device.targets import ComputeCapability
from nvmath_device.tile_choices import TileChoice

Code = tuple[GemmSize, int, int]


@dataclass(frozen=True)
class Build:
    """A kernel for a product, compiled, or why it was not.

    Attributes:
        kernel, matmul: to launch it with; None where it failed.
        outcome: ``""``, ``"failed"``, ``"spills"``, ``"skipped"``.
        reason: in words, where there is an outcome.
        registers: of a thread.
        spills: instructions that load spilled registers; None where nvdisasm, which tells, is not installed.
        path: what multiplies, such as ``"HGMMA"``; empty as before.
    """

    kernel: Any = None
    matmul: Any = None
    outcome: str = ""
    reason: str = ""
    registers: int | None = None
    spills: int | None = None
    path: str = ""


def code_of(choice: TileChoice) -> Code:
    """What the code depends on: the group is an argument."""
    return choice.tile, choice.block_size, choice.depth


def build_all(
    descriptor: GemmDescriptor, choices: Iterable[TileChoice], sm: ComputeCapability, *, deadline: float | None = None
) -> dict[Code, Build]:
    """Compile what choices need, once each and in parallel; generated code and kernels go to the code store.

    As many at a time as there are cores and memory for processes of libmathdx: 15 to 30 s of a core each, where the
    store has none. After ``deadline`` (of ``time.monotonic``) no new one is begun. What fails is an outcome and stops
    no other.
    """
    by_code = {code_of(choice): choice for choice in reversed(tuple(choices))}
    wanted = dict(reversed(by_code.items()))  # in order, by the first choice of each

    def build(choice: TileChoice) -> Build:
        if deadline is not None and time.monotonic() > deadline:
            return Build(outcome="skipped", reason="the time was spent before it was compiled")
        try:
            return _build(descriptor, choice, sm)
        except Exception as error:  # of libmathdx, the linker, or Numba
            return Build(outcome="failed", reason=str(error).strip() or type(error).__name__)

    with ThreadPoolExecutor(worker_count(len(wanted) or 1), "nvmath_device") as executor:
        return dict(zip(wanted, executor.map(build, wanted.values()), strict=True))


def _build(descriptor: GemmDescriptor, choice: TileChoice, sm: ComputeCapability) -> Build:
    from nvmath_device.lto.cubin import read_resources
    from nvmath_device.numba_backend.tile_kernels import product_kernel, product_types

    mm = descriptor.tile(choice)
    kernel, types = product_kernel(mm, choice.depth), product_types(descriptor)
    code = kernel.build(types, sm)
    registers = read_resources(code.cubin, code.entry).registers
    try:
        report = kernel.report(signature=types, cc=sm)
    except MissingDependencyError:
        return Build(kernel, mm, registers=registers)
    loads = report.local_loads
    if loads:
        return Build(
            outcome="spills",
            reason=f"{loads} instructions load registers that were spilled",
            registers=registers,
            spills=loads,
            path=report.path,
        )
    return Build(kernel, mm, registers=registers, spills=0, path=report.path)
