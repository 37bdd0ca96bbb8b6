# SPDX-License-Identifier: Apache-2.0
"""A block's barrier, and which of its threads calls."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import nvvmutils

_INT = ir.IntType(32)
_MOST_THREADS = 1024  # of a block


def barrier(builder: Any) -> None:
    name = "llvm.nvvm.barrier0"
    function = builder.module.globals.get(name) or ir.Function(builder.module, ir.FunctionType(ir.VoidType(), []), name)
    builder.call(function, [])


def keep_order(builder: Any) -> None:
    """Have no load move across, which would want more registers than there are: a barrier of this thread's warp."""
    name = "llvm.nvvm.bar.warp.sync"
    kind = ir.FunctionType(ir.VoidType(), [_INT])
    function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
    builder.call(function, [ir.Constant(_INT, -1)])


def linear_thread(builder: Any) -> Any:
    x, y, z = (nvvmutils.call_sreg(builder, f"tid.{axis}") for axis in "xyz")
    nx, ny = (nvvmutils.call_sreg(builder, f"ntid.{axis}") for axis in "xy")
    return builder.add(x, builder.mul(nx, builder.add(y, builder.mul(ny, z))))


def thread_here(builder: Any) -> Any:
    """The same number, of which the compiler knows just how large it can be.

    What follows from it is worked out where it is needed then: before a loop, or long before the code that needs it, it
    would not find registers.
    """
    kind = ir.FunctionType(_INT, [_INT])
    thread = builder.asm(kind, "mov.b32 $0, $1;", "=r,r", [linear_thread(builder)], side_effect=True)
    return builder.and_(thread, ir.Constant(_INT, _MOST_THREADS - 1))


def is_first_thread(builder: Any) -> Any:
    return builder.icmp_unsigned("==", linear_thread(builder), ir.Constant(_INT, 0))
