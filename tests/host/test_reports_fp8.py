# SPDX-License-Identifier: Apache-2.0
"""Reported cases about fp8: scales, orders, extents, bias, auxiliary outputs.

Most numbers are small and whole, so that sums are exact and results are compared bit by bit.
``tests/gpu/host/test_reports_fp8.py`` runs this on a GPU.
"""

from __future__ import annotations

import numpy as np
import pytest

from nvmath_device.errors import InvalidArgumentError, NvmathDeviceError, UnsupportedError
from tests.host.cpu_products import normal, whole
from tests.host.report_tools import (
    BF16,
    E4M3,
    E5M2,
    F16,
    F32,
    FP8_TRUNCATION,
    assert_exact,
    assert_product,
    cpu_library,
    right_or_refused,
    wide,
)

library = cpu_library
PAIRS = [(E4M3, E4M3), (E4M3, E5M2), (E5M2, E4M3)]


def test_r084_tensor_wide_scales(library):
    rng = np.random.default_rng(84)
    n = k = 4096 if library.on_gpu else 512
    a, b = normal(rng, (256, k), E4M3), normal(rng, (n, k), E4M3).T
    product, size = wide(a) @ wide(b), abs(wide(a)) @ abs(wide(b))
    numbers = {"a": 0.5, "b": np.float32(3.0)}
    for scales in (numbers, {name: library.put(np.full(1, x, np.float32)) for name, x in numbers.items()}):
        for result in (F16, BF16, F32):
            d = library.matmul(
                library.put(a), library.put(b), quantization_scales=scales, alpha=0.25,
                options={"result_type": result},
            )  # fmt: skip
            assert_product(library.get(d), 0.375 * product, 0.375 * size, k, truncation=FP8_TRUNCATION)
    d, aux = library.matmul(
        library.put(a), library.put(b), quantization_scales=numbers | {"d": 2.0**-3}, alpha=0.25,
        options={"result_type": E4M3, "result_amax": True},
    )  # fmt: skip
    want = np.clip(0.375 * product / 8, -448, 448)  # e4m3's largest number
    assert_product(library.get(d), want, 0.375 / 8 * size, k, truncation=FP8_TRUNCATION)
    largest = abs(0.375 * product).max()
    assert library.get(aux["result_amax"]).item() == pytest.approx(largest, rel=1e-2)


@pytest.mark.parametrize("shape", [(256,), (256, 1), (2, 128)], ids=str)
def test_r084_scales_of_rows_are_refused_with_what_is_offered(library, shape):
    a, b = library.put(np.eye(256, 64, dtype=E4M3)), library.put(np.eye(64, 64, dtype=E4M3))
    with pytest.raises(InvalidArgumentError, match=r"^quantization_scales\.a: float32 of shape .*one float32 number"):
        library.matmul(a, b, quantization_scales={"a": library.put(np.ones(shape, np.float32))})


def test_r084_scales_of_blocks_are_not_silently_read_as_tensor_wide(library):
    """MXFP8 and NVFP4 multiply blocks of 32 and 16 elements by scales of their own."""
    one = library.put(np.eye(128, 128, dtype=E4M3))
    for scales in (None, {"a": 2.0, "b": 2.0}):
        with pytest.raises(UnsupportedError, match=r"^block_scaling: .*give one scale a matrix"):
            library.matmul(one, one, quantization_scales=scales, options={"block_scaling": True, "result_type": F16})
    exponents = library.put(np.full(512, 127, np.uint8))  # 1 in UE8M0
    with pytest.raises(NvmathDeviceError, match=r"uint8 of shape \(512,\); give one float32 number"):
        library.matmul(one, one, quantization_scales={"a": exponents, "b": exponents}, options={"block_scaling": True})


