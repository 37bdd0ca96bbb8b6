# SPDX-License-Identifier: Apache-2.0
"""GemmDescriptor, Matmul and FFT as values: what equals what, and the layouts that follow.

FftDescriptor has a file of its own. Expected numbers are written down by hand or counted out element by
element; none comes from the code under test.
"""

from __future__ import annotations

import copy
import itertools
import pickle

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nvmath_device as nd
from nvmath_device.descriptors import GemmDescriptor, MatrixLayout
from nvmath_device.errors import InvalidArgumentError, NvmathDeviceError
from tests.descriptor_makers import (
    COL,
    ROW,
    fft,
    gemm,
    matmul,
    words,
)

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
        gemm,
        {"leading_dimension": (9, 17, 8)},
        {"leading_dimension": [np.int64(9), 17, 8]},
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
}


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


EXAMPLES = [
    gemm(),
    gemm(leading_dimension="suggested"),
    matmul(block_dim=(8, 4), sm=90, static_block_dim=True),
    matmul(),
    fft(),
    fft(size=16, execution="Thread"),
    fft(fft_type="r2c", direction=None),
]


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
        "Matmul(8x4x16, float16, float16, float32, real, arrangement=('col_major', 'col_major', "
        "'col_major'), "
        "block_dim=(64, 1, 1), sm=sm_90)"
    )
    assert repr(matmul(leading_dimension="suggested", alignment=(16, 16, 4), static_block_dim=True)) == (
        "Matmul(8x4x16, float32, real, arrangement=('col_major', 'col_major', 'col_major'), "
        "leading_dimension='suggested', alignment=(16, 16, 4), block_dim='suggested', static_block_dim=True)"
    )
    conjugate = gemm(data_type="complex", transpose_mode=("conj_transposed", "non_transposed"))
    assert repr(nd.Matmul.from_descriptor(conjugate.replace(arrangement=(COL, ROW, COL), leading_dimension=None))) == (
        "Matmul(8x4x16, float32, complex, transpose_mode=('conj_transposed', 'non_transposed'), "
        "arrangement=('col_major', 'row_major', 'col_major'), block_dim='suggested')"
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
    assert (
        mm.get_shared_storage_size(9, 17, 11) == 288 + 144 + 176
    )  # 16 columns of 9, 4 of 17 (136, to 16: 144), 4 of 11
    assert mm.get_shared_storage_size_ab(*mm.layouts[:2]) == 384
    assert mm.get_shared_storage_size_ab(9, 17) == 288 + 136
    tall = nd.Matmul((64, 16, 8), "fp32", "real", arrangement=("row_major", "row_major", "col_major"))
    assert tall.get_shared_storage_size_ab(8, 16) == 4 * (64 * 8 + 8 * 16)  # C's 64 rows play no part
    with pytest.raises(InvalidArgumentError, match="leading_dimension: lda=7 is less than the 8 rows"):
        mm.get_shared_storage_size(7, 16, 8)
    with pytest.raises(InvalidArgumentError, match="give no argument, 3 leading dimensions or 3 layouts; got 1"):
        mm.get_shared_storage_size(8)


def test_knobs_are_asked_by_name():
    """An empty list would say that there is no implementation."""
    with pytest.raises(InvalidArgumentError, match="knobs: none given; give one or more of 'block_dim'"):
        matmul().valid()
    with pytest.raises(InvalidArgumentError, match=r"knobs: none given; .* 'elements_per_thread', 'ffts_per_block'"):
        fft(sm=90).valid()
    with pytest.raises(InvalidArgumentError, match="knobs: 'block_dim' is not allowed"):
        fft(sm=90).valid("block_dim")


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
BYTES = {
    "float8_e4m3fn": 1,
    "int8": 1,
    "bfloat16": 2,
    "float16": 2,
    "tfloat32": 4,
    "float32": 4,
    "int32": 4,
    "float64": 8,
}


@st.composite
def descriptions(draw):
    """Arguments of a well-formed GemmDescriptor, with what follows from them counted out."""
    m, n, k = size = draw(st.tuples(*[st.integers(1, 12)] * 3))
    arrangement = draw(st.tuples(orders, orders, orders))
    mode = draw(st.tuples(modes, modes))
    shapes = [(m, k), (k, n), (m, n)]
    shapes[:2] = [s if t == "non_transposed" else s[::-1] for s, t in zip(shapes, mode, strict=False)]
    pads = draw(st.tuples(*[st.integers(0, 3)] * 3))
    lds = [s[0 if o == COL else 1] + pad for s, o, pad in zip(shapes, arrangement, pads, strict=False)]
    precision = [draw(st.sampled_from(sorted(BYTES))) for _ in "abc"]
    kind = draw(st.sampled_from(["real", "complex"]))
    itemsizes = [BYTES[t] * (2 if kind == "complex" else 1) for t in precision]
    alignment = [draw(st.sampled_from([a for a in (1, 2, 4, 8, 16) if a >= i])) for i in itemsizes]
    given_arguments = {
        "size": size,
        "precision": precision,
        "data_type": kind,
        "arrangement": arrangement,
        "transpose_mode": mode,
        "leading_dimension": lds,
        "alignment": alignment,
    }
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
            (r, c): (c * ld + r if order == COL else r * ld + c) for r, c in itertools.product(range(rows), range(cols))
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
