# SPDX-License-Identifier: Apache-2.0
"""Calls inside kernels without a GPU and without libmathdx's compiler: typing, and the PTX they are lowered to.

Generated code is replaced by empty modules that have the right symbols, so a kernel is compiled as always and
only linking is left out. cuFFTDx's traits are replaced, too, by numbers that no two traits share.
"""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import ml_dtypes  # noqa: F401  (bfloat16 arrays for Numba)
import numpy as np
import pytest
from numba import cuda
from numba.cuda import types
from numba.cuda.vector_types import vector_types
from numba.cuda.types import (
    bfloat16,
    boolean,
    complex64,
    complex128,
    float16,
    float32,
    float64,
    int8,
    int32,
    int64,
    uint8,
    void,
)

import nvmath_device as nd
from nvmath_device.errors import KernelOnlyError, KernelTypingError
from nvmath_device.lto.codegen import Code

COL, ROW = "col_major", "row_major"

# What the replaced traits of a block FFT are; a thread FFT has the first six.
TRAITS = {
    "implicit_type_batching": 1, "elements_per_thread": 7, "storage_size": 19, "stride": 23,
    "input_length": 64, "output_length": 64, "input_elements_per_thread": 11, "output_elements_per_thread": 13,
    "value_type": "C_32F", "input_type": "C_32F", "output_type": "C_32F",
}  # fmt: skip
BLOCK_TRAITS = {"shared_memory_size": 1700, "ffts_per_block": 5, "suggested_ffts_per_block": 3, "block_dim": [23, 5, 1]}


@pytest.fixture(autouse=True)
def asked(monkeypatch):
    """The recipes that code was asked for, in order; none of them is generated."""
    from nvmath_device import fft
    from nvmath_device.numba_backend import emit

    recipes = []

    def code(recipe):
        recipes.append(recipe)
        operators = dict(recipe.operators)
        return Code(recipe.symbol, b"", {f: f"{recipe.symbol}_{f}" for f in operators.get("DEVICE_FUNCTION", ())})

    def fft_traits(recipe):
        block = dict(recipe.operators)["EXECUTION"] == "BLOCK"
        half = {"implicit_type_batching": 2, "value_type": "C_16F2", "input_type": "C_16F2", "output_type": "C_16F2"}
        return {**TRAITS, **(BLOCK_TRAITS if block else {}), **(half if dict(recipe.operators)["PRECISION"] == "F16" else {})}

    monkeypatch.setattr("nvmath_device.lto.codegen.code", code)
    monkeypatch.setattr("nvmath_device.lto.codegen.fft_traits", fft_traits)
    # Nothing made up may reach other tests, nor anything real these.
    caches = (emit._linkable, fft.traits_of, fft._concrete)
    for cache in caches:
        cache.cache_clear()
    yield recipes
    for cache in caches:
        cache.cache_clear()


def ptx_of(kernel, *arguments, **options):
    codes, _ = cuda.compile_all(
        kernel, void(*arguments), device=False, abi="numba", cc=(9, 0), output="ptx", **options
    )
    return codes[0]


def error_of(kernel, *arguments):
    """First line of the error that typing the kernel ends in."""
    with pytest.raises(KernelTypingError) as error:
        ptx_of(kernel, *arguments)
    return str(error.value).partition("\n")[0]


def declared(ptx):
    """External functions: name -> (has a result, number of parameters)."""
    form = r"\.extern \.func\s+(\([^)]*\)\s*)?(\w+)\s*\(([^)]*)\)"
    return {name: (bool(result), params.count(".param .b64")) for result, name, params in re.findall(form, ptx)}


def shared_arrays(ptx):
    """(alignment, bytes) of each shared array, in order; dynamic memory has ``None`` bytes."""
    form = r"\.shared \.align (\d+) \.b8 \w+\[(\d*)\]"
    return [(int(a), int(n) if n else None) for a, n in re.findall(form, ptx)]


