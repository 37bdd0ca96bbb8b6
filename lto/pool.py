# SPDX-License-Identifier: Apache-2.0
"""Runs one generation job in a process of its own, and says so on a terminal while it lasts.

Protocol: the job goes in as one JSON line on standard input; one JSON line and a blob come back on standard
output. Whatever libmathdx prints goes to standard error and is shown when the worker fails.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nvmath_device
from nvmath_device import errors as all_errors
from nvmath_device.errors import CodegenError
from nvmath_device.lto import toolchain
from nvmath_device.lto.recipes import Recipe

_START = "import sys; sys.path[:] = sys.argv[1:]; from nvmath_device.lto.worker import main; main()"


class Workers:
    """The processes of one call of ``codegen.generate``; ``run`` may be called from several threads."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._stopped = False

    def run(self, job: str, recipe: Recipe) -> tuple[dict[str, Any], bytes]:
        """Meta and blob of one job. Blocks for seconds; an error of the worker is raised here as its own type."""
        started = time.monotonic()
        if sys.executable and not getattr(sys, "frozen", False):
            meta, blob = self._in_process_of_its_own(job, recipe)
        else:  # an embedding or frozen program: no interpreter to start
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
        request = (
            json.dumps({"job": job, "recipe": recipe.to_json(), "versions": toolchain.fingerprint()}).encode() + b"\n"
        )
        with _folder_for_temporary_files() as folder:
            returncode, output, errors = self._exchange(request, folder, recipe.symbol)
        header, _, blob = output.partition(b"\n")
        try:
            answer = json.loads(header)
        except ValueError:
            hint = " (killed: out of memory?)" if returncode == -9 else ""
            said = errors.decode(errors="replace")[-4000:].strip()
            raise CodegenError(
                f"the process that generated {recipe.symbol} ended with code {returncode} and no answer{hint}; it ran "
                f"sys.executable, {sys.executable}" + (f" and wrote:\n{said}" if said else "")
            ) from None
        if "type" in answer:
            raise getattr(all_errors, answer["type"])(answer["error"])
        if "error" in answer:
            asked = ", ".join(f"{name}={value}" for name, value in recipe.operators)
            raise CodegenError(
                f"{answer['error']}; asked for {recipe.library} with {asked}",
                status=answer["status"],
                log=answer["log"],
            )
        return answer["meta"], blob

    def _exchange(self, request: bytes, folder: str, symbol: str) -> tuple[int, bytes, bytes]:
        """Exit code, standard output and standard error of one worker."""
        with self._lock:
            if self._stopped:
                raise CodegenError(f"{symbol} was not generated: another one failed or was interrupted")
            try:
                process = subprocess.Popen(
                    [sys.executable, "-c", _START, *_search_path()],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env={**os.environ, **dict.fromkeys(("TMPDIR", "TMP", "TEMP"), folder)},
                )
            except OSError as error:
                raise CodegenError(
                    f"no process could be started to generate {symbol}: {error}; tried sys.executable, {sys.executable}"
                ) from error
            self._running.add(process)
        try:
            output, errors = process.communicate(request)
        finally:
            with self._lock:
                self._running.discard(process)
            if process.poll() is None:
                process.kill()
                process.wait()
        return process.returncode, output, errors


def _search_path() -> list[str]:
    """Where a worker imports from: where this process does, and from this very package, installed or not.

    Not from the current folder, which ``-c`` would put first and in which the user may have a ``json.py``.
    """
    path = [entry for entry in sys.path if isinstance(entry, str) and entry]
    here = str(Path(nvmath_device.__file__).parent.parent)
    return path if here in path else [here, *path]


@contextmanager
def _folder_for_temporary_files() -> Iterator[str]:
    """NVRTC unpacks its headers into a folder for temporary files; this one is gone afterwards, come what may.

    Python looks further than NVRTC where TMPDIR cannot be written to.
    """
    try:
        folder = tempfile.TemporaryDirectory(prefix="nvmath_device-", ignore_cleanup_errors=True)
    except OSError as error:
        raise CodegenError(
            f"NVRTC needs a folder for temporary files and there is none ({error}); set TMPDIR to one that is writable"
        ) from error
    with folder as path:
        yield path


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
