# SPDX-License-Identifier: Apache-2.0
"""Products to plan and to run without a GPU: operands in modelled memory, a plan carried out, and what it should give.

An :class:`Operand` lies in an allocation that ends where its elements end, and whatever is between them is poison, so
reading or writing beside it shows. :func:`carry_out` does what a plan says with the model of cublasLtMatmul, and
:func:`expected` is the same in logical terms, in float64.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from nvmath_device.dtypes import ElementType, float8_e4m3fn, float8_e5m2, float16, float32, uint8
from nvmath_device.host.array_view import ArrayView, canonical_strides, cuda_device
from nvmath_device.host.cublaslt_enums import MatmulDescAttribute
from nvmath_device.host.epilogs import EPILOGS, MatmulEpilog
from nvmath_device.host.faults import Rules, rules_for
from nvmath_device.host.gemm_types import cuda_data_type
from nvmath_device.host.lt_place import Move, Strided
from nvmath_device.host.lt_plan import SLOTS, LtPlan, plan_lt
from nvmath_device.host.options import MatmulEpilogPreferences, MatmulOptions, MatmulPlanPreferences
from nvmath_device.host.problem import Problem, plan_problem
from tests.host import lt_model
from tests.host.lt_model import Memory

E = MatmulEpilog
FP8 = (float8_e4m3fn, float8_e5m2)


# -- operands -----------------------------------------------------------------------------------------------


@dataclass
class Operand:
    """An array in modelled memory: ``view`` is what the library knows of it."""

    memory: Memory
    view: ArrayView
    before: bytes = b""

    @property
    def stored(self) -> np.ndarray:
        """The elements as they are in memory now, with logical axes."""
        v = self.view
        return self.memory.array(v.ptr, dtype_of(v.element, v.is_complex), v.shape, v.strides)

    @property
    def logical(self) -> np.ndarray:
        """What the array means, exactly."""
        stored = self.stored
        exact = stored.astype(np.complex128 if self.view.is_complex else np.float64)
        return exact.conj() if self.view.conjugated else exact

    @property
    def _everything(self) -> np.ndarray:
        low, high = self.view.extent_bytes
        return self.memory.at(low, high - low)

    def remember(self) -> None:
        self.before = self._everything.tobytes()

    def is_untouched(self) -> bool:
        """Whether nothing at all was written since :meth:`remember`."""
        return self._everything.tobytes() == self.before

    def is_whole(self) -> bool:
        """Whether nothing was written since :meth:`remember` but elements."""
        now = np.frombuffer(self._everything.tobytes(), np.uint8)
        owned = np.zeros(now.size, bool)
        low, item = self.view.extent_bytes[0], self.view.itemsize
        for index in np.ndindex(self.view.shape):
            start = self.view.ptr + sum(i * s for i, s in zip(index, self.view.strides, strict=True)) * item - low
            owned[start : start + item] = True
        return bool(np.all(owned | (now == np.frombuffer(self.before, np.uint8))))


def dtype_of(element: ElementType, is_complex: bool) -> np.dtype[Any]:
    return np.dtype(f"complex{16 * element.itemsize}") if is_complex else element.dtype


def place(
    memory: Memory,
    values: np.ndarray | None,
    element: ElementType,
    shape: Sequence[int],
    *,
    is_complex: bool = False,
    order: Sequence[int] | str = "C",
    steps: Sequence[int] = (),
    gaps: Sequence[int] = (),
    repeated: Sequence[int] = (),
    offset: int = 0,
    conjugated: bool = False,
) -> Operand:
    """An operand of this shape.

    ``order`` has its axes slowest first, or is "C" or "F" (of the matrices, with the batch outermost). ``steps`` has
    for each axis how many places apart its elements are, negative for backwards; ``gaps`` how many places follow each
    axis. Along ``repeated`` axes the stride is 0. ``offset``: bytes above an aligned address at which memory starts.
    ``values`` are what is stored; ``None`` leaves poison.
    """
    shape = tuple(shape)
    ndim = len(shape)
    axes = tuple(range(ndim))
    if order == "C":
        order = axes
    elif order == "F":
        order = (*axes[:-2], *axes[:-3:-1])
    steps = tuple(steps) or (1,) * ndim
    gaps = tuple(gaps) or (0,) * ndim
    strides, running = [0] * ndim, 1
    for axis in reversed(order):
        if axis in repeated:
            continue
        strides[axis] = running * steps[axis]
        running = running * abs(steps[axis]) * max(shape[axis], 1) + gaps[axis]
    known = canonical_strides(shape, tuple(strides))
    dtype = dtype_of(element, is_complex)
    below = -sum((n - 1) * s for n, s in zip(shape, known, strict=True) if s < 0)
    above = sum((n - 1) * s for n, s in zip(shape, known, strict=True) if s > 0)
    size = (below + above + 1) * dtype.itemsize if 0 not in shape else 0
    address = memory.allocate(size, offset=offset, fill=0xFF if element.is_float or element is uint8 else 0x6B)
    ptr = address + below * dtype.itemsize
    view = ArrayView(
        ptr, shape, known, element, is_complex, cuda_device(0), "generic", False, conjugated, None
    )  # fmt: skip
    operand = Operand(memory, view)
    if values is not None:
        operand.stored[...] = np.asarray(values).astype(dtype)
    operand.remember()
    return operand


# -- a plan carried out -------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """What came out: D and the auxiliary outputs, and everything that was copied on the way."""

    d: Operand
    outputs: dict[str, Operand]
    calls: int = 0
    arrays: dict[str, Operand] = field(default_factory=dict)


def strided_operands(operands: Mapping[str, Operand], out: Operand | None) -> dict[str, Strided]:
    """What ``plan_lt`` takes."""
    named = {("aux" if name.endswith("_aux") else name): Strided.of(o.view) for name, o in operands.items()}
    return named | ({} if out is None else {"out": Strided.of(out.view)})


def carry_out(
    problem: Problem,
    plan: LtPlan,
    operands: Mapping[str, Operand],
    out: Operand | None,
    memory: Memory,
    *,
    alpha: Any = 1,
    beta: Any = 0,
    scales: Mapping[str, float] | None = None,
    cc: int = 90,
) -> Outcome:
    """Do what a plan says: copies in, one modelled cublasLtMatmul for each of its calls, the copy out."""
    types, traits = problem.types, problem.traits
    if out is None:
        out = place(
            memory, None, types.d, problem.shapes.result, is_complex=types.is_complex, order=problem.result_order
        )
    outputs = {o.name: place(memory, None, o.element, o.shape, order=o.order) for o in problem.outputs}
    addresses = {name: operands[name].view.ptr for name in ("a", "b", "c", "bias") if name in operands}
    addresses["d"] = out.view.ptr
    if traits.gradient:
        addresses["bias"] = outputs[traits.gradient].view.ptr
    if traits.aux:
        addresses["aux"] = ({**operands} if traits.backward else outputs)[traits.aux].view.ptr
    part = types.a.itemsize if types.is_complex else None
    for move in plan.moves_in:
        inside = memory.allocate(move.elements * move.itemsize, fill=0 if move.zeroed else 0xFF)
        _copy(memory, move, addresses[move.slot], inside, part)
        addresses[move.slot] = inside
    if plan.move_out:
        addresses["d"] = memory.allocate(plan.move_out.elements * plan.move_out.itemsize)
    addresses.setdefault("c", addresses["d"])

    attributes = dict(plan.attributes)
    for attribute, name in plan.scales:
        attributes[attribute] = _float_at(memory, (scales or {})[name])
    if problem.result_amax:
        attributes[MatmulDescAttribute.AMAX_D_POINTER] = outputs["result_amax"].view.ptr
    if problem.aux_amax:
        attributes[MatmulDescAttribute.EPILOGUE_AUX_AMAX_POINTER] = outputs["aux_amax"].view.ptr
    for offsets in plan.calls:
        at = {slot: addresses.get(slot, 0) + step for slot, step in zip(SLOTS, offsets, strict=True)}
        if traits.bias or traits.gradient:
            attributes[MatmulDescAttribute.BIAS_POINTER] = at["bias"]
        if traits.aux:
            attributes[MatmulDescAttribute.EPILOGUE_AUX_POINTER] = at["aux"]
        left, right = ("b", "a") if plan.swapped else ("a", "b")
        lt_model.matmul(
            types.compute, types.scale, attributes, plan.a, plan.b, plan.c, plan.d, memory,
            (at[left], at[right], at["c"], at["d"]), alpha=alpha, beta=beta, cc=cc,
        )  # fmt: skip
    if plan.move_out:
        _copy(memory, plan.move_out, out.view.ptr, addresses["d"], part)
    return Outcome(out, outputs, len(plan.calls))


def _copy(memory: Memory, move: Move, outside: int, inside: int, part: int | None) -> None:
    """A :class:`Move` as its docstring says: D's goes out, every other goes in."""
    unsigned = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}[move.itemsize]
    if move.conjugate:
        unsigned = {4: np.complex64, 8: np.complex128}[part or 0]
    theirs = memory.array(outside, np.dtype(unsigned), move.shape, move.outside)
    ours = memory.array(inside, np.dtype(unsigned), move.shape, move.inside)
    source, target = (ours, theirs) if move.slot == "d" else (theirs, ours)
    target[...] = source.conj() if move.conjugate else source


