# SPDX-License-Identifier: Apache-2.0
"""Host products against bare cuBLASLt, CuPy, PyTorch and nvmath-python: ``python benchmarks/host.py [--json FILE]``.

One run, random data, medians; the competitors take turns in every round, and each is checked against float64 before
it is timed. Needs a GPU, CuPy and PyTorch; without nvmath-python its rows say so. ``--section NAME ...`` chooses:

``overhead``  CPU time of a call, 128x128 fp32, over 64 arrays. Between the timed batches the dtype, device, strides
              and alignment of operands and results are changed; each must be right or refused.
``speed``     RELU_BIAS in bf16, 2048^3 and 8192^3.
``fp8``       8192^3 in e4m3 against bf16.
``line``      Python functions called by one call.

Ends with status 1 where something of ours was wrong or failed. A missed target does not do that.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import cupy as cp
import numpy as np
import torch
from host_speed import BOUNDS, DEVICE, OURS, PEER, fp8, speed
from timing import CpuSample, Report, Verdict, calls_of, cpu_sample, relative_error, take_part, take_turns

from nvmath_device import host
from nvmath_device.errors import NvmathDeviceError
from nvmath_device.host import cublaslt, cublaslt_algorithms, cublaslt_calls
from nvmath_device.host.cublaslt_enums import (
    ComputeType,
    CudaDataType,
    MatmulAlgoConfigAttribute,
    MatmulPreferenceAttribute,
)

BARE = "bare cublasLtMatmul"

SIZE, ARRAYS = 128, 64
INDICES = tuple(range(ARRAYS)) * 3  # one batch: fewer launches than the driver queues, should the GPU fall behind
CPU_ROUNDS = 60
BARE_WORKSPACE = 32 << 20  # bytes


# -- overhead: arrays and competitors ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Library:
    """An array library. ``empty`` gives float32 on the GPU, ``of`` takes NumPy arrays there."""

    name: str
    empty: Callable[[tuple[int, ...]], Any]
    of: Callable[[Any], Any]
    cast: Callable[[Any, str], Any]
    to_cpu: Callable[[Any], Any]


CUPY = Library("CuPy", lambda shape: cp.empty(shape, cp.float32), cp.asarray, lambda x, t: x.astype(t), cp.asnumpy)
TORCH = Library(
    "torch",
    lambda shape: torch.empty(shape, dtype=torch.float32, device=DEVICE),
    lambda x: torch.as_tensor(x, device=DEVICE),
    lambda x, dtype: x.to(getattr(torch, dtype)),
    lambda x: x.cpu(),
)


def float64(x: Any) -> np.ndarray[Any, Any]:
    """The elements of an array of any library, in NumPy."""
    return (x.cpu().numpy() if isinstance(x, torch.Tensor) else cp.asnumpy(x)).astype(np.float64)


def dtype_name(x: Any) -> str:
    return str(x.dtype).rpartition(".")[2]


class Arrays(NamedTuple):
    library: Library
    a: list[Any]
    b: list[Any]
    out: list[Any]


def random_arrays() -> dict[str, Arrays]:
    """The same 64 factors, and places for 64 results, in each library."""
    rng = np.random.default_rng()
    a, b = (rng.uniform(-1, 1, (ARRAYS, SIZE, SIZE)).astype(np.float32) for _ in range(2))
    return {
        library.name: Arrays(
            library,
            [library.of(x) for x in a],
            [library.of(x) for x in b],
            [library.empty((SIZE, SIZE)) for _ in range(ARRAYS)],
        )
        for library in (CUPY, TORCH)
    }


@dataclass(frozen=True)
class Entry:
    """A competitor.

    Attributes:
        call: makes product i.
        out: where product i is written; ``None``: it is returned.
        moving: whether product i is that of factors i; otherwise it is always that of factors 0.
        kept: what has to stay alive.
    """

    call: Callable[[int], Any]
    out: list[Any] | None = None
    moving: bool = True
    kept: Any = None


def bare_entry(arrays: Arrays) -> tuple[Entry, dict[str, int]]:
    """cublasLtMatmul through ctypes with all arguments prepared, and what its algorithm is.

    C-ordered matrices are transposed ones to cuBLASLt: it computes D' = B' A'. The function has no prototype, so
    that ctypes hands the prepared objects on without converting anything.
    """
    real = CudaDataType.CUDA_R_32F
    handle, desc = cublaslt.Handle(), cublaslt.MatmulDesc(ComputeType.COMPUTE_32F, real)
    layouts = [cublaslt.MatrixLayout(real, SIZE, SIZE, SIZE) for _ in range(4)]
    preference = cublaslt.MatmulPreference({MatmulPreferenceAttribute.MAX_WORKSPACE_BYTES: BARE_WORKSPACE})
    found = cublaslt_algorithms.heuristics(handle, desc, *layouts, preference)[0]
    workspace = cp.empty((max(found.workspace_bytes, 1),), cp.uint8)
    alpha, beta = ctypes.c_float(1), ctypes.c_float(0)
    pointer = ctypes.c_void_p
    at_a, at_b, at_c, at_d = (pointer(layout.address) for layout in layouts)
    head = pointer(handle.address), pointer(desc.address), pointer(ctypes.addressof(alpha))
    tail = (
        pointer(ctypes.addressof(found.algo.struct)),
        pointer(workspace.data.ptr),
        ctypes.c_size_t(found.workspace_bytes),
        pointer(0),  # the stream
    )
    arguments = [
        (*head, pointer(b.data.ptr), at_a, pointer(a.data.ptr), at_b, pointer(ctypes.addressof(beta)),
         pointer(d.data.ptr), at_c, pointer(d.data.ptr), at_d, *tail)
        for a, b, d in zip(arrays.a, arrays.b, arrays.out, strict=True)
    ]  # fmt: skip
    function = cublaslt_calls.load()["cublasLtMatmul"]
    config = MatmulAlgoConfigAttribute
    algorithm = {c.name: found.algo.get(c) for c in (config.ID, config.TILE_ID, config.STAGES_ID, config.SPLITK_NUM)}
    kept = handle, desc, layouts, found, workspace, alpha, beta
    return Entry(lambda i: function(*arguments[i]), arrays.out, kept=kept), algorithm


@dataclass(frozen=True)
class Ours:
    """Our products of a library's arrays: one plan that keeps its factors, and one whose factors are reset."""

    arrays: Arrays
    fixed: Any
    moving: Any

    @classmethod
    def of(cls, arrays: Arrays) -> Ours:
        fixed, moving = (host.Matmul(arrays.a[0], arrays.b[0]) for _ in range(2))
        fixed.plan()
        moving.plan()
        return cls(arrays, fixed, moving)

    def entries(self) -> dict[str, Entry]:
        library, a, b, out = self.arrays
        execute, matmul = self.fixed.execute, host.matmul
        reset, execute_moving = self.moving.reset_operands, self.moving.execute

        def reset_and_execute(i: int) -> None:
            reset(a=a[i], b=b[i])
            execute_moving(out=out[i])

        name = f"{OURS} {library.name}"
        return {
            f"{name} execute(out=)": Entry(lambda i: execute(out=out[i]), out, moving=False),
            f"{name} reset_operands, execute(out=)": Entry(reset_and_execute, out),
            f"{name} matmul(a, b)": Entry(lambda i: matmul(a[i], b[i])),
            f"{name} matmul(a, b, out=)": Entry(lambda i: matmul(a[i], b[i], out=out[i]), out),
        }


