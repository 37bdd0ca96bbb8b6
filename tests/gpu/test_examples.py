# SPDX-License-Identifier: Apache-2.0
"""Every example runs on a GPU, at its full size, and has the right result."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.example_runs import CHECKED_RESULTS, EXAMPLES, check, run


@pytest.mark.parametrize("name", sorted(CHECKED_RESULTS.keys() - {"quickstart"}))
def test_example(name: str):
    check(run(EXAMPLES / f"{name}.py", simulated=False), name)


@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
def test_tiled_gemm_of_other_element_types(precision: str):
    outcome = run(EXAMPLES / "tiled_gemm.py", precision, simulated=False)
    check(outcome, "tiled_gemm")
    assert f"in {precision}," in outcome.text


def test_quickstart(tmp_path: Path):
    """It chooses the GPU by itself and takes the whole picture."""
    from PIL import Image

    outcome = run(EXAMPLES / "quickstart.py", "--png", str(tmp_path / "q.png"), simulated=None)
    check(outcome, "quickstart")
    assert "a picture of 512 x 512 pixels" in outcome.text
    assert Image.open(tmp_path / "q.png").size == (3 * 512, 512)
