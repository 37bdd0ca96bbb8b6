# SPDX-License-Identifier: Apache-2.0
"""GemmDescriptor, Matmul and FFT: what they refuse, when, and in which words."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nvmath_device as nd
from nvmath_device.descriptors import refuse_precision
from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError, NvmathDeviceError, UnsupportedError
from nvmath_device.lto.recipes import gemm_recipe
from tests.descriptor_makers import (
    COL,
    ROW,
    fft,
    gemm,
    matmul,
    words,
)

# -- refusals ------------------------------------------------------------------------------------------------

GEMM_REFUSALS = {
    "zero": ({"size": (8, 0, 16)}, ["size", "0", "at least 1"]),
    "negative": ({"size": (8, 4, -1)}, ["size", "-1", "at least 1"]),
    "two numbers": ({"size": (8, 4)}, ["size", "(8, 4)", "2 values", "3 integers, (m, n, k)"]),
    "a size as text": ({"size": "8x4x16"}, ["size", "'8x4x16'", "str", "3 integers"]),
    "a lone size": ({"size": 8}, ["size", "8", "int", "3 integers"]),
    "a float size": ({"size": (8, 4, 16.0)}, ["size", "16.0", "float", "integer"]),
    "a bool size": ({"size": (8, 4, True)}, ["size", "True", "bool", "integer"]),
    "a text in the size": ({"size": (8, 4, "16")}, ["size", "'16'", "str", "integer"]),
    "an unknown precision": ({"precision": "float31"}, ["precision", "'float31'", "float32", "uint64"]),
    "no element type": ({"precision": 3}, ["precision", "3", "float32"]),
    "a complex dtype": ({"precision": np.complex64}, ["precision", "complex64", "known are"]),
    "two precisions": ({"precision": ("float16", "float32")}, ["precision", "2 element types", "three"]),
    "data_type": ({"data_type": "quaternion"}, ["data_type", "'quaternion'", "'real', 'complex'"]),
    "data_type, nearly": ({"data_type": "Complex"}, ["data_type", "'Complex'", "did you mean 'complex'?"]),
    "data_type as a type": ({"data_type": complex}, ["data_type", "'real', 'complex'"]),
    "arrangement": ({"arrangement": ("row", COL, COL)}, ["arrangement", "'row'", "'col_major', 'row_major'"]),
    "one arrangement": ({"arrangement": COL}, ["arrangement", "'col_major'", "3 of"]),
    "two arrangements": ({"arrangement": (COL, ROW)}, ["arrangement", "3 of 'col_major', 'row_major'"]),
    "transpose_mode": (
        {"transpose_mode": ("T", "non_transposed")},
        ["transpose_mode", "'T'", "'non_transposed', 'transposed', 'conj_transposed'"],
    ),
    "three modes": ({"transpose_mode": ("transposed",) * 3}, ["transpose_mode", "2 of"]),
    "lda": (
        {"leading_dimension": (7, 16, 8)},
        ["leading_dimension", "lda=7", "8 rows", "col_major", "matrix A", "at least 8"],
    ),
    "ldb, row-major": (
        {"arrangement": (COL, ROW, COL), "leading_dimension": (8, 3, 8)},
        ["leading_dimension", "ldb=3", "4 columns", "row_major", "matrix B", "at least 4"],
    ),
    "ldc": ({"leading_dimension": (8, 16, 1)}, ["ldc=1", "8 rows", "matrix C"]),
    "ld of a transposed A": (
        {"transpose_mode": ("transposed", "non_transposed"), "leading_dimension": (8, 16, 8)},
        ["lda=8", "16 rows"],
    ),
    "ld as a float": ({"leading_dimension": (8.0, 16, 8)}, ["leading_dimension", "8.0", "float"]),
    "ld as text": ({"leading_dimension": "best"}, ["leading_dimension", "'best'", "'suggested'"]),
    "one ld": ({"leading_dimension": 8}, ["leading_dimension", "8", "(lda, ldb, ldc) or 'suggested'"]),
    "alignment below the element": (
        {"precision": "float64", "alignment": (4, 8, 8)},
        ["alignment", "4 bytes for A", "8 bytes", "8, 16"],
    ),
    "alignment of a complex element": (
        {"data_type": "complex", "alignment": (8, 4, 8)},
        ["alignment", "4 bytes for B", "allowed are 8, 16"],
    ),
    "no power of two": ({"alignment": (4, 4, 12)}, ["alignment", "12 bytes for C", "4, 8, 16"]),
    "too much alignment": ({"alignment": (32, 4, 4)}, ["alignment", "32 bytes for A", "4, 8, 16"]),
    "one alignment": ({"alignment": 16}, ["alignment", "16", "3 integers", "bytes for A, B, C"]),
}


@pytest.mark.parametrize("case", GEMM_REFUSALS)
def test_refusal_names_argument_value_and_what_is_allowed(case):
    changes, expected = GEMM_REFUSALS[case]
    with pytest.raises((InvalidArgumentError, ArgumentTypeError)) as error:
        gemm(**changes)
    assert [w for w in expected if w not in words(error)] == [], words(error)
    # A person cannot tell the object from the descriptor inside it.
    if "transpose_mode" not in changes:
        with pytest.raises(type(error.value)) as outer:
            matmul(**changes)
        assert words(outer) == words(error)


MATMUL_REFUSALS = {
    "no threads": ({"block_size": 0}, InvalidArgumentError, ["block_size", "0", "at least 1"]),
    "less than a warp": (
        {"block_size": 31},
        InvalidArgumentError,
        ["block_size", "31 threads", "32 to 1024"],
    ),
    "less than a warp in three dimensions": (
        {"block_dim": (3, 5, 2)},
        InvalidArgumentError,
        ["block_dim", "(3, 5, 2)", "30 threads", "32 to 1024"],
    ),
    "too many threads": (
        {"block_size": 1025},
        InvalidArgumentError,
        ["block_size", "1025 threads", "32 to 1024"],
    ),
    "too many in two dimensions": (
        {"block_dim": (32, 33)},
        InvalidArgumentError,
        ["block_dim", "(32, 33, 1)", "1056 threads", "32 to 1024"],
    ),
    "too many along z": ({"block_dim": (1, 1, 65)}, InvalidArgumentError, ["block_dim", "(1, 1, 65)", "z = 65", "64"]),
    "a zero dimension": ({"block_dim": (32, 0, 1)}, InvalidArgumentError, ["block_dim", "0", "at least 1"]),
    "four dimensions": (
        {"block_dim": (1, 2, 3, 4)},
        InvalidArgumentError,
        ["block_dim", "4 numbers", "1 to 3"],
    ),
    "no dimension": ({"block_dim": ()}, InvalidArgumentError, ["block_dim", "0 numbers", "1 to 3"]),
    "both": (
        {"block_size": 64, "block_dim": (64,)},
        InvalidArgumentError,
        ["block_size and block_dim", "both", "one of"],
    ),
    "a float block": ({"block_size": 64.0}, ArgumentTypeError, ["block_size", "64.0", "float"]),
    "a bool block": ({"block_size": True}, ArgumentTypeError, ["block_size", "True", "bool"]),
    "a float in block_dim": ({"block_dim": (8, 8.0)}, ArgumentTypeError, ["block_dim", "8.0", "float"]),
    "block_size as text": (
        {"block_size": "auto"},
        InvalidArgumentError,
        ["block_size", "'auto'", "'suggested'"],
    ),
    "block_dim as text": ({"block_dim": "64"}, InvalidArgumentError, ["block_dim", "'64'", "'suggested'"]),
    "static_block_dim": ({"static_block_dim": 1}, ArgumentTypeError, ["static_block_dim", "1", "bool"]),
    "function": ({"function": "TRSM"}, InvalidArgumentError, ["function", "'TRSM'", "'MM'"]),
    "Warp": ({"execution": "Warp"}, InvalidArgumentError, ["execution", "'Warp'", "'Block'"]),
    "Thread": ({"execution": "Thread"}, UnsupportedError, ["execution", "'Thread'", "execution='Block'"]),
    "both layouts": (
        {"arrangement": (COL,) * 3, "transpose_mode": ("transposed",) * 2},
        InvalidArgumentError,
        ["arrangement and transpose_mode", "both", "one of"],
    ),
}


@pytest.mark.parametrize("case", MATMUL_REFUSALS)
def test_matmul_refusal_names_argument_value_and_what_is_allowed(case):
    changes, kind, expected = MATMUL_REFUSALS[case]
    with pytest.raises(kind) as error:
        matmul(**changes)
    assert [w for w in expected if w not in words(error)] == [], words(error)


@pytest.mark.parametrize(
    ("given_arguments", "named"),
    [
        ({}, "size, precision, data_type, arrangement (or transpose_mode)"),
        ({"size": (1, 1, 1), "arrangement": (COL,) * 3}, "precision, data_type"),
        ({"precision": "float32", "data_type": "real", "transpose_mode": ("transposed",) * 2}, "size"),
    ],
)
def test_everything_missing_is_named_at_once(given_arguments, named):
    with pytest.raises(InvalidArgumentError) as error:
        nd.Matmul(**given_arguments)
    assert words(error) == f"Matmul: missing {named}; these have no default"


def test_r023_fft_names_everything_missing_before_any_trait():
    with pytest.raises(InvalidArgumentError, match="missing precision, fft_type, execution, direction"):
        nd.FFT(128)
    with pytest.raises(InvalidArgumentError, match="missing direction;"):
        nd.FFT(128, "float32", "c2c", "Block", sm=90)


UNKNOWN_SM = (999, 0, -90, 69, 130, 91, (9, 9), (9, 0, "b"), "sm_999", "sm_90x", "sm_80a")


@pytest.mark.parametrize("sm", UNKNOWN_SM, ids=str)
@pytest.mark.parametrize("make", [matmul, fft])
def test_r055_an_unknown_target_is_a_value_error_that_lists_the_known(sm, make):
    with pytest.raises(ValueError, match="sm: ") as error:
        make(sm=sm)
    assert isinstance(error.value, InvalidArgumentError)
    assert repr(sm) in words(error)
    for known in ("75", "80", "90", "100", "121"):
        assert known in words(error)


@pytest.mark.parametrize(
    "sm",
    [9.0, True, "ninety", "", [9, 0], (9,), ("9", None), ("9", "0"), "²", "9" * 5000],
    ids=lambda x: repr(x)[:20],
)
def test_what_is_no_target_is_an_error_of_the_family(sm):
    with pytest.raises(NvmathDeviceError, match="sm: "):
        matmul(sm=sm)


@pytest.mark.parametrize("sm", [70, 72, 75, 80, 86, 87, 89, 90, 100, 103, 110, 120, 121])
def test_r055_every_known_target_is_accepted(sm):
    assert matmul(sm=sm).sm == (sm // 10, sm % 10, "")


WITHOUT_LIBMATHDX = """
from cuda import pathfinder
load = pathfinder.load_nvidia_dynamic_lib
def load_some(name):
    if name == "mathdx":
        raise pathfinder.DynamicLibNotFoundError("not here")
    return load(name)
