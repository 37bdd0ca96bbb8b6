# SPDX-License-Identifier: Apache-2.0
"""``DevicePipeline`` on the simulator, and what it refuses on the host."""

from __future__ import annotations

import numpy as np
import pytest
from numba import cuda

import nvmath_device as nd
from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError, KernelExecutionError, KernelTypingError
from tests import pipeline_kernels

ROW, COL = "row_major", "col_major"
HALF = ("float16", "float16", "float32")


def matmul(**options):
    return nd.Matmul(
        (16, 8, 8), HALF, "real", **{"arrangement": (ROW, COL, ROW), "block_size": 32, "with_pipeline": True, **options}
    )


MM = matmul()


def operands(m, n, k, seed=1):
    rng = np.random.default_rng(seed)
    a, b = (rng.uniform(-1, 1, s).astype(np.float16) for s in ((m, k), (k, n)))
    return a, np.asfortranarray(b)


def launched(kernel, pipeline, c, *rest, grid=(1, 1), shared=None):
    c = cuda.to_device(c)
    kernel[grid, pipeline.block_dim, 0, pipeline.buffer_size if shared is None else shared](pipeline, c, *rest)
    return c.copy_to_host()


@pytest.mark.parametrize("to", [lambda x: x, cuda.to_device], ids=["NumPy", "on the device"])
def test_a_product_of_whole_tiles(to):
    a, b = operands(32, 16, 20)
    pipeline = MM.suggest_device_pipeline(None, to(a), to(b))
    got = launched(pipeline_kernels.one_tile(MM), pipeline, np.full((32, 16), np.nan, np.float32), grid=(2, 2))
    np.testing.assert_allclose(got, a.astype(float) @ b.astype(float), atol=1e-5)


@pytest.mark.parametrize("depth", [None, 1, "max"])
def test_rows_of_tiles_with_ragged_edges(depth):
    a, b = operands(20, 13, 11)
    c = np.random.default_rng(2).uniform(-1, 1, (20, 13)).astype(np.float32)
    pipeline = MM.suggest_device_pipeline(depth, a, b)
    got = launched(pipeline_kernels.rows_of_tiles(MM), pipeline, c, 2.0, 3.0, 2, grid=2)
    np.testing.assert_allclose(got, 2 * (a.astype(float) @ b.astype(float)) + 3 * c, atol=1e-5)


def test_execute_adds():
    a, b = operands(16, 8, 24)
    pipeline = MM.suggest_device_pipeline(1, a, b)
    with pytest.raises(KernelTypingError, match="of 1 stages"):  # the accumulator is one of the default depth
        launched(pipeline_kernels.twice(MM), pipeline, np.zeros((16, 8), np.float32))
    pipeline = MM.suggest_device_pipeline(None, a, b)
    got = launched(pipeline_kernels.twice(MM), pipeline, np.full((16, 8), np.nan, np.float32))
    np.testing.assert_allclose(got, 2 * (a.astype(float) @ b.astype(float)), atol=1e-5)


def test_what_a_pipeline_says():
    a, b = operands(32, 16, 20)
    pipeline = MM.suggest_device_pipeline(2, a, b)
    assert (pipeline.a, pipeline.b) == (a, b) or (pipeline.a is a and pipeline.b is b)
    assert (pipeline.a_strides, pipeline.b_strides) == ((20, 1), (1, 20))
    assert (pipeline.buffer_size, pipeline.buffer_alignment) == (MM.get_pipeline_storage_size(2), 1024)
    assert (pipeline.block_dim, pipeline.matmul, pipeline.depth) == (MM.block_dim, MM, 2)
    assert pipeline.storage_bytes > 0
    assert pipeline.storage_alignment == 64


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda a, b: (a[:, :5], b), InvalidArgumentError, "5 columns of a and 20 rows of b"),
        (lambda a, b: (a.astype(np.float32), b), ArgumentTypeError, "a: elements of float16 are needed"),
        (lambda a, b: (np.asfortranarray(a), b), InvalidArgumentError, "a: a row_major matrix is needed"),
        (lambda a, b: (a, np.ascontiguousarray(b)), InvalidArgumentError, "b: a col_major matrix is needed"),
        (lambda a, b: (a[0], b), InvalidArgumentError, "a: a matrix is needed, and this array is 1-D"),
        (lambda a, b: (3, b), ArgumentTypeError, "a"),
    ],
)
def test_operands_that_do_not_fit(change, error, words):
    with pytest.raises(error) as caught:
        MM.suggest_device_pipeline(2, *change(*operands(32, 16, 20)))
    assert words in str(caught.value)


def test_a_promise_of_alignment_is_checked():
    a, b = operands(32, 16, 24)
    mm = matmul(alignment=nd.MAX_ALIGNMENT)
    with pytest.raises(
        InvalidArgumentError, match="b: the address and the leading dimension must be multiples of the 16"
    ):
        mm.suggest_device_pipeline(
            2, np.zeros((32, 24), np.float16)[:, :20], np.zeros((25, 16), np.float16, order="F")[:20]
        )
    assert mm.suggest_device_pipeline(2, a, b).a is a


def test_descriptors_and_depths_that_have_no_pipeline():
    a, b = operands(32, 16, 20)
    with pytest.raises(InvalidArgumentError, match="with_pipeline=True"):
        matmul(with_pipeline=False).suggest_device_pipeline(2, a, b)
    with pytest.raises(InvalidArgumentError, match="depth: 99 is not allowed"):
        MM.suggest_device_pipeline(99, a, b)


def test_memory_and_accumulators_of_something_else_are_refused():
    a, b = operands(16, 8, 8)
    pipeline = MM.suggest_device_pipeline(None, a, b)
    other = matmul(with_pipeline=False)

    def static(pipeline, c):
        pipeline.get_tile(nd.shared.array(4096, np.uint8, 1024), 0, 0)

    def fragment(pipeline, c):
        pipeline.get_tile(nd.shared.array(0, np.uint8, 1024), 0, 0).execute(other.get_accumulator())

    def tensors(pipeline, c):
        ta = nd.make_tensor(nd.shared.array(MM.a_size, np.float16), MM.get_layout_smem_a())
        tb = nd.make_tensor(nd.shared.array(MM.b_size, np.float16), MM.get_layout_smem_b())
        MM.execute(ta, tb, MM.get_accumulator())

    c = np.zeros((16, 8), np.float32)
    for kernel, error, words, shared in [
        (static, KernelExecutionError, "the dynamic shared memory, from its beginning", None),
        (fragment, KernelTypingError, "an accumulator of this pipeline", None),
        (tensors, KernelTypingError, "belongs to a pipeline", None),
        (pipeline_kernels.one_tile(MM, jit=lambda k: k), KernelExecutionError, "bytes of dynamic shared memory", 64),
    ]:
        with pytest.raises(error, match=words):
            launched(nd.jit(kernel), pipeline, c, shared=shared)
