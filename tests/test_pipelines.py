# SPDX-License-Identifier: Apache-2.0
"""Plans of pipelined GEMMs: stages, shared memory and fragments, worked out before there is code."""

from __future__ import annotations

import json
import re

import pytest

import nvmath_device as nd
from nvmath_device.errors import CodegenError, InvalidArgumentError, UnsupportedError
from nvmath_device.lto.pipeline_recipes import ROLES, symbol_of
from nvmath_device.lto.recipes import Recipe
from nvmath_device.pipelines import pipeline_plan

ROW, COL = "row_major", "col_major"
SM90, SM90A = nd.ComputeCapability(9, 0), nd.ComputeCapability(9, 0, "a")
HALF = ("float16", "float16", "float32")


def gemm(size=(128, 256, 64), precision=HALF, block_size=256, alignment=nd.MAX_ALIGNMENT, **options):
    return nd.Matmul(
        size, precision, "real", arrangement=(ROW, COL, ROW), block_size=block_size, alignment=alignment, **options
    )


def plan(mm, depth=None, sm=SM90A):
    return pipeline_plan(*mm.resolved(sm), depth=depth, sm=sm)


# What libmathdx 0.4.2 says of pipelines of as many stages as fit: tile, types, threads; stages, bytes of the buffer,
# of the fragment and of the accumulator.
SAID = [
    ((128, 256, 64), HALF, 256, 4, 196_672, 512, 544),
    ((256, 128, 64), HALF, 256, 4, 196_672, 512, 544),
    ((128, 128, 64), HALF, 128, 7, 229_488, 512, 544),
    ((128, 256, 32), ("tfloat32", "tfloat32", "float32"), 256, 4, 196_672, 512, 544),
    ((128, 256, 128), ("float8_e4m3fn", "float8_e4m3fn", "float32"), 256, 4, 196_672, 512, 544),
]


@pytest.mark.parametrize(("size", "precision", "threads", "depth", "buffer", "fragment", "accumulator"), SAID)
def test_plans_agree_with_libmathdx(size, precision, threads, depth, buffer, fragment, accumulator):
    made = plan(gemm(size, precision, threads), "max")
    assert (made.depth, made.buffer_bytes, made.fragment_bytes) == (depth, buffer, fragment)
    assert made.accumulator_bytes >= accumulator
    made.check(
        {
            "buffer": buffer, "fragment": fragment, "accumulator": accumulator, "tile": 104, "pipeline": 576,
            "block_dim": [threads, 1, 1],
        }
    )  # fmt: skip


def test_the_usual_depth_is_no_more_than_four():
    small = gemm((64, 64, 32), block_size=128)
    assert [plan(small, depth).depth for depth in (None, 1, 16, "max")] == [4, 1, 16, 16]
    assert plan(gemm((256, 256, 64), block_size=256)).depth == 3


def test_the_host_knows_the_bytes_to_launch_with():
    assert gemm().get_pipeline_storage_size(sm=90) == gemm(sm="90a").get_pipeline_storage_size() == 196_672
    assert gemm().get_pipeline_storage_size(2, sm=90) == 98_336
    assert (
        gemm(sm=80, with_pipeline=True).get_pipeline_storage_size("max")
        == plan(gemm(), "max", nd.ComputeCapability(8, 0)).buffer_bytes
    )
    fp8 = gemm((128, 128, 64), ("float8_e4m3fn", "float8_e4m3fn", "float32"), 128)
    linked_for = [plan(fp8, sm=sm).buffer_bytes for sm in (SM90, SM90A)]
    assert linked_for[0] < linked_for[1] == fp8.get_pipeline_storage_size(sm=90)


