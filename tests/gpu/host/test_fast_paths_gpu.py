# SPDX-License-Identifier: Apache-2.0
"""The short ways through ``execute``, ``reset_operands`` and ``matmul``: that they are taken, and that they look.

That one is taken is shown by making the long way fail. Then one thing is changed between two calls (type, extents,
strides, alignment, device, stream, library, what ``out`` overlaps), and the result must be right, or the call refused;
and the next call with arrays as before must be right again.
"""

from __future__ import annotations

import gc
import sys
import weakref

import numpy as np
import pytest

from nvmath_device import host
from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError, NvmathDeviceError, UnsupportedError
from nvmath_device.host import one_call
from nvmath_device.host.product import Matmul
from tests.gpu.host.libraries import CUPY, TORCH, needs, place, to_numpy
from tests.gpu.host.product_checks import norm_error
from tests.gpu.host.products import dtype, lay

M, N, K = 64, 48, 32
LIBRARIES = pytest.mark.parametrize("library", [CUPY, TORCH])
BOUND = {"float64": 1e-13, "float32": 1e-6, "float16": 2e-3}
MOST_PYTHON_CALLS = 14  # functions entered by a short call; the long ways enter more than a hundred


class Arrays:
    """Operands of a library, with any layout; every one has other numbers."""

    def __init__(self, library):
        self.library, self.rng = library, np.random.default_rng(1)

    def new(self, *shape, name="float32", **layout):
        values = self.rng.standard_normal(shape)
        return place(self.library, lay(values.astype(dtype(name)), name, **layout), "cuda").array

    def out(self, *shape, name="float32", **layout):
        return place(self.library, lay(None, name, shape=shape, **layout), "cuda").array

    def pair(self, **layout):
        return self.new(M, K, **layout), self.new(K, N, **layout)


def right(result, a, b, bias=None, factor=1.0):
    got = to_numpy(result)
    want = factor * (to_numpy(a).astype(float) @ to_numpy(b).astype(float))
    if bias is not None:
        want = np.maximum(want + to_numpy(bias), 0)
    assert norm_error(got, want) < BOUND[got.dtype.name]


@pytest.fixture
def no_long_way(monkeypatch):
    """A function; from its call on whatever does not take a short way fails."""

    def fail(*args, **kwargs):
        raise AssertionError("the long way was taken")

    def close():
        monkeypatch.setattr(Matmul, "_execute", fail)
        monkeypatch.setattr(Matmul, "_reset", fail)
        monkeypatch.setattr(one_call, "_matmul", fail)

    return close


def python_calls(function, *args, **kwargs):
    """How many functions of Python a call enters, itself included."""
    entered = []
    gc.disable()
    sys.setprofile(lambda frame, event, _: entered.append(frame.f_code.co_qualname) if event == "call" else None)
    try:
        function(*args, **kwargs)
    finally:
        sys.setprofile(None)
        gc.enable()
    return entered


# -- they are taken -----------------------------------------------------------------------------------------


@LIBRARIES
@pytest.mark.parametrize("what", ["plain", "bias", "c", "column order"])
def test_execute_and_reset_take_the_short_way(what, library, no_long_way):
    arrays = Arrays(library)
    layout = {"order": "F"} if what == "column order" else {}
    pairs = [arrays.pair(**layout) for _ in range(8)]
    outs = [arrays.out(M, N, **layout) for _ in range(8)]
    bias = arrays.new(1, N) if what == "bias" else None
    c = arrays.new(M, N) if what == "c" else None
    mm = host.Matmul(*pairs[0], c, alpha=0.5, beta=0.0 if what == "c" else None)
    mm.plan(epilog="RELU_BIAS" if bias is not None else None, epilog_inputs=None if bias is None else {"bias": bias})
    mm.execute()
    mm.execute(out=outs[0])
    no_long_way()
    for (a, b), out in zip(pairs, outs, strict=True):
        mm.reset_operands(a=a, b=b)
        assert mm.execute(out=out) is out
        right(out, a, b, bias, 0.5)
        right(mm.execute(), a, b, bias, 0.5)
    mm.reset_operands(a=pairs[3][0])
    right(mm.execute(), pairs[3][0], pairs[7][1], bias, 0.5)
    mm.reset_operands(b=pairs[4][1])
    right(mm.execute(), pairs[3][0], pairs[4][1], bias, 0.5)


