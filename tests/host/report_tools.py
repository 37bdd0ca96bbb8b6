# SPDX-License-Identifier: Apache-2.0
"""What the tests of reported cases share: arrays of each library in CPU or GPU memory, products of them, and bounds.

The same tests run with NumPy's arrays under CPU execution (``tests/host``) and with CuPy's, PyTorch's and NumPy's on
a GPU (``tests/gpu/host``): they ask for a fixture ``library``, and the file that collects them says which one it is.
Expected values are NumPy's, in float64.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

import nvmath_device.host as host
from nvmath_device.errors import UnsupportedError
from nvmath_device.host.options import MatmulOptions, read_options
from tests.host.cpu_products import TINY, UNIT, wide

F16, F32, F64 = np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)
C64 = np.dtype(np.complex64)
BF16, E4M3, E5M2 = (np.dtype(getattr(ml_dtypes, n)) for n in ("bfloat16", "float8_e4m3fn", "float8_e5m2"))
POISON = {"i": 77, "u": 77}  # and NaN for all else


class Library:
    """Arrays of one library in one place, and products of them."""

    def __init__(self, name: str, execution: str) -> None:
        self.name, self.execution = name, execution
        self.on_gpu = execution == "gpu"

    def __repr__(self) -> str:
        return f"{self.name}-on-{self.execution}"

    # -- arrays --

    def having(self, *dtypes):
        """Those of the element types that the library has arrays of."""
        return [d for d in dtypes if self.name != "cupy" or d not in (BF16, E4M3, E5M2)]

    def put(self, values):
        """A new array of the library with these numbers, without gaps, its axes in the order that they lie in."""
        values = np.asarray(values)
        axes = sorted(range(values.ndim), key=lambda axis: -abs(values.strides[axis]))
        stored = self._put(np.array(values.transpose(axes), order="C"))
        back = tuple(int(axis) for axis in np.argsort(axes))
        return stored.permute(back) if self.name == "torch" else stored.transpose(back)

    def _put(self, values):
        if self.name == "numpy":
            return values
        if self.name == "cupy":
            import cupy

            return cupy.asarray(values)
        import torch

        bits = {BF16: np.int16, E4M3: np.uint8, E5M2: np.uint8}.get(values.dtype, values.dtype)
        tensor = torch.from_numpy(values.view(bits)).to("cuda" if self.on_gpu else "cpu")
        return tensor.view(getattr(torch, values.dtype.name))

    @staticmethod
    def get(array) -> np.ndarray:
        """The numbers of an array of any library."""
        if isinstance(array, np.ndarray):
            return array
        if type(array).__module__.startswith("cupy"):
            return array.get()
        import torch

        array = array.detach().resolve_conj()
        if array.dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):
            bits = array.contiguous().view(torch.int16 if array.dtype == torch.bfloat16 else torch.uint8)
            return bits.cpu().numpy().view(str(array.dtype).removeprefix("torch."))
        return array.cpu().numpy()

    def poisoned(self, shape, dtype, order="C"):
        """An array for results, full of NaN (whole numbers: 77), so that what nobody wrote is seen."""
        dtype = np.dtype(dtype)
        return self.put(np.full(shape, POISON.get(dtype.kind, np.nan), dtype, order=order))

    def at_offset(self, values, nbytes: int):
        """``values`` in C order, ``nbytes`` behind an address that is a multiple of 256 bytes."""
        return self.in_room(values, nbytes)[0]

    def in_room(self, values, nbytes: int):
        """The array of :meth:`at_offset`, and the poisoned memory before and behind it."""
        values = np.array(values, order="C")
        item = values.dtype.itemsize
        poison = POISON.get(values.dtype.kind, np.nan)
        room = self.put(np.full(values.size + (nbytes + 512) // item, poison, values.dtype))
        start = (-self.address(room) % 256 + nbytes) // item
        stop = start + values.size
        place = room[start:stop].reshape(values.shape)
        place[...] = self.put(values)
        assert self.address(place) % 256 == nbytes % 256
        return place, (room[:start], room[stop:])

    @staticmethod
    def address(array) -> int:
        if isinstance(array, np.ndarray):
            return array.__array_interface__["data"][0]
        return array.data.ptr if type(array).__module__.startswith("cupy") else array.data_ptr()

    def broadcast(self, array, shape):
        """The array repeated by strides of zero."""
        if self.name == "torch":
            return array.expand(shape)
        if self.name == "cupy":
            import cupy

            return cupy.broadcast_to(array, shape)
        return np.broadcast_to(array, shape)

    def strided(self, memory, shape, strides, offset=0):
        """A view of a vector, with extents and strides in elements as they are given."""
        if self.name == "torch":
            return memory.as_strided(shape, strides, offset)
        library = importlib.import_module(self.name)
        item = memory.dtype.itemsize
        return library.lib.stride_tricks.as_strided(memory[offset:], shape, [s * item for s in strides])

    def owns(self, array) -> bool:
        """Whether the array is one of the library, where the library's arrays are."""
        if self.name == "torch":
            import torch

            return isinstance(array, torch.Tensor) and array.is_cuda == self.on_gpu
        return type(array).__module__.partition(".")[0] == self.name

    # -- products --

    def options(self, options=None) -> MatmulOptions:
        given = {} if options is None else dict(options)
        return read_options({"execution": self.execution} | given, MatmulOptions, "options")

    def matmul(self, *operands, options=None, **arguments):
        return host.matmul(*operands, options=self.options(options), **arguments)

    def Matmul(self, *operands, options=None, **arguments):
        return host.Matmul(*operands, options=self.options(options), **arguments)


