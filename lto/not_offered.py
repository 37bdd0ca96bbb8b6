# SPDX-License-Identifier: Apache-2.0
"""Members of libmathdx's enumerations that this package does not offer, each with the reason.

A test walks every member of the shipped headers: it is used by the package or it stands here, never both.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import EnumMeta

from nvmath_device.lto import mathdx_enums as enums


def _all(enum: EnumMeta, reason: str, *, but: Iterable[str] = ()) -> dict[str, str]:
    return {f"{enum.__name__}.{name}": reason for name in enum.__members__ if name not in but}


_MAPS = "elements of tensors in shared memory are found by their row and column"
_TRSM = "triangular solve: not offered yet"
_WARP = "libmathdx 0.4.2 refuses warp execution for GEMM and FFT (status 1)"
_ABI = "foreign calling convention; Numba calls the native one"
_OUTPUT = "code is linked as LTO-IR only"
_LINEARIZATION = "experimental and for PTX code only"
_DEFAULT = "libmathdx's default: the operator is left out instead"
_KNOWN = "follows from the descriptor, so it is not asked"
_CHOSEN = "libmathdx chooses between its own PTX and LTO-IR implementations"

#: "Enum.MEMBER" -> why it is not offered.
NOT_OFFERED: dict[str, str] = {
    **_all(enums.BlasMemorySpace, "the kind of a tensor says in which memory it is", but=["GMEM"]),
    "BlasTensorTrait.UID": "deprecated in favour of OPAQUE_NAME",
    "BlasTensorTrait.OPAQUE_NAME": "tensors stay with the descriptor that they were made for",
    "BlasTensorTrait.MEMORY_SPACE": _KNOWN,
    **_all(enums.BlasDeviceFunctionTrait, "names follow from the recipe, so they are not asked"),
    "BlasDeviceFunctionOption.CALLBACK": "fragments are handed to Python functions instead",
    "BlasDeviceFunctionOption.NUM_THREADS": "for copies without a descriptor, whose block says it",
    "BlasDeviceFunctionType.COPY_WAIT": "one instruction, which kernels have without a descriptor",
    "BlasDeviceFunctionType.MAP_IDX2CRD": _MAPS,
    "BlasDeviceFunctionType.RESET": "a tile pipeline is made anew for each tile",
    "BlasDeviceFunctionType.EPILOGUE": "accumulators are finished and copied to a fragment instead",
    "BlasBlockSizeStrategy.HEURISTIC": "the accumulator is shared out to just the threads that the kernel asked for",
    "BlasPipelineTrait.OPAQUE_NAME": "pipelines stay with the functions that they were made for",
    **_all(enums.BlasFillMode, _TRSM),
    **_all(enums.BlasSide, _TRSM),
    **_all(enums.BlasDiag, _TRSM),
    "BlasFunction.TRSM": _TRSM,
    "BlasOperatorType.SIDE": _TRSM,
    "BlasOperatorType.FILL_MODE": _TRSM,
    "BlasOperatorType.DIAG": _TRSM,
    "Execution.WARP": _WARP,
    **_all(enums.FunctionAbi, _ABI),
    "FftOperatorType.FUNCTION_ABI": _ABI,
    **_all(enums.CodeType, _OUTPUT),
    **_all(enums.CodeContainer, _OUTPUT),
    "Option.CODE_CONTAINER": _OUTPUT,
    "Option.TARGET_CODE": _OUTPUT,
    "Option.CODE_ISA": "LTO-IR has no instruction set version to choose; NVRTC and nvJitLink decide",
    "ArchModifier.GENERIC": _DEFAULT,
    "BlasStaticBlockDim.DISABLED": _DEFAULT,
    "BlasWithPipeline.DISABLED": _DEFAULT,
    "BlasInputStreaming.DISABLED": _DEFAULT,
    "FftDeviceFunctionType.EXECUTE": _DEFAULT,
    "FftThreadLayout.REGULAR": _DEFAULT,
    "FftTransposition.ANY": _DEFAULT,
    "BlasTraitType.VALUE_TYPE": _KNOWN,
    "BlasTraitType.SIZE": _KNOWN,
    "BlasTraitType.BLOCK_SIZE": _KNOWN,
    "BlasTraitType.BLOCK_DIM": _KNOWN,
    "BlasTraitType.LEADING_DIMENSION": _KNOWN,
    "BlasTraitType.SYMBOL_NAME": _KNOWN,
    "BlasTraitType.ARRANGEMENT": _KNOWN,
    "BlasTraitType.ALIGNMENT": _KNOWN,
    "BlasTraitType.MAX_THREADS_PER_BLOCK": _KNOWN,
    "FftTraitType.SYMBOL_NAME": _KNOWN,
    "FftTraitType.SYMBOL_EXECUTE_NAME": _KNOWN,
    **_all(enums.FftCodeType, _CHOSEN),
    "FftOperatorType.CODE_TYPE": _CHOSEN,
    "FftOperatorType.BLOCK_DIM": "the block of an FFT follows from ffts_per_block and elements_per_thread",
    **_all(enums.FftThreadLinearization, _LINEARIZATION),
    "FftOperatorType.THREAD_LINEARIZATION": _LINEARIZATION,
}
