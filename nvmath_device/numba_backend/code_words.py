# SPDX-License-Identifier: Apache-2.0
"""Functions in words: their bytecode, options, and everything that they reach outside of themselves.

Followed are globals, closure variables, attributes of modules, defaults, and device functions with all of theirs.
"""

from __future__ import annotations

import builtins
import dis
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

from nvmath_device.frozen import frozen
from nvmath_device.numba_backend.link_words import extern_words, linked_words
from nvmath_device.numba_backend.value_words import (
    NotInWords,
    Words,
    digest,
    is_library,
    package_of,
    type_words,
    value_words,
)

# -- options ----------------------------------------------------------------------------------------------------

# Those of cuda.jit with a fixed default; options that say nothing about code are left out.
_DEFAULTS: dict[str, Any] = {
    "device": False,
    "extensions": (),
    "fastmath": False,
    "forceinline": False,
    "inline": "never",
    "launch_bounds": None,
    "lineinfo": False,
    "link": (),
    "max_registers": None,
    "shared_memory_carveout": None,
}
_NO_MATTER = frozenset({"cache"})


def with_defaults(options: dict[str, Any]) -> dict[str, Any]:
    from numba.cuda import config

    settled = {**_DEFAULTS, **{name: value for name, value in options.items() if name not in _NO_MATTER}}
    if settled.get("debug") is None:
        settled["debug"] = bool(config.CUDA_DEBUGINFO_DEFAULT)
    if settled.get("opt") is None:
        settled["opt"] = config.OPT != 0
    if settled.get("lto") is None:
        settled["lto"] = not settled["debug"]
    if isinstance(settled["inline"], bool):
        settled["inline"] = "always" if settled["inline"] else "never"
    return settled


def _options_words(options: dict[str, Any], name: str) -> Words:
    if options["extensions"]:
        raise NotInWords(f"{name}: extensions", "they change arguments when a kernel is launched")
    words = {}
    for option, value in options.items():
        if option == "link":
            words[option] = linked_words(value, f"{name}: link")
        elif option == "launch_bounds" and not isinstance(value, (tuple, list, type(None))):
            words[option] = value_words((value,), option)
        elif isinstance(value, (list, set)):
            words[option] = value_words(frozenset(value) if isinstance(value, set) else tuple(value), option)
        else:
            words[option] = value_words(value, f"{name}: {option}")
    return words


# -- what functions reach ---------------------------------------------------------------------------------------


class _Read(NamedTuple):
    """A name that code reads from outside of itself, and the attributes it reads of that at once."""

    name: str
    attributes: tuple[str, ...]
    closure: bool


@frozen()
class _Static:
    """What of a code object does not change: cached, as telling it takes a millisecond."""

    reads: tuple[_Read, ...]
    names: frozenset[str]  # of attributes that it may ask of a module it is handed
    words: Words


def _look_at(code: CodeType) -> _Static:
    reads: dict[_Read, None] = {}
    names: set[str] = set()
    for part in _parts(code):
        reads.update(dict.fromkeys(_reads(part)))
        names.update(part.co_names)
    if "getattr" in names:
        names.update(c for part in _parts(code) for c in part.co_consts if isinstance(c, str))
    return _Static(tuple(reads), frozenset(names), digest(str(_code_words(code)).encode()))


