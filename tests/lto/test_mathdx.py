# SPDX-License-Identifier: Apache-2.0
"""The calls into libmathdx: what a failure says, what an older library lacks, and when handles end."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from nvmath_device.errors import CodegenError, InvalidArgumentError, UnsupportedError
from nvmath_device.lto import mathdx, toolchain
from nvmath_device.lto.mathdx import BlasDescriptor, Code, FftDescriptor
from nvmath_device.lto.mathdx_enums import (
    ArchModifier,
    BlasApi,
    BlasFunction,
    BlasOperatorType,
    BlasTraitType,
    BlasType,
    Execution,
    FftApi,
    FftDeviceFunctionType,
    FftDirection,
    FftKnobType,
    FftOperatorType,
    FftTraitType,
    FftType,
    Option,
    Precision,
    ValueType,
)

SM = 900
FFT_OPERATORS: dict[FftOperatorType, int] = {
    FftOperatorType.SIZE: 128,
    FftOperatorType.DIRECTION: FftDirection.FORWARD,
    FftOperatorType.TYPE: FftType.C2C,
    FftOperatorType.PRECISION: Precision.F32,
    FftOperatorType.SM: SM,
    FftOperatorType.EXECUTION: Execution.BLOCK,
    FftOperatorType.API: FftApi.LMEM,
}


def fft(changes: dict[FftOperatorType, int] | None = None) -> FftDescriptor:
    descriptor = FftDescriptor()
    for operator, value in {**FFT_OPERATORS, **(changes or {})}.items():
        descriptor.set_int64(operator, value)
    return descriptor


@pytest.fixture
def blas() -> Iterator[BlasDescriptor]:
    with BlasDescriptor() as descriptor:
        yield descriptor


# --- what a failure says --------------------------------------------------------------------------


def test_invalid_value_names_function_operator_and_value_and_has_no_log(blas: BlasDescriptor) -> None:
    with pytest.raises(CodegenError) as caught:
        blas.set_int64(BlasOperatorType.FUNCTION, 99)
    assert caught.value.status == 1
    assert caught.value.log == ""
    for part in (
        "cublasdxSetOperatorInt64",
        "BlasOperatorType.FUNCTION",
        "99",
        "invalid value",
        "out of range",
    ):
        assert part in str(caught.value)


def test_arrays_are_shown_and_handles_are_not(blas: BlasDescriptor) -> None:
    with pytest.raises(CodegenError) as caught:
        blas.set_int64s(BlasOperatorType.SIZE, (16, 0, 16))
    assert "[16, 0, 16]" in str(caught.value)
    assert str(blas.handle) not in str(caught.value)


def test_internal_error_has_words(blas: BlasDescriptor) -> None:
    with pytest.raises(CodegenError, match=r"internal error \(status 2\).*no such operator") as caught:
        blas.set_int64(BlasOperatorType.SIZE, 16)  # takes three values
    assert caught.value.status == 2


@pytest.mark.parametrize("operator", list(BlasOperatorType)[:4])
def test_a_used_up_handle_is_refused_by_the_library(operator: BlasOperatorType) -> None:
    with BlasDescriptor() as descriptor:
        handle = descriptor.handle
    with pytest.raises(CodegenError, match="cublasdxSetOperatorInt64"):
        mathdx.call("cublasdxSetOperatorInt64", handle, operator, 0)


def test_unknown_function_name() -> None:
    with pytest.raises(InvalidArgumentError, match="cublasdxNoSuchThing"):
        mathdx.call("cublasdxNoSuchThing")


@pytest.mark.parametrize("missing", ["SIZE", "DIRECTION", "PRECISION", "SM", "EXECUTION"])
def test_fft_traits_need_every_required_operator(missing: str) -> None:
    with FftDescriptor() as descriptor:
        for operator, value in FFT_OPERATORS.items():
            if operator.name != missing:
                descriptor.set_int64(operator, value)
        with pytest.raises(CodegenError, match="cufftdxGetTraitInt64"):
            descriptor.trait_int64(FftTraitType.STORAGE_SIZE)


def test_log_belongs_to_the_failing_call_alone() -> None:
    """Status 3 with a text, then status 3 and 1 without one in the same thread, then the first failure again.

    int32 FFTs are accepted by every trait and refused by the compiler; a BLAS descriptor without SM answers
    status 3 at once and leaves no text. libmathdx keeps showing the first text in both later cases.
    """
    with (
        fft({FftOperatorType.PRECISION: Precision.I32}) as refused,
        Code() as code,
        BlasDescriptor() as no_sm,
    ):
        code.set_int64(Option.TARGET_SM, SM)
        with pytest.raises(CodegenError) as first:
            code.finalize(refused)

        no_sm.set_int64(BlasOperatorType.FUNCTION, BlasFunction.MM)
        no_sm.set_int64s(BlasOperatorType.SIZE, (8, 8, 8))
        no_sm.set_int64s(BlasOperatorType.PRECISION, [Precision.F32] * 3)
        no_sm.set_int64(BlasOperatorType.TYPE, BlasType.REAL)
        no_sm.set_int64(BlasOperatorType.EXECUTION, Execution.BLOCK)
        no_sm.set_int64(BlasOperatorType.API, BlasApi.SMEM)
        with pytest.raises(CodegenError) as silent:
            no_sm.trait_int64s(BlasTraitType.LEADING_DIMENSION)
        with pytest.raises(CodegenError) as invalid:
            no_sm.set_int64(BlasOperatorType.FUNCTION, 99)
        with pytest.raises(CodegenError) as again:
            code.finalize(refused)

    size = ctypes.c_size_t()
    library = toolchain.load_mathdx()
    assert library.commondxGetLastErrorStrSize(ctypes.byref(size)) == 0, "libmathdx no longer keeps its text"
    assert [error.value.status for error in (first, silent, invalid, again)] == [3, 3, 1, 3]
    for error in (first, again):
        assert "Unsupported precision type" in error.value.log
        assert "cufftdxFinalizeCode" in str(error.value)
        assert error.value.log in str(error.value)
    assert silent.value.log == ""
    assert "Unsupported precision" not in str(silent.value)
    assert invalid.value.log == ""
    assert "Unsupported precision" not in str(invalid.value)


def test_ctrl_c_during_a_call_in_a_thread_waits_for_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library still uses its handles then, so the interrupt is raised when the call has ended."""
    ended = []
    real_join = mathdx.threading.Thread.join

    def interrupted_once(thread: mathdx.threading.Thread, timeout: float | None = None) -> None:
        monkeypatch.setattr(mathdx.threading.Thread, "join", real_join)
        raise KeyboardInterrupt

    monkeypatch.setattr(mathdx.threading.Thread, "join", interrupted_once)
    gate = mathdx.threading.Event()
    mathdx.threading.Timer(0.2, gate.set).start()

    def work() -> None:
        gate.wait(5)
        ended.append(True)

    with pytest.raises(KeyboardInterrupt):
        mathdx._in_new_thread(work)
    assert ended == [True]


