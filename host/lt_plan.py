# SPDX-License-Identifier: Apache-2.0
"""From a logical product and the strides of its operands to what cuBLASLt is told. Pure arithmetic.

All of cuBLASLt's matrices are column-major here. A row-major D is computed as its transpose, D^T = B^T A^T, which is
column-major in the same memory ("swapped"): then cuBLASLt's A is the user's B, its rows are our columns, and what
goes along rows there goes along columns here. This file is the only one that knows.

An operand is read in place where cuBLASLt can; where it cannot a :class:`Move` says how it gets into memory of its
own first, and why. Extents that a rule wants rounded up are rounded up in such a copy, with zeros.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from nvmath_device.descriptors import COL_MAJOR, ROW_MAJOR
from nvmath_device.dtypes import ElementType
from nvmath_device.errors import UnsupportedError
from nvmath_device.host.array_results import dense_strides
from nvmath_device.host.cublaslt_enums import CudaDataType, MatmulDescAttribute, Operation
from nvmath_device.host.epilogs import MatmulEpilog
from nvmath_device.host.faults import Rules
from nvmath_device.host.gemm_types import cuda_data_type, is_fp8
from nvmath_device.host.lt_place import (
    Move,
    Placed,
    Strided,
    leading_dimension,
    misaligned,
    move_of,
    place_aux,
    place_bias,
    round_up,
)
from nvmath_device.host.matrix_strides import blas_layouts, broadcast_strides, merge_axes, obstacle
from nvmath_device.host.problem import Problem
from nvmath_device.host.shapes import Shape, strides_as_result

_NOT_TRANSPOSED, _TRANSPOSED, _CONJUGATED = Operation.N, Operation.T, Operation.C
_SWAPPED_EPILOG = {MatmulEpilog.BGRADA: MatmulEpilog.BGRADB, MatmulEpilog.BGRADB: MatmulEpilog.BGRADA}
_SUMMED = {MatmulEpilog.BGRADA: "a", MatmulEpilog.BGRADB: "b"}  # the user's operand whose sum over K is returned
SLOTS = ("a", "b", "c", "d", "bias", "aux")  # operands of one call, named as the user knows them


@dataclass(frozen=True)
class LtMatrix:
    """A column-major matrix or a strided batch of them; extents and strides in elements."""

    data_type: CudaDataType
    rows: int
    cols: int
    ld: int
    batch_count: int = 1
    batch_stride: int = 0


@dataclass(frozen=True)
class LtPlan:
    """One product as cuBLASLt is told.

    Attributes:
        swapped: cuBLASLt computes the transpose, and its A is the user's B.
        a, b, c, d: cuBLASLt's matrices. c is d's twin where there is no C.
        attributes: of the descriptor, all but addresses.
        scales: attribute of a scale's address, and the user's operand it belongs to.
        moves_in: copies before the product.
        move_out: the copy of D after it, if D is computed in memory of its own.
        calls: for each call of cublasLtMatmul the offsets of :data:`SLOTS` in bytes; one of zeros mostly.
        batch_count: products in one call.
    """

    swapped: bool
    a: LtMatrix
    b: LtMatrix
    c: LtMatrix
    d: LtMatrix
    attributes: tuple[tuple[MatmulDescAttribute, int], ...]
    scales: tuple[tuple[MatmulDescAttribute, str], ...]
    moves_in: tuple[Move, ...]
    move_out: Move | None
    calls: tuple[Shape, ...]

    @property
    def moves(self) -> tuple[Move, ...]:
        return (*self.moves_in, *((self.move_out,) if self.move_out else ()))


OWN_ALIGNMENT = 256  # bytes; where memory of an operand's own starts
KNOWN_ALIGNMENT = 16  # bytes; plans tell addresses apart up to this, and cuBLASLt is promised no more


def alignment_in_calls(lt: LtPlan, slot: str, alignments: Mapping[str, int]) -> int:
    """What an operand's addresses in all calls are multiples of, in bytes, given that of its array by slot."""
    moved = any(move.slot == slot for move in lt.moves)
    address = OWN_ALIGNMENT if moved else alignments.get(slot, OWN_ALIGNMENT)
    for offsets in lt.calls:
        address |= offsets[SLOTS.index(slot)]
    return address & -address


