# SPDX-License-Identifier: Apache-2.0
"""Generated code for other compilers: what is returned, and what is refused. Generates nothing."""

from __future__ import annotations

import pytest

import nvmath_device as nd
from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError, UnsupportedError
from nvmath_device.lto import codegen, toolchain

MM = nd.Matmul(size=(8, 8, 8), precision="float32", data_type="real", arrangement=("row_major",) * 3, block_size=32)
BLOCK = nd.FFT(size=16, precision="float32", fft_type="r2c", execution="Block")
THREAD = nd.FFT(size=16, precision="float32", fft_type="r2c", execution="Thread")


@pytest.fixture
def asked(monkeypatch):
    """The recipes asked for; each is answered with its own symbol and three bytes."""
    recipes = []

    def code(recipe):
        recipes.append(dict(recipe.operators))
        return codegen.Code(recipe.symbol, b"ltoir", {})

    monkeypatch.setattr(codegen, "code", code)
    return recipes


def test_a_gemm_for_a_target(asked):
    code, symbol = nd.compile_blas_execute(MM, nd.CodeType("lto", nd.ComputeCapability(9, 0)))
    assert code.code_type == ("lto", (9, 0, ""))
    assert code.isa_version == toolchain.nvrtc_version()
    assert code.data == b"ltoir"
    assert symbol.startswith("nvmath_device_mm_")
    _, other = nd.compile_blas_execute(MM, ("lto", 80), execute_api="dynamic_leading_dimensions")
    assert other != symbol
    assert [(r["API"], r["SM"]) for r in asked] == [("SMEM", 900), ("SMEM_DYNAMIC_LD", 800)]


def test_ffts_for_a_target(asked):
    nd.compile_fft_execute(BLOCK, ("lto", 90))
    nd.compile_fft_execute(BLOCK, ("lto", 90), execute_api="shared_memory")
    nd.compile_fft_execute(THREAD, ("lto", 90))
    assert [(r["API"], r["EXECUTION"]) for r in asked] == [("LMEM", "BLOCK"), ("SMEM", "BLOCK"), ("LMEM", "THREAD")]


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: nd.compile_blas_execute(BLOCK), ArgumentTypeError, "is not a Matmul"),
        (lambda: nd.compile_fft_execute(MM), ArgumentTypeError, "is not an FFT"),
        (lambda: nd.compile_blas_execute(MM, ("ptx", 90)), InvalidArgumentError, "code_type: 'ptx'"),
        (lambda: nd.compile_blas_execute(MM, "lto"), ArgumentTypeError, "code_type: 'lto'"),
        (lambda: nd.compile_blas_execute(MM, ("lto", 999)), InvalidArgumentError, "code_type: 999"),
        (lambda: nd.compile_blas_execute(MM, ("lto", 90), "tensors"), InvalidArgumentError, "execute_api: 'tensors'"),
        (lambda: nd.compile_fft_execute(THREAD, ("lto", 90), "shared_memory"), UnsupportedError, "Thread execution"),
        (
            lambda: nd.compile_fft_execute(nd.FFT(16, "float32", "r2c", "Block", sm=90), ("lto", 80)),
            UnsupportedError,
            "sm_80 is not sm_90",
        ),
    ],
)
def test_refusals(asked, call, error, text):
    with pytest.raises(error, match=text):
        call()
    assert asked == []
