# SPDX-License-Identifier: Apache-2.0
"""Launches that fit and launches that do not, by numbers alone."""

from __future__ import annotations

import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import cuda
from numba.cuda.types import float32, void

import nvmath_device as nd
from nvmath_device.errors import InvalidArgumentError, LaunchError, LinkError
from nvmath_device.launch_limits import DeviceLimits, fit_of, too_much_static_shared
from nvmath_device.lto.cubin import Resources

SM90 = DeviceLimits.of_cc(90)
LIGHT = Resources(
    registers=32, static_shared_bytes=0, local_bytes=0, max_threads=1024, constant_bytes=0, parameter_bytes=8
)


def taking(**changes):
    return Resources(**{**LIGHT.as_dict(), **changes})


def refused(resources=LIGHT, limits=SM90, grid=(1, 1, 1), block=(128, 1, 1), shared=0, **options):
    """The error of a launch that is expected to be refused."""
    fit = fit_of("scale", resources, limits, grid=grid, block=block, shared=shared, **options)
    assert not fit
    assert fit.blocks_per_multiprocessor == 0
    with pytest.raises(LaunchError) as caught:
        fit.require()
    assert fit.why in str(caught.value).replace("\n  ", "\n")
    assert str(caught.value).startswith("scale cannot be launched:")
    assert caught.value.kernel == "scale"
    return caught.value


def fits(resources=LIGHT, limits=SM90, grid=(1, 1, 1), block=(128, 1, 1), shared=0, **options):
    fit = fit_of("scale", resources, limits, grid=grid, block=block, shared=shared, **options)
    assert fit
    assert fit.blocks_per_multiprocessor > 0
    assert fit.why == ""
    assert fit.require() is fit
    return fit


# -- blocks at a time ----------------------------------------------------------------------------------------

# What cuda_occupancy.h of CUDA 13.0, NVIDIA's own calculator, answers: compute capability; registers a thread, static
# and dynamic shared bytes, threads; blocks a multiprocessor, limited by. Drawn at random, a row for each limit.
OCCUPANCY = [
    ((7, 0), 24, 4747, 0, 809, 2, "threads"),
    ((7, 0), 128, 3052, 1186, 128, 4, "registers"),
    ((7, 0), 168, 0, 64709, 128, 1, "shared memory"),
    ((7, 0), 16, 0, 0, 30, 32, "blocks"),
    ((7, 0), 255, 0, 54810, 440, 0, ""),
    ((7, 2), 16, 0, 1934, 128, 16, "threads"),
    ((7, 2), 40, 0, 271, 512, 3, "registers"),
    ((7, 2), 16, 0, 98304, 128, 1, "shared memory"),
    ((7, 2), 32, 0, 0, 3, 32, "blocks"),
    ((7, 2), 255, 0, 82325, 1024, 0, ""),
    ((7, 5), 24, 0, 0, 1024, 1, "threads"),
    ((7, 5), 255, 27756, 2444, 256, 1, "registers"),
    ((7, 5), 168, 0, 65536, 128, 1, "shared memory"),
    ((7, 5), 32, 0, 61, 21, 16, "blocks"),
    ((7, 5), 168, 0, 65536, 512, 0, ""),
    ((8, 0), 24, 0, 2956, 512, 4, "threads"),
    ((8, 0), 64, 44644, 993, 642, 1, "registers"),
    ((8, 0), 240, 0, 130082, 128, 1, "shared memory"),
    ((8, 0), 24, 0, 0, 29, 32, "blocks"),
    ((8, 0), 255, 0, 0, 512, 0, ""),
    ((8, 6), 16, 0, 0, 626, 2, "threads"),
    ((8, 6), 47, 0, 0, 766, 1, "registers"),
    ((8, 6), 32, 19552, 2981, 190, 4, "shared memory"),
    ((8, 6), 40, 0, 0, 27, 16, "blocks"),
    ((8, 6), 168, 0, 41734, 503, 0, ""),
    ((8, 7), 24, 9366, 0, 512, 3, "threads"),
    ((8, 7), 168, 0, 0, 128, 3, "registers"),
    ((8, 7), 40, 18318, 40208, 512, 2, "shared memory"),
    ((8, 7), 32, 0, 0, 54, 16, "blocks"),
    ((8, 7), 128, 0, 2452, 1024, 0, ""),
    ((8, 9), 16, 40094, 7088, 1024, 1, "threads"),
    ((8, 9), 128, 0, 0, 128, 4, "registers"),
    ((8, 9), 64, 0, 101376, 512, 1, "shared memory"),
    ((8, 9), 32, 0, 2793, 3, 24, "blocks"),
    ((8, 9), 168, 33927, 67449, 512, 0, ""),
    ((9, 0), 17, 0, 1731, 128, 16, "threads"),
    ((9, 0), 128, 0, 1277, 512, 1, "registers"),
    ((9, 0), 32, 47261, 0, 256, 4, "shared memory"),
    ((9, 0), 40, 0, 513, 29, 32, "blocks"),
    ((9, 0), 255, 0, 232448, 454, 0, ""),
    ((10, 0), 24, 0, 0, 512, 4, "threads"),
    ((10, 0), 128, 0, 0, 512, 1, "registers"),
    ((10, 0), 32, 0, 139360, 1024, 1, "shared memory"),
    ((10, 0), 32, 0, 0, 27, 32, "blocks"),
    ((10, 0), 168, 48585, 0, 447, 0, ""),
    ((10, 3), 24, 18871, 2746, 794, 2, "threads"),
    ((10, 3), 168, 0, 0, 256, 1, "registers"),
    ((10, 3), 16, 0, 154861, 1024, 1, "shared memory"),
    ((10, 3), 32, 0, 0, 18, 32, "blocks"),
    ((10, 3), 255, 0, 232448, 1024, 0, ""),
    ((11, 0), 24, 0, 18, 128, 12, "threads"),
    ((11, 0), 255, 48465, 0, 128, 2, "registers"),
    ((11, 0), 168, 0, 203445, 184, 1, "shared memory"),
    ((11, 0), 138, 0, 185443, 1024, 0, ""),
    ((12, 0), 16, 14655, 837, 512, 3, "threads"),
    ((12, 0), 64, 3336, 296, 512, 2, "registers"),
    ((12, 0), 40, 0, 101376, 170, 1, "shared memory"),
    ((12, 0), 168, 0, 733, 1024, 0, ""),
    ((12, 1), 16, 0, 0, 689, 2, "threads"),
    ((12, 1), 128, 0, 2931, 512, 1, "registers"),
    ((12, 1), 16, 5268, 0, 59, 16, "shared memory"),
    ((12, 1), 255, 0, 2126, 1024, 0, ""),
]


