# SPDX-License-Identifier: Apache-2.0
"""Kernels on opaque tensors, for the simulator and for GPUs: one block and one tile, or a few along K."""

from __future__ import annotations

import numpy as np
from numba import cuda

import nvmath_device as nd


def smem_layouts(mm, kind):
    if kind == "plain":
        return mm.get_layout_smem_a(), mm.get_layout_smem_b(), mm.get_layout_smem_c()
    return mm.suggest_layout_smem_a(), mm.suggest_layout_smem_b(), mm.suggest_layout_smem_c()


def to_registers(mm, kind, *, jit=nd.jit, alignment=None):
    """C = sum of A_t B_t, of tiles one behind the other in a and b with leading dimensions of their own."""
    la, lb, _ = smem_layouts(mm, kind)
    is_plain = kind == "plain"

    def with_plain(a, lda, a_step, b, ldb, b_step, turns, c, ldc):
        ta = nd.make_tensor(nd.shared.array(la.cosize, mm.a_value_type), la)
        tb = nd.make_tensor(nd.shared.array(lb.cosize, mm.b_value_type), lb)
        acc = mm.get_accumulator()
        for t in range(turns):
            nd.copy(nd.make_tensor(a[t * a_step :], mm.get_layout_gmem_a(lda)), ta, alignment)
            nd.copy(nd.make_tensor(b[t * b_step :], mm.get_layout_gmem_b(ldb)), tb, alignment=alignment)
            nd.copy_wait()
            cuda.syncthreads()
            mm.execute(ta, tb, acc)
            cuda.syncthreads()
        acc.partition_and_store(nd.make_tensor(c, mm.get_layout_gmem_c(ldc)))

    def with_suggested(a, lda, a_step, b, ldb, b_step, turns, c, ldc):
        ta = nd.make_tensor(nd.shared.array(la.cosize, mm.a_value_type), la)
        tb = nd.make_tensor(nd.shared.array(lb.cosize, mm.b_value_type), lb)
        acc = mm.suggest_accumulator()
        for t in range(turns):
            nd.copy(nd.make_tensor(a[t * a_step :], mm.get_layout_gmem_a(lda)), ta, alignment)
            nd.copy(nd.make_tensor(b[t * b_step :], mm.get_layout_gmem_b(ldb)), tb, alignment=alignment)
            nd.copy_wait()
            cuda.syncthreads()
            mm.execute(ta, tb, acc)
            cuda.syncthreads()
        acc.partition_and_store(nd.make_tensor(c, mm.get_layout_gmem_c(ldc)))

    return jit(with_plain if is_plain else with_suggested)


def to_shared(mm, kind, *, jit=nd.jit):
    """C = alpha A B + beta C, with C in shared memory."""
    la, lb, lc = smem_layouts(mm, kind)

    def kernel(alpha, a, lda, b, ldb, beta, c, ldc):
        ta = nd.make_tensor(nd.shared.array(la.cosize, mm.a_value_type), la)
        tb = nd.make_tensor(nd.shared.array(lb.cosize, mm.b_value_type), lb)
        tc = nd.make_tensor(nd.shared.array(lc.cosize, mm.c_value_type), lc)
        gc = nd.make_tensor(c, mm.get_layout_gmem_c(ldc))
        nd.copy(nd.make_tensor(a, mm.get_layout_gmem_a(lda)), ta)
        nd.copy(nd.make_tensor(b, mm.get_layout_gmem_b(ldb)), tb)
        nd.copy(gc, tc)
        nd.copy_wait()
        cuda.syncthreads()
        mm.execute(alpha, ta, tb, beta, tc)
        cuda.syncthreads()
        nd.copy(tc, gc)

    return jit(kernel)


