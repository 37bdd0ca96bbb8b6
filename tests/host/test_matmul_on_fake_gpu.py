# SPDX-License-Identifier: Apache-2.0
"""What ``matmul`` and ``Matmul`` do around the numbers, on a GPU that is not there: streams, memory, plans that are
used again, algorithms that fail, captures, operands in CPU memory.
"""

from __future__ import annotations

import gc
import threading

import ml_dtypes
import numpy as np
import pytest

import nvmath_device.host as host
from nvmath_device.dtypes import float8_e4m3fn, float16, float32, float64
from nvmath_device.errors import (
    HostLibraryError,
    InvalidArgumentError,
    InvalidStateError,
    NvmathDeviceError,
    UnsupportedError,
)
from nvmath_device.host import MatmulEpilog as E
from nvmath_device.host import streams
from tests.host.fake_gpu import CAPTURING, CUPY_STREAM, TORCH_STREAM, gpu

__all__ = ["gpu"]  # the fixture

PACKAGES = ["torch", "cupy", "dlpack"]
STREAM_OF = {"torch": TORCH_STREAM, "cupy": CUPY_STREAM, "dlpack": 0}
RANDOM = np.random.default_rng(3)


def numbers(*shape):
    return RANDOM.integers(-3, 4, shape).astype(np.float64)


def pair(gpu, package="torch", m=5, k=7, n=4, element=float32, **how):
    """Operands and their product."""
    a, b = numbers(m, k), numbers(k, n)
    return gpu.array(a, package, element=element, **how), gpu.array(b, package, element=element, **how), a @ b


def regions(gpu):
    gc.collect()
    return len(gpu.memory._regions)


# -- results ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("package", PACKAGES)
def test_every_call_gives_a_new_array_of_the_operands_library(gpu, package):
    a, b, want = pair(gpu, package)
    results = [host.matmul(a, b) for _ in range(3)]
    kind = {"torch": gpu.torch.Tensor, "cupy": gpu.cupy.ndarray}.get(package)
    for result in results:
        assert np.array_equal(gpu.read(result), want)
        assert kind is None or type(result) is kind
    assert len({gpu.operand(result).view.ptr for result in results}) == 3
    assert gpu.lt.searches == 1


@pytest.mark.parametrize("package", PACKAGES)
def test_memory_goes_back_when_nobody_uses_it(gpu, package):
    """Copies of operands are let go of when the next call finds that the GPU is done with them."""
    a, b, _ = pair(gpu, package)
    strided = gpu.array(numbers(5, 7), package, element=float32, steps=(2, 2))
    before = regions(gpu)
    for operand, copies in ((a, 0), (strided, 1)):
        results = [host.matmul(operand, b) for _ in range(2)]
        workspace, held = 1, regions(gpu)
        assert held == before + workspace + 2 + copies
        results += [host.matmul(operand, b) for _ in range(6)]
        assert regions(gpu) == held + 6
        del results
    with host.Matmul(strided, b) as mm:
        mm.plan()
        for _ in range(3):
            mm.execute()
            assert regions(gpu) == before + workspace + copies + 1
    host.clear_plans()
    streams._retained.release_done()
    assert regions(gpu) == before


def test_c_is_not_read_where_beta_is_zero(gpu):
    a, b, want = pair(gpu)
    c = gpu.array(np.full((5, 4), np.nan), element=float32)
    assert np.array_equal(gpu.read(host.matmul(a, b, c, beta=0)), want)
    assert np.isnan(gpu.read(host.matmul(a, b, c, beta=1))).all()


@pytest.mark.parametrize("shapes", [((0, 7), (7, 4)), ((5, 7), (7, 0)), ((2, 0, 7), (7, 4)), ((0, 5, 7), (0, 7, 4))])
def test_a_result_without_elements_costs_nothing(gpu, shapes):
    a, b = (gpu.array(numbers(*shape), element=float32) for shape in shapes)
    result = host.matmul(a, b)
    assert result.shape == np.matmul(np.empty(shapes[0]), np.empty(shapes[1])).shape
    with host.Matmul(a, b) as mm:
        mm.plan()
        assert mm.execute().shape == result.shape
    assert (gpu.lt.searches, gpu.lt.products) == (0, [])


@pytest.mark.parametrize("order", "CF")
def test_in_place(gpu, order):
    a, b, want = pair(gpu)
    values = numbers(5, 4)
    c = gpu.array(values, element=float32, order=order)
    assert host.matmul(a, b, c, beta=2, options={"inplace": True}) is c
    assert np.array_equal(gpu.read(c), want + 2 * values)
    with host.Matmul(a, b, c, beta=-1, options={"inplace": True}) as mm:
        mm.plan()
        assert mm.copies == ()
        assert mm.execute() is c
        assert np.array_equal(gpu.read(c), -2 * values)
        mm.execute()
        assert np.array_equal(gpu.read(c), want + 2 * values)


