# SPDX-License-Identifier: Apache-2.0
"""What cuBLASLt has on a device: every combination of types, epilog and layout, tried with its heuristics.

``python -m nvmath_device support-matrix`` writes it as a table. Nothing is run; heuristics say whether there is an
algorithm, which for the combinations of the documentation's tables is the only way to know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

from nvmath_device.descriptors import COL_MAJOR, ROW_MAJOR
from nvmath_device.dtypes import ELEMENT_TYPES, ElementType, tfloat32, uint8
from nvmath_device.errors import HostLibraryError, NoDeviceError, NvmathDeviceError
from nvmath_device.host import current_device
from nvmath_device.host.array_view import ArrayView, type_name
from nvmath_device.host.cublaslt_calls import version
from nvmath_device.host.cublaslt_enums import ComputeType
from nvmath_device.host.epilogs import EPILOGS, MatmulEpilog, aux_layout
from nvmath_device.host.gemm_types import GemmTypes, resolve_types, why_no_epilogs
from nvmath_device.host.options import MatmulOptions
from nvmath_device.host.probe import Found, Request, ask, imagine

EXTENTS = (64, 48, 32)  # m, n, k: multiples of what every type wants, and all different
BATCHES = ((), (4,))
WORKSPACE_LIMIT = 64 << 20  # bytes; every device has them
_ORDERS = (ROW_MAJOR, COL_MAJOR)
LAYOUTS = tuple((a, b, d) for a in _ORDERS for b in _ORDERS for d in _ORDERS)  # of A, B and D

Ask = Callable[[Request], Found]


class Trial(NamedTuple):
    """One question and its answer.

    Attributes:
        layout: orders of A, B and D. C, a bias and what else there is go with D.
        found: the answer; ``None`` where there is no algorithm or the combination is refused.
        why: what was said where there is none.
    """

    layout: tuple[str, str, str]
    found: Found | None
    why: str = ""


@dataclass(frozen=True)
class Row:
    """All epilogs and layouts of one combination of types."""

    types: GemmTypes
    batch: tuple[int, ...]
    epilogs: dict[MatmulEpilog, tuple[Trial, ...]]


# -- what is asked ------------------------------------------------------------------------------------------


def all_types() -> list[GemmTypes]:
    """Every combination that cuBLASLt documents, compute types included; a GELU input has its default type."""
    elements = [element for element in ELEMENT_TYPES if element is not tfloat32]
    found: dict[GemmTypes, None] = {}
    for a, b, is_complex in product(elements, elements, (False, True)):
        for d, c in product(elements, elements) if _resolved(a, b, is_complex=is_complex) else ():
            for compute in ComputeType if _resolved(a, b, c, result_type=d, is_complex=is_complex) else ():
                types = _resolved(a, b, c, result_type=d, is_complex=is_complex, compute_type=compute)
                if types is not None:
                    found[types] = None
    return list(found)


def _resolved(*elements: ElementType, **choices: Any) -> GemmTypes | None:
    try:
        return resolve_types(*elements, **choices)
    except NvmathDeviceError:
        return None


def request_for(
    types: GemmTypes, epilog: MatmulEpilog, layout: tuple[str, str, str], batch: tuple[int, ...] = ()
) -> Request:
    """The product of :data:`EXTENTS` with these types, with a C where C's type is another than D's."""
    m, n, k = EXTENTS
    order_a, order_b, order_d = layout
    along = "rows" if order_d == COL_MAJOR else "columns"
    traits = EPILOGS[epilog]

    def matrix(rows: int, cols: int, element: ElementType, order: str, *, real: bool = False) -> ArrayView:
        shape = (*batch, rows, cols)
        axes = tuple(range(len(shape)))
        axes = axes if order == ROW_MAJOR else (*axes[:-2], axes[-1], axes[-2])
        return imagine(shape, element, is_complex=types.is_complex and not real, axes=axes)

    inputs = {}
    if traits.bias:
        inputs["bias"] = matrix(*((m, 1) if along == "rows" else (1, n)), types.bias, order_d, real=True)
    if traits.aux and traits.backward:
        form = aux_layout(traits.aux, m, n, "rows" if along == "rows" else "columns")
        element = uint8 if traits.aux == "relu_aux" else types.aux
        inputs[traits.aux] = matrix(form.rows, form.cols, element, order_d, real=True)
    return Request(
        a=matrix(m, k, types.a, order_a),
        b=matrix(k, n, types.b, order_b),
        c=None if types.c is types.d else matrix(m, n, types.c, order_d),
        out=matrix(m, n, types.d, order_d),
        workspace_limit=WORKSPACE_LIMIT,
        epilog=epilog,
        inputs=inputs,
        options=MatmulOptions(compute_type=types.compute, scale_type=types.scale),
    )


# -- trying -------------------------------------------------------------------------------------------------


def try_everything(ask_one: Ask, combinations: Sequence[GemmTypes] | None = None) -> list[Row]:
    """All answers. ``ask_one`` is :func:`~nvmath_device.host.probe.ask` for a device.

    Epilogs of types that cuBLASLt has none for are left out.
    """
    return list(_rows(ask_one, all_types() if combinations is None else combinations))


def _rows(ask_one: Ask, combinations: Sequence[GemmTypes]) -> Iterator[Row]:
    for batch, types in product(BATCHES, combinations):
        epilogs = [MatmulEpilog.DEFAULT] if why_no_epilogs(types) else list(EPILOGS)
        yield Row(
            types, batch,
            {
                epilog: tuple(_try(ask_one, types, epilog, layout, batch) for layout in LAYOUTS)
                for epilog in epilogs
            },
        )  # fmt: skip


def _try(
    ask_one: Ask, types: GemmTypes, epilog: MatmulEpilog, layout: tuple[str, str, str], batch: tuple[int, ...]
) -> Trial:
    try:
        return Trial(layout, ask_one(request_for(types, epilog, layout, batch)))
    except HostLibraryError:
        return Trial(layout, None, "cuBLASLt has no algorithm")
    except NvmathDeviceError as error:
        return Trial(layout, None, str(error))


def support_matrix(device: int | None = None) -> dict[str, Any]:
    """Everything as JSON values: the device, the library, what was asked, and all answers.

    ``device`` is a CUDA ordinal; ``None``: the current device, or the first. Takes some seconds.

    Raises:
        NoDeviceError: there is none.
    """
    if not current_device.device_count():
        raise NoDeviceError(
            "support-matrix: there is no CUDA device, and only cuBLASLt's heuristics on a device know what it "
            "supports; run it on a machine with a GPU and a driver"
        )
    index = max(current_device.current_index(), 0) if device is None else device
    with current_device.on_device(index):
        rows = try_everything(lambda request: ask(request, index))
    return {
        "cublaslt": ".".join(map(str, version())),
        "device": current_device.device_name(index),
        "compute_capability": ".".join(map(str, current_device.compute_capability(index))),
        "extents": dict(zip("mnk", EXTENTS, strict=True)),
        "layouts": [dict(zip("abd", layout, strict=True)) for layout in LAYOUTS],
        "rows": [_as_json(row) for row in rows],
    }


def _as_json(row: Row) -> dict[str, Any]:
    types = row.types
    return {
        **{name: type_name(getattr(types, name), types.is_complex) for name in "abcd"},
        "compute_type": types.compute.name,
        "scale_type": types.scale.name,
        "batch": list(row.batch),
        "epilogs": {
            epilog.name: {"cell": cell(trials), "trials": [_answer(trial) for trial in trials]}
            for epilog, trials in row.epilogs.items()
        },
    }


def _answer(trial: Trial) -> dict[str, Any]:
    """In the order of ``layouts``."""
    if trial.found is None:
        return {"supported": False, "why": trial.why}
    return {"supported": True, "copied": list(trial.found.copied), "workspace_bytes": trial.found.workspace_bytes}


# -- the table ----------------------------------------------------------------------------------------------


def cell(trials: Sequence[Trial]) -> str:
    """An epilog's answers in a few characters: see :data:`_LEGEND`."""
    found = [trial.found for trial in trials if trial.found is not None]
    if not found:
        return "-"
    in_place = sum(not answer.copied for answer in found)
    if len(found) < len(trials):
        return f"{len(found)} of {len(trials)}" + ("" if in_place == len(found) else f", {in_place} in place")
    return "yes" if in_place == len(trials) else f"yes, {in_place} in place"


