# SPDX-License-Identifier: Apache-2.0
"""Arrays of real libraries with any strides, made from a buffer in CPU memory, and read back by the library itself.

Nothing here uses the package under test. On "cpu" PyTorch's tensors are in CPU memory and Numba and CuPy have none.
"""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest

if TYPE_CHECKING:
    from tests.gpu.host.products import Lay

NAMES = {"cupy": "CuPy", "torch": "PyTorch", "jax": "JAX"}
INSTALLED = [name for name in NAMES if importlib.util.find_spec(name)]
needs = {
    name: pytest.mark.skipif(name not in INSTALLED, reason=f"needs a GPU with {title}") for name, title in NAMES.items()
}
CUPY, TORCH, JAX = (pytest.param(name, marks=needs[name]) for name in NAMES)

NATIVE = ("float16", "float32", "float64", "complex64", "complex128", "int8", "int32", "uint8")
NARROW = ("bfloat16", "float8_e4m3fn", "float8_e5m2")


def libraries_for(name: str, device: str) -> list[str]:
    """Libraries that have arrays of an element type on a device."""
    found = ["numpy"]
    if "torch" in INSTALLED:
        found.append("torch")
    if name in NATIVE and device == "cuda":
        found += ["numba", *(["cupy"] if "cupy" in INSTALLED else [])]
    if name in NATIVE or "torch" in INSTALLED:
        found.append("dlpack")
    return found


def combinations(kinds: Iterable[Any], libraries: Iterable[str]) -> list[Any]:
    """Parameters (kind, library) for tests on a GPU, of libraries that have such arrays where they are installed."""
    params = []
    for kind, library in itertools.product(kinds, libraries):
        is_narrow = any(name in NARROW for name in (kind.a, kind.d))
        if is_narrow and library in ("cupy", "numba"):
            continue
        wants = "torch" if is_narrow and library == "dlpack" else library
        marks = [needs[wants]] if wants in needs else []
        params.append(pytest.param(kind, library, marks=marks, id=f"{kind}-{library}"))
    return params


def strides_for(library: str) -> tuple[bool, bool]:
    """Whether arrays of a library may have negative strides, and strides of zero."""
    return {
        "torch": (False, True), "numba": (False, False), "dlpack": (False, True),
    }.get(library, (True, True))  # fmt: skip


class OnlyDLPack:
    """An array of nobody's: it speaks DLPack and nothing else."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __dlpack__(self, **arguments: Any) -> Any:
        return self.inner.__dlpack__(**arguments)

    def __dlpack_device__(self) -> Any:
        return self.inner.__dlpack_device__()


@dataclass
class Placed:
    """An array of a library, and what reads the whole buffer that it lies in."""

    array: Any
    memory: Callable[[], np.ndarray]


def place(library: str, lay: Lay, device: str, *, lazy: bool = False) -> Placed:
    """The array that ``lay`` describes, over a copy of its buffer. ``lazy``: as PyTorch's unresolved conjugate."""
    if library == "dlpack":
        on_cpu = device == "cpu" and lay.buffer.dtype.name in NATIVE
        inner = place("numpy" if on_cpu else _with_dlpack(lay), lay, device)
        return Placed(OnlyDLPack(inner.array), inner.memory)
    return {"numpy": _numpy, "torch": _torch, "cupy": _cupy, "numba": _numba}[library](lay, device, lazy)


def _with_dlpack(lay: Lay) -> str:
    return "cupy" if "cupy" in INSTALLED and lay.buffer.dtype.name in NATIVE else "torch"


def _numpy(lay: Lay, device: str, lazy: bool) -> Placed:
    copy = lay._replace(buffer=lay.buffer.copy())
    return Placed(copy.view, lambda: copy.buffer)


def _torch(lay: Lay, device: str, lazy: bool) -> Placed:
    import torch

    owned = torch.from_numpy(lay.buffer.view(np.uint8)).to(device, copy=True)
    typed = owned.view(getattr(torch, lay.buffer.dtype.name))
    array = torch.as_strided(typed, lay.shape, lay.strides, lay.start)
    return Placed(array.conj() if lazy else array, lambda: owned.cpu().numpy().view(lay.buffer.dtype))


def _cupy(lay: Lay, device: str, lazy: bool) -> Placed:
    import cupy

    itemsize = lay.buffer.itemsize
    owned = cupy.asarray(lay.buffer)
    array = cupy.ndarray(
        lay.shape, lay.buffer.dtype, owned.data + lay.start * itemsize, [s * itemsize for s in lay.strides]
    )
    return Placed(array, owned.get)


def _numba(lay: Lay, device: str, lazy: bool) -> Placed:
    from numba import cuda
    from numba.cuda.cudadrv.devicearray import DeviceNDArray

    itemsize = lay.buffer.itemsize
    owned = cuda.to_device(lay.buffer)
    strides = tuple(s * itemsize for s in lay.strides)
    data = owned.gpu_data.view(lay.start * itemsize) if lay.start else owned.gpu_data
    array = DeviceNDArray(lay.shape, strides, lay.buffer.dtype, gpu_data=data)
    return Placed(array, owned.copy_to_host)


# -- reading back -------------------------------------------------------------------------------------------


def library_of(x: Any) -> str:
    """``"ours"`` for the package's own array."""
    root = type(x).__module__.partition(".")[0]
    if isinstance(x, OnlyDLPack):
        return "dlpack"
    return {"nvmath_device": "ours", "jaxlib": "jax"}.get(root, root)


def to_numpy(x: Any) -> np.ndarray:
    """A copy of the elements in NumPy, after all that was put on the GPU before."""
    library = library_of(x)
    if library == "numpy":
        return x.copy()
    if library in ("dlpack", "ours"):
        return _through_dlpack(x)
    synchronize()
    if library == "torch":
        return _of_torch(x)
    if library == "cupy":
        return x.get()
    if library == "numba":
        return x.copy_to_host()
    return np.asarray(x)


def _through_dlpack(x: Any) -> np.ndarray:
    if int(x.__dlpack_device__()[0]) == 1 and "torch" not in INSTALLED:
        return np.from_dlpack(x).copy()
    if "torch" in INSTALLED:
        import torch

        found = torch.from_dlpack(x)
        synchronize()
        return _of_torch(found)
    from numba import cuda

    synchronize()
    return cuda.as_cuda_array(x).copy_to_host()


def _of_torch(x: Any) -> np.ndarray:
    import torch

    name = str(x.dtype).rpartition(".")[2]
    x = x.detach().resolve_conj().cpu().contiguous()
    if name in NARROW:
        bits = x.view(torch.int16 if x.element_size() == 2 else torch.uint8)
        return bits.numpy().view(getattr(ml_dtypes, name)).copy()
    return x.numpy().copy()


def synchronize() -> None:
    """Wait for the device, where there is one, and fail where its context is lost."""
    status = context_status()
    assert status in (0, 3, 201), f"the CUDA context answers {status}"  # 3, 201: nobody has used CUDA here


def context_status() -> int:
    """What the driver answers when asked to wait for all work: 0, or what a kernel has done to the context."""
    from cuda.bindings import driver

    try:
        return int(driver.cuCtxSynchronize()[0])
    except RuntimeError:  # no driver
        return 3
