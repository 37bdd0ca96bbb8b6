# SPDX-License-Identifier: Apache-2.0
"""Products of our own in NumPy: what their code emits is computed at once, for all threads of a block.

A value is an array with one number a thread. Shared memory is an array of bytes, and what reads it is written down.
"""

from __future__ import annotations

import re
from types import SimpleNamespace

import numpy as np
from llvmlite import ir

from nvmath_device.numba_backend import own_elements, turning_fetches, vector_fetches
from nvmath_device.numba_backend.own_multiply import product_of
from nvmath_device.numba_backend.turning_fetches import TurningFetch
from nvmath_device.numba_backend.vector_fetches import VectorFetch
from nvmath_device.pipelines import PipelinePlan

_QUARTER = 8  # threads that read 16 bytes each at once


class Emulated:
    """A builder whose instructions are computed."""

    def __init__(self, memory: np.ndarray, dtype: type) -> None:
        self.memory, self.dtype, self.reads = memory, np.dtype(dtype), []
        self.matrix, self.writes = np.zeros(0, np.uint8), []

    def __getattr__(self, name):
        operations = {
            "add": np.add, "sub": np.subtract, "mul": np.multiply, "udiv": np.floor_divide, "urem": np.remainder,
            "and_": np.bitwise_and, "or_": np.bitwise_or,
        }  # fmt: skip
        return lambda x, y, flags=(): operations[name](_number(x), _number(y))

    def zext(self, value, _):
        return _number(value)

    bitcast = trunc = zext

    def icmp_signed(self, relation, x, y):
        return {"<": np.less, "==": np.equal}[relation](_number(x), _number(y))

    def select(self, condition, x, y):
        return np.where(condition, _number(x), _number(y))

    def store(self, value, slot):
        slot["value"] = value

    def gep(self, pointer, indices, inbounds):
        return pointer + _number(indices[0])

    def load(self, pointer, align=None):
        if isinstance(pointer, dict):
            return pointer["value"]
        self.reads.append(pointer)
        assert not (pointer % align).any()
        return self.memory[pointer[:, None] + np.arange(align)].view(self.dtype)

    def extract_element(self, vector, index):
        return vector[:, _number(index)]

    def fma(self, x, y, z):
        return x * y + z

    def asm(self, prototype, text, constraints, operands, side_effect):
        """Of cp.async, from addresses in ``matrix``, where those that are read must be."""
        size = int(re.fullmatch(r"cp.async.c[ag].shared.global \[\$0\], \[\$1\], (\d+), \$2;", text)[1])
        near, far, count = operands
        self.writes.append(near)
        for to, start, read in zip(near, far, count, strict=True):
            assert to % size == 0
            self.memory[to : to + size] = 0
            if read:
                assert read == size
                assert start % size == 0
                assert 0 <= start <= self.matrix.size - size
                self.memory[to : to + size] = self.matrix[start : start + size]

    def call(self, instruction, operands):
        """Of m16n8k8 with operands as PTX has them, of each warp."""
        assert "m16n8k8.row.col.f64" in instruction.asm
        threads = operands[0].size
        found = np.empty((4, threads))
        lane = np.arange(32)
        group, rest = lane // 4, lane % 4
        for warp in range(threads // 32):
            values = [x[32 * warp : 32 * warp + 32] for x in operands]
            a, b, c = np.empty((16, 8)), np.empty((8, 8)), np.empty((16, 8))
            for n in range(4):
                a[group + 8 * (n % 2), rest + 4 * (n // 2)] = values[n]
                c[group + 8 * (n // 2), 2 * rest + n % 2] = values[6 + n]
            for n in range(2):
                b[rest + 4 * n, group] = values[4 + n]
            d = a @ b + c
            for n in range(4):
                found[n, 32 * warp : 32 * warp + 32] = d[group + 8 * (n // 2), 2 * rest + n % 2]
        return found

    def extract_value(self, values, index):
        return values[index]


def product(plan: PipelinePlan, a: np.ndarray, b: np.ndarray, monkeypatch) -> tuple[np.ndarray, list[np.ndarray]]:
    """The product of two tiles that lie in a stage as planned, and the addresses of all reads."""
    own, threads = plan.own, np.arange(plan.block_dim.size)
    stage = np.zeros(sum(plan.tile_bytes), np.uint8)
    for tile, layout, start in zip((a, b), plan.layouts, (0, plan.tile_bytes[0]), strict=False):
        stored = stage[start:].view(tile.dtype)
        rows, columns = np.indices(tile.shape)
        stored[rows * layout.strides[0] + columns * layout.strides[1]] = tile
    monkeypatch.setattr(own_elements, "linear_thread", lambda builder: threads)
    builder = Emulated(stage, a.dtype)
    element = ir.FloatType() if a.dtype == np.float32 else ir.DoubleType()
    code = product_of(builder, own, element, a.dtype.itemsize)
    sums = [np.zeros(threads.size, a.dtype) for _ in range(plan.fragment_size)]
    for step in range(plan.descriptor.size.k // code.step_k):
        vectors = [
            [reader.read(start + reader.start, step, part) for part in range(len(reader.parts))]
            for reader, start in zip(code.readers, (0, plan.tile_bytes[0]), strict=True)
        ]
        for _ in code.multiply(sums, vectors):
            pass
    result = np.full((a.shape[0], b.shape[1]), np.nan, a.dtype)
    elements = own_elements.OwnElements(builder, own)
    for e, values in enumerate(sums):
        rows, columns = elements.coordinate(None, np.full(threads.size, e))
        assert np.isnan(result[rows, columns]).all()  # nobody else has it
        result[rows, columns] = values
    return result, builder.reads


def stages(plan: PipelinePlan, which: int, x: np.ndarray, first: int, turns: int, monkeypatch):
    """The tiles of A (0) or B from row or column ``first`` of a matrix on, one after the other, and all written places.

    As they are in a stage that was all ones before.
    """
    threads, layout, value = np.arange(plan.block_dim.size), plan.layouts[which], plan.descriptor.value_types[which]
    order, strides = plan.descriptor.arrangement[which], x.strides
    builder = Emulated(np.full(sum(plan.tile_bytes), 255, np.uint8), x.dtype)
    builder.matrix = x.ravel("K").view(np.uint8)
    fetch = VectorFetch if layout.order == order else TurningFetch
    array = SimpleNamespace(data=0, shape=x.shape, strides=strides)
    tools = SimpleNamespace(unpack_tuple=lambda builder, t, n: t, alloca_once=lambda builder, kind: {})
    for module in (vector_fetches, turning_fetches):
        monkeypatch.setattr(module, "linear_thread", lambda builder: threads)
        monkeypatch.setattr(module, "cgutils", tools)
        monkeypatch.setattr(module, "far_address", lambda builder, data: data)
        monkeypatch.setattr(module, "emit", SimpleNamespace(array_struct=lambda *given: given[-1]))
    copies = fetch(None, builder, layout, value, threads.size, None, array, 1 - which, first, 0)
    rows, columns = np.indices((layout.rows, layout.cols))
    for _ in range(turns):
        builder.memory[:] = 255
        copies.begin(np.zeros(threads.size, int))
        yield builder.memory.view(x.dtype)[rows * layout.strides[0] + columns * layout.strides[1]], builder.writes


def conflicts(reads: list[np.ndarray]) -> int:
    """How many of the reads of 16 bytes take more than one turn of a quarter of a warp."""
    found = 0
    for addresses in reads:
        for quarter in addresses.reshape(-1, _QUARTER):
            pieces = np.unique(quarter) // 16
            found += np.unique(pieces % 8).size < pieces.size
    return found


def _number(value):
    return value.constant if isinstance(value, ir.Constant) else value
