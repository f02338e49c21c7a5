"""Whole networks in plain torch, with the statistics of trained ones, for tests and benchmarks.

Every factory takes `width` (scales the channel counts; 1.0 is the published network) and `seed`, and gives a
float32 module in eval mode. Weights are random, but batch norms hold the statistics that the layers before
them really produce on image-like input: activations stay near unit variance at any depth, as after training.

Architectures: ResNet (He et al. 2015), MobileNetV2 (Sandler et al. 2018), MobileNetV3 small (Howard et al.
2019), ShuffleNetV2 (Ma et al. 2018), U-Net (Ronneberger et al. 2015), light-weight RefineNet (Nekrasov et al.
2018) with sub-pixel upsampling (Shi et al. 2016), the encoders of ViT-Tiny and ViT-B/16 (Dosovitskiy et al. 2020).
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from testbed.blocks import (
    EncoderLayer,
    InvertedResidual,
    RefineNet,
    Residual,
    ShuffleUnit,
    UNet,
    basic_block,
    bottleneck,
    classifier,
    conv_bn,
    scaled,
)


def resnet50(width: float = 1.0, seed: int = 0) -> nn.Module:
    """ResNet-50 (25,557,032 parameters): (N, 3, H, W) to (N, 1000)."""

    def build() -> nn.Module:
        layers: list[nn.Module] = [conv_bn(3, scaled(64, width), 7, 2), nn.MaxPool2d(3, 2, 1)]
        inputs = scaled(64, width)
        for base, repeats, first in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            middle, outputs = scaled(base, width), scaled(4 * base, width)
            for stride in (first, *(1,) * (repeats - 1)):
                layers.append(bottleneck(inputs, middle, outputs, stride))
                inputs = outputs
        return nn.Sequential(*layers, *classifier(inputs))

    return trained(build, (8, 3, 128, 128), seed)


def mobilenet_v2(width: float = 1.0, seed: int = 0) -> nn.Module:
    """MobileNetV2 (3,504,872 parameters): (N, 3, H, W) to (N, 1000)."""
    settings = (  # expansion, output, repeats, stride
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    )

    def build() -> nn.Module:
        inputs = scaled(32, width)
        layers: list[nn.Module] = [conv_bn(3, inputs, 3, 2, act=nn.ReLU6)]
        for expansion, base, repeats, first in settings:
            outputs = scaled(base, width)
            for stride in (first, *(1,) * (repeats - 1)):
                layers.append(InvertedResidual(inputs, expansion * inputs, outputs, 3, stride, nn.ReLU6))
                inputs = outputs
        last = scaled(1280, width)
        return nn.Sequential(*layers, conv_bn(inputs, last, 1, act=nn.ReLU6), *classifier(last))

    return trained(build, (8, 3, 128, 128), seed)


def mobilenet_v3(width: float = 1.0, seed: int = 0) -> nn.Module:
    """MobileNetV3 small (2,542,856 parameters): (N, 3, H, W) to (N, 1000)."""
    relu, swish = nn.ReLU, nn.Hardswish
    settings = (  # kernel, expanded, output, squeeze-excite, activation, stride
        (3, 16, 16, True, relu, 2),
        (3, 72, 24, False, relu, 2),
        (3, 88, 24, False, relu, 1),
        (5, 96, 40, True, swish, 2),
        (5, 240, 40, True, swish, 1),
        (5, 240, 40, True, swish, 1),
        (5, 120, 48, True, swish, 1),
        (5, 144, 48, True, swish, 1),
        (5, 288, 96, True, swish, 2),
        (5, 576, 96, True, swish, 1),
        (5, 576, 96, True, swish, 1),
    )

    def build() -> nn.Module:
        inputs = scaled(16, width)
        layers: list[nn.Module] = [conv_bn(3, inputs, 3, 2, act=swish, eps=1e-3)]
        for kernel, expanded, base, squeeze, act, stride in settings:
            middle, outputs = scaled(expanded, width), scaled(base, width)
            layers.append(InvertedResidual(inputs, middle, outputs, kernel, stride, act, squeeze, 1e-3))
            inputs = outputs
        last, hidden = 6 * inputs, scaled(1024, width)
        layers += [conv_bn(inputs, last, 1, act=swish, eps=1e-3), *classifier(last, hidden)]
        return nn.Sequential(*layers, nn.Hardswish(inplace=True), nn.Dropout(0.2), nn.Linear(hidden, 1000))

    return trained(build, (8, 3, 128, 128), seed)


def shufflenet(width: float = 1.0, seed: int = 0) -> nn.Module:
    """ShuffleNetV2 1.0x (2,278,604 parameters; chunk, cat, channel shuffle): (N, 3, H, W) to (N, 1000)."""

    def build() -> nn.Module:
        inputs, last = scaled(24, width), scaled(1024, width)
        layers: list[nn.Module] = [conv_bn(3, inputs, 3, 2), nn.MaxPool2d(3, 2, 1)]
        for base, repeats in ((116, 4), (232, 8), (464, 4)):
            outputs = scaled(base, width)
            for stride in (2, *(1,) * (repeats - 1)):
                layers.append(ShuffleUnit(inputs, outputs, stride))
                inputs = outputs
        return nn.Sequential(*layers, conv_bn(inputs, last, 1), *classifier(last))

    return trained(build, (8, 3, 128, 128), seed)


def unet(width: float = 1.0, seed: int = 0) -> nn.Module:
    """Three-level U-Net for segmentation: (N, 3, H, W) to (N, 2, H, W), H and W multiples of 8."""
    widths = tuple(scaled(channels, width) for channels in (16, 32, 64, 128))
    return trained(lambda: UNet(3, 2, widths), (4, 3, 32, 32), seed)


def refinenet(width: float = 1.0, seed: int = 0) -> nn.Module:
    """RefineNet with four residual blocks: (N, 3, H, W) to (N, 2, H, W), H and W multiples of 4."""
    return trained(lambda: RefineNet(3, 2, scaled(32, width), scaled(64, width)), (4, 3, 32, 32), seed)


def linear_chain(width: float = 1.0, seed: int = 0) -> nn.Module:
    """Five linear layers, the third and fourth with nothing between them: (N, 64) to (N, 10).

    At width 1.0 two of the inner sizes are no multiples of 4.
    """
    a, b, c, d = (scaled(size, width) for size in (128, 130, 97, 64))

    def build() -> nn.Module:
        first = [nn.Linear(64, a), nn.ReLU(), nn.Linear(a, b), nn.ReLU()]
        return nn.Sequential(*first, nn.Linear(b, c), nn.Linear(c, d), nn.ReLU(), nn.Linear(d, 10))

    return trained(build, (4, 64), seed)


def transformer(width: float = 1.0, seed: int = 0, depth: int = 12) -> nn.Module:
    """The encoder of ViT-Tiny behind a linear embedding: (N, tokens, 192) to the same times `width`.

    `width` scales the number of 64-wide heads (3).
    """
    heads = max(1, round(3 * width))

    def build() -> nn.Module:
        layers = (EncoderLayer(heads) for _ in range(depth))
        return nn.Sequential(nn.Linear(192, 64 * heads), *layers, nn.LayerNorm(64 * heads))

    return trained(build, (1, 8, 192), seed)


def vit_b16(width: float = 1.0, seed: int = 0, depth: int = 12) -> nn.Module:
    """The encoder of ViT-B/16 (85,056,000 parameters): (N, tokens, 768) to the same times `width`; 197 tokens of a
    224x224 picture. `width` scales the number of 64-wide heads (12).
    """
    heads = max(1, round(12 * width))

    def build() -> nn.Module:
        return nn.Sequential(*(EncoderLayer(heads) for _ in range(depth)), nn.LayerNorm(64 * heads))

    return trained(build, (1, 8, 64 * heads), seed)


def subpixel(width: float = 1.0, seed: int = 0) -> nn.Module:
    """The sub-pixel CNN of Shi et al. 2016, factor 3: (N, 1, H, W) to (N, 1, 3 H, 3 W)."""
    a, b = scaled(64, width), scaled(32, width)

    def build() -> nn.Module:
        first = [nn.Conv2d(1, a, 5, padding=2), nn.ReLU(inplace=True), nn.Conv2d(a, b, 3, padding=1)]
        return nn.Sequential(*first, nn.ReLU(inplace=True), nn.Conv2d(b, 9, 3, padding=1), nn.PixelShuffle(3))

    return trained(build, (1, 1, 32, 32), seed)


def resnet_block(width: float = 1.0, seed: int = 0) -> nn.Module:
    """A stem and two ResNet basic blocks, plain and strided: (N, 3, H, W) to (N, 64, H/2, W/2)."""
    a, b = scaled(32, width), scaled(64, width)

    def build() -> nn.Module:
        return nn.Sequential(conv_bn(3, a), basic_block(a, a), basic_block(a, b, 2))

    return trained(build, (4, 3, 16, 16), seed)


def mobilenet_v3_block(width: float = 1.0, seed: int = 0) -> nn.Module:
    """A stem and two blocks with squeeze-excite and hardswish: (N, 3, H, W) to (N, 24, H/2, W/2)."""
    a, m, b = scaled(16, width), scaled(64, width), scaled(24, width)

    def build() -> nn.Module:
        stem = conv_bn(3, a, act=nn.Hardswish)
        blocks = [InvertedResidual(a, m, out, 5, s, nn.Hardswish, True) for out, s in ((a, 1), (b, 2))]
        return nn.Sequential(stem, *blocks)

    return trained(build, (4, 3, 16, 16), seed)


def example_input(shape: tuple[int, ...], seed: int = 0) -> Tensor:
    """Float32 noise of unit standard deviation; for (N, C, H, W) of all scales, as photographs have."""
    draw = torch.Generator().manual_seed(seed)
    if len(shape) != 4:
        return torch.randn(shape, generator=draw)
    n, c, h, w = shape
    total = torch.zeros(shape)
    for octave in range(max(1, min(h, w).bit_length() - 1)):
        noise = torch.randn((n, c, h >> octave, w >> octave), generator=draw)
        total += F.interpolate(noise, size=(h, w), mode="bilinear")
    return total / total.std()


def photograph(shape: tuple[int, ...], seed: int = 0) -> Tensor:
    """`example_input` as uint8: 0 to 255."""
    x = example_input(shape, seed)
    return ((x - x.min()) / (x.max() - x.min()) * 255).round().to(torch.uint8)


class OfBytes(nn.Module):
    """uint8 images -> what `inner` makes of them: of numbers of 0 to 1, or, with `normalized`, of mean 0 and standard
    deviation 1. With `image`, the result is an image as well: uint8 for 0 to 1."""

    def __init__(self, inner: nn.Module, normalized: bool = False, image: bool = False) -> None:
        super().__init__()
        self.inner, self.normalized, self.image = inner, normalized, image

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        y: Tensor = self.inner((x.float() - 127.5) / 58.0 if self.normalized else x.float() / 255)
        return (y * 255).round().clamp(0, 255).to(torch.uint8) if self.image else y


def trained(build: Callable[[], nn.Module], shape: tuple[int, ...], seed: int) -> nn.Module:
    """What `build` makes, in eval mode, seeded, with batch norm statistics measured on an input of `shape`.

    The caller's random state is left as it was.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = build()
        for module in reversed(list(model.modules())):  # children before parents
            randomize(module)
        norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
        momenta = [norm.momentum for norm in norms]
        for norm in norms:
            norm.momentum = None  # the plain average: after one batch, that batch's own statistics
        model.train()(example_input(shape, seed))
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
            assert norm.running_var is not None
            # A channel that an activation left almost constant is not blown up: training does not do it either.
            norm.running_var.clamp_(min=0.5 * norm.running_var.mean().item())
    return model.eval()


