# SPDX-License-Identifier: Apache-2.0
"""What happens when a kernel-side function is called by Python: the simulator answers, or an error explains."""

from __future__ import annotations

from typing import Any

from nvmath_device import simulation
from nvmath_device.errors import KernelOnlyError


def call_in_kernel(name: str, simulated: str, *args: Any) -> Any:
    """Run ``numba_backend.simulator.<simulated>(*args)`` in a simulated kernel; raise on the host."""
    if simulation.is_active():
        from nvmath_device.numba_backend import simulator

        return getattr(simulator, simulated)(*args)
    raise KernelOnlyError(
        f"{name} was called on the host; it only means something inside a kernel compiled by @cuda.jit. "
        "To run kernels without a GPU set NUMBA_ENABLE_CUDASIM=1 before Numba is imported"
    )


class KernelFunction:
    """A function of the package that kernels call. ``name`` is what Numba's side has registered it under."""

    name: str

    def __repr__(self) -> str:
        return f"nvmath_device.{self.name}"

    @property
    def _numba_type_(self) -> Any:
        from nvmath_device.numba_backend import function_type

        return function_type(self.name)
