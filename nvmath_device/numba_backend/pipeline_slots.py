# SPDX-License-Identifier: Apache-2.0
"""Room in global memory for the pipelines of the blocks that are running: the hardware that fetches tiles (TMA) reads
their descriptors from there, and a kernel has no other memory of its own that would do.

A slot is taken by a block and given back by it. Blocks look for one from a place on that follows from their
multiprocessor, so they hardly ever meet.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import cgutils

from nvmath_device.pipelines import PIPELINE_BYTES

SLOTS = 512
_GLOBAL, _SHARED = 1, 3  # address spaces
_BYTE, _WORD, _LONG = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_DESCRIPTOR_BYTES = 128  # what one fence covers


class Slot:
    """A block's slot: ``pointer`` is its address, the same in all threads."""

    def __init__(self, builder: Any, name: str) -> None:
        self._name = name
        self._flags = _variable(builder.module, f"{name}_taken", ir.ArrayType(_WORD, SLOTS), _GLOBAL, 4)
        self._memory = _variable(
            builder.module, f"{name}_slots", ir.ArrayType(_BYTE, SLOTS * PIPELINE_BYTES), _GLOBAL, 1024
        )
        self._index = cgutils.alloca_once(builder, _WORD)
        self._shared = _variable(builder.module, f"{name}_slot", _LONG, _SHARED, 8)

    def take(self, builder: Any) -> Any:
        """Its address, in the thread that takes it, which must be one of the block."""
        builder.store(builder.and_(_multiprocessor(builder), _number(SLOTS - 1)), self._index)
        search, found = builder.append_basic_block("search_slot"), builder.append_basic_block("slot")
        builder.branch(search)
        builder.position_at_end(search)
        index = builder.load(self._index)
        builder.store(builder.and_(builder.add(index, _number(1)), _number(SLOTS - 1)), self._index)
        flag = self._flag(builder, index)
        old = builder.cmpxchg(flag, _number(0), _number(1), "monotonic", "monotonic")
        builder.cbranch(builder.icmp_unsigned("==", builder.extract_value(old, 0), _number(0)), found, search)
        builder.position_at_end(found)
        builder.store(index, self._index)
        offset = builder.mul(index, _number(PIPELINE_BYTES))
        return _generic(builder, builder.gep(self._memory, [_number(0), offset]))

    def share(self, builder: Any, address: Any) -> None:
        """Leave the address to the other threads, before a barrier."""
        builder.store(builder.ptrtoint(address, _LONG), self._shared)

    def shared(self, builder: Any) -> Any:
        """The address, after the barrier."""
        return builder.inttoptr(builder.load(self._shared, typ=_LONG), _BYTE.as_pointer())

    def give_back(self, builder: Any) -> None:
        """In the thread that has taken it, when no thread of the block uses it any more."""
        _fence(builder)
        builder.atomic_rmw("xchg", self._flag(builder, builder.load(self._index)), _number(0), "monotonic")

    def _flag(self, builder: Any, index: Any) -> Any:
        return builder.gep(self._flags, [_number(0), index])


def acquire_descriptors(builder: Any, address: Any, nbytes: int) -> None:
    """Have the TMA of this thread's later commands see the tensor descriptors that another thread has written."""
    function = ir.FunctionType(ir.VoidType(), [_LONG])
    text = f"fence.proxy.tensormap::generic.acquire.gpu [$0], {_DESCRIPTOR_BYTES};"
    fence = ir.InlineAsm(function, text, "l,~{memory}", side_effect=True)
    start = builder.ptrtoint(address, _LONG)
    for offset in range(0, nbytes, _DESCRIPTOR_BYTES):
        builder.call(fence, [builder.add(start, ir.Constant(_LONG, offset))])


def _multiprocessor(builder: Any) -> Any:
    read = ir.InlineAsm(ir.FunctionType(_WORD, []), "mov.u32 $0, %smid;", "=r", side_effect=True)
    return builder.call(read, [])


def _fence(builder: Any) -> None:
    name = "llvm.nvvm.membar.gl"
    function = builder.module.globals.get(name) or ir.Function(builder.module, ir.FunctionType(ir.VoidType(), []), name)
    builder.call(function, [])


def _variable(module: Any, name: str, typ: Any, space: int, alignment: int) -> Any:
    found = module.globals.get(name)
    if found is None:
        found = ir.GlobalVariable(module, typ, name, addrspace=space)
        found.linkage, found.align = "internal", alignment
        found.initializer = ir.Constant(typ, ir.Undefined if space == _SHARED else None)
    return found


def _generic(builder: Any, pointer: Any) -> Any:
    return builder.addrspacecast(pointer, _BYTE.as_pointer())


def _number(value: int) -> Any:
    return ir.Constant(_WORD, value)
