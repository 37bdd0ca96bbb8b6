# SPDX-License-Identifier: Apache-2.0
"""Arguments of a launch: their Numba types, and the words that a kernel gets for them.

Numba flattens arguments: an array becomes seven words and more, a complex number two. What is passed in which C type
is the kernel's launch record; here are the values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba.cuda import types
from numba.cuda.args import ArgHint
from numba.cuda.descriptor import cuda_target
from numba.cuda.typing.typeof import Purpose, typeof

from nvmath_device.device_pipelines import DevicePipeline
from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError
from nvmath_device.host import current_device
from nvmath_device.host.array_view import ArrayView, compact_strides
from nvmath_device.host.arrays import package_of, view
from nvmath_device.numba_backend import device_pipeline_type
from nvmath_device.numba_backend.element_types import element_numba

_COMPLEX = {"float32": types.complex64, "float64": types.complex128}
_SCALARS = (bool, int, float, complex, np.generic)


class Argument(NamedTuple):
    """One argument as it is passed.

    Attributes:
        type: Numba's type of it.
        words: values of the flat parameters.
        view: of an array that is passed in place; ``None`` for all else.
        finish: what is to be done after the launch, such as copying back.
        inner: views of arrays that it holds, of an argument that is more than one array.
    """

    type: Any
    words: tuple[Any, ...]
    view: ArrayView | None = None
    finish: tuple[Callable[[], Any], ...] = ()
    inner: tuple[ArrayView, ...] = ()

    @property
    def views(self) -> tuple[ArrayView, ...]:
        """Of all its arrays that are passed in place."""
        return self.inner if self.view is None else (self.view,)


def read_argument(x: Any, name: str, stream: int) -> Argument:
    """How an argument is passed. Arrays of any library on a GPU go in place, on the launch's stream.

    Raises:
        ArgumentTypeError: an array in CPU memory, or something that kernels do not take.
        InvalidArgumentError: an array in a state that cannot be read.
    """
    if isinstance(x, _SCALARS):
        return _of_number(x)
    if isinstance(x, ArgHint):
        return _of_hint(x, name, stream)
    if isinstance(x, tuple):
        return _of_tuple(x, name, stream)
    if _is_array(x):
        return _of_array(x, name, stream)
    if isinstance(x, DevicePipeline):
        return _of_pipeline(x, name, stream)
    return _of_other(x, name, stream)


def converted(argument: Argument, x: Any, declared: Any, name: str) -> Argument:
    """The argument ``x``, which was read, for a kernel whose signature declares a type for it.

    Raises ArgumentTypeError where that is another type and Numba has no such conversion.
    """
    given = argument.type
    if given == declared:
        return argument
    if isinstance(given, types.Array) and isinstance(declared, types.Array):
        alike = (given.dtype, given.ndim) == (declared.dtype, declared.ndim)
        if alike and declared.layout in ("A", given.layout) and (given.mutable or not declared.mutable):
            return argument._replace(type=declared)
    numbers = types.Number | types.Boolean
    if isinstance(declared, numbers) and isinstance(given, numbers):
        convertible = cuda_target.typing_context.can_convert(given, declared) is not None
        if convertible:
            return Argument(declared, _words_of_number(declared, x))
    raise ArgumentTypeError(f"{name}: the kernel's signature says {declared}, and the argument is {given}")


# -- numbers ------------------------------------------------------------------------------------------------


def _of_number(x: Any) -> Argument:
    kind = typeof(x, Purpose.argument)
    return Argument(kind, _words_of_number(kind, x))


def _words_of_number(kind: Any, x: Any) -> tuple[Any, ...]:
    if isinstance(kind, types.Complex):
        x = complex(x)
        return (x.real, x.imag)
    if isinstance(kind, types.Boolean):
        return (bool(x),)
    if isinstance(kind, types.Integer):
        return (int(x),)
    if kind == types.float16:
        return (int(np.float16(x).view(np.uint16)),)
    if kind == types.bfloat16:
        bits = np.float32(x).view(np.uint32)  # rounded to nearest even, as ml_dtypes does
        return (int((int(bits) + 0x7FFF + ((int(bits) >> 16) & 1)) >> 16) if x == x else 0x7FC0,)
    if isinstance(kind, types.Float):
        return (float(x),)
    if isinstance(kind, types.NPDatetime | types.NPTimedelta):
        return (int(x.view(np.int64)),)
    if isinstance(kind, types.Record):
        raise ArgumentTypeError("a record in CPU memory: pass an array of one on the GPU and index it")
    raise ArgumentTypeError(f"kernels take no numbers of type {kind}")


# -- arrays -------------------------------------------------------------------------------------------------


def _is_array(x: Any) -> bool:
    if package_of(x) != "generic":
        return True
    kind = type(x)
    return any(hasattr(kind, n) for n in ("__dlpack__", "__cuda_array_interface__", "__array_interface__"))


def _of_array(x: Any, name: str, stream: int) -> Argument:
    try:
        operand = view(x, name, stream=stream)
    except ArgumentTypeError:
        if not hasattr(x, "__cuda_array_interface__"):
            raise
        return _of_numba_array(x)  # elements that no matrix has: records, booleans, dates
    if operand.device.kind == "cpu":
        raise ArgumentTypeError(
            f"{name}: a {type(x).__module__.partition('.')[0]} array in CPU memory, and a launch copies nothing by "
            f"itself. Copy it once with numba.cuda.to_device(...) or cupy.asarray(...), or have this launch copy it: "
            "cuda.In(x) there, cuda.Out(x) back, cuda.InOut(x) both"
        )
    if operand.conjugated:
        raise InvalidArgumentError(f"{name}: the tensor is conjugated lazily; pass x.resolve_conj()")
    return Argument(array_type(operand), array_words(operand), operand)


def array_type(operand: ArrayView) -> Any:
    """Numba's type of an array: fp8 is its bits, ``uint8``."""
    element = operand.element
    if operand.is_complex:
        dtype = _COMPLEX.get(element.name)
        if dtype is None:
            raise ArgumentTypeError(f"kernels take no complex numbers of {element.name}; pass a view of their parts")
    else:
        dtype = element_numba(element)
    return _array_type(dtype, operand.ndim, _layout(operand), operand.readonly)


