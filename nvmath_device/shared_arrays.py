# SPDX-License-Identifier: Apache-2.0
"""``nvmath_device.shared``: shared memory for kernels, where ``numba.cuda.shared`` falls short."""

from __future__ import annotations

from typing import Any

from nvmath_device.kernel_calls import call_in_kernel


class SharedNamespace:
    """Kernel-side functions on shared memory."""

    def array(self, shape: Any, dtype: Any, alignment: int = 16) -> Any:
        """Kernel side: an uninitialised shared array, C-contiguous, shared by the block.

        Like ``numba.cuda.shared.array``, with two differences: every element type of this package is accepted
        (also bfloat16; fp8 as its bits, uint8), and the array starts at a multiple of at least 16 bytes, as
        generated code needs. ``shape`` is a constant integer or tuple; 0 stands for all of the dynamic shared
        memory of the launch.
        """
        return call_in_kernel("shared.array", "shared_array", shape, dtype, alignment)

    def __repr__(self) -> str:
        return "nvmath_device.shared"

    @property
    def _numba_type_(self) -> Any:
        from nvmath_device.numba_backend import shared_type

        return shared_type()


shared = SharedNamespace()
