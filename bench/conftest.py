"""The benchmarks use the tests' devices."""

from testbed.devices import _swiftshader, vulkan

__all__ = ["_swiftshader", "vulkan"]
