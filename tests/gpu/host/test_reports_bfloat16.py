# SPDX-License-Identifier: Apache-2.0
"""The reported case about bfloat16 tensors of PyTorch: in products of whole arrays, and on their way into kernels."""

from __future__ import annotations

import importlib.util

import ml_dtypes
import numpy as np
import pytest
from numba import cuda

import nvmath_device as nd
import nvmath_device.host as host
from tests.host.cpu_products import normal
from tests.host.report_tools import BF16, Library, assert_product, expected

pytestmark = pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs a GPU with PyTorch")
torch_library = Library("torch", "gpu")


def test_r099_bfloat16_tensors_are_multiplied_where_they_are():
    rng = np.random.default_rng(99)
    a, b = normal(rng, (64, 64), BF16), normal(rng, (64, 64), BF16)
    d = host.matmul(torch_library.put(a), torch_library.put(b), options={"copies": "refuse"})
    assert str(d.dtype) == "torch.bfloat16"
    assert_product(torch_library.get(d), *expected(a, b), 64)


def test_r099_bfloat16_tensors_reach_a_kernel_by_a_view_of_their_bits():
    import torch

    mm = nd.Matmul(
        size=(64, 64, 64), precision=("bfloat16", "bfloat16", "float32"), data_type="real",
        arrangement=("row_major",) * 3, block_size=128,
    )  # fmt: skip

    @cuda.jit
    def kernel(a, b, c):
        sa = nd.shared.array(mm.a_size, mm.a_value_type)
        sb = nd.shared.array(mm.b_size, mm.b_value_type)
        sc = nd.shared.array(mm.c_size, mm.c_value_type)
        mm.load_a(a, sa)
        mm.load_b(b, sb)
        cuda.syncthreads()
        mm.execute(1.0, sa, sb, 0.0, sc)
        cuda.syncthreads()
        mm.store_c(sc, c)

    rng = np.random.default_rng(990)
    a, b = normal(rng, (64, 64), BF16), normal(rng, (64, 64), BF16)
    tensors = [torch_library.put(x) for x in (a, b)]
    seen = [cuda.as_cuda_array(x.view(torch.int16)).view(ml_dtypes.bfloat16) for x in tensors]
    assert [x.device_ctypes_pointer.value for x in seen] == [x.data_ptr() for x in tensors]  # nothing is copied
    c = torch.full((64, 64), float("nan"), device="cuda")
    torch.cuda.synchronize()
    kernel[1, mm.block_size](*seen, cuda.as_cuda_array(c))
    cuda.synchronize()
    assert_product(c.cpu().numpy(), *expected(a, b), 64)


def test_r099_a_tensor_itself_as_a_kernels_argument_is_refused_or_read_right():
    """The CUDA Array Interface has no name for bfloat16, so whether it works is up to PyTorch and Numba."""
    tensor = torch_library.put(np.full((8, 8), 3.0, BF16))

    @cuda.jit
    def kernel(x, y):
        y[0] = float(x[7, 7])

    y = cuda.to_device(np.zeros(1, np.float32))
    try:
        kernel[1, 1](tensor, y)
    except Exception:  # before the launch
        assert y.copy_to_host()[0] == 0
    else:
        assert y.copy_to_host()[0] == 3
