# SPDX-License-Identifier: Apache-2.0
"""The bindings of cuBLASLt against the headers in the installed wheels, read with a parser of C text alone."""

from __future__ import annotations

import ctypes
import enum
import re
from pathlib import Path
from typing import Any

import pytest
from cuda.pathfinder import find_nvidia_header_directory

from nvmath_device.dtypes import ELEMENT_TYPES
from nvmath_device.host import cublaslt_calls, cublaslt_enums, cublaslt_prototypes, cublaslt_tiles
from nvmath_device.host.cublaslt_attributes import FIELDS
from nvmath_device.host.cublaslt_prototypes import OPAQUE_WORDS, PROTOTYPES, TABLE_VERSION

# C enumeration -> its Python name and the prefixes of its members; what stands for a prefix is after the "=".
NAMES = {
    "cublasStatus_t": ("Status", "CUBLAS_STATUS_"),
    "cublasOperation_t": ("Operation", "CUBLAS_OP_"),
    "cublasFillMode_t": ("FillMode", "CUBLAS_FILL_MODE_"),
    "cublasComputeType_t": ("ComputeType", "CUBLAS_"),
    "cudaDataType": ("CudaDataType", ""),
    "libraryPropertyType": ("LibraryProperty", ""),
    "cudaEmulationStrategy": ("EmulationStrategy", "CUDA_EMULATION_STRATEGY_"),
    "cudaEmulationMantissaControl": ("EmulationMantissaControl", "CUDA_EMULATION_MANTISSA_CONTROL_"),
    "cudaEmulationSpecialValuesSupport": (
        "EmulationSpecialValuesSupport",
        "CUDA_EMULATION_SPECIAL_VALUES_SUPPORT_",
    ),
    "cublasLtMatmulTile_t": ("MatmulTile", "CUBLASLT_MATMUL_"),
    "cublasLtMatmulStages_t": ("MatmulStages", "CUBLASLT_MATMUL_"),
    "cublasLtClusterShape_t": ("ClusterShape", "CUBLASLT_CLUSTER_"),
    "cublasLtMatmulInnerShape_t": ("MatmulInnerShape", "CUBLASLT_MATMUL_INNER_SHAPE_"),
    "cublasLtMatmulMatrixScale_t": ("MatrixScale", "CUBLASLT_MATMUL_MATRIX_SCALE_"),
    "cublasLtPointerMode_t": ("PointerMode", "CUBLASLT_POINTER_MODE_"),
    "cublasLtPointerModeMask_t": ("PointerModeMask", "CUBLASLT_POINTER_MODE_MASK_"),
    "cublasLtNumericalImplFlags_t": ("NumericalImplFlags", "CUBLASLT_NUMERICAL_IMPL_FLAGS_"),
    "cublasLtOrder_t": ("Order", "CUBLASLT_ORDER_"),
    "cublasLtBatchMode_t": ("BatchMode", "CUBLASLT_BATCH_MODE_"),
    "cublasLtIntegerWidth_t": ("IntegerWidth", "CUBLASLT_INTEGER_"),
    "cublasLtMatrixLayoutAttribute_t": (
        "MatrixLayoutAttribute",
        "CUBLASLT_MATRIX_LAYOUT_",
        "CUBLASLT_GROUPED_MATRIX_LAYOUT_=GROUPED_",
    ),
    "cublasLtMatmulDescAttributes_t": ("MatmulDescAttribute", "CUBLASLT_MATMUL_DESC_"),
    "cublasLtMatmulBatchInvarianceFlags_t": ("BatchInvarianceFlags", "CUBLASLT_BATCH_INVARIANCE_"),
    "cublasLtMatrixTransformDescAttributes_t": (
        "MatrixTransformDescAttribute",
        "CUBLASLT_MATRIX_TRANSFORM_DESC_",
    ),
    "cublasLtEmulationDescAttributes_t": ("EmulationDescAttribute", "CUBLASLT_EMULATION_DESC_"),
    "cublasLtReductionScheme_t": ("ReductionScheme", "CUBLASLT_REDUCTION_SCHEME_"),
    "cublasLtEpilogue_t": ("Epilogue", "CUBLASLT_EPILOGUE_"),
    "cublasLtMatmulSearch_t": ("MatmulSearch", "CUBLASLT_SEARCH_"),
    "cublasLtMatmulPreferenceAttributes_t": ("MatmulPreferenceAttribute", "CUBLASLT_MATMUL_PREF_"),
    "cublasLtMatmulAlgoCapAttributes_t": ("MatmulAlgoCapAttribute", "CUBLASLT_ALGO_CAP_"),
    "cublasLtMatmulAlgoConfigAttributes_t": ("MatmulAlgoConfigAttribute", "CUBLASLT_ALGO_CONFIG_"),
}
# Enumerations of cublas_api.h for the rest of cuBLAS; its emulation strategy is that of library_types.h again.
OF_CUBLAS = {
    "cublasDiagType_t",
    "cublasSideMode_t",
    "cublasPointerMode_t",
    "cublasAtomicsMode_t",
    "cublasGemmAlgo_t",
    "cublasMath_t",
    "cublasEmulationStrategy_t",
}
# Members that CUDA 12 had and CUDA 13 has no more.
REMOVED = {
    "MatmulDescAttribute.ATOMIC_SYNC_NUM_CHUNKS_D_ROWS",
    "MatmulDescAttribute.ATOMIC_SYNC_NUM_CHUNKS_D_COLS",
    "MatmulDescAttribute.ATOMIC_SYNC_IN_COUNTERS_POINTER",
    "MatmulDescAttribute.ATOMIC_SYNC_OUT_COUNTERS_POINTER",
    "MatmulAlgoCapAttribute.ATOMIC_SYNC",
}
# Functions that 12.9 and 13.0 do not have.
NEWER_FUNCTIONS = {name for name in PROTOTYPES if re.search(r"Emulation|Grouped|ForStream", name)}
# Declared, but exported by no library of 12.4 to 13.10.
DECLARED_ONLY = {"cublasLtDisableCpuInstructionsSetMask"}
CUDART_OF_THE_TABLE = 13_050

