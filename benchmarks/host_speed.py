# SPDX-License-Identifier: Apache-2.0
"""The sections of ``benchmarks/host.py`` about time on the GPU, ``speed`` and ``fp8``, and what they have in common."""

from __future__ import annotations

import importlib
import itertools
import statistics
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from timing import Report, Verdict, take_part, take_turns

from nvmath_device import host
from nvmath_device.host.cublaslt_enums import CudaDataType

OURS, PEER = "nvmath_device", "nvmath-python"
AGAIN = f"{OURS} autotuned, again"  # the same product a second time: how far apart two series of one thing are
DEVICE = "cuda"

GPU_ROUNDS = 25
SIZES = (2048, 8192)
LAUNCHES = {2048: 20, 4096: 20, 8192: 10}  # per sample, by size
FP8_SIZE = 8192
HEAD_START = 20_000_000  # GPU clock cycles, about 10 ms, for the CPU to launch a whole sample ahead of the GPU
ALGORITHMS = 16  # that autotuning chooses from, ours and nvmath-python's

# Bounds of norm-wise relative errors, by the type of the result. They are a few times its rounding error; for float32
# that leaves room for 128 additions, and none for tf32 (3e-4).
BOUNDS = {"float64": 1e-13, "float32": 1e-6, "float16": 1e-3, "bfloat16": 4e-3}
# By whether fast accumulation is on: it keeps about 13 bits of a sum and cuts the rest off, 256 times at K = 8192.
FP8_BOUNDS = {False: BOUNDS["bfloat16"], True: 2e-2}


# -- speed ------------------------------------------------------------------------------------------------------


class Product(NamedTuple):
    """A competitor: what launches it, how its result is seen from what that returns, and its bound of error.

    ``algorithm`` is what cuBLASLt computes it with, in words, where it tells.
    """

    launch: Callable[[], Any]
    result: Callable[[Any], torch.Tensor]
    bound: float = BOUNDS["bfloat16"]
    algorithm: str | None = None


class GpuSample(NamedTuple):
    """Milliseconds a launch: on the GPU, and for a program that makes some and then waits. ``ahead``: see below."""

    gpu_ms: float
    wall_ms: float
    ahead: bool


def gpu_sample(product: Product, launches: int) -> GpuSample:
    """GPU time between two events with everything launched before the first, so that the CPU takes no part in it.

    ``ahead`` is whether that worked: whether the GPU was still held up when the last launch was made.
    """
    launch = product.launch
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    torch.cuda._sleep(HEAD_START)
    start.record()
    for _ in range(launches):
        launch()
    stop.record()
    ahead = not start.query()
    stop.synchronize()
    begin = time.perf_counter_ns()
    for _ in range(launches):
        launch()
    torch.cuda.synchronize()
    wall = time.perf_counter_ns() - begin
    return GpuSample(start.elapsed_time(stop) / launches, wall / 1e6 / launches, ahead)


def timed(products: Mapping[str, Product], launches: int, *, rounds: int = GPU_ROUNDS) -> dict[str, dict[str, Any]]:
    """Medians and samples, of so many launches each; the products take turns."""
    samples = take_turns(products, lambda product: gpu_sample(product, launches), rounds=rounds)
    return {
        name: {
            "gpu_ms": statistics.median(s.gpu_ms for s in taken),
            "wall_ms": statistics.median(s.wall_ms for s in taken),
            "samples_not_ahead": sum(not s.ahead for s in taken),
            "samples_ms": [[round(s.gpu_ms, 5), round(s.wall_ms, 5)] for s in taken],
        }
        for name, taken in samples.items()
    }


def measure(
    report: Report,
    products: Mapping[str, Product],
    size: int,
    *,
    launches: int | None = None,
    rounds: int = GPU_ROUNDS,
) -> dict[str, dict[str, Any]]:
    """:func:`timed` of products of ``size``^3, told. ``launches`` a sample: by default the size's."""
    times = timed(products, LAUNCHES[size] if launches is None else launches, rounds=rounds)
    for name, time_ in times.items():
        speed = f"{2 * size**3 / time_['gpu_ms'] / 1e9:6.1f} TFLOP/s"
        report.say(f"{name:50} {told(time_, speed)}")
    return times


def told(time_: Mapping[str, Any], speed: str) -> str:
    late = f"  CPU-bound in {time_['samples_not_ahead']} samples" if time_["samples_not_ahead"] else ""
    return f"GPU {time_['gpu_ms']:8.4f} ms, {speed}; a call {time_['wall_ms']:8.4f} ms{late}"


