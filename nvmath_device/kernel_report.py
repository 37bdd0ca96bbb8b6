# SPDX-License-Identifier: Apache-2.0
"""What became of a kernel: registers, shared memory, spills, and which units multiply. Needs no GPU.

The instructions are nvdisasm's listing of the machine code, counted.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvmath_device.errors import MissingDependencyError, NvmathDeviceError
from nvmath_device.lto.cubin import Resources, entries, read_resources, target

# Instructions of the tensor cores, by their first word. All that multiply matrices end like this (HMMA, HGMMA,
# UTCQMMA ...); with OMMA and the like, new ones are known beforehand.
_TENSOR_CORE = re.compile(r"[A-Z]*MMA\Z")
# Instructions that multiply and add single numbers. IMAD is not among them: it mostly reckons with addresses.
_SCALAR = ("FFMA", "FFMA2", "DFMA", "HFMA2", "IDP", "IDP4A")

# An instruction of the listing: its address, the condition it is under, its name, its operands.
_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)([^;]*)")
_SECTION = re.compile(r"^\s*\.section\s+\.text\.([^,\s]+)")


@dataclass(frozen=True)
class KernelReport:
    """One kernel's machine code in numbers.

    Attributes:
        kernel: its name in the cubin.
        sm: what the cubin is for; ``sm_90`` also for ``sm_90a``.
        resources: registers, shared and local memory.
        instructions: how often each instruction stands in the code, with its modifiers (``"LDS.128"``). Not how often
            it is executed. Functions that the cubin has besides its kernels are counted in.
    """

    kernel: str
    sm: str
    resources: Resources
    instructions: dict[str, int]

    def count(self, name: str) -> int:
        """Instructions of a name with all their modifiers: ``count("LDS")`` has ``LDS.128`` and ``LDS.64`` in it."""
        return sum(n for full, n in self.instructions.items() if full == name or full.startswith(f"{name}."))

    @property
    def local_loads(self) -> int:
        """Loads from local memory (LDL): spilled registers, and arrays that are indexed at run time."""
        return self.count("LDL")

    @property
    def local_stores(self) -> int:
        """Stores to local memory (STL), as :attr:`local_loads`."""
        return self.count("STL")

    @property
    def spills(self) -> bool:
        """Whether local memory is used. In a kernel that has no arrays of its own that is spilled registers."""
        return self.local_loads + self.local_stores > 0

    @property
    def math(self) -> dict[str, int]:
        """Instructions that multiply and add, without modifiers, most frequent first.

        Those of tensor cores (``HMMA``, ``HGMMA``, ``IMMA``, ``DMMA`` ...) and those of single numbers (``FFMA``,
        ``DFMA``, ``HFMA2`` ...).
        """
        counts: Counter[str] = Counter()
        for full, n in self.instructions.items():
            name = full.partition(".")[0]
            if name in _SCALAR or _TENSOR_CORE.match(name):
                counts[name] += n
        return dict(counts.most_common())

    @property
    def path(self) -> str:
        """What does the arithmetic: the most frequent tensor-core instruction, else the most frequent other; ``""``
        where nothing is multiplied."""
        return next((name for name in self.math if _TENSOR_CORE.match(name)), next(iter(self.math), ""))

    @property
    def uses_tensor_cores(self) -> bool:
        return _TENSOR_CORE.match(self.path) is not None

    def as_dict(self) -> dict[str, Any]:
        """Everything above, for JSON."""
        return {
            "kernel": self.kernel,
            "sm": self.sm,
            **self.resources.as_dict(),
            "local_loads": self.local_loads,
            "local_stores": self.local_stores,
            "path": self.path,
            "math": self.math,
            "instructions": self.instructions,
        }

    def __str__(self) -> str:
        r = self.resources
        math = ", ".join(f"{n} {name}" for name, n in self.math.items()) or "none"
        local = f"{self.local_loads} loads, {self.local_stores} stores" if self.spills else "not used"
        lines = {
            "target": self.sm,
            "arithmetic": f"{math}{' (tensor cores)' if self.uses_tensor_cores else ''}",
            "registers": f"{r.registers} a thread",
            "shared memory": f"{r.static_shared_bytes:,} bytes a block, static",
            "local memory": f"{local}, {'unknown' if r.local_bytes is None else f'{r.local_bytes:,}'} bytes a thread",
            "threads": f"at most {r.max_threads:,} a block",
            "instructions": f"{sum(self.instructions.values()):,}",
        }
        return "\n".join([self.kernel, *(f"  {name:<14}{text}" for name, text in lines.items())])


def report(cubin: bytes, entry: str) -> KernelReport:
    """Read the machine code of the kernel ``entry``; takes some tenths of a second.

    Raises:
        InvalidArgumentError, ArgumentTypeError: not a cubin, or it has no such kernel.
        MissingDependencyError: nvdisasm is not installed.
        NvmathDeviceError: nvdisasm does not know the target; the message has what it says.
    """
    resources = read_resources(cubin, entry)
    others = set(entries(cubin)) - {entry}
    return KernelReport(entry, target(cubin).sm, resources, _count(_disassembled(cubin), others))


def _count(listing: str, without: set[str]) -> dict[str, int]:
    """Instructions of a listing, but for sections of the kernels ``without``."""
    counts: Counter[str] = Counter()
    counted = True
    for line in listing.splitlines():
        if section := _SECTION.match(line):
            counted = section[1] not in without
        elif counted and (found := _INSTRUCTION.match(line)):
            name, operands = found.groups()
            if not _is_constant(name, operands):
                counts[name] += 1
    return dict(counts)


def _is_constant(name: str, operands: str) -> bool:
    """``HFMA2 R1, -RZ, RZ, 1, 0``, zero times zero plus a constant, is how a register is set."""
    return name.startswith("HFMA2") and "-RZ, RZ," in operands


def _disassembled(cubin: bytes) -> str:
    tool = _nvdisasm()
    # By its name, not as an open file: on Windows nobody else could open that.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        done = subprocess.run([tool, "-c", str(path)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NvmathDeviceError(f"{tool} cannot read this cubin of {target(cubin).sm}: {done.stderr.strip()}")
    return done.stdout


def _nvdisasm() -> str:
    from cuda.pathfinder import find_nvidia_binary_utility

    found = find_nvidia_binary_utility("nvdisasm")
    if found is None:
        raise MissingDependencyError(
            "nvdisasm, which reads machine code, is not installed: pip install nvidia-cuda-nvdisasm, or install a CUDA "
            "Toolkit"
        )
    return found
