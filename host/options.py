# SPDX-License-Identifier: Apache-2.0
"""What a user may choose, as immutable data: options of a product, preferences of its plan, and fp8 scales.

Every class checks and normalises what it is given when it is made, so that whoever reads an option later need not.
Wherever one of them is accepted, a ``dict`` of its attributes is, too: :func:`read_options`. ``None`` stands for the
default of any attribute. Nothing here looks at a device: what depends on one is checked by who knows it.
"""

from __future__ import annotations

import difflib
import functools
import logging
import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import IntFlag
from fractions import Fraction
from numbers import Real
from typing import Any, Literal, TypeVar

import numpy as np

from nvmath_device.checks import choice, positive_int
from nvmath_device.dtypes import element_type, float32, float64, tfloat32
from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError
from nvmath_device.host.cublaslt_enums import ComputeType as MatmulComputeType
from nvmath_device.host.cublaslt_enums import CudaDataType, MatmulInnerShape, NumericalImplFlags
from nvmath_device.host.cublaslt_enums import ReductionScheme as MatmulReductionScheme
from nvmath_device.host.gemm_types import cuda_data_type, scalar_dtype

__all__ = [
    "CudaDataType",
    "MatmulComputeType",
    "MatmulEpilogPreferences",
    "MatmulInnerShape",
    "MatmulNumericalImplFlags",
    "MatmulOptions",
    "MatmulPlanPreferences",
    "MatmulQuantizationScales",
    "MatmulReductionScheme",
    "matrix_qualifiers_dtype",
    "memory_limit_bytes",
    "read_options",
]

matrix_qualifiers_dtype = np.dtype([("structure", object), ("is_conjugate", "<i4")])
"""Element type of the array ``qualifiers``, one element per operand: ``is_conjugate`` not 0 conjugates it before use.

``structure`` is there for code written for nvmath-python and is not read: all matrices are general.
"""


class MatmulNumericalImplFlags(IntFlag):
    """What algorithms may compute with: instruction, accumulator and input of the instruction. ``ALL``: anything.

    cuBLASLt's flags under nvmath-python's names.
    """

    OP_TYPE_FMA = NumericalImplFlags.FMA
    OP_TYPE_TENSOR_HMMA = NumericalImplFlags.HMMA
    OP_TYPE_TENSOR_IMMA = NumericalImplFlags.IMMA
    OP_TYPE_TENSOR_DMMA = NumericalImplFlags.DMMA
    OP_TYPE_TENSOR_MASK = NumericalImplFlags.TENSOR_OP_MASK
    OP_TYPE_MASK = NumericalImplFlags.OP_TYPE_MASK
    ACCUMULATOR_16F = NumericalImplFlags.ACCUMULATOR_16F
    ACCUMULATOR_32F = NumericalImplFlags.ACCUMULATOR_32F
    ACCUMULATOR_64F = NumericalImplFlags.ACCUMULATOR_64F
    ACCUMULATOR_32I = NumericalImplFlags.ACCUMULATOR_32I
    ACCUMULATOR_TYPE_MASK = NumericalImplFlags.ACCUMULATOR_TYPE_MASK
    INPUT_TYPE_16F = NumericalImplFlags.INPUT_16F
    INPUT_TYPE_16BF = NumericalImplFlags.INPUT_16BF
    INPUT_TYPE_TF32 = NumericalImplFlags.INPUT_TF32
    INPUT_TYPE_32F = NumericalImplFlags.INPUT_32F
    INPUT_TYPE_64F = NumericalImplFlags.INPUT_64F
    INPUT_TYPE_8I = NumericalImplFlags.INPUT_8I
    INPUT_TYPE_8F_E4M3 = NumericalImplFlags.INPUT_8F_E4M3
    INPUT_TYPE_8F_E5M2 = NumericalImplFlags.INPUT_8F_E5M2
    INPUT_TYPE_MASK = NumericalImplFlags.OP_INPUT_TYPE_MASK
    GAUSSIAN = NumericalImplFlags.GAUSSIAN
    ALL = (1 << 64) - 1


# -- memory limits ------------------------------------------------------------------------------------------

