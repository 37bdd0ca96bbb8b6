# SPDX-License-Identifier: Apache-2.0
"""``nvmath_device.float32x2`` and its kind in kernels: a dtype and a constructor in one object.

Numba's own ``cuda.float32x2`` is a constructor only, and refused as a dtype; its instances are what the arrays
here hold, so both go together. Numba has no vectors of half precision, so those are made the way it makes its
own.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from numba.cuda import types, vector_types
from numba.cuda.cudaimpl import registry as lowering_registry
from numba.cuda.datamodel import models
from numba.cuda.models import register_model
from numba.cuda.typing.templates import signature

from nvmath_device.errors import KernelTypingError
from nvmath_device.numba_backend.element_types import element_numba
from nvmath_device.vector_types import VectorType, float16x2, float16x4


class VectorClass(types.Callable, types.DTypeSpec, types.Opaque):
    """The Numba type of a :class:`VectorType` object."""

    def __init__(self, vector: VectorType) -> None:
        self.vector = vector
        super().__init__(f"class({vector!r})")

    @property
    def key(self) -> Any:
        return self.vector

    @property
    def dtype(self) -> Any:
        return vector_numba(self.vector)

    def get_call_type(self, context: Any, args: Any, kws: Any) -> Any:
        given = ", ".join([*map(str, args), *(f"{name}=..." for name in kws)])
        if kws or len(args) != self.vector.components:
            raise KernelTypingError(f"{self.vector!r} takes {self.vector.components} numbers, got ({given})")
        if not all(isinstance(a, types.Number) and not isinstance(a, types.Complex) for a in args):
            raise KernelTypingError(f"{self.vector!r} takes real numbers, got ({given})")
        return signature(self.dtype, *[element_numba(self.vector.element)] * self.vector.components)

    def get_call_signatures(self) -> Any:
        return [], True

    def get_impl_key(self, sig: Any) -> Any:
        return _CONSTRUCT


_CONSTRUCT = "nvmath_device.vector"

register_model(VectorClass)(models.OpaqueModel)
lowering_registry.lower_constant(VectorClass)(lambda context, builder, ty, value: context.get_dummy_value())


@cache
def vector_numba(vector: VectorType) -> Any:
    """The Numba type of one vector."""
    known = vector_types.vector_types.get(vector.name)
    if known is not None:
        return known
    return vector_types.make_vector_type(
        vector.name, element_numba(vector.element), tuple("xyzw"[: vector.components]), vector
    )


for _half in (float16x2, float16x4):  # registered now: a compilation that runs already would miss their attributes
    vector_numba(_half)


@lowering_registry.lower(_CONSTRUCT, types.VarArg(types.Any))
def _construct(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    from numba.cuda import cgutils

    struct = cgutils.create_struct_proxy(sig.return_type)(context, builder)
    for field, number in zip(sig.return_type.attr_names, args, strict=True):
        setattr(struct, field, number)
    return struct._getvalue()
