# SPDX-License-Identifier: Apache-2.0
"""Reported cases about speed: what is advised is not slower than what one would pick by hand.

Times are medians of events on the GPU with random data; the room for noise is stated with each bound.
"""

from __future__ import annotations

import statistics
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numba import cuda

import nvmath_device as nd

ROWS = ("row_major", "row_major", "row_major")
BLOCKS = 4 * 132


def median_ms(launch, *, repeats=15):
    """Median time of one launch in milliseconds, after two that warm up."""
    times = []
    for _ in range(repeats + 2):
        start, stop = cuda.event(), cuda.event()
        start.record()
        launch()
        stop.record()
        stop.synchronize()
        times.append(cuda.event_elapsed_time(start, stop))
    return statistics.median(times[2:])


def generate(descriptors):
    """What is missing in the store, generated at the same time."""

    def one(descriptor):
        compile_code = nd.compile_blas_execute if isinstance(descriptor, nd.Matmul) else nd.compile_fft_execute
        compile_code(descriptor, nd.current_device_lto())

    with ThreadPoolExecutor(32) as pool:
        list(pool.map(one, descriptors))


def gemm_of(**options):
    return nd.Matmul(precision="float32", data_type="real", arrangement=ROWS, **options)


def gemm_kernel(mm, rounds):
    @cuda.jit
    def kernel(a, b, c):
        sa = nd.shared.array(mm.a_size, mm.a_value_type)
        sb = nd.shared.array(mm.b_size, mm.b_value_type)
        sc = nd.shared.array(mm.c_size, mm.c_value_type)
        mm.load_a(a, sa)
        mm.load_b(b, sb)
        mm.load_c(c, sc)
        cuda.syncthreads()
        for _ in range(rounds):
            mm.execute(1.0, sa, sb, 0.5, sc)
            cuda.syncthreads()
        mm.store_c(sc, c)

    return kernel


def timed_gemm(rng, *, rounds=50, **options):
    mm = gemm_of(**options)
    m, n, k = mm.size
    a, b = (cuda.to_device(rng.uniform(-1, 1, s).astype(np.float32)) for s in ((m, k), (k, n)))
    c = cuda.to_device(np.zeros((m, n), np.float32))
    kernel = gemm_kernel(mm, rounds)
    time = median_ms(lambda: kernel[BLOCKS, mm.block_size](a, b, c))
    out = cuda.to_device(np.zeros((m, n), np.float32))
    kernel[1, mm.block_size](a, b, out)
    return time, out.copy_to_host(), mm


def test_r008_a_promise_of_alignment_does_not_slow_down_or_change_a_bit():
    size = (64, 64, 64)
    generate([gemm_of(size=size, block_size=128), gemm_of(size=size, block_size=128, alignment=(16, 16, 16))])
    natural_ms, natural, _ = timed_gemm(np.random.default_rng(8), size=size, block_size=128)
    aligned_ms, aligned, _ = timed_gemm(np.random.default_rng(8), size=size, block_size=128, alignment=(16, 16, 16))
    print(f"natural {natural_ms:.3f} ms, 16 bytes {aligned_ms:.3f} ms")
    np.testing.assert_array_equal(natural, aligned)
    assert aligned_ms <= 1.05 * natural_ms


def fft_of(elements, ffts):
    return nd.FFT(
        size=1024, precision="float32", fft_type="c2c", direction="forward", execution="Block",
        elements_per_thread=elements, ffts_per_block=ffts,
    )  # fmt: skip


def timed_fft(x, y, fft):

    @cuda.jit
    def kernel(x, y):
        data = cuda.local.array(fft.storage_size, fft.value_type)
        scratch = nd.shared.array(0, np.uint8)
        fft.load(x, data)
        fft.execute(data, scratch)
        fft.store(data, y)

    grid = -(-x.shape[0] // fft.ffts_per_block)
    return median_ms(lambda: kernel[grid, tuple(fft.block_dim), 0, fft.shared_memory_size](x, y))


def test_r024_the_suggested_fft_is_among_the_best():
    rng = np.random.default_rng(24)
    host = (rng.uniform(-1, 1, (32768, 1024)) + 1j * rng.uniform(-1, 1, (32768, 1024))).astype(np.complex64)
    x, y = cuda.to_device(host), cuda.device_array_like(host)
    advice = nd.FFT(size=1024, precision="float32", fft_type="c2c", direction="forward", execution="Block")
    by_hand = {
        (elements, ffts): fft_of(elements, ffts)
        for elements in sorted({e for (e,) in advice.valid("elements_per_thread")})
        for ffts in (1, 2, 4)
        if 1024 // elements * ffts <= 1024
    }
    suggested = fft_of("suggested", "suggested")
    generate([suggested, *by_hand.values()])
    by_hand = {knobs: timed_fft(x, y, fft) for knobs, fft in by_hand.items()}
    moved = 2 * host.nbytes
    print({knobs: f"{moved / ms / 1e9:.2f} TB/s" for knobs, ms in by_hand.items()})
    ms = timed_fft(x, y, suggested)
    print(f"suggested ({suggested.elements_per_thread}, {suggested.ffts_per_block}): {moved / ms / 1e9:.2f} TB/s")
    assert ms <= 1.25 * min(by_hand.values())
