# SPDX-License-Identifier: Apache-2.0
"""``nd.jit``: Numba kernels whose machine code is kept on disk, and whose launches cost what the driver's do."""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Callable
from functools import lru_cache, update_wrapper
from typing import TYPE_CHECKING, Any

from nvmath_device import simulation
from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError
from nvmath_device.targets import ComputeCapability, compute_capability

if TYPE_CHECKING:
    from nvmath_device.kernel_code import KernelCode
    from nvmath_device.kernel_report import KernelReport
    from nvmath_device.launch_limits import Fit

_CONFIGURATIONS = 128  # that one kernel remembers, as in Numba


def jit(function_or_signature: Any = None, /, **options: Any) -> Any:
    """Compile a Python function to a CUDA kernel: ``numba.cuda.jit`` with a memory.

    >>> @nd.jit
    ... def kernel(a, b, c): ...
    >>> kernel[grid, block](a, b, c)

    Takes what ``numba.cuda.jit`` takes, and ``kernel[grid, block, stream, shared]`` means the same. On top of that

    - machine code is kept in the code store, for all processes. A kernel that is there is neither compiled nor linked.
      It is there if nothing has changed that its code depends on: the function, what it refers to, its helper functions
      and descriptors, the types of its arguments, options, device, and the versions of all tools.
    - arrays of CuPy, PyTorch, JAX, Numba and whatever speaks DLPack go in as they are, bfloat16 and fp8 (as its bits,
      ``uint8``) included. Arrays in CPU memory are refused unless they come in ``cuda.In``, ``cuda.Out`` or
      ``cuda.InOut``.
    - the current stream of the library of an array is ordered before a launch on another stream.
    - dynamic shared memory up to the device's limit is allowed, and a launch that cannot fit says why.

    With ``device=True`` it is ``numba.cuda.jit``. Kernels with ``debug=True`` or ``extensions=``, and those whose code
    depends on something that cannot be put into words, go through Numba and are compiled by each process; the log of
    ``nvmath_device`` says so once.

    Returns:
        a :class:`Kernel`, or a decorator that makes one where no function is given.
    """
    if options.get("device"):
        from numba import cuda

        return cuda.jit(function_or_signature, **options)
    if inspect.isfunction(function_or_signature):
        return _kernel(function_or_signature, None, options)
    return lambda function: _kernel(function, function_or_signature, options)


def _kernel(function: Any, signature: Any, options: dict[str, Any]) -> Any:
    function = getattr(function, "py_func", function)
    if not inspect.isfunction(function):
        raise ArgumentTypeError(f"jit: {function!r} is a {type(function).__name__}; give a Python function")
    if simulation.is_active():
        from nvmath_device.numba_backend.simulator_launch import SimulatedKernel

        return SimulatedKernel(function, options)
    return Kernel(function, signature, options)


