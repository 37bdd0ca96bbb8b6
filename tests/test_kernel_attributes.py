# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F811  (a fixture is imported and is a parameter's name)
"""Attributes of descriptors as constants in kernels, and the shared arrays made with them.

Compiled to PTX; nothing is generated (see ``kernel_stubs``).
"""

from __future__ import annotations

import re

import numpy as np
import pytest
from numba import cuda
from numba.cuda.types import (
    float32,
    int8,
    int32,
)

import nvmath_device as nd
from tests.kernel_stubs import (
    MM,
    Holder,
    asked,  # noqa: F401  (a fixture)
    error_of,
    matmul,
    ptx_of,
    shared_arrays,
)

# -- attributes ----------------------------------------------------------------------------------------------


def test_r038_attributes_of_a_global_are_array_sizes():
    def kernel(out):
        a = cuda.shared.array(MM.a_size, np.float32)
        b = cuda.shared.array((MM.size.k, MM.size[1]), np.float32)
        c = nd.shared.array(MM.c_dim, MM.c_value_type)
        out[0] = a[0] + b[1, 0] + c[0, 1]

    assert sorted(shared_arrays(ptx_of(kernel, float32[::1]))) == [(4, 256), (4, 512), (16, 128)]


def test_r038_attributes_of_a_closure_variable_are_array_sizes():
    mm = matmul(size=(3, 5, 7), leading_dimension=(8, 9, 4))

    def kernel(out):
        a = cuda.shared.array(mm.a_size, np.int8)  # 3 rows of 8
        b = cuda.shared.array(mm.leading_dimension.b, np.int8)
        c = cuda.shared.array(mm.block_size, np.int8)
        d = cuda.shared.array(mm.block_dim.x, np.int16)
        e = cuda.shared.array(mm.alignment.a, np.int64)
        f = cuda.shared.array(mm.max_threads_per_block, np.int64)
        out[0] = a[1] + b[1] + c[1] + d[1] + e[1] + f[1]

    sizes = [n for _, n in shared_arrays(ptx_of(kernel, float32[::1]))]
    assert sorted(sizes) == [9, 24, 32, 64, 128, 512]


class Solver:
    """A class that keeps its descriptors and makes a kernel of them, as Numba allows it."""

    mm, fft = MM, Holder.fft

    def kernel(self):
        mm, fft = self.mm, self.fft

        def kernel(out):
            a = cuda.shared.array(mm.a_size, np.float32)
            b = cuda.shared.array(fft.shared_memory_size, np.uint8)
            out[0] = a[0] + b[1]

        return kernel


def test_r038_attributes_of_a_class_attribute_are_array_sizes():
    assert sorted(n for _, n in shared_arrays(ptx_of(Solver().kernel(), float32[::1]))) == [512, 1700]


def test_r038_attributes_of_a_modules_variable_are_array_sizes():
    module = __import__("types").ModuleType("descriptors_of_the_program")
    module.mm = MM

    def kernel(out):
        a = cuda.shared.array(module.mm.a_size, np.float32)
        out[0] = a[0]

    assert [n for _, n in shared_arrays(ptx_of(kernel, float32[::1]))] == [512]


FFT_NUMBERS = {
    "size": 64,
    "elements_per_thread": 7,
    "storage_size": 19,
    "stride": 23,
    "input_length": 64,
    "output_length": 64,
    "input_elements_per_thread": 11,
    "output_elements_per_thread": 13,
    "ffts_per_block": 5,
    "shared_memory_size": 1700,
    "implicit_type_batching": 1,
    "shared_storage_size": 5 * 64 * 8,
}


@pytest.mark.parametrize("name", FFT_NUMBERS)
def test_r038_every_number_of_an_fft_is_an_array_size(name):
    fft = Holder.fft
    source = f"def kernel(out):\n    a = cuda.shared.array(fft.{name}, int8)\n    out[0] = a[out.size]\n"
    scope = {"cuda": cuda, "fft": fft, "int8": int8}
    exec(source, scope)
    assert [n for _, n in shared_arrays(ptx_of(scope["kernel"], int8[::1]))] == [FFT_NUMBERS[name]]


