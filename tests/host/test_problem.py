# SPDX-License-Identifier: Apache-2.0
"""What a product is planned to be: order of D, directions, outputs, and every refusal with the facts it names."""

from __future__ import annotations

import itertools
import math
import re

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvmath_device.dtypes import bfloat16, float8_e4m3fn, float16, float32, float64, int32, uint8
from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError, UnsupportedError
from nvmath_device.host.arrays import view
from nvmath_device.host.epilogs import EPILOGS, MatmulEpilog, read_epilog
from nvmath_device.host.options import MatmulEpilogPreferences, MatmulOptions, MatmulPlanPreferences
from nvmath_device.host.problem import plan_problem

E = MatmulEpilog
E4M3, E5M2, BF16 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.bfloat16
FORWARD_AUX = [E.RELU_AUX, E.GELU_AUX, E.RELU_AUX_BIAS, E.GELU_AUX_BIAS]
BACKWARD = [E.DRELU, E.DGELU, E.DRELU_BGRAD, E.DGELU_BGRAD]


def arr(*shape, order="C", dtype=np.float32):
    """A view of an array whose matrices have that order; the batch is outermost in both."""
    if order == "F" and len(shape) >= 2:
        return view(np.zeros((*shape[:-2], shape[-1], shape[-2]), dtype).swapaxes(-1, -2))
    return view(np.zeros(shape, dtype))


def up(extent, multiple):
    return math.ceil(extent / multiple) * multiple


def aux_shape(name, m, n, along):
    """From the text of cublasLt.h: the packed axis is that of a column of a column-major D, or a row of a row-major."""
    packed, other = (m, n) if along == "rows" else (n, m)
    packed = up(packed, 128) // 8 if name == "relu_aux" else up(packed, 8)
    return (packed, other) if along == "rows" else (other, packed)


def plan(m=3, n=5, k=4, batch=(), *, dtype=np.float32, a_order="C", b_order="C", **kwargs):
    return plan_problem(
        arr(*batch, m, k, order=a_order, dtype=dtype), arr(*batch, k, n, order=b_order, dtype=dtype), **kwargs
    )


# -- the order of D -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("orders", "want"),
    [
        ({"a_order": "C", "b_order": "F"}, "row_major"),
        ({"a_order": "F", "b_order": "C"}, "col_major"),
        ({"a_order": "C", "c": arr(3, 5, order="F")}, "col_major"),
        ({"a_order": "F", "c": arr(3, 5)}, "row_major"),
        ({"a_order": "F", "c": arr(1, 5)}, "col_major"),  # a row, a column, a scalar have no order
        ({"a_order": "C", "c": arr(3, 1)}, "row_major"),
        ({"a_order": "F", "c": arr(5)}, "col_major"),
        ({"a_order": "C", "c": arr(3, 5), "out": arr(3, 5, order="F")}, "col_major"),
        ({"a_order": "F", "c": arr(3, 5, order="F"), "out": arr(3, 5)}, "row_major"),
    ],
)
def test_out_decides_then_c_then_a(orders, want):
    problem = plan(**orders)
    assert problem.order == want
    assert problem.along == {"col_major": "rows", "row_major": "columns"}[want]
    assert problem.result_order == ((1, 0) if want == "col_major" else (0, 1))


def test_b_decides_where_a_is_a_vector_and_rows_where_nothing_does():
    assert plan_problem(arr(1, 4, order="F"), arr(4, 5, order="F")).order == "col_major"
    assert plan_problem(arr(4), arr(4, 5, order="F")).order == "col_major"
    assert plan_problem(arr(4), arr(4, 5)).order == "row_major"
    assert plan_problem(arr(4), arr(4)).order == "row_major"
    stepped = view(np.zeros((6, 8), np.float32)[::2, ::2])
    assert plan_problem(stepped, arr(4, 5, order="F")).order == "col_major"


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_the_batch_of_a_new_result_is_in_c_order_whatever_its_matrices(batch, order):
    axes = tuple(range(len(batch)))
    m_axis, n_axis = len(batch), len(batch) + 1
    want = (*axes, m_axis, n_axis) if order == "C" else (*axes, n_axis, m_axis)
    assert plan(batch=batch, a_order=order).result_order == want


