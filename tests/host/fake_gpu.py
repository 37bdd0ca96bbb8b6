# SPDX-License-Identifier: Apache-2.0
"""A GPU that is not there, so that the whole host layer runs without one.

GPU memory is :class:`~tests.host.lt_model.Memory`: its addresses mean nothing to the process, so code that reads GPU
memory from the host crashes, and what reaches beside an allocation or into one that was freed is reported. The driver
is a stand-in that carries out at once what it is asked for and notes it with its stream. cuBLASLt's descriptors and
layouts are the real library's, which need no GPU; its heuristics and its product are :mod:`tests.host.lt_model`.

Arrays are stand-ins for PyTorch and CuPy, or objects that speak DLPack alone. Everything is put in its place by the
fixture ``gpu`` (import it into a test module) and taken away again.
"""

from __future__ import annotations

import ctypes
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nvmath_device.host import copy_kernel, current_device, device_copies, driver, one_call, streams
from nvmath_device.host import cublaslt_calls as calls
from nvmath_device.host.array_view import ArrayView
from nvmath_device.host.cublaslt_enums import (
    MatmulDescAttribute,
    MatmulPreferenceAttribute,
    MatrixLayoutAttribute,
    Status,
)
from nvmath_device.host.cublaslt_prototypes import PROTOTYPES
from tests.host import fakes, lt_model
from tests.host.copy_cases import kernel_addresses
from tests.host.lt_cases import Operand, dtype_of, place
from tests.host.lt_model import Layout, Memory, Refused

TORCH_STREAM, CUPY_STREAM, CAPTURING = 9, 7, 66
HANDLE = 0xC0B1A5
POISON = 0xFF
NEEDED = 16  # bytes: no algorithm needs addresses that are multiples of more, so plans are used again for any such


class FakeGpu:
    """One device, its memory, its libraries, and what was asked of it.

    Attributes:
        memory: all GPU memory.
        log: what was put on streams, in order, each with its stream: (what, stream).
        errors: what went wrong inside callbacks, where it cannot be raised. The fixture fails a test that leaves any.
        lt: the stand-in for cuBLASLt.
        torch, cupy: modules.
    """

    def __init__(self, cc: int = 90) -> None:
        self.cc, self.memory = cc, Memory()
        self.log: list[tuple[str, int]] = []
        self.errors: list[Exception] = []
        self.allocated = 0  # times that memory was taken
        self.driver, self.lt = _Driver(self), _Lt(self)
        self.torch, self.cupy, self.core = _torch(self), _cupy(self), _cuda_core(self)

    def take(self, owner: Any, nbytes: int) -> int:
        """The address of new memory, which is freed when ``owner`` dies."""
        self.allocated += 1
        address = self.memory.allocate(nbytes, fill=POISON)
        weakref.finalize(owner, self.memory.remove, address)
        return address

    # -- arrays ----------------------------------------------------------------------------------------------

    def wrap(self, view: ArrayView, package: str = "torch") -> Any:
        """An array of a library over memory that is there already."""
        if package == "torch":
            dtype = getattr(self.torch, dtype_of(view.element, view.is_complex).name)
            return self.torch.Tensor(view.shape, dtype, view.strides, ptr=view.ptr, conj=view.conjugated)
        assert not view.conjugated
        if package == "cupy":
            strides = [s * view.itemsize for s in view.strides]
            pointer = _Pointer(self, 0, view.device.index, view.ptr)
            return self.cupy.ndarray(view.shape, dtype_of(view.element, view.is_complex), pointer, strides)
        code = 5 if view.is_complex else view.element.dlpack
        return fakes.DLPackArray(
            ptr=view.ptr, code_bits=(code, 8 * view.itemsize), shape=view.shape, strides=view.strides
        )

    def array(self, values: np.ndarray, package: str = "torch", *, element: Any, **how: Any) -> Any:
        """A new array with these values; ``how`` it lies as in :func:`~tests.host.lt_cases.place`."""
        values = np.asarray(values)
        is_complex = values.dtype.kind == "c"
        return self.wrap(place(self.memory, values, element, values.shape, is_complex=is_complex, **how).view, package)

    def read(self, x: Any) -> np.ndarray:
        """What is in an array now, as NumPy's own."""
        if isinstance(x, np.ndarray):
            return x.copy()
        return self.operand(x).stored.copy()

    def operand(self, x: Any) -> Operand:
        from nvmath_device.host.arrays import view

        return Operand(self.memory, view(x, stream=CAPTURING))  # whichever: nobody waits

    # -- streams ---------------------------------------------------------------------------------------------

    def note(self, what: str, stream: Any) -> None:
        self.log.append((what, int(stream or 0)))

    def streams(self, *kinds: str) -> set[int]:
        """The streams on which something of these kinds was put; of all kinds without an argument."""
        return {stream for what, stream in self.log if not kinds or what in kinds}

    def count(self, what: str) -> int:
        return sum(name == what for name, _ in self.log)


