# SPDX-License-Identifier: Apache-2.0
"""FftDescriptor: what is accepted, what is refused and in which words, and the numbers that follow from it.

Expected lengths, types and traits are what libmathdx 0.4.2 answers for these descriptors (target sm_90),
written down by hand.
"""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvmath_device import fft_descriptor as fd
from nvmath_device.descriptors import Dim3
from nvmath_device.dtypes import ValueType, float16, float32, float64, int32
from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError
from nvmath_device.fft_descriptor import FftDescriptor, RealFftOptions, default_traits


def make(**changes: Any) -> FftDescriptor:
    """A plain c2c block FFT of 128 points with some operators changed."""
    base = {
        "size": 128,
        "precision": float32,
        "fft_type": "c2c",
        "execution": "Block",
        "direction": "forward",
    }
    return FftDescriptor(**{**base, **changes})


def real(size: int, fft_type: str, layout: str = "natural", mode: str = "normal", **changes: Any) -> FftDescriptor:
    options = RealFftOptions(layout, mode)
    return make(size=size, fft_type=fft_type, direction=None, real_fft_options=options, **changes)


# -- values ------------------------------------------------------------------------------------------------


def test_defaults_are_written_out() -> None:
    c2c = make()
    assert (c2c.ffts_per_block, c2c.elements_per_thread, c2c.real_fft_options) == (1, "suggested", None)
    assert (c2c.transposition, c2c.thread_layout) == ("any", "regular")
    r2c = make(fft_type="r2c", direction=None)
    assert r2c.direction == "forward"
    assert r2c.real_fft_options == RealFftOptions("natural", "normal")
    assert make(fft_type="c2r", direction=None).direction == "inverse"


def test_a_float16_block_has_two_ffts_where_others_have_one() -> None:
    assert make(precision="float16").ffts_per_block == 2


def test_thread_execution_has_no_knobs() -> None:
    thread = make(size=8, execution="Thread")
    assert (thread.ffts_per_block, thread.elements_per_thread) == (None, None)
    assert make(size=8, execution="Thread", elements_per_thread="suggested") == thread


@pytest.mark.parametrize(
    ("given", "same"),
    [
        ({}, {"elements_per_thread": "suggested"}),
        ({}, {"ffts_per_block": 1}),
        ({"precision": float16}, {"precision": "fp16", "ffts_per_block": 2}),
        ({"fft_type": "r2c", "direction": None}, {"fft_type": "r2c", "direction": "forward"}),
        (
            {"fft_type": "c2r", "direction": None, "real_fft_options": {"real_mode": "folded"}},
            {
                "fft_type": "c2r",
                "direction": "inverse",
                "real_fft_options": {"complex_layout": "natural", "real_mode": "folded"},
            },
        ),
    ],
)
def test_equal_meanings_are_equal(given: dict[str, Any], same: dict[str, Any]) -> None:
    assert make(**given) == make(**same)
    assert hash(make(**given)) == hash(make(**same))


def test_one_ffts_per_block_is_not_the_suggested_number() -> None:
    assert make() != make(ffts_per_block="suggested")


def test_frozen_picklable_printable() -> None:
    d = real(256, "r2c", "packed", precision=float16)
    assert pickle.loads(pickle.dumps(d)) == d
    assert copy.deepcopy(d) == d
    for part in ("256", "r2c", "packed", "float16", "Block"):
        assert part in repr(d)
    with pytest.raises(AttributeError):
        d.size = 3  # type: ignore[misc]


def test_foreign_names_of_precisions() -> None:
    import numpy as np

    assert make(precision=np.float64) == make(precision=np.dtype("float64")) == make(precision=float64)
    assert make(size=np.int64(128)) == make()


def test_importing_needs_no_numpy() -> None:
    code = "import sys, nvmath_device.fft_descriptor; sys.exit(bool({'numpy', 'numba'} & set(sys.modules)))"
    root = Path(fd.__file__).resolve().parents[1]
    assert subprocess.run([sys.executable, "-c", code], cwd=root).returncode == 0


