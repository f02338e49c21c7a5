"""What the networks of testbed/networks.py are made of: convolutions, residuals, decoders, an encoder layer."""

from collections.abc import Callable
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def divisible(channels: float, by: int = 8) -> int:
    """The nearest multiple of `by`, at least `by`, and at least 90 % of `channels` (the MobileNets' rule)."""
    nearest = max(by, int(channels + by / 2) // by * by)
    return nearest if nearest >= 0.9 * channels else nearest + by


def scaled(channels: int, width: float) -> int:
    """`channels` themselves at width 1.0, else a multiple of 8 near `channels * width`."""
    return channels if width == 1.0 else divisible(channels * width)


def conv_bn(
    inputs: int,
    outputs: int,
    kernel: int = 3,
    stride: int = 1,
    groups: int = 1,
    act: Callable[..., nn.Module] | None = nn.ReLU,
    eps: float = 1e-5,
) -> nn.Sequential:
    """Convolution padded by kernel // 2, batch norm and, unless `act` is None, an in-place activation."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    norm = nn.BatchNorm2d(outputs, eps=eps)
    return nn.Sequential(conv, norm) if act is None else nn.Sequential(conv, norm, act(inplace=True))


class Residual(nn.Module):
    """y = act(branch(x) + shortcut(x)); the shortcut is a 1x1 convolution where the shape changes."""

    def __init__(self, branch: nn.Module, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        same = inputs == outputs and stride == 1
        self.branch = branch
        self.shortcut = nn.Identity() if same else conv_bn(inputs, outputs, 1, stride, act=None)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.act(self.branch(x) + self.shortcut(x))
        return y


def basic_block(inputs: int, outputs: int, stride: int = 1) -> Residual:
    """The two-convolution block of ResNet-18 and 34."""
    branch = nn.Sequential(conv_bn(inputs, outputs, 3, stride), conv_bn(outputs, outputs, act=None))
    return Residual(branch, inputs, outputs, stride)


def bottleneck(inputs: int, middle: int, outputs: int, stride: int) -> Residual:
    """The three-convolution block of ResNet-50, with the stride in its 3x3 convolution."""
    branch = nn.Sequential(
        conv_bn(inputs, middle, 1), conv_bn(middle, middle, 3, stride), conv_bn(middle, outputs, 1, act=None)
    )
    return Residual(branch, inputs, outputs, stride)


class SqueezeExcite(nn.Module):
    """A gate in 0..1 per channel, made from the channel means, times the input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        middle = divisible(channels // 4)
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, middle, 1),
            nn.ReLU(inplace=True),
            nn.Conv2d(middle, channels, 1),
            nn.Hardsigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.gate(x) * x
        return y


class InvertedResidual(nn.Module):
    """Expand (1x1), depthwise, squeeze-excite if asked, project (1x1, linear); a shortcut if shapes agree."""

    def __init__(
        self,
        inputs: int,
        middle: int,
        outputs: int,
        kernel: int,
        stride: int,
        act: Callable[..., nn.Module],
        squeeze: bool = False,
        eps: float = 1e-5,
    ) -> None:
        super().__init__()
        self.shortcut = inputs == outputs and stride == 1
        expand = [conv_bn(inputs, middle, 1, act=act, eps=eps)] if middle != inputs else []
        depthwise = conv_bn(middle, middle, kernel, stride, groups=middle, act=act, eps=eps)
        excite = [SqueezeExcite(middle)] if squeeze else []
        project = conv_bn(middle, outputs, 1, act=None, eps=eps)
        self.branch = nn.Sequential(*expand, depthwise, *excite, project)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.branch(x)
        return x + y if self.shortcut else y


class ShuffleUnit(nn.Module):
    """ShuffleNetV2: half of the channels pass by (stride 2: a second branch), then the halves interleave."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        half = outputs // 2
        self.split = stride == 1
        entering = inputs // 2 if self.split else inputs
        down = [conv_bn(inputs, inputs, 3, stride, inputs, None), conv_bn(inputs, half, 1)]
        self.left = nn.Identity() if self.split else nn.Sequential(*down)
        self.right = nn.Sequential(
            conv_bn(entering, half, 1), conv_bn(half, half, 3, stride, half, None), conv_bn(half, half, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, dim=1) if self.split else (x, x)
        y = torch.cat((self.left(left), self.right(right)), dim=1)
        n, c, h, w = y.shape
        return y.view(n, 2, c // 2, h, w).transpose(1, 2).contiguous().view(n, c, h, w)


class UNet(nn.Module):
    """Encoder and decoder: max_pool down, nearest neighbour up, cat with the encoder's features."""

    def __init__(self, inputs: int, outputs: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        entering = (inputs, *widths[:-1])
        pairs = list(pairwise(widths))
        self.down = nn.ModuleList(
            nn.Sequential(conv_bn(a, b), conv_bn(b, b)) for a, b in zip(entering, widths, strict=True)
        )
        self.up = nn.ModuleList(nn.Sequential(conv_bn(a + b, a), conv_bn(a, a)) for a, b in reversed(pairs))
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Conv2d(widths[0], outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.down[0](x)
        skips = []
        for block in self.down[1:]:
            skips.append(x)
            x = block(self.pool(x))
        for block, skip in zip(self.up, reversed(skips), strict=True):
            x = block(torch.cat((skip, F.interpolate(x, scale_factor=2.0, mode="nearest")), dim=1))
        y: Tensor = self.head(x)
        return y


class RefineNet(nn.Module):
    """Encoder (stride 4), four residual blocks, two pixel_shuffles up, refined by stride-2 features between."""

    def __init__(self, inputs: int, outputs: int, fine: int, coarse: int) -> None:
        super().__init__()
        self.stem = conv_bn(inputs, fine, stride=2)
        self.encoder = conv_bn(fine, coarse, stride=2)
        self.blocks = nn.Sequential(*(basic_block(coarse, coarse) for _ in range(4)))
        self.up = nn.Sequential(nn.Conv2d(coarse, 4 * fine, 3, padding=1), nn.PixelShuffle(2))
        self.adapt = conv_bn(fine, fine, 1, act=None)
        self.act = nn.ReLU(inplace=True)
        self.head = nn.Sequential(nn.Conv2d(fine, 4 * outputs, 3, padding=1), nn.PixelShuffle(2))

    def forward(self, x: Tensor) -> Tensor:
        fine = self.stem(x)
        coarse = self.blocks(self.encoder(fine))
        y: Tensor = self.head(self.act(self.up(coarse) + self.adapt(fine)))
        return y


class EncoderLayer(nn.Module):
    """Pre-norm transformer layer over (batch, tokens, heads * 64): multi-head attention, then a GELU MLP."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        width = 64 * heads
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def attention(self, x: Tensor) -> Tensor:
        n, tokens, width = x.shape
        q, k, v = (t.view(n, tokens, self.heads, 64).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        weights = F.softmax(torch.matmul(q, k.transpose(-2, -1)) * 0.125, dim=-1)
        y: Tensor = self.out(torch.matmul(weights, v).transpose(1, 2).reshape(n, tokens, width))
        return y

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        y: Tensor = x + self.mlp(self.norm2(x))
        return y


def classifier(channels: int, classes: int = 1000) -> list[nn.Module]:
    """Global average pooling and one linear layer."""
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]


def data(*shape: int, seed: int = 1) -> Tensor:
    """Normally distributed numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def conv(inputs: int, outputs: int, kernel: int = 3, groups: int = 1) -> nn.Conv2d:
    """A convolution that keeps the size of an image."""
    return nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, groups=groups)
