# SPDX-License-Identifier: Apache-2.0
"""The recipes of opaque tensors: all device functions of a block GEMM on tensors, in one piece of code.

What takes the time is the product: all 21 functions of a family take as long as it alone (17 s), and those that a
kernel does not call vanish when it is linked. A family has one kind of layout in shared memory and registers, the plain
or the suggested one. Copies in pieces of other sizes than the descriptor's alignment says are a small family of their
own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nvmath_device.frozen import replace
from nvmath_device.lto.recipes import Recipe, gemm_operators

if TYPE_CHECKING:
    from nvmath_device.descriptors import BlockExecution, GemmDescriptor

PLAIN, SUGGESTED = "PLAIN", "SUGGESTED"
COPIES = "_COPIES"  # of a family without the rest of it
COPY_ROLES = (
    "load_a", "load_b", "load_c", "store_a", "store_b", "store_c",
    "fragment_from_gmem", "fragment_to_gmem", "fragment_from_smem", "fragment_to_smem",
)  # fmt: skip
ROLES = (
    *COPY_ROLES, "clear", "axpby", "execute", "execute_shared", "coordinate", "is_thread_active",
    "is_predicated", "is_index_in_bounds", "place_a", "place_b", "place_c",
)  # fmt: skip


def tensor_recipe(
    descriptor: GemmDescriptor, execution: BlockExecution, *, is_suggested: bool, copy_alignment: int | None = None
) -> Recipe:
    """The recipe of a family, for a concrete target, block and leading dimension.

    The block is fixed: a fragment is one thread's part of C. ``copy_alignment``: only copies, in pieces of at most so
    many bytes.

    Raises:
        InvalidArgumentError: libmathdx does not multiply these element types.
    """
    kind = SUGGESTED if is_suggested else PLAIN
    family: list[tuple[str, object]] = []
    if not is_suggested and descriptor.leading_dimension != descriptor.tight_leading_dimension:
        family.append(("LEADING_DIMENSION", tuple(descriptor.leading_dimension)))  # type: ignore[arg-type]
    if copy_alignment is None:
        family += [("TENSORS", kind), ("COPY_ALIGNMENT", tuple(descriptor.alignment))]  # type: ignore[arg-type]
    else:
        family += [("TENSORS", kind + COPIES), ("COPY_ALIGNMENT", (copy_alignment,) * 3)]
    return Recipe("cublasdx", (*_operators(descriptor, execution), *family), "nvmath_device_tensors")


def trait_recipe(descriptor: GemmDescriptor, execution: BlockExecution) -> Recipe:
    """The question how large the tensors of a descriptor are, those of both families."""
    return Recipe("cublasdx", _operators(descriptor, execution), "nvmath_device_tensor_traits")


def _operators(descriptor: GemmDescriptor, execution: BlockExecution) -> tuple[tuple[str, object], ...]:
    fixed = replace(execution, static_block_dim=True, with_pipeline=False, enable_input_streaming=False)
    return gemm_operators(descriptor, fixed, api="TENSORS")


def roles_of(recipe: Recipe) -> tuple[str, ...]:
    """What is generated for a recipe."""
    return COPY_ROLES if dict(recipe.operators)["TENSORS"].endswith(COPIES) else ROLES


def symbol_of(recipe: Recipe, role: str) -> str:
    """Name of the function of a role: it follows from the recipe."""
    return f"{recipe.symbol}_{role}"