def peer_entries(arrays: Arrays) -> dict[str, Entry]:
    """nvmath-python has no ``out``; "unchecked" is its reset without a look at the new operands."""
    peer = importlib.import_module("nvmath.linalg.advanced")
    library, a, b, _ = arrays
    fixed, moving = (peer.Matmul(a[0], b[0]) for _ in range(2))
    fixed.plan()
    moving.plan()
    execute, matmul, execute_moving = fixed.execute, peer.matmul, moving.execute
    reset, reset_unchecked = moving.reset_operands, moving.reset_operands_unchecked

    def reset_and_execute(i: int) -> Any:
        reset(a=a[i], b=b[i])
        return execute_moving()

    def reset_unchecked_and_execute(i: int) -> Any:
        reset_unchecked(a=a[i], b=b[i])
        return execute_moving()

    name = f"{PEER} {library.name}"
    return {
        f"{name} execute()": Entry(lambda i: execute(), moving=False),
        f"{name} reset_operands, execute()": Entry(reset_and_execute),
        f"{name} reset_operands_unchecked, execute()": Entry(reset_unchecked_and_execute),
        f"{name} matmul(a, b)": Entry(lambda i: matmul(a[i], b[i])),
    }


def cupy_entries(arrays: Arrays) -> dict[str, Entry]:
    _, a, b, out = arrays
    return {
        "CuPy a @ b": Entry(lambda i: a[i] @ b[i]),
        "CuPy matmul(a, b, out=)": Entry(lambda i: cp.matmul(a[i], b[i], out=out[i]), out),
    }


