# SPDX-License-Identifier: Apache-2.0
"""How a kernel's arguments lie in its parameters: what a launch without Numba has to know.

A launch record is plain data, one dict an argument, in order::

    {"name": "a", "type": "array(float32, 2d, C)", "words": ["ptr", "ptr", "i64", "i64", "ptr", "i64", "i64", ...]}

``words`` are the C types of the flat kernel parameters that the argument becomes, in order; :data:`WORDS` has them
all. Every word is a parameter of its own, aligned to its own size.

- An array is meminfo and parent (null pointers at a launch), number of elements, bytes of one element, address of the
  first element, then the shape in elements and the strides in bytes, one word a dimension each.
- A complex number is its real and its imaginary part.
- A tuple, named or not, is its members one after the other, and a ``DevicePipeline`` its two matrices; an
  enumeration's member is its value.
- A record is the address of its bytes in GPU memory; so is a C pointer.
- A date or a span of time is its 64-bit count of units.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nvmath_device.errors import UnsupportedError

# Word -> bytes. f16 and bf16 are the 16 bits of the number; a bool is a byte, 0 or 1.
WORDS: dict[str, int] = {
    "ptr": 8, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "u8": 1, "u16": 2, "u32": 4, "u64": 8,
    "f16": 2, "bf16": 2, "f32": 4, "f64": 8, "bool": 1,
}  # fmt: skip

# Word -> LLVM's type of it.
_LLVM = {name: f"i{8 * size}" for name, size in WORDS.items()} | {"ptr": "ptr", "f32": "float", "f64": "double"}

_ARRAY = ("ptr", "ptr", "i64", "i64", "ptr")


def record_of(function: Any, argtypes: Sequence[Any]) -> tuple[dict[str, Any], ...]:
    """The launch record of a kernel function (or what ``jit`` made of one) for Numba types of its arguments.

    Raises UnsupportedError, naming the argument, for a type that Numba's own launcher does not pass either.
    """
    names = _names(getattr(function, "py_func", function), len(argtypes))
    return tuple(
        {"name": name, "type": str(t), "words": list(_words_of_argument(name, t))}
        for name, t in zip(names, argtypes, strict=True)
    )


def check_record(record: Sequence[dict[str, Any]], parameters: Sequence[str]) -> None:
    """Compare a record with the parameters that Numba gave the kernel, as LLVM types such as ``i64`` or ``float*``.

    Raises UnsupportedError if they differ: a version of Numba that passes arguments in another way.
    """
    wanted = [_LLVM[word] for argument in record for word in argument["words"]]
    found = ["ptr" if p.endswith("*") else p for p in parameters]
    if wanted != found:
        raise UnsupportedError(
            f"this version of Numba passes {[a['type'] for a in record]} as ({', '.join(parameters)}), which is not "
            "what this version of nvmath_device knows; install a version of numba-cuda that it was tested with"
        )


def _words_of_argument(name: str, numba_type: Any) -> tuple[str, ...]:
    words = words_of(numba_type)
    if words is None:
        raise UnsupportedError(f"argument {name!r}: {numba_type} cannot be passed to a kernel; pass arrays and numbers")
    return words


def words_of(numba_type: Any) -> tuple[str, ...] | None:
    """The words of one Numba type; None for a type that cannot be an argument of a launch."""
    from numba.cuda import types

    t = types.unliteral(numba_type)
    if isinstance(t, types.Array):
        return _ARRAY + ("i64",) * (2 * t.ndim)
    if isinstance(t, (types.CPointer, types.Record)):
        return ("ptr",)
    if isinstance(t, types.Boolean):
        return ("bool",)
    if isinstance(t, types.Integer):
        return (f"{'i' if t.signed else 'u'}{t.bitwidth}",)
    if isinstance(t, types.Float):
        return (f"f{t.bitwidth}",)
    if t == types.bfloat16:
        return ("bf16",)
    if isinstance(t, types.Complex):
        return (f"f{t.underlying_float.bitwidth}",) * 2
    if isinstance(t, (types.NPDatetime, types.NPTimedelta)):
        return ("i64",)
    if isinstance(t, types.EnumMember):
        return words_of(t.dtype)
    if isinstance(t, types.BaseTuple) or hasattr(t, "launch_members"):
        members = [words_of(member) for member in getattr(t, "launch_members", t)]
        return None if None in members else tuple(word for words in members if words for word in words)
    return None


def _names(function: Any, count: int) -> list[str]:
    """Names of the parameters; those of ``*args`` are numbered."""
    code = function.__code__
    names = list(code.co_varnames[: code.co_argcount])
    if len(names) < count:
        rest = code.co_varnames[code.co_argcount + code.co_kwonlyargcount]
        names += [f"{rest}[{i}]" for i in range(count - len(names))]
    return names[:count]
