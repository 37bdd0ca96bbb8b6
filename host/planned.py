# SPDX-License-Identifier: Apache-2.0
"""A product that is planned and can be run: on a GPU through cuBLASLt, or on the CPU.

Both kinds take operands as views and give results as views. What a user's object adds (state, results as arrays of
a library, moving operands) is in ``product`` and ``one_call``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, TypeVar

from nvmath_device.errors import HostLibraryError, InvalidArgumentError, UnsupportedError
from nvmath_device.host import cpu_execution, current_device
from nvmath_device.host.algorithms import Algorithm, adopt
from nvmath_device.host.array_overlap import may_overlap_itself, overlap, same_elements
from nvmath_device.host.array_results import dense_strides, hand_over, plan_empty
from nvmath_device.host.array_view import ArrayView, canonical_strides
from nvmath_device.host.arrays import as_numpy
from nvmath_device.host.cublaslt import PreparedMatmul
from nvmath_device.host.cublaslt_enums import Status
from nvmath_device.host.device_copies import wait
from nvmath_device.host.device_memory import Memory, memory_of
from nvmath_device.host.driver import bindings
from nvmath_device.host.lt_execution import AUX, BIAS, A, B, C, D, GpuPlan, Scalars, make_plan
from nvmath_device.host.lt_place import Strided, round_up
from nvmath_device.host.lt_plan import KNOWN_ALIGNMENT
from nvmath_device.host.obstacles import no_algorithm
from nvmath_device.host.operands import Placement, bring_back
from nvmath_device.host.options import MatmulOptions, MatmulPlanPreferences, memory_limit_bytes
from nvmath_device.host.problem import Problem
from nvmath_device.host.streams import call_on_stream

Make = Callable[[int], ArrayView]
_T = TypeVar("_T")


class GpuProduct:
    """A product planned for a GPU, with the arrays that it makes.

    Attributes:
        problem: what is computed.
        plan: the same for cuBLASLt; ``None`` where the result is empty and there is nothing to compute.
        algorithms: what may compute it, expected to be fastest first.
    """

    def __init__(self, problem: Problem, plan: GpuPlan | None, placement: Placement, make: Make, outputs: list[Make]):
        self.problem, self.plan, self.placement = problem, plan, placement
        self.make_result, self._make_outputs = make, outputs
        self.algorithms: tuple[Algorithm, ...] = ()

    @property
    def result_like(self) -> tuple[tuple[int, ...], Any]:
        """Strides and device of a new result."""
        shape = self.problem.shapes.result
        return canonical_strides(shape, dense_strides(shape, self.problem.result_order)), self.placement.device

    def adopt(self, algorithms: Sequence[Any]) -> None:
        """Use these algorithms, of another plan or as bytes. Raises InvalidArgumentError where one cannot be used."""
        assert self.plan is not None
        self.algorithms = tuple(adopt(given, self.plan) for given in algorithms)

    def call_with(self, algorithm: Algorithm | None, workspace: Memory) -> PreparedMatmul | None:
        """The call with an algorithm of the plan, and a workspace that is large enough for it."""
        if self.plan is None or algorithm is None:
            return None
        return self.plan.prepare(algorithm.algo, workspace.ptr, workspace.nbytes)

    def first_that_works(self, attempt: Callable[[Algorithm | None], _T]) -> _T:
        """The answer of ``attempt`` with the first algorithm that cuBLASLt takes. Those before it are dropped."""
        while True:
            try:
                return attempt(self.algorithms[0] if self.algorithms else None)
            except HostLibraryError as error:
                if error.status != Status.NOT_SUPPORTED or len(self.algorithms) < 2:
                    raise
                self.algorithms = self.algorithms[1:]

    @property
    def workspace_bytes(self) -> int:
        """The most that one of the algorithms wants."""
        return max((a.workspace_bytes for a in self.algorithms), default=0)

    @property
    def scratch_bytes(self) -> int:
        return self.plan.scratch_bytes if self.plan else 0

    def run(
        self,
        views: Mapping[str, ArrayView],
        scalars: Scalars,
        scales: Mapping[str, float | int],
        out: ArrayView | None,
        call: PreparedMatmul | None,
        scratch: int,
        stream: int,
    ) -> tuple[ArrayView, dict[str, ArrayView]]:
        """Put the product on a stream. The device must be current, and ``call`` is one of the plan's."""
        result = self.make_result(stream) if out is None else out
        outputs = {o.name: make(stream) for o, make in zip(self.problem.outputs, self._make_outputs, strict=True)}
        if self.plan is None:
            for view in outputs.values():
                if view.size:  # the largest value of nothing
                    call_on_stream(bindings().cuMemsetD8Async, view.ptr, 0, view.size * view.itemsize, stream)
            return result, outputs
        assert call is not None
        traits = self.problem.traits
        addresses = [0] * 6
        addresses[A], addresses[B], addresses[D] = views["a"].ptr, views["b"].ptr, result.ptr
        addresses[C] = views["c"].ptr if self.problem.has_c else result.ptr
        if traits.bias:
            addresses[BIAS] = views["bias"].ptr
        elif traits.gradient:
            addresses[BIAS] = outputs[traits.gradient].ptr
        if traits.aux:
            addresses[AUX] = (views if traits.backward else outputs)[traits.aux].ptr
        named: dict[str, float | int] = {f"scale_{name}": value for name, value in scales.items()}
        named.update({name: view.ptr for name, view in outputs.items() if name.endswith("amax")})
        self.plan.launch(call, scalars, addresses, named, scratch, stream)
        return result, outputs


