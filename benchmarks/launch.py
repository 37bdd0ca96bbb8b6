# SPDX-License-Identifier: Apache-2.0
"""CPU time of a launch of a kernel with three arrays: bare, bound, by ``kernel[...]`` of ``nd.jit`` and of Numba.

Competitors take turns, over 64 triples of arrays of 1000 numbers each; before anything is timed each has to give the
right sums. Needs a GPU; CuPy, PyTorch and JAX take part where they are installed. JAX arrays are values that a kernel
must not write, so its launches write into an array of CuPy.

    python benchmarks/launch.py --json launch.json
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import cuda
from timing import Report, Verdict, cpu_sample, take_part, take_turns

import nvmath_device as nd
from nvmath_device.host import current_device
from nvmath_device.host.driver import bindings, call, library

SIZE, ARRAYS, ROUNDS = 1000, 64, 60
INDICES = tuple(range(ARRAYS)) * 3
BLOCK, GRID = 128, 8
BARE = "bare cuLaunchKernel"


def add(a: Any, b: Any, out: Any) -> None:
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a[i] + b[i]


@dataclass(frozen=True)
class Triples:
    a: Sequence[Any]
    b: Sequence[Any]
    out: Sequence[Any]
    to_cpu: Callable[[Any], Any]


@dataclass(frozen=True)
class Entry:
    """A competitor: what launches triple i, and where its sums are. ``moving``: whether it is always triple 0."""

    call: Callable[[int], Any]
    triples: Triples
    moving: bool = True
    kept: Any = None


def numbers() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(7)
    return tuple(rng.uniform(-1, 1, (ARRAYS, SIZE)).astype(np.float32) for _ in range(2))  # type: ignore[return-value]


def with_numba(a: Any, b: Any) -> Triples:
    to = cuda.to_device
    return Triples([to(x) for x in a], [to(x) for x in b], [to(x * 0) for x in a], lambda x: x.copy_to_host())


def with_cupy(a: Any, b: Any) -> Triples:
    import cupy

    to = cupy.asarray
    return Triples([to(x) for x in a], [to(x) for x in b], [to(x * 0) for x in a], cupy.asnumpy)


def with_torch(a: Any, b: Any) -> Triples:
    import torch

    def to(x: Any) -> Any:
        return torch.as_tensor(x, device="cuda")

    return Triples([to(x) for x in a], [to(x) for x in b], [to(x * 0) for x in a], lambda x: x.cpu().numpy())


def with_jax(a: Any, b: Any) -> Triples:
    import jax

    rest = with_cupy(a, b)
    return Triples([jax.device_put(x) for x in a], [jax.device_put(x) for x in b], rest.out, rest.to_cpu)


def bare_entry(triples: Triples, code: Any) -> Entry:
    """cuLaunchKernel through ctypes with everything prepared, the parameters of triple 0 too."""
    driver = bindings()
    loaded = call(driver.cuLibraryLoadData, code.cubin, [], [], 0, [], [], 0)
    kernel = call(driver.cuLibraryGetKernel, loaded, code.entry.encode())
    function = ctypes.c_void_p(int(call(driver.cuKernelGetFunction, kernel)))
    words = []
    for arrays in (triples.a, triples.b, triples.out):
        words += [0, 0, SIZE, 4, arrays[0].device_ctypes_pointer.value, SIZE, 4]
    memory = (ctypes.c_uint64 * len(words))(*words)
    start = ctypes.addressof(memory)
    parameters = (ctypes.c_void_p * len(words))(*(start + 8 * i for i in range(len(words))))
    launch = library().cuLaunchKernel
    one = ctypes.c_uint(1)
    arguments = (
        function, ctypes.c_uint(GRID), one, one, ctypes.c_uint(BLOCK), one, one, ctypes.c_uint(0), None,
        parameters, ctypes.c_void_p(None),
    )  # fmt: skip

    def run(i: int) -> None:
        launch(*arguments)

    return Entry(run, triples, moving=False, kept=(memory, parameters, loaded))


def by_index(configured: Any, triples: Triples) -> Entry:
    a, b, out = triples.a, triples.b, triples.out
    return Entry(lambda i: configured(a[i], b[i], out[i]), triples)


def configured_anew(kernel: Any, triples: Triples) -> Entry:
    """As programs write it: the configuration in every call."""
    a, b, out = triples.a, triples.b, triples.out

    def run(i: int) -> None:
        kernel[GRID, BLOCK](a[i], b[i], out[i])

    return Entry(run, triples)


def bound(kernel: Any, triples: Triples) -> Entry:
    again = kernel[GRID, BLOCK].bind(triples.a[0], triples.b[0], triples.out[0])
    return Entry(lambda i: again(), triples, moving=False)


def bound_anew(kernel: Any, triples: Triples) -> Entry:
    a, b, out = triples.a, triples.b, triples.out
    launch = kernel[GRID, BLOCK].bind(a[0], b[0], out[0])
    return Entry(lambda i: launch(a[i], b[i], out[i]), triples)


def bound_addresses(kernel: Any, triples: Triples) -> Entry:
    a, b, out = ([x.device_ctypes_pointer.value for x in arrays] for arrays in (triples.a, triples.b, triples.out))
    launch = kernel[GRID, BLOCK].bind(triples.a[0], triples.b[0], triples.out[0])
    return Entry(lambda i: launch(a[i], b[i], out[i]), triples)


def check(entry: Entry) -> None:
    """Raises where a competitor does not add."""
    a, b = numbers()
    for i in (0, 1, ARRAYS - 1):
        place = i if entry.moving else 0
        entry.call(i)
        cuda.synchronize()
        got = entry.triples.to_cpu(entry.triples.out[place])
        if not np.array_equal(got, a[place] + b[place]):
            raise ArithmeticError(f"launch {i} gave other numbers")


def competitors(report: Report, ours: Any, numbas: Any) -> dict[str, Entry]:
    a, b = numbers()
    device = with_numba(a, b)
    code = ours.build((nd_types(),) * 3, current_device.compute_capability(0))
    makers: dict[str, Callable[[], Entry]] = {
        BARE: lambda: bare_entry(device, code),
        "nd.jit bound()": lambda: bound(ours, device),
        "nd.jit bound(addresses)": lambda: bound_addresses(ours, device),
        "nd.jit bound(Numba arrays)": lambda: bound_anew(ours, device),
        "nd.jit kernel[...](Numba arrays)": lambda: configured_anew(ours, device),
        "numba kernel[...](Numba arrays)": lambda: configured_anew(numbas, device),
    }
    for name, make in (("CuPy", with_cupy), ("torch", with_torch), ("JAX", with_jax)):
        try:
            triples = make(a, b)
        except ImportError as error:
            report.leave_out(name, error)
            continue
        if name != "JAX":  # whose arrays have to be read each time
            makers[f"nd.jit bound({name})"] = lambda triples=triples: bound_anew(ours, triples)  # type: ignore[misc]
        makers[f"nd.jit kernel[...]({name})"] = lambda triples=triples: configured_anew(ours, triples)  # type: ignore[misc]
        makers[f"numba kernel[...]({name})"] = lambda triples=triples: configured_anew(numbas, triples)  # type: ignore[misc]
    return take_part(report, makers, check)


def nd_types() -> Any:
    from numba.cuda import types

    return types.Array(types.float32, 1, "C")


TARGETS = {
    "nd.jit bound()": 1.25,
    "nd.jit kernel[...](Numba arrays)": 1.8,
    "nd.jit kernel[...](CuPy)": 2.0,
    "nd.jit kernel[...](torch)": 2.0,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write everything, raw samples too, to this file")
    path = parser.parse_args().json
    cuda.synchronize()
    report = Report(path, ("nd.jit",), device=current_device.device_name(0))
    report.say(f"{current_device.device_name(0)}; us of CPU a launch, {ROUNDS} batches of {len(INDICES)} in turns")
    entries = competitors(report, nd.jit(add), cuda.jit(add))
    samples = take_turns(entries, lambda entry: cpu_sample(entry.call, INDICES, cuda.synchronize), rounds=ROUNDS)
    medians = {name: statistics.median(s.call_us for s in taken) for name, taken in samples.items()}
    for name, median in medians.items():
        report.say(f"{name:40} {median:8.2f} us   {median / medians[BARE]:5.2f} x bare")
    section = report.data["launch"] = {
        "medians_us": medians,
        "samples_us": {name: [round(s.call_us, 3) for s in taken] for name, taken in samples.items()},
    }
    verdicts = [
        Verdict(f"{name} / {BARE}", medians[name] / medians[BARE], target, at_most=True)
        for name, target in TARGETS.items()
        if name in medians
    ]
    report.judge(section, verdicts)
    report.save()
    report.say(f"{len(report.failures)} failures")
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
