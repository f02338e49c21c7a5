"""An activation in the epilogue of a weighted sum as a piecewise linear integer curve, with no int8 value in between.

Some quantizers (X86Inductor's) annotate convolution + hardswish, silu ... as one, so the convolution's own result has
no scale. Its accumulator passes through the activation in integers instead. The interval on which the quantized result
still changes is cut into segments whose length is a power of two, and the activation's value at every knot is stored in
2^-14 steps of an int8 result, or 2^-10 of an int16 one. The bytes are the same on every device, and within rounding of
the float activation.

Segments are the longest whose chords stay within 2^-10 of an int8 step (int16: 2^-8) of the activation. Their ends are
multiples of their length, so that the corners of hardswish, leaky_relu and elu are knots and no chord cuts them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import INT8X4, INT16X4, Array, QParams

Function = Callable[[Array], Array]

MOST_SEGMENTS = 1 << 14
STEEPEST = 2**17
"""Largest difference of two neighbouring knots: times 2^14 it must stay below 2^31."""

_NEAR = {INT8X4: 2.0**-10, INT16X4: 2.0**-8}
"""In output steps: the largest distance of a chord from the activation, and of the activation from its end value where
it counts as reached."""

_COARSEST = 0.25
"""In output steps: chords of an int16 result that are farther from the activation, as no more segments are to be had,
are no curve of it."""

_GRID = {INT8X4: 1 << 14, INT16X4: 1 << 16}
"""Places in which an activation is sampled."""

_FARTHEST = 1e6


@dataclass(frozen=True)
class Curve:
    """Knots (segments + 1, int32, in fractions of output steps) over the real interval [low, low + segments * step]."""

    low: float
    step: float
    knots: NDArray[np.int32]


def fit(
    function: Function, out: QParams, lo: int, hi: int, farthest: float = _FARTHEST, shortest: float = 0.0
) -> Curve | None:
    """The curve of `function` for a result quantized to `out` and clamped to [lo, hi]; None where it is too steep,
    or of an int16 result too bent.

    The float64 function is sampled over an interval that is doubled until it reaches the asymptotes, or everything that
    the sum can reach, at most `farthest`. (Where a network's values are tiny, the corners of hardswish lie far beyond
    them.) No segment is shorter than `shortest`, so that an addend in fractions of a segment fits.
    """
    bottom, top, grid, near = lo - out.zero, hi - out.zero, _GRID[out.dtype], _NEAR[out.dtype]
    fractions = 2.0 ** arithmetic.fraction(out.dtype)
    past = STEEPEST / fractions  # knots so far past the range still lie on the activation, for the chord that enters it

    def steps(x: Array, beyond: float = 1.0) -> NDArray[np.float64]:
        value = np.nan_to_num(np.asarray(function(x), np.float64) / out.scale, nan=0.0)
        return np.clip(value, bottom - beyond, top + beyond)

    farthest = max(farthest, out.scale)
    reach = min((np.ptp(out.range) + 1) * out.scale + 16.0, farthest)
    while reach < farthest and not _settled(steps, reach, near):
        reach = min(2 * reach, farthest)
        if reach >= _FARTHEST:
            return None
    x = np.linspace(-reach, reach, 2 * grid + 1)
    y = steps(x)
    moving = np.flatnonzero((np.abs(y - y[0]) > near) & (np.abs(y - y[-1]) > near))
    first, last = (max(moving[0] - 1, 0), min(moving[-1] + 1, 2 * grid)) if moving.size else (grid - 1, grid + 1)
    x = np.linspace(x[first], x[last], grid + 1)
    exact, apart = steps(x, 0.5), np.inf
    best: Curve | None = None
    for places in _places(x[0], x[-1]):
        step = (places[-1] - places[0]) / (len(places) - 1)
        if step < shortest:
            break
        knots = np.rint(steps(places, past) * fractions)
        if np.abs(np.diff(knots)).max() >= STEEPEST:
            continue
        best = Curve(float(places[0]), float(step), knots.astype(np.int32))
        chords = np.interp(x, places, knots / fractions)
        apart = np.abs(np.clip(chords, bottom - 0.5, top + 0.5) - exact).max()
        if apart <= near:
            break
    return best if out.dtype == INT8X4 or apart <= _COARSEST else None


def _places(low: float, high: float) -> Iterator[NDArray[np.float64]]:
    """Knot positions to try over [low, high], ever closer: multiples of powers of two, at last the most there may
    be."""
    step = 2.0 ** np.floor(np.log2(high - low))
    while (last := np.ceil(high / step)) - (first := np.floor(low / step)) <= MOST_SEGMENTS:
        yield np.arange(first, last + 1) * step
        step /= 2
    yield np.linspace(low, high, MOST_SEGMENTS + 1)


def _settled(steps: Function, reach: float, near: float) -> bool:
    """Whether the quantized function no longer changes beyond -reach and reach."""
    sides = (np.outer((-1.0, 1.0), (1.0, 1.5, 2.0, 4.0, 64.0)) * reach).astype(np.float64)
    values = steps(sides)
    return bool(np.abs(values - values[:, :1]).max() <= near)


def evaluate(v: NDArray[np.int64], knots: Array) -> NDArray[np.int64]:
    """The curve in fractions of output steps, as its knots are, at v, which is in 2^-14 segments from its low end and
    clamped to the curve."""
    table = knots.astype(np.int64)
    within = np.clip(v, 0, ((len(table) - 1) << arithmetic.FRACTION) - 1)
    at, part = within >> arithmetic.FRACTION, within & ((1 << arithmetic.FRACTION) - 1)
    found: NDArray[np.int64] = table[at] + (((table[at + 1] - table[at]) * part) >> arithmetic.FRACTION)
    return found


def valid(knots: Array) -> str:
    """What is wrong with the knots of a file; empty if nothing is."""
    if knots.ndim != 1 or not 1 <= len(knots) - 1 <= MOST_SEGMENTS:
        return f"must have 2 to {MOST_SEGMENTS + 1} knots, found shape {knots.shape}"
    if np.abs(np.diff(knots.astype(np.int64))).max() >= STEEPEST or np.abs(knots.astype(np.int64)).max() >= 2**27:
        return f"must rise less than {STEEPEST} between knots and stay below 2^27"
    return ""
