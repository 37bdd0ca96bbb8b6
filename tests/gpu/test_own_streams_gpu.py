# SPDX-License-Identifier: Apache-2.0
"""Loops over K of our own by wgmma, on a GPU: exact sums of small integers, of every kind and extent."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from numba import cuda

import nvmath_device as nd
from tests.gpu.spoiled import spoil
from tests.test_own_streams import KINDS, of_kind

STORED = {
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "tfloat32": np.dtype(np.float32),
    "float8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "float8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
}


@cuda.jit(device=True)
def plus(value, element, row, column):
    return value + element


@cuda.jit(device=True)
def placed(value, element, row, column, scale, shift):
    return value * scale[column] + element + shift * row


def on_gpu(x):
    """A matrix of integers as they are stored; Numba has fp8 as bytes, and copies bfloat16 as bits."""
    if x.dtype == ml_dtypes.bfloat16:
        return cuda.to_device(x.view(np.uint16)).view(x.dtype)
    return cuda.to_device(x.view(np.uint8) if x.dtype.itemsize == 1 else x)


def operands(kind, m, n, k, seed=0):
    """As float64, and on the GPU. All numbers are held exactly, and so are their sums in float32."""
    rng = np.random.default_rng(seed)
    a, b = rng.integers(-3, 4, (m, k)), rng.integers(-3, 4, (k, n))
    first, second = (STORED[name] for name in KINDS[kind][0])
    return a @ b, on_gpu(a.astype(first)), on_gpu(np.asfortranarray(b.astype(second)))


def configuration(mm, m, n, depth=None, stream=0):
    grid = (-(-m // mm.size.m), -(-n // mm.size.n))
    return grid, mm.block_dim, stream, mm.get_pipeline_storage_size(depth)


def empty(m, n):
    return cuda.to_device(np.full((m, n), np.nan, np.float32))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("tile", "threads"), [((128, 256), 256), ((64, 40), 128), ((256, 64), 512)], ids=str)
def test_products_of_any_extents(kind, tile, threads):
    mm = of_kind(kind, *tile, threads)

    @nd.jit
    def kernel(a, b, c):
        mm.multiply(a, b, cuda.blockIdx.x, cuda.blockIdx.y).store(c)

    for m, n, k in [(256, 256, 128), (1, 2, 16), (300, 130, 336), (129, 257, 1040), (640, 512, 512)]:
        want, a, b = operands(kind, m, n, k)
        c = empty(m, n)
        spoil()
        kernel[configuration(mm, m, n)](a, b, c)
        np.testing.assert_array_equal(c.copy_to_host(), want)


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int32, np.uint8])
@pytest.mark.parametrize("tile", [((128, 256), 256), ((64, 40), 128)], ids=str)
def test_a_matrix_comes_with_the_last_tiles(tile, dtype, depth):
    """Of every size of elements, with room for it in the stages and without, and of a K of fewer tiles than stages."""
    mm = of_kind("float16", *tile[0], tile[1])

    @nd.jit
    def kernel(a, b, c, x, scale, columns, tiles):
        tile = cuda.blockIdx.x
        while tile < tiles:
            i, j = tile // columns, tile % columns
            mm.multiply(a, b, i, j, depth, combine=placed, x=x, args=(scale, np.float32(2))).store(c)
            tile += cuda.gridDim.x

    for m, n, k in [(256, 512, 64), (301, 600, 320), (140, 264, 8), (384, 512, 1024)]:
        product, a, b = operands("float16", m, n, k)
        rng = np.random.default_rng(3)
        x, scale = rng.integers(0, 100, (m, n)).astype(dtype), rng.integers(1, 4, n).astype(np.float32)
        c = empty(m, n)
        (rows, columns), *rest = configuration(mm, m, n, depth)
        spoil()
        on_device = [cuda.to_device(array) for array in (x, scale)]
        kernel[min(5, rows * columns), *rest](a, b, c, *on_device, columns, rows * columns)
        np.testing.assert_array_equal(c.copy_to_host(), product * scale + x + 2.0 * np.arange(m)[:, None])


def middle(x, before, order="C"):
    """``x`` on the GPU inside of a larger matrix of NaN, or the largest integers, so many columns from its left."""
    fill = np.nan if x.dtype.kind == "f" else np.iinfo(x.dtype).max
    whole = np.full((x.shape[0] + 3, x.shape[1] + before + 5), fill, x.dtype, order=order)
    inside = np.s_[2 : 2 + x.shape[0], before : before + x.shape[1]]
    whole[inside] = x
    return cuda.to_device(whole)[inside]


MM = of_kind("float16")


@nd.jit
def combined(a, b, c, x):
    MM.multiply(a, b, cuda.blockIdx.x, cuda.blockIdx.y, combine=plus, x=x).store(c)


@pytest.mark.parametrize("where", ["pitch", "address", "steps", "backwards", "columns", "one row", "broadcast"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_a_matrix_that_tma_cannot_fetch_is_copied(where, dtype):
    """Lines at any address, every second column, from the end, by columns; with the same code where the type is."""
    m, n, k = 200, 520, 192
    product, a, b = operands("float16", m, n, k)
    x = np.random.default_rng(5).integers(0, 100, (m, n)).astype(dtype)
    if where in ("pitch", "address"):
        given = middle(x, 8 if where == "pitch" else 1)
    elif where == "steps":
        given = cuda.to_device(np.repeat(x, 2, axis=1))[:, ::2]
    elif where == "backwards":
        given = cuda.to_device(x[::-1].copy())[::-1]
    elif where == "columns":
        given = middle(np.asfortranarray(x), 1, "F")
    elif where == "one row":
        product, a, b = operands("float16", 1, n, k)
        x, given, m = x[:1], cuda.to_device(x[:1]), 1
    else:
        x = np.broadcast_to(x[0], (m, n))
        line = cuda.to_device(np.ascontiguousarray(x[0]))
        given = cuda.cudadrv.devicearray.DeviceNDArray((m, n), (0, line.strides[0]), line.dtype, gpu_data=line.gpu_data)
    c = empty(m, n)
    spoil()
    combined[configuration(MM, m, n)](a, b, c, given)
    np.testing.assert_array_equal(c.copy_to_host(), product + x)


def test_a_kernel_is_launched_with_one_matrix_after_the_other():
    """On two streams at once. Every launch finds descriptors of others in its slots, or its own of before."""
    shapes = [(256, 512, 64), (200, 300, 72), (640, 256, 128)]
    rng = np.random.default_rng(9)
    cases = []
    for seed, (m, n, k) in enumerate(shapes * 2):
        product, a, b = operands("float16", m, n, k, seed)
        x = rng.integers(0, 100, (m, n)).astype(np.float32)
        cases.append(((m, n), product + x, (a, b, empty(m, n), cuda.to_device(x))))
    streams = [cuda.stream(), cuda.stream()]
    cuda.synchronize()
    for turn in range(40):
        (m, n), _, arrays = cases[turn % len(cases)]
        combined[configuration(MM, m, n, stream=streams[turn % 2])](*arrays)
    cuda.synchronize()
    for _, want, (*_, c, _) in cases:
        np.testing.assert_array_equal(c.copy_to_host(), want)


def test_products_of_two_kinds_and_with_two_matrices_in_one_kernel():
    """Each has slots of its own, or their descriptors would be taken for its own."""
    one, other = of_kind("float16"), of_kind("bfloat16", 128, 128)

    m, n, k = 300, 700, 256
    product, a, b = operands("float16", m, n, k)
    rng = np.random.default_rng(1)
    x, y = rng.integers(0, 100, (2, m, n)).astype(np.float32)
    a_bf16 = a.copy_to_host().astype(ml_dtypes.bfloat16)
    b_bf16 = np.asfortranarray(b.copy_to_host().astype(ml_dtypes.bfloat16))
    shared = max(mm.get_pipeline_storage_size() for mm in (one, other))

    @nd.jit
    def both(a, b, c, d, e, x, y, z):
        i, j = cuda.blockIdx.x, cuda.blockIdx.y
        first = one.multiply(a, b, i, j, combine=plus, x=x)
        first.combine(plus, y).store(c)
        other.multiply(d, e, i, 2 * j, combine=plus, x=x).store(z)
        other.multiply(d, e, i, 2 * j + 1, combine=plus, x=y).store(z)

    c, z = empty(m, n), empty(m, n)
    grid = (-(-m // 128), -(-n // 256))
    both[grid, 256, 0, shared](a, b, c, on_gpu(a_bf16), on_gpu(b_bf16), cuda.to_device(x), cuda.to_device(y), z)
    want = product + np.where(np.arange(n) // 128 % 2 == 0, x, y)
    np.testing.assert_array_equal(c.copy_to_host(), product + x + y)
    np.testing.assert_array_equal(z.copy_to_host(), want)
