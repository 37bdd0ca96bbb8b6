# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F811  (a fixture is imported and is a parameter's name)
"""``nd.compile``: what it makes, what it says about it, and what can be linked into it. No GPU is used."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from numba import cuda
from numba.cuda.cudadrv.libs import get_cudalib
from numba.cuda.cudadrv.linkable_code import LTOIR, Archive, Cubin, CUSource, Fatbin, Object, PTXSource
from numba.cuda.types import float32, float64, int32, int64, void

import nvmath_device as nd
from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError, MissingDependencyError, UnsupportedError
from nvmath_device.kernel_code import KernelCode, build
from nvmath_device.lto.cubin import entries, read_resources
from nvmath_device.lto.fatbin import fatbin
from nvmath_device.lto.link import link
from nvmath_device.numba_backend.compiling import NeedsNumba
from tests import sass
from tests.fatbins import contents
from tests.real_code import DOUBLE, FORWARD, SM90, counts, gemm_kernel, generated  # noqa: F401  (a fixture)

VECTOR = float32[::1]
MATRIX = float64[:, :]
GEMM = void(MATRIX, MATRIX, MATRIX)


def plain(x, factor):
    x[cuda.grid(1)] *= factor


PLAIN = void(VECTOR, float32)


# -- outputs -------------------------------------------------------------------------------------------------


def test_a_cubin_has_the_name_that_is_asked_for(generated):
    compiled = nd.compile(gemm_kernel(DOUBLE), GEMM, sm=90, name="gemm_tile")
    assert entries(compiled.code) == ("gemm_tile",)
    assert (compiled.entry, compiled.output, compiled.sm, compiled.linked) == ("gemm_tile", "cubin", "sm_90", ())
    assert counts(compiled.code)["DMMA"] >= 16


def test_ptx_is_that_of_the_whole_kernel(generated):
    text = nd.compile(gemm_kernel(DOUBLE), GEMM, sm=90, output="ptx", name="gemm_tile").code.decode()
    assert ".visible .entry gemm_tile(" in text
    assert "mma.sync" in text
    assert ".extern .func" not in text
    assert text.endswith("}\n\n")


def test_ltoir_is_the_kernel_alone_beside_what_it_is_linked_with(generated):
    compiled = nd.compile(gemm_kernel(DOUBLE), GEMM, sm=90, output="ltoir", name="gemm_tile")
    ((kind, code),) = compiled.linked
    assert kind == "ltoir"
    assert len(code) > 1_000_000 > len(compiled.code)
    cubin = link([("ltoir", compiled.code), *compiled.linked], sm=SM90)
    assert counts(cubin) == counts(nd.compile(gemm_kernel(DOUBLE), GEMM, sm=90).code)


def test_a_fatbin_has_machine_code_and_ptx_for_what_comes_after(generated, tmp_path):
    compiled = nd.compile(gemm_kernel(DOUBLE), GEMM, sm=90, output="fatbin", name="gemm_tile")
    assert contents(compiled.code, tmp_path) == ["gemm_tile.sm_90.cubin", "gemm_tile.sm_90.ptx"]


def test_a_fatbin_of_several_targets_has_one_entry(tmp_path):
    compiled = nd.compile(plain, PLAIN, sm=["sm_90a", 80, 90], output="fatbin")
    assert list(compiled.record.targets) == ["sm_80", "sm_90", "sm_90a"]
    assert sorted(name.removeprefix(compiled.entry) for name in contents(compiled.code, tmp_path)) == [
        ".sm_80.cubin", ".sm_90.cubin", ".sm_90a.cubin", ".sm_90a.ptx",
    ]  # fmt: skip
    assert compiled.entry.encode() in compiled.code


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"sm": 90, "output": "exe"}, InvalidArgumentError, "output: 'exe' is not allowed"),
        ({}, ArgumentTypeError, "give one target"),
        ({"sm": 90, "cc": 90}, ArgumentTypeError, "give one target"),
        ({"cc": 91}, InvalidArgumentError, "cc: 91 is not a known compute capability"),
        ({"sm": [80, 90]}, InvalidArgumentError, "only a fatbin holds several"),
        ({"sm": [], "output": "fatbin"}, InvalidArgumentError, "only a fatbin"),
        ({"sm": 90, "name": "a kernel"}, InvalidArgumentError, "name: 'a kernel' is not a C identifier"),
        ({"sm": 90, "name": "größe"}, InvalidArgumentError, "is not a C identifier"),
        ({"sm": 90, "output": "ltoir", "debug": True, "opt": False}, InvalidArgumentError, "not go with debug=True"),
    ],
)
def test_refusals(arguments, error, text):
    with pytest.raises(error, match=text):
        nd.compile(plain, PLAIN, **arguments)


def test_a_signature_with_a_result_is_refused():
    with pytest.raises(ArgumentTypeError, match="a kernel has none"):
        nd.compile(plain, int32(VECTOR, float32), sm=90)


def test_a_missing_nvfatbin_is_named_with_its_package(monkeypatch):
    from cuda.bindings import nvfatbin

    def missing():
        raise RuntimeError("libnvfatbin.so.13 was not found")

    monkeypatch.setattr(nvfatbin, "version", missing)
    with pytest.raises(MissingDependencyError, match=r"pip install nvidia-nvfatbin\s[\s\S]*libnvfatbin"):
        nd.compile(plain, PLAIN, sm=90, output="fatbin")


# -- the record ----------------------------------------------------------------------------------------------


def test_the_record_says_how_to_launch(generated):
    compiled = nd.compile(gemm_kernel(DOUBLE), GEMM, sm=90, name="gemm_tile")
    needs = compiled.record.targets["sm_90"]
    used = sass.resources(compiled.code)
    assert needs.resources.registers == used["registers"]
    # cuobjdump counts the 1 KiB that CUDA takes of each block.
    assert needs.resources.static_shared_bytes == used["shared"] - 1024 == 3 * 32 * 32 * 8
    assert needs.resources.max_threads == 128
    assert needs.blocks == ({"block_dim": [128, 1, 1], "exact": False},)
    data = json.loads(compiled.record.to_json())
    assert data["entry"] == "gemm_tile"
    assert data["cooperative"] is False
    array = ["ptr", "ptr", "i64", "i64", "ptr", "i64", "i64", "i64", "i64"]
    assert data["parameters"] == [{"name": n, "type": "array(float64, 2d, A)", "words": array} for n in "abc"]
    assert data["targets"]["sm_90"] == {
        "blocks": list(needs.blocks), "least_shared": 0, "resources": needs.resources.as_dict()
    }  # fmt: skip


LAYOUT = nd.shared_layout(small=(np.float32, 4), table=(np.float64, (3, 5), 128), spare=4096)


def first_of_the_table():
    return LAYOUT.table()[0, 0]


@pytest.mark.parametrize("through_helper", [False, True])
def test_the_record_says_how_much_dynamic_memory_a_layout_takes(through_helper):
    """As far as the parts reach that are used; the helper's note reaches the kernel."""
    first = cuda.jit(device=True)(first_of_the_table)

    def direct(x):
        x[0] = LAYOUT.small()[1] + LAYOUT.table()[0, 0]

    def indirect(x):
        x[0] = first()

    kernel, signature = indirect if through_helper else direct, void(float64[:])
    (needs,) = nd.compile(kernel, signature, sm=90).record.targets.values()
    assert needs.least_shared == LAYOUT.table.end < LAYOUT.size
    (needs,) = nd.compile(kernel, signature, sm=90, output="ltoir").record.targets.values()
    assert needs.least_shared == LAYOUT.table.end
    code = build(kernel, (float64[:],), {}, SM90)
    assert code.least_shared == LAYOUT.table.end
    assert KernelCode.from_entry(*code.to_entry()) == code