def stored(ptx):
    """Constants that are put on the stack, as hexadecimal digits of their bytes in memory order, in program order."""
    constants = {}
    for kind, register, value in re.findall(r"mov\.(\w+) \t?(%\w+), (-?\w+);", ptx):
        width = int(kind[1:]) // 8
        if value.startswith(("0f", "0d")):
            raw = int(value[2:], 16)
        elif value.startswith("%") or not re.fullmatch(r"-?(0x)?[0-9A-Fa-f]+", value):
            continue
        else:
            raw = int(value, 0) % (1 << 8 * width)
        constants[register] = raw.to_bytes(width, "little")
    for kind, target, source in re.findall(r"cvt\.rn\.f16\.(\w+)\s+(%\w+), (%\w+);", ptx):
        if source in constants:
            form = {"f32": "<f", "f64": "<d", "s32": "<i", "s64": "<q", "u32": "<I"}[kind]
            (number,) = struct.unpack(form, constants[source])
            constants[target] = struct.pack("<e", number)
    found = []
    for width, values in re.findall(r"st\.local(?:\.v\d)?\.\w?(\d+) \t?\[[^]]*\], ([^;]+);", ptx):
        for register in re.findall(r"%\w+", values):
            if register in constants:
                found.append(constants[register][: int(width) // 8].hex())
    return found


def bytes_of(form, *values):
    return struct.pack("<" + form, *values).hex()


def matmul(size=(8, 4, 16), precision="float32", data_type="real", arrangement=(ROW, COL, COL), block_size=64, **more):
    return nd.Matmul(size, precision, data_type, arrangement=arrangement, block_size=block_size, **more)


MM = matmul()


class Holder:
    mm = MM
    fft = nd.FFT(64, "float32", "c2c", "Block", direction="forward")


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
    "size": 64, "elements_per_thread": 7, "storage_size": 19, "stride": 23, "input_length": 64, "output_length": 64,
    "input_elements_per_thread": 11, "output_elements_per_thread": 13, "ffts_per_block": 5, "shared_memory_size": 1700,
    "implicit_type_batching": 1, "shared_storage_size": 5 * 64 * 8,
}  # fmt: skip


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
    ("float16", "real", 2), ("float32", "real", 4), ("float64", "real", 8),
    (("bfloat16", "bfloat16", "float32"), "real", 2), (("tfloat32", "tfloat32", "float32"), "real", 4),
    (("float8_e4m3fn", "float8_e4m3fn", "float32"), "real", 1), (("int8", "int8", "int32"), "real", 1),
    ("float32", "complex", 8), ("float64", "complex", 16), ("float16", "complex", 4),
    (("bfloat16", "bfloat16", "float32"), "complex", 4), (("float8_e5m2", "float8_e5m2", "float16"), "complex", 2),
    (("int8", "int8", "int32"), "complex", 2),
]  # fmt: skip


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


ELEMENTS = {"float16": 2, "bfloat16": 2, "tfloat32": 4, "float64": 8, "int8": 1, "uint64": 8, "float8_e5m2": 1}


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


# -- calls ---------------------------------------------------------------------------------------------------


def execute(mm, alpha=1.0, beta=0.0):
    def kernel(a, b, c):
        mm.execute(alpha, a, b, beta, c)

    return kernel


def test_r034_execute_is_declared_void_with_five_pointers(asked):
    def kernel(out):
        a = cuda.shared.array(MM.a_size, np.float32)
        b = cuda.shared.array(MM.b_size, np.float32)
        c = cuda.shared.array(MM.c_size, np.float32)
        keep = out[0] * 3
        MM.execute(1.0, a, b, 0.0, c)
        cuda.syncthreads()
        MM.execute(2.0, a, b, 1.0, c)
        cuda.syncthreads()
        out[1] = keep + c[0]

    ptx = ptx_of(kernel, float32[::1])
    (recipe,) = asked
    assert declared(ptx) == {recipe.symbol: (False, 5)}
    assert len(re.findall(rf"call\.uni\s+{recipe.symbol}", ptx)) == 2
    operators = dict(recipe.operators)
    assert operators["API"] == "SMEM"
    assert operators["SIZE"] == (8, 4, 16)
    assert operators["BLOCK_DIM"] == (64, 1, 1)
    assert operators["SM"] == 900


def test_r034_runtime_leading_dimensions_are_declared_with_eight_pointers(asked):
    def kernel(a, b, c, lda):
        MM.execute(1.0, a, lda, b, 17, 0.0, c, np.int8(9))

    ptx = ptx_of(kernel, float32[::1], float32[::1], float32[::1], int64)
    (recipe,) = asked
    assert dict(recipe.operators)["API"] == "SMEM_DYNAMIC_LD"
    assert declared(ptx) == {recipe.symbol: (False, 8)}
    assert bytes_of("I", 17) in stored(ptx)
    assert bytes_of("I", 9) in stored(ptx)


