# SPDX-License-Identifier: Apache-2.0
"""Products of large matrices: ``Matmul.multiply`` in a kernel of ``nd.jit`` against cuBLASLt, on random data.

The opponent is the best of cuBLASLt's algorithms for the same types of operands and result, found by ``autotune``.
Competitors take turns; a sample is a loop of launches, timed on the GPU.

    python benchmarks/gemm.py --json gemm.json
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import torch
from host_speed import Product, check_product, measure, planned
from numba import cuda
from timing import Report, Verdict, take_part

import nvmath_device as nd
from nvmath_device import host
from nvmath_device.host import current_device
from nvmath_device.host.cublaslt_enums import CudaDataType

OPPONENT, OURS, FUSED = "cuBLASLt autotuned", "multiply", "multiply, bias, GELU, residual"
SEPARATE = "cuBLASLt, then bias, GELU, residual"
GROUP = 16  # rows of tiles that blocks go through together, for the L2 cache
TARGETS = {8192: 0.90, 4096: 0.85}
BOUND = 1e-5
FUSED_BOUND = 1e-4  # the hardware's tanh keeps about 11 bits, of numbers that are added to larger ones

mm = nd.Matmul(
    (128, 256, 64), ("float16", "float16", "float32"), "real", arrangement=("row_major", "col_major", "row_major"),
    block_size=256, alignment=nd.MAX_ALIGNMENT,
)  # fmt: skip


@cuda.jit(device=True)
def place(rows: Any, columns: Any) -> Any:
    """Which tile this block computes: blocks that run at a time share rows and columns of tiles."""
    columns, rows = np.int32(columns), np.int32(rows)
    a_group = GROUP * columns
    first = cuda.blockIdx.x // a_group * GROUP
    height = min(rows - first, GROUP)
    within = cuda.blockIdx.x % a_group
    return first + within % height, within // height


@cuda.jit(device=True, fastmath=True)
def gelu_residual(value: Any, residual: Any, row: Any, column: Any, bias: Any) -> Any:
    x = value + bias[column]
    half = np.float32(0.5) * x
    return half * math.tanh(x * (np.float32(0.7978845608) + np.float32(0.0356774081) * x * x)) + (half + residual)


@nd.jit
def product(a: Any, b: Any, c: Any, rows: Any, columns: Any) -> None:
    i, j = place(rows, columns)
    mm.multiply(a, b, i, j).store(c)


@nd.jit
def fused(a: Any, b: Any, c: Any, bias: Any, residual: Any, rows: Any, columns: Any) -> None:
    i, j = place(rows, columns)
    mm.multiply(a, b, i, j).combine(gelu_residual, residual, bias).store(c)


def case(report: Report, size: int) -> tuple[dict[str, Any], list[Verdict]]:
    a, b = (torch.randn(size, size, device="cuda").half() for _ in range(2))
    bias, residual = torch.randn(size, device="cuda"), torch.randn(size, size, device="cuda")
    c = torch.empty(size, size, device="cuda")
    rows, columns = -(-size // mm.size.m), -(-size // mm.size.n)
    launch = (rows * columns, mm.block_dim, torch.cuda.current_stream(), mm.get_pipeline_storage_size())
    expected = a.double() @ b.double().T
    expected_fused = torch.nn.functional.gelu(expected + bias, approximate="tanh") + residual

    def opponent(stack: ExitStack) -> Callable[[], Any]:
        options = {"result_type": CudaDataType.CUDA_R_32F}
        execute = planned(stack, host.Matmul(a, b.T, options=options), True, {"flush": False}).execute
        return lambda: execute(out=c)

    def separate(stack: ExitStack) -> Callable[[], Any]:
        multiply = opponent(stack)

        def run() -> None:
            multiply()
            c.add_(bias)
            torch.add(torch.nn.functional.gelu(c, approximate="tanh"), residual, out=c)

        return run

    report.say(f"{size}^3 float16 -> float32")
    with ExitStack() as stack:
        makers: dict[str, Callable[[], Product]] = {
            OPPONENT: lambda: Product(opponent(stack), lambda _: c, BOUND),
            OURS: lambda: Product(partial(product[launch], a, b.T, c, rows, columns), lambda _: c, BOUND),
        }
        fused_makers: dict[str, Callable[[], Product]] = {
            FUSED: lambda: Product(
                partial(fused[launch], a, b.T, c, bias, residual, rows, columns), lambda _: c, FUSED_BOUND
            ),
            SEPARATE: lambda: Product(separate(stack), lambda _: c, BOUND),
        }
        products = take_part(report, makers, lambda p: check_product(p, c, expected))
        products |= take_part(report, fused_makers, lambda p: check_product(p, c, expected_fused))
        times = measure(report, products, size)
    verdicts = []
    if {OPPONENT, OURS} <= times.keys():
        ratio = times[OPPONENT]["gpu_ms"] / times[OURS]["gpu_ms"]
        verdicts.append(Verdict(f"{size}^3: time of {OPPONENT} / {OURS}", ratio, TARGETS[size], at_most=False))
    if {OURS, FUSED} <= times.keys():
        ratio = times[FUSED]["gpu_ms"] / times[OURS]["gpu_ms"]
        verdicts.append(Verdict(f"{size}^3: time of {FUSED} / {OURS}", ratio, 1.03, at_most=True))
    if {SEPARATE, FUSED} <= times.keys():
        ratio = times[SEPARATE]["gpu_ms"] / times[FUSED]["gpu_ms"]
        verdicts.append(Verdict(f"{size}^3: time of {SEPARATE} / {FUSED}", ratio, 1.0, at_most=False))
    return {"size": size, "times": times}, verdicts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write everything to this file")
    report = Report(parser.parse_args().json, (OURS,), device=current_device.device_name(0))
    section: dict[str, Any] = report.data.setdefault("gemm", {"cases": []})
    verdicts: list[Verdict] = []
    for size in TARGETS:
        found, judged = case(report, size)
        section["cases"].append(found)
        verdicts += judged
    report.judge(section, verdicts)
    report.save()
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
