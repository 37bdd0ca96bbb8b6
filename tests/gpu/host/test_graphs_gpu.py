# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs: products that are captured and replayed on other contents, and what a capture refuses and survives."""

from __future__ import annotations

import numpy as np
import pytest

from nvmath_device import host
from nvmath_device.errors import InvalidArgumentError, InvalidStateError
from tests.gpu.host.arrays import product_of
from tests.gpu.host.libraries import needs, to_numpy
from tests.gpu.host.streams import as_cupy, captured_operands, is_close, nothing_pending, random

__all__ = ["nothing_pending"]  # the fixture

pytestmark = needs["torch"]

CAPTURED = {
    "plain": {}, "copied operands": {}, "copied out": {}, "epilog": {"epilog": "GELU_AUX_BIAS"}, "batch": {},
    "loops": {}, "fp8 with scales": {"quantization_scales": {"a": 0.5, "b": 2.0}}, "split": {},
}  # fmt: skip


def fresh(what, tensors, seed):
    """Other contents for the same memory, and the product of them."""
    a, b, _, inputs = captured_operands(what, seed)
    for old, new in zip((*tensors[:2], *tensors[3].values()), (a, b, *inputs.values()), strict=True):
        old.copy_(new)
    want = product_of(a, b)
    if what == "epilog":
        x = want + to_numpy(inputs["bias"]).astype(float)
        want = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return want


NO_WORKSPACE = {"memory_limit": 0}


@pytest.mark.parametrize("form", ["object", "function"])
@pytest.mark.parametrize("what", CAPTURED)
def test_torch_graphs(what, form):
    """Captured once, replayed on other contents of the same memory. Other work in between takes what memory is free.

    The function has no memory of its own, so what needs some is refused, and the capture goes on.
    """
    import torch

    tensors = captured_operands(what, 20)
    a, b, out, inputs = tensors
    scales = CAPTURED[what].get("quantization_scales")
    epilog = {"epilog": CAPTURED[what].get("epilog"), "epilog_inputs": inputs or None}
    options = {"result_type": "bfloat16"} if what == "fp8 with scales" else {}
    if form == "function" and what != "split":
        options |= NO_WORKSPACE
    mm = host.Matmul(a, b, quantization_scales=scales, options=options)
    mm.plan(out=out, **epilog)
    of_object = lambda: mm.execute(out=out)  # noqa: E731
    of_function = lambda: host.matmul(  # noqa: E731
        a, b, out=out, quantization_scales=scales, options=options, **epilog
    )
    call = of_object if form == "object" else of_function
    call()
    mm.execute(out=out)
    needs_memory = form == "function" and (mm.copies or scales or max(x.workspace_bytes for x in mm.algorithms))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        if needs_memory:
            with pytest.raises(InvalidStateError, match="use Matmul"):
                call()
            call = of_object
        kept = call()
    allowed = 6e-3 if what == "fp8 with scales" else 2e-3 if what == "epilog" else 1e-5
    for seed in (30, 40, 50):
        want = fresh(what, tensors, seed)
        out.fill_(float("nan"))
        trash = [torch.full((64, 128), 7.0, device="cuda") for _ in range(16)]
        host.matmul(random(64, 20000), random(20000, 64))  # whose workspace may be larger
        graph.replay()
        torch.cuda.synchronize()
        assert is_close(out, want, allowed)
        assert all((to_numpy(t) == 7).all() for t in trash)
    del kept


