# SPDX-License-Identifier: Apache-2.0
"""Parts of one dynamic shared buffer: the host knows how many bytes to launch with, a kernel gets arrays.

A block has 48 KiB of shared memory for arrays of constant size and, on most GPUs, far more for the one buffer whose
size comes with the launch. :func:`shared_layout` carves that buffer.
"""

from __future__ import annotations

import keyword
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from nvmath_device.checks import positive_int, positive_ints
from nvmath_device.descriptors import MAX_ALIGNMENT_BYTES
from nvmath_device.dtypes import element_type
from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError
from nvmath_device.frozen import frozen, replace
from nvmath_device.kernel_calls import call_in_kernel
from nvmath_device.vector_types import VectorType

if TYPE_CHECKING:
    import numpy as np


@frozen()
class SharedPart:
    """One part of a :class:`SharedLayout`; called in a kernel, an array.

    Attributes:
        name: its name in the layout.
        dtype: NumPy dtype of its elements, or one of ``nvmath_device.float32x2`` and its kind.
        shape: elements along each axis; C order.
        offset: bytes from the beginning of the buffer.
        alignment: bytes.
    """

    name: str
    dtype: np.dtype[Any] | VectorType
    shape: tuple[int, ...]
    offset: int
    alignment: int

    @property
    def nbytes(self) -> int:
        """Bytes of the part, without padding."""
        return self.dtype.itemsize * math.prod(self.shape)

    @property
    def end(self) -> int:
        """Bytes from the beginning of the buffer to the end of the part."""
        return self.offset + self.nbytes

    def __call__(self) -> Any:
        """Kernel side: the part as an array, uninitialised and shared by the block."""
        return call_in_kernel(f"shared_layout's {self.name}", "shared_part", self)


class SharedLayout:
    """Named parts of one dynamic shared buffer; made by :func:`shared_layout` and :func:`shared_overlay`.

    Immutable, hashable, comparable and picklable, and usable in kernels as a global, a closure variable or an
    attribute of a module. ``layout.size`` is the number of bytes to launch with. ``layout.NAME()`` in a kernel is the
    array of a part; on the host ``layout.NAME`` is the :class:`SharedPart` itself. ``layout.size`` and
    ``layout.alignment`` are constants in kernels.
    """

    parts: tuple[SharedPart, ...]

    def __init__(self, parts: tuple[SharedPart, ...]) -> None:
        names = [p.name for p in parts]
        if repeated := sorted({n for n in names if names.count(n) > 1}):
            raise InvalidArgumentError(
                f"parts: {', '.join(repeated)} is there more than once; give each a name of its own"
            )
        self.__dict__["parts"] = parts

    @property
    def size(self) -> int:
        """Bytes from the beginning of the buffer to the end of the last part: what to launch with."""
        return max((p.end for p in self.parts), default=0)

    @property
    def alignment(self) -> int:
        """Bytes that the buffer must be aligned to. A kernel that uses the layout sees to it."""
        return max((p.alignment for p in self.parts), default=MAX_ALIGNMENT_BYTES)

    def __getattr__(self, name: str) -> SharedPart:
        for part in self.__dict__.get("parts", ()):
            if part.name == name:
                return part
        names = ", ".join(p.name for p in self.__dict__.get("parts", ()))
        raise AttributeError(f"this shared_layout has no part {name!r}; its parts are: {names}")

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"SharedLayout is immutable: {name!r} cannot be set; make another one")

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *(p.name for p in self.parts)]

    def __iter__(self) -> Iterator[SharedPart]:
        return iter(self.parts)

    @property
    def _identity(self) -> tuple[SharedPart, ...]:
        return self.parts

    def __eq__(self, other: object) -> bool:
        return self.parts == other.parts if isinstance(other, SharedLayout) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.parts)

    def __reduce__(self) -> tuple[Any, ...]:
        return (SharedLayout, (self.parts,))

    def __repr__(self) -> str:
        shown = [f"{p.name}: {p.offset}..{p.end} {_dtype_name(p.dtype)}{list(p.shape)}" for p in self.parts]
        return f"SharedLayout({self.size} bytes; {', '.join(shown)})"

    @property
    def _numba_type_(self) -> Any:
        from nvmath_device.numba_backend import shared_layout_type

        return shared_layout_type(self)


