"""Operators of networks that people bring, by the public call: quantized, compiled, run on the GPU.

A row says what stays in float32. Bytes are the reference's, and those near what PT2E simulates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import q8ta_wgpu as q8
from q8ta_wgpu.runtime.device import Device
from tests.importing import data
from tests.quantizing import INT8

MASK = torch.tensor([1, 0, 0, 1, 0, 1, 0], dtype=torch.bool)
LOWER = torch.ones(7, 7, dtype=torch.bool).tril()
PLACES = torch.tensor([2, 0, 1])


def rotated(x: Tensor) -> Tensor:
    """Rotary position embedding."""
    angle = torch.arange(8.0)[:, None] / 10000 ** (torch.arange(0, 8, 2) / 8)
    sin, cos = angle.sin().repeat(1, 2), angle.cos().repeat(1, 2)
    turned = torch.cat([-x[..., 4:], x[..., :4]], -1)
    return x * cos + turned * sin


def put(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, PLACES, 1] = x[:, 2:5, 2] * 2
    y[0] = 0.5
    return y


def windows(x: Tensor) -> Tensor:
    """The mask of shifted windows, as it is made of an input's shape."""
    parts = x.new_zeros(x.shape[-2:])
    for i, rows in enumerate((slice(0, -3), slice(-3, None))):
        parts[rows] = i
    groups = parts.flatten().view(1, -1)
    mask = (groups - groups.t()).masked_fill(groups != groups.t(), -100.0)
    return (x.flatten(1) + mask[0].roll(1)).softmax(-1)


GRID = torch.rand(1, 4, 7, 2, generator=torch.Generator().manual_seed(1)) * 2.4 - 1.2
BOOK = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))


def nearest(x: Tensor) -> Tensor:
    """The nearest vector of a book, as vector quantization has it."""
    return F.embedding(((x[:, :, None] - BOOK) ** 2).sum(-1).argmin(-1), BOOK)


