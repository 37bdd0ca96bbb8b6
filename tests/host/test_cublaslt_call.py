# SPDX-License-Identifier: Apache-2.0
"""The prepared call: what reaches cublasLtMatmul, recorded by a C function in its place."""

from __future__ import annotations

import ctypes
import gc
import threading

import pytest

from nvmath_device.host import cublaslt_calls
from nvmath_device.host.cublaslt import PreparedMatmul
from nvmath_device.host.cublaslt_algorithms import Algo
from nvmath_device.host.cublaslt_enums import MatmulAlgoConfigAttribute
from tests.host.cublaslt_objects import ADDRESS, problem

ARGUMENTS = (
    "handle",
    "desc",
    "alpha",
    "a",
    "a_layout",
    "b",
    "b_layout",
    "beta",
    "c",
    "c_layout",
    "d",
    "d_layout",
    "algo",
    "workspace",
    "size",
    "stream",
)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, int]]:
    """What a C function in the place of cublasLtMatmul was called with, in the order of cublasLt.h."""
    seen: list[dict[str, int]] = []

    @ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 14, ctypes.c_size_t, ctypes.c_void_p)
    def function(*args: int | None) -> int:
        seen.append({name: value or 0 for name, value in zip(ARGUMENTS, args, strict=True)})
        return 0

    monkeypatch.setitem(cublaslt_calls._bound, "cublasLtMatmul", function)
    return seen


def test_every_argument_reaches_its_place(recorded: list[dict[str, int]]) -> None:
    handle, product, *layouts = problem()
    algo = Algo(bytes(range(64)))
    prepared = PreparedMatmul(handle, product, *layouts, algo, ADDRESS, 2**40)
    base = 0x7000_0000_0000
    prepared(base + 1, base + 2, base + 3, base + 4, base + 5, base + 6, base + 7)
    prepared(base + 11, base + 12, base + 13, base + 14, base + 15, base + 16, 0)
    fixed = {"handle": 0, "desc": product.address, "workspace": ADDRESS, "size": 2**40}
    fixed |= {f"{name}_layout": each.address for name, each in zip("abcd", layouts, strict=True)}
    open_ones = ("alpha", "a", "b", "beta", "c", "d", "stream")
    for call, addresses in zip(recorded, ([*range(1, 8)], [*range(11, 17), -base]), strict=True):
        copy = call.pop("algo")
        assert ctypes.string_at(copy, 64) == bytes(range(64))
        assert call == fixed | {name: base + each for name, each in zip(open_ones, addresses, strict=True)}


def test_editing_the_algorithm_later_changes_nothing(recorded: list[dict[str, int]]) -> None:
    algo = Algo()
    prepared = PreparedMatmul(*problem(), algo, 0, 0)
    algo.set(MatmulAlgoConfigAttribute.SPLITK_NUM, 9)
    prepared(1, 2, 3, 4, 5, 6, 7)
    assert ctypes.string_at(recorded[0]["algo"], 64) == bytes(64)


def test_no_algorithm_is_a_null_pointer(recorded: list[dict[str, int]]) -> None:
    PreparedMatmul(*problem(), None, 0, 0)(1, 2, 3, 4, 5, 6, 7)
    assert recorded[0]["algo"] == 0


def test_objects_live_as_long_as_the_call(recorded: list[dict[str, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    destroyed: list[int] = []
    for name in ("cublasLtMatmulDescDestroy", "cublasLtMatrixLayoutDestroy"):
        monkeypatch.setitem(cublaslt_calls._bound, name, lambda address: destroyed.append(address) or 0)
    prepared = PreparedMatmul(*problem(), None, 0, 0)
    gc.collect()
    assert destroyed == []
    del prepared
    gc.collect()
    assert len(destroyed) == 5


def test_threads_share_one_call(recorded: list[dict[str, int]]) -> None:
    prepared = PreparedMatmul(*problem(), None, 0, 0)

    def work(number: int) -> None:
        for _ in range(200):
            prepared(*[number] * 7)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    mixed = [
        call for call in recorded if len({call[name] for name in ("alpha", "a", "b", "beta", "c", "d", "stream")}) > 1
    ]
    assert len(recorded) == 800
    assert mixed == []
