# SPDX-License-Identifier: Apache-2.0
"""``nvmath_device.make_tensor``, and the layouts of a ``Matmul`` in kernels."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import cgutils, types

from nvmath_device.descriptors import ROW_MAJOR
from nvmath_device.numba_backend import debug_checks, emit
from nvmath_device.numba_backend.element_types import holds, holds_components, wanted
from nvmath_device.numba_backend.functions import register_function
from nvmath_device.numba_backend.objects import Call, is_debug, method
from nvmath_device.numba_backend.operands import check_order
from nvmath_device.numba_backend.pipeline_calls import LONG, POINTER
from nvmath_device.numba_backend.tensor_types import LayoutType, RuntimeLayoutType, TensorType, plan_of
from nvmath_device.tensor_layouts import GMEM, MEMORY_WORDS, SMEM, Layout
from nvmath_device.tensor_plans import TensorPlan

# -- layouts -------------------------------------------------------------------------------------------------------


def _layout_method(name: str) -> Any:
    """A method without run-time values; a leading dimension is one, and the layout then carries it."""
    takes_ld = "gmem" in name

    def resolve(typ: Any, call: Call) -> Any:
        given = call.bind((), optional=("leading_dimension",) if takes_ld else ())
        layout = getattr(typ.value, name)()
        ld = given.get("leading_dimension", types.none)
        if ld == types.none:
            return call.signature(LayoutType(layout), given)
        if not isinstance(ld, types.Integer):
            raise call.error(f"wants an integer for leading_dimension (elements), got {ld}")
        return call.signature(RuntimeLayoutType(layout), {"leading_dimension": types.int64})

    def lower(context: Any, builder: Any, typ: Any, sig: Any, args: Any) -> Any:
        return args[0] if isinstance(sig.return_type, RuntimeLayoutType) else context.get_dummy_value()

    return method(f"Matmul.{name}", resolve, lower)


LAYOUT_METHODS = {
    name: _layout_method(name)
    for name in (
        *(f"get_layout_{memory}_{matrix}" for memory in (GMEM, SMEM) for matrix in "abc"),
        *(f"suggest_layout_smem_{matrix}" for matrix in "abc"), "get_layout_rmem_c", "suggest_layout_rmem_c",
    )
}  # fmt: skip


def layouts_of(call: Call, given: tuple[Any, ...]) -> list[Layout]:
    """Layouts that a call got, as the host knows them."""
    for typ in given:
        if not isinstance(typ, LayoutType):
            raise call.error(f"wants layouts in shared memory, known when the kernel is compiled, got {typ}")
    return [typ.for_target() for typ in given]


# -- make_tensor ---------------------------------------------------------------------------------------------------


def _resolve_make_tensor(call: Call) -> Any:
    arguments = call.bind(("array", "layout"))
    array, layout_type = arguments["array"], arguments["layout"]
    if not isinstance(layout_type, LayoutType | RuntimeLayoutType):
        raise call.error(
            f"wants a layout for layout, such as mm.get_layout_smem_a() of a Matmul mm gives, got {layout_type}"
        )
    layout = layout_type.layout
    plan = plan_of(layout.matmul)
    if not isinstance(array, types.Array):
        raise call.error(f"wants an array for array, got {array}")
    if layout.memory == GMEM:
        element = _check_gmem(call, array, layout, plan)
    else:
        _check_pointer(call, array, layout, plan)
        element = None
    return call.signature(TensorType(plan, layout.place, layout.memory, layout.is_suggested, element), arguments)


def _check_gmem(call: Call, array: Any, layout: Layout, plan: TensorPlan) -> Any:
    """Numba's type of its elements, where they are not the descriptor's."""
    if array.ndim not in (1, 2):
        raise call.error(f"wants a tile, 2-D, or a pointer to it, 1-D, for array, got a {array.ndim}-D array: {array}")
    value = plan.value(layout.place)
    if array.ndim == 1 and array.layout not in "CF":
        raise call.error(f"wants a contiguous 1-D array for array (it is used as a pointer), got {array}")
    if array.ndim == 2:
        check_order(call, "array", array, plan.descriptor.arrangement[layout.place], also="a 1-D array, ")
    if holds(array.dtype, value) or (array.ndim == 1 and holds_components(array.dtype, value)):
        return None
    if layout.matrix == "c" and value.components == 1 and isinstance(array.dtype, types.Number):
        return array.dtype
    raise call.error(f"wants elements of {wanted(value)} for array, {_matrix(layout)}, got an array of {array.dtype}")


def _check_pointer(call: Call, array: Any, layout: Layout, plan: TensorPlan) -> None:
    if array.ndim != 1 or array.layout not in "CF":
        raise call.error(
            f"wants a contiguous 1-D array of layout.cosize elements for array, {_matrix(layout)}, got {array}"
        )
    value = plan.value(layout.place)
    if not (holds(array.dtype, value) or holds_components(array.dtype, value)):
        raise call.error(
            f"wants elements of {wanted(value)} for array, {_matrix(layout)}, got an array of {array.dtype}"
        )


def _matrix(layout: Layout) -> str:
    return f"{layout.matrix.upper()} in {MEMORY_WORDS[layout.memory]}"


def _lower_make_tensor(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    typ, (array_type, layout_type), (array, layout_value) = sig.return_type, sig.args, args
    emit.raise_alignment(builder)
    struct = emit.array_struct(context, builder, array_type, array)
    tensor = cgutils.create_struct_proxy(typ)(context, builder)
    tensor.data = builder.bitcast(struct.data, POINTER)
    layout = layout_type.layout if isinstance(layout_type, RuntimeLayoutType) else layout_type.for_target()
    if typ.memory == GMEM:
        tensor.ld = _leading_dimension(context, builder, typ, layout_type, layout_value, array_type, struct)
    if is_debug():
        _check_at_run_time(context, builder, typ, layout, array_type, array, tensor)
    return tensor._getvalue()


def _leading_dimension(
    context: Any, builder: Any, typ: TensorType, layout_type: Any, layout_value: Any, array_type: Any, struct: Any
) -> Any:
    if isinstance(layout_type, RuntimeLayoutType):
        return layout_value
    if layout_type.layout.leading_dimension is not None:
        return ir.Constant(LONG, layout_type.layout.leading_dimension)
    if array_type.ndim == 1:
        return ir.Constant(LONG, typ.plan.layouts[typ.place].ld)
    outer = 0 if typ.plan.descriptor.arrangement[typ.place] == ROW_MAJOR else 1
    stride = cgutils.unpack_tuple(builder, struct.strides, 2)[outer]
    itemsize = context.get_abi_sizeof(context.get_data_type(array_type.dtype))
    return builder.sdiv(stride, ir.Constant(LONG, itemsize), flags=("exact",))


def _check_at_run_time(
    context: Any, builder: Any, typ: TensorType, layout: Layout, array_type: Any, array: Any, tensor: Any
) -> None:
    name, argument = "make_tensor", f"the array for {_matrix(layout)}"
    itemsize = typ.plan.value(typ.place).itemsize
    if typ.memory == GMEM:
        plain = typ.plan.layouts[typ.place]
        if array_type.ndim == 2:
            debug_checks.check_tile(context, builder, name, argument, array_type, array, plain)
        return
    if typ.memory == SMEM:
        debug_checks.check_shared(context, builder, name, argument, tensor.data)
        debug_checks.check_aligned(context, builder, name, argument, tensor.data, layout.alignment)
    debug_checks.check_length(context, builder, name, argument, array_type, array, layout.cosize * itemsize)


register_function("make_tensor", _resolve_make_tensor, _lower_make_tensor)
