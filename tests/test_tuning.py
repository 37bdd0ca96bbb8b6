# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F811  (a fixture is imported and is a parameter's name)
"""``nd.tune`` without a GPU: what becomes of candidates, and what is kept of it, with a stand-in for the device."""

from __future__ import annotations

import json

import pytest

import nvmath_device as nd
from nvmath_device import simulation, tuned_results, tuning, tuning_builds
from nvmath_device.errors import (
    ArgumentTypeError,
    CodegenError,
    DriverError,
    InvalidArgumentError,
    NoDeviceError,
    UnsupportedError,
)
from nvmath_device.lto.store import Store
from nvmath_device.tuning_builds import Build, build_all, code_of
from tests.real_code import generated  # noqa: F401  (a fixture)

SM90 = nd.ComputeCapability(9, 0)
PRODUCT = nd.GemmDescriptor(
    size=(4096, 4096, 4096), precision=("float16", "float16", "float32"),
    arrangement=("row_major", "col_major", "row_major"), alignment=nd.MAX_ALIGNMENT,
)  # fmt: skip
BIG, BIG_8 = nd.TileChoice((128, 256, 64), 256, 4, 16), nd.TileChoice((128, 256, 64), 256, 4, 8)
TALL, TALL_8 = nd.TileChoice((256, 128, 64), 256, 4, 16), nd.TileChoice((256, 128, 64), 256, 4, 8)
SMALL, SMALL_8 = nd.TileChoice((64, 64, 64), 128, 4, 16), nd.TileChoice((64, 64, 64), 128, 4, 8)
SPILLING = nd.TileChoice((128, 256, 64), 128, 4, 16)
DEVICE = {"name": "a stand-in", "compute_capability": [9, 0], "multiprocessors": 132}


class Bench:
    """Times by choice, in milliseconds; an exception or text instead of a time is what the device answers."""

    def __init__(self, times, wrong=()):
        self.times, self.wrong, self.asked = times, dict(wrong), []

    def check(self, run):
        answer = self.wrong.get(code_of(run[1]))
        if isinstance(answer, Exception):
            raise answer
        return answer

    def time(self, runs, rounds, seconds):
        self.asked.append(([choice for _, choice in runs], rounds, seconds))
        answers = [self.times[choice] for _, choice in runs]
        return [(None, x) if isinstance(x, str) else (x, "") for x in answers]


def builder(**outcomes):
    """A stand-in for the compiler: what ``outcomes`` has by tile, and code that is fine otherwise."""

    def build(descriptor, choices, sm, *, deadline=None):
        return {
            code_of(c): outcomes.get(
                "x".join(map(str, c.tile)), Build("kernel", "mm", registers=168, spills=0, path="X")
            )
            for c in choices
        }

    return build


def trials_of(choices, bench, build=None, **options):
    found = tuning.try_all(PRODUCT, choices, SM90, bench=lambda: bench, build=build or builder(), **options)
    assert [trial.choice for trial in found] == list(choices)
    return {trial.choice: trial for trial in found}


# -- trials ----------------------------------------------------------------------------------------------------


def test_candidates_near_the_best_are_timed_again_with_all_groups():
    times = {BIG: 0.20, BIG_8: 0.19, TALL: 0.21, TALL_8: 0.22, SMALL: 0.40, SMALL_8: 0.01}
    bench = Bench(times)
    found = trials_of(list(times), bench, rounds=7)
    (first, few, _), (second, many, _) = bench.asked
    assert first == [BIG, TALL, SMALL]
    assert second == [BIG, BIG_8, TALL, TALL_8]
    assert (few, many) == (3, 7)
    assert {c: t.milliseconds for c, t in found.items() if t.outcome == "timed"} == {
        c: ms for c, ms in times.items() if c != SMALL_8
    }
    assert found[SMALL_8].outcome == "skipped"
    assert found[SMALL_8].reason == "with groups of 16 it was 2.00 times as slow as the best"
    assert (found[BIG].registers, found[BIG].spills, found[BIG].path) == (168, 0, "X")


