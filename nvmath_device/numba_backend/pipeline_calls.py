# SPDX-License-Identifier: Apache-2.0
"""Calls of a pipeline's functions: libmathdx's objects by value, and the memory that they work on."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import cgutils

from nvmath_device.descriptors import ROW_MAJOR
from nvmath_device.lto.pipeline_recipes import symbol_of
from nvmath_device.numba_backend import emit
from nvmath_device.numba_backend.generated import RequiredBlock, generated
from nvmath_device.pipelines import PipelinePlan

BYTE, INT, LONG = ir.IntType(8), ir.IntType(32), ir.IntType(64)
POINTER = BYTE.as_pointer()


class ByValue:
    """A struct of libmathdx that is passed by value: its C name and its members."""

    def __init__(self, name: str, members: list[Any]) -> None:
        self.name, self.members = name, members


def pipeline(pointer: Any) -> ByValue:
    return ByValue("pipeline", [pointer])


def tensor(pointer: Any) -> ByValue:
    return ByValue("tensor_0s_0s", [pointer])


def matrix(context: Any, builder: Any, plan: PipelinePlan, which: int, array_type: Any, array: Any) -> ByValue:
    """A global matrix: address, extents, and its leading dimension, in elements."""
    struct = emit.array_struct(context, builder, array_type, array)
    extents = list(cgutils.unpack_tuple(builder, struct.shape, 2))
    ld = builder.sdiv(
        pitch_of(builder, plan, which, struct), ir.Constant(LONG, plan.descriptor.value_types[which].itemsize)
    )
    return ByValue("tensor_1s_2s", [builder.bitcast(struct.data, POINTER), extents, [ld]])


def pitch_of(builder: Any, plan: PipelinePlan, which: int, array: Any) -> Any:
    """Bytes from a row, or a column, to the next."""
    is_row_major = plan.descriptor.arrangement[which] == ROW_MAJOR
    return cgutils.unpack_tuple(builder, array.strides, 2)[0 if is_row_major else 1]


class Functions:
    """Calls of a pipeline's functions, whose code is linked into the kernel."""

    def __init__(self, context: Any, builder: Any, plan: PipelinePlan) -> None:
        self._builder, self._recipe, self.is_streamed = builder, plan.recipe, plan.is_streamed
        block = RequiredBlock(plan.block_dim, exact=True)
        context.active_code_library.add_linking_file(generated(plan.recipe, block, plan.check))

    def call(self, role: str, arguments: list[Any]) -> None:
        call_by_value(self._builder, symbol_of(self._recipe, role), arguments)

    def coordinate(self, state: Any, index: Any) -> tuple[Any, Any]:
        """(row, column) in the tile, as int64, of an element, an int32, of this thread's fragment.

        ``state`` is libmathdx's accumulator, which only a pipeline has.
        """
        builder = self._builder
        place, row, column = (cgutils.alloca_once(builder, INT) for _ in range(3))
        builder.store(index, place)
        self.call("coordinate", [*([tensor(state)] if self.is_streamed else []), place, row, column])
        return builder.zext(builder.load(row), LONG), builder.zext(builder.load(column), LONG)


def call_by_value(builder: Any, name: str, arguments: list[Any]) -> None:
    """Call a function of libmathdx's: pointers, and objects by value."""
    module = builder.module
    emit.yield_debug_version(module)
    values = [_passed(builder, a) for a in arguments]
    callee = module.globals.get(name)
    if callee is None:
        callee = ir.Function(module, ir.FunctionType(ir.VoidType(), [v.type for v in values]), name)
    builder.call(callee, values)


def _passed(builder: Any, argument: Any) -> Any:
    if not isinstance(argument, ByValue):
        return builder.bitcast(argument, POINTER)
    members = [_array(builder, m) if isinstance(m, list) else builder.bitcast(m, POINTER) for m in argument.members]
    struct = builder.module.context.get_identified_type(f"struct.libmathdx_{argument.name}")
    if struct.is_opaque:
        struct.set_body(*(m.type for m in members))
    value = ir.Constant(struct, ir.Undefined)
    for place, member in enumerate(members):
        value = builder.insert_value(value, member, place)
    return value


def _array(builder: Any, numbers: list[Any]) -> Any:
    value = ir.Constant(ir.ArrayType(LONG, len(numbers)), ir.Undefined)
    for place, number in enumerate(numbers):
        value = builder.insert_value(value, number, place)
    return value


def room(builder: Any, element: Any, count: int) -> Any:
    """Memory of this thread, as bytes. Without the zeros that Numba puts in, which would keep it out of registers."""
    with builder.goto_entry_block():
        slot = builder.alloca(ir.ArrayType(element, count))
    slot.align = 16
    return builder.bitcast(slot, POINTER)


def extents_of(context: Any, builder: Any, array_type: Any, array: Any) -> Any:
    return cgutils.unpack_tuple(builder, emit.array_struct(context, builder, array_type, array).shape, 2)


def kept(builder: Any, value: Any) -> Any:
    slot = cgutils.alloca_once(builder, value.type)
    builder.store(value, slot)
    return slot


def which_tile(builder: Any, which: Any, axis: int) -> Any:
    """Where i, or j, is kept."""
    return builder.gep(which, [ir.Constant(INT, axis)], inbounds=True)


def tile_place(builder: Any, plan: PipelinePlan, which: Any) -> Any:
    """The first row and column, as int64, of the tile whose i and j, as int32, are at ``which``.

    Were these kept as int64, the compiler would not see in a loop that starts the next tile that they are not negative:
    each place given to a function would have the code of indices from the end, for which there are no registers.
    """
    return [
        builder.mul(
            builder.zext(builder.load(which_tile(builder, which, axis)), LONG),
            ir.Constant(LONG, plan.descriptor.size[axis]),
            flags=("nsw", "nuw"),
        )
        for axis in (0, 1)
    ]
