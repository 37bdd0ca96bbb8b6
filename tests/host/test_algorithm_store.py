# SPDX-License-Identifier: Apache-2.0
"""Algorithms on disk: what comes back, and what is refused because it was made elsewhere."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nvmath_device.dtypes import float16, float32
from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError
from nvmath_device.host import algorithm_store
from nvmath_device.host.algorithm_store import (
    StoredTiming,
    load_algorithms,
    order_key,
    save_algorithms,
    store_order,
    stored_order,
)
from nvmath_device.host.algorithms import Algorithm
from nvmath_device.host.epilogs import MatmulEpilog
from nvmath_device.host.faults import Rules
from nvmath_device.host.lt_plan import plan_lt
from nvmath_device.host.options import MatmulOptions, MatmulPlanPreferences, MatmulReductionScheme
from nvmath_device.host.probe import Request, imagine
from nvmath_device.lto.store import Store
from tests.host.algorithm_fakes import algo, result


class Machine:
    """A device and a cuBLASLt that a test can change."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names = ["NVIDIA H200", "NVIDIA H200"]
        self.capability = (9, 0)
        self.version = (13, 1, 0)
        self.current = 0
        monkeypatch.setattr(algorithm_store, "version", lambda: self.version)
        monkeypatch.setattr(
            algorithm_store, "current_device",
            SimpleNamespace(
                current_index=lambda: self.current, device_name=lambda index: self.names[index],
                compute_capability=lambda index: self.capability,
            ),
        )  # fmt: skip


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


# -- files ---------------------------------------------------------------------------------------------------


def test_saved_and_loaded(machine: Machine, tmp_path: Path) -> None:
    path = tmp_path / "algorithms.json"
    saved = [Algorithm(result(n, workspace_bytes=n, waves=n / 4, SPLITK_NUM=n)) for n in (3, 1, 2)]
    save_algorithms(path, saved)
    loaded = load_algorithms(str(path))
    assert [bytes(a.algo) for a in loaded] == [bytes(a.algo) for a in saved]
    assert [(a.workspace_bytes, a.waves, a.plan) for a in loaded] == [(3, 0.75, None), (1, 0.25, None), (2, 0.5, None)]


def test_file_says_what_it_is_for(machine: Machine, tmp_path: Path) -> None:
    path = tmp_path / "algorithms.json"
    request = Request(
        a=imagine((4, 64, 32), float16), b=imagine((32, 48), float16), c=imagine((1, 48), float32),
        out=imagine((4, 64, 48), float32), workspace_limit=0, epilog=MatmulEpilog.BIAS,
        inputs={"bias": imagine((64,), float32)},
    )  # fmt: skip
    plan: Any = SimpleNamespace(problem=request.problem())
    save_algorithms(path, [Algorithm(result(1), plan)])
    content = json.loads(path.read_text())
    assert (content["cublaslt"], content["device"], content["compute_capability"]) == ("13.1.0", "NVIDIA H200", "9.0")
    assert content["algorithms"][0]["product"] == (
        "float16 x float16 + float32 -> float32, m=64 n=48 k=32, batch (4,), epilog BIAS, COMPUTE_32F"
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": (13, 10, 0)}, r"are of cuBLASLt 13\.1\.0, and here is cuBLASLt 13\.10\.0; .* plan and save here"),
        ({"names": ["NVIDIA L4"]}, r"are of device NVIDIA H200, and here is device NVIDIA L4"),
        ({"capability": (9, 5)}, r"compute capability 9\.0, and here is compute capability 9\.5"),
    ],
)
def test_of_another_library_or_device(machine: Machine, tmp_path: Path, change: dict[str, Any], words: str) -> None:
    path = tmp_path / "algorithms.json"
    save_algorithms(path, [Algorithm(result(1))])
    vars(machine).update(change)
    with pytest.raises(InvalidArgumentError, match=words):
        load_algorithms(path)


def test_device_is_the_current_one_or_the_first_or_the_one_named(machine: Machine, tmp_path: Path) -> None:
    path = tmp_path / "algorithms.json"
    machine.names = ["first", "second"]
    for current, device, name in ((1, None, "second"), (-1, None, "first"), (0, 1, "second")):
        machine.current = current
        save_algorithms(path, [Algorithm(result(1))], device=device)
        assert json.loads(path.read_text())["device"] == name
        assert len(load_algorithms(path, device=device)) == 1


