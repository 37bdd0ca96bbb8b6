# SPDX-License-Identifier: Apache-2.0
"""One descriptor for both levels: what it holds, and the tiles the device level makes of it.

How a descriptor comes from arrays is in tests/host/test_gemm_descriptor.py. Expected values are written down by hand.
"""

from __future__ import annotations

import itertools
import pickle
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import nvmath_device as nd
from nvmath_device.descriptors import ACCUMULATORS, refuse_precision
from nvmath_device.dtypes import ELEMENT_TYPES
from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError, UnsupportedError
from tests.descriptor_makers import COL, ROW, gemm, words

# What the host level multiplies and the device level, whose C is the accumulator, does not; bytes of A, B and C.
HOST_ONLY = {
    ("bfloat16", "bfloat16", "bfloat16"): (2, 2, 2),
    ("int8", "int8", "int8"): (1, 1, 1),
    ("int8", "int8", "float32"): (1, 1, 4),
    ("float8_e4m3fn", "float8_e4m3fn", "float8_e4m3fn"): (1, 1, 1),
    ("float8_e4m3fn", "float8_e5m2", "bfloat16"): (1, 1, 2),
}


@pytest.mark.parametrize("precision", HOST_ONLY, ids=" ".join)
def test_a_descriptor_holds_what_only_the_host_level_multiplies(precision):
    d = gemm(precision=precision)
    assert [str(t) for t in d.precision] == list(precision)
    a, b, c = HOST_ONLY[precision]
    assert d.storage_bytes == (8 * 16 * a, 16 * 4 * b, 8 * 4 * c)
    assert tuple(d.alignment) == (a, b, c)
    assert pickle.loads(pickle.dumps(d)) == d
    with pytest.raises(InvalidArgumentError, match="is not offered for real matrices"):
        nd.Matmul.from_descriptor(d)


# -- what a tile sums in -------------------------------------------------------------------------------------

SUMS = {
    ("float16", "float16", "float16"): "float32",
    ("float16", "float16", "float32"): "float32",
    ("float16", "float16", "float64"): "float64",
    ("bfloat16", "bfloat16", "bfloat16"): "float32",
    ("bfloat16", "float16", "bfloat16"): "float32",
    ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fn"): "float32",
    ("tfloat32", "tfloat32", "float32"): "float32",
    ("float32", "float32", "float32"): "float32",
    ("float64", "float64", "float64"): "float64",
    ("float32", "float64", "float32"): "float64",
    ("int8", "int8", "int32"): "int32",
    ("int8", "int8", "int8"): "int32",
    ("int8", "int8", "float32"): "int32",
    ("int8", "int8", "int64"): "int64",
    ("uint8", "uint8", "uint8"): "uint32",
    ("uint8", "uint8", "int32"): "int32",
    ("uint8", "int8", "int8"): "int32",
    ("int16", "int8", "int32"): "int64",
    ("uint16", "uint16", "uint16"): "uint64",
}


@pytest.mark.parametrize("precision", SUMS, ids=" ".join)
def test_a_tile_sums_in_a_type_that_holds_the_sum(precision):
    tile = gemm(precision=precision).tile((4, 4, 8), block_size=32, sm=90)
    assert [str(t) for t in tile.precision] == [*precision[:2], SUMS[precision]]


@pytest.mark.parametrize("data_type", ["real", "complex"])
def test_every_pair_that_the_device_level_multiplies_has_a_tile(data_type):
    accumulators = [nd.element_type(t) for t in ACCUMULATORS]
    multiplied = 0
    for a, b in itertools.product(ELEMENT_TYPES, repeat=2):
        d = gemm(precision=(a, b, a), data_type=data_type)
        if any(refuse_precision(a, b, c, data_type=data_type) is None for c in accumulators):
            multiplied += 1
            assert d.tile((4, 4, 4)).precision[:2] == (a, b)
        else:
            with pytest.raises(InvalidArgumentError, match=r"^precision: "):
                d.tile((4, 4, 4))
    # 7 floats; (u)int8 and (u)int16, complex ones signed; no others.
    assert multiplied == (49 + 16 if data_type == "real" else 49 + 4)


