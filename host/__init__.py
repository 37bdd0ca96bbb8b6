# SPDX-License-Identifier: Apache-2.0
"""Host layer: cuBLASLt matrix products with epilogs on arrays of any library, as ``nvmath_device.host``."""