Enums = dict[str, dict[str, int]]


def folder(name: str) -> Path:
    directory = find_nvidia_header_directory(name)
    assert directory, f"the headers of {name} come with its wheel, and pathfinder finds them"
    return Path(directory)


def without_comments(text: str) -> str:
    return re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.DOTALL)


def number(expression: str, known: dict[str, int]) -> int:
    """The value of a constant expression of C: integers, names, "|" and "<<"."""
    plain = re.sub(r"(?<=[0-9a-fA-F])(?:ull|u)\b", "", expression)
    assert re.fullmatch(r"[\w\s()|<-]+", plain), expression
    return int(eval(plain, {"__builtins__": {}}, known))  # names and operators only, as asserted


def parse_enums(text: str) -> Enums:
    """{"cublasLtOrder_t": {"CUBLASLT_ORDER_COL": 0, ...}, ...}, without the members that only say where it ends."""
    found: Enums = {}
    known: dict[str, int] = {}
    for body, name in re.findall(r"typedef\s+enum\s*\w*\s*\{(.*?)\}\s*(\w+)\s*;", text, re.DOTALL):
        members, following = {}, 0
        for entry in filter(None, map(str.strip, body.split(","))):
            member, _, value = map(str.strip, entry.partition("="))
            known[member] = members[member] = number(value, known) if value else following
            following = members[member] + 1
        found[name] = {member: value for member, value in members.items() if not member.endswith("_END")}
    flags = re.findall(r"#define (CUBLASLT_NUMERICAL_IMPL_FLAGS_\w+) (\(.*\))", text)
    found["cublasLtNumericalImplFlags_t"] = {name: number(value, {}) for name, value in flags}
    return found


