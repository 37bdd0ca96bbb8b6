# SPDX-License-Identifier: Apache-2.0
"""How a strided copy on the GPU is carried out, as plain data. Pure arithmetic on integers; no driver, no NumPy.

A copy is thought of in bytes: an element is one more axis, of bytes, below the others. Merging axes then finds by
itself how wide a piece can be moved at once, and a copy whose addresses are aligned to less than an element needs
no case of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from nvmath_device.errors import InvalidArgumentError, UnsupportedError
from nvmath_device.host.matrix_strides import merge_axes

Ints = tuple[int, ...]

MAX_AXES = 8  # of elements, after merging
WIDEST = 16  # bytes that one thread can move at once
UNITS_PER_LAUNCH = (1 << 31) - 1  # the kernel counts with 32 bits
TILED_FROM = 8  # extent of both axes from which a transposition goes through shared memory
ITEM_SIZES = (1, 2, 4, 8, 16)


@dataclass(frozen=True, slots=True)
class Fill:
    """``nbytes`` zeros from the destination's address on."""

    nbytes: int


@dataclass(frozen=True, slots=True)
class Dense:
    """``nbytes`` neighbouring bytes. ``source`` and ``destination`` are offsets in bytes from the addresses."""

    source: int
    destination: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Move:
    """One launch of the kernel: units of ``unit`` bytes, each xored with ``flip``, from one strided place to another.

    Attributes:
        unit: 1, 2, 4, 8 or 16 bytes. The addresses of all units are multiples of it, given the plan's alignment.
        extents: units along each axis, at least one axis.
        source_strides, destination_strides: in bytes.
        source, destination: offsets in bytes of the first unit from the addresses.
        flip: sign bits of imaginary parts as a number of ``unit`` bytes; 0: bits stay as they are.
        tiled: the last axis is the destination's fastest and the one before it the source's: they are transposed
            through shared memory.
    """

    unit: int
    extents: Ints
    source_strides: Ints
    destination_strides: Ints
    source: int
    destination: int
    flip: int
    tiled: bool


Step = Fill | Dense | Move


@dataclass(frozen=True, slots=True)
class StridedCopy:
    """A planned copy; :func:`plan_copy` makes it and says what the fields mean. ``steps`` are to be done in order."""

    shape: Ints
    source_strides: Ints
    destination_strides: Ints
    itemsize: int
    conjugate: int | None
    fill_zero: int
    alignment: int
    steps: tuple[Step, ...]


def plan_copy(
    shape: Ints,
    source_strides: Ints,
    destination_strides: Ints,
    itemsize: int,
    *,
    conjugate: int | None = None,
    fill_zero: int = 0,
    alignment: int = WIDEST,
) -> StridedCopy:
    """Plan ``destination[...] = source`` for two views of one shape, whose memory does not overlap.

    Args:
        shape: extents in elements; any may be 0.
        source_strides: in elements, of any sign, 0 where the source is broadcast.
        destination_strides: in elements, of any sign. No two elements may have the same place.
        itemsize: bytes of an element: 1, 2, 4, 8 or 16.
        conjugate: bytes of one part of a complex element (2, 4 or 8) to write conjugates: the sign bit of each
            imaginary part is turned, of NaNs and zeros, too, as ``numpy.conjugate`` does. ``None``: bits are kept.
        fill_zero: so many bytes from the destination's address on are zeroed first, for padding.
        alignment: both addresses (of the elements with index 0) are multiples of this power of two, in bytes. It
            decides how much is moved at once. In the plan it is what the steps need, which may be less;
            :func:`aligned_to` makes the same copy for addresses that have less.

    Raises:
        InvalidArgumentError: an argument outside of what is said here.
        UnsupportedError: more than 8 axes are left after merging.
    """
    shape, source_strides, destination_strides = map(tuple, (shape, source_strides, destination_strides))
    if len(source_strides) != len(shape) or len(destination_strides) != len(shape):
        raise InvalidArgumentError(
            f"source_strides, destination_strides: {source_strides} and {destination_strides}; a copy of the shape "
            f"{shape} needs {len(shape)} of each"
        )
    if itemsize not in ITEM_SIZES:
        raise InvalidArgumentError(f"itemsize: {itemsize} bytes; allowed are {', '.join(map(str, ITEM_SIZES))}")
    if conjugate is not None and (conjugate not in (2, 4, 8) or itemsize != 2 * conjugate):
        raise InvalidArgumentError(
            f"conjugate: parts of {conjugate} bytes in elements of {itemsize}; a part is half of a complex element: "
            "2, 4 or 8 bytes"
        )
    if alignment < 1 or alignment & (alignment - 1):
        raise InvalidArgumentError(f"alignment: {alignment}; it must be a power of two")
    if fill_zero and any(s < 0 and n > 1 for n, s in zip(shape, destination_strides, strict=True)):
        raise InvalidArgumentError(
            f"fill_zero: only for destinations that begin at their address, and the strides are {destination_strides}"
        )
    return _planned(
        StridedCopy(shape, source_strides, destination_strides, itemsize, conjugate, fill_zero, alignment, ())
    )


@lru_cache(maxsize=1024)
def aligned_to(copy: StridedCopy, alignment: int) -> StridedCopy:
    """The same copy for addresses that are multiples of ``alignment`` only."""
    return _planned(replace(copy, alignment=alignment))


def _planned(copy: StridedCopy) -> StridedCopy:
    steps = tuple(_steps(copy))
    return replace(copy, steps=steps, alignment=max((s.unit for s in steps if isinstance(s, Move)), default=1))


