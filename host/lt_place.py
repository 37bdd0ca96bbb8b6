# SPDX-License-Identifier: Apache-2.0
"""Where cuBLASLt finds an operand: in the user's array, or in a copy, and why. Pure arithmetic.

Here is what all operands have in common, and the placing of an epilog's: bias, gradient, auxiliary matrix. A, B, C and
D are placed by ``lt_plan``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from nvmath_device.descriptors import ROW_MAJOR
from nvmath_device.host.array_results import dense_strides
from nvmath_device.host.cublaslt_enums import Operation
from nvmath_device.host.epilogs import aux_layout
from nvmath_device.host.faults import Rules
from nvmath_device.host.matrix_strides import broadcast_strides
from nvmath_device.host.problem import Problem
from nvmath_device.host.shapes import Shape

BIAS_ALIGNMENT = 16  # bytes; with less cuBLASLt has no algorithm for fp8, and a copy of a vector costs little
TEMPORARY_ALIGNMENT = 16  # bytes that leading dimensions of copies are rounded up to, for vector loads


class Strided(NamedTuple):
    """Where an operand's elements are: all of a plan's knowledge of an array."""

    shape: Shape
    strides: Shape
    alignment: int  # bytes; a power of two that divides the address

    @classmethod
    def of(cls, view: object) -> Strided:
        return cls(view.shape, view.strides, view.alignment)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Move:
    """A copy between an operand and memory of its own. Strides and extents are in elements.

    Attributes:
        slot: which operand.
        shape: what is copied.
        outside: strides of the user's array.
        inside: strides in the memory of its own.
        elements: size of this memory.
        zeroed: it is filled with zeros first.
        conjugate: the copy is the complex conjugate.
        why: in words.
    """

    slot: str
    shape: Shape
    outside: Shape
    inside: Shape
    elements: int
    itemsize: int
    zeroed: bool
    conjugate: bool
    why: str


class Placed(NamedTuple):
    """An operand as cuBLASLt reads it: a leading dimension, batch strides (elements), and perhaps a copy."""

    ld: int
    operation: Operation
    batch: Shape
    move: Move | None


def round_up(extent: int, multiple: int) -> int:
    return -(-extent // multiple) * multiple


def misaligned(alignment: int, batch: Shape, itemsize: int, rules: Rules) -> str:
    needed = max(rules.pointer, itemsize)
    if alignment < needed:
        return f"its address is aligned to {alignment} bytes and {needed} are needed"
    if any(s * itemsize % needed for s in batch):
        return f"its matrices do not all start at a multiple of {needed} bytes"
    return ""


def leading_dimension(inner: int, itemsize: int, rules: Rules) -> int:
    """The leading dimension of a copy."""
    return round_up(max(inner, 1), max(rules.leading, TEMPORARY_ALIGNMENT // itemsize, 1))


def move_of(
    slot: str, batch: Shape, batch_strides: Shape, extents: Shape, outside: Shape, inside: Shape, matrix_elements: int,
    itemsize: int, *, zeroed: bool, conjugate: bool, why: str,
) -> Move:  # fmt: skip
    """A copy into matrices one behind the other. Axes along which the batch is broadcast are copied once."""
    batch = tuple(1 if s == 0 else e for e, s in zip(batch, batch_strides, strict=True))
    stacked = tuple(s * matrix_elements for s in dense_strides(batch, tuple(range(len(batch)))))
    elements = prod(batch) * matrix_elements
    strides = (*batch_strides, *outside), (*stacked, *inside)
    return Move(slot, (*batch, *extents), *strides, elements, itemsize, zeroed, conjugate, why)


# -- vectors and matrices of the epilog ---------------------------------------------------------------------

_NOTHING = Operation.N


def place_bias(problem: Problem, bias: Strided | None, extent: int, wanted: int) -> Placed:
    """A bias, or the gradient of one: a vector of ``extent`` elements for each product."""
    batch, traits = problem.shapes.batch, problem.traits
    if traits.gradient:
        gradient = next(o for o in problem.outputs if o.name == traits.gradient)
        size = prod(gradient.shape) // problem.shapes.batch_count
        return Placed(1, _NOTHING, tuple(s * size for s in dense_strides(batch, tuple(range(len(batch))))), None)
    if not traits.bias:
        return Placed(1, _NOTHING, (0,) * len(batch), None)
    assert bias is not None
    assert problem.bias_shape is not None
    itemsize = problem.types.bias.itemsize
    own_batch, strides = problem.bias_shape[:-2], bias.strides
    if len(bias.shape) == 1:
        strides = (*strides, 0) if problem.along == "rows" else (0, *strides)
    strides = strides[len(strides) - len(problem.bias_shape) :]
    own_strides, step = strides[:-2], strides[-2] if problem.along == "rows" else strides[-1]
    in_place = broadcast_strides(own_batch, own_strides, batch)
    assert in_place is not None
    why = ""
    if wanted != extent:
        why = f"{extent} elements are rounded up to {wanted}"
    elif step != 1 and extent > 1:
        why = f"its elements are {step} apart and must be contiguous"
    elif bias.alignment < BIAS_ALIGNMENT:
        why = f"its address is aligned to {bias.alignment} bytes and {BIAS_ALIGNMENT} are needed"
    if not why:
        return Placed(1, _NOTHING, in_place, None)
    length = round_up(wanted, TEMPORARY_ALIGNMENT // itemsize)
    move = move_of(
        "bias", own_batch, own_strides, (extent, 1), (step, 0), (1, length), length, itemsize,
        zeroed=wanted != extent, conjugate=False, why=why,
    )  # fmt: skip
    moved = broadcast_strides(move.shape[:-2], move.inside[:-2], batch)
    assert moved is not None
    return Placed(1, _NOTHING, moved, move)


def place_aux(problem: Problem, aux: Strided | None, extents: Shape) -> Placed:
    """The auxiliary matrix; ``ld`` and batch strides are in bytes of a mask or elements of a GELU input."""
    batch, traits = problem.shapes.batch, problem.traits
    if not traits.aux:
        return Placed(1, _NOTHING, (0,) * len(batch), None)
    m, n = extents  # in cuBLASLt's frame, where it always runs along rows
    form = aux_layout(traits.aux, m, n, "rows")
    dense = tuple(s * form.rows * n for s in dense_strides(batch, tuple(range(len(batch)))))
    if not traits.backward:
        return Placed(form.rows, _NOTHING, dense, None)
    assert aux is not None
    contiguous, across = (aux.strides[-2], aux.strides[-1])
    if problem.order == ROW_MAJOR:
        contiguous, across = across, contiguous
    unit = 16 if traits.aux == "relu_aux" else 8
    itemsize = 1 if traits.aux == "relu_aux" else problem.types.aux.itemsize
    steps = [s for e, s in zip(batch, aux.strides[:-2], strict=True) if e > 1]
    ld = across if n > 1 else form.rows
    why = ""
    if contiguous != 1 and form.rows > 1:
        why = "it is not contiguous along the direction it is packed in"
    elif ld < form.rows or ld % unit or any(s % unit for s in steps):
        why = f"its strides must be multiples of {unit} and not overlap"
    elif aux.alignment < 16:
        why = f"its address is aligned to {aux.alignment} bytes and 16 are needed"
    if not why:
        return Placed(ld, _NOTHING, aux.strides[:-2], None)
    move = move_of(
        "aux", batch, aux.strides[:-2], (form.rows, n), (contiguous, across), (1, form.rows), form.rows * n, itemsize,
        zeroed=False, conjugate=False, why=why,
    )  # fmt: skip
    moved = broadcast_strides(move.shape[:-2], move.inside[:-2], batch)
    assert moved is not None
    return Placed(form.rows, _NOTHING, moved, move)