def parse_functions(text: str, enum_names: set[str]) -> dict[str, Any]:
    """{"cublasLtCreate": (c_int, (POINTER(c_void_p),)), ...}"""
    opaque = set(re.findall(r"typedef\s+(?:struct\s+)?\w+\s*\*\s*(\w+)\s*;", text)) | {"cudaStream_t"}
    callbacks = set(re.findall(r"typedef\s+void\s*\(\s*\*\s*(\w+)\s*\)", text))
    values: dict[str, Any] = {
        "int": ctypes.c_int,
        "unsigned": ctypes.c_uint,
        "size_t": ctypes.c_size_t,
        "int64_t": ctypes.c_int64,
        "uint64_t": ctypes.c_uint64,
        "cublasLtMatmulAlgo_t": cublaslt_prototypes.MatmulAlgoStruct,
        "cublasLtMatmulHeuristicResult_t": cublaslt_prototypes.HeuristicResultStruct,
        **dict.fromkeys(enum_names | {"cudaDataType_t"}, ctypes.c_int),
        **dict.fromkeys(opaque | callbacks, ctypes.c_void_p),
    }

    def kind(declaration: str) -> Any:
        words = re.sub(r"\bconst\b", " ", declaration).replace("[]", " *").replace("*", " * ").split()
        base, stars = words[0], words.count("*")
        if base in ("void", "FILE"):
            assert stars == 1
            return ctypes.c_void_p
        if base == "char":
            assert stars == 1
            return ctypes.c_char_p
        return {0: values[base], 1: ctypes.POINTER(values[base])}[stars]

    pattern = r"((?:const\s+)?\w+\s*\*?)\s*CUBLASWINAPI\s+(\w+)\s*\(([^)]*)\)\s*;"
    return {
        name: (
            kind(result),
            tuple(kind(one) for one in parameters.split(",")) if parameters.strip() not in ("", "void") else (),
        )
        for result, name, parameters in re.findall(pattern, text)
    }


def renamed(enums: Enums) -> dict[str, int]:
    """{"Order.COL": 0, ...}"""
    flat = {}
    for c_name, members in enums.items():
        if c_name in OF_CUBLAS:
            continue
        name, *prefixes = NAMES[c_name]
        for member, value in members.items():
            prefix, _, instead = next(p for p in prefixes if member.startswith(p.partition("=")[0])).partition("=")
            flat[f"{name}.{instead}{member.removeprefix(prefix)}"] = value
    return flat


def bound_enums() -> dict[str, int]:
    return {
        f"{name}.{member}": int(value)
        for module in (cublaslt_enums, cublaslt_tiles)
        for name, cls in vars(module).items()
        if isinstance(cls, enum.EnumMeta) and cls.__module__ == module.__name__
        for member, value in cls.__members__.items()
    }


def differences(headers: dict[str, Any], bound: dict[str, Any], *, both_ways: bool) -> list[str]:
    """What the headers have and the bindings lack or have otherwise; with both_ways, also the reverse."""
    report = [
        f"{name}: header {value}, here {bound.get(name)}" for name, value in headers.items() if bound.get(name) != value
    ]
    if both_ways:
        report += [f"{name}: not in the headers" for name in bound if name not in headers]
    return report


@pytest.fixture(scope="module")
def lt_text() -> str:
    """cublasLt.h with its comments."""
    return (folder("cublas") / "cublasLt.h").read_text()


@pytest.fixture(scope="module")
def api_text() -> str:
    return without_comments((folder("cublas") / "cublas_api.h").read_text())


@pytest.fixture(scope="module")
def text(lt_text: str, api_text: str) -> str:
    types = without_comments((folder("cudart") / "library_types.h").read_text())
    return f"{types}\n{api_text}\n{without_comments(lt_text)}"


@pytest.fixture(scope="module")
def same_version(api_text: str) -> bool:
    parts = ("MAJOR", "MINOR", "PATCH")
    return tuple(int(re.search(rf"#define CUBLAS_VER_{part} (\d+)", api_text)[1]) for part in parts) == TABLE_VERSION  # type: ignore[index]


@pytest.fixture(scope="module")
def same_types() -> bool:
    """Whether library_types.h, which comes with another wheel, is of the version that the table was written from."""
    runtime = (folder("cudart") / "cuda_runtime_api.h").read_text()
    return int(re.search(r"#define CUDART_VERSION\s+(\d+)", runtime)[1]) == CUDART_OF_THE_TABLE  # type: ignore[index]


@pytest.fixture(scope="module")
def header_enums(text: str) -> Enums:
    return parse_enums(text)


@pytest.fixture(scope="module")
def header_functions(lt_text: str, header_enums: Enums) -> dict[str, Any]:
    return parse_functions(without_comments(lt_text), set(header_enums))


