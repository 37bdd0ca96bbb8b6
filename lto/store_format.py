# SPDX-License-Identifier: Apache-2.0
"""What one entry of the store looks like: pure functions between objects and bytes, no file access.

An entry is one line of JSON, a line feed, and the blob as it is, so ``tail -n +2 some.entry`` gives the code
back::

    {"schema":1,"kind":"gemm-ltoir","key":{...},"meta":{...},"size":5412345,"sha256":"...","header_sha256":"..."}

``sha256`` covers the blob, ``header_sha256`` covers the exact bytes of everything before it in the line
(``meta`` and ``sha256`` included), so one changed bit anywhere in the file is noticed. The sums guard against
accidents (torn or decayed files, foreign files), not against somebody who can write into the directory.

The classes here are written out by hand: ``dataclasses`` imports ``inspect``, which alone would cost as much
as a hit may cost in all.
"""

from __future__ import annotations

import json

try:
    # hashlib imports this very function, and with it 1 ms of algorithms that are not used here.
    from _hashlib import openssl_sha256 as sha256
except ImportError:  # a Python built without OpenSSL
    from hashlib import sha256

TYPE_CHECKING = False  # importing typing costs 3 ms; type checkers know this name
if TYPE_CHECKING:
    from typing import Any

SCHEMA = 1
MAX_HEADER_BYTES = 16 << 20
_SUM_FIELD = b',"header_sha256":"'
_SUM_TAIL = len(_SUM_FIELD) + 64 + len(b'"}')

Key = dict[str, object] | str
Meta = dict[str, object]


class CorruptEntry(Exception):
    """The bytes are not an intact entry. Internal: the store turns it into a miss."""


class Entry:
    """One thing read from, or put into, the store. Immutable; ``meta`` and ``key`` are private copies of the
    reader.

    ``kind`` and ``key`` name it in words, ``meta`` is JSON (a symbol name, traits), ``blob`` is code or
    empty. Tuples given as part of a key or of meta come back as lists, from the first answer on.
    """

    __slots__ = ("blob", "key", "kind", "meta")
    kind: str
    key: Key
    meta: Meta
    blob: bytes

    def __init__(self, kind: str, key: Key, meta: Meta, blob: bytes) -> None:
        for name, value in (("kind", kind), ("key", key), ("meta", meta), ("blob", blob)):
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Entry is immutable: cannot set {name!r}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"Entry is immutable: cannot delete {name!r}")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Entry):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    def __reduce__(self) -> tuple[object, ...]:
        return (Entry, (self.kind, self.key, self.meta, self.blob))

    def __repr__(self) -> str:
        return f"Entry(kind={self.kind!r}, key={self.key!r}, meta={self.meta!r}, blob=<{len(self.blob)} bytes>)"


class Request:
    """A validated (kind, key): the words, their canonical JSON, and the digest that is the file name."""

    __slots__ = ("digest", "key_text", "kind")

    def __init__(self, kind: str, key: Key) -> None:
        if not isinstance(kind, str) or not kind:
            raise _argument_error("kind", kind, "a non-empty str, for example 'gemm-ltoir'")
        if not isinstance(key, (dict, str)) or not key:
            raise _argument_error("key", key, "a non-empty dict with str keys, or a non-empty str")
        self.kind = kind
        self.key_text = canonical_json(key, "key")
        self.digest = sha256(f"[{json.dumps(kind)},{self.key_text}]".encode()).hexdigest()

    def key(self) -> Key:
        """A fresh copy of the key in words."""
        words: Key = json.loads(self.key_text)
        return words


def canonical_json(value: object, what: str) -> str:
    """One ASCII line that is equal for equal values whatever the order of their dict keys.

    Raises ArgumentTypeError/InvalidArgumentError naming the spot where ``value`` is not plain JSON.
    """
    _require_json(value, what)
    return to_json(value)