def check_product(product: Product, held: torch.Tensor, expected: torch.Tensor) -> float:
    """The norm-wise relative error of a result. Raises where it is above the product's bound.

    ``expected`` is float64, ``held`` where the result may be written.
    """
    held.fill_(float("nan"))
    got = product.result(product.launch()).double()
    error = float(torch.linalg.norm(got - expected) / torch.linalg.norm(expected))
    if not error <= product.bound:
        raise ArithmeticError(f"relative error {error:.2e} is above {product.bound:.0e}")
    return error


def random_bf16(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device=DEVICE).to(torch.bfloat16)


def planned(
    stack: ExitStack, matmul: Any, autotune: bool, how: Mapping[str, Any] = MappingProxyType({}), **plan: Any
) -> Any:
    """A ``Matmul`` of either library, planned, for as long as ``stack``; ``how`` it is autotuned."""
    stack.enter_context(matmul)
    matmul.plan(**({"preferences": {"limit": ALGORITHMS}} if autotune else {}), **plan)
    if autotune:
        matmul.autotune(iterations=10, **how)
    return matmul


def relu_bias(report: Report, size: int, direction: str) -> tuple[dict[str, Any], list[Verdict]]:
    """h = relu(p @ q + bias), h C-ordered and the bias along its columns, is what every competitor computes.

    ``"columns"`` is PyTorch's Linear: p is C-ordered, q a transposed matrix, and so we are asked. nvmath-python takes
    a bias along rows only and is asked for the transposed h' = relu(q' @ p' + bias), which is the same in memory.
    ``"rows"`` is the form nvmath-python is made for: q' and p' are C-ordered, and we are asked as it is.

    A sample is a loop over one product, whose operands, at 2048^3, stay in the L2 cache. So ours is autotuned for that,
    too, which is how nvmath-python always does it, and as a competitor more with the cache flushed, our default.
    """
    x, w = random_bf16(size, size), random_bf16(size, size)
    p, q = (x, w.T) if direction == "columns" else (w.T, x.T)
    bias = (torch.randn(size, device=DEVICE) * size**0.5).to(torch.bfloat16)  # as large as the product's elements
    h = torch.empty((size, size), dtype=torch.bfloat16, device=DEVICE)
    expected = torch.relu(p.double() @ q.double() + bias.double())
    name = f"{size}^3 bf16 RELU_BIAS, bias along {direction}"
    report.say(name)

    def ours(stack: ExitStack, autotune: bool, flush: bool = True) -> Product:
        left, right, along, out = (p, q, bias[None, :], h) if direction == "columns" else (q.T, p.T, bias, h.T)
        epilog, inputs = host.MatmulEpilog.RELU_BIAS, {"bias": along}
        mm = planned(stack, host.Matmul(left, right), autotune, {"flush": flush}, epilog=epilog, epilog_inputs=inputs)
        execute = mm.execute
        return Product(lambda: execute(out=out), lambda _: h, algorithm=repr(mm.algorithms[0]))

    def peer(stack: ExitStack, autotune: bool) -> Product:
        advanced = importlib.import_module("nvmath.linalg.advanced")
        epilog, inputs = advanced.MatmulEpilog.RELU_BIAS, {"bias": bias}
        mm = planned(stack, advanced.Matmul(q.T, p.T), autotune, epilog=epilog, epilog_inputs=inputs)
        return Product(mm.execute, lambda returned: returned.T)

    def addmm_relu() -> None:
        torch.addmm(bias, p, q, out=h)
        h.relu_()

    def fused() -> None:
        torch._addmm_activation(bias, p, q, out=h)

    with ExitStack() as stack:
        makers: dict[str, Callable[[], Product]] = {
            f"{OURS} planned": partial(ours, stack, False),
            f"{OURS} autotuned with a cold cache": partial(ours, stack, True),
            f"{OURS} autotuned": partial(ours, stack, True, flush=False),
            f"{PEER} planned": partial(peer, stack, False),
            f"{PEER} autotuned": partial(peer, stack, True),
            "torch addmm, relu_": lambda: Product(addmm_relu, lambda _: h),
            "torch _addmm_activation": lambda: Product(fused, lambda _: h),
        }
        products = take_part(report, makers, lambda product: check_product(product, h, expected))
        if f"{OURS} autotuned" in products:
            products[AGAIN] = products[f"{OURS} autotuned"]
        times = measure(report, products, size)
    verdicts = []
    rivals = [rival for rival in times if not rival.startswith(OURS) and rival != f"{PEER} planned"]
    if AGAIN in times and rivals:
        mine, again = times[f"{OURS} autotuned"], times[AGAIN]
        for key, words in (("gpu_ms", "GPU time"), ("wall_ms", "time a call")):
            best = min(rivals, key=lambda rival: times[rival][key])
            what = f"{name}, {words} of {best} / {OURS} autotuned"
            noise = abs(again[key] / mine[key] - 1)
            verdicts.append(Verdict(what, times[best][key] / mine[key], 1.0, at_most=False, noise=noise))
    algorithms = {name: product.algorithm for name, product in products.items() if product.algorithm}
    return {"case": name, "times": times, "algorithms": algorithms}, verdicts


