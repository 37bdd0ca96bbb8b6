# SPDX-License-Identifier: Apache-2.0
"""Emits LLVM IR for calls into generated code: pointers, scalars by address, declarations, linking."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba.cuda import cgutils, types
from numba.cuda.debuginfo import DIBuilder

from nvmath_device.descriptors import MAX_ALIGNMENT_BYTES
from nvmath_device.dtypes import ValueType
from nvmath_device.lto import codegen
from nvmath_device.lto.recipes import Recipe
from nvmath_device.numba_backend.element_types import element_numba, scalar_type
from nvmath_device.numba_backend.generated import RequiredBlock, generated
from nvmath_device.numba_backend.objects import is_debug

_BYTE_POINTER = ir.IntType(8).as_pointer()
_SHARED_ADDRESS_SPACE = 3
_INT32 = ir.IntType(32)
_WARNING, _OVERRIDE = 2, 4  # what LLVM is to do about module flags that differ


def call_generated(
    context: Any,
    builder: Any,
    recipe: Recipe,
    arguments: list[Any],
    *,
    function: str | None = None,
    block: RequiredBlock | None = None,
) -> None:
    """Call a void function of ``recipe`` with pointers, and have its code linked into the kernel, where it is made.

    ``function`` is the role of one that does not execute, as in the recipe; ``block`` what the function must be called
    by, where it is not one thread alone. The declaration is exactly
    libmathdx's prototype, ``void f(void*, ...)``: under link-time optimisation a declaration that differs is
    not noticed by anybody.
    """
    context.active_code_library.add_linking_file(generated(recipe, block))
    raise_alignment(builder)
    yield_debug_version(builder.module)
    name = recipe.symbol if function is None else codegen.fft_symbols(recipe)[function]
    callee = builder.module.globals.get(name)
    if callee is None:
        prototype = ir.FunctionType(ir.VoidType(), [_BYTE_POINTER] * len(arguments))
        callee = ir.Function(builder.module, prototype, name)
    builder.call(callee, [builder.bitcast(a, _BYTE_POINTER) for a in arguments])


def vector_of(builder: Any, values: Sequence[Any]) -> Any:
    """Numbers of one type as a vector."""
    vector = ir.Constant(ir.VectorType(values[0].type, len(values)), ir.Undefined)
    for n, value in enumerate(values):
        vector = builder.insert_element(vector, value, ir.Constant(_INT32, n))
    return vector


def raise_alignment(builder: Any) -> None:
    """Numba aligns arrays to their element's parts (complex64 to 4 bytes); libmathdx needs the whole value.

    Covers the shared and local arrays of the function being compiled. Arrays that come in as arguments of a
    device function were aligned by their owner, if that calls generated code itself or uses
    ``nvmath_device.shared.array``.
    """
    for variable in builder.module.global_values:
        if isinstance(variable, ir.GlobalVariable) and variable.addrspace == _SHARED_ADDRESS_SPACE:
            variable.align = max(variable.align or 1, MAX_ALIGNMENT_BYTES)
    for instruction in builder.function.entry_basic_block.instructions:
        if isinstance(instruction, ir.instructions.AllocaInstr) and isinstance(instruction.type.pointee, ir.ArrayType):
            instruction.align = max(instruction.align or 1, MAX_ALIGNMENT_BYTES)


def yield_debug_version(module: Any) -> None:
    """With ``lineinfo=True`` Numba and NVRTC both state the version of their debug information, in ways ("warning"
    and "error") that nvJitLink refuses to merge. Numba adds its statement after lowering and gets this very node,
    as llvmlite keeps equal nodes once; "override" goes with anything.
    """
    statement = [ir.Constant(_INT32, _WARNING), "Debug Info Version", ir.Constant(_INT32, DIBuilder.DEBUG_INFO_VERSION)]
    node = module.add_metadata(statement)
    node.operands = (ir.Constant(_INT32, _OVERRIDE), *node.operands[1:])


def bound_threads(builder: Any, threads: int) -> None:
    """Promise the compiler that the function being compiled runs with at most so many threads a block.

    The counterpart of ``__launch_bounds__``: without it a function may take so many registers that its block
    does not fit. It has an effect on kernels only, and a ``launch_bounds`` of the user's own beside it has none on the
    number of threads.

    Not with ``debug=True``: generated code is then called, not inlined, and the linker refuses a kernel that may
    have fewer registers than it. So a wrong block starts, too, and its check can name it.
    """
    if not is_debug():
        bound_function(builder.function, threads)


def bound_function(function: Any, threads: int) -> None:
    """The same promise about a function. Several promises about one become the largest."""
    annotations = cgutils.get_or_insert_named_metadata(function.module, "nvvm.annotations")
    for node in list(annotations.operands):
        subject, name, value = node.operands
        if subject is function and getattr(name, "string", None) == "maxntidx":
            if value.constant >= threads:
                return
            annotations.operands.remove(node)
    annotate(function, "maxntidx", threads)


def annotate(function: Any, name: str, value: int) -> None:
    """Tell NVVM something about a kernel, such as ``maxnreg``, the registers a thread may have.

    Asked for at the link, that limit is not kept for kernels with a bound on their threads.
    """
    annotations = cgutils.get_or_insert_named_metadata(function.module, "nvvm.annotations")
    said = (function, ir.MetaDataString(function.module, name), ir.Constant(_INT32, value))
    annotations.add(function.module.add_metadata(said))


def array_struct(context: Any, builder: Any, array_type: Any, array: Any) -> Any:
    """Numba's view of an array value: ``.data``, ``.shape``, ``.strides`` (bytes), ``.nitems``."""
    return context.make_array(array_type)(context, builder, array)


def data_pointer(context: Any, builder: Any, array_type: Any, array: Any) -> Any:
    return array_struct(context, builder, array_type, array).data


def scalar_address(context: Any, builder: Any, value_type: ValueType, scalar: Any) -> Any:
    """Put a scalar, already converted to ``scalar_type(value_type)``, on the stack as libmathdx lays it out."""
    component = context.get_value_type(element_numba(value_type.element))
    count = value_type.components
    slot = cgutils.alloca_once(builder, ir.ArrayType(component, count))
    slot.align = max(value_type.alignment, 8)
    for i, part in enumerate(_parts(context, builder, value_type, scalar)):
        builder.store(part, cgutils.gep_inbounds(builder, slot, 0, i))
    return slot


def _parts(context: Any, builder: Any, value_type: ValueType, scalar: Any) -> list[Any]:
    if value_type.components == 1:
        return [scalar]
    source = scalar_type(value_type)
    target = element_numba(value_type.element)
    if not isinstance(source, types.Complex):  # an integer: the real part
        return [scalar, ir.Constant(scalar.type, 0)]
    pair = context.make_complex(builder, source, value=scalar)
    return [context.cast(builder, part, source.underlying_float, target) for part in (pair.real, pair.imag)]


def integer_address(context: Any, builder: Any, value: Any) -> Any:
    """Address of an ``unsigned`` on the stack holding ``value`` (an i32)."""
    slot = cgutils.alloca_once(builder, _INT32)
    builder.store(value, slot)
    return slot


def least(builder: Any, x: Any, y: Any) -> Any:
    """Of two integers without signs."""
    return builder.select(builder.icmp_unsigned("<", x, y), x, y)
