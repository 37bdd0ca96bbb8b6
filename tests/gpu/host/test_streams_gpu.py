# SPDX-License-Identifier: Apache-2.0
"""Streams of every library, the order between libraries, nothing that waits, and whose memory is used until when.

Whatever is put behind a busy stream has to wait: what was launched on the wrong stream comes too early, and a host
that waits for the GPU comes back too late.
"""

from __future__ import annotations

import gc
import itertools

import numpy as np
import pytest

from nvmath_device import host
from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError
from tests.gpu.host.arrays import product_of
from tests.gpu.host.libraries import OnlyDLPack, needs, to_numpy
from tests.gpu.host.product_checks import norm_error
from tests.gpu.host.streams import (
    BUSY,
    N,
    as_cupy,
    captured_operands,
    external,
    is_close,
    keep_busy,
    nothing_pending,
    random,
    seen_now,
)

__all__ = ["nothing_pending"]  # the fixture

pytestmark = needs["torch"]
KEPT = []  # streams of which only the handle is passed on


# -- streams that are given ---------------------------------------------------------------------------------


def of_cupy():
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    return stream, stream.ptr


def of_torch():
    import torch

    stream = torch.cuda.Stream()
    return stream, stream.cuda_stream


def of_cuda_core():
    from cuda.core import Device

    device = Device(0)
    device.set_current()
    stream = device.create_stream()
    return stream, int(stream.handle)


def of_numba():
    from numba import cuda

    stream = cuda.stream()
    return stream, int(stream)


def as_number():
    stream, handle = of_torch()
    KEPT.append(stream)
    return handle, handle


def of_bindings():
    from cuda.bindings import driver

    status, stream = driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
    assert int(status) == 0
    return stream, int(stream)


class Speaking:
    """Nothing but the protocol."""

    def __init__(self):
        self.kept, self.handle = of_torch()

    def __cuda_stream__(self):
        return 0, self.handle


def of_the_protocol():
    stream = Speaking()
    return stream, stream.handle


STREAMS = {
    "CuPy": of_cupy, "PyTorch": of_torch, "cuda.core": of_cuda_core, "Numba": of_numba, "int": as_number,
    "cuda.bindings": of_bindings, "__cuda_stream__": of_the_protocol,
}  # fmt: skip


def by_function(a, b, out, stream):
    return host.matmul(a, b, out=out, stream=stream)


def by_object(a, b, out, stream):
    with host.Matmul(a, b, stream=stream) as mm:
        mm.plan(stream=stream)
        return mm.execute(out=out, stream=stream)


@pytest.mark.parametrize("call", [by_function, by_object])
@pytest.mark.parametrize("library", [pytest.param(x, marks=needs["cupy"] if x == "CuPy" else ()) for x in STREAMS])
def test_streams_of_every_library(library, call):
    """What is put behind a busy stream has not run while that is busy, and then sees what was written before it."""
    import torch

    stream, handle = STREAMS[library]()
    known = external(handle)
    values, b = random(N, N), random(N, N, seed=1)
    a, out = torch.zeros_like(values), torch.empty_like(values)
    torch.cuda.synchronize()
    call(a, b, out, stream)  # kernels are loaded, and memory is taken
    seen_now(out)
    torch.cuda.synchronize()
    out.fill_(float("nan"))
    torch.cuda.synchronize()
    keep_busy(known)
    with torch.cuda.stream(known):
        a.copy_(values)
    assert call(a, b, out, stream) is out
    assert np.isnan(seen_now(out)).all(), "it ran before what its stream was busy with"
    assert not known.query(), "the host has waited for the stream"
    known.synchronize()
    assert np.allclose(seen_now(out), product_of(values, b), atol=1e-3)
    assert is_close(out, product_of(values, b))


@pytest.mark.parametrize("call", [by_function, by_object])
@pytest.mark.parametrize("library", [pytest.param("cupy", marks=needs["cupy"]), "torch"])
def test_the_current_stream_of_the_first_operand_is_the_default(library, call):
    import torch

    stream, handle = of_cupy() if library == "cupy" else of_torch()
    known = external(handle)
    values, b = random(N, N, seed=2), random(N, N, seed=3)
    a, out = torch.zeros_like(values), torch.empty_like(values)
    ours = [as_cupy(x) if library == "cupy" else x for x in (a, b, out)]
    with stream if library == "cupy" else torch.cuda.stream(stream):
        call(*ours, None)
        seen_now(out)
        torch.cuda.synchronize()
        with torch.cuda.stream(known):
            out.fill_(float("nan"))
        known.synchronize()
        keep_busy(known)
        with torch.cuda.stream(known):
            a.copy_(values)
        call(*ours, None)
        assert np.isnan(seen_now(out)).all()
        assert not known.query()
    known.synchronize()
    assert is_close(out, product_of(values, b))