@pytest.mark.parametrize("k", [1024, 2048, 4096])
def test_r085_leading_dimensions_of_every_order(library, k):
    """A square K hides a leading dimension taken from the wrong axis; these are all different."""
    rng = np.random.default_rng(85)
    m, n, k = (4864, 1536, k) if library.on_gpu else (304, 96, k // 16)
    a, b = whole(rng, (m, k), E4M3, 1), whole(rng, (k, n), E4M3, 1)
    want = a.astype(np.float32) @ b.astype(np.float32)  # exact: whole numbers below 2^24
    for a_order, b_order in ("CC", "CF", "FC", "FF"):
        operands = [library.put(np.asarray(x, order=o)) for x, o in ((a, a_order), (b, b_order))]
        d = library.matmul(*operands, options={"result_type": F32})
        assert_exact(library.get(d), want, a_order + b_order)


@pytest.mark.parametrize("extents", [(7, 7, 7), (24, 40, 56), (1, 16, 16), (16, 1, 16), (16, 16, 1)], ids=str)
def test_r085_extents_that_fp8_does_not_like_are_rounded_up(library, extents):
    rng = np.random.default_rng(850)
    m, n, k = extents
    for pair in PAIRS:
        a, b, c = whole(rng, (m, k), pair[0]), whole(rng, (k, n), pair[1]), whole(rng, (m, n), F16, 9)
        for order in "CF":
            out = library.poisoned((m, n), F16, order)
            library.matmul(library.put(a), library.put(b), library.put(c), beta=2, out=out)
            assert_exact(library.get(out), wide(a) @ wide(b) + 2 * wide(c))


BIASED = [(F16, F16), (BF16, BF16), (E4M3, F16), (E4M3, BF16), (F32, BF16)]


@pytest.mark.parametrize(("result", "bias"), BIASED, ids=str)
def test_r086_a_batch_of_fp8_products_with_a_bias(library, result, bias):
    rng = np.random.default_rng(86)
    a, b = whole(rng, (4, 64, 32), E4M3, 1), np.swapaxes(whole(rng, (4, 16, 32), E4M3, 1), 1, 2)
    for shape in ((64, 1), (4, 64, 1), (1, 16), (4, 1, 16)):
        vector = whole(rng, shape, bias, 9)
        exact = wide(a) @ wide(b) + wide(vector)

        def run(vector=vector, exact=exact):
            d = library.matmul(
                library.put(a), library.put(b), epilog="BIAS", epilog_inputs={"bias": library.put(vector)},
                options={"result_type": result},
            )  # fmt: skip
            assert_exact(library.get(d), exact.astype(np.float32).astype(result))

        right_or_refused(library, run, "BIAS", "batch", "float8_e4m3fn")


@pytest.mark.parametrize("epilog", ["GELU_AUX", "GELU_AUX_BIAS"])
@pytest.mark.parametrize("aux_type", [None, F16, BF16, E4M3], ids=str)
def test_r088_the_type_of_an_aux_output_is_c_s_or_the_one_asked_for(library, epilog, aux_type):
    rng = np.random.default_rng(88)
    a, b = whole(rng, (64, 32), E4M3, 1), whole(rng, (48, 32), E4M3, 1).T
    bias = whole(rng, (64, 1), BF16 if aux_type == BF16 else F16, 3)
    before = wide(a) @ wide(b) + (wide(bias) if "BIAS" in epilog else 0)
    preferences = {"epilog": {} if aux_type is None else {"aux_type": aux_type}}

    def run():
        inputs = {"bias": library.put(bias)} if "BIAS" in epilog else None
        d, aux = library.matmul(
            library.put(a), library.put(b), epilog=epilog, epilog_inputs=inputs, preferences=preferences,
            options={"result_type": E4M3},
        )  # fmt: skip
        kept = library.get(aux["gelu_aux"])
        assert kept.dtype == (aux_type or F16)  # an e4m3 result goes with an fp16 C unless something else is said
        assert library.get(d).dtype == E4M3
        part = kept[:64, :48]
        assert_exact(part, before.astype(np.float32).astype(kept.dtype))

    right_or_refused(library, run, epilog, "float8_e4m3fn")


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_r104_without_a_result_type_the_result_has_a_s(library, pair):
    rng = np.random.default_rng(104)
    a, b = whole(rng, (64, 32), pair[0], 1), whole(rng, (48, 32), pair[1], 1).T
    out = library.poisoned((64, 48), pair[0])
    library.matmul(library.put(a), library.put(b), out=out)
    d = library.matmul(library.put(a), library.put(b))
    assert library.get(d).dtype == pair[0]
    for result in (d, out):
        assert_exact(library.get(result), (wide(a) @ wide(b)).astype(np.float32).astype(pair[0]))


def test_r104_two_of_e5m2_are_refused_with_what_to_do(library):
    one = library.put(np.eye(16, dtype=E5M2))
    with pytest.raises(UnsupportedError, match=r"float8_e5m2 x float8_e5m2; it has .*; convert one of them to"):
        library.matmul(one, one)


def test_r105_every_order_of_fp8_operands_is_right_and_says_what_it_copies(library):
    rng = np.random.default_rng(105)
    m, n, k = 64, 48, 32
    for pair in PAIRS:
        a, b = whole(rng, (m, k), pair[0]), whole(rng, (k, n), pair[1])
        for a_order, b_order, d_order in ("CCC", "CFC", "FCC", "FFC", "CCF", "CFF", "FCF", "FFF"):
            operands = [library.put(np.asarray(x, order=o)) for x, o in ((a, a_order), (b, b_order))]
            out = library.poisoned((m, n), F16, d_order)
            with library.Matmul(*operands, options={"result_type": F16}) as mm:
                mm.plan(out=out)
                mm.execute(out=out)
                copied = {reason.partition(":")[0] for reason in mm.copies}
            assert_exact(library.get(out), wide(a) @ wide(b), a_order + b_order + d_order)
            wrong = {name for name, order, good in (("a", a_order, "C"), ("b", b_order, "F")) if order != good}
            assert copied <= wrong, "K is the contiguous axis of what needs no copy"
            if copied:
                with pytest.raises(InvalidArgumentError, match=f"{min(copied)}: fp8 products need .* K contiguous"):
                    library.matmul(*operands, out=out, options={"result_type": F16, "copies": "refuse"})
