# SPDX-License-Identifier: Apache-2.0
"""The matrix product as a function: :func:`matmul`, with a cache of plans behind it.

A plan depends on extents, strides, types, devices and alignment of the operands and on the options, not on their
values; the next call with operands of the same kind uses it again. Calls with nothing but A and B (and ``out``) of
CuPy or PyTorch are recognised by a few attributes, before anything else is looked at.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from nvmath_device.errors import InvalidArgumentError, InvalidStateError
from nvmath_device.host import current_device
from nvmath_device.host.algorithms import read_algorithm
from nvmath_device.host.arguments import read_arrays, read_factors, read_inputs, read_qualifiers, read_scales
from nvmath_device.host.array_matchers import stream_reader
from nvmath_device.host.array_results import plan_array
from nvmath_device.host.array_view import ArrayView
from nvmath_device.host.arrays import view
from nvmath_device.host.device_memory import Memory, memory_of
from nvmath_device.host.epilogs import MatmulEpilog, read_epilog
from nvmath_device.host.fingerprints import FINGERPRINTS, Fingerprint, fingerprint
from nvmath_device.host.lt_execution import Scalars
from nvmath_device.host.lt_plan import KNOWN_ALIGNMENT
from nvmath_device.host.operands import Placement, Resident, place
from nvmath_device.host.options import (
    MatmulOptions,
    MatmulPlanPreferences,
    MatmulQuantizationScales,
    read_options,
)
from nvmath_device.host.ordering import held_by_nobody, order_before, order_behind
from nvmath_device.host.planned import CpuProduct, GpuProduct, answer, check_out, deliver, plan_on_gpu
from nvmath_device.host.problem import Problem, plan_problem
from nvmath_device.host.streams import keep_until_done

MAX_PLANS = 1024
MAX_TRIED = 4  # algorithms that are at hand should the first not work after all

_lock = threading.Lock()
_plans: dict[Any, GpuProduct] = {}
_short: dict[Any, Callable[[Any, Any, Any], Any]] = {}
_workspaces: dict[tuple[int, int], Memory] = {}


def matmul(
    a: Any,
    b: Any,
    /,
    c: Any = None,
    *,
    alpha: Any = None,
    beta: Any = None,
    epilog: Any = None,
    epilog_inputs: Mapping[str, Any] | None = None,
    qualifiers: Any = None,
    quantization_scales: Any = None,
    preferences: Any = None,
    algorithm: Any = None,
    options: Any = None,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """D = epilog(alpha op(A) op(B) + beta C + bias) in one call, with cuBLASLt or on the CPU.

    >>> d = matmul(a, b)
    >>> h = matmul(x, w, epilog=MatmulEpilog.RELU_BIAS, epilog_inputs={"bias": bias[None, :]})

    Arguments are those of :class:`Matmul`, its ``plan`` and its ``execute``, and mean the same. The plan is kept for
    the next call with operands of the same kind. The host does not wait for the GPU, except for operands in CPU memory
    and ``options.blocking=True``.

    It is not meant for CUDA graphs: in a capture it is refused unless the plan is known and needs neither workspace nor
    copies. Use :class:`Matmul` there.

    Returns:
        the result, or for epilogs and options with auxiliary outputs (result, dict of arrays).
    """
    if (
        c is alpha is beta is epilog is epilog_inputs is qualifiers is quantization_scales is None
        and preferences is algorithm is options is stream is None
    ):
        of_a, of_b = FINGERPRINTS.get(type(a)), FINGERPRINTS.get(type(b))
        of_out = of_a if out is None else FINGERPRINTS.get(type(out))
        if of_a is not None and of_a is of_b and of_a is of_out:
            short = _short.get((of_a, of_a(a), of_a(b), None if out is None else of_a(out)))
            if short is not None:
                result = short(a, b, out)
                if result is not None:
                    return result
    return _matmul(
        {"a": a, "b": b} | ({} if c is None else {"c": c}), alpha, beta, read_epilog(epilog), epilog_inputs,
        qualifiers, quantization_scales, preferences, read_algorithm(algorithm),
        read_options(options, MatmulOptions, "options"), out, stream,
    )  # fmt: skip


def clear_plans() -> None:
    """Forget all plans of :func:`matmul` and give its workspaces back. Executions that are under way are not hurt."""
    with _lock:
        _short.clear()
        _plans.clear()
        _workspaces.clear()


# -- the long way -------------------------------------------------------------------------------------------


def _matmul(
    given: Mapping[str, Any], alpha: Any, beta: Any, epilog: MatmulEpilog, inputs: Mapping[str, Any] | None,
    qualifiers: Any, scale_values: Any, preferences: Any, algorithm: Any, options: MatmulOptions, out: Any, stream: Any,
) -> Any:  # fmt: skip
    operands, handle = read_arrays(given, stream)
    conj = read_qualifiers(qualifiers, len(given))
    views = operands | read_inputs(inputs, handle)
    scales = read_scales(read_options(scale_values, MatmulQuantizationScales, "quantization_scales"), handle)
    wishes = read_options(preferences, MatmulPlanPreferences, "preferences")
    scale_views = {f"quantization_scales.{n}": s for n, s in scales.items() if isinstance(s, ArrayView)}
    placement = place(views | scale_views, options)
    if options.inplace:
        if "c" not in views or out is not None:
            raise InvalidArgumentError("inplace: the result goes into C; give C and no out")
        out = given["c"]
    target = None if out is None else view(out, "out", stream=handle)

    def problem_for(target: ArrayView | None) -> Problem:
        return plan_problem(
            views["a"], views["b"], views.get("c"), out=target, conj=conj, epilog=epilog,
            epilog_inputs={n: v for n, v in views.items() if n not in ("a", "b", "c")},
            scaled=frozenset(scales), options=options, preferences=wishes,
        )  # fmt: skip

    if not placement.on_gpu:
        problem = problem_for(target)
        if target is not None:
            check_out(target, problem, placement, views)
        factors = read_factors(problem, alpha, beta)
        return answer(*CpuProduct(problem, placement).run(views, *factors, scales, target), out)
    with current_device.on_device(placement.device.index):
        direct = target if target is not None and target.device.kind == "cuda" else None
        key = _key(views, target, conj, epilog, frozenset(scales), placement, options, wishes, algorithm)
        product = _plans.get(key)
        problem = product.problem if product else problem_for(target)
        if target is not None:
            check_out(target, problem, placement, views)
        if product is None:
            product = _plan(key, problem, views, placement, options, wishes, direct, algorithm, handle)
        moved = {
            n: Resident(v, placement.device, handle).view if v.device.kind == "cpu" else v for n, v in views.items()
        }
        arrays = [*views.values(), *scale_views.values(), *([] if direct is None else [direct])]
        order_before(handle, placement, arrays, by_user=stream is not None)
        scalars = Scalars(product.problem, *read_factors(product.problem, alpha, beta))
        addresses = {n: s if isinstance(s, float) else s.ptr for n, s in scales.items()}
        workspace = _workspace(placement, product.workspace_bytes, options.allocator, handle)
        if product.scratch_bytes and current_device.is_capturing(handle):
            raise InvalidStateError(
                "matmul: a CUDA graph is being captured on this stream, and the product needs memory for copies of "
                "operands or for scales, which is not matmul's any more when the graph runs; use Matmul, which has its "
                "own, and plan() it before the capture"
            )
        take = memory_of(placement.memory, placement.device, options.allocator, purpose="copies of operands")
        scratch = take(product.scratch_bytes, handle)
        made = product.first_that_works(
            lambda chosen: product.run(
                moved, scalars, addresses, direct, product.call_with(chosen, workspace), scratch.ptr, handle
            )
        )
        if direct is not None:
            order_behind(handle, placement, direct)
        if not current_device.is_capturing(handle):
            held = held_by_nobody(handle, placement, arrays)
            if held or scratch.nbytes:
                keep_until_done(handle, *held, scratch)
        plain = alpha is beta is None and epilog == MatmulEpilog.DEFAULT and options == MatmulOptions()
        if plain and set(views) == {"a", "b"} and not any(conj) and algorithm is None and target is direct:
            _remember(product, views, direct, wishes)
        return deliver(placement, options, made, target, out, handle)


def _key(views: Mapping[str, ArrayView], out: ArrayView | None, *others: Any) -> Any:
    arrays = [(name, *_kind(v)) for name, v in views.items()]
    return (*arrays, None if out is None else _kind(out), *others[:-1], *_bytes_of(others[-1]))


def _kind(v: ArrayView) -> tuple[Any, ...]:
    return v.shape, v.strides, v.element.name, v.is_complex, v.conjugated, v.device, min(v.alignment, KNOWN_ALIGNMENT)


def _bytes_of(algorithm: Any) -> tuple[bytes, ...]:
    return () if algorithm is None else (bytes(algorithm.algo),)


def _plan(
    key: Any, problem: Problem, views: Mapping[str, ArrayView], placement: Placement, options: MatmulOptions,
    wishes: MatmulPlanPreferences, out: ArrayView | None, algorithm: Any, handle: int,
) -> GpuProduct:  # fmt: skip
    if current_device.is_capturing(handle):
        raise InvalidStateError(
            "matmul: a CUDA graph is being captured on this stream, and cuBLASLt cannot be asked for algorithms "
            "meanwhile; make the same call once before the capture, or use Matmul and plan() before it"
        )
    on_device = {n: v if v.device.kind == "cuda" else _as_resident(v, placement) for n, v in views.items()}
    product = plan_on_gpu(
        problem,
        on_device,
        placement,
        options,
        replace(wishes, limit=min(wishes.limit, MAX_TRIED)),
        out,
        search=algorithm is None,
    )
    if product.plan is not None:
        product.plan.prepare_copies()
        if algorithm is not None:
            product.adopt([algorithm])
    with _lock:
        while len(_plans) >= MAX_PLANS:
            _plans.pop(next(iter(_plans)))
        _plans[key] = product
    return product


def _as_resident(v: ArrayView, placement: Placement) -> ArrayView:
    """What the operand's copy on the GPU will look like, at an address that pools give."""
    return Resident.like(v, placement.device)