@pytest.mark.parametrize(("cc", "registers", "static", "dynamic", "threads", "blocks", "limited_by"), OCCUPANCY)
def test_blocks_at_a_time_are_those_of_nvidias_calculator(cc, registers, static, dynamic, threads, blocks, limited_by):
    resources = taking(registers=registers, static_shared_bytes=static)
    fit = fit_of("scale", resources, DeviceLimits.of_cc(cc), block=threads, shared=dynamic)
    assert (fit.blocks_per_multiprocessor, fit.limited_by, bool(fit)) == (blocks, limited_by, blocks > 0)


# -- shared memory -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cc", "kib"), [(70, 96), (75, 64), (80, 163), (86, 99), (89, 99), (90, 227), (100, 227), (120, 99)]
)
def test_shared_memory_up_to_the_opt_in_limit_of_each_capability(cc, kib):
    limits, most = DeviceLimits.of_cc(cc), kib * 1024
    assert fits(limits=limits, shared=most).shared_bytes == most
    error = refused(limits=limits, shared=most + 16)
    assert (error.what, error.need, error.limit) == ("shared memory", most + 16, most)
    assert f"{most + 16:,}" in str(error)
    assert f"a block of sm_{cc} has {most:,}" in str(error)


@pytest.mark.parametrize("shared", [0, 49151, 49152, 49153, 232448 - 16])
def test_nothing_special_happens_at_48_kib_of_dynamic_memory(shared):
    assert fits(shared=shared)
    assert fits(taking(static_shared_bytes=16), shared=shared).shared_bytes == shared + 16


def test_static_arrays_count():
    error = refused(taking(static_shared_bytes=16), shared=232448)
    assert (error.need, error.limit) == (232448 + 16, 232448)
    assert "16 of static arrays, 232,464 in all" in str(error)


def test_negative_shared_memory_is_refused():
    assert "at least 0" in str(refused(shared=-1))