_UNITS = {"b": 1, "byte": 1, "bytes": 1} | {
    prefix + ending: base**power
    for base, ending in ((1000, "b"), (1024, "ib"))
    for power, prefix in enumerate("kmgt", start=1)
}
_WITH_UNIT = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d{1,2})?)\s*(%|[a-z]*)\s*", re.IGNORECASE)
_LIMIT_FORMS = (
    "give bytes as an integer, a share of the device's memory as a float from 0 to 1 or like '80%', or a number with "
    "a unit like '512 MiB' or '1.5 GB'"
)


def memory_limit_bytes(limit: int | float | str, total_bytes: int) -> int:
    """Bytes that a ``memory_limit`` allows on a device with ``total_bytes`` of memory. Fractions of a byte are dropped.

    Raises:
        ArgumentTypeError, InvalidArgumentError: not a limit, negative, or more than the device has.
    """
    number, is_share = _read_limit(limit)
    allowed = int(number * total_bytes) if is_share else int(number)
    if allowed > total_bytes:
        raise InvalidArgumentError(
            f"memory_limit: {limit!r} is {allowed} bytes, and the device has {total_bytes} bytes; give at most those, "
            "or a share like '80%'"
        )
    return allowed


def _read_limit(limit: Any) -> tuple[Fraction, bool]:
    """A number, exactly as its decimal digits say, and whether it is a share instead of bytes."""
    number, is_share = _limit_of_text(limit) if isinstance(limit, str) else _limit_of_number(limit)
    if number < 0:
        raise InvalidArgumentError(f"memory_limit: {limit!r} is negative; {_LIMIT_FORMS}")
    if is_share and number > 1:
        raise InvalidArgumentError(f"memory_limit: {limit!r} is more than the whole memory; {_LIMIT_FORMS}")
    return number, is_share


def _limit_of_text(limit: str) -> tuple[Fraction, bool]:
    match = _WITH_UNIT.fullmatch(limit)
    if match is None:
        raise InvalidArgumentError(f"memory_limit: {limit!r} is not a limit; {_LIMIT_FORMS}")
    number, unit = Fraction(match[1]), match[2].lower()
    if unit == "%":
        return number / 100, True
    if unit not in _UNITS:
        problem = f"has the unknown unit {match[2]!r}" if unit else "has no unit"
        raise InvalidArgumentError(
            f"memory_limit: {limit!r} {problem}; units are %, B, kB, MB, GB, TB, KiB, MiB, GiB and TiB"
        )
    return number * _UNITS[unit], False


def _limit_of_number(limit: Any) -> tuple[Fraction, bool]:
    if isinstance(limit, bool) or not isinstance(limit, Real):
        raise ArgumentTypeError(f"memory_limit: {limit!r} is a {type(limit).__name__}; {_LIMIT_FORMS}")
    if hasattr(limit, "__index__"):
        return Fraction(operator.index(limit)), False
    value = float(limit)
    if not math.isfinite(value):
        raise InvalidArgumentError(f"memory_limit: {limit!r} is not a limit; {_LIMIT_FORMS}")
    if value > 1:
        if value.is_integer():  # 50e6, which is how one writes 50 million bytes
            return Fraction(int(value)), False
        raise InvalidArgumentError(f"memory_limit: {limit!r} is neither a share nor whole bytes; {_LIMIT_FORMS}")
    return Fraction(repr(value)), True


# -- single values ------------------------------------------------------------------------------------------

ALLOCATOR_METHODS = ("memalloc_async", "memalloc", "allocate")
_Read = Callable[[Any, str], Any]  # what an attribute becomes, given its value and name
_Flags = TypeVar("_Flags", bound=IntFlag)


def _wrong_type(argument: str, value: Any, allowed: str) -> ArgumentTypeError:
    return ArgumentTypeError(f"{argument}: {value!r} is a {type(value).__name__}; give {allowed}")


def _flag(value: Any, argument: str) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise _wrong_type(argument, value, "True or False")
    return bool(value)


def _whole(value: Any, argument: str, meaning: str) -> int:
    """An integer of at least 0."""
    if isinstance(value, bool):
        raise _wrong_type(argument, value, meaning)
    try:
        number = operator.index(value)
    except TypeError:
        raise _wrong_type(argument, value, meaning) from None
    if number < 0:
        raise InvalidArgumentError(f"{argument}: {number} is negative; give {meaning}")
    return number