def test_parser_sees_every_declaration(text: str, lt_text: str, header_enums: Enums, header_functions: Any) -> None:
    assert len(header_enums) == len(re.findall(r"\btypedef\s+enum\b[^;{]*\{", text)) + 1 >= 30
    code = without_comments(lt_text)
    declared = set(re.findall(r"\b(cublasLt\w+)\s*\(\s*(?=[^)]*\)\s*;)", code)) - set(re.findall(r"return (\w+)", code))
    assert set(header_functions) >= declared
    assert len(header_functions) == len(re.findall(r"\bCUBLASWINAPI\s+cublasLt", code)) >= 40
    # Counted by another road: every member of every enumeration has its value on its line in cublasLt.h.
    in_lt = [name for members in header_enums.values() for name in members if name.startswith("CUBLASLT_")]
    lines = re.findall(r"^\s*CUBLASLT_\w+(?:\s*=[^,\n]+)?,?\s*$", code, re.MULTILINE)
    macros = re.findall(r"^#define CUBLASLT_\w+ \(", code, re.MULTILINE)
    ends = [line for line in lines if line.strip(" ,\n").endswith("_END")]
    assert len(in_lt) == len(lines) + len(macros) - len(ends) >= 100


def test_enums_are_those_of_the_headers(header_enums: Enums, same_version: bool, same_types: bool) -> None:
    header = renamed(header_enums)
    if not same_version:
        header = {name: value for name, value in header.items() if name not in REMOVED}
    assert differences(header, bound_enums(), both_ways=same_version and same_types) == []


def test_prototypes_are_those_of_the_header(header_functions: dict[str, Any], same_version: bool) -> None:
    header = {name: value for name, value in header_functions.items() if name not in DECLARED_ONLY}
    assert differences(header, PROTOTYPES, both_ways=same_version) == []


def test_structures_are_those_of_the_header(lt_text: str, same_version: bool) -> None:
    code = without_comments(lt_text)
    bodies = {name: body for body, name in re.findall(r"typedef\s+struct\s*\{(.*?)\}\s*(\w+)\s*;", code, re.DOTALL)}
    fields = {
        name: [
            (field, kind, int(count or 1))
            for kind, field, count in re.findall(r"(\w+)\s+(\w+)\s*(?:\[(\d+)\])?\s*;", body)
        ]
        for name, body in bodies.items()
    }
    words = {name: body[0][2] for name, body in fields.items() if name.endswith("Opaque_t")}
    assert all(fields[name] == [("data", "uint64_t", count)] for name, count in words.items())
    if same_version:
        assert words == OPAQUE_WORDS
    algo, result = cublaslt_prototypes.MatmulAlgoStruct, cublaslt_prototypes.HeuristicResultStruct
    types = {
        "uint64_t": ctypes.c_uint64,
        "size_t": ctypes.c_size_t,
        "int": ctypes.c_int,
        "float": ctypes.c_float,
        "cublasStatus_t": ctypes.c_int,
        "cublasLtMatmulAlgo_t": algo,
    }
    for name, cls in (("cublasLtMatmulAlgo_t", algo), ("cublasLtMatmulHeuristicResult_t", result)):
        expected = [(field, types[kind] * count if count > 1 else types[kind]) for field, kind, count in fields[name]]
        assert [(field, kind) for field, kind in cls._fields_] == expected


# Stored in 8 bytes, whatever their comments say: test_cublaslt_attributes.py has the proof.
SAID_WRONGLY = {name for name in bound_enums() if name.startswith("MatmulPreferenceAttribute.GROUPED_")}


def types_in_comments(lt_text: str, header_enums: Enums) -> dict[str, str]:
    """{"MatmulDescAttribute.EPILOGUE": "uint32_t", ...}: the last type at the start of a line in its comment."""
    pattern = r"/\*\*((?:(?!\*/).)*)\*/\s*(CUBLASLT_\w+)(?: = \d+)?,"
    comments = {member: comment for comment, member in re.findall(pattern, lt_text, re.DOTALL)}
    after_words = r"^[\s*]*(?:[A-Z][\w ]* (?:case|pass): )?"
    kinds = r"((?:array of )?(?:u?int\d+_t|float|(?:const )?void|cublasLt\w+_t)\b ?\*?)"
    found = {}
    for c_enum, members in header_enums.items():
        if c_enum not in OF_CUBLAS and NAMES[c_enum][0].endswith("Attribute"):
            for member in members:
                (name,) = renamed({c_enum: {member: 0}})
                found[name] = re.findall(after_words + kinds, comments[member], re.MULTILINE)[-1].rstrip()
    return found


