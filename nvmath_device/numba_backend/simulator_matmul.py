# SPDX-License-Identifier: Apache-2.0
"""``Matmul`` in simulated kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvmath_device.matmul import RUNTIME_FORM, STATIC_FORM, Matmul
from nvmath_device.numba_backend.simulator_arguments import Array, Call, Place
from nvmath_device.numba_backend.simulator_block import Block, calling_thread
from nvmath_device.numba_backend.simulator_products import Operands, compute, scalar
from nvmath_device.numba_backend.simulator_tensors import TENSOR_FORM, Tensor, execute_tensors


def matmul_execute(mm: Matmul, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """``Matmul.execute``: all threads of the block come, the last one computes, then all go on."""
    thread = calling_thread("Matmul.execute")
    call = Call("Matmul.execute", mm)
    if any(isinstance(x, Tensor) for x in (*args, *kwargs.values())):
        execute_tensors(call, mm, call.bind(args, kwargs, STATIC_FORM, RUNTIME_FORM, TENSOR_FORM))
        return
    given = call.bind(args, kwargs, STATIC_FORM, RUNTIME_FORM)
    thread.block.together(
        thread,
        (call.name, mm),
        same={name: Place(value) if name in "abc" else value for name, value in given.items()},
        prepare=lambda: _operands(call, mm, thread.block, given),
        finish=lambda operands, _: compute(mm.descriptor, operands),
    )


def _operands(call: Call, mm: Matmul, block: Block, given: dict[str, Any]) -> Operands:
    check_block(call, mm, block)
    descriptor = mm.descriptor
    parts = zip("abc", mm.layouts, descriptor.value_types, mm.alignment, strict=True)
    a, b, c = (
        call.matrix(name, given[name], layout, value, alignment=alignment, ld=given.get(f"ld{name}"))
        for name, layout, value, alignment in parts
    )
    call.writable("c", c)
    for name, operand in (("a", a), ("b", b)):
        if _overlap(operand, c):
            raise call.execution_error(f"wants a c that shares no memory with {name}; the two arrays overlap")
    alpha, beta = (scalar(call, name, given[name], descriptor.value_types[2]) for name in ("alpha", "beta"))
    return Operands(a, b, c, alpha, beta)


def check_block(call: Call, mm: Matmul, block: Block) -> None:
    """The launch must have the threads that the code would be generated for."""
    wanted, got = mm.block_dim, block.dim
    if mm.static_block_dim and wanted != got:
        raise call.execution_error(
            f"wants a launch with blockDim {tuple(wanted)}, as static_block_dim promises, got {tuple(got)}"
        )
    if wanted.size != got.size:
        raise call.execution_error(
            f"wants a launch with {wanted.size} threads a block (block_dim {tuple(wanted)}), got {got.size}: "
            f"{tuple(got)}"
        )


def _overlap(left: Array, right: Array) -> bool:
    try:
        return bool(np.shares_memory(left, right, max_work=100_000))  # type: ignore[arg-type]
    except np.exceptions.TooHardError:  # interleaved so intricately that an overlap cannot be told from none
        return False


# -- tiles -------------------------------------------------------------------------------------------------


def matmul_load(mm: Matmul, which: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """``Matmul.load_a`` and its like: one thread copies, without a barrier."""
    call = Call(f"Matmul.load_{which}", mm)
    thread = calling_thread(call.name)
    given = call.bind(args, kwargs, ("view", "smem"))
    if thread.linear:
        return
    view, tile = _view_and_tile(call, mm, which, given)
    call.writable("smem", tile)
    rows, cols = (min(extents) for extents in zip(view.shape, tile.shape, strict=True))
    tile[...] = np.zeros((), tile.dtype)
    tile[:rows, :cols] = view[:rows, :cols]


def matmul_store(mm: Matmul, which: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """``Matmul.store_c``: one thread copies, without a barrier."""
    call = Call(f"Matmul.store_{which}", mm)
    thread = calling_thread(call.name)
    given = call.bind(args, kwargs, ("smem", "view"))
    if thread.linear:
        return
    view, tile = _view_and_tile(call, mm, which, given)
    call.writable("view", view)
    rows, cols = (min(extents) for extents in zip(view.shape, tile.shape, strict=True))
    view[:rows, :cols] = tile[:rows, :cols]


def _view_and_tile(call: Call, mm: Matmul, which: str, given: dict[str, Any]) -> tuple[Array, Array]:
    position = "abc".index(which)
    value = mm.descriptor.value_types[position]
    view = call.values("view", call.array("view", given["view"], ndim=(2,)), value)
    layout = mm.layouts[position]
    tile = call.matrix("smem", given["smem"], layout, value, alignment=value.alignment, at_least=True)
    return view, tile