# Tiles that threads fetch: tile, types, threads, alignment, target; bytes of the buffer.
FETCHED = [
    ((128, 128, 16), "float32", 256, 16, nd.ComputeCapability(7, 5), 2 * 2 * 128 * 16 * 4),
    ((64, 128, 16), "float64", 256, 16, nd.ComputeCapability(8, 0), 2 * (64 + 128) * (16 + 4) * 8),
    ((128, 256, 64), HALF, 256, 2, SM90A, 2 * (128 + 256) * 64 * 2),
    ((128, 256, 64), HALF, 256, 16, nd.ComputeCapability(8, 0), 2 * (128 + 256) * 64 * 2),
    ((128, 256, 64), HALF, 256, 16, SM90, 2 * (128 + 256) * 64 * 2),  # the chip alone can edit TMA's descriptors
    ((192, 128, 64), HALF, 384, 16, SM90A, 2 * (192 + 128) * 64 * 2),
    ((33, 5, 7), HALF, 33, 2, SM90A, 2 * (512 + 128)),
]


@pytest.mark.parametrize(("size", "precision", "threads", "alignment", "sm", "buffer"), FETCHED)
def test_where_libmathdx_would_read_beyond_the_edges_threads_fetch(size, precision, threads, alignment, sm, buffer):
    """Its pipelines without TMA have no bounds: only the product of two tiles is taken from it."""
    given = {"alignment": nd.MAX_ALIGNMENT if alignment == 16 else None}
    made = plan(gemm(size, precision, threads, with_pipeline=True, **given), "max", sm)
    assert not made.is_streamed
    assert (made.depth, made.buffer_bytes) == (2, buffer)
    operators = dict(made.recipe.operators)
    assert operators["API"] == "TENSORS"
    assert not {"PIPELINE_DEPTH", "WITH_PIPELINE", "ENABLE_INPUT_STREAMING"} & operators.keys()
    sizes = {"a": 0, "b": 0, "accumulator": made.accumulator_bytes, "c": made.fragment_bytes}
    made.check(sizes)
    with pytest.raises(CodegenError, match="fragment of 1 bytes"):
        made.check({**sizes, "c": 1})
    with pytest.raises(CodegenError, match=f"accumulator of {made.accumulator_bytes + 1} bytes"):
        made.check({**sizes, "accumulator": made.accumulator_bytes + 1})


def test_tiles_that_threads_fetch_are_stored_tightly():
    mm = nd.Matmul(
        (32, 48, 16), "float32", "real", arrangement=(ROW, COL, ROW), block_size=64, leading_dimension=(20, 24, 52)
    )
    assert [x.ld for x in plan(mm).layouts] == [16, 16, 48]


