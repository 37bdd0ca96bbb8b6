# SPDX-License-Identifier: Apache-2.0
"""What a cubin says about its kernels: read from the ELF file alone, without a driver or a disassembler.

A cubin is a 64-bit ELF file. A kernel is a function symbol with a flag of its own; what ptxas and nvJitLink noted
about it are attributes in the sections ``.nv.info`` (those of all kernels, each with the index of its symbol) and
``.nv.info.<kernel>``. The tests compare what is read here with ``cuobjdump -res-usage`` and ``ptxas -v``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError
from nvmath_device.frozen import frozen
from nvmath_device.targets import MAX_THREADS_PER_BLOCK, ComputeCapability

# From compute capability 9.0 on a kernel's section of shared memory begins with what CUDA keeps for itself in
# each block. Neither ptxas nor the driver counts it as the kernel's.
_RESERVED_SHARED_BYTES = 1024

_MACHINE_CUDA = 190  # e_machine
_KERNEL = 0x10  # st_other of a function that can be launched
_NO_DATA = 8  # sh_type of a section without bytes in the file

# Attributes of ``.nv.info``: format byte, attribute byte, then 2 bytes of value, or of the length of what follows.
_LONG_FORMAT = 4
_MAX_THREADS, _REQUIRED_THREADS = 0x05, 0x10
_FRAME_SIZE, _STACK_SIZE, _REGISTERS = 0x11, 0x12, 0x2F
_PARAMETER_BYTES = 0x19
_NO_BOUND = 0xFFFFFFFF  # of a stack


@frozen()
class Resources:
    """What one kernel takes.

    Attributes:
        registers: of 32 bits, a thread.
        static_shared_bytes: a block; arrays of constant size. What a launch asks for comes on top; the 1 KiB that
            CUDA keeps for itself in each block (compute capability 8.0 and later) is not in it.
        local_bytes: a thread, in local memory: the stack frame, where spilled registers and arrays with run-time
            indices are, with those of the functions that are called. ``None`` where functions call themselves: the
            linker knows no bound.
        max_threads: a block may have, by launch bounds; 1024 where there are none.
        constant_bytes: constants of the whole module.
        parameter_bytes: of all arguments, padding between them included.
    """

    registers: int
    static_shared_bytes: int
    local_bytes: int | None
    max_threads: int
    constant_bytes: int
    parameter_bytes: int

    def as_dict(self) -> dict[str, int | None]:
        """The fields, for JSON; ``Resources(**fields)`` makes the object again."""
        return dict(self.__dict__)


def entries(cubin: bytes) -> tuple[str, ...]:
    """Names of the kernels in a cubin, in the order of its symbols.

    Raises:
        InvalidArgumentError, ArgumentTypeError: not a cubin.
    """
    return tuple(_Elf(cubin).kernels)


def target(cubin: bytes) -> ComputeCapability:
    """What a cubin was made for. ``arch`` is always ``""``: whether it was ``sm_90`` or ``sm_90a`` is not told.

    Raises:
        InvalidArgumentError, ArgumentTypeError: not a cubin.
    """
    return _Elf(cubin).target


def read_resources(cubin: bytes, entry: str) -> Resources:
    """What the kernel named ``entry`` takes.

    Registers and stack include those of functions that are called and not inlined, as far as the linker knows
    them: recursion and calls through pointers have no bound that it could note.

    Raises:
        InvalidArgumentError, ArgumentTypeError: not a cubin, or it has no such kernel.
    """
    elf = _Elf(cubin)
    if entry not in elf.kernels:
        listed = ", ".join(elf.kernels) or "none"
        raise InvalidArgumentError(f"entry: {entry!r} is not a kernel of this cubin; its kernels are: {listed}")
    with _damage_explained():
        return _resources(elf, entry)


def _resources(elf: _Elf, entry: str) -> Resources:
    symbol = elf.kernels[entry]
    of_all = {a: value for a, index, value in _indexed(elf.content(".nv.info")) if index == symbol}
    own = dict(_attributes(elf.content(f".nv.info.{entry}")))
    bounds = own.get(_REQUIRED_THREADS) or own.get(_MAX_THREADS)
    stack = max(of_all.get(_FRAME_SIZE, 0), of_all.get(_STACK_SIZE, 0))
    shared = elf.size(f".nv.shared.{entry}")
    if shared and elf.target >= (9, 0):
        shared -= _RESERVED_SHARED_BYTES
    return Resources(
        registers=of_all[_REGISTERS],
        static_shared_bytes=shared,
        local_bytes=None if stack == _NO_BOUND else stack,
        max_threads=_product(bounds) if bounds else MAX_THREADS_PER_BLOCK,
        constant_bytes=elf.size(".nv.constant3"),
        parameter_bytes=int.from_bytes(own.get(_PARAMETER_BYTES, b""), "little"),
    )


@contextmanager
def _damage_explained() -> Iterator[None]:
    try:
        yield
    except (struct.error, LookupError, OverflowError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"cubin: the file is cut off or damaged ({error!r})") from None


def _attributes(section: bytes) -> list[tuple[int, bytes]]:
    """(attribute, value) of each entry of a ``.nv.info`` section."""
    found, at = [], 0
    while at + 4 <= len(section):
        kind, attribute = section[at], section[at + 1]
        end = at + 4
        if kind == _LONG_FORMAT:
            end += int.from_bytes(section[at + 2 : at + 4], "little")
            found.append((attribute, section[at + 4 : end]))
        else:
            found.append((attribute, section[at + 2 : end]))
        at = end
    return found


def _indexed(section: bytes) -> list[tuple[int, int, int]]:
    """(attribute, symbol, number) of the entries that are about one symbol."""
    return [(attribute, *struct.unpack("<II", value)) for attribute, value in _attributes(section) if len(value) == 8]


def _product(extents: bytes) -> int:
    x, y, z = struct.unpack("<III", extents)
    return x * y * z


class _Section(NamedTuple):
    type: int
    offset: int
    size: int


class _Elf:
    """The tables of an ELF file that are needed here."""

    def __init__(self, file: Any) -> None:
        if not isinstance(file, (bytes, bytearray, memoryview)):
            raise ArgumentTypeError(f"cubin: {type(file).__name__} is not allowed; give the bytes of a cubin")
        self._file = bytes(file)
        if self._file[:5] != b"\x7fELF\x02" or len(self._file) < 64:
            raise InvalidArgumentError("cubin: these bytes are not a 64-bit ELF file, so they are no cubin")
        machine = int.from_bytes(self._file[18:20], "little")
        if machine != _MACHINE_CUDA:
            raise InvalidArgumentError(f"cubin: an ELF file for machine {machine} is not for NVIDIA's GPUs")
        with _damage_explained():
            self._read()

    def _read(self) -> None:
        (flags,) = self._unpack("<I", 48)
        # Version 8 of the format (CUDA 13) moved the capability from the lowest byte to the second.
        number = (flags >> 8 if self._file[8] >= 8 else flags) & 0xFF
        self.target = ComputeCapability(number // 10, number % 10)
        table, size, count, names = self._unpack("<40xQ10xHHH", 0)
        headers = [self._unpack("<IIQQQQII", table + i * size) for i in range(count)]
        texts = headers[names]
        self._sections = {
            self._text(texts[4], h[0]): _Section(type=h[1], offset=h[4], size=h[5]) for h in headers if h[1]
        }
        self.kernels = self._read_kernels()

    def _read_kernels(self) -> dict[str, int]:
        """Index of the symbol of each kernel."""
        symbols, texts = self._sections[".symtab"], self._sections[".strtab"]
        found = {}
        for index in range(symbols.size // 24):
            name, info, other = self._unpack("<IBB", symbols.offset + 24 * index)
            is_function = info & 0xF == 2
            if is_function and other & _KERNEL:
                found[self._text(texts.offset, name)] = index
        return found

    def _unpack(self, layout: str, offset: int) -> tuple[Any, ...]:
        return struct.unpack_from(layout, self._file, offset)

    def _text(self, table: int, offset: int) -> str:
        start = table + offset
        end = self._file.find(b"\0", start)
        if end < 0:
            raise LookupError("a name without an end")
        return self._file[start:end].decode()

    def size(self, name: str) -> int:
        """Bytes of a section; 0 where there is none."""
        section = self._sections.get(name)
        return section.size if section else 0

    def content(self, name: str) -> bytes:
        """The bytes of a section; none where there is none, or where the file has none of them."""
        section = self._sections.get(name)
        if section is None or section.type == _NO_DATA:
            return b""
        return self._file[section.offset : section.offset + section.size]
