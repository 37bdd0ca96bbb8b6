# SPDX-License-Identifier: Apache-2.0
"""Machine code of a kernel with all that a launch has to know of it, and how it is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nvmath_device.errors import LinkError
from nvmath_device.frozen import frozen
from nvmath_device.launch_limits import DeviceLimits, Fit, fit_of, too_much_static_shared
from nvmath_device.lto.cubin import Resources, read_resources
from nvmath_device.targets import ComputeCapability


@frozen()
class KernelCode:
    """A kernel as machine code.

    Attributes:
        entry: name of the kernel in ``cubin``.
        sm: target, such as ``"sm_90"``.
        cubin: SASS in an ELF file, to be loaded by ``cuLibraryLoadData`` and its like.
        parameters: the launch record, one dict an argument: see :mod:`nvmath_device.launch_record`.
        cooperative: whether the kernel synchronises its grid, and so needs a cooperative launch.
        resources: registers, shared memory and what else it takes.
        blocks: what the generated code in it must be called by, without repeats: ``{"block_dim": [128, 1, 1], "exact":
            False}``, a block of so many threads, or with ``exact`` just these extents.
        least_shared: bytes of dynamic shared memory that a launch must give: where the parts of its ``shared_layout``
            end.
    """

    entry: str
    sm: str
    cubin: bytes
    parameters: tuple[dict[str, Any], ...]
    cooperative: bool
    resources: Resources
    blocks: tuple[dict[str, Any], ...] = ()
    least_shared: int = 0

    def __repr__(self) -> str:
        return f"KernelCode({self.entry!r}, {self.sm}, <{len(self.cubin)} bytes>, {self.resources})"

    def fit(self, name: str, limits: DeviceLimits, *, grid: Any, block: Any, shared: int) -> Fit:
        """Whether a launch fits; ``name`` is what the kernel is called in messages."""
        return fit_of(
            name, self.resources, limits, grid=grid, block=block, shared=shared, cooperative=self.cooperative,
            blocks=self.blocks, least_shared=self.least_shared,
        )  # fmt: skip

    def to_entry(self) -> tuple[dict[str, Any], bytes]:
        """Meta data for JSON, and the machine code; :meth:`from_entry` makes the object again."""
        return {
            "entry": self.entry,
            "sm": self.sm,
            "parameters": list(self.parameters),
            "cooperative": self.cooperative,
            "resources": self.resources.as_dict(),
            "blocks": list(self.blocks),
            "least_shared": self.least_shared,
        }, self.cubin

    @classmethod
    def from_entry(cls, meta: Mapping[str, Any], blob: bytes) -> KernelCode:
        """The object of which :meth:`to_entry` made these. No library is loaded."""
        return cls(
            meta["entry"],
            meta["sm"],
            blob,
            tuple(meta["parameters"]),
            meta["cooperative"],
            Resources(**meta["resources"]),
            tuple(meta["blocks"]),
            meta["least_shared"],
        )


def build(
    function: Callable[..., Any], argtypes: Sequence[Any], options: Mapping[str, Any], cc: ComputeCapability
) -> KernelCode:
    """Compile a kernel for Numba types of its arguments and link it for a target.

    ``options`` are those of ``cuda.jit``; what does not shape code (``extensions``, ``shared_memory_carveout``,
    ``lto``, ``cache``) is not looked at. Code that libmathdx generates comes from the code store, or is put there; the
    kernel itself is not. Needs neither a GPU nor a driver.

    Raises:
        NeedsNumba: (an UnsupportedError) the kernel cannot leave this process: it has an address in its code, or asks
            for Numba when it is loaded.
        UnsupportedError: an argument's type cannot be passed.
        LaunchError: shared arrays of constant size take more than 48 KiB.
        LinkError, CodegenError, MissingDependencyError: as said there.
        numba.core.errors.TypingError: the function cannot be compiled.
    """
    from nvmath_device.launch_record import check_record, record_of
    from nvmath_device.lto.link import link
    from nvmath_device.numba_backend.compiling import compile_modules, is_optimised
    from nvmath_device.numba_backend.supported import check_numba_cuda

    check_numba_cuda()
    parameters = record_of(function, argtypes)
    kernel = compile_modules(function, tuple(argtypes), cc, options)
    check_record(parameters, kernel.parameters)
    try:
        cubin = link(kernel.modules, sm=kernel.target, optimize=is_optimised(options))
    except LinkError as error:
        name = getattr(function, "__qualname__", kernel.entry)
        raise too_much_static_shared(name, str(error)) or error from error.__cause__
    resources = read_resources(cubin, kernel.entry)
    return KernelCode(
        kernel.entry, cc.sm, cubin, parameters, kernel.cooperative, resources, kernel.blocks_as_dicts,
        kernel.least_shared,
    )  # fmt: skip
