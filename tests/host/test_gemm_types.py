# SPDX-License-Identifier: Apache-2.0
"""Types of products against the tables of the cuBLAS documentation, written down here once more."""

from __future__ import annotations

import itertools
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from nvmath_device import dtypes
from nvmath_device.dtypes import (
    ELEMENT_TYPES,
    bfloat16,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    tfloat32,
)
from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError, UnsupportedError
from nvmath_device.host.cublaslt_enums import ComputeType, CudaDataType
from nvmath_device.host.gemm_types import (
    cuda_data_type,
    element_of,
    read_scalar,
    resolve_types,
    scalar_dtype,
    why_no_epilogs,
)

# cublasLtMatmul(), "Datatypes Supported": computeType | scaleType | Atype, Btype | Ctype, Dtype | Bias Type
REGULAR = """
16F 16F_PEDANTIC                                                | R_16F | R_16F  | R_16F  | R_16F
32I 32I_PEDANTIC                                                | R_32I | R_8I   | R_32I  | none
32I 32I_PEDANTIC                                                | R_32F | R_8I   | R_8I   | none
32F 32F_PEDANTIC                                                | R_32F | R_16BF | R_16BF | R_16BF
32F 32F_PEDANTIC                                                | R_32F | R_16F  | R_16F  | R_16F
32F 32F_PEDANTIC                                                | R_32F | R_8I   | R_32F  | none
32F 32F_PEDANTIC                                                | R_32F | R_16BF | R_32F  | R_32F
32F 32F_PEDANTIC                                                | R_32F | R_16F  | R_32F  | R_32F
32F 32F_PEDANTIC                                                | R_32F | R_32F  | R_32F  | R_32F
32F 32F_PEDANTIC                                                | C_32F | C_32F  | C_32F  | none
32F_FAST_16F 32F_FAST_16BF 32F_FAST_TF32 32F_EMULATED_16BFX9    | R_32F | R_32F  | R_32F  | R_32F
32F_FAST_16F 32F_FAST_16BF 32F_FAST_TF32 32F_EMULATED_16BFX9    | C_32F | C_32F  | C_32F  | none
64F 64F_PEDANTIC 64F_EMULATED_FIXEDPOINT                        | R_64F | R_64F  | R_64F  | R_64F
64F 64F_PEDANTIC 64F_EMULATED_FIXEDPOINT                        | C_64F | C_64F  | C_64F  | none
"""
# "To use tensor- or block-scaled FP8 kernels": AType | BType | CType | DType | Bias Type; 32F, scale R_32F
FP8 = """
R_8F_E4M3 | R_8F_E4M3 | R_16BF | R_16BF    | R_16BF
R_8F_E4M3 | R_8F_E4M3 | R_16BF | R_8F_E4M3 | R_16BF
R_8F_E4M3 | R_8F_E4M3 | R_16F  | R_16F     | R_16F
R_8F_E4M3 | R_8F_E4M3 | R_16F  | R_8F_E4M3 | R_16F
R_8F_E4M3 | R_8F_E4M3 | R_32F  | R_32F     | R_16BF
R_8F_E4M3 | R_8F_E5M2 | R_16BF | R_16BF    | R_16BF
R_8F_E4M3 | R_8F_E5M2 | R_16BF | R_8F_E4M3 | R_16BF
R_8F_E4M3 | R_8F_E5M2 | R_16BF | R_8F_E5M2 | R_16BF
R_8F_E4M3 | R_8F_E5M2 | R_16F  | R_16F     | R_16F
R_8F_E4M3 | R_8F_E5M2 | R_16F  | R_8F_E4M3 | R_16F
R_8F_E4M3 | R_8F_E5M2 | R_16F  | R_8F_E5M2 | R_16F
R_8F_E4M3 | R_8F_E5M2 | R_32F  | R_32F     | R_16BF
R_8F_E5M2 | R_8F_E4M3 | R_16BF | R_16BF    | R_16BF
R_8F_E5M2 | R_8F_E4M3 | R_16BF | R_8F_E4M3 | R_16BF
R_8F_E5M2 | R_8F_E4M3 | R_16BF | R_8F_E5M2 | R_16BF
R_8F_E5M2 | R_8F_E4M3 | R_16F  | R_16F     | R_16F
R_8F_E5M2 | R_8F_E4M3 | R_16F  | R_8F_E4M3 | R_16F
R_8F_E5M2 | R_8F_E4M3 | R_16F  | R_8F_E5M2 | R_16F
R_8F_E5M2 | R_8F_E4M3 | R_32F  | R_32F     | R_16BF
"""
ELEMENTS = {
    "8F_E4M3": float8_e4m3fn, "8F_E5M2": float8_e5m2, "16BF": bfloat16, "16F": float16, "32F": float32,
    "64F": float64, "8I": int8, "32I": int32,
}  # fmt: skip


