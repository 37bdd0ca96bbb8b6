# SPDX-License-Identifier: Apache-2.0
"""The cooperative copies of ``Matmul`` on a GPU, byte for byte against NumPy slices.

Shared memory is looked at as bytes: an array of A's (or C's) values and one of bytes are the same dynamic
memory. So what a load leaves alone (the padding), what it must clear, and what a store takes are all visible.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

ROW, COL = "row_major", "col_major"
ROWS, COLS = 32, 48  # of the matrix in shared memory
EXTENTS = (70, 80)  # of the global array; neither is a multiple of the tile, and the views end inside tiles

HALF_PAIR = np.dtype([("x", np.float16), ("y", np.float16)])
BYTE_PAIR = np.dtype([("x", np.uint8), ("y", np.uint8)])

LOADED = {  # precision of A, complex or not, and the array that is loaded from
    "float16": ("float16", "real", np.float16),
    "bfloat16": ("bfloat16", "real", ml_dtypes.bfloat16),
    "tfloat32": ("tfloat32", "real", np.float32),
    "float32": ("float32", "real", np.float32),
    "float64": ("float64", "real", np.float64),
    "float8_e4m3fn": ("float8_e4m3fn", "real", np.uint8),
    "int8": ("int8", "real", np.int8),
    "uint16": ("uint16", "real", np.uint16),
    "half complex": ("float16", "complex", HALF_PAIR),
    "fp8 complex": ("float8_e5m2", "complex", BYTE_PAIR),
    "complex64": ("float32", "complex", np.complex64),
    "complex128": ("float64", "complex", np.complex128),
}
STORED = {
    "float16": ("float16", "real", np.float16),
    "float32": ("float32", "real", np.float32),
    "float64": ("float64", "real", np.float64),
    "int32": ("int32", "real", np.int32),
    "uint64": ("uint64", "real", np.uint64),
    "half complex": ("float16", "complex", HALF_PAIR),
    "complex64": ("float32", "complex", np.complex64),
    "complex128": ("float64", "complex", np.complex128),
}

# One text is both the view in the kernel and the view in NumPy; r and c are known only at run time.
VIEWS = {
    "whole": "x",
    "whole transposed": "x.T",
    "tile": "x[r : r + 32, c : c + 48]",
    "tile of transposed": "x.T[r : r + 32, c : c + 48]",
    "stepped": "x[r::2, c::3]",
    "backwards": "x[::-1, ::-1][r : r + 32, c : c + 48]",
}
# (0, 0) and (32, 16) are aligned for all types; then odd addresses, ragged corners, nothing left.
PLACES = [(0, 0), (32, 16), (1, 3), (64, 48), (69, 69), (70, 80), (90, 90)]
BLOCKS = [(128,), (32, 3), (5, 4, 3), (1024,), (1,)]

LOAD = """
def kernel(x, r, c, shared_bytes):
    smem = nd.shared.array(0, mm.a_value_type)
    raw = nd.shared.array(0, np.uint8)
    thread = cuda.threadIdx.x + cuda.blockDim.x * (cuda.threadIdx.y + cuda.blockDim.y * cuda.threadIdx.z)
    threads = cuda.blockDim.x * cuda.blockDim.y * cuda.blockDim.z
    for i in range(thread, shared_bytes.size, threads):
        raw[i] = shared_bytes[i]
    cuda.syncthreads()
    mm.load_a({view}, smem)
    cuda.syncthreads()
    for i in range(thread, shared_bytes.size, threads):
        shared_bytes[i] = raw[i]
"""
STORE = """
def kernel(x, r, c, shared_bytes):
    smem = nd.shared.array(0, mm.c_value_type)
    raw = nd.shared.array(0, np.uint8)
    thread = cuda.threadIdx.x + cuda.blockDim.x * (cuda.threadIdx.y + cuda.blockDim.y * cuda.threadIdx.z)
    threads = cuda.blockDim.x * cuda.blockDim.y * cuda.blockDim.z
    for i in range(thread, shared_bytes.size, threads):
        raw[i] = shared_bytes[i]
    cuda.syncthreads()
    mm.store_c(smem, {view})
