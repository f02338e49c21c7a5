"""Programs that store values in int16 by their own quantize nodes: weighted sums and attention of integers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import q8ta_wgpu as q8
from q8ta_wgpu.runtime.device import Device
from tests.quantizing import data


def rounded(x: torch.Tensor, scale: float, dtype: torch.dtype, zero: int = 0) -> torch.Tensor:
    """What a program says that stores a value in a dtype."""
    bounds = torch.iinfo(dtype)
    numbers = (scale, zero, bounds.min, bounds.max, dtype)
    ops = torch.ops.quantized_decomposed
    y: torch.Tensor = ops.dequantize_per_tensor(ops.quantize_per_tensor(x, *numbers), *numbers)
    return y


class Wide(nn.Module):
    """Convolutions of lines, images and volumes, and a linear, that read int16 and give int8, int16 or float32."""

    def __init__(self) -> None:
        super().__init__()
        self.line, self.image = nn.Conv1d(4, 8, 3, padding=1, groups=2), nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.up, self.volume = nn.ConvTranspose2d(8, 4, 2, stride=2), nn.Conv3d(4, 3, (2, 3, 3), padding=(0, 1, 1))
        self.head, self.stores = nn.Linear(12, 5), True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self._stored(x, 2e-4, -900)
        y = self._stored(self._weighted(self.line, y).relu(), 2e-4, -32768)
        y = self._stored(self._weighted(self.image, y.reshape(1, 8, 4, 6)), 5e-4)
        y = self._stored(self._weighted(self.up, y).sigmoid(), 2.0**-16, -32768)
        y = self._stored(self._weighted(self.volume, y.reshape(1, 4, 2, 4, 12)), 3e-4)
        return self._weighted(self.head, y)

    def _stored(self, x: torch.Tensor, scale: float, zero: int = 0) -> torch.Tensor:
        return rounded(x, scale, torch.int16, zero) if self.stores else x

    def _weighted(self, module: nn.Module, x: torch.Tensor) -> torch.Tensor:
        named: dict[str, torch.Tensor] = dict(module.named_parameters())
        weight = named["weight"].detach()
        named["weight"] = rounded(weight / weight.abs().max(), 1 / 127, torch.int8)
        y: torch.Tensor = torch.func.functional_call(module, named, x)
        return y


def test_a_program_in_int16(vulkan: Device) -> None:
    """Every weighted sum of int16 that a program asks for runs on integers, at 16 bits' distance from exact numbers."""
    torch.manual_seed(0)
    module, x = Wide().eval(), data(1, 4, 24)
    model = q8.compile(torch.export.export(module, (x,)))
    assert set(model.report().float32) == set(), model.report()
    assert model.report().exact
    found = q8.Session(model, "reference")(x)
    module.stores = False
    exact = module(x).detach().numpy()
    assert 10 * np.log10((exact**2).sum() / ((exact - found) ** 2).sum()) > 65
    np.testing.assert_array_equal(q8.Session(model, vulkan)(x), found)


class Causal(nn.Module):
    """Attention whose queries, keys and values, or some of them, a program stores in int16."""

    def __init__(self, wide: str, mask: torch.Tensor | None) -> None:
        super().__init__()
        self.wide, self.mask, self.stores = wide, mask, True

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = (self._stored(x, name in self.wide) for x, name in zip((q, k, v), "qkv", strict=True))
        scores = q @ k.transpose(-1, -2) / 4
        weights = (scores if self.mask is None else scores + self.mask).softmax(-1)
        return self._stored(weights @ v, True)

    def _stored(self, x: torch.Tensor, wide: bool) -> torch.Tensor:
        if not self.stores:
            return x
        return rounded(x, 2e-4, torch.int16) if wide else rounded(x, 0.04, torch.int8)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("wide", "least"), [("qkv", 55), ("qk", 34), ("v", 27), ("k", 27)])
def test_attention_of_int16(wide: str, least: float, masked: bool, vulkan: Device) -> None:
    """Three operators of integers, whose scores and weights are int16."""
    mask = torch.full((9, 9), -1e9).triu(1) if masked else None
    module = Causal(wide, mask).eval()
    inputs = tuple(data(2, 3, 9, 16, seed=seed) for seed in range(3))
    model = q8.compile(torch.export.export(module, inputs))
    report = model.report()
    assert not report.float32 and report.exact, report
    assert "q8ta_softmax" in {node.op for node in model.graph.nodes}
    found = q8.Session(model, "reference")(*inputs)
    module.stores = False
    exact = module(*inputs).numpy()
    assert 10 * np.log10((exact**2).sum() / ((exact - found) ** 2).sum()) > least
    np.testing.assert_array_equal(q8.Session(model, vulkan)(*inputs), found)
