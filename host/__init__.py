# SPDX-License-Identifier: Apache-2.0
"""Host layer: cuBLASLt matrix products with epilogs on arrays of any library. Always imported as ``nvmath_device.host``."""