def test_failures_are_data():
    """Each in its own way; the rest is timed all the same."""
    spilled = Build(outcome="spills", reason="391 instructions load", registers=255, spills=391, path="HGMMA")
    build = builder(**{"64x64x64": Build(outcome="failed", reason="libmathdx said no"), "256x128x64": spilled})
    wrong = nd.TileChoice((128, 128, 64), 128, 4, 16)
    broken = nd.TileChoice((128, 128, 128), 128, 3, 16)
    late = nd.TileChoice((128, 128, 64), 256, 4, 16)
    bench = Bench(
        {BIG: 0.2, late: "the launch failed"},
        {code_of(wrong): "C is wrong: row 3", code_of(broken): ValueError("no such launch")},
    )
    found = trials_of([SPILLING, SMALL, TALL, wrong, broken, late, BIG], bench, build)
    assert {c: t.outcome for c, t in found.items()} == {
        SPILLING: "refused", SMALL: "failed", TALL: "spills", wrong: "wrong", broken: "failed", late: "failed",
        BIG: "timed",
    }  # fmt: skip
    assert "128 threads holds 256 registers" in found[SPILLING].reason
    assert found[SMALL].reason == "libmathdx said no"
    assert (found[TALL].spills, found[TALL].registers, found[TALL].path) == (391, 255, "HGMMA")
    assert found[wrong].reason == "C is wrong: row 3"
    assert found[broken].reason == "no such launch"
    assert found[late].reason == "the launch failed"
    assert {t.milliseconds for c, t in found.items() if c != BIG} == {None}


def test_a_device_that_is_lost_ends_all_and_names_the_candidate():
    bench = Bench({}, {code_of(BIG): DriverError("illegal address", status=700, earlier=True)})
    with pytest.raises(DriverError, match="illegal address") as caught:
        trials_of([BIG], bench)
    assert "128x256x64, 256 threads" in caught.value.__notes__[0]


def test_no_bench_is_made_where_nothing_is_left():
    found = tuning.try_all(PRODUCT, [SPILLING], SM90, bench=lambda: pytest.fail("a bench"), build=builder())
    assert [t.outcome for t in found] == ["refused"]


def test_time_is_shared_out(monkeypatch):
    """0.6 of the limit for compiling; then what is left; without any left, candidates near the best keep their first
    times."""
    now = [100.0]
    monkeypatch.setattr(tuning.time, "monotonic", lambda: now[0])
    deadlines = []

    def build(descriptor, choices, sm, *, deadline=None):
        deadlines.append(deadline)
        now[0] += 9.0
        return builder()(descriptor, choices, sm)

    class Slow(Bench):
        def time(self, *arguments):
            found = super().time(*arguments)
            now[0] += 2.0
            return found

    bench = Slow({BIG: 0.2, BIG_8: 0.1})
    found = trials_of([BIG, BIG_8], bench, build, limit_s=10.0)
    assert deadlines == [106.0]
    assert [seconds for _, _, seconds in bench.asked] == [1.0]
    assert (found[BIG].outcome, found[BIG].milliseconds) == ("timed", 0.2)
    assert (found[BIG_8].outcome, found[BIG_8].reason) == ("skipped", "the time was spent")


# -- building --------------------------------------------------------------------------------------------------


def test_each_code_is_built_once_and_a_failure_stops_no_other(monkeypatch):
    built = []

    def build(descriptor, choice, sm):
        built.append(choice)
        if choice.tile == SMALL.tile:
            raise CodegenError("libmathdx refused")
        return Build("kernel", "mm")

    monkeypatch.setattr(tuning_builds, "_build", build)
    found = build_all(PRODUCT, [BIG, BIG_8, SMALL, TALL, TALL_8], SM90)
    assert sorted(built, key=str) == sorted([BIG, SMALL, TALL], key=str)
    assert list(found) == [code_of(BIG), code_of(SMALL), code_of(TALL)]
    assert (found[code_of(SMALL)].outcome, found[code_of(SMALL)].reason) == ("failed", "libmathdx refused")
    assert found[code_of(TALL)].kernel == "kernel"


def test_after_the_deadline_nothing_new_is_begun(monkeypatch):
    monkeypatch.setattr(tuning_builds, "_build", lambda *_: pytest.fail("built"))
    found = build_all(PRODUCT, [BIG], SM90, deadline=float("-inf"))
    assert found[code_of(BIG)].outcome == "skipped"


