# SPDX-License-Identifier: Apache-2.0
"""The store's file operations: read, write aside and move, list, remove. None of the removals raises
OSError."""

from __future__ import annotations

import os
import time

from nvmath_device.lto import store_format
from nvmath_device.lto.store_format import CorruptEntry

TYPE_CHECKING = False  # importing typing costs 3 ms; type checkers know this name
if TYPE_CHECKING:
    from typing import Any

SUFFIX = ".entry"
_FIRST_READ = 4096
_LARGEST_READ = 1 << 30  # one read() call moves less than 2 GiB
_O_BINARY = getattr(os, "O_BINARY", 0)

_write_failure_was_reported = False


def log(level: str, text: str, *values: object) -> None:
    """To the logger ``nvmath_device``, silent unless the application configures it. logging is imported on
    first use: a hit has nothing to say."""
    import logging

    logger = logging.getLogger("nvmath_device")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    getattr(logger, level)(text, *values)


def report_write_failure(folder: str, error: OSError) -> None:
    """A warning the first time in this process, debug output later."""
    global _write_failure_was_reported
    level = "debug" if _write_failure_was_reported else "warning"
    _write_failure_was_reported = True
    log(
        level,
        "code store: cannot write below %s (%s). Code will be generated again in every process; free some "
        "space or set NVMATH_DEVICE_CACHE_DIR to a writable folder ('off' switches the store off).",
        folder,
        error,
    )


def read_entry(path: str, *, with_blob: bool = True) -> tuple[dict[str, Any], bytes, os.stat_result] | None:
    """(header, blob, stat) of an intact entry. Anything that is not intact is removed, logged and None.

    ``with_blob=False`` reads and verifies the header and the file's length only; the blob is then empty.
    """
    try:
        fd = os.open(path, os.O_RDONLY | _O_BINARY)
    except OSError:
        return None
    try:
        status = os.fstat(fd)
        line, rest = _read_line(fd)
        header = store_format.decode_header(line)
        if status.st_size != rest + header["size"]:
            raise CorruptEntry(f"the file has {status.st_size} bytes instead of {rest + header['size']}")
        blob = b""
        if with_blob:
            os.lseek(fd, rest, os.SEEK_SET)  # not cut out of what is read already: that would copy megabytes
            blob = _read_up_to(fd, header["size"])
            store_format.check_blob(header, blob)
        return header, blob, status
    except CorruptEntry as error:
        damage = str(error)
    except OSError:
        return None
    finally:
        os.close(fd)
    discard(path, status, damage)
    return None


def _read_line(fd: int) -> tuple[bytes, int]:
    """The first line without its line feed, and the offset of what follows it."""
    data = os.read(fd, _FIRST_READ)
    while (end := data.find(b"\n")) < 0:
        more = os.read(fd, max(_FIRST_READ, len(data)))
        if not more or len(data) > store_format.MAX_HEADER_BYTES:
            raise CorruptEntry("there is no header line")
        data += more
    return data[:end], end + 1


def _read_up_to(fd: int, size: int) -> bytes:
    data = os.read(fd, min(size, _LARGEST_READ))
    if len(data) == size:
        return data
    parts = [data]
    missing = size - len(data)
    while missing and (data := os.read(fd, min(missing, _LARGEST_READ))):
        parts.append(data)
        missing -= len(data)
    return b"".join(parts)


def write_entry(path: str, temporary: str, header: bytes, blob: bytes) -> None:
    """Write to ``temporary``, then move to ``path``: whole or not at all. OSError leaves no temporary file
    behind.

    No fsync: losing an entry in a power cut costs a miss, while an fsync would be paid by every write.
    """
    try:
        try:
            fd = _create(temporary)
        except FileNotFoundError:
            make_folders(os.path.dirname(temporary))
            fd = _create(temporary)
        try:
            for data in (header, blob):
                left = memoryview(data)
                while left:
                    left = left[os.write(fd, left[:_LARGEST_READ]) :]
        finally:
            os.close(fd)
        try:
            os.replace(temporary, path)
        except FileNotFoundError:
            make_folders(os.path.dirname(path))
            os.replace(temporary, path)
    except BaseException:
        remove(temporary)
        raise


def _create(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _O_BINARY, 0o600)


def make_folders(path: str) -> None:
    """Like os.makedirs, but mode 0700 on every level: os.makedirs applies its mode to the last one only."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if not os.path.isdir(path):
            raise
    except FileNotFoundError:
        parent = os.path.dirname(path)
        if parent == path:
            raise
        make_folders(parent)
        try:  # noqa: SIM105 - importing contextlib costs more than the call
            os.mkdir(path, 0o700)
        except FileExistsError:
            pass


def scan(base: str) -> list[tuple[str, os.stat_result]]:
    """Every entry file below ``base``. What vanishes meanwhile is left out."""
    files = []
    for shard in list_folder(base):
        if len(shard.name) != 2:
            continue
        for item in list_folder(shard.path):
            if item.name.endswith(SUFFIX):
                try:
                    # os.stat on Windows, where DirEntry.stat() lacks the inode that remove_unchanged compares
                    files.append((item.path, os.stat(item.path) if os.name == "nt" else item.stat()))
                except OSError:
                    continue
    return files


def list_folder(folder: str) -> list[os.DirEntry[str]]:
    """Its items, none when it cannot be read."""
    try:
        with os.scandir(folder) as items:
            return list(items)
    except OSError:
        return []


def remove(path: str) -> bool:
    """True when this call removed it."""
    try:
        os.unlink(path)
    except OSError:
        return False
    return True


def remove_unchanged(path: str, seen: os.stat_result) -> bool:
    """Remove the very file that ``seen`` describes; True when it is gone, through us or another process.

    A file that was used or replaced since stays. Between the look and the removal a few microseconds remain.
    """
    try:
        now = os.stat(path)
        if (now.st_ino, now.st_mtime_ns, now.st_size) != (seen.st_ino, seen.st_mtime_ns, seen.st_size):
            return False
        os.unlink(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def discard(path: str, seen: os.stat_result, damage: str) -> None:
    done = "removed" if remove_unchanged(path, seen) else "ignored"
    log("warning", "code store: %s %s: %s. It will be generated again.", done, path, damage)


def sweep_unfinished(folder: str, *, older_than_s: float) -> None:
    """Remove files that killed processes were writing."""
    now = time.time()
    for item in list_folder(folder):
        try:
            if now - item.stat().st_mtime >= older_than_s:
                os.unlink(item.path)
        except OSError:
            continue
