# SPDX-License-Identifier: Apache-2.0
"""Room in global memory for the pipelines of the blocks that are running: the hardware that fetches tiles (TMA) reads
their descriptors from there, and a kernel has no other memory of its own that would do.

A slot is taken by a block and given back by it, in whichever function has its address: a word at its end says whether
it is taken. Blocks look for one from a place on that follows from their multiprocessor, so they hardly ever meet.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import cgutils

from nvmath_device.pipelines import PIPELINE_BYTES

SLOTS, SLOT_BYTES = 512, 1024
assert PIPELINE_BYTES <= SLOT_BYTES - 4
_GLOBAL, _SHARED = 1, 3  # address spaces
_BYTE, _WORD, _LONG = ir.IntType(8), ir.IntType(32), ir.IntType(64)
DESCRIPTOR_BYTES = 128  # what one fence covers


class Slots:
    """The slots of one kind of pipeline in a module, and the way from the thread that takes one to the others."""

    def __init__(self, module: Any, name: str) -> None:
        self._memory = _variable(module, f"{name}_slots", ir.ArrayType(_BYTE, SLOTS * SLOT_BYTES), _GLOBAL, SLOT_BYTES)
        self._shared = _variable(module, f"{name}_slot", _LONG, _SHARED, 8)

    def take(self, builder: Any) -> Any:
        """The address of a free slot, which is this thread's block's from now on."""
        place = cgutils.alloca_once(builder, _WORD)
        builder.store(builder.and_(multiprocessor(builder), _number(SLOTS - 1)), place)
        search, found = builder.append_basic_block("search_slot"), builder.append_basic_block("slot")
        builder.branch(search)
        builder.position_at_end(search)
        index = builder.load(place)
        builder.store(builder.and_(builder.add(index, _number(1)), _number(SLOTS - 1)), place)
        slot = _generic(builder, builder.gep(self._memory, [_number(0), builder.mul(index, _number(SLOT_BYTES))]))
        builder.cbranch(builder.icmp_unsigned("==", _take(builder, slot), _number(0)), found, search)
        builder.position_at_end(found)
        return slot

    def share(self, builder: Any, address: Any) -> None:
        """Leave the address to the other threads, before a barrier."""
        builder.store(builder.ptrtoint(address, _LONG), self._shared)

    def shared(self, builder: Any) -> Any:
        """The address, after the barrier."""
        return builder.inttoptr(builder.load(self._shared, typ=_LONG), _BYTE.as_pointer())


def _take(builder: Any, slot: Any) -> Any:
    """What the word of a slot was; 1 from now on. What the block that gave it back has read is behind it then."""
    acquire = ir.FunctionType(_WORD, [_LONG, _WORD, _WORD])
    operands = [builder.ptrtoint(_flag(builder, slot), _LONG), _number(0), _number(1)]
    text = "atom.acquire.gpu.global.cas.b32 $0, [$1], $2, $3;"
    return builder.asm(acquire, text, "=r,l,r,r,~{memory}", operands, side_effect=True)


def give_back(builder: Any, slot: Any) -> None:
    """By one thread, behind a barrier that follows the last use of the slot by any thread of the block."""
    release = ir.FunctionType(ir.VoidType(), [_LONG, _WORD])
    operands = [builder.ptrtoint(_flag(builder, slot), _LONG), _number(0)]
    builder.asm(release, "st.release.gpu.global.u32 [$0], $1;", "l,r,~{memory}", operands, side_effect=True)


def _flag(builder: Any, slot: Any) -> Any:
    """As an address in global memory: one that might be anywhere would keep the accumulator out of registers."""
    place = builder.gep(slot, [_number(SLOT_BYTES - 4)])
    return builder.addrspacecast(builder.bitcast(place, _WORD.as_pointer()), _WORD.as_pointer(_GLOBAL))


def publish_descriptors(builder: Any, address: Any, nbytes: int) -> None:
    """Have the TMA see the tensor descriptors that this thread has written, in the commands of all threads of the block
    behind the barrier that follows.

    A barrier alone orders them for the threads; the TMA would find what the block before left in the slot.
    """
    release = ir.FunctionType(ir.VoidType(), [])
    builder.asm(release, "fence.proxy.tensormap::generic.release.gpu;", "~{memory}", [], side_effect=True)
    text = f"fence.proxy.tensormap::generic.acquire.gpu [$0], {DESCRIPTOR_BYTES};"
    acquire = ir.InlineAsm(ir.FunctionType(ir.VoidType(), [_LONG]), text, "l,~{memory}", side_effect=True)
    start = builder.ptrtoint(address, _LONG)
    for offset in range(0, nbytes, DESCRIPTOR_BYTES):
        builder.call(acquire, [builder.add(start, ir.Constant(_LONG, offset))])


def multiprocessor(builder: Any) -> Any:
    read = ir.InlineAsm(ir.FunctionType(_WORD, []), "mov.u32 $0, %smid;", "=r", side_effect=True)
    return builder.call(read, [])


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
