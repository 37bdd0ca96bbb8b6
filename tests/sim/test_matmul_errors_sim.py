# SPDX-License-Identifier: Apache-2.0
"""What simulated GEMM kernels refuse, and that a call which some thread leaves out ends in an error."""

from __future__ import annotations

import numpy as np
import pytest
from numba import cuda

import nvmath_device as nd
from nvmath_device.errors import KernelExecutionError, KernelOnlyError, KernelTypingError

THREADS = 32
MM = nd.Matmul((2, 3, 4), "float32", "real", arrangement=("row_major",) * 3, block_size=THREADS)


def run(call, *, mm=MM, threads=THREADS, dtypes=("float32",) * 3, sizes=(8, 12, 6)):
    """Run ``call(mm, a, b, c)`` with three fresh shared arrays in every thread of one block."""

    @cuda.jit
    def kernel():
        a = nd.shared.array(sizes[0], dtypes[0])
        b = nd.shared.array(sizes[1], dtypes[1])
        c = nd.shared.array(sizes[2], dtypes[2])
        if cuda.threadIdx.x == 0:
            a[...] = b[...] = c[...] = 1
        cuda.syncthreads()
        call(mm, a, b, c)

    kernel[1, threads]()


def plain(mm, a, b, c):
    mm.execute(1.0, a, b, 0.0, c)


def test_the_plain_call_is_accepted():
    run(plain)


# -- the launch --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 31, 33, (8, 5)], ids=str)
def test_a_block_of_another_size(threads):
    with pytest.raises(KernelExecutionError, match=r"wants a launch with 32 threads a block.*got \d"):
        run(plain, threads=threads)


def test_static_block_dim_wants_the_very_shape():
    mm = nd.Matmul(
        (2, 3, 4), "float32", "real", arrangement=("row_major",) * 3, block_dim=(8, 4), static_block_dim=True
    )
    run(plain, mm=mm, threads=(8, 4))
    with pytest.raises(KernelExecutionError, match=r"blockDim \(8, 4, 1\), as static.*\(32, 1, 1\)"):
        run(plain, mm=mm, threads=32)


# -- typing ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda mm, a, b, c: mm.execute(1.0, a, b, c), r"takes \(alpha, a, b, beta, c\) or \(alpha, a, lda"),
        (lambda mm, a, b, c: mm.execute(1.0, a, b, 0.0, c, 3), "got 6 arguments"),
        (lambda mm, a, b, c: mm.execute(1.0, a, b, 0.0, d=c), "d=..."),
        (lambda mm, a, b, c: mm.execute(1.0, a, b, 0.0, c, c=c), "takes"),
        (lambda mm, a, b, c: mm.execute(1.0, 5, b, 0.0, c), "wants an array for a, got int"),
        (
            lambda mm, a, b, c: mm.execute(1.0, a.reshape(2, 2, 2), b, 0.0, c),
            "1-D or 2-D array for a, got 3-D",
        ),
        (lambda mm, a, b, c: mm.execute(1.0, a, b[::2], 0.0, c), "contiguous 1-D array for b .*8 bytes"),
        (
            lambda mm, a, b, c: mm.execute(1j, a, b, 0.0, c),
            "wants a real number for alpha, .*float32, got 1j",
        ),
        (lambda mm, a, b, c: mm.execute("1", a, b, 0.0, c), "wants a number for alpha"),
        (lambda mm, a, b, c: mm.execute(1.0, a, b, a, c), "wants a number for beta"),
        (lambda mm, a, b, c: mm.execute(1.0, a, 4.0, b, 3, 0.0, c, 3), "wants an integer for lda"),
        (
            lambda mm, a, b, c: mm.execute(1.0, a.reshape(4, 2).T, b, 0.0, c),
            r"row_major matrix for a.*strides of \(4, 8\).*x\.T",
        ),
    ],
)
def test_arguments_a_compiler_would_refuse(call, message):
    with pytest.raises(KernelTypingError, match=message):
        run(call)


@pytest.mark.parametrize("position", [0, 1, 2])
def test_a_wrong_element_type(position):
    dtypes = ["float32"] * 3
    dtypes[position] = "float64"
    name = "abc"[position]
    with pytest.raises(KernelTypingError, match=f"wants elements of float32 for {name}, got an array of float64"):
        run(plain, dtypes=dtypes)


def test_fp8_wants_bits():
    mm = nd.Matmul(
        (2, 3, 4),
        ("float8_e5m2", "float8_e5m2", "float32"),
        "real",
        arrangement=("row_major",) * 3,
        block_size=THREADS,
    )
    run(plain, mm=mm, dtypes=("uint8", nd.float8_e5m2, "float32"))
    with pytest.raises(KernelTypingError, match=r"float8_e5m2 \(as its bits, uint8.*got an array of int8"):
        run(plain, mm=mm, dtypes=("int8", "uint8", "float32"))


