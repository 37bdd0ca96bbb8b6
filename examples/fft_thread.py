# SPDX-License-Identifier: Apache-2.0
"""An FFT in every thread: the spectrum of each short window of a sound whose pitch rises.

A Thread FFT lives in the registers of one thread: no shared memory, no barrier, any number of threads. What
is stored is not the transform but its power, computed on the way.

    python examples/fft_thread.py                               # on a GPU: 100000 windows of 16 samples
    NUMBA_ENABLE_CUDASIM=1 python examples/fft_thread.py        # on Numba's simulator: 50 windows
"""

import sys
from time import perf_counter

import numpy as np
from numba import cuda

import nvmath_device as nd
from nvmath_device import simulation

WINDOWS, THREADS = (50, 16) if simulation.is_active() else (100_000, 128)
SIZE = 16
BOUND = 1e-6  # of the norm-wise relative error; float32 rounds at 6e-8

fft = nd.FFT(size=SIZE, precision="float32", fft_type="c2c", direction="forward", execution="Thread")


@cuda.jit
def spectrogram(x, power):
    data = cuda.local.array(fft.storage_size, fft.value_type)
    fft.load(x, data)  # row number cuda.grid(1); zeros if there is none
    fft.execute(data)
    window = cuda.grid(1)
    if window < power.shape[0]:
        for k in range(fft.size):
            power[window, k] = data[k].real * data[k].real + data[k].imag * data[k].imag


def main() -> int:
    time = np.arange(WINDOWS * SIZE)
    pitch = 0.4 * time / time.size  # cycles a sample, from 0 to 0.4
    rng = np.random.default_rng(6)
    sound = np.exp(2j * np.pi * np.cumsum(pitch)) + 0.1 * rng.standard_normal(time.size)
    x = sound.astype(np.complex64).reshape(WINDOWS, SIZE)
    device_x = cuda.to_device(x)
    power = cuda.to_device(np.full((WINDOWS, SIZE), np.nan, np.float32))
    for launch in ("first launch, compilation included", "second launch"):
        start = perf_counter()
        spectrogram[-(-WINDOWS // THREADS), THREADS](device_x, power)
        cuda.synchronize()
        print(f"time: {perf_counter() - start:.6f} s, {launch}")

    power = power.copy_to_host()
    expected = np.abs(np.fft.fft(x.astype(np.complex128))) ** 2
    error = np.linalg.norm(power - expected) / np.linalg.norm(expected)
    print(f"{WINDOWS} windows, one a thread; loudest of {SIZE} bins at the begin, in the middle, at the end:",
          *power[[0, WINDOWS // 2, -1]].argmax(axis=1))  # fmt: skip
    print(f"error: {error:.1e} (at most {BOUND:.0e})")
    return 0 if error <= BOUND else 1


if __name__ == "__main__":
    sys.exit(main())
