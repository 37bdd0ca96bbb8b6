# SPDX-License-Identifier: Apache-2.0
"""The kernel behind strided copies: its source, its parameters, and how it gets onto a device.

NVRTC compiles it once for each compute capability; the machine code is kept in the code store. There is one function
for each width of a unit and each way through memory, all in one cubin.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import threading
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

from nvmath_device.errors import MissingDependencyError, UnsupportedError
from nvmath_device.host.copy_plan import MAX_AXES, Move
from nvmath_device.host.current_device import compute_capability, current_index
from nvmath_device.host.driver import bindings, call
from nvmath_device.host.streams import call_on_stream
from nvmath_device.lto import store

KIND = "copy-kernel"
AXES = MAX_AXES + 1  # the units of an element may be one more axis
THREADS = 256
TILE = {1: 64, 2: 64, 4: 32, 8: 32, 16: 32}  # rows and columns, in units, by bytes of a unit
ITEMS = {1: 8, 2: 8, 4: 4, 8: 4, 16: 2}  # units a thread has under way at once

_SOURCE = r"""
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

struct Move {
    const char* source;
    char* destination;
    u64 flip[2];
    i64 source_stride[AXES];       // bytes
    i64 destination_stride[AXES];
    u32 extent[AXES];              // of tiles, for the last two axes of a tiled move
    u32 multiplier[AXES];          // n / extent is n * multiplier >> shift
    u32 shift[AXES];
    u32 axes;
    u32 count;                     // units, or tiles
    u32 rows, columns;             // units of the last two axes of a tiled move
};
static_assert(sizeof(Move) == SIZE_OF_MOVE, "the host has another layout");

// Takes the last digit off a count.
__device__ inline u32 digit(const Move& m, u32 axis, u32& n) {
    const u32 rest = static_cast<u32>(static_cast<u64>(n) * m.multiplier[axis] >> m.shift[axis]);
    const u32 found = n - rest * m.extent[axis];
    n = rest;
    return found;
}

template <class Unit>
__device__ inline Unit flipped(Unit unit, const u64* flip) { return static_cast<Unit>(unit ^ flip[0]); }
__device__ inline ulonglong2 flipped(ulonglong2 unit, const u64* flip) {
    unit.x ^= flip[0];
    unit.y ^= flip[1];
    return unit;
}

template <class Unit>
__device__ inline Unit load(const Move& m, i64 from) { return *reinterpret_cast<const Unit*>(m.source + from); }

template <class Unit>
__device__ inline void store(const Move& m, i64 to, Unit unit) {
    *reinterpret_cast<Unit*>(m.destination + to) = flipped(unit, m.flip);
}

template <class Unit, u32 ITEMS>
__device__ inline void move_units(const Move& m) {
    const u32 first = blockIdx.x * (THREADS * ITEMS) + threadIdx.x;
    u32 n[ITEMS];
    i64 from[ITEMS], to[ITEMS];
#pragma unroll
    for (u32 item = 0; item < ITEMS; ++item) {
        n[item] = first + item * THREADS;
        from[item] = to[item] = 0;
    }
#pragma unroll 1
    for (u32 axis = m.axes - 1; axis > 0; --axis)
#pragma unroll
        for (u32 item = 0; item < ITEMS; ++item) {
            const i64 index = digit(m, axis, n[item]);
            from[item] += index * m.source_stride[axis];
            to[item] += index * m.destination_stride[axis];
        }
    Unit held[ITEMS];
#pragma unroll
    for (u32 item = 0; item < ITEMS; ++item)
        if (first + item * THREADS < m.count) held[item] = load<Unit>(m, from[item] + n[item] * m.source_stride[0]);
#pragma unroll
    for (u32 item = 0; item < ITEMS; ++item)
        if (first + item * THREADS < m.count)
            store(m, to[item] + n[item] * m.destination_stride[0], held[item]);
}

