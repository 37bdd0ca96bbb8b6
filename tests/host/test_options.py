# SPDX-License-Identifier: Apache-2.0
"""Options: the peer's names and defaults, what is accepted in each form, and what every refusal says."""

from __future__ import annotations

import dataclasses
import logging
import os
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvmath_device.dtypes import bfloat16
from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError
from nvmath_device.host import options
from nvmath_device.host.cublaslt_enums import NumericalImplFlags
from nvmath_device.host.options import (
    CudaDataType,
    MatmulComputeType,
    MatmulEpilogPreferences,
    MatmulInnerShape,
    MatmulNumericalImplFlags,
    MatmulOptions,
    MatmulPlanPreferences,
    MatmulQuantizationScales,
    MatmulReductionScheme,
    matrix_qualifiers_dtype,
    memory_limit_bytes,
    read_options,
)

CLASSES = (MatmulOptions, MatmulPlanPreferences, MatmulEpilogPreferences, MatmulQuantizationScales)


# -- names --------------------------------------------------------------------------------------------------


def attributes(cls):
    return {field.name: getattr(cls(), field.name) for field in dataclasses.fields(cls)}


def test_options_have_the_peers_names_and_our_own_with_their_defaults():
    peers = {
        "compute_type": None, "scale_type": None, "result_type": None, "result_amax": False, "block_scaling": False,
        "sm_count_target": None, "fast_accumulation": False, "device_id": None, "handle": None, "logger": None,
        "memory_limit": "32 MiB", "blocking": "auto", "allocator": None, "inplace": False,
    }  # fmt: skip
    ours = {"execution": None, "copies": "allow", "mix_devices": False, "deterministic": False}
    assert attributes(MatmulOptions) == peers | ours
    assert attributes(MatmulPlanPreferences) == {
        "reduction_scheme_mask": 7, "max_waves_count": 0.0, "numerical_impl_mask": 2**64 - 1, "limit": 8,
        "epilog": MatmulEpilogPreferences(),
    }  # fmt: skip
    assert attributes(MatmulEpilogPreferences) == {"aux_type": None, "aux_amax": False}
    assert attributes(MatmulQuantizationScales) == dict.fromkeys("abcd")


def test_every_attribute_is_documented():
    for cls in CLASSES:
        listed = cls.__doc__.partition("Attributes:")[2]
        named = {name.strip() for line in listed.splitlines() for name in line.partition(":")[0].split(",")}
        assert {field.name for field in dataclasses.fields(cls)} <= named


def test_enumerations_have_the_peers_members():
    members = {
        MatmulComputeType: "COMPUTE_16F COMPUTE_16F_PEDANTIC COMPUTE_32F COMPUTE_32F_PEDANTIC COMPUTE_32F_FAST_16F "
        "COMPUTE_32F_FAST_16BF COMPUTE_32F_FAST_TF32 COMPUTE_32F_EMULATED_16BFX9 COMPUTE_64F COMPUTE_64F_PEDANTIC "
        "COMPUTE_64F_EMULATED_FIXEDPOINT COMPUTE_32I COMPUTE_32I_PEDANTIC",
        MatmulReductionScheme: "NONE INPLACE COMPUTE_TYPE OUTPUT_TYPE MASK",
        MatmulInnerShape: "UNDEFINED MMA884 MMA1684 MMA1688 MMA16816",
        CudaDataType: "CUDA_R_16F CUDA_C_16F CUDA_R_16BF CUDA_R_32F CUDA_C_32F CUDA_R_64F CUDA_C_64F CUDA_R_8I "
        "CUDA_R_32I CUDA_R_8F_E4M3 CUDA_R_8F_E5M2 CUDA_R_8F_UE8M0 CUDA_R_4F_E2M1",
    }
    for enumeration, names in members.items():
        assert set(names.split()) <= set(enumeration.__members__)


