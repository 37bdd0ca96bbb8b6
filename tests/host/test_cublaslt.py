# SPDX-License-Identifier: Apache-2.0
"""cuBLASLt's objects without a GPU: what they set and refuse, what failures say, when objects end."""

from __future__ import annotations

import ctypes
import gc
import pickle
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import pytest

from nvmath_device.errors import (
    ArgumentTypeError,
    HostLibraryError,
    InvalidArgumentError,
    MissingDependencyError,
    UnsupportedError,
)
from nvmath_device.host import cublaslt, cublaslt_algorithms, cublaslt_calls
from nvmath_device.host.cublaslt import (
    EmulationDesc,
    Handle,
    MatmulDesc,
    MatmulPreference,
    MatrixLayout,
    MatrixTransformDesc,
    PreparedMatmul,
)
from nvmath_device.host.cublaslt_algorithms import Algo
from nvmath_device.host.cublaslt_attributes import FIELDS
from nvmath_device.host.cublaslt_enums import (
    ComputeType,
    LibraryProperty,
    MatmulAlgoCapAttribute,
    MatmulAlgoConfigAttribute,
    MatmulDescAttribute,
    MatrixLayoutAttribute,
    Operation,
    Order,
    Status,
)
from nvmath_device.host.cublaslt_prototypes import OPAQUE_WORDS, PROTOTYPES, TABLE_VERSION
from nvmath_device.host.cublaslt_tiles import ClusterShape, MatmulStages, MatmulTile
from tests.host.cublaslt_objects import ADDRESS, R32F, NullHandle, desc, layout, problem

# -- setting -------------------------------------------------------------------------------------------------


def test_null_pointer_is_none_or_zero() -> None:
    with desc(BIAS_POINTER=ADDRESS) as subject:
        subject.set(MatmulDescAttribute.BIAS_POINTER, None)
        assert subject.get(MatmulDescAttribute.BIAS_POINTER) == 0


def test_setter_sets_what_set_would() -> None:
    with desc() as subject:
        put = subject.setter(MatmulDescAttribute.BIAS_POINTER)
        for value in (ADDRESS, ADDRESS + 16, 0):
            put(value)
            assert subject.get(MatmulDescAttribute.BIAS_POINTER) == value


def test_setter_checks_the_status(monkeypatch: pytest.MonkeyPatch) -> None:
    with desc() as subject:
        monkeypatch.setitem(cublaslt_calls._bound, "cublasLtMatmulDescSetAttribute", lambda *_: Status.INVALID_VALUE)
        put = subject.setter(MatmulDescAttribute.BIAS_POINTER)
        with pytest.raises(HostLibraryError, match=r"MatmulDescAttribute\.BIAS_POINTER, 64, 8\) failed: invalid value"):
            put(64)


# -- what is refused in words --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attribute", "value", "error", "words"),
    [
        (MatmulDescAttribute.FAST_ACCUM, 200, InvalidArgumentError, r"FAST_ACCUM: 200 given; allowed are -128 to 127"),
        (MatmulDescAttribute.SM_COUNT_TARGET, 2**31, InvalidArgumentError, r"SM_COUNT_TARGET: 2147483648 given"),
        (MatmulDescAttribute.BIAS_POINTER, -1, InvalidArgumentError, r"BIAS_POINTER: -1 given; allowed are 0 to"),
        (
            MatmulDescAttribute.BIAS_POINTER,
            "x",
            ArgumentTypeError,
            r"BIAS_POINTER: 'x' given; an address as an integer",
        ),
        (MatmulDescAttribute.TRANSA, None, ArgumentTypeError, r"TRANSA: None given; a number is needed"),
        (MatmulDescAttribute.TRANSA, 1.0, ArgumentTypeError, r"TRANSA: 1\.0 given; a number is needed"),
        (
            MatmulDescAttribute.EPILOGUE,
            Order.ROW,
            ArgumentTypeError,
            r"Order\.ROW given; allowed are members of Epilogue",
        ),
        (
            MatrixLayoutAttribute.ORDER,
            Order.ROW,
            ArgumentTypeError,
            r"MatrixLayoutAttribute\.ORDER given; .*MatmulDescAtt",
        ),
        (3, Operation.T, ArgumentTypeError, r"attribute: 3 given; allowed are members of MatmulDescAttribute"),
    ],
)
def test_value_that_does_not_fit(attribute: Any, value: Any, error: type[Exception], words: str) -> None:
    subject = desc()
    with pytest.raises(error, match=words):
        subject.set(attribute, value)


def test_negative_extent_is_refused_before_it_wraps() -> None:
    with pytest.raises(InvalidArgumentError, match=r"MatrixLayoutAttribute\.ROWS: -1 given"):
        MatrixLayout(R32F, -1, 4, 4)


