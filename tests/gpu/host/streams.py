# SPDX-License-Identifier: Apache-2.0
"""Busy streams, what memory holds while they are busy, and operands: for the tests of streams and of CUDA graphs.

A kernel that only spins keeps a stream busy (``torch.cuda._sleep``), so that whatever is put behind it has to wait.
"""

from __future__ import annotations

import pytest

from tests.gpu.host.libraries import to_numpy
from tests.gpu.host.product_checks import norm_error

BUSY = 1_000_000_000  # clock cycles, about half a second
N = 64
PINNED = {}  # by shape: taking page-locked memory waits for the device


@pytest.fixture(autouse=True)
def nothing_pending():
    import torch

    torch.cuda.synchronize()
    yield
    torch.cuda.synchronize()


def random(*shape, seed=0, dtype="float32"):
    import torch

    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, device="cuda", generator=generator).to(getattr(torch, dtype))


def is_close(got, want, allowed=1e-6):
    return norm_error(to_numpy(got), want) < allowed


def as_cupy(tensor):
    import cupy

    return cupy.from_dlpack(tensor)


def external(handle):
    import torch

    return torch.cuda.ExternalStream(handle, device="cuda")


def keep_busy(stream):
    import torch

    with torch.cuda.stream(stream):
        torch.cuda._sleep(BUSY)


def seen_now(array):
    """The elements as they are at this moment, without waiting for any stream but one of its own."""
    import torch

    if array.shape not in PINNED:
        PINNED[array.shape] = torch.empty(array.shape, dtype=array.dtype, pin_memory=True), torch.cuda.Stream()
    memory, stream = PINNED[array.shape]
    with torch.cuda.stream(stream):
        memory.copy_(array, non_blocking=True)
    stream.synchronize()
    return memory.numpy().copy()


def captured_operands(what, seed):
    """Tensors a, b, out, and inputs of an epilog."""
    import torch

    m, n, k = (64, 48, 16384) if what == "split" else (64, 48, 32)
    batch = (3,) if what == "batch" else (2, 3) if what == "loops" else ()
    a, b = random(*batch, m, k, seed=seed), random(k, n, seed=seed + 1)
    if what == "loops":
        a = random(2, 4, m, k, seed=seed)[:, :3]  # batch axes that do not merge, so one call each
        b = random(1, 3, k, n, seed=seed + 1)
    if what == "copied operands":
        a, b = random(m, 2 * k, seed=seed)[:, ::2], random(2 * k, 2 * n, seed=seed + 1)[::2, ::2]
    out = torch.empty(*batch, m, n, device="cuda")
    if what == "copied out":
        out = torch.empty(m, 2 * n, device="cuda")[:, ::2]
    if what == "fp8 with scales":
        a, b = a.to(torch.float8_e4m3fn), b.T.contiguous().to(torch.float8_e4m3fn).T
        out = out.to(torch.bfloat16)
    inputs = {"bias": random(1, n, seed=seed + 2)} if what == "epilog" else {}
    return a, b, out, inputs
