# SPDX-License-Identifier: Apache-2.0
"""cuBLASLt's objects: handles, descriptors, layouts, preferences, and a product ready to be called.

Every status is checked (:mod:`nvmath_device.host.cublaslt_calls` says how), and objects are destroyed by
:meth:`close`, at the end of a ``with`` block, or with the Python object. Dimensions, leading dimensions and strides
are in elements, workspaces in bytes; addresses are integers. Descriptors, layouts, preferences and the configuration
of algorithms need no GPU; a :class:`Handle` does, and so does everything that takes one.

An object may be used from any thread, but not changed by one while another uses it.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar, Self

from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError, UnsupportedError
from nvmath_device.host import cublaslt_calls as calls
from nvmath_device.host.cublaslt_attributes import FIELDS, Field, shown
from nvmath_device.host.cublaslt_enums import (
    ComputeType,
    CudaDataType,
    EmulationDescAttribute,
    MatmulDescAttribute,
    MatmulPreferenceAttribute,
    MatrixLayoutAttribute,
    MatrixTransformDescAttribute,
    Status,
)
from nvmath_device.host.cublaslt_prototypes import TABLE_VERSION, MatmulAlgoStruct

if TYPE_CHECKING:
    from nvmath_device.host.cublaslt_algorithms import Algo


class Owned:
    """An object inside cuBLASLt that this one owns."""

    _create: ClassVar[str]
    _destroy: ClassVar[str]
    _address: int | None = None

    def __init__(self, *args: Any) -> None:
        self._destroy_function = calls.bind(self._destroy)  # bound now: __del__ may run very late
        address = ctypes.c_void_p()
        calls.call(self._create, ctypes.byref(address), *args)
        self._address = address.value

    @property
    def address(self) -> int:
        """The ``cublasLt..._t``. Raises :class:`InvalidArgumentError` after :meth:`close`."""
        if self._address is None:
            raise InvalidArgumentError(f"{type(self).__name__}: used after close()")
        return self._address

    def close(self) -> None:
        """Destroy the object. Closing twice is allowed."""
        if self._address is not None:
            address, self._address = self._address, None
            if status := self._destroy_function(address):
                raise calls.failure(self._destroy, (address,), status)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if self._address is not None and not sys.is_finalizing():
            self._destroy_function(self._address)
            self._address = None


class Handle(Owned):
    """A cuBLASLt context of the current CUDA device.

    Raises :class:`~nvmath_device.errors.HostLibraryError` where there is no usable device or driver.
    """

    _create, _destroy = "cublasLtCreate", "cublasLtDestroy"

    def __init__(self) -> None:
        super().__init__()


class BorrowedHandle(Handle):
    """A ``cublasLtHandle_t`` that somebody else owns; closing this object leaves it alone."""

    def __init__(self, address: int) -> None:
        self._borrowed = address

    @property
    def address(self) -> int:
        return self._borrowed


def _field(attribute: IntEnum, allowed: type[IntEnum]) -> Field:
    """Storage of an attribute; members of two enumerations with one number are equal, so the type is asked."""
    if type(attribute) is not allowed:
        raise ArgumentTypeError(f"attribute: {shown(attribute)} given; allowed are members of {allowed.__name__}")
    return FIELDS[allowed][attribute]


class Attributed:
    """What has attributes. ``_object()`` is what the C functions take for the object itself."""

    Attribute: ClassVar[type[IntEnum]]
    _setter: ClassVar[str]
    _getter: ClassVar[str]

    def _object(self) -> Any:
        raise NotImplementedError

    def set(self, attribute: Any, value: Any) -> None:
        """Set an attribute: to a member of its enumeration, an integer, a float, or an address (``None``: null).

        Raises :class:`ArgumentTypeError` and :class:`InvalidArgumentError` for a value that its C type cannot hold,
        :class:`UnsupportedError` where this cuBLASLt lacks the attribute. Whether the value makes sense is mostly
        asked by heuristics only.
        """
        field = _field(attribute, self.Attribute)
        stored = field.pack(attribute, value)
        args = (self._object(), attribute, ctypes.byref(stored), ctypes.sizeof(stored))
        if status := calls.bind(self._setter)(*args):
            raise self._attribute_failure(self._setter, args, status, attribute, value)

    def get(self, attribute: Any) -> Any:
        """The value of an attribute: a member where its number has one, a number, an address (0: null), or a tuple.

        Raises :class:`UnsupportedError` where this cuBLASLt lacks the attribute.
        """
        field = _field(attribute, self.Attribute)
        count = self._size(self._getter, attribute) // ctypes.sizeof(field.ctype) if field.array else 1
        stored, written = (field.ctype * count)(), ctypes.c_size_t()
        args = (self._object(), attribute, ctypes.byref(stored), ctypes.sizeof(stored), ctypes.byref(written))
        if status := calls.bind(self._getter)(*args):
            raise self._attribute_failure(self._getter, args, status, attribute)
        values = tuple(field.read(field.ctype(element)) for element in stored)
        return values if field.array else values[0]

    def supports(self, attribute: Any) -> bool:
        """Whether the loaded cuBLASLt has an attribute, in the size of the table."""
        field = _field(attribute, self.Attribute)
        size = self._size(self._getter, attribute)
        return bool(size) and (field.array or size == ctypes.sizeof(field.ctype))

    def _lacks(self, attribute: IntEnum) -> bool:
        """Whether an attribute is missing because the loaded cuBLASLt is too old."""
        return calls.version() < TABLE_VERSION and not self.supports(attribute)

    def _size(self, getter: str, attribute: IntEnum) -> int:
        """Bytes of an attribute, 0 where the library does not know it."""
        written = ctypes.c_size_t()
        status = calls.bind(getter)(self._object(), attribute, None, 0, ctypes.byref(written))
        return 0 if status else written.value

    def _attribute_failure(
        self, name: str, args: tuple[Any, ...], status: int, attribute: IntEnum, *value: Any
    ) -> Exception:
        if status == Status.INVALID_VALUE and self._lacks(attribute):
            return UnsupportedError(calls.too_old(shown(attribute)))
        return calls.failure(name, ("...", attribute, *map(shown, value or ("...",)), *args[3:]), status)


class _Described(Owned, Attributed):
    """An owned object with attributes."""

    def _object(self) -> int:
        return self.address

    def _set_all(self, attributes: Mapping[Any, Any]) -> None:
        try:
            for attribute, value in attributes.items():
                self.set(attribute, value)
        except BaseException:
            self.close()
            raise

    def setter(self, attribute: Any) -> Callable[[int], None]:
        """A function that sets one integer or address attribute with no checks but the status.

        About three times as fast as :meth:`set`. The value must fit the C type: bits beyond it are dropped. Not to be
        called from two threads at once, nor after :meth:`close`.
        """
        cell = _field(attribute, self.Attribute).ctype()
        function, name, here = calls.bind(self._setter), self._setter, self
        args = (ctypes.c_void_p(self.address), int(attribute), ctypes.byref(cell), ctypes.sizeof(cell))

        def put(value: int) -> None:
            cell.value = value
            if status := function(*args):
                raise here._attribute_failure(name, args, status, attribute, value)

        return put


class MatmulDesc(_Described):
    """What is computed: compute and scale type, transpositions, epilogue, pointers of bias, aux and scales."""

    _create, _destroy = "cublasLtMatmulDescCreate", "cublasLtMatmulDescDestroy"
    _setter, _getter = "cublasLtMatmulDescSetAttribute", "cublasLtMatmulDescGetAttribute"
    Attribute = MatmulDescAttribute

    def __init__(
        self,
        compute_type: ComputeType,
        scale_type: CudaDataType,
        attributes: Mapping[MatmulDescAttribute, Any] | None = None,
    ) -> None:
        super().__init__(compute_type, scale_type)
        self._set_all(attributes or {})


_EXTENTS = (MatrixLayoutAttribute.ROWS, MatrixLayoutAttribute.COLS, MatrixLayoutAttribute.LD)


class MatrixLayout(_Described):
    """Element type, rows, columns and leading dimension of a matrix, all in elements; column order unless set."""

    _create, _destroy = "cublasLtMatrixLayoutCreate", "cublasLtMatrixLayoutDestroy"
    _setter, _getter = "cublasLtMatrixLayoutSetAttribute", "cublasLtMatrixLayoutGetAttribute"
    Attribute = MatrixLayoutAttribute

    def __init__(
        self,
        data_type: CudaDataType,
        rows: int,
        cols: int,
        ld: int,
        attributes: Mapping[MatrixLayoutAttribute, Any] | None = None,
    ) -> None:
        for attribute, value in zip(_EXTENTS, (rows, cols, ld), strict=True):
            _field(attribute, MatrixLayoutAttribute).pack(attribute, value)
        super().__init__(data_type, rows, cols, ld)
        self._set_all(attributes or {})


class MatmulPreference(_Described):
    """What heuristics may use: workspace in bytes, alignments in bytes, reduction schemes, implementations."""

    _create, _destroy = "cublasLtMatmulPreferenceCreate", "cublasLtMatmulPreferenceDestroy"
    _setter, _getter = "cublasLtMatmulPreferenceSetAttribute", "cublasLtMatmulPreferenceGetAttribute"
    Attribute = MatmulPreferenceAttribute

    def __init__(self, attributes: Mapping[MatmulPreferenceAttribute, Any] | None = None) -> None:
        super().__init__()
        self._set_all(attributes or {})


class MatrixTransformDesc(_Described):
    """What :func:`matrix_transform` computes: scale type, pointer mode, transpositions of A and B."""

    _create, _destroy = "cublasLtMatrixTransformDescCreate", "cublasLtMatrixTransformDescDestroy"
    _setter, _getter = "cublasLtMatrixTransformDescSetAttribute", "cublasLtMatrixTransformDescGetAttribute"
    Attribute = MatrixTransformDescAttribute

    def __init__(
        self, scale_type: CudaDataType, attributes: Mapping[MatrixTransformDescAttribute, Any] | None = None
    ) -> None:
        super().__init__(scale_type)
        self._set_all(attributes or {})


class EmulationDesc(_Described):
    """How floating-point emulation works, for ``MatmulDescAttribute.EMULATION_DESCRIPTOR``. CUDA 13 only.

    cuBLASLt keeps its address, not a copy: it must live as long as the descriptor.
    """

    _create, _destroy = "cublasLtEmulationDescCreate", "cublasLtEmulationDescDestroy"
    _setter, _getter = "cublasLtEmulationDescSetAttribute", "cublasLtEmulationDescGetAttribute"
    Attribute = EmulationDescAttribute

    def __init__(self, attributes: Mapping[EmulationDescAttribute, Any] | None = None) -> None:
        super().__init__()
        self._set_all(attributes or {})


def addresses(*objects: Owned) -> tuple[int, ...]:
    """The addresses of several objects."""
    return tuple(each.address for each in objects)


def matrix_transform(
    handle: Handle,
    desc: MatrixTransformDesc,
    alpha: int,
    a: int,
    a_layout: MatrixLayout,
    beta: int,
    b: int,
    b_layout: MatrixLayout | None,
    c: int,
    c_layout: MatrixLayout,
    stream: int,
) -> None:
    """C = alpha op(A) + beta op(B) between layouts, on a stream. All but layouts are addresses; ``b`` may be 0."""
    b_address = b_layout.address if b_layout else None
    head = handle.address, desc.address, alpha, a, a_layout.address, beta, b, b_address
    calls.call("cublasLtMatrixTransform", *head, c, c_layout.address, stream)


# The prototype with nothing but addresses: ctypes takes 0.2 us longer to see that a structure is of the right type.
_PLAIN_MATMUL = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 14, ctypes.c_size_t, ctypes.c_void_p)


class PreparedMatmul:
    """A product of which only addresses are still open: D = epilogue(alpha op(A) op(B) + beta C).

    What stays the same is converted for C once. The call itself keeps nothing, so several threads may call one object;
    on streams that run at the same time they then share the workspace, which is wrong for algorithms that use it.

    ``algo=None`` lets cuBLASLt choose in every call. The objects given are kept alive; closing one of them, or freeing
    the workspace, makes calls undefined. Attributes of the descriptor (a bias address, say) may be set between calls.
    """

    __slots__ = ("_a", "_algo", "_b", "_c", "_d", "_desc", "_function", "_handle", "_kept", "_size", "_workspace")

    def __init__(
        self,
        handle: Handle,
        desc: MatmulDesc,
        a_layout: MatrixLayout,
        b_layout: MatrixLayout,
        c_layout: MatrixLayout,
        d_layout: MatrixLayout,
        algo: Algo | None,
        workspace: int,
        workspace_bytes: int,
    ) -> None:
        objects = (handle, desc, a_layout, b_layout, c_layout, d_layout)
        self._handle, self._desc, self._a, self._b, self._c, self._d = map(ctypes.c_void_p, addresses(*objects))
        copy = MatmulAlgoStruct.from_buffer_copy(algo.struct) if algo else None  # the caller may go on editing
        self._kept = objects, copy
        self._algo = ctypes.c_void_p(ctypes.addressof(copy) if copy else None)
        self._workspace, self._size = ctypes.c_void_p(workspace), ctypes.c_size_t(workspace_bytes)
        self._function = _PLAIN_MATMUL(ctypes.cast(calls.bind("cublasLtMatmul"), ctypes.c_void_p).value or 0)

    def __call__(self, alpha: int, a: int, b: int, beta: int, c: int, d: int, stream: int) -> None:
        """Launch on a stream and return. All arguments are addresses; alpha and beta where POINTER_MODE says.

        Nothing about them is checked. Raises :class:`~nvmath_device.errors.HostLibraryError` where cuBLASLt refuses;
        a fault on the device shows later.
        """
        if status := self._function(
            self._handle, self._desc, alpha, a, self._a, b, self._b, beta, c, self._c, d, self._d,
            self._algo, self._workspace, self._size, stream,
        ):  # fmt: skip
            raise self._failure(status, alpha, a, b, beta, c, d, stream)

    def as_function(self) -> Callable[[int, int, int, int, int, int, int], None]:
        """The same call as a function: 0.15 us faster, because nothing is looked up in an object."""
        function, handle, desc, algo = self._function, self._handle, self._desc, self._algo
        a_layout, b_layout, c_layout, d_layout = self._a, self._b, self._c, self._d
        workspace, size, kept = self._workspace, self._size, self

        def call(alpha: int, a: int, b: int, beta: int, c: int, d: int, stream: int) -> None:
            if status := function(
                handle, desc, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout, algo, workspace, size,
                stream,
            ):  # fmt: skip
                raise kept._failure(status, alpha, a, b, beta, c, d, stream)

        return call

    def _failure(self, status: int, alpha: int, a: int, b: int, beta: int, c: int, d: int, stream: int) -> Exception:
        head = self._handle, self._desc, alpha, a, self._a, b, self._b, beta, c, self._c, d, self._d
        algo = ctypes.byref(self._kept[1]) if self._kept[1] else None
        return calls.failure("cublasLtMatmul", (*head, algo, self._workspace, self._size, stream), status)
