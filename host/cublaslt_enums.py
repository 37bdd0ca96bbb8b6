# SPDX-License-Identifier: Apache-2.0
"""Enumerations of cuBLASLt 13.10: cublasLt.h, and what it takes from cublas_api.h and library_types.h.

A member is the C name without its prefix: ``CUBLASLT_EPILOGUE_RELU_BIAS`` is ``Epilogue.RELU_BIAS``; a prefix
is kept where a digit would come first (``ComputeType.COMPUTE_32F``). An older cuBLASLt knows fewer members. Tile,
stages and cluster ids are in ``cublaslt_tiles``. A test compares every value with the headers.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag


class Status(IntEnum):
    """What nearly every cuBLASLt call returns."""

    SUCCESS = 0
    NOT_INITIALIZED = 1
    ALLOC_FAILED = 3
    INVALID_VALUE = 7
    ARCH_MISMATCH = 8
    MAPPING_ERROR = 11
    EXECUTION_FAILED = 13
    INTERNAL_ERROR = 14
    NOT_SUPPORTED = 15
    LICENSE_ERROR = 16


class LibraryProperty(IntEnum):
    """What ``cublasLtGetProperty`` can be asked."""

    MAJOR_VERSION = 0
    MINOR_VERSION = 1
    PATCH_LEVEL = 2


class CudaDataType(IntEnum):
    """Element types of matrices and of scalars: R real, C complex."""

    CUDA_R_16F = 2
    CUDA_C_16F = 6
    CUDA_R_16BF = 14
    CUDA_C_16BF = 15
    CUDA_R_32F = 0
    CUDA_C_32F = 4
    CUDA_R_64F = 1
    CUDA_C_64F = 5
    CUDA_R_4I = 16
    CUDA_C_4I = 17
    CUDA_R_4U = 18
    CUDA_C_4U = 19
    CUDA_R_8I = 3
    CUDA_C_8I = 7
    CUDA_R_8U = 8
    CUDA_C_8U = 9
    CUDA_R_16I = 20
    CUDA_C_16I = 21
    CUDA_R_16U = 22
    CUDA_C_16U = 23
    CUDA_R_32I = 10
    CUDA_C_32I = 11
    CUDA_R_32U = 12
    CUDA_C_32U = 13
    CUDA_R_64I = 24
    CUDA_C_64I = 25
    CUDA_R_64U = 26
    CUDA_C_64U = 27
    CUDA_R_8F_E4M3 = 28
    CUDA_R_8F_UE4M3 = 28
    CUDA_R_8F_E5M2 = 29
    CUDA_R_8F_UE8M0 = 30
    CUDA_R_6F_E2M3 = 31
    CUDA_R_6F_E3M2 = 32
    CUDA_R_4F_E2M1 = 33
    CUDA_R_8F_UE5M3 = 34


class ComputeType(IntEnum):
    """Arithmetic of products and sums; PEDANTIC forbids every shortcut, FAST and EMULATED allow the one named."""

    COMPUTE_16F = 64
    COMPUTE_16F_PEDANTIC = 65
    COMPUTE_32F = 68
    COMPUTE_32F_PEDANTIC = 69
    COMPUTE_32F_FAST_16F = 74
    COMPUTE_32F_FAST_16BF = 75
    COMPUTE_32F_FAST_TF32 = 77
    COMPUTE_32F_EMULATED_16BFX9 = 78
    COMPUTE_64F = 70
    COMPUTE_64F_PEDANTIC = 71
    COMPUTE_64F_EMULATED_FIXEDPOINT = 79
    COMPUTE_32I = 72
    COMPUTE_32I_PEDANTIC = 73


class Operation(IntEnum):
    """What is done to an operand before the product. CONJG is a placeholder that cuBLAS does not support."""

    N = 0
    T = 1
    C = 2
    HERMITAN = 2
    CONJG = 3


class FillMode(IntEnum):
    """Which part of a matrix is used."""

    LOWER = 0
    UPPER = 1
    FULL = 2


class PointerMode(IntEnum):
    """Where alpha and beta are, and whether they are one value or one per row of D."""

    HOST = 0
    DEVICE = 1
    DEVICE_VECTOR = 2
    ALPHA_DEVICE_VECTOR_BETA_ZERO = 3
    ALPHA_DEVICE_VECTOR_BETA_HOST = 4


class PointerModeMask(IntFlag):
    """Pointer modes of an algorithm, as ``MatmulAlgoCapAttribute.POINTER_MODE_MASK`` answers."""

    HOST = 1
    DEVICE = 2
    DEVICE_VECTOR = 4
    ALPHA_DEVICE_VECTOR_BETA_ZERO = 8
    ALPHA_DEVICE_VECTOR_BETA_HOST = 16


class Order(IntEnum):
    """Order of a matrix in memory."""

    COL = 0
    ROW = 1
    COL32 = 2
    COL4_4R2_8C = 3
    COL32_2R_4R4 = 4


class BatchMode(IntEnum):
    """How the matrices of a batch are found: by one stride, by an array of pointers, or as groups of any shape."""

    STRIDED = 0
    POINTER_ARRAY = 1
    GROUPED = 2


class IntegerWidth(IntEnum):
    """Width of the integers in the device arrays of a grouped layout."""

    WIDTH_32 = 0
    WIDTH_64 = 1


class Epilogue(IntEnum):
    """What happens to the product before it is written. 128 adds an auxiliary buffer."""

    DEFAULT = 1
    RELU = 2
    RELU_AUX = 2 | 128
    BIAS = 4
    RELU_BIAS = 2 | 4
    RELU_AUX_BIAS = 2 | 128 | 4
    DRELU = 8 | 128
    DRELU_BGRAD = 8 | 128 | 16
    GELU = 32
    GELU_AUX = 32 | 128
    GELU_BIAS = 32 | 4
    GELU_AUX_BIAS = 32 | 128 | 4
    DGELU = 64 | 128
    DGELU_BGRAD = 64 | 128 | 16
    BGRADA = 256
    BGRADB = 512


class MatrixScale(IntEnum):
    """What the scale pointer of a matrix points to: one number, or one per vector, block, row or batch entry.

    ``VEC32_UE8M0`` is MXFP8's, ``VEC16_UE4M3`` NVFP4's, ``OUTER_VEC_32F`` one per row of A and column of B.
    """

    SCALAR_32F = 0
    VEC16_UE4M3 = 1
    VEC32_UE8M0 = 2
    OUTER_VEC_32F = 3
    VEC128_32F = 4
    BLK128x128_32F = 5
    PER_BATCH_SCALAR_32F = 6
    VEC128_MN_K4_UE8M0 = 12
    VEC32_MN_K4_UE8M0 = 13
    RESERVED = 0x7F


class BatchInvarianceFlags(IntEnum):
    """Results of one matrix that do not depend on its batch; the alignment that kernels may then assume."""

    DISABLED = 0x0
    ALIGN_2B = 0x1
    ALIGN_4B = 0x2
    ALIGN_8B = 0x3
    ALIGN_16B = 0x4
    AUTO = 0x8
    UNSET = 0x8000


class ReductionScheme(IntFlag):
    """How the parts of a split K are added up; as a mask, which of these are allowed. NONE: no split."""

    NONE = 0
    INPLACE = 1
    COMPUTE_TYPE = 2
    OUTPUT_TYPE = 4
    MASK = 0x7


class MatmulInnerShape(IntEnum):
    """Shape of the tensor core instruction."""

    UNDEFINED = 0
    MMA884 = 1
    MMA1684 = 2
    MMA1688 = 3
    MMA16816 = 4


class MatmulSearch(IntEnum):
    """How heuristics search: freely, or among the configurations of the given algorithm."""

    BEST_FIT = 0
    LIMITED_BY_ALGO_ID = 1
    RESERVED_02 = 2
    RESERVED_03 = 3
    RESERVED_04 = 4
    RESERVED_05 = 5
    RESERVED_06 = 6
    RESERVED_07 = 7
    RESERVED_08 = 8
    RESERVED_09 = 9


class NumericalImplFlags(IntFlag):
    """What an algorithm computes with: instruction, accumulator and input of the instruction."""

    FMA = 0x01
    HMMA = 0x02
    IMMA = 0x04
    DMMA = 0x08
    TENSOR_OP_MASK = 0xFE
    OP_TYPE_MASK = 0xFF
    ACCUMULATOR_16F = 0x01 << 8
    ACCUMULATOR_32F = 0x02 << 8
    ACCUMULATOR_64F = 0x04 << 8
    ACCUMULATOR_32I = 0x08 << 8
    ACCUMULATOR_TYPE_MASK = 0xFF << 8
    INPUT_16F = 0x01 << 16
    INPUT_16BF = 0x02 << 16
    INPUT_TF32 = 0x04 << 16
    INPUT_32F = 0x08 << 16
    INPUT_64F = 0x10 << 16
    INPUT_8I = 0x20 << 16
    INPUT_8F_E4M3 = 0x40 << 16
    INPUT_8F_E5M2 = 0x80 << 16
    OP_INPUT_TYPE_MASK = 0xFF << 16
    GAUSSIAN = 0x01 << 32


class EmulationStrategy(IntEnum):
    """When floating-point emulation is used."""

    DEFAULT = 0
    PERFORMANT = 1
    EAGER = 2


class EmulationMantissaControl(IntEnum):
    """Whether the mantissa bits of emulation are chosen at run time."""

    DYNAMIC = 0
    FIXED = 1


class EmulationSpecialValuesSupport(IntFlag):
    """Which special values emulation must get right."""

    NONE = 0
    INFINITY = 1
    NAN = 2
    DEFAULT = 0xFFFF


class MatrixLayoutAttribute(IntEnum):
    """Attributes of a matrix layout."""

    TYPE = 0
    ORDER = 1
    ROWS = 2
    COLS = 3
    LD = 4
    BATCH_COUNT = 5
    STRIDED_BATCH_OFFSET = 6
    PLANE_OFFSET = 7
    BATCH_MODE = 8
    GROUPED_ROWS_ARRAY = 9
    GROUPED_COLS_ARRAY = 10
    GROUPED_LD_ARRAY = 11
    GROUPED_ROWS_COLS_ARRAY_INTEGER_WIDTH = 12
    GROUPED_LD_ARRAY_INTEGER_WIDTH = 13


class MatmulDescAttribute(IntEnum):
    """Attributes of a matmul descriptor."""

    COMPUTE_TYPE = 0
    SCALE_TYPE = 1
    POINTER_MODE = 2
    TRANSA = 3
    TRANSB = 4
    TRANSC = 5
    FILL_MODE = 6
    EPILOGUE = 7
    BIAS_POINTER = 8
    BIAS_BATCH_STRIDE = 10
    EPILOGUE_AUX_POINTER = 11
    EPILOGUE_AUX_LD = 12
    EPILOGUE_AUX_BATCH_STRIDE = 13
    ALPHA_VECTOR_BATCH_STRIDE = 14
    SM_COUNT_TARGET = 15
    A_SCALE_POINTER = 17
    B_SCALE_POINTER = 18
    C_SCALE_POINTER = 19
    D_SCALE_POINTER = 20
    AMAX_D_POINTER = 21
    EPILOGUE_AUX_DATA_TYPE = 22
    EPILOGUE_AUX_SCALE_POINTER = 23
    EPILOGUE_AUX_AMAX_POINTER = 24
    FAST_ACCUM = 25
    BIAS_DATA_TYPE = 26
    A_SCALE_MODE = 31
    B_SCALE_MODE = 32
    C_SCALE_MODE = 33
    D_SCALE_MODE = 34
    EPILOGUE_AUX_SCALE_MODE = 35
    D_OUT_SCALE_POINTER = 36
    D_OUT_SCALE_MODE = 37
    EMULATION_DESCRIPTOR = 38
    ALPHA_BATCH_STRIDE = 39
    BETA_BATCH_STRIDE = 40
    BATCH_INVARIANCE_FLAGS = 41


class MatmulPreferenceAttribute(IntEnum):
    """What heuristics may use and shall look for."""

    SEARCH_MODE = 0
    MAX_WORKSPACE_BYTES = 1
    REDUCTION_SCHEME_MASK = 3
    MIN_ALIGNMENT_A_BYTES = 5
    MIN_ALIGNMENT_B_BYTES = 6
    MIN_ALIGNMENT_C_BYTES = 7
    MIN_ALIGNMENT_D_BYTES = 8
    MAX_WAVES_COUNT = 9
    IMPL_MASK = 12
    GROUPED_AVERAGE_REDUCTION_DIM = 13
    GROUPED_DESC_D_AVERAGE_ROWS = 14
    GROUPED_DESC_D_AVERAGE_COLS = 15


class MatrixTransformDescAttribute(IntEnum):
    """Attributes of a matrix transform descriptor."""

    SCALE_TYPE = 0
    POINTER_MODE = 1
    TRANSA = 2
    TRANSB = 3


class EmulationDescAttribute(IntEnum):
    """Attributes of a floating-point emulation descriptor."""

    STRATEGY = 0
    SPECIAL_VALUES_SUPPORT = 1
    FIXEDPOINT_MANTISSA_CONTROL = 2
    FIXEDPOINT_MAX_MANTISSA_BIT_COUNT = 3
    FIXEDPOINT_MANTISSA_BIT_OFFSET = 4
    FIXEDPOINT_MANTISSA_BIT_COUNT_POINTER = 5


class MatmulAlgoCapAttribute(IntEnum):
    """What an algorithm can do; read only."""

    SPLITK_SUPPORT = 0
    REDUCTION_SCHEME_MASK = 1
    CTA_SWIZZLING_SUPPORT = 2
    STRIDED_BATCH_SUPPORT = 3
    OUT_OF_PLACE_RESULT_SUPPORT = 4
    UPLO_SUPPORT = 5
    TILE_IDS = 6
    CUSTOM_OPTION_MAX = 7
    CUSTOM_MEMORY_ORDER = 10
    POINTER_MODE_MASK = 11
    EPILOGUE_MASK = 12
    STAGES_IDS = 13
    LD_NEGATIVE = 14
    NUMERICAL_IMPL_FLAGS = 15
    MIN_ALIGNMENT_A_BYTES = 16
    MIN_ALIGNMENT_B_BYTES = 17
    MIN_ALIGNMENT_C_BYTES = 18
    MIN_ALIGNMENT_D_BYTES = 19
    POINTER_ARRAY_BATCH_SUPPORT = 21
    FLOATING_POINT_EMULATION_SUPPORT = 22
    POINTER_ARRAY_GROUPED_SUPPORT = 23


class MatmulAlgoConfigAttribute(IntEnum):
    """How an algorithm is configured; ID is read only."""

    ID = 0
    TILE_ID = 1
    SPLITK_NUM = 2
    REDUCTION_SCHEME = 3
    CTA_SWIZZLING = 4
    CUSTOM_OPTION = 5
    STAGES_ID = 6
    INNER_SHAPE_ID = 7
    CLUSTER_SHAPE_ID = 8