def documented():
    """a, b, c, d, is_complex, compute, scale -> bias, with None where there are no epilogs."""
    rows = {}
    for line in REGULAR.strip().splitlines():
        computes, scale, ab, cd, bias = (cell.strip() for cell in line.split("|"))
        for compute in computes.split():
            key = (ab[2:], ab[2:], cd[2:], cd[2:], ab[0] == "C", f"COMPUTE_{compute}", f"CUDA_{scale}")
            rows[key] = None if bias == "none" else bias[2:]
    for line in FP8.strip().splitlines():
        a, b, c, d, bias = (cell.strip()[2:] for cell in line.split("|"))
        rows[a, b, c, d, False, "COMPUTE_32F", "CUDA_R_32F"] = bias
    return rows


DOCUMENTED = documented()
PAIRS = sorted({(key[0], key[1], key[4]) for key in DOCUMENTED})
SCALES = ("CUDA_R_16F", "CUDA_R_32F", "CUDA_R_64F", "CUDA_C_32F", "CUDA_C_64F", "CUDA_R_32I")


def resolve(key):
    a, b, c, d, is_complex, compute, scale = key
    return resolve_types(
        ELEMENTS[a], ELEMENTS[b], ELEMENTS[c], is_complex=is_complex, compute_type=ComputeType[compute],
        scale_type=CudaDataType[scale], result_type=ELEMENTS[d],
    )  # fmt: skip


# -- the table ----------------------------------------------------------------------------------------------


def test_r070_every_documented_combination_is_accepted_as_it_is():
    assert len(DOCUMENTED) == 34 + 19  # of the two tables, each compute type counted
    for key, bias in DOCUMENTED.items():
        types = resolve(key)
        a, b, c, d, is_complex, compute, scale = key
        assert (types.a, types.b, types.c, types.d) == tuple(ELEMENTS[x] for x in (a, b, c, d))
        assert types.is_complex is is_complex
        assert (types.compute.name, types.scale.name) == (compute, scale)
        assert types.bias is ELEMENTS[bias or d]
        assert (why_no_epilogs(types) is None) == (bias is not None)


@pytest.mark.parametrize(("a", "b", "is_complex"), PAIRS)
def test_r070_every_other_combination_is_refused(a, b, is_complex):
    refused = 0
    for c, d, compute, scale in itertools.product(ELEMENTS, ELEMENTS, ComputeType.__members__, SCALES):
        key = (a, b, c, d, is_complex, compute, scale)
        if key not in DOCUMENTED:
            with pytest.raises((UnsupportedError, InvalidArgumentError)):
                resolve(key)
            refused += 1
    assert refused + sum(key[:2] == (a, b) and key[4] == is_complex for key in DOCUMENTED) == 8 * 8 * 13 * 6


def test_every_other_pair_of_operands_is_refused():
    known = {(ELEMENTS[a], ELEMENTS[b], is_complex) for a, b, is_complex in PAIRS}
    assert len(known) == 10
    for a, b, is_complex in itertools.product(ELEMENT_TYPES, ELEMENT_TYPES, (False, True)):
        if (a, b, is_complex) not in known:
            with pytest.raises(UnsupportedError, match="a and b: cuBLASLt does not multiply"):
                resolve_types(a, b, is_complex=is_complex)


# -- defaults -----------------------------------------------------------------------------------------------

