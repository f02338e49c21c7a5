"""Times whole networks, numpy to numpy: int8 and float32 in this library, and PyTorch on the CPU.

`python -m pytest bench/bench_networks.py` prints one table. Compare only rows of one network.
"""

from __future__ import annotations

from functools import cache

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture
from torch import nn

import q8ta_wgpu as q8
from q8ta_wgpu.runtime.device import Device
from testbed.networks import NETWORKS, example_input

NAMES = ("resnet50", "mobilenet_v2", "mobilenet_v3", "unet", "refinenet")


@cache
def module(name: str) -> nn.Module:
    return NETWORKS[name].factory()


@pytest.mark.parametrize("name", NAMES)
def test_int8(benchmark: BenchmarkFixture, name: str, vulkan: Device) -> None:
    x = example_input(NETWORKS[name].shape)
    model = q8.compile(q8.quantize(module(name), (x,), calibration=[x], progress=False))
    benchmark.group = name
    with q8.Session(model, vulkan) as session:
        benchmark.pedantic(session, (x.numpy(),), rounds=5, warmup_rounds=1)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("name", NAMES)
def test_float32(benchmark: BenchmarkFixture, name: str, vulkan: Device) -> None:
    x = example_input(NETWORKS[name].shape)
    model = q8.compile(torch.export.export(module(name), (x,)))
    benchmark.group = name
    with q8.Session(model, vulkan) as session:
        benchmark.pedantic(session, (x.numpy(),), rounds=3, warmup_rounds=1)  # type: ignore[no-untyped-call]


@pytest.mark.usefixtures("all_cores")
@pytest.mark.parametrize("name", NAMES)
def test_torch_cpu(benchmark: BenchmarkFixture, name: str) -> None:
    x = example_input(NETWORKS[name].shape)
    benchmark.group = name
    with torch.no_grad():
        benchmark.pedantic(module(name), (x,), rounds=5, warmup_rounds=1)  # type: ignore[no-untyped-call]
