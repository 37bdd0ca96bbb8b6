# SPDX-License-Identifier: Apache-2.0
"""The one table of C prototypes: commondx, mathdx, cublasdx and cufftdx as libmathdx 0.4.2 declares them.

Data only; ``nvmath_device.lto.mathdx`` binds a row when it is first called. A test compares every row with
the headers in the installed wheel.
"""

from __future__ import annotations

from ctypes import POINTER, c_char_p, c_int, c_longlong, c_size_t, c_void_p
from typing import Any, TypeAlias

Prototype: TypeAlias = tuple[Any, tuple[Any, ...]]

#: The libmathdx whose headers this table was written from.
TABLE_VERSION = (0, 4, 2)

#: Values of the macros in libcublasdx.h.
RUNTIME = -(2**63)
NONE = -(2**63)
MAX_PIPELINE_DEPTH = 0

#: Functions that the oldest supported libmathdx, 0.3.1, does not export: name -> version that brought it.
SINCE: dict[str, tuple[int, int, int]] = {
    "commondxGetCodePTXSize": (0, 3, 2),
    "commondxGetCodePTX": (0, 3, 2),
    "commondxCodeTypeToStr": (0, 3, 2),
    "cublasdxTilePipelineTypeToStr": (0, 3, 2),  # 0.3.1 declares it only
    "commondxFunctionAbiToStr": (0, 4, 2),
    "cublasdxGetUniversalFATBINSize": (0, 4, 2),
    "cublasdxGetUniversalFATBIN": (0, 4, 2),
    "cublasdxFinalizeCodes": (0, 4, 2),
    "cublasdxFillModeToStr": (0, 4, 2),
    "cublasdxSideToStr": (0, 4, 2),
    "cublasdxDiagToStr": (0, 4, 2),
    "cufftdxDeviceFunctionTypeToStr": (0, 4, 2),
    "cufftdxFinalizeCodes": (0, 4, 2),
    "cufftdxTranspositionToStr": (0, 4, 2),
    "cufftdxThreadLayoutToStr": (0, 4, 2),
}

# What a function returns: a status to check, or a C string that the library owns.
STATUS = c_int
TEXT = c_char_p

# What a function takes. Every handle is a 64-bit integer and every enumeration an int.
HANDLE = c_longlong
ENUM = c_int
I64 = c_longlong
SIZE = c_size_t
STR = c_char_p
PTR = c_void_p
P_HANDLE = POINTER(c_longlong)
P_ENUM = POINTER(c_int)
P_INT = POINTER(c_int)
P_I64 = POINTER(c_longlong)
P_SIZE = POINTER(c_size_t)
P_STR = POINTER(c_char_p)
P_PTR = POINTER(c_void_p)

