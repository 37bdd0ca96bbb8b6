# SPDX-License-Identifier: Apache-2.0
"""The loops of the block-wide copies, run thread by thread in plain Python on two byte buffers.

It is the code that kernels get, with the memory operations replaced: each checks that it stays in its buffer
and is aligned, and an asynchronous copy arrives when its thread waits. Expected contents come from NumPy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvmath_device.numba_backend.copy_loops import OTHER, SAME, UNKNOWN, TileCopy, load_loop, store_loop

FAR, NEAR = 1 << 40, 1 << 10  # where the buffers begin; multiples of 16
POISON = 0xA5


@dataclass
class Block:
    """A thread block that runs one thread after the other, with its global (far) and shared (near) memory."""

    threads: int
    word: int
    far: np.ndarray
    near: np.ndarray
    far_is_global: bool = True
    thread: int = 0
    pending: list[Callable[[], None]] = field(default_factory=list)
    far_accesses: list[tuple[int, int, int]] = field(default_factory=list)  # thread, offset, bytes

    def run(self, make: Callable[..., Callable[..., None]], plan: TileCopy, *arguments: int) -> None:
        loop = make(plan, self.ops(asynchronous=plan.asynchronous))
        for thread in range(self.threads):
            self.thread = thread
            loop(*arguments)
            assert not self.pending, "a copy was left in flight"

    def ops(self, *, asynchronous: bool) -> Any:
        return SimpleNamespace(
            thread_index=lambda: self.thread,
            thread_count=lambda: self.threads,
            advance=lambda i, step: i + step,
            quotient=lambda i, n: i // n,
            is_global=lambda far: self.far_is_global,
            read_far=lambda far: self.read_far(far, self.word),
            write_far=lambda far, value: self.write_far(far, value, self.word),
            read_near=lambda near: self.read_near(near, self.word),
            write_near=lambda near, value: self.write_near(near, value, self.word),
            vector_in=self.copier_in(16, later=asynchronous),
            vector_out=lambda far, near: self.write_far(far, self.read_near(near, 16), 16, only_global=True),
            word_in=self.copier_in(self.word, later=True),
            wait=self.wait,
            subroutine=lambda function: function,
            reader=lambda function: function,
        )

    def copier_in(self, size: int, *, later: bool) -> Callable[[int, int, bool], None]:
        def copy(near: int, far: int, inside: bool) -> None:
            assert self.far_is_global
            value = self.read_far(far, size) if inside else 0

            def arrive() -> None:
                self.write_near(near, value, size)

            if later:
                assert size in (4, 8, 16)
                self.pending.append(arrive)
            else:
                arrive()

        return copy

    def wait(self) -> None:
        for arrive in self.pending:
            arrive()
        self.pending.clear()

    def read_far(self, address: int, size: int) -> int:
        self.far_accesses.append((self.thread, address - FAR, size))
        return int.from_bytes(place(self.far, address, FAR, size).tobytes(), "little")

    def write_far(self, address: int, value: int, size: int, *, only_global: bool = False) -> None:
        assert self.far_is_global or not only_global
        self.far_accesses.append((self.thread, address - FAR, size))
        place(self.far, address, FAR, size)[:] = np.frombuffer(value.to_bytes(size, "little"), np.uint8)

    def read_near(self, address: int, size: int) -> int:
        return int.from_bytes(place(self.near, address, NEAR, size).tobytes(), "little")

    def write_near(self, address: int, value: int, size: int) -> None:
        place(self.near, address, NEAR, size)[:] = np.frombuffer(value.to_bytes(size, "little"), np.uint8)


def place(buffer: np.ndarray, address: int, begin: int, size: int) -> np.ndarray:
    offset = int(address) - begin
    assert 0 <= offset <= len(buffer) - size, f"{size} bytes at {offset} of a buffer of {len(buffer)}"
    assert offset % size == 0, f"{size} bytes at {offset}"
    return buffer[offset : offset + size]


@dataclass(frozen=True)
class Case:
    rows: int
    cols: int
    row_major: bool
    padding: int  # elements between lines of the matrix
    view_shape: tuple[int, int]
    view_is_row_major: bool
    view_padding: int
    steps: tuple[int, int]  # of the view through its array: 1, 2, -1 ...
    offset: int  # elements before the array
    itemsize: int
    word: int
    threads: int
    says_layout: bool
    asynchronous: bool
    far_is_global: bool = True

    def memory(self, seed: int = 7) -> tuple[Block, np.ndarray, np.ndarray, np.ndarray]:
        """The block, the view and the matrix in its memory, and the matrix's padding."""
        kind = np.dtype((np.void, self.itemsize))
        random = np.random.default_rng(seed)
        extents = tuple(n * abs(s) for n, s in zip(self.view_shape, self.steps, strict=True))
        far, array = matrix(extents, self.view_is_row_major, self.view_padding, kind, self.offset)
        near, tile = matrix((self.rows, self.cols), self.row_major, self.padding, kind, 0)
        far[:] = random.integers(1, 256, len(far), np.uint8)
        near[:] = random.integers(1, 256, len(near), np.uint8)
        view = array[:: self.steps[0], :: self.steps[1]]
        return Block(self.threads, self.word, far, near, self.far_is_global), view, tile, near

    def plan(self) -> TileCopy:
        inner, outer = (self.cols, self.rows) if self.row_major else (self.rows, self.cols)
        is_contiguous = self.steps == (1, 1) and self.view_padding == 0
        same = self.row_major == self.view_is_row_major
        contiguous = (SAME if same else OTHER) if self.says_layout and is_contiguous else UNKNOWN
        return TileCopy(inner, outer, self.itemsize, self.word, contiguous, self.asynchronous)

    def arguments(self, block: Block, view: np.ndarray, tile: np.ndarray) -> tuple[int, ...]:
        axes = (1, 0) if self.row_major else (0, 1)
        valid = [min(view.shape[a], tile.shape[a]) for a in axes]
        strides = [x.strides[a] for x in (view, tile) for a in axes]
        return (FAR + byte_offset(view, block.far), NEAR + byte_offset(tile, block.near), *valid, *strides)