def to_json(value: object) -> str:
    """canonical_json for what is known to be JSON."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def from_json(text: str) -> Any:
    return json.loads(text)


def meta_text(meta: object) -> str:
    if not isinstance(meta, dict):
        raise _argument_error("meta", meta, "a dict with str keys")
    return canonical_json(meta, "meta")


def _require_json(value: object, spot: str) -> None:
    # json.dumps would turn an int key into a str and write NaN: then what is read differs from what was
    # given.
    if isinstance(value, dict):
        for name, item in value.items():
            if not isinstance(name, str):
                raise _argument_error(f"{spot}: dict key", name, "a str")
            _require_json(item, f"{spot}[{name!r}]")
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            _require_json(item, f"{spot}[{index}]")
    elif isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            raise _argument_error(spot, value, "a finite number")
    elif value is not None and not isinstance(value, (str, int)):
        raise _argument_error(spot, value, "None, bool, int, float, str, list, tuple or dict")


def _argument_error(what: str, value: object, allowed: str) -> Exception:
    from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError

    family = InvalidArgumentError if isinstance(value, (str, float, dict)) else ArgumentTypeError
    return family(f"{what} is {value!r} ({type(value).__name__}); the code store wants {allowed}")


def require_blob(blob: object) -> bytes:
    if not isinstance(blob, (bytes, bytearray, memoryview)):
        raise _argument_error("blob", type(blob), "bytes (b'' when there is only meta)")
    return bytes(blob)


def encode_header(request: Request, meta_text: str, blob: bytes) -> bytes:
    """The header line with its line feed."""
    head = (
        f'{{"schema":{SCHEMA},"kind":{json.dumps(request.kind)},"key":{request.key_text},"meta":{meta_text},'
        f'"size":{len(blob)},"sha256":"{sha256(blob).hexdigest()}"'
    ).encode("ascii")
    header = head + _SUM_FIELD + sha256(head).hexdigest().encode("ascii") + b'"}\n'
    if len(header) > MAX_HEADER_BYTES:
        raise _argument_error(
            "meta and key",
            f"{len(header)} bytes of JSON",
            f"at most {MAX_HEADER_BYTES}: large data belongs in blob",
        )
    return header


def decode_header(line: bytes) -> dict[str, Any]:
    """The fields of a header line (without its line feed). Raises CorruptEntry."""
    head, tail = line[:-_SUM_TAIL], line[-_SUM_TAIL:]
    if tail != _SUM_FIELD + sha256(head).hexdigest().encode("ascii") + b'"}':
        raise CorruptEntry("the header does not match its checksum")
    try:
        header: dict[str, Any] = json.loads(head + b"}", parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise CorruptEntry(f"the header is not JSON: {error}") from None
    well_formed = (
        isinstance(header, dict)
        and header.get("schema") == SCHEMA
        and isinstance(header.get("kind"), str)
        and isinstance(header.get("key"), (dict, str))
        and isinstance(header.get("meta"), dict)
        and isinstance(header.get("size"), int)
        and header["size"] >= 0
        and isinstance(header.get("sha256"), str)
    )
    if not well_formed:
        raise CorruptEntry(f"the header is not one of schema {SCHEMA}")
    return header


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def check_blob(header: dict[str, Any], blob: bytes) -> None:
    """Raises CorruptEntry unless ``blob`` is the one the header was written for."""
    if len(blob) != header["size"]:
        raise CorruptEntry(f"the blob has {len(blob)} bytes, the header says {header['size']}")
    if sha256(blob).hexdigest() != header["sha256"]:
        raise CorruptEntry("the blob does not match its checksum")


def decode(data: bytes) -> tuple[Request, str, bytes]:
    """A whole file -> (request, canonical meta, blob), everything checked. Raises CorruptEntry."""
    line, newline, blob = data.partition(b"\n")
    if not newline:
        raise CorruptEntry("there is no header line")
    header = decode_header(line)
    check_blob(header, blob)
    from nvmath_device.errors import NvmathDeviceError

    try:
        return Request(header["kind"], header["key"]), meta_text(header["meta"]), blob
    except NvmathDeviceError as error:
        raise CorruptEntry(f"the header is not one this store writes: {error}") from None
