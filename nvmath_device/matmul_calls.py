# SPDX-License-Identifier: Apache-2.0
"""What a kernel may call on a ``Matmul``: their contracts, and what happens when Python calls them."""

from __future__ import annotations

from typing import Any

from nvmath_device.kernel_calls import call_in_kernel


class MatmulCalls:
    """The kernel-side methods of :class:`nvmath_device.Matmul`."""

    def execute(self, *args: Any, **kwargs: Any) -> None:
        """Kernel side: C = alpha op(A) op(B) + beta C; called by every thread of the block.

        Forms: ``execute(alpha, a, b, beta, c)`` and, with leading dimensions known only at run time,
        ``execute(alpha, a, lda, b, ldb, beta, c, ldc)``. A 1-D operand is a pointer to the matrix in the
        descriptor's layout; a 2-D operand is used with its own strides and must have the descriptor's order.
        Element types are the descriptor's; a complex or multi-component type may also be given as a 1-D array
        of its components. alpha and beta are converted to C's type. With ``beta == 0`` C is not read.

        Guarantees no synchronisation: call ``cuda.syncthreads()`` before, when other threads wrote A, B or C,
        and after, before reading C. The block must have ``block_dim`` threads.

        Forms with tensors, made by :func:`nvmath_device.make_tensor`, all in plain layouts or all in suggested ones:
        ``execute(alpha, a, b, beta, c)`` with c in shared memory, and ``execute(a, b, c)``, which adds the product to a
        fragment or an accumulator.
        """
        call_in_kernel("Matmul.execute", "matmul_execute", self, args, kwargs)

    def multiply(self, *args: Any, **kwargs: Any) -> Any:
        """Kernel side: tile (i, j) of the product of two whole matrices, over all of K; every thread calls it.

        ``multiply(a, b, i, j, [depth], [combine=, x=, args=])``. ``a`` (M, K) and ``b`` (K, N) are whole matrices in
        global memory, of the descriptor's element types and orders, of any extents; ``size`` is the tile that the block
        computes, and what of it lies outside of C is computed from zeros. Tiles of A and B stream through ``depth``
        stages in dynamic shared memory, a constant, or ``"max"``: as many as fit; by default that, but no more than
        four. Launch with :meth:`get_pipeline_storage_size` bytes and exactly ``block_dim``.

        Returns the accumulator, the tile in the registers of the block's threads:

        - ``acc.map(function, *args)`` is another one, of what a device function makes of each element:
          ``function(value, row, column, *args)`` with row and column in C. It may read, but write nothing.
        - ``acc.combine(function, x, *args)`` the same of ``function(value, element, row, column, *args)`` with the
          element of ``x``, a whole matrix of C's shape, at the same place. Every thread of the block calls it: the
          tile of ``x`` may come to the shared memory of the stages, which is free again when it returns.
        - ``acc.store(c)`` writes the tile to the whole matrix ``c`` of any strides and type, as far as it lies inside.
        - ``acc.size`` is how many elements a thread holds.

        ``multiply(..., combine=function, x=x, args=(...))`` returns what ``combine(function, x, *args)`` of the
        accumulator does. It is faster where the loop over K is our own, by wgmma: the tile of ``x``, of elements of 2,
        4 or 8 bytes and not column-major, comes through the stages behind the last ones of A and B then. The block's
        threads meet between the call and the first call of ``function``, so what they have written to shared memory,
        such as the tile's part of a bias, can be read in it.

        Guarantees that a, b and the shared memory are no longer used when it returns, in any thread of the block. With
        ``alignment`` of 16 the addresses and leading dimensions of a and b must be multiples of 16 bytes; on Hopper
        they are then fetched by TMA where :meth:`path` says so, else by the block's threads, in two to four stages.
        Nothing outside of a and b is read. Real element types only, and no ``transpose_mode``.
        """
        return call_in_kernel("Matmul.multiply", "matmul_multiply", self, args, kwargs)

    def pipeline(self, *args: Any, **kwargs: Any) -> Any:
        """Kernel side: the part of :meth:`multiply` that does not depend on the tile, for blocks that compute several.

        ``pipe = pipeline(a, b, [depth])``, then ``pipe.multiply(i, j)`` for each tile, which gives its accumulator,
        and ``pipe.destroy()`` at the end, each called by every thread. Without the last its room stays taken; when
        that has happened 512 times, the next block waits for ever. An accumulator is valid until the same call makes
        another one.

        ``pipe.start(i, j)`` and ``pipe.finish()`` are the two halves of ``multiply``: the first tiles of A and B are on
        their way after ``start``, to the dynamic shared memory, and ``finish`` gives the accumulator. Start the next
        tile before the epilog of this one. Between the two the pipeline starts nothing else, and is not destroyed.
        """
        return call_in_kernel("Matmul.pipeline", "matmul_pipeline", self, args, kwargs)

    def get_accumulator(self) -> Any:
        """Kernel side: a tile of C in the registers of the block's threads, all zeros, for plain layouts.

        ``execute(a, b, acc)`` adds a product to it. It is a fragment, with ``acc[i]``, ``acc[i] = v`` and ``acc.size``
        elements in each thread, that knows where in the tile they are:

        - ``acc.map_fragment_index(i)`` is the (row, column) in the tile of this thread's element i,
          ``acc.is_index_in_bounds(i)`` whether it lies inside of the tile, ``acc.is_predicated()`` whether that differs
          between elements, ``acc.is_thread_active()`` whether this thread has a part in the product.
        - ``acc.get_results([out])`` copies the elements to a new fragment, or to ``out``, which may be of another type;
          ``acc.make_empty_fragment()`` is one without values; ``acc.clear()`` makes all elements zero.
        - With tensors of C in global memory: ``acc.partition_and_store(gmem)`` writes the tile,
          ``acc.make_partition_and_copy(gmem)`` reads it into a new fragment, ``acc.partition_and_copy(src, dst)``
          copies either way between such a tensor and a fragment, ``acc.axpby(alpha, beta, gmem)`` makes it alpha acc +
          beta gmem (with a beta of 0 it is not read), and ``acc.partition_like_C(gmem)`` has this thread's elements
          of it under the same indices: ``p[i]``, ``p[i] = v``, ``p.size``.
        - ``acc.get_alignment()`` are the bytes that addresses and leading dimensions of these tensors must be
          multiples of: the descriptor's alignment of C.

        Indices are not checked. Loops over elements should have constant bounds, such as ``acc.size``.
        """
        return call_in_kernel("Matmul.get_accumulator", "matmul_accumulator", self, False)

    def suggest_accumulator(self) -> Any:
        """Kernel side: as :meth:`get_accumulator`, for suggested layouts."""
        return call_in_kernel("Matmul.suggest_accumulator", "matmul_accumulator", self, True)

    def load_a(self, *args: Any, **kwargs: Any) -> None:
        """Kernel side: copy a tile of a global matrix to A in shared memory; every thread calls it.

        ``load_a(view, smem)``. ``view`` is a 2-D array of A's value type (a copy converts nothing) with any
        strides; ``view[:rows, :cols]`` goes to the matrix A as stored, rows x cols = ``a_dim``. Elements of A
        outside of ``view.shape`` become zeros, so a slice cut off by the edge of the matrix, such as
        ``x[i * M : (i + 1) * M, k * K : (k + 1) * K]``, needs no special care. ``smem`` is A in shared
        memory, as for :meth:`execute`: a 1-D array is a pointer to the descriptor's layout, a 2-D array of
        the descriptor's order is used with its own strides and has at least the shape of A. The padding of a
        leading dimension is not written.

        The work is shared by all threads of the launched block, whatever its shape; ``block_dim`` plays no
        part. A view in global memory that is contiguous along the same axis as A, and whose address, pitch
        and length along that axis (of the part copied) are multiples of 16 bytes, is copied in pieces of 16
        bytes, from sm_80 on by ``cp.async``; any other view element by element, neighbouring threads along
        its smaller stride. Every ``cp.async`` of the calling thread is waited for, also one of its own.

        Guarantees no synchronisation. When it returns, the calling thread's part of the copy is complete,
        other threads' need not be: call ``cuda.syncthreads()`` after it, before anything reads A, and before
        it, when other threads may still be using the memory. The behaviour is undefined if ``smem`` is not in
        shared memory, if the arguments differ between threads, or if a thread of the block stays out.
        """
        call_in_kernel("Matmul.load_a", "matmul_load", self, "a", args, kwargs)

    def load_b(self, *args: Any, **kwargs: Any) -> None:
        """Kernel side: ``load_b(view, smem)``, as :meth:`load_a` for B (``b_dim``)."""
        call_in_kernel("Matmul.load_b", "matmul_load", self, "b", args, kwargs)

    def load_c(self, *args: Any, **kwargs: Any) -> None:
        """Kernel side: ``load_c(view, smem)``, as :meth:`load_a` for C (``c_dim``)."""
        call_in_kernel("Matmul.load_c", "matmul_load", self, "c", args, kwargs)

    def store_c(self, *args: Any, **kwargs: Any) -> None:
        """Kernel side: copy C from shared memory to a tile of a global matrix; every thread calls it.

        ``store_c(smem, view)``, arguments as for :meth:`load_a`. Writes the elements of C that lie inside of
        ``view.shape`` to ``view[:rows, :cols]`` and nothing else; 16 bytes at a time as :meth:`load_a`.

        Guarantees no synchronisation: call ``cuda.syncthreads()`` before it, after :meth:`execute` or whatever
        else wrote C, and after it, before C is written again or other threads of the block read the view. Where
        elements of the view overlap (a stride of 0) one of the values stays.
        """
        call_in_kernel("Matmul.store_c", "matmul_store", self, "c", args, kwargs)
