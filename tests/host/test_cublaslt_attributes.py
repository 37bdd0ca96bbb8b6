# SPDX-License-Identifier: Apache-2.0
"""Every attribute of cuBLASLt's objects there and back, in the size that the library says. No GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import pytest

from nvmath_device.errors import (
    UnsupportedError,
)
from nvmath_device.host import cublaslt_calls
from nvmath_device.host.cublaslt import (
    EmulationDesc,
    MatmulDesc,
    MatmulPreference,
    MatrixLayout,
    MatrixTransformDesc,
)
from nvmath_device.host.cublaslt_algorithms import Algo
from nvmath_device.host.cublaslt_attributes import FIELDS
from nvmath_device.host.cublaslt_enums import (
    BatchInvarianceFlags,
    BatchMode,
    ComputeType,
    CudaDataType,
    EmulationDescAttribute,
    EmulationMantissaControl,
    EmulationSpecialValuesSupport,
    EmulationStrategy,
    Epilogue,
    FillMode,
    IntegerWidth,
    MatmulAlgoConfigAttribute,
    MatmulDescAttribute,
    MatmulInnerShape,
    MatmulPreferenceAttribute,
    MatmulSearch,
    MatrixLayoutAttribute,
    MatrixScale,
    MatrixTransformDescAttribute,
    NumericalImplFlags,
    Operation,
    Order,
    PointerMode,
    ReductionScheme,
    Status,
)
from nvmath_device.host.cublaslt_prototypes import TABLE_VERSION
from nvmath_device.host.cublaslt_tiles import ClusterShape, MatmulStages, MatmulTile

R32F = CudaDataType.CUDA_R_32F
ADDRESS = 0x7F12_3456_7890_ABC0  # needs all 64 bits, and is aligned to 64 bytes
FAR = 3 * 2**40 + 16  # needs more than 32 bits

# One value for every attribute, none of them the default. A list: members of two enumerations are equal as numbers.
VALUES: list[tuple[IntEnum, Any]] = [
    (MatmulDescAttribute.COMPUTE_TYPE, ComputeType.COMPUTE_32F_FAST_TF32),
    (MatmulDescAttribute.SCALE_TYPE, CudaDataType.CUDA_C_64F),
    (MatmulDescAttribute.POINTER_MODE, PointerMode.ALPHA_DEVICE_VECTOR_BETA_HOST),
    (MatmulDescAttribute.TRANSA, Operation.T),
    (MatmulDescAttribute.TRANSB, Operation.C),
    (MatmulDescAttribute.TRANSC, Operation.T),
    (MatmulDescAttribute.FILL_MODE, FillMode.UPPER),
    (MatmulDescAttribute.EPILOGUE, Epilogue.GELU_AUX_BIAS),
    (MatmulDescAttribute.BIAS_POINTER, ADDRESS),
    (MatmulDescAttribute.BIAS_BATCH_STRIDE, FAR),
    (MatmulDescAttribute.EPILOGUE_AUX_POINTER, ADDRESS + 64),
    (MatmulDescAttribute.EPILOGUE_AUX_LD, FAR),
    (MatmulDescAttribute.EPILOGUE_AUX_BATCH_STRIDE, -FAR),
    (MatmulDescAttribute.ALPHA_VECTOR_BATCH_STRIDE, FAR),
    (MatmulDescAttribute.SM_COUNT_TARGET, 66),
    (MatmulDescAttribute.A_SCALE_POINTER, ADDRESS),
    (MatmulDescAttribute.B_SCALE_POINTER, ADDRESS + 64),
    (MatmulDescAttribute.C_SCALE_POINTER, ADDRESS + 128),
    (MatmulDescAttribute.D_SCALE_POINTER, ADDRESS + 192),
    (MatmulDescAttribute.AMAX_D_POINTER, ADDRESS + 256),
    (MatmulDescAttribute.EPILOGUE_AUX_DATA_TYPE, CudaDataType.CUDA_R_8F_E4M3),
    (MatmulDescAttribute.EPILOGUE_AUX_SCALE_POINTER, ADDRESS + 320),
    (MatmulDescAttribute.EPILOGUE_AUX_AMAX_POINTER, ADDRESS + 384),
    (MatmulDescAttribute.FAST_ACCUM, 1),
    (MatmulDescAttribute.BIAS_DATA_TYPE, CudaDataType.CUDA_R_16BF),
    (MatmulDescAttribute.A_SCALE_MODE, MatrixScale.VEC32_UE8M0),
    (MatmulDescAttribute.B_SCALE_MODE, MatrixScale.OUTER_VEC_32F),
    (MatmulDescAttribute.C_SCALE_MODE, MatrixScale.BLK128x128_32F),
    (MatmulDescAttribute.D_SCALE_MODE, MatrixScale.VEC128_32F),
    (MatmulDescAttribute.EPILOGUE_AUX_SCALE_MODE, MatrixScale.VEC32_UE8M0),
    (MatmulDescAttribute.D_OUT_SCALE_POINTER, ADDRESS + 448),
    (MatmulDescAttribute.D_OUT_SCALE_MODE, MatrixScale.VEC16_UE4M3),
    (MatmulDescAttribute.EMULATION_DESCRIPTOR, ADDRESS),
    (MatmulDescAttribute.ALPHA_BATCH_STRIDE, FAR),
    (MatmulDescAttribute.BETA_BATCH_STRIDE, FAR),
    (MatmulDescAttribute.BATCH_INVARIANCE_FLAGS, BatchInvarianceFlags.ALIGN_16B),
    (MatrixLayoutAttribute.TYPE, CudaDataType.CUDA_R_8F_E5M2),
    (MatrixLayoutAttribute.ORDER, Order.ROW),
    (MatrixLayoutAttribute.ROWS, FAR),
    (MatrixLayoutAttribute.COLS, FAR + 1),
    (MatrixLayoutAttribute.LD, -FAR),
    (MatrixLayoutAttribute.BATCH_COUNT, 12345),
    (MatrixLayoutAttribute.STRIDED_BATCH_OFFSET, -FAR),
    (MatrixLayoutAttribute.PLANE_OFFSET, FAR),
    (MatrixLayoutAttribute.BATCH_MODE, BatchMode.POINTER_ARRAY),
    (MatrixLayoutAttribute.GROUPED_ROWS_ARRAY, ADDRESS),
    (MatrixLayoutAttribute.GROUPED_COLS_ARRAY, ADDRESS + 64),
    (MatrixLayoutAttribute.GROUPED_LD_ARRAY, ADDRESS + 128),
    (MatrixLayoutAttribute.GROUPED_ROWS_COLS_ARRAY_INTEGER_WIDTH, IntegerWidth.WIDTH_64),
    (MatrixLayoutAttribute.GROUPED_LD_ARRAY_INTEGER_WIDTH, IntegerWidth.WIDTH_64),
    (MatmulPreferenceAttribute.SEARCH_MODE, MatmulSearch.LIMITED_BY_ALGO_ID),
    (MatmulPreferenceAttribute.MAX_WORKSPACE_BYTES, 5 * 2**33),
    (MatmulPreferenceAttribute.REDUCTION_SCHEME_MASK, ReductionScheme.INPLACE | ReductionScheme.OUTPUT_TYPE),
    (MatmulPreferenceAttribute.MIN_ALIGNMENT_A_BYTES, 2),
    (MatmulPreferenceAttribute.MIN_ALIGNMENT_B_BYTES, 4),
    (MatmulPreferenceAttribute.MIN_ALIGNMENT_C_BYTES, 8),
    (MatmulPreferenceAttribute.MIN_ALIGNMENT_D_BYTES, 16),
    (MatmulPreferenceAttribute.MAX_WAVES_COUNT, 1.5),
    (MatmulPreferenceAttribute.IMPL_MASK, NumericalImplFlags.HMMA | NumericalImplFlags.GAUSSIAN),
    (MatmulPreferenceAttribute.GROUPED_AVERAGE_REDUCTION_DIM, FAR),
    (MatmulPreferenceAttribute.GROUPED_DESC_D_AVERAGE_ROWS, FAR),
    (MatmulPreferenceAttribute.GROUPED_DESC_D_AVERAGE_COLS, FAR),
    (MatrixTransformDescAttribute.SCALE_TYPE, CudaDataType.CUDA_R_32I),
    (MatrixTransformDescAttribute.POINTER_MODE, PointerMode.DEVICE),
    (MatrixTransformDescAttribute.TRANSA, Operation.T),
    (MatrixTransformDescAttribute.TRANSB, Operation.C),
    (EmulationDescAttribute.STRATEGY, EmulationStrategy.EAGER),
    (EmulationDescAttribute.SPECIAL_VALUES_SUPPORT, EmulationSpecialValuesSupport.NAN),
    (EmulationDescAttribute.FIXEDPOINT_MANTISSA_CONTROL, EmulationMantissaControl.FIXED),
    (EmulationDescAttribute.FIXEDPOINT_MAX_MANTISSA_BIT_COUNT, 55),
    (EmulationDescAttribute.FIXEDPOINT_MANTISSA_BIT_OFFSET, -3),
    (EmulationDescAttribute.FIXEDPOINT_MANTISSA_BIT_COUNT_POINTER, ADDRESS),
    (MatmulAlgoConfigAttribute.TILE_ID, int(MatmulTile.TILE_256x1024)),
    (MatmulAlgoConfigAttribute.SPLITK_NUM, 7),
    (MatmulAlgoConfigAttribute.REDUCTION_SCHEME, ReductionScheme.COMPUTE_TYPE),
    (MatmulAlgoConfigAttribute.CTA_SWIZZLING, 1),
    (MatmulAlgoConfigAttribute.CUSTOM_OPTION, 3),
    (MatmulAlgoConfigAttribute.STAGES_ID, int(MatmulStages.STAGES_64xAUTO)),
    (MatmulAlgoConfigAttribute.INNER_SHAPE_ID, MatmulInnerShape.MMA16816),
    (MatmulAlgoConfigAttribute.CLUSTER_SHAPE_ID, int(ClusterShape.SHAPE_2x1x1)),
]
MAKERS: dict[type[IntEnum], Callable[[], Any]] = {
    MatmulDescAttribute: lambda: MatmulDesc(ComputeType.COMPUTE_32F, R32F),
    MatrixLayoutAttribute: lambda: MatrixLayout(R32F, 4, 5, 4),
    MatmulPreferenceAttribute: MatmulPreference,
    MatrixTransformDescAttribute: lambda: MatrixTransformDesc(R32F),
    EmulationDescAttribute: EmulationDesc,
    MatmulAlgoConfigAttribute: Algo,
}


def desc() -> MatmulDesc:
    return MatmulDesc(ComputeType.COMPUTE_32F, R32F)


def test_every_attribute_but_the_read_only_one_is_tried() -> None:
    everything = {str(member) + cls.__name__ for cls in MAKERS for member in cls}
    read_only = {str(MatmulAlgoConfigAttribute.ID) + "MatmulAlgoConfigAttribute"}
    assert {str(attribute) + type(attribute).__name__ for attribute, _ in VALUES} == everything - read_only


def has(attribute: IntEnum) -> bool:
    """Whether the loaded cuBLASLt has an attribute; the version that the tables are of has all."""
    if type(attribute) is EmulationDescAttribute and not cublaslt_calls.supports("cublasLtEmulationDescCreate"):
        return False
    return cublaslt_calls.version() >= TABLE_VERSION or MAKERS[type(attribute)]().supports(attribute)


@pytest.mark.parametrize(("attribute", "value"), VALUES, ids=lambda v: f"{type(v).__name__}.{getattr(v, 'name', v)}")
def test_attribute_there_and_back(attribute: IntEnum, value: Any) -> None:
    if not has(attribute):
        with pytest.raises(UnsupportedError, match="newer cuBLASLt"):
            MAKERS[type(attribute)]().set(attribute, value)
        return
    subject = MAKERS[type(attribute)]()
    others = [other for other in type(attribute) if other is not attribute and has(other)]
    before = [subject.get(other) for other in others]
    assert subject.get(attribute) != value, "the value tried must not be the default"
    subject.set(attribute, value)
    assert subject.get(attribute) == value
    assert type(subject.get(attribute)) is type(value)
    assert [subject.get(other) for other in others] == before, "no other attribute has changed"


@pytest.mark.parametrize(
    "attribute", [attribute for attribute, _ in VALUES], ids=lambda v: f"{type(v).__name__}.{v.name}"
)
def test_attribute_has_the_size_that_the_library_says(attribute: IntEnum) -> None:
    """Asked of C directly; a value of one byte more or less is refused."""
    if not has(attribute):
        return
    subject = MAKERS[type(attribute)]()
    size, written = ctypes.sizeof(FIELDS[type(attribute)][attribute].ctype), ctypes.c_size_t()
    get, put = cublaslt_calls.bind(subject._getter), cublaslt_calls.bind(subject._setter)
    assert get(subject._object(), attribute, None, 0, ctypes.byref(written)) == Status.SUCCESS
    assert written.value == size
    for other in (size - 1, size + 1):
        assert put(subject._object(), attribute, bytes(16), other) == Status.INVALID_VALUE


def test_values_of_a_new_object() -> None:
    """The documented defaults, each of another storage: signed, masked, float, byte, null."""
    fresh, preference = desc(), MatmulPreference()
    assert fresh.get(MatmulDescAttribute.EPILOGUE) is Epilogue.DEFAULT
    assert fresh.get(MatmulDescAttribute.EPILOGUE_AUX_DATA_TYPE) == -1  # not set, and no member of CudaDataType
    assert fresh.get(MatmulDescAttribute.BIAS_POINTER) == 0
    assert fresh.get(MatmulDescAttribute.FAST_ACCUM) == 0
    assert preference.get(MatmulPreferenceAttribute.REDUCTION_SCHEME_MASK) == ReductionScheme.MASK
    assert preference.get(MatmulPreferenceAttribute.IMPL_MASK) == 2**64 - 1
    assert preference.get(MatmulPreferenceAttribute.MIN_ALIGNMENT_A_BYTES) == 256
    waves = preference.get(MatmulPreferenceAttribute.MAX_WAVES_COUNT)
    assert (waves, type(waves)) == (0.0, float)


def test_constructors_set_what_they_are_given() -> None:
    made = MatrixLayout(CudaDataType.CUDA_R_16BF, 3, 5, 7, {MatrixLayoutAttribute.BATCH_COUNT: 9})
    names = ("TYPE", "ROWS", "COLS", "LD", "BATCH_COUNT", "ORDER")
    got = [made.get(MatrixLayoutAttribute[name]) for name in names]
    assert got == [CudaDataType.CUDA_R_16BF, 3, 5, 7, 9, Order.COL]
    product = MatmulDesc(ComputeType.COMPUTE_64F, CudaDataType.CUDA_R_64F, {MatmulDescAttribute.TRANSB: Operation.T})
    assert product.get(MatmulDescAttribute.COMPUTE_TYPE) is ComputeType.COMPUTE_64F
    assert product.get(MatmulDescAttribute.SCALE_TYPE) is CudaDataType.CUDA_R_64F
    assert product.get(MatmulDescAttribute.TRANSB) is Operation.T
