# SPDX-License-Identifier: Apache-2.0
"""Reported cases about shapes: vectors, batches, extents of zero, very tall and very flat results.

``tests/gpu/host/test_reports_shapes.py`` runs those that ask for a ``library`` on a GPU.
"""

from __future__ import annotations

import numpy as np
import pytest

from nvmath_device.errors import InvalidArgumentError, UnsupportedError
from tests.host.cpu_products import normal, whole
from tests.host.report_tools import (
    BF16,
    C64,
    F16,
    F32,
    F64,
    assert_exact,
    assert_product,
    cpu_library,
    expected,
    wide,
)

library = cpu_library
EPILOGS = {"BIAS": lambda x: x, "RELU_BIAS": lambda x: np.maximum(x, 0)}


@pytest.mark.parametrize("rows", [655360, 1000])
def test_r063_a_fused_bias_of_a_very_tall_result(library, rows):
    rng = np.random.default_rng(63)
    rows = rows if library.on_gpu else rows // 10  # there is nothing to be learnt from more
    for dtype in library.having(F32, F16, BF16):
        a, b, bias = (normal(rng, shape, dtype) for shape in ((rows, 10), (10, 10), (1, 10)))
        out = library.poisoned((rows, 10), dtype)
        inputs = {"bias": library.put(bias)}
        library.matmul(library.put(a), library.put(b), epilog="BIAS", epilog_inputs=inputs, out=out)
        assert_product(library.get(out), *expected(a, b, bias=bias), 10)
    small = np.eye(3, dtype=np.float32)
    assert_exact(library.get(library.matmul(library.put(small), library.put(small))), small)  # nothing is left pending


@pytest.mark.parametrize("limit", [0, "1 MiB"], ids=str)
@pytest.mark.parametrize("extents", [(80, 1024, 160), (16, 16384, 48)], ids=str)
def test_r064_ordinary_shapes_of_training_in_tn_layout(library, extents, limit):
    rng = np.random.default_rng(64)
    m, n, k = extents
    a, b = normal(rng, (m, k), F32), normal(rng, (n, k), F32)
    for offset in (0, 4, 8, 16):
        for bias in (normal(rng, (m, 1), F32), normal(rng, (1, n), F32)):
            d = library.matmul(
                library.at_offset(a, offset), library.at_offset(b, offset).T, epilog="BIAS",
                epilog_inputs={"bias": library.at_offset(bias, offset)}, options={"memory_limit": limit},
            )  # fmt: skip
            assert_product(library.get(d), *expected(a, b.T, bias=bias), k)


# -- vectors ------------------------------------------------------------------------------------------------

VECTORS = {
    "row": ((7,), (7, 5)),
    "column": ((6, 7), (7,)),
    "dot": ((7,), (7,)),
    "row, batch": ((7,), (3, 7, 5)),
    "batch, column": ((3, 6, 7), (7,)),
    "row, batch of two axes": ((7,), (2, 3, 7, 5)),
}


@pytest.mark.parametrize("case", VECTORS)
def test_r069_vectors_are_multiplied_as_by_numpy(library, case):
    rng = np.random.default_rng(69)
    for dtype in library.having(F32, F64, C64):
        a, b = (whole(rng, shape, dtype) for shape in VECTORS[case])
        product = np.matmul(wide(a), wide(b))
        c = whole(rng, product.shape, dtype, 9)
        assert_exact(library.get(library.matmul(library.put(a), library.put(b))), product)
        with_c = library.matmul(library.put(a), library.put(b), library.put(c), alpha=2, beta=3)
        assert_exact(library.get(with_c), 2 * product + 3 * wide(c))


