# SPDX-License-Identifier: Apache-2.0
"""A planned product on a device: cuBLASLt's objects, its algorithms, the copies around it, and the launch.

This is the one place with side effects on the GPU. Everything that can be settled before a call is settled in
:class:`GpuPlan`; :meth:`GpuPlan.launch` only copies, sets addresses and calls.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nvmath_device.errors import HostLibraryError, InvalidArgumentError
from nvmath_device.host import cublaslt_algorithms as algos
from nvmath_device.host import current_device
from nvmath_device.host.cublaslt import Handle, MatmulDesc, MatmulPreference, MatrixLayout, PreparedMatmul
from nvmath_device.host.cublaslt_algorithms import Algo, HeuristicResult
from nvmath_device.host.cublaslt_calls import version
from nvmath_device.host.cublaslt_enums import (
    MatmulDescAttribute,
    MatmulPreferenceAttribute,
    MatrixLayoutAttribute,
    ReductionScheme,
    Status,
)
from nvmath_device.host.device_copies import StridedCopy, apply, plan_copy, prepare
from nvmath_device.host.driver import bindings
from nvmath_device.host.faults import rules_for
from nvmath_device.host.gemm_types import itemsize_of, scalar_dtype
from nvmath_device.host.lt_place import Move, Strided, round_up
from nvmath_device.host.lt_plan import (
    KNOWN_ALIGNMENT,
    OWN_ALIGNMENT,
    SLOTS,
    LtMatrix,
    LtPlan,
    alignment_in_calls,
    plan_lt,
)
from nvmath_device.host.options import MatmulOptions, MatmulPlanPreferences
from nvmath_device.host.problem import Problem
from nvmath_device.host.streams import call_on_stream

A, B, C, D, BIAS, AUX = range(len(SLOTS))
_SOME_ADDRESS = 1 << 40  # heuristics read nothing of an address but what it is a multiple of
_SCALE_BYTES = 16


class Scalars:
    """alpha and beta, of the scale type already, in memory that cuBLASLt reads at each call."""

    def __init__(self, problem: Problem, alpha: Any, beta: Any) -> None:
        self.problem = problem
        self._dtype = scalar_dtype(problem.types.scale)
        self._cells = np.zeros(2, self._dtype)
        self.alpha: int = self._cells.ctypes.data
        self.beta: int = self.alpha + self._dtype.itemsize
        self.set(alpha, beta)

    def set(self, alpha: Any, beta: Any) -> None:
        self._cells[0], self._cells[1] = alpha, beta

    @property
    def values(self) -> tuple[Any, Any]:
        """alpha and beta as NumPy scalars of the scale type."""
        return self._cells[0], self._cells[1]


class GpuPlan:
    """A product prepared for a device.

    ``alignments`` are the addresses' alignments in bytes by slot that later calls keep; ``workspace_limit`` is in
    bytes. The device must be current, and its stream not be capturing. Not changed after construction but for the
    descriptor's addresses, which :meth:`launch` sets under a lock: one plan may be used from several threads.

    Attributes:
        workspace_limit, alignments: as given.
        scratch_bytes: memory that :meth:`launch` wants for copies and scales.
    """

    def __init__(
        self,
        problem: Problem,
        lt: LtPlan,
        handle: Handle,
        *,
        alignments: Mapping[str, int],
        workspace_limit: int,
        options: MatmulOptions,
        preferences: MatmulPlanPreferences,
    ) -> None:
        self.problem, self.lt = problem, lt
        self.workspace_limit = workspace_limit
        self.alignments: Mapping[str, int] = dict(alignments)
        attributes: dict[MatmulDescAttribute, int] = dict(lt.attributes)
        if options.sm_count_target:
            attributes[MatmulDescAttribute.SM_COUNT_TARGET] = options.sm_count_target
        self._desc = MatmulDesc(problem.types.compute, problem.types.scale, attributes)
        left, right = ("b", "a") if lt.swapped else ("a", "b")
        self._matrices = {left: lt.a, right: lt.b, "c": lt.c, "d": lt.d}
        layouts = (_layout(lt.a), _layout(lt.b), _layout(lt.c), _layout(lt.d))
        self._objects = (handle, self._desc, *layouts)  # what all of cuBLASLt's calls about a product begin with
        self._copies, self.scratch_bytes = _plan_scratch(problem, lt)
        self._lock = threading.Lock()
        self._slot_setters = self._bind_slots()
        self._named_setters = self._bind_names()
        self._preference = self._make_preference(workspace_limit, options, preferences)

    # -- planning ------------------------------------------------------------------------------------------

    def _promised(self, slot: str) -> int:
        """What cuBLASLt may take all columns of an operand to start at multiples of, in bytes.

        Leading dimensions count although cuBLASLt has them in the layouts: 13.1 answered an fp16 batch on sm_90, C with
        a leading dimension of 16 and D of 19, with CUDA_ERROR_MISALIGNED_ADDRESS, which ends the CUDA context.
        """
        address = alignment_in_calls(self.lt, slot, self.alignments) | KNOWN_ALIGNMENT
        matrix = self._matrices.get(slot)
        if matrix is not None:
            itemsize = itemsize_of(matrix.data_type)
            address |= matrix.ld * itemsize if matrix.cols > 1 else 0
            address |= matrix.batch_stride * itemsize
        return address & -address

    def _bind_slots(self) -> list[tuple[Any, int]]:
        """Setters of addresses that are operands. Heuristics want to see them, so they get one right away."""
        setters = []
        traits = self.problem.traits
        if traits.bias or traits.gradient:
            setters.append((self._desc.setter(MatmulDescAttribute.BIAS_POINTER), BIAS))
        if traits.aux:
            setters.append((self._desc.setter(MatmulDescAttribute.EPILOGUE_AUX_POINTER), AUX))
        for put, slot in setters:
            put(_SOME_ADDRESS + self._promised(SLOTS[slot]))
        return setters

    def _bind_names(self) -> dict[str, Any]:
        """Setters of addresses of single numbers: scales by operand, and largest values by output."""
        wanted = [(attribute, f"scale_{name}") for attribute, name in self.lt.scales]
        if self.problem.result_amax:
            wanted.append((MatmulDescAttribute.AMAX_D_POINTER, "result_amax"))
        if self.problem.aux_amax:
            wanted.append((MatmulDescAttribute.EPILOGUE_AUX_AMAX_POINTER, "aux_amax"))
        setters = {name: self._desc.setter(attribute) for attribute, name in wanted}
        for put in setters.values():
            put(_SOME_ADDRESS)
        return setters

    def _make_preference(
        self, limit: int, options: MatmulOptions, preferences: MatmulPlanPreferences
    ) -> MatmulPreference:
        P = MatmulPreferenceAttribute
        left, right = ("b", "a") if self.lt.swapped else ("a", "b")
        reduction = ReductionScheme.NONE if options.deterministic else preferences.reduction_scheme_mask
        wanted = {
            P.MAX_WORKSPACE_BYTES: limit,
            P.REDUCTION_SCHEME_MASK: int(reduction),
            P.MAX_WAVES_COUNT: float(preferences.max_waves_count),
            P.MIN_ALIGNMENT_A_BYTES: self._promised(left),
            P.MIN_ALIGNMENT_B_BYTES: self._promised(right),
            P.MIN_ALIGNMENT_C_BYTES: min(self._promised("c"), self._promised("d")),
            P.MIN_ALIGNMENT_D_BYTES: self._promised("d"),
        }
        if preferences.numerical_impl_mask is not None:
            wanted[P.IMPL_MASK] = int(preferences.numerical_impl_mask)
        return MatmulPreference(wanted)

    def search(self, limit: int, *, explain: bool = True) -> list[HeuristicResult]:
        """What heuristics propose, at least one algorithm, the one expected to be fastest first.

        Raises HostLibraryError, with status NOT_SUPPORTED where cuBLASLt has nothing.
        """
        found = algos.heuristics(*self._objects, self._preference, limit=limit, explain=explain)
        if not found:
            raise HostLibraryError("cuBLASLt proposes no algorithm that works", status=Status.NOT_SUPPORTED)
        return found

    def check(self, algo: Algo) -> HeuristicResult:
        """What an algorithm needs here. Raises HostLibraryError where it cannot be used."""
        return algos.check(*self._objects, algo)

    def prepare(self, algo: Algo | None, workspace: int, workspace_bytes: int) -> PreparedMatmul:
        """The call with an algorithm and its workspace. Several may exist at a time."""
        return PreparedMatmul(*self._objects, algo, workspace, workspace_bytes)

    def prepare_copies(self) -> None:
        """Compile what the copies need, so that a capture finds it done."""
        for copy, _, _ in self._copies:
            prepare(copy)

    # -- launching -----------------------------------------------------------------------------------------

    @property
    def is_direct(self) -> bool:
        """One call on the operands' own addresses, of which at most a bias is kept in the descriptor."""
        kept = [slot for _, slot in self._slot_setters]
        is_bias = self.problem.traits.bias and kept == [BIAS]
        more = self._copies or self._named_setters or len(self.lt.calls) > 1
        has_twin = self.problem.has_c or self.lt.c == self.lt.d
        return not more and has_twin and (not kept or is_bias)

    def set_address(self, slot: int, address: int) -> None:
        """Keep an address in the descriptor for calls that are made without :meth:`launch`."""
        with self._lock:
            for put, of_slot in self._slot_setters:
                if of_slot == slot:
                    put(address)

    def launch(
        self,
        call: PreparedMatmul,
        scalars: Scalars,
        addresses: Sequence[int],
        named: Mapping[str, float | int],
        scratch: int,
        stream: int,
    ) -> None:
        """Put the product on a stream: copies in, the calls, the copy out.

        ``addresses`` are by slot (0: there is none; C's is D's where there is no C), on the device. ``named`` has
        addresses of scales and largest values; a scale given as a float is written into the scratch memory, which
        is ``scratch_bytes`` at ``scratch``.
        """
        lt = self.lt
        with self._lock:
            places = list(addresses)
            for copy, slot, offset in self._copies:
                if slot != D:
                    apply(copy, places[slot], scratch + offset, stream)
                places[slot] = scratch + offset
            if not self.problem.has_c:  # cuBLASLt refuses a C of another type at D's address, and takes none
                places[C] = places[D] if lt.c == lt.d else 0
            for position, (name, put) in enumerate(self._named_setters.items()):
                value = named[name]
                if isinstance(value, float):
                    cell = scratch + position * _SCALE_BYTES
                    # A fill keeps its value itself, so that it may be captured; a copy would read the host's memory.
                    bits = struct.unpack("<I", struct.pack("<f", value))[0]
                    call_on_stream(bindings().cuMemsetD32Async, cell, bits, 1, stream)
                    value = cell
                put(value)
            for offsets in lt.calls:
                a, b, c, d, bias, aux = map(int.__add__, places, offsets)
                for put, slot in self._slot_setters:
                    put(bias if slot == BIAS else aux)
                if lt.swapped:
                    a, b = b, a
                call(scalars.alpha, a, b, scalars.beta, c, d, stream)
            for copy, slot, offset in self._copies:
                if slot == D:
                    apply(copy, scratch + offset, addresses[D], stream)


