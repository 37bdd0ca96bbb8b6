# SPDX-License-Identifier: Apache-2.0
"""``nd.jit`` on Numba's simulator: the same launches, bound ones too, of a kernel that is a Python function."""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from typing import Any

import numpy as np
from numba import cuda

from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError

_OF_THE_SIMULATOR = ("device", "fastmath", "opt", "debug")  # it refuses some of the others, and they mean nothing here


class SimulatedKernel:
    """A kernel on the simulator. It is not compiled, so it has no machine code."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        update_wrapper(self, function)
        self.py_func, self.options = function, dict(options)
        self._kernel = cuda.jit(**{name: x for name, x in options.items() if name in _OF_THE_SIMULATOR})(function)

    def __getitem__(self, configuration: Any) -> SimulatedConfigured:
        return SimulatedConfigured(self.py_func.__name__, self._kernel[configuration])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name = self.py_func.__name__
        raise InvalidArgumentError(f"{name} is a kernel: say how to launch it, as in {name}[grid, block](...)")

    def bind(self, *args: Any, grid: Any, block: Any, stream: Any = 0, shared: int = 0) -> SimulatedBound:
        return self[grid, block, stream, shared].bind(*args)

    def forall(self, ntasks: int, tpb: int = 0, stream: Any = 0, sharedmem: int = 0) -> Any:
        return self._kernel.forall(ntasks, tpb, stream, sharedmem)


class SimulatedConfigured:
    def __init__(self, name: str, configured: Any) -> None:
        self._name, self._configured = name, configured

    def __call__(self, *args: Any) -> None:
        _refuse_host_arrays(args)
        self._configured(*args)

    def bind(self, *args: Any) -> SimulatedBound:
        _refuse_host_arrays(args)
        return SimulatedBound(self, args)


class SimulatedBound:
    def __init__(self, configured: SimulatedConfigured, args: tuple[Any, ...]) -> None:
        self._configured, self._args = configured, args

    def __call__(self, *args: Any) -> None:
        if args and len(args) != len(self._args):
            raise ArgumentTypeError(f"bound to {len(self._args)} arguments; got {len(args)}; give all or none")
        self._args = args or self._args
        self._configured(*self._args)


def _refuse_host_arrays(args: tuple[Any, ...]) -> None:
    """As on a GPU, so that a program that runs here runs there."""
    for i, x in enumerate(args):
        if isinstance(x, np.ndarray):
            raise ArgumentTypeError(
                f"argument {i}: a NumPy array in CPU memory, and a launch copies nothing by itself. Copy it once with "
                "numba.cuda.to_device(...), or have this launch copy it: cuda.In(x) there, cuda.Out(x) back, "
                "cuda.InOut(x) both"
            )