def test_r034_every_fft_function_is_declared_void(asked):
    fft = Holder.fft

    def kernel(out):
        data = cuda.local.array(fft.storage_size, fft.value_type)
        scratch = cuda.shared.array(fft.shared_memory_size, np.uint8)
        whole = cuda.shared.array(400, np.complex64)
        for i in range(fft.storage_size):
            data[i] = out[i]
        fft.execute(data, scratch)
        fft.execute(whole)
        out[0] = data[0] + whole[1]
        if fft.is_thread_active():
            out[1] = fft.fft_id() + fft.batch_id()

    ptx = ptx_of(kernel, complex64[::1])
    registers, shared, ids = asked
    assert declared(ptx) == {
        registers.symbol: (False, 2),
        shared.symbol: (False, 1),
        f"{ids.symbol}_FFT_ID": (False, 1),
        f"{ids.symbol}_BATCH_ID": (False, 1),
        f"{ids.symbol}_IS_THREAD_ACTIVE": (False, 1),
    }
    assert dict(registers.operators)["API"] == "LMEM"
    assert dict(shared.operators)["API"] == "SMEM"


def test_thread_fft_is_declared_with_one_pointer(asked):
    fft = nd.FFT(16, "float64", "c2c", "Thread", direction="inverse")

    def kernel(out):
        data = cuda.local.array(fft.storage_size, np.complex128)
        fft.execute(data)
        out[0] = data[3]

    ptx = ptx_of(kernel, complex128[::1])
    assert declared(ptx) == {asked[0].symbol: (False, 1)}
    assert ".local .align 16" in ptx


def test_equal_descriptors_share_a_symbol_and_others_do_not(asked):
    twin, other = matmul(), matmul(alignment=(16, 16, 16))

    def kernel(a, b, c):
        MM.execute(1.0, a, b, 0.0, c)
        twin.execute(1.0, a, b, 0.0, c)
        other.execute(1.0, a, b, 0.0, c)

    assert len(declared(ptx_of(kernel, float32[::1], float32[::1], float32[::1]))) == 2
    assert len(asked) == 2


def test_keyword_arguments(asked):
    def kernel(a, b, c, x):
        MM.execute(2.0, c=c, b=b, a=a, beta=x)

    def runtime(a, b, c, x):
        MM.execute(alpha=1.0, a=a, lda=16, b=b, ldb=21, beta=0.0, c=c, ldc=22)

    arrays = (float32[::1],) * 3
    static = ptx_of(kernel, *arrays, float64)
    assert bytes_of("f", 2.0) in stored(static)
    assert "cvt.rn.f32.f64" in static
    dynamic = ptx_of(runtime, *arrays, float64)
    assert [bytes_of("I", n) for n in (16, 21, 22)] == [x for x in stored(dynamic) if x in {"10000000", "15000000", "16000000"}]
    assert [dict(r.operators)["API"] for r in asked] == ["SMEM", "SMEM_DYNAMIC_LD"]


def test_two_dimensional_operands_bring_their_own_strides(asked):
    """A is 8 x 16, row-major, inside a tile of 40 columns; B and C, column-major, are transposed C-order arrays."""

    def kernel(out):
        a = nd.shared.array((9, 40), np.float32)
        b = nd.shared.array((4, 24), np.float32)
        c = nd.shared.array((4, 8), np.float32)
        MM.execute(1.0, a[1:, 3:19], b[:, :16].T, 0.0, c.T)
        out[0] = c[0, 0]

    ptx = ptx_of(kernel, float32[::1])
    (recipe,) = asked
    assert dict(recipe.operators)["API"] == "SMEM_DYNAMIC_LD"
    assert declared(ptx) == {recipe.symbol: (False, 8)}
    lds = [int.from_bytes(bytes.fromhex(x), "little") for x in stored(ptx)]
    assert [n for n in lds if n in (40, 24, 8)] == [40, 24, 8]
    assert re.search(r"_nvmath_device_shared_?\w*\+172|, 172;", ptx)  # row 1, column 3: 4 * (40 + 3) bytes behind the start


def test_a_mixed_call_takes_the_descriptors_leading_dimension_for_one_dimensional_operands(asked):
    mm = matmul(leading_dimension=(19, 16, 11))

    def kernel(a, out):
        b = nd.shared.array((4, 24), np.float32)
        c = nd.shared.array(mm.c_size, np.float32)
        mm.execute(1.0, a, b[:, :16].T, 0.0, c)
        out[0] = c[0]

    ptx = ptx_of(kernel, float32[::1], float32[::1])
    lds = [int.from_bytes(bytes.fromhex(x), "little") for x in stored(ptx)]
    assert [n for n in lds if n in (19, 24, 11)] == [19, 24, 11]


