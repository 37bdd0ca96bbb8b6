# SPDX-License-Identifier: Apache-2.0
"""One product of arrays of two libraries: nothing is copied, and the result is an array of the first one's library.

    python examples/mixed_arrays.py    # CuPy and PyTorch on a GPU; NumPy and what else there is on the CPU

A library that is not installed is replaced by an object that speaks DLPack and nothing else: that is all an array
has to do.
"""

import logging
import sys
from importlib.util import find_spec
from time import perf_counter

import numpy as np

from nvmath_device.errors import InvalidArgumentError
from nvmath_device.host import Matmul, matmul

M, N, K = 300, 200, 400
BOUND = 2e-6  # of the norm-wise relative error; float32 rounds at 6e-8


class OnlyDlpack:
    """An array of a library that nobody knows."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **arguments):
        return self.array.__dlpack__(**arguments)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def libraries():
    """Two functions that bring a NumPy array into a library each, into the same memory: a GPU's or the CPU's."""
    found = []
    if find_spec("cupy"):
        import cupy

        if cupy.cuda.is_available():
            found.append(cupy.asarray)
    if find_spec("torch"):
        import torch

        if torch.cuda.is_available():
            found.append(lambda x: torch.from_numpy(x).cuda())
        elif not found:
            found = [np.asarray, torch.from_numpy]
    found = found or [np.asarray]
    return found[0], found[1] if len(found) > 1 else lambda x: OnlyDlpack(found[0](x))


def to_numpy(x) -> np.ndarray:
    """Whatever library and device it is of."""
    if isinstance(x, OnlyDlpack):
        x = x.array
    if type(x).__module__.startswith("torch"):
        x = x.cpu().numpy()
    return x.get() if hasattr(x, "get") else x


def name(x) -> str:
    return f"{type(x).__module__}.{type(x).__name__}"


def error_of(got, expected) -> float:
    return float(np.linalg.norm(to_numpy(got) - expected) / np.linalg.norm(expected))


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")  # says so where there is no GPU
    make_a, make_b = libraries()
    rng = np.random.default_rng(7)
    host_a, host_b = (rng.standard_normal(shape).astype(np.float32) for shape in ((M, K), (K, N)))
    a, b = make_a(host_a), make_b(host_b)
    expected = host_a.astype(float) @ host_b
    errors = []

    d = matmul(a, b)
    errors.append(error_of(d, expected))
    print(f"{name(a)} times {name(b)} is a {name(d)}, error: {errors[-1]:.1e} (at most {BOUND:.0e})")

    # The result can go into an array that is there, of any library again. It is returned as it was given.
    out = make_b(np.full((M, N), np.nan, np.float32))
    start = perf_counter()
    same = matmul(a, b, out=out)
    print(f"time: {perf_counter() - start:.6f} s until the call returned")
    assert same is out
    errors.append(error_of(out, expected))
    print(f"into a {name(out)}, error: {errors[-1]:.1e} (at most {BOUND:.0e})")

    # Views of any strides are right. What cuBLASLt cannot read in place is copied first, and the plan says so. (On the
    # CPU NumPy reads everything in place.)
    every_other, rows = a[:, ::2], make_b(host_b[::2].copy())
    with Matmul(every_other, rows) as mm:
        mm.plan()
        errors.append(error_of(mm.execute(), host_a[:, ::2].astype(float) @ host_b[::2]))
        print(f"every other column, error: {errors[-1]:.1e} (at most {BOUND:.0e})")
        print("copied:", "; ".join(mm.copies) or "nothing")

    # Where a copy would be a mistake it can be refused.
    try:
        matmul(every_other, rows, options={"copies": "refuse"})
    except InvalidArgumentError as error:
        print("refused:", error)
    else:
        print("refused: nothing")
    return 0 if max(errors) <= BOUND else 1


if __name__ == "__main__":
    sys.exit(main())
