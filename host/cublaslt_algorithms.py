# SPDX-License-Identifier: Apache-2.0
"""Algorithms of cuBLASLt: proposed by heuristics, configured by hand, checked, kept as bytes."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from nvmath_device.errors import InvalidArgumentError
from nvmath_device.host import cublaslt_calls as calls
from nvmath_device.host.cublaslt import Attributed, Handle, MatmulDesc, MatmulPreference, MatrixLayout, addresses
from nvmath_device.host.cublaslt_enums import (
    ComputeType,
    CudaDataType,
    MatmulAlgoCapAttribute,
    MatmulAlgoConfigAttribute,
    Status,
)
from nvmath_device.host.cublaslt_prototypes import HeuristicResultStruct, MatmulAlgoStruct


class Algo(Attributed):
    """An algorithm with its configuration: 64 bytes that mean something to the same cuBLASLt and device only.

    Whether an edited configuration works is told by :func:`check`.
    """

    _setter, _getter = "cublasLtMatmulAlgoConfigSetAttribute", "cublasLtMatmulAlgoConfigGetAttribute"
    Attribute = MatmulAlgoConfigAttribute

    def __init__(self, data: bytes = bytes(64)) -> None:
        if len(data) != (size := ctypes.sizeof(MatmulAlgoStruct)):
            raise InvalidArgumentError(f"data: {len(data)} bytes given; an algorithm has {size}")
        self.struct = MatmulAlgoStruct.from_buffer_copy(data)

    def __bytes__(self) -> bytes:
        return bytes(self.struct)

    def __eq__(self, other: object) -> bool:
        return bytes(self) == bytes(other) if isinstance(other, Algo) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # it can be edited

    def _object(self) -> MatmulAlgoStruct:
        return self.struct

    def capability(self, attribute: MatmulAlgoCapAttribute) -> Any:
        """What the algorithm can do; ids of tiles and stages as a tuple of integers."""
        return _Capabilities(self.struct).get(attribute)


class _Capabilities(Attributed):
    _getter = "cublasLtMatmulAlgoCapGetAttribute"
    Attribute = MatmulAlgoCapAttribute

    def __init__(self, struct: MatmulAlgoStruct) -> None:
        self._struct = struct

    def _object(self) -> MatmulAlgoStruct:
        return self._struct

    def _lacks(self, attribute: IntEnum) -> bool:
        # An algorithm that cuBLASLt cannot read has no capabilities at all: that is not the version's fault.
        return self.supports(MatmulAlgoCapAttribute.SPLITK_SUPPORT) and super()._lacks(attribute)


@dataclass(frozen=True)
class HeuristicResult:
    """An algorithm that cuBLASLt proposes or has checked.

    Attributes:
        algo: the algorithm, configured.
        workspace_bytes: workspace it needs.
        status: ``Status.SUCCESS`` if it can be used.
        waves: how many times the device is filled by its thread blocks; 1.0 is one full wave.
    """

    algo: Algo
    workspace_bytes: int
    status: int
    waves: float


def _result(struct: HeuristicResultStruct) -> HeuristicResult:
    return HeuristicResult(Algo(bytes(struct.algo)), struct.workspaceSize, struct.state, struct.wavesCount)


def heuristics(
    handle: Handle,
    desc: MatmulDesc,
    a_layout: MatrixLayout,
    b_layout: MatrixLayout,
    c_layout: MatrixLayout,
    d_layout: MatrixLayout,
    preference: MatmulPreference,
    *,
    limit: int = 1,
    stream: int | None = None,
    explain: bool = True,
) -> list[HeuristicResult]:
    """Up to ``limit`` algorithms for a problem, the one expected to be fastest first; those that failed are left out.

    cuBLASLt reads the alignment of the bias and aux pointers, so set these before. It caches its answers
    (:func:`~nvmath_device.host.cublaslt_calls.heuristics_cache_capacity`). With ``stream`` it may ask about the stream;
    only newer versions can, an older one is :class:`UnsupportedError`.

    Raises :class:`~nvmath_device.errors.HostLibraryError` with status ``NOT_SUPPORTED`` where it has no algorithm.
    ``explain=False`` leaves cuBLASLt's log alone then, for callers that ask only whether there is one.
    """
    if limit < 1:
        raise InvalidArgumentError(f"limit: {limit} given; allowed is 1 or more")
    found, count = (HeuristicResultStruct * limit)(), ctypes.c_int()
    problem = addresses(handle, desc, a_layout, b_layout, c_layout, d_layout, preference)
    args = (*problem, limit, found, ctypes.byref(count))
    if stream is None:
        calls.call("cublasLtMatmulAlgoGetHeuristic", *args, explain=explain)
    else:
        calls.call("cublasLtMatmulAlgoGetHeuristicForStream", *args, stream, explain=explain)
    return [_result(struct) for struct in found[: count.value] if struct.state == Status.SUCCESS]


def check(
    handle: Handle,
    desc: MatmulDesc,
    a_layout: MatrixLayout,
    b_layout: MatrixLayout,
    c_layout: MatrixLayout,
    d_layout: MatrixLayout,
    algo: Algo,
    *,
    explain: bool = True,
) -> HeuristicResult:
    """What an algorithm, edited or read from a file, needs for a problem.

    Raises :class:`~nvmath_device.errors.HostLibraryError` where it cannot be used.
    """
    result = HeuristicResultStruct()
    problem = addresses(handle, desc, a_layout, b_layout, c_layout, d_layout)
    references = ctypes.byref(algo.struct), ctypes.byref(result)
    calls.call("cublasLtMatmulAlgoCheck", *problem, *references, explain=explain)
    result.algo = algo.struct  # cuBLASLt does not fill it in
    return _result(result)


def algo_ids(
    handle: Handle,
    compute_type: ComputeType,
    scale_type: CudaDataType,
    a: CudaDataType,
    b: CudaDataType,
    c: CudaDataType,
    d: CudaDataType,
    *,
    limit: int = 64,
) -> list[int]:
    """Ids of up to ``limit`` algorithms for these types, for :func:`init_algo`."""
    ids, count = (ctypes.c_int * limit)(), ctypes.c_int()
    types = compute_type, scale_type, a, b, c, d
    calls.call("cublasLtMatmulAlgoGetIds", handle.address, *types, limit, ids, ctypes.byref(count))
    return ids[: count.value]


def init_algo(
    handle: Handle,
    compute_type: ComputeType,
    scale_type: CudaDataType,
    a: CudaDataType,
    b: CudaDataType,
    c: CudaDataType,
    d: CudaDataType,
    algo_id: int,
) -> Algo:
    """An algorithm by its id, not configured yet."""
    algo = Algo()
    types = compute_type, scale_type, a, b, c, d
    calls.call("cublasLtMatmulAlgoInit", handle.address, *types, algo_id, ctypes.byref(algo.struct))
    return algo