def test_leading_dimensions_do_not_split_the_code_of_the_runtime_form(asked):
    mm = matmul(leading_dimension=(19, 16, 11))

    def kernel(a, b, c, n):
        MM.execute(1.0, a, n, b, n, 0.0, c, n)
        mm.execute(1.0, a, n, b, n, 0.0, c, n)

    ptx_of(kernel, *(float32[::1],) * 3, int32)
    assert len(asked) == 1


# -- scalars -------------------------------------------------------------------------------------------------

CONSTANTS = {
    "float16 from a float": ("float16", "real", float16, 1.5, bytes_of("e", 1.5)),
    "float16 from an int": ("float16", "real", float16, 3, bytes_of("e", 3)),
    "float32 from a float": ("float32", "real", float32, 0.1, bytes_of("f", 0.1)),
    "float32 from a bool": ("float32", "real", float32, True, bytes_of("f", 1)),
    "float64": ("float64", "real", float64, -0.1, bytes_of("d", -0.1)),
    "int32": (("int8", "int8", "int32"), "real", int32, -3, bytes_of("i", -3)),
    "int64": (("int8", "int8", "int64"), "real", int64, -3, bytes_of("q", -3)),
}  # fmt: skip
OPERANDS = {"float16": float16, "float32": float32, "float64": float64, "int8": int8}


@pytest.mark.parametrize("case", CONSTANTS)
def test_r033_scalars_are_converted_to_the_type_of_c(case):
    precision, data_type, c, alpha, expected = CONSTANTS[case]
    a = OPERANDS[precision if isinstance(precision, str) else precision[0]]
    ptx = ptx_of(execute(matmul(precision=precision, data_type=data_type), alpha=alpha, beta=0), a[::1], a[::1], c[::1])
    assert stored(ptx)[0] == expected


COMPLEX_CONSTANTS = {
    "complex64": ("float32", complex64, 1 + 2j, ["f", 1.0, 2.0]),
    "complex64 from a real number": ("float32", complex64, 3.5, ["f", 3.5, 0.0]),
    "complex128": ("float64", complex128, 0.5 - 1j, ["d", 0.5, -1.0]),
    "complex halves": ("float16", float16, 1 + 2j, ["e", 1.0, 2.0]),
}


@pytest.mark.parametrize("case", COMPLEX_CONSTANTS)
def test_r035_complex_scalars_keep_both_parts(case):
    precision, element, alpha, (form, real, imag) = COMPLEX_CONSTANTS[case]
    mm = matmul(precision=precision, data_type="complex")
    found = "".join(stored(ptx_of(execute(mm, alpha=alpha, beta=0.25 - 4j), *(element[::1],) * 3)))
    assert found == bytes_of(form, real) + bytes_of(form, imag) + bytes_of(form, 0.25) + bytes_of(form, -4.0)


def test_r035_an_integer_becomes_the_real_part_of_a_complex_integer():
    mm = matmul(precision=("int8", "int8", "int32"), data_type="complex")
    found = "".join(stored(ptx_of(execute(mm, alpha=5, beta=-7), int8[::1], int8[::1], int32[::1])))
    assert found == bytes_of("iiii", 5, 0, -7, 0)


RUNTIME = [
    ("float16", "real", float16, float64, r"cvt\.rn\.f16\.f(64|32)"),
    ("float16", "real", float16, float16, ""),
    ("float16", "real", float16, int32, r"cvt\.rn\.f16|cvt\.rn\.f32\.s32"),
    ("float32", "real", float32, float16, r"cvt\.f32\.f16"),
    ("float32", "real", float32, boolean, r"cvt\.rn\.f32|selp"),
    ("float64", "real", float64, int64, r"cvt\.rn\.f64\.s64"),
    ("float32", "complex", complex64, complex128, r"cvt\.rn\.f32\.f64"),
    ("float64", "complex", complex128, complex64, r"cvt\.f64\.f32"),
    ("float16", "complex", float16, complex64, r"cvt\.rn\.f16\.f32"),
    ("float16", "complex", float16, float64, r"cvt\.rn\.f16\.f32"),
]


