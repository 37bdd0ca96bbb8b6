# SPDX-License-Identifier: Apache-2.0
"""The seam to Numba: every use of Numba's internals lives in this package.

Our objects and kernel functions carry a ``_numba_type_`` property, which Numba asks for when it meets them in
a kernel; that imports this package, which registers types and lowerings with Numba's CUDA target. So nothing
happens at import time and the order of imports does not matter. Another compiler would get a package of its
own beside this one.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nvmath_device.dtypes import ElementType
    from nvmath_device.matmul import Matmul
    from nvmath_device.shared_layouts import SharedLayout
    from nvmath_device.vector_types import VectorType


@cache
def _install() -> None:
    """Register everything, once, and make a compilation that is already running see it."""
    from nvmath_device.numba_backend.supported import check_numba_cuda

    check_numba_cuda()
    from numba.cuda.descriptor import cuda_target

    from nvmath_device.numba_backend import (  # noqa: F401  (registers on import)
        copies,
        fft,
        matmul,
        shared,
        shared_layout,
        shuffles,
        tensor_places,
        tile_order,
        tile_pipelines,
        vectors,
    )

    cuda_target.typing_context.refresh()
    cuda_target.target_context.refresh()


def matmul_type(value: Matmul) -> Any:
    """The Numba type of a :class:`~nvmath_device.Matmul`."""
    _install()
    from nvmath_device.numba_backend.matmul import MatmulType

    return MatmulType(value)


def fft_type(value: Any) -> Any:
    """The Numba type of an :class:`~nvmath_device.FFT`."""
    _install()
    from nvmath_device.numba_backend.fft import FftType

    return FftType(value)


def shared_type() -> Any:
    """The Numba type of ``nvmath_device.shared``."""
    _install()
    from nvmath_device.numba_backend.shared import SharedType

    return SharedType()


def shared_layout_type(layout: SharedLayout) -> Any:
    """The Numba type of a :class:`~nvmath_device.SharedLayout`."""
    _install()
    from nvmath_device.numba_backend.shared_layout import SharedLayoutType

    return SharedLayoutType(layout)


def dtype_type(element: ElementType) -> Any:
    """The Numba type of an element type used as a dtype in a kernel."""
    from numba.cuda import types

    from nvmath_device.numba_backend.element_types import element_numba

    return types.DType(element_numba(element))


def layout_type(layout: Any) -> Any:
    """The Numba type of a :class:`~nvmath_device.Layout`."""
    _install()
    from nvmath_device.numba_backend.tensor_types import LayoutType

    return LayoutType(layout)


def device_pipeline_type(pipeline: Any) -> Any:
    """The Numba type of a :class:`~nvmath_device.DevicePipeline`."""
    _install()
    from nvmath_device.numba_backend.tile_pipelines import DevicePipelineType

    return DevicePipelineType(pipeline.matmul, pipeline.depth)


def function_type(name: str) -> Any:
    """The Numba type of a :class:`~nvmath_device.kernel_calls.KernelFunction`."""
    _install()
    from nvmath_device.numba_backend.functions import FUNCTIONS

    return FUNCTIONS[name]


def vector_class(vector: VectorType) -> Any:
    """The Numba type of ``nvmath_device.float32x2`` and its kind."""
    _install()
    from nvmath_device.numba_backend.vectors import VectorClass

    return VectorClass(vector)
