# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F811  (a fixture is imported and is a parameter's name)
"""Calls of ``execute`` inside kernels: what they are lowered to, and how alpha and beta arrive.

Compiled to PTX; nothing is generated (see ``kernel_stubs``).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numba import cuda
from numba.cuda.types import (
    boolean,
    complex64,
    complex128,
    float16,
    float32,
    float64,
    int8,
    int32,
    int64,
)

import nvmath_device as nd
from tests.kernel_stubs import (
    MM,
    THREAD,
    Holder,
    asked,  # noqa: F401  (a fixture)
    bytes_of,
    declared,
    execute,
    matmul,
    ptx_of,
    stored,
)

# -- calls ---------------------------------------------------------------------------------------------------


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
    assert [bytes_of("I", n) for n in (16, 21, 22)] == [
        x for x in stored(dynamic) if x in {"10000000", "15000000", "16000000"}
    ]
    assert [dict(r.operators)["API"] for r in asked] == ["SMEM", "SMEM_DYNAMIC_LD"]


def test_keywords_in_any_order_are_the_same_call():
    def positional(a, b, c, x, y):
        MM.execute(x, a, b, y, c)
        MM.execute(x, a, 16, b, 17, y, c, 18)

    def keywords(a, b, c, x, y):
        MM.execute(c=c, b=b, a=a, beta=y, alpha=x)
        MM.execute(x, ldc=18, b=b, a=a, beta=y, lda=16, c=c, ldb=17)

    arguments = (*(float32[::1],) * 3, float32, float32)
    one, other = (re.sub(r"_Z\w+", "_", ptx_of(kernel, *arguments)) for kernel in (positional, keywords))
    assert one == other


def test_two_dimensional_operands_bring_their_own_strides(asked):
    """A is 8 x 16, row-major, in a tile of 40 columns; B and C, column-major, are transposed C-order."""

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
    assert re.search(
        r"_nvmath_device_shared_?\w*\+172|, 172;", ptx
    )  # row 1, column 3: 4 * (40 + 3) bytes behind the start


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
}
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
from numba.cuda.types import complex64, float32, void
signature = void(complex64[:, ::1], float32[:, ::1], complex64[:, ::1])
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
