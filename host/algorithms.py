# SPDX-License-Identifier: Apache-2.0
"""Algorithms of cuBLASLt as a user meets them: what they are, what they could be, and changing them with a check.

Everything here is in cuBLASLt's own frame: for a row-major result it computes the transpose, so that the rows of a
tile are columns of the result, and its A is the user's B.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum, IntFlag
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np

from nvmath_device.errors import ArgumentTypeError, HostLibraryError, InvalidArgumentError, UnsupportedError
from nvmath_device.host.cublaslt_algorithms import Algo, HeuristicResult
from nvmath_device.host.cublaslt_enums import (
    MatmulAlgoCapAttribute,
    MatmulAlgoConfigAttribute,
    MatmulInnerShape,
    NumericalImplFlags,
    PointerModeMask,
    ReductionScheme,
    Status,
)
from nvmath_device.host.cublaslt_tiles import ClusterShape, MatmulStages, MatmulTile
from nvmath_device.host.lt_plan import LtPlan, alignment_in_calls

heuristic_result_dtype = np.dtype(
    [
        ("algo", [("data_", "<u8", (8,))]),
        ("workspace_size", "<u8"),
        ("state", "<i4"),
        ("waves_count", "<f4"),
        ("reserved", "<i4", (4,)),
    ]
)
"""Element type of :meth:`Algorithm.as_numpy`: ``cublasLtMatmulHeuristicResult_t``, with nvmath-python's field names."""


class Plan(Protocol):
    """What an algorithm asks of the plan it belongs to.

    Attributes:
        lt: what cuBLASLt is told.
        alignments: what the addresses of the user's arrays are multiples of, in bytes, by operand.
        workspace_limit: most workspace, in bytes.
    """

    lt: LtPlan
    alignments: Mapping[str, int]
    workspace_limit: int

    def check(self, algo: Algo) -> HeuristicResult:
        """What the algorithm needs for the planned product; raises HostLibraryError where it cannot compute it."""


# -- capabilities -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AlgorithmCapabilities:
    """What an algorithm can be configured to, as cuBLASLt tells (``cublasLtMatmulAlgoCapAttributes_t``).

    ``None`` where the loaded cuBLASLt is too old to tell. Tiles and stages that are newer than
    :mod:`~nvmath_device.host.cublaslt_tiles` are plain numbers.

    Attributes:
        splitk_support: ``split_k`` may be more than 1.
        reduction_scheme_mask: what ``reduction_scheme`` may be where K is split.
        cta_swizzling_support: ``cta_swizzling`` may be 1.
        strided_batch_support, pointer_array_batch_support, pointer_array_grouped_support: kinds of batches.
        out_of_place_result_support: D may be another matrix than C.
        uplo_support: only a triangle of D may be computed.
        tile_ids, stages_ids: what ``tile`` and ``stages`` may be; empty: only undefined.
        custom_option_max: the largest ``custom_option``.
        custom_memory_order: matrices may be in an order of cuBLASLt's own.
        pointer_mode_mask: where alpha and beta may be.
        epilogue_mask: bits of epilogs.
        ld_negative: leading dimensions may be negative.
        numerical_impl_flags: what it computes with.
        min_alignment_a_bytes, min_alignment_b_bytes, min_alignment_c_bytes, min_alignment_d_bytes: what addresses
            and leading dimensions must be multiples of, in bytes.
        floating_point_emulation_support: it emulates float32 or float64 by narrower types.
    """

    splitk_support: bool | None
    reduction_scheme_mask: ReductionScheme | None
    cta_swizzling_support: bool | None
    strided_batch_support: bool | None
    out_of_place_result_support: bool | None
    uplo_support: bool | None
    tile_ids: tuple[IntEnum | int, ...] | None
    custom_option_max: int | None
    custom_memory_order: bool | None
    pointer_mode_mask: PointerModeMask | None
    epilogue_mask: int | None
    stages_ids: tuple[IntEnum | int, ...] | None
    ld_negative: bool | None
    numerical_impl_flags: NumericalImplFlags | None
    min_alignment_a_bytes: int | None
    min_alignment_b_bytes: int | None
    min_alignment_c_bytes: int | None
    min_alignment_d_bytes: int | None
    pointer_array_batch_support: bool | None
    floating_point_emulation_support: bool | None
    pointer_array_grouped_support: bool | None

    @classmethod
    def of(cls, algo: Algo) -> AlgorithmCapabilities:
        """Ask cuBLASLt. Raises HostLibraryError where the bytes are not one of its algorithms."""
        return cls(**{c.name.lower(): _capability(algo, c) for c in MatmulAlgoCapAttribute})


