# SPDX-License-Identifier: Apache-2.0
"""From a photograph to a checked result: an FFT filter and a matrix product, both inside Numba CUDA kernels.

    python examples/quickstart.py [--png FILE]

1. ``sharpen``: real FFT of every row, times a filter, inverse FFT, in one kernel; run twice, it has treated
   rows and columns. What lies beyond an edge is taken from the opposite one, as always with FFTs. Checked
   against ``numpy.fft.fft2`` in float64.
2. ``compress``: every tile of 32 x 32 pixels is multiplied with the matrix of the cosine transform from both
   sides, the small details are dropped (7 of 8 numbers), and the tile is multiplied back: four GEMMs in one
   kernel. Checked against NumPy in float64.

Runs on the GPU if there is one. Otherwise Numba's simulator runs the same kernels on a crop of 64 x 64 pixels
(of 512 x 512), while two more processes generate the real code, link it to sm_90 cubins and say what is in
them. Exits with 1 if a result is wrong.
"""

import argparse
import ctypes
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter


def has_gpu() -> bool:
    """Whether the CUDA driver is there and knows a device."""
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int(0)
    return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0


# Numba reads this when it is imported: what decides between GPU and simulator has to come first.
if "NUMBA_ENABLE_CUDASIM" not in os.environ:
    os.environ["NUMBA_ENABLE_CUDASIM"] = "0" if has_gpu() else "1"

import numpy as np  # noqa: E402
from numba import cuda  # noqa: E402

import nvmath_device as nd  # noqa: E402
from nvmath_device import simulation  # noqa: E402
from nvmath_device.errors import MissingDependencyError  # noqa: E402

TILE = 32
KEPT = 16  # cosine coefficients (u, v) with u + v below this are kept: 136 of 1024
BOUND = 1e-6  # of the norm-wise relative error; float32 rounds at 6e-8


def sharpen_kernel(size: int, ffts_per_block: int):
    """The kernel, and its forward FFT. It stores rows as columns, so two runs treat rows and columns."""
    kind = {"precision": "float32", "execution": "Block", "elements_per_thread": 8}
    forward = nd.FFT(size=size, fft_type="r2c", ffts_per_block=ffts_per_block, **kind)
    inverse = nd.FFT(size=size, fft_type="c2r", ffts_per_block=ffts_per_block, **kind)

    @cuda.jit
    def sharpen(picture, response, turned):
        data = cuda.local.array(forward.storage_size, forward.value_type)
        scratch = nd.shared.array(forward.shared_memory_size, np.uint8)
        more_scratch = nd.shared.array(inverse.shared_memory_size, np.uint8)  # its own: no barrier in between
        forward.load(picture, data)
        forward.execute(data, scratch)
        for i in range(forward.output_elements_per_thread):
            frequency = cuda.threadIdx.x + i * forward.stride
            if frequency < response.size:
                data[i] *= response[frequency]
        inverse.execute(data, more_scratch)
        inverse.store(data, turned.T)

    return sharpen, forward


def compress_kernel():
    """The kernel, and its GEMM."""
    mm = nd.Matmul(
        size=(TILE, TILE, TILE),
        precision="float32",
        data_type="real",
        arrangement=("row_major", "row_major", "row_major"),
        block_size=64,
    )

    @cuda.jit
    def compress(picture, cosines, result):
        transform = nd.shared.array(mm.a_size, mm.a_value_type)
        transposed = nd.shared.array(mm.a_size, mm.a_value_type)
        tile = nd.shared.array(mm.b_size, mm.b_value_type)
        half_done = nd.shared.array(mm.c_size, mm.c_value_type)
        row, column = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE
        mm.load_a(cosines, transform)
        mm.load_a(cosines.T, transposed)
        mm.load_b(picture[row : row + TILE, column : column + TILE], tile)
        cuda.syncthreads()
        mm.execute(1.0, transform, tile, 0.0, half_done)
        cuda.syncthreads()
        mm.execute(1.0, half_done, transposed, 0.0, tile)
        cuda.syncthreads()
        for i in range(cuda.threadIdx.x, TILE * TILE, cuda.blockDim.x):
            if i // TILE + i % TILE >= KEPT:
                tile[i] = 0
        cuda.syncthreads()
        mm.execute(1.0, transposed, tile, 0.0, half_done)
        cuda.syncthreads()
        mm.execute(1.0, half_done, transform, 0.0, tile)
        cuda.syncthreads()
        mm.store_c(tile, result[row : row + TILE, column : column + TILE])

    return compress, mm


