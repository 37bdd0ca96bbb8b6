# SPDX-License-Identifier: Apache-2.0
"""The life of a ``Matmul``: reset, release, free, what it keeps alive, how its options count."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from nvmath_device import host
from nvmath_device.errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    InvalidStateError,
    NvmathDeviceError,
    UnsupportedError,
)
from nvmath_device.host.cublaslt_enums import ReductionScheme
from tests.gpu.host.arrays import LIBRARIES, big, new, product_of, right
from tests.gpu.host.libraries import needs, place, to_numpy
from tests.gpu.host.product_cases import LAYOUTS
from tests.gpu.host.product_checks import norm_error
from tests.gpu.host.products import lay

M, N, K = 64, 48, 32


# -- reset --------------------------------------------------------------------------------------------------


@LIBRARIES
def test_reset_with_other_contents_strides_and_alignment(library):
    a, b = new(library, M, K), new(library, K, N, seed=1)
    with host.Matmul(a, b) as mm:
        mm.plan()
        for seed, (name, layout) in enumerate(LAYOUTS.items()):
            if "repeated" in layout or (library == "torch" and "reversed" in name):
                continue
            a = new(library, M, K, seed=seed + 2, layout=layout)
            mm.reset_operands(a=a)
            right(mm.execute(), a, b)
            right(mm.execute(), a, b)
            b = new(library, K, N, seed=seed + 40, layout=layout)
            mm.reset_operands_unchecked(b=b)
            right(mm.execute(), a, b)


@LIBRARIES
@pytest.mark.parametrize("reset", ["reset_operands", "reset_operands_unchecked"])
def test_reset_with_another_kind_is_refused_and_changes_nothing(library, reset):
    a, b = new(library, M, K), new(library, K, N, seed=1)
    with host.Matmul(a, b) as mm:
        mm.plan()
        want = to_numpy(mm.execute())
        for match, operands in (
            ("a: its element type", {"a": new(library, M, K, name="float64")}),
            ("b: its element type", {"b": new(library, K, N, name="float16")}),
            ("a: its shape", {"a": new(library, M, K + 1)}), ("a: its shape", {"a": new(library, 1, M, K)}),
            ("a: its shape", {"a": new(library, M, 0)}), ("a: its device", {"a": to_numpy(a)}),
            ("c: there is no such operand", {"c": new(library, M, N)}), ("nothing is given", {}),
            ("bias: there is no such operand", {"epilog_inputs": {"bias": new(library, M)}}),
            ("quantization_scales", {"quantization_scales": {"a": 2.0}}), ("beta: ", {"beta": 2.0}),
        ):  # fmt: skip
            with pytest.raises(NvmathDeviceError, match=match):
                getattr(mm, reset)(**operands)
            assert np.array_equal(to_numpy(mm.execute()), want), match
        with pytest.raises(ArgumentTypeError, match="a: "):
            getattr(mm, reset)(a=[[1.0]])


@LIBRARIES
def test_reset_of_c_bias_and_factors(library):
    a, b, c = new(library, M, K), new(library, K, N, seed=1), new(library, M, N, seed=2)
    bias = new(library, M, seed=3)
    with host.Matmul(a, b, c, alpha=2, beta=0.5) as mm:
        mm.plan(epilog="BIAS", epilog_inputs={"bias": bias})
        for seed in range(4):
            c, bias = new(library, M, N, seed=seed), new(library, M, seed=seed + 9)
            mm.reset_operands(c=c, epilog_inputs={"bias": bias}, alpha=seed, beta=1 - seed)
            want = seed * product_of(a, b) + (1 - seed) * to_numpy(c) + to_numpy(bias)[:, None]
            assert norm_error(to_numpy(mm.execute()), want) < 1e-6


def test_numpy_operands_are_copied_at_once():
    """What is written to them afterwards does not count, until they are given again."""
    a, b = (np.random.default_rng(i).standard_normal((40, 40)).astype(np.float32) for i in range(2))
    with host.Matmul(a, b) as mm:
        mm.plan()
        want = a.astype(float) @ b
        a[...] = 7
        assert norm_error(mm.execute(), want) < 1e-6
        mm.reset_operands(a=a)
        assert norm_error(mm.execute(), a.astype(float) @ b) < 1e-6
        flipped = np.asfortranarray(b)[::-1]
        mm.reset_operands(b=flipped)
        assert norm_error(mm.execute(), a.astype(float) @ flipped) < 1e-6


# -- states -------------------------------------------------------------------------------------------------


@LIBRARIES
def test_release_and_reset(library):
    a, b = new(library, M, K), new(library, K, N, seed=1)
    with host.Matmul(a, b) as mm:
        mm.plan()
        want = to_numpy(mm.execute())
        held = [weakref.ref(x) for x in (a, b)]
        mm.release_operands()
        del a, b
        gc.collect()
        assert [ref() for ref in held] == [None, None]
        for call in (mm.execute, mm.plan, mm.autotune):
            with pytest.raises(InvalidStateError, match="released"):
                call()
        with pytest.raises(InvalidStateError, match="released; give b"):
            mm.reset_operands(a=new(library, M, K))
        mm.reset_operands(a=new(library, M, K), b=new(library, K, N, seed=1))
        assert np.array_equal(to_numpy(mm.execute()), want)


@LIBRARIES
def test_free(library):
    a, b = new(library, M, K), new(library, K, N, seed=1)
    mm = host.Matmul(a, b)
    with pytest.raises(InvalidStateError, match="not planned"):
        mm.execute()
    mm.plan()
    result = mm.execute()
    want = product_of(a, b)
    held = [weakref.ref(x) for x in (a, b)]
    mm.free()
    mm.free()
    del a, b
    gc.collect()
    assert [ref() for ref in held] == [None, None]
    assert norm_error(to_numpy(result), want) < 1e-6
    for call in (
        mm.execute, mm.plan, mm.autotune, mm.release_operands, mm.__enter__, lambda: mm.descriptor, lambda: mm.copies,
        lambda: mm.reset_operands(a=result),
    ):  # fmt: skip
        with pytest.raises(InvalidStateError, match="freed"):
            call()


@LIBRARIES
def test_nothing_outlives_its_use(library):
    """Neither the object nor the function keeps operands, results or out; a cycle would need the collector."""
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            a, b, out = new(library, M, K), new(library, K, N), new(library, M, N)
            mm = host.Matmul(a, b)
            mm.plan(epilog="RELU_AUX")
            result, aux = mm.execute()
            mm.execute(out=out)
            free = host.matmul(a, b)
            held = [weakref.ref(x) for x in (a, b, out, result, aux["relu_aux"], free)]
            mm.free()
            del a, b, out, mm, result, aux, free
            assert [ref() for ref in held] == [None] * 6
    finally:
        gc.enable()


@LIBRARIES
def test_workspace_released_after_an_execution(library):
    a, b = new(library, 64, 8192), new(library, 8192, 64, seed=1)
    with host.Matmul(a, b) as mm:
        mm.plan()
        for _ in range(3):
            right(mm.execute(release_workspace=True), a, b, 1e-5)
            right(mm.execute(), a, b, 1e-5)


@LIBRARIES
def test_what_cannot_be_planned_leaves_the_plan_there_is(library):
    a, b = new(library, M, K), new(library, K, N, seed=1)
    with host.Matmul(a, b) as mm:
        mm.plan()
        for wrong in (
            {"epilog": "BIAS"}, {"epilog": "NO_SUCH"}, {"preferences": {"limits": 3}}, {"out": new(library, N, M)},
            {"epilog": "BIAS", "epilog_inputs": {"bias": new(library, M + 1)}},
        ):  # fmt: skip
            with pytest.raises(NvmathDeviceError):
                mm.plan(**wrong)
            right(mm.execute(), a, b)


@LIBRARIES
def test_qualifiers_and_scales_of_the_caller_are_not_changed(library):
    z = new(library, 8, 8, name="complex64")
    qualifiers = np.zeros(2, host.matrix_qualifiers_dtype)
    qualifiers["is_conjugate"] = [1, 0]
    before = qualifiers.copy()
    for a in (z, z.conj() if library == "torch" else z):
        got = to_numpy(host.matmul(a, z, qualifiers=qualifiers))
        want = np.conj(to_numpy(a)).astype(complex) @ to_numpy(z)
        assert np.linalg.norm(got - want) < 1e-6 * np.linalg.norm(want)
        assert (qualifiers == before).all()


# -- options and preferences --------------------------------------------------------------------------------


@LIBRARIES
def test_memory_limit(library):
    a, b = new(library, 64, 8192), new(library, 8192, 64, seed=1)
    for limit, most in ((0, 0), ("1 KiB", 1024), (4096, 4096), ("1%", None), (0.5, None)):
        with host.Matmul(a, b, options={"memory_limit": limit}) as mm:
            found = mm.plan(preferences={"limit": 16})
            assert most is None or max(x.workspace_bytes for x in found) <= most
            right(mm.execute(), a, b, 1e-5)
        right(host.matmul(a, b, options={"memory_limit": limit}), a, b, 1e-5)
    with pytest.raises(InvalidArgumentError, match="memory_limit"):
        host.matmul(a, b, options={"memory_limit": "1000 TB"})


class Counting:
    """An allocator that takes memory from Numba, and says what it was asked for."""

    def __init__(self, offset=0):
        self.sizes, self.streams, self.live, self.offset = [], [], 0, offset

    def memalloc_async(self, size, stream):
        from numba import cuda

        self.sizes.append(size)
        self.streams.append(int(stream.handle))
        return Taken(self, cuda.device_array(size + 512, np.uint8), self.offset)


class Taken:
    def __init__(self, allocator, array, offset):
        self.allocator, self.array = allocator, array
        start = array.device_ctypes_pointer.value
        self.device_ptr = (start + 255) // 256 * 256 + offset
        allocator.live += 1

    def __del__(self):
        self.allocator.live -= 1


@LIBRARIES
def test_allocator(library):
    """Asked for workspace and copies, on the stream of the product; what it gives goes back with free()."""
    stepped = new(library, M, 2 * K)[:, ::2]
    a, b = new(library, 64, 8192), new(library, 8192, 64, seed=1)
    for x, y in ((a, b), (stepped, new(library, K, N, seed=3))):
        allocator = Counting()
        with host.Matmul(x, y, options={"allocator": allocator}) as mm:
            mm.plan()
            asked = len(allocator.sizes)
            for _ in range(3):
                right(mm.execute(), x, y, 1e-5)
            assert len(allocator.sizes) == asked, "an execution allocates nothing"
        gc.collect()
        assert allocator.live == 0
        if x is stepped:
            assert sum(allocator.sizes) >= M * K * 4
            alone = Counting()
            right(host.matmul(x, y, options={"allocator": alone}), x, y)
            assert sum(alone.sizes) >= M * K * 4
    with pytest.raises(InvalidArgumentError, match="multiple of 256"):
        host.matmul(stepped, y, options={"allocator": Counting(offset=16)})
    with pytest.raises(ArgumentTypeError, match="allocator"):
        host.matmul(a, b, options={"allocator": 5})


@LIBRARIES
@pytest.mark.parametrize("name", ["float16", "float32", "float64"])
def test_deterministic_runs_have_equal_bits(library, name):
    """One algorithm, no split of K: bit by bit the same from run to run, object to object, and stream to stream."""
    for m, n, k in ((64, 64, 8192), (300, 200, 1000)):
        a, b = new(library, m, k, name=name), new(library, k, n, seed=1, name=name)
        seen = set()
        for _ in range(3):
            with host.Matmul(a, b, options={"deterministic": True}) as mm:
                for algorithm in mm.plan():
                    assert algorithm.reduction_scheme == ReductionScheme.NONE
                seen |= {to_numpy(mm.execute()).tobytes() for _ in range(8)}
            seen |= {to_numpy(host.matmul(a, b, options={"deterministic": True})).tobytes() for _ in range(8)}
        assert len(seen) == 1
        got = np.frombuffer(seen.pop(), name).reshape(m, n)
        assert norm_error(got, product_of(a, b)) < {"float16": 2e-3, "float32": 1e-5, "float64": 1e-13}[name]


@LIBRARIES
def test_rows_do_not_depend_on_the_batch_for_the_shapes_listed(library):
    """Shown for these shapes, promised for none: the first rows of a longer A give the same bits."""
    b = new(library, 512, 256, seed=1, name="float16")
    a = new(library, 256, 512, name="float16")
    with host.Matmul(a, b, options={"deterministic": True}) as mm:
        algorithm = mm.plan()[0]
        whole = to_numpy(mm.execute())
    with host.Matmul(a[:128], b, options={"deterministic": True}) as mm:
        mm.plan(algorithms=[algorithm])
        assert np.array_equal(to_numpy(mm.execute()), whole[:128])


@LIBRARIES
def test_multiprocessors_to_plan_for(library):
    a, b = big(library)
    for count in (1, 16, 100, 0, None):
        options = {"sm_count_target": count}
        right(host.matmul(a, b, options=options), a, b, 2e-3)
        with host.Matmul(a, b, options=options) as mm:
            mm.plan()
            right(mm.execute(), a, b, 2e-3)


@LIBRARIES
def test_preferences(library):
    a, b = big(library, "float32")
    with host.Matmul(a, b) as mm:
        assert len(mm.plan(preferences={"limit": 1})) == 1
        for scheme in ("NONE", "COMPUTE_TYPE", "MASK"):
            preferences = host.MatmulPlanPreferences(reduction_scheme_mask=host.MatmulReductionScheme[scheme])
            for algorithm in mm.plan(preferences=preferences):
                assert scheme == "MASK" or algorithm.reduction_scheme in (0, host.MatmulReductionScheme[scheme])
            right(mm.execute(), a, b)
        mm.plan(preferences={"numerical_impl_mask": host.MatmulNumericalImplFlags.OP_TYPE_FMA | ~0xFF & (1 << 33) - 1})
        right(mm.execute(), a, b)
        for waves in (0.0, 1.0, 100.0):
            try:
                found = mm.plan(preferences={"max_waves_count": waves})
            except UnsupportedError:
                assert waves == 1.0
                continue
            assert waves == 0.0 or all(x.waves <= waves for x in found)
            right(mm.execute(), a, b)


@LIBRARIES
def test_a_handle_of_the_caller(library):
    from nvmath_device.host.cublaslt import Handle

    a, b = new(library, M, K), new(library, K, N, seed=1)
    with Handle() as handle:
        right(host.matmul(a, b, options={"handle": handle.address}), a, b)
        with host.Matmul(a, b, options={"handle": handle.address}) as mm:
            mm.plan()
            right(mm.execute(), a, b)
        host.clear_plans()


def test_devices_and_execution():
    """Arrays in CPU memory go where the options say; those on a GPU stay where they are."""
    a = np.random.default_rng(0).standard_normal((24, 24)).astype(np.float32)
    on_gpu = host.matmul(a, a, options={"execution": "gpu", "device_id": 0})
    on_cpu = host.matmul(a, a, options={"execution": "cpu"})
    assert norm_error(on_gpu, a.astype(float) @ a) < 1e-6
    assert norm_error(on_cpu, a.astype(float) @ a) < 1e-6
    with pytest.raises(InvalidArgumentError, match="device_id: there is no device 99"):
        host.matmul(a, a, options={"device_id": 99})
    x = place("numba", lay(a, "float32"), "cuda").array
    with pytest.raises(InvalidArgumentError, match="execution: 'cpu' is asked for"):
        host.matmul(x, x, options={"execution": "cpu"})
    with pytest.raises(InvalidArgumentError, match="device_id: 5 is asked for"):
        host.matmul(x, x, options={"device_id": 5})


@needs["torch"]
def test_the_current_device_and_stream_stay_as_they_were():
    import torch
    from cuda.bindings import driver

    a, b = new("torch", M, K), new("torch", K, N, seed=1)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        before = driver.cuCtxGetCurrent(), torch.cuda.current_device(), torch.cuda.current_stream()
        host.matmul(a, b)
        with host.Matmul(a, b) as mm:
            mm.plan(epilog="RELU")
            mm.execute()
            mm.autotune(iterations=1)
        after = driver.cuCtxGetCurrent(), torch.cuda.current_device(), torch.cuda.current_stream()
    assert [str(x) for x in before] == [str(x) for x in after]
