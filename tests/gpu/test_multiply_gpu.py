# SPDX-License-Identifier: Apache-2.0
"""``Matmul.multiply`` on a GPU: whole products of every extent, one tile a block, against float64."""

from __future__ import annotations

import threading

import ml_dtypes
import numpy as np
import pytest
from numba import cuda

import nvmath_device as nd
from nvmath_device.errors import LaunchError
from tests.gpu.spoiled import spoil

ROW, COL = "row_major", "col_major"
TYPES = ("float16", "float16", "float32")
FAST = nd.Matmul((128, 256, 64), TYPES, "real", arrangement=(ROW, COL, ROW), block_size=256, alignment=nd.MAX_ALIGNMENT)
ANY_ADDRESS = nd.Matmul((64, 64, 32), TYPES, "real", arrangement=(ROW, ROW, ROW), block_size=128)
SINGLE = nd.Matmul(
    (128, 128, 16), "float32", "real", arrangement=(ROW,) * 3, block_size=256, alignment=nd.MAX_ALIGNMENT
)
DOUBLE = nd.Matmul((64, 96, 16), "float64", "real", arrangement=(COL, COL, COL), block_size=96)
# Each thread has as many pieces of 16 bytes of A and B, unlike DOUBLE: another loop over K, where addresses allow it.
DOUBLE_ROWS, DOUBLE_ALONG_MN = (
    nd.Matmul((128, 64, 16), "float64", "real", arrangement=order, block_size=256, alignment=nd.MAX_ALIGNMENT)
    for order in ((ROW, ROW, ROW), (COL, ROW, ROW))
)
BOUND = 1e-5  # norm-wise; sums of float32 products over K up to 4096


@cuda.jit(device=True)
def relu_bias(value, row, column, bias, scale):
    return max(value + bias[column] * scale[row], np.float32(0))


def kernels_of(mm):
    @nd.jit
    def product(a, b, c):
        acc = mm.multiply(a, b, cuda.blockIdx.x, cuda.blockIdx.y)
        acc.store(c)

    @nd.jit
    def fused(a, b, c, bias, scale):
        acc = mm.multiply(a, b, cuda.blockIdx.x, cuda.blockIdx.y).map(relu_bias, bias, scale)
        acc.store(c)

    return product, fused


KERNELS = {
    name: (mm, *kernels_of(mm))
    for name, mm in {
        "fast": FAST,
        "any address": ANY_ADDRESS,
        "single": SINGLE,
        "double": DOUBLE,
        "double rows": DOUBLE_ROWS,
        "double along mn": DOUBLE_ALONG_MN,
    }.items()
}


