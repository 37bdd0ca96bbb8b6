# SPDX-License-Identifier: Apache-2.0
"""A tile of another matrix of C's shape, in the shared memory that the stages of a product have left.

Read element by element into registers it would want registers beside those of the accumulator, so that few reads would
be under way at a time. Here all of them are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba.cuda import cgutils, types

from nvmath_device.descriptors import COL_MAJOR, ROW_MAJOR, MatrixLayout
from nvmath_device.dtypes import ValueType, element_type
from nvmath_device.numba_backend import emit
from nvmath_device.numba_backend.block_threads import barrier
from nvmath_device.numba_backend.copies import FIRST_WITH_ASYNC_COPY, begin_load
from nvmath_device.numba_backend.memory import near_address
from nvmath_device.numba_backend.pipeline_calls import INT, LONG, POINTER
from nvmath_device.numba_backend.ptx import speak
from nvmath_device.numba_backend.shared_layout import dynamic_buffer
from nvmath_device.numba_backend.vector_fetches import VectorFetch
from nvmath_device.own_products import has_vectors
from nvmath_device.pipelines import BUFFER_ALIGNMENT, PipelinePlan

# Of a line. The threads of a warp read pairs of neighbours in eight lines, which lie in different banks then, whether
# elements have 2, 4 or 8 bytes.
_PADDING = 8
_ITEMSIZES = (2, 4, 8)
# What comes first is read while the rest is on its way.
_PARTS = 4
_SHARED = 3  # address space
_END_OF_PART = "cp.async.commit_group;"


def has_room(plan: PipelinePlan, array_type: Any) -> bool:
    """Whether the stages are as large as a tile of this matrix, copied while its threads do something else."""
    if not isinstance(array_type.dtype, (types.Integer, types.Float)) and array_type.dtype != types.bfloat16:
        return False
    itemsize = _value(array_type).itemsize
    is_asynchronous = plan.execution.sm >= FIRST_WITH_ASYNC_COPY  # type: ignore[operator]
    nbytes = _layout(plan, array_type).cosize * itemsize
    return is_asynchronous and itemsize in _ITEMSIZES and nbytes <= plan.buffer_bytes


class OperandTile:
    """The tile that begins at ``first``, (row, column), of a matrix that :func:`has_room`; zeros outside of it.

    All threads of the block make it, read their elements in order, and leave it. Nothing else uses the stages' memory
    in between. It comes in parts, ranges of as many columns; in one, where the elements of a thread do not come in the
    order of columns.
    """

    def __init__(
        self, context: Any, builder: Any, plan: PipelinePlan, array_type: Any, array: Any, first: tuple[Any, Any]
    ) -> None:
        self._builder, self._plan = builder, plan
        self._layout, value = _layout(plan, array_type), _value(array_type)
        buffer = dynamic_buffer(builder, BUFFER_ALIGNMENT)
        near = builder.trunc(near_address(builder, buffer), INT)
        emit.raise_alignment(builder)
        rest, zero = _beyond(context, builder, array_type, array, first), ir.Constant(LONG, 0)
        part, self._parts = _part(plan, self._layout, value)

        def copy_all() -> None:
            target = plan.execution.sm
            assert target is not None
            begin_load(context, builder, self._layout, value, array_type, rest, (zero, zero), buffer, target)
            for _ in range(self._parts):
                speak(builder, _END_OF_PART)

        threads = plan.block_dim.size
        if has_vectors(part, value.itemsize, threads):
            fetch = VectorFetch(context, builder, part, value, threads, array_type, rest, 1, zero, 0)
            with builder.if_else(fetch.is_possible(), likely=True) as (then, otherwise):
                with then:
                    for n in range(self._parts):
                        fetch.begin(builder.add(near, ir.Constant(INT, n * part.cols * value.itemsize)))
                        speak(builder, _END_OF_PART)
                with otherwise:
                    copy_all()
        else:
            copy_all()
        element = context.get_data_type(array_type.dtype)
        self._start = builder.inttoptr(near, ir.PointerType(element, _SHARED))
        self._model = context.data_model_manager[array_type.dtype]

    def _wait(self, part: int) -> None:
        """Until a part, and those before it, are there."""
        speak(self._builder, f"cp.async.wait_group {self._parts - 1 - part};")
        barrier(self._builder)

    def check_order(self, columns: Sequence[Any]) -> None:
        """Stop the kernel unless each element is of the part that it is read in, or of one before.

        ``columns``: in the tile, of this thread's elements. The linker knows them all, so that nothing is left of it.
        """
        if self._parts == 1:
            return
        builder, in_order = self._builder, ir.Constant(ir.IntType(1), 1)
        width = self._layout.cols // self._parts
        for e, column in enumerate(columns):
            most = ir.Constant(column.type, (e * self._parts // len(columns) + 1) * width)
            in_order = builder.and_(in_order, builder.icmp_signed("<", column, most))
        with builder.if_then(builder.not_(in_order), likely=False):
            trap = cgutils.get_or_insert_function(builder.module, ir.FunctionType(ir.VoidType(), []), "llvm.trap")
            builder.call(trap, [])

    def element(self, e: int, at: tuple[Any, Any]) -> Any:
        """The one beside this thread's element ``e`` of the accumulator, which is at a row and column of the tile."""
        builder, size = self._builder, self._plan.fragment_size
        if e * self._parts % size == 0:
            self._wait(e * self._parts // size)
        row, column = (builder.trunc(x, INT) for x in at)
        line, place = (row, column) if self._layout.order == ROW_MAJOR else (column, row)
        index = builder.add(builder.mul(line, ir.Constant(INT, self._layout.ld)), place)
        return self._model.from_data(builder, builder.load(builder.gep(self._start, [index], inbounds=True)))

    def leave(self) -> None:
        """The memory is free again, for TMA, too."""
        if self._plan.is_streamed:
            speak(self._builder, "fence.proxy.async.shared::cta;")
        barrier(self._builder)


def _part(plan: PipelinePlan, layout: MatrixLayout, value: ValueType) -> tuple[MatrixLayout, int]:
    """A part of the tile, and how many there are: wgmma's sums come in the order of columns."""
    part = MatrixLayout(layout.rows, layout.cols // _PARTS, layout.order, layout.ld)
    is_even = layout.cols % _PARTS == 0 and plan.fragment_size % _PARTS == 0
    in_order = layout.order == ROW_MAJOR and plan.keeps_sums
    if in_order and is_even and has_vectors(part, value.itemsize, plan.block_dim.size):
        return part, _PARTS
    return layout, 1


def _layout(plan: PipelinePlan, array_type: Any) -> MatrixLayout:
    m, n, _ = plan.descriptor.size
    if array_type.layout == "F":
        return MatrixLayout(m, n, COL_MAJOR, m + _PADDING)
    return MatrixLayout(m, n, ROW_MAJOR, n + _PADDING)


def _value(array_type: Any) -> ValueType:
    return ValueType(element_type(array_type.dtype))


def _beyond(context: Any, builder: Any, array_type: Any, array: Any, first: tuple[Any, Any]) -> Any:
    """The part of a matrix from a row and column on; it has less than no lines where these lie outside."""
    made = emit.array_struct(context, builder, array_type, array)
    shape, strides = (cgutils.unpack_tuple(builder, t, 2) for t in (made.shape, made.strides))
    offset = builder.add(*(builder.mul(x, stride) for x, stride in zip(first, strides, strict=True)))
    pointer = builder.gep(builder.bitcast(made.data, POINTER), [offset])
    made.data = builder.bitcast(pointer, made.data.type)
    made.shape = cgutils.pack_array(builder, [builder.sub(x, at) for x, at in zip(shape, first, strict=True)])
    return made._getvalue()
