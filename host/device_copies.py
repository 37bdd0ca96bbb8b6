# SPDX-License-Identifier: Apache-2.0
"""Copies on the GPU and between CPU and GPU, in the order of a stream.

Strided copies are planned by :func:`plan_copy` and carried out by :func:`apply`. Nothing here makes the host wait
but :func:`to_host` and :func:`wait`. The device of the memory and of the stream must be current.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nvmath_device.errors import InvalidArgumentError
from nvmath_device.host import copy_kernel
from nvmath_device.host.copy_plan import Dense, Fill, Move, StridedCopy, aligned_to, plan_copy
from nvmath_device.host.current_device import is_capturing
from nvmath_device.host.driver import bindings
from nvmath_device.host.streams import Retained, call_on_stream

__all__ = ["StridedCopy", "apply", "plan_copy", "prepare", "to_device", "to_host", "wait"]


# -- on the GPU ---------------------------------------------------------------------------------------------


def prepare(copy: StridedCopy) -> None:
    """Compile and load on the current device what the copy needs: nothing where all of it is dense.

    The first time in a new code store this takes NVRTC 0.3 s. :func:`apply` does it where it was not done, but a
    stream that captures a graph should find it done.
    """
    for step in copy.steps:
        if isinstance(step, Move):
            copy_kernel.loaded(copy_kernel.launch_of(step).function)


def apply(copy: StridedCopy, source: int, destination: int, stream: int) -> None:
    """Put a copy on a stream: addresses of the elements with index 0, and the handle of the stream.

    May be captured into a graph. Addresses that are aligned to less than the plan says are copied right, in narrower
    pieces. What the addresses point to is not checked, nor that the two sides do not overlap.

    Raises:
        InvalidArgumentError: the driver does not take the stream.
        DriverError: a call failed, or an earlier kernel has.
        MissingDependencyError, UnsupportedError: the kernel cannot be compiled.
    """
    addresses = source | destination
    if addresses & (copy.alignment - 1):
        copy = aligned_to(copy, addresses & -addresses)
    driver = bindings()
    for step in copy.steps:
        if type(step) is Move:
            copy_kernel.launch(step, source, destination, stream)
        elif type(step) is Dense:
            to, start = destination + step.destination, source + step.source
            call_on_stream(driver.cuMemcpyDtoDAsync, to, start, step.nbytes, stream)
        elif type(step) is Fill:
            call_on_stream(driver.cuMemsetD8Async, destination, 0, step.nbytes, stream)


# -- between CPU and GPU ------------------------------------------------------------------------------------

_being_read = Retained()


def to_device(array: np.ndarray[Any, Any], ptr: int, stream: int) -> None:
    """Copy the bytes of a contiguous array (C or Fortran order, as they lie) to GPU memory. The host does not wait.

    CUDA promises for no kind of CPU memory that it has been read when this returns: the driver usually stages pageable
    memory at once, but reads page-locked memory later, and pageable memory, too, where the GPU has access to it.
    So the array is kept alive until it has been read, but its *contents must not change* before the stream has passed
    the copy: :func:`to_host` on the same stream and :func:`wait` make sure of that.

    Raises:
        InvalidArgumentError: the array has gaps, or the stream captures a graph, which would read the memory at every
            launch.
        DriverError: the copy failed, or an earlier kernel has.
    """
    address, nbytes = _contiguous(array)
    _refuse_capture(stream, "CPU arrays cannot be copied to the GPU")
    if nbytes:
        call_on_stream(bindings().cuMemcpyHtoDAsync, ptr, address, nbytes, stream)
        _being_read.keep(stream, array)


def to_host(ptr: int, array: np.ndarray[Any, Any], stream: int) -> None:
    """Copy GPU memory into a contiguous array (C or Fortran order, as it lies), and wait until it is there.

    All that was on the stream before is done when this returns, without elements, too.

    Raises:
        InvalidArgumentError: the array has gaps or is read-only, or the stream captures a graph, which waiting breaks.
        DriverError: the copy failed, or a kernel before it has.
    """
    address, nbytes = _contiguous(array)
    if not array.flags.writeable:
        raise InvalidArgumentError("array: it is read-only and cannot take a result")
    _refuse_capture(stream, "results cannot be copied to the CPU")
    if nbytes:
        call_on_stream(bindings().cuMemcpyDtoHAsync, address, ptr, nbytes, stream)
    _synchronize(stream)


def wait(stream: int) -> None:
    """Wait until the stream has done all that is on it. Arrays given to :func:`to_device` may change afterwards.

    Raises:
        InvalidArgumentError: the stream captures a graph.
        DriverError: something on the stream failed.
    """
    _refuse_capture(stream, "nobody can wait for work")
    _synchronize(stream)


def _synchronize(stream: int) -> None:
    call_on_stream(bindings().cuStreamSynchronize, stream)
    _being_read.release_done()


def _contiguous(array: np.ndarray[Any, Any]) -> tuple[int, int]:
    """Address and bytes."""
    if not (array.flags.c_contiguous or array.flags.f_contiguous):
        raise InvalidArgumentError(
            f"array: shape {array.shape} with strides of {array.strides} bytes has gaps; pass a contiguous copy of it"
        )
    return array.__array_interface__["data"][0], array.nbytes


def _refuse_capture(stream: int, what: str) -> None:
    if is_capturing(stream):
        raise InvalidArgumentError(
            f"stream: {what} while the stream captures a CUDA graph; use arrays on the GPU, or do it before the capture"
        )