# -- the driver ---------------------------------------------------------------------------------------------


class _Driver(fakes.FakeDriver):
    """What ``cuda.bindings.driver`` is asked for."""

    CUdevice_attribute = SimpleNamespace(
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR="major",
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR="minor",
        CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE="l2",
    )
    CUevent_flags = SimpleNamespace(CU_EVENT_DEFAULT=0, CU_EVENT_DISABLE_TIMING=2)

    def __init__(self, gpu: FakeGpu) -> None:
        super().__init__()
        self.gpu, self.context = gpu, 0

    def _note(self, what: str, stream: Any) -> tuple[fakes.Status]:
        self.gpu.note(what, stream)
        return (fakes.Status(0),)

    def cuInit(self, flags: int) -> Any:
        return (fakes.Status(0),)

    def cuCtxGetCurrent(self) -> Any:
        return fakes.Status(0), self.context

    def cuCtxSetCurrent(self, context: int) -> Any:
        self.context = context
        return (fakes.Status(0),)

    def cuDevicePrimaryCtxRetain(self, device: int) -> Any:
        return fakes.Status(0), 100 + device

    def cuDeviceGetCount(self) -> Any:
        return fakes.Status(0), 1

    def cuDeviceGet(self, index: int) -> Any:
        return fakes.Status(0 if index == 0 else 101), index

    def cuDeviceGetAttribute(self, which: str, device: int) -> Any:
        major, minor = divmod(self.gpu.cc, 10)
        return fakes.Status(0), {"major": major, "minor": minor, "l2": 1 << 16}[which]

    def cuDeviceTotalMem(self, device: int) -> Any:
        return fakes.Status(0), 1 << 30

    def cuDeviceGetName(self, length: int, device: int) -> Any:
        return fakes.Status(0), b"Fake GPU".ljust(length, b"\0")

    def cuMemGetInfo(self) -> Any:
        return fakes.Status(0), 1 << 29, 1 << 30

    def cuMemcpyHtoDAsync(self, destination: int, source: int, nbytes: int, stream: int) -> Any:
        self.gpu.memory.at(destination, nbytes)[...] = np.frombuffer(ctypes.string_at(source, nbytes), np.uint8)
        return self._note("to the GPU", stream)

    def cuMemcpyDtoHAsync(self, destination: int, source: int, nbytes: int, stream: int) -> Any:
        ctypes.memmove(destination, self.gpu.memory.at(source, nbytes).tobytes(), nbytes)
        return self._note("to the CPU", stream)

    def cuMemcpyDtoDAsync(self, destination: int, source: int, nbytes: int, stream: int) -> Any:
        self.gpu.memory.at(destination, nbytes)[...] = self.gpu.memory.at(source, nbytes).copy()
        return self._note("copy", stream)

    def cuMemsetD8Async(self, destination: int, value: int, count: int, stream: int) -> Any:
        self.gpu.memory.at(destination, count)[...] = value
        return self._note("fill", stream)

    def cuMemsetD32Async(self, destination: int, value: int, count: int, stream: int) -> Any:
        assert destination % 4 == 0
        self.gpu.memory.at(destination, 4 * count).view(np.uint32)[...] = value
        return self._note("fill", stream)

    def cuStreamSynchronize(self, stream: int) -> Any:
        return self._note("wait", stream)

    def cuEventRecord(self, event: int, stream: int) -> Any:
        self.done.add(event)  # as is everything before it
        self.gpu.note("record", stream)
        return super().cuEventRecord(event, stream)

    def cuStreamWaitEvent(self, stream: int, event: int, flags: int) -> Any:
        self.gpu.note("wait for event", stream)
        return super().cuStreamWaitEvent(stream, event, flags)

    def cuEventElapsedTime(self, start: int, stop: int) -> Any:
        return fakes.Status(0), 0.25

    def cuLaunchKernel(self, function: str, blocks: int, *rest: Any) -> Any:
        """The kernel of strided copies, thread by thread."""
        *_, stream, pointers, _ = rest
        place_ = ctypes.cast(pointers, ctypes.POINTER(ctypes.c_void_p))[0]
        parameters = copy_kernel.Parameters.from_address(place_)
        unit = int(function.split("_")[1])
        flip = np.frombuffer(bytes(parameters.flip), np.uint8)[:unit]
        source, destination = kernel_addresses(function, blocks, parameters)
        assert not (source % unit).any()
        assert not (destination % unit).any()
        for start, to in zip(source.tolist(), destination.tolist(), strict=True):
            self.gpu.memory.at(to, unit)[...] = self.gpu.memory.at(start, unit) ^ flip
        return self._note("copy", stream)