@pytest.mark.parametrize("stream", ["0", 1.5, object(), True])
def test_what_is_no_stream_is_refused(stream):
    a = random(8, 8)
    with pytest.raises(ArgumentTypeError, match="stream: "):
        host.matmul(a, a, stream=stream)
    with pytest.raises(ArgumentTypeError, match="stream: "):
        host.Matmul(a, a, stream=stream)


def test_a_negative_handle_is_refused():
    a = random(8, 8)
    with pytest.raises(InvalidArgumentError, match="negative"):
        host.matmul(a, a, stream=-5)


# -- order between libraries --------------------------------------------------------------------------------


@needs["cupy"]
@pytest.mark.parametrize("call", [by_function, by_object])
def test_operands_of_another_library_are_waited_for(call):
    """B is CuPy's and still being written on CuPy's current stream; the product is on PyTorch's."""
    import cupy
    import torch

    mine, theirs = torch.cuda.Stream(), cupy.cuda.Stream(non_blocking=True)
    a, values = random(N, N, seed=4), random(N, N, seed=5)
    b, out = cupy.zeros((N, N), cupy.float32), torch.empty_like(a)
    torch.cuda.synchronize()
    with torch.cuda.stream(mine), theirs:
        call(a, b, out, None)
        torch.cuda.synchronize()
        keep_busy(external(theirs.ptr))
        b[...] = as_cupy_of(values)
        call(a, b, out, None)
        assert not external(theirs.ptr).query()
        mine.synchronize()
    assert is_close(out, product_of(a, values))


def as_cupy_of(tensor):
    """On whatever stream is current, without an order of its own."""
    import cupy

    memory = cupy.cuda.UnownedMemory(tensor.data_ptr(), tensor.numel() * 4, tensor)
    return cupy.ndarray(tuple(tensor.shape), cupy.float32, cupy.cuda.MemoryPointer(memory, 0))


@needs["cupy"]
@pytest.mark.parametrize("call", [by_function, by_object])
def test_the_library_of_out_waits_for_the_product(call):
    import cupy
    import torch

    mine, theirs = torch.cuda.Stream(), cupy.cuda.Stream(non_blocking=True)
    a, b = random(N, N, seed=6), random(N, N, seed=7)
    out = cupy.empty((N, N), cupy.float32)
    torch.cuda.synchronize()
    with torch.cuda.stream(mine), theirs:
        call(a, b, out, None)
        out.fill(float("nan"))
        torch.cuda.synchronize()
        keep_busy(mine)
        call(a, b, out, None)
        assert not mine.query()
        got = out.get()  # on CuPy's stream
    assert norm_error(got, product_of(a, b)) < 1e-6


def test_the_stream_that_a_numba_array_states_is_waited_for():
    import torch
    from numba import cuda

    stream = cuda.stream()
    known, values, b = external(int(stream)), random(N, N, seed=8), random(N, N, seed=9)
    a = cuda.device_array((N, N), np.float32, stream=stream)
    assert int(a.stream) == int(stream)
    tensor, other = torch.as_tensor(a, device="cuda"), cuda.as_cuda_array(b.contiguous())
    torch.cuda.synchronize()
    host.matmul(a, other)
    torch.cuda.synchronize()
    keep_busy(known)
    with torch.cuda.stream(known):
        tensor.copy_(values)
    for result in (host.matmul(a, other), planned(a, other)):
        assert is_close(result, product_of(values, b))


def planned(*operands, **plan):
    mm = host.Matmul(*operands)
    mm.plan(**plan)
    result = mm.execute()
    mm.free()  # work is still under way
    return result


