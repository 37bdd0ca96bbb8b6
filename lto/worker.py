# SPDX-License-Identifier: Apache-2.0
"""The process in which libmathdx works: reads a job, answers with meta and code, ends.

Kept apart so that its memory is returned, several can run at once, and a crash of the library is an error
message instead of the end of the user's program.
"""

from __future__ import annotations

import json
import os
import sys
from enum import IntEnum
from typing import Any

from nvmath_device.errors import CodegenError, NvmathDeviceError
from nvmath_device.lto import mathdx
from nvmath_device.lto import mathdx_enums as enums
from nvmath_device.lto.recipes import Recipe


# What an operator's value is called in the recipe, by operator; those left out are integers.
_NAMED: dict[str, dict[str, type[IntEnum]]] = {
    "cublasdx": {
        "FUNCTION": enums.BlasFunction,
        "TYPE": enums.BlasType,
        "PRECISION": enums.Precision,
        "EXECUTION": enums.Execution,
        "API": enums.BlasApi,
        "TRANSPOSE_MODE": enums.BlasTransposeMode,
        "ARRANGEMENT": enums.BlasArrangement,
        "STATIC_BLOCK_DIM": enums.BlasStaticBlockDim,
    },
    "cufftdx": {
        "DIRECTION": enums.FftDirection,
        "TYPE": enums.FftType,
        "PRECISION": enums.Precision,
        "EXECUTION": enums.Execution,
        "API": enums.FftApi,
        "TRANSPOSITION": enums.FftTransposition,
        "THREAD_LAYOUT": enums.FftThreadLayout,
    },
}
_REAL_OPTIONS = (enums.FftComplexLayout, enums.FftRealMode)


def perform(job: str, recipe: Recipe) -> tuple[dict[str, Any], bytes]:
    """Do one job in this process."""
    return {"code": generate_code, "gemm_suggestions": ask_gemm_suggestions}[job](recipe)


def generate_code(recipe: Recipe) -> tuple[dict[str, Any], bytes]:
    with open_descriptor(recipe) as descriptor, mathdx.Code() as code:
        operators = dict(recipe.operators)
        if "ARCH_MODIFIER" in operators:
            modifier = enums.ArchModifier[operators["ARCH_MODIFIER"]]
            code.set_int64s(enums.Option.TARGET_SM, [operators["SM"], modifier])
        else:
            code.set_int64(enums.Option.TARGET_SM, operators["SM"])
        code.finalize(descriptor)
        (ltoir,) = code.ltoirs()
    return {"symbol": recipe.symbol}, ltoir


def ask_gemm_suggestions(recipe: Recipe) -> tuple[dict[str, Any], bytes]:
    with open_descriptor(recipe) as descriptor:
        return {
            "block_dim": list(descriptor.trait_int64s(enums.BlasTraitType.SUGGESTED_BLOCK_DIM)),
            "leading_dimension": list(descriptor.trait_int64s(enums.BlasTraitType.SUGGESTED_LEADING_DIMENSION)),
        }, b""


def open_descriptor(recipe: Recipe) -> Any:
    """A libmathdx descriptor with the recipe's operators set; a context manager."""
    blas = recipe.library == "cublasdx"
    descriptor = mathdx.BlasDescriptor() if blas else mathdx.FftDescriptor()
    operator_types = enums.BlasOperatorType if blas else enums.FftOperatorType
    descriptor.set_str(enums.Option.SYMBOL_NAME, recipe.symbol)
    for name, value in recipe.operators:
        if name == "ARCH_MODIFIER":
            continue
        values = [_number(recipe.library, name, i, v) for i, v in enumerate(value if isinstance(value, tuple) else (value,))]
        if isinstance(value, tuple):
            descriptor.set_int64s(operator_types[name], values)
        else:
            descriptor.set_int64(operator_types[name], values[0])
    return descriptor


def _number(library: str, operator: str, position: int, value: int | str) -> int:
    if isinstance(value, int):
        return value
    if operator == "REAL_FFT_OPTIONS":
        return _REAL_OPTIONS[position][value]
    return _NAMED[library][operator][value]


def main() -> None:
    """Entry of the worker process."""
    _die_with_parent()
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # libmathdx may print; only the answer goes to standard output
    request = json.loads(sys.stdin.readline())
    blob = b""
    try:
        meta, blob = perform(request["job"], Recipe.from_json(request["recipe"]))
        answer: dict[str, Any] = {"meta": meta}
    except CodegenError as error:
        answer = {"error": str(error).partition("\n--- libmathdx says ---")[0], "status": error.status, "log": error.log}
    except NvmathDeviceError as error:
        answer = {"error": str(error), "status": None, "log": ""}
    with out:
        out.write(json.dumps(answer).encode() + b"\n" + blob)


def _die_with_parent() -> None:
    """On Linux: be killed when the parent is, instead of compiling on for nobody."""
    if sys.platform == "linux":
        import ctypes
        import signal

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
