# SPDX-License-Identifier: Apache-2.0
"""``Matmul.load_a``, ``load_b``, ``load_c`` and ``store_c`` without a GPU: typing errors and machine code.

What the copies do is in ``test_copy_loops.py`` (their loops, in Python) and ``gpu/test_copies_gpu.py``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import cuda
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
    void,
)

import nvmath_device as nd
from nvmath_device.errors import KernelOnlyError, KernelTypingError
from tests import sass

ROW, COL = "row_major", "col_major"


def matmul(
    size: int = 32, precision: Any = "float32", data_type: str = "real", order: str = ROW, **options: Any
) -> nd.Matmul:
    return nd.Matmul(
        size=(size, size, size),
        precision=precision,
        data_type=data_type,
        arrangement=(order, order, order),
        block_size=128,
        **options,
    )


def load_kernel(mm: nd.Matmul) -> Any:
    """Loads a tile of ``view`` and makes sure that it is used."""

    def kernel(view, out):
        smem = nd.shared.array(mm.a_size, mm.a_value_type)
        mm.load_a(view, smem)
        cuda.syncthreads()
        out[cuda.threadIdx.x] = smem[cuda.threadIdx.x]

    return kernel


def store_kernel(mm: nd.Matmul) -> Any:
    def kernel(view, out):
        smem = nd.shared.array(mm.c_size, mm.c_value_type)
        smem[cuda.threadIdx.x] = out[cuda.threadIdx.x]
        cuda.syncthreads()
        mm.store_c(smem, view)

    return kernel


def code_of(kernel: Any, element: Any, view: Any, *, sm: int = 90) -> bytes:
    return nd.compile(kernel, void(view, element[::1]), sm=sm).code


# -- machine code --------------------------------------------------------------------------------------------


ELEMENTS = {
    "float16": ("float16", "real", float16),
    "bfloat16": (("bfloat16", "bfloat16", "float32"), "real", bfloat16),
    "tfloat32": (("tfloat32", "tfloat32", "float32"), "real", float32),
    "float64": ("float64", "real", float64),
    "float8": (("float8_e4m3fn", "float8_e4m3fn", "float32"), "real", uint8),
    "int8": (("int8", "int8", "int32"), "real", int8),
    "complex64": ("float32", "complex", complex64),
    "complex128": ("float64", "complex", complex128),
}


@pytest.mark.parametrize("element", ELEMENTS)
def test_load_of_every_element_type_copies_16_bytes_asynchronously(element: str):
    precision, data_type, numba = ELEMENTS[element]
    code = code_of(load_kernel(matmul(precision=precision, data_type=data_type)), numba, numba[:, ::1])
    assert "LDGSTS.E.BYPASS.128" in sass.instructions(code)
    check_lean(code)


@pytest.mark.parametrize("element", ["float16", "float64", "complex64", "complex128"])
def test_store_of_every_element_type_writes_16_bytes(element: str):
    precision, data_type, numba = ELEMENTS[element]
    code = code_of(store_kernel(matmul(precision=precision, data_type=data_type)), numba, numba[:, ::1])
    found = sass.instructions(code)
    assert "STG.E.128" in found
    assert "LDS.128" in found
    check_lean(code)


@pytest.mark.parametrize("view", [float32[:, ::1], float32[::1, :], float32[:, :]], ids="CFA")
@pytest.mark.parametrize("order", [ROW, COL])
@pytest.mark.parametrize("kernel", [load_kernel, store_kernel])
def test_16_byte_accesses_exactly_where_the_axes_can_agree(kernel: Any, order: str, view: Any):
    found = sass.instructions(code := code_of(kernel(matmul(order=order)), float32, view))
    can_agree = view.layout == "A" or view.layout == {ROW: "C", COL: "F"}[order]
    wide = {"LDGSTS.E.BYPASS.128", "STG.E.128"} & set(found)
    assert bool(wide) == can_agree
    check_lean(code)


def check_lean(code: bytes, *, most_registers: int = 40) -> None:
    """Nothing spilled, nothing divided, few registers: a copy must not set the limit of a GEMM kernel."""
    found = sass.instructions(code)
    assert not [name for name in found if name.startswith(("LDL", "STL", "CALL", "MUFU"))]
    used = sass.resources(code)
    assert used["local"] == used["stack"] == 0
    assert used["registers"] <= most_registers


def test_rows_that_are_no_multiple_of_16_bytes_are_copied_element_by_element():
    found = sass.instructions(code_of(load_kernel(matmul(33)), float32, float32[:, ::1]))
    assert "LDGSTS.E" in found  # 4 bytes, still asynchronous
    assert not [name for name in found if "128" in name]


def test_a_padded_line_of_16_bytes_keeps_wide_accesses():
    padded, odd = (matmul(leading_dimension=(ld, ld, ld)) for ld in (36, 33))
    for mm in (padded, odd):
        found = sass.instructions(code_of(load_kernel(mm), float32, float32[:, ::1]))
        assert ("LDGSTS.E.BYPASS.128" in found) == (mm is padded)


def test_before_sm_80_without_cp_async():
    code = code_of(load_kernel(matmul()), float32, float32[:, ::1], sm=75)
    found = sass.instructions(code)
    assert not [name for name in found if name.startswith("LDGSTS")]
    assert [name for name in found if name.startswith("LDG.E.128")]
    assert [name for name in found if name.startswith("STS.128")]
    check_lean(code, most_registers=48)  # four words and their addresses are on their way


@pytest.mark.parametrize("sm", [80, 86, 89, 100, 120])
def test_newer_targets(sm: int):
    code = code_of(load_kernel(matmul()), float32, float32[:, :], sm=sm)
    assert "LDGSTS.E.BYPASS.128" in sass.instructions(code)


def test_two_dimensional_shared_array_with_its_own_pitch():
    mm = matmul()

    def kernel(view, out):
        smem = nd.shared.array((32, 40), np.float32)
        mm.load_b(view, smem[:, :32])
        cuda.syncthreads()
        mm.store_c(smem[:, :32], view)
        out[cuda.threadIdx.x] = smem[0, cuda.threadIdx.x]

    found = sass.instructions(code_of(kernel, float32, float32[:, ::1]))
    assert "LDGSTS.E.BYPASS.128" in found
    assert "STG.E.128" in found


def test_debug_code_is_generated():
    kernel = load_kernel(matmul())
    codes, _ = cuda.compile_all(
        kernel,
        void(float32[:, :], float32[::1]),
        device=False,
        abi="numba",
        cc=(9, 0),
        output="ptx",
        debug=True,
        opt=False,
    )
    assert any("cp.async.cg.shared.global" in code for code in codes)


def test_equal_copies_are_one_function():
    """Numba compiles a loop again for every call unless it is given the same function."""
    from nvmath_device.numba_backend.copies import TileCopy, _load, _store

    first, second = (TileCopy(8, 8, 4, 4, "same", asynchronous=True) for _ in range(2))
    assert _load(first) is _load(second)
    assert _store(first) is _store(second)
    assert _load(first) is not _store(first)


# -- typing --------------------------------------------------------------------------------------------------


def error_of(kernel: Any, *arguments: Any) -> str:
    with pytest.raises(KernelTypingError) as caught:
        nd.compile(kernel, void(*arguments), sm=90)
    return str(caught.value).partition("\n")[0]


def load(mm: nd.Matmul) -> Any:
    def kernel(view, smem):
        mm.load_a(view, smem)

    return kernel


def store(mm: nd.Matmul) -> Any:
    def kernel(smem, view):
        mm.store_c(smem, view)

    return kernel


def test_arguments_are_counted_by_name():
    mm = matmul()

    def one(view):
        mm.load_a(view)

    def unknown(view, smem):
        mm.load_b(view, smem=smem, pitch=3)

    def reversed_names(view, smem):
        mm.store_c(view, view=smem)

    assert error_of(one, float32[:, :]) == (
        "Matmul.load_a takes (view, smem), got 1 arguments: (array(float32, 2d, A)); missing: smem"
    )
    assert error_of(unknown, float32[:, :], float32[::1]).endswith("unknown: pitch")
    assert nd.compile(reversed_names, void(float32[::1], float32[:, :]), sm=90).code


ERRORS = {
    "view is 1-D": (
        load, (float32[::1], float32[::1]),
        "Matmul.load_a wants a 2-D array for view, got 1-D: array(float32, 1d, C); give one matrix",
    ),
    "view is a number": (
        load, (float32, float32[::1]), "Matmul.load_a wants a 2-D array for view, got float32"
    ),
    "view has other elements": (
        load, (float64[:, :], float32[::1]),
        "Matmul.load_a wants elements of float32 for view (a copy converts nothing), got an array of float64",
    ),
    "smem is a number": (
        load, (float32[:, :], int32), "Matmul.load_a wants an array in shared memory for smem, got int32"
    ),
    "smem is 3-D": (
        load, (float32[:, :], float32[:, :, ::1]), "Matmul.load_a wants a 1-D or 2-D array for smem, got 3-D"
    ),
    "smem has other elements": (
        load, (float32[:, :], float16[::1]),
        "Matmul.load_a wants elements of float32 for smem, got an array of float16",
    ),
    "smem is strided": (
        load, (float32[:, :], float32[:]), "Matmul.load_a wants a contiguous 1-D array for smem"
    ),
    "smem has the other order": (
        load, (float32[:, :], float32[::1, :]), "Matmul.load_a wants a row_major matrix for smem"
    ),
    "stored elements differ": (
        store, (float32[::1], int32[:, :]),
        "Matmul.store_c wants elements of float32 for view (a copy converts nothing), got an array of int32",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ERRORS)
def test_error_names_argument_and_what_is_wanted(case: str):
    make, arguments, text = ERRORS[case]
    assert error_of(make(matmul()), *arguments).startswith(text)


def test_complex_view_is_complex():
    assert error_of(load(matmul(data_type="complex")), float32[:, :], float32[::1]) == (
        "Matmul.load_a wants elements of complex64 for view (a copy converts nothing), got an array of float32"
    )


def test_read_only_view_is_not_written():
    read_only = float32[:, ::1].copy(readonly=True)
    assert error_of(store(matmul()), float32[::1], read_only) == (
        "Matmul.store_c cannot write view: the array is read-only"
    )
    assert nd.compile(load(matmul()), void(read_only, float32[::1]), sm=90).code


def test_components_in_a_one_dimensional_array():
    assert nd.compile(load(matmul(data_type="complex")), void(complex64[:, :], float32[::1]), sm=90).code


@pytest.mark.parametrize("name", ["load_a", "load_b", "load_c", "store_c"])
def test_on_the_host_it_says_so(name: str):
    with pytest.raises(KernelOnlyError, match=rf"Matmul\.{name} was called on the host"):
        getattr(matmul(), name)(None, None)
