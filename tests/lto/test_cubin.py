# SPDX-License-Identifier: Apache-2.0
"""What is read from cubins, against cuobjdump's reading of the same files and against what the source says."""

from __future__ import annotations

import re
import sys
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import cuda
from numba.cuda.types import float32, float64, int32, void

import nvmath_device as nd
from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError
from nvmath_device.lto.cubin import Resources, entries, read_resources, target
from nvmath_device.lto.link import link
from nvmath_device.targets import compute_capability
from tests import sass

TARGETS = (75, 80, 89, 90, "90a", 100, 120)
CONSTANTS = np.arange(100, dtype=np.float32)

# Several kernels in one cubin; ``called`` is not inlined into ``caller``, so its stack comes on top.
PTX = """
.version 8.0
.target sm_75
.address_size 64
.extern .shared .align 16 .b8 dynamic[];
.func (.param .b32 r) called(.param .b32 x) {
  .reg .b32 a; .reg .b64 q, z; .local .align 4 .b8 buffer[256];
  ld.param.b32 a, [x]; cvt.u64.u32 q, a; mov.u64 z, buffer; add.u64 z, z, q;
  st.local.u32 [z], a; ld.local.u32 a, [buffer+16]; st.param.b32 [r], a; ret;
}
.visible .entry caller(.param .u64 p) {
  .reg .b32 a, b; .reg .b64 q, z, f; .local .align 4 .b8 buffer[128];
  .param .b32 x; .param .b32 y;
  mov.u32 a, %tid.x; cvt.u64.u32 q, a; mov.u64 z, buffer; add.u64 z, z, q; st.local.u32 [z], a;
  st.param.b32 [x], a; mov.u64 f, called;
  prototype: .callprototype (.param .b32 _) _ (.param .b32 _);
  call (y), f, (x), prototype;
  ld.param.b32 b, [y]; ld.local.u32 a, [buffer+8]; add.u32 a, a, b;
  ld.param.u64 q, [p]; st.global.u32 [q], a; ret;
}
.visible .entry static_shared(.param .u64 p, .param .u8 flag, .param .u32 n) {
  .shared .align 4 .b8 s[49152]; .reg .b32 a; .reg .b64 q, z;
  mov.u32 a, %tid.x; cvt.u64.u32 q, a; mov.u64 z, s; add.u64 z, z, q; st.shared.u32 [z], a; bar.sync 0;
  ld.shared.u32 a, [s+16]; ld.param.u64 q, [p]; st.global.u32 [q], a; ret;
}
.visible .entry dynamic_shared(.param .u64 p) {
  .reg .b32 a; .reg .b64 q, z;
  mov.u32 a, %tid.x; cvt.u64.u32 q, a; mov.u64 z, dynamic; add.u64 z, z, q; st.shared.u32 [z], a; bar.sync 0;
  ld.shared.u32 a, [dynamic+16]; ld.param.u64 q, [p]; st.global.u32 [q], a; ret;
}
.visible .entry at_most() .maxntid 64, 2, 1 { ret; }
.visible .entry exactly() .reqntid 64, 2, 2 { ret; }
"""


def plain(a, n):
    i = cuda.grid(1)
    if i < n:
        a[i] *= 2


def static(a):
    shared = cuda.shared.array(1000, float32)
    shared[cuda.threadIdx.x] = a[cuda.threadIdx.x]
    cuda.syncthreads()
    a[cuda.threadIdx.x] = shared[999 - cuda.threadIdx.x]


def dynamic(a):
    shared = cuda.shared.array(0, float64)
    shared[cuda.threadIdx.x] = a[cuda.threadIdx.x]
    cuda.syncthreads()
    a[cuda.threadIdx.x] = shared[cuda.blockDim.x - 1 - cuda.threadIdx.x]


def local(a, n):
    kept = cuda.local.array(100, int32)
    for i in range(n):
        kept[a[i] % 100] = a[i]
    for i in range(n):
        a[i] = kept[(i * 7) % 100]


def constant(a):
    a[cuda.threadIdx.x] = CONSTANTS[cuda.threadIdx.x % 100]


KERNELS = {
    "plain": (plain, void(float32[:], int32), {}),
    "bounded": (plain, void(float32[:], int32), {"launch_bounds": (256, 2)}),
    "static": (static, void(float32[:]), {}),
    "dynamic": (dynamic, void(float64[:]), {}),
    "local": (local, void(int32[:], int32), {}),
    "constant": (constant, void(float32[:]), {}),
    "debug": (static, void(float32[:]), {"debug": True, "opt": False}),
}


@cache
def compiled(name, sm=90):
    function, signature, options = KERNELS[name]
    return nd.compile(function, signature, sm=sm, **options)


def said_by_cuobjdump(cubin):
    """{kernel: {"REG": ..., "STACK": ..., "SHARED": ...}}"""
    text = sass._run("cuobjdump", "-res-usage", cubin=cubin)
    found = re.findall(r"Function (\S+):\s*\n(.*)", text)
    return {name: {k: int(v) for k, v in re.findall(r"([A-Z]+):(\d+)", line)} for name, line in found}


@pytest.fixture(scope="module", params=TARGETS, ids=str)
def several(request):
    """(target, a cubin of the PTX above)"""
    sm = compute_capability(f"sm_{request.param}")
    return sm, link([("ptx", PTX.encode())], sm=sm)


