# SPDX-License-Identifier: Apache-2.0
"""A tile of a matrix of C's shape that follows the last ones of A and B through the stages of a loop of our own.

TMA fetches it, swizzled, where the matrix allows that; else the threads copy it to the same places after the loop.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import cgutils, types

from nvmath_device.numba_backend import emit
from nvmath_device.numba_backend.block_threads import barrier, is_first_thread, keep_order, linear_thread
from nvmath_device.numba_backend.own_elements import wgmma_place
from nvmath_device.numba_backend.pipeline_calls import INT, LONG, POINTER
from nvmath_device.numba_backend.ptx import speak
from nvmath_device.numba_backend.stream_text import end_text, guest_text
from nvmath_device.numba_backend.tensor_maps import TensorMap
from nvmath_device.own_streams import LINE_BYTES, WARP_ROWS, Guest, guest_of
from nvmath_device.pipelines import PipelinePlan

_SHARED = 3  # address space
_LINE_BITS = LINE_BYTES.bit_length() - 1
_TENSOR_ELEMENT = {2: 1, 4: 2, 8: 4}  # of unsigned integers: the bits are fetched as they are
_TMA_BYTES = 16  # what addresses and pitches of a matrix that TMA fetches are multiples of
_SWIZZLED_LINES, _SWIZZLED_BYTES = 8, 16  # of each eight lines, units of so many bytes are exchanged


def takes_guest(plan: PipelinePlan, array_type: Any) -> bool:
    """Whether a tile of a matrix of this type fits into the stages of a plan with a loop of our own."""
    if not isinstance(array_type.dtype, (types.Integer, types.Float)) and array_type.dtype != types.bfloat16:
        return False
    return array_type.layout != "F" and _guest_of(plan, array_type) is not None


def _guest_of(plan: PipelinePlan, array_type: Any) -> Guest | None:
    assert plan.stream is not None
    return guest_of(plan.stream, plan.depth, array_type.dtype.bitwidth // 8)


class GuestMatrix:
    """A whole matrix, of a type that :func:`takes_guest`.

    Attributes:
        guest: how its tile goes through the stages.
        ring: what the texts of the loop before it call their operands; there when the loop has been said. Worked out
            once more, they would cost registers.
    """

    def __init__(self, context: Any, builder: Any, plan: PipelinePlan, array_type: Any, array: Any) -> None:
        guest = _guest_of(plan, array_type)
        assert guest is not None
        self._context, self._builder, self._plan, self._type, self._array = context, builder, plan, array_type, array
        self.guest, self.ring = guest, dict[str, Any]()
        view = emit.array_struct(context, builder, array_type, array)
        self._data = builder.bitcast(view.data, POINTER)
        self._shape, self._strides = (cgutils.unpack_tuple(builder, x, 2) for x in (view.shape, view.strides))
        pitch, step = self._strides
        odd = builder.and_(builder.or_(builder.ptrtoint(self._data, LONG), pitch), ir.Constant(LONG, _TMA_BYTES - 1))
        self._is_fetched = builder.and_(
            builder.icmp_signed("==", odd, ir.Constant(LONG, 0)),
            builder.and_(
                builder.icmp_signed("==", step, ir.Constant(LONG, guest.itemsize)),
                builder.icmp_signed(">", pitch, ir.Constant(LONG, 0)),
            ),
        )  # fmt: skip

    @property
    def map(self) -> TensorMap:
        """The descriptor for TMA."""
        assert self._plan.stream is not None
        box = self.guest.box_columns, self._plan.stream.rows
        element = _TENSOR_ELEMENT[self.guest.itemsize]
        return TensorMap(self._context, self._type, self._array, axis=1, box=box, element=element)

    @property
    def stages(self) -> Any:
        """How many stages TMA fills with its tile."""
        filled = ir.Constant(INT, self.guest.turns)
        return self._builder.select(self._is_fetched, filled, ir.Constant(INT, 0))

    def tile(self, firsts: Any) -> GuestTile:
        """The tile, which begins at this row and column, when the loop has ended."""
        tile = GuestTile(self._context, self._builder, self._plan, self.guest, self._type, self.ring)
        with self._builder.if_then(self._builder.not_(self._is_fetched), likely=False):
            tile.copy(self._data, self._shape, self._strides, firsts)
        return tile


class GuestTile:
    """As :class:`operand_tiles.OperandTile`. ``ring``: what the loop's texts call ``near``, ``turns``, ``guests``."""

    def __init__(
        self, context: Any, builder: Any, plan: PipelinePlan, guest: Guest, array_type: Any, ring: dict[str, Any]
    ) -> None:
        stream = plan.stream
        assert stream is not None
        self._builder, self._plan, self._stream, self._guest = builder, plan, stream, guest
        self._ring, self._near, self._turns = ring, ring["near"], ring["turns"]
        self._model = context.data_model_manager[array_type.dtype]
        self._element = context.get_data_type(array_type.dtype)
        self._starts: dict[int, Any] = {}
        self._pair: Any = None

    def copy(self, data: Any, shape: Any, strides: Any, firsts: Any) -> None:
        """Element by element, zeros outside of the matrix, by all threads of the block."""
        builder, itemsize = self._builder, self._guest.itemsize
        barrier(builder)
        columns, all_threads = self._stream.columns, ir.Constant(INT, self._plan.block_dim.size)
        most = ir.Constant(INT, self._stream.rows * columns)
        kept = cgutils.alloca_once(builder, self._element)
        with cgutils.for_range_slice(builder, linear_thread(builder), most, all_threads, INT) as (index, _):
            places = builder.udiv(index, ir.Constant(INT, columns)), builder.urem(index, ir.Constant(INT, columns))
            at = [builder.add(first, builder.zext(x, LONG)) for first, x in zip(firsts, places, strict=True)]
            is_inside = [builder.icmp_signed("<", x, end) for x, end in zip(at, shape, strict=True)]
            builder.store(ir.Constant(self._element, None), kept)
            with builder.if_then(builder.and_(*is_inside)):
                offset = builder.add(*(builder.mul(x, stride) for x, stride in zip(at, strides, strict=True)))
                source = builder.bitcast(builder.gep(data, [offset]), self._element.as_pointer())
                builder.store(builder.load(source), kept)
            row, column = places
            nbytes = builder.mul(column, ir.Constant(INT, itemsize))
            box, inside = (
                builder.lshr(nbytes, ir.Constant(INT, _LINE_BITS)),
                builder.and_(nbytes, ir.Constant(INT, LINE_BYTES - 1)),
            )
            line = builder.add(self._box(box), builder.mul(row, ir.Constant(INT, LINE_BYTES)))
            place = builder.add(line, builder.xor(inside, self._swizzle_of(row)))
            builder.store(builder.load(kept), self._pointer(place, self._element))
        barrier(builder)

    def element(self, e: int, at: tuple[Any, Any]) -> Any:
        """The one beside this thread's element ``e`` of the accumulator; in order. Two of a row are read together."""
        builder, itemsize = self._builder, self._guest.itemsize
        if e % 2 == 0:
            box, inside = divmod(e // 4 * 8 * itemsize, LINE_BYTES)
            turn, behind = divmod(box, self._guest.in_stage)
            if e % 4 == 0 and inside == 0 and behind == 0:
                self._begin(turn)
            offset = behind * self._stream.rows * LINE_BYTES + e // 2 % 2 * WARP_ROWS // 2 * LINE_BYTES
            place = builder.add(self._starts[inside], ir.Constant(INT, offset))
            kind = ir.VectorType(self._element, 2)
            self._pair = builder.load(self._pointer(place, kind), align=2 * itemsize)
        return self._model.from_data(builder, builder.extract_element(self._pair, ir.Constant(INT, e % 2)))

    def _begin(self, turn: int) -> None:
        """Until a stage is there; where this thread's elements begin in it, for each group of eight of a line.

        Once each, so that what they add to it is part of the instructions that read, and not before, for want of
        registers.
        """
        builder, itemsize = self._builder, self._guest.itemsize
        keep_order(builder)  # of what the elements behind it load, too
        speak(builder, guest_text(self._stream, self._plan.depth, turn), self._ring)
        row, column = wgmma_place(builder)
        pair = builder.mul(column, ir.Constant(INT, itemsize))
        stage = self._box(ir.Constant(INT, turn * self._guest.in_stage))
        line = builder.add(stage, builder.mul(row, ir.Constant(INT, LINE_BYTES)))
        for group in range(0, LINE_BYTES, 8 * itemsize):
            along = builder.xor(builder.add(pair, ir.Constant(INT, group)), self._swizzle_of(row))
            self._starts[group] = builder.add(line, along)

    def leave(self) -> None:
        """The memory is free again, for TMA, too."""
        speak(self._builder, "fence.proxy.async.shared::cta;")
        end_barriers(self._builder, self._plan, self._near)

    def _box(self, box: Any) -> Any:
        """Where a box begins in shared memory."""
        builder, in_stage = self._builder, ir.Constant(INT, self._guest.in_stage)
        turn = builder.add(self._turns, builder.udiv(box, in_stage))
        stage = builder.urem(turn, ir.Constant(INT, self._plan.depth))
        start = builder.add(self._near, builder.mul(stage, ir.Constant(INT, self._stream.stage_bytes)))
        behind = ir.Constant(INT, self._stream.rows * LINE_BYTES)
        return builder.add(start, builder.mul(builder.urem(box, in_stage), behind))

    def _swizzle_of(self, row: Any) -> Any:
        """What a row's bytes within 128 are exchanged by."""
        builder = self._builder
        line = builder.and_(row, ir.Constant(INT, _SWIZZLED_LINES - 1))
        return builder.mul(line, ir.Constant(INT, _SWIZZLED_BYTES))

    def _pointer(self, place: Any, kind: Any) -> Any:
        return self._builder.inttoptr(place, ir.PointerType(kind, _SHARED))


def end_barriers(builder: Any, plan: PipelinePlan, near: Any) -> None:
    """The stages, which begin at ``near`` in shared memory, and their barriers are free again."""
    assert plan.stream is not None
    barrier(builder)
    with builder.if_then(is_first_thread(builder)):
        speak(builder, end_text(plan.stream, plan.depth), {"near": near})
