# SPDX-License-Identifier: Apache-2.0
"""A persistent store for generated code and traits, shared by all processes of a user.

    store = default_store()
    entry = store.get_or_create("gemm-ltoir", {"size": [64, 64, 64], ..., "libmathdx": "0.4.2"}, generate)

Layout: ``<root>/v1/ab/abcdef...64 hex.entry`` (the SHA-256 of kind and key; see store_format for the file
itself), ``<root>/v1/tmp`` for files being written, ``<root>/v1/locks`` for keys being generated. The caller
puts every version that matters (libmathdx, NVRTC, its own schema) into the key; the store only compares keys.

Guaranteed
- A reader sees a whole entry or none: entries are written aside and moved into place, checksums are verified
  whenever an entry is read from disk, and the stored key in words is compared. Anything else is a miss, is
  deleted and logged.
- ``get``, ``put`` and ``get_or_create`` never raise OSError of their own: a full or read-only disk costs
  speed only.
- ``get_or_create`` creates a key once, however many threads and processes ask for it at the same moment.

Not guaranteed
- Survival of a power cut: nothing is fsync'ed. A file torn that way is found by its checksum and is a miss.
- The size cap is kept by each writing process as of its last look at the folder (at most a second old), so
  several writers may exceed it for a moment. The order of eviction is by last use to within
  ``_TOUCH_INTERVAL_S``.
- Two processes that delete and rewrite the same key within microseconds may lose the entry: a later miss,
  never a wrong answer.
- Protection from somebody who can write into the folder; it is created with mode 0700.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence

from nvmath_device.lto import store_files, store_format, store_locks, store_settings
from nvmath_device.lto.store_format import Entry, Key, Meta, Request
from nvmath_device.lto.store_locks import Claim, Flights
from nvmath_device.lto.store_settings import DEFAULT_MAX_BYTES

TYPE_CHECKING = False  # importing typing costs 3 ms; type checkers know this name
if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["DEFAULT_MAX_BYTES", "Entry", "EntryInfo", "Store", "default_store"]

_MEMORY_BYTES = 64 << 20
_TOUCH_INTERVAL_S = 10.0
_RESCAN_INTERVAL_S = 1.0
_LEFTOVER_AGE_S = 3600.0
_UNFINISHED_AGE_S = 60.0
# Six times the longest generation known: it ends waits for holders that hang, not for slow ones.
_LOCK_WAIT_S = 1800.0

Created = tuple[Meta, bytes] | tuple[int, Meta, bytes]


class EntryInfo:
    """One entry on disk, without its blob.

    ``size``: of the file, in bytes. ``mtime``: last use, in seconds since the epoch.
    """

    __slots__ = ("key", "kind", "meta", "mtime", "path", "size")

    def __init__(self, kind: str, key: Key, meta: Meta, size: int, mtime: float, path: Path) -> None:
        self.kind, self.key, self.meta, self.size, self.mtime, self.path = kind, key, meta, size, mtime, path

    def __repr__(self) -> str:
        return f"EntryInfo(kind={self.kind!r}, key={self.key!r}, size={self.size}, path={str(self.path)!r})"


class Store:
    """The store below one folder. Safe for threads, forked children and any number of processes.

    ``root=None`` switches it off: every ``get`` misses, every ``put`` returns False, and threads that ask for
    the same key at the same moment still share one ``create``. ``max_bytes`` caps the total size of the
    entries' files. Nothing is created on disk before the first write. Entries read or written are also kept
    in memory, up to 64 MiB a process, and answered from there without another look at the disk.
    """

    def __init__(self, root: str | os.PathLike[str] | None, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        if isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or max_bytes <= 0:
            raise _invalid("max_bytes", max_bytes, "a positive int, in bytes; root=None switches the store off")
        self._root = None if root is None else os.path.abspath(os.fspath(root))
        self._base = "" if self._root is None else os.path.join(self._root, f"v{store_format.SCHEMA}")
        self._max_bytes = max_bytes
        self._memory: dict[str, _Remembered] = {}
        self._memory_used = 0
        self._estimate: int | None = None
        self._scanned_at = self._swept_at = float("-inf")
        self._start_locks()
        _stores.add(self)

    def _start_locks(self) -> None:
        self._memory_mutex = threading.Lock()
        self._trim_mutex = threading.Lock()
        self._flights = Flights()

    def __repr__(self) -> str:
        return f"Store({self._root!r}, max_bytes={self._max_bytes})"

    @property
    def path(self) -> Path | None:
        """The root folder, whether it exists yet or not; None when the store is off."""
        return None if self._root is None else _path(self._root)

    @property
    def max_bytes(self) -> int:
        return self._max_bytes

    # -- one entry --

    def get(self, kind: str, key: Key) -> Entry | None:
        """The intact entry for exactly this kind and key, or None.

        ``key`` is a dict of JSON values with str keys (their order does not matter) or a str; anything else
        raises ArgumentTypeError or InvalidArgumentError.
        """
        return self._load(Request(kind, key))

    def put(self, kind: str, key: Key, *, meta: Meta, blob: bytes) -> bool:
        """Write an entry, replacing an older one; True when it is on disk.

        False, without an exception: the store is off, the entry is larger than ``max_bytes``, or the disk
        refused (logged as a warning once a process). Afterwards the least recently used entries are removed
        while the total is above ``max_bytes``; the one just written stays.
        """
        request = Request(kind, key)
        meta_text, blob = _checked(meta, blob)
        if not self._write(request, meta_text, blob):
            return False
        self._remember(request, meta_text, blob)
        return True

    def get_or_create(self, kind: str, key: Key, create: Callable[[], tuple[Meta, bytes]]) -> Entry:
        """The entry, made by ``create() -> (meta, blob)`` if there is none.

        One among all threads and processes creates, the others wait and read the result. An exception of
        ``create`` reaches its own caller; the next one waiting tries itself. The kernel frees a killed
        creator's lock. A result that cannot be written is still returned, and kept in this process's memory.
        Where locks cannot be made (read-only folder) processes do not wait for each other.

        ``create`` may ask the store for other keys, as long as callers do not do so in circles; a wait ends
        after 30 minutes, then this caller creates for itself. It must not wait for another thread or process
        of its own that asks for the same key.
        """
        return self.get_or_create_many([(kind, key)], lambda _missing: [create()])[0]

    def get_or_create_many(
        self,
        requests: Sequence[tuple[str, Key]],
        create_many: Callable[[list[tuple[str, Key]]], Iterable[Created]],
    ) -> list[Entry]:
        """``get_or_create`` for several keys; the entries in the order of ``requests``, repeats included.

        ``create_many(missing)`` gets the (kind, key) pairs that are missing and that nobody else is making,
        and returns or yields, for all of them, ``(meta, blob)`` in the same order or ``(index into missing,
        meta, blob)`` in any order. Each is stored, and handed to whoever waits for it, as it arrives. Keys
        others are making are waited for afterwards, so two callers with overlapping lists share the work;
        ``create_many`` is called again only if one of those others fails. No lock is held while waiting. If
        ``create_many`` raises, what it had yielded stays stored.
        """
        wanted = [Request(kind, key) for kind, key in requests]
        unique = {request.digest: request for request in wanted}
        found = {digest: entry for digest, request in unique.items() if (entry := self._load(request)) is not None}
        while len(found) < len(unique):
            claims = self._claim_missing([request for digest, request in unique.items() if digest not in found], found)
            if claims:
                self._create_claimed(claims, create_many, found)
        return [found[request.digest] for request in wanted]

    # -- single flight --

    def _claim_missing(self, missing: list[Request], found: dict[str, Entry]) -> dict[str, tuple[Request, Claim]]:
        """Claim all that are free; if none is, wait for one. Entries met on the way go into ``found``."""
        claims: dict[str, tuple[Request, Claim]] = {}
        progress = False
        try:
            for request in missing:
                progress |= self._claim(request, 0.0, claims, found)
            if not progress:
                self._claim(missing[0], _LOCK_WAIT_S, claims, found)
        except BaseException:
            for _, claim in claims.values():
                claim.finish(None)
            raise
        return claims

    def _claim(
        self,
        request: Request,
        wait_s: float,
        claims: dict[str, tuple[Request, Claim]],
        found: dict[str, Entry],
    ) -> bool:
        answer = self._flights.claim(
            request.digest, self._lock_path(request), wait_s=wait_s, peek=lambda: self._load(request)
        )
        if isinstance(answer, Claim):
            claims[request.digest] = request, answer
            entry = self._load(request)  # somebody may have finished between our miss and our lock
            if entry is not None:
                del claims[request.digest]
                answer.finish(entry)
                found[request.digest] = entry
        elif answer is not None:
            # another thread's object: a copy, so that neither sees what the other does to meta
            found[request.digest] = _entry(request, store_format.to_json(answer.meta), answer.blob)
        return answer is not None

    def _create_claimed(
        self,
        claims: dict[str, tuple[Request, Claim]],
        create_many: Callable[[list[tuple[str, Key]]], Iterable[Created]],
        found: dict[str, Entry],
    ) -> None:
        order = [request for request, _ in claims.values()]
        try:
            for position, created in enumerate(create_many([(request.kind, request.key()) for request in order])):
                index, meta, blob = created if len(created) == 3 else (position, *created)
                if index not in range(len(order)) or order[index].digest not in claims:
                    raise _invalid("index from create_many", index, f"each of 0..{len(order) - 1} exactly once")
                request = order[index]
                meta_text, blob = _checked(meta, blob)
                self._write(request, meta_text, blob)
                if self._root is not None:
                    self._remember(request, meta_text, blob)
                found[request.digest] = entry = _entry(request, meta_text, blob)
                claims.pop(request.digest)[1].finish(entry)
            if claims:
                raise _invalid("create_many", f"{len(order) - len(claims)} results", f"{len(order)}, one a missing key")
        finally:
            for _, claim in claims.values():
                claim.finish(None)

    def _lock_path(self, request: Request) -> str | None:
        if self._root is None:
            return None
        folder = os.path.join(self._base, "locks")
        try:
            store_files.make_folders(folder)
        except OSError:
            return None
        return os.path.join(folder, request.digest + ".lock")

    # -- reading --

    def _load(self, request: Request) -> Entry | None:
        if self._root is None:
            return None
        remembered = self._recall(request)
        if remembered is not None:
            self._touch(request, remembered)
            return _entry(request, remembered.meta_text, remembered.blob)
        path = self._entry_path(request)
        read = store_files.read_entry(path)
        if read is None:
            return None
        header, blob, status = read
        if header["kind"] != request.kind or store_format.to_json(header["key"]) != request.key_text:
            store_files.discard(path, status, "it was written for another key")
            return None
        meta_text = store_format.to_json(header["meta"])
        remembered = self._remember(request, meta_text, blob, used_at=status.st_mtime)
        self._touch(request, remembered)
        return _entry(request, meta_text, blob)

    def _touch(self, request: Request, remembered: _Remembered) -> None:
        now = time.time()
        if now - remembered.touched_at < _TOUCH_INTERVAL_S:
            return
        remembered.touched_at = now
        try:  # noqa: SIM105 - importing contextlib costs more than the call
            os.utime(self._entry_path(request))
        except OSError:
            pass  # evicted meanwhile, or somebody else's file: the use is simply not recorded

    def _recall(self, request: Request) -> _Remembered | None:
        with self._memory_mutex:
            remembered = self._memory.pop(request.digest, None)
            if remembered is not None:
                self._memory[request.digest] = remembered
            return remembered

    def _remember(self, request: Request, meta_text: str, blob: bytes, used_at: float | None = None) -> _Remembered:
        remembered = _Remembered(meta_text, blob, time.time() if used_at is None else used_at)
        with self._memory_mutex:
            replaced = self._memory.pop(request.digest, None)
            if replaced is not None:
                self._memory_used -= replaced.size
            if remembered.size <= _MEMORY_BYTES:
                self._memory[request.digest] = remembered
                self._memory_used += remembered.size
            while self._memory_used > _MEMORY_BYTES:
                self._memory_used -= self._memory.pop(next(iter(self._memory))).size
        return remembered

    # -- writing --

    def _entry_path(self, request: Request) -> str:
        return os.path.join(self._base, request.digest[:2], request.digest + store_files.SUFFIX)

    def _write(self, request: Request, meta_text: str, blob: bytes) -> bool:
        header = store_format.encode_header(request, meta_text, blob)
        if self._root is None:
            return False
        size = len(header) + len(blob)
        if size > self._max_bytes:
            store_files.log(
                "info", "code store: %d bytes are above the cap of %d and are not kept", size, self._max_bytes
            )
            return False
        path = self._entry_path(request)
        temporary = os.path.join(self._base, "tmp", f"{request.digest[:16]}.{os.getpid()}.{os.urandom(8).hex()}")
        try:
            store_files.write_entry(path, temporary, header, blob)
        except OSError as error:
            store_files.report_write_failure(self._base, error)
            return False
        self._trim(path, size)
        return True

    def _trim(self, written: str, written_bytes: int) -> None:
        """Keep the cap. Looks at the folder only when the estimate says so or is more than a second old."""
        with self._trim_mutex:
            now = time.monotonic()
            if self._estimate is not None and now - self._scanned_at < _RESCAN_INTERVAL_S:
                self._estimate += written_bytes
                if self._estimate <= self._max_bytes:
                    return
            files = store_files.scan(self._base)
            total = sum(status.st_size for _, status in files)
            if total > self._max_bytes:
                for path, status in sorted(files, key=lambda file: file[1].st_mtime_ns):
                    if path != written and store_files.remove_unchanged(path, status):
                        total -= status.st_size
                        if total <= self._max_bytes:
                            break
            self._estimate, self._scanned_at = total, now
            if now - self._swept_at > _LEFTOVER_AGE_S:
                self._swept_at = now
                self._sweep_leftovers(unfinished_age_s=_LEFTOVER_AGE_S, lock_age_s=_LEFTOVER_AGE_S)

    def _sweep_leftovers(self, *, unfinished_age_s: float, lock_age_s: float) -> None:
        """Remove what killed processes left: files being written, and locks nobody holds."""
        store_files.sweep_unfinished(os.path.join(self._base, "tmp"), older_than_s=unfinished_age_s)
        store_locks.sweep_locks(os.path.join(self._base, "locks"), older_than_s=lock_age_s)

    # -- housekeeping --

    def entries(self) -> Iterator[EntryInfo]:
        """Every entry with an intact header, in no particular order. Blobs are neither read nor verified."""
        for path, status in store_files.scan(self._base):
            read = store_files.read_entry(path, with_blob=False)
            if read is not None:
                h = read[0]
                yield EntryInfo(h["kind"], h["key"], h["meta"], status.st_size, status.st_mtime, _path(path))

    def size_bytes(self) -> int:
        """Total size of the entries' files, in bytes."""
        return sum(status.st_size for _, status in store_files.scan(self._base))

    def clear(self) -> int:
        """Remove all entries, idle locks and abandoned files; returns how many entries went.

        Only this store's own files: other things in the folder stay. A file that was being written within the
        last minute stays, its writer may be at work. Other processes keep what they hold in memory.
        """
        with self._memory_mutex:
            self._memory.clear()
            self._memory_used = 0
        removed = sum(store_files.remove(path) for path, _ in store_files.scan(self._base))
        with self._trim_mutex:
            self._estimate = None
        if self._root is not None:
            self._sweep_leftovers(unfinished_age_s=_UNFINISHED_AGE_S, lock_age_s=0.0)
        return removed

    def export_entries(self, path: str | os.PathLike[str]) -> int:
        """Write all intact entries into one zip file, replacing it as a whole; returns how many they are.

        Raises OSError when ``path`` cannot be written.
        """
        from nvmath_device.lto import store_archive  # here, because a hit does not need it

        return store_archive.write_archive(self._base, os.fspath(path))

    def import_entries(self, path: str | os.PathLike[str]) -> int:
        """Take over the entries of an exported file; returns how many are now stored.

        Each is verified by its checksums and filed under the digest of its own key, whatever its name in the
        archive; damaged or oversized ones are logged and left out. Raises InvalidArgumentError when ``path``
        is no zip file, OSError when it cannot be read.
        """
        from nvmath_device.lto import store_archive

        return sum(
            self._write(request, meta_text, blob)
            for request, meta_text, blob in store_archive.read_archive(os.fspath(path), self._max_bytes)
        )


