# SPDX-License-Identifier: Apache-2.0
"""Which tile is suggested where nothing is timed: kept results, the shipped table, a rule."""

from __future__ import annotations

import json
import logging

import pytest

import nvmath_device as nd
from nvmath_device import tile_suggestions, tuned_results
from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError, NoDeviceError, UnsupportedError
from nvmath_device.lto.store import Store
from nvmath_device.tile_candidates import by_rule
from nvmath_device.tile_choices import refusal
from nvmath_device.tile_suggestions import nearest, read_table, shipped

ROW, COL = "row_major", "col_major"
SM90, SM80 = nd.ComputeCapability(9, 0), nd.ComputeCapability(8, 0)
HALF = ("float16", "float16", "float32")
DEVICE = {"name": "a stand-in", "compute_capability": [9, 0], "multiprocessors": 132}
ODD = nd.TileChoice((64, 256, 64), 128, 3, 5)  # that no table and no rule has


def product(size=8192, precision=HALF, arrangement=(ROW, COL, ROW), alignment=nd.MAX_ALIGNMENT):
    size = (size,) * 3 if isinstance(size, int) else size
    return nd.GemmDescriptor(size=size, precision=precision, arrangement=arrangement, alignment=alignment)


@pytest.fixture(autouse=True)
def device(monkeypatch, tmp_path):
    """A stand-in for a device, whose words can be changed, and an empty store."""
    words = dict(DEVICE)
    store = Store(tmp_path)
    monkeypatch.setattr(tuned_results, "default_store", lambda: store)
    monkeypatch.setattr(tuned_results, "current_device_words", lambda: words)
    monkeypatch.setattr(tuned_results, "versions", lambda: {"generated": "1", "linked": "2"})
    return words


def keep(descriptor, choice, device=DEVICE):
    assert tuned_results.keep(descriptor, device, {"best": tuned_results.choice_words(choice)})


def line(size, choice, precision=HALF, arrangement=(ROW, COL, ROW), alignment=(16, 16, 16), sm=90, milliseconds=None):
    return {
        "precision": precision, "arrangement": arrangement, "alignment": alignment, "sm": sm, "size": (size,) * 3,
        **tuned_results.choice_words(choice), "milliseconds": milliseconds,
    }  # fmt: skip


def choice(tile=(128, 256, 64), threads=256, depth=4, group=16):
    return nd.TileChoice(tile, threads, depth, group)


# -- the shipped table -----------------------------------------------------------------------------------------


def test_every_line_of_the_shipped_table_can_be_built():
    """Its code is compiled by tests/gpu and, for some lines, by tests/test_tuning.py."""
    lines = shipped()
    assert lines
    for x in lines:
        assert refusal(x.descriptor, x.choice, nd.ComputeCapability(*x.sm)) is None
        assert x.milliseconds is None or x.milliseconds > 0
    keys = [(x.sm, x.descriptor) for x in lines]
    assert len(set(keys)) == len(keys)


def test_lines_with_times_reach_no_more_than_the_device_can():
    """Dense peaks of an H200 SXM, of its data sheet, in TFLOP/s; float32 without tensor cores."""
    peaks = {"float16": 989, "bfloat16": 989, "tfloat32": 495, "float8_e4m3fn": 1979, "float32": 67, "float64": 67}
    for x in shipped():
        if x.milliseconds is not None:
            m, n, k = x.descriptor.size
            assert 0 < 2 * m * n * k / x.milliseconds / 1e9 < peaks[str(x.descriptor.precision.a)]


# -- lines -----------------------------------------------------------------------------------------------------

SMALL = choice((64, 64, 64), 128)
TABLE = read_table(
    {
        "tiles": [
            line(8192, choice(group=7)),
            line(1024, SMALL),
            line(4096, choice((256, 128, 64)), ("float16", "float16", "float16")),
            line(4096, choice((128, 128, 64), 128), arrangement=(COL, COL, ROW)),
            line(8192, choice((128, 256, 32)), ("tfloat32", "tfloat32", "float32")),
            line(8192, choice((128, 128, 16), 256, 2), ("float32",) * 3, (ROW,) * 3),
        ]
    }
)


@pytest.mark.parametrize(
    ("asked", "place"),
    [
        (product(8192), 0),
        (product(16384), 0),
        (product((8192, 8192, 64)), 0),
        (product(1024), 1),
        (product((1024, 1024, 100_000)), 1),
        (product((1100, 900, 1024)), 1),
        (product((1024, 256, 4096)), 1),
        (product(5000, ("float16",) * 3), 2),
        (product(5000, ("float16", "float16", "bfloat16")), 2),  # all are of another type of C
        (product(3000, arrangement=(COL, COL, ROW)), 3),
        (product(3000, arrangement=(COL, ROW, ROW)), 3),  # all in another order, which float16 does not mind
        (product(8192, ("tfloat32", "tfloat32", "float32")), 4),
        (product(8192, "float32", (ROW, ROW, COL)), 5),
        (product(8192, "float32", (COL, ROW, ROW), None), 5),  # multiplied one by one in any case
    ],
)
def test_the_nearest_line_is_taken(asked, place):
    assert nearest(TABLE, asked, SM90) is TABLE[place]


@pytest.mark.parametrize(
    "asked",
    [
        product(500),  # much smaller than all
        product((512, 500, 8192)),
        product(8192, alignment=None),  # no wgmma without
        product(8192, ("tfloat32", "tfloat32", "float32"), (ROW, ROW, ROW)),  # nor in these orders
        product(8192, ("bfloat16", "bfloat16", "float32")),
        product(8192, ("float16", "bfloat16", "float32")),
    ],
)
def test_lines_that_say_nothing_are_not_taken(asked):
    assert nearest(TABLE, asked, SM90) is None


