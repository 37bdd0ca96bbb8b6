# SPDX-License-Identifier: Apache-2.0
"""How each array library says what its arrays are: one reader a library.

No library is imported. A reader is called with an array of its library, so that is loaded already, and uses
the array's own attributes. Each costs one to two microseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nvmath_device.dtypes import element_type, float16, float32, float64
from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError, NvmathDeviceError
from nvmath_device.host.array_protocols import device_of_pointer, read_any
from nvmath_device.host.array_view import (
    CPU,
    ArrayView,
    Device,
    Storage,
    canonical_strides,
    compact_strides,
    cuda_device,
    element_strides,
    refuse_type,
    storage_of_dtype,
)  # fmt: skip
from nvmath_device.host.dlpack import read_dlpack

Reader = Callable[[Any, str, int | None], ArrayView]

_view_of = tuple.__new__  # half the cost of ArrayView(...), which only fills in defaults


# -- NumPy --------------------------------------------------------------------------------------------------


def read_numpy(x: Any, argument: str, stream: int | None) -> ArrayView:
    element, is_complex, itemsize = storage_of_dtype(x.dtype, argument)
    interface = x.__array_interface__  # the cheapest way to the address; all of x.ctypes costs as much
    ptr, readonly = interface["data"]
    shape, byte_strides = interface["shape"], interface["strides"]
    if byte_strides is None:
        strides = compact_strides(shape)
    else:
        strides = element_strides(shape, byte_strides, itemsize, argument)
    return _view_of(
        ArrayView, (ptr, shape, strides, element, is_complex, CPU, "numpy", readonly, False, x, None, None)
    )  # fmt: skip


def read_numpy_subclass(x: Any, argument: str, stream: int | None) -> ArrayView:
    """Subclasses that only add behaviour (memmap, matrix, users' own) are read as the arrays they hold."""
    if isinstance(x, np.ma.MaskedArray):
        raise ArgumentTypeError(f"{argument}: masked arrays are not accepted; pass x.filled(value)")
    base = np.asarray(x)
    return read_numpy(base, argument, stream)._replace(owner=x, keeper=base)


# -- CuPy ---------------------------------------------------------------------------------------------------


def read_cupy(x: Any, argument: str, stream: int | None) -> ArrayView:
    element, is_complex, itemsize = storage_of_dtype(x.dtype, argument)
    shape, memory = x.shape, x.data
    strides = element_strides(shape, x.strides, itemsize, argument)
    device = cuda_device(memory.device_id)
    return _view_of(
        ArrayView, (memory.ptr, shape, strides, element, is_complex, device, "cupy", False, False, x, None, None)
    )  # fmt: skip


# -- PyTorch ------------------------------------------------------------------------------------------------

_TORCH_COMPLEX = {"complex32": float16, "complex64": float32, "complex128": float64}
_of_torch_dtype: dict[Any, Storage] = {}


def _learn_torch_dtype(dtype: Any, argument: str) -> Storage:
    name = str(dtype).rpartition(".")[2]
    if name in _TORCH_COMPLEX:
        part = _TORCH_COMPLEX[name]
        return part, True, 2 * part.itemsize
    try:
        element = element_type(name)
    except ArgumentTypeError:
        raise refuse_type(argument, dtype) from None
    return element, False, element.itemsize


def read_torch(x: Any, argument: str, stream: int | None) -> ArrayView:
    """Gradients are not recorded: a tensor that requires them is read like any other."""
    dtype = x.dtype
    storage = _of_torch_dtype.get(dtype)
    if storage is None:
        storage = _of_torch_dtype[dtype] = _learn_torch_dtype(dtype, argument)
    element, is_complex, _ = storage
    if x.is_cuda:
        device = cuda_device(x.get_device())
    elif x.device.type == "cpu":
        device = CPU
    else:
        raise ArgumentTypeError(f"{argument}: the tensor is on {x.device}; accepted are tensors of CPUs and CUDA GPUs")
    try:
        ptr, strides = x.data_ptr(), x.stride()
    except RuntimeError as error:  # sparse, nested, fake or functional tensors
        raise ArgumentTypeError(
            f"{argument}: the tensor (layout {x.layout}) has no memory that strides describe: {error}"
        ) from error
    if x.is_neg():
        raise InvalidArgumentError(
            f"{argument}: the tensor is negated lazily (the imaginary part of a conjugate); pass x.resolve_neg()"
        )
    shape = tuple(x.shape)
    return _view_of(
        ArrayView,
        (ptr, shape, canonical_strides(shape, strides), element, is_complex, device, "torch", False,
         is_complex and x.is_conj(), x, None, None),
    )  # fmt: skip


# -- JAX ----------------------------------------------------------------------------------------------------


def read_jax(x: Any, argument: str, stream: int | None) -> ArrayView:
    """Ordered by DLPack after the work that still makes the array; read-only, as JAX arrays are values."""
    if x.is_deleted():
        raise InvalidArgumentError(f"{argument}: the JAX array was deleted or donated")
    if len(x.devices()) > 1:
        raise ArgumentTypeError(
            f"{argument}: the JAX array is spread over {len(x.devices())} devices; pass the data of one of "
            "x.addressable_shards"
        )
    try:
        operand = read_dlpack(x, argument, stream, "jax")
    except NvmathDeviceError:
        raise
    except Exception as error:
        raise ArgumentTypeError(f"{argument}: JAX does not let the array's memory be read: {error}") from error
    if operand.device is CPU:  # where nothing but waiting orders anything
        x.block_until_ready()
    return operand._replace(readonly=True)


def refuse_jax_tracer(x: Any, argument: str, stream: int | None) -> ArrayView:
    raise ArgumentTypeError(
        f"{argument}: a traced JAX value has no memory; call the host layer outside of jax.jit, grad and vmap"
    )


# -- Numba --------------------------------------------------------------------------------------------------


def read_numba(x: Any, argument: str, stream: int | None) -> ArrayView:
    element, is_complex, itemsize = storage_of_dtype(x.dtype, argument)
    shape = tuple(x.shape)
    strides = element_strides(shape, tuple(x.strides), itemsize, argument)
    ptr = x.device_ctypes_pointer.value or 0
    device = _numba_device(x, ptr, argument)
    made_on = int(x.stream) or None
    return ArrayView(ptr, shape, strides, element, is_complex, device, "numba", False, False, x, made_on)


def _numba_device(x: Any, ptr: int, argument: str) -> Device:
    try:
        return cuda_device(x.gpu_data.context.device.id)
    except AttributeError:  # memory that Numba did not allocate
        return device_of_pointer(ptr, argument)


def read_numba_simulated(x: Any, argument: str, stream: int | None) -> ArrayView:
    """Numba's simulator keeps a device array in a NumPy array."""
    return read_numpy(np.asarray(x._ary), argument, stream)._replace(package="numba", owner=x, keeper=x._ary)


# -- cuda.core ----------------------------------------------------------------------------------------------


def read_strided_memory_view(x: Any, argument: str, stream: int | None) -> ArrayView:
    if x.dtype is None:
        raise ArgumentTypeError(f"{argument}: the StridedMemoryView has no dtype; make one with x.view(dtype=...)")
    element, is_complex, _ = storage_of_dtype(x.dtype, argument)
    shape, strides = tuple(x.shape), x.strides
    device = cuda_device(x.device_id) if x.is_device_accessible and x.device_id >= 0 else CPU
    return ArrayView(
        x.ptr, shape, compact_strides(shape) if strides is None else canonical_strides(shape, tuple(strides)),
        element, is_complex, device, "cuda.core", bool(x.readonly), False, x,
    )  # fmt: skip


def read_cuda_array(x: Any, argument: str, stream: int | None) -> ArrayView:
    """A result of an earlier call."""
    return x.view._replace(owner=x, producer_stream=x.stream)


def refuse_buffer(x: Any, argument: str, stream: int | None) -> ArrayView:
    raise ArgumentTypeError(
        f"{argument}: a cuda.core Buffer is bytes without shape and type; pass "
        "cuda.core.utils.StridedMemoryView.from_buffer(buffer, shape, dtype=...)"
    )


# -- who reads what -----------------------------------------------------------------------------------------


def reader_for(kind: type) -> tuple[str, Reader]:
    """Package and reader for objects of a type: the first class it derives from that is known decides.

    Libraries are known by the name of the module a class is defined in.
    """
    for base in kind.__mro__:
        root, name = base.__module__.partition(".")[0], base.__name__
        if root == "numpy" and name == "ndarray":
            return "numpy", read_numpy if base is kind else read_numpy_subclass
        if root == "cupy" and name == "ndarray":
            return "cupy", read_cupy
        if root == "torch" and name == "Tensor":
            return "torch", read_torch
        if root in ("jax", "jaxlib") and name == "ArrayImpl":
            return "jax", read_jax
        if root == "jax" and name.endswith("Tracer"):
            return "jax", refuse_jax_tracer
        if root == "numba" and name == "DeviceNDArrayBase":
            return "numba", read_numba
        if root == "numba" and name == "FakeCUDAArray":
            return "numba", read_numba_simulated
        if root == "nvmath_device" and name == "CudaArray":
            return "generic", read_cuda_array
        if base.__module__.startswith("cuda.core"):
            if name == "StridedMemoryView":
                return "cuda.core", read_strided_memory_view
            if name == "Buffer":
                return "cuda.core", refuse_buffer
    return "generic", read_any