@cache
def _array_type(dtype: Any, ndim: int, layout: str, readonly: bool) -> Any:
    return types.Array(dtype, ndim, layout, readonly=readonly)


def _layout(operand: ArrayView) -> str:
    shape, strides = operand.shape, operand.strides
    if strides == compact_strides(shape):
        return "C"
    return "F" if strides == compact_strides(shape[::-1])[::-1] else "A"


def array_words(operand: ArrayView) -> tuple[Any, ...]:
    """meminfo, parent, number of elements, size of one, address, extents, strides in bytes."""
    itemsize, shape = operand.itemsize, operand.shape
    strides = operand.strides
    if 1 in shape or 0 in shape:  # what has no meaning is as in a compact array
        strides = tuple(
            s if extent > 1 else c for extent, s, c in zip(shape, strides, _all_strides(shape), strict=True)
        )
    return (0, 0, operand.size, itemsize, operand.ptr, *shape, *[s * itemsize for s in strides])


def _all_strides(shape: Sequence[int]) -> tuple[int, ...]:
    strides, step = [0] * len(shape), 1
    for axis in range(len(shape) - 1, -1, -1):
        strides[axis] = step
        step *= shape[axis]
    return tuple(strides)


def _of_numba_array(x: Any) -> Argument:
    from numba import cuda

    array = x if hasattr(x, "__cuda_ndarray__") else cuda.as_cuda_array(x)
    shape, strides = tuple(array.shape), tuple(array.strides)
    ptr = array.device_ctypes_pointer.value or 0
    words = (0, 0, array.size, array.dtype.itemsize, ptr, *shape, *strides)
    return Argument(typeof(array, Purpose.argument), words, finish=(lambda: array,))


