# SPDX-License-Identifier: Apache-2.0
"""Opaque tensors on a GPU: products of tiles in registers and in shared memory, against float64."""

from __future__ import annotations

import numpy as np
import pytest
from numba import cuda

import nvmath_device as nd
from nvmath_device.errors import KernelExecutionError
from tests import tensor_kernels
from tests.gpu.values import TF32_ROUNDOFF
from tests.tensor_cases import COL, ROW, TYPES, Case, check_elements, check_pairs

KINDS = ("plain", "suggested")
ORDERS = [(a, b, c) for a in (ROW, COL) for b in (ROW, COL) for c in (ROW, COL)]
# Norm-wise, for sums over at most 128 products: float16 and less are multiplied exactly and summed in float32. The fp8
# tensor cores of Hopper keep 14 bits of a sum.
BOUNDS = {
    "half": 1e-6,
    "bf16": 1e-6,
    "tf32": 2 * TF32_ROUNDOFF,
    "fp8": 2e-3,
    "single": 2e-6,
    "double": 1e-14,
    "int8": 0,
}


def matmul(size, types, arrangement=(ROW,) * 3, data_type="real", block_size=128, **options):
    return nd.Matmul(size, types, data_type, arrangement=arrangement, block_size=block_size, **options)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_ragged", [False, True], ids=["whole", "ragged"])
@pytest.mark.parametrize("name", TYPES)
def test_real_products(name, is_ragged, kind):
    rows = 32 if name == "double" else 64  # three tiles of it in shared memory of constant size, 48 KiB
    size = (17, 19, 23) if is_ragged else (rows, 64, 32)
    case = Case(matmul(size, TYPES[name], (ROW, COL, ROW)), turns=3)
    assert case.into_registers(kind) <= BOUNDS[name]
    assert case.into_shared(kind, 2, 3) <= BOUNDS[name]
    assert case.into_shared(kind, 1, 0) <= BOUNDS[name]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("arrangement", ORDERS, ids="-".join)
def test_every_arrangement(arrangement, kind):
    case = Case(matmul((32, 48, 16), TYPES["half"], arrangement), turns=2)
    assert case.into_registers(kind) <= BOUNDS["half"]
    assert case.into_shared(kind, 2, 1) <= BOUNDS["half"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["half", "single", "double"])
def test_sixteen_bytes_at_once(name, kind):
    """Aligned operands, copied in pieces of 16 bytes; those of another descriptor in pieces of 16 and 8."""
    mm = matmul((64, 32, 32), TYPES[name], alignment=nd.MAX_ALIGNMENT)
    case = Case(mm, turns=2, pads=(8, 8, 8))
    assert case.into_registers(kind) <= BOUNDS[name]
    assert case.into_shared(kind, 2, 3) <= BOUNDS[name]
    unpromised = Case(matmul((64, 32, 32), TYPES[name]), turns=2, pads=(8, 8, 8))
    assert unpromised.into_registers(kind, alignment=16) <= BOUNDS[name]
    assert unpromised.into_registers(kind, alignment=8) <= BOUNDS[name]


def test_leading_dimensions_of_their_own_in_shared_memory():
    case = Case(matmul((32, 32, 16), TYPES["single"], (ROW, COL, COL), leading_dimension=(20, 24, 36)), turns=2)
    for kind in KINDS:
        assert case.into_registers(kind) <= BOUNDS["single"]
        assert case.into_shared(kind, 2, 1) <= BOUNDS["single"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("types", "bound"), [("float32", 2e-6), ("float64", 1e-14), ("float16", 2e-3)])
