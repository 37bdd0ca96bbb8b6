# SPDX-License-Identifier: Apache-2.0
"""Asking cuBLASLt whether it has an algorithm for a product, without operands and without running anything.

A :class:`Request` is everything that decides about algorithms, in the user's terms. Its arrays are views of no
memory: their addresses say nothing but what they are multiples of.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from nvmath_device.dtypes import ElementType, uint8
from nvmath_device.errors import NvmathDeviceError, UnsupportedError
from nvmath_device.host.array_results import dense_strides
from nvmath_device.host.array_view import MAX_KNOWN_ALIGNMENT, ArrayView, canonical_strides, cuda_device
from nvmath_device.host.epilogs import MatmulEpilog
from nvmath_device.host.lt_execution import make_plan
from nvmath_device.host.lt_place import Strided
from nvmath_device.host.options import MatmulOptions, MatmulPlanPreferences
from nvmath_device.host.problem import Problem, plan_problem
from nvmath_device.host.shapes import Shape


def imagine(
    shape: Shape,
    element: ElementType,
    *,
    is_complex: bool = False,
    strides: Shape | None = None,
    axes: Shape | None = None,
    alignment: int = MAX_KNOWN_ALIGNMENT,
    conjugated: bool = False,
) -> ArrayView:
    """An array of no memory: with these strides, or without gaps and ``axes`` from the slowest to the fastest."""
    if strides is None:
        strides = dense_strides(shape, tuple(range(len(shape))) if axes is None else axes)
    return ArrayView(
        alignment, shape, canonical_strides(shape, strides), element, is_complex, cuda_device(0), "generic", False,
        conjugated, None,
    )  # fmt: skip


@dataclass(frozen=True)
class Request:
    """A product as it is asked for. Attributes are as in :func:`~nvmath_device.host.problem.plan_problem`.

    ``out`` is always there, so that the order of D stays the same when something else changes.
    ``workspace_limit`` is in bytes.
    """

    a: ArrayView
    b: ArrayView
    c: ArrayView | None
    out: ArrayView
    workspace_limit: int
    conj: tuple[bool, bool] = (False, False)
    epilog: MatmulEpilog = MatmulEpilog.DEFAULT
    inputs: Mapping[str, ArrayView] = field(default_factory=dict)
    scaled: frozenset[str] = frozenset()
    options: MatmulOptions = field(default_factory=MatmulOptions)
    preferences: MatmulPlanPreferences = field(default_factory=MatmulPlanPreferences)

    @classmethod
    def of(
        cls,
        problem: Problem,
        operands: Mapping[str, Strided],
        workspace_limit: int,
        options: MatmulOptions,
        preferences: MatmulPlanPreferences,
    ) -> Request:
        """What a problem was made from, as far as it matters. ``operands`` are as ``plan_lt`` takes them."""
        types, traits = problem.types, problem.traits

        def array(slot: str, element: ElementType, is_complex: bool, conjugated: bool = False) -> ArrayView:
            shape, strides, alignment = operands[slot]
            return imagine(
                shape, element, is_complex=is_complex, strides=strides, alignment=alignment, conjugated=conjugated
            )

        inputs = {}
        if traits.bias:
            inputs["bias"] = array("bias", types.bias, False)
        if traits.aux and traits.backward:
            inputs[traits.aux] = array("aux", uint8 if traits.aux == "relu_aux" else types.aux, False)
        if "out" in operands:
            out = array("out", types.d, types.is_complex)
        else:
            out = imagine(problem.shapes.result, types.d, is_complex=types.is_complex, axes=problem.result_order)
        return cls(
            a=array("a", types.a, types.is_complex),
            b=array("b", types.b, types.is_complex),
            c=array("c", types.c, types.is_complex, problem.conj_c) if problem.has_c else None,
            out=out,
            workspace_limit=workspace_limit,
            conj=(problem.conj_a, problem.conj_b),
            epilog=problem.epilog,
            inputs=inputs,
            scaled=problem.scaled,
            options=options,
            preferences=preferences,
        )

    def problem(self) -> Problem:
        """Raises what ``plan_problem`` raises."""
        return plan_problem(
            self.a, self.b, self.c, out=self.out, conj=self.conj, epilog=self.epilog, epilog_inputs=self.inputs,
            scaled=self.scaled, options=self.options, preferences=self.preferences,
        )  # fmt: skip

    def operands(self) -> dict[str, Strided]:
        """Its arrays as ``plan_lt`` takes them."""
        named = {"a": self.a, "b": self.b, "c": self.c, "out": self.out}
        named |= {"aux" if name.endswith("_aux") else name: view for name, view in self.inputs.items()}
        return {name: Strided.of(view) for name, view in named.items() if view is not None}


class Found(NamedTuple):
    """An algorithm that there is.

    Attributes:
        workspace_bytes: what the first that heuristics propose needs.
        copied: operands that are copied for it.
    """

    workspace_bytes: int
    copied: tuple[str, ...]


def ask(request: Request, device: int) -> Found:
    """Ask heuristics for one algorithm on a device, which must be current.

    Raises:
        HostLibraryError: there is none.
        UnsupportedError, InvalidArgumentError, ArgumentTypeError: the request is refused before cuBLASLt is asked.
    """
    problem, operands = request.problem(), request.operands()
    if problem.shapes.is_empty:
        raise UnsupportedError("an empty result needs no algorithm")
    plan = make_plan(
        problem, operands, device, workspace_limit=request.workspace_limit, options=request.options,
        preferences=request.preferences,
    )  # fmt: skip
    found = plan.search(1, explain=False)
    return Found(found[0].workspace_bytes, tuple(move.slot for move in plan.lt.moves))


def find(request: Request, device: int) -> Found | None:
    """:func:`ask`, with ``None`` for every refusal."""
    try:
        return ask(request, device)
    except NvmathDeviceError:
        return None
