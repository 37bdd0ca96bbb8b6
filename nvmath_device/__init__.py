# SPDX-License-Identifier: Apache-2.0
"""Matrix products and Fourier transforms inside Numba CUDA kernels, at the speed of NVIDIA's own libraries.

``import nvmath_device as nd`` loads nothing else: no NumPy, no Numba, no driver. Names are imported when first
used.
"""

from __future__ import annotations

from importlib import import_module as _import_module
from pathlib import Path as _Path
from typing import Any

__version__ = "0.1.0"

# In a checkout the layers lto/ and host/ stand beside this folder instead of in it; when the checkout is the
# current folder it hides an installed wheel, so it must find them itself.
_checkout = _Path(__file__).resolve().parent.parent
if (_checkout / "lto" / "recipes.py").is_file() and str(_checkout) not in __path__:
    __path__.append(str(_checkout))

_HOME = {
    "nvmath_device.matmul": ("Matmul",),
    "nvmath_device.fft": ("FFT",),
    "nvmath_device.descriptors": (
        "Alignment", "Arrangement", "BlockExecution", "Dim3", "GemmDescriptor", "LeadingDimension", "MatrixLayout",
        "MAX_ALIGNMENT", "Precision", "TransposeMode",
    ),
    "nvmath_device.fft_descriptor": ("FftDescriptor",),
    "nvmath_device.dtypes": (
        "ElementType", "ValueType", "element_type", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float16", "tfloat32",
        "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    ),
    "nvmath_device.targets": ("ComputeCapability", "MAX_SUPPORTED_CC"),
    "nvmath_device.shared_storage": ("SharedStorageCalc",),
    "nvmath_device.shared_arrays": ("shared",),
    "nvmath_device.tensors": (
        "axpby", "clear", "copy", "copy_fragment", "copy_wait", "make_fragment_like", "make_tensor",
    ),
    "nvmath_device.tensor_layouts": ("Layout",),
    "nvmath_device.device_pipelines": ("DevicePipeline",),
    "nvmath_device.launch_limits": ("DeviceLimits", "Fit"),
    "nvmath_device.kernel_report": ("KernelReport",),
    "nvmath_device.shared_layouts": ("SharedLayout", "shared_layout", "shared_overlay"),
    "nvmath_device.vector_types": (
        "float16x2", "float16x4", "float32x2", "float32x4", "float64x2", "float64x4", "uint32x4",
    ),
    "nvmath_device.export": (
        "Code", "CodeType", "ISAVersion", "compile_blas_execute", "compile_fft_execute", "current_device_lto",
    ),
    "nvmath_device.shuffles": ("shuffle_xor",),
    "nvmath_device.tile_order": ("grouped_tile",),
    "nvmath_device.tile_choices": ("TileChoice",),
    "nvmath_device.tile_suggestions": ("suggest_tile",),
    "nvmath_device.tuning": ("tune", "Trial", "Tuned"),
    "nvmath_device.kernels": ("jit", "Kernel"),
    "nvmath_device.aot": ("compile", "CompiledKernel", "LaunchRecord"),
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [*sorted(_MODULE_OF), "__version__", "errors"]


def __getattr__(name: str) -> Any:
    if name == "errors":
        return _import_module("nvmath_device.errors")
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'nvmath_device' has no attribute {name!r}")
    value = getattr(_import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
