"""Residual streams in int8 and int16: signal-to-noise ratio of small vision transformers against float32.

One is trained on scikit-learn's digits for a minute, one has random weights and twelve blocks. Needs torch, torchao and
scikit-learn.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

import q8ta_wgpu as q8
from bench.options import Options

EPOCHS, BATCH, LEARNING_RATE = 20, 100, 6e-3


class Block(nn.Module):
    """A pre-norm transformer block: attention and a two-layer perceptron."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, tokens, width = x.shape
        parts = self.qkv(self.norms[0](x)).reshape(n, tokens, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        context = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(context.transpose(1, 2).reshape(n, tokens, width))
        y: Tensor = x + self.down(nn.functional.gelu(self.up(self.norms[1](x))))
        return y


class Transformer(nn.Module):
    """A vision transformer: images (n, channels, size, size) to ten classes."""

    def __init__(self, width: int, depth: int, patch: int, channels: int, size: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(channels, width, patch, patch)
        self.places = nn.Parameter(torch.randn(1, (size // patch) ** 2, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.places
        y: Tensor = self.head(self.norm(self.blocks(x)).mean(1))
        return y


def part_residual(options: Options) -> None:
    """Prints a table: network, dtype of the stream, decibels, nodes in float32."""
    torch.manual_seed(0)
    learnt, images = _digits()
    _compare(
        "digits, 6 blocks, trained", learnt, images[:400].reshape(4, 100, 1, 8, 8).unbind(), images[1200:1300], options
    )
    random = Transformer(width=64, depth=12, patch=4, channels=3, size=32)
    with torch.no_grad():
        for p in random.parameters():
            p.mul_(1.5 if p.dim() > 1 else 1.0)
    _compare(
        "12 blocks, random weights", random, torch.randn(4, 16, 3, 32, 32).unbind(), torch.randn(16, 3, 32, 32), options
    )


def _digits() -> tuple[nn.Module, Tensor]:
    from sklearn.datasets import load_digits

    data = load_digits()
    order = torch.randperm(len(data.target))
    images = torch.tensor(data.images / 8 - 1, dtype=torch.float32)[order, None]
    labels = torch.tensor(data.target)[order]
    module = Transformer(width=32, depth=6, patch=2, channels=1, size=8)
    optimizer = torch.optim.AdamW(module.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=EPOCHS * 1200 // BATCH)
    for _ in range(EPOCHS):
        for chosen in torch.randperm(1200).reshape(-1, BATCH):
            optimizer.zero_grad()
            torch.autograd.backward(nn.functional.cross_entropy(module(images[chosen]), labels[chosen]))
            optimizer.step()
            schedule.step()
    return module, images


def _compare(name: str, module: nn.Module, calibration: Sequence[Tensor], x: Tensor, options: Options) -> None:
    with torch.no_grad():
        exact = module.eval()(x).numpy()
    for residual in ("int8", "int16"):
        program = q8.quantize(module, (x,), calibration, q8.Quantizer(residual=residual), progress=False)
        model = q8.compile(program)
        with q8.Session(model, device=options.device.wgpu) as session:
            error = session(x) - exact
        decibels = 10 * np.log10((exact**2).sum() / (error**2).sum())
        floats = sum(model.report().float32.values())
        print(f"{name:<28} {residual:<6} {decibels:6.2f} dB  {floats} nodes in float32", flush=True)
