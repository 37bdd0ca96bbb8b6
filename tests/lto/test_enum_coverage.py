# SPDX-License-Identifier: Apache-2.0
"""Every enumeration member of libmathdx is used by the package or named, with a reason, as not offered.

``test_header_parity`` proves that the Python enumerations have exactly the members of the headers; these
tests walk them. A member is used if the package's source names it (``Enum.MEMBER``), or if it is handed to
libmathdx for one of the descriptors below, which together have every argument that users can give.
"""

from __future__ import annotations

import ast
import enum
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import nvmath_device as nd
from nvmath_device.descriptors import refuse_precision
from nvmath_device.dtypes import ELEMENT_TYPES, ValueType
from nvmath_device.fft_descriptor import THREAD_LAYOUTS, TRANSPOSITIONS
from nvmath_device.lto import mathdx, mathdx_enums, worker
from nvmath_device.lto.not_offered import NOT_OFFERED
from nvmath_device.lto.recipes import FFT_APIS, FFT_ID_FUNCTIONS, GEMM_APIS, fft_recipe
from nvmath_device.pipelines import pipeline_plan
from tests.real_code import PIPELINED, SM90A

PACKAGE = Path(nd.__file__).parent
LTO = Path(mathdx_enums.__file__).parent
# Files that define or excuse members do not use them.
NOT_USERS = {LTO / "mathdx_enums.py", LTO / "not_offered.py"}
SM90 = nd.ComputeCapability(9, 0)


def members() -> set[str]:
    return {
        f"{name}.{member}"
        for name, cls in vars(mathdx_enums).items()
        if isinstance(cls, enum.EnumMeta) and cls.__module__ == mathdx_enums.__name__
        for member in cls.__members__
    }


# -- named in the source -------------------------------------------------------------------------------------


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


def named_in_the_source() -> set[str]:
    sources = [path for folder in (PACKAGE, LTO) for path in folder.rglob("*.py") if path not in NOT_USERS]
    assert len(sources) >= 5
    return {access for path in sources for access in accesses(ast.parse(path.read_text()))} & members()


# -- handed to libmathdx -------------------------------------------------------------------------------------


def gemm_recipes() -> Iterator[Any]:
    """Every element type in every place, kind, arrangement, transposition and option of a Matmul."""
    column = ("col_major",) * 3
    base: dict[str, Any] = {
        "size": (8, 8, 8),
        "precision": "float32",
        "data_type": "real",
        "arrangement": column,
    }
    changes: list[dict[str, Any]] = [
        {"data_type": "complex"},
        {"sm": "sm_90a"},
        {"sm": "sm_100f"},
        {"static_block_dim": True},
        {"with_pipeline": True},
        {"enable_input_streaming": True},
        {"leading_dimension": (9, 10, 11)},
        {"alignment": nd.MAX_ALIGNMENT},
    ]
    changes += [{"arrangement": a} for a in itertools.product(("col_major", "row_major"), repeat=3)]
    for c in ("float16", "float32", "float64", "int32", "int64", "uint32", "uint64"):
        for a in ELEMENT_TYPES:
            precision = (a, a, nd.element_type(c))
            if refuse_precision(*precision) is None:
                changes.append({"precision": precision})
    modes = ("non_transposed", "transposed", "conj_transposed")
    for pair in itertools.product(modes, repeat=2):
        changes.append({"arrangement": None, "transpose_mode": pair, "data_type": "complex"})
    for change in changes:
        arguments = {"sm": 90, "block_size": 64, **base, **change}
        for api in GEMM_APIS:
            yield nd.Matmul(**arguments).resolved().recipe(api)


