# SPDX-License-Identifier: Apache-2.0
"""Reported cases about fp8, on a GPU.

The tests are those of ``tests/host``, with arrays of libraries on a GPU.
"""

from __future__ import annotations

from tests.host.report_tools import gpu_library_with_fp8
from tests.host.test_reports_fp8 import (  # noqa: F401
    test_r084_scales_of_blocks_are_not_silently_read_as_tensor_wide,
    test_r084_scales_of_rows_are_refused_with_what_is_offered,
    test_r084_tensor_wide_scales,
    test_r085_extents_that_fp8_does_not_like_are_rounded_up,
    test_r085_leading_dimensions_of_every_order,
    test_r086_a_batch_of_fp8_products_with_a_bias,
    test_r088_the_type_of_an_aux_output_is_c_s_or_the_one_asked_for,
    test_r104_two_of_e5m2_are_refused_with_what_to_do,
    test_r104_without_a_result_type_the_result_has_a_s,
    test_r105_every_order_of_fp8_operands_is_right_and_says_what_it_copies,
)

library = gpu_library_with_fp8