"""


@dataclass(frozen=True)
class Tile:
    """A stored 32 x 48 matrix: its Matmul, and where its elements are in a buffer."""

    matmul: Any
    dtype: np.dtype
    order: str
    ld: int

    @property
    def bytes(self) -> int:
        return self.ld * (COLS if self.order == COL else ROWS) * self.dtype.itemsize

    def of(self, buffer: np.ndarray) -> np.ndarray:
        pitch, item = self.ld * self.dtype.itemsize, self.dtype.itemsize
        strides = (item, pitch) if self.order == COL else (pitch, item)
        return np.ndarray((ROWS, COLS), self.dtype, buffer, 0, strides)


def tile_for_load(kind: str, order: str, padding: int) -> Tile:
    """A is 32 x 48 of the kind; C and B are whatever goes with it."""
    import nvmath_device as nd

    precision, data_type, dtype = LOADED[kind]
    accumulator = {"int8": "int32", "uint16": "uint64", "float64": "float64"}.get(precision, "float32")
    ld = (COLS if order == ROW else ROWS) + padding
    other = COLS + ROWS
    mm = nd.Matmul(
        size=(ROWS, 16, COLS),
        precision=(precision, precision, accumulator),
        data_type=data_type,
        arrangement=(order, ROW, ROW),
        leading_dimension=(ld, other, other),
        block_size=128,
    )
    return Tile(mm, np.dtype(dtype), order, ld)


def tile_for_store(kind: str, order: str, padding: int) -> Tile:
    import nvmath_device as nd

    precision, data_type, dtype = STORED[kind]
    operand = {"int32": "int8", "uint64": "uint8"}.get(precision, precision)
    ld = (COLS if order == ROW else ROWS) + padding
    other = COLS + ROWS
    mm = nd.Matmul(
        size=(ROWS, COLS, 16),
        precision=(operand, operand, precision),
        data_type=data_type,
        arrangement=(ROW, ROW, order),
        leading_dimension=(other, other, ld),
        block_size=128,
    )
    return Tile(mm, np.dtype(dtype), order, ld)


def compiled(template: str, view: str, tile: Tile) -> Any:
    from numba import cuda

    import nvmath_device as nd

    names = {"cuda": cuda, "nd": nd, "np": np, "mm": tile.matmul}
    exec(template.format(view=VIEWS[view]), names)
    return cuda.jit(names["kernel"])


def random_bytes(count: int, seed: int) -> np.ndarray:
    """No byte is zero: a zero in a result was written by the copy."""
    return np.random.default_rng(seed).integers(1, 256, count, np.uint8)


def global_array(dtype: np.dtype) -> np.ndarray:
    return random_bytes(EXTENTS[0] * EXTENTS[1] * dtype.itemsize, 1).view(dtype).reshape(EXTENTS)


def view_of(view: str, x: np.ndarray, r: int, c: int) -> np.ndarray:
    return eval(VIEWS[view], {"x": x, "r": r, "c": c})


def on_device(x: np.ndarray) -> Any:
    from numba import cuda

    if x.dtype == ml_dtypes.bfloat16:  # Numba copies no bfloat16 array, but its bits, and views them
        return cuda.to_device(x.view(np.uint16)).view(ml_dtypes.bfloat16)
    return cuda.to_device(x)


def check_load(kernel: Any, view: str, tile: Tile, place: tuple[int, int], block: tuple[int, ...]) -> None:
    x = global_array(tile.dtype)
    before = random_bytes(tile.bytes, 2)
    expected = before.copy()
    matrix = tile.of(expected)
    matrix[...] = np.zeros((), tile.dtype)
    source = view_of(view, x, *place)[:ROWS, :COLS]
    matrix[: source.shape[0], : source.shape[1]] = source

    device_x, device_bytes = on_device(x), on_device(before)
    kernel[1, block, 0, tile.bytes](device_x, *place, device_bytes)
    assert device_bytes.copy_to_host().tobytes() == expected.tobytes(), (view, place, block)
    assert device_x.copy_to_host().tobytes() == x.tobytes()


def check_store(kernel: Any, view: str, tile: Tile, place: tuple[int, int], block: tuple[int, ...]) -> None:
    x = global_array(tile.dtype)
    shared = random_bytes(tile.bytes, 3)
    expected = x.copy()
    target = view_of(view, expected, *place)[:ROWS, :COLS]
    target[...] = tile.of(shared)[: target.shape[0], : target.shape[1]]

    device_x = on_device(x)
    kernel[1, block, 0, tile.bytes](device_x, *place, on_device(shared))
    assert device_x.copy_to_host().tobytes() == expected.tobytes(), (view, place, block)


# Every kind in either order and with either view of the tile; paddings and blocks take turns.
PADDINGS = (0, 16, 1)


@pytest.mark.parametrize("order", [ROW, COL])
@pytest.mark.parametrize("kind", LOADED)
def test_load(kind: str, order: str):
    padding = PADDINGS[(list(LOADED).index(kind) + (order == COL)) % len(PADDINGS)]
    tile = tile_for_load(kind, order, padding)
    for view in ("tile", "tile of transposed"):
        kernel = compiled(LOAD, view, tile)
        for i, place in enumerate(PLACES):
            check_load(kernel, view, tile, place, BLOCKS[i % len(BLOCKS)])


@pytest.mark.parametrize("order", [ROW, COL])
@pytest.mark.parametrize("kind", STORED)
def test_store(kind: str, order: str):
    padding = PADDINGS[(list(STORED).index(kind) + (order == COL)) % len(PADDINGS)]
    tile = tile_for_store(kind, order, padding)
    for view in ("tile", "tile of transposed"):
        kernel = compiled(STORE, view, tile)
        for i, place in enumerate(PLACES):
            check_store(kernel, view, tile, place, BLOCKS[i % len(BLOCKS)])


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("kind", ["float16", "float32", "complex64"])
def test_views_of_all_strides(kind: str, view: str):
    for order in (ROW, COL):
        load_tile, store_tile = tile_for_load(kind, order, 0), tile_for_store(kind, order, 0)
        load, store = compiled(LOAD, view, load_tile), compiled(STORE, view, store_tile)
        for place in PLACES:
            check_load(load, view, load_tile, place, (96,))
            check_store(store, view, store_tile, place, (96,))


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_blocks_of_all_shapes(block: tuple[int, ...]):
    load_tile, store_tile = tile_for_load("float32", ROW, 16), tile_for_store("float32", ROW, 16)
    load, store = compiled(LOAD, "tile", load_tile), compiled(STORE, "tile", store_tile)
    for place in PLACES:
        check_load(load, "tile", load_tile, place, block)
        check_store(store, "tile", store_tile, place, block)


def test_tile_inside_a_wider_shared_array():
    """A 2-D array in shared memory is used with its own strides; its other columns are not touched."""
    from numba import cuda

    import nvmath_device as nd

    mm = tile_for_load("float32", ROW, 0).matmul
    mm_c = tile_for_store("float32", ROW, 0).matmul

    @cuda.jit
    def kernel(x, whole, y):
        wide = nd.shared.array((32, 64), np.float32)
        thread = cuda.threadIdx.x
        for i in range(thread, 32 * 64, 64):
            wide[i // 64, i % 64] = whole[i // 64, i % 64]
        cuda.syncthreads()
        mm.load_a(x, wide[:, 8:56])
        cuda.syncthreads()
        for i in range(thread, 32 * 64, 64):
            whole[i // 64, i % 64] = wide[i // 64, i % 64]
        mm_c.store_c(wide[:, 4:52], y)

    x = global_array(np.dtype(np.float32))
    whole = random_bytes(32 * 64 * 4, 4).view(np.float32).reshape(32, 64)
    expected = whole.copy()
    expected[:, 8:56] = x[:32, :48]
    device_whole, device_y = on_device(whole), on_device(np.full((32, 48), -1, np.float32))
    kernel[1, 64](on_device(x), device_whole, device_y)
    assert device_whole.copy_to_host().tobytes() == expected.tobytes()
    assert device_y.copy_to_host().tobytes() == expected[:, 4:52].tobytes()


def test_load_from_shared_memory():
    """A view need not be in global memory: ``cp.async`` is not used then."""
    from numba import cuda

    import nvmath_device as nd

    mm = tile_for_load("float32", ROW, 0).matmul

    @cuda.jit
    def kernel(x, out):
        source = nd.shared.array((32, 48), np.float32)
        target = nd.shared.array((32, 48), np.float32)
        thread = cuda.threadIdx.x
        for i in range(thread, 32 * 48, 64):
            source[i // 48, i % 48] = x[i // 48, i % 48]
        cuda.syncthreads()
        mm.load_a(source, target)
        cuda.syncthreads()
        for i in range(thread, 32 * 48, 64):
            out[i // 48, i % 48] = target[i // 48, i % 48]

    x = global_array(np.dtype(np.float32))
    out = on_device(np.full((32, 48), -1, np.float32))
    kernel[1, 64](on_device(x), out)
    assert out.copy_to_host().tobytes() == x[:32, :48].tobytes()


def test_many_blocks_copy_a_ragged_matrix():
    """Tiles of all blocks, moved through shared memory, make up the matrix; around it nothing changes."""
    from numba import cuda

    import nvmath_device as nd

    mm = nd.Matmul(
        size=(ROWS, COLS, 16),
        precision="float32",
        data_type="real",
        arrangement=(ROW, ROW, ROW),
        block_size=128,
    )

    @cuda.jit
    def kernel(x, y):
        smem = nd.shared.array(mm.c_size, mm.c_value_type)
        i, j = cuda.blockIdx.x * 32, cuda.blockIdx.y * 48
        mm.load_c(x[i : i + 32, j : j + 48], smem)
        cuda.syncthreads()
        mm.store_c(smem, y[i : i + 32, j : j + 48])

    rows, cols = 1001, 997
    x = np.random.default_rng(5).standard_normal((rows, cols)).astype(np.float32)
    y = on_device(np.full((rows + 3, 1024), -1, np.float32))
    kernel[(32, 21), 128](on_device(x), y[:rows, :cols])
    result = y.copy_to_host()
    assert np.array_equal(result[:rows, :cols], x)
    assert (result[rows:] == -1).all()
    assert (result[:, cols:] == -1).all()
