# SPDX-License-Identifier: Apache-2.0
"""Matrix products of arrays, with cuBLASLt on a GPU or with NumPy on the CPU: :class:`Matmul` and :func:`matmul`.

Nothing is imported before it is used; Numba never is.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "Algorithm": "algorithms",
    "CudaDataType": "options",
    "Matmul": "product",
    "MatmulComputeType": "options",
    "MatmulEpilog": "epilogs",
    "MatmulEpilogPreferences": "options",
    "MatmulInnerShape": "options",
    "MatmulNumericalImplFlags": "options",
    "MatmulOptions": "options",
    "MatmulPlanPreferences": "options",
    "MatmulQuantizationScales": "options",
    "MatmulReductionScheme": "options",
    "clear_plans": "one_call",
    "load_algorithms": "algorithm_store",
    "matmul": "one_call",
    "matrix_qualifiers_dtype": "options",
    "save_algorithms": "algorithm_store",
}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"nvmath_device.host.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
