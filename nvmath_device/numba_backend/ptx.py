# SPDX-License-Identifier: Apache-2.0
"""Texts in PTX, said in the midst of a kernel's code."""

from __future__ import annotations

import re
from typing import Any

from llvmlite import ir

_LONG_BITS = 64


def speak(builder: Any, text: str, operands: dict[str, Any] | None = None, *, results: int = 0) -> Any:
    """Say a text whose operands, integers, are called by ``$`` and a name. ``$0`` and on are numbers of float32, of
    which there are ``results``, and a struct of them is returned.

    The compilers neither drop it nor move what reads or writes memory across it.
    """
    operands = operands or {}
    names = [name for name in operands if re.search(rf"\${name}\b", text)]
    numbers = {name: results + n for n, name in enumerate(names)}
    text = re.sub(r"\$([a-z]+)", lambda found: f"${numbers[found[1]]}", text)
    given = [operands[name] for name in names]
    constraints = [*["=&f"] * results, *("l" if x.type.width == _LONG_BITS else "r" for x in given), "~{memory}"]
    result = ir.LiteralStructType([ir.FloatType()] * results) if results else ir.VoidType()
    kind = ir.FunctionType(result, [x.type for x in given])
    return builder.asm(kind, text, ",".join(constraints), given, side_effect=True)
