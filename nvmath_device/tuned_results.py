# SPDX-License-Identifier: Apache-2.0
"""What was tuned, kept in the code store: by device, versions and product, and by a coarser size for products alike.

An entry means something for one kind of device and the versions that its code was made with, so both are in its key.
The driver is not: it does not make the code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

from nvmath_device.descriptors import GemmDescriptor
from nvmath_device.lto import toolchain
from nvmath_device.lto.store import Store, default_store
from nvmath_device.tile_choices import TileChoice, tile_alignment

KIND = "gemm-tiles"
SCHEMA = 3  # raise it when the same tile would become other code
EXACT, ALIKE = "exact", "alike"


def current_device_words() -> dict[str, Any]:
    """What kind of device is current: a name, a compute capability, and how many multiprocessors it has.

    Raises:
        NoDeviceError, MissingDependencyError: there is none, or nothing to ask with.
    """
    from nvmath_device.host import current_device

    return device_words(max(current_device.current_index(), 0))


@cache
def device_words(index: int) -> dict[str, Any]:
    """The same of a device by its number."""
    from nvmath_device.host import current_device
    from nvmath_device.host.driver import bindings, call

    driver = bindings()
    kind = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
    return {
        "name": current_device.device_name(index),
        "compute_capability": list(current_device.compute_capability(index)),
        "multiprocessors": int(call(driver.cuDeviceGetAttribute, kind, call(driver.cuDeviceGet, index))),
    }


def versions() -> dict[str, str]:
    """Of what makes the code."""
    return {"generated": toolchain.fingerprint(), "linked": toolchain.link_fingerprint()}


def key(descriptor: GemmDescriptor, device: Mapping[str, Any], which: str) -> dict[str, Any]:
    """Of an entry: ``"exact"`` with the product's M, N and K, ``"alike"`` with the powers of two above them."""
    size = list(descriptor.size)
    return {
        "schema": SCHEMA,
        "device": dict(device),
        "versions": versions(),
        "size": size if which == EXACT else [1 << math.ceil(math.log2(extent)) for extent in size],
        "which": which,
        "precision": [str(t) for t in descriptor.precision],
        "arrangement": list(descriptor.arrangement),
        "alignment": list(tile_alignment(descriptor)),
    }


def choice(descriptor: GemmDescriptor, device: Mapping[str, Any], *, store: Store | None = None) -> TileChoice | None:
    """The best choice that is known for a product, or for the last one like it; ``None``: nothing is known."""
    for which in (EXACT, ALIKE):
        content = load(descriptor, device, which=which, store=store)
        if content is not None:
            return read_choice(content["best"])
    return None


def load(
    descriptor: GemmDescriptor, device: Mapping[str, Any], *, which: str = EXACT, store: Store | None = None
) -> dict[str, Any] | None:
    """What was kept; ``None`` where there is nothing or where it makes no sense. Never raises for what is on disk."""
    entry = (store or default_store()).get(KIND, key(descriptor, device, which))
    if entry is None:
        return None
    content: Any = entry.meta
    try:
        read_choice(content["best"])
    except (KeyError, TypeError, ValueError):
        return None
    return dict(content)


def keep(
    descriptor: GemmDescriptor, device: Mapping[str, Any], content: Mapping[str, Any], *, store: Store | None = None
) -> bool:
    """Keep what was found, JSON with the choice under ``best``; False where the store is off or the disk refuses."""
    store = store or default_store()
    kept = [store.put(KIND, key(descriptor, device, which), meta=dict(content), blob=b"") for which in (EXACT, ALIKE)]
    return all(kept)


def choice_words(choice: TileChoice) -> dict[str, Any]:
    """A choice for JSON."""
    return {**{name: getattr(choice, name) for name in ("block_size", "depth", "group")}, "tile": list(choice.tile)}


def read_choice(words: Mapping[str, Any]) -> TileChoice:
    """The choice again. Raises KeyError, TypeError or ValueError where the words are none."""
    return TileChoice(words["tile"], words["block_size"], words["depth"], words["group"])
