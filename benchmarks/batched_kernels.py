# SPDX-License-Identifier: Apache-2.0
"""Kernels for ``benchmarks/batched.py``: C[i] = A[i] B[i] of many small float32 matrices, in several ways.

What bounds them is memory: a product of 32 x 32 x 32 reads 8 KiB, writes 4 KiB and computes 65,536 floating-point
operations, so 100,000 products move 1.23 GB, 0.30 ms at an H200's 4.1 TB/s, and their 6.6 GFLOP take 0.13 ms of its
peak. A multiprocessor computes some dozen blocks at a time, each of few threads, so that some load while others
multiply and store; every element crosses the bus once, 16 bytes at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numba import cuda
from numba.cuda import types

import nvmath_device as nd

SIZE = 32
ROWS = ("row_major",) * 3
PADDED = (SIZE + 4, SIZE, SIZE)  # rows of A begin in other banks of shared memory, still at multiples of 16 bytes
TIGHT = (SIZE, SIZE, SIZE)


@dataclass(frozen=True)
class Variant:
    """A way to compute the batch.

    Attributes:
        form: ``"multiply"``: one call of ``Matmul.multiply`` a product; ``"shared"``: load, execute and store on shared
            memory; ``"prefetch"``: the same, with the next operands copied while these are multiplied; ``"tensors"``:
            that with layouts of libmathdx's choice and the product in registers.
        threads: of a block.
        depth: stages of the form ``"multiply"``. K is one tile, but the product is nvmath_device's own with two only.
        products: that a block computes, one after the other.
        leading_dimension: of A, B and C in shared memory, for the forms ``"shared"`` and ``"prefetch"``.
    """

    form: str
    threads: int
    products: int = 1
    depth: int = 1
    leading_dimension: tuple[int, int, int] = TIGHT

    @property
    def name(self) -> str:
        padded = ", A padded" if self.leading_dimension != TIGHT else ""
        stages = f", {self.depth} stages" if self.depth > 1 else ""
        return f"{self.form}, {self.threads} threads, {self.products} a block{padded}{stages}"

    def matmul(self, sm: int | None = None) -> nd.Matmul:
        """For a target; left out, it is the current device."""
        return nd.Matmul(
            size=(SIZE, SIZE, SIZE),
            precision="float32",
            data_type="real",
            arrangement=ROWS,
            leading_dimension=self.leading_dimension,
            alignment=nd.MAX_ALIGNMENT,
            block_size=self.threads,
            static_block_dim=True,
            sm=sm,
        )

    def shared_bytes(self, sm: int | None = None) -> int:
        """Dynamic shared memory to launch with."""
        return self.matmul(sm).get_pipeline_storage_size(self.depth) if self.form == "multiply" else 0

    def kernel(self, sm: int | None = None) -> Any:
        if self.form == "multiply":
            return multiply(self.matmul(sm), self.depth)
        return {"shared": shared, "prefetch": prefetch, "tensors": tensors}[self.form](self.matmul(sm))


VARIANTS = (
    Variant("shared", 64, leading_dimension=PADDED),
    Variant("shared", 64, products=4, leading_dimension=PADDED),
    Variant("shared", 128, leading_dimension=PADDED),
    Variant("shared", 32, leading_dimension=PADDED),
    Variant("shared", 32, products=4, leading_dimension=PADDED),
    Variant("shared", 64),
    Variant("multiply", 64),
    Variant("multiply", 64, depth=2),
    Variant("multiply", 32, depth=2),
    Variant("multiply", 64, products=8, depth=2),
    Variant("prefetch", 64, products=8, leading_dimension=PADDED),
    Variant("tensors", 64, products=8),
    Variant("tensors", 64, products=59),  # about as many blocks as run at a time
)


def multiply(mm: nd.Matmul, depth: int) -> Any:
    @nd.jit
    def batched_multiply(a: Any, b: Any, c: Any) -> None:
        i = cuda.blockIdx.x
        while i < a.shape[0]:  # range() would divide to know how often
            mm.multiply(a[i], b[i], 0, 0, depth).store(c[i])
            i += cuda.gridDim.x

    return batched_multiply


def shared(mm: nd.Matmul) -> Any:
    @nd.jit
    def batched_shared(a: Any, b: Any, c: Any) -> None:
        smem_a = nd.shared.array(mm.a_size, mm.a_value_type)
        smem_b = nd.shared.array(mm.b_size, mm.b_value_type)
        smem_c = nd.shared.array(mm.c_size, mm.c_value_type)
        i = cuda.blockIdx.x
        while i < a.shape[0]:
            mm.load_a(a[i], smem_a)
            mm.load_b(b[i], smem_b)
            cuda.syncthreads()
            mm.execute(1.0, smem_a, smem_b, 0.0, smem_c)
            cuda.syncthreads()
            mm.store_c(smem_c, c[i])
            i += cuda.gridDim.x

    return batched_shared


def prefetch(mm: nd.Matmul) -> Any:
    la, lb = mm.get_layout_smem_a(), mm.get_layout_smem_b()
    a_size, b_size = mm.a_size, mm.b_size
    both_a, both_b = 2 * a_size, 2 * b_size

    @nd.jit
    def batched_prefetch(a: Any, b: Any, c: Any) -> None:
        smem_a = nd.shared.array(both_a, mm.a_value_type)
        smem_b = nd.shared.array(both_b, mm.b_value_type)
        smem_c = nd.shared.array(mm.c_size, mm.c_value_type)
        i, stage = cuda.blockIdx.x, 0
        if i < a.shape[0]:
            nd.copy(nd.make_tensor(a[i], mm.get_layout_gmem_a()), nd.make_tensor(smem_a[:a_size], la))
            nd.copy(nd.make_tensor(b[i], mm.get_layout_gmem_b()), nd.make_tensor(smem_b[:b_size], lb))
        while i < a.shape[0]:
            nd.copy_wait()
            cuda.syncthreads()  # these operands are there, and nobody reads those of the product before, nor its C
            following, other = i + cuda.gridDim.x, 1 - stage
            if following < a.shape[0]:
                next_a = nd.make_tensor(smem_a[other * a_size : (other + 1) * a_size], la)
                next_b = nd.make_tensor(smem_b[other * b_size : (other + 1) * b_size], lb)
                nd.copy(nd.make_tensor(a[following], mm.get_layout_gmem_a()), next_a)
                nd.copy(nd.make_tensor(b[following], mm.get_layout_gmem_b()), next_b)
            this_a = smem_a[stage * a_size : (stage + 1) * a_size]
            this_b = smem_b[stage * b_size : (stage + 1) * b_size]
            mm.execute(1.0, this_a, this_b, 0.0, smem_c)
            cuda.syncthreads()
            mm.store_c(smem_c, c[i])
            i, stage = following, other

    return batched_prefetch


def tensors(mm: nd.Matmul) -> Any:
    la, lb = mm.suggest_layout_smem_a(), mm.suggest_layout_smem_b()
    a_size, b_size = la.cosize, lb.cosize
    both_a, both_b = 2 * a_size, 2 * b_size

    @nd.jit
    def batched_tensors(a: Any, b: Any, c: Any) -> None:
        smem_a = nd.shared.array(both_a, mm.a_value_type)
        smem_b = nd.shared.array(both_b, mm.b_value_type)
        acc = mm.suggest_accumulator()
        i, stage = cuda.blockIdx.x, 0
        if i < a.shape[0]:
            nd.copy(nd.make_tensor(a[i], mm.get_layout_gmem_a()), nd.make_tensor(smem_a[:a_size], la))
            nd.copy(nd.make_tensor(b[i], mm.get_layout_gmem_b()), nd.make_tensor(smem_b[:b_size], lb))
        while i < a.shape[0]:
            nd.copy_wait()
            cuda.syncthreads()  # these operands are there, and nobody reads those of the product before
            following, other = i + cuda.gridDim.x, 1 - stage
            if following < a.shape[0]:
                next_a = nd.make_tensor(smem_a[other * a_size : (other + 1) * a_size], la)
                next_b = nd.make_tensor(smem_b[other * b_size : (other + 1) * b_size], lb)
                nd.copy(nd.make_tensor(a[following], mm.get_layout_gmem_a()), next_a)
                nd.copy(nd.make_tensor(b[following], mm.get_layout_gmem_b()), next_b)
            this_a = nd.make_tensor(smem_a[stage * a_size : (stage + 1) * a_size], la)
            this_b = nd.make_tensor(smem_b[stage * b_size : (stage + 1) * b_size], lb)
            acc.clear()
            mm.execute(this_a, this_b, acc)
            acc.partition_and_store(nd.make_tensor(c[i], mm.get_layout_gmem_c()))
            i, stage = following, other

    return batched_tensors


def argument_types() -> tuple[Any, ...]:
    """Of each kernel: stacks of row-major matrices."""
    return (types.Array(types.float32, 3, "C"),) * 3