# Shapes of a bias, and what it adds to numpy.matmul's result: with a vector A the one row's is a number.
VECTOR_BIASES = {
    "row": [((5,), (5,)), ((1, 5), (5,)), ((1,), ()), ((1, 1), ())],
    "column": [((6,), (6,)), ((6, 1), (6,)), ((1, 1), ())],
    "dot": [((1,), ()), ((1, 1), ())],
    "row, batch": [((5,), (5,)), ((1, 5), (5,)), ((3, 1, 5), (3, 5)), ((3, 1, 1), (3, 1))],
    "batch, column": [((6,), (6,)), ((6, 1), (6,)), ((3, 6, 1), (3, 6))],
}


@pytest.mark.parametrize("case", VECTOR_BIASES)
def test_r069_vectors_with_a_bias(library, case):
    rng = np.random.default_rng(690)
    a, b = (whole(rng, shape, F32) for shape in VECTORS[case])
    product = np.matmul(wide(a), wide(b))
    for given, added in VECTOR_BIASES[case]:
        bias, c = whole(rng, given, F32, 9), whole(rng, product.shape, F32, 9)
        inputs = {"bias": library.put(bias)}
        d = library.matmul(library.put(a), library.put(b), epilog="RELU_BIAS", epilog_inputs=inputs)
        want = product + wide(bias.reshape(added))
        assert_exact(library.get(d), np.maximum(want, 0))
        d = library.matmul(library.put(a), library.put(b), library.put(c), beta=2, epilog="BIAS", epilog_inputs=inputs)
        assert_exact(library.get(d), want + 2 * wide(c))


# -- extents of zero ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shapes", [((4, 0), (0, 5)), ((10, 1, 0), (10, 0, 43200)), ((0,), (0, 5))], ids=str)
def test_r073_a_product_without_terms_is_zero(library, shapes):
    rng = np.random.default_rng(73)
    for dtype in library.having(F32, F16):
        a, b = np.zeros(shapes[0], dtype), np.zeros(shapes[1], dtype)
        want = np.zeros(np.matmul(a, b).shape)
        out = library.poisoned(want.shape, dtype)
        library.matmul(library.put(a), library.put(b), out=out)
        assert_exact(library.get(out), want)
        c = whole(rng, want.shape, dtype)
        nan = np.full(want.shape, np.nan, dtype)
        for beta, addend, wanted in ((1, c, c), (3, c, 3 * wide(c)), (0, nan, want)):
            out = library.poisoned(want.shape, dtype)
            library.matmul(library.put(a), library.put(b), library.put(addend), beta=beta, out=out)
            assert_exact(library.get(out), wanted)


def test_r073_a_product_without_terms_goes_through_its_epilog(library):
    rng = np.random.default_rng(730)
    for dtype in library.having(F32, F16):
        for batch in ((), (10,)):
            a, b = np.zeros((*batch, 4, 0), dtype), np.zeros((*batch, 0, 5), dtype)
            c = whole(rng, (*batch, 4, 5), dtype, 9)
            for bias in (whole(rng, (4, 1), dtype, 9), whole(rng, (1, 5), dtype, 9)):
                for epilog, function in EPILOGS.items():
                    d = library.matmul(
                        library.put(a), library.put(b), library.put(c), beta=2, epilog=epilog,
                        epilog_inputs={"bias": library.put(bias)},
                    )  # fmt: skip
                    assert_exact(library.get(d), function(2 * wide(c) + wide(bias)))


EMPTY = {
    "m": ((0, 3), (3, 5)), "n": ((4, 3), (3, 0)), "batch": ((0, 4, 3), (0, 3, 5)), "all": ((0, 0), (0, 0)),
    "batch of one side": ((0, 4, 3), (3, 5)),
}  # fmt: skip


@pytest.mark.parametrize("case", EMPTY)
def test_r074_empty_results_have_shape_type_and_place(library, case):
    for dtype in library.having(F32, F16, C64):
        a, b = (np.zeros(shape, dtype) for shape in EMPTY[case])
        wanted = np.matmul(a, b).shape
        with library.Matmul(library.put(a), library.put(b)) as mm:
            mm.plan()
            results = [mm.execute(), mm.execute(out=library.put(np.empty(wanted, dtype)))]
        results.append(library.matmul(library.put(a), library.put(b)))
        for d in results:
            assert library.owns(d)
            assert (tuple(d.shape), library.get(d).dtype) == (wanted, dtype)


