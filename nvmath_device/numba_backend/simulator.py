# SPDX-License-Identifier: Apache-2.0
"""What kernel-side calls do under ``NUMBA_ENABLE_CUDASIM=1``: the same as on a GPU, in NumPy.

Kernels then are Python functions and their threads Python threads, so a debugger can stop in them. Neither a
GPU nor libmathdx is needed. Calls of a whole block wait for all of its threads, one of which computes with
``nvmath_device.reference``; results have the rounding of the element types, not a GPU's order of additions.

More is checked than on a GPU: shapes, strides, sizes, alignment, overlaps, the launch's block, and that all
threads make the same call. Less is noticed, too: ``execute`` of a block waits for all of its threads, so a
missing ``cuda.syncthreads()`` around it does no harm here; and what must be a constant, such as a shape, may
be computed.
"""

from nvmath_device.numba_backend.simulator_accumulators import matmul_multiply, matmul_pipeline
from nvmath_device.numba_backend.simulator_device_pipelines import device_pipeline_reset, device_pipeline_tile
from nvmath_device.numba_backend.simulator_fft import (
    fft_batch_id,
    fft_execute,
    fft_fft_id,
    fft_is_thread_active,
)
from nvmath_device.numba_backend.simulator_fft_copies import (
    fft_load,
    fft_load_shared,
    fft_store,
    fft_store_shared,
)
from nvmath_device.numba_backend.simulator_matmul import matmul_execute, matmul_load, matmul_store
from nvmath_device.numba_backend.simulator_shared import shared_array, shared_part
from nvmath_device.numba_backend.simulator_shuffles import shuffle_xor
from nvmath_device.numba_backend.simulator_tensor_accumulators import matmul_accumulator
from nvmath_device.numba_backend.simulator_tensors import (
    make_fragment_like,
    make_tensor,
    tensor_axpby,
    tensor_clear,
    tensor_copy,
    tensor_copy_fragment,
    tensor_copy_wait,
)
from nvmath_device.numba_backend.simulator_vectors import vector

__all__ = [
    "device_pipeline_reset",
    "device_pipeline_tile",
    "fft_batch_id",
    "fft_execute",
    "fft_fft_id",
    "fft_is_thread_active",
    "fft_load",
    "fft_load_shared",
    "fft_store",
    "fft_store_shared",
    "make_fragment_like",
    "make_tensor",
    "matmul_accumulator",
    "matmul_execute",
    "matmul_load",
    "matmul_multiply",
    "matmul_pipeline",
    "matmul_store",
    "shared_array",
    "shared_part",
    "shuffle_xor",
    "tensor_axpby",
    "tensor_clear",
    "tensor_copy",
    "tensor_copy_fragment",
    "tensor_copy_wait",
    "vector",
]
