# SPDX-License-Identifier: Apache-2.0
"""Reported cases about element types, on a GPU.

The tests are those of ``tests/host``, with arrays of libraries on a GPU.
"""

from __future__ import annotations

from tests.host.report_tools import gpu_library
from tests.host.test_reports_types import (  # noqa: F401
    test_r070_an_out_of_another_type_is_planned_for_and_not_written_as_if_it_were_the_usual,
    test_r070_documented_combinations_compute_and_the_scale_type_is_found,
    test_r070_other_combinations_are_refused_before_anything_is_planned,
)

library = gpu_library
