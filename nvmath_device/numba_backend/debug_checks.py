# SPDX-License-Identifier: Apache-2.0
"""Run-time checks of kernels compiled with ``debug=True``: what typing cannot see, shape, strides and block.

A failed check ends the thread with a :class:`KernelExecutionError`, which Numba raises on the host after the
launch, with the thread's index. Without ``debug=True`` nothing of this is in the kernel.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

from llvmlite import ir
from numba.cuda import cgutils, nvvmutils

from nvmath_device.descriptors import COL_MAJOR, Dim3, MatrixLayout
from nvmath_device.dtypes import ValueType
from nvmath_device.errors import KernelExecutionError
from nvmath_device.numba_backend import emit

_WORD = ir.IntType(64)


def _fail_unless(context: Any, builder: Any, good: Any, message: str) -> None:
    with builder.if_then(builder.not_(good), likely=False):
        context.fndesc.call_conv.return_user_exc(builder, KernelExecutionError, (message,))


def _equals(builder: Any, value: Any, number: int) -> Any:
    return builder.icmp_signed("==", value, ir.Constant(value.type, number))


def check_block(context: Any, builder: Any, name: str, wanted: Dim3, *, shape: bool) -> None:
    """The launch has ``wanted.size`` threads; with ``shape`` exactly these extents."""
    extents = [nvvmutils.call_sreg(builder, f"ntid.{axis}") for axis in "xyz"]
    if shape:
        good = reduce(builder.and_, [_equals(builder, e, w) for e, w in zip(extents, wanted, strict=True)])
        said = f"a block of {tuple(wanted)} threads"
    else:
        good = _equals(builder, reduce(builder.mul, extents), wanted.size)
        said = f"a block of {wanted.size} threads"
    _fail_unless(context, builder, good, f"{name} needs {said}, the descriptor's block_dim; the launch has another")


def check_matrix(
    context: Any, builder: Any, name: str, argument: str, array_type: Any, array: Any, layout: MatrixLayout,
    value: ValueType, *, own_layout: bool,
) -> None:  # fmt: skip
    """A 1-D operand is long enough; a 2-D one has the descriptor's shape and strides of its order.

    ``own_layout``: the leading dimension comes with the call, so a 1-D length says nothing here.
    """
    struct = emit.array_struct(context, builder, array_type, array)
    if array_type.ndim == 1:
        if own_layout:
            return
        check_length(context, builder, name, argument, array_type, array, layout.cosize * value.itemsize)
        return
    rows, cols = cgutils.unpack_tuple(builder, struct.shape, 2)
    right = builder.and_(_equals(builder, rows, layout.rows), _equals(builder, cols, layout.cols))
    _fail_unless(
        context, builder, right, f"{name}: {argument} is not {layout.rows} x {layout.cols}, as the descriptor says"
    )
    line, inner, outer = _axes(layout)
    extents, strides = (layout.rows, layout.cols), cgutils.unpack_tuple(builder, struct.strides, 2)
    if extents[inner] > 1:
        _fail_unless(
            context, builder, _equals(builder, strides[inner], value.itemsize),
            f"{name}: neighbours within a {line} of {argument} are not next to each other, as {layout.order} needs",
        )  # fmt: skip
    if extents[outer] > 1:
        step = strides[outer]
        apart = builder.icmp_signed(">=", step, ir.Constant(step.type, extents[inner] * value.itemsize))
        whole = _equals(builder, builder.srem(step, ir.Constant(step.type, value.itemsize)), 0)
        _fail_unless(
            context, builder, builder.and_(apart, whole),
            f"{name}: the {line}s of {argument} overlap, run backwards or are not whole elements apart",
        )  # fmt: skip


def check_leading_dimension(
    context: Any, builder: Any, name: str, argument: str, array_type: Any, array: Any, layout: MatrixLayout,
    value: ValueType, ld: Any,
) -> None:  # fmt: skip
    """``ld``, elements as an i32, suits the matrix: wide enough, a 2-D operand's own, inside of a 1-D operand."""
    struct = emit.array_struct(context, builder, array_type, array)
    line, inner, outer = _axes(layout)
    extents = layout.rows, layout.cols
    ld = builder.zext(ld, _WORD)
    wide = builder.icmp_unsigned(">=", ld, ir.Constant(_WORD, extents[inner]))
    _fail_unless(context, builder, wide, f"{name}: ld{argument} is less than the {extents[inner]} elements of a {line}")
    size = ir.Constant(_WORD, value.itemsize)
    if array_type.ndim == 2:
        if extents[outer] > 1:
            step = cgutils.unpack_tuple(builder, struct.strides, 2)[outer]
            own = builder.icmp_signed("==", step, builder.mul(ld, size))
            _fail_unless(context, builder, own, f"{name}: ld{argument} is not that of the two-dimensional {argument}")
        return
    last = builder.mul(ld, ir.Constant(_WORD, extents[outer] - 1))
    need = builder.mul(builder.add(last, ir.Constant(_WORD, extents[inner])), size)
    enough = builder.icmp_signed(">=", _bytes_of(context, builder, array_type, struct), need)
    _fail_unless(context, builder, enough, f"{name}: {argument} is too short for its ld{argument}")


