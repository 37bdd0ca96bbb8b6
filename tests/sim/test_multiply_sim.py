# SPDX-License-Identifier: Apache-2.0
"""``Matmul.multiply`` on the simulator: whole products, tile by tile, ragged edges included."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from numba import cuda

import nvmath_device as nd
from nvmath_device.errors import KernelExecutionError

MM = nd.Matmul(
    (16, 32, 8), ("float16", "float16", "float32"), "real", arrangement=("row_major", "col_major", "row_major"),
    block_size=32,
)  # fmt: skip


@cuda.jit(device=True)
def relu_bias(value, row, column, bias, scale):
    return max(value + bias[column] * scale[row], np.float32(0))


@nd.jit
def product(a, b, c):
    acc = MM.multiply(a, b, cuda.blockIdx.x, cuda.blockIdx.y)
    acc.store(c)


@nd.jit
def fused(a, b, c, bias, scale):
    acc = MM.multiply(a, b, cuda.blockIdx.x, cuda.blockIdx.y, depth=2)
    acc.map(relu_bias, bias, scale).store(c)


def operands(m, n, k):
    rng = np.random.default_rng(1)
    return rng.uniform(-1, 1, (m, k)).astype(np.float16), rng.uniform(-1, 1, (k, n)).astype(np.float16)


def configuration(m, n):
    return (-(-m // 16), -(-n // 32)), 32, 0, MM.get_pipeline_storage_size()


@pytest.mark.parametrize("shape", [(16, 32, 8), (20, 40, 19), (1, 1, 1), (33, 31, 64)], ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_products_of_any_extents(shape, dtype):
    m, n, _ = shape
    a, b = operands(*shape)
    c = cuda.to_device(np.full((m, n), np.nan, dtype))
    product[configuration(m, n)](cuda.to_device(a), cuda.to_device(b), c)
    want = a.astype(float) @ b.astype(float)
    rounding = ml_dtypes.finfo(dtype).eps / 2
    np.testing.assert_allclose(c.copy_to_host().astype(float), want, rtol=rounding, atol=1e-5)


@pytest.mark.parametrize("order", ["C", "F"])
def test_results_of_two_bytes_inside_of_a_larger_matrix(order):
    """Sums of integers are exact in float32, so that the result is what is nearest to them."""
    m, n, k = 33, 63, 16
    rng = np.random.default_rng(8)
    a, b = (rng.integers(-30, 31, extents).astype(np.float16) for extents in ((m, k), (k, n)))
    want = np.full((m + 2, n + 2), 77, ml_dtypes.bfloat16, order=order)
    whole = cuda.to_device(want.copy(order))
    want[1:-1, 1:-1] = (a.astype(float) @ b.astype(float)).astype(np.float32)
    product[configuration(m, n)](cuda.to_device(a), cuda.to_device(b), whole[1:-1, 1:-1])
    np.testing.assert_array_equal(whole.copy_to_host(), want)


def test_functions_of_elements_know_their_place():
    m, n, k = 20, 40, 16
    a, b = operands(m, n, k)
    bias, scale = np.arange(n, dtype=np.float32) - 20, np.linspace(0, 1, m, dtype=np.float32)
    c = cuda.to_device(np.full((m, n), np.nan, np.float32))
    fused[configuration(m, n)](*map(cuda.to_device, (a, b)), c, *map(cuda.to_device, (bias, scale)))
    want = np.maximum(a.astype(float) @ b.astype(float) + bias * scale[:, None], 0)
    np.testing.assert_allclose(c.copy_to_host(), want, atol=1e-5)


@cuda.jit(device=True)
def scaled_sum(value, element, row, column, scale):
    return value * scale[row] + element


@nd.jit
def overlapped(a, b, c, x, scale, rows, columns):
    pipe = MM.pipeline(a, b)
    tile = cuda.blockIdx.x
    pipe.start(tile % rows, tile // rows)
    while tile < rows * columns:
        acc = pipe.finish()
        tile += cuda.gridDim.x
        if tile < rows * columns:
            pipe.start(tile % rows, tile // rows)
        acc.combine(scaled_sum, x, scale).store(c)
    pipe.destroy()


def test_the_next_tile_comes_while_this_one_is_combined():
    m, n, k = 20, 70, 16
    a, b = operands(m, n, k)
    rng = np.random.default_rng(2)
    x, scale = rng.uniform(-9, 9, (m, n)).astype(np.float32), rng.uniform(0, 1, m).astype(np.float32)
    c = cuda.to_device(np.full((m, n), np.nan, np.float32))
    (rows, columns), *rest = configuration(m, n)
    overlapped[2, *rest](*map(cuda.to_device, (a, b)), c, *map(cuda.to_device, (x, scale)), rows, columns)
    want = a.astype(float) @ b.astype(float) * scale[:, None] + x
    np.testing.assert_allclose(c.copy_to_host(), want, atol=1e-5)


@nd.jit
def at_once(a, b, c, x, scale):
    i, j = cuda.blockIdx.x, cuda.blockIdx.y
    MM.multiply(a, b, i, j, combine=scaled_sum, x=x, args=(scale,)).store(c)


def test_a_call_that_combines_gives_what_combine_does():
    m, n, k = 20, 70, 16
    a, b = operands(m, n, k)
    rng = np.random.default_rng(4)
    x, scale = rng.uniform(-9, 9, (m, n)).astype(np.float32), rng.uniform(0, 1, m).astype(np.float32)
    c = cuda.to_device(np.full((m, n), np.nan, np.float32))
    at_once[configuration(m, n)](*map(cuda.to_device, (a, b)), c, *map(cuda.to_device, (x, scale)))
    want = a.astype(float) @ b.astype(float) * scale[:, None] + x
    np.testing.assert_allclose(c.copy_to_host(), want, atol=1e-5)


def test_a_function_without_its_matrix_is_refused():
    @nd.jit
    def kernel(a, b, c):
        MM.multiply(a, b, cuda.blockIdx.x, cuda.blockIdx.y, combine=scaled_sum).store(c)

    a, b = operands(16, 32, 8)
    with pytest.raises(KernelExecutionError, match="combine, a device function, and x"):
        kernel[configuration(16, 32)](*map(cuda.to_device, (a, b, np.zeros((16, 32), np.float32))))


ROWS = nd.Matmul((16, 32, 8), MM.precision, "real", arrangement=("row_major",) * 3, block_size=32)


@nd.jit
def by_hand(a, b, c):
    """The same tile with a loop of one's own over K."""
    smem_a = nd.shared.array(ROWS.a_size, ROWS.a_value_type)
    smem_b = nd.shared.array(ROWS.b_size, ROWS.b_value_type)
    smem_c = nd.shared.array(ROWS.c_size, ROWS.c_value_type)
    i, j = cuda.blockIdx.x * 16, cuda.blockIdx.y * 32
    for k in range(0, a.shape[1], 8):
        ROWS.load_a(a[i : i + 16, k : k + 8], smem_a)
        ROWS.load_b(b[k : k + 8, j : j + 32], smem_b)
        cuda.syncthreads()
        ROWS.execute(1.0, smem_a, smem_b, 0.0 if k == 0 else 1.0, smem_c)
        cuda.syncthreads()
    ROWS.store_c(smem_c, c[i : i + 16, j : j + 32])


