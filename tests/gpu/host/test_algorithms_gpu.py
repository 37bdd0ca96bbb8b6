# SPDX-License-Identifier: Apache-2.0
"""Planned algorithms: each computes the product, autotune orders them, files keep them, settings are checked."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from nvmath_device import host
from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError
from tests.gpu.host.arrays import BIG, LIBRARIES, big, new, product_of, right
from tests.gpu.host.libraries import to_numpy
from tests.gpu.host.product_checks import norm_error


@LIBRARIES
def test_every_planned_algorithm_is_right(library):
    a, b = big(library)
    with host.Matmul(a, b) as mm:
        found = mm.plan(preferences={"limit": 16})
        assert 1 <= len(found) <= 16
        assert mm.algorithms == found
        assert mm.applicable_algorithm_ids(4) == [x.algorithm_id for x in found[:4]]
        for algorithm in found:
            right(mm.execute(algorithm=algorithm), a, b, 2e-3)
            assert algorithm.workspace_bytes >= 0
            assert "tile=" in repr(algorithm)
        with pytest.raises((ArgumentTypeError, InvalidArgumentError), match="algorithm"):
            mm.execute(algorithm="the fastest")


@LIBRARIES
@pytest.mark.parametrize("flush", [True, False])
def test_autotune_changes_nothing_but_the_order(library, flush, tmp_path, monkeypatch):
    monkeypatch.setenv("NVMATH_DEVICE_CACHE_DIR", str(tmp_path))
    a, b = big(library)
    c = new(library, BIG[0], BIG[1], seed=2, name="float16")
    before = [to_numpy(x) for x in (a, b, c)]
    with host.Matmul(a, b, c, beta=0.5) as mm:
        found = mm.plan()
        want = product_of(a, b) + 0.5 * to_numpy(c)
        result = mm.execute()
        timings = mm.autotune(iterations=3, flush=flush)
        assert {id(t.algorithm) for t in timings} <= {id(x) for x in found}
        assert [t.algorithm for t in timings] == list(mm.algorithms)
        times = [t.microseconds for t in timings]
        assert times[1:] == sorted(times[1:])
        assert 0 < times[0] <= 1.01 * min(times) < 1e5  # of those that are as good as equal, cuBLASLt's first
        assert all(len(t.samples) in (3, 15) for t in timings)  # short ones are timed five times a round
        for out in (result, mm.execute(), mm.execute()):
            assert norm_error(to_numpy(out), want) < 2e-3
        assert all(np.array_equal(x, to_numpy(y)) for x, y in zip(before, (a, b, c), strict=True))
        order = [bytes(x.algo) for x in mm.algorithms]
        assert len(mm.autotune(iterations=3, prune=1, flush=flush)) == len(mm.algorithms) == 1
        assert norm_error(to_numpy(mm.execute()), want) < 2e-3
    with host.Matmul(a, b, c, beta=0.5) as again:
        again.plan()
        timings = again.autotune(iterations=3, flush=flush)
        assert [bytes(t.algorithm.algo) for t in timings] == order
        assert not any(t.samples for t in timings), "it was timed again, although its order is on disk"
        assert norm_error(to_numpy(again.execute()), want) < 2e-3


@LIBRARIES
def test_autotune_with_an_epilog_and_in_place(library):
    a, b, c = *big(library), new(library, BIG[0], BIG[1], seed=2, name="float16")
    before = to_numpy(c)
    with host.Matmul(a, b, c, beta=1, options={"inplace": True}) as mm:
        mm.plan(epilog="RELU")
        mm.autotune(iterations=2)
        assert np.array_equal(to_numpy(c), before)
        mm.execute()
        assert norm_error(to_numpy(c), np.maximum(product_of(a, b) + before, 0)) < 2e-3


@LIBRARIES
def test_algorithms_in_files_bytes_and_pickles(library, tmp_path):
    a, b = big(library)
    path = tmp_path / "algorithms.json"
    with host.Matmul(a, b) as mm:
        found = mm.plan()
        host.save_algorithms(path, found)
        kept = [bytes(x.algo) for x in found]
        results = [to_numpy(mm.execute(algorithm=x)) for x in found]
        pickled = pickle.dumps(found)
        arrays = [x.as_numpy() for x in found]
    for loaded in (
        host.load_algorithms(path), kept, pickle.loads(pickled), [host.Algorithm.from_numpy(x) for x in arrays]
    ):  # fmt: skip
        with host.Matmul(a, b) as mm:
            taken = mm.plan(algorithms=loaded)
            assert [bytes(x.algo) for x in taken] == kept
            for algorithm, want in zip(taken, results, strict=True):
                assert np.array_equal(to_numpy(mm.execute(algorithm=algorithm)), want)
            assert np.array_equal(to_numpy(host.matmul(a, b, algorithm=taken[-1])), results[-1])
    x, y = new(library, 33, 7, name="float64"), new(library, 7, 5, name="float64")
    with host.Matmul(x, y) as mm, pytest.raises(InvalidArgumentError, match="cannot compute"):
        mm.plan(algorithms=kept[:1])


@LIBRARIES
def test_attributes_of_an_algorithm_are_checked_when_set(library):
    """Whatever its capabilities allow is right or refused; what they do not is refused. Refused means unchanged."""
    a, b = big(library)
    with host.Matmul(a, b) as mm:
        algorithm = mm.plan()[0]
        can = algorithm.capabilities
        changed = 0
        settings = [("tile", t) for t in can.tile_ids[:12]] + [("stages", s) for s in can.stages_ids[:12]]
        settings += [("cta_swizzling", 1), ("cta_swizzling", 0), ("custom_option", min(can.custom_option_max, 1))]
        for name, value in settings:
            before = bytes(algorithm.algo), algorithm.revision
            try:
                setattr(algorithm, name, value)
            except InvalidArgumentError as error:
                assert name in str(error)  # noqa: PT017 - it may be set as well
                assert (bytes(algorithm.algo), algorithm.revision) == before
                continue
            assert getattr(algorithm, name) == value
            changed += algorithm.revision > before[1]
            try:
                right(mm.execute(algorithm=algorithm), a, b, 2e-3)
            except InvalidArgumentError as error:
                assert "workspace" in str(error)  # noqa: PT017 - it may work as well
        assert changed
        for name, value in (
            ("tile", 10**6),
            ("stages", -1),
            ("split_k", 0),
            ("cta_swizzling", 7),
            ("custom_option", -3),
        ):
            before = bytes(algorithm.algo)
            with pytest.raises(InvalidArgumentError, match=name):
                setattr(algorithm, name, value)
            assert bytes(algorithm.algo) == before
        with pytest.raises(InvalidArgumentError, match="no such attribute"):
            algorithm.configure(speed=11)


@LIBRARIES
def test_split_k_with_its_scheme(library):
    a, b = new(library, 64, 8192), new(library, 8192, 64, seed=1)
    with host.Matmul(a, b) as mm:
        mm.plan()
        for algorithm in mm.algorithms:
            if not algorithm.capabilities.splitk_support:
                continue
            for parts in (1, 2, 8):
                scheme = "NONE" if parts == 1 else "COMPUTE_TYPE"
                try:
                    algorithm.configure(split_k=parts, reduction_scheme=scheme)
                except InvalidArgumentError:
                    continue
                assert algorithm.split_k == parts
                again = host.Matmul(a, b)
                taken = again.plan(algorithms=[algorithm])
                assert taken[0].split_k == parts
                right(again.execute(), a, b, 1e-5)
                again.free()