def test_attribute_that_is_read_only() -> None:
    with pytest.raises(HostLibraryError, match=r"ID, 3, 4\) failed: invalid value \(status 7\)") as caught:
        Algo().set(MatmulAlgoConfigAttribute.ID, 3)
    assert caught.value.status == Status.INVALID_VALUE
    assert caught.value.function == "cublasLtMatmulAlgoConfigSetAttribute"


def test_capability_of_an_algorithm_that_is_none() -> None:
    for attribute in (MatmulAlgoCapAttribute.TILE_IDS, MatmulAlgoCapAttribute.POINTER_ARRAY_GROUPED_SUPPORT):
        with pytest.raises(HostLibraryError, match="invalid value"):
            Algo().capability(attribute)


def test_attribute_of_a_newer_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attribute 1000 stands for one that this cuBLASLt does not know, in a table of the next version."""
    Newer = IntEnum("Newer", {"FUTURE": 1000})  # type: ignore[misc]
    monkeypatch.setattr(MatmulDesc, "Attribute", Newer)
    monkeypatch.setitem(FIELDS, Newer, {Newer.FUTURE: FIELDS[MatmulDescAttribute][MatmulDescAttribute.TRANSA]})
    monkeypatch.setattr(cublaslt, "TABLE_VERSION", (99, 1, 0))
    monkeypatch.setattr(cublaslt_calls, "TABLE_VERSION", (99, 1, 0))
    installed = ".".join(map(str, cublaslt_calls.version()))
    subject = desc()
    assert not subject.supports(Newer.FUTURE)
    words = rf"Newer\.FUTURE needs a newer cuBLASLt: it is in 99\.1\.0, but {installed} is loaded"
    with pytest.raises(UnsupportedError, match=words):
        subject.set(Newer.FUTURE, 1)
    with pytest.raises(UnsupportedError, match=words):
        subject.get(Newer.FUTURE)


def test_function_of_a_newer_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROTOTYPES, "cublasLtNotYet", (ctypes.c_int, ()))
    monkeypatch.setattr(cublaslt_calls, "TABLE_VERSION", (99, 1, 0))
    installed = ".".join(map(str, cublaslt_calls.version()))
    assert not cublaslt_calls.supports("cublasLtNotYet")
    words = rf"cublasLtNotYet needs a newer cuBLASLt: it is in 99\.1\.0, but {installed}"
    with pytest.raises(UnsupportedError, match=words):
        cublaslt_calls.call("cublasLtNotYet")


def test_function_that_there_is_not() -> None:
    for use in (cublaslt_calls.call, cublaslt_calls.supports):
        with pytest.raises(InvalidArgumentError, match="cublasLtNoSuchThing"):
            use("cublasLtNoSuchThing")


def test_library_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    import cuda.pathfinder

    def missing(name: str) -> Any:
        raise RuntimeError(f"no {name} anywhere")

    monkeypatch.setattr(cublaslt_calls, "_library", None)
    monkeypatch.setattr(cuda.pathfinder, "load_nvidia_dynamic_lib", missing)
    with pytest.raises(
        MissingDependencyError, match=r'pip install "nvmath-device\[cu1[23]\]".*nvidia-cublas'
    ) as caught:
        cublaslt_calls.load()
    assert "no cublasLt anywhere" in str(caught.value)


# -- what needs a device -------------------------------------------------------------------------------------


def refusal(use: Callable[[], Any]) -> HostLibraryError:
    with pytest.raises(HostLibraryError) as caught:
        use()
    assert isinstance(caught.value, RuntimeError)
    assert "not initialized (status 1)" in str(caught.value)
    assert caught.value.status == Status.NOT_INITIALIZED
    return caught.value


@pytest.fixture
def no_log_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("CUBLASLT_LOG_LEVEL", "CUBLASLT_LOG_MASK", "CUBLASLT_LOG_FILE"):
        monkeypatch.delenv(variable, raising=False)


def handle_or_error() -> Handle | HostLibraryError:
    try:
        return Handle()
    except HostLibraryError as error:
        return error


def test_handle(no_log_settings: None) -> None:
    """Where there is a device there is a handle; where there is none, the error has cuBLASLt's own reason."""
    made = handle_or_error()
    if isinstance(made, Handle):
        assert made.address
        made.close()
    else:
        assert made.status == Status.NOT_INITIALIZED
        assert "Failed to initialize CUDA" in made.log
        for part in ("cublasLtCreate", "not initialized (status 1)", made.log):
            assert part in str(made)


