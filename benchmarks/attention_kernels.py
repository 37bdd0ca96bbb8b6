# SPDX-License-Identifier: Apache-2.0
"""The kernel of ``examples/attention.py``: which tilings of it are timed, and for which arguments."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

from numba.cuda import types

_EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "attention.py"


def _example() -> Any:
    """Its module, under a name that the benchmark beside this file does not have."""
    spec = importlib.util.spec_from_file_location("example_attention", _EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


example = _example()
attention_kernel, Tiling = example.attention_kernel, example.Tiling


def tilings(depth: int) -> tuple[Any, ...]:
    """To be timed: the example's, and the smaller blocks that were once faster with this depth."""
    return Tiling(depth, 128, 64, 256, registers=128), Tiling(depth, 128 if depth <= 64 else 64, 64, 128)


def name_of(tiling: Any) -> str:
    limit = "" if tiling.registers is None else f" of {tiling.registers} registers"
    return f"{tiling.queries} queries x {tiling.keys} keys, {tiling.threads} threads{limit}"


def argument_types() -> tuple[Any, ...]:
    """Of the kernel: Q, K, V and O, all (heads, positions, depth)."""
    return (types.Array(types.float16, 3, "C"),) * 4
