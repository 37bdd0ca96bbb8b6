# SPDX-License-Identifier: Apache-2.0
"""``DevicePipeline`` in simulated kernels, and the tiles that it gives."""

from __future__ import annotations

from typing import Any

from nvmath_device.device_pipelines import DevicePipeline
from nvmath_device.numba_backend.simulator_accumulators import Pipeline
from nvmath_device.numba_backend.simulator_arguments import Call, address_of
from nvmath_device.numba_backend.simulator_block import calling_thread, dynamic_shared_memory
from nvmath_device.numba_backend.simulator_tensor_accumulators import Accumulator, pipeline_of, zeros
from nvmath_device.tensor_rules import described


def device_pipeline_tile(owner: DevicePipeline, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tile:
    """``DevicePipeline.get_tile``."""
    call = Call("DevicePipeline.get_tile", owner)
    calling_thread(call.name)
    given = call.bind(args, kwargs, ("smem", "i", "j"))
    smem, dynamic = call.array("smem", given["smem"], ndim=(1,)), dynamic_shared_memory()
    if not smem.size or address_of(smem) != address_of(dynamic):
        raise call.execution_error("wants the dynamic shared memory, from its beginning, for smem")
    if smem.nbytes < owner.buffer_size:
        raise call.execution_error(
            f"wants at least {owner.buffer_size} bytes of dynamic shared memory (buffer_size), got {smem.nbytes}"
        )
    tile = Tile(call, owner)
    tile.start(call, given["i"], given["j"])
    return tile


def device_pipeline_reset(owner: DevicePipeline, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """``DevicePipeline.reset_tile``."""
    call = Call("DevicePipeline.reset_tile", owner)
    given = call.bind(args, kwargs, ("tile", "i", "j"))
    if not isinstance(given["tile"], Tile) or given["tile"].owner is not owner:
        raise call.typing_error(f"wants a tile of this pipeline for tile, as get_tile gives it, got {given['tile']!r}")
    given["tile"].start(call, given["i"], given["j"])


class Tile:
    """A block's way to its tiles of the two matrices."""

    def __init__(self, call: Call, owner: DevicePipeline) -> None:
        self.owner, self._plan = owner, pipeline_of(owner.matmul, owner.depth)
        self._pipeline = Pipeline(call, owner.matmul, owner.a, owner.b, owner.depth)

    def start(self, call: Call, i: Any, j: Any) -> None:
        for name, index in (("i", i), ("j", j)):
            if not hasattr(index, "__index__") or isinstance(index, bool):
                raise call.typing_error(f"wants an integer for {name}, which tile of C, got {index!r}")
        self._pipeline.start(i, j)

    def suggest_accumulator(self) -> Accumulator:
        thread = calling_thread("tile.suggest_accumulator")
        return zeros(self.owner.matmul, thread.linear, False, self._plan)

    def execute(self, accumulator: Any) -> None:
        call = Call("tile.execute", self.owner)
        if not isinstance(accumulator, Accumulator) or accumulator.pipeline != self._plan:
            raise call.typing_error(
                f"wants an accumulator of this pipeline, of {self._plan.depth} stages, got {described(accumulator)}; "
                "take tile.suggest_accumulator()"
            )
        product = self._pipeline.finish()
        values = product._tile[accumulator.share]
        accumulator.values[: len(values)] += values

    def destroy(self) -> None:
        self._pipeline.destroy()
