"""What the tests of the benchmarks share with the others."""

from testbed.devices import _swiftshader, device, swiftshader, vulkan
from testbed.fixtures import _no_cache_of_the_user, _one_torch_thread, _same_random_numbers, caches, interrupts, saved

__all__ = [
    "_no_cache_of_the_user",
    "_one_torch_thread",
    "_same_random_numbers",
    "_swiftshader",
    "caches",
    "device",
    "interrupts",
    "saved",
    "swiftshader",
    "vulkan",
]