def test_producers_that_speak_dlpack_are_waited_for():
    import torch

    stream, values, b = torch.cuda.Stream(), random(N, N, seed=10), random(N, N, seed=11)
    a = torch.zeros_like(values)
    torch.cuda.synchronize()
    host.matmul(OnlyDLPack(a), OnlyDLPack(b))
    for call in (host.matmul, planned):
        a.zero_()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(BUSY // 4)
            a.copy_(values)
            result = call(OnlyDLPack(a), OnlyDLPack(b))
        assert is_close(result, product_of(values, b))


@needs["jax"]
def test_jax_arrays_that_are_still_being_made():
    import jax
    import jax.numpy as jnp

    gpu = jax.local_devices(backend="gpu")[0]
    x = jax.device_put(np.random.default_rng(12).standard_normal((512, 512)).astype(np.float32), gpu)

    @jax.jit
    def long(x):
        return jax.lax.fori_loop(0, 200, lambda i, y: jnp.sin(x @ y) / 8, x)

    long(x).block_until_ready()  # compiled
    for call in (host.matmul, planned):
        made = long(x)
        result = call(made, x)
        assert norm_error(np.asarray(result), np.asarray(made).astype(float) @ np.asarray(x).astype(float)) < 1e-6


# -- nothing waits ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", [pytest.param("cupy", marks=needs["cupy"]), "torch"])
@pytest.mark.parametrize("what", ["plain", "epilog", "copies", "batch", "split"])
def test_nothing_waits_for_the_gpu(what, library):
    """Every call of an object's life, and the function with a new plan, returns while the stream is busy before it."""
    import torch

    stream, handle = of_cupy() if library == "cupy" else of_torch()
    known = external(handle)
    with torch.cuda.stream(known):
        tensors, inputs, epilog = operands_for(what)
        others = [t.clone() for t in tensors]
    known.synchronize()
    if library == "cupy":
        tensors, others = [as_cupy(t) for t in tensors], [as_cupy(t) for t in others]
        inputs = {name: as_cupy(t) for name, t in inputs.items()}
    wishes = {"epilog": epilog, "epilog_inputs": inputs or None}

    def life(say):
        host.clear_plans()
        mm = host.Matmul(*tensors)
        say("Matmul()")
        mm.plan(**wishes)
        say("plan()")
        results = [mm.execute()]
        say("execute()")
        results.append(mm.execute())
        say("the second execute()")
        mm.reset_operands(a=others[0], b=others[1])
        say("reset_operands()")
        results.append(mm.execute())
        say("execute() afterwards")
        mm.free()
        say("free()")
        results.append(host.matmul(*tensors, **wishes))
        say("matmul()")
        results.append(host.matmul(*tensors, **wishes))
        say("the second matmul()")
        return results

    with stream if library == "cupy" else torch.cuda.stream(stream):
        life(lambda step: None)  # kernels are loaded and pools are filled, for this stream
        known.synchronize()
        keep_busy(known)
        waited = []
        results = life(lambda step: waited.append(step) if known.query() else None)
        assert not waited, f"waited for the GPU: {waited[0]}"
        known.synchronize()
        first, *rest = (to_numpy(r) for r in results)
        assert all(norm_error(other, first) < 1e-5 for other in rest)
        assert np.isfinite(first).all()


def operands_for(what):
    if what == "epilog":
        return [random(N, N), random(N, 32)], {"bias": random(1, 32)}, "RELU_BIAS"
    if what == "copies":
        return [random(N, 2 * N)[:, ::2], random(2 * N, N)[::2].T[::2].T], {}, None
    if what == "batch":
        return [random(3, N, N), random(N, N)], {}, None
    if what == "split":
        return [random(N, 8192), random(8192, N)], {}, None
    return [random(N, N), random(N, N)], {}, None


def test_blocking_waits_on_request():
    import torch

    a = random(N, N)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for call in (
            lambda: host.matmul(a, a, options={"blocking": True}),
            lambda: planned_blocking(a),
        ):
            call()
            keep_busy(stream)
            call()
            assert stream.query()


def planned_blocking(a):
    with host.Matmul(a, a, options={"blocking": True}) as mm:
        mm.plan()
        return mm.execute()


# -- one object on several streams --------------------------------------------------------------------------


def test_executions_on_several_streams_share_a_workspace_one_after_the_other():
    """With a K that cuBLASLt splits, whose parts are in the workspace."""
    import torch

    a, b = random(N, 16384, seed=13), random(16384, N, seed=14)
    want = product_of(a, b)
    streams = [torch.cuda.Stream() for _ in range(4)]
    outs = [torch.full((N, N), float("nan"), device="cuda") for _ in range(40)]
    torch.cuda.synchronize()
    with host.Matmul(a, b) as mm:
        mm.plan()
        for out, stream in zip(outs, itertools.cycle(streams), strict=False):
            mm.execute(out=out, stream=stream)
    torch.cuda.synchronize()
    assert all(is_close(out, want, 1e-5) for out in outs)


def test_operands_may_go_while_the_product_is_under_way():
    """Their memory is given to others in the order of PyTorch's stream, and the product is on another one."""
    import torch

    stream = torch.cuda.Stream()
    for call in (host.matmul, by_object):
        a, b, out = random(512, 512, seed=15), random(512, 512, seed=16), torch.empty(512, 512, device="cuda")
        want = product_of(a, b)
        torch.cuda.synchronize()
        keep_busy(stream)
        if call is host.matmul:
            host.matmul(a, b, out=out, stream=stream)
        else:
            by_object(a, b, out, stream)
        del a, b
        trash = [torch.full((512, 512), 7.0, device="cuda") for _ in range(8)]  # where they were
        stream.synchronize()
        assert is_close(out, want)
        del trash


@pytest.mark.parametrize("end", ["free", "dropped", "release_workspace", "another plan", "reset"])
def test_memory_of_a_plan_stays_until_its_executions_are_done(end):
    """It was taken on PyTorch's stream, which may give it to others at once; the execution is on another one."""
    import torch

    stream = torch.cuda.Stream()
    a, b, out, _ = captured_operands("copied operands", 150)
    want = product_of(a, b)
    mm = host.Matmul(a, b)
    mm.plan()
    mm.execute(out=out, stream=stream)
    torch.cuda.synchronize()
    out.fill_(float("nan"))
    torch.cuda.synchronize()
    keep_busy(stream)
    mm.execute(out=out, stream=stream, release_workspace=end == "release_workspace")
    if end == "free":
        mm.free()
    elif end == "dropped":
        mm.free()
        del mm, a, b
        gc.collect()
    elif end == "another plan":
        mm.plan(epilog="RELU")
    elif end == "reset":
        mm.reset_operands(a=random(*a.shape))
    trash = [torch.full((size,), 7.0, device="cuda") for size in (64, 512, 1024, 2048, 4096, 16384) for _ in range(8)]
    stream.synchronize()
    assert is_close(out, want)
    assert all((to_numpy(t) == 7).all() for t in trash)


def test_a_plan_takes_memory_that_another_stream_still_uses():
    """PyTorch's stream is busy with something that the memory was given back after; the execution is on another one."""
    import torch

    stream = torch.cuda.Stream()
    a, b, out, _ = captured_operands("copied operands", 160)
    want = product_of(a, b)
    for take in (lambda: host.Matmul(a, b).plan(), lambda: None):
        take()
    torch.cuda.synchronize()
    sizes = (64, 512, 1024, 2048, 4096, 16384)
    before = [torch.empty(size, device="cuda") for size in sizes for _ in range(8)]
    torch.cuda.synchronize()
    keep_busy(torch.cuda.current_stream())
    for block in before:
        block.fill_(7)
    del before, block
    mm = host.Matmul(a, b)
    mm.plan(out=out)
    mm.execute(out=out, stream=stream)
    torch.cuda.synchronize()
    assert is_close(out, want)


@needs["cupy"]
@pytest.mark.parametrize("end", ["stream first", "garbage"])
def test_arrays_and_objects_outlive_the_stream_they_were_made_on(end):
    """CuPy destroys streams, and memory of cuda.core goes back in the order of its stream."""
    import cupy

    values = [random(N, N), random(N, N, seed=1)]
    a, b = (OnlyDLPack(x) for x in values)
    mm = host.Matmul(a, b)
    for _ in range(10):
        stream = cupy.cuda.Stream(non_blocking=True)
        mm.plan(stream=stream)
        results = [host.matmul(a, b, stream=stream), mm.execute(stream=stream)]
        if end == "garbage":
            cycle = [stream, results]
            cycle.append(cycle)
            del cycle, stream, results
            gc.collect()
        else:
            del stream
            assert all(is_close(cupy.from_dlpack(x), product_of(*values)) for x in results)
            assert all(cupy.asarray(x).shape == (N, N) for x in results)
            del results
    assert is_close(cupy.from_dlpack(mm.execute()), product_of(*values))
    mm.free()
    host.clear_plans()
