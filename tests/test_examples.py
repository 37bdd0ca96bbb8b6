# SPDX-License-Identifier: Apache-2.0
"""Every example runs without a GPU, has the right result, and notices when it has not.

Kernels run on Numba's simulator, products of the host layer on the CPU.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import gpu_count
from tests.example_runs import CHECKED_RESULTS, EXAMPLES, check, run

# What to change in an example so that its result is wrong: text, and what to put in its place.
MISTAKES = {
    "ahead_of_time": [("mm.load_b(b, smem_b)", "mm.load_b(a, smem_b)")],
    "attention": [("total[row] *= shrink[row]", "total[row] *= 1")],
    "batched_gemm": [("mm.load_b(b[i], smem_b)", "mm.load_b(b[0], smem_b)")],
    "digits_classifier": [('"relu_aux": masks.pop()', '"relu_aux": masks.pop(0)')],
    "fft_2d": [("field.T, column, first + number", "field.T, column, number")],
    "fft_real": [("forward.load(x, data)", "forward.load(x[:, 1:], data)")],
    "fft_thread": [("data[k].imag * data[k].imag", "data[k].imag")],
    "fused_gemm_epilog": [("ONE + math.tanh", "HALF + math.tanh")],
    "int8_fp8": [
        ("matmul(x8, w8.T, options", "matmul(x8, w8[::-1].T, options"),
        ("matmul(x8, w8.T, quant", "matmul(x8, w8[::-1].T, quant"),
    ],
    "grouped_gemm": [("w[expert], tile", "w[0], tile")],
    "linear_layer": [("value + bias[column]", "value + bias[row]")],
    "mixed_arrays": [
        ("d = matmul(a, b)", "d = matmul(a, b, alpha=1.001)"),
        ("matmul(a, b, out=out)", "matmul(a, b, out=out, alpha=1.001)"),
        ("Matmul(every_other, rows)", "Matmul(every_other, rows, alpha=1.001)"),
    ],
    "persistent_gemm": [("value + bias[column]", "value + bias[row]")],
    "quickstart": [("% TILE >= KEPT", "% TILE > KEPT"), ("*= response[frequency]", "*= response[0]")],
    "shared_descriptor": [("MatmulEpilog.RELU_BIAS", "MatmulEpilog.BIAS"), ("+ bias[j + column]", "+ bias[column]")],
    "smallest_gemm": [("mm.execute(1.0, ", "mm.execute(1.00001, ")],
    "split_k": [("range(1, parts.shape[0])", "range(2, parts.shape[0])")],
    "stream_k": [("range(first, last + 1)", "range(first, last)")],
    "tensor_gemm": [("mm.execute(this_a, this_b, acc)", "mm.execute(this_a, next_b, acc)")],
    "tiled_gemm": [("range(0, a.shape[1], TILE_K)", "range(0, a.shape[1] - TILE_K, TILE_K)")],
}
SHORT = sorted(CHECKED_RESULTS.keys() - {"quickstart"})


def test_every_example_is_run():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == CHECKED_RESULTS.keys() == MISTAKES.keys()


@pytest.mark.parametrize("name", SHORT)
def test_example(name: str):
    check(run(EXAMPLES / f"{name}.py", simulated=True), name)


@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
def test_tiled_gemm_of_other_element_types(precision: str):
    outcome = run(EXAMPLES / "tiled_gemm.py", precision, simulated=True)
    check(outcome, "tiled_gemm")
    assert f"in {precision}," in outcome.text


@pytest.mark.slow
def test_quickstart(tmp_path: Path):
    """It chooses the simulator by itself where there is no GPU, and then shows real machine code, too."""
    png = tmp_path / "made" / "q.png"
    own_choice = None if gpu_count() == 0 else True
    outcome = run(EXAMPLES / "quickstart.py", "--png", str(png), simulated=own_choice)
    check(outcome, "quickstart")
    assert "a crop of 64 x 64 pixels" in outcome.text
    check_picture(png)
    reports = re.findall(
        r"^(\w+): sm_90 cubin of ([\d,]+) bytes in [\d.]+ s, (\d+) registers a thread, "
        r"([\d,]+) bytes of shared memory, ([\d,]+) instructions$",
        outcome.text,
        re.MULTILINE,
    )
    assert {name for name, *_ in reports} == {"sharpen", "compress"}, outcome.text
    for _, *numbers in reports:
        size, registers, shared, instructions = (int(n.replace(",", "")) for n in numbers)
        assert 16 < registers < 256
        assert 500 < instructions < size // 16  # an instruction of sm_90 has 16 bytes
        assert 1024 < shared <= 48 * 1024


def check_picture(path: Path) -> None:
    """Photograph, sharpened and compressed side by side: more contrast between neighbours, then less."""
    from PIL import Image

    shown = np.asarray(Image.open(path)).astype(float)
    assert shown.shape == (256, 3 * 256)
    pictures = [part[2::4, 2::4] for part in np.split(shown, 3, axis=1)]  # every pixel is a square of 4 x 4
    original, sharpened, compressed = (np.abs(np.diff(p, axis=1)).mean() for p in pictures)
    assert sharpened > 1.2 * original
    assert compressed < 0.9 * original


@pytest.mark.slow
@pytest.mark.parametrize("name", MISTAKES)
def test_a_wrong_result_is_noticed(name: str, tmp_path: Path):
    """The same program with a mistake in its kernel prints larger errors and ends with 1."""
    source = (EXAMPLES / f"{name}.py").read_text()
    for right, wrong in MISTAKES[name]:
        assert source.count(right) == 1
        source = source.replace(right, wrong)
    file = tmp_path / f"{name}.py"
    file.write_text(source)
    outcome = run(file, simulated=True)
    assert outcome.returncode == 1, outcome.text
    assert len(outcome.errors) == CHECKED_RESULTS[name], outcome.text
    assert min(outcome.errors) > 5e-6, outcome.text
