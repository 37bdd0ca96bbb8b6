# SPDX-License-Identifier: Apache-2.0
"""The threads a kernel is compiled for, the targets it may have, and how long its generated code lives.

Nothing is generated (see ``kernel_stubs``).
"""

from __future__ import annotations

import gc
import re
import weakref

import pytest
from numba import cuda
from numba.cuda.types import complex64, float32, void

import nvmath_device as nd
from nvmath_device.errors import InvalidArgumentError
from nvmath_device.lto.codegen import Code
from nvmath_device.numba_backend import generated
from nvmath_device.numba_backend.compiling import compile_modules
from tests.kernel_stubs import (
    MM,
    THREAD,
    asked,  # noqa: F401  (a fixture)
    execute,
    matmul,
    ptx_of,
)

VECTOR = float32[::1]
REAL_GENERATED = generated.Generated


def bounds(ptx):
    """Threads a block of each kernel is limited to."""
    return [int(n) for n in re.findall(r"\.maxntid (\d+)", ptx)]


def test_a_gemm_kernel_is_bound_to_the_threads_of_its_block():
    """Without it a GEMM of 1024 threads takes up to 89 registers, and its block does not start."""
    assert bounds(ptx_of(execute(matmul(block_size=1024)), VECTOR, VECTOR, VECTOR)) == [1024]
    assert bounds(ptx_of(execute(matmul(block_dim=(32, 4), block_size=None)), VECTOR, VECTOR, VECTOR)) == [128]


def test_the_largest_block_of_several_objects_counts():
    small, large = matmul(block_size=96), matmul(size=(4, 4, 4), block_size=160)

    def kernel(a, b, c):
        small.execute(1.0, a, b, 0.0, c)
        large.execute(1.0, a, b, 0.0, c)
        small.execute(1.0, a, b, 0.0, c)

    assert bounds(ptx_of(kernel, VECTOR, VECTOR, VECTOR)) == [160]


def test_an_fft_kernel_is_bound_to_the_threads_of_its_block():
    fft = nd.FFT(64, "float32", "c2c", "Block", direction="forward")

    def kernel(data, scratch):
        fft.execute(data, scratch)

    assert bounds(ptx_of(kernel, complex64[::1], VECTOR)) == [23 * 5]


def test_a_kernel_for_debugging_starts_with_any_block():
    """Its check of the block shall name a wrong one, which CUDA would otherwise refuse without words."""
    assert bounds(ptx_of(execute(MM), VECTOR, VECTOR, VECTOR, debug=True, opt=False)) == []


@pytest.mark.parametrize("cc", [(8, 8), (10, 1)])
def test_a_target_that_is_not_known_is_named(cc):
    with pytest.raises(InvalidArgumentError, match=rf"target of the kernel: \({cc[0]}, {cc[1]}\) is not a known"):
        cuda.compile(execute(MM), void(VECTOR, VECTOR, VECTOR), abi="numba", cc=cc, output="ptx")


def recipe_of(n):
    return matmul(size=(n, 8, 8)).resolved(nd.ComputeCapability(9, 0)).recipe("SMEM")


@pytest.fixture
def made(monkeypatch):
    """Lists of the recipes that were generated together; a symbol is the code."""
    together = []

    def codes(recipes):
        together.append(list(recipes))
        return [Code(recipe.symbol, recipe.symbol.encode(), {}) for recipe in recipes]

    monkeypatch.setattr(generated, "Generated", REAL_GENERATED)
    monkeypatch.setattr("nvmath_device.lto.codegen.codes", codes)
    return together


def test_generated_code_is_kept_for_its_kernels_and_not_for_ever(made):
    """2 to 8 MB each: a program that tries a thousand descriptors shall not hold gigabytes."""
    used = generated.generated(recipe_of(101), None)
    assert used.data
    references = []
    for n in range(1, 101):
        code = generated.generated(recipe_of(n), None)
        assert code.data == recipe_of(n).symbol.encode()
        references.append(weakref.ref(code))
    del code
    gc.collect()
    assert sum(reference() is not None for reference in references) <= 40
    # What a kernel still holds stays one object: Numba links distinct objects twice.
    assert generated.generated(recipe_of(101), None) is used


def test_a_kernel_that_uses_eight_descriptors_has_them_generated_together(made):
    gemms = [matmul(size=(n, 8, 8)) for n in range(1, 9)]
    body = "".join(f"    g{i}.execute(1.0, a, b, 0.0, c)\n" for i in range(8))
    scope = {f"g{i}": gemm for i, gemm in enumerate(gemms)}
    exec(f"def kernel(a, b, c):\n{body}", scope)
    modules = compile_modules(scope["kernel"], void(VECTOR, VECTOR, VECTOR), nd.ComputeCapability(9, 0), {})
    assert [len(recipes) for recipes in made] == [8]
    assert {code for _, code in modules.linked} == {recipe_of(n).symbol.encode() for n in range(1, 9)}


