# SPDX-License-Identifier: Apache-2.0
"""Layouts of dynamic shared memory: where their parts lie on the host's account, and where compiled code finds them."""

from __future__ import annotations

import copy
import pickle
import re
from itertools import pairwise

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import cuda, types
from numba.cuda.types import float32, int64, void

import nvmath_device as nd
from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError, KernelOnlyError
from nvmath_device.lto.cubin import read_resources
from tests.kernel_stubs import error_of, ptx_of, shared_arrays

ODD = nd.shared_layout(bytes=7, floats=(np.float32, 3), table=(np.float64, (3, 5), 128), last=(np.complex64, 1))


# -- where parts lie -----------------------------------------------------------------------------------------


def test_each_part_follows_the_one_before_at_its_alignment():
    assert [(p.name, p.offset, p.nbytes, p.alignment) for p in ODD] == [
        ("bytes", 0, 7, 16),
        ("floats", 16, 12, 16),
        ("table", 128, 120, 128),
        ("last", 256, 8, 16),
    ]
    assert (ODD.size, ODD.alignment) == (264, 128)


def test_parts_are_attributes():
    assert (ODD.table.shape, ODD.table.dtype, ODD.table.end) == ((3, 5), np.dtype("float64"), 248)
    assert ODD.bytes.dtype == np.dtype("uint8")
    assert {"bytes", "floats", "table", "last"} <= set(dir(ODD))
    with pytest.raises(AttributeError, match="no part 'tables'; its parts are: bytes, floats, table, last"):
        ODD.tables  # noqa: B018


def test_descriptors_give_sizes_and_types():
    mm = nd.Matmul(
        (16, 8, 24), ("float16", "float16", "float32"), "real", arrangement=("row_major",) * 3, block_size=32
    )
    layout = nd.shared_layout(
        a=(mm.a_value_type, mm.a_size), b=(mm.b_value_type, mm.b_size), c=(mm.c_value_type, mm.c_size)
    )
    assert layout.size == 2 * 16 * 24 + 2 * 24 * 8 + 4 * 16 * 8 == mm.get_shared_storage_size()


def test_an_overlay_has_all_parts_in_one_place():
    inputs = nd.shared_layout(a=(np.float32, 10), b=(np.float32, 20))
    overlay = nd.shared_overlay(inputs, result=(np.float64, 12, 64))
    assert {p.name: p.offset for p in overlay} == {"a": 0, "b": 48, "result": 0}
    assert (overlay.size, overlay.alignment) == (48 + 80, 64)


def test_layouts_of_layouts():
    phases = nd.shared_overlay(nd.shared_layout(a=100, b=100), c=150)
    layout = nd.shared_layout(nd.shared_layout(kept=1), phases, last=(np.int16, 2))
    assert {p.name: p.offset for p in layout} == {"kept": 0, "a": 16, "b": 16 + 112, "c": 16, "last": 16 + 212 + 12}
    assert layout.size == 244


def test_a_group_keeps_its_own_distances():
    group = nd.shared_layout(x=1, y=(np.uint8, 1, 256))
    assert [p.offset for p in nd.shared_layout(nd.shared_layout(before=20), group)] == [0, 256, 512]


def test_nothing_is_nothing():
    assert (nd.shared_layout().size, nd.shared_layout().alignment) == (0, 16)


parts = st.lists(st.tuples(st.sampled_from(["uint8", "float16", "float64", "complex128"]), st.integers(1, 99),
                           st.sampled_from([1, 8, 16, 32, 128])), max_size=6)  # fmt: skip


@given(first=parts, second=parts, overlaid=parts)
def test_no_part_reaches_into_another_that_is_alive(first, second, overlaid):
    def named(prefix, items):
        return {f"{prefix}{i}": item for i, item in enumerate(items)}

    one, two = nd.shared_layout(**named("a", first)), nd.shared_layout(**named("b", second))
    layout = nd.shared_layout(one, nd.shared_overlay(two, **named("o", overlaid)), end=1)
    for part in layout:
        assert part.offset % part.alignment == 0
        assert part.end <= layout.size
    for prefixes in (("a", "b", "e"), *(("a", f"o{i}", "e") for i in range(len(overlaid)))):
        alive = sorted((p.offset, p.end) for p in layout if p.name.startswith(prefixes))
        assert all(end <= start for (_, end), (start, _) in pairwise(alive))


