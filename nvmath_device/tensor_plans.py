# SPDX-License-Identifier: Apache-2.0
"""The opaque tensors of a block GEMM with nothing left open: their code, and how large they are."""

from __future__ import annotations

from collections.abc import Mapping

from nvmath_device import simulation
from nvmath_device.descriptors import BlockExecution, Dim3, GemmDescriptor, MatrixLayout
from nvmath_device.dtypes import ValueType
from nvmath_device.frozen import frozen, replace
from nvmath_device.lto.recipes import Recipe
from nvmath_device.lto.tensor_recipes import tensor_recipe, trait_recipe


@frozen()
class TensorPlan:
    """A block GEMM on tensors.

    Attributes:
        descriptor, execution: for a concrete target, block and leading dimension. The block is the one that must launch
            the kernel, as fragments are shared out to just its threads; there is no pipeline.
    """

    descriptor: GemmDescriptor
    execution: BlockExecution

    def __post_init__(self) -> None:
        fixed = replace(self.execution, static_block_dim=True, with_pipeline=False, enable_input_streaming=False)
        object.__setattr__(self, "execution", fixed)

    @property
    def block_dim(self) -> Dim3:
        assert isinstance(self.execution.block_dim, Dim3)
        return self.execution.block_dim

    @property
    def layouts(self) -> tuple[MatrixLayout, MatrixLayout, MatrixLayout]:
        """A, B and C as stored plainly in shared memory."""
        return self.descriptor.layouts

    def value(self, place: int) -> ValueType:
        """What an element of A, B or C (0, 1, 2) is."""
        return self.descriptor.value_types[place]

    def promised(self, place: int) -> int:
        """Bytes that the descriptor says a matrix is aligned to: what a copy moves at once where it is told nothing."""
        assert self.descriptor.alignment is not None
        return self.descriptor.alignment[place]

    def recipe(self, is_suggested: bool, copy_alignment: int | None = None) -> Recipe:
        """What the functions of a family are generated from; ``copy_alignment``: only copies, in other pieces."""
        return tensor_recipe(self.descriptor, self.execution, is_suggested=is_suggested, copy_alignment=copy_alignment)

    # -- what libmathdx decides ------------------------------------------------------------------------------------

    def fragment_size(self, is_suggested: bool) -> int:
        """Elements of C that a thread holds, those outside of the tile included."""
        if simulation.is_active():
            c = self.layouts[2]
            return -(-c.rows * c.cols // self.block_dim.size)
        return self._traits["suggested_rmem_c" if is_suggested else "rmem_c"][0]

    def fragment_alignment(self, is_suggested: bool) -> int:
        """Bytes."""
        if simulation.is_active():
            return self.value(2).alignment
        return self._traits["suggested_rmem_c" if is_suggested else "rmem_c"][2]

    def suggested_elements(self, place: int) -> int:
        """Elements of the memory for a matrix in its suggested layout in shared memory."""
        if simulation.is_active():
            return self.layouts[place].cosize
        _, nbytes, _ = self._traits[f"suggested_smem_{'abc'[place]}"]
        return -(-nbytes // self.value(place).itemsize)

    def suggested_alignment(self, place: int) -> int:
        """Bytes."""
        if simulation.is_active():
            return self.promised(place)
        return self._traits[f"suggested_smem_{'abc'[place]}"][2]

    @property
    def _traits(self) -> Mapping[str, tuple[int, int, int]]:
        """libmathdx's answer: asked once, then in the store."""
        found = _asked.get(self)
        if found is None:
            from nvmath_device.lto import codegen

            found = _asked[self] = codegen.tensor_traits(trait_recipe(self.descriptor, self.execution))
        return found


_asked: dict[TensorPlan, Mapping[str, tuple[int, int, int]]] = {}
