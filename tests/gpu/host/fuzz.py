# SPDX-License-Identifier: Apache-2.0
"""Any product: a strategy for Hypothesis over types, extents, strides, libraries, C, out, epilogs and batches.

:func:`explore` runs many and goes on after a failure, so that one run tells all there is. Examples are not shrunk:
they are small, and time on a GPU is dear.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.gpu.host.libraries import context_status, libraries_for, strides_for
from tests.gpu.host.product_cases import aux_of, may_be_missing, numbers
from tests.gpu.host.product_checks import Wanted, check, close, expected
from tests.gpu.host.products import (
    AUX_OF,
    BACKWARD,
    COMPLEX,
    EPILOGS,
    FLOATS,
    FP8,
    FP8_KINDS,
    HAS_BIAS,
    INT8,
    WIDE,
    Case,
    Given,
    Kind,
    Lay,
    Outcome,
    Shape,
    bits_of,
    lay,
    run,
)

MOST_FAILURES = 8

kinds = st.one_of(
    st.sampled_from([*FLOATS.values()]), st.sampled_from([*FLOATS.values()]), st.sampled_from([*COMPLEX.values()]),
    st.sampled_from([*WIDE.values(), *INT8.values()]), st.sampled_from([*FP8_KINDS.values()]),
)  # fmt: skip
small = st.one_of(st.integers(1, 20), st.sampled_from([1, 2, 4, 8, 16, 32, 64, 130]))


def sometimes(draw: Any, one_in: int) -> bool:
    return bool(draw(st.integers(0, one_in - 1)) == 0)


@dataclass
class Maker:
    """Draws operands for one product."""

    draw: Any
    device: str
    rng: np.random.Generator
    allowed: tuple[str, ...]  # libraries

    def library(self, name: str) -> str:
        there = libraries_for(name, self.device)
        return str(self.draw(st.sampled_from([x for x in self.allowed if x in there] or there)))

    def operand(self, shape: Shape, name: str, *, library: str = "", empty: bool = False, plain: bool = False) -> Given:
        """Random numbers (``empty``: an out) with random strides in a random library."""
        library = library or self.library(name)
        known = self.layout(shape, library, distinct=empty, plain=plain)
        repeated = known.get("repeated", ())
        seen = tuple(1 if axis in repeated else extent for axis, extent in enumerate(shape))
        values = None if empty else np.broadcast_to(numbers(self.rng, seen, name), shape)
        lazy = library == "torch" and name.startswith("complex") and not empty and sometimes(self.draw, 2)
        return Given(lay(values, name, shape=shape, **known), library, lazy)

    def layout(self, shape: Shape, library: str, *, distinct: bool, plain: bool) -> dict[str, Any]:
        negative, zero = strides_for(library)
        order = self.draw(st.sampled_from("CF"))
        kind = self.draw(st.sampled_from(["dense", "dense", "padded", "wild"]))
        if plain or kind == "dense":
            return {
                "order": order,
                "offset": 0 if plain or not sometimes(self.draw, 3) else self.draw(st.integers(1, 16)),
            }
        gaps = [self.draw(st.sampled_from([0, 0, 1, 3, 16])) for _ in shape]
        offset = self.draw(st.sampled_from([0, 0, 1, 4, 16]))
        if kind == "padded":
            return {"order": order, "gaps": gaps, "offset": offset}
        steps = [self.draw(st.sampled_from([1, 1, 2, *([-1, -2] if negative else [])])) for _ in shape]
        repeated = [axis for axis in range(len(shape)) if zero and not distinct and sometimes(self.draw, 6)]
        axes = self.draw(st.permutations(range(len(shape))))
        return {"order": axes, "steps": steps, "gaps": gaps, "repeated": repeated, "offset": offset}

    def part(self, batch: Shape, *, droppable: bool = True) -> Shape:
        """A batch that broadcasts to this one."""
        start = self.draw(st.integers(0, len(batch))) if droppable else 0
        return tuple(1 if sometimes(self.draw, 4) else extent for extent in batch[start:])


def extents(draw: Any, kind: Kind, epilog: str) -> tuple[int, int, int]:
    m, n, k = draw(small), draw(small), draw(small)
    must_fit = epilog in AUX_OF or "BGRAD" in epilog  # auxiliary arrays are not rounded up
    if kind.a in FP8 and (must_fit or draw(st.booleans())):
        m, n, k = (16 * draw(st.integers(1, 5)) for _ in range(3))
    if epilog not in AUX_OF and "BGRAD" not in epilog and sometimes(draw, 25):
        return draw(st.sampled_from([(0, n, k), (m, 0, k), (m, n, 0)]))  # type: ignore[no-any-return]
    return m, n, k


@st.composite
def cases(draw: Any, device: str) -> Case:
    kind = draw(kinds)
    # cuBLASLt sums op(A) and op(B) along K only where fp8 products cannot have it.
    offered = [e for e in EPILOGS if not (kind.a in FP8 and e in ("BGRADA", "BGRADB")) and not may_be_missing(kind, e)]
    epilog = draw(st.sampled_from(offered)) if kind.bias and sometimes(draw, 2) else "DEFAULT"
    m, n, k = extents(draw, kind, epilog)
    names = libraries_for("float32", device)
    allowed = (draw(st.sampled_from(names)),) if draw(st.booleans()) else tuple(draw(st.permutations(names))[:3])
    make = Maker(draw, device, np.random.default_rng(draw(st.integers(0, 2**20))), allowed)
    batch = tuple(draw(st.lists(st.integers(1, 3), max_size=2)))
    form = draw(st.sampled_from(["matrices"] * 7 + ["row", "column", "both"])) if epilog not in AUX_OF else "matrices"
    a_batch, b_batch = make.part(batch), make.part(batch)
    if form in ("row", "both"):
        m, a_batch, b_batch = 1, (), batch
    if form in ("column", "both"):
        n, a_batch, b_batch = 1, batch, ()
    if form == "both":
        a_batch = b_batch = ()
    if "BGRAD" in epilog and form != "matrices":
        epilog = "DEFAULT"
    batch = np.broadcast_shapes(a_batch, b_batch)
    given = {
        "a": make.operand((k,) if form in ("row", "both") else (*a_batch, m, k), kind.a),
        "b": make.operand((k,) if form in ("column", "both") else (*b_batch, k, n), kind.b),
    }
    case = Case(kind, given, epilog=epilog, form=draw(st.sampled_from(["function", "object", "planned for out"])))
    add_factors(draw, case)
    add_c(draw, make, case, (m, n), batch)
    add_epilog(draw, make, case, (m, n), batch)
    if sometimes(draw, 3):
        on_cpu = given["a"].library == "numpy"
        there = [x for x in libraries_for(kind.d, device) if x != "numpy" or on_cpu]
        given["out"] = make.operand(case.result_shape, kind.d, library=draw(st.sampled_from(there)), empty=True)
    return case


def add_factors(draw: Any, case: Case) -> None:
    kind = case.kind
    if kind.d == "int32":
        case.alpha = draw(st.sampled_from([None, 1, 0]))
    else:
        case.alpha = draw(st.sampled_from([None, None, 2, -0.5, *([1 - 2j] if kind.is_complex else [])]))
    if kind.is_complex:
        case.conj = draw(st.booleans()), draw(st.booleans())
    if kind.a in FP8:
        scaled = [x for x in "abd" if getattr(kind, x) in FP8 and draw(st.booleans())]
        case.scales = {x: draw(st.sampled_from([0.5, 2.0])) for x in scaled}


def add_c(draw: Any, make: Maker, case: Case, mn: Shape, batch: Shape) -> None:
    if not sometimes(draw, 3):
        return
    m, n = mn
    forms = [case.result_shape, (*batch, m, n), (m, n), (*make.part(batch), m, n), (1, n), (m, 1), (1, 1), (n,)]
    case.given["c"] = make.operand(draw(st.sampled_from(forms)), case.kind.c)
    case.beta = draw(st.sampled_from([1, 0] if case.kind.d == "int32" else [1, -0.5, 0]))


def add_epilog(draw: Any, make: Maker, case: Case, mn: Shape, batch: Shape) -> None:
    (m, n), kind, epilog = mn, case.kind, case.epilog
    if epilog not in HAS_BIAS and epilog not in BACKWARD:
        return
    case.along = draw(st.sampled_from(["rows", "columns"]))
    if epilog in HAS_BIAS:
        one = (m, 1) if case.along == "rows" else (1, n)
        shapes = [one, (*batch, *one), (*make.part(batch), *one)]
        if case.along == "rows":
            shapes.append((m,))
        assert kind.bias is not None
        case.given["bias"] = make.operand(draw(st.sampled_from(shapes)), kind.bias)
        if m == n == 1:
            case.along = None  # a number is along both
    else:
        name = AUX_OF[epilog]
        library = make.library("uint8" if name == "relu_aux" else str(kind.aux))
        case.given[name] = aux_of(make.rng, kind, library, name, batch, m, n, case.along)


# -- running ------------------------------------------------------------------------------------------------


@dataclass
class Tally:
    """What a run of many examples came to."""

    examples: int = 0
    reached: int = 0  # cublasLtMatmul
    copied: int = 0  # an operand or the result, on the GPU
    words: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    dead: bool = False


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Counts calls of cublasLtMatmul and strided copies on the GPU while it is open, of plans made meanwhile."""
    from nvmath_device.host import cublaslt, lt_execution

    calls: Counter[str] = Counter()
    prototype, apply = cublaslt._PLAIN_MATMUL, lt_execution.apply

    def counting(address: int) -> Callable[..., int]:
        function = prototype(address)

        def call(*arguments: Any) -> int:
            calls["matmul"] += 1
            return int(function(*arguments))

        return call

    def applied(*arguments: Any) -> None:
        calls["copy"] += 1
        apply(*arguments)

    cublaslt._PLAIN_MATMUL, lt_execution.apply = counting, applied  # type: ignore[assignment]
    try:
        yield calls
    finally:
        cublaslt._PLAIN_MATMUL, lt_execution.apply = prototype, apply