def surrounded(x, by):
    """``x`` on the device in the middle of a larger matrix of ``by``; returns both."""
    rows, columns = ((extent + 7) // 8 * 8 + 16 for extent in x.shape)
    order = "F" if x.flags.f_contiguous and not x.flags.c_contiguous else "C"
    host = np.full((rows, columns), by, x.dtype, order=order)
    host[8 : 8 + x.shape[0], 8 : 8 + x.shape[1]] = x
    whole = cuda.to_device(host)
    return whole, whole[8 : 8 + x.shape[0], 8 : 8 + x.shape[1]]


def configuration(mm, m, n, stream=0):
    grid = (-(-m // mm.size.m), -(-n // mm.size.n))
    return grid, mm.block_dim, stream, mm.get_pipeline_storage_size()


def operands(mm, m, n, k, seed=0):
    rng = np.random.default_rng(seed)
    a, b = (rng.uniform(-1, 1, shape).astype(mm.a_value_type) for shape in ((m, k), (k, n)))
    if mm.arrangement.a == COL:
        a = np.asfortranarray(a)
    if mm.arrangement.b == COL:
        b = np.asfortranarray(b)
    return a, b


def error(got, want):
    return np.linalg.norm(got - want) / np.linalg.norm(want)


FAST_SHAPES = [(128, 256, 64), (1000, 500, 1504), (129, 264, 72), (1, 2, 8), (130, 1030, 2048), (4096, 520, 128)]
ANY_SHAPES = [(1000, 500, 1500), (257, 255, 259), (1, 1, 1), (64, 64, 1), (65, 33, 31), (300, 200, 4099)]
DOUBLES = ("double", "double rows", "double along mn")
ODD_SHAPES = [(1000, 500, 1500), (132, 68, 20), (4097, 4095, 4099), (128, 96, 2)]


@pytest.mark.parametrize(
    ("kind", "shape"),
    [("fast", s) for s in FAST_SHAPES]
    + [("any address", s) for s in ANY_SHAPES]
    + [(kind, s) for kind in ("any address", "single", *DOUBLES) for s in ODD_SHAPES],
    ids=str,
)
def test_products_of_any_extents(kind, shape):
    """Nothing outside of the matrices is read, nor is anything left in shared memory; nothing outside is written."""
    mm, product, _ = KERNELS[kind]
    m, n, k = shape
    a, b = operands(mm, m, n, k)
    (_, on_gpu_a), (_, on_gpu_b) = surrounded(a, np.nan), surrounded(b, np.nan)
    whole, c = surrounded(np.full((m, n), np.nan, mm.c_value_type, order="F" if kind == "double" else "C"), 77)
    spoil()
    product[configuration(mm, m, n)](on_gpu_a, on_gpu_b, c)
    want = a.astype(float) @ b.astype(float)
    got = whole.copy_to_host()
    assert error(got[8 : 8 + m, 8 : 8 + n], want) < (1e-13 if kind in DOUBLES else BOUND)
    assert (got == 77).sum() == got.size - m * n


def test_every_block_fetches_from_its_own_matrices():
    """A block's descriptors lie where those of other matrices were a moment before."""
    rng = np.random.default_rng(3)
    a, b = (rng.integers(-4, 5, (4000, lines, 64)).astype(np.float16) for lines in (128, 256))
    want = a.astype(np.float32) @ b.astype(np.float32).transpose(0, 2, 1)

    @nd.jit
    def products(a, b, c):
        of = cuda.blockIdx.x
        FAST.multiply(a[of], b[of].T, 0, 0).store(c[of])

    on_gpu = cuda.to_device(a), cuda.to_device(b)
    c = cuda.to_device(np.full(want.shape, np.nan, np.float32))
    for _ in range(5):
        products[len(a), FAST.block_dim, 0, FAST.get_pipeline_storage_size()](*on_gpu, c)
        wrong = np.flatnonzero((c.copy_to_host() != want).any((1, 2)))
        assert wrong.size == 0


@nd.jit
def by_hand(a, b, c):
    """A tile of ANY_ADDRESS with a loop of one's own over K."""
    smem_a = nd.shared.array(ANY_ADDRESS.a_size, ANY_ADDRESS.a_value_type)
    smem_b = nd.shared.array(ANY_ADDRESS.b_size, ANY_ADDRESS.b_value_type)
    smem_c = nd.shared.array(ANY_ADDRESS.c_size, ANY_ADDRESS.c_value_type)
    i, j = cuda.blockIdx.x * 64, cuda.blockIdx.y * 64
    for k in range(0, a.shape[1], 32):
        ANY_ADDRESS.load_a(a[i : i + 64, k : k + 32], smem_a)
        ANY_ADDRESS.load_b(b[k : k + 32, j : j + 64], smem_b)
        cuda.syncthreads()
        ANY_ADDRESS.execute(1.0, smem_a, smem_b, 0.0 if k == 0 else 1.0, smem_c)
        cuda.syncthreads()
    ANY_ADDRESS.store_c(smem_c, c[i : i + 64, j : j + 64])


@pytest.mark.parametrize("kind", ["fast", "any address"])
def test_r011_one_call_is_the_whole_loop_over_k(kind):
    """512 x 512 x 2048: the numbers of a loop written by hand, b being a transposed view for the fast tile."""
    mm, product, _ = KERNELS[kind]
    a, b = operands(mm, 512, 512, 2048)
    one_call, loop = (cuda.to_device(np.full((512, 512), np.nan, np.float32)) for _ in range(2))
    product[configuration(mm, 512, 512)](cuda.to_device(a), cuda.to_device(b), one_call)
    by_hand[(8, 8), 128](cuda.to_device(a), cuda.to_device(np.ascontiguousarray(b)), loop)
    assert error(one_call.copy_to_host(), loop.copy_to_host()) < BOUND
    assert error(loop.copy_to_host(), a.astype(float) @ b.astype(float)) < BOUND


@pytest.mark.parametrize("kind", ["fast", "any address"])
def test_functions_of_elements_know_their_place(kind):
    mm, _, fused = KERNELS[kind]
    m, n, k = 300, 600, 128
    a, b = operands(mm, m, n, k)
    rng = np.random.default_rng(5)
    bias, scale = rng.uniform(-9, 9, n).astype(np.float32), rng.uniform(0, 1, m).astype(np.float32)
    c = cuda.to_device(np.full((m, n), np.nan, np.float32))
    fused[configuration(mm, m, n)](*map(cuda.to_device, (a, b)), c, *map(cuda.to_device, (bias, scale)))
    want = np.maximum(a.astype(float) @ b.astype(float) + bias * scale[:, None].astype(float), 0)
    assert error(c.copy_to_host(), want) < BOUND


@pytest.mark.parametrize("kind", ["fast", "any address"])
@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_results_of_other_types_and_strides(kind, dtype):
    mm, product, _ = KERNELS[kind]
    m, n, k = 150, 300, 64
    a, b = operands(mm, m, n, k)
    want = a.astype(float) @ b.astype(float)
    bound = 1e-3 if dtype == np.float16 else BOUND
    held = cuda.to_device(np.full((m, n), np.nan, dtype, order="F"))
    product[configuration(mm, m, n)](cuda.to_device(a), cuda.to_device(b), held)
    assert error(held.copy_to_host(), want) < bound
    held = cuda.to_device(np.full((m, 2 * n), np.nan, dtype))
    product[configuration(mm, m, n)](cuda.to_device(a), cuda.to_device(b), held[:, ::2])
    got = held.copy_to_host()
    assert error(got[:, ::2], want) < bound
    assert np.isnan(got[:, 1::2]).all()


# Of C inside of a larger matrix: order, columns to the left, and whether the pitch is an odd number of elements.
PLACES = {
    "words": ("C", 2, False),
    "odd address": ("C", 1, False),
    "odd pitch": ("C", 2, True),
    "columns": ("F", 2, False),
}


@pytest.mark.parametrize("kind", ["fast", "any address"])
@pytest.mark.parametrize("shape", [(256, 512, 128), (301, 601, 128)], ids=str)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("place", PLACES)
def test_results_of_two_bytes_are_rounded_once_wherever_they_are(kind, shape, dtype, place):
    """Bit for bit: sums of integers are exact in float32, and many have more bits than the result."""
    mm, product, _ = KERNELS[kind]
    (m, n, k), (order, left, is_odd) = shape, PLACES[place]
    rng = np.random.default_rng(8)
    a, b = (rng.integers(-30, 31, extents).astype(np.float16) for extents in ((m, k), (k, n)))
    exact = a.astype(float) @ b.astype(float)
    want = np.full((m + 3, n + n % 2 + 4 + is_odd), 0x7777, np.uint16, order=order)
    inside = slice(1, 1 + m), slice(left, left + n)
    bits = cuda.to_device(want)  # Numba copies no bfloat16 arrays, but views others as such
    want[inside] = exact.astype(np.float32).astype(dtype).view(np.uint16)
    assert (exact != exact.astype(dtype).astype(float)).mean() > 0.25
    b = np.asfortranarray(b) if mm.arrangement.b == COL else b
    product[configuration(mm, m, n)](cuda.to_device(a), cuda.to_device(b), bits.view(dtype)[inside])
    np.testing.assert_array_equal(bits.copy_to_host(), want)


@cuda.jit(device=True)
def scaled_sum(value, element, row, column, scale):
    return value * scale[row] + element


@pytest.mark.parametrize("kind", ["fast", "any address"])
@pytest.mark.parametrize("shape", [(256, 512, 64), (300, 600, 128)], ids=str)
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_matrix_of_the_result_s_shape_is_combined_with(kind, shape, order):
    mm = KERNELS[kind][0]

    @nd.jit
    def kernel(a, b, c, x, scale):
        acc = mm.multiply(a, b, cuda.blockIdx.x, cuda.blockIdx.y)
        acc.combine(scaled_sum, x, scale).store(c)

    m, n, k = shape
    a, b = operands(mm, m, n, k)
    rng = np.random.default_rng(6)
    x, scale = rng.uniform(-9, 9, (m, n)).astype(np.float32, order=order), rng.uniform(0, 1, m).astype(np.float32)
    _, on_gpu_x = surrounded(x, np.nan)
    c = cuda.to_device(np.full((m, n), np.nan, np.float32))
    kernel[configuration(mm, m, n)](*map(cuda.to_device, (a, b)), c, on_gpu_x, cuda.to_device(scale))
    assert error(c.copy_to_host(), a.astype(float) @ b.astype(float) * scale[:, None] + x) < BOUND


@cuda.jit(device=True)
def plus(value, element, row, column):
    return value + element


@pytest.mark.parametrize("kind", ["fast", "any address", "single"])
@pytest.mark.parametrize("shape", [(256, 512, 64), (301, 601, 64)], ids=str)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int32, np.uint8])
def test_a_block_combines_one_tile_after_the_other_with_two_matrices(kind, shape, dtype):
    """Exactly, as sums of small integers are. The second matrix and the next tile come to where the first one was."""
    mm = KERNELS[kind][0]

    @nd.jit
    def kernel(a, b, c, x, y, columns, tiles):
        tile = cuda.blockIdx.x
        while tile < tiles:
            acc = mm.multiply(a, b, tile // columns, tile % columns)
            acc.combine(plus, x).combine(plus, y).store(c)
            tile += cuda.gridDim.x

    m, n, k = shape
    rng = np.random.default_rng(11)
    a, b = (rng.integers(-4, 5, extents).astype(mm.precision.a.dtype) for extents in ((m, k), (k, n)))
    x, y = rng.integers(0, 100, (2, m, n)).astype(dtype)
    y = np.asfortranarray(y)
    c = cuda.to_device(np.full((m, n), np.nan, np.float32))
    ordered = (a, np.asfortranarray(b) if mm.arrangement.b == COL else b)
    (rows, columns), *rest = configuration(mm, m, n)
    spoil()
    kernel[min(3, rows * columns), *rest](
        *map(cuda.to_device, ordered), c, *map(cuda.to_device, (x, y)), columns, rows * columns
    )
    np.testing.assert_array_equal(c.copy_to_host(), a.astype(float) @ b.astype(float) + x + y)


@pytest.mark.parametrize("kind", ["fast", "single"])
def test_the_next_tile_comes_while_this_one_is_combined(kind):
    """Into the stages, where no other matrix must be then."""
    mm = KERNELS[kind][0]
    depth = 4

    @nd.jit
    def kernel(a, b, c, x, columns, tiles):
        pipe = mm.pipeline(a, b, depth)
        tile = cuda.blockIdx.x
        if tile < tiles:
            pipe.start(tile // columns, tile % columns)
        while tile < tiles:
            acc = pipe.finish()
            following = tile + cuda.gridDim.x
            if following < tiles:
                pipe.start(following // columns, following % columns)
            acc.combine(plus, x).store(c)
            tile = following
        pipe.destroy()

    m, n, k = 600, 700, 320
    rng = np.random.default_rng(12)
    a, b = (rng.integers(-4, 5, extents).astype(mm.precision.a.dtype) for extents in ((m, k), (k, n)))
    x = rng.integers(0, 100, (m, n)).astype(np.float32)
    c = cuda.to_device(np.full((m, n), np.nan, np.float32))
    ordered = (a, np.asfortranarray(b) if mm.arrangement.b == COL else b)
    (rows, columns), *rest = configuration(mm, m, n)
    kernel[3, *rest[:2], mm.get_pipeline_storage_size(depth)](
        *map(cuda.to_device, ordered), c, cuda.to_device(x), columns, rows * columns
    )
    np.testing.assert_array_equal(c.copy_to_host(), a.astype(float) @ b.astype(float) + x)


def test_operands_that_are_parts_of_larger_matrices():
    mm, product, _ = KERNELS["fast"]
    m, n, k = 200, 300, 136
    a, b = operands(mm, m + 16, n + 16, k + 64)
    whole_a, whole_b = cuda.to_device(a), cuda.to_device(b)
    c = cuda.to_device(np.full((m, n), np.nan, np.float32))
    product[configuration(mm, m, n)](whole_a[8 : m + 8, 8 : k + 8], whole_b[8 : k + 8, 8 : n + 8], c)
    want = a[8 : m + 8, 8 : k + 8].astype(float) @ b[8 : k + 8, 8 : n + 8].astype(float)
    assert error(c.copy_to_host(), want) < BOUND


def test_many_launches_at_once():
    """Blocks of different products share the device: none sees another's matrices."""
    mm, product, _ = KERNELS["fast"]
    m, n, k = 520, 776, 256
    given = [operands(mm, m, n, k, seed) for seed in range(8)]
    on_gpu = [tuple(map(cuda.to_device, pair)) for pair in given]
    results = [cuda.to_device(np.full((m, n), np.nan, np.float32)) for _ in given]
    streams = [cuda.stream() for _ in given]
    cuda.synchronize()

    def launch(which):
        for _ in range(20):
            product[configuration(mm, m, n, streams[which])](*on_gpu[which], results[which])

    threads = [threading.Thread(target=launch, args=(which,)) for which in range(len(given))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cuda.synchronize()
    for (a, b), c in zip(given, results, strict=True):
        assert error(c.copy_to_host(), a.astype(float) @ b.astype(float)) < BOUND


def test_too_little_shared_memory_and_another_block_are_refused():
    mm, product, _ = KERNELS["fast"]
    a, b = operands(mm, 128, 256, 64)
    arrays = (cuda.to_device(a), cuda.to_device(b), cuda.device_array((128, 256), np.float32))
    with pytest.raises(LaunchError, match="196,672"):
        product[1, 256, 0, 196_671](*arrays)
    with pytest.raises(LaunchError, match="256"):
        product[1, 128, 0, 196_672](*arrays)


def test_a_second_product_in_one_kernel():
    mm = FAST

    @nd.jit
    def twice(a, b, c, d):
        i, j = cuda.blockIdx.x, cuda.blockIdx.y
        mm.multiply(a, b, i, j).store(c)
        mm.multiply(a, b, i, j).store(d)

    m, n, k = 256, 512, 192
    a, b = operands(mm, m, n, k)
    c, d = (cuda.to_device(np.full((m, n), np.nan, np.float32)) for _ in range(2))
    twice[configuration(mm, m, n)](cuda.to_device(a), cuda.to_device(b), c, d)
    want = a.astype(float) @ b.astype(float)
    assert error(c.copy_to_host(), want) < BOUND
    assert error(d.copy_to_host(), want) < BOUND


@pytest.mark.parametrize("kind", ["fast", "any address"])
def test_the_next_tile_comes_during_the_epilog(kind):
    mm = KERNELS[kind][0]

    @nd.jit
    def persistent(a, b, c, bias, scale, rows, columns):
        pipe = mm.pipeline(a, b)
        tile = cuda.blockIdx.x
        pipe.start(tile % rows, tile // rows)
        while tile < rows * columns:
            acc = pipe.finish()
            tile += cuda.gridDim.x
            if tile < rows * columns:
                pipe.start(tile % rows, tile // rows)
            acc.map(relu_bias, bias, scale).store(c)
        pipe.destroy()

    m, n, k = 1100, 1900, 448
    a, b = operands(mm, m, n, k)
    rng = np.random.default_rng(5)
    bias, scale = rng.uniform(-9, 9, n).astype(np.float32), rng.uniform(0, 1, m).astype(np.float32)
    want = np.maximum(a.astype(float) @ b.astype(float) + bias * scale[:, None].astype(float), 0)
    (rows, columns), *rest = configuration(mm, m, n)
    arguments = [cuda.to_device(x) for x in (a, b, np.full((m, n), np.nan, np.float32), bias, scale)]
    for blocks in (1, 7, rows * columns):
        arguments[2].copy_to_device(np.full((m, n), np.nan, np.float32))
        spoil()
        persistent[blocks, *rest](*arguments, rows, columns)
        assert error(arguments[2].copy_to_host(), want) < BOUND


@pytest.mark.parametrize("kind", ["fast", "any address"])
def test_blocks_that_compute_several_tiles(kind):
    mm = KERNELS[kind][0]

    @nd.jit
    def persistent(a, b, c, rows, columns):
        pipe = mm.pipeline(a, b)
        for tile in range(cuda.blockIdx.x, rows * columns, cuda.gridDim.x):
            pipe.multiply(tile % rows, tile // rows).store(c)
        pipe.destroy()

    m, n, k = 1100, 1900, 448
    a, b = operands(mm, m, n, k)
    c = cuda.to_device(np.full((m, n), np.nan, np.float32))
    (rows, columns), *rest = configuration(mm, m, n)
    for blocks in (1, 7, rows * columns):
        c.copy_to_device(np.full((m, n), np.nan, np.float32))
        persistent[blocks, *rest](cuda.to_device(a), cuda.to_device(b), c, rows, columns)
        assert error(c.copy_to_host(), a.astype(float) @ b.astype(float)) < BOUND


@pytest.mark.parametrize("kind", ["fast", "any address"])
def test_in_a_kernel_of_numba_alone(kind):
    """Which is linked for every chip of the capability: no TMA, whose descriptors such a kernel cannot edit."""
    mm, _, _ = KERNELS[kind]

    @cuda.jit
    def product(a, b, c):
        mm.multiply(a, b, cuda.blockIdx.x, cuda.blockIdx.y).store(c)

    a, b = operands(mm, 200, 304, 136)
    c = cuda.to_device(np.full((200, 304), np.nan, np.float32))
    product[configuration(mm, 200, 304)](cuda.to_device(a), cuda.to_device(b), c)
    assert error(c.copy_to_host(), a.astype(float) @ b.astype(float)) < BOUND
