# SPDX-License-Identifier: Apache-2.0
"""The reported case of cached kernels with generated code, on the CPU: built once, and never a stale one."""

from __future__ import annotations

import pytest
from numba.cuda import types

import nvmath_device as nd
from nvmath_device import kernel_code
from nvmath_device.lto.store import default_store
from nvmath_device.numba_backend.kernel_words import kernel_words
from tests.real_code import DOUBLE, HALF, SM90, gemm_kernel, generated

__all__ = ["generated"]
MATRIX = types.Array(types.float64, 2, "C")


def product(mm):
    return nd.jit(gemm_kernel(mm))


@pytest.mark.usefixtures("generated")
def test_r050_a_kernel_with_generated_code_is_kept(monkeypatch):
    first = product(DOUBLE).build((MATRIX,) * 3, 90)
    assert first.cubin[:4] == b"\x7fELF"
    assert [tuple(block["block_dim"]) for block in first.blocks] == [tuple(DOUBLE.block_dim)]
    assert first.resources.static_shared_bytes >= 3 * 32 * 32 * 8
    assert any(entry.kind == "kernel" for entry in default_store().entries())
    monkeypatch.setattr(kernel_code, "build", lambda *arguments: pytest.fail("built"))
    assert product(DOUBLE).build((MATRIX,) * 3, 90) == first


def test_r050_another_descriptor_is_another_kernel():
    def words(mm):
        return kernel_words(product(mm).py_func, (MATRIX,) * 3, {}, SM90)

    options = {"data_type": "real", "arrangement": ("row_major", "col_major", "col_major"), "block_size": 128}
    longer = nd.Matmul((32, 32, 48), "float64", **options)
    same = nd.Matmul((32, 32, 32), "float64", **options)
    assert words(same) == words(DOUBLE)
    assert len({str(words(mm)) for mm in (DOUBLE, HALF, longer)}) == 3
