# SPDX-License-Identifier: Apache-2.0
"""Reported cases about how operands lie in memory: any address, stride, slice, broadcast and overlap.

Numbers are small and whole, so that every sum is exact and results are compared bit by bit.
``tests/gpu/host/test_reports_strides.py`` runs those that ask for a ``library`` on a GPU.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from nvmath_device.errors import InvalidArgumentError
from tests.host.cpu_products import whole
from tests.host.report_tools import C64, F16, F32, assert_exact, cpu_library, wide

library = cpu_library


# -- addresses ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("extents", [(64, 64, 64), (33, 17, 65)], ids=str)
def test_r062_every_combination_of_alignments(library, extents):
    """fp16 operands at offsets of 0 to 16 bytes: 625 combinations, 256 of which are told apart by their plans."""
    rng = np.random.default_rng(62)
    m, n, k = extents
    offsets = (0, 2, 4, 8, 16) if library.on_gpu else (0, 2)
    a, b, c = whole(rng, (m, k), F16), whole(rng, (k, n), F16), whole(rng, (m, n), F16, 9)
    placed_a, placed_b, placed_c = ([library.at_offset(x, offset) for offset in offsets] for x in (a, b, c))
    nothing = np.full((m, n), np.nan, F16)
    outs = [library.in_room(nothing, offset) for offset in offsets]
    poison, want = library.put(nothing), wide(a) @ wide(b) + 2 * wide(c)
    for each_a, each_b, each_c, (out, _) in product(placed_a, placed_b, placed_c, outs):
        out[...] = poison
        library.matmul(each_a, each_b, each_c, beta=2, out=out)
        assert_exact(library.get(out), want)
    for _, around in outs:
        assert all(np.isnan(library.get(part)).all() for part in around), "something was written beside out"


def test_r062_operands_that_are_aligned_worse_after_the_plan(library):
    rng = np.random.default_rng(620)
    a, b, c = whole(rng, (64, 48), F16), whole(rng, (48, 80), F16), whole(rng, (64, 80), F16, 9)
    with library.Matmul(*(library.at_offset(x, 0) for x in (a, b, c)), beta=1) as mm:
        mm.plan()
        assert_exact(library.get(mm.execute()), wide(a) @ wide(b) + wide(c))
        for offset, name in product((2, 16, 4, 8), "abc"):
            other = whole(rng, {"a": a, "b": b, "c": c}[name].shape, F16)
            a, b, c = other if name == "a" else a, other if name == "b" else b, other if name == "c" else c
            mm.reset_operands(**{name: library.at_offset(other, offset)})
            out = library.at_offset(np.full((64, 80), np.nan, F16), offset)
            for d in (mm.execute(), mm.execute(out=out)):
                assert_exact(library.get(d), wide(a) @ wide(b) + wide(c))


# -- strides of zero ----------------------------------------------------------------------------------------


def test_r075_operands_repeated_by_strides_of_zero(library):
    rng = np.random.default_rng(75)
    for dtype in library.having(F32, F16, C64):
        row, column, number = (whole(rng, shape, dtype) for shape in ((1, 32), (32, 1), (1, 1)))
        a, b, c = whole(rng, (64, 32), dtype), whole(rng, (32, 48), dtype), whole(rng, (64, 48), dtype)
        dense = {"a": a, "b": b, "c": c}
        shapes = {"a": (64, 32), "b": (32, 48), "c": (64, 48)}
        repeated = {"a": [row, whole(rng, (64, 1), dtype), number], "b": [column, whole(rng, (1, 48), dtype), number],
                    "c": [whole(rng, (1, 48), dtype), whole(rng, (64, 1), dtype), number]}  # fmt: skip
        for name, sources in repeated.items():
            for source in sources:
                operands = {n: library.put(x) for n, x in dense.items()}
                operands[name] = library.broadcast(library.put(source), shapes[name])
                meant = dense | {name: np.broadcast_to(source, shapes[name])}
                want = wide(meant["a"]) @ wide(meant["b"]) + 2 * wide(meant["c"])
                d = library.matmul(*operands.values(), beta=2)
                assert_exact(library.get(d), want)


def test_r075_all_operands_repeated_at_once_and_over_a_batch(library):
    rng = np.random.default_rng(750)
    row, column, number = (whole(rng, shape, F32) for shape in ((1, 32), (32, 1), (1, 1)))
    shapes = (5, 64, 32), (5, 32, 48), (5, 64, 48)
    operands = [library.broadcast(library.put(x), s) for x, s in zip((row, column, number), shapes, strict=True)]
    a, b, c = (np.broadcast_to(x, s) for x, s in zip((row, column, number), shapes, strict=True))
    assert_exact(library.get(library.matmul(*operands, beta=3)), wide(a) @ wide(b) + 3 * wide(c))


def test_r075_a_repeated_batch_is_read_in_place_and_repeated_rows_are_copied(library):
    rng = np.random.default_rng(751)
    a, b = whole(rng, (16, 8), F32), whole(rng, (5, 8, 12), F32)
    with library.Matmul(library.broadcast(library.put(a), (5, 16, 8)), library.put(b)) as mm:
        mm.plan()
        assert mm.copies == ()
        assert_exact(library.get(mm.execute()), wide(a) @ wide(b))
    rows = library.broadcast(library.put(a[:1]), (16, 8))
    with library.Matmul(rows, library.put(b[0])) as mm:
        mm.plan()
        if library.on_gpu and library.name != "numpy":
            assert [reason[:2] for reason in mm.copies] == ["a:"]
        assert_exact(library.get(mm.execute()), np.broadcast_to(wide(a[:1]) @ wide(b[0]), (16, 12)))


# -- overlaps -----------------------------------------------------------------------------------------------


def test_r078_a_result_in_the_place_of_c_is_right(library):
    rng = np.random.default_rng(78)
    for dtype in library.having(F32, F16, C64):
        for batch in ((), (3,)):
            a, b, c = whole(rng, (*batch, 8, 8), dtype), whole(rng, (8, 8), dtype), whole(rng, (*batch, 8, 8), dtype, 9)
            for beta in (2, 0):
                want = wide(a) @ wide(b) + beta * wide(c)
                place = library.put(c)
                assert library.matmul(library.put(a), library.put(b), place, beta=beta, out=place) is place
                assert_exact(library.get(place), want)
                place = library.put(c)
                d = library.matmul(library.put(a), library.put(b), place, beta=beta, options={"inplace": True})
                assert d is place
                assert_exact(library.get(place), want)


def overlapping(library):
    """Names of operands, and a result that shares memory with one of them."""
    memory = library.put(np.zeros(200, np.float32))
    a, b, c = (library.strided(memory, (8, 8), (8, 1), offset) for offset in (0, 64, 128))
    one_row = {"a": 8 * 7, "b": 64 + 8 * 7, "c": 128 + 8}
    yield "a", (a, b), a
    yield "b", (a, b), b
    yield "a", (a, b), a.T
    for name, start in one_row.items():
        operands = (a, b, c) if name == "c" else (a, library.put(np.zeros((8, 8), np.float32)))
        operands = operands if name != "b" else (library.put(np.zeros((8, 8), np.float32)), b)
        yield name, operands, library.strided(memory, (8, 8), (8, 1), start)
    yield "c", (library.put(np.zeros((8, 8), np.float32)),) * 2 + (c,), c.T


def test_r078_a_result_that_would_overwrite_what_is_read_is_refused(library):
    for name, operands, out in overlapping(library):
        arguments = {"beta": 1} if len(operands) == 3 else {}
        with pytest.raises(InvalidArgumentError, match=f"^out: it shares memory with {name}, which would be overwrit"):
            library.matmul(*operands, out=out, **arguments)
        with library.Matmul(*operands, **arguments) as mm:
            mm.plan()
            mm.execute()
            with pytest.raises(InvalidArgumentError, match=f"^out: it shares memory with {name}"):
                mm.execute(out=out)
            assert_exact(library.get(mm.execute()), np.zeros((8, 8)))  # nothing is broken by the refusals


def test_r078_a_result_that_overlaps_itself_is_refused(library):
    memory = library.put(np.zeros(64, np.float32))
    a, b = library.put(np.zeros((3, 4, 4), np.float32)), library.put(np.zeros((4, 4), np.float32))
    for strides in ((8, 4, 1), (16, 1, 1), (0, 4, 1), (16, 0, 1)):
        with pytest.raises(InvalidArgumentError, match=r"^out: several of its elements have one address"):
            library.matmul(a, b, out=library.strided(memory, (3, 4, 4), strides))
        with (
            library.Matmul(a, b) as mm,
            pytest.raises(InvalidArgumentError, match=r"^out: several of its elements have one address"),
        ):
            mm.plan(out=library.strided(memory, (3, 4, 4), strides))


def test_r078_a_c_that_overlaps_itself_is_read(library):
    rng = np.random.default_rng(780)
    numbers = whole(rng, 64, F32, 9)
    a, b = whole(rng, (3, 4, 4), F32), whole(rng, (4, 4), F32)
    for strides in ((8, 4, 1), (4, 1, 1), (2, 1, 4)):
        c = np.lib.stride_tricks.as_strided(numbers, (3, 4, 4), [4 * s for s in strides])
        d = library.matmul(
            library.put(a), library.put(b), library.strided(library.put(numbers), (3, 4, 4), strides), beta=2
        )
        assert_exact(library.get(d), wide(a) @ wide(b) + 2 * wide(c))


def test_r078_interleaved_columns_do_not_overlap(library):
    rng = np.random.default_rng(781)
    both, b = whole(rng, (6, 16), F32), whole(rng, (8, 8), F32)
    memory = library.put(both)
    library.matmul(memory[:, ::2], library.put(b), out=memory[:, 1::2])
    want = both.copy()
    want[:, 1::2] = both[:, ::2] @ b
    assert_exact(library.get(memory), want)


# -- slices -------------------------------------------------------------------------------------------------

CUTS = {
    "rows of two": lambda x: x[::2],
    "columns of two": lambda x: x[:, ::2],
    "both of two": lambda x: x[1::2, 1::2],
    "transposed": lambda x: x.T,
    "columns of three, transposed": lambda x: x[:, ::3].T,
    "inner part": lambda x: x[2:-1, 3:-2],
    "one column": lambda x: x[:, 2:3],
    "one row": lambda x: x[1:2],
}
REVERSALS = {
    "rows backwards": lambda x: x[::-1],
    "columns backwards": lambda x: x[:, ::-1],
    "both backwards": lambda x: x[::-1, ::-1],
    "steps backwards": lambda x: x[::-2, ::-3],
    "backwards, transposed": lambda x: x[::-1].T,
}


def cuts_of(library):
    """PyTorch has no negative strides."""
    return CUTS if library.name == "torch" else CUTS | REVERSALS


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("which", ["a", "b", "c", "out"])
def test_r093_r094_slices_and_reversals_are_what_numpy_says_they_are(library, which, order):
    rng = np.random.default_rng(94)
    for dtype in library.having(F32, F16, C64):
        for name, cut in cuts_of(library).items():
            memory = np.array(whole(rng, (14, 18), dtype), order=order)
            rows, cols = cut(memory).shape
            m, k = (rows, cols) if which == "a" else (rows, 5)
            n = 6 if which == "a" else cols
            k = rows if which == "b" else k
            m = 7 if which == "b" else m
            operands = {"a": whole(rng, (m, k), dtype), "b": whole(rng, (k, n), dtype), "c": whole(rng, (m, n), dtype)}
            given = {n: library.put(x) for n, x in operands.items()}
            placed = library.put(memory)
            if which in operands:
                operands[which], given[which] = cut(memory), cut(placed)
            out = cut(placed) if which == "out" else library.poisoned((m, n), dtype)
            library.matmul(*given.values(), beta=2, out=out)
            want = wide(operands["a"]) @ wide(operands["b"]) + 2 * wide(operands["c"])
            assert_exact(library.get(out), want, name)
            if which == "out":  # and what lies between stays
                cut(memory)[...] = want
                assert_exact(library.get(placed), memory, name)


@pytest.mark.parametrize("epilog", ["BIAS", "RELU_BIAS"])
def test_r093_r094_slices_of_a_bias(library, epilog):
    rng = np.random.default_rng(940)
    for dtype in library.having(F32, F16):
        memory = whole(rng, (12, 12), dtype, 9)
        placed = library.put(memory)
        a, b = whole(rng, (6, 5), dtype), whole(rng, (5, 4), dtype)
        cuts = [lambda x: x[::2, 3], lambda x: x[::2, 3:4], lambda x: x[5, ::2], lambda x: x[:1, ::3],
                lambda x: x.T[2:3, 1:5], lambda x: x[1:7, 0]]  # fmt: skip
        if library.name != "torch":
            cuts += [lambda x: x[5::-1, 2], lambda x: x[3:4, ::-3]]
        for cut in cuts:
            bias = cut(memory)
            d = library.matmul(library.put(a), library.put(b), epilog=epilog, epilog_inputs={"bias": cut(placed)})
            before = wide(a) @ wide(b) + wide(bias[:, None] if bias.ndim == 1 else bias)
            assert_exact(library.get(d), np.maximum(before, 0) if epilog == "RELU_BIAS" else before)


def test_r094_a_bias_repeated_by_a_stride_of_zero(library):
    rng = np.random.default_rng(941)
    a, b, one = whole(rng, (6, 5), F32), whole(rng, (5, 4), F32), whole(rng, (1, 1), F32, 9)
    for shape in ((6, 1), (1, 4)):
        inputs = {"bias": library.broadcast(library.put(one), shape)}
        d = library.matmul(library.put(a), library.put(b), epilog="BIAS", epilog_inputs=inputs)
        assert_exact(library.get(d), wide(a) @ wide(b) + wide(one))


# -- axes of extent 1 ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("stride", [0, 1, 77, 10**6])
def test_r095_strides_of_axes_of_extent_one_mean_nothing(library, stride):
    rng = np.random.default_rng(95)
    for dtype in library.having(F32, F16, C64):
        for shape_a, shape_b in (((1, 77), (77, 5)), ((5, 1), (1, 7)), ((1, 4, 6), (1, 6, 3)), ((1, 1), (1, 1))):
            a, b = whole(rng, shape_a, dtype), whole(rng, shape_b, dtype)
            odd = [
                library.strided(
                    library.put(x.reshape(-1)), x.shape,
                    [stride if e == 1 else s // x.itemsize for e, s in zip(x.shape, x.strides, strict=True)],
                )
                for x in (a, b)
            ]  # fmt: skip
            assert_exact(library.get(library.matmul(*odd)), np.matmul(wide(a), wide(b)))
            with library.Matmul(*odd, options={"copies": "refuse"}) as mm:
                mm.plan()
                assert_exact(library.get(mm.execute()), np.matmul(wide(a), wide(b)))
