# SPDX-License-Identifier: Apache-2.0
"""Reported cases about CUDA graphs: products inside a capture, and memory that outlives it or does not."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

import nvmath_device.host as host
from nvmath_device.errors import InvalidStateError
from tests.host.cpu_products import whole
from tests.host.report_tools import F16, F32, assert_exact, library_on_gpu, wide

library = library_on_gpu


class Graph:
    """A captured graph of CuPy or PyTorch, on a stream of its own."""

    def __init__(self, library) -> None:
        self.library = library
        if library.name == "torch":
            import torch

            self.stream, self.graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        else:
            import cupy

            self.stream = cupy.cuda.Stream(non_blocking=True)

    @contextlib.contextmanager
    def capture(self):
        if self.library.name == "torch":
            import torch

            torch.cuda.synchronize()
            with torch.cuda.graph(self.graph, stream=self.stream):
                yield
        else:
            import cupy

            cupy.cuda.Device().synchronize()
            with self.stream:
                self.stream.begin_capture()
                try:
                    yield
                finally:
                    self.graph = self.stream.end_capture()

    def replay(self) -> None:
        """Run it and wait."""
        if self.library.name == "torch":
            import torch

            torch.cuda.synchronize()
            self.graph.replay()
            torch.cuda.synchronize()
        else:
            import cupy

            cupy.cuda.Device().synchronize()
            self.graph.launch(self.stream)
            self.stream.synchronize()


def give_memory_back(library) -> None:
    """What the library's pool holds for nobody, and then poison all that it gives out next."""
    if library.name == "torch":
        import torch

        torch.cuda.empty_cache()
        torch.full((64 << 20,), float("nan"), device="cuda")
        torch.cuda.synchronize()
    else:
        import cupy

        cupy.get_default_memory_pool().free_all_blocks()
        cupy.full((64 << 20,), cupy.nan, cupy.float32)
        cupy.cuda.Device().synchronize()


CASES = {
    "plain": {},
    "bias": {"epilog": "BIAS", "bias": (1, 96)},
    "bias along rows": {"epilog": "RELU_BIAS", "bias": (64, 1)},
    "operands that are copied": {"step": 2},
    "another order": {"order": "F", "epilog": "BIAS", "bias": (1, 96)},
    "C": {"beta": 2},
    "batch": {"batch": (3,)},
}


@pytest.mark.parametrize("case", CASES)
def test_r082_products_are_captured_and_replayed_with_new_contents(library, case):
    how = CASES[case]
    rng = np.random.default_rng(82)
    batch, step = how.get("batch", ()), how.get("step", 1)
    for dtype in (F32, F16):
        room = library.put(whole(rng, (*batch, 64, 32 * step), dtype))
        a, b = room[..., ::step], library.put(whole(rng, (*batch, 32, 96), dtype))
        c = library.put(whole(rng, (*batch, 64, 96), dtype)) if "beta" in how else None
        inputs = {"bias": library.put(whole(rng, how["bias"], dtype, 9))} if "bias" in how else None
        out = library.poisoned((*batch, 64, 96), dtype, how.get("order", "C"))
        with library.Matmul(a, b, c, beta=how.get("beta")) as mm:
            mm.plan(epilog=how.get("epilog"), epilog_inputs=inputs, out=out)
            graph = Graph(library)
            with graph.capture():
                mm.execute(out=out)
            for _ in range(3):
                contents = whole(rng, (*batch, 64, 32), dtype)
                a[...] = library.put(contents)
                out[...] = library.poisoned((*batch, 64, 96), dtype)
                graph.replay()
                want = wide(contents) @ wide(library.get(b)) + (2 * wide(library.get(c)) if c is not None else 0)
                want = want + wide(library.get(inputs["bias"])) if inputs else want
                assert_exact(library.get(out), np.maximum(want, 0) if how.get("epilog") == "RELU_BIAS" else want)


def test_r082_planning_inside_a_capture_is_refused_and_the_capture_goes_on(library):
    rng = np.random.default_rng(820)
    a, b = whole(rng, (64, 32), F32), whole(rng, (32, 96), F32)
    placed = [library.put(x) for x in (a, b)]
    out = library.poisoned((64, 96), F32)
    with library.Matmul(*placed) as mm, library.Matmul(*placed) as unplanned:
        mm.plan(out=out)
        graph = Graph(library)
        refusals = []
        with graph.capture():
            for refused in (mm.plan, unplanned.plan, mm.autotune,
                            lambda: host.matmul(*placed, alpha=2, options={"memory_limit": "7 MiB"})):  # fmt: skip
                try:
                    refused()
                except InvalidStateError as error:
                    refusals.append(str(error))
            mm.execute(out=out)
        assert len(refusals) == 4
        assert all("CUDA graph is being captured" in text for text in refusals)
        graph.replay()
        assert_exact(library.get(out), wide(a) @ wide(b))
        mm.plan()  # outside it is allowed again
        assert_exact(library.get(mm.execute()), wide(a) @ wide(b))


def test_r082_an_out_that_was_not_planned_for_is_refused_inside_a_capture(library):
    rng = np.random.default_rng(821)
    a, b = whole(rng, (64, 32), F32), whole(rng, (32, 96), F32)
    planned, unknown = library.poisoned((64, 96), F32), library.poisoned((64, 96), F32, "F")
    with library.Matmul(library.put(a), library.put(b)) as mm:
        mm.plan(out=planned)
        graph = Graph(library)
        refused = False
        with graph.capture():
            try:
                mm.execute(out=unknown)
            except InvalidStateError:
                refused = True
            mm.execute(out=planned)
        assert refused
        graph.replay()
        assert_exact(library.get(planned), wide(a) @ wide(b))
        assert np.isnan(library.get(unknown)).all()


def test_r083_a_graph_survives_the_end_of_another_object(library):
    """K is long and M and N are short, so that a workspace for a split K is likely to be used."""
    rng = np.random.default_rng(83)
    a, b = whole(rng, (64, 8192), F16, 1), whole(rng, (8192, 64), F16, 1)
    want = wide(a) @ wide(b)
    assert abs(want).max() < 2048  # exact in fp16
    placed = [library.put(x) for x in (a, b)]
    outs = [library.poisoned((64, 64), F16) for _ in range(2)]
    first, second = library.Matmul(*placed), library.Matmul(*placed)
    graphs = []
    for mm, out in ((first, outs[0]), (second, outs[1])):
        mm.plan(out=out)
        graphs.append(Graph(library))
        with graphs[-1].capture():
            mm.execute(out=out)
    graphs[1].replay()
    assert_exact(library.get(outs[1]), want)
    second.free()
    del mm
    give_memory_back(library)
    for _ in range(3):
        outs[0][...] = library.poisoned((64, 64), F16)
        graphs[0].replay()
        assert_exact(library.get(outs[0]), want)
    first.free()