DEFAULTS = [
    # a, b, c, complex               d              c        compute        scale         aux
    ((float16, float16, None, False), float16, float16, "COMPUTE_32F", "CUDA_R_32F", float16),
    ((float16, float16, float32, False), float32, float32, "COMPUTE_32F", "CUDA_R_32F", float32),
    ((bfloat16, bfloat16, None, False), bfloat16, bfloat16, "COMPUTE_32F", "CUDA_R_32F", bfloat16),
    ((bfloat16, bfloat16, float32, False), float32, float32, "COMPUTE_32F", "CUDA_R_32F", float32),
    ((float32, float32, None, False), float32, float32, "COMPUTE_32F", "CUDA_R_32F", float32),
    ((float64, float64, None, False), float64, float64, "COMPUTE_64F", "CUDA_R_64F", float64),
    ((float32, float32, None, True), float32, float32, "COMPUTE_32F", "CUDA_C_32F", float32),
    ((float64, float64, float64, True), float64, float64, "COMPUTE_64F", "CUDA_C_64F", float64),
    ((int8, int8, None, False), int32, int32, "COMPUTE_32I", "CUDA_R_32I", int32),
    ((int8, int8, int8, False), int8, int8, "COMPUTE_32I", "CUDA_R_32F", int8),
    ((int8, int8, float32, False), float32, float32, "COMPUTE_32F", "CUDA_R_32F", float32),
    ((float8_e4m3fn, float8_e4m3fn, None, False), float8_e4m3fn, float16, "COMPUTE_32F", "CUDA_R_32F", float16),
    ((float8_e4m3fn, float8_e5m2, None, False), float8_e4m3fn, float16, "COMPUTE_32F", "CUDA_R_32F", float8_e4m3fn),
    ((float8_e5m2, float8_e4m3fn, None, False), float8_e5m2, float16, "COMPUTE_32F", "CUDA_R_32F", float8_e5m2),
    ((float8_e4m3fn, float8_e4m3fn, bfloat16, False), bfloat16, bfloat16, "COMPUTE_32F", "CUDA_R_32F", bfloat16),
    ((float8_e4m3fn, float8_e5m2, float32, False), float32, float32, "COMPUTE_32F", "CUDA_R_32F", float32),
]


@pytest.mark.parametrize(("operands", "d", "c", "compute", "scale", "aux"), DEFAULTS)
def test_defaults(operands, d, c, compute, scale, aux):
    types = resolve_types(*operands[:3], is_complex=operands[3])
    assert (types.d, types.c, types.compute.name, types.scale.name, types.aux) == (d, c, compute, scale, aux)


@pytest.mark.parametrize("key", DOCUMENTED)
def test_r070_the_default_scale_type_is_the_documented_one(key):
    a, b, _, d, is_complex, compute, scale = key
    types = resolve_types(
        ELEMENTS[a], ELEMENTS[b], None, is_complex=is_complex, compute_type=ComputeType[compute],
        result_type=ELEMENTS[d],
    )  # fmt: skip
    assert types.scale.name == scale
    c = next(name for name, element in ELEMENTS.items() if element is types.c)
    assert (a, b, c, d, is_complex, compute, scale) in DOCUMENTED


def test_a_scale_type_alone_decides_the_compute_type():
    assert resolve_types(float16, float16, scale_type=CudaDataType.CUDA_R_16F).compute is ComputeType.COMPUTE_16F


@pytest.mark.parametrize("compute", ["COMPUTE_32F", "COMPUTE_32F_PEDANTIC"])
def test_int8_summed_in_float32_gives_float32(compute):
    assert resolve_types(int8, int8, compute_type=ComputeType[compute]).d is float32


def test_a_bias_decides_what_c_would_be_where_there_is_none():
    types = resolve_types(float8_e4m3fn, float8_e4m3fn, bias=bfloat16)
    assert (types.c, types.d, types.bias, types.aux) == (bfloat16, float8_e4m3fn, bfloat16, bfloat16)
    assert resolve_types(float8_e4m3fn, float8_e4m3fn, float32).bias is bfloat16


def test_r088_the_aux_type_of_an_fp8_result_can_be_chosen():
    e4m3, fp16 = CudaDataType.CUDA_R_8F_E4M3, CudaDataType.CUDA_R_16F
    assert resolve_types(float8_e4m3fn, float8_e4m3fn, aux_type=e4m3).aux is float8_e4m3fn
    assert resolve_types(float8_e4m3fn, float8_e4m3fn, aux_type=fp16).aux is float16
    wide = resolve_types(float8_e4m3fn, float8_e4m3fn, aux_type=CudaDataType.CUDA_R_16BF)
    assert (wide.aux, wide.c, wide.bias) == (bfloat16, bfloat16, bfloat16)
    with pytest.raises(InvalidArgumentError, match=r"aux_type: float16 .*-> float8_e5m2; allowed is float8_e5m2"):
        resolve_types(float8_e5m2, float8_e4m3fn, aux_type=fp16)


def test_a_result_type_of_cublaslt_is_read():
    assert resolve_types(float16, float16, result_type=CudaDataType.CUDA_R_32F).d is float32
    assert resolve_types(float32, float32, is_complex=True, result_type=CudaDataType.CUDA_C_32F).d is float32


