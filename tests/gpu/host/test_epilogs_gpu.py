# SPDX-License-Identifier: Apache-2.0
"""Epilogs on a GPU: all of them, in both directions, of all types that have them, with batches, and at M == N.

Expected values are float64 NumPy (``products.py``), masks are compared bit by bit, and a forward and a backward pass
with PyTorch's autograd in float64 on the CPU.
"""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from nvmath_device import host
from nvmath_device.errors import InvalidArgumentError, UnsupportedError
from tests.gpu.host.libraries import CUPY, TORCH, combinations, library_of, needs, place, to_numpy
from tests.gpu.host.product_cases import LAYOUTS, array, aux_of, bias_of, epilog_cases, may_be_missing, pair, target
from tests.gpu.host.product_checks import check, close, expected, norm_error
from tests.gpu.host.products import (
    AUX_OF,
    BACKWARD,
    COMPLEX,
    EPILOGS,
    FLOATS,
    FP8_KINDS,
    HAS_BIAS,
    INT8,
    WIDE,
    Case,
    Given,
    Kind,
    aux_extents,
    bits_of,
    lay,
    run,
)

REAL = [*FLOATS.values(), *WIDE.values()]
POOLS = [*combinations(REAL, ["torch"]), *combinations([FLOATS["float32"], FLOATS["float16"]], ["cupy"])]
ALONG = ("rows", "columns")
SUMS_OF_OPERANDS = ("BGRADA", "BGRADB")


def each(case_list):
    for case in case_list:
        try:
            check(case, run(case, "cuda"))
        except Exception as error:
            error.add_note(str(case))
            raise


@pytest.mark.parametrize("along", ALONG)
@pytest.mark.parametrize("epilog", EPILOGS)
@pytest.mark.parametrize(("kind", "library"), POOLS)
def test_epilogs(kind, library, epilog, along):
    each(epilog_cases(kind, library, epilog, along))


@pytest.mark.parametrize("along", ALONG)
@pytest.mark.parametrize("epilog", [e for e in EPILOGS if e not in SUMS_OF_OPERANDS])
@pytest.mark.parametrize(("kind", "library"), combinations(FP8_KINDS.values(), ["torch"]))
def test_epilogs_of_fp8(kind, library, epilog, along):
    missing = may_be_missing(kind, epilog)
    with pytest.raises(UnsupportedError, match=epilog) if missing else contextlib.nullcontext():
        each(epilog_cases(kind, library, epilog, along))


@pytest.mark.parametrize("library", ["numpy", "numba", "dlpack"])
@pytest.mark.parametrize("epilog", ["RELU_AUX_BIAS", "GELU_AUX_BIAS", "DRELU_BGRAD", "DGELU_BGRAD", "BGRADB"])
def test_epilogs_of_other_libraries(epilog, library):
    for along in ALONG:
        each(epilog_cases(FLOATS["float32"], library, epilog, along))


@pytest.mark.parametrize("epilog", [e for e in EPILOGS if e != "DEFAULT"])
@pytest.mark.parametrize(("kind", "library"), combinations([*COMPLEX.values(), *INT8.values()], ["torch"]))
def test_epilogs_that_cublaslt_does_not_have_are_refused_by_name(kind, library, epilog):
    rng = np.random.default_rng(20)
    given = pair(rng, kind, library, (16, 16), (16, 16))
    real = FLOATS["float32"]
    if epilog in HAS_BIAS:
        given["bias"] = bias_of(rng, Kind(*[kind.d] * 5, kind.d), library, (16, 1))
    if epilog in BACKWARD:
        given[AUX_OF[epilog]] = aux_of(rng, real, library, AUX_OF[epilog], (), 16, 16, "rows")
    if kind.is_complex and AUX_OF.get(epilog) == "gelu_aux" and epilog in BACKWARD:
        given["gelu_aux"] = Given(array(rng, (16, 16), kind.d, LAYOUTS["F"]), library)
    with pytest.raises(UnsupportedError, match=epilog if epilog not in BACKWARD else r"cuBLASLt|relu_aux"):
        run(Case(kind, given, epilog=epilog, along="rows"), "cuda")


# -- layouts of what belongs to an epilog -------------------------------------------------------------------


