# SPDX-License-Identifier: Apache-2.0
"""Host values in words: different values have different words, the same value the same, the rest has none."""

from __future__ import annotations

import ctypes
import enum
import functools
import importlib
import json
import math
import operator
import shutil
import struct
import subprocess
import sys
from collections import namedtuple
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace

import ml_dtypes
import numba.cuda.extending
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpy_st
from numba import cuda
from numba.cuda import types

import nvmath_device as nd
from nvmath_device.numba_backend.kernel_words import NotInWords, kernel_words
from nvmath_device.numba_backend.value_words import _is_standard, is_library, type_words, value_words

ROOT = Path(__file__).resolve().parent.parent


def words(value):
    answer = value_words(value, "value")
    text = json.dumps(answer, sort_keys=True)
    assert json.loads(text) == answer, "not plain JSON"
    return text


# -- plain values -----------------------------------------------------------------------------------------------

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.complex_numbers()
    | st.text(st.characters())
    | st.binary()
    | st.just(Ellipsis),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.tuples(inner),
)


def identity(value):
    """Type and bits of a value, as Python's own ``==`` takes 1, 1.0 and True, 0.0 and -0.0 to be equal."""
    if isinstance(value, (list, tuple)):
        return (type(value), *map(identity, value))
    if isinstance(value, float):
        return float, struct.pack("<d", value)
    if isinstance(value, complex):
        return complex, struct.pack("<dd", value.real, value.imag)
    return type(value), value


@given(plain, plain)
def test_plain_values_have_equal_words_only_if_they_are_the_same(one, other):
    assert (words(one) == words(other)) == (identity(one) == identity(other))


@given(st.one_of(st.integers(-2, 2), st.booleans(), st.sampled_from([0.0, -0.0, 1.0, -1.0, math.nan, "1", b"1", 1j])))
def test_values_that_compare_equal_are_told_apart(value):
    payload = struct.unpack("<d", struct.pack("<Q", 0x7FF8_0000_0000_0001))[0]
    others = [
        payload,
        -2,
        -1,
        0,
        1,
        2,
        True,
        False,
        0.0,
        -0.0,
        1.0,
        -1.0,
        math.nan,
        "1",
        b"1",
        1j,
        None,
        (),
        [],
        "None",
        "int 1",
    ]
    for other in others:
        assert (words(value) == words(other)) == (identity(value) == identity(other))


dtypes = st.one_of(
    numpy_st.integer_dtypes(endianness="="), numpy_st.floating_dtypes(endianness="="), numpy_st.complex_number_dtypes()
)
arrays = dtypes.flatmap(
    lambda dtype: numpy_st.arrays(dtype, numpy_st.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=3))
)