def test_types_are_values():
    one, other = (resolve_types(float16, float16, result_type=float32) for _ in range(2))
    assert one == other
    assert len({one, other, resolve_types(float16, float16)}) == 2
    assert str(one) == "float16 x float16 + float32 -> float32, COMPUTE_32F, scale type CUDA_R_32F"
    assert resolve_types(float8_e5m2, float8_e4m3fn).is_fp8
    assert not one.is_fp8


# -- refusals -----------------------------------------------------------------------------------------------

ALL_PAIRS = [
    "float16 x float16", "bfloat16 x bfloat16", "float32 x float32", "float64 x float64", "complex64 x complex64",
    "complex128 x complex128", "int8 x int8", "float8_e4m3fn x float8_e4m3fn", "float8_e4m3fn x float8_e5m2",
    "float8_e5m2 x float8_e4m3fn",
]  # fmt: skip


@pytest.mark.parametrize(
    ("a", "b", "is_complex", "facts"),
    [
        (float16, bfloat16, False, ["float16 x bfloat16", "convert one of them"]),
        (float32, float64, False, ["float32 x float64", "convert one of them"]),
        (int8, float16, False, ["int8 x float16"]),
        (float8_e4m3fn, float16, False, ["float8_e4m3fn x float16"]),
        (float8_e5m2, float8_e5m2, False, ["float8_e5m2 x float8_e5m2", "convert one of them to float8_e4m3fn"]),
        (tfloat32, tfloat32, False, ["tfloat32 x tfloat32", "COMPUTE_32F_FAST_TF32"]),
        (int16, int16, False, ["int16 x int16", "convert both"]),
        (float16, float16, True, ["complex32 x complex32", "convert both"]),
    ],
)
def test_operands_that_do_not_go_together_are_named_with_those_that_do(a, b, is_complex, facts):
    with pytest.raises(UnsupportedError) as caught:
        resolve_types(a, b, is_complex=is_complex)
    for fact in [*facts, *ALL_PAIRS]:
        assert fact in str(caught.value)


@pytest.mark.parametrize("kinds", [(True, False), (False, True), (True, True, False), (False, False, True)])
def test_real_and_complex_operands_do_not_mix(kinds):
    c = float32 if len(kinds) == 3 else None
    with pytest.raises(UnsupportedError, match="real and complex") as caught:
        resolve_types(float32, float32, c, is_complex=kinds)
    for name, kind in zip("abc", kinds, strict=False):
        assert f"{name} is {'complex64' if kind else 'float32'}" in str(caught.value)


def test_operands_of_one_kind_may_say_so_one_by_one():
    assert resolve_types(float32, float32, float32, is_complex=(True, True, True)).is_complex
    assert not resolve_types(float32, float32, is_complex=(False, False)).is_complex


