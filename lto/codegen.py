# SPDX-License-Identifier: Apache-2.0
"""Recipes to code and suggestions, through the store; what is missing is generated in worker processes.

libmathdx holds a global lock while it compiles and keeps 1 to 2.3 GiB afterwards, so generation never happens
in the caller's process: each missing recipe goes to a process of its own, as many at once as cores and memory
allow, and the memory goes back when it ends.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from nvmath_device.descriptors import Dim3, LeadingDimension
from nvmath_device.frozen import frozen
from nvmath_device.lto import store as _store
from nvmath_device.lto import toolchain
from nvmath_device.lto.recipes import Recipe

SCHEMA = 3  # raise it when the same recipe would give different code or different meta
CODE_KIND, SUGGESTION_KIND, FFT_TRAITS_KIND, FFT_SYMBOLS_KIND = "ltoir", "gemm-suggestions", "fft-traits", "fft-symbols"
TENSOR_TRAITS_KIND = "tensor-traits"
# Variables by which libmathdx itself lets its user change what it compiles.
LIBMATHDX_VARIABLES = (
    "LIBMATHDX_NVRTC_ARGS_EXTRA",
    "LIBMATHDX_NVRTC_ARGS_OVERWRITE",
    "LIBMATHDX_NVRTC_NO_BUNDLED_HEADERS",
)
BYTES_PER_WORKER = 2_400_000_000  # measured: 1.6 to 2.3 GiB after a GEMM


@frozen()
class Code:
    """One or more device functions as LTO-IR.

    ``symbol`` is the name of the function that executes; ``symbols`` has the names of others, by role. ``sizes`` are
    bytes of the objects that a pipeline's functions work on, by name, and its block; empty for other code.
    """

    symbol: str
    ltoir: bytes
    symbols: Mapping[str, str]
    sizes: Mapping[str, Any] = MappingProxyType({})

    def __repr__(self) -> str:
        return f"Code(symbol={self.symbol!r}, ltoir=<{len(self.ltoir)} bytes>)"


@frozen()
class GemmSuggestions:
    """What libmathdx advises for a GEMM on a target."""

    block_dim: Dim3
    leading_dimension: LeadingDimension


def code(recipe: Recipe) -> Code:
    """The LTO-IR of one recipe: from the store, or generated (13 to 30 s for a GEMM, 3 to 6 s for an FFT)."""
    return codes([recipe])[0]


def codes(recipes: Sequence[Recipe]) -> list[Code]:
    """The LTO-IR of several recipes, in order; those missing are generated at the same time.

    Raises:
        CodegenError: libmathdx refused, with its own text.
        MissingDependencyError: libmathdx or NVRTC is not installed.
    """
    jobs = [("code", recipe) for recipe in recipes]
    return [_code(entry.meta, entry.blob) for entry in _entries(CODE_KIND, jobs)]


def _code(meta: Any, blob: bytes) -> Code:
    return Code(meta["symbol"], blob, meta["symbols"], meta.get("pipeline", {}))


def gemm_suggestions(recipe: Recipe) -> GemmSuggestions:
    """Suggested block size and leading dimensions; the first answer takes libmathdx 8 to 9 s, then it is stored."""
    (entry,) = _entries(SUGGESTION_KIND, [("gemm_suggestions", recipe)])
    meta: Any = entry.meta
    return GemmSuggestions(Dim3(*meta["block_dim"]), LeadingDimension(*meta["leading_dimension"]))


def tensor_traits(recipe: Recipe) -> dict[str, tuple[int, int, int]]:
    """Elements, bytes and alignment in bytes of a descriptor's tensors in shared memory and registers, by name.

    The first answer takes libmathdx 8 s, then it is stored.
    """
    (entry,) = _entries(TENSOR_TRAITS_KIND, [("tensor_traits", recipe)])
    meta: Any = entry.meta
    return {name: tuple(numbers) for name, numbers in meta.items()}


def fft_traits(recipe: Recipe) -> dict[str, Any]:
    """cuFFTDx's traits as plain numbers. libmathdx answers at once; the store spares loading it.

    Raises:
        CodegenError: this combination has no implementation on the target.
    """
    return _asked(FFT_TRAITS_KIND, "fft_traits", recipe)


def fft_symbols(recipe: Recipe) -> dict[str, str]:
    """Names of the functions of a recipe that do not execute, by role. libmathdx names them, at once, as for traits."""
    return _asked(FFT_SYMBOLS_KIND, "fft_symbols", recipe)


def _asked(kind: str, job: str, recipe: Recipe) -> dict[str, Any]:
    """What libmathdx answers in no time, asked in this process."""

    def ask() -> tuple[dict[str, Any], bytes]:
        from nvmath_device.lto import worker

        if toolchain.matches_loaded(toolchain.fingerprint()):
            return worker.perform(job, recipe)
        # Another component of this program has loaded a library of its own; a new process finds ours.
        ((_, meta, blob),) = generate([(job, recipe)])
        return meta, blob

    return dict(_store.default_store().get_or_create(kind, _key(recipe), ask).meta)


def fft_knobs(recipe: Recipe, knobs: tuple[str, ...]) -> list[tuple[int, ...]]:
    """Legal values of knobs, asked of libmathdx in this process; empty when there is no implementation."""
    from nvmath_device.errors import CodegenError
    from nvmath_device.lto import worker

    try:
        return worker.ask_fft_knobs(recipe, knobs)
    except CodegenError:
        return []


def _key(recipe: Recipe) -> dict[str, Any]:
    key = {**recipe.words(), "symbol": recipe.symbol, "versions": toolchain.fingerprint(), "schema": SCHEMA}
    changed = {name: value for name in LIBMATHDX_VARIABLES if (value := os.environ.get(name))}
    return {**key, "environment": changed} if changed else key


def _entries(kind: str, jobs: Sequence[tuple[str, Recipe]]) -> list[_store.Entry]:
    requests = [(kind, _key(recipe)) for _, recipe in jobs]
    by_symbol = {recipe.symbol: (job, recipe) for job, recipe in jobs}

    def create(missing: Sequence[tuple[str, Any]]) -> Iterator[tuple[int, dict[str, Any], bytes]]:
        return generate([by_symbol[key["symbol"]] for _, key in missing])

    return _store.default_store().get_or_create_many(requests, create)


def generate(jobs: Sequence[tuple[str, Recipe]]) -> Iterator[tuple[int, dict[str, Any], bytes]]:
    """Yield (index, meta, blob) of each job as it is done, without asking the store."""
    from concurrent.futures import ThreadPoolExecutor, as_completed  # 5 ms that a hit in the store need not pay

    from nvmath_device.lto import pool

    toolchain.load_mathdx()  # a missing library is one clear error here, not one from each worker
    workers = pool.Workers()
    with pool.progress(len(jobs)), ThreadPoolExecutor(worker_count(len(jobs)), "nvmath_device") as executor:
        futures = {executor.submit(workers.run, job, recipe): i for i, (job, recipe) in enumerate(jobs)}
        try:
            for future in as_completed(futures):
                yield futures[future], *future.result()
        except BaseException:
            workers.stop()
            raise


def worker_count(jobs: int) -> int:
    """How many processes to run at once: no more than jobs, cores, and what the free memory holds."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(jobs, cores, _available_memory() // BYTES_PER_WORKER))


def _available_memory() -> int:
    """Bytes this process may still take: of the machine, or of its control group if that has less."""
    machine = 2 * BYTES_PER_WORKER  # unknown: two at a time
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            machine = int(line.split()[1]) * 1024
    limit, used = (_lines(f"/sys/fs/cgroup/memory.{name}") for name in ("max", "current"))
    if limit and used and limit[0].strip().isdigit():
        return min(machine, max(0, int(limit[0]) - int(used[0])))
    return machine


def _lines(path: str) -> list[str]:
    try:
        with open(path) as file:
            return file.readlines()
    except OSError:
        return []
