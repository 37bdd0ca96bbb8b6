# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F811  (a fixture is imported and is a parameter's name)
"""``Matmul.multiply`` in compiled kernels: what it accepts, and the machine code that it becomes."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from numba import cuda
from numba.cuda.types import bfloat16, boolean, complex64, float16, float32, float64, int32, int64, uint8, void

import nvmath_device as nd
from nvmath_device.errors import KernelOnlyError, KernelTypingError
from nvmath_device.lto import codegen
from nvmath_device.lto.pipeline_recipes import ROLES, symbol_of
from nvmath_device.numba_backend.operand_tiles import has_room
from nvmath_device.pipelines import pipeline_plan
from tests import sass
from tests.fatbins import contents
from tests.real_code import PIPELINED as MM
from tests.real_code import SM90A, STAGED, generated  # noqa: F401  (a fixture)

UNWANTED = ("HMMA", "CALL", "LDL", "STL")
A, B, C, BIAS = float16[:, ::1], float16[::1, :], float32[:, ::1], float32[::1]


@cuda.jit(device=True)
def plus(value, row, column, bias):
    return value + bias[column]


def product(a, b, c):
    MM.multiply(a, b, cuda.blockIdx.x, cuda.blockIdx.y).store(c)


def fused(a, b, c, bias):
    acc = MM.multiply(a, b, cuda.blockIdx.x, cuda.blockIdx.y).map(plus, bias)
    acc.store(c)


def persistent(a, b, c, bias, rows, columns):
    pipe = MM.pipeline(a, b)
    for i in range(cuda.blockIdx.x, rows, cuda.gridDim.x):  # without a division, which would be a call
        for j in range(columns):
            pipe.multiply(i, j).map(plus, bias).store(c)
    pipe.destroy()


def ahead(a, b, c, bias, rows, columns):
    """As in examples/persistent_gemm.py."""
    pipe = MM.pipeline(a, b)
    tile = cuda.blockIdx.x
    if tile < rows * columns:
        i, j = nd.grouped_tile(tile, rows, columns, 16)
        pipe.start(i, j)
    while tile < rows * columns:
        acc = pipe.finish()
        tile += cuda.gridDim.x
        if tile < rows * columns:
            i, j = nd.grouped_tile(tile, rows, columns, 16)
            pipe.start(i, j)
        acc.map(plus, bias).store(c)
    pipe.destroy()


@pytest.fixture(scope="module")
def codes():
    return {
        "product": nd.jit(product).build(void(A, B, C), 90),
        "fused": nd.jit(fused).build(void(A, B, C, BIAS), 90),
        "persistent": nd.jit(persistent).build(void(A, B, C, BIAS, int32, int32), 90),
        "ahead": nd.jit(ahead).build(void(A, B, C, BIAS, int32, int32), 90),
        "any strides": nd.jit(product).build(void(float16[:, :], float16[:, :], float16[:, :]), 90),
        "bfloat16": nd.jit(product).build(void(A, B, bfloat16[:, ::1]), 90),
    }


# -- code ----------------------------------------------------------------------------------------------------


def test_libmathdx_makes_what_was_planned(generated):
    plan = pipeline_plan(*MM.resolved(SM90A), depth=None, sm=SM90A)
    (code,) = codegen.codes([plan.recipe])
    assert dict(code.symbols) == {role: symbol_of(plan.recipe, role) for role in ROLES}
    plan.check(code.sizes)
    assert code.sizes["buffer"] == plan.buffer_bytes == MM.get_pipeline_storage_size(sm=90)


@pytest.mark.parametrize("name", ["product", "fused", "persistent", "ahead", "any strides", "bfloat16"])
def test_the_whole_loop_is_inlined_and_takes_the_fastest_path(codes, name):
    """Tiles come by TMA and go to the tensor cores by wgmma; nothing is called, and local memory is not used."""
    code = codes[name]
    found = sass.instructions(code.cubin)
    counted = {stem: sum(x.startswith(stem) for x in found) for stem in ("HGMMA", "UTMALDG", *UNWANTED)}
    assert counted["HGMMA"] >= 4
    assert counted["UTMALDG"] >= 2
    assert not any(counted[stem] for stem in UNWANTED)


@pytest.mark.parametrize("name", ["product", "fused", "persistent", "ahead"])
def test_tiles_inside_of_c_are_written_two_elements_at_once(codes, name):
    plan = pipeline_plan(*MM.resolved(SM90A), depth=None, sm=SM90A)
    pairs = [x for x in sass.instructions(codes[name].cubin) if x == "STG.E.64"]
    assert len(pairs) >= plan.fragment_size // 2


@cuda.jit(device=True)
def scaled_sum(value, element, row, column, scale):
    return value * scale[row] + element


@pytest.mark.parametrize(
    ("mm", "units", "layout"),
    [(MM, {"HGMMA", "UTMALDG", "LDGSTS"}, float16[::1, :]), (STAGED, {"HMMA", "LDGSTS"}, float16[:, ::1])],
    ids=["streamed", "staged"],
)
def test_combining_and_fetching_by_threads_leave_all_in_registers(generated, mm, units, layout):
    """A call of libmathdx's with other arguments than its own would not be inlined, and stand out as one."""

    def kernel(a, b, c, x, scale):
        acc = mm.multiply(a, b, cuda.blockIdx.x, cuda.blockIdx.y)
        acc.combine(scaled_sum, x, scale).store(c)

    code = nd.jit(kernel).build(void(A, layout, C, C, BIAS), 90)
    stems = {x.partition(".")[0] for x in sass.instructions(code.cubin)}
    assert units <= stems
    assert not {"CALL", "LDL"} & stems
    assert mm is STAGED or "STL" not in stems  # libmathdx's sums for mma are written there, and never read
    assert "BPT" not in stems  # the order of elements is known where wgmma multiplies
    assert code.least_shared == mm.get_pipeline_storage_size(sm=90)


