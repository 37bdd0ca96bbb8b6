# SPDX-License-Identifier: Apache-2.0
"""Everything that a kernel's machine code depends on, in words: the key that its code is stored under.

The rule is that code may be made again without need, but is never stale: what is not known to have no influence is in
the words, and what has no words raises :class:`NotInWords`, so that the kernel is not stored. The words are those of
the moment of the call: a global that is bound to something else gives other words.

Not guaranteed: that two builds of a package under one version number are told apart (but this package's own source is
read), nor that a file of this package edited after its import is noticed by the process that runs it.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from nvmath_device.errors import MissingDependencyError
from nvmath_device.lto import toolchain
from nvmath_device.numba_backend.code_words import Reading, with_defaults
from nvmath_device.numba_backend.extension_words import extension_words
from nvmath_device.numba_backend.value_words import NotInWords, Words, digest, type_words, value_words
from nvmath_device.targets import compute_capability

__all__ = ["SCHEMA", "NotInWords", "kernel_words"]

SCHEMA = 2  # raise it when equal words would mean other code


def kernel_words(function: Any, argtypes: Sequence[Any], options: dict[str, Any], cc: Any) -> dict[str, Words]:
    """All that shapes the machine code of a kernel, as a dict of JSON values; equal dicts mean the same code.

    Args:
        function: the Python function, or what ``cuda.jit`` or ``nd.jit`` made of it.
        argtypes: Numba types of the arguments.
        options: of ``nd.jit`` or ``cuda.jit``; those left out count with their defaults.
        cc: the target, in any form that :func:`~nvmath_device.targets.compute_capability` reads.

    In there: bytecode, constants, names and defaults of the function and of every device function it reaches, the
    value of each global, closure variable and attribute of a module that they read, the options of each, files to be
    linked by their content, argument types, target, settings of Numba, and the versions of Python and all tools.
    File names and line numbers count where line information is asked for.

    Raises:
        NotInWords: the code depends on something that cannot be described: a Python function that is not a device
            function, an object of a type that is not known, an array in GPU memory, an extension of Numba, a tool
            whose version cannot be told. Such a kernel must not be stored.
    """
    function = getattr(function, "py_func", function)
    settled = with_defaults(options)
    reading = Reading(lines=bool(settled["lineinfo"] or settled["debug"]))
    reading.function(function, settled, getattr(function, "__name__", "kernel"))
    reading.follow_loose_modules()
    return {
        "schema": SCHEMA,
        "target": compute_capability(cc, argument="cc").sm,
        "arguments": [type_words(t, f"argument {i}") for i, t in enumerate(argtypes)],
        "functions": reading.functions,
        "attributes": reading.attributes,
        "extensions": extension_words(),
        "settings": _settings(),
        "versions": _versions(),
    }


# -- settings and versions --------------------------------------------------------------------------------------

# Of numba.config, which programs may set without the environment. Those about reports and launches are not in it.
_CONFIG = (
    "BOUNDSCHECK", "CUDA_DEBUGINFO_DEFAULT", "CUDA_DEBUG_POLY", "CUDA_DEBUG_POLY_USE_TYPED_CONST", "CUDA_ENABLE_NRT",
    "CUDA_INCLUDE_PATH", "CUDA_NRT_STATS", "CUDA_NVRTC_EXTRA_SEARCH_PATHS", "DEBUGINFO_DEFAULT", "DEBUG_NRT",
    "DISABLE_JIT", "EXTEND_VARIABLE_LIFETIMES", "FORCE_CUDA_CC", "LLVM_REFPRUNE_FLAGS", "LLVM_REFPRUNE_PASS",
    "LOOP_VECTORIZE", "NRT_STATS", "OPT", "PARFOR_MAX_TUPLE_SIZE", "SLP_VECTORIZE",
)  # fmt: skip
# Variables that are known to say nothing about code. Any other of these families counts.
_QUIET = (
    "NUMBA_CACHE", "NUMBA_CAPTURED", "NUMBA_COLOR", "NUMBA_CUDA_ARRAY_INTERFACE_SYNC", "NUMBA_CUDA_CACHE_SIZE",
    "NUMBA_CUDA_DRIVER", "NUMBA_CUDA_LOG", "NUMBA_CUDA_LOW_OCCUPANCY", "NUMBA_CUDA_MAX_PENDING",
    "NUMBA_CUDA_MEMORY_MANAGER", "NUMBA_CUDA_PER_THREAD", "NUMBA_CUDA_VERBOSE", "NUMBA_CUDA_WARN", "NUMBA_DEVELOPER",
    "NUMBA_DISABLE_PERF",
    "NUMBA_DUMP", "NUMBA_FULL_TRACEBACKS", "NUMBA_FUNCTION_CACHE", "NUMBA_GDB", "NUMBA_HIGHLIGHT", "NUMBA_NUM_THREADS",
    "NUMBA_SHOW_HELP", "NUMBA_THREADING_LAYER", "NUMBA_TRACE", "NUMBA_CHROME_TRACE",
)  # fmt: skip
_FAMILIES = ("NUMBA_", "LIBMATHDX_", "NVRTC_", "NVVM_", "NVJITLINK_", "LIBNVVM_", "NVCC_")


def _settings() -> Words:
    from numba.cuda import config

    words = {name: value_words(_plain(getattr(config, name, None)), name) for name in _CONFIG}
    for name in os.environ:
        if name.startswith(_FAMILIES) and not name.startswith(_QUIET):
            words[f"${name}"] = os.environ[name]
    return words


def _plain(value: Any) -> Any:
    """A setting without the class that Numba gives it: NUMBA_OPT is an int that remembers its text."""
    return f"{value!r}" if type(value) not in (int, bool, str, tuple, type(None)) else value


def _versions() -> dict[str, Words]:
    return {**_package_versions(), "generation": _generation(), "link": _link()}


def _generation() -> str:
    try:
        return toolchain.fingerprint()
    except MissingDependencyError:
        return "absent"  # a kernel without generated code needs none


def _link() -> str:
    try:
        return toolchain.link_fingerprint()
    except MissingDependencyError as error:
        raise NotInWords("the tools of linking", str(error)) from error


_PACKAGES = ("cuda.bindings", "cuda.core", "llvmlite", "numba", "numba_cuda", "numpy")


@cache
def _package_versions() -> dict[str, Words]:
    import nvmath_device

    return {
        **{name: importlib.import_module(name).__version__ for name in _PACKAGES},
        "nvmath_device": f"{nvmath_device.__version__}+{own_source()}",
        "python": [sys.implementation.cache_tag, *map(str, sys.version_info), importlib.util.MAGIC_NUMBER.hex()],
    }


@cache
def own_source() -> str:
    """A digest of this package's Python files, host layer aside, which no kernel reaches."""
    here = Path(__file__).resolve().parent.parent
    content = []
    # lto/ lies in the package or beside it; it counts the same.
    for title, root, left_out in (("", here, ("host", "lto")), ("lto", Path(toolchain.__file__).resolve().parent, ())):
        for folder, folders, files in os.walk(root):
            folders[:] = [name for name in folders if name not in left_out]
            for file in files:
                if file.endswith(".py"):
                    path = os.path.join(folder, file)
                    with open(path, "rb") as source:
                        content.append(f"{title}/{os.path.relpath(path, root)} {digest(source.read())}")
    return digest("\n".join(sorted(content)).encode())[:32]
