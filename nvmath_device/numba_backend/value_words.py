# SPDX-License-Identifier: Apache-2.0
"""Host values and Numba types in words: JSON that two values share only if machine code cannot tell them apart.

What has no words raises :class:`NotInWords`; there is no fallback to ``repr`` or to an address. Words do not depend
on the process. Functions, modules and everything else that leads to other values is described by ``kernel_words``.
"""

from __future__ import annotations

import enum
import hashlib
import inspect
import os
import struct
import sys
from functools import cached_property, lru_cache
from types import FunctionType, ModuleType
from typing import Any

from nvmath_device.errors import NvmathDeviceError

Words = Any  # what JSON can hold

# Packages whose objects are told by name: their versions are part of every key.
TOOLCHAIN = frozenset({"llvmlite", "numba", "numba_cuda", "numpy", "nvmath_device"})
# The same, but their versions are part of the words of their objects.
_VERSIONED = frozenset({"ml_dtypes"})


class NotInWords(NvmathDeviceError, ValueError):
    """Something that a kernel refers to cannot be put into words. ``name`` is where it was met, ``why`` says why."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name}: {why}")
        self.name, self.why = name, why

    def __reduce__(self) -> tuple[object, ...]:
        return (NotInWords, (self.name, self.why))


def digest(data: Any) -> str:
    """SHA-256 of bytes, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def package_of(module: Any) -> str:
    """The package that a module, by name, belongs to."""
    return module.partition(".")[0] if isinstance(module, str) else ""


def is_library(module: Any) -> bool:
    """Whether what is in a module, by name, is told by name: versions in the key say what it is."""
    package = package_of(module)
    return (
        package in TOOLCHAIN or package in _VERSIONED or (package in sys.stdlib_module_names and _is_standard(package))
    )


@lru_cache(maxsize=256)
def _is_standard(package: str) -> bool:
    """Whether a package with a name of the standard library is that one, not somebody's ``test`` or ``code``."""
    file = getattr(sys.modules.get(package), "__file__", None)
    if file is None:
        return package in sys.builtin_module_names
    folder, standard = (os.path.dirname(os.path.realpath(f)) for f in (file, os.__file__))
    return f"{folder}{os.sep}".startswith(f"{standard}{os.sep}") and "-packages" not in folder


def library_name(value: Any) -> Words | None:
    """Words of a class or function of the library: where it is found; None if it is not found there."""
    module: Any = getattr(value, "__module__", None)
    path = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if module is None and type(value).__module__ == "numpy":  # functions of NumPy do not all say where they are
        module = "numpy"
    if not is_library(module) or not isinstance(path, str):
        return None
    while not _is_at(value, module, path):  # packages offer what their modules make: numba.cuda.float32x4
        module = module.rpartition(".")[0]
        if not module:
            return None
    version = [sys.modules[package_of(module)].__version__] if package_of(module) in _VERSIONED else []
    return ["name", module, path, *version]


def _is_at(value: Any, module: str, path: str) -> bool:
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found is value


# -- values that stand for themselves ---------------------------------------------------------------------------