X = (2, 5, 8)
OPERATORS: dict[str, tuple[Callable[..., Any], tuple[int, ...], tuple[str, ...]]] = {
    # the operator: a module, the shape of its input, its operators in float32
    "where": (lambda x: torch.where(x > 0.3, x, x * 0.1), X, ()),
    "where, both": (lambda x: torch.where(x.flip(1) >= x, x.sin(), x[:, :1]), X, ()),
    "where, constants": (lambda x: torch.where(MASK, x[..., :7], 0.25), X, ()),
    "masked_fill": (lambda x: x.masked_fill(x < -0.5, -0.5), X, ()),
    "masked_fill, constant": (
        lambda x: (x[..., :7] @ x[..., :7].mT).masked_fill(~LOWER[:5, :5], -1e9).softmax(-1),
        X,
        (),
    ),
    "masked_fill, infinite": (
        lambda x: (x[..., :7] @ x[..., :7].mT).masked_fill(~LOWER[:5, :5], -torch.inf).softmax(-1),
        X,
        (),
    ),
    "comparisons": (lambda x: (x > 1).float() + (x <= x.flip(1)).float() - (x != 0).float(), X, ()),
    "logical": (lambda x: x * ((x > -1) & (x < 1) | ~(x.flip(2) >= 0)), X, ()),
    "logical of numbers": (lambda x: x * torch.logical_xor(x.relu(), x.flip(1).relu()), X, ()),
    "cumsum": (lambda x: (x > 0).cumsum(1), X, ()),
    "sin, cos": (lambda x: x.sin() * (x * 3).cos(), X, ()),
    "pow of two": (lambda x: x.sigmoid() ** x.flip(1), X, ()),
    "pow": (lambda x: x**3 + x.abs() ** 0.5, X, ()),
    "erf, floor, round, sign": (lambda x: x.erf() + x.floor() - x.round() * x.sign(), X, ()),
    "argmax": (lambda x: x.argmax(1), X, ("argmax",)),
    "argmin of all": (lambda x: x.argmin(), X, ("argmin",)),
    "max and min": (lambda x: x.max(1)[0] + x.min(1).values, X, ()),
    "place of max": (lambda x: x.max(1)[1], X, ("argmax",)),
    "min and its place": (
        lambda x: x.min(2, keepdim=True).values + x.min(2, keepdim=True).indices,
        X,
        ("argmin", "add"),
    ),
    "topk": (lambda x: x.topk(3)[0] + x.gather(2, x.topk(3)[1]), X, ("rank",)),
    "sort": (lambda x: x.sort(1)[0], X, ("rank",)),
    "gather, computed": (lambda x: x.gather(1, x.argmax(1, keepdim=True)), X, ("argmax",)),
    "index, computed": (lambda x: x[:, x[0].argmax(0)], X, ("argmax",)),
    "index_select, computed": (lambda x: x.index_select(2, x[1].argmin(1)), X, ("argmin",)),
    "embedding, computed": (nearest, X, ("argmin",)),
    "gather": (lambda x: x.gather(1, PLACES[None, :, None].expand(2, 3, 8)), X, ()),
    "index": (lambda x: x[:, PLACES], X, ()),
    "index_put": (put, X, ()),
    "slice_scatter": (lambda x: torch.slice_scatter(x, x[:, :2] * 2, 1, 1, 3), X, ()),
    "windows": (windows, X, ()),
    "bicubic": (lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"), (1, 3, 5, 6), ()),
    "bicubic, aligned": (lambda x: F.interpolate(x, (7, 4), mode="bicubic", align_corners=True), (1, 3, 5, 6), ()),
    "grid_sample, constant": (
        lambda x: F.grid_sample(x, GRID, "nearest", "border", align_corners=True),
        (1, 3, 5, 6),
        ("grid_sample",),
    ),
    "grid_sample, computed": (
        lambda x: F.grid_sample(x, (x[:, :2] / 4).permute(0, 2, 3, 1), align_corners=False) > 0.5,
        (1, 3, 5, 6),
        ("grid_sample",),
    ),
    "conv1d same": (nn.Conv1d(5, 4, 4, padding="same"), X, ()),
    "conv2d same": (nn.Conv2d(3, 4, (2, 3), padding="same"), (1, 3, 5, 6), ()),
    "conv3d": (nn.Conv3d(2, 3, (1, 3, 3), padding=(0, 1, 1)), (1, 2, 3, 5, 6), ()),
    "conv_transpose3d": (nn.ConvTranspose3d(2, 3, 2, 2, output_padding=(1, 0, 1)), (1, 2, 3, 4, 6), ()),
    "adaptive_avg_pool3d": (lambda x: F.adaptive_avg_pool3d(x, (2, 3, 4)), (1, 2, 3, 4, 6), ()),
    "antialiased": (lambda x: F.interpolate(x, (3, 4), mode="bilinear", antialias=True), (1, 3, 5, 6), ()),
    "distances": (lambda x: torch.cdist(x, x[:, :, ::2]), (1, 3, 5, 6), ()),
    "fold": (lambda x: F.fold(x.flatten(1)[:, :36].view(2, 12, 3), (4, 2), 2, stride=(1, 2)), X, ()),
    "rope": (rotated, (2, 8, 8), ()),
    "reflect": (lambda x: F.pad(x, (2, 1, 1, 2), mode="reflect"), (1, 3, 5, 6), ()),
    "replicate": (lambda x: F.pad(x, (2, 1, 1, 2), mode="replicate"), (1, 3, 5, 6), ()),
    "max_pool3d": (lambda x: F.max_pool3d(x, (1, 2, 2)), (1, 2, 3, 4, 6), ()),
    "avg_pool3d": (lambda x: F.avg_pool3d(x, (1, 2, 2)), (1, 2, 3, 4, 6), ()),
    "rms_norm": (nn.RMSNorm(8), X, ()),
    "fill and copy": (lambda x: x + x.new_zeros(8).fill_(0.5) + torch.empty_like(x[0]).copy_(x[1]), X, ()),
}


class Together(nn.Module):
    """All that take inputs of one shape: a program each would take most of a test's time."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.functions = {name: function for name, (function, taken, _) in OPERATORS.items() if taken == shape}
        self.parts = nn.ModuleDict({n: f for n, f in self.functions.items() if isinstance(f, nn.Module)})

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {name: function(x) for name, function in self.functions.items()}


@pytest.mark.parametrize("shape", dict.fromkeys(shape for _, shape, _ in OPERATORS.values()))
@pytest.mark.filterwarnings("ignore:Using padding='same':UserWarning")
def test_operators(shape: tuple[int, ...], vulkan: Device) -> None:
    x, module = data(*shape).clamp(-4, 4), Together(shape).eval()
    program = q8.quantize(module, (x,), [x], quantizer=INT8, progress=False)
    model = q8.compile(program)
    floats = {name for key in module.functions for name in OPERATORS[key][2]}
    moves = {"view", "permute", "cat", "slice", "expand", "flip", "index_select"}  # of joined outputs, in float32
    assert set(model.report().float32) - moves == floats - moves, model.report()
    found, expected = q8.Session(model, vulkan)(x), q8.Session(model, "reference")(x)
    for name, simulated in program.module()(x).items():
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)
        real = simulated.detach().double().numpy()
        near = np.abs(expected[name] - real) <= 0.02 * np.abs(real).max() + 1e-6
        assert near.mean() >= 0.99, (name, np.abs(expected[name] - real).max())
