# SPDX-License-Identifier: Apache-2.0
"""``nd.float32x2`` and its kind without a GPU: types, constructors, operands, and the PTX they become."""

from __future__ import annotations

import copy
import pickle
import re

import numpy as np
import pytest
from numba import cuda
from numba.cuda.np.numpy_support import from_dtype
from numba.cuda.types import complex64, float32, float64, int64

import nvmath_device as nd
from nvmath_device.errors import KernelOnlyError, KernelTypingError
from tests.kernel_stubs import asked, declared, error_of, ptx_of, shared_arrays  # noqa: F401  (a fixture)

# Name: NumPy's type of a component, components, PTX's type of a component.
VECTORS = {
    "float16x2": ("f2", 2, "b16"), "float16x4": ("f2", 4, "b16"), "float32x2": ("f4", 2, "f32"),
    "float32x4": ("f4", 4, "f32"), "float64x2": ("f8", 2, "f64"), "float64x4": ("f8", 4, "f64"),
    "uint32x4": ("u4", 4, "u32"),
}  # fmt: skip
each_vector = pytest.mark.parametrize("name", VECTORS)


# -- values on the host ------------------------------------------------------------------------------------


@each_vector
def test_a_vector_type_says_what_it_holds(name):
    component, count, _ = VECTORS[name]
    vector = getattr(nd, name)
    assert vector.dtype == np.dtype([(field, component) for field in "xyzw"[:count]])
    assert vector.itemsize == vector.dtype.itemsize == count * np.dtype(component).itemsize
    assert repr(vector) == f"nvmath_device.{name}"
    assert vector == copy.deepcopy(vector) == pickle.loads(pickle.dumps(vector))
    assert len({getattr(nd, other) for other in VECTORS}) == len(VECTORS)


@each_vector
def test_numpy_takes_it_for_a_dtype(name):
    array = np.ones(3, getattr(nd, name))
    array[1].y = 5
    assert array["y"].tolist() == [1, 5, 1]


def test_the_constructor_on_the_host_says_so():
    with pytest.raises(KernelOnlyError, match="float32x2 was called on the host"):
        nd.float32x2(1.0, 2.0)


# -- arrays ------------------------------------------------------------------------------------------------


def copying(vector):
    """A kernel that reads all attributes of an element which goes from a shared to a local array."""
    if vector.components == 2:

        def kernel(out):
            shared, local = nd.shared.array(9, vector), cuda.local.array(5, vector)
            i = cuda.threadIdx.x
            shared[i] = vector(1, 2)
            cuda.syncthreads()
            for k in range(5):
                local[k] = shared[i + k]
            v = local[i]
            out[0], out[1] = v.x, v.y

        return kernel

    def kernel(out):
        shared, local = nd.shared.array(9, vector), cuda.local.array(5, vector)
        i = cuda.threadIdx.x
        shared[i] = vector(1, 2, 3, 4)
        cuda.syncthreads()
        for k in range(5):
            local[k] = shared[i + k]
        v = local[i]
        out[0], out[1], out[2], out[3] = v.x, v.y, v.z, v.w

    return kernel


@each_vector
def test_shared_and_local_arrays(name):
    component, count, _ = VECTORS[name]
    ptx = ptx_of(copying(getattr(nd, name)), float64[::1])
    size = count * np.dtype(component).itemsize
    assert shared_arrays(ptx) == [(16, 9 * size)]
    stack = re.search(r"\.local \.align \d+ \.b8[ \t]+\w+\[(\d+)\]", ptx)
    assert int(stack[1]) >= 5 * size


@pytest.mark.parametrize("name", ["float32x4", "uint32x4", "float64x2"])
def test_sixteen_bytes_move_at_once(name):
    _, count, kind = VECTORS[name]
    ptx = ptx_of(copying(getattr(nd, name)), float64[::1])
    assert re.search(rf"st\.shared\.v{count}\.{kind}\b", ptx)
    assert re.search(rf"ld\.shared\.v{count}\.{kind}\b", ptx)


def test_dynamic_memory_and_matrices_of_vectors():
    def kernel(out):
        dynamic, matrix = nd.shared.array(0, nd.float32x4), nd.shared.array((2, 3), nd.float32x2)
        matrix[1, 2] = nd.float32x2(dynamic[7].w, dynamic.size)
        cuda.syncthreads()
        out[0] = matrix[0, cuda.threadIdx.x].y

    assert sorted(shared_arrays(ptx_of(kernel, float32[::1])), key=str) == [(16, 48), (16, None)]


def test_a_vector_type_may_be_a_global_a_closure_variable_or_an_attribute():
    vector = nd.float32x2

    def kernel(out):
        one, two = cuda.local.array(2, vector), cuda.local.array(2, nd.float32x2)
        one[0] = vector(out[0], 1)
        two[0] = one[0]
        out[1] = two[0].x

    ptx_of(kernel, float32[::1])


# -- the constructor ---------------------------------------------------------------------------------------


def test_numbers_are_converted_to_the_component():
    def kernel(x, n, out):
        v = nd.float32x2(x[0], n[0])
        out[0], out[1] = v.x, v.y

    ptx = ptx_of(kernel, float64[::1], int64[::1], float32[::1])
    assert "cvt.rn.f32.f64" in ptx
    assert "cvt.rn.f32.s64" in ptx


