# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F811  (a fixture is imported and is a parameter's name)
"""Layouts of a ``Matmul`` on the host: sizes, what is refused, and that libmathdx is asked only where it must be."""

from __future__ import annotations

import pickle

import pytest

import nvmath_device as nd
from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError
from nvmath_device.lto import codegen
from nvmath_device.tensor_plans import TensorPlan
from tests.real_code import SM90, TENSORS, generated  # noqa: F401  (a fixture)

ROW, COL = "row_major", "col_major"
HALF = ("float16", "float16", "float32")


def matmul(**options):
    base = {"arrangement": (ROW, COL, ROW), "block_size": 64, "leading_dimension": (8, 24, 12)}
    return nd.Matmul((20, 10, 5), HALF, "real", **{**base, **options})


@pytest.fixture
def unasked(monkeypatch):
    def refuse(*_):
        raise AssertionError("libmathdx or a device was asked")

    monkeypatch.setattr(codegen, "tensor_traits", refuse)
    monkeypatch.setattr("nvmath_device.matmul.current_target", refuse)


def test_plain_layouts_follow_from_the_descriptor(unasked):
    mm = matmul(alignment=(2, 4, 8))
    got = {x: getattr(mm, f"get_layout_smem_{x}")() for x in "abc"}
    # A: 20 rows of 5, 8 apart. B: 10 columns of 5, 24 apart. C: 20 rows of 10, 12 apart.
    assert {x: (v.size, v.cosize, v.alignment) for x, v in got.items()} == {
        "a": (100, 19 * 8 + 5, 2),
        "b": (50, 9 * 24 + 5, 4),
        "c": (200, 19 * 12 + 10, 8),
    }


@pytest.mark.parametrize(("ld", "cosize"), [(None, 9 * 24 + 5), (7, 9 * 7 + 5), (5, 50)])
def test_layouts_in_global_memory(unasked, ld, cosize):
    layout = matmul().get_layout_gmem_b(ld)
    assert (layout.size, layout.cosize, layout.alignment, layout.leading_dimension) == (50, cosize, 2, ld)


@pytest.mark.parametrize(
    ("ld", "error", "words"),
    [
        (4, InvalidArgumentError, "4 is less than the 5 columns of the row_major matrix A"),
        (0, InvalidArgumentError, "0 is not allowed"),
        (-3, InvalidArgumentError, "-3 is not allowed"),
        (5.0, ArgumentTypeError, "5.0 is a float"),
        ("8", ArgumentTypeError, "'8' is a str"),
    ],
)
def test_leading_dimensions_that_cannot_be(ld, error, words):
    with pytest.raises(error, match="leading_dimension: ") as caught:
        matmul().get_layout_gmem_a(ld)
    assert words in str(caught.value)


def test_layouts_are_values():
    layout = matmul().get_layout_gmem_a(9)
    assert layout == matmul().get_layout_gmem_a(9) != matmul().get_layout_gmem_a()
    assert hash(layout) == hash(matmul().get_layout_gmem_a(9))
    assert pickle.loads(pickle.dumps(layout)) == layout
    assert "get_layout_gmem_a of Matmul(20x10x5" in repr(layout)
    assert matmul().get_layout_smem_a() != matmul().suggest_layout_smem_a()