def test_r038_block_dim_of_an_fft_unpacks():
    fft = Holder.fft

    def kernel(out):
        x, y, z = fft.block_dim
        a = cuda.shared.array((fft.block_dim.x, fft.block_dim.y), np.int8)
        out[0] = x * 10000 + y * 100 + z + a[1, 1]

    ptx = ptx_of(kernel, int32[::1])
    assert shared_arrays(ptx)[0][1] == 115
    assert "230501" in ptx


ELEMENT_BYTES = [
    ("float16", "real", 2),
    ("float32", "real", 4),
    ("float64", "real", 8),
    (("bfloat16", "bfloat16", "float32"), "real", 2),
    (("tfloat32", "tfloat32", "float32"), "real", 4),
    (("float8_e4m3fn", "float8_e4m3fn", "float32"), "real", 1),
    (("int8", "int8", "int32"), "real", 1),
    ("float32", "complex", 8),
    ("float64", "complex", 16),
    ("float16", "complex", 4),
    (("bfloat16", "bfloat16", "float32"), "complex", 4),
    (("float8_e5m2", "float8_e5m2", "float16"), "complex", 2),
    (("int8", "int8", "int32"), "complex", 2),
]


@pytest.mark.parametrize(("precision", "data_type", "itemsize"), ELEMENT_BYTES, ids=str)
def test_r037_shared_arrays_of_every_value_type(precision, data_type, itemsize, asked):
    mm = matmul(precision=precision, data_type=data_type)

    def kernel():
        a = nd.shared.array(mm.a_size, mm.a_value_type)
        b = nd.shared.array(mm.b_size, mm.b_value_type)
        c = nd.shared.array(mm.c_size, mm.c_value_type)
        mm.execute(1, a, b, 0, c)

    found = shared_arrays(ptx_of(kernel))
    assert [n for _, n in found][:2] == [128 * itemsize, 64 * itemsize]
    assert {a for a, _ in found} == {16}
    assert len(asked) == 1


ELEMENTS = {
    "float16": 2,
    "bfloat16": 2,
    "tfloat32": 4,
    "float64": 8,
    "int8": 1,
    "uint64": 8,
    "float8_e5m2": 1,
}


@pytest.mark.parametrize("name", ELEMENTS)
@pytest.mark.parametrize("as_text", [False, True])
def test_r037_shared_arrays_of_every_element_type(name, as_text):
    element = name if as_text else nd.element_type(name)

    def kernel(out):
        a = nd.shared.array(24, element)
        a[out.shape[0]] = a[1]

    assert shared_arrays(ptx_of(kernel, int32[::1])) == [(16, 24 * ELEMENTS[name])]


@pytest.mark.parametrize("precision", ["float16", "bfloat16", "tfloat32", "float8_e4m3fn"])
def test_r037_a_precision_is_a_dtype(precision):
    mm = matmul(precision=(precision, precision, "float32"))

    def kernel(out):
        a = nd.shared.array(mm.a_size, mm.precision.a)
        b = nd.shared.array(mm.b_size, mm.b_value_type)
        c = nd.shared.array(mm.c_size, mm.precision.c)
        mm.execute(1.0, a, b, 0.0, c)
        out[0] = c[0]

    assert len(shared_arrays(ptx_of(kernel, float32[::1]))) == 3


