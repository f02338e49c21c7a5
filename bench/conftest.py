"""What the benchmarks share."""

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def all_cores() -> Iterator[None]:
    """PyTorch and ncnn on every core, as the software Vulkan driver is."""
    import torch  # not for bench/tests, of which `make quick` runs some

    before = torch.get_num_threads()
    torch.set_num_threads(os.cpu_count() or 1)
    yield
    torch.set_num_threads(before)
