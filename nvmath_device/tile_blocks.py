# SPDX-License-Identifier: Apache-2.0
"""How many threads a given tile gets where its user leaves that open. Pure.

libmathdx's advice is for matrices in shared memory. For some tiles it is so few threads that C does not stay in
registers, or not the number that wgmma wants.
"""

from __future__ import annotations

from nvmath_device.descriptors import BlockExecution, Dim3, GemmDescriptor
from nvmath_device.pipelines import missing_for_wgmma
from nvmath_device.targets import MAX_THREADS_PER_BLOCK, ComputeCapability, chip_of
from nvmath_device.tile_choices import could_have_wgmma, fragment_registers, registers_for_fragment

_WGMMA_BLOCKS = (128, 256, 512)
# For single numbers of float32: 64 x 64 x 64 was fastest with 16 elements a thread, of 4 to 64, on an H200.
_FEW_ELEMENTS, _MANY_ELEMENTS, _ENOUGH_THREADS = 16, 32, 256


def known_block(tile: GemmDescriptor, sm: ComputeCapability) -> Dim3 | None:
    """The block of a tile that wgmma can multiply; ``None`` for others: libmathdx is asked.

    The least one whose threads have C in registers: more threads need more of the tile's rows. It is what was fastest
    in the table that ships, which is not read for it: a first use with a warm store would take half as long again.
    """
    if not could_have_wgmma(tile, sm):
        return None
    for threads in _WGMMA_BLOCKS:
        block = BlockExecution(block_dim=Dim3(threads), sm=chip_of(sm))
        if not missing_for_wgmma(tile, block) and _keeps_c(tile, threads):
            return Dim3(threads)
    return None


def enough_threads(tile: GemmDescriptor, advised: Dim3) -> Dim3:
    """libmathdx's advice for a tile, raised to as many threads as it takes to have C in registers.

    Products of float32 numbers get more than that, up to 256 threads, where each had many elements.
    """
    threads, (m, n, _) = advised.size, tile.size
    singles = {t.name for t in tile.precision} == {"float32"}
    few = _FEW_ELEMENTS if singles and m * n > _MANY_ELEMENTS * threads else m * n
    wanted = threads
    while wanted * 2 <= MAX_THREADS_PER_BLOCK and m * n % (2 * wanted) == 0:
        is_slow = m * n > few * wanted and wanted < _ENOUGH_THREADS
        if not is_slow and _keeps_c(tile, wanted):
            break
        wanted *= 2
    return Dim3(wanted) if wanted > threads and _keeps_c(tile, wanted) else advised


def _keeps_c(tile: GemmDescriptor, threads: int) -> bool:
    m, n, _ = tile.size
    return m * n % threads == 0 and fragment_registers(tile, threads) <= registers_for_fragment(tile, threads)