def _parts(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _parts(constant)


def _reads(code: CodeType) -> Iterator[_Read]:
    steps = [s for s in dis.get_instructions(code) if s.opname not in ("EXTENDED_ARG", "CACHE", "NOP")]
    for position, step in enumerate(steps):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            closure = False
        elif step.opname == "LOAD_DEREF":
            closure = True
        else:
            continue
        attributes = []
        for after in steps[position + 1 :]:
            if after.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
                break
            attributes.append(after.argval)
        yield _Read(step.argval, tuple(attributes), closure)


def _code_words(code: CodeType) -> Words:
    constants = [
        _code_words(c) if isinstance(c, CodeType) else value_words(c, f"{code.co_name}: constant")
        for c in code.co_consts
    ]
    if isinstance(code.co_consts[0], str) and not _uses_first_constant(code):
        constants[0] = None  # a docstring
    names = [code.co_qualname, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars]
    counts = [code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags]
    return [code.co_code.hex(), code.co_exceptiontable.hex(), constants, names, counts]


def _uses_first_constant(code: CodeType) -> bool:
    return any(step.opcode in dis.hasconst and step.arg == 0 for step in dis.get_instructions(code))


def _line_words(code: CodeType) -> Words:
    """Where the code stands, for line information."""
    return [[part.co_filename, part.co_firstlineno, part.co_linetable.hex()] for part in _parts(code)]


class Reading:
    """One look at all that a kernel reaches; functions are told by their number, so they may call each other."""

    def __init__(self, *, lines: bool) -> None:
        self.functions: list[Words] = []
        self.attributes: list[Words] = []
        self._lines = lines
        self._numbers: dict[tuple[int, int], int] = {}
        self._met: list[Any] = []  # keeps alive what is known by id
        self._names: set[str] = set()
        self._loose: dict[int, ModuleType] = {}

    def function(self, function: FunctionType, options: dict[str, Any], name: str, jitted: Any = None) -> int:
        """The number of a function; its words are made when it is met first."""
        identity = (id(function), id(jitted))
        if identity in self._numbers:
            return self._numbers[identity]
        if not isinstance(function, FunctionType):
            raise NotInWords(name, f"a {type(function).__name__} is not a Python function")
        if "__wrapped__" in function.__dict__ or "__signature__" in function.__dict__:
            raise NotInWords(name, f"{function.__qualname__} has the signature of another function")
        number = self._numbers[identity] = len(self.functions)
        self._met += [function, jitted]
        words: dict[str, Words] = {}
        self.functions.append(words)
        static = _static(function.__code__)
        self._names |= static.names
        words["name"] = function.__qualname__
        words["code"] = static.words
        words["options"] = _options_words(options, name)
        if self._lines or options["lineinfo"] or options["debug"]:
            words["lines"] = digest(str(_line_words(function.__code__)).encode())
        if function.__defaults__ or function.__kwdefaults__:
            defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).items()]
            words["defaults"] = [self.value(v, f"{name}: a default") for v in defaults]
        if jitted is not None and getattr(jitted, "_can_compile", True) is False:
            words["signatures"] = [
                [type_words(t, f"{name}: signature") for t in (s.return_type, *s.args)]
                for s in jitted.nopython_signatures
            ]
        words["reads"] = self._read_words(function, static, name)
        return number

    def _read_words(self, function: FunctionType, static: _Static, name: str) -> Words:
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        words = {}
        for read in static.reads:
            path = read.name
            if read.closure:
                if path not in cells:
                    continue  # a variable of the function itself, shared with one inside it
                try:
                    value = cells[path].cell_contents
                except ValueError:
                    value = _ABSENT
            else:
                value = function.__globals__.get(path, _ABSENT)
                if value is _ABSENT:
                    value = getattr(builtins, path, _ABSENT)
            for attribute in read.attributes:
                if not isinstance(value, ModuleType):
                    break
                path += f".{attribute}"
                value = getattr(value, attribute, _ABSENT)
            words[f"closure {path}" if read.closure else path] = (
                ["absent"] if value is _ABSENT else self.value(value, f"{name}: {path}")
            )
        return words

    def value(self, value: Any, name: str) -> Words:
        """Words of whatever a name stands for."""
        if isinstance(value, ModuleType):
            if is_library(value.__name__):
                return ["module", value.__name__]
            self._loose[id(value)] = value
            return ["module", value.__name__]
        function = getattr(type(value), "__module__", None) and _jitted_function(value)
        if function is not None:
            options = value.targetoptions if hasattr(value, "targetoptions") else value.options
            return ["function", self.function(function, with_defaults(options), name, value)]
        if type(value).__module__ == "numba.cuda.compiler" and type(value).__name__ == "ExternFunction":
            return extern_words(value, name)
        if type(value) in (tuple, list):
            return [type(value).__name__, *(self.value(v, f"{name}[{i}]") for i, v in enumerate(value))]
        return value_words(value, name)

    def follow_loose_modules(self) -> None:
        """Modules that are passed around: all attributes whose names occur in any of the functions count."""
        seen: set[tuple[int, str]] = set()
        while True:
            new = sorted((m.__name__, n, i) for i, m in self._loose.items() for n in self._names if (i, n) not in seen)
            if not new:
                return
            for module_name, name, identity in new:
                seen.add((identity, name))
                value = getattr(self._loose[identity], name, _ABSENT)
                if value is not _ABSENT:
                    self.attributes.append([module_name, name, self.value(value, f"{module_name}.{name}")])


_ABSENT = object()
_STATICS = 4096


def _jitted_function(value: Any) -> Any:
    """The Python function of a device function or kernel; None of anything else, and of Numba's own."""
    if package_of(type(value).__module__) not in ("numba", "nvmath_device"):
        return None
    function = value.__dict__.get("py_func") if hasattr(value, "__dict__") else None
    return None if function is None or package_of(function.__module__) == "numba" else function


# By id, as equal code objects need not have equal names; they are kept, so that ids stay theirs.
_statics: dict[int, tuple[CodeType, _Static]] = {}


def _static(code: CodeType) -> _Static:
    known = _statics.get(id(code))
    if known is None:
        if len(_statics) >= _STATICS:
            _statics.clear()
        known = _statics[id(code)] = (code, _look_at(code))
    return known[1]