# -- a value -------------------------------------------------------------------------------------------------


def test_a_layout_is_a_value():
    again = nd.shared_layout(bytes=7, floats=("float32", 3), table=(np.dtype("f8"), [3, 5], 128), last=("complex64", 1))
    assert again == ODD
    assert hash(again) == hash(ODD)
    assert copy.deepcopy(ODD) == pickle.loads(pickle.dumps(ODD)) == ODD
    assert nd.shared_layout(bytes=8) != nd.shared_layout(bytes=7) != "bytes"
    with pytest.raises(AttributeError, match="immutable"):
        ODD.size = 3
    assert repr(ODD) == (
        "SharedLayout(264 bytes; bytes: 0..7 uint8[7], floats: 16..28 float32[3], table: 128..248 float64[3, 5], "
        "last: 256..264 complex64[1])"
    )


@pytest.mark.parametrize(
    ("dtype", "meant"),
    [
        ("tf32", np.float32), (nd.bfloat16, ml_dtypes.bfloat16), (ml_dtypes.float8_e5m2, ml_dtypes.float8_e5m2),
        (types.float32, np.float32), (types.complex128, np.complex128), (np.bool_, np.bool_), (">i4", ">i4"),
        ([("x", "f2"), ("y", "f2")], [("x", "f2"), ("y", "f2")]),
    ],
    ids=str,
)  # fmt: skip
def test_element_types(dtype, meant):
    assert nd.shared_layout(x=(dtype, 2)).x.dtype == np.dtype(meant)


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        (0, InvalidArgumentError, "x: 0 is not allowed; give an integer of at least 1"),
        (-4, InvalidArgumentError, "x: -4"),
        (2.5, ArgumentTypeError, "x: 2.5"),
        (True, ArgumentTypeError, "x: True is a bool"),
        ("float32", ArgumentTypeError, "x: 'float32'"),
        (("float32",), InvalidArgumentError, r"x: \('float32',\) has 1 values"),
        (("float32", 3, 16, 4), InvalidArgumentError, "has 4 values"),
        (("float32", ()), InvalidArgumentError, "no axis"),
        (("float32", (3, 0)), InvalidArgumentError, "x: 0"),
        (("float32", 3, 24), InvalidArgumentError, "alignment 24 is not a power of two"),
        (("float32", 3, 0), InvalidArgumentError, "x: alignment: 0"),
        ((None, 3), ArgumentTypeError, "x: None is not an element type"),
        ((object, 3), ArgumentTypeError, "is not an element type"),
        (("V0", 3), ArgumentTypeError, "is not an element type"),
        (("nothing", 3), ArgumentTypeError, "x: 'nothing' is not an element type"),
    ],
)
def test_what_is_no_part(given, error, words):
    for make in (nd.shared_layout, nd.shared_overlay):
        with pytest.raises(error, match=words):
            make(x=given)


@pytest.mark.parametrize("name", ["size", "parts", "alignment", "_x", "class", "a b", "1"])
def test_what_is_no_name(name):
    with pytest.raises(InvalidArgumentError, match=f"parts: '{name}' cannot be the name"):
        nd.shared_layout(**{name: 4})


def test_names_are_there_once():
    with pytest.raises(InvalidArgumentError, match="parts: a, b is there more than once"):
        nd.shared_layout(nd.shared_layout(a=1, b=2, c=3), a=1, b=2)


def test_by_position_come_layouts_only():
    with pytest.raises(ArgumentTypeError, match="groups: 16 is not a layout"):
        nd.shared_layout(16)


def test_parts_are_arrays_in_kernels_only():
    with pytest.raises(KernelOnlyError, match="shared_layout's floats was called on the host"):
        ODD.floats()


# -- in compiled kernels -------------------------------------------------------------------------------------


def accesses(ptx, what):
    """(kind, bytes from the beginning of dynamic memory) of the loads ("ld") or stores ("st") at constant places."""
    form = rf"{what}\.shared\.([\w.]+)\s[^;\[]*\[_nvmath_device_shared_layout_\d+(?:\+(\d+))?\]"
    return [(kind, int(offset or 0)) for kind, offset in re.findall(form, ptx)]


def loads(ptx):
    return accesses(ptx, "ld")


