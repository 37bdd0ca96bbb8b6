# SPDX-License-Identifier: Apache-2.0
"""Algorithms: what they tell, what they may be set to, and that a refused change changes nothing."""

from __future__ import annotations

import io
import json
import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nvmath_device.errors import ArgumentTypeError, HostLibraryError, InvalidArgumentError
from nvmath_device.host.algorithms import Algorithm, AlgorithmCapabilities, adopt, heuristic_result_dtype
from nvmath_device.host.cublaslt_algorithms import Algo, HeuristicResult
from nvmath_device.host.cublaslt_enums import (
    MatmulAlgoCapAttribute,
    MatmulAlgoConfigAttribute,
    MatmulInnerShape,
    Operation,
    ReductionScheme,
    Status,
)
from nvmath_device.host.cublaslt_tiles import ClusterShape, MatmulStages, MatmulTile
from nvmath_device.host.lt_plan import alignment_in_calls
from tests.host.algorithm_fakes import FakePlan, Lt, algo, can, result


@pytest.fixture
def capable(monkeypatch: pytest.MonkeyPatch) -> None:
    can(monkeypatch)


def planned(plan: FakePlan | None = None, **settings: int) -> Algorithm:
    return Algorithm(result(7, **settings), plan or FakePlan())


def config(algorithm: Algorithm, name: str) -> Any:
    """What cuBLASLt itself reads from the 64 bytes."""
    return Algo(bytes(algorithm.algo)).get(MatmulAlgoConfigAttribute[name])


# -- reading -------------------------------------------------------------------------------------------------


def test_what_it_tells() -> None:
    subject = planned(
        TILE_ID=int(MatmulTile.TILE_128x64), STAGES_ID=int(MatmulStages.STAGES_32x3), REDUCTION_SCHEME=2,
        CTA_SWIZZLING=1, CUSTOM_OPTION=3, INNER_SHAPE_ID=4, CLUSTER_SHAPE_ID=3, SPLITK_NUM=5,
    )  # fmt: skip
    assert (subject.algorithm_id, subject.workspace_bytes, subject.waves, subject.revision) == (7, 1024, 0.5, 0)
    assert subject.tile is MatmulTile.TILE_128x64
    assert subject.tile.shape == (128, 64)
    assert subject.stages is MatmulStages.STAGES_32x3
    assert subject.split_k == 5
    assert subject.reduction_scheme is ReductionScheme.COMPUTE_TYPE
    assert (subject.cta_swizzling, subject.custom_option) == (1, 3)
    assert subject.inner_shape is MatmulInnerShape.MMA16816
    assert subject.cluster_shape is ClusterShape.SHAPE_2x1x1
    for words in ("algorithm_id=7", "tile=128x64", "stages=32x3", "split_k=5", "reduction_scheme=COMPUTE_TYPE",
                  "cluster_shape=2x1x1", "inner_shape=MMA16816", "workspace_bytes=1024", "waves=0.50"):  # fmt: skip
        assert words in repr(subject)


def test_ids_of_a_newer_version_stay_numbers() -> None:
    subject = planned(TILE_ID=9999, CLUSTER_SHAPE_ID=999)
    assert (subject.tile, subject.cluster_shape) == (9999, 999)
    assert "tile=9999" in repr(subject)


@pytest.mark.parametrize("name", ["algorithm_id", "workspace_bytes", "waves", "algo"])
def test_what_is_read_only(name: str) -> None:
    with pytest.raises(AttributeError):
        setattr(planned(), name, 1)


def test_capabilities(monkeypatch: pytest.MonkeyPatch) -> None:
    can(monkeypatch, EPILOGUE_MASK=0x24, LD_NEGATIVE=None, MIN_ALIGNMENT_C_BYTES=16)
    found = planned().capabilities
    assert found.tile_ids == (MatmulTile.TILE_64x64, MatmulTile.TILE_128x64, 9999)
    assert [type(tile) for tile in found.tile_ids or ()] == [MatmulTile, MatmulTile, int]
    assert found.stages_ids == (MatmulStages.STAGES_32x3, MatmulStages.STAGES_64xAUTO)
    assert found.splitk_support is True
    assert found.uplo_support is False
    assert found.epilogue_mask == 0x24
    assert found.ld_negative is None
    assert found.min_alignment_c_bytes == 16
    with pytest.raises(AttributeError):
        found.custom_option_max = 5  # type: ignore[misc]


