# SPDX-License-Identifier: Apache-2.0
"""The functions of a product of whole matrices, all generated in one call: in a worker, as :mod:`worker` does."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import ExitStack
from enum import IntEnum
from typing import Any

from nvmath_device.lto import mathdx
from nvmath_device.lto import mathdx_enums as enums
from nvmath_device.lto.mathdx_enums import BlasDeviceFunctionType, BlasPipelineTrait, BlasTensorTrait
from nvmath_device.lto.pipeline_recipes import ROLES, TILE_ROLES, symbol_of
from nvmath_device.lto.recipes import Recipe

RUNTIME = -(2**63)  # LIBMATHDX_RUNTIME: an extent or a stride that comes with the call
_GMEM = enums.BlasMemorySpace.GMEM

# Role -> kind of function, tensors and pipelines that it is made of, by the names used below.
_MADE_OF: dict[str, tuple[BlasDeviceFunctionType, tuple[str, ...], tuple[str, ...]]] = {
    "pipeline_create": (BlasDeviceFunctionType.CREATE, (), ("device",)),
    "pipeline_destroy": (BlasDeviceFunctionType.DESTROY, (), ("device",)),
    "tile_create": (BlasDeviceFunctionType.CREATE, (), ("tile",)),
    "tile_destroy": (BlasDeviceFunctionType.DESTROY, (), ("tile",)),
    "accumulator_create": (BlasDeviceFunctionType.CREATE, ("accumulator",), ("tile",)),
    "accumulator_clear": (BlasDeviceFunctionType.CLEAR, ("accumulator",), ()),
    "execute": (BlasDeviceFunctionType.EXECUTE, ("accumulator",), ("tile",)),
    "finish": (BlasDeviceFunctionType.FINISH_ACCUMULATION, ("accumulator",), ()),
    "fragment": (BlasDeviceFunctionType.COPY, ("accumulator", "fragment"), ()),
    "coordinate": (BlasDeviceFunctionType.MAP_IDX2CRD_PARTITIONER, ("accumulator",), ()),
    "store": (BlasDeviceFunctionType.COPY, ("fragment", "c"), ("tile",)),
}
assert set(_MADE_OF) == set(ROLES)
# The same of a product of two tiles. Its sums are in an accumulator: into a fragment libmathdx would sum each product
# on its own and add it then, which takes twice the registers, and an addition for each element and turn.
_TILE_MADE_OF: dict[str, tuple[BlasDeviceFunctionType, tuple[str, ...], tuple[str, ...]]] = {
    "accumulator_clear": (BlasDeviceFunctionType.CLEAR, ("accumulator",), ()),
    "execute": (BlasDeviceFunctionType.EXECUTE, ("a", "b", "accumulator"), ()),
    "finish": (BlasDeviceFunctionType.FINISH_ACCUMULATION, ("accumulator",), ()),
    "fragment": (BlasDeviceFunctionType.COPY, ("accumulator", "c"), ()),
    "coordinate": (BlasDeviceFunctionType.MAP_IDX2CRD_PARTITIONER, ("c",), ()),
}
assert set(_TILE_MADE_OF) == set(TILE_ROLES)


def generate(recipe: Recipe) -> tuple[dict[str, Any], bytes]:
    """Meta data, ``{"symbol", "symbols": by role, "pipeline": sizes}``, and one LTO-IR with all functions."""
    from nvmath_device.lto.worker import open_descriptor

    mathdx.require("blas_pipelines")
    operators = dict(recipe.operators)
    is_pipeline = "PIPELINE_DEPTH" in operators
    made_of = _MADE_OF if is_pipeline else _TILE_MADE_OF
    with ExitStack() as stack:
        descriptor = stack.enter_context(open_descriptor(recipe))
        target = [operators["SM"]]
        if "ARCH_MODIFIER" in operators:
            target.append(enums.ArchModifier[operators["ARCH_MODIFIER"]])
            descriptor.set_int64s(enums.BlasOperatorType.SM, target)
        tensors, pipelines = (_objects if is_pipeline else _tiles)(stack, descriptor, operators)
        _finalize(tensors.values(), pipelines.values())
        functions = [
            _function(stack, descriptor, symbol_of(recipe, role), *parts, tensors, pipelines)
            for role, parts in made_of.items()
        ]
        code = stack.enter_context(mathdx.Code())
        code.set_int64s(enums.Option.TARGET_SM, target)
        code.set_str(enums.Option.EXTRA_NVRTC_ARGS, "-gen-opt-lto")
        handles = _handles(functions)
        mathdx.call("cublasdxFinalizeDeviceFunctions", code.handle, len(functions), handles)
        (ltoir,) = code.ltoirs()
        sizes = _sizes(tensors, pipelines) if is_pipeline else _tile_sizes(tensors)
    return {
        "symbol": recipe.symbol,
        "symbols": {role: symbol_of(recipe, role) for role in made_of},
        "pipeline": sizes,
    }, ltoir


def _objects(stack: ExitStack, descriptor: Any, operators: dict[str, Any]) -> tuple[dict[str, int], dict[str, int]]:
    """Handles of tensors and pipelines, destroyed with ``stack``."""
    tensors: dict[str, int] = {}
    alignments = operators.get("ALIGNMENT")
    for i, name in enumerate("ab"):
        row_major = operators["ARRANGEMENT"][i] == "ROW_MAJOR"
        tensors[name] = _strided(
            stack, value_type(operators["PRECISION"][i], operators["TYPE"]), (RUNTIME, 1) if row_major else (1, RUNTIME)
        )
        if alignments:
            _set_alignment(tensors[name], alignments[i])
    for name, kind in (
        ("c", enums.BlasTensorType.GMEM_C),
        ("accumulator", enums.BlasTensorType.SUGGESTED_ACCUMULATOR_C),
        ("fragment", enums.BlasTensorType.SUGGESTED_RMEM_C),
    ):
        tensors[name] = _made(stack, "cublasdxDestroyTensor", "cublasdxCreateTensor", descriptor.handle, kind)
    if alignments:
        _set_alignment(tensors["c"], alignments[2])
    device = _made(
        stack, "cublasdxDestroyPipeline", "cublasdxCreateDevicePipeline", descriptor.handle,
        enums.BlasDevicePipelineType.SUGGESTED,
        operators["PIPELINE_DEPTH"], enums.BlasBlockSizeStrategy.FIXED, tensors["a"], tensors["b"],
    )  # fmt: skip
    tile = _made(
        stack,
        "cublasdxDestroyPipeline",
        "cublasdxCreateTilePipeline",
        descriptor.handle,
        enums.BlasTilePipelineType.DEFAULT,
        device,
    )
    return tensors, {"device": device, "tile": tile}


def _tiles(stack: ExitStack, descriptor: Any, operators: dict[str, Any]) -> tuple[dict[str, int], dict[str, int]]:
    """Two tiles in shared memory as the descriptor stores them, the sums, and C in registers."""
    kinds = {
        "a": enums.BlasTensorType.SMEM_A, "b": enums.BlasTensorType.SMEM_B,
        "accumulator": enums.BlasTensorType.ACCUMULATOR_C, "c": enums.BlasTensorType.RMEM_C,
    }  # fmt: skip
    tensors = {
        name: _made(stack, "cublasdxDestroyTensor", "cublasdxCreateTensor", descriptor.handle, kind)
        for name, kind in kinds.items()
    }
    return tensors, {}


def value_type(precision: str, data_type: str) -> enums.ValueType:
    """libmathdx's type of a value: ``("F16", "REAL")`` is ``R_16F``."""
    return enums.ValueType[f"{data_type[0]}_{_VALUE[precision]}"]


