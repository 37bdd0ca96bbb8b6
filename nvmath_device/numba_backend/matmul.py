# SPDX-License-Identifier: Apache-2.0
"""``Matmul`` in kernels: its type, the typing of ``execute`` and the call it becomes."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import cgutils, types

from nvmath_device.descriptors import ROW_MAJOR
from nvmath_device.dtypes import ValueType
from nvmath_device.lto import toolchain
from nvmath_device.lto.recipes import static_leading_dimension_is_miscompiled
from nvmath_device.matmul import RUNTIME_FORM, STATIC_FORM, Matmul, ResolvedGemm
from nvmath_device.numba_backend import debug_checks, emit
from nvmath_device.numba_backend.copies import matmul_copies
from nvmath_device.numba_backend.device_pipelines import MATMUL_METHODS
from nvmath_device.numba_backend.element_types import scalar_type
from nvmath_device.numba_backend.generated import RequiredBlock
from nvmath_device.numba_backend.objects import (
    Call,
    ConstantType,
    is_debug,
    method,
    register_constant,
    settled_target,
)
from nvmath_device.numba_backend.operands import check_matrix, check_writable
from nvmath_device.numba_backend.tensor_accumulators import ACCUMULATOR_METHODS
from nvmath_device.numba_backend.tensor_execute import TENSOR_FORM, lower_execute, resolve_execute
from nvmath_device.numba_backend.tensor_types import TensorType
from nvmath_device.numba_backend.tensors import LAYOUT_METHODS, layouts_of

ATTRIBUTES = (
    "size", "precision", "data_type", "execution", "function", "arrangement", "transpose_mode", "alignment",
    "leading_dimension", "block_dim", "block_size", "static_block_dim", "max_threads_per_block",
    "with_pipeline", "enable_input_streaming",
    "a_value_type", "b_value_type", "c_value_type", "a_dim", "b_dim", "c_dim", "a_size", "b_size", "c_size",
)  # fmt: skip


class MatmulType(ConstantType):
    """A ``Matmul``; what it left open is settled for the target of the running compilation."""

    value: Matmul

    @property
    def plan(self) -> ResolvedGemm:
        return self.value.resolved(settled_target(self.value.block_execution.sm, self.value))

    def for_target(self) -> Matmul:
        return Matmul.from_descriptor(*self.plan)


def _resolve_execute(typ: MatmulType, call: Call) -> Any:
    if any(isinstance(x, TensorType) for x in call.given):
        return resolve_execute(typ, call, call.bind(STATIC_FORM, RUNTIME_FORM, TENSOR_FORM))
    arguments = call.bind(STATIC_FORM, RUNTIME_FORM)
    descriptor = typ.plan.descriptor
    modes = zip("abc", descriptor.value_types, descriptor.arrangement, strict=True)
    for name, value, order in modes:
        check_matrix(call, name, arguments[name], value, order)
    check_writable(call, "c", arguments["c"])
    target = scalar_type(descriptor.value_types[2])
    for name in ("alpha", "beta"):
        _check_scalar(call, name, arguments[name], target)
        arguments[name] = target
    for name in ("lda", "ldb", "ldc"):
        if name in arguments:
            if not isinstance(arguments[name], types.Integer):
                raise call.error(f"wants an integer for {name} (elements), got {arguments[name]}")
            arguments[name] = types.uint32
    return call.signature(types.void, arguments)


def _check_scalar(call: Call, name: str, given: Any, target: Any) -> None:
    if not isinstance(given, (types.Number, types.Boolean)):
        raise call.error(f"wants a number for {name}, got {given}")
    if given == types.bfloat16:  # Numba has no cast from it that compiles everywhere
        raise call.error(f"wants another number than a bfloat16 for {name}; convert it: float32(x)")
    if isinstance(given, types.Complex) and not isinstance(target, types.Complex):
        raise call.error(f"wants a real number for {name}, which becomes {target}, got {given}")
    if isinstance(target, types.Integer) and not isinstance(given, (types.Integer, types.Boolean)):
        raise call.error(f"wants an integer for {name}, which becomes {target}, got {given}")


def _lower_execute(context: Any, builder: Any, typ: MatmulType, sig: Any, args: Any) -> None:
    if isinstance(sig.args[-1], TensorType):
        lower_execute(context, builder, typ, sig, args)
        return
    runtime = len(sig.args) == len(RUNTIME_FORM)
    names = RUNTIME_FORM if runtime else STATIC_FORM
    value_of, type_of = dict(zip(names, args, strict=True)), dict(zip(names, sig.args, strict=True))
    plan = typ.plan
    c_type = plan.descriptor.value_types[2]
    pointer = {n: emit.data_pointer(context, builder, type_of[n], value_of[n]) for n in "abc"}
    if is_debug():
        _check_at_run_time(context, builder, plan, type_of, value_of, pointer, runtime=runtime)
    emit.bound_threads(builder, plan.block_dim.size)
    block = RequiredBlock(plan.block_dim, exact=plan.execution.static_block_dim)
    alpha, beta = (emit.scalar_address(context, builder, c_type, value_of[n]) for n in ("alpha", "beta"))
    as_declared = not runtime and all(type_of[n].ndim == 1 for n in "abc")
    if as_declared and not static_leading_dimension_is_miscompiled(plan.descriptor, toolchain.nvrtc_version):
        arguments = [alpha, pointer["a"], pointer["b"], beta, pointer["c"]]
        emit.call_generated(context, builder, plan.recipe("SMEM"), arguments, block=block)
        return
    ld = {}
    for name, layout, value in zip("abc", plan.descriptor.layouts, plan.descriptor.value_types, strict=True):
        if runtime:
            elements = value_of[f"ld{name}"]
        elif type_of[name].ndim == 1:
            elements = ir.Constant(ir.IntType(32), layout.ld)
        else:
            elements = _own_leading_dimension(context, builder, type_of[name], value_of[name], layout.order, value)
        ld[name] = emit.integer_address(context, builder, elements)
    arguments = [alpha, pointer["a"], ld["a"], pointer["b"], ld["b"], beta, pointer["c"], ld["c"]]
    emit.call_generated(context, builder, plan.recipe("SMEM_DYNAMIC_LD"), arguments, block=block)


def _check_at_run_time(
    context: Any, builder: Any, plan: ResolvedGemm, type_of: Any, value_of: Any, pointer: Any, *, runtime: bool
) -> None:
    name = "Matmul.execute"
    debug_checks.check_block(context, builder, name, plan.block_dim, shape=plan.execution.static_block_dim)
    d = plan.descriptor
    for n, layout, value, alignment in zip("abc", d.layouts, d.value_types, d.alignment or (), strict=True):
        debug_checks.check_shared(context, builder, name, n, pointer[n])
        debug_checks.check_aligned(context, builder, name, n, pointer[n], alignment)
        operand = (context, builder, name, n, type_of[n], value_of[n], layout, value)
        debug_checks.check_matrix(*operand, own_layout=runtime)
        if runtime:
            debug_checks.check_leading_dimension(*operand, value_of[f"ld{n}"])


def _own_leading_dimension(context: Any, builder: Any, typ: Any, array: Any, order: str, value: ValueType) -> Any:
    """Elements between rows (or columns) of a 2-D view, from its strides."""
    struct = emit.array_struct(context, builder, typ, array)
    stride = cgutils.unpack_tuple(builder, struct.strides, 2)[0 if order == ROW_MAJOR else 1]
    elements = builder.udiv(stride, ir.Constant(stride.type, value.itemsize))
    return builder.trunc(elements, ir.IntType(32))


def _storage_size(name: str) -> Any:
    """``get_shared_storage_size()`` and its kind: a constant in kernels, so it can be a shape."""
    matrices = "ab" if name.endswith("_ab") else "abc"

    def resolve(typ: MatmulType, call: Call) -> Any:
        given = call.bind((), tuple(f"layout_{x}" for x in matrices))
        layouts = layouts_of(call, tuple(given.values()))
        return call.signature(types.literal(getattr(typ.for_target(), name)(*layouts)), given)

    def lower(context: Any, builder: Any, typ: MatmulType, sig: Any, args: Any) -> Any:
        return context.get_constant(types.intp, sig.return_type.literal_value)

    return method(f"Matmul.{name}", resolve, lower)


register_constant(
    MatmulType,
    ATTRIBUTES,
    {
        "execute": method("Matmul.execute", _resolve_execute, _lower_execute),
        "get_shared_storage_size": _storage_size("get_shared_storage_size"),
        "get_shared_storage_size_ab": _storage_size("get_shared_storage_size_ab"),
        **matmul_copies(),
        **MATMUL_METHODS,
        **LAYOUT_METHODS,
        **ACCUMULATOR_METHODS,
    },
)
