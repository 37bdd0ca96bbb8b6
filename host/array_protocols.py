# SPDX-License-Identifier: Apache-2.0
"""Arrays of libraries nobody told us about: DLPack, the CUDA Array Interface, NumPy's array interface.

DLPack comes first where an object has several, because it alone has a device, all element types, and an order
between streams. What its producer refuses is tried through the interfaces.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError, NoDeviceError, NvmathDeviceError
from nvmath_device.host.array_view import (
    ACCEPTED_TYPES,
    CPU,
    ArrayView,
    Device,
    compact_strides,
    cuda_device,
    element_strides,
    storage_of_dtype,
)  # fmt: skip
from nvmath_device.host.dlpack import read_dlpack, speaks_dlpack
from nvmath_device.host.driver import bindings

ACCEPTED_ARRAYS = (
    "arrays of NumPy, CuPy, PyTorch, JAX and Numba, cuda.core's StridedMemoryView, and objects with __dlpack__, "
    "__cuda_array_interface__ or __array_interface__"
)


def read_any(x: Any, argument: str, stream: int | None) -> ArrayView:
    """View of an object through whichever protocol it has. Raises ArgumentTypeError if it has none."""
    refusal: Exception | None = None
    if speaks_dlpack(x):
        try:
            return read_dlpack(x, argument, stream)
        except NvmathDeviceError:
            raise
        except Exception as error:
            refusal = error
    interface = getattr(x, "__cuda_array_interface__", None)
    if interface is not None:
        return read_cuda_array_interface(x, interface, argument)
    if hasattr(type(x), "__array_interface__") and not isinstance(x, np.generic):
        return read_array_interface(x, argument)
    if refusal is not None:
        raise ArgumentTypeError(
            f"{argument}: the {describe(x)} does not let its memory be read: {refusal}"
        ) from refusal
    raise ArgumentTypeError(f"{argument}: a {describe(x)} is not an array; accepted are {ACCEPTED_ARRAYS}{_hint(x)}")


def describe(x: Any) -> str:
    """``"list"``, ``"scipy.sparse.csr_array"``: the type by its full name."""
    kind = type(x)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _hint(x: Any) -> str:
    if isinstance(x, (list, tuple, int, float, complex, np.generic, memoryview, bytes, bytearray)):
        return "; numpy.asarray(x) makes one"
    return ""


def read_cuda_array_interface(x: Any, interface: dict[str, Any], argument: str, package: str = "generic") -> ArrayView:
    """View through ``__cuda_array_interface__``, versions 2 and 3. The driver is asked for the device.

    The stream it names is recorded as ``producer_stream``, and not waited for here.

    Raises:
        InvalidArgumentError: another version, or strides that are not whole elements.
        ArgumentTypeError: a mask, or an element type that is not accepted. bfloat16 and fp8 have no name in this
            interface.
    """
    version = interface.get("version")
    if version not in (2, 3):
        raise InvalidArgumentError(f"{argument}: __cuda_array_interface__ of version {version!r}; known are 2 and 3")
    if interface.get("mask") is not None:
        raise ArgumentTypeError(f"{argument}: masked arrays are not accepted; fill the masked elements first")
    typestr = interface["typestr"]
    if typestr[1] == "V":
        raise ArgumentTypeError(
            f"{argument}: __cuda_array_interface__ says {typestr!r}, bytes of no known meaning: it has no name for "
            f"bfloat16 and fp8. Pass the array itself or through DLPack; accepted are {ACCEPTED_TYPES}"
        )
    element, is_complex, itemsize = storage_of_dtype(np.dtype(typestr), argument)
    shape = tuple(interface["shape"])
    ptr, readonly = interface["data"]
    byte_strides = interface.get("strides")
    strides = (
        compact_strides(shape) if byte_strides is None else element_strides(shape, byte_strides, itemsize, argument)
    )
    ptr = ptr or 0
    stream = interface.get("stream")
    if stream == 0:
        raise InvalidArgumentError(
            f"{argument}: stream 0 in __cuda_array_interface__ is ambiguous and not allowed; 1 and 2 are the default "
            "streams"
        )
    return ArrayView(
        ptr, shape, strides, element, is_complex, device_of_pointer(ptr, argument), package, bool(readonly), False, x,
        stream,
    )  # fmt: skip


def read_array_interface(x: Any, argument: str) -> ArrayView:
    """View through ``__array_interface__``, in CPU memory."""
    array = np.asarray(x)
    element, is_complex, itemsize = storage_of_dtype(array.dtype, argument)
    ptr, readonly = array.__array_interface__["data"]
    strides = element_strides(array.shape, array.strides, itemsize, argument)
    return ArrayView(
        ptr, array.shape, strides, element, is_complex, CPU, "generic", readonly, False, x, None, array
    )  # fmt: skip


def device_of_pointer(ptr: int, argument: str) -> Device:
    """The GPU that owns an address, from the driver; that of the current context for the null address.

    Raises:
        ArgumentTypeError: CUDA does not know the address.
        NoDeviceError: no driver or no device.
    """
    try:
        driver = bindings()
        success = driver.CUresult.CUDA_SUCCESS
        if not ptr:
            status, device = driver.cuCtxGetDevice()
            return cuda_device(int(device) if status == success else 0)
        attribute = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        status, ordinal = driver.cuPointerGetAttribute(attribute, ptr)
        if status == driver.CUresult.CUDA_ERROR_NOT_INITIALIZED:
            driver.cuInit(0)
            status, ordinal = driver.cuPointerGetAttribute(attribute, ptr)
    except (ImportError, RuntimeError) as error:  # no bindings, or no driver behind them
        raise NoDeviceError(f"{argument}: which GPU the array is on cannot be asked: {error}") from error
    if status != success:
        raise ArgumentTypeError(
            f"{argument}: __cuda_array_interface__ gives the address {ptr:#x}, which CUDA does not know "
            f"({status.name}); the array is not on a GPU, or was freed"
        )
    return cuda_device(int(ordinal))