def test_flags_of_implementations_have_the_peers_names_and_cublaslts_bits():
    # the peer's name -> that of cublasLt.h, whose values test_cublaslt_parity compares with the header
    names = {
        "OP_TYPE_FMA": "FMA", "OP_TYPE_TENSOR_HMMA": "HMMA", "OP_TYPE_TENSOR_IMMA": "IMMA",
        "OP_TYPE_TENSOR_DMMA": "DMMA", "OP_TYPE_TENSOR_MASK": "TENSOR_OP_MASK", "OP_TYPE_MASK": "OP_TYPE_MASK",
        "ACCUMULATOR_16F": "ACCUMULATOR_16F", "ACCUMULATOR_32F": "ACCUMULATOR_32F",
        "ACCUMULATOR_64F": "ACCUMULATOR_64F", "ACCUMULATOR_32I": "ACCUMULATOR_32I",
        "ACCUMULATOR_TYPE_MASK": "ACCUMULATOR_TYPE_MASK", "INPUT_TYPE_16F": "INPUT_16F",
        "INPUT_TYPE_16BF": "INPUT_16BF", "INPUT_TYPE_TF32": "INPUT_TF32", "INPUT_TYPE_32F": "INPUT_32F",
        "INPUT_TYPE_64F": "INPUT_64F", "INPUT_TYPE_8I": "INPUT_8I", "INPUT_TYPE_8F_E4M3": "INPUT_8F_E4M3",
        "INPUT_TYPE_8F_E5M2": "INPUT_8F_E5M2", "INPUT_TYPE_MASK": "OP_INPUT_TYPE_MASK", "GAUSSIAN": "GAUSSIAN",
    }  # fmt: skip
    assert set(MatmulNumericalImplFlags.__members__) == {*names, "ALL"}
    assert set(names.values()) == set(NumericalImplFlags.__members__)
    for ours, theirs in names.items():
        assert MatmulNumericalImplFlags[ours] == NumericalImplFlags[theirs]
    assert MatmulNumericalImplFlags.ALL == 0xFFFF_FFFF_FFFF_FFFF


def test_qualifiers_are_made_as_in_the_peer():
    qualifiers = np.zeros((3,), dtype=matrix_qualifiers_dtype)
    qualifiers[1]["is_conjugate"] = 1
    assert qualifiers["is_conjugate"].tolist() == [0, 1, 0]
    assert matrix_qualifiers_dtype.names == ("structure", "is_conjugate")


def test_all_public_names_exist():
    assert len(options.__all__) == len(set(options.__all__))
    for name in options.__all__:
        assert hasattr(options, name)


def test_options_need_no_cublaslt():
    code = (
        "import sys, nvmath_device.host.options; "
        "print([m for m in ('numba', 'cuda.core', 'cupy', 'torch', 'nvmath_device.host.cublaslt_calls') "
        "if m in sys.modules])"
    )
    environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


# -- objects and dicts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", CLASSES)
def test_objects_are_immutable(cls):
    value = cls()
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(value, dataclasses.fields(cls)[0].name, 1)


def test_equal_options_are_equal_and_hashable():
    one = MatmulOptions(compute_type=77, result_type="bfloat16", sm_count_target=0)
    other = MatmulOptions(compute_type="compute_32f_fast_tf32", result_type=CudaDataType.CUDA_R_16BF)
    assert one == other
    assert len({one, other, MatmulOptions()}) == 2


def test_options_are_read_from_objects_dicts_and_nothing():
    given_object = MatmulOptions(inplace=True)
    assert read_options(given_object, MatmulOptions, "options") is given_object
    assert read_options({"inplace": True}, MatmulOptions, "options") == given_object
    assert read_options(None, MatmulOptions, "options") == MatmulOptions()
    assert read_options({}, MatmulPlanPreferences, "preferences") == MatmulPlanPreferences()


def test_reading_a_dict_leaves_it_alone():
    given_dict = {"epilog": {"aux_type": "float16"}, "limit": 3}
    preferences = read_options(given_dict, MatmulPlanPreferences, "preferences")
    assert given_dict == {"epilog": {"aux_type": "float16"}, "limit": 3}
    assert preferences.epilog == MatmulEpilogPreferences(aux_type=CudaDataType.CUDA_R_16F)
    assert preferences.limit == 3


