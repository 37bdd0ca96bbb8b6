# SPDX-License-Identifier: Apache-2.0
"""Arrays of random numbers on the GPU, of any library, and whether a product of two of them is right."""

from __future__ import annotations

import numpy as np
import pytest

from tests.gpu.host.libraries import CUPY, TORCH, place, to_numpy
from tests.gpu.host.product_cases import array
from tests.gpu.host.product_checks import norm_error

LIBRARIES = pytest.mark.parametrize("library", [CUPY, TORCH])
BIG = 512, 384, 1024  # extents m, n, k for which there are several algorithms


def new(library, *shape, seed=0, name="float32", layout=None):
    return place(library, array(np.random.default_rng(seed), shape, name, layout), "cuda").array


def big(library, name="float16"):
    m, n, k = BIG
    return new(library, m, k, name=name), new(library, k, n, seed=1, name=name)


def product_of(a, b):
    return to_numpy(a).astype(float) @ to_numpy(b).astype(float)


def right(result, a, b, bound=1e-6):
    assert norm_error(to_numpy(result), product_of(a, b)) < bound