@pytest.mark.parametrize(
    ("operands", "arguments", "text"),
    [
        ((float32, float32), {"compute_type": ComputeType.COMPUTE_16F},
         "compute_type: COMPUTE_16F does not go with float32 x float32 -> float32; allowed are COMPUTE_32F, "
         "COMPUTE_32F_PEDANTIC, COMPUTE_32F_FAST_16F, COMPUTE_32F_FAST_16BF, COMPUTE_32F_FAST_TF32, "
         "COMPUTE_32F_EMULATED_16BFX9"),
        ((float64, float64), {"compute_type": ComputeType.COMPUTE_32F_FAST_TF32},
         "compute_type: COMPUTE_32F_FAST_TF32 does not go with float64 x float64 -> float64; allowed are COMPUTE_64F, "
         "COMPUTE_64F_PEDANTIC, COMPUTE_64F_EMULATED_FIXEDPOINT"),
        ((float16, float16, float32), {"compute_type": ComputeType.COMPUTE_16F},
         "compute_type: COMPUTE_16F does not go with float16 x float16 + float32 -> float32; allowed are COMPUTE_32F, "
         "COMPUTE_32F_PEDANTIC"),
        ((float16, float16), {"compute_type": ComputeType.COMPUTE_16F, "result_type": float32},
         "compute_type: COMPUTE_16F does not go with float16 x float16 -> float32; allowed are COMPUTE_32F, "
         "COMPUTE_32F_PEDANTIC. It goes with a result of type float16"),
        ((float8_e4m3fn, float8_e4m3fn), {"compute_type": ComputeType.COMPUTE_32F_PEDANTIC},
         "compute_type: COMPUTE_32F_PEDANTIC does not go with float8_e4m3fn x float8_e4m3fn -> float8_e4m3fn; "
         "allowed is COMPUTE_32F"),
        ((bfloat16, bfloat16), {"scale_type": CudaDataType.CUDA_R_16F},
         "scale_type: CUDA_R_16F does not go with bfloat16 x bfloat16 -> bfloat16; allowed is CUDA_R_32F"),
        ((float16, float16), {"compute_type": ComputeType.COMPUTE_16F, "scale_type": CudaDataType.CUDA_R_32F},
         "scale_type: CUDA_R_32F does not go with float16 x float16 -> float16; allowed is CUDA_R_16F. It goes with a "
         "result of type float16 or float32"),
        ((int8, int8), {"scale_type": CudaDataType.CUDA_R_32F},
         "scale_type: CUDA_R_32F does not go with int8 x int8 -> int32; allowed is CUDA_R_32I. It goes with a result "
         "of type int8 or float32"),
        ((float16, float16), {"result_type": CudaDataType.CUDA_R_64F},
         "result_type: float64 does not go with float16 x float16; allowed are float16, float32"),
        ((float16, float16, float16), {"result_type": float32},
         "result_type: float32 does not go with float16 x float16 + float16; allowed is float16"),
        ((float8_e4m3fn, float8_e4m3fn), {"result_type": float8_e5m2},
         "result_type: float8_e5m2 does not go with float8_e4m3fn x float8_e4m3fn; allowed are float16, bfloat16, "
         "float32, float8_e4m3fn"),
        ((float32, float32), {"result_type": CudaDataType.CUDA_C_32F},
         "result_type: CUDA_C_32F is complex, and the operands are real; give a real type"),
        ((float16, float16), {"bias": float32},
         "bias: float32 does not go with float16 x float16 -> float16; allowed is float16. It goes with a result of "
         "type float32"),
        ((float8_e4m3fn, float8_e4m3fn, float32), {"bias": float32},
         "bias: float32 does not go with float8_e4m3fn x float8_e4m3fn + float32 -> float32; allowed is bfloat16"),
        ((float16, float16), {"aux_type": CudaDataType.CUDA_R_8F_E4M3},
         "aux_type: float8_e4m3fn does not go with float16 x float16 -> float16; allowed is float16"),
    ],
)  # fmt: skip
def test_what_does_not_go_with_the_operands_is_named_with_what_does(operands, arguments, text):
    with pytest.raises(InvalidArgumentError) as caught:
        resolve_types(*operands, **arguments)
    assert str(caught.value) == text


def test_a_c_that_does_not_go_with_a_and_b():
    with pytest.raises(UnsupportedError, match="c: float64 does not go with float32 x float32; allowed is float32"):
        resolve_types(float32, float32, float64)
    with pytest.raises(UnsupportedError, match="allowed are float16, bfloat16, float32"):
        resolve_types(float8_e4m3fn, float8_e4m3fn, float8_e4m3fn)


@pytest.mark.parametrize("name", ["CUDA_R_4F_E2M1", "CUDA_R_8F_UE8M0", "CUDA_R_6F_E2M3", "CUDA_R_4I"])
def test_types_that_no_array_has_are_refused(name):
    with pytest.raises(UnsupportedError, match=f"result_type: {name} is not the type of any array"):
        resolve_types(float16, float16, result_type=CudaDataType[name])


# -- epilogs ------------------------------------------------------------------------------------------------


def test_there_are_no_epilogs_for_complex_and_int8():
    assert "complex" in why_no_epilogs(resolve_types(float32, float32, is_complex=True))
    for c in (int32, int8, float32):
        assert "int8" in why_no_epilogs(resolve_types(int8, int8, c))
    for a in (float16, bfloat16, float32, float64, float8_e4m3fn):
        assert why_no_epilogs(resolve_types(a, a)) is None


def test_a_bias_where_there_are_no_epilogs_is_left_to_the_one_who_names_the_epilog():
    assert why_no_epilogs(resolve_types(int8, int8, bias=float32)) is not None
    assert why_no_epilogs(resolve_types(float64, float64, is_complex=True, bias=float32)) is not None


# -- numbers of types ---------------------------------------------------------------------------------------


