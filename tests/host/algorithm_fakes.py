# SPDX-License-Identifier: Apache-2.0
"""Algorithms, plans and capabilities for tests without a GPU.

An algorithm is the 64 bytes of a real one as far as its configuration goes: cuBLASLt reads and writes that without a
device. Its capabilities and whether it can compute something are made up here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nvmath_device.errors import HostLibraryError, UnsupportedError
from nvmath_device.host.cublaslt_algorithms import Algo, HeuristicResult
from nvmath_device.host.cublaslt_enums import MatmulAlgoCapAttribute, MatmulAlgoConfigAttribute, Status
from nvmath_device.host.cublaslt_tiles import MatmulStages, MatmulTile

CAN = {
    "SPLITK_SUPPORT": 1,
    "REDUCTION_SCHEME_MASK": 2 | 4,
    "CTA_SWIZZLING_SUPPORT": 1,
    "TILE_IDS": (int(MatmulTile.TILE_64x64), int(MatmulTile.TILE_128x64), 9999),
    "STAGES_IDS": (int(MatmulStages.STAGES_32x3), int(MatmulStages.STAGES_64xAUTO)),
    "CUSTOM_OPTION_MAX": 3,
    "MIN_ALIGNMENT_A_BYTES": 2,
    "MIN_ALIGNMENT_B_BYTES": 2,
    "MIN_ALIGNMENT_C_BYTES": 2,
    "MIN_ALIGNMENT_D_BYTES": 2,
}


def algo(number: int = 0, **settings: int) -> Algo:
    """Algorithm ``number`` with a configuration, as in ``algo(7, TILE_ID=18)``. The id is in the first 4 bytes."""
    made = Algo(number.to_bytes(4, "little") + bytes(60))
    made.set(MatmulAlgoConfigAttribute.SPLITK_NUM, 1)
    for name, value in settings.items():
        made.set(MatmulAlgoConfigAttribute[name], value)
    return made


def result(number: int = 0, workspace_bytes: int = 1024, waves: float = 0.5, **settings: int) -> HeuristicResult:
    return HeuristicResult(algo(number, **settings), workspace_bytes, Status.SUCCESS, waves)


def can(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Give all algorithms the capabilities :data:`CAN`, changed; ``None``: this cuBLASLt does not know it."""
    answers = CAN | changes

    def capability(self: Algo, attribute: MatmulAlgoCapAttribute) -> Any:
        answer = answers.get(attribute.name, 0)
        if answer is None:
            raise UnsupportedError(f"{attribute.name} needs a newer cuBLASLt")
        return answer

    monkeypatch.setattr(Algo, "capability", capability)


class Lt:
    """What an LtPlan says about addresses."""

    def __init__(self, *, swapped: bool = False, moves: tuple[Any, ...] = (), calls: Any = ((0,) * 6,)) -> None:
        self.swapped, self.moves, self.calls = swapped, moves, calls


class FakePlan:
    """A plan whose checks are answered by ``needs(algo)``: bytes of workspace, or ``None`` for a refusal."""

    def __init__(
        self,
        needs: Callable[[Algo], int | None] = lambda algo: 4096,
        *,
        lt: Any = None,
        alignments: dict[str, int] | None = None,
        workspace_limit: int = 1 << 20,
        state: int = Status.SUCCESS,
    ) -> None:
        self._needs, self._state = needs, state
        self.lt = lt or Lt()
        self.alignments = alignments or {}
        self.workspace_limit = workspace_limit
        self.checked: list[bytes] = []

    def check(self, algo: Algo) -> HeuristicResult:
        self.checked.append(bytes(algo))
        needs = self._needs(algo)
        if needs is None:
            raise HostLibraryError(
                "cublasLtMatmulAlgoCheck failed: not supported", function="cublasLtMatmulAlgoCheck",
                status=Status.NOT_SUPPORTED, log="tile is too large",
            )  # fmt: skip
        return HeuristicResult(algo, needs, self._state, 2.0)
