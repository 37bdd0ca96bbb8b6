# SPDX-License-Identifier: Apache-2.0
"""Reported cases about an object's life: what it holds on to, what it needs, and what it says when it is over.

``tests/gpu/host/test_reports_lifetime.py`` runs those that ask for a ``library`` on a GPU.
"""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

from nvmath_device.dtypes import float32
from nvmath_device.errors import (
    ArgumentTypeError,
    HostLibraryError,
    InvalidArgumentError,
    InvalidStateError,
    NvmathDeviceError,
)
from nvmath_device.host import Matmul, MatmulEpilog, MatmulReductionScheme
from nvmath_device.host.cublaslt_enums import Status
from nvmath_device.host.obstacles import details
from nvmath_device.host.planned import GpuProduct
from nvmath_device.host.probe import Request, imagine
from tests.host.cpu_products import normal, whole
from tests.host.report_tools import BF16, F16, F32, assert_exact, assert_product, cpu_library, expected, wide

library = cpu_library


@pytest.fixture
def no_collector():
    """References have to be given up, not found unreachable later."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def arrays(library, *shapes):
    """Arrays, and whether each of them is still alive."""
    rng = np.random.default_rng(72)
    made = [library.put(whole(rng, shape, F32)) for shape in shapes]
    references = [weakref.ref(array) for array in made]
    return made, lambda: [reference() is not None for reference in references]


def planned(library, made):
    a, b, c, bias = made
    mm = library.Matmul(a, b, c, beta=1)
    mm.plan(epilog="BIAS", epilog_inputs={"bias": bias})
    mm.execute()
    return mm


SHAPES = (16, 8), (8, 12), (16, 12), (16, 1)


@pytest.mark.usefixtures("no_collector")
def test_r072_free_lets_go_of_all_operands(library):
    made, alive = arrays(library, *SHAPES)
    mm = planned(library, made)
    made.clear()
    assert all(alive())
    mm.free()
    assert not any(alive())
    mm.free()  # twice is allowed


@pytest.mark.usefixtures("no_collector")
def test_r072_the_end_of_a_with_block_lets_go_of_all_operands(library):
    made, alive = arrays(library, *SHAPES)
    with planned(library, made):
        made.clear()
        assert all(alive())
    assert not any(alive())


@pytest.mark.usefixtures("no_collector")
def test_r072_an_exception_inside_a_with_block_lets_go_of_all_operands(library):
    made, alive = arrays(library, *SHAPES)

    def fail():
        with planned(library, made) as mm:
            made.clear()
            mm.reset_operands(a=None)

    with pytest.raises(InvalidArgumentError, match="nothing is given"):
        fail()
    assert not any(alive())


@pytest.mark.usefixtures("no_collector")
def test_r072_released_and_replaced_operands_are_let_go_of(library):
    made, alive = arrays(library, *SHAPES, (16, 8), (16, 8))
    other, another = made.pop(), made.pop()
    mm = planned(library, made)
    made.clear()
    mm.reset_operands(a=other)
    mm.execute()
    mm.reset_operands(a=another)
    mm.execute()
    del other
    assert alive() == [False, True, True, True, True, False]
    del another
    mm.release_operands()
    assert not any(alive())


@pytest.mark.usefixtures("no_collector")
def test_r072_results_and_operands_of_a_call_are_the_callers_alone(library):
    made, alive = arrays(library, (16, 8), (8, 12))
    for _ in range(3):
        result = library.matmul(*made)
    gone = weakref.ref(result)
    made.clear()
    assert not any(alive())
    del result
    assert gone() is None


def test_r072_use_after_free_is_refused_in_words(library):
    made, _ = arrays(library, *SHAPES)
    mm = planned(library, made)
    mm.free()
    for use in (mm.execute, mm.plan, mm.autotune, mm.release_operands, mm.__enter__, lambda: mm.descriptor,
                lambda: mm.reset_operands(a=made[0])):  # fmt: skip
        with pytest.raises(InvalidStateError, match="was freed"):
            use()


def test_r072_use_after_release_is_refused_until_all_operands_are_given(library):
    made, _ = arrays(library, *SHAPES)
    with planned(library, made) as mm:
        before = library.get(mm.execute())
        mm.release_operands()
        with pytest.raises(InvalidStateError, match=r"were released; give them again with reset_operands"):
            mm.execute()
        with pytest.raises(InvalidStateError, match="give b, c, bias, too"):
            mm.reset_operands(a=made[0])
        mm.reset_operands(a=made[0], b=made[1], c=made[2], epilog_inputs={"bias": made[3]})
        assert_exact(library.get(mm.execute()), before)


def test_r072_execution_needs_a_plan(library):
    made, _ = arrays(library, (4, 4), (4, 4))
    with library.Matmul(*made) as mm, pytest.raises(InvalidStateError, match=r"not planned; call plan\(\) first"):
        mm.execute()


def test_r083_the_rule_for_captured_graphs_is_documented():
    assert "graph" in Matmul.free.__doc__
    assert "must then outlive the graph" in " ".join(Matmul.__doc__.split())


def test_r082_a_plan_that_is_refused_leaves_the_one_there_is(library):
    made, _ = arrays(library, *SHAPES)
    with planned(library, made) as mm:
        before = library.get(mm.execute())
        for wrong in ({"epilog": "BIAS", "epilog_inputs": {"bias": made[0]}}, {"epilog": "SILU"}, {"epilog": "BIAS"},
                      {"preferences": {"limit": 0}}, {"out": made[0]}):  # fmt: skip
            with pytest.raises(NvmathDeviceError):
                mm.plan(**wrong)
            assert_exact(library.get(mm.execute()), before)
            out = library.poisoned(before.shape, F32, "F")
            mm.execute(out=out)
            assert_exact(library.get(out), before)


# -- memory limits ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [0, "0 B", 1, "0.1%", "1 GiB", "50 MB", 0.5], ids=str)
def test_r103_every_form_of_a_limit_gives_the_product(library, limit):
    rng = np.random.default_rng(103)
    a, b = normal(rng, (256, 512), F32), normal(rng, (512, 128), F32)
    options = {"memory_limit": limit}
    assert_product(library.get(library.matmul(library.put(a), library.put(b), options=options)), *expected(a, b), 512)
    with library.Matmul(library.put(a), library.put(b), options=options) as mm:
        most = {0: 0, "0 B": 0, 1: 1, "1 GiB": 2**30, "50 MB": 50_000_000}.get(limit, 2**40)
        assert all(algorithm.workspace_bytes <= most for algorithm in mm.plan())


@pytest.mark.parametrize(
    ("limit", "error", "words"),
    [
        (-1, InvalidArgumentError, "-1 is negative"),
        ("-5%", InvalidArgumentError, "'-5%' is negative"),
        ("101%", InvalidArgumentError, "more than the whole memory"),
        ("12 parsecs", InvalidArgumentError, "unknown unit 'parsecs'"),
        ("plenty", InvalidArgumentError, "'plenty' is not a limit"),
        (True, ArgumentTypeError, "is a bool"),
    ],
)
def test_r103_what_is_no_limit_says_so_and_not_that_memory_is_short(library, limit, error, words):
    one = library.put(np.eye(4, dtype=np.float32))
    with pytest.raises(error, match=f"^memory_limit: .*{words}"):
        library.matmul(one, one, options={"memory_limit": limit})


# -- algorithms ---------------------------------------------------------------------------------------------


def test_r064_algorithms_are_tried_in_order_until_one_works():
    product = GpuProduct(None, None, None, None, [])  # type: ignore[arg-type]
    names = product.algorithms = tuple(SimpleNamespace(name=name) for name in ("first", "second", "third"))
    tried = []

    def attempt(algorithm):
        tried.append(algorithm.name)
        if algorithm.name != "third":
            raise HostLibraryError("no", status=Status.NOT_SUPPORTED)
        return "done"

    assert product.first_that_works(attempt) == "done"
    assert tried == ["first", "second", "third"]
    assert product.algorithms == names[2:]  # those that failed are not tried again


@pytest.mark.parametrize("status", [Status.NOT_SUPPORTED, Status.EXECUTION_FAILED], ids=str)
def test_r064_the_last_failure_and_failures_of_the_device_are_raised(status):
    product = GpuProduct(None, None, None, None, [])  # type: ignore[arg-type]
    product.algorithms = (SimpleNamespace(name="only"), *[SimpleNamespace(name="more")] * (status != 15))

    def attempt(algorithm):
        assert algorithm.name == "only"
        raise HostLibraryError("no", status=status)

    with pytest.raises(HostLibraryError, match="no"):
        product.first_that_works(attempt)


def test_r064_a_refusal_lists_layout_alignment_and_workspace():
    request = Request(
        a=imagine((80, 160), float32, alignment=4), b=imagine((160, 1024), float32, axes=(1, 0), alignment=8), c=None,
        out=imagine((80, 1024), float32), inputs={"bias": imagine((1, 1024), float32, alignment=4)},
        epilog=MatmulEpilog.BIAS, workspace_limit=1 << 20,
    )  # fmt: skip
    for line in (
        "a: float32 (80, 160), row-major, leading dimension 160, address a multiple of 4 bytes",
        "b: float32 (160, 1024), col-major, leading dimension 160, address a multiple of 8 bytes",
        "d: float32 (80, 1024), row-major, leading dimension 1024, address a multiple of 256 bytes",
        "bias: float32 (1, 1024), stride 1, address a multiple of 4 bytes",
        "workspace: up to 1048576 bytes (memory_limit)",
    ):
        assert line in details(request)


def test_r065_a_bias_is_added_before_the_result_is_rounded(library):
    """Sums near 1024 and a bias of -1024: all is exact, unless the sum is rounded to bf16 or fp16 first."""
    rng = np.random.default_rng(65)
    a, b = rng.integers(0, 2, (64, 4096)), rng.integers(0, 2, (4096, 64))
    unsplit = {"reduction_scheme_mask": MatmulReductionScheme.NONE}
    for dtype in library.having(BF16, F16):
        for shape in ((64, 1), (1, 64)):
            bias = np.full(shape, -1024, dtype)
            out = library.poisoned((64, 64), dtype)
            library.matmul(
                library.put(a.astype(dtype)), library.put(b.astype(dtype)), epilog="BIAS",
                epilog_inputs={"bias": library.put(bias)}, out=out, preferences=unsplit,
            )  # fmt: skip
            want = wide(a) @ wide(b) - 1024
            assert abs(want).max() < 256  # so that bf16 has the result exactly
            assert_exact(library.get(out), want)