def _workspace(placement: Placement, nbytes: int, allocator: Any, stream: int) -> Memory:
    """A workspace of at least this size. Products on one stream follow one another and share it."""
    if nbytes == 0:
        return Memory(0, 0, None)
    if current_device.is_capturing(stream):
        raise InvalidStateError(
            "matmul: a CUDA graph is being captured on this stream, and the product needs a workspace, which matmul "
            "shares with all other calls on the stream; use Matmul, which has its own, and plan() it before the capture"
        )
    key = placement.device.index, stream
    found = _workspaces.get(key)
    if found is None or found.nbytes < nbytes:
        take = memory_of(placement.memory, placement.device, allocator, purpose="the workspace of a matrix product")
        with _lock:
            found = _workspaces[key] = take(nbytes, stream)
    return found


# -- the short way ------------------------------------------------------------------------------------------


def _remember(
    product: GpuProduct, views: Mapping[str, ArrayView], out: ArrayView | None, wishes: MatmulPlanPreferences
) -> None:
    """Recognise the next call of this kind by the fingerprints of its arrays alone."""
    a, b = views["a"], views["b"]
    read = fingerprint(a)
    plan = product.plan
    arrays = [a, b] if out is None else [a, b, out]
    if read is None or any(fingerprint(v) is not read for v in arrays) or plan is None or not plan.is_direct:
        return
    if wishes != MatmulPlanPreferences() or min(v.alignment for v in arrays) < KNOWN_ALIGNMENT:
        return
    key = read, read(a.owner), read(b.owner), None if out is None else read(out.owner)
    with _lock:
        while len(_short) >= MAX_PLANS:
            _short.pop(next(iter(_short)))
        _short[key] = _short_way(product, a, b, out, read)


