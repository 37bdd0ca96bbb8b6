# SPDX-License-Identifier: Apache-2.0
"""Every enumeration member of libmathdx is used by the package or named, with a reason, as not offered.

``test_header_parity`` proves that the Python enumerations have exactly the members of the headers; these
tests walk them.
"""

from __future__ import annotations

import ast
import enum
from collections.abc import Iterator
from pathlib import Path

import pytest

import nvmath_device
from nvmath_device.lto import mathdx_enums
from nvmath_device.lto.not_offered import NOT_OFFERED

PACKAGE = Path(nvmath_device.__file__).parent
LTO = Path(mathdx_enums.__file__).parent
# Files that define or excuse members do not use them.
NOT_USERS = {LTO / "mathdx_enums.py", LTO / "not_offered.py"}

# Enumerations whose members the package writes as text (a dtype table, recipes in JSON) and looks up by name:
# enumeration -> the files where that text stands. A member counts as used if one of the files has its name,
# in any case, as a string of its own.
NAMED_AS_TEXT: dict[str, tuple[Path, ...]] = {}
# Parts of a name that the code adds to such a text.
ADDED_PREFIXES = {"ValueType": ("R_", "C_")}


def members() -> set[str]:
    return {
        f"{name}.{member}"
        for name, cls in vars(mathdx_enums).items()
        if isinstance(cls, enum.EnumMeta) and cls.__module__ == mathdx_enums.__name__
        for member in cls.__members__
    }


def accesses(tree: ast.AST) -> Iterator[str]:
    """``Enum.MEMBER``, ``enums.Enum.MEMBER`` and ``Enum["MEMBER"]`` as "Enum.MEMBER"."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner, member = node.value, node.attr
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            owner, member = node.value, str(node.slice.value)
        else:
            continue
        name = owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", None)
        yield f"{name}.{member}"


def texts(tree: ast.AST) -> set[str]:
    return {
        node.value.upper()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def used_members() -> set[str]:
    sources = [path for folder in (PACKAGE, LTO) for path in folder.rglob("*.py") if path not in NOT_USERS]
    assert len(sources) >= 5
    found = {access for path in sources for access in accesses(ast.parse(path.read_text()))}
    for name, files in NAMED_AS_TEXT.items():
        words = set().union(*(texts(ast.parse(path.read_text())) for path in files))
        for member in getattr(mathdx_enums, name).__members__:
            forms = {member, *(member.removeprefix(prefix) for prefix in ADDED_PREFIXES.get(name, ()))}
            if forms & words:
                found.add(f"{name}.{member}")
    return found & members()


def test_every_member_is_used_or_not_offered() -> None:
    assert sorted(members() - used_members() - set(NOT_OFFERED)) == []


def test_not_offered_names_only_real_members() -> None:
    assert sorted(set(NOT_OFFERED) - members()) == []


def test_not_offered_is_not_used() -> None:
    assert sorted(set(NOT_OFFERED) & used_members()) == []


def test_every_reason_says_something() -> None:
    assert all(len(reason.split()) >= 3 for reason in NOT_OFFERED.values())


@pytest.mark.parametrize(
    "source",
    [
        "Precision.F32",
        "enums.Precision.F32",
        "a.b.Precision.F32",
        'Precision["F32"]',
        'enums.Precision["F32"]',
    ],
)
def test_a_use_is_seen(source: str) -> None:
    assert set(accesses(ast.parse(source))) & members() == {"Precision.F32"}


@pytest.mark.parametrize("source", ["Precision", "other.F32", "Precision.F32x", "'Precision.F32'", "F32"])
def test_what_is_no_use_is_not_seen(source: str) -> None:
    assert set(accesses(ast.parse(source))) & members() == set()
