# SPDX-License-Identifier: Apache-2.0
"""Blocks and threads of Numba's CUDA simulator: who calls, what a block shares, what it does together.

The only file that knows how the simulator is built: a thread of a block is a Python thread, every block has a
manager of its own, and every launch a context. The simulator's barrier lets the waiting threads go as soon as
all threads that still run wait anywhere; a call that some thread leaves out therefore ends in an error here.
"""

from __future__ import annotations

import gc
import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import numpy as np
from numba.cuda.simulator import kernel as simulator

from nvmath_device.descriptors import Dim3
from nvmath_device.errors import KernelExecutionError, KernelOnlyError

logger = logging.getLogger("nvmath_device.simulator")

_blocks: WeakKeyDictionary[Any, Block] = WeakKeyDictionary()  # by the simulator's manager of the block
_launches: WeakSet[Any] = WeakSet()  # the simulator's contexts of launches seen so far
_registry_lock = threading.Lock()


class Thread:
    """The thread of a simulated kernel that runs the current call."""

    def __init__(self, simulated: Any) -> None:
        self._simulated = simulated
        self.block = _block_of(simulated)

    @property
    def linear(self) -> int:
        """Index in the block, x fastest."""
        return int(self._simulated.thread_id)

    @property
    def index(self) -> Dim3:
        return Dim3(*self._simulated.threadIdx)

    @property
    def block_index(self) -> Dim3:
        return Dim3(*self._simulated.blockIdx)

    def wait(self) -> None:
        """``cuda.syncthreads()``."""
        self._simulated.syncthreads()


def calling_thread(name: str) -> Thread:
    """The simulated thread that called ``name``. Raises :class:`KernelOnlyError` on the host."""
    current = threading.current_thread()
    if not isinstance(current, simulator.BlockThread):
        raise KernelOnlyError(
            f"{name} was called on the host; it only means something inside a kernel launched by @cuda.jit"
        )
    return Thread(current)


class Block:
    """What the threads of one block share for as long as the block runs.

    ``shared_arrays`` is a place for :func:`shared_array`; ``lock`` guards it.
    """

    def __init__(self, simulated: Any) -> None:
        self.dim = Dim3(*simulated._manager._block_dim)
        self.index = Dim3(*simulated.blockIdx)
        self.lock = threading.RLock()
        self.shared_arrays: dict[Any, np.ndarray[Any, Any]] = {}
        self._manager_id = id(simulated._manager)
        self._calls: Counter[int] = Counter()
        self._meetings: dict[int, _Meeting] = {}

    def together(
        self,
        thread: Thread,
        what: tuple[str, Any],
        *,
        same: Mapping[str, Any],
        own: Any = None,
        prepare: Callable[[], Any],
        finish: Callable[[Any, dict[Dim3, Any]], None],
    ) -> None:
        """A call by all threads of the block: every thread comes here, one computes, all go on.

        ``what`` is the name of the call and the object it is made on, ``same`` the arguments that all threads
        must agree on, ``own`` an argument of each thread. ``prepare()`` runs for the first thread that comes
        and checks the arguments; the last runs ``finish(prepared, own arguments by threadIdx)``. One barrier.

        Raises:
            KernelExecutionError: a thread did not come, came for another call or with other arguments.
        """
        with self.lock:
            number = self._calls[thread.linear]
            meeting = self._meetings.get(number)
            if meeting is None:
                meeting = _Meeting(what, dict(same), thread.index, prepare())
                self._meetings[number] = meeting
            else:
                meeting.compare(what, same, thread.index)
            self._calls[thread.linear] += 1
            meeting.own[thread.index] = own
            is_last = len(meeting.own) == self.dim.size
        if is_last:
            finish(meeting.prepared, meeting.own)
            meeting.is_done = True
            del self._meetings[number]
        if self.dim.size > 1:
            thread.wait()
        if not meeting.is_done:
            self._explain(what[0], meeting)

    def _explain(self, name: str, meeting: _Meeting) -> None:
        """Raise why the barrier opened before all threads had come."""
        failed = _failed_thread(self._manager_id)
        if failed is not None:  # the other threads only wait because this one is gone; its error says more
            error, traceback = failed.exception
            raise error.with_traceback(traceback)
        absent = [p for p in _points(self.dim) if p not in meeting.own]
        shown = ", ".join(str(tuple(p)) for p in absent[:4]) + (", ..." if len(absent) > 4 else "")
        raise KernelExecutionError(
            f"{name} was called by {len(meeting.own)} of {self.dim.size} threads of block "
            f"{tuple(self.index)}, but all threads of a block must call it together; threadIdx {shown} did "
            "not"
        )


class _Meeting:
    """The n-th call that the threads of a block make together."""

    def __init__(self, what: tuple[str, Any], same: dict[str, Any], first: Dim3, prepared: Any) -> None:
        self.what, self.same, self.first, self.prepared = what, same, first, prepared
        self.own: dict[Dim3, Any] = {}
        self.is_done = False

    def compare(self, what: tuple[str, Any], same: Mapping[str, Any], thread: Dim3) -> None:
        who = f"threadIdx {tuple(self.first)}", f"threadIdx {tuple(thread)}"
        if what != self.what:
            (name, subject), (other_name, other) = self.what, what
            raise KernelExecutionError(
                f"the threads of the block call different things: {who[0]} calls {name} on {subject!r}, "
                f"{who[1]} calls {other_name} on {other!r}; all must make the same calls in the same order"
            )
        for key, value in same.items():
            if not _equal(value, self.same.get(key)):
                raise KernelExecutionError(
                    f"{what[0]}: the threads of the block must pass the same {key}; {who[0]} passes "
                    f"{self.same.get(key)}, {who[1]} passes {value}"
                )


def _equal(left: Any, right: Any) -> bool:
    return bool(left == right) or bool(left != left and right != right)  # NaN is the same as NaN here


def _points(dim: Dim3) -> list[Dim3]:
    return [Dim3(x, y, z) for z in range(dim.z) for y in range(dim.y) for x in range(dim.x)]


def _failed_thread(manager_id: int) -> Any:
    """A thread of the block that an exception ended. The simulator lists its threads nowhere."""
    for candidate in gc.get_objects():
        if type(candidate) is simulator.BlockThread and id(candidate._manager) == manager_id and candidate.exception:
            return candidate
    return None


def _block_of(simulated: Any) -> Block:
    with _registry_lock:
        _note_launch()
        block = _blocks.get(simulated._manager)
        if block is None:
            block = _blocks[simulated._manager] = Block(simulated)
        return block


# -- the launch --------------------------------------------------------------------------------------------


def _launch_context() -> Any:
    return simulator._get_kernel_context()


def _note_launch() -> None:
    context = _launch_context()
    if context is not None and context not in _launches:
        _launches.add(context)
        shape = (context.gridDim, context.blockDim)
        logger.info("simulating a kernel: grid %s, block %s", *shape, extra={"event": "simulated"})


def dynamic_shared_memory() -> np.ndarray[Any, Any]:
    """The bytes of the launch's dynamic shared memory, the same that ``cuda.shared.array(0, ...)`` shows."""
    memory: np.ndarray[Any, Any] = _launch_context().shared._dynshared
    return memory.view(np.uint8)
