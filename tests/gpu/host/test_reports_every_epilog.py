# SPDX-License-Identifier: Apache-2.0
"""The reported case about epilogs that exist for some types and not for others, on a GPU.

The tests are those of ``tests/host``, with arrays of libraries on a GPU.
"""

from __future__ import annotations

from tests.host.report_tools import gpu_library
from tests.host.test_reports_every_epilog import (  # noqa: F401
    test_r087_every_epilog_of_every_type_is_right_or_refused_by_name,
)

library = gpu_library