@pytest.mark.parametrize("package", PACKAGES)
def test_an_out_that_overlaps_an_operand_is_refused_each_time(gpu, package):
    """The first call goes the long way, the next ones may go the short one."""
    a, b, want = pair(gpu, package, 6, 6, 6)
    good = gpu.array(numbers(6, 6), package, element=float32)
    with host.Matmul(a, b) as mm:
        mm.plan()
        for _ in range(3):
            assert host.matmul(a, b, out=good) is good
            assert mm.execute(out=good) is good
            assert np.array_equal(gpu.read(good), want)
            for bad, name in ((a, "a"), (b, "b")):
                with pytest.raises(InvalidArgumentError, match=f"^out: it shares memory with {name}"):
                    host.matmul(a, b, out=bad)
                with pytest.raises(InvalidArgumentError, match=f"^out: it shares memory with {name}"):
                    mm.execute(out=bad)


@pytest.mark.parametrize("package", PACKAGES)
def test_another_array_of_the_same_kind_is_used_from_then_on(gpu, package):
    a, b, _ = pair(gpu, package)
    with host.Matmul(a, b) as mm:
        mm.plan()
        for _ in range(3):
            a_values, b_values = numbers(5, 7), numbers(7, 4)
            mm.reset_operands(a=gpu.array(a_values, package, element=float32))
            mm.execute()
            mm.reset_operands(b=gpu.array(b_values, package, element=float32))
            gc.collect()  # operands that were replaced are gone
            assert np.array_equal(gpu.read(mm.execute()), a_values @ b_values)
    assert gpu.lt.searches == 1


def test_factors_and_biases_can_be_replaced(gpu):
    a, b, want = pair(gpu)
    bias, c = numbers(1, 4), numbers(5, 4)
    mm = host.Matmul(a, b, gpu.array(c, element=float32), alpha=2, beta=3)
    mm.plan(epilog=E.BIAS, epilog_inputs={"bias": gpu.array(bias, element=float32)})
    for alpha, beta in ((2, 3), (-1, 0.5), (1, 0)):
        mm.reset_operands(alpha=alpha, beta=beta)
        for _ in range(2):
            assert np.array_equal(gpu.read(mm.execute()), alpha * want + beta * c + bias)
        bias = numbers(1, 4)
        mm.reset_operands(epilog_inputs={"bias": gpu.array(bias, element=float32)})
        for _ in range(2):
            assert np.array_equal(gpu.read(mm.execute()), alpha * want + beta * c + bias)
    mm.free()


def test_scales_on_the_gpu_are_read_when_the_product_is_computed(gpu):
    a, b = numbers(16, 16), numbers(16, 16)
    scale = gpu.array(np.float32([0.5]), "dlpack", element=float32)
    operands = gpu.array(a, element=float8_e4m3fn), gpu.array(b, element=float8_e4m3fn, order="F")
    options = {"result_type": "float16"}
    with host.Matmul(*operands, quantization_scales={"a": scale, "b": 2.0}, options=options) as mm:
        mm.plan()
        assert np.array_equal(gpu.read(mm.execute()), a @ b)
        gpu.operand(scale).stored[...] = 4.0
        assert np.array_equal(gpu.read(mm.execute()), 8 * (a @ b))


def test_a_plan_for_each_kind_of_out(gpu):
    a, b, want = pair(gpu)
    with host.Matmul(a, b) as mm:
        mm.plan()
        for how in ({}, {"order": "F"}, {"steps": (2, 2)}, {"steps": (-1, 1)}, {"gaps": (0, 3)}, {"order": "F"}):
            out = gpu.array(numbers(5, 4), element=float32, **how)
            assert mm.execute(out=out) is out
            assert np.array_equal(gpu.read(out), want)
            searches = gpu.lt.searches
            mm.execute(out=out)
            assert gpu.lt.searches == searches
        assert gpu.lt.searches == 5  # C order is that of a new result


