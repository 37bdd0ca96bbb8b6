# SPDX-License-Identifier: Apache-2.0
"""Short vectors for kernels: ``float16x2`` ... ``uint32x4``, by the names nvmath-python gives them.

Nothing in this package needs them, complex and plain arrays do; they let code that uses them run, and move
16 bytes at once. In a kernel each is a dtype for shared and local arrays and a constructor; its elements have
the attributes x, y (, z, w).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from nvmath_device.dtypes import ElementType, float16, float32, float64, uint32
from nvmath_device.kernel_calls import call_in_kernel

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class VectorType:
    """``components`` numbers of type ``element``, stored together."""

    name: str
    element: ElementType
    components: int

    def __repr__(self) -> str:
        return f"nvmath_device.{self.name}"

    @property
    def itemsize(self) -> int:
        """Bytes of one vector."""
        return self.element.itemsize * self.components

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """NumPy record dtype with fields x, y (, z, w), which are attributes of its arrays' elements, too.

        NumPy takes the object itself for this dtype, so Numba's simulator makes such arrays of it.
        """
        import numpy as np

        fields = [(field, self.element.dtype) for field in "xyzw"[: self.components]]
        return np.dtype((np.record, fields))

    def __call__(self, *numbers: Any) -> Any:
        """Kernel side: a vector of ``components`` numbers."""
        return call_in_kernel(self.name, "vector", self, numbers)

    @property
    def _numba_type_(self) -> Any:
        from nvmath_device.numba_backend import vector_class

        return vector_class(self)


float16x2 = VectorType("float16x2", float16, 2)
float16x4 = VectorType("float16x4", float16, 4)
float32x2 = VectorType("float32x2", float32, 2)
float32x4 = VectorType("float32x4", float32, 4)
float64x2 = VectorType("float64x2", float64, 2)
float64x4 = VectorType("float64x4", float64, 4)
uint32x4 = VectorType("uint32x4", uint32, 4)