@pytest.mark.parametrize("value", [3, "80%", [("inplace", True)], MatmulPlanPreferences(), MatmulOptions])
def test_anything_else_is_no_options(value):
    with pytest.raises(ArgumentTypeError, match=r"options: .* give a MatmulOptions or a dict of its attributes"):
        read_options(value, MatmulOptions, "options")


@pytest.mark.parametrize("cls", CLASSES)
def test_an_unknown_key_is_named_with_those_there_are(cls):
    with pytest.raises(InvalidArgumentError) as caught:
        read_options({"colour": 1}, cls, "options")
    names = ", ".join(field.name for field in dataclasses.fields(cls))
    assert str(caught.value) == f"options: 'colour' is not an attribute of {cls.__name__}; those are {names}"


def test_a_misspelt_key_is_recognised():
    with pytest.raises(InvalidArgumentError, match="did you mean 'memory_limit'"):
        read_options({"memory_limt": 1}, MatmulOptions, "options")


@pytest.mark.parametrize("cls", CLASSES)
def test_none_is_the_default_of_every_attribute(cls):
    nothing = cls(**dict.fromkeys(field.name for field in dataclasses.fields(cls)))
    assert dataclasses.asdict(nothing) == dataclasses.asdict(cls())


# -- single options -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "stored"),
    [
        ("compute_type", MatmulComputeType.COMPUTE_16F, MatmulComputeType.COMPUTE_16F),
        ("compute_type", "COMPUTE_64F", MatmulComputeType.COMPUTE_64F),
        ("compute_type", np.int64(68), MatmulComputeType.COMPUTE_32F),
        ("scale_type", CudaDataType.CUDA_C_32F, CudaDataType.CUDA_C_32F),
        ("scale_type", 1, CudaDataType.CUDA_R_64F),
        ("scale_type", "CUDA_R_16F", CudaDataType.CUDA_R_16F),
        ("result_type", 0, CudaDataType.CUDA_R_32F),
        ("result_type", "cuda_r_8f_e5m2", CudaDataType.CUDA_R_8F_E5M2),
        ("result_type", "fp16", CudaDataType.CUDA_R_16F),
        ("result_type", np.float32, CudaDataType.CUDA_R_32F),
        ("result_type", np.dtype("int8"), CudaDataType.CUDA_R_8I),
        ("result_type", np.int32, CudaDataType.CUDA_R_32I),
        ("result_type", ml_dtypes.float8_e4m3fn, CudaDataType.CUDA_R_8F_E4M3),
        ("result_type", bfloat16, CudaDataType.CUDA_R_16BF),
        ("result_type", np.complex64, CudaDataType.CUDA_C_32F),
        ("result_type", np.dtype("complex128"), CudaDataType.CUDA_C_64F),
        ("result_type", "complex64", CudaDataType.CUDA_C_32F),
        ("sm_count_target", 0, None),
        ("sm_count_target", np.int32(100), 100),
        ("device_id", 0, 0),
        ("handle", 0x5000, 0x5000),
        ("blocking", True, True),
        ("execution", "cpu", "cpu"),
        ("copies", "refuse", "refuse"),
        ("mix_devices", np.True_, True),
        ("memory_limit", "1.5 GB", "1.5 GB"),
    ],
)
def test_options_are_stored_in_one_form(name, value, stored):
    found = getattr(MatmulOptions(**{name: value}), name)
    assert found == stored
    assert type(found) is type(stored)


class TorchLike:
    """A torch dtype has no name but its repr."""

    def __str__(self):
        return "torch.complex64"


def test_a_dtype_of_torch_is_read_by_its_text():
    assert MatmulOptions(result_type=TorchLike()).result_type is CudaDataType.CUDA_C_32F