@pytest.mark.parametrize(("precision", "data_type", "element", "scalar", "conversion"), RUNTIME, ids=str)
def test_r033_runtime_scalars_are_converted_not_reinterpreted(precision, data_type, element, scalar, conversion):
    mm = matmul(precision=precision, data_type=data_type)

    def kernel(alpha, a, b, beta, c):
        mm.execute(alpha, a, b, beta, c)

    ptx = ptx_of(kernel, scalar, element[::1], element[::1], scalar, element[::1])
    assert len(re.findall(conversion, ptx)) >= (2 if conversion else 0)


# -- shared memory -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("precision", "data_type", "dtype"),
    [("float16", "real", "float16"), ("float32", "complex", "complex64"), ("float64", "complex", "complex128"),
     ("float64", "real", "float64"), (("int8", "int8", "int32"), "real", "int8")],
)  # fmt: skip
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
        runtime: "shared.array wants constant integers for shape (literals, globals or descriptor attributes), got int64",
        negative: "shared.array wants positive extents for shape",
        no_dtype: "shared.array wants an element type for dtype, got",
        alignment: "shared.array wants a constant power of two for alignment (bytes), got",
        no_argument: "shared.array takes (shape, dtype, [alignment]), got 1 arguments",
        partly_dynamic: "shared.array wants positive extents for shape (or a single 0: all dynamic memory), got (0, 4)",
    }
    for kernel, text in texts.items():
        assert error_of(kernel, int8[::1]).startswith(text)


# -- errors --------------------------------------------------------------------------------------------------