def test_a_float_scalar_for_integers():
    mm = nd.Matmul((2, 3, 4), ("int8", "int8", "int32"), "real", arrangement=("row_major",) * 3, block_size=THREADS)
    with pytest.raises(KernelTypingError, match=r"wants an integer for alpha, which becomes int32, got 1\.0"):
        run(plain, mm=mm, dtypes=("int8", "int8", "int32"))


def test_a_read_only_c():
    def call(mm, a, b, c):
        c = c[:]
        c.flags.writeable = False
        mm.execute(1.0, a, b, 0.0, c)

    with pytest.raises(KernelTypingError, match="cannot write c"):
        run(call)


# -- what only running code sees ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda mm, a, b, c: mm.execute(1.0, a[:7], b, 0.0, c), "wants at least 8 elements for a .*got 7"),
        (lambda mm, a, b, c: mm.execute(1.0, a, b[:11], 0.0, c), "wants at least 12 elements for b .*got 11"),
        (lambda mm, a, b, c: mm.execute(1.0, a, b, 0.0, c[:5]), "wants at least 6 elements for c .*got 5"),
        (
            lambda mm, a, b, c: mm.execute(1.0, a, 5, b, 3, 0.0, c, 3),
            "wants at least 9 elements for a .*got 8",
        ),
        (
            lambda mm, a, b, c: mm.execute(1.0, a, 3, b, 3, 0.0, c, 3),
            "wants at least 4 elements for lda .*got 3",
        ),
        (
            lambda mm, a, b, c: mm.execute(1.0, a.reshape(4, 2), b, 0.0, c),
            r"shape \(2, 4\) for a, got \(4, 2\)",
        ),
        (lambda mm, a, b, c: mm.execute(1.0, a.reshape(2, 4), 5, b, 3, 0.0, c, 3), "4 elements, got 5"),
        (
            lambda mm, a, b, c: mm.execute(1.0, a.reshape(2, 4)[::-1], b, 0.0, c),
            "rows of a that do not overlap",
        ),
        (lambda mm, a, b, c: mm.execute(1.0, a, b, 0.0, b[:6]), "shares no memory with b"),
        (lambda mm, a, b, c: mm.execute(1.0, a, b, 0.0, a[2:]), "shares no memory with a"),
    ],
)
def test_arguments_that_do_not_fit(call, message):
    with pytest.raises(KernelExecutionError, match=message):
        run(call)


def test_neighbours_in_one_buffer_do_not_overlap():
    run(lambda mm, a, b, c: mm.execute(1.0, a[:8], a[8:20], 0.0, a[20:]), sizes=(26, 1, 1))


def test_a_promised_alignment_is_held():
    mm = nd.Matmul(
        (2, 3, 4), "float32", "real", arrangement=("row_major",) * 3, block_size=THREADS, alignment=(16, 4, 4)
    )
    run(lambda mm, a, b, c: mm.execute(1.0, a[4:], b, 0.0, c), mm=mm, sizes=(12, 12, 6))
    with pytest.raises(KernelExecutionError, match=r"wants a at a multiple of 16 bytes.*starts 8 bytes behind"):
        run(lambda mm, a, b, c: mm.execute(1.0, a[2:], b, 0.0, c), mm=mm, sizes=(12, 12, 6))


def test_global_memory_is_no_shared_memory():
    @cuda.jit
    def kernel(a):
        b, c = nd.shared.array(12, "float32"), nd.shared.array(6, "float32")
        MM.execute(1.0, a, b, 0.0, c)

    with pytest.raises(KernelExecutionError, match="in shared memory for a, got an argument of the kernel"):
        kernel[1, THREADS](np.zeros(8, np.float32))


# -- all threads together ----------------------------------------------------------------------------------


def skipping(threads):
    def call(mm, a, b, c):
        if cuda.threadIdx.x not in threads:
            mm.execute(1.0, a, b, 0.0, c)

    return call


@pytest.mark.parametrize("threads", [(0,), (31,), (0, 1, 2)], ids=str)
def test_a_thread_that_returns_without_the_call(threads):
    message = (
        rf"called by {THREADS - len(threads)} of {THREADS} threads of block \(0, 0, 0\).*"
        rf"threadIdx \({threads[0]}, 0, 0\)"
    )
    with pytest.raises(KernelExecutionError, match=message):
        run(skipping(threads))


def test_a_thread_that_waits_at_another_barrier():
    def call(mm, a, b, c):
        if cuda.threadIdx.x != 2:
            mm.execute(1.0, a, b, 0.0, c)
        cuda.syncthreads()

    with pytest.raises(KernelExecutionError, match=r"called by 31 of 32 .*threadIdx \(2, 0, 0\) did not"):
        run(call)