def make_plan(
    problem: Problem,
    operands: Mapping[str, Strided],
    index: int,
    *,
    workspace_limit: int,
    options: MatmulOptions,
    preferences: MatmulPlanPreferences,
) -> GpuPlan:
    """The plan of a product for a device, which must be current; ``operands`` are as ``plan_lt`` takes them.

    Raises:
        InvalidArgumentError: an operand has to be copied and ``copies="refuse"``.
        UnsupportedError: a rule of cuBLASLt cannot be met.
    """
    major, minor = current_device.compute_capability(index)
    lt = plan_lt(problem, operands, rules_for(problem.types, 10 * major + minor, version()))
    if options.copies == "refuse" and lt.moves:
        reasons = "; ".join(f"{move.slot}: {move.why}" for move in lt.moves)
        raise InvalidArgumentError(f"copies: 'refuse' is asked for, and these have to be copied. {reasons}")
    alignments = {"d" if slot == "out" else slot: strided.alignment for slot, strided in operands.items()}
    return GpuPlan(
        problem, lt, current_device.handle(index, options.handle), alignments=alignments,
        workspace_limit=workspace_limit, options=options, preferences=preferences,
    )  # fmt: skip


def _layout(matrix: LtMatrix) -> MatrixLayout:
    batch = {}
    if matrix.batch_count > 1:
        batch = {
            MatrixLayoutAttribute.BATCH_COUNT: matrix.batch_count,
            MatrixLayoutAttribute.STRIDED_BATCH_OFFSET: matrix.batch_stride,
        }
    return MatrixLayout(matrix.data_type, matrix.rows, matrix.cols, matrix.ld, batch)


def _plan_scratch(problem: Problem, lt: LtPlan) -> tuple[list[tuple[StridedCopy, int, int]], int]:
    """Copies with their slot and their offset in the scratch memory, and its size in bytes."""
    part = problem.types.a.itemsize if problem.types.is_complex else None
    copies = []
    offset = round_up(_SCALE_BYTES * (len(lt.scales) + 2), OWN_ALIGNMENT) if lt.scales else 0
    for move in lt.moves:
        copies.append((_copy(move, part), SLOTS.index(move.slot), offset))
        offset += round_up(move.elements * move.itemsize, OWN_ALIGNMENT)
    return copies, offset


def _copy(move: Move, part: int | None) -> StridedCopy:
    source, target = (move.inside, move.outside) if move.slot == "d" else (move.outside, move.inside)
    return plan_copy(
        move.shape, source, target, move.itemsize, conjugate=part if move.conjugate else None,
        fill_zero=move.elements * move.itemsize if move.zeroed else 0,
    )  # fmt: skip
