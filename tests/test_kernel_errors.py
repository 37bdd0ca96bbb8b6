# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F811  (a fixture is imported and is a parameter's name)
"""Wrong calls inside kernels, and kernel-side calls on the host: what the error says.

Nothing is generated (see ``kernel_stubs``).
"""

from __future__ import annotations

import numpy as np
import pytest
from numba.cuda import types
from numba.cuda.types import (
    bfloat16,
    complex64,
    complex128,
    float16,
    float32,
    float64,
    int8,
    int32,
    uint8,
)
from numba.cuda.vector_types import vector_types

import nvmath_device as nd
from nvmath_device.errors import KernelOnlyError, KernelTypingError
from tests.kernel_stubs import (
    MM,
    THREAD,
    Holder,
    asked,  # noqa: F401  (a fixture)
    error_of,
    execute,
    matmul,
    ptx_of,
)

# -- errors --------------------------------------------------------------------------------------------------

F32 = (float32[::1], float32[::1], float32[::1])
READ_ONLY = float32[::1].copy(readonly=True)
OPERAND_ERRORS = {
    "a has another type": (
        MM,
        (float64[::1], *F32[1:]),
        "Matmul.execute wants elements of float32 for a, got an array of float64",
    ),
    "b has another type": (
        MM,
        (F32[0], int32[::1], F32[2]),
        "Matmul.execute wants elements of float32 for b, got an array of int32",
    ),
    "c has another type": (
        MM,
        (*F32[:2], complex64[::1]),
        "Matmul.execute wants elements of float32 for c, got an array of complex64",
    ),
    "rank 3": (
        MM,
        (float32[:, :, ::1], *F32[1:]),
        "Matmul.execute wants a 1-D or 2-D array for a, got 3-D: array(float32, 3d, C)",
    ),
    "a number": (
        MM,
        (float32, *F32[1:]),
        "Matmul.execute wants an array in shared memory for a, got float32",
    ),
    "a tuple": (
        MM,
        (F32[0], types.UniTuple(float32, 2), F32[2]),
        "Matmul.execute wants an array in shared memory for b, got UniTuple",
    ),
    "a strided pointer": (
        MM,
        (F32[0], float32[:], F32[2]),
        "Matmul.execute wants a contiguous 1-D array for b (it is used as a pointer), got",
    ),
    "a column-major A": (
        MM,
        (float32[::1, :], *F32[1:]),
        "Matmul.execute wants a row_major matrix for a, as the descriptor's arrangement says, got a "
        "column-major 2-D array",
    ),
    "a row-major B": (
        MM,
        (F32[0], float32[:, ::1], F32[2]),
        "Matmul.execute wants a col_major matrix for b, as the descriptor's arrangement says, got a "
        "row-major 2-D array; "
        "pass its transpose (x.T)",
    ),
    "a row-major C": (MM, (*F32[:2], float32[:, ::1]), "Matmul.execute wants a col_major matrix for c"),
    "a read-only C": (MM, (*F32[:2], READ_ONLY), "Matmul.execute cannot write c: the array is read-only"),
    "real for complex, 2-D": (
        matmul(data_type="complex"),
        (float32[:, ::1], complex64[::1], complex64[::1]),
        "Matmul.execute wants elements of complex64 (or, in a 1-D array, its components as float32) for a",
    ),
    "fp8 as int8": (
        matmul(precision=("e4m3", "e4m3", "float32")),
        (int8[::1], uint8[::1], float32[::1]),
        "Matmul.execute wants elements of float8_e4m3fn (as its bits, uint8) for a, got an array of int8",
    ),
    "bf16 as float16": (
        matmul(precision=("bf16", "bf16", "float32")),
        (float16[::1], bfloat16[::1], float32[::1]),
        "Matmul.execute wants elements of bfloat16 for a, got an array of float16",
    ),
}


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
        INT_MM,
        1.0,
        (int8[::1], int8[::1], int32[::1]),
        "Matmul.execute wants an integer for alpha, which becomes int32, got float64",
    ),
    "a complex number for reals": (
        MM,
        1j,
        F32,
        "Matmul.execute wants a real number for alpha, which becomes float32, got complex128",
    ),
    "a complex number for integers": (
        INT_MM,
        1j,
        (int8[::1], int8[::1], int32[::1]),
        "Matmul.execute wants a real number for alpha, which becomes int32, got complex128",
    ),
    "a text": (MM, "one", F32, "Matmul.execute wants a number for alpha, got"),
    "None": (MM, None, F32, "Matmul.execute wants a number for alpha, got none"),
}


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
        f"Matmul.execute takes {BOTH_FORMS}, got 4 arguments: (float64, array(float32, 1d, C), "
        f"array(float32, 1d, C), "
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
R2C = nd.FFT(64, "float32", "r2c", "Block")
HALF = nd.FFT(64, "float16", "c2c", "Block", direction="forward")


