# SPDX-License-Identifier: Apache-2.0
"""Small cuBLASLt objects for tests without a GPU."""

from __future__ import annotations

from typing import Any

from nvmath_device.host.cublaslt import MatmulDesc, MatrixLayout
from nvmath_device.host.cublaslt_enums import ComputeType, CudaDataType, Epilogue, MatmulDescAttribute

R32F = CudaDataType.CUDA_R_32F
ADDRESS = 0x7F12_3456_7890_ABC0  # needs all 64 bits, and is aligned to 64 bytes


class NullHandle:
    """What stands where a handle is needed and none can be made."""

    address = 0


def desc(**attributes: Any) -> MatmulDesc:
    named = {MatmulDescAttribute[name]: value for name, value in attributes.items()}
    return MatmulDesc(ComputeType.COMPUTE_32F, R32F, named)


def layout() -> MatrixLayout:
    return MatrixLayout(R32F, 4, 4, 4)


def problem() -> tuple[Any, ...]:
    return (NullHandle(), desc(EPILOGUE=Epilogue.RELU_BIAS), *(layout() for _ in range(4)))
