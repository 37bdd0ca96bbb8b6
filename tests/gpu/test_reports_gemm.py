# SPDX-License-Identifier: Apache-2.0
"""Cases people reported of GEMMs inside kernels, each on a GPU. The ids are those of tests/reports.json."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from numba import cuda

import nvmath_device as nd
from tests.gpu.values import to_device

ROWS = ("row_major", "row_major", "row_major")


def block_gemm(mm):
    """A one-block kernel: 2-D global operands through shared memory, C in and out."""

    @cuda.jit
    def kernel(alpha, a, b, beta, c):
        sa = nd.shared.array(mm.a_size, mm.a_value_type)
        sb = nd.shared.array(mm.b_size, mm.b_value_type)
        sc = nd.shared.array(mm.c_size, mm.c_value_type)
        mm.load_a(a, sa)
        mm.load_b(b, sb)
        mm.load_c(c, sc)
        cuda.syncthreads()
        mm.execute(alpha, sa, sb, beta, sc)
        cuda.syncthreads()
        mm.store_c(sc, c)

    return kernel


def multiply(mm, a, b, c, alpha=1, beta=0):
    out = to_device(c)
    block_gemm(mm)[1, mm.block_size](alpha, to_device(a), to_device(b), beta, out)
    return out.copy_to_host()


def relative(got, expected):
    return np.linalg.norm(got - expected) / np.linalg.norm(expected)


def test_r002_bf16_operands_accumulate_in_fp32():
    rng = np.random.default_rng(2)
    mm = nd.Matmul(
        size=(64, 64, 64), precision=("bfloat16", "bfloat16", "float32"), data_type="real", arrangement=ROWS,
        block_size=128,
    )  # fmt: skip
    tiles = 16
    a = rng.uniform(-1, 1, (64, 64 * tiles)).astype(ml_dtypes.bfloat16)
    b = rng.uniform(-1, 1, (64 * tiles, 64)).astype(ml_dtypes.bfloat16)

    @cuda.jit
    def kernel(a, b, c, steps):
        sa = nd.shared.array(mm.a_size, mm.a_value_type)
        sb = nd.shared.array(mm.b_size, mm.b_value_type)
        sc = nd.shared.array(mm.c_size, mm.c_value_type)
        for k in range(steps):
            cuda.syncthreads()
            mm.load_a(a[:, k * 64 : (k + 1) * 64], sa)
            mm.load_b(b[k * 64 : (k + 1) * 64, :], sb)
            cuda.syncthreads()
            mm.execute(1.0, sa, sb, 0.0 if k == 0 else 1.0, sc)
        cuda.syncthreads()
        mm.store_c(sc, c)

    for steps in (1, tiles):
        c = cuda.to_device(np.full((64, 64), np.nan, np.float32))
        kernel[1, 128](to_device(a), to_device(b), c, steps)
        k = 64 * steps
        expected = a[:, :k].astype(np.float64) @ b[:k].astype(np.float64)
        # A bfloat16 accumulator would lose all but 8 bits; fp32 keeps about 24 less those of the sum.
        assert relative(c.copy_to_host(), expected) < 2.0**-24 * k
    with pytest.raises(nd.errors.InvalidArgumentError, match="float32"):
        nd.Matmul(size=(64, 64, 64), precision="bfloat16", data_type="real", arrangement=ROWS)


def test_r003_one_buffer_is_both_operands():
    """X X^T and X^T X of a matrix stored transposed, with A and B the same shared buffer."""

    def of(arrangement):
        return nd.Matmul(size=(3, 3, 3), precision="float64", data_type="real", arrangement=arrangement, block_size=32)

    by_rows, by_columns = of(("row_major", "col_major", "row_major")), of(("col_major", "row_major", "row_major"))

    @cuda.jit
    def kernel(x, left, right):
        s = nd.shared.array(9, np.float64)
        p = nd.shared.array(9, np.float64)
        q = nd.shared.array(9, np.float64)
        i = cuda.threadIdx.x
        if i < 9:
            s[(i % 3) * 3 + i // 3] = x[i % 3, i // 3]  # written column by column
        cuda.syncthreads()
        by_rows.execute(1.0, s, s, 0.0, p)
        by_columns.execute(1.0, s, s, 0.0, q)
        cuda.syncthreads()
        if i < 9:
            left[i // 3, i % 3] = p[i]
            right[i // 3, i % 3] = q[i]

    x = np.random.default_rng(3).standard_normal((3, 3))
    left, right = (cuda.to_device(np.zeros((3, 3))) for _ in range(2))
    kernel[1, 32](cuda.to_device(x), left, right)
    np.testing.assert_allclose(left.copy_to_host(), x @ x.T, atol=1e-14)
    np.testing.assert_allclose(right.copy_to_host(), x.T @ x, atol=1e-14)


@pytest.mark.parametrize(("tile", "threads"), [((32, 32, 32), 128), ((8, 4, 8), 64)])
def test_r004_ragged_problem_leaves_everything_around_c_alone(tile, threads):
    m, k, n = 1000, 500, 1500
    tm, tn, tk = tile
    mm = nd.Matmul(size=tile, precision="float32", data_type="real", arrangement=ROWS, block_size=threads)

    @cuda.jit
    def kernel(a, b, c):
        sa = nd.shared.array(mm.a_size, np.float32)
        sb = nd.shared.array(mm.b_size, np.float32)
        sc = nd.shared.array(mm.c_size, np.float32)
        row, column = cuda.blockIdx.y * tm, cuda.blockIdx.x * tn
        for step in range((a.shape[1] + tk - 1) // tk):
            cuda.syncthreads()
            mm.load_a(a[row : row + tm, step * tk : (step + 1) * tk], sa)
            mm.load_b(b[step * tk : (step + 1) * tk, column : column + tn], sb)
            cuda.syncthreads()
            mm.execute(1.0, sa, sb, 0.0 if step == 0 else 1.0, sc)
        cuda.syncthreads()
        mm.store_c(sc, c[row : row + tm, column : column + tn])

    rng = np.random.default_rng(4)
    a, b = (rng.uniform(-1, 1, s).astype(np.float32) for s in ((m, k), (k, n)))
    around = cuda.to_device(np.full((m + 2, n + 2), 7.5, np.float32))
    kernel[(-(-n // tn), -(-m // tm)), threads](cuda.to_device(a), cuda.to_device(b), around[1:-1, 1:-1])
    got = around.copy_to_host()
    assert relative(got[1:-1, 1:-1], a.astype(np.float64) @ b.astype(np.float64)) < 2.0**-24 * k
    edge = np.ones_like(got, bool)
    edge[1:-1, 1:-1] = False
    assert (got[edge] == 7.5).all()


@pytest.mark.parametrize("a_order", ["row_major", "col_major"])
@pytest.mark.parametrize("b_order", ["row_major", "col_major"])
@pytest.mark.parametrize("data_type", ["real", "complex"])
def test_r009_all_arrangements(a_order, b_order, data_type):
    mm = nd.Matmul(
        size=(16, 32, 8), precision="float32", data_type=data_type, arrangement=(a_order, b_order, "row_major"),
        block_size=64,
    )  # fmt: skip
    rng = np.random.default_rng(9)
    kind = np.complex64 if data_type == "complex" else np.float32
    a, b, c = (random(rng, s, kind) for s in ((16, 8), (8, 32), (16, 32)))
    alpha, beta = (2 - 1j, 0.5 + 1j) if data_type == "complex" else (2.0, 0.5)
    expected = alpha * (a.astype(complex) @ b) + beta * c
    assert relative(multiply(mm, a, b, c, alpha, beta), expected) < 1e-6


def random(rng, shape, kind):
    x = rng.uniform(-1, 1, shape)
    return (
        (x + 1j * rng.uniform(-1, 1, shape)).astype(kind) if kind in (np.complex64, np.complex128) else x.astype(kind)
    )


@pytest.mark.parametrize("modes", [("conj_transposed", "non_transposed"), ("transposed", "conj_transposed")])
def test_r009_conjugate_transpose(modes):
    mm = nd.Matmul(size=(16, 32, 8), precision="float32", data_type="complex", transpose_mode=modes, block_size=64)
    rng = np.random.default_rng(10)
    a, b = random(rng, mm.a_dim, np.complex64), random(rng, mm.b_dim, np.complex64)
    c = np.full((16, 32), np.nan, np.complex64)
    op = {"non_transposed": lambda x: x, "transposed": lambda x: x.T, "conj_transposed": lambda x: x.conj().T}
    expected = op[modes[0]](a.astype(complex)) @ op[modes[1]](b.astype(complex))
    assert relative(multiply(mm, a, b, c), expected) < 1e-6


def test_r010_tf32_only_when_asked():
    rng = np.random.default_rng(11)
    # 20 significant bits: exact in fp32, not in tf32.
    a, b = (np.round(rng.uniform(-1, 1, (64, 64)) * 2**20).astype(np.float32) / 2**20 for _ in range(2))
    c = np.zeros((64, 64), np.float32)
    expected = a.astype(np.float64) @ b.astype(np.float64)

    def error(precision):
        mm = nd.Matmul(size=(64, 64, 64), precision=precision, data_type="real", arrangement=ROWS, block_size=128)
        return relative(multiply(mm, a, b, c), expected)

    assert error("float32") < 2e-6
    assert 1e-5 < error(("tfloat32", "tfloat32", "float32")) < 2e-3


def test_r010_how_tf32_reads_its_input():
    """The tensor core looks at the first ten bits after the point and drops the rest."""
    mm = nd.Matmul(
        size=(16, 16, 16), precision=("tfloat32", "tfloat32", "float32"), data_type="real", arrangement=ROWS,
        block_size=32,
    )  # fmt: skip
    x = np.float32(1 + 2.0**-10 + 2.0**-11 + 2.0**-12)  # to nearest 1 + 2 * 2**-10, cut off 1 + 2**-10
    a = np.eye(16, dtype=np.float32) * x
    got = multiply(mm, a, np.eye(16, dtype=np.float32), np.zeros((16, 16), np.float32))
    np.testing.assert_array_equal(np.diag(got), np.float32(1 + 2.0**-10))


@pytest.mark.parametrize("precision", ["float16", "float32", "float64"])
@pytest.mark.parametrize("size", [(1, 3, 7), (7, 17, 33), (33, 1, 17)])
def test_r012_odd_sizes_with_a_leading_dimension_of_their_own(precision, size):
    """Some compilers miscompile these with a static leading dimension; they must be right all the same."""
    m, n, k = size
    mm = nd.Matmul(
        size=size, precision=precision, data_type="real", arrangement=ROWS, leading_dimension=(k + 1, n + 3, n + 5),
        block_size=64,
    )  # fmt: skip
    rng = np.random.default_rng(12)
    a, b = random(rng, (m, k), precision), random(rng, (k, n), precision)
    got = multiply(mm, a, b, np.zeros((m, n), precision))
    assert relative(got, a.astype(np.float64) @ b.astype(np.float64)) < 40 * np.finfo(precision).eps


def test_r013_smallest_kernel():
    mm = nd.Matmul(size=(8, 8, 8), precision="float32", data_type="real", arrangement=ROWS, block_size=32)
    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    np.testing.assert_allclose(multiply(mm, x, x, np.zeros_like(x)), x @ x, rtol=1e-6)


@pytest.mark.parametrize("precision", ["float16", "float64"])
def test_r030_odd_bytes_before_the_buffers(precision):
    """A 3-byte array in front of Numba's own shared arrays does not misalign them."""
    complex_ = precision == "float64"
    mm = nd.Matmul(
        size=(16, 16, 16), precision=precision, data_type="complex" if complex_ else "real", arrangement=ROWS,
        block_size=32,
    )  # fmt: skip

    @cuda.jit
    def kernel(a, b, c):
        odd = cuda.shared.array(3, np.int8)
        sa = cuda.shared.array(mm.a_size, mm.a_value_type)
        sb = cuda.shared.array(mm.b_size, mm.b_value_type)
        sc = cuda.shared.array(mm.c_size, mm.c_value_type)
        odd[cuda.threadIdx.x % 3] = 1
        mm.load_a(a, sa)
        mm.load_b(b, sb)
        cuda.syncthreads()
        mm.execute(1.0, sa, sb, 0.0, sc)
        cuda.syncthreads()
        mm.store_c(sc, c)

    rng = np.random.default_rng(30)
    kind = np.complex128 if complex_ else np.float16
    a, b = random(rng, (16, 16), kind), random(rng, (16, 16), kind)
    c = cuda.to_device(np.zeros((16, 16), kind))
    kernel[1, 32](cuda.to_device(a), cuda.to_device(b), c)
    wide = complex if complex_ else np.float64
    assert relative(c.copy_to_host(), a.astype(wide) @ b.astype(wide)) < 20 * np.finfo(kind).eps


