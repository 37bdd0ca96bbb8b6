# SPDX-License-Identifier: Apache-2.0
"""``nvmath_device.shared.array`` in simulated kernels."""

from __future__ import annotations

import logging

import ml_dtypes
import numpy as np
import pytest
from numba import cuda
from numba.cuda import types

import nvmath_device as nd
from nvmath_device.errors import KernelTypingError


def collected(kernel, threads=2, blocks=1, dynamic=0):
    """What ``kernel(out)`` appends to a list, in every thread."""
    out = []
    kernel[blocks, threads, 0, dynamic](out)
    return out


def address(array):
    return array.__array_interface__["data"][0]


@pytest.mark.parametrize(
    ("dtype", "stored"),
    [
        ("float32", "float32"),
        (np.float16, "float16"),
        (np.dtype("int8"), "int8"),
        (np.complex64, "complex64"),
        (types.float64, "float64"),
        (types.complex128, "complex128"),
        (nd.tfloat32, "float32"),
        (nd.bfloat16, ml_dtypes.bfloat16),
        (ml_dtypes.bfloat16, ml_dtypes.bfloat16),
        (np.dtype(ml_dtypes.bfloat16), ml_dtypes.bfloat16),
        (types.bfloat16, ml_dtypes.bfloat16),
        (nd.float8_e4m3fn, "uint8"),
        (ml_dtypes.float8_e5m2, "uint8"),
        (
            np.dtype([("x", ml_dtypes.float8_e5m2), ("y", ml_dtypes.float8_e5m2)]),
            np.dtype([("x", np.uint8), ("y", np.uint8)]),
        ),
    ],
    ids=str,
)
def test_element_types(dtype, stored):
    @cuda.jit
    def kernel(out):
        out.append(nd.shared.array((2, 3), dtype))

    for array in collected(kernel):
        assert array.dtype == np.dtype(stored)
        assert array.shape == (2, 3)
        assert array.flags.c_contiguous
        assert array.flags.writeable


@pytest.mark.parametrize("dtype", [None, "nothing", object(), nd], ids=lambda d: type(d).__name__)
def test_what_names_no_element_type(dtype):
    @cuda.jit
    def kernel(out):
        nd.shared.array(4, dtype)

    with pytest.raises(KernelTypingError, match="wants an element type for dtype"):
        collected(kernel)


@pytest.mark.parametrize("shape", [-1, (2, 0), (), 2.0, "4", True], ids=str)
def test_what_is_no_shape(shape):
    @cuda.jit
    def kernel(out):
        nd.shared.array(shape, "float32")

    with pytest.raises(KernelTypingError, match="for shape"):
        collected(kernel)


@pytest.mark.parametrize("alignment", [16, 32, 128, 256])
def test_alignment(alignment):
    @cuda.jit
    def kernel(out):
        out.append(nd.shared.array(5, "float32", alignment))

    assert all(address(a) % alignment == 0 for a in collected(kernel))


@pytest.mark.parametrize("alignment", [0, 3, -16, "16"], ids=str)
def test_what_is_no_alignment(alignment):
    @cuda.jit
    def kernel(out):
        nd.shared.array(5, "float32", alignment=alignment)

    with pytest.raises(KernelTypingError, match="power of two for alignment"):
        collected(kernel)


def test_all_threads_of_a_block_get_the_same_array_and_other_blocks_another():
    @cuda.jit
    def kernel(out):
        array = nd.shared.array(4, "float32")
        out.append((cuda.blockIdx.x, array))

    got = collected(kernel, threads=4, blocks=3)
    assert len({id(array) for _, array in got}) == 3
    assert all(a is b for i, a in got for j, b in got if i == j)


def test_every_call_site_is_an_array_of_its_own():
    @cuda.jit
    def kernel(out):
        pair = nd.shared.array(4, "float32"), nd.shared.array(4, "float32")
        loop = [nd.shared.array(4, "float32") for _ in range(3)]
        out.append((pair, loop))

    for (first, second), loop in collected(kernel):
        assert not np.shares_memory(first, second)
        assert all(a is loop[0] for a in loop)
        assert not np.shares_memory(loop[0], first)


def test_functions_of_one_factory_have_arrays_of_their_own():
    def make(mm):
        @cuda.jit(device=True)
        def tile():
            return nd.shared.array(16, mm.a_value_type)

        return tile

    one, two = (
        make(nd.Matmul((4, 4, 4), "float32", "real", arrangement=(order,) * 3)) for order in ("col_major", "row_major")
    )

    @cuda.jit
    def kernel(out):
        out.append((one(), one(), two()))

    for first, again, other in collected(kernel):
        assert first is again
        assert not np.shares_memory(first, other)


def test_memory_that_nobody_wrote_is_conspicuous():
    names = ("float64", "float32", "float16", nd.bfloat16, "int32", nd.float8_e4m3fn, np.complex64)

    @cuda.jit
    def kernel(out):
        arrays = [nd.shared.array((3, 2), name) for name in names]  # one place, but seven types
        out.append([a.copy() for a in arrays])
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            for a in arrays:
                a[...] = 1

    for f8, f4, f2, bf, i4, fp8, c8 in collected(kernel, threads=3, blocks=2):
        assert all(np.isnan(a.astype(np.complex64)).all() for a in (f8, f4, f2, bf, c8))
        assert np.isnan(fp8.view(ml_dtypes.float8_e4m3fn).astype(np.float32)).all()
        assert (i4 == -1).all()


def test_dynamic_memory_is_that_of_the_launch():
    float32 = np.dtype("float32")

    @cuda.jit
    def kernel(out):
        ours = nd.shared.array(0, "float32")
        numbas = cuda.shared.array(0, float32)
        if cuda.threadIdx.x == 0:
            ours[1] = 7
        cuda.syncthreads()
        out.append((ours.size, nd.shared.array((0,), "float64").size, numbas[1], np.shares_memory(ours, numbas)))

    assert collected(kernel, dynamic=28) == [(7, 3, 7, True)] * 2


def test_no_dynamic_memory_is_empty():
    @cuda.jit
    def kernel(out):
        out.append(nd.shared.array(0, "float32").size)

    assert collected(kernel) == [0, 0]


def test_a_launch_is_logged_once(caplog):
    @cuda.jit
    def kernel(out):
        nd.shared.array(4, "float32")
        nd.shared.array(4, "float64")

    with caplog.at_level(logging.INFO, logger="nvmath_device"):
        collected(kernel, threads=3, blocks=2)
        collected(kernel)
    assert [r.event for r in caplog.records if hasattr(r, "event")] == ["simulated", "simulated"]
