# SPDX-License-Identifier: Apache-2.0
"""Reported cases about what an object holds on to and needs, on a GPU.

The tests are those of ``tests/host``, with arrays of libraries on a GPU.
"""

from __future__ import annotations

from tests.host.report_tools import gpu_library
from tests.host.test_reports_lifetime import (  # noqa: F401
    no_collector,
    test_r065_a_bias_is_added_before_the_result_is_rounded,
    test_r072_an_exception_inside_a_with_block_lets_go_of_all_operands,
    test_r072_execution_needs_a_plan,
    test_r072_free_lets_go_of_all_operands,
    test_r072_released_and_replaced_operands_are_let_go_of,
    test_r072_results_and_operands_of_a_call_are_the_callers_alone,
    test_r072_the_end_of_a_with_block_lets_go_of_all_operands,
    test_r072_use_after_free_is_refused_in_words,
    test_r072_use_after_release_is_refused_until_all_operands_are_given,
    test_r082_a_plan_that_is_refused_leaves_the_one_there_is,
    test_r103_every_form_of_a_limit_gives_the_product,
    test_r103_what_is_no_limit_says_so_and_not_that_memory_is_short,
)

library = gpu_library