# -- libraries ----------------------------------------------------------------------------------------------


def _torch(gpu: FakeGpu) -> ModuleType:
    torch = fakes.fake_torch(TORCH_STREAM)
    torch.nn = SimpleNamespace(Parameter=type("Parameter", (torch.Tensor,), {"__module__": "torch.nn.parameter"}))

    def empty_strided(shape: Any, strides: Any, *, dtype: Any, device: Any) -> Any:
        itemsize = {"complex64": 8, "complex128": 16}.get(dtype.name) or _dtype(dtype.name).itemsize
        size = 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        made = torch.Tensor(tuple(shape), dtype, tuple(strides), device=device)
        made.ptr = gpu.take(made, size * itemsize)
        return made

    torch.empty_strided = empty_strided
    return torch


def _dtype(name: str) -> np.dtype[Any]:
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, name, name))


class _Pointer:
    """CuPy's ``MemoryPointer``: it keeps the memory alive."""

    def __init__(self, gpu: FakeGpu, nbytes: int, device_id: int, ptr: int | None = None) -> None:
        self.ptr, self.device_id = gpu.take(self, nbytes) if ptr is None else ptr, device_id


def _cupy(gpu: FakeGpu) -> ModuleType:
    cupy = fakes.fake_cupy(CUPY_STREAM)

    class ndarray(*cupy.ndarray.__mro__[1:2]):  # type: ignore[misc]  # CuPy's own base
        __module__ = "cupy"

        def __init__(
            self, shape: Any, dtype: Any = float, memptr: Any = None, strides: Any = None, order: str = "C"
        ) -> None:
            like = np.empty(shape, dtype, order)
            self.shape, self.dtype = like.shape, like.dtype
            self.strides = like.strides if strides is None else tuple(strides)
            self.data = memptr or _Pointer(gpu, max(like.nbytes, 1), cupy.state.device)

        def transpose(self, axes: Any) -> Any:
            shape, strides = ([x[axis] for axis in axes] for x in (self.shape, self.strides))
            return ndarray(shape, self.dtype, self.data, strides)

    cupy.ndarray = ndarray
    cupy.empty = lambda shape, dtype=float, order="C": ndarray(shape, dtype, order=order)
    cupy.cuda.alloc = lambda nbytes: _Pointer(gpu, nbytes, cupy.state.device)
    return cupy


