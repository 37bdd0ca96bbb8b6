# SPDX-License-Identifier: Apache-2.0
"""R005: a newcomer grows the smallest sample by what the messages and the documentation say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import nvmath_device as nd
from nvmath_device.errors import InvalidArgumentError, UnsupportedError

ROOT = Path(__file__).resolve().parent.parent


def gemm(size, block_size=128):
    return nd.Matmul(
        size=size, precision="float32", data_type="real", arrangement=("row_major",) * 3, block_size=block_size, sm=90
    )


@pytest.mark.parametrize("size", [(64, 64, 1024), (1024, 1024, 64)])
def test_r005_growing_a_tile_too_far_names_need_limit_and_the_way_out(size):
    m, n, k = size
    gemm((64, 64, 64))
    with pytest.raises(UnsupportedError) as error:
        gemm(size)
    text = str(error.value)
    need = 4 * (m * k + k * n + m * n)
    assert f"{need:,} bytes" in text
    assert "232,448" in text  # 227 KiB
    assert "loop over K" in text


def test_r005_a_block_of_the_wrong_size_names_the_legal_ones():
    with pytest.raises(InvalidArgumentError, match=r"2048.*32 to 1024"):
        gemm((64, 64, 64), block_size=2048)


def test_r005_the_documentation_leads_to_a_multi_block_sample_that_runs():
    linked = [
        document
        for document in (ROOT / "README.md", ROOT / "docs/kernels.md")
        if re.search(r"tiled_gemm\.py", document.read_text())
    ]
    assert linked
    source = (ROOT / "examples/tiled_gemm.py").read_text()
    for part in ("load_a", "load_b", "store_c", "blockIdx"):
        assert part in source
