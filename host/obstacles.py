# SPDX-License-Identifier: Apache-2.0
"""Why cuBLASLt has no algorithm, in words: found by asking it about products that differ in one respect.

:func:`explain` is pure but for the function it asks with. Nothing is run on the GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from nvmath_device.errors import NvmathDeviceError, UnsupportedError
from nvmath_device.host import current_device
from nvmath_device.host.array_view import ArrayView, Device, type_name
from nvmath_device.host.cublaslt_calls import version
from nvmath_device.host.lt_place import Strided
from nvmath_device.host.matrix_strides import blas_layout
from nvmath_device.host.neighbours import Neighbour, neighbours
from nvmath_device.host.options import MatmulOptions, MatmulPlanPreferences
from nvmath_device.host.probe import Found, Request, find
from nvmath_device.host.problem import Problem
from nvmath_device.host.problem_words import problem_words

Ask = Callable[[Request], Found | None]


def no_algorithm(
    problem: Problem,
    operands: Mapping[str, Strided],
    workspace_limit: int,
    options: MatmulOptions,
    preferences: MatmulPlanPreferences,
    device: Device,
    error: Exception,
) -> UnsupportedError:
    """The error for a product that heuristics have no algorithm for; not raised here.

    It names the product, device and library, what would have to be different, how the operands lie, and ends with
    ``error``, what cuBLASLt said. The device must be current. Takes some dozens of questions to heuristics.
    """
    request = Request.of(problem, operands, workspace_limit, options, preferences)
    major, minor = current_device.compute_capability(device.index)
    numbers = ".".join(map(str, version()))
    where = f"{current_device.device_name(device.index)} (compute capability {major}.{minor})"
    return UnsupportedError(
        f"cuBLASLt {numbers} has no algorithm for {problem_words(problem)}, on {where}. "
        f"{explain(request, partial(find, device=device.index))}\n{details(request)}\n{error}"
    )


# -- the obstacle -------------------------------------------------------------------------------------------


def explain(request: Request, ask: Ask) -> str:
    """What stands in the way, as sentences. ``ask`` tells whether there is an algorithm for a request."""
    changes = neighbours(request)
    helping = [(change, found) for change in changes if (found := _try(request, [change], ask))]
    exact = [pair for pair in helping if pair[0].is_exact]
    if helping:
        return _of_single_changes(exact or helping)
    together = _fewest(request, changes, ask)
    if together:
        chosen, found = together
        return (
            "No single change is enough. It has one "
            f"{_join([_words(change, found) for change in chosen], 'and')}, all together; so the obstacles are "
            f"{_join([change.obstacle for change in chosen], 'and')}."
        )
    tried = "There is nothing simpler to compare it with"
    if changes:
        tried = f"Changing {_join([change.obstacle for change in changes], 'or')} helps neither alone nor together"
    return (
        f"{tried}; so the obstacle is the types: this cuBLASLt has no {request.problem().types} on this device, or "
        "cannot use the device."
    )


def _of_single_changes(helping: Sequence[tuple[Neighbour, Found]]) -> str:
    obstacles = list(dict.fromkeys(change.obstacle for change, _ in helping))
    words = _join([_words(change, found) for change, found in helping], "or")
    if len(obstacles) == 1:
        return f"It has one {words}; so the obstacle is {obstacles[0]}."
    return f"It has one {words}; so the obstacle is that {_join(obstacles, 'and')} come together."


def _fewest(request: Request, changes: Sequence[Neighbour], ask: Ask) -> tuple[list[Neighbour], Found] | None:
    """Changes that are enough together and of which none can be left out. Only one of those to the result's type."""
    types = [change for change in changes if change.change.startswith("with a result of")]
    others = [change for change in changes if change not in types]
    for start in [others, *([*others, change] for change in types)]:
        found = _try(request, start, ask)
        if found is None:
            continue
        chosen = list(start)
        for change in start:
            fewer = [other for other in chosen if other is not change]
            if smaller := _try(request, fewer, ask):
                chosen, found = fewer, smaller
        return chosen, found
    return None


def _try(request: Request, changes: Sequence[Neighbour], ask: Ask) -> Found | None:
    try:
        for change in changes:
            request = change.apply(request)
    except NvmathDeviceError:  # changes that do not go together
        return None
    return ask(request)


def _words(change: Neighbour, found: Found) -> str:
    return change.change.format(workspace_bytes=found.workspace_bytes)


def _join(words: Sequence[str], last: str) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"


# -- what was asked for -------------------------------------------------------------------------------------


def details(request: Request) -> str:
    """How every operand lies, and what the search was limited by: one line each."""
    arrays = {"a": request.a, "b": request.b, "c": request.c, "d": request.out, **request.inputs}
    lines = [f"  {name}: {_lies(view)}" for name, view in arrays.items() if view is not None]
    lines.append(f"  workspace: up to {request.workspace_limit} bytes (memory_limit)")
    lines.append(f"  scale type: {request.problem().types.scale.name}")
    return "\n".join(["Asked for:", *lines])


def _lies(view: ArrayView) -> str:
    words = [f"{type_name(view.element, view.is_complex)} {view.shape}"]
    long = [axis for axis in range(max(view.ndim - 2, 0), view.ndim) if view.shape[axis] > 1]
    if len(long) < 2:
        words.append(f"stride {view.strides[long[0]]}" if long else "one element")
    else:
        layout = blas_layout(*view.shape[-2:], *view.strides[-2:])
        if layout is None:
            words.append(f"strides {view.strides}, which are copied first")
        else:
            words.append(f"{layout.order.replace('_major', '-major')}, leading dimension {layout.ld}")
    if view.ndim > 2:
        words.append(f"batch strides {view.strides[:-2]}")
    words.append(f"address a multiple of {view.alignment} bytes")
    return ", ".join(words)
