# SPDX-License-Identifier: Apache-2.0
"""Types of layouts and tensors in kernels."""

from __future__ import annotations

from typing import Any

from numba.cuda import types
from numba.cuda.cudadecl import registry as typing_registry
from numba.cuda.cudaimpl import registry as lowering_registry
from numba.cuda.datamodel import models
from numba.cuda.models import register_model
from numba.cuda.typing.templates import AttributeTemplate

from nvmath_device.frozen import replace
from nvmath_device.matmul import Matmul
from nvmath_device.numba_backend.element_types import value_numba
from nvmath_device.numba_backend.objects import ConstantType, register_constant, settled_target
from nvmath_device.tensor_layouts import GMEM, RMEM, Layout
from nvmath_device.tensor_plans import TensorPlan
from nvmath_device.tensor_rules import Operand

_NUMBERS = ("size", "cosize", "alignment")


def plan_of(matmul: Matmul) -> TensorPlan:
    """The tensors of a descriptor, for the target of the running compilation."""
    return TensorPlan(*matmul.resolved(settled_target(matmul.block_execution.sm, matmul)))


class LayoutType(ConstantType):
    """A layout; the whole of it is known when the kernel is compiled."""

    value: Layout

    @property
    def layout(self) -> Layout:
        return self.value

    def for_target(self) -> Layout:
        mm = self.value.matmul
        settled = mm.resolved(settled_target(mm.block_execution.sm, mm))
        return replace(self.value, matmul=Matmul.from_descriptor(*settled))


register_constant(LayoutType, _NUMBERS, {})


class RuntimeLayoutType(types.Type):
    """A layout in global memory whose leading dimension is a value, an int64."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        super().__init__(f"{layout!r} with a leading dimension of its own")


@register_model(RuntimeLayoutType)
class _RuntimeModel(models.PrimitiveModel):
    def __init__(self, manager: Any, typ: Any) -> None:
        super().__init__(manager, typ, manager.lookup(types.int64).get_value_type())


@typing_registry.register_attr
class _RuntimeAttributes(AttributeTemplate):
    key = RuntimeLayoutType

    def generic_resolve(self, typ: Any, attr: str) -> Any:
        return types.int64 if attr in _NUMBERS else None


@lowering_registry.lower_getattr_generic(RuntimeLayoutType)
def _runtime_attribute(context: Any, builder: Any, typ: Any, value: Any, attr: str) -> Any:
    plain = plan_of(typ.layout.matmul).layouts[typ.layout.place]
    if attr == "alignment":
        return context.get_constant(types.int64, plan_of(typ.layout.matmul).value(typ.layout.place).alignment)
    if attr == "size":
        return context.get_constant(types.int64, plain.rows * plain.cols)
    inner, outer = (plain.rows, plain.cols) if plain.strides[0] == 1 else (plain.cols, plain.rows)
    lines = builder.mul(value, context.get_constant(types.int64, outer - 1))
    return builder.add(lines, context.get_constant(types.int64, inner))


class TensorType(types.Type, Operand):
    """A matrix of a block GEMM in some memory; ``element`` is Numba's type of an element."""

    kind = "tensor"

    def __init__(self, plan: TensorPlan, place: int, memory: str, is_suggested: bool, element: Any = None) -> None:
        self.plan, self.place, self.memory, self.is_suggested = plan, place, memory, is_suggested
        own = value_numba(plan.value(place))
        self.element = own if element is None else element
        self.is_natural = bool(self.element == own)
        self.foreign = str(self.element).replace("__nv_", "")
        self.is_number = isinstance(self.element, types.Number)
        self.is_complex = isinstance(self.element, types.Complex)
        super().__init__(f"{self.kind} {self.described} [{plan.recipe(is_suggested).symbol[-20:]}]")

    def attach(self, context: Any, builder: Any, made: Any, like: Any) -> None:
        """What a new fragment shares with one of the same layout; both unpacked."""

    def functions(self, context: Any, builder: Any, tensor: Any) -> Any:
        """What knows where elements are, where it is not the family's functions."""
        return None

    def of_element(self, element: Any = None) -> TensorType:
        """The type of a fragment of the same layout, with other elements or the descriptor's."""
        return TensorType(self.plan, 2, RMEM, self.is_suggested, element)

    @property
    def is_plain_family(self) -> bool:
        """Whether libmathdx's functions on tensors take it."""
        return True

    @property
    def size(self) -> int:
        """Elements; of a fragment those of one thread."""
        if self.memory == RMEM:
            return self.plan.fragment_size(self.is_suggested)
        layout = self.plan.layouts[self.place]
        return layout.rows * layout.cols


class TensorAccumulatorType(TensorType):
    """A fragment with what is known about its elements' places in C."""

    kind = "accumulator"

    def __init__(self, plan: TensorPlan, is_suggested: bool) -> None:
        super().__init__(plan, 2, RMEM, is_suggested)


@register_model(TensorType)
@register_model(TensorAccumulatorType)
class _TensorModel(models.StructModel):
    """Where the elements are, and in global memory the leading dimension in elements."""

    def __init__(self, manager: Any, typ: Any) -> None:
        members = [("data", types.voidptr)]
        if typ.memory == GMEM:
            members.append(("ld", types.int64))
        super().__init__(manager, typ, members)