@pytest.mark.parametrize("static_bytes", [24, 3])
def test_r032_static_arrays_beside_dynamic_buffers(static_bytes):
    mm = nd.Matmul(
        size=(32, 32, 32), precision=("float16", "float16", "float32"), data_type="real", arrangement=ROWS,
        block_size=64, alignment=(16, 16, 16),
    )  # fmt: skip
    calc = nd.SharedStorageCalc()
    at_a, at_b, at_c = calc.add(16, 2, 1024), calc.add(16, 2, 1024), calc.add(16, 4, 1024)
    half_b, word_c = at_b // 2, at_c // 4
    assert at_a == 0

    @cuda.jit
    def kernel(a, b, c):
        static = cuda.shared.array(static_bytes, np.int8)
        halves = nd.shared.array(0, np.float16)
        words = nd.shared.array(0, np.float32)
        static[cuda.threadIdx.x % static_bytes] = 1
        sa, sb, sc = halves[:1024], halves[half_b : half_b + 1024], words[word_c : word_c + 1024]
        mm.load_a(a, sa)
        mm.load_b(b, sb)
        cuda.syncthreads()
        mm.execute(1.0, sa, sb, 0.0, sc)
        cuda.syncthreads()
        mm.store_c(sc, c)

    rng = np.random.default_rng(32)
    a, b = random(rng, (32, 32), np.float16), random(rng, (32, 32), np.float16)
    c = cuda.to_device(np.zeros((32, 32), np.float32))
    kernel[1, 64, 0, calc.get()](cuda.to_device(a), cuda.to_device(b), c)
    assert relative(c.copy_to_host(), a.astype(np.float64) @ b.astype(np.float64)) < 1e-5


