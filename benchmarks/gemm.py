# SPDX-License-Identifier: Apache-2.0
"""Products of large matrices: ``Matmul.multiply`` in a kernel of ``nd.jit`` against cuBLASLt, on random data.

The cases are in ``gemm_cases.py``. The opponent computes with the same types of operands and result; it is the fastest
of what ``autotune`` finds for each order of A and B, all of which are tried first. Competitors take turns; a sample is
a loop of launches, timed on the GPU. Each result is compared with a product in float64 before that. All code is
generated and compiled before anything is timed, in parallel.

    python benchmarks/gemm.py --json gemm.json --plot gemm.png
    python benchmarks/gemm.py --cases fp32-8192 --tile 128x128x8/256 --tile suggested   # other tiles beside the case's
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from building import build
from gemm_cases import (
    BY_NAME,
    EPILOG,
    FUSED,
    OURS,
    ROW,
    SEPARATE,
    Case,
    Opponent,
    opponents,
    parse_choice,
    record,
    verdicts,
)
from gemm_kernels import argument_types, fused_kernel, product_kernel
from host_speed import GPU_ROUNDS, Product, check_product, gpu_sample, measure, planned
from timing import Report, Verdict, take_part, take_turns

import nvmath_device as nd
from nvmath_device import errors, host
from nvmath_device.host import current_device

QUICK_ROUNDS = 3  # to find the fastest order for cuBLASLt
TF32_LOST_BITS = 13  # of float32's mantissa

Check = Callable[[Product], float]


@dataclass(frozen=True)
class Ours:
    """A kernel of ours for a case, under the name that it competes with."""

    name: str
    case: Case
    choice: nd.TileChoice
    fused: bool = False

    @property
    def matmul(self) -> nd.Matmul:
        return self.case.descriptor.tile(self.choice)

    @property
    def kernel(self) -> Any:
        if self.fused:
            return fused_kernel(self.matmul, self.choice.depth)
        return product_kernel(self.matmul, self.choice.depth)

    @property
    def types(self) -> tuple[Any, ...]:
        return argument_types(self.case, fused=self.fused)

    def launch(self, *arrays: Any) -> Callable[[], Any]:
        """The launch, with its arguments in place."""
        size, tile = self.case.size, self.choice.tile
        rows, columns = -(-size // tile.m), -(-size // tile.n)
        shared = self.matmul.get_pipeline_storage_size(self.choice.depth)
        configured = self.kernel[rows * columns, self.choice.block_size, torch.cuda.current_stream(), shared]
        return configured.bind(*arrays, rows, columns, self.choice.group)

    def report(self) -> dict[str, Any]:
        """What the kernel has become; empty without nvdisasm."""
        words = {"choice": str(self.choice), "path": str(self.matmul.path())}
        try:
            made = self.kernel.report(signature=self.types)
        except errors.MissingDependencyError:
            return words
        return words | made.as_dict()


def ours_of(case: Case, texts: Iterable[str]) -> list[Ours]:
    """The case's own choice and others, and the same with an epilog."""
    choices = {"": case.choice}
    for text in texts:
        choice = nd.suggest_tile(case.descriptor) if text == "suggested" else parse_choice(text, case.choice)
        choices[f" {choice}"] = choice
    found = [Ours(f"{OURS}{name}", case, choice) for name, choice in choices.items()]
    if case.fused:
        found += [Ours(f"{FUSED}{name}", case, choice, fused=True) for name, choice in choices.items()]
    return found


# -- operands ----------------------------------------------------------------------------------------------------


def random_matrix(element: str, size: int, order: str) -> torch.Tensor:
    """Normally distributed numbers that the element type holds exactly, stored in an order."""
    dtype = getattr(torch, nd.element_type(element).dtype.name)
    x = torch.randn(size, size, device="cuda", dtype=torch.float64 if dtype == torch.float64 else torch.float32)
    if element == "tfloat32":
        x.view(torch.int32).bitwise_and_(-1 << TF32_LOST_BITS)
    x = x.to(dtype)
    return x if order == ROW else x.T


def in_order(x: torch.Tensor, order: str) -> torch.Tensor:
    """The same matrix, stored in an order; itself where it is already."""
    return x.contiguous() if order == ROW else x.T.contiguous().T


def float64(x: torch.Tensor) -> torch.Tensor:
    return (x if x.dtype == torch.float64 else x.float()).double()


# -- cuBLASLt ----------------------------------------------------------------------------------------------------


def cublaslt(
    stack: ExitStack, case: Case, opponent: Opponent, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor
) -> Product:
    options: dict[str, Any] = {"result_type": case.precision[2], "fast_accumulation": opponent.fast_accumulation}
    if case.compute:
        options["compute_type"] = case.compute
    scales = host.MatmulQuantizationScales(a=1.0, b=1.0) if case.is_fp8 else None
    left, right = (in_order(x, order) for x, order in zip((a, b), opponent.orders, strict=True))
    matmul = host.Matmul(left, right, options=options, quantization_scales=scales)
    execute = planned(stack, matmul, True, {"flush": False}).execute
    return Product(lambda: execute(out=c), lambda _: c, case.allowed.error, repr(next(iter(matmul.algorithms), None)))


