# SPDX-License-Identifier: Apache-2.0
"""The matrix product as an object: plan once, execute often. :class:`Matmul`."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nvmath_device.descriptors import GemmDescriptor
from nvmath_device.errors import InvalidArgumentError, InvalidStateError
from nvmath_device.host import current_device
from nvmath_device.host.algorithms import Algorithm, read_algorithm
from nvmath_device.host.arguments import Factors, read_arrays, read_inputs, read_qualifiers, read_scales
from nvmath_device.host.array_view import ArrayView
from nvmath_device.host.arrays import view
from nvmath_device.host.autotune import autotune
from nvmath_device.host.epilogs import MatmulEpilog, read_epilog
from nvmath_device.host.gemm_descriptor import describe
from nvmath_device.host.hot_path import ShortWay, arm
from nvmath_device.host.lt_plan import KNOWN_ALIGNMENT
from nvmath_device.host.operands import Resident, check_same_kind, needs_another_plan, place
from nvmath_device.host.options import (
    MatmulOptions,
    MatmulPlanPreferences,
    MatmulQuantizationScales,
    read_options,
)
from nvmath_device.host.ordering import LastStream, held_by_nobody, order_before, order_behind
from nvmath_device.host.planned import CpuProduct, PlannedCalls, answer, check_out, deliver, plan_on_gpu
from nvmath_device.host.problem import Problem, plan_problem
from nvmath_device.host.streams import same_stream


class Matmul:
    """D = epilog(alpha op(A) op(B) + beta C + bias), planned once and executed often, with cuBLASLt or on the CPU.

    >>> with Matmul(a, b) as mm:
    ...     mm.plan(epilog=MatmulEpilog.RELU_BIAS, epilog_inputs={"bias": bias})
    ...     d = mm.execute()

    Operands are arrays of NumPy, CuPy, PyTorch, JAX or Numba, or anything that speaks DLPack or the CUDA Array
    Interface, mixed freely; the result is an array of A's library. Arrays on a GPU are used where they are. Arrays in
    CPU memory are copied to the GPU here and in :meth:`reset_operands`, and their results back; or everything is
    computed on the CPU, where there is no GPU or ``options.execution`` says so.

    A is (..., m, k), B is (..., k, n), and vectors and batches are multiplied as by ``numpy.matmul``, also where an
    extent of a batch is 1. C has the result's shape or one that broadcasts to it: a row, a column, a number. Any
    strides are right: cuBLASLt reads in place what it can, and the rest is copied first, which
    ``options.copies="refuse"`` turns into an error that says why.

    The order of a new result is decided by the direction of the bias (one number a row: column-major; one a column:
    row-major), else by the aux input of a D* epilog, else by C, else by A.

    Work is put on ``stream``, or on the current stream of A's library. Nothing waits for the GPU, :meth:`plan`
    included, except for operands in CPU memory, :meth:`autotune`, and ``options.blocking=True``. Operands of other
    libraries than A's are ordered after the current stream of theirs if no ``stream`` is given; if one is given it
    must be ordered after whatever makes the operands. After :meth:`plan`, :meth:`execute` with ``out`` allocates
    nothing that was not allocated before and can be captured into a CUDA graph; the object must then outlive the graph.

    One object may be used from several threads: calls exclude each other. Executions on several streams are ordered
    one after the other, because they share a workspace.

    Args:
        a, b, c: operands.
        alpha, beta: numbers, by default 1; ``beta`` is needed with C and only with C. Where it is 0, C is not read.
        qualifiers: NumPy array of ``matrix_qualifiers_dtype``, one for each operand; not changed.
        quantization_scales: :class:`MatmulQuantizationScales` or dict; fp8 only.
        options: :class:`MatmulOptions` or dict.
        stream: an int, or a stream object of any library.

    Raises:
        InvalidArgumentError, ArgumentTypeError: operands that do not go together, or options that are none.
        UnsupportedError: cuBLASLt has no such product.
        NoDeviceError: a GPU is asked for and there is none.
    """

    def __init__(
        self,
        a: Any,
        b: Any,
        /,
        c: Any = None,
        *,
        alpha: Any = None,
        beta: Any = None,
        qualifiers: Any = None,
        quantization_scales: Any = None,
        options: Any = None,
        stream: Any = None,
    ) -> None:
        self._lock = threading.RLock()
        self._freed = False
        self._options: MatmulOptions = read_options(options, MatmulOptions, "options")
        self._preferences = MatmulPlanPreferences()
        self._epilog = MatmulEpilog.DEFAULT
        self._planned = False
        self._fast: ShortWay | None = None
        self._fresh: dict[str, Any] = {}  # operands that the short way has taken and no view was made of yet
        self._runs: dict[Any, PlannedCalls] = {}  # by kind of ``out``; none on the CPU
        self._residents: dict[str, Resident] = {}
        self._released: dict[str, ArrayView] = {}
        given = {"a": a, "b": b} | ({} if c is None else {"c": c})
        self._given, handle = read_arrays(given, stream)
        self._conj = read_qualifiers(qualifiers, len(given))
        self._scale_values = read_options(quantization_scales, MatmulQuantizationScales, "quantization_scales")
        self._scales = read_scales(self._scale_values, handle)
        self._placement = place(self._everything(), self._options)
        self._last = LastStream(self._placement.device.index)
        self._views: dict[str, ArrayView] = {}
        self._factors = Factors(alpha, beta)
        self._factors.of(self._plan_problem(None))  # so that mistakes show here, and not in plan()
        self._inplace_is_possible()
        self._move_in(self._given, handle)

    # -- life cycle ----------------------------------------------------------------------------------------

    def plan(
        self,
        *,
        preferences: Any = None,
        algorithms: Sequence[Any] | None = None,
        epilog: Any = None,
        epilog_inputs: Mapping[str, Any] | None = None,
        out: Any = None,
        stream: Any = None,
    ) -> tuple[Algorithm, ...]:
        """Choose algorithms and take the workspace. The host does not wait for the GPU.

        Args:
            preferences: :class:`MatmulPlanPreferences` or dict.
            algorithms: algorithms of an earlier plan or from a file, which are checked and used instead of asking
                cuBLASLt's heuristics.
            epilog: a member of :class:`MatmulEpilog`, or its name.
            epilog_inputs: its arrays by name: ``"bias"``, ``"relu_aux"``, ``"gelu_aux"``.
            out: an array like the one that :meth:`execute` will be given; nothing is written to it. An ``out`` with
                other strides than a new result would have is planned for when it is first met, unless it is known
                from here.

        Returns:
            the algorithms, expected to be fastest first; none on the CPU and for empty results.

        Raises:
            InvalidArgumentError, ArgumentTypeError: the epilog or its inputs do not fit.
            UnsupportedError: cuBLASLt has no algorithm; the message names what stands in the way.
            InvalidStateError: the object was freed, or a CUDA graph is being captured on the stream.
        """
        with self._lock:
            self._check_operands()
            handle = self._handle(stream)
            if self._placement.on_gpu:
                with current_device.on_device(self._placement.device.index):
                    self._refuse_capture(handle, "plan")
            before = self._preferences, self._epilog, self._given
            try:
                self._preferences = read_options(preferences, MatmulPlanPreferences, "preferences")
                self._epilog = read_epilog(epilog)
                inputs = read_inputs(epilog_inputs, handle)
                operands = {name: self._given[name] for name in ("a", "b", "c") if name in self._given}
                self._given = operands | inputs
                place(self._everything(), self._options)
                target = None if out is None else view(out, "out", stream=handle)
                problem = self._plan_problem(target)
                if target is not None:
                    check_out(target, problem, self._placement, {})
                self._factors.of(problem)
            except Exception:  # what cannot be planned leaves the plan there is
                self._preferences, self._epilog, self._given = before
                raise
            self._forget_plans()
            self._move_in(inputs, handle)
            if self._placement.on_gpu:
                with current_device.on_device(self._placement.device.index):
                    self._run_for(target, handle, algorithms)
            self._planned = True
            return self.algorithms

    def execute(
        self,
        *,
        algorithm: Algorithm | None = None,
        release_workspace: bool = False,
        out: Any = None,
        stream: Any = None,
    ) -> Any:
        """Compute D: into ``out``, or into a new array of A's library.

        ``out`` has the result's shape and type and may be of any library and have any strides without overlaps; it
        may be C, but share no other memory with operands. ``release_workspace`` gives the workspace back afterwards.

        Returns:
            the result, or for epilogs and options with auxiliary outputs (result, dict of arrays).

        Raises:
            InvalidStateError: not planned, operands released, or freed.
            InvalidArgumentError, ArgumentTypeError: ``out`` or ``stream`` does not fit.
            HostLibraryError: cuBLASLt refused.
        """
        short = self._fast
        if short is not None and algorithm is None and not release_workspace:
            result = short.execute(out, stream)
            if result is not None:
                return result
        with self._lock:
            return self._execute(algorithm, out, stream, release_workspace)

    def autotune(
        self,
        iterations: int = 10,
        prune: int | None = None,
        release_workspace: bool = False,
        stream: Any = None,
        *,
        flush: bool = True,
    ) -> Any:
        """Time every planned algorithm on the GPU and put the fastest first; the host waits.

        Times are medians over ``iterations`` with the L2 cache flushed in between; with ``flush=False`` those of a
        loop that runs the product again and again, for operands that are in the cache when it runs. Results go into a
        scratch array: operands and C are not changed. The order found is kept on disk for the device, driver and
        cuBLASLt, and taken from there when the same product is tuned again in the same way. ``prune`` keeps that many
        algorithms.

        Returns:
            the timings, fastest first; empty where there is one algorithm or none.
        """
        with self._lock:
            self._check_ready()
            if not self._placement.on_gpu or len(self.algorithms) < 2:
                return ()
            handle = self._handle(stream)
            with current_device.on_device(self._placement.device.index):
                self._refuse_capture(handle, "autotune")
                run = next(iter(self._runs.values()))  # the one whose algorithms are shown
                self._give_back(run)  # an edited algorithm may need more than was taken for the plan
                scratch = run.scratch_result(handle)
                self._order(handle, None, by_user=stream is not None)

                def run_one(chosen: Algorithm) -> None:
                    run.run(self._views, self._factors.of(run.product.problem), self._scales, scratch, chosen, handle)

                timings = autotune(
                    run_one, run.product, iterations=iterations, prune=prune, flush=flush, stream=handle,
                    options=self._options, preferences=self._preferences,
                )  # fmt: skip
                if release_workspace:
                    self._give_back(run)
                self._fast = None
            return timings

    def reset_operands(
        self,
        *,
        a: Any = None,
        b: Any = None,
        c: Any = None,
        alpha: Any = None,
        beta: Any = None,
        quantization_scales: Any = None,
        epilog_inputs: Mapping[str, Any] | None = None,
        stream: Any = None,
    ) -> None:
        """Use other operands of the same shapes, types and device.

        Strides and alignment may differ; then the next execution plans again first.

        Raises:
            InvalidArgumentError, ArgumentTypeError: nothing is given, or an operand is of another kind.
            InvalidStateError: freed.
        """
        short = self._fast
        if (
            short is not None
            and c is alpha is beta is quantization_scales is epilog_inputs is stream is None
            and short.reset(a, b)
        ):
            return
        with self._lock:
            self._reset(a, b, c, alpha, beta, quantization_scales, epilog_inputs, stream)

    reset_operands_unchecked = reset_operands
    """Code written for nvmath-python calls it. What it would leave out costs little here and keeps the GPU from reading
    memory that is not an operand's, so it is checked, too."""

    def release_operands(self) -> None:
        """Let go of all operands and epilog inputs; :meth:`reset_operands` with all of them makes the object usable."""
        with self._lock:
            self._check_open()
            self._keep_until_done(self._given.values())
            self._released = {name: v._replace(owner=None, keeper=None) for name, v in self._given.items()}
            self._given, self._views, self._fast = {}, {}, None
            self._residents.clear()

    def free(self) -> None:
        """Let go of operands, workspace and cuBLASLt's objects. Freeing twice is allowed.

        A CUDA graph that :meth:`execute` was captured into must not be replayed afterwards.
        """
        with self._lock:
            if self._freed:
                return
            self._keep_until_done(self._given.values())
            self._forget_plans()
            self._given, self._views, self._scales, self._fast = {}, {}, {}, None
            self._fresh.clear()
            self._scale_values = MatmulQuantizationScales()
            self._residents.clear()
            self._freed = True

    def __enter__(self) -> Matmul:
        self._check_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.free()

    # -- what there is to know -----------------------------------------------------------------------------

    @property
    def algorithms(self) -> tuple[Algorithm, ...]:
        """The planned algorithms, the one that is used by default first."""
        run = next(iter(self._runs.values()), None)
        return run.product.algorithms if run else ()

    def applicable_algorithm_ids(self, limit: int = 8) -> list[int]:
        """Ids of the first ``limit`` planned algorithms."""
        return [algorithm.algorithm_id for algorithm in self.algorithms[:limit]]

    @property
    def descriptor(self) -> GemmDescriptor:
        """One matrix product of this, as the device level describes it; ``.tile(...)`` makes an ``nd.Matmul`` of it."""
        self._check_operands()
        return describe(self._plan_problem(None), self._given)

    @property
    def copies(self) -> tuple[str, ...]:
        """What every execution copies because cuBLASLt cannot use it in place, each with the reason. After plan()."""
        with self._lock:
            self._check_ready()
            if not self._placement.on_gpu:
                return ()
            if not self._runs:  # operands of other strides were given
                with current_device.on_device(self._placement.device.index):
                    self._run_for(None, self._handle(None))
            return next(iter(self._runs.values())).reasons

    # -- inside --------------------------------------------------------------------------------------------

    def _everything(self) -> dict[str, ArrayView]:
        return self._given | self._scale_views()

    def _scale_views(self) -> dict[str, ArrayView]:
        return {f"quantization_scales.{n}": s for n, s in self._scales.items() if isinstance(s, ArrayView)}

    def _plan_problem(self, out: ArrayView | None) -> Problem:
        given = self._given
        inputs = {name: v for name, v in given.items() if name not in ("a", "b", "c")}
        if out is None and self._options.inplace:
            out = given.get("c")
        return plan_problem(
            given["a"], given["b"], given.get("c"), out=out, conj=self._conj, epilog=self._epilog,
            epilog_inputs=inputs, scaled=frozenset(self._scales), options=self._options, preferences=self._preferences,
        )  # fmt: skip

    def _inplace_is_possible(self) -> None:
        if self._options.inplace:
            c = self._given.get("c")
            if c is None:
                raise InvalidArgumentError("inplace: the result goes into C, and there is no C; give one")
            if c.shape != self._plan_problem(None).shapes.result:
                raise InvalidArgumentError(
                    f"inplace: C has the shape {c.shape} and is broadcast; give one of the result's"
                )

    def _handle(self, stream: Any) -> int:
        return self._placement.stream(stream)

    def _move_in(self, operands: Mapping[str, ArrayView], handle: int) -> None:
        """Bring operands to where the product runs."""
        for name, operand in operands.items():
            if self._placement.on_gpu and operand.device.kind == "cpu":
                with current_device.on_device(self._placement.device.index):
                    resident = self._residents.get(name)
                    if resident is not None and resident.view.strides == operand.strides:
                        resident.fill(operand, handle)
                    else:
                        resident = self._residents[name] = Resident(operand, self._placement.device, handle)
                self._views[name] = resident.view._replace(conjugated=operand.conjugated)
            else:
                self._views[name] = operand
        self._views = {name: v for name, v in self._views.items() if name in self._given}

    def _forget_plans(self) -> None:
        for run in self._runs.values():
            self._give_back(run)
        self._runs.clear()
        self._fast = None

    def _give_back(self, run: PlannedCalls) -> None:
        """Let go of a plan's memory, which is given to others in the order of the stream that it was taken on."""
        last = self._last.handle
        if run.memory is not None and last is not None and not same_stream(last, run.stream):
            self._last.keep(run.memory)
        run.release()

    def _run_for(self, out: ArrayView | None, handle: int, algorithms: Sequence[Any] | None = None) -> PlannedCalls:
        """The plan for a new result, or for an array of the user of this type, with these strides and alignment."""
        key = _kind_of(out)
        run = self._runs.get(key)
        if run is None and out is not None and None in self._runs and self._runs[None].accepts(out):
            run = self._runs[key] = self._runs[None]
        if run is None:
            self._refuse_capture(handle, "plan")
            problem = self._plan_problem(out)
            direct = out if out is not None and out.device.kind == "cuda" else None
            product = plan_on_gpu(
                problem, self._views, self._placement, self._options, self._preferences, direct,
                search=algorithms is None,
            )  # fmt: skip
            if algorithms is not None and product.plan is not None:
                product.adopt(algorithms)
            run = self._runs[key] = PlannedCalls(product, self._options.allocator, like=direct)
            run.reserve(handle)
            self._last.follow(handle)  # executions on other streams come after what had the memory before
        return run

    def _execute(self, algorithm: Algorithm | None, out: Any, stream: Any, release_workspace: bool) -> Any:
        self._check_ready()
        algorithm = read_algorithm(algorithm)
        if out is None and self._options.inplace:
            out = self._given["c"].owner
        if not self._placement.on_gpu:
            return self._execute_on_cpu(out)
        device = self._placement.device
        with current_device.on_device(device.index):
            handle = self._handle(stream)
            target = None if out is None else self._read_out(out, handle)
            direct = target if target is not None and target.device.kind == "cuda" else None
            run = self._run_for(target, handle)
            self._order(handle, direct, by_user=stream is not None)
            scalars = self._factors.of(run.product.problem)
            made = run.run(self._views, scalars, self._scales, direct, algorithm, handle)
            if direct is not None:
                order_behind(handle, self._placement, direct)
            if release_workspace:
                self._give_back(run)
                self._fast = None
            elif algorithm is None and (self._fast is None or direct is not None):
                self._fast = arm(self, run, direct)
            return deliver(self._placement, self._options, made, target, out, handle)

    def _execute_on_cpu(self, out: Any) -> Any:
        target = None if out is None else self._read_out(out, 0)
        problem = self._plan_problem(target)
        factors = self._factors.of(problem).values
        return answer(*CpuProduct(problem, self._placement).run(self._views, *factors, self._scales, target), out)

    def _read_out(self, out: Any, handle: int) -> ArrayView:
        target = view(out, "out", stream=handle)
        check_out(target, self._plan_problem(target), self._placement, self._given)
        return target

    def _order(self, handle: int, out: ArrayView | None, *, by_user: bool) -> None:
        """Put this execution after what makes the operands, and after the last one on another stream."""
        arrays = [*self._views.values(), *self._scale_views().values(), *([] if out is None else [out])]
        order_before(handle, self._placement, arrays, by_user=by_user)
        self._views = {name: v._replace(producer_stream=None) for name, v in self._views.items()}
        self._last.follow(handle)

    def _keep_until_done(self, operands: Iterable[ArrayView]) -> None:
        """Hold memory that its library might hand to others while an execution on another stream reads it."""
        if self._last.handle is not None and self._placement.on_gpu:
            self._last.keep(*held_by_nobody(self._last.handle, self._placement, operands))

    def _reset(
        self, a: Any, b: Any, c: Any, alpha: Any, beta: Any, scales: Any, inputs: Mapping[str, Any] | None, stream: Any,
    ) -> None:  # fmt: skip
        self._check_open()
        given = {n: x for n, x in (("a", a), ("b", b), ("c", c)) if x is not None} | dict(inputs or {})
        if not given and alpha is None and beta is None and scales is None:
            raise InvalidArgumentError("reset_operands: nothing is given; give at least one operand")
        handle = self._handle(stream)
        before = self._given or self._released
        new = {}
        for name, array in given.items():
            if name not in before:
                known = ", ".join(before)
                raise InvalidArgumentError(f"{name}: there is no such operand to reset; there are {known}")
            new[name] = view(array, name, stream=handle)
            check_same_kind(name, new[name], before[name])
        if not self._given and (missing := [name for name in before if name not in new]):
            raise InvalidStateError(f"operands were released; give {', '.join(missing)}, too")
        if scales is not None:
            self._scale_values = read_options(scales, MatmulQuantizationScales, "quantization_scales")
            fresh = read_scales(self._scale_values, handle)
            if set(fresh) != set(self._scales):
                raise InvalidArgumentError(
                    f"quantization_scales: {sorted(fresh)} are given, and the product has {sorted(self._scales)}"
                )
            self._scales = fresh
        replaced = [before[name] for name in new if name in self._given]
        self._keep_until_done(replaced)
        self._given = self._given | new
        place(self._everything(), self._options)
        self._move_in(new, handle)
        if any(needs_another_plan(v, before[name]) for name, v in new.items()) or not self._runs:
            self._forget_plans()
        if alpha is not None or beta is not None:
            self._factors.set(alpha, beta)
        if self._fast is not None:  # it knows the operands of before
            run = self._runs.get(None)
            self._fast = arm(self, run, None) if run else None

    # -- states --------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._freed:
            raise InvalidStateError("the Matmul was freed (by free() or the end of its with block); make a new one")
        if self._fresh:
            new = {name: view(array, name) for name, array in self._fresh.items()}
            self._fresh.clear()
            self._given = self._given | new
            self._views = self._views | new

    def _check_operands(self) -> None:
        self._check_open()
        if not self._given:
            raise InvalidStateError("the operands were released; give them again with reset_operands(a=..., b=...)")

    def _check_ready(self) -> None:
        self._check_operands()
        if not self._planned:
            raise InvalidStateError("the Matmul is not planned; call plan() first")

    def _refuse_capture(self, handle: int, what: str) -> None:
        if current_device.is_capturing(handle):
            raise InvalidStateError(
                f"{what}: a CUDA graph is being captured on this stream, and cuBLASLt cannot be asked for algorithms "
                "meanwhile; call plan() (with out=, if out has strides of its own) before the capture, and only "
                "execute(out=...) inside"
            )


def _kind_of(out: ArrayView | None) -> Any:
    """What a plan depends on of an array for the result; ``None`` for a new one."""
    return None if out is None else (out.strides, min(out.alignment, KNOWN_ALIGNMENT), out.element.name, out.device)