def test_real_code_of_the_fastest_tile_is_wgmma_and_does_not_spill(generated):
    """The kernel that candidates are timed with, compiled for an H200 without one."""
    (build,) = build_all(PRODUCT, [BIG], SM90).values()
    assert (build.outcome, build.reason) == ("", "")
    assert (build.path, build.spills) == ("HGMMA", 0)
    assert 128 < build.registers < 255
    code = build.kernel.build(build.kernel._types(None), SM90)
    assert code.least_shared == build.matmul.get_pipeline_storage_size(4, sm=90) == 196_672


# -- the whole -------------------------------------------------------------------------------------------------


@pytest.fixture
def device(monkeypatch, tmp_path):
    """A stand-in for a device and an empty store; changes what they are, and counts what is tried."""

    class Stand:
        def __init__(self):
            self.words, self.bench, self.tried, self.store = DEVICE, Bench({BIG: 0.25, TALL: 0.3}), 0, Store(tmp_path)

    stand = Stand()
    real = tuning.try_all

    def try_all(descriptor, choices, sm, **options):
        stand.tried += 1
        options |= {"bench": lambda: stand.bench, "build": builder()}
        return real(descriptor, choices, sm, **options)

    monkeypatch.setattr(tuning, "try_all", try_all)
    monkeypatch.setattr(tuning, "_device", lambda: (0, stand.words))
    monkeypatch.setattr(tuning, "known_candidates", lambda descriptor, sm: (BIG, TALL))
    monkeypatch.setattr(tuned_results, "default_store", lambda: stand.store)
    monkeypatch.setattr(tuned_results, "current_device_words", lambda: stand.words)
    monkeypatch.setattr(tuned_results, "versions", lambda: {"generated": "1", "linked": "2"})
    return stand


def test_what_was_found_is_found_again_without_timing(device, tmp_path):
    tuned = nd.tune(PRODUCT)
    assert (tuned.best, tuned.milliseconds, device.tried) == (BIG, 0.25, 1)
    assert tuned.tflops == pytest.approx(2 * 4096**3 / 0.25e-3 / 1e12)
    device.store = Store(tmp_path)  # as another process has it
    assert nd.tune(PRODUCT) == tuned
    assert device.tried == 1
    device.bench = Bench({BIG: 0.25, TALL: 0.2})
    assert nd.tune(PRODUCT, again=True).best == TALL
    assert nd.tune(PRODUCT).best == TALL
    assert device.tried == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda d, m: setattr(d, "words", {**DEVICE, "name": "another"}),
        lambda d, m: setattr(d, "words", {**DEVICE, "multiprocessors": 66}),
        lambda d, m: m.setattr(tuned_results, "versions", lambda: {"generated": "1", "linked": "3"}),
        lambda d, m: m.setattr(tuned_results, "SCHEMA", 99),
    ],
    ids=["another device", "a part of it", "another linker", "another schema"],
)
def test_results_of_elsewhere_do_not_count(device, monkeypatch, change):
    nd.tune(PRODUCT)
    change(device, monkeypatch)
    nd.tune(PRODUCT)
    assert device.tried == 2


def test_results_of_other_products_do_not_count(device):
    nd.tune(PRODUCT)
    nd.tune(PRODUCT.replace(alignment=None, leading_dimension=None))
    nd.tune(PRODUCT.replace(size=(4096, 4096, 4032), leading_dimension=None))
    assert device.tried == 3


@pytest.mark.parametrize(
    "damage",
    [
        lambda meta: meta.pop("best"),
        lambda meta: meta.update(best=None),
        lambda meta: meta.update(best={"tile": [1, 2], "block_size": 1, "depth": 1, "group": 1}),
        lambda meta: meta["best"].update(depth="many"),
        lambda meta: meta.update(trials=[]),
        lambda meta: meta["trials"][0].update(outcome="won"),
        lambda meta: meta["trials"][0].pop("choice"),
        lambda meta: meta.update(trials=7),
    ],
)
def test_an_entry_that_makes_no_sense_counts_as_none(device, damage):
    nd.tune(PRODUCT)
    content = json.loads(json.dumps(tuned_results.load(PRODUCT, DEVICE)))
    damage(content)
    tuned_results.keep(PRODUCT, DEVICE, content)
    assert nd.tune(PRODUCT).best == BIG
    assert device.tried == 2


