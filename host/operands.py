# SPDX-License-Identifier: Apache-2.0
"""Where a product runs, and operands brought there.

:func:`place` decides from the operands' devices and the options alone. :class:`Resident` moves operands in CPU
memory to a GPU, where the product runs on one; operands that are there already are used where they are.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from typing import Any

import numpy as np

from nvmath_device.errors import InvalidArgumentError, NoDeviceError
from nvmath_device.host import current_device
from nvmath_device.host.array_results import dense_strides, plan_empty
from nvmath_device.host.array_view import CPU, ArrayView, Device, canonical_strides, cuda_device, type_name
from nvmath_device.host.arrays import as_numpy
from nvmath_device.host.device_copies import to_device, to_host, wait
from nvmath_device.host.lt_plan import KNOWN_ALIGNMENT
from nvmath_device.host.options import MatmulOptions
from nvmath_device.host.streams import stream_handle

logger = logging.getLogger("nvmath_device")


@dataclass(frozen=True)
class Placement:
    """Where a product runs and where its result goes.

    Attributes:
        device: the CPU or a CUDA device.
        package: library of the result, which is A's.
        result: device of the result: that of A.
        has_cpu_operands: operands are copied to the GPU, and the call returns when its result is there.
    """

    device: Device
    package: str
    result: Device
    has_cpu_operands: bool

    @property
    def on_gpu(self) -> bool:
        return self.device.kind == "cuda"

    @property
    def has_cpu_result(self) -> bool:
        return self.result.kind == "cpu"

    @property
    def memory(self) -> str:
        """The library whose pool temporaries and results on the GPU come from."""
        return "generic" if self.has_cpu_result else self.package

    def stream(self, stream: Any) -> int:
        """The handle of a stream, by default the current one of the result's library; 0 on the CPU."""
        return stream_handle(stream, self.memory, self.device) if self.on_gpu else 0


def place(views: Mapping[str, ArrayView], options: MatmulOptions) -> Placement:
    """Decide where to compute. ``views`` are all arrays by argument name, A's first.

    Raises:
        InvalidArgumentError: arrays on several GPUs, or on a GPU and the CPU without ``mix_devices``, or on another
            GPU than ``device_id``, or on a GPU under CPU execution.
        NoDeviceError: ``execution="gpu"`` and there is none.
    """
    first = next(iter(views))
    gpus = {v.device: name for name, v in reversed(list(views.items())) if v.device.kind == "cuda"}
    on_cpu = [name for name, v in views.items() if v.device.kind == "cpu"]
    result = views[first].device
    if len(gpus) > 1:
        where = ", ".join(f"{name} on {device}" for device, name in reversed(gpus.items()))
        raise InvalidArgumentError(f"operands are on several devices: {where}; move them to one")
    if gpus:
        device, name = next(iter(gpus.items()))
        if options.execution == "cpu":
            raise InvalidArgumentError(f"execution: 'cpu' is asked for and {name} is on {device}; move it to the CPU")
        if on_cpu and not options.mix_devices:
            raise InvalidArgumentError(
                f"operands are on the CPU and on a GPU: {on_cpu[0]} is in CPU memory and {name} on {device}; move one, "
                "or allow it with options={'mix_devices': True}"
            )
        if options.device_id is not None and options.device_id != device.index:
            raise InvalidArgumentError(f"device_id: {options.device_id} is asked for and {name} is on {device}")
        return Placement(device, views[first].package, result, bool(on_cpu))
    if not _on_gpu(options.execution):
        return Placement(CPU, views[first].package, CPU, True)
    index = max(current_device.current_index(), 0) if options.device_id is None else options.device_id
    if index >= current_device.device_count():
        raise InvalidArgumentError(
            f"device_id: there is no device {index}; the machine has {current_device.device_count()}"
        )
    return Placement(cuda_device(index), views[first].package, CPU, True)


def _on_gpu(execution: str | None) -> bool:
    if execution == "cpu":
        return False
    if current_device.device_count():
        return True
    if execution == "gpu":
        raise NoDeviceError("execution: 'gpu' is asked for and there is no CUDA device; the default takes the CPU then")
    _say_once()
    return False


