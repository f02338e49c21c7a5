"""Noise to signal: how far outputs are from exact ones, as a ratio of powers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from q8ta_wgpu.ir.graph import Array

_FILL, _LARGE = 10.0, 1e4
"""A number that takes the place of masked elements is this many times as large as all others. It is negative, as for
logits that are not allowed, or at least _LARGE."""


def fill_of(values: Sequence[Array]) -> float | None:
    """The number that takes the place of masked elements in an output, by its values in several items: two elements or
    more have it, and it is far from all others. None if there is none."""
    found = np.concatenate([x.reshape(-1) for x in values]) if values else np.zeros(0)
    if not found.size or found.dtype.kind != "f":
        return None
    least, most = float(found.min()), float(found.max())
    for fill, far in ((least, least < 0), (most, most >= _LARGE)):
        if far and int((found == fill).sum()) > 1:
            largest = float(np.abs(found[found != fill]).max(initial=0.0))
            if 0 < _FILL * largest < abs(fill):
                return fill
    return None


def noise(found: Iterable[Sequence[Array]], exact: Sequence[Sequence[Array]]) -> list[float]:
    """The noise of each output relative to its signal, as a ratio of powers over all items. For integers the share of
    elements that differ. What takes the place of masked elements is no signal.

    Args:
        found: the outputs of each item.
        exact: the same in float.
    """
    fills = [fill_of(each) for each in zip(*exact, strict=True)]
    errors, powers = [0.0] * len(exact[0]), [0.0] * len(exact[0])
    for ours, wanted in zip(found, exact, strict=True):
        for i, (y, v) in enumerate(zip(ours, wanted, strict=True)):
            if v.dtype.kind == "f":
                y, v = (y, v) if fills[i] is None else (y[v != fills[i]], v[v != fills[i]])
                errors[i] += float(((y.astype(np.float64) - v) ** 2).sum())
                powers[i] += float((v.astype(np.float64) ** 2).sum())
            else:
                errors[i] += float((y != v).sum())
                powers[i] += v.size
    pairs = zip(errors, powers, strict=True)
    return [error / max(power, 1e-30) if math.isfinite(error) else math.inf for error, power in pairs]


def decibels(ratio: float) -> float:
    """The signal-to-noise ratio in dB, at most 120, from the ratio of noise to signal."""
    return min(120.0, -10 * math.log10(max(ratio, 1e-30))) if ratio < math.inf else -300.0
