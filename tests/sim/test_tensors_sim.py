# SPDX-License-Identifier: Apache-2.0
"""Opaque tensors on the simulator: products in shared memory and in registers, and what is refused."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from numba import cuda

import nvmath_device as nd
from nvmath_device.errors import KernelExecutionError, KernelTypingError
from nvmath_device.numba_backend.simulator_shares import share
from nvmath_device.tensor_plans import TensorPlan
from tests import tensor_kernels
from tests.tensor_cases import COL, ROW, TYPES, Case, check_elements, check_pairs

KINDS = ("plain", "suggested")
ORDERS = [(a, b, c) for a in (ROW, COL) for b in (ROW, COL) for c in (ROW, COL)]


def matmul(size, types, arrangement=(ROW,) * 3, data_type="real", **options):
    return nd.Matmul(size, types, data_type, arrangement=arrangement, **{"block_size": 32, **options})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TYPES)
def test_products_of_every_type(name, kind):
    case = Case(matmul((9, 7, 8), TYPES[name]), turns=2)
    bound = 1e-13 if name == "double" else 0 if name == "int8" else 1e-6 if name != "tf32" else 2e-3
    assert case.into_registers(kind) <= bound
    assert case.into_shared(kind, 2, 3) <= bound


@pytest.mark.parametrize("arrangement", ORDERS, ids="-".join)
def test_every_arrangement(arrangement):
    case = Case(matmul((5, 6, 4), TYPES["half"], arrangement, leading_dimension=(8, 8, 9)), turns=2)
    assert case.into_registers("plain") <= 1e-6
    assert case.into_shared("suggested", 1, 0) <= 1e-6


@pytest.mark.parametrize(("types", "kind"), [("float32", "plain"), ("float64", "suggested"), ("float16", "plain")])
def test_complex_products(types, kind):
    case = Case(matmul((6, 5, 3), types, data_type="complex"))
    bound = {"float32": 1e-6, "float64": 1e-13, "float16": 2e-3}[types]
    assert case.into_registers(kind) <= bound
    assert case.into_shared(kind, 2, 1) <= bound


@pytest.mark.parametrize("arrangement", [(ROW,) * 3, (COL,) * 3], ids="-".join)
@pytest.mark.parametrize("kind", KINDS)
def test_what_accumulators_can_do(kind, arrangement):
    mm = matmul((9, 7, 8), TYPES["half"], arrangement)
    order = "F" if arrangement[0] == COL else "C"
    rng = np.random.default_rng(3)
    a, b = (np.asarray(rng.uniform(-1, 1, s), np.float16, order=order) for s in ((9, 8), (8, 7)))
    scaled, mapped = (np.asarray(rng.uniform(-1, 1, (9, 7)), np.float32, order=order) for _ in range(2))
    narrow = np.full((9, 7), np.nan, np.float16, order=order)
    shared_c = np.full((9, 7), np.nan, np.float32, order=order)
    results = [cuda.to_device(x) for x in (scaled, mapped, narrow, shared_c)]
    tensor_kernels.through_registers(mm, kind, np.float16)[1, 32](cuda.to_device(a), cuda.to_device(b), *results)
    want = a.astype(float) @ b.astype(float)
    got = [x.copy_to_host() for x in results]
    np.testing.assert_allclose(got[0], 2 * want + 3 * scaled, atol=1e-5)
    np.testing.assert_allclose(got[1], want + mapped + 100 * np.arange(9)[:, None] + np.arange(7), rtol=1e-6)
    np.testing.assert_allclose(got[2], want, atol=2e-3)
    np.testing.assert_allclose(got[3], want, atol=1e-5)


MM = matmul((8, 8, 4), TYPES["half"])
OTHER = matmul((8, 8, 4), TYPES["half"], (COL, ROW, ROW))


def run(kernel, *args, threads=32):
    nd.jit(kernel)[1, threads](*args)


@pytest.fixture
def abc():
    rng = np.random.default_rng(5)
    shapes, types = ((8, 4), (4, 8), (8, 8)), (np.float16, np.float16, np.float32)
    return [cuda.to_device(rng.uniform(-1, 1, s).astype(t)) for s, t in zip(shapes, types, strict=True)]


def test_what_is_not_waited_for_is_not_there(abc):
    def kernel(a, b, c):
        ta = nd.make_tensor(nd.shared.array(MM.a_size, np.float16), MM.get_layout_smem_a())
        tb = nd.make_tensor(nd.shared.array(MM.b_size, np.float16), MM.get_layout_smem_b())
        nd.copy(nd.make_tensor(a, MM.get_layout_gmem_a()), ta)
        nd.copy(nd.make_tensor(b, MM.get_layout_gmem_b()), tb)
        cuda.syncthreads()
        acc = MM.get_accumulator()
        MM.execute(ta, tb, acc)
        acc.partition_and_store(nd.make_tensor(c, MM.get_layout_gmem_c()))

    run(kernel, *abc)
    assert np.isnan(abc[2].copy_to_host()).all()


def test_beta_of_zero_reads_nothing(abc):
    def kernel(c):
        acc = MM.get_accumulator()
        for i in range(acc.size):
            acc[i] = 1.0
        acc.axpby(2.0, 0.0, nd.make_tensor(c, MM.get_layout_gmem_c()))

    c = cuda.to_device(np.full((8, 8), np.nan, np.float32))
    run(kernel, c)
    assert (c.copy_to_host() == 2).all()


def test_the_results_are_a_copy(abc):
    def kernel(c):
        acc = MM.suggest_accumulator()
        for i in range(acc.size):
            acc[i] = 5.0
        results = acc.get_results()
        acc.clear()
        nd.axpby(1.0, results, 1.0, acc)
        nd.axpby(2.0, results, 1.0, results)
        acc.partition_and_copy(results, nd.make_tensor(c, MM.get_layout_gmem_c()))

    run(kernel, abc[2])
    assert (abc[2].copy_to_host() == 15).all()


def test_two_matmuls_in_one_kernel(abc):
    """The second multiplies the first's result, through shared memory: A (B B^T)-like chains stay on chip."""
    first, second = matmul((8, 8, 4), TYPES["half"]), matmul((8, 8, 8), ("float16", "float16", "float32"))

    def kernel(a, b, c):
        ta = nd.make_tensor(nd.shared.array(first.a_size, np.float16), first.get_layout_smem_a())
        tb = nd.make_tensor(nd.shared.array(first.b_size, np.float16), first.get_layout_smem_b())
        nd.copy(nd.make_tensor(a, first.get_layout_gmem_a()), ta)
        nd.copy(nd.make_tensor(b, first.get_layout_gmem_b()), tb)
        nd.copy_wait()
        cuda.syncthreads()
        acc = first.get_accumulator()
        first.execute(ta, tb, acc)
        between = nd.shared.array((8, 8), np.float16)
        for i in range(acc.size):
            row, column = acc.map_fragment_index(i)
            between[row, column] = acc[i]
        cuda.syncthreads()
        flat = between.reshape(64)
        square = second.get_accumulator()
        left = nd.make_tensor(flat, second.get_layout_smem_a())
        right = nd.make_tensor(flat, second.get_layout_smem_b())
        second.execute(left, right, square)
        square.partition_and_store(nd.make_tensor(c, second.get_layout_gmem_c()))

    run(kernel, *abc)
    a, b = (x.copy_to_host().astype(float) for x in abc[:2])
    rounded = (a @ b).astype(np.float16).astype(float)
    np.testing.assert_allclose(abc[2].copy_to_host(), rounded @ rounded, atol=2e-2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("arrangement", [(ROW,) * 3, (COL,) * 3], ids="-".join)
def test_elements_in_shared_memory(arrangement, kind):
    check_elements(matmul((9, 7, 8), TYPES["half"], arrangement), kind)


@pytest.mark.parametrize("kind", KINDS)
def test_pairs_in_shared_memory(kind):
    check_pairs(matmul((9, 7, 8), TYPES["half"], alignment=nd.MAX_ALIGNMENT), kind)


@pytest.mark.parametrize("threads", [32, 64, 128, 256, 48])
def test_every_element_belongs_to_one_thread(threads):
    """In pairs and by eights where tile and block allow it, which 48 threads do not."""
    plan = TensorPlan(*matmul((128, 32, 16), TYPES["half"], block_size=threads)._here)
    shares = [share(plan, linear) for linear in range(threads)]
    assert sorted(np.concatenate(shares)) == list(range(128 * 32))
    rows, columns = np.divmod(shares[5], 32)
    if threads == 48:
        assert np.unique(np.diff(shares[5])) == 48
    else:
        assert (rows[:4].tolist(), columns[:4].tolist()) == ([1, 1, 9, 9], [2, 3, 2, 3])


# -- refusals --------------------------------------------------------------------------------------------------------


def shared_tensor(mm, name, kind="get"):
    layout = getattr(mm, f"{kind}_layout_smem_{name}")()
    return nd.make_tensor(nd.shared.array(layout.cosize, layout.plan.value(layout.place).dtype), layout)


def refused(kernel, *args, error=KernelTypingError, threads=32):
    with pytest.raises(error) as caught:
        run(kernel, *args, threads=threads)
    return str(caught.value)


@pytest.mark.parametrize(
    ("place", "value", "error", "words"),
    [
        (0, 1, KernelTypingError, "wants a row and a column"),
        ((8, 0), 1, KernelExecutionError, "has no element (8, 0)"),
        ((0, 1), "pair", KernelExecutionError, "at multiples of 2"),
        ((0, 0), "four", KernelTypingError, "wants no more than 4 bytes at once"),
    ],
)
def test_elements_that_are_none(place, value, error, words):
    mm = matmul((8, 8, 4), TYPES["half"], alignment=(4, 4, 4))

    def kernel():
        vectors = {"pair": nd.float32x2(1, 2), "four": nd.float32x4(1, 2, 3, 4)}
        shared_tensor(mm, "a")[place] = vectors.get(value, value)

    assert words in refused(kernel, error=error)


def test_an_element_of_global_memory_is_refused(abc):
    def kernel(a):
        nd.make_tensor(a, MM.get_layout_gmem_a())[0, 0]

    assert "only fragments, in registers, have an index" in refused(kernel, abc[0])


def test_a_mix_of_layouts_is_refused(abc):
    def kernel(a):
        MM.execute(shared_tensor(MM, "a"), shared_tensor(MM, "b", "suggest"), MM.get_accumulator())

    assert "a plain, b suggested, c plain" in refused(kernel, abc[0])


def test_tensors_of_another_descriptor_are_refused(abc):
    def kernel(a):
        MM.execute(shared_tensor(OTHER, "a"), shared_tensor(MM, "b"), MM.get_accumulator())

    assert "a of the same Matmul" in refused(kernel, abc[0])


def test_the_other_matrix_is_refused(abc):
    def kernel(a):
        MM.execute(shared_tensor(MM, "b"), shared_tensor(MM, "a"), MM.get_accumulator())

    assert "a tensor of A for a, got B in shared memory" in refused(kernel, abc[0])


def test_registers_are_not_for_copy(abc):
    def kernel(c):
        nd.copy(MM.get_accumulator(), nd.make_tensor(c, MM.get_layout_gmem_c()))

    assert "use copy_fragment" in refused(kernel, abc[2])


@pytest.mark.parametrize("alignment", [1, 3, 32, 0, "16"])
def test_alignments_that_cannot_be_are_refused(abc, alignment):
    def kernel(a):
        nd.copy(nd.make_tensor(a, MM.get_layout_gmem_a()), shared_tensor(MM, "a"), alignment)

    assert "2, 4, 8 or 16 for elements of float16" in refused(kernel, abc[0])


def test_an_alignment_is_a_promise(abc):
    def kernel(a):
        nd.copy(nd.make_tensor(a[:, 1:], MM.get_layout_gmem_a()), shared_tensor(MM, "a"), 4)

    a = cuda.to_device(np.zeros((8, 6), np.float16))
    assert "multiple of 4 bytes" in refused(kernel, a, error=KernelExecutionError)


def test_a_tile_at_the_edge_is_refused(abc):
    def kernel(a):
        nd.make_tensor(a[:3], MM.get_layout_gmem_a())

    assert "copies know no edges" in refused(kernel, abc[0], error=KernelExecutionError)


def test_a_short_array_is_refused(abc):
    def kernel(a):
        nd.make_tensor(nd.shared.array(31, np.float16), MM.get_layout_smem_a())

    assert "at least 32 elements" in refused(kernel, abc[0], error=KernelExecutionError)


def test_elements_of_the_wrong_type_are_refused(abc):
    def kernel(a):
        nd.make_tensor(nd.shared.array(32, np.float32), MM.get_layout_smem_a())

    assert "elements of float16" in refused(kernel, abc[0])


def test_a_launch_of_another_block_is_refused(abc):
    def kernel(c):
        MM.get_accumulator().partition_and_store(nd.make_tensor(c, MM.get_layout_gmem_c()))

    assert "blockDim (32, 1, 1)" in refused(kernel, abc[2], error=KernelExecutionError, threads=64)


def test_indices_beyond_the_fragment_are_refused(abc):
    def kernel(c):
        acc = MM.get_accumulator()
        acc[acc.size] = 0

    assert "elements 0 to 1, and 2" in refused(kernel, abc[2], error=KernelExecutionError)


def test_half_a_form_is_refused(abc):
    def kernel(c):
        MM.execute(1.0, shared_tensor(MM, "a"), shared_tensor(MM, "b"), 0.0, MM.get_accumulator())

    assert "takes (a, b, c) with a c in registers" in refused(kernel, abc[2])


def test_layouts_have_sizes_without_libmathdx():
    assert (MM.get_layout_smem_a().size, MM.get_layout_smem_a().cosize) == (32, 32)
    padded = matmul((8, 8, 4), TYPES["half"], leading_dimension=(6, 8, 10))
    assert (padded.get_layout_smem_a().size, padded.get_layout_smem_a().cosize) == (32, 7 * 6 + 4)
    assert padded.suggest_layout_smem_c().cosize == 7 * 10 + 8
    assert MM.get_layout_gmem_b(100).cosize == 3 * 100 + 8
    assert matmul((5, 5, 4), TYPES["half"]).get_layout_rmem_c().size == 1
    assert ml_dtypes.bfloat16 == matmul((8, 8, 4), TYPES["bf16"]).get_layout_smem_a().plan.value(0).dtype
