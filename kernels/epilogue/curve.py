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

from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import Array, QParams

Function = Callable[[Array], Array]

SEGMENTS = (1024, 4096, 16384)
STEEPEST = 2**17
"""Bound of the difference of two neighbouring knots: times 2^14 it must stay below 2^31."""

_FLAT = 2.0**-9
"""In output steps: how far a chord may be from the activation before segments are made shorter."""

_GRID = 1 << 14
_FARTHEST = 1e6
_NEGLIGIBLE = 2.0**-9
"""In output steps: how near to its end value the activation counts as having reached it."""


@dataclass(frozen=True)
class Curve:
    """Knots (segments + 1, int32, in 2^-14 output steps) over the real interval [low, low + segments * step]."""

    low: float
    step: float
    knots: NDArray[np.int32]


def fit(
    function: Function, out: QParams, lo: int, hi: int, farthest: float = _FARTHEST, shortest: float = 0.0
) -> Curve | None:
    """The curve of `function` for a result quantized to `out` and clamped to [lo, hi]; None where it is too steep.

    The float64 function is sampled over an interval that is doubled until it holds everything up to the asymptotes, or
    everything that the sum can reach, which `farthest` bounds: where a network's values are tiny, hardswish turns far
    beyond them. No segment is shorter than `shortest`, so that what is added in fractions of one fits.
    """

    def steps(x: Array) -> NDArray[np.float64]:
        value = np.nan_to_num(np.asarray(function(x), np.float64) / out.scale, nan=0.0)
        return np.clip(value, lo - out.zero - 1.0, hi - out.zero + 1.0)

    farthest = max(farthest, out.scale)
    reach = min(256 * out.scale + 16.0, farthest)
    while reach < farthest and not _settled(steps, reach):
        reach = min(2 * reach, farthest)
        if reach >= _FARTHEST:
            return None
    x = np.linspace(-reach, reach, 2 * _GRID + 1)
    y = steps(x)
    moving = np.flatnonzero((np.abs(y - y[0]) > _NEGLIGIBLE) & (np.abs(y - y[-1]) > _NEGLIGIBLE))
    first, last = (max(moving[0] - 1, 0), min(moving[-1] + 1, 2 * _GRID)) if moving.size else (_GRID - 1, _GRID + 1)
    low, high = float(x[first]), float(x[last])
    best: Curve | None = None
    for segments in SEGMENTS:
        if high - low < shortest * segments:
            break
        values = steps(np.linspace(low, high, 2 * segments + 1))
        knots = np.rint(values[::2] * 2.0**arithmetic.FRACTION).astype(np.int64)
        if np.abs(np.diff(knots)).max() >= STEEPEST:
            continue
        best = Curve(low, (high - low) / segments, knots.astype(np.int32))
        kept = (values[1::2] > lo - out.zero - 0.75) & (values[1::2] < hi - out.zero + 0.75)
        between = np.abs((values[:-1:2] + values[2::2]) / 2 - values[1::2])[kept]
        if between.max(initial=0.0) <= _FLAT:
            break
    return best


def _settled(steps: Function, reach: float) -> bool:
    """Whether the quantized function no longer changes beyond -reach and reach."""
    sides = (np.outer((-1.0, 1.0), (1.0, 1.5, 2.0, 4.0, 64.0)) * reach).astype(np.float64)
    values = steps(sides)
    return bool(np.abs(values - values[:, :1]).max() <= _NEGLIGIBLE)


def evaluate(v: NDArray[np.int64], knots: Array) -> NDArray[np.int64]:
    """The curve at v, in 2^-14 segments from its low end and clamped to it: 2^-14 output steps."""
    table = knots.astype(np.int64)
    within = np.clip(v, 0, ((len(table) - 1) << arithmetic.FRACTION) - 1)
    at, part = within >> arithmetic.FRACTION, within & ((1 << arithmetic.FRACTION) - 1)
    found: NDArray[np.int64] = table[at] + (((table[at + 1] - table[at]) * part) >> arithmetic.FRACTION)
    return found


def valid(knots: Array) -> str:
    """What is wrong with the knots of a file's curve, or an empty string."""
    if knots.ndim != 1 or len(knots) - 1 not in SEGMENTS:
        return f"must have {' or '.join(str(s + 1) for s in SEGMENTS)} knots, found shape {knots.shape}"
    if np.abs(np.diff(knots.astype(np.int64))).max() >= STEEPEST or np.abs(knots.astype(np.int64)).max() >= 2**24:
        return f"must rise less than {STEEPEST} between knots and stay below 2^24"
    return ""
