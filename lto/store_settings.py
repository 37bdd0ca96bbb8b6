# SPDX-License-Identifier: Apache-2.0
"""Where the store of this user lies and how large it may grow: the environment, read into plain values.

platformdirs knows the same folders, but a hit in a new process must not pay for importing it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

DEFAULT_MAX_BYTES = 4 << 30
FOLDER_VARIABLE = "NVMATH_DEVICE_CACHE_DIR"
SIZE_VARIABLE = "NVMATH_DEVICE_CACHE_SIZE"

_APP = "nvmath_device"
_OFF = ("", "0", "off", "none")
_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _UNITS |= {_letter: 1024**_power, f"{_letter}ib": 1024**_power, f"{_letter}b": 1000**_power}


def root_from(environ: Mapping[str, str]) -> str | None:
    """The absolute root folder; None = off: so set, or there is no home folder to put it in."""
    given = environ.get(FOLDER_VARIABLE)
    if given is not None:
        given = given.strip()
        return None if given.lower() in _OFF else os.path.abspath(os.path.expanduser(given))
    if sys.platform == "win32":
        local = environ.get("LOCALAPPDATA") or os.path.expanduser("~\\AppData\\Local")
        folder = os.path.join(local, _APP, "Cache")
    elif sys.platform == "darwin":
        folder = os.path.join(os.path.expanduser("~"), "Library", "Caches", _APP)
    else:
        xdg = environ.get("XDG_CACHE_HOME", "")
        # The XDG specification says to ignore a relative path.
        folder = os.path.join(xdg if os.path.isabs(xdg) else os.path.expanduser("~/.cache"), _APP)
    return folder if os.path.isabs(folder) else None


def max_bytes_from(environ: Mapping[str, str]) -> int:
    """The cap in bytes. Raises InvalidArgumentError naming the variable."""
    given = environ.get(SIZE_VARIABLE, "").strip()
    return parse_size(given, SIZE_VARIABLE) if given else DEFAULT_MAX_BYTES


def parse_size(text: str, name: str) -> int:
    """Bytes from '4294967296', '2GiB', '1.5 GiB', '500 MB' (10^6) or '4G' (as GiB); at least 1."""
    text = text.strip()
    digits = 0
    while digits < len(text) and text[digits] in "0123456789.":
        digits += 1
    unit = _UNITS.get(text[digits:].strip().lower())
    number = text[:digits]
    size = None
    if unit is not None:
        try:  # noqa: SIM105 - importing contextlib costs more than the call
            size = int(float(number) * unit) if "." in number else int(number) * unit
        except (ValueError, OverflowError):
            pass  # '', '.', '1.2.3'
    if size is None or size < 1:
        from nvmath_device.errors import InvalidArgumentError

        raise InvalidArgumentError(
            f"{name} is {text!r}; it must be a size above 0: bytes as a number, or a number with one of the "
            f"units kB, MB, GB, TB (powers of 1000), KiB, MiB, GiB, TiB (powers of 1024), such as '2GiB'. "
            f"To switch the store off set {FOLDER_VARIABLE}=off"
        )
    return size
