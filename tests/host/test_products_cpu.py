# SPDX-License-Identifier: Apache-2.0
"""The cases of ``tests/gpu/host`` executed on the CPU, through the public API, against NumPy in float64.

They show two things without a GPU: that execution on the CPU means what execution on a GPU does, and that the tests'
own expected values, bounds and checks hold, and fail where they should.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from tests.gpu.host import product_cases as cases
from tests.gpu.host.fuzz import explore
from tests.gpu.host.product_cases import aux_of, bias_of, pair, target
from tests.gpu.host.product_checks import check, expected
from tests.gpu.host.products import COMPLEX, EPILOGS, FLOATS, FP8_KINDS, INT8, KINDS, Case, lay, run

ON_CPU = {"execution": "cpu"}
FAMILIES = [
    cases.layout_cases, cases.batch_cases, cases.permuted_batch_cases, cases.vector_cases, cases.empty_cases,
    cases.c_cases, cases.out_cases,
]  # fmt: skip


def each(family, *arguments):
    for case in family(*arguments):
        try:
            check(case, run(case, "cpu", **ON_CPU))
        except Exception as error:
            error.add_note(str(case))
            raise


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
@pytest.mark.parametrize("kind", KINDS.values(), ids=str)
def test_products(kind, family):
    each(family, kind, "numpy")


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
@pytest.mark.parametrize("kind", [FLOATS["float32"], COMPLEX["complex128"], INT8["int8"]], ids=str)
def test_products_of_arrays_that_only_speak_dlpack(kind, family):
    each(family, kind, "dlpack")


@pytest.mark.parametrize("kind", COMPLEX.values(), ids=str)
def test_conjugates(kind):
    each(cases.conjugate_cases, kind, "numpy")


@pytest.mark.parametrize("along", ["rows", "columns"])
@pytest.mark.parametrize("epilog", EPILOGS)
@pytest.mark.parametrize("kind", [*FLOATS.values(), FP8_KINDS["float8_e4m3fnxfloat8_e5m2->float8_e5m2"]], ids=str)
def test_epilogs(kind, epilog, along):
    if kind.a.startswith("float8") and epilog in ("BGRADA", "BGRADB"):
        return  # refused: cuBLASLt has none
    each(cases.epilog_cases, kind, "numpy", epilog, along)


@pytest.mark.parametrize("chunk", range(100, 104))
def test_any_product(chunk):
    tally = explore(chunk, 125, "cpu", **ON_CPU)
    assert not tally.failures, "\n\n".join(tally.failures)
    assert tally.examples == 125
    assert (tally.reached, tally.copied) == (0, 0)


# -- the checks themselves ----------------------------------------------------------------------------------


def a_case(epilog="DEFAULT", **changes):
    rng = np.random.default_rng(1)
    kind = FLOATS["float32"]
    given = pair(rng, kind, "numpy", (20, 16), (16, 24)) | {"out": target(kind, "numpy", (20, 24), {"gaps": (0, 3)})}
    if epilog == "RELU_AUX_BIAS":
        given["bias"] = bias_of(rng, kind, "numpy", (1, 24))
    if epilog == "DGELU_BGRAD":
        given["gelu_aux"] = aux_of(rng, kind, "numpy", "gelu_aux", (), 20, 24, "columns")
    return Case(kind, given, epilog=epilog, along="columns" if epilog != "DEFAULT" else None, **changes)


def spoil(outcome, name, index, value):
    outcome.arrays[name][index] = value


def shift(outcome, name, index, factor):
    outcome.arrays[name][index] *= factor


def largest(array):
    return np.unravel_index(abs(array).argmax(), array.shape)


WRONG = {
    "an element": lambda o: spoil(o, "d", (3, 5), 0.0),
    "NaN": lambda o: spoil(o, "d", (19, 23), math.nan),
    "a row left out": lambda o: spoil(o, "d", (4, slice(None)), 0.0),
    "one element in the third digit": lambda o: shift(o, "d", largest(o.arrays["d"]), 1.001),
    "two columns exchanged": lambda o: spoil(o, "d", (slice(None), [0, 1]), o.arrays["d"][:, [1, 0]]),
    "another type": lambda o: o.arrays.update(d=o.arrays["d"].astype(np.float64)),
    "another shape": lambda o: o.arrays.update(d=o.arrays["d"].T),
    "an output too many": lambda o: o.arrays.update(more=o.arrays["d"]),
    "an operand changed": lambda o: o.placed["a"].array.__setitem__((0, 0), 7),
    "written beside out": lambda o: o.placed["out"].memory().__setitem__(24, 7),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_with_a_result_is_noticed(wrong):
    case = a_case()
    outcome = run(case, "cpu", **ON_CPU)
    check(case, outcome)
    WRONG[wrong](outcome)
    with pytest.raises(AssertionError):
        check(case, outcome)


@pytest.mark.parametrize(
    ("epilog", "name"), [("RELU_AUX_BIAS", "relu_aux"), ("DGELU_BGRAD", "dgelu_bgrad"), ("DGELU_BGRAD", "d")]
)
def test_what_is_wrong_with_auxiliary_outputs_is_noticed(epilog, name):
    case = a_case(epilog)
    outcome = run(case, "cpu", **ON_CPU)
    check(case, outcome)
    array = outcome.arrays[name]
    if name == "relu_aux":
        array[7, 1] ^= 0x10  # one bit
    else:
        array[..., 3] *= -1
    with pytest.raises(AssertionError, match=name):
        check(case, outcome)


@pytest.mark.parametrize("change", [{"alpha": -1}, {"epilog": "RELU"}, {"scales": {"a": 2.0}}, {"conj": (True, False)}])
def test_a_product_that_was_not_asked_for_is_noticed(change):
    """The result of one case is not that of a case with one thing changed; conjugation changes nothing of real ones."""
    case = a_case()
    outcome = run(case, "cpu", **ON_CPU)
    other = dataclasses.replace(case, **change)
    if "conj" in change:
        check(other, outcome)
        return
    with pytest.raises(AssertionError):
        check(other, outcome)


def test_bounds_are_not_loose():
    """A result is allowed to be off by a few units of its type: what one format less would give is refused."""
    for name, narrower in (("float64", np.float32), ("float32", np.float16)):
        rng = np.random.default_rng(2)
        case = Case(FLOATS[name], pair(rng, FLOATS[name], "numpy", (32, 64), (64, 32)))
        wanted = expected(case)["d"]
        off = np.linalg.norm(wanted.values - wanted.values.astype(narrower))
        assert np.linalg.norm(wanted.allowed) < off / 5
    half = Case(FLOATS["float16"], pair(np.random.default_rng(3), FLOATS["float16"], "numpy", (32, 64), (64, 32)))
    wanted = expected(half)["d"]
    assert np.linalg.norm(wanted.allowed) < 2.0**-10 * np.linalg.norm(wanted.values)


def test_poison_is_around_operands():
    made = lay(np.ones((2, 3)), "float32", gaps=(1, 2), offset=4)
    assert np.isnan(made.buffer[made.beside]).all()
    assert made.beside.sum() == made.buffer.size - 6
    assert (made.view == 1).all()
