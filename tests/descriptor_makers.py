# SPDX-License-Identifier: Apache-2.0
"""Plain descriptors with some arguments changed, for the tests of descriptors."""

from __future__ import annotations

import nvmath_device as nd
from nvmath_device.descriptors import GemmDescriptor

COL, ROW = "col_major", "row_major"


def gemm(**changes):
    """A plain fp32 8 x 4 x 16 descriptor with some fields changed."""
    return GemmDescriptor(**{"size": (8, 4, 16), "precision": "float32", **changes})


def matmul(**changes):
    """The same as a Matmul, all column-major."""
    base = {"size": (8, 4, 16), "precision": "float32", "data_type": "real"}
    if "transpose_mode" not in changes:
        base["arrangement"] = (COL, COL, COL)
    return nd.Matmul(**{**base, **changes})


def fft(**changes):
    base = {
        "size": 128,
        "precision": "float32",
        "fft_type": "c2c",
        "execution": "Block",
        "direction": "forward",
    }
    return nd.FFT(**{**base, **changes})


def words(error):
    return str(error.value)