_VALUE = {
    "F8_E5M2": "8F_E5M2", "F8_E4M3": "8F_E4M3", "BF16": "16BF", "F16": "16F", "TF32": "32TF", "F32": "32F",
    "F64": "64F", "I8": "8I", "I16": "16I", "I32": "32I", "I64": "64I", "U8": "8UI", "U16": "16UI", "U32": "32UI",
    "U64": "64UI",
}  # fmt: skip


def _made(stack: ExitStack, destroy: str, create: str, *arguments: Any) -> int:
    handle = ctypes.c_longlong()
    mathdx.call(create, *arguments, ctypes.byref(handle))
    stack.callback(mathdx.call, destroy, handle.value)
    return handle.value


def _strided(stack: ExitStack, value: enums.ValueType, strides: tuple[int, int]) -> int:
    """A matrix in global memory with run-time extents and one run-time stride."""
    pair = ctypes.c_longlong * 2
    shape, stride = pair(RUNTIME, RUNTIME), pair(*strides)
    return _made(stack, "cublasdxDestroyTensor", "cublasdxCreateTensorStrided", _GMEM, value, None, 2, shape, stride)


def _set_alignment(tensor: int, nbytes: int) -> None:
    mathdx.call("cublasdxSetTensorOptionInt64", tensor, enums.BlasTensorOption.ALIGNMENT_BYTES, nbytes)