def plan_lt(problem: Problem, operands: Mapping[str, Strided], rules: Rules) -> LtPlan:
    """The plan for a product that is not empty.

    ``operands`` has a, b, and as the problem has them c, bias, and aux (the input of a backward epilog); and out, if
    the result goes into an array of the user. A result of our own has the order of the problem and no gaps.

    Raises:
        UnsupportedError: a rule cannot be met.
    """
    shapes, types = problem.shapes, problem.types
    _refuse_fp8_aux(problem)
    swapped = problem.order == ROW_MAJOR
    m, n = (shapes.n, shapes.m) if swapped else (shapes.m, shapes.n)
    padded = (
        round_up(m, rules.multiple_m),
        round_up(n, rules.multiple_n),
        round_up(max(shapes.k, 1), rules.multiple_k),
    )
    if padded[:2] != (m, n):
        _refuse_padding(problem, rules)
    left, right = ("b", "a") if swapped else ("a", "b")
    placed: dict[str, Placed] = {}
    for slot, extents, wanted in (
        (left, (m, shapes.k), (padded[0], padded[2])),
        (right, (shapes.k, n), (padded[2], padded[1])),
    ):
        element, conjugated = (types.a, problem.conj_a) if slot == "a" else (types.b, problem.conj_b)
        placed[slot] = _place_factor(
            slot, operands[slot], shapes.batch, extents, wanted, element, problem, rules,
            swapped=swapped, conjugated=conjugated, is_left=slot == left,
        )  # fmt: skip
    d, move_out = _place_result(problem, operands.get("out"), (m, n), padded[:2], swapped, rules)
    placed["d"] = d
    if problem.has_c:
        placed["c"] = _place_c(problem, operands["c"], (m, n), padded[:2], swapped, rules)
    else:
        placed["c"] = placed["d"]._replace(move=None)
    placed["bias"] = place_bias(problem, operands.get("bias"), m, padded[0])
    placed["aux"] = place_aux(problem, operands.get("aux"), (m, n))
    bits = 8 if problem.traits.aux == "relu_aux" else 1
    batch, strides = merge_axes(shapes.batch, *(placed[slot].batch for slot in SLOTS))
    inner, calls = _split_batch(batch, strides, _itemsizes(problem), rules)
    if len(calls) > 1:
        _refuse_largest(problem, len(calls))
    count = 1 if inner is None else batch[inner]
    step = {slot: 0 if inner is None else strides[i][inner] for i, slot in enumerate(SLOTS)}

    def matrix(slot: str, element: ElementType, rows: int, cols: int) -> LtMatrix:
        if placed[slot].operation is not _NOT_TRANSPOSED:
            rows, cols = cols, rows
        data_type = cuda_data_type(element, types.is_complex)
        return LtMatrix(data_type, rows, cols, placed[slot].ld, count, step[slot])

    A = MatmulDescAttribute
    epilog = _SWAPPED_EPILOG.get(problem.epilog, problem.epilog) if swapped else problem.epilog
    attributes: list[tuple[MatmulDescAttribute, int]] = [
        (A.TRANSA, int(placed[left].operation)),
        (A.TRANSB, int(placed[right].operation)),
        (A.EPILOGUE, int(epilog)),
    ]
    if problem.traits.bias or problem.traits.gradient:
        attributes.append((A.BIAS_DATA_TYPE, int(cuda_data_type(types.bias, False))))
        if count > 1:
            attributes.append((A.BIAS_BATCH_STRIDE, step["bias"]))
    if problem.traits.aux:
        attributes.append((A.EPILOGUE_AUX_LD, placed["aux"].ld * bits))
        if problem.traits.aux == "gelu_aux" and types.aux is not types.d:
            attributes.append((A.EPILOGUE_AUX_DATA_TYPE, int(cuda_data_type(types.aux, False))))
        if count > 1:
            attributes.append((A.EPILOGUE_AUX_BATCH_STRIDE, step["aux"] * bits))
    if problem.fast_accumulation:
        attributes.append((A.FAST_ACCUM, 1))
    scale_of = {left: A.A_SCALE_POINTER, right: A.B_SCALE_POINTER, "c": A.C_SCALE_POINTER, "d": A.D_SCALE_POINTER}
    element_of = {"a": types.a, "b": types.b}
    return LtPlan(
        swapped=swapped,
        a=matrix(left, element_of[left], padded[0], padded[2]),
        b=matrix(right, element_of[right], padded[2], padded[1]),
        c=matrix("c", types.c, *padded[:2]),
        d=matrix("d", types.d, *padded[:2]),
        attributes=tuple(attributes),
        scales=tuple((scale_of[name], name) for name in sorted(problem.scaled)),
        moves_in=tuple(p.move for slot in ("a", "b", "c", "bias", "aux") if (p := placed[slot]).move),
        move_out=move_out,
        calls=calls,
    )