_LEGEND = """\
Each cell stands for {count} layouts: A, B and D in row-major and in column-major order; a bias, masks and gradients
run along rows of a column-major and along columns of a row-major D. **yes**: there is an algorithm for all of them.
**yes, n in place**: for all, but only n are read where they are; the others cost a copy. **n of {count}**: for n of
them. **-**: for none. Empty: cuBLASLt documents no epilogs for the types."""


def render(report: dict[str, Any]) -> str:
    """The report of :func:`support_matrix` as Markdown."""
    extents = ", ".join(f"{name}={extent}" for name, extent in report["extents"].items())
    lines = [
        f"# cuBLASLt {report['cublaslt']} on {report['device']} (compute capability {report['compute_capability']})",
        "",
        f"Asked of its heuristics with {extents}; nothing was run.",
        "",
        _LEGEND.format(count=len(report["layouts"])),
    ]
    for batch in dict.fromkeys(tuple(row["batch"]) for row in report["rows"]):
        lines += ["", f"## Batches of {batch}" if batch else "## Single products", ""]
        lines += _table([row for row in report["rows"] if tuple(row["batch"]) == batch])
    return "\n".join(lines) + "\n"


def _table(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    epilogs = [epilog.name for epilog in EPILOGS]
    header = ["A x B", "C", "D", "compute type", "scale type", *epilogs]
    yield f"| {' | '.join(header)} |"
    yield "|" + " --- |" * len(header)
    for row in rows:
        answers = (row["epilogs"].get(name, {"cell": ""})["cell"] for name in epilogs)
        types = f"{row['a']} x {row['b']}", row["c"], row["d"]
        names = row["compute_type"].removeprefix("COMPUTE_"), row["scale_type"].removeprefix("CUDA_")
        yield f"| {' | '.join((*types, *names, *answers))} |"