def test_attributes_have_the_types_in_the_comments_of_the_header(lt_text: str, header_enums: Enums) -> None:
    scalars = {
        f"{sign}int{bits}_t": getattr(ctypes, f"c_{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)
    }
    scalars |= {"float": ctypes.c_float, "cublasLtEmulationDesc_t": ctypes.c_void_p}
    scalars |= {"cublasLtMatmulBatchInvarianceFlags_t": ctypes.c_uint32}  # an enumeration without negative members
    said = types_in_comments(lt_text, header_enums)
    assert len(said) >= 75
    for name in set(said) - SAID_WRONGLY - REMOVED:
        enumeration, member = name.split(".")
        cls = getattr(cublaslt_enums, enumeration)
        field, c_type = FIELDS[cls][cls[member]], said[name].removeprefix("array of ")
        assert field.array == said[name].startswith("array of "), name
        assert field.ctype is (ctypes.c_void_p if c_type.endswith("*") else scalars[c_type]), (name, said[name])


def test_every_attribute_has_a_field() -> None:
    for name in (names[0] for names in NAMES.values() if names[0].endswith("Attribute")):
        cls = getattr(cublaslt_enums, name)
        assert set(FIELDS[cls]) == set(cls), name


def test_every_function_is_exported_by_the_library(header_functions: dict[str, Any]) -> None:
    library = cublaslt_calls.load()
    assert {name for name in header_functions if not hasattr(library, name)} == DECLARED_ONLY
    missing = {name for name in PROTOTYPES if not hasattr(library, name)}
    assert missing <= NEWER_FUNCTIONS
    if cublaslt_calls.version() >= TABLE_VERSION:
        assert missing == set()


def test_element_types_have_the_numbers_of_the_header(header_enums: Enums) -> None:
    numbers = set(header_enums["cudaDataType"].values())
    c_names = {"float16": "16F", "bfloat16": "16BF", "float32": "32F", "float64": "64F", "int8": "8I", "int32": "32I"}
    c_names |= {"float8_e4m3fn": "8F_E4M3", "float8_e5m2": "8F_E5M2"}
    compared = 0
    for element in ELEMENT_TYPES:
        assert {value for value in element.cuda if value is not None} <= numbers
        for letter, value in zip("RC", element.cuda, strict=True):
            c_name = f"CUDA_{letter}_{c_names.get(element.name)}"
            if c_name in header_enums["cudaDataType"]:
                assert value == header_enums["cudaDataType"][c_name], element
                compared += 1
    assert compared == 14  # 8 real types, 6 of them also complex


# -- the tests can fail --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"Epilogue.RELU_BIAS": 5}, "Epilogue.RELU_BIAS: header 6, here 5"),
        ({"Epilogue.RELU_BIAS": None}, "Epilogue.RELU_BIAS: header 6, here None"),
        ({"Epilogue.SILU": 3}, "Epilogue.SILU: not in the headers"),
        ({"MatmulTile.TILE_128x64": 17}, "MatmulTile.TILE_128x64: header 18, here 17"),
    ],
)
def test_a_wrong_missing_or_extra_enum_member_is_reported(
    header_enums: Enums, change: dict[str, int | None], expected: str
) -> None:
    header = renamed(header_enums)
    bound = {name: value for name, value in {**header, **change}.items() if value is not None}
    assert differences(header, bound, both_ways=True) == [expected]


def test_a_wrong_argument_kind_is_reported(header_functions: dict[str, Any]) -> None:
    name = "cublasLtMatmul"
    result, arguments = header_functions[name]
    for wrong in ((*arguments, ctypes.c_int), arguments[:-1], (*arguments[:-2], ctypes.c_int, arguments[-1])):
        report = differences(header_functions, {**header_functions, name: (result, wrong)}, both_ways=True)
        assert len(report) == 1
        assert report[0].startswith(name)
