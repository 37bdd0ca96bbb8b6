# SPDX-License-Identifier: Apache-2.0
"""A kernel as modules to link: Numba's compiler run for a target, and the code of all that the kernel calls."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from numba.cuda import dispatcher as numba_dispatcher
from numba.cuda import types
from numba.cuda.compiler import kernel_fixup
from numba.cuda.core.compiler_lock import global_compiler_lock
from numba.cuda.cudadrv import linkable_code, nvrtc, nvvm
from numba.cuda.cudadrv.libs import get_cudalib
from numba.cuda.descriptor import cuda_target

from nvmath_device.errors import InvalidArgumentError, MissingDependencyError, UnsupportedError
from nvmath_device.lto.toolchain import cuda_extra
from nvmath_device.numba_backend import emit
from nvmath_device.numba_backend.dynamic_shared import DynamicShared
from nvmath_device.numba_backend.for_target import Compilation
from nvmath_device.numba_backend.generated import Generated, RequiredBlock, generate
from nvmath_device.numba_backend.loading import allow_dynamic_shared_memory
from nvmath_device.numba_backend.signatures import argument_types
from nvmath_device.targets import ComputeCapability

Module = tuple[str, bytes]  # kind, as lto.link has them, and code

# Numba's classes of code to link -> the linker's kinds. CUDA C++ is compiled first.
_KINDS: dict[type, str] = {
    linkable_code.LTOIR: "ltoir",
    linkable_code.PTXSource: "ptx",
    linkable_code.Cubin: "cubin",
    linkable_code.Fatbin: "fatbin",
    linkable_code.Object: "object",
    linkable_code.Archive: "library",
}


class NeedsNumba(UnsupportedError):
    """The kernel runs only where Numba itself loads it, in the process that has compiled it."""


@dataclass(frozen=True)
class KernelModules:
    """What a kernel is linked from.

    ``own`` is the kernel itself with its helper functions, ``linked`` all that they call: generated code, what
    ``link=`` gives, CUDA's library for cooperative groups. ``parameters`` are the LLVM types of the flat parameters,
    ``blocks`` what the generated code must be called by, ``least_shared`` bytes of dynamic shared memory that the
    kernel's layouts reach. ``target`` is what to link for: the kernel's, or its chip's where the code needs that.
    """

    entry: str
    own: tuple[Module, ...]
    linked: tuple[Module, ...]
    cooperative: bool
    parameters: tuple[str, ...]
    blocks: tuple[RequiredBlock, ...]
    least_shared: int
    target: ComputeCapability

    @property
    def modules(self) -> tuple[Module, ...]:
        return self.own + self.linked

    @property
    def blocks_as_dicts(self) -> tuple[dict[str, Any], ...]:
        """``blocks`` for JSON."""
        return tuple({"block_dim": list(b.block_dim), "exact": b.exact} for b in self.blocks)


def is_optimised(options: Mapping[str, Any]) -> bool:
    """Whether the linker is to optimise, by the options of ``cuda.jit``.

    A kernel for debugging is not optimised as it is; the generated code in it need not be slow for that.
    """
    return bool(options.get("opt", True) or options.get("debug"))


class Lowered:
    """A kernel that Numba has compiled, while the code that it calls may be missing yet: see :func:`compile_modules`.

    ``generated`` is what of that code is libmathdx's.
    """

    def __init__(
        self,
        kernel: Any,
        signature: Any,
        target: ComputeCapability,
        options: Mapping[str, Any],
        *,
        name: str | None = None,
    ) -> None:
        self._target, self._options = target, options
        self._lto = not options.get("debug")
        arch = (target.major, target.minor)
        with global_compiler_lock:
            library, llvm_kernel = self._compile(kernel, argument_types(signature))
            self._entry = llvm_kernel.name if name is None else name
            if name is not None:  # in the text, where symbols that belong to the kernel begin with its name
                library._llvm_strs = [text.replace(llvm_kernel.name, name) for text in library.llvm_strs]
            linked = _to_link(library, options.get("link") or ())
            self._linked = [code for code in linked if not isinstance(code, DynamicShared)]
            notes = [code for code in linked if isinstance(code, DynamicShared)]
            self._least_shared, self._chips = max((x.end for x in notes), default=0), {x.chip for x in notes}
            self._blocks = _blocks(linked)
            _refuse_what_needs_numba(library, self._linked, arch)
            codes = [library.get_ltoir(cc=arch)] if self._lto else library.get_asm_strs(cc=arch)
            self._own = tuple(("ltoir" if self._lto else "ptx", _bytes(code)) for code in codes)
            self._cooperative = library.use_cooperative
            self._parameters = tuple(str(parameter.type) for parameter in llvm_kernel.args)
        self.generated = [code for code in self._linked if isinstance(code, Generated)]

    def _compile(self, kernel: Any, arguments: tuple[Any, ...]) -> tuple[Any, Any]:
        """Numba's library of the kernel, and the kernel in it."""
        function = getattr(kernel, "py_func", kernel)
        # ``inline`` is about device functions; Numba does not read it off a kernel either.
        options = {name: value for name, value in self._options.items() if name != "inline"}
        compilation = Compilation(self._target)
        with compilation.running():
            result = compilation.function(function, types.void, arguments, options, lto=self._lto)
        library = result.library
        llvm_kernel = library.get_function(result.fndesc.llvm_func_name)
        kernel_fixup(llvm_kernel, debug=not self._lto)
        blocks = _blocks(library._linking_files)
        if blocks and self._lto:  # also where they are called by helpers, of which lowering binds no kernel
            emit.bound_function(llvm_kernel, max(block.block_dim.size for block in blocks))
        nvvm.set_launch_bounds(llvm_kernel, options.get("launch_bounds"))
        if options.get("max_registers"):
            emit.annotate(llvm_kernel, "maxnreg", options["max_registers"])
        return library, llvm_kernel

    def modules(self) -> KernelModules:
        """All to be linked. Generated code that is missing is generated, at the same time."""
        generate(self.generated)
        return KernelModules(
            entry=self._entry,
            own=self._own,
            linked=tuple(_module(code, self._target, self._options) for code in self._linked),
            cooperative=self._cooperative,
            parameters=self._parameters,
            blocks=tuple(sorted(self._blocks)),
            least_shared=self._least_shared,
            target=self._link_target(),
        )

    def _link_target(self) -> ComputeCapability:
        chips = ({code.recipe.chip for code in self.generated} | self._chips) - {""}
        return self._target._replace(arch=min(chips)) if chips else self._target