@lru_cache(maxsize=1)
def _say_once() -> None:
    logger.info("no CUDA device: products are computed on the CPU, with NumPy")


def check_same_kind(name: str, new: ArrayView, old: ArrayView) -> None:
    """Refuse an operand of another shape, type or device than the one it replaces."""
    for what, given, wanted in (
        ("shape", new.shape, old.shape),
        ("element type", type_name(new.element, new.is_complex), type_name(old.element, old.is_complex)),
        ("device", new.device, old.device),
    ):
        if given != wanted:
            raise InvalidArgumentError(
                f"{name}: its {what} is {given}, and the plan is for {wanted}; make a new Matmul for other operands"
            )


def needs_another_plan(new: ArrayView, old: ArrayView) -> bool:
    """Whether a plan for ``old`` does not hold for ``new``, which is of the same kind."""
    return (
        new.strides != old.strides
        or new.conjugated != old.conjugated
        or new.package != old.package
        or min(new.alignment, KNOWN_ALIGNMENT) < min(old.alignment, KNOWN_ALIGNMENT)
    )


class Resident:
    """An operand's copy on a GPU, for an operand in CPU memory. It keeps its place when it is refilled."""

    def __init__(self, operand: ArrayView, device: Device, stream: int) -> None:
        self._axes = _by_stride(operand)
        empty = plan_empty(
            "generic", operand.shape, operand.element, is_complex=operand.is_complex, device=device, order=self._axes
        )
        with current_device.on_device(device.index):
            self.view = empty(stream)._replace(conjugated=operand.conjugated)
        self.fill(operand, stream)

    @staticmethod
    def like(operand: ArrayView, device: Device) -> ArrayView:
        """What the view of an operand's copy will say, but for the address, which stands for any that pools give."""
        strides = canonical_strides(operand.shape, dense_strides(operand.shape, _by_stride(operand)))
        return operand._replace(ptr=256, strides=strides, device=device, package="generic", owner=None, keeper=None)

    def fill(self, operand: ArrayView, stream: int) -> None:
        """Copy an operand of the same shape and type, and wait until its memory has been read."""
        if operand.size:
            stored = np.ascontiguousarray(as_numpy(operand).transpose(self._axes))
            to_device(stored, self.view.ptr, stream)
            wait(stream)


def _by_stride(operand: ArrayView) -> tuple[int, ...]:
    """Axes from the slowest to the fastest, as they lie; those that are repeated by strides of zero first."""
    return tuple(sorted(range(operand.ndim), key=lambda axis: -(abs(operand.strides[axis]) or inf)))


def fetch(operand: ArrayView, target: ArrayView, stream: int) -> None:
    """Copy a dense array on a GPU into CPU memory of the same shape and type, and wait for it.

    ``target`` may have any strides.
    """
    if not operand.size:
        return
    axes = _by_stride(operand)
    wanted = dense_strides(operand.shape, axes)
    host = as_numpy(target)
    if target.strides == canonical_strides(operand.shape, wanted):
        to_host(operand.ptr, host.transpose(axes), stream)
        return
    staging = np.empty([operand.shape[axis] for axis in axes], host.dtype)
    to_host(operand.ptr, staging, stream)
    host[...] = staging.transpose(np.argsort(axes))


def bring_back(
    placement: Placement, result: ArrayView, outputs: Mapping[str, ArrayView], target: ArrayView | None, stream: int
) -> tuple[ArrayView, dict[str, ArrayView]]:
    """Results in CPU memory: D into ``target`` if it is there, all else into new arrays of the result's library."""
    back = {name: _new_on_cpu(placement, v) for name, v in outputs.items()}
    if target is None:
        target = _new_on_cpu(placement, result)
    for source, goal in ((result, target), *((outputs[name], v) for name, v in back.items())):
        if goal.device.kind == "cpu":
            fetch(source, goal, stream)
    return target, back


def _new_on_cpu(placement: Placement, like: ArrayView) -> ArrayView:
    order = _by_stride(like)
    empty = plan_empty(placement.package, like.shape, like.element, is_complex=like.is_complex, order=order)
    return empty(0)
