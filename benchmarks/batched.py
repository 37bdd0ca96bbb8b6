# SPDX-License-Identifier: Apache-2.0
"""Many small products, 100,000 of 32 x 32 x 32 in float32, against cuBLAS, on random data.

The opponent is the fastest of ``torch.bmm`` and ``cupy.matmul``, which call cuBLAS's batched GEMM, and cuBLASLt with a
batch, autotuned; none may use tf32. Our kernels are in ``batched_kernels.py``, which says what bounds them; the fastest
counts. Competitors take turns; each is compared with float64 before that.

    python benchmarks/batched.py --json batched.json
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from batched_kernels import SIZE, VARIANTS, Variant, argument_types
from building import build
from host_speed import GPU_ROUNDS, Product, check_product, planned, timed, told
from timing import Report, Verdict, take_part

from nvmath_device import errors, host
from nvmath_device.host import current_device

OURS, COPY = "nvmath_device", "torch copy of as many bytes"
BATCH = 100_000
TARGET = 1.5
BOUND = 1e-6  # of the norm-wise relative error: 32 products added up in float32
LAUNCHES = 10


def ours(variant: Variant, kernel: Any, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Product:
    grid = -(-len(a) // variant.products)
    configured = kernel[grid, variant.threads, torch.cuda.current_stream(), variant.shared_bytes()]
    return Product(configured.bind(a, b, c), lambda _: c, BOUND)


def cublaslt(stack: ExitStack, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Product:
    matmul = host.Matmul(a, b)
    execute = planned(stack, matmul, True, {"flush": False}).execute
    return Product(lambda: execute(out=c), lambda _: c, BOUND, repr(next(iter(matmul.algorithms), None)))


def cupy_matmul(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Product:
    cupy = importlib.import_module("cupy")
    x, y, z = (cupy.asarray(array) for array in (a, b, c))
    stream = cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream)

    def launch() -> None:
        with stream:
            cupy.matmul(x, y, out=z)

    return Product(launch, lambda _: c, BOUND)


def words_of(variant: Variant, kernel: Any) -> dict[str, Any]:
    """What the kernel has become; empty without nvdisasm."""
    try:
        return dict(kernel.report(signature=argument_types()).as_dict())
    except errors.MissingDependencyError:
        return {}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write everything, raw samples too, to this file")
    parser.add_argument("--rounds", type=int, default=GPU_ROUNDS, help="samples of each competitor")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    report = Report(options.json, (OURS,), device=current_device.device_name(0))
    kernels = build(report, VARIANTS, Variant.kernel, lambda _: argument_types(), lambda v: f"{OURS} {v.name}")
    a, b = (torch.randn(BATCH, SIZE, SIZE, device="cuda") for _ in range(2))
    c = torch.empty_like(a)
    expected = torch.bmm(a.double(), b.double())
    moved = 3 * a.numel() * a.element_size()
    half = torch.empty(moved // 2, dtype=torch.uint8, device="cuda")
    onto = torch.empty_like(half)

    report.say(f"{BATCH} products of {SIZE} x {SIZE} x {SIZE} in float32, {moved / 1e9:.2f} GB")
    with ExitStack() as stack:
        mine: dict[str, Callable[[], Product]] = {
            f"{OURS} {variant.name}": partial(ours, variant, kernel, a, b, c) for variant, kernel in kernels.items()
        }
        rivals: dict[str, Callable[[], Product]] = {
            "torch.bmm": lambda: Product(lambda: torch.bmm(a, b, out=c), lambda _: c, BOUND),
            "cupy.matmul": partial(cupy_matmul, a, b, c),
            "cuBLASLt autotuned": partial(cublaslt, stack, a, b, c),
        }
        products = take_part(report, mine | rivals, lambda product: check_product(product, c, expected))
        errors_found = {name: check_product(product, c, expected) for name, product in products.items()}
        products[COPY] = Product(lambda: onto.copy_(half), lambda _: onto)  # what memory allows
        times = timed(products, LAUNCHES, rounds=options.rounds)
    for name, time in times.items():
        speed = f"{moved / time['gpu_ms'] / 1e9:5.2f} TB/s"
        report.say(f"{name:60} {told(time, speed)}")

    def fastest(names: Any) -> str | None:
        return min((name for name in names if name in times), key=lambda name: times[name]["gpu_ms"], default=None)

    best, opponent = fastest(mine), fastest(rivals)
    judged = []
    if best and opponent:
        ratio = times[opponent]["gpu_ms"] / times[best]["gpu_ms"]
        judged.append(Verdict(f"time of {opponent} / {best}", ratio, TARGET, at_most=False))
        bound_by_memory = times[COPY]["gpu_ms"] / times[best]["gpu_ms"]
        report.say(f"time of {COPY} / {best}: {bound_by_memory:.3f}")
    section = report.data["batched"] = {
        "batch": BATCH,
        "size": SIZE,
        "bytes": moved,
        "kernels": {f"{OURS} {variant.name}": words_of(variant, kernel) for variant, kernel in kernels.items()},
        "algorithms": {name: product.algorithm for name, product in products.items() if product.algorithm},
        "errors": errors_found,
        "times": times,
    }
    report.judge(section, judged)
    report.save()
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