def _float_at(memory: Memory, value: float) -> int:
    address = memory.allocate(4)
    memory.array(address, np.dtype(np.float32), (1,), (1,))[0] = value
    return address


# -- what should come out -----------------------------------------------------------------------------------


def gelu(x: np.ndarray) -> np.ndarray:
    return np.vectorize(lambda v: 0.5 * v * (1 + math.tanh(0.7978845608028654 * (v + 0.044715 * v**3))), [float])(x)


def gelu_slope(x: np.ndarray) -> np.ndarray:
    """By a central difference of fourth order, whose error is below 1e-11 here."""
    h = 1e-3
    return (8 * (gelu(x + h) - gelu(x - h)) - (gelu(x + 2 * h) - gelu(x - 2 * h))) / (12 * h)


def along_of(output_order: tuple[int, ...]) -> str:
    """The direction in which an auxiliary matrix is packed: its fastest axis."""
    return "rows" if output_order[-1] == len(output_order) - 2 else "columns"


@dataclass
class Logical:
    """A product in logical terms. Arrays are exact; ``aux`` is (…, m, n): the mask as booleans, or what GELU got."""

    a: np.ndarray
    b: np.ndarray
    c: np.ndarray | None = None
    bias: np.ndarray | None = None
    aux: np.ndarray | None = None
    epilog: MatmulEpilog = E.DEFAULT
    alpha: Any = 1
    beta: Any = 0
    scales: Mapping[str, float] = field(default_factory=dict)
    bias_is_row_of_vector_product: bool = False


