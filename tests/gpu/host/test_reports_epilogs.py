# SPDX-License-Identifier: Apache-2.0
"""Reported cases about bias, activations and their gradients, on a GPU.

The tests are those of ``tests/host``, with arrays of libraries on a GPU.
"""

from __future__ import annotations

from tests.host.report_tools import gpu_library
from tests.host.test_reports_epilogs import (  # noqa: F401
    test_r058_alpha_scales_the_product_under_a_bias,
    test_r059_beta_scales_c_and_not_the_bias,
    test_r060_a_batch_of_biases_of_another_size_is_refused_with_the_batched_forms,
    test_r060_a_square_result_does_not_confuse_rows_with_columns,
    test_r060_every_accepted_form_of_a_bias,
    test_r060_other_forms_are_refused_with_those_that_are_accepted,
    test_r061_a_bias_at_the_address_of_any_element,
    test_r066_gelu_is_the_tanh_form,
    test_r066_the_aux_output_is_the_value_before_gelu,
    test_r067_relu_makes_zero_of_nan_or_keeps_it_and_is_exact_otherwise,
    test_r089_bias_gradients_have_the_length_and_axis_of_their_operand,
)

library = gpu_library
