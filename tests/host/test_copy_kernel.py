# SPDX-License-Identifier: Apache-2.0
"""The copy kernel: its parameters, its machine code (compiled here by NVRTC, without a GPU), and how it is loaded."""

from __future__ import annotations

import ctypes
import itertools
import math
import os
import re
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvmath_device.errors import DriverError, MissingDependencyError, UnsupportedError
from nvmath_device.host import copy_kernel
from nvmath_device.host.copy_kernel import launch_of, multiplier_and_shift
from nvmath_device.host.copy_plan import Move, plan_copy
from nvmath_device.lto import store
from tests import sass
from tests.host import fakes
from tests.host.copy_cases import cases, kernel_addresses

FUNCTIONS = {f"{way}_{unit}" for way in ("units", "tiles") for unit in (1, 2, 4, 8, 16)}
H200 = (9, 0)


# -- parameters ---------------------------------------------------------------------------------------------

LARGEST = 2**31 - 1


@given(divisor=st.integers(1, LARGEST), quotient=st.integers(0, LARGEST), any_=st.integers(0, LARGEST))
@settings(max_examples=2000)
def test_division_by_multiplication_is_exact(divisor, quotient, any_):
    multiplier, shift = multiplier_and_shift(divisor)
    assert 0 < multiplier < 2**32
    assert 0 <= shift < 64
    edge = min(quotient, LARGEST // divisor) * divisor
    for n in {0, 1, divisor - 1, divisor, edge - 1, edge, edge + divisor - 1, any_, LARGEST}:
        if 0 <= n <= LARGEST:
            assert n * multiplier >> shift == n // divisor
            assert n * multiplier < 2**64


@pytest.mark.parametrize("power", range(31))
def test_division_by_powers_of_two_and_their_neighbours(power):
    test_division_by_multiplication_is_exact.hypothesis.inner_test(2**power, LARGEST, LARGEST)
    test_division_by_multiplication_is_exact.hypothesis.inner_test(max(1, 2**power - 1), LARGEST, LARGEST - 1)
    test_division_by_multiplication_is_exact.hypothesis.inner_test(min(LARGEST, 2**power + 1), LARGEST, LARGEST - 1)


def pairs_of(move: Move) -> list[tuple[int, int]]:
    """From where to where, in plain Python."""
    found = []
    for index in itertools.product(*map(range, move.extents)):
        start = move.source + sum(map(int.__mul__, index, move.source_strides))
        to = move.destination + sum(map(int.__mul__, index, move.destination_strides))
        found.append((start, to))
    return sorted(found)


@given(case=cases(extents=(1, 2, 7, 8, 9, 33, 40, 65), max_units=5000), alignment=st.sampled_from([1, 2, 4, 8, 16]))
@settings(max_examples=300)
def test_the_threads_of_a_launch_move_each_unit_once(case, alignment):
    positional, named = case.arguments()
    for step in plan_copy(*positional, **named, alignment=alignment).steps:
        if isinstance(step, Move):
            function, blocks, parameters = launch_of(step)
            assert function == f"{'tiles' if step.tiled else 'units'}_{step.unit}"
            source, destination = kernel_addresses(function, blocks, parameters)
            assert sorted(zip(source.tolist(), destination.tolist(), strict=True)) == pairs_of(step)
            assert parameters.flip[0] | parameters.flip[1] << 64 == step.flip


def test_large_launches_stay_within_the_limits_of_a_grid():
    (step,) = plan_copy((2**31 - 1,), (2,), (1,), 1).steps
    assert launch_of(step).blocks == math.ceil((2**31 - 1) / (256 * 8))
    (step,) = plan_copy((2**15, 2**16 - 1), (1, 2**15), (2**16, 1), 16).steps
    assert launch_of(step).blocks == 2**10 * 2**11 < 2**31
    assert (launch_of(step).parameters.rows, launch_of(step).parameters.columns) == (2**15, 2**16 - 1)


# -- machine code -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cubin(tmp_path_factory):
    """Compiled for an H200, in a store of its own."""
    with pytest.MonkeyPatch.context() as patch:
        made = store.Store(tmp_path_factory.mktemp("store"))
        patch.setattr(store, "default_store", lambda: made)
        return copy_kernel.cubin(H200)


def test_it_compiles_to_all_functions_without_spills(cubin):
    assert cubin[:4] == b"\x7fELF"
    usage = sass._run("cuobjdump", "-res-usage", cubin=cubin)
    assert set(re.findall(r"Function (\w+):", usage)) == FUNCTIONS
    needs = sass.resources(cubin)
    assert (needs["local"], needs["stack"]) == (0, 0)
    assert needs["registers"] <= 64  # four blocks of 256 threads on a multiprocessor
    assert needs["shared"] <= 32 * 33 * 16 + 1024


@pytest.fixture(scope="module")
def opcodes(cubin) -> dict[str, list[str]]:
    """Instructions of each function."""
    listing = re.split(r"^\s*\.text\.(\w+):", sass.disassemble(cubin), flags=re.MULTILINE)[1:]
    line = r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)"
    return {name: re.findall(line, text, re.MULTILINE) for name, text in zip(listing[::2], listing[1::2], strict=True)}