@pytest.fixture(params=["numpy", *(["torch"] if importlib.util.find_spec("torch") else [])])
def cpu_library(request) -> Library:
    """NumPy, and PyTorch where it is installed, computed on the CPU."""
    return Library(request.param, "cpu")


def _needs(name: str, title: str):
    missing = importlib.util.find_spec(name) is None
    return pytest.param(name, marks=pytest.mark.skipif(missing, reason=f"needs a GPU with {title}"))


@pytest.fixture(params=[_needs("cupy", "CuPy"), _needs("torch", "PyTorch"), "numpy"])
def gpu_library(request) -> Library:
    """CuPy and PyTorch in GPU memory; NumPy, whose arrays are moved there and back."""
    return Library(request.param, "gpu")


@pytest.fixture(params=[_needs("torch", "PyTorch"), "numpy"])
def gpu_library_with_fp8(request) -> Library:
    """Those that have arrays of fp8."""
    return Library(request.param, "gpu")


@pytest.fixture(params=[_needs("cupy", "CuPy"), _needs("torch", "PyTorch")])
def library_on_gpu(request) -> Library:
    """Libraries whose arrays are in GPU memory."""
    return Library(request.param, "gpu")


# -- expected values and bounds -----------------------------------------------------------------------------


def expected(a, b, c=None, *, alpha=1.0, beta=1.0, bias=None):
    """alpha A B + beta C + bias in float64, and the sums of the absolute values of its terms."""
    want, size = alpha * (wide(a) @ wide(b)), abs(alpha) * (abs(wide(a)) @ abs(wide(b)))
    for factor, term in ((beta, c), (1.0, bias)):
        if term is not None:
            want, size = want + factor * wide(term), size + abs(factor) * abs(wide(term))
    return want, size


FP8_TRUNCATION = 2.0**-12  # Hopper keeps some 14 bits of an fp8 sum (DeepSeek-V3 technical report, section 3.5.2)


def assert_product(got, want, size, k, *, truncation=0.0):
    """``got`` is ``want`` but for rounding; ``size`` has the magnitudes of the terms of each sum.

    Norm-wise: (k + 8) units of the type of the sums times the norm of ``size`` bound the sum itself (Higham, Accuracy
    and Stability, section 3.1), and 3 units of the result's type its storing: one rounding, and a few more where
    cuBLASLt splits K and stores parts in the result's type, whose errors add up like a random walk. Besides, no
    element may be off by more than 8 units, relative to itself or to the root mean square of all: a single wrong
    element hides in a norm. ``truncation`` is what tensor cores cut off sums, relative to ``size``.
    """
    got, unit = np.asarray(got), UNIT[np.asarray(got).dtype.name]
    sums = 2.0**-53 if got.dtype.name in ("float64", "complex128") else 2.0**-24
    assert got.shape == want.shape, f"{got.shape} instead of {want.shape}"
    if not want.size:
        return
    off = abs(wide(got) - want)
    of_sums = (k + 8) * (2 if got.dtype.kind == "c" else 1) * (sums + 2.0**-53) + truncation
    tiny = TINY.get(got.dtype.name, 0.0) * np.sqrt(want.size)
    allowed = 3 * unit * np.linalg.norm(want) + of_sums * np.linalg.norm(size) + tiny
    assert np.linalg.norm(off) <= allowed, f"the norm is off by {np.linalg.norm(off)}, allowed is {allowed}"
    rms = np.sqrt(np.mean(abs(want) ** 2))
    each = 8 * unit * np.maximum(abs(want), rms) + 2 * of_sums * size + TINY.get(got.dtype.name, 0.0)
    worst = np.unravel_index(np.argmax(off - each), off.shape)
    assert (off <= each).all(), f"element {worst} is {got[worst]} and not {want[worst]}"


def assert_exact(got, want, what=""):
    """Every element is the expected one: for whole numbers, of which sums are exact in any order."""
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape, f"{what}: {got.shape} instead of {want.shape}"
    wrong = wide(got) != wide(want)
    assert not wrong.any(), f"{what}: {wrong.sum()} of {wrong.size} elements are wrong, first {np.argwhere(wrong)[0]}"


# -- refusals --------------------------------------------------------------------------------------------------


def right_or_refused(library, call: Callable[[], None], *named: str) -> bool:
    """Whether ``call`` went well. On a GPU it may be refused, by an error that has all these words."""
    if not library.on_gpu:
        call()
        return True
    try:
        call()
    except UnsupportedError as error:
        missing = [word for word in named if word not in str(error)]
        assert not missing, f"the refusal does not name {missing}: {error}"  # noqa: PT017
        return False
    return True
