# SPDX-License-Identifier: Apache-2.0
"""``nvmath_device.shuffle_xor`` in simulated kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvmath_device.numba_backend.simulator_arguments import Call
from nvmath_device.numba_backend.simulator_block import calling_thread
from nvmath_device.shuffles import WARP


def shuffle_xor(value: Any, lanes: Any) -> Any:
    call = Call("shuffle_xor", "nvmath_device")
    thread = calling_thread(call.name)
    if isinstance(lanes, bool) or not hasattr(lanes, "__index__") or not 0 < lanes.__index__() < WARP:
        raise call.execution_error(f"wants an integer of 1 to {WARP - 1} for lanes, got {lanes!r}")
    if np.ndim(value) or np.asarray(value).dtype.kind not in "if" or np.asarray(value).dtype.itemsize < 4:
        raise call.typing_error(f"wants a real number of 32 or 64 bits for value, got {value!r}")
    other = thread.linear ^ lanes.__index__()
    if other >= thread.block.dim.size:
        raise call.execution_error(f"wants whole warps: there is no thread {other} for thread {thread.linear}")
    shown: list[Any] = []

    def finish(_: None, given: dict[Any, tuple[int, Any, list[Any]]]) -> None:
        values = {linear: number for linear, number, _ in given.values()}
        for linear, _, result in given.values():
            result.append(values[linear ^ lanes.__index__()])

    thread.block.together(
        thread, (call.name, "a warp"), same={"lanes": lanes}, own=(thread.linear, value, shown), prepare=lambda: None,
        finish=finish,
    )  # fmt: skip
    return shown[0]
