# SPDX-License-Identifier: Apache-2.0
"""Foreign code in words: what ``link=`` and ``cuda.declare_device`` bring into a kernel, by content."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nvmath_device.errors import MissingDependencyError
from nvmath_device.lto import toolchain
from nvmath_device.numba_backend.value_words import NotInWords, Words, digest, package_of, type_words

_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"\n]+)[>"]', re.MULTILINE)
_DIRECTIVE = re.compile(rb"\binclude|__has_include|#[ \t]*embed")


def linked_words(value: Any, name: str) -> list[Words]:
    """Words of the value of ``link=``: a path, an object, or several, in their order.

    CUDA C++ counts with the files it includes, if they lie in the current folder, beside it, or on Numba's search
    path; any other header counts by the versions of NVIDIA's wheels.

    Raises:
        NotInWords: a file that cannot be read, code with callbacks, an object that is not Numba's, an ``#include``
            that cannot be followed.
    """
    return [_code_words(code, name) for code in _several(value)]


def extern_words(function: Any, name: str) -> Words:
    """Words of what ``cuda.declare_device`` returns.

    Raises:
        NotInWords: it is not known to Numba, or as :func:`linked_words`.
    """
    from numba.cuda.descriptor import cuda_target

    context = cuda_target._targetctx
    known = None if context is None else context._defns.get(function)
    if known is None:
        raise NotInWords(name, f"of {function.name} it is not known what code it links")
    versions = []
    for _, implementation in known.versions:
        (description,) = implementation.__defaults__
        convention = type(description.call_conv)
        code = [words for library in implementation.libs for words in linked_words(library._linking_files, name)]
        cooperative = any(library.use_cooperative for library in implementation.libs)
        versions.append([f"{convention.__module__}.{convention.__qualname__}", cooperative, sorted(code, key=str)])
    types = [type_words(t, name) for t in (function.sig.return_type, *function.sig.args)]
    return ["extern", function.name, types, versions]


def _several(value: Any) -> Sequence[Any]:
    return (value,) if isinstance(value, (str, os.PathLike)) or not hasattr(value, "__iter__") else tuple(value)


def _code_words(code: Any, name: str) -> Words:
    folders = [os.getcwd()]
    if isinstance(code, (str, os.PathLike)):
        path = os.fspath(code)
        folders.append(os.path.dirname(os.path.abspath(path)))
        title, kind = os.path.splitext(os.path.basename(path))
        nrt, data = False, _read(path, name)
    else:
        if package_of(type(code).__module__) != "numba":
            raise NotInWords(name, f"an object of type {type(code).__module__}.{type(code).__qualname__}")
        if code.setup_callback or code.teardown_callback:
            raise NotInWords(name, f"{code.name} has callbacks, which Numba calls when it loads a kernel")
        kind, title, nrt, data = type(code).__name__, code.name, bool(code.nrt), _bytes(code.data, name)
    words = [kind, title, nrt, digest(data)]
    return [*words, *_include_words(data, folders, name)] if kind in (".cu", "CUSource") else words


def _read(path: str, name: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise NotInWords(name, f"{path} cannot be read: {error.strerror}") from error


def _bytes(data: Any, name: str) -> bytes:
    if isinstance(data, str):
        return data.encode()
    try:
        return bytes(memoryview(data))
    except TypeError as error:
        raise NotInWords(name, f"code that is a {type(data).__qualname__}") from error


def _include_words(source: bytes, folders: Sequence[str], name: str) -> list[Words]:
    """Every file that is included, and what these include: its content, or the versions that say what it is."""
    from numba.cuda import config

    folders = [*folders, *filter(None, getattr(config, "CUDA_NVRTC_EXTRA_SEARCH_PATHS", "").split(":"))]
    words: dict[str, Words] = {}
    to_read = [(source, list(folders))]
    while to_read:
        data, where = to_read.pop()
        data = data.replace(b"\r\n", b"\n").replace(b"\\\n", b"")
        included = _INCLUDE.findall(data)
        if len(_DIRECTIVE.findall(data)) != len(included):
            raise NotInWords(name, "CUDA C++ that says include in another way than #include <file>")
        for header in (raw.decode(errors="surrogateescape") for raw in included):
            paths = [path for folder in where if os.path.isfile(path := os.path.join(folder, header))]
            for path in paths:
                if path not in words:
                    content = _read(path, name)
                    words[path] = [header, digest(content)]
                    to_read.append((content, [os.path.dirname(path), *folders]))
            if not paths:
                words[header] = [header, _headers(name)]
    return [words[path] for path in sorted(words)]


def _headers(name: str) -> str:
    try:
        return toolchain.header_fingerprint()
    except MissingDependencyError as error:
        raise NotInWords(name, str(error)) from error