def test_what_libmathdx_suggests(generated):
    """The question is one of those generated for the session; a suggested layout has no padding here."""
    mm = nd.Matmul.from_descriptor(TENSORS.descriptor, TensorPlan(*TENSORS.resolved(SM90)).execution)
    sizes = [x.cosize for x in (mm.suggest_layout_smem_a(), mm.suggest_layout_smem_b(), mm.suggest_layout_smem_c())]
    assert sizes == [64 * 32, 32 * 64, 64 * 64]
    assert [x.size for x in (mm.get_layout_rmem_c(), mm.suggest_layout_rmem_c())] == [64 * 64 // 128] * 2
    assert {x.alignment for x in (mm.suggest_layout_smem_a(), mm.suggest_layout_rmem_c())} == {16}
    ab = mm.get_shared_storage_size_ab(mm.suggest_layout_smem_a(), mm.suggest_layout_smem_b())
    assert ab == 2 * 64 * 32 * 2


# -- shared memory ---------------------------------------------------------------------------------------------------


def test_storage_of_layouts(unasked):
    mm = matmul()
    a, b, c = (getattr(mm, f"get_layout_smem_{x}")() for x in "abc")
    offset_b = -(-(19 * 8 + 5) * 2 // 16) * 16
    end_b = offset_b + (9 * 24 + 5) * 2
    assert mm.get_shared_storage_size_ab(a, b) == end_b
    assert mm.get_shared_storage_size(a, b, c) == -(-end_b // 16) * 16 + (19 * 12 + 10) * 4


def test_layouts_of_something_else_are_refused():
    mm, other = matmul(), matmul(block_size=128)
    a, b = mm.get_layout_smem_a(), mm.get_layout_smem_b()
    for wrong in [(b, a), (a, other.get_layout_smem_b()), (mm.get_layout_gmem_a(), b), (a, mm.get_layout_rmem_c())]:
        with pytest.raises(InvalidArgumentError, match=r"give get_layout_smem_[ab]\(\) or suggest"):
            mm.get_shared_storage_size_ab(*wrong)
    with pytest.raises(InvalidArgumentError, match="got 2"):
        mm.get_shared_storage_size(a, b)
    with pytest.raises(ArgumentTypeError, match="each argument must be a layout"):
        mm.get_shared_storage_size_ab(a, 24)


def test_parts_of_a_buffer(unasked):
    mm = matmul()
    calc = nd.SharedStorageCalc()
    assert calc.add(16, 2, mm.get_layout_smem_a()) == 0
    assert calc.add(16, 2, mm.get_layout_smem_b()) == 320
    assert calc.get() == 320 + (9 * 24 + 5) * 2
    with pytest.raises(InvalidArgumentError, match="not in shared memory"):
        calc.add(16, 2, mm.get_layout_gmem_a())


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((3, 8), InvalidArgumentError, "alignment: 3 is not a power of two"),
        ((0, 8), InvalidArgumentError, "alignment: 0"),
        (("16", 8), ArgumentTypeError, "alignment: '16' is a str"),
        ((16,), InvalidArgumentError, "give bytes, or itemsize and elements"),
        ((16, -8), InvalidArgumentError, "bytes: -8"),
        ((16, 2, "many"), ArgumentTypeError, "elements: 'many' is a str"),
        ((16, 2, 3, 4), InvalidArgumentError, "give bytes, or itemsize and elements"),
    ],
)
def test_parts_that_cannot_be(arguments, error, words):
    with pytest.raises(error) as caught:
        nd.SharedStorageCalc().add(*arguments)
    assert words in str(caught.value)


# -- recipes ---------------------------------------------------------------------------------------------------------


def test_families_that_need_not_differ_are_one():
    """The suggested layouts do not know the leading dimension, and flags about pipelines say nothing here."""
    plans = [
        TensorPlan(*mm.resolved(SM90))
        for mm in (matmul(), matmul(leading_dimension=None), matmul(with_pipeline=True, static_block_dim=True))
    ]
    assert len({p.recipe(True).symbol for p in plans}) == 1
    assert len({p.recipe(False).symbol for p in plans}) == 2
    assert plans[0] == plans[2]


def test_families_that_differ_have_other_symbols():
    plan = TensorPlan(*matmul().resolved(SM90))
    recipes = [plan.recipe(False), plan.recipe(True), plan.recipe(False, 8), plan.recipe(False, 16)]
    recipes.append(TensorPlan(*matmul(block_size=128).resolved(SM90)).recipe(False))
    assert len({r.symbol for r in recipes}) == len(recipes)
