# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F811  (a fixture is imported and is a parameter's name)
"""Opaque tensors in kernels compiled to PTX: what is accepted for every element type, and what is refused.

Nothing is generated (see ``kernel_stubs``), and libmathdx is not asked for sizes either.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from numba import cuda
from numba.cuda.types import complex64, complex128, float16, float32, float64, int8, int32, int64, uint8, void

import nvmath_device as nd
from nvmath_device.errors import KernelOnlyError, KernelTypingError
from nvmath_device.lto.tensor_recipes import symbol_of
from nvmath_device.numba_backend import compiling  # noqa: F401  (not first under the fixture, whose classes it would keep)
from nvmath_device.tensor_plans import TensorPlan
from tests import tensor_kernels
from tests.kernel_stubs import (
    asked,  # noqa: F401  (a fixture)
    declared,
    ptx_of,
)

ROW, COL = "row_major", "col_major"
SM90 = nd.ComputeCapability(9, 0)
KINDS = ("plain", "suggested")
FRAGMENT = 6


@pytest.fixture(autouse=True)
def traits(monkeypatch):
    """A fragment has six elements, and what is suggested takes 4000 bytes; made-up answers reach no other test."""
    names = [f"{s}{n}" for s in ("", "suggested_") for n in ("smem_a", "smem_b", "smem_c", "rmem_c")]
    monkeypatch.setattr("nvmath_device.tensor_plans._asked", {})
    answers = {name: (FRAGMENT if "rmem" in name else 32, 4000, 16) for name in names}
    monkeypatch.setattr("nvmath_device.lto.codegen.tensor_traits", lambda recipe: answers)


def matmul(types="float32", arrangement=(ROW,) * 3, data_type="real", size=(8, 8, 4), **options):
    return nd.Matmul(size, types, data_type, arrangement=arrangement, **{"block_size": 32, **options})


HALF = ("float16", "float16", "float32")
MM = matmul(HALF)
bf16 = ml_dtypes.bfloat16
A, B, C = float16[:, ::1], float16[:, ::1], float32[:, ::1]


def same(kernel):
    return kernel


def error_of(kernel, *arguments):
    """The error that typing ends in; kernels here have helper functions, which ``ptx_of`` needs a device for."""
    with pytest.raises(KernelTypingError) as error:
        nd.compile(kernel, void(*arguments), sm=90, output="ltoir")
    return str(error.value)


def roles(ptx, mm, is_suggested, alignment=None):
    recipe = TensorPlan(*mm.resolved(SM90)).recipe(is_suggested, alignment)
    prefix = symbol_of(recipe, "")
    return {name.removeprefix(prefix): form for name, form in declared(ptx).items() if name.startswith(prefix)}


# -- every element type ----------------------------------------------------------------------------------------------

NUMBA = {"float16": float16, "float32": float32, "tfloat32": float32, "float64": float64, "float8_e4m3fn": uint8,
         "float8_e5m2": uint8, "int8": int8, "int32": int32}  # fmt: skip
REAL = [
    HALF, ("tfloat32", "tfloat32", "float32"), ("float8_e4m3fn", "float8_e5m2", "float32"), ("float32",) * 3,
    ("float64",) * 3, ("int8", "int8", "int32"), ("float16",) * 3, ("bfloat16", "bfloat16", "float32"),
]  # fmt: skip


def numba_of(name):
    from numba.cuda import types

    return types.bfloat16 if name == "bfloat16" else NUMBA[name]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("types", REAL, ids="-".join)
def test_real_types(types, kind):
    mm = matmul(types)
    a, b, c = (numba_of(t) for t in types)
    ptx = ptx_of(
        tensor_kernels.to_registers(mm, kind, jit=same),
        a[::1],
        int64,
        int64,
        b[::1],
        int64,
        int64,
        int64,
        c[::1],
        int64,
    )
    # Tensors are structs, one parameter each.
    assert roles(ptx, mm, kind == "suggested") == {
        "load_a": (False, 0), "load_b": (False, 0), "clear": (False, 0), "execute": (False, 0),
        "fragment_to_gmem": (False, 0),
    }  # fmt: skip
    scalar = int32 if c == int32 else float32
    ptx = ptx_of(
        tensor_kernels.to_shared(mm, kind, jit=same), scalar, a[::1], int64, b[::1], int64, scalar, c[::1], int64
    )
    assert set(roles(ptx, mm, kind == "suggested")) == {"load_a", "load_b", "load_c", "execute_shared", "store_c"}


@pytest.mark.parametrize(
    ("types", "element", "scalar"),
    [("float32", complex64, complex64), ("float64", complex128, complex64), ("float16", float16, complex64),
     (("int8", "int8", "int32"), int8, int32)],
)  # fmt: skip
def test_complex_types(types, element, scalar):
    """Those that kernels have no numbers for go as their components."""
    mm = matmul(types, data_type="complex")
    c = int32 if element == int8 else element
    pointers = (element[::1], int64, int64, element[::1], int64, int64, int64, c[::1], int64)
    assert "_execute" in ptx_of(tensor_kernels.to_registers(mm, "plain", jit=same), *pointers)
    kernel = tensor_kernels.to_shared(mm, "suggested", jit=same)
    shared = ptx_of(kernel, scalar, element[::1], int64, element[::1], int64, scalar, c[::1], int64)
    assert "_execute_shared" in shared


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("types", "other"),
    [(HALF, "float16"), (HALF, np.float64), ("float64", np.float32), ("float16", "float32")],
    ids=str,
)
def test_accumulators(asked, types, other, kind):
    mm = matmul(types)
    a, c = (float16, float32) if types == HALF else (NUMBA[types],) * 2
    narrow = NUMBA[other if isinstance(other, str) else np.dtype(other).name]
    kernel = tensor_kernels.through_registers(mm, kind, other, jit=same)
    made = nd.compile(kernel, void(*(t[:, ::1] for t in (a, a, c, c, narrow, c))), sm=90, output="ltoir")
    assert made.linked
    (recipe,) = asked
    assert dict(recipe.operators)["TENSORS"] == kind.upper()


def test_bfloat16_results():
    def kernel(c):
        acc = MM.get_accumulator()
        out = nd.make_fragment_like(acc, "bfloat16")
        acc.get_results(out=out)
        nd.copy_fragment(out, nd.make_tensor(c, MM.get_layout_gmem_c()))

    ptx = ptx_of(kernel, numba_of("bfloat16")[:, ::1])
    assert "_coordinate" in ptx  # element by element
    assert "_fragment_to_gmem" not in ptx


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("types", REAL, ids="-".join)
def test_elements_in_shared_memory(types, kind):
    mm = matmul(types, alignment=nd.MAX_ALIGNMENT)
    element = numba_of(types[0])
    ptx = ptx_of(tensor_kernels.elements(mm, kind, jit=same), element[:, ::1], element[:, ::1], element[:, ::1])
    assert roles(ptx, mm, kind == "suggested") == {"load_a": (False, 0), "store_a": (False, 0), "place_a": (False, 4)}


def test_sizes_are_constants():
    def kernel(out):
        acc = MM.suggest_accumulator()
        local = cuda.local.array(MM.get_layout_rmem_c().cosize, np.float32)
        fragment = nd.make_tensor(local, MM.suggest_layout_rmem_c())
        nd.shared.array(MM.get_shared_storage_size_ab(MM.suggest_layout_smem_a(), MM.suggest_layout_smem_b()), np.uint8)
        out[0], out[1], out[2] = acc.size, fragment.size, MM.suggest_layout_smem_b().cosize
        out[3], out[4] = MM.get_layout_gmem_a(out[9]).cosize, acc.get_alignment()
        acc.get_results(fragment)
        out[5] = int(fragment[out[6]])

    ptx = ptx_of(kernel, int64[::1])
    for constant in (6, 2000, 4):
        assert f", {constant};" in ptx


def test_an_alignment_other_than_the_descriptors_has_code_of_its_own(asked):
    def kernel(a):
        ta = nd.make_tensor(nd.shared.array(32, np.float16), MM.get_layout_smem_a())
        nd.copy(nd.make_tensor(a, MM.get_layout_gmem_a()), ta, 16)
        nd.copy(nd.make_tensor(a, MM.get_layout_gmem_a()), ta, alignment=2)

    ptx = ptx_of(kernel, A)
    assert set(roles(ptx, MM, False, 16)) == {"load_a"} == set(roles(ptx, MM, False))
    assert sorted(dict(r.operators)["COPY_ALIGNMENT"] for r in asked) == [(2, 2, 4), (16, 16, 16)]


def test_a_padded_layout_is_generated_as_such(asked):
    mm = matmul(HALF, leading_dimension=(8, 16, 12))

    def kernel(a):
        ta = nd.make_tensor(nd.shared.array(60, np.float16), mm.get_layout_smem_a())
        nd.copy(nd.make_tensor(a, mm.get_layout_gmem_a()), ta)

    ptx_of(kernel, A)
    (recipe,) = asked
    assert dict(recipe.operators)["LEADING_DIMENSION"] == (8, 16, 12)


# -- refusals --------------------------------------------------------------------------------------------------------

OTHER = matmul(HALF, (COL, ROW, ROW))


@cuda.jit(device=True)
def put(tensor, value):
    tensor[0, 0] = value


def with_tensors(body):
    """A kernel with tensors of every kind; ``body`` gets them as arguments of a function that is compiled into it."""
    body = cuda.jit(device=True)(body)

    def kernel(a, b, c):
        sa, sb = nd.shared.array(4096, np.float16), nd.shared.array(4096, np.float16)
        sc = nd.shared.array(4096, np.float32)
        body(
            nd.make_tensor(a, MM.get_layout_gmem_a()), nd.make_tensor(c, MM.get_layout_gmem_c()),
            nd.make_tensor(sa, MM.get_layout_smem_a()), nd.make_tensor(sb, MM.get_layout_smem_b()),
            nd.make_tensor(sc, MM.get_layout_smem_c()), nd.make_tensor(sb, MM.suggest_layout_smem_b()),
            nd.make_tensor(sc, MM.suggest_layout_smem_c()), nd.make_tensor(sa, OTHER.get_layout_smem_a()),
            MM.get_accumulator(), MM.suggest_accumulator(),
        )  # fmt: skip

    return kernel


REFUSED = {
    "mix": (
        lambda ga, gc, a, b, c, qb, qc, other, acc, q: MM.execute(a, qb, acc), "a plain, b suggested, c plain",
    ),
    "mix of c": (
        lambda ga, gc, a, b, c, qb, qc, other, acc, q: MM.execute(1.0, a, b, 0.0, qc), "c suggested",
    ),
    "other descriptor": (
        lambda ga, gc, a, b, c, qb, qc, other, acc, q: MM.execute(other, b, acc), "a of the same Matmul",
    ),
    "other matrix": (
        lambda ga, gc, a, b, c, qb, qc, other, acc, q: MM.execute(b, a, acc),
        "a tensor of A for a, got B in shared memory",
    ),
    "from global": (
        lambda ga, gc, a, b, c, qb, qc, other, acc, q: MM.execute(ga, b, acc), "a in shared memory, got A in global",
    ),
    "scalars with registers": (
        lambda ga, gc, a, b, c, qb, qc, other, acc, q: MM.execute(1.0, a, b, 0.0, acc),
        "takes (a, b, c) with a c in registers",
    ),
    "no scalars": (
        lambda ga, gc, a, b, c, qb, qc, other, acc, q: MM.execute(a, b, c), "takes (alpha, a, b, beta, c)",
    ),
    "complex alpha": (
        lambda ga, gc, a, b, c, qb, qc, other, acc, q: MM.execute(1j, a, b, 0.0, c), "a real number for alpha",
    ),
    "leading dimensions": (
        lambda ga, gc, a, b, c, qb, qc, other, acc, q: MM.execute(1.0, a, 4, b, 8, 0.0, c, 8),
        "no leading dimensions with tensors",
    ),
    "a number": (
        lambda ga, gc, a, b, c, qb, qc, other, acc, q: MM.execute(a, 2, acc), "a tensor for b",
    ),
    "copy of registers": (
        lambda ga, gc, a, b, c, qb, qc, other, acc, q: nd.copy(acc, gc), "use copy_fragment",
    ),
    "copy of another matrix": (
        lambda ga, gc, a, b, c, qb, qc, other, acc, q: nd.copy(ga, b), "the same matrix",
    ),
    "copy within shared memory": (
        lambda ga, gc, a, b, c, qb, qc, other, acc, q: nd.copy(c, qc), "both in shared memory",
    ),
    "copy to another descriptor": (
        lambda ga, gc, a, b, c, qb, qc, other, acc, q: nd.copy(ga, other), "dst of the same Matmul",
    ),
    "alignment too small": (
        lambda ga, gc, a, b, c, qb, qc, other, acc, q: nd.copy(ga, a, 1),
        "2, 4, 8 or 16 for elements of float16, got 1",
    ),
    "alignment too large": (
        lambda ga, gc, a, b, c, qb, qc, other, acc, q: nd.copy(ga, a, alignment=32), "got 32",
    ),
    "alignment that is no constant": (
        lambda ga, gc, a, b, c, qb, qc, other, acc, q: nd.copy(ga, a, cuda.threadIdx.x), "a constant number of bytes",
    ),
    "copy_fragment without": (
        lambda ga, gc, a, b, c, qb, qc, other, acc, q: nd.copy_fragment(gc, c), "neither is one; use copy",
    ),
    "copy_fragment with two": (
        lambda ga, gc, a, b, c, qb, qc, other, acc, q: nd.copy_fragment(acc, q), "both are one",
    ),
    "copy_fragment of A": (
        lambda ga, gc, a, b, c, qb, qc, other, acc, q: nd.copy_fragment(acc, ga), "a tensor of C beside",
    ),
    "copy_fragment mix": (
        lambda ga, gc, a, b, c, qb, qc, other, acc, q: nd.copy_fragment(acc, qc), "take get_layout_smem_c()",
    ),
    "clear": (
        lambda ga, gc, a, b, c, qb, qc, other, acc, q: nd.clear(c), "a fragment or an accumulator for tensor",
    ),
    "axpby": (
        lambda ga, gc, a, b, c, qb, qc, other, acc, q: nd.axpby(1.0, acc, 1.0, q), "x and y of the same layout",
    ),
    "partition_and_store": (
        lambda ga, gc, a, b, c, qb, qc, other, acc, q: acc.partition_and_store(c), "C in global memory for gmem",
    ),
    "map_fragment_index": (
        lambda ga, gc, a, b, c, qb, qc, other, acc, q: acc.map_fragment_index(0.5), "an integer for index",
    ),
    "an element of shared memory": (
        lambda ga, gc, a, b, c, qb, qc, other, acc, q: a[0], "wants a row and a column, t[row, column]",
    ),
    "a row that is no integer": (
        lambda ga, gc, a, b, c, qb, qc, other, acc, q: a[0.5, 1], "wants a row and a column, t[row, column]",
    ),
    "an element of global memory": (
        lambda ga, gc, a, b, c, qb, qc, other, acc, q: ga[0, 1], "of a tensor A in global memory",
    ),
    "a pair where nothing is promised": (
        lambda ga, gc, a, b, c, qb, qc, other, acc, q: put(a, nd.float32x2(1, 2)), "wants no more than 2 bytes at once",
    ),
    "a complex element": (
        lambda ga, gc, a, b, c, qb, qc, other, acc, q: put(a, 1j), "a number that float16 can hold",
    ),
    "a shuffle of float16": (
        lambda ga, gc, a, b, c, qb, qc, other, acc, q: nd.shuffle_xor(np.float16(1), 1),
        "wants one of float32, float64, int32, int64 for value",
    ),
    "a shuffle of no lanes": (
        lambda ga, gc, a, b, c, qb, qc, other, acc, q: nd.shuffle_xor(np.float32(1), 0.5), "an integer for lanes",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_in_words(name):
    body, words = REFUSED[name]
    assert words in error_of(with_tensors(body), A, B, C)


def test_arrays_that_do_not_fit_a_layout():
    def wrong_type(a):
        nd.make_tensor(nd.shared.array(32, np.float32), MM.get_layout_smem_a())

    def wrong_rank(a):
        nd.make_tensor(nd.shared.array((8, 4), np.float16), MM.get_layout_smem_a())

    def wrong_order(a):
        nd.make_tensor(a, OTHER.get_layout_gmem_a())

    def no_layout(a):
        nd.make_tensor(a, MM)

    def no_array(a):
        nd.make_tensor(3, MM.get_layout_smem_a())

    def runtime_ld(a):
        nd.make_tensor(a, MM.get_layout_gmem_a(0.5))

    for kernel, words in [
        (wrong_type, "elements of float16 for array, A in shared memory"),
        (wrong_rank, "a contiguous 1-D array of layout.cosize elements"),
        (wrong_order, "col_major matrix for array"),
        (no_layout, "wants a layout for layout"),
        (no_array, "an array for array"),
        (runtime_ld, "an integer for leading_dimension"),
    ]:
        assert words in error_of(kernel, A), kernel.__name__


def test_on_the_host_they_mean_nothing():
    for function, arguments in [
        (nd.make_tensor, (1, 2)), (nd.make_fragment_like, (1,)), (nd.copy, (1, 2)), (nd.copy_fragment, (1, 2)),
        (nd.copy_wait, ()), (nd.clear, (1,)), (nd.axpby, (1, 2, 3, 4)), (MM.get_accumulator, ()),
        (MM.suggest_accumulator, ()),
    ]:  # fmt: skip
        with pytest.raises(KernelOnlyError, match="inside a kernel"):
            function(*arguments)