@pytest.mark.parametrize("size", [(16, 16, 16), (7, 9, 5)], ids=str)
def test_complex_products(types, bound, size, kind):
    case = Case(matmul(size, types, data_type="complex", block_size=64), turns=2)
    assert case.into_registers(kind) <= bound
    assert case.into_shared(kind, 2, 1) <= bound


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [(64, 64, 32), (17, 19, 23)], ids=str)
@pytest.mark.parametrize("order", "CF")
def test_what_accumulators_can_do(size, order, kind):
    m, n, k = size
    mm = matmul(size, TYPES["half"], ((ROW if order == "C" else COL),) * 3)
    rng = np.random.default_rng(3)
    a, b = (np.asarray(rng.uniform(-1, 1, s), np.float16, order=order) for s in ((m, k), (k, n)))
    scaled, mapped = (np.asarray(rng.uniform(-1, 1, (m, n)), np.float32, order=order) for _ in range(2))
    narrow, shared_c = (np.full((m, n), np.nan, t, order=order) for t in (np.float16, np.float32))
    results = [cuda.to_device(x) for x in (scaled, mapped, narrow, shared_c)]
    kernel = tensor_kernels.through_registers(mm, kind, np.float16)
    kernel[1, mm.block_dim](cuda.to_device(a), cuda.to_device(b), *results)
    want = a.astype(float) @ b.astype(float)
    got = [x.copy_to_host() for x in results]
    np.testing.assert_allclose(got[0], 2 * want + 3 * scaled, atol=2e-5)
    np.testing.assert_allclose(got[1], want + mapped + 100 * np.arange(m)[:, None] + np.arange(n), rtol=2e-6)
    np.testing.assert_allclose(got[2], want, atol=1e-2)
    np.testing.assert_allclose(got[3], want, atol=2e-5)


@pytest.mark.parametrize("other", [np.float64, np.float16, "bfloat16", np.int32], ids=str)
def test_fragments_of_other_types(other):
    """alpha x + beta y and copies, where x, y and what is in global memory are of three types."""
    mm = matmul((16, 24, 8), TYPES["single"], block_size=64)

    @nd.jit
    def kernel(c, out):
        acc = mm.get_accumulator()
        acc.partition_and_copy(nd.make_tensor(c, mm.get_layout_gmem_c()), acc)
        y = nd.make_fragment_like(acc, other)
        nd.clear(y)
        for i in range(y.size):
            y[i] = 3
        nd.axpby(2, acc, 4, y)
        nd.copy_fragment(y, nd.make_tensor(out, mm.get_layout_gmem_c()))

    c = np.random.default_rng(1).integers(-9, 9, (16, 24)).astype(np.float32)
    out = cuda.to_device(np.full((16, 24), np.nan, np.float64))
    kernel[1, 64](cuda.to_device(c), out)
    np.testing.assert_array_equal(out.copy_to_host(), 2 * c + 12)


def test_beta_of_zero_reads_nothing():
    mm = matmul((17, 24, 8), TYPES["single"], block_size=64)

    @nd.jit
    def kernel(c, beta):
        acc = mm.suggest_accumulator()
        for i in range(acc.size):
            acc[i] = 1.5
        acc.axpby(2.0, beta, nd.make_tensor(c, mm.get_layout_gmem_c()))

    c = cuda.to_device(np.full((17, 24), np.nan, np.float32))
    kernel[1, 64](c, 0.0)
    assert (c.copy_to_host() == 3).all()


def test_whole_products_with_two_stages_and_two_matmuls():
    """D = (A B) C of whole matrices, the first product on chip; the loop over K has one tile on its way."""
    m, n, k, p = 64, 64, 32, 48
    first = matmul((m, n, k), TYPES["half"], alignment=nd.MAX_ALIGNMENT)
    second = matmul((m, p, n), TYPES["half"], alignment=nd.MAX_ALIGNMENT)
    la, lb = first.suggest_layout_smem_a(), first.suggest_layout_smem_b()
    left, right = second.get_layout_smem_a(), second.get_layout_smem_b()

    @nd.jit
    def kernel(a, b, c, d):
        a0, a1 = nd.shared.array(la.cosize, np.float16), nd.shared.array(la.cosize, np.float16)
        b0, b1 = nd.shared.array(lb.cosize, np.float16), nd.shared.array(lb.cosize, np.float16)
        between, smem_c = nd.shared.array(left.cosize, np.float16), nd.shared.array(right.cosize, np.float16)
        ta, tb = nd.make_tensor(a0, la), nd.make_tensor(b0, lb)
        next_a, next_b = nd.make_tensor(a1, la), nd.make_tensor(b1, lb)
        acc = first.suggest_accumulator()
        nd.copy(nd.make_tensor(a, first.get_layout_gmem_a(a.shape[1])), ta)
        nd.copy(nd.make_tensor(b, first.get_layout_gmem_b()), tb)
        nd.copy(nd.make_tensor(c, second.get_layout_gmem_b()), nd.make_tensor(smem_c, right))
        for begin in range(k, a.shape[1] + k, k):
            nd.copy_wait()
            cuda.syncthreads()
            if begin < a.shape[1]:
                nd.copy(nd.make_tensor(a[:, begin : begin + k], first.get_layout_gmem_a()), next_a)
                nd.copy(nd.make_tensor(b[begin : begin + k], first.get_layout_gmem_b()), next_b)
            first.execute(ta, tb, acc)
            ta, next_a = next_a, ta
            tb, next_b = next_b, tb
        for i in range(acc.size):
            row, column = acc.map_fragment_index(i)
            between[row * n + column] = acc[i]
        cuda.syncthreads()
        result = second.get_accumulator()
        second.execute(nd.make_tensor(between, left), nd.make_tensor(smem_c, right), result)
        result.partition_and_store(nd.make_tensor(d, second.get_layout_gmem_c()))

    rng = np.random.default_rng(9)
    a, b, c = (rng.uniform(-1, 1, s).astype(np.float16) for s in ((m, 8 * k), (8 * k, n), (n, p)))
    d = cuda.to_device(np.full((m, p), np.nan, np.float32))
    kernel[1, 128](cuda.to_device(a), cuda.to_device(b), cuda.to_device(c), d)
    rounded = (a.astype(float) @ b.astype(float)).astype(np.float16).astype(float)
    want = rounded @ c.astype(float)
    assert np.linalg.norm(d.copy_to_host() - want) / np.linalg.norm(want) <= 3e-4  # a sum may round to another float16


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", [ROW, COL])
def test_elements_in_shared_memory(order, kind):
    check_elements(matmul((32, 48, 16), TYPES["half"], (order, ROW, ROW)), kind)