pathfinder.load_nvidia_dynamic_lib = load_some
import nvmath_device as nd
from nvmath_device.errors import MissingDependencyError
mm = nd.Matmul((8, 4, 6), "float32", "real", arrangement=("row_major",) * 3, sm=90)
fft = nd.FFT(16, "float32", "c2c", "Block", direction="forward", sm=90)
print(mm.a_size, fft.input_length, mm.get_shared_storage_size())
for ask in (lambda: fft.traits, lambda: fft.block_dim, lambda: mm.block_dim):
    try:
        ask()
    except MissingDependencyError as error:
        print(str(error).partition("\\n")[0])
"""


def test_r025_without_libmathdx_descriptors_work_and_traits_name_what_is_missing(tmp_path):
    root = str(Path(nd.__file__).resolve().parent.parent)
    environment = {**os.environ, "PYTHONPATH": root, "NVMATH_DEVICE_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", WITHOUT_LIBMATHDX], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    first, *errors = done.stdout.splitlines()
    assert first == "48 16 416"  # A 8 x 6, B 6 x 4, C 8 x 4: 192 + 96 + 128 bytes
    assert len(errors) == 3
    for error in errors:
        assert error.startswith("libmathdx cannot be loaded. Run: pip install ")
        assert "nvidia-libmathdx-cu" in error


# -- what fits -----------------------------------------------------------------------------------------------


def test_r028_the_largest_fp64_cube_of_sm_90_is_98():
    assert matmul(size=(98, 98, 98), precision="float64", sm=90).get_shared_storage_size() <= 232_448
    with pytest.raises(UnsupportedError) as error:
        matmul(size=(99, 99, 99), precision="float64", sm=90)
    for part in (
        "99 x 99 x 99",
        "235,224",
        "78,408 for A",
        "78,408 for B",
        "78,408 for C",
        "sm_90",
        "232,448",
    ):
        assert part in words(error)


def test_r028_a_tile_of_no_target_in_particular_is_refused_when_one_is_chosen():
    mm = matmul(size=(99, 99, 99), precision="float64", block_size=128)
    with pytest.raises(UnsupportedError, match="235,224"):
        mm.resolved(nd.ComputeCapability(9, 0)).recipe("SMEM")


@pytest.mark.parametrize(
    ("sm", "fits", "too_big"),
    # Three square fp32 matrices: 12 n^2 bytes in 64, 99, 163 and 227 KiB.
    [
        (75, 73, 74),
        (86, 91, 92),
        (89, 91, 92),
        (120, 91, 92),
        (80, 117, 118),
        (90, 139, 140),
        (100, 139, 140),
    ],
)
def test_r028_each_target_has_its_own_limit(sm, fits, too_big):
    assert matmul(size=(fits,) * 3, sm=sm)
    with pytest.raises(UnsupportedError, match=f"needs {12 * too_big**2:,} bytes"):
        matmul(size=(too_big,) * 3, sm=sm)


def test_padding_counts():
    assert matmul(size=(98, 98, 98), precision="float64", leading_dimension=(98, 98, 98), sm=90)
    with pytest.raises(UnsupportedError, match="232,848"):
        matmul(size=(98, 98, 98), precision="float64", leading_dimension=(98, 98, 101), sm=90)


@pytest.mark.parametrize("size", [(256, 256, 256), (10**6, 1, 1), (10**40, 10**40, 1)])
def test_r102_a_hopeless_tile_is_refused_in_words(size):
    with pytest.raises(UnsupportedError) as error:
        matmul(size=size, precision="float64", sm=90)
    assert "smaller tile" in words(error)


# -- element types -------------------------------------------------------------------------------------------

# (A, B, C, real, complex): what libmathdx 0.4.2 generates code for. None: refused; a text: refused, and the
# reason holds this text.
FLOAT_C = "must be one of float16, float32, float64, int32, int64, uint32, uint64"
RULE = [
    ("float16", "float16", "float16", True, True),
    ("float16", "float16", "float32", True, True),
    ("float16", "float16", "float64", True, True),
    ("bfloat16", "bfloat16", "float32", True, True),
    ("bfloat16", "bfloat16", "bfloat16", FLOAT_C, FLOAT_C),
    ("float16", "bfloat16", "float32", True, True),
    ("tfloat32", "tfloat32", "float32", True, True),
    ("tfloat32", "tfloat32", "tfloat32", FLOAT_C, FLOAT_C),
    ("float32", "float32", "float32", True, True),
    ("float32", "float32", "float16", True, True),
    ("float32", "float16", "float64", True, True),
    ("float64", "float64", "float64", True, True),
    ("float64", "float32", "float64", True, True),
    ("float8_e4m3fn", "float8_e4m3fn", "float32", True, True),
    ("float8_e4m3fn", "float8_e5m2", "float16", True, True),
    ("float8_e5m2", "float8_e5m2", "float8_e5m2", FLOAT_C, FLOAT_C),
    ("float8_e4m3fn", "float8_e4m3fn", "bfloat16", FLOAT_C, FLOAT_C),
    ("int8", "int8", "int32", True, True),
    ("int8", "int8", "int64", True, True),
    ("int8", "int8", "int16", FLOAT_C, FLOAT_C),
    ("int8", "int8", "int8", FLOAT_C, FLOAT_C),
    ("uint8", "uint8", "uint32", True, "complex integers are signed"),
    ("uint8", "uint8", "uint64", True, "complex integers are signed"),
    ("uint8", "uint8", "int32", True, "complex integers are signed"),
    ("uint8", "int8", "int32", True, "complex integers are signed"),
    ("int8", "int8", "uint32", "A (int8) is signed, so C must be signed", "A (int8) is signed"),
    ("uint8", "int8", "uint32", "B (int8) is signed, so C must be signed", "B (int8) is signed"),
    ("int16", "int16", "int64", True, True),
    ("int16", "int16", "int32", "at least four times as wide as A (int16)", "four times"),
    ("int8", "int16", "int32", "at least four times as wide as B (int16)", "four times"),
    ("int8", "int16", "int64", True, True),
    ("uint16", "uint16", "uint64", True, "complex integers are signed"),
    ("uint16", "uint16", "uint32", "at least four times as wide as A (uint16)", "four times"),
    ("int32", "int32", "int32", "four times as wide", "four times as wide"),
    ("int32", "int32", "int64", "four times as wide", "four times as wide"),
    ("int64", "int64", "int64", "four times as wide", "four times as wide"),
    ("int8", "int8", "float32", "do not mix", "do not mix"),
    ("float16", "float16", "int32", "do not mix", "do not mix"),
    ("float16", "int8", "float32", "do not mix", "do not mix"),
    ("int8", "float32", "int32", "do not mix", "do not mix"),
]


ON_SM_90 = nd.BlockExecution(block_dim=nd.Dim3(64), sm=nd.ComputeCapability(9, 0))


@pytest.mark.parametrize(("a", "b", "c", "real", "is_complex"), RULE, ids=lambda x: x if isinstance(x, str) else "")
def test_r002_the_rule_of_element_types(a, b, c, real, is_complex):
    types = [nd.element_type(t) for t in (a, b, c)]
    for data_type, expected in (("real", real), ("complex", is_complex)):
        reason = refuse_precision(*types, data_type=data_type)
        descriptor = gemm(precision=(a, b, c), data_type=data_type)  # the host level may have what the device has not
        assert descriptor.precision == tuple(types)
        if expected is True:
            assert reason is None
            assert matmul(precision=(a, b, c), data_type=data_type).descriptor == descriptor
            continue
        assert expected in reason
        ways = {
            matmul: {"precision": (a, b, c), "data_type": data_type},
            nd.Matmul.from_descriptor: {"descriptor": descriptor},
            gemm_recipe: {"descriptor": descriptor, "execution": ON_SM_90, "api": "SMEM"},
        }
        for make, arguments in ways.items():
            with pytest.raises(InvalidArgumentError) as error:
                make(**arguments)
            assert words(error) == f"precision: ({a}, {b}, {c}) is not offered for {data_type} matrices: {reason}"


@pytest.mark.parametrize("precision", ["bfloat16", "tfloat32", "float8_e4m3fn", "int8", np.int16])
def test_r002_one_type_for_all_is_refused_where_c_cannot_have_it(precision):
    with pytest.raises(InvalidArgumentError, match=r"C \(the accumulator\) must be one of float16, float32, float64"):
        matmul(precision=precision, sm=90)


def test_r009_conjugation_needs_column_major_and_says_so():
    """Refused when the target is known at the latest, in words, not by libmathdx."""
    d = gemm(data_type="complex", arrangement=(COL, COL, ROW), transpose_mode=("conj_transposed", "non_transposed"))
    with pytest.raises(UnsupportedError, match=r"'conj_transposed' needs column-major A, B and C.*row_major"):
        gemm_recipe(d, ON_SM_90, api="SMEM")


# -- nothing but the family ----------------------------------------------------------------------------------

anything = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 2000),
    st.integers(),
    st.floats(),
    st.text(max_size=4),
    st.binary(max_size=3),
    st.sampled_from(
        [
            "suggested",
            "real",
            "complex",
            "float32",
            "col_major",
            "sm_90a",
            np.float32,
            np.int64(7),
            np.bool_(True),
            np.float32(2),
            np.arange(3),
            np.eye(3),
            nd.int8,
            object(),
            complex,
            1j,
            {},
            {1: 2},
            {4, 5, 6},
            int,
            range(1, 4),
        ]
    ),
)
few = st.one_of(anything, st.lists(anything, max_size=4), st.lists(anything, max_size=4).map(tuple))


@given(
    st.fixed_dictionaries(
        {},
        optional=dict.fromkeys(
            (
                "size",
                "precision",
                "data_type",
                "sm",
                "block_size",
                "block_dim",
                "leading_dimension",
                "transpose_mode",
                "arrangement",
                "alignment",
                "function",
                "static_block_dim",
                "execution",
            ),
            few,
        ),
    )
)
def test_matmul_raises_nothing_but_errors_of_the_family(changes):
    base = {"size": (8, 4, 16), "precision": "float32", "data_type": "real", "arrangement": (COL, ROW, COL)}
    if "transpose_mode" in changes:
        del base["arrangement"]
    try:
        mm = nd.Matmul(**{**base, **changes})
    except NvmathDeviceError:
        return
    assert all(type(n) is int and n >= 1 for n in mm.size)
    assert pickle.loads(pickle.dumps(mm)) == mm


@given(
    st.fixed_dictionaries(
        {},
        optional=dict.fromkeys(
            (
                "size",
                "precision",
                "fft_type",
                "execution",
                "direction",
                "ffts_per_block",
                "elements_per_thread",
                "real_fft_options",
                "transposition",
                "thread_layout",
            ),
            few,
        ),
    )
)
def test_fft_raises_nothing_but_errors_of_the_family(changes):
    try:
        f = fft(**changes)
    except NvmathDeviceError:
        return
    assert pickle.loads(pickle.dumps(f)) == f


@given(few)
def test_a_target_raises_nothing_but_errors_of_the_family(sm):
    try:
        mm = matmul(sm=sm)
    except NvmathDeviceError:
        return
    assert mm.block_execution.sm is None if sm is None else mm.sm.major >= 7