def test_a_thread_that_leaves_a_loop_early():
    def call(mm, a, b, c):
        for _ in range(3 if cuda.threadIdx.x else 2):
            mm.execute(1.0, a, b, 0.0, c)

    with pytest.raises(KernelExecutionError, match="called by 31 of 32 threads"):
        run(call)


def test_threads_that_call_on_different_objects():
    other = nd.Matmul((3, 2, 4), "float32", "real", arrangement=("row_major",) * 3, block_size=THREADS)

    def call(mm, a, b, c):
        (mm if cuda.threadIdx.x < 2 else other).execute(1.0, a, b, 0.0, c)

    with pytest.raises(KernelExecutionError, match=r"call different things: .*Matmul.*Matmul"):
        run(call, sizes=(12, 12, 6))  # enough for both


def test_equal_objects_are_the_same():
    twin = nd.Matmul((2, 3, 4), "float32", "real", arrangement=("row_major",) * 3, block_size=THREADS)
    run(lambda mm, a, b, c: (mm if cuda.threadIdx.x < 2 else twin).execute(1.0, a, b, 0.0, c))


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda mm, a, b, c, t: mm.execute(1.0, a[t:], b, 0.0, c), "a"),
        (lambda mm, a, b, c, t: mm.execute(1.0, a, b, 0.0, c[t % 2 :]), "c"),
        (lambda mm, a, b, c, t: mm.execute(float(t), a, b, 0.0, c), "alpha"),
        (lambda mm, a, b, c, t: mm.execute(1.0, a, 4 + t, b, 3, 0.0, c, 3), "lda"),
    ],
    ids=["a", "c", "alpha", "lda"],
)
def test_threads_that_pass_different_arguments(call, name):
    with pytest.raises(KernelExecutionError, match=f"must pass the same {name}; threadIdx .* threadIdx"):
        run(lambda mm, a, b, c: call(mm, a, b, c, cuda.threadIdx.x), sizes=(150, 12, 7))


def test_local_memory_is_not_the_same_memory():
    def call(mm, a, b, c):
        mine = cuda.local.array(8, np.float32)
        mm.execute(1.0, mine, b, 0.0, c)

    with pytest.raises(KernelExecutionError, match="must pass the same a"):
        run(call)


def test_nan_scalars_are_the_same():
    run(lambda mm, a, b, c: mm.execute(float("nan"), a, b, 0.0, c))


@pytest.mark.parametrize("attempt", range(5))
def test_the_users_own_error_is_the_one_reported(attempt):
    def call(mm, a, b, c):
        if cuda.threadIdx.x == 1:
            raise LookupError("mine")
        mm.execute(1.0, a, b, 0.0, c)

    with pytest.raises(LookupError, match="mine"):
        run(call)


def test_the_next_launch_is_not_disturbed():
    with pytest.raises(KernelExecutionError):
        run(skipping((0,)))
    run(plain)


# -- copies ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x, s: MM.load_a(s, x), KernelTypingError, "2-D array for view, got 1-D"),
        (lambda x, s: MM.load_a(x), KernelTypingError, r"load_a takes \(view, smem\)"),
        (lambda x, s: MM.store_c(x, x), KernelExecutionError, "in shared memory for smem"),
        (lambda x, s: MM.load_b(x, s), KernelExecutionError, "at least 12 elements for smem"),
        (lambda x, s: MM.load_a(x, s.reshape(2, 5)[:, ::-1]), KernelTypingError, "row_major matrix for smem"),
        (lambda x, s: MM.load_a(x, s.reshape(5, 2)), KernelExecutionError, r"shape \(2, 4\) for smem"),
    ],
)
def test_copies_refuse(call, error, message):
    @cuda.jit
    def kernel(x):
        smem = nd.shared.array(10, "float32")
        call(x, smem)

    with pytest.raises(error, match=message):
        kernel[1, THREADS](np.zeros((2, 4), np.float32))


def test_a_copy_converts_nothing():
    @cuda.jit
    def kernel(x):
        MM.load_a(x, nd.shared.array(10, "float32"))

    with pytest.raises(KernelTypingError, match="wants elements of float32 for view, got an array of float64"):
        kernel[1, THREADS](np.zeros((2, 4)))


def test_the_host_is_no_kernel():
    x = np.zeros(99, np.float32)
    for call in (
        lambda: MM.execute(1.0, x, x, 0.0, x),
        lambda: MM.load_a(x.reshape(9, 11), x),
        lambda: MM.store_c(x, x.reshape(9, 11)),
        lambda: nd.shared.array(4, "float32"),
    ):
        with pytest.raises(KernelOnlyError, match="called on the host"):
            call()
