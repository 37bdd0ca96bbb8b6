# SPDX-License-Identifier: Apache-2.0
"""Block-wide copies between a 2-D view and a matrix in shared memory: Python compiled into the kernel.

Nothing here knows Numba: the loops are made for a :class:`TileCopy` out of the operations of a ``MemoryOps``.
Every loop takes the same eight integers::

    far, near                 addresses of the view and of the matrix
    valid_inner, valid_outer  extents, in elements, of the part of the matrix that lies inside the view
    far_inner, far_outer      bytes from one element of the view to the next along the two axes, of any sign
    near_inner, near_outer    the same of the matrix

The inner axis is the one along which the matrix is contiguous. A view that is contiguous along the other one
is copied with the roles of the axes exchanged, so that neighbouring threads always touch neighbouring global
memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

VECTOR_BYTES = 16
SAME, OTHER, UNKNOWN = "same", "other", "unknown"

Loop = Callable[..., None]


@dataclass(frozen=True)
class TileCopy:
    """What is known about a copy when the kernel is compiled.

    Attributes:
        inner, outer: extents of the matrix in elements, inner along its contiguous axis.
        itemsize: bytes of an element.
        word: bytes of the part an element is made of, 1, 2, 4 or 8; every address is a multiple of it.
        contiguous: the axis along which the view is contiguous: the ``"same"`` as the matrix, the ``"other"``
            or an ``"unknown"`` one.
        asynchronous: the target has ``cp.async``.
    """

    inner: int
    outer: int
    itemsize: int
    word: int
    contiguous: str
    asynchronous: bool

    @property
    def can_use_vectors(self) -> bool:
        """Whether 16-byte accesses are possible, given aligned addresses."""
        return self.contiguous != OTHER and self.inner * self.itemsize % VECTOR_BYTES == 0

    @property
    def loads_words_asynchronously(self) -> bool:
        return self.asynchronous and self.word >= 4  # cp.async moves 4, 8 or 16 bytes


def load_loop(plan: TileCopy, ops: Any) -> Loop:
    """From the view to the matrix, zeros where the matrix is outside of the view.

    When it returns, what the calling thread has copied is in shared memory.
    """
    begin, wait = ops.subroutine(begin_load_loop(plan, ops)), ops.wait

    def load(far, near, valid_inner, valid_outer, far_inner, far_outer, near_inner, near_outer):
        begin(far, near, valid_inner, valid_outer, far_inner, far_outer, near_inner, near_outer)
        wait()

    return load


def begin_load_loop(plan: TileCopy, ops: Any) -> Loop:
    """As :func:`load_loop`, but what is copied asynchronously may still be on its way when it returns."""
    itemsize, lanes = plan.itemsize, VECTOR_BYTES - 1
    can_use_vectors, only_global = plan.can_use_vectors, plan.loads_words_asynchronously
    can_go_along, can_go_across = plan.contiguous != OTHER, plan.contiguous != SAME
    words_in = _words_in_asynchronously if only_global else _words_in
    vectors = ops.subroutine(_vectors_in(plan, ops))
    along = ops.subroutine(words_in(plan, ops, plan.inner, plan.outer))
    across = ops.subroutine(words_in(plan, ops, plan.outer, plan.inner))
    from_anywhere = ops.subroutine(_words_in(plan, ops, plan.inner, plan.outer))
    is_global = ops.is_global

    def begin(far, near, valid_inner, valid_outer, far_inner, far_outer, near_inner, near_outer):
        in_global = is_global(far)
        addresses = far | far_outer | near | near_outer | (valid_inner * itemsize)
        if can_use_vectors and in_global and far_inner == itemsize and addresses & lanes == 0:
            vectors(far, near, valid_inner, valid_outer, far_inner, far_outer, near_inner, near_outer)
        elif only_global and not in_global:
            from_anywhere(far, near, valid_inner, valid_outer, far_inner, far_outer, near_inner, near_outer)
        elif not can_go_across or (can_go_along and abs(far_inner) <= abs(far_outer)):
            along(far, near, valid_inner, valid_outer, far_inner, far_outer, near_inner, near_outer)
        else:
            across(far, near, valid_outer, valid_inner, far_outer, far_inner, near_outer, near_inner)

    return begin


def store_loop(plan: TileCopy, ops: Any) -> Loop:
    """From the matrix to the view, where the view has elements; nothing else is written."""
    itemsize, lanes = plan.itemsize, VECTOR_BYTES - 1
    can_use_vectors = plan.can_use_vectors
    can_go_along, can_go_across = plan.contiguous != OTHER, plan.contiguous != SAME
    vectors = ops.subroutine(_vectors_out(plan, ops))
    along = ops.subroutine(_words_out(plan, ops, plan.inner, plan.outer))
    across = ops.subroutine(_words_out(plan, ops, plan.outer, plan.inner))
    is_global = ops.is_global

    def store(far, near, valid_inner, valid_outer, far_inner, far_outer, near_inner, near_outer):
        addresses = far | far_outer | near | near_outer | (valid_inner * itemsize)
        if can_use_vectors and is_global(far) and far_inner == itemsize and addresses & lanes == 0:
            vectors(far, near, valid_inner, valid_outer, far_inner, far_outer, near_inner, near_outer)
        elif not can_go_across or (can_go_along and abs(far_inner) <= abs(far_outer)):
            along(far, near, valid_inner, valid_outer, far_inner, far_outer, near_inner, near_outer)
        else:
            across(far, near, valid_outer, valid_inner, far_outer, far_inner, near_outer, near_inner)

    return store


def _counting(ops: Any) -> tuple[Any, Any, Any, Any]:
    return ops.thread_index, ops.thread_count, ops.advance, ops.quotient


# -- 16 bytes at a time --------------------------------------------------------------------------------------


def _vectors_in(plan: TileCopy, ops: Any) -> Loop:
    itemsize, per_line = plan.itemsize, plan.inner * plan.itemsize // VECTOR_BYTES or 1
    total = per_line * plan.outer
    thread_index, thread_count, advance, quotient = _counting(ops)
    vector_in = ops.vector_in

    def vectors_in(far, near, valid_inner, valid_outer, far_inner, far_outer, near_inner, near_outer):
        valid = valid_inner * itemsize
        step = thread_count()
        i = thread_index()
        while i < total:
            line = quotient(i, per_line)
            start = (i - line * per_line) * VECTOR_BYTES
            inside = start < valid and line < valid_outer
            vector_in(near + line * near_outer + start, far + line * far_outer + start, inside)
            i = advance(i, step)

    return vectors_in


def _vectors_out(plan: TileCopy, ops: Any) -> Loop:
    itemsize, per_line = plan.itemsize, plan.inner * plan.itemsize // VECTOR_BYTES or 1
    total = per_line * plan.outer
    thread_index, thread_count, advance, quotient = _counting(ops)
    vector_out = ops.vector_out

    def vectors_out(far, near, valid_inner, valid_outer, far_inner, far_outer, near_inner, near_outer):
        valid = valid_inner * itemsize
        step = thread_count()
        i = thread_index()
        while i < total:
            line = quotient(i, per_line)
            start = (i - line * per_line) * VECTOR_BYTES
            if start < valid and line < valid_outer:
                vector_out(far + line * far_outer + start, near + line * near_outer + start)
            i = advance(i, step)

    return vectors_out


# -- word by word: `extent` elements along the axis that is walked first, `lines` along the other ------------


def _words_in_asynchronously(plan: TileCopy, ops: Any, extent: int, lines: int) -> Loop:
    word, words = plan.word, plan.itemsize // plan.word
    total = extent * lines * words
    thread_index, thread_count, advance, quotient = _counting(ops)
    word_in = ops.word_in

    def words_in(far, near, valid_inner, valid_outer, far_inner, far_outer, near_inner, near_outer):
        step = thread_count()
        i = thread_index()
        while i < total:
            element = quotient(i, words)
            line = quotient(element, extent)
            place, part = element - line * extent, (i - element * words) * word
            source = far + line * far_outer + place * far_inner + part
            target = near + line * near_outer + place * near_inner + part
            word_in(target, source, place < valid_inner and line < valid_outer)
            i = advance(i, step)

    return words_in


def _words_in(plan: TileCopy, ops: Any, extent: int, lines: int) -> Loop:
    """Reads four words before it writes one, so that four reads are on their way at once."""
    word, words = plan.word, plan.itemsize // plan.word
    total = extent * lines * words
    thread_index, thread_count, advance, quotient = _counting(ops)
    read_far, write_near = ops.read_far, ops.write_near

    def read_word(far, valid_inner, valid_outer, far_inner, far_outer, i):
        element = quotient(i, words)
        line = quotient(element, extent)
        place, part = element - line * extent, (i - element * words) * word
        # Behind the last word, line is at least `lines`, which valid_outer never exceeds.
        if place < valid_inner and line < valid_outer:
            return read_far(far + line * far_outer + place * far_inner + part)
        return 0

    def write_word(near, near_inner, near_outer, i, value):
        if i < total:
            element = quotient(i, words)
            line = quotient(element, extent)
            place, part = element - line * extent, (i - element * words) * word
            write_near(near + line * near_outer + place * near_inner + part, value)

    read, write = ops.reader(read_word), ops.subroutine(write_word)

    def words_in(far, near, valid_inner, valid_outer, far_inner, far_outer, near_inner, near_outer):
        step = thread_count()
        i = thread_index()
        while i < total:
            a = read(far, valid_inner, valid_outer, far_inner, far_outer, i)
            b = read(far, valid_inner, valid_outer, far_inner, far_outer, i + step)
            c = read(far, valid_inner, valid_outer, far_inner, far_outer, i + 2 * step)
            d = read(far, valid_inner, valid_outer, far_inner, far_outer, i + 3 * step)
            write(near, near_inner, near_outer, i, a)
            write(near, near_inner, near_outer, i + step, b)
            write(near, near_inner, near_outer, i + 2 * step, c)
            write(near, near_inner, near_outer, i + 3 * step, d)
            i = advance(i, 4 * step)

    return words_in


def _words_out(plan: TileCopy, ops: Any, extent: int, lines: int) -> Loop:
    word, words = plan.word, plan.itemsize // plan.word
    total = extent * lines * words
    thread_index, thread_count, advance, quotient = _counting(ops)
    read_near, write_far = ops.read_near, ops.write_far

    def words_out(far, near, valid_inner, valid_outer, far_inner, far_outer, near_inner, near_outer):
        step = thread_count()
        i = thread_index()
        while i < total:
            element = quotient(i, words)
            line = quotient(element, extent)
            place, part = element - line * extent, (i - element * words) * word
            if place < valid_inner and line < valid_outer:
                value = read_near(near + line * near_outer + place * near_inner + part)
                write_far(far + line * far_outer + place * far_inner + part, value)
            i = advance(i, step)

    return words_out