# -- running -------------------------------------------------------------------------------------------------


def run(png: Path) -> bool:
    """Both kernels on the picture; prints errors and times, writes the PNG. True if both are right."""
    picture = photograph()
    sharpened = run_sharpen(picture)
    compressed = run_compress(picture)
    write_png(png, [picture, sharpened, compressed])
    errors = (
        report_error("sharpen", sharpened, expected_sharpen(picture)),
        report_error("compress", compressed, expected_compress(picture)),
    )
    print(f"wrote {png}: the picture, sharpened, and from {kept_share():.0%} of its cosine coefficients")
    return all(error <= BOUND for error in errors)


def photograph() -> np.ndarray:
    """scikit-image's cameraman, which comes with the package; only the face for the simulator."""
    from skimage import data

    picture = data.camera()
    if simulation.is_active():
        picture = picture[120:184, 195:259]
    return np.ascontiguousarray(picture, dtype=np.float32)


def run_sharpen(picture: np.ndarray) -> np.ndarray:
    size = picture.shape[0]
    kernel, fft = sharpen_kernel(size, ffts_per_block=8 if simulation.is_active() else 2)
    grid = size // fft.ffts_per_block
    device_picture = cuda.to_device(picture)
    half = sharpening(size)[: size // 2 + 1] / size  # what a real FFT has; FFTs do not scale, so 1 / size
    response = cuda.to_device(half.astype(np.float32))
    turned, result = (cuda.to_device(np.full_like(picture, np.nan)) for _ in range(2))

    def both_directions():
        kernel[grid, fft.block_dim](device_picture, response, turned)
        kernel[grid, fft.block_dim](turned, response, result)

    report_time("sharpen", both_directions)
    return result.copy_to_host()


def run_compress(picture: np.ndarray) -> np.ndarray:
    kernel, mm = compress_kernel()
    tiles = picture.shape[0] // TILE
    device_picture, cosines = cuda.to_device(picture), cuda.to_device(cosine_matrix().astype(np.float32))
    result = cuda.to_device(np.full_like(picture, np.nan))
    report_time("compress", lambda: kernel[(tiles, tiles), mm.block_dim](device_picture, cosines, result))
    return result.copy_to_host()


def report_time(name: str, launch) -> None:
    """The first launch compiles; on a GPU one more shows what the kernel takes, its launch included."""
    for what in ("simulated",) if simulation.is_active() else ("first time, with compilation", "second time"):
        start = perf_counter()
        launch()
        cuda.synchronize()
        print(f"{name}, time: {perf_counter() - start:.6f} s, {what}", flush=True)


def report_error(name: str, got: np.ndarray, expected: np.ndarray) -> float:
    error = float(np.linalg.norm(got - expected) / np.linalg.norm(expected))
    print(f"{name}, error: {error:.1e} (at most {BOUND:.0e})", flush=True)
    return error


def write_png(path: Path, pictures: list[np.ndarray]) -> None:
    from PIL import Image

    scale = max(1, 256 // pictures[0].shape[0])  # pixels of the crop are shown larger
    row = np.concatenate([p.clip(0, 255).round().astype(np.uint8) for p in pictures], axis=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(row.repeat(scale, axis=0).repeat(scale, axis=1)).save(path)


# -- the mathematics, in float64 -----------------------------------------------------------------------------


def sharpening(size: int) -> np.ndarray:
    """The filter at each frequency of a row or column: 1 for flat areas, up to 2 for fine detail."""
    frequency = np.fft.fftfreq(size)  # cycles a pixel, -0.5 to 0.5
    return 2 - np.exp(-0.5 * (frequency / 0.12) ** 2)


def expected_sharpen(picture: np.ndarray) -> np.ndarray:
    response = sharpening(len(picture))
    return np.fft.ifft2(np.fft.fft2(picture.astype(np.float64)) * np.outer(response, response)).real


def cosine_matrix() -> np.ndarray:
    """The orthogonal matrix of the cosine transform (DCT-II) of TILE values."""
    frequency, position = np.ogrid[:TILE, :TILE]
    matrix = np.cos(np.pi / TILE * (position + 0.5) * frequency) * np.sqrt(2 / TILE)
    matrix[0] /= np.sqrt(2)
    return matrix


def expected_compress(picture: np.ndarray) -> np.ndarray:
    cosines = cosine_matrix().astype(np.float32).astype(np.float64)  # as the kernel gets it
    expected = np.empty(picture.shape)
    for i in range(0, len(picture), TILE):
        for j in range(0, len(picture), TILE):
            coefficients = cosines @ picture[i : i + TILE, j : j + TILE].astype(np.float64) @ cosines.T
            coefficients[~kept()] = 0
            expected[i : i + TILE, j : j + TILE] = cosines.T @ coefficients @ cosines
    return expected


def kept() -> np.ndarray:
    return np.add.outer(np.arange(TILE), np.arange(TILE)) < KEPT


def kept_share() -> float:
    return float(kept().mean())


# -- machine code without a GPU ------------------------------------------------------------------------------


def cubin_reports() -> list[str]:
    """What ``--cubin`` says of both kernels, each in a process of its own that does not simulate."""

    def report(name: str) -> str:
        command = [sys.executable, __file__, "--cubin", name]
        environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "0"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
        return done.stdout.rstrip()

    with ThreadPoolExecutor() as pool:
        return list(pool.map(report, CUBINS))


def print_cubin(name: str) -> None:
    """Generate and link one kernel of the whole picture for sm_90, and print what came out."""
    start = perf_counter()
    try:
        cubin = CUBINS[name]()
    except MissingDependencyError as error:
        print(f"{name}: no machine code, since something is not installed: {error}")
        return
    seconds = perf_counter() - start
    print(f"{name}: sm_90 cubin of {len(cubin):,} bytes in {seconds:.1f} s, {contents_of(cubin)}")


def sharpen_cubin() -> bytes:
    from numba.cuda import types

    kernel, _ = sharpen_kernel(512, ffts_per_block=2)
    matrix, vector = types.float32[:, ::1], types.float32[::1]
    return nd.compile(kernel, types.void(matrix, vector, matrix), sm=90).code


def compress_cubin() -> bytes:
    from numba.cuda import types

    kernel, _ = compress_kernel()
    matrix = types.float32[:, ::1]
    return nd.compile(kernel, types.void(matrix, matrix, matrix), sm=90).code


CUBINS = {"compress": compress_cubin, "sharpen": sharpen_cubin}


def contents_of(cubin: bytes) -> str:
    """Registers, shared memory and instructions, as NVIDIA's cuobjdump and nvdisasm tell them."""
    import re
    import tempfile

    from cuda.pathfinder import find_nvidia_binary_utility

    usage, disassembler = map(find_nvidia_binary_utility, ("cuobjdump", "nvdisasm"))
    if usage is None or disassembler is None:
        return "pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm to see its registers and instructions"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "kernel.cubin")
        file.write_bytes(cubin)
        options = {"capture_output": True, "text": True, "check": True}
        resources = subprocess.run([usage, "-res-usage", file], **options).stdout
        listing = subprocess.run([disassembler, "-c", file], **options).stdout
    registers, shared = (max(map(int, re.findall(rf"\b{key}:(\d+)", resources))) for key in ("REG", "SHARED"))
    count = len(re.findall(r"^\s+/\*[0-9a-f]{4,}\*/", listing, re.MULTILINE))
    return f"{registers} registers a thread, {shared:,} bytes of shared memory, {count:,} instructions"


# -- the command ---------------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    default = Path(__file__).resolve().parent / "out" / "quickstart.png"
    parser.add_argument("--png", type=Path, default=default, help=f"file to write, default {default}")
    parser.add_argument("--cubin", choices=CUBINS, help="only generate this kernel for sm_90; needs no GPU")
    arguments = parser.parse_args()
    if arguments.cubin:
        print_cubin(arguments.cubin)
        return 0

    start = perf_counter()
    if not simulation.is_active():
        print(f"on {cuda.get_current_device().name}, a picture of 512 x 512 pixels", flush=True)
        right = run(arguments.png)
    else:
        print("no GPU: on Numba's simulator, and so a crop of 64 x 64 pixels; meanwhile sm_90 code for the")
        print("whole picture is generated (once: it is stored for the next time)", flush=True)
        with ThreadPoolExecutor() as pool:
            reports = pool.submit(cubin_reports)
            right = run(arguments.png)
            print(*reports.result(), sep="\n")
    print(f"{'done' if right else 'WRONG RESULT'} in {perf_counter() - start:.0f} s")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
