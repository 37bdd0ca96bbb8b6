# SPDX-License-Identifier: Apache-2.0
"""Reported cases about element types: which go together, and what is assumed.

Numbers are small and whole, so that sums are exact in every compute type and results are compared bit by bit.
``tests/gpu/host/test_reports_types.py`` runs this on a GPU.
"""

from __future__ import annotations

import numpy as np
import pytest

from nvmath_device.errors import InvalidArgumentError
from tests.host.cpu_products import whole
from tests.host.report_tools import BF16, C64, F16, F32, F64, assert_exact, cpu_library, right_or_refused, wide

library = cpu_library
C128, I8, I32 = np.dtype(np.complex128), np.dtype(np.int8), np.dtype(np.int32)

# From the tables of cublasLtMatmul in the documentation of cuBLAS 13: A and B, D, compute types, scale type.
_FAST = ("32F", "32F_PEDANTIC", "32F_FAST_16F", "32F_FAST_16BF", "32F_FAST_TF32", "32F_EMULATED_16BFX9")
_DOUBLE = ("64F", "64F_PEDANTIC", "64F_EMULATED_FIXEDPOINT")
DOCUMENTED = [
    (F16, F16, ("32F", "32F_PEDANTIC"), "R_32F"),
    (F16, F16, ("16F", "16F_PEDANTIC"), "R_16F"),
    (F16, F32, ("32F", "32F_PEDANTIC"), "R_32F"),
    (BF16, BF16, ("32F", "32F_PEDANTIC"), "R_32F"),
    (BF16, F32, ("32F", "32F_PEDANTIC"), "R_32F"),
    (F32, F32, _FAST, "R_32F"),
    (F64, F64, _DOUBLE, "R_64F"),
    (C64, C64, _FAST, "C_32F"),
    (C128, C128, _DOUBLE, "C_64F"),
    (I8, I32, ("32I", "32I_PEDANTIC"), "R_32I"),
    (I8, I8, ("32I", "32I_PEDANTIC"), "R_32F"),
    (I8, F32, ("32F", "32F_PEDANTIC"), "R_32F"),
]
ALWAYS = ("32F", "16F", "64F", "32F_PEDANTIC", "64F_PEDANTIC", "32F_FAST_TF32")


@pytest.mark.parametrize("given", ["compute type", "both types"])
def test_r070_documented_combinations_compute_and_the_scale_type_is_found(library, given):
    """Without a scale type the one that goes with the compute type is taken: alpha = 1/2 is none of int32's."""
    rng = np.random.default_rng(70)
    for operand, result, computes, scale in DOCUMENTED:
        if not library.having(operand):
            continue
        alpha = 1 if scale == "R_32I" else 0.5
        a, b = 2 * whole(rng, (48, 16), operand, 1), whole(rng, (16, 32), operand)
        for compute in computes:
            options = {"compute_type": f"COMPUTE_{compute}", "result_type": result}
            if given == "both types":
                options["scale_type"] = f"CUDA_{scale}"

            def run(a=a, b=b, alpha=alpha, result=result, options=options):
                d = library.matmul(library.put(a), library.put(b), alpha=alpha, options=options)
                assert library.get(d).dtype == result
                assert_exact(library.get(d), alpha * (wide(a) @ wide(b)), str(options))

            ran = right_or_refused(library, run, compute, str(operand))
            assert ran or operand == I8 or compute not in ALWAYS, f"{options} is refused"


ILLEGAL = [
    (F16, {"compute_type": "COMPUTE_64F"}, ("compute_type", "COMPUTE_64F", "COMPUTE_32F")),
    (F32, {"compute_type": "COMPUTE_16F"}, ("compute_type", "COMPUTE_16F", "COMPUTE_32F")),
    (F16, {"compute_type": "COMPUTE_16F", "scale_type": "CUDA_R_32F"}, ("scale_type", "CUDA_R_32F", "CUDA_R_16F")),
    (F64, {"result_type": "float32"}, ("result_type", "float32", "float64")),
    (C64, {"result_type": "float32"}, ("result_type", "complex")),
    (F32, {"compute_type": "COMPUTE_32I"}, ("compute_type", "COMPUTE_32I", "COMPUTE_32F")),
    (F64, {"scale_type": "CUDA_R_32F"}, ("scale_type", "CUDA_R_32F", "CUDA_R_64F")),
]


@pytest.mark.parametrize("case", ILLEGAL, ids=lambda case: f"{case[0]}-{'-'.join(case[1].values())}")
def test_r070_other_combinations_are_refused_before_anything_is_planned(library, case):
    operand, options, named = case
    one = library.put(np.eye(4, dtype=operand))
    with pytest.raises(InvalidArgumentError) as caught:
        library.Matmul(one, one, options=options)
    assert str(caught.value).startswith(f"{named[0]}: ")
    assert all(word in str(caught.value) for word in named)


# -- the type of out ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("types", [(F16, F32), (BF16, F32), (I8, F32), (I8, I8)], ids=str)
def test_r070_an_out_of_another_type_is_planned_for_and_not_written_as_if_it_were_the_usual(library, types):
    """The type of out decides the result's, and with it the scale type of alpha: int32 for int8 without out."""
    rng = np.random.default_rng(700)
    operand, other = types
    if not library.having(operand):
        return
    a, b = whole(rng, (12, 8), operand), whole(rng, (8, 16), operand)
    want = wide(a) @ wide(b)
    usual = I32 if operand == I8 else operand

    def assert_right(out):
        assert_exact(library.get(out), want)

    for order in "CF":
        out = library.poisoned((12, 16), other, order)
        library.matmul(library.put(a), library.put(b), out=out)
        assert_right(out)
        with library.Matmul(library.put(a), library.put(b)) as mm:
            for plan in (mm.plan, lambda mm=mm, order=order: mm.plan(out=library.poisoned((12, 16), other, order))):
                plan()
                for _ in range(2):
                    d, out = mm.execute(), library.poisoned((12, 16), other, order)
                    assert library.get(d).dtype == usual
                    assert_right(d)
                    mm.execute(out=out)
                    assert_right(out)