class _Remembered:
    """What memory keeps of an entry. meta as text, so that every answer is a copy nobody else changes."""

    __slots__ = ("blob", "meta_text", "touched_at")

    def __init__(self, meta_text: str, blob: bytes, touched_at: float) -> None:
        self.meta_text, self.blob, self.touched_at = meta_text, blob, touched_at

    @property
    def size(self) -> int:
        return len(self.meta_text) + len(self.blob)


_stores: weakref.WeakSet[Store] = weakref.WeakSet()
_default_stores: dict[tuple[str | None, int], Store] = {}


def default_store() -> Store:
    """The store the environment asks for; the same object while the environment is the same.

    ``NVMATH_DEVICE_CACHE_DIR``: its folder; "", "0", "off" and "none" switch it off. Unset: ``nvmath_device``
    in ``$XDG_CACHE_HOME`` or ``~/.cache`` (macOS ``~/Library/Caches``, Windows ``%LOCALAPPDATA%``).
    ``NVMATH_DEVICE_CACHE_SIZE``: bytes, or such as "2GiB", "500 MB"; default 4 GiB; anything else raises
    InvalidArgumentError.
    """
    settings = store_settings.root_from(os.environ), store_settings.max_bytes_from(os.environ)
    return _default_stores.get(settings) or _default_stores.setdefault(settings, Store(*settings))


def _entry(request: Request, meta_text: str, blob: bytes) -> Entry:
    return Entry(request.kind, request.key(), store_format.from_json(meta_text), blob)


def _checked(meta: Meta, blob: bytes) -> tuple[str, bytes]:
    return store_format.meta_text(meta), store_format.require_blob(blob)


def _path(text: str) -> Path:
    from pathlib import Path  # here, because a hit does not need it

    return Path(text)


def _invalid(name: str, value: object, allowed: str) -> Exception:
    from nvmath_device.errors import InvalidArgumentError

    return InvalidArgumentError(f"{name} is {value!r}; it must be {allowed}")


def _start_again_in_forked_child() -> None:
    # The threads that held the parent's locks do not exist here.
    store_locks.forget_locks_of_parent()
    for store in _stores:
        store._start_locks()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_again_in_forked_child)
