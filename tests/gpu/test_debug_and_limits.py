# SPDX-License-Identifier: Apache-2.0
"""What a launch may not do, and what it may: checks under debug=True, dynamic shared memory above 48 KiB."""

from __future__ import annotations

import numpy as np
import pytest
from numba import cuda

import nvmath_device as nd


def gemm(n=16, threads=32):
    return nd.Matmul(
        size=(n, n, n), precision="float32", data_type="real", arrangement=("row_major",) * 3, block_size=threads
    )


def test_debug_notices_a_wrong_block():
    mm = gemm()

    @cuda.jit(debug=True, opt=False)
    def kernel(x):
        a = nd.shared.array(mm.a_size, np.float32)
        mm.load_a(x, a)
        cuda.syncthreads()
        mm.execute(1.0, a, a, 0.0, a)

    x = cuda.to_device(np.ones((16, 16), np.float32))
    kernel[1, 32](x)
    cuda.synchronize()
    with pytest.raises(nd.errors.KernelExecutionError, match="32 threads"):
        kernel[1, 64](x)


def test_debug_notices_short_and_misplaced_operands():
    mm = gemm()
    too_few = mm.a_size - 1

    @cuda.jit(debug=True, opt=False)
    def short(x):
        a = nd.shared.array(too_few, np.float32)
        b = nd.shared.array(mm.b_size, np.float32)
        c = nd.shared.array(mm.c_size, np.float32)
        mm.execute(1.0, a, b, 0.0, c)

    @cuda.jit(debug=True, opt=False)
    def outside(x):
        b = nd.shared.array(mm.b_size, np.float32)
        c = nd.shared.array(mm.c_size, np.float32)
        mm.execute(1.0, x, b, 0.0, c)

    @cuda.jit(debug=True, opt=False)
    def misshapen(x):
        a = nd.shared.array((16, 17), np.float32)
        b = nd.shared.array(mm.b_size, np.float32)
        c = nd.shared.array(mm.c_size, np.float32)
        mm.execute(1.0, a, b, 0.0, c)

    x = cuda.to_device(np.ones(256, np.float32))
    with pytest.raises(nd.errors.KernelExecutionError, match="a is shorter than the 1024 bytes"):
        short[1, 32](x)
    with pytest.raises(nd.errors.KernelExecutionError, match="a is not in shared memory"):
        outside[1, 32](x)
    with pytest.raises(nd.errors.KernelExecutionError, match="a is not 16 x 16"):
        misshapen[1, 32](x)


def test_debug_notices_misaligned_and_overlapping_operands():
    mm = nd.Matmul((16, 16, 16), "float32", "real", arrangement=("row_major",) * 3, block_size=32, alignment=(16, 4, 4))
    one_more = mm.a_size + 1

    @cuda.jit(debug=True, opt=False)
    def misaligned(x):
        a = nd.shared.array(one_more, np.float32)
        b = nd.shared.array(mm.b_size, np.float32)
        c = nd.shared.array(mm.c_size, np.float32)
        mm.execute(1.0, a[1:], b, 0.0, c)

    @cuda.jit(debug=True, opt=False)
    def backwards(x):
        a = nd.shared.array((16, 16), np.float32)
        b = nd.shared.array(mm.b_size, np.float32)
        c = nd.shared.array(mm.c_size, np.float32)
        mm.execute(1.0, a[::-1], b, 0.0, c)

    @cuda.jit(debug=True, opt=False)
    def wide(x):
        a = nd.shared.array(mm.a_size, np.float32)
        b = nd.shared.array(mm.b_size, np.float32)
        c = nd.shared.array(mm.c_size, np.float32)
        mm.execute(1.0, a, 16, b, 17, 0.0, c, 16)

    x = cuda.to_device(np.ones(256, np.float32))
    with pytest.raises(nd.errors.KernelExecutionError, match="a is not at a multiple of 16 bytes"):
        misaligned[1, 32](x)
    with pytest.raises(nd.errors.KernelExecutionError, match="the rows of a overlap, run backwards"):
        backwards[1, 32](x)
    with pytest.raises(nd.errors.KernelExecutionError, match="b is too short for its ldb"):
        wide[1, 32](x)


def test_a_gemm_of_1024_threads_starts():
    """It would take 89 registers a thread, and a block has 64 for each of 1024 threads."""
    n = 128
    mm = nd.Matmul((n, n, n), "float32", "real", arrangement=("row_major",) * 3, block_size=1024)

    @cuda.jit
    def kernel(x, y):
        smem = nd.shared.array(0, np.float32)
        a, b, c = smem[: n * n], smem[n * n : 2 * n * n], smem[2 * n * n : 3 * n * n]
        mm.load_a(x, a)
        mm.load_b(x, b)
        cuda.syncthreads()
        mm.execute(1.0, a, b, 0.0, c)
        cuda.syncthreads()
        mm.store_c(c, y)

    x = np.random.default_rng(0).standard_normal((n, n)).astype(np.float32)
    y = cuda.to_device(np.zeros_like(x))
    kernel[1, 1024, 0, mm.get_shared_storage_size()](cuda.to_device(x), y)
    expected = x.astype(np.float64) @ x
    assert np.linalg.norm(y.copy_to_host() - expected) / np.linalg.norm(expected) < 1e-6


@pytest.mark.parametrize("size", [4096, 8192])
def test_r016_ffts_above_48_kib_just_launch(size):
    fft = nd.FFT(size=size, precision="float64", fft_type="c2c", direction="forward", execution="Block")
    words = -(-fft.shared_storage_size // 16)
    assert fft.shared_storage_size > 48 * 1024

    @cuda.jit
    def kernel(x, y):
        data = nd.shared.array(0, np.complex128)
        fft.load_shared(x, data)
        cuda.syncthreads()
        fft.execute(data)
        cuda.syncthreads()
        fft.store_shared(data, y)

    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, size)) + 1j * rng.standard_normal((1, size))
    y = cuda.to_device(np.zeros_like(x))
    kernel[1, tuple(fft.block_dim), 0, words * 16](cuda.to_device(x), y)
    expected = np.fft.fft(x)
    assert np.linalg.norm(y.copy_to_host() - expected) / np.linalg.norm(expected) < 2.0**-53 * 2 * np.log2(size)


def test_r016_an_fft_above_the_maximum_is_refused_with_the_limit():
    with pytest.raises(nd.errors.InvalidArgumentError, match="16384"):
        nd.FFT(size=65536, precision="float64", fft_type="c2c", direction="forward", execution="Block")


def test_r028_a_gemm_at_the_limit_of_shared_memory():
    n = 98
    mm = nd.Matmul(
        size=(n, n, n), precision="float64", data_type="real", arrangement=("row_major",) * 3, block_size=256
    )
    need = mm.get_shared_storage_size()
    assert need == 230_496

    @cuda.jit
    def kernel(x, y):
        smem = nd.shared.array(0, np.float64)
        a, b, c = smem[: n * n], smem[n * n : 2 * n * n], smem[2 * n * n : 3 * n * n]
        mm.load_a(x, a)
        mm.load_b(x, b)
        cuda.syncthreads()
        mm.execute(1.0, a, b, 0.0, c)
        cuda.syncthreads()
        mm.store_c(c, y)

    x = np.random.default_rng(0).standard_normal((n, n))
    y = cuda.to_device(np.zeros_like(x))
    kernel[1, 256, 0, need](cuda.to_device(x), y)
    np.testing.assert_allclose(y.copy_to_host(), x @ x, rtol=0, atol=1e-12)