def test_a_vector_result_keeps_its_axes():
    problem = plan_problem(arr(2, 4, 3, order="F"), arr(3))
    assert problem.shapes.result == (2, 4)
    assert problem.result_order == (0, 1)
    assert plan_problem(arr(3), arr(3)).result_order == ()


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("epilog", [E.BIAS, E.RELU_BIAS, E.GELU_BIAS, E.RELU_AUX_BIAS, E.GELU_AUX_BIAS])
def test_the_direction_of_a_bias_decides_over_everything_else(order, epilog):
    others = {"a_order": order, "c": arr(4, 4, order=order), "out": arr(4, 4, order=order)}
    rows = plan(4, 4, 4, epilog=epilog, epilog_inputs={"bias": arr(4)}, **others)
    columns = plan(4, 4, 4, epilog=epilog, epilog_inputs={"bias": arr(1, 4)}, **others)
    assert (rows.order, rows.along) == ("col_major", "rows")
    assert (columns.order, columns.along) == ("row_major", "columns")


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("along", ["rows", "columns"])
@pytest.mark.parametrize("epilog", BACKWARD)
def test_an_aux_input_of_one_shape_decides_over_out_c_and_a(order, along, epilog):
    m, n = 25, 41
    name = EPILOGS[epilog].aux
    dtype = np.uint8 if name == "relu_aux" else np.float32
    aux = arr(*aux_shape(name, m, n, along), order="F" if along == "rows" else "C", dtype=dtype)
    others = {"a_order": order, "c": arr(m, n, order=order), "out": arr(m, n, order=order)}
    problem = plan(m, n, epilog=epilog, epilog_inputs={name: aux}, **others)
    assert problem.along == along


@pytest.mark.parametrize(("epilog", "m", "n"), [(E.DGELU, 8, 8), (E.DGELU, 16, 8), (E.DRELU, 16, 16)])
@pytest.mark.parametrize("along", ["rows", "columns"])
def test_strides_tell_where_an_aux_input_has_the_shape_of_both_directions(epilog, m, n, along):
    name = EPILOGS[epilog].aux
    assert aux_shape(name, m, n, "rows") == aux_shape(name, m, n, "columns")
    dtype = np.uint8 if name == "relu_aux" else np.float32
    aux = arr(*aux_shape(name, m, n, along), order="F" if along == "rows" else "C", dtype=dtype)
    for order in "CF":  # neither A nor out has a say
        problem = plan(m, n, epilog=epilog, epilog_inputs={name: aux}, a_order=order, out=arr(m, n, order=order))
        assert problem.along == along


# -- bias ---------------------------------------------------------------------------------------------------

M, N, B = 4, 6, 3


@pytest.mark.parametrize(
    ("batch", "shape", "along", "bias_shape"),
    [
        ((), (M,), "rows", (M, 1)),
        ((), (M, 1), "rows", (M, 1)),
        ((), (1, M, 1), "rows", (M, 1)),
        ((), (1, N), "columns", (1, N)),
        ((), (1, 1, N), "columns", (1, N)),
        ((B,), (M,), "rows", (M, 1)),
        ((B,), (M, 1), "rows", (M, 1)),
        ((B,), (B, M, 1), "rows", (B, M, 1)),
        ((B,), (1, M, 1), "rows", (1, M, 1)),
        ((B,), (1, N), "columns", (1, N)),
        ((B,), (B, 1, N), "columns", (B, 1, N)),
        ((2, B), (B, 1, N), "columns", (B, 1, N)),
        ((2, B), (2, 1, M, 1), "rows", (2, 1, M, 1)),
    ],
)
def test_bias_along_rows_or_columns(batch, shape, along, bias_shape):
    problem = plan(M, N, batch=batch, epilog=E.BIAS, epilog_inputs={"bias": arr(*shape)})
    assert problem.along == along
    assert problem.bias_shape == bias_shape
    square = tuple(M if extent == N else extent for extent in shape)
    problem = plan(M, M, batch=batch, epilog=E.BIAS, epilog_inputs={"bias": arr(*square)})
    assert problem.along == along


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_bias_of_one_number_for_one_element_has_no_direction(order):
    problem = plan(1, 1, epilog=E.BIAS, epilog_inputs={"bias": arr(1)}, a_order=order, b_order=order)
    assert problem.bias_shape == (1, 1)
    assert problem.order == "row_major"


def test_a_bias_of_a_vector_result():
    row = plan_problem(arr(4), arr(4, 5), epilog=E.BIAS, epilog_inputs={"bias": arr(5)})
    assert (row.along, row.bias_shape) == ("columns", (1, 5))
    column = plan_problem(arr(5, 4), arr(4), epilog=E.BIAS, epilog_inputs={"bias": arr(5)})
    assert (column.along, column.bias_shape) == ("rows", (5, 1))
    both = plan_problem(arr(4), arr(4), epilog=E.BIAS, epilog_inputs={"bias": arr(1)})
    assert both.bias_shape == (1, 1)


