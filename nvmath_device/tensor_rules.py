# SPDX-License-Identifier: Apache-2.0
"""Which tensors go together in which call, and what to say where they do not: for compiled and simulated kernels alike.

Each rule gets ``error``, which makes the exception of its call out of a text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nvmath_device.tensor_layouts import COPY_ALIGNMENTS, GMEM, MEMORY_WORDS, RMEM, SMEM
from nvmath_device.tensor_plans import TensorPlan

Error = Callable[[str], Exception]


class Operand:
    """What is known of a tensor when a call is typed.

    Attributes:
        plan: of its descriptor.
        place: 0, 1 or 2 for A, B or C.
        memory: ``"gmem"``, ``"smem"`` or ``"rmem"``; in the last it is a fragment, a thread's part of C.
        is_suggested: of its layout.
        is_natural: whether its elements are the descriptor's.
        foreign: what they are where they are not.
        is_number, is_complex: whether kernels compute with its elements, and with complex ones.
    """

    plan: TensorPlan
    place: int
    memory: str
    is_suggested: bool
    is_natural: bool
    foreign: str
    is_number: bool
    is_complex: bool

    @property
    def element_words(self) -> str:
        return str(self.plan.value(self.place)) if self.is_natural else self.foreign

    @property
    def matrix(self) -> str:
        return "abc"[self.place]

    @property
    def family(self) -> Any:
        """What two fragments that are laid out alike have in common."""
        return (self.plan, self.is_suggested)

    @property
    def is_fragment(self) -> bool:
        return self.memory == RMEM

    @property
    def described(self) -> str:
        """What it is, for messages."""
        how = "" if self.memory == GMEM else ("suggested layout, " if self.is_suggested else "plain layout, ")
        m, n, k = self.plan.descriptor.size
        return f"{self.matrix.upper()} in {MEMORY_WORDS[self.memory]} of {m}x{n}x{k} ({how}{self.element_words})"


def described(given: Any) -> str:
    return given.described if isinstance(given, Operand) else str(given)


def check_tensor(error: Error, name: str, given: Any) -> None:
    if not isinstance(given, Operand):
        raise error(f"wants a tensor for {name}, as make_tensor gives it, got {given}")


def check_fragment(error: Error, name: str, given: Any) -> None:
    if not (isinstance(given, Operand) and given.is_fragment):
        raise error(f"wants a fragment or an accumulator for {name}, got {described(given)}")


def check_same_plan(error: Error, plan: TensorPlan, name: str, given: Operand, other: str) -> None:
    if given.plan != plan:
        raise error(
            f"wants {name} of the same Matmul as {other}, got {given.described}, of another one; make another tensor "
            "on the same memory with this Matmul's layout, if that has the same elements in the same places"
        )


def check_same_layout(error: Error, name: str, x: Operand, other: str, y: Operand) -> None:
    if x.family != y.family:
        raise error(f"wants {name} and {other} of the same layout, got {x.described} and {y.described}")


def check_conversion(error: Error, src: Operand, dst: Operand) -> None:
    if src.element_words == dst.element_words:
        return
    if not (src.is_number and dst.is_number) or (src.is_complex and not dst.is_complex):
        raise error(f"cannot convert {src.element_words} to {dst.element_words}")


def check_copy(error: Error, src: Any, dst: Any) -> None:
    """The tensors of ``copy``."""
    for name, given in (("src", src), ("dst", dst)):
        check_tensor(error, name, given)
        if given.is_fragment:
            raise error(f"wants no registers for {name}, got {given.described}; use copy_fragment")
    check_same_plan(error, src.plan, "dst", dst, "src")
    if src.place != dst.place:
        raise error(f"wants src and dst of the same matrix, got {src.described} and {dst.described}")
    if {src.memory, dst.memory} != {GMEM, SMEM}:
        raise error(f"goes between global and shared memory, and src and dst are both in {MEMORY_WORDS[src.memory]}")
    for name, given in (("src", src), ("dst", dst)):
        if not given.is_natural:
            raise error(
                f"wants elements of {given.plan.value(given.place)} for {name} (a copy converts nothing), got "
                f"{given.described}; copy_fragment converts"
            )


def check_fragment_copy(error: Error, src: Any, dst: Any) -> None:
    """The tensors of ``copy_fragment``."""
    for name, given in (("src", src), ("dst", dst)):
        check_tensor(error, name, given)
    if src.is_fragment == dst.is_fragment:
        both, hint = ("both are", "use axpby or get_results") if src.is_fragment else ("neither is", "use copy")
        raise error(f"wants a fragment for one of src and dst, and {both} one; {hint}")
    check_same_plan(error, src.plan, "dst", dst, "src")
    fragment, other = (src, dst) if src.is_fragment else (dst, src)
    if other.place != 2:
        raise error(f"wants a tensor of C beside the fragment, got {other.described}")
    if other.memory == SMEM and other.is_suggested != fragment.is_suggested:
        raise error(
            f"wants layouts that are both plain or both suggested, got {src.described} and {dst.described}; take "
            f"{'suggest' if fragment.is_suggested else 'get'}_layout_smem_c() for shared memory"
        )
    if other.memory == SMEM and fragment.is_suggested and not fragment.is_natural:
        raise error(
            f"wants elements of {fragment.plan.value(2)} for a suggested layout in shared memory, got "
            f"{fragment.described}"
        )
    check_conversion(error, src, dst)


def check_execute(error: Error, plan: TensorPlan, arguments: Mapping[str, Any]) -> None:
    """The arguments of a call of ``execute`` that has a tensor among them, by name."""
    if "lda" in arguments:
        raise error("takes no leading dimensions with tensors, which have their own: execute(alpha, a, b, beta, c)")
    for name in "abc":
        _check_product_operand(error, plan, name, arguments[name])
    a, b, c = (arguments[name] for name in "abc")
    if not a.is_suggested == b.is_suggested == c.is_suggested:
        said = ", ".join(f"{x.matrix} {'suggested' if x.is_suggested else 'plain'}" for x in (a, b, c))
        raise error(f"wants layouts that are all plain or all suggested, got {said}")
    if c.is_fragment and "alpha" in arguments:
        raise error(
            "takes (a, b, c) with a c in registers, to which the product is added; clear(c) makes it zero, and axpby "
            "has an alpha and a beta"
        )
    if not c.is_fragment and "alpha" not in arguments:
        raise error("takes (alpha, a, b, beta, c) with a c in shared memory")


def _check_product_operand(error: Error, plan: TensorPlan, name: str, given: Any) -> None:
    check_tensor(error, name, given)
    check_same_plan(error, plan, name, given, "the one that executes")
    if given.matrix != name:
        raise error(f"wants a tensor of {name.upper()} for {name}, got {given.described}")
    if given.memory == GMEM:
        where = "shared memory or registers" if name == "c" else "shared memory"
        raise error(f"wants {name} in {where}, got {given.described}; copy it there")
    if not given.is_natural:
        raise error(f"wants elements of {plan.value(given.place)} for {name}, got {given.described}")
    if given.family != (plan, given.is_suggested):
        raise error(
            f"wants a {name} for tensors in shared memory, got {given.described}, which belongs to a pipeline, as "
            "with_pipeline=True says; tile.execute(accumulator) adds to it"
        )


def check_vector(error: Error, tensor: Operand, count: int) -> None:
    """That ``count`` neighbours of a tensor in shared memory are written at once: what copies move at once lies so."""
    nbytes, promised = count * tensor.plan.value(tensor.place).itemsize, tensor.plan.promised(tensor.place)
    if tensor.is_complex or not tensor.is_number or nbytes > promised:
        raise error(
            f"wants no more than {promised} bytes at once, as the descriptor's alignment says, got {count} elements "
            f"for {tensor.described}; give the descriptor a larger alignment, or write them one by one"
        )


def check_gmem(error: Error, accumulator: Operand, name: str, given: Any) -> None:
    """A tensor that goes with an accumulator."""
    check_tensor(error, name, given)
    if given.memory != GMEM or given.place != 2:
        raise error(f"wants C in global memory for {name}, got {given.described}")
    check_same_plan(error, accumulator.plan, name, given, "the accumulator")


def check_partition_copy(error: Error, accumulator: Operand, src: Any, dst: Any) -> None:
    """The tensors of an accumulator's ``partition_and_copy``."""
    check_fragment_copy(error, src, dst)
    gmem, fragment = (dst, src) if src.is_fragment else (src, dst)
    names = ("dst", "src") if src.is_fragment else ("src", "dst")
    check_gmem(error, accumulator, names[0], gmem)
    check_same_layout(error, names[1], fragment, "the accumulator", accumulator)


def copy_alignment(error: Error, tensor: Operand, given: Any) -> int:
    """Bytes that a copy moves at once. ``given``: ``None`` for what the descriptor promises, or the constant."""
    if given is None:
        return tensor.plan.promised(tensor.place)
    value = tensor.plan.value(tensor.place)
    allowed = [n for n in COPY_ALIGNMENTS if n >= value.alignment]
    if isinstance(given, bool) or given not in allowed:
        raise error(
            f"wants a constant number of bytes for alignment, {', '.join(map(str, allowed[:-1]))}"
            f"{' or ' if allowed[:-1] else ''}{allowed[-1]} for elements of {value}, got {given}"
        )
    return int(given)
