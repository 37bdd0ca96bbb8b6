# SPDX-License-Identifier: Apache-2.0
"""Objects made for one target in kernels compiled for another, and compilers that miscompile. Generates nothing."""

from __future__ import annotations

import pytest
from numba import cuda
from numba.cuda.types import bfloat16, float32, void

import nvmath_device as nd
from nvmath_device.errors import KernelTypingError
from nvmath_device.lto.recipes import static_leading_dimension_is_miscompiled
from tests.kernel_stubs import asked  # noqa: F401  (the fixture that generates nothing)

ROWS = ("row_major", "row_major", "row_major")


def gemm(sm=None, **options):
    defaults = {"size": (8, 8, 8), "precision": "float32", "data_type": "real", "arrangement": ROWS, "block_size": 32}
    return nd.Matmul(**{**defaults, **options}, sm=sm)


def compile_for(cc, mm, alpha=float32):
    def kernel(alpha, x):
        mm.execute(alpha, x, x, 0.0, x)

    return cuda.compile_all(kernel, void(alpha, float32[::1]), cc=cc, device=False, abi="numba", output="ptx")


@pytest.mark.parametrize(
    ("made_for", "compiled_for"),
    [(90, (8, 0)), (100, (9, 0)), ("90a", (10, 0)), ("100f", (12, 0))],
)
def test_r055_code_for_another_target_is_refused(asked, made_for, compiled_for):  # noqa: F811
    with pytest.raises(KernelTypingError, match=r"was made for sm_\d+.* and the kernel is compiled for sm_\d+"):
        compile_for(compiled_for, gemm(made_for))


@pytest.mark.parametrize(
    ("made_for", "compiled_for"), [(80, (9, 0)), ("90a", (9, 0)), ("100f", (10, 3)), (None, (12, 0))]
)
def test_r055_code_the_target_can_run_is_taken(asked, made_for, compiled_for):  # noqa: F811
    assert compile_for(compiled_for, gemm(made_for))


def test_a_bfloat16_scalar_is_refused_with_what_to_write(asked):  # noqa: F811
    with pytest.raises(KernelTypingError, match=r"bfloat16 for alpha; convert it: float32\(x\)"):
        compile_for((9, 0), gemm(), alpha=bfloat16)


PADDED = {"leading_dimension": (9, 9, 9)}


@pytest.mark.parametrize(
    ("options", "affected"),
    [
        ({"precision": "float16", **PADDED}, True),
        ({"precision": ("int8", "int8", "int32"), **PADDED}, True),
        ({"precision": "float16"}, False),  # no leading dimension of its own
        ({"precision": "float32", **PADDED}, False),  # no narrow element
        ({"precision": "float16", "size": (16, 16, 32), "leading_dimension": (33, 17, 17)}, False),  # no odd extent
    ],
)
def test_r012_known_miscompilations_are_avoided(options, affected):
    descriptor = gemm(**options).descriptor
    compilers = {
        (12, 6): False,
        (12, 8): True,
        (12, 9): True,
        (13, 0): True,
        (13, 1): True,
        (13, 2): False,
        (13, 5): False,
    }
    for version, broken in compilers.items():
        assert static_leading_dimension_is_miscompiled(descriptor, lambda v=version: v) == (broken and affected)


def test_the_compiler_is_not_asked_where_its_version_does_not_matter():
    def asked_for_nothing():
        raise AssertionError("NVRTC was asked")

    assert not static_leading_dimension_is_miscompiled(gemm(**PADDED).descriptor, asked_for_nothing)