def torch_entries(arrays: Arrays) -> dict[str, Entry]:
    _, a, b, out = arrays
    mm = torch.mm
    return {
        "torch mm(a, b)": Entry(lambda i: mm(a[i], b[i])),
        "torch mm(a, b, out=)": Entry(lambda i: mm(a[i], b[i], out=out[i]), out),
    }


def check_entry(entry: Entry, arrays: Arrays) -> None:
    """Raises where a product is wrong."""
    for i in (0, 1, ARRAYS - 1):
        if entry.out is not None:
            entry.out[i][...] = float("nan")
        returned = entry.call(i)
        got = float64(returned if entry.out is None else entry.out[i])
        factors = i if entry.moving else 0
        error = relative_error(got, float64(arrays.a[factors]) @ float64(arrays.b[factors]))
        if not error <= BOUNDS["float32"]:
            raise ArithmeticError(f"product {i}: relative error {error:.2e} is above {BOUNDS['float32']:.0e}")


# -- overhead: changes between the batches ----------------------------------------------------------------------


def transposed(library: Library, x: Any) -> Any:
    holder = library.empty((SIZE, SIZE))
    holder[...] = x.T
    return holder.T


def sliced(library: Library, x: Any) -> Any:
    view = library.empty((SIZE, 2 * SIZE))[:, 16 : 16 + SIZE]
    view[...] = x
    return view


def stepped(library: Library, x: Any) -> Any:
    view = library.empty((SIZE, 2 * SIZE))[:, ::2]
    view[...] = x
    return view


def off_by_4_bytes(library: Library, x: Any) -> Any:
    view = library.empty((SIZE * SIZE + 1,))[1:].reshape(SIZE, SIZE)
    view[...] = x
    return view


CHANGES: dict[str, Callable[[Library, Any], Any]] = {
    "dtype float64": lambda library, x: library.cast(x, "float64"),
    "dtype float16": lambda library, x: library.cast(x, "float16"),
    "device CPU": lambda library, x: library.to_cpu(x),
    "stride transposed view": transposed,
    "stride sliced view": sliced,
    "stride stepped view": stepped,
    "alignment 4 bytes": off_by_4_bytes,
}


def outcome(product: Callable[[], Any], a: Any, b: Any, out: Any) -> dict[str, Any]:
    """What became of a product: right, refused, or a fault. ``out=None``: it is returned."""
    try:
        if out is not None:
            out[...] = float("nan")
        returned = product()
        got = returned if out is None else out
        error, bound = relative_error(float64(got), float64(a) @ float64(b)), BOUNDS[dtype_name(got)]
    except NvmathDeviceError as refusal:
        return {"outcome": "refused", "message": f"{type(refusal).__name__}: {refusal}"}
    except Exception as fault:
        return {"outcome": "fault", "message": "".join(traceback.format_exception(fault))}
    message = f"relative error {error:.2e} in {dtype_name(got)}, allowed {bound:.0e}"
    return {"outcome": "right" if error <= bound else "fault", "message": message}