def _cuda_core(gpu: FakeGpu) -> ModuleType:
    class Buffer:
        """Of a memory pool."""

    def allocate(nbytes: int, *, stream: Any) -> Any:
        made = Buffer()
        made.handle = gpu.take(made, nbytes)  # type: ignore[attr-defined]
        return made

    core = ModuleType("cuda.core")
    core.Device = lambda index: SimpleNamespace(memory_resource=SimpleNamespace(allocate=allocate))  # type: ignore[attr-defined]
    core.Stream = SimpleNamespace(from_handle=lambda handle: SimpleNamespace(handle=handle))  # type: ignore[attr-defined]
    return core


# -- cuBLASLt -----------------------------------------------------------------------------------------------

_DESC, _LAYOUT, _PREFERENCE = (
    f"cublasLt{kind}GetAttribute" for kind in ("MatmulDesc", "MatrixLayout", "MatmulPreference")
)
_P = MatmulPreferenceAttribute
_MATRICES = ("a", "b", "c", "d")


class Proposed:
    """An algorithm that heuristics proposed, and under which conditions."""

    def __init__(self, number: int, workspace_bytes: int, alignments: Mapping[str, int]) -> None:
        self.number, self.workspace_bytes, self.alignments = number, workspace_bytes, dict(alignments)


