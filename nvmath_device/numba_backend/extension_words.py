# SPDX-License-Identifier: Apache-2.0
"""Extensions of Numba in words: who else has a say in what library functions, operators and types compile to.

An extension reaches a kernel in two ways. By an object of its own (an ``@intrinsic``, a type, an overloaded function):
such objects have no words, see ``value_words``. Or by what it registers for objects of Numba, NumPy or Python, such as
``@overload(np.median)``, which the kernel does not show: that is found here, in Numba's registries.

Replaced functions inside of Numba, and other data models or ``typeof`` for types it knows, are not noticed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from types import FunctionType
from typing import Any

from nvmath_device.numba_backend.value_words import NotInWords, Words, is_library, package_of

_REGISTRIES = ("registry", "builtin_registry", "typing_registry", "target_registry", "impl_registry")
_LISTS = ("functions", "attributes", "globals", "getattrs", "setattrs", "casts", "constants")

# By id of each list of registrations: the list, and how many of them have been looked at. Lists only grow.
_seen: dict[int, tuple[list[Any], int]] = {}
_read_modules: set[str] = set()
_registries: dict[int, Any] = {}
_found: dict[str, str] = {}  # module -> what it is registered for


def extension_words() -> dict[str, Words]:
    """Packages that extend what Numba makes of library objects, with their versions.

    Raises:
        NotInWords: a module that is not part of an installed package with a version does so.
    """
    for kind, registrations in _registrations():
        _, done = _seen.get(id(registrations), (registrations, 0))
        total = len(registrations)
        for item in registrations[done:total]:
            subjects, author = _read(kind, item)
            for module in _modules_of(author):
                if not is_library(module) and all(map(_is_of_library, subjects)):
                    _found.setdefault(module, str(subjects[0]))
        _seen[id(registrations)] = (registrations, total)
    return {package_of(module): _version(module, about) for module, about in sorted(_found.copy().items())}


def _version(module: str, about: str) -> str:
    package = sys.modules.get(package_of(module))
    version = getattr(package, "__version__", None)
    if "-packages" not in (getattr(package, "__file__", None) or "") or not isinstance(version, str):
        raise NotInWords(module, f"it extends Numba for {about}; only installed packages are told by a version")
    return version


def _registrations() -> Iterator[tuple[str, list[Any]]]:
    """Every list, by its name, of registrations of the registries that Numba's CUDA target reads or is going to."""
    from numba.cuda.descriptor import cuda_target

    for name in sys.modules.keys() - _read_modules:
        module = sys.modules.get(name)
        if getattr(getattr(module, "__spec__", None), "_initializing", False):
            continue  # another thread is importing it
        _read_modules.add(name)
        if name.startswith(("numba.cuda.", "numba.core.typing.templates", "numba.core.imputils")):
            found = (getattr(module, "__dict__", {}).get(attribute) for attribute in _REGISTRIES)
            _registries.update((id(registry), registry) for registry in found if registry is not None)
    for context in (cuda_target._typingctx, cuda_target._targetctx):
        _registries.update((id(registry), registry) for registry in (() if context is None else context._registries))
    for registry in list(_registries.values()):
        for name in _LISTS:
            if isinstance(registrations := getattr(registry, name, None), list):
                yield name, registrations


def _read(kind: str, item: Any) -> tuple[list[Any], Any]:
    """What a registration is for (a function, an operator, a type, or several), and the code behind it."""
    if kind == "globals":
        value, typ = item
        return [value], typ
    if isinstance(item, tuple):  # of lowering
        implementation, name, types = item if len(item) == 3 else (item[0], None, item[1])
        return [name, *types], implementation
    return [item.key], item  # a template of typing


def _modules_of(author: Any, depth: int = 4) -> Iterator[str]:
    """The modules that code was written in. Decorators of Numba hide a user's function in closures and classes."""
    if depth == 0:
        return
    inner: list[Any] = []
    if isinstance(author, FunctionType):
        yield str(author.__globals__.get("__name__"))  # __module__ may be that of what it wraps
        for cell in author.__closure__ or ():
            with suppress(ValueError):  # an empty cell
                inner.append(cell.cell_contents)
    elif isinstance(author, partial):
        inner.append(author.func)
    elif isinstance(author, type):
        function = getattr(author, "_overload_func", None) or getattr(author, "_definition_func", None)
        if function is not None:  # a class that Numba has made
            inner.append(function)
        else:
            yield from (cls.__module__ for cls in author.__mro__)
            inner += vars(author).values()
    elif templates := getattr(author, "templates", None):
        inner += templates
    elif callable(author) and depth == 4:
        yield type(author).__module__
    for part in inner:
        if isinstance(part, (FunctionType, partial)) or (depth == 4 and isinstance(part, type)):
            yield from _modules_of(part, depth - 1)


def _is_of_library(subject: Any) -> bool:
    """Whether code that names no object of the extension may be touched."""
    if isinstance(subject, tuple):
        return all(map(_is_of_library, subject))
    module = getattr(subject, "__module__", None)
    return is_library(module if isinstance(module, str) else type(subject).__module__)