@pytest.mark.parametrize("library", [CUPY, TORCH])
@pytest.mark.parametrize("along", ALONG)
def test_a_bias_of_any_strides_and_alignment(along, library):
    """The bias's address is not aligned for vector loads, or it is not contiguous at all."""
    rng = np.random.default_rng(21)
    kind = FLOATS["float16"]
    m, n = 24, 40
    for batch, offset, step in [((), 1, 1), ((), 0, 2), ((), 3, 3), ((3,), 0, 1), ((3,), 1, 2), ((2, 3), 5, 1)]:
        shape = (*batch, m, 1) if along == "rows" else (*batch, 1, n)
        steps = (*(1 for _ in batch), *((step, 1) if along == "rows" else (1, step)))
        for epilog in ("BIAS", "RELU_BIAS", "GELU_AUX_BIAS"):
            given = pair(rng, kind, library, (*batch, m, 16), (16, n))
            values = rng.standard_normal(shape)
            given["bias"] = Given(lay(values, kind.bias, steps=steps, offset=offset), library)
            each([Case(kind, given, epilog=epilog, along=along, form=form) for form in ("object", "function")])


@pytest.mark.parametrize("library", [CUPY, TORCH])
@pytest.mark.parametrize("along", ALONG)
@pytest.mark.parametrize("order", ["C", "F", "stepped"])
@pytest.mark.parametrize("epilog", ["BIAS", "RELU_AUX_BIAS", "DGELU_BGRAD", "DRELU"])
def test_out_of_either_order_with_an_epilog_of_either_direction(epilog, order, along, library):
    """cuBLASLt writes such a D in one order only, so the other is a copy; at M == N, too, though shapes say nothing."""
    rng = np.random.default_rng(22)
    kind = FLOATS["float32"]
    layout = {"steps": (2, 3)} if order == "stepped" else LAYOUTS[order]
    for m, n in ((16, 16), (8, 8), (24, 40)):
        given = pair(rng, kind, library, (2, m, 12), (12, n))
        given["out"] = target(kind, library, (2, m, n), layout)
        if epilog in HAS_BIAS:
            given["bias"] = bias_of(rng, kind, library, (m, 1) if along == "rows" else (1, n))
        else:
            given[AUX_OF[epilog]] = aux_of(rng, kind, library, AUX_OF[epilog], (2,), m, n, along)
        case = Case(kind, given, epilog=epilog, along=along, form="planned for out")
        outcome = run(case, "cuda")
        check(case, outcome)
        free = order == ("F" if along == "rows" else "C")
        assert [x.partition(":")[0] for x in outcome.copies] == ([] if free else ["d"])


@pytest.mark.parametrize("library", [CUPY, TORCH])
def test_new_results_have_the_order_of_the_bias(library):
    rng = np.random.default_rng(23)
    kind = FLOATS["float32"]
    for of_a in ("C", "F"):
        for along, shape, strides in (("rows", (16, 1), (1, 16)), ("columns", (1, 16), (16, 1))):
            given = pair(rng, kind, library, (16, 8), (8, 16), LAYOUTS[of_a])
            given["bias"] = bias_of(rng, kind, library, shape)
            assert run(Case(kind, given, epilog="BIAS", along=along), "cuda").strides["d"] == strides


# -- round trips --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("along", ALONG)
@pytest.mark.parametrize("forward", ["RELU_AUX", "RELU_AUX_BIAS", "GELU_AUX", "GELU_AUX_BIAS"])
@pytest.mark.parametrize(("kind", "library"), POOLS)
def test_what_a_forward_epilog_keeps_a_backward_one_takes(kind, library, forward, along):
    """As it came back, untouched: the library remembers nothing but its shape and strides."""
    rng = np.random.default_rng(24)
    aux = AUX_OF[forward]
    backward = "DRELU" if aux == "relu_aux" else "DGELU"
    for (m, n, k), batch in (((16, 16, 8), ()), ((136, 40, 16), (3,)), ((7, 130, 9), (2, 2)), ((8, 8, 8), ())):
        order = "F" if along == "rows" else "C"
        given = pair(rng, kind, library, (*batch, m, k), (k, n), LAYOUTS[order], LAYOUTS[order])
        direction = None
        if forward in HAS_BIAS:
            given["bias"], direction = bias_of(rng, kind, library, (m, 1) if along == "rows" else (1, n)), along
        first = Case(kind, given, epilog=forward, along=direction)
        outcome = run(first, "cuda")
        check(first, outcome)
        kept, kept_strides = outcome.arrays[aux], outcome.strides[aux]
        second = pair(rng, kind, library, (*batch, m, k), (k, n))
        held = lay(kept, kept.dtype.name, order="F" if kept_strides[-2] == 1 and kept.shape[-2] > 1 else "C")
        for epilog in (backward, f"{backward}_BGRAD"):
            case = Case(kind, second | {aux: Given(held, library)}, epilog=epilog, along=along)
            check(case, run(case, "cuda"))


