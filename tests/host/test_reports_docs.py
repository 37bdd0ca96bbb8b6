# SPDX-License-Identifier: Apache-2.0
"""Reported cases that ask for words: what people could not find out is said in the documentation, and is true.

Pages are read as text without line breaks and emphasis, so that only words count.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nvmath_device import host
from tests.test_distribution import installed, source, wheel  # noqa: F401
from tests.test_docs import Snippet, with_output

ROOT = Path(__file__).resolve().parents[2]


def words_of(page: str, heading: str | None = None) -> str:
    """A page, or what stands below one of its headings, those below it included."""
    text = (ROOT / page).read_text()
    text = re.sub(r"^```.*?^```$", lambda code: code[0].replace("\n#", "\n"), text, flags=re.MULTILINE | re.DOTALL)
    if heading is not None:
        found = re.search(rf"^(#+) {re.escape(heading)}\n", text, re.MULTILINE)
        assert found, f"{page} has no heading {heading!r}"
        rest = text[found.end() :]
        following = re.search(rf"^#{{1,{len(found[1])}}} ", rest, re.MULTILINE)
        text = rest[: following.start()] if following else rest
    return " ".join(re.sub(r"[*`]", "", text).split())


def said(page: str, heading: str | None, *patterns: str) -> None:
    text = words_of(page, heading)
    for pattern in patterns:
        assert re.search(pattern, text), f"{page}, {heading}: nothing like {pattern!r}"


KERNELS, SPEED = "docs/kernels.md", "How fast it is"


def test_r006_what_share_of_cublas_a_tiled_product_reaches_is_documented_with_the_settings_that_matter():
    said(
        "docs/kernels.md",
        "How fast it is",
        r"4096 x 4096 x 4096",
        r"128 x 128 x 32, .* \| 0\.06",
        "alignment of 16 bytes",
    )
    said(
        "docs/kernels.md",
        "How fast it is",
        "copies in several stages",
        r"benchmarks/device\.py",
        r"nvmath_device\.host",
    )


def test_r059_that_beta_scales_c_alone_is_documented():
    said("docs/host.md", "Epilogs", "beta scales C and nothing else: neither the bias nor")


def test_r060_forms_of_a_bias_are_documented():
    said("docs/host.md", "The order of the result", r"\(m,\), \(m, 1\)", r"\(1, n\)")


def test_r065_what_a_split_k_does_to_a_bias_is_documented():
    said("docs/host.md", "Epilogs", "splits k", "rounded before the bias is added", "reduction_scheme_mask")


def test_r066_which_gelu_it_is_is_documented():
    said("docs/host.md", "Epilogs", "GELU is the tanh form", 'approximate="tanh"', "less exact")


def test_r067_what_becomes_of_nan_is_documented():
    said("docs/host.md", "Epilogs", "What becomes of NaN depends on the algorithm", "make it 0")


def test_r077_batches_are_on_the_first_page_and_their_bias_is_explained():
    said("README.md", None, r"\bbatch")
    said("docs/host.md", "Quick start", r"\bbatch")
    said("docs/host.md", "Shapes and batches", "A bias without batch axes is the same for every product")


def test_r078_where_a_result_may_lie_is_documented():
    said("docs/host.md", "What is read in place", "out .* may be C itself", "other memory that it shares .* error")


def test_r081_equal_rows_of_other_batches_are_documented():
    said("docs/host.md", "The same bits again", "same row may come out differently.*normal", r"plan\(algorithms=")


def test_r082_r083_captures_and_lifetimes_are_documented():
    said("docs/host.md", "CUDA graphs", "Plan before the capture", r"Lifetime\. A graph holds", r"none of free\(\)")


def test_r084_scales_that_are_not_offered_are_documented():
    said("docs/host.md", "int8 and fp8", r"Scales of rows, columns or blocks \(MXFP8, NVFP4\) are refused")


def test_r087_the_matrix_of_epilogs_is_a_command_and_every_epilog_is_in_the_docs():
    said("docs/host.md", "Epilogs", "python -m nvmath_device support-matrix")
    told = set(re.findall(r"^\| `([A-Z_]+)` \|", (ROOT / "docs/host.md").read_text(), re.MULTILINE))
    assert told == set(host.MatmulEpilog.__members__) - {"DEFAULT"}


def test_r088_the_type_of_gelu_aux_is_documented():
    said("docs/host.md", "Auxiliary arrays", r"gelu_aux has the type of D\.", "aux_type")


def test_r090_any_other_epilog_is_shown_in_a_kernel():
    said("docs/host.md", "Any other function of the result", r"SiLU.*kernel around nd\.Matmul", r"mm\.execute\(")


def test_r096_the_order_of_streams_is_documented():
    said("docs/host.md", "Streams", "Without stream .* current streams", "With stream you order it")


def test_r097_the_device_of_a_product_is_documented():
    said("docs/host.md", "Threads and devices", "on the device of its operands.*current device is the same afterwards")


def test_r098_that_kernels_do_not_notice_arrays_of_other_devices_is_documented():
    said("docs/kernels.md", None, r"(?i)\b(array|memory)\b[^.]* of another (GPU|device)")


def test_r099_the_way_of_bfloat16_tensors_into_kernels_is_documented():
    said("docs/kernels.md", "Element types", r"\.view\(torch\.int16\)")


# -- the released package -----------------------------------------------------------------------------------


def test_r108_the_readme_says_which_version_it_is_for():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    said("README.md", None, rf"\b(nvmath-device|version) {re.escape(version)}(?![\d.]*\d)")


@pytest.mark.slow
def test_r108_every_snippet_runs_against_the_built_wheel(installed: Path, tmp_path: Path):  # noqa: F811
    """In an empty folder, with the wheel's content and no checkout on the path."""
    found = [snippet for snippet, _ in with_output()]
    assert len(found) >= 20

    def run(numbered: tuple[int, Snippet]) -> str:
        number, snippet = numbered
        folder = tmp_path / str(number)
        folder.mkdir()
        program = folder / "snippet.py"
        program.write_text(f"import nvmath_device\nassert {str(installed)!r} in nvmath_device.__file__\n{snippet.body}")
        environment = {**os.environ, "PYTHONPATH": str(installed)}
        environment.pop("NUMBA_ENABLE_CUDASIM", None)
        if snippet.mark != "codegen":
            environment |= {"NUMBA_ENABLE_CUDASIM": "1", "NVMATH_DEVICE_CACHE_DIR": str(folder / "store")}
        done = subprocess.run(
            [sys.executable, program.name], cwd=folder, env=environment, capture_output=True, text=True, timeout=600
        )
        return f"{snippet}: {done.stderr}" if done.returncode else ""

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        failures = [failure for failure in pool.map(run, enumerate(found)) if failure]
    assert not failures, "\n".join(failures)
