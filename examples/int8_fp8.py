# SPDX-License-Identifier: Apache-2.0
"""A layer in 8 bits: the product of activations and weights in int8 and in fp8, compared with float32.

int8 products are exact sums in int32; the scales, one a sample and one a feature, are applied to the sums. fp8
products have one scale a matrix, which the product itself applies. Weights are stored as features x inputs and passed
transposed: so the summed axis is contiguous in both operands, which 8-bit products read in place.

    python examples/int8_fp8.py    # on a GPU with fp8 (compute capability 8.9 or more), else on the CPU with --cpu

The arrays are NumPy's, which the products bring to the GPU and back.
"""

import logging
import sys
from time import perf_counter

import ml_dtypes
import numpy as np

from nvmath_device.host import matmul

SAMPLES, FEATURES, INPUTS = 256, 384, 512
E4M3 = ml_dtypes.float8_e4m3fn


def to_int8(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows of int8, and what to multiply each row by to get it back."""
    scale = np.abs(x).max(axis=1, keepdims=True) / 127
    return np.rint(x / scale).astype(np.int8), scale


def to_fp8(x: np.ndarray) -> tuple[np.ndarray, float]:
    """The matrix in e4m3, and what to multiply it by to get it back."""
    scale = float(np.abs(x).max() / float(ml_dtypes.finfo(E4M3).max))
    return (x / scale).astype(E4M3), scale


def is_close(what: str, got: np.ndarray, exact: np.ndarray, bound: float) -> bool:
    error = float(np.linalg.norm(got - exact) / np.linalg.norm(exact))
    print(f"{what}, error: {error:.1e} (at most {bound:.0e})")
    return error <= bound


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")  # says so where there is no GPU
    options = {"execution": "cpu"} if "--cpu" in sys.argv else {}
    rng = np.random.default_rng(8)
    x = rng.standard_normal((SAMPLES, INPUTS)).astype(np.float32)
    w = rng.standard_normal((FEATURES, INPUTS)).astype(np.float32)
    wanted = x.astype(float) @ w.T
    start = perf_counter()

    x8, x_scale = to_int8(x)
    w8, w_scale = to_int8(w)
    sums = matmul(x8, w8.T, options=options)
    assert sums.dtype == np.int32
    exact_sums = x8.astype(int) @ w8.T.astype(int)
    from_int8 = sums * x_scale * w_scale.T

    x8, x_scale = to_fp8(x)
    w8, w_scale = to_fp8(w)
    scales = {"a": x_scale, "b": w_scale}
    from_fp8 = matmul(x8, w8.T, quantization_scales=scales, options=options | {"result_type": "float32"})
    exact_fp8 = x8.astype(float) @ w8.T.astype(float) * (x_scale * w_scale)
    print(f"time: {perf_counter() - start:.3f} s, quantisation included")

    right = [
        is_close("int8 against float32", from_int8, wanted, 0.02),
        is_close("int8, the sums of integers", sums, exact_sums, 0.0),
        is_close("fp8 against float32", from_fp8, wanted, 0.05),
        # Tensor cores sum fp8 products with some 14 bits, which are added up in float32 every now and then.
        is_close("fp8 against exact sums of the same fp8 numbers", from_fp8, exact_fp8, 2e-3),
    ]
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