def test_there_is_a_field_for_every_capability() -> None:
    fields = set(AlgorithmCapabilities.__dataclass_fields__)
    assert fields == {attribute.name.lower() for attribute in MatmulAlgoCapAttribute}


def test_bytes_that_are_no_algorithm_have_no_capabilities() -> None:
    with pytest.raises(HostLibraryError, match="invalid value"):
        _ = planned().capabilities


# -- changing ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "attribute", "value", "stored"),
    [
        ("tile", "TILE_ID", MatmulTile.TILE_128x64, MatmulTile.TILE_128x64),
        ("tile", "TILE_ID", "TILE_128x64", MatmulTile.TILE_128x64),
        ("tile", "TILE_ID", "128X64", MatmulTile.TILE_128x64),
        ("tile", "TILE_ID", (128, 64), MatmulTile.TILE_128x64),
        ("tile", "TILE_ID", int(MatmulTile.TILE_128x64), MatmulTile.TILE_128x64),
        ("tile", "TILE_ID", 9999, 9999),
        ("stages", "STAGES_ID", (64, "AUTO"), MatmulStages.STAGES_64xAUTO),
        ("stages", "STAGES_ID", (64, None), MatmulStages.STAGES_64xAUTO),
        ("split_k", "SPLITK_NUM", 4, 4),
        ("split_k", "SPLITK_NUM", np.int64(4), 4),
        ("reduction_scheme", "REDUCTION_SCHEME", "output_type", ReductionScheme.OUTPUT_TYPE),
        ("reduction_scheme", "REDUCTION_SCHEME", 2, ReductionScheme.COMPUTE_TYPE),
        ("cta_swizzling", "CTA_SWIZZLING", True, 1),
        ("custom_option", "CUSTOM_OPTION", 3, 3),
        ("inner_shape", "INNER_SHAPE_ID", "MMA1688", MatmulInnerShape.MMA1688),
        ("cluster_shape", "CLUSTER_SHAPE_ID", (2, 1, 1), ClusterShape.SHAPE_2x1x1),
    ],
)
def test_setting(capable: None, name: str, attribute: str, value: Any, stored: int) -> None:
    plan = FakePlan(lambda algo: 8192)
    subject = planned(plan)
    setattr(subject, name, value)
    assert getattr(subject, name) == stored
    assert config(subject, attribute) == stored
    assert plan.checked == [bytes(subject.algo)]
    assert (subject.workspace_bytes, subject.waves, subject.revision) == (8192, 2.0, 1)


def test_setting_what_is_there_changes_nothing(capable: None) -> None:
    plan = FakePlan()
    subject = planned(plan, TILE_ID=int(MatmulTile.TILE_256x128))  # not among the capabilities
    subject.tile = (256, 128)
    subject.configure(split_k=1, reduction_scheme="NONE")
    assert (plan.checked, subject.revision, subject.workspace_bytes) == ([], 0, 1024)


