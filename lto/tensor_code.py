# SPDX-License-Identifier: Apache-2.0
"""The functions of opaque tensors, generated in one call, and their sizes: in a worker, as :mod:`worker` does."""

from __future__ import annotations

import ctypes
from contextlib import ExitStack
from typing import Any

from nvmath_device.lto import mathdx
from nvmath_device.lto import mathdx_enums as enums
from nvmath_device.lto.mathdx_enums import (
    BlasDeviceFunctionOption,
    BlasDeviceFunctionType,
    BlasTensorTrait,
    BlasTensorType,
)
from nvmath_device.lto.recipes import Recipe
from nvmath_device.lto.tensor_recipes import ROLES, SUGGESTED, roles_of, symbol_of

_IN_GMEM = {"ga": BlasTensorType.GMEM_A, "gb": BlasTensorType.GMEM_B, "gc": BlasTensorType.GMEM_C}
_PLAIN = {
    "sa": BlasTensorType.SMEM_A, "sb": BlasTensorType.SMEM_B, "sc": BlasTensorType.SMEM_C, "r": BlasTensorType.RMEM_C,
}  # fmt: skip
_SUGGESTED = {
    "sa": BlasTensorType.SUGGESTED_SMEM_A, "sb": BlasTensorType.SUGGESTED_SMEM_B,
    "sc": BlasTensorType.SUGGESTED_SMEM_C, "r": BlasTensorType.SUGGESTED_RMEM_C,
}  # fmt: skip
# Role -> kind of function, and the tensors that it is made of: "g" in global, "s" in shared memory, "r" C in registers.
_MADE_OF: dict[str, tuple[BlasDeviceFunctionType, tuple[str, ...]]] = {
    **{f"load_{x}": (BlasDeviceFunctionType.COPY, (f"g{x}", f"s{x}")) for x in "abc"},
    **{f"store_{x}": (BlasDeviceFunctionType.COPY, (f"s{x}", f"g{x}")) for x in "abc"},
    "fragment_from_gmem": (BlasDeviceFunctionType.COPY, ("gc", "r")),
    "fragment_to_gmem": (BlasDeviceFunctionType.COPY, ("r", "gc")),
    "fragment_from_smem": (BlasDeviceFunctionType.COPY, ("sc", "r")),
    "fragment_to_smem": (BlasDeviceFunctionType.COPY, ("r", "sc")),
    "clear": (BlasDeviceFunctionType.CLEAR, ("r",)),
    "axpby": (BlasDeviceFunctionType.AXPBY, ("r", "r")),
    "execute": (BlasDeviceFunctionType.EXECUTE, ("sa", "sb", "r")),
    "execute_shared": (BlasDeviceFunctionType.EXECUTE, ("sa", "sb", "sc")),
    "coordinate": (BlasDeviceFunctionType.MAP_IDX2CRD_PARTITIONER, ("r",)),
    "is_thread_active": (BlasDeviceFunctionType.IS_THREAD_ACTIVE, ("r",)),
    "is_predicated": (BlasDeviceFunctionType.IS_PREDICATED, ("r",)),
    "is_index_in_bounds": (BlasDeviceFunctionType.IS_INDEX_IN_BOUNDS, ("r",)),
    **{f"place_{x}": (BlasDeviceFunctionType.MAP_CRD2IDX, (f"s{x}",)) for x in "abc"},
}
assert set(_MADE_OF) == set(ROLES)


