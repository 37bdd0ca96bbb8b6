# SPDX-License-Identifier: Apache-2.0
"""``nvmath_device.shuffle_xor`` in simulated kernels."""

from __future__ import annotations

import numpy as np
import pytest
from numba import cuda

import nvmath_device as nd
from nvmath_device.errors import KernelExecutionError, KernelOnlyError, KernelTypingError


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64])
@pytest.mark.parametrize("lanes", [1, 6, 31])
def test_each_thread_gets_its_partners_number(dtype, lanes):
    @cuda.jit
    def kernel(x, y):
        y[cuda.threadIdx.x] = nd.shuffle_xor(x[cuda.threadIdx.x], lanes)

    x = (np.arange(64) * 3 - 7).astype(dtype)
    y = np.zeros_like(x)
    kernel[1, 64](x, y)
    np.testing.assert_array_equal(y, x[np.arange(64) ^ lanes])


@pytest.mark.parametrize(
    ("value", "lanes", "threads", "error", "words"),
    [
        (np.float32(1), 0, 32, KernelExecutionError, "1 to 31 for lanes"),
        (np.float32(1), 32, 32, KernelExecutionError, "1 to 31 for lanes"),
        (np.float32(1), 0.5, 32, KernelExecutionError, "1 to 31 for lanes"),
        (np.float16(1), 1, 32, KernelTypingError, "32 or 64 bits"),
        (1j, 1, 32, KernelTypingError, "32 or 64 bits"),
        (np.float32(1), 16, 20, KernelExecutionError, "whole warps"),
    ],
)
def test_refusals(value, lanes, threads, error, words):
    @cuda.jit
    def kernel():
        nd.shuffle_xor(value, lanes)

    with pytest.raises(error, match=words):
        kernel[1, threads]()


def test_some_threads_alone_are_refused():
    @cuda.jit
    def kernel():
        if cuda.threadIdx.x < 16:
            nd.shuffle_xor(np.float32(1), 1)

    with pytest.raises(KernelExecutionError, match="16 of 32 threads"):
        kernel[1, 32]()


def test_on_the_host_it_means_nothing():
    with pytest.raises(KernelOnlyError):
        nd.shuffle_xor(np.float32(1), 1)