@pytest.mark.usefixtures("no_log_settings")
class TestWithoutAHandle:
    """What a null handle gets. The log repeats the problem in words, which shows whose log it is.

    cuBLASLt refuses a null handle from 12.9 on; 12.4 crashed at it, so these are for the newest of each CUDA major.
    """

    def test_heuristics(self) -> None:
        error = refusal(lambda: cublaslt_algorithms.heuristics(*problem(), MatmulPreference(), limit=4))
        assert error.function == "cublasLtMatmulAlgoGetHeuristic"
        assert "rows=4 cols=4 ld=4" in error.log
        assert "EPILOGUE_RELU_BIAS" in error.log

    def test_heuristics_unexplained(self) -> None:
        assert refusal(lambda: cublaslt_algorithms.heuristics(*problem(), MatmulPreference(), explain=False)).log == ""

    def test_heuristics_for_a_stream(self) -> None:
        if cublaslt_calls.supports("cublasLtMatmulAlgoGetHeuristicForStream"):
            error = refusal(lambda: cublaslt_algorithms.heuristics(*problem(), MatmulPreference(), stream=0))
            assert error.function == "cublasLtMatmulAlgoGetHeuristicForStream"
        else:
            with pytest.raises(UnsupportedError, match="ForStream needs a newer cuBLASLt"):
                cublaslt_algorithms.heuristics(*problem(), MatmulPreference(), stream=0)

    def test_check(self) -> None:
        assert "operationDesc" in refusal(lambda: cublaslt_algorithms.check(*problem(), Algo())).log

    def test_ids_and_init(self) -> None:
        types = (ComputeType.COMPUTE_32F, *[R32F] * 5)
        assert "COMPUTE_32F" in refusal(lambda: cublaslt_algorithms.algo_ids(NullHandle(), *types)).log
        assert "algoId=7" in refusal(lambda: cublaslt_algorithms.init_algo(NullHandle(), *types, 7)).log

    def test_product_and_transform(self) -> None:
        prepared = PreparedMatmul(*problem(), Algo(), 0, 0)
        assert "B=0X20" in refusal(lambda: prepared(1, 0x10, 0x20, 2, 0x30, 0x40, 0)).log
        transform, matrix = MatrixTransformDesc(R32F), layout()
        refusal(
            lambda: cublaslt.matrix_transform(NullHandle(), transform, 1, 2, matrix, 3, 0, None, 4, matrix, stream=0)
        )

    def test_log_is_one_call_and_then_off(self, capfd: pytest.CaptureFixture[str]) -> None:
        """Nothing goes to the standard output, neither of the explained call nor of what comes after."""
        first = refusal(lambda: cublaslt_algorithms.check(*problem(), Algo()))
        second = refusal(lambda: cublaslt_algorithms.check(*problem(), Algo()))
        refusal(lambda: cublaslt_algorithms.heuristics(*problem(), MatmulPreference(), explain=False))
        assert first.log.count("[cublasLt") == second.log.count("[cublasLt") == 1
        assert "cublasLt" not in capfd.readouterr().out

    @pytest.mark.parametrize("variable", ["CUBLASLT_LOG_LEVEL", "CUBLASLT_LOG_MASK", "CUBLASLT_LOG_FILE"])
    def test_log_of_the_user_is_left_alone(self, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
        monkeypatch.setenv(variable, "1")
        for setter in ("cublasLtLoggerSetFile", "cublasLtLoggerSetMask"):
            monkeypatch.setitem(cublaslt_calls._bound, setter, lambda *_: pytest.fail("the log was touched"))
        assert refusal(lambda: cublaslt_algorithms.check(*problem(), Algo())).log == ""


def test_fault_on_the_device_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    launches = []

    @ctypes.CFUNCTYPE(ctypes.c_int)
    def launch() -> int:
        launches.append(1)
        return Status.EXECUTION_FAILED

    monkeypatch.setitem(cublaslt_calls._bound, "cublasLtMatmul", launch)
    with pytest.raises(HostLibraryError, match=r"execution failed \(status 13\): the function failed to launch"):
        PreparedMatmul(*problem(), Algo(), 0, 0)(1, 2, 3, 4, 5, 6, 7)
    assert len(launches) == 1


def test_error_survives_pickling() -> None:
    error = HostLibraryError("f failed", function="f", status=15, log="why")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.function, again.status, again.log) == (str(error), "f", 15, "why")
    assert str(error).count("why") == 1


# -- the library ---------------------------------------------------------------------------------------------


def test_versions_agree() -> None:
    parts = tuple(cublaslt_calls.library_property(which) for which in LibraryProperty)
    assert cublaslt_calls.version() == parts
    assert cublaslt_calls.cudart_version()[0] == parts[0]


