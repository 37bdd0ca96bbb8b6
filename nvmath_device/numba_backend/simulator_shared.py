# SPDX-License-Identifier: Apache-2.0
"""``nvmath_device.shared.array`` in simulated kernels."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import numpy as np
from numba.cuda import types
from numba.cuda.core.errors import NumbaError
from numba.cuda.np import numpy_support

from nvmath_device.descriptors import MAX_ALIGNMENT_BYTES
from nvmath_device.dtypes import element_type
from nvmath_device.errors import ArgumentTypeError
from nvmath_device.numba_backend.simulator_arguments import Array, Call
from nvmath_device.numba_backend.simulator_block import calling_thread, dynamic_shared_memory
from nvmath_device.shared_layouts import SharedPart

_NOT_THE_KERNEL = frozenset({__name__, "nvmath_device.kernel_calls", "nvmath_device.shared_arrays"})


def shared_array(shape: Any, dtype: Any, alignment: Any = MAX_ALIGNMENT_BYTES) -> Array:
    """``shared.array``: one array for each place in the code and each block, poisoned when made.

    Dynamic memory is the launch's, as ``cuda.shared.array(0, ...)`` shows it: a block finds what the one
    before left there, it is not poisoned, and it is aligned as NumPy aligned it.
    """
    call = Call("shared.array", "nvmath_device.shared")
    thread = calling_thread(call.name)
    extents = _shape(call, shape)
    dtype = storage_dtype(call, dtype)
    alignment = _alignment(call, alignment)
    if extents == (0,):
        memory = dynamic_shared_memory()
        return _with_fields(memory[: memory.size // dtype.itemsize * dtype.itemsize].view(dtype))
    key = (*_place_in_code(sys._getframe()), extents, dtype)
    with thread.block.lock:
        array = thread.block.shared_arrays.get(key)
        if array is None:
            array = thread.block.shared_arrays[key] = _with_fields(_allocate(extents, dtype, alignment))
        return array


def shared_part(part: SharedPart) -> Array:
    """A part of a ``SharedLayout``: a view of the launch's dynamic memory, so parts of an overlay are the same bytes.

    Raises:
        KernelExecutionError: the launch has less dynamic memory than the part needs.
    """
    call = Call(f"shared_layout's {part.name}", part)
    calling_thread(call.name)
    memory = dynamic_shared_memory()
    if memory.size < part.end:
        raise call.execution_error(
            f"ends {part.end} bytes into the dynamic shared memory and the launch has {memory.size}; launch with "
            "layout.size bytes, the fourth value in kernel[grid, block, stream, shared]"
        )
    dtype = storage_dtype(call, part.dtype)
    return _with_fields(memory[part.offset : part.end].view(dtype).reshape(part.shape))


def poison(array: Array) -> None:
    """Every byte 0xFF: NaN in all floating-point types, -1 or the largest number in integers."""
    array[...] = 0xFF


def storage_dtype(call: Call, dtype: Any) -> np.dtype[Any]:
    """What elements of a shared array are: fp8 is its bits, tf32 a float32."""
    try:
        return _as_bits(element_type(dtype).dtype)
    except ArgumentTypeError:
        pass  # a complex number or a record
    try:
        if isinstance(dtype, types.Type):
            return numpy_support.as_dtype(dtype)
        if dtype is not None:  # which NumPy takes for float64
            return _as_bits(np.dtype(dtype))
    except (TypeError, NumbaError):
        pass
    raise call.typing_error(f"wants an element type for dtype, got {dtype!r}")


def _as_bits(dtype: np.dtype[Any]) -> np.dtype[Any]:
    if dtype.names is not None:
        fields = {name: (_as_bits(sub), offset) for name, (sub, offset, *_) in dtype.fields.items()}  # type: ignore[union-attr]
        return np.dtype(
            {
                "names": list(fields),
                "formats": [f for f, _ in fields.values()],
                "offsets": [o for _, o in fields.values()],
                "itemsize": dtype.itemsize,
            }
        )
    return np.dtype(np.uint8) if dtype.name.startswith("float8_") else dtype


def _shape(call: Call, given: Any) -> tuple[int, ...]:
    extents = given if isinstance(given, tuple) else (given,)
    if not extents or not all(hasattr(n, "__index__") and not isinstance(n, bool) for n in extents):
        raise call.typing_error(f"wants constant integers for shape, got {given!r}")
    shape = tuple(n.__index__() for n in extents)
    if any(n < 0 for n in shape) or (0 in shape and len(shape) > 1):
        raise call.typing_error(f"wants positive extents for shape (or a single 0: all dynamic memory), got {shape}")
    return shape


def _alignment(call: Call, given: Any) -> int:
    value = given.__index__() if hasattr(given, "__index__") else 0
    if value < 1 or value & (value - 1):
        raise call.typing_error(f"wants a constant power of two for alignment (bytes), got {given!r}")
    return max(value, MAX_ALIGNMENT_BYTES)


def _place_in_code(frame: FrameType | None) -> tuple[Any, ...]:
    """The call site in the kernel or in one of its functions; two calls on one line are two places.

    Functions made by one factory share their code, so what they close over is part of the place.
    """
    while frame is not None and frame.f_globals.get("__name__") in _NOT_THE_KERNEL:
        frame = frame.f_back
    assert frame is not None
    local = frame.f_locals if frame.f_code.co_freevars else {}
    return (frame.f_code, frame.f_lasti, *(id(local.get(name)) for name in frame.f_code.co_freevars))


def _allocate(shape: tuple[int, ...], dtype: np.dtype[Any], alignment: int) -> Array:
    size = int(np.prod(shape)) * dtype.itemsize
    memory = np.empty(size + alignment, np.uint8)
    offset = -memory.__array_interface__["data"][0] % alignment
    poison(memory)
    return memory[offset : offset + size].view(dtype).reshape(shape)


def _with_fields(array: Array) -> Array:
    """Records whose fields are attributes, too, as in a compiled kernel."""
    return array.view(np.recarray) if array.dtype.names is not None else array
