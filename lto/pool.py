# SPDX-License-Identifier: Apache-2.0
"""Runs one generation job in a process of its own, and says so on a terminal while it lasts.

Protocol: the job goes in as one JSON line on standard input; one JSON line and a blob come back on standard
output. Whatever libmathdx prints goes to standard error and is shown when the worker fails.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nvmath_device
from nvmath_device.errors import CodegenError
from nvmath_device.lto import toolchain
from nvmath_device.lto.recipes import Recipe

# The worker must import this very package, also from a checkout that is not installed.
_START = "import sys; sys.path.insert(0, sys.argv[1]); from nvmath_device.lto.worker import main; main()"


class Workers:
    """The processes of one call of ``codegen.generate``; ``run`` may be called from several threads."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._stopped = False

    def run(self, job: str, recipe: Recipe) -> tuple[dict[str, Any], bytes]:
        """Meta and blob of one job. Blocks for seconds; an error of the worker is raised here as its own type."""
        started = time.monotonic()
        if sys.executable:
            meta, blob = self._in_process_of_its_own(job, recipe)
        else:  # an embedding program: no interpreter to start
            from nvmath_device.lto import worker

            meta, blob = worker.perform(job, recipe)
        logging.getLogger("nvmath_device").info(
            "generated %s %s in %.1f s (%d bytes)",
            job,
            recipe.symbol,
            time.monotonic() - started,
            len(blob),
            extra={"event": "ltoir" if job == "code" else job},
        )
        return meta, blob

    def stop(self) -> None:
        """Kill what runs and start no more: after one failure nobody waits for the others."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                process.kill()

    def _in_process_of_its_own(self, job: str, recipe: Recipe) -> tuple[dict[str, Any], bytes]:
        request = json.dumps(
            {"job": job, "recipe": recipe.to_json(), "versions": toolchain.fingerprint()}
        ).encode() + b"\n"
        with self._lock:
            if self._stopped:
                raise CodegenError(f"{recipe.symbol} was not generated: another one failed or was interrupted")
            process = subprocess.Popen(
                [sys.executable, "-c", _START, str(Path(nvmath_device.__file__).parent.parent)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            self._running.add(process)
        try:
            output, errors = process.communicate(request)
        finally:
            with self._lock:
                self._running.discard(process)
            if process.poll() is None:
                process.kill()
                process.wait()
        header, _, blob = output.partition(b"\n")
        if not header:
            raise CodegenError(
                f"the process that generated {recipe.symbol} ended with code {process.returncode} and no answer"
                + (" (killed: out of memory?)" if process.returncode == -9 else ""),
                log=errors.decode(errors="replace")[-4000:],
            )
        answer = json.loads(header)
        if "error" in answer:
            asked = ", ".join(f"{name}={value}" for name, value in recipe.operators)
            raise CodegenError(
                f"{answer['error']}; asked for {recipe.library} with {asked}",
                status=answer["status"],
                log=answer["log"],
            )
        return answer["meta"], blob


@contextmanager
def progress(jobs: int) -> Iterator[None]:
    """A line with the elapsed time while the body runs, if standard error is a terminal and it takes over 1 s."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield
        return
    done = threading.Event()
    started = time.monotonic()
    what = f"nvmath_device: generating {jobs} device function{'s' if jobs > 1 else ''} with libmathdx"

    def show() -> None:
        while not done.wait(1.0):
            sys.stderr.write(f"\r{what}, {time.monotonic() - started:.0f} s (once; stored for the next time) ")
            sys.stderr.flush()

    thread = threading.Thread(target=show, name="nvmath_device-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        if time.monotonic() - started > 1.0:
            sys.stderr.write("\n")
