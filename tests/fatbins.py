# SPDX-License-Identifier: Apache-2.0
"""What is in a fatbin."""

from __future__ import annotations

import subprocess

from cuda import pathfinder


def contents(file_in_fatbin, folder):
    """Names of the files in a fatbin, as cuobjdump lists them."""
    path = folder / "code.fatbin"
    path.write_bytes(file_in_fatbin)
    tool = pathfinder.find_nvidia_binary_utility("cuobjdump")
    done = subprocess.run([tool, "-lelf", "-lptx", path], capture_output=True, text=True, check=True)
    return [line.rpartition(" ")[2] for line in done.stdout.splitlines() if line]