@pytest.mark.parametrize(
    ("name", "value", "error", "text"),
    [
        ("compute_type", "COMPUTE_8F", InvalidArgumentError, "MatmulComputeType; those are COMPUTE_16F"),
        ("compute_type", CudaDataType.CUDA_R_32F, InvalidArgumentError, "not a member of MatmulComputeType"),
        ("compute_type", True, ArgumentTypeError, "give a member of MatmulComputeType, its name or its number"),
        ("compute_type", 68.0, ArgumentTypeError, "give a member of MatmulComputeType, its name or its number"),
        ("scale_type", MatmulComputeType.COMPUTE_32F, InvalidArgumentError, "not a member of CudaDataType"),
        ("scale_type", "bfloat16", InvalidArgumentError, "CUDA_R_16BF is never a scale type; those are CUDA_R_16F"),
        ("result_type", "float12", ArgumentTypeError, "'float12' is not a known element type"),
        ("result_type", "tf32", InvalidArgumentError, "no array has elements of tfloat32; give float32, and"),
        ("result_amax", 1, ArgumentTypeError, "1 is a int; give True or False"),
        ("inplace", "yes", ArgumentTypeError, "give True or False"),
        ("sm_count_target", -1, InvalidArgumentError, "-1 is negative; give a number of multiprocessors"),
        ("sm_count_target", 1.5, ArgumentTypeError, "give a number of multiprocessors"),
        ("device_id", -1, InvalidArgumentError, "-1 is negative; give the ordinal of a device"),
        ("device_id", "cuda:0", ArgumentTypeError, "give the ordinal of a device"),
        ("handle", 0, InvalidArgumentError, "at least 1"),
        ("handle", "0x5000", ArgumentTypeError, "at least 1"),
        ("logger", print, ArgumentTypeError, "give a logging.Logger"),
        ("blocking", False, InvalidArgumentError, "False is not allowed; give True or 'auto'"),
        ("blocking", "never", InvalidArgumentError, "give True or 'auto'"),
        ("allocator", 5, ArgumentTypeError, "memalloc_async or memalloc or allocate"),
        ("execution", "tpu", InvalidArgumentError, "give one of 'gpu', 'cpu'"),
        ("copies", "alow", InvalidArgumentError, "did you mean 'allow'"),
        ("copies", True, ArgumentTypeError, "give one of 'allow', 'refuse'"),
        ("memory_limit", "lots", InvalidArgumentError, "not a limit"),
    ],
)
def test_a_wrong_option_is_named_with_what_is_allowed(name, value, error, text):
    for make in (lambda: MatmulOptions(**{name: value}), lambda: read_options({name: value}, MatmulOptions, "options")):
        with pytest.raises(error) as caught:
            make()
        assert str(caught.value).startswith(f"{name}: ")
        assert text in str(caught.value)


class Memalloc:
    def memalloc(self, size):
        raise AssertionError("only looked at")


class MemallocAsync:
    def memalloc_async(self, size, stream):
        raise AssertionError("only looked at")


class MemoryResource:
    def allocate(self, size, *, stream):
        raise AssertionError("only looked at")


@pytest.mark.parametrize("allocator", [Memalloc(), MemallocAsync(), MemoryResource()])
def test_allocators_are_known_by_their_methods(allocator):
    assert MatmulOptions(allocator=allocator).allocator is allocator
    with pytest.raises(ArgumentTypeError, match=r"allocator: .* give an object with a method"):
        MatmulOptions(allocator=type(allocator))


def test_a_logger_may_be_an_adapter():
    for logger in (logging.getLogger("mine"), logging.LoggerAdapter(logging.getLogger("mine"), {})):
        assert MatmulOptions(logger=logger).logger is logger


# -- preferences --------------------------------------------------------------------------------------------