@pytest.mark.parametrize("alpha", [np.float16(0.5), 0.5, np.float64(0.5)])
def test_r033_half_scalars_are_converted(alpha):
    mm = nd.Matmul(size=(8, 8, 8), precision="float16", data_type="real", arrangement=ROWS, block_size=32)
    rng = np.random.default_rng(33)
    a, b = random(rng, (8, 8), np.float16), random(rng, (8, 8), np.float16)
    c = random(rng, (8, 8), np.float16)
    expected = 0.5 * (a.astype(np.float64) @ b.astype(np.float64)) + 2 * c.astype(np.float64)
    assert relative(multiply(mm, a, b, c, alpha, 2), expected) < 2e-3


@pytest.mark.parametrize("kind", [np.complex64, np.complex128])
def test_r035_complex_scalars_keep_their_imaginary_parts(kind):
    precision = "float32" if kind is np.complex64 else "float64"
    mm = nd.Matmul(size=(8, 8, 8), precision=precision, data_type="complex", arrangement=ROWS, block_size=32)
    rng = np.random.default_rng(35)
    a, b, c = (random(rng, (8, 8), kind) for _ in range(3))
    expected = (1 + 2j) * (a.astype(complex) @ b) + (0.5 - 1j) * c
    assert relative(multiply(mm, a, b, c, 1 + 2j, 0.5 - 1j), expected) < 20 * np.finfo(kind).eps


