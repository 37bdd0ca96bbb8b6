# SPDX-License-Identifier: Apache-2.0
"""Which instructions a pipelined GEMM becomes, and what keeps it from faster ones: rules, read off what libmathdx 0.4.2
makes. ``kernel.report()`` counts what a kernel has really become."""

from __future__ import annotations

from nvmath_device.frozen import frozen
from nvmath_device.pipelines import TMA_ALIGNMENT, PipelinePlan, missing_for_wgmma, wgmma_multiplies

WGMMA, MMA, FMA = "wgmma", "mma", "fma"
TMA, CP_ASYNC, LOADS = "TMA", "cp.async", "loads"


@frozen()
class PipelinePath:
    """How a block's tiles are multiplied and fetched.

    Attributes:
        arithmetic: ``"wgmma"`` (a warpgroup's tensor-core instruction of sm_90a), ``"mma"`` (a warp's) or ``"fma"``.
        fetch: ``"TMA"`` (a hardware copy of whole tiles), ``"cp.async"`` (of 4 to 16 bytes; smaller elements that are
            not in lines of whole 16 bytes are loaded) or ``"loads"``.
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
    descriptor, execution, sm = plan.descriptor, plan.execution, plan.execution.sm
    assert sm is not None
    with_wgmma = wgmma_multiplies(descriptor, sm)
    missing = missing_for_wgmma(descriptor, execution) if with_wgmma else ()
    if with_wgmma and not missing:
        return PipelinePath(WGMMA, TMA, ())
    arithmetic = FMA if {t.name for t in descriptor.precision[:2]} == {"float32"} else MMA
    if plan.is_streamed:
        return PipelinePath(arithmetic, TMA, missing)
    alignment = min(descriptor.alignment[:2]) if descriptor.alignment else 1
    if alignment < TMA_ALIGNMENT and not missing and sm[:2] >= (9, 0):
        missing = (f"alignment of {TMA_ALIGNMENT} bytes for a and b",)
    return PipelinePath(arithmetic, CP_ASYNC if sm[:2] >= (8, 0) else LOADS, missing)
