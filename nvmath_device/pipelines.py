# SPDX-License-Identifier: Apache-2.0
"""What a product of whole matrices takes, worked out before its code exists: stages, shared memory, fragments. Pure.

Tiles of A and B go along K through stages in shared memory. The block's threads share the accumulator, a tile of C, in
registers: the fragment of a thread has as many elements as each of the others'.

Where the hardware fetches whole tiles (TMA), a pipeline of libmathdx's does all of it. Its other pipelines read beyond
the edges of a matrix whose extents are no multiples of the tile's; there the block's threads fetch the tiles, with
zeros outside, and only the product of two tiles is libmathdx's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nvmath_device.descriptors import (
    NON_TRANSPOSED,
    ROW_MAJOR,
    BlockExecution,
    Dim3,
    GemmDescriptor,
    LeadingDimension,
    MatrixLayout,
)
from nvmath_device.errors import CodegenError, InvalidArgumentError, UnsupportedError
from nvmath_device.frozen import frozen, replace
from nvmath_device.lto.pipeline_recipes import pipeline_recipe, tile_recipe
from nvmath_device.lto.recipes import Recipe
from nvmath_device.own_products import OwnProduct, own_product
from nvmath_device.own_streams import OwnStream, own_stream
from nvmath_device.targets import MAX_SHARED_BYTES, ComputeCapability, chip_of

COMBINATION = ("combine", "x", "args")  # what multiply takes for it: a function, a matrix, further arguments
WANTS_COMBINATION = "wants combine, a device function, and x, a matrix of C's shape, together, and args with them only"
MAX, MOST_STAGES = "max", 16  # libmathdx takes no more
USUAL_STAGES = 4  # what a depth that is left out is at most: more hide no more, and cost other blocks their room
THREADS_STAGES = 2  # that threads fill: one is multiplied while the other is fetched
OWN_STAGES, MOST_OWN_STAGES = 3, 4  # that threads fill for products of our own, where left open and at most
_STAGE_ALIGNMENT = 128  # bytes
_ALL_BANKS, _BANKS_APART = 128, 32  # bytes, of shared memory
BARRIER_BYTES = 16  # of a stage: one for "full", one for "empty"
# A kernel that makes its pipelines keeps this much beside the stages, where it edits descriptors of tensors.
RESERVED_BYTES = 1024
TILE_BYTES, STATE_BYTES = 128, 128  # room for libmathdx's objects: 88 or 104 seen, and 32 beside the fragment
PIPELINE_BYTES = 960  # 576 seen with TMA, 72 without

BUFFER_ALIGNMENT = 1024  # of the stages: the pattern in which tiles are swizzled; libmathdx asks for 128

TMA_ALIGNMENT = 16
_MOST_SUM_BYTES = 128 * 4  # of a thread's 255 registers; 256 have none left for addresses, and are spilled
_WARPGROUP, _WARPGROUP_ROWS, _WGMMA_BLOCKS = 128, 64, (128, 256, 512)
WGMMA_ANY_ORDER = ("float16", "bfloat16")  # wgmma reads other types along K only
_ALONG_K = ("tfloat32", "float8_e4m3fn", "float8_e5m2", "int8", "uint8")


@frozen()
class PipelinePlan:
    """A pipelined GEMM with nothing left open.

    Attributes:
        descriptor, execution: one block's tile, for a concrete target and block.
        depth: stages.
        own: the product of two tiles, where that is not libmathdx's.
        stream: the loop over tiles that TMA fetches, where that is not libmathdx's.
    """

    descriptor: GemmDescriptor
    execution: BlockExecution
    depth: int
    own: OwnProduct | None = None
    stream: OwnStream | None = None

    @property
    def block_dim(self) -> Dim3:
        assert isinstance(self.execution.block_dim, Dim3)
        return self.execution.block_dim

    @property
    def is_streamed(self) -> bool:
        """Whether TMA fetches the tiles."""
        return fetched_by_tma(self.descriptor, self.execution)

    @property
    def keeps_sums(self) -> bool:
        """Whether wgmma multiplies, and a thread has registers for all of its sums."""
        return self.fragment_bytes <= _MOST_SUM_BYTES and not missing_for_wgmma(self.descriptor, self.execution)

    @property
    def recipe(self) -> Recipe:
        """Of libmathdx's code, which a product and a loop of our own do without."""
        assert self.own is None
        if self.is_streamed:
            return pipeline_recipe(self.descriptor, self.execution, depth=self.depth)
        return tile_recipe(_stored(self.descriptor), self.execution)

    @property
    def of_libmathdx(self) -> PipelinePlan:
        """The same with libmathdx's loop, where it has none of our own."""
        return replace(self, stream=None)

    @property
    def layouts(self) -> tuple[MatrixLayout, ...]:
        """The tiles of A, B and C, as threads store them."""
        own, layouts = self.own, _stored(self.descriptor).layouts
        return layouts if own is None else (own.a, own.b, layouts[2])

    @property
    def name(self) -> str:
        """Which tells plans apart whose code is not the same."""
        precision = "-".join(t.name for t in self.descriptor.precision)
        code = f"own product in {precision}, {', '.join(self.descriptor.arrangement)}"
        if self.own is None and self.stream is None:
            code = self.recipe.symbol
        block, sm = tuple(self.block_dim), self.execution.sm
        # The symbol does not tell how many stages threads fill.
        return f"{self.descriptor.size} ({code}) in {self.depth} stages by {block} for {sm and sm.sm}"

    @property
    def tile_bytes(self) -> tuple[int, int]:
        """From the tile of A to that of B in a stage, and from there to the next stage."""
        a, b = (x.cosize * v.itemsize for x, v in zip(self.layouts[:2], self.descriptor.value_types, strict=False))
        return -(-a // _STAGE_ALIGNMENT) * _STAGE_ALIGNMENT, -(-b // _STAGE_ALIGNMENT) * _STAGE_ALIGNMENT

    @property
    def buffer_bytes(self) -> int:
        """Dynamic shared memory that the stages take."""
        return self.depth * (_stage_bytes(self.descriptor) if self.is_streamed else sum(self.tile_bytes))

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
            UnsupportedError: libmathdx gives some threads more elements of C than others.
            CodegenError: a version of libmathdx that needs more room than this version of nvmath_device makes.
        """
        if not self.is_streamed:
            if sizes["c"] > self.fragment_bytes:
                (m, n, _), threads = self.descriptor.size, self.block_dim.size
                raise UnsupportedError(
                    f"multiply: libmathdx does not share a tile of {m} x {n} evenly among {threads} threads: some have "
                    f"{sizes['c']} bytes of C, where {self.fragment_bytes} for each would be all of it; take a tile of "
                    "multiples of 16 rows and columns, another block_size, or execute on tensors"
                )
            if sizes["c"] != self.fragment_bytes:
                raise CodegenError(
                    f"libmathdx made a fragment of {sizes['c']} bytes, nvmath_device has planned for "
                    f"{self.fragment_bytes}"
                )
            if sizes["accumulator"] > self.accumulator_bytes:
                raise CodegenError(
                    f"libmathdx made an accumulator of {sizes['accumulator']} bytes, nvmath_device has planned for "
                    f"{self.accumulator_bytes}"
                )
            return
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

    ``depth`` is a number of stages; ``"max"``: as many as fit; ``None``: as many as fit, but no more than four. Where
    threads fetch the tiles, they fill no more than two.

    Raises:
        InvalidArgumentError: a depth that does not fit, or a tile that the block's threads cannot share evenly.
        UnsupportedError: two stages do not fit into a block's shared memory, elements are complex, or a matrix is
            transposed before use.
    """
    if descriptor.data_type != "real":
        raise UnsupportedError("multiply: pipelines of complex matrices are not offered; use execute")
    if any(mode != NON_TRANSPOSED for mode in descriptor.transpose_mode):
        raise UnsupportedError(
            "multiply: transpose_mode is not offered; give the arrangement, and pass a and b as (M, K) and (K, N), "
            "such as x.T"
        )
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
    given = depth
    if depth is None or depth == MAX:
        depth = most if depth else min(most, USUAL_STAGES)
    if not isinstance(depth, int) or not 1 <= depth <= most:
        raise InvalidArgumentError(f"depth: {depth!r} is not allowed; give 1 to {most} stages, or 'max'")
    plan = PipelinePlan(descriptor, replace(execution, sm=sm), depth)
    if plan.is_streamed:
        is_wgmma = not missing_for_wgmma(descriptor, plan.execution)
        return replace(plan, stream=own_stream(descriptor, plan.execution)) if is_wgmma else plan
    own = own_product(descriptor, plan.execution)
    if own is not None:
        most = min(room // sum(replace(plan, own=own).tile_bytes), MOST_OWN_STAGES)
        stages = min(most, OWN_STAGES if given is None else depth)
        if stages > 1:
            return replace(plan, depth=stages, own=own)
    return replace(plan, depth=min(depth, THREADS_STAGES))


def storage_bytes(descriptor: GemmDescriptor, execution: BlockExecution, *, depth: int | str | None) -> int:
    """Dynamic shared memory that a kernel takes, whether it is linked for the chip alone, as nd.jit does, or not."""
    target = execution.sm
    assert target is not None
    return max(
        pipeline_plan(descriptor, execution, depth=depth, sm=sm).buffer_bytes for sm in {target, chip_of(target)}
    )


def fetched_by_tma(descriptor: GemmDescriptor, execution: BlockExecution) -> bool:
    """Whether tiles are fetched by TMA: a rule, read off what libmathdx 0.4.2 makes."""
    sm = execution.sm
    assert sm is not None
    if sm[:2] < (9, 0) or descriptor.alignment is None or min(descriptor.alignment[:2]) < TMA_ALIGNMENT:
        return False
    if not sm.arch:  # a kernel edits its descriptors of tensors, which code for every chip of a capability cannot
        return False
    threads = execution.block_dim.size  # type: ignore[union-attr]
    halves = all(t.name in WGMMA_ANY_ORDER for t in descriptor.precision[:2])
    return (halves and not threads & (threads - 1)) or not missing_for_wgmma(descriptor, execution)


def wgmma_multiplies(descriptor: GemmDescriptor, sm: ComputeCapability) -> bool:
    """Whether the device's warpgroup instruction has these element types."""
    kinds = {t.name for t in descriptor.precision[:2]}
    return sm[:2] == (9, 0) and kinds <= {*WGMMA_ANY_ORDER, *_ALONG_K} and descriptor.precision.c.name != "float64"


def missing_for_wgmma(descriptor: GemmDescriptor, execution: BlockExecution) -> tuple[str, ...]:
    """What a block GEMM lacks to be made of warpgroup instructions, in words."""
    sm = execution.sm
    assert sm is not None
    if not wgmma_multiplies(descriptor, sm):
        return (f"element types that wgmma multiplies, and sm_90 instead of {sm.sm}",)
    found = []
    threads = execution.block_dim.size  # type: ignore[union-attr]
    if sm.arch != "a":
        found.append("a kernel of nd.jit or nd.compile, which link for the chip alone (sm_90a)")
    if descriptor.alignment is None or min(descriptor.alignment[:2]) < TMA_ALIGNMENT:
        found.append(f"alignment of {TMA_ALIGNMENT} bytes for a and b")
    if threads not in _WGMMA_BLOCKS:
        found.append(f"a block of {', '.join(map(str, _WGMMA_BLOCKS[:-1]))} or {_WGMMA_BLOCKS[-1]} threads")
    elif descriptor.size.m % (rows := _WARPGROUP_ROWS * threads // _WARPGROUP):
        found.append(f"a tile of a multiple of {rows} rows for {threads} threads")
    along_k = descriptor.arrangement.a == ROW_MAJOR and descriptor.arrangement.b != ROW_MAJOR
    if not along_k and any(t.name not in WGMMA_ANY_ORDER for t in descriptor.precision[:2]):
        found.append("a row_major A and a col_major B, the only orders for these element types")
    return tuple(found)


def _stage_bytes(descriptor: GemmDescriptor) -> int:
    """A tile of A, one of B, and their barriers."""
    a, b, _ = (x.cosize * v.itemsize for x, v in zip(_stored(descriptor).layouts, descriptor.value_types, strict=True))
    return a + b + BARRIER_BYTES


def _stored(descriptor: GemmDescriptor) -> GemmDescriptor:
    """With the leading dimensions of the stages: tight ones, but for A and B of float64.

    Of those a half-warp reads 32 bytes of each of four lines at once, which only lie in different banks if a line is 32
    bytes longer than a multiple of 128. No other element type is multiplied by such instructions.
    """
    tight = descriptor.tight_leading_dimension
    lds = [
        ld + _BANKS_APART // value.itemsize if value.itemsize == 8 and ld * value.itemsize % _ALL_BANKS == 0 else ld
        for ld, value in zip(tight[:2], descriptor.value_types, strict=False)
    ]
    return replace(descriptor, leading_dimension=LeadingDimension(lds[0], lds[1], tight[2]))
