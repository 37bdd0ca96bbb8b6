# SPDX-License-Identifier: Apache-2.0
"""GemmDescriptor, Matmul and FFT as values: what they accept, what equals what, what they refuse and in which words.

FftDescriptor has a file of its own. Expected numbers are written down by hand or counted out element by
element; none comes from the code under test.
"""

from __future__ import annotations

import copy
import itertools
import os
import pickle
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nvmath_device as nd
from nvmath_device.descriptors import GemmDescriptor, MatrixLayout, refuse_precision
from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError, NvmathDeviceError, UnsupportedError

COL, ROW = "col_major", "row_major"


def gemm(**changes):
    """A plain fp32 8 x 4 x 16 descriptor with some fields changed."""
    return GemmDescriptor(**{"size": (8, 4, 16), "precision": "float32", **changes})


def matmul(**changes):
    """The same as a Matmul, all column-major."""
    base = {"size": (8, 4, 16), "precision": "float32", "data_type": "real"}
    if "transpose_mode" not in changes:
        base["arrangement"] = (COL, COL, COL)
    return nd.Matmul(**{**base, **changes})


def fft(**changes):
    base = {"size": 128, "precision": "float32", "fft_type": "c2c", "execution": "Block", "direction": "forward"}
    return nd.FFT(**{**base, **changes})


def words(error):
    return str(error.value)


# -- values --------------------------------------------------------------------------------------------------

SAME = {
    "size as a list": (gemm, {}, {"size": [8, 4, 16]}),
    "size of NumPy integers": (gemm, {}, {"size": np.array([8, 4, 16], np.int32)}),
    "size from a generator": (gemm, {}, {"size": (n for n in (8, 4, 16))}),
    "precision three times": (gemm, {}, {"precision": ("float32", "float32", "float32")}),
    "precision as a NumPy type": (gemm, {}, {"precision": np.float32}),
    "precision as a dtype": (gemm, {}, {"precision": np.dtype("float32")}),
    "precision as ours": (gemm, {}, {"precision": [nd.float32, "fp32", np.float32]}),
    "bfloat16": (
        gemm,
        {"precision": ("bf16", "bfloat16", "fp32")},
        {"precision": (ml_dtypes.bfloat16, np.dtype(ml_dtypes.bfloat16), nd.float32)},
    ),
    "fp8": (
        gemm,
        {"precision": ("e4m3", "fp8_e5m2", "half")},
        {"precision": (ml_dtypes.float8_e4m3fn, nd.float8_e5m2, np.float16)},
    ),
    "tight leading dimension": (gemm, {}, {"leading_dimension": (8, 16, 8)}),
    "leading dimension as a list": (
        gemm, {"leading_dimension": (9, 17, 8)}, {"leading_dimension": [np.int64(9), 17, 8]},
    ),
    "natural alignment": (gemm, {"data_type": "complex"}, {"data_type": "complex", "alignment": [8, 8, 8]}),
    "default arrangement": (gemm, {}, {"arrangement": [COL, COL, COL]}),
    "block as a number": (matmul, {"block_size": 96}, {"block_dim": (96,)}),
    "block as (x, y, z)": (matmul, {"block_size": np.int64(96)}, {"block_dim": nd.Dim3(96, 1, 1)}),
    "block as a list": (matmul, {"block_dim": (16, 8)}, {"block_dim": [np.int8(16), 8, 1]}),
    "suggested block": (matmul, {}, {"block_size": "suggested"}),
    "suggested block_dim": (matmul, {}, {"block_dim": "suggested"}),
    "sm as a tuple": (matmul, {"sm": 90}, {"sm": (9, 0)}),
    "sm as text": (matmul, {"sm": 900}, {"sm": "sm_90"}),
    "sm as ours": (matmul, {"sm": "9.0"}, {"sm": nd.ComputeCapability(9, 0)}),
    "sm of one architecture": (matmul, {"sm": "sm_90a"}, {"sm": (9, 0, "a")}),
    "FFT precision": (fft, {}, {"precision": np.float32}),
    "FFT size": (fft, {}, {"size": np.int32(128)}),
    "FFT knobs": (fft, {}, {"elements_per_thread": "suggested", "ffts_per_block": 1}),
}  # fmt: skip


