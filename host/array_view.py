# SPDX-License-Identifier: Apache-2.0
"""What the host layer knows of an array, whatever library it comes from: plain numbers, and a reference to it.

An :class:`ArrayView` is read once from an operand by ``arrays.view``; everything later (layouts, overlaps,
copies, plan keys) is computed from it, so no other file of the host layer asks which library an array is of.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from nvmath_device.dtypes import ELEMENT_TYPES, ElementType, element_type, float16, float32, float64, tfloat32
from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError

MAX_KNOWN_ALIGNMENT = 256  # bytes; cuBLASLt asks for no more


class Device(NamedTuple):
    """Where memory is: ``kind`` is ``"cpu"`` or ``"cuda"``, ``index`` the CUDA ordinal (0 for the CPU)."""

    kind: str
    index: int = 0  # type: ignore[assignment]  # nobody searches a Device as a tuple

    def __str__(self) -> str:
        return "cpu" if self.kind == "cpu" else f"cuda:{self.index}"


CPU = Device("cpu", 0)
_CUDA_DEVICES = tuple(Device("cuda", index) for index in range(64))


def cuda_device(index: int) -> Device:
    """The CUDA device of this ordinal."""
    return _CUDA_DEVICES[index] if 0 <= index < len(_CUDA_DEVICES) else Device("cuda", index)


class ArrayView(NamedTuple):
    """One operand as plain numbers. It holds references, so the memory lives as long as the view.

    Two views are equal only if they are the same object; compare :attr:`signature` for equal kinds of operand.

    Attributes:
        ptr: address of the element with index (0, ..., 0). Not always the lowest address. May be 0 when empty.
        shape: extents.
        strides: in elements (of the complex number where ``is_complex``), negative and zero ones as they are.
            The stride of an axis of extent 1 is 0, whatever its library says, and all are 0 in an empty array.
        element: the real element type.
        is_complex: whether an element is two of them, real part first.
        device: where the memory is.
        package: ``"numpy"``, ``"cupy"``, ``"torch"``, ``"jax"``, ``"numba"``, ``"cuda.core"`` or ``"generic"``
            for objects that only speak DLPack or an array interface.
        readonly: whether its library forbids writing to it.
        conjugated: whether the array means the complex conjugate of what is stored (torch, lazily).
        owner: the object that was passed in.
        producer_stream: handle of the stream on which the array is still being made, as its library states
            through the CUDA Array Interface or Numba. Who uses the array must be ordered after it. ``None``:
            nothing stated.
        keeper: what else has to stay alive, for example a DLPack capsule.
    """

    ptr: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    element: ElementType
    is_complex: bool
    device: Device
    package: str
    readonly: bool
    conjugated: bool
    owner: Any
    producer_stream: int | None = None
    keeper: Any = None

    def __eq__(self, other: object) -> bool:  # a tuple would compare the owners, and arrays compare elementwise
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return (
            f"ArrayView({self.package} {type_name(self.element, self.is_complex)}, shape={self.shape}, "
            f"strides={self.strides}, {self.device}, ptr={self.ptr:#x})"
        )

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Elements."""
        size = 1
        for extent in self.shape:
            size *= extent
        return size

    @property
    def itemsize(self) -> int:
        """Bytes of one element, both parts of a complex one."""
        return self.element.itemsize * (2 if self.is_complex else 1)

    @property
    def alignment(self) -> int:
        """Largest power of two, up to 256, that divides the address. Bytes."""
        ptr = self.ptr | MAX_KNOWN_ALIGNMENT
        return ptr & -ptr

    @property
    def is_aligned(self) -> bool:
        """Whether the address is a multiple of the whole element's size, which a GPU needs.

        Strides are whole elements, so then every element is aligned. NumPy aligns a complex number to half its
        size only.
        """
        return self.ptr % self.itemsize == 0

    @property
    def extent_bytes(self) -> tuple[int, int]:
        """Lowest address and one past the highest address of any element; equal for an empty array."""
        low = high = 0
        for extent, stride in zip(self.shape, self.strides, strict=True):
            if extent == 0:
                return self.ptr, self.ptr
            if stride < 0:
                low += (extent - 1) * stride
            else:
                high += (extent - 1) * stride
        return self.ptr + low * self.itemsize, self.ptr + (high + 1) * self.itemsize

    @property
    def signature(self) -> tuple[Any, ...]:
        """Hashable: everything a plan may depend on. No address but its alignment, no package."""
        return (
            self.shape, self.strides, self.element.name, self.is_complex, self.conjugated, self.device, self.alignment
        )  # fmt: skip


# -- strides ------------------------------------------------------------------------------------------------


