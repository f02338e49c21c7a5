"""The benchmarks use the tests' devices."""

from tests.conftest import _swiftshader, vulkan

__all__ = ["_swiftshader", "vulkan"]
