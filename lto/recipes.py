# SPDX-License-Identifier: Apache-2.0
"""From descriptor to recipe: what libmathdx is told, as pure data.

A :class:`Recipe` is JSON all through, so it can be a store key in words and travel to a worker process. Equal
recipes give equal code; the symbol is derived from the recipe alone, so two kernels, or two processes, that
ask for the same thing share one function and never clash over different ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from nvmath_device.descriptors import (
    CONJ_TRANSPOSED,
    NON_TRANSPOSED,
    ROW_MAJOR,
    SUGGESTED,
    Arrangement,
    BlockExecution,
    GemmDescriptor,
    LeadingDimension,
    require_device_precision,
)
from nvmath_device.errors import UnsupportedError
from nvmath_device.frozen import frozen
from nvmath_device.lto.store_format import sha256
from nvmath_device.targets import MAX_SHARED_BYTES, ComputeCapability

if TYPE_CHECKING:
    from nvmath_device.fft_descriptor import FftDescriptor

GEMM_APIS = ("SMEM", "SMEM_DYNAMIC_LD")
_ARCH_MODIFIERS = {"a": "ARCH_SPECIFIC", "f": "FAMILY_SPECIFIC"}


@frozen()
class Recipe:
    """Operators of one libmathdx descriptor. ``operators`` maps names to an integer, a name or a list of them."""

    library: str  # "cublasdx" or "cufftdx"
    operators: tuple[tuple[str, Any], ...]
    prefix: str  # readable part of the symbol

    def words(self) -> dict[str, Any]:
        """The recipe as a JSON-able mapping; the store's key, apart from the versions."""
        return {"library": self.library, "operators": {k: _listed(v) for k, v in self.operators}}

    @property
    def symbol(self) -> str:
        """Name of the device function; depends on the parameters only."""
        text = json.dumps(self.words(), sort_keys=True, separators=(",", ":"))
        return f"{self.prefix}_{sha256(text.encode()).hexdigest()[:20]}"

    @property
    def chip(self) -> str:
        """``"a"`` or ``"f"`` where the code needs a target of that kind, else ``""``."""
        modifier = dict(self.operators).get("ARCH_MODIFIER")
        return next((arch for arch, name in _ARCH_MODIFIERS.items() if name == modifier), "")

    def to_json(self) -> dict[str, Any]:
        """What a worker gets; :meth:`from_json` turns it back."""
        return {**self.words(), "prefix": self.prefix}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Recipe:
        operators = tuple((k, tuple(v) if isinstance(v, list) else v) for k, v in data["operators"].items())
        return cls(data["library"], operators, data["prefix"])


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def target_operator(sm: ComputeCapability) -> tuple[str, Any]:
    """The SM operator: an integer; the arch modifier goes into the code's own target option."""
    return ("SM", sm.integer)


def gemm_recipe(descriptor: GemmDescriptor, execution: BlockExecution, *, api: str) -> Recipe:
    """The recipe of a block GEMM on shared memory, for a concrete target.

    What is ``"suggested"`` is left out: that is a question
    (:func:`nvmath_device.lto.codegen.gemm_suggestions`), not code to run.

    Raises:
        InvalidArgumentError: libmathdx does not multiply these element types.
        UnsupportedError: A, B and C together do not fit into the shared memory of a block of ``sm``.
    """
    assert api in GEMM_APIS
    assert execution.sm is not None
    if descriptor.leading_dimension != SUGGESTED:
        refuse_oversize(descriptor, execution.sm)
    return Recipe("cublasdx", gemm_operators(descriptor, execution, api=api), "nvmath_device_mm")


def gemm_operators(descriptor: GemmDescriptor, execution: BlockExecution, *, api: str) -> tuple[tuple[str, Any], ...]:
    """Operators of a block GEMM for a concrete target, without those that are left at their default.

    Raises:
        InvalidArgumentError: libmathdx does not multiply these element types.
    """
    require_device_precision(descriptor)
    sm = execution.sm
    assert sm is not None
    ask_ld = descriptor.leading_dimension == SUGGESTED
    operators: list[tuple[str, Any]] = [
        ("FUNCTION", "MM"),
        ("SIZE", tuple(descriptor.size)),
        ("PRECISION", tuple(t.mathdx for t in descriptor.precision)),
        ("TYPE", descriptor.data_type.upper()),
        target_operator(sm),
        ("EXECUTION", "BLOCK"),
        ("API", api),
        *_storage_operators(descriptor),
    ]
    if sm.arch:
        operators.append(("ARCH_MODIFIER", _ARCH_MODIFIERS[sm.arch]))
    if execution.block_dim != SUGGESTED:
        operators.append(("BLOCK_DIM", tuple(execution.block_dim)))
    flags = ("static_block_dim", "with_pipeline", "enable_input_streaming")
    operators += [(flag.upper(), "ENABLED") for flag in flags if getattr(execution, flag)]
    # With the runtime-leading-dimension form the descriptor's own one is not used: leave it out, so that
    # descriptors that differ only there share their code.
    if not ask_ld and api == "SMEM" and descriptor.leading_dimension != descriptor.tight_leading_dimension:
        assert isinstance(descriptor.leading_dimension, LeadingDimension)
        operators.append(("LEADING_DIMENSION", tuple(descriptor.leading_dimension)))
    natural = tuple(v.alignment for v in descriptor.value_types)
    if descriptor.alignment != natural:
        assert descriptor.alignment is not None
        operators.append(("ALIGNMENT", tuple(descriptor.alignment)))
    return tuple(operators)


