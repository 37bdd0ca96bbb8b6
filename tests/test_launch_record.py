# SPDX-License-Identifier: Apache-2.0
"""The launch record against what compiled kernels declare, and against ``ctypes``. Nothing is linked."""

from __future__ import annotations

import ctypes
import enum
import json
import re
from collections import namedtuple

import numpy as np
import pytest
from numba import cuda
from numba.cuda import types
from numba.cuda.types import void
from numba.cuda.typing.typeof import Purpose, typeof

from nvmath_device.errors import UnsupportedError
from nvmath_device.launch_record import WORDS, check_record, record_of


class Color(enum.IntEnum):
    RED = 1


class Weight(enum.Enum):
    HALF = 0.5


Point = namedtuple("Point", "x y")
RECORD = np.dtype([("a", "f4"), ("b", "i8")], align=True)
ARRAY = "ptr ptr i64 i64 ptr"

# Type of an argument -> the words it is passed as, by the documentation of each type.
CASES = {
    types.float32[::1]: f"{ARRAY} i64 i64",
    types.float64[:, :]: f"{ARRAY} i64 i64 i64 i64",
    types.complex64[:, :, ::1]: f"{ARRAY} i64 i64 i64 i64 i64 i64",
    types.Array(types.int8, 1, "C", readonly=True): f"{ARRAY} i64 i64",
    typeof(np.zeros(2, RECORD), Purpose.argument): f"{ARRAY} i64 i64",
    types.boolean: "bool",
    types.int8: "i8",
    types.int16: "i16",
    types.int32: "i32",
    types.int64: "i64",
    types.uint8: "u8",
    types.uint16: "u16",
    types.uint32: "u32",
    types.uint64: "u64",
    types.literal(7): "i64",
    types.float16: "f16",
    types.bfloat16: "bf16",
    types.float32: "f32",
    types.float64: "f64",
    types.complex64: "f32 f32",
    types.complex128: "f64 f64",
    types.CPointer(types.float32): "ptr",
    types.NPDatetime("s"): "i64",
    types.NPTimedelta("ms"): "i64",
    typeof(Color.RED, Purpose.argument): "i64",
    typeof(Weight.HALF, Purpose.argument): "f64",
    typeof(np.zeros(2, RECORD)[0], Purpose.argument): "ptr",
    types.UniTuple(types.int32, 3): "i32 i32 i32",
    typeof(Point(1, np.float32(2)), Purpose.argument): "i64 f32",
    types.Tuple((types.float32[:], types.Tuple((types.int8, types.complex64)))): f"{ARRAY} i64 i64 i8 f32 f32",
    types.Tuple(()): "",
}
# What PTX calls a parameter of each word: of integers it tells the width only.
IN_PTX = {"ptr": "u64", "bool": "u8", "f16": "u16", "bf16": "u16", "f32": "f32", "f64": "f64"} | {
    f"{sign}{bits}": f"u{bits}" for sign in "iu" for bits in (8, 16, 32, 64)
}


def kernel(argument):
    pass


def words(argument_type):
    (argument,) = record_of(kernel, (argument_type,))
    return argument["words"]


def test_every_word_has_the_size_of_its_c_type():
    c_types = {
        "ptr": ctypes.c_void_p, "bool": ctypes.c_bool, "f16": ctypes.c_uint16, "bf16": ctypes.c_uint16,
        "f32": ctypes.c_float, "f64": ctypes.c_double,
        **{f"i{n}": getattr(ctypes, f"c_int{n}") for n in (8, 16, 32, 64)},
        **{f"u{n}": getattr(ctypes, f"c_uint{n}") for n in (8, 16, 32, 64)},
    }  # fmt: skip
    assert {word: ctypes.sizeof(c_type) for word, c_type in c_types.items()} == WORDS


@pytest.mark.parametrize("argument_type", CASES, ids=str)
def test_words_of_a_type(argument_type):
    assert words(argument_type) == CASES[argument_type].split()


@pytest.mark.parametrize("argument_type", CASES, ids=str)
def test_compiled_kernels_declare_the_same_parameters(argument_type):
    ptx, _ = cuda.compile_ptx(kernel, void(argument_type), cc=(9, 0))
    declared = re.findall(r"\.param \.(?:align \d+ \.)?(\w+)", ptx.partition(".entry")[2].partition(")")[0])
    assert declared == [IN_PTX[word] for word in words(argument_type)]


def test_the_record_names_arguments_and_is_json():
    def scale(x, factor=2, *more):
        pass

    record = record_of(cuda.jit(scale), (types.float32[:], types.float32, types.int32, types.boolean))
    assert [(a["name"], a["type"]) for a in record] == [
        ("x", "array(float32, 1d, A)"), ("factor", "float32"), ("more[0]", "int32"), ("more[1]", "bool"),
    ]  # fmt: skip
    assert tuple(json.loads(json.dumps(record))) == record


@pytest.mark.parametrize(
    "argument_type",
    [types.none, types.Optional(types.int32), types.unicode_type, types.Tuple((types.int32, types.none))],
    ids=str,
)
def test_what_no_launch_can_pass_is_refused_by_name(argument_type):
    with pytest.raises(UnsupportedError, match=r"argument 'argument': .* cannot be passed to a kernel"):
        record_of(kernel, (argument_type,))


def test_a_numba_that_passes_arguments_otherwise_is_noticed():
    record = record_of(kernel, (types.complex64,))
    check_record(record, ["float", "float"])
    with pytest.raises(UnsupportedError, match="this version of Numba passes"):
        check_record(record, ["{float, float}"])
    with pytest.raises(UnsupportedError, match="this version of Numba passes"):
        check_record(record_of(kernel, (types.float32[:],)), ["i8*", "i64", "i64", "float*", "i64", "i64"])
