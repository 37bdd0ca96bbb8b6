# SPDX-License-Identifier: Apache-2.0
"""``nd.grouped_tile`` in simulated kernels."""

from __future__ import annotations

import numpy as np
import pytest
from numba import cuda

import nvmath_device as nd


@pytest.mark.parametrize("make", [nd.jit, cuda.jit])
@pytest.mark.parametrize(("rows", "columns", "group"), [(5, 3, 2), (1, 4, 8), (4, 1, 3)])
def test_blocks_take_each_tile_once(make, rows, columns, group):
    @make
    def kernel(out):
        i, j = nd.grouped_tile(cuda.blockIdx.x, rows, columns, group)
        out[i, j] += 1 + cuda.blockIdx.x

    out = cuda.to_device(np.zeros((rows, columns), np.int32))
    kernel[rows * columns, 1](out)
    blocks = out.copy_to_host()
    assert sorted(blocks.ravel()) == list(range(1, rows * columns + 1))
    assert blocks[0, 0] == 1