def try_change(ours: Ours, name: str) -> list[dict[str, Any]]:
    """One change in every form of call, with the objects that are being timed. Afterwards they must still work."""
    arrays, change = ours.arrays, CHANGES[name]
    a, b, out = arrays.a[0], arrays.b[0], arrays.out[0]
    a2, b2, out2 = (change(arrays.library, x) for x in (a, b, out))

    def reset(a: Any, b: Any) -> None:
        ours.moving.reset_operands(a=a, b=b)
        ours.moving.execute(out=out)

    forms: dict[str, tuple[Callable[[], Any], Any, Any, Any]] = {
        "reset_operands, a changed": (lambda: reset(a2, b), a2, b, out),
        "reset_operands, both changed": (lambda: reset(a2, b2), a2, b2, out),
        "execute, out changed": (lambda: ours.fixed.execute(out=out2), a, b, out2),
        "matmul, a changed": (lambda: host.matmul(a2, b), a2, b, None),
        "matmul, both changed": (lambda: host.matmul(a2, b2), a2, b2, None),
        "matmul, out changed": (lambda: host.matmul(a, b, out=out2), a, b, out2),
        "reset_operands, as before": (lambda: reset(a, b), a, b, out),
        "execute, as before": (lambda: ours.fixed.execute(out=out), a, b, out),
        "matmul, as before": (lambda: host.matmul(a, b), a, b, None),
    }
    results = []
    for form, product in forms.items():
        result = outcome(*product)
        if form.endswith("as before") and result["outcome"] == "refused":
            result["outcome"] = "fault"
        results.append({"change": name, "library": arrays.library.name, "form": form, **result})
    return results


# -- overhead: the section --------------------------------------------------------------------------------------


def overhead_competitors(report: Report, section: dict[str, Any]) -> tuple[dict[str, Entry], list[Ours]]:
    both = random_arrays()
    mine: list[Ours] = []
    algorithms = section["algorithms"] = {}

    def bare() -> dict[str, Entry]:
        entry, algorithms[BARE] = bare_entry(both[CUPY.name])
        return {BARE: entry}

    def ours(library: Library) -> dict[str, Entry]:
        made = Ours.of(both[library.name])
        mine.append(made)
        algorithm = next(iter(getattr(made.fixed, "algorithms", ())), None)
        parts = ("algorithm_id", "tile", "stages", "split_k")
        algorithms[f"{OURS} {library.name}"] = {part: str(getattr(algorithm, part, None)) for part in parts}
        return made.entries()

    groups: dict[str, Callable[[], Mapping[str, Entry]]] = {
        BARE: bare,
        f"{OURS} {CUPY.name}": lambda: ours(CUPY),
        f"{OURS} {TORCH.name}": lambda: ours(TORCH),
        "CuPy": lambda: cupy_entries(both[CUPY.name]),
        "torch": lambda: torch_entries(both[TORCH.name]),
        f"{PEER} {CUPY.name}": lambda: peer_entries(both[CUPY.name]),
        f"{PEER} {TORCH.name}": lambda: peer_entries(both[TORCH.name]),
    }
    entries: dict[str, Entry] = {}
    for group, build in groups.items():
        try:
            found = build()
        except Exception as error:
            report.leave_out(group, error)
        else:
            makers = {name: partial(lambda entry: entry, entry) for name, entry in found.items()}
            entries |= take_part(report, makers, lambda entry: check_entry(entry, both[CUPY.name]))
    return entries, mine


OVERHEAD_TARGETS = [
    *((f"{OURS} {library} execute(out=)", BARE, 1.25) for library in ("CuPy", "torch")),
    *((f"{OURS} {library} reset_operands, execute(out=)", BARE, 1.6) for library in ("CuPy", "torch")),
    (f"{OURS} CuPy matmul(a, b)", "CuPy a @ b", 1.0),
    (f"{OURS} torch matmul(a, b)", "torch mm(a, b)", 1.5),
]


