"""The trained networks. Each has layers or connections that are known to lose accuracy in int8."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.suite.data import CHARACTERS, LENGTH


def convolution(inputs: int, outputs: int, kernel: int = 3, groups: int = 1) -> nn.Sequential:
    """A convolution and its batch norm."""
    conv = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


class SqueezeExcite(nn.Module):
    """A residual block of two convolutions with hardswish and squeeze-and-excitation."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = convolution(channels, channels), convolution(channels, channels)
        self.squeeze, self.excite = nn.Conv2d(channels, channels // 4, 1), nn.Conv2d(channels // 4, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(n, channels, h, w) → the same."""
        y = self.second(F.hardswish(self.first(x)))
        weights = F.hardsigmoid(self.excite(F.relu(self.squeeze(y.mean((2, 3), keepdim=True)))))
        return F.hardswish(x + y * weights)


def residual() -> nn.Module:
    """Digits."""
    stem = (convolution(1, 24), nn.Hardswish(), SqueezeExcite(24), nn.MaxPool2d(2), SqueezeExcite(24))
    return nn.Sequential(*stem, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 10))


def depthwise() -> nn.Module:
    """Digits."""
    layers: list[nn.Module] = [convolution(1, 16), nn.ReLU6()]
    for inputs, outputs in ((16, 32), (32, 48), (48, 48)):
        layers += [convolution(inputs, inputs, groups=inputs), nn.ReLU6(), convolution(inputs, outputs, 1), nn.ReLU6()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 10))


class Pyramid(nn.Module):
    """ESPNet's block (Mehta et al. 2018): parallel dilated convolutions, a cat, a residual connection, batch norm and
    PReLU."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        quarter = channels // 4
        self.reduce = nn.Conv2d(channels, quarter, 1, bias=False)
        dilations = (1, 2, 3, 4)
        self.spread = nn.ModuleList(nn.Conv2d(quarter, quarter, 3, 1, d, d, bias=False) for d in dilations)
        self.norm, self.act = nn.BatchNorm2d(channels), nn.PReLU(channels)

    def forward(self, x: Tensor) -> Tensor:
        """(n, channels, h, w) → the same."""
        reduced = self.reduce(x)
        y: Tensor = self.act(self.norm(torch.cat([part(reduced) for part in self.spread], 1) + x))
        return y


class Segmentation(nn.Module):
    """Scenes (n, 1, 32, 32) → scores of 11 classes for each pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(convolution(1, 16, 5), nn.PReLU(16))
        self.down = nn.Sequential(nn.Conv2d(16, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.PReLU(32))
        self.lower = nn.Sequential(nn.Conv2d(32, 48, 3, 2, 1, bias=False), nn.BatchNorm2d(48), nn.PReLU(48))
        self.body = nn.Sequential(Pyramid(48), Pyramid(48), Pyramid(48))
        self.up = nn.ConvTranspose2d(48, 32, 2, 2, bias=False)
        self.joined = nn.Sequential(nn.BatchNorm2d(64), nn.PReLU(64), convolution(64, 32), nn.PReLU(32))
        self.last = nn.ConvTranspose2d(32, 16, 2, 2, bias=False)
        self.head = nn.Sequential(nn.BatchNorm2d(32), nn.PReLU(32), nn.Conv2d(32, 11, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        """(n, 1, 32, 32) → (n, 11, 32, 32)."""
        fine = self.stem(x)
        half = self.down(fine)
        y = self.joined(torch.cat([self.up(self.body(self.lower(half))), half], 1))
        scores: Tensor = self.head(torch.cat([self.last(y), fine], 1))
        return scores


def superresolution() -> nn.Module:
    """Enlarges photographs three times by pixel_shuffle (Shi et al. 2016)."""
    layers = (nn.Conv2d(1, 32, 5, padding=2), nn.Tanh(), nn.Conv2d(32, 24, 3, padding=1), nn.Tanh())
    return nn.Sequential(*layers, nn.Conv2d(24, 9, 3, padding=1), nn.PixelShuffle(3))


def sequence() -> nn.Module:
    """Classifies digits as sequences of 64 samples, row by row, as small as networks for keyword spotting."""
    layers: list[nn.Module] = [nn.Flatten(2), nn.Conv1d(1, 24, 9, 2, 4, bias=False), nn.BatchNorm1d(24), nn.ReLU()]
    for stride in (2, 1):
        depth = nn.Conv1d(24, 24, 9, stride, 4, groups=24, bias=False)
        layers += [
            depth,
            nn.BatchNorm1d(24),
            nn.ReLU(),
            nn.Conv1d(24, 24, 1, bias=False),
            nn.BatchNorm1d(24),
            nn.ReLU(),
        ]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(24 * 16, 10))


class Encoder(nn.Module):
    """A pre-norm transformer layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.grow, self.shrink = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(n, tokens, width) → the same."""
        n, tokens, width = x.shape
        q, k, v = self.qkv(self.first(x)).reshape(n, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(y.transpose(1, 2).reshape(n, tokens, width))
        x = x + self.shrink(F.gelu(self.grow(self.second(x))))
        return x


class Transformer(nn.Module):
    """A transformer on the tokens that `embed` makes, with learned positions; classifies the mean of all tokens."""

    def __init__(self, embed: nn.Module, tokens: int, width: int, classes: int, depth: int = 3) -> None:
        super().__init__()
        self.embed = embed
        self.places = nn.Parameter(torch.randn(1, tokens, width) * 0.02)
        self.layers = nn.Sequential(*(Encoder(width, 4) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """An image or text → (n, classes)."""
        tokens = self.embed(x).flatten(2).transpose(1, 2) + self.places
        scores: Tensor = self.head(self.norm(self.layers(tokens)).mean(1))
        return scores


def vision() -> nn.Module:
    """Classifies digits as 16 patches."""
    return Transformer(nn.Conv2d(1, 48, 2, 2), 16, 48, 10)


def text() -> nn.Module:
    """Classifies text, with four characters in a token."""
    return Transformer(nn.Conv1d(len(CHARACTERS), 48, 4, 4), LENGTH // 4, 48, 3)
