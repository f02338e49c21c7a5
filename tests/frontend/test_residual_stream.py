"""Residual streams are stored in int16: where they are found, and what that gives, from torch to the device."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import q8ta_wgpu as q8
from q8ta_wgpu.ir.graph import INT16X4
from q8ta_wgpu.runtime.device import Device


class Block(nn.Module):
    """A transformer's second half, twice: norm, two linears, dropout, sum; and a branch that moves its result."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(5, 12)
        self.norms = nn.ModuleList(nn.LayerNorm(12) for _ in range(3))
        self.up, self.down, self.across = nn.Linear(12, 20), nn.Linear(20, 12), nn.Linear(12, 12)
        self.dropout = nn.Dropout(0.1)
        self.place = nn.Parameter(torch.randn(1, 7, 12))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x) + self.place
        x = x + self.dropout(self.down(self.up(self.norms[0](x)).relu()))
        x = x + self.across(self.norms[1](x)).reshape(1, 12, 7).transpose(1, 2)
        y: torch.Tensor = self.norms[2](x)[:, 0]
        return y


def quantized(module: nn.Module, *shape: int, residual: str = "int16") -> tuple[q8.Model, torch.Tensor]:
    """A module's model, and an input for it."""
    batches = [torch.randn(shape) for _ in range(4)]
    quantizer = q8.Quantizer(residual=residual, precision="int8")
    return q8.compile(q8.quantize(module.eval(), (batches[0],), batches, quantizer, progress=False)), batches[1]


def test_residual_stream(tmp_path: Path, vulkan: Device) -> None:
    """Its sums are int16, one rounding each, and nearer to the float network; a saved model runs the same."""
    torch.manual_seed(0)
    module = Block()
    model, x = quantized(module, 1, 7, 5)
    sums = [node for node in model.graph.nodes if model.graph.types[node.output].dtype == INT16X4]
    stages = [node.attrs["epilogue"].label if "epilogue" in node.attrs else node.op for node in sums]
    assert [stage for stage in stages if stage not in ("view", "permute")] == [
        "scaled_residual -> requantize_int16",
        "scaled_residual -> requantize_int16",
        "requantize_int16",
        "q16ta_add",
    ]
    assert f"{len(sums)} int16 values between nodes" in str(model.report())
    assert model.report().exact
    model.save(tmp_path / "stream.q8ta")
    expected = q8.Session(model, device="reference")(x)
    with q8.Session(q8.load(tmp_path / "stream.q8ta"), device=vulkan) as session:
        np.testing.assert_array_equal(session(x), expected)
    narrow, _ = quantized(module, 1, 7, 5, residual="int8")
    assert all(t.dtype != INT16X4 for t in narrow.graph.types.values())
    exact = module(x).detach().numpy()
    errors = [np.abs(q8.Session(m, device="reference")(x) - exact).mean() for m in (model, narrow)]
    assert errors[0] < errors[1]


class Merged(nn.Module):
    """A stream that a part of its own moves before it norms it, as Swin merges patches."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8)
        self.merge = Merge()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.first(x)
        y: torch.Tensor = self.merge(x + self.last(self.norm(x)))
        return y


class Merge(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.norm(torch.cat([x[:, ::2], x[:, 1::2]], -1))
        return y


@pytest.mark.parametrize(
    ("skip", "floats", "streams"),
    [("merge", {"layer_norm", "slice", "cat", "add"}, 1), ("last", {"layer_norm", "linear"}, 2)],
)
def test_a_stream_through_modules_left_in_float(skip: str, floats: set[str], streams: int) -> None:
    """What only a module in float reads is not rounded; all other sums stay int16, also where what is added to them
    comes from one."""
    x = torch.randn(1, 4, 8)
    quantizer = q8.Quantizer(skip=[skip], precision="int8")
    model = q8.compile(q8.quantize(Merged().eval(), (x,), [x], quantizer, progress=False))
    assert set(model.report().float32) == floats
    sums = [node for node in model.graph.nodes if node.op in ("q16ta_add", "q8ta_linear")]
    assert [model.graph.types[node.output].dtype for node in sums].count(INT16X4) == streams


def test_convolutional_networks_have_no_stream() -> None:
    """Sums that no layer_norm reads stay int8."""

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x).relu()
            y: torch.Tensor = (x + self.second(x)).relu()
            return y

    model, _ = quantized(Residual(), 1, 3, 8, 8)
    assert all(t.dtype != INT16X4 for t in model.graph.types.values())


class PaddedStream(nn.Module):
    """Two convolutions are summed in the stream, which is padded for a norm; masks of a score are added twice."""

    mask: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.norm = nn.Conv2d(3, 8, 1), nn.Conv2d(3, 8, 1), nn.LayerNorm(8)
        mask = torch.zeros(6, 6)
        mask[:, 4:] = -100.0
        self.register_buffer("mask", mask)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = (self.left(x) + self.right(x.relu())).permute(0, 2, 3, 1)
        rows = self.norm(nn.functional.pad(y, (0, 0, 0, 1, 0, 1))).mean(1)
        weights = (rows @ rows.transpose(1, 2) + self.mask + self.mask).softmax(-1)
        z: torch.Tensor = weights @ rows
        return z


def test_sums_of_two_convolutions_and_padded_streams(vulkan: Device) -> None:
    model, x = quantized(PaddedStream(), 2, 3, 5, 5)
    report = model.report()
    assert not report.float32, report
    assert "q8ta_conv2d (scaled_residual -> requantize_int16)" in report.int8
    np.testing.assert_array_equal(q8.Session(model, vulkan)(x), q8.Session(model, "reference")(x))


class Tokens(nn.Module):
    """A class token a hundredth as large as the patches beside it, which alone is read, as vision transformers do."""

    def __init__(self, normed: bool) -> None:
        super().__init__()
        self.patches, self.first = nn.Conv2d(3, 12, 2, 2), nn.LayerNorm(12) if normed else nn.Identity()
        self.token = nn.Parameter(torch.randn(1, 1, 12) / 100)
        self.norm, self.up, self.down = nn.LayerNorm(12), nn.Linear(12, 8), nn.Linear(8, 12)
        with torch.no_grad():
            self.down.weight.mul_(0.01)
            self.down.bias.mul_(0.01)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        patches = self.first(self.patches(x).flatten(2).transpose(1, 2))
        y = torch.cat([self.token.expand(x.shape[0], -1, -1), patches], 1)
        y = y + self.down(self.up(self.norm(y)).relu())
        z: torch.Tensor = self.norm(y)[:, 0]
        return z


@pytest.mark.parametrize("normed", [False, True])
def test_a_class_token_keeps_its_size_beside_patches(normed: bool, vulkan: Device) -> None:
    torch.manual_seed(0)
    module = Tokens(normed)
    model, x = quantized(module, 2, 3, 6, 6)
    assert [model.graph.types[n.output].dtype for n in model.graph.nodes if n.op == "cat"] == [INT16X4]
    found, exact = q8.Session(model, "reference")(x), module(x).detach().numpy()
    assert 10 * np.log10((exact**2).sum() / ((exact - found) ** 2).sum()) > 30
    np.testing.assert_array_equal(q8.Session(model, vulkan)(x), found)