@needs["torch"]
@pytest.mark.parametrize("along", ALONG)
def test_the_very_array_goes_back(along):
    """Not a copy made by the test: the aux array of one call is the input of the next."""
    import torch

    g = torch.Generator("cuda").manual_seed(25)
    x, w, up = (torch.randn(s, device="cuda", generator=g) for s in ((3, 48, 16), (16, 48), (3, 48, 48)))
    bias = torch.randn((48, 1) if along == "rows" else (1, 48), device="cuda", generator=g)
    eye = torch.eye(48, device="cuda")
    for epilog, aux, backward in (
        ("RELU_AUX_BIAS", "relu_aux", "DRELU_BGRAD"), ("GELU_AUX_BIAS", "gelu_aux", "DGELU_BGRAD")
    ):  # fmt: skip
        _, kept = host.matmul(x, w, epilog=epilog, epilog_inputs={"bias": bias})
        assert set(kept) == {aux}
        grad, outputs = host.matmul(up, eye, epilog=backward, epilog_inputs=kept)
        before = (x.double() @ w.double() + bias.double()).cpu().requires_grad_()
        act = torch.relu(before) if aux == "relu_aux" else torch.nn.functional.gelu(before, approximate="tanh")
        act.backward(up.double().cpu())
        allowed = 2e-3 if aux == "gelu_aux" else 1e-6  # float32, and for GELU perhaps the GPU's instruction for tanh
        assert norm_error(to_numpy(grad), before.grad.numpy()) < allowed
        axis = -1 if along == "rows" else -2
        got = to_numpy(outputs[backward.lower()])
        assert got.shape == ((3, 48, 1) if along == "rows" else (3, 1, 48))
        assert norm_error(got, before.grad.sum(axis, keepdim=True).numpy()) < allowed


# -- a whole layer, against autograd ------------------------------------------------------------------------

TOLERANCES = {"float64": 1e-12, "float32": 2e-6, "bfloat16": 2e-2, "float16": 2e-3}  # a few units, two products deep


@needs["torch"]
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("along", ALONG)
@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("sizes", [(64, 48, 32, 24), (32, 32, 32, 32), (17, 40, 9, 3)], ids=str)
def test_forward_and_backward_of_two_layers(sizes, name, along, activation):
    """y = act(x W1 + b1) W2, or transposed, W2' act(W1' x' + b1'); gradients of W1, b1, W2 and x against autograd.

    Operands are rounded to the type first, so that both compute with the same numbers.
    """
    import torch

    rows, width, hidden, outputs = sizes
    torch_type = getattr(torch, name)
    g = torch.Generator("cuda").manual_seed(26)
    shapes = {
        "x": (rows, width),
        "w1": (width, hidden),
        "b1": (1, hidden),
        "w2": (hidden, outputs),
        "dy": (rows, outputs),
    }
    scale = {"w1": width**-0.5, "w2": hidden**-0.5}
    given = {
        n: (torch.randn(s, device="cuda", generator=g, dtype=torch.float64) * scale.get(n, 1)).to(torch_type)
        for n, s in shapes.items()
    }
    exact = {n: t.double().cpu().requires_grad_(n != "dy") for n, t in given.items()}
    act = torch.relu if activation == "relu" else lambda t: torch.nn.functional.gelu(t, approximate="tanh")
    hidden_exact = act(exact["x"] @ exact["w1"] + exact["b1"])
    y_exact = hidden_exact @ exact["w2"]
    y_exact.backward(exact["dy"])

    x, w1, b1, w2, dy = given.values()
    forward, backward = f"{activation.upper()}_AUX_BIAS", f"D{activation.upper()}_BGRAD"
    turned = along == "rows"  # everything transposed: the bias is a column then
    product = (lambda p, q, **kw: host.matmul(q.T, p.T, **kw)) if turned else host.matmul

    def back(t):
        return t.T if turned else t

    h, kept = product(x, w1, epilog=forward, epilog_inputs={"bias": back(b1)})
    h = back(h)
    y = back(product(h, w2))
    before, gradient = product(dy, w2.T, epilog=backward, epilog_inputs=kept)
    before = back(before)
    got = {
        "y": (y, y_exact), "w2": (back(product(h.T, dy)), exact["w2"].grad),
        "b1": (gradient[backward.lower()].reshape(1, hidden), exact["b1"].grad),
        "w1": (back(product(x.T, before)), exact["w1"].grad), "x": (back(product(before, w1.T)), exact["x"].grad),
    }  # fmt: skip
    # The GPU's tanh may be its instruction, off by 2**-10.987 (PTX ISA).
    allowed = TOLERANCES[name] if activation == "relu" else max(TOLERANCES[name], 1e-9 if name == "float64" else 2e-3)
    if activation == "relu" and name in (
        "float16",
        "bfloat16",
    ):  # a value near 0 before RELU, rounded, may change sides
        allowed = max(allowed, 0.1)
    for what, (ours, theirs) in got.items():
        assert library_of(ours) == "torch"
        assert norm_error(to_numpy(ours), theirs.detach().numpy()) < allowed, what


