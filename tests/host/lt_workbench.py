# SPDX-License-Identifier: Apache-2.0
"""A place to make operands and products for tests of plans with few words."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nvmath_device.dtypes import (
    ElementType,
    float32,
    uint8,
)
from nvmath_device.host.epilogs import EPILOGS, MatmulEpilog
from tests.host.lt_cases import Case, Operand, Types, place
from tests.host.lt_model import Memory

F32 = Types(float32, float32, float32, float32, float32)


class Workbench:
    """Operands of small whole numbers in one memory."""

    def __init__(self, types: Types = F32) -> None:
        self.memory, self.types, self.random = Memory(), types, np.random.default_rng(5)

    def array(self, *shape: int, element: ElementType | None = None, fill: bool = True, **how: Any) -> Operand:
        element = element or self.types.a
        is_complex = self.types.is_complex
        repeated = how.get("repeated", ())
        seen = tuple(1 if axis in repeated else n for axis, n in enumerate(shape))
        values = self.random.integers(-2, 3, seen) + (1j * self.random.integers(-2, 3, seen) if is_complex else 0)
        if element is uint8:
            values = self.random.integers(0, 256, seen)
        return place(
            self.memory, np.broadcast_to(values, shape) if fill else None, element, shape, is_complex=is_complex, **how
        )

    def out(self, *shape: int, **how: Any) -> Operand:
        return self.array(*shape, element=self.types.d, fill=False, **how)

    def case(self, a: Operand, b: Operand, **more: Any) -> Case:
        (m, k), n = (a.view.shape[-2:] if a.view.ndim > 1 else (1, *a.view.shape)), 1
        if b.view.ndim > 1:
            n = b.view.shape[-1]
        batch = np.broadcast_shapes(a.view.shape[:-2], b.view.shape[:-2])
        return Case(self.memory, self.types, m, n, k, batch, a, b, **more)


def copied(plan: Any) -> list[str]:
    return [move.slot for move in plan.moves]


def backward(bench: Workbench, epilog: MatmulEpilog, along: str, *batch: int, m: int, n: int, **how: Any) -> Case:
    name = EPILOGS[epilog].aux or ""
    packed, other = (m, n) if along == "rows" else (n, m)
    packed = math.ceil(packed / 128) * 16 if name == "relu_aux" else math.ceil(packed / 8) * 8
    shape = (packed, other) if along == "rows" else (other, packed)
    how.setdefault("order", "F" if along == "rows" else "C")
    aux = bench.array(*batch, *shape, element=uint8 if name == "relu_aux" else float32, **how)
    a, b = bench.array(*batch, m, 3), bench.array(*batch, 3, n)
    return bench.case(a, b, epilog=epilog, inputs={name: aux}, along=along)
