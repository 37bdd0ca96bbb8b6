# SPDX-License-Identifier: Apache-2.0
"""Random products: any types that cuBLASLt has, any strides, batches, epilogs, options."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from nvmath_device.dtypes import ElementType, bfloat16, float16, float32, float64, int8, int32, uint8
from nvmath_device.host.epilogs import EPILOGS, MatmulEpilog
from nvmath_device.host.lt_plan import plan_lt
from tests.host.lt_cases import FP8, Case, Operand, Types, place, strided_operands
from tests.host.lt_model import Memory

E = MatmulEpilog
E4M3, E5M2 = FP8

TYPES = [
    *(Types(x, x, x, x, x) for x in (float16, bfloat16, float32, float64)),
    *(Types(x, x, float32, float32, float32) for x in (float16, bfloat16)),
    *(Types(x, x, x, x, None, True) for x in (float32, float64)),
    *(Types(int8, int8, x, x) for x in (int8, int32, float32)),
    *(
        Types(a, b, x, x, bfloat16 if x is float32 else x)
        for a, b in ((E4M3, E4M3), (E4M3, E5M2), (E5M2, E4M3))
        for x in (float16, bfloat16, float32)
    ),
    *(Types(E4M3, E4M3, c, E4M3, c) for c in (float16, bfloat16)),
    *(Types(E4M3, E5M2, c, d, c) for c in (float16, bfloat16) for d in FP8),
    *(Types(E5M2, E4M3, c, d, c) for c in (float16, bfloat16) for d in FP8),
]


extents = st.one_of(st.integers(1, 17), st.sampled_from([1, 2, 4, 8, 16, 16, 32]))


@st.composite
def layouts(draw: Any, shape: tuple[int, ...], itemsize: int, *, distinct: bool = False, plain: bool = False) -> dict:
    """How an array lies: any order of axes, with steps, gaps, reversed and repeated axes, at any address of its type.

    ``distinct``: no two elements share memory. ``plain``: the matrices are of C or F order, or padded.
    """
    ndim = len(shape)
    order: Any = draw(st.sampled_from("CF"))
    gaps = [draw(st.sampled_from([0, 0, 0, 1, 3, 16])) for _ in shape]
    if plain:
        return {"order": order, "gaps": gaps}
    kind = draw(st.sampled_from(["dense", "padded", "aligned", "wild"]))
    offset = draw(st.sampled_from([0, 0, 256, 16, 4, 1])) * itemsize
    if kind == "dense":
        return {"order": order, "offset": offset}
    if kind == "padded":
        return {"order": order, "gaps": gaps, "offset": offset}
    if kind == "aligned":  # columns or rows start at multiples of 16 elements
        fastest = max(ndim - (2 if order == "F" else 1), 0)
        return {"order": order, "gaps": [-n % 16 if axis == fastest else 0 for axis, n in enumerate(shape)]}
    order = draw(st.permutations(range(ndim)))
    steps = [draw(st.sampled_from([1, 1, 1, 2, -1, -2])) for _ in shape]
    repeated = [] if distinct else [axis for axis in range(ndim) if draw(st.integers(0, 5)) == 5]
    return {"order": order, "steps": steps, "gaps": gaps, "repeated": repeated, "offset": offset}


class Maker:
    """Makes operands of small whole numbers."""

    def __init__(self, draw: Any, memory: Memory) -> None:
        self.draw, self.memory = draw, memory
        self.random = np.random.default_rng(draw(st.integers(0, 1 << 16)))

    def numbers(self, shape: tuple[int, ...], is_complex: bool = False) -> np.ndarray:
        values = self.random.integers(-2, 3, shape)
        return values + 1j * self.random.integers(-2, 3, shape) if is_complex else values

    def operand(
        self, shape: tuple[int, ...], element: ElementType, is_complex: bool = False, *, fill: bool = True,
        values: np.ndarray | None = None, distinct: bool = False, plain: bool = False, conjugated: bool = False,
    ) -> Operand:  # fmt: skip
        how = self.draw(layouts(shape, element.itemsize, distinct=distinct, plain=plain))
        if fill and values is None:
            seen = tuple(1 if axis in how.get("repeated", ()) else n for axis, n in enumerate(shape))
            values = np.broadcast_to(self.numbers(seen, is_complex), shape)
        return place(self.memory, values, element, shape, is_complex=is_complex, conjugated=conjugated, **how)

    def aux(self, name: str, shape: tuple[int, ...], element: ElementType, along: str, m: int, n: int) -> Operand:
        """Strides are plain, and tell the direction, where the shape leaves it open."""
        values = self.random.integers(0, 256, shape) if name == "relu_aux" else self.numbers(shape)
        if aux_shape(name, m, n, "rows") == aux_shape(name, m, n, "columns"):
            order = "F" if along == "rows" else "C"
            gap = self.draw(st.sampled_from([0, 16, 3]))
            gaps = [0] * len(shape)
            gaps[-2 if along == "rows" else -1] = gap
            return place(self.memory, values, element, shape, order=order, gaps=gaps)
        return self.operand(shape, element, values=values, distinct=True)

    def again(self, like: Operand) -> Operand:
        """Other numbers in an array that lies like this one, at another address."""
        v = like.view
        low, high = v.extent_bytes
        address = self.memory.allocate(high - low, offset=low % 4096, fill=0xFF if v.element.is_float else 0x6B)
        made = Operand(self.memory, v._replace(ptr=v.ptr - low + address))
        seen = tuple(1 if s == 0 else n for n, s in zip(v.shape, v.strides, strict=True))
        values = self.random.integers(0, 256, seen) if v.element is uint8 else self.numbers(seen, v.is_complex)
        made.stored[...] = np.broadcast_to(values, v.shape).astype(made.stored.dtype)
        made.remember()
        return made

    def anew(self, like: Operand) -> Operand:
        """Another array of the shape and type of this one, lying in any way."""
        v = like.view
        return self.operand(v.shape, v.element, v.is_complex, conjugated=v.conjugated)


def aux_shape(name: str, m: int, n: int, along: str) -> tuple[int, int]:
    packed, other = (m, n) if along == "rows" else (n, m)
    packed = math.ceil(packed / 128) * 16 if name == "relu_aux" else math.ceil(packed / 8) * 8
    return (packed, other) if along == "rows" else (other, packed)


def without_some(draw: Any, batch: tuple[int, ...], droppable: bool = True) -> tuple[int, ...]:
    """A batch that broadcasts to this one: some extents are 1, some leading ones missing."""
    start = draw(st.integers(0, len(batch))) if droppable else 0
    return tuple(1 if draw(st.integers(0, 3)) == 3 else extent for extent in batch[start:])


@st.composite
def cases(draw: Any) -> Case:
    types = draw(st.sampled_from(TYPES))
    memory = Memory()
    make = Maker(draw, memory)
    m, n, k = draw(extents), draw(extents), draw(st.one_of(st.integers(0, 17), st.just(32)))
    if types.a.itemsize == 1 and draw(st.booleans()):  # or nearly all would be rounded up
        m, n, k = (extent if draw(st.integers(0, 2)) == 0 else math.ceil(extent / 16) * 16 for extent in (m, n, k))
    batch = tuple(draw(st.lists(st.integers(1, 3), max_size=3)))
    kind = draw(st.sampled_from(["matrices"] * 6 + ["a is a vector", "b is a vector", "vectors"]))
    a_batch, b_batch = without_some(draw, batch), without_some(draw, batch)
    if kind in ("a is a vector", "vectors"):
        m, a_batch, b_batch = 1, (), batch
    if kind in ("b is a vector", "vectors"):
        n, a_batch, b_batch = 1, batch, ()
    if kind == "vectors":
        a_batch = batch = ()
    batch = np.broadcast_shapes(a_batch, b_batch)
    a_shape = (k,) if kind in ("a is a vector", "vectors") else (*a_batch, m, k)
    b_shape = (k,) if kind in ("b is a vector", "vectors") else (*b_batch, k, n)
    result = (*batch, *((m,) if len(a_shape) > 1 else ()), *((n,) if len(b_shape) > 1 else ()))
    is_complex = types.is_complex
    lazily = st.booleans() if is_complex else st.just(False)
    case = Case(
        memory, types, m, n, k, batch,
        make.operand(a_shape, types.a, is_complex, conjugated=draw(lazily)),
        make.operand(b_shape, types.b, is_complex, conjugated=draw(lazily)),
        conj=(draw(lazily), draw(lazily)),
        alpha=draw(st.sampled_from([1, 0] if types.d is int32 else [1, 2, -0.5] + [1 - 2j] * is_complex)),
        cc=draw(st.sampled_from([90, 90, 100])),
    )  # fmt: skip
    if draw(st.booleans()):
        forms = [result, (*batch, m, n), (m, n), (*without_some(draw, batch), m, n)]
        forms += [(1, n), (m, 1), (1, 1), (n,), (*without_some(draw, batch), *draw(st.sampled_from([(1, n), (m, 1)])))]
        shape = draw(st.sampled_from([form for form in forms if len(form) <= len(batch) + 2]))
        case.c = make.operand(shape, types.c, is_complex, conjugated=draw(lazily))
        case.beta = draw(st.sampled_from([1, 0] if types.d is int32 else [1, -0.5, 0]))
    elif types.d in FP8 and types.bias is not None:
        case.c = make.operand((m, n), types.c)  # so that C's type is this one
        case.beta = 1
    if draw(st.booleans()):
        case.out = make.operand(result, types.d, is_complex, fill=False, distinct=True)
    if types.bias is not None:
        add_epilog(draw, make, case)
    if types.a in FP8:
        names = [name for name in "abd" if getattr(types, name) in FP8]
        case.scales = {name: draw(st.sampled_from([0.5, 2.0, 4.0])) for name in names if draw(st.booleans())}
    if draw(st.integers(0, 9)) == 9:
        case.change["loop_batches"] = True
    if draw(st.integers(0, 9)) == 9:
        case.change["max_leading_bytes"] = 64
    return case


def add_epilog(draw: Any, make: Maker, case: Case) -> None:
    types, m, n, batch = case.types, case.m, case.n, case.batch
    offered = [e for e in EPILOGS if types.a not in FP8 or e not in (E.BGRADA, E.BGRADB)]
    case.epilog = draw(st.sampled_from([E.DEFAULT, *offered]))
    traits = EPILOGS[case.epilog]
    if traits.bias:
        case.along = along = draw(st.sampled_from(["rows", "columns"]))
        one = (m, 1) if along == "rows" else (1, n)
        forms = [one, (*batch, *one), (*without_some(draw, batch), *one), (*(1,) * (len(batch) + 2), *one)]
        if along == "rows":
            forms.append((m,))
        elif case.a.view.ndim == 1:
            forms.append((n,))
        assert types.bias is not None
        case.inputs["bias"] = make.operand(draw(st.sampled_from(forms)), types.bias)
    if traits.aux and traits.backward:
        case.along = along = draw(st.sampled_from(["rows", "columns"]))
        shape = (*batch, *aux_shape(traits.aux, m, n, along))
        element = uint8 if traits.aux == "relu_aux" else aux_type(types)
        case.inputs[traits.aux] = make.aux(traits.aux, shape, element, along, m, n)
    if types.d in FP8 and draw(st.booleans()):
        case.options["result_amax"] = True
    makes_fp8_aux = traits.aux == "gelu_aux" and not traits.backward and aux_type(types) in FP8
    case.aux_amax = makes_fp8_aux and draw(st.booleans())


def aux_type(types: Types) -> ElementType:
    return types.c if types.a is types.b is types.d is E4M3 else types.d


def reason_to_refuse(case: Case) -> str | None:
    """The argument that a plan cannot do justice to."""
    problem, traits = case.problem(), EPILOGS[case.epilog]
    contiguous = case.m if problem.order == "col_major" else case.n
    if case.types.a in FP8 and contiguous % 16 and (traits.aux or traits.gradient):
        return "epilog"
    if traits.aux == "gelu_aux" and problem.types.aux.itemsize == 1:
        return "epilog"
    largest = "result_amax" if case.options.get("result_amax") else "aux_amax" if case.aux_amax else None
    if largest:
        plain = replace(case, options={}, aux_amax=False).problem()
        if len(plan_lt(plain, strided_operands(case.operands(), case.out), case.rules(plain)).calls) > 1:
            return largest
    return None