def test_numbas_own_vectors_are_the_same_values():
    def kernel(out):
        ours = cuda.local.array(4, nd.float32x2)
        ours[0] = cuda.float32x2(out[0], out[1])
        ours[1] = nd.float32x2(ours[0].y, 3)
        both = ours[0] if out[2] > 0 else cuda.float32x2(1, 2)
        wide = cuda.float32x4(nd.float32x2(out[0], 5), both)
        out[0] = ours[1].x + wide.w

    ptx_of(kernel, float32[::1])


WRONG = {
    "one number": (
        lambda out: nd.float32x2(1.0),
        r"nvmath_device\.float32x2 takes 2 numbers, got \(float64\)",
    ),
    "three numbers": (
        lambda out: nd.float32x2(1.0, 2.0, 3.0),
        r"takes 2 numbers, got \(float64, float64, float64\)",
    ),
    "two of four": (lambda out: nd.uint32x4(1, 2), r"nvmath_device\.uint32x4 takes 4 numbers"),
    "by name": (lambda out: nd.float32x2(x=1.0, y=2.0), r"takes 2 numbers, got \(x=\.\.\., y=\.\.\.\)"),
    "complex": (lambda out: nd.float32x2(1.0, 2j), r"takes real numbers, got \(float64, complex128\)"),
    "an array": (lambda out: nd.float32x2(out, 1.0), r"takes real numbers, got \(array"),
    "a vector": (lambda out: nd.float32x2(nd.float32x2(1, 2), 1), r"takes real numbers, got \(float32x2"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_numbers_are_refused_in_words(case):
    call, message = WRONG[case]
    assert re.search(message, error_of(call, float32[::1]))


def test_another_vector_is_no_element():
    def kernel(out):
        cuda.local.array(2, nd.float32x2)[0] = nd.float64x2(1, 2)

    with pytest.raises(Exception, match="float64x2"):
        ptx_of(kernel, float32[::1])


# -- operands ----------------------------------------------------------------------------------------------

FFTS = {
    "float16": (nd.FFT(64, "float16", "c2c", "Thread", direction="forward"), nd.float16x4),
    "float32": (nd.FFT(64, "float32", "c2c", "Thread", direction="forward"), nd.float32x2),
    "float64": (nd.FFT(32, "float64", "c2c", "Thread", direction="forward"), nd.float64x2),
}


@pytest.mark.parametrize("precision", FFTS)
def test_ffts_take_vectors_for_complex_numbers(precision, asked):  # noqa: F811
    fft, vector = FFTS[precision]

    def kernel(x, y):
        data = cuda.local.array(64, vector)
        fft.load(x, data)
        fft.execute(data)
        fft.store(data, y)

    ptx = ptx_of(kernel, complex64[:, :], complex64[:, :])
    assert declared(ptx) == {asked[-1].symbol: (False, 1)}


def test_block_ffts_take_vectors_in_both_memories(asked):  # noqa: F811
    fft = nd.FFT(64, "float32", "c2c", "Block", direction="forward")

    def kernel(x, y):
        data, scratch = cuda.local.array(19, nd.float32x2), nd.shared.array(300, nd.float32x2)
        fft.load_shared(x, scratch)
        fft.execute(scratch)
        fft.execute(data, scratch)
        fft.store_shared(scratch, y)

    assert len(declared(ptx_of(kernel, complex64[:, :], complex64[:, :]))) == 2


@pytest.mark.parametrize("name", ["float32x4", "float16x2", "float64x2"])
def test_an_fft_refuses_other_vectors(name):
    fft, vector = FFTS["float32"][0], getattr(nd, name)

    def kernel(out):
        fft.execute(cuda.local.array(64, vector))

    wanted = "wants elements of complex64 (or, in a 1-D array, its components as float32) for thread_data"
    assert wanted in error_of(kernel, float32[::1])


@pytest.mark.parametrize(
    ("precision", "vector"),
    [("float16", nd.float16x2), ("float32", nd.float32x2), ("float64", nd.float64x2)],
    ids=["float16", "float32", "float64"],
)
def test_complex_gemms_take_vectors(precision, vector, asked):  # noqa: F811
    mm = nd.Matmul((8, 8, 8), precision, "complex", arrangement=("row_major",) * 3, block_size=32)

    def kernel(out):
        a, b, c = nd.shared.array(64, vector), nd.shared.array((8, 8), vector), nd.shared.array(64, vector)
        mm.execute(1.0, a, b, 0.0, c)

    assert declared(ptx_of(kernel, float32[::1])) == {asked[-1].symbol: (False, 8)}


def test_vectors_are_no_real_numbers():
    mm = nd.Matmul((8, 8, 8), "float32", "real", arrangement=("row_major",) * 3, block_size=32)

    def kernel(out):
        a, c = nd.shared.array(64, nd.float32x2), nd.shared.array(64, np.float32)
        mm.execute(1.0, a, c, 0.0, c)

    with pytest.raises(KernelTypingError, match="wants elements of float32 for a, got an array of float32x2"):
        ptx_of(kernel, float32[::1])


def test_records_of_two_floats_are_the_same_bits_as_an_argument():
    """An array of vectors comes into a kernel as records."""
    record = from_dtype(np.dtype([("x", np.float16), ("y", np.float16)]))
    mm = nd.Matmul((8, 8, 8), "float16", "complex", arrangement=("row_major",) * 3, block_size=32)

    def kernel(x):
        mm.load_a(x, nd.shared.array(64, nd.float16x2))

    ptx_of(kernel, record[:, ::1])
