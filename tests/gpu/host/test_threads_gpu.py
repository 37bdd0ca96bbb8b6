# SPDX-License-Identifier: Apache-2.0
"""Eight threads: one object for all of them, one object each, and the function with its shared plans."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from nvmath_device import host
from tests.gpu.host.libraries import needs, to_numpy
from tests.gpu.host.product_checks import norm_error

pytestmark = needs["torch"]
THREADS, ROUNDS = 8, 40


def random(*shape, seed=0):
    import torch

    return torch.randn(shape, device="cuda", generator=torch.Generator("cuda").manual_seed(seed))


def product_of(a, b):
    return to_numpy(a).astype(float) @ to_numpy(b).astype(float)


def in_threads(work):
    """Run ``work(number)`` in every thread at the same time, on a stream of its own; the first error is raised here."""
    import torch

    errors, barrier = [], threading.Barrier(THREADS)

    def body(number):
        try:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                barrier.wait(60)
                work(number)
                stream.synchronize()
        except BaseException as error:
            errors.append(error)
            barrier.abort()

    torch.cuda.synchronize()
    threads = [threading.Thread(target=body, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    if errors:
        raise errors[0]
    torch.cuda.synchronize()


@pytest.mark.parametrize("k", [64, 16384], ids=["small", "split"])
@pytest.mark.parametrize("into", ["out", "a new result"])
def test_one_object_from_all_threads_and_streams(into, k):
    """All executions share one workspace, which a split K uses."""
    import torch

    a, b = random(64, k), random(k, 48, seed=1)
    want = product_of(a, b)
    outs = [[torch.full((64, 48), float("nan"), device="cuda") for _ in range(ROUNDS)] for _ in range(THREADS)]
    with host.Matmul(a, b) as mm:
        mm.plan()

        def work(number):
            for i in range(ROUNDS):
                if into == "out":
                    mm.execute(out=outs[number][i])
                else:
                    outs[number][i] = mm.execute()

        in_threads(work)
    wrong = [(t, i) for t, row in enumerate(outs) for i, x in enumerate(row) if norm_error(to_numpy(x), want) > 1e-5]
    assert not wrong, f"{len(wrong)} of {THREADS * ROUNDS} results are wrong: {wrong[:5]}"


def test_one_object_while_others_reset_it():
    """Reset and execute are two calls, so a result may be of anybody's operands; but it is of one pair, and right."""
    import torch

    pairs = [(random(64, 64, seed=2 * i), random(64, 48, seed=2 * i + 1)) for i in range(THREADS)]
    wants = [product_of(a, b) for a, b in pairs]
    results = [[] for _ in range(THREADS)]
    torch.cuda.synchronize()
    with host.Matmul(*pairs[0]) as mm:
        mm.plan()

        def work(number):
            for _ in range(ROUNDS):
                mm.reset_operands(a=pairs[number][0], b=pairs[number][1])
                results[number].append(mm.execute())

        in_threads(work)
        mm.reset_operands(a=pairs[3][0], b=pairs[3][1])
        assert norm_error(to_numpy(mm.execute()), wants[3]) < 1e-6
    for row in results:
        for result in row:
            assert min(norm_error(to_numpy(result), want) for want in wants) < 1e-6


def test_an_object_for_each_thread():
    operands = [(random(32 + 8 * i, 64, seed=i), random(64, 48, seed=i + 50), random(1, 48, seed=i)) for i in range(8)]
    kept = [None] * THREADS

    def work(number):
        a, b, bias = operands[number]
        for epilog in (None, "RELU_AUX_BIAS", "GELU_BIAS", None) * 3:
            inputs = {"bias": bias} if epilog else None
            with host.Matmul(a, b) as mm:
                mm.plan(epilog=epilog, epilog_inputs=inputs)
                mm.execute()
                kept[number] = mm.execute()

    in_threads(work)
    for (a, b, _), result in zip(operands, kept, strict=True):
        assert norm_error(to_numpy(result), product_of(a, b)) < 1e-6


@pytest.mark.parametrize("same", [True, False], ids=["same shapes", "other shapes"])
def test_the_function_from_all_threads(same):
    """Plans are shared and workspaces are those of the stream; half of the calls take the long way, with a bias."""
    host.clear_plans()
    sizes = [(64, 16384 if i % 2 else 64, 48) if same else (16 + 8 * i, 64 + i, 24 + i) for i in range(THREADS)]
    operands = [
        (random(m, k, seed=i), random(k, n, seed=i + 50), random(1, n, seed=i)) for i, (m, k, n) in enumerate(sizes)
    ]
    results = [[] for _ in range(THREADS)]

    def work(number):
        a, b, bias = operands[number]
        for i in range(ROUNDS):
            if i % 2:
                results[number].append(host.matmul(a, b, epilog="BIAS", epilog_inputs={"bias": bias}))
            else:
                results[number].append(host.matmul(a, b))

    in_threads(work)
    for (a, b, bias), row in zip(operands, results, strict=True):
        plain = product_of(a, b)
        for i, result in enumerate(row):
            want = plain + to_numpy(bias) if i % 2 else plain
            assert norm_error(to_numpy(result), want) < 1e-5


def test_plans_are_forgotten_while_others_use_them():
    a, b = random(64, 8192), random(8192, 48, seed=1)
    want = product_of(a, b)
    results = [[] for _ in range(THREADS)]

    def work(number):
        for i in range(ROUNDS):
            if number == 0 and i % 4 == 0:
                host.clear_plans()
            results[number].append(host.matmul(a, b))

    in_threads(work)
    for row in results:
        for result in row:
            assert norm_error(to_numpy(result), want) < 1e-5


def test_free_while_others_execute():
    """The others get right results or are told that it is freed."""
    a, b = random(64, 64), random(64, 48, seed=1)
    want = product_of(a, b)
    results = [[] for _ in range(THREADS)]
    mm = host.Matmul(a, b)
    mm.plan()
    refused = []

    def work(number):
        for i in range(ROUNDS):
            if number == 0 and i == ROUNDS // 2:
                mm.free()
            try:
                results[number].append(mm.execute())
            except host_errors() as error:
                assert "freed" in str(error)  # noqa: PT017 - it may come in time as well
                refused.append(number)

    in_threads(work)
    assert refused
    for row in results:
        for result in row:
            assert norm_error(to_numpy(result), want) < 1e-6


def host_errors():
    from nvmath_device.errors import InvalidStateError

    return InvalidStateError


def test_numpy_operands_from_all_threads():
    """Copied to the GPU and back; every thread waits for its own."""
    operands = [np.random.default_rng(i).standard_normal((2, 40, 40)).astype(np.float32) for i in range(THREADS)]
    results = [None] * THREADS

    def work(number):
        x = operands[number]
        for _ in range(10):
            results[number] = host.matmul(x, x)

    in_threads(work)
    for x, result in zip(operands, results, strict=True):
        assert norm_error(result, x.astype(float) @ x.astype(float)) < 1e-6
