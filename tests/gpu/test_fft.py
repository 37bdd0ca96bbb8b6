# SPDX-License-Identifier: Apache-2.0
"""FFTs of every type, precision and way of execution on a GPU, against numpy.fft in float64."""

from __future__ import annotations

import os

import numpy as np
import pytest

PRECISIONS = ("float16", "float32", "float64")
EPS = {"float16": 2.0**-11, "float32": 2.0**-24, "float64": 2.0**-53}
BLOCK_SIZES = (2, 3, 5, 7, 8, 16, 17, 31, 64, 100, 128, 243, 512, 1000, 1024, 4096)
THREAD_SIZES = (2, 3, 4, 7, 8, 16, 31, 32)


def block_cases():
    for i, size in enumerate(BLOCK_SIZES):
        for j, precision in enumerate(PRECISIONS):
            for kind in ("c2c", "c2c-inverse", "r2c", "c2r"):
                # Registers and shared memory, one FFT a block and several, take turns over the sizes.
                yield (
                    size,
                    precision,
                    kind,
                    "registers" if (i + j) % 3 else "shared",
                    (1, 2, "suggested")[(i + j) % 3],
                )


def thread_cases():
    for size in THREAD_SIZES:
        for precision in PRECISIONS:
            for kind in ("c2c", "c2c-inverse", "r2c", "c2r"):
                yield (size, precision, kind, "thread", None)


CASES = [*block_cases(), *thread_cases()]
LAYOUTS = [
    (layout, mode, kind, execution, precision)
    for layout in ("natural", "packed", "full")
    for mode in ("normal", "folded")
    for kind in ("r2c", "c2r")
    for execution in ("registers", "thread", "shared")
    for precision in ("float32", "float16")
]


def fft_of(size, precision, kind, execution, ffts_per_block, **more):
    import nvmath_device as nd

    block = execution != "thread"
    if block and precision == "float16" and ffts_per_block == 1:
        ffts_per_block = None
    return nd.FFT(
        size=size,
        precision=precision,
        fft_type=kind.split("-")[0],
        direction="inverse" if kind in ("c2c-inverse", "c2r") else "forward",
        execution="Block" if block else "Thread",
        ffts_per_block=ffts_per_block if block else None,
        **more,
    )


def recipes(fft, execution):
    from nvmath_device.lto.recipes import fft_recipe

    descriptor, sm = fft.resolved()
    return [fft_recipe(descriptor, sm=sm, api="SMEM" if execution == "shared" else "LMEM")]


@pytest.fixture(scope="module", autouse=True)
def generated(request):
    """Generate all missing code at once, on all cores; the tests then only link.

    Spread over several pytest processes the tests generate for themselves, each its own.
    """
    from nvmath_device.lto import codegen

    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    wanted = []
    for item in request.session.items:
        params = getattr(getattr(item, "callspec", None), "params", {})
        if item.module.__name__ != __name__:
            continue
        if "case" in params:
            wanted += recipes(fft_of(*params["case"]), params["case"][3])
        if "layout" in params:
            layout, mode, kind, execution, precision = params["layout"]
            options = {"complex_layout": layout, "real_mode": mode}
            size = 16 if execution == "thread" else 64
            wanted += recipes(fft_of(size, precision, kind, execution, 2, real_fft_options=options), execution)
    codegen.codes(wanted)


