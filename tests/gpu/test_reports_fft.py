# SPDX-License-Identifier: Apache-2.0
"""Cases people reported of FFTs inside kernels, each on a GPU. The ids are those of tests/reports.json."""

from __future__ import annotations

import numpy as np
import pytest
from numba import cuda

import nvmath_device as nd


def c2c(size, precision="float32", direction="forward", **more):
    return nd.FFT(size=size, precision=precision, fft_type="c2c", direction=direction, execution="Block", **more)


def transform(fft, *, inverse=None):
    """A kernel of load, FFT (and inverse), store."""
    back = inverse or fft
    twice = inverse is not None

    @cuda.jit
    def kernel(x, y):
        data = cuda.local.array(fft.storage_size, fft.value_type)
        scratch = nd.shared.array(0, np.uint8)
        fft.load(x, data)
        fft.execute(data, scratch)
        if twice:
            cuda.syncthreads()
            back.execute(data, scratch)
        fft.store(data, y)

    return kernel


def apply(fft, x, *, inverse=None):
    y = cuda.to_device(np.full_like(x, np.nan))
    scratch = max(f.shared_memory_size for f in (fft, inverse or fft))
    transform(fft, inverse=inverse)[-(-len(x) // fft.ffts_per_block), tuple(fft.block_dim), 0, scratch](
        cuda.to_device(x), y
    )
    return y.copy_to_host()


def signals(rng, shape, kind=np.complex64):
    return (rng.uniform(-1, 1, shape) + 1j * rng.uniform(-1, 1, shape)).astype(kind)


def relative(got, expected):
    return np.linalg.norm(got - expected) / np.linalg.norm(expected)


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_r015_one_factory_many_lengths(precision):
    kind = np.complex64 if precision == "float32" else np.complex128
    ffts = {size: c2c(size, precision) for size in (64, 128, 256, 512, 4096)}
    rng = np.random.default_rng(15)
    for size in (512, 64, 4096, 128, 256, 64):
        x = signals(rng, (3, size), kind)
        assert relative(apply(ffts[size], x), np.fft.fft(x.astype(complex))) < 30 * np.finfo(kind).eps


def test_r018_last_and_first_axis_of_a_3d_array():
    fft = c2c(128, ffts_per_block=4)
    first = c2c(4, ffts_per_block=4)

    @cuda.jit
    def kernel(x, last, along):
        data = cuda.local.array(fft.storage_size, fft.value_type)
        scratch = nd.shared.array(fft.shared_memory_size, np.uint8)
        i = cuda.blockIdx.x
        fft.load(x[i], data, cuda.threadIdx.y)
        fft.execute(data, scratch)
        fft.store(data, last[i], cuda.threadIdx.y)

    @cuda.jit
    def kernel_first(x, along):
        data = cuda.local.array(first.storage_size, first.value_type)
        scratch = nd.shared.array(0, np.uint8)
        j = cuda.blockIdx.x % x.shape[1]
        start = cuda.blockIdx.x // x.shape[1] * 4 + cuda.threadIdx.y
        first.load(x[:, j].T, data, start)
        first.execute(data, scratch)
        first.store(data, along[:, j].T, start)

    x = signals(np.random.default_rng(18), (4, 4, 128))
    last, along = (cuda.to_device(np.zeros_like(x)) for _ in range(2))
    kernel[4, tuple(fft.block_dim)](cuda.to_device(x), last, along)
    kernel_first[4 * 32, tuple(first.block_dim), 0, first.shared_memory_size](cuda.to_device(x), along)
    assert relative(last.copy_to_host(), np.fft.fft(x.astype(complex), axis=2)) < 1e-6
    assert relative(along.copy_to_host(), np.fft.fft(x.astype(complex), axis=0)) < 1e-6


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("exponent", [4, 7, 10, 12, 14])
def test_r019_accuracy_does_not_drift_and_nothing_is_scaled(precision, exponent):
    size = 2**exponent
    kind = np.complex64 if precision == "float32" else np.complex128
    x = signals(np.random.default_rng(19), (2, size), kind)
    forward, backward = c2c(size, precision), c2c(size, precision, "inverse")
    assert relative(apply(forward, x), np.fft.fft(x.astype(complex))) < np.finfo(kind).eps * exponent
    assert relative(apply(forward, x, inverse=backward), size * x.astype(complex)) < 2 * np.finfo(kind).eps * exponent


def test_r020_real_3d_fft_of_one_block():
    """8 x 8 x 8: r2c along the last axis, c2c along the other two, by a block of 64 threads."""
    real = nd.FFT(size=8, precision="float32", fft_type="r2c", execution="Thread")
    whole = nd.FFT(size=8, precision="float32", fft_type="c2c", direction="forward", execution="Thread")
    assert (real.input_length, real.output_length) == (8, 5)

    @cuda.jit
    def kernel(x, y):
        s = nd.shared.array((8, 8, 5), np.complex64)
        data = cuda.local.array(whole.storage_size, np.complex64)
        rows = cuda.local.array(real.storage_size, real.value_type)
        i = cuda.threadIdx.x
        real.load(x[i // 8], rows, i % 8)
        real.execute(rows)
        real.store(rows, s[i // 8], i % 8)
        cuda.syncthreads()
        if i < 40:
            whole.load(s[i // 5].T, data, i % 5)
            whole.execute(data)
            whole.store(data, s[i // 5].T, i % 5)
        cuda.syncthreads()
        if i < 40:
            whole.load(s[:, i // 5].T, data, i % 5)
            whole.execute(data)
            whole.store(data, y[:, i // 5].T, i % 5)

    x = np.random.default_rng(20).standard_normal((8, 8, 8)).astype(np.float32)
    y = cuda.to_device(np.zeros((8, 8, 5), np.complex64))
    kernel[1, 64](cuda.to_device(x), y)
    assert relative(y.copy_to_host(), np.fft.rfftn(x.astype(np.float64))) < 1e-6


@pytest.mark.parametrize("shape", [(32, 32), (16, 64)])
def test_r021_2d_fft_of_one_block(shape):
    rows, columns = shape
    along_rows, along_columns = (
        nd.FFT(size=n, precision="float32", fft_type="c2c", direction="forward", execution="Thread")
        for n in (columns, rows)
    )

    @cuda.jit
    def kernel(x, y):
        s = nd.shared.array((rows, columns), np.complex64)
        first = cuda.local.array(along_rows.storage_size, np.complex64)
        second = cuda.local.array(along_columns.storage_size, np.complex64)
        i = cuda.threadIdx.x
        along_rows.load(x, first, i)
        along_rows.execute(first)
        along_rows.store(first, s, i)
        cuda.syncthreads()
        along_columns.load(s.T, second, i)
        along_columns.execute(second)
        along_columns.store(second, y.T, i)

    x = signals(np.random.default_rng(21), shape)
    y = cuda.to_device(np.zeros_like(x))
    kernel[1, max(shape)](cuda.to_device(x), y)
    assert relative(y.copy_to_host(), np.fft.fft2(x.astype(complex))) < 1e-6


@pytest.mark.parametrize("size", [256, 96])
def test_r022_half_precision_real_there_and_back(size):
    there = nd.FFT(size=size, precision="float16", fft_type="r2c", execution="Block")
    back = nd.FFT(size=size, precision="float16", fft_type="c2r", execution="Block")

    @cuda.jit
    def kernel(x, spectrum, y):
        data = cuda.local.array(there.storage_size, there.value_type)
        again = cuda.local.array(back.storage_size, back.value_type)
        scratch = nd.shared.array(0, np.uint8)
        there.load(x, data)
        there.execute(data, scratch)
        there.store(data, spectrum)
        cuda.syncthreads()
        back.load(spectrum, again)
        back.execute(again, scratch)
        back.store(again, y)

    x = (np.random.default_rng(22).uniform(-1, 1, (2, size)) / 16).astype(np.float16).astype(np.float32)
    spectrum = cuda.to_device(np.zeros((2, size // 2 + 1), np.complex64))
    y = cuda.to_device(np.zeros((2, size), np.float32))
    scratch = max(there.shared_memory_size, back.shared_memory_size)
    assert there.block_dim == back.block_dim
    kernel[1, tuple(there.block_dim), 0, scratch](cuda.to_device(x), spectrum, y)
    bound = 2.0**-11 * 2 * np.log2(size)
    assert relative(spectrum.copy_to_host(), np.fft.rfft(x.astype(np.float64))) < bound
    assert relative(y.copy_to_host(), size * x.astype(np.float64)) < 2 * bound


def test_r026_convolution_in_one_launch():
    size, batch = 512, 1000
    there, back = c2c(size, ffts_per_block=2), c2c(size, direction="inverse", ffts_per_block=2)

    @cuda.jit
    def kernel(x, weights, y):
        data = cuda.local.array(there.storage_size, there.value_type)
        scratch = nd.shared.array(there.shared_memory_size, np.uint8)
        there.load(x, data)
        there.execute(data, scratch)
        for i in range(there.elements_per_thread):
            data[i] = data[i] * weights[cuda.threadIdx.x + i * there.stride] / size
        cuda.syncthreads()
        back.execute(data, scratch)
        there.store(data, y)

    rng = np.random.default_rng(26)
    x, weights = signals(rng, (batch, size)), signals(rng, size)
    assert there.block_dim == back.block_dim
    y = cuda.to_device(np.zeros_like(x))
    kernel[-(-batch // there.ffts_per_block), tuple(there.block_dim)](cuda.to_device(x), cuda.to_device(weights), y)
    assert relative(y.copy_to_host(), np.fft.ifft(np.fft.fft(x.astype(complex)) * weights)) < 1e-6


def test_r031_two_descriptors_carve_one_dynamic_buffer():
    fft = c2c(64, elements_per_thread=2)  # 32 threads, the least a GEMM runs on
    mm = nd.Matmul(size=(8, 8, 8), precision="float64", data_type="real", arrangement=("row_major",) * 3,
                   block_size=fft.block_dim.size)  # fmt: skip
    calc = nd.SharedStorageCalc()
    calc.add(1, 3)  # three odd bytes first
    at_fft = calc.add(16, max(fft.shared_memory_size, 1))
    at_gemm = calc.add(16, 8, 3 * 64) // 8
    end_fft = at_fft + fft.shared_memory_size

    @cuda.jit
    def kernel(x, y, a, c):
        data = cuda.local.array(fft.storage_size, fft.value_type)
        octets = nd.shared.array(0, np.uint8)
        doubles = nd.shared.array(0, np.float64)
        octets[0] = 1
        fft.load(x, data)
        fft.execute(data, octets[at_fft:end_fft])
        fft.store(data, y)
        sa, sb = doubles[at_gemm : at_gemm + 64], doubles[at_gemm + 64 : at_gemm + 128]
        sc = doubles[at_gemm + 128 : at_gemm + 192]
        mm.load_a(a, sa)
        mm.load_b(a, sb)
        cuda.syncthreads()
        mm.execute(1.0, sa, sb, 0.0, sc)
        cuda.syncthreads()
        mm.store_c(sc, c)

    rng = np.random.default_rng(31)
    x, a = signals(rng, (1, 64)), rng.standard_normal((8, 8))
    y, c = cuda.to_device(np.zeros_like(x)), cuda.to_device(np.zeros_like(a))
    kernel[1, tuple(fft.block_dim), 0, calc.get()](cuda.to_device(x), y, cuda.to_device(a), c)
    assert relative(y.copy_to_host(), np.fft.fft(x.astype(complex))) < 1e-6
    np.testing.assert_allclose(c.copy_to_host(), a @ a, atol=1e-13)


@pytest.mark.parametrize("debug", [False, True])
def test_r036_complex_division_beside_an_fft(debug):
    size = 32
    fft = c2c(size)
    by = np.complex64(2 - 1j)

    @cuda.jit(debug=debug, opt=not debug)
    def kernel(x, y):
        data = cuda.local.array(fft.storage_size, fft.value_type)
        scratch = nd.shared.array(fft.shared_memory_size, np.uint8)
        fft.load(x, data)
        fft.execute(data, scratch)
        for i in range(fft.elements_per_thread):
            data[i] = data[i] / size / 2.0 / by
        fft.store(data, y)

    x = signals(np.random.default_rng(36), (1, size))
    y = cuda.to_device(np.zeros_like(x))
    kernel[1, tuple(fft.block_dim)](cuda.to_device(x), y)
    assert relative(y.copy_to_host(), np.fft.fft(x.astype(complex)) / size / 2 / by) < 1e-6