def test_the_note_of_dynamic_memory_is_not_among_what_is_to_be_linked():
    def kernel(x):
        x[0] = LAYOUT.small()[1]

    assert nd.compile(kernel, void(float64[:]), sm=90, output="ltoir").linked == ()


def test_of_functions_that_call_themselves_no_stack_is_known():
    @cuda.jit(device=True)
    def collatz(n):
        if n <= 1:
            return 0
        return 1 + (collatz(n // 2) if n % 2 == 0 else collatz(3 * n + 1))

    def kernel(x):
        x[0] = collatz(x[0])

    (needs,) = nd.compile(kernel, void(int64[:]), sm=90).record.targets.values()
    assert needs.resources.local_bytes is None
    assert needs.resources.registers > 0


def test_an_fft_must_be_called_by_just_its_block(generated):
    def kernel(signal):
        data = cuda.local.array(FORWARD.storage_size, np.complex64)
        scratch = nd.shared.array(FORWARD.shared_memory_size, np.uint8)
        FORWARD.load(signal, data)
        FORWARD.execute(data, scratch)
        FORWARD.store(data, signal)

    from numba.cuda.types import complex64

    compiled = nd.compile(kernel, void(complex64[:, :]), sm=90)
    block = FORWARD.resolved(SM90)
    assert compiled.record.targets["sm_90"].blocks == (
        {"block_dim": list(nd.FFT.from_descriptor(*block).block_dim), "exact": True},
    )


def test_without_machine_code_the_resources_are_not_known():
    for output in ("ptx", "ltoir"):
        assert nd.compile(plain, PLAIN, sm=90, output=output).record.targets["sm_90"].resources is None


def test_kernel_code_survives_being_stored():
    code = build(plain, (VECTOR, float32), {"launch_bounds": 64}, SM90)
    meta, blob = code.to_entry()
    assert KernelCode.from_entry(json.loads(json.dumps(meta)), blob) == code
    assert code.resources == read_resources(code.cubin, code.entry)
    assert (code.sm, code.resources.max_threads, code.blocks, code.cooperative) == ("sm_90", 64, (), False)
    assert [p["name"] for p in code.parameters] == ["x", "factor"]


# -- options -------------------------------------------------------------------------------------------------


def busy(x, y):
    i = cuda.grid(1)
    x[i] = math.sin(x[i]) / y[i] + math.sqrt(y[i])


def instructions(compiled):
    return sum(counts(compiled.code).values())


def test_fastmath_and_opt_reach_the_machine_code():
    usual, fast, slow = (
        nd.compile(busy, void(VECTOR, VECTOR), sm=90, **options) for options in ({}, {"fastmath": True}, {"opt": False})
    )
    assert instructions(fast) < instructions(usual) / 2 < instructions(slow) / 4
    assert counts(fast.code)["CALL"] == 0 < counts(usual.code)["CALL"]  # of the exact division


def test_options_of_jit_are_kept_and_those_given_go_before():
    def bound(kernel, **options):
        return nd.compile(kernel, void(VECTOR, VECTOR), sm=90, **options).record.targets["sm_90"].resources.max_threads

    for kernel in (nd.jit(launch_bounds=(96, 2))(busy), cuda.jit(launch_bounds=96)(busy)):
        assert bound(kernel) == 96
        assert bound(kernel, launch_bounds=64) == 64
    assert bound(busy) == 1024


def many_registers(x):
    values = cuda.local.array(64, np.float32)
    for k in range(64):
        values[k] = x[k]
    cuda.syncthreads()
    for k in range(64):
        x[k] = values[63 - k] * values[k]


@pytest.mark.parametrize("bounds", [None, 64, (64, 1)])
def test_max_registers_limits_a_kernel_that_wants_more(bounds):
    free, limited = (
        nd.compile(many_registers, void(VECTOR), sm=90, launch_bounds=bounds, **options)
        .record.targets["sm_90"]
        .resources
        for options in ({}, {"max_registers": 32})
    )
    assert limited.registers <= 32 < free.registers
    assert limited.local_bytes > free.local_bytes


def test_max_registers_limits_a_kernel_with_generated_code(generated):
    """Which has a bound on its threads, too."""
    compiled = nd.compile(gemm_kernel(DOUBLE), GEMM, sm=90, max_registers=32)
    assert compiled.record.targets["sm_90"].resources.registers <= 32
    assert compiled.record.targets["sm_90"].resources.max_threads == 128
    assert nd.compile(gemm_kernel(DOUBLE), GEMM, sm=90).record.targets["sm_90"].resources.registers > 32


# -- link ----------------------------------------------------------------------------------------------------

SOURCE = 'extern "C" __device__ int user_scale(float* result, float x) { *result = x * 3.25f; return 0; }'
PTX = """
.version 8.0
.target sm_80
.address_size 64
.visible .func (.param .b32 status) user_scale(.param .b64 result, .param .b32 x)
{
    .reg .f32 %f<3>; .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [result];
    ld.param.f32 %f1, [x];
    mul.f32 %f2, %f1, 0f40500000;
    st.f32 [%rd1], %f2;
    st.param.b32 [status], 0;
    ret;
}
"""


def compiled_source(kind, **options):
    from cuda.core import Program, ProgramOptions

    options = ProgramOptions(arch="sm_90", relocatable_device_code=True, **options)
    return bytes(Program(SOURCE, "c++", options).compile(kind).code)


def user_code(ending):
    if ending == "cu":
        return SOURCE.encode()
    if ending == "ptx":
        return PTX.encode()
    if ending == "ltoir":
        return compiled_source("ltoir", link_time_optimization=True)
    cubin = compiled_source("cubin")
    return cubin if ending == "cubin" else fatbin([("cubin", SM90, cubin)], name="user")


KINDS = {"cu": CUSource, "ptx": PTXSource, "ltoir": LTOIR, "cubin": Cubin, "fatbin": Fatbin}
scale = cuda.declare_device("user_scale", float32(float32))


def calls_user_code(x):
    x[0] = scale(x[0])


@pytest.mark.parametrize("ending", KINDS)
def test_code_of_every_kind_is_linked_from_memory_and_from_files(ending, tmp_path):
    path = tmp_path / f"user.{ending}"
    path.write_bytes(user_code(ending))
    text = ending in ("cu", "ptx")
    in_memory = KINDS[ending](path.read_text() if text else path.read_bytes(), name="user")
    inlined = ending in ("cu", "ltoir")
    for given in (in_memory, str(path)):
        found = counts(nd.compile(cuda.jit(calls_user_code, link=[given]), void(VECTOR), sm=90).code)
        assert found["FMUL"] == 1
        assert (found["CALL"] == 0) == inlined


def device_runtime_object():
    """The largest member of CUDA's libcudadevrt.a: an object file of the host with code of the device in it."""
    archive, at, members = Path(get_cudalib("cudadevrt", static=True)).read_bytes(), 8, []
    while at < len(archive):
        size = int(archive[at + 48 : at + 58])
        members.append(archive[at + 60 : at + 60 + size])
        at += 60 + size + size % 2
    return max(members, key=len)


def whole_grid(x):
    cuda.cg.this_grid().sync()
    x[0] = 1


def test_objects_and_archives_are_linked(tmp_path):
    compiled = nd.compile(whole_grid, void(VECTOR), sm=90, output="ltoir")
    own = [("ltoir", compiled.code)]
    archive = Path(get_cudalib("cudadevrt", static=True)).read_bytes()
    assert compiled.linked == (("library", archive),)
    cubins = [link([*own, module], sm=SM90) for module in (("library", archive), ("object", device_runtime_object()))]
    assert all(compiled.entry in entries(cubin) for cubin in cubins)

    (tmp_path / "runtime.o").write_bytes(device_runtime_object())
    for given in (Archive(archive), Object(device_runtime_object()), str(tmp_path / "runtime.o")):
        # More than the kernel asks for does no harm: what is not used is left out, and the same is linked once.
        assert nd.compile(cuda.jit(plain, link=[given]), PLAIN, sm=90).code


def test_a_kernel_that_synchronises_its_grid_is_cooperative():
    compiled = nd.compile(whole_grid, void(VECTOR), sm=90)
    assert compiled.record.cooperative
    assert build(whole_grid, (VECTOR,), {}, SM90).cooperative


def test_a_missing_device_runtime_is_named_with_its_package(monkeypatch):
    from nvmath_device.numba_backend import compiling

    monkeypatch.setattr(compiling, "get_cudalib", lambda *args, **kwargs: "libcudadevrt.a")
    with pytest.raises(MissingDependencyError, match=r"libcudadevrt\.a\. Run: pip install nvidia-cuda-runtime"):
        nd.compile(whole_grid, void(VECTOR), sm=90)


def test_what_numba_itself_links_is_linked():
    def kernel(x):
        y = x.reshape((2, 2))  # calls a function of Numba's reshape_funcs.cu
        x[0] = y[1, 1]

    assert nd.compile(kernel, void(VECTOR), sm=90).code


@pytest.mark.parametrize(
    ("given", "text"),
    [("code.exe", "has an unknown ending; give a .cu"), ("nowhere/code.ptx", "cannot be read: .*No such file")],
)
def test_files_that_cannot_be_linked_are_refused(given, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "code.exe").touch()
    with pytest.raises(InvalidArgumentError, match=rf"link: '{given}' {text}"):
        nd.compile(cuda.jit(plain, link=[given]), PLAIN, sm=90)


# -- what cannot leave the process ---------------------------------------------------------------------------


def test_an_array_in_gpu_memory_from_outside_is_refused():
    class Somewhere:
        __cuda_array_interface__ = {  # noqa: RUF012
            "shape": (4,), "typestr": "<f4", "data": (0x7F0000000000, False), "version": 3,
        }  # fmt: skip

    outside = Somewhere()

    def kernel(x):
        x[0] = outside[1]

    with pytest.raises(NeedsNumba, match=r"an array in GPU memory from outside of it \(Somewhere\)"):
        nd.compile(kernel, void(VECTOR), sm=90)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (CUSource(SOURCE, setup_callback=lambda module: None), "has a callback"),
        (CUSource(SOURCE, teardown_callback=lambda module: None), "has a callback"),
        (CUSource(SOURCE, nrt=True), "allocates memory by itself"),
    ],
)
def test_code_that_numba_has_to_load_is_refused(code, text):
    with pytest.raises(NeedsNumba, match=text):
        build(calls_user_code, (VECTOR,), {"link": [code]}, SM90)
    declared = cuda.declare_device("user_scale", float32(float32), link=code)

    def kernel(x):
        x[0] = declared(x[0])

    with pytest.raises(UnsupportedError, match=text):
        nd.compile(kernel, void(VECTOR), sm=90)
