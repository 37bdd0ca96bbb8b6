# SPDX-License-Identifier: Apache-2.0
"""``FFT.load``, ``store``, ``load_shared`` and ``store_shared`` in simulated kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nvmath_device.dtypes import ValueType
from nvmath_device.numba_backend.simulator_arguments import Array, Call, described
from nvmath_device.numba_backend.simulator_block import calling_thread
from nvmath_device.numba_backend.simulator_fft import (
    COMPLEX,
    FOLDED,
    REAL,
    Plan,
    check_block,
    data_bytes,
    plan_of,
    seen_as,
    storage_bytes,
)

if TYPE_CHECKING:
    from nvmath_device.fft import FFT


def fft_load(fft: FFT, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    _copy_registers(Call("FFT.load", fft), plan_of(fft), args, kwargs, output=False)


def fft_store(fft: FFT, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    _copy_registers(Call("FFT.store", fft), plan_of(fft), args, kwargs, output=True)


def fft_load_shared(fft: FFT, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    _copy_shared(Call("FFT.load_shared", fft), plan_of(fft), args, kwargs, output=False)


def fft_store_shared(fft: FFT, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    _copy_shared(Call("FFT.store_shared", fft), plan_of(fft), args, kwargs, output=True)


def _copy_registers(call: Call, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any], *, output: bool) -> None:
    """This thread's own part."""
    thread = calling_thread(call.name)
    given = _bind_copy(call, args, kwargs, "thread_data", output=output)
    if plan.is_block:
        check_block(call, plan, thread)
    array = _rows(call, plan, given, output=output)
    data = storage_bytes(call, plan, given["thread_data"])
    inner, group = plan.position(thread.index)
    if plan.is_block:
        stride, first = plan.traits.stride, thread.block_index.x * plan.groups + group
    else:
        stride, first = 1, thread.block_index.x * thread.block.dim.size + thread.linear
    row = _row(call, given, first * plan.batching)
    length, _ = plan.side(output=output)
    numbers = _numbers(data, plan, output=output)
    if output:
        _write_rows(array, row, numbers, plan, range(inner, length, stride))
    else:
        values = _read_rows(array, row, plan)[inner::stride]
        numbers[: len(values)] = values


def _copy_shared(call: Call, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any], *, output: bool) -> None:
    """The block's part, by one thread, without a barrier."""
    thread = calling_thread(call.name)
    if not plan.is_block:
        raise call.typing_error("has no meaning for Thread execution, whose data is in registers")
    given = _bind_copy(call, args, kwargs, "shared_mem", output=output)
    if thread.linear:
        return
    check_block(call, plan, thread)
    array = _rows(call, plan, given, output=output)
    length, _ = plan.side(output=output)
    numbers = _numbers(data_bytes(call, plan, given["shared_mem"]), plan, output=output)
    row = _row(call, given, thread.block_index.x * plan.groups * plan.batching)
    for group in range(plan.groups):
        own = numbers[group * length : (group + 1) * length]
        if output:
            _write_rows(array, row + group * plan.batching, own, plan, range(length))
        else:
            own[...] = _read_rows(array, row + group * plan.batching, plan)


def _bind_copy(
    call: Call, args: tuple[Any, ...], kwargs: dict[str, Any], storage: str, *, output: bool
) -> dict[str, Any]:
    form = (storage, "target") if output else ("source", storage)
    return call.bind(args, kwargs, form, optional=("index",))


def _row(call: Call, given: dict[str, Any], default: int) -> int:
    index = given.get("index", default)
    if not hasattr(index, "__index__") or isinstance(index, bool):
        raise call.typing_error(f"wants an integer for index, the row of the FFT, got {index!r}")
    if index.__index__() < 0:
        raise call.execution_error(f"wants a row of at least 0 for index, got {index}")
    return int(index.__index__())


def _rows(call: Call, plan: Plan, given: dict[str, Any], *, output: bool) -> Array:
    """The array that a copy reads or writes, one FFT a row."""
    name = "target" if output else "source"
    array = call.array(name, given[name], ndim=(2,)).view(np.ndarray)
    part = _component(array.dtype)
    if part.kind != "f":
        raise call.typing_error(
            f"wants real or complex floating-point elements for {name}, got {described(array.dtype)}"
        )
    is_complex = array.dtype != part
    is_real = plan.kind(output=output) != COMPLEX
    if is_real and is_complex:
        raise call.typing_error(
            f"wants real elements for {name} of a {plan.descriptor.fft_type} FFT, got {described(array.dtype)}"
        )
    if output and not is_real and not is_complex:
        raise call.typing_error(f"wants complex elements for {name}, got {described(array.dtype)}")
    if output:
        call.writable(name, array)
    return array


def _component(dtype: np.dtype[Any]) -> np.dtype[Any]:
    if dtype.names is not None:
        parts = {dtype.fields[n][0] for n in dtype.names}  # type: ignore[index]
        return parts.pop() if len(parts) == 1 and len(dtype.names) == 2 else dtype
    return np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype


def _numbers(data: Array, plan: Plan, *, output: bool) -> Array:
    """Storage as numbers, shape (values, parts of a value, FFTs in a value)."""
    _, value = plan.side(output=output)
    parts = value.components // plan.batching
    flat = seen_as(data, ValueType(value.element))
    return flat[: flat.size // value.components * value.components].reshape(-1, parts, plan.batching)


def _read_rows(array: Array, row: int, plan: Plan) -> Array:
    """The values of the FFTs from ``row`` on, zero where the array ends, as :func:`_numbers` shows them."""
    kind, (length, value) = plan.kind(output=False), plan.side(output=False)
    values = np.zeros((length, value.components // plan.batching, plan.batching), value.element.dtype)
    columns = np.zeros(2 * length if kind == FOLDED else length, array.dtype)
    with np.errstate(over="ignore"):
        for j in range(plan.batching):
            if row + j >= array.shape[0]:
                break
            count = min(len(columns), array.shape[1])
            columns[:count] = array[row + j, :count]
            real, imag = _parts(columns)
            if kind == FOLDED:
                values[:, :, j] = real.reshape(length, 2)
            else:
                values[:, 0, j] = real
                if kind == COMPLEX and imag is not None:
                    values[:, 1, j] = imag
    return values


def _write_rows(array: Array, row: int, numbers: Array, plan: Plan, ks: range) -> None:
    """Values number ``ks`` of the FFTs that begin at ``row``, as far as they lie inside the array."""
    kind = plan.kind(output=True)
    for j in range(min(plan.batching, max(0, array.shape[0] - row))):
        target = array[row + j]
        for i, k in enumerate(ks):
            if kind == FOLDED:
                for half in (0, 1):
                    if 2 * k + half < array.shape[1]:
                        target[2 * k + half] = numbers[i, half, j]
            elif k < array.shape[1]:
                target[k] = numbers[i, 0, j] if kind == REAL else _complex(numbers[i, :, j], array.dtype)


def _parts(values: Array) -> tuple[Array, Array | None]:
    if values.dtype.names is not None:
        real, imag = (values[n] for n in values.dtype.names)
        return real, imag
    if values.dtype.kind == "c":
        return values.real, values.imag
    return values, None


def _complex(parts: Array, dtype: np.dtype[Any]) -> Any:
    return tuple(parts) if dtype.names is not None else complex(*(float(p) for p in parts))
