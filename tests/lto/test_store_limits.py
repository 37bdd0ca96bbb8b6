# SPDX-License-Identifier: Apache-2.0
"""Full disks, unwritable places, and the size cap. No GPU, nothing generated."""

from __future__ import annotations

import errno
import logging
import os
import sys
import time
from pathlib import Path

import pytest

from nvmath_device.lto import store as store_module
from nvmath_device.lto import store_files
from nvmath_device.lto.store import Entry, Store


@pytest.fixture
def root(tmp_path):
    return tmp_path / "store"


@pytest.fixture
def store(root):
    return Store(root)


@pytest.fixture(autouse=True)
def warn_again(monkeypatch):
    monkeypatch.setattr(store_files, "_write_failure_was_reported", False)


def entry_files(root):
    return sorted(Path(root).glob("v1/??/*.entry"))


def leftovers(root):
    return [path for folder in ("tmp", "locks") for path in Path(root).glob(f"v1/{folder}/*")]


def only_file(root):
    (path,) = entry_files(root)
    return path


def never(*_arguments):
    raise AssertionError("create was called although the entry exists")


# -- full and read-only disks --


def full(*_arguments, **_options):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def nearly_full(fd, data, _write=os.write):
    if len(data) < 20:
        full()
    return _write(fd, data[: len(data) // 2])


@pytest.mark.parametrize(
    ("function", "fake"),
    [
        ("write", full),
        ("write", nearly_full),
        ("open", full),
        ("mkdir", full),
        ("replace", full),
        ("close", "real, then full"),
    ],
)
def test_a_full_disk_costs_only_the_entry(root, monkeypatch, caplog, function, fake):
    if function != "mkdir":
        Store(root).put("k", "earlier", meta={}, blob=b"")  # the folders exist
    if function == "close":
        real_close = os.close

        def fake(fd):
            real_close(fd)
            full()

    store = Store(root)
    with caplog.at_level(logging.WARNING, "nvmath_device"), monkeypatch.context() as patch:
        patch.setattr(os, function, fake)
        assert store.put("k", "key", meta={}, blob=b"x" * 1000) is False
        assert store.put("k", "other", meta={}, blob=b"x" * 1000) is False
    assert [record.levelname for record in caplog.records] == ["WARNING"]  # once a process
    assert "NVMATH_DEVICE_CACHE_DIR" in caplog.text
    assert os.strerror(errno.ENOSPC) in caplog.text
    assert store.get("k", "key") is None
    assert leftovers(root) == []
    assert store.put("k", "key", meta={}, blob=b"x" * 1000) is True


UNWRITABLE = ["below a file", "is a file", "below a dangling link"]
if sys.platform == "linux":  # the kernel refuses these to root, too
    UNWRITABLE += ["/proc/nvmath_device", "/sys/nvmath_device", "/dev/null/x"]


@pytest.mark.parametrize("place", UNWRITABLE)
def test_an_unwritable_place_costs_only_speed(tmp_path, place, caplog):
    (tmp_path / "file").write_bytes(b"mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere" / "at all")
    root = {
        "below a file": tmp_path / "file" / "store",
        "is a file": tmp_path / "file",
        "below a dangling link": tmp_path / "link" / "store",
    }.get(place, place)
    store = Store(root)
    with caplog.at_level(logging.WARNING, "nvmath_device"):
        assert store.get("k", "key") is None
        assert store.put("k", "key", meta={}, blob=b"1") is False
        assert store.get_or_create("k", "key", lambda: ({"a": 1}, b"2")) == Entry("k", "key", {"a": 1}, b"2")
    assert len(caplog.records) == 1
    assert store.get_or_create("k", "key", never).blob == b"2"  # this process still has it
    assert (store.size_bytes(), list(store.entries()), store.clear()) == (0, [], 0)
    assert (tmp_path / "file").read_bytes() == b"mine"


def test_a_store_that_is_off_touches_no_disk(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "v1" / "ab").mkdir(parents=True)
    (tmp_path / "v1" / "ab" / "x.entry").write_bytes(b"not the store's")
    store = Store(None)
    assert store.path is None
    assert store.put("k", "key", meta={}, blob=b"1") is False
    assert store.get_or_create("k", "key", lambda: ({}, b"2")).blob == b"2"
    assert store.get("k", "key") is None
    assert (store.size_bytes(), list(store.entries()), store.clear()) == (0, [], 0)
    assert [path.name for path in tmp_path.rglob("*")] == ["v1", "ab", "x.entry"]


# -- the cap --


def put_aged(root, name, age_s, size=1000, max_bytes=10**9):
    """An entry last used age_s seconds ago."""
    before = set(entry_files(root))
    assert Store(root, max_bytes).put("k", name, meta={}, blob=b"x" * size)
    (path,) = set(entry_files(root)) - before
    os.utime(path, (time.time() - age_s,) * 2)
    return path


def names(root):
    return sorted(entry.key for entry in Store(root).entries())


def test_the_least_recently_used_go_first(root):
    for name, age_s in [("a", 300), ("b", 500), ("c", 100), ("d", 400)]:
        size = put_aged(root, name, age_s).stat().st_size
    Store(root).get("k", "b")  # a use makes it the youngest
    store = Store(root, 3 * size)
    assert store.put("k", "e", meta={}, blob=b"x" * 1000) is True
    assert names(root) == ["b", "c", "e"]
    assert store.size_bytes() == 3 * size


def test_a_use_from_memory_counts_as_a_use(root, monkeypatch):
    store = Store(root)
    store.put("k", "a", meta={}, blob=b"")
    path = only_file(root)
    monkeypatch.setattr(store_module, "_TOUCH_INTERVAL_S", 0.0)
    os.utime(path, (1, 1))
    assert store.get("k", "a") is not None
    assert time.time() - path.stat().st_mtime < 60


def test_recent_uses_cost_no_write(root):
    path = put_aged(root, "a", age_s=5)
    mtime = path.stat().st_mtime
    assert Store(root).get("k", "a") is not None
    assert path.stat().st_mtime == mtime


def test_an_entry_above_the_cap_is_not_stored_and_empties_nothing(root):
    put_aged(root, "a", 100)
    store = Store(root, 4000)
    assert store.put("k", "big", meta={}, blob=b"x" * 4000) is False
    assert store.get("k", "big") is None
    assert store.get_or_create("k", "big", lambda: ({}, b"y" * 4000)).blob == b"y" * 4000
    assert names(root) == ["a"]


def test_the_entry_just_written_stays_even_when_its_clock_is_behind(root, monkeypatch):
    store = Store(root, 2000)
    put_aged(root, "future", age_s=-5000)
    monkeypatch.setattr(store_module, "_TOUCH_INTERVAL_S", 1e9)
    assert store.put("k", "new", meta={}, blob=b"x" * 1000) is True
    assert names(root) == ["new"]


def test_a_burst_of_writes_stays_below_the_cap(root):
    size = put_aged(root, "first", 100).stat().st_size
    store = Store(root, 10 * size)
    for index in range(60):
        assert store.put("k", f"n{index:03}", meta={}, blob=b"x" * 1000)
        assert store.size_bytes() <= 10 * size
    assert len(entry_files(root)) == 10


def test_writes_below_the_cap_do_not_look_at_the_folder_each_time(root, monkeypatch):
    scans = []
    real_scan = store_files.scan
    monkeypatch.setattr(store_files, "scan", lambda base: scans.append(1) or real_scan(base))
    store = Store(root)
    started = time.monotonic()
    for index in range(50):
        store.put("k", f"n{index}", meta={}, blob=b"")
        assert store.get("k", f"n{index}") is not None
    assert len(scans) <= 1 + (time.monotonic() - started)


@pytest.mark.parametrize("change", ["replaced", "used"])
def test_eviction_spares_what_changed_since_it_looked(root, monkeypatch, change):
    old = put_aged(root, "old", 500)
    put_aged(root, "younger", 400)
    size = old.stat().st_size
    real_scan = store_files.scan

    def scan_then_change(base):
        seen = real_scan(base)
        if change == "replaced":
            Store(root).put("k", "old", meta={}, blob=b"y" * 1000)
        else:
            os.utime(old)
        return seen

    store = Store(root, 2 * size)
    with monkeypatch.context() as patch:
        patch.setattr(store_module, "_RESCAN_INTERVAL_S", 0.0)
        patch.setattr(store_files, "scan", scan_then_change if change == "used" else replacing_once(scan_then_change))
        store.put("k", "new", meta={}, blob=b"x" * 1000)
    assert names(root) == ["new", "old"]


def replacing_once(scan_then_change):
    """The replacement itself looks at the folder: only the first look may replace."""
    looks = []

    def scan(base):
        looks.append(1)
        return scan_then_change(base) if len(looks) == 1 else []

    return scan


def test_memory_is_bounded_and_drops_the_oldest(root, monkeypatch):
    monkeypatch.setattr(store_module, "_MEMORY_BYTES", 3500)
    store = Store(root)
    for name in "abcd":
        store.put("k", name, meta={}, blob=b"x" * 1000)
        store.get("k", "a")
    store.put("k", "huge", meta={}, blob=b"x" * 4000)
    for path in entry_files(root):
        path.unlink()
    assert [name for name in ["a", "b", "c", "d", "huge"] if store.get("k", name)] == ["a", "c", "d"]