@pytest.mark.parametrize("case", SAME)
def test_the_same_spelled_differently_is_equal(case):
    make, one, other = SAME[case]
    a, b = make(**one), make(**other)
    assert a == b
    assert hash(a) == hash(b)
    assert repr(a) == repr(b)
    assert len({a, b}) == 1


DIFFERENT = {
    "another size": (gemm, {"size": (8, 4, 17)}),
    "another precision": (gemm, {"precision": "float64"}),
    "tfloat32 is not float32": (gemm, {"precision": ("tf32", "tf32", "float32")}),
    "complex": (gemm, {"data_type": "complex"}),
    "another arrangement": (gemm, {"arrangement": (ROW, COL, COL), "leading_dimension": (16, 16, 8)}),
    "padded": (gemm, {"leading_dimension": (9, 16, 8)}),
    "suggested padding": (gemm, {"leading_dimension": "suggested"}),
    "aligned": (gemm, {"alignment": (16, 4, 4)}),
    "transposed": (gemm, {"transpose_mode": ("transposed", "non_transposed")}),
    "another block": (matmul, {"block_size": 64}),
    "same number of threads, another shape": (matmul, {"block_dim": (8, 8)}),
    "static block": (matmul, {"static_block_dim": True}),
    "a target": (matmul, {"sm": 90}),
    "another FFT": (fft, {"direction": "inverse"}),
    "FFTs a block": (fft, {"ffts_per_block": 2}),
    "thread layout": (fft, {"thread_layout": "transposed"}),
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_what_differs_is_not_equal(case):
    make, changes = DIFFERENT[case]
    assert make(**changes) != make()
    assert repr(make(**changes)) != repr(make())


def test_no_two_of_these_are_equal():
    made = [make(**changes) for make, changes in DIFFERENT.values()] + [gemm(), matmul(), fft()]
    assert len(set(made)) == len(made)
    assert len({repr(x) for x in made}) == len(made)


@pytest.mark.parametrize("make", [gemm, matmul, fft])
def test_other_types_are_not_equal(make):
    assert make() != "x"
    assert make() != None  # noqa: E711
    assert make() != make().descriptor if make is not gemm else True


EXAMPLES = [gemm(), gemm(leading_dimension="suggested"), matmul(block_dim=(8, 4), sm=90, static_block_dim=True),
            matmul(), fft(), fft(size=16, execution="Thread"), fft(fft_type="r2c", direction=None)]  # fmt: skip


@pytest.mark.parametrize("value", EXAMPLES, ids=repr)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickled_and_copied_values_are_equal(value, protocol):
    for twin in (pickle.loads(pickle.dumps(value, protocol)), copy.copy(value), copy.deepcopy(value)):
        assert twin == value
        assert hash(twin) == hash(value)
        assert type(twin) is type(value)


@pytest.mark.parametrize("value", EXAMPLES, ids=repr)
def test_values_cannot_be_changed(value):
    for name in ("size", "descriptor", "sm", "anything"):
        with pytest.raises(AttributeError):
            setattr(value, name, 1)


def test_printed_values_say_what_they_are():
    assert repr(matmul(block_size=64, sm=90, precision=("fp16", "fp16", "fp32"))) == (
        "Matmul(8x4x16, float16, float16, float32, real, arrangement=('col_major', 'col_major', 'col_major'), "
        "block_dim=(64, 1, 1), sm=sm_90)"
    )
    assert repr(matmul(leading_dimension="suggested", alignment=(16, 16, 4), static_block_dim=True)) == (
        "Matmul(8x4x16, float32, real, arrangement=('col_major', 'col_major', 'col_major'), "
        "leading_dimension='suggested', alignment=(16, 16, 4), block_dim='suggested', static_block_dim=True)"
    )
    assert repr(fft(ffts_per_block=4)) == (
        "FFT(128, float32, c2c, forward, Block, ffts_per_block=4, elements_per_thread='suggested')"
    )


def test_r029_bytes_of_shared_memory_are_told_before_anything_is_compiled():
    """8x16 float16 A, 16x4 float16 B, 8x4 float32 C: 256 + 128 + 128 bytes."""
    mm = matmul(precision=("fp16", "fp16", "fp32"))
    assert (mm.a_size, mm.b_size, mm.c_size) == (128, 64, 32)
    assert (mm.a_dim, mm.b_dim, mm.c_dim) == ((8, 16), (16, 4), (8, 4))
    assert mm.get_shared_storage_size() == 512
    assert mm.get_shared_storage_size_ab() == 384
    assert mm.get_shared_storage_size(9, 17, 11) == 288 + 144 + 176  # 16 columns of 9, 4 of 17 (136, to 16: 144), 4 of 11
    assert mm.get_shared_storage_size_ab(*mm.layouts[:2]) == 384
    with pytest.raises(InvalidArgumentError, match="leading_dimension: lda=7 is less than the 8 rows"):
        mm.get_shared_storage_size(7, 16, 8)
    with pytest.raises(InvalidArgumentError, match="give no argument, 3 leading dimensions or 3 layouts; got 1"):
        mm.get_shared_storage_size(8)


def test_r031_odd_parts_of_one_buffer_start_aligned():
    """An FFT's scratch of an odd size first, then a complex128 matrix, then halves."""
    calc = nd.SharedStorageCalc()
    assert calc.add(1, 1056 + 5) == 0
    assert calc.add(16, 16, 9) == 1072
    assert calc.add(2, 2, MatrixLayout(3, 3, COL, 5)) == 1216
    assert calc.get() == 1246
    for bad in ((3, 8), (0, 8), (16, 0), (16,), (16, 1, 2, 3), (16, 2.5)):
        with pytest.raises(NvmathDeviceError):
            calc.add(*bad)
    assert calc.get() == 1246


# -- layouts -------------------------------------------------------------------------------------------------

orders = st.sampled_from([COL, ROW])
modes = st.sampled_from(["non_transposed", "transposed", "conj_transposed"])
# Bytes of one real element; complex ones have two.
BYTES = {"float8_e4m3fn": 1, "bfloat16": 2, "float16": 2, "tfloat32": 4, "float32": 4, "float64": 8}


@st.composite
def descriptions(draw):
    """Arguments of a legal GemmDescriptor, with what follows from them counted out."""
    m, n, k = size = draw(st.tuples(*[st.integers(1, 12)] * 3))
    arrangement = draw(st.tuples(orders, orders, orders))
    mode = draw(st.tuples(modes, modes))
    shapes = [(m, k), (k, n), (m, n)]
    shapes[:2] = [s if t == "non_transposed" else s[::-1] for s, t in zip(shapes, mode)]
    pads = draw(st.tuples(*[st.integers(0, 3)] * 3))
    lds = [s[0 if o == COL else 1] + pad for s, o, pad in zip(shapes, arrangement, pads)]
    precision = [draw(st.sampled_from(sorted(BYTES))) for _ in "ab"]
    precision.append(draw(st.sampled_from(["float16", "float32", "float64"])))
    kind = draw(st.sampled_from(["real", "complex"]))
    itemsizes = [BYTES[t] * (2 if kind == "complex" else 1) for t in precision]
    alignment = [draw(st.sampled_from([a for a in (1, 2, 4, 8, 16) if a >= i])) for i in itemsizes]
    given_arguments = {
        "size": size, "precision": precision, "data_type": kind, "arrangement": arrangement,
        "transpose_mode": mode, "leading_dimension": lds, "alignment": alignment,
    }  # fmt: skip
    return given_arguments, shapes, lds, itemsizes


@given(descriptions())
def test_layouts_are_where_the_elements_are(description):
    arguments, shapes, lds, itemsizes = description
    d = GemmDescriptor(**arguments)
    assert list(d.dims) == shapes
    assert tuple(d.alignment) == tuple(arguments["alignment"])
    parts = zip(d.layouts, shapes, arguments["arrangement"], lds, itemsizes, d.storage_bytes, strict=True)
    for layout, (rows, cols), order, ld, itemsize, size_in_bytes in parts:
        # One element after the other, each column (row) of the matrix starting ld behind the one before.
        offset = {
            (r, c): (c * ld + r if order == COL else r * ld + c)
            for r, c in itertools.product(range(rows), range(cols))
        }
        assert len(set(offset.values())) == rows * cols
        assert layout.cosize == max(offset.values()) + 1
        assert {(r, c): r * layout.strides[0] + c * layout.strides[1] for r, c in offset} == offset
        assert layout.size >= layout.cosize
        assert layout.size % ld == 0
        assert layout.size - layout.cosize < ld
        assert size_in_bytes == layout.size * itemsize
        assert layout.is_tight == (ld == (rows if order == COL else cols))


@given(descriptions(), st.integers(0, 2))
def test_a_leading_dimension_below_the_matrix_is_refused(description, which):
    arguments, shapes, lds, _ = description
    order = arguments["arrangement"][which]
    least = shapes[which][0 if order == COL else 1]
    lds[which] = least - 1
    with pytest.raises(InvalidArgumentError) as error:
        GemmDescriptor(**arguments)
    if least > 1:
        assert f"ld{'abc'[which]}={least - 1} is less than the {least} " in words(error)
        assert f"at least {least}" in words(error)


@given(descriptions())
def test_equal_input_gives_equal_objects(description):
    arguments, *_ = description
    other = {
        **arguments,
        "size": [np.int16(x) for x in arguments["size"]],
        "precision": [nd.element_type(t) for t in arguments["precision"]],
        "arrangement": list(arguments["arrangement"]),
        "leading_dimension": np.array(arguments["leading_dimension"]),
    }
    d, twin = GemmDescriptor(**arguments), GemmDescriptor(**other)
    assert d == twin
    assert hash(d) == hash(twin)
    assert pickle.loads(pickle.dumps(d)) == d.replace() == d
    assert all(type(n) is int for n in (*d.size, *d.leading_dimension, *d.alignment))


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
        {"precision": "float64", "alignment": (4, 8, 8)}, ["alignment", "4 bytes for A", "8 bytes", "8, 16"],
    ),
    "alignment of a complex element": (
        {"data_type": "complex", "alignment": (8, 4, 8)}, ["alignment", "4 bytes for B", "allowed are 8, 16"],
    ),
    "no power of two": ({"alignment": (4, 4, 12)}, ["alignment", "12 bytes for C", "4, 8, 16"]),
    "too much alignment": ({"alignment": (32, 4, 4)}, ["alignment", "32 bytes for A", "4, 8, 16"]),
    "one alignment": ({"alignment": 16}, ["alignment", "16", "3 integers", "bytes for A, B, C"]),
}  # fmt: skip


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
    "too many threads": ({"block_size": 1025}, InvalidArgumentError, ["block_size", "1025 threads", "1 to 1024"]),
    "too many in two dimensions": (
        {"block_dim": (32, 33)}, InvalidArgumentError, ["block_dim", "(32, 33, 1)", "1056 threads", "1 to 1024"],
    ),
    "a zero dimension": ({"block_dim": (32, 0, 1)}, InvalidArgumentError, ["block_dim", "0", "at least 1"]),
    "four dimensions": ({"block_dim": (1, 2, 3, 4)}, InvalidArgumentError, ["block_dim", "4 numbers", "1 to 3"]),
    "no dimension": ({"block_dim": ()}, InvalidArgumentError, ["block_dim", "0 numbers", "1 to 3"]),
    "both": (
        {"block_size": 64, "block_dim": (64,)}, InvalidArgumentError, ["block_size and block_dim", "both", "one of"],
    ),
    "a float block": ({"block_size": 64.0}, ArgumentTypeError, ["block_size", "64.0", "float"]),
    "a bool block": ({"block_size": True}, ArgumentTypeError, ["block_size", "True", "bool"]),
    "a float in block_dim": ({"block_dim": (8, 8.0)}, ArgumentTypeError, ["block_dim", "8.0", "float"]),
    "block_size as text": ({"block_size": "auto"}, InvalidArgumentError, ["block_size", "'auto'", "'suggested'"]),
    "block_dim as text": ({"block_dim": "64"}, InvalidArgumentError, ["block_dim", "'64'", "'suggested'"]),
    "static_block_dim": ({"static_block_dim": 1}, ArgumentTypeError, ["static_block_dim", "1", "bool"]),
    "function": ({"function": "TRSM"}, InvalidArgumentError, ["function", "'TRSM'", "'MM'"]),
    "Warp": ({"execution": "Warp"}, InvalidArgumentError, ["execution", "'Warp'", "'Block'"]),
    "Thread": ({"execution": "Thread"}, UnsupportedError, ["execution", "'Thread'", "execution='Block'"]),
    "both layouts": (
        {"arrangement": (COL,) * 3, "transpose_mode": ("transposed",) * 2},
        InvalidArgumentError, ["arrangement and transpose_mode", "both", "one of"],
    ),
}  # fmt: skip


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