def _short_way(
    product: GpuProduct, a: ArrayView, b: ArrayView, out: ArrayView | None, read: Fingerprint
) -> Callable[[Any, Any, Any], Any]:
    """A function of a, b and out for arrays with the fingerprints of these; ``None`` means: take the long way."""
    plan, placement = product.plan, product.placement
    assert plan is not None
    read_stream, make, address = stream_reader(a), plan_array(product.make_result), read.address
    scalars = Scalars(product.problem, 1, 0)
    alpha, beta, swapped, nbytes = scalars.alpha, scalars.beta, plan.lt.swapped, product.workspace_bytes
    on = placement.device.index
    many = current_device.device_count() > 1
    current_index, is_capturing, mask = current_device.current_index, current_device.is_capturing, KNOWN_ALIGNMENT - 1
    d_size = 0 if out is None else out.extent_bytes[1] - out.ptr
    (a_low, a_high), (b_low, b_high) = (tuple(edge - v.ptr for edge in v.extent_bytes) for v in (a, b))
    calls: dict[int, tuple[Callable[..., None], Memory]] = {}

    def short(a: Any, b: Any, out: Any) -> Any:
        handle = read_stream()
        found = calls.get(handle)
        if found is None or (nbytes and (_workspaces.get((on, handle)) is not found[1] or is_capturing(handle))):
            memory = _workspace(placement, nbytes, None, handle)
            prepared = product.call_with(product.algorithms[0], memory)
            assert prepared is not None
            found = calls[handle] = prepared.as_function(), memory
        x, y = address(a), address(b)
        if (x | y) & mask or (many and current_index() != on):
            return None
        if out is None:
            out, d = make(handle)
        else:
            d = address(out)
            end = d + d_size
            if d & mask or (d < x + a_high and x + a_low < end) or (d < y + b_high and y + b_low < end):
                return None
        if swapped:
            found[0](alpha, y, x, beta, d, d, handle)
        else:
            found[0](alpha, x, y, beta, d, d, handle)
        return out

    short.scalars = scalars  # type: ignore[attr-defined]  # whose memory every call reads
    return short