def through_registers(mm, kind, other, *, jit=nd.jit):
    """What an accumulator can do besides: three results of one product of whole tiles, all 2-D arrays.

    ``scaled`` = 2 A B + 3 scaled, ``mapped`` = elements written through their (row, column) with it added, ``narrow`` =
    A B in another type, by way of shared memory for the element type of C.
    """
    la, lb, lc = smem_layouts(mm, kind)
    is_plain = kind == "plain"

    def finish(acc, tc, scaled, mapped, narrow, shared_c):
        out = nd.make_fragment_like(acc, other)
        acc.get_results(out)
        nd.copy_fragment(out, nd.make_tensor(narrow, mm.get_layout_gmem_c()))
        nd.copy_fragment(acc, tc)
        cuda.syncthreads()
        back = acc.make_empty_fragment()
        nd.clear(back)
        nd.copy_fragment(tc, back)
        nd.copy_fragment(back, nd.make_tensor(shared_c, mm.get_layout_gmem_c()))
        part = acc.partition_like_C(nd.make_tensor(mapped, mm.get_layout_gmem_c()))
        for i in range(acc.size):
            if acc.is_thread_active() and acc.is_index_in_bounds(i):
                row, column = acc.map_fragment_index(i)
                part[i] = np.float32(part[i]) + np.float32(acc[i]) + np.float32(100 * row + column)
        acc.axpby(2, 3, nd.make_tensor(scaled, mm.get_layout_gmem_c()))

    finish = cuda.jit(device=True)(finish)

    def with_plain(a, b, scaled, mapped, narrow, shared_c):
        ta = nd.make_tensor(nd.shared.array(la.cosize, mm.a_value_type), la)
        tb = nd.make_tensor(nd.shared.array(lb.cosize, mm.b_value_type), lb)
        tc = nd.make_tensor(nd.shared.array(lc.cosize, mm.c_value_type), lc)
        nd.copy(nd.make_tensor(a, mm.get_layout_gmem_a()), ta)
        nd.copy(nd.make_tensor(b, mm.get_layout_gmem_b()), tb)
        nd.copy_wait()
        cuda.syncthreads()
        acc = mm.get_accumulator()
        mm.execute(ta, tb, acc)
        finish(acc, tc, scaled, mapped, narrow, shared_c)

    def with_suggested(a, b, scaled, mapped, narrow, shared_c):
        ta = nd.make_tensor(nd.shared.array(la.cosize, mm.a_value_type), la)
        tb = nd.make_tensor(nd.shared.array(lb.cosize, mm.b_value_type), lb)
        tc = nd.make_tensor(nd.shared.array(lc.cosize, mm.c_value_type), lc)
        nd.copy(nd.make_tensor(a, mm.get_layout_gmem_a()), ta)
        nd.copy(nd.make_tensor(b, mm.get_layout_gmem_b()), tb)
        nd.copy_wait()
        cuda.syncthreads()
        acc = mm.suggest_accumulator()
        mm.execute(ta, tb, acc)
        finish(acc, tc, scaled, mapped, narrow, shared_c)

    return jit(with_plain if is_plain else with_suggested)


def elements(mm, kind, *, jit=nd.jit):
    """A tile of A, copied in and read one by one; and one that is written one by one, and copied out."""
    layout, _, _ = smem_layouts(mm, kind)
    rows, columns = mm.size.m, mm.size.k

    def kernel(a, read, written):
        tile = nd.make_tensor(nd.shared.array(layout.cosize, mm.a_value_type), layout)
        nd.copy(nd.make_tensor(a, mm.get_layout_gmem_a()), tile)
        nd.copy_wait()
        cuda.syncthreads()
        for place in range(cuda.threadIdx.x, rows * columns, cuda.blockDim.x):
            read[place // columns, place % columns] = tile[place // columns, place % columns]
        cuda.syncthreads()
        for place in range(cuda.threadIdx.x, rows * columns, cuda.blockDim.x):
            row, column = place // columns, place % columns
            tile[row, column] = a[rows - 1 - row, columns - 1 - column]
        cuda.syncthreads()
        nd.copy(tile, nd.make_tensor(written, mm.get_layout_gmem_a()))

    return jit(kernel)


def pairs(mm, kind, *, jit=nd.jit):
    """A tile of A of 16 bits, written two elements of float32 at once, and copied out."""
    layout, _, _ = smem_layouts(mm, kind)
    rows, columns, threads = mm.size.m, mm.size.k, mm.block_dim.size

    def kernel(a, written):
        tile = nd.make_tensor(nd.shared.array(layout.cosize, mm.a_value_type), layout)
        for place in range(cuda.threadIdx.x, rows * columns // 2, threads):
            row, column = 2 * place // columns, 2 * place % columns
            tile[row, column] = nd.float32x2(a[row, column], a[row, column + 1])
        cuda.syncthreads()
        nd.copy(tile, nd.make_tensor(written, mm.get_layout_gmem_a()))

    return jit(kernel)
