# SPDX-License-Identifier: Apache-2.0
"""Reported cases about addresses, strides, slices and overlaps, on a GPU.

The tests are those of ``tests/host``, with arrays of libraries on a GPU.
"""

from __future__ import annotations

from tests.host.report_tools import gpu_library
from tests.host.test_reports_strides import (  # noqa: F401
    test_r062_every_combination_of_alignments,
    test_r062_operands_that_are_aligned_worse_after_the_plan,
    test_r075_a_repeated_batch_is_read_in_place_and_repeated_rows_are_copied,
    test_r075_all_operands_repeated_at_once_and_over_a_batch,
    test_r075_operands_repeated_by_strides_of_zero,
    test_r078_a_c_that_overlaps_itself_is_read,
    test_r078_a_result_in_the_place_of_c_is_right,
    test_r078_a_result_that_overlaps_itself_is_refused,
    test_r078_a_result_that_would_overwrite_what_is_read_is_refused,
    test_r078_interleaved_columns_do_not_overlap,
    test_r093_r094_slices_and_reversals_are_what_numpy_says_they_are,
    test_r093_r094_slices_of_a_bias,
    test_r094_a_bias_repeated_by_a_stride_of_zero,
    test_r095_strides_of_axes_of_extent_one_mean_nothing,
)

library = gpu_library
