# SPDX-License-Identifier: Apache-2.0
"""Opaque tensors in simulated kernels: matrices in memory, and fragments, a thread's part of C.

Copies are shared out to the threads element by element. What a copy into shared memory moves is there after the
thread's ``copy_wait``, as late as a GPU may be.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from nvmath_device import reference
from nvmath_device.descriptors import MatrixLayout, Precision
from nvmath_device.dtypes import ValueType
from nvmath_device.matmul import Matmul
from nvmath_device.numba_backend.simulator_arguments import Array, Call, Place, address_of
from nvmath_device.numba_backend.simulator_arguments import described as described_dtype
from nvmath_device.numba_backend.simulator_block import Block, calling_thread
from nvmath_device.numba_backend.simulator_products import Operands, compute, scalar
from nvmath_device.numba_backend.simulator_shared import poison, storage_dtype
from nvmath_device.numba_backend.simulator_shares import share
from nvmath_device.pipelines import PipelinePlan
from nvmath_device.tensor_layouts import GMEM, RMEM, SMEM, Layout
from nvmath_device.tensor_plans import TensorPlan
from nvmath_device.tensor_rules import (
    Operand,
    check_conversion,
    check_copy,
    check_execute,
    check_fragment,
    check_fragment_copy,
    check_same_layout,
    check_vector,
    copy_alignment,
)

TENSOR_FORM = ("a", "b", "c")

_pending: WeakKeyDictionary[threading.Thread, list[Callable[[], None]]] = WeakKeyDictionary()
_pending_lock = threading.Lock()


def plan_of(mm: Matmul) -> TensorPlan:
    return TensorPlan(*mm._here)


class Tensor(Operand):
    """A matrix in global or shared memory; ``values`` are its rows x columns, in place."""

    def __init__(self, plan: TensorPlan, place: int, memory: str, is_suggested: bool, values: Array) -> None:
        self.plan, self.place, self.memory, self.is_suggested, self.values = plan, place, memory, is_suggested, values
        self.is_natural = values.dtype == plan.value(place).dtype
        self.foreign = "" if self.is_natural else described_dtype(values.dtype)
        self.is_number = values.dtype.names is None
        self.is_complex = values.dtype.kind == "c"

    @property
    def size(self) -> int:
        return self.values.size

    def __getitem__(self, index: Any) -> Any:
        return self.values[self._place(index, "read")]

    def __setitem__(self, index: Any, value: Any) -> None:
        row, column = self._place(index, "written")
        names = getattr(getattr(value, "dtype", None), "names", None)
        if names is None or self.values.dtype.names is not None:
            self.values[row, column] = value
            return
        self._check_vector(row, column, len(names))
        along = 0 if self.plan.layouts[self.place].strides[0] == 1 else 1
        for step, name in enumerate(names):
            self.values[row + step * (1 - along), column + step * along] = value[name]

    def _place(self, index: Any, what: str) -> tuple[int, int]:
        call = Call("tensor", self.described)
        if self.memory != SMEM:
            raise call.typing_error(
                f"cannot have an element {what}: only fragments, in registers, have an index, and tensors in shared "
                "memory a row and a column; copy it to one of them, or use the array that the tensor was made of"
            )
        if not (isinstance(index, tuple) and len(index) == 2 and all(hasattr(x, "__index__") for x in index)):
            raise call.typing_error(f"wants a row and a column, t[row, column], for an element, got {index!r}")
        row, column = (x.__index__() for x in index)
        if not (0 <= row < self.values.shape[0] and 0 <= column < self.values.shape[1]):
            raise call.execution_error(f"is of {self.values.shape}, and has no element {(row, column)}")
        return row, column

    def _check_vector(self, row: int, column: int, count: int) -> None:
        call = Call("tensor", self.described)
        check_vector(call.typing_error, self, count)
        first = row if self.plan.layouts[self.place].strides[0] == 1 else column
        if first % count:
            raise call.execution_error(
                f"has {count} elements at once at multiples of {count} along its lines, and {(row, column)} is none"
            )

    def __repr__(self) -> str:
        return f"tensor {self.described}"


class Fragment(Tensor):
    """What a thread holds of C."""

    def __init__(
        self, plan: TensorPlan, is_suggested: bool, values: Array, pipeline: PipelinePlan | None = None
    ) -> None:
        super().__init__(plan, 2, RMEM, is_suggested, values)
        self.pipeline = pipeline

    @classmethod
    def empty(cls, plan: TensorPlan, is_suggested: bool, pipeline: PipelinePlan | None, dtype: Any = None) -> Any:
        values = np.empty(plan.fragment_size(is_suggested), plan.value(2).dtype if dtype is None else dtype)
        poison(values.view(np.uint8))
        return cls(plan, is_suggested, values, pipeline)

    @property
    def family(self) -> Any:
        return super().family if self.pipeline is None else (self.plan, self.pipeline)

    def __getitem__(self, index: Any) -> Any:
        return self.values[self._index(index)]

    def __setitem__(self, index: Any, value: Any) -> None:
        self.values[self._index(index)] = value

    def _index(self, index: Any) -> int:
        call = Call("fragment", self.described)
        if not hasattr(index, "__index__") or isinstance(index, bool):
            raise call.typing_error(f"wants an integer for the index, got {index!r}")
        if not 0 <= index.__index__() < self.size:
            raise call.execution_error(f"has elements 0 to {self.size - 1}, and {index} is none of them")
        return index.__index__()


# -- making them -----------------------------------------------------------------------------------------------------


def make_tensor(array: Any, layout: Any) -> Tensor:
    call = Call("make_tensor", "nvmath_device")
    calling_thread(call.name)
    if not isinstance(layout, Layout):
        raise call.typing_error(
            f"wants a layout for layout, such as mm.get_layout_smem_a() of a Matmul mm gives, got {layout!r}"
        )
    plan, value = plan_of(layout.matmul), plan_of(layout.matmul).value(layout.place)
    plain = plan.layouts[layout.place]
    if layout.memory == RMEM:
        values = call.values("array", call.array("array", array, ndim=(1,)), value)
        if values.size < layout.cosize:
            raise call.execution_error(f"wants at least {layout.cosize} elements for array, got {values.size}")
        return Fragment(plan, layout.is_suggested, values[: layout.cosize])
    if layout.memory == SMEM:
        call.shared_array("array", array, ndim=(1,))
        values = call.matrix("array", array, plain, value, alignment=layout.alignment)
    else:
        values = _gmem(call, array, layout, plain, value)
    return Tensor(plan, layout.place, layout.memory, layout.is_suggested, values)


def _gmem(call: Call, given: Any, layout: Layout, plain: MatrixLayout, value: ValueType) -> Array:
    array = call.array("array", given, ndim=(1, 2))
    converts = layout.matrix == "c" and value.components == 1 and array.dtype.kind in "iuf"
    values = array if converts and array.dtype != value.dtype else call.values("array", array, value)
    ld = layout.leading_dimension
    if values.ndim == 1:
        call.contiguous("array", values)
        wanted = plain if ld is None else MatrixLayout(plain.rows, plain.cols, plain.order, ld)
        return call._pointed_to("array", values, wanted)
    if values.shape[0] < plain.rows or values.shape[1] < plain.cols:
        raise call.execution_error(
            f"wants at least {plain.rows} x {plain.cols} elements for array, the whole tile, as copies know no edges, "
            f"got {values.shape}"
        )
    tile = call._own_strides("array", values, plain, runtime=False, at_least=True)
    outer = 1 if plain.strides[0] == 1 else 0
    if ld is not None and tile.shape[outer] > 1 and tile.strides[outer] != ld * tile.itemsize:
        raise call.execution_error(
            f"wants the leading dimension of a 2-D array to be its own, {tile.strides[outer] // tile.itemsize} "
            f"elements, got a layout with {ld}"
        )
    return tile


def make_fragment_like(tensor: Any, dtype: Any = None) -> Fragment:
    call = Call("make_fragment_like", "nvmath_device")
    check_fragment(call.typing_error, "tensor", tensor)
    dtype = tensor.values.dtype if dtype is None else storage_dtype(call, dtype)
    made: Fragment = Fragment.empty(tensor.plan, tensor.is_suggested, tensor.pipeline, dtype)
    return made


# -- copies ----------------------------------------------------------------------------------------------------------


def tensor_copy(src: Any, dst: Any, alignment: Any = None) -> None:
    call = Call("copy", "nvmath_device")
    thread = calling_thread(call.name)
    check_copy(call.typing_error, src, dst)
    nbytes = copy_alignment(call.typing_error, src, alignment)
    check_block(call, src.plan, thread.block)
    for name, tensor in (("src", src), ("dst", dst)):
        _check_aligned(call, name, tensor, nbytes)
    call.writable("dst", dst.values)
    mine = slice(thread.linear, None, thread.block.dim.size)

    def move() -> None:
        dst.values.flat[mine] = src.values.flat[mine]

    if dst.memory == SMEM:
        with _pending_lock:
            _pending.setdefault(threading.current_thread(), []).append(move)
    else:
        move()


def tensor_copy_wait() -> None:
    calling_thread("copy_wait")
    with _pending_lock:
        moves = _pending.pop(threading.current_thread(), [])
    for move in moves:
        move()


def check_block(call: Call, plan: TensorPlan, block: Block) -> None:
    if block.dim != plan.block_dim:
        raise call.execution_error(
            f"wants a launch with blockDim {tuple(plan.block_dim)}, as tensors are shared out to just these threads, "
            f"got {tuple(block.dim)}"
        )


def _check_aligned(call: Call, name: str, tensor: Tensor, nbytes: int) -> None:
    pitch = max(tensor.values.strides)
    if address_of(tensor.values) % nbytes or (tensor.memory == GMEM and pitch % nbytes):
        raise call.execution_error(
            f"wants {name} at a multiple of {nbytes} bytes, and its leading dimension too, as the alignment says; it "
            f"is {address_of(tensor.values) % nbytes} bytes behind one, lines are {pitch} bytes apart"
        )


def tensor_copy_fragment(src: Any, dst: Any, alignment: Any = None) -> None:
    call = Call("copy_fragment", "nvmath_device")
    check_fragment_copy(call.typing_error, src, dst)
    nbytes = copy_alignment(call.typing_error, src, alignment)
    copy_fragment(call, src, dst, nbytes)


def copy_fragment(call: Call, src: Tensor, dst: Tensor, alignment: int) -> None:
    """This thread's elements, converted one by one."""
    thread = calling_thread(call.name)
    check_block(call, src.plan, thread.block)
    fragment, other = (src, dst) if src.is_fragment else (dst, src)
    if src.is_natural and dst.is_natural:
        _check_aligned(call, "dst" if fragment is src else "src", other, alignment)
    mine = share(src.plan, thread.linear)
    if fragment is src:
        call.writable("dst", dst.values)
        other.values.flat[mine] = fragment.values[: len(mine)]
    else:
        fragment.values[: len(mine)] = other.values.flat[mine]