def run(fft, execution, x, y):
    """One kernel: load, execute, store, over as many blocks as x has rows to fill, the last one ragged."""
    from numba import cuda

    import nvmath_device as nd

    if execution == "registers":

        @cuda.jit
        def kernel(x, y):
            data = cuda.local.array(fft.storage_size, fft.value_type)
            scratch = nd.shared.array(fft.shared_memory_size, np.uint8)
            fft.load(x, data)
            fft.execute(data, scratch)
            fft.store(data, y)
    elif execution == "shared":

        @cuda.jit
        def kernel(x, y):
            data = nd.shared.array(words, fft.value_type)
            fft.load_shared(x, data)
            cuda.syncthreads()
            fft.execute(data)
            cuda.syncthreads()
            fft.store_shared(data, y)
    else:

        @cuda.jit
        def kernel(x, y):
            data = cuda.local.array(fft.storage_size, fft.value_type)
            fft.load(x, data)
            fft.execute(data)
            fft.store(data, y)

    rows = x.shape[0]
    dx, dy = cuda.to_device(x), cuda.to_device(y)
    if execution == "thread":
        kernel[-(-rows // (2 * fft.implicit_type_batching)), 2](dx, dy)
    else:
        words = -(-fft.shared_storage_size // fft.value_type.itemsize)
        kernel[-(-rows // fft.ffts_per_block), tuple(fft.block_dim)](dx, dy)
    return dy.copy_to_host()


def complex_of(precision):
    return np.complex128 if precision == "float64" else np.complex64


def real_of(precision):
    return np.float64 if precision == "float64" else np.float32


def representable(values, precision):
    """Rounded to what the transform will read, so that only the transform rounds."""
    if precision != "float16":
        return values
    if np.iscomplexobj(values):
        return values.real.astype(np.float16).astype(np.float32) + 1j * values.imag.astype(np.float16).astype(
            np.float32
        )
    return values.astype(np.float16).astype(np.float32)


def random_input(rng, kind, rows, size, precision):
    scale = 1.0 if precision != "float16" else 4.0 / np.sqrt(size)  # sums stay inside fp16
    if kind == "r2c":
        return representable((scale * rng.uniform(-1, 1, (rows, size))).astype(real_of(precision)), precision)
    columns = size // 2 + 1 if kind == "c2r" else size
    x = scale * (rng.uniform(-1, 1, (rows, columns)) + 1j * rng.uniform(-1, 1, (rows, columns)))
    if kind == "c2r":  # what a real signal's transform looks like
        x[:, 0] = x[:, 0].real
        if size % 2 == 0:
            x[:, -1] = x[:, -1].real
    return representable(x.astype(complex_of(precision)), precision)


def expected_of(x, kind, size):
    if kind == "c2c":
        return np.fft.fft(x.astype(np.complex128))
    if kind == "c2c-inverse":
        return np.fft.ifft(x.astype(np.complex128)) * size
    if kind == "r2c":
        return np.fft.rfft(x.astype(np.float64))
    return np.fft.irfft(x.astype(np.complex128), n=size) * size


def check(got, expected, precision, size):
    assert np.isfinite(got).all()
    error = np.linalg.norm(got - expected) / np.linalg.norm(expected)
    bound = EPS[precision] * (4 + 2 * np.log2(size))
    assert error <= bound, f"relative error {error:.2e} is above {bound:.2e}"


@pytest.mark.parametrize("case", CASES, ids=lambda c: "-".join(map(str, c)))
def test_fft(case):
    size, precision, kind, execution, _ = case
    fft = fft_of(*case)
    rng = np.random.default_rng(list(repr(case).encode()))
    rows = 3 if execution == "thread" else max(3, 2 * fft.ffts_per_block - 1)  # the last block is ragged
    x = random_input(rng, kind, rows, size, precision)
    expected = expected_of(x, kind, size)
    y = np.full((rows + 2, expected.shape[1]), np.nan, real_of(precision) if kind == "c2r" else complex_of(precision))
    got = run(fft, execution, x, y[:rows])
    check(got, expected, precision, size)


@pytest.mark.parametrize("layout", LAYOUTS, ids="-".join)
def test_real_layouts(layout):
    complex_layout, mode, kind, execution, precision = layout
    size = 16 if execution == "thread" else 64
    options = {"complex_layout": complex_layout, "real_mode": mode}
    fft = fft_of(size, precision, kind, execution, 2, real_fft_options=options)
    rng = np.random.default_rng(list(repr(layout).encode()))
    x = random_input(rng, kind, 4, size, precision)
    half = pack(x, complex_layout, size) if kind == "c2r" else x
    expected = expected_of(x, kind, size)
    stored = expected if kind == "c2r" else pack(expected, complex_layout, size)
    y = np.full(stored.shape, np.nan, real_of(precision) if kind == "c2r" else complex_of(precision))
    check(run(fft, execution, half, y), stored, precision, size)


def pack(spectrum, layout, size):
    """The N//2 + 1 values of a real signal's transform in one of cuFFTDx's complex layouts."""
    if layout == "natural":
        return spectrum
    if layout == "full":
        rest = np.conj(spectrum[:, 1 : size - size // 2][:, ::-1])
        return np.ascontiguousarray(np.concatenate([spectrum, rest], axis=1))
    packed = spectrum[:, : size // 2].copy()
    packed[:, 0] = spectrum[:, 0].real + 1j * spectrum[:, -1].real
    return packed


def test_views_of_any_axis_and_padding():
    """FFTs along the first axis of a transposed, stepped view, zero-padded: only strides differ."""
    size = 32
    fft = fft_of(size, "float32", "c2c", "registers", 4)
    rng = np.random.default_rng(5)
    x = (rng.uniform(-1, 1, (40, 18)) + 1j * rng.uniform(-1, 1, (40, 18))).astype(np.complex64)
    from numba import cuda

    import nvmath_device as nd

    @cuda.jit
    def kernel(x, y):
        data = cuda.local.array(fft.storage_size, fft.value_type)
        scratch = nd.shared.array(fft.shared_memory_size, np.uint8)
        fft.load(x[:40:2, ::3].T, data)  # 6 signals of 20 samples, padded to 32
        fft.execute(data, scratch)
        fft.store(data, y.T)

    dx, dy = cuda.to_device(x), cuda.to_device(np.zeros((size, 6), np.complex64))
    kernel[2, tuple(fft.block_dim)](dx, dy)
    check(dy.copy_to_host(), np.fft.fft(x[:40:2, ::3].astype(np.complex128), n=size, axis=0), "float32", size)


@pytest.mark.parametrize("thread_layout", ["regular", "transposed"])
def test_ids_agree_with_the_layout(thread_layout):
    """cuFFTDx's own fft_id and batch_id, and the copies that rely on them."""
    from numba import cuda

    import nvmath_device as nd

    size = 64
    fft = nd.FFT(
        size=size, precision="float32", fft_type="c2c", direction="forward", execution="Block", ffts_per_block=4,
        thread_layout=thread_layout,
    )  # fmt: skip
    stride = fft.stride

    @cuda.jit
    def kernel(x, y, ids):
        data = cuda.local.array(fft.storage_size, fft.value_type)
        scratch = nd.shared.array(fft.shared_memory_size, np.uint8)
        t, b = fft.fft_id(), fft.batch_id()
        ids[b, t] += 1 if fft.is_thread_active() else 100
        for i in range(fft.elements_per_thread):
            data[i] = x[b, t + i * stride]
        fft.execute(data, scratch)
        fft.store(data, y)

    rng = np.random.default_rng(6)
    x = (rng.uniform(-1, 1, (4, size)) + 1j * rng.uniform(-1, 1, (4, size))).astype(np.complex64)
    ids = cuda.to_device(np.zeros((4, stride), np.int32))
    dy = cuda.to_device(np.zeros_like(x))
    kernel[1, tuple(fft.block_dim)](cuda.to_device(x), dy, ids)
    np.testing.assert_array_equal(ids.copy_to_host(), 1)
    check(dy.copy_to_host(), np.fft.fft(x.astype(np.complex128)), "float32", size)
