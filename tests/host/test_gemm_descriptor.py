# SPDX-License-Identifier: Apache-2.0
"""Descriptors of arrays and of host-level products, against NumPy reading the memory they describe."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

import nvmath_device as nd
from nvmath_device import host
from nvmath_device.descriptors import GemmDescriptor
from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError
from nvmath_device.host.arrays import view
from nvmath_device.host.gemm_descriptor import describe
from nvmath_device.host.problem import plan_problem
from tests.host import fakes

COL, ROW = "col_major", "row_major"
ON_CPU = {"execution": "cpu"}


def numbers(shape, dtype=np.float32, order="C"):
    """Different small whole numbers, complex ones with both parts."""
    values = np.arange(np.prod(shape), dtype=np.float64).reshape(shape) % 7 - 3
    if np.issubdtype(dtype, np.complexfloating):
        values = values + 1j * (np.arange(values.size).reshape(shape) % 5 - 2)
    return np.array(values, dtype=dtype, order=order)


def as_described(descriptor, which, array):
    """op(matrix), read from the memory at the array's first element as the descriptor says."""
    layout = descriptor.layouts[which]
    strides = [s * array.itemsize for s in layout.strides]
    stored = np.lib.stride_tricks.as_strided(array, descriptor.dims[which], strides)
    mode = descriptor.transpose_mode[which] if which < 2 else "non_transposed"
    transform = {"non_transposed": lambda x: x, "transposed": np.transpose, "conj_transposed": lambda x: x.conj().T}
    return transform[mode](stored)


# -- how a matrix lies ---------------------------------------------------------------------------------------

# 6 x 4 matrices: (array, order, leading dimension)
LIES = {
    "C order": (numbers((6, 4)), ROW, 4),
    "F order": (numbers((6, 4), order="F"), COL, 6),
    "a transpose": (numbers((4, 6)).T, COL, 6),
    "columns of a wider one": (numbers((6, 9))[:, 3:7], ROW, 9),
    "rows of a taller one in F order": (numbers((9, 4), order="F")[2:8], COL, 9),
    "every other row": (numbers((12, 4))[::2], ROW, 8),
    "every third column in F order": (numbers((6, 12), order="F")[:, ::3], COL, 18),
}


@pytest.mark.parametrize("case", LIES)
def test_order_and_leading_dimension_are_those_of_the_memory(case):
    matrix, order, ld = LIES[case]
    other = numbers((4, 5))
    d = GemmDescriptor.from_arrays(matrix, other)
    assert d.size == (6, 5, 4)
    assert (d.arrangement.a, d.leading_dimension.a) == (order, ld)
    assert (d.arrangement.b, d.leading_dimension.b) == (ROW, 5)
    assert (d.arrangement.c, d.leading_dimension.c) == (order, 5 if order == ROW else 6)  # a new one, in A's order
    d = GemmDescriptor.from_arrays(numbers((3, 6)), matrix)
    assert (d.size, d.arrangement.b, d.leading_dimension.b) == ((3, 4, 6), order, ld)
    d = GemmDescriptor.from_arrays(numbers((6, 2)), numbers((2, 4)), matrix)
    assert (d.size, d.arrangement, d.leading_dimension) == ((6, 4, 2), (ROW, ROW, order), (2, 4, ld))
    assert d == GemmDescriptor.from_arrays(numbers((6, 2)), numbers((2, 4)), c=matrix)


@pytest.mark.parametrize(
    ("a", "b", "order"),
    [
        (numbers((1, 4)), numbers((4, 5)), ROW),
        (numbers((1, 4)), numbers((4, 5), order="F"), COL),
        (numbers((6, 1)), numbers((1, 5), order="F"), ROW),
        (numbers((6, 1), order="F"), numbers((1, 5)), ROW),
        (numbers((6, 4), order="F"), numbers((4, 1)), COL),
    ],
)
def test_a_single_row_or_column_does_not_decide_the_order_of_c(a, b, order):
    d = GemmDescriptor.from_arrays(a, b)
    assert d.arrangement.c == order
    assert d.leading_dimension.c == (d.size.n if order == ROW else d.size.m)
    assert host.Matmul(a, b, options=ON_CPU).descriptor == d


REFUSED_STRIDES = {
    "negative": (numbers((6, 4))[::-1], "a stride is negative"),
    "broadcast": (np.broadcast_to(numbers((6, 1)), (6, 4)), "a stride is zero, it is broadcast"),
    "every other column": (numbers((6, 8))[:, ::2], "neither rows nor columns are contiguous"),
    "overlapping": (np.lib.stride_tricks.as_strided(numbers((20,)), (6, 4), (8, 4)), "rows or columns overlap"),
}


