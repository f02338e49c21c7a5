"""An activation in the epilogue of a weighted sum as a piecewise linear integer curve, with no int8 value in between.

Some quantizers (X86Inductor's) annotate a convolution and its activation (hardswish, silu) as one, so the convolution's
own result has no scale. The activation is then applied to the accumulator, in integers.

* The interval in which the quantized result changes is divided into segments whose length is a power of two.
* The activation at every knot is stored in 2^-14 steps of an int8 result, or 2^-10 steps of an int16 one.
* Segments are the longest whose chords stay within 2^-10 of an int8 step (int16: 2^-8) of the activation.
* Knots are multiples of the length, so that the corners of hardswish, leaky_relu and elu are knots.
* The sum is in fractions of a segment: 2^-14, or so few that it can be rounded by additions (magic_rounding.py), where
  those are fine enough. These are 2^-14 with up to 511 segments, 2^-13 with twice as many.

The bytes are the same on every device. They differ from the float activation by its rounding only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import INT8X4, INT16X4, Array, QParams
from q8ta_wgpu.kernels.epilogue import magic_rounding

Function = Callable[[Array], Array]

MOST_SEGMENTS = 1 << 14
STEEPEST = 2**17
"""Largest difference of two neighbouring knots: times 2^14 it must stay below 2^31."""

_TOLERANCE = {INT8X4: 2.0**-10, INT16X4: 2.0**-8}
"""Output steps: the largest distance of a chord from the activation, and of the activation from its limit where it
counts as constant."""

_COARSEST = 0.25
"""Output steps: if chords of MOST_SEGMENTS are farther from the activation of an int16 result, there is no curve."""

_GRID = {INT8X4: 1 << 14, INT16X4: 1 << 16}
"""Number of intervals between the points at which an activation is sampled."""

_FARTHEST = 1e6

MARGIN = 128
"""Fractions of a segment by which sums are clamped outside of a curve, since float32 rounds the ends of intervals."""


@dataclass(frozen=True)
class Curve:
    """Knots (segments + 1, int32, in fractions of output steps) over the real interval [low, low + segments * step]."""

    low: float
    step: float
    knots: NDArray[np.int32]

    @property
    def allows_additions(self) -> bool:
        """Whether a sum of so few fractions that additions round it is fine enough: rounding it moves an int8 result by
        no more than a chord does."""
        steepest = float(np.abs(np.diff(self.knots)).max()) / 2.0**arithmetic.FRACTION
        return steepest / 2.0 ** (fraction(len(self.knots) - 1, by_addition=True) + 1) <= _TOLERANCE[INT8X4]

    def steps(self, by_addition: bool) -> float:
        """Fractions of a segment for the real value 1."""
        return 2.0 ** fraction(len(self.knots) - 1, by_addition) / self.step


def fraction(segments: int, by_addition: bool) -> int:
    """Fraction bits of a sum before a curve of so many segments: 14, or less where it could not be rounded by additions
    otherwise."""
    if not by_addition:
        return arithmetic.FRACTION
    return min(arithmetic.FRACTION, ((magic_rounding.WIDEST - 2 * MARGIN) // segments).bit_length() - 1)


def fit(
    function: Function, out: QParams, lo: int, hi: int, farthest: float = _FARTHEST, shortest: float = 0.0
) -> Curve | None:
    """The piecewise linear curve of an activation.

    The function is sampled over an interval that is doubled until the function is constant outside it, or until it
    contains everything that the sum can reach.

    Args:
        function: float64 array -> float64 array of the same shape, element by element.
        out: quantization of the result.
        lo, hi: the range that the result is clamped to, integers of its dtype.
        farthest: the largest magnitude of the sum, a real value.
        shortest: length of the shortest segment, a real value, so that an addend in fractions of a segment fits.

    Returns:
        None where the function is too steep for `out`, or where an int16 result would need more segments.
    """
    bottom, top, grid, tolerance = lo - out.zero, hi - out.zero, _GRID[out.dtype], _TOLERANCE[out.dtype]
    fractions = 2.0 ** arithmetic.fraction(out.dtype)
    past = STEEPEST / fractions  # knots up to here outside [lo, hi] are exact: the chord that enters the range needs it

    def steps(x: Array, beyond: float = 1.0) -> NDArray[np.float64]:
        value = np.nan_to_num(np.asarray(function(x), np.float64) / out.scale, nan=0.0)
        return np.clip(value, bottom - beyond, top + beyond)

    farthest = max(farthest, out.scale)
    reach = min((np.ptp(out.range) + 1) * out.scale + 16.0, farthest)
    while reach < farthest and not _settled(steps, reach, tolerance):
        reach = min(2 * reach, farthest)
        if reach >= _FARTHEST:
            return None
    x = np.linspace(-reach, reach, 2 * grid + 1)
    y = steps(x)
    moving = np.flatnonzero((np.abs(y - y[0]) > tolerance) & (np.abs(y - y[-1]) > tolerance))
    first, last = (max(moving[0] - 1, 0), min(moving[-1] + 1, 2 * grid)) if moving.size else (grid - 1, grid + 1)
    x = np.linspace(x[first], x[last], grid + 1)
    exact, apart = steps(x, 0.5), np.inf
    best: Curve | None = None
    for positions in _knot_positions(x[0], x[-1]):
        step = (positions[-1] - positions[0]) / (len(positions) - 1)
        if step < shortest:
            break
        knots = np.rint(steps(positions, past) * fractions)
        if np.abs(np.diff(knots)).max() >= STEEPEST:
            continue
        best = Curve(float(positions[0]), float(step), knots.astype(np.int32))
        chords = np.interp(x, positions, knots / fractions)
        apart = np.abs(np.clip(chords, bottom - 0.5, top + 0.5) - exact).max()
        if apart <= tolerance:
            break
    return best if out.dtype == INT8X4 or apart <= _COARSEST else None


def _knot_positions(low: float, high: float) -> Iterator[NDArray[np.float64]]:
    """Candidate positions of knots over [low, high], with smaller and smaller steps: multiples of powers of two, and
    last MOST_SEGMENTS segments of equal length."""
    step = 2.0 ** np.floor(np.log2(high - low))
    while (last := np.ceil(high / step)) - (first := np.floor(low / step)) <= MOST_SEGMENTS:
        yield np.arange(first, last + 1) * step
        step /= 2
    yield np.linspace(low, high, MOST_SEGMENTS + 1)


def _settled(steps: Function, reach: float, tolerance: float) -> bool:
    """Whether the quantized function is constant below -reach and above reach."""
    sides = (np.outer((-1.0, 1.0), (1.0, 1.5, 2.0, 4.0, 64.0)) * reach).astype(np.float64)
    values = steps(sides)
    return bool(np.abs(values - values[:, :1]).max() <= tolerance)


def evaluate(v: NDArray[np.int64], knots: Array, bits: int) -> NDArray[np.int64]:
    """The value of a curve: the definition of the stage `curve`.

    Args:
        v: int64, distance from the first knot in 2^-`bits` segments. It is clamped to the curve.
        knots: int32 (segments + 1,), in fractions of output steps.
        bits: the fraction bits of `v`.

    Returns:
        int64, shape of `v`, in fractions of output steps.
    """
    table = knots.astype(np.int64)
    segments = len(table) - 1
    within = np.clip(v, 0, (segments << bits) - 1)
    segment, part = within >> bits, within & ((1 << bits) - 1)
    start, end = table[segment], table[segment + 1]
    values: NDArray[np.int64] = start + (((end - start) * part) >> bits)
    return values


def valid(knots: Array) -> str:
    """What is wrong with the knots of a model file; empty if nothing is."""
    if knots.ndim != 1 or not 1 <= len(knots) - 1 <= MOST_SEGMENTS:
        return f"must have 2 to {MOST_SEGMENTS + 1} knots, found shape {knots.shape}"
    if np.abs(np.diff(knots.astype(np.int64))).max() >= STEEPEST or np.abs(knots.astype(np.int64)).max() >= 2**27:
        return f"must rise less than {STEEPEST} between knots and stay below 2^27"
    return ""
