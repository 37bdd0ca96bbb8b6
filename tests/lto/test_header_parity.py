# SPDX-License-Identifier: Apache-2.0
"""The bindings against the headers in the installed libmathdx wheel, read with a parser of C text alone."""

from __future__ import annotations

import ctypes
import enum
import re
from pathlib import Path
from typing import Any

import pytest
from cuda.pathfinder import find_nvidia_header_directory

from nvmath_device.lto import mathdx_enums, toolchain
from nvmath_device.lto.mathdx_prototypes import (
    MAX_PIPELINE_DEPTH,
    NONE,
    PROTOTYPES,
    RUNTIME,
    SINCE,
    TABLE_VERSION,
)

HEADERS = ("libcommondx.h", "libmathdx.h", "libcublasdx.h", "libcufftdx.h")
# C enumerations are called by their C name here, less this prefix, plus that of Python.
PYTHON_PREFIX = {"commondx": "", "cublasdx": "Blas", "cufftdx": "Fft"}

Enums = dict[str, dict[str, int]]
Functions = dict[str, tuple[Any, tuple[Any, ...]]]


def without_comments(text: str) -> str:
    return re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.DOTALL)


def parse_enums(text: str) -> Enums:
    """{"cublasdxApi": {"CUBLASDX_API_SMEM": 0, ...}, ...}"""
    found: Enums = {}
    for body, name in re.findall(r"typedef\s+enum\s+\w+\s*\{(.*?)\}\s*(\w+)\s*;", text, re.DOTALL):
        members = {}
        for entry in filter(None, map(str.strip, body.split(","))):
            member, value = re.fullmatch(r"(\w+)\s*=\s*(\d+(?:\s*<<\s*\d+)?)", entry).groups()  # type: ignore[union-attr]
            base, _, shift = value.partition("<<")
            members[member] = int(base) << int(shift or 0)
        found[name] = members
    return found


def parse_functions(text: str, enum_names: set[str]) -> Functions:
    """{"commondxCreateCode": (c_int, (POINTER(c_longlong),)), ...}"""
    handles = set(re.findall(r"typedef\s+long\s+long\s+int\s+(\w+)\s*;", text))
    scalars: dict[str, Any] = {
        "int": ctypes.c_int,
        "size_t": ctypes.c_size_t,
        "long long int": ctypes.c_longlong,
        **dict.fromkeys(enum_names, ctypes.c_int),
        **dict.fromkeys(handles, ctypes.c_longlong),
    }

    def kind(declaration: str) -> Any:
        words = re.sub(r"\bconst\b", " ", declaration).replace("*", " * ").split()
        stars = words.count("*")
        words = [word for word in words if word != "*"]
        name = " ".join(words)
        if name not in {*scalars, "char", "void"}:  # the last word names the parameter
            name = " ".join(words[:-1])
        if name in ("char", "void"):
            base = {"char": ctypes.c_char_p, "void": ctypes.c_void_p}[name]
            return {1: base, 2: ctypes.POINTER(base)}[stars]
        return {0: scalars[name], 1: ctypes.POINTER(scalars[name])}[stars]

    pattern = r"LIBMATHDX_API\s+([^;(]*?)\s*LIBMATHDX_CALL\s+(\w+)\s*\(([^)]*)\)\s*LIBMATHDX_API_NOEXCEPT\s*;"
    return {
        name: (kind(result), tuple(map(kind, parameters.split(","))))
        for result, name, parameters in re.findall(pattern, text)
    }


def python_name(c_enum: str) -> str:
    library = next(name for name in PYTHON_PREFIX if c_enum.startswith(name))
    return PYTHON_PREFIX[library] + c_enum[len(library) :]


def without_prefix(c_enum: str, members: dict[str, int]) -> dict[str, int]:
    """Members without the longest of: library and enumeration, the same less TYPE, library."""
    library = next(name for name in PYTHON_PREFIX if c_enum.startswith(name))
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", c_enum[len(library) :]).upper()
    candidates = (
        f"{library.upper()}_{words}_",
        f"{library.upper()}_{words.removesuffix('_TYPE')}_",
        f"{library.upper()}_",
    )
    prefix = next(prefix for prefix in candidates if all(member.startswith(prefix) for member in members))
    return {member.removeprefix(prefix): value for member, value in members.items()}


def bound_enums() -> Enums:
    return {
        name: {member: int(value) for member, value in cls.__members__.items()}
        for name, cls in vars(mathdx_enums).items()
        if isinstance(cls, enum.EnumMeta) and cls.__module__ == mathdx_enums.__name__
    }