def plan_on_gpu(
    problem: Problem,
    views: Mapping[str, ArrayView],
    placement: Placement,
    options: MatmulOptions,
    preferences: MatmulPlanPreferences,
    out: ArrayView | None = None,
    *,
    search: bool = True,
) -> GpuProduct:
    """Plan for the placement's device, which must be current; ``views`` are on it.

    Raises:
        InvalidArgumentError: an operand has to be copied and ``copies="refuse"``.
        UnsupportedError: cuBLASLt has no algorithm; the message names what stands in the way.
    """
    device = placement.device
    make = plan_empty(
        placement.memory, problem.shapes.result, problem.types.d, is_complex=problem.types.is_complex, device=device,
        order=problem.result_order,
    )  # fmt: skip
    outputs = [
        plan_empty(placement.memory, o.shape, o.element, device=device, order=o.order, argument=o.name)
        for o in problem.outputs
    ]
    if problem.shapes.is_empty:
        if any(prod(o.shape) for o in problem.outputs if o.name == problem.traits.gradient):
            raise UnsupportedError(
                f"epilog: {problem.epilog.name} of an empty result, {problem.shapes.matrix_result}, is not offered"
            )
        return GpuProduct(problem, None, placement, make, outputs)
    names = ["a", "b", *(["c"] if problem.has_c else []), *problem.traits.inputs]
    operands = {("aux" if n.endswith("_aux") else n): Strided.of(views[n]) for n in names}
    if out is not None:
        operands["out"] = Strided.of(out)
    limit = memory_limit_bytes(options.memory_limit, current_device.total_memory(device.index))
    plan = make_plan(problem, operands, device.index, workspace_limit=limit, options=options, preferences=preferences)
    product = GpuProduct(problem, plan, placement, make, outputs)
    if search:
        try:
            found = plan.search(preferences.limit)
        except HostLibraryError as error:
            if error.status not in (Status.NOT_SUPPORTED, Status.INVALID_VALUE, Status.ARCH_MISMATCH):
                raise
            raise no_algorithm(problem, operands, limit, options, preferences, device, error) from error
        product.algorithms = tuple(Algorithm(result, plan) for result in found)
    return product


class PlannedCalls:
    """A GPU product with its memory and with calls that are prepared for its algorithms.

    One workspace serves all algorithms, so executions must not run at the same time on the device.
    """

    def __init__(self, product: GpuProduct, allocator: Any = None, *, like: ArrayView | None = None) -> None:
        self.product = product
        self.like = None if like is None else like._replace(owner=None, keeper=None)  # not to keep the user's array
        self._allocator = allocator
        self._memory: Memory | None = None
        self.stream = 0  # on which the memory was taken, and in whose order it is given back
        self._calls: dict[tuple[int, int], PreparedMatmul] = {}
        self._keys: list[Algorithm] = []
        self._scratch = 0

    @property
    def reasons(self) -> tuple[str, ...]:
        """What is copied in each run, and why."""
        plan = self.product.plan
        return tuple(f"{move.slot}: {move.why}" for move in plan.lt.moves) if plan else ()

    @property
    def memory(self) -> Memory | None:
        """Workspace and scratch memory, once they are taken."""
        return self._memory

    def reserve(self, stream: int) -> None:
        """Take the memory that any of the algorithms needs, and prepare the first. Later runs take none."""
        product = self.product
        if product.plan is None or self._memory is not None:
            return
        workspace = round_up(product.workspace_bytes, 256)
        take = memory_of(
            product.placement.memory, product.placement.device, self._allocator,
            purpose="the workspace and the copies of a matrix product",
        )  # fmt: skip
        self._memory, self.stream = take(workspace + product.scratch_bytes, stream), stream
        self._scratch = self._memory.ptr + workspace
        product.plan.prepare_copies()

    def scratch_result(self, stream: int) -> ArrayView:
        """An array that lies like the results of this plan, for results that nobody wants."""
        if self.like is None:
            return self.product.make_result(stream)
        low, high = self.like.extent_bytes
        placement = self.product.placement
        take = memory_of(placement.memory, placement.device, self._allocator, purpose="a result that is only timed")
        memory = take(high - low, stream)
        return self.like._replace(ptr=memory.ptr + self.like.ptr - low, owner=memory)

    def release(self) -> None:
        """Give the memory back. The next run takes it again."""
        self._memory = None
        self._calls.clear()
        self._keys.clear()

    def call(self, algorithm: Algorithm | None) -> PreparedMatmul | None:
        """The prepared call of an algorithm, by default the first."""
        product = self.product
        if product.plan is None:
            return None
        if algorithm is None:
            algorithm = product.algorithms[0]  # a search finds one or raises
        key = id(algorithm), algorithm.revision
        call = self._calls.get(key)
        if call is None:
            needs = product.plan.check(algorithm.algo).workspace_bytes
            assert self._memory is not None
            if needs > self._scratch - self._memory.ptr:
                there = self._scratch - self._memory.ptr
                raise InvalidArgumentError(
                    f"algorithm: it needs a workspace of {needs} bytes, and the plan has {there}; pass it to "
                    "plan(algorithms=[...])"
                )
            call = product.plan.prepare(algorithm.algo, self._memory.ptr, needs)
            self._calls[key] = call
            self._keys.append(algorithm)  # so that no other gets its id
        return call

    def run(
        self,
        views: Mapping[str, ArrayView],
        scalars: Scalars,
        scales: Mapping[str, Any],
        out: ArrayView | None,
        algorithm: Algorithm | None,
        stream: int,
    ) -> tuple[ArrayView, dict[str, ArrayView]]:
        """Put the product on a stream. Where cuBLASLt does not take the default algorithm, the next one is tried."""
        self.reserve(stream)
        addresses = {name: s if isinstance(s, float) else s.ptr for name, s in scales.items()}

        def attempt(chosen: Algorithm | None) -> tuple[ArrayView, dict[str, ArrayView]]:
            return self.product.run(views, scalars, addresses, out, self.call(chosen), self._scratch, stream)

        return attempt(algorithm) if algorithm is not None else self.product.first_that_works(attempt)

    def accepts(self, out: ArrayView) -> bool:
        """Whether ``out`` lies like a new result, so that the plan holds for it, too."""
        like = self.product.result_like
        is_of_type = out.element is self.product.problem.types.d
        return is_of_type and (out.strides, out.device) == like and out.alignment >= KNOWN_ALIGNMENT


