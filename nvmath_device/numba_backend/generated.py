# SPDX-License-Identifier: Apache-2.0
"""Generated code as Numba links it: named while a kernel is lowered, made when it is linked, all of it at once.

A call in a kernel needs no more than the name of a function, and that follows from the recipe. So lowering collects
the recipes, and the 5 to 30 s that libmathdx takes for each pass side by side.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from numba.cuda.cudadrv.linkable_code import LTOIR

from nvmath_device.descriptors import Dim3
from nvmath_device.lto import codegen
from nvmath_device.lto.recipes import Recipe
from nvmath_device.numba_backend.loading import allow_dynamic_shared_memory

Check = Callable[[Mapping[str, Any]], None]

_KEPT = 32  # 2 MB each; what outlives its kernels is not generated again where the store is off

_lock = threading.Lock()
_in_use: WeakValueDictionary[Recipe, Generated] = WeakValueDictionary()
_kept: dict[Recipe, Generated] = {}  # the last ones that were generated, oldest first


class RequiredBlock(NamedTuple):
    """The block that must call a function: so many threads, or with ``exact`` just these extents."""

    block_dim: Dim3
    exact: bool


class Generated(LTOIR):
    """The code of one recipe. Numba reads ``data`` when it links."""

    def __init__(self, recipe: Recipe, block: RequiredBlock | None, check: Check | None) -> None:
        super().__init__(None, name=recipe.symbol, setup_callback=allow_dynamic_shared_memory)
        self.recipe, self.block, self.check = recipe, block, check
        self.code: codegen.Code | None = None

    @property
    def data(self) -> bytes:
        """The LTO-IR. Where it is missing it is generated, with whatever else of the same kernel is."""
        if self.code is None:
            # Numba does not say which kernel it links. All that kernels alive want is a little more than it.
            with _lock:
                wanted = list(_in_use.values())
            generate(wanted)
        assert self.code is not None
        return self.code.ltoir


def generated(recipe: Recipe, block: RequiredBlock | None, check: Check | None = None) -> Generated:
    """The one object of a recipe: Numba links every distinct object, so equal code must be the same object.

    ``block`` follows from the recipe and the traits that belong to it. ``check`` is called with the sizes of the
    objects that the code works on, when it is there; what it raises ends the compilation.
    """
    with _lock:
        found = _in_use.get(recipe)
        if found is None:
            found = _in_use[recipe] = Generated(recipe, block, check)
        return found


def generate(wanted: Sequence[Generated]) -> None:
    """Have the code of all of these; those that are neither here nor in the store are generated at the same time.

    Raises:
        CodegenError: libmathdx refused one of them.
    """
    missing = [code for code in wanted if code.code is None]
    if not missing:
        return
    for code, made in zip(missing, codegen.codes([code.recipe for code in missing]), strict=True):
        if code.check is not None:
            code.check(made.sizes)
        code.code = made
    with _lock:
        for code in missing:
            _kept.pop(code.recipe, None)
            _kept[code.recipe] = code
        while len(_kept) > _KEPT:
            del _kept[next(iter(_kept))]


def forget() -> None:
    """Forget what is kept; kernels that hold code keep theirs."""
    with _lock:
        _kept.clear()
        _in_use.clear()