@pytest.mark.parametrize(("unit", "width"), [(1, "U8"), (2, "U16"), (4, None), (8, "64"), (16, "128")])
def test_a_unit_is_one_load_and_one_store(opcodes, unit, width):
    for name, items in (("units", {1: 8, 2: 8, 4: 4, 8: 4, 16: 2}[unit]), ("tiles", {1: 16, 2: 16}.get(unit, 4))):
        found = opcodes[f"{name}_{unit}"]
        for access in ("LDG", "STG"):
            of_memory = [opcode.split(".") for opcode in found if opcode.startswith(access)]
            assert len(of_memory) == items
            for opcode in of_memory:
                widths = {part for part in opcode if part in ("U8", "S8", "U16", "S16", "64", "128")}
                assert widths == ({width} if width else set())
    assert any(opcode.startswith("BAR") for opcode in opcodes[f"tiles_{unit}"])


def test_nothing_is_divided(opcodes):
    assert set(opcodes) == FUNCTIONS
    for found in opcodes.values():
        assert len(found) > 20
        assert not [opcode for opcode in found if opcode.startswith(("MUFU", "CALL", "I2F"))]


def test_the_kernel_knows_the_layout_of_its_parameters():
    size = ctypes.sizeof(copy_kernel.Parameters)
    text = copy_kernel.source()
    assert f"#define SIZE_OF_MOVE {size}\n" in text
    with pytest.raises(UnsupportedError, match="the host has another layout"):
        copy_kernel._compile(text.replace(f"SIZE_OF_MOVE {size}", f"SIZE_OF_MOVE {size + 8}"), "sm_90")


def test_what_nvrtc_cannot_compile_for_is_said_in_words():
    with pytest.raises(UnsupportedError, match=r"NVRTC \d+\.\d+ cannot compile the copy kernel for sm_10; .*-U nvidia"):
        copy_kernel._compile(copy_kernel.source(), "sm_10")


# -- store --------------------------------------------------------------------------------------------------


@pytest.fixture
def compiled(monkeypatch, tmp_path):
    """A folder for stores, and what was compiled."""
    made = []
    monkeypatch.setattr(copy_kernel, "_compile", lambda text, arch: made.append(arch) or f"code for {arch}".encode())
    monkeypatch.setattr(store, "default_store", lambda: store.Store(tmp_path))
    return made


def test_code_is_compiled_once_for_each_capability_and_kept(compiled):
    for _ in range(2):  # each time with a store that remembers nothing
        assert copy_kernel.cubin((9, 0)) == b"code for sm_90"
        assert copy_kernel.cubin((12, 0)) == b"code for sm_120"
    assert compiled == ["sm_90", "sm_120"]


@pytest.mark.parametrize("change", ["source", "_nvrtc_version"])
def test_another_source_or_nvrtc_is_another_entry(compiled, monkeypatch, change):
    copy_kernel.cubin(H200)
    monkeypatch.setattr(copy_kernel, change, lambda: "another")
    copy_kernel.cubin(H200)
    copy_kernel.cubin(H200)
    assert len(compiled) == 2


def test_without_nvrtc_or_cuda_core_it_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(store, "default_store", lambda: store.Store(tmp_path))
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "cuda.core", None)
        with pytest.raises(MissingDependencyError, match="pip install cuda-core"):
            copy_kernel.cubin(H200)

    def nvrtcVersion():
        raise RuntimeError("libnvrtc.so is missing")

    monkeypatch.setitem(sys.modules, "cuda.bindings.nvrtc", SimpleNamespace(nvrtcVersion=nvrtcVersion))
    monkeypatch.setattr("cuda.bindings.nvrtc", sys.modules["cuda.bindings.nvrtc"], raising=False)
    with pytest.raises(MissingDependencyError, match=r"pip install nvidia-cuda-nvrtc.*libnvrtc\.so is missing"):
        copy_kernel.cubin(H200)