PROTOTYPES: dict[str, Prototype] = {
    # libcommondx.h
    "commondxCreateCode": (STATUS, (P_HANDLE,)),
    "commondxSetCodeOptionInt64": (STATUS, (HANDLE, ENUM, I64)),
    "commondxSetCodeOptionInt64s": (STATUS, (HANDLE, ENUM, SIZE, P_I64)),
    "commondxSetCodeOptionStr": (STATUS, (HANDLE, ENUM, STR)),
    "commondxSetCodeOptionStrs": (STATUS, (HANDLE, ENUM, SIZE, P_STR)),
    "commondxGetCodeOptionInt64": (STATUS, (HANDLE, ENUM, P_I64)),
    "commondxGetCodeOptionsInt64s": (STATUS, (HANDLE, ENUM, SIZE, P_I64)),
    "commondxGetCodeLTOIRSize": (STATUS, (HANDLE, P_SIZE)),
    "commondxGetCodeLTOIR": (STATUS, (HANDLE, SIZE, PTR)),
    "commondxGetCodePTXSize": (STATUS, (HANDLE, P_SIZE)),
    "commondxGetCodePTX": (STATUS, (HANDLE, SIZE, PTR)),
    "commondxGetCodeNumLTOIRs": (STATUS, (HANDLE, P_SIZE)),
    "commondxGetCodeLTOIRSizes": (STATUS, (HANDLE, SIZE, P_SIZE)),
    "commondxGetCodeLTOIRs": (STATUS, (HANDLE, SIZE, P_PTR)),
    "commondxDestroyCode": (STATUS, (HANDLE,)),
    "commondxStatusToStr": (TEXT, (ENUM,)),
    "commondxPrecisionToStr": (TEXT, (ENUM,)),
    "commondxValueTypeToStr": (TEXT, (ENUM,)),
    "commondxOptionToStr": (TEXT, (ENUM,)),
    "commondxExecutionToStr": (TEXT, (ENUM,)),
    "commondxFunctionAbiToStr": (TEXT, (ENUM,)),
    "commondxCodeContainerToStr": (TEXT, (ENUM,)),
    "commondxCodeTypeToStr": (TEXT, (ENUM,)),
    "commondxArchModifierToStr": (TEXT, (ENUM,)),
    "commondxGetLastErrorStrSize": (STATUS, (P_SIZE,)),
    "commondxGetLastErrorStr": (STATUS, (P_ENUM, SIZE, STR)),
    # libmathdx.h
    "mathdxGetVersion": (STATUS, (P_INT,)),
    "mathdxGetVersionEx": (STATUS, (P_INT, P_INT, P_INT)),
    "mathdxGetPackageVersion": (STATUS, (P_INT, P_INT, P_INT)),
    "mathdxGetCommit": (STATUS, (P_STR,)),
    # libcublasdx.h
    "cublasdxGetVersion": (STATUS, (P_INT, P_INT, P_INT)),
    "cublasdxCreateDescriptor": (STATUS, (P_HANDLE,)),
    "cublasdxSetOptionStr": (STATUS, (HANDLE, ENUM, STR)),
    "cublasdxSetOptionStrs": (STATUS, (HANDLE, ENUM, SIZE, P_STR)),
    "cublasdxSetOperatorInt64": (STATUS, (HANDLE, ENUM, I64)),
    "cublasdxSetOperatorInt64s": (STATUS, (HANDLE, ENUM, SIZE, P_I64)),
    "cublasdxCreateTensor": (STATUS, (HANDLE, ENUM, P_HANDLE)),
    "cublasdxCreateTensorStrided": (STATUS, (ENUM, ENUM, PTR, I64, P_I64, P_I64, P_HANDLE)),
    "cublasdxMakeTensorLike": (STATUS, (HANDLE, ENUM, P_HANDLE)),
    "cublasdxDestroyTensor": (STATUS, (HANDLE,)),
    "cublasdxDestroyPipeline": (STATUS, (HANDLE,)),
    "cublasdxCreateDevicePipeline": (STATUS, (HANDLE, ENUM, I64, ENUM, HANDLE, HANDLE, P_HANDLE)),
    "cublasdxCreateTilePipeline": (STATUS, (HANDLE, ENUM, HANDLE, P_HANDLE)),
    "cublasdxSetTensorOptionInt64": (STATUS, (HANDLE, ENUM, I64)),
    "cublasdxSetTensorOptionStr": (STATUS, (HANDLE, ENUM, STR)),
    "cublasdxSetPipelineOptionStr": (STATUS, (HANDLE, ENUM, STR)),
    "cublasdxSetTensorOptionStrs": (STATUS, (HANDLE, ENUM, SIZE, P_STR)),
    "cublasdxSetPipelineOptionStrs": (STATUS, (HANDLE, ENUM, SIZE, P_STR)),
    "cublasdxFinalizeTensors": (STATUS, (SIZE, P_HANDLE)),
    "cublasdxFinalizePipelines": (STATUS, (SIZE, P_HANDLE)),
    "cublasdxFinalize": (STATUS, (SIZE, P_HANDLE, SIZE, P_HANDLE)),
    "cublasdxGetTensorTraitInt64": (STATUS, (HANDLE, ENUM, P_I64)),
    "cublasdxGetPipelineTraitInt64": (STATUS, (HANDLE, ENUM, P_I64)),
    "cublasdxGetPipelineTraitInt64s": (STATUS, (HANDLE, ENUM, SIZE, P_I64)),
    "cublasdxGetTensorTraitStrSize": (STATUS, (HANDLE, ENUM, P_SIZE)),
    "cublasdxGetPipelineTraitStrSize": (STATUS, (HANDLE, ENUM, P_SIZE)),
    "cublasdxGetTensorTraitStr": (STATUS, (HANDLE, ENUM, SIZE, STR)),
    "cublasdxGetPipelineTraitStr": (STATUS, (HANDLE, ENUM, SIZE, STR)),
    "cublasdxCreateDeviceFunction": (STATUS, (HANDLE, ENUM, SIZE, P_HANDLE, P_HANDLE)),
    "cublasdxDestroyDeviceFunction": (STATUS, (HANDLE,)),
    "cublasdxCreateDeviceFunctionWithPipelines": (
        STATUS,
        (HANDLE, ENUM, SIZE, P_HANDLE, SIZE, P_HANDLE, P_HANDLE),
    ),
    "cublasdxFinalizeDeviceFunctions": (STATUS, (HANDLE, SIZE, P_HANDLE)),
    "cublasdxGetDeviceFunctionTraitStrSize": (STATUS, (HANDLE, ENUM, P_SIZE)),
    "cublasdxGetDeviceFunctionTraitStr": (STATUS, (HANDLE, ENUM, SIZE, STR)),
    "cublasdxSetDeviceFunctionOptionInt64": (STATUS, (HANDLE, ENUM, I64)),
    "cublasdxSetDeviceFunctionOptionStr": (STATUS, (HANDLE, ENUM, STR)),
    "cublasdxGetLTOIRSize": (STATUS, (HANDLE, P_SIZE)),
    "cublasdxGetLTOIR": (STATUS, (HANDLE, SIZE, PTR)),
    "cublasdxGetUniversalFATBINSize": (STATUS, (HANDLE, P_SIZE)),
    "cublasdxGetUniversalFATBIN": (STATUS, (HANDLE, SIZE, PTR)),
    "cublasdxGetTraitStrSize": (STATUS, (HANDLE, ENUM, P_SIZE)),
    "cublasdxGetTraitStr": (STATUS, (HANDLE, ENUM, SIZE, STR)),
    "cublasdxGetTraitInt64": (STATUS, (HANDLE, ENUM, P_I64)),
    "cublasdxGetTraitInt64s": (STATUS, (HANDLE, ENUM, SIZE, P_I64)),
    "cublasdxGetTraitCommondxDataTypes": (STATUS, (HANDLE, ENUM, SIZE, P_ENUM)),
    "cublasdxOperatorTypeToStr": (TEXT, (ENUM,)),
    "cublasdxTraitTypeToStr": (TEXT, (ENUM,)),
    "cublasdxFinalizeCode": (STATUS, (HANDLE, HANDLE)),
    "cublasdxFinalizeCodes": (STATUS, (HANDLE, SIZE, P_HANDLE)),
    "cublasdxDestroyDescriptor": (STATUS, (HANDLE,)),
    "cublasdxApiToStr": (TEXT, (ENUM,)),
    "cublasdxTypeToStr": (TEXT, (ENUM,)),
    "cublasdxTransposeModeToStr": (TEXT, (ENUM,)),
    "cublasdxArrangementToStr": (TEXT, (ENUM,)),
    "cublasdxFunctionToStr": (TEXT, (ENUM,)),
    "cublasdxFillModeToStr": (TEXT, (ENUM,)),
    "cublasdxSideToStr": (TEXT, (ENUM,)),
    "cublasdxDiagToStr": (TEXT, (ENUM,)),
    "cublasdxTensorTypeToStr": (TEXT, (ENUM,)),
    "cublasdxBlockSizeStrategyToStr": (TEXT, (ENUM,)),
    "cublasdxDevicePipelineTypeToStr": (TEXT, (ENUM,)),
    "cublasdxTilePipelineTypeToStr": (TEXT, (ENUM,)),
    "cublasdxTensorOptionToStr": (TEXT, (ENUM,)),
    "cublasdxTensorTraitToStr": (TEXT, (ENUM,)),
    "cublasdxPipelineTraitToStr": (TEXT, (ENUM,)),
    "cublasdxDeviceFunctionTraitToStr": (TEXT, (ENUM,)),
    "cublasdxDeviceFunctionOptionToStr": (TEXT, (ENUM,)),
    "cublasdxDeviceFunctionTypeToStr": (TEXT, (ENUM,)),
    "cublasdxMemorySpaceToStr": (TEXT, (ENUM,)),
    # libcufftdx.h
    "cufftdxGetVersion": (STATUS, (P_INT, P_INT, P_INT)),
    "cufftdxDeviceFunctionTypeToStr": (TEXT, (ENUM,)),
    "cufftdxCreateDescriptor": (STATUS, (P_HANDLE,)),
    "cufftdxSetOptionStr": (STATUS, (HANDLE, ENUM, STR)),
    "cufftdxSetOptionStrs": (STATUS, (HANDLE, ENUM, SIZE, P_STR)),
    "cufftdxIsSupported": (STATUS, (HANDLE, P_INT)),
    "cufftdxGetKnobInt64Size": (STATUS, (HANDLE, SIZE, P_ENUM, P_SIZE)),
    "cufftdxGetKnobInt64s": (STATUS, (HANDLE, SIZE, P_ENUM, SIZE, P_I64)),
    "cufftdxSetOperatorInt64": (STATUS, (HANDLE, ENUM, I64)),
    "cufftdxSetOperatorInt64s": (STATUS, (HANDLE, ENUM, SIZE, P_I64)),
    "cufftdxGetLTOIRSize": (STATUS, (HANDLE, P_SIZE)),
    "cufftdxGetLTOIR": (STATUS, (HANDLE, SIZE, PTR)),
    "cufftdxGetTraitStrSize": (STATUS, (HANDLE, ENUM, P_SIZE)),
    "cufftdxGetTraitStr": (STATUS, (HANDLE, ENUM, SIZE, STR)),
    "cufftdxGetTraitInt64": (STATUS, (HANDLE, ENUM, P_I64)),
    "cufftdxGetTraitInt64s": (STATUS, (HANDLE, ENUM, SIZE, P_I64)),
    "cufftdxGetTraitCommondxDataType": (STATUS, (HANDLE, ENUM, P_ENUM)),
    "cufftdxFinalizeCode": (STATUS, (HANDLE, HANDLE)),
    "cufftdxFinalizeCodes": (STATUS, (HANDLE, SIZE, P_HANDLE)),
    "cufftdxDestroyDescriptor": (STATUS, (HANDLE,)),
    "cufftdxOperatorTypeToStr": (TEXT, (ENUM,)),
    "cufftdxTraitTypeToStr": (TEXT, (ENUM,)),
    "cufftdxApiToStr": (TEXT, (ENUM,)),
    "cufftdxTypeToStr": (TEXT, (ENUM,)),
    "cufftdxDirectionToStr": (TEXT, (ENUM,)),
    "cufftdxComplexLayoutToStr": (TEXT, (ENUM,)),
    "cufftdxRealModeToStr": (TEXT, (ENUM,)),
    "cufftdxKnobTypeToStr": (TEXT, (ENUM,)),
    "cufftdxCodeTypeToStr": (TEXT, (ENUM,)),
    "cufftdxTranspositionToStr": (TEXT, (ENUM,)),
    "cufftdxThreadLayoutToStr": (TEXT, (ENUM,)),
}
