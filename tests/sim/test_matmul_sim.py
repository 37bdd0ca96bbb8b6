# SPDX-License-Identifier: Apache-2.0
"""Numerics of simulated GEMMs against float64 NumPy."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest
from numba import cuda

import nvmath_device as nd
from tests.sim.gemm_kernels import gemm_kernel, norm_error, packed, unpacked

THREADS = 32
ORDERS = ("col_major", "row_major")
NAN = float("nan")


def random_matrix(rng, shape, dtype):
    dtype = np.dtype(dtype)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)
    if dtype.kind == "c":
        return (rng.uniform(-1, 1, shape) + 1j * rng.uniform(-1, 1, shape)).astype(dtype)
    return rng.uniform(-1, 1, shape).astype(dtype)


def test_smallest_gemm():
    mm = nd.Matmul((1, 1, 1), "float32", "real", arrangement=("col_major",) * 3, block_size=THREADS)
    a, b, c = (np.array([x], np.float32) for x in (3, 5, NAN))
    gemm_kernel(mm)[1, THREADS](2.0, a, b, 0.0, c)
    assert c[0] == 30


@pytest.mark.parametrize("size", [(1, 3, 7), (7, 1, 3), (17, 3, 1), (3, 17, 7), (7, 7, 17)], ids=str)
@pytest.mark.parametrize("arrangement", list(itertools.product(ORDERS, repeat=3)), ids="-".join)
def test_arrangements_and_odd_sizes(arrangement, size):
    rng = np.random.default_rng(1)
    m, n, k = size
    mm = nd.Matmul(size, "float64", "real", arrangement=arrangement, block_size=THREADS)
    a, b, c = (random_matrix(rng, shape, "float64") for shape in ((m, k), (k, n), (m, n)))
    buffers = [packed(x, order) for x, order in zip((a, b, c), arrangement, strict=True)]
    gemm_kernel(mm)[1, THREADS](1.5, buffers[0], buffers[1], -0.5, buffers[2])
    got = unpacked(buffers[2], m, n, arrangement[2])
    assert norm_error(got, 1.5 * (a @ b) - 0.5 * c) < 1e-15


def test_padded_leading_dimensions_and_unread_padding():
    rng = np.random.default_rng(2)
    m, n, k, ld = 5, 4, 3, (6, 7, 9)
    arrangement = ("row_major", "col_major", "row_major")
    mm = nd.Matmul((m, n, k), "float32", "real", arrangement=arrangement, leading_dimension=ld, block_size=THREADS)
    a, b, c = (random_matrix(rng, shape, "float32") for shape in ((m, k), (k, n), (m, n)))
    buffers = [packed(x, o, l, fill=NAN) for x, o, l in zip((a, b, c), arrangement, ld, strict=True)]
    gemm_kernel(mm)[1, THREADS](1.0, buffers[0], buffers[1], 1.0, buffers[2])
    got = unpacked(buffers[2], m, n, arrangement[2], ld[2])
    assert norm_error(got, a.astype(float) @ b.astype(float) + c) < 1e-6
    padding = np.delete(buffers[2], [i * ld[2] + j for i in range(m) for j in range(n)])
    assert np.isnan(padding).all()


# -- precisions --------------------------------------------------------------------------------------------

E4M3, E5M2, BF16 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.bfloat16

# Names of the precision, dtypes of the numbers, bound of the norm-wise error (0: exact). A result has the
# rounding of C's type and the error of float32 or float64 sums of 17 products; operands have none.
PRECISIONS = [
    (("bfloat16", "bfloat16", "float32"), (BF16, BF16, "f4"), 1e-6),
    (("float16", "float16", "float32"), ("f2", "f2", "f4"), 1e-6),
    (("float16", "float16", "float16"), ("f2", "f2", "f2"), 2**-11),
    (("float16", "bfloat16", "float32"), ("f2", BF16, "f4"), 1e-6),
    (("float8_e4m3fn", "float8_e4m3fn", "float32"), (E4M3, E4M3, "f4"), 1e-6),
    (("float8_e5m2", "float8_e4m3fn", "float16"), (E5M2, E4M3, "f2"), 2**-11),
    (("float32", "float32", "float32"), ("f4", "f4", "f4"), 1e-6),
    (("float64", "float64", "float64"), ("f8", "f8", "f8"), 1e-15),
    (("int8", "int8", "int32"), ("i1", "i1", "i4"), 0),
    (("uint8", "uint8", "uint32"), ("u1", "u1", "u4"), 0),
    (("int16", "int16", "int64"), ("i2", "i2", "i8"), 0),
    (("uint8", "int8", "int32"), ("u1", "i1", "i4"), 0),
]


def as_kernel_sees(matrix):
    """fp8 numbers as their bits: Numba has no type for them."""
    return matrix.view(np.uint8) if matrix.dtype.name.startswith("float8") else matrix


@pytest.mark.parametrize(("names", "dtypes", "bound"), PRECISIONS, ids=["-".join(p[0]) for p in PRECISIONS])
def test_precisions(names, dtypes, bound):
    rng = np.random.default_rng(3)
    m, n, k = 7, 5, 17
    arrangement = ("row_major", "col_major", "col_major")
    mm = nd.Matmul((m, n, k), names, "real", arrangement=arrangement, block_size=THREADS)
    a, b, c = (random_matrix(rng, s, t) for s, t in zip(((m, k), (k, n), (m, n)), dtypes, strict=True))
    if c.dtype.kind in "iu":
        c = (c % 1000).astype(c.dtype)
        alpha, beta, exact = 3, 2, np.int64
    else:
        alpha, beta, exact = 0.75, -1.5, np.float64
    wanted = alpha * (a.astype(exact) @ b.astype(exact)) + beta * c.astype(exact)
    buffers = [packed(as_kernel_sees(x), o) for x, o in zip((a, b, c), arrangement, strict=True)]
    gemm_kernel(mm)[1, THREADS](alpha, buffers[0], buffers[1], beta, buffers[2])
    got = unpacked(buffers[2], m, n, "col_major")
    if bound:
        assert norm_error(got, wanted) < bound
    else:
        assert np.array_equal(got, wanted.astype(got.dtype))


def one_by_one(precision, a, b, *, alpha=1.0):
    """The GEMM of two numbers: nothing is summed, so the result has no error but the rounding."""
    mm = nd.Matmul((1, 1, 1), precision, "real", arrangement=("col_major",) * 3, block_size=THREADS)
    c = np.zeros(1, nd.element_type(precision[2]).dtype)
    gemm_kernel(mm)[1, THREADS](alpha, a, b, 0, c)
    return c[0]


def test_a_float16_result_is_rounded_once_to_nearest():
    rng = np.random.default_rng(4)
    for x, y in rng.uniform(-200, 200, (10, 2)).astype(np.float16):
        got = one_by_one(("float16",) * 3, np.array([x]), np.array([y]))
        assert got.tobytes() == np.float16(np.float64(x) * np.float64(y)).tobytes()


def test_tfloat32_operands_lose_their_low_mantissa_bits():
    rng = np.random.default_rng(5)
    for x, y in rng.uniform(-2, 2, (10, 2)).astype(np.float32):
        got = one_by_one(("tfloat32", "tfloat32", "float32"), np.array([x]), np.array([y]))
        cut = (np.array([x, y]).view(np.uint32) & 0xFFFFE000).view(np.float32).astype(np.float64)
        assert got == np.float32(cut[0] * cut[1])


@pytest.mark.parametrize(("name", "dtype"), [("float16", np.float16), ("float32", np.float32)])
def test_alpha_is_converted_to_the_type_of_c(name, dtype):
    assert one_by_one((name,) * 3, np.ones(1, dtype), np.ones(1, dtype), alpha=0.1) == dtype(0.1)


def test_integer_results_wrap_around():
    x = np.array([127], np.int8)
    got = one_by_one(("int8", "int8", "int32"), x, x, alpha=2**20)
    assert got == np.int64(127 * 127 * 2**20).astype(np.int32)


@pytest.mark.parametrize("beta", [0, 0.0, -0.0, np.float32(0), False])
def test_beta_zero_does_not_read_c(beta):
    rng = np.random.default_rng(6)
    mm = nd.Matmul((3, 2, 4), "float32", "real", arrangement=("col_major",) * 3, block_size=THREADS)
    a, b = random_matrix(rng, (3, 4), "f4"), random_matrix(rng, (4, 2), "f4")
    c = np.full(6, NAN, np.float32)
    gemm_kernel(mm)[1, THREADS](1.0, packed(a, "col_major"), packed(b, "col_major"), beta, c)
    assert norm_error(unpacked(c, 3, 2, "col_major"), a.astype(float) @ b.astype(float)) < 1e-6


def test_beta_one_reads_c():
    mm = nd.Matmul((1, 1, 1), "float32", "real", arrangement=("col_major",) * 3, block_size=THREADS)
    c = np.full(1, NAN, np.float32)
    gemm_kernel(mm)[1, THREADS](1.0, np.ones(1, np.float32), np.ones(1, np.float32), 1.0, c)
    assert np.isnan(c[0])


# -- complex -----------------------------------------------------------------------------------------------

MODES = ("non_transposed", "transposed", "conj_transposed")


def applied(mode, stored):
    return {"non_transposed": stored, "transposed": stored.T, "conj_transposed": stored.conj().T}[mode]


@pytest.mark.parametrize(("name", "dtype", "bound"), [("float32", "c8", 1e-6), ("float64", "c16", 1e-15)])
@pytest.mark.parametrize("modes", list(itertools.product(MODES, repeat=2)), ids="-".join)
def test_complex_transpose_modes(modes, name, dtype, bound):
    rng = np.random.default_rng(7)
    m, n, k = 3, 7, 5
    mm = nd.Matmul((m, n, k), name, "complex", transpose_mode=modes, block_size=THREADS)
    a = random_matrix(rng, (m, k) if modes[0] == "non_transposed" else (k, m), dtype)
    b = random_matrix(rng, (k, n) if modes[1] == "non_transposed" else (n, k), dtype)
    c = random_matrix(rng, (m, n), dtype)
    wide = [x.astype(np.complex128) for x in (a, b, c)]
    alpha, beta = 0.5 - 2j, 1j
    wanted = alpha * (applied(modes[0], wide[0]) @ applied(modes[1], wide[1])) + beta * wide[2]
    buffers = [packed(x, "col_major") for x in (a, b, c)]
    gemm_kernel(mm)[1, THREADS](alpha, buffers[0], buffers[1], beta, buffers[2])
    assert norm_error(unpacked(buffers[2], m, n, "col_major"), wanted) < bound


@pytest.mark.parametrize("mode", MODES)
def test_real_transpose_modes(mode):
    rng = np.random.default_rng(8)
    mm = nd.Matmul((3, 4, 5), "float64", "real", transpose_mode=(mode, mode), block_size=THREADS)
    a = random_matrix(rng, (3, 5) if mode == MODES[0] else (5, 3), "f8")
    b = random_matrix(rng, (5, 4) if mode == MODES[0] else (4, 5), "f8")
    c = np.full(12, NAN)
    gemm_kernel(mm)[1, THREADS](1.0, packed(a, "col_major"), packed(b, "col_major"), 0.0, c)
    assert norm_error(unpacked(c, 3, 4, "col_major"), applied(mode, a) @ applied(mode, b)) < 1e-15


def interleaved(matrix, dtype):
    """Real and imaginary parts one after the other along the last axis."""
    return np.stack([matrix.real, matrix.imag], axis=-1).astype(dtype)


@pytest.mark.parametrize(
    ("names", "dtypes", "bound"),
    [
        (("float16",) * 3, ("f2", "f2", "f2"), 2**-10),
        (("bfloat16", "bfloat16", "float32"), (BF16, BF16, "f4"), 1e-6),
        (("float32",) * 3, ("f4", "f4", "f4"), 1e-6),
    ],
    ids=["float16", "bfloat16-float32", "float32"],
)
def test_complex_operands_given_as_their_components(names, dtypes, bound):
    rng = np.random.default_rng(9)
    m, n, k = 3, 5, 4
    mm = nd.Matmul((m, n, k), names, "complex", arrangement=("row_major",) * 3, block_size=THREADS)
    matrices = [random_matrix(rng, s, "c16") for s in ((m, k), (k, n), (m, n))]
    stored = [interleaved(x, t) for x, t in zip(matrices, dtypes, strict=True)]
    a, b, c = (x[..., 0].astype(float) + 1j * x[..., 1].astype(float) for x in stored)
    buffers = [x.reshape(-1).copy() for x in stored]  # row-major
    alpha, beta = 0.5 - 0.25j, 2.0
    gemm_kernel(mm, components=2)[1, THREADS](alpha, buffers[0], buffers[1], beta, buffers[2])
    got = buffers[2].astype(float).reshape(m, n, 2)
    assert norm_error(got[..., 0] + 1j * got[..., 1], alpha * (a @ b) + beta * c) < bound


def test_complex_float16_operands_as_records():
    rng = np.random.default_rng(10)
    record = np.dtype([("x", np.float16), ("y", np.float16)])
    mm = nd.Matmul((2, 3, 4), "float16", "complex", arrangement=("row_major",) * 3, block_size=THREADS)

    @cuda.jit
    def kernel(a, b, c):
        smem_a = nd.shared.array(mm.a_size, mm.a_value_type)
        smem_b = nd.shared.array(mm.b_size, mm.b_value_type)
        smem_c = nd.shared.array(mm.c_size, mm.c_value_type)
        mm.load_a(a, smem_a)
        mm.load_b(b, smem_b)
        cuda.syncthreads()
        mm.execute(1.0, smem_a, smem_b, 0.0, smem_c)
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            smem_c[0].y = 7.0  # fields are attributes, as in compiled kernels
        cuda.syncthreads()
        mm.store_c(smem_c, c)

    a, b = (interleaved(random_matrix(rng, s, "c16"), "f2") for s in ((2, 4), (4, 3)))
    c = np.zeros((2, 3), record)
    kernel[1, THREADS](a.view(record)[..., 0], b.view(record)[..., 0], c)
    wide_a, wide_b = (x[..., 0].astype(float) + 1j * x[..., 1].astype(float) for x in (a, b))
    wanted = wide_a @ wide_b
    wanted[0, 0] = wanted[0, 0].real + 7j
    assert norm_error(c["x"].astype(float) + 1j * c["y"].astype(float), wanted) < 2**-10


# -- forms of operands -------------------------------------------------------------------------------------


def test_leading_dimensions_known_at_run_time():
    rng = np.random.default_rng(11)
    m, n, k = 4, 3, 5
    arrangement = ("row_major", "col_major", "row_major")
    mm = nd.Matmul((m, n, k), "float32", "real", arrangement=arrangement, block_size=THREADS)

    @cuda.jit
    def kernel(a, lda, b, ldb, c, ldc):
        smem_a, smem_b, smem_c = (nd.shared.array(99, "float32"), nd.shared.array(99, "float32"),
                                  nd.shared.array(99, "float32"))  # fmt: skip
        for i in range(cuda.threadIdx.x, len(a), cuda.blockDim.x):
            smem_a[i] = a[i]
        for i in range(cuda.threadIdx.x, len(b), cuda.blockDim.x):
            smem_b[i] = b[i]
        for i in range(cuda.threadIdx.x, len(c), cuda.blockDim.x):
            smem_c[i] = c[i]
        cuda.syncthreads()
        mm.execute(2.0, smem_a, lda, smem_b, ldb, 1.0, smem_c, ldc)
        cuda.syncthreads()
        for i in range(cuda.threadIdx.x, len(c), cuda.blockDim.x):
            c[i] = smem_c[i]

    a, b, c = (random_matrix(rng, s, "f4") for s in ((m, k), (k, n), (m, n)))
    for ld in ((5, 5, 3), (7, 6, 11), (8, 9, 4)):
        buffers = [packed(x, o, l, fill=NAN) for x, o, l in zip((a, b, c), arrangement, ld, strict=True)]
        kernel[1, THREADS](buffers[0], ld[0], buffers[1], ld[1], buffers[2], ld[2])
        wanted = 2.0 * (a.astype(float) @ b.astype(float)) + c
        assert norm_error(unpacked(buffers[2], m, n, "row_major", ld[2]), wanted) < 1e-6
        assert np.isnan(buffers[2]).sum() == len(buffers[2]) - m * n


def test_sub_views_of_wider_shared_tiles_keep_what_is_around_them():
    rng = np.random.default_rng(12)
    mm = nd.Matmul(
        (3, 4, 5), "float64", "real", arrangement=("row_major", "col_major", "row_major"), block_size=THREADS
    )

    @cuda.jit
    def kernel(a, b, c):
        tile_a = nd.shared.array((8, 9), "float64")
        tile_b = nd.shared.array((6, 10), "float64")
        tile_c = nd.shared.array((7, 8), "float64")
        if cuda.threadIdx.x == 0:
            for i in range(8):
                for j in range(9):
                    tile_a[i, j] = a[i, j]
            for i in range(6):
                for j in range(10):
                    tile_b[i, j] = b[i, j]
            for i in range(7):
                for j in range(8):
                    tile_c[i, j] = c[i, j]
        cuda.syncthreads()
        mm.execute(1.0, tile_a[2:5, 3:8], tile_b[1:5, 2:7].T, 1.0, tile_c[1:4, 4:8])
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            for i in range(7):
                for j in range(8):
                    c[i, j] = tile_c[i, j]

    a, b, c = (random_matrix(rng, s, "f8") for s in ((8, 9), (6, 10), (7, 8)))
    wanted = c.copy()
    wanted[1:4, 4:8] += a[2:5, 3:8] @ b[1:5, 2:7].T
    kernel[1, THREADS](a, b, c)
    assert np.allclose(c, wanted, rtol=1e-14, atol=0)
    outside = np.ones(c.shape, bool)
    outside[1:4, 4:8] = False
    assert np.array_equal(c[outside], wanted[outside])


@pytest.mark.parametrize("order", ORDERS)
def test_one_dynamic_buffer_carved_into_three_operands(order):
    rng = np.random.default_rng(13)
    mm = nd.Matmul((4, 4, 4), "float32", "real", arrangement=(order,) * 3, block_size=THREADS)

    @cuda.jit
    def kernel(a, b, c):
        memory = nd.shared.array(0, "float32")
        smem_a, smem_b, smem_c = memory[:16], memory[16:32], memory[32:48]
        mm.load_a(a, smem_a)
        mm.load_b(b, smem_b)
        cuda.syncthreads()
        mm.execute(1.0, smem_a, smem_b, 0.0, smem_c)
        cuda.syncthreads()
        mm.store_c(smem_c, c)

    a, b = random_matrix(rng, (4, 4), "f4"), random_matrix(rng, (4, 4), "f4")
    c = np.zeros((4, 4), np.float32)
    kernel[1, THREADS, 0, mm.get_shared_storage_size()](a, b, c)
    assert norm_error(c, a.astype(float) @ b.astype(float)) < 1e-6


def test_a_block_of_several_dimensions():
    mm = nd.Matmul((2, 2, 2), "float32", "real", arrangement=("row_major",) * 3, block_dim=(8, 4))

    @cuda.jit
    def kernel(a, c):
        smem_a, smem_c = nd.shared.array(4, "float32"), nd.shared.array(4, "float32")
        mm.load_a(a, smem_a)
        cuda.syncthreads()
        mm.execute(1.0, smem_a, smem_a, 0.0, smem_c)
        cuda.syncthreads()
        mm.store_c(smem_c, c)

    a = np.array([[1, 2], [3, 4]], np.float32)
    for block in ((8, 4), (4, 8), 32, (4, 4, 2)):
        c = np.full((2, 2), NAN, np.float32)
        kernel[1, block](a, c)
        assert np.array_equal(c, [[7, 10], [15, 22]])


# -- tiles -------------------------------------------------------------------------------------------------


def test_ragged_matrices_of_many_blocks_with_a_k_loop():
    rng = np.random.default_rng(14)
    rows, cols, depth, (m, n, k) = 7, 9, 11, (4, 4, 5)
    arrangement = ("row_major", "col_major", "col_major")
    mm = nd.Matmul((m, n, k), "float32", "real", arrangement=arrangement, block_size=THREADS)

    @cuda.jit
    def kernel(a, b, c):
        smem_a = nd.shared.array(mm.a_size, mm.a_value_type)
        smem_b = nd.shared.array(mm.b_size, mm.b_value_type)
        smem_c = nd.shared.array(mm.c_size, mm.c_value_type)
        row, col = cuda.blockIdx.x * m, cuda.blockIdx.y * n
        beta = 0.0
        for start in range(0, a.shape[1], k):
            mm.load_a(a[row : row + m, start : start + k], smem_a)
            mm.load_b(b[start : start + k, col : col + n], smem_b)
            cuda.syncthreads()
            mm.execute(1.0, smem_a, smem_b, beta, smem_c)
            cuda.syncthreads()
            beta = 1.0
        mm.store_c(smem_c, c[row : row + m, col : col + n])

    # Guard values around everything that a tile could reach beyond the edges.
    wide_a, wide_b, wide_c = (np.full(s, NAN, np.float32) for s in ((12, 16), (16, 14), (12, 14)))
    a, b = random_matrix(rng, (rows, depth), "f4"), random_matrix(rng, (depth, cols), "f4")
    wide_a[2 : 2 + rows, 3 : 3 + depth], wide_b[1 : 1 + depth, 2 : 2 + cols] = a, b
    wide_c[...] = -99

    @cuda.jit
    def sliced(a, b, c):
        kernel(a[2 : 2 + rows, 3 : 3 + depth], b[1 : 1 + depth, 2 : 2 + cols], c[1 : 1 + rows, 3 : 3 + cols])

    sliced[(2, 3), THREADS](wide_a, wide_b, wide_c)
    assert norm_error(wide_c[1 : 1 + rows, 3 : 3 + cols], a.astype(float) @ b.astype(float)) < 1e-6
    wide_c[1 : 1 + rows, 3 : 3 + cols] = -99
    assert (wide_c == -99).all()


@pytest.mark.parametrize("order", ORDERS)
def test_load_fills_with_zeros_and_leaves_the_padding(order):
    mm = nd.Matmul(
        (3, 4, 5),
        "float32",
        "real",
        arrangement=(order,) * 3,
        leading_dimension=(6, 7, 8),
        block_size=THREADS,
    )
    size = mm.a_size

    @cuda.jit
    def kernel(view, out):
        smem = nd.shared.array(size, "float32")
        mm.load_a(view, smem)
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            for i in range(size):
                out[i] = smem[i]

    view = np.arange(1, 9, dtype=np.float32).reshape(2, 4)
    out = np.zeros(size, np.float32)
    kernel[1, 3](view, out)  # any block may copy
    tile = np.zeros((3, 5), np.float32)
    tile[:2, :4] = view
    wanted = packed(tile, order, 6, fill=NAN)
    assert np.array_equal(out, wanted, equal_nan=True)
    assert np.isnan(out).any()


def test_load_and_store_move_fp8_bits_through_strided_views():
    precision = ("float8_e4m3fn", "float8_e4m3fn", "float32")
    arrangement = ("row_major", "row_major", "col_major")
    mm = nd.Matmul((2, 2, 3), precision, "real", arrangement=arrangement, block_size=THREADS)

    @cuda.jit
    def kernel(a, b, c):
        smem_a = nd.shared.array(mm.a_size, mm.a_value_type)
        smem_b = nd.shared.array(mm.b_size, mm.b_value_type)
        smem_c = nd.shared.array(mm.c_size, mm.c_value_type)
        mm.load_a(a[::2, ::-1], smem_a)
        mm.load_b(b.T, smem_b)
        mm.load_c(c, smem_c)
        cuda.syncthreads()
        mm.execute(1.0, smem_a, smem_b, 1.0, smem_c)
        cuda.syncthreads()
        mm.store_c(smem_c, c)

    a = np.array([[1, 2, 3], [0, 0, 0], [4, 5, 6]], E4M3)
    b = np.array([[0.5, 1, 2], [-1, 0.25, 1]], E4M3)
    c = np.ones((2, 2), np.float32)
    kernel[1, THREADS](a.view(np.uint8), b.view(np.uint8), c)
    assert np.array_equal(c, 1 + a.astype("f4")[::2, ::-1] @ b.astype("f4").T)
