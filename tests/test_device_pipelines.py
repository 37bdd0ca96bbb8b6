# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F811  (a fixture is imported and is a parameter's name)
"""``DevicePipeline`` in compiled kernels: machine code, and what is refused when a kernel is typed."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from numba.cuda.types import float32, int64, void

import nvmath_device as nd
from nvmath_device.errors import KernelOnlyError, KernelTypingError
from nvmath_device.frozen import replace
from nvmath_device.numba_backend import device_pipeline_type
from nvmath_device.numba_backend.kernel_arguments import Argument
from tests import pipeline_kernels, sass
from tests.real_code import PIPELINED, STAGED, generated  # noqa: F401  (a fixture)

C = float32[:, ::1]


class Described:
    """What a kernel's type is made of, without matrices on a GPU."""

    def __init__(self, mm, depth=None):
        self.matmul, self.depth = mm, depth


def piped(mm):
    return nd.Matmul.from_descriptor(mm.descriptor, replace(mm.block_execution, with_pipeline=True))


MATMULS = {"streamed": piped(PIPELINED), "staged": piped(STAGED)}
UNITS = {"streamed": {"HGMMA", "UTMALDG"}, "staged": {"HMMA", "LDGSTS"}}


def pipeline_of(mm, depth=None):
    return device_pipeline_type(Described(mm, depth))


def compiled(kernel, *arguments):
    return nd.compile(kernel, void(*arguments), sm=90)


@pytest.mark.parametrize("kind", MATMULS)
@pytest.mark.parametrize("make", [pipeline_kernels.one_tile, pipeline_kernels.rows_of_tiles], ids=lambda f: f.__name__)
def test_the_machine_code_is_that_of_a_pipeline(generated, make, kind):
    """Nothing is called, and no more is generated than for ``multiply``. All stays in registers but where the kernel
    goes through elements in a loop that is too long to be unrolled."""
    mm = MATMULS[kind]
    more = (float32, float32, int64) if make is pipeline_kernels.rows_of_tiles else ()
    made = compiled(make(mm, jit=lambda k: k), pipeline_of(mm), C, *more)
    found = Counter(name.partition(".")[0] for name in sass.instructions(made.code))
    assert UNITS[kind] <= found.keys()
    assert found["CALL"] == 0
    assert make is pipeline_kernels.rows_of_tiles or found["LDL"] == 0
    (needs,) = made.record.targets.values()
    assert needs.least_shared == mm.get_pipeline_storage_size(sm=90)
    # Two matrices, each as an array.
    words = ["ptr", "ptr", "i64", "i64", "ptr", "i64", "i64", "i64", "i64"]
    assert made.record.parameters[0]["words"] == words * 2


def test_the_tma_sees_the_descriptors_that_a_block_has_written(generated):
    """They are released to the device after the last is written, and what the TMA keeps of others is dropped then.

    By the thread that has written them: the others go on behind the barrier that follows.
    """
    mm = MATMULS["streamed"]
    found = sass.instructions(compiled(pipeline_kernels.one_tile(mm, jit=lambda k: k), pipeline_of(mm), C).code)
    dropped = [at for at, x in enumerate(found) if x == "UTMACCTL.IV"]
    written = max(at for at, x in enumerate(found[: dropped[0]]) if x.startswith("STG"))
    assert any(x.startswith("MEMBAR") and x.endswith("GPU") for x in found[written : dropped[0]])
    used = found.index("UTMACCTL.PF")
    assert dropped[-1] < used
    assert any(x.startswith("BAR.SYNC") for x in found[dropped[-1] : used])
    assert not any(x.startswith("BAR.SYNC") for x in found[written : dropped[-1]])


def test_kernels_with_pipelines_can_be_kept(generated):
    """In words, so that another process finds the code; other depths have other words."""
    kernel = nd.jit(pipeline_kernels.one_tile(MATMULS["staged"], jit=lambda k: k))
    first = kernel.build(void(pipeline_of(MATMULS["staged"]), C), 90)
    assert first.blocks == ({"block_dim": [128, 1, 1], "exact": True},)
    assert pipeline_of(MATMULS["staged"]) == pipeline_of(MATMULS["staged"]) != pipeline_of(MATMULS["staged"], 1)
    assert pipeline_of(MATMULS["staged"]) != pipeline_of(MATMULS["streamed"])


def test_an_argument_of_two_arrays_has_both_views():
    views = object(), object()
    assert Argument(int64, (1,), inner=views).views == views
    assert Argument(int64, (1,), views[0]).views == views[:1]
    assert Argument(int64, (1,)).views == ()


# -- refusals --------------------------------------------------------------------------------------------------------


def error_of(kernel, mm, *more):
    with pytest.raises(KernelTypingError) as caught:
        compiled(kernel, pipeline_of(mm, *more), C)
    return str(caught.value)


def test_what_does_not_fit_is_refused_in_words(generated):
    mm = MATMULS["staged"]
    without = STAGED

    def smem(pipeline, c):
        pipeline.get_tile(c, 0, 0)

    def place(pipeline, c):
        pipeline.get_tile(nd.shared.array(0, np.uint8, 1024), 0.5, 0)

    def tile(pipeline, c):
        pipeline.reset_tile(pipeline, 0, 0)

    def plain(pipeline, c):
        pipeline.get_tile(nd.shared.array(0, np.uint8, 1024), 0, 0).execute(without.get_accumulator())

    def tensors(pipeline, c):
        ta = nd.make_tensor(nd.shared.array(2048, np.float16), mm.get_layout_smem_a())
        tb = nd.make_tensor(nd.shared.array(2048, np.float16), mm.get_layout_smem_b())
        mm.execute(ta, tb, mm.get_accumulator())

    for kernel, words in [
        (smem, "the dynamic shared memory for smem"),
        (place, "an integer for i"),
        (tile, "a tile of this pipeline for tile"),
        (plain, "an accumulator of this pipeline"),
        (tensors, "belongs to a pipeline"),
    ]:
        assert words in error_of(kernel, mm), kernel.__name__
    assert "of 1 stages" in error_of(pipeline_kernels.one_tile(mm, jit=lambda k: k), mm, 1)


def test_on_the_host_tiles_mean_nothing():
    made = object.__new__(nd.DevicePipeline)
    for call in (made.get_tile, made.reset_tile):
        with pytest.raises(KernelOnlyError, match="inside a kernel"):
            call(0, 0, 0)


def test_an_array_in_cpu_memory_is_refused():
    a, b = np.zeros((64, 32), np.float16), np.zeros((32, 64), np.float16)
    with pytest.raises(TypeError, match="a: an array in CPU memory; copy it to the GPU"):
        MATMULS["staged"].suggest_device_pipeline(None, a, b)
