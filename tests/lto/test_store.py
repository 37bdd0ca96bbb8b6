# SPDX-License-Identifier: Apache-2.0
"""One entry and its file, damage, settings, housekeeping, the cost of a hit. No GPU, nothing generated."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import pickle
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

import nvmath_device
from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError
from nvmath_device.lto.store import Entry, Store, default_store

PACKAGE_PARENT = str(Path(nvmath_device.__file__).resolve().parent.parent)
KEY = {"size": [64, 32, 16], "precision": "float16", "libmathdx": "0.4.2"}
META = {"symbol": "gemm_64", "lda": 64, "pi": 3.25, "nothing": None, "text": "ä\n\u2028"}


@pytest.fixture
def root(tmp_path):
    return tmp_path / "store"


@pytest.fixture
def store(root):
    return Store(root)


def entry_files(root):
    return sorted(Path(root).glob("v1/??/*.entry"))


def leftovers(root):
    return [path for folder in ("tmp", "locks") for path in Path(root).glob(f"v1/{folder}/*")]


def only_file(root):
    (path,) = entry_files(root)
    return path


# -- one entry --


def test_what_is_put_is_got_by_another_store_object(store, root):
    assert store.get("ltoir", KEY) is None
    assert store.put("ltoir", KEY, meta=META, blob=b"\x00\nblob\xff") is True
    expected = Entry("ltoir", KEY, META, b"\x00\nblob\xff")
    assert store.get("ltoir", KEY) == expected
    assert Store(root).get("ltoir", dict(reversed(KEY.items()))) == expected


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("cubin", KEY),
        ("ltoir", KEY | {"libmathdx": "0.4.3"}),
        ("ltoir", KEY | {"size": [64, 32, 16.0]}),
        ("ltoir", "x"),
    ],
)
def test_another_kind_or_key_is_another_entry(store, kind, key):
    store.put("ltoir", KEY, meta=META, blob=b"blob")
    assert store.get(kind, key) is None


def test_the_file_is_one_json_line_and_the_blob(store, root):
    blob = os.urandom(10_000)
    store.put("ltoir", {"b": 1, "a": "ä"}, meta=META, blob=blob)
    name = hashlib.sha256(b'["ltoir",{"a":"\\u00e4","b":1}]').hexdigest()
    path = root / "v1" / name[:2] / f"{name}.entry"
    line, _, rest = path.read_bytes().partition(b"\n")
    assert rest == blob
    header = json.loads(line)
    header_sum = header.pop("header_sha256")
    assert header == {
        "schema": 1,
        "kind": "ltoir",
        "key": {"a": "ä", "b": 1},
        "meta": META,
        "size": 10_000,
        "sha256": hashlib.sha256(blob).hexdigest(),
    }
    assert header_sum == hashlib.sha256(line[: line.rindex(b',"header_sha256"')]).hexdigest()


def test_an_entry_is_immutable_and_the_next_reader_gets_its_own_meta(store):
    store.put("ltoir", KEY, meta=META, blob=b"blob")
    entry = store.get("ltoir", KEY)
    with pytest.raises(AttributeError, match="immutable"):
        entry.blob = b"other"
    entry.meta["lda"] = 0
    entry.key["size"].clear()
    assert store.get("ltoir", KEY) == Entry("ltoir", KEY, META, b"blob")
    assert pickle.loads(pickle.dumps(entry)) == entry
    assert repr(entry).endswith("blob=<4 bytes>)")


def test_tuples_come_back_as_lists_from_the_first_answer_on(store, root):
    first = store.get_or_create("t", {"size": (1, 2)}, lambda: ({"shape": (3, 4)}, b""))
    assert first == Store(root).get("t", {"size": [1, 2]}) == Entry("t", {"size": [1, 2]}, {"shape": [3, 4]}, b"")


def test_a_long_header_is_read_whole(store, root):
    meta = {"text": "x" * 100_000}
    store.put("t", "key", meta=meta, blob=b"blob")
    assert Store(root).get("t", "key").meta == meta


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda s: s.get("", KEY), InvalidArgumentError, "kind"),
        (lambda s: s.get("k", 7), ArgumentTypeError, "key is 7"),
        (lambda s: s.get("k", {}), InvalidArgumentError, "key is {}"),
        (lambda s: s.get("k", {"a": {1: 2}}), ArgumentTypeError, r"key\['a'\]: dict key is 1"),
        (lambda s: s.get("k", {"a": [1, float("nan")]}), InvalidArgumentError, r"key\['a'\]\[1\] is nan"),
        (lambda s: s.put("k", KEY, meta={"a": b"x"}, blob=b""), ArgumentTypeError, r"meta\['a'\]"),
        (lambda s: s.put("k", KEY, meta=[1], blob=b""), ArgumentTypeError, "meta is"),
        (lambda s: s.put("k", KEY, meta={}, blob="text"), ArgumentTypeError, "blob is"),
        (lambda s: s.put("k", KEY, meta={"a": "x" * (17 << 20)}, blob=b""), ValueError, "belongs in blob"),
        (lambda s: Store("x", 0), InvalidArgumentError, "max_bytes is 0"),
    ],
)
def test_wrong_arguments_are_named(store, root, call, error, words):
    with pytest.raises(error, match=words):
        call(store)
    assert entry_files(root) == []


def test_folders_are_made_on_the_first_write_for_the_owner_only(root):
    store = Store(root / "deep")
    assert store.get("k", "key") is None
    assert not root.exists()
    old = os.umask(0)
    try:
        store.put("k", "key", meta={}, blob=b"")
    finally:
        os.umask(old)
    folders = [root, *(path for path in root.rglob("*") if path.is_dir())]
    assert len(folders) == 5  # store, deep, v1, tmp, one shard
    assert {path.stat().st_mode & 0o777 for path in folders} == {0o700}
    assert only_file(root / "deep").stat().st_mode & 0o777 == 0o600


# -- damage --


def damaged_copies(data):
    for position in range(len(data)):
        for bit in range(8):
            yield data[:position] + bytes([data[position] ^ (1 << bit)]) + data[position + 1 :]


def header_with_right_sums(data, **changes):
    """A well-summed file whose header fields differ: only the field checks can refuse it."""
    line, _, blob = data.partition(b"\n")
    fields = json.loads(line)
    del fields["header_sha256"]
    head = json.dumps(fields | changes, separators=(",", ":")).encode()[:-1]
    return head + b',"header_sha256":"' + hashlib.sha256(head).hexdigest().encode() + b'"}\n' + blob


def test_the_helper_makes_a_file_the_store_accepts(store, root):
    store.put("ltoir", "key", meta={"a": 1}, blob=b"blob")
    path = only_file(root)
    path.write_bytes(header_with_right_sums(path.read_bytes(), meta={"a": 2}))
    assert Store(root).get("ltoir", "key") == Entry("ltoir", "key", {"a": 2}, b"blob")


def test_every_single_flipped_bit_is_a_miss(store, root, caplog):
    caplog.set_level(logging.CRITICAL, "nvmath_device")
    store.put("ltoir", "key", meta={"symbol": "s"}, blob=b"some blob")
    path = only_file(root)
    data = path.read_bytes()
    count = 0
    for damaged in damaged_copies(data):
        path.write_bytes(damaged)
        assert Store(root).get("ltoir", "key") is None
        assert not path.exists()
        count += 1
    assert count == 8 * len(data) > 1900
    path.write_bytes(data)
    assert Store(root).get("ltoir", "key").blob == b"some blob"


def test_every_truncation_is_a_miss(store, root, caplog):
    caplog.set_level(logging.CRITICAL, "nvmath_device")
    store.put("ltoir", "key", meta={"symbol": "s"}, blob=b"some blob")
    path = only_file(root)
    data = path.read_bytes()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        assert Store(root).get("ltoir", "key") is None
        assert not path.exists()


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data + b"x",
        lambda data: b"\n" + data,
        lambda data: os.urandom(100_000),
        lambda data: b"x" * (20 << 20),
        lambda data: b"{}\n",
        lambda data: pickle.dumps({"schema": 1}),
        lambda data: header_with_right_sums(data, schema=2),
        lambda data: header_with_right_sums(data, kind="other"),
        lambda data: header_with_right_sums(data, kind=None),
        lambda data: header_with_right_sums(data, key="another key"),
        lambda data: header_with_right_sums(data, key=["key"]),
        lambda data: header_with_right_sums(data, meta=None),
        lambda data: header_with_right_sums(data, meta={"a": float("nan")}),
        lambda data: header_with_right_sums(data, size=-1),
        lambda data: header_with_right_sums(data, size="9"),
        lambda data: header_with_right_sums(data, size=8),
        lambda data: header_with_right_sums(data, sha256=hashlib.sha256(b"other").hexdigest()),
        lambda data: header_with_right_sums(data, sha256=7),
    ],
)
def test_a_foreign_file_is_a_logged_miss_and_is_replaced(store, root, damage, caplog):
    store.put("ltoir", "key", meta={"symbol": "s"}, blob=b"some blob")
    path = only_file(root)
    path.write_bytes(damage(path.read_bytes()))
    fresh = Store(root)
    with caplog.at_level(logging.WARNING, "nvmath_device"):
        assert fresh.get("ltoir", "key") is None
    assert path.name in caplog.text
    assert not path.exists()
    entry = fresh.get_or_create("ltoir", "key", lambda: ({}, b"again"))
    assert entry.blob == b"again"
    assert Store(root).get("ltoir", "key") == entry


def test_an_entry_of_another_key_under_this_name_is_a_miss(store, root):
    store.put("ltoir", "one", meta={}, blob=b"1")
    one = only_file(root)
    store.put("ltoir", "two", meta={}, blob=b"2")
    (two,) = set(entry_files(root)) - {one}
    two.write_bytes(one.read_bytes())
    assert Store(root).get("ltoir", "two") is None
    assert not two.exists()
    assert Store(root).get("ltoir", "one").blob == b"1"


def test_a_folder_in_the_place_of_an_entry_is_a_miss(store, root):
    store.put("ltoir", "key", meta={}, blob=b"1")
    path = only_file(root)
    path.unlink()
    path.mkdir()
    fresh = Store(root)
    assert fresh.get("ltoir", "key") is None
    assert fresh.put("ltoir", "key", meta={}, blob=b"2") is False
    assert leftovers(root) == []


# -- settings --


@pytest.fixture
def environment(monkeypatch, tmp_path):
    for name in ("NVMATH_DEVICE_CACHE_DIR", "NVMATH_DEVICE_CACHE_SIZE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return monkeypatch


@pytest.mark.parametrize("value", ["0", "off", "OFF", "none", "", " "])
def test_the_environment_switches_the_store_off(environment, value):
    environment.setenv("NVMATH_DEVICE_CACHE_DIR", value)
    assert default_store().path is None


def test_the_environment_names_the_folder(environment, tmp_path):
    environment.setenv("NVMATH_DEVICE_CACHE_DIR", "~/here")
    store = default_store()
    assert store.path == tmp_path / "here"
    assert store is default_store()
    environment.setenv("NVMATH_DEVICE_CACHE_DIR", str(tmp_path / "there"))
    assert default_store().path == tmp_path / "there"
    assert not (tmp_path / "there").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
@pytest.mark.parametrize(("xdg", "below"), [(None, ".cache"), ("", ".cache"), ("relative", ".cache"), ("XDG", "xdg")])
def test_the_default_folder_follows_xdg(environment, tmp_path, xdg, below):
    if xdg is not None:
        environment.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg") if xdg == "XDG" else xdg)
    assert default_store().path == tmp_path / below / "nvmath_device"


@pytest.mark.parametrize(
    ("platform", "variables", "below"),
    [
        ("darwin", {}, ("home", "Library", "Caches", "nvmath_device")),
        ("win32", {"LOCALAPPDATA": "{}/local"}, ("local", "nvmath_device", "Cache")),
    ],
)
def test_the_default_folder_of_other_systems(environment, tmp_path, platform, variables, below):
    from nvmath_device.lto import store_settings

    environment.setenv("HOME", str(tmp_path / "home"))
    environment.setattr(store_settings.sys, "platform", platform)
    given = {name: value.format(tmp_path) for name, value in variables.items()}
    assert store_settings.root_from(given) == str(tmp_path.joinpath(*below))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, 4 * 1024**3),
        ("", 4 * 1024**3),
        ("123456", 123456),
        ("9007199254740993", 9007199254740993),
        ("2GiB", 2 * 1024**3),
        ("500 MB", 500_000_000),
        (" 1.5 gib ", 1610612736),
        ("64k", 65536),
        ("3T", 3 * 1024**4),
        ("7 kB", 7000),
        ("10B", 10),
    ],
)
def test_the_size_cap(environment, text, expected):
    if text is not None:
        environment.setenv("NVMATH_DEVICE_CACHE_SIZE", text)
    assert default_store().max_bytes == expected


@pytest.mark.parametrize(
    "text", ["much", "0", "-5", "1e9", "inf", "nan", "2 GiBs", "1.2.3", ".", "GiB", "0.1", "٣", "1_000"]
)
def test_a_nonsense_size_cap_names_the_variable(environment, text):
    environment.setenv("NVMATH_DEVICE_CACHE_SIZE", text)
    with pytest.raises(InvalidArgumentError, match=r"NVMATH_DEVICE_CACHE_SIZE is .*2GiB"):
        default_store()


# -- housekeeping --


def test_entries_size_and_clear(store, root):
    store.put("a", KEY, meta={"x": 1}, blob=b"1" * 100)
    store.put("b", "word", meta={}, blob=b"2" * 200)
    (root / "mine.txt").write_text("not the store's")
    entry_files(root)[0].with_name("broken.entry").write_bytes(b"junk")
    found = sorted(store.entries(), key=lambda info: info.kind)
    assert [(info.kind, info.key) for info in found] == [("a", KEY), ("b", "word")]
    for info, size in zip(found, (100, 200), strict=True):
        assert info.size == info.path.stat().st_size > size
        assert abs(info.mtime - time.time()) < 60
    assert store.size_bytes() == sum(info.size for info in found)
    assert store.path == root
    assert store.clear() == 2
    assert store.get("a", KEY) is None
    assert store.size_bytes() == 0
    assert (root / "mine.txt").exists()
    assert store.put("a", KEY, meta={}, blob=b"again") is True


def test_export_and_import(store, root, tmp_path):
    blobs = {f"key {index}": os.urandom(1000 * index) for index in range(5)}
    for key, blob in blobs.items():
        store.put("k", key, meta={"of": key}, blob=blob)
    entry_files(root)[0].write_bytes(b"damaged")
    archive = tmp_path / "store.zip"
    assert store.export_entries(archive) == 4
    assert {path.name for path in tmp_path.iterdir()} == {"store", "store.zip"}

    other = Store(tmp_path / "other")
    assert other.import_entries(archive) == 4
    got = {key: entry for key in blobs if (entry := other.get("k", key)) is not None}
    assert len(got) == 4
    for key, entry in got.items():
        assert entry == Entry("k", key, {"of": key}, blobs[key])
    assert {path.name for path in entry_files(tmp_path / "other")} == {path.name for path in entry_files(root)[1:]}


def test_import_takes_only_intact_entries_and_files_them_by_their_own_key(store, root, tmp_path, caplog):
    store.put("k", "good", meta={}, blob=b"good")
    data = only_file(root).read_bytes()
    archive = tmp_path / "made.zip"
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("../../elsewhere.entry", data)
        made.writestr("flipped.entry", data[:-1] + b"D")
        made.writestr("text.txt", b"hello")
        made.writestr("huge.entry", header_with_right_sums(data, key="huge") + b"x" * 9000)
        made.writestr("nested.entry", header_with_right_sums(data, key={}))
    other = Store(tmp_path / "other", 8000)
    with caplog.at_level(logging.WARNING, "nvmath_device"):
        assert other.import_entries(archive) == 1
    assert len(caplog.records) == 4
    assert other.get("k", "good").blob == b"good"
    assert not (tmp_path / "elsewhere.entry").exists()
    broken = bytearray(archive.read_bytes())
    broken[60] ^= 0xFF  # inside the first member
    archive.write_bytes(broken)
    assert Store(tmp_path / "third").import_entries(archive) == 0


def test_import_of_something_else_says_so(store, tmp_path):
    (tmp_path / "text").write_text("hello")
    with pytest.raises(InvalidArgumentError, match="export_entries"):
        store.import_entries(tmp_path / "text")
    with pytest.raises(FileNotFoundError):
        store.import_entries(tmp_path / "missing")


# -- cost --

HIT = """
import sys, time
before = set(sys.modules)
started = time.perf_counter()
from nvmath_device.lto.store import Store
store = Store(sys.argv[1])
traits = store.get("gemm-traits", {"m": 64, "libmathdx": "0.4.2"})
code = store.get("gemm-ltoir", {"m": 64, "libmathdx": "0.4.2"})
took = time.perf_counter() - started
assert traits.meta == {"lda": 64} and len(code.blob) == 5_000_000
print(took)
print(*sorted(set(sys.modules) - before))
"""


def run_python(code, *arguments, tmp_path, **variables):
    # Byte code is cached as in an ordinary installation, whatever the test run itself does.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment |= {
        "PYTHONPATH": PACKAGE_PARENT,
        "PYTHONPYCACHEPREFIX": str(tmp_path / "pycache"),
        **variables,
    }
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_a_hit_in_a_new_process_is_fast_and_imports_nothing_heavy(root, tmp_path):
    store = Store(root)
    for index in range(2998):
        store.put("filler", {"index": index}, meta={"x": "y" * 200}, blob=b"z" * 500)
    store.put("gemm-traits", {"m": 64, "libmathdx": "0.4.2"}, meta={"lda": 64}, blob=b"")
    store.put("gemm-ltoir", {"m": 64, "libmathdx": "0.4.2"}, meta={"symbol": "s"}, blob=os.urandom(5_000_000))
    assert len(entry_files(root)) == 3000
    runs = [run_python(HIT, root, tmp_path=tmp_path) for _ in range(5)]
    best = min(float(took) for took, _ in runs)
    assert best < 0.050, f"{best * 1e3:.1f} ms"
    modules = set(runs[-1][1].split())
    assert "nvmath_device.lto.store" in modules
    heavy = {
        "numpy",
        "numba",
        "logging",
        "tempfile",
        "dataclasses",
        "inspect",
        "zipfile",
        "platformdirs",
        "hashlib",
    }
    assert modules & heavy == set()


def test_an_import_creates_nothing(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    code = "import nvmath_device.lto.store as s; s.default_store().get('k', 'key')"
    run_python(code, tmp_path=tmp_path, HOME=str(home), XDG_CACHE_HOME=str(home / "xdg"))
    assert list(home.iterdir()) == []
