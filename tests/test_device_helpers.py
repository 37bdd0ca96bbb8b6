# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F811  (a fixture is imported and is a parameter's name)
"""Helper device functions in kernels that are compiled ahead of time: for the target, without a device.

Code by libmathdx is replaced (see ``kernel_stubs``); helpers are real and linked.
"""

from __future__ import annotations

import re
import struct
import types

import pytest
from numba import cuda
from numba.cuda.core import errors
from numba.cuda.cudadrv import devices
from numba.cuda.types import float32, float64, int64, void

import nvmath_device as nd
from nvmath_device.numba_backend import emit
from nvmath_device.numba_backend.compiling import compile_modules
from nvmath_device.numba_backend.for_target import Compilation
from tests.kernel_stubs import MM, asked  # noqa: F401  (a fixture)
from tests.real_code import counts, run

SM80, SM90 = nd.ComputeCapability(8, 0), nd.ComputeCapability(9, 0)
VECTOR = float32[::1]


@cuda.jit(device=True)
def double(x):
    return x + x


@cuda.jit(device=True)
def double_plus_one(x):
    return double(x) + float32(1)


@cuda.jit(device=True)
def power(x, n):
    return float32(1) if n == 0 else x * power(x, n - 1)


@cuda.jit(device=True)
def multiply(a, b, c):
    MM.execute(1.0, a, b, 0.0, c)


def with_global(x):
    x[0] = double_plus_one(x[0])


def with_closure():
    helper = double

    def kernel(x):
        x[0] = helper(x[0]) + float32(1)

    return kernel


library = types.ModuleType("library")
library.double_plus_one = double_plus_one


def with_module(x):
    x[0] = library.double_plus_one(x[0])


HELPERS = (double, (double_plus_one,))


def with_tuple(x):
    x[0] = HELPERS[1][0](x[0])


def with_inner_function(x):
    def twice_and_one(value):
        if value == value:
            return double_plus_one(value)
        return value

    x[0] = twice_and_one(x[0])


FORMS = [with_global, with_closure(), with_module, with_tuple, with_inner_function]


@pytest.mark.filterwarnings("ignore:First-class function:numba.core.errors.NumbaExperimentalFeatureWarning")
@pytest.mark.parametrize("kernel", FORMS, ids=lambda f: f.__qualname__)
def test_a_helper_is_compiled_and_inlined_wherever_it_comes_from(kernel):
    found = counts(nd.compile(kernel, void(VECTOR), sm=90).code)
    assert found["FADD"] + 2 * found["FFMA"] == 2  # x + x + 1
    assert found["CALL"] == 0


def test_a_helper_that_calls_itself():
    def kernel(x, n):
        x[0] = power(x[0], n)

    found = counts(nd.compile(kernel, void(VECTOR, int64), sm=90).code)
    assert found["FMUL"] >= 1


def test_the_users_helper_is_left_as_it_was():
    before = dict(double.__dict__)
    nd.compile(with_global, void(VECTOR), sm=90)
    assert double.overloads == double_plus_one.overloads == {}
    assert double.__dict__ == before


# In a process of its own: an extension of Numba that is not an installed package is one that no kernel can be kept
# with, and it cannot be taken back.
EXTENSION = """
import gc
import threading

from numba import cuda
from numba.cuda import extending
from numba.cuda.cudadrv import devices
from numba.cuda.descriptor import cuda_target
from numba.cuda.types import float32, void

import nvmath_device as nd

seen = []


def tripled(x):
    raise NotImplementedError


@extending.overload(tripled, target="cuda")
def overload_of_tripled(x):
    # Called by typing, in the middle of the compilation.
    thread = threading.Thread(target=lambda: seen.append(devices._runtime._get_attached_context()))
    thread.start()
    thread.join()
    seen.append(cuda.get_current_device().compute_capability)
    return lambda x: x * float32(3)


@cuda.jit(device=True)
def helper(x):
    return tripled(x)


def kernel(x):
    x[0] = helper(x[0])


typing, context = cuda_target.typing_context, cuda_target.target_context
print(nd.compile(kernel, void(float32[::1]), sm=80, output="ptx").code.decode().count("mul.f32"))
print(seen[0], seen[1], devices._runtime._get_attached_context())
print(cuda_target.typing_context is typing, cuda_target.target_context is context, len(helper.overloads))

functions = len(context._defns)
nd.compile(kernel, void(float32[::1]), sm=80, output="ptx")
gc.collect()
print(len(context._defns) - functions)
"""