@needs["cupy"]
@pytest.mark.parametrize("form", ["object", "function"])
@pytest.mark.parametrize("what", ["plain", "copied operands", "copied out", "batch", "loops", "split"])
def test_cupy_graphs(what, form):
    """CuPy's pool knows nothing of graphs: memory that a captured call uses must not go back to it."""
    import cupy
    import torch

    stream = cupy.cuda.Stream(non_blocking=True)
    tensors = captured_operands(what, 60)
    a, b, out = (as_cupy(t) for t in tensors[:3])
    torch.cuda.synchronize()
    with stream:
        options = {} if form == "object" or what == "split" else NO_WORKSPACE
        mm = host.Matmul(a, b, options=options)
        mm.plan(out=out)
        mm.execute(out=out)
        host.matmul(a, b, out=out, options=options)
        needs_memory = mm.copies or max(x.workspace_bytes for x in mm.algorithms)
        stream.synchronize()
        stream.begin_capture()
        if form == "function" and needs_memory:
            with pytest.raises(InvalidStateError, match="use Matmul"):
                host.matmul(a, b, out=out, options=options)
        if form == "function" and not needs_memory:
            host.matmul(a, b, out=out, options=options)
        else:
            mm.execute(out=out)
        graph = stream.end_capture()
        for seed in (70, 80, 90):
            torch.cuda.synchronize()
            want = fresh(what, tensors, seed)
            tensors[2].fill_(float("nan"))
            torch.cuda.synchronize()
            sizes = (1024, 8192, 64 * 1024, 1 << 20)
            trash = [cupy.full(size, 7, cupy.float32) for size in sizes for _ in range(8)]
            host.matmul(as_cupy(random(64, 20000)), as_cupy(random(20000, 64)))
            graph.launch(stream)
            stream.synchronize()
            assert is_close(out, want, 1e-5)
            assert all((to_numpy(t) == 7).all() for t in trash)


def test_planning_inside_a_capture_is_refused_and_the_capture_goes_on():
    import torch

    a, b, out, _ = tensors = captured_operands("plain", 100)
    other = random(40, 24)
    mm = host.Matmul(a, b)
    mm.plan(out=out)
    mm.execute(out=out)
    never_seen = random(40, 56, seed=3), random(56, 72, seed=4)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        inside = host.Matmul(other, other.T)
        with pytest.raises(InvalidStateError, match=r"graph is being captured.*plan\(\)"):
            inside.plan()
        with pytest.raises(InvalidStateError, match="graph is being captured"):
            host.matmul(*never_seen)
        with pytest.raises(InvalidStateError, match="graph"):
            mm.autotune()
        mm.execute(out=out)
    for seed in (110, 120):
        want = fresh("plain", tensors, seed)
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert is_close(out, want)
    inside.plan()
    assert is_close(inside.execute(), product_of(other, other.T))
    assert is_close(host.matmul(*never_seen), product_of(*never_seen))


def test_objects_that_end_inside_a_capture_do_no_harm_to_it():
    """They look which executions on other streams are done, which CUDA forbids by default while a graph is captured."""
    import torch

    a, b, out, _ = captured_operands("plain", 125)
    side = torch.cuda.Stream()
    mm = host.Matmul(a, b)
    mm.plan(out=out)
    mm.execute(out=out)
    b2 = b.clone()
    others = [host.Matmul(a.clone(), b2) for _ in range(3)]
    for other in others:
        other.plan()
        other.execute(stream=side)
    others[0].free()  # leaves something to look at
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        others[1].free()
        others[2].reset_operands(a=a)
        mm.execute(out=out)
    out.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    assert is_close(out, product_of(a, b))
    assert is_close(others[2].execute(), product_of(a, b2))


def test_an_out_of_new_strides_inside_a_capture_is_refused():
    import torch

    a, b, out, _ = captured_operands("plain", 130)
    mm = host.Matmul(a, b)
    mm.plan()
    mm.execute(out=out)
    stepped = torch.empty(64, 96, device="cuda")[:, ::2]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(InvalidStateError, match="out="):
            mm.execute(out=stepped)
        mm.execute(out=out)
    out.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    assert is_close(out, product_of(a, b))


def test_operands_in_cpu_memory_inside_a_capture_are_refused():
    import torch

    a, b, out, _ = captured_operands("plain", 140)
    mm = host.Matmul(a, b)
    mm.plan(out=out)
    mm.execute(out=out)
    on_cpu = np.ones((8, 8), np.float32)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises((InvalidArgumentError, InvalidStateError), match=r"stream|graph"):
            host.matmul(on_cpu, on_cpu, stream=torch.cuda.current_stream())
        mm.execute(out=out)
    out.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    assert is_close(out, product_of(a, b))