# -- registers -------------------------------------------------------------------------------------------------------


def tensor_clear(tensor: Any) -> None:
    check_fragment(Call("clear", "nvmath_device").typing_error, "tensor", tensor)
    tensor.values[...] = np.zeros((), tensor.values.dtype)


def tensor_axpby(alpha: Any, x: Any, beta: Any, y: Any) -> None:
    call = Call("axpby", "nvmath_device")
    for name, given in (("x", x), ("y", y)):
        check_fragment(call.typing_error, name, given)
    check_same_layout(call.typing_error, "x", x, "y", y)
    check_conversion(call.typing_error, x, y)
    axpby(call, alpha, x.values, beta, y)


def axpby(call: Call, alpha: Any, x: Array, beta: Any, y: Fragment) -> None:
    value, dtype = y.plan.value(2), y.values.dtype
    if dtype.names is not None:
        column, one = (v.reshape(-1, 1) for v in (x, np.array([(1, 0)], dtype)))
        scalars = {n: scalar(call, n, s, value) for n, s in (("alpha", alpha), ("beta", beta))}
        types = Precision(value.element, value.element, value.element)
        old = y.values.reshape(-1, 1)
        y.values[...] = reference.gemm(column, one, old, precision=types, data_type="complex", **scalars).reshape(-1)
        return
    work = dtype if dtype.itemsize > 2 or dtype.kind in "iu" else np.dtype(np.float32)
    if y.is_natural:
        alpha, beta = (scalar(call, n, s, value) for n, s in (("alpha", alpha), ("beta", beta)))
    alpha, beta = (np.asarray(s).astype(work) for s in (alpha, beta))
    result = alpha * x.astype(work)
    if beta != 0:
        result = result + beta * y.values.astype(work)
    y.values[...] = result.astype(dtype)


