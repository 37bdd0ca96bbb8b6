# SPDX-License-Identifier: Apache-2.0
"""``benchmarks/tune_table.py`` without a GPU: what it writes, and that what it has is there when it is killed."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

import nvmath_device as nd
from nvmath_device.tile_suggestions import TABLE, nearest, read_table
from nvmath_device.tuning_builds import Build

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = runpy.run_path(str(ROOT / "benchmarks" / "tune_table.py"), run_name="tune_table")
SM90 = nd.ComputeCapability(9, 0)
CHOICE, OTHER = nd.TileChoice((256, 128, 64), 256, 4, 8), nd.TileChoice((128, 128, 64), 128, 4, 1)


def tuned(name, size, choice=CHOICE, milliseconds=1.25):
    trials = (nd.Trial(choice, "timed", milliseconds=milliseconds), nd.Trial(OTHER, "failed", "it said no"))
    device = {"name": "NVIDIA H200", "compute_capability": [9, 0], "multiprocessors": 132}
    return nd.Tuned(SCRIPT["product"](name, size), choice, trials, device, {"generated": "x"})


def test_a_line_is_added_or_takes_the_place_of_the_one_for_the_same_product(tmp_path):
    path = tmp_path / "table.json"
    for found in (tuned("fp16", 8192), tuned("fp64", 1024), tuned("fp16", 8192, OTHER, 1.5)):
        SCRIPT["add_line"](path, found)
        json.loads(path.read_text())  # whole after each
    first, second = read_table(json.loads(path.read_text()))
    assert (first.descriptor, first.choice, first.milliseconds) == (SCRIPT["product"]("fp16", 8192), OTHER, 1.5)
    assert (second.sm, second.choice) == ((9, 0), CHOICE)
    assert [p.name for p in tmp_path.iterdir()] == ["table.json"]


def test_lines_that_a_run_does_not_reach_stay(tmp_path):
    path = tmp_path / "table.json"
    path.write_bytes(TABLE.read_bytes())
    before = read_table(json.loads(path.read_text()))
    SCRIPT["add_line"](path, tuned("fp16", 512))
    after = read_table(json.loads(path.read_text()))
    assert after[:-1] == before
    assert nearest(after, SCRIPT["product"]("fp16", 512), SM90) == after[-1]


def test_all_that_was_tried_is_added_to_another_file(tmp_path):
    path = tmp_path / "trials.json"
    for size in (1024, 4096):
        SCRIPT["add_trials"](path, tuned("bf16", size))
    products = json.loads(path.read_text())["products"]
    assert [p["product"]["size"][0] for p in products] == [1024, 4096]
    assert [t["outcome"] for t in products[0]["trials"]] == ["timed", "failed"]


def test_each_code_is_compiled_once_though_products_share_it(monkeypatch):
    built = []
    names = SCRIPT["compile_everything"].__globals__

    def build_all(descriptor, choices, sm, *, deadline):
        (choice,) = choices
        built.append((descriptor.precision, SCRIPT["code_of"](choice)))
        return {SCRIPT["code_of"](choice): Build(outcome="skipped", reason="here")}

    monkeypatch.setitem(names, "build_all", build_all)
    SCRIPT["compile_everything"]([SCRIPT["product"]("fp16", size) for size in (8192, 4096, 1024)], SM90, until=0.0)
    assert len(set(built)) == len(built) >= 11


@pytest.mark.parametrize("name", SCRIPT["PRODUCTS"])
def test_there_is_a_tile_for_every_product_of_the_table(name):
    for size in SCRIPT["SIZES"]:
        assert SCRIPT["candidates"](SCRIPT["product"](name, size), SM90)
