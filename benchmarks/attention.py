# SPDX-License-Identifier: Apache-2.0
"""Attention: the kernel of ``examples/attention.py`` against PyTorch's ``scaled_dot_product_attention``, in float16.

Shapes and element types are the same for all, and nothing is masked. PyTorch takes part with each of its backends that
there is. Competitors take turns; each is compared with attention in float64 before it is timed. There is no target: the
ratio is what it is. The kernel multiplies by ``Matmul.execute`` on tensors, which becomes ``mma.sync``, and has weights
go through shared memory; PyTorch's best multiplies by ``wgmma``.

    python benchmarks/attention.py --json attention.json
"""

from __future__ import annotations

import argparse
import gc
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from attention_kernels import argument_types, attention_kernel, name_of, tilings
from building import build
from host_speed import GPU_ROUNDS, Product, check_product, timed, told
from timing import Report, take_part
from torch.nn.attention import SDPBackend, sdpa_kernel

from nvmath_device.host import current_device

OURS = "nvmath_device"
BACKENDS = (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION)
BOUND = 2e-3  # of the norm-wise relative error: weights and results are rounded to float16
LAUNCHES = 4


@dataclass(frozen=True)
class Case:
    batch: int
    heads: int
    length: int  # queries, and keys
    depth: int

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return self.batch, self.heads, self.length, self.depth

    @property
    def flop(self) -> int:
        """Of the two products."""
        return 4 * self.batch * self.heads * self.length**2 * self.depth


CASES = tuple(
    Case(batch, 32, length, depth) for batch, length in ((8, 1024), (1, 4096)) for depth in (64, 128)
)  # fmt: skip


def expected_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """In float64, one head after the other: all scores at a time would be many gigabytes."""
    result = torch.empty(q.shape, dtype=torch.float64, device=q.device)
    for batch in range(q.shape[0]):
        for head in range(q.shape[1]):
            one_q, one_k, one_v = (x[batch, head].double() for x in (q, k, v))
            result[batch, head] = torch.softmax(one_q @ one_k.T / math.sqrt(q.shape[-1]), -1) @ one_v
    return result


def run(report: Report, case: Case, kernels: dict[Any, Any], rounds: int) -> dict[str, Any]:
    q, k, v = (torch.randn(case.shape, device="cuda").half() for _ in range(3))
    o = torch.empty_like(q)
    expected = expected_attention(q, k, v)
    flat = [x.view(case.batch * case.heads, case.length, case.depth) for x in (q, k, v, o)]

    def ours(tiling: Any, kernel: Any) -> Product:
        grid = (-(-case.length // tiling.queries), case.batch * case.heads)
        configured = kernel[grid, tiling.threads, torch.cuda.current_stream(), tiling.shared.size]
        return Product(configured.bind(*flat), lambda _: o, BOUND)

    def theirs(backend: SDPBackend) -> Product:
        def launch() -> torch.Tensor:
            with sdpa_kernel(backend):
                return torch.nn.functional.scaled_dot_product_attention(q, k, v)

        return Product(launch, lambda returned: returned, BOUND)

    report.say(f"{case}")
    makers: dict[str, Callable[[], Product]] = {
        f"{OURS}, {name_of(tiling)}": partial(ours, tiling, kernel)
        for tiling, kernel in kernels.items()
        if tiling.depth == case.depth
    }
    makers |= {f"torch {backend.name.lower()}": partial(theirs, backend) for backend in BACKENDS}
    products = take_part(report, makers, lambda product: check_product(product, o, expected))
    errors = {name: check_product(product, o, expected) for name, product in products.items()}
    times = timed(products, LAUNCHES, rounds=rounds)
    for name, time in times.items():
        speed = f"{case.flop / time['gpu_ms'] / 1e9:6.1f} TFLOP/s"
        report.say(f"{name:70} {told(time, speed)}")
    mine, rivals = ([name for name in times if name.startswith(OURS) == own] for own in (True, False))
    ratio = None
    if mine and rivals:
        best, rival = (min(names, key=lambda name: times[name]["gpu_ms"]) for names in (mine, rivals))
        ratio = times[rival]["gpu_ms"] / times[best]["gpu_ms"]
        report.say(f"time of {rival} / {best}: {ratio:.3f}")
    return {"shape": case.shape, "of_the_fastest_backend": ratio, "errors": errors, "times": times}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write everything, raw samples too, to this file")
    parser.add_argument("--rounds", type=int, default=GPU_ROUNDS, help="samples of each competitor")
    options = parser.parse_args()
    report = Report(options.json, (OURS,), device=current_device.device_name(0))
    depths = dict.fromkeys(case.depth for case in CASES)
    kernels = build(
        report,
        [tiling for depth in depths for tiling in tilings(depth)],
        attention_kernel,
        lambda _: argument_types(),
        lambda tiling: f"{OURS}, {name_of(tiling)}, depth {tiling.depth}",
    )
    section: dict[str, Any] = report.data.setdefault("attention", {"cases": []})
    for case in CASES:
        section["cases"].append(run(report, case, kernels, options.rounds))
        gc.collect()
        torch.cuda.empty_cache()
        report.save()
    report.save()
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
