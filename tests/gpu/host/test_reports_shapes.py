# SPDX-License-Identifier: Apache-2.0
"""Reported cases about shapes, on a GPU.

The tests are those of ``tests/host``, with arrays of libraries on a GPU.
"""

from __future__ import annotations

from tests.host.report_tools import gpu_library
from tests.host.test_reports_shapes import (  # noqa: F401
    test_r063_a_fused_bias_of_a_very_tall_result,
    test_r064_ordinary_shapes_of_training_in_tn_layout,
    test_r069_vectors_are_multiplied_as_by_numpy,
    test_r069_vectors_with_a_bias,
    test_r073_a_product_without_terms_goes_through_its_epilog,
    test_r073_a_product_without_terms_is_zero,
    test_r074_an_empty_bias_gradient_is_right_or_refused,
    test_r074_an_empty_operand_is_not_replaced_by_one_of_another_shape,
    test_r074_empty_results_have_shape_type_and_place,
    test_r076_batches_broadcast_as_in_numpy,
    test_r076_batches_that_do_not_broadcast_are_refused_with_the_rule,
    test_r077_a_batch_with_one_bias_for_all_or_one_for_each,
)

library = gpu_library