@pytest.mark.parametrize(
    ("mm", "x", "wanted"),
    [
        (MM, float32[:, ::1], True),  # 128 lines of 264 numbers, in four stages of 48 KiB
        (MM, float32[::1, :], True),
        (MM, float32[:, :], True),
        (MM, float16[:, ::1], True),
        (MM, bfloat16[:, ::1], True),
        (MM, int32[:, ::1], True),
        (MM, float64[:, ::1], False),  # twice as much, more than a block can have
        (MM, uint8[:, ::1], False),  # whose lines are not copied 16 bytes at a time
        (MM, boolean[:, ::1], False),
        (MM, complex64[:, ::1], False),
        (STAGED, float16[:, ::1], True),  # 64 lines of 72, in two stages of 8 KiB
        (STAGED, float32[:, ::1], False),
    ],
)
def test_a_matrix_to_combine_with_comes_to_the_stages_where_they_have_room(mm, x, wanted):
    assert has_room(pipeline_plan(*mm.resolved(SM90A), depth=None, sm=SM90A), x) == wanted


def test_devices_without_asynchronous_copies_read_a_matrix_element_by_element():
    sm = nd.ComputeCapability(7, 5)
    assert not has_room(pipeline_plan(*STAGED.resolved(sm), depth=None, sm=sm), float16[:, ::1])


def test_what_threads_fetch_is_summed_in_place(generated):
    """libmathdx adds each product to a fragment afterwards, element by element; not to an accumulator."""

    def kernel(a, b, c):
        STAGED.multiply(a, b, cuda.blockIdx.x, cuda.blockIdx.y).store(c)

    code = nd.jit(kernel).build(void(A, float16[:, ::1], C), 90).cubin
    assert not [i for i in sass.instructions(code) if i.startswith(("FADD", "HADD"))]


OWN_SINGLES, OWN_DOUBLES = (
    nd.Matmul((64, 64, 16), precision, "real", arrangement=("row_major",) * 3, block_size=128)
    for precision in ("float32", "float64")
)


# 16 steps of 32 numbers, and two steps of 2 x 4 pieces; once for copies of 16 bytes, and once for all arrays.
@pytest.mark.parametrize(
    ("mm", "element", "unit", "count"),
    [(OWN_SINGLES, float32, "FFMA", 2 * 16 * 32), (OWN_DOUBLES, float64, "DMMA", 2 * 2 * 2 * 4)],
    ids=["float32", "float64"],
)
def test_a_product_of_our_own_is_straight_code_in_registers(mm, element, unit, count, monkeypatch):
    monkeypatch.setattr(codegen, "codes", lambda recipes: pytest.fail(f"asked libmathdx for {recipes}"))

    def kernel(a, b, c):
        mm.multiply(a, b, cuda.blockIdx.x, cuda.blockIdx.y).store(c)

    matrix = element[:, ::1]
    code = nd.jit(kernel).build(void(matrix, matrix, matrix), 90)
    found = sass.instructions(code.cubin)
    counted = Counter(x.partition(".")[0] for x in found)
    assert counted[unit] == count
    assert not {"LDL", "STL", "CALL"} & counted.keys()
    assert {"LDS.128", "STG.E.128", "LDGSTS.E.BYPASS.128"} <= set(found)
    assert (code.blocks, code.least_shared) == (
        ({"block_dim": [128, 1, 1], "exact": True},), mm.get_pipeline_storage_size(sm=90),
    )  # fmt: skip


def test_a_launch_must_have_the_block_and_the_shared_memory(codes):
    for code in codes.values():
        assert code.blocks == ({"block_dim": [256, 1, 1], "exact": True},)
        assert code.least_shared == 196_672
    kernel = nd.jit(product)
    signature = void(A, B, C)
    assert kernel.fits(4, 256, 196_672, signature=signature, cc=90)
    assert not kernel.fits(4, 256, 196_671, signature=signature, cc=90)
    assert not kernel.fits(4, 128, 196_672, signature=signature, cc=90)


