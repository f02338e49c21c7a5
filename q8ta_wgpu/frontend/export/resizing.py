"""Resizing as products with constant weights, and averages of volumes by averages of images."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

_aten = torch.ops.aten


def _cubic_kernel(d: Tensor, a: float) -> Tensor:
    """The weight of a tap at each distance."""
    near, far = ((a + 2) * d - (a + 3)) * d * d + 1, ((d - 5) * d + 8) * d * a - 4 * a
    return torch.where(d <= 1, near, torch.where(d < 2, far, 0.0))


def _step(size: int, extent: int, factor: float | None, align_corners: bool) -> float:
    """The distance in the input between neighbouring results."""
    if align_corners:
        return (extent - 1) / (size - 1) if size > 1 else 0.0
    return 1.0 / factor if factor else extent / size


def _cubic(size: int, extent: int, factor: float | None, align_corners: bool) -> Tensor:
    """The weights of a cubic resize from `extent` to `size`, (size, extent): four taps, a = -0.75, as in torch."""
    step = _step(size, extent, factor, align_corners)
    position = torch.arange(size) * step if align_corners else (torch.arange(size) + 0.5) * step - 0.5
    first, along, weights = position.floor(), torch.arange(extent), torch.zeros(size, extent, dtype=torch.float32)
    for tap in (-1, 0, 1, 2):
        column = (first + tap).clamp(0, extent - 1)
        weights = weights + _cubic_kernel((position - first - tap).abs(), -0.75)[:, None] * (column[:, None] == along)
    return weights


def _antialiased(size: int, extent: int, factor: float | None, align_corners: bool, cubic: bool) -> Tensor:
    """The weights of an antialiased resize from `extent` to `size`, (size, extent). When it shrinks, taps are scaled by
    the distance between results. a = -0.5, as in Pillow and torch."""
    step = _step(size, extent, factor, align_corners)
    apart = max(step, 1.0)
    center = step * (torch.arange(size, dtype=torch.float64)[:, None] + 0.5)
    reach = (2.0 if cubic else 1.0) * apart
    first = (center - reach + 0.5).trunc().clamp(min=0)
    last = (center + reach + 0.5).trunc().clamp(max=extent)
    along = torch.arange(extent, dtype=torch.float64)
    d = ((along - center + 0.5) / apart).abs()
    weights = _cubic_kernel(d, -0.5) if cubic else (1 - d).clamp(min=0)
    weights = torch.where((along >= first) & (along < last), weights, 0.0)
    return (weights / weights.sum(1, True)).float()


def _by_products(weights: Callable[..., Tensor], **options: Any) -> Callable[..., Any]:
    """A rule that resizes images by rows, then columns."""

    def resized(
        x: Tensor, output_size: Any, align_corners: bool, scales_h: float | None = None, scales_w: float | None = None
    ) -> Tensor:
        rows, columns = (
            weights(n, extent, factor, align_corners, **options)
            for n, extent, factor in zip(output_size, x.shape[-2:], (scales_h, scales_w), strict=True)
        )
        return rows @ (x @ columns.t())

    return resized


def _adaptive_average(x: Tensor, output_size: Any) -> Tensor:
    """Averages the images of all depths, then along the depth. This is exact since windows are boxes."""
    *lead, channels, depth, height, width = x.shape
    deep, rows, columns = output_size
    images = F.adaptive_avg_pool2d(x.reshape(*lead, channels * depth, height, width), (rows, columns))
    along = F.adaptive_avg_pool2d(images.reshape(*lead, channels, depth, rows * columns), (deep, rows * columns))
    return along.reshape(*lead, channels, deep, rows, columns)


RESIZING: Mapping[Any, Callable[..., Any]] = {
    _aten.upsample_bicubic2d.default: _by_products(_cubic),
    _aten._upsample_bilinear2d_aa.default: _by_products(_antialiased, cubic=False),
    _aten._upsample_bicubic2d_aa.default: _by_products(_antialiased, cubic=True),
    _aten._adaptive_avg_pool3d.default: _adaptive_average,
}
