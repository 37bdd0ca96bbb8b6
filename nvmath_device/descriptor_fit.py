# SPDX-License-Identifier: Apache-2.0
"""Whether a device has room for what a descriptor needs, before there is a kernel."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from nvmath_device.descriptors import Dim3
from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError
from nvmath_device.frozen import replace
from nvmath_device.launch_limits import WARP, DeviceLimits, Fit, fit_of
from nvmath_device.lto.cubin import Resources
from nvmath_device.targets import MAX_THREADS_PER_BLOCK, ComputeCapability, compute_capability

if TYPE_CHECKING:
    from nvmath_device.fft import FFT
    from nvmath_device.matmul import Matmul

# What is known of a kernel that does not exist yet.
_ANY_KERNEL = Resources(
    registers=0,
    static_shared_bytes=0,
    local_bytes=0,
    max_threads=MAX_THREADS_PER_BLOCK,
    constant_bytes=0,
    parameter_bytes=0,
)


def matmul_fit(mm: Matmul, shared: Any, sm: Any) -> Fit:
    """The answer of :meth:`nvmath_device.Matmul.fits`."""
    target = _target(mm, sm)
    plan = mm.resolved(target)
    # Without a target, or it would be refused for what is asked here.
    anywhere = type(mm).from_descriptor(plan.descriptor, replace(plan.execution, sm=None))
    return _fit(mm, target, plan.block_dim, anywhere.get_shared_storage_size() + _bytes(shared))


def fft_fit(fft: FFT, shared: Any, data_in_shared: bool, sm: Any) -> Fit:
    """The answer of :meth:`nvmath_device.FFT.fits`."""
    target = _target(fft, sm)
    settled = type(fft).from_descriptor(*fft.resolved(target))
    if data_in_shared and settled.shared_storage_size is None:
        raise InvalidArgumentError("data_in_shared: True is not allowed for Thread execution, which has no such form")
    own = settled.shared_storage_size if data_in_shared else settled.shared_memory_size
    return _fit(fft, target, settled.block_dim or Dim3(WARP), (own or 0) + _bytes(shared))


def _fit(descriptor: Any, target: ComputeCapability, block: Dim3, shared: int) -> Fit:
    return fit_of(repr(descriptor), _ANY_KERNEL, DeviceLimits.of_cc(target), block=block, shared=shared)


def _target(descriptor: Any, sm: Any) -> ComputeCapability:
    return descriptor.sm if sm is None else compute_capability(sm)


def _bytes(shared: Any) -> int:
    try:
        count = operator.index(shared)
    except TypeError:
        raise ArgumentTypeError(f"shared: {shared!r} is a {type(shared).__name__}; give a number of bytes") from None
    if count < 0:
        raise InvalidArgumentError(f"shared: {count} is not allowed; give at least 0 bytes")
    return count