def _of_hint(hint: Any, name: str, stream: int) -> Argument:
    """``cuda.In``, ``cuda.Out``, ``cuda.InOut``: Numba copies, and copies back when the kernel is launched."""
    from cuda.core import Stream

    value = hint.value
    if not isinstance(value, np.ndarray):
        inner = read_argument(value, name, stream)
        if inner.view is not None:
            return inner
        raise ArgumentTypeError(f"{name}: {type(hint).__name__} of a {type(value).__name__}; give an array")
    back: list[Callable[[], Any]] = []
    array = hint.to_device(back, Stream.from_handle(stream))
    contiguous = array._layout.strides_in_bytes
    itemsize = array.dtype.itemsize
    strides = contiguous or [s * itemsize for s in _strides_like(value, itemsize)]
    words = (0, 0, array.size, itemsize, array.ptr, *array.shape, *strides)
    return Argument(typeof(value, Purpose.argument), words, finish=tuple(back))


def _strides_like(value: np.ndarray[Any, Any], itemsize: int) -> tuple[int, ...]:
    if value.flags.f_contiguous and not value.flags.c_contiguous:
        return _all_strides(value.shape[::-1])[::-1]
    return _all_strides(value.shape)


# -- others -------------------------------------------------------------------------------------------------


def _of_tuple(x: tuple[Any, ...], name: str, stream: int) -> Argument:
    parts = [read_argument(part, f"{name}[{i}]", stream) for i, part in enumerate(x)]
    pyclass = type(x) if hasattr(x, "_fields") else None
    kind = types.BaseTuple.from_types([part.type for part in parts], pyclass)
    words = tuple(word for part in parts for word in part.words)
    finish = (*(f for part in parts for f in part.finish), lambda: x)
    return Argument(kind, words, finish=finish)


def _of_pipeline(x: DevicePipeline, name: str, stream: int) -> Argument:
    """Its matrices. Of their types only the orders count, so that all extents and strides have one code."""
    parts = [_of_array(array, f"{name}.{part}", stream) for part, array in (("a", x.a), ("b", x.b))]
    words = tuple(word for part in parts for word in part.words)
    return Argument(device_pipeline_type(x), words, inner=tuple(view for part in parts for view in part.views))


def _of_other(x: Any, name: str, stream: int) -> Argument:
    try:
        kind = typeof(x, Purpose.argument)
    except ValueError as error:
        raise ArgumentTypeError(f"{name}: kernels take no {type(x).__name__}: {error}") from error
    if isinstance(kind, types.EnumMember):
        inner = read_argument(x.value, name, stream)
        return Argument(kind, inner.words)
    raise ArgumentTypeError(f"{name}: kernels take no {type(x).__name__}; pass arrays, numbers, or tuples of them")


# -- arrays like the last one ---------------------------------------------------------------------------------


def numba_matcher(like: Any) -> Callable[[Any], int] | None:
    """A function that gives the address of an array of Numba's like this one; 0 where it differs."""
    kind, dtype, shape, strides = type(like), like.dtype, like.shape, like.strides
    context = getattr(like.gpu_data, "context", None)
    if not hasattr(like.gpu_data, "device_ctypes_pointer") or context is None:
        return None

    def match(x: Any) -> int:
        if type(x) is kind and x.dtype is dtype and x.shape == shape and x.strides == strides and x.stream == 0:
            return x.gpu_data.device_ctypes_pointer.value or 0
        return 0

    def match_on_device(x: Any) -> int:
        # Numba looks the context up through a chain of objects, which costs as much as all the rest
        return match(x) if type(x) is kind and x.gpu_data.context is context else 0

    return match_on_device if current_device.device_count() > 1 else match
