# SPDX-License-Identifier: Apache-2.0
"""``Matmul.get_accumulator`` and ``suggest_accumulator`` in simulated kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvmath_device.matmul import Matmul
from nvmath_device.numba_backend.simulator_arguments import Array, Call
from nvmath_device.numba_backend.simulator_block import calling_thread
from nvmath_device.numba_backend.simulator_shares import share
from nvmath_device.numba_backend.simulator_tensors import (
    Fragment,
    Tensor,
    axpby,
    copy_fragment,
    plan_of,
    tensor_clear,
)
from nvmath_device.pipelines import PipelinePlan, pipeline_plan
from nvmath_device.targets import SIMULATED_CC
from nvmath_device.tensor_rules import (
    check_conversion,
    check_fragment,
    check_gmem,
    check_partition_copy,
    check_same_layout,
)


def matmul_accumulator(mm: Matmul, is_suggested: bool) -> Accumulator:
    thread = calling_thread(f"Matmul.{'suggest' if is_suggested else 'get'}_accumulator")
    if mm.with_pipeline:
        return zeros(mm, thread.linear, False, pipeline_of(mm, None))
    return zeros(mm, thread.linear, is_suggested, None)


def pipeline_of(mm: Matmul, depth: int | str | None) -> PipelinePlan:
    return pipeline_plan(mm.descriptor, mm._here.execution, depth=depth, sm=SIMULATED_CC)


def zeros(mm: Matmul, linear: int, is_suggested: bool, pipeline: PipelinePlan | None) -> Accumulator:
    """The accumulator of a thread."""
    made: Accumulator = Accumulator.empty(plan_of(mm), is_suggested, pipeline)
    made.share = share(made.plan, linear)
    tensor_clear(made)
    return made


class Accumulator(Fragment):
    """A fragment with the places in the tile of its elements."""

    share: Array

    # -- questions -------------------------------------------------------------------------------------------------

    def map_fragment_index(self, index: Any) -> tuple[int, int]:
        m, n, _ = self.plan.descriptor.size
        row, column = divmod(int(self.share[index]), n) if self.is_index_in_bounds(index) else (m, n)
        return row, column

    def is_index_in_bounds(self, index: Any) -> bool:
        return self._index(index) < len(self.share)

    def is_thread_active(self) -> bool:
        return len(self.share) > 0

    def is_predicated(self) -> bool:
        m, n, _ = self.plan.descriptor.size
        return m * n % self.plan.block_dim.size != 0

    def get_alignment(self) -> int:
        return self.plan.promised(2)

    # -- fragments -------------------------------------------------------------------------------------------------

    def make_empty_fragment(self) -> Fragment:
        made: Fragment = Fragment.empty(self.plan, self.is_suggested, self.pipeline)
        return made

    def get_results(self, out: Any = None) -> Fragment:
        call = self._call("get_results")
        if out is None:
            out = self.make_empty_fragment()
        check_fragment(call.typing_error, "out", out)
        check_same_layout(call.typing_error, "out", out, "the accumulator", self)
        check_conversion(call.typing_error, self, out)
        out.values[...] = self.values
        result: Fragment = out
        return result

    def clear(self) -> None:
        tensor_clear(self)

    # -- with matrices in global memory ------------------------------------------------------------------------------

    def partition_and_copy(self, src: Any, dst: Any) -> None:
        call = self._call("partition_and_copy")
        check_partition_copy(call.typing_error, self, src, dst)
        copy_fragment(call, src, dst, self.plan.promised(2))

    def make_partition_and_copy(self, gmem: Any) -> Fragment:
        call = self._call("make_partition_and_copy")
        check_gmem(call.typing_error, self, "gmem", gmem)
        check_conversion(call.typing_error, gmem, self)
        made = self.make_empty_fragment()
        copy_fragment(call, gmem, made, self.plan.promised(2))
        return made

    def partition_and_store(self, gmem: Any) -> None:
        call = self._call("partition_and_store")
        check_gmem(call.typing_error, self, "gmem", gmem)
        check_conversion(call.typing_error, self, gmem)
        copy_fragment(call, self, gmem, self.plan.promised(2))

    def axpby(self, alpha: Any, beta: Any, gmem: Any) -> None:
        call = self._call("axpby")
        check_gmem(call.typing_error, self, "gmem", gmem)
        if not gmem.is_natural:
            raise call.typing_error(f"wants elements of {self.plan.value(2)} for gmem, got {gmem.described}")
        result = self.make_empty_fragment()
        if np.asarray(beta) != 0:
            copy_fragment(call, gmem, result, self.plan.promised(2))
        axpby(call, alpha, self.values, beta, result)
        copy_fragment(call, result, gmem, self.plan.promised(2))

    def partition_like_C(self, gmem: Any) -> Partition:
        call = self._call("partition_like_C")
        check_gmem(call.typing_error, self, "gmem", gmem)
        return Partition(self, gmem)

    def _call(self, name: str) -> Call:
        return Call(f"accumulator.{name}", self.described)


class Partition:
    """A thread's elements of C in global memory, under an accumulator's indices."""

    def __init__(self, accumulator: Accumulator, tensor: Tensor) -> None:
        self._accumulator, self._tensor = accumulator, tensor

    @property
    def size(self) -> int:
        return self._accumulator.size

    def __getitem__(self, index: Any) -> Any:
        return self._tensor.values[self._place(index)]

    def __setitem__(self, index: Any, value: Any) -> None:
        self._tensor.values[self._place(index)] = value

    def _place(self, index: Any) -> tuple[int, int]:
        if not self._accumulator.is_index_in_bounds(index):
            raise self._accumulator._call("partition_like_C").execution_error(
                f"has no element {index} in this thread that lies inside of the tile; ask is_index_in_bounds before"
            )
        return self._accumulator.map_fragment_index(index)
