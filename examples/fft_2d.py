# SPDX-License-Identifier: Apache-2.0
"""Two-dimensional FFTs of 16 x 64 values, one a block: along the rows, then along the columns.

Two descriptors share a kernel, and so one block of 4 x 16 threads. Four threads with 16 elements each
transform a row, all 16 rows at once; four threads with 4 elements each transform a column, 16 columns at
once, four times. In between the values lie in shared memory, whose transposed view makes columns of rows.

    python examples/fft_2d.py                                   # on a GPU: 2000 fields
    NUMBA_ENABLE_CUDASIM=1 python examples/fft_2d.py            # on Numba's simulator: 2 fields
"""

import sys
from time import perf_counter

import numpy as np
from numba import cuda

import nvmath_device as nd
from nvmath_device import simulation

FIELDS = 2 if simulation.is_active() else 2000
ROWS, COLUMNS = 16, 64
AT_ONCE = 16  # FFTs of a block, in both directions
PITCH = COLUMNS + 1  # so that the values of a column lie in different banks of shared memory
BOUND = 1e-6  # of the norm-wise relative error; float32 rounds at 6e-8

kind = {"precision": "float32", "fft_type": "c2c", "direction": "forward", "execution": "Block"}
along_rows = nd.FFT(size=COLUMNS, elements_per_thread=16, ffts_per_block=AT_ONCE, **kind)
along_columns = nd.FFT(size=ROWS, elements_per_thread=4, ffts_per_block=AT_ONCE, **kind)


@cuda.jit
def transform(x, y):
    row_scratch = nd.shared.array(along_rows.shared_memory_size, np.uint8)
    column_scratch = nd.shared.array(along_columns.shared_memory_size, np.uint8)
    field = nd.shared.array((ROWS, PITCH), along_rows.value_type)
    source, target = x[cuda.blockIdx.x], y[cuda.blockIdx.x]
    number = cuda.threadIdx.y

    row = cuda.local.array(along_rows.storage_size, along_rows.value_type)
    along_rows.load(source, row, number)
    along_rows.execute(row, row_scratch)
    along_rows.store(row, field, number)
    cuda.syncthreads()

    column = cuda.local.array(along_columns.storage_size, along_columns.value_type)
    for first in range(0, COLUMNS, AT_ONCE):
        along_columns.load(field.T, column, first + number)
        along_columns.execute(column, column_scratch)
        along_columns.store(column, target.T, first + number)
        cuda.syncthreads()  # before the scratch is used again


def main() -> int:
    rng = np.random.default_rng(7)
    x = rng.uniform(-1, 1, (FIELDS, ROWS, COLUMNS, 2)).astype(np.float32).view(np.complex64)[..., 0]
    device_x = cuda.to_device(x)
    y = cuda.to_device(np.full(x.shape, np.nan, np.complex64))
    for launch in ("first launch, compilation included", "second launch"):
        start = perf_counter()
        transform[FIELDS, along_rows.block_dim](device_x, y)
        cuda.synchronize()
        print(f"time: {perf_counter() - start:.6f} s, {launch}")

    expected = np.fft.fft2(x.astype(np.complex128))
    error = np.linalg.norm(y.copy_to_host() - expected) / np.linalg.norm(expected)
    print(f"{FIELDS} fields of {ROWS} x {COLUMNS}, block {tuple(along_rows.block_dim)}")
    print(f"error: {error:.1e} (at most {BOUND:.0e})")
    return 0 if error <= BOUND else 1


if __name__ == "__main__":
    sys.exit(main())
