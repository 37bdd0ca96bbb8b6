# SPDX-License-Identifier: Apache-2.0
"""One thread of one process at a time per key: the in-process half and the kernel-lock half of single flight.

Every key has its own lock file, so a holder may ask for other keys: nothing is shared between unrelated keys.
A lock file is removed by its holder while it still holds the lock; whoever then gets the lock of the removed
file notices that the path no longer leads to it and starts over. Files of killed holders stay until somebody
asks for the same key or ``sweep_locks`` finds them.

Guaranteed: the kernel releases the lock when its holder dies, by SIGKILL too, even while children forked from
it live on. Not guaranteed: freedom from cycles made by callers. If one process holds X and wants Y while
another holds Y and wants X, both wait for ``wait_s`` and then go on without the lock: work is done twice,
nothing hangs for ever.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable

from nvmath_device.lto import store_files
from nvmath_device.lto.store_format import Entry

if sys.platform == "win32":
    import msvcrt

    def _kernel_lock(fd: int) -> None:
        msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)

    def _kernel_unlock(fd: int) -> None:
        msvcrt.locking(fd, msvcrt.LK_UNLCK, 1)
else:
    import fcntl

    def _kernel_lock(fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _kernel_unlock(fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_UN)


_FIRST_PAUSE_S = 0.001
_LONGEST_PAUSE_S = 0.05

_held: set[int] = set()


def forget_locks_of_parent() -> None:
    """For a forked child: drop its copies of the parent's lock descriptors, which would outlive the
    parent."""
    for fd in _held:
        os.close(fd)
    _held.clear()


def try_lock(path: str) -> int | None:
    """A descriptor that holds the lock, or None when somebody else holds it. OSError when locking is
    impossible."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            _kernel_lock(fd)
        except (BlockingIOError, PermissionError):
            os.close(fd)
            return None
        except OSError:
            os.close(fd)
            raise
        if _leads_to(path, fd):
            _held.add(fd)
            return fd
        os.close(fd)


def unlock(fd: int, path: str) -> None:
    """Release a lock got from ``try_lock`` and remove its file. Never raises OSError."""
    try:
        if os.name != "nt" and _leads_to(path, fd):
            os.unlink(path)
        # Explicitly, because a copy of the descriptor in a child that is being forked right now would keep
        # it.
        _kernel_unlock(fd)
    except OSError:
        pass
    _held.discard(fd)
    os.close(fd)
    if os.name == "nt":
        # Windows removes no open file: if another process has opened it meanwhile, this fails, as it should.
        store_files.remove(path)


def _leads_to(path: str, fd: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except FileNotFoundError:
        return False


def sweep_locks(folder: str, *, older_than_s: float) -> None:
    """Remove lock files nobody holds (left by killed processes). Never raises OSError."""
    now = time.time()
    for item in store_files.list_folder(folder):
        try:
            fd = try_lock(item.path) if now - item.stat().st_mtime >= older_than_s else None
        except OSError:
            continue
        if fd is not None:
            unlock(fd, item.path)


class Flight:
    """A key some thread of this process is busy with. Other threads wait for ``done`` and take ``entry``."""

    __slots__ = ("done", "entry", "owner")

    def __init__(self) -> None:
        self.owner = threading.get_ident()
        self.done = threading.Event()
        self.entry: Entry | None = None


class Claim:
    """The right to create one key, until ``finish``."""

    __slots__ = ("_digest", "_fd", "_flight", "_flights", "_path", "_pid")

    def __init__(self, flights: Flights, digest: str, flight: Flight | None, fd: int | None, path: str) -> None:
        self._flights, self._digest, self._flight, self._fd, self._path = flights, digest, flight, fd, path
        self._pid = os.getpid()

    def finish(self, entry: Entry | None) -> None:
        """Hand ``entry`` to the waiting threads; None tells them to try themselves."""
        # In a forked child the descriptor is closed already and its number may mean another file.
        if self._fd is not None and self._pid == os.getpid():
            unlock(self._fd, self._path)
        if self._flight is not None:
            self._flights.land(self._digest, self._flight, entry)


class Flights:
    """All flights of one store in this process."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._open: dict[str, Flight] = {}

    def land(self, digest: str, flight: Flight, entry: Entry | None) -> None:
        flight.entry = entry
        with self._mutex:
            if self._open.get(digest) is flight:
                del self._open[digest]
        flight.done.set()

    def claim(
        self, digest: str, lock_path: str | None, *, wait_s: float, peek: Callable[[], Entry | None]
    ) -> Claim | Entry | None:
        """Ask for the right to create ``digest``.

        Returns a Claim, or the Entry that another thread or process finished meanwhile, or None: somebody
        else is at work (``wait_s`` == 0) or was and failed (ask again). After ``wait_s`` seconds, where
        locking is impossible (``lock_path`` None or unusable), and for a key this very thread is already
        creating, the Claim excludes nobody.
        """
        with self._mutex:
            flight = self._open.get(digest)
            leads = flight is None
            if flight is None:
                flight = self._open[digest] = Flight()
        if not leads:
            if flight.owner == threading.get_ident():
                return Claim(self, digest, None, None, "")
            if not wait_s:
                return None
            return flight.entry if flight.done.wait(wait_s) else Claim(self, digest, None, None, "")
        answer: Claim | Entry | None = None
        try:
            if lock_path is None:
                answer = Claim(self, digest, flight, None, "")
            else:
                answer = self._claim_across_processes(digest, flight, lock_path, wait_s, peek)
            return answer
        finally:
            if not isinstance(answer, Claim):
                self.land(digest, flight, answer)

    def _claim_across_processes(
        self, digest: str, flight: Flight, lock_path: str, wait_s: float, peek: Callable[[], Entry | None]
    ) -> Claim | Entry | None:
        # Polling, not a blocking lock: a wait must end when the entry appears and when the time is over.
        deadline = time.monotonic() + wait_s
        pause = _FIRST_PAUSE_S
        while True:
            try:
                fd = try_lock(lock_path)
            except OSError:
                return Claim(self, digest, flight, None, lock_path)
            if fd is not None:
                return Claim(self, digest, flight, fd, lock_path)
            if not wait_s:
                return None
            if time.monotonic() >= deadline:
                return Claim(self, digest, flight, None, lock_path)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
            entry = peek()
            if entry is not None:
                return entry