class CpuProduct:
    """A product computed with NumPy. It has no algorithms and takes no streams."""

    def __init__(self, problem: Problem, placement: Placement) -> None:
        self.problem, self.placement = problem, placement
        self.make_result = plan_empty(
            placement.package, problem.shapes.result, problem.types.d, is_complex=problem.types.is_complex,
            order=problem.result_order,
        )  # fmt: skip
        self._make_outputs = [
            plan_empty(placement.package, o.shape, o.element, order=o.order, argument=o.name) for o in problem.outputs
        ]

    def run(
        self,
        views: Mapping[str, ArrayView],
        alpha: Any,
        beta: Any,
        scales: Mapping[str, float],
        out: ArrayView | None,
    ) -> tuple[ArrayView, dict[str, ArrayView]]:
        """Compute. All memory is the CPU's."""
        result = self.make_result(0) if out is None else out
        outputs = {o.name: make(0) for o, make in zip(self.problem.outputs, self._make_outputs, strict=True)}
        arrays = {name: as_numpy(view, name) for name, view in views.items()}
        computed = cpu_execution.compute(self.problem, arrays, alpha=alpha, beta=beta, scales=scales)
        as_numpy(result)[...] = computed["d"]
        for name, view in outputs.items():
            as_numpy(view)[...] = computed[name]
        return result, outputs


def check_out(target: ArrayView, problem: Problem, placement: Placement, operands: Mapping[str, ArrayView]) -> None:
    """Refuse an ``out`` that cannot take the result; its shape and type are the problem's.

    Raises:
        InvalidArgumentError: it is elsewhere, overlaps itself, or shares memory with an operand, but for C with the
            very same elements.
    """
    if target.device not in (placement.device, placement.result):
        raise InvalidArgumentError(
            f"out: it is on {target.device}, and the result on {placement.result}; give an array there"
        )
    if may_overlap_itself(target):
        raise InvalidArgumentError(
            f"out: several of its elements have one address (shape {target.shape}, strides {target.strides})"
        )
    for name, view in operands.items():
        if name == "c" and problem.has_c and same_elements(view, target):
            continue
        if overlap(view, target):
            only = "only the very same elements as C are allowed" if name == "c" else "give an array of its own"
            raise InvalidArgumentError(
                f"out: it shares memory with {name}, which would be overwritten while it is read; {only}"
            )


def deliver(
    placement: Placement, options: MatmulOptions, made: tuple[ArrayView, dict[str, ArrayView]],
    target: ArrayView | None, out: Any, stream: int,
) -> Any:  # fmt: skip
    """What a user gets of what was put on a stream: there at once if it is in CPU memory, or if that is an option."""
    result, outputs = made
    if placement.has_cpu_result:
        result, outputs = bring_back(placement, result, outputs, target, stream)
    if options.blocking is True:
        wait(stream)
    return answer(result, outputs, out)


def answer(result: ArrayView, outputs: Mapping[str, ArrayView], out: Any) -> Any:
    """What a user gets: the result, or the result and a dict of auxiliary arrays."""
    array = hand_over(result) if out is None else out
    return (array, {name: hand_over(v) for name, v in outputs.items()}) if outputs else array