def test_heuristics_cache_capacity() -> None:
    before = cublaslt_calls.heuristics_cache_capacity()
    try:
        cublaslt_calls.set_heuristics_cache_capacity(before + 64)
        assert cublaslt_calls.heuristics_cache_capacity() == before + 64
    finally:
        cublaslt_calls.set_heuristics_cache_capacity(before)


@pytest.mark.parametrize("status", list(Status))
def test_status_in_words(status: Status) -> None:
    words = cublaslt_calls.status_words(status)
    assert words.startswith(f"{status.name.replace('_', ' ').lower()} (status {int(status)}): ")
    assert len(words.partition("): ")[2]) > 5


def test_initialising_memory_of_the_caller() -> None:
    if cublaslt_calls.version() != TABLE_VERSION:
        return  # opaque structures are as large as in the version of the table in no other
    cases = {
        "MatrixLayout": (int(R32F), 4, 5, 4),
        "MatmulDesc": (ComputeType.COMPUTE_32F, R32F),
        "MatrixTransformDesc": (R32F,),
        "MatmulPreference": (),
        "EmulationDesc": (),
    }
    for name, args in cases.items():
        words = OPAQUE_WORDS[f"cublasLt{name}Opaque_t"]
        memory = (ctypes.c_uint64 * (words + 1))(*[0xAB] * (words + 1))
        cublaslt_calls.call(f"cublasLt{name}Init_internal", memory, 8 * words, *args)
        assert memory[words] == 0xAB, "nothing beyond the structure is written"
    rows = ctypes.c_uint64()
    memory = (ctypes.c_uint64 * OPAQUE_WORDS["cublasLtMatrixLayoutOpaque_t"])()
    cublaslt_calls.call("cublasLtMatrixLayoutInit_internal", memory, ctypes.sizeof(memory), R32F, 4, 5, 6)
    get = ctypes.byref(rows), 8, ctypes.byref(ctypes.c_size_t())
    cublaslt_calls.call("cublasLtMatrixLayoutGetAttribute", memory, MatrixLayoutAttribute.COLS, *get)
    assert rows.value == 5


def test_ids_say_their_shapes() -> None:
    assert MatmulTile.TILE_128x64.shape == (128, 64)
    assert MatmulStages.STAGES_64x6.shape == (64, 6)
    assert MatmulStages.STAGES_768xAUTO.shape == (768, None)
    assert ClusterShape.SHAPE_2x4x1.shape == (2, 4, 1)
    assert [MatmulTile(0).shape, MatmulStages(0).shape, ClusterShape(0).shape] == [None] * 3


# -- when objects end ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [desc, layout, MatmulPreference, lambda: MatrixTransformDesc(R32F), EmulationDesc])
def test_objects_are_destroyed_once(make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    if make is EmulationDesc and not cublaslt_calls.supports("cublasLtEmulationDescCreate"):
        return
    destroyed: list[int] = []
    name = make()._destroy  # bound by now
    real = cublaslt_calls.bind(name)

    def destroy(address: int) -> int:
        destroyed.append(address)
        return real(address)

    monkeypatch.setitem(cublaslt_calls._bound, name, destroy)
    with make() as subject:
        address = subject.address
    subject.close()
    assert destroyed == [address]
    with pytest.raises(InvalidArgumentError, match=r"used after close\(\)"):
        _ = subject.address
    with pytest.raises(InvalidArgumentError, match=r"used after close\(\)"):
        subject.get(next(iter(subject.Attribute)))
    del subject
    forgotten = make()
    address = forgotten.address
    del forgotten
    gc.collect()
    assert destroyed[1:] == [address]


def test_constructor_that_fails_destroys_what_it_made(monkeypatch: pytest.MonkeyPatch) -> None:
    destroyed = []
    monkeypatch.setitem(cublaslt_calls._bound, "cublasLtMatmulDescDestroy", lambda a: destroyed.append(a) or 0)
    with pytest.raises(InvalidArgumentError):
        desc(FAST_ACCUM=1000)
    assert len(destroyed) == 1


def test_algorithm_as_bytes() -> None:
    algo = Algo()
    algo.set(MatmulAlgoConfigAttribute.SPLITK_NUM, 5)
    again = Algo(bytes(algo))
    assert len(bytes(algo)) == 64
    assert again == algo
    assert again.get(MatmulAlgoConfigAttribute.SPLITK_NUM) == 5
    again.set(MatmulAlgoConfigAttribute.SPLITK_NUM, 6)
    assert algo.get(MatmulAlgoConfigAttribute.SPLITK_NUM) == 5
    with pytest.raises(InvalidArgumentError, match="63 bytes given; an algorithm has 64"):
        Algo(bytes(63))
