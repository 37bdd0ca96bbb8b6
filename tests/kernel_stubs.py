# SPDX-License-Identifier: Apache-2.0
"""Compiling kernels to PTX without a GPU and without libmathdx's compiler, and reading what came out.

Generated code is replaced by empty modules that have the right symbols, so a kernel is compiled as always and
only linking is left out. cuFFTDx's traits are replaced, too, by numbers that no two traits share. Import
``asked`` to have that in a test module.
"""

from __future__ import annotations

import re
import struct

import ml_dtypes  # noqa: F401  (bfloat16 arrays for Numba)
import pytest
from numba import cuda
from numba.cuda.types import (
    void,
)

import nvmath_device as nd
from nvmath_device.errors import KernelTypingError
from nvmath_device.lto.codegen import Code

COL, ROW = "col_major", "row_major"

# What the replaced traits of a block FFT are; a thread FFT has the first six.
TRAITS = {
    "implicit_type_batching": 1,
    "elements_per_thread": 7,
    "storage_size": 19,
    "stride": 23,
    "input_length": 64,
    "output_length": 64,
    "input_elements_per_thread": 11,
    "output_elements_per_thread": 13,
    "value_type": "C_32F",
    "input_type": "C_32F",
    "output_type": "C_32F",
}
BLOCK_TRAITS = {
    "shared_memory_size": 1700,
    "ffts_per_block": 5,
    "suggested_ffts_per_block": 3,
    "block_dim": [23, 5, 1],
}


@pytest.fixture(autouse=True)
def asked(monkeypatch):
    """The recipes that code was asked for, in order; none of them is generated."""
    from nvmath_device import fft
    from nvmath_device.numba_backend import generated

    recipes = []

    class Asked(generated.Generated):
        def __init__(self, recipe, block, check):
            super().__init__(recipe, block, check)
            self.code = Code(recipe.symbol, b"", {})
            recipes.append(recipe)
            kept.append(self)  # one object a recipe, as long as the test runs

    kept = []

    def fft_symbols(recipe):
        return {f: f"{recipe.symbol}_{f}" for f in dict(recipe.operators)["DEVICE_FUNCTION"]}

    def fft_traits(recipe):
        block = dict(recipe.operators)["EXECUTION"] == "BLOCK"
        half = {
            "implicit_type_batching": 2,
            "value_type": "C_16F2",
            "input_type": "C_16F2",
            "output_type": "C_16F2",
        }
        return {
            **TRAITS,
            **(BLOCK_TRAITS if block else {}),
            **(half if dict(recipe.operators)["PRECISION"] == "F16" else {}),
        }

    monkeypatch.setattr(generated, "Generated", Asked)
    monkeypatch.setattr("nvmath_device.lto.codegen.fft_symbols", fft_symbols)
    monkeypatch.setattr("nvmath_device.lto.codegen.fft_traits", fft_traits)
    # Nothing made up may reach other tests, nor anything real these.
    forget_what_is_cached = (
        generated.forget,
        fft.traits_of.cache_clear,
        fft._concrete.cache_clear,
    )
    for forget in forget_what_is_cached:
        forget()
    yield recipes
    for forget in forget_what_is_cached:
        forget()


def ptx_of(kernel, *arguments, **options):
    codes, _ = cuda.compile_all(kernel, void(*arguments), device=False, abi="numba", cc=(9, 0), output="ptx", **options)
    return codes[0]


def error_of(kernel, *arguments):
    """First line of the error that typing the kernel ends in."""
    with pytest.raises(KernelTypingError) as error:
        ptx_of(kernel, *arguments)
    return str(error.value).partition("\n")[0]


def declared(ptx):
    """External functions: name -> (has a result, number of parameters)."""
    form = r"\.extern \.func\s+(\([^)]*\)\s*)?(\w+)\s*\(([^)]*)\)"
    return {name: (bool(result), params.count(".param .b64")) for result, name, params in re.findall(form, ptx)}


def shared_arrays(ptx):
    """(alignment, bytes) of each shared array, in order; dynamic memory has ``None`` bytes."""
    form = r"\.shared \.align (\d+) \.b8 \w+\[(\d*)\]"
    return [(int(a), int(n) if n else None) for a, n in re.findall(form, ptx)]


def stored(ptx):
    """Constants put on the stack, in order: hexadecimal digits of their bytes as they lie in memory."""
    constants = {}
    for kind, register, value in re.findall(r"mov\.(\w+) \t?(%\w+), (-?\w+);", ptx):
        width = int(kind[1:]) // 8
        if value.startswith(("0f", "0d")):
            raw = int(value[2:], 16)
        elif value.startswith("%") or not re.fullmatch(r"-?(0x)?[0-9A-Fa-f]+", value):
            continue
        else:
            raw = int(value, 0) % (1 << 8 * width)
        constants[register] = raw.to_bytes(width, "little")
    for kind, target, source in re.findall(r"cvt\.rn\.f16\.(\w+)\s+(%\w+), (%\w+);", ptx):
        if source in constants:
            form = {"f32": "<f", "f64": "<d", "s32": "<i", "s64": "<q", "u32": "<I"}[kind]
            (number,) = struct.unpack(form, constants[source])
            constants[target] = struct.pack("<e", number)
    found = []
    for width, values in re.findall(r"st\.local(?:\.v\d)?\.\w?(\d+) \t?\[[^]]*\], ([^;]+);", ptx):
        registers = [r for r in re.findall(r"%\w+", values) if r in constants]
        found += [constants[r][: int(width) // 8].hex() for r in registers]
    return found


def bytes_of(form, *values):
    return struct.pack("<" + form, *values).hex()


def matmul(size=(8, 4, 16), precision="float32", data_type="real", arrangement=(ROW, COL, COL), block_size=64, **more):
    return nd.Matmul(size, precision, data_type, arrangement=arrangement, block_size=block_size, **more)


MM = matmul()


class Holder:
    mm = MM
    fft = nd.FFT(64, "float32", "c2c", "Block", direction="forward")


THREAD = nd.FFT(16, "float32", "c2c", "Thread", direction="forward")


def execute(mm, alpha=1.0, beta=0.0):
    def kernel(a, b, c):
        mm.execute(alpha, a, b, beta, c)

    return kernel
