# SPDX-License-Identifier: Apache-2.0
"""``fits`` of descriptors: what they need, against what devices have."""

from __future__ import annotations

import pytest

import nvmath_device as nd
from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError, LaunchError

KIB = 1024


def matmul(m, n, k, precision="float32", **options):
    return nd.Matmul((m, n, k), precision, "real", arrangement=("row_major",) * 3, **{"block_size": 128, **options})


def block_fft(**options):
    return nd.FFT(**{"size": 4096, "precision": "float32", "fft_type": "c2c", "execution": "Block",
                     "direction": "forward", **options})  # fmt: skip


# -- products ------------------------------------------------------------------------------------------------


def test_three_matrices_with_their_padding():
    mm = matmul(16, 16, 16, ("float16", "float16", "float32"), leading_dimension=(24, 16, 20))
    assert mm.fits(sm=90).shared_bytes == 2 * 24 * 16 + 2 * 16 * 16 + 4 * 20 * 16


@pytest.mark.parametrize(("sm", "blocks"), [(90, 4), (80, 3), (89, 2), (75, 1)])
def test_blocks_that_run_at_a_time(sm, blocks):
    """48 KiB each; of 228, 164, 100 and 64 KiB, and 1 KiB of CUDA's own in each block but of sm_75."""
    fit = matmul(64, 64, 64).fits(sm=sm)
    assert fit.shared_bytes == 48 * KIB
    assert (fit.blocks_per_multiprocessor, fit.limited_by) == (blocks, "shared memory")


def test_threads_count_too():
    fit = matmul(8, 8, 8, block_size=1024).fits(sm=90)
    assert (fit.blocks_per_multiprocessor, fit.limited_by) == (2, "threads")


def test_a_product_that_is_too_large_says_how_much():
    fit = matmul(256, 256, 256, "float64").fits(sm=90)
    assert not fit
    assert (fit.misfits[0].need, fit.misfits[0].limit) == (3 * 8 * 256 * 256, 227 * KIB)
    with pytest.raises(LaunchError, match=r"Matmul\(256x256x256.*\n.*1,572,864 bytes.*sm_90 has 232,448"):
        fit.require()


def test_it_depends_on_the_target():
    mm = matmul(128, 64, 128)  # 64 + 32 + 32 KiB
    assert [bool(mm.fits(sm=sm)) for sm in (75, 80, 86, 90, "sm_90a", 100, 120)] == [
        False,
        True,
        False,
        *[True] * 3,
        False,
    ]


def test_what_the_kernel_needs_besides():
    mm = matmul(64, 64, 64)
    rest = 227 * KIB - 48 * KIB
    assert mm.fits(shared=rest, sm=90)
    assert not mm.fits(shared=rest + 1, sm=90)


def test_the_descriptors_own_target():
    mm = matmul(64, 64, 64, sm=75)
    assert mm.fits().blocks_per_multiprocessor == 1
    assert mm.fits(sm=90).blocks_per_multiprocessor == 4


# -- transforms ----------------------------------------------------------------------------------------------


def test_scratch_or_data():
    fft = block_fft(sm=90)
    assert fft.fits().shared_bytes == fft.shared_memory_size
    assert fft.fits(data_in_shared=True).shared_bytes == 4096 * 8
    assert fft.fits(shared=100).shared_bytes == fft.shared_memory_size + 100
    assert not fft.fits(shared=227 * KIB)


def test_all_ffts_of_a_block_count():
    assert block_fft(ffts_per_block=2, sm=90).fits(data_in_shared=True).shared_bytes == 2 * 4096 * 8


def test_a_transform_in_a_thread_takes_nothing():
    fft = nd.FFT(32, "float32", "c2c", "Thread", direction="forward")
    assert fft.fits(sm=90).shared_bytes == 0
    assert fft.fits(sm=90)
    with pytest.raises(InvalidArgumentError, match="data_in_shared: True is not allowed for Thread execution"):
        fft.fits(data_in_shared=True, sm=90)


# -- arguments -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("descriptor", [matmul(8, 8, 8), block_fft()], ids=["matmul", "fft"])
def test_arguments_are_checked(descriptor):
    with pytest.raises(ArgumentTypeError, match=r"shared: 1\.5 is a float; give a number of bytes"):
        descriptor.fits(shared=1.5, sm=90)
    with pytest.raises(InvalidArgumentError, match="shared: -1 is not allowed"):
        descriptor.fits(shared=-1, sm=90)
    with pytest.raises(InvalidArgumentError, match="sm: 33 is not a known compute capability"):
        descriptor.fits(sm=33)