def test_r011_one_call_is_the_whole_loop_over_k():
    """Over whole arrays, a transposed view among them: the numbers of a loop written by hand."""
    m, n, k = 40, 50, 70
    a, b = operands(m, n, k)
    held = np.ascontiguousarray(b.T)
    one_call, loop = (cuda.to_device(np.full((m, n), np.nan, np.float32)) for _ in range(2))
    product[configuration(m, n)](cuda.to_device(a), cuda.to_device(held).T, one_call)
    by_hand[configuration(m, n)[0], 32](cuda.to_device(a), cuda.to_device(b), loop)
    np.testing.assert_allclose(one_call.copy_to_host(), loop.copy_to_host(), atol=1e-5)
    np.testing.assert_allclose(loop.copy_to_host(), a.astype(float) @ b.astype(float), atol=1e-5)


def start_twice(pipe):
    pipe.start(0, 0)
    pipe.start(0, 0)


def multiply_between(pipe):
    pipe.start(0, 0)
    pipe.multiply(0, 0)


@pytest.mark.parametrize(
    ("calls", "words"),
    [
        (lambda pipe: pipe.finish(), "without start"),
        (start_twice, "between start"),
        (multiply_between, "between start"),
    ],
)
def test_a_tile_is_started_once_and_finished(calls, words):
    @nd.jit
    def kernel(a, b):
        calls(MM.pipeline(a, b))

    a, b = operands(16, 32, 8)
    with pytest.raises(KernelExecutionError, match=words):
        kernel[1, 32, 0, MM.get_pipeline_storage_size()](cuda.to_device(a), cuda.to_device(b))


def test_each_thread_holds_its_share():
    sizes = cuda.to_device(np.zeros(32, np.int64))

    @cuda.jit
    def kernel(a, b, sizes):
        sizes[cuda.threadIdx.x] = MM.multiply(a, b, 0, 0).size

    a, b = operands(16, 32, 8)
    kernel[1, 32, 0, MM.get_pipeline_storage_size()](cuda.to_device(a), cuda.to_device(b), sizes)
    assert (sizes.copy_to_host() == 16).all()


@pytest.mark.parametrize(("block", "k_of_b", "words"), [(64, 8, "32 threads"), (32, 9, r"a \(M, K\) and b \(K, N\)")])
def test_mistakes_are_named(block, k_of_b, words):
    a, _ = operands(16, 32, 8)
    _, b = operands(16, 32, k_of_b)
    c = cuda.to_device(np.zeros((16, 32), np.float32))
    with pytest.raises(KernelExecutionError, match=words):
        product[1, block](cuda.to_device(a), cuda.to_device(b), c)


@nd.jit
def persistent(a, b, c, rows, columns):
    pipe = MM.pipeline(a, b)
    for tile in range(cuda.blockIdx.x, rows * columns, cuda.gridDim.x):
        pipe.multiply(tile % rows, tile // rows).store(c)
    pipe.destroy()


def test_a_pipeline_serves_several_tiles():
    m, n, k = 40, 70, 24
    a, b = operands(m, n, k)
    c = cuda.to_device(np.full((m, n), np.nan, np.float32))
    _, block, stream, shared = configuration(m, n)
    persistent[2, block, stream, shared](cuda.to_device(a), cuda.to_device(b), c, 3, 3)
    np.testing.assert_allclose(c.copy_to_host(), a.astype(float) @ b.astype(float), atol=1e-5)


def test_a_destroyed_pipeline_is_noticed():
    @cuda.jit
    def kernel(a, b, c):
        pipe = MM.pipeline(a, b)
        pipe.destroy()
        pipe.multiply(0, 0).store(c)

    a, b = operands(16, 32, 8)
    with pytest.raises(KernelExecutionError, match="after destroy"):
        kernel[1, 32](cuda.to_device(a), cuda.to_device(b), cuda.to_device(np.zeros((16, 32), np.float32)))
