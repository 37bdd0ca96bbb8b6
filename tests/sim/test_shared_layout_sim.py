# SPDX-License-Identifier: Apache-2.0
"""Layouts of dynamic shared memory in simulated kernels."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from numba import cuda

import nvmath_device as nd
from nvmath_device.errors import KernelExecutionError, KernelOnlyError

LAYOUT = nd.shared_layout(bytes=7, floats=(np.float32, 3), table=(np.float64, (3, 5), 128), half=("bfloat16", 4))


def collected(kernel, dynamic, threads=2, blocks=1):
    """What ``kernel(out)`` appends to a list, in every thread."""
    out = []
    kernel[blocks, threads, 0, dynamic](out)
    return out


def test_parts_are_views_of_the_launchs_memory_at_their_offsets():
    @cuda.jit
    def kernel(out):
        out.append((nd.shared.array(0, np.uint8), [part() for part in LAYOUT]))

    for memory, arrays in collected(kernel, LAYOUT.size):
        assert memory.size == LAYOUT.size == 264
        begin = memory.__array_interface__["data"][0]
        assert [a.__array_interface__["data"][0] - begin for a in arrays] == [0, 16, 128, 256]
        assert [a.shape for a in arrays] == [(7,), (3,), (3, 5), (4,)]
        assert [a.dtype for a in arrays] == [np.uint8, np.float32, np.float64, ml_dtypes.bfloat16]
        assert all(a.flags.c_contiguous and a.flags.writeable for a in arrays)


def test_vectors_and_records_have_their_attributes():
    layout = nd.shared_layout(vectors=(nd.float32x4, 2), eights=("e4m3", 3))

    @cuda.jit
    def kernel(out):
        layout.vectors()[1] = nd.float32x4(1, 2, 3, 4)
        out.append((layout.vectors()[1].z, layout.eights().dtype))

    assert collected(kernel, layout.size) == [(3.0, np.uint8)] * 2


def test_threads_of_a_block_see_each_others_values():
    @cuda.jit
    def kernel(out):
        i = cuda.threadIdx.x
        LAYOUT.floats()[i] = 10 * i
        cuda.syncthreads()
        out.append((i, LAYOUT.floats()[2 - i]))

    assert sorted(collected(kernel, LAYOUT.size, threads=3)) == [(0, 20), (1, 10), (2, 0)]


def test_parts_of_an_overlay_are_the_same_bytes():
    layout = nd.shared_overlay(nd.shared_layout(a=(np.int32, 4), b=(np.int32, 4)), c=(np.int64, 4))

    @cuda.jit
    def kernel(out):
        layout.c()[:] = -1
        layout.a()[:] = 0
        out.append((layout.b().tolist(), layout.c().tolist()))

    assert collected(kernel, layout.size, threads=1) == [([-1] * 4, [0, 0, -1, -1])]


def test_a_launch_with_too_little_memory_is_noticed():
    @cuda.jit
    def kernel(out):
        LAYOUT.floats()
        out.append(LAYOUT.table())

    assert collected(kernel, 248)
    with pytest.raises(KernelExecutionError, match=r"table ends 248 bytes into .* has 247; launch with layout\.size"):
        collected(kernel, 247)


def test_on_the_host_there_is_no_memory():
    with pytest.raises(KernelOnlyError, match="shared_layout's floats was called on the host"):
        LAYOUT.floats()


def test_a_product_and_a_transform_in_one_buffer():
    """Odd sizes first; the scratch of the transform is where A and B were."""
    m, n, k = 5, 7, 3
    mm = nd.Matmul((m, n, k), "float32", "real", arrangement=("row_major",) * 3, block_size=32)
    fft = nd.FFT(8, "float32", "c2c", "Block", direction="forward", ffts_per_block=1, elements_per_thread=2)
    inputs = nd.shared_layout(a=(mm.a_value_type, mm.a_size), b=(mm.b_value_type, mm.b_size))
    scratch = nd.shared_overlay(inputs, data=(fft.value_type, 8))
    layout = nd.shared_layout(nd.shared_layout(odd=13), scratch, c=(mm.c_value_type, mm.c_size))
    rng = np.random.default_rng(5)
    a, b, c = rng.standard_normal((m, k)), rng.standard_normal((k, n)), np.empty((m, n))
    a, b, c = (x.astype(np.float32) for x in (a, b, c))
    x = (rng.standard_normal(8) + 1j * rng.standard_normal(8)).astype(np.complex64)
    y = np.empty_like(x)

    @cuda.jit
    def multiply(a, b, c):
        mm.load_a(a, layout.a())
        mm.load_b(b, layout.b())
        cuda.syncthreads()
        mm.execute(1.0, layout.a(), layout.b(), 0.0, layout.c())
        cuda.syncthreads()
        mm.store_c(layout.c(), c)

    @cuda.jit
    def transform(x, y):
        fft.load_shared(x, layout.data())
        cuda.syncthreads()
        fft.execute(layout.data())
        cuda.syncthreads()
        fft.store_shared(layout.data(), y)

    multiply[1, mm.block_dim, 0, layout.size](a, b, c)
    transform[1, fft.block_dim, 0, layout.size](x.reshape(1, 8), y.reshape(1, 8))
    assert np.abs(c - a.astype(float) @ b.astype(float)).max() < 1e-5
    assert np.abs(y - np.fft.fft(x.astype(complex))).max() < 1e-5