def test_a_wider_integer_has_no_tile_and_the_error_says_why():
    with pytest.raises(InvalidArgumentError) as error:
        gemm(precision="int32").tile((4, 4, 4))
    assert words(error) == (
        "precision: (int32, int32, int64) is not offered for real matrices: C (int64) must be at least four times as "
        "wide as A (int32)"
    )


def test_precision_of_a_tile_can_be_given():
    d = gemm(precision=("float16", "float16", "float16"))
    assert d.tile((4, 4, 4), precision=np.float16).precision == (nd.float16,) * 3
    d = gemm(precision="float32")
    tile = d.tile((4, 4, 4), precision=("tf32", "tf32", np.float32))
    assert tile.precision == (nd.tfloat32, nd.tfloat32, nd.float32)
    with pytest.raises(InvalidArgumentError, match=r"precision: \(bfloat16, bfloat16, bfloat16\) is not offered"):
        d.tile((4, 4, 4), precision=ml_dtypes.bfloat16)


# -- the rest of a tile --------------------------------------------------------------------------------------


def big(**changes):
    """1000 x 700 x 500, bf16, padded, aligned."""
    base = {
        "size": (1000, 700, 500),
        "precision": "bfloat16",
        "arrangement": (ROW, COL, ROW),
        "leading_dimension": (512, 504, 768),
        "alignment": (16, 16, 16),
    }
    return gemm(**{**base, **changes})


def test_a_tile_has_the_orders_of_the_product_and_a_layout_of_its_own():
    tile = big().tile((64, 48, 32))
    assert tile == nd.Matmul(
        (64, 48, 32), ("bfloat16", "bfloat16", "float32"), "real", arrangement=(ROW, COL, ROW), block_dim="suggested"
    )
    assert tile.leading_dimension == (32, 32, 48)
    assert tile.alignment == (2, 2, 4)
    assert (tile.a_dim, tile.b_dim, tile.c_dim) == ((64, 32), (32, 48), (64, 48))


def test_options_of_a_tile_are_those_of_matmul():
    about_the_block = {
        "sm": "sm_90a",
        "block_dim": (32, 4),
        "static_block_dim": True,
        "with_pipeline": True,
        "enable_input_streaming": True,
    }
    options = {"leading_dimension": (40, 40, 56), "alignment": nd.MAX_ALIGNMENT, **about_the_block}
    expected = nd.Matmul((64, 48, 32), ("bf16", "bf16", "fp32"), "real", arrangement=(ROW, COL, ROW), **options)
    tile = big().tile((64, 48, 32), **options)
    assert tile == expected
    assert pickle.loads(pickle.dumps(tile)) == expected
    assert nd.Matmul.from_descriptor(expected.descriptor, **about_the_block) == expected
    assert nd.Matmul.from_descriptor(expected.descriptor, expected.block_execution) == expected


def test_leading_dimensions_of_a_tile_can_be_left_to_libmathdx():
    tile = big().tile((64, 48, 32), leading_dimension="suggested", block_size=128)
    assert tile.descriptor.leading_dimension == "suggested"
    assert tile.block_dim == (128, 1, 1)


def test_a_tile_may_be_larger_than_the_product_and_in_another_order():
    tile = gemm(size=(3, 5, 7)).tile((32, 32, 16), arrangement=(ROW, ROW, COL))
    assert tile.size == (32, 32, 16)
    assert tile.arrangement == (ROW, ROW, COL)
    assert tile.leading_dimension == (16, 32, 32)