# --- an older library -----------------------------------------------------------------------------


class OldLibrary:
    """libmathdx with some functions taken away, as 0.3.1 lacks them."""

    def __init__(self, library: ctypes.CDLL, missing: set[str]) -> None:
        self._library, self._missing = library, missing

    def __getattr__(self, name: str) -> object:
        if name in self._missing:
            raise AttributeError(name)
        return self._library[name]


@pytest.fixture
def old_library(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = {"cublasdxFinalizeCodes", "cufftdxFinalizeCodes", "commondxGetCodePTX", "cublasdxSideToStr"}
    library = OldLibrary(toolchain.load_mathdx(), missing)
    monkeypatch.setattr(mathdx, "_bound", {})
    monkeypatch.setattr(toolchain, "load_mathdx", lambda: library)
    monkeypatch.setattr(toolchain, "mathdx_version", lambda: (0, 3, 1))


@pytest.mark.usefixtures("old_library")
def test_missing_function_names_itself_and_both_versions() -> None:
    with pytest.raises(UnsupportedError) as caught:
        mathdx.call("commondxGetCodePTX", 0, 0, None)
    for part in ("commondxGetCodePTX", "0.3.1", "0.3.2", "pip install"):
        assert part in str(caught.value)


@pytest.mark.usefixtures("old_library")
def test_the_rest_of_an_older_library_works() -> None:
    with fft() as descriptor:
        assert descriptor.trait_int64(FftTraitType.INPUT_LENGTH) == 128
    assert not mathdx.supports("blas_finalize_many")
    assert not mathdx.supports("blas_trsm")
    assert mathdx.supports("fft_thread_layout")
    assert mathdx.supports("cufftdxFinalizeCode")


@pytest.mark.usefixtures("old_library")
def test_missing_feature_is_named_in_words() -> None:
    with fft() as one, fft() as two, Code() as code:
        with pytest.raises(UnsupportedError, match=r"generating several FFTs in one call needs libmathdx 0\.4\.2"):
            code.finalize(one, two)
        with pytest.raises(UnsupportedError, match="triangular solve"):
            mathdx.require("blas_trsm")
        mathdx.require("fft_transposition")


def test_unknown_feature_lists_the_known_ones() -> None:
    with pytest.raises(InvalidArgumentError, match=r"'teleport'.*fft_thread_layout"):
        mathdx.supports("teleport")


# --- handles --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Code, BlasDescriptor, FftDescriptor])
def test_a_handle_ends_with_its_block(kind: type[Code]) -> None:
    handle = kind()
    number = handle.handle
    with pytest.raises(RuntimeError, match="body failed"), handle:
        raise RuntimeError("body failed")
    with pytest.raises(InvalidArgumentError, match=kind.__name__):
        handle.handle  # noqa: B018
    handle.close()
    with pytest.raises(CodegenError):  # the library has forgotten it, too
        mathdx.call(kind._destroy, number)


@pytest.mark.parametrize("count", [0, 2])
def test_finalize_takes_descriptors_of_one_library(blas: BlasDescriptor, count: int) -> None:
    with fft() as other, Code() as code, pytest.raises(InvalidArgumentError, match="one library"):
        code.finalize(*(blas, other)[:count])


# --- answers --------------------------------------------------------------------------------------


def test_text_functions_answer_the_c_names() -> None:
    assert (
        mathdx.call("cublasdxOperatorTypeToStr", BlasOperatorType.LEADING_DIMENSION)
        == "CUBLASDX_OPERATOR_LEADING_DIMENSION"
    )
    assert mathdx.call("commondxPrecisionToStr", Precision.TF32) == "COMMONDX_PRECISION_TF32"


@pytest.mark.parametrize("size", [7, 30, 128])
def test_real_transform_lengths_follow_the_mathematics(size: int) -> None:
    with fft({FftOperatorType.SIZE: size, FftOperatorType.TYPE: FftType.R2C}) as descriptor:
        assert descriptor.trait_int64(FftTraitType.INPUT_LENGTH) == size
        assert descriptor.trait_int64(FftTraitType.OUTPUT_LENGTH) == size // 2 + 1
        assert descriptor.trait_value_type(FftTraitType.INPUT_TYPE) is ValueType.R_32F
        assert descriptor.trait_value_type(FftTraitType.OUTPUT_TYPE) is ValueType.C_32F


def test_every_listed_knob_setting_is_accepted_and_covers_the_transform() -> None:
    size = FFT_OPERATORS[FftOperatorType.SIZE]
    with fft() as descriptor:
        settings = descriptor.knobs([FftKnobType.ELEMENTS_PER_THREAD, FftKnobType.FFTS_PER_BLOCK])
        reversed_settings = descriptor.knobs([FftKnobType.FFTS_PER_BLOCK, FftKnobType.ELEMENTS_PER_THREAD])
    assert len(settings) >= 2
    assert sorted(settings) == sorted((ept, ffts) for ffts, ept in reversed_settings)
    for ept, ffts in settings:
        knobs = {FftOperatorType.ELEMENTS_PER_THREAD: ept, FftOperatorType.FFTS_PER_BLOCK: ffts}
        with fft(knobs) as descriptor:
            assert descriptor.is_supported()
            assert descriptor.trait_int64(FftTraitType.ELEMENTS_PER_THREAD) == ept
            assert descriptor.trait_int64(FftTraitType.FFTS_PER_BLOCK) == ffts
            threads = math.prod(descriptor.trait_int64s(FftTraitType.BLOCK_DIM))
            assert threads * ept >= size * ffts


def test_a_size_without_implementation_is_not_supported() -> None:
    with fft({FftOperatorType.SIZE: 20000}) as descriptor:
        assert not descriptor.is_supported()


def test_one_call_makes_one_ltoir_with_all_functions_under_the_names_given() -> None:
    """Two FFTs, one with a helper, linked to a kernel that calls all three; another name does not link."""
    mathdx.require("fft_finalize_many")
    helpers = FftDeviceFunctionType.EXECUTE | FftDeviceFunctionType.FFT_ID
    changes = {FftOperatorType.SIZE: 16, FftOperatorType.DEVICE_FUNCTION: helpers}
    with fft(changes) as first, fft() as second, Code() as code:
        code.set_int64s(Option.TARGET_SM, (SM, ArchModifier.GENERIC))
        first.set_str(Option.SYMBOL_NAME, "first_transform")
        second.set_str(Option.SYMBOL_NAME, "second_transform")
        assert second.trait_str(FftTraitType.SYMBOL_NAME) == "second_transform"
        fft_id = first.trait_str(FftTraitType.SYMBOL_FFT_ID_NAME)
        code.finalize(first, second)
        ltoirs = code.ltoirs()
    assert len(ltoirs) == 1
    assert link_calls(ltoirs, ["first_transform", "second_transform"], fft_id) == ""
    assert "third_transform" in link_calls(ltoirs, ["first_transform", "third_transform"], fft_id)


def link_calls(ltoirs: list[bytes], transforms: list[str], fft_id: str) -> str:
    """Link a kernel that calls the functions, for sm_90; returns nvJitLink's complaint, empty if it links."""
    from cuda.bindings import nvjitlink, nvrtc

    declared = "".join(f'extern "C" __device__ void {name}(float2*, void*);' for name in transforms)
    called = "".join(f"{name}(x, shared);" for name in transforms)
    source = (
        f'{declared} extern "C" __device__ void {fft_id}(unsigned*);'
        'extern "C" __global__ void kernel(float2* data) {'
        "extern __shared__ __align__(16) char shared[]; float2 x[32]; unsigned id;"
        f"for (int i = 0; i < 32; ++i) x[i] = data[i]; {fft_id}(&id); {called}"
        "for (int i = 0; i < 32; ++i) data[32 * id + i] = x[i]; }"
    )
    status, program = nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], [])
    assert status == 0
    options = [b"--gpu-architecture=sm_90", b"-dlto", b"--relocatable-device-code=true"]
    assert nvrtc.nvrtcCompileProgram(program, len(options), options)[0] == 0
    kernel = b" " * nvrtc.nvrtcGetLTOIRSize(program)[1]
    nvrtc.nvrtcGetLTOIR(program, kernel)

    handle = nvjitlink.create(2, ["-arch=sm_90", "-lto"])
    try:
        for data in (kernel, *ltoirs):
            nvjitlink.add_data(handle, nvjitlink.InputType.LTOIR, data, len(data), "part")
        nvjitlink.complete(handle)
    except nvjitlink.nvJitLinkError:
        log = bytearray(nvjitlink.get_error_log_size(handle))
        nvjitlink.get_error_log(handle, log)
        return log.decode()
    finally:
        nvjitlink.destroy(handle)
    return ""


def test_blas_descriptor_passes_arrays_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without compiling anything: what the library is handed."""
    calls = []
    monkeypatch.setattr(mathdx, "call", lambda name, *args: calls.append((name, args)))
    descriptor = SimpleNamespace(library="cublasdx", handle=7)
    BlasDescriptor.set_int64s(descriptor, BlasOperatorType.SIZE, (2, 3, 5))  # type: ignore[arg-type]
    ((name, (handle, operator, count, values)),) = calls
    assert (name, handle, operator, count) == ("cublasdxSetOperatorInt64s", 7, BlasOperatorType.SIZE, 3)
    assert list(values) == [2, 3, 5]
    assert values._type_ is ctypes.c_longlong
