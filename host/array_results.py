# SPDX-License-Identifier: Apache-2.0
"""New arrays for results, each in the library of the operand it follows.

:func:`plan_empty` settles everything that does not change from call to call and returns a function that makes
the array; :func:`hand_over` turns that into what the user gets, once the work that writes it is on its stream.
For all libraries but JAX that is the very array.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from nvmath_device.dtypes import ElementType, ValueType
from nvmath_device.errors import InvalidArgumentError, UnsupportedError
from nvmath_device.host.array_view import COMPLEX_NAMES, CPU, ArrayView, Device, canonical_strides, type_name
from nvmath_device.host.cuda_array import Allocate, CudaArray, allocate_with_cuda_core
from nvmath_device.host.streams import current_stream, same_stream

Shape = tuple[int, ...]
Make = Callable[[int], tuple[Any, int]]  # from the handle of a stream to an array and its address

_WITHOUT_ARRAYS = ("jax", "cuda.core", "generic")


def axis_order(order: str | tuple[int, ...], ndim: int, argument: str = "order") -> tuple[int, ...]:
    """Axes from the slowest to the fastest: ``"C"``, ``"F"``, or any permutation, e.g. (1, 0, 2)."""
    if order == "C":
        return tuple(range(ndim))
    if order == "F":
        return tuple(reversed(range(ndim)))
    if isinstance(order, str) or sorted(order) != list(range(ndim)):
        raise InvalidArgumentError(
            f"{argument}: {order!r} is not allowed; give 'C', 'F' or a permutation of the {ndim} axes, slowest first"
        )
    return tuple(order)


def dense_strides(shape: Shape, order: tuple[int, ...]) -> Shape:
    """Strides in elements of an array without gaps whose axes follow ``order``, slowest first.

    Those of axes of extent 1 are what they would be if the axis were longer; ``canonical_strides`` zeroes them.
    """
    strides, step = [0] * len(shape), 1
    for axis in reversed(order):
        strides[axis] = step
        step *= max(shape[axis], 1)
    return tuple(strides)


def plan_empty(
    package: str,
    shape: Shape,
    element: ElementType,
    *,
    is_complex: bool = False,
    device: Device = CPU,
    order: str | tuple[int, ...] = "C",
    allocate: Allocate = allocate_with_cuda_core,
    argument: str = "result",
) -> Callable[[int], ArrayView]:
    """A function that makes a new array of uninitialised elements, without gaps, in the library ``package``.

    It takes the handle of the stream that will write the array; pools that know streams take the memory for
    that one. NumPy, CuPy, PyTorch and Numba make their own arrays, on ``device`` whatever the current one is.
    For ``"jax"``, ``"cuda.core"`` and ``"generic"`` the array is a :class:`CudaArray` over memory from
    ``allocate``, for which ``device`` must be current; on the CPU it is NumPy's.

    Args:
        order: ``"C"``, ``"F"`` or all axes from the slowest to the fastest.

    Raises:
        UnsupportedError: the library has no such element type.
        InvalidArgumentError: ``order`` is none, or the library has no arrays on ``device``.
    """
    shape = tuple(shape)
    axes = axis_order(order, len(shape))
    layout = _Layout(shape, dense_strides(shape, axes), axes, element, is_complex, device, argument)
    if package in _WITHOUT_ARRAYS:
        make = _numpy_maker(layout) if device.kind == "cpu" else _cuda_array_maker(layout, allocate)
        made_in = "numpy" if device.kind == "cpu" and package != "jax" else package
    else:
        make, made_in = _MAKERS[package](layout), package
    strides = canonical_strides(shape, layout.strides)

    def empty(stream: int) -> ArrayView:
        array, ptr = make(stream)
        return tuple.__new__(
            ArrayView,
            (ptr, shape, strides, element, is_complex, device, made_in, False, False, array, None, None),
        )

    empty.array = getattr(make, "on_current", make)  # type: ignore[attr-defined]
    return empty


def plan_array(empty: Callable[[int], ArrayView]) -> Make:
    """What a function of :func:`plan_empty` makes its arrays with, without making a view of them.

    For calls on the library's current stream and device only, which is not checked.
    """
    make: Make = empty.array  # type: ignore[attr-defined]
    return make


def hand_over(operand: ArrayView) -> Any:
    """The user's array out of one made here, after the work that writes it was put on its stream.

    For JAX this is where the array comes into being: JAX makes its own streams wait for ours. Without 64-bit
    types enabled JAX converts float64, complex128 and 64-bit integers to their 32-bit relatives.
    """
    if operand.package != "jax":
        return operand.owner
    jax = sys.modules["jax"]
    if operand.device.kind == "cuda":
        return jax.dlpack.from_dlpack(operand.owner)
    return jax.device_put(operand.owner, jax.local_devices(backend="cpu")[0])


class _Layout:
    """One array to make."""

    def __init__(
        self, shape: Shape, strides: Shape, axes: Shape, element: ElementType, is_complex: bool, device: Device,
        argument: str,
    ) -> None:  # fmt: skip
        self.shape, self.strides, self.axes = shape, strides, axes
        self.element, self.is_complex, self.device, self.argument = element, is_complex, device, argument

    @property
    def itemsize(self) -> int:
        return self.element.itemsize * (2 if self.is_complex else 1)

    @property
    def byte_strides(self) -> Shape:
        return tuple(s * self.itemsize for s in self.strides)

    def numpy_dtype(self) -> np.dtype[Any]:
        """Raises UnsupportedError where neither NumPy nor ml_dtypes has the type."""
        dtype = ValueType(self.element, 2 if self.is_complex else 1).dtype
        if dtype.names:
            raise self.refusal("NumPy has no such type")
        return dtype

    def refusal(self, why: str) -> UnsupportedError:
        name = type_name(self.element, self.is_complex)
        return UnsupportedError(f"{self.argument}: no array of {name} can be made: {why}")

    def ordered(self, make: Callable[..., Any]) -> Callable[[], Any]:
        """``make(shape, order=...)`` of a library that knows C and F, for any order of axes."""
        shape, ndim = self.shape, len(self.shape)
        for order in ("C", "F"):
            if self.axes == axis_order(order, ndim):
                return lambda: make(shape, order=order)
        stored = tuple(shape[axis] for axis in self.axes)
        back = tuple(self.axes.index(axis) for axis in range(ndim))
        return lambda: make(stored, order="C").transpose(back)


def _numpy_maker(layout: _Layout) -> Make:
    dtype = layout.numpy_dtype()
    create = layout.ordered(lambda shape, order: np.empty(shape, dtype, order))

    def make(stream: int) -> tuple[Any, int]:
        array = create()
        return array, array.__array_interface__["data"][0]

    return make


def _cupy_maker(layout: _Layout) -> Make:
    """CuPy takes memory on its current device, and from its current stream's part of the pool."""
    if layout.device.kind == "cpu":
        raise InvalidArgumentError(f"{layout.argument}: CuPy has no arrays on the CPU")
    cupy, dtype, index = sys.modules["cupy"], layout.numpy_dtype(), layout.device.index
    if layout.element.numpy.startswith("float8"):
        raise layout.refusal("CuPy has no fp8")
    cuda, shape, ndarray = cupy.cuda, layout.shape, cupy.ndarray
    create = layout.ordered(lambda shape, order: cupy.empty(shape, dtype, order))
    is_plain = layout.axes == axis_order("C", len(shape))

    def on_current(stream: int) -> tuple[Any, int]:
        array = ndarray(shape, dtype) if is_plain else create()
        return array, array.data.ptr

    def make(stream: int) -> tuple[Any, int]:
        if cuda.runtime.getDevice() == index and same_stream(stream, cuda.get_current_stream(index).ptr):
            array = create()
        else:
            with cuda.Device(index), cuda.ExternalStream(stream):
                array = create()
        return array, array.data.ptr

    make.on_current = on_current  # type: ignore[attr-defined]
    return make


