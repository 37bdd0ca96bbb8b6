# SPDX-License-Identifier: Apache-2.0
"""Enumerations of libmathdx 0.4.2: commondx, cublasdx (``Blas...``), cufftdx (``Fft...``).

A member is the C name without its prefix: ``COMMONDX_PRECISION_F32`` is ``Precision.F32``. An older libmathdx
knows fewer members and refuses the others with status 1 or 2. A test compares every value with the headers.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag


class ValueType(IntEnum):
    """Element types of operands; a complex value is one element, aligned to its size."""

    R_8F_E5M2 = 0
    C_8F_E5M2 = 1
    R_8F_E4M3 = 2
    C_8F_E4M3 = 3
    R_16BF = 4
    C_16BF = 5
    R_16F2 = 6
    R_16F = 7
    C_16F = 8
    C_16F2 = 9
    R_32TF = 10
    C_32TF = 11
    R_32F = 12
    C_32F = 13
    R_64F = 14
    C_64F = 15
    R_8I = 16
    C_8I = 17
    R_16I = 18
    C_16I = 19
    R_32I = 20
    C_32I = 21
    R_64I = 22
    C_64I = 23
    R_8UI = 24
    C_8UI = 25
    R_16UI = 26
    C_16UI = 27
    R_32UI = 28
    C_32UI = 29
    R_64UI = 30
    C_64UI = 31


class StatusType(IntEnum):
    """What every libmathdx call returns."""

    SUCCESS = 0
    INVALID_VALUE = 1
    INTERNAL_ERROR = 2
    COMPILATION_ERROR = 3
    CUFFT_ERROR = 4
    FILE_ERROR = 5


class Precision(IntEnum):
    """Precision of one operand; whether it is real or complex is said elsewhere."""

    F8_E5M2 = 0
    F8_E4M3 = 1
    BF16 = 2
    F16 = 3
    TF32 = 4
    F32 = 5
    F64 = 6
    I8 = 7
    I16 = 8
    I32 = 9
    I64 = 10
    UI8 = 11
    UI16 = 12
    UI32 = 13
    UI64 = 14


class ArchModifier(IntEnum):
    """Which feature set of an architecture code may use (sm_90, sm_90a, sm_100f)."""

    GENERIC = 0
    ARCH_SPECIFIC = 1
    FAMILY_SPECIFIC = 2


class Option(IntEnum):
    """Options of a code handle; SYMBOL_NAME is an option of descriptors."""

    SYMBOL_NAME = 0
    TARGET_SM = 1
    CODE_CONTAINER = 2
    CODE_ISA = 3
    EXTRA_NVRTC_ARGS = 4
    TARGET_CODE = 5


class Execution(IntEnum):
    """Who executes a call together."""

    THREAD = 0
    BLOCK = 1
    WARP = 2


class FunctionAbi(IntEnum):
    """Calling convention of a generated function."""

    NATIVE = 0
    TILE = 1


class CodeType(IntEnum):
    """Kind of code to generate."""

    LTO = 0
    PTX = 1


class CodeContainer(IntEnum):
    """File format around the generated code."""

    LTOIR = 0
    FATBIN = 1
    PTX = 2


class BlasApi(IntEnum):
    """Signature of the generated GEMM function."""

    SMEM = 0
    SMEM_DYNAMIC_LD = 1
    TENSORS = 2


class BlasDevicePipelineType(IntEnum):
    """Kinds of device pipeline."""

    SUGGESTED = 0


class BlasTilePipelineType(IntEnum):
    """Kinds of tile pipeline."""

    DEFAULT = 0


class BlasBlockSizeStrategy(IntEnum):
    """Who chooses a pipeline's block size."""

    HEURISTIC = 0
    FIXED = 1


class BlasType(IntEnum):
    """Real or complex GEMM."""

    REAL = 0
    COMPLEX = 1


class BlasMemorySpace(IntEnum):
    """Where a tensor's elements live."""

    RMEM = 0
    SMEM = 1
    GMEM = 2
    ANY = 3


class BlasTransposeMode(IntEnum):
    """How an operand enters the product; the older alternative to an arrangement."""

    NON_TRANSPOSED = 0
    TRANSPOSED = 1
    CONJ_TRANSPOSED = 2