def randomize(module: nn.Module) -> None:
    """Draw this module's own parameters, keeping the variance of what passes through.

    A residual branch, its parameters already drawn, is made the smaller term of its sum, as training makes it:
    with equal terms, the rounding errors of 50 random layers grow until they hide the signal.
    """
    if isinstance(module, Residual | InvertedResidual):
        norms = [child for child in module.branch.modules() if isinstance(child, nn.BatchNorm2d)]
        norms[-1].weight.mul_(0.3)
    elif isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_in", nonlinearity="relu")
    elif isinstance(module, nn.Linear):
        nn.init.xavier_normal_(module.weight)
    elif isinstance(module, nn.BatchNorm2d | nn.LayerNorm):
        nn.init.uniform_(module.weight, 0.6, 1.4)
    bias = getattr(module, "bias", None)
    if isinstance(bias, nn.Parameter):
        nn.init.normal_(bias, std=0.5 if isinstance(module, nn.BatchNorm2d) else 0.1)


class Factory(Protocol):
    """Makes a network; `width` scales its channels."""

    def __call__(self, width: float = 1.0, seed: int = 0) -> nn.Module: ...


class Network(NamedTuple):
    """A factory, the input shape that the network is meant for, and one that is quick to run."""

    factory: Factory
    shape: tuple[int, ...]
    small_shape: tuple[int, ...]


NETWORKS: dict[str, Network] = {
    "resnet50": Network(resnet50, (1, 3, 224, 224), (1, 3, 64, 64)),
    "mobilenet_v2": Network(mobilenet_v2, (1, 3, 224, 224), (1, 3, 64, 64)),
    "mobilenet_v3": Network(mobilenet_v3, (1, 3, 224, 224), (1, 3, 64, 64)),
    "shufflenet": Network(shufflenet, (1, 3, 224, 224), (1, 3, 64, 64)),
    "unet": Network(unet, (1, 3, 128, 128), (1, 3, 32, 32)),
    "refinenet": Network(refinenet, (1, 3, 256, 144), (1, 3, 32, 24)),
    "subpixel": Network(subpixel, (1, 1, 256, 256), (1, 1, 24, 20)),
    "linear_chain": Network(linear_chain, (8, 64), (3, 64)),
    "transformer": Network(transformer, (1, 196, 192), (1, 17, 192)),
    "resnet_block": Network(resnet_block, (1, 3, 56, 56), (1, 3, 16, 16)),
    "mobilenet_v3_block": Network(mobilenet_v3_block, (1, 3, 56, 56), (1, 3, 16, 16)),
}