def test_nothing_or_something_else_to_save(machine: Machine, tmp_path: Path) -> None:
    path = tmp_path / "algorithms.json"
    with pytest.raises(InvalidArgumentError, match="none to save"):
        save_algorithms(path, [])
    with pytest.raises(ArgumentTypeError, match="is a HeuristicResult; give Algorithm objects"):
        save_algorithms(path, [result(1)])  # type: ignore[list-item]
    assert not path.exists()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": "other"}', '"x"', "\x01"], ids=ascii)
def test_file_of_something_else(machine: Machine, tmp_path: Path, text: str) -> None:
    path = tmp_path / "algorithms.json"
    path.write_text(text)
    with pytest.raises(InvalidArgumentError, match=r"path: .*algorithms\.json is not a file of save_algorithms"):
        load_algorithms(path)


@pytest.mark.parametrize("entries", [None, {}, [1], [{}], [{"algo": "00" * 64}]])
def test_file_with_broken_entries(machine: Machine, tmp_path: Path, entries: Any) -> None:
    path = tmp_path / "algorithms.json"
    save_algorithms(path, [Algorithm(result(1))])
    path.write_text(json.dumps(json.loads(path.read_text()) | {"algorithms": entries}))
    with pytest.raises(InvalidArgumentError, match=r"no list of algorithms|not a stored algorithm"):
        load_algorithms(path)