def fastest(
    report: Report, stack: ExitStack, case: Case, makers: Mapping[str, Callable[[ExitStack], Product]], check: Check
) -> tuple[dict[str, Product], dict[str, float]]:
    """The fastest opponent under its name, by few samples, and the medians of all; the others are given up again."""
    stacks = {name: stack.enter_context(ExitStack()) for name in makers}
    products = take_part(report, {name: partial(make, stacks[name]) for name, make in makers.items()}, check)
    if not products:
        return {}, {}
    samples = take_turns(products, lambda product: gpu_sample(product, case.launches), rounds=QUICK_ROUNDS)
    medians = {name: statistics.median(s.gpu_ms for s in taken) for name, taken in samples.items()}
    best = min(medians, key=lambda name: medians[name])
    for name, median in medians.items():
        report.say(f"  {name}: {median:.4f} ms{', the opponent' if name == best else ''}")
    for name, own in stacks.items():
        if name != best:
            own.close()
    return {best: products[best]}, medians


def separately(multiply: Product, c: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor) -> Product:
    """cuBLASLt's product, then the epilog by PyTorch's elementwise kernels."""

    def run() -> None:
        multiply.launch()
        c.add_(bias)
        torch.add(torch.nn.functional.gelu(c, approximate="tanh"), residual, out=c)

    return Product(run, multiply.result, EPILOG.error)


# -- a case ------------------------------------------------------------------------------------------------------


def run(report: Report, case: Case, kernels: Sequence[Ours], rounds: int) -> tuple[dict[str, Any], list[Verdict]]:
    a, b = (
        random_matrix(element, case.size, order)
        for element, order in zip(case.precision[:2], case.arrangement[:2], strict=True)
    )
    c = torch.empty(case.size, case.size, device="cuda", dtype=getattr(torch, case.precision[2]))
    bias, residual = torch.randn(case.size, device="cuda"), torch.randn(case.size, case.size, device="cuda")
    expected = float64(a) @ float64(b)
    with_epilog = torch.nn.functional.gelu(expected + bias, approximate="tanh") + residual if case.fused else expected

    def ours(one: Ours) -> Product:
        if one.fused:
            return Product(one.launch(a, b, c, bias, residual), lambda _: c, EPILOG.error)
        return Product(one.launch(a, b, c), lambda _: c, case.allowed.error)

    def check(product: Product) -> float:
        return check_product(product, c, expected)

    def check_epilog(product: Product) -> float:
        return check_product(product, c, with_epilog)

    report.say(f"{case.name}: {case.size}^3 {'-'.join(case.precision)}, {case.choice}")
    with ExitStack() as stack:
        rivals = {o.name: partial(cublaslt, case=case, opponent=o, a=a, b=b, c=c) for o in opponents(case)}
        opponent, opponents_ms = fastest(report, stack, case, rivals, check)
        plain = opponent | take_part(report, {one.name: partial(ours, one) for one in kernels if not one.fused}, check)
        epilogs = {one.name: partial(ours, one) for one in kernels if one.fused}
        if case.fused and opponent:
            epilogs[SEPARATE] = partial(separately, *opponent.values(), c, bias, residual)
        fused = take_part(report, epilogs, check_epilog)
        found = {name: check(product) for name, product in plain.items()}
        found |= {name: check_epilog(product) for name, product in fused.items()}
        times = measure(report, plain | fused, case.size, launches=case.launches, rounds=rounds)
        judged = verdicts(case, times, next(iter(opponent), None))
        made = record(
            case,
            kernels={one.name: one.report() for one in kernels},
            opponents_ms=opponents_ms,
            algorithm=next((product.algorithm for product in opponent.values()), None),
            errors=found,
            times=times,
            judged=judged,
        )
    return made, judged


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=list(BY_NAME), default=list(BY_NAME), metavar="NAME")
    parser.add_argument("--list", action="store_true", help="say what the cases are, and end")
    parser.add_argument(
        "--tile", action="append", default=[], metavar="MxNxK[/THREADS[/STAGES[/GROUP]]]",
        help='another choice of ours in each case, or "suggested"; may be given several times',
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, default=GPU_ROUNDS, help="samples of each competitor")
    parser.add_argument("--build-only", action="store_true", help="fill the code store, and end")
    parser.add_argument("--json", help="write everything, raw samples too, to this file")
    parser.add_argument("--plot", help="draw the ratios to this file, a .png or .svg; needs matplotlib")
    options = parser.parse_args()
    cases = [BY_NAME[name] for name in options.cases]
    if options.list:
        print("\n".join(map(str, cases)))
        return 0
    if options.plot:
        import plot_gemm
    properties = torch.cuda.get_device_properties(0)
    report = Report(
        options.json, (OURS,), device=current_device.device_name(0), multiprocessors=properties.multi_processor_count
    )
    section: dict[str, Any] = report.data.setdefault("gemm", {"rounds": options.rounds, "cases": []})
    begun = time.monotonic()
    wanted = [ours for case in cases for ours in ours_of(case, options.tile)]
    kernels = build(report, wanted, lambda x: x.kernel, lambda x: x.types, lambda x: f"{x.name}, {x.case.name}")
    section["build_s"] = time.monotonic() - begun
    report.say(f"{len(kernels)} kernels in {section['build_s']:.0f} s")
    judged: list[Verdict] = []
    for case in [] if options.build_only else cases:
        try:
            made, verdicts_ = run(report, case, [ours for ours in kernels if ours.case == case], options.rounds)
        except Exception:  # the others are worth having
            report.fail(f"{case.name}: {traceback.format_exc()}")
        else:
            section["cases"].append(made)
            judged += verdicts_
        gc.collect()
        torch.cuda.empty_cache()
        report.save()
    report.judge(section, judged)
    report.save()
    if options.plot:
        plot_gemm.draw(report.data, options.plot)
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
