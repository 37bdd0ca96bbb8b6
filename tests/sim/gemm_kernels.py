# SPDX-License-Identifier: Apache-2.0
"""Kernels and data for tests of simulated GEMMs. Layouts are written out here, not asked of the package."""

from __future__ import annotations

import numpy as np
from numba import cuda

import nvmath_device as nd


def packed(matrix, order, ld=None, *, fill=0):
    """The 1-D buffer of a matrix with leading dimension ``ld``; ``fill`` in the padding."""
    rows, cols = matrix.shape
    inner, outer = (rows, cols) if order == "col_major" else (cols, rows)
    ld = ld or inner
    buffer = np.full(ld * outer, fill, dtype=matrix.dtype)
    for i in range(rows):
        for j in range(cols):
            buffer[i + j * ld if order == "col_major" else i * ld + j] = matrix[i, j]
    return buffer


def unpacked(buffer, rows, cols, order, ld=None):
    """The matrix in such a buffer."""
    ld = ld or (rows if order == "col_major" else cols)
    matrix = np.empty((rows, cols), dtype=buffer.dtype)
    for i in range(rows):
        for j in range(cols):
            matrix[i, j] = buffer[i + j * ld if order == "col_major" else i * ld + j]
    return matrix


def gemm_kernel(mm, components=1):
    """C = alpha A B + beta C on 1-D shared arrays, of values or of their components, by one block."""
    a_size, b_size, c_size = (components * size for size in (mm.a_size, mm.b_size, mm.c_size))
    a_type, b_type, c_type = mm.a_value_type, mm.b_value_type, mm.c_value_type
    if components > 1:
        a_type, b_type, c_type = mm.precision

    @cuda.jit
    def kernel(alpha, a, b, beta, c):
        smem_a = nd.shared.array(a_size, a_type)
        smem_b = nd.shared.array(b_size, b_type)
        smem_c = nd.shared.array(c_size, c_type)
        thread, step = cuda.threadIdx.x, cuda.blockDim.x
        for i in range(thread, a_size, step):
            smem_a[i] = a[i]
        for i in range(thread, b_size, step):
            smem_b[i] = b[i]
        for i in range(thread, c_size, step):
            smem_c[i] = c[i]
        cuda.syncthreads()
        mm.execute(alpha, smem_a, smem_b, beta, smem_c)
        cuda.syncthreads()
        for i in range(thread, c_size, step):
            c[i] = smem_c[i]

    return kernel


def norm_error(got, wanted):
    """Norm-wise relative error against a float64 or complex128 matrix."""
    wide = np.complex128 if np.iscomplexobj(wanted) else np.float64
    return np.linalg.norm(got.astype(wide) - wanted) / max(np.linalg.norm(wanted), np.finfo(float).tiny)