@pytest.mark.parametrize(
    ("changes", "name", "value", "words"),
    [
        ({}, "tile", (32, 32), r"tile: 32x32 is not possible for algorithm 7; .* allow 64x64, 128x64, 9999$"),
        ({"TILE_IDS": ()}, "tile", (64, 64), r"tile: 64x64 .* allow UNDEFINED$"),
        ({}, "stages", "16x2", r"stages: 16x2 .* allow 32x3, 64xAUTO$"),
        ({}, "split_k", 0, r"split_k: 0 .* allow 1 to 2147483647$"),
        ({"SPLITK_SUPPORT": 0}, "split_k", 2, r"split_k: 2 .* allow only 1$"),
        ({}, "reduction_scheme", "INPLACE", r"reduction_scheme: INPLACE .* allow NONE, COMPUTE_TYPE, OUTPUT_TYPE$"),
        ({}, "reduction_scheme", "MASK", r"reduction_scheme: .* allow NONE, COMPUTE_TYPE, OUTPUT_TYPE$"),
        ({"CTA_SWIZZLING_SUPPORT": 0}, "cta_swizzling", 1, r"cta_swizzling: 1 .* allow only 0$"),
        ({}, "custom_option", 4, r"custom_option: 4 .* allow 0 to 3$"),
        ({}, "custom_option", -1, r"custom_option: -1 .* allow 0 to 3$"),
        ({}, "tile", "128x65", r"tile: '128x65' is not a member of MatmulTile$"),
        ({}, "cluster_shape", (17, 1, 1), r"cluster_shape: \(17, 1, 1\) is not a member of ClusterShape$"),
        ({}, "cluster_shape", 1 << 16, r"CLUSTER_SHAPE_ID: 65536 given; allowed are 0 to 65535"),
        ({}, "tyle", 1, r"tyle: an algorithm has no such attribute; it has tile, stages, split_k"),
    ],
)
def test_values_that_are_refused(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], name: str, value: Any, words: str
) -> None:
    can(monkeypatch, **changes)
    plan = FakePlan()
    subject = planned(plan)
    before = bytes(subject.algo)
    with pytest.raises(InvalidArgumentError, match=words):
        subject.configure(**{name: value})
    assert (bytes(subject.algo), subject.revision, plan.checked) == (before, 0, [])


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("split_k", 2.0, r"split_k: 2\.0 is a float; give an integer"),
        ("split_k", None, r"split_k: None is a NoneType; give an integer"),
        ("tile", 1.5, r"tile: 1\.5 is a float; give a member of MatmulTile, its name or its number"),
        ("tile", ClusterShape.SHAPE_2x1x1, r"is a ClusterShape; give a member of MatmulTile"),
        ("inner_shape", Operation.T, r"is a Operation; give a member of MatmulInnerShape"),
    ],
)
def test_values_of_the_wrong_type(capable: None, name: str, value: Any, words: str) -> None:
    with pytest.raises(ArgumentTypeError, match=words):
        setattr(planned(), name, value)


def test_capability_that_an_old_cublaslt_lacks_refuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    can(monkeypatch, TILE_IDS=None, CUSTOM_OPTION_MAX=None, SPLITK_SUPPORT=None)
    subject = planned()
    subject.configure(tile=(8, 8), custom_option=1000, split_k=3)
    assert (subject.tile.shape, subject.custom_option, subject.split_k) == ((8, 8), 1000, 3)


def test_change_that_cublaslt_refuses(capable: None) -> None:
    subject = planned(FakePlan(lambda algo: None), TILE_ID=int(MatmulTile.TILE_64x64))
    before = bytes(subject.algo)
    with pytest.raises(InvalidArgumentError, match=r"^tile: 128x64 is refused by cuBLASLt") as caught:
        subject.tile = (128, 64)
    assert "tile may be 64x64, 128x64, 9999" in str(caught.value)
    assert "tile is too large" in str(caught.value), "cuBLASLt's own log"
    assert isinstance(caught.value.__cause__, HostLibraryError)
    assert (bytes(subject.algo), subject.revision, subject.workspace_bytes) == (before, 0, 1024)


def test_state_of_a_check_that_went_well(capable: None) -> None:
    subject = planned(FakePlan(state=Status.NOT_SUPPORTED))
    with pytest.raises(InvalidArgumentError, match="state 15"):
        subject.split_k = 2