def twin_of(case: Case) -> Case:
    """The same product of NumPy arrays."""

    def numpy(given: Given) -> Given:
        stored = given.lay
        if given.lazy:
            stored = Lay(stored.buffer.conj(), stored.start, stored.shape, stored.strides)
        return Given(stored, "numpy")

    return replace(case, given={name: numpy(g) for name, g in case.given.items()})


def check_example(case: Case, device: str, **options: Any) -> None:
    """Against NumPy in float64, and against what execution on the CPU makes of the same operands."""
    wanted = expected(case)
    outcome = run(case, device, **options)
    check(case, outcome, wanted)
    if device == "cuda":
        assert (status := context_status()) == 0, f"the CUDA context answers {status}"
        compare(case, outcome, run(twin_of(case), "cpu", execution="cpu"), wanted)


def compare(case: Case, gpu: Outcome, cpu: Outcome, wanted: dict[str, Wanted]) -> None:
    """Both are within a bound of the same numbers, so within twice the bound of each other."""
    m, n, _ = case.mnk
    for name, want in wanted.items():
        ours, other = gpu.arrays[name], cpu.arrays[name]
        assert ours.shape == other.shape or case.along is None, name
        if name == "relu_aux":
            if case.along is not None:
                assert want.sure is not None
                differ = bits_of(ours, m, n, case.along) != bits_of(other, m, n, case.along)
                assert not np.any(differ & want.sure), name
            continue
        if name == "gelu_aux":
            ours, other = ours[..., :m, :n], other[..., :m, :n]
        exact = other.astype(np.complex128 if other.dtype.kind == "c" else np.float64)
        close(ours, Wanted(exact, 2 * want.allowed.reshape(exact.shape)), name)


def explore(number: int, examples: int, device: str, **options: Any) -> Tally:
    """Run ``examples`` products; ``number`` is the seed of their choice."""
    tally = Tally()

    @seed(number)
    @settings(
        max_examples=examples, database=None, phases=[Phase.generate], deadline=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(cases(device))
    def each(case: Case) -> None:
        if tally.dead or tally.examples >= examples or len(tally.failures) >= MOST_FAILURES:
            return
        tally.examples += 1
        before = calls.copy()
        try:
            check_example(case, device, **options)
        except Exception as error:
            where = traceback.format_exc(limit=-3)
            tally.failures.append(f"{type(error).__name__}: {error}\n{case}\n{where}")
        tally.dead = device == "cuda" and context_status() != 0
        done = calls - before
        tally.reached += done["matmul"] > 0
        tally.copied += done["copy"] > 0
        tally.words.update([str(case.kind), case.epilog, *{g.library for g in case.given.values()}])

    with counted() as calls:
        each()
    return tally
