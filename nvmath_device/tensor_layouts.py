# SPDX-License-Identifier: Apache-2.0
"""Layouts of a block GEMM's matrices in global memory, shared memory and registers, and how large they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nvmath_device.descriptors import MatrixLayout
from nvmath_device.frozen import frozen
from nvmath_device.tensor_plans import TensorPlan

if TYPE_CHECKING:
    from nvmath_device.matmul import Matmul

GMEM, SMEM, RMEM = "gmem", "smem", "rmem"
MEMORY_WORDS = {GMEM: "global memory", SMEM: "shared memory", RMEM: "registers"}
COPY_ALIGNMENTS = (1, 2, 4, 8, 16)


@frozen()
class Layout:
    """Where the elements of a matrix are: what :func:`nvmath_device.make_tensor` makes a tensor with.

    Made by methods of :class:`nvmath_device.Matmul`, on the host and in kernels. It belongs to that descriptor: tensors
    of another one are refused, also where they would look the same.

    Attributes:
        matmul: the descriptor.
        memory: ``"gmem"``, ``"smem"`` or ``"rmem"``.
        matrix: ``"a"``, ``"b"`` or ``"c"``.
        is_suggested: whether libmathdx chose the layout, for speed; which it is it does not say.
        leading_dimension: of a matrix in global memory, in elements; ``None``: a 2-D array's own, or for a 1-D array
            the descriptor's.
    """

    matmul: Matmul
    memory: str
    matrix: str
    is_suggested: bool = False
    leading_dimension: int | None = None

    @property
    def size(self) -> int:
        """Elements of the matrix; of a layout in registers those that a thread holds."""
        if self.memory == RMEM:
            return self.plan.fragment_size(self.is_suggested)
        plain = self.plan.layouts[self.place]
        return plain.rows * plain.cols

    @property
    def cosize(self) -> int:
        """Elements that the memory for it must have, padding between lines included."""
        if self.memory == RMEM:
            return self.plan.fragment_size(self.is_suggested)
        if self.is_suggested:
            return self.plan.suggested_elements(self.place)
        plain, ld = self.plan.layouts[self.place], self.leading_dimension
        return plain.cosize if ld is None else MatrixLayout(plain.rows, plain.cols, plain.order, ld).cosize

    @property
    def alignment(self) -> int:
        """Bytes that the memory for it must be aligned to. Copies in pieces of more bytes than that ask for more."""
        if self.memory == GMEM:
            return self.plan.value(self.place).alignment
        if self.memory == RMEM:
            return self.plan.fragment_alignment(self.is_suggested)
        return self.plan.suggested_alignment(self.place) if self.is_suggested else self.plan.promised(self.place)

    @property
    def plan(self) -> TensorPlan:
        """The tensors of the descriptor, for its own target, else the current device."""
        return TensorPlan(*(self.matmul.resolved() if self.is_question else self.matmul._here))

    @property
    def is_question(self) -> bool:
        """Whether its size is for libmathdx to say, so that it depends on the target."""
        return self.is_suggested or self.memory == RMEM

    @property
    def place(self) -> int:
        """0, 1 or 2 for A, B or C."""
        return "abc".index(self.matrix)

    @property
    def call(self) -> str:
        """The method that gives it, for messages."""
        return f"{'suggest' if self.is_suggested else 'get'}_layout_{self.memory}_{self.matrix}()"

    def __repr__(self) -> str:
        ld = "" if self.leading_dimension is None else f", leading_dimension={self.leading_dimension}"
        return f"Layout({self.call[:-2]} of {self.matmul!r}{ld})"

    @property
    def _numba_type_(self) -> Any:
        from nvmath_device.numba_backend import layout_type

        return layout_type(self)
