# SPDX-License-Identifier: Apache-2.0
"""Filters real signals in one kernel: real FFT, times the filter's transform, inverse real FFT.

The signals are synthetic heart beats with the hum of the mains (50 Hz) on top; a low-pass of 125 taps takes
it away. ``load`` pads every signal with zeros, so the circular convolution of FFTs is the ordinary one, with
all of its ``SAMPLES + TAPS - 1`` values. The spectrum never leaves the registers of the threads.

    python examples/fft_real.py                                 # on a GPU: 5000 signals of 900 samples
    NUMBA_ENABLE_CUDASIM=1 python examples/fft_real.py          # on Numba's simulator: 5 of 100, 29 taps
"""

import sys
from time import perf_counter

import numpy as np
from numba import cuda

import nvmath_device as nd
from nvmath_device import simulation

SIGNALS, SAMPLES, TAPS, RATE = (5, 100, 29, 250) if simulation.is_active() else (5000, 900, 125, 250)
SIZE = SAMPLES + TAPS - 1  # 128 or 1024: the values of the convolution
BOUND = 1e-6  # of the norm-wise relative error; float32 rounds at 6e-8

# The same ffts_per_block and elements_per_thread give both transforms the same block and registers.
knobs = {"precision": "float32", "execution": "Block", "ffts_per_block": 2, "elements_per_thread": 8}
forward = nd.FFT(size=SIZE, fft_type="r2c", **knobs)
inverse = nd.FFT(size=SIZE, fft_type="c2r", **knobs)


@cuda.jit
def convolve(x, response, y):
    data = cuda.local.array(forward.storage_size, forward.value_type)
    scratch = nd.shared.array(forward.shared_memory_size, np.uint8)
    more_scratch = nd.shared.array(inverse.shared_memory_size, np.uint8)  # its own: no barrier in between
    forward.load(x, data)
    forward.execute(data, scratch)
    for i in range(forward.output_elements_per_thread):
        k = cuda.threadIdx.x + i * forward.stride
        if k < response.size:
            data[i] *= response[k]
    inverse.execute(data, more_scratch)
    inverse.store(data, y)


def heart_beats(rng: np.random.Generator) -> np.ndarray:
    """A sharp peak and a flat wave every 0.7 to 1.1 s, hum and noise; float32, one signal a row."""
    time = np.arange(SAMPLES) / RATE
    period, start = rng.uniform(0.7, 1.1, (2, SIGNALS, 1))
    phase = (time + start) % period
    beats = np.exp(-(((phase - 0.2) / 0.012) ** 2)) + 0.25 * np.exp(-(((phase - 0.45) / 0.05) ** 2))
    hum = 0.3 * np.sin(2 * np.pi * 50 * time)
    return (beats + hum + 0.02 * rng.standard_normal((SIGNALS, SAMPLES))).astype(np.float32)


def main() -> int:
    x = heart_beats(np.random.default_rng(5))
    n = np.arange(TAPS) - TAPS // 2
    taps = np.sinc(n * 2 * 30 / RATE) * np.hanning(TAPS + 2)[1:-1]  # a windowed low-pass, cut-off at 30 Hz
    taps /= taps.sum()
    response = (np.fft.rfft(taps, SIZE) / SIZE).astype(np.complex64)  # FFTs do not scale: 1 / SIZE goes here
    device_x, device_response = cuda.to_device(x), cuda.to_device(response)
    y = cuda.to_device(np.full((SIGNALS, SIZE), np.nan, np.float32))
    for launch in ("first launch, compilation included", "second launch"):
        start = perf_counter()
        convolve[-(-SIGNALS // forward.ffts_per_block), forward.block_dim](device_x, device_response, y)
        cuda.synchronize()
        print(f"time: {perf_counter() - start:.6f} s, {launch}")

    y = y.copy_to_host()
    expected = np.array([np.convolve(signal.astype(np.float64), taps) for signal in x])
    error = np.linalg.norm(y - expected) / np.linalg.norm(expected)
    inside = y[:, TAPS - 1 : SAMPLES]  # where the filter lies inside of the signal
    print(f"{SIGNALS} signals of {SAMPLES} samples, {TAPS} taps, FFT of {SIZE}")
    print(f"hum at 50 Hz: {amplitude(x, 50):.3f} before, {amplitude(inside, 50):.4f} after")
    print(f"error: {error:.1e} (at most {BOUND:.0e})")
    return 0 if error <= BOUND else 1


def amplitude(signals: np.ndarray, frequency: float) -> float:
    """Of one frequency, the mean over all signals, seen through a window."""
    window = np.hanning(signals.shape[1] + 2)[1:-1]
    wave = np.exp(-2j * np.pi * frequency / RATE * np.arange(signals.shape[1]))
    return 2 * np.abs(signals @ (window * wave) / window.sum()).mean()


if __name__ == "__main__":
    sys.exit(main())
