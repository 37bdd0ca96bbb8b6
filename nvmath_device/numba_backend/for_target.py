# SPDX-License-Identifier: Apache-2.0
"""Runs Numba's CUDA compiler for a given target, with or without a device, helper device functions included.

Numba compiles a kernel for a target that it is told, but asks the current device when the kernel calls a helper, a
``cuda.jit(device=True)`` function or an ``overload`` of somebody's: without a driver that fails, and with one the
helper is made for the device instead of for the target, and kept in the user's own object. Here

- the typing and target contexts are shallow copies of Numba's own, which share all that is registered there. The
  copy of the typing context answers for a helper with a dispatcher of our own, made for one compilation alone. It is
  asked for every global, closure variable, module attribute and member of a tuple, so helpers need not be looked for,
  the user's objects stay untouched, and a helper is compiled as it is now.
- while a compilation runs, this thread's current device is one that knows nothing but its compute capability. That is
  for ``overload``, whose templates make dispatchers that ask the device. Other threads do not see it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from numba.cuda import compiler, types, utils
from numba.cuda.core.callconv import CUDACallConv
from numba.cuda.cudadrv import devices
from numba.cuda.descriptor import cuda_target
from numba.cuda.dispatcher import CUDADispatcher
from numba.cuda.flags import CUDAFlags
from numba.cuda.target import CUDATypingContext
from numba.cuda.types.ext_types import CUDADispatcher as CUDADispatcherType

from nvmath_device.targets import ComputeCapability

_ONE_CHIP = ((9, 0),)


class Compilation:
    """Everything that is compiled for one kernel: its target and the helpers met so far.

    Use it under Numba's compiler lock.
    """

    def __init__(self, target: ComputeCapability) -> None:
        self.arch = (target.major, target.minor)
        # Of these devices there is but one chip, so code may always use what it alone has.
        chip = target.arch or ("a" if self.arch in _ONE_CHIP else "")
        self._flags_arch: tuple[Any, ...] = (*self.arch, chip) if chip else self.arch
        self._typing, self._context = _contexts(self.arch)
        # By the user's dispatcher. Numba's types refer to dispatchers weakly: this is what keeps ours alive.
        self._helpers: dict[Any, _Helper] = {}

    def function(
        self, function: Any, return_type: Any, args: tuple[Any, ...], options: dict[str, Any], *, lto: bool = False
    ) -> Any:
        """Numba's compile result of one function, lowered to LLVM IR. ``options`` are those of ``cuda.jit``."""
        debug = bool(options.get("debug"))
        nvvm = {"fastmath": options.get("fastmath", False), "opt": 3 if options.get("opt", True) else 0}
        if debug:
            nvvm["g"] = None
        if lto:
            nvvm["gen-lto"] = None
        flags = _flags(self._flags_arch, options, nvvm)
        with utils.numba_target_override():
            result = compiler.compile_extra(
                typingctx=self._typing,
                targetctx=self._context,
                func=function,
                args=args,
                return_type=return_type,
                flags=flags,
                locals={},
                pipeline_class=compiler.CUDACompiler,
                call_conv=CUDACallConv(self._context),
                abi_info={},
            )
        result.library.finalize()
        return result

    def helper(self, dispatcher: Any) -> Any:
        """Our dispatcher for a user's one."""
        if isinstance(dispatcher, _Helper):
            return dispatcher
        found = self._helpers.get(dispatcher)
        if found is None:
            found = self._helpers[dispatcher] = _Helper(dispatcher, self)
            found.take_signatures(dispatcher)
        return found

    @contextmanager
    def running(self) -> Iterator[None]:
        """Compile in here: helpers are this compilation's, and this thread's current device is the target."""
        runtime = devices._runtime
        device, compilation = runtime._get_attached_context(), self._typing.compilation
        runtime._set_attached_context(_Context(self.arch))
        self._typing.compilation = self
        try:
            yield
        finally:
            self._typing.compilation = compilation
            runtime._set_attached_context(device)
            self._helpers.clear()  # they refer to this object, and Numba forgets their code when they go


@cache
def _contexts(arch: tuple[int, int]) -> tuple[_Typing, Any]:
    """Typing and target context. One pair a target for ever: Numba keeps what it makes of an ``overload`` by them."""
    typing = _Typing()
    return typing, cuda_target.target_context.subtarget(typing_context=typing)


class _Context:
    """What takes the place of a CUDA context while no device is to be asked."""

    def __init__(self, arch: tuple[int, int]) -> None:
        self.device = _Device(arch)


class _Device:
    def __init__(self, arch: tuple[int, int]) -> None:
        self.compute_capability = arch


class _Typing(CUDATypingContext):
    """Numba's typing context, which answers for the helpers of the compilation that is running."""

    compilation: Compilation | None = None

    def __init__(self) -> None:
        # Not the base's: what is registered is shared with Numba's own context, not loaded once more.
        self.__dict__.update(cuda_target.typing_context.__dict__)

    def resolve_value_type(self, val: Any) -> Any:
        return self._own(super().resolve_value_type(val))

    def _own(self, typ: Any) -> Any:
        if isinstance(typ, CUDADispatcherType):
            assert self.compilation is not None  # this context is used by running compilations alone
            return CUDADispatcherType(self.compilation.helper(typ.dispatcher))
        if isinstance(typ, types.BaseTuple) and any(_holds_dispatcher(t) for t in typ):
            return types.BaseTuple.from_types([self._own(t) for t in typ], getattr(typ, "instance_class", None))
        return typ


def _holds_dispatcher(typ: Any) -> bool:
    if isinstance(typ, types.BaseTuple):
        return any(_holds_dispatcher(t) for t in typ)
    return isinstance(typ, CUDADispatcherType)


class _Helper(CUDADispatcher):
    """A device function compiled for the target of one compilation."""

    def __init__(self, original: Any, compilation: Compilation) -> None:
        super().__init__(original.py_func, targetoptions=dict(original.targetoptions))
        self._compilation = compilation

    def take_signatures(self, original: Any) -> None:
        """A helper declared with signatures has these alone, and converts its arguments to them."""
        if not original._can_compile:
            for args, result in original.overloads.items():
                self.compile_device(args, result.signature.return_type)
            self.disable_compile()

    def compile_device(self, args: tuple[Any, ...], return_type: Any = None) -> Any:
        found = self.overloads.get(args)
        if found is None:
            with self._compiling_counter:
                options = {**self.targetoptions, "opt": bool(self.targetoptions.get("opt"))}
                found = self._compilation.function(self.py_func, return_type, args, options)
                self.overloads[args] = found
                found.target_context.insert_user_function(found.entry_point, found.fndesc, [found.library])
        return found


def _flags(arch: tuple[Any, ...], options: dict[str, Any], nvvm_options: dict[str, Any]) -> CUDAFlags:
    """The same flags as numba.cuda.compiler.compile_cuda sets."""
    debug, lineinfo = bool(options.get("debug")), bool(options.get("lineinfo"))
    flags = CUDAFlags()
    flags.no_compile = flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
    flags.inline = options.get("inline", "never")
    flags.error_model = "python" if debug else "numpy"
    flags.nvvm_options = nvvm_options
    flags.compute_capability = arch
    flags.lto = False
    if debug or lineinfo:
        flags.debuginfo = True
    if lineinfo:
        flags.dbg_directives_only = True
    if debug:
        flags.dbg_extend_lifetimes = True
    if options.get("forceinline"):
        flags.forceinline = True
    if options.get("fastmath"):
        flags.fastmath = True
    return flags