def test_masks_are_flags_joined_or_their_number():
    both = MatmulReductionScheme.INPLACE | MatmulReductionScheme.OUTPUT_TYPE
    for mask in (both, 5):
        assert MatmulPlanPreferences(reduction_scheme_mask=mask).reduction_scheme_mask is both
    assert MatmulPlanPreferences(reduction_scheme_mask=0).reduction_scheme_mask is MatmulReductionScheme.NONE
    flags = MatmulNumericalImplFlags.OP_TYPE_TENSOR_HMMA | MatmulNumericalImplFlags.ACCUMULATOR_32F
    assert int(MatmulPlanPreferences(numerical_impl_mask=flags).numerical_impl_mask) == 0x202
    whole = MatmulPlanPreferences(numerical_impl_mask=(1 << 63) | 1).numerical_impl_mask
    assert (int(whole), type(whole)) == ((1 << 63) | 1, MatmulNumericalImplFlags)


@pytest.mark.parametrize(
    ("name", "value", "error", "text"),
    [
        ("reduction_scheme_mask", 8, InvalidArgumentError, "NONE, INPLACE, COMPUTE_TYPE, OUTPUT_TYPE, MASK"),
        ("reduction_scheme_mask", "NONE", ArgumentTypeError, "members of MatmulReductionScheme, joined by |"),
        ("numerical_impl_mask", 0, InvalidArgumentError, "0 leaves no algorithm"),
        ("numerical_impl_mask", 1 << 64, InvalidArgumentError, "OP_TYPE_FMA"),
        ("numerical_impl_mask", -1, InvalidArgumentError, "-1 is negative"),
        ("max_waves_count", -0.5, InvalidArgumentError, "-0.5 is not allowed; give a number of at least 0"),
        ("max_waves_count", float("nan"), InvalidArgumentError, "at least 0"),
        ("max_waves_count", float("inf"), InvalidArgumentError, "at least 0"),
        ("max_waves_count", "1", ArgumentTypeError, "at least 0"),
        ("limit", 0, InvalidArgumentError, "at least 1"),
        ("limit", 2.0, ArgumentTypeError, "at least 1"),
        ("epilog", 3, ArgumentTypeError, "give a MatmulEpilogPreferences or a dict of its attributes"),
        ("epilog", {"aux": 1}, InvalidArgumentError, "those are aux_type, aux_amax"),
    ],
)
def test_a_wrong_preference_is_named_with_what_is_allowed(name, value, error, text):
    with pytest.raises(error) as caught:
        MatmulPlanPreferences(**{name: value})
    assert str(caught.value).startswith(f"{name}: ")
    assert text in str(caught.value)


# -- scales -------------------------------------------------------------------------------------------------


def test_scales_are_kept_as_they_are_given():
    array, number = np.array([2.0], np.float32), np.float32(0.5)
    before = array.copy()
    scales = MatmulQuantizationScales(a=array, b=number, c=3)
    assert scales.a is array
    assert scales.b is number
    assert scales.c == 3
    assert scales.d is None
    assert np.array_equal(array, before)
    assert read_options({"a": array}, MatmulQuantizationScales, "quantization_scales").a is array


def test_scales_of_arrays_can_be_compared():
    array = np.ones(2, np.float32)
    scales = MatmulQuantizationScales(a=array)
    assert scales == scales
    assert scales != MatmulQuantizationScales(a=array)
    assert len({scales, scales}) == 1


@pytest.mark.parametrize("value", ["1", True, np.True_, 1j, np.complex64(1), [1.0], (1.0,), {}, np.str_("1")])
def test_a_scale_is_a_real_number_or_an_array(value):
    with pytest.raises(ArgumentTypeError, match=r"^quantization_scales\.c: .* give a real number or an array"):
        MatmulQuantizationScales(c=value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), np.float32("-inf")])
def test_a_scale_is_finite(value):
    with pytest.raises(InvalidArgumentError, match=r"^quantization_scales\.d: .* give a finite number"):
        MatmulQuantizationScales(d=value)


# -- memory limits ------------------------------------------------------------------------------------------