@pytest.mark.parametrize("case", REFUSED_STRIDES)
def test_strides_that_no_descriptor_says_are_refused_with_the_reason(case):
    matrix, reason = REFUSED_STRIDES[case]
    for name, operands in {
        "a": (matrix, numbers((4, 5))),
        "b": (numbers((3, 6)), matrix),
        "c": (numbers((6, 2)), numbers((2, 4)), matrix),
    }.items():
        with pytest.raises(InvalidArgumentError) as error:
            GemmDescriptor.from_arrays(*operands)
        assert str(error.value).startswith(f"{name}: strides ")
        assert f"{reason}, so it has no order and leading dimension; give a contiguous copy" in str(error.value)


@st.composite
def matrices(draw, rows, cols):
    """A view of rows x cols into a larger array: any order, offset, step and direction."""
    steps = draw(st.tuples(*[st.sampled_from([1, 1, 1, 2, -1])] * 2))
    margins = draw(st.tuples(*[st.integers(0, 2)] * 2))
    swap = draw(st.booleans())
    extents = [n * abs(s) + m for n, s, m in zip((rows, cols), steps, margins, strict=True)]
    if swap:
        extents, steps, margins = extents[::-1], steps[::-1], margins[::-1]
    memory = numbers(extents)[margins[0] :, margins[1] :][:: steps[0], :: steps[1]]
    return memory.T if swap else memory


extents = st.integers(1, 4)


@given(st.data(), extents, extents, extents, st.booleans())
def test_the_memory_that_is_described_holds_the_matrices(data, m, n, k, has_c):
    operands = [data.draw(matrices(*shape)) for shape in [(m, k), (k, n), (m, n)][: 2 + has_c]]
    # An order and a leading dimension: elements along one axis are neighbours, along the other one at least as far
    # apart as a whole row or column is long. Strides along an axis of one element play no part.
    says = [
        any(
            (x.shape[i] == 1 or x.strides[i] == 4) and (x.shape[j] == 1 or x.strides[j] >= 4 * x.shape[i])
            for i, j in ((0, 1), (1, 0))
        )
        for x in operands
    ]
    event(f"described: {all(says)}")
    if not all(says):
        with pytest.raises(InvalidArgumentError, match=rf"^{'abc'[says.index(False)]}: strides"):
            GemmDescriptor.from_arrays(*operands)
        return
    d = GemmDescriptor.from_arrays(*operands)
    assert d.size == (m, n, k)
    for which, matrix in enumerate(operands):
        np.testing.assert_array_equal(as_described(d, which, matrix), matrix)


# -- shapes and types ----------------------------------------------------------------------------------------

REFUSED_SHAPES = {
    "a batch": ([(2, 6, 4), (4, 5)], ["a: the shape (2, 6, 4) is a batch", "such as a[0]"]),
    "a batch of batches": ([(6, 4), (1, 2, 4, 5)], ["b: the shape (1, 2, 4, 5)", "such as b[0, 0]"]),
    "a batch of C": ([(6, 4), (4, 5), (2, 6, 5)], ["c: the shape (2, 6, 5)", "c[0]"]),
    "a vector": ([(4,), (4, 5)], ["a: the shape (4,) is a vector's", "reshape(1, -1)", "reshape(-1, 1)"]),
    "a scalar": ([(6, 4), ()], ["b: a scalar is not a matrix"]),
    "another k": ([(6, 4), (5, 4)], ["(6, 4) and (5, 4)", "4 columns", "5 rows"]),
    "another C": ([(6, 4), (4, 5), (5, 6)], ["c: the shape (5, 6)", "(6, 5)"]),
    "a row of C": ([(6, 4), (4, 5), (1, 5)], ["c: the shape (1, 5)", "(6, 5)"]),
    "no rows": ([(0, 4), (4, 5)], ["size", "(0, 5, 4), (m, n, k)", "no extents of 0"]),
    "no sum": ([(6, 0), (0, 5)], ["size", "(6, 5, 0)", "no extents of 0"]),
}


@pytest.mark.parametrize("case", REFUSED_SHAPES)
def test_shapes_that_are_no_product_of_matrices_are_refused_in_words(case):
    shapes, expected = REFUSED_SHAPES[case]
    with pytest.raises(InvalidArgumentError) as error:
        GemmDescriptor.from_arrays(*(numbers(s) for s in shapes))
    assert [w for w in expected if w not in str(error.value)] == [], error.value


def test_what_is_no_array_is_refused_by_name():
    with pytest.raises(ArgumentTypeError, match=r"^b: "):
        GemmDescriptor.from_arrays(numbers((6, 4)), [[1.0]] * 4)
    with pytest.raises(ArgumentTypeError, match=r"^c: elements of type bool"):
        GemmDescriptor.from_arrays(numbers((6, 4)), numbers((4, 5)), np.zeros((6, 5), bool))