# -- products --------------------------------------------------------------------------------------------------------


def execute_tensors(call: Call, mm: Matmul, given: dict[str, Any]) -> None:
    """``Matmul.execute`` on tensors: all threads of the block come, the last one computes, then all go on."""
    thread, plan = calling_thread(call.name), plan_of(mm)
    check_execute(call.typing_error, plan, given)
    a, b, c = (given[name] for name in "abc")
    same: dict[str, Any] = {"a": Place(a.values), "b": Place(b.values)}
    if not c.is_fragment:
        same["c"] = Place(c.values)
        value = plan.value(2)
        same |= {name: scalar(call, name, given[name], value) for name in ("alpha", "beta")}

    def finish(_: None, fragments: dict[Any, tuple[int, Fragment]]) -> None:
        if c.is_fragment:
            _add_product(plan, a, b, dict(fragments.values()))
        else:
            compute(plan.descriptor, Operands(a.values, b.values, c.values, same["alpha"], same["beta"]))

    thread.block.together(
        thread,
        (call.name, mm),
        same=same,
        own=(thread.linear, c),
        prepare=lambda: check_block(call, plan, thread.block),
        finish=finish,
    )


def _add_product(plan: TensorPlan, a: Tensor, b: Tensor, fragments: dict[int, Fragment]) -> None:
    m, n, _ = plan.descriptor.size
    tile = np.zeros(m * n, plan.value(2).dtype)
    for linear, fragment in fragments.items():
        mine = share(plan, linear)
        tile[mine] = fragment.values[: len(mine)]
    compute(plan.descriptor, Operands(a.values, b.values, tile.reshape(m, n), 1, 1))
    for linear, fragment in fragments.items():
        mine = share(plan, linear)
        fragment.values[: len(mine)] = tile[mine]
