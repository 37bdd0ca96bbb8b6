# SPDX-License-Identifier: Apache-2.0
"""Reported cases with more than 2^31 elements or bytes. One of them runs at a time, over all processes.

Numbers are small and whole, so that sums are exact, and what is compared is at the far end. All else is NaN.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import tempfile
from pathlib import Path

import numpy as np
import pytest

import nvmath_device.host as host
from nvmath_device.errors import InvalidArgumentError, UnsupportedError
from tests.host.cpu_products import bits_of
from tests.host.report_tools import assert_exact

pytestmark = [
    pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs a GPU with PyTorch"),
    pytest.mark.timeout(600),
]
GIB = 1 << 30


@contextlib.contextmanager
def room_for(gib: float):
    """This many GiB of GPU memory, which no other large test takes meanwhile; skipped where they are not free."""
    import torch

    with (Path(tempfile.gettempdir()) / "nvmath-device-large-tests.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info()
        if free < (gib + 1) * GIB:
            pytest.skip(f"needs a GPU with {gib + 1:.0f} GiB free; there are {free / GIB:.1f}")
        torch.manual_seed(79)
        try:
            yield torch
        finally:
            host.clear_plans()
            torch.cuda.synchronize()
            torch.cuda.empty_cache()


def whole_on_gpu(torch, shape, dtype):
    """-1, 0 and 1, made where they are used."""
    return torch.empty(shape, dtype=dtype, device="cuda").uniform_(-1.49, 1.49).round_()


def wide(tensor):
    return tensor.double().cpu().numpy()


def test_r079_a_matrix_of_2_to_the_31_elements_times_a_vector():
    m, k = 35783, 65133
    assert m * k > 2**31
    with room_for(9.5) as torch:
        a = whole_on_gpu(torch, (m, k), torch.float32)
        x = whole_on_gpu(torch, (k, 1), torch.float32)
        rows = [0, 1, 2**31 // k, 2**31 // k + 1, m - 2, m - 1]
        want = wide(a[rows]) @ wide(x)
        for vector, shape in ((x[:, 0], (m,)), (x, (m, 1))):
            out = torch.full(shape, float("nan"), device="cuda")
            host.matmul(a, vector, out=out)
            assert not out.isnan().any()
            assert_exact(wide(out[rows]), want.reshape(-1, *shape[1:]))


def test_r079_a_result_of_2_to_the_31_elements_and_its_mask():
    n, k = 46341, 64
    assert n * n > 2**31
    with room_for(5) as torch:
        a, b = (whole_on_gpu(torch, shape, torch.bfloat16) for shape in ((n, k), (k, n)))
        out = torch.full((n, n), float("nan"), dtype=torch.bfloat16, device="cuda")
        _, aux = host.matmul(a, b, epilog="RELU_AUX", out=out)
        mask = aux["relu_aux"]
        assert tuple(mask.shape) == (n, 5808)  # 16 bytes for every 128 columns begun
        for rows in (slice(0, 2), slice(2**31 // n - 1, None), slice(n - 2, None)):
            want = wide(a[rows]) @ wide(b)
            assert_exact(wide(out[rows]), np.maximum(want, 0))
            bits = bits_of(mask[rows].cpu().numpy(), *want.shape, "columns")
            assert np.array_equal(bits[want != 0], (want > 0)[want != 0])  # the bit of 0 is up to the algorithm
        assert not any(out[start : start + 4096].isnan().any() for start in range(0, n, 4096))


@pytest.mark.parametrize(("name", "stride"), [("float32", 2**29 + 4096), ("bfloat16", 2**31 + 4096)])
def test_r079_a_batch_whose_offsets_pass_2_to_the_31(name, stride):
    """Bytes for float32, for a result, too; elements for bfloat16."""
    with room_for(9.5) as torch:
        dtype = getattr(torch, name)
        shape, strides = (3, 64, 64), (stride, 64, 1)
        a = torch.full((2 * stride + 4096,), float("nan"), dtype=dtype, device="cuda").as_strided(shape, strides)
        a.copy_(whole_on_gpu(torch, shape, dtype))
        b = whole_on_gpu(torch, (3, 64, 64), dtype)
        want = wide(a) @ wide(b)
        for left, right, wanted in ((a, b, want), (b, a, wide(b) @ wide(a))):
            out = torch.full(shape, float("nan"), dtype=dtype, device="cuda")
            host.matmul(left, right, out=out)
            assert_exact(wide(out), wanted)
        if name == "float32":
            memory = torch.full((2 * stride + 4096,), float("nan"), dtype=dtype, device="cuda")
            host.matmul(a, b, out=memory.as_strided(shape, strides))
            assert_exact(wide(memory.as_strided(shape, strides)), want)
            assert memory[4096 : 2 * 4096].isnan().all()
            assert memory[-2 * 4096 : -4096].isnan().all()


def test_r079_an_extent_of_2_to_the_31_is_right_or_refused():
    m = 2**31 + 16
    with room_for(9) as torch:
        a = torch.ones((m, 1), dtype=torch.bfloat16, device="cuda")
        a[-1] = a[2**31 - 1] = 3
        b = torch.full((1, 1), 2.0, dtype=torch.bfloat16, device="cuda")
        out = torch.full((m, 1), float("nan"), dtype=torch.bfloat16, device="cuda")
        try:
            host.matmul(a, b, out=out)
        except (UnsupportedError, InvalidArgumentError) as error:
            assert str(m) in str(error)  # noqa: PT017
            torch.cuda.synchronize()  # the device is well
        else:
            places = [0, 2**31 - 1, 2**31, m - 1]
            assert_exact(wide(out[places, 0]), np.array([2, 6, 2, 6]))
            assert_exact(out.sum(dtype=torch.float64).item(), 2 * m + 8)


@pytest.mark.parametrize("rows", [16909322, 16909321])
@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_r080_a_column_of_a_matrix_of_2_to_the_31_elements(library, rows):
    """The column's last element is more than 2^31 elements behind its first; everything around it is NaN."""
    if not importlib.util.find_spec(library):
        pytest.skip("needs a GPU with CuPy")
    with room_for(9) as torch:
        big = torch.full((16909322, 127), float("nan"), device="cuda")
        big[:, 3] = whole_on_gpu(torch, (16909322,), torch.float32)
        want = big[:rows, 3].abs().sum(dtype=torch.float64).item()
        assert 2**23 < want < 2**24  # exact in float32, in any order
        if library == "cupy":
            import cupy

            torch.cuda.synchronize()
            column = cupy.from_dlpack(big)[:rows, 3:4]
        else:
            column = big[:rows, 3:4]
        for result in (host.matmul(column.T, column), host.matmul(column[:, 0], column)):
            assert float(result.reshape(-1)[0]) == want
        product = host.matmul(column, column[:1] * 2)  # and as long as this
        assert tuple(product.shape) == (rows, 1)
        assert float(product[-1, 0]) == 2 * float(column[-1, 0]) * float(column[0, 0])