def test_file_that_is_not_there(machine: Machine, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load_algorithms(tmp_path / "missing.json")


# -- keys ----------------------------------------------------------------------------------------------------

REQUEST = Request(
    a=imagine((64, 32), float16), b=imagine((32, 48), float16), c=None, out=imagine((64, 48), float16),
    workspace_limit=0,
)  # fmt: skip
IDENTITY = {"device": "NVIDIA H200", "uuid": "00", "driver": "13000", "cublaslt": "13.1.0"}


def key_of(
    request: Request = REQUEST,
    *,
    alignments: dict[str, int] | None = None,
    workspace_limit: int = 1 << 25,
    device: int = 0,
    flush: bool = True,
    **wishes: Any,
) -> dict[str, Any]:
    problem = request.problem()
    lt = plan_lt(problem, request.operands(), Rules())
    plan = SimpleNamespace(problem=problem, lt=lt, alignments=alignments or {}, workspace_limit=workspace_limit)
    options, preferences = wishes.get("options", MatmulOptions()), wishes.get("preferences", MatmulPlanPreferences())
    return order_key(plan, device, options, preferences, flush=flush)


@pytest.fixture
def identity(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Of device 0; device 1 has another uuid."""
    found = dict(IDENTITY)
    monkeypatch.setattr(algorithm_store, "_identity", lambda index: {**found, "uuid": found["uuid"] + str(index)})
    return found


def test_key_is_json_and_the_same_for_the_same(identity: dict[str, str]) -> None:
    assert json.loads(json.dumps(key_of())) == key_of()


def test_key_does_not_depend_on_how_the_user_came_to_it(identity: dict[str, str]) -> None:
    """A column-major product is the transpose of a row-major one."""
    transposed = Request(
        a=imagine((48, 32), float16, axes=(1, 0)), b=imagine((32, 64), float16, axes=(1, 0)), c=None,
        out=imagine((48, 64), float16, axes=(1, 0)), workspace_limit=0,
    )  # fmt: skip
    assert key_of(transposed) == key_of()
    assert key_of(transposed, alignments={"a": 16}) == key_of(alignments={"b": 16}) != key_of(alignments={"a": 16})


@pytest.mark.parametrize(
    "changes",
    [
        {"request": replace(REQUEST, a=imagine((64, 32), float16, axes=(1, 0)))},
        {"request": replace(REQUEST, a=imagine((64, 32), float16, strides=(40, 1)))},
        {"request": replace(REQUEST, out=imagine((64, 48), float32))},
        {"request": replace(REQUEST, options=MatmulOptions(compute_type="COMPUTE_16F"))},
        {"request": replace(REQUEST, c=imagine((64, 48), float16))},
        {"request": replace(REQUEST, epilog=MatmulEpilog.RELU)},
        {"alignments": {"a": 16}},
        {"alignments": {"bias": 2}},
        {"workspace_limit": 0},
        {"flush": False},
        {"device": 1},
        {"options": MatmulOptions(sm_count_target=8)},
        {"options": MatmulOptions(deterministic=True)},
        {"preferences": MatmulPlanPreferences(limit=3)},
        {"preferences": MatmulPlanPreferences(max_waves_count=2.0)},
        {"preferences": MatmulPlanPreferences(reduction_scheme_mask=MatmulReductionScheme.NONE)},
        {"preferences": MatmulPlanPreferences(numerical_impl_mask=1)},
    ],
    ids=lambda changes: str(next(iter(changes))),
)
def test_key_depends_on(identity: dict[str, str], changes: dict[str, Any]) -> None:
    assert key_of(**changes) != key_of()


@pytest.mark.parametrize("what", list(IDENTITY))
def test_key_depends_on_the_machine(identity: dict[str, str], what: str) -> None:
    before = key_of()
    identity[what] += "x"
    assert key_of() != before


def test_identity_of_a_device(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = SimpleNamespace(
        cuDeviceGet=lambda index: (0, 70 + index),
        cuDeviceGetUuid=lambda device: (0, SimpleNamespace(bytes=bytes([device] * 16))),
        cuDriverGetVersion=lambda: (0, 13000),
    )
    monkeypatch.setattr(algorithm_store, "bindings", lambda: driver)
    assert algorithm_store._identity.__wrapped__(1) == {
        "cublaslt": "13.1.0", "device": "NVIDIA H200", "compute_capability": "9.0", "uuid": "47" * 16,
        "driver": "13000",
    }  # fmt: skip


# -- what autotune found -------------------------------------------------------------------------------------

FOUND = [
    StoredTiming(bytes(algo(2)), 10.5),
    StoredTiming(bytes(algo(1)), 12.0),
    StoredTiming(bytes(algo(3)), None, "no"),
]


def test_order_is_kept_for_other_processes(identity: dict[str, str], tmp_path: Path) -> None:
    assert store_order(key_of(), FOUND, iterations=10, store=Store(tmp_path))
    assert stored_order(key_of(), iterations=10, store=Store(tmp_path)) == FOUND
    assert stored_order(key_of(device=1), iterations=10, store=Store(tmp_path)) is None
    assert [entry.kind for entry in Store(tmp_path).entries()] == ["matmul-algorithms"]


def test_order_from_fewer_iterations_than_wanted(identity: dict[str, str], tmp_path: Path) -> None:
    store = Store(tmp_path)
    store_order(key_of(), FOUND, iterations=10, store=store)
    assert stored_order(key_of(), iterations=11, store=store) is None
    assert stored_order(key_of(), iterations=3, store=store) == FOUND


def test_default_store(identity: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVMATH_DEVICE_CACHE_DIR", str(tmp_path))
    assert store_order(key_of(), FOUND, iterations=1)
    assert stored_order(key_of(), store=Store(tmp_path)) == stored_order(key_of()) == FOUND
    monkeypatch.setenv("NVMATH_DEVICE_CACHE_DIR", "off")
    assert not store_order(key_of(), FOUND, iterations=1)
    assert stored_order(key_of()) is None


@pytest.mark.parametrize(
    "meta",
    [
        {},
        {"iterations": 10},
        {"iterations": None, "order": []},
        {"iterations": 10, "order": 5},
        {"iterations": 10, "order": [5]},
        {"iterations": 10, "order": [{"algo": "00" * 63, "microseconds": 1, "error": ""}]},
        {"iterations": 10, "order": [{"algo": "zz" * 64, "microseconds": 1, "error": ""}]},
        {"iterations": 10, "order": [{"algo": "00" * 64, "microseconds": "x", "error": ""}]},
        {"iterations": 10, "order": [{"algo": "00" * 64, "error": ""}]},
    ],
)
def test_entry_that_makes_no_sense_is_none(identity: dict[str, str], tmp_path: Path, meta: dict[str, Any]) -> None:
    store = Store(tmp_path)
    store.put("matmul-algorithms", key_of(), meta=meta, blob=b"")
    assert stored_order(key_of(), store=store) is None
