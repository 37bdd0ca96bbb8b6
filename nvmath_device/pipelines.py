# SPDX-License-Identifier: Apache-2.0
"""What a pipelined GEMM takes, worked out before its code exists: stages, shared memory, fragments. Pure.

A pipeline streams tiles of A and B along K through stages in shared memory. Its block's threads share the
accumulator, a tile of C, in registers: the fragment of a thread has as many elements as each of the others'.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nvmath_device.descriptors import BlockExecution, Dim3, GemmDescriptor
from nvmath_device.errors import CodegenError, InvalidArgumentError, UnsupportedError
from nvmath_device.frozen import frozen, replace
from nvmath_device.lto.pipeline_recipes import pipeline_recipe
from nvmath_device.lto.recipes import Recipe
from nvmath_device.targets import MAX_SHARED_BYTES, ComputeCapability

MAX, MOST_STAGES = "max", 16  # libmathdx takes no more
USUAL_STAGES = 4  # what a depth that is left out is at most: more hide no more, and cost other blocks their room
BARRIER_BYTES = 16  # of a stage: one for "full", one for "empty"
# A kernel that makes its pipelines keeps this much beside the stages, where it edits descriptors of tensors.
RESERVED_BYTES = 1024
TILE_BYTES, STATE_BYTES = 128, 128  # room for libmathdx's objects: 88 or 104 seen, and 32 beside the fragment
PIPELINE_BYTES = 960  # 576 seen with TMA, 72 without


@frozen()
class PipelinePlan:
    """A pipelined GEMM with nothing left open.

    Attributes:
        descriptor, execution: one block's tile, for a concrete target and block.
        depth: stages.
    """

    descriptor: GemmDescriptor
    execution: BlockExecution
    depth: int

    @property
    def block_dim(self) -> Dim3:
        assert isinstance(self.execution.block_dim, Dim3)
        return self.execution.block_dim

    @property
    def recipe(self) -> Recipe:
        return pipeline_recipe(self.descriptor, self.execution, depth=self.depth)

    @property
    def buffer_bytes(self) -> int:
        """Dynamic shared memory that the stages take."""
        return self.depth * _stage_bytes(self.descriptor)

    @property
    def fragment_size(self) -> int:
        """Elements of C that a thread holds."""
        m, n, _ = self.descriptor.size
        return m * n // self.block_dim.size

    @property
    def fragment_bytes(self) -> int:
        return self.fragment_size * self.descriptor.value_types[2].itemsize

    @property
    def accumulator_bytes(self) -> int:
        """Room for libmathdx's accumulator object."""
        return self.fragment_bytes + STATE_BYTES

    def check(self, sizes: Mapping[str, Any]) -> None:
        """Compare with what libmathdx says of the code that it generated.

        Raises:
            CodegenError: a version of libmathdx that needs more room than this version of nvmath_device makes.
        """
        have = {
            "buffer": self.buffer_bytes, "fragment": self.fragment_bytes, "accumulator": self.accumulator_bytes,
            "tile": TILE_BYTES, "pipeline": PIPELINE_BYTES,
        }  # fmt: skip
        short = {name: (sizes[name], room) for name, room in have.items() if sizes[name] > room}
        if short or sizes["fragment"] != self.fragment_bytes or tuple(sizes["block_dim"]) != self.block_dim:
            raise CodegenError(
                f"libmathdx made a pipeline that nvmath_device has not planned for: bytes (needed, planned) {short}, "
                f"fragment {sizes['fragment']} and {self.fragment_bytes}, block {tuple(sizes['block_dim'])} and "
                f"{self.block_dim}"
            )


def pipeline_plan(
    descriptor: GemmDescriptor, execution: BlockExecution, *, depth: int | str | None, sm: ComputeCapability
) -> PipelinePlan:
    """The plan of a pipeline for ``sm``.

    ``depth`` is a number of stages; ``"max"``: as many as fit; ``None``: as many as fit, but no more than four.

    Raises:
        InvalidArgumentError: a depth that does not fit, or a tile that the block's threads cannot share evenly.
        UnsupportedError: two stages do not fit into a block's shared memory, or elements are complex.
    """
    if descriptor.data_type != "real":
        raise UnsupportedError("multiply: pipelines of complex matrices are not offered; use execute")
    threads = execution.block_dim.size  # type: ignore[union-attr]
    m, n, _ = descriptor.size
    if m * n % threads:
        raise InvalidArgumentError(f"multiply: a tile of {m} x {n} cannot be shared evenly by {threads} threads")
    stage, room = _stage_bytes(descriptor), MAX_SHARED_BYTES[sm[:2]] - RESERVED_BYTES
    most = min(room // stage, MOST_STAGES)
    if most < 2:
        raise UnsupportedError(
            f"multiply: two stages of {stage:,} bytes do not fit into the {room:,} bytes of shared memory that a block "
            f"of {sm.sm} has for them; take a smaller tile"
        )
    if depth is None or depth == MAX:
        depth = most if depth else min(most, USUAL_STAGES)
    if not isinstance(depth, int) or not 1 <= depth <= most:
        raise InvalidArgumentError(f"depth: {depth!r} is not allowed; give 1 to {most} stages, or 'max'")
    return PipelinePlan(descriptor, replace(execution, sm=sm), depth)


def _stage_bytes(descriptor: GemmDescriptor) -> int:
    """A tile of A, one of B, and their barriers."""
    m, n, k = descriptor.size
    a, b, _ = descriptor.value_types
    return m * k * a.itemsize + k * n * b.itemsize + BARRIER_BYTES