def test_a_sub_view_of_a_wider_tile_uses_its_own_strides():
    mm = nd.Matmul(size=(8, 8, 8), precision="float32", data_type="real", arrangement=ROWS, block_size=32)

    @cuda.jit
    def kernel(a, b, c):
        wide = nd.shared.array((16, 24), np.float32)
        sc = nd.shared.array(mm.c_size, np.float32)
        mm.load_a(a, wide[4:12, 3:11])
        mm.load_b(b, wide[4:12, 13:21])
        cuda.syncthreads()
        mm.execute(1.0, wide[4:12, 3:11], wide[4:12, 13:21], 0.0, sc)
        cuda.syncthreads()
        mm.store_c(sc, c)

    rng = np.random.default_rng(36)
    a, b = random(rng, (8, 8), np.float32), random(rng, (8, 8), np.float32)
    c = cuda.to_device(np.zeros((8, 8), np.float32))
    kernel[1, 32](cuda.to_device(a), cuda.to_device(b), c)
    assert relative(c.copy_to_host(), a.astype(np.float64) @ b) < 1e-6


def test_beta_zero_does_not_read_c():
    mm = nd.Matmul(size=(8, 8, 8), precision="float32", data_type="real", arrangement=ROWS, block_size=32)
    x = np.eye(8, dtype=np.float32)
    got = multiply(mm, x, x, np.full((8, 8), np.nan, np.float32), 1.0, 0.0)
    np.testing.assert_array_equal(got, x)
