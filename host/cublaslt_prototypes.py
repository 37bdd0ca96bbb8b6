# SPDX-License-Identifier: Apache-2.0
"""The one table of C prototypes, and the C structures, as cublasLt.h of cuBLASLt 13.10.0 declares them.

Data only; ``nvmath_device.host.cublaslt_calls`` binds a row when it is first called. A test compares rows and
structures with the header in the installed wheel. One function is left out: cublasLtDisableCpuInstructionsSetMask is
declared, but no library exports it.

Addresses on host and device, and every ``cublasLt..._t`` that is a pointer, are ``c_void_p``: they take an integer,
``None``, an array or ``byref``. Enumerations are ``c_int``.
"""

from __future__ import annotations

from ctypes import POINTER, Array, Structure, c_char_p, c_float, c_int, c_int64, c_size_t, c_uint64, c_void_p
from typing import Any, TypeAlias

Prototype: TypeAlias = tuple[Any, tuple[Any, ...]]

#: The cuBLASLt whose header this table was written from.
TABLE_VERSION = (13, 10, 0)


class MatmulAlgoStruct(Structure):
    """``cublasLtMatmulAlgo_t``: an algorithm with its configuration. Plain bytes, can be copied and kept."""

    _fields_ = (("data", c_uint64 * 8),)
    data: Array[c_uint64]


class HeuristicResultStruct(Structure):
    """``cublasLtMatmulHeuristicResult_t``."""

    _fields_ = (
        ("algo", MatmulAlgoStruct),
        ("workspaceSize", c_size_t),
        ("state", c_int),
        ("wavesCount", c_float),
        ("reserved", c_int * 4),
    )
    algo: MatmulAlgoStruct
    workspaceSize: int
    state: int
    wavesCount: float


#: Size in 64-bit words of the opaque structures, for the ``..._internal`` functions that initialise memory of the
#: caller. They grow from version to version (12.9 has 8 for a layout and a preference).
OPAQUE_WORDS = {
    "cublasLtMatrixLayoutOpaque_t": 14,
    "cublasLtMatmulDescOpaque_t": 32,
    "cublasLtMatrixTransformDescOpaque_t": 8,
    "cublasLtMatmulPreferenceOpaque_t": 12,
    "cublasLtEmulationDescOpaque_t": 8,
}

# What a function returns: a status to check; or a number or a C string that the library owns, which cannot fail.
STATUS = c_int
NUMBER = c_size_t
TEXT = c_char_p

# What a function takes.
PTR = c_void_p
ENUM = c_int
INT = c_int
SIZE = c_size_t
U64 = c_uint64
I64 = c_int64
P_PTR = POINTER(c_void_p)
P_INT = POINTER(c_int)
P_SIZE = POINTER(c_size_t)
P_ALGO = POINTER(MatmulAlgoStruct)
P_RESULT = POINTER(HeuristicResultStruct)

_SET = (STATUS, (PTR, ENUM, PTR, SIZE))
_GET = (STATUS, (PTR, ENUM, PTR, SIZE, P_SIZE))
_FIVE_LAYOUTS = (PTR, PTR, PTR, PTR, PTR)  # descriptor, A, B, C, D
_SIX_TYPES = (ENUM, ENUM, ENUM, ENUM, ENUM, ENUM)  # compute, scale, A, B, C, D