# -- refusals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({}, ["size", "precision", "fft_type", "execution", "direction (if fft_type is 'c2c')"]),
        ({"size": 8, "precision": float32, "fft_type": "c2c"}, ["execution", "direction"]),
        ({"size": 8, "fft_type": "c2r"}, ["precision", "execution"]),
    ],
)
def test_r023_all_missing_operators_are_named_at_once(given: dict[str, Any], named: list[str]) -> None:
    with pytest.raises(InvalidArgumentError) as error:
        FftDescriptor(**given)
    assert str(error.value) == f"FftDescriptor: missing {', '.join(named)}; these have no default"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"size": 0}, ["size", "0", "at least 1"]),
        ({"size": 1}, ["size", "1", "2 to 32768"]),
        ({"size": 65536}, ["size", "65536", "2 to 32768"]),
        ({"size": 16385, "precision": float64}, ["size", "16385", "float64", "2 to 16384"]),
        ({"size": 65, "execution": "Thread"}, ["size", "65", "Thread", "2 to 64"]),
        ({"size": 41, "execution": "Thread", "precision": float64}, ["size", "41", "2 to 40"]),
        ({"precision": "bfloat16"}, ["precision", "bfloat16", "float16, float32 or float64"]),
        ({"precision": int32}, ["precision", "int32"]),
        ({"fft_type": "C2C"}, ["fft_type", "'C2C'", "'c2c', 'r2c', 'c2r'"]),
        ({"execution": "Warp"}, ["execution", "'Warp'", "'Block', 'Thread'"]),
        ({"direction": "backward"}, ["direction", "'backward'", "'forward', 'inverse'"]),
        ({"fft_type": "r2c", "direction": "inverse"}, ["direction", "'inverse'", "r2c", "forward"]),
        ({"fft_type": "c2r", "direction": "forward"}, ["direction", "'forward'", "c2r", "inverse"]),
        ({"real_fft_options": RealFftOptions()}, ["real_fft_options", "c2c", "leave it out"]),
        (
            {"fft_type": "r2c", "direction": None, "real_fft_options": {"layout": "full"}},
            ["'layout'", "complex_layout"],
        ),
        (
            {"fft_type": "r2c", "direction": None, "real_fft_options": {"real_mode": "fold"}},
            ["real_mode", "'folded'"],
        ),
        ({"transposition": "by_row"}, ["transposition", "'by_row'", "by_component_padded"]),
        ({"thread_layout": "transpose"}, ["thread_layout", "'transpose'", "'transposed'"]),
        ({"elements_per_thread": "best"}, ["elements_per_thread", "'best'", "'suggested'"]),
        ({"ffts_per_block": 0}, ["ffts_per_block", "0", "at least 1"]),
        ({"ffts_per_block": 3, "precision": float16}, ["ffts_per_block", "3", "even"]),
        ({"ffts_per_block": 1, "precision": float16}, ["ffts_per_block", "1", "even"]),
        ({"ffts_per_block": 1025}, ["ffts_per_block", "1025", "at most 1024"]),
        (
            {"ffts_per_block": 65, "elements_per_thread": 8},
            ["ffts_per_block", "65", "1040 threads", "at most 64"],
        ),
        (
            {"ffts_per_block": 130, "elements_per_thread": 8, "precision": "half"},
            ["130", "1040", "at most 128"],
        ),
        ({"size": 8192, "elements_per_thread": 4}, ["2048 threads", "more elements_per_thread"]),
        (
            {"size": 8, "execution": "Thread", "ffts_per_block": 1},
            ["ffts_per_block", "Thread", "leave it out"],
        ),
        ({"size": 8, "execution": "Thread", "elements_per_thread": 8}, ["elements_per_thread", "Thread"]),
        (
            {"size": 8, "execution": "Thread", "transposition": "by_complex"},
            ["transposition", "Thread", "'none'"],
        ),
        ({"size": 8, "execution": "Thread", "thread_layout": "transposed"}, ["thread_layout", "Thread"]),
    ],
)
def test_refusals_name_argument_value_and_what_is_allowed(changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(InvalidArgumentError) as error:
        make(**changes)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"size": 128.0},
        {"size": True},
        {"size": "128"},
        {"precision": "float128"},
        {"direction": 1},
        {"ffts_per_block": 2.0},
        {"elements_per_thread": False},
        {"fft_type": "r2c", "direction": None, "real_fft_options": "packed"},
        {"fft_type": "r2c", "direction": None, "real_fft_options": ("packed", "normal")},
    ],
)
def test_wrong_types_are_type_errors(changes: dict[str, Any]) -> None:
    with pytest.raises(ArgumentTypeError) as error:
        make(**changes)
    assert isinstance(error.value, TypeError)