def test_attributes_that_need_each_other(capable: None) -> None:
    """As cuBLASLt sees it: a split K needs a scheme, and a scheme a split."""

    def needs(algo: Algo) -> int | None:
        split = algo.get(MatmulAlgoConfigAttribute.SPLITK_NUM) > 1
        return 4096 if split == bool(algo.get(MatmulAlgoConfigAttribute.REDUCTION_SCHEME)) else None

    plan = FakePlan(needs)
    subject = planned(plan)
    for name, value in (("split_k", 4), ("reduction_scheme", 2)):
        with pytest.raises(InvalidArgumentError, match=r"configure\(split_k=\.\.\., reduction_scheme=\.\.\.\)"):
            setattr(subject, name, value)
    plan.checked.clear()
    subject.configure(split_k=4, reduction_scheme=ReductionScheme.COMPUTE_TYPE)
    assert (subject.split_k, subject.reduction_scheme, subject.revision) == (4, ReductionScheme.COMPUTE_TYPE, 1)
    assert len(plan.checked) == 1


def test_one_bad_value_among_several_changes_nothing(capable: None) -> None:
    subject = planned()
    before = bytes(subject.algo)
    with pytest.raises(InvalidArgumentError, match="custom_option: 9"):
        subject.configure(split_k=2, custom_option=9)
    assert bytes(subject.algo) == before


def test_workspace_beyond_the_limit(capable: None) -> None:
    subject = planned(FakePlan(lambda algo: 5000, workspace_limit=4999))
    with pytest.raises(InvalidArgumentError, match=r"split_k: 2 needs a workspace of 5000 bytes.*allows 4999"):
        subject.split_k = 2
    assert subject.split_k == 1
    exact = planned(FakePlan(lambda algo: 5000, workspace_limit=5000))
    exact.split_k = 2
    assert exact.workspace_bytes == 5000


def test_algo_handed_out_before_a_change_stays_as_it_was(capable: None) -> None:
    subject = planned()
    earlier = subject.algo
    subject.split_k = 3
    assert earlier.get(MatmulAlgoConfigAttribute.SPLITK_NUM) == 1


def test_change_without_a_plan(capable: None) -> None:
    subject = Algorithm(result(7))
    subject.tile = (128, 64)
    assert (subject.tile.shape, subject.workspace_bytes, subject.revision) == ((128, 64), 1024, 1)
    with pytest.raises(InvalidArgumentError, match="capabilities allow"):
        subject.tile = (8, 8)


# -- keeping -------------------------------------------------------------------------------------------------

PEER_DTYPE = np.dtype(
    {
        "names": ["algo", "workspace_size", "state", "waves_count", "reserved"],
        "formats": [np.dtype([("data_", "<u8", 8)]), "<u8", "<i4", "<f4", ("<i4", 4)],
        "offsets": [0, 64, 72, 76, 80],
        "itemsize": 96,
    }
)
"""As nvmath-python 1.0.0 prints it."""


def test_numpy_array_has_the_layout_of_the_c_structure() -> None:
    assert heuristic_result_dtype.itemsize == 96
    assert heuristic_result_dtype.newbyteorder("<") == PEER_DTYPE
    subject = planned(SPLITK_NUM=3)
    data = subject.as_numpy().tobytes()
    assert data[:64] == bytes(subject.algo)
    assert int.from_bytes(data[64:72], "little") == 1024


def test_through_numpy_and_a_file() -> None:
    subject = planned(SPLITK_NUM=3, TILE_ID=5)
    file = io.BytesIO()
    np.save(file, subject.as_numpy())
    file.seek(0)
    back = Algorithm.from_numpy(np.load(file))
    assert (bytes(back.algo), back.workspace_bytes, back.waves) == (bytes(subject.algo), 1024, 0.5)
    assert back.plan is None
    assert bytes(Algorithm.from_numpy(subject.as_numpy()[0]).algo) == bytes(subject.algo), "an element of an array"


@pytest.mark.parametrize(
    "array", [np.zeros(96, np.uint8), np.zeros(2, heuristic_result_dtype), np.zeros(0, heuristic_result_dtype)]
)
def test_arrays_that_are_no_algorithm(array: np.ndarray) -> None:
    with pytest.raises(InvalidArgumentError, match=r"array: \d+ elements of .*as_numpy"):
        Algorithm.from_numpy(array)


def test_pickled_without_its_plan() -> None:
    subject = planned(SPLITK_NUM=3)
    back = pickle.loads(pickle.dumps(subject))
    assert (bytes(back.algo), back.workspace_bytes, back.waves, back.plan) == (bytes(subject.algo), 1024, 0.5, None)