def _refuse_padding(problem: Problem, rules: Rules) -> None:
    if problem.traits.aux or problem.traits.gradient:
        shapes = problem.shapes
        raise UnsupportedError(
            f"epilog: {problem.epilog.name} is not offered for a result of {shapes.matrix_result}: {rules.why}, and "
            "auxiliary matrices are not rounded up; choose extents that are multiples of them"
        )


def _refuse_fp8_aux(problem: Problem) -> None:
    """cuBLASLt 13.1 on an H200 takes an fp8 ``gelu_aux``, but what it wrote was not GELU's input; why is not known."""
    aux = problem.types.aux
    if problem.traits.aux == "gelu_aux" and is_fp8(aux):
        raise UnsupportedError(
            f"epilog: {problem.epilog.name} is not offered with a gelu_aux of {aux}, seen with wrong values; give "
            "float8_e4m3fn operands and the aux_type float16 or bfloat16, or a wider result_type"
        )


def _refuse_largest(problem: Problem, calls: int) -> None:
    for name, wanted in (("result_amax", problem.result_amax), ("aux_amax", problem.aux_amax)):
        if wanted:
            raise UnsupportedError(
                f"{name}: the batch {problem.shapes.batch} takes {calls} calls of cuBLASLt, each of which would write "
                "its own largest value over the one before; pass operands whose matrices are evenly spaced, such as "
                "contiguous ones"
            )


# -- A and B ------------------------------------------------------------------------------------------------


