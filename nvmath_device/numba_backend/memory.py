# SPDX-License-Identifier: Apache-2.0
"""Intrinsics on addresses: what a block-wide copy does besides arithmetic.

Two kinds of addresses, both int64 in the code that calls these: a *far* one is a generic address as arrays
carry it, a *near* one is a byte offset in the shared-memory window. :class:`MemoryOps` gathers the intrinsics
for one target and word size, so that copy loops are written against an interface and can be run in plain
Python with another implementation of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from llvmlite import ir
from numba.cuda import cgutils, nvvmutils, types
from numba.cuda.extending import intrinsic

from nvmath_device.numba_backend.procedures import Procedure

_INT32, _INT64 = ir.IntType(32), ir.IntType(64)
_BYTE_POINTER = ir.IntType(8).as_pointer()
_GLOBAL, _SHARED = 1, 3  # address spaces of NVVM
_VECTOR = ir.VectorType(_INT32, 4)
VECTOR_BYTES = 16


@dataclass(frozen=True)
class MemoryOps:
    """What copy loops are made of. ``word`` is 1, 2, 4 or 8 bytes; a word's value is an unsigned integer.

    Attributes:
        thread_index: () -> index of this thread in its block, x fastest.
        thread_count: () -> threads of the block, all three dimensions.
        advance: (i, step) -> i + step, for 0 <= i, step < 2**30.
        quotient: (i, n) -> i // n for 0 <= i, n < 2**31, n > 0.
        is_global: (far) -> whether the address is in global memory.
        read_far, write_far, read_near, write_near: one word.
        vector_in: (near, far, inside) copies 16 bytes from global to shared memory, or zeros if not inside;
            not complete before ``wait``.
        vector_out: (far, near) copies 16 bytes from shared to global memory.
        word_in: as ``vector_in`` for one word of 4 or 8 bytes (sm_80 and later).
        wait: () waits for this thread's ``vector_in`` and ``word_in``.
        subroutine: makes a function without a result callable from another one.
        reader: the same for a function (far, valid, valid, stride, stride, index) -> word.
    """

    thread_index: Any
    thread_count: Any
    advance: Any
    quotient: Any
    is_global: Any
    read_far: Any
    write_far: Any
    read_near: Any
    write_near: Any
    vector_in: Any
    vector_out: Any
    word_in: Any
    wait: Any
    subroutine: Callable[[Callable[..., None]], Any]
    reader: Callable[[Callable[..., int]], Any]


@lru_cache(maxsize=64)
def memory_ops(word: int, *, asynchronous: bool) -> MemoryOps:
    """The intrinsics for words of so many bytes; ``asynchronous`` uses ``cp.async``, which sm_80 brought.

    Cached, because Numba reuses a compiled subroutine when what it closes over is the same objects.
    """
    word_type = types.Integer.from_bitwidth(8 * word, signed=False)
    return MemoryOps(
        thread_index=_thread_index,
        thread_count=_thread_count,
        advance=_advance,
        quotient=_quotient,
        is_global=_is_global,
        read_far=_reader(word_type, _far_pointer),
        write_far=_writer(word_type, _far_pointer),
        read_near=_reader(word_type, _near_pointer),
        write_near=_writer(word_type, _near_pointer),
        vector_in=_async_copy(VECTOR_BYTES) if asynchronous else _vector_in,
        vector_out=_vector_out,
        word_in=_async_copy(word),
        wait=_async_wait if asynchronous else _no_wait,
        subroutine=Procedure,
        reader=lambda function: _word_reader(function, word_type),
    )


def near_address(builder: Any, pointer: Any) -> Any:
    """The near address (i64) of a generic pointer into shared memory; meaningless for any other pointer."""
    generic = builder.bitcast(pointer, _BYTE_POINTER)
    shared = builder.addrspacecast(generic, ir.PointerType(ir.IntType(8), _SHARED))
    return builder.zext(builder.ptrtoint(shared, _INT32), _INT64)


def far_address(builder: Any, pointer: Any) -> Any:
    """The far address (i64) of a generic pointer."""
    return builder.ptrtoint(pointer, _INT64)


def is_global(builder: Any, far: Any) -> Any:
    """Whether a far address is one of global memory, an i1."""
    prototype = ir.FunctionType(ir.IntType(1), [_BYTE_POINTER])
    function = cgutils.get_or_insert_function(builder.module, prototype, "llvm.nvvm.isspacep.global")
    return builder.call(function, [_far_pointer(builder, far, ir.IntType(8))])


# -- addresses back to pointers ------------------------------------------------------------------------------


def _far_pointer(builder: Any, address: Any, pointee: Any) -> Any:
    return builder.inttoptr(address, pointee.as_pointer())


def _global_pointer(builder: Any, address: Any, pointee: Any) -> Any:
    return builder.addrspacecast(_far_pointer(builder, address, pointee), ir.PointerType(pointee, _GLOBAL))


def _near_pointer(builder: Any, address: Any, pointee: Any) -> Any:
    return builder.inttoptr(builder.trunc(address, _INT32), ir.PointerType(pointee, _SHARED))


# -- the block -----------------------------------------------------------------------------------------------


def _linear(builder: Any, dims: tuple[Any, Any, Any], x: Any, y: Any, z: Any) -> Any:
    return builder.zext(builder.add(x, builder.mul(dims[0], builder.add(y, builder.mul(dims[1], z)))), _INT64)


@intrinsic
def _thread_index(typingctx: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        tid = [nvvmutils.call_sreg(builder, f"tid.{axis}") for axis in "xyz"]
        ntid = [nvvmutils.call_sreg(builder, f"ntid.{axis}") for axis in "xy"]
        return _linear(builder, (*ntid, None), *tid)

    return types.int64(), codegen


@intrinsic
def _thread_count(typingctx: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        x, y, z = (nvvmutils.call_sreg(builder, f"ntid.{axis}") for axis in "xyz")
        return builder.zext(builder.mul(builder.mul(x, y), z), _INT64)

    return types.int64(), codegen


@intrinsic
def _advance(typingctx: Any, i: Any, step: Any) -> Any:
    """An addition the compiler cannot look into.

    It would unroll the loop around it, and divide by the number of threads to learn how often to go round.
    """

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        prototype = ir.FunctionType(_INT32, [_INT32, _INT32])
        operands = [builder.trunc(a, _INT32) for a in args]
        total = builder.asm(prototype, "add.s32 $0, $1, $2;", "=r,r,r", operands, side_effect=False)
        return builder.zext(total, _INT64)

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def _quotient(typingctx: Any, i: Any, n: Any) -> Any:
    """In 32 bits: Numba would divide 64-bit integers with a sign, which takes many times the instructions."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        i, n = (builder.trunc(a, _INT32) for a in args)
        return builder.zext(builder.udiv(i, n), _INT64)

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def _is_global(typingctx: Any, far: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return is_global(builder, args[0])

    return types.boolean(types.int64), codegen


# -- words and vectors ---------------------------------------------------------------------------------------


def _reader(word_type: Any, pointer: Callable[..., Any]) -> Any:
    def read(typingctx: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return builder.load(pointer(builder, args[0], context.get_data_type(word_type)))

        return word_type(types.int64), codegen

    return intrinsic(read)


def _writer(word_type: Any, pointer: Callable[..., Any]) -> Any:
    def write(typingctx: Any, address: Any, word: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            builder.store(args[1], pointer(builder, args[0], context.get_data_type(word_type)))
            return context.get_dummy_value()

        return types.void(types.int64, word_type), codegen

    return intrinsic(write)


def _async_copy(size: int) -> Any:
    level = "cg" if size == VECTOR_BYTES else "ca"  # cg, past the L1 cache, exists for 16 bytes only
    text = f"cp.async.{level}.shared.global [$0], [$1], {size}, $2;"

    def copy(typingctx: Any, near: Any, far: Any, inside: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            near, far, inside = args
            source = builder.ptrtoint(_global_pointer(builder, far, ir.IntType(8)), _INT64)
            read_bytes = builder.select(inside, ir.Constant(_INT32, size), ir.Constant(_INT32, 0))
            prototype = ir.FunctionType(ir.VoidType(), [_INT32, _INT64, _INT32])
            operands = [builder.trunc(near, _INT32), source, read_bytes]
            builder.asm(prototype, text, "r,l,r,~{memory}", operands, side_effect=True)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.boolean), codegen

    return intrinsic(copy)


@intrinsic
def _async_wait(typingctx: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        prototype = ir.FunctionType(ir.VoidType(), [])
        builder.asm(prototype, "cp.async.wait_all;", "~{memory}", [], side_effect=True)
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def _no_wait(typingctx: Any) -> Any:
    return types.void(), lambda context, builder, sig, args: context.get_dummy_value()


@intrinsic
def _vector_in(typingctx: Any, near: Any, far: Any, inside: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        near, far, inside = args
        slot = cgutils.alloca_once_value(builder, ir.Constant(_VECTOR, None))
        builder.store(ir.Constant(_VECTOR, None), slot)
        with builder.if_then(inside):
            builder.store(builder.load(_global_pointer(builder, far, _VECTOR), align=VECTOR_BYTES), slot)
        builder.store(builder.load(slot), _near_pointer(builder, near, _VECTOR), align=VECTOR_BYTES)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.boolean), codegen


@intrinsic
def _vector_out(typingctx: Any, far: Any, near: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        far, near = args
        vector = builder.load(_near_pointer(builder, near, _VECTOR), align=VECTOR_BYTES)
        builder.store(vector, _global_pointer(builder, far, _VECTOR), align=VECTOR_BYTES)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


def _word_reader(function: Callable[..., int], word_type: Any) -> Any:
    """A procedure with a result: the one shape of it that the loops need."""

    def read(typingctx: Any, far: Any, valid0: Any, valid1: Any, stride0: Any, stride1: Any, i: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return context.compile_internal(builder, function, sig, args)

        return word_type(*[types.int64] * 6), codegen

    return intrinsic(read)