def differences(headers: dict[str, Any], bound: dict[str, Any], *, both_ways: bool) -> list[str]:
    """What the headers have and the bindings lack or have otherwise; with both_ways, also the reverse."""
    report = [
        f"{name}: header {value}, here {bound.get(name)}" for name, value in headers.items() if bound.get(name) != value
    ]
    if both_ways:
        report += [f"{name}: not in the headers" for name in bound if name not in headers]
    return report


def flat(enums: Enums) -> dict[str, int]:
    return {f"{name}.{member}": value for name, members in enums.items() for member, value in members.items()}


@pytest.fixture(scope="module")
def text() -> str:
    directory = find_nvidia_header_directory("mathdx")
    assert directory, "libmathdx's headers come with its wheel, and pathfinder finds them"
    return "\n".join(without_comments(Path(directory, name).read_text()) for name in HEADERS)


@pytest.fixture(scope="module")
def header_version(text: str) -> tuple[int, ...]:
    return tuple(
        int(re.search(rf"#define LIBMATHDX_VER_{part} (\d+)", text)[1]) for part in ("MAJOR", "MINOR", "PATCH")
    )  # type: ignore[index]


@pytest.fixture(scope="module")
def header_enums(text: str) -> Enums:
    return parse_enums(text)


@pytest.fixture(scope="module")
def header_functions(text: str, header_enums: Enums) -> Functions:
    return parse_functions(text, set(header_enums))


def test_parser_sees_every_declaration(text: str, header_enums: Enums, header_functions: Functions) -> None:
    code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    assert len(header_enums) == len(re.findall(r"\benum\b", code)) >= 35
    assert len(header_functions) == code.count("LIBMATHDX_CALL") >= 110
    # Counted by another road: values are all those "NAME = number" texts that the headers contain.
    assert sum(map(len, header_enums.values())) == len(re.findall(r"\w+ = \d", code)) >= 200


def test_enums_are_those_of_the_headers(header_enums: Enums, header_version: tuple[int, ...]) -> None:
    renamed = {python_name(name): without_prefix(name, members) for name, members in header_enums.items()}
    same_version = header_version == TABLE_VERSION
    assert differences(flat(renamed), flat(bound_enums()), both_ways=same_version) == []


def test_prototypes_are_those_of_the_headers(header_functions: Functions, header_version: tuple[int, ...]) -> None:
    same_version = header_version == TABLE_VERSION
    assert differences(header_functions, PROTOTYPES, both_ways=same_version) == []


def test_macros_are_those_of_the_headers(text: str) -> None:
    llong_min = -(1 << 63)
    assert re.search(r"#define LIBMATHDX_RUNTIME LLONG_MIN\b", text)
    assert re.search(r"#define LIBMATHDX_NONE LLONG_MIN\b", text)
    assert re.search(r"#define LIBMATHDX_MAX_PIPELINE_DEPTH 0\b", text)
    assert {RUNTIME, NONE} == {llong_min}
    assert MAX_PIPELINE_DEPTH == 0


def test_since_speaks_of_functions_in_the_table() -> None:
    assert set(SINCE) <= set(PROTOTYPES)
    assert all((0, 3, 1) < version <= TABLE_VERSION for version in SINCE.values())


def test_every_function_is_exported_by_the_library(header_functions: Functions) -> None:
    library = toolchain.load_mathdx()
    missing = {name for name in header_functions if not hasattr(library, name)}
    assert missing <= set(SINCE)
    if toolchain.mathdx_version() == TABLE_VERSION:
        assert missing == set()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"Precision.F32": 6}, "Precision.F32: header 5, here 6"),
        ({"Precision.F32": None}, "Precision.F32: header 5, here None"),
        ({"Precision.F128": 15}, "Precision.F128: not in the headers"),
    ],
)
def test_a_wrong_missing_or_extra_enum_member_is_reported(
    header_enums: Enums, change: dict[str, int | None], expected: str
) -> None:
    header = {
        f"Precision.{k}": v for k, v in without_prefix("commondxPrecision", header_enums["commondxPrecision"]).items()
    }
    bound = {name: value for name, value in {**header, **change}.items() if value is not None}
    assert differences(header, bound, both_ways=True) == [expected]


def test_a_wrong_argument_kind_is_reported(header_functions: Functions) -> None:
    name = "cublasdxSetOperatorInt64"
    result, arguments = header_functions[name]
    for wrong in ((*arguments, ctypes.c_int), arguments[:-1], (*arguments[:-1], ctypes.c_int)):
        report = differences(header_functions, {**header_functions, name: (result, wrong)}, both_ways=True)
        assert len(report) == 1
        assert report[0].startswith(name)