_YES_OR_NO = ("SUPPORT", "CUSTOM_MEMORY_ORDER", "LD_NEGATIVE")  # how the names of such capabilities end


def _capability(algo: Algo, attribute: MatmulAlgoCapAttribute) -> Any:
    try:
        value = algo.capability(attribute)
    except UnsupportedError:
        return None
    if attribute is MatmulAlgoCapAttribute.TILE_IDS:
        return tuple(_named(number, MatmulTile) for number in value)
    if attribute is MatmulAlgoCapAttribute.STAGES_IDS:
        return tuple(_named(number, MatmulStages) for number in value)
    return bool(value) if attribute.name.endswith(_YES_OR_NO) else value


def _named(number: int, cls: Any) -> Any:
    """The member of that number; the number where a newer cuBLASLt has more than the tables."""
    try:
        return cls(number)
    except ValueError:
        return number


# -- settings -----------------------------------------------------------------------------------------------

Allowed = Collection[int] | None  # None: this cuBLASLt does not tell


class _Setting(NamedTuple):
    """One attribute of a configuration.

    Attributes:
        attribute: cuBLASLt's name for it.
        members: enumeration of its values, ``None`` for a count.
        allowed: values that capabilities allow; ``None``: none of them is about it.
    """

    attribute: MatmulAlgoConfigAttribute
    members: Any
    allowed: Callable[[AlgorithmCapabilities], Allowed] | None


def _ids(listed: tuple[int, ...] | None, cls: Any) -> Allowed:
    return None if listed is None else listed or (cls(0),)


def _count(first: int, last: int, supported: bool | None) -> Allowed:
    return None if supported is None else range(first, last + 1 if supported else first + 1)


def _schemes(mask: ReductionScheme | None) -> Allowed:
    return None if mask is None else (ReductionScheme.NONE, *(scheme for scheme in ReductionScheme if scheme & mask))


_A = MatmulAlgoConfigAttribute
_SETTINGS: dict[str, _Setting] = {
    "tile": _Setting(_A.TILE_ID, MatmulTile, lambda can: _ids(can.tile_ids, MatmulTile)),
    "stages": _Setting(_A.STAGES_ID, MatmulStages, lambda can: _ids(can.stages_ids, MatmulStages)),
    "split_k": _Setting(_A.SPLITK_NUM, None, lambda can: _count(1, 2**31 - 1, can.splitk_support)),
    "reduction_scheme": _Setting(
        _A.REDUCTION_SCHEME, ReductionScheme, lambda can: _schemes(can.reduction_scheme_mask)
    ),
    "cta_swizzling": _Setting(_A.CTA_SWIZZLING, None, lambda can: _count(0, 1, can.cta_swizzling_support)),
    "custom_option": _Setting(
        _A.CUSTOM_OPTION, None,
        lambda can: None if can.custom_option_max is None else range(can.custom_option_max + 1),
    ),
    "inner_shape": _Setting(_A.INNER_SHAPE_ID, MatmulInnerShape, None),
    "cluster_shape": _Setting(_A.CLUSTER_SHAPE_ID, ClusterShape, None),
}  # fmt: skip


def _read(value: Any, name: str, cls: Any) -> int:
    """A value as given by a user: a member, its name with or without the prefix, its shape as a tuple, or a number."""
    if cls is not None:
        found: Any = value
        if isinstance(value, str):
            names = {form.lower(): m for n, m in cls.__members__.items() for form in (n, _short(m))}
            found = names.get(value.lower())
        elif isinstance(value, tuple) and hasattr(cls, "shape"):
            shape = tuple(None if extent == "AUTO" else extent for extent in value)
            found = next((m for m in cls if m.shape == shape), None)
        elif isinstance(value, Enum) and not isinstance(value, cls):
            raise ArgumentTypeError(f"{name}: {value!r} is a {type(value).__name__}; give a member of {cls.__name__}")
        if found is None:
            raise InvalidArgumentError(f"{name}: {value!r} is not a member of {cls.__name__}")
        value = found
    try:
        number = operator.index(value)
    except TypeError:
        wanted = "an integer" if cls is None else f"a member of {cls.__name__}, its name or its number"
        raise ArgumentTypeError(f"{name}: {value!r} is a {type(value).__name__}; give {wanted}") from None
    return number if cls is None else _named(number, cls)