def test_numba_asking_for_one_code_has_those_of_the_kernel_generated_together(made):
    """numba.cuda.jit links one after the other: the first makes all that are missing, the others are there."""
    gemms = [matmul(size=(n, 8, 8)) for n in (1, 2, 3)]
    first, second, third = gemms

    def kernel(a, b, c):
        first.execute(1.0, a, b, 0.0, c)
        second.execute(1.0, a, b, 0.0, c)
        third.execute(1.0, a, b, 0.0, c)

    codes, _ = cuda.compile_all(
        kernel, void(VECTOR, VECTOR, VECTOR), device=False, abi="numba", cc=(9, 0), output="ptx"
    )
    assert made == []
    assert len({code.data for code in codes[1:]}) == 3
    assert [len(recipes) for recipes in made] == [3]


def test_code_that_no_kernel_wants_any_more_is_not_generated(made):
    """A kernel that failed to compile after some of its calls were met leaves nothing to be made."""
    dropped = generated.generated(recipe_of(1), None)
    del dropped
    gc.collect()
    assert generated.generated(recipe_of(2), None).data
    assert [[r.symbol for r in recipes] for recipes in made] == [[recipe_of(2).symbol]]


def debug_checks_of(kernel, monkeypatch, *arguments):
    """What the checks of a kernel compiled with debug=True would say, in order."""
    from nvmath_device.numba_backend import debug_checks

    said = []
    real = debug_checks._fail_unless
    monkeypatch.setattr(
        debug_checks,
        "_fail_unless",
        lambda *given: (said.append(given[3].partition(": ")[2] or given[3]), real(*given)),
    )
    ptx_of(kernel, *arguments, debug=True, opt=False)
    return said


def test_debug_checks_alignment_and_all_strides(monkeypatch):
    """8 x 4 = (8 x 16) (16 x 4): A row-major and two-dimensional, B and C column-major and one-dimensional."""
    mm = matmul(alignment=(16, 4, 4))
    assert debug_checks_of(execute(mm), monkeypatch, float32[:, :], VECTOR, VECTOR) == [
        "Matmul.execute needs a block of 64 threads, the descriptor's block_dim; the launch has another",
        "a is not in shared memory",
        "a is not at a multiple of 16 bytes, as the alignment promises",
        "a is not 8 x 16, as the descriptor says",
        "neighbours within a row of a are not next to each other, as row_major needs",
        "the rows of a overlap, run backwards or are not whole elements apart",
        "b is not in shared memory",
        "b is not at a multiple of 4 bytes, as the alignment promises",
        "b is shorter than the 256 bytes it needs",
        "c is not in shared memory",
        "c is not at a multiple of 4 bytes, as the alignment promises",
        "c is shorter than the 128 bytes it needs",
    ]


def test_debug_checks_leading_dimensions_that_come_with_the_call(monkeypatch):
    mm = matmul()

    def kernel(a, b, c):
        mm.execute(1.0, a, 16, b, 16, 0.0, c, 8)

    said = debug_checks_of(kernel, monkeypatch, float32[:, :], VECTOR, VECTOR)
    assert [text for text in said if "ld" in text.split()[0] or "ldb" in text] == [
        "lda is less than the 16 elements of a row",
        "lda is not that of the two-dimensional a",
        "ldb is less than the 16 elements of a column",
        "b is too short for its ldb",
        "ldc is less than the 8 elements of a column",
    ]
    assert "c is too short for its ldc" in said


def test_debug_does_not_check_a_stride_that_is_never_taken(monkeypatch):
    """The one row of A has no next one, and each column of C no neighbours within it."""
    mm = matmul(size=(1, 4, 16))
    said = debug_checks_of(execute(mm), monkeypatch, float32[:, :], VECTOR, float32[:, :])
    assert [text for text in said if "rows of a" in text or "within a column of c" in text] == []
    assert "neighbours within a row of a are not next to each other, as row_major needs" in said
    assert "the columns of c overlap, run backwards or are not whole elements apart" in said


def test_rows_of_single_threads_are_numbered_in_all_dimensions_of_a_block():
    """Any block will do for Thread execution, so a row follows from all of threadIdx."""

    def load(source, data):
        THREAD.load(source, data)

    def load_row(source, data):
        THREAD.load(source, data, 3)

    registers = {f"%{kind}.{axis}" for kind in ("tid", "ntid") for axis in "xyz"}
    assert registers <= set(re.findall(r"%n?tid\.[xyz]", ptx_of(load, complex64[:, :], complex64[::1])))
    assert re.findall(r"%n?tid\.[xyz]", ptx_of(load_row, complex64[:, :], complex64[::1])) == []
