# SPDX-License-Identifier: Apache-2.0
"""Calls into libmathdx with every status checked, and handles that are destroyed when their block ends.

:func:`call` reaches every function of ``mathdx_prototypes.PROTOTYPES``; the classes cover what code
generation needs. Nothing is loaded on import, and a function is bound when it is first called: a libmathdx
that lacks it still serves the rest, and :func:`supports` tells beforehand. Sizes are in bytes, dimensions in
elements.

libmathdx compiles under one global lock: calls from several threads are safe but wait for each other.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import Any, Self, TypeVar

from nvmath_device.errors import CodegenError, InvalidArgumentError, UnsupportedError
from nvmath_device.lto import toolchain
from nvmath_device.lto.mathdx_enums import (
    BlasOperatorType,
    BlasTraitType,
    FftKnobType,
    FftOperatorType,
    FftTraitType,
    Option,
    StatusType,
    ValueType,
)
from nvmath_device.lto.mathdx_prototypes import PROTOTYPES, SINCE, TABLE_VERSION, TEXT

_STATUS_WORDS = {
    StatusType.INVALID_VALUE: "a value is out of range or misplaced, or something required is not set",
    StatusType.INTERNAL_ERROR: "there is no such operator, option or trait, or no implementation of this",
    StatusType.COMPILATION_ERROR: "the generated source did not compile: mostly, a combination not offered",
    StatusType.CUFFT_ERROR: "a library that libmathdx depends on failed",
    StatusType.FILE_ERROR: "a file could not be written: not enough space, or no permission",
}

# Features that not every supported libmathdx has -> (the function that comes with it, its name in a message).
_FEATURES = {
    "blas_finalize_many": ("cublasdxFinalizeCodes", "generating several GEMMs in one call"),
    "blas_pipelines": ("cublasdxFinalizeCodes", "a pipelined GEMM"),
    "blas_trsm": ("cublasdxSideToStr", "the triangular solve of cuBLASDx"),
    "fft_finalize_many": ("cufftdxFinalizeCodes", "generating several FFTs in one call"),
    "fft_device_functions": (
        "cufftdxDeviceFunctionTypeToStr",
        "choosing FFT device functions (execute, fft_id, batch_id, is_thread_active)",
    ),
    "fft_transposition": ("cufftdxTranspositionToStr", "the FFT transposition setting"),
    "fft_thread_layout": ("cufftdxThreadLayoutToStr", "the FFT thread layout setting"),
    "ptx": ("commondxGetCodePTX", "PTX output"),
}

_SMALLEST_HANDLE = 2**56  # seen: handles use the top byte (0.3.1 and 0.4.2); as numbers they tell nothing

_bound: dict[str, Callable[..., Any]] = {}
_T = TypeVar("_T")


def call(name: str, *args: Any) -> Any:
    """Call a function of libmathdx by its C name. Returns its text where it returns text, else None.

    Arguments are what ctypes takes for the prototype: integers and enumeration members, ``bytes``, ``byref``,
    arrays. Raises :class:`CodegenError` for a status other than success, with the library's own text where
    this call produced one; :class:`UnsupportedError` where the installed libmathdx lacks the function.
    """
    function = _bind(name)
    if PROTOTYPES[name][0] is TEXT:
        text = function(*args)
        return None if text is None else text.decode()
    status, log = _status_and_log(function, args)
    if status != StatusType.SUCCESS:
        raise CodegenError(_failure(name, args, status), status=status, log=log)
    return None


def supports(feature: str) -> bool:
    """Whether the installed libmathdx has a feature, told by the presence of a function.

    ``feature`` is a C function name or one of ``blas_finalize_many``, ``blas_pipelines``, ``blas_trsm``,
    ``fft_finalize_many``, ``fft_device_functions``, ``fft_transposition``, ``fft_thread_layout``, ``ptx``. Another name
    raises :class:`InvalidArgumentError`. Loads libmathdx.
    """
    return _has(_feature(feature)[0])


def require(feature: str) -> None:
    """Raise :class:`UnsupportedError`, naming feature and versions, unless :func:`supports` it."""
    function, words = _feature(feature)
    if not _has(function):
        raise UnsupportedError(_too_old(function, words))


def _feature(feature: str) -> tuple[str, str]:
    if feature in _FEATURES:
        return _FEATURES[feature]
    if feature in PROTOTYPES:
        return feature, feature
    raise InvalidArgumentError(
        f"feature: {feature!r} is not known; allowed are {', '.join(_FEATURES)} and names of functions"
    )


def _has(function: str) -> bool:
    return hasattr(toolchain.load_mathdx(), function)


def _too_old(function: str, words: str) -> str:
    installed = ".".join(map(str, toolchain.mathdx_version()))
    since = ".".join(map(str, SINCE.get(function, TABLE_VERSION)))
    return (
        f"{words} needs libmathdx {since} or newer, but {installed} is installed. "
        'Update it; the newest is that of CUDA 13: pip install -U "nvmath-device[cu13]"'
    )


def _bind(name: str) -> Callable[..., Any]:
    function = _bound.get(name)
    if function is None:
        if name not in PROTOTYPES:
            raise InvalidArgumentError(f"name: libmathdx has no function {name!r}; see mathdx_prototypes")
        try:
            function = getattr(toolchain.load_mathdx(), name)
        except AttributeError:
            raise UnsupportedError(_too_old(name, name)) from None
        function.restype, function.argtypes = PROTOTYPES[name]
        _bound[name] = function
    return function


def _failure(name: str, args: Sequence[Any], status: int) -> str:
    known = status in _STATUS_WORDS
    words = _STATUS_WORDS[StatusType(status)] if known else "this status is not in libmathdx 0.4.2's headers"
    label = StatusType(status).name.replace("_", " ").lower() if known else "unknown failure"
    return f"{name}({', '.join(map(_shown, args))}) failed: {label} (status {status}): {words}"


def _shown(argument: Any) -> str:
    if isinstance(argument, IntEnum):
        return f"{type(argument).__name__}.{argument.name}"
    if isinstance(argument, bytes):
        return repr(argument.decode(errors="replace"))
    if isinstance(argument, ctypes.Array) and argument._type_ in (ctypes.c_longlong, ctypes.c_int):
        return str(list(argument))
    if isinstance(argument, int):
        return str(argument) if argument < _SMALLEST_HANDLE else "<handle>"
    return "..."


def _status_and_log(function: Callable[..., int], args: Sequence[Any]) -> tuple[int, str]:
    """Call, and fetch the text that this call left behind, if any.

    libmathdx keeps one text per host thread and never clears it, and some failures with status 3 leave none.
    So where a text of an earlier failure lingers, the call is made in a new thread, which has none.
    """
    if _last_error_size() == 0:
        return _call_then_log(function, args)
    return _in_new_thread(lambda: _call_then_log(function, args))


def _call_then_log(function: Callable[..., int], args: Sequence[Any]) -> tuple[int, str]:
    status = function(*args)
    if status != StatusType.COMPILATION_ERROR or not (size := _last_error_size()):
        return status, ""
    text, code = ctypes.create_string_buffer(size), ctypes.c_int()
    if _bind("commondxGetLastErrorStr")(ctypes.byref(code), size, text) != StatusType.SUCCESS:
        return status, ""
    return status, text.value.decode(errors="replace").strip()


def _last_error_size() -> int:
    """Bytes of the calling thread's error text; 0 where there is none."""
    size = ctypes.c_size_t()
    status = _bind("commondxGetLastErrorStrSize")(ctypes.byref(size))
    return size.value if status == StatusType.SUCCESS else 0