class _Lt:
    """Heuristics, checks and products.

    Attributes:
        workspaces: what the proposed algorithms need, in bytes, the fastest first; those above the limit are left out.
        proposed: all algorithms that were ever proposed, by number, which is in their first four bytes.
        products: calls of cublasLtMatmul that computed something: the number of the algorithm and its stream.
        refusing: numbers of algorithms that cublasLtMatmul does not take after all.
        searches: times that heuristics were asked.
        refusals: why they had nothing.
    """

    def __init__(self, gpu: FakeGpu) -> None:
        self.gpu = gpu
        self.workspaces = [4096, 0]
        self.proposed: dict[int, Proposed] = {}
        self.products: list[tuple[int, int]] = []
        self.refusing: set[int] = set()
        self.searches = 0
        self.refusals: list[str] = []
        self.functions = {
            "cublasLtCreate": self._callback("cublasLtCreate", self._create),
            "cublasLtDestroy": self._callback("cublasLtDestroy", lambda handle: Status.SUCCESS),
            "cublasLtMatmulAlgoGetHeuristic": self._callback("cublasLtMatmulAlgoGetHeuristic", self._heuristics),
            "cublasLtMatmulAlgoCheck": self._callback("cublasLtMatmulAlgoCheck", self._check),
            "cublasLtMatmulAlgoCapGetAttribute": self._callback(
                "cublasLtMatmulAlgoCapGetAttribute", lambda *_: Status.INVALID_VALUE
            ),
            "cublasLtMatmul": self._callback("cublasLtMatmul", self._matmul),
        }

    def _callback(self, name: str, function: Callable[..., int]) -> Any:
        result, arguments = PROTOTYPES[name]

        def guarded(*given: Any) -> int:
            try:
                return int(function(*given))
            except Exception as error:  # nobody above would see it
                self.gpu.errors.append(error)
                return int(Status.INTERNAL_ERROR)

        return ctypes.CFUNCTYPE(result, *arguments)(guarded)

    # -- reading cuBLASLt's objects --------------------------------------------------------------------------

    def _attribute(self, getter: str, address: int, attribute: int) -> int:
        function, size = calls.bind(getter), ctypes.c_size_t()
        assert function(address, attribute, None, 0, ctypes.byref(size)) == 0
        stored = ctypes.create_string_buffer(size.value)
        assert function(address, attribute, stored, size.value, ctypes.byref(size)) == 0
        return int.from_bytes(stored.raw, "little", signed=True)

    def _layout(self, address: int) -> Layout:
        L = MatrixLayoutAttribute
        get = {name: self._attribute(_LAYOUT, address, getattr(L, name)) for name in L.__members__}
        assert get["ORDER"] == get["PLANE_OFFSET"] == get["BATCH_MODE"] == 0
        return Layout(get["TYPE"], get["ROWS"], get["COLS"], get["LD"], get["BATCH_COUNT"], get["STRIDED_BATCH_OFFSET"])

    def _descriptor(self, address: int) -> dict[MatmulDescAttribute, int]:
        """The attributes that are set; a type of -1 is none."""
        found = {attribute: self._attribute(_DESC, address, attribute) for attribute in MatmulDescAttribute}
        types = (MatmulDescAttribute.BIAS_DATA_TYPE, MatmulDescAttribute.EPILOGUE_AUX_DATA_TYPE)
        return {attribute: value for attribute, value in found.items() if not (attribute in types and value == -1)}

    def _call(self, desc: int, layouts: Any, addresses: Any) -> lt_model._Call:
        attributes = self._descriptor(desc)
        compute, scale = (attributes.pop(a) for a in (MatmulDescAttribute.COMPUTE_TYPE, MatmulDescAttribute.SCALE_TYPE))
        return lt_model._Call(compute, scale, attributes, layouts, self.gpu.memory, addresses, self.gpu.cc)

    # -- calls -----------------------------------------------------------------------------------------------

    def _create(self, handle: Any) -> int:
        handle[0] = HANDLE
        return Status.SUCCESS

    def _heuristics(
        self, handle: int, desc: int, a: int, b: int, c: int, d: int, preference: int, limit: int, results: Any,
        count: Any,
    ) -> int:  # fmt: skip
        """Two algorithms for whatever the documentation allows, at addresses aligned as promised."""
        assert handle == HANDLE
        self.searches += 1
        most = self._attribute(_PREFERENCE, preference, _P.MAX_WORKSPACE_BYTES)
        alignments = {
            name: self._attribute(_PREFERENCE, preference, getattr(_P, f"MIN_ALIGNMENT_{name.upper()}_BYTES"))
            for name in _MATRICES
        }
        attributes = self._descriptor(desc)
        for name, attribute in (
            ("bias", MatmulDescAttribute.BIAS_POINTER),
            ("aux", MatmulDescAttribute.EPILOGUE_AUX_POINTER),
        ):
            pointer = attributes.get(attribute, 0)
            alignments[name] = (pointer & -pointer) or 1
        count[0] = 0
        try:
            addresses = tuple(((i + 1) << 40) + alignments[name] for i, name in enumerate(_MATRICES))
            self._call(desc, tuple(map(self._layout, (a, b, c, d))), addresses).check()
        except Refused as why:
            self.refusals.append(str(why))
            return Status.NOT_SUPPORTED
        for workspace in [w for w in self.workspaces if w <= most][:limit]:
            number = len(self.proposed) + 1
            self.proposed[number] = Proposed(number, workspace, alignments)
            result = results[count[0]]
            result.algo.data[0] = number
            result.workspaceSize, result.state, result.wavesCount = workspace, Status.SUCCESS, 1.0
            count[0] += 1
        return Status.SUCCESS if count[0] else Status.NOT_SUPPORTED

    def _check(self, handle: int, desc: int, a: int, b: int, c: int, d: int, algo: Any, result: Any) -> int:
        known = self.proposed.get(algo[0].data[0] & 0xFFFFFFFF)
        if known is None:
            return Status.INVALID_VALUE
        result[0].workspaceSize, result[0].state, result[0].wavesCount = known.workspace_bytes, Status.SUCCESS, 1.0
        return Status.SUCCESS

    def _matmul(
        self, handle: int, desc: int, alpha: int, a: int, a_layout: int, b: int, b_layout: int, beta: int, c: int,
        c_layout: int, d: int, d_layout: int, algo: Any, workspace: int, workspace_bytes: int, stream: int,
    ) -> int:  # fmt: skip
        assert handle == HANDLE
        addresses = (a or 0, b or 0, c or 0, d or 0)
        layouts = tuple(map(self._layout, (a_layout, b_layout, c_layout, d_layout)))
        number = algo[0].data[0] & 0xFFFFFFFF
        if number in self.refusing:
            return Status.NOT_SUPPORTED
        call = self._call(desc, layouts, addresses)
        self._keep_to_conditions(self.proposed[number], call, workspace or 0, workspace_bytes)
        factors = (self._host_number(call.scale, pointer) for pointer in (alpha, beta))
        call.run(*factors)
        self.gpu.note("product", stream)
        self.products.append((number, stream or 0))
        return Status.SUCCESS

    def _keep_to_conditions(self, known: Proposed, call: lt_model._Call, workspace: int, nbytes: int) -> None:
        """Heuristics were told alignments and a workspace; the call has to keep to them."""
        if nbytes < known.workspace_bytes:
            raise Refused(f"a workspace of {nbytes} bytes for an algorithm that needs {known.workspace_bytes}")
        if nbytes:
            self.gpu.memory.at(workspace, nbytes)[...] = POISON
            if workspace % 256:
                raise Refused(f"the workspace is at {workspace:#x}")
        pointers = dict(zip(_MATRICES, call.at, strict=True))
        pointers["bias"] = call.get(MatmulDescAttribute.BIAS_POINTER)
        pointers["aux"] = call.get(MatmulDescAttribute.EPILOGUE_AUX_POINTER)
        for name, pointer in pointers.items():
            if pointer % min(known.alignments[name], NEEDED):
                raise Refused(f"{name} at {pointer:#x}, and heuristics were told {known.alignments[name]} bytes")

    @staticmethod
    def _host_number(scale: int, pointer: int) -> Any:
        dtype = lt_model.DTYPES[scale]
        return np.frombuffer(ctypes.string_at(pointer, dtype.itemsize), dtype)[0]