# (A, B) and what C is made of where none is given
TYPES = {
    (np.float16, np.float16): "float16",
    (ml_dtypes.bfloat16, ml_dtypes.bfloat16): "bfloat16",
    (np.float32, np.float32): "float32",
    (np.float64, np.float64): "float64",
    (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2): "float8_e4m3fn",
    (np.float16, ml_dtypes.bfloat16): "float16",
    (np.int8, np.int8): "int32",
    (np.uint8, np.uint8): "uint32",
    (np.int16, np.uint16): "int64",
    (np.complex64, np.complex64): "float32",
    (np.complex128, np.complex128): "float64",
}


@pytest.mark.parametrize("types", TYPES, ids=lambda t: " ".join(np.dtype(x).name for x in t))
def test_element_types_are_those_of_the_arrays(types):
    is_complex = np.issubdtype(types[0], np.complexfloating)
    a, b = numbers((6, 4), types[0]), numbers((4, 5), types[1])
    d = GemmDescriptor.from_arrays(a, b)
    assert d.data_type == ("complex" if is_complex else "real")
    assert [v.dtype for v in d.value_types[:2]] == [a.dtype, b.dtype]
    assert str(d.precision.c) == TYPES[types]
    other = np.complex128 if is_complex else np.float64
    assert GemmDescriptor.from_arrays(a, b, numbers((6, 5), other)).precision == (*d.precision[:2], nd.float64)


def test_real_and_complex_do_not_go_together():
    with pytest.raises(ArgumentTypeError) as error:
        GemmDescriptor.from_arrays(numbers((6, 4)), numbers((4, 5), np.complex64))
    assert "a is float32, b is complex64; convert the real ones to complex" in str(error.value)


def test_libraries_mix_and_addresses_play_no_part():
    cupy, torch = fakes.fake_cupy(), fakes.fake_torch()
    a = cupy.ndarray((6, 4), np.float16, (16, 2), ptr=0x7002, device=1)
    b = torch.Tensor((4, 5), torch.float16, (1, 4))
    d = GemmDescriptor.from_arrays(a, b, numbers((6, 5)))
    assert d.precision == (nd.float16, nd.float16, nd.float32)
    assert (d.arrangement, d.leading_dimension) == ((ROW, COL, ROW), (8, 4, 5))
    assert d.alignment == (2, 2, 4)
    here = numbers((6, 8), np.float16)[:, :4], numbers((4, 5), np.float16, order="F"), numbers((6, 5))
    assert GemmDescriptor.from_arrays(*here) == d


# -- conjugation ---------------------------------------------------------------------------------------------


