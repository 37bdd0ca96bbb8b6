# SPDX-License-Identifier: Apache-2.0
"""What test_store.py runs in processes of its own: ``python store_worker.py COMMAND ROOT [ARGUMENT...]``.

A worker prints "ready", waits for a line on stdin (so that many start at the same moment), then does its
work.
"""

from __future__ import annotations

import os
import sys
import threading
import time

from nvmath_device.lto import store_files
from nvmath_device.lto.store import Store

MIB = 1 << 20


def say(text: object) -> None:
    print(text, flush=True)


def note(path: str, text: str) -> None:
    """One O_APPEND write: lines of several processes neither mix nor vanish."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(fd, f"{text}\n".encode())
    os.close(fd)


def write_same(store: Store, who: str, times: str) -> None:
    for _ in range(int(times)):
        assert store.put("race", "one key", meta={"who": who}, blob=who.encode() * MIB)


def write_own(store: Store, who: str, count: str) -> None:
    for index in range(int(count)):
        assert store.put("own", {"who": who, "index": index}, meta={}, blob=f"{who}-{index}".encode() * 1000)


def rewrite(store: Store, stop_file: str) -> None:
    round_ = 0
    while not os.path.exists(stop_file):
        round_ += 1
        letter = b"abcdefgh"[round_ % 8 : round_ % 8 + 1]
        assert store.put("race", "rewritten", meta={"letter": letter.decode()}, blob=letter * (200_000 + round_ % 7))
    say(round_)


def create_once(store: Store, counter: str, seconds: str) -> None:
    def create() -> tuple[dict[str, object], bytes]:
        note(counter, str(os.getpid()))
        time.sleep(float(seconds))
        return {"pid": os.getpid()}, b"made" * 100_000

    entry = store.get_or_create("flight", {"n": 1}, create)
    assert entry.blob == b"made" * 100_000
    say(entry.meta["pid"])


def create_several(store: Store, counter: str, first: str, last: str) -> None:
    keys = [("several", {"index": index}) for index in range(int(first), int(last))]

    def create_many(missing):
        for position, (_, key) in enumerate(missing):
            note(counter, str(key["index"]))
            time.sleep(0.02)
            yield position, {}, str(key["index"]).encode()

    entries = store.get_or_create_many(keys, create_many)
    assert [entry.blob for entry in entries] == [str(key["index"]).encode() for _, key in keys]
    say("right")


def hold(store: Store) -> None:
    def create() -> tuple[dict[str, object], bytes]:
        say("creating")
        time.sleep(60)
        return {}, b"never"

    store.get_or_create("held", "key", create)


def hold_with_forked_child(store: Store) -> None:
    def create() -> tuple[dict[str, object], bytes]:
        child = os.fork()
        if child:
            say(child)
        time.sleep(60)
        return {}, b"never"

    store.get_or_create("held", "key", create)


def fork_beside_a_creating_thread(store: Store) -> None:
    started = threading.Event()

    def create() -> tuple[dict[str, object], bytes]:
        started.set()
        time.sleep(0.4)
        return {}, b"parent"

    thread = threading.Thread(target=store.get_or_create, args=("forked", "same", create))
    thread.start()
    started.wait()
    child = os.fork()
    if child == 0:
        other = store.get_or_create("forked", "other", lambda: ({}, b"child")).blob
        same = store.get_or_create("forked", "same", lambda: ({}, b"child")).blob
        say(f"{other.decode()} {same.decode()}")
        os._exit(0)
    thread.join()
    os.waitpid(child, 0)


def hang_in_write(store: Store) -> None:
    real_write = os.write

    def half_a_write(fd: int, data: memoryview) -> int:
        real_write(fd, data[: len(data) // 2])
        say("half")
        time.sleep(60)
        return 0

    store_files.os.write = half_a_write  # type: ignore[assignment]
    store.put("torn", "key", meta={}, blob=b"x" * MIB)


def limited_file_size(store: Store) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    say(store.put("limited", "key", meta={}, blob=b"x" * MIB))
    say(store.get_or_create("limited", "key", lambda: ({"a": 1}, b"y" * MIB)).blob == b"y" * MIB)


if __name__ == "__main__":
    command, root, *arguments = sys.argv[1:]
    the_store = Store(root)
    say("ready")
    sys.stdin.readline()
    globals()[command](the_store, *arguments)
