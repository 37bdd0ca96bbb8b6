# SPDX-License-Identifier: Apache-2.0
"""Loops over K of our own, by wgmma, of tiles that TMA fetches: for what, and the machine code that they become."""

from __future__ import annotations

from collections import Counter

import pytest
from numba import cuda
from numba.cuda.types import bfloat16, complex64, float16, float32, float64, int32, uint8, void

import nvmath_device as nd
from nvmath_device.errors import KernelTypingError
from nvmath_device.lto import codegen
from nvmath_device.numba_backend.guest_tiles import takes_guest
from nvmath_device.own_streams import LINE_BYTES, guest_of
from nvmath_device.pipelines import pipeline_plan
from tests import sass
from tests.real_code import COL, ROW, SM90, SM90A

KINDS = {
    "float16": (("float16", "float16"), 64, "f32.f16.f16"),
    "bfloat16": (("bfloat16", "bfloat16"), 64, "f32.bf16.bf16"),
    "tf32": (("tfloat32", "tfloat32"), 32, "f32.tf32.tf32"),
    "fp8": (("float8_e4m3fn", "float8_e4m3fn"), 128, "f32.e4m3.e4m3"),
    "mixed fp8": (("float8_e5m2", "float8_e4m3fn"), 128, "f32.e5m2.e4m3"),
}
NUMBA = {"float16": float16, "bfloat16": bfloat16, "tfloat32": float32, "float8_e4m3fn": uint8, "float8_e5m2": uint8}
C = float32[:, ::1]


def gemm(size=(128, 256, 64), precision=("float16", "float16", "float32"), block_size=256, **options):
    given = {"arrangement": (ROW, COL, ROW), "alignment": nd.MAX_ALIGNMENT, **options}
    return nd.Matmul(size, precision, "real", block_size=block_size, **given)


def of_kind(kind, m=128, n=256, threads=256):
    types, k, _ = KINDS[kind]
    return gemm((m, n, k), (*types, "float32"), threads)


def plan(mm, sm=SM90A, depth=None):
    return pipeline_plan(*mm.resolved(sm), depth=depth, sm=sm)


# -- for what ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("m", "n", "threads"), [(128, 256, 256), (64, 8, 128), (64, 136, 128), (256, 64, 512)])
def test_a_warpgroup_has_64_rows_and_a_line_128_bytes(kind, m, n, threads):
    made = plan(of_kind(kind, m, n, threads)).stream
    assert made.instruction == f"wgmma.mma_async.sync.aligned.m64n{n}k{made.k // 4}.{KINDS[kind][2]}"
    assert (made.rows, made.columns, made.k) == (m, n, KINDS[kind][1])


@pytest.mark.parametrize(
    "mm",
    [
        gemm((128, 256, 32)),  # lines of 64 bytes
        gemm((128, 256, 128)),
        gemm((256, 128, 64)),  # 128 rows a warpgroup
        gemm(precision=("float16",) * 3),  # sums in float16
        gemm(arrangement=(ROW, ROW, ROW)),
        gemm(arrangement=(COL, COL, ROW)),
        gemm(arrangement=(ROW, COL, COL)),
        gemm(alignment=None),  # which TMA cannot fetch
        gemm((64, 64, 64), block_size=64),  # by mma
        gemm((128, 128, 128), ("int8", "int8", "int32")),
    ],
    ids=str,
)
def test_all_else_is_left_to_libmathdx(mm):
    assert plan(mm).stream is None


def test_a_kernel_for_every_chip_of_a_capability_has_none():
    assert plan(gemm(), SM90).stream is None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("depth", [1, 4, "max"])
def test_stages_and_their_barriers_are_what_a_launch_gives(kind, depth):
    made = plan(of_kind(kind), depth=depth)
    assert made.depth * (made.stream.stage_bytes + 16) == made.buffer_bytes


def test_plans_of_different_types_have_different_names():
    assert len({plan(of_kind(kind)).name for kind in KINDS}) == len(KINDS)


# -- guests --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("m", "n", "threads", "itemsize", "boxes", "in_stage", "turns"),
    [(128, 256, 256, 4, 8, 3, 3), (128, 256, 256, 2, 4, 3, 2), (64, 8, 128, 4, 1, 1, 1), (64, 256, 128, 2, 4, 5, 1)],
)
def test_a_guest_s_tile_fills_stages_with_lines_of_128_bytes(m, n, threads, itemsize, boxes, in_stage, turns):
    stream = plan(of_kind("float16", m, n, threads)).stream
    guest = guest_of(stream, 4, itemsize)
    assert (guest.boxes, guest.in_stage, guest.turns) == (boxes, in_stage, turns)
    assert guest.boxes * guest.box_columns >= n
    assert guest.in_stage * m * LINE_BYTES <= stream.stage_bytes


