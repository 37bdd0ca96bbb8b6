# SPDX-License-Identifier: Apache-2.0
"""A small greedy pairwise cover: every pair of values of two factors occurs in some row."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def cover(
    factors: Mapping[str, Sequence[Any]], *, allowed: Callable[[dict[str, Any]], bool], seed: int = 0
) -> list[dict[str, Any]]:
    """Rows that together hold every allowed pair. Deterministic for a seed; near minimal, not minimal."""
    rng = random.Random(seed)
    names = list(factors)
    open_pairs = {
        (x, i, y, j)
        for x, y in itertools.combinations(names, 2)
        for i in range(len(factors[x]))
        for j in range(len(factors[y]))
    }
    rows: list[dict[str, Any]] = []
    while open_pairs:
        x, i, y, j = min(open_pairs)
        best: tuple[int, dict[str, int]] | None = None
        for _ in range(60):
            row = {n: rng.randrange(len(factors[n])) for n in names} | {x: i, y: j}
            if not allowed({n: factors[n][row[n]] for n in names}):
                continue
            gain = sum(1 for p, q in itertools.combinations(names, 2) if (p, row[p], q, row[q]) in open_pairs)
            if best is None or gain > best[0]:
                best = (gain, row)
        if best is None:
            open_pairs.discard((x, i, y, j))  # no allowed row holds this pair
            continue
        row = best[1]
        open_pairs -= {(p, row[p], q, row[q]) for p, q in itertools.combinations(names, 2)}
        rows.append({n: factors[n][row[n]] for n in names})
    return rows
