# SPDX-License-Identifier: Apache-2.0
"""Which instructions a pipelined GEMM becomes, and what keeps it from faster ones: rules, read off what libmathdx 0.4.2
makes. ``kernel.report()`` counts what a kernel has really become."""

from __future__ import annotations

from nvmath_device.descriptors import ROW_MAJOR, GemmDescriptor
from nvmath_device.frozen import frozen
from nvmath_device.pipelines import PipelinePlan

WGMMA, MMA, FMA = "wgmma", "mma", "fma"
TMA, CP_ASYNC, LOADS = "TMA", "cp.async", "loads"

_WARPGROUP, _WARPGROUP_ROWS, _TMA_ALIGNMENT = 128, 64, 16
_WGMMA_BLOCKS = (128, 256, 512)
_ANY_ORDER = ("float16", "bfloat16")  # wgmma reads other types along K only
_ALONG_K = ("tfloat32", "float8_e4m3fn", "float8_e5m2", "int8", "uint8")


@frozen()
class PipelinePath:
    """How a block's tiles are multiplied and fetched.

    Attributes:
        arithmetic: ``"wgmma"`` (a warpgroup's tensor-core instruction of sm_90a), ``"mma"`` (a warp's) or ``"fma"``.
        fetch: ``"TMA"`` (a hardware copy of whole tiles), ``"cp.async"`` (of 4 to 16 bytes) or ``"loads"``.
        missing: what is missing for the fastest path of these element types on this device, in words; empty where it is
            taken.
    """

    arithmetic: str
    fetch: str
    missing: tuple[str, ...]

    def __str__(self) -> str:
        text = f"{self.arithmetic}, fetched by {self.fetch}"
        return f"{text}; faster with: {'; '.join(self.missing)}" if self.missing else text


def path_of(plan: PipelinePlan) -> PipelinePath:
    """The path of a plan for its target, which has ``arch="a"`` where the kernel is linked for the chip alone."""
    descriptor, sm = plan.descriptor, plan.execution.sm
    assert sm is not None
    kinds = {t.name for t in descriptor.precision[:2]}
    with_wgmma = sm[:2] == (9, 0) and kinds <= {*_ANY_ORDER, *_ALONG_K} and descriptor.precision.c.name != "float64"
    missing = tuple(_missing_for_wgmma(plan)) if with_wgmma else ()
    if with_wgmma and not missing:
        return PipelinePath(WGMMA, TMA, ())
    arithmetic = FMA if kinds == {"float32"} else MMA
    alignment = min(descriptor.alignment[:2]) if descriptor.alignment else 1
    if alignment < _TMA_ALIGNMENT and not missing:
        missing = (f"alignment of {_TMA_ALIGNMENT} bytes for a and b",)
    return PipelinePath(arithmetic, _fetch(plan, kinds, alignment), missing)


def _missing_for_wgmma(plan: PipelinePlan) -> list[str]:
    descriptor = plan.descriptor
    found = []
    if plan.execution.sm is not None and plan.execution.sm.arch != "a":
        found.append("a kernel of nd.jit or nd.compile, which link for the chip alone (sm_90a)")
    if descriptor.alignment is None or min(descriptor.alignment[:2]) < _TMA_ALIGNMENT:
        found.append(f"alignment of {_TMA_ALIGNMENT} bytes for a and b")
    if plan.block_dim.size not in _WGMMA_BLOCKS:
        found.append(f"a block of {', '.join(map(str, _WGMMA_BLOCKS[:-1]))} or {_WGMMA_BLOCKS[-1]} threads")
    elif descriptor.size.m % (rows := _WARPGROUP_ROWS * plan.block_dim.size // _WARPGROUP):
        found.append(f"a tile of a multiple of {rows} rows for {plan.block_dim.size} threads")
    if not _runs_along_k(descriptor) and any(t.name not in _ANY_ORDER for t in descriptor.precision[:2]):
        found.append("a row_major A and a col_major B, the only orders for these element types")
    return found


def _runs_along_k(descriptor: GemmDescriptor) -> bool:
    return descriptor.arrangement.a == ROW_MAJOR and descriptor.arrangement.b != ROW_MAJOR


def _fetch(plan: PipelinePlan, kinds: set[str], alignment: int) -> str:
    sm = plan.execution.sm
    assert sm is not None
    threads = plan.block_dim.size
    if alignment < _TMA_ALIGNMENT or threads & (threads - 1):
        return LOADS
    if sm[:2] >= (9, 0) and kinds <= set(_ANY_ORDER):
        return TMA
    return CP_ASYNC if sm[:2] >= (8, 0) else LOADS