@LIBRARIES
def test_matmul_takes_the_short_way(library, no_long_way):
    arrays = Arrays(library)
    pairs, outs = [arrays.pair() for _ in range(8)], [arrays.out(M, N) for _ in range(8)]
    host.clear_plans()
    host.matmul(*pairs[0], out=outs[0])
    right(host.matmul(*pairs[0]), *pairs[0])
    no_long_way()
    for (a, b), out in zip(pairs, outs, strict=True):
        right(host.matmul(a, b), a, b)
        assert host.matmul(a, b, out=out) is out
        right(out, a, b)


@LIBRARIES
def test_a_short_call_enters_few_functions(library):
    arrays = Arrays(library)
    (a, b), out = arrays.pair(), arrays.out(M, N)
    host.clear_plans()
    mm = host.Matmul(a, b)
    mm.plan()
    for _ in range(3):
        mm.execute(out=out)
        host.matmul(a, b)
        host.matmul(a, b, out=out)
    for call in (
        lambda: mm.execute(out=out), lambda: mm.execute(), lambda: mm.reset_operands(a=a, b=b),
        lambda: host.matmul(a, b), lambda: host.matmul(a, b, out=out),
    ):  # fmt: skip
        entered = python_calls(call)
        assert len(entered) <= MOST_PYTHON_CALLS, entered


@LIBRARIES
def test_nothing_is_kept_alive_by_short_calls(library):
    arrays = Arrays(library)
    mm = host.Matmul(*arrays.pair())
    mm.plan()
    mm.execute()
    host.matmul(*arrays.pair())
    for _ in range(3):
        (a, b), out = arrays.pair(), arrays.out(M, N)
        mm.execute(out=out)
        seen = [weakref.ref(x) for x in (out, mm.execute(), host.matmul(a, b), a, b)]
        del a, b, out
        gc.collect()
        assert [ref() for ref in seen] == [None] * 5
    (a, b), (a2, b2) = arrays.pair(), arrays.pair()
    mm.reset_operands(a=a, b=b)
    mm.execute()
    held = weakref.ref(a), weakref.ref(b)
    del a, b
    gc.collect()
    assert all(ref() is not None for ref in held), "operands of an object belong to it"
    mm.reset_operands(a=a2, b=b2)
    mm.execute()
    gc.collect()
    assert all(ref() is None for ref in held)
    mm.free()


# -- they look ----------------------------------------------------------------------------------------------

LAYOUTS = {
    "transposed": {"order": "F"}, "padded": {"gaps": (0, 16)}, "stepped": {"steps": (1, 2)},
    "off by one": {"offset": 1},
    "off by two": {"offset": 2}, "off by four": {"offset": 4}, "rows stepped": {"steps": (2, 1)},
}  # fmt: skip


@LIBRARIES
@pytest.mark.parametrize("change", LAYOUTS)
def test_other_strides_and_alignment_of_an_operand(change, library):
    arrays = Arrays(library)
    before, out = arrays.pair(), arrays.out(M, N)
    mm = host.Matmul(*before)
    mm.plan()
    for call in (lambda a, b: host.matmul(a, b), lambda a, b: host.matmul(a, b, out=out), resetting(mm, out)):
        for _ in range(2):
            right(call(*before), *before)
        for which in ((True, False), (False, True), (True, True)):
            after = tuple(
                arrays.new(*shape, **(LAYOUTS[change] if changed else {}))
                for shape, changed in zip(((M, K), (K, N)), which, strict=True)
            )
            for _ in range(2):
                right(call(*after), *after)
            right(call(*before), *before)


def resetting(mm, out):
    def call(a, b):
        mm.reset_operands(a=a, b=b)
        mm.execute(out=out)
        return mm.execute()

    return call


@LIBRARIES
@pytest.mark.parametrize("change", LAYOUTS)
def test_other_strides_and_alignment_of_out(change, library):
    arrays = Arrays(library)
    (a, b), plain = arrays.pair(), arrays.out(M, N)
    other = arrays.out(M, N, **LAYOUTS[change])
    mm = host.Matmul(a, b)
    mm.plan()
    for call in (lambda out: host.matmul(a, b, out=out), lambda out: mm.execute(out=out)):
        for _ in range(3):
            for out in (plain, plain, other, other):
                out[...] = float("nan")
                assert call(out) is out
                right(out, a, b)