def lazily_conjugated(array):
    """A tensor over the array's memory that means its conjugate, as torch has them."""
    torch = fakes.fake_torch()
    strides = [s // array.itemsize for s in array.strides]
    device = torch.device("cpu")
    return torch.Tensor(array.shape, torch.complex64, strides, device=device, ptr=array.ctypes.data, conj=True)


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_conjugated_matrix_is_the_conjugate_transpose_of_the_stored_one(order):
    a, b = numbers((6, 4), np.complex64, order), numbers((4, 5), np.complex64, order)
    d = GemmDescriptor.from_arrays(lazily_conjugated(a), b)
    assert d.transpose_mode == ("conj_transposed", "non_transposed")
    np.testing.assert_array_equal(as_described(d, 0, a), a.conj())
    np.testing.assert_array_equal(as_described(d, 1, b), b)
    d = GemmDescriptor.from_arrays(a, lazily_conjugated(b))
    assert d.transpose_mode == ("non_transposed", "conj_transposed")
    np.testing.assert_array_equal(as_described(d, 0, a), a)
    np.testing.assert_array_equal(as_described(d, 1, b), b.conj())
    assert d.arrangement.c == (ROW if order == "C" else COL)


def test_the_host_level_describes_conjugation_too():
    a, b = numbers((6, 4), np.complex64), numbers((4, 5), np.complex64)
    qualifiers = np.zeros(2, host.matrix_qualifiers_dtype)
    qualifiers["is_conjugate"] = 1, 0
    d = host.Matmul(a, b, qualifiers=qualifiers, options=ON_CPU).descriptor
    assert d == GemmDescriptor.from_arrays(lazily_conjugated(a), b)
    # Conjugated twice is not conjugated.
    problem = plan_problem(view(lazily_conjugated(a), "a"), view(b, "b"), conj=(True, False))
    assert describe(problem, {"a": view(a), "b": view(b)}) == GemmDescriptor.from_arrays(a, b)


def test_a_conjugated_c_is_refused():
    a, b, c = (numbers(s, np.complex64) for s in ((6, 4), (4, 5), (6, 5)))
    with pytest.raises(InvalidArgumentError, match=r"^c: .*resolve_conj"):
        GemmDescriptor.from_arrays(a, b, lazily_conjugated(c))
    views = {"a": view(a), "b": view(b), "c": view(lazily_conjugated(c))}
    with pytest.raises(InvalidArgumentError, match=r"^c: .*resolve_conj"):
        describe(plan_problem(views["a"], views["b"], views["c"]), views)


# -- products of the host level ------------------------------------------------------------------------------

HOST_TYPES = [
    np.float16, ml_dtypes.bfloat16, np.float32, np.float64, np.int8, np.complex64, np.complex128,
    ml_dtypes.float8_e4m3fn,
]  # fmt: skip


@pytest.mark.parametrize("dtype", HOST_TYPES, ids=lambda t: np.dtype(t).name)
@pytest.mark.parametrize("orders", ["CC", "CF", "FC", "FF"])
def test_a_product_and_its_arrays_have_one_descriptor(dtype, orders):
    a, b = (numbers(s, dtype, order) for s, order in zip([(32, 16), (16, 48)], orders, strict=True))
    product = host.Matmul(a, b, options=ON_CPU)
    assert product.descriptor == GemmDescriptor.from_arrays(a, b)
    if dtype is not ml_dtypes.float8_e4m3fn:  # whose C is of another type than the result
        result = np.int32 if dtype is np.int8 else dtype
        c = numbers((32, 48), result, "F")
        product = host.Matmul(a, b, c, beta=1, options=ON_CPU)
        assert product.descriptor == GemmDescriptor.from_arrays(a, b, c)
        product.plan()
        out = product.execute()  # in the order that is described
        described = GemmDescriptor.from_arrays(a, b, out)
        assert described.precision == product.descriptor.precision
        assert described.arrangement.c == product.descriptor.arrangement.c == COL


def test_a_batch_is_described_by_one_of_its_products():
    a, b = numbers((3, 1, 6, 4)), numbers((2, 5, 4)).swapaxes(-1, -2)
    assert host.Matmul(a, b, options=ON_CPU).descriptor == GemmDescriptor.from_arrays(a[0, 0], b[0])


def test_vectors_are_single_rows_and_columns():
    a, b = numbers((6, 4)), numbers((4, 5))
    d = host.Matmul(a[0], b, options=ON_CPU).descriptor
    assert (d.size, d.arrangement, d.leading_dimension) == ((1, 5, 4), (ROW, ROW, ROW), (4, 5, 5))
    d = host.Matmul(a, b[:, 0], options=ON_CPU).descriptor  # a column with a step of 5
    assert (d.size, d.arrangement, d.leading_dimension) == ((6, 1, 4), (ROW, ROW, ROW), (4, 5, 1))


def test_what_is_copied_counts_as_copied():
    a, b = numbers((12, 8))[::2, ::2], numbers((4, 5), order="F")
    d = host.Matmul(a, b, options=ON_CPU).descriptor
    assert (d.arrangement, d.leading_dimension) == ((ROW, COL, COL), (4, 4, 6))  # the result has the order of B
    a, c = numbers((6, 4), order="F"), numbers((1, 5))
    d = host.Matmul(a, b, c, beta=1.0, options=ON_CPU).descriptor
    assert (d.arrangement.c, d.leading_dimension.c) == (COL, 6)


def test_epilog_and_result_type_show_in_c():
    a, b = numbers((6, 4), np.float16), numbers((4, 5), np.float16)
    options = {**ON_CPU, "result_type": host.CudaDataType.CUDA_R_32F}
    product = host.Matmul(a, b, options=options)
    assert product.descriptor == GemmDescriptor.from_arrays(a, b, numbers((6, 5)))
    product.plan(epilog=host.MatmulEpilog.RELU_BIAS, epilog_inputs={"bias": numbers((6,))})  # one a row: column-major
    assert product.descriptor == GemmDescriptor.from_arrays(a, b, numbers((6, 5), order="F"))
    assert product.execute().strides == (4, 24)


def test_an_empty_product_has_no_descriptor():
    with pytest.raises(InvalidArgumentError, match=r"size: the product is \(6, 5, 0\), \(m, n, k\)"):
        host.Matmul(numbers((6, 0)), numbers((0, 5)), options=ON_CPU).descriptor  # noqa: B018


def test_from_the_host_level_to_a_tile():
    a, b = numbers((100, 70), ml_dtypes.bfloat16), numbers((70, 90), ml_dtypes.bfloat16, "F")
    tile = host.Matmul(a, b, options=ON_CPU).descriptor.tile((64, 32, 16), block_size=64, sm=90)
    expected = {"size": (64, 32, 16), "precision": ("bf16", "bf16", "fp32"), "data_type": "real"}
    assert tile == nd.Matmul(**expected, arrangement=(ROW, COL, ROW), block_size=64, sm=90)
