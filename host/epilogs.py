# SPDX-License-Identifier: Apache-2.0
"""Epilogs of a product: what each takes and what it makes beside the result.

``MatmulEpilog`` has cuBLASLt's names and numbers. Everything else about an epilog follows from its row in
:data:`EPILOGS`; nothing here knows how a GPU or a CPU computes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError
from nvmath_device.host.cublaslt_enums import Epilogue as MatmulEpilog
from nvmath_device.reference_epilogs import MASK_ALIGNMENT

__all__ = ["EPILOGS", "AuxLayout", "EpilogTraits", "MatmulEpilog", "read_epilog"]

GELU_AUX_ALIGNMENT = 8  # elements, likewise


@dataclass(frozen=True)
class EpilogTraits:
    """A row of the table.

    Attributes:
        activation: function applied last, or whose derivative a backward epilog applies.
        backward: the result is multiplied by the derivative, which is read from ``aux``.
        bias: needs the input ``"bias"``.
        aux: name of what is kept for (forward) or read by (backward) the derivative.
        gradient: name of an output with the gradient of a bias.
    """

    activation: Literal["relu", "gelu"] | None = None
    backward: bool = False
    bias: bool = False
    aux: Literal["relu_aux", "gelu_aux"] | None = None
    gradient: str | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the arrays to be given in ``epilog_inputs``."""
        return (*(("bias",) if self.bias else ()), *((self.aux,) if self.aux and self.backward else ()))

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the arrays that come back beside the result."""
        made = (self.aux,) if self.aux and not self.backward else ()
        return (*made, *((self.gradient,) if self.gradient else ()))

    @property
    def has_direction(self) -> bool:
        """Whether something runs along rows or along columns of D, so that the order of D is not free."""
        return self.bias or self.aux is not None


_E = MatmulEpilog
EPILOGS: dict[MatmulEpilog, EpilogTraits] = {
    _E.DEFAULT: EpilogTraits(),
    _E.RELU: EpilogTraits("relu"),
    _E.GELU: EpilogTraits("gelu"),
    _E.BIAS: EpilogTraits(bias=True),
    _E.RELU_BIAS: EpilogTraits("relu", bias=True),
    _E.GELU_BIAS: EpilogTraits("gelu", bias=True),
    _E.RELU_AUX: EpilogTraits("relu", aux="relu_aux"),
    _E.GELU_AUX: EpilogTraits("gelu", aux="gelu_aux"),
    _E.RELU_AUX_BIAS: EpilogTraits("relu", bias=True, aux="relu_aux"),
    _E.GELU_AUX_BIAS: EpilogTraits("gelu", bias=True, aux="gelu_aux"),
    _E.DRELU: EpilogTraits("relu", backward=True, aux="relu_aux"),
    _E.DGELU: EpilogTraits("gelu", backward=True, aux="gelu_aux"),
    _E.DRELU_BGRAD: EpilogTraits("relu", backward=True, aux="relu_aux", gradient="drelu_bgrad"),
    _E.DGELU_BGRAD: EpilogTraits("gelu", backward=True, aux="gelu_aux", gradient="dgelu_bgrad"),
    _E.BGRADA: EpilogTraits(gradient="bgrada"),
    _E.BGRADB: EpilogTraits(gradient="bgradb"),
}

_NAMES = ", ".join(e.name for e in EPILOGS if e is not _E.DEFAULT)


def read_epilog(value: Any, argument: str = "epilog") -> MatmulEpilog:
    """A member of :class:`MatmulEpilog` for a member, its name or number; ``None`` is ``DEFAULT``.

    Raises:
        InvalidArgumentError: there is no such epilog; the message lists those there are.
        ArgumentTypeError: neither a member nor a name.
    """
    if value is None:
        return _E.DEFAULT
    if isinstance(value, str):
        found = _E.__members__.get(value.upper())
    elif isinstance(value, int) and not isinstance(value, bool):
        found = next((e for e in EPILOGS if e == value), None)
    else:
        raise ArgumentTypeError(f"{argument}: {value!r} is a {type(value).__name__}; give a member of MatmulEpilog")
    if found is None:
        raise InvalidArgumentError(
            f"{argument}: {value!r} is not an epilog of cuBLASLt; it has {_NAMES}. Any other function of the result "
            "(SiLU, a residual, dropout) goes into a kernel around nvmath_device.Matmul: see docs/host.md"
        )
    return found


@dataclass(frozen=True)
class AuxLayout:
    """How an auxiliary matrix lies for a D of m x n: its two extents, and which of them is contiguous.

    ``along`` is the direction that is packed: ``"rows"`` goes with a column-major D.
    """

    rows: int
    cols: int
    along: Literal["rows", "columns"]

    @property
    def contiguous_axis(self) -> int:
        return -2 if self.along == "rows" else -1


def aux_layout(aux: str, m: int, n: int, along: Literal["rows", "columns"]) -> AuxLayout:
    """Extents of ``relu_aux`` (bytes of bits) or ``gelu_aux`` (elements): one axis is rounded up.

    Source: alignment rules in cublasLt.h at ``CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD``.
    """
    if aux == "relu_aux":
        bits = MASK_ALIGNMENT
        packed = -(-(m if along == "rows" else n) // bits) * (bits // 8)
    else:
        packed = -(-(m if along == "rows" else n) // GELU_AUX_ALIGNMENT) * GELU_AUX_ALIGNMENT
    return AuxLayout(packed, n, along) if along == "rows" else AuxLayout(m, packed, along)
