# SPDX-License-Identifier: Apache-2.0
"""Kernel-side functions on opaque tensors, matrices that know their layout: what each of them promises."""

from __future__ import annotations

from typing import Any

from nvmath_device.kernel_calls import KernelFunction, call_in_kernel


class _MakeTensor(KernelFunction):
    name = "make_tensor"

    def __call__(self, array: Any, layout: Any) -> Any:
        """Kernel side: a tensor on an array's memory, without a copy.

        ``layout`` comes from a :class:`nvmath_device.Matmul`: ``get_layout_...()`` or ``suggest_layout_...()``. The
        array has elements of that matrix's type. For shared memory and registers (``cuda.local.array``) it is 1-D,
        contiguous, and has at least ``layout.cosize`` elements. For global memory it is the tile: a 2-D view of the
        arrangement's order, or a 1-D array as a pointer to it; all of the tile lies inside, as copies know no edges. An
        array for C in global memory may have other real elements, which ``copy_fragment`` converts.
        """
        return call_in_kernel("make_tensor", "make_tensor", array, layout)


class _MakeFragmentLike(KernelFunction):
    name = "make_fragment_like"

    def __call__(self, tensor: Any, dtype: Any = None) -> Any:
        """Kernel side: an uninitialised fragment of C laid out like ``tensor``, a fragment or an accumulator.

        ``dtype`` is a real element type; by default the tensor's. ``f[i]`` and ``f[i] = v`` are element ``i`` of this
        thread's ``f.size``; the index is not checked. Loops over it should have constant bounds, such as ``f.size``:
        then it stays in registers.
        """
        return call_in_kernel("make_fragment_like", "make_fragment_like", tensor, dtype)


class _Copy(KernelFunction):
    name = "copy"

    def __call__(self, src: Any, dst: Any, alignment: Any = None) -> None:
        """Kernel side: copy a tile between global and shared memory; every thread of the block calls it.

        Both tensors are of one matrix of one descriptor. ``alignment`` is a constant, in bytes: 1, 2, 4, 8 or 16, not
        less than an element. The copy moves up to so many bytes at once, and both addresses and leading dimensions must
        be multiples of it, which only ``debug=True`` and the simulator check. By default it is the descriptor's
        alignment of that matrix. Another one than that is generated separately (6 to 10 s once).

        Into shared memory it may be asynchronous: nothing is there before ``copy_wait()`` and ``cuda.syncthreads()``.
        Guarantees no synchronisation. The whole tile is copied: nothing guards the edges of a larger matrix.
        """
        call_in_kernel("copy", "tensor_copy", src, dst, alignment)


class _CopyFragment(KernelFunction):
    name = "copy_fragment"

    def __call__(self, src: Any, dst: Any, alignment: Any = None) -> None:
        """Kernel side: copy C between this thread's registers and global or shared memory; every thread calls it.

        One of the two is a fragment (or an accumulator), the other a tensor of C of the same descriptor. ``alignment``
        as for ``copy``. Where the elements are of different types they are converted one by one. Elements of a fragment
        that lie outside of the tile are neither read nor written. Guarantees no synchronisation.
        """
        call_in_kernel("copy_fragment", "tensor_copy_fragment", src, dst, alignment)


class _CopyWait(KernelFunction):
    name = "copy_wait"

    def __call__(self) -> None:
        """Kernel side: wait for all copies that this thread has begun. Other threads' may still be on their way."""
        call_in_kernel("copy_wait", "tensor_copy_wait")


class _Clear(KernelFunction):
    name = "clear"

    def __call__(self, tensor: Any) -> None:
        """Kernel side: set this thread's elements of a fragment or an accumulator to zero."""
        call_in_kernel("clear", "tensor_clear", tensor)


class _Axpby(KernelFunction):
    name = "axpby"

    def __call__(self, alpha: Any, x: Any, beta: Any, y: Any) -> None:
        """Kernel side: y = alpha x + beta y, of fragments (or accumulators) of one layout, element by element.

        alpha and beta become of y's element type, and so does x where it has another one. With a constant beta of 0, or
        one that is 0 when the kernel runs, what y held does not matter, not even if it was NaN.
        """
        call_in_kernel("axpby", "tensor_axpby", alpha, x, beta, y)


make_tensor, make_fragment_like, copy = _MakeTensor(), _MakeFragmentLike(), _Copy()
copy_fragment, copy_wait, clear, axpby = _CopyFragment(), _CopyWait(), _Clear(), _Axpby()