def expected(product: Logical, batch: tuple[int, ...]) -> dict[str, np.ndarray]:
    """d, before, after (…, m, n), and gradients as (…, extent), all unrounded."""
    a = product.a[None, :] if product.a.ndim == 1 else product.a
    b = product.b[:, None] if product.b.ndim == 1 else product.b
    full = (*batch, a.shape[-2], b.shape[-1])
    x = np.broadcast_to(np.einsum("...mk,...kn->...mn", a, b), full) * product.alpha
    x = x * product.scales.get("a", 1) * product.scales.get("b", 1)
    if product.c is not None and product.beta != 0:
        vectors = (*batch, *full[-2:][: product.a.ndim > 1], *full[-1:][: product.b.ndim > 1])
        c = product.c.reshape(full) if product.c.shape == vectors else product.c
        x = x + product.beta * product.scales.get("c", 1) * np.broadcast_to(c, full)
    traits = EPILOGS[product.epilog]
    if product.bias is not None:
        bias = product.bias
        if bias.ndim == 1:
            bias = bias[None, :] if product.bias_is_row_of_vector_product else bias[:, None]
        while bias.ndim > len(full):
            bias = bias[0]
        x = x + np.broadcast_to(bias, full)
    before = x
    if traits.backward:
        x = np.where(product.aux, x, 0) if traits.activation == "relu" else x * gelu_slope(product.aux)
    elif traits.activation:
        x = np.maximum(x, 0) if traits.activation == "relu" else gelu(x)
    return {
        "d": x * product.scales.get("d", 1),
        "before": before,
        "after": x,
        "bgrada": np.broadcast_to(a.sum(-1), full[:-1]),
        "bgradb": np.broadcast_to(b.sum(-2), (*batch, full[-1])),
        "rows": x.sum(-1),
        "columns": x.sum(-2),
    }


