# SPDX-License-Identifier: Apache-2.0
"""Reports of machine code whose source says which instructions must be in it."""

from __future__ import annotations

import json

import pytest
from numba import cuda
from numba.cuda.types import float16, float32, float64, int32, void

import nvmath_device as nd
from nvmath_device import kernel_report
from nvmath_device.errors import InvalidArgumentError, MissingDependencyError, NvmathDeviceError
from nvmath_device.kernel_report import report
from nvmath_device.lto.cubin import entries
from nvmath_device.lto.link import link
from nvmath_device.targets import compute_capability
from tests import sass
from tests.real_code import DOUBLE, HALF, SINGLE, cubin_of, generated  # noqa: F401  (a fixture)

HEADER = ".version 8.0\n.target {sm}\n.address_size 64\n"

# One matrix instruction each, of kinds the GEMMs of these tests do not have.
WGMMA = """
.visible .entry multiply(.param .u64 p) {
  .reg .b64 d, q; .reg .f32 f<4>; .reg .pred c;
  ld.param.u64 q, [p]; mov.b64 d, 0; setp.eq.u64 c, q, q;
  mov.f32 f0, 0f00000000; mov.f32 f1, f0; mov.f32 f2, f0; mov.f32 f3, f0;
  wgmma.fence.sync.aligned;
  wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {f0, f1, f2, f3}, d, d, c, 1, 1, 0, 0;
  wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;
  st.global.f32 [q], f0; st.global.f32 [q+4], f1; st.global.f32 [q+8], f2; st.global.f32 [q+12], f3; ret;
}
"""
INTEGERS = """
.visible .entry multiply(.param .u64 p) {
  .reg .b64 q; .reg .b32 a<4>, b<2>, c<4>;
  ld.param.u64 q, [p]; ld.global.v4.u32 {a0, a1, a2, a3}, [q]; ld.global.v2.u32 {b0, b1}, [q+16];
  mov.b32 c0, 0; mov.b32 c1, 0; mov.b32 c2, 0; mov.b32 c3, 0;
  mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {c0, c1, c2, c3}, {a0, a1, a2, a3}, {b0, b1}, {c0, c1, c2, c3};
  st.global.v4.u32 [q], {c0, c1, c2, c3}; ret;
}
"""
TWO_KERNELS = """
.visible .entry adds(.param .u64 p) {
  .reg .b64 q; .reg .f32 a; ld.param.u64 q, [p]; ld.global.f32 a, [q]; fma.rn.f32 a, a, a, a; st.global.f32 [q], a; ret;
}
.visible .entry adds_doubles(.param .u64 p) {
  .reg .b64 q; .reg .f64 a; ld.param.u64 q, [p]; ld.global.f64 a, [q]; fma.rn.f64 a, a, a, a; st.global.f64 [q], a; ret;
}
"""


def of_ptx(text, sm):
    return link([("ptx", (HEADER.format(sm=sm) + text).encode())], sm=compute_capability(sm))


def of_gemm(mm, element, c_element):
    cubin = cubin_of(mm, element, c_element)
    return report(cubin, *entries(cubin)), cubin


# -- arithmetic ----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("generated")
@pytest.mark.parametrize(
    ("mm", "element", "c_element", "path", "tensor_cores"),
    [
        (HALF, float16, float32, "HMMA", True),
        (DOUBLE, float64, float64, "DMMA", True),
        (SINGLE, float32, float32, "FFMA", False),
    ],
    ids=["half", "double", "single"],
)
def test_what_multiplies_in_a_gemm(mm, element, c_element, path, tensor_cores):
    found, cubin = of_gemm(mm, element, c_element)
    assert (found.path, found.uses_tensor_cores) == (path, tensor_cores)
    assert sum(found.instructions.values()) == len(sass.instructions(cubin))
    assert not found.spills
    used = sass.resources(cubin)
    assert found.resources.registers == used["registers"]
    assert found.resources.max_threads == mm.resolved(compute_capability(90)).block_dim.size


def test_warp_group_instructions():
    found = report(of_ptx(WGMMA, "sm_90a"), "multiply")
    assert (found.path, found.uses_tensor_cores, found.math) == ("HGMMA", True, {"HGMMA": 1})


