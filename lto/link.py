# SPDX-License-Identifier: Apache-2.0
"""LTO-IR, PTX and machine code to one program with nvJitLink; needs no GPU and no driver."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from nvmath_device.errors import LinkError
from nvmath_device.lto import toolchain
from nvmath_device.targets import ComputeCapability

# What can be linked. An object is a host's object file with device code in it, a library an archive of these.
KINDS = ("ltoir", "ptx", "cubin", "fatbin", "object", "library")

# What ptxas says -> what to do.
_ADVICE = {
    "too much global constant data": (
        "Arrays from outside a kernel become constants, of 64 KiB at most: pass them as arguments."
    ),
    "too much shared data": (
        "Shared arrays of constant size have 48 KiB at most: make one of shape 0, which is all of the launch's "
        "dynamic shared memory, and slice it."
    ),
}


def link(
    modules: Sequence[tuple[str, bytes]],
    *,
    sm: ComputeCapability,
    output: str = "cubin",
    optimize: bool = True,
) -> bytes:
    """Link ``(kind, code)`` modules, kind one of :data:`KINDS`, for one target.

    ``output`` is ``"cubin"`` or ``"ptx"``; PTX has what LTO-IR and PTX there is among the modules. Unused variables
    are dropped: without that a GEMM kernel of 7 KB carries 2.9 MB of constants and names. Without ``optimize``
    code is slow, large and spills.

    Raises:
        LinkError: with nvJitLink's log, or because compiler and linker versions do not go together.
    """
    from cuda.core import Linker, LinkerOptions, ObjectCode

    toolchain.check_link_compatible()
    codes = [getattr(ObjectCode, f"from_{kind}")(code, name=f"{kind}_{i}") for i, (kind, code) in enumerate(modules)]
    options = LinkerOptions(
        arch=sm.sm,
        # Asked for without any LTO-IR, nvJitLink fails for want of a module to optimise.
        link_time_optimization=True if any(kind == "ltoir" for kind, _ in modules) else None,
        ptx=True if output == "ptx" else None,
        optimization_level=None if optimize else 0,
        optimize_unused_variables=True,
    )
    started = time.monotonic()
    try:
        linker = Linker(*codes, options=options)
        result = linker.link(output)
    except Exception as error:
        hint = next((f"\n{advice}" for text, advice in _ADVICE.items() if text in str(error)), "")
        raise LinkError(f"nvJitLink could not link {len(codes)} modules for {sm.sm}: {error}{hint}") from error
    binary = bytes(result.code).rstrip(b"\0") if output == "ptx" else bytes(result.code)
    logging.getLogger("nvmath_device").info(
        "linked a %s for %s in %.1f s (%d bytes)",
        output,
        sm.sm,
        time.monotonic() - started,
        len(binary),
        extra={"event": output},
    )
    return binary