def test_lines_of_another_device_or_that_are_refused_are_not_taken():
    assert nearest(TABLE, product(), SM80) is None
    spills = read_table({"tiles": [line(8192, choice(threads=128)), line(4096, SMALL)]})
    assert nearest(spills, product(), SM90) is spills[1]


# -- what is suggested -----------------------------------------------------------------------------------------


def test_what_was_tuned_goes_before_the_table_and_the_table_before_the_rule(caplog):
    caplog.set_level(logging.DEBUG, "nvmath_device")
    assert nd.suggest_tile(product(), sm=90) == choice()
    assert nd.suggest_tile(product(100), sm=90) == by_rule(product(100), SM90)
    keep(product(), ODD)
    assert nd.suggest_tile(product(), sm=90) == ODD
    said = [r.message.rpartition("(")[2] for r in caplog.records if r.message.startswith("suggest_tile")]
    assert said == ["table)", "rule)", "tuned)"]


@pytest.mark.parametrize(
    ("size", "is_alike"),
    [
        ((8192, 8192, 8192), True),
        ((4097, 5000, 8191), True),
        ((4096, 8192, 8192), False),
        ((8193, 8192, 8192), False),
    ],
)
def test_results_serve_products_between_the_same_powers_of_two(size, is_alike):
    keep(product(), ODD)
    # 4097 columns of float16 are no multiple of 16 bytes, so both promise what the odd one keeps
    asked = product(size)
    if tuned_results.key(asked, DEVICE, "alike")["alignment"] != [16, 16, 16]:
        keep(product().replace(alignment=asked.alignment, leading_dimension=None), ODD)
        asked = asked.replace(leading_dimension=(8192, 8192, 8192))
    assert (nd.suggest_tile(asked, sm=90) == ODD) == is_alike


def test_of_products_alike_the_one_tuned_last_counts_but_its_own_result_goes_first():
    other = nd.TileChoice((128, 128, 64), 128, 4, 3)
    keep(product(8192), ODD)
    keep(product(8000), other)
    assert nd.suggest_tile(product(7000 // 8 * 8), sm=90) == other
    assert nd.suggest_tile(product(8192), sm=90) == ODD


def test_results_of_another_device_do_not_count(device):
    keep(product(), ODD)
    device["multiprocessors"] = 78
    assert nd.suggest_tile(product(), sm=90) == choice()
    device.update(DEVICE, compute_capability=[8, 0])
    keep(product(), nd.TileChoice((128, 128, 32), 128, 2, 3), device)
    assert nd.suggest_tile(product(), sm=90) == choice()
    assert nd.suggest_tile(product(), sm=80) == nd.TileChoice((128, 128, 32), 128, 2, 3)


def test_a_result_that_is_refused_by_now_does_not_count():
    keep(product(), choice(threads=128))
    assert nd.suggest_tile(product(), sm=90) == choice()


def test_without_a_device_the_target_has_to_be_given(monkeypatch):
    from nvmath_device.lto import toolchain

    def absent():
        raise NoDeviceError("no device; pass sm=")

    monkeypatch.setattr(tuned_results, "current_device_words", absent)
    monkeypatch.setattr(toolchain, "current_sm", absent)
    assert nd.suggest_tile(product(), sm=90) == choice()
    with pytest.raises(NoDeviceError, match="sm="):
        nd.suggest_tile(product())
    monkeypatch.setattr(toolchain, "current_sm", lambda: 900)
    assert nd.suggest_tile(product()) == choice()


@pytest.mark.parametrize(
    ("descriptor", "error", "text"),
    [
        ("8192", ArgumentTypeError, "descriptor: '8192' is a str"),
        (product(precision=("float8_e4m3fn",) * 3), UnsupportedError, "C cannot be float8_e4m3fn"),
    ],
)
def test_wrong_products_are_named(descriptor, error, text):
    with pytest.raises(error, match=text):
        nd.suggest_tile(descriptor, sm=90)


# -- as a Matmul -----------------------------------------------------------------------------------------------


def test_a_suggested_tile_is_a_matmul_for_multiply():
    mm = product().tile("suggested", sm=90)
    assert (mm.size, mm.block_size, tuple(mm.alignment)) == ((128, 256, 64), 256, (16, 16, 16))
    assert mm.with_pipeline
    assert mm.path().arithmetic == "wgmma"
    assert mm == product().tile(nd.suggest_tile(product(), sm=90), sm=90)


def test_a_tile_whose_c_does_not_fit_into_shared_memory_is_one_for_multiply():
    mm = product().tile(nd.TileChoice((256, 192, 64), 512, 4, 16), sm=90)
    assert mm.get_pipeline_storage_size(4) == 4 * ((256 + 192) * 64 * 2 + 16)


def test_what_is_given_beside_it_stays():
    mm = product().tile("suggested", sm=90, block_size=512, alignment=(2, 2, 4), with_pipeline=False)
    assert (mm.block_size, tuple(mm.alignment), mm.with_pipeline) == (512, (2, 2, 4), False)
    assert product().tile("suggested", sm=90, block_dim=(64, 4)).block_dim == (64, 4, 1)


def test_a_word_that_is_mistyped_is_told():
    with pytest.raises(InvalidArgumentError, match=r"size: 'sugested' is not allowed; .*did you mean 'suggested'"):
        product().tile("sugested")


def test_the_table_is_json_that_ships_with_the_package():
    content = json.loads(tile_suggestions.TABLE.read_text(encoding="utf-8"))
    assert content["device"] == "NVIDIA H200"
    assert tile_suggestions.TABLE.parent.name == "nvmath_device"
