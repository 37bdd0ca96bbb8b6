# SPDX-License-Identifier: Apache-2.0
"""The key of a stored kernel: whatever changes its code changes the key, and nothing else does.

What Numba makes of sources is the judge: where the PTX of two differs, their words have to.
"""

from __future__ import annotations

import itertools
import re
from types import SimpleNamespace

import numpy as np
import pytest
from numba import cuda
from numba.cuda import types
from numba.cuda.types import float32, float64, int32

from nvmath_device.numba_backend.kernel_words import kernel_words
from tests.user_kernels import (
    BASE,
    VECTOR,
    edited,
    user_modules,  # noqa: F401  (the fixture user)
    words,
)

# -- another key ------------------------------------------------------------------------------------------------

CHANGES = {
    "a constant in the body": ("Mode.FAST == 1", "Mode.FAST == 2"),
    "an operator": ("* SCALE", "/ SCALE"),
    "an attribute": ("cuda.threadIdx.x", "cuda.threadIdx.y"),
    "the order of statements": ("shared[i] = b[i]\n    a[1]", "a[1] = b[i]\n    shared[i]"),
    "a global integer": ("N = 8", "N = 9"),
    "a float of the same value": ("N = 8", "N = 8.0"),
    "a bool for an integer": ("OFFSET = 3", "OFFSET = True"),
    "a global float": ("SCALE = 1.5", "SCALE = 1.5000000000000002"),
    "the sign of zero": ("SCALE = 1.5", "SCALE = -0.0"),
    "a NumPy scalar": ("SCALE = 1.5", "SCALE = np.float32(1.5)"),
    "content of an array": ("np.arange(4, dtype=np.float32)", "np.arange(1, 5, dtype=np.float32)"),
    "dtype of an array": ("np.arange(4, dtype=np.float32)", "np.arange(4, dtype=np.float64)"),
    "length of an array": ("np.arange(4, dtype=np.float32)", "np.arange(5, dtype=np.float32)"),
    "a named tuple": ("Point(1, 2.5)", "Point(1, 3.5)"),
    "a type in a named tuple": ("Point(1, 2.5)", "Point(1, 2)"),
    "a member of an enumeration": ("FAST = 1", "FAST = 3"),
    "size of a Matmul": ("(8, 4, 16)", "(8, 4, 24)"),
    "block of a Matmul": ("block_size=64", "block_size=96"),
    "precision of a Matmul": ('(8, 4, 16), "float32"', '(8, 4, 16), "float16"'),
    "arrangement of a Matmul": ('("row_major", "col_major",', '("col_major", "col_major",'),
    "target of a Matmul": ("block_size=64", "block_size=64, sm=90"),
    "size of an FFT": ("nd.FFT(64", "nd.FFT(32"),
    "direction of an FFT": ('direction="forward"', 'direction="inverse"'),
    "a helper": ("return inner(x) * factor", "return inner(x) - factor"),
    "a default of a helper": ("factor=2", "factor=3"),
    "a helper of a helper": ("return x + OFFSET", "return x - OFFSET"),
    "a global of a helper of a helper": ("OFFSET = 3", "OFFSET = 4"),
    "an option of a helper": ("@cuda.jit(device=True)\ndef inner", "@cuda.jit(device=True, fastmath=True)\ndef inner"),
    "a closure variable": ("outer(5)", "outer(6)"),
    "a numba type": ("cuda.shared.array(MM.a_size, float32)", "cuda.shared.array(MM.a_size, types.float64)"),
    "a builtin hidden by a function": ("N = 8", "N = 8\nabs = math.sqrt"),
    "a builtin hidden by a number": ("N = 8", "N = 8\nabs = 1"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_the_source_is_another_key(user, name):
    assert words(user()) != words(user(edited(CHANGES[name])))


def test_a_constant_of_another_module_is_another_key_once_that_is_imported_again(user):
    before = words(user())
    assert words(user(settings="TILE = 32\nUNUSED = 1\n")) != before
    assert words(user(settings="TILE = 16\nUNUSED = 2\n")) == before


def test_the_module_of_a_constant_may_be_in_a_local_variable_or_an_argument(user):
    source = """
    import settings_of_user
    from numba import cuda

    @cuda.jit(device=True)
    def tile(module):
        return module.TILE

    def kernel(a, b):
        module = settings_of_user
        a[0] = {}
    """
    for expression in ("module.TILE", "tile(module)", "getattr(module, 'TILE')"):
        keys = {words(user(source.format(expression), f"TILE = {value}\nUNUSED = {value}")) for value in (1, 2)}
        assert len(keys) == 2, expression


def test_modules_within_modules_that_are_passed_around_count(user):
    source = """
    import settings_of_user
    from numba import cuda

    @cuda.jit(device=True)
    def tile(module):
        inner = module.inner
        return inner.TILE

    def kernel(a, b):
        a[0] = tile(settings_of_user)
    """
    settings = "import types\ninner = types.ModuleType('inner')\ninner.TILE, inner.OTHER = {}, {}\n"
    keys = [words(user(source, settings.format(*values))) for values in ((1, 1), (2, 1), (1, 2))]
    assert keys[0] != keys[1]
    assert keys[0] == keys[2]


def test_what_is_bound_now_counts(user):
    module = user()
    before = words(module)
    module.N = 9
    assert words(module) != before
    module.N = 8
    assert words(module) == before
    module.TABLE[2] = 7
    assert words(module) != before


def test_a_closure_variable_that_is_set_again_is_another_key(user):
    module = user("""
    def make():
        n = 1
        def kernel(a, b):
            def inner():
                return n
            a[0] = inner()
        def set_n(value):
            nonlocal n
            n = value
        return kernel, set_n
    kernel, set_n = make()
    """)
    before = words(module)
    module.set_n(2)
    assert words(module) != before


def test_functions_may_call_themselves_and_each_other(user):
    source = """
    from numba import cuda
    @cuda.jit(device=True)
    def even(n):
        return True if n == 0 else odd(n - 1)
    @cuda.jit(device=True)
    def odd(n):
        return False if n == 0 else even(n - 1)
    def kernel(a, b):
        a[0] = even(10)
    """
    assert words(user(source)) == words(user(source))
    assert words(user(source)) != words(user(edited(("return False", "return True"), source=source)))


def test_a_kernel_of_ours_is_told_by_its_function_and_options(user):
    source = "import nvmath_device as nd\n@nd.jit({})\ndef kernel(a, b):\n    a[0] = {}\n"
    plain, other = user(source.format("fastmath=False", 1)), user(source.format("fastmath=False", 2))
    assert words(plain) != words(other)
    as_function = kernel_words(plain.kernel.py_func, (VECTOR, VECTOR), plain.kernel.options, 90)
    assert kernel_words(plain.kernel, (VECTOR, VECTOR), plain.kernel.options, 90) == as_function


def test_signatures_of_a_helper_count(user, monkeypatch):
    """Numba compiles it for these alone and converts what it is given."""
    monkeypatch.setattr("numba.cuda.dispatcher.get_current_device", lambda: SimpleNamespace(compute_capability=(9, 0)))
    keys = []
    for signature in ("", '"float32(float32)", ', '"float64(float64)", '):
        source = edited(("@cuda.jit(device=True)\ndef inner", f"@cuda.jit({signature}device=True)\ndef inner"))
        keys.append(words(user(source)))
    assert len(set(keys)) == 3


def test_what_a_helper_has_been_compiled_for_does_not_count(user, monkeypatch):
    monkeypatch.setattr("numba.cuda.dispatcher.get_current_device", lambda: SimpleNamespace(compute_capability=(9, 0)))
    module = user()
    before = words(module)
    module.inner.compile_device((float32,))
    assert words(module) == before


# -- arguments, options, target ---------------------------------------------------------------------------------


def record(*fields, align=False):
    return types.Array(nd_from_dtype(np.dtype([*fields], align=align)), 1, "C")


def nd_from_dtype(dtype):
    from numba.cuda.np import numpy_support

    return numpy_support.from_dtype(dtype)


ARGUMENTS = [
    float32[::1],
    float32[:],
    float32[:, ::1],
    float32[::1, :],
    float64[::1],
    types.Array(float32, 1, "C", readonly=True),
    types.Array(float32, 1, "C", aligned=False),
    types.complex64[::1],
    types.float16[::1],
    types.bfloat16[::1],
    float32,
    float64,
    int32,
    types.uint32,
    types.boolean,
    types.none,
    types.Optional(float32),
    types.UniTuple(float32, 2),
    types.UniTuple(float32, 3),
    types.Tuple((float32, int32)),
    types.literal(1),
    types.literal(2),
    types.literal(True),
    record(("x", "f4"), ("y", "i4")),
    record(("x", "i4"), ("y", "f4")),
    record(("y", "f4"), ("x", "i4")),
    record(("x", "i1"), ("y", "f4")),
    record(("x", "i1"), ("y", "f4"), align=True),
    record(("x", "f4", 2)),
    record(("x", "f4", 3)),
    record(("y", "f4"), ("z", "f4")),
    record(("y", "f4"), ("z", "f4"), align=True),
    types.Array(nd_from_dtype(np.dtype({"names": ["y"], "formats": ["f4"], "itemsize": 4})), 1, "C"),
    types.Array(nd_from_dtype(np.dtype({"names": ["y"], "formats": ["f4"], "itemsize": 8})), 1, "C"),
]


def test_types_of_arguments_are_told_apart(user):
    module = user()
    keys = {words(module, VECTOR, argument) for argument in ARGUMENTS}
    assert len(keys) == len(ARGUMENTS)
    assert words(module, VECTOR) not in keys
    assert words(module, VECTOR, float32[::1]) == words(module, float32[::1], VECTOR)


OPTIONS = [
    {},
    {"fastmath": True},
    {"opt": False},
    {"debug": True, "opt": False},
    {"lineinfo": True},
    {"max_registers": 32},
    {"launch_bounds": 128},
    {"launch_bounds": (128, 2)},
    {"inline": "always"},
    {"lto": False},
]


def test_options_are_told_apart(user):
    module = user()
    assert len({words(module, **options) for options in OPTIONS}) == len(OPTIONS)


@pytest.mark.parametrize(
    "options",
    [
        {"fastmath": False, "inline": "never", "launch_bounds": None, "link": [], "extensions": []},
        {"debug": None, "opt": None, "lto": None},
        {"debug": False, "opt": True, "lto": True, "cache": True},
    ],
)
def test_defaults_may_be_given(user, options):
    module = user()
    assert words(module, **options) == words(module)
    assert words(module, launch_bounds=64) == words(module, launch_bounds=(64,))


def test_targets_are_told_apart(user):
    module = user()
    assert len({words(module, cc=cc) for cc in (80, 90, "sm_90a", (10, 0))}) == 4
    assert words(module, cc=(9, 0)) == words(module, cc=90)


def test_lines_count_where_line_information_is_asked_for(user):
    module, moved = user(), user("\n\n" + BASE)
    assert words(module) == words(moved)
    assert words(module, lineinfo=True) != words(moved, lineinfo=True)
    of_helper = ("@cuda.jit(device=True)\ndef inner", "@cuda.jit(device=True, lineinfo=True)\ndef inner")
    assert words(user(edited(of_helper))) != words(user("\n" + edited(of_helper)))


# -- the same key -----------------------------------------------------------------------------------------------

NO_CHANGES = {
    "a comment": ("N = 8", "N = 8  # threads"),
    "empty lines": ("def kernel(a, b):\n", "\n\n\ndef kernel(a, b):\n\n"),
    "an unrelated global": ("N = 8", "N = 8\nOTHER = object()"),
    "the same value made otherwise": ("N = 8", "N = 2 * 4"),
    "an equal descriptor": ("(8, 4, 16)", "[8, 4, 8 + 8]"),
    "an unrelated function": ("OFFSET = 3", "OFFSET = 3\ndef unrelated():\n    return 1"),
    "a type annotation": ("def helper(x, factor=2):", "def helper(x: float, factor: int = 2) -> float:"),
}


@pytest.mark.parametrize("name", NO_CHANGES)
def test_what_does_not_matter_is_the_same_key(user, name):
    assert words(user(edited(NO_CHANGES[name]))) == words(user())


def test_the_text_of_a_docstring_does_not_matter(user):
    sources = [edited(("def kernel(a, b):\n", f'def kernel(a, b):\n    """{text}"""\n')) for text in ("One.", "Two.")]
    assert words(user(sources[0])) == words(user(sources[1]))
    as_constants = [
        f'def kernel(a, b):\n    """{t}"""\n    text = "{t}"\n    a[0] = len(text)' for t in ("One.", "Two.")
    ]
    assert len({words(user(source)) for source in as_constants}) == 2


# -- what Numba says --------------------------------------------------------------------------------------------

BODIES = """
a[0] = 1
a[0] = 1.0
a[0] = 2
a[0] = -0.0
a[0] = 0.0
a[0] = b[0] + 1
a[0] = b[0] - 1
a[0] = b[0] + ONE
a[0] = b[0] + HALF
a[0] = b[0] + PAIR[0]
a[0] = b[0] + PAIR[1]
a[0] = b[0] + ARRAY[1]
a[0] = b[0] + math.pi
a[0] = b[0] + math.e
a[0] = math.sin(b[0])
a[0] = math.cos(b[0])
a[0] = len(b)
a[0] = b.size
a[0] = b.ndim
a[0] = b.itemsize
a[0] = cuda.threadIdx.y
a[0] = b.shape[0]
a[0] = cuda.blockIdx.x
a[0] = cuda.threadIdx.x
a[0] = cuda.grid(1)
a[0] = float32(b[0])
a[0] = KIND(b[0])
for i in range(3): a[i] = b[i]
for i in range(4): a[i] = b[i]
for i in (1, 2, 3): a[i] = b[i]
for i in (1, 2, 4): a[i] = b[i]
c = cuda.local.array(ONE, KIND); c[0] = b[0]; a[0] = c[0]
""".strip().splitlines()
HEADS = [
    "ONE, HALF, PAIR, ARRAY, KIND = 1, 0.5, (1, 2.0), np.arange(3.0), np.float32",
    "ONE, HALF, PAIR, ARRAY, KIND = 2, 0.25, (2, 2), np.arange(3), types.float64",
]


def ptx_without_names(kernel):
    codes, _ = cuda.compile_all(kernel, types.void(VECTOR, VECTOR), device=False, abi="numba", cc=(9, 0), output="ptx")
    return re.sub(r"_Z\w+|//.*", "", codes[0])


def test_where_the_code_that_numba_makes_differs_the_keys_do(user):
    ptx_of: dict[str, str] = {}
    for head, body in itertools.product(HEADS, BODIES):
        source = f"import math\nimport numpy as np\nfrom numba import cuda, float32, types\n{head}\n"
        module = user(f"{source}def kernel(a, b):\n    {body}\n")
        ptx = ptx_without_names(module.kernel)
        assert ptx_of.setdefault(words(module), ptx) == ptx, (head, body)
    assert len(set(ptx_of.values())) > 20  # or the test could not fail