# -- streams ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize("stream", [None, 5])
@pytest.mark.parametrize("how", [{}, {"steps": (2, 2)}])
def test_everything_is_put_on_one_stream(gpu, package, stream, how):
    a, b, want = pair(gpu, package, **how)
    for _ in range(2):
        assert np.array_equal(gpu.read(host.matmul(a, b, stream=stream)), want)
    with host.Matmul(a, b, stream=stream) as mm:
        mm.plan(stream=stream)
        mm.execute(stream=stream)
        mm.execute(stream=stream)
    expected = STREAM_OF[package] if stream is None else stream
    assert gpu.streams("product", "copy", "fill") == {expected}
    assert gpu.count("product") == 4
    assert gpu.count("copy") == (8 if how else 0)
    assert gpu.count("wait") == 0


def test_other_libraries_are_waited_for_unless_the_stream_is_given(gpu):
    a, _, _ = pair(gpu, "torch")
    _, b, _ = pair(gpu, "cupy")
    host.matmul(a, b)
    first = [("record", CUPY_STREAM), ("wait for event", TORCH_STREAM), ("product", TORCH_STREAM)]
    assert gpu.log[:3] == first
    gpu.log.clear()
    host.matmul(a, b, stream=5)
    assert gpu.log[0] == ("product", 5)
    assert gpu.count("wait for event") == 0


def test_executions_on_two_streams_are_ordered(gpu):
    """They share a workspace."""
    a, b, want = pair(gpu)
    with host.Matmul(a, b) as mm:
        mm.plan()
        mm.execute(stream=5)
        gpu.log.clear()
        assert np.array_equal(gpu.read(mm.execute(stream=6)), want)
        assert gpu.log[:3] == [("record", 5), ("wait for event", 6), ("product", 6)]


def test_blocking(gpu):
    a, b, _ = pair(gpu)
    for _ in range(2):
        gpu.log.clear()
        host.matmul(a, b, options={"blocking": True})
        assert gpu.log[-1] == ("wait", TORCH_STREAM)


# -- captures -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [{}, {"steps": (2, 2)}])
@pytest.mark.parametrize("package", PACKAGES)
def test_a_planned_product_can_be_captured(gpu, package, how):
    a, b, want = pair(gpu, package, **how)
    out = gpu.array(numbers(5, 4), package, element=float32)
    with host.Matmul(a, b) as mm:
        mm.plan(out=out)
        gpu.log.clear()
        taken, searches = gpu.allocated, gpu.lt.searches
        mm.execute(out=out, stream=CAPTURING)
        assert (gpu.allocated, gpu.lt.searches) == (taken, searches)
        assert gpu.streams() == {CAPTURING}
        assert {what for what, _ in gpu.log} <= {"product", "copy", "fill"}
    assert np.array_equal(gpu.read(out), want)


def test_nothing_is_planned_while_a_graph_is_captured(gpu):
    a, b, _ = pair(gpu)
    with pytest.raises(InvalidStateError, match="captured"):
        host.matmul(a, b, stream=CAPTURING)
    mm = host.Matmul(a, b)
    with pytest.raises(InvalidStateError, match="captured"):
        mm.plan(stream=CAPTURING)
    mm.plan()
    strided = gpu.array(numbers(5, 4), element=float32, order="F")
    with pytest.raises(InvalidStateError, match="captured"):
        mm.execute(out=strided, stream=CAPTURING)
    mm.free()
    out = gpu.array(numbers(5, 4), element=float32)
    host.matmul(a, b, out=out)
    with pytest.raises(InvalidStateError, match=r"captured.*workspace"):
        host.matmul(a, b, out=out, stream=CAPTURING)
    assert gpu.count("product") == 1


def test_what_needs_no_workspace_can_be_captured_once_it_is_known(gpu):
    a, b, want = pair(gpu)
    out = gpu.array(numbers(5, 4), element=float32)
    host.matmul(a, b, options={"memory_limit": 0})
    host.matmul(a, b, out=out, options={"memory_limit": 0})
    gpu.operand(out).stored[...] = 77
    host.matmul(a, b, out=out, stream=CAPTURING, options={"memory_limit": 0})
    assert np.array_equal(gpu.read(out), want)


# -- algorithms and workspaces ------------------------------------------------------------------------------


def test_an_algorithm_that_does_not_work_after_all_is_left_out(gpu):
    a, b, want = pair(gpu)
    gpu.lt.refusing = {1}
    for _ in range(3):
        assert np.array_equal(gpu.read(host.matmul(a, b)), want)
    assert [number for number, _ in gpu.lt.products] == [2, 2, 2]


@pytest.mark.parametrize("package", ["torch", "cupy", "dlpack"])
def test_an_object_leaves_it_out_too(gpu, package):
    a, b, want = pair(gpu, package)
    gpu.lt.refusing = {1}
    with host.Matmul(a, b) as mm:
        mm.plan()
        for _ in range(3):
            assert np.array_equal(gpu.read(mm.execute()), want)
    assert [number for number, _ in gpu.lt.products] == [2, 2, 2]


