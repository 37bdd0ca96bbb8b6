# SPDX-License-Identifier: Apache-2.0
"""Entries of a store in one zip file, to carry them to a machine with the same library versions."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterator

from nvmath_device.errors import InvalidArgumentError
from nvmath_device.lto import store_files, store_format
from nvmath_device.lto.store_format import CorruptEntry, Request


def write_archive(base: str, path: str) -> int:
    """All intact entries below ``base`` into ``path``, which is replaced as a whole; returns how many."""
    temporary = f"{path}.{os.getpid()}.{os.urandom(8).hex()}"
    count = 0
    try:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for file, _ in store_files.scan(base):
                try:
                    with open(file, "rb") as stream:
                        data = stream.read()
                    store_format.decode(data)
                except (OSError, CorruptEntry):
                    continue  # evicted meanwhile, or damaged
                archive.writestr(os.path.basename(file), data)
                count += 1
        os.replace(temporary, path)
    finally:
        store_files.remove(temporary)
    return count


def read_archive(path: str, max_bytes: int) -> Iterator[tuple[Request, str, bytes]]:
    """(request, meta, blob) of every intact member of at most ``max_bytes``; the others are logged."""
    try:
        archive = zipfile.ZipFile(path)
    except zipfile.BadZipFile as error:
        raise InvalidArgumentError(f"path is {path!r}; it must be a file written by export_entries ({error})") from None
    with archive:
        for member in archive.infolist():
            try:
                if member.file_size > max_bytes:
                    raise CorruptEntry(f"its {member.file_size} bytes are above the size cap")
                entry = store_format.decode(archive.read(member))
            except (CorruptEntry, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
                store_files.log("warning", "code store: left out %s of %s: %s", member.filename, path, error)
                continue
            yield entry
