# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F811  (a fixture is imported and is a parameter's name)
"""Opaque tensors in compiled kernels: the machine code that they become."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from numba import cuda
from numba.cuda.types import float16, float32, int64, void

import nvmath_device as nd
from nvmath_device.lto import codegen
from nvmath_device.lto.tensor_recipes import COPY_ROLES, ROLES, symbol_of
from nvmath_device.tensor_plans import TensorPlan
from tests import sass, tensor_kernels
from tests.real_code import SM90, generated  # noqa: F401  (a fixture)
from tests.real_code import TENSORS as MM

KINDS = ("plain", "suggested")
A, C = float16[:, ::1], float32[:, ::1]
MADE = {}


def instructions(name, kernel, signature, **options):
    """One link a kernel, however many tests look at it."""
    if name not in MADE:
        MADE[name] = sass.instructions(nd.compile(kernel, signature, sm=90, **options).code)
    return MADE[name]


def registers(kind, alignment=None):
    signature = void(float16[::1], int64, int64, float16[::1], int64, int64, int64, float32[::1], int64)
    kernel = tensor_kernels.to_registers(MM, kind, jit=lambda k: k, alignment=alignment)
    return instructions(("registers", kind, alignment), kernel, signature)


def shared(kind):
    signature = void(float32, float16[::1], int64, float16[::1], int64, float32, float32[::1], int64)
    return instructions(("shared", kind), tensor_kernels.to_shared(MM, kind, jit=lambda k: k), signature)


def through(kind):
    kernel = tensor_kernels.through_registers(MM, kind, np.float16, jit=lambda k: k)
    return instructions(("through", kind), kernel, void(A, A, C, C, A, C))


def stems(found):
    return Counter(name.partition(".")[0] for name in found)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("made", [registers, shared, through], ids=lambda f: f.__name__)
def test_nothing_is_called_and_all_stays_in_registers(generated, made, kind):
    """A call of libmathdx's with other arguments than its own would not be inlined, and stand out as one."""
    found = stems(made(kind))
    assert found["HMMA"] >= 16
    assert found["LDGSTS"] >= 4
    assert (found["CALL"], found["LDL"], found["STL"]) == (0, 0, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_elements_are_found_without_a_call(generated, kind):
    kernel = tensor_kernels.pairs(MM, kind, jit=lambda k: k)
    found = instructions(("pairs", kind), kernel, void(C, A))
    assert "F2FP.F16.F32.PACK_AB" in found
    assert "STS" in found  # a word of two, not two halves
    assert "STS.U16" not in found
    assert (stems(found)["CALL"], stems(found)["LDL"], stems(found)["STL"]) == (0, 0, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_libmathdx_makes_what_was_planned(generated, kind):
    plan, is_suggested = TensorPlan(*MM.resolved(SM90)), kind == "suggested"
    recipe = plan.recipe(is_suggested)
    (code,) = codegen.codes([recipe])
    assert dict(code.symbols) == {role: symbol_of(recipe, role) for role in ROLES}
    assert code.sizes["fragment"] == 64 * 64 // 128 * 4 == plan.fragment_size(is_suggested) * 4
    assert (plan.suggested_elements(0), plan.suggested_alignment(2)) == (64 * 32, 16)


@pytest.mark.parametrize(("alignment", "suffix"), [(None, ".128"), (16, ".128"), (4, None)])
def test_the_alignment_is_how_much_is_copied_at_once(generated, alignment, suffix):
    """Of 8 KiB by 128 threads: four copies of 16 bytes each, or sixteen of 4."""
    copies = [name for name in registers("plain", alignment) if name.startswith("LDGSTS")]
    wide = [name for name in copies if name.endswith(".128")]
    assert (len(copies), len(wide)) == ((4, 4) if suffix else (16, 0))


def test_another_alignment_is_a_family_of_copies(generated):
    (code,) = codegen.codes([TensorPlan(*MM.resolved(SM90)).recipe(False, 4)])
    assert set(code.symbols) == set(COPY_ROLES)


def test_a_launch_must_have_the_block(generated):
    code = nd.jit(tensor_kernels.to_shared(MM, "plain", jit=lambda k: k)).build(
        void(float32, float16[::1], int64, float16[::1], int64, float32, float32[::1], int64), 90
    )
    assert code.blocks == ({"block_dim": [128, 1, 1], "exact": True},)


@pytest.mark.parametrize("options", [{"lineinfo": True}, {"debug": True, "opt": False}], ids=str)
def test_with_debug_information(generated, options):
    def kernel(a, b, c):
        ta = nd.make_tensor(nd.shared.array(2048, np.float16), MM.get_layout_smem_a())
        tb = nd.make_tensor(nd.shared.array(2048, np.float16), MM.get_layout_smem_b())
        nd.copy(nd.make_tensor(a, MM.get_layout_gmem_a()), ta)
        nd.copy(nd.make_tensor(b, MM.get_layout_gmem_b()), tb)
        nd.copy_wait()
        cuda.syncthreads()
        acc = MM.get_accumulator()
        MM.execute(ta, tb, acc)
        acc.partition_and_store(nd.make_tensor(c, MM.get_layout_gmem_c()))

    assert stems(instructions(str(options), kernel, void(A, A, C), **options))["HMMA"] >= 16


def test_two_matmuls_and_layouts_made_on_the_host(generated):
    """The second is the same descriptor object by value, so that both are one family."""
    again = nd.Matmul.from_descriptor(MM.descriptor, MM.block_execution)
    layout = again.get_layout_smem_a()

    def kernel(a, b, c):
        ta = nd.make_tensor(nd.shared.array(layout.cosize, np.float16), layout)
        tb = nd.make_tensor(nd.shared.array(2048, np.float16), MM.get_layout_smem_b())
        nd.copy(nd.make_tensor(a, again.get_layout_gmem_a()), ta)
        nd.copy(nd.make_tensor(b, MM.get_layout_gmem_b()), tb)
        nd.copy_wait()
        cuda.syncthreads()
        acc = again.get_accumulator()
        MM.execute(ta, tb, acc)
        acc.axpby(np.float32(2), np.float32(0), nd.make_tensor(c, again.get_layout_gmem_c()))

    found = stems(instructions("two", kernel, void(A, A, C)))
    assert (found["CALL"], found["LDL"]) == (0, 0)
    assert found["LDG"] == 0  # beta is a constant zero: C is not read
