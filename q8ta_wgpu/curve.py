"""An activation in the epilogue of a weighted sum, with no int8 value in between: a piecewise linear integer curve.

Some quantizers (X86Inductor's) annotate convolution + hardswish, silu ... as one, so no scale exists for the
convolution's own result. Its accumulator goes through the activation in integers instead: the interval on which the
quantized result still changes is cut into equal segments, with the activation's value at every knot in 2^-14 output
steps. The same bytes on every device, and within rounding of the float activation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from q8ta_wgpu import arithmetic
from q8ta_wgpu.ir import Array, QParams

Function = Callable[[Array], Array]

SEGMENTS = (1024, 4096, 16384)
STEEPEST = 2**17
"""Bound of the difference of two neighbouring knots: times 2^14 it must stay below 2^31."""

_GRID = 1 << 14
_NEGLIGIBLE = 2.0**-9
"""In output steps: how near to its end value the activation counts as having reached it."""


@dataclass(frozen=True)
class Curve:
    """Knots (segments + 1, int32, in 2^-14 output steps) over the real interval [low, low + segments * step]."""

    low: float
    step: float
    knots: NDArray[np.int32]


def fit(function: Function, out: QParams, lo: int, hi: int) -> Curve | None:
    """The curve of `function` for a result quantized to `out` and clamped to [lo, hi]; None where it is too steep.

    The float64 function is sampled over the reach of the output's range plus 16 on both sides, where every usual
    activation is at its asymptote.
    """
    reach = 256 * out.scale + 16.0

    def steps(x: Array) -> NDArray[np.float64]:
        value = np.nan_to_num(np.asarray(function(x), np.float64) / out.scale, nan=0.0)
        return np.clip(value, lo - out.zero - 1.0, hi - out.zero + 1.0)

    x = np.linspace(-reach, reach, 2 * _GRID + 1)
    y = steps(x)
    moving = np.flatnonzero((np.abs(y - y[0]) > _NEGLIGIBLE) & (np.abs(y - y[-1]) > _NEGLIGIBLE))
    first, last = (max(moving[0] - 1, 0), min(moving[-1] + 1, 2 * _GRID)) if moving.size else (_GRID - 1, _GRID + 1)
    low, high = float(x[first]), float(x[last])
    for segments in SEGMENTS:
        knots = np.rint(steps(np.linspace(low, high, segments + 1)) * 2.0**arithmetic.FRACTION).astype(np.int64)
        if np.abs(np.diff(knots)).max() < STEEPEST:
            return Curve(low, (high - low) / segments, knots.astype(np.int32))
    return None


def evaluate(v: NDArray[np.int64], knots: Array) -> NDArray[np.int64]:
    """The curve at v, in 2^-14 segments from its low end and clamped to it: 2^-14 output steps."""
    table = knots.astype(np.int64)
    within = np.clip(v, 0, ((len(table) - 1) << arithmetic.FRACTION) - 1)
    at, part = within >> arithmetic.FRACTION, within & ((1 << arithmetic.FRACTION) - 1)
    found: NDArray[np.int64] = table[at] + (((table[at + 1] - table[at]) * part) >> arithmetic.FRACTION)
    return found


def valid(knots: Array) -> str:
    """What is wrong with the knots of a file's curve, or an empty string."""
    if len(knots) - 1 not in SEGMENTS:
        return f"must have {' or '.join(str(s + 1) for s in SEGMENTS)} knots, found {len(knots)}"
    if np.abs(np.diff(knots.astype(np.int64))).max() >= STEEPEST or np.abs(knots.astype(np.int64)).max() >= 2**24:
        return f"must rise less than {STEEPEST} between knots and stay below 2^24"
    return ""