def fft_execute(fft):
    return {1: lambda x: fft.execute(x), 2: lambda x, y: fft.execute(x, y)}


FFT_ERRORS = {
    "another type": (
        BLOCK,
        (complex128[::1], uint8[::1]),
        "FFT.execute wants elements of complex64 (or, in a 1-D array, its components as float32) for "
        "thread_data, "
        "got an array of complex128",
    ),
    "another type in shared memory": (
        BLOCK,
        (int32[::1],),
        "FFT.execute wants elements of complex64 (or, in a 1-D array, its components as float32) "
        "for shared_mem, got an array of int32",
    ),
    "a float16 FFT of complex64": (
        HALF,
        (complex64[::1], uint8[::1]),
        "FFT.execute wants elements of float16x4 (or, in a 1-D array, its components",
    ),
    "two dimensions": (
        BLOCK,
        (complex64[:, ::1], uint8[::1]),
        "FFT.execute wants a contiguous 1-D array for thread_data, got array(complex64, 2d, C)",
    ),
    "a stride": (
        BLOCK,
        (complex64[:], uint8[::1]),
        "FFT.execute wants a contiguous 1-D array for thread_data",
    ),
    "a number": (
        BLOCK,
        (complex64,),
        "FFT.execute wants a contiguous 1-D array for shared_mem, got complex64",
    ),
    "scratch that is a number": (
        BLOCK,
        (complex64[::1], int32),
        "FFT.execute wants a contiguous 1-D array for shared_mem, got int32",
    ),
    "a read-only array": (
        BLOCK,
        (complex64[::1].copy(readonly=True),),
        "FFT.execute cannot write shared_mem: the array is read-only",
    ),
    "scratch for a thread": (
        THREAD,
        (complex64[::1], uint8[::1]),
        "FFT.execute takes (thread_data), got 2 arguments: (array(complex64, 1d, C), ",
    ),
}


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
    "a 1-D source": (
        "load",
        BLOCK,
        (complex64[::1], complex64[::1]),
        "FFT.load wants a 2-D array, one FFT a row, for source",
    ),
    "integers": (
        "load",
        BLOCK,
        (int32[:, :], complex64[::1]),
        "FFT.load wants real or complex floating-point elements for source, got int32",
    ),
    "values of four parts, which are two numbers": (
        "load",
        BLOCK,
        (types.Array(vector_types["float32x4"], 2, "A"), complex64[::1]),
        "FFT.load wants real or complex floating-point elements for source, got float32x4",
    ),
    "complex input of r2c": (
        "load",
        R2C,
        (complex64[:, :], complex64[::1]),
        "FFT.load wants real elements for source of a r2c FFT, got an array of complex64",
    ),
    "real output of c2c": (
        "store",
        BLOCK,
        (complex64[::1], float32[:, :]),
        "FFT.store wants complex elements for target, got an array of float32",
    ),
    "a read-only target": (
        "store",
        BLOCK,
        (complex64[::1], complex64[:, :].copy(readonly=True)),
        "FFT.store cannot write target",
    ),
    "a float index": (
        "load",
        BLOCK,
        (complex64[:, :], complex64[::1], float32),
        "FFT.load wants an integer for index, the row of the FFT, got float32",
    ),
    "shared memory of a thread": (
        "load_shared",
        THREAD,
        (complex64[:, :], complex64[::1]),
        "FFT.load_shared has no meaning for Thread execution, whose data is in registers",
    ),
    "a missing argument": (
        "store",
        BLOCK,
        (complex64[::1],),
        "FFT.store takes (thread_data, target, [index]), got 1 arguments",
    ),
}


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
    with pytest.raises(
        KernelOnlyError, match=rf"Matmul\.{name} was called on the host.*@cuda\.jit.*NUMBA_ENABLE_CUDASIM=1"
    ):
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