def _short(value: Any) -> str:
    """A value as a person writes it: ``128x64``, ``COMPUTE_TYPE``, ``2``."""
    if not isinstance(value, IntEnum | IntFlag):
        return str(value)
    name = value.name or str(int(value))  # a sum of flags has no name
    return name.partition("_")[2] if hasattr(value, "shape") else name


def _words(allowed: Collection[int]) -> str:
    if isinstance(allowed, range):
        return f"only {allowed[0]}" if len(allowed) == 1 else f"{allowed[0]} to {allowed[-1]}"
    return ", ".join(map(_short, allowed))


# -- the algorithm ------------------------------------------------------------------------------------------


def _property(name: str, doc: str) -> Any:
    def get(self: Algorithm) -> Any:
        value = self.algo.get(_SETTINGS[name].attribute)
        members = _SETTINGS[name].members
        return value if members is None or isinstance(value, Enum) else _named(value, members)

    return property(get, lambda self, value: self.configure(**{name: value}), doc=doc)


class Algorithm:
    """A way in which cuBLASLt computes one planned product.

    Attributes may be set. Each time cuBLASLt checks whether the algorithm still computes the product; where it does
    not, InvalidArgumentError says so and the algorithm stays as it was. Attributes that only work together are set
    together, by :meth:`configure`. An algorithm that belongs to no plan (:meth:`from_numpy`) is compared with its
    capabilities only, and checked when a product is planned with it.

    Not guaranteed: that a setting is fast; that an edited algorithm keeps to the preferences of its plan, nor to
    ``deterministic``: these bind what heuristics propose. Not to be edited by two threads at the same time. Calls that
    were prepared earlier keep the configuration they were prepared with; ``revision`` tells that there is a newer one.

    Attributes:
        plan: what it belongs to, or ``None``.
        revision: number of changes since it was made.
    """

    def __init__(self, result: HeuristicResult, plan: Plan | None = None) -> None:
        self._result = result
        self.plan = plan
        self.revision = 0

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled without its plan."""
        return Algorithm.from_dict, (self.as_dict(),)

    # -- reading -------------------------------------------------------------------------------------------

    @property
    def algo(self) -> Algo:
        """The algorithm for cuBLASLt. Another object after each change; not to be edited itself."""
        return self._result.algo

    @property
    def algorithm_id(self) -> int:
        """cuBLASLt's number of the algorithm; several with one number differ in their configuration."""
        return int(self.algo.get(MatmulAlgoConfigAttribute.ID))

    @cached_property
    def capabilities(self) -> AlgorithmCapabilities:
        """What the attributes may be set to. Raises HostLibraryError where cuBLASLt does not know the algorithm."""
        return AlgorithmCapabilities.of(self.algo)

    @property
    def workspace_bytes(self) -> int:
        """Workspace that it needs, in bytes. Of an edited algorithm without a plan: what it needed before."""
        return self._result.workspace_bytes

    @property
    def waves(self) -> float:
        """How many times its thread blocks fill the device; 1.0 is one full wave."""
        return self._result.waves

    def _settings(self) -> Iterator[tuple[str, Any]]:
        return ((name, getattr(self, name)) for name in _SETTINGS)

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={_short(value)}" for name, value in self._settings())
        needs = f"workspace_bytes={self.workspace_bytes}, waves={self.waves:.2f}"
        return f"Algorithm(algorithm_id={self.algorithm_id}, {settings}, {needs})"

    # -- changing ------------------------------------------------------------------------------------------

    tile = _property("tile", "Tile of D that a thread block computes: a ``MatmulTile``, or its shape (rows, columns).")
    stages = _property("stages", "Steps along K that are loaded ahead: a ``MatmulStages``, or (extent, count).")
    split_k = _property("split_k", "Parts that K is split into and that are computed at the same time.")
    reduction_scheme = _property("reduction_scheme", "How the parts are added up: one ``ReductionScheme``.")
    cta_swizzling = _property("cta_swizzling", "0 or 1: another order of thread blocks over D.")
    custom_option = _property("custom_option", "A number that means something to this algorithm only.")
    inner_shape = _property("inner_shape", "Shape of the tensor core instruction: a ``MatmulInnerShape``.")
    cluster_shape = _property("cluster_shape", "Thread blocks of a cluster: a ``ClusterShape``, or (x, y, z).")

    def configure(self, **settings: Any) -> None:
        """Set several attributes with one check, as ``configure(split_k=4, reduction_scheme="COMPUTE_TYPE")``.

        Values may be members of the enumeration, their names with or without the prefix, shapes, or numbers.

        Raises:
            InvalidArgumentError: no such attribute; a value that the capabilities do not have; or cuBLASLt says that
                the product cannot be computed so. The algorithm is as before.
            ArgumentTypeError: a value of the wrong type.
        """
        changed = {}
        for name, value in settings.items():
            if name not in _SETTINGS:
                raise InvalidArgumentError(f"{name}: an algorithm has no such attribute; it has {', '.join(_SETTINGS)}")
            read = _read(value, name, _SETTINGS[name].members)
            if read != getattr(self, name):
                changed[name] = read
        if not changed:
            return
        algo = Algo(bytes(self.algo))
        for name, value in changed.items():
            allowed = self._allowed(name)
            if allowed is not None and value not in allowed:
                raise InvalidArgumentError(
                    f"{name}: {_short(value)} is not possible for algorithm {self.algorithm_id}; its capabilities "
                    f"allow {_words(allowed)}"
                )
            algo.set(_SETTINGS[name].attribute, int(value))
        self._result = self._checked(algo, changed)
        self.revision += 1

    def _allowed(self, name: str) -> Allowed:
        allowed = _SETTINGS[name].allowed
        return allowed(self.capabilities) if allowed else None

    def _checked(self, algo: Algo, changed: Mapping[str, int]) -> HeuristicResult:
        if self.plan is None:
            return HeuristicResult(algo, self._result.workspace_bytes, self._result.status, self._result.waves)
        try:
            result = _usable(self.plan.check(algo))
        except HostLibraryError as error:
            raise InvalidArgumentError(self._refusal(changed, error)) from error
        if result.workspace_bytes > self.plan.workspace_limit:
            raise InvalidArgumentError(
                f"{_pairs(changed)} needs a workspace of {result.workspace_bytes} bytes, and memory_limit allows "
                f"{self.plan.workspace_limit}; raise it, or choose otherwise"
            )
        return result

    def _refusal(self, changed: Mapping[str, int], error: HostLibraryError) -> str:
        allowed = {name: self._allowed(name) for name in changed}
        lists = "; ".join(f"{name} may be {_words(each)}" for name, each in allowed.items() if each is not None)
        hint = ""
        if len({"split_k", "reduction_scheme"} & changed.keys()) == 1:
            hint = (
                ". A split K and its scheme may have to be set together: configure(split_k=..., reduction_scheme=...)"
            )
        return (
            f"{_pairs(changed)} is refused by cuBLASLt for this product, with the other attributes as they are in "
            f"{self!r}. Its capabilities allow: {lists or 'anything'}{hint}. {error}"
        )

    # -- keeping -------------------------------------------------------------------------------------------

    def as_numpy(self) -> np.ndarray[Any, np.dtype[Any]]:
        """An array of one :data:`heuristic_result_dtype`, for ``numpy.save``; it means something to the same cuBLASLt
        version and kind of device only, and does not say which those were. ``save_algorithms`` does.
        """
        array = np.zeros(1, heuristic_result_dtype)
        array["algo"]["data_"] = np.frombuffer(bytes(self.algo), "<u8")
        array["workspace_size"], array["waves_count"] = self.workspace_bytes, self.waves
        array["state"] = self._result.status
        return array

    @classmethod
    def from_numpy(cls, array: Any) -> Algorithm:
        """An algorithm without a plan out of what :meth:`as_numpy` gave, here or in nvmath-python.

        Raises:
            InvalidArgumentError: another element type, or not exactly one element.
        """
        given = np.asarray(array)
        if given.dtype != heuristic_result_dtype or given.size != 1:
            raise InvalidArgumentError(
                f"array: {given.size} elements of {given.dtype}; give one element of heuristic_result_dtype, as "
                "Algorithm.as_numpy() makes it"
            )
        one = given.reshape(1)[0]
        algo = Algo(one["algo"]["data_"].tobytes())
        return cls(HeuristicResult(algo, int(one["workspace_size"]), int(one["state"]), float(one["waves_count"])))

    def as_dict(self) -> dict[str, Any]:
        """JSON values: the 64 bytes as hexadecimal digits, what it needs, and its attributes for whoever reads it."""
        return {
            "algo": bytes(self.algo).hex(),
            "workspace_bytes": self.workspace_bytes,
            "waves": self.waves,
            "algorithm_id": self.algorithm_id,
            **{name: value if type(value) is int else _short(value) for name, value in self._settings()},
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Algorithm:
        """An algorithm without a plan out of :meth:`as_dict`. Only bytes, workspace and waves are read.

        Raises:
            InvalidArgumentError: something is missing or is not what it should be.
        """
        try:
            algo = Algo(bytes.fromhex(values["algo"]))
            workspace_bytes, waves = operator.index(values["workspace_bytes"]), float(values["waves"])
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidArgumentError(f"algorithms: an entry is not a stored algorithm: {error!r}") from error
        return cls(HeuristicResult(algo, workspace_bytes, Status.SUCCESS, waves))


def _pairs(changed: Mapping[str, int]) -> str:
    return ", ".join(f"{name}: {_short(value)}" for name, value in changed.items())


def _usable(result: HeuristicResult) -> HeuristicResult:
    """The result of a check that may say so although the call went well."""
    if result.status != Status.SUCCESS:
        raise HostLibraryError(
            f"cublasLtMatmulAlgoCheck answers with state {result.status}", function="cublasLtMatmulAlgoCheck",
            status=result.status,
        )  # fmt: skip
    return result


def read_algorithm(given: Any) -> Algorithm | None:
    """An algorithm that a call is to use; ``None``: the planned one. Raises ArgumentTypeError for anything else."""
    if given is not None and not isinstance(given, Algorithm):
        raise ArgumentTypeError(
            f"algorithm: {given!r} is a {type(given).__name__}; give one of the algorithms that plan() returns"
        )
    return given


# -- from elsewhere -----------------------------------------------------------------------------------------


def adopt(given: Any, plan: Plan) -> Algorithm:
    """An algorithm of another plan, of a file, or 64 bytes that were kept, as a new one of this plan.

    Raises:
        ArgumentTypeError: none of these.
        InvalidArgumentError: it cannot compute the product: cuBLASLt says so; it needs more workspace than is
            allowed; or addresses that are multiples of more.
    """
    if not isinstance(given, (Algorithm, bytes)):
        raise ArgumentTypeError(f"algorithms: {given!r} is a {type(given).__name__}; give Algorithm objects of a plan")
    data = given if isinstance(given, bytes) else bytes(given.algo)
    try:
        algorithm = Algorithm(_usable(plan.check(Algo(data))), plan)
    except HostLibraryError as error:
        raise InvalidArgumentError(f"algorithms: {given!r} cannot compute this product here: {error}") from error
    if algorithm.workspace_bytes > plan.workspace_limit:
        raise InvalidArgumentError(
            f"algorithms: {algorithm!r} needs a workspace of {algorithm.workspace_bytes} bytes, and memory_limit "
            f"allows {plan.workspace_limit}"
        )
    for matrix, slot in zip("abcd", "bacd" if plan.lt.swapped else "abcd", strict=True):
        needed = getattr(algorithm.capabilities, f"min_alignment_{matrix}_bytes")
        there = alignment_in_calls(plan.lt, slot, plan.alignments)
        if needed is not None and there < needed:  # cublasLtMatmulAlgoCheck knows no addresses
            raise InvalidArgumentError(
                f"algorithms: {algorithm!r} needs addresses of {slot} that are multiples of {needed} bytes, and here "
                f"they are multiples of {there}"
            )
    return algorithm
