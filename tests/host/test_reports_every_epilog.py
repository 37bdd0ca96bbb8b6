# SPDX-License-Identifier: Apache-2.0
"""The reported case about epilogs that exist for some types and not for others: each is right, or refused by name.

``tests/gpu/host/test_reports_every_epilog.py`` runs this on a GPU.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from nvmath_device.errors import UnsupportedError
from nvmath_device.host import MatmulEpilog
from tests.host.cpu_products import bits_of, whole
from tests.host.report_tools import BF16, E4M3, F16, F32, F64, assert_exact, assert_product, cpu_library, wide
from tests.host.test_reports_epilogs import assert_gelu

library = cpu_library
M, N, K = 64, 48, 16  # multiples of what every type wants, all different
TYPES = [(F16, F16), (BF16, BF16), (F32, F32), (F64, F64), (E4M3, F16), (E4M3, BF16)]
# What the documentation of cublasLtMatmul has for every D of fp16, bf16 and float32; the rest may be refused.
ALWAYS = {F16, BF16, F32}
# How far a derivative of GELU for arguments up to 3 is off if tanh is the GPU's instruction: see TANH_ERROR.
DERIVATIVE_ERROR = 2.0**-8


def gelu_derivative(x):
    slope = math.sqrt(2 / math.pi)
    t = np.tanh(slope * (x + 0.044715 * x**3))
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * slope * (1 + 3 * 0.044715 * x * x)


def mask_of(rng, direction):
    """Random bits, as RELU_AUX lays them out, and what they say of each element."""
    shape = (16, N) if direction == "rows" else (M, 16)
    packed = rng.integers(0, 256, shape, dtype=np.uint8)
    packed = np.asarray(packed, order="F" if direction == "rows" else "C")
    return packed, bits_of(packed, M, N, direction)


def inputs_of(rng, epilog, result, direction):
    """The arrays that an epilog takes."""
    inputs = {}
    if epilog.endswith("BIAS"):
        inputs["bias"] = whole(rng, (M, 1) if direction == "rows" else (1, N), result, 9)
    if epilog.startswith("DGELU"):
        before = rng.uniform(-3, 3, (M, N)).astype(result)
        inputs["gelu_aux"] = np.asarray(before, order="F" if direction == "rows" else "C")
    return inputs


@pytest.mark.parametrize("direction", ["rows", "columns"])
@pytest.mark.parametrize("epilog", [e.name for e in MatmulEpilog])
def test_r087_every_epilog_of_every_type_is_right_or_refused_by_name(library, epilog, direction):
    rng = np.random.default_rng(87)
    for operand, result in TYPES:
        if not library.having(operand):
            continue
        a, b = whole(rng, (M, K), operand), whole(rng, (N, K), operand).T
        inputs = inputs_of(rng, epilog, result, direction)
        positive = None
        if epilog.startswith("DRELU"):
            inputs["relu_aux"], positive = mask_of(rng, direction)
        out = library.poisoned((M, N), result, "F" if direction == "rows" else "C")
        try:
            answer = library.matmul(
                library.put(a), library.put(b), epilog=epilog, out=out,
                epilog_inputs={name: library.put(x) for name, x in inputs.items()},
            )  # fmt: skip
        except UnsupportedError as error:
            assert epilog in str(error)  # noqa: PT017
            assert operand not in ALWAYS, str(error)  # noqa: PT017
            continue
        aux = answer[1] if isinstance(answer, tuple) else {}
        outputs = {name: library.get(x) for name, x in aux.items()}
        check(epilog, wide(a), wide(b), inputs, positive, library.get(out), outputs, direction)


def check(epilog, a, b, inputs, positive, d, outputs, direction):
    product, summed = a @ b, 1 if direction == "rows" else 0
    size = abs(a) @ abs(b)
    before = product + wide(inputs["bias"]) if "bias" in inputs else product
    if epilog.startswith("DGELU"):
        want, size = product * gelu_derivative(wide(inputs["gelu_aux"])), abs(product)
        assert_product(d, want, size, K, truncation=DERIVATIVE_ERROR)
    elif epilog.startswith("GELU"):
        assert_gelu(d, before, abs(before), 1)
    else:
        want = np.maximum(before, 0) if epilog.startswith("RELU") else before
        want = np.where(positive, product, 0) if positive is not None else want
        assert_exact(d, want, epilog)
    if "relu_aux" in outputs:
        bits = bits_of(outputs.pop("relu_aux"), M, N, direction)
        assert np.array_equal(bits[before != 0], (before > 0)[before != 0])  # the bit of 0 is up to the algorithm
    if "gelu_aux" in outputs:
        assert_exact(outputs.pop("gelu_aux")[:M, :N], before)
    for name, gradient in outputs.items():
        of, axis = {"bgrada": (a, 1), "bgradb": (b, 0)}.get(name, (None, summed))
        if of is None:  # the gradient of the bias: sums of the result
            truncation = DERIVATIVE_ERROR if epilog.startswith("DGELU") else 0.0
            assert_product(gradient.reshape(-1), want.sum(axis), size.sum(axis), K + max(M, N), truncation=truncation)
        else:
            assert_exact(gradient, of.sum(axis), name)