def test_code_for_the_chip_alone_is_linked_for_it(codes):
    """wgmma needs sm_90a. The kernel is asked for as sm_90, of which there is no other chip."""
    assert codes["product"].sm == "sm_90"
    compiled = nd.compile(product, void(A, B, C), sm="sm_90a")
    assert "HGMMA" in {x.partition(".")[0] for x in sass.instructions(compiled.code)}
    (needs,) = compiled.record.targets.values()
    assert needs.least_shared == 196_672


def test_a_fatbin_says_that_its_code_is_for_the_chip_alone(generated, tmp_path):
    compiled = nd.compile(product, void(A, B, C), sm=90, output="fatbin", name="product")
    assert list(compiled.record.targets) == ["sm_90"]
    assert contents(compiled.code, tmp_path) == ["product.sm_90a.cubin", "product.sm_90a.ptx"]


def test_only_the_elements_inside_are_written(codes):
    """Each of a thread's 128 elements has a store of its own for tiles at the edge, beside those for whole tiles."""
    found = sass.instructions(codes["product"].cubin)
    assert sum(x.startswith("STG.E") for x in found) >= 128


@pytest.mark.parametrize(("name", "pack"), [("any strides", "F2FP.F16.F32"), ("bfloat16", "F2FP.BF16.F32")])
def test_pairs_of_a_tile_inside_of_a_narrower_matrix_are_written_at_once(codes, name, pack):
    """A thread's 128 elements, converted and written two by two, with nothing asked in between."""
    found = sass.instructions(codes[name].cubin)
    words = [i for i, x in enumerate(found) if x == "STG.E"]
    branches = [i for i, x in enumerate(found) if x.startswith(("BRA", "BSYNC"))]
    straight = [found[start:end] for start, end in pairwise(branches) if start < words[63] < end]
    (writes,) = [part for part in straight if part.count("STG.E") >= 64]
    assert sum(x.startswith(pack) for x in writes) >= 60  # some may stand before the branch
    assert not any(x.startswith("ISETP") for x in writes)


# -- what is accepted ----------------------------------------------------------------------------------------


def error_of(kernel, signature):
    with pytest.raises(KernelTypingError) as caught:
        nd.compile(kernel, signature, sm=90)
    return str(caught.value)


@pytest.mark.parametrize(
    ("signature", "words"),
    [
        (void(float32[:, ::1], B, C), "elements of float16 for a"),
        (void(float16[:], B, C), "2-D array for a"),
        (void(float16[::1, :], B, C), "row_major matrix for a"),
        (void(A, float16[:, ::1], C), "col_major matrix for b"),
        (void(A, B, float32[:]), "2-D array for c"),
        (void(float32, B, C), "2-D array for a"),
    ],
)
def test_operands_that_do_not_fit_are_named(signature, words):
    assert words in error_of(product, signature)


def test_what_is_combined_with_is_a_matrix():
    def kernel(a, b, c, bias):
        MM.multiply(a, b, 0, 0).combine(scaled_sum, bias, bias).store(c)

    assert "2-D array for x" in error_of(kernel, void(A, B, C, BIAS))


def test_a_function_of_other_arguments_is_refused():
    def kernel(a, b, c):
        MM.multiply(a, b, 0, 0).combine(plus, c).store(c)

    assert "device function of (value, element of x, row, column)" in error_of(kernel, void(A, B, C))


def test_tiles_are_numbered_by_integers():
    def kernel(a, b, c):
        MM.multiply(a, b, 0.5, 0).store(c)

    assert "integer for i" in error_of(kernel, void(A, B, C))


def test_a_depth_is_a_constant():
    def kernel(a, b, c, depth):
        MM.multiply(a, b, 0, 0, depth=depth).store(c)

    assert "constant number of stages" in error_of(kernel, void(A, B, C, int64))


def test_a_depth_that_does_not_fit_is_refused():
    def kernel(a, b, c):
        MM.multiply(a, b, 0, 0, depth=9).store(c)

    with pytest.raises(Exception, match="1 to 4 stages"):
        nd.compile(kernel, void(A, B, C), sm=90)


def test_complex_products_are_refused():
    mm = nd.Matmul((32, 32, 32), "float32", "complex", arrangement=("row_major",) * 3, block_size=128)

    def kernel(a, b, c):
        mm.multiply(a, b, 0, 0).store(c)

    matrix = complex64[:, ::1]
    with pytest.raises(Exception, match="complex"):
        nd.compile(kernel, void(matrix, matrix, matrix), sm=90)


def test_functions_to_map_have_a_place_for_value_row_and_column():
    @cuda.jit(device=True)
    def too_few(value):
        return value

    def kernel(a, b, c):
        MM.multiply(a, b, 0, 0).map(too_few).store(c)

    with pytest.raises(Exception, match="too many positional arguments"):
        nd.compile(kernel, void(A, B, C), sm=90)


def test_on_the_host_it_means_nothing():
    with pytest.raises(KernelOnlyError, match=r"Matmul.multiply"):
        MM.multiply(np.zeros((2, 2)), np.zeros((2, 2)), 0, 0)