@pytest.mark.parametrize("arrangement", [(ROW, ROW, ROW), (COL, ROW, ROW), (ROW, COL, ROW), (COL, COL, COL)])
def test_four_lines_of_doubles_lie_in_different_banks(arrangement):
    """A half-warp reads 32 bytes of each; shared memory has 32 banks of 4 bytes."""
    mm = nd.Matmul((128, 64, 16), "float64", "real", arrangement=arrangement, block_size=256)
    made = plan(mm, sm=nd.ComputeCapability(8, 0))
    for layout in made.layouts[:2]:
        banks = {(line * layout.ld * 8 + byte) // 4 % 32 for line in range(4) for byte in range(0, 32, 4)}
        assert len(banks) == 32
        assert layout.ld * 8 % 16 == 0  # whole vectors of 16 bytes
    assert dict(made.recipe.operators)["LEADING_DIMENSION"] == tuple(x.ld for x in made.layouts)


@pytest.mark.parametrize(
    ("options", "keeps"),
    [
        ({}, True),
        ({"precision": ("float8_e4m3fn", "float8_e4m3fn", "float32"), "size": (128, 256, 128)}, True),
        ({"size": (64, 128, 64)}, False),  # mma: too few rows for two warpgroups
        ({"block_size": 128}, False),  # 256 numbers a thread
        ({"block_size": 128, "precision": ("float16",) * 3}, True),  # two to a register
        ({"alignment": None}, False),  # fetched by threads
    ],
)
def test_sums_of_wgmma_stay_in_registers_that_have_room_for_them(options, keeps):
    assert plan(gemm(**options)).keeps_sums == keeps


def test_a_transposed_operand_is_refused():
    mm = nd.Matmul((32, 32, 32), "float32", "real", transpose_mode=("transposed", "non_transposed"), block_size=64)
    with pytest.raises(UnsupportedError, match="give the arrangement"):
        plan(mm)


@pytest.mark.parametrize("depth", [0, -1, 5, 17, "most", 2.0])
def test_a_depth_that_does_not_fit_is_refused_with_what_does(depth):
    with pytest.raises(InvalidArgumentError, match=f"depth: {re.escape(repr(depth))} .*1 to 4 stages, or 'max'"):
        plan(gemm(), depth)


def test_tiles_that_do_not_fit_twice_are_refused():
    with pytest.raises(UnsupportedError, match=r"two stages of 65,552 bytes do not fit into the 100,352 bytes.*sm_86"):
        plan(gemm((256, 256, 64)), sm=nd.ComputeCapability(8, 6))


def test_complex_and_uneven_tiles_are_refused():
    mm = nd.Matmul((32, 32, 32), "float32", "complex", arrangement=(ROW, COL, ROW), block_size=128)
    with pytest.raises(UnsupportedError, match="complex"):
        plan(mm)
    with pytest.raises(InvalidArgumentError, match="33 x 31 cannot be shared evenly by 64 threads"):
        plan(gemm((33, 31, 16), block_size=64))


GOOD = {"buffer": 196_672, "fragment": 512, "accumulator": 544, "tile": 104, "pipeline": 576, "block_dim": [256, 1, 1]}


@pytest.mark.parametrize(
    "change",
    [{"buffer": 196_673}, {"fragment": 508}, {"fragment": 516}, {"accumulator": 641}, {"tile": 129}, {"pipeline": 961},
     {"block_dim": [384, 1, 1]}],
)  # fmt: skip
def test_a_libmathdx_that_needs_more_is_noticed(change):
    plan(gemm()).check(GOOD)
    with pytest.raises(CodegenError, match="not planned for"):
        plan(gemm()).check({**GOOD, **change})


def test_shares_of_other_sizes_are_refused():
    made = plan(gemm((24, 8, 8), block_size=32, alignment=None))
    sizes = {"c": made.fragment_bytes, "accumulator": made.fragment_bytes}
    made.check(sizes)
    with pytest.raises(UnsupportedError, match="24 x 8 evenly among 32 threads"):
        made.check({**sizes, "c": made.fragment_bytes + 4})
    with pytest.raises(CodegenError, match="planned for"):
        made.check({**sizes, "c": made.fragment_bytes - 4})


def test_less_room_than_planned_is_no_matter():
    plan(gemm()).check({**GOOD, "buffer": 196_000, "tile": 88, "pipeline": 72, "accumulator": 530})


# -- recipes -------------------------------------------------------------------------------------------------


def test_a_recipe_has_the_operators_of_pipelines_whatever_the_descriptor_says():
    made = plan(gemm(), 3).recipe
    operators = dict(made.operators)
    assert operators["API"] == "TENSORS"
    assert operators["PIPELINE_DEPTH"] == 3
    for name in ("STATIC_BLOCK_DIM", "WITH_PIPELINE", "ENABLE_INPUT_STREAMING"):
        assert operators[name] == "ENABLED"
    same = gemm(with_pipeline=True, enable_input_streaming=True, static_block_dim=True)
    assert plan(same, 3).recipe == made


def test_recipes_survive_the_way_to_a_worker():
    made = plan(gemm(alignment=nd.MAX_ALIGNMENT)).recipe
    assert Recipe.from_json(json.loads(json.dumps(made.to_json()))) == made
    assert made.chip == "a"
    assert plan(gemm(), sm=SM90).recipe.chip == ""


def test_names_differ_by_role_and_by_recipe():
    recipes = [plan(gemm(), 3).recipe, plan(gemm(), 4).recipe, plan(gemm(block_size=128)).recipe]
    names = {symbol_of(recipe, role) for recipe in recipes for role in ROLES}
    assert len(names) == 3 * len(ROLES)
    assert all(re.fullmatch(r"nvmath_device_pipe_[0-9a-f]{20}_\w+", name) for name in names)