def _torch_maker(layout: _Layout) -> Make:
    """PyTorch's caching allocator gives memory to its current stream."""
    torch, shape, strides = sys.modules["torch"], layout.shape, layout.strides
    name = COMPLEX_NAMES.get(layout.element, "") if layout.is_complex else layout.element.numpy
    dtype = getattr(torch, name, None) if name else None
    if dtype is None:
        raise layout.refusal("this PyTorch has no such type")
    device = layout.device
    place = torch.device("cpu") if device.kind == "cpu" else torch.device("cuda", device.index)
    create = torch.empty_strided

    def on_current(stream: int) -> tuple[Any, int]:
        array = create(shape, strides, dtype=dtype, device=place)
        return array, array.data_ptr()

    def make(stream: int) -> tuple[Any, int]:
        if device.kind == "cpu" or same_stream(stream, current_stream("torch", device)):
            array = torch.empty_strided(shape, strides, dtype=dtype, device=place)
        else:
            with torch.cuda.stream(torch.cuda.ExternalStream(stream, device=place)):
                array = torch.empty_strided(shape, strides, dtype=dtype, device=place)
        return array, array.data_ptr()

    make.on_current = on_current  # type: ignore[attr-defined]
    return make


def _numba_maker(layout: _Layout) -> Make:
    """Numba's memory is not ordered by streams. On the CPU it is the simulator that makes the array."""
    cuda, dtype, device = sys.modules["numba.cuda"], layout.numpy_dtype(), layout.device

    def make(stream: int) -> tuple[Any, int]:
        if device.kind == "cpu":
            array = cuda.device_array(layout.shape, dtype, strides=layout.byte_strides)
            return array, array._ary.__array_interface__["data"][0]
        with cuda.gpus[device.index]:
            array = cuda.device_array(layout.shape, dtype, strides=layout.byte_strides)
        return array, array.device_ctypes_pointer.value or 0

    return make


def _cuda_array_maker(layout: _Layout, allocate: Allocate) -> Make:
    shape, device = layout.shape, layout.device
    nbytes = layout.itemsize
    for extent in shape:
        nbytes *= extent
    nbytes = max(nbytes, 1)
    strides = canonical_strides(shape, layout.strides)

    def make(stream: int) -> tuple[Any, int]:
        memory = allocate(nbytes, device, stream)
        ptr = int(memory.handle)
        known = ArrayView(
            ptr, shape, strides, layout.element, layout.is_complex, device, "generic", False, False, None
        )  # fmt: skip
        return CudaArray(memory, known, stream), ptr

    return make


_MAKERS: dict[str, Callable[[_Layout], Make]] = {
    "numpy": _numpy_maker,
    "cupy": _cupy_maker,
    "torch": _torch_maker,
    "numba": _numba_maker,
}