def _public_name(enumeration: type) -> str:
    """The name by which users know it: some are shorter in ``cublaslt_enums``."""
    return next(name for name in __all__ if globals()[name] is enumeration)


def _mask(value: Any, argument: str, flags: type[_Flags]) -> _Flags:
    """Flags joined by ``|``, as one value of their enumeration."""
    number = _whole(value, argument, f"members of {_public_name(flags)}, joined by |")
    every = functools.reduce(operator.or_, flags.__members__.values())
    if number & ~int(every):
        names = ", ".join(flags.__members__)
        raise InvalidArgumentError(
            f"{argument}: {number} has bits of no member of {_public_name(flags)}; join some of {names} by |"
        )
    return flags(number)


def _member(value: Any, cls: Any, argument: str) -> Any:
    """A member of an enumeration for a member, its name or its number."""
    if isinstance(value, str):
        found = cls.__members__.get(value.upper())
    else:
        number = _whole(value, argument, f"a member of {_public_name(cls)}, its name or its number")
        found = next((member for member in cls if member == number), None)
    if found is None:
        names = ", ".join(member.name for member in cls)
        raise InvalidArgumentError(f"{argument}: {value!r} is not a member of {_public_name(cls)}; those are {names}")
    return found


def _data_type(value: Any, argument: str) -> CudaDataType:
    """A ``CudaDataType`` for a member, its name or number, or anything that names an element type."""
    is_number = hasattr(value, "__index__") and not isinstance(value, type)
    if is_number or (isinstance(value, str) and value.upper().startswith("CUDA_")):
        return _member(value, CudaDataType, argument)
    name = value if isinstance(value, str) else getattr(value, "name", getattr(value, "__name__", str(value)))
    for element, complex_name in ((float32, "complex64"), (float64, "complex128")):
        if str(name).rpartition(".")[2] == complex_name:
            return cuda_data_type(element, True)
    element = element_type(value, argument=argument)
    if element is tfloat32:
        raise InvalidArgumentError(
            f"{argument}: no array has elements of tfloat32; give float32, and the compute_type COMPUTE_32F_FAST_TF32"
        )
    return cuda_data_type(element)


def _is_array(value: Any) -> bool:
    """Whether it speaks one of the protocols by which arrays are exchanged."""
    return any(hasattr(value, n) for n in ("__dlpack__", "__cuda_array_interface__", "__array_interface__"))


def _one_of(*allowed: str) -> _Read:
    return lambda value, argument: choice(value, allowed, argument=argument)


def _positive(value: Any, argument: str) -> int:
    return positive_int(value, argument=argument)


def _scale_type(value: Any, argument: str) -> CudaDataType:
    scalar_dtype(found := _data_type(value, argument))
    return found


def _logger(value: Any, argument: str) -> Any:
    if not isinstance(value, (logging.Logger, logging.LoggerAdapter)):
        raise _wrong_type(argument, value, "a logging.Logger")
    return value


def _memory_limit(value: Any, _: str) -> Any:
    _read_limit(value)
    return value


def _blocking(value: Any, argument: str) -> Any:
    if value is not True and value != "auto":
        raise InvalidArgumentError(f"{argument}: {value!r} is not allowed; give True or 'auto'")
    return value


def _allocator(value: Any, argument: str) -> Any:
    if isinstance(value, type) or not any(callable(getattr(value, name, None)) for name in ALLOCATOR_METHODS):
        raise _wrong_type(argument, value, f"an object with a method {' or '.join(ALLOCATOR_METHODS)}")
    return value


def _waves(value: Any, argument: str) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise _wrong_type(argument, value, "a number of at least 0")
    waves = float(value)
    if not (waves >= 0 and math.isfinite(waves)):
        raise InvalidArgumentError(f"{argument}: {value!r} is not allowed; give a number of at least 0")
    return waves


def _impl_mask(value: Any, argument: str) -> MatmulNumericalImplFlags:
    mask = _mask(value, argument, MatmulNumericalImplFlags)
    if not mask:
        raise InvalidArgumentError(f"{argument}: 0 leaves no algorithm; give at least one flag")
    return mask