# -- loading ------------------------------------------------------------------------------------------------


class Loader:
    """The driver's side of loading. Devices 0 and 1 are alike, 2 is another."""

    def __init__(self):
        self.calls, self.current = [], 0

    def _note(self, *call):
        self.calls.append(call)
        return fakes.Status(0)

    def CUfunction(self, address):
        return ("function", address)

    def cuLibraryLoadData(self, code, *options):
        time.sleep(0.01)
        assert options == ([], [], 0, [], [], 0)
        return self._note("load", code), 1000 * len(self.calls)

    def cuLibraryGetKernel(self, library, name):
        return self._note("kernel", library, name), library + len(name)

    def cuKernelGetFunction(self, kernel):
        return self._note("now", kernel), None


@pytest.fixture
def loader(monkeypatch):
    made = Loader()
    monkeypatch.setattr(copy_kernel, "bindings", lambda: made)
    monkeypatch.setattr(copy_kernel, "current_index", lambda: made.current)
    monkeypatch.setattr(copy_kernel, "compute_capability", lambda index: [(9, 0), (9, 0), (8, 0)][index])
    monkeypatch.setattr(copy_kernel, "cubin", lambda capability: b"code for %d.%d" % capability)
    monkeypatch.setattr(copy_kernel, "_libraries", {})
    monkeypatch.setattr(copy_kernel, "_functions", {})
    return made


def test_code_is_loaded_once_and_each_function_once_a_device(loader):
    for loader.current in (0, 1, 2, 0, 1, 2):
        for function in ("units_4", "tiles_16"):
            kind, address = copy_kernel.loaded(function)
            assert (kind, address % 1000) == ("function", len(function))
    assert [call[1] for call in loader.calls if call[0] == "load"] == [b"code for 9.0", b"code for 8.0"]
    assert [call[2] for call in loader.calls if call[0] == "kernel"] == [b"units_4", b"tiles_16"] * 3
    assert [call[0] for call in loader.calls].count("now") == 6  # loaded on each device before it is launched


def test_threads_load_once(loader):
    got = []
    threads = [threading.Thread(target=lambda: got.append(copy_kernel.loaded("units_4"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(got)) == 1
    assert [call[0] for call in loader.calls].count("load") == 1


def test_a_driver_that_cannot_load_is_reported_and_asked_again(loader):
    def cuLibraryLoadData(*arguments):
        return fakes.Status(209), 0

    loader.cuLibraryLoadData = cuLibraryLoadData
    with pytest.raises(DriverError, match="cuLibraryLoadData failed"):
        copy_kernel.loaded("units_4")
    del loader.cuLibraryLoadData
    assert copy_kernel.loaded("units_4")


def test_a_forked_child_loads_for_itself(loader):
    copy_kernel.loaded("units_4")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            copy_kernel.loaded("units_4")
            code = 0 if [call[0] for call in loader.calls].count("load") == 2 else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_launch_passes_addresses_and_parameters(loader):
    seen, size = [], ctypes.sizeof(copy_kernel.Parameters)

    def cuLaunchKernel(function, *arguments):
        pointer = ctypes.cast(arguments[8], ctypes.POINTER(ctypes.c_void_p))[0]
        seen.append((function, arguments, copy_kernel.Parameters.from_buffer_copy(ctypes.string_at(pointer, size))))
        return (fakes.Status(0),)

    loader.cuLaunchKernel = cuLaunchKernel
    (step,) = plan_copy((10, 100), (-200, -2), (-100, 1), 4).steps
    for source, destination in ((2**47, 2**46), (2**46, 2**47)):
        copy_kernel.launch(step, source, destination, 77)
        function, arguments, parameters = seen.pop()
        assert function == copy_kernel.loaded("units_4")
        assert (arguments[:8], arguments[9]) == ((1, 1, 1, 256, 1, 1, 0, 77), 0)
        assert (parameters.source, parameters.destination) == (source - 4 * 1800, destination - 4 * 900)
        assert parameters.count == 1000
    assert np.array_equal(launch_of(step).parameters.extent[:2], [10, 100])
