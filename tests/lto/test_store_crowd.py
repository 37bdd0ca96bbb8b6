# SPDX-License-Identifier: Apache-2.0
"""Two hundred processes that want the same entry of an empty store at once, and writers that are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from nvmath_device.lto.store import Store

CROWD = 200
# Each waits for the starting signal, asks, and says what it got. Whoever creates adds a line to the log first.
PROGRAM = """
import os, sys, time
from nvmath_device.lto.store import Store

folder, log, go = sys.argv[1:]

def create():
    with open(log, "a") as file:
        file.write(str(os.getpid()) + chr(10))
    time.sleep(0.5)
    return {"by": os.getpid()}, os.urandom(1 << 16)

while not os.path.exists(go):
    time.sleep(0.005)
entry = Store(folder).get_or_create("crowd", {"of": 200}, create)
from hashlib import sha256
print(entry.meta["by"], sha256(entry.blob).hexdigest())
"""
WRITER = """
import os, sys
from nvmath_device.lto.store import Store

store = Store(sys.argv[1])
for i in range(100000):
    store.put("big", {"number": i % 3}, meta={"i": i}, blob=bytes([i % 251]) * (8 << 20))
    if i == 2:
        print("writing", flush=True)
"""


def start(program, *arguments):
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def test_two_hundred_processes_create_once(tmp_path):
    log, go = tmp_path / "log", tmp_path / "go"
    crowd = [start(PROGRAM, tmp_path / "store", log, go) for _ in range(CROWD)]
    go.touch()
    said = []
    for process in crowd:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        said.append(out.split())
    created = log.read_text().split()
    assert len(created) == 1
    assert len({tuple(words) for words in said}) == 1
    assert said[0][0] == created[0]


def test_a_writer_that_is_killed_leaves_whole_entries_or_none(tmp_path):
    folder = tmp_path / "store"
    for delay in (0.0, 0.003, 0.01, 0.02):
        process = start(WRITER, folder)
        assert process.stdout.readline() == "writing\n"
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        store = Store(folder)
        for number in range(3):
            entry = store.get("big", {"number": number})
            assert entry is None or (entry.meta["i"] % 3 == number and set(entry.blob) == {entry.meta["i"] % 251})
        made = store.get_or_create("big", {"number": 7}, lambda: ({"new": True}, b"7"))
        assert (made.meta, made.blob) == ({"new": True}, b"7")
        Store(folder).clear()
