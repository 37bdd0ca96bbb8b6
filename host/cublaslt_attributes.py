# SPDX-License-Identifier: Apache-2.0
"""The one table of attributes: how each is stored, and which enumeration its numbers belong to.

:class:`Field` packs a Python value into the C type, refusing what does not fit, and reads it back. Sizes and types
are those of cuBLASLt 13.10; a test compares them with the comments in the header and with what the library answers.
"""

from __future__ import annotations

import ctypes
import operator
from ctypes import c_float, c_int8, c_int32, c_int64, c_uint16, c_uint32, c_uint64, c_void_p
from enum import Enum, IntEnum
from typing import Any, NamedTuple

from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError
from nvmath_device.host import cublaslt_enums as enums
from nvmath_device.host.cublaslt_enums import (
    EmulationDescAttribute,
    MatmulAlgoCapAttribute,
    MatmulAlgoConfigAttribute,
    MatmulDescAttribute,
    MatmulPreferenceAttribute,
    MatrixLayoutAttribute,
    MatrixTransformDescAttribute,
)


class Field(NamedTuple):
    """Storage of one attribute.

    Attributes:
        ctype: C type of the value, or of one element of an array. ``c_void_p`` is an address, 0 for none.
        enum: enumeration of its numbers, or ``None``.
        array: whether the value is an array, as long as the library says; such attributes are read only.
    """

    ctype: Any
    enum: type[Enum] | None = None
    array: bool = False

    def pack(self, attribute: IntEnum, value: Any) -> Any:
        """The value as an object of the C type.

        ``None`` stands for a null pointer. Raises :class:`ArgumentTypeError` for a member of another enumeration and
        for a value that is no number, :class:`InvalidArgumentError` for a number that the C type cannot hold.
        """
        if self.enum is not None and isinstance(value, Enum) and not isinstance(value, self.enum):
            allowed = f"allowed are members of {self.enum.__name__}"
            raise ArgumentTypeError(f"{shown(attribute)}: {shown(value)} given; {allowed}")
        if self.ctype is c_void_p and value is None:
            value = 0
        try:
            number = float(value) if self.ctype is c_float else operator.index(value)
        except (TypeError, ValueError):
            kind = "an address as an integer, or None" if self.ctype is c_void_p else "a number"
            raise ArgumentTypeError(f"{shown(attribute)}: {value!r} given; {kind} is needed") from None
        if self.ctype is not c_float:
            low, high = limits(self.ctype)
            if not low <= number <= high:
                raise InvalidArgumentError(f"{shown(attribute)}: {number} given; allowed are {low} to {high}")
        return self.ctype(number)

    def read(self, stored: Any) -> Any:
        """The Python value: a member where there is one of that number, an integer, or a float."""
        value = 0 if stored.value is None else stored.value  # ctypes reads a null pointer as None
        if self.enum is None:
            return value
        try:
            return self.enum(value)
        except ValueError:  # -1 for "not set", or a number that only a newer version knows
            return value


def limits(ctype: Any) -> tuple[int, int]:
    """Smallest and largest value of a C integer type or address."""
    bits = 8 * ctypes.sizeof(ctype)
    signed = ctype(-1).value == -1
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)


def shown(value: Any) -> str:
    """A member as ``Enumeration.MEMBER``, anything else as Python shows it."""
    return f"{type(value).__name__}.{value.name}" if isinstance(value, Enum) else repr(value)


_POINTER = Field(c_void_p)
_DATA_TYPE = Field(c_int32, enums.CudaDataType)
_OPERATION = Field(c_int32, enums.Operation)
_POINTER_MODE = Field(c_int32, enums.PointerMode)
_SCALE_MODE = Field(c_int32, enums.MatrixScale)
_INT32 = Field(c_int32)
_UINT32 = Field(c_uint32)
_INT64 = Field(c_int64)
_UINT64 = Field(c_uint64)
_WIDTH = Field(c_int32, enums.IntegerWidth)