def generate(recipe: Recipe) -> tuple[dict[str, Any], bytes]:
    """Meta data, ``{"symbol", "symbols": by role, "pipeline": sizes}``, and one LTO-IR with all functions."""
    from nvmath_device.lto.worker import open_descriptor

    mathdx.require("blas_pipelines")
    operators = dict(recipe.operators)
    roles = roles_of(recipe)
    with ExitStack() as stack:
        descriptor = stack.enter_context(open_descriptor(recipe))
        target = _target(descriptor, operators)
        own = _SUGGESTED if operators["TENSORS"].startswith(SUGGESTED) else _PLAIN
        tensors = _tensors(stack, descriptor, {**_IN_GMEM, **own})
        functions = [_function(stack, descriptor, recipe, role, tensors) for role in roles]
        code = stack.enter_context(mathdx.Code())
        code.set_int64s(enums.Option.TARGET_SM, target)
        code.set_str(enums.Option.EXTRA_NVRTC_ARGS, "-gen-opt-lto")
        mathdx.call("cublasdxFinalizeDeviceFunctions", code.handle, len(functions), _handles(functions))
        (ltoir,) = code.ltoirs()
        fragment = _trait(tensors["r"], BlasTensorTrait.STORAGE_BYTES)
    return {
        "symbol": recipe.symbol,
        "symbols": {role: symbol_of(recipe, role) for role in roles},
        "pipeline": {"fragment": fragment},
    }, ltoir


def ask_traits(recipe: Recipe) -> dict[str, Any]:
    """``{"smem_a": (elements, bytes, alignment in bytes), ...}`` of the tensors in shared memory and registers."""
    from nvmath_device.lto.worker import open_descriptor

    mathdx.require("blas_pipelines")
    traits = (BlasTensorTrait.LOGICAL_SIZE, BlasTensorTrait.STORAGE_BYTES, BlasTensorTrait.ALIGNMENT_BYTES)
    with ExitStack() as stack:
        descriptor = stack.enter_context(open_descriptor(recipe))
        _target(descriptor, dict(recipe.operators))
        kinds = {kind.name.lower(): kind for kind in (*_PLAIN.values(), *_SUGGESTED.values())}
        tensors = _tensors(stack, descriptor, kinds)
        return {n: [_trait(handle, trait) for trait in traits] for n, handle in tensors.items()}


def _target(descriptor: Any, operators: dict[str, Any]) -> list[int]:
    target = [operators["SM"]]
    if "ARCH_MODIFIER" in operators:
        target.append(enums.ArchModifier[operators["ARCH_MODIFIER"]])
        descriptor.set_int64s(enums.BlasOperatorType.SM, target)
    return target


def _tensors(stack: ExitStack, descriptor: Any, kinds: dict[str, BlasTensorType]) -> dict[str, int]:
    tensors = {
        name: _made(stack, "cublasdxDestroyTensor", "cublasdxCreateTensor", descriptor.handle, kind)
        for name, kind in kinds.items()
    }
    mathdx.call("cublasdxFinalizeTensors", len(tensors), _handles(list(tensors.values())))
    return tensors


def _function(stack: ExitStack, descriptor: Any, recipe: Recipe, role: str, tensors: dict[str, int]) -> int:
    kind, names = _MADE_OF[role]
    handles = _handles([tensors[name] for name in names])
    function = _made(
        stack, "cublasdxDestroyDeviceFunction", "cublasdxCreateDeviceFunction", descriptor.handle, kind, len(names),
        handles,
    )  # fmt: skip
    name = symbol_of(recipe, role).encode()
    mathdx.call("cublasdxSetDeviceFunctionOptionStr", function, BlasDeviceFunctionOption.SYMBOL_NAME, name)
    if kind == BlasDeviceFunctionType.COPY:
        which = "abc".index(next(name[1] for name in names if name != "r"))
        alignment = dict(recipe.operators)["COPY_ALIGNMENT"][which]
        option = BlasDeviceFunctionOption.COPY_ALIGNMENT
        mathdx.call("cublasdxSetDeviceFunctionOptionInt64", function, option, alignment)
    return function


def _made(stack: ExitStack, destroy: str, create: str, *arguments: Any) -> int:
    handle = ctypes.c_longlong()
    mathdx.call(create, *arguments, ctypes.byref(handle))
    stack.callback(mathdx.call, destroy, handle.value)
    return handle.value


def _trait(handle: int, trait: BlasTensorTrait) -> int:
    value = ctypes.c_longlong()
    mathdx.call("cublasdxGetTensorTraitInt64", handle, trait, ctypes.byref(value))
    return value.value


def _handles(handles: list[int]) -> Any:
    return (ctypes.c_longlong * max(len(handles), 1))(*handles)
