# SPDX-License-Identifier: Apache-2.0
"""Whether a launch fits, before it is made: pure arithmetic on what a kernel takes and what a device has.

CUDA answers a launch that cannot run with "invalid argument" or "too many resources requested". Here the same is
found out from numbers, with the need, the limit and what to do about it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from nvmath_device.errors import InvalidArgumentError, LaunchError
from nvmath_device.frozen import frozen
from nvmath_device.lto.cubin import Resources
from nvmath_device.targets import KIB, MAX_SHARED_BYTES, MAX_THREADS_PER_BLOCK, compute_capability

Dims = tuple[int, int, int]

WARP = 32  # threads
_PARTITIONS = 4  # of a multiprocessor; each has a quarter of its registers and runs every fourth warp of a block
_REGISTER_UNIT = 256  # registers are given to a warp in such portions

# CUDA C++ Programming Guide, "Technical Specifications per Compute Capability": blocks, threads, and bytes of shared
# memory that a multiprocessor holds at a time.
_MULTIPROCESSOR: dict[tuple[int, int], tuple[int, int, int]] = {
    (7, 0): (32, 2048, 96 * KIB),
    (7, 2): (32, 2048, 96 * KIB),
    (7, 5): (16, 1024, 64 * KIB),
    (8, 0): (32, 2048, 164 * KIB),
    (8, 6): (16, 1536, 100 * KIB),
    (8, 7): (16, 1536, 164 * KIB),
    (8, 9): (24, 1536, 100 * KIB),
    (9, 0): (32, 2048, 228 * KIB),
    (10, 0): (32, 2048, 228 * KIB),
    (10, 3): (32, 2048, 228 * KIB),
    (11, 0): (24, 1536, 228 * KIB),
    (12, 0): (24, 1536, 100 * KIB),
    (12, 1): (24, 1536, 100 * KIB),
}

# CUdevice_attribute of cuda.h, for DeviceLimits.of_device.
_ATTRIBUTES = {
    "max_threads_per_block": 1,
    "max_block_x": 2,
    "max_block_y": 3,
    "max_block_z": 4,
    "max_grid_x": 5,
    "max_grid_y": 6,
    "max_grid_z": 7,
    "registers_per_block": 12,
    "multiprocessors": 16,
    "threads_per_multiprocessor": 39,
    "major": 75,
    "minor": 76,
    "shared_bytes_per_multiprocessor": 81,
    "registers_per_multiprocessor": 82,
    "max_shared_bytes": 97,
    "blocks_per_multiprocessor": 106,
    "reserved_shared_bytes": 111,
}


@frozen(kw_only=True)
class DeviceLimits:
    """What a device lets a block, a grid and a multiprocessor have.

    Attributes:
        sm: the target, e.g. ``"sm_90"``.
        max_threads_per_block, max_block, max_grid: threads; threads and blocks along x, y, z.
        max_shared_bytes: of a block, static and dynamic together, by opt-in.
        reserved_shared_bytes: what CUDA keeps for itself in each block, on top of that.
        registers_per_block: of 32 bits.
        blocks_per_multiprocessor, threads_per_multiprocessor, registers_per_multiprocessor,
        shared_bytes_per_multiprocessor: what fits at a time.
        multiprocessors: of the device; ``None`` for a compute capability, which does not say.
    """

    sm: str
    max_threads_per_block: int
    max_block: Dims
    max_grid: Dims
    max_shared_bytes: int
    reserved_shared_bytes: int
    registers_per_block: int
    blocks_per_multiprocessor: int
    threads_per_multiprocessor: int
    registers_per_multiprocessor: int
    shared_bytes_per_multiprocessor: int
    multiprocessors: int | None = None

    @classmethod
    def of_cc(cls, cc: Any) -> DeviceLimits:
        """Those of every device of a compute capability, written in any way (``90``, ``(9, 0)``, ``"sm_90a"``).

        Raises:
            InvalidArgumentError, ArgumentTypeError: not a known compute capability.
        """
        target = compute_capability(cc, argument="cc")
        blocks, threads, shared = _MULTIPROCESSOR[target[:2]]
        return cls(
            sm=target.sm,
            max_threads_per_block=MAX_THREADS_PER_BLOCK,
            max_block=(1024, 1024, 64),
            max_grid=(2**31 - 1, 65535, 65535),
            max_shared_bytes=MAX_SHARED_BYTES[target[:2]],
            reserved_shared_bytes=KIB if target >= (8, 0) else 0,
            registers_per_block=64 * KIB,
            blocks_per_multiprocessor=blocks,
            threads_per_multiprocessor=threads,
            registers_per_multiprocessor=64 * KIB,
            shared_bytes_per_multiprocessor=shared,
        )

    @classmethod
    def of_device(cls, ask: Callable[[int], int]) -> DeviceLimits:
        """Those of one device; ``ask(attribute)`` answers with the value of a ``CUdevice_attribute``."""
        known: dict[str, Any] = {name: ask(number) for name, number in _ATTRIBUTES.items()}
        major, minor = known.pop("major"), known.pop("minor")
        for what in ("block", "grid"):
            known[f"max_{what}"] = tuple([known.pop(f"max_{what}_{axis}") for axis in "xyz"])
        return cls(sm=f"sm_{major}{minor}", **known)


@frozen()
class Misfit:
    """One thing a launch needs more of than there is. ``text`` says it in words, and what to do."""

    what: str
    need: int
    limit: int
    text: str


@frozen()
class Fit:
    """Whether a launch fits: true or false, and the numbers.

    Attributes:
        kernel: name of the kernel, or of the descriptor.
        misfits: what is missing; empty where it fits.
        shared_bytes: static and dynamic shared memory of a block.
        registers: a block, as they are given out: to whole warps, in portions of 256.
        blocks_per_multiprocessor: blocks of this launch that run on a multiprocessor at a time; 0 where it does not
            fit. Named barriers and what other kernels hold are not counted.
        limited_by: what keeps another block out: ``"blocks"``, ``"threads"``, ``"registers"`` or
            ``"shared memory"``; ``""`` where it does not fit.
    """

    kernel: str
    misfits: tuple[Misfit, ...]
    shared_bytes: int
    registers: int
    blocks_per_multiprocessor: int
    limited_by: str

    def __bool__(self) -> bool:
        return not self.misfits

    def __repr__(self) -> str:
        if self.misfits:
            return f"Fit(no: {self.why})"
        return f"Fit(yes: {self.blocks_per_multiprocessor} blocks a multiprocessor, limited by {self.limited_by})"

    @property
    def why(self) -> str:
        """The reasons why it does not fit, one a line; empty where it does."""
        return "\n".join(m.text for m in self.misfits)

    def require(self) -> Fit:
        """This, if it fits.

        Raises:
            LaunchError: it does not.
        """
        if self.misfits:
            raise _error(self.kernel, self.misfits)
        return self


def fit_of(
    kernel_name: str,
    resources: Resources,
    limits: DeviceLimits,
    *,
    grid: Any = 1,
    block: Any,
    shared: int = 0,
    cooperative: bool = False,
    blocks: Sequence[Mapping[str, Any]] = (),
    least_shared: int = 0,
) -> Fit:
    """Whether a launch fits and how many of its blocks run at a time.

    Args:
        grid, block: a number, or one to three of them, as in a launch.
        shared: dynamic shared memory, in bytes.
        cooperative: all blocks must run at the same time. Checked only where ``limits`` are those of a device.
        blocks: what the descriptors in the kernel must be called by: ``{"block_dim": [128, 1, 1], "exact": False}``, a
            block of so many threads, or with ``exact`` just these extents.
        least_shared: bytes of dynamic shared memory that the kernel's layouts reach.
    """
    grid, block = _dims(grid, "grid"), _dims(block, "block")
    threads = block[0] * block[1] * block[2]
    total = resources.static_shared_bytes + shared
    registers = _register_portion(resources.registers) * -(-threads // WARP)
    misfits = [
        *_grid_misfits(limits, grid),
        *(_descriptor_misfits(blocks, block) or _block_misfits(resources, limits, block)),
        *_shared_misfits(resources, limits, shared, least_shared),
        *_register_misfits(resources, limits, threads),
    ]
    resident, limited_by = (0, "") if misfits else _resident(resources, limits, threads, total)
    if cooperative and resident and limits.multiprocessors is not None:
        misfits += _cooperative_misfits(limits, grid, resident, limited_by)
        resident, limited_by = (0, "") if misfits else (resident, limited_by)
    return Fit(kernel_name, tuple(misfits), total, registers, resident, limited_by)


def too_much_static_shared(kernel_name: str, log: str) -> LaunchError | None:
    """The error for what ptxas says of static shared arrays above 48 KiB; ``None`` where ``log`` does not say that.

    Such a kernel has no machine code, so it is the linker's log that tells.
    """
    found = re.search(r"too much shared data \(0x([0-9a-f]+) bytes, 0x([0-9a-f]+) max\)", log)
    if found is None:
        return None
    need, limit = (int(number, 16) for number in found.groups())
    text = (
        f"shared arrays of constant size take {need:,} bytes and may take {limit:,}; make them parts of the launch's "
        "dynamic shared memory: nvmath_device.shared_layout(...), or slices of nvmath_device.shared.array(0, dtype)"
    )
    return _error(kernel_name, (Misfit("static shared memory", need, limit, text),))


# -- what does not fit ---------------------------------------------------------------------------------------


def _grid_misfits(limits: DeviceLimits, grid: Dims) -> list[Misfit]:
    found = []
    for axis, blocks, most in zip("xyz", grid, limits.max_grid, strict=True):
        if blocks < 1:
            found.append(Misfit("grid", blocks, 1, f"grid: {grid} has {blocks} blocks along {axis}; give at least 1"))
        elif blocks > most:
            text = f"grid: {grid} has {blocks:,} blocks along {axis}; CUDA allows {most:,}"
            found.append(Misfit("grid", blocks, most, text))
    return found


def _block_misfits(resources: Resources, limits: DeviceLimits, block: Dims) -> list[Misfit]:
    found = []
    for axis, count, most in zip("xyz", block, limits.max_block, strict=True):
        if count < 1:
            found.append(Misfit("block", count, 1, f"block: {block} has {count} threads along {axis}; give at least 1"))
        elif count > most:
            text = f"block: {block} has {count:,} threads along {axis}; CUDA allows {most:,}"
            found.append(Misfit("block", count, most, text))
    threads = block[0] * block[1] * block[2]
    if found:
        return found
    if threads > limits.max_threads_per_block:
        most = limits.max_threads_per_block
        text = f"block: {block} has {threads:,} threads; {limits.sm} allows {most:,}"
        found.append(Misfit("threads", threads, most, text))
    elif threads > resources.max_threads:
        text = (
            f"block: {block} has {threads:,} threads; the kernel was compiled for at most {resources.max_threads:,}, "
            "by launch_bounds or the block of a descriptor that it uses"
        )
        found.append(Misfit("threads", threads, resources.max_threads, text))
    return found


def _descriptor_misfits(wanted: Sequence[Mapping[str, Any]], block: Dims) -> list[Misfit]:
    """A block that is not that of the descriptors in the kernel: their results would be wrong."""
    found, there = [], prod(block)
    for one in wanted:
        extents = tuple(one["block_dim"])
        threads = prod(extents)
        if (extents != block) if one["exact"] else (threads != there):
            wants = f"a block of {extents}" if one["exact"] else f"{threads} threads a block"
            text = (
                f"block: {block}, {there} threads; a descriptor that the kernel calls needs {wants}: launch with the "
                "descriptor's block_dim"
            )
            found.append(Misfit("block", threads, there, text))
    return found


def _shared_misfits(resources: Resources, limits: DeviceLimits, shared: int, least: int) -> list[Misfit]:
    if shared < 0:
        return [Misfit("shared memory", shared, 0, f"shared: {shared:,} bytes of dynamic memory; give at least 0")]
    if shared < least:
        text = (
            f"shared: {shared:,} bytes of dynamic memory; the kernel uses parts of a shared_layout that end at "
            f"{least:,}: launch with the layout's size"
        )
        return [Misfit("shared memory", least, shared, text)]
    need, most = resources.static_shared_bytes + shared, limits.max_shared_bytes
    if need <= most:
        return []
    static = f" and {resources.static_shared_bytes:,} of static arrays, {need:,} in all" if need > shared else ""
    text = (
        f"shared: {shared:,} bytes of dynamic memory{static}; a block of {limits.sm} has {most:,}: "
        "take smaller tiles, or let parts that are not alive together share their memory"
    )
    return [Misfit("shared memory", need, most, text)]


def _register_misfits(resources: Resources, limits: DeviceLimits, threads: int) -> list[Misfit]:
    need, most = _checked_registers(resources.registers, threads), limits.registers_per_block
    if need <= most or threads > limits.max_threads_per_block:
        return []
    warps = most // _register_portion(resources.registers) // _PARTITIONS * _PARTITIONS
    text = (
        f"registers: {threads:,} threads of {resources.registers} registers take {need:,}; a block has {most:,}, "
        f"enough for {warps * WARP:,} threads; launch fewer, or compile with launch_bounds={threads} or "
        f"max_registers={_registers_for(threads, most)}"
    )
    return [Misfit("registers", need, most, text)]


def _cooperative_misfits(limits: DeviceLimits, grid: Dims, resident: int, limited_by: str) -> list[Misfit]:
    assert limits.multiprocessors is not None
    need, most = grid[0] * grid[1] * grid[2], resident * limits.multiprocessors
    if need <= most:
        return []
    text = (
        f"grid: {grid} has {need:,} blocks that must all run at the same time (cooperative launch); {most:,} do, "
        f"{resident} on each of {limits.multiprocessors} multiprocessors, limited by {limited_by}"
    )
    return [Misfit("blocks", need, most, text)]


# -- how much of what ----------------------------------------------------------------------------------------


def _register_portion(registers: int) -> int:
    """Registers that a warp of such threads is given."""
    return -(-registers * WARP // _REGISTER_UNIT) * _REGISTER_UNIT


def _checked_registers(registers: int, threads: int) -> int:
    """Registers that a block is counted with when a launch is checked: a number of warps that four divides."""
    warps = -(-threads // (WARP * _PARTITIONS)) * _PARTITIONS
    return _register_portion(registers) * warps


def _registers_for(threads: int, most: int) -> int:
    """The most registers a thread may have for so many threads to fit."""
    warps = -(-threads // (WARP * _PARTITIONS)) * _PARTITIONS
    return most // warps // _REGISTER_UNIT * _REGISTER_UNIT // WARP


def _resident(resources: Resources, limits: DeviceLimits, threads: int, shared: int) -> tuple[int, str]:
    """Blocks that a multiprocessor holds at a time, and what limits them."""
    warps = -(-threads // WARP)
    portion = _register_portion(resources.registers)
    unit = 128 if limits.reserved_shared_bytes else 256  # in which shared memory is given out, since 8.0 and before
    taken = -(-(shared + limits.reserved_shared_bytes) // unit) * unit
    bounds = {"blocks": limits.blocks_per_multiprocessor, "threads": limits.threads_per_multiprocessor // WARP // warps}
    if portion:
        bounds["registers"] = limits.registers_per_multiprocessor // _PARTITIONS // portion * _PARTITIONS // warps
    if taken:
        bounds["shared memory"] = limits.shared_bytes_per_multiprocessor // taken
    limited_by = min(bounds, key=lambda name: bounds[name])
    return bounds[limited_by], limited_by


def _dims(value: Any, argument: str) -> Dims:
    """One to three numbers as three."""
    try:
        numbers = tuple(int(n) for n in value) if hasattr(value, "__iter__") else (int(value),)
    except (TypeError, ValueError):
        numbers = ()
    if not 1 <= len(numbers) <= 3:
        raise InvalidArgumentError(f"{argument}: {value!r} is not allowed; give a number, or one to three of them")
    x, y, z = (*numbers, 1, 1)[:3]
    return x, y, z


def _error(kernel: str, misfits: tuple[Misfit, ...]) -> LaunchError:
    first = misfits[0]
    lines = "\n  ".join(m.text for m in misfits)
    return LaunchError(
        f"{kernel} cannot be launched:\n  {lines}", kernel=kernel, what=first.what, need=first.need, limit=first.limit
    )
