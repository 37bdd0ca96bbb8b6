# SPDX-License-Identifier: Apache-2.0
"""Kernels of a benchmark, generated, compiled and linked before anything is timed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from timing import Report

from nvmath_device.host import current_device
from nvmath_device.lto.codegen import worker_count

Wanted = TypeVar("Wanted")


def build(
    report: Report,
    wanted: Iterable[Wanted],
    kernel_of: Callable[[Wanted], Any],
    types_of: Callable[[Wanted], tuple[Any, ...]],
    name_of: Callable[[Wanted], str],
) -> dict[Wanted, Any]:
    """The kernels of what is wanted, built in parallel where they are not in the code store.

    What cannot be built is left out, and the report says so under its name.
    """
    wanted = list(wanted)
    cc = current_device.compute_capability(0)

    def one(what: Wanted) -> Any:
        try:
            kernel = kernel_of(what)
            kernel.build(types_of(what), cc)
        except Exception as error:
            return error
        return kernel

    with ThreadPoolExecutor(worker_count(len(wanted))) as pool:
        made = dict(zip(wanted, pool.map(one, wanted), strict=True))
    for what, kernel in made.items():
        if isinstance(kernel, Exception):
            report.leave_out(name_of(what), kernel)
    return {what: kernel for what, kernel in made.items() if not isinstance(kernel, Exception)}
