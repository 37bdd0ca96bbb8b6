# SPDX-License-Identifier: Apache-2.0
"""Kernels built from Matmul and FFT against cuBLAS and cuFFT: ``python benchmarks/device.py [--json FILE]``.

One run, random data, the competitors in turn in every round, medians of the GPU's own event times. Each result is
checked against its competitor's before anything is timed. Needs a GPU and CuPy.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import cupy as cp
import numpy as np
from cupyx.scipy import fft as cufft
from numba import cuda
from timing import take_turns

import nvmath_device as nd
from nvmath_device.info import info

ROUNDS = 15
Launch = Callable[[], Any]


def milliseconds(launch: Launch) -> float:
    start, stop = cp.cuda.Event(), cp.cuda.Event()
    start.record()
    launch()
    stop.record()
    stop.synchronize()
    return float(cp.cuda.get_elapsed_time(start, stop))


def medians_ms(launches: dict[str, Launch]) -> dict[str, dict[str, Any]]:
    """Median and all samples in milliseconds of each launch; they take turns."""
    samples = take_turns(launches, milliseconds, rounds=ROUNDS)
    return {name: {"median_ms": statistics.median(s), "samples_ms": s} for name, s in samples.items()}


def check(got: Any, expected: Any, bound: float) -> float:
    error = float(cp.linalg.norm(got - expected) / cp.linalg.norm(expected))
    if not error <= bound:
        raise SystemExit(f"wrong result: relative error {error:.2e} is above {bound:.0e}")
    return error


def generate(descriptors: Iterable[Any]) -> None:
    """Have the code of all in the store before anything is compiled; what is missing is generated at the same time."""

    def one(descriptor: Any) -> None:
        compile_code = nd.compile_blas_execute if isinstance(descriptor, nd.Matmul) else nd.compile_fft_execute
        compile_code(descriptor, nd.current_device_lto())

    with ThreadPoolExecutor(32) as pool:
        list(pool.map(one, descriptors))


# -- products --------------------------------------------------------------------------------------------------


def tile_of(precision: tuple[str, str, str], tile: tuple[int, int, int], threads: int) -> nd.Matmul:
    return nd.Matmul(
        size=tile,
        precision=precision,
        data_type="real",
        arrangement=("row_major", "row_major", "row_major"),
        block_size=threads,
        alignment=(16, 16, 16),
        static_block_dim=True,
    )


def tiled_gemm(precision: tuple[str, str, str], tile: tuple[int, int, int], threads: int) -> Any:
    """A kernel of one block a tile of C, with a loop over K through shared memory; no pipelining."""
    mm = tile_of(precision, tile, threads)
    tm, tn, tk = tile
    at_b = mm.a_size * mm.a_value_type.itemsize // mm.b_value_type.itemsize
    end_b = at_b + mm.b_size
    at_c = (mm.a_size * mm.a_value_type.itemsize + mm.b_size * mm.b_value_type.itemsize) // mm.c_value_type.itemsize
    end_c = at_c + mm.c_size

    @cuda.jit
    def kernel(a, b, c):
        sa = nd.shared.array(0, mm.a_value_type)[: mm.a_size]
        sb = nd.shared.array(0, mm.b_value_type)[at_b:end_b]
        sc = nd.shared.array(0, mm.c_value_type)[at_c:end_c]
        row, column = cuda.blockIdx.y * tm, cuda.blockIdx.x * tn
        for k in range(0, a.shape[1], tk):
            cuda.syncthreads()
            mm.load_a(a[row : row + tm, k : k + tk], sa)
            mm.load_b(b[k : k + tk, column : column + tn], sb)
            cuda.syncthreads()
            mm.execute(1.0, sa, sb, 0.0 if k == 0 else 1.0, sc)
        cuda.syncthreads()
        mm.store_c(sc, c[row : row + tm, column : column + tn])

    return kernel, mm


GEMMS = [
    (("float16", "float16", "float32"), (128, 128, 32), 128),
    (("float16", "float16", "float32"), (128, 128, 64), 256),
    (("float32", "float32", "float32"), (64, 64, 32), 128),
    (("float32", "float32", "float32"), (64, 64, 64), 256),
    (("float64", "float64", "float64"), (64, 64, 32), 128),
]


def gemm_case(n: int, precision: tuple[str, str, str], tile: tuple[int, int, int], threads: int) -> dict[str, Any]:
    kernel, mm = tiled_gemm(precision, tile, threads)
    a, b = (cp.random.uniform(-1, 1, (n, n)).astype(precision[0]) for _ in range(2))
    c = cp.empty((n, n), precision[2])
    expected = cp.empty((n, n), precision[0])
    grid = (-(-n // tile[1]), -(-n // tile[0]))
    shared = mm.get_shared_storage_size()
    arguments = [cuda.as_cuda_array(x) for x in (a, b, c)]
    launches = {
        "nvmath_device": lambda: kernel[grid, threads, 0, shared](*arguments),
        "cuBLAS (cupy.matmul)": lambda: cp.matmul(a, b, out=expected),
    }
    for launch in launches.values():
        launch()
    error = check(c, expected, 2e-3 if precision[0] == "float16" else 1e-5)
    times = medians_ms(launches)
    ours, theirs = (times[name]["median_ms"] for name in launches)
    return {
        "case": f"{n}^3 {'-'.join(precision)} tile {'x'.join(map(str, tile))} {threads} threads",
        "note": "cuBLAS writes its result in the operands' type",
        "tflops": 2 * n**3 / ours / 1e9,
        "of_cublas": theirs / ours,
        "error": error,
        "times": times,
    }


# -- transforms ------------------------------------------------------------------------------------------------


FFT_SIZES = (128, 512, 1024, 4096)


def fft_of(size: int, **knobs: Any) -> nd.FFT:
    return nd.FFT(size=size, precision="float32", fft_type="c2c", direction="forward", execution="Block", **knobs)


def fft_knobs(size: int) -> list[dict[str, Any]]:
    """What cuFFTDx suggests, and the first of what it calls valid."""
    names = ("elements_per_thread", "ffts_per_block")
    suggested = dict.fromkeys(names, "suggested")
    return [suggested, *(dict(zip(names, knobs, strict=True)) for knobs in fft_of(size).valid(*names)[:4])]


def fft_kernel(fft: nd.FFT) -> Any:

    @cuda.jit
    def kernel(x, y):
        data = cuda.local.array(fft.storage_size, fft.value_type)
        scratch = nd.shared.array(0, np.uint8)
        fft.load(x, data)
        fft.execute(data, scratch)
        fft.store(data, y)

    return kernel


def fft_case(size: int, total_bytes: int) -> dict[str, Any]:
    rows = total_bytes // (8 * size)
    x = (cp.random.uniform(-1, 1, (rows, size)) + 1j * cp.random.uniform(-1, 1, (rows, size))).astype(cp.complex64)
    y, z = cp.empty_like(x), cp.empty_like(x)
    library_plan = cufft.get_fft_plan(x, axes=(1,))
    arguments = [cuda.as_cuda_array(x), cuda.as_cuda_array(y)]
    launches: dict[str, Launch] = {"cuFFT": lambda: library_plan.fft(x, z, cp.cuda.cufft.CUFFT_FORWARD)}
    launches["copy"] = lambda: cp.copyto(z, x)
    for knobs in fft_knobs(size):
        fft = fft_of(size, **knobs)
        kernel = fft_kernel(fft)
        grid, block = -(-rows // fft.ffts_per_block), tuple(fft.block_dim)
        bound = kernel[grid, block, 0, fft.shared_memory_size]
        launches[f"nvmath_device {' '.join(map(str, knobs.values()))}"] = lambda bound=bound: bound(*arguments)
    launches["cuFFT"]()
    expected = z.copy()
    for name, launch in launches.items():
        if name.startswith("nvmath_device"):
            y.fill(cp.nan)
            launch()
            check(y, expected, 1e-6)
    times = medians_ms(launches)
    best = min((t["median_ms"], name) for name, t in times.items() if name.startswith("nvmath_device"))
    return {
        "case": f"c2c float32 N={size}, {rows} rows, out of place",
        "best": best[1],
        "tb_per_s": {name: 2 * x.nbytes / t["median_ms"] / 1e9 for name, t in times.items()},
        "of_cufft": times["cuFFT"]["median_ms"] / best[0],
        "suggested_of_best": best[0] / times["nvmath_device suggested suggested"]["median_ms"],
        "times": times,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", help="write everything, raw samples too, to this file")
    parser.add_argument("--size", type=int, default=4096, help="rows and columns of the products")
    parser.add_argument("--bytes", type=int, default=1 << 30, help="bytes of one array of signals")
    options = parser.parse_args()
    results: dict[str, Any] = {"info": info(), "gemm": [], "fft": []}
    generate(tile_of(*gemm) for gemm in GEMMS)
    generate(fft_of(size, **knobs) for size in FFT_SIZES for knobs in fft_knobs(size))
    for precision, tile, threads in GEMMS:
        case = gemm_case(options.size, precision, tile, threads)
        results["gemm"].append(case)
        print(f"{case['case']:60} {case['tflops']:7.1f} TFLOP/s  {case['of_cublas']:.2f} of cuBLAS", flush=True)
    for size in FFT_SIZES:
        case = fft_case(size, options.bytes)
        results["fft"].append(case)
        speeds = ", ".join(f"{name} {speed:.2f}" for name, speed in case["tb_per_s"].items())
        print(f"{case['case']}: {case['of_cufft']:.2f} of cuFFT with {case['best']} (TB/s: {speeds})", flush=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
