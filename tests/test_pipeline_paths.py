# SPDX-License-Identifier: Apache-2.0
"""What ``mm.path`` says, against instructions counted in cubins of ``multiply`` that libmathdx 0.4.2 had a part in.

Where threads fetch the tiles, the copies are nvmath_device's own, whatever libmathdx's pipeline would have."""

from __future__ import annotations

import pytest

import nvmath_device as nd
from nvmath_device.errors import UnsupportedError
from nvmath_device.pipeline_paths import path_of
from nvmath_device.pipelines import pipeline_plan

R, C = "row_major", "col_major"
HALF = ("float16", "float16", "float32")
TF32, BYTES = ("tfloat32", "tfloat32", "float32"), ("int8", "int8", "int32")
FP8 = ("float8_e4m3fn", "float8_e4m3fn", "float32")

# Target, tile, types, orders of A and B, threads, alignment; tensor-core instructions and copies that were there.
SEEN = [
    (90, (128, 256, 64), HALF, (R, C), 256, 16, "HGMMA", "UTMALDG"),
    (90, (128, 128, 64), HALF, (R, R), 128, 16, "HGMMA", "UTMALDG"),
    (90, (64, 64, 32), HALF, (R, C), 128, 16, "HGMMA", "UTMALDG"),
    (90, (256, 128, 64), HALF, (R, C), 512, 16, "HGMMA", "UTMALDG"),
    (90, (128, 96, 64), HALF, (R, C), 128, 16, "HGMMA", "UTMALDG"),
    (90, (128, 192, 64), HALF, (R, C), 256, 16, "HGMMA", "UTMALDG"),
    (90, (128, 128, 48), HALF, (R, C), 128, 16, "HGMMA", "UTMALDG"),
    (90, (128, 128, 64), "float16", (R, C), 128, 16, "HGMMA", "UTMALDG"),
    (90, (128, 256, 32), TF32, (R, C), 256, 16, "HGMMA", "UTMALDG"),
    (90, (128, 128, 64), BYTES, (R, C), 128, 16, "IGMMA", "UTMALDG"),
    (90, (128, 128, 128), FP8, (R, C), 128, 16, "QGMMA", "UTMALDG"),
    (90, (64, 128, 64), HALF, (R, C), 256, 16, "HMMA", "UTMALDG"),
    (90, (96, 96, 64), HALF, (R, C), 128, 16, "HMMA", "UTMALDG"),
    (90, (128, 128, 32), HALF, (R, C), 64, 16, "HMMA", "UTMALDG"),
    (90, (192, 128, 64), HALF, (R, C), 192, 16, "HMMA", "LDGSTS"),
    (90, (192, 128, 64), HALF, (R, C), 384, 16, "HMMA", "LDGSTS"),
    (90, (128, 192, 64), HALF, (R, C), 384, 16, "HMMA", "LDGSTS"),
    (90, (128, 128, 32), TF32, (R, R), 128, 16, "HMMA", "LDGSTS"),
    (90, (128, 256, 64), HALF, (R, C), 256, 2, "HMMA", "LDGSTS"),
    (90, (64, 64, 32), HALF, (R, R), 128, 2, "HMMA", "LDGSTS"),
    (90, (128, 128, 16), "float32", (R, R), 256, 16, "FFMA", "LDGSTS"),
    (90, (64, 64, 16), "float64", (R, C), 128, 16, "DMMA", "LDGSTS"),
    (80, (128, 128, 32), HALF, (R, C), 128, 16, "HMMA", "LDGSTS"),
]
ARITHMETIC = {"HGMMA": "wgmma", "IGMMA": "wgmma", "QGMMA": "wgmma", "HMMA": "mma", "DMMA": "mma", "FFMA": "fma"}
FETCH = {"UTMALDG": "TMA", "LDGSTS": "cp.async"}


def gemm(size=(128, 256, 64), precision=HALF, orders=(R, C), threads=256, alignment=16):
    given = {"alignment": nd.MAX_ALIGNMENT} if alignment == 16 else {}
    return nd.Matmul(size, precision, "real", arrangement=(*orders, R), block_size=threads, with_pipeline=True, **given)


@pytest.mark.parametrize(("sm", "size", "precision", "orders", "threads", "alignment", "unit", "copy"), SEEN)
def test_paths_are_those_that_were_seen(sm, size, precision, orders, threads, alignment, unit, copy):
    path = gemm(size, precision, orders, threads, alignment).path(sm=sm)
    assert (path.arithmetic, path.fetch) == (ARITHMETIC[unit], FETCH[copy])
    could_be_faster = sm == 90 and unit == "HMMA"
    assert bool(path.missing) == could_be_faster
    assert str(path).startswith(f"{path.arithmetic}, fetched by {path.fetch}")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"alignment": 2}, "alignment of 16 bytes"),
        ({"threads": 64, "size": (128, 64, 64)}, "128, 256 or 512 threads"),
        ({"size": (64, 256, 64)}, "a multiple of 128 rows for 256 threads"),
        ({"precision": TF32, "orders": (R, R), "size": (128, 256, 32)}, "row_major A and a col_major B"),
    ],
)
def test_what_is_missing_is_said(change, words):
    (missing,) = gemm(**change).path(sm=90).missing
    assert words in missing
    assert missing in str(gemm(**change).path(sm=90))


def test_all_that_is_missing_is_said():
    path = gemm((96, 128, 32), TF32, (R, R), 96, 2).path(sm=90)
    assert len(path.missing) == 3


def test_a_kernel_that_is_not_linked_for_the_chip_is_told():
    sm90 = nd.ComputeCapability(9, 0)
    path = path_of(pipeline_plan(*gemm().resolved(sm90), depth=None, sm=sm90))
    assert (path.arithmetic, path.fetch) == ("mma", "cp.async")
    assert "nd.jit" in path.missing[0]


def test_what_has_no_pipeline_has_no_path():
    mm = nd.Matmul((32, 32, 32), "float32", "complex", arrangement=(R, C, R), block_size=128)
    with pytest.raises(UnsupportedError, match="complex"):
        mm.path(sm=90)
