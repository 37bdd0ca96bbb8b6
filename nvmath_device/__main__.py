# SPDX-License-Identifier: Apache-2.0
"""``python -m nvmath_device``: ``info``, ``cache`` (the code store), ``support-matrix`` (cuBLASLt on this device)."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nvmath_device.errors import InvalidArgumentError, NvmathDeviceError

if TYPE_CHECKING:
    from nvmath_device.lto.store import EntryInfo, Store


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit status is 0, 1 for an error told on stderr, 2 for wrong arguments."""
    arguments = _parser().parse_args(argv)
    try:
        return arguments.run(arguments)
    except BrokenPipeError:  # who reads has had enough, as in `cache list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (NvmathDeviceError, OSError) as error:
        print(f"nvmath_device: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m nvmath_device", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    info = commands.add_parser("info", help="what is installed, and what is missing")
    info.add_argument("--json", action="store_true", help="as JSON")
    info.set_defaults(run=_info)

    matrix = commands.add_parser(
        "support-matrix", help="types, epilogs and layouts that cuBLASLt has algorithms for on this device, as Markdown"
    )
    matrix.add_argument("--json", action="store_true", help="as JSON, with every single answer")
    matrix.add_argument("--output", metavar="FILE", help="into FILE instead of stdout")
    matrix.set_defaults(run=_support_matrix)

    cache = commands.add_parser("cache", help="look at, fill, empty, or pass on the code store")
    actions = cache.add_subparsers(required=True, metavar="ACTION")
    for name, run, text in (
        ("path", _cache_path, "print its folder"),
        ("list", _cache_list, "one line an entry, the most recently used first: bytes, last use, kind, key or kernel"),
        ("clear", _cache_clear, "remove all entries"),
    ):
        actions.add_parser(name, help=text).set_defaults(run=run)
    for name, run, text in (
        ("export", _cache_export, "write all entries to FILE"),
        ("import", _cache_import, "add the entries of FILE, which `cache export` wrote"),
    ):
        action = actions.add_parser(name, help=text)
        action.add_argument("file", metavar="FILE")
        action.set_defaults(run=run)
    warm = actions.add_parser("warm", help="build the nd.jit kernels of a program that are declared with signatures")
    warm.add_argument("source", metavar="FILE.py|MODULE", help="is imported, so what it does when imported is done")
    warm.add_argument(
        "--cc", action="append", metavar="CC", help="target, such as 90; may be repeated; default: the current device"
    )
    warm.set_defaults(run=_cache_warm)
    return parser


def _info(arguments: argparse.Namespace) -> int:
    from nvmath_device.info import info, render

    report = info()
    print(json.dumps(report, indent=2) if arguments.json else render(report))
    return 0


def _support_matrix(arguments: argparse.Namespace) -> int:
    from nvmath_device.host.support_matrix import render, support_matrix

    report = support_matrix()
    text = json.dumps(report, indent=1) + "\n" if arguments.json else render(report)
    if arguments.output is None:
        print(text, end="")
    else:
        Path(arguments.output).write_text(text, encoding="utf-8")
    return 0


def _store() -> Store:
    from nvmath_device.lto.store import default_store

    store = default_store()
    if store.path is None:
        raise NvmathDeviceError("the code store is off; unset NVMATH_DEVICE_CACHE_DIR or set it to a folder")
    return store


def _cache_path(arguments: argparse.Namespace) -> int:
    print(_store().path)
    return 0


def _cache_list(arguments: argparse.Namespace) -> int:
    for entry in sorted(_store().entries(), key=lambda entry: entry.mtime, reverse=True):
        used = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.mtime))
        print(f"{entry.size:>12}  {used}  {entry.kind}  {_described(entry)}")
    return 0


def _described(entry: EntryInfo) -> str:
    """A kernel by name, types and target, as its key has pages; anything else by its key."""
    if entry.kind == "kernel":
        key: Any = entry.key
        meta: Any = entry.meta
        types = ", ".join(argument["type"] for argument in meta["parameters"])
        return f"{meta['sm']}  {key['functions'][0]['name']}({types})"
    return entry.key if isinstance(entry.key, str) else json.dumps(entry.key, sort_keys=True)


def _cache_warm(arguments: argparse.Namespace) -> int:
    from nvmath_device.targets import compute_capability
    from nvmath_device.warming import kernels_of, load, warm

    _store()
    targets = [compute_capability(cc, argument="--cc") for cc in arguments.cc or [_current_cc()]]
    kernels = kernels_of(load(arguments.source))
    if not kernels:
        raise InvalidArgumentError(f"{arguments.source} has no kernel made by nvmath_device.jit")
    for kernel in kernels:
        if not kernel.signatures:
            name = kernel.py_func.__qualname__
            print(f"left out  {name}: nd.jit has no signature; declare it, as in @nd.jit(void(float32[:]))")
    failed = 0
    for outcome in warm(kernels, targets):
        if outcome.code is None:
            failed += 1
            print(f"nvmath_device: {outcome.sm}  {outcome.kernel}: {outcome.error}", file=sys.stderr)
        else:
            how = f"built in {outcome.seconds:.1f} s" if outcome.seconds else "there already"
            print(f"{len(outcome.code.cubin):>12}  {outcome.sm}  {outcome.kernel}  {how}", flush=True)
    return 1 if failed else 0


def _current_cc() -> int:
    from nvmath_device.errors import NoDeviceError
    from nvmath_device.lto.toolchain import current_sm

    try:
        return current_sm()
    except NoDeviceError as error:
        raise NoDeviceError("there is no device to build for: say for which target, as in --cc 90") from error


def _cache_clear(arguments: argparse.Namespace) -> int:
    print(f"{_store().clear()} entries removed")
    return 0


def _cache_export(arguments: argparse.Namespace) -> int:
    print(f"{_store().export_entries(arguments.file)} entries written to {arguments.file}")
    return 0


def _cache_import(arguments: argparse.Namespace) -> int:
    print(f"{_store().import_entries(arguments.file)} entries now stored")
    return 0


if __name__ == "__main__":
    sys.exit(main())