def compile_modules(
    kernel: Any, signature: Any, target: ComputeCapability, options: Mapping[str, Any], *, name: str | None = None
) -> KernelModules:
    """Compile a kernel and gather what it is linked from. ``options`` are those of ``cuda.jit``.

    ``name`` is what the kernel is called in the code; without it Numba makes a name, another one at each compilation.

    Like ``cuda.jit``, the kernel itself becomes LTO-IR, so that generated code is inlined into it, unless it
    is compiled for debugging, which link-time optimisation does not go with. Generated code that is missing is
    generated at the same time, once Numba has compiled. Needs neither a GPU nor a driver.

    Raises:
        NeedsNumba: an address of this process is in the code, or the code asks for Numba when it is loaded.
        CodegenError: libmathdx refused one of the functions that the kernel calls.
    """
    return Lowered(kernel, signature, target, options, name=name).modules()


def _blocks(linked: Iterable[Any]) -> set[RequiredBlock]:
    """What blocks the code to be linked must be called by."""
    return {code.block for code in linked if isinstance(code, Generated | DynamicShared) and code.block is not None}


# -- what is linked --------------------------------------------------------------------------------------------


def _to_link(library: Any, given: Iterable[Any]) -> list[Any]:
    """What Numba would link, as its objects: what is given, what lowering asked for, libraries of Numba and CUDA."""
    linked = [_linkable(code) for code in (*given, *library._linking_files)]
    if any(name in text for text in library.llvm_strs for name in numba_dispatcher.reshape_funcs):
        folder = os.path.dirname(os.path.abspath(numba_dispatcher.__file__))
        linked.append(_linkable(os.path.join(folder, "reshape_funcs.cu")))
    if library.use_cooperative:
        linked.append(_device_runtime())
    # The order of a set is another one in each process; the same kernel shall be linked in the same order.
    return sorted(dict.fromkeys(linked), key=lambda code: (code.kind != "cu", code.name))


def _device_runtime() -> Any:
    path = get_cudalib("cudadevrt", static=True)
    if not os.path.isfile(path):
        package = "nvidia-cuda-runtime-cu12" if cuda_extra() == "cu12" else "nvidia-cuda-runtime"
        raise MissingDependencyError(
            f"a kernel that synchronises its grid needs CUDA's {os.path.basename(path)}. Run: pip install {package}"
        )
    return _linkable(path)


def _linkable(code: Any) -> Any:
    if isinstance(code, linkable_code.LinkableCode):
        return code
    try:
        return linkable_code.LinkableCode.from_path(os.fspath(code))
    except ValueError:
        raise InvalidArgumentError(
            f"link: {code!r} has an unknown ending; give a .cu, .ptx, .ltoir, .cubin, .fatbin, .o or .a file"
        ) from None
    except OSError as error:
        raise InvalidArgumentError(f"link: {code!r} cannot be read: {error}") from error


def _module(code: Any, target: ComputeCapability, options: Mapping[str, Any]) -> Module:
    if isinstance(code, linkable_code.CUSource):
        compiled, _ = nvrtc.compile(
            code.data, code.name, tuple(target), ltoir=True, lineinfo=bool(options.get("lineinfo"))
        )
        return "ltoir", _bytes(compiled.code)
    kind = next((kind for cls, kind in _KINDS.items() if isinstance(code, cls)), None)
    if kind is None:
        raise UnsupportedError(f"link: {code.name} is a {type(code).__name__}, which cannot be linked ahead of time")
    return kind, _bytes(code.data)


def _bytes(code: Any) -> bytes:
    return code.encode() if isinstance(code, str) else bytes(code)


# -- what cannot leave this process ----------------------------------------------------------------------------


def _refuse_what_needs_numba(library: Any, linked: Iterable[Any], arch: tuple[int, int]) -> None:
    if library.referenced_objects:
        kinds = ", ".join(sorted({type(held).__name__ for held in library.referenced_objects.values()}))
        raise NeedsNumba(
            f"the kernel uses an array in GPU memory from outside of it ({kinds}), whose address would be in the code; "
            "pass it as an argument"
        )
    callbacks = [*library._setup_functions, *library._teardown_functions]
    callbacks += [f for code in linked for f in (code.setup_callback, code.teardown_callback) if f]
    if any(callback is not allow_dynamic_shared_memory for callback in callbacks):
        raise NeedsNumba("code to be linked has a callback for when it is loaded or unloaded, which is Numba's to call")
    if any(code.nrt for code in linked) or _allocates(library, arch):
        raise NeedsNumba("the kernel allocates memory by itself, which Numba prepares when it loads a kernel")


def _allocates(library: Any, arch: tuple[int, int]) -> bool:
    """Whether what is left after optimising calls Numba's allocator; only where that is switched on."""
    if not cuda_target.target_context.enable_nrt:
        return False
    return re.search(r"\.extern\s+\.func[^;]*\bNRT_", library.get_asm_str(cc=arch)) is not None