def _scale(value: Any, matrix: str) -> Any:
    argument = f"quantization_scales.{matrix}"
    if isinstance(value, Real) and not isinstance(value, bool):
        if not math.isfinite(value):
            raise InvalidArgumentError(f"{argument}: {value!r} is not allowed; give a finite number")
    elif isinstance(value, np.generic) or not _is_array(value):
        raise _wrong_type(argument, value, "a real number or an array")
    return value


# -- the classes --------------------------------------------------------------------------------------------

_Options = TypeVar("_Options")


def read_options(value: Any, cls: type[_Options], argument: str) -> _Options:
    """An object of ``cls`` out of one, a ``dict`` of its attributes, or ``None`` for its defaults.

    Raises:
        ArgumentTypeError: anything else.
        InvalidArgumentError: a key that is no attribute. Values are checked by ``cls``.
    """
    if value is None:
        return cls()
    if isinstance(value, cls):
        return value
    if not isinstance(value, Mapping):
        raise _wrong_type(argument, value, f"a {cls.__name__} or a dict of its attributes")
    names = [field.name for field in fields(cls)]  # type: ignore[arg-type]
    for key in value:
        if key not in names:
            near = difflib.get_close_matches(str(key), names, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise InvalidArgumentError(
                f"{argument}: {key!r} is not an attribute of {cls.__name__}; those are {', '.join(names)}{hint}"
            )
    return cls(**value)


def _normalise(options: Any, **readers: _Read) -> None:
    """Run at the end of ``__init__``: the default for ``None``, and every attribute as its reader returns it."""
    for field in fields(options):
        value = getattr(options, field.name)
        if value is None:
            value = field.default
        if value is not None:
            value = readers[field.name](value, field.name)
        object.__setattr__(options, field.name, value)


@dataclass(frozen=True)
class MatmulOptions:
    """How a product is computed.

    Types are given as members of their enumeration, by name or by number; ``result_type`` also as anything that names
    an element type (``"bfloat16"``, ``numpy.float32``, ``torch.float16``). They are stored as members.

    Attributes:
        compute_type: arithmetic of products and sums. Default: without loss for the operands' type; tf32 and others
            that round the operands of a float32 product have to be asked for.
        scale_type: type of alpha and beta. Default: the one that goes with ``compute_type`` and the result.
        result_type: element type of the result. Default: C's, without C that of A; int32 for int8.
        result_amax: also return the largest absolute value of the result, in float32; fp8 results only.
        sm_count_target: multiprocessors to plan for; others stay free for other streams. ``None`` or 0: all.
        fast_accumulation: let fp8 sums stay in the tensor cores' own accumulator: faster, and less accurate.
        device_id: ordinal of the CUDA device for operands in CPU memory. Operands on a GPU stay on theirs. Default:
            the current device.
        handle: address of a ``cublasLtHandle_t`` to be used. It stays the caller's, and must outlive its use.
        logger: where messages go. Default: the logger ``nvmath_device``.
        memory_limit: most GPU memory that one product may take as workspace: bytes as an integer; a share of the
            device's memory as a float from 0 to 1 or a string (``"80%"``); or a number with a unit, ``"512 MiB"``,
            ``"1.5 GB"`` (B; kB, MB, GB, TB are powers of 1000, KiB, MiB, GiB, TiB of 1024). 0 means no workspace.
            See :func:`memory_limit_bytes`. Results and copies of operands do not count. Default: what cuBLAS itself
            takes on Hopper.
        blocking: ``True``: return when the result is there. ``"auto"``: return once the work is on its stream,
            except for results in CPU memory, which always are there.
        allocator: object that GPU memory is taken from, with a method ``memalloc_async(size, stream)`` or
            ``memalloc(size)`` as in nvmath-python, or ``allocate(size, *, stream)`` as a memory resource of
            cuda.core; sizes in bytes. Default: the pool of the operands' library, or cuda.core's.
        inplace: write the result into C and return it.
        execution: ``"gpu"``, ``"cpu"``, or ``None``: the GPU where there is one.
        copies: ``"allow"``: an operand that cuBLASLt cannot read where it is, is copied first. ``"refuse"``: an
            error instead.
        mix_devices: accept operands in CPU memory beside operands on a GPU, and move the former.
        deterministic: equal operands give equal bits: one algorithm, no split of K. Not across devices and library
            versions, and nothing is promised for the same row in another batch.
        block_scaling: fp8 operands have one scale a block (MXFP8) instead of one a matrix.
    """

    compute_type: MatmulComputeType | None = None
    scale_type: CudaDataType | None = None
    result_type: CudaDataType | None = None
    result_amax: bool = False
    sm_count_target: int | None = None
    fast_accumulation: bool = False
    device_id: int | None = None
    handle: int | None = None
    logger: logging.Logger | logging.LoggerAdapter[Any] | None = None
    memory_limit: int | float | str = "32 MiB"
    blocking: Literal[True, "auto"] = "auto"
    allocator: Any = None
    inplace: bool = False
    execution: Literal["gpu", "cpu"] | None = None
    copies: Literal["allow", "refuse"] = "allow"
    mix_devices: bool = False
    deterministic: bool = False
    block_scaling: bool = False

    def __post_init__(self) -> None:
        _normalise(
            self,
            compute_type=lambda value, argument: _member(value, MatmulComputeType, argument),
            scale_type=_scale_type,
            result_type=_data_type,
            result_amax=_flag,
            sm_count_target=lambda value, argument: _whole(value, argument, "a number of multiprocessors") or None,
            fast_accumulation=_flag,
            device_id=lambda value, argument: _whole(value, argument, "the ordinal of a device"),
            handle=_positive,
            logger=_logger,
            memory_limit=_memory_limit,
            blocking=_blocking,
            allocator=_allocator,
            inplace=_flag,
            execution=_one_of("gpu", "cpu"),
            copies=_one_of("allow", "refuse"),
            mix_devices=_flag,
            deterministic=_flag,
            block_scaling=_flag,
        )


@dataclass(frozen=True)
class MatmulEpilogPreferences:
    """What is wanted of an epilog.

    Attributes:
        aux_type: element type of ``gelu_aux``, as a ``CudaDataType`` or anything that names an element type. Default:
            that of the result, and for an fp8 result that of C; see :class:`.gemm_types.GemmTypes`.
        aux_amax: also return the largest absolute value of ``gelu_aux``, in float32; only where that is fp8.
    """

    aux_type: CudaDataType | None = None
    aux_amax: bool = False

    def __post_init__(self) -> None:
        _normalise(self, aux_type=_data_type, aux_amax=_flag)


@dataclass(frozen=True)
class MatmulPlanPreferences:
    """Which algorithms a plan may choose from.

    Attributes:
        reduction_scheme_mask: how the parts of a split K may be added up; ``NONE``: K is not split.
        max_waves_count: most waves of thread blocks, as a multiple of what the device runs at once; 0.0: no limit.
        numerical_impl_mask: what algorithms may compute with.
        limit: number of algorithms to ask for, at least 1.
        epilog: a :class:`MatmulEpilogPreferences`, or a ``dict`` of its attributes.
    """

    reduction_scheme_mask: MatmulReductionScheme = MatmulReductionScheme.MASK
    max_waves_count: float = 0.0
    numerical_impl_mask: MatmulNumericalImplFlags = MatmulNumericalImplFlags.ALL
    limit: int = 8
    epilog: MatmulEpilogPreferences = MatmulEpilogPreferences()

    def __post_init__(self) -> None:
        _normalise(
            self,
            reduction_scheme_mask=lambda value, argument: _mask(value, argument, MatmulReductionScheme),
            max_waves_count=_waves,
            numerical_impl_mask=_impl_mask,
            limit=_positive,
            epilog=lambda value, argument: read_options(value, MatmulEpilogPreferences, argument),
        )


@dataclass(frozen=True, eq=False)
class MatmulQuantizationScales:
    """Factors that fp8 matrices are multiplied by: A, B and C when they are read, D before it is rounded and stored.

    Attributes:
        a, b, c, d: a finite real number, or an array of any library: one float32 number of shape () or (1,); with
            ``MatmulOptions.block_scaling`` a vector of uint8, read as exponents (UE8M0). ``None``: 1. Each is kept as
            it was given and never written to. Arrays on a GPU are read when the product is computed, those in CPU
            memory when they are given.

    Two of these are equal only if they are the same object, because arrays do not compare as one.
    """

    a: Any = None
    b: Any = None
    c: Any = None
    d: Any = None

    def __post_init__(self) -> None:
        _normalise(self, a=_scale, b=_scale, c=_scale, d=_scale)
