# SPDX-License-Identifier: Apache-2.0
"""A device whose heuristics a test writes: real descriptors, layouts and preferences, and a rule in their place.

The rule is given a :class:`Question`, everything that cuBLASLt would be told, read back from its objects.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from nvmath_device.errors import HostLibraryError
from nvmath_device.host import cublaslt_algorithms, current_device, lt_execution, obstacles
from nvmath_device.host.cublaslt_algorithms import HeuristicResult
from nvmath_device.host.cublaslt_enums import (
    MatmulDescAttribute,
    MatmulPreferenceAttribute,
    MatrixLayoutAttribute,
    Status,
)
from tests.host.algorithm_fakes import algo
from tests.host.cublaslt_objects import NullHandle


@dataclass
class Question:
    """What heuristics are asked. ``a`` to ``d`` are dicts of layout attributes by lower-case name."""

    a: dict[str, Any]
    b: dict[str, Any]
    c: dict[str, Any]
    d: dict[str, Any]
    desc: dict[str, Any]
    preference: dict[str, Any]
    limit: int


Rule = Callable[[Question], int | None]  # bytes of workspace, or None: there is no algorithm


def install(monkeypatch: pytest.MonkeyPatch, rule: Rule) -> list[Question]:
    """An H200 with cuBLASLt 13.1.0 that follows a rule. Returns the list that questions go to."""
    asked: list[Question] = []

    def heuristics(
        handle: Any, desc: Any, a: Any, b: Any, c: Any, d: Any, preference: Any, *, limit: int = 1,
        stream: int | None = None, explain: bool = True,
    ) -> list[HeuristicResult]:  # fmt: skip
        assert not explain, "nobody wants cuBLASLt's log of a question"
        matrices = [_read(layout, MatrixLayoutAttribute) for layout in (a, b, c, d)]
        question = Question(
            *matrices, _read(desc, MatmulDescAttribute), _read(preference, MatmulPreferenceAttribute), limit
        )
        asked.append(question)
        needs = rule(question)
        if needs is None:
            raise HostLibraryError("heuristics failed", status=Status.NOT_SUPPORTED)
        return [HeuristicResult(algo(1), needs, Status.SUCCESS, 1.0)]

    monkeypatch.setattr(cublaslt_algorithms, "heuristics", heuristics)
    monkeypatch.setattr(current_device, "handle", lambda index, users=None: NullHandle())
    monkeypatch.setattr(current_device, "compute_capability", lambda index: (9, 0))
    monkeypatch.setattr(current_device, "device_name", lambda index: "NVIDIA H200")
    for module in (lt_execution, obstacles):
        monkeypatch.setattr(module, "version", lambda: (13, 1, 0))
    return asked


def _read(subject: Any, attributes: Any) -> dict[str, Any]:
    names = SimpleNamespace()
    for attribute in attributes:
        if subject.supports(attribute):
            setattr(names, attribute.name.lower(), subject.get(attribute))
    return vars(names)