// One tile a block. Neighbouring threads read along the rows' axis and write along the columns' axis.
template <class Unit, u32 TILE>
__device__ inline void move_tiles(const Move& m) {
    // Rows are an odd number of banks apart, or of whole units if those are wider than a bank.
    __shared__ Unit tile[TILE][TILE + (sizeof(Unit) < 4 ? 4 / sizeof(Unit) : 1)];
    u32 n = blockIdx.x;
    const u32 first_column = digit(m, m.axes - 1, n) * TILE, first_row = digit(m, m.axes - 2, n) * TILE;
    const i64 source_row = m.source_stride[m.axes - 2], source_column = m.source_stride[m.axes - 1];
    const i64 to_row = m.destination_stride[m.axes - 2], to_column = m.destination_stride[m.axes - 1];
    i64 from = first_row * source_row + first_column * source_column;
    i64 to = first_row * to_row + first_column * to_column;
#pragma unroll 1
    for (u32 axis = m.axes - 2; axis-- > 0;) {
        const i64 index = digit(m, axis, n);
        from += index * m.source_stride[axis];
        to += index * m.destination_stride[axis];
    }
    const u32 rows = m.rows - first_row, columns = m.columns - first_column;
    const u32 x = threadIdx.x % TILE, y = threadIdx.x / TILE;
#pragma unroll
    for (u32 k = 0; k < TILE; k += THREADS / TILE)
        if (x < rows && k + y < columns)
            tile[k + y][x] = load<Unit>(m, from + x * source_row + (k + y) * source_column);
    __syncthreads();
#pragma unroll
    for (u32 k = 0; k < TILE; k += THREADS / TILE)
        if (x < columns && k + y < rows) store(m, to + x * to_column + (k + y) * to_row, tile[x][k + y]);
}

#define KERNELS(BYTES, Unit, ITEMS, TILE)                                                                             \
    extern "C" __global__ void __launch_bounds__(THREADS) units_##BYTES(const __grid_constant__ Move m) {              \
        move_units<Unit, ITEMS>(m);                                                                                   \
    }                                                                                                                 \
    extern "C" __global__ void __launch_bounds__(THREADS) tiles_##BYTES(const __grid_constant__ Move m) {              \
        move_tiles<Unit, TILE>(m);                                                                                    \
    }
