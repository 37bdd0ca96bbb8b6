# SPDX-License-Identifier: Apache-2.0
"""A program that ends with its first launch, for ``coldstart.py``: says when it had come how far, as JSON.

Clock times, in seconds since the epoch, so that they can be compared with when the process was started.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

what, path = sys.argv[1:]
laps: dict[str, float] = {"python": time.time()}
N = 32


def lap(name: str) -> None:
    laps[name] = time.time()


def make_context() -> None:
    """cuInit and the primary context, and nothing else."""
    import ctypes

    driver = ctypes.CDLL("libcuda.so.1")
    device, context = ctypes.c_int(), ctypes.c_void_p()
    for status in (
        driver.cuInit(0), driver.cuDeviceGet(ctypes.byref(device), 0),
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), driver.cuCtxSetCurrent(context),
    ):  # fmt: skip
        if status:
            raise RuntimeError(f"the CUDA driver answered {status}")
    lap("context")


def bare() -> None:
    lap("imports")
    make_context()


def our_gemm() -> None:
    import numpy as np
    from numba import cuda

    import nvmath_device as nd

    lap("imports")
    make_context()
    mm = nd.Matmul(
        size=(N, N, N), precision="float32", data_type="real", arrangement=("row_major",) * 3, block_size=128
    )

    @nd.jit
    def kernel(a: Any, b: Any, c: Any) -> None:
        sa = nd.shared.array(mm.a_size, mm.a_value_type)
        sb = nd.shared.array(mm.b_size, mm.b_value_type)
        sc = nd.shared.array(mm.c_size, mm.c_value_type)
        mm.load_a(a, sa)
        mm.load_b(b, sb)
        cuda.syncthreads()
        mm.execute(1.0, sa, sb, 0.0, sc)
        cuda.syncthreads()
        mm.store_c(sc, c)

    run_gemm(np, cuda, kernel, mm.block_size)


def peer_gemm() -> None:
    import numpy as np
    from numba import cuda
    from nvmath.device import Matmul

    lap("imports")
    make_context()
    mm = Matmul(
        size=(N, N, N), precision=np.float32, data_type="real", arrangement=("row_major",) * 3, execution="Block",
        block_size=128,
    )  # fmt: skip
    a_size, b_size, c_size = mm.a_size, mm.b_size, mm.c_size

    @cuda.jit
    def kernel(a: Any, b: Any, c: Any) -> None:
        sa = cuda.shared.array(a_size, np.float32)
        sb = cuda.shared.array(b_size, np.float32)
        sc = cuda.shared.array(c_size, np.float32)
        for i in range(cuda.threadIdx.x, N * N, cuda.blockDim.x):
            sa[i] = a[i // N, i % N]
            sb[i] = b[i // N, i % N]
        cuda.syncthreads()
        mm.execute(1.0, sa, sb, 0.0, sc)
        cuda.syncthreads()
        for i in range(cuda.threadIdx.x, N * N, cuda.blockDim.x):
            c[i // N, i % N] = sc[i]

    run_gemm(np, cuda, kernel, mm.block_dim)


def run_gemm(np: Any, cuda: Any, kernel: Any, block: Any) -> None:
    rng = np.random.default_rng()
    a, b = (rng.uniform(-1, 1, (N, N)).astype(np.float32) for _ in range(2))
    lap("made")
    da, db, dc = cuda.to_device(a), cuda.to_device(b), cuda.device_array((N, N), np.float32)
    lap("arrays")
    kernel[1, block](da, db, dc)
    cuda.synchronize()
    lap("launched")
    error = np.linalg.norm(dc.copy_to_host() - a.astype(float) @ b) / np.linalg.norm(a.astype(float) @ b)
    assert error < 1e-6, error


def our_eight() -> None:
    """One kernel that uses eight GEMM descriptors, one after the other: tiles of two sizes, depths and precisions."""
    import itertools

    import numpy as np
    from numba import cuda

    import nvmath_device as nd

    lap("imports")
    make_context()

    def tile_product(m: int, k: int, precision: str) -> tuple[Any, Any, Any]:
        mm = nd.Matmul(
            size=(m, m, k), precision=precision, data_type="real", arrangement=("row_major",) * 3, block_size=128
        )
        sizes = {"sa": mm.a_size, "sb": mm.b_size, "sc": mm.c_size}
        layout = nd.shared_layout(**{name: (precision, size) for name, size in sizes.items()})

        @cuda.jit(device=True)
        def multiply(a: Any, b: Any, c: Any) -> None:
            sa, sb, sc = layout.sa(), layout.sb(), layout.sc()
            mm.load_a(a[:m, :k], sa)
            mm.load_b(b[:k, :m], sb)
            cuda.syncthreads()
            mm.execute(1.0, sa, sb, 0.0, sc)
            cuda.syncthreads()
            mm.store_c(sc, c[:m, :m])
            cuda.syncthreads()

        return mm, layout, multiply

    cases = list(itertools.product((32, 64), (16, 32), ("float16", "float32")))
    products = [tile_product(*case) for case in cases]
    m0, m1, m2, m3, m4, m5, m6, m7 = (multiply for _, _, multiply in products)
    shared = max(layout.size for _, layout, _ in products)

    @nd.jit
    def kernel(half: Any, single: Any, half_out: Any, single_out: Any) -> None:
        m0(half[0], half[1], half_out[0])
        m1(single[0], single[1], single_out[0])
        m2(half[0], half[1], half_out[1])
        m3(single[0], single[1], single_out[1])
        m4(half[0], half[1], half_out[2])
        m5(single[0], single[1], single_out[2])
        m6(half[0], half[1], half_out[3])
        m7(single[0], single[1], single_out[3])

    rng = np.random.default_rng()
    given = {name: rng.uniform(-1, 1, (2, 64, 64)).astype(name) for name in ("float16", "float32")}
    lap("made")
    inputs = {name: cuda.to_device(x) for name, x in given.items()}
    outputs = {name: cuda.device_array((4, 64, 64), name) for name in given}
    lap("arrays")
    kernel[1, 128, 0, shared](*inputs.values(), *outputs.values())
    cuda.synchronize()
    lap("launched")
    found = {name: list(x.copy_to_host().astype(float)) for name, x in outputs.items()}
    for m, k, precision in cases:
        a, b = given[precision].astype(float)
        want, got = a[:m, :k] @ b[:k, :m], found[precision].pop(0)[:m, :m]
        error = np.linalg.norm(got - want) / np.linalg.norm(want)
        assert error < {"float16": 1e-3, "float32": 1e-6}[precision], (m, k, precision, error)


def our_pipelined() -> None:
    """A whole product by ``Matmul.multiply``."""
    import numpy as np
    from numba import cuda

    import nvmath_device as nd

    lap("imports")
    make_context()
    mm = nd.Matmul(
        size=(128, 256, 64), precision=("float16", "float16", "float32"), data_type="real",
        arrangement=("row_major", "col_major", "row_major"), block_size=256, alignment=nd.MAX_ALIGNMENT,
    )  # fmt: skip

    @nd.jit
    def kernel(a: Any, b: Any, c: Any) -> None:
        mm.multiply(a, b, cuda.blockIdx.x, cuda.blockIdx.y).store(c)

    rng = np.random.default_rng()
    a, b = (rng.uniform(-1, 1, (512, 512)).astype(np.float16) for _ in range(2))
    b = np.asfortranarray(b)
    lap("made")
    da, db, dc = cuda.to_device(a), cuda.to_device(b), cuda.device_array((512, 512), np.float32)
    lap("arrays")
    kernel[(4, 2), mm.block_dim, 0, mm.get_pipeline_storage_size()](da, db, dc)
    cuda.synchronize()
    lap("launched")
    want = a.astype(float) @ b.astype(float)
    error = np.linalg.norm(dc.copy_to_host() - want) / np.linalg.norm(want)
    assert error < 1e-5, error


def our_fft() -> None:
    import numpy as np
    from numba import cuda

    import nvmath_device as nd

    lap("imports")
    make_context()
    fft = nd.FFT(
        fft_type="c2c", size=128, precision="float32", direction="forward", execution="Block", ffts_per_block=2,
        elements_per_thread=8,
    )  # fmt: skip

    @nd.jit
    def kernel(x: Any, y: Any) -> None:
        values = cuda.local.array(fft.storage_size, fft.value_type)
        scratch = nd.shared.array(fft.shared_memory_size, np.uint8)
        fft.load(x, values)
        fft.execute(values, scratch)
        fft.store(values, y)

    rng = np.random.default_rng()
    x = (rng.uniform(-1, 1, (2, 128)) + 1j * rng.uniform(-1, 1, (2, 128))).astype(np.complex64)
    lap("made")
    dx, dy = cuda.to_device(x), cuda.device_array((2, 128), np.complex64)
    lap("arrays")
    kernel[1, fft.block_dim](dx, dy)
    cuda.synchronize()
    lap("launched")
    want = np.fft.fft(x.astype(np.complex128))
    error = np.linalg.norm(dy.copy_to_host() - want) / np.linalg.norm(want)
    assert error < 1e-6, error


{"bare": bare, "gemm": our_gemm, "fft": our_fft, "eight": our_eight, "pipelined": our_pipelined, "peer": peer_gemm}[
    what
]()
with open(path, "w") as file:
    json.dump(laps, file)
