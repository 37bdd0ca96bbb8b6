# SPDX-License-Identifier: Apache-2.0
"""What FFT methods refuse in simulated kernels, and in which words."""

from __future__ import annotations

import numpy as np
import pytest
from numba import cuda

import nvmath_device as nd
from nvmath_device.errors import KernelExecutionError, KernelOnlyError, KernelTypingError

BLOCK = nd.FFT(16, "float32", "c2c", "Block", direction="forward", ffts_per_block=2, elements_per_thread=4)
THREAD = nd.FFT(16, "float32", "c2c", "Thread", direction="forward")
R2C = nd.FFT(16, "float32", "r2c", "Block", elements_per_thread=4)


def refused(call, *arguments, fft=BLOCK, block=None):
    @cuda.jit
    def kernel(*arguments):
        call(cuda.local.array(16, np.dtype(np.complex64)), nd.shared.array(500, "complex64"), *arguments)

    kernel[1, tuple(block or fft.block_dim or (2,))](*arguments)


def test_what_is_right_is_not_refused():
    refused(lambda d, s: BLOCK.execute(d, s))
    refused(lambda d, s: BLOCK.execute(s))
    refused(lambda d, s: THREAD.execute(d), fft=THREAD)


TYPING, EXECUTION = KernelTypingError, KernelExecutionError


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda d, s: BLOCK.execute(), TYPING, r"takes \(thread_data, shared_mem\) or \(shared_mem\)"),
        (lambda d, s: BLOCK.execute(d, s, 1), TYPING, "got 3 arguments"),
        (lambda d, s: BLOCK.execute(d, 5), TYPING, "wants an array for shared_mem"),
        (lambda d, s: BLOCK.execute(d.view("f8")[:8], s), TYPING, "complex64 .* got an array of float64"),
        (lambda d, s: BLOCK.execute(d[::2], s), TYPING, "contiguous 1-D array for thread_data"),
        (lambda d, s: BLOCK.execute(d.reshape(4, 4), s), TYPING, "1-D array for thread_data"),
        (lambda d, s: BLOCK.execute(d[:3], s), EXECUTION, r"storage_size; 32 bytes\).*got 24"),
        (lambda d, s: BLOCK.execute(d, s[:1]), EXECUTION, r"\(shared_memory_size\).*got 8"),
        (lambda d, s: BLOCK.execute(s[:31]), EXECUTION, r"\(shared_storage_size\).*got 248"),
        (lambda d, s: THREAD.execute(d, s), TYPING, r"takes \(thread_data\), got 2"),
        (lambda d, s: THREAD.load_shared(s, s), TYPING, "no meaning for Thread execution"),
        (lambda d, s: BLOCK.load(s, d), TYPING, "2-D array for source, got 1-D"),
        (lambda d, s: BLOCK.load(s[:32].reshape(2, 16), d, 1.5), TYPING, "an integer for index"),
        (lambda d, s: BLOCK.load(s[:32].reshape(2, 16), d, -1), EXECUTION, "at least 0 for index"),
    ],
)  # fmt: skip
def test_execute_refuses(call, kind, message):
    with pytest.raises(kind, match=message):
        refused(call)


@pytest.mark.parametrize(
    ("call", "source", "message"),
    [
        (lambda d, s, x: BLOCK.load(x, d), np.zeros((1, 16), np.int32), "floating-point .*got int32"),
        (lambda d, s, x: BLOCK.store(d, x), np.zeros((1, 16), np.float32), "complex elements for target"),
    ],
)  # fmt: skip
def test_copies_refuse(call, source, message):
    with pytest.raises(KernelTypingError, match=message):
        refused(call, source)


def test_complex_numbers_are_no_real_input():
    with pytest.raises(KernelTypingError, match="wants real elements for source of a r2c FFT"):
        refused(lambda d, s, x: R2C.load(x, d), np.zeros((1, 16), np.complex64), fft=R2C)


@pytest.mark.parametrize("block", [(4, 1), (8, 1), (2, 4), (4, 2, 2)], ids=str)
def test_another_block(block):
    with pytest.raises(KernelExecutionError, match=r"wants a launch with blockDim \(4, 2, 1\)"):
        refused(lambda d, s: BLOCK.execute(d, s), block=block)


def test_a_thread_that_stays_out():
    def call(d, s):
        if cuda.threadIdx.x != 3:
            BLOCK.execute(d, s)

    with pytest.raises(KernelExecutionError, match=r"FFT\.execute was called by 6 of 8 threads"):
        refused(call)


def test_the_host_is_no_kernel():
    with pytest.raises(KernelOnlyError, match=r"FFT\.fft_id was called on the host"):
        BLOCK.fft_id()
    with pytest.raises(KernelOnlyError, match=r"FFT\.load was called on the host"):
        BLOCK.load(np.zeros((1, 16)), np.zeros(16))