def _axes(layout: MatrixLayout) -> tuple[str, int, int]:
    """What a contiguous line is called, the axis along it, the axis from one to the next."""
    return ("column", 0, 1) if layout.order == COL_MAJOR else ("row", 1, 0)


def _bytes_of(context: Any, builder: Any, array_type: Any, struct: Any) -> Any:
    itemsize = ir.Constant(_WORD, context.get_abi_sizeof(context.get_data_type(array_type.dtype)))
    return builder.mul(struct.nitems, itemsize)


def check_length(context: Any, builder: Any, name: str, argument: str, array_type: Any, array: Any, need: int) -> None:
    """A 1-D array holds at least ``need`` bytes."""
    struct = emit.array_struct(context, builder, array_type, array)
    enough = builder.icmp_signed(">=", _bytes_of(context, builder, array_type, struct), ir.Constant(_WORD, need))
    _fail_unless(context, builder, enough, f"{name}: {argument} is shorter than the {need} bytes it needs")


def check_aligned(context: Any, builder: Any, name: str, argument: str, pointer: Any, alignment: int) -> None:
    """The pointer is a multiple of ``alignment`` bytes, a power of two."""
    address = builder.ptrtoint(pointer, _WORD)
    good = _equals(builder, builder.and_(address, ir.Constant(_WORD, alignment - 1)), 0)
    _fail_unless(
        context,
        builder,
        good,
        f"{name}: {argument} is not at a multiple of {alignment} bytes, as the alignment promises",
    )


def check_dynamic_shared(context: Any, builder: Any, name: str, need: int) -> None:
    """The launch has at least ``need`` bytes of dynamic shared memory."""
    read = ir.InlineAsm(ir.FunctionType(ir.IntType(32), []), "mov.u32 $0, %dynamic_smem_size;", "=r", side_effect=True)
    size = builder.call(read, [])
    enough = builder.icmp_unsigned(">=", size, ir.Constant(size.type, need))
    _fail_unless(
        context, builder, enough, f"{name} ends {need} bytes into the dynamic shared memory; the launch has less of it"
    )


def check_shared(context: Any, builder: Any, name: str, argument: str, pointer: Any) -> None:
    """The pointer leads into shared memory."""
    byte_pointer = ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.IntType(1), [byte_pointer])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.nvvm.isspacep.shared")
    good = builder.call(function, [builder.bitcast(pointer, byte_pointer)])
    _fail_unless(context, builder, good, f"{name}: {argument} is not in shared memory")


def check_inner_extents(context: Any, builder: Any, name: str, columns: Any, rows: Any) -> None:
    """A has as many columns as B has rows."""
    good = builder.icmp_signed("==", columns, rows)
    _fail_unless(context, builder, good, f"{name}: a and b have different extents along K")


def check_tile(
    context: Any, builder: Any, name: str, argument: str, array_type: Any, array: Any, layout: MatrixLayout
) -> None:
    """A 2-D array holds all of a matrix, whose lines are contiguous."""
    struct = emit.array_struct(context, builder, array_type, array)
    shape, strides = (cgutils.unpack_tuple(builder, t, 2) for t in (struct.shape, struct.strides))
    extents = (layout.rows, layout.cols)
    for have, need in zip(shape, extents, strict=True):
        inside = builder.icmp_signed(">=", have, ir.Constant(have.type, need))
        _fail_unless(
            context, builder, inside,
            f"{name}: {argument} has less than {layout.rows} x {layout.cols} elements; copies know no edges",
        )  # fmt: skip
    line, inner, _ = _axes(layout)
    itemsize = context.get_abi_sizeof(context.get_data_type(array_type.dtype))
    _fail_unless(
        context, builder, _equals(builder, strides[inner], itemsize),
        f"{name}: neighbours within a {line} of {argument} are not next to each other, as {layout.order} needs",
    )  # fmt: skip


def check_same_address(
    context: Any, builder: Any, name: str, argument: str, array_type: Any, array: Any, pointer: Any, alignment: int
) -> None:
    """An array begins at ``pointer``, where the dynamic shared memory begins for what is aligned so."""
    data = emit.array_struct(context, builder, array_type, array).data
    good = builder.icmp_unsigned("==", builder.ptrtoint(data, _WORD), builder.ptrtoint(pointer, _WORD))
    _fail_unless(
        context, builder, good,
        f"{name}: {argument} is not the dynamic shared memory from its beginning, at a multiple of {alignment} bytes",
    )  # fmt: skip
