# SPDX-License-Identifier: Apache-2.0
"""What a cubin contains, by NVIDIA's own tools: its instructions and the resources its kernels use."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from importlib import metadata
from pathlib import Path


def disassemble(cubin: bytes) -> str:
    """nvdisasm's listing, one instruction a line."""
    return _run("nvdisasm", "-c", cubin=cubin)


def instructions(cubin: bytes) -> list[str]:
    """Opcodes with their modifiers, such as ``LDG.E.128``, in order of appearance."""
    line = r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)"
    return re.findall(line, disassemble(cubin), re.MULTILINE)


def resources(cubin: bytes) -> dict[str, int]:
    """``registers`` a thread, ``shared``, ``local`` and ``stack`` bytes, each the most any kernel uses."""
    text = _run("cuobjdump", "-res-usage", cubin=cubin)
    names = {"registers": "REG", "shared": "SHARED", "local": "LOCAL", "stack": "STACK"}
    found = {name: [int(n) for n in re.findall(rf"\b{key}:(\d+)", text)] for name, key in names.items()}
    missing = [name for name, numbers in found.items() if not numbers]
    if missing:
        raise ValueError(f"cuobjdump -res-usage says nothing about {', '.join(missing)}: {text}")
    return {name: max(numbers) for name, numbers in found.items()}


def _run(tool: str, *options: str, cubin: bytes) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([_find(tool), *options, file.name], capture_output=True, text=True, check=True)
    return done.stdout


def _find(tool: str) -> str:
    """The tool from the wheel of its name, else the one on the path."""
    for distribution in (f"nvidia-cuda-{tool}", f"nvidia-cuda-{tool}-cu12"):
        try:
            files = metadata.files(distribution) or []
        except metadata.PackageNotFoundError:
            continue
        for file in files:
            path = Path(str(file.locate()))
            if path.stem == tool and path.parent.name == "bin":
                return str(path)
    found = shutil.which(tool)
    if found is None:
        raise FileNotFoundError(f"{tool}: install nvidia-cuda-{tool}")
    return found
