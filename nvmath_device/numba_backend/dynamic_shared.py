# SPDX-License-Identifier: Apache-2.0
"""A note beside a kernel's code that it uses dynamic shared memory: how much at least, called by what block, and for
which chip."""

from __future__ import annotations

from functools import cache
from typing import Any

from numba.cuda.cudadrv.linkable_code import PTXSource

from nvmath_device.numba_backend.generated import RequiredBlock
from nvmath_device.numba_backend.loading import allow_dynamic_shared_memory

_NO_CODE = b".version 7.0\n.target sm_70\n.address_size 64\n"


class DynamicShared(PTXSource):
    """Code without functions, as Numba links it, that says where the dynamic memory used by a kernel ends, in bytes.

    ``block`` is what must call the code that uses it, where that matters, ``chip`` the letter of the chip for which
    alone it must be linked. Where Numba loads the kernel, it has more than 48 KiB allowed.
    """

    def __init__(self, end: int, block: RequiredBlock | None, chip: str) -> None:
        super().__init__(_NO_CODE, name=f"dynamic_shared_{end}", setup_callback=allow_dynamic_shared_memory)
        self.end, self.block, self.chip = end, block, chip


@cache
def _note(end: int, block: RequiredBlock | None, chip: str) -> DynamicShared:
    return DynamicShared(end, block, chip)


def uses_dynamic_shared(context: Any, end: int, block: RequiredBlock | None = None, chip: str = "") -> None:
    """Say of the function being compiled that it uses so many bytes of the launch's dynamic shared memory.

    ``block`` is the block that must call it, if not any will do; ``chip``, such as ``"a"``, the chip that
    alone has its instructions.
    """
    context.active_code_library.add_linking_file(_note(end, block, chip))
