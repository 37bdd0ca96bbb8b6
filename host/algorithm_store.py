# SPDX-License-Identifier: Apache-2.0
"""Algorithms on disk: files that a user saves and loads, and the order that autotune found, kept for next time.

An algorithm is 64 bytes that mean something to the cuBLASLt and the kind of device it was made with only, so both
are written down beside it and compared before it is used.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError
from nvmath_device.host import current_device
from nvmath_device.host.algorithms import Algorithm
from nvmath_device.host.cublaslt_calls import version
from nvmath_device.host.driver import bindings, call
from nvmath_device.host.lt_plan import SLOTS, alignment_in_calls
from nvmath_device.host.options import MatmulOptions, MatmulPlanPreferences
from nvmath_device.host.problem_words import problem_words
from nvmath_device.lto.store import Store, default_store

_FORMAT = "nvmath_device algorithms 1"
_KIND = "matmul-algorithms"
_SCHEMA = 1


def _environment(index: int) -> dict[str, str]:
    """What an algorithm means something to, in words."""
    return {
        "cublaslt": ".".join(map(str, version())),
        "device": current_device.device_name(index),
        "compute_capability": ".".join(map(str, current_device.compute_capability(index))),
    }


def _index(device: int | None) -> int:
    return max(current_device.current_index(), 0) if device is None else device


# -- files of a user ----------------------------------------------------------------------------------------


def save_algorithms(path: Any, algorithms: Iterable[Algorithm], *, device: int | None = None) -> None:
    """Write algorithms into a JSON file, in their order, replacing the file.

    ``device`` is the CUDA ordinal that they were planned for; ``None``: the current device.

    Raises:
        InvalidArgumentError: there are none.
        ArgumentTypeError: something else than an :class:`Algorithm`.
        OSError: the file cannot be written.
    """
    entries = []
    for algorithm in algorithms:
        if not isinstance(algorithm, Algorithm):
            raise ArgumentTypeError(
                f"algorithms: {algorithm!r} is a {type(algorithm).__name__}; give Algorithm objects of a plan"
            )
        problem = getattr(algorithm.plan, "problem", None)
        entries.append({"product": None if problem is None else problem_words(problem), **algorithm.as_dict()})
    if not entries:
        raise InvalidArgumentError("algorithms: there are none to save; plan first")
    content = {"format": _FORMAT, **_environment(_index(device)), "algorithms": entries}
    Path(path).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def load_algorithms(path: Any, *, device: int | None = None) -> list[Algorithm]:
    """The algorithms of a file, in their order, for ``plan(algorithms=...)``, which checks them for its product.

    ``device`` is the CUDA ordinal that they are for; ``None``: the current device.

    Raises:
        InvalidArgumentError: not a file of :func:`save_algorithms`, or one of another cuBLASLt or kind of device.
        OSError: the file cannot be read.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise InvalidArgumentError(f"path: {path} is not a file of save_algorithms: {error}") from error
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise InvalidArgumentError(f"path: {path} is not a file of save_algorithms, or of another version of it")
    here = _environment(_index(device))
    for name, words in (("cublaslt", "cuBLASLt"), ("device", "device"), ("compute_capability", "compute capability")):
        if content.get(name) != here[name]:
            raise InvalidArgumentError(
                f"path: the algorithms of {path} are of {words} {content.get(name)}, and here is {words} {here[name]}; "
                "they mean something where they were made only, so plan and save here"
            )
    entries = content.get("algorithms")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise InvalidArgumentError(f"path: {path} has no list of algorithms")
    return [Algorithm.from_dict(entry) for entry in entries]


# -- what autotune found ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StoredTiming:
    """What autotune found about one algorithm.

    Attributes:
        algo: its 64 bytes.
        microseconds: median time; ``None`` where it failed.
        error: what it failed with, or empty.
    """

    algo: bytes
    microseconds: float | None
    error: str = ""


@cache
def _identity(index: int) -> dict[str, str]:
    driver = bindings()
    uuid = call(driver.cuDeviceGetUuid, call(driver.cuDeviceGet, index))
    return {
        **_environment(index),
        "uuid": bytes(uuid.bytes).hex(),
        "driver": str(call(driver.cuDriverGetVersion)),
    }


def order_key(
    plan: Any, device: int, options: MatmulOptions, preferences: MatmulPlanPreferences, *, flush: bool = True
) -> dict[str, Any]:
    """Everything that the order of algorithms may depend on, as JSON values.

    ``plan`` is a ``GpuPlan``. Equal matrices and attributes in cuBLASLt's frame have equal keys, however the user
    came to them: what is copied before and after costs the same with every algorithm.
    """
    problem, lt = plan.problem, plan.lt
    slots = ("b", "a", *SLOTS[2:]) if lt.swapped else SLOTS
    return {
        "schema": _SCHEMA,
        "matrices": [{**asdict(m), "data_type": m.data_type.name} for m in (lt.a, lt.b, lt.c, lt.d)],
        "attributes": {attribute.name: value for attribute, value in lt.attributes},
        "compute_type": problem.types.compute.name,
        "scale_type": problem.types.scale.name,
        "scales": [attribute.name for attribute, _ in lt.scales],
        "amax": [problem.result_amax, problem.aux_amax],
        "has_c": problem.has_c,
        "calls": len(lt.calls),
        "alignments": {
            name: alignment_in_calls(plan.lt, slot, plan.alignments) for name, slot in zip(SLOTS, slots, strict=True)
        },
        "workspace_limit": plan.workspace_limit,
        "sm_count_target": options.sm_count_target,
        "deterministic": options.deterministic,
        "reduction_scheme_mask": int(preferences.reduction_scheme_mask),
        "max_waves_count": preferences.max_waves_count,
        "numerical_impl_mask": int(preferences.numerical_impl_mask),
        "limit": preferences.limit,
        "flush": flush,
        **_identity(device),
    }


def stored_order(
    key: Mapping[str, Any], *, iterations: int = 1, store: Store | None = None
) -> list[StoredTiming] | None:
    """What autotune found for this key with at least ``iterations``, fastest first; ``None``: nothing is known.

    Never raises for what is on disk: an entry that makes no sense counts as none.
    """
    entry = (store or default_store()).get(_KIND, dict(key))
    if entry is None:
        return None
    try:
        found: Any = entry.meta["order"]
        if int(entry.meta["iterations"]) < iterations:  # type: ignore[call-overload]
            return None
        return [_read(values) for values in found]
    except (KeyError, TypeError, ValueError):
        return None


def _read(values: Mapping[str, Any]) -> StoredTiming:
    algo, microseconds = bytes.fromhex(values["algo"]), values["microseconds"]
    if len(algo) != 64:
        raise ValueError(f"an algorithm has 64 bytes, and this one {len(algo)}")
    return StoredTiming(algo, None if microseconds is None else float(microseconds), str(values["error"]))


def store_order(
    key: Mapping[str, Any], results: Sequence[StoredTiming], *, iterations: int, store: Store | None = None
) -> bool:
    """Keep what autotune found; False where the store is off or the disk refuses."""
    order = [{"algo": r.algo.hex(), "microseconds": r.microseconds, "error": r.error} for r in results]
    meta: dict[str, object] = {"iterations": iterations, "order": order}
    return (store or default_store()).put(_KIND, dict(key), meta=meta, blob=b"")