def test_elements_are_read_where_the_host_says():
    def kernel(x):
        x[0] = ODD.bytes()[6]
        x[1] = ODD.floats()[2]
        x[2] = ODD.table()[1, 3]
        x[3] = ODD.last()[0].imag

    assert loads(ptx_of(kernel, float32[:])) == [("u8", 6), ("f32", 24), ("f64", 128 + 8 * (5 + 3)), ("f32", 260)]


def test_all_parts_have_one_beginning():
    """ptxas puts an external array where its own alignment allows, so all must have the same."""

    def kernel(x):
        tiny = cuda.shared.array(3, float32)
        tiny[cuda.threadIdx.x] = x[cuda.threadIdx.x]
        x[1] = ODD.floats()[2] + ODD.bytes()[1] + ODD.table()[0, 0] + tiny[1]

    arrays = shared_arrays(ptx_of(kernel, float32[:]))
    assert [a for a, size in arrays if size is None] == [128] * 3


def test_static_arrays_are_padded_to_where_the_layout_begins():
    def without(x):
        table = ODD.table()
        table[cuda.threadIdx.x, 0] = x[cuda.threadIdx.x]
        cuda.syncthreads()
        x[1] = table[2 - cuda.threadIdx.x, 0]

    def with_static(x):
        tiny = cuda.shared.array(3, float32)
        tiny[cuda.threadIdx.x] = x[cuda.threadIdx.x]
        table = ODD.table()
        table[cuda.threadIdx.x, 0] = x[cuda.threadIdx.x]
        cuda.syncthreads()
        x[1] = table[2 - cuda.threadIdx.x, 0] + tiny[2 - cuda.threadIdx.x]

    for kernel, padded in ((without, 0), (with_static, 128)):
        made = nd.compile(kernel, void(float32[:]), sm=90)
        assert read_resources(made.code, made.entry).static_shared_bytes == padded


def test_sizes_are_constants_in_kernels():
    def kernel(x):
        local = cuda.local.array(ODD.size, float32)
        local[x[0]] = 1
        x[1] = local[x[2]] + ODD.alignment

    ptx_of(kernel, int64[:])


@pytest.mark.parametrize(
    "dtype",
    [
        "float16", "bfloat16", "float8_e4m3fn", "int16", np.bool_, nd.tfloat32, np.complex128, nd.uint32x4,
        nd.float16x2, nd.float64x2, np.dtype([("x", "f4"), ("y", "f4")]),
    ],
    ids=str,
)  # fmt: skip
def test_element_types_in_kernels(dtype):
    layout = nd.shared_layout(first=3, x=(dtype, 5), after=(dtype, 5))
    size = layout.x.dtype.itemsize

    def kernel(x):
        layout.x()[4] = layout.x()[3]
        layout.after()[0] = layout.x()[2]

    ptx = ptx_of(kernel, float32[:])
    read, written = ({offset for _, offset in accesses(ptx, what)} for what in ("ld", "st"))
    assert read >= {16 + 2 * size, 16 + 3 * size}
    assert written >= {16 + 4 * size, layout.after.offset}
    assert all(16 + 2 * size <= offset < 16 + 4 * size for offset in read)


def test_layouts_reach_kernels_as_globals_and_closures():
    closed = nd.shared_layout(nd.shared_layout(before=64), x=(np.float32, 4))

    def kernel(x):
        x[0] = ODD.floats()[0]
        x[1] = closed.x()[1]

    assert [offset for _, offset in loads(ptx_of(kernel, float32[:]))] == [16, 68]


def test_a_part_that_is_not_there():
    def kernel(x):
        x[0] = ODD.nothing()[0]

    with pytest.raises(Exception, match="Unknown attribute 'nothing' of type SharedLayout"):
        ptx_of(kernel, float32[:])


def test_a_part_takes_no_arguments():
    def kernel(x):
        x[0] = ODD.floats(3)[0]

    assert error_of(kernel, float32[:]).startswith("shared_layout part takes (), got 1 arguments")


def test_debugged_kernels_compare_with_the_launch():
    def kernel(x):
        x[0] = ODD.table()[0, 0]

    assert "dynamic_smem_size" not in ptx_of(kernel, float32[:])
    debugged = ptx_of(kernel, float32[:], debug=True, opt=False)
    assert "dynamic_smem_size" in debugged
    assert re.search(r"setp\.\w+\.u32\s+%\w+, %\w+, 248", debugged)  # where the part ends