def shared_layout(*groups: SharedLayout, **parts: Any) -> SharedLayout:
    """Parts one after the other in dynamic shared memory, each at the next address that its alignment allows.

    Args:
        groups: other layouts, put first, whole: their parts keep their distances and their names.
        parts: by name, in order. ``(dtype, elements)``, ``(dtype, (rows, columns, ...))``, or either with an alignment
            in bytes as a third; or a number of bytes, which makes an array of uint8. Every dtype of
            ``nvmath_device.shared.array``. Alignments are raised to 16 bytes, what generated code needs.

    Guarantees that the parts do not overlap and that each is aligned, also in a kernel that has static shared arrays.
    Does not allocate, and does not check that the buffer fits a device: ``descriptor.fits``, ``kernel.fits`` and the
    launch do.

    Raises:
        InvalidArgumentError, ArgumentTypeError: naming the part, the value given and what is allowed.
    """
    placed: list[SharedPart] = []
    end = 0
    for group in _layouts(groups):
        start = _aligned(end, group.alignment)
        placed += [replace(p, offset=start + p.offset) for p in group.parts]
        end = start + group.size
    for name, given in parts.items():
        part = _read(name, given)
        part = replace(part, offset=_aligned(end, part.alignment))
        placed.append(part)
        end = part.end
    return SharedLayout(tuple(placed))


def shared_overlay(*groups: SharedLayout, **parts: Any) -> SharedLayout:
    """Parts that all begin at the same place: for what is not alive at the same time.

    Arguments as for :func:`shared_layout`, each of which begins anew: with ``shared_overlay(inputs, result=...)`` the
    memory of the layout ``inputs`` becomes that of ``result``. Whoever uses one after another calls
    ``cuda.syncthreads()`` in between; what the one held, the other overwrites.

    Raises:
        InvalidArgumentError, ArgumentTypeError: as :func:`shared_layout`.
    """
    placed = [p for group in _layouts(groups) for p in group.parts]
    return SharedLayout((*placed, *(_read(name, given) for name, given in parts.items())))


# -- reading -------------------------------------------------------------------------------------------------

_TAKEN = frozenset({"parts", "size", "alignment"})


def _layouts(groups: tuple[Any, ...]) -> tuple[SharedLayout, ...]:
    for group in groups:
        if not isinstance(group, SharedLayout):
            raise ArgumentTypeError(
                f"groups: {group!r} is not a layout; give layouts by position and parts by name: name=(dtype, elements)"
            )
    return groups


def _aligned(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment


def _read(name: str, given: Any) -> SharedPart:
    """A part, at the beginning of a buffer."""
    if name in _TAKEN or name.startswith("_") or not name.isidentifier() or keyword.iskeyword(name):
        raise InvalidArgumentError(f"parts: {name!r} cannot be the name of a part; take another")
    if isinstance(given, tuple):
        if len(given) not in (2, 3):
            raise InvalidArgumentError(
                f"{name}: {given!r} has {len(given)} values; give (dtype, elements[, alignment])"
            )
        dtype, elements, *rest = given
    else:
        dtype, elements, rest = "uint8", given, []
    alignment = positive_int(rest[0], argument=f"{name}: alignment") if rest else 1
    if alignment & (alignment - 1):
        raise InvalidArgumentError(f"{name}: alignment {alignment} is not a power of two")
    return SharedPart(
        name, _read_dtype(name, dtype), _read_shape(name, elements), 0, max(alignment, MAX_ALIGNMENT_BYTES)
    )


def _read_shape(name: str, elements: Any) -> tuple[int, ...]:
    if isinstance(elements, (tuple, list)):
        if not elements:
            raise InvalidArgumentError(f"{name}: the shape () has no axis; give at least one extent")
        return positive_ints(elements, len(elements), argument=name, meaning="the extents")
    return (positive_int(elements, argument=name),)


def _read_dtype(name: str, given: Any) -> np.dtype[Any] | VectorType:
    if isinstance(given, VectorType):
        return given
    try:
        return element_type(given).dtype
    except ArgumentTypeError:
        pass  # a complex number or a record
    import numpy as np

    for candidate in (given, getattr(given, "name", None)):  # Numba's complex64 has NumPy's name
        try:
            dtype = np.dtype(candidate)
        except TypeError:
            continue
        if candidate is not None and dtype.itemsize and not dtype.hasobject:  # NumPy takes None for float64
            return dtype
    raise ArgumentTypeError(f"{name}: {given!r} is not an element type; give a NumPy dtype, or one of nvmath_device's")


def _dtype_name(dtype: Any) -> str:
    return "record" if getattr(dtype, "names", None) else dtype.name