# -- NaN, and what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize("library", [CUPY, TORCH])
def test_nan_infinity_and_signed_zero(library):
    """RELU makes 0 of NaN or keeps it, by algorithm; GELU keeps it; infinities are what the formulas make of them."""
    special = np.array([np.nan, np.inf, -np.inf, 1.0, -1.0, 0.0, -0.0, 2.0] * 2, np.float32)
    a, b = np.eye(16, dtype=np.float32)[:, :1], special[None, :]
    x, y = (place(library, lay(v, "float32"), "cuda").array for v in (a[:1], b))
    bias = place(library, lay(np.zeros((1, 16)), "float32"), "cuda").array
    d, aux = host.matmul(x, y, epilog="RELU_AUX_BIAS", epilog_inputs={"bias": bias})
    positive = special > 0
    d, nan = to_numpy(d)[0], np.isnan(special)
    told = ~nan & (special != 0)  # the bits of NaN and 0 are up to the algorithm
    assert np.array_equal(d[~nan], np.where(positive, special, 0)[~nan])
    assert (np.isnan(d[nan]) | (d[nan] == 0)).all()
    assert np.array_equal(bits_of(to_numpy(aux["relu_aux"]), 1, 16, "columns")[0][told], positive[told])
    d = to_numpy(host.matmul(x, y, epilog="GELU"))[0]
    assert np.isnan(d[[0, 8]]).all()
    assert (d[[1, 9]] == np.inf).all()
    assert np.allclose(d[3], 0.841192, atol=2e-3)


@pytest.mark.parametrize("library", [CUPY, TORCH])
def test_aux_of_another_shape_order_or_type_is_refused(library):
    rng = np.random.default_rng(27)
    kind = FLOATS["float32"]
    a, b = (place(library, array(rng, s, "float32"), "cuda").array for s in ((20, 8), (8, 40)))
    for aux, backward in (("relu_aux", "DRELU"), ("gelu_aux", "DGELU_BGRAD")):
        wrong = aux_of(rng, kind, library, aux, (), 24, 48, "rows")
        with pytest.raises(InvalidArgumentError, match=rf"{aux} has the shape"):
            host.matmul(a, b, epilog=backward, epilog_inputs={aux: place(library, wrong.lay, "cuda").array})
        with pytest.raises(InvalidArgumentError, match=rf"{aux} is missing"):
            host.matmul(a, b, epilog=backward)
    bias = place(library, array(rng, (1, 20), "float32"), "cuda").array
    with pytest.raises(InvalidArgumentError, match="bias has the shape"):
        host.matmul(a, b, epilog="BIAS", epilog_inputs={"bias": bias})


@pytest.mark.parametrize("library", [CUPY, TORCH])
def test_an_aux_input_of_other_strides_is_copied(library):
    """Steps and gaps that cuBLASLt's line length cannot say; shapes tell the direction."""
    rng = np.random.default_rng(28)
    kind = FLOATS["float32"]
    for aux, epilog in (("relu_aux", "DRELU_BGRAD"), ("gelu_aux", "DGELU")):
        for along in ALONG:
            shape = aux_extents(aux, 40, 24, along)
            values = rng.integers(0, 256, shape) if aux == "relu_aux" else rng.standard_normal(shape)
            name = "uint8" if aux == "relu_aux" else "float32"
            for layout in ({"steps": (2, 1)}, {"steps": (1, 2)}, {"offset": 1}, {"order": "F"}, {"order": "C"}):
                given = pair(rng, kind, library, (40, 8), (8, 24))
                given[aux] = Given(lay(values, name, **layout), library)
                each([Case(kind, given, epilog=epilog, along=along)])


def test_expected_values_are_those_of_the_definition():
    """The oracle itself, by finite differences, at numbers where the answer is known."""
    rng = np.random.default_rng(29)
    kind = FLOATS["float64"]
    given = pair(rng, kind, "numpy", (8, 8), (8, 8))
    given["gelu_aux"] = aux_of(rng, kind, "numpy", "gelu_aux", (), 8, 8, "columns")
    case = Case(kind, given, epilog="DGELU", along="columns")
    z, h = given["gelu_aux"].values, 1e-6
    import math

    slope = np.vectorize(
        lambda t: (
            sum(
                s
                * 0.5
                * (t + s * h)
                * (1 + math.tanh(math.sqrt(2 / math.pi) * ((t + s * h) + 0.044715 * (t + s * h) ** 3)))
                for s in (1, -1)
            )
            / (2 * h)
        )
    )(z)
    want = expected(case)["d"]
    assert norm_error(want.values, case.a @ case.b * slope) < 1e-8
    close(want.values, want)
