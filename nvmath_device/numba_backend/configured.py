# SPDX-License-Identifier: Apache-2.0
"""``kernel[grid, block, stream, shared]``: a configured kernel, and a launch of it that is bound to arguments."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError, InvalidStateError
from nvmath_device.host import current_device
from nvmath_device.host.array_view import cuda_device
from nvmath_device.host.streams import current_stream, keep_until_done, order_after, same_stream, stream_handle
from nvmath_device.numba_backend.kernel_arguments import Argument, converted, read_argument
from nvmath_device.numba_backend.kernel_builds import CannotBeKept
from nvmath_device.numba_backend.launching import Config, Launch, LoadedKernel
from nvmath_device.targets import compute_capability

if TYPE_CHECKING:
    from nvmath_device.kernels import Kernel

_SHORTCUTS = 4  # kinds of arguments that are recognised without being read
_WITH_STREAMS = ("cupy", "torch")
_THROUGH_NUMBA = ("debug", "extensions")


class Configured:
    """A kernel with its launch configuration. Calling it launches, and returns at once.

    Attributes:
        grid, block: three extents each.
        shared: dynamic shared memory, in bytes.
    """

    def __init__(self, kernel: Kernel, grid: Any, block: Any, stream: Any, shared: Any) -> None:
        self.kernel = kernel
        self.grid, self.block = _extents(grid, "grid"), _extents(block, "block")
        self.shared = _bytes(shared)
        self._stream = stream
        self._launches: dict[tuple[Any, int], Launch] = {}
        self._shortcuts: tuple[Callable[[tuple[Any, ...]], bool], ...] = ()
        self._plain: Any = None
        through_numba = [name for name in _THROUGH_NUMBA if kernel.options.get(name)]
        if through_numba:
            self._go_plain(f"{through_numba[0]}= is given")

    def __call__(self, *args: Any) -> None:
        shortcuts = self._shortcuts
        for shortcut in shortcuts:
            if shortcut(args):
                if shortcut is not shortcuts[0]:  # the last kind of arguments is the likeliest to come again
                    self._shortcuts = (shortcut, *(s for s in shortcuts if s is not shortcut))
                return
        self._launch(args)

    def bind(self, *args: Any) -> Bound:
        """Prepare the launch with these arguments, and launch nothing yet.

        Of what is bound, arrays are kept alive.

        Raises:
            InvalidStateError: the kernel goes through Numba, which prepares nothing.
            What a launch raises.
        """
        if self._plain is None:
            found = self._prepare(args)
            if found is not None:
                return Bound(self, Launch(found[0].kernel, found[0].config), found[1], args)
        raise InvalidStateError(f"{self.kernel} goes through numba.cuda.jit (see nd.jit) and cannot be bound")

    # -- the long way --

    def _launch(self, args: tuple[Any, ...]) -> None:
        found = None if self._plain is not None else self._prepare(args)
        if found is None:
            self._plain(*args)
            return
        launch, arguments = found
        launch.launch(arguments)
        self._finish(launch, arguments)
        if not any(a.finish for a in arguments):
            shortcut = launch.shortcut(arguments, args)
            if shortcut is not None:
                self._shortcuts = (shortcut, *self._shortcuts[: _SHORTCUTS - 1])

    def _prepare(self, args: tuple[Any, ...]) -> tuple[Launch, list[Argument]] | None:
        """The launch for arguments of this kind, ordered and checked; ``None`` where Numba has to do it."""
        kernel = self.kernel
        if len(args) != len(kernel.parameters):
            raise ArgumentTypeError(
                f"{kernel.py_func.__name__} takes {len(kernel.parameters)} arguments ({', '.join(kernel.parameters)}); "
                f"got {len(args)}"
            )
        device = self._device()
        stream = stream_handle(None if _is_default(self._stream) else self._stream, "numba", cuda_device(device))
        arguments = [read_argument(x, name, stream) for x, name in zip(args, kernel.parameters, strict=True)]
        for argument, name in zip(arguments, kernel.parameters, strict=True):
            elsewhere = [view.device for view in argument.views if view.device.index != device]
            if elsewhere:
                raise InvalidArgumentError(
                    f"{name}: the array is on {elsewhere[0]}, and the current device is cuda:{device}; make "
                    "the array's device current, or copy it"
                )
        declared = kernel.signatures
        if declared:
            arguments = [
                converted(argument, x, kind, name)
                for argument, x, kind, name in zip(arguments, args, declared[0], kernel.parameters, strict=True)
            ]
        types = tuple(argument.type for argument in arguments)
        launch = self._launches.get((types, device))
        if launch is None or launch.config.stream != stream:
            try:
                loaded = load(kernel, types, device)
            except CannotBeKept as error:
                self._go_plain(str(error))
                return None
            config = Config(self.grid, self.block, stream, self.shared)
            loaded.code.fit(
                kernel.py_func.__qualname__, loaded.limits, grid=self.grid, block=self.block, shared=self.shared
            ).require()
            launch = self._launches[types, device] = Launch(loaded, config)
        self._order(arguments, stream, device)
        return launch, arguments

    def _device(self) -> int:
        index = current_device.current_index()
        if index < 0:
            index = 0
            current_device.make_current(index)
        return index

    def _order(self, arguments: Sequence[Argument], stream: int, device: int) -> None:
        """Put the launch after what makes its arrays, as far as their libraries tell."""
        views = [view for argument in arguments for view in argument.views]
        for producer in {v.producer_stream for v in views} - {None}:
            order_after(stream, producer)  # type: ignore[arg-type]
        for package in {v.package for v in views}:
            if package in _WITH_STREAMS:
                handle = current_stream(package, cuda_device(device))
                if not same_stream(handle, stream):
                    order_after(stream, handle)

    def _finish(self, launch: Launch, arguments: Sequence[Argument]) -> None:
        for argument in arguments:
            for finish in argument.finish:
                finish()
        # Memory of these goes back when the last reference goes, whatever is still to run.
        held = [view.keeper for a in arguments for view in a.views if view.keeper is not None]
        if held and not current_device.is_capturing(launch.config.stream):
            keep_until_done(launch.config.stream, *held)

    def _go_plain(self, why: str) -> None:
        self.kernel.log_plain(why)
        self._plain = self.kernel.plain[self.grid, self.block, self._numba_stream(), self.shared]

    def _numba_stream(self) -> Any:
        """The stream as Numba takes it, which knows its own and cuda.core's."""
        if _is_default(self._stream):
            return self._stream
        from numba import cuda

        return cuda.external_stream(stream_handle(self._stream, "numba", cuda_device(self._device())))