TOTAL = 150_000_000_001


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (0, 0),
        (0.0, 0),
        ("0 B", 0),
        ("0%", 0),
        (1, 1),
        ("1 B", 1),
        ("1 byte", 1),
        ("64 bytes", 64),
        ("0.1%", 150_000_000),
        ("80%", 120_000_000_000),
        (0.8, 120_000_000_000),
        (np.float32(0.5), 75_000_000_000),
        ("100 %", TOTAL),
        (1.0, TOTAL),
        (TOTAL, TOTAL),
        (np.int64(12345), 12345),
        ("1 GiB", 1_073_741_824),
        ("1GiB", 1_073_741_824),
        ("512 MiB", 536_870_912),
        ("1.5 GB", 1_500_000_000),
        ("1.5gb", 1_500_000_000),
        (".5 kB", 500),
        ("1. KiB", 1024),
        ("  2 MB ", 2_000_000),
        ("0.1 TB", 100_000_000_000),
        ("0.125 TiB", 137_438_953_472),
        ("5e7 B", 50_000_000),
        (50e6, 50_000_000),
        ("1.9 B", 1),
    ],
)
def test_r103_memory_limits_in_all_forms(limit, expected):
    assert memory_limit_bytes(limit, TOTAL) == expected
    assert MatmulOptions(memory_limit=limit).memory_limit == limit


def test_r103_decimal_shares_are_exact():
    """0.29 * 100 is 28.999... in binary floating point."""
    assert memory_limit_bytes(0.29, 100) == 29
    assert memory_limit_bytes("29%", 100) == 29


@given(part=st.integers(0, 10_000), total=st.integers(0, 10**13))
def test_r103_a_share_is_that_part_of_the_memory(part, total):
    text = f"{part // 100}.{part % 100:02d}%"
    assert memory_limit_bytes(text, total) == part * total // 10_000


@pytest.mark.parametrize(
    ("limit", "error", "text"),
    [
        (-1, InvalidArgumentError, "-1 is negative"),
        (-0.5, InvalidArgumentError, "-0.5 is negative"),
        ("-1 GiB", InvalidArgumentError, "'-1 GiB' is negative"),
        ("-5%", InvalidArgumentError, "'-5%' is negative"),
        ("150%", InvalidArgumentError, "more than the whole memory"),
        (1.5, InvalidArgumentError, "neither a share nor whole bytes"),
        (float("nan"), InvalidArgumentError, "not a limit"),
        (float("inf"), InvalidArgumentError, "not a limit"),
        ("", InvalidArgumentError, "not a limit"),
        ("GiB", InvalidArgumentError, "not a limit"),
        ("1 GiB free", InvalidArgumentError, "not a limit"),
        ("1e999 B", InvalidArgumentError, "not a limit"),
        ("80", InvalidArgumentError, "has no unit; units are %, B, kB, MB, GB, TB, KiB, MiB, GiB and TiB"),
        ("1 G", InvalidArgumentError, "unknown unit 'G'; units are"),
        ("1 furlong", InvalidArgumentError, "unknown unit 'furlong'; units are"),
        (True, ArgumentTypeError, "is a bool"),
        ([1], ArgumentTypeError, "is a list"),
        (1j, ArgumentTypeError, "is a complex"),
    ],
)
def test_r103_what_is_no_limit_is_refused_before_there_is_a_device(limit, error, text):
    for make in (lambda: MatmulOptions(memory_limit=limit), lambda: memory_limit_bytes(limit, TOTAL)):
        with pytest.raises(error) as caught:
            make()
        assert str(caught.value).startswith("memory_limit: ")
        assert text in str(caught.value)


@pytest.mark.parametrize(
    ("limit", "asked"), [(TOTAL + 1, TOTAL + 1), ("140 GiB", 150_323_855_360), ("1 TB", 10**12), (200e9, 2 * 10**11)]
)
def test_r103_a_limit_above_the_devices_memory_is_refused_with_both_figures(limit, asked):
    assert MatmulOptions(memory_limit=limit).memory_limit == limit
    with pytest.raises(InvalidArgumentError) as caught:
        memory_limit_bytes(limit, TOTAL)
    assert f"is {asked} bytes" in str(caught.value)
    assert f"has {TOTAL} bytes" in str(caught.value)
