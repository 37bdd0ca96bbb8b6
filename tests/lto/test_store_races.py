# SPDX-License-Identifier: Apache-2.0
"""The store used by many threads and processes at once, some of them killed. No GPU, nothing generated."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import nvmath_device
from nvmath_device.errors import InvalidArgumentError
from nvmath_device.lto import store as store_module
from nvmath_device.lto import store_locks
from nvmath_device.lto.store import Entry, Store

WORKER = Path(__file__).with_name("store_worker.py")
PACKAGE_PARENT = str(Path(nvmath_device.__file__).resolve().parent.parent)
MIB = 1 << 20


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
    waiter = threading.Thread(target=lambda: result.append(store.get_or_create("held", "key", lambda: ({}, b"mine"))))
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


def test_a_lock_on_a_file_removed_meanwhile_is_not_taken_for_the_key(tmp_path, monkeypatch):
    path = str(tmp_path / "a.lock")
    first = store_locks.try_lock(path)
    real_lock = store_locks._kernel_lock

    def after_the_holder_left(fd):
        monkeypatch.setattr(store_locks, "_kernel_lock", real_lock)
        store_locks.unlock(first, path)  # between our open and our lock: removes the file we have open
        real_lock(fd)

    monkeypatch.setattr(store_locks, "_kernel_lock", after_the_holder_left)
    second = store_locks.try_lock(path)
    assert second is not None
    assert store_locks.try_lock(path) is None
    store_locks.unlock(second, path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="needs setrlimit")
def test_a_write_the_kernel_cuts_short(start, root):
    (worker,) = start([("limited_file_size", root)])
    assert worker.result() == ["False", "True"]
    assert entry_files(root) == []
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
