# SPDX-License-Identifier: Apache-2.0
"""A kernel's machine code out of the code store, where it is put if it is not there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nvmath_device.errors import UnsupportedError
from nvmath_device.kernel_code import KernelCode
from nvmath_device.lto import toolchain
from nvmath_device.lto.store import default_store
from nvmath_device.numba_backend.kernel_words import NotInWords, kernel_words
from nvmath_device.targets import ComputeCapability

KIND = "kernel"


class CannotBeKept(UnsupportedError):
    """The kernel runs only where Numba itself has compiled it, in the same process."""


def stored_code(
    function: Callable[..., Any], types: tuple[Any, ...], options: Mapping[str, Any], cc: ComputeCapability
) -> KernelCode:
    """The code of a kernel for arguments of these types. Of all threads and processes that ask, one compiles.

    Raises:
        CannotBeKept: the code depends on something that has no words, or on Numba when it is loaded.
        What compiling raises.
    """
    try:
        words = kernel_words(function, types, dict(options), cc)
    except NotInWords as error:
        raise CannotBeKept(str(error)) from error

    def create() -> tuple[dict[str, Any], bytes]:
        from nvmath_device import kernel_code  # with it Numba's compiler, which a hit does not need
        from nvmath_device.numba_backend.compiling import NeedsNumba

        try:
            made = kernel_code.build(function, types, dict(options), cc).to_entry()
        except NeedsNumba as error:
            raise CannotBeKept(str(error)) from error
        if not toolchain.link_matches_loaded(toolchain.link_fingerprint()):
            raise CannotBeKept("this process has loaded another nvJitLink, NVVM or NVRTC than the installed one")
        if kernel_words(function, types, dict(options), cc) != words:
            raise CannotBeKept("something that the kernel refers to was changed while it was compiled")
        return made

    entry = default_store().get_or_create(KIND, words, create)
    return KernelCode.from_entry(entry.meta, entry.blob)