@pytest.mark.parametrize("shape", [(N,), (N, 1), (1, M), (M, N), (2, M, 1), (), (M, 1, 1), (B, M, 1)])
def test_a_bias_that_does_not_fit_is_refused_with_the_shapes_that_do(shape):
    with pytest.raises(InvalidArgumentError) as error:
        plan(M, N, epilog=E.BIAS, epilog_inputs={"bias": arr(*shape)})
    for fact in ("bias", str(shape), f"({M}, {N})", f"({M},)", f"({M}, 1)", f"(1, {N})"):
        assert fact in str(error.value)


def test_a_batched_bias_that_does_not_broadcast_is_refused():
    with pytest.raises(InvalidArgumentError, match=re.escape(f"bias has the shape (2, {M}, 1)")) as error:
        plan(M, N, batch=(B,), epilog=E.BIAS, epilog_inputs={"bias": arr(2, M, 1)})
    assert f"(*batch, {M}, 1)" in str(error.value)


@given(
    m=st.integers(0, 5),
    n=st.integers(0, 5),
    batch=st.lists(st.integers(1, 3), max_size=2).map(tuple),
    shape=st.lists(st.integers(0, 5), min_size=1, max_size=4).map(tuple),
)
def test_an_accepted_bias_reads_as_numpy_broadcasts_it(m, n, batch, shape):
    try:
        problem = plan(m, n, 2, batch, epilog=E.BIAS, epilog_inputs={"bias": arr(*shape)})
    except InvalidArgumentError:
        return
    assert math.prod(problem.bias_shape) == math.prod(shape)  # reshaped, not broadcast
    assert np.broadcast_shapes(problem.bias_shape, (*batch, m, n)) == (*batch, m, n)
    if not m == n == 1:
        assert problem.bias_shape[-2:] == ((m, 1) if problem.along == "rows" else (1, n))
    if shape[-2:] == (1, n) and m != 1:
        assert problem.along == "columns"
    if (shape == (m,) or shape[-2:] == (m, 1)) and n != 1:
        assert problem.along == "rows"


# -- outputs ------------------------------------------------------------------------------------------------


def outputs(problem):
    return {o.name: o for o in problem.outputs}


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
@pytest.mark.parametrize(("m", "n"), [(1, 1), (7, 9), (8, 16), (128, 128), (129, 257)])
@pytest.mark.parametrize("along", ["rows", "columns"])
@pytest.mark.parametrize("epilog", FORWARD_AUX)
def test_aux_outputs_are_padded_along_the_direction_and_contiguous_in_it(epilog, along, m, n, batch):
    inputs = {"bias": arr(m, 1) if along == "rows" else arr(1, n)} if EPILOGS[epilog].bias else {}
    out = arr(*batch, m, n, order="F" if along == "rows" else "C")
    problem = plan(m, n, batch=batch, epilog=epilog, epilog_inputs=inputs, out=out)
    if m == n == 1:
        along = problem.along  # an array of one element has both orders
    (output,) = problem.outputs
    name = EPILOGS[epilog].aux
    assert output.name == name
    assert output.shape == (*batch, *aux_shape(name, m, n, along))
    assert output.element is (uint8 if name == "relu_aux" else float32)
    axes = list(range(len(batch) + 2))
    assert output.order == tuple(axes[:-2] + (axes[:-3:-1] if along == "rows" else axes[-2:]))
    assert (problem.aux.rows, problem.aux.cols, problem.aux.along) == (*aux_shape(name, m, n, along), along)
    assert output.order[-1] - len(output.order) == problem.aux.contiguous_axis


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
@pytest.mark.parametrize("along", ["rows", "columns"])
@pytest.mark.parametrize("epilog", [E.DRELU_BGRAD, E.DGELU_BGRAD])
def test_a_bias_gradient_has_a_shape_that_is_a_bias_of_the_same_direction(epilog, along, batch):
    m, n, name = 24, 40, EPILOGS[epilog].aux
    dtype = np.uint8 if name == "relu_aux" else np.float32
    aux = arr(*batch, *aux_shape(name, m, n, along), order="F" if along == "rows" else "C", dtype=dtype)
    problem = plan(m, n, batch=batch, epilog=epilog, epilog_inputs={name: aux})
    (output,) = problem.outputs
    assert output.name == epilog.name.lower()
    if along == "rows":
        assert output.shape == ((*batch, m, 1) if batch else (m,))
    else:
        assert output.shape == (*batch, 1, n)
    assert output.element is float32
    again = plan(m, n, batch=batch, epilog=E.BIAS, epilog_inputs={"bias": arr(*output.shape)})
    assert again.along == along


