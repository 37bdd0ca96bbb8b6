# SPDX-License-Identifier: Apache-2.0
"""Making DLPack capsules of any element type over memory that a Python object owns.

Layout of the structures and the rules for capsules: dlpack.h 1.1 and its Python specification. A consumer that
takes a capsule renames it and calls the deleter when done; one that nobody took is freed with its capsule.
"""

from __future__ import annotations

import ctypes
from typing import Any

from nvmath_device.host.array_view import ArrayView, dlpack_type
from nvmath_device.host.dlpack import READ_ONLY, Tensor, Versioned, dlpack_device


class _Plain(ctypes.Structure):
    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


_lent: dict[int, tuple[Any, ...]] = {}  # address of a structure -> everything that lives until its deleter is called

_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
# A capsule that is being destroyed must not become a Python object again, so it travels as an address.
_is_named = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_address = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)
_PLAIN, _VERSIONED = b"dltensor", b"dltensor_versioned"  # kept by reference in the capsules


@_Deleter
def _give_back(address: int) -> None:
    _lent.pop(address, None)


@_Destructor
def _destroy(capsule: int) -> None:
    for name in (_VERSIONED, _PLAIN):
        if _is_named(capsule, name):
            _lent.pop(_address(capsule, name), None)


for _function in (_give_back, _destroy):  # other libraries may call them while Python's modules are torn down
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_function))


def export(operand: ArrayView, *, versioned: bool) -> Any:
    """A capsule over the operand's memory, which keeps the operand's owner alive. Orders no streams.

    Without ``versioned`` the capsule is of the old kind, which cannot say that memory is read-only.
    """
    ndim = operand.ndim
    numbers = (ctypes.c_int64 * (2 * ndim))(*operand.shape, *operand.strides)
    pair = ctypes.POINTER(ctypes.c_int64)
    shape = ctypes.cast(numbers, pair)
    strides = ctypes.cast(ctypes.addressof(numbers) + 8 * ndim, pair)
    code, bits = dlpack_type(operand.element, operand.is_complex)
    kind, index = dlpack_device(operand.device)
    tensor = Tensor(operand.ptr, kind, index, ndim, code, bits, 1, shape, strides, 0)
    deleter = ctypes.cast(_give_back, ctypes.c_void_p).value
    managed: Any
    if versioned:
        managed = Versioned(1, 1, None, deleter, READ_ONLY if operand.readonly else 0, tensor)
    else:
        managed = _Plain(tensor, None, deleter)
    address = ctypes.addressof(managed)
    _lent[address] = (managed, numbers, operand)
    return _new_capsule(address, _VERSIONED if versioned else _PLAIN, ctypes.cast(_destroy, ctypes.c_void_p).value)
