# SPDX-License-Identifier: Apache-2.0
"""Numbers that the threads of a warp show each other: :data:`nvmath_device.shuffle_xor`."""

from __future__ import annotations

from typing import Any

from nvmath_device.kernel_calls import KernelFunction, call_in_kernel

WARP = 32
FORM = ("value", "lanes")


class _ShuffleXor(KernelFunction):
    name = "shuffle_xor"

    def __call__(self, value: Any, lanes: Any) -> Any:
        """Kernel side: ``value`` of that thread of this warp whose lane is this one's with the bits ``lanes`` flipped.

        As ``cuda.shfl_xor_sync`` of the whole warp, but the simulator has it, too: there all threads of the block call
        it together. Numbers are real, of 32 or 64 bits. ``lanes`` is 1 to 31. With 1 and then 2, for example, sums over
        the four threads that share the rows of a product of tensor cores.
        """
        return call_in_kernel("shuffle_xor", "shuffle_xor", value, lanes)


shuffle_xor = _ShuffleXor()