@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_gradients_of_the_operands_do_not_depend_on_the_order(batch, order):
    for epilog, extent in ((E.BGRADA, 3), (E.BGRADB, 5)):
        (output,) = plan(3, 5, batch=batch, a_order=order, epilog=epilog).outputs
        assert (output.name, output.shape) == (epilog.name.lower(), (*batch, extent, 1) if batch else (extent,))


def test_what_has_no_outputs_has_none():
    for epilog in (E.DEFAULT, E.RELU, E.GELU):
        problem = plan(epilog=epilog)
        assert problem.outputs == ()
        assert problem.aux is None
        assert problem.bias_shape is None


def test_types_of_auxiliary_arrays():
    fp16 = plan(epilog=E.GELU_AUX_BIAS, epilog_inputs={"bias": arr(3, dtype=np.float16)}, dtype=np.float16)
    assert outputs(fp16)["gelu_aux"].element is float16
    wide = plan(dtype=np.float16, epilog=E.BGRADA, options=MatmulOptions(result_type="float32"))
    assert outputs(wide)["bgrada"].element is float32
    aux = {"gelu_aux": arr(8, 8, dtype=np.float64)}
    double = plan(8, 8, dtype=np.float64, epilog=E.DGELU_BGRAD, epilog_inputs=aux)
    assert outputs(double)["dgelu_bgrad"].element is float64


def test_largest_values_of_fp8_results():
    options = MatmulOptions(result_type="float8_e4m3fn", result_amax=True)
    kept = MatmulPlanPreferences(epilog=MatmulEpilogPreferences(aux_type="float8_e4m3fn", aux_amax=True))
    problem = plan(dtype=E4M3, epilog=E.GELU_AUX, options=options, preferences=kept)
    made = outputs(problem)
    assert (made["gelu_aux"].element, problem.types.d) == (float8_e4m3fn, float8_e4m3fn)
    for name in ("result_amax", "aux_amax"):
        assert (made[name].shape, made[name].element) == ((1,), float32)
    assert problem.result_amax
    assert problem.aux_amax


@given(
    m=st.integers(0, 140),
    n=st.integers(0, 140),
    batch=st.lists(st.integers(1, 3), max_size=2).map(tuple),
    epilog=st.sampled_from([e for e in EPILOGS if not EPILOGS[e].backward and not EPILOGS[e].bias]),
    order=st.sampled_from("CF"),
)
def test_forward_outputs_feed_the_backward_epilog(m, n, batch, epilog, order):
    """What a forward epilog makes is read back in the direction it was made in, whatever the other operands are."""
    problem = plan(m, n, 2, batch, epilog=epilog, a_order=order)
    for output in problem.outputs:
        if output.name not in ("relu_aux", "gelu_aux"):
            continue
        memory = np.zeros([output.shape[axis] for axis in output.order], output.element.dtype)
        aux = view(memory.transpose([output.order.index(axis) for axis in range(memory.ndim)]))
        assert aux.shape == output.shape
        backward = E.DRELU if output.name == "relu_aux" else E.DGELU
        for other in "CF":
            again = plan(m, n, 2, batch, epilog=backward, epilog_inputs={output.name: aux}, a_order=other)
            if m and n:
                assert again.along == problem.along


# -- what else is recorded ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("lazy", "asked"), list(itertools.product([False, True], repeat=2)))
def test_an_asked_for_conjugate_of_a_lazy_one_is_none(lazy, asked):
    a, b = arr(3, 4, dtype=np.complex64), arr(4, 5, dtype=np.complex64)
    problem = plan_problem(a._replace(conjugated=lazy), b, conj=(asked, False))
    assert (problem.conj_a, problem.conj_b) == (lazy != asked, False)
    problem = plan_problem(a, b._replace(conjugated=lazy), conj=(False, asked))
    assert (problem.conj_a, problem.conj_b) == (False, lazy != asked)
    c = arr(3, 5, dtype=np.complex64)
    assert plan_problem(a, b, c._replace(conjugated=lazy), conj=(asked, asked)).conj_c == lazy
    assert not plan_problem(a, b).conj_c