def test_static_arrays_above_48_kib_have_no_code_and_an_error_that_names_the_dynamic_way():
    def kernel(a):
        shared = cuda.shared.array(13000, float32)
        shared[cuda.threadIdx.x] = a[cuda.threadIdx.x]
        cuda.syncthreads()
        a[cuda.threadIdx.x] = shared[127 - cuda.threadIdx.x]

    with pytest.raises(LinkError) as caught:
        nd.compile(kernel, void(float32[:]), sm=90)
    error = too_much_static_shared("kernel", str(caught.value))
    assert isinstance(error, LaunchError)
    assert error.limit == 49152
    assert 52000 <= error.need <= 52000 + 16
    assert error.kernel == "kernel"
    assert "shared_layout" in str(error)


def test_other_failures_of_the_linker_are_not_about_shared_memory():
    assert too_much_static_shared("kernel", "nvJitLink: undefined reference to 'f'") is None


# -- threads -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [(1024, 1, 1), (1, 1024, 1), (1, 1, 64), (32, 32, 1), (4, 4, 64), (1, 1, 1)])
def test_blocks_that_cuda_allows(block):
    fits(block=block)


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ((1025, 1, 1), "1,025 threads along x; CUDA allows 1,024"),
        ((1, 1025, 1), "1,025 threads along y"),
        ((1, 1, 65), "65 threads along z; CUDA allows 64"),
        ((32, 33, 1), r"1,056 threads; sm_90 allows 1,024"),
        ((0, 1, 1), "0 threads along x; give at least 1"),
        ((-2, -2, 8), "-2 threads along x"),
    ],
)
def test_blocks_that_cuda_does_not_allow(block, words):
    assert re.search(words, str(refused(block=block)))


def test_launch_bounds():
    bounded = taking(max_threads=128)
    fits(bounded, block=(128, 1, 1))
    error = refused(bounded, block=(129, 1, 1))
    assert (error.what, error.need, error.limit) == ("threads", 129, 128)
    assert "compiled for at most 128" in str(error)


@pytest.mark.parametrize("grid", [(2**31 - 1, 1, 1), (1, 65535, 1), (1, 1, 65535)])
def test_grids_that_cuda_allows(grid):
    fits(grid=grid)


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        ((2**31, 1, 1), "2,147,483,648 blocks along x; CUDA allows 2,147,483,647"),
        ((1, 65536, 1), "65,536 blocks along y; CUDA allows 65,535"),
        ((1, 1, 65536), "along z"),
        ((0, 1, 1), "0 blocks along x; give at least 1"),
        ((5, -1, 1), "-1 blocks along y"),
    ],
)
def test_grids_that_cuda_does_not_allow(grid, words):
    assert words in str(refused(grid=grid))


# -- registers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("registers", "threads"),  # 64 Ki registers, in portions of 256 a warp, for four warps at a time
    [(64, 1024), (128, 512), (168, 384), (255, 256), (32, 1024)],
)
def test_registers_that_just_fit(registers, threads):
    fits(taking(registers=registers), block=(threads, 1, 1))


@pytest.mark.parametrize(
    ("registers", "threads", "need", "most_threads", "most_registers"),
    [
        (65, 1024, 72 * 1024, 896, 64),
        (128, 513, 128 * 640, 512, 96),
        (169, 384, 176 * 384, 256, 168),
        (255, 257, 256 * 384, 256, 168),
    ],
)
def test_registers_that_do_not(registers, threads, need, most_threads, most_registers):
    error = refused(taking(registers=registers), block=(threads, 1, 1))
    assert (error.what, error.need, error.limit) == ("registers", need, 65536)
    assert f"enough for {most_threads:,} threads" in str(error)
    assert f"max_registers={most_registers}" in str(error)
    fits(taking(registers=registers), block=(most_threads, 1, 1))
    fits(taking(registers=most_registers), block=(threads, 1, 1))


def test_registers_of_a_block_are_what_its_warps_are_given():
    assert fits(taking(registers=33), block=(65, 1, 1)).registers == 3 * 40 * 32


# -- cooperative launches ------------------------------------------------------------------------------------


