"""Neutral graphs of the networks layout sync is measured on: operators and shapes, as upstream would lower them."""

from __future__ import annotations

from collections.abc import Callable

from testbed.etvk_table import Neutral


def resnet50() -> Neutral:
    g = Neutral()
    x = g.conv(g.add("quantize", g.input(1, 3, 224, 224)), 64, 7, 2)
    x = g.floats("pool", x, shape=(1, 64, 56, 56))
    for middle, repeats, first in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for stride in (first, *(1,) * (repeats - 1)):
            y = g.conv(g.conv(x, middle, 1), middle, 3, stride)
            y = g.conv(y, 4 * middle, 1)
            shortcut = x if g.shapes[x] == g.shapes[y] else g.conv(x, 4 * middle, 1, stride)
            x = g.add("add", y, shortcut)
    x = g.floats("pool", x, shape=(1, 2048, 1, 1))
    g.add("dequantize", g.add("gemv", g.add("view", x, shape=(1, 2048)), shape=(1, 1000)))
    return g


def inverted(g: Neutral, x: str, expanded: int, channels: int, kernel: int, stride: int, squeeze: bool) -> str:
    """MobileNet's block: relu6 and hardswish are float islands upstream."""
    y = x if expanded == g.shapes[x][1] else g.floats("elementwise", g.conv(x, expanded, 1))
    y = g.floats("elementwise", g.conv(y, expanded, kernel, stride, groups=expanded))
    if squeeze:
        gate = g.floats("pool", y, shape=(1, expanded, 1, 1))
        gate = g.floats("elementwise", g.conv(g.conv(gate, expanded // 4, 1), expanded, 1))
        y = g.floats("elementwise", y, gate, shape=g.shapes[y])
    y = g.conv(y, channels, 1)
    return g.add("add", y, x) if g.shapes[y] == g.shapes[x] else y


def mobilenet_v2() -> Neutral:
    g = Neutral()
    x = g.floats("elementwise", g.conv(g.add("quantize", g.input(1, 3, 224, 224)), 32, 3, 2))
    for expansion, channels, repeats, first in (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
    ):  # fmt: skip
        for stride in (first, *(1,) * (repeats - 1)):
            x = inverted(g, x, expansion * g.shapes[x][1], channels, 3, stride, False)
    x = g.floats("pool", g.floats("elementwise", g.conv(x, 1280, 1)), shape=(1, 1280, 1, 1))
    g.add("dequantize", g.add("gemv", g.add("view", x, shape=(1, 1280)), shape=(1, 1000)))
    return g


def mobilenet_v3() -> Neutral:
    g = Neutral()
    x = g.floats("elementwise", g.conv(g.add("quantize", g.input(1, 3, 224, 224)), 16, 3, 2))
    for kernel, expanded, channels, squeeze, stride in (
        (3, 16, 16, True, 2), (3, 72, 24, False, 2), (3, 88, 24, False, 1), (5, 96, 40, True, 2),
        (5, 240, 40, True, 1), (5, 240, 40, True, 1), (5, 120, 48, True, 1), (5, 144, 48, True, 1),
        (5, 288, 96, True, 2), (5, 576, 96, True, 1), (5, 576, 96, True, 1),
    ):  # fmt: skip
        x = inverted(g, x, expanded, channels, kernel, stride, squeeze)
    x = g.floats("pool", g.floats("elementwise", g.conv(x, 576, 1)), shape=(1, 576, 1, 1))
    x = g.add("gemv", g.add("view", x, shape=(1, 576)), shape=(1, 1024))
    g.add("dequantize", g.add("gemv", g.floats("elementwise", x), shape=(1, 1000)))
    return g


def refinenet() -> Neutral:
    """Light-weight RefineNet: three encoder levels, each with a 1x1 convolution into the decoder; four residual blocks,
    each followed by a clone (what a dropout in eval mode exports as); pixel_shuffles between the levels."""
    g = Neutral()
    fine = g.conv(g.add("quantize", g.input(1, 3, 256, 144)), 32, 3, 2)
    middle = g.conv(fine, 64, 3, 2)
    coarse = g.conv(middle, 64, 3, 2)
    x = coarse
    for _ in range(4):
        x = g.add("clone", g.add("add", g.conv(g.conv(x, 64), 64), x))
    x = g.add("add", g.conv(x, 64, 1), g.conv(coarse, 64, 1))
    for level, channels in ((middle, 64), (fine, 32)):
        x = g.add("pixel_shuffle", g.conv(x, 4 * channels), shape=g.shapes[level])
        x = g.add("add", x, g.conv(level, channels, 1))
    x = g.add("pixel_shuffle", g.conv(x, 8), shape=(1, 2, 256, 144))
    g.add("dequantize", x)
    return g


def unet() -> Neutral:
    g = Neutral()
    widths, skips = (16, 32, 64, 128), []
    x = g.add("quantize", g.input(1, 3, 128, 128))
    for level, channels in enumerate(widths):
        if level:
            skips.append(x)
            n, c, h, w = g.shapes[x]
            x = g.floats("pool", x, shape=(n, c, h // 2, w // 2))
        x = g.conv(g.conv(x, channels), channels)
    for channels, skip in zip(widths[-2::-1], reversed(skips), strict=True):
        n, c, h, w = g.shapes[skip]
        up = g.floats("upsample", x, shape=(n, g.shapes[x][1], h, w))
        x = g.floats("cat", skip, up, shape=(n, c + g.shapes[up][1], h, w))
        x = g.conv(g.conv(x, channels), channels)
    g.add("dequantize", g.conv(x, 2, 1))
    return g


def shufflenet() -> Neutral:
    g = Neutral()
    x = g.conv(g.add("quantize", g.input(1, 3, 224, 224)), 24, 3, 2)
    x = g.floats("pool", x, shape=(1, 24, 56, 56))
    for channels, repeats in ((116, 4), (232, 8), (464, 4)):
        half = channels // 2
        for stride in (2, *(1,) * (repeats - 1)):
            n, c, h, w = g.shapes[x]
            if stride == 1:
                left, right = (g.floats("slice", x, shape=(n, half, h, w)) for _ in range(2))
            else:
                left, right = g.conv(g.conv(x, c, 3, 2, groups=c), half, 1), x
            right = g.conv(right, half, 1)
            right = g.conv(g.conv(right, half, 3, stride, groups=half), half, 1)
            joined = g.floats("cat", left, right, shape=(n, channels, h // stride, w // stride))
            x = joined
            for shape in ((n, 2, half, h // stride, w // stride), (n, channels, h // stride, w // stride)):
                x = g.add("view", x, shape=shape)
    x = g.floats("pool", g.conv(x, 1024, 1), shape=(1, 1024, 1, 1))
    g.add("dequantize", g.add("gemv", g.add("view", x, shape=(1, 1024)), shape=(1, 1000)))
    return g


def transformer() -> Neutral:
    g = Neutral()
    tokens, width = 196, 192
    x = g.add("linear", g.add("quantize", g.input(1, tokens, width)))
    for _ in range(12):
        y = g.floats("layer_norm", x)
        q, k, v = (g.add("dequantize", g.add("view", g.add("linear", y), shape=(1, 3, tokens, 64))) for _ in range(3))
        weights = g.add("softmax", g.add("matmul", q, k, shape=(1, 3, tokens, tokens)))
        y = g.add("quantize", g.add("matmul", weights, v, shape=(1, 3, tokens, 64)))
        x = g.add("add", x, g.add("linear", g.add("view", y, shape=(1, tokens, width))))
        y = g.add("linear", g.floats("layer_norm", x), shape=(1, tokens, 4 * width))
        x = g.add("add", x, g.add("linear", g.floats("elementwise", y), shape=(1, tokens, width)))
    g.add("dequantize", x)
    return g


NEUTRAL: dict[str, Callable[[], Neutral]] = {
    "resnet50": resnet50,
    "mobilenet_v2": mobilenet_v2,
    "mobilenet_v3": mobilenet_v3,
    "refinenet": refinenet,
    "unet": unet,
    "shufflenet": shufflenet,
    "transformer": transformer,
}
