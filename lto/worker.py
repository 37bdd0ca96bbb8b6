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
from nvmath_device.lto import mathdx, pipeline_code, tensor_code, toolchain
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
        "WITH_PIPELINE": enums.BlasWithPipeline,
        "ENABLE_INPUT_STREAMING": enums.BlasInputStreaming,
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
# Operators that not every supported libmathdx has, and what it is asked for to know.
_NEWER = {
    "DEVICE_FUNCTION": "fft_device_functions",
    "TRANSPOSITION": "fft_transposition",
    "THREAD_LAYOUT": "fft_thread_layout",
}
# Parts of a recipe that libmathdx has no operators for.
_NOT_OPERATORS = ("ARCH_MODIFIER", "PIPELINE_DEPTH", "TENSORS", "COPY_ALIGNMENT")
_REAL_OPTIONS = (enums.FftComplexLayout, enums.FftRealMode)


def perform(job: str, recipe: Recipe) -> tuple[dict[str, Any], bytes]:
    """Do one job in this process."""
    if job == "code":
        names = {name for name, _ in recipe.operators}
        if "TENSORS" in names:
            return tensor_code.generate(recipe)
        return pipeline_code.generate(recipe) if ("API", "TENSORS") in recipe.operators else generate_code(recipe)
    ask = {
        "fft_traits": ask_fft_traits, "fft_symbols": ask_fft_symbols, "gemm_suggestions": ask_gemm_suggestions,
        "tensor_traits": tensor_code.ask_traits,
    }  # fmt: skip
    return ask[job](recipe), b""


def generate_code(recipe: Recipe) -> tuple[dict[str, Any], bytes]:
    with open_descriptor(recipe) as descriptor, mathdx.Code() as code:
        operators = dict(recipe.operators)
        if "ARCH_MODIFIER" in operators:
            modifier = enums.ArchModifier[operators["ARCH_MODIFIER"]]
            code.set_int64s(enums.Option.TARGET_SM, [operators["SM"], modifier])
        else:
            code.set_int64(enums.Option.TARGET_SM, operators["SM"])
        if recipe.library == "cublasdx":
            code.set_str(enums.Option.EXTRA_NVRTC_ARGS, "-gen-opt-lto")  # 5.4 -> 2.0 MB, same machine code
        code.finalize(descriptor)
        (ltoir,) = code.ltoirs()
        symbols = _symbols(descriptor, recipe)
    return {"symbol": recipe.symbol, "symbols": symbols}, ltoir


def ask_gemm_suggestions(recipe: Recipe) -> dict[str, Any]:
    with open_descriptor(recipe) as descriptor:
        return {
            "block_dim": list(descriptor.trait_int64s(enums.BlasTraitType.SUGGESTED_BLOCK_DIM)),
            "leading_dimension": list(descriptor.trait_int64s(enums.BlasTraitType.SUGGESTED_LEADING_DIMENSION)),
        }


def ask_fft_symbols(recipe: Recipe) -> dict[str, str]:
    """Names of the functions that do not execute, by role, before any code is made."""
    with open_descriptor(recipe) as descriptor:
        return _symbols(descriptor, recipe)


def _symbols(descriptor: Any, recipe: Recipe) -> dict[str, str]:
    functions = dict(recipe.operators).get("DEVICE_FUNCTION", ())
    return {f: descriptor.trait_str(enums.FftTraitType[f"SYMBOL_{f}_NAME"]) for f in functions}


def ask_fft_traits(recipe: Recipe) -> dict[str, Any]:
    """cuFFTDx's traits as plain numbers; instant, so it is asked in the caller's own process.

    Raises:
        CodegenError: this combination has no implementation on the target.
    """
    trait = enums.FftTraitType
    block = dict(recipe.operators)["EXECUTION"] == "BLOCK"
    with open_descriptor(recipe) as descriptor:
        numbers = {
            name: descriptor.trait_int64(trait[name.upper()]) for name in _FFT_NUMBERS + _FFT_BLOCK_NUMBERS * block
        }
        if block:
            numbers["block_dim"] = list(descriptor.trait_int64s(trait.BLOCK_DIM))
        for name in ("value_type", "input_type", "output_type"):
            numbers[name] = descriptor.trait_value_type(trait[name.upper()]).name
    return numbers


_FFT_NUMBERS = (
    "implicit_type_batching", "elements_per_thread", "storage_size", "stride", "input_length", "output_length",
    "input_elements_per_thread", "output_elements_per_thread",
)  # fmt: skip
_FFT_BLOCK_NUMBERS = ("shared_memory_size", "ffts_per_block", "suggested_ffts_per_block")


def ask_fft_knobs(recipe: Recipe, knobs: tuple[str, ...]) -> list[tuple[int, ...]]:
    """Legal values of cuFFTDx's knobs, each tuple one implementation."""
    with open_descriptor(recipe) as descriptor:
        return descriptor.knobs([enums.FftKnobType[k.upper()] for k in knobs])


def open_descriptor(recipe: Recipe) -> Any:
    """A libmathdx descriptor with the recipe's operators set; a context manager."""
    blas = recipe.library == "cublasdx"
    descriptor = mathdx.BlasDescriptor() if blas else mathdx.FftDescriptor()
    operator_types = enums.BlasOperatorType if blas else enums.FftOperatorType
    for name, _ in recipe.operators:
        if name in _NEWER:
            mathdx.require(_NEWER[name])
    descriptor.set_str(enums.Option.SYMBOL_NAME, recipe.symbol)
    for name, value in recipe.operators:
        if name in _NOT_OPERATORS:
            continue
        if name == "DEVICE_FUNCTION":
            mask = sum(enums.FftDeviceFunctionType[f] for f in value)
            descriptor.set_int64(enums.FftOperatorType.DEVICE_FUNCTION, mask)
            continue
        values = [
            _number(recipe.library, name, i, v) for i, v in enumerate(value if isinstance(value, tuple) else (value,))
        ]
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
        if not toolchain.matches_loaded(request["versions"]):
            raise CodegenError(
                f"this program started with {request['versions']}, and other versions are installed now; restart it"
            )
        meta, blob = perform(request["job"], Recipe.from_json(request["recipe"]))
        answer: dict[str, Any] = {"meta": meta}
    except CodegenError as error:
        answer = {
            "error": str(error).partition("\n--- libmathdx says ---")[0],
            "status": error.status,
            "log": error.log,
        }
    except NvmathDeviceError as error:
        answer = {"error": str(error), "type": type(error).__name__}
    with out:
        out.write(json.dumps(answer).encode() + b"\n" + blob)


def _die_with_parent() -> None:
    """On Linux: be killed when the parent is, instead of compiling on for nobody."""
    if sys.platform == "linux":
        import ctypes
        import signal

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
