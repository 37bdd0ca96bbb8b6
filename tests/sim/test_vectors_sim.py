# SPDX-License-Identifier: Apache-2.0
"""``nd.float32x2`` and its kind in simulated kernels."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from numba import cuda

import nvmath_device as nd
from nvmath_device.errors import KernelOnlyError, KernelTypingError

VECTORS = {
    "float16x2": ("f2", 2), "float16x4": ("f2", 4), "float32x2": ("f4", 2), "float32x4": ("f4", 4),
    "float64x2": ("f8", 2), "float64x4": ("f8", 4), "uint32x4": ("u4", 4),
}  # fmt: skip
each_vector = pytest.mark.parametrize("name", VECTORS)


@each_vector
def test_shared_and_local_arrays(name):
    component, count = VECTORS[name]
    vector, fields = getattr(nd, name), "xyzw"[:count]

    @cuda.jit
    def kernel(shapes, out):
        shared, local = nd.shared.array((2, 3), vector), cuda.local.array(3, vector)
        shapes.append((shared.dtype, shared.shape, local.dtype, local.shape))
        t = cuda.threadIdx.x
        shared[t, 1] = vector(*(10 * t + k for k in range(count)))
        cuda.syncthreads()
        local[2] = shared[1 - t, 1]
        for k in range(count):
            out[t, k] = getattr(local[2], fields[k])

    shapes, out = [], np.zeros((2, count), component)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kernel[1, 2](shapes, out)
    dtype = np.dtype([(field, component) for field in fields])
    assert shapes == [(dtype, (2, 3), dtype, (3,))] * 2
    assert out.tolist() == [[10 + k for k in range(count)], list(range(count))]


def test_dynamic_memory():
    @cuda.jit
    def kernel(out):
        vectors, numbers = nd.shared.array(0, nd.float32x4), nd.shared.array(0, np.float32)
        vectors[1] = nd.float32x4(1, 2, 3, 4)
        out.append((vectors.size, numbers.tolist()[4:], vectors[1].w))

    out = []
    kernel[1, 1, 0, 32](out)
    assert out == [(2, [1, 2, 3, 4], 4)]


def made(vector, *numbers):
    @cuda.jit
    def kernel(out):
        out.append(vector(*numbers))

    out = []
    kernel[1, 1](out)
    return out[0]


def test_the_constructor_converts():
    v = made(nd.float32x2, 0.1, 2**24 + 1)
    assert (type(v.x), v.x, v.y) == (np.float32, np.float32(0.1), 2**24)
    assert np.isinf(made(nd.float16x2, 1e6, 0).x)
    u = made(nd.uint32x4, -1, np.int64(2**32 + 5), 2.75, np.float16(3))
    assert [u.x, u.y, u.z, u.w] == [2**32 - 1, 5, 2, 3]


@pytest.mark.parametrize(
    ("name", "numbers", "message"),
    [
        ("float32x2", (1.0,), "float32x2 takes 2 numbers, got 1"),
        ("float32x2", (1.0, 2.0, 3.0), "takes 2 numbers, got 3"),
        ("uint32x4", (1, 2), "uint32x4 takes 4 numbers, got 2"),
        ("float32x2", (1.0, 2j), "takes real numbers, got 2j for y"),
        ("float32x2", (True, 1.0), "takes real numbers, got True for x"),
        ("float32x2", (np.ones(2), 1.0), "takes real numbers, got array"),
        ("float32x2", ("1", 1.0), "takes real numbers, got '1' for x"),
    ],
)
def test_wrong_numbers(name, numbers, message):
    with pytest.raises(KernelTypingError, match=message):
        made(getattr(nd, name), *numbers)


def test_the_host_is_no_kernel():
    with pytest.raises(KernelOnlyError, match="float32x2 was called on the host"):
        nd.float32x2(1.0, 2.0)


# -- operands ----------------------------------------------------------------------------------------------

FFT_VECTORS = [
    ("float16", nd.float16x4, 2e-3),
    ("float32", nd.float32x2, 1e-6),
    ("float64", nd.float64x2, 1e-14),
]


def signal(rows, n):
    rng = np.random.default_rng(1)
    return rng.uniform(-1, 1, (rows, n)) + 1j * rng.uniform(-1, 1, (rows, n))


def error(got, wanted):
    return np.linalg.norm(got - wanted) / np.linalg.norm(wanted)


@pytest.mark.parametrize(("precision", "vector", "bound"), FFT_VECTORS, ids=lambda x: str(x))
@pytest.mark.parametrize("execution", ["Thread", "Block"])
def test_ffts_in_registers(execution, precision, vector, bound):
    fft = nd.FFT(8, precision, "c2c", execution, direction="forward")
    scratch = (fft.shared_memory_size or 0) + 16

    @cuda.jit
    def kernel(x, y):
        data = cuda.local.array(fft.storage_size, vector)
        fft.load(x, data)
        if execution == "Block":
            fft.execute(data, nd.shared.array(scratch, "uint8"))
        else:
            fft.execute(data)
        fft.store(data, y)

    x = signal(2, 8)
    y = np.zeros((2, 8), np.complex128)
    kernel[2, tuple(fft.block_dim or (1,))](x, y)
    assert error(y, np.fft.fft(x)) < bound


@pytest.mark.parametrize(("precision", "vector", "bound"), FFT_VECTORS, ids=lambda x: str(x))
def test_ffts_in_shared_memory(precision, vector, bound):
    fft = nd.FFT(16, precision, "c2c", "Block", direction="forward", ffts_per_block=2, elements_per_thread=4)
    size = -(-fft.shared_storage_size // vector.itemsize)

    @cuda.jit
    def kernel(x, y):
        data = nd.shared.array(size, vector)
        fft.load_shared(x, data)
        cuda.syncthreads()
        fft.execute(data)
        cuda.syncthreads()
        fft.store_shared(data, y)

    x = signal(2, 16)
    y = np.zeros((2, 16), np.complex128)
    kernel[1, tuple(fft.block_dim)](x, y)
    assert error(y, np.fft.fft(x)) < bound


def test_an_fft_written_by_hand():
    fft = nd.FFT(4, "float32", "c2c", "Thread", direction="inverse")

    @cuda.jit
    def kernel(x, y):
        data = cuda.local.array(4, nd.float32x2)
        for i in range(4):
            data[i] = nd.float32x2(x[i].real, x[i].imag)
        fft.execute(data)
        for i in range(4):
            y[i] = complex(data[i].x, data[i].y)

    x = signal(1, 4)[0]
    y = np.zeros(4, np.complex64)
    kernel[1, 1](x, y)
    assert error(y, 4 * np.fft.ifft(x)) < 1e-6


def test_an_fft_refuses_other_vectors():
    fft = nd.FFT(4, "float32", "c2c", "Thread", direction="forward")

    @cuda.jit
    def kernel():
        fft.execute(cuda.local.array(4, nd.float32x4))

    with pytest.raises(KernelTypingError, match=r"wants elements of complex64 .* for thread_data"):
        kernel[1, 1]()


@pytest.mark.parametrize(
    ("precision", "vector", "component", "bound"),
    [
        ("float16", nd.float16x2, "f2", 2**-10),
        ("float32", nd.float32x2, "f4", 1e-6),
        ("float64", nd.float64x2, "f8", 1e-15),
    ],
    ids=["float16", "float32", "float64"],
)
def test_complex_gemms(precision, vector, component, bound):
    mm = nd.Matmul((2, 3, 4), precision, "complex", arrangement=("row_major",) * 3, block_size=32)

    @cuda.jit
    def kernel(a, b, c):
        smem_a, smem_b = nd.shared.array((2, 4), vector), nd.shared.array(mm.b_size, vector)
        smem_c = nd.shared.array((2, 3), vector)
        mm.load_a(a, smem_a)
        mm.load_b(b, smem_b)
        cuda.syncthreads()
        mm.execute(1.0, smem_a, smem_b, 0.0, smem_c)
        cuda.syncthreads()
        mm.store_c(smem_c, c)

    rng = np.random.default_rng(2)
    parts = [rng.uniform(-1, 1, (*shape, 2)).astype(component) for shape in ((2, 4), (4, 3))]
    wide_a, wide_b = (p[..., 0].astype(float) + 1j * p[..., 1].astype(float) for p in parts)
    record = np.dtype([("x", component), ("y", component)])
    c = np.zeros((2, 3), record)
    kernel[1, 32](*(p.view(record)[..., 0] for p in parts), c)
    assert error(c["x"].astype(float) + 1j * c["y"].astype(float), wide_a @ wide_b) < bound