def device(**changes):
    values = {
        "multiprocessors": 132,
        "sm": "sm_90",
        "max_threads_per_block": 1024,
        "max_block": (1024, 1024, 64),
        "max_grid": (2**31 - 1, 65535, 65535),
        "max_shared_bytes": 232448,
        "reserved_shared_bytes": 1024,
        "registers_per_block": 65536,
        "blocks_per_multiprocessor": 32,
        "threads_per_multiprocessor": 2048,
        "registers_per_multiprocessor": 65536,
        "shared_bytes_per_multiprocessor": 233472,
    }
    return DeviceLimits(**{**values, **changes})


def test_blocks_of_a_cooperative_launch_must_all_run_at_once():
    fits(limits=device(), grid=(2 * 132, 1, 1), block=(1024, 1, 1), cooperative=True)
    error = refused(limits=device(), grid=(2 * 132 + 1, 1, 1), block=(1024, 1, 1), cooperative=True)
    assert (error.what, error.need, error.limit) == ("blocks", 265, 264)
    assert "limited by threads" in str(error)


def test_without_a_device_nobody_knows_how_many_blocks_run_at_once():
    fits(grid=(10**6, 1, 1), cooperative=True)


# -- limits --------------------------------------------------------------------------------------------------


def test_limits_of_a_device_are_its_answers():
    # By the numbers of CUdevice_attribute in cuda.h; values made up, each its own.
    answers = {1: 512, 2: 513, 3: 514, 4: 60, 5: 70000, 6: 7001, 7: 7002, 12: 32768, 16: 132, 39: 1536, 75: 9, 76: 0}
    answers |= {81: 101000, 82: 65000, 97: 99000, 106: 24, 111: 1000}
    assert DeviceLimits.of_device(answers.__getitem__) == DeviceLimits(
        sm="sm_90",
        max_threads_per_block=512,
        max_block=(513, 514, 60),
        max_grid=(70000, 7001, 7002),
        max_shared_bytes=99000,
        reserved_shared_bytes=1000,
        registers_per_block=32768,
        blocks_per_multiprocessor=24,
        threads_per_multiprocessor=1536,
        registers_per_multiprocessor=65000,
        shared_bytes_per_multiprocessor=101000,
        multiprocessors=132,
    )


def test_numbers_of_attributes_are_those_of_cuda():
    from cuda.bindings.driver import CUdevice_attribute as attribute

    from nvmath_device.launch_limits import _ATTRIBUTES

    names = {
        "max_threads_per_block": "MAX_THREADS_PER_BLOCK",
        "max_block_x": "MAX_BLOCK_DIM_X",
        "max_block_y": "MAX_BLOCK_DIM_Y",
        "max_block_z": "MAX_BLOCK_DIM_Z",
        "max_grid_x": "MAX_GRID_DIM_X",
        "max_grid_y": "MAX_GRID_DIM_Y",
        "max_grid_z": "MAX_GRID_DIM_Z",
        "registers_per_block": "MAX_REGISTERS_PER_BLOCK",
        "multiprocessors": "MULTIPROCESSOR_COUNT",
        "threads_per_multiprocessor": "MAX_THREADS_PER_MULTIPROCESSOR",
        "major": "COMPUTE_CAPABILITY_MAJOR",
        "minor": "COMPUTE_CAPABILITY_MINOR",
        "shared_bytes_per_multiprocessor": "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR",
        "registers_per_multiprocessor": "MAX_REGISTERS_PER_MULTIPROCESSOR",
        "max_shared_bytes": "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN",
        "blocks_per_multiprocessor": "MAX_BLOCKS_PER_MULTIPROCESSOR",
        "reserved_shared_bytes": "RESERVED_SHARED_MEMORY_PER_BLOCK",
    }
    assert {n: int(getattr(attribute, f"CU_DEVICE_ATTRIBUTE_{name}")) for n, name in names.items()} == _ATTRIBUTES


@pytest.mark.parametrize("cc", [90, (9, 0), "sm_90", "9.0"])
def test_a_capability_in_any_spelling(cc):
    assert DeviceLimits.of_cc(cc) == SM90


def test_an_unknown_capability_is_refused():
    with pytest.raises(InvalidArgumentError, match="cc: 33 is not a known compute capability"):
        DeviceLimits.of_cc(33)


# -- saying it -----------------------------------------------------------------------------------------------