@LIBRARIES
def test_another_type(library):
    """A plan is for its type; the function makes another one."""
    arrays = Arrays(library)
    before = arrays.pair()
    mm = host.Matmul(*before)
    mm.plan()
    for _ in range(2):
        mm.execute()
        host.matmul(*before)
    for name in ("float64", "float16", "float32"):
        after = arrays.new(M, K, name=name), arrays.new(K, N, name=name)
        right(host.matmul(*after), *after)
        right(host.matmul(*after), *after)
        if name != "float32":
            with pytest.raises(InvalidArgumentError, match=f"a: its element type is {name}"):
                mm.reset_operands(a=after[0])
            with pytest.raises(InvalidArgumentError, match=f"b: its element type is {name}"):
                mm.reset_operands(b=after[1])
            with pytest.raises(UnsupportedError):
                host.matmul(before[0], after[1])
            for call in (lambda out: mm.execute(out=out), lambda out: host.matmul(*before, out=out)):
                with pytest.raises((ArgumentTypeError, InvalidArgumentError), match=r"out|result_type"):
                    call(arrays.out(M, N, name=name))
        right(mm.execute(), *before)
        right(host.matmul(*before), *before)


@LIBRARIES
def test_other_extents(library):
    arrays = Arrays(library)
    before, out = arrays.pair(), arrays.out(M, N)
    mm = host.Matmul(*before)
    mm.plan()
    for _ in range(2):
        mm.execute(out=out)
        host.matmul(*before)
    for m, n, k in ((M, N, 2 * K), (2 * M, N, K), (M, 2 * N, K), (1, N, K), (M, 1, K), (0, N, K), (M, N, 0)):
        a, b = arrays.new(m, k), arrays.new(k, n)
        for _ in range(2):
            got = to_numpy(host.matmul(a, b))
            assert got.shape == (m, n)
            assert np.allclose(got, to_numpy(a).astype(float) @ to_numpy(b), atol=1e-4)
        if (m, k) != (M, K):
            with pytest.raises(InvalidArgumentError, match="a: its shape"):
                mm.reset_operands(a=a)
        if (m, n) != (M, N):
            for call in (lambda out: mm.execute(out=out), lambda out: host.matmul(*before, out=out)):
                with pytest.raises(InvalidArgumentError, match="out: the shape"):
                    call(arrays.out(m, n))
        right(mm.execute(out=out), *before)
        right(host.matmul(*before), *before)
    batched = arrays.new(3, M, K)
    got = to_numpy(host.matmul(batched, before[1]))
    assert np.allclose(got, to_numpy(batched).astype(float) @ to_numpy(before[1]), atol=1e-4)


@LIBRARIES
def test_operands_and_results_in_cpu_memory(library):
    arrays = Arrays(library)
    (a, b), out = arrays.pair(), arrays.out(M, N)
    on_cpu = to_numpy(a), to_numpy(b)
    mm = host.Matmul(a, b)
    mm.plan()
    for _ in range(2):
        mm.execute(out=out)
        host.matmul(a, b)
    with pytest.raises(InvalidArgumentError, match="a: its device"):
        mm.reset_operands(a=on_cpu[0])
    for call in (
        lambda: host.matmul(on_cpu[0], b), lambda: host.matmul(a, on_cpu[1]),
        lambda: host.matmul(a, b, out=np.zeros((M, N), np.float32)),
        lambda: mm.execute(out=np.zeros((M, N), np.float32)),
    ):  # fmt: skip
        with pytest.raises(InvalidArgumentError, match=r"mix_devices|on cpu"):
            call()
    right(host.matmul(*on_cpu), *on_cpu)
    right(mm.execute(out=out), a, b)
    right(host.matmul(a, b), a, b)


