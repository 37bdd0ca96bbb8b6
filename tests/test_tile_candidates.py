# SPDX-License-Identifier: Apache-2.0
"""Which tiles are tried for a product, and which are refused before anything is compiled."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nvmath_device as nd
from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError, UnsupportedError
from nvmath_device.pipelines import missing_for_wgmma, pipeline_plan
from nvmath_device.tile_blocks import enough_threads, known_block
from nvmath_device.tile_candidates import by_rule, candidates
from nvmath_device.tile_choices import check_problem, could_have_wgmma, refusal, tile_alignment
from nvmath_device.tile_suggestions import shipped

ROW, COL = "row_major", "col_major"
SM90, SM90A, SM80 = nd.ComputeCapability(9, 0), nd.ComputeCapability(9, 0, "a"), nd.ComputeCapability(8, 0)
HALF = ("float16", "float16", "float32")
SHARED_BYTES = {SM90: 232_448, SM80: 166_912}  # CUDA C++ Programming Guide, of a block


def product(size=8192, precision=HALF, arrangement=(ROW, COL, ROW), alignment=nd.MAX_ALIGNMENT, **options):
    size = (size,) * 3 if isinstance(size, int) else size
    return nd.GemmDescriptor(size=size, precision=precision, arrangement=arrangement, alignment=alignment, **options)


# -- choices -------------------------------------------------------------------------------------------------


def test_a_choice_is_a_value():
    choice = nd.TileChoice((128, 256, 64), 256, 4, 16)
    assert choice == nd.TileChoice([128, 256, 64], 256, 4, 16)
    assert choice.tile.n == 256
    assert pickle.loads(pickle.dumps(choice)) == choice
    assert str(choice) == "128x256x64, 256 threads, 4 stages, groups of 16"
    with pytest.raises(AttributeError):
        choice.depth = 3


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (((128, 256), 256, 4, 16), InvalidArgumentError, "tile: .* has 2 values"),
        (((128, 256, 64), 0, 4, 16), InvalidArgumentError, "block_size: 0"),
        (((128, 256, 64), 256, "max", 16), ArgumentTypeError, "depth: 'max'"),
        (((128, 256, 64), 256, 4, 0), InvalidArgumentError, "group: 0"),
    ],
)
def test_wrong_choices_are_refused_by_name(arguments, error, text):
    with pytest.raises(error, match=text):
        nd.TileChoice(*arguments)


# -- what is refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("choice", "text"),
    [
        (((128, 256, 64), 128, 4, 16), "128 threads holds 256 registers of C"),  # spilled 391 times on an H200
        (((256, 192, 64), 384, 4, 16), "wgmma would be lost; it wants a block of 128, 256 or 512 threads"),
        (((128, 128, 64), 512, 4, 16), "wgmma would be lost; it wants a tile of a multiple of 256 rows"),
        (((128, 256, 64), 256, 5, 16), "depth: 5 is not allowed; give 1 to 4 stages"),
        (((256, 256, 256), 512, 2, 16), "two stages of 262,160 bytes do not fit"),
        (((100, 100, 64), 256, 4, 16), "cannot be shared evenly by 256 threads"),
        (((128, 256, 64), 2048, 4, 16), "2048 threads"),
    ],
)
def test_what_cannot_be_fast_is_refused_in_words(choice, text):
    assert text in refusal(product(), nd.TileChoice(*choice), SM90)


@pytest.mark.parametrize(
    ("choice", "sm", "options"),
    [
        (((128, 256, 64), 256, 4, 16), SM90, {}),
        (((256, 192, 64), 512, 4, 16), SM90, {}),  # C would not fit into shared memory
        (((128, 96, 64), 384, 2, 8), SM90, {"alignment": None}),  # no wgmma to be lost
        (((128, 128, 32), 256, 2, 8), SM80, {}),
        (((128, 128, 16), 256, 2, 8), SM90, {"precision": "float32"}),
    ],
)
def test_what_may_be_fast_is_let_through(choice, sm, options):
    assert refusal(product(**options), nd.TileChoice(*choice), sm) is None


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"data_type": "complex", "precision": "float32"}, "data_type 'complex'"),
        ({"transpose_mode": ("transposed", "non_transposed")}, "transpose_mode"),
        ({"precision": ("float8_e4m3fn", "float8_e4m3fn", "float8_e4m3fn")}, "C cannot be float8_e4m3fn"),
        ({"precision": ("float16", "int8", "float32")}, "do not mix"),
    ],
)
def test_products_that_multiply_does_not_compute_are_refused(options, text):
    with pytest.raises(UnsupportedError, match=text):
        check_problem(product(**options))


@pytest.mark.parametrize(
    ("descriptor", "alignment"),
    [
        (product(), (16, 16, 16)),
        (product(alignment=None), (2, 2, 4)),
        (product((1000, 504, 1001)), (2, 2, 16)),  # lines of 2002 bytes
        (product((1000, 500, 1000), leading_dimension=(1004, 1008, 500)), (8, 16, 16)),
        (product((64, 64, 64), ("float16",) * 3, leading_dimension="suggested"), (16, 16, 16)),
    ],
)
def test_a_tile_is_promised_what_the_matrices_keep(descriptor, alignment):
    assert tuple(tile_alignment(descriptor)) == alignment


# -- candidates ----------------------------------------------------------------------------------------------

TYPES = st.sampled_from(
    [HALF, ("bfloat16", "bfloat16", "float32"), ("float16",) * 3, ("tfloat32", "tfloat32", "float32"), "float32",
     "float64", ("float8_e4m3fn", "float8_e5m2", "float16"), ("int8", "int8", "int32"), ("int16", "int16", "int64")]
)  # fmt: skip
EXTENT = st.one_of(st.integers(1, 200), st.integers(1, 20_000))


@given(
    st.tuples(EXTENT, EXTENT, EXTENT), TYPES, st.sampled_from([SM90, SM80]),
    st.tuples(*[st.sampled_from([ROW, COL])] * 3), st.booleans(),
)  # fmt: skip
def test_candidates_can_be_built_and_keep_c_in_registers(size, types, sm, orders, aligned):
    descriptor = product(size, types, orders, nd.MAX_ALIGNMENT if aligned else None)
    found = candidates(descriptor, sm)
    assert found
    assert len(set(found)) == len(found)
    chip = SM90A if sm == SM90 else sm
    takes_wgmma = []
    for choice in found:
        mm = descriptor.tile(choice)
        plan = pipeline_plan(*mm.resolved(chip), depth=choice.depth, sm=chip)
        assert plan.depth == choice.depth
        assert plan.buffer_bytes + 1024 <= SHARED_BYTES[sm]
        assert plan.fragment_bytes // 4 < min(255, 65_536 // choice.block_size)
        assert choice.group <= max(-(-size[0] // choice.tile.m), 1)
        takes_wgmma.append(not missing_for_wgmma(*mm.resolved(chip)))
    assert len(set(takes_wgmma)) == 1  # all have it or none can
    assert by_rule(descriptor, sm) in found


def test_the_fastest_known_tiles_are_tried_first():
    """708, 701 and 703 TFLOP/s of 768 that the loop alone reaches, on an H200."""
    first = list(dict.fromkeys((c.tile, c.block_size, c.depth) for c in candidates(product(), SM90)))[:3]
    assert first == [((128, 256, 64), 256, 4), ((256, 128, 64), 256, 4), ((256, 192, 64), 512, 4)]
    assert by_rule(product(), SM90) == nd.TileChoice((128, 256, 64), 256, 4, 16)


@pytest.mark.parametrize("precision", [HALF, "float32", "float64"])
def test_small_products_get_small_tiles_and_large_ones_do_not(precision):
    def areas(size):
        return {c.tile.m * c.tile.n for c in candidates(product(size, precision), SM90)}

    assert max(areas(100)) <= 128 * 128
    assert min(areas(8192)) >= 64 * 64
    assert min(areas(1024)) < min(areas(8192)) or precision == "float64"
    few = by_rule(product(1024, precision), SM90).tile
    assert (1024 // few.m) * (1024 // few.n) >= 7 / 8 * 132  # multiprocessors of an H200


# -- threads of a given tile -----------------------------------------------------------------------------------


def tile(size, precision=HALF, arrangement=(ROW, COL, ROW), alignment=nd.MAX_ALIGNMENT):
    return product(size, precision, arrangement, alignment)


@pytest.mark.parametrize(
    ("size", "precision", "threads"),
    [
        ((128, 256, 64), HALF, 256),  # with 128, libmathdx's advice, it spilled and reached 3% of cuBLASLt
        ((64, 256, 64), HALF, 128),
        ((256, 192, 64), HALF, 256),
        ((256, 256, 64), HALF, None),  # no block keeps C in registers
        ((96, 64, 64), HALF, None),  # no whole warpgroups
        ((128, 256, 128), ("float8_e4m3fn", "float8_e4m3fn", "float32"), 256),
        ((128, 128, 16), "float32", None),
    ],
)
def test_tiles_for_wgmma_get_a_block_that_takes_it_and_does_not_spill(size, precision, threads):
    found = known_block(tile(size, precision), SM90)
    assert found == (threads and nd.Dim3(threads))


def test_the_block_for_wgmma_is_the_one_that_was_fastest():
    """So that the table need not be read for it."""
    lines = [x for x in shipped() if could_have_wgmma(x.descriptor.tile(x.choice).descriptor, SM90)]
    assert len(lines) >= 5
    for line in lines:
        assert known_block(line.descriptor.tile(line.choice).descriptor, SM90) == nd.Dim3(line.choice.block_size)


def test_wgmma_is_no_reason_where_something_else_is_missing():
    assert known_block(tile((128, 256, 64), alignment=None), SM90) is None
    assert known_block(tile((128, 256, 64)), SM80) is None
    assert known_block(tile((128, 256, 32), ("tfloat32", "tfloat32", "float32"), (ROW, ROW, ROW)), SM90) is None


@pytest.mark.parametrize(
    ("size", "precision", "advised", "threads"),
    [
        ((64, 64, 64), "float32", 64, 256),  # 256 took 0.6 of the time
        ((32, 32, 32), "float32", 64, 64),
        ((128, 128, 16), "float32", 256, 256),
        ((128, 256, 64), HALF, 128, 256),
        ((64, 64, 16), "float64", 128, 128),
        ((128, 64, 16), "float64", 64, 256),
        ((128, 128, 16), "float64", 128, 128),  # 256 and 512 spilled
        ((256, 256, 64), HALF, 128, 128),  # no number of threads would do
        ((7, 3, 5), "float32", 32, 32),
    ],
)
def test_advice_is_raised_where_c_would_not_stay_in_registers(size, precision, advised, threads):
    assert enough_threads(tile(size, precision, alignment=None), nd.Dim3(advised)) == nd.Dim3(threads)


def test_a_block_left_open_is_settled_without_libmathdx_where_wgmma_takes_the_tile(monkeypatch):
    from nvmath_device.lto import codegen

    monkeypatch.setattr(codegen, "gemm_suggestions", lambda recipe: pytest.fail("asked libmathdx"))
    mm = nd.Matmul((128, 256, 64), HALF, "real", arrangement=(ROW, COL, ROW), alignment=nd.MAX_ALIGNMENT, sm=90)
    assert mm.block_size == 256
    assert mm.path().missing == ()
