"""What the tests share."""

from testbed.devices import _swiftshader, device, listing, nothing_open, swiftshader, vulkan
from testbed.fixtures import (
    _no_cache_of_the_user,
    _one_torch_thread,
    _same_random_numbers,
    caches,
    copy_threads,
    full_disk,
    interrupts,
    quick_tuning,
    saved,
)

__all__ = [
    "_no_cache_of_the_user",
    "_one_torch_thread",
    "_same_random_numbers",
    "_swiftshader",
    "caches",
    "copy_threads",
    "device",
    "full_disk",
    "interrupts",
    "listing",
    "nothing_open",
    "quick_tuning",
    "saved",
    "swiftshader",
    "vulkan",
]
