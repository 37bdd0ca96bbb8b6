# SPDX-License-Identifier: Apache-2.0
"""The layouts of a ``Matmul``, and how much shared memory its matrices take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nvmath_device.checks import positive_int
from nvmath_device.descriptors import COL_MAJOR, SUGGESTED, MatrixLayout
from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError
from nvmath_device.shared_storage import SharedStorageCalc
from nvmath_device.tensor_layouts import GMEM, RMEM, SMEM, Layout

if TYPE_CHECKING:
    from nvmath_device.device_pipelines import DevicePipeline


class MatmulLayouts:
    """The layouts of :class:`nvmath_device.Matmul`, on the host and in kernels."""

    def get_layout_gmem_a(self, leading_dimension: int | None = None) -> Layout:
        """A in global memory, in the order of the arrangement: a tile of a larger matrix, say.

        ``leading_dimension`` is in elements, and in a kernel a run-time value. ``None``: that of the 2-D array that a
        tensor is made of, or the descriptor's for a 1-D array, which is a pointer.
        """
        return self._gmem("a", leading_dimension)

    def get_layout_gmem_b(self, leading_dimension: int | None = None) -> Layout:
        """As :meth:`get_layout_gmem_a` for B."""
        return self._gmem("b", leading_dimension)

    def get_layout_gmem_c(self, leading_dimension: int | None = None) -> Layout:
        """As :meth:`get_layout_gmem_a` for C."""
        return self._gmem("c", leading_dimension)

    def get_layout_smem_a(self) -> Layout:
        """A in shared memory, in the order of the arrangement with the descriptor's leading dimension."""
        return self._layout(SMEM, "a")

    def get_layout_smem_b(self) -> Layout:
        """As :meth:`get_layout_smem_a` for B."""
        return self._layout(SMEM, "b")

    def get_layout_smem_c(self) -> Layout:
        """As :meth:`get_layout_smem_a` for C."""
        return self._layout(SMEM, "c")

    def suggest_layout_smem_a(self) -> Layout:
        """A in shared memory as libmathdx reads it fastest, swizzled, say. Only its own copies know where elements are.

        Its size is asked of libmathdx, 8 s once for all of a descriptor, then stored. On the simulator it is the plain
        layout.
        """
        return self._layout(SMEM, "a", is_suggested=True)

    def suggest_layout_smem_b(self) -> Layout:
        """As :meth:`suggest_layout_smem_a` for B."""
        return self._layout(SMEM, "b", is_suggested=True)

    def suggest_layout_smem_c(self) -> Layout:
        """As :meth:`suggest_layout_smem_a` for C."""
        return self._layout(SMEM, "c", is_suggested=True)

    def get_layout_rmem_c(self) -> Layout:
        """C in the registers of the block's threads, to go with plain layouts; its size is a thread's part.

        Asked of libmathdx as for :meth:`suggest_layout_smem_a`. On the simulator a thread has every ``block_size``-th
        element, in an order of its own.
        """
        return self._layout(RMEM, "c")

    def suggest_layout_rmem_c(self) -> Layout:
        """As :meth:`get_layout_rmem_c`, to go with suggested layouts."""
        return self._layout(RMEM, "c", is_suggested=True)

    def suggest_device_pipeline(self, depth: int | str | None, a: Any, b: Any) -> DevicePipeline:
        """Whole matrices ``a`` (M, K) and ``b`` (K, N), as an argument of kernels that stream their tiles.

        :meth:`Matmul.multiply` does the same in one call, and needs no pipeline on the host.

        Args:
            depth: stages in shared memory; ``"max"``: as many as fit; ``None``: the same, but no more than four.
            a, b: arrays on the GPU of any library, of the descriptor's element types, orders and alignment.

        Raises:
            InvalidArgumentError, ArgumentTypeError, UnsupportedError: they do not fit, or there is no such pipeline.
        """
        from nvmath_device.device_pipelines import DevicePipeline

        return DevicePipeline(self, depth, a, b)  # type: ignore[arg-type]

    # -- shared memory -------------------------------------------------------------------------------------------

    def get_shared_storage_size(self, *args: Any) -> int:
        """Bytes of dynamic shared memory for A, B and C one after the other, each aligned to at least 16 bytes.

        Without arguments for the descriptor's leading dimensions; with ``(lda, ldb, ldc)`` for those; with three
        layouts for those: :class:`MatrixLayout`, or a :class:`Layout` of A, B and C in shared memory.

        Raises:
            InvalidArgumentError, ArgumentTypeError: something else, or layouts of other matrices.
        """
        return self._storage(args, 3)

    def get_shared_storage_size_ab(self, *args: Any) -> int:
        """Bytes for A and B only; arguments as in :meth:`get_shared_storage_size`, two of them."""
        return self._storage(args, 2)

    def _storage(self, args: tuple[Any, ...], count: int) -> int:
        if len(args) not in (0, count):
            raise InvalidArgumentError(
                f"give no argument, {count} leading dimensions or {count} layouts; got {len(args)}"
            )
        descriptor = self.descriptor  # type: ignore[attr-defined]
        layouts: tuple[Any, ...] = args or self.layouts[:count]  # type: ignore[attr-defined]
        of_layouts = [isinstance(x, MatrixLayout | Layout) for x in args]
        if any(of_layouts) and not all(of_layouts):
            raise ArgumentTypeError(f"each argument must be a layout, or each a leading dimension; got {args!r}")
        if args and not any(of_layouts):
            given = (*args, *descriptor.tight_leading_dimension[count:])
            layouts = descriptor.replace(leading_dimension=given).layouts[:count]
        calc = SharedStorageCalc()
        for matrix, layout, value, alignment in zip(
            "abc", layouts, descriptor.value_types, descriptor.alignment, strict=False
        ):
            if isinstance(layout, Layout):
                self._check_shared(matrix, layout)
                alignment = layout.alignment
            calc.add(max(alignment, 16), value.itemsize, layout)
        return calc.get()

    def _check_shared(self, matrix: str, layout: Layout) -> None:
        if (layout.memory, layout.matrix, layout.matmul) != (SMEM, matrix, self):
            raise InvalidArgumentError(
                f"layout of {matrix.upper()}: {layout!r} is not one; give get_layout_smem_{matrix}() or "
                f"suggest_layout_smem_{matrix}() of this Matmul, {self!r}"
            )

    def _gmem(self, matrix: str, leading_dimension: int | None) -> Layout:
        if leading_dimension is not None:
            leading_dimension = positive_int(leading_dimension, argument="leading_dimension")
            plain = self._as_stored["abc".index(matrix)]
            least, what = (plain.rows, "rows") if plain.order == COL_MAJOR else (plain.cols, "columns")
            if leading_dimension < least:
                raise InvalidArgumentError(
                    f"leading_dimension: {leading_dimension} is less than the {least} {what} of the {plain.order} "
                    f"matrix {matrix.upper()}; it must be at least {least}"
                )
        return self._layout(GMEM, matrix, leading_dimension=leading_dimension)

    def _layout(self, memory: str, matrix: str, **rest: Any) -> Layout:
        return Layout(self, memory, matrix, **rest)  # type: ignore[arg-type]

    @property
    def _as_stored(self) -> tuple[MatrixLayout, ...]:
        """Extents and orders, whatever the leading dimensions are."""
        descriptor = self.descriptor  # type: ignore[attr-defined]
        if descriptor.leading_dimension == SUGGESTED:
            descriptor = descriptor.replace(leading_dimension=None)
        return descriptor.layouts