def test_equal_questions_have_equal_hashable_answers():
    def ask():
        return plan(epilog=E.RELU_AUX_BIAS, epilog_inputs={"bias": arr(3)}, c=arr(3, 5))

    assert ask() == ask()
    assert len({ask(), ask(), plan()}) == 2
    assert ask().has_c
    assert not plan().has_c


def test_the_result_has_the_type_of_out_unless_another_is_asked_for():
    out = arr(3, 5, dtype=np.float32)
    assert plan(dtype=np.float16, out=out).types.d is float32
    assert plan(dtype=np.float16).types.d is float16
    assert plan(dtype=BF16, options=MatmulOptions(result_type="float32")).types.d is float32
    assert plan(dtype=BF16).types.d is bfloat16
    assert plan(dtype=np.int8).types.d is int32


def test_scales_of_fp8_matrices_are_recorded():
    both = plan(dtype=E4M3, scaled=frozenset("abd"), options=MatmulOptions(result_type="float8_e4m3fn"))
    assert both.scaled == {"a", "b", "d"}


# -- refusals -----------------------------------------------------------------------------------------------


def refused(kind, *facts, **kwargs):
    with pytest.raises(kind) as error:
        plan(**kwargs)
    for fact in facts:
        assert fact in str(error.value), (fact, str(error.value))


@pytest.mark.parametrize("epilog", list(EPILOGS))
def test_a_missing_input_and_one_too_many_are_named(epilog):
    needed = EPILOGS[epilog].inputs
    for name in needed:
        rest = {other: arr(3, 1) for other in needed if other != name}
        facts = ("epilog_inputs", epilog.name, f"{name} is missing")
        refused(InvalidArgumentError, *facts, epilog=epilog, epilog_inputs=rest)
    given_too_much = dict.fromkeys((*needed, "dropout"), arr(3, 1))
    refused(InvalidArgumentError, epilog.name, "dropout is not for it", epilog=epilog, epilog_inputs=given_too_much)


@pytest.mark.parametrize("epilog", [e for e in EPILOGS if e is not E.DEFAULT])
@pytest.mark.parametrize("dtype", [np.complex64, np.complex128, np.int8])
def test_complex_and_int8_have_no_epilogs(epilog, dtype):
    inputs = {name: arr(3, 1, dtype=np.float32) for name in EPILOGS[epilog].inputs}
    kind = "complex" if np.dtype(dtype).kind == "c" else "int8"
    refused(UnsupportedError, "epilog", epilog.name, kind, dtype=dtype, epilog=epilog, epilog_inputs=inputs)


@pytest.mark.parametrize("name", ["b", "c", "out"])
def test_real_and_complex_do_not_mix(name):
    operands = {"a": arr(3, 4), "b": arr(4, 5), "c": None, "out": None}
    operands[name] = arr(*{"b": (4, 5)}.get(name, (3, 5)), dtype=np.complex64)
    with pytest.raises(UnsupportedError, match=f"a and {name}: float32 .* complex64"):
        plan_problem(operands["a"], operands["b"], operands["c"], out=operands["out"])


def test_out_that_does_not_fit():
    refused(InvalidArgumentError, "out", "(5, 3)", "(3, 5)", out=arr(5, 3))
    refused(InvalidArgumentError, "out", "(1, 3, 5)", "(3, 5)", out=arr(1, 3, 5))
    wants_half = MatmulOptions(result_type="float16")
    refused(ArgumentTypeError, "out", "float32", "float16", dtype=np.float16, out=arr(3, 5), options=wants_half)
    refused(InvalidArgumentError, "out", "read-only", out=arr(3, 5)._replace(readonly=True))
    out = arr(3, 5, dtype=np.complex64)._replace(conjugated=True)
    refused(InvalidArgumentError, "out", "conjugated lazily", dtype=np.complex64, out=out)


@pytest.mark.parametrize("epilog", BACKWARD)
def test_an_aux_input_of_no_such_result_is_refused_with_both_shapes(epilog):
    name = EPILOGS[epilog].aux
    dtype = np.uint8 if name == "relu_aux" else np.float32
    for shape in ((3, 5), (16, 6), (2, *aux_shape(name, 3, 5, "rows"))):
        aux = {name: arr(*shape, dtype=dtype)}
        both = [str(aux_shape(name, 3, 5, along)) for along in ("rows", "columns")]
        refused(InvalidArgumentError, name, str(shape), *both, epilog=epilog, epilog_inputs=aux)