def _storage_operators(descriptor: GemmDescriptor) -> list[tuple[str, Any]]:
    """ARRANGEMENT, or TRANSPOSE_MODE where a conjugate is wanted: libmathdx takes one of the two.

    A stored matrix that is transposed before use is the same memory as the untransposed one in the other
    order, so all but the conjugate goes through ARRANGEMENT and equal code is generated once.
    """
    mode, arrangement = descriptor.transpose_mode, descriptor.arrangement
    if CONJ_TRANSPOSED in mode and descriptor.data_type == "complex":
        orders = list(arrangement)
        if ROW_MAJOR in orders:
            raise UnsupportedError(
                "transpose_mode: 'conj_transposed' needs column-major A, B and C; "
                f"the arrangement is {tuple(arrangement)}"
            )
        return [("TRANSPOSE_MODE", tuple(x.upper() for x in mode))]
    a, b, c = arrangement
    flipped = Arrangement(a if mode.a == NON_TRANSPOSED else _other(a), b if mode.b == NON_TRANSPOSED else _other(b), c)
    return [("ARRANGEMENT", tuple(x.upper() for x in flipped))]


def _other(order: str) -> str:
    return "col_major" if order == ROW_MAJOR else ROW_MAJOR


def static_leading_dimension_is_miscompiled(
    descriptor: GemmDescriptor, nvrtc_version: Callable[[], tuple[int, int]]
) -> bool:
    """Whether this compiler is known to miscompile a GEMM with a leading dimension of its own.

    ``nvrtc_version`` is asked, which loads libraries, only where the answer depends on it.

    CUDA 12.8 and 12.9 (NVIDIA bug 5218000) and 13.0 and 13.1 (5430354): element types of one or two bytes, a
    size that is not a multiple of 16, and a LEADING_DIMENSION operator. libmathdx then refuses to compile.
    The same GEMM with its leading dimensions passed at run time is not affected. Source: cuBLASDx
    documentation, known issues; the second bug's assertion text names CUDA 13.2 as the cure.
    """
    narrow = any(t.itemsize <= 2 for t in descriptor.precision)
    odd = any(extent % 16 for extent in descriptor.size)
    if not (narrow and odd and descriptor.leading_dimension != descriptor.tight_leading_dimension):
        return False
    nvrtc = nvrtc_version()
    return (12, 8) <= nvrtc <= (12, 9) or (13, 0) <= nvrtc < (13, 2)


def refuse_oversize(descriptor: GemmDescriptor, sm: ComputeCapability, matrices: str = "ABC") -> None:
    """libmathdx compiles what no device can launch (in half a minute); say so at once instead.

    ``matrices`` are those that are in shared memory.
    """
    parts = dict(zip(matrices, descriptor.storage_bytes, strict=False))
    need, limit = sum(parts.values()), MAX_SHARED_BYTES[sm[:2]]
    if need > limit:
        m, n, k = descriptor.size
        shown = ", ".join(f"{nbytes:,} for {name}" for name, nbytes in parts.items())
        raise UnsupportedError(
            f"size: {m} x {n} x {k} needs {need:,} bytes of shared memory ({shown}) and a block of {sm.sm} has at most "
            f"{limit:,}; take a smaller tile and loop over K"
        )


FFT_APIS = ("LMEM", "SMEM")
FFT_ID_FUNCTIONS = ("FFT_ID", "BATCH_ID", "IS_THREAD_ACTIVE")


def fft_recipe(
    descriptor: FftDescriptor, *, sm: ComputeCapability, api: str = "LMEM", functions: tuple[str, ...] = ("EXECUTE",)
) -> Recipe:
    """The recipe of an FFT: ``api`` LMEM (data in registers) or SMEM (in shared memory).

    ``functions`` are what is generated: ``("EXECUTE",)``, or some of ``FFT_ID_FUNCTIONS``. A knob left to be
    ``"suggested"`` is left out, which is how cuFFTDx is asked to choose.
    """
    assert api in FFT_APIS
    operators: list[tuple[str, Any]] = [
        ("SIZE", descriptor.size),
        ("DIRECTION", descriptor.direction.upper()),
        ("TYPE", descriptor.fft_type.upper()),
        ("PRECISION", descriptor.precision.mathdx),
        target_operator(sm),
        ("EXECUTION", descriptor.execution.upper()),
        ("API", api),
    ]
    if sm.arch:
        operators.append(("ARCH_MODIFIER", _ARCH_MODIFIERS[sm.arch]))
    if isinstance(descriptor.ffts_per_block, int):
        operators.append(("FFTS_PER_BLOCK", descriptor.ffts_per_block))
    if isinstance(descriptor.elements_per_thread, int):
        operators.append(("ELEMENTS_PER_THREAD", descriptor.elements_per_thread))
    if descriptor.real_fft_options is not None:
        operators.append(("REAL_FFT_OPTIONS", tuple(x.upper() for x in descriptor.real_fft_options)))
    if descriptor.transposition != "any":
        operators.append(("TRANSPOSITION", descriptor.transposition.upper()))
    if descriptor.thread_layout != "regular":
        operators.append(("THREAD_LAYOUT", descriptor.thread_layout.upper()))
    if functions != ("EXECUTE",):
        operators.append(("DEVICE_FUNCTION", functions))
    return Recipe("cufftdx", tuple(operators), "nvmath_device_fft")
