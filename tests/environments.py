# SPDX-License-Identifier: Apache-2.0
"""Environments like the one that runs the tests, but for some packages."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path


def environment_with(folder: Path, *packages: str) -> Path:
    """The interpreter of a new environment in ``folder``: these packages, and all others of this one."""
    venv.create(folder, symlinks=True, with_pip=False)
    python = folder / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", *packages]
    subprocess.run(install, check=True, timeout=600)
    # As a folder of packages, so that the files count by which Numba's package is replaced by numba-cuda's.
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "outer.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    return python