def test_as_json() -> None:
    subject = planned(TILE_ID=int(MatmulTile.TILE_128x64), SPLITK_NUM=3)
    values = json.loads(json.dumps(subject.as_dict()))
    assert (values["algorithm_id"], values["tile"], values["split_k"]) == (7, "128x64", 3)
    assert bytes(Algorithm.from_dict(values).algo) == bytes(subject.algo)


@pytest.mark.parametrize(
    "change",
    [{"algo": "00"}, {"algo": "xy"}, {"algo": None}, {"workspace_bytes": "1"}, {"waves": None}, {"algo": "00" * 65}],
)
def test_json_that_is_no_algorithm(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match="not a stored algorithm"):
        Algorithm.from_dict(planned().as_dict() | change)
    with pytest.raises(InvalidArgumentError, match="KeyError"):
        Algorithm.from_dict({})


# -- from elsewhere ------------------------------------------------------------------------------------------


def test_adopted_by_another_plan(capable: None) -> None:
    first, second = FakePlan(), FakePlan(lambda algo: 99)
    subject = planned(first, SPLITK_NUM=3)
    for given in (subject, bytes(subject.algo), Algorithm.from_numpy(subject.as_numpy())):
        adopted = adopt(given, second)
        assert adopted is not given
        assert (bytes(adopted.algo), adopted.plan, adopted.workspace_bytes) == (bytes(subject.algo), second, 99)
    adopted.split_k = 2
    assert subject.split_k == 3, "the original is not edited along"


@pytest.mark.parametrize("given", [None, 7, "00" * 64, HeuristicResult(algo(), 0, 0, 0.0)])
def test_what_cannot_be_adopted(given: Any) -> None:
    with pytest.raises(ArgumentTypeError, match=r"algorithms: .* give Algorithm objects"):
        adopt(given, FakePlan())


def test_adoption_that_cublaslt_refuses(capable: None) -> None:
    for plan, words in ((FakePlan(lambda algo: None), "tile is too large"), (FakePlan(state=15), "state 15")):
        with pytest.raises(InvalidArgumentError, match=r"algorithms: .* cannot compute this product here") as caught:
            adopt(planned(), plan)
        assert words in str(caught.value)
        assert isinstance(caught.value.__cause__, HostLibraryError)
    with pytest.raises(InvalidArgumentError, match="63 bytes"):
        adopt(bytes(63), FakePlan())


def test_adoption_beyond_the_workspace_limit(capable: None) -> None:
    with pytest.raises(InvalidArgumentError, match="workspace of 4096 bytes, and memory_limit allows 4095"):
        adopt(planned(), FakePlan(workspace_limit=4095))


@pytest.mark.parametrize(("swapped", "slot"), [(False, "a"), (True, "b")])
def test_adoption_where_addresses_are_too_odd(monkeypatch: pytest.MonkeyPatch, swapped: bool, slot: str) -> None:
    """cuBLASLt's A is the user's B where the product is computed transposed."""
    can(monkeypatch, MIN_ALIGNMENT_A_BYTES=16)
    lt = Lt(swapped=swapped)
    odd = {"a": 16, "b": 16, "d": 16, slot: 8}
    with pytest.raises(InvalidArgumentError, match=rf"addresses of {slot} that are multiples of 16 .* multiples of 8"):
        adopt(planned(), FakePlan(lt=lt, alignments=odd))
    adopt(planned(), FakePlan(lt=lt, alignments={**odd, slot: 16}))
    copied = Lt(swapped=swapped, moves=(SimpleNamespace(slot=slot),))
    adopt(planned(), FakePlan(lt=copied, alignments=odd))


def test_alignment_counts_every_call() -> None:
    calls = ((0,) * 6, (24, 0, 0, 512, 0, 0))
    plan = FakePlan(lt=Lt(calls=calls), alignments={"a": 64, "b": 64})
    assert [alignment_in_calls(plan.lt, slot, plan.alignments) for slot in ("a", "b", "d")] == [8, 64, 256]