@given(arrays, arrays)
def test_arrays_count_by_type_shape_and_content(one, other):
    same = (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    assert (words(one) == words(other)) == same
    assert words(one) == words(one.copy())
    if one.ndim == 0:
        assert words(one) != words(one[()])


def test_arrays_count_by_layout_and_whether_they_may_be_written():
    square = np.arange(9.0).reshape(3, 3)
    readonly = square.copy()
    readonly.flags.writeable = False
    spread = np.zeros((3, 6))[:, ::2]
    spread[:] = square
    variants = [square, np.asfortranarray(square), readonly, spread, square.T]
    assert len({words(v) for v in variants}) == len(variants)


DTYPES = [
    "f2", "f4", "f8", "i4", "u4", "c8", "c16", "?", ">f4", "M8[s]", "M8[ns]", "S3", "U3",
    ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2,
    [("x", "f4"), ("y", "f4")], [("y", "f4"), ("x", "f4")], [("x", "f4", 2)], [("x", "f4", (2, 1))],
    {"names": ["x", "y"], "formats": ["f4", "f4"], "offsets": [0, 8]},
    {"names": ["x", "y"], "formats": ["f4", "f4"], "offsets": [0, 4], "itemsize": 16},
    [(("title", "x"), "f4"), ("y", "f4")],
    (np.record, [("x", "f4"), ("y", "f4")]),
]  # fmt: skip


def test_dtypes_and_scalars_are_told_apart():
    kinds = [np.dtype(d) for d in DTYPES] + [np.dtype([("x", "i1"), ("y", "f4")], align=a) for a in (False, True)]
    assert len({words(d) for d in kinds}) == len(kinds)
    numbers = [np.zeros((), d)[()] for d in kinds if d.names is None and d.isnative]
    assert len({words(n) for n in numbers}) == len(numbers)
    assert words(np.float32(1)) != words(np.float32(2)) != words(np.float32(-0.0)) != words(np.float32(0.0))


class Mode(enum.IntEnum):
    A = 1
    B = 2


class OtherMode(enum.IntEnum):
    A = 1
    B = 3


class Plain(enum.Enum):
    A = 1
    B = 2


class Bits(enum.IntFlag):
    A = 1
    B = 2


def test_members_of_enumerations_are_told_apart():
    values = [*Mode, *OtherMode, *Plain, *Bits, Bits.A | Bits.B, Mode, OtherMode, Plain, 1, 2, 3]
    assert len({words(v) for v in values}) == len(values)


def test_named_tuples_are_told_apart():
    point, other = namedtuple("P", "x y"), namedtuple("P", "y x")
    defaults = namedtuple("P", "x y", defaults=[2])
    values = [point(1, 2), point(1, 3), other(1, 2), defaults(1), (1, 2), point, other, defaults]
    assert len({words(v) for v in values}) == len(values)
    assert words(point(1, 2)) == words(namedtuple("P", "x y")(1, 2))


LIBRARY = [
    math.sin, math.cos, np.sin, np.cos, np.float32, np.float64, np.zeros, operator.add, len, abs, print, float, int,
    cuda.threadIdx, cuda.blockIdx, cuda.grid, cuda.syncthreads, cuda.local.array, cuda.shared.array, cuda.atomic.add,
    cuda.random.xoroshiro128p_next if hasattr(cuda, "random") else cuda.fma, cuda.laneid, cuda.float32x4,
    ml_dtypes.bfloat16, ValueError, nd.shared, nd.float32, nd.float32x2, nd.float32x4, nd.float16, nd.bfloat16,
    types.float32, types.float64, types.bfloat16, types.Array(types.float32, 1, "C"),
]  # fmt: skip


def test_objects_of_the_library_are_told_by_name():
    assert len({words(v) for v in LIBRARY}) == len(LIBRARY)


def test_words_of_descriptors_do_not_depend_on_what_was_asked_of_them():
    mm = nd.Matmul((8, 4, 16), "float32", "real", arrangement=("row_major",) * 3, block_size=64, sm=90)
    before = words(mm), words(nd.float32x2)
    assert mm.a_size
    assert mm.layouts
    assert nd.float32x2.dtype.itemsize == 8
    assert (words(mm), words(nd.float32x2)) == before
    again = nd.Matmul((8, 4, 16), "float32", "real", arrangement=("row_major",) * 3, block_size=64, sm=90)
    assert words(again) == before[0]


def matmul(**changes):
    given = {
        "size": (64, 32, 16), "precision": "float16", "data_type": "real", "block_size": 64,
        "arrangement": ("row_major", "col_major", "row_major"),
    }  # fmt: skip
    return nd.Matmul(**{**given, **changes})


MATMULS = [
    {}, {"size": (64, 32, 32)}, {"precision": ("float16", "float16", "float32")}, {"data_type": "complex"},
    {"block_size": 128}, {"block_size": None, "block_dim": (32, 2)}, {"block_size": None},
    {"arrangement": ("col_major", "col_major", "row_major")}, {"leading_dimension": (24, 16, 40)},
    {"leading_dimension": "suggested"}, {"alignment": (16, 16, 16)}, {"static_block_dim": True}, {"sm": 80},
    {"sm": 90}, {"sm": "sm_90a"}, {"with_pipeline": True}, {"enable_input_streaming": True},
]  # fmt: skip


def test_every_argument_of_a_matmul_is_in_its_words():
    """Two that are equal may have equal words; no others."""
    objects = [matmul(**changes) for changes in MATMULS]
    assert len({words(mm) for mm in objects}) == len(set(objects)) == len(objects)


FFTS = [
    {}, {"size": 128}, {"precision": "float64"}, {"direction": "inverse"}, {"execution": "Thread"},
    {"ffts_per_block": 2}, {"ffts_per_block": "suggested"}, {"elements_per_thread": 8}, {"thread_layout": "blocked"},
    {"fft_type": "r2c", "direction": None},
    {"fft_type": "r2c", "direction": None, "real_fft_options": {"complex_layout": "full", "real_mode": "normal"}},
]  # fmt: skip


def test_every_argument_of_an_fft_is_in_its_words():
    given = {"size": 64, "precision": "float32", "fft_type": "c2c", "execution": "Block", "direction": "forward"}
    objects = [nd.FFT(**{**given, **changes}) for changes in FFTS if changes.get("thread_layout") is None]
    assert len({words(fft) for fft in objects}) == len(set(objects)) == len(objects)


# -- what has no words ------------------------------------------------------------------------------------------


class Config:
    TILE = 8


class Typed:
    _numba_type_ = types.int32


class OnGpu:
    __cuda_array_interface__ = {"shape": (4,), "typestr": "<f4", "data": (4096, False), "version": 3}  # noqa: RUF012


class MyArray(np.ndarray):
    pass


class MyInt(int):
    pass


class MyMatmul(nd.Matmul):
    pass


class MyType(types.Type):
    def __init__(self):
        super().__init__("MyType")


def a_function(x):
    return x


@numba.cuda.extending.intrinsic
def an_intrinsic(typing_context, x):
    return x(x), None


def sine(x):
    return x


sine.__module__, sine.__qualname__ = "math", "sin"

UNKNOWN = {
    "a function by the name of another": sine,
    "a function": a_function,
    "a lambda": lambda x: x,
    "a method": Config().__init__,
    "a bound method of an array": np.arange(3).item,
    "a partial function": functools.partial(a_function, 1),
    "a cached function": functools.lru_cache(a_function),
    "a class": Config,
    "an instance": Config(),
    "a namespace": SimpleNamespace(TILE=8),
    "an object with a Numba type": Typed(),
    "an array in GPU memory": OnGpu(),
    "a subclass of an array": np.arange(3).view(MyArray),
    "a masked array": np.ma.masked_array([1, 2]),
    "an array of objects": np.array([object()]),
    "a memory map": np.lib.stride_tricks.as_strided(np.arange(3), subok=True).view(np.matrix),
    "a subclass of int": MyInt(3),
    "a subclass of a descriptor": matmul().__class__.from_descriptor and MyMatmul.from_descriptor(matmul().descriptor),
    "a Decimal": Decimal(1),
    "a set": {1, 2},
    "an intrinsic": an_intrinsic,
    "a C function": ctypes.CDLL(None).abs,
    "an instance of a library class": np.random.default_rng(1),
    "a type of the user's": MyType(),
    "a generic opaque type": types.Opaque("Mine"),
    "a module": json,
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_other_values_have_no_words(name):
    with pytest.raises(NotInWords) as error:
        value_words(UNKNOWN[name], "where")
    assert error.value.name.startswith("where")
    assert error.value.why


@pytest.mark.parametrize("name", UNKNOWN.keys() - {"a module"})
@pytest.mark.parametrize("place", ["global", "closure", "default", "in a tuple"])
def test_a_kernel_that_refers_to_them_has_none(name, place):
    value = (1, UNKNOWN[name]) if place == "in a tuple" else UNKNOWN[name]

    def make():
        if place == "global":
            return eval("lambda a: VALUE", {"VALUE": value})
        if place == "default":
            return lambda a, b=value: b
        return lambda a: value

    with pytest.raises(NotInWords) as error:
        kernel_words(make(), (types.int32,), {}, 90)
    assert "<lambda>" in str(error.value)


@pytest.mark.parametrize(
    "options",
    [
        {"extensions": [1]},
        {"link": ["/no/such/file.ptx"]},
        {"link": [object()]},
        {"link": [cuda.PTXSource(b"", setup_callback=print)]},
        {"link": [cuda.PTXSource(b"", teardown_callback=print)]},
        {"inline": a_function},
        {"something_new": object()},
    ],
)
def test_some_options_have_no_words(options):
    with pytest.raises(NotInWords):
        kernel_words(lambda a: None, (types.int32,), options, 90)


def test_types_that_are_not_numbas_have_no_words():
    for typ in (MyType(), types.Array(MyType(), 1, "C"), types.UniTuple(MyType(), 2), types.Opaque("Mine")):
        with pytest.raises(NotInWords):
            type_words(typ, "argument")


def test_a_function_with_the_signature_of_another_has_no_words():
    @functools.wraps(a_function)
    def kernel(a):
        pass

    with pytest.raises(NotInWords, match="signature"):
        kernel_words(kernel, (types.int32,), {}, 90)


# -- what is a library ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["math", "operator", "enum", "numpy.linalg", "numba.cuda.stubs", "nvmath_device.fft"])
def test_libraries(name):
    assert is_library(name)


@pytest.mark.parametrize("name", ["__main__", "tests.test_value_words", "numba_helpers", "numpydoc", "pytest", None])
def test_other_modules(name):
    assert not is_library(name)


def test_a_module_of_the_users_with_a_name_of_the_standard_library_is_the_users(tmp_path):
    (tmp_path / "colorsys.py").write_text("def f(): pass\n")
    code = (
        "import colorsys\nfrom nvmath_device.numba_backend.value_words import is_library, value_words\n"
        "assert not is_library('colorsys')\n"
        "try:\n    print(value_words(colorsys.f, 'f'))\nexcept ValueError as error:\n    print(type(error).__name__)"
    )
    assert answer_of(code, str(tmp_path)) == "NotInWords"


def test_so_is_one_that_is_installed_where_the_standard_library_lies(monkeypatch):
    standard = importlib.import_module("colorsys")
    assert is_library("colorsys")
    installed = Path(standard.__file__).parent / "site-packages" / "colorsys.py"
    monkeypatch.setitem(sys.modules, "colorsys", SimpleNamespace(__file__=str(installed)))
    _is_standard.cache_clear()
    assert not is_library("colorsys")
    _is_standard.cache_clear()


# -- extensions of Numba ----------------------------------------------------------------------------------------


def answer_of(code: str, *folders: str) -> str:
    environment = {"PYTHONPATH": ":".join([str(ROOT), *folders]), "PATH": ""}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


ASK = """
from numba import cuda
from numba.cuda import types
from nvmath_device.numba_backend.kernel_words import NotInWords, kernel_words
def kernel(a):
    a[0] = 1
def ask():
    try:
        return str(kernel_words(kernel, (types.float32[::1],), {}, 90)["extensions"])
    except NotInWords as error:
        return f"{type(error).__name__} {error.name}"
import math, operator
import numba.extending
import numpy as np
from numba.cuda import extending
from numba.cuda.cudadecl import registry as typing
from numba.cuda.cudaimpl import registry as lowering
from numba.cuda.extending import *
from numba.cuda.typing.templates import AbstractTemplate, AttributeTemplate, ConcreteTemplate, signature
assert ask() == "{}"
"""

ABOUT_LIBRARY = {
    "overload": "@extending.overload(np.median)\ndef f(a): return lambda a: 1.0",
    "overload for all targets": "@numba.extending.overload(np.median)\ndef f(a): return lambda a: 1.0",
    "overload of an operator": "@extending.overload(operator.add)\ndef f(a, b): return None",
    "method of arrays": "@extending.overload_method(types.Array, 'f')\ndef f(a): return lambda a: 1.0",
    "attribute of arrays": "@extending.overload_attribute(types.Array, 'f')\ndef f(a): return lambda a: 1.0",
    "type_callable": "@extending.type_callable(math.sin)\ndef f(context): return lambda x: x",
    "template": "@typing.register_global(math.sin)\nclass T(ConcreteTemplate): cases = []",
    "attributes": "@typing.register_attr\nclass T(AttributeTemplate): key = types.Array",
    "lowering": "@lowering.lower(math.sin, types.float32)\ndef f(c, b, s, a): return a[0]",
    "lowering by name": "@lowering.lower('static_getitem', types.Any, types.Any)\ndef f(c, b, s, a): return a[0]",
    "lowering of an attribute": "@lowering.lower_getattr(types.Array, 'shape')\ndef f(c, b, t, v): return v",
    "lowering of any attribute": "@lowering.lower_getattr_generic(types.Array)\ndef f(c, b, t, v, a): return v",
    "cast": "@lowering.lower_cast(types.Float, types.Integer)\ndef f(c, b, x, y, v): return v",
    "constant": "@lowering.lower_constant(types.Float)\ndef f(c, b, t, v): return v",
}
ABOUT_THEMSELVES = {
    "an intrinsic": "@extending.intrinsic\ndef f(t, a): return types.int32(types.int32), None",
    "a jitable function": "@numba.extending.register_jitable\ndef f(a): return a",
    "an overload of their own": "def g(a): pass\n@extending.overload(g)\ndef f(a): return lambda a: 1.0",
    "a type with a method": (
        "class T(types.Type): pass\n@extending.overload_method(T, 'f')\ndef f(a): return lambda a: 1.0\n"
        "@lowering.lower(operator.add, T, types.float32)\ndef f(c, b, s, a): return a[0]\n"
        "@lowering.lower_cast(T, types.Integer)\ndef f(c, b, x, y, v): return v"
    ),
    "device functions": "@cuda.jit(device=True)\ndef f(a): return a\n@numba.njit\ndef g(a): return a",
}


def test_extensions_that_no_kernel_shows_leave_it_without_words():
    """Each alone, in one process: what was found before is forgotten, what is registered stays."""
    each = (
        "exec({!r})\nprint(ask())\n"
        "from nvmath_device.numba_backend import extension_words as found\nfound._found.clear()\nassert ask() == '{{}}'"
    )
    answers = answer_of("\n".join([ASK, *(each.format(body) for body in ABOUT_LIBRARY.values())])).splitlines()
    assert dict(zip(ABOUT_LIBRARY, answers, strict=True)) == dict.fromkeys(ABOUT_LIBRARY, "NotInWords __main__")


def test_extensions_about_their_own_objects_do_not():
    assert answer_of("\n".join([ASK, *ABOUT_THEMSELVES.values(), "print(ask())"])) == "{}"


def test_extensions_that_are_installed_packages_count_by_their_version(tmp_path):
    folder = tmp_path / "site-packages" / "an_extension"
    folder.mkdir(parents=True)
    body = "import numpy as np\nfrom numba.cuda import extending\n" + ABOUT_LIBRARY["overload"]
    for version in ("1.2.3", "1.2.4"):
        (folder / "__init__.py").write_text(f"__version__ = {version!r}\n{body}\n")
        asked = answer_of(f"{ASK}\nimport an_extension\nprint(ask())", str(folder.parent))
        assert asked == str({"an_extension": version})
    elsewhere = tmp_path / "an_extension.py"
    shutil.copyfile(folder / "__init__.py", elsewhere)  # of the user's, who does not raise the version with every edit
    assert answer_of(f"{ASK}\nimport an_extension\nprint(ask())", str(tmp_path)) == "NotInWords an_extension"