class BlasArrangement(IntEnum):
    """Storage order of an operand."""

    COL_MAJOR = 0
    ROW_MAJOR = 1


class BlasFunction(IntEnum):
    """BLAS function to generate."""

    MM = 0
    TRSM = 1


class BlasFillMode(IntEnum):
    """Triangle of a triangular matrix that is stored."""

    UPPER = 0
    LOWER = 1


class BlasSide(IntEnum):
    """Side of the unknown on which the triangular matrix stands."""

    LEFT = 0
    RIGHT = 1


class BlasDiag(IntEnum):
    """Whether the diagonal of a triangular matrix is all ones."""

    UNIT = 0
    NON_UNIT = 1


class BlasStaticBlockDim(IntEnum):
    """Whether block dimensions are static; not by default."""

    DISABLED = 0
    ENABLED = 1


class BlasInputStreaming(IntEnum):
    """Whether input streaming is on; off by default."""

    DISABLED = 0
    ENABLED = 1


class BlasWithPipeline(IntEnum):
    """Whether the descriptor is used by pipelines."""

    DISABLED = 0
    ENABLED = 1


class BlasOperatorType(IntEnum):
    """Operators that describe a BLAS function."""

    FUNCTION = 0
    SIZE = 1
    TYPE = 2
    PRECISION = 3
    SM = 4
    EXECUTION = 5
    BLOCK_DIM = 6
    LEADING_DIMENSION = 7
    TRANSPOSE_MODE = 8
    API = 9
    ARRANGEMENT = 10
    ALIGNMENT = 11
    STATIC_BLOCK_DIM = 12
    ENABLE_INPUT_STREAMING = 13
    WITH_PIPELINE = 14
    SIDE = 15
    FILL_MODE = 16
    DIAG = 17


class BlasTraitType(IntEnum):
    """What can be asked of a BLAS descriptor."""

    VALUE_TYPE = 0
    SIZE = 1
    BLOCK_SIZE = 2
    BLOCK_DIM = 3
    LEADING_DIMENSION = 4
    SYMBOL_NAME = 5
    ARRANGEMENT = 6
    ALIGNMENT = 7
    SUGGESTED_LEADING_DIMENSION = 8
    SUGGESTED_BLOCK_DIM = 9
    MAX_THREADS_PER_BLOCK = 10


class BlasTensorType(IntEnum):
    """Opaque tensors of a BLAS descriptor."""

    SMEM_A = 0
    SMEM_B = 1
    SMEM_C = 2
    SUGGESTED_SMEM_A = 3
    SUGGESTED_SMEM_B = 4
    SUGGESTED_SMEM_C = 5
    SUGGESTED_RMEM_C = 6
    GMEM_A = 7
    GMEM_B = 8
    GMEM_C = 9
    SUGGESTED_ACCUMULATOR_C = 10
    RMEM_C = 11
    ACCUMULATOR_C = 12


class BlasTensorOption(IntEnum):
    """Options of a tensor."""

    ALIGNMENT_BYTES = 0


class BlasTensorTrait(IntEnum):
    """What can be asked of a tensor."""

    STORAGE_BYTES = 0
    ALIGNMENT_BYTES = 1
    UID = 2
    OPAQUE_NAME = 4
    LOGICAL_SIZE = 5
    MEMORY_SPACE = 6


class BlasPipelineTrait(IntEnum):
    """What can be asked of a pipeline."""

    STORAGE_BYTES = 0
    STORAGE_ALIGNMENT_BYTES = 1
    BUFFER_SIZE = 2
    BUFFER_ALIGNMENT_BYTES = 3
    OPAQUE_NAME = 4
    BLOCK_DIM = 5


class BlasDeviceFunctionTrait(IntEnum):
    """What can be asked of a device function."""

    SYMBOL = 1


class BlasDeviceFunctionOption(IntEnum):
    """Options of a device function."""

    SYMBOL_NAME = 0
    COPY_ALIGNMENT = 1
    CALLBACK = 2
    NUM_THREADS = 3