def value_words(value: Any, name: str) -> Words:
    """Words of a value that leads to no other code.

    Numbers, strings, bytes, None, Ellipsis, slices, tuples, lists, named tuples, enumerations, NumPy scalars, dtypes
    and arrays (by content), Numba types, this package's descriptors, classes and functions of the library.

    Raises:
        NotInWords: anything else; ``name`` says where it was met.
    """
    simple = _SIMPLE.get(type(value))
    if simple is not None:
        return simple(value)
    if type(value) is slice:
        return ["slice", *(value_words(v, name) for v in (value.start, value.stop, value.step))]
    if type(value) is dict:
        return ["dict", *([value_words(k, name), value_words(v, f"{name}[{k!r}]")] for k, v in value.items())]
    if type(value) in (tuple, list, frozenset):
        members = [value_words(v, f"{name}[{i}]") for i, v in enumerate(value)]
        return [type(value).__name__, *(sorted(members, key=str) if type(value) is frozenset else members)]
    if isinstance(value, enum.Enum):
        return ["member", _enum_words(type(value), name), value.name, value_words(value.value, name)]
    if isinstance(value, type):
        return _class_words(value, name)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [_named_tuple_words(type(value), name), *(value_words(v, f"{name}[{i}]") for i, v in enumerate(value))]
    package = package_of(type(value).__module__)
    if package == "nvmath_device":
        return _own_words(value, name)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        if isinstance(value, numpy.dtype):
            return dtype_words(value, name)
        if type(value) is numpy.ndarray:
            return _array_words(value, name)
        if isinstance(value, numpy.generic) and (package in TOOLCHAIN or package in _VERSIONED):
            return ["scalar", dtype_words(value.dtype, name), value.tobytes().hex()]
    if _is_numba_type(value):
        return type_words(value, name)
    if (words := library_name(value)) is not None:
        return words
    raise NotInWords(name, _why_not(value))


def _why_not(value: Any) -> str:
    cls = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, FunctionType):
        return f"{value.__qualname__} is a Python function, not a device function"
    if isinstance(value, ModuleType):
        return f"the module {value.__name__} is used as a value"
    if hasattr(value, "__cuda_array_interface__") or hasattr(value, "__dlpack__"):
        return f"an array in GPU memory ({cls}) becomes an address in the code"
    return f"an object of type {cls}, of which it is not known what the code makes"


def _float_words(value: float) -> str:
    # repr is exact but for the payload of NaNs.
    return f"float {value!r}" if value == value else f"float {struct.pack('>d', value).hex()}"


_SIMPLE: dict[type, Any] = {
    type(None): lambda value: None,
    bool: lambda value: value,
    int: lambda value: f"int {value}",
    float: _float_words,
    complex: lambda value: ["complex", _float_words(value.real), _float_words(value.imag)],
    str: lambda value: f"str {value}",
    bytes: lambda value: f"bytes {value.hex()}",
    type(Ellipsis): lambda value: "...",
}


def _class_words(cls: type, name: str) -> Words:
    if issubclass(cls, enum.Enum):
        return _enum_words(cls, name)
    if (words := library_name(cls)) is not None:
        return words
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return _named_tuple_words(cls, name)
    if issubclass(cls, BaseException):  # of an exception Numba keeps that it was raised
        return ["exception", cls.__qualname__]
    raise NotInWords(name, f"the class {cls.__qualname__}; Numba compiles it by an extension only")


def _enum_words(cls: type[enum.Enum], name: str) -> Words:
    bases = [base.__name__ for base in cls.__mro__ if base.__module__ == "enum"]
    members = [[m, value_words(v.value, f"{name}.{m}")] for m, v in cls.__members__.items()]
    return ["enum", cls.__qualname__, bases, members]


def _named_tuple_words(cls: Any, name: str) -> Words:
    defaults = [[field, value_words(v, f"{name}.{field}")] for field, v in cls._field_defaults.items()]
    return ["namedtuple", cls.__qualname__, list(cls._fields), *defaults]


def _own_words(value: Any, name: str) -> Words:
    """An object of this package: its class, and the fields that say what it is."""
    cls = type(value)
    words = library_name(cls)
    if words is None:
        raise NotInWords(name, _why_not(value))
    if hasattr(cls, "_identity"):
        fields = {"": value._identity}
    else:
        names = tuple(getattr(cls, "__dataclass_fields__", ())) or tuple(inspect.get_annotations(cls))
        state = getattr(value, "__dict__", {})
        if any(n not in names and not isinstance(getattr(cls, n, None), cached_property) for n in state):
            raise NotInWords(name, _why_not(value))
        fields = {n: state[n] for n in names}
    return [*words, {n: value_words(v, f"{name}.{n}") for n, v in fields.items()}]