def test_all_reasons_are_told_at_once():
    error = refused(taking(registers=200, static_shared_bytes=64), block=(512, 1, 1), grid=(1, 1, 10**6), shared=232448)
    text = str(error)
    assert text.count("\n") == 3
    assert all(word in text for word in ("grid:", "shared:", "registers:"))


def test_a_fit_in_words():
    assert repr(fits(block=(1024, 1, 1))) == "Fit(yes: 2 blocks a multiprocessor, limited by threads)"
    fit = fit_of("scale", LIGHT, SM90, block=2048)
    assert repr(fit) == f"Fit(no: {fit.why})"
    assert fit.why == "block: (2048, 1, 1) has 2,048 threads along x; CUDA allows 1,024"


def test_grid_and_block_are_read_like_those_of_a_launch():
    as_number = fit_of("scale", LIGHT, SM90, grid=4, block=64)
    assert as_number == fit_of("scale", LIGHT, SM90, grid=(4, 1), block=[64]) == fit_of("scale", LIGHT, SM90, block=64)


@pytest.mark.parametrize("block", [(), (1, 2, 3, 4), "many", None, ("x",)])
def test_what_is_no_block_is_refused(block):
    with pytest.raises(InvalidArgumentError, match="block: "):
        fit_of("scale", LIGHT, SM90, block=block)


def test_the_error_is_a_value_error_and_can_be_pickled():
    error = refused(block=(1025, 1, 1))
    assert isinstance(error, ValueError)
    assert isinstance(error, nd.errors.NvmathDeviceError)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), vars(again)) == (str(error), vars(error))


# -- the short way and the long way --------------------------------------------------------------------------

counts = st.integers(-1, 70000)


@given(
    cc=st.sampled_from([75, 80, 86, 90, 120]),
    registers=st.integers(0, 255),
    static=st.integers(0, 49152),
    most=st.sampled_from([32, 128, 1000, 1024]),
    grid=st.tuples(counts, counts, counts),
    block=st.tuples(st.integers(-1, 1100), st.integers(-1, 40), st.integers(-1, 70)),
    shared=st.integers(-1, 240000),
)
def test_any_launch_fits_or_says_why(cc, registers, static, most, grid, block, shared):
    resources, limits = (
        taking(registers=registers, static_shared_bytes=static, max_threads=most),
        DeviceLimits.of_cc(cc),
    )
    threads = block[0] * block[1] * block[2]
    warps = -(-threads // 128) * 4  # registers are counted for whole groups of four warps, 256 at a time
    can_run = (
        all(0 < n <= limit for n, limit in zip(grid + block, (2**31 - 1, 65535, 65535, 1024, 1024, 64), strict=True))
        and threads <= most
        and 0 <= shared <= limits.max_shared_bytes - static
        and -(-registers * 32 // 256) * 256 * warps <= 65536
    )
    (fits if can_run else refused)(resources, limits, grid, block, shared)


# -- what the kernel asks of a launch ------------------------------------------------------------------------

ANY_128 = {"block_dim": [128, 1, 1], "exact": False}
EXACTLY = {"block_dim": [16, 8, 1], "exact": True}


@pytest.mark.parametrize("block", [128, (64, 2), (8, 4, 4)])
def test_a_descriptors_number_of_threads(block):
    fits(block=block, blocks=(ANY_128,))


@pytest.mark.parametrize(
    ("wanted", "block", "words", "need", "limit"),
    [
        ([ANY_128], 64, "128 threads a block", 128, 64),
        ([ANY_128], 256, "128 threads a block", 128, 256),
        ([EXACTLY], 128, r"a block of \(16, 8, 1\)", 128, 128),
        ([ANY_128, EXACTLY], (64, 1, 4), r"(?s)128 threads a block.*a block of \(16, 8, 1\)", 128, 256),
    ],
)
def test_a_block_that_is_not_the_descriptors(wanted, block, words, need, limit):
    error = refused(taking(max_threads=128), block=block, blocks=wanted)
    assert re.search(words, str(error))
    assert "block_dim" in str(error)
    assert (error.what, error.need, error.limit) == ("block", need, limit)


def test_layouts_need_their_dynamic_memory():
    fits(shared=5000, least_shared=5000)
    error = refused(shared=4999, least_shared=5000)
    assert (error.what, error.need, error.limit) == ("shared memory", 5000, 4999)
    assert "shared_layout" in str(error)