class BlasDeviceFunctionType(IntEnum):
    """Device functions over opaque tensors."""

    EXECUTE = 0
    COPY = 1
    COPY_WAIT = 2
    CLEAR = 3
    AXPBY = 4
    MAP_IDX2CRD = 5
    MAP_IDX2CRD_PARTITIONER = 6
    MAP_CRD2IDX = 7
    IS_THREAD_ACTIVE = 8
    IS_PREDICATED = 9
    IS_INDEX_IN_BOUNDS = 10
    CREATE = 11
    DESTROY = 12
    RESET = 13
    EPILOGUE = 14
    FINISH_ACCUMULATION = 15


class FftDeviceFunctionType(IntFlag):
    """Device functions that one FFT descriptor generates; combine with ``|``."""

    EXECUTE = 1 << 0
    FFT_ID = 1 << 1
    BATCH_ID = 1 << 2
    IS_THREAD_ACTIVE = 1 << 3


class FftApi(IntEnum):
    """Where the generated FFT keeps its elements."""

    LMEM = 0
    SMEM = 1


class FftType(IntEnum):
    """Complex or real transform."""

    C2C = 0
    R2C = 1
    C2R = 2


class FftDirection(IntEnum):
    """Sign of the exponent."""

    FORWARD = 0
    INVERSE = 1


class FftComplexLayout(IntEnum):
    """How the complex side of a real transform is stored."""

    NATURAL = 0
    PACKED = 1
    FULL = 2


class FftRealMode(IntEnum):
    """Whether a real transform is folded into a complex one of half the size."""

    NORMAL = 0
    FOLDED = 1


class FftCodeType(IntEnum):
    """Implementation of an FFT: inlined PTX or LTO-IR."""

    PTX = 0
    LTOIR = 1


class FftThreadLinearization(IntEnum):
    """Experimental numbering of threads, for PTX code only."""

    DISABLED = 0
    ENABLED = 1


class FftTransposition(IntEnum):
    """How an FFT exchanges elements through shared memory."""

    ANY = 0
    NONE = 1
    BY_COMPONENT = 2
    BY_COMPLEX = 3
    BY_COMPONENT_PADDED = 4


class FftThreadLayout(IntEnum):
    """Which of FFT thread and FFT batch is contiguous in the block."""

    REGULAR = 0
    TRANSPOSED = 1


class FftOperatorType(IntEnum):
    """Operators that describe an FFT."""

    SIZE = 0
    DIRECTION = 1
    TYPE = 2
    PRECISION = 3
    SM = 4
    EXECUTION = 5
    FFTS_PER_BLOCK = 6
    ELEMENTS_PER_THREAD = 7
    BLOCK_DIM = 8
    REAL_FFT_OPTIONS = 9
    API = 10
    CODE_TYPE = 11
    FUNCTION_ABI = 12
    THREAD_LINEARIZATION = 13
    TRANSPOSITION = 14
    THREAD_LAYOUT = 15
    DEVICE_FUNCTION = 16


class FftKnobType(IntEnum):
    """Performance settings that can be listed for an FFT."""

    ELEMENTS_PER_THREAD = 0
    FFTS_PER_BLOCK = 1
    TRANSPOSITION = 2


class FftTraitType(IntEnum):
    """What can be asked of an FFT descriptor."""

    VALUE_TYPE = 0
    INPUT_TYPE = 1
    OUTPUT_TYPE = 2
    IMPLICIT_TYPE_BATCHING = 3
    ELEMENTS_PER_THREAD = 4
    STORAGE_SIZE = 5
    STRIDE = 6
    BLOCK_DIM = 7
    SHARED_MEMORY_SIZE = 8
    FFTS_PER_BLOCK = 9
    SYMBOL_NAME = 10
    INPUT_LENGTH = 11
    OUTPUT_LENGTH = 12
    INPUT_ELEMENTS_PER_THREAD = 13
    OUTPUT_ELEMENTS_PER_THREAD = 14
    SUGGESTED_FFTS_PER_BLOCK = 15
    SYMBOL_EXECUTE_NAME = 16
    SYMBOL_FFT_ID_NAME = 17
    SYMBOL_BATCH_ID_NAME = 18
    SYMBOL_IS_THREAD_ACTIVE_NAME = 19