FIELDS: dict[type[IntEnum], dict[Any, Field]] = {
    MatrixLayoutAttribute: {
        MatrixLayoutAttribute.TYPE: Field(c_uint32, enums.CudaDataType),
        MatrixLayoutAttribute.ORDER: Field(c_int32, enums.Order),
        MatrixLayoutAttribute.ROWS: _UINT64,
        MatrixLayoutAttribute.COLS: _UINT64,
        MatrixLayoutAttribute.LD: _INT64,
        MatrixLayoutAttribute.BATCH_COUNT: _INT32,
        MatrixLayoutAttribute.STRIDED_BATCH_OFFSET: _INT64,
        MatrixLayoutAttribute.PLANE_OFFSET: _INT64,
        MatrixLayoutAttribute.BATCH_MODE: Field(c_uint32, enums.BatchMode),
        MatrixLayoutAttribute.GROUPED_ROWS_ARRAY: _POINTER,
        MatrixLayoutAttribute.GROUPED_COLS_ARRAY: _POINTER,
        MatrixLayoutAttribute.GROUPED_LD_ARRAY: _POINTER,
        MatrixLayoutAttribute.GROUPED_ROWS_COLS_ARRAY_INTEGER_WIDTH: _WIDTH,
        MatrixLayoutAttribute.GROUPED_LD_ARRAY_INTEGER_WIDTH: _WIDTH,
    },
    MatmulDescAttribute: {
        MatmulDescAttribute.COMPUTE_TYPE: Field(c_int32, enums.ComputeType),
        MatmulDescAttribute.SCALE_TYPE: _DATA_TYPE,
        MatmulDescAttribute.POINTER_MODE: _POINTER_MODE,
        MatmulDescAttribute.TRANSA: _OPERATION,
        MatmulDescAttribute.TRANSB: _OPERATION,
        MatmulDescAttribute.TRANSC: _OPERATION,
        MatmulDescAttribute.FILL_MODE: Field(c_int32, enums.FillMode),
        MatmulDescAttribute.EPILOGUE: Field(c_uint32, enums.Epilogue),
        MatmulDescAttribute.BIAS_POINTER: _POINTER,
        MatmulDescAttribute.BIAS_BATCH_STRIDE: _INT64,
        MatmulDescAttribute.EPILOGUE_AUX_POINTER: _POINTER,
        MatmulDescAttribute.EPILOGUE_AUX_LD: _INT64,
        MatmulDescAttribute.EPILOGUE_AUX_BATCH_STRIDE: _INT64,
        MatmulDescAttribute.ALPHA_VECTOR_BATCH_STRIDE: _INT64,
        MatmulDescAttribute.SM_COUNT_TARGET: _INT32,
        MatmulDescAttribute.A_SCALE_POINTER: _POINTER,
        MatmulDescAttribute.B_SCALE_POINTER: _POINTER,
        MatmulDescAttribute.C_SCALE_POINTER: _POINTER,
        MatmulDescAttribute.D_SCALE_POINTER: _POINTER,
        MatmulDescAttribute.AMAX_D_POINTER: _POINTER,
        MatmulDescAttribute.EPILOGUE_AUX_DATA_TYPE: _DATA_TYPE,
        MatmulDescAttribute.EPILOGUE_AUX_SCALE_POINTER: _POINTER,
        MatmulDescAttribute.EPILOGUE_AUX_AMAX_POINTER: _POINTER,
        MatmulDescAttribute.FAST_ACCUM: Field(c_int8),
        MatmulDescAttribute.BIAS_DATA_TYPE: _DATA_TYPE,
        MatmulDescAttribute.A_SCALE_MODE: _SCALE_MODE,
        MatmulDescAttribute.B_SCALE_MODE: _SCALE_MODE,
        MatmulDescAttribute.C_SCALE_MODE: _SCALE_MODE,
        MatmulDescAttribute.D_SCALE_MODE: _SCALE_MODE,
        MatmulDescAttribute.EPILOGUE_AUX_SCALE_MODE: _SCALE_MODE,
        MatmulDescAttribute.D_OUT_SCALE_POINTER: _POINTER,
        MatmulDescAttribute.D_OUT_SCALE_MODE: _SCALE_MODE,
        MatmulDescAttribute.EMULATION_DESCRIPTOR: _POINTER,
        MatmulDescAttribute.ALPHA_BATCH_STRIDE: _INT64,
        MatmulDescAttribute.BETA_BATCH_STRIDE: _INT64,
        MatmulDescAttribute.BATCH_INVARIANCE_FLAGS: Field(c_uint32, enums.BatchInvarianceFlags),
    },
    MatmulPreferenceAttribute: {
        MatmulPreferenceAttribute.SEARCH_MODE: Field(c_uint32, enums.MatmulSearch),
        MatmulPreferenceAttribute.MAX_WORKSPACE_BYTES: _UINT64,
        MatmulPreferenceAttribute.REDUCTION_SCHEME_MASK: Field(c_uint32, enums.ReductionScheme),
        MatmulPreferenceAttribute.MIN_ALIGNMENT_A_BYTES: _UINT32,
        MatmulPreferenceAttribute.MIN_ALIGNMENT_B_BYTES: _UINT32,
        MatmulPreferenceAttribute.MIN_ALIGNMENT_C_BYTES: _UINT32,
        MatmulPreferenceAttribute.MIN_ALIGNMENT_D_BYTES: _UINT32,
        MatmulPreferenceAttribute.MAX_WAVES_COUNT: Field(c_float),
        MatmulPreferenceAttribute.IMPL_MASK: Field(c_uint64, enums.NumericalImplFlags),
        # 8 bytes, whatever the header of 13.10 says in its comment: the library refuses 4
        MatmulPreferenceAttribute.GROUPED_AVERAGE_REDUCTION_DIM: _UINT64,
        MatmulPreferenceAttribute.GROUPED_DESC_D_AVERAGE_ROWS: _UINT64,
        MatmulPreferenceAttribute.GROUPED_DESC_D_AVERAGE_COLS: _UINT64,
    },
    MatrixTransformDescAttribute: {
        MatrixTransformDescAttribute.SCALE_TYPE: _DATA_TYPE,
        MatrixTransformDescAttribute.POINTER_MODE: _POINTER_MODE,
        MatrixTransformDescAttribute.TRANSA: _OPERATION,
        MatrixTransformDescAttribute.TRANSB: _OPERATION,
    },
    EmulationDescAttribute: {
        EmulationDescAttribute.STRATEGY: Field(c_int32, enums.EmulationStrategy),
        EmulationDescAttribute.SPECIAL_VALUES_SUPPORT: Field(c_int32, enums.EmulationSpecialValuesSupport),
        EmulationDescAttribute.FIXEDPOINT_MANTISSA_CONTROL: Field(c_int32, enums.EmulationMantissaControl),
        EmulationDescAttribute.FIXEDPOINT_MAX_MANTISSA_BIT_COUNT: _INT32,
        EmulationDescAttribute.FIXEDPOINT_MANTISSA_BIT_OFFSET: _INT32,
        EmulationDescAttribute.FIXEDPOINT_MANTISSA_BIT_COUNT_POINTER: _POINTER,
    },
    MatmulAlgoCapAttribute: {
        MatmulAlgoCapAttribute.SPLITK_SUPPORT: _INT32,
        MatmulAlgoCapAttribute.REDUCTION_SCHEME_MASK: Field(c_uint32, enums.ReductionScheme),
        MatmulAlgoCapAttribute.CTA_SWIZZLING_SUPPORT: _UINT32,
        MatmulAlgoCapAttribute.STRIDED_BATCH_SUPPORT: _INT32,
        MatmulAlgoCapAttribute.OUT_OF_PLACE_RESULT_SUPPORT: _INT32,
        MatmulAlgoCapAttribute.UPLO_SUPPORT: _INT32,
        MatmulAlgoCapAttribute.TILE_IDS: Field(c_uint32, array=True),
        MatmulAlgoCapAttribute.CUSTOM_OPTION_MAX: _INT32,
        MatmulAlgoCapAttribute.CUSTOM_MEMORY_ORDER: _INT32,
        MatmulAlgoCapAttribute.POINTER_MODE_MASK: Field(c_uint32, enums.PointerModeMask),
        MatmulAlgoCapAttribute.EPILOGUE_MASK: _UINT32,
        MatmulAlgoCapAttribute.STAGES_IDS: Field(c_uint32, array=True),
        MatmulAlgoCapAttribute.LD_NEGATIVE: _INT32,
        MatmulAlgoCapAttribute.NUMERICAL_IMPL_FLAGS: Field(c_uint64, enums.NumericalImplFlags),
        MatmulAlgoCapAttribute.MIN_ALIGNMENT_A_BYTES: _UINT32,
        MatmulAlgoCapAttribute.MIN_ALIGNMENT_B_BYTES: _UINT32,
        MatmulAlgoCapAttribute.MIN_ALIGNMENT_C_BYTES: _UINT32,
        MatmulAlgoCapAttribute.MIN_ALIGNMENT_D_BYTES: _UINT32,
        MatmulAlgoCapAttribute.POINTER_ARRAY_BATCH_SUPPORT: _INT32,
        MatmulAlgoCapAttribute.FLOATING_POINT_EMULATION_SUPPORT: _INT32,
        MatmulAlgoCapAttribute.POINTER_ARRAY_GROUPED_SUPPORT: _INT32,
    },
    # Ids of tiles, stages and clusters stay numbers here; cublaslt_tiles has their names and shapes.
    MatmulAlgoConfigAttribute: {
        MatmulAlgoConfigAttribute.ID: _INT32,
        MatmulAlgoConfigAttribute.TILE_ID: _UINT32,
        MatmulAlgoConfigAttribute.SPLITK_NUM: _INT32,
        MatmulAlgoConfigAttribute.REDUCTION_SCHEME: Field(c_uint32, enums.ReductionScheme),
        MatmulAlgoConfigAttribute.CTA_SWIZZLING: _UINT32,
        MatmulAlgoConfigAttribute.CUSTOM_OPTION: _UINT32,
        MatmulAlgoConfigAttribute.STAGES_ID: _UINT32,
        MatmulAlgoConfigAttribute.INNER_SHAPE_ID: Field(c_uint16, enums.MatmulInnerShape),
        MatmulAlgoConfigAttribute.CLUSTER_SHAPE_ID: Field(c_uint16),
    },
}