# -- against cuobjdump ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("sm", TARGETS, ids=str)
def test_registers_and_memory_are_what_cuobjdump_reads(name, sm):
    made = compiled(name, sm)
    said = said_by_cuobjdump(made.code)[made.entry]
    resources = read_resources(made.code, made.entry)
    # cuobjdump counts in what CUDA keeps for itself where the kernel's section has it: from sm_90 on.
    reserved = 1024 if said["SHARED"] and int(str(sm).rstrip("a")) >= 90 else 0
    assert resources.registers == said["REG"]
    assert resources.local_bytes == said["STACK"]
    assert resources.static_shared_bytes == said["SHARED"] - reserved


def test_every_kernel_of_a_cubin_is_read_for_itself(several):
    sm, cubin = several
    said = said_by_cuobjdump(cubin)
    for entry in entries(cubin):
        resources = read_resources(cubin, entry)
        assert resources.registers == said[entry]["REG"], entry
        assert resources.local_bytes == said[entry]["STACK"], entry
    assert target(cubin) == (*sm[:2], "")


# -- against the source --------------------------------------------------------------------------------------


def test_entries_are_the_kernels_alone(several):
    assert set(entries(several[1])) == {"caller", "static_shared", "dynamic_shared", "at_most", "exactly"}


def test_static_shared_memory_is_the_arrays_declared_and_nothing_else(several):
    cubin = several[1]
    assert read_resources(cubin, "static_shared").static_shared_bytes == 49152
    assert read_resources(cubin, "dynamic_shared").static_shared_bytes == 0
    assert read_resources(cubin, "at_most").static_shared_bytes == 0


def test_stacks_of_called_functions_are_counted(several):
    assert read_resources(several[1], "caller").local_bytes >= 128 + 256


def test_bounds_on_threads(several):
    cubin = several[1]
    assert read_resources(cubin, "at_most").max_threads == 64 * 2
    assert read_resources(cubin, "exactly").max_threads == 64 * 2 * 2
    assert read_resources(cubin, "caller").max_threads == 1024


def test_parameters_with_the_padding_between_them(several):
    cubin = several[1]
    assert read_resources(cubin, "static_shared").parameter_bytes == 16  # 8, 1, 3 unused, 4
    assert read_resources(cubin, "at_most").parameter_bytes == 0


@pytest.mark.parametrize("sm", TARGETS, ids=str)
def test_numba_kernels(sm):
    read = {name: read_resources((made := compiled(name, sm)).code, made.entry) for name in KERNELS}
    assert read["plain"].max_threads == 1024
    assert read["bounded"].max_threads == 256
    assert read["static"].static_shared_bytes == read["debug"].static_shared_bytes == 4000
    assert read["dynamic"].static_shared_bytes == 0
    assert read["local"].local_bytes >= 400
    assert read["plain"].local_bytes == 0
    assert read["constant"].constant_bytes == 400
    assert read["plain"].constant_bytes == 0
    assert read["plain"].parameter_bytes == 7 * 8 + 4  # an array of one dimension and an int32


def test_the_version_of_the_format_that_cuda_12_writes():
    """It differs in two fields of the header, as ptxas 12.4 writes them; the rest was the same."""
    made = compiled("static")
    older = bytearray(made.code)
    older[7:9] = 0x33, 7
    older[48:52] = (0x5A055A).to_bytes(4, "little")
    assert target(bytes(older)) == (9, 0, "")
    assert read_resources(bytes(older), made.entry) == read_resources(made.code, made.entry)


def test_resources_travel_as_json():
    made = compiled("static")
    resources = read_resources(made.code, made.entry)
    assert Resources(**resources.as_dict()) == resources
    assert all(type(v) is int for v in resources.as_dict().values())


# -- what is no cubin ----------------------------------------------------------------------------------------


def test_a_kernel_that_is_not_there_is_refused_with_those_that_are():
    made = compiled("static")
    with pytest.raises(InvalidArgumentError, match=r"entry: 'other' is not a kernel.*" + re.escape(made.entry)):
        read_resources(made.code, "other")


@pytest.mark.parametrize("file", [b"", b".version 8.0", b"\x7fELF\x02", b"\x7fELF\x02" + bytes(100)])
def test_other_bytes_are_refused(file):
    with pytest.raises(InvalidArgumentError, match="cubin:"):
        entries(file)


def test_a_program_for_the_cpu_is_refused():
    with open(sys.executable, "rb") as file, pytest.raises(InvalidArgumentError, match="not for NVIDIA's GPUs"):
        entries(file.read())


@pytest.mark.parametrize("file", ["text", None, 3])
def test_other_types_are_refused(file):
    with pytest.raises(ArgumentTypeError, match=r"cubin: (str|NoneType|int)"):
        entries(file)


def test_an_offset_beyond_any_file_is_refused():
    broken = bytearray(compiled("plain").code)
    broken[40:48] = b"\xff" * 8  # where the table of sections lies
    with pytest.raises(InvalidArgumentError, match="cut off or damaged"):
        entries(bytes(broken))


@settings(max_examples=300)
@given(data=st.data())
def test_a_damaged_file_is_refused_or_read_and_nothing_else(data):
    made = compiled("plain")
    broken = bytearray(made.code[: data.draw(st.integers(0, len(made.code)))])
    for _ in range(data.draw(st.integers(0, 4))):
        if broken:
            broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = entries(bytes(broken))
        for entry in found:
            read_resources(bytes(broken), entry)
    except InvalidArgumentError:
        pass