def test_where_no_algorithm_works_the_last_refusal_is_told(gpu):
    a, b, _ = pair(gpu)
    gpu.lt.refusing = set(range(1, 100))
    with pytest.raises(HostLibraryError, match=r"cublasLtMatmul.*not supported"):
        host.matmul(a, b)


def test_what_heuristics_have_nothing_for_is_explained(gpu):
    a, b, _ = pair(gpu)
    gpu.lt.workspaces = []
    with pytest.raises(UnsupportedError, match="has no algorithm for") as error:
        host.matmul(a, b)
    assert "Fake GPU" in str(error.value)
    with pytest.raises(UnsupportedError, match="has no algorithm for"):
        host.Matmul(a, b).plan()


@pytest.mark.parametrize(("limit", "number"), [(0, 1), (4095, 1), (4096, 1), ("80%", 1)])
def test_no_more_workspace_than_is_allowed(gpu, limit, number):
    a, b, want = pair(gpu)
    before = gpu.allocated
    options = {"memory_limit": limit}
    assert np.array_equal(gpu.read(host.matmul(a, b, options=options)), want)
    assert gpu.lt.proposed[number].workspace_bytes == (0 if limit in (0, 4095) else 4096)
    assert gpu.allocated == before + (1 if limit in (0, 4095) else 2)  # the result, and a workspace
    with host.Matmul(a, b, options=options) as mm:
        mm.plan()
        assert [x.workspace_bytes for x in mm.algorithms] == ([0] if limit in (0, 4095) else [4096, 0])
        for algorithm in mm.algorithms:
            assert np.array_equal(gpu.read(mm.execute(algorithm=algorithm)), want)


def test_a_released_workspace_is_taken_again(gpu):
    a, b, want = pair(gpu)
    with host.Matmul(a, b) as mm:
        mm.plan()
        held = regions(gpu)
        result = mm.execute(release_workspace=True)
        assert regions(gpu) == held - 1 + 1  # the result
        del result
        assert regions(gpu) == held - 1
        result = mm.execute()
        assert regions(gpu) == held + 1
        assert np.array_equal(gpu.read(result), want)


def test_memory_comes_from_the_users_allocator(gpu):
    class Pool:
        asked: list = []  # noqa: RUF012

        def memalloc_async(self, size, stream):
            class Buffer:
                pass

            made = Buffer()
            made.ptr = gpu.take(made, size)
            self.asked.append((size, stream.handle))
            return made

    pool = Pool()
    a, b, want = pair(gpu, steps=(2, 2))
    with host.Matmul(a, b, options={"allocator": pool}) as mm:
        mm.plan()
        assert np.array_equal(gpu.read(mm.execute()), want)
    assert len(pool.asked) == 1
    assert {handle for _, handle in pool.asked} == {TORCH_STREAM}
    assert pool.asked[0][0] >= 4096 + 4 * (5 * 7 + 7 * 4)


# -- copies -------------------------------------------------------------------------------------------------


def test_copies_can_be_refused(gpu):
    a, b, want = pair(gpu)
    strided = gpu.array(numbers(5, 7), element=float32, steps=(2, 2))
    refuse = {"copies": "refuse"}
    assert np.array_equal(gpu.read(host.matmul(a, b, options=refuse)), want)
    for call in (
        lambda: host.matmul(strided, b, options=refuse),
        lambda: host.Matmul(strided, b, options=refuse).plan(),
    ):
        with pytest.raises(InvalidArgumentError, match=r"^copies: .*a: strides .*contiguous"):
            call()
    assert gpu.count("product") == 1
    with host.Matmul(strided, b) as mm:
        mm.plan()
        (reason,) = mm.copies
        assert reason.startswith("a: strides")


# -- operands in CPU memory ---------------------------------------------------------------------------------


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.complex64, ml_dtypes.bfloat16])
def test_numpy_arrays_go_to_the_gpu_and_back(gpu, order, dtype):
    a, b = np.asarray(numbers(5, 7).astype(dtype), order=order), numbers(14, 4).astype(dtype)[::2]
    for _ in range(2):
        result = host.matmul(a, b)
        assert type(result) is np.ndarray
        assert result.dtype == np.dtype(dtype)
        assert np.array_equal(result, a @ b)
    assert gpu.count("product") == 2
    with host.Matmul(a, b) as mm:
        mm.plan()
        for _ in range(2):
            a = np.asarray(numbers(5, 7).astype(dtype), order=order)
            mm.reset_operands(a=a)
            assert np.array_equal(mm.execute(), a @ b)