class Kernel:
    """A kernel made by :func:`jit`. ``kernel[grid, block, stream, shared](*args)`` launches it.

    Attributes:
        py_func: the Python function.
        options: those of :func:`jit`.
        signatures: tuples of Numba types of the arguments that it is declared with; without any it takes what comes.
    """

    def __init__(self, function: Callable[..., Any], signature: Any, options: dict[str, Any]) -> None:
        update_wrapper(self, function)
        self.py_func, self.options = function, dict(options)
        self.parameters = tuple(inspect.signature(function).parameters)
        self._declared = signature
        self._lock = threading.RLock()
        self._codes: dict[tuple[Any, ComputeCapability], KernelCode] = {}
        self._loaded: dict[tuple[Any, int], Any] = {}  # by types and device
        self._plain: Any = None
        self.configure = lru_cache(maxsize=_CONFIGURATIONS)(self._configure)

    def __repr__(self) -> str:
        return f"<nvmath_device kernel {self.py_func.__module__}.{self.py_func.__qualname__}>"

    # -- launching --

    def __getitem__(self, configuration: Any) -> Any:
        try:
            return self.configure(*configuration)
        except TypeError:  # extents in a list, or a single value
            return self.configure(*_hashable(configuration))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name = self.py_func.__name__
        raise InvalidArgumentError(f"{name} is a kernel: say how to launch it, as in {name}[grid, block](...)")

    def bind(self, *args: Any, grid: Any, block: Any, stream: Any = 0, shared: int = 0) -> Any:
        """A launch that is prepared once: see :meth:`Configured.bind` of ``kernel[grid, block, stream, shared]``."""
        return self[grid, block, stream, shared].bind(*args)

    def forall(self, ntasks: int, tpb: int = 0, stream: Any = 0, sharedmem: int = 0) -> Any:
        """As in Numba: one thread a task, in blocks of ``tpb`` threads, by default 256."""
        block = tpb or 256
        if ntasks <= 0:
            if ntasks < 0:
                raise InvalidArgumentError(f"forall: {ntasks} tasks; give a number that is not negative")
            return lambda *args: None
        return self[-(-ntasks // block), block, stream, sharedmem]

    def _configure(self, grid: Any, block: Any, stream: Any = 0, shared: int = 0) -> Any:
        from nvmath_device.numba_backend.configured import Configured

        return Configured(self, grid, block, stream, shared)

    # -- code --

    @property
    def signatures(self) -> list[tuple[Any, ...]]:
        if self._declared is None:
            return []
        from nvmath_device.numba_backend.signatures import argument_types

        return [argument_types(s) for s in _listed(self._declared)]

    def build(self, signature: Any, cc: Any) -> KernelCode:
        """The machine code for arguments of these types and a target such as ``90``: from the store, or made for it.

        ``signature`` is a Numba signature or a tuple of argument types. Needs neither a GPU nor a driver.

        Raises:
            UnsupportedError: the kernel cannot be kept (see :func:`jit`).
            LinkError, CodegenError, MissingDependencyError: as said there.
            numba.core.errors.TypingError: the function cannot be compiled.
        """
        from nvmath_device.numba_backend.signatures import argument_types

        return self._code(argument_types(signature), compute_capability(cc, argument="cc"))

    def _code(self, types: tuple[Any, ...], cc: ComputeCapability) -> KernelCode:
        code = self._codes.get((types, cc))
        if code is None:
            from nvmath_device.numba_backend.kernel_builds import stored_code

            with self._lock:
                code = self._codes.get((types, cc))
                if code is None:
                    code = self._codes[types, cc] = stored_code(self.py_func, types, self.options, cc)
        return code

    def fits(
        self,
        grid: Any,
        block: Any,
        shared: int = 0,
        *,
        signature: Any = None,
        cc: Any = None,
        device: int | None = None,
    ) -> Fit:
        """Whether such a launch fits a target (``cc``) or a device, and how many of its blocks run at a time.

        Counts static and dynamic shared memory, threads, registers and extents, of the code for ``signature``; left
        out, of the one signature that it is declared with or was launched with. Also false where the block is not that
        of the descriptors in the kernel, or the dynamic memory ends before its ``shared_layout``. Without ``cc`` and
        ``device`` it is the current device; of a device it also says whether all blocks of a kernel that synchronises
        its grid run at the same time. The answer is true or false and says why.

        Raises:
            InvalidArgumentError: no signature is given and there is none, or several.
            NoDeviceError: no ``cc`` is given and there is no device.
            What :meth:`build` raises.
        """
        from nvmath_device.launch_limits import DeviceLimits
        from nvmath_device.numba_backend.launching import device_limits

        code = self._code(self._types(signature), self._target(cc, device))
        limits = DeviceLimits.of_cc(cc) if cc is not None else device_limits(_index(device))
        return code.fit(self.py_func.__qualname__, limits, grid=grid, block=block, shared=shared)

    def report(self, *, signature: Any = None, cc: Any = None) -> KernelReport:
        """Registers, shared memory, spills and instructions of the code for ``signature``, as in :meth:`fits`.

        Raises MissingDependencyError where nvdisasm is not installed, and what :meth:`fits` raises.
        """
        from nvmath_device.kernel_report import report

        code = self._code(self._types(signature), self._target(cc, None))
        return report(code.cubin, code.entry)

    def _types(self, signature: Any) -> tuple[Any, ...]:
        from nvmath_device.numba_backend.signatures import argument_types

        if signature is not None:
            return argument_types(signature)
        known = self.signatures or list(dict.fromkeys(types for types, _ in self._codes))
        if len(known) != 1:
            has = f"{len(known)} of them" if known else "none yet"
            raise InvalidArgumentError(f"signature: give one; {self.py_func.__name__} has {has}")
        return known[0]

    def _target(self, cc: Any, device: int | None) -> ComputeCapability:
        if cc is not None:
            return compute_capability(cc, argument="cc")
        from nvmath_device.host import current_device

        return compute_capability(current_device.compute_capability(_index(device)))

    @property
    def plain(self) -> Any:
        """The same function as a kernel of ``numba.cuda.jit``."""
        with self._lock:
            if self._plain is None:
                from numba import cuda

                self._plain = (
                    cuda.jit(**self.options)(self.py_func)
                    if self._declared is None
                    else cuda.jit(self._declared, **self.options)(self.py_func)
                )
            return self._plain

    def log_plain(self, why: str) -> None:
        """Say that the kernel goes through Numba."""
        logging.getLogger("nvmath_device").info("%s goes through numba.cuda.jit and is not stored: %s", self, why)


def _index(device: int | None) -> int:
    """Number of a device; without one, of the current one."""
    if device is not None:
        return device
    from nvmath_device.host import current_device

    return max(current_device.current_index(), 0)


def _listed(signature: Any) -> list[Any]:
    return list(signature) if isinstance(signature, list) else [signature]


def _hashable(configuration: Any) -> tuple[Any, ...]:
    if not isinstance(configuration, (tuple, list)) or not 2 <= len(configuration) <= 4:
        raise InvalidArgumentError(
            f"a launch needs [grid, block], [grid, block, stream] or [grid, block, stream, shared bytes]; got "
            f"[{configuration!r}]"
        )
    return tuple(tuple(x) if isinstance(x, list) else x for x in configuration)
