# SPDX-License-Identifier: Apache-2.0
"""Intrinsics to look at values by their components: the parts of a number, an array of complex values as reals."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import cgutils, types
from numba.cuda.extending import intrinsic

from nvmath_device.numba_backend import emit


def component_type(dtype: Any) -> Any:
    """The real type a number, complex number, vector type or record is made of; ``None`` for a mixed record."""
    if isinstance(dtype, types.Complex):
        return dtype.underlying_float
    if isinstance(dtype, types.Record):
        members = {dtype.typeof(name) for name in dtype.fields}
        return members.pop() if len(members) == 1 else None
    return getattr(dtype, "base_type", dtype)


def is_number(dtype: Any) -> bool:
    """Whether a value is one floating-point number, real or complex; a vector or record with two parts is complex.

    One with four is a pair of float16 numbers, or anything.
    """
    part = component_type(dtype)
    if not isinstance(part, types.Float) and part != types.float16:
        return False
    count = len(dtype.fields) if isinstance(dtype, types.Record) else getattr(dtype, "num_elements", 2)
    return count == 2


def component_count(context: Any, dtype: Any) -> int:
    size = context.get_abi_sizeof(context.get_data_type(dtype))
    part = context.get_abi_sizeof(context.get_data_type(component_type(dtype)))
    return int(size // part)


@intrinsic
def components(typingctx: Any, array: Any) -> Any:
    """A contiguous 1-D array as the 1-D array of its elements' components; same memory."""
    part = component_type(array.dtype)
    result = types.Array(part, 1, "C")

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        source = emit.array_struct(context, builder, array, args[0])
        view = context.make_array(result)(context, builder)
        part_llvm = context.get_data_type(part)
        itemsize = context.get_abi_sizeof(part_llvm)
        count = ir.Constant(source.nitems.type, component_count(context, array.dtype))
        nitems = builder.mul(source.nitems, count)
        from numba.cuda.np.arrayobj import populate_array

        populate_array(
            view,
            data=builder.bitcast(source.data, part_llvm.as_pointer()),
            shape=[nitems],
            strides=[ir.Constant(nitems.type, itemsize)],
            itemsize=ir.Constant(nitems.type, itemsize),
            meminfo=None,
        )
        return view._getvalue()

    return result(array), codegen


def _part(index: int) -> Any:
    def typed(typingctx: Any, value: Any) -> Any:
        part = component_type(value)

        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            if isinstance(value, types.Complex):
                pair = context.make_complex(builder, value, value=args[0])
                return pair.imag if index else pair.real
            if isinstance(value, types.Record):
                pointer = builder.bitcast(args[0], context.get_data_type(part).as_pointer())
                return builder.load(cgutils.gep_inbounds(builder, pointer, index))
            if component_type(value) != value:  # a vector type: a struct of its components
                return builder.extract_value(args[0], index)
            return context.get_constant(part, 0) if index else args[0]

        return part(value), codegen

    return intrinsic(typed)


real_part = _part(0)
imag_part = _part(1)


@intrinsic
def assign(typingctx: Any, array: Any, row: Any, column: Any, real: Any, imag: Any) -> Any:
    """``array[row, column] = real + 1j * imag`` for a 2-D array of complex numbers, vector types or records."""
    part = component_type(array.dtype)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        from numba.cuda.np.arrayobj import make_array

        struct = make_array(array)(context, builder, args[0])
        indices = [context.cast(builder, args[i], sig.args[i], types.intp) for i in (1, 2)]
        pointer = cgutils.get_item_pointer(context, builder, array, struct, indices)
        numbers = builder.bitcast(pointer, context.get_data_type(part).as_pointer())
        for i in (0, 1):
            number = context.cast(builder, args[3 + i], sig.args[3 + i], part)
            builder.store(number, cgutils.gep_inbounds(builder, numbers, i))
        return context.get_dummy_value()

    return types.void(array, row, column, real, imag), codegen
