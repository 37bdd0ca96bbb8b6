# SPDX-License-Identifier: Apache-2.0
"""Arrays of any library, read in place: :func:`view`.

No array library but NumPy is ever imported here. An array is recognised by its type, so whatever is needed to
read it is loaded already.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nvmath_device.dtypes import ValueType
from nvmath_device.errors import InvalidArgumentError
from nvmath_device.host.array_packages import Reader, reader_for
from nvmath_device.host.array_view import ArrayView

_known: dict[type, tuple[str, Reader]] = {}  # types live as long as their library; a program has few


def _reader(kind: type) -> tuple[str, Reader]:
    found = _known.get(kind)
    if found is None:
        found = _known[kind] = reader_for(kind)
    return found


def view(x: Any, argument: str = "x", *, stream: int | None = None) -> ArrayView:
    """What ``x`` is, without copying or changing it: address, extents, strides, element type, device.

    Args:
        x: an array of NumPy, CuPy, PyTorch, JAX or Numba (subclasses too), a ``StridedMemoryView`` of cuda.core,
            or any object with ``__dlpack__``, ``__cuda_array_interface__`` or ``__array_interface__``.
        argument: its name in error messages.
        stream: handle of the stream it is going to be used on. JAX and producers that speak DLPack order their
            work before it; ``None`` means the legacy default stream. Others ignore it: arrays of CuPy, PyTorch
            and Numba belong to the streams of their library, and ``producer_stream`` says where the array
            states one.

    The host waits for nothing but JAX arrays on the CPU. Whether strides or alignment suit a BLAS is not judged
    here.

    Raises:
        ArgumentTypeError: not an array, or its element type, device or layout (masked, sparse) is not accepted.
        InvalidArgumentError: its strides are not whole elements, or it is in a state that cannot be read.
        NoDeviceError: a CUDA Array Interface object where there is no driver.
    """
    kind = type(x)
    return (_known.get(kind) or _reader(kind))[1](x, argument, stream)


def package_of(x: Any) -> str:
    """Which library ``x`` belongs to, as in ``ArrayView.package``; ``"generic"`` also for what is no array."""
    return _reader(type(x))[0]


def as_numpy(operand: ArrayView, argument: str = "x") -> np.ndarray[Any, Any]:
    """CPU memory as a NumPy array with the same shape and elements, not copied. Lazy conjugates stay unapplied.

    The array is read-only where the view is, and keeps the operand's owner alive.

    Raises:
        InvalidArgumentError: the memory is on a GPU.
    """
    if operand.device.kind != "cpu":
        raise InvalidArgumentError(f"{argument}: the array is on {operand.device}, not in CPU memory")
    return np.asarray(_Memory(operand)).view(numpy_dtype(operand))


def numpy_dtype(operand: ArrayView) -> np.dtype[Any]:
    """NumPy's dtype for its elements; half-precision complex numbers are records of x and y."""
    return ValueType(operand.element, 2 if operand.is_complex else 1).dtype


class _Memory:
    """What NumPy keeps as the base of an array, and through it the owner."""

    def __init__(self, operand: ArrayView) -> None:
        self.operand = operand
        self.__array_interface__ = {
            "version": 3,
            "typestr": f"|V{operand.itemsize}",
            "shape": operand.shape,
            "strides": tuple(s * operand.itemsize for s in operand.strides),
            "data": (operand.ptr, operand.readonly),
        }
