# SPDX-License-Identifier: Apache-2.0
"""The recipes of a product of whole matrices: tiles of A and B that go through shared memory into an accumulator.

Either all of it is libmathdx's, a pipeline, or only what multiplies two tiles that are there. Shapes and leading
dimensions are run-time values, so one recipe serves every matrix of its element types and orders.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nvmath_device.frozen import replace
from nvmath_device.lto.recipes import Recipe, gemm_operators

if TYPE_CHECKING:
    from nvmath_device.descriptors import BlockExecution, GemmDescriptor

# What is generated, by role, in the order in which a kernel calls it.
TILE_ROLES = ("accumulator_clear", "execute", "finish", "fragment", "coordinate")
ROLES = (
    "pipeline_create", "tile_create", "accumulator_create", "accumulator_clear", "execute", "finish", "fragment",
    "coordinate", "store", "tile_destroy", "pipeline_destroy",
)  # fmt: skip


def pipeline_recipe(descriptor: GemmDescriptor, execution: BlockExecution, *, depth: int) -> Recipe:
    """The recipe of all functions of a pipeline of ``depth`` stages, for a concrete target and block.

    The block is fixed: the accumulator's elements are shared out to just its threads.

    Raises:
        InvalidArgumentError: libmathdx does not multiply these element types.
    """
    fixed = replace(execution, static_block_dim=True, with_pipeline=True, enable_input_streaming=True)
    operators: tuple[tuple[str, Any], ...] = (
        *gemm_operators(descriptor, fixed, api="TENSORS"),
        ("PIPELINE_DEPTH", depth),
    )
    return Recipe("cublasdx", operators, "nvmath_device_pipe")


def tile_recipe(descriptor: GemmDescriptor, execution: BlockExecution) -> Recipe:
    """The recipe of the product of two tiles in shared memory, for a concrete target, block and leading dimension.

    Raises:
        InvalidArgumentError: libmathdx does not multiply these element types.
    """
    fixed = replace(execution, static_block_dim=True, with_pipeline=False, enable_input_streaming=False)
    operators = gemm_operators(descriptor, fixed, api="TENSORS")
    if descriptor.leading_dimension != descriptor.tight_leading_dimension:
        operators = (*operators, ("LEADING_DIMENSION", tuple(descriptor.leading_dimension)))  # type: ignore[arg-type]
    return Recipe("cublasdx", operators, "nvmath_device_tiles")


def symbol_of(recipe: Recipe, role: str) -> str:
    """Name of the function of a role: it follows from the recipe."""
    return f"{recipe.symbol}_{role}"
