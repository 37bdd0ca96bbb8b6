# SPDX-License-Identifier: Apache-2.0
"""Shared memory in which nothing is left that a kernel could take for its own."""

from __future__ import annotations

import numpy as np
from numba import cuda

import nvmath_device as nd


@cuda.jit
def _spoil(words):
    memory = nd.shared.array(0, np.uint32)
    for i in range(cuda.threadIdx.x, words, cuda.blockDim.x):
        memory[i] = np.uint32(0xFFFFFFFF)
    cuda.syncthreads()


def spoil():
    """NaN, in every type of floats, in the shared memory that the next kernel finds."""
    _spoil[132, 256, 0, 227 * 1024](227 * 256)
