# SPDX-License-Identifier: Apache-2.0
"""Random operands for products on opaque tensors, with leading dimensions of their own in global memory."""

from __future__ import annotations

import numpy as np
from numba import cuda

from tests import tensor_kernels
from tests.gpu.values import carrier, random_logical, read_back, to_device, to_pairs

ROW, COL = "row_major", "col_major"
TYPES = {
    "half": ("float16", "float16", "float32"),
    "bf16": ("bfloat16", "bfloat16", "float32"),
    "tf32": ("tfloat32", "tfloat32", "float32"),
    "fp8": ("float8_e4m3fn", "float8_e5m2", "float32"),
    "single": ("float32",) * 3,
    "double": ("float64",) * 3,
    "int8": ("int8", "int8", "int32"),
}


class Case:
    """A descriptor's operands and what is expected of them.

    In global memory lines are ``pads`` elements longer than the tile's; what is there is poisoned in A and B and must
    stay in C. ``turns`` are products that are added up.
    """

    def __init__(self, mm, *, turns=1, seed=0, pads=(3, 5, 2)):
        rng = np.random.default_rng(seed)
        self.mm, self.turns, self.is_complex = mm, turns, mm.data_type == "complex"
        m, n, k = mm.size
        self.names = [t.name for t in mm.descriptor.precision]
        dims, orders = ((m, k), (k, n), (m, n)), mm.arrangement
        self.lds = [
            (cols if order == ROW else rows) + pad for (rows, cols), order, pad in zip(dims, orders, pads, strict=True)
        ]
        logical = [
            [random_logical(rng, shape, name, is_complex=self.is_complex) for _ in range(count)]
            for shape, name, count in zip(dims, self.names, (turns, turns, 1), strict=True)
        ]
        self.stored = [
            [carrier(x, name, is_complex=self.is_complex, order=order, ld=ld) for x in tiles]
            for tiles, name, order, ld in zip(logical, self.names, orders, self.lds, strict=True)
        ]
        a, b, c = ([to_pairs(x, self.is_complex) for x in tiles] for tiles in logical)
        self.products = [x @ y for x, y in zip(a, b, strict=True)]
        self.c = c[0]

    def operand(self, place):
        tiles = self.stored[place]
        return to_device(np.concatenate(tiles)), self.lds[place], len(tiles[0])

    def poisoned(self):
        """C, all of it as its padding is."""
        c = self.stored[2][0].copy()
        c.view(np.uint8)[...] = 0xFF
        return to_device(c), self.lds[2], len(c)

    def error(self, on_device, wanted, before):
        """Norm-wise relative error, of elements inside; those between the lines must be what they were."""
        host = on_device.copy_to_host().view(before.dtype)
        m, n, _ = self.mm.size
        order, ld = self.mm.arrangement.c, self.lds[2]
        lines = (m, n) if order == ROW else (n, m)
        between = [x.view(np.uint8).reshape(lines[0], ld, -1)[:, lines[1] :] for x in (host, before)]
        np.testing.assert_array_equal(*between)
        got = read_back(host, self.names[2], (m, n), is_complex=self.is_complex, order=order, ld=ld)
        difference = np.asarray(to_pairs(got, self.is_complex) - wanted).astype(complex)
        return np.linalg.norm(difference) / np.linalg.norm(np.asarray(wanted).astype(complex))

    def into_registers(self, kind, **options):
        (a, lda, a_step), (b, ldb, b_step), (c, ldc, _) = self.operand(0), self.operand(1), self.poisoned()
        before = c.copy_to_host().view(self.stored[2][0].dtype)
        kernel = tensor_kernels.to_registers(self.mm, kind, **options)
        kernel[1, self.mm.block_dim](a, lda, a_step, b, ldb, b_step, self.turns, c, ldc)
        return self.error(c, sum(self.products), before)

    def into_shared(self, kind, alpha, beta):
        (a, lda, _), (b, ldb, _), (c, ldc, _) = (self.operand(i) for i in range(3))
        kernel = tensor_kernels.to_shared(self.mm, kind)
        kernel[1, self.mm.block_dim](alpha, a, lda, b, ldb, beta, c, ldc)
        return self.error(c, alpha * self.products[0] + beta * self.c, self.stored[2][0])


def check_elements(mm, kind):
    """They are where a layout has them, and where copies look for them."""
    m, _, k = mm.size
    a = np.asarray(np.arange(m * k).reshape(m, k), np.float16, order="F" if mm.arrangement.a == COL else "C")
    read, written = (cuda.to_device(np.full_like(a, np.nan)) for _ in range(2))
    tensor_kernels.elements(mm, kind)[1, mm.block_dim](cuda.to_device(a), read, written)
    np.testing.assert_array_equal(read.copy_to_host(), a)
    np.testing.assert_array_equal(written.copy_to_host(), a[::-1, ::-1])


def check_pairs(mm, kind):
    m, _, k = mm.size
    a = np.random.default_rng(4).uniform(-1, 1, (m, k)).astype(np.float32)
    written = cuda.to_device(np.full((m, k), np.nan, np.float16))
    tensor_kernels.pairs(mm, kind)[1, mm.block_dim](cuda.to_device(a), written)
    np.testing.assert_array_equal(written.copy_to_host(), a.astype(np.float16))