@pytest.mark.parametrize("mode", ["transposed", "conj_transposed"])
@pytest.mark.parametrize("data_type", ["real", "complex"])
def test_a_tile_of_a_transposed_matrix_is_transposed(mode, data_type):
    d = gemm(
        precision="float32", data_type=data_type, arrangement=(ROW, COL, ROW), transpose_mode=(mode, "non_transposed")
    )
    tile = d.tile((8, 4, 6), block_size=32)
    assert tile.transpose_mode == (mode, "non_transposed")
    assert tile.a_dim == (6, 8)
    # libmathdx conjugates column-major matrices only; copies into the tile change the order.
    conjugates = mode == "conj_transposed" and data_type == "complex"
    assert tile.arrangement == ((COL,) * 3 if conjugates else (ROW, COL, ROW))
    operators = dict(tile.resolved(nd.ComputeCapability(9, 0)).recipe("SMEM").operators)
    if conjugates:
        assert operators["TRANSPOSE_MODE"] == ("CONJ_TRANSPOSED", "NON_TRANSPOSED")
        assert "ARRANGEMENT" not in operators
    else:  # a row-major k x m matrix that is transposed is a column-major m x k one
        assert operators["ARRANGEMENT"] == ("COL_MAJOR", "COL_MAJOR", "ROW_MAJOR")


TILE_REFUSALS = {
    "no tuple": ({"size": 64}, ArgumentTypeError, ["size", "64", "3 integers, (m, n, k)"]),
    "zero": ({"size": (64, 64, 0)}, InvalidArgumentError, ["size", "0", "at least 1"]),
    "ld": ({"leading_dimension": (31, 32, 48)}, InvalidArgumentError, ["lda=31", "at least 32"]),
    "alignment": ({"alignment": (2, 2, 2)}, InvalidArgumentError, ["alignment", "2 bytes for C", "4, 8, 16"]),
    "block": ({"block_size": 16}, InvalidArgumentError, ["block_size", "16 threads", "32 to 1024"]),
    "two blocks": ({"block_size": 64, "block_dim": (64,)}, InvalidArgumentError, ["block_size and block_dim", "both"]),
    "sm": ({"sm": 91}, InvalidArgumentError, ["sm", "91", "90"]),
    "order": ({"arrangement": (ROW, ROW)}, ArgumentTypeError, ["arrangement", "3 of"]),
    "too big": ({"size": (256, 256, 256), "sm": 90}, UnsupportedError, ["256 x 256 x 256", "smaller tile"]),
    "no option": ({"algorithm": 1}, TypeError, ["algorithm"]),
}


@pytest.mark.parametrize("case", TILE_REFUSALS)
def test_refusals_of_a_tile(case):
    changes, kind, expected = TILE_REFUSALS[case]
    with pytest.raises(kind) as error:
        big().tile(**{"size": (64, 48, 32), **changes})
    assert [w for w in expected if w not in words(error)] == [], words(error)


def test_from_descriptor_takes_one_description_of_the_block():
    d = gemm()
    with pytest.raises(InvalidArgumentError, match="execution and block_size are both given; give one of them"):
        nd.Matmul.from_descriptor(d, nd.BlockExecution(), block_size=64)
    with pytest.raises(ArgumentTypeError, match="execution: 'Block' is not a BlockExecution"):
        nd.Matmul.from_descriptor(d, "Block")


WITHOUT_NUMBA = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np
import nvmath_device as nd

d = nd.GemmDescriptor.from_arrays(np.zeros((100, 70), np.float16), np.zeros((70, 90), np.float16))
tile = d.tile((64, 64, 32), block_size=128, sm=90)
print(tile)
print([m for m in ("numba", "cuda", "llvmlite") if m in sys.modules])
"""


def test_a_tile_is_made_without_numba_and_without_a_driver():
    root = str(Path(nd.__file__).resolve().parent.parent)
    done = subprocess.run([sys.executable, "-I", "-c", WITHOUT_NUMBA, root], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "Matmul(64x64x32, float16, float16, float32, real, arrangement=('row_major', 'row_major', 'row_major'), "
        "block_dim=(128, 1, 1), sm=sm_90)",
        "[]",
    ]
