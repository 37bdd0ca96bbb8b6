# SPDX-License-Identifier: Apache-2.0
"""What cuBLASLt wants of the operands of each type, and what it is known to do wrong, as data.

Everything is in cuBLASLt's own frame, in which D is column-major: m is the number of its contiguous elements.
``lt_plan`` meets these rules with a copy; nobody else reads them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from nvmath_device.dtypes import int8, int32
from nvmath_device.host.gemm_types import GemmTypes

Version = tuple[int, int, int]


@dataclass(frozen=True)
class Rules:
    """Requirements on a product.

    Attributes:
        multiple_m, multiple_n, multiple_k: what the extents must be multiples of.
        leading: what leading dimensions must be multiples of, in elements.
        pointer: what addresses of matrices must be multiples of, in bytes.
        tn: A must be stored transposed and B not, which makes K the contiguous axis of both.
        loop_batches: strided batches are not offered, so each product is a call.
        max_leading_bytes: leading dimensions must stay below.
        why: what to say about a copy that a rule causes.
    """

    multiple_m: int = 1
    multiple_n: int = 1
    multiple_k: int = 1
    leading: int = 1
    pointer: int = 1
    tn: bool = False
    loop_batches: bool = False
    max_leading_bytes: int | None = None
    why: str = ""


@dataclass(frozen=True)
class Fault:
    """A known fault: where it is, and how the rules change to stay clear of it.

    ``first`` and ``last`` are versions of cuBLASLt, both included; ``last=None``: not known to be mended.
    """

    first: Version
    last: Version | None
    architectures: tuple[int, ...] | None  # major * 10 + minor; None: all
    change: dict[str, object]
    what: str

    def applies(self, version: Version, cc: int) -> bool:
        return (
            self.first <= version
            and (self.last is None or version <= self.last)
            and (self.architectures is None or cc in self.architectures)
        )


FAULTS: tuple[Fault, ...] = (
    Fault(
        first=(12, 0, 0), last=None, architectures=(90,), change={"max_leading_bytes": 2**31},
        what="products may be wrong where a leading dimension is 2 GiB or more",
    ),
)  # fmt: skip

_FP8_NEEDS_TN = {89, 90, 120, 121}  # cublasLtMatmul, notes on fp8: Ada, Hopper and Blackwell GeForce


def rules_for(types: GemmTypes, cc: int, version: Version) -> Rules:
    """The rules for a combination of types on a device. Source: cublasLtMatmul in NVIDIA's cuBLAS documentation."""
    rules = Rules()
    if types.a is int8:
        rules = Rules(
            multiple_m=4, multiple_k=4, leading=4, pointer=4, tn=True, loop_batches=types.d is int32,
            why="int8 products need K as the contiguous axis and m, k and leading dimensions in fours",
        )  # fmt: skip
    elif types.is_fp8:
        rules = Rules(
            multiple_m=16, multiple_k=16, leading=16, pointer=16, tn=cc in _FP8_NEEDS_TN,
            why="fp8 products need extents and addresses in units of 16 bytes, and on this device K contiguous",
        )  # fmt: skip
    for fault in FAULTS:
        if fault.applies(version, cc):
            rules = replace(rules, **fault.change)  # type: ignore[arg-type]
    return rules
