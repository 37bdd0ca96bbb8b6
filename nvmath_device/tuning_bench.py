# SPDX-License-Identifier: Apache-2.0
"""Compiled choices of tiles on the device: checked against a product of NumPy, then timed in turns. Waits for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from nvmath_device.descriptors import ROW_MAJOR, GemmDescriptor, MatrixLayout
from nvmath_device.dtypes import ElementType
from nvmath_device.errors import DeviceMemoryError, DriverError, NvmathDeviceError
from nvmath_device.host.autotune import measure
from nvmath_device.host.current_device import on_device
from nvmath_device.host.driver import bindings, call
from nvmath_device.numba_backend import tile_kernels
from nvmath_device.tile_choices import TileChoice
from nvmath_device.tuning_builds import Build

_PERIOD = 1_048_573  # random numbers, repeated: a prime, so that no row or column begins like another
_MANY_LINES = 1024  # that NumPy converts at a time
_SUMS_THREADS = 256

# How far sums over a row of C may be off, as a part of how large such sums are. By what is rounded most: elements of C
# as stored, or sums over K. Tensor cores keep 14 bits of sums of fp8 products.
_BOUNDS = {"float16": 1e-2, "bfloat16": 3e-2, "float32": 1e-3, "float64": 1e-10}
_BOUND_FP8 = 5e-2

Run = tuple[Build, TileChoice]


class Bench:
    """The matrices of a product on a device, of random numbers, and C for results.

    Raises DeviceMemoryError where there is no room for them.
    """

    def __init__(self, descriptor: GemmDescriptor, device: int) -> None:
        self._descriptor, self._device = descriptor, device
        self._layouts = tile_kernels.stored_layouts(descriptor)
        with on_device(device):
            self._refuse_what_does_not_fit()
            rng = np.random.default_rng(0)
            host = [
                _random(rng, layout, element)
                for layout, element in zip(self._layouts[:2], descriptor.precision, strict=False)
            ]
            self._weights = rng.choice([-1.0, 1.0], descriptor.size.n)
            self._expected = self._sums(host)
            size_of_numbers = [math.sqrt(np.mean(np.square(x[:_PERIOD].astype(np.float64)))) for x in host]
            self._size_of_sums = math.prod(size_of_numbers) * math.sqrt(descriptor.size.k * descriptor.size.n)
            a, b, c = descriptor.precision
            self._a, self._b = (
                tile_kernels.to_device(*given) for given in zip(host, self._layouts, (a, b), strict=False)
            )
            self._c = tile_kernels.to_device(np.zeros(self._layouts[2].size, c.dtype), self._layouts[2], c)
            self._kernel = tile_kernels.sums_kernel(c)
        self._bound: dict[tuple[int, int], tuple[Build, Any]] = {}

    def check(self, run: Run) -> str | None:
        """What is wrong with its C, in words; None where it is a product of A and B.

        C is NaN before. Sums over its rows, with random signs, are compared with what A and B give: an element that is
        off by more than rounding is found, not by how much less.
        """
        descriptor = self._descriptor
        with on_device(self._device):
            address, nbytes = tile_kernels.address(self._c), self._c_bytes()
            call(bindings().cuMemsetD8, address, 0xFF, nbytes)
            self._launch(run)()
            weights, sums = (tile_kernels.vector_to_device(x) for x in (self._weights, np.zeros(descriptor.size.m)))
            self._kernel[descriptor.size.m, _SUMS_THREADS](self._c, weights, sums)
            found = sums.copy_to_host()
        return wrong(found, self._expected, self._size_of_sums * bound(descriptor))

    def time(self, runs: Sequence[Run], rounds: int, seconds: float) -> list[tuple[float | None, str]]:
        """Median milliseconds of each on the GPU, in turns; None and the error in words where one failed.

        A sample is a loop of launches, after an untimed one. No new round begins after so many seconds, but three there
        are.
        """
        found: list[tuple[float | None, str]] = [(None, "")] * len(runs)
        ready: list[tuple[int, Any]] = []
        with on_device(self._device):
            for place, run in enumerate(runs):
                try:
                    ready.append((place, self._launch(run)))
                except DriverError:
                    raise
                except NvmathDeviceError as error:
                    found[place] = (None, str(error))
            timings: Any = measure(_launch_it, [x for _, x in ready], iterations=rounds, flush=False, seconds=seconds)
        for (place, _), timing in zip(ready, timings, strict=True):
            found[place] = (None, str(timing.error)) if timing.error else (timing.microseconds / 1000, "")
        return found

    def _launch(self, run: Run) -> Any:
        """The launch, with its arguments in place."""
        build, choice = run
        (m, n, _), tile = self._descriptor.size, choice.tile
        rows, columns = -(-m // tile.m), -(-n // tile.n)
        key = id(build), choice.group
        if key not in self._bound:
            shared = build.matmul.get_pipeline_storage_size(choice.depth)
            configured = build.kernel[rows * columns, choice.block_size, 0, shared]
            launch = configured.bind(self._a, self._b, self._c, rows, columns, choice.group)
            self._bound[key] = build, launch  # which is alive as long, so that no other has its id
        return self._bound[key][1]

    def _sums(self, host: Sequence[Any]) -> Any:
        """C times the weights, for C = A B, in float64."""
        along_k = _times(host[1], self._layouts[1], self._weights)
        return _times(host[0], self._layouts[0], along_k)

    def _c_bytes(self) -> int:
        return self._layouts[2].cosize * self._descriptor.value_types[2].itemsize

    def _refuse_what_does_not_fit(self) -> None:
        values = self._descriptor.value_types
        needed = sum(layout.size * value.itemsize for layout, value in zip(self._layouts, values, strict=True))
        free, _ = call(bindings().cuMemGetInfo)
        if needed > free:
            raise DeviceMemoryError(
                f"tune: the matrices of this product take {needed:,} bytes and the device has {int(free):,} free; free "
                "some, or tune a smaller product"
            )


def _launch_it(launch: Any) -> None:
    launch()


def bound(descriptor: GemmDescriptor) -> float:
    """How far sums over a row of C may be off, as a part of how large such sums are."""
    if not descriptor.precision.c.is_float:
        return 0.0
    if any(t.itemsize == 1 for t in descriptor.precision[:2]):
        return _BOUND_FP8
    return _BOUNDS[descriptor.precision.c.dtype.name]


def wrong(found: Any, expected: Any, allowed: float) -> str | None:
    """Which sum over a row of C is off by more than what is allowed, or is no number."""
    off = ~(np.abs(found - expected) <= allowed)  # NaN is off
    if not off.any():
        return None
    row = int(np.argmax(off))
    return (
        f"C is wrong: in {int(off.sum())} of {off.size} rows, of which row {row} sums up to {found[row]:.6g} and not "
        f"to {expected[row]:.6g}"
    )


def _random(rng: Any, layout: MatrixLayout, element: ElementType) -> Any:
    """Numbers for a matrix, padding included, that their type holds exactly."""
    if element.is_float:
        numbers = rng.standard_normal(_PERIOD, np.float32)
        if element.name == "tfloat32":
            numbers = numbers.astype(np.float16)  # which has as many digits
        numbers = numbers.astype(element.dtype)
    else:
        numbers = rng.integers(0 if element.kind == "uint" else -4, 5, _PERIOD).astype(element.dtype)
    return np.resize(numbers, layout.size)


def _times(numbers: Any, layout: MatrixLayout, vector: Any) -> Any:
    """A stored matrix times a vector, in float64."""
    lines = numbers.reshape(-1, layout.ld)
    result = np.zeros(layout.rows)
    for first in range(0, len(lines), _MANY_LINES):
        some = slice(first, first + _MANY_LINES)
        if layout.order == ROW_MAJOR:
            result[some] = lines[some, : layout.cols].astype(np.float64) @ vector
        else:
            result += vector[some] @ lines[some, : layout.rows].astype(np.float64)
    return result