def canonical_strides(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    """The strides with 0 wherever they have no meaning: axes of extent 1, and all axes of an empty array.

    Libraries disagree on these, and DLPack exporters change them.
    """
    if 0 in shape:
        return (0,) * len(shape)
    if 1 in shape:
        return tuple([0 if extent == 1 else stride for extent, stride in zip(shape, strides, strict=True)])
    return strides


@lru_cache(maxsize=4096)
def compact_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Canonical strides of a C-ordered array without gaps."""
    strides, step = [0] * len(shape), 1
    for axis in range(len(shape) - 1, -1, -1):
        strides[axis] = step
        step *= shape[axis]
    return canonical_strides(shape, tuple(strides))


def element_strides(
    shape: tuple[int, ...], byte_strides: tuple[int, ...], itemsize: int, argument: str
) -> tuple[int, ...]:
    """Canonical strides in elements out of strides in bytes. ``itemsize`` is a power of two.

    Raises:
        InvalidArgumentError: a stride that is not a whole number of elements.
    """
    if 1 in shape or 0 in shape:
        byte_strides = canonical_strides(shape, byte_strides)
    for stride in byte_strides:
        if stride & (itemsize - 1):
            raise InvalidArgumentError(
                f"{argument}: strides of {tuple(byte_strides)} bytes are not multiples of the {itemsize} bytes of an "
                "element, as in one field of a record array; pass a contiguous copy of it"
            )
    return tuple([stride // itemsize for stride in byte_strides])


# -- element types ------------------------------------------------------------------------------------------

Storage = tuple[ElementType, bool, int]  # element type, whether complex, bytes of one element

COMPLEX_NAMES = {float16: "complex32", float32: "complex64", float64: "complex128"}


def _numpy_storages() -> dict[Any, Storage]:
    table: dict[Any, Storage] = {}
    for t in (float32, float64):
        table[np.dtype(COMPLEX_NAMES[t])] = (t, True, 2 * t.itemsize)
    for t in ELEMENT_TYPES:
        if hasattr(np, t.numpy) and t is not tfloat32:
            table[np.dtype(t.numpy)] = (t, False, t.itemsize)
    return table


_OF_NUMPY_DTYPE = _numpy_storages()
_OF_DLPACK: dict[tuple[int, int], Storage] = {
    (t.dlpack, 8 * t.itemsize): (t, False, t.itemsize) for t in ELEMENT_TYPES if t is not tfloat32
} | {(5, 16 * t.itemsize): (t, True, 2 * t.itemsize) for t in COMPLEX_NAMES}
_DLPACK_CODES = {0: "int", 1: "uint", 2: "float", 3: "opaque", 4: "bfloat", 5: "complex", 6: "bool"}

ACCEPTED_TYPES = ", ".join([t.name for t in ELEMENT_TYPES if t is not tfloat32] + list(COMPLEX_NAMES.values()))


def type_name(element: ElementType, is_complex: bool) -> str:
    """``"float32"``, ``"complex64"`` ..."""
    return COMPLEX_NAMES.get(element, f"complex of {element.name}") if is_complex else element.name


def refuse_type(argument: str, name: Any) -> ArgumentTypeError:
    return ArgumentTypeError(f"{argument}: elements of type {name} are not accepted; accepted are {ACCEPTED_TYPES}")


def storage_of_dtype(dtype: Any, argument: str) -> Storage:
    """Element type behind a NumPy dtype, those of ml_dtypes included.

    Raises:
        ArgumentTypeError: another type, or one in the byte order of another machine.
    """
    found = _OF_NUMPY_DTYPE.get(dtype)
    if found is None:
        found = _OF_NUMPY_DTYPE[dtype] = _learn_dtype(dtype, argument)
    return found


def _learn_dtype(dtype: Any, argument: str) -> Storage:
    """ml_dtypes is not imported to recognise its types: whoever passes one has imported it."""
    if getattr(dtype, "isnative", True) is False:
        raise ArgumentTypeError(
            f"{argument}: elements of type {dtype.str!r} are in the byte order of another machine; convert with "
            f"x.astype(x.dtype.newbyteorder('='))"
        )
    scalar = getattr(dtype, "type", None)
    if getattr(scalar, "__module__", None) == "ml_dtypes":
        try:
            element = element_type(dtype.name)
        except ArgumentTypeError:
            raise refuse_type(argument, dtype.name) from None
        return element, False, element.itemsize
    raise refuse_type(argument, dtype)


def dlpack_type(element: ElementType, is_complex: bool) -> tuple[int, int]:
    """DLPack's code and bits of a type."""
    return (5, 16 * element.itemsize) if is_complex else (element.dlpack, 8 * element.itemsize)


def storage_of_dlpack(code: int, bits: int, lanes: int, argument: str) -> Storage:
    """Element type behind a DLPack type. Raises ArgumentTypeError for any other."""
    found = _OF_DLPACK.get((code, bits)) if lanes == 1 else None
    if found is None:
        words = f"{_DLPACK_CODES.get(code, f'DLPack code {code},')} of {bits} bits"
        raise refuse_type(argument, words if lanes == 1 else f"vectors of {lanes} ({words})")
    return found
