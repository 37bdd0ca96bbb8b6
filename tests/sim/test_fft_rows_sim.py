# SPDX-License-Identifier: Apache-2.0
"""Which rows an FFT's load and store take by default."""

from __future__ import annotations

import numpy as np
import pytest
from numba import cuda

import nvmath_device as nd


@pytest.mark.parametrize("block", [(6, 1, 1), (3, 2, 1), (1, 2, 3)])
@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_single_threads_take_one_row_after_the_other_in_any_block(block, precision):
    fft = nd.FFT(4, precision, "c2c", "Thread", direction="forward")

    @cuda.jit
    def kernel(x, y):
        data = cuda.local.array(fft.storage_size, fft.value_type)
        fft.load(x, data)
        fft.execute(data)
        fft.store(data, y)

    rows = 2 * 6 * fft.implicit_type_batching - 1  # two blocks, the last value of which is not there
    x = (np.arange(rows * 4).reshape(rows, 4) % 7).astype(np.complex64)  # small integers: exact in all precisions
    y = np.full_like(x, np.nan)
    kernel[2, block](x, y)
    np.testing.assert_array_equal(y, np.fft.fft(x).astype(np.complex64))
