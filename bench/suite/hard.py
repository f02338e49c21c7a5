"""Networks without attention that are known to lose accuracy in 8 bits: values have a large range, or pass a steep or
discrete function. Weights are random."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def perceptron(inputs: int, outputs: int, width: int = 64) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, width), nn.SiLU(), nn.Linear(width, outputs))


class Timestep(nn.Module):
    """A diffusion network's timestep embedding: sines and cosines of phases of up to 160 turns."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = perceptron(64, 64)

    def forward(self, time: Tensor) -> Tensor:
        """(n,) in 0..1000 → (n, 64)."""
        phases = time[:, None] * torch.exp(-math.log(10_000) * torch.arange(32) / 32)
        y: Tensor = self.layers(torch.cat([phases.sin(), phases.cos()], -1))
        return y


class Radiance(nn.Module):
    """The color and density at a position, from sines and cosines of ten octaves (Mildenhall et al., NeRF, 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(63, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))

    def forward(self, x: Tensor) -> Tensor:
        """(n, 3) in -1..1 → (n, 4)."""
        phases = (x[:, None] * (2.0 ** torch.arange(10) * torch.pi)[:, None]).flatten(1)
        y: Tensor = self.layers(torch.cat([x, phases.sin(), phases.cos()], -1))
        return y


class Looked(nn.Module):
    """Looks up a row of a table: by one of a thousand steps of 0..1, or by a bucket."""

    bounds: Tensor | None

    def __init__(self, buckets: bool) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(1000, 16))
        self.register_buffer("bounds", torch.linspace(0, 1, 1001)[1:-1] ** 2 if buckets else None)
        self.layers = perceptron(8 * 16, 32)

    def forward(self, x: Tensor) -> Tensor:
        """(n, 8) in 0..1 → (n, 32)."""
        which = (x * 1000).long() if self.bounds is None else torch.bucketize(x, self.bounds)
        y: Tensor = self.layers(self.table[which].flatten(1))
        return y


class SpatialTransformer(nn.Module):
    """A spatial transformer: a small network predicts a rotation and a shift of the image (Jaderberg et al. 2015)."""

    def __init__(self) -> None:
        super().__init__()
        self.place = nn.Sequential(nn.Conv2d(1, 8, 5, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten())
        self.theta = nn.Linear(8 * 16, 6)
        nn.init.normal_(self.theta.weight, std=0.2)
        self.theta.bias = nn.Parameter(torch.tensor([0.9, 0.2, 0.05, -0.2, 0.9, -0.05]))
        self.read = nn.Sequential(nn.Conv2d(1, 16, 3, 2), nn.ReLU(), nn.Conv2d(16, 16, 3, 2), nn.ReLU(), nn.Flatten())
        self.head = nn.Linear(16 * 36, 10)

    def forward(self, x: Tensor) -> Tensor:
        """(n, 1, 28, 28) → (n, 10)."""
        grid = F.affine_grid(self.theta(self.place(x)).reshape(-1, 2, 3), list(x.shape), align_corners=False)
        y: Tensor = self.head(self.read(F.grid_sample(x, grid, align_corners=False)))
        return y


class Warp(nn.Module):
    """Warps the second of two images onto the first by a predicted flow of up to three pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.flow = nn.Sequential(nn.Conv2d(2, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 2, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        """(n, 2, 32, 32) → (n, 1, 32, 32)."""
        across = torch.linspace(-1, 1, 32)
        grid = torch.stack([across.expand(32, 32), across[:, None].expand(32, 32)], -1)
        flow = 0.2 * torch.tanh(4 * self.flow(x)).permute(0, 2, 3, 1)
        return F.grid_sample(x[:, 1:], grid + flow, align_corners=True)


class SoftArgmax(nn.Module):
    """Soft argmax: the mean position in each of five heat maps, weighted by a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.heat = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 5, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        """(n, 3, 32, 32) → (n, 5, 2) in -1..1."""
        weights = (40 * self.heat(x)).flatten(2).softmax(-1).reshape(-1, 5, 32, 32)
        places = torch.linspace(-1, 1, 32)
        return torch.stack([(weights.sum(2) * places).sum(-1), (weights.sum(3) * places).sum(-1)], -1)


MEANS, DEVIATIONS = (40.0, 5e4, 2005.0, 0.3, 170.0, 0.0, 1e-3, 12.0), (12.0, 2e4, 6.0, 0.1, 10.0, 1.0, 2e-4, 4.0)
"""Means and standard deviations of a table's columns: an age, an income, a year, a share and so on."""


class Tabular(nn.Module):
    """A table with columns of different magnitude, normalized first by `BatchNorm1d` or by constants."""

    mean: Tensor
    std: Tensor

    def __init__(self, batch_norm: bool) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(MEANS))
        self.register_buffer("std", torch.tensor(DEVIATIONS))
        self.norm = nn.BatchNorm1d(8) if batch_norm else None
        if self.norm is not None:
            self.norm.running_mean, self.norm.running_var = torch.tensor(MEANS), torch.tensor(DEVIATIONS) ** 2
        self.layers = perceptron(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        """(n, 8) → (n, 10)."""
        y = (x - self.mean) / self.std if self.norm is None else self.norm(x)
        z: Tensor = self.layers(y)
        return z


def kelvin() -> nn.Module:
    """A layer norm of temperatures that vary by a degree around 290."""
    return nn.Sequential(nn.LayerNorm(16), perceptron(16, 10))


class MeanSquare(nn.Module):
    """Convolutions, after each of which the image is divided by its mean square."""

    def __init__(self) -> None:
        super().__init__()
        widths = ((3, 16), (16, 24), (24, 24))
        self.layers = nn.ModuleList(nn.Conv2d(*each, 3, padding=1) for each in widths)
        self.head = nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        """(n, 3, 24, 24) → (n, 10)."""
        for layer in self.layers:
            x = F.relu(layer(x))
            x = x / x.pow(2).mean()
        y: Tensor = self.head(x.mean((2, 3)))
        return y


class VoiceDetector(nn.Module):
    """The power of a spectrum, by convolutions with cosines and sines, then an LSTM: whether a frame holds a voice."""

    cosines: Tensor
    sines: Tensor

    def __init__(self, window: int = 128) -> None:
        super().__init__()
        turns = torch.arange(window // 4)[:, None] * torch.arange(window) / window * 2 * torch.pi
        hann = torch.hann_window(window)
        self.register_buffer("cosines", (turns.cos() * hann).unsqueeze(1))
        self.register_buffer("sines", (turns.sin() * hann).unsqueeze(1))
        self.step = window // 2
        self.lstm, self.head = nn.LSTM(window // 4, 32, batch_first=True), nn.Linear(32, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(n, 1, samples) → (n, frames)."""
        real, imaginary = (F.conv1d(x, each, stride=self.step) for each in (self.cosines, self.sines))
        power = real**2 + imaginary**2
        y: Tensor = self.head(self.lstm(power.transpose(1, 2))[0]).squeeze(-1)
        return y


class WaveNet(nn.Module):
    """Gated dilated convolutions with residual and skip connections (van den Oord et al. 2016)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.dilations = nn.Conv1d(1, 16, 1), (1, 2, 4, 8)
        self.spread = nn.ModuleList(nn.Conv1d(16, 32, 2, dilation=d) for d in self.dilations)
        self.on = nn.ModuleList(nn.Conv1d(16, 16, 1) for _ in self.dilations)
        self.skip = nn.ModuleList(nn.Conv1d(16, 16, 1) for _ in self.dilations)
        self.head = nn.Sequential(nn.ReLU(), nn.Conv1d(16, 16, 1), nn.ReLU(), nn.Conv1d(16, 32, 1))

    def forward(self, x: Tensor) -> Tensor:
        """(n, 1, samples) → (n, 32, samples)."""
        x, skips = self.first(x), []
        for dilation, spread, on, skip in zip(self.dilations, self.spread, self.on, self.skip, strict=True):
            signal, gate = spread(F.pad(x, (dilation, 0))).chunk(2, 1)
            y = torch.tanh(signal) * torch.sigmoid(gate)
            skips.append(skip(y))
            x = x + on(y)
        z: Tensor = self.head(torch.stack(skips).sum(0))
        return z


class Flow(nn.Module):
    """A normalizing flow of four affine couplings, and the logarithm of its determinant (Dinh et al., Real NVP,
    2016)."""

    def __init__(self) -> None:
        super().__init__()
        self.couplings = nn.ModuleList(perceptron(8, 16) for _ in range(4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(n, 16) → (n, 16), (n,)."""
        first, second = x.chunk(2, -1)
        volume = torch.zeros_like(x[:, 0])
        for coupling in self.couplings:
            scale, shift = coupling(first).chunk(2, -1)
            scale = torch.tanh(scale)
            first, second = second * scale.exp() + shift, first
            volume = volume + scale.sum(-1)
        return torch.cat([first, second], -1), volume


class Siren(nn.Module):
    """An image as a perceptron with sines as activations (Sitzmann et al. 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2 if i == 0 else 64, 64) for i in range(3))
        self.head = nn.Linear(64, 3)
        for i, layer in enumerate(self.layers):
            bound = 1 / 2 if i == 0 else math.sqrt(6 / 64) / 30
            nn.init.uniform_(layer.weight, -bound, bound)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        """(n, 2) in -1..1 → (n, 3)."""
        for layer in self.layers:
            x = torch.sin(30 * layer(x))
        y: Tensor = self.head(x)
        return y


class Residual(nn.Module):
    """A residual block of two convolutions with instance norms."""

    def __init__(self, width: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for last in (False, True):
            layers += [nn.ReflectionPad2d(1), nn.Conv2d(width, width, 3), nn.InstanceNorm2d(width)]
            layers += [] if last else [nn.ReLU()]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """(n, width, h, w) → the same."""
        y: Tensor = x + self.layers(x)
        return y


def cyclegan() -> nn.Module:
    """A generator of images from images (Zhu et al. 2017)."""
    layers = [nn.ReflectionPad2d(3), nn.Conv2d(3, 8, 7), nn.InstanceNorm2d(8), nn.ReLU()]
    for width in (8, 16):
        layers += [nn.Conv2d(width, 2 * width, 3, 2, 1), nn.InstanceNorm2d(2 * width), nn.ReLU()]
    layers += [Residual(32) for _ in range(3)]
    for width in (32, 16):
        shrink = nn.ConvTranspose2d(width, width // 2, 3, 2, 1, output_padding=1)
        layers += [shrink, nn.InstanceNorm2d(width // 2), nn.ReLU()]
    return nn.Sequential(*layers, nn.ReflectionPad2d(3), nn.Conv2d(8, 3, 7), nn.Tanh())
