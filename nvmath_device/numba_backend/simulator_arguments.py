# SPDX-License-Identifier: Apache-2.0
"""Arguments of simulated kernel-side calls: bound to names, checked, and seen as values.

What a compiler would refuse is a :class:`KernelTypingError` here, too; what only running code can see
(shapes, strides, sizes, addresses) is a :class:`KernelExecutionError`.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray, FakeWithinKernelCUDAArray

from nvmath_device.descriptors import COL_MAJOR, MatrixLayout
from nvmath_device.dtypes import ValueType
from nvmath_device.errors import KernelExecutionError, KernelTypingError

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"


class Call:
    """One kernel-side call: its name, the object it is made on, and the errors about it."""

    def __init__(self, name: str, subject: Any) -> None:
        self.name, self.subject = name, subject

    def bind(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *forms: tuple[str, ...],
        optional: tuple[str, ...] = (),
    ) -> dict[str, Any]:
        """Arguments by name, for the first of ``forms`` that they fit; the error lists the forms."""
        for form in forms:
            names = form + optional
            positional = dict(zip(names, args, strict=False))
            fits = len(args) <= len(names) and kwargs.keys() <= set(names) - positional.keys()
            if fits and set(form) <= positional.keys() | kwargs.keys():
                return positional | kwargs
        wanted = " or ".join(f"({', '.join([*form, *(f'[{o}]' for o in optional)])})" for form in forms)
        given = [type(a).__name__ for a in args] + [f"{k}=..." for k in kwargs]
        raise self.typing_error(f"takes {wanted}, got {len(given)} arguments: ({', '.join(given)})")

    def typing_error(self, text: str) -> KernelTypingError:
        return KernelTypingError(f"{self.name} {text}\n  called on {self.subject!r}")

    def execution_error(self, text: str) -> KernelExecutionError:
        return KernelExecutionError(f"{self.name} {text}\n  called on {self.subject!r}")

    # -- arrays --------------------------------------------------------------------------------------------

    def array(self, name: str, given: Any, *, ndim: tuple[int, ...]) -> Array:
        """``given`` as the NumPy array it is."""
        array = plain(given)
        if array is None:
            raise self.typing_error(f"wants an array for {name}, got {type(given).__name__}: {given!r}")
        if array.ndim not in ndim:
            ranks = " or ".join(f"{n}-D" for n in ndim)
            raise self.typing_error(f"wants a {ranks} array for {name}, got {array.ndim}-D")
        return array

    def shared_array(self, name: str, given: Any, *, ndim: tuple[int, ...] = (1,)) -> Array:
        """The same, refusing the arguments of the kernel: they are in global memory."""
        if isinstance(given, (FakeCUDAArray, FakeWithinKernelCUDAArray)):
            raise self.execution_error(
                f"wants an array in shared memory for {name}, got an argument of the kernel, which is in global memory"
            )
        return self.array(name, given, ndim=ndim)

    def values(self, name: str, array: Array, value: ValueType) -> Array:
        """``array`` seen as values of a type, or as their components if 1-D; same memory."""
        if holds(array.dtype, value):
            return array.view(np.ndarray).view(value.dtype)
        if array.ndim != 1 or not holds_components(array.dtype, value):
            raise self.typing_error(
                f"wants elements of {wanted(value)} for {name}, got an array of {described(array.dtype)}"
            )
        self.contiguous(name, array)
        return array[: array.size // value.components * value.components].view(np.ndarray).view(value.dtype)

    def contiguous(self, name: str, array: Array) -> None:
        if array.size > 1 and array.strides[0] != array.itemsize:
            raise self.typing_error(
                f"wants a contiguous 1-D array for {name} (it is used as a pointer), got one with a stride "
                f"of {array.strides[0]} bytes"
            )

    def writable(self, name: str, array: Array) -> None:
        if not array.flags.writeable:
            raise self.typing_error(f"cannot write {name}: the array is read-only")

    # -- matrices ------------------------------------------------------------------------------------------

    def matrix(
        self,
        name: str,
        given: Any,
        layout: MatrixLayout,
        value: ValueType,
        *,
        alignment: int,
        ld: Any = None,
        at_least: bool = False,
    ) -> Array:
        """The rows x cols values of a matrix in shared memory; same memory.

        A 1-D array is a pointer to the matrix in ``layout``, with ``ld`` instead of its own leading dimension
        if given. A 2-D one is used with its own strides; with ``at_least`` it may be larger.
        """
        array = self.shared_array(name, given, ndim=(1, 2))
        values = self.values(name, array, value)
        if ld is not None:
            layout = self._with_leading_dimension(name, layout, ld)
        if values.ndim == 1:
            self.contiguous(name, values)
            matrix = self._pointed_to(name, values, layout)
        else:
            matrix = self._own_strides(name, values, layout, runtime=ld is not None, at_least=at_least)
        address = address_of(matrix)
        if address % alignment:
            raise self.execution_error(
                f"wants {name} at a multiple of {alignment} bytes, as the alignment promises, got an array "
                f"that starts {address % alignment} bytes behind one"
            )
        return matrix

    def _with_leading_dimension(self, name: str, layout: MatrixLayout, ld: Any) -> MatrixLayout:
        if not hasattr(ld, "__index__") or isinstance(ld, bool):
            raise self.typing_error(f"wants an integer for ld{name} (elements), got {ld!r}")
        least = layout.rows if layout.order == COL_MAJOR else layout.cols
        if ld.__index__() < least:
            raise self.execution_error(
                f"wants at least {least} elements for ld{name} ({layout.order}, {layout.rows} x "
                f"{layout.cols}), got {ld}"
            )
        return MatrixLayout(layout.rows, layout.cols, layout.order, ld.__index__())

    def _pointed_to(self, name: str, values: Array, layout: MatrixLayout) -> Array:
        if values.size < layout.cosize:
            raise self.execution_error(
                f"wants at least {layout.cosize} elements for {name} ({layout.order}, {layout.rows} x "
                f"{layout.cols}, leading dimension {layout.ld}), got {values.size}"
            )
        strides = tuple(s * values.itemsize for s in layout.strides)
        # As raw bytes meanwhile: NumPy's own function for it does not know all dtypes of ml_dtypes.
        raw = values.view(f"V{values.itemsize}")
        return np.lib.stride_tricks.as_strided(raw, (layout.rows, layout.cols), strides).view(values.dtype)

    def _own_strides(self, name: str, values: Array, layout: MatrixLayout, *, runtime: bool, at_least: bool) -> Array:
        shape = (layout.rows, layout.cols)
        if at_least:
            values = values[: layout.rows, : layout.cols]
        if values.shape != shape:
            raise self.execution_error(f"wants shape {shape} for {name}, got {values.shape}")
        inner, outer = (0, 1) if layout.order == COL_MAJOR else (1, 0)
        unit, step, size = values.strides[inner], values.strides[outer], values.itemsize
        if values.shape[inner] > 1 and unit != size:
            raise self.typing_error(
                f"wants a {layout.order} matrix for {name}, as the descriptor's arrangement says, got "
                f"strides of {values.strides} bytes with elements of {size}; pass its transpose (x.T), a 1-D "
                "array, or change the arrangement"
            )
        if values.shape[outer] > 1 and (step % size or step < values.shape[inner] * size):
            raise self.execution_error(
                f"wants {'columns' if outer else 'rows'} of {name} that do not overlap, whole elements "
                f"apart, got strides of {values.strides} bytes with elements of {size}"
            )
        if runtime and values.shape[outer] > 1 and step != layout.ld * size:
            raise self.execution_error(
                f"wants the ld{name} of a 2-D {name} to be its own, {step // size} elements, got {layout.ld}"
            )
        return values


def plain(given: Any) -> Array | None:
    """The NumPy array behind what a simulated kernel calls an array; ``None`` for anything else."""
    if isinstance(given, FakeWithinKernelCUDAArray):
        given = given._item
    if isinstance(given, FakeCUDAArray):
        given = given._ary
    return given if isinstance(given, np.ndarray) else None


def address_of(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


class Place:
    """Where an array is and what it looks like, comparable."""

    def __init__(self, given: Any) -> None:
        array = plain(given)
        self.key: tuple[Any, ...] = (type(given), repr(given))
        if array is not None:
            self.key = (address_of(array), array.shape, array.strides, array.dtype)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Place) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        if len(self.key) == 2:
            return str(self.key[1])
        address, shape, strides, dtype = self.key
        return f"the array of {described(dtype)} at {address:#x} with shape {shape} and strides {strides}"


# -- element types -----------------------------------------------------------------------------------------


def stored_as(value: ValueType) -> np.dtype[Any]:
    """The dtype of one component in a kernel's arrays; fp8 is its bits."""
    is_fp8 = value.element.itemsize == 1 and value.element.is_float
    return np.dtype(np.uint8) if is_fp8 else value.element.dtype


def holds(dtype: np.dtype[Any], value: ValueType) -> bool:
    """Whether elements of ``dtype`` are values of this type, bit for bit.

    Besides the type's own dtype: records of the same parts.
    """
    component = stored_as(value)
    if dtype.names is not None:
        members = [dtype.fields[name][0] for name in dtype.names]  # type: ignore[index]
        is_dense = dtype.itemsize == value.itemsize
        return value.is_complex and is_dense and members == [component] * value.components
    return dtype == (component if value.components == 1 else value.dtype)


def holds_components(dtype: np.dtype[Any], value: ValueType) -> bool:
    return value.components > 1 and dtype == stored_as(value)


def wanted(value: ValueType) -> str:
    if stored_as(value) != value.element.dtype:
        return f"{value} (as its bits, uint8; nvmath_device.shared.array makes such arrays)"
    if value.components == 1:
        return str(value.element.numpy)
    return f"{value} (or, in a 1-D array, its components as {value.element})"


def described(dtype: np.dtype[Any]) -> str:
    if dtype.names is None:
        return dtype.name
    return "records of " + ", ".join(f"{n}: {dtype.fields[n][0].name}" for n in dtype.names)  # type: ignore[index]