@pytest.mark.parametrize("sm", [9.0, True, "ninety", "", [9, 0], (9,), ("9", None), ("9", "0"), "²", "9" * 5000], ids=lambda x: repr(x)[:20])
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
    for part in ("99 x 99 x 99", "235,224", "78,408 for A", "78,408 for B", "78,408 for C", "sm_90", "232,448"):
        assert part in words(error)


def test_r028_a_tile_of_no_target_in_particular_is_refused_when_one_is_chosen():
    mm = matmul(size=(99, 99, 99), precision="float64", block_size=128)
    with pytest.raises(UnsupportedError, match="235,224"):
        mm.resolved(nd.ComputeCapability(9, 0)).recipe("SMEM")


@pytest.mark.parametrize(
    ("sm", "fits", "too_big"),
    # Three square fp32 matrices: 12 n^2 bytes in 64, 99, 163 and 227 KiB.
    [(75, 73, 74), (86, 91, 92), (89, 91, 92), (120, 91, 92), (80, 117, 118), (90, 139, 140), (100, 139, 140)],
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


@pytest.mark.parametrize(("a", "b", "c", "real", "is_complex"), RULE, ids=lambda x: x if isinstance(x, str) else "")
def test_r002_the_rule_of_element_types(a, b, c, real, is_complex):
    types = [nd.element_type(t) for t in (a, b, c)]
    for data_type, expected in (("real", real), ("complex", is_complex)):
        reason = refuse_precision(*types, data_type=data_type)
        if expected is True:
            assert reason is None
            assert gemm(precision=(a, b, c), data_type=data_type).precision == tuple(types)
            continue
        assert expected in reason
        with pytest.raises(InvalidArgumentError) as error:
            gemm(precision=(a, b, c), data_type=data_type)
        assert words(error) == f"precision: ({a}, {b}, {c}) is not offered for {data_type} matrices: {reason}"


@pytest.mark.parametrize("precision", ["bfloat16", "tfloat32", "float8_e4m3fn", "int8", np.int16])
def test_r002_one_type_for_all_is_refused_where_c_cannot_have_it(precision):
    with pytest.raises(InvalidArgumentError, match=r"C \(the accumulator\) must be one of float16, float32, float64"):
        matmul(precision=precision, sm=90)


def test_r009_conjugation_needs_column_major_and_says_so():
    """Refused when the target is known at the latest, in words, not by libmathdx."""
    d = gemm(data_type="complex", arrangement=(COL, COL, ROW), transpose_mode=("conj_transposed", "non_transposed"))
    from nvmath_device.lto.recipes import gemm_recipe

    with pytest.raises(UnsupportedError, match=r"'conj_transposed' needs column-major A, B and C.*row_major"):
        gemm_recipe(d, block_dim=nd.Dim3(64), static_block_dim=False, sm=nd.ComputeCapability(9, 0), api="SMEM")


# -- nothing but the family ----------------------------------------------------------------------------------

anything = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 2000), st.integers(), st.floats(), st.text(max_size=4), st.binary(max_size=3),
    st.sampled_from(["suggested", "real", "complex", "float32", "col_major", "sm_90a", np.float32, np.int64(7), np.bool_(True),
                     np.float32(2), np.arange(3), np.eye(3), nd.int8, object(), complex, 1j, {}, {1: 2}, {4, 5, 6}, int, range(1, 4)]),
)  # fmt: skip
few = st.one_of(anything, st.lists(anything, max_size=4), st.lists(anything, max_size=4).map(tuple))


@given(st.fixed_dictionaries({}, optional={name: few for name in (
    "size", "precision", "data_type", "sm", "block_size", "block_dim", "leading_dimension", "transpose_mode",
    "arrangement", "alignment", "function", "static_block_dim", "execution")}))  # fmt: skip
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


@given(st.fixed_dictionaries({}, optional={name: few for name in (
    "size", "precision", "fft_type", "execution", "direction", "ffts_per_block", "elements_per_thread",
    "real_fft_options", "transposition", "thread_layout")}))  # fmt: skip
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