def test_integers_on_tensor_cores():
    found = report(of_ptx(INTEGERS, "sm_80"), "multiply")
    assert (found.path, found.uses_tensor_cores, found.math) == ("IMMA", True, {"IMMA": 1})


def test_of_several_kernels_only_the_one_is_counted():
    cubin = of_ptx(TWO_KERNELS, "sm_90")
    single, double = report(cubin, "adds"), report(cubin, "adds_doubles")
    assert single.math == {"FFMA": 1}
    assert double.math == {"DFMA": 1}
    assert single.count("LDG") == single.count("STG") == 1


def test_a_kernel_that_multiplies_nothing():
    def kernel(a):
        a[cuda.grid(1)] = 0.5  # a constant in a register, which some targets set by HFMA2

    made = nd.compile(kernel, void(float32[:]), sm=90)
    found = report(made.code, made.entry)
    assert (found.path, found.math, found.uses_tensor_cores) == ("", {}, False)


def test_setting_a_register_is_no_arithmetic():
    line = "        /*0090*/                   {} ;\n"
    listing = "".join(
        line.format(text)
        for text in ("HFMA2 R5, -RZ, RZ, 1.875, 0", "HFMA2.MMA R7, -RZ, RZ, 0, 0", "@!P0 HFMA2 R5, R6, R7, R8")
    )
    assert kernel_report._count(listing, set()) == {"HFMA2": 1}


# -- memory --------------------------------------------------------------------------------------------------


def spilling(a, n):
    kept = cuda.local.array(64, int32)
    for i in range(n):
        kept[a[i] % 64] = a[i]
    for i in range(n):
        a[i] = kept[(i * 7) % 64]


def test_local_memory_is_counted():
    made = nd.compile(spilling, void(int32[:], int32), sm=90)
    found = report(made.code, made.entry)
    names = [name.partition(".")[0] for name in sass.instructions(made.code)]
    assert (found.local_loads, found.local_stores) == (names.count("LDL"), names.count("STL"))
    assert found.local_loads > 0
    assert found.spills
    assert found.resources.local_bytes >= 256
    assert "256 bytes a thread" in str(found)


def test_counts_are_by_whole_names_and_their_modifiers():
    found = kernel_report.KernelReport("k", "sm_90", None, {"LDS.128": 3, "LDS": 2, "LDSM.16.M88.4": 5})
    assert (found.count("LDS"), found.count("LDS.128"), found.count("LDSM"), found.count("LD")) == (5, 3, 5, 0)


# -- saying it -----------------------------------------------------------------------------------------------


def test_the_report_in_words_and_in_json():
    found = report(of_ptx(INTEGERS, "sm_80"), "multiply")
    assert str(found).startswith("multiply\n")
    for words in ("sm_80", "1 IMMA (tensor cores)", "a thread", "not used", "at most 1,024 a block"):
        assert words in str(found)
    data = json.loads(json.dumps(found.as_dict()))
    assert data["path"] == "IMMA"
    assert data["registers"] == found.resources.registers
    assert data["instructions"] == found.instructions


def test_an_unknown_kernel_is_refused():
    with pytest.raises(
        InvalidArgumentError, match="entry: 'other' is not a kernel of this cubin; its kernels are: mult"
    ):
        report(of_ptx(INTEGERS, "sm_80"), "other")


def test_without_nvdisasm_the_package_is_named(monkeypatch):
    cubin = of_ptx(INTEGERS, "sm_80")
    monkeypatch.setattr("cuda.pathfinder.find_nvidia_binary_utility", lambda name: None)
    with pytest.raises(MissingDependencyError, match="pip install nvidia-cuda-nvdisasm"):
        report(cubin, "multiply")


def test_what_nvdisasm_says_of_a_target_it_does_not_know_is_told():
    cubin = bytearray(of_ptx(INTEGERS, "sm_80"))
    cubin[49] = 33  # the capability, in the second byte of the flags
    with pytest.raises(NvmathDeviceError, match=r"cannot read this cubin of sm_33: .*nvdisasm"):
        report(bytes(cubin), "multiply")
