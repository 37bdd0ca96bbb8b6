# SPDX-License-Identifier: Apache-2.0
"""A product in words, for errors, files and logs."""

from __future__ import annotations

from nvmath_device.host.array_view import type_name
from nvmath_device.host.epilogs import MatmulEpilog
from nvmath_device.host.problem import Problem


def problem_words(problem: Problem) -> str:
    """``"float16 x float16 + float16 -> float32, m=64 n=48 k=32, batch (4,), epilog BIAS, COMPUTE_32F"``."""
    types, shapes = problem.types, problem.shapes
    a, b, c, d = (type_name(t, types.is_complex) for t in (types.a, types.b, types.c, types.d))
    words = [f"{a} x {b}{f' + {c}' if problem.has_c else ''} -> {d}", f"m={shapes.m} n={shapes.n} k={shapes.k}"]
    if shapes.batch:
        words.append(f"batch {shapes.batch}")
    if problem.epilog is not MatmulEpilog.DEFAULT:
        words.append(f"epilog {problem.epilog.name}")
    words.append(types.compute.name)
    return ", ".join(words)
