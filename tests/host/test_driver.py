# SPDX-License-Identifier: Apache-2.0
"""What a status of the CUDA driver becomes: a result, or an error that says whose fault it is."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from enum import IntEnum
from pathlib import Path
from types import SimpleNamespace

import pytest

from nvmath_device.errors import (
    DriverError,
    InvalidArgumentError,
    MissingDependencyError,
    NoDeviceError,
    NvmathDeviceError,
)
from nvmath_device.host import driver
from nvmath_device.host.driver import call, failure, library
from nvmath_device.host.streams import call_on_stream, order_after

ROOT = Path(__file__).resolve().parents[2]

# Written down from the documentation of CUresult: which of its errors are raised by kernels.
KERNEL_FAULTS = {
    "CUDA_ERROR_ECC_UNCORRECTABLE": 214,
    "CUDA_ERROR_ILLEGAL_ADDRESS": 700,
    "CUDA_ERROR_LAUNCH_TIMEOUT": 702,
    "CUDA_ERROR_ASSERT": 710,
    "CUDA_ERROR_HARDWARE_STACK_ERROR": 714,
    "CUDA_ERROR_ILLEGAL_INSTRUCTION": 715,
    "CUDA_ERROR_MISALIGNED_ADDRESS": 716,
    "CUDA_ERROR_INVALID_ADDRESS_SPACE": 717,
    "CUDA_ERROR_INVALID_PC": 718,
    "CUDA_ERROR_LAUNCH_FAILED": 719,
}
OWN_FAULTS = {
    "CUDA_ERROR_INVALID_VALUE": 1,
    "CUDA_ERROR_OUT_OF_MEMORY": 2,
    "CUDA_ERROR_INVALID_CONTEXT": 201,
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES": 701,
    "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED": 900,
}
NO_DEVICE = {"CUDA_ERROR_STUB_LIBRARY": 34, "CUDA_ERROR_NO_DEVICE": 100, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": 803}

Status = IntEnum("Status", {"CUDA_SUCCESS": 0, **KERNEL_FAULTS, **OWN_FAULTS, **NO_DEVICE})
NOT_INITIALIZED = IntEnum("Later", {"CUDA_ERROR_NOT_INITIALIZED": 3}).CUDA_ERROR_NOT_INITIALIZED


@pytest.fixture(autouse=True)
def bindings(monkeypatch):
    """Stands in for cuda.bindings.driver."""
    made = SimpleNamespace(
        cuInit=lambda flags: (Status.CUDA_SUCCESS,),
        cuGetErrorString=lambda status: (Status.CUDA_SUCCESS, f"words for {int(status)}".encode()),
        CUresult=Status,
    )
    monkeypatch.setattr(driver, "bindings", lambda: made)
    return made


def function(*answers, name="cuSomething"):
    """A driver function that gives these answers one after the other."""
    answers = list(answers)

    def some(*arguments):
        some.calls.append(arguments)
        return answers.pop(0)

    some.__name__, some.calls = name, []
    return some


def test_results_come_without_the_status():
    ask = function((Status.CUDA_SUCCESS,), (Status.CUDA_SUCCESS, 5), (Status.CUDA_SUCCESS, 5, 6))
    assert [call(ask, 1, 2), call(ask), call(ask)] == [None, 5, (5, 6)]
    assert ask.calls == [(1, 2), (), ()]


@pytest.mark.parametrize("name", KERNEL_FAULTS)
def test_r103_an_earlier_kernels_failure_is_not_blamed_on_the_next_call(name):
    with pytest.raises(DriverError) as raised:
        call(function((Status[name], 0), name="cuMemAllocAsync"))
    error = raised.value
    assert str(error).startswith(f"an earlier kernel failed: {name} (status {KERNEL_FAULTS[name]}): words for ")
    assert "cuMemAllocAsync was the next call" in str(error)
    assert "compute-sanitizer" in str(error)
    assert (error.function, error.status, error.earlier) == ("cuMemAllocAsync", KERNEL_FAULTS[name], True)


@pytest.mark.parametrize("name", OWN_FAULTS)
def test_a_calls_own_failure_names_function_and_status(name):
    with pytest.raises(
        DriverError, match=rf"^cuThis failed: {name} \(status {OWN_FAULTS[name]}\): words for"
    ) as raised:
        call(function((Status[name],), name="cuThis"))
    error = raised.value
    assert (error.function, error.status, error.earlier) == ("cuThis", OWN_FAULTS[name], False)
    assert isinstance(error, RuntimeError)
    assert isinstance(error, NvmathDeviceError)


@pytest.mark.parametrize("name", NO_DEVICE)
def test_where_there_is_no_device_it_says_so(name):
    with pytest.raises(NoDeviceError, match=f"^no usable CUDA device: cuInit failed: {name}"):
        call(function((Status[name],), name="cuInit"))


def test_without_a_driver_the_reason_of_the_bindings_is_passed_on():
    def cuThat():
        raise RuntimeError("libcuda.so.1 is missing")

    with pytest.raises(NoDeviceError, match=r"^cuThat: libcuda\.so\.1 is missing"):
        call(cuThat)


def test_the_driver_is_initialised_when_it_was_not(bindings):
    initialised = []
    bindings.cuInit = lambda flags: initialised.append(flags) or (Status.CUDA_SUCCESS,)
    ask = function((NOT_INITIALIZED,), (Status.CUDA_SUCCESS, 7))
    assert call(ask, 1) == 7
    assert (initialised, ask.calls) == ([0], [(1,), (1,)])


def test_a_forked_child_is_told_what_to_do(bindings):
    bindings.cuInit = lambda flags: (NOT_INITIALIZED,)
    with pytest.raises(NoDeviceError, match=r"CUDA_ERROR_NOT_INITIALIZED.*forked.*'spawn'"):
        call(function((NOT_INITIALIZED, 0)))


def test_plain_numbers_of_ctypes_calls_get_their_names():
    assert str(failure("cuX", 201)).startswith("cuX failed: CUDA_ERROR_INVALID_CONTEXT (status 201)")
    assert str(failure("cuX", 4711)) == "cuX failed: status 4711"


def test_words_are_not_needed(bindings):
    def unavailable(status):
        raise RuntimeError("no driver")

    bindings.cuGetErrorString = unavailable
    assert str(failure("cuX", Status.CUDA_ERROR_INVALID_VALUE)) == "cuX failed: CUDA_ERROR_INVALID_VALUE (status 1)"


@pytest.mark.parametrize("duplicate", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
def test_errors_travel_between_processes(duplicate):
    error = duplicate(failure("cuX", 700))
    assert (str(error), error.function, error.status, error.earlier) == (str(failure("cuX", 700)), "cuX", 700, True)


def test_the_real_bindings_have_the_names(monkeypatch):
    from cuda.bindings import driver as real

    monkeypatch.undo()
    assert driver.bindings() is real
    known = {int(status): status.name for status in real.CUresult}
    for name, number in (KERNEL_FAULTS | OWN_FAULTS | NO_DEVICE).items():
        assert known[number] == name
    assert known[3] == "CUDA_ERROR_NOT_INITIALIZED"


def test_missing_bindings_are_one_clear_error(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    driver.bindings.cache_clear()
    with pytest.raises(MissingDependencyError, match="pip install cuda-bindings"):
        driver.bindings()


def test_a_missing_libcuda_is_no_device():
    def missing(name):
        raise OSError(f"{name}: cannot open")

    with pytest.raises(NoDeviceError, match=r"no CUDA driver: .*cuda.*: cannot open"):
        library(missing)


# -- streams ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "number"), [("CUDA_ERROR_INVALID_HANDLE", 400), ("CUDA_ERROR_CONTEXT_IS_DESTROYED", 709)]
)
def test_a_handle_the_driver_refuses_is_the_users_stream(name, number):
    dead = IntEnum("Dead", {name: number})(number)
    with pytest.raises(InvalidArgumentError, match=f"^stream: cuLaunchKernel failed: {name}.*is the stream alive"):
        call_on_stream(function((dead,), name="cuLaunchKernel"))


@pytest.mark.parametrize("name", ["CUDA_ERROR_ILLEGAL_ADDRESS", "CUDA_ERROR_INVALID_VALUE"])
def test_other_failures_are_not_the_streams(name):
    with pytest.raises(DriverError, match=name):
        call_on_stream(function((Status[name],)))


def test_r103_ordering_reports_an_earlier_kernel_and_loses_no_event(bindings, monkeypatch):
    destroyed = []
    bindings.CUevent_flags = SimpleNamespace(CU_EVENT_DISABLE_TIMING=2)
    bindings.cuEventCreate = lambda flags: (Status.CUDA_SUCCESS, "event")
    bindings.cuEventRecord = function((Status.CUDA_ERROR_ILLEGAL_ADDRESS,), name="cuEventRecord")
    bindings.cuEventDestroy = lambda event: destroyed.append(event) or (Status.CUDA_ERROR_ILLEGAL_ADDRESS,)
    monkeypatch.setattr("nvmath_device.host.streams.bindings", lambda: bindings)
    with pytest.raises(DriverError, match=r"an earlier kernel failed: .*; cuEventRecord was the next call"):
        order_after(10, 20)
    assert destroyed == ["event"]


# -- imports ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", ["driver", "current_device", "device_memory", "copy_kernel", "device_copies"])
def test_importing_loads_neither_driver_nor_array_libraries(module):
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); import nvmath_device.host.{module}; import json; "
        "print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    loaded = set(json.loads(done.stdout))
    assert f"nvmath_device.host.{module}" in loaded
    assert not loaded & {"cuda.bindings", "cuda.bindings.driver", "cuda.core", "numba", "cupy", "torch", "jax"}
