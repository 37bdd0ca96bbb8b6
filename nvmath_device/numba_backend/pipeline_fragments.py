# SPDX-License-Identifier: Apache-2.0
"""Accumulators and fragments that tiles of a ``DevicePipeline`` are executed into: elements are where it says.

They are those of :mod:`fragments` and :mod:`tensor_accumulators` but for one thing: which element of C is which is
asked of the pipeline's objects, so they lead to these, through a place in memory that ``tile.execute`` fills.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.datamodel import models
from numba.cuda.models import register_model

from nvmath_device.matmul import Matmul
from nvmath_device.numba_backend.device_pipelines import generated_pipeline_of
from nvmath_device.numba_backend.own_elements import elements_of
from nvmath_device.numba_backend.pipeline_calls import INT, POINTER, ByValue, pipeline, room, tensor
from nvmath_device.numba_backend.tensor_types import TensorAccumulatorType, TensorType, plan_of
from nvmath_device.numba_backend.tensor_values import unpacked
from nvmath_device.pipelines import PipelinePlan
from nvmath_device.tensor_layouts import GMEM, RMEM
from nvmath_device.tensor_plans import TensorPlan

STATE, TILE = 0, 1  # libmathdx's accumulator and tile, in the place that execute fills


def pipeline_accumulator(mm: Matmul, depth: int | str | None) -> PipelineAccumulatorType:
    return PipelineAccumulatorType(plan_of(mm), generated_pipeline_of(mm, depth))


class _OfPipeline(TensorType):
    """What both types have."""

    pipeline: PipelinePlan

    @property
    def family(self) -> Any:
        return (self.plan, self.pipeline)

    @property
    def is_plain_family(self) -> bool:
        return False

    @property
    def size(self) -> int:
        return self.pipeline.fragment_size

    @property
    def described(self) -> str:
        m, n, k = self.plan.descriptor.size
        return f"C in registers of a pipeline of {m}x{n}x{k} in {self.pipeline.depth} stages ({self.element_words})"

    def of_element(self, element: Any = None) -> TensorType:
        return PipelineFragmentType(self.plan, self.pipeline, element)

    def attach(self, context: Any, builder: Any, made: Any, like: Any) -> None:
        made.objects = room(builder, POINTER, 2) if like is None else like.objects

    def functions(self, context: Any, builder: Any, tensor: Any) -> Any:
        return _Functions(context, builder, self.pipeline, tensor.objects)


class PipelineFragmentType(_OfPipeline):
    def __init__(self, plan: TensorPlan, pipeline: PipelinePlan, element: Any = None) -> None:
        self.pipeline = pipeline
        super().__init__(plan, 2, RMEM, False, element)


class PipelineAccumulatorType(_OfPipeline, TensorAccumulatorType):
    def __init__(self, plan: TensorPlan, pipeline: PipelinePlan) -> None:
        self.pipeline = pipeline
        super().__init__(plan, False)


@register_model(PipelineFragmentType)
@register_model(PipelineAccumulatorType)
class _Model(models.StructModel):
    """Where the elements are, and where it says where libmathdx's objects are."""

    def __init__(self, manager: Any, typ: Any) -> None:
        super().__init__(manager, typ, [("data", types.voidptr), ("objects", types.voidptr)])


def object_place(builder: Any, objects: Any, which: int) -> Any:
    base = builder.bitcast(objects, POINTER.as_pointer())
    return builder.gep(base, [ir.Constant(INT, which)], inbounds=True)


class _Functions:
    """What is asked about elements. All threads have as many, and all of these are inside of the tile."""

    def __init__(self, context: Any, builder: Any, plan: PipelinePlan, objects: Any) -> None:
        self._context, self._builder, self._plan, self._objects = context, builder, plan, objects
        self._names = elements_of(context, builder, plan)

    def coordinate(self, index: Any) -> tuple[Any, Any]:
        state = self._object(STATE) if self._plan.is_streamed else None
        return self._names.coordinate(state, self._builder.trunc(index, INT))

    def answer(self, role: str, index: Any = None) -> Any:
        return ir.Constant(ir.IntType(1), role != "is_predicated")

    def store(self, fragment: TensorType, held: Any, other: TensorType, memory: Any) -> bool:
        """All at once, where libmathdx has a function for it."""
        if not (self._plan.is_streamed and fragment.is_natural and other.is_natural and other.memory == GMEM):
            return False
        source = unpacked(self._context, self._builder, fragment, held)
        target = unpacked(self._context, self._builder, other, memory)
        matrix = ByValue("tensor_1s_0s", [target.data, [target.ld]])
        self._names.call("store", [pipeline(self._object(TILE)), tensor(source.data), matrix])
        return True

    def _object(self, which: int) -> Any:
        return self._builder.load(object_place(self._builder, self._objects, which))