def matrix(
    shape: tuple[int, ...], row_major: bool, padding: int, kind: np.dtype, offset: int
) -> tuple[np.ndarray, np.ndarray]:
    """A byte buffer just large enough for a matrix of padded lines, and the matrix in it."""
    rows, cols = shape
    inner, outer = (cols, rows) if row_major else (rows, cols)
    pitch = (inner + padding) * kind.itemsize
    strides = (pitch, kind.itemsize) if row_major else (kind.itemsize, pitch)
    used = (outer - 1) * pitch + inner * kind.itemsize if inner * outer else 0
    size = offset * kind.itemsize + used
    buffer = np.full(size, POISON, np.uint8)
    backing = buffer if size else np.zeros(16, np.uint8)
    return buffer, np.ndarray(shape, kind, backing, offset * kind.itemsize, strides)


def byte_offset(part: np.ndarray, whole: np.ndarray) -> int:
    return part.__array_interface__["data"][0] - whole.__array_interface__["data"][0] if part.size else 0


def check_load(case: Case) -> Block:
    block, view, tile, _ = case.memory()
    before = block.far.copy()
    expected_block, _, expected, _ = case.memory()
    expected[:] = np.zeros((), expected.dtype)
    inside = (slice(min(view.shape[0], case.rows)), slice(min(view.shape[1], case.cols)))
    expected[inside] = view[inside]
    block.run(load_loop, case.plan(), *case.arguments(block, view, tile))
    assert block.near.tobytes() == expected_block.near.tobytes()  # padding of the matrix included
    assert block.far.tobytes() == before.tobytes()
    return block


def check_store(case: Case) -> Block:
    block, view, tile, _ = case.memory()
    before = block.near.copy()
    expected_block, expected, _, _ = case.memory()
    inside = (slice(min(view.shape[0], case.rows)), slice(min(view.shape[1], case.cols)))
    expected[inside] = tile[inside]
    block.run(store_loop, case.plan(), *case.arguments(block, view, tile))
    assert block.far.tobytes() == expected_block.far.tobytes()  # everything around the view included
    assert block.near.tobytes() == before.tobytes()
    return block


ELEMENTS = [(1, 1), (2, 2), (4, 4), (8, 8), (4, 2), (8, 4), (16, 8)]  # bytes of an element and of its parts