# -- shared memory -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("precision", "data_type", "dtype"),
    [
        ("float16", "real", "float16"),
        ("float32", "complex", "complex64"),
        ("float64", "complex", "complex128"),
        ("float64", "real", "float64"),
        (("int8", "int8", "int32"), "real", "int8"),
    ],
)
def test_r030_numbas_own_shared_arrays_are_aligned_for_generated_code(precision, data_type, dtype):
    """Three bytes declared before the buffers, as in a kernel whose author knows nothing of alignment."""
    mm = matmul(precision=precision, data_type=data_type)
    element = np.dtype(dtype)
    c_element = np.dtype("int32") if dtype == "int8" else element

    def kernel(out):
        first = cuda.shared.array(3, np.int8)
        a = cuda.shared.array(mm.a_size, element)
        b = cuda.shared.array(mm.b_size, element)
        c = cuda.shared.array(mm.c_size, c_element)
        first[out.size & 1] = 1
        mm.execute(1, a, b, 0, c)
        out[0] = first[0]

    found = shared_arrays(ptx_of(kernel, int8[::1]))
    assert len(found) == 4
    assert all(alignment >= 16 for alignment, _ in found)


def test_r030_scratch_and_data_of_an_fft_are_aligned():
    fft = Holder.fft

    def kernel(out):
        first = cuda.shared.array(3, np.int8)
        data = cuda.local.array(fft.storage_size, np.complex64)
        scratch = cuda.shared.array(fft.shared_memory_size, np.uint8)
        first[out.size & 1] = 1
        data[out.size & 7] = 2
        fft.execute(data, scratch)
        out[0] = first[0] + data[0].real

    ptx = ptx_of(kernel, int8[::1])
    assert shared_arrays(ptx) == [(16, 3), (16, 1700)] or shared_arrays(ptx) == [(16, 1700), (16, 3)]
    (alignment,) = re.findall(r"\.local \.align (\d+)", ptx)
    assert int(alignment) >= 8


def test_r032_dynamic_shared_memory_behind_static_arrays_is_aligned():
    def kernel(out):
        first = cuda.shared.array(24, np.int8)
        everything = cuda.shared.array(0, np.float32)
        first[out.size & 1] = 1
        MM.execute(1.0, everything[:128], everything[128:192], 0.0, everything[192:224])
        out[0] = first[0]

    ours = nd.shared

    def with_ours(out):
        first = cuda.shared.array(24, np.int8)
        everything = ours.array(0, np.float32)
        first[out.size & 1] = 1
        MM.execute(1.0, everything[:128], everything[128:192], 0.0, everything[192:224])
        out[0] = first[0]

    for each in (kernel, with_ours):
        found = dict(reversed(pair) for pair in shared_arrays(ptx_of(each, int8[::1])))
        assert found == {24: 16, None: 16}


def test_shared_array_takes_a_larger_alignment():
    def kernel(out):
        a = nd.shared.array(5, np.int8, 128)
        b = nd.shared.array(shape=(2, 3), dtype=np.int8, alignment=2)
        out[0] = a[1] + b[1, 1]

    assert sorted(shared_arrays(ptx_of(kernel, int8[::1]))) == [(16, 6), (128, 5)]


def test_shared_array_refuses_what_is_not_constant():
    def runtime(out):
        nd.shared.array(out.size, np.int8)

    def negative(out):
        nd.shared.array((2, -1), np.int8)

    def no_dtype(out):
        nd.shared.array(4, 4)

    def alignment(out):
        nd.shared.array(4, np.int8, 24)

    def no_argument(out):
        nd.shared.array(4)

    def partly_dynamic(out):
        nd.shared.array((0, 4), np.int8)

    texts = {
        runtime: "shared.array wants constant integers for shape "
        "(literals, globals or descriptor attributes), got int64",
        negative: "shared.array wants positive extents for shape",
        no_dtype: "shared.array wants an element type for dtype, got",
        alignment: "shared.array wants a constant power of two for alignment (bytes), got",
        no_argument: "shared.array takes (shape, dtype, [alignment]), got 1 arguments",
        partly_dynamic: "shared.array wants positive extents for shape (or a single 0: all dynamic memory), got (0, 4)",
    }
    for kernel, text in texts.items():
        assert error_of(kernel, int8[::1]).startswith(text)
