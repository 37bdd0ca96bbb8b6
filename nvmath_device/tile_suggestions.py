# SPDX-License-Identifier: Apache-2.0
"""Which tile to take for a product: what was tuned on this device, else a table that was measured, else a rule."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from nvmath_device.checks import choice as one_of
from nvmath_device.descriptors import SUGGESTED, GemmDescriptor
from nvmath_device.errors import ArgumentTypeError, MissingDependencyError, NoDeviceError, UnsupportedError
from nvmath_device.frozen import frozen
from nvmath_device.targets import ComputeCapability, compute_capability
from nvmath_device.tile_choices import TileChoice, check_problem, could_have_wgmma, refusal, tile_alignment

TABLE = Path(__file__).with_name("tuned_h200.json")

# How much smaller than an entry's a product's C may be, as a factor, for the entry to say anything about it. Larger
# ones go through the same tiles for longer.
_MUCH_SMALLER = 4


@frozen()
class Measured:
    """A line of the shipped table: the fastest choice that was timed for a product, maybe of few.

    Attributes:
        sm: of the device, such as (9, 0).
        descriptor: the product.
        choice: how it was cut into tiles.
        milliseconds: what it took there; ``None`` where that was not written down.
    """

    sm: tuple[int, int]
    descriptor: GemmDescriptor
    choice: TileChoice
    milliseconds: float | None


def suggest_tile(descriptor: GemmDescriptor, *, sm: Any = None) -> TileChoice:
    """A tile, threads, stages and a group for a product, without a GPU and without timing.

    In this order: what :func:`nvmath_device.tune` found on the current device for this product; what it found last for
    a product of the same element types, orders and alignment with M, N and K between the same powers of two; the
    nearest line of a table that was measured on an H200, for sm_90 only; a rule, the first of the candidates of
    ``tune`` that has a tile for most multiprocessors. Which of them it was goes to the log of ``nvmath_device``, level
    DEBUG.

    Args:
        descriptor: the whole product. What its ``alignment`` promises counts: without 16 bytes for A and B there is no
            wgmma.
        sm: the target; default is the current device. Of another compute capability than the current device's,
            nothing that was tuned counts.

    Takes milliseconds, and for the same product again microseconds. Later calls of ``tune``, another device and
    another version of this package may change the answer: write the choice down where it has to stay.

    Raises:
        UnsupportedError: ``multiply`` does not compute such a product, or no candidate fits the target.
        NoDeviceError, MissingDependencyError: no ``sm`` is given and there is no device.
    """
    from nvmath_device.matmul import current_target

    if not isinstance(descriptor, GemmDescriptor):
        raise ArgumentTypeError(f"descriptor: {descriptor!r} is a {type(descriptor).__name__}; give a GemmDescriptor")
    check_problem(descriptor)
    target = current_target() if sm is None else compute_capability(sm)
    where, found = _suggested(descriptor, target)
    logging.getLogger("nvmath_device").debug("suggest_tile: %s for %s (%s)", found, tuple(descriptor.size), where)
    return found


def chosen_tile(
    descriptor: GemmDescriptor, given: Any, alignment: Any, block: Mapping[str, Any]
) -> tuple[tuple[int, int, int], Any, dict[str, Any]]:
    """Size, alignment and block of a tile that is ``"suggested"`` or a choice; what is given otherwise stays."""
    if not isinstance(given, TileChoice):
        one_of(given, (SUGGESTED,), argument="size")
        given = suggest_tile(descriptor, sm=block.get("sm"))
    settled = {"with_pipeline": True, **block}
    if block.get("block_size") is None and block.get("block_dim") is None:
        settled["block_size"] = given.block_size
    return given.tile, tile_alignment(descriptor) if alignment is None else alignment, settled


def _suggested(descriptor: GemmDescriptor, sm: ComputeCapability) -> tuple[str, TileChoice]:
    tuned = _tuned(descriptor, sm)
    return _untuned(descriptor, sm) if tuned is None else ("tuned", tuned)


@lru_cache(maxsize=1024)
def _untuned(descriptor: GemmDescriptor, sm: ComputeCapability) -> tuple[str, TileChoice]:
    from nvmath_device.tile_candidates import by_rule

    line = nearest(shipped(), descriptor, sm)
    if line is not None:
        return "table", line.choice
    found = by_rule(descriptor, sm)
    if found is None:
        raise UnsupportedError(f"no tile of those that are known fits {sm.sm} and {descriptor}; give one")
    return "rule", found


def _tuned(descriptor: GemmDescriptor, sm: ComputeCapability) -> TileChoice | None:
    from nvmath_device import simulation, tuned_results

    if simulation.is_active():
        return None
    try:
        device = tuned_results.current_device_words()
        if tuple(device["compute_capability"]) != sm[:2]:
            return None
        found = tuned_results.choice(descriptor, device)
    except (NoDeviceError, MissingDependencyError):
        return None
    return found if found is not None and refusal(descriptor, found, sm) is None else None


# -- the table -------------------------------------------------------------------------------------------------


@cache
def shipped() -> tuple[Measured, ...]:
    """The lines of the table that comes with this package."""
    return read_table(json.loads(TABLE.read_text(encoding="utf-8")))


def read_table(content: Mapping[str, Any]) -> tuple[Measured, ...]:
    """The lines of a table as JSON has it."""
    return tuple(_line(line) for line in content["tiles"])


def _line(line: Mapping[str, Any]) -> Measured:
    descriptor = GemmDescriptor(
        size=line["size"], precision=line["precision"], arrangement=line["arrangement"], alignment=line["alignment"]
    )
    choice = TileChoice(line["tile"], line["block_size"], line["depth"], line["group"])
    return Measured((line["sm"] // 10, line["sm"] % 10), descriptor, choice, line["milliseconds"])


def nearest(lines: Iterable[Measured], descriptor: GemmDescriptor, sm: ComputeCapability) -> Measured | None:
    """The line that says most about a product on a target; ``None`` where none says anything. Pure.

    It has the same element types of A and B, both or neither can have wgmma, and its C is not much larger. The nearest
    has the same type of C before another one, then the same alignment and orders of A and B, and then the least
    distance between the logarithms of M, N and K.
    """
    fitting = [
        (_distance(line.descriptor, descriptor), place, line)
        for place, line in enumerate(lines)
        if _is_alike(line, descriptor, sm) and _is_of_use(line.descriptor, descriptor)
    ]
    for _, _, line in sorted(fitting, key=lambda found: found[:2]):
        if refusal(descriptor, line.choice, sm) is None:
            return line
    return None


def _is_alike(line: Measured, asked: GemmDescriptor, sm: ComputeCapability) -> bool:
    """Whether a tile of the line becomes the same instructions as one of ``asked``."""
    known = line.descriptor
    return (
        line.sm == sm[:2]
        and known.precision[:2] == asked.precision[:2]
        and known.data_type == asked.data_type
        and could_have_wgmma(known.tile(line.choice).descriptor, sm)
        == could_have_wgmma(asked.tile(line.choice).descriptor, sm)
    )


def _is_of_use(known: GemmDescriptor, asked: GemmDescriptor) -> bool:
    return asked.size.m * asked.size.n * _MUCH_SMALLER >= known.size.m * known.size.n


def _distance(known: GemmDescriptor, asked: GemmDescriptor) -> tuple[bool, bool, bool, float]:
    steps = sum(abs(math.log2(x / y)) for x, y in zip(known.size, asked.size, strict=True))
    return (
        known.precision.c != asked.precision.c,
        tile_alignment(known)[:2] != tile_alignment(asked)[:2],
        known.arrangement[:2] != asked.arrangement[:2],
        steps,
    )