# -- putting it in its place --------------------------------------------------------------------------------

_CACHES = (
    driver.bindings, current_device.device_count, current_device.compute_capability, current_device.total_memory,
    current_device.device_name,
)  # fmt: skip


def install(gpu: FakeGpu, patch: pytest.MonkeyPatch) -> None:
    """Put the stand-ins where the host layer looks for a driver, libraries and cuBLASLt."""
    import cuda.bindings

    real = sys.modules.get("cuda.bindings.driver")
    patch.setattr(cuda.bindings, "driver", gpu.driver, raising=real is not None)
    for name, module in (("torch", gpu.torch), ("cupy", gpu.cupy), ("cuda.core", gpu.core)):
        patch.setitem(sys.modules, name, module)
    for name, function in gpu.lt.functions.items():
        patch.setitem(calls._bound, name, function)

    def current(reference: Any) -> int:
        reference._obj.value = gpu.driver.context - 100 if gpu.driver.context else -1
        return 0 if gpu.driver.context else 201

    def capturing(stream: int, reference: Any) -> int:
        reference._obj.value = stream == CAPTURING
        return 0

    patch.setattr(current_device, "_get_device", current)
    patch.setattr(current_device, "_ask_capturing", lambda: capturing)
    patch.setattr(current_device, "_contexts", {})
    patch.setattr(current_device, "_handles", {})
    patch.setattr(copy_kernel, "loaded", lambda function: function)
    patch.setattr(device_copies, "_being_read", streams.Retained())
    patch.setattr(streams, "_retained", streams.Retained())


@contextmanager
def running(gpu: FakeGpu) -> Iterator[FakeGpu]:
    """Everything of the host layer uses this device inside; what went wrong in callbacks is raised at the end."""
    with pytest.MonkeyPatch.context() as patch:
        for cache in _CACHES:
            cache.cache_clear()
        one_call.clear_plans()
        install(gpu, patch)
        try:
            yield gpu
        finally:
            one_call.clear_plans()
            current_device._handles.clear()
    for cache in _CACHES:
        cache.cache_clear()
    if gpu.errors:
        raise gpu.errors[0]


@pytest.fixture
def gpu() -> Iterator[FakeGpu]:
    """A device of compute capability 9.0."""
    with running(FakeGpu()) as made:
        yield made


__all__ = ["CAPTURING", "CUPY_STREAM", "TORCH_STREAM", "FakeGpu", "gpu", "running"]