"""
_UNITS = {1: "unsigned char", 2: "unsigned short", 4: "u32", 8: "u64", 16: "ulonglong2"}


class Parameters(ctypes.Structure):
    """``Move`` of the source."""

    _fields_ = [
        ("source", ctypes.c_uint64),
        ("destination", ctypes.c_uint64),
        ("flip", ctypes.c_uint64 * 2),
        ("source_stride", ctypes.c_int64 * AXES),
        ("destination_stride", ctypes.c_int64 * AXES),
        ("extent", ctypes.c_uint32 * AXES),
        ("multiplier", ctypes.c_uint32 * AXES),
        ("shift", ctypes.c_uint32 * AXES),
        ("axes", ctypes.c_uint32),
        ("count", ctypes.c_uint32),
        ("rows", ctypes.c_uint32),
        ("columns", ctypes.c_uint32),
    ]


class Launch(NamedTuple):
    """One launch but for its addresses. ``parameters`` are those of the kernel, with the offsets as addresses."""

    function: str
    blocks: int
    parameters: Parameters


@lru_cache(maxsize=4096)
def launch_of(move: Move) -> Launch:
    """The launch of a move. Its parameters are shared: copy them before filling in addresses."""
    extents = list(move.extents)
    rows = columns = 0
    if move.tiled:
        rows, columns = extents[-2:]
        tile = TILE[move.unit]
        extents[-2:] = [-(-rows // tile), -(-columns // tile)]
    count = prod(extents)
    parameters = Parameters(
        source=move.source & (1 << 64) - 1, destination=move.destination & (1 << 64) - 1,
        axes=len(extents), count=count, rows=rows, columns=columns,
    )  # fmt: skip
    parameters.flip[:] = [move.flip & (1 << 64) - 1, move.flip >> 64]
    for axis, extent in enumerate(extents):
        parameters.extent[axis] = extent
        parameters.multiplier[axis], parameters.shift[axis] = multiplier_and_shift(extent)
        parameters.source_stride[axis] = move.source_strides[axis]
        parameters.destination_stride[axis] = move.destination_strides[axis]
    blocks = count if move.tiled else -(-count // (THREADS * ITEMS[move.unit]))
    return Launch(f"{'tiles' if move.tiled else 'units'}_{move.unit}", blocks, parameters)


def multiplier_and_shift(divisor: int) -> tuple[int, int]:
    """Numbers with which ``n // divisor == n * multiplier >> shift`` for all n below 2**31; both fit 32 bits.

    Granlund and Montgomery, "Division by invariant integers using multiplication" (1994), theorem 4.2: with
    2**bits >= divisor the multiplier exceeds 2**(31 + bits) / divisor by at most 2**bits / divisor.
    """
    bits = (divisor - 1).bit_length()
    return (1 << 31 + bits) // divisor + 1, 31 + bits


def launch(move: Move, source: int, destination: int, stream: int) -> None:
    """Put a move on a stream of the current device. The addresses are not checked."""
    function, blocks, template = launch_of(move)
    parameters = Parameters.from_buffer_copy(template)
    parameters.source += source
    parameters.destination += destination
    pointers = (ctypes.c_void_p * 1)(ctypes.addressof(parameters))
    call_on_stream(
        bindings().cuLaunchKernel, loaded(function), blocks, 1, 1, THREADS, 1, 1, 0, stream,
        ctypes.addressof(pointers), 0,
    )  # fmt: skip


# -- from source to device ----------------------------------------------------------------------------------


def source() -> str:
    """The CUDA C++ that is compiled."""
    constants = {"AXES": AXES, "THREADS": THREADS, "SIZE_OF_MOVE": ctypes.sizeof(Parameters)}
    defines = "".join(f"#define {name} {value}\n" for name, value in constants.items())
    kernels = "".join(f"KERNELS({n}, {unit}, {ITEMS[n]}, {TILE[n]})\n" for n, unit in _UNITS.items())
    return defines + _SOURCE + kernels


def cubin(capability: tuple[int, int]) -> bytes:
    """Machine code for a compute capability: from the code store, or compiled. Needs no GPU.

    Raises:
        MissingDependencyError: NVRTC or cuda.core is needed and not installed.
        UnsupportedError: this NVRTC cannot compile for it.
    """
    text, arch = source(), "sm_{}{}".format(*capability)
    key: dict[str, object] = {
        "source": hashlib.sha256(text.encode()).hexdigest(),
        "arch": arch,
        "nvrtc": _nvrtc_version(),
    }
    return store.default_store().get_or_create(KIND, key, lambda: ({}, _compile(text, arch))).blob


def _nvrtc_version() -> str:
    try:
        from cuda.bindings import nvrtc

        status, major, minor = nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:
        raise MissingDependencyError(
            f"NVRTC is needed to copy arrays on the GPU that are not contiguous: pip install nvidia-cuda-nvrtc. {error}"
        ) from error
    if int(status):
        raise MissingDependencyError(f"NVRTC does not tell its version: {status!r}; install it anew")
    return f"{major}.{minor}"


def _compile(text: str, arch: str) -> bytes:
    try:
        from cuda.core import Program, ProgramOptions
    except ImportError as error:
        raise MissingDependencyError(
            "cuda.core is needed to copy arrays on the GPU that are not contiguous: pip install cuda-core"
        ) from error
    options = ProgramOptions(name="strided_copy.cu", arch=arch, std="c++17")
    try:
        return bytes(Program(text, "c++", options).compile("cubin").code)
    except Exception as error:
        raise UnsupportedError(
            f"NVRTC {_nvrtc_version()} cannot compile the copy kernel for {arch}; a newer one may: "
            f"pip install -U nvidia-cuda-nvrtc\n{error}"
        ) from error


_lock = threading.Lock()
_libraries: dict[tuple[int, int], tuple[Any, bytes]] = {}
_functions: dict[tuple[int, str], Any] = {}


def loaded(function: str) -> Any:
    """A function of the kernel on the current device, compiled and loaded at the first call.

    Loading may wait for the device, so do it before a stream captures; later calls only look it up.
    """
    index = current_index()
    found = _functions.get((index, function))
    if found is None:
        with _lock:
            found = _functions[index, function] = _load(index, function)
    return found


def _load(index: int, function: str) -> Any:
    driver, capability = bindings(), compute_capability(index)
    if capability not in _libraries:
        code = cubin(capability)
        _libraries[capability] = call(driver.cuLibraryLoadData, code, [], [], 0, [], [], 0), code
    kernel = call(driver.cuLibraryGetKernel, _libraries[capability][0], function.encode())
    call(driver.cuKernelGetFunction, kernel)  # loads it into the current context now and not at the first launch
    return driver.CUfunction(int(kernel))  # a kernel is launched in whatever context is current


def _start_again_in_forked_child() -> None:
    global _lock
    _lock = threading.Lock()
    _libraries.clear()
    _functions.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_again_in_forked_child)
