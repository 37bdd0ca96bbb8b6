# SPDX-License-Identifier: Apache-2.0
"""What is read from cubins and reckoned of launches, against what the driver says and does."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from cuda.bindings import driver
from numba import cuda
from numba.cuda.types import float32, int32, void

import nvmath_device as nd
from nvmath_device.errors import KernelExecutionError
from nvmath_device.launch_limits import fit_of
from nvmath_device.lto.cubin import read_resources

FUNCTION = driver.CUfunction_attribute


def asked(call, *arguments):
    status, *values = call(*arguments)
    assert status == 0, status
    return values[0] if values else None


def device():
    cuda.current_context()
    return asked(driver.cuCtxGetDevice)


def limits():
    attribute = driver.CUdevice_attribute
    return nd.DeviceLimits.of_device(lambda n: asked(driver.cuDeviceGetAttribute, attribute(n), device()))


def light(x):
    x[cuda.threadIdx.x] = cuda.blockDim.x


def static(x):
    shared = cuda.shared.array(1024, float32)
    shared[cuda.threadIdx.x] = x[cuda.threadIdx.x]
    cuda.syncthreads()
    x[cuda.threadIdx.x] = shared[cuda.blockDim.x - 1 - cuda.threadIdx.x]


def large_static(x):
    shared = cuda.shared.array(12288, float32)  # 48 KiB, the most
    shared[cuda.threadIdx.x] = x[cuda.threadIdx.x]
    cuda.syncthreads()
    x[cuda.threadIdx.x] = shared[cuda.blockDim.x - 1 - cuda.threadIdx.x]


def local(x):
    kept = cuda.local.array(100, int32)
    for i in range(cuda.blockDim.x):
        kept[int(x[i]) % 100] = i
    for i in range(cuda.blockDim.x):
        x[i] = kept[(i * 7) % 100]


LAYOUT = nd.shared_layout(bytes=7, floats=(np.float32, 64), table=(np.float64, (64, 3), 1024))


def layout_and_static(x):
    i = cuda.threadIdx.x
    tiny = cuda.shared.array(3, float32)
    small, floats, table = LAYOUT.bytes(), LAYOUT.floats(), LAYOUT.table()
    if i < 3:
        tiny[i] = 1000 * (i + 1)
    if i < 7:
        small[i] = i
    floats[i] = x[i]
    for k in range(3):
        table[i, k] = 10 * k
    cuda.syncthreads()
    j = cuda.blockDim.x - 1 - i
    x[i] = floats[j] + table[j, 2] + small[j % 7] + tiny[j % 3]


KERNELS = {
    "light": (light, {}),
    "bounded": (light, {"launch_bounds": 96}),
    "static": (static, {}),
    "large_static": (large_static, {}),
    "local": (local, {}),
    "layout_and_static": (layout_and_static, {}),
}


@cache
def loaded(name):
    """(resources as read from the file, the driver's kernel)"""
    function, options = KERNELS[name]
    made = nd.compile(function, void(float32[:]), sm=limits().sm, **options)
    library = asked(driver.cuLibraryLoadData, made.code, [], [], 0, [], [], 0)
    kernel = asked(driver.cuLibraryGetKernel, library, made.entry.encode())
    return read_resources(made.code, made.entry), kernel


def attribute_of(kernel, name):
    return asked(driver.cuKernelGetAttribute, getattr(FUNCTION, f"CU_FUNC_ATTRIBUTE_{name}"), kernel, device())


def allow(kernel, dynamic):
    asked(
        driver.cuKernelSetAttribute, FUNCTION.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, dynamic, kernel, device()
    )


@pytest.mark.parametrize("name", KERNELS)
def test_resources_are_the_drivers(name):
    resources, kernel = loaded(name)
    assert resources.registers == attribute_of(kernel, "NUM_REGS")
    assert resources.static_shared_bytes == attribute_of(kernel, "SHARED_SIZE_BYTES")
    assert resources.local_bytes == attribute_of(kernel, "LOCAL_SIZE_BYTES")
    assert resources.constant_bytes == attribute_of(kernel, "CONST_SIZE_BYTES")
    assert resources.max_threads == attribute_of(kernel, "MAX_THREADS_PER_BLOCK")  # none takes many registers


def test_limits_of_this_device_are_those_of_its_capability():
    found = limits()
    known = nd.DeviceLimits.of_cc(found.sm)
    assert {**vars(found), "multiprocessors": None} == vars(known)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("threads", [32, 96, 256, 1024])
@pytest.mark.parametrize("part", [0, 0.1, 0.3, 1])
def test_blocks_at_a_time_are_the_drivers(name, threads, part):
    resources, kernel = loaded(name)
    most = limits().max_shared_bytes - resources.static_shared_bytes
    allow(kernel, most)
    shared = int(part * most)
    fit = fit_of(name, resources, limits(), block=threads, shared=shared)
    function = asked(driver.cuKernelGetFunction, kernel)
    status, blocks = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, threads, shared)
    # The calculator does not look at the bound on threads. A launch does: see the next test.
    assert fit.blocks_per_multiprocessor == (blocks if status == 0 and threads <= resources.max_threads else 0)