def dtype_words(dtype: Any, name: str) -> Words:
    """Words of a NumPy dtype; those of ml_dtypes, too."""
    if dtype.hasobject:
        raise NotInWords(name, f"dtype {dtype} holds Python objects")
    if dtype.subdtype is not None:
        return ["dtype", dtype_words(dtype.subdtype[0], name), list(dtype.shape)]
    scalar = value_words(dtype.type, name)
    if dtype.names is None:
        return ["dtype", dtype.str, scalar]
    fields = [
        [field, dtype_words(t, f"{name}.{field}"), offset, [value_words(x, name) for x in title]]
        for field, (t, offset, *title) in ((f, dtype.fields[f]) for f in dtype.names)
    ]
    return ["dtype", scalar, fields, dtype.itemsize, dtype.alignment, dtype.isalignedstruct]


def _array_words(array: Any, name: str) -> Words:
    flags = array.flags
    layout = [flags.c_contiguous, flags.f_contiguous, flags.aligned, flags.writeable]
    content = digest(array.tobytes())
    return ["array", dtype_words(array.dtype, name), list(array.shape), list(array.strides), layout, content]


# -- Numba types ------------------------------------------------------------------------------------------------

# Types that their name says all of.
_NAMED = frozenset({
    "Boolean", "CharSeq", "Complex", "EllipsisType", "Float", "Integer", "NPDatetime", "NPTimedelta", "NoneType",
    "RawPointer", "SliceType", "UnicodeCharSeq", "UnicodeType",
})  # fmt: skip
# Types that are another one and nothing else.
_WRAPPING = {"DType": "dtype", "NumberClass": "instance_type", "Optional": "type", "TypeRef": "instance_type"}


def _is_numba_type(value: Any) -> bool:
    return any(cls.__name__ == "Type" and package_of(cls.__module__) == "numba" for cls in type(value).__mro__)


def type_words(typ: Any, name: str) -> Words:
    """Words of a Numba type.

    Raises:
        NotInWords: a type that is not Numba's own, or of which it is not known what identifies it.
    """
    try:
        return _type_words(typ)
    except NotInWords as error:
        raise NotInWords(name, error.why) from None


@lru_cache(maxsize=1024)
def _type_words(typ: Any) -> Words:
    cls = type(typ)
    if package_of(cls.__module__) == "nvmath_device" and hasattr(typ, "value"):
        return ["constant", value_words(typ.value, "type")]
    if library_name(cls) is None:
        raise NotInWords("type", f"the type {typ} is not Numba's own")
    kind = cls.__name__
    if kind in _NAMED:
        return str(typ)
    if kind == "Array":
        return ["array", _type_words(typ.dtype), typ.ndim, typ.layout, typ.mutable, typ.aligned]
    if kind == "NestedArray":
        return ["nested", _type_words(typ.dtype), list(typ.shape)]
    if kind == "Record":
        fields = [[n, _type_words(f.type), f.offset, f.alignment, f.title] for n, f in typ.fields.items()]
        return ["record", typ.size, typ.aligned, fields]
    if kind in ("Tuple", "UniTuple"):
        return ["tuple", *map(_type_words, typ.types)]
    if kind in ("NamedTuple", "NamedUniTuple"):
        return [_named_tuple_words(typ.instance_class, "type"), *map(_type_words, typ.types)]
    if kind in ("EnumMember", "IntEnumMember", "EnumClass", "IntEnumClass"):
        return [kind, _enum_words(typ.instance_class, "type"), _type_words(typ.dtype)]
    if kind in ("IntegerLiteral", "BooleanLiteral", "StringLiteral", "SliceLiteral"):
        return [kind, value_words(typ.literal_value, "type")]
    if kind == "Omitted":
        return [kind, value_words(typ.value, "type")]
    if kind in _WRAPPING:
        return [kind, _type_words(getattr(typ, _WRAPPING[kind]))]
    if cls.__module__.startswith("numba.cuda.") and typ.key == typ.name:  # bfloat16, fp8, vectors
        return str(typ)
    raise NotInWords("type", f"the type {typ} ({kind}) is not known to be told by its name")
