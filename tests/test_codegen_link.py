# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F811  (a fixture is imported and is a parameter's name)
"""Code by libmathdx linked into kernels without a GPU: what is in the cubins."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from numba import cuda
from numba.cuda.cudadrv.linkable_code import LTOIR, CUSource
from numba.cuda.types import bfloat16, complex64, float16, float32, float64, int32, void

import nvmath_device as nd
from nvmath_device.errors import InvalidArgumentError, LinkError
from nvmath_device.lto import toolchain
from nvmath_device.lto.link import link
from nvmath_device.numba_backend.compiling import compile_modules
from tests import sass
from tests.real_code import (
    BF16,
    DOUBLE,
    FORWARD,
    HALF,
    INVERSE,
    SINGLE,
    SM90,
    TENSOR_CORES,
    counts,
    cubin_of,
    generated,  # noqa: F401  (a fixture)
    matmul,
)

# -- machine code --------------------------------------------------------------------------------------------

GEMMS = {
    "float16": (HALF, float16, float32, "HMMA"),
    "bfloat16": (BF16, bfloat16, float32, "HMMA"),
    "float32": (SINGLE, float32, float32, "FFMA"),
    "float64": (DOUBLE, float64, float64, "DMMA"),
}


@pytest.mark.parametrize("case", GEMMS)
def test_r013_a_gemm_kernel_is_small_and_spills_nothing(case, generated):
    mm, element, c_element, work = GEMMS[case]
    cubin = cubin_of(mm, element, c_element)
    found = counts(cubin)
    assert found[work] >= 16
    assert [name for name in ("LDL", "STL", "CALL") if found[name]] == []
    used = sass.resources(cubin)
    assert used["local"] == used["stack"] == 0
    assert used["registers"] <= 65536 // mm.resolved(SM90).block_dim.size
    assert len(cubin) < 200_000
    elements = (mm.a_size, mm.b_size, mm.c_size) if mm is not SINGLE else (0, 0, 0)
    assert used["shared"] >= sum(
        n * t.bitwidth // 8 for n, t in zip(elements, (element, element, c_element), strict=False)
    )


@pytest.mark.parametrize("case", GEMMS)
def test_r010_tensor_cores_only_where_the_precision_asks_for_them(case, generated):
    """float32 stays float32: no instruction of a tensor core, so nothing is rounded to tf32 on the way."""
    mm, element, c_element, work = GEMMS[case]
    found = counts(cubin_of(mm, element, c_element))
    assert {name for name in TENSOR_CORES if found[name]} == ({work} & set(TENSOR_CORES))


def test_r002_bfloat16_accumulates_in_float32(generated):
    names = {n for n in sass.instructions(cubin_of(BF16, bfloat16, float32)) if n.startswith("HMMA")}
    assert names
    assert all(".F32.BF16" in name for name in names)


def test_r008_declared_alignment_widens_the_loads(generated):
    """Same size, same element width; one promises 16 bytes: its operands come 16 bytes at a time."""
    promised, natural = (
        Counter(sass.instructions(cubin_of(mm, element, float32)))
        for mm, element in ((HALF, float16), (BF16, bfloat16))
    )

    def wide(found):
        return sum(n for name, n in found.items() if name.startswith(("LDSM.16.M88.4", "LDS.128")))

    def narrow(found):
        return sum(n for name, n in found.items() if name == "LDS" or name.startswith("LDS.U"))

    assert wide(promised) >= 16
    assert wide(natural) <= 2  # those of the copy to C
    assert narrow(natural) >= 4 * narrow(promised)


def test_suggested_block_and_leading_dimension_are_libmathdx_answers(generated):
    plan = SINGLE.resolved(SM90)
    assert plan.block_dim.size % 32 == 0
    assert 32 <= plan.block_dim.size <= 1024
    assert all(32 <= ld < 64 for ld in plan.descriptor.leading_dimension)
    assert (
        matmul(32, "float32", block_size="suggested", leading_dimension="suggested", sm=90).block_dim == plan.block_dim
    )
    assert f"LEADING_DIMENSION={tuple(plan.descriptor.leading_dimension)}".partition("=")[0] in dict(
        plan.recipe("SMEM").operators
    )


# -- linking -------------------------------------------------------------------------------------------------

USER_SOURCE = 'extern "C" __device__ int user_scale(float* result, float x) { *result = x * 3.25f; return 0; }'
OTHER_SOURCE = 'extern "C" __device__ int user_shift(float* result, float x) { *result = x + 7.5f; return 0; }'


def nvrtc_ltoir(source, arch="sm_90"):
    from cuda.core import Program, ProgramOptions

    options = ProgramOptions(arch=arch, relocatable_device_code=True, link_time_optimization=True)
    return bytes(Program(source, "c++", options).compile("ltoir").code)


def everything_kernel():
    """Three GEMMs of different precisions, both FFTs and two functions of the user, in one kernel."""
    scale = cuda.declare_device("user_scale", float32(float32), link=CUSource(USER_SOURCE, name="user.cu"))
    shift = cuda.declare_device(
        "user_shift", float32(float32), link=LTOIR(nvrtc_ltoir(OTHER_SOURCE), name="user_shift")
    )

    n = DOUBLE.a_size
    all_of_single = sum(SINGLE.resolved(SM90).descriptor.storage_bytes) // 4

    def kernel(x, y, z, signal):
        half_a = nd.shared.array(HALF.a_size, np.float16)
        half_b = nd.shared.array(HALF.b_size, np.float16)
        half_c = nd.shared.array(HALF.c_size, np.float32)
        single = nd.shared.array(all_of_single, np.float32)
        double = nd.shared.array(0, np.float64)  # dynamic: together they are more than static arrays may be
        data = cuda.local.array(FORWARD.storage_size, FORWARD.value_type)
        scratch = nd.shared.array(FORWARD.shared_memory_size, np.uint8)
        i = cuda.threadIdx.x
        half_a[i], half_b[i], single[i], double[i], double[n + i] = x[i], x[i], y[i], z[i], z[i]
        FORWARD.load(signal, data)
        cuda.syncthreads()
        HALF.execute(1.0, half_a, half_b, 0.0, half_c)
        SINGLE.execute(
            1.0,
            single[: SINGLE.a_size],
            single[SINGLE.a_size : SINGLE.a_size + SINGLE.b_size],
            0.0,
            single[SINGLE.a_size + SINGLE.b_size :],
        )
        DOUBLE.execute(1.0, double[:n], double[n : 2 * n], 0.0, double[2 * n : 3 * n])
        FORWARD.execute(data, scratch)
        cuda.syncthreads()
        for j in range(FORWARD.elements_per_thread):
            data[j] *= scale(half_c[i])
        INVERSE.execute(data, scratch)
        INVERSE.store(data, signal)
        cuda.syncthreads()
        y[i] = shift(single[i]) + double[2 * n + i]

    return kernel, void(float16[::1], float32[::1], float64[::1], complex64[:, :])


def test_r043_everything_links_together_in_any_order(generated):
    kernel, signature = everything_kernel()
    compiled = compile_modules(kernel, signature, SM90, {})
    entry, modules = compiled.entry, compiled.modules
    assert len(modules) == 8  # the kernel, three GEMMs, two FFTs, two functions of the user
    found = []
    for order in (modules, modules[::-1]):
        cubin = link(order, sm=SM90)
        assert entry.encode() in cubin
        found.append(counts(cubin))
        assert all(found[-1][work] >= 16 for work in ("HMMA", "FFMA", "DMMA"))
        assert [name for name in ("CALL", "LDL", "STL") if found[-1][name]] == []
    assert [found[0][name] for name in ("HMMA", "FFMA", "DMMA", "BAR")] == [
        found[1][name] for name in ("HMMA", "FFMA", "DMMA", "BAR")
    ]


def test_r043_link_of_cuda_jit_is_kept(generated):
    shift = cuda.declare_device("user_shift", float32(float32))

    @cuda.jit(link=[CUSource(OTHER_SOURCE, name="user.cu")], fastmath=True)
    def kernel(x):
        x[0] = shift(x[0])

    found = counts(nd.compile(kernel, void(float32[::1]), sm=90).code)
    assert found["FADD"] == 1
    assert found["CALL"] == 0


def test_r043_a_symbol_nobody_defines_is_a_link_error_that_names_it():
    lost = cuda.declare_device("nobody_defines_this", float32(float32))

    def kernel(x):
        x[0] = lost(x[0])

    with pytest.raises(LinkError, match=r"could not link 1 modules for sm_90[\s\S]*nobody_defines_this"):
        nd.compile(kernel, void(float32[::1]), sm=90)


def test_r039_a_large_captured_array_is_refused_with_advice():
    weights = np.ones(100_000, np.float32)

    def kernel(x):
        x[0] = weights[x.shape[0]]

    with pytest.raises(LinkError, match=r"too much global constant data[\s\S]*64 KiB at most: pass them as arguments"):
        nd.compile(kernel, void(float32[::1]), sm=90)


def test_r028_large_static_shared_arrays_are_refused_with_need_limit_kernel_and_advice():
    def kernel_of_somebody(x):
        a = cuda.shared.array(6145, np.float64)  # 49,160 bytes: 0xc008
        a[x.shape[0]] = x[0]
        cuda.syncthreads()
        x[1] = a[1]

    text = (
        r"kernel_of_somebody[\s\S]*too much shared data \(0xc\w{3} bytes, 0xc000 max\)[\s\S]*"
        "48 KiB at most: make one of shape 0"
    )
    with pytest.raises(LinkError, match=text):
        nd.compile(kernel_of_somebody, void(float64[::1]), sm=90)


def fused_kernel():
    def kernel(x, signal):
        a = nd.shared.array((3, DOUBLE.a_size), np.float64)
        data = cuda.local.array(FORWARD.storage_size, np.complex64)
        scratch = nd.shared.array(FORWARD.shared_memory_size, np.uint8)
        a[0, cuda.threadIdx.x] = a[1, cuda.threadIdx.x] = x[cuda.threadIdx.x]
        FORWARD.load(signal, data)
        FORWARD.execute(data, scratch)
        FORWARD.store(data, signal)
        cuda.syncthreads()
        DOUBLE.execute(1.0, a[0], a[1], 0.0, a[2])
        cuda.syncthreads()
        x[cuda.threadIdx.x] = a[2, cuda.threadIdx.x]

    return kernel, void(float64[::1], complex64[:, :])


@pytest.mark.parametrize(
    ("options", "section"),
    [({"debug": True, "opt": False}, b".debug_info"), ({"lineinfo": True}, b".nv_debug_line_sass")],
    ids=["debug", "lineinfo"],
)
def test_r047_a_kernel_for_debugging_links_with_generated_code(options, section, generated):
    kernel, signature = fused_kernel()
    compiled = nd.compile(kernel, signature, sm=90, **options)
    assert counts(compiled.code)["DMMA"] >= 16
    assert section in compiled.code


@pytest.mark.parametrize("option", ["lto", "link", "device", "debgu"])
def test_r048_an_option_that_is_not_offered_is_refused_by_name(option):
    with pytest.raises(
        InvalidArgumentError, match=rf"options: '{option}' is not allowed; give one of 'debug', 'lineinfo'"
    ):
        nd.compile(lambda x: None, void(int32[::1]), sm=90, **{option: False})


def test_r048_lto_of_cuda_jit_does_not_stop_linking(generated):
    kernel, signature = fused_kernel()
    for lto in (True, False):
        compiled = nd.compile(cuda.jit(kernel, lto=lto), signature, sm=90)
        assert counts(compiled.code)["DMMA"] >= 16


def test_r052_majors_that_do_not_go_together_are_named_with_the_package_to_change():
    text = toolchain.link_problem((13, 5), (12, 9))
    assert text is not None
    for part in ("nvJitLink 12.9", "NVRTC 13.5", "nvidia-nvjitlink>=13.5,<14"):
        assert part in text
    text = toolchain.link_problem((12, 9), (13, 5))
    assert text is not None
    for part in ("nvJitLink 13.5", "NVRTC 12.9", "nvidia-libmathdx-cu13"):
        assert part in text
    assert toolchain.link_problem((13, 0), (13, 5)) is None


def test_r053_the_kernel_is_machine_code_of_its_target(generated):
    """An ELF file of SASS, so no driver has to know the PTX version of the compiler."""
    cubin = cubin_of(DOUBLE, float64, float64)
    assert cubin[:4] == b"\x7fELF"
    assert b".nv_fatbin" not in cubin
    assert b".version" not in cubin
    assert "sm_90" in sass.disassemble(cubin)[:400]


# -- export --------------------------------------------------------------------------------------------------


def test_r056_exported_code_links_into_a_cuda_cpp_kernel(generated):
    from cuda.core import Linker, LinkerOptions, ObjectCode

    plan = DOUBLE.resolved(SM90)
    exported, symbol = nd.compile_blas_execute(DOUBLE, ("lto", 90))
    source = f"""
        extern "C" __device__ void {symbol}(void* alpha, void* a, void* b, void* beta, void* c);
        extern "C" __global__ void handwritten(double* x) {{
            __shared__ __align__(16) double a[{DOUBLE.a_size}], b[{DOUBLE.b_size}], c[{DOUBLE.c_size}];
            for (int i = threadIdx.x; i < {DOUBLE.a_size}; i += {plan.block_dim.size}) a[i] = b[i] = x[i];
            __syncthreads();
            double alpha = 1.0, beta = 0.0;
            {symbol}(&alpha, a, b, &beta, c);
            __syncthreads();
            for (int i = threadIdx.x; i < {DOUBLE.c_size}; i += {plan.block_dim.size}) x[i] = c[i];
        }}"""
    linker = Linker(
        ObjectCode.from_ltoir(nvrtc_ltoir(source), name="handwritten"),
        ObjectCode.from_ltoir(exported.data, name=symbol),
        options=LinkerOptions(arch="sm_90", link_time_optimization=True, optimize_unused_variables=True),
    )
    cubin = bytes(linker.link("cubin").code)
    assert b"handwritten" in cubin
    handwritten, ours = counts(cubin), counts(cubin_of(DOUBLE, float64, float64))
    assert handwritten["CALL"] == 0
    assert handwritten["DMMA"] == ours["DMMA"] > 0
