# SPDX-License-Identifier: Apache-2.0
"""2,000 products of any types, extents, strides, libraries, C, out, epilogs and batches, against two oracles.

Each is compared with NumPy in float64 and with execution on the CPU. How many reached cublasLtMatmul and how many
went through a copy is counted, asserted for each chunk, and printed at the end of the run (see ``conftest.py``).
"""

from __future__ import annotations

import pytest

from tests.gpu.host.fuzz import explore

CHUNKS, EXAMPLES = 16, 125  # chunks, so that pytest -n spreads them
LEAST_REACHED, LEAST_COPIED = 0.6, 0.2


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_any_product(chunk, record_property):
    tally = explore(chunk, EXAMPLES, "cuda")
    for name in ("examples", "reached", "copied"):
        record_property(f"fuzz {name}", getattr(tally, name))
    record_property("fuzz failures", len(tally.failures))
    print("\n".join(f"{count:5} {word}" for word, count in tally.words.most_common()))
    assert not tally.failures, f"{len(tally.failures)} of {tally.examples} failed:\n" + "\n\n".join(tally.failures)
    assert not tally.dead, "the CUDA context is lost"
    assert tally.examples == EXAMPLES
    assert tally.reached >= LEAST_REACHED * EXAMPLES
    assert tally.copied >= LEAST_COPIED * EXAMPLES