@LIBRARIES
def test_an_out_that_shares_memory(library):
    """With an operand it is refused, unless no element is shared; with the C of the plan it is the product in place."""
    arrays = Arrays(library)
    square = arrays.new(2 * M, M)
    x, y = square[:M], square[M:]
    b = arrays.new(M, M)
    mm = host.Matmul(x, b)
    mm.plan()
    out = arrays.out(M, M)
    for _ in range(2):
        mm.execute(out=out)
        host.matmul(x, b, out=out)
    before = to_numpy(square)
    for call in (lambda out: mm.execute(out=out), lambda out: host.matmul(x, b, out=out)):
        for shared in (x, b, square[M // 2 : M + M // 2], square[1 : M + 1]):
            with pytest.raises(InvalidArgumentError, match="shares memory"):
                call(shared)
        assert np.array_equal(to_numpy(square), before)
        right(call(out), x, b)
        right(call(y), x, b)
        y[...] = 1.0
        before = to_numpy(square)
    columns = arrays.new(M, 2 * M)
    even, odd = columns[:, ::2], columns[:, 1::2]
    for _ in range(3):
        right(host.matmul(even, b, out=odd), even, b)


@LIBRARIES
def test_in_place_of_c_after_short_calls(library):
    arrays = Arrays(library)
    (a, b), c = arrays.pair(), arrays.new(M, N)
    out = arrays.out(M, N)
    mm = host.Matmul(a, b, c, beta=2.0)
    mm.plan()
    start = to_numpy(c).astype(float)
    want = to_numpy(a).astype(float) @ to_numpy(b).astype(float)
    for _ in range(3):
        mm.execute(out=out)
    assert norm_error(to_numpy(out), want + 2 * start) < 1e-6
    for _ in range(3):
        mm.execute(out=c)
        start = want + 2 * start
        assert norm_error(to_numpy(c), start) < 1e-5
    assert norm_error(to_numpy(mm.execute(out=out)), want + 2 * start) < 1e-5


@LIBRARIES
def test_new_factors_reach_short_calls(library):
    arrays = Arrays(library)
    (a, b), c, out = arrays.pair(), arrays.new(M, N), arrays.out(M, N)
    mm = host.Matmul(a, b, c, alpha=1.0, beta=0.0)
    mm.plan()
    mm.execute(out=out)
    product, added = to_numpy(a).astype(float) @ to_numpy(b).astype(float), to_numpy(c).astype(float)
    factors = [1.0, 0.0]
    for given in ((2.0, None), (None, 3.0), (-1.0, 0.5), (0.25, 0.0)):
        mm.reset_operands(alpha=given[0], beta=given[1])
        factors = [old if new is None else new for old, new in zip(factors, given, strict=True)]
        want = factors[0] * product + factors[1] * added
        for _ in range(2):
            assert norm_error(to_numpy(mm.execute(out=out)), want) < 1e-6
            assert norm_error(to_numpy(mm.execute()), want) < 1e-6


@LIBRARIES
def test_a_new_bias_reaches_short_calls(library):
    arrays = Arrays(library)
    (a, b), out = arrays.pair(), arrays.out(M, N)
    biases = [arrays.new(1, N) for _ in range(4)] + [arrays.new(1, N, steps=(1, 2)), arrays.new(1, N, offset=1)]
    mm = host.Matmul(a, b)
    mm.plan(epilog="RELU_BIAS", epilog_inputs={"bias": biases[0]})
    for bias in biases * 2:
        mm.reset_operands(epilog_inputs={"bias": bias})
        for _ in range(2):
            right(mm.execute(out=out), a, b, bias)
            right(mm.execute(), a, b, bias)


@LIBRARIES
@pytest.mark.parametrize("layout", [{}, {"gaps": (0, 16)}], ids=["natural", "padded"])
def test_operands_reset_the_long_way_reach_short_calls(layout, library):
    """Of an object that was planned for ``out``, and has no other plan."""
    arrays = Arrays(library)
    out, c = arrays.out(M, N, **layout), [arrays.new(M, N) for _ in range(3)]
    a, b = arrays.pair()
    mm = host.Matmul(a, b, c[0], beta=1)
    mm.plan(out=out)
    for i in range(3):
        for _ in range(2):
            want = to_numpy(a).astype(float) @ to_numpy(b).astype(float) + to_numpy(c[i])
            assert norm_error(to_numpy(mm.execute(out=out)), want) < 1e-6
        if i < 2:
            a = arrays.new(M, K)
            mm.reset_operands(a=a, c=c[i + 1])


@LIBRARIES
def test_another_plan_after_short_calls(library):
    arrays = Arrays(library)
    (a, b), bias, out = arrays.pair(), arrays.new(1, N), arrays.out(M, N)
    mm = host.Matmul(a, b)
    for _ in range(2):
        mm.plan()
        for _ in range(2):
            right(mm.execute(out=out), a, b)
        mm.plan(epilog="RELU_BIAS", epilog_inputs={"bias": bias})
        for _ in range(2):
            right(mm.execute(out=out), a, b, bias)


@LIBRARIES
def test_plans_forgotten_and_objects_freed_between_short_calls(library):
    arrays = Arrays(library)
    a, b = arrays.pair()
    for _ in range(3):
        right(host.matmul(a, b), a, b)
        right(host.matmul(a, b), a, b)
        host.clear_plans()
    mm = host.Matmul(a, b)
    mm.plan()
    mm.execute()
    mm.execute()
    mm.free()
    for call in (mm.execute, lambda: mm.reset_operands(a=a), mm.plan):
        with pytest.raises(NvmathDeviceError, match="freed"):
            call()


@needs["cupy"]
@needs["torch"]
def test_another_library_between_short_calls():
    of = {name: Arrays(name) for name in ("cupy", "torch")}
    pairs = {name: arrays.pair() for name, arrays in of.items()}
    outs = {name: arrays.out(M, N) for name, arrays in of.items()}
    mm = host.Matmul(*pairs["torch"])
    mm.plan()
    for name in ("torch", "cupy", "cupy", "torch", "torch", "cupy"):
        a, b = pairs[name]
        right(host.matmul(a, b), a, b)
        right(host.matmul(a, b, out=outs[name]), a, b)
        mm.reset_operands(a=a, b=b)
        for out in outs.values():
            right(mm.execute(out=out), a, b)
    right(host.matmul(pairs["cupy"][0], pairs["torch"][1]), pairs["cupy"][0], pairs["torch"][1])


@needs["torch"]
def test_other_streams_between_short_calls():
    """Executions of one object follow each other, also from one stream to another; so do those of the function."""
    import torch

    arrays = Arrays("torch")
    pairs = [arrays.pair() for _ in range(6)]
    mm = host.Matmul(*pairs[0])
    mm.plan()
    streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    torch.cuda.synchronize()
    results = []
    for i in range(36):
        with torch.cuda.stream(streams[i // 2 % 3]):
            a, b = pairs[i % 6]
            mm.reset_operands(a=a, b=b)
            results.append((mm.execute(), host.matmul(a, b), a, b))
    torch.cuda.synchronize()
    for executed, called, a, b in results:
        right(executed, a, b)
        right(called, a, b)


@needs["torch"]
def test_kinds_of_torch_tensors():
    """Parameters and tensors that want gradients are read like others; a lazy sign is refused and not forgotten."""
    import torch

    arrays = Arrays("torch")
    a, b = arrays.pair()
    mm = host.Matmul(a, b)
    mm.plan()
    for _ in range(2):
        mm.execute()
        host.matmul(a, b)
    for x in (torch.nn.Parameter(a.clone()), a.clone().requires_grad_(), torch.Tensor(a.clone())):
        for _ in range(2):
            right(host.matmul(x, b), x, b)
            mm.reset_operands(a=x)
            right(mm.execute(), x, b)
            assert not mm.execute().requires_grad
    numbers = torch.complex(*(arrays.new(M, K) for _ in range(2)))
    column = numbers[:, 0]
    plain, negated = column.imag[:, None], column.conj().imag[:, None]
    assert negated.is_neg()
    assert plain.stride() == negated.stride()
    row = arrays.new(1, N)
    narrow = host.Matmul(plain, row)
    narrow.plan()
    for _ in range(2):
        narrow.execute()
        host.matmul(plain, row)
    for call in (lambda: narrow.reset_operands(a=negated), lambda: host.matmul(negated, row)):
        with pytest.raises(InvalidArgumentError, match="resolve_neg"):
            call()
    right(narrow.execute(), plain, row)


@needs["torch"]
def test_lazy_conjugates_between_calls():
    import torch

    z = torch.complex(*(Arrays("torch").new(M, M) for _ in range(2)))
    mm = host.Matmul(z, z)
    mm.plan()
    for _ in range(2):
        for a in (z, z.conj(), z.T, z.T.conj(), z.conj()):
            want = to_numpy(a).astype(complex) @ to_numpy(z).astype(complex)
            mm.reset_operands(a=a)
            for got in (host.matmul(a, z), mm.execute(), mm.execute()):
                assert np.linalg.norm(to_numpy(got) - want) < 1e-6 * np.linalg.norm(want)
