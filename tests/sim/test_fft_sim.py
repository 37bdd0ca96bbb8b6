# SPDX-License-Identifier: Apache-2.0
"""Simulated FFTs against float64 NumPy, in all forms, types and layouts."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numba import cuda

import nvmath_device as nd
from nvmath_device.numba_backend.simulator_fft import gather, scatter

GUARD = -99.0
COMPLEX = {"float16": np.complex64, "float32": np.complex64, "float64": np.complex128}
REAL = {"float16": np.float16, "float32": np.float32, "float64": np.float64}
BOUND = {"float16": 2e-3, "float32": 1e-6, "float64": 1e-14}


# -- what is expected, in float64 --------------------------------------------------------------------------


def spectrum(signal, layout):
    """The FFT of real rows in one of cuFFTDx's complex layouts."""
    full = np.fft.fft(signal)
    n = signal.shape[1]
    if layout == "full":
        return full
    if layout == "natural":
        return full[:, : n // 2 + 1]
    packed = full[:, : n // 2].copy()
    packed[:, 0] = full[:, 0].real + 1j * full[:, n // 2].real
    return packed


def data(rng, fft_type, direction, rows, n, layout="natural"):
    """Input rows and the rows they become."""
    real = rng.uniform(-1, 1, (rows, n))
    if fft_type == "r2c":
        return real, spectrum(real, layout)
    if fft_type == "c2r":
        return spectrum(real, layout), n * real
    x = real + 1j * rng.uniform(-1, 1, (rows, n))
    return x, np.fft.fft(x) if direction == "forward" else n * np.fft.ifft(x)


def stored(rows, precision):
    kinds = COMPLEX if np.iscomplexobj(rows) else REAL
    return rows.astype(kinds[precision])


def error(got, wanted):
    wide = np.complex128 if np.iscomplexobj(wanted) else np.float64
    return np.linalg.norm(got.astype(wide) - wanted) / np.linalg.norm(wanted)


# -- kernels -----------------------------------------------------------------------------------------------


def register_kernel(fft):
    scratch = max(fft.shared_memory_size or 0, 16)
    is_block = fft.execution == "Block"

    @cuda.jit
    def kernel(source, target):
        thread_data = cuda.local.array(fft.storage_size, fft.value_type)
        fft.load(source, thread_data)
        if is_block:
            fft.execute(thread_data, nd.shared.array(scratch, "uint8"))
        else:
            fft.execute(thread_data)
        fft.store(thread_data, target[1:-1, 1:-2])

    return kernel


def shared_kernel(fft):
    size = -(-fft.shared_storage_size // fft.value_type.itemsize)

    @cuda.jit
    def kernel(source, target):
        shared_mem = nd.shared.array(size, fft.value_type)
        fft.load_shared(source, shared_mem)
        cuda.syncthreads()
        fft.execute(shared_mem)
        cuda.syncthreads()
        fft.store_shared(shared_mem, target[1:-1, 1:-2])

    return kernel


def run(fft, kernel, source, like):
    """Launch with enough blocks for all rows; the result, out of a larger, guarded target."""
    block = fft.block_dim or nd.Dim3(2)
    per_block = fft.ffts_per_block or fft.implicit_type_batching * block.size
    target = np.full((len(like) + 2, like.shape[1] + 3), GUARD, like.dtype)
    kernel[-(-len(source) // per_block), tuple(block)](source, target)
    got = target[1:-1, 1:-2].copy()
    target[1:-1, 1:-2] = GUARD
    assert (target == GUARD).all()  # nothing around it was written
    return got


def check(fft, kernel, fft_type, precision, *, rows, layout="natural", seed=0):
    source, wanted = data(np.random.default_rng(seed), fft_type, fft.direction, rows, fft.size, layout)
    like = stored(wanted, precision)
    got = run(fft, kernel, stored(source, precision), like)
    assert error(got, wanted) < BOUND[precision]


# -- between registers and whole FFTs ----------------------------------------------------------------------


@pytest.mark.parametrize(("length", "stride", "groups"), [(8, 4, 2), (7, 3, 1), (5, 8, 3), (1, 1, 1), (64, 8, 2)])
def test_gather_and_scatter(length, stride, groups):
    per_thread = -(-length // stride)
    registers = {
        (t, g): np.array([1000 * g + t + i * stride for i in range(per_thread)])
        for t in range(stride)
        for g in range(groups)
    }
    rows = gather(registers, groups=groups, stride=stride, length=length)
    assert rows.tolist() == [[1000 * g + k for k in range(length)] for g in range(groups)]
    scatter(-rows, registers, stride=stride)
    for (t, g), own in registers.items():
        for i, value in enumerate(own):
            k = t + i * stride
            assert value == (-1 if k < length else 1) * (1000 * g + k)


# -- complex to complex ------------------------------------------------------------------------------------


@pytest.mark.parametrize("direction", ["forward", "inverse"])
@pytest.mark.parametrize("precision", ["float16", "float32", "float64"])
@pytest.mark.parametrize("size", [2, 3, 8, 17, 60, 64])
def test_c2c_in_registers(size, precision, direction):
    fft = nd.FFT(size, precision, "c2c", "Block", direction=direction, ffts_per_block=2)
    check(fft, register_kernel(fft), "c2c", precision, rows=3)


@pytest.mark.parametrize("elements", [4, 8, 16])
@pytest.mark.parametrize("thread_layout", ["regular", "transposed"])
def test_several_threads_share_an_fft(elements, thread_layout):
    fft = nd.FFT(
        64, "float32", "c2c", "Block", direction="forward", ffts_per_block=2, elements_per_thread=elements,
        thread_layout=thread_layout,
    )  # fmt: skip
    assert fft.stride == 64 // elements
    check(fft, register_kernel(fft), "c2c", "float32", rows=5)


def test_loads_written_by_hand():
    fft = nd.FFT(32, "float32", "c2c", "Block", direction="forward", ffts_per_block=2, elements_per_thread=8)
    stride = 32 // 8

    @cuda.jit
    def kernel(source, target):
        thread_data = cuda.local.array(fft.storage_size, fft.value_type)
        shared_mem = cuda.shared.array(fft.shared_memory_size // 8 + 1, fft.value_type)
        row = cuda.blockIdx.x * 2 + cuda.threadIdx.y
        for i in range(fft.elements_per_thread):
            thread_data[i] = source[row, cuda.threadIdx.x + i * stride]
        fft.execute(thread_data, shared_mem)
        for i in range(fft.elements_per_thread):
            target[row, cuda.threadIdx.x + i * stride] = thread_data[i]

    x, wanted = data(np.random.default_rng(1), "c2c", "forward", 4, 32)
    target = np.zeros((4, 32), np.complex64)
    kernel[2, (4, 2)](x.astype(np.complex64), target)
    assert error(target, wanted) < 1e-6


def test_float16_pairs_written_by_hand():
    fft = nd.FFT(8, "float16", "c2c", "Block", direction="forward", elements_per_thread=4)

    @cuda.jit
    def kernel(source, target):
        thread_data = cuda.local.array(4 * fft.storage_size, np.dtype(np.float16))
        shared_mem = nd.shared.array(fft.shared_memory_size + 16, "uint8")
        for i in range(fft.elements_per_thread):
            k = cuda.threadIdx.x + i * fft.stride
            thread_data[4 * i] = source[0, k].real
            thread_data[4 * i + 1] = source[1, k].real
            thread_data[4 * i + 2] = source[0, k].imag
            thread_data[4 * i + 3] = source[1, k].imag
        fft.execute(thread_data, shared_mem)
        for i in range(fft.elements_per_thread):
            k = cuda.threadIdx.x + i * fft.stride
            target[0, k] = complex(thread_data[4 * i], thread_data[4 * i + 2])
            target[1, k] = complex(thread_data[4 * i + 1], thread_data[4 * i + 3])

    x, wanted = data(np.random.default_rng(2), "c2c", "forward", 2, 8)
    target = np.zeros((2, 8), np.complex64)
    kernel[1, tuple(fft.block_dim)](x.astype(np.complex64), target)
    assert error(target, wanted) < BOUND["float16"]


def test_forward_then_inverse_is_size_times_the_input():
    forward, inverse = (
        nd.FFT(16, "float64", "c2c", "Block", direction=d, ffts_per_block=1, elements_per_thread=4)
        for d in ("forward", "inverse")
    )

    @cuda.jit
    def kernel(x):
        thread_data = cuda.local.array(forward.storage_size, forward.value_type)
        scratch = nd.shared.array(4096, "uint8")
        forward.load(x, thread_data)
        forward.execute(thread_data, scratch)
        cuda.syncthreads()
        inverse.execute(thread_data, scratch)
        inverse.store(thread_data, x)

    x = np.random.default_rng(3).uniform(-1, 1, (2, 16)) + 0.5j
    got = x.copy()
    kernel[2, tuple(forward.block_dim)](got)
    assert error(got, 16 * x) < 1e-14


# -- real --------------------------------------------------------------------------------------------------

LAYOUTS = list(itertools.product(("natural", "packed", "full"), ("normal", "folded")))


@pytest.mark.parametrize("execution", ["Block", "Thread"])
@pytest.mark.parametrize("precision", ["float16", "float32"])
@pytest.mark.parametrize("fft_type", ["r2c", "c2r"])
@pytest.mark.parametrize("options", LAYOUTS, ids="-".join)
def test_real_ffts(options, fft_type, precision, execution):
    layout, mode = options
    fft = nd.FFT(16, precision, fft_type, execution, real_fft_options={"complex_layout": layout, "real_mode": mode})
    check(fft, register_kernel(fft), fft_type, precision, rows=3, layout=layout)


@pytest.mark.parametrize("fft_type", ["r2c", "c2r"])
@pytest.mark.parametrize("size", [3, 7, 12, 30])
def test_real_ffts_of_other_sizes(size, fft_type):
    fft = nd.FFT(size, "float64", fft_type, "Block", ffts_per_block=2)
    check(fft, register_kernel(fft), fft_type, "float64", rows=3)


@pytest.mark.parametrize("fft_type", ["r2c", "c2r"])
def test_real_ffts_of_several_threads(fft_type):
    fft = nd.FFT(32, "float32", fft_type, "Block", ffts_per_block=2, elements_per_thread=8)
    assert fft.block_dim == (4, 2, 1)
    check(fft, register_kernel(fft), fft_type, "float32", rows=3)


def test_real_input_written_by_hand():
    fft = nd.FFT(16, "float32", "r2c", "Block", elements_per_thread=4)

    @cuda.jit
    def kernel(source, target):
        thread_data = cuda.local.array(2 * fft.storage_size, np.dtype(np.float32))  # components
        shared_mem = nd.shared.array(fft.shared_memory_size + 16, "uint8")
        t = cuda.threadIdx.x
        for i in range(fft.input_elements_per_thread):
            if t + i * fft.stride < 16:
                thread_data[i] = source[t + i * fft.stride]
        fft.execute(thread_data, shared_mem)
        for i in range(fft.output_elements_per_thread):
            if t + i * fft.stride < 9:
                target[t + i * fft.stride] = complex(thread_data[2 * i], thread_data[2 * i + 1])

    x = np.random.default_rng(4).uniform(-1, 1, 16).astype(np.float32)
    target = np.zeros(9, np.complex64)
    kernel[1, tuple(fft.block_dim)](x, target)
    assert error(target, np.fft.fft(x.astype(float))[:9]) < 1e-6


# -- other forms -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["float16", "float32", "float64"])
@pytest.mark.parametrize("fft_type", ["c2c", "r2c", "c2r"])
def test_execution_on_shared_memory(fft_type, precision):
    direction = "inverse" if fft_type == "c2r" else "forward"
    fft = nd.FFT(16, precision, fft_type, "Block", direction=direction, ffts_per_block=4, elements_per_thread=4)
    check(fft, shared_kernel(fft), fft_type, precision, rows=5)


def test_shared_data_is_one_fft_after_the_other():
    fft = nd.FFT(8, "float32", "c2c", "Block", direction="forward", ffts_per_block=2, elements_per_thread=4)

    @cuda.jit
    def kernel(x):
        shared_mem = nd.shared.array(2 * 8 + 100, np.complex64)
        t = cuda.threadIdx.x + cuda.blockDim.x * cuda.threadIdx.y
        for i in range(t, 16, cuda.blockDim.x * cuda.blockDim.y):
            shared_mem[i] = x[i]
        cuda.syncthreads()
        fft.execute(shared_mem)
        cuda.syncthreads()
        for i in range(t, 16, cuda.blockDim.x * cuda.blockDim.y):
            x[i] = shared_mem[i]

    x = (np.random.default_rng(5).uniform(-1, 1, 16) + 0.25j).astype(np.complex64)
    got = x.copy()
    kernel[1, tuple(fft.block_dim)](got)
    assert error(got.reshape(2, 8), np.fft.fft(x.reshape(2, 8).astype(complex))) < 1e-6


@pytest.mark.parametrize("precision", ["float16", "float32", "float64"])
@pytest.mark.parametrize("size", [2, 5, 16])
def test_c2c_of_single_threads(size, precision):
    fft = nd.FFT(size, precision, "c2c", "Thread", direction="inverse")
    check(fft, register_kernel(fft), "c2c", precision, rows=5)


# -- load and store ----------------------------------------------------------------------------------------


def transform(fft, source, target, *, index=None, blocks=1):
    scratch = fft.shared_memory_size + 16

    @cuda.jit
    def kernel(source, target):
        thread_data = cuda.local.array(fft.storage_size, fft.value_type)
        if index is None:
            fft.load(source, thread_data)
        else:
            fft.load(source, thread_data, index)
        fft.execute(thread_data, nd.shared.array(scratch, "uint8"))
        fft.store(thread_data, target, index=index) if index is not None else fft.store(thread_data, target)

    kernel[blocks, tuple(fft.block_dim)](source, target)


def test_columns_rows_beyond_the_array_and_zero_padding():
    fft = nd.FFT(16, "float32", "c2c", "Block", direction="forward", ffts_per_block=4, elements_per_thread=4)
    x = np.random.default_rng(6).uniform(-1, 1, (11, 3)).astype(np.complex64)  # 3 FFTs of 11 points, as columns
    target = np.full((9, 20), GUARD, np.complex64)

    @cuda.jit
    def kernel(source, target):
        thread_data = cuda.local.array(fft.storage_size, fft.value_type)
        fft.load(source.T, thread_data)
        fft.execute(thread_data, nd.shared.array(fft.shared_memory_size + 16, "uint8"))
        fft.store(thread_data, target[1:4, 2:15])

    kernel[1, tuple(fft.block_dim)](x, target)
    wanted = np.fft.fft(x.T.astype(complex), n=16)[:, :13]
    assert error(target[1:4, 2:15], wanted) < 1e-6
    target[1:4, 2:15] = GUARD
    assert (target == GUARD).all()


@pytest.mark.parametrize("source_type", [np.float16, np.float32, np.float64, np.complex64, np.complex128])
def test_load_converts(source_type):
    fft = nd.FFT(8, "float32", "c2c", "Block", direction="forward")
    x = np.random.default_rng(7).uniform(-1, 1, (1, 8)).astype(source_type)
    target = np.zeros((1, 8), np.complex128)
    transform(fft, x, target)
    assert error(target, np.fft.fft(x.astype(complex))) < 1e-6


def test_records_of_two_halves():
    half2 = np.dtype([("x", np.float16), ("y", np.float16)])
    fft = nd.FFT(8, "float16", "c2c", "Block", direction="forward")
    x = np.random.default_rng(8).uniform(-1, 1, (2, 8, 2)).astype(np.float16)
    target = np.zeros((2, 8), half2)
    transform(fft, x.view(half2)[..., 0], target)
    wanted = np.fft.fft(x[..., 0].astype(float) + 1j * x[..., 1].astype(float))
    assert error(target["x"].astype(float) + 1j * target["y"].astype(float), wanted) < BOUND["float16"]


@pytest.mark.parametrize("index", [0, 2, np.int64(3)])
def test_an_index_names_the_row(index):
    fft = nd.FFT(8, "float32", "c2c", "Block", direction="forward")
    x, wanted = data(np.random.default_rng(9), "c2c", "forward", 4, 8)
    target = np.full((4, 8), GUARD, np.complex64)
    transform(fft, x.astype(np.complex64), target, index=index)
    assert error(target[index], wanted[index]) < 1e-6
    target[index] = GUARD
    assert (target == GUARD).all()


# -- indices -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("thread_layout", ["regular", "transposed"])
def test_indices_of_threads(thread_layout):
    fft = nd.FFT(
        32, "float32", "c2c", "Block", direction="forward", ffts_per_block=2, elements_per_thread=8,
        thread_layout=thread_layout,
    )  # fmt: skip

    @cuda.jit
    def kernel(out):
        out.append((cuda.threadIdx.x, cuda.threadIdx.y, fft.fft_id(), fft.batch_id(), bool(fft.is_thread_active())))

    out = []
    kernel[1, tuple(fft.block_dim)](out)
    inner, outer = (0, 1) if thread_layout == "regular" else (1, 0)
    assert len(out) == 8
    assert all(row[2] == row[inner] and row[3] == row[outer] and row[4] for row in out)
    assert {(row[2], row[3]) for row in out} == set(itertools.product(range(4), range(2)))


def test_indices_of_single_threads():
    fft = nd.FFT(8, "float32", "c2c", "Thread", direction="forward")

    @cuda.jit
    def kernel(out):
        out.append((fft.fft_id(), fft.batch_id(), bool(fft.is_thread_active())))

    out = []
    kernel[1, 3](out)
    assert out == [(0, 0, True)] * 3


# -- scratch -----------------------------------------------------------------------------------------------


def test_scratch_does_not_keep_what_it_held():
    fft = nd.FFT(64, "float32", "c2c", "Block", direction="forward", elements_per_thread=8)
    size = fft.shared_memory_size
    assert size > 0

    @cuda.jit
    def kernel(source, target, kept):
        thread_data = cuda.local.array(fft.storage_size, fft.value_type)
        shared_mem = nd.shared.array(size // 4 + 5, "float32")
        if cuda.threadIdx.x == 0:
            shared_mem[...] = 3
        fft.load(source, thread_data)
        cuda.syncthreads()
        fft.execute(thread_data, shared_mem)
        fft.store(thread_data, target)
        if cuda.threadIdx.x == 0:
            for i in range(len(shared_mem)):
                kept[i] = shared_mem[i]

    kept = np.zeros(size // 4 + 5, np.float32)
    kernel[1, tuple(fft.block_dim)](np.ones((1, 64), np.float32), np.zeros((1, 64), np.complex64), kept)
    assert np.isnan(kept[: size // 4]).all()
    assert (kept[-5:] == 3).all()