def test_an_overload_is_compiled_and_numba_notices_nothing():
    """Another thread sees no device, this one the target; afterwards all is as it was, and helpers are forgotten."""
    assert run(EXTENSION).splitlines() == ["1", "None (8, 0) None", "True True 0", "0"]


def test_an_error_in_a_helper_leaves_nothing_behind():
    @cuda.jit(device=True)
    def wrong(x):
        return x.nothing_of_the_kind

    def kernel(x):
        x[0] = wrong(x[0])

    with pytest.raises(errors.TypingError, match="nothing_of_the_kind"):
        nd.compile(kernel, void(VECTOR), sm=90)
    assert devices._runtime._get_attached_context() is None
    assert wrong.overloads == {}


def test_a_descriptor_in_a_helper_is_made_for_the_target(asked):
    def kernel(a, b, c):
        multiply(a, b, c)

    for target in (SM80, SM90, SM80):
        modules = compile_modules(kernel, void(VECTOR, VECTOR, VECTOR), target, {})
        assert [block.block_dim.size for block in modules.blocks] == [64]
    assert [dict(recipe.operators)["SM"] for recipe in asked] == [800, 900]


def test_a_descriptor_in_a_helper_bounds_the_threads_of_its_kernel(monkeypatch):
    """As in a kernel that calls it itself: without it a block of 1024 threads may not fit."""

    def kernel(a, b, c):
        multiply(a, b, c)

    bounds = []
    real = emit.annotate
    monkeypatch.setattr(
        emit, "annotate", lambda f, name, value: (bounds.append((f.name, name, value)), real(f, name, value))
    )
    entry = compile_modules(kernel, void(VECTOR, VECTOR, VECTOR), SM90, {}).entry
    assert (entry, "maxntidx", 64) in bounds
    bounds.clear()
    entry = compile_modules(kernel, void(VECTOR, VECTOR, VECTOR), SM90, {"debug": True, "opt": False}).entry
    assert entry not in [function for function, _, _ in bounds]


def test_a_helper_is_compiled_as_it_is_now():
    scope = {"factor": 3.0, "cuda": cuda}
    exec("@cuda.jit(device=True)\ndef scaled(x):\n    return x * factor\n", scope)
    scaled = scope["scaled"]

    def kernel(x):
        x[0] = scaled(x[0])

    for factor in (3.0, 5.0):
        scope["factor"] = factor
        ptx = nd.compile(kernel, void(float64[::1]), sm=90, output="ptx").code.decode()
        (number,) = re.findall(r"mul\.f64.*0d([0-9A-F]{16})", ptx)
        assert struct.unpack(">d", bytes.fromhex(number)) == (factor,)


def test_options_of_the_helper_are_its_own():
    def division(x, y):
        return x / y

    exact, fast = cuda.jit(device=True)(division), cuda.jit(device=True, fastmath=True)(division)

    def instructions(helper):
        def kernel(x):
            x[0] = helper(x[0], x[1])

        return sum(counts(nd.compile(kernel, void(VECTOR), sm=90).code).values())

    assert instructions(fast) < instructions(exact) / 2


def test_a_helper_with_a_declared_signature_converts_its_arguments():
    with Compilation(SM90).running():  # declaring one compiles it at once, and that asks for a device
        helper = cuda.jit(float64(float64), device=True)(lambda x: x * x * x)

    def kernel(x):
        x[0] = helper(x[0])

    found = counts(nd.compile(kernel, void(VECTOR), sm=90).code)
    assert found["DMUL"] == 2
    assert found["FMUL"] == 0


def test_a_helper_called_with_other_types_is_compiled_again():
    def kernel(x, y):
        x[0] = double(x[0])
        y[0] = double(y[0])

    found = counts(nd.compile(kernel, void(VECTOR, float64[::1]), sm=90).code)
    assert (found["FADD"], found["DADD"]) == (1, 1)