@pytest.mark.parametrize("case", ["m", "n", "batch"])
def test_r074_an_empty_operand_is_not_replaced_by_one_of_another_shape(library, case):
    rng = np.random.default_rng(74)
    a, b = (np.zeros(shape, np.float32) for shape in EMPTY[case])
    with library.Matmul(library.put(a), library.put(b)) as mm:
        mm.plan()
        mm.execute()
        with pytest.raises(InvalidArgumentError, match=r"[ab]: its shape is .* the plan is for .*; make a new Matmul"):
            mm.reset_operands(a=library.put(normal(rng, (7, 3), F32)), b=library.put(normal(rng, (3, 7), F32)))
        mm.reset_operands(a=library.put(a))  # of the same shape: still usable
        assert tuple(mm.execute().shape) == np.matmul(a, b).shape


def test_r074_an_empty_bias_gradient_is_right_or_refused(library):
    """Whether sums over nothing are offered is open; what there is must not be uninitialised memory."""
    a, b = np.zeros((4, 3), np.float32), np.zeros((3, 0), np.float32)
    try:
        d, aux = library.matmul(library.put(a), library.put(b), epilog="BGRADA")
    except UnsupportedError as error:
        assert "BGRADA" in str(error)  # noqa: PT017
        assert "empty" in str(error)  # noqa: PT017
        return
    assert tuple(d.shape) == (4, 0)
    assert_exact(library.get(aux["bgrada"]), np.zeros(4))


# -- batches ------------------------------------------------------------------------------------------------

BATCHES = [
    ((1, 256, 64), (64, 32)), ((8, 256, 64), (64, 32)), ((256, 64), (8, 64, 32)), ((2, 1, 5, 6), (1, 3, 6, 7)),
    ((3, 5, 6), (2, 1, 6, 7)), ((1, 5, 6), (1, 6, 7)), ((2, 3, 5, 6), (2, 3, 6, 7)),
]  # fmt: skip


@pytest.mark.parametrize("shapes", BATCHES, ids=str)
def test_r076_batches_broadcast_as_in_numpy(library, shapes):
    rng = np.random.default_rng(76)
    for dtype in library.having(F32, F16, C64):
        a, b = (whole(rng, shape, dtype) for shape in shapes)
        want = np.matmul(wide(a), wide(b))
        out = library.poisoned(want.shape, dtype)
        library.matmul(library.put(a), library.put(b), out=out)
        assert_exact(library.get(out), want)
        c = whole(rng, want.shape[-2:], dtype, 9)  # one for the whole batch
        d = library.matmul(library.put(a), library.put(b), library.put(c), beta=2)
        assert_exact(library.get(d), want + 2 * wide(c))


@pytest.mark.parametrize("shapes", [((2, 4, 3), (3, 3, 5)), ((2, 2, 4, 3), (3, 3, 5))], ids=str)
def test_r076_batches_that_do_not_broadcast_are_refused_with_the_rule(library, shapes):
    a, b = (library.put(np.zeros(shape, np.float32)) for shape in shapes)
    with pytest.raises(InvalidArgumentError, match="do not broadcast; each pair of extents must be equal or have a 1"):
        library.matmul(a, b)


def test_r077_a_batch_with_one_bias_for_all_or_one_for_each(library):
    rng = np.random.default_rng(77)
    a, b = normal(rng, (16, 64, 64), F32), normal(rng, (16, 64, 64), F32)
    for shape in ((64,), (64, 1), (1, 64), (16, 64, 1), (16, 1, 64), (1, 64, 1)):
        bias = normal(rng, shape, F32)
        d = library.matmul(library.put(a), library.put(b), epilog="BIAS", epilog_inputs={"bias": library.put(bias)})
        assert_product(library.get(d), *expected(a, b, bias=bias[:, None] if len(shape) == 1 else bias), 64)
