# SPDX-License-Identifier: Apache-2.0
"""A kernel compiled ahead of time, for programs without Python: C = A B, 32 x 32, float64, one block of threads.

    python examples/ahead_of_time.py [FOLDER]                   # needs no GPU; with one it is loaded and launched, too
    NUMBA_ENABLE_CUDASIM=1 python examples/ahead_of_time.py     # the same kernel on Numba's simulator

It writes into FOLDER, by default ``out`` beside this file:

- ``gemm_tile.fatbin``, machine code for one target and PTX for newer GPUs,
- ``gemm_tile.json``, what a program has to know to launch it: name, block, and how arguments are passed.

``ahead_of_time.cpp`` beside it is such a program: ``g++ ahead_of_time.cpp -lcuda && ./a.out out/gemm_tile.fatbin``.
"""

import json
import sys
from pathlib import Path
from time import perf_counter

import numpy as np
from numba import cuda

import nvmath_device as nd
from nvmath_device import simulation

BOUND = 1e-14  # of the norm-wise relative error; float64 rounds at 1e-16
NAME = "gemm_tile"
OUT = Path(__file__).resolve().parent / "out"

mm = nd.Matmul(
    size=(32, 32, 32),
    precision="float64",
    data_type="real",
    arrangement=("row_major", "col_major", "col_major"),
    block_size=128,
)


@nd.jit
def product(a, b, c):
    smem_a = nd.shared.array(mm.a_size, mm.a_value_type)
    smem_b = nd.shared.array(mm.b_size, mm.b_value_type)
    smem_c = nd.shared.array(mm.c_size, mm.c_value_type)
    mm.load_a(a, smem_a)
    mm.load_b(b, smem_b)
    cuda.syncthreads()
    mm.execute(1.0, smem_a, smem_b, 0.0, smem_c)
    cuda.syncthreads()
    mm.store_c(smem_c, c)


def compile_into(folder: Path) -> None:
    """Needs libmathdx, NVRTC, NVVM, nvJitLink and nvFatbin, and no GPU."""
    from numba.cuda.types import float64, void

    matrix = float64[:, ::1]  # two dimensions, rows one after the other
    start = perf_counter()
    sm = cuda.get_current_device().compute_capability if cuda.is_available() else 90
    compiled = nd.compile(product, void(matrix, matrix, matrix), sm=sm, output="fatbin", name=NAME)
    print(f"time: {perf_counter() - start:.3f} s to compile")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{NAME}.fatbin").write_bytes(compiled.code)
    (folder / f"{NAME}.json").write_text(compiled.record.to_json())
    ((target, needs),) = compiled.record.targets.items()
    print(
        f"{NAME}.fatbin: {len(compiled.code):,} bytes for {target}, {needs.resources.registers} registers a thread, "
        f"{needs.resources.static_shared_bytes:,} bytes of shared memory, block {needs.blocks[0]['block_dim']}"
    )


def launch_from(folder: Path, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """What any program does with the two files, here with cuda.core: nothing of Numba's compiler takes part."""
    from cuda.core import Device, LaunchConfig, ObjectCode, launch

    record = json.loads((folder / f"{NAME}.json").read_text())
    device = Device()
    device.set_current()
    kernel = ObjectCode.from_fatbin((folder / f"{NAME}.fatbin").read_bytes()).get_kernel(record["entry"])
    arrays = [cuda.to_device(x) for x in (a, b, np.full((32, 32), np.nan))]
    words = [word for array in arrays for word in words_of(array)]
    assert len(words) == sum(len(argument["words"]) for argument in record["parameters"])
    ((_, needs),) = record["targets"].items()
    block = needs["blocks"][0]["block_dim"]
    stream = device.create_stream()
    cuda.synchronize()  # the copies above are on another stream
    launch(stream, LaunchConfig(grid=1, block=tuple(block)), kernel, *words)
    stream.sync()
    return arrays[2].copy_to_host()


def words_of(array) -> list[int]:
    """An array as the record has it: two null pointers, elements, bytes of one, address, shape, strides in bytes."""
    address = array.__cuda_array_interface__["data"][0]
    return [0, 0, array.size, array.dtype.itemsize, address, *array.shape, *array.strides]


def main(folder: str | Path = OUT) -> int:
    a, b = np.random.default_rng(8).uniform(-1, 1, (2, 32, 32))
    if simulation.is_active():
        c = cuda.to_device(np.full((32, 32), np.nan))
        start = perf_counter()
        product[1, mm.block_dim](cuda.to_device(a), cuda.to_device(b), c)
        c = c.copy_to_host()
        print(f"time: {perf_counter() - start:.3f} s on the simulator")
    else:
        compile_into(Path(folder))
        if not cuda.is_available():
            print("no GPU here: nothing is launched")
            return 0
        c = launch_from(Path(folder), a, b)
    expected = a @ b
    error = np.linalg.norm(c - expected) / np.linalg.norm(expected)
    print(f"error: {error:.1e} (at most {BOUND:.0e})")
    return 0 if error <= BOUND else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
