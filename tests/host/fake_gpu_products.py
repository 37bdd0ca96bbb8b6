# SPDX-License-Identifier: Apache-2.0
"""Random products of ``lt_strategies`` as a user would ask for them on the fake GPU, and what they must give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from nvmath_device.dtypes import float16, float32, float64, int8, int32
from nvmath_device.host import lt_execution
from nvmath_device.host.epilogs import EPILOGS
from nvmath_device.host.faults import rules_for
from nvmath_device.host.gemm_types import cuda_data_type
from nvmath_device.host.options import matrix_qualifiers_dtype
from tests.host.fake_gpu import FakeGpu
from tests.host.lt_cases import Case, Operand, Outcome, check_outputs, close, dtype_of, expected, place

_NUMPY_TYPES = {float16, float32, float64, int8, int32}  # those that CuPy has


def packages_for(operand: Operand, *, new: bool = False) -> list[str]:
    """Libraries that can have such an array; ``new``: that can make one."""
    v = operand.view
    if v.conjugated:
        return ["torch"]
    found = ["torch"] if new else ["torch", "dlpack"]
    return [*found, "cupy"] if v.element in _NUMPY_TYPES else found


class Product:
    """A case with its operands as arrays of libraries, by name: a, b, c, out, and the epilog's inputs."""

    def __init__(self, gpu: FakeGpu, case: Case, packages: Mapping[str, str], *, scales_on_gpu: bool = False) -> None:
        self.gpu, self.case, self.packages = gpu, case, dict(packages)
        self.operands = case.operands() | ({"out": case.out} if case.out else {})
        self.arrays = {name: self._array(name, operand) for name, operand in self.operands.items()}
        self.scales: dict[str, Any] = dict(case.scales)
        if scales_on_gpu:
            self.scales = {
                name: gpu.array(np.float32([x]), "dlpack", element=float32) for name, x in case.scales.items()
            }

    def _array(self, name: str, operand: Operand) -> Any:
        if self.packages[name] != "numpy":
            return self.gpu.wrap(operand.view, self.packages[name])
        return host_array(operand)

    def replace(self, name: str, operand: Operand) -> Any:
        """Use another operand from now on; its array."""
        if name in ("a", "b", "c"):
            self.case = replace(self.case, **{name: operand})
        else:
            self.case = replace(self.case, inputs=self.case.inputs | {name: operand})
        self.operands[name] = operand
        self.arrays[name] = self._array(name, operand)
        return self.arrays[name]

    # -- arguments -------------------------------------------------------------------------------------------

    @property
    def positional(self) -> list[Any]:
        return [self.arrays[name] for name in ("a", "b", "c") if name in self.arrays]

    @property
    def of_object(self) -> dict[str, Any]:
        """Arguments of the constructor of ``Matmul``."""
        case, types = self.case, self.case.types
        qualifiers = np.zeros(2, matrix_qualifiers_dtype)
        qualifiers["is_conjugate"] = case.conj
        options = {"result_type": cuda_data_type(types.d, types.is_complex), **case.options}
        return {
            "alpha": case.alpha, "beta": case.beta if case.c else None, "qualifiers": qualifiers, "options": options,
            "quantization_scales": self.scales or None,
        }  # fmt: skip

    @property
    def of_plan(self) -> dict[str, Any]:
        case = self.case
        inputs = {name: self.arrays[name] for name in case.inputs}
        preferences = {"epilog": {"aux_amax": case.aux_amax}}
        return {"epilog": case.epilog, "epilog_inputs": inputs, "preferences": preferences}

    @property
    def out(self) -> Any:
        return self.arrays.get("out")

    # -- results ---------------------------------------------------------------------------------------------

    def check(self, answer: Any) -> None:
        """Compare an answer with the case in float64, and see that nothing else was written."""
        case = self.case
        result, outputs = answer if isinstance(answer, tuple) else (answer, {})
        problem = case.problem()
        want = expected(case.logical(), case.batch)
        exact = EPILOGS[case.epilog].activation != "gelu"
        if self.out is not None:
            assert result is self.out
        d = self._operand(result)
        assert d.view.shape == problem.shapes.result
        assert close(d.stored, want["d"].reshape(d.view.shape), case.types.d, exact=exact), "d"
        if case.out is not None and self.packages["out"] != "numpy":
            assert case.out.is_whole(), "written beside the elements of out"
        assert set(outputs) == {o.name for o in problem.outputs}
        made = {name: self._operand(array) for name, array in outputs.items()}
        check_outputs(case, problem, Outcome(d, made), want, exact)
        for operand in case.operands().values():
            assert operand.is_untouched()

    def _operand(self, array: Any) -> Operand:
        if isinstance(array, np.ndarray):
            return host_operand(self.gpu, array)
        return self.gpu.operand(array)


def host_array(operand: Operand) -> np.ndarray:
    """A NumPy array with the same numbers and strides."""
    v = operand.view
    low, high = v.extent_bytes
    memory = np.frombuffer(bytearray(operand.memory.at(low, high - low).tobytes() or b"\0"), np.uint8)
    strides = [s * v.itemsize for s in v.strides]
    return np.ndarray(v.shape, dtype_of(v.element, v.is_complex), memory.data, v.ptr - low, strides)


def host_operand(gpu: FakeGpu, array: np.ndarray) -> Operand:
    """A NumPy array's numbers in modelled memory, where results are compared."""
    from nvmath_device.host.arrays import view

    v = view(array)
    return place(gpu.memory, array, v.element, v.shape, is_complex=v.is_complex)


def change_rules(patch: pytest.MonkeyPatch, case: Case) -> None:
    """Plans follow the rules of the case."""
    patch.setattr(lt_execution, "rules_for", lambda *arguments: replace(rules_for(*arguments), **case.change))