def test_numpy_results_and_auxiliary_arrays_come_back(gpu):
    a, b, bias = (x.astype(np.float32) for x in (numbers(5, 7), numbers(7, 4), numbers(1, 4)))
    before = a @ b + bias
    for out in (None, np.zeros((5, 4), np.float32), np.zeros((10, 8), np.float32)[::2, ::-2]):
        d, outputs = host.matmul(a, b, epilog="RELU_AUX_BIAS", epilog_inputs={"bias": bias}, out=out)
        assert out is None or d is out
        assert np.array_equal(d, np.maximum(before, 0))
        mask = np.unpackbits(outputs["relu_aux"], axis=1, bitorder="little", count=4)
        assert np.array_equal(mask.astype(bool), before > 0)


def test_operands_on_the_cpu_and_the_gpu(gpu):
    a, b, want = pair(gpu)
    on_cpu = gpu.read(b)
    with pytest.raises(InvalidArgumentError, match="mix_devices"):
        host.matmul(a, on_cpu)
    result = host.matmul(a, on_cpu, options={"mix_devices": True})
    assert type(result) is gpu.torch.Tensor
    assert np.array_equal(gpu.read(result), want)
    result = host.matmul(gpu.read(a), b, options={"mix_devices": True})
    assert type(result) is np.ndarray
    assert np.array_equal(result, want)


def test_cpu_execution_touches_no_gpu(gpu):
    a, b = numbers(5, 7), numbers(7, 4)
    assert np.array_equal(host.matmul(a, b, options={"execution": "cpu"}), a @ b)
    assert (gpu.log, gpu.lt.searches) == ([], 0)


# -- states -------------------------------------------------------------------------------------------------


def test_what_an_object_cannot_do_any_more_or_not_yet(gpu):
    a, b, want = pair(gpu)
    mm = host.Matmul(a, b)
    with pytest.raises(InvalidStateError, match="plan"):
        mm.execute()
    mm.plan()
    mm.execute()
    mm.release_operands()
    with pytest.raises(InvalidStateError, match="released"):
        mm.execute()
    with pytest.raises(InvalidStateError, match="give b"):
        mm.reset_operands(a=a)
    mm.reset_operands(a=a, b=b)
    assert np.array_equal(gpu.read(mm.execute()), want)
    with pytest.raises(InvalidArgumentError, match="shape"):
        mm.reset_operands(a=gpu.array(numbers(6, 7), element=float32))
    with pytest.raises(InvalidArgumentError, match="element type"):
        mm.reset_operands(a=gpu.array(numbers(5, 7), element=float16))
    assert np.array_equal(gpu.read(mm.execute()), want)
    mm.free()
    mm.free()
    for use in (mm.execute, mm.plan, lambda: mm.reset_operands(a=a)):
        with pytest.raises(InvalidStateError, match="freed"):
            use()


def test_a_call_that_fails_leaves_the_object_as_it_was(gpu):
    a, b, want = pair(gpu)
    with host.Matmul(a, b) as mm:
        mm.plan()
        for bad in (
            lambda: mm.execute(out=gpu.array(numbers(4, 4), element=float32)),
            lambda: mm.execute(out=gpu.array(numbers(5, 4), element=float64)),
            lambda: mm.reset_operands(a=numbers(5, 7).astype(np.float32)),
            lambda: mm.reset_operands(d=a),
            lambda: mm.execute(stream="x"),
            lambda: mm.reset_operands(epilog_inputs={"bias": a}),
        ):
            with pytest.raises((NvmathDeviceError, TypeError)):
                bad()
            assert np.array_equal(gpu.read(mm.execute()), want)


def test_threads_share_plans(gpu):
    """Each with its own bias and operands; descriptors, where addresses of biases are kept, are shared."""
    operands = []
    for _ in range(4):
        a, b, bias = numbers(5, 7), numbers(7, 4), numbers(1, 4)
        arrays = [gpu.array(x, element=float32) for x in (a, b, bias)]
        operands.append((*arrays, a @ b, a @ b + bias))
    wrong = []

    def work(a, b, bias, plain, biased):
        for _ in range(10):
            if not np.array_equal(gpu.read(host.matmul(a, b)), plain):
                wrong.append("plain")
            d = host.matmul(a, b, epilog=E.BIAS, epilog_inputs={"bias": bias})
            if not np.array_equal(gpu.read(d), biased):
                wrong.append("bias")

    gpu.driver.context = 100  # one context for all threads of the fake
    threads = [threading.Thread(target=work, args=each) for each in operands]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert gpu.count("product") == 80