@pytest.mark.parametrize("name", ["light", "bounded", "static", "large_static"])
def test_what_is_refused_is_what_the_driver_refuses(name):
    resources, kernel = loaded(name)
    most = limits().max_shared_bytes - resources.static_shared_bytes
    allow(kernel, most)
    x = cuda.to_device(np.zeros(1024, np.float32))
    address = x.__cuda_array_interface__["data"][0]
    # One array of one dimension: two words that nothing reads, items, bytes of one, address, extent, stride.
    words = np.array([0, 0, 1024, 4, address, 1024, 4], np.uint64)
    packed = np.array([words.ctypes.data + 8 * i for i in range(7)], np.uint64)
    grids = [(1, 1, 1), (1, 65535, 1), (1, 65536, 1)]
    blocks = [(32, 1, 1), (96, 1, 1), (97, 1, 1), (1024, 1, 1), (1025, 1, 1), (1, 1, 64), (1, 1, 65), (32, 33, 1)]
    for grid, block, shared in [(g, b, s) for g in grids for b in blocks for s in (0, most, most + 16)]:
        function = asked(driver.cuKernelGetFunction, kernel)
        (status,) = driver.cuLaunchKernel(function, *grid, *block, shared, 0, packed.ctypes.data, 0)
        cuda.synchronize()
        fit = fit_of(name, resources, limits(), grid=grid, block=block, shared=shared)
        assert bool(fit) == (status == 0), (grid, block, shared, status, fit)


def test_numbas_own_kernels_may_use_a_layout_above_48_kib():
    large = nd.shared_layout(x=(np.float32, 25_000))

    @cuda.jit
    def reverse(x):
        i = cuda.threadIdx.x
        large.x()[24_999 - i] = x[i]
        cuda.syncthreads()
        x[i] = large.x()[25_000 - 64 + i]

    @cuda.jit
    def by_hand(x):
        i, all_ = cuda.threadIdx.x, nd.shared.array(0, np.float32)
        all_[24_999 - i] = x[i]
        cuda.syncthreads()
        x[i] = all_[25_000 - 64 + i]

    for kernel in (reverse, by_hand):
        x = np.random.default_rng(4).standard_normal(64).astype(np.float32)
        on_gpu = cuda.to_device(x)
        kernel[1, 64, 0, large.size](on_gpu)
        assert np.array_equal(on_gpu.copy_to_host(), x[::-1])


def test_parts_of_a_layout_beside_static_arrays():
    x = np.random.default_rng(3).standard_normal(64).astype(np.float32)
    on_gpu = cuda.to_device(x)
    cuda.jit(layout_and_static)[1, 64, 0, LAYOUT.size](on_gpu)
    i = np.arange(64)[::-1]
    assert np.array_equal(
        on_gpu.copy_to_host(), (x[::-1].astype(float) + 20 + i % 7 + 1000 * (i % 3 + 1)).astype(np.float32)
    )


def test_a_debugged_kernel_notices_too_little_dynamic_memory():
    kernel = cuda.jit(debug=True, opt=False)(layout_and_static)
    x = cuda.to_device(np.zeros(64, np.float32))
    kernel[1, 64, 0, LAYOUT.size](x)
    cuda.synchronize()
    with pytest.raises(KernelExecutionError, match="ends 2560 bytes into the dynamic shared memory"):
        kernel[1, 64, 0, LAYOUT.size - 1](x)
