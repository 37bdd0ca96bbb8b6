# SPDX-License-Identifier: Apache-2.0
"""cublasLtMatmul in NumPy on flat memory, written from its documentation and not from the code that calls it.

Sources: comments in cublasLt.h (CUDA 13), and "cublasLtMatmul" in the cuBLAS documentation for the table of types and
for what int8 and fp8 products need. It knows one frame only, the library's own: matrices in column order, a bias that
runs down the rows. What the documentation forbids or leaves undefined raises :class:`Refused`; touching a byte that is
no part of an allocation raises :class:`OutOfBounds`. Sums are exact for small whole numbers.

What the documentation leaves open is settled in the way that hurts most: padding of auxiliary outputs is filled with
rubbish, and lines of auxiliary inputs are read to their padded end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from nvmath_device.host.cublaslt_enums import ComputeType, CudaDataType, Epilogue, MatmulDescAttribute, Operation

A = MatmulDescAttribute
E = Epilogue
T = CudaDataType
C = ComputeType


class Refused(Exception):
    """cuBLASLt would answer INVALID_VALUE or NOT_SUPPORTED, or what it does is not documented."""


class OutOfBounds(Exception):
    """Memory was touched that nobody has allocated."""


def refuse_unless(condition: object, why: str) -> None:
    if not condition:
        raise Refused(why)


# -- memory -------------------------------------------------------------------------------------------------


class Memory:
    """Allocations at addresses of our choosing, with nothing between them."""

    def __init__(self) -> None:
        self._regions: list[tuple[int, np.ndarray]] = []
        self._next = 1 << 44

    def allocate(self, nbytes: int, *, offset: int = 0, fill: int = 0xFF) -> int:
        """The address of ``nbytes`` bytes: ``offset`` above a multiple of 4096."""
        address = self._next + offset
        self._next += math.ceil((offset + nbytes + 1) / 4096) * 4096
        self.add(address, np.full(nbytes, fill, np.uint8))
        return address

    def add(self, address: int, data: np.ndarray) -> None:
        """Bytes that exist already."""
        self._regions.append((address, data))

    def remove(self, address: int) -> None:
        self._regions = [region for region in self._regions if region[0] != address]

    def at(self, address: int, nbytes: int) -> np.ndarray:
        """These bytes, to be read and written."""
        for start, data in reversed(self._regions):
            if start <= address and address + nbytes <= start + data.size:
                return data[address - start : address - start + nbytes]
        raise OutOfBounds(f"{nbytes} bytes at {address:#x}")

    def array(self, address: int, dtype: np.dtype[Any], shape: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray:
        """Elements from ``address`` on, with strides in elements; all of them must be in one allocation."""
        item = np.dtype(dtype).itemsize
        if 0 in shape:
            return np.empty(shape, dtype)
        low = sum((n - 1) * s for n, s in zip(shape, strides, strict=True) if s < 0)
        high = sum((n - 1) * s for n, s in zip(shape, strides, strict=True) if s > 0)
        data = self.at(address + low * item, (high - low + 1) * item)
        return np.ndarray(shape, dtype, data, -low * item, tuple(s * item for s in strides))


# -- types --------------------------------------------------------------------------------------------------

DTYPES: dict[int, np.dtype[Any]] = {
    T.CUDA_R_16F: np.dtype(np.float16),
    T.CUDA_R_16BF: np.dtype(ml_dtypes.bfloat16),
    T.CUDA_R_32F: np.dtype(np.float32),
    T.CUDA_R_64F: np.dtype(np.float64),
    T.CUDA_C_32F: np.dtype(np.complex64),
    T.CUDA_C_64F: np.dtype(np.complex128),
    T.CUDA_R_8I: np.dtype(np.int8),
    T.CUDA_R_32I: np.dtype(np.int32),
    T.CUDA_R_8F_E4M3: np.dtype(ml_dtypes.float8_e4m3fn),
    T.CUDA_R_8F_E5M2: np.dtype(ml_dtypes.float8_e5m2),
}
FP8 = (T.CUDA_R_8F_E4M3, T.CUDA_R_8F_E5M2)
_FAST = (C.COMPUTE_32F_FAST_16F, C.COMPUTE_32F_FAST_16BF, C.COMPUTE_32F_FAST_TF32, C.COMPUTE_32F_EMULATED_16BFX9)
_32F = (C.COMPUTE_32F, C.COMPUTE_32F_PEDANTIC)
_64F = (C.COMPUTE_64F, C.COMPUTE_64F_PEDANTIC, C.COMPUTE_64F_EMULATED_FIXEDPOINT)
_16F = (C.COMPUTE_16F, C.COMPUTE_16F_PEDANTIC)
_32I = (C.COMPUTE_32I, C.COMPUTE_32I_PEDANTIC)


def _table() -> Iterator[tuple[Any, ...]]:
    """Compute types, scale type, A, B, C, D, and the type of a bias (None: only the default epilogue)."""
    f16, bf16, f32, f64, c32, c64 = (
        T.CUDA_R_16F, T.CUDA_R_16BF, T.CUDA_R_32F, T.CUDA_R_64F, T.CUDA_C_32F, T.CUDA_C_64F
    )  # fmt: skip
    i8, i32, e4, e5 = T.CUDA_R_8I, T.CUDA_R_32I, *FP8
    yield _16F, f16, f16, f16, f16, f16, f16
    yield _32I, i32, i8, i8, i32, i32, None
    yield _32I, f32, i8, i8, i8, i8, None
    yield _32F, f32, i8, i8, f32, f32, None
    for ab, cd in ((bf16, bf16), (f16, f16), (bf16, f32), (f16, f32)):
        yield _32F, f32, ab, ab, cd, cd, cd
    yield _32F + _FAST, f32, f32, f32, f32, f32, f32
    yield _32F + _FAST, c32, c32, c32, c32, c32, None
    yield _64F, f64, f64, f64, f64, f64, f64
    yield _64F, c64, c64, c64, c64, c64, None
    for a, b, narrow in ((e4, e4, (e4,)), (e4, e5, FP8), (e5, e4, FP8)):
        for c, d, bias in [(bf16, bf16, bf16), (f16, f16, f16), (f32, f32, bf16)] + [
            (wide, d, wide) for wide in (bf16, f16) for d in narrow
        ]:
            yield (C.COMPUTE_32F,), f32, a, b, c, d, bias


TABLE = tuple(_table())


def rounded(values: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """Exact values in a type as the GPU stores them: to nearest even; int8 and fp8 saturate, int32 wraps."""
    if dtype == np.int8:
        return np.clip(np.rint(values), -128, 127).astype(np.int8)
    if dtype == np.int32:
        return np.rint(values).astype(np.int64).astype(np.int32)
    if dtype.itemsize == 1:
        limit = float(ml_dtypes.finfo(dtype).max)
        values = np.clip(values, -limit, limit)
    return values.astype(dtype)


# -- the call -----------------------------------------------------------------------------------------------


class Layout(NamedTuple):
    """A column-major matrix or strided batch: extents, leading dimension and stride in elements."""

    data_type: int
    rows: int
    cols: int
    ld: int
    batch_count: int = 1
    batch_stride: int = 0


class Addresses(NamedTuple):
    a: int
    b: int
    c: int
    d: int


def matmul(
    compute_type: int,
    scale_type: int,
    attributes: Mapping[MatmulDescAttribute, int],
    a: Any,
    b: Any,
    c: Any,
    d: Any,
    memory: Memory,
    addresses: tuple[int, int, int, int],
    *,
    alpha: Any = 1,
    beta: Any = 0,
    cc: int = 90,
) -> None:
    """D = epilogue(alpha scale_a scale_b op(A) op(B) + beta scale_c C), times scale_d.

    ``a`` to ``d`` have the fields of :class:`Layout`, ``attributes`` those of a descriptor that were set, addresses of
    bias, aux and scales among them. ``alpha`` and ``beta`` are numbers. ``cc`` is ten times major plus minor.
    """
    _Call(compute_type, scale_type, attributes, (a, b, c, d), memory, addresses, cc).run(alpha, beta)


class _Call:
    def __init__(
        self, compute_type: int, scale_type: int, attributes: Mapping[MatmulDescAttribute, int],
        layouts: tuple[Any, Any, Any, Any], memory: Memory, addresses: tuple[int, int, int, int], cc: int,
    ) -> None:  # fmt: skip
        self.compute, self.scale, self.attributes = compute_type, scale_type, dict(attributes)
        self.a, self.b, self.c, self.d = layouts
        self.memory, self.at, self.cc = memory, Addresses(*addresses), cc
        self.ops = {
            "a": Operation(self.get(A.TRANSA, Operation.N)), "b": Operation(self.get(A.TRANSB, Operation.N))
        }  # fmt: skip
        self.epilogue = Epilogue(self.get(A.EPILOGUE, E.DEFAULT))
        self.count = self.d.batch_count
        self.touched: dict[str, np.ndarray] = {}

    def get(self, attribute: MatmulDescAttribute, default: int = 0) -> int:
        return self.attributes.get(attribute, default)

    def has(self, *bits: int) -> bool:
        """Whether the epilogue is made of one of these: the header composes its values of bits."""
        return any(self.epilogue & bit == bit for bit in bits)

    # -- checks ----------------------------------------------------------------------------------------------

    def check(self) -> None:
        for attribute in (A.POINTER_MODE, A.TRANSC, A.EPILOGUE_AUX_SCALE_MODE, A.A_SCALE_MODE, A.B_SCALE_MODE):
            refuse_unless(self.get(attribute) == 0, f"{attribute.name} is not modelled")
        refuse_unless(self.get(A.FILL_MODE, 2) == 2, "FILL_MODE is not modelled")
        self.check_extents()
        self.check_types()
        for name in "abcd":
            self.check_matrix(name, getattr(self, name), getattr(self.at, name))
        if self.a.data_type == T.CUDA_R_8I:
            self.check_int8()
        if self.a.data_type in FP8:
            self.check_fp8()
        # Not documented: heuristics have nothing else.
        refuse_unless(self.epilogue != E.BGRADA or self.ops["a"] == Operation.N, "BGRADA of a transposed A")
        refuse_unless(self.epilogue != E.BGRADB or self.ops["b"] == Operation.T, "BGRADB of a B that is not transposed")
        if self.at.c == self.at.d and self.c.data_type == self.d.data_type:
            refuse_unless(self.c == self.d, "C and D are one matrix and their layouts differ")

    def check_extents(self) -> None:
        (self.m, k_of_a), (k_of_b, self.n) = (
            (x.rows, x.cols) if self.ops[name] == Operation.N else (x.cols, x.rows)
            for name, x in (("a", self.a), ("b", self.b))
        )
        self.k = k_of_a
        refuse_unless(k_of_a == k_of_b, f"op(A) has {k_of_a} columns, op(B) has {k_of_b} rows")
        for name, x in (("C", self.c), ("D", self.d)):
            refuse_unless((x.rows, x.cols) == (self.m, self.n), f"{name} is {x.rows} x {x.cols}, op(A)op(B) is not")

    def check_types(self) -> None:
        wanted = (self.scale, *(x.data_type for x in (self.a, self.b, self.c, self.d)))
        rows = [row for row in TABLE if self.compute in row[0] and row[1:6] == wanted]
        refuse_unless(rows, f"no such combination of types: {self.compute}, {wanted}")
        self.bias_type = rows[0][6]
        if self.epilogue != E.DEFAULT:
            refuse_unless(self.bias_type is not None, f"{self.epilogue.name} with these types")
        given = self.get(A.BIAS_DATA_TYPE, -1)
        refuse_unless(given in (-1, self.bias_type), f"a bias of type {given}")
        narrow = {name: getattr(self, name).data_type in FP8 for name in "abcd"}
        for name in "abcd":
            scaled = self.get(MatmulDescAttribute[f"{name.upper()}_SCALE_POINTER"])
            refuse_unless(not scaled or narrow[name], f"a scale of {name}, which is not fp8")
        refuse_unless(not self.get(A.AMAX_D_POINTER) or narrow["d"], "AMAX_D of a D that is not fp8")

    def check_matrix(self, name: str, x: Any, address: int) -> None:
        refuse_unless(x.rows > 0 and x.cols > 0, f"{name} has no elements")
        refuse_unless(x.ld >= x.rows, f"{name}: the leading dimension {x.ld} is less than {x.rows} rows")
        refuse_unless(x.batch_count == self.count, f"{name}: a batch of {x.batch_count}, D has {self.count}")
        refuse_unless(1 <= x.batch_count < 1 << 31, f"{name}: batch count")
        refuse_unless(x.batch_stride >= 0, f"{name}: a negative batch stride")
        item = DTYPES[x.data_type].itemsize
        unread = name == "c" and not address  # allowed where beta is 0; reading there is out of bounds
        refuse_unless(unread or (address and address % item == 0), f"{name}: the address {address:#x} is no element's")

    def check_int8(self) -> None:
        """Regular order: the first of the two sets of requirements in the documentation."""
        refuse_unless(self.ops == {"a": Operation.T, "b": Operation.N}, "int8 that is not TN")
        refuse_unless(self.m % 4 == 0 and self.k % 4 == 0, f"int8 with m = {self.m} and k = {self.k}")
        self.check_aligned(4, 1)

    def check_fp8(self) -> None:
        """The requirements of fp8 kernels, and those of tensor cores that they refer to."""
        if self.cc in (89, 90, 120, 121):
            refuse_unless(self.ops == {"a": Operation.T, "b": Operation.N}, "fp8 that is not TN on this device")
        for name, x in (("a", self.a), ("b", self.b), ("c", self.c), ("d", self.d)):
            item = DTYPES[x.data_type].itemsize
            refuse_unless(x.rows * item % 16 == 0, f"fp8: {name} has {x.rows} contiguous elements of {item} bytes")
        self.check_aligned(16, None)

    def check_aligned(self, address: int, elements: int | None) -> None:
        """Addresses of all matrices and leading dimensions: in ``address`` bytes, the latter perhaps in elements."""
        for name, x in (("a", self.a), ("b", self.b), ("c", self.c), ("d", self.d)):
            item = DTYPES[x.data_type].itemsize
            unit = 1 if elements else item
            refuse_unless(x.ld * unit % address == 0, f"{name}: leading dimension {x.ld}")
            first = getattr(self.at, name)
            steps = x.batch_stride * item if x.batch_count > 1 else 0
            refuse_unless(first % address == 0 and steps % address == 0, f"{name}: address {first:#x}, steps {steps}")

    # -- memory ----------------------------------------------------------------------------------------------

    def matrices(self, name: str) -> np.ndarray:
        """All matrices of a batch, as they are stored: (count, rows, cols)."""
        x = getattr(self, name)
        return self.elements(
            name, getattr(self.at, name), DTYPES[x.data_type], (x.rows, x.cols), (1, x.ld), x.batch_stride
        )

    def elements(
        self, name: str, address: int, dtype: np.dtype[Any], shape: tuple[int, ...], strides: tuple[int, ...], step: int
    ) -> np.ndarray:
        shape, strides = (self.count, *shape), (step, *strides)
        item = dtype.itemsize
        offsets = np.zeros(shape, np.int64)
        for axis, (extent, stride) in enumerate(zip(shape, strides, strict=True)):
            index = np.arange(extent).reshape([-1 if i == axis else 1 for i in range(len(shape))])
            offsets += index * stride * item
        self.touched[name] = (address + offsets.reshape(-1, 1) + np.arange(item)).ravel()
        return self.memory.array(address, dtype, shape, strides)

    def check_written(self) -> None:
        """No byte is written twice, and none that is read; C may be D."""
        written = [name for name in ("d", "aux out", "gradient") if name in self.touched]
        for name in written:
            addresses = self.touched[name]
            refuse_unless(np.unique(addresses).size == addresses.size, f"{name}: elements overlap")
            for other, theirs in self.touched.items():
                if other == name or (name == "d" and other == "c" and self.c == self.d and self.at.c == self.at.d):
                    continue
                refuse_unless(not np.intersect1d(addresses, theirs).size, f"{name} overlaps {other}")

    def number(self, attribute: MatmulDescAttribute) -> float:
        address = self.get(attribute)
        if not address:
            return 1.0
        refuse_unless(address % 4 == 0, f"{attribute.name}: address {address:#x}")
        return float(self.memory.array(address, np.dtype(np.float32), (1,), (1,))[0])

    def put_number(self, attribute: MatmulDescAttribute, value: float) -> None:
        if address := self.get(attribute):
            self.memory.array(address, np.dtype(np.float32), (1,), (1,))[0] = value

    # -- bias, aux and gradient ------------------------------------------------------------------------------

    def bias(self, name: str, length: int) -> np.ndarray:
        """(count, length): packed vectors."""
        address = self.get(A.BIAS_POINTER)
        dtype = DTYPES[self.bias_type]
        refuse_unless(address and address % dtype.itemsize == 0, f"BIAS_POINTER {address:#x}")
        step = self.get(A.BIAS_BATCH_STRIDE)
        refuse_unless(step >= 0, "BIAS_BATCH_STRIDE is negative")
        return self.elements(name, address, dtype, (length,), (1,), step)

    def aux(self, name: str) -> np.ndarray:
        """(count, lines, n): bytes of a mask or elements, to the padded end of the lines."""
        address, ld, step = (
            self.get(x) for x in (A.EPILOGUE_AUX_POINTER, A.EPILOGUE_AUX_LD, A.EPILOGUE_AUX_BATCH_STRIDE)
        )
        is_mask = self.has(E.RELU_AUX, E.DRELU)
        unit = 128 if is_mask else 8
        refuse_unless(address, "EPILOGUE_AUX_POINTER is not set")
        refuse_unless(ld >= self.m and ld % unit == 0, f"EPILOGUE_AUX_LD {ld} with {self.m} rows")
        refuse_unless(step >= 0 and step % unit == 0, f"EPILOGUE_AUX_BATCH_STRIDE {step}")
        lines = math.ceil(self.m / unit) * unit
        if is_mask:
            refuse_unless(A.EPILOGUE_AUX_DATA_TYPE not in self.attributes, "a type of a mask of bits")
            return self.elements(name, address, np.dtype(np.uint8), (lines // 8, self.n), (1, ld // 8), step // 8)
        data_type = self.get(A.EPILOGUE_AUX_DATA_TYPE, -1)
        data_type = self.d.data_type if data_type == -1 else data_type
        allowed = {self.d.data_type}
        if self.a.data_type == self.b.data_type == self.d.data_type == T.CUDA_R_8F_E4M3:
            allowed.add(self.c.data_type)
        refuse_unless(data_type in allowed, f"aux of type {data_type}")
        refuse_unless(not self.get(A.EPILOGUE_AUX_AMAX_POINTER) or data_type in FP8, "amax of an aux that is not fp8")
        dtype = DTYPES[data_type]
        refuse_unless(address % dtype.itemsize == 0, f"EPILOGUE_AUX_POINTER {address:#x}")
        return self.elements(name, address, dtype, (lines, self.n), (1, ld), step)

    def write_aux(self, x: np.ndarray) -> None:
        lines = self.aux("aux out")
        rubbish = np.random.default_rng(1).integers(0, 2, (self.count, lines.shape[1] * 8, self.n))
        if lines.dtype == np.uint8:
            rubbish[:, : self.m] = x > 0
            lines[...] = np.packbits(rubbish.astype(bool), axis=1, bitorder="little")
            return
        factor = self.number(A.EPILOGUE_AUX_SCALE_POINTER)
        lines[...] = rounded(rubbish[:, : lines.shape[1]] * 77.0, lines.dtype)
        lines[:, : self.m] = rounded(x * factor, lines.dtype)
        self.put_number(A.EPILOGUE_AUX_AMAX_POINTER, np.abs(x).max())

    # -- computing -------------------------------------------------------------------------------------------

    def operand(self, name: str) -> np.ndarray:
        stored = self.matrices(name)
        exact = stored.astype(np.complex128 if stored.dtype.kind == "c" else np.float64)
        if self.ops[name] == Operation.N:
            return exact
        refuse_unless(self.ops[name] in (Operation.T, Operation.C), f"operation {self.ops[name]}")
        turned = exact.transpose(0, 2, 1)
        return turned.conj() if self.ops[name] == Operation.C else turned

    def run(self, alpha: Any, beta: Any) -> None:
        self.check()
        alpha, beta = (DTYPES[self.scale].type(value) for value in (alpha, beta))
        refuse_unless(self.scale != T.CUDA_R_32I or (alpha in (0, 1) and beta in (0, 1)), "alpha or beta of int32")
        a, b = self.operand("a"), self.operand("b")
        x = a @ b * (alpha * self.number(A.A_SCALE_POINTER) * self.number(A.B_SCALE_POINTER))
        if beta != 0:
            x = x + self.matrices("c").astype(x.dtype) * (beta * self.number(A.C_SCALE_POINTER))
        if self.has(E.BIAS):
            x = x + self.bias("bias", self.m).astype(np.float64)[:, :, None]
        if self.has(E.RELU_AUX, E.GELU_AUX):
            self.write_aux(x)
        x = self.activated(x)
        gradient = self.gradient(a, b, x)
        self.put_number(A.AMAX_D_POINTER, np.abs(x).max())
        d = self.matrices("d")
        if gradient is not None:
            stored = self.bias("gradient", gradient.shape[1])
            self.check_written()
            stored[...] = rounded(gradient, stored.dtype)
        self.check_written()
        d[...] = rounded(x * self.number(A.D_SCALE_POINTER), d.dtype)

    def activated(self, x: np.ndarray) -> np.ndarray:
        if self.has(E.RELU):
            return np.where(x > 0, x, 0)
        if self.has(E.GELU):
            return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2
        if self.has(E.DRELU):
            bits = np.unpackbits(self.aux("aux"), axis=1, bitorder="little")
            return np.where(bits[:, : self.m] != 0, x, 0)
        if self.has(E.DGELU):
            z = self.aux("aux")[:, : self.m].astype(np.float64)
            t = np.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3))
            inner = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * z**2)
            return x * ((1 + t) / 2 + z / 2 * (1 - t**2) * inner)
        return x

    def gradient(self, a: np.ndarray, b: np.ndarray, x: np.ndarray) -> np.ndarray | None:
        if self.epilogue in (E.DRELU_BGRAD, E.DGELU_BGRAD):
            return x.sum(axis=2)
        if self.epilogue == E.BGRADA:
            return a.sum(axis=2)
        return b.sum(axis=1) if self.epilogue == E.BGRADB else None