def unpack(operand: Operand, along: str, m: int, n: int) -> np.ndarray:
    """A mask as booleans (…, m, n)."""
    axis, extent = (-2, m) if along == "rows" else (-1, n)
    return np.unpackbits(operand.stored, axis=axis, bitorder="little", count=extent).astype(bool)


def close(found: np.ndarray, wanted: np.ndarray, element: ElementType, *, exact: bool) -> bool:
    """Whether stored numbers are these ones rounded to their type; GELU is known to one unit in the last place."""
    dtype = dtype_of(element, np.iscomplexobj(wanted))
    if found.shape != wanted.shape:
        return False
    if exact:
        return bool(np.array_equal(found, lt_model.rounded(wanted, dtype)))
    limit = float(np.finfo(np.float64).max) if element.itemsize > 1 else 448.0 if element is float8_e4m3fn else 57344.0
    wanted = np.clip(wanted, -limit, limit)
    unit = 2.0 ** (1 - element.significand)
    return bool(np.all(np.abs(found.astype(np.float64) - wanted) <= unit * np.abs(wanted) + 1e-9 + _tiny(element)))


def _tiny(element: ElementType) -> float:
    """Spacing of subnormal numbers."""
    return {float8_e4m3fn: 2.0**-9, float8_e5m2: 2.0**-16, float16: 2.0**-24}.get(element, 0.0)


# -- a product as it is given -----------------------------------------------------------------------------------

VERSION = (13, 5, 0)


@dataclass(frozen=True)
class Types:
    """Element types of a product that cuBLASLt has, from its documentation."""

    a: ElementType
    b: ElementType
    c: ElementType
    d: ElementType
    bias: ElementType | None = None
    is_complex: bool = False


@dataclass
class Case:
    """Everything that is given to the library for one product."""

    memory: Memory
    types: Types
    m: int
    n: int
    k: int
    batch: tuple[int, ...]
    a: Operand
    b: Operand
    c: Operand | None = None
    out: Operand | None = None
    epilog: MatmulEpilog = E.DEFAULT
    inputs: dict[str, Operand] = field(default_factory=dict)
    along: str | None = None  # of the input of the epilog, where it has one
    conj: tuple[bool, bool] = (False, False)
    alpha: Any = 1
    beta: Any = 0
    scales: dict[str, float] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    aux_amax: bool = False
    cc: int = 90
    change: dict[str, Any] = field(default_factory=dict)  # of the rules

    def problem(self) -> Problem:
        result = cuda_data_type(self.types.d, self.types.is_complex)
        return plan_problem(
            self.a.view,
            self.b.view,
            self.c.view if self.c else None,
            out=self.out.view if self.out else None,
            conj=self.conj,
            epilog=self.epilog,
            epilog_inputs={name: operand.view for name, operand in self.inputs.items()},
            scaled=frozenset(self.scales),
            options=MatmulOptions(result_type=result, **self.options),
            preferences=MatmulPlanPreferences(epilog=MatmulEpilogPreferences(aux_amax=self.aux_amax)),
        )

    def rules(self, problem: Problem) -> Rules:
        return replace(rules_for(problem.types, self.cc, VERSION), **self.change)

    def operands(self) -> dict[str, Operand]:
        return {"a": self.a, "b": self.b, **({"c": self.c} if self.c else {}), **self.inputs}

    def logical(self) -> Logical:
        aux = None
        for name in ("relu_aux", "gelu_aux"):
            if name in self.inputs:
                operand = self.inputs[name]
                whole = operand.logical[..., : self.m, : self.n] if name == "gelu_aux" else None
                aux = unpack(operand, self.along or "", self.m, self.n) if whole is None else whole
        a, b = (x.logical.conj() if conj else x.logical for x, conj in zip((self.a, self.b), self.conj, strict=True))
        return Logical(
            a, b, self.c.logical if self.c else None, self.inputs["bias"].logical if "bias" in self.inputs else None,
            aux, self.epilog, self.alpha, self.beta, self.scales, self.along == "columns",
        )  # fmt: skip