def test_r017_fewer_than_two_elements_per_thread_are_refused_with_the_legal_range() -> None:
    with pytest.raises(InvalidArgumentError, match=r"elements_per_thread: 1 .* size 64; give 2 to 64, or 'suggested'"):
        make(size=64, elements_per_thread=1)
    with pytest.raises(InvalidArgumentError, match=r"elements_per_thread: 33 .* 2 to 32"):
        make(size=32, elements_per_thread=33)
    assert default_traits(make(size=8)).elements_per_thread >= 2


def test_r016_a_length_above_the_maximum_is_refused_with_the_maximum() -> None:
    make(size=8192, precision=float64)
    with pytest.raises(InvalidArgumentError, match=r"size: 65536 .* float64 takes sizes 2 to 16384"):
        make(size=65536, precision=float64)


@pytest.mark.parametrize("fft_type", ["r2c", "c2r"])
def test_r022_float16_real_ffts_go_by_their_logical_length(fft_type: str) -> None:
    """256 (whose 129 complex values are no power of two) and 96 are both fine; what is odd is the batch."""
    for size in (256, 96):
        d = real(size, fft_type, precision=float16)
        assert {d.input_length, d.output_length} == {size, size // 2 + 1}
        assert d.ffts_per_block == 2
    with pytest.raises(InvalidArgumentError, match="pairs"):
        real(256, fft_type, precision=float16, ffts_per_block=1)


# (layout, mode, execution, precision): sizes accepted, sizes refused; asked of libmathdx over 1 to 139 and
# powers of two
FOLDED_AND_PACKED_SIZES = [
    ("natural", "folded", "Thread", float32, [4, 6, 66, 126, 128], [2, 3, 5, 127, 130]),
    ("packed", "folded", "Thread", float64, [4, 42, 78, 80], [2, 9, 79, 82]),
    ("full", "folded", "Thread", float32, [4, 6, 64], [2, 63, 66]),
    ("full", "folded", "Thread", float64, [4, 40], [42]),
    ("natural", "folded", "Block", float32, [4, 8, 128, 65536], [2, 6, 12, 96, 100, 131072]),
    ("packed", "folded", "Block", float64, [4, 32768], [3, 20, 65536]),
    ("full", "folded", "Block", float16, [4, 32768], [65536]),
    ("full", "folded", "Block", float64, [16384], [32768]),
    ("packed", "normal", "Block", float32, [2, 4, 96, 100, 32768], [3, 9, 65, 65536]),
    ("packed", "normal", "Thread", float32, [2, 6, 64], [3, 63, 66]),
    ("natural", "normal", "Block", float32, [2, 3, 9, 65, 5003], [1, 65536]),
    ("full", "normal", "Thread", float64, [2, 3, 39, 40], [41]),
]


@pytest.mark.parametrize("fft_type", ["r2c", "c2r"])
@pytest.mark.parametrize(("layout", "mode", "execution", "precision", "fine", "refused"), FOLDED_AND_PACKED_SIZES)
def test_sizes_of_real_ffts(
    fft_type: str, layout: str, mode: str, execution: str, precision: Any, fine: list[int], refused: list[int]
) -> None:
    for size in fine:
        assert real(size, fft_type, layout, mode, execution=execution, precision=precision).size == size
    for size in refused:
        with pytest.raises(InvalidArgumentError, match=f"size: {size} is not allowed; .*"):
            real(size, fft_type, layout, mode, execution=execution, precision=precision)


# -- derived numbers ---------------------------------------------------------------------------------------

# (size, layout, mode): complex values, real values (folded: complex ones)
LENGTHS = [
    (8, "natural", "normal", 5, 8),
    (8, "natural", "folded", 5, 4),
    (8, "packed", "normal", 4, 8),
    (8, "packed", "folded", 4, 4),
    (8, "full", "normal", 8, 8),
    (8, "full", "folded", 8, 4),
    (9, "natural", "normal", 5, 9),
    (9, "full", "normal", 9, 9),
    (2, "natural", "normal", 2, 2),
    (2, "packed", "normal", 1, 2),
]


@pytest.mark.parametrize(("size", "layout", "mode", "complexes", "reals"), LENGTHS)
@pytest.mark.parametrize("execution", ["Block", "Thread"])
@pytest.mark.parametrize("precision", [float16, float32, float64])
def test_r020_input_and_output_lengths_of_real_ffts(
    size: int, layout: str, mode: str, complexes: int, reals: int, execution: str, precision: Any
) -> None:
    r2c = real(size, "r2c", layout, mode, execution=execution, precision=precision)
    assert (r2c.input_length, r2c.output_length) == (reals, complexes)
    c2r = real(size, "c2r", layout, mode, execution=execution, precision=precision)
    assert (c2r.input_length, c2r.output_length) == (complexes, reals)


@pytest.mark.parametrize(
    ("precision", "batching", "complex_bytes", "real_bytes"),
    [(float16, 2, 8, 4), (float32, 1, 8, 4), (float64, 1, 16, 8)],
)
def test_value_types(precision: Any, batching: int, complex_bytes: int, real_bytes: int) -> None:
    c2c = make(precision=precision)
    r2c, c2r = real(16, "r2c", precision=precision), real(16, "c2r", precision=precision)
    folded = real(16, "r2c", mode="folded", precision=precision)
    assert c2c.implicit_type_batching == batching
    assert c2c.input_type == c2c.output_type == c2c.value_type == ValueType(precision, 2 * batching)
    assert (r2c.input_type.itemsize, r2c.output_type.itemsize) == (real_bytes, complex_bytes)
    assert (c2r.input_type.itemsize, c2r.output_type.itemsize) == (complex_bytes, real_bytes)
    assert (r2c.input_is_real, r2c.output_is_real) == (True, False)
    assert (c2r.input_is_real, c2r.output_is_real) == (False, True)
    assert folded.input_type == folded.output_type == folded.value_type
    assert not folded.input_is_real


def test_replace_checks_again() -> None:
    assert make().replace(size=64).size == 64
    with pytest.raises(InvalidArgumentError, match="size"):
        make().replace(size=100_000)
    changed = real(64, "r2c").replace(fft_type="c2c", real_fft_options=None, direction="inverse")
    assert changed == make(size=64, direction="inverse")


# -- traits ------------------------------------------------------------------------------------------------


def test_default_traits_equal_libmathdx_where_the_split_is_the_same() -> None:
    """Numbers that libmathdx gives for these descriptors with 8 elements per thread of 64 points."""
    traits = default_traits(real(64, "r2c", precision=float64, elements_per_thread=8))
    assert (traits.stride, traits.block_dim, traits.storage_size) == (8, Dim3(8, 1, 1), 8)
    assert (traits.input_elements_per_thread, traits.output_elements_per_thread) == (8, 5)
    folded = default_traits(real(64, "r2c", "packed", "folded", precision=float64, elements_per_thread=64))
    assert (folded.stride, folded.storage_size, folded.shared_memory_size) == (1, 32, 0)
    assert (folded.input_elements_per_thread, folded.output_elements_per_thread) == (32, 32)
    pairs = default_traits(make(precision=float16, elements_per_thread=16, ffts_per_block=8))
    assert (pairs.block_dim, pairs.ffts_per_block, pairs.stride) == (Dim3(8, 4, 1), 8, 8)
    thread = default_traits(real(8, "c2r", "natural", "folded", execution="Thread"))
    assert (thread.elements_per_thread, thread.storage_size, thread.stride) == (8, 5, 1)
    assert (thread.block_dim, thread.shared_memory_size, thread.ffts_per_block) == (None, None, None)


def test_default_traits_of_transposed_threads_are_those_of_libmathdx() -> None:
    """libmathdx answers (4, 2) threads for the regular layout of these FFTs, (2, 4) for the other one."""
    two = {"size": 32, "elements_per_thread": 8, "ffts_per_block": 2}
    regular, transposed = (default_traits(make(**two, thread_layout=x)) for x in ("regular", "transposed"))
    assert (regular.block_dim, transposed.block_dim) == (Dim3(4, 2, 1), Dim3(2, 4, 1))
    assert replace(transposed, block_dim=regular.block_dim) == regular
    pairs = make(**two | {"ffts_per_block": 6}, precision=float16, thread_layout="transposed")
    assert default_traits(pairs).block_dim == Dim3(3, 4, 1)


@pytest.mark.parametrize("size", [2 * 1031, 7 * 1031, 4093, 8191, 16381])
def test_default_traits_of_sizes_without_a_divisor_in_bounds_are_padded(size: int) -> None:
    traits = default_traits(make(size=size))
    assert traits.stride <= 1024
    assert size < traits.stride * traits.elements_per_thread < size + traits.elements_per_thread


def test_default_traits_refuse_a_block_that_cannot_be() -> None:
    with pytest.raises(InvalidArgumentError, match="ffts_per_block: 1000 needs at least 4000 threads"):
        default_traits(make(ffts_per_block=1000))


@st.composite
def descriptors(draw: st.DrawFn) -> FftDescriptor:
    """Any descriptor that is legal by the rules written out here, which are libmathdx's."""
    precision = draw(st.sampled_from([float16, float32, float64]))
    fft_type = draw(st.sampled_from(["c2c", "r2c", "c2r"]))
    execution = draw(st.sampled_from(["Block", "Thread"]))
    layout = draw(st.sampled_from(["natural", "packed", "full"])) if fft_type != "c2c" else "full"
    mode = draw(st.sampled_from(["normal", "folded"])) if fft_type != "c2c" else "normal"
    most = {("Block", False): 32768, ("Block", True): 16384, ("Thread", False): 64, ("Thread", True): 40}[
        execution, precision is float64
    ]
    if mode == "folded" and execution == "Block":
        size = 2 ** draw(st.integers(2, (most if layout == "full" else 2 * most).bit_length() - 1))
    elif mode == "folded":
        size = 2 * draw(st.integers(2, most // 2 if layout == "full" else most))
    elif layout == "packed":
        size = 2 * draw(st.integers(1, most // 2))
    else:
        size = draw(st.integers(2, most))
    suggested = draw(st.sampled_from([None, "suggested"]))
    return FftDescriptor(
        size=size,
        precision=precision,
        fft_type=fft_type,
        execution=execution,
        direction=draw(st.sampled_from(["forward", "inverse"])) if fft_type == "c2c" else None,
        ffts_per_block=suggested,
        real_fft_options=RealFftOptions(layout, mode) if fft_type != "c2c" else None,
    )


@given(descriptors())
def test_any_legal_descriptor_has_a_valid_decomposition(d: FftDescriptor) -> None:
    traits = default_traits(d)
    assert traits.stride * traits.elements_per_thread >= d.size
    assert traits.stride * traits.input_elements_per_thread >= d.input_length
    assert traits.stride * traits.output_elements_per_thread >= d.output_length
    assert traits.storage_size >= max(traits.input_elements_per_thread, traits.output_elements_per_thread)
    # No thread of an FFT is left without any point, so a thread count above the size cannot slip in.
    assert (traits.stride - 1) * traits.elements_per_thread < d.size
    if d.execution == "Thread":
        assert traits.stride == 1
    else:
        assert traits.block_dim is not None
        assert traits.ffts_per_block is not None
        assert 1 <= traits.block_dim.size <= 1024
        assert traits.block_dim.x == traits.stride
        assert traits.block_dim.y * traits.implicit_type_batching == traits.ffts_per_block
        assert (traits.shared_memory_size == 0) == (traits.stride == 1)


@given(descriptors())
def test_any_legal_descriptor_survives_pickle_and_rebuilding(d: FftDescriptor) -> None:
    assert pickle.loads(pickle.dumps(d)) == d
    assert d.replace() == d
    assert hash(d.replace()) == hash(d)


@given(
    st.integers(-5, 200_000),
    st.sampled_from(["c2c", "r2c", "c2r"]),
    st.sampled_from(["Block", "Thread"]),
    st.one_of(st.none(), st.integers(-2, 4000), st.text(max_size=5)),
    st.one_of(st.none(), st.integers(-2, 4000), st.just("suggested")),
)
def test_anything_else_is_an_error_of_the_family(
    size: int, fft_type: str, execution: str, per_thread: Any, per_block: Any
) -> None:
    knobs = {"elements_per_thread": per_thread, "ffts_per_block": per_block}
    try:
        d = make(size=size, fft_type=fft_type, execution=execution, **knobs)
    except InvalidArgumentError:
        pass  # which error it is, the tests above say; here nothing else may come out
    else:
        assert d.size == size
        assert d.direction == "forward"
