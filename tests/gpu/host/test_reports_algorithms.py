# SPDX-License-Identifier: Apache-2.0
"""Reported cases about cuBLASLt's algorithms: which are chosen, what tuning changes, and what an error says."""

from __future__ import annotations

import numpy as np
import pytest

from nvmath_device.errors import InvalidArgumentError, UnsupportedError
from nvmath_device.host import MatmulNumericalImplFlags, MatmulReductionScheme
from tests.host.cpu_products import normal, whole
from tests.host.report_tools import BF16, F16, F32, assert_exact, assert_product, expected, library_on_gpu, wide

library = library_on_gpu


def test_r064_where_nothing_works_the_error_says_what_was_asked_for(library):
    """Float64's tensor cores do not multiply float32: heuristics are left without an algorithm."""
    rng = np.random.default_rng(64)
    a, b, bias = normal(rng, (80, 160), F32), normal(rng, (1024, 160), F32), normal(rng, (1, 1024), F32)
    impossible = {"numerical_impl_mask": MatmulNumericalImplFlags.OP_TYPE_TENSOR_DMMA}
    with pytest.raises(UnsupportedError) as caught:
        library.matmul(
            library.at_offset(a, 4), library.at_offset(b, 8).T, epilog="BIAS",
            epilog_inputs={"bias": library.at_offset(bias, 4)}, preferences=impossible, options={"memory_limit": 0},
        )  # fmt: skip
    text = str(caught.value)
    for words in ("80", "1024", "160", "BIAS", "cuBLASLt", "compute capability", "leading dimension 160",
                  "a multiple of 4 bytes", "a multiple of 8 bytes", "workspace: up to 0 bytes"):  # fmt: skip
        assert words in text, f"{words!r} is not in: {text}"
    assert_product(library.get(library.matmul(library.put(a), library.put(b).T)), *expected(a, b.T), 160)


@pytest.mark.parametrize("shape", [(64, 1), (1, 64)], ids=str)
def test_r065_every_algorithm_adds_the_bias_as_exactly_as_its_reduction_allows(library, shape):
    """Sums near 1024 and a bias of -1024 leave small whole numbers, which bf16 has exactly.

    An algorithm that keeps parts of a split K in bf16 rounds each of them: numbers up to some 1100 by 4 at most.
    """
    rng = np.random.default_rng(65)
    a, b = rng.random((64, 16384)) < 0.25, rng.random((16384, 64)) < 0.25
    want = wide(a) @ wide(b) - 1024
    for dtype in library.having(BF16, F16):
        operands = [library.put(x.astype(dtype)) for x in (a, b)]
        inputs = {"bias": library.put(np.full(shape, -1024, dtype))}
        with library.Matmul(*operands) as mm:
            mm.plan(epilog="BIAS", epilog_inputs=inputs)
            planned = mm.algorithms
            mm.autotune(iterations=3)
            for algorithm in {*planned, *mm.algorithms}:
                off = abs(wide(library.get(mm.execute(algorithm=algorithm))) - want).max()
                in_low_precision = MatmulReductionScheme.INPLACE | MatmulReductionScheme.OUTPUT_TYPE
                splits = algorithm.split_k if algorithm.reduction_scheme & in_low_precision else 0
                assert off <= 4 * (splits + 1) * bool(splits), f"off by {off}: {algorithm}"
        for choice in ({"reduction_scheme_mask": MatmulReductionScheme.NONE}, None):
            with library.Matmul(*operands, options={} if choice else {"deterministic": True}) as mm:
                for algorithm in mm.plan(epilog="BIAS", epilog_inputs=inputs, preferences=choice):
                    assert algorithm.split_k <= 1 or not algorithm.reduction_scheme
                    assert_exact(library.get(mm.execute(algorithm=algorithm)), want)


def test_r071_tuning_changes_neither_operands_nor_results(library):
    rng = np.random.default_rng(71)
    a, b, c = (whole(rng, shape, F16) for shape in ((512, 64), (64, 768), (512, 768)))
    placed = [library.put(x) for x in (a, b, c)]
    want = wide(a) @ wide(b) + 2 * wide(c)
    with library.Matmul(*placed, beta=2) as mm:
        planned = mm.plan()
        before = mm.execute()
        timings = mm.autotune(iterations=3)
        assert len(timings) == len(planned)
        assert {timing.algorithm for timing in timings} == set(planned)
        assert [t.microseconds for t in timings] == sorted(t.microseconds for t in timings)
        for x, copy in zip((a, b, c), placed, strict=True):
            assert_exact(library.get(copy), x)
        for d in (before, mm.execute()):
            assert_exact(library.get(d), want)
        for algorithm in mm.algorithms:
            out = library.poisoned((512, 768), F16)
            mm.execute(algorithm=algorithm, out=out)
            assert_exact(library.get(out), want)


def test_r071_tuning_a_product_in_place_leaves_c(library):
    rng = np.random.default_rng(710)
    a, b, c = (whole(rng, (256, 256), F32) for _ in range(3))
    place = library.put(c)
    with library.Matmul(library.put(a), library.put(b), place, beta=1, options={"inplace": True}) as mm:
        mm.plan()
        mm.autotune(iterations=3)
        assert_exact(library.get(place), c)
        assert mm.execute() is place
    assert_exact(library.get(place), wide(a) @ wide(b) + wide(c))


def bits(library, array):
    return library.get(array).tobytes()


def test_r081_one_plan_gives_equal_bits_every_time(library):
    rng = np.random.default_rng(81)
    a, b = library.put(normal(rng, (10, 768), F16)), library.put(normal(rng, (768, 768), F16))
    for options in ({}, {"deterministic": True}):
        with library.Matmul(a, b, options=options) as mm:
            mm.plan(preferences=None if options else {"reduction_scheme_mask": MatmulReductionScheme.NONE})
            assert len({bits(library, mm.execute()) for _ in range(50)}) == 1


def test_r081_one_algorithm_for_two_batches_gives_equal_rows(library):
    """Ten rows alone and among twenty: an algorithm that does not split K adds each element up in one order."""
    rng = np.random.default_rng(810)
    a, b = normal(rng, (20, 768), F16), library.put(normal(rng, (768, 768), F16))
    few, many = library.put(a[:10].copy()), library.put(a)
    with library.Matmul(many, b, options={"deterministic": True}) as of_many, library.Matmul(few, b) as of_few:
        for algorithm in of_many.plan():
            try:
                (pinned,) = of_few.plan(algorithms=[algorithm])
            except InvalidArgumentError:
                continue  # it does not fit the smaller product
            break
        else:
            pytest.fail("no algorithm of twenty rows computes ten")
        assert pinned.algorithm_id == algorithm.algorithm_id
        assert (pinned.tile, pinned.split_k) == (algorithm.tile, algorithm.split_k)
        alone, among = (library.get(d) for d in (of_few.execute(), of_many.execute(algorithm=algorithm)))
        assert alone.tobytes() == among[:10].tobytes()
        assert_product(alone, *expected(a[:10], library.get(b)), 768)