class Bound:
    """A launch with its arguments in place. ``bound()`` launches it again; ``bound(*args)`` with others like them.

    An array may be replaced by one of the same library, type, extents, strides and device, or by the address of memory
    that is laid out the same, as an ``int``: that is not checked. Numbers of Python and NumPy may change their value.
    No stream is ordered before another: that was done when it was bound.
    """

    def __init__(
        self, configured: Configured, launch: Launch, arguments: list[Argument], args: tuple[Any, ...]
    ) -> None:
        launch.fill(arguments)
        self._names, self._bound = configured.kernel.parameters, arguments
        self._args = tuple(x if a.view is None else a.view.ptr for a, x in zip(arguments, args, strict=True))
        self._launch, self._again = launch, launch.again()
        self._write = tuple(launch.bound_writers(arguments, args))

    def __call__(self, *args: Any) -> None:
        if not args:
            self._again()
            return
        if len(args) != len(self._names):
            raise ArgumentTypeError(
                f"bound to {len(self._names)} arguments ({', '.join(self._names)}); got {len(args)}; give all or none"
            )
        wrong = self._launch.with_new(self._write, args, self._args)
        if wrong >= 0:
            raise InvalidArgumentError(
                f"{self._names[wrong]}: a {type(args[wrong]).__name__} that is not like what was bound, "
                f"{self._bound[wrong].type}: library, type, extents, strides and device have to be the same; bind again"
            )
        self._args = args


def load(kernel: Kernel, types: tuple[Any, ...], device: int) -> LoadedKernel:
    """The kernel for these types on a device, which must be current. Once a kernel, types and device."""
    with kernel._lock:
        found = kernel._loaded.get((types, device))
        if found is None:
            cc = compute_capability(current_device.compute_capability(device))
            found = kernel._loaded[types, device] = LoadedKernel(kernel._code(types, cc), device)
        return found


def _extents(extents: Any, name: str) -> tuple[int, int, int]:
    given = extents if isinstance(extents, (tuple, list)) else (extents,)
    try:
        numbers = tuple(operator.index(x) for x in given)
    except TypeError:
        raise ArgumentTypeError(f"{name}: {extents!r}; give one to three integers") from None
    if not 1 <= len(numbers) <= 3 or any(x <= 0 for x in numbers):
        raise InvalidArgumentError(f"{name}: {extents!r}; give one to three positive integers")
    x, y, z = (*numbers, 1, 1)[:3]
    return x, y, z


def _bytes(shared: Any) -> int:
    try:
        number = operator.index(shared)
    except TypeError:
        raise ArgumentTypeError(f"shared: {shared!r} is a {type(shared).__name__}; give bytes as an integer") from None
    if number < 0:
        raise InvalidArgumentError(f"shared: {number} is negative; give bytes")
    return number


def _is_default(stream: Any) -> bool:
    return stream is None or (type(stream) is int and stream == 0)
