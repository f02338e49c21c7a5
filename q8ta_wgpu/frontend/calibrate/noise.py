"""Noise to signal: how far outputs are from exact ones, as a ratio of powers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

_FEW = 1000
"""Numbers of an output below which one that is far off may make most of the noise."""

_FILL, _LARGE = 10.0, 1e4
"""A number that takes the place of others is this many times as large as all others. It is negative, as for logits that
are not allowed, or at least _LARGE."""


def fill_of(values: Sequence[Tensor]) -> float | None:
    """The number that takes the place of masked elements in a value, by its values in several items: two elements or
    more have it, and it is far from all others. None if there is none."""
    values = [x.detach() for x in values if x.numel() and x.dtype.is_floating_point]
    if not values:
        return None
    least, most = (
        float(torch.stack([x.min() for x in values]).min()),
        float(torch.stack([x.max() for x in values]).max()),
    )
    for fill, far in ((least, least < 0), (most, most >= _LARGE)):
        # Most values have their extreme once, which is found without a copy.
        if not far or sum(int((x == fill).sum()) for x in values) < 2:
            continue
        others = [x[x != fill] for x in values]
        largest = max((float(x.abs().max()) for x in others if x.numel()), default=0.0)
        if 0 < _FILL * largest < abs(fill):
            return fill
    return None


def noise(found: Iterable[Sequence[Tensor]], exact: Sequence[Sequence[Tensor]]) -> list[float]:
    """The noise of each output relative to its signal, as a ratio of powers over all items. For outputs of other whole
    numbers than amounts, the share of elements that differ. What takes the place of masked elements is no signal."""
    fills = [fill_of(each) for each in zip(*exact, strict=True)]
    errors, powers = [0.0] * len(exact[0]), [0.0] * len(exact[0])
    for ours, wanted in zip(found, exact, strict=True):
        for i, (y, v) in enumerate(zip(ours, wanted, strict=True)):
            if v.dtype.is_floating_point:
                y, v = (y, v) if fills[i] is None else (y[v != fills[i]], v[v != fills[i]])
                errors[i] += float(((y - v).double() ** 2).sum())
                powers[i] += float((v.double() ** 2).sum())
            else:
                errors[i] += float((y != v).sum())
                powers[i] += v.numel()
    return [error / max(power, 1e-30) for error, power in zip(errors, powers, strict=True)]


def usual_noise(found: Sequence[Sequence[Tensor]], exact: Sequence[Sequence[Tensor]]) -> list[float]:
    """As `noise`, without the largest tenth of the squared errors, for outputs of few numbers. 0 for other outputs."""
    ratios = []
    for pair in zip(zip(*exact, strict=True), zip(*found, strict=True), strict=True):
        if sum(v.numel() for v in pair[0]) >= _FEW or not pair[0][0].dtype.is_floating_point:
            ratios.append(0.0)
            continue
        wanted, ours = (torch.cat([x.reshape(-1) for x in each]) for each in pair)
        if (fill := fill_of(pair[0])) is not None:
            wanted, ours = wanted[wanted != fill], ours[wanted != fill]
        squares = (ours - wanted).double().square().sort().values
        power = float(wanted.double().square().sum())
        ratios.append(float(squares[: len(squares) - len(squares) // 10].sum()) / max(power, 1e-30))
    return ratios


def decibels(ratio: float) -> float:
    """The signal-to-noise ratio in dB, at most 120, from the ratio of noise to signal."""
    return min(120.0, -10 * math.log10(max(ratio, 1e-30)))