def test_a_file_that_is_torn_counts_as_none(device, tmp_path):
    nd.tune(PRODUCT)
    files = list(tmp_path.rglob("*.entry"))
    assert len(files) == 2
    for file in files:
        file.write_bytes(file.read_bytes()[:-7])
    device.store = Store(tmp_path)
    assert nd.tune(PRODUCT).best == BIG
    assert device.tried == 2


def test_candidates_of_ones_own_are_always_tried_and_kept_where_they_are_better(device):
    nd.tune(PRODUCT)
    device.bench = Bench({SMALL: 0.5})
    assert nd.tune(PRODUCT, candidates=[SMALL, SMALL]).best == SMALL
    assert nd.suggest_tile(PRODUCT, sm=90) == BIG
    device.bench = Bench({SMALL: 0.1, BIG: 0.25, TALL: 0.3})
    assert nd.tune(PRODUCT, candidates=[SMALL]).best == SMALL
    assert nd.suggest_tile(PRODUCT, sm=90) == SMALL
    assert nd.tune(PRODUCT).best == BIG  # of all candidates: those were not among what is kept
    assert device.tried == 4


def test_of_candidates_that_are_as_good_as_equal_the_first_is_the_best(device):
    device.bench = Bench({BIG: 0.2005, TALL: 0.2})
    assert nd.tune(PRODUCT).best == BIG


def test_where_nothing_could_be_timed_the_error_has_the_reasons_and_nothing_is_kept(device):
    device.bench = Bench({BIG: "no launch", TALL: "nor this one"})
    with pytest.raises(UnsupportedError, match=r"none of 2 candidates could be timed .2 failed.") as caught:
        nd.tune(PRODUCT)
    assert "failed: nor this one" in str(caught.value)
    assert tuned_results.load(PRODUCT, DEVICE) is None


def test_the_result_prints_as_a_table(device):
    device.bench = Bench({BIG: 0.25, TALL: 0.2})
    lines = str(nd.tune(PRODUCT, candidates=[BIG, TALL, SPILLING])).splitlines()
    assert lines[0] == (
        "4096x4096x4096 float16, float16, float32 on a stand-in: 687 TFLOP/s with 256x128x64, 256 threads, 4 stages, "
        "groups of 16"
    )
    assert lines[1].split() == ["tile", "threads", "stages", "group", "ms", "TFLOP/s", "registers", "path", "outcome"]
    assert lines[2].split() == ["256x128x64", "256", "4", "16", "0.2000", "687", "168", "X", "timed"]
    assert lines[3].split() == ["128x256x64", "256", "4", "16", "0.2500", "550", "168", "X", "timed"]
    assert lines[4].split()[:5] == ["128x256x64", "128", "4", "16", "refused:"]


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"descriptor": (4096,) * 3}, ArgumentTypeError, "descriptor: .* is a tuple"),
        ({"candidates": []}, InvalidArgumentError, "candidates: there are none"),
        ({"candidates": [(128, 256, 64)]}, ArgumentTypeError, "candidates: .* is a tuple"),
        ({"limit_s": 0}, InvalidArgumentError, "limit_s: 0"),
        ({"rounds": 0}, InvalidArgumentError, "rounds: 0"),
        ({"descriptor": PRODUCT.replace(data_type="complex", precision="float32")}, UnsupportedError, "data_type"),
    ],
)
def test_wrong_arguments_are_named(device, arguments, error, text):
    descriptor = arguments.pop("descriptor", PRODUCT)
    with pytest.raises(error, match=text):
        nd.tune(descriptor, **arguments)
    assert device.tried == 0


def test_without_a_device_it_says_what_it_needs_and_what_works(monkeypatch):
    from nvmath_device.host import current_device

    def absent():
        raise NoDeviceError("no CUDA driver")

    monkeypatch.setattr(current_device, "current_index", absent)
    with pytest.raises(NoDeviceError, match=r"needs a GPU and its driver; descriptor.tile\('suggested', sm=...\)"):
        nd.tune(PRODUCT)
    monkeypatch.setattr(simulation, "is_active", lambda: True)
    with pytest.raises(NoDeviceError, match="simulator is on"):
        nd.tune(PRODUCT)
