# SPDX-License-Identifier: Apache-2.0
"""What happens once when a kernel with generated code is loaded on a device."""

from __future__ import annotations

from typing import Any


def allow_dynamic_shared_memory(module: Any) -> None:
    """Let every kernel of a loaded module have all the dynamic shared memory its device gives a block.

    CUDA allows 48 KiB unless a kernel is opted in, and Numba never does that. The limit is permission, not
    use: what a launch asks for still decides how many blocks run at once. ``module`` is what Numba hands to
    the setup callback of linked code, a ``cuda.core.ObjectCode``.
    """
    from cuda.bindings import driver

    library = driver.CUlibrary(int(module.handle))
    device = _checked(driver.cuCtxGetDevice())
    attribute = driver.CUfunction_attribute
    limit = _checked(
        driver.cuDeviceGetAttribute(
            driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, device
        )
    )
    count = _checked(driver.cuLibraryGetKernelCount(library))
    for kernel in _checked(driver.cuLibraryEnumerateKernels(count, library)):
        static = _checked(driver.cuKernelGetAttribute(attribute.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, kernel, device))
        dynamic = attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        _checked(driver.cuKernelSetAttribute(dynamic, limit - static, kernel, device))


def _checked(result: tuple[Any, ...]) -> Any:
    status, *values = result
    if int(status) != 0:
        raise RuntimeError(f"the CUDA driver answered {status.name} while shared memory was opted in")
    return values[0] if values else None