PROTOTYPES: dict[str, Prototype] = {
    # The library
    "cublasLtCreate": (STATUS, (P_PTR,)),
    "cublasLtDestroy": (STATUS, (PTR,)),
    "cublasLtGetStatusName": (TEXT, (ENUM,)),
    "cublasLtGetStatusString": (TEXT, (ENUM,)),
    "cublasLtGetVersion": (NUMBER, ()),
    "cublasLtGetCudartVersion": (NUMBER, ()),
    "cublasLtGetProperty": (STATUS, (ENUM, P_INT)),
    "cublasLtHeuristicsCacheGetCapacity": (STATUS, (P_SIZE,)),
    "cublasLtHeuristicsCacheSetCapacity": (STATUS, (SIZE,)),
    # The products
    "cublasLtMatmul": (
        STATUS,
        (PTR, PTR, PTR, PTR, PTR, PTR, PTR, PTR, PTR, PTR, PTR, PTR, P_ALGO, PTR, SIZE, PTR),
    ),
    "cublasLtMatrixTransform": (STATUS, (PTR, PTR, PTR, PTR, PTR, PTR, PTR, PTR, PTR, PTR, PTR)),
    # Matrix layouts
    "cublasLtMatrixLayoutInit_internal": (STATUS, (PTR, SIZE, ENUM, U64, U64, I64)),
    "cublasLtMatrixLayoutCreate": (STATUS, (P_PTR, ENUM, U64, U64, I64)),
    "cublasLtGroupedMatrixLayoutInit_internal": (STATUS, (PTR, SIZE, ENUM, INT, PTR, PTR, PTR)),
    "cublasLtGroupedMatrixLayoutCreate": (STATUS, (P_PTR, ENUM, INT, PTR, PTR, PTR)),
    "cublasLtMatrixLayoutDestroy": (STATUS, (PTR,)),
    "cublasLtMatrixLayoutSetAttribute": _SET,
    "cublasLtMatrixLayoutGetAttribute": _GET,
    # Matmul descriptors
    "cublasLtMatmulDescInit_internal": (STATUS, (PTR, SIZE, ENUM, ENUM)),
    "cublasLtMatmulDescCreate": (STATUS, (P_PTR, ENUM, ENUM)),
    "cublasLtMatmulDescDestroy": (STATUS, (PTR,)),
    "cublasLtMatmulDescSetAttribute": _SET,
    "cublasLtMatmulDescGetAttribute": _GET,
    # Matrix transform descriptors
    "cublasLtMatrixTransformDescInit_internal": (STATUS, (PTR, SIZE, ENUM)),
    "cublasLtMatrixTransformDescCreate": (STATUS, (P_PTR, ENUM)),
    "cublasLtMatrixTransformDescDestroy": (STATUS, (PTR,)),
    "cublasLtMatrixTransformDescSetAttribute": _SET,
    "cublasLtMatrixTransformDescGetAttribute": _GET,
    # Emulation descriptors
    "cublasLtEmulationDescInit_internal": (STATUS, (PTR, SIZE)),
    "cublasLtEmulationDescCreate": (STATUS, (P_PTR,)),
    "cublasLtEmulationDescDestroy": (STATUS, (PTR,)),
    "cublasLtEmulationDescSetAttribute": _SET,
    "cublasLtEmulationDescGetAttribute": _GET,
    # Preferences
    "cublasLtMatmulPreferenceInit_internal": (STATUS, (PTR, SIZE)),
    "cublasLtMatmulPreferenceCreate": (STATUS, (P_PTR,)),
    "cublasLtMatmulPreferenceDestroy": (STATUS, (PTR,)),
    "cublasLtMatmulPreferenceSetAttribute": _SET,
    "cublasLtMatmulPreferenceGetAttribute": _GET,
    # Algorithms
    "cublasLtMatmulAlgoGetHeuristic": (STATUS, (PTR, *_FIVE_LAYOUTS, PTR, INT, P_RESULT, P_INT)),
    "cublasLtMatmulAlgoGetHeuristicForStream": (STATUS, (PTR, *_FIVE_LAYOUTS, PTR, INT, P_RESULT, P_INT, PTR)),
    "cublasLtMatmulAlgoGetIds": (STATUS, (PTR, *_SIX_TYPES, INT, P_INT, P_INT)),
    "cublasLtMatmulAlgoInit": (STATUS, (PTR, *_SIX_TYPES, INT, P_ALGO)),
    "cublasLtMatmulAlgoCheck": (STATUS, (PTR, *_FIVE_LAYOUTS, P_ALGO, P_RESULT)),
    "cublasLtMatmulAlgoCheckForStream": (STATUS, (PTR, *_FIVE_LAYOUTS, P_ALGO, P_RESULT, PTR)),
    "cublasLtMatmulAlgoCapGetAttribute": (STATUS, (P_ALGO, ENUM, PTR, SIZE, P_SIZE)),
    "cublasLtMatmulAlgoConfigSetAttribute": (STATUS, (P_ALGO, ENUM, PTR, SIZE)),
    "cublasLtMatmulAlgoConfigGetAttribute": (STATUS, (P_ALGO, ENUM, PTR, SIZE, P_SIZE)),
    # The log: a callback is a pointer to void(int level, const char *function, const char *message), a file a FILE *
    "cublasLtLoggerSetCallback": (STATUS, (PTR,)),
    "cublasLtLoggerSetFile": (STATUS, (PTR,)),
    "cublasLtLoggerOpenFile": (STATUS, (TEXT,)),
    "cublasLtLoggerSetLevel": (STATUS, (INT,)),
    "cublasLtLoggerSetMask": (STATUS, (INT,)),
    "cublasLtLoggerForceDisable": (STATUS, ()),
}