def _in_new_thread(work: Callable[[], _T]) -> _T:
    results: list[_T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # handed over to the caller
            errors.append(error)

    thread = threading.Thread(target=run, name="nvmath_device.mathdx", daemon=True)
    thread.start()
    interrupt: KeyboardInterrupt | None = None
    while thread.is_alive():
        try:
            thread.join()
        except KeyboardInterrupt as error:  # handles in use must outlive the call: wait, then obey
            interrupt = error
    if interrupt or errors:
        raise interrupt or errors[0]
    return results[0]


class _Handle:
    """An object inside libmathdx, destroyed by :meth:`close` or at the end of a ``with`` block."""

    _create: str
    _destroy: str

    def __init__(self) -> None:
        handle = ctypes.c_longlong()
        call(self._create, ctypes.byref(handle))
        self._value: int | None = handle.value

    @property
    def handle(self) -> int:
        """The library's number for this object. Raises :class:`InvalidArgumentError` after :meth:`close`."""
        if self._value is None:
            raise InvalidArgumentError(f"{type(self).__name__}: used after close()")
        return self._value

    def close(self) -> None:
        """Destroy the object. Closing twice is allowed."""
        if self._value is not None:
            value, self._value = self._value, None
            call(self._destroy, value)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Code(_Handle):
    """A container that descriptors are finalized into. Set its target to the SM of the descriptors.

    libmathdx does not compare the two targets.
    """

    _create = "commondxCreateCode"
    _destroy = "commondxDestroyCode"

    def set_int64(self, option: Option, value: int) -> None:
        """Set an integer option, such as ``TARGET_SM`` to 900."""
        call("commondxSetCodeOptionInt64", self.handle, option, value)

    def set_int64s(self, option: Option, values: Sequence[int]) -> None:
        """Set an option of several integers: ``TARGET_SM`` to ``(900, ArchModifier.ARCH_SPECIFIC)``."""
        call("commondxSetCodeOptionInt64s", self.handle, option, len(values), _int64s(values))

    def set_str(self, option: Option, text: str) -> None:
        """Set a text option, such as one ``EXTRA_NVRTC_ARGS``."""
        call("commondxSetCodeOptionStr", self.handle, option, text.encode())

    def finalize(self, *descriptors: _Descriptor) -> None:
        """Generate the code of one or more descriptors of one library. Seconds of a core; no GPU needed.

        Several descriptors cost less together than one by one, and come out as **one** LTO-IR holding all of
        their functions. Raises :class:`CodegenError` with libmathdx's text where it refuses;
        :class:`UnsupportedError` for several descriptors where the installed libmathdx takes one at a time.
        """
        libraries = {descriptor.library for descriptor in descriptors}
        if len(libraries) != 1:
            raise InvalidArgumentError(
                f"descriptors: {len(descriptors)} descriptors of {sorted(libraries) or 'no library'} given; "
                "allowed are one or more of one library"
            )
        library = libraries.pop()
        if len(descriptors) == 1:
            call(f"{library}FinalizeCode", self.handle, descriptors[0].handle)
        else:
            require("blas_finalize_many" if library == "cublasdx" else "fft_finalize_many")
            handles = _int64s([descriptor.handle for descriptor in descriptors])
            call(f"{library}FinalizeCodes", self.handle, len(descriptors), handles)

    def ltoirs(self) -> list[bytes]:
        """Every LTO-IR of finalized code; one in every GEMM and FFT tried with libmathdx 0.4.2."""
        count = ctypes.c_size_t()
        call("commondxGetCodeNumLTOIRs", self.handle, ctypes.byref(count))
        sizes = (ctypes.c_size_t * count.value)()
        call("commondxGetCodeLTOIRSizes", self.handle, count.value, sizes)
        buffers = [ctypes.create_string_buffer(size) for size in sizes]
        pointers = (ctypes.c_void_p * count.value)(*map(ctypes.addressof, buffers))
        call("commondxGetCodeLTOIRs", self.handle, count.value, pointers)
        return [buffer.raw for buffer in buffers]


class _Descriptor(_Handle):
    """What cublasdx and cufftdx descriptors have in common."""

    library: str

    def set_int64(self, operator: IntEnum, value: int) -> None:
        """Set an operator of one value."""
        call(f"{self.library}SetOperatorInt64", self.handle, operator, value)

    def set_int64s(self, operator: IntEnum, values: Sequence[int]) -> None:
        """Set an operator of several values, in the order of the header (M, N, K; A, B, C; x, y, z)."""
        call(f"{self.library}SetOperatorInt64s", self.handle, operator, len(values), _int64s(values))

    def set_str(self, option: Option, text: str) -> None:
        """Set a text option; ``SYMBOL_NAME`` names the generated function exactly."""
        call(f"{self.library}SetOptionStr", self.handle, option, text.encode())

    def trait_int64(self, trait: IntEnum) -> int:
        """A trait of one integer."""
        value = ctypes.c_longlong()
        call(f"{self.library}GetTraitInt64", self.handle, trait, ctypes.byref(value))
        return value.value

    def trait_int64s(self, trait: IntEnum, count: int = 3) -> tuple[int, ...]:
        """A trait of ``count`` integers."""
        values = (ctypes.c_longlong * count)()
        call(f"{self.library}GetTraitInt64s", self.handle, trait, count, values)
        return tuple(values)

    def trait_str(self, trait: IntEnum) -> str:
        """A trait of text, such as the function's symbol."""
        size = ctypes.c_size_t()
        call(f"{self.library}GetTraitStrSize", self.handle, trait, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        call(f"{self.library}GetTraitStr", self.handle, trait, size.value, text)
        return text.value.decode()


class BlasDescriptor(_Descriptor):
    """A cuBLASDx descriptor; operators are :class:`BlasOperatorType`, traits :class:`BlasTraitType`.

    The first trait of a descriptor, even its symbol, makes libmathdx compile (3 to 9 s). Code that sets block
    dimensions and leading dimensions itself needs none.
    """

    library = "cublasdx"
    _create = "cublasdxCreateDescriptor"
    _destroy = "cublasdxDestroyDescriptor"
    Operator = BlasOperatorType
    Trait = BlasTraitType


class FftDescriptor(_Descriptor):
    """A cuFFTDx descriptor; operators are :class:`FftOperatorType`, traits :class:`FftTraitType`.

    Traits take milliseconds and need every required operator, the direction among them.
    """

    library = "cufftdx"
    _create = "cufftdxCreateDescriptor"
    _destroy = "cufftdxDestroyDescriptor"
    Operator = FftOperatorType
    Trait = FftTraitType

    def trait_value_type(self, trait: FftTraitType) -> ValueType:
        """Element type of the computation, the input or the output."""
        value = ctypes.c_int()
        call("cufftdxGetTraitCommondxDataType", self.handle, trait, ctypes.byref(value))
        return ValueType(value.value)

    def is_supported(self) -> bool:
        """Whether the library knows an implementation. Generating code may still refuse what is true here."""
        value = ctypes.c_int()
        call("cufftdxIsSupported", self.handle, ctypes.byref(value))
        return value.value != 0

    def knobs(self, knobs: Iterable[FftKnobType]) -> list[tuple[int, ...]]:
        """Every legal setting of the given knobs: one tuple a setting, its values in the order given."""
        wanted = list(knobs)
        types = (ctypes.c_int * len(wanted))(*wanted)
        size = ctypes.c_size_t()
        call("cufftdxGetKnobInt64Size", self.handle, len(wanted), types, ctypes.byref(size))
        values = (ctypes.c_longlong * size.value)()
        call("cufftdxGetKnobInt64s", self.handle, len(wanted), types, size.value, values)
        return list(zip(*[iter(values)] * len(wanted), strict=True))


def _int64s(values: Sequence[int]) -> Any:
    return (ctypes.c_longlong * len(values))(*values)