def test_data_types_have_the_numbers_of_cuda():
    expected = {
        ("float16", False): 2, ("float16", True): 6, ("bfloat16", False): 14, ("float32", False): 0,
        ("float32", True): 4, ("float64", False): 1, ("float64", True): 5, ("int8", False): 3, ("int32", False): 10,
        ("float8_e4m3fn", False): 28, ("float8_e5m2", False): 29,
    }  # fmt: skip
    for (name, is_complex), number in expected.items():
        data_type = cuda_data_type(getattr(dtypes, name), is_complex)
        assert type(data_type) is CudaDataType
        assert data_type == number
        assert element_of(data_type) == (getattr(dtypes, name), is_complex)
        assert type(element_of(data_type)[1]) is bool
    with pytest.raises(UnsupportedError, match="complex of float8_e4m3fn"):
        cuda_data_type(float8_e4m3fn, True)


# -- alpha and beta -----------------------------------------------------------------------------------------


def test_scalars_have_the_type_that_cublaslt_reads():
    expected = ["float16", "float32", "float64", "complex64", "complex128", "int32"]
    assert [scalar_dtype(CudaDataType[name]).name for name in SCALES] == expected
    with pytest.raises(InvalidArgumentError, match="CUDA_R_16BF is never a scale type; those are CUDA_R_16F"):
        scalar_dtype(CudaDataType.CUDA_R_16BF)


@pytest.mark.parametrize(
    ("value", "scale", "bits"),
    [
        (1, "CUDA_R_32F", "0000803f"),
        (-0.5, "CUDA_R_16F", "00b8"),
        (np.float64(2.0), "CUDA_R_64F", "0000000000000040"),
        (np.array(1.5, np.float32), "CUDA_R_32F", "0000c03f"),
        (ml_dtypes.bfloat16(1.5), "CUDA_R_32F", "0000c03f"),
        (Fraction(1, 2), "CUDA_R_32F", "0000003f"),
        (1 - 2j, "CUDA_C_32F", "0000803f000000c0"),
        (3, "CUDA_C_64F", "00000000000008400000000000000000"),
        (np.complex64(1j), "CUDA_C_32F", "000000000000803f"),
        (float("-inf"), "CUDA_R_16F", "00fc"),
        (0, "CUDA_R_32I", "00000000"),
        (1.0, "CUDA_R_32I", "01000000"),
        (np.uint8(1), "CUDA_R_32I", "01000000"),
    ],
)
def test_a_scalar_has_the_bytes_of_its_scale_type(value, scale, bits):
    assert read_scalar(value, CudaDataType[scale], argument="alpha").tobytes().hex() == bits


@pytest.mark.parametrize("value", [2, -1, 0.5, float("nan"), float("inf")])
def test_with_int32_scale_only_0_and_1_are_allowed(value):
    with pytest.raises(InvalidArgumentError, match=r"beta: .* not allowed where int8 operands give int32; give 0 or 1"):
        read_scalar(value, CudaDataType.CUDA_R_32I, argument="beta")


@pytest.mark.parametrize(
    ("value", "scale"),
    [(1e5, "CUDA_R_16F"), (-1e39, "CUDA_R_32F"), (complex(0, 1e39), "CUDA_C_32F"), (10**400, "CUDA_R_64F")],
)
def test_a_scalar_that_would_become_infinite_is_refused(value, scale):
    with pytest.raises(InvalidArgumentError, match=f"alpha: .* too large for the scale type {scale}"):
        read_scalar(value, CudaDataType[scale], argument="alpha")


class OnTheGpu:
    """Reading it would wait for the GPU."""

    def __float__(self):
        raise AssertionError("read")


@pytest.mark.parametrize(
    "value", [True, np.True_, "1", b"1", np.str_("1"), None, [1.0], np.ones(1), np.datetime64(1, "s"), OnTheGpu()]
)
@pytest.mark.parametrize("scale", ["CUDA_R_32F", "CUDA_C_64F", "CUDA_R_32I"])
def test_what_is_no_number_is_no_scalar(value, scale):
    with pytest.raises(ArgumentTypeError, match=r"alpha: .* give a number"):
        read_scalar(value, CudaDataType[scale], argument="alpha")


@pytest.mark.parametrize("scale", ["CUDA_R_16F", "CUDA_R_32F", "CUDA_R_64F", "CUDA_R_32I"])
@pytest.mark.parametrize("value", [1 + 0j, np.complex64(1), np.array(1j)])
def test_complex_scalars_need_a_complex_scale_type(value, scale):
    with pytest.raises(ArgumentTypeError, match=f"alpha: .* complex, and the scale type {scale} is real"):
        read_scalar(value, CudaDataType[scale], argument="alpha")