@st.composite
def cases(draw: Any) -> Case:
    itemsize, word = draw(st.sampled_from(ELEMENTS))
    extent = st.one_of(st.integers(1, 9), st.sampled_from([8, 16, 32]))
    rows, cols = draw(extent), draw(extent)
    view_shape = tuple(draw(st.one_of(st.just(n), st.just(n // 2), st.integers(0, n + 3))) for n in (rows, cols))
    return Case(
        rows=rows,
        cols=cols,
        row_major=draw(st.booleans()),
        padding=draw(st.sampled_from([0, 0, 1, 8])),
        view_shape=view_shape,
        view_is_row_major=draw(st.booleans()),
        view_padding=draw(st.sampled_from([0, 0, 3, 16])),
        steps=(draw(st.sampled_from([1, 1, 2, -1])), draw(st.sampled_from([1, 1, 3, -1]))),
        offset=draw(st.sampled_from([0, 0, 1, 16])),
        itemsize=itemsize,
        word=word,
        threads=draw(st.sampled_from([1, 5, 32, 96])),
        says_layout=draw(st.booleans()),
        asynchronous=draw(st.booleans()),
        far_is_global=draw(st.sampled_from([True, True, False])),
    )


@settings(max_examples=300, deadline=None)
@given(cases())
def test_load_fills_the_matrix_and_nothing_else(case: Case):
    check_load(case)


@settings(max_examples=300, deadline=None)
@given(cases())
def test_store_writes_the_part_inside_the_view_and_nothing_else(case: Case):
    check_store(case)


def aligned(**changes: Any) -> Case:
    """8 x 16 float32, row-major on both sides, everything a multiple of 16 bytes."""
    base = {
        "rows": 8, "cols": 16, "row_major": True, "padding": 4,
        "view_shape": (8, 16), "view_is_row_major": True, "view_padding": 8, "steps": (1, 1), "offset": 0,
        "itemsize": 4, "word": 4, "threads": 8, "says_layout": False, "asynchronous": True,
    }  # fmt: skip
    return Case(**{**base, **changes})


USES_VECTORS = {
    "aligned": {},
    "before cp.async": {"asynchronous": False},
    "tile of which half is inside": {"view_shape": (5, 8)},
    "column-major on both sides": {"row_major": False, "view_is_row_major": False, "rows": 16, "cols": 8},
    "16 bytes into the array": {"offset": 4},
    "complex64": {"itemsize": 8},
    "complex128": {"itemsize": 16, "word": 8},
    "bytes": {"itemsize": 1, "word": 1, "padding": 16, "view_padding": 32},
}
USES_WORDS = {
    "4 bytes into the array": {"offset": 1},
    "odd pitch of the view": {"view_padding": 1},
    "odd pitch of the matrix": {"padding": 1},
    "row of 15 elements inside": {"view_shape": (8, 15), "view_padding": 1},
    "row of 15 elements": {"cols": 15, "padding": 1, "view_shape": (8, 16)},
    "every second element": {"steps": (1, 2)},
    "backwards": {"steps": (1, -1)},
    "other order": {"view_is_row_major": False},
    "not in global memory": {"far_is_global": False},
}


@pytest.mark.parametrize("changes", USES_VECTORS.values(), ids=USES_VECTORS)
@pytest.mark.parametrize("check", [check_load, check_store])
def test_sixteen_bytes_at_a_time(check: Callable[[Case], Block], changes: dict[str, Any]):
    assert {size for _, _, size in check(aligned(**changes)).far_accesses} == {16}


@pytest.mark.parametrize("changes", USES_WORDS.values(), ids=USES_WORDS)
@pytest.mark.parametrize("check", [check_load, check_store])
def test_word_by_word(check: Callable[[Case], Block], changes: dict[str, Any]):
    assert {size for _, _, size in check(aligned(**changes)).far_accesses} == {4}


@pytest.mark.parametrize("view_is_row_major", [True, False])
@pytest.mark.parametrize("row_major", [True, False])
@pytest.mark.parametrize("itemsize", [4, 8])
@pytest.mark.parametrize("check", [check_load, check_store])
def test_neighbouring_threads_touch_neighbouring_memory(
    check: Callable[[Case], Block], itemsize: int, row_major: bool, view_is_row_major: bool
):
    """32 threads, 32 elements along the view's contiguous axis: the first accesses of all are in a row."""
    case = aligned(
        rows=32, cols=32, view_shape=(32, 32), row_major=row_major, view_is_row_major=view_is_row_major,
        itemsize=itemsize, offset=1, threads=32,
    )  # fmt: skip
    first: dict[int, int] = {}
    for thread, offset, _ in check(case).far_accesses:
        first.setdefault(thread, offset)
    assert [first[t] - first[0] for t in range(32)] == [4 * t for t in range(32)]


def test_an_element_is_read_once():
    for changes in ({}, {"offset": 1}, {"view_is_row_major": False}, {"asynchronous": False, "offset": 1}):
        offsets = [offset for _, offset, _ in check_load(aligned(**changes)).far_accesses]
        assert len(offsets) == len(set(offsets))