def test_an_aux_input_of_another_type_is_refused():
    aux = {"relu_aux": arr(16, 5, dtype=np.int8)}
    refused(ArgumentTypeError, "relu_aux", "int8", "uint8", epilog=E.DRELU, epilog_inputs=aux)
    aux = {"gelu_aux": arr(8, 5, dtype=np.float16)}
    refused(ArgumentTypeError, "gelu_aux", "float16", "float32", epilog=E.DGELU, epilog_inputs=aux)
    aux = {"gelu_aux": arr(8, 5, dtype=np.complex64)}
    refused(UnsupportedError, "gelu_aux", "complex64", "float32", epilog=E.DGELU, epilog_inputs=aux)


def test_a_bias_of_another_type_is_refused():
    bias = {"bias": arr(3, dtype=np.float64)}
    refused(InvalidArgumentError, "bias", "float64", "float32", epilog=E.BIAS, epilog_inputs=bias)


def test_a_complex_bias_is_refused():
    bias = {"bias": arr(3, dtype=np.complex64)}
    refused(UnsupportedError, "bias", "complex64", epilog=E.BIAS, epilog_inputs=bias)


@pytest.mark.parametrize("name", "abcd")
def test_only_fp8_matrices_have_scales(name):
    what = "the result" if name == "d" else name
    refused(UnsupportedError, f"quantization_scales: {name}", f"{what} is float32", "alpha", scaled=frozenset(name))
    if name in "cd":  # fp8 operands with a wider result
        wide = MatmulOptions(result_type="float32")
        refused(UnsupportedError, f"{what} is float32", dtype=E4M3, scaled=frozenset(name), options=wide)


def test_scales_of_blocks_are_refused_and_not_ignored():
    options = MatmulOptions(block_scaling=True)
    refused(UnsupportedError, "block_scaling", "MXFP8", "quantization_scales", dtype=E4M3, options=options)


@pytest.mark.parametrize(("dtype", "result"), [(np.float32, "float32"), (np.int8, "int8"), (E4M3, "float16")])
def test_only_fp8_results_have_a_largest_value(dtype, result):
    options = MatmulOptions(result_amax=True, result_type=result)
    refused(UnsupportedError, "result_amax", result, dtype=dtype, options=options)


@pytest.mark.parametrize("epilog", [E.DEFAULT, E.RELU_AUX, E.GELU_AUX])
def test_only_an_fp8_gelu_aux_has_a_largest_value(epilog):
    wanted = MatmulPlanPreferences(epilog=MatmulEpilogPreferences(aux_amax=True))
    refused(UnsupportedError, "aux_amax", "fp8 gelu_aux", epilog=epilog, preferences=wanted)


def test_extents_that_do_not_go_together_are_refused():
    with pytest.raises(InvalidArgumentError, match=r"\(3, 4\) and \(5, 6\)"):
        plan_problem(arr(3, 4), arr(5, 6))
    refused(InvalidArgumentError, "c:", "(5, 3)", c=arr(5, 3))


# -- epilogs by name ----------------------------------------------------------------------------------------


def test_epilogs_are_read_from_members_names_and_numbers():
    for epilog in EPILOGS:
        assert read_epilog(epilog) is read_epilog(epilog.name.lower()) is read_epilog(int(epilog)) is epilog
    assert read_epilog(None) is E.DEFAULT
    for value in ("SILU", 3, 0, ""):
        with pytest.raises(InvalidArgumentError, match="RELU_AUX_BIAS") as error:
            read_epilog(value)
        assert repr(value) in str(error.value)
    for value in (True, 2.0, ["RELU"]):
        with pytest.raises(ArgumentTypeError, match=r"MatmulEpilog"):
            read_epilog(value)


def test_the_table_has_every_epilog_of_cublaslt():
    assert set(EPILOGS) == set(E)
    for epilog, traits in EPILOGS.items():
        words = epilog.name.split("_")
        assert traits.bias == ("BIAS" in words)
        assert traits.backward == (words[0] in ("DRELU", "DGELU"))
        assert (traits.aux is not None) == ("AUX" in words or traits.backward)
        assert (traits.gradient is not None) == (words[-1].startswith("BGRAD"))
        assert traits.activation == next((f for f in ("relu", "gelu") if f in words[0].lower()), None)
        assert traits.has_direction == (traits.bias or traits.aux is not None)