def speed(report: Report, section: dict[str, Any]) -> None:
    section["cases"], verdicts = [], []
    for size, direction in itertools.product(SIZES, ("columns", "rows")):
        try:
            case, found = relu_bias(report, size, direction)
        except Exception:  # the others are worth having
            report.fail(f"{size}^3, {direction}: {traceback.format_exc()}")
        else:
            section["cases"].append(case)
            verdicts += found
    report.judge(section, verdicts)


# -- fp8 --------------------------------------------------------------------------------------------------------


def fp8(report: Report, section: dict[str, Any]) -> None:
    """x @ w' to a bf16 result, x and w C-ordered: once in bf16, once in e4m3 with a scale for either."""
    size, scales = FP8_SIZE, (0.5, 4.0)
    x, w = random_bf16(size, size), random_bf16(size, size)
    x8, w8 = x.to(torch.float8_e4m3fn), w.to(torch.float8_e4m3fn)
    h = torch.empty((size, size), dtype=torch.bfloat16, device=DEVICE)
    fp8_scales = host.MatmulQuantizationScales(a=scales[0], b=scales[1])
    torch_scales = [torch.full((), scale, dtype=torch.float32, device=DEVICE) for scale in scales]
    expected = x.double() @ w.double().T
    expected8 = (x8.float().double() @ w8.float().double().T) * (scales[0] * scales[1])

    def bf16(stack: ExitStack, autotune: bool) -> Product:
        execute = planned(stack, host.Matmul(x, w.T), autotune).execute
        return Product(lambda: execute(out=h), lambda _: h)

    def e4m3(stack: ExitStack, autotune: bool, fast: bool) -> Product:
        options = {"result_type": CudaDataType.CUDA_R_16BF, "fast_accumulation": fast}
        ours = host.Matmul(x8, w8.T, quantization_scales=fp8_scales, options=options)
        execute = planned(stack, ours, autotune).execute
        return Product(lambda: execute(out=h), lambda _: h, FP8_BOUNDS[fast])

    def torch_e4m3(fast: bool) -> Product:
        def launch() -> None:
            torch._scaled_mm(x8, w8.T, *torch_scales, out_dtype=torch.bfloat16, use_fast_accum=fast, out=h)

        return Product(launch, lambda _: h, FP8_BOUNDS[fast])

    with ExitStack() as stack:
        in_bf16: dict[str, Callable[[], Product]] = {
            f"{OURS} bf16 planned": partial(bf16, stack, False),
            f"{OURS} bf16 autotuned": partial(bf16, stack, True),
            "torch bf16 mm": lambda: Product(lambda: torch.mm(x, w.T, out=h), lambda _: h),
        }
        in_fp8: dict[str, Callable[[], Product]] = {}
        for fast, sums in ((False, ""), (True, ", fast accumulation")):
            in_fp8[f"{OURS} fp8 planned{sums}"] = partial(e4m3, stack, False, fast)
            in_fp8[f"{OURS} fp8 autotuned{sums}"] = partial(e4m3, stack, True, fast)
            in_fp8[f"torch fp8 _scaled_mm{sums}"] = partial(torch_e4m3, fast)
        products = take_part(report, in_bf16, lambda product: check_product(product, h, expected))
        products |= take_part(report, in_fp8, lambda product: check_product(product, h, expected8))
        times = section["times"] = measure(report, products, size)
    base = f"{OURS} bf16 autotuned"
    ours = [name for name in times if name.startswith(f"{OURS} fp8 autotuned") and base in times]
    ratios = {name: times[base]["gpu_ms"] / times[name]["gpu_ms"] for name in ours}
    report.judge(section, [Verdict(f"{base} / {name}", r, 1.6, at_most=False) for name, r in ratios.items()])
