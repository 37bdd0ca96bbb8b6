# SPDX-License-Identifier: Apache-2.0
"""``DevicePipeline``: two whole matrices and how a kernel streams tiles of them, as one argument of a launch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nvmath_device import simulation
from nvmath_device.descriptors import ROW_MAJOR, Dim3
from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError
from nvmath_device.kernel_calls import call_in_kernel
from nvmath_device.pipelines import BUFFER_ALIGNMENT, PIPELINE_BYTES, storage_bytes

if TYPE_CHECKING:
    from nvmath_device.matmul import Matmul

STORAGE_ALIGNMENT = 64  # of a descriptor of a tensor


class DevicePipeline:
    """Matrices ``a`` (M, K) and ``b`` (K, N) on the GPU, to be multiplied tile by tile; made by
    :meth:`nvmath_device.Matmul.suggest_device_pipeline`.

    It is passed to kernels of ``nd.jit`` as it is, needs no extensions there, and a pipeline of other extents or
    strides runs the same code. It holds the arrays, so they live as long as it does. In a kernel every thread of the
    block calls

    - ``tile = pipeline.get_tile(smem, i, j)``: the first tiles of A and B for tile (i, j) of C are on their way.
      ``smem`` is the dynamic shared memory of the launch from its beginning, such as ``nd.shared.array(0, np.uint8,
      1024)``; its first :attr:`buffer_size` bytes are the pipeline's, until the tile has been executed.
    - ``tile.execute(acc)``: the whole loop over K, added to ``acc``, which is ``mm.suggest_accumulator()`` for a
      pipeline of the default depth and ``tile.suggest_accumulator()`` for any. The accumulator can say where its
      elements are, and be stored, until ``reset_tile`` and execution of another tile, and before ``destroy``.
    - ``pipeline.reset_tile(tile, i, j)`` after it: on to another tile.
    - ``tile.destroy()`` at the end. Without it a room for 512 blocks fills up, and the next block waits for ever.

    Nothing outside of the matrices is read; what of a tile lies outside of C is computed from zeros. Launch with
    :attr:`block_dim` and :attr:`buffer_size` bytes of dynamic shared memory.

    Attributes:
        matmul: the descriptor of a tile.
        depth: stages, as given.
        a, b: the arrays.
    """

    def __init__(self, matmul: Matmul, depth: int | str | None, a: Any, b: Any) -> None:
        if not matmul.with_pipeline:
            raise InvalidArgumentError(
                "with_pipeline: False, and a device pipeline needs a Matmul made with with_pipeline=True, whose "
                "accumulators are a pipeline's"
            )
        self.matmul, self.depth, self.a, self.b = matmul, depth, a, b
        operands = _view(a, "a"), _view(b, "b")
        (_, columns), (rows, _) = (_check(matmul, place, operand) for place, operand in enumerate(operands))
        if columns != rows:
            raise InvalidArgumentError(f"a and b: {columns} columns of a and {rows} rows of b; they must be equal")
        devices = {str(operand.device) for operand in operands}
        if len(devices) > 1:
            raise InvalidArgumentError(f"a and b: one is on {' and one on '.join(sorted(devices))}")
        assert self.buffer_size  # there is such a pipeline

    @property
    def buffer_size(self) -> int:
        """Bytes of dynamic shared memory; asks the current device where the descriptor has no target."""
        return storage_bytes(*self.matmul._here if simulation.is_active() else self.matmul.resolved(), depth=self.depth)

    @property
    def buffer_alignment(self) -> int:
        """Bytes."""
        return BUFFER_ALIGNMENT

    @property
    def storage_bytes(self) -> int:
        """Bytes in global memory that a block keeps its part of the pipeline in; the kernel has them."""
        return PIPELINE_BYTES

    @property
    def storage_alignment(self) -> int:
        """Bytes."""
        return STORAGE_ALIGNMENT

    @property
    def block_dim(self) -> Dim3:
        """Threads to launch with."""
        return self.matmul.block_dim

    @property
    def a_strides(self) -> tuple[int, ...]:
        """Elements."""
        return _strides(self.a, "a")

    @property
    def b_strides(self) -> tuple[int, ...]:
        """Elements."""
        return _strides(self.b, "b")

    def __repr__(self) -> str:
        return f"DevicePipeline({self.matmul!r}, depth={self.depth!r})"

    def get_tile(self, *args: Any, **kwargs: Any) -> Any:
        """Kernel side: see the class."""
        return call_in_kernel("DevicePipeline.get_tile", "device_pipeline_tile", self, args, kwargs)

    def reset_tile(self, *args: Any, **kwargs: Any) -> None:
        """Kernel side: see the class."""
        call_in_kernel("DevicePipeline.reset_tile", "device_pipeline_reset", self, args, kwargs)


def _view(x: Any, name: str) -> Any:
    from nvmath_device.host.arrays import view

    return view(getattr(x, "_ary", x) if simulation.is_active() else x, name)


def _strides(x: Any, name: str) -> tuple[int, ...]:
    strides: tuple[int, ...] = _view(x, name).strides
    return strides


def _check(matmul: Matmul, place: int, operand: Any) -> tuple[int, int]:
    """The extents of a matrix, which is what the descriptor says."""
    name, value, order = "ab"[place], matmul.descriptor.value_types[place], matmul.arrangement[place]
    if operand.ndim != 2:
        raise InvalidArgumentError(f"{name}: a matrix is needed, and this array is {operand.ndim}-D")
    if (operand.element.dtype, operand.is_complex) != (value.element.dtype, value.is_complex):
        raise ArgumentTypeError(f"{name}: elements of {value} are needed, and these are {operand.element}")
    if operand.device.kind == "cpu" and not simulation.is_active():
        raise ArgumentTypeError(
            f"{name}: an array in CPU memory; copy it to the GPU, with numba.cuda.to_device(...), say"
        )
    outer, inner = (0, 1) if order == ROW_MAJOR else (1, 0)
    if operand.shape[inner] > 1 and operand.strides[inner] != 1:
        raise InvalidArgumentError(
            f"{name}: a {order} matrix is needed, as the arrangement says, and strides are {operand.strides} elements"
        )
    alignment = matmul.alignment[place]
    if operand.ptr % alignment or (operand.shape[outer] > 1 and operand.strides[outer] * value.itemsize % alignment):
        raise InvalidArgumentError(
            f"{name}: the address and the leading dimension must be multiples of the {alignment} bytes that the "
            f"descriptor's alignment promises; they are {operand.ptr:#x} and {operand.strides[outer]} elements"
        )
    rows, columns = operand.shape
    return rows, columns
