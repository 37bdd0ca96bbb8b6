# SPDX-License-Identifier: Apache-2.0
"""Generated code as a product: LTO-IR and what another compiler needs to call it.

:func:`compile_blas_execute` and :func:`compile_fft_execute` return the code of one device function and its
symbol. All these functions are ``extern "C"``, return ``void`` and take pointers:

=============================================  =================================================================
``static_leading_dimensions``                  ``(alpha, a, b, beta, c)``
``dynamic_leading_dimensions``                 ``(alpha, a, lda, b, ldb, beta, c, ldc)``, ld* to ``unsigned``
``register_memory`` (Block)                    ``(thread_data, shared_scratch)``
``shared_memory`` (Block)                      ``(shared_data)``
Thread                                         ``(thread_data)``
=============================================  =================================================================

alpha and beta have C's type; a, b, c and shared memory are generic pointers into shared memory, aligned as
the descriptor says; a block has exactly the descriptor's ``block_dim``. Link with nvJitLink, ``-lto``, no older
than the NVRTC that libmathdx used.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from nvmath_device.checks import choice
from nvmath_device.errors import ArgumentTypeError, UnsupportedError
from nvmath_device.fft import FFT
from nvmath_device.matmul import Matmul, current_target
from nvmath_device.targets import ComputeCapability, compute_capability


class CodeType(NamedTuple):
    """What kind of code, for which target. ``kind`` is ``"lto"``."""

    kind: str
    cc: ComputeCapability


class ISAVersion(NamedTuple):
    """Version of the instruction set the code is written in: that of the NVRTC that made it."""

    major: int
    minor: int


class Code(NamedTuple):
    """Generated code."""

    code_type: CodeType
    isa_version: ISAVersion
    data: bytes


_BLAS_APIS = {"static_leading_dimensions": "SMEM", "dynamic_leading_dimensions": "SMEM_DYNAMIC_LD"}
_FFT_APIS = {"register_memory": "LMEM", "shared_memory": "SMEM"}


def current_device_lto() -> CodeType:
    """LTO-IR for the current device."""
    return CodeType("lto", current_target())


def compile_blas_execute(
    blas: Matmul, code_type: Any = None, execute_api: str = "static_leading_dimensions"
) -> tuple[Code, str]:
    """The LTO-IR of ``Matmul.execute`` and its symbol.

    ``code_type`` is a :class:`CodeType` or ``("lto", target)``; default: the object's own target, else the
    current device's. Needs no GPU for a given target. From the store, or generated in 11 to 30 s.
    """
    if not isinstance(blas, Matmul):
        raise ArgumentTypeError(f"blas: {blas!r} is not a Matmul")
    choice(execute_api, tuple(_BLAS_APIS), argument="execute_api")
    plan = blas.resolved(_target(code_type, blas.block_execution.sm))
    return _generate(plan.recipe(_BLAS_APIS[execute_api]), plan.sm)


def compile_fft_execute(fft: FFT, code_type: Any = None, execute_api: str | None = None) -> tuple[Code, str]:
    """The LTO-IR of ``FFT.execute`` and its symbol.

    ``execute_api`` is ``"register_memory"`` (the default) or ``"shared_memory"`` for Block execution, and must
    be left out for Thread execution. Otherwise like :func:`compile_blas_execute`; generated in 3 to 6 s.
    """
    from nvmath_device.lto.recipes import fft_recipe

    if not isinstance(fft, FFT):
        raise ArgumentTypeError(f"fft: {fft!r} is not an FFT")
    if execute_api is not None:
        if fft.execution == "Thread":
            raise UnsupportedError(f"execute_api: {execute_api!r} has no meaning for Thread execution; leave it out")
        choice(execute_api, tuple(_FFT_APIS), argument="execute_api")
    descriptor, target = fft.resolved(_target(code_type, fft.target))
    api = _FFT_APIS[execute_api or "register_memory"]
    return _generate(fft_recipe(descriptor, sm=target, api=api), target)


def _target(code_type: Any, own: ComputeCapability | None) -> ComputeCapability | None:
    if code_type is None:
        return None
    if not isinstance(code_type, tuple) or len(code_type) != 2:
        raise ArgumentTypeError(f"code_type: {code_type!r} is not a CodeType; give ('lto', target)")
    choice(code_type[0], ("lto",), argument="code_type")
    target = compute_capability(code_type[1], argument="code_type")
    if own is not None and own != target:
        raise UnsupportedError(
            f"code_type: {target.sm} is not {own.sm}, which the object was made for; make it without sm"
        )
    return target


def _generate(recipe: Any, target: ComputeCapability) -> tuple[Code, str]:
    from nvmath_device.lto import codegen, toolchain

    made = codegen.code(recipe)
    return Code(CodeType("lto", target), ISAVersion(*toolchain.nvrtc_version()), made.ltoir), made.symbol