def _place_factor(
    slot: str, operand: Strided, batch: Shape, extents: Shape, wanted: Shape, element: ElementType, problem: Problem,
    rules: Rules, *, swapped: bool, conjugated: bool, is_left: bool,
) -> Placed:  # fmt: skip
    """cuBLASLt's A (``is_left``) or B: ``extents`` are its rows and columns after its operation."""
    itemsize = element.itemsize * (2 if problem.types.is_complex else 1)
    shape = problem.shapes.a if slot == "a" else problem.shapes.b
    strides = _matrix_strides(operand, shape, is_a=slot == "a")
    row, col = (strides[-1], strides[-2]) if swapped else strides[-2:]
    batch_strides = broadcast_strides(shape[:-2], strides[:-2], batch)
    assert batch_strides is not None
    summed = slot == _SUMMED.get(problem.epilog)
    if wanted != extents:
        why = _rounded(extents, wanted, swapped, rules.why or "a product has terms")
    elif why := misaligned(operand.alignment, batch_strides, itemsize, rules):
        pass
    else:
        for layout in blas_layouts(extents[0], extents[1], row, col):
            transposed = layout.order == ROW_MAJOR
            if conjugated and not transposed:
                why = "cuBLASLt conjugates transposed matrices only"
            elif summed and transposed is is_left:
                why = f"cuBLASLt sums over K for {problem.epilog.name} where K is not the contiguous axis"
            elif (rules.tn and transposed is not is_left) or layout.ld % rules.leading:
                why = rules.why
            elif extents[transposed] % rules.leading:
                why = f"its {extents[transposed]} contiguous elements are no multiple of {rules.leading}: {rules.why}"
            elif rules.max_leading_bytes and layout.ld * itemsize >= rules.max_leading_bytes:
                why = f"its leading dimension of {layout.ld} elements is too long for this cuBLASLt"
            else:
                operation = _CONJUGATED if conjugated else _TRANSPOSED if transposed else _NOT_TRANSPOSED
                return Placed(layout.ld, operation, batch_strides, None)
        why = why or _obstacle(extents, row, col, swapped)
    transposed = is_left is not summed  # K is the contiguous axis, which every rule accepts, unless it is summed over
    operation = _TRANSPOSED if transposed else _NOT_TRANSPOSED
    rows, cols = wanted
    inner, outer = (cols, rows) if transposed else (rows, cols)
    ld = leading_dimension(inner, itemsize, rules)
    inside = (ld, 1) if transposed else (1, ld)
    move = move_of(
        slot, shape[:-2], strides[:-2], extents, (row, col), inside, ld * outer, itemsize,
        zeroed=wanted != extents, conjugate=conjugated, why=why,
    )  # fmt: skip
    moved = broadcast_strides(move.shape[:-2], move.inside[:-2], batch)
    assert moved is not None
    return Placed(ld, operation, moved, move)


def _matrix_strides(operand: Strided, shape: Shape, *, is_a: bool) -> Shape:
    """Strides of A or B with the axis that a vector lacks."""
    if len(operand.shape) == len(shape):
        return operand.strides
    return (0, *operand.strides) if is_a else (*operand.strides, 0)


# -- C and D ------------------------------------------------------------------------------------------------


def _place_result(
    problem: Problem, out: Strided | None, extents: Shape, wanted: Shape, swapped: bool, rules: Rules
) -> tuple[Placed, Move | None]:
    """D, and the copy out of the memory of its own, if it has one."""
    shapes, element = problem.shapes, problem.types.d
    itemsize = element.itemsize * (2 if problem.types.is_complex else 1)
    if out is None:
        full = dense_strides(shapes.matrix_result, _axes(len(shapes.matrix_result), swapped))
        alignment = 256
    else:
        full, alignment = strides_as_result(out.shape, out.strides, shapes), out.alignment
    row, col = (full[-1], full[-2]) if swapped else full[-2:]
    why = misaligned(alignment, full[:-2], itemsize, rules) or _result_obstacle(
        extents, wanted, row, col, itemsize, swapped, rules
    )
    if not why:
        layout = next(x for x in blas_layouts(extents[0], extents[1], row, col) if x.order == COL_MAJOR)
        return Placed(layout.ld, _NOT_TRANSPOSED, full[:-2], None), None
    ld = leading_dimension(wanted[0], itemsize, rules)
    move = move_of(
        "d", shapes.batch, full[:-2], extents, (row, col), (1, ld), ld * wanted[1], itemsize,
        zeroed=False, conjugate=False, why=why,
    )  # fmt: skip
    return Placed(ld, _NOT_TRANSPOSED, move.inside[:-2], None), move


def _axes(ndim: int, swapped: bool) -> tuple[int, ...]:
    axes = tuple(range(ndim))
    return axes if swapped else (*axes[:-2], axes[-1], axes[-2])


def _rounded(extents: Shape, wanted: Shape, swapped: bool, why: str) -> str:
    given, needed = (extents[::-1], wanted[::-1]) if swapped else (extents, wanted)  # as the user knows them
    return f"extents {given} are rounded up to {needed}: {why}"


