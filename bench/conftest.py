"""The benchmarks use the tests' devices."""

from tests.conftest import vulkan

__all__ = ["vulkan"]
