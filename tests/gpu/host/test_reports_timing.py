# SPDX-License-Identifier: Apache-2.0
"""Reported cases about speed: what a call costs on the CPU, and that tuning never makes a product slower.

``benchmarks/host.py`` measures; these tests are alarms, which have to hold on a machine that is busy with others.
So times are the least of many batches, which alternate with what they are compared with, and bounds are wide.
"""

from __future__ import annotations

import time

import numpy as np
import pytest

from tests.host.cpu_products import normal
from tests.host.report_tools import F16, F32, library_on_gpu

library = library_on_gpu
CALLS, BATCHES = 50, 20
# What a call may cost, in microseconds. On an H200's host a bare prepared call of cublasLtMatmul takes some 10.
EXECUTE_US, RESET_US = 40.0, 60.0


def synchronize(library) -> None:
    if library.name == "torch":
        import torch

        torch.cuda.synchronize()
    else:
        import cupy

        cupy.cuda.Device().synchronize()


def least_us(library, *calls):
    """Microseconds on the CPU that each call takes at best, without waiting for the GPU."""
    for call in calls:
        for _ in range(CALLS):
            call()
    best = [float("inf")] * len(calls)
    for _ in range(BATCHES):
        for i, call in enumerate(calls):
            synchronize(library)
            start = time.perf_counter()
            for _ in range(CALLS):
                call()
            best[i] = min(best[i], (time.perf_counter() - start) / CALLS * 1e6)
    synchronize(library)
    return best


def their_product(library, a, b, out):
    """A function that multiplies into ``out`` with the library itself."""
    if library.name == "torch":
        import torch

        return lambda: torch.mm(a, b, out=out)
    import cupy

    return lambda: cupy.matmul(a, b, out=out)


def test_r072_an_execution_keeps_to_its_budget(library):
    rng = np.random.default_rng(72)
    a, b = library.put(normal(rng, (16, 16), F32)), library.put(normal(rng, (16, 16), F32))
    out = library.poisoned((16, 16), F32)
    with library.Matmul(a, b) as mm:
        mm.plan(out=out)
        (execute,) = least_us(library, lambda: mm.execute(out=out))
    print(f"{library}: execute(out=) {execute:.1f} us")
    assert execute <= EXECUTE_US


def test_r101_calls_cost_about_what_the_library_itself_takes(library):
    rng = np.random.default_rng(101)
    a, b = library.put(normal(rng, (256, 256), F16)), library.put(normal(rng, (256, 256), F16))
    out = library.poisoned((256, 256), F16)
    with library.Matmul(a, b) as mm:
        mm.plan(out=out)
        theirs, execute, function = least_us(
            library, their_product(library, a, b, out), lambda: mm.execute(out=out),
            lambda: library_matmul(a, b, out),
        )  # fmt: skip
    print(f"{library}: its own {theirs:.1f} us, execute(out=) {execute:.1f}, matmul(out=) {function:.1f}")
    assert execute <= 1.5 * theirs
    assert function <= 2.0 * theirs


def library_matmul(a, b, out):
    import nvmath_device.host as host

    host.matmul(a, b, out=out)


def test_r100_new_operands_keep_to_their_budget(library):
    rng = np.random.default_rng(100)
    operands = [library.put(normal(rng, (128, 128), F32)) for _ in range(64)]
    out = library.poisoned((128, 128), F32)
    turn = 0
    with library.Matmul(operands[0], operands[1]) as mm:
        mm.plan(out=out)

        def reset_and_execute():
            nonlocal turn
            turn = (turn + 1) % 63
            mm.reset_operands(a=operands[turn], b=operands[turn + 1])
            mm.execute(out=out)

        (reset,) = least_us(library, reset_and_execute)
        print(f"{library}: reset_operands and execute(out=) {reset:.1f} us")
        assert reset <= RESET_US
        want = library.get(operands[turn]).astype(np.float64) @ library.get(operands[turn + 1])
        assert np.allclose(library.get(out), want, rtol=1e-4, atol=1e-3)


# -- on the GPU ---------------------------------------------------------------------------------------------


def gpu_us(library, *calls, rounds=30):
    """Microseconds on the GPU of each call at best, the calls in turns."""
    if library.name == "torch":
        import torch

        def event():
            made = torch.cuda.Event(enable_timing=True)
            made.record()
            return made

        def elapsed(start, stop):
            stop.synchronize()
            return start.elapsed_time(stop) * 1e3
    else:
        import cupy

        def event():
            made = cupy.cuda.Event()
            made.record()
            return made

        def elapsed(start, stop):
            stop.synchronize()
            return cupy.cuda.get_elapsed_time(start, stop) * 1e3

    best = [float("inf")] * len(calls)
    for _ in range(rounds):
        for i, call in enumerate(calls):
            call()  # keeps the GPU busy while the host puts the next one on the stream
            start = event()
            call()
            best[i] = min(best[i], elapsed(start, event()))
    return best


@pytest.mark.parametrize("repeat", range(5))
def test_r071_tuning_does_not_choose_a_slower_algorithm(library, repeat):
    """The least times of what tuning puts first and of what heuristics put first; 4096 x 4096 x 64 in fp16."""
    rng = np.random.default_rng(71 + repeat)
    a, b = library.put(normal(rng, (4096, 64), F16)), library.put(normal(rng, (64, 4096), F16))
    out = library.poisoned((4096, 4096), F16)
    with library.Matmul(a, b) as mm:
        default = mm.plan(out=out)[0]
        timings = mm.autotune(iterations=5)
        chosen = mm.algorithms[0]
        assert chosen is timings[0].algorithm
        usual, tuned = gpu_us(
            library, lambda: mm.execute(algorithm=default, out=out), lambda: mm.execute(algorithm=chosen, out=out)
        )
    print(f"{library}: default {usual:.1f} us, tuned {tuned:.1f} us")
    assert tuned <= 1.25 * usual


def test_r089_a_fused_bias_gradient_beside_a_product(library):
    """8192 cubed: what the sum takes is a small part of the product, and so is a copy, should it need one."""
    rng = np.random.default_rng(89)
    a, b = (library.put(np.tile(normal(rng, (1024, 1024), F16), (8, 8))) for _ in range(2))
    with library.Matmul(a, b) as plain, library.Matmul(a, b) as fused:
        out = library.poisoned((8192, 8192), F16)
        plain.plan(out=out)
        fused.plan(epilog="BGRADB", out=out)
        product, with_gradient = gpu_us(
            library, lambda: plain.execute(out=out), lambda: fused.execute(out=out), rounds=8
        )
    print(f"{library}: product {product:.0f} us, with BGRADB {with_gradient:.0f} us")
    assert with_gradient <= 1.5 * product
