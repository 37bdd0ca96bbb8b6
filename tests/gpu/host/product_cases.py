# SPDX-License-Identifier: Apache-2.0
"""Cases for products, of one element type and one library at a time: layouts, batches, vectors, C, out, epilogs.

The tests on a GPU and their twin on the CPU go through the same cases.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tests.gpu.host.libraries import strides_for
from tests.gpu.host.products import AUX_OF, BACKWARD, EPILOGS, HAS_BIAS, Case, Given, Kind, Lay, Shape, aux_extents, lay

# How arrays lie: keywords of ``lay`` for the last two axes.
LAYOUTS: dict[str, Mapping[str, Any]] = {
    "C": {},
    "F": {"order": "F"},
    "C, padded": {"gaps": (0, 16)},
    "F, padded": {"order": "F", "gaps": (16, 0)},
    "C, off by one element": {"offset": 1},
    "F, odd leading dimension": {"order": "F", "gaps": (3, 0)},
    "every second row": {"steps": (2, 1)},
    "every second column": {"steps": (1, 2)},
    "both axes stepped": {"steps": (3, 2), "offset": 3},
    "rows reversed": {"steps": (-1, 1)},
    "both axes reversed": {"steps": (-1, -2), "order": "F"},
    "one row repeated": {"repeated": (-2,)},
    "one column repeated": {"repeated": (-1,)},
    "one number repeated": {"repeated": (-2, -1)},
}


def fits(layout: Mapping[str, Any], library: str) -> bool:
    negative, zero = strides_for(library)
    return (negative or min(layout.get("steps", (1,))) > 0) and (zero or not layout.get("repeated"))


def numbers(rng: np.random.Generator, shape: Shape, name: str) -> np.ndarray:
    """Random numbers of an element type, as they will be stored only after rounding."""
    if name in ("int8", "int32"):
        return rng.integers(-100, 101, shape)
    real = rng.standard_normal(shape)
    return real + 1j * rng.standard_normal(shape) if name.startswith("complex") else real


def array(rng: np.random.Generator, shape: Shape, name: str, layout: Mapping[str, Any] | None = None) -> Lay:
    """A new operand of random numbers; ``layout`` is of the last two axes, those before them are outside of them."""
    known = dict(layout or {})
    ndim, outer = len(shape), len(shape) - 2
    for key, neutral in (("steps", 1), ("gaps", 0)):
        if key in known and ndim >= 2:
            known[key] = (neutral,) * outer + tuple(known[key])
        elif key in known:
            known[key] = tuple(known[key])[-ndim:]
    repeated = {axis % ndim for axis in known.pop("repeated", ()) if -axis <= ndim}
    seen = tuple(1 if axis in repeated else extent for axis, extent in enumerate(shape))
    values = np.broadcast_to(numbers(rng, seen, name), shape)
    return lay(values, name, repeated=tuple(repeated), **known)


def pair(
    rng: np.random.Generator, kind: Kind, library: str, a: Shape, b: Shape, of_a: Any = None, of_b: Any = None
) -> dict[str, Given]:  # fmt: skip
    return {"a": Given(array(rng, a, kind.a, of_a), library), "b": Given(array(rng, b, kind.b, of_b), library)}


def may_be_missing(kind: Kind, epilog: str) -> bool:
    """What cuBLASLt 13.1 on an H200 does not have for fp8 operands (docs/support-matrix.md); all else must work."""
    if not kind.a.startswith("float8"):
        return False
    if kind.d.startswith("float8"):
        return epilog in BACKWARD or (epilog.startswith("GELU_AUX") and str(kind.aux).startswith("float8"))
    return kind.d == "float32" and epilog in ("GELU_AUX_BIAS", "DRELU_BGRAD", "DGELU_BGRAD")


def target(kind: Kind, library: str, shape: Shape, layout: Mapping[str, Any] | None = None) -> Given:
    """An ``out``, full of poison."""
    known = dict(layout or {})
    for key, neutral in (("steps", 1), ("gaps", 0)):
        if key in known:
            known[key] = ((neutral,) * len(shape) + tuple(known[key]))[-len(shape) :]
    return Given(lay(None, kind.d, shape=shape, **known), library)


FORMS = itertools.cycle(["function", "object", "planned for out"])


# -- products -----------------------------------------------------------------------------------------------


def layout_cases(kind: Kind, library: str) -> Iterator[Case]:
    """Every layout of A with another one of B, and the other way round; even extents and odd ones."""
    rng = np.random.default_rng(1)
    fitting = [x for x in LAYOUTS.values() if fits(x, library)]
    for i, layout in enumerate(fitting):
        m, n, k = ((16, 48, 32), (7, 13, 5), (1, 9, 20))[i % 3]
        others = fitting[(i + 1) % len(fitting)], fitting[(i * 5) % 4 % len(fitting)]
        yield Case(kind, pair(rng, kind, library, (m, k), (k, n), layout, others[0]), form=next(FORMS))
        yield Case(kind, pair(rng, kind, library, (m, k), (k, n), others[1], layout), form=next(FORMS))


BATCHES: list[tuple[Shape, Shape]] = [
    ((3,), (3,)), ((1,), (3,)), ((3,), (1,)), ((), (4,)), ((4,), ()), ((2, 1), (1, 3)), ((2, 3), (3,)),
    ((2, 3), (2, 1)), ((1, 1), (2, 2)), ((2, 1, 3), (2, 2, 1)),
]  # fmt: skip


def batch_cases(kind: Kind, library: str) -> Iterator[Case]:
    rng = np.random.default_rng(2)
    for (of_a, of_b), layout in itertools.product(BATCHES, ("C", "F", "C, padded")):
        given = pair(rng, kind, library, (*of_a, 8, 12), (*of_b, 12, 20), LAYOUTS[layout], LAYOUTS["C"])
        yield Case(kind, given, form=next(FORMS))


def permuted_batch_cases(kind: Kind, library: str) -> Iterator[Case]:
    """Batch axes inside of the matrix axes, with gaps, in turned order: what one batch stride cannot describe."""
    rng = np.random.default_rng(3)
    for order in itertools.permutations(range(4)):
        values = numbers(rng, (2, 3, 6, 8), kind.a)
        a = lay(values, kind.a, order=order, gaps=(1, 2, 3, 4))
        b = array(rng, (3, 8, 10), kind.b)
        yield Case(kind, {"a": Given(a, library), "b": Given(b, library)}, form=next(FORMS))


VECTORS: list[tuple[Shape, Shape]] = [
    ((12,), (12,)), ((12,), (12, 20)), ((16, 12), (12,)), ((12,), (3, 12, 20)), ((3, 16, 12), (12,)), ((1,), (1,))
]  # fmt: skip


def vector_cases(kind: Kind, library: str) -> Iterator[Case]:
    rng = np.random.default_rng(4)
    for (a, b), step in itertools.product(VECTORS, (1, 2)):
        layout = {"steps": (1, step)} if step > 1 else {}
        yield Case(kind, pair(rng, kind, library, a, b, layout, layout), form=next(FORMS))


def empty_cases(kind: Kind, library: str) -> Iterator[Case]:
    """No rows, no columns, no batch; and no terms, where C and a bias are all there is."""
    rng = np.random.default_rng(5)
    shapes = [((0, 4), (4, 5)), ((3, 4), (4, 0)), ((0, 0), (0, 0)), ((0, 3, 4), (4, 5)), ((3, 0), (0, 5))]
    shapes += [((2, 3, 0), (0, 5)), ((0,), (0,)), ((0,), (0, 5))]
    for a, b in shapes:
        yield Case(kind, pair(rng, kind, library, a, b), form=next(FORMS))
    given = pair(rng, kind, library, (8, 0), (0, 16))
    yield Case(kind, given | {"c": Given(array(rng, (8, 16), kind.c), library)}, beta=1, form=next(FORMS))


def c_cases(kind: Kind, library: str) -> Iterator[Case]:
    """All forms of C, with and without a batch, with factors; a C of NaN that a beta of 0 must not read."""
    rng = np.random.default_rng(6)
    factors = [(1, 1), (1, 0)] if kind.d == "int32" else [(0.5, 1), (2, -0.75), (-1, 0), (0, 2)]
    if kind.is_complex:
        factors += [(1 - 2j, 0.5j)]
    scale = itertools.cycle(factors)
    batched = [(3, 16, 20), (16, 20), (1, 20), (16, 1), (1, 1), (20,), (3, 1, 20), (3, 16, 1), (1, 16, 20), (3, 1, 1)]
    for batch, forms in (((3,), batched), ((), [s for s in batched if len(s) < 3])):
        for i, shape in enumerate(forms):
            alpha, beta = next(scale)
            given = pair(rng, kind, library, (*batch, 16, 12), (12, 20), LAYOUTS["C" if i % 2 else "F"])
            c = array(rng, shape, kind.c, LAYOUTS["F" if i % 3 == 0 else "C"])
            if beta == 0:
                c = lay(None, kind.c, shape=shape)  # poison
            yield Case(kind, given | {"c": Given(c, library)}, alpha=alpha, beta=beta, form=next(FORMS))


def out_cases(kind: Kind, library: str) -> Iterator[Case]:
    """``out`` with any strides without overlaps, of matrices, batches and vectors; with C."""
    rng = np.random.default_rng(7)
    layouts = [x for x in LAYOUTS.values() if "repeated" not in x and fits(x, library)]
    for i, layout in enumerate(layouts):
        batch = ((), (3,))[i % 2]
        given = pair(rng, kind, library, (*batch, 16, 12), (12, 20), LAYOUTS["C" if i % 3 else "F"])
        given["out"] = target(kind, library, (*batch, 16, 20), layout)
        beta = None
        if i % 4 == 1:
            given["c"], beta = Given(array(rng, (16, 20), kind.c), library), 1
        yield Case(kind, given, beta=beta, form=next(FORMS))
    for step in (1, 3):
        given = pair(rng, kind, library, (16, 12), (12,))
        yield Case(kind, given | {"out": target(kind, library, (16,), {"steps": (step,)})}, form=next(FORMS))


def conjugate_cases(kind: Kind, library: str) -> Iterator[Case]:
    """By qualifiers, lazily, and both, which cancel; in every order, as cuBLASLt conjugates in one of them only."""
    rng = np.random.default_rng(8)
    lazies = [False, True] if library == "torch" else [False]
    everything = itertools.product((False, True), (False, True), lazies, ("C", "F"), ("C", "F"))
    for of_a, of_b, lazy, lay_a, lay_b in everything:
        given = pair(rng, kind, library, (2, 8, 12), (12, 20), LAYOUTS[lay_a], LAYOUTS[lay_b])
        given["a"].lazy = lazy
        if lazy:
            given["c"] = Given(array(rng, (8, 20), kind.c), library, lazy=True)
        yield Case(kind, given, conj=(of_a, of_b), alpha=1 + 1j, beta=2j if lazy else None, form=next(FORMS))


# -- epilogs ------------------------------------------------------------------------------------------------

# Even, odd, square, one row, one column, more than one line of a mask.
EPILOG_SIZES = [(16, 32, 24), (24, 24, 16), (7, 13, 5), (1, 9, 8), (9, 1, 8), (136, 40, 16)]
FP8_SIZES = [(16, 32, 48), (32, 32, 16), (144, 48, 32)]  # what cuBLASLt takes without rounding up


def bias_of(rng: np.random.Generator, kind: Kind, library: str, shape: Shape, layout: Any = None) -> Given:
    assert kind.bias is not None
    return Given(array(rng, shape, kind.bias, layout), library)


def aux_of(
    rng: np.random.Generator, kind: Kind, library: str, name: str, batch: Shape, m: int, n: int, along: str
) -> Given:  # fmt: skip
    """Random bits, or random values before GELU, packed along the direction."""
    shape = (*batch, *aux_extents(name, m, n, along))
    order = "F" if along == "rows" else "C"
    if name == "relu_aux":
        return Given(lay(rng.integers(0, 256, shape), "uint8", order=order), library)
    assert kind.aux is not None
    return Given(lay(rng.standard_normal(shape), kind.aux, order=order), library)


def epilog_cases(kind: Kind, library: str, epilog: str, along: str) -> Iterator[Case]:
    """One epilog in one direction over sizes, batches and orders of the operands.

    Where the epilog has no direction of its own it follows from the order of A.
    """
    rng = np.random.default_rng([9, EPILOGS.index(epilog)])
    sizes = FP8_SIZES if kind.a.startswith("float8") else EPILOG_SIZES
    for i, ((m, n, k), batch) in enumerate(itertools.product(sizes, ((), (3,), (2, 3)))):
        of_a = LAYOUTS["F" if along == "rows" else "C"] if i % 2 == 0 else LAYOUTS["C" if along == "rows" else "F"]
        given = pair(rng, kind, library, (*batch, m, k), (*batch[1:], k, n), of_a, LAYOUTS["F" if i % 3 else "C"])
        direction: str | None = None
        if epilog in HAS_BIAS:
            direction = along
            one = (m, 1) if along == "rows" else (1, n)
            forms = [one, (*batch, *one), (*(1 for _ in batch), *one), (m,) if along == "rows" else one]
            given["bias"] = bias_of(rng, kind, library, forms[i % len(forms)])
        elif epilog in BACKWARD:
            direction = along
            given[AUX_OF[epilog]] = aux_of(rng, kind, library, AUX_OF[epilog], batch, m, n, along)
        case = Case(kind, given, alpha=0.5, epilog=epilog, along=direction, form=next(FORMS))
        if i % 4 == 3:
            case.given["c"], case.beta = Given(array(rng, (m, n), kind.c), library), 2.0
        yield case