@pytest.mark.parametrize("kind", KINDS)
def test_pairs_in_shared_memory(kind):
    check_pairs(matmul((64, 32, 32), TYPES["half"], alignment=nd.MAX_ALIGNMENT), kind)


def test_threads_hold_what_simulated_threads_do():
    """examples/attention.py relies on it: two neighbours and the two eight rows below, warps in two columns."""
    mm = matmul((64, 32, 32), TYPES["half"], alignment=nd.MAX_ALIGNMENT)
    size = mm.suggest_layout_rmem_c().size

    @nd.jit
    def kernel(places):
        acc = mm.suggest_accumulator()
        for i in range(acc.size):
            places[cuda.threadIdx.x, i, 0], places[cuda.threadIdx.x, i, 1] = acc.map_fragment_index(i)

    places = cuda.to_device(np.zeros((128, size, 2), np.int64))
    kernel[1, 128](places)
    warp, lane = np.divmod(np.arange(128)[:, None], 32)
    tile, e = np.divmod(np.arange(size)[None], 4)
    rows = 32 * (tile % 2) + 16 * (warp % 2) + 8 * (e // 2) + lane // 4
    columns = 16 * (tile // 2) + 8 * (warp // 2) + 2 * (lane % 4) + e % 2
    np.testing.assert_array_equal(places.copy_to_host(), np.stack([rows, columns], -1))


def test_each_thread_gets_its_partners_number():
    @cuda.jit
    def kernel(x, y):
        y[cuda.threadIdx.x] = nd.shuffle_xor(x[cuda.threadIdx.x], 6)

    for dtype in (np.float32, np.float64, np.int32, np.int64):
        x = (np.arange(64) * 3 - 7).astype(dtype)
        y = cuda.to_device(np.zeros_like(x))
        kernel[1, 64](cuda.to_device(x), y)
        np.testing.assert_array_equal(y.copy_to_host(), x[np.arange(64) ^ 6])


@pytest.mark.parametrize(
    ("wrong", "words"), [("edge", "copies know no edges"), ("address", "multiple of 16 bytes"), ("block", "block")]
)
def test_debug_names_what_is_wrong(wrong, words):
    mm = matmul((16, 16, 16), TYPES["half"], block_size=64, alignment=nd.MAX_ALIGNMENT)

    @nd.jit(debug=True, opt=False)
    def kernel(a):
        ta = nd.make_tensor(nd.shared.array(256, np.float16), mm.get_layout_smem_a())
        nd.copy(nd.make_tensor(a, mm.get_layout_gmem_a()), ta)
        nd.copy_wait()

    whole = cuda.to_device(np.zeros((32, 32), np.float16))
    a = {"edge": whole[20:], "address": whole[:, 1:], "block": whole}[wrong]
    with pytest.raises(KernelExecutionError, match=words):
        kernel[1, 128 if wrong == "block" else 64](a)


def test_plain_numba_jit_too():
    case = Case(matmul((32, 32, 16), TYPES["half"]), turns=2)
    assert case.into_registers("suggested", jit=cuda.jit) <= BOUNDS["half"]
