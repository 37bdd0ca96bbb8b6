# SPDX-License-Identifier: Apache-2.0
"""Counts what the package makes, in this process and in every Python process below it.

The package logs one INFO record for each LTO-IR it generates, each cubin it links and each kernel it
simulates, with the kind in ``record.event``. The handler here appends that word to the file named by
``NVMATH_DEVICE_TEST_EVENTS``. Python imports a module of this name by itself when its folder is on
``PYTHONPATH``, so that examples and worker processes count too; ``conftest.py`` sets both variables.
"""

import logging
import os

EVENTS = ("ltoir", "cubin", "simulated")


class EventFile(logging.Handler):
    """Appends a line for each record with an ``event`` of :data:`EVENTS`: one write, so none are mixed."""

    def __init__(self, path: str) -> None:
        super().__init__(logging.INFO)
        self.path = path

    def emit(self, record: logging.LogRecord) -> None:
        event = getattr(record, "event", None)
        if event in EVENTS:
            try:
                with open(self.path, "ab", buffering=0) as file:
                    file.write(f"{event}\n".encode())
            except OSError:
                self.handleError(record)  # counting must not change what the package does


if path := os.environ.get("NVMATH_DEVICE_TEST_EVENTS"):
    logger = logging.getLogger("nvmath_device")
    # conftest.py runs this file once more in a process that may have imported it already.
    if all(type(handler).__name__ != EventFile.__name__ for handler in logger.handlers):
        logger.addHandler(EventFile(path))
    logger.setLevel(logging.INFO)