def _steps(copy: StridedCopy) -> Iterator[Step]:
    if copy.fill_zero:
        yield Fill(copy.fill_zero)
    if 0 in copy.shape:
        return
    extents, source, destination, source_offset, destination_offset = _in_bytes(copy)
    run = extents[-1]  # bytes that lie together on both sides
    if len(extents) == 1 and copy.conjugate is None:
        yield Dense(source_offset, destination_offset, run)
        return
    unit = _lowest_bit(WIDEST, copy.alignment, run, source_offset, destination_offset, *source[:-1], *destination[:-1])
    if copy.conjugate is not None and unit < copy.itemsize:
        # Units of an element differ in whether a sign is in them: all first ones, all second ones ...
        step, positions = copy.itemsize, range(0, copy.itemsize, unit)
    else:
        step, positions = unit, range(1)
    extents, (source, destination) = merge_axes(
        (*extents[:-1], run // step), (*source[:-1], step), (*destination[:-1], step)
    )
    extents, source, destination = extents or (1,), source or (unit,), destination or (unit,)
    extents, source, destination, tiled = _with_tiles(extents, source, destination)
    for position in positions:
        flip = _flip(copy, unit, position)
        for starts, piece in _pieces(extents, UNITS_PER_LAUNCH):
            first_source = source_offset + position + sum(i * s for i, s in zip(starts, source, strict=True))
            first = destination_offset + position + sum(i * s for i, s in zip(starts, destination, strict=True))
            yield Move(unit, piece, source, destination, first_source, first, flip, tiled)


def _in_bytes(copy: StridedCopy) -> tuple[Ints, Ints, Ints, int, int]:
    """Extents, strides and offsets in bytes, of as few axes as possible. The last one is dense on both sides.

    Axes run forward through the destination and are ordered by it, slowest first, so that neighbouring threads
    write neighbouring places.
    """
    size, axes, source_offset, destination_offset = copy.itemsize, [], 0, 0
    for extent, s, d in zip(copy.shape, copy.source_strides, copy.destination_strides, strict=True):
        if extent == 1:
            continue
        if d < 0:
            source_offset += (extent - 1) * s * size
            destination_offset += (extent - 1) * d * size
            s, d = -s, -d
        axes.append((d * size, s * size, extent))
    axes.sort(key=lambda axis: -axis[0])
    reach = size
    for d, _, extent in reversed(axes):
        if d < reach:
            raise InvalidArgumentError(
                f"destination_strides: {copy.destination_strides} with the shape {copy.shape}: elements have the same "
                "place or are interleaved in a way that no slicing of an array makes"
            )
        reach += (extent - 1) * d
    extents, (destination, source) = merge_axes(
        (*(axis[2] for axis in axes), size), (*(axis[0] for axis in axes), 1), (*(axis[1] for axis in axes), 1)
    )
    if not extents or (source[-1], destination[-1]) != (1, 1):  # elements of one byte: an axis of extent 1 went
        extents, destination, source = (*extents, 1), (*destination, 1), (*source, 1)
    if len(extents) - 1 > MAX_AXES:
        raise UnsupportedError(
            f"shape: a copy of the shape {copy.shape} with the strides {copy.source_strides} to "
            f"{copy.destination_strides} has {len(extents) - 1} axes that cannot be merged; at most {MAX_AXES} can be "
            "copied on the GPU. Make the array contiguous first"
        )
    return extents, source, destination, source_offset, destination_offset


def _with_tiles(extents: Ints, source: Ints, destination: Ints) -> tuple[Ints, Ints, Ints, bool]:
    """The source's fastest axis moved to the last place but one, where transposing through tiles pays."""
    last = len(extents) - 1
    candidates = [axis for axis in range(last) if source[axis] and extents[axis] >= TILED_FROM]
    if not candidates or extents[last] < TILED_FROM:
        return extents, source, destination, False
    fastest = min(candidates, key=lambda axis: abs(source[axis]))
    if abs(source[fastest]) >= abs(source[last]):
        return extents, source, destination, False
    order = [*(axis for axis in range(last) if axis != fastest), fastest, last]
    picked = [tuple(values[axis] for axis in order) for values in (extents, source, destination)]
    return picked[0], picked[1], picked[2], True


def _flip(copy: StridedCopy, unit: int, position: int) -> int:
    """What the unit that begins ``position`` bytes into an element is xored with."""
    if copy.conjugate is None:
        return 0
    element = 1 << (8 * copy.itemsize - 1)  # real part first, low bytes first
    if unit < copy.itemsize:
        return element >> 8 * position & ((1 << 8 * unit) - 1)
    return sum(element << 8 * start for start in range(0, unit, copy.itemsize))


def _pieces(extents: Ints, limit: int) -> Iterator[tuple[Ints, Ints]]:
    """Cut along the slowest axes into pieces of at most ``limit`` units: first index and extents of each."""
    inner = prod(extents[1:])
    if inner > limit:
        for index in range(extents[0]):
            for starts, piece in _pieces(extents[1:], limit):
                yield (index, *starts), (1, *piece)
        return
    rest = extents[1:]
    for first in range(0, extents[0], limit // inner):
        yield (first, *(0 for _ in rest)), (min(limit // inner, extents[0] - first), *rest)


def _lowest_bit(*numbers: int) -> int:
    """The largest power of two that divides all of them."""
    together = 0
    for number in numbers:
        together |= number
    return together & -together