def run(case: Case) -> tuple[Problem, Any, Outcome]:
    """Plan a case and carry it out."""
    problem = case.problem()
    plan = plan_lt(problem, strided_operands(case.operands(), case.out), case.rules(problem))
    outcome = carry_out(
        problem, plan, case.operands(), case.out, case.memory, alpha=case.alpha, beta=case.beta, scales=case.scales,
        cc=case.cc,
    )  # fmt: skip
    return problem, plan, outcome


def check(case: Case) -> tuple[Problem, Any]:
    """Plan a case, carry it out, and compare all that comes out."""
    before = {name: operand.logical for name, operand in case.operands().items()}
    want = expected(case.logical(), case.batch)
    problem, plan, outcome = run(case)
    exact = EPILOGS[case.epilog].activation != "gelu"
    vectors = outcome.d.view.shape
    assert close(outcome.d.stored, want["d"].reshape(vectors), case.types.d, exact=exact), "d"
    if case.out is not None:
        assert case.out.is_whole(), "written beside the elements of out"
    for name, operand in case.operands().items():
        assert np.array_equal(operand.logical, before[name], equal_nan=True), f"{name} was changed"
    check_outputs(case, problem, outcome, want, exact)
    for matrix in (plan.a, plan.b, plan.c, plan.d):
        assert matrix.batch_count * len(plan.calls) == math.prod(case.batch)
    return problem, plan


def check_outputs(case: Case, problem: Problem, outcome: Outcome, want: dict[str, np.ndarray], exact: bool) -> None:
    m, n = case.m, case.n
    assert set(outcome.outputs) == {
        *EPILOGS[case.epilog].outputs,
        *(["result_amax"] if case.options.get("result_amax") else []),
        *(["aux_amax"] if case.aux_amax else []),
    }
    for made in problem.outputs:
        operand = outcome.outputs[made.name]
        stored, along = operand.stored, along_of(made.order)
        if made.name == "relu_aux":
            packed = (math.ceil(m / 128) * 16, n) if along == "rows" else (m, math.ceil(n / 128) * 16)
            assert stored.shape == (*case.batch, *packed)
            assert np.array_equal(unpack(operand, along, m, n), want["before"] > 0)
        elif made.name == "gelu_aux":
            packed = (math.ceil(m / 8) * 8, n) if along == "rows" else (m, math.ceil(n / 8) * 8)
            assert stored.shape == (*case.batch, *packed)
            assert close(stored[..., :m, :n], want["before"], made.element, exact=True)
        elif made.name in ("result_amax", "aux_amax"):
            source = want["after" if made.name == "result_amax" else "before"]
            assert close(stored, np.abs(source).max()[None], float32, exact=exact)
        else:
            runs = {"bgrada": "rows", "bgradb": "down"}.get(made.name, problem.along)
            column = m if runs == "rows" else n
            alone, each = {"columns": ((1, n), (1, n))}.get(runs, ((column,), (column, 1)))
            assert stored.shape == ((*case.batch, *each) if case.batch else alone)
            sums = want[made.name if made.name.startswith("bgrad") else problem.along]
            assert close(stored.reshape(sums.shape), sums, made.element, exact=exact)
        if case.along and made.name in ("relu_aux", "gelu_aux") and not m == n == 1:
            assert along == case.along