def _finalize(tensors: Any, pipelines: Any) -> None:
    tensors, pipelines = list(tensors), list(pipelines)
    if pipelines:
        mathdx.call("cublasdxFinalize", len(tensors), _handles(tensors), len(pipelines), _handles(pipelines))
    else:
        mathdx.call("cublasdxFinalizeTensors", len(tensors), _handles(tensors))


def _function(
    stack: ExitStack, descriptor: Any, symbol: str, kind: BlasDeviceFunctionType, tensor_names: tuple[str, ...],
    pipeline_names: tuple[str, ...], tensors: dict[str, int], pipelines: dict[str, int],
) -> int:  # fmt: skip
    of_tensors = [tensors[name] for name in tensor_names]
    of_pipelines = [pipelines[name] for name in pipeline_names]
    counted: tuple[Any, ...] = (len(of_tensors), _handles(of_tensors))
    create = "cublasdxCreateDeviceFunction"
    if of_pipelines:
        create, counted = f"{create}WithPipelines", (*counted, len(of_pipelines), _handles(of_pipelines))
    function = _made(stack, "cublasdxDestroyDeviceFunction", create, descriptor.handle, kind, *counted)
    option = enums.BlasDeviceFunctionOption.SYMBOL_NAME
    mathdx.call("cublasdxSetDeviceFunctionOptionStr", function, option, symbol.encode())
    return function


def _sizes(tensors: dict[str, int], pipelines: dict[str, int]) -> dict[str, Any]:
    """Bytes of the objects that a kernel has to make room for."""
    block = (ctypes.c_longlong * 3)()
    mathdx.call("cublasdxGetPipelineTraitInt64s", pipelines["device"], BlasPipelineTrait.BLOCK_DIM, 3, block)
    return {
        "pipeline": _trait("Pipeline", pipelines["device"], BlasPipelineTrait.STORAGE_BYTES),
        "pipeline_alignment": _trait("Pipeline", pipelines["device"], BlasPipelineTrait.STORAGE_ALIGNMENT_BYTES),
        "buffer": _trait("Pipeline", pipelines["device"], BlasPipelineTrait.BUFFER_SIZE),
        "buffer_alignment": _trait("Pipeline", pipelines["device"], BlasPipelineTrait.BUFFER_ALIGNMENT_BYTES),
        "tile": _trait("Pipeline", pipelines["tile"], BlasPipelineTrait.STORAGE_BYTES),
        "accumulator": _trait("Tensor", tensors["accumulator"], BlasTensorTrait.STORAGE_BYTES),
        "fragment": _trait("Tensor", tensors["fragment"], BlasTensorTrait.STORAGE_BYTES),
        "block_dim": list(block),
    }


def _tile_sizes(tensors: dict[str, int]) -> dict[str, Any]:
    return {name: _trait("Tensor", tensor, BlasTensorTrait.STORAGE_BYTES) for name, tensor in tensors.items()}


def _trait(of: str, handle: int, trait: IntEnum) -> int:
    value = ctypes.c_longlong()
    mathdx.call(f"cublasdxGet{of}TraitInt64", handle, trait, ctypes.byref(value))
    return value.value


def _handles(handles: Sequence[int]) -> Any:
    return (ctypes.c_longlong * max(len(handles), 1))(*handles)