F32 = (float32[::1], float32[::1], float32[::1])
READ_ONLY = float32[::1].copy(readonly=True)
OPERAND_ERRORS = {
    "a has another type": (
        MM, (float64[::1], *F32[1:]), "Matmul.execute wants elements of float32 for a, got an array of float64",
    ),
    "b has another type": (
        MM, (F32[0], int32[::1], F32[2]), "Matmul.execute wants elements of float32 for b, got an array of int32",
    ),
    "c has another type": (
        MM, (*F32[:2], complex64[::1]), "Matmul.execute wants elements of float32 for c, got an array of complex64",
    ),
    "rank 3": (
        MM, (float32[:, :, ::1], *F32[1:]), "Matmul.execute wants a 1-D or 2-D array for a, got 3-D: array(float32, 3d, C)",
    ),
    "a number": (MM, (float32, *F32[1:]), "Matmul.execute wants an array in shared memory for a, got float32"),
    "a tuple": (
        MM, (F32[0], types.UniTuple(float32, 2), F32[2]), "Matmul.execute wants an array in shared memory for b, got UniTuple",
    ),
    "a strided pointer": (
        MM, (F32[0], float32[:], F32[2]), "Matmul.execute wants a contiguous 1-D array for b (it is used as a pointer), got",
    ),
    "a column-major A": (
        MM, (float32[::1, :], *F32[1:]),
        "Matmul.execute wants a row_major matrix for a, as the descriptor's arrangement says, got a column-major 2-D array",
    ),
    "a row-major B": (
        MM, (F32[0], float32[:, ::1], F32[2]),
        "Matmul.execute wants a col_major matrix for b, as the descriptor's arrangement says, got a row-major 2-D array; "
        "pass its transpose (x.T)",
    ),
    "a row-major C": (MM, (*F32[:2], float32[:, ::1]), "Matmul.execute wants a col_major matrix for c"),
    "a read-only C": (MM, (*F32[:2], READ_ONLY), "Matmul.execute cannot write c: the array is read-only"),
    "real for complex, 2-D": (
        matmul(data_type="complex"), (float32[:, ::1], complex64[::1], complex64[::1]),
        "Matmul.execute wants elements of complex64 (or, in a 1-D array, its components as float32) for a",
    ),
    "fp8 as int8": (
        matmul(precision=("e4m3", "e4m3", "float32")), (int8[::1], uint8[::1], float32[::1]),
        "Matmul.execute wants elements of float8_e4m3fn (as its bits, uint8) for a, got an array of int8",
    ),
    "bf16 as float16": (
        matmul(precision=("bf16", "bf16", "float32")), (float16[::1], bfloat16[::1], float32[::1]),
        "Matmul.execute wants elements of bfloat16 for a, got an array of float16",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", OPERAND_ERRORS)
def test_operand_error_names_argument_what_it_got_and_what_it_wants(case):
    mm, arguments, text = OPERAND_ERRORS[case]
    assert error_of(execute(mm), *arguments).startswith(text)


def test_a_and_b_may_be_read_only():
    ptx_of(execute(MM), READ_ONLY, READ_ONLY, float32[::1])


def test_two_dimensional_arrays_of_unknown_order_are_accepted(asked):
    """Numba types a slice of columns as layout A; its strides are looked at when the kernel runs."""
    ptx_of(execute(MM), *(float32[:, :],) * 3)
    assert len(asked) == 1


def test_components_and_vector_types_are_accepted_for_complex_values(asked):
    mm = matmul(data_type="complex")
    record = types.Record([("x", {"type": float32, "offset": 0}), ("y", {"type": float32, "offset": 4})], 8, False)
    for element in (complex64, float32, record, vector_types["float32x2"]):
        ptx_of(execute(mm), *(types.Array(element, 1, "C"),) * 3)
    assert len(asked) == 1


INT_MM = matmul(precision=("int8", "int8", "int32"))
SCALAR_ERRORS = {
    "a float for integers": (
        INT_MM, 1.0, (int8[::1], int8[::1], int32[::1]),
        "Matmul.execute wants an integer for alpha, which becomes int32, got float64",
    ),
    "a complex number for reals": (
        MM, 1j, F32, "Matmul.execute wants a real number for alpha, which becomes float32, got complex128",
    ),
    "a complex number for integers": (
        INT_MM, 1j, (int8[::1], int8[::1], int32[::1]),
        "Matmul.execute wants a real number for alpha, which becomes int32, got complex128",
    ),
    "a text": (MM, "one", F32, "Matmul.execute wants a number for alpha, got"),
    "None": (MM, None, F32, "Matmul.execute wants a number for alpha, got none"),
}  # fmt: skip


@pytest.mark.parametrize("case", SCALAR_ERRORS)
def test_scalar_error_names_argument_what_it_got_and_what_it_wants(case):
    mm, alpha, arguments, text = SCALAR_ERRORS[case]
    assert error_of(execute(mm, alpha=alpha), *arguments).startswith(text)
    assert error_of(execute(mm, alpha=1, beta=alpha), *arguments).startswith(text.replace("alpha", "beta"))


def test_an_array_for_a_scalar():
    def kernel(a, b, c):
        MM.execute(a, a, b, 0.0, c)

    assert error_of(kernel, *F32) == "Matmul.execute wants a number for alpha, got array(float32, 1d, C)"


BOTH_FORMS = "(alpha, a, b, beta, c) or (alpha, a, lda, b, ldb, beta, c, ldc)"


def test_a_missing_argument_is_named():
    def kernel(a, b, c):
        MM.execute(1.0, a, b, c)

    assert error_of(kernel, *F32) == (
        f"Matmul.execute takes {BOTH_FORMS}, got 4 arguments: (float64, array(float32, 1d, C), array(float32, 1d, C), "
        "array(float32, 1d, C)); missing: c"
    )


def test_no_argument_at_all():
    def kernel():
        MM.execute()

    assert error_of(kernel) == (
        f"Matmul.execute takes {BOTH_FORMS}, got 0 arguments: (); missing: alpha, a, b, beta, c"
    )


def test_an_extra_argument():
    def kernel(a, b, c):
        MM.execute(1.0, a, b, 0.0, c, 3)

    assert error_of(kernel, *F32).startswith(f"Matmul.execute takes {BOTH_FORMS}, got 6 arguments: (float64, ")


def test_a_wrong_name():
    def kernel(a, b, c):
        MM.execute(1.0, a, b, 0.0, d=c)

    assert error_of(kernel, *F32).endswith("d=array(float32, 1d, C)); missing: c; unknown: d")


def test_an_argument_given_twice():
    def kernel(a, b, c):
        MM.execute(1.0, a, b, 0.0, c, c=c)

    assert error_of(kernel, *F32).startswith(f"Matmul.execute takes {BOTH_FORMS}")


def test_a_leading_dimension_that_is_no_integer():
    def kernel(a, b, c):
        MM.execute(1.0, a, 16.0, b, 16, 0.0, c, 8)

    assert error_of(kernel, *F32) == "Matmul.execute wants an integer for lda (elements), got float64"


def test_the_error_says_which_object_was_called():
    with pytest.raises(KernelTypingError) as error:
        ptx_of(execute(MM), *F32[:2], float64[::1])
    assert repr(MM) in str(error.value)


def test_an_attribute_that_does_not_exist():
    def kernel(out):
        out[0] = MM.a_sise

    from numba.core.errors import TypingError
    from numba.cuda.core.errors import TypingError as CudaTypingError

    with pytest.raises((TypingError, CudaTypingError), match="a_sise"):
        ptx_of(kernel, int32[::1])


BLOCK = Holder.fft
THREAD = nd.FFT(16, "float32", "c2c", "Thread", direction="forward")
R2C = nd.FFT(64, "float32", "r2c", "Block")
HALF = nd.FFT(64, "float16", "c2c", "Block", direction="forward")


def fft_execute(fft):
    return {1: lambda x: fft.execute(x), 2: lambda x, y: fft.execute(x, y)}


FFT_ERRORS = {
    "another type": (
        BLOCK, (complex128[::1], uint8[::1]),
        "FFT.execute wants elements of complex64 (or, in a 1-D array, its components as float32) for thread_data, "
        "got an array of complex128",
    ),
    "another type in shared memory": (
        BLOCK, (int32[::1],), "FFT.execute wants elements of complex64 (or, in a 1-D array, its components as float32) "
        "for shared_mem, got an array of int32",
    ),
    "a float16 FFT of complex64": (
        HALF, (complex64[::1], uint8[::1]), "FFT.execute wants elements of float16x4 (or, in a 1-D array, its components",
    ),
    "two dimensions": (
        BLOCK, (complex64[:, ::1], uint8[::1]), "FFT.execute wants a contiguous 1-D array for thread_data, got array(complex64, 2d, C)",
    ),
    "a stride": (BLOCK, (complex64[:], uint8[::1]), "FFT.execute wants a contiguous 1-D array for thread_data"),
    "a number": (BLOCK, (complex64,), "FFT.execute wants a contiguous 1-D array for shared_mem, got complex64"),
    "scratch that is a number": (
        BLOCK, (complex64[::1], int32), "FFT.execute wants a contiguous 1-D array for shared_mem, got int32",
    ),
    "a read-only array": (
        BLOCK, (complex64[::1].copy(readonly=True),), "FFT.execute cannot write shared_mem: the array is read-only",
    ),
    "scratch for a thread": (
        THREAD, (complex64[::1], uint8[::1]), "FFT.execute takes (thread_data), got 2 arguments: (array(complex64, 1d, C), ",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FFT_ERRORS)
def test_fft_error_names_argument_what_it_got_and_what_it_wants(case):
    fft, arguments, text = FFT_ERRORS[case]

    def one(x):
        fft.execute(x)

    def two(x, y):
        fft.execute(x, y)

    assert error_of({1: one, 2: two}[len(arguments)], *arguments).startswith(text)


def test_fft_counts_its_arguments():
    def none():
        BLOCK.execute()

    def named(x, y):
        BLOCK.execute(x, scratch=y)

    def ids(x):
        x[0] = BLOCK.fft_id(3)

    forms = "FFT.execute takes (thread_data, shared_mem) or (shared_mem), got"
    assert error_of(none).startswith(f"{forms} 0 arguments")
    assert error_of(named, complex64[::1], uint8[::1]).endswith("unknown: scratch")
    assert error_of(ids, int32[::1]).startswith("FFT.fft_id takes (), got 1 arguments")


COPY_ERRORS = {
    "a 1-D source": ("load", BLOCK, (complex64[::1], complex64[::1]), "FFT.load wants a 2-D array, one FFT a row, for source"),
    "integers": (
        "load", BLOCK, (int32[:, :], complex64[::1]),
        "FFT.load wants real or complex floating-point elements for source, got int32",
    ),
    "complex input of r2c": (
        "load", R2C, (complex64[:, :], complex64[::1]),
        "FFT.load wants real elements for source of a r2c FFT, got an array of complex64",
    ),
    "real output of c2c": (
        "store", BLOCK, (complex64[::1], float32[:, :]),
        "FFT.store wants complex elements for target, got an array of float32",
    ),
    "a read-only target": (
        "store", BLOCK, (complex64[::1], complex64[:, :].copy(readonly=True)), "FFT.store cannot write target",
    ),
    "a float index": (
        "load", BLOCK, (complex64[:, :], complex64[::1], float32),
        "FFT.load wants an integer for index, the row of the FFT, got float32",
    ),
    "shared memory of a thread": (
        "load_shared", THREAD, (complex64[:, :], complex64[::1]),
        "FFT.load_shared has no meaning for Thread execution, whose data is in registers",
    ),
    "a missing argument": ("store", BLOCK, (complex64[::1],), "FFT.store takes (thread_data, target, [index]), got 1 arguments"),
}  # fmt: skip


@pytest.mark.parametrize("case", COPY_ERRORS)
def test_fft_copy_error_names_argument_what_it_got_and_what_it_wants(case):
    method, fft, arguments, text = COPY_ERRORS[case]
    names = ", ".join("xyz"[: len(arguments)])
    scope = {"fft": fft}
    exec(f"def kernel({names}):\n    fft.{method}({names})\n", scope)
    assert error_of(scope["kernel"], *arguments).startswith(text)


# -- on the host ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["execute", "load_a", "load_b", "load_c", "store_c"])
def test_matmul_methods_on_the_host_say_so(name):
    with pytest.raises(KernelOnlyError, match=rf"Matmul\.{name} was called on the host.*@cuda\.jit.*NUMBA_ENABLE_CUDASIM=1"):
        getattr(MM, name)(1.0, None, c=None)


@pytest.mark.parametrize("name", ["execute", "load", "store", "load_shared", "store_shared"])
def test_fft_methods_on_the_host_say_so(name):
    with pytest.raises(KernelOnlyError, match=rf"FFT\.{name} was called on the host"):
        getattr(BLOCK, name)(None)


@pytest.mark.parametrize("name", ["fft_id", "batch_id", "is_thread_active"])
def test_fft_ids_on_the_host_say_so(name):
    with pytest.raises(KernelOnlyError, match=rf"FFT\.{name} was called on the host"):
        getattr(BLOCK, name)()


def test_shared_array_on_the_host_says_so():
    with pytest.raises(KernelOnlyError, match=r"shared\.array was called on the host"):
        nd.shared.array(4, np.float32)


# -- around the calls ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize("divisor", [64, 64.0, 64 + 0j], ids=["int", "float", "complex"])
def test_r036_complex_results_are_divided(divisor, debug):
    fft = THREAD

    def kernel(out):
        data = cuda.local.array(fft.storage_size, np.complex64)
        fft.execute(data)
        for i in range(fft.storage_size):
            out[i] = data[i] / divisor

    assert "call" in ptx_of(kernel, complex64[::1], **({"debug": True, "opt": False} if debug else {}))


def in_a_fresh_process(script):
    root = str(Path(nd.__file__).resolve().parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": root}
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done


DEBUG_LOGGING = """
import logging
logging.basicConfig(level=logging.DEBUG)
logging.debug("started")
import numpy as np
from numba import cuda
import nvmath_device as nd
fft = nd.FFT(16, "float32", "c2c", "Thread", direction="forward", sm=90)
mm = nd.Matmul((8, 4, 16), "float32", "real", arrangement=("row_major",) * 3, block_size=64)
def kernel(x, y, out):
    data = cuda.local.array(fft.storage_size, fft.value_type)
    smem = nd.shared.array(mm.a_size, mm.a_value_type)
    mm.load_a(y, smem)
    fft.load(x, data)
    fft.store(data, out)
signature = cuda.types.void(cuda.types.complex64[:, ::1], cuda.types.float32[:, ::1], cuda.types.complex64[:, ::1])
code, _ = cuda.compile_all(kernel, signature, device=False, abi="numba", cc=(9, 0), output="ptx")
assert "cp.async" in code[0]
logging.getLogger("nvmath_device").info("still %s", "alive")
"""


def test_r107_kernels_compile_while_everybody_logs_at_debug():
    """Numba's own records may fail to be formatted at this level; compiling goes on and ours are whole."""
    log = in_a_fresh_process(DEBUG_LOGGING).stderr
    assert "INFO:nvmath_device:still alive" in log
    for report in log.split("--- Logging error ---")[1:]:
        assert "nvmath_device" not in report.partition("Call stack:")[0]


EITHER = """
import nvmath_device as nd
from numba import cuda
mm = nd.Matmul((8, 4, 16), "float32", "real", arrangement=("row_major",) * 3, block_size=64)
def plain(x):
    x[0] = 1
def kernel(x):
    x[0] = mm.a_size
signature = cuda.types.void(cuda.types.int32[::1])
for each in (plain, kernel):
    code, _ = cuda.compile_all(each, signature, device=False, abi="numba", cc=(9, 0), output="ptx")
assert ", 128;" in code[0]
"""


@pytest.mark.parametrize("first", ["numba.cuda", "nvmath_device"])
def test_r113_either_may_be_imported_first(first):
    """Registration happens inside the first compilation that meets one of our objects."""
    in_a_fresh_process(f"import {first}\n{EITHER}")