@pytest.mark.parametrize(
    ("x", "wanted"),
    [
        (C, True),
        (float16[:, :], True),
        (bfloat16[:, ::1], True),
        (int32[:, ::1], True),
        (float64[:, ::1], False),  # 256 KiB
        (float32[::1, :], False),
        (uint8[:, ::1], False),
        (complex64[:, ::1], False),
    ],
    ids=str,
)
def test_which_matrices_come_with_a_and_b(x, wanted):
    assert takes_guest(plan(gemm()), x) == wanted


# -- code ----------------------------------------------------------------------------------------------------


@cuda.jit(device=True)
def scaled_sum(value, element, row, column, scale):
    return value * scale[row] + element


@cuda.jit(device=True)
def plus(value, element, row, column):
    return value + element


def operands(mm):
    a, b = (NUMBA[t.name] for t in mm.precision[:2])
    return a[:, ::1], b[::1, :]


@pytest.fixture
def nothing_is_generated(monkeypatch):
    monkeypatch.setattr(codegen, "codes", lambda recipes: pytest.fail(f"asked libmathdx for {recipes}"))


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_generated_and_all_stays_in_registers(kind, nothing_is_generated):
    mm = of_kind(kind)

    def kernel(a, b, c, x, scale):
        i, j = cuda.blockIdx.x, cuda.blockIdx.y
        mm.multiply(a, b, i, j, combine=scaled_sum, x=x, args=(scale,)).store(c)

    code = nd.jit(kernel).build(void(*operands(mm), C, C, float32[::1]), 90)
    found = sass.instructions(code.cubin)
    counted = Counter(x.partition(".")[0] for x in found)
    assert counted["QGMMA" if "fp8" in kind else "HGMMA"] == 4  # a turn, which is there once
    assert counted["LDS"] >= 2 * 64  # pairs of x, inside of C and at its edge
    assert found.count("STG.E.64") >= 64
    assert not {"CALL", "LDL", "STL", "LDGSTS"} & counted.keys()
    assert code.least_shared == mm.get_pipeline_storage_size(sm=90)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_guest_without_room_comes_as_in_combine(depth, nothing_is_generated):
    mm = of_kind("float16")

    def kernel(a, b, c, x):
        mm.multiply(a, b, 0, 0, depth, combine=plus, x=x).store(c)

    found = sass.instructions(nd.jit(kernel).build(void(*operands(mm), C, C), 90).cubin)
    assert sum(x.startswith("UTMALDG") for x in found) == 4  # two at the start, two in the loop
    assert not {"LDL", "STL"} & {x.partition(".")[0] for x in found}


def test_descriptors_are_written_where_others_are_there(nothing_is_generated):
    """Behind a branch: what the slot says that it has is compared first. And by one thread, before the block meets."""
    mm = of_kind("float16")

    def kernel(a, b, c):
        mm.multiply(a, b, cuda.blockIdx.x, cuda.blockIdx.y).store(c)

    found = sass.instructions(nd.jit(kernel).build(void(*operands(mm), C), 90).cubin)
    dropped = [at for at, x in enumerate(found) if x == "UTMACCTL.IV"]
    used = next(at for at, x in enumerate(found) if x.startswith("UTMALDG"))
    taken = next(at for at, x in enumerate(found) if x.startswith("ATOM"))
    compared = next(at for at, x in enumerate(found) if at > taken and x.startswith("LDG.E.128"))
    written = [at for at, x in enumerate(found[: dropped[0]]) if x.startswith("STG.E.128")]
    assert len(dropped) == 2
    assert len(written) == 2 * 8
    assert taken < compared < written[0]
    assert any(x.startswith("BRA") for x in found[compared : written[0]])
    assert any(x.startswith("MEMBAR") and x.endswith("GPU") for x in found[written[-1] : dropped[0]])
    assert dropped[-1] < used
    assert not any(x.startswith("BAR.SYNC") for x in found[taken:used])


# -- what is accepted ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda mm: lambda a, b, c: mm.multiply(a, b, 0, 0, x=c).store(c), "together"),
        (lambda mm: lambda a, b, c: mm.multiply(a, b, 0, 0, combine=plus).store(c), "together"),
        (lambda mm: lambda a, b, c: mm.multiply(a, b, 0, 0, combine=plus, x=c, args=1).store(c), "a tuple for args"),
        (lambda mm: lambda a, b, c: mm.multiply(a, b, 0, 0, combine=plus, x=c[0]).store(c), "2-D array for x"),
        (lambda mm: lambda a, b, c: mm.multiply(a, b, 0, 0, combine=plus, x=c, args=(1,)).store(c), "does not take"),
    ],
)
def test_combinations_that_do_not_fit_are_refused_with_words(call, said):
    mm = of_kind("float16")
    with pytest.raises(KernelTypingError, match=said):
        nd.jit(call(mm)).build(void(*operands(mm), C), 90)
