# SPDX-License-Identifier: Apache-2.0
"""``python -m nvmath_device cache warm``: the kernels of a program built ahead of its first run, without a GPU."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from nvmath_device import simulation
from nvmath_device.errors import InvalidArgumentError, InvalidStateError
from nvmath_device.kernel_code import KernelCode
from nvmath_device.targets import ComputeCapability


@dataclass(frozen=True)
class Outcome:
    """What became of one kernel for one signature and target: ``code``, or the text of the error instead.

    ``kernel`` is its name with the types of its arguments; ``seconds`` is 0 where the code was in the store.
    """

    kernel: str
    sm: str
    code: KernelCode | None
    error: str
    seconds: float


def load(source: str) -> ModuleType:
    """Import a Python file by its path, or a module by its name; what is under ``__name__ == "__main__"`` does not run.

    A file sees modules beside it, as a program does that is started.

    Raises:
        InvalidArgumentError: there is no such file or module. What the module raises while it is imported.
    """
    if not source.endswith(".py"):
        sys.path.insert(0, os.getcwd())
        try:
            found = importlib.util.find_spec(source)
        except (ImportError, ValueError):
            found = None
        if found is None:
            raise InvalidArgumentError(
                f"{source!r} is neither a module that can be imported nor a path that ends in .py"
            )
        return importlib.import_module(source)
    path = os.path.abspath(source)
    if not os.path.isfile(path):
        raise InvalidArgumentError(f"there is no file {source}")
    sys.path.insert(0, os.path.dirname(path))
    # A name of its own: a program called numpy.py must not become everybody's numpy.
    name = f"_warmed_{os.path.basename(path).removesuffix('.py')}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def kernels_of(module: ModuleType) -> list[Any]:
    """The kernels of ``nd.jit`` that a module has names for, in the order of the names' definition.

    Raises:
        InvalidStateError: Numba's simulator is on, where there is nothing to build.
    """
    from nvmath_device.kernels import Kernel

    if simulation.is_active():
        raise InvalidStateError("Numba's simulator is on, which builds nothing: unset NUMBA_ENABLE_CUDASIM")
    return list(dict.fromkeys(value for value in vars(module).values() if isinstance(value, Kernel)))


def warm(kernels: Sequence[Any], targets: Sequence[ComputeCapability]) -> Iterator[Outcome]:
    """Build all declared signatures of these kernels for all targets, and yield what became of each.

    All of libmathdx's code that any of them needs is generated first, at the same time. One that fails does not stop
    the others.
    """
    jobs = [(kernel, types, target) for kernel in kernels for types in kernel.signatures for target in targets]
    missing = [job for job in jobs if not _is_stored(*job)]
    _generate_all(missing)
    for kernel, types, target in jobs:
        name = f"{kernel.py_func.__qualname__}({', '.join(map(str, types))})"
        started = time.monotonic()
        try:
            code = kernel.build(types, target)
        except Exception as error:
            yield Outcome(name, target.sm, None, str(error).strip() or type(error).__name__, 0.0)
        else:
            seconds = time.monotonic() - started if (kernel, types, target) in missing else 0.0
            yield Outcome(name, target.sm, code, "", seconds)


def _is_stored(kernel: Any, types: tuple[Any, ...], target: ComputeCapability) -> bool:
    from nvmath_device.lto.store import default_store
    from nvmath_device.numba_backend.kernel_builds import KIND
    from nvmath_device.numba_backend.kernel_words import NotInWords, kernel_words

    try:
        words = kernel_words(kernel.py_func, types, kernel.options, target)
    except NotInWords:
        return False
    return default_store().get(KIND, words) is not None


def _generate_all(jobs: Sequence[tuple[Any, tuple[Any, ...], ComputeCapability]]) -> None:
    from nvmath_device.lto.codegen import codes
    from nvmath_device.numba_backend.compiling import Lowered

    recipes = []
    for kernel, types, target in jobs:
        try:
            recipes += [code.recipe for code in Lowered(kernel, types, target, kernel.options).generated]
        except Exception:
            continue  # building it says the same again, and that is told
    try:
        codes(list(dict.fromkeys(recipes)))
    except Exception:
        return  # so does what libmathdx refuses; what it has made is stored