def overhead(report: Report, section: dict[str, Any]) -> None:
    section["method"] = (
        f"{SIZE}x{SIZE} float32; perf_counter_ns around {len(INDICES)} calls over {ARRAYS} arrays, divided by them; "
        f"{CPU_ROUNDS} such batches each in turn, synchronised before and after outside of the timed part; garbage "
        "collection off. 'the loop alone' is in every figure."
    )
    report.say(section["method"])
    entries, mine = overhead_competitors(report, section)
    entries["the loop alone"] = Entry(lambda i: None)
    changes: list[dict[str, Any]] = section.setdefault("changes", [])
    step = CPU_ROUNDS // (len(CHANGES) + 1)
    due = {step * (position + 1): name for position, name in enumerate(CHANGES)}

    def between(turn: int) -> None:
        for result in [result for ours in mine if turn in due for result in try_change(ours, due[turn])]:
            changes.append(result)
            if result["outcome"] == "fault":
                report.fail(f"{result['change']}, {result['library']}, {result['form']}: {result['message']}")

    def sample(entry: Entry) -> CpuSample:
        return cpu_sample(entry.call, INDICES, torch.cuda.synchronize)

    samples = take_turns(entries, sample, rounds=CPU_ROUNDS, between=between)
    medians = {name: statistics.median(s.call_us for s in taken) for name, taken in samples.items()}
    section["times"] = {
        name: {
            "median_us": medians[name],
            "median_drain_us": statistics.median(s.drain_us for s in taken),
            "samples_us": [round(s.call_us, 3) for s in taken],
        }
        for name, taken in samples.items()
    }
    for name, median in medians.items():
        of_bare = f"{median / medians[BARE]:6.2f} x bare" if BARE in medians else ""
        report.say(f"{name:60} {median:8.2f} us {of_bare}")
    counts = {kind: sum(c["outcome"] == kind for c in changes) for kind in ("right", "refused", "fault")}
    report.say(f"operands changed between batches: {counts}")
    report.judge(
        section,
        [
            Verdict(f"{name} / {against}", medians[name] / medians[against], target, at_most=True)
            for name, against, target in OVERHEAD_TARGETS
            if name in medians and against in medians
        ],
    )


def line(report: Report, section: dict[str, Any]) -> None:
    """Counts what one call calls, as ``calls_of`` sees it."""
    entries, _ = overhead_competitors(report, section)
    nothing = calls_of(lambda i: None)
    for name, entry in entries.items():
        for i in range(3):
            entry.call(i)
        called = calls_of(entry.call)
        functions = called["call"][len(nothing["call"]) :]  # without the entry's own
        builtins = len(called["c_call"]) - len(nothing["c_call"])
        section[name] = {"functions": functions, "builtins": builtins}
        report.say(f"{name:60} {len(functions):4} Python functions, {builtins:4} built-in ones")
    torch.cuda.synchronize()


SECTIONS: dict[str, Callable[[Report, dict[str, Any]], None]] = {
    "overhead": overhead,
    "speed": speed,
    "fp8": fp8,
    "line": line,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write everything, raw samples too, to this file")
    parser.add_argument("--section", nargs="+", choices=SECTIONS, default=list(SECTIONS), help="all if not given")
    options = parser.parse_args()
    version = ".".join(map(str, cublaslt_calls.version()))
    report = Report(
        options.json,
        (OURS, BARE),
        gpu=torch.cuda.get_device_name(),
        cublaslt={"version": version, "path": cublaslt_calls.load()._name},
        tf32={"torch": torch.get_float32_matmul_precision(), "CUPY_TF32": os.environ.get("CUPY_TF32", "0")},
    )
    report.say(f"{report.data['gpu']}, cuBLASLt {version}")
    for name in options.section:
        report.say(f"== {name}")
        begin = time.perf_counter()
        section = report.data[name] = {}
        try:
            SECTIONS[name](report, section)
        except Exception:  # the sections are independent, and what was measured is worth keeping
            report.fail(f"{name}: {traceback.format_exc()}")
        section["seconds"] = round(time.perf_counter() - begin, 1)
        report.save()
    report.say(f"{len(report.failures)} failures")
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