def _obstacle(extents: Shape, row: int, col: int, swapped: bool) -> str:
    given = (*extents[::-1], col, row) if swapped else (*extents, row, col)  # as the user knows them
    return obstacle(*given) or ""


def _result_obstacle(
    extents: Shape, wanted: Shape, row: int, col: int, itemsize: int, swapped: bool, rules: Rules
) -> str:
    """Why D or C cannot be where it is; empty if it can."""
    if wanted != extents:
        return _rounded(extents, wanted, swapped, rules.why)
    layouts = blas_layouts(extents[0], extents[1], row, col)
    fitting = [layout for layout in layouts if layout.order == COL_MAJOR]
    if not fitting:
        other = "it has the other order than the result is computed in" if layouts else ""
        return other or _obstacle(extents, row, col, swapped)
    ld = fitting[0].ld
    if ld % rules.leading:
        return rules.why
    if rules.max_leading_bytes and ld * itemsize >= rules.max_leading_bytes:
        return f"its leading dimension of {ld} elements is too long for this cuBLASLt"
    return ""


def _place_c(problem: Problem, c: Strided, extents: Shape, wanted: Shape, swapped: bool, rules: Rules) -> Placed:
    shapes, element = problem.shapes, problem.types.c
    itemsize = element.itemsize * (2 if problem.types.is_complex else 1)
    full = strides_as_result(c.shape, c.strides, shapes)
    row, col = (full[-1], full[-2]) if swapped else full[-2:]
    if problem.conj_c:
        why = "C is conjugated lazily, and cuBLASLt reads it as it is stored"
    else:
        why = misaligned(c.alignment, full[:-2], itemsize, rules) or _result_obstacle(
            extents, wanted, row, col, itemsize, swapped, rules
        )
    if not why:
        layout = next(x for x in blas_layouts(extents[0], extents[1], row, col) if x.order == COL_MAJOR)
        return Placed(layout.ld, _NOT_TRANSPOSED, full[:-2], None)
    ld = leading_dimension(wanted[0], itemsize, rules)
    move = move_of(
        "c", shapes.batch, full[:-2], extents, (row, col), (1, ld), ld * wanted[1], itemsize,
        zeroed=wanted != extents, conjugate=problem.conj_c, why=why,
    )  # fmt: skip
    moved = broadcast_strides(move.shape[:-2], move.inside[:-2], shapes.batch)
    assert moved is not None
    return Placed(ld, _NOT_TRANSPOSED, moved, move)


# -- batches ------------------------------------------------------------------------------------------------


def _itemsizes(problem: Problem) -> Shape:
    types, parts = problem.types, 2 if problem.types.is_complex else 1
    aux = 1 if problem.traits.aux == "relu_aux" else types.aux.itemsize
    matrices = (e.itemsize * parts for e in (types.a, types.b, types.c, types.d))
    return (*matrices, types.bias.itemsize, aux)


def _split_batch(
    extents: Shape, strides: tuple[Shape, ...], itemsizes: Shape, rules: Rules
) -> tuple[int | None, tuple[Shape, ...]]:
    """Which merged axis cuBLASLt steps through, and the offsets in bytes of all calls, one for each other index."""
    inner = None
    if not rules.loop_batches:
        regular = [axis for axis in range(len(extents)) if all(s[axis] >= 0 for s in strides)]
        inner = max(regular, key=lambda axis: extents[axis], default=None)
    outer = [axis for axis in range(len(extents)) if axis != inner]
    return inner, tuple(_offsets(outer, extents, strides, itemsizes))


def _offsets(axes: list[int], extents: Shape, strides: tuple[Shape, ...], itemsizes: Shape) -> Iterator[Shape]:
    for index in product(*(range(extents[axis]) for axis in axes)):
        yield tuple(
            itemsize * sum(i * s[axis] for i, axis in zip(index, axes, strict=True))
            for s, itemsize in zip(strides, itemsizes, strict=True)
        )
