# SPDX-License-Identifier: Apache-2.0
"""The store under damage, races, full and read-only disks. No GPU, nothing generated."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import nvmath_device
import pytest
from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError
from nvmath_device.lto import store as store_module
from nvmath_device.lto import store_files
from nvmath_device.lto.store import Entry, Store, default_store

WORKER = Path(__file__).with_name("store_worker.py")
PACKAGE_PARENT = str(Path(nvmath_device.__file__).resolve().parent.parent)
KEY = {"size": [64, 32, 16], "precision": "float16", "libmathdx": "0.4.2"}
META = {"symbol": "gemm_64", "lda": 64, "pi": 3.25, "nothing": None, "text": "ä\n\u2028"}
MIB = 1 << 20


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


class Worker:
    """A process of store_worker.py, waiting at its start line."""

    def __init__(self, command, root, *arguments):
        environment = os.environ | {"PYTHONPATH": PACKAGE_PARENT}
        self.process = subprocess.Popen(
            [sys.executable, str(WORKER), command, str(root), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def line(self):
        return self.process.stdout.readline().strip()

    def go(self):
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def result(self):
        output, _ = self.process.communicate(timeout=60)
        assert self.process.returncode == 0
        return output.split("\n")[:-1]


@pytest.fixture
def start():
    """start([(command, root, argument...), ...]): workers that left the start line together."""
    workers = []

    def start_all(jobs):
        mine = [Worker(*job) for job in jobs]
        workers.extend(mine)
        assert [worker.line() for worker in mine] == ["ready"] * len(mine)
        for worker in mine:
            worker.go()
        return mine

    yield start_all
    for worker in workers:
        if worker.process.poll() is None:
            worker.kill()


def never(*_arguments):
    raise AssertionError("create was called although the entry exists")


def in_threads(count, function):
    """Run function(index) in threads that start together; results or exceptions in order."""
    barrier = threading.Barrier(count)
    results = [None] * count

    def run(index):
        barrier.wait()
        try:
            results[index] = function(index)
        except Exception as error:
            results[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


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
    assert (
        first
        == Store(root).get("t", {"size": [1, 2]})
        == Entry("t", {"size": [1, 2]}, {"shape": [3, 4]}, b"")
    )


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


# -- races --


def test_six_processes_write_one_key(start, root):
    workers = start([("write_same", root, letter, 8) for letter in "abcdef"])
    for worker in workers:
        worker.result()
    entry = Store(root).get("race", "one key")
    assert entry.blob == entry.meta["who"].encode() * MIB
    assert entry.meta["who"] in "abcdef"
    assert len(entry_files(root)) == 1
    assert leftovers(root) == []


def test_four_processes_write_25_keys_each(start, root):
    for worker in start([("write_own", root, who, 25) for who in "wxyz"]):
        worker.result()
    store = Store(root)
    for who in "wxyz":
        for index in range(25):
            assert store.get("own", {"who": who, "index": index}).blob == f"{who}-{index}".encode() * 1000
    assert len(entry_files(root)) == 100


def test_no_read_is_torn_while_the_entry_is_rewritten(start, root, tmp_path):
    Store(root).put("race", "rewritten", meta={"letter": "a"}, blob=b"a" * 200_000)
    writers = start([("rewrite", root, tmp_path / "stop")] * 2)
    seen = set()
    for _ in range(200):
        entry = Store(root).get("race", "rewritten")
        assert entry is not None
        assert 200_000 <= len(entry.blob) < 200_007
        assert entry.blob == entry.meta["letter"].encode() * len(entry.blob)
        seen.add(len(entry.blob))
    (tmp_path / "stop").touch()
    rounds = [int(worker.result()[-1]) for worker in writers]
    assert len(seen) > 1  # they did write meanwhile
    assert min(rounds) > 1


def test_eight_processes_create_once(start, root, tmp_path):
    workers = start([("create_once", root, tmp_path / "counter", 0.3)] * 8)
    makers = {worker.result()[-1] for worker in workers}
    calls = (tmp_path / "counter").read_text().split()
    assert len(calls) == 1
    assert makers == set(calls)
    assert leftovers(root) == []


@pytest.mark.parametrize("switched_off", [False, True])
def test_eight_threads_create_once(root, switched_off):
    store = Store(None if switched_off else root)
    calls = []

    def create():
        calls.append(threading.get_ident())
        time.sleep(0.2)
        return {"by": "one"}, b"made"

    entries = in_threads(8, lambda _: store.get_or_create("k", "key", create))
    assert entries == [Entry("k", "key", {"by": "one"}, b"made")] * 8
    assert len(calls) == 1
    assert len({id(entry.meta) for entry in entries}) == 8


@pytest.mark.parametrize("switched_off", [False, True])
def test_a_failing_create_reaches_its_caller_and_the_next_one_tries(root, switched_off):
    store = Store(None if switched_off else root)
    calls = []

    def create():
        calls.append(1)
        time.sleep(0.1)
        if len(calls) <= 2:
            raise KeyError(f"failure {len(calls)}")
        return {}, b"third"

    results = in_threads(6, lambda _: store.get_or_create("k", "key", create))
    failures = [result for result in results if isinstance(result, KeyError)]
    assert sorted(str(failure) for failure in failures) == ["'failure 1'", "'failure 2'"]
    assert [result.blob for result in results if not isinstance(result, KeyError)] == [b"third"] * 4
    assert len(calls) == 3
    assert leftovers(root) == []


def test_two_store_objects_of_one_process_exclude_each_other(root):
    calls = []

    def create():
        calls.append(1)
        time.sleep(0.2)
        return {}, b"made"

    in_threads(4, lambda _: Store(root).get_or_create("k", "key", create))
    assert len(calls) == 1


def test_a_killed_creator_frees_the_key(start, root):
    (holder,) = start([("hold", root)])
    assert holder.line() == "creating"
    store = Store(root)
    result = []
    waiter = threading.Thread(
        target=lambda: result.append(store.get_or_create("held", "key", lambda: ({}, b"mine")))
    )
    waiter.start()
    waiter.join(0.3)
    assert waiter.is_alive()  # the lock holds while its owner lives
    holder.kill()
    waiter.join(10)
    assert [entry.blob for entry in result] == [b"mine"]
    assert leftovers(root) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_forked_by_a_killed_creator_does_not_keep_the_key(start, root):
    (holder,) = start([("hold_with_forked_child", root)])
    child = int(holder.line())
    try:
        holder.process.send_signal(signal.SIGKILL)
        holder.process.wait()
        os.kill(child, 0)  # it lives
        started = time.monotonic()
        assert Store(root).get_or_create("held", "key", lambda: ({}, b"mine")).blob == b"mine"
        assert time.monotonic() - started < 5
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_forked_beside_a_creating_thread_can_use_the_store(start, root):
    (worker,) = start([("fork_beside_a_creating_thread", root)])
    assert worker.result() == ["child parent"]


def test_a_wait_for_a_hanging_creator_ends(start, root, monkeypatch):
    (holder,) = start([("hold", root)])
    assert holder.line() == "creating"
    monkeypatch.setattr(store_module, "_LOCK_WAIT_S", 0.2)
    assert Store(root).get_or_create("held", "key", lambda: ({}, b"mine")).blob == b"mine"


def test_a_write_killed_half_way_leaves_no_entry_and_is_cleaned_up(start, root):
    (writer,) = start([("hang_in_write", root)])
    assert writer.line() == "half"
    writer.kill()
    (torn,) = leftovers(root)
    assert torn.stat().st_size > 100
    store = Store(root)
    assert store.get("torn", "key") is None
    assert list(store.entries()) == []
    store.put("k", "fresh files are not touched", meta={}, blob=b"")
    assert leftovers(root) == [torn]
    os.utime(torn, (time.time() - 3700,) * 2)
    Store(root).put("k", "next process", meta={}, blob=b"")
    assert leftovers(root) == []


def test_the_lock_file_of_a_killed_creator_is_swept(start, root):
    (holder,) = start([("hold", root)])
    assert holder.line() == "creating"
    (lock,) = leftovers(root)
    os.utime(lock, (time.time() - 3700,) * 2)
    Store(root).put("k", "a", meta={}, blob=b"")
    assert leftovers(root) == [lock]  # held: not swept, however old
    holder.kill()
    Store(root).put("k", "b", meta={}, blob=b"")
    assert leftovers(root) == []


# -- nesting and many keys --


def test_create_may_ask_for_other_keys(store):
    def outer():
        inner = store.get_or_create("inner", "key", lambda: ({}, b"inner"))
        return {}, b"outer of " + inner.blob

    entries = in_threads(4, lambda _: store.get_or_create("outer", "key", outer))
    assert {entry.blob for entry in entries} == {b"outer of inner"}


def test_create_that_asks_for_its_own_key_does_not_wait_for_itself(store):
    def outer():
        return {}, b"outer of " + store.get_or_create("k", "key", lambda: ({}, b"inner")).blob

    assert store.get_or_create("k", "key", outer).blob == b"outer of inner"


def test_many_keys_come_in_order_with_one_call_for_all_misses(store, root):
    store.put("k", "b", meta={}, blob=b"stored")
    asked = []

    def create_many(missing):
        asked.append(missing)
        return [({"key": key}, key.encode()) for _, key in missing]

    requests = [("k", key) for key in ["c", "b", "a", "c"]]
    entries = store.get_or_create_many(requests, create_many)
    assert asked == [[("k", "c"), ("k", "a")]]
    assert [entry.blob for entry in entries] == [b"c", b"stored", b"a", b"c"]
    assert [entry.blob for entry in Store(root).get_or_create_many(requests, never)] == [
        b"c",
        b"stored",
        b"a",
        b"c",
    ]
    assert store.get_or_create_many([], never) == []


def test_results_are_stored_as_they_arrive_in_any_order(store, root):
    def create_many(missing):
        for index in (2, 0, 1):
            yield index, {}, f"{missing[index][1]}!".encode()
            assert Store(root).get("k", missing[index][1]).blob == f"{missing[index][1]}!".encode()

    entries = store.get_or_create_many([("k", "a"), ("k", "b"), ("k", "c")], create_many)
    assert [entry.blob for entry in entries] == [b"a!", b"b!", b"c!"]


def test_what_was_yielded_before_a_failure_stays_and_the_rest_is_free(store, root):
    def create_many(missing):
        yield 1, {}, b"kept"
        raise OSError("codegen broke")

    with pytest.raises(OSError, match="codegen broke"):
        store.get_or_create_many([("k", "a"), ("k", "b")], create_many)
    assert leftovers(root) == []
    assert store.get_or_create("k", "b", never).blob == b"kept"
    assert store.get_or_create("k", "a", lambda: ({}, b"later")).blob == b"later"


@pytest.mark.parametrize(
    ("results", "words"),
    [
        ([({}, b"")], "create_many is '1 results'; it must be 2"),
        ([(0, {}, b""), (0, {}, b"")], "index from create_many is 0"),
        ([(2, {}, b"")], "index from create_many is 2"),
        ([({}, b"")] * 3, "index from create_many is 2"),
    ],
)
def test_a_wrong_number_of_results_is_an_error(store, root, results, words):
    with pytest.raises(InvalidArgumentError, match=words):
        store.get_or_create_many([("k", "a"), ("k", "b")], lambda missing: results)
    assert leftovers(root) == []


def test_threads_with_overlapping_lists_share_the_work(store):
    made = []

    def create_many(missing):
        for index, (_, key) in enumerate(missing):
            made.append(key)
            time.sleep(0.05)
            yield index, {}, key.encode()

    lists = ["abcd", "dcba", "cdef", "fa"]
    results = in_threads(4, lambda i: store.get_or_create_many([("k", key) for key in lists[i]], create_many))
    assert ["".join(entry.blob.decode() for entry in result) for result in results] == lists
    assert sorted(made) == list("abcdef")


def test_processes_with_overlapping_lists_share_the_work(start, root, tmp_path):
    counter = tmp_path / "counter"
    jobs = [(0, 12), (6, 18), (0, 18), (4, 9)]
    for worker in start([("create_several", root, counter, first, last) for first, last in jobs]):
        assert worker.result() == ["right"]
    assert sorted(map(int, counter.read_text().split())) == list(range(18))
    assert leftovers(root) == []


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


@pytest.mark.skipif(sys.platform == "win32", reason="needs setrlimit")
def test_a_write_the_kernel_cuts_short(start, root):
    (worker,) = start([("limited_file_size", root)])
    assert worker.result() == ["False", "True"]
    assert entry_files(root) == []
    assert leftovers(root) == []


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
    assert in_threads(4, lambda _: store.get_or_create("k", "other", lambda: ({}, b"3")).blob) == [b"3"] * 4
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
        patch.setattr(
            store_files, "scan", scan_then_change if change == "used" else replacing_once(scan_then_change)
        )
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
@pytest.mark.parametrize(
    ("xdg", "below"), [(None, ".cache"), ("", ".cache"), ("relative", ".cache"), ("XDG", "xdg")]
)
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
    with pytest.raises(InvalidArgumentError, match="NVMATH_DEVICE_CACHE_SIZE is .*2GiB"):
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
    assert {path.name for path in entry_files(tmp_path / "other")} == {
        path.name for path in entry_files(root)[1:]
    }


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