def fft_recipes() -> Iterator[Any]:
    """Every option of an FFT."""
    base: dict[str, Any] = {"size": 32, "precision": "float32", "fft_type": "c2c", "direction": "forward"}
    real = {"fft_type": "r2c", "direction": None}
    changes: list[dict[str, Any]] = [{"precision": p} for p in ("float16", "float64")]
    changes += [{"direction": "inverse"}, {"fft_type": "c2r", "direction": None}, {"elements_per_thread": 4}]
    changes += [{"transposition": t} for t in TRANSPOSITIONS] + [{"thread_layout": t} for t in THREAD_LAYOUTS]
    for layout, mode in itertools.product(("natural", "packed", "full"), ("normal", "folded")):
        changes.append({**real, "real_fft_options": {"complex_layout": layout, "real_mode": mode}})
    for change in changes:
        descriptor = nd.FftDescriptor(**{**base, "execution": "Block", **change})
        for api in FFT_APIS:
            yield fft_recipe(descriptor, sm=SM90, api=api)
    yield fft_recipe(descriptor, sm=nd.ComputeCapability(9, 0, "a"), functions=FFT_ID_FUNCTIONS)
    yield fft_recipe(nd.FftDescriptor(**base, execution="Thread"), sm=SM90)


class Recorder:
    """In the place of libmathdx's descriptors and code: keeps the enumeration members it is given."""

    found: set[str]

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        answers = {
            "ltoirs": [b""],
            "knobs": [],
            "trait_int64s": (1, 1, 1),
            "trait_str": "symbol",
            "trait_value_type": mathdx_enums.ValueType.C_32F,
        }

        def method(*arguments: Any) -> Any:
            for argument in arguments:
                self.note(argument)
            if arguments[:1] == (mathdx_enums.FftOperatorType.DEVICE_FUNCTION,):
                for flag in mathdx_enums.FftDeviceFunctionType(arguments[1]):
                    self.note(flag)
            return answers.get(name, 1)

        return method

    def note(self, argument: Any) -> None:
        if isinstance(argument, enum.Enum):
            self.found.add(f"{type(argument).__name__}.{argument.name}")
        elif isinstance(argument, (list, tuple)):
            for part in argument:
                self.note(part)


@pytest.fixture(scope="module")
def handed_over() -> set[str]:
    Recorder.found = set()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("BlasDescriptor", "FftDescriptor", "Code"):
            patch.setattr(mathdx, name, Recorder)
        for recipe in gemm_recipes():
            worker.perform("code", recipe)
        worker.perform("gemm_suggestions", recipe)
        worker.open_descriptor(pipeline_plan(*PIPELINED.resolved(SM90A), depth=None, sm=SM90A).recipe)
        for recipe in fft_recipes():
            worker.perform("code", recipe)
            worker.ask_fft_traits(recipe)
        worker.ask_fft_knobs(recipe, ("elements_per_thread", "ffts_per_block", "transposition"))
    return Recorder.found


def value_types() -> set[str]:
    """What element types are called in libmathdx's answers: real and complex, and half precision in pairs."""
    pair = nd.float16
    values = [ValueType(t, n) for t in ELEMENT_TYPES for n in (1, 2)] + [ValueType(pair, 4)]
    return {f"ValueType.{v.mathdx}" for v in values} | {"ValueType.R_16F2"}


@pytest.fixture(scope="module")
def used(handed_over: set[str]) -> set[str]:
    return named_in_the_source() | handed_over | value_types()


# -- the tests -----------------------------------------------------------------------------------------------


def test_every_member_is_used_or_not_offered(used: set[str]) -> None:
    assert sorted(members() - used - set(NOT_OFFERED)) == []


def test_not_offered_names_only_real_members() -> None:
    assert sorted(set(NOT_OFFERED) - members()) == []


def test_not_offered_is_not_used(used: set[str]) -> None:
    assert sorted(set(NOT_OFFERED) & used) == []


def test_every_reason_says_something() -> None:
    assert all(len(reason.split()) >= 3 for reason in NOT_OFFERED.values())


def test_what_is_handed_over_is_real(handed_over: set[str]) -> None:
    assert handed_over <= members()
    assert {"Precision.F8_E5M2", "BlasArrangement.ROW_MAJOR", "FftRealMode.FOLDED"} <= handed_over
    assert "Execution.WARP" not in handed_over


def test_pairs_of_halves_are_known_as_libmathdx_calls_them() -> None:
    from nvmath_device.fft import _VALUE_TYPES

    assert _VALUE_TYPES["R_16F2"] == ValueType(nd.float16, 2)
    assert _VALUE_TYPES["C_16F2"] == ValueType(nd.float16, 4)


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
